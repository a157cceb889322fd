"""Lifting: the value, at top level, of a tensor that a trace computes."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import at_top_level, operand_text, replay
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.runtime.pending import refuse_leaked
from tracegraph.runtime.trace import Trace
from tracegraph.source import here


def lifted(tensor: Tensor) -> Tensor:
    """`tensor` as a tensor of the top level: the nodes that make it are run there.

    Raises a ValueError if it depends on an argument of the function that is being traced.
    """
    trace = tensor.node.builder if tensor.node is not None else None
    if trace is not None and not trace.is_open:
        refuse_leaked(tensor)
    found, missing = _lift(tensor)
    if missing is not None:
        fail(
            SignatureError,
            "the initial value of a Variable depends on an argument of the @tg.function "
            "that creates it",
            source=here(),
            operands=[operand_text(missing)],
            fix="create the Variable outside of the function, or from values known there",
        )
    return found


def _lift(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """The lifted tensor and None, or anything and an input that has no value."""
    trace = tensor.node.builder if tensor.node is not None else None
    if not isinstance(trace, Trace):
        return tensor, None
    env: dict[Tensor, Tensor] = {}
    for variable in trace.variables:
        env[trace.states[id(variable)].handle] = variable.made_tensor()
    outside = {inner: outer for outer, inner in trace.captures.items()}
    nodes, inputs = _needed(trace.nodes, tensor, env)
    for x in inputs:
        if x in env:
            continue
        if x not in outside:
            return tensor, x
        env[x], missing = _lift(outside[x])
        if missing is not None:
            return tensor, missing
    with at_top_level():
        replay(nodes, env)
    return env[tensor], None


def _needed(
    nodes: Sequence[Node], tensor: Tensor, known: dict[Tensor, Tensor]
) -> tuple[list[Node], list[Tensor]]:
    """The nodes that make `tensor` from what is known, and the inputs that they read."""
    wanted = {tensor} - known.keys()
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.difference_update(node.outputs)
            wanted.update(x for x in node.inputs if x not in known)
    kept.reverse()
    return kept, list(wanted)
