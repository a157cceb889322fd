"""How many states the reverse mode of `while` loops keeps, chosen by a budget of memory."""

from __future__ import annotations

from tracegraph.control.while_loop import WhileGradient, checkpoints_within, usual_checkpoints
from tracegraph.ir.op import Op
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph, Node


def with_checkpoints(graph: Graph, size: int, lowers_all: bool) -> Graph:
    """The graph whose loops keep as many states as `size` bytes hold, for their reverse mode: those
    for which nobody said how many. With `lowers_all` others keep no more either."""

    def chosen(node: Node, op: Op) -> Op:
        if not isinstance(op, WhileGradient):
            return op
        states = op.body.input_types[op.constants :]
        count = checkpoints_within(size, states)
        if op.checkpoints != usual_checkpoints(states):
            count = min(count, op.checkpoints) if lowers_all else op.checkpoints
        return WhileGradient(op.body, op.constants, op.backward, op.targets, count, op.extras)

    return rewritten(graph, chosen)
