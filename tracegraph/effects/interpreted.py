"""Branches and loops with effects, run from Python: each region is run by itself, so that effects
are made in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.control.branch import Branch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.core.shapes import static_shape
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph

#: Runs a region for the values of its inputs, which are those of the op from some place on.
RunRegion = Callable[[Graph, Sequence[Any], int], Sequence[Any]]


def interpret(op: Op, values: Sequence[Any], run: RunRegion) -> Sequence[Any]:
    """The values of the outputs of a branch or a loop, for those of its inputs."""
    if isinstance(op, Branch):
        return run(op.known_branch(np.asarray(values[0])), values[1:], 1)
    if isinstance(op, Scan):
        return _scanned(op, values, run)
    assert isinstance(op, While), f"{op} has effects, and nothing runs it"
    constants, states = values[: op.constants], values[op.constants :]
    count = 0
    while np.asarray(run(op.condition, [*constants, *states], 0)[0]):
        states = run(op.body, [*constants, *states], 0)
        count += 1
    return [*states, np.int32(count)] if op.counts else states


def _scanned(op: Scan, values: Sequence[Any], run: RunRegion) -> Sequence[Any]:
    constants, states = values[: op.constants], values[op.constants : op.rows]
    rows = [np.asarray(x) for x in values[op.rows :]]
    types = op.body.output_types[op.states :]
    stacked: list[list[np.ndarray]] = [[] for _ in types]
    steps = range(static_shape((op.length,))[0])
    for step in reversed(steps) if op.reverse else steps:
        outputs = run(op.body, [*constants, *states, *(x[step] for x in rows)], 0)
        states = outputs[: op.states]
        for made, y in zip(stacked, outputs[op.states :], strict=True):
            made.append(np.asarray(y))
    whole = [
        np.stack(made[:: -1 if op.reverse else 1])
        if made
        else np.zeros((0, *static_shape(type.shape)), type.dtype.numpy_dtype)
        for made, type in zip(stacked, types, strict=True)
    ]
    return [*states, *whole]
