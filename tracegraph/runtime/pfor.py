"""Parallel for: a Python function traced for one iteration, then run for all of them at once.

Only what depends on the iteration gets a loop axis; what does not is computed once. The nodes are
appended to whatever is being built, so gradients, functions and other loops go around it freely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegraph.errors import MissingRuleError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import stack
from tracegraph.ops.effect import HostCall
from tracegraph.ops.random import RandomSplit
from tracegraph.ops.shape import Reshape, Slice
from tracegraph.passes.vectorise import widen
from tracegraph.runtime.execute import pass_check_on
from tracegraph.runtime.naming import told_name
from tracegraph.runtime.results import Results, result_leaves
from tracegraph.runtime.trace import Trace, Traced, restored
from tracegraph.runtime.variable import Variable
from tracegraph.source import here


def parallel_for(
    function: Callable[[list[Tensor]], Any],
    elements: Sequence[Tensor],
    count: Any,
    caller: str = "pfor",
) -> Any:
    """`function` of the elements of each iteration, its results stacked along a new first axis.

    `elements` are tensors with a first axis of size `count`; `function` is given the list of what
    one iteration has of them, and returns a structure of tensors and None. Errors about what it
    returns name the `caller`, which the user called.
    """
    traced, results = _traced(function, elements, caller)
    _refuse_effects(traced)
    env: dict[Tensor, tuple[Tensor, bool]] = {}
    inputs = iter(traced.graph.inputs)
    env.update((next(inputs), (x, True)) for x in elements)
    env.update((next(inputs), _state(traced, v, count)) for v in traced.variables)
    env.update((next(inputs), (x, False)) for x in traced.captures)
    widen(traced.graph.nodes, env, count)
    outputs = [env[y] for y in traced.graph.outputs]
    _report_checks(traced, outputs)
    return results.pack(
        [y if is_batched else stack(y, count) for y, is_batched in outputs[: traced.result_count]]
    )


def _traced(
    function: Callable[[list[Tensor]], Any], elements: Sequence[Tensor], caller: str
) -> tuple[Traced, Results]:
    def run() -> tuple[Traced, Results]:
        with Trace("pfor") as trace:
            types = [x.type.with_shape(x.type.shape[1:]) for x in elements]
            result = function([trace.argument(type, None) for type in types])
            leaves, structure = result_leaves(result, f"the function of {caller}", here())
            traced = trace.traced([y for y in leaves if y is not None])
        return traced, Results(structure, leaves)

    return restored(run)


def _refuse_effects(traced: Traced) -> None:
    graphs = traced.graph.graphs() if traced.has_token else ()
    for node in (node for graph in graphs for node in graph.nodes):
        if isinstance(node.op, HostCall):
            fail(
                MissingRuleError,
                f"{node.op.called} is called in every iteration of a parallel loop, and their "
                "order is not known",
                source=node.source,
                fix="call it on the stacked values, after the loop",
            )
    for i in traced.assigned:
        variable = traced.variables[i]
        if not variable.is_random_state:
            fail(
                SignatureError,
                f"the variable {told_name(variable)!r} is assigned in every iteration of a "
                "parallel loop, and their order is not known",
                source=here(),
                fix="return the values, and assign what they sum up to after the loop",
            )


def _state(traced: Traced, variable: Variable, count: Any) -> tuple[Tensor, bool]:
    """The value of a variable in the iterations, and whether each has its own: that of a random
    generator is split among them."""
    value = variable.read_value()
    if not any(traced.variables[i] is variable for i in traced.assigned):
        return value, False
    keys = RandomSplit(count + 1)(value)
    variable.assign(Reshape((2,))(Slice((0, 0), (1, 2), (1, 1))(keys)))
    return Slice((1, 0), (count + 1, 2), (1, 1))(keys), True


def _report_checks(traced: Traced, outputs: Sequence[tuple[Tensor, bool]]) -> None:
    place = traced.first_check
    for report in traced.checks:
        values = tuple(value for value, _ in outputs[place : place + 1 + report.operand_count])
        pass_check_on(report, values)
        place += len(values)
