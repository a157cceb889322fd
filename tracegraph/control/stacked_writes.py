"""Scans that write a row of a buffer in each step and read none return the rows stacked instead.

The buffer is then no longer state: nothing is copied from step to step, and reverse mode takes the
cotangents of all rows at once. This is what a TensorArray in a loop over `tg.range(n)` becomes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tracegraph.control.scan import Scan
from tracegraph.control_passes.ranges import ranges_of
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.index import ScatterUpdate
from tracegraph.ops.shape import Concatenate, Reshape, slice_axis
from tracegraph.passes.simplify import dead_code

Outputs = Sequence[Tensor]


class _Write(NamedTuple):
    """A state that is a buffer whose row `places[t]` step t writes."""

    state: int
    update: Tensor
    places: np.ndarray
    numbers: Tensor


def with_stacked_writes(
    op: Scan, inputs: Sequence[Tensor]
) -> tuple[Scan, list[Tensor], Callable[[Outputs], list[Tensor]]]:
    """The scan without write-only states, its inputs, and a function from its outputs to those of
    `op`."""
    writes = _writes(op, inputs)
    if not writes:
        return op, [*inputs], list
    dropped = {write.state for write in writes}
    kept = [i for i in range(op.states) if i not in dropped]
    body, ends = op.body, op.body.outputs
    outputs = [*(ends[i] for i in kept), *ends[op.states :], *(x.update for x in writes)]
    rest = [i for i in range(len(inputs)) if i - op.constants not in dropped]
    small = dead_code(body.with_outputs(tuple(outputs)))
    small = Graph(small.name, tuple(small.inputs[i] for i in rest), small.nodes, small.outputs)

    def unstacked(found: Outputs) -> list[Tensor]:
        states = dict(zip(kept, found, strict=False))
        for write, rows in zip(writes, found[len(found) - len(writes) :], strict=True):
            buffer = inputs[op.constants + write.state]
            states[write.state] = _written(buffer, write.places, write.numbers, rows)
        ordered = [states[i] for i in range(op.states)]
        return [*ordered, *found[len(kept) : len(found) - len(writes)]]

    return op.with_body(small, op.constants, len(kept)), [inputs[i] for i in rest], unstacked


def _writes(op: Scan, inputs: Sequence[Tensor]) -> list[_Write]:
    body = op.body
    if not isinstance(op.length, int) or op.length == 0:
        return []
    uses = collections.Counter(x for node in body.nodes for x in node.inputs)
    uses.update(body.outputs)
    numbers = {x: i for i, x in enumerate(body.inputs) if i >= op.rows}
    found: list[_Write] = []
    for state in range(op.states):
        buffer, y = body.inputs[op.constants + state], body.outputs[state]
        node = y.node
        if node is None or node.op is not ScatterUpdate(0, 0) or node.inputs[0] is not buffer:
            continue
        _, at, update = node.inputs
        source = at.node
        if uses[buffer] != 1 or uses[y] != 1 or source is None or type(source.op) is not Reshape:
            continue
        row = numbers.get(source.inputs[0])
        if row is None:
            continue
        (places,) = ranges_of([inputs[row]])
        if isinstance(places, np.ndarray) and _are_distinct(places, buffer.type.shape[0]):
            found.append(_Write(state, update, places, inputs[row]))
    return found


def _are_distinct(places: np.ndarray, size: object) -> bool:
    """Whether each step writes a different row, and one that exists."""
    if not isinstance(size, int) or len(set(places.tolist())) < len(places):
        return False
    return bool(places.min() >= 0 and places.max() < size)


def _written(buffer: Tensor, places: np.ndarray, numbers: Tensor, rows: Tensor) -> Tensor:
    """The buffer with these rows at their places, which are also given as `numbers`."""
    size, count, first = buffer.type.shape[0], len(places), int(places[0])
    if not (places == np.arange(first, first + count)).all():
        return ScatterUpdate(0, 0)(buffer, Reshape((count, 1))(numbers), rows)
    before = [slice_axis(buffer, 0, 0, first)] if first else []
    end = first + count
    behind = [slice_axis(buffer, 0, end, size)] if end != size else []
    parts = [*before, rows, *behind]
    return Concatenate(0)(*parts) if len(parts) > 1 else rows
