"""Initial values of Variables that a trace creates: computed at top level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import at_top_level, operand_text, refuse_leaked, replay
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.passes.specialise import bind_sizes, with_sizes
from tracegraph.tracing.trace import Trace


def concrete_initial_value(tensor: Tensor) -> Tensor:
    """`tensor` as a concrete tensor: replays the nodes that compute it at top level.

    An argument of a function that is being called has its value in that call. Raises a ValueError
    if the tensor depends on an argument without one.
    """
    trace = tensor.node.builder if tensor.node is not None else None
    if trace is not None and not trace.is_open:
        refuse_leaked(tensor)
    found, missing = _concrete_value(tensor)
    if missing is not None:
        fail(
            SignatureError,
            "the initial value of a Variable depends on an argument of the @tg.function "
            "that creates it, which has no value yet",
            operands=[operand_text(missing)],
            fix="call the function with values first, or create the Variable outside of it",
        )
    return found


def _concrete_value(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """The concrete tensor and None, or anything and an input that has no value."""
    trace = tensor.node.builder if tensor.node is not None else None
    if not isinstance(trace, Trace):
        return tensor, None
    env: dict[Tensor, Tensor] = {}
    for variable in trace.variables:
        env[trace.states[id(variable)].handle] = variable.made_tensor()
    outside = {inner: outer for outer, inner in trace.captures.items()}
    if trace.actual is not None and trace.parallel_rows is None:
        outside.update(zip(trace.arguments, trace.actual))
    nodes, inputs = _needed(trace.nodes, tensor, env)
    for x in inputs:
        if x in env:
            continue
        if x not in outside:
            return tensor, x
        env[x], missing = _concrete_value(outside[x])
        if missing is not None:
            return tensor, missing
    sizes = _sizes_in_call(trace)
    with at_top_level():
        replay(nodes, env, (lambda op: op.substitute(sizes)) if sizes else None)
    return env[tensor], None


def _sizes_in_call(trace: Trace) -> dict[str, Any]:
    """The open sizes of a trace, and of those around it, in the call that is being traced."""
    sizes = _sizes_in_call(trace.outer) if isinstance(trace.outer, Trace) else {}
    formal = [x.type for x in trace.arguments]
    actual = [with_sizes(x.type, sizes) for x in trace.actual or ()]
    return {**sizes, **bind_sizes(formal, actual)} if actual else sizes


def _needed(
    nodes: Sequence[Node], tensor: Tensor, known: dict[Tensor, Tensor]
) -> tuple[list[Node], list[Tensor]]:
    """The nodes that compute `tensor` from known values, and the inputs that they read."""
    wanted = {tensor} - known.keys()
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.difference_update(node.outputs)
            wanted.update(x for x in node.inputs if x not in known)
    kept.reverse()
    return kept, list(wanted)
