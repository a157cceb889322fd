"""Sizes that no step of a loop changes, such as that of `tg.zeros([n])` in its body: what gives
them is computed before the loop, where a run can be cut.
"""

from __future__ import annotations

from tracegraph.core.types import TOKEN
from tracegraph.ir.builder import INPUT, current
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.padding.bounded_sizes import is_at_least_0, largest_value
from tracegraph.passes.specialise import names_chosen, names_used
from tracegraph.tracing.trace import Trace

#: The most nodes that compute such a value.
_MOST_NODES = 64


def value_before_loops(n: Tensor, is_certain: bool) -> tuple[Trace, Tensor] | None:
    """The trace around the loops that do not change the value of n, an integer scalar of the
    current trace, and that value there; None if there is no such loop, or if the steps can compute
    with the largest value, as for `x[:n]`.

    Outside of a branch it is found even if the branch is not taken, so it leaves branches only if
    it `is_certain` to be a size, or is seen not to be negative.
    """
    trace, found = current(), None
    if largest_value(n) is not None:
        return None
    is_certain = is_certain or is_at_least_0(n)
    while isinstance(trace, Trace) and trace.region and (trace.is_step or is_certain):
        value = _value_around(trace, n)
        if value is None or not isinstance(trace.outer, Trace):
            break
        trace, n, was_step = trace.outer, value, trace.is_step
        found = (trace, n) if was_step else found
    return found


def _value_around(trace: Trace, x: Tensor) -> Tensor | None:
    """The value of a tensor of a trace in the trace around it; None if it follows from more than
    what the trace captured."""
    inner = set[str]().union(*map(names_chosen, trace.nodes))
    ends: dict[Tensor, Tensor] = {}
    nodes: set[Node] = set()
    waiting = [x]
    while waiting:
        y = waiting.pop()
        node, outside = y.node, _outside(trace, y)
        if outside is not None:
            ends[y] = outside
        elif node is None or not _is_movable(node, inner) or len(nodes) == _MOST_NODES:
            return None
        elif node not in nodes:
            nodes.add(node)
            waiting += node.inputs
    env = dict(ends)
    for node in [node for node in trace.nodes if node in nodes]:
        outputs = trace.outer.add(node.op, tuple([env[y] for y in node.inputs]), node.source)
        env.update(zip(node.outputs, outputs, strict=True))
    return env[x]


def _outside(trace: Trace, x: Tensor) -> Tensor | None:
    """The tensor outside of a trace that x is, or stands for."""
    node = x.node
    return x if node is None or node.builder is not trace else trace.captured(x)


def _is_movable(node: Node, inner: set[str]) -> bool:
    """Whether a node only computes, without the sizes that its trace finds."""
    if node.op is INPUT or names_used(node) & inner:
        return False
    return not any(x.type is TOKEN for x in (*node.inputs, *node.outputs))


__all__ = ["value_before_loops"]
