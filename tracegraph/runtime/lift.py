"""Lifting: the value, at top level, of a tensor that a trace computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import at_top_level, operand_text, replay
from tracegraph.ir.tensor import Node, Tensor, host_tensor
from tracegraph.runtime.pending import refuse_leaked
from tracegraph.runtime.trace import Trace
from tracegraph.source import here
from tracegraph.types import TOKEN


def lifted(tensor: Tensor) -> Tensor:
    """`tensor` as a tensor of the top level: the nodes that make it are run there.

    Raises a ValueError if it depends on an argument of the function that is being traced.
    """
    trace = tensor.node.builder if tensor.node is not None else None
    if trace is not None and not trace.is_open:
        refuse_leaked(tensor)
    found, missing = _lift(tensor, with_arguments=False)
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


def first_token() -> Tensor:
    """What stands before all effects, or after those that were made already."""
    return host_tensor(TOKEN, np.zeros((), np.bool_))


def lifted_with_arguments(tensor: Tensor) -> Tensor | None:
    """`tensor` for the arguments of the call that is being traced; None if there is no call."""
    found, missing = _lift(tensor, with_arguments=True)
    return found if missing is None else None


def _lift(tensor: Tensor, with_arguments: bool) -> tuple[Tensor, Tensor | None]:
    """The lifted tensor and None, or anything and an input that has no value."""
    trace = tensor.node.builder if tensor.node is not None else None
    if not isinstance(trace, Trace):
        return tensor, None
    env: dict[Tensor, Tensor] = dict(trace.known)
    for variable in trace.variables:
        env[trace.states[id(variable)].handle] = variable.made_tensor()
    outside = {inner: outer for outer, inner in trace.captures.items()}
    if with_arguments and trace.actual is not None:
        outside.update(zip(trace.arguments, trace.actual, strict=True))
    if with_arguments and trace.token_input is not None:
        # The effects of the function that calls this one come first.
        before = trace.outer.token if isinstance(trace.outer, Trace) else None
        outside[trace.token_input] = first_token() if before is None else before
    nodes, inputs = _needed(trace.nodes, tensor, env)
    for x in inputs:
        if x in env:
            continue
        if x not in outside:
            return tensor, x
        env[x], missing = _lift(outside[x], with_arguments)
        if missing is not None:
            return tensor, missing
    with at_top_level():
        replay(nodes, env)
    for node in nodes:
        if any(x.type is TOKEN for x in node.inputs):  # its effects happen once
            trace.known.update((y, env[y]) for y in node.outputs)
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
