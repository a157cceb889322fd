"""Lifting: the value, at top level, of a tensor that a trace computes from constants and state."""

from __future__ import annotations

from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import at_top_level, operand_text, replay
from tracegraph.ir.tensor import Tensor
from tracegraph.passes.share import live_nodes
from tracegraph.runtime.trace import Trace
from tracegraph.source import here


def lifted(tensor: Tensor) -> Tensor:
    """`tensor` as a tensor of the top level: the nodes that make it are run there.

    Raises a ValueError if it depends on an argument of the function that is being traced.
    """
    trace = tensor.node.builder if tensor.node is not None else None
    if not isinstance(trace, Trace):
        return tensor
    nodes = live_nodes(trace.nodes, [tensor])
    env: dict[Tensor, Tensor] = {inner: lifted(outer) for outer, inner in trace.captures.items()}
    for variable in trace.variables:
        env[trace.states[id(variable)].handle] = variable.made_tensor()
    made = {y for node in nodes for y in node.outputs}
    for x in (tensor, *(x for node in nodes for x in node.inputs)):
        if x not in env and x not in made:
            fail(
                SignatureError,
                "the initial value of a Variable depends on an argument of the @tg.function "
                "that creates it",
                source=here(),
                operands=[operand_text(x)],
                fix="create the Variable outside of the function, or from values known there",
            )
    with at_top_level():
        replay(nodes, env)
    return env[tensor]
