"""Branches and loops with effects: their derivatives recompute what they need, and must not repeat
the effects."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.core.types import TOKEN
from tracegraph.errors import Mismatch
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.effect import FirstToken, HostCall
from tracegraph.passes.simplify import dead_code


def calls_python(graph: Graph) -> bool:
    """Whether it calls Python for more than printing: to return values, or with access to state."""
    return graph.cuts_runs and any(
        isinstance(node.op, HostCall) and (node.op.types or node.op.sees_variables)
        for node in graph.all_nodes()
    )


def lengths_of_runs(graph: Graph) -> set[str]:
    """The names of the lengths of the loops inside of it that only their runs know, since they call
    Python."""
    return {name for node in graph.all_nodes() for name in node.op.sizes_of_runs}


def without_prints(graph: Graph) -> Graph:
    """The graph without its prints: it returns the token that it takes. Raises Mismatch if it does
    more than print."""
    if not graph.cuts_runs:
        return graph
    return graph.cached("without_prints", lambda: _without_prints(graph))


def without_tokens(values: Sequence[Tensor]) -> list[Tensor]:
    """The operands of a derivative, which has no effects: nothing is ordered before it."""
    return [FirstToken()() if x.type is TOKEN else x for x in values]


def _without_prints(graph: Graph) -> Graph:
    if calls_python(graph):
        raise Mismatch(
            f"this derivative of @{graph.name} is not known, since it calls a Python function, "
            "which it would have to call again",
            fix="call the Python function outside of the loop or branch; or let a "
            "tg.numpy_function return the slope too, for a tg.custom_gradient to multiply; or stop "
            "the gradient: tg.stop_gradient",
        )
    tokens = [x for x in graph.inputs if x.type is TOKEN]
    outputs = tuple(tokens[0] if y.type is TOKEN else y for y in graph.outputs)
    return dead_code(graph.with_outputs(outputs))
