"""Branches and loops with effects, run from Python: each region is run by itself, so that effects
are made in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.control.branch import Branch
from tracegraph.control.recorded_while import RecordedWhile
from tracegraph.control.scan import Loop, Scan
from tracegraph.control.while_loop import While
from tracegraph.core.shapes import ShapeVariable, static_shape, substitute_shape
from tracegraph.core.types import TOKEN, type_of_array
from tracegraph.errors import Mismatch
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph
from tracegraph.passes.specialise import bind_sizes

#: Runs a region for the values of its inputs, which are those of the op from some place on.
RunRegion = Callable[[Graph, Sequence[Any], int], Sequence[Any]]


def interpret(op: Op, values: Sequence[Any], run: RunRegion) -> Sequence[Any]:
    """The values of the outputs of a branch or a loop, for those of its inputs."""
    if isinstance(op, Branch):
        return run(op.known_branch(np.asarray(values[0])), values[1:], 1)
    if isinstance(op, Scan):
        return _scanned(op, values, run)
    if isinstance(op, RecordedWhile):
        return _recorded(op, values, run)
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
    stacked: list[list[np.ndarray]] = [[] for _ in op.body.outputs[op.states :]]
    steps = range(static_shape((op.length,))[0])
    for step in reversed(steps) if op.reverse else steps:
        outputs = run(op.body, [*constants, *states, *(x[step] for x in rows)], 0)
        states = outputs[: op.states]
        for made, y in zip(stacked, outputs[op.states :], strict=True):
            made.append(np.asarray(y))
    return [*states, *_whole(op, values[: op.rows], stacked, op.reverse)]


def _recorded(op: RecordedWhile, values: Sequence[Any], run: RunRegion) -> Sequence[Any]:
    constants, states = values[: op.constants], values[op.constants :]
    stacked: list[list[np.ndarray]] = [[] for _ in op.body.outputs[op.states :]]
    count = 0
    while np.asarray(run(op.condition, [*constants, *states], 0)[0]):
        outputs = run(op.body, [*constants, *states], 0)
        states = outputs[: op.states]
        for made, y in zip(stacked, outputs[op.states :], strict=True):
            made.append(np.asarray(y))
        count += 1
    return [*states, np.arange(count, dtype=np.int32), *_whole(op, values, stacked)]


def _whole(
    op: Loop, values: Sequence[Any], stacked: Sequence[list[np.ndarray]], is_reverse: bool = False
) -> list[np.ndarray]:
    """The rows of all steps, in the order of the steps or in the other one."""
    return [
        _stacked(made[:: -1 if is_reverse else 1]) if made else _no_rows(op, values, place)
        for place, made in enumerate(stacked)
    ]


def _stacked(rows: Sequence[np.ndarray]) -> np.ndarray:
    for row in rows:
        if row.shape != rows[0].shape:
            raise Mismatch(
                f"what one step computes has the shape {[*rows[0].shape]}, and what another one "
                f"computes {[*row.shape]}, so it cannot be kept for derivatives or stacked",
                fix="let the Python function return one shape in all steps",
            )
    return np.stack(rows)


def _no_rows(op: Loop, values: Sequence[Any], place: int) -> np.ndarray:
    """The rows of no step: sizes that the run knows, and 0 for those that a step would choose."""
    formal = op.body.input_types
    pairs = zip(formal, values)
    known = [x if x is TOKEN else type_of_array(np.asarray(value)) for x, value in pairs]
    type = op.body.output_types[op.states + place]
    shape = substitute_shape(type.shape, bind_sizes(formal[: len(known)], known))
    rest = () if isinstance(shape, ShapeVariable) else shape
    return np.zeros((0, *(n if isinstance(n, int) else 0 for n in rest)), type.dtype.numpy_dtype)
