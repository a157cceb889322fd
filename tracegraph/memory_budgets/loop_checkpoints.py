"""Chooses by a memory budget how many states the reverse mode of `while` loops keeps."""

from __future__ import annotations

from tracegraph.control.while_loop import WhileGradient, checkpoints_within, usual_checkpoints
from tracegraph.ir.op import Op
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph, Node


def with_checkpoints(graph: Graph, size: int, lowers_all: bool) -> Graph:
    """The graph whose loops keep as many states for reverse mode as fit in `size` bytes: those
    whose number nobody set. With `lowers_all` the others keep no more either."""

    def chosen(node: Node, op: Op) -> Op:
        if not isinstance(op, WhileGradient):
            return op
        states = op.body.input_types[op.constants :]
        count = checkpoints_within(size, states)
        if op.checkpoints != usual_checkpoints(states):
            count = min(count, op.checkpoints) if lowers_all else op.checkpoints
        return WhileGradient(op.body, op.constants, op.backward, op.targets, count, op.extras)

    return rewritten(graph, chosen)
