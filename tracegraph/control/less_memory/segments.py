"""Scans divided into segments: the steps of a segment are computed again before it is reversed.

Reverse mode of a scan of T steps needs something of every step, at least its states. A scan of
scans needs the states before each segment, and inside one segment the values of its steps: with
segments of about sqrt(T) steps, memory grows with sqrt(T), for one more run of the steps. (Chen and
others, "Training deep nets with sublinear memory cost", 2016.)

A scan and the scans that reverse it are divided alike. What a segment stacks for them is then a
value of one step of the outer scan, so the cut through that step does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracegraph.calls.call import derived_name
from tracegraph.control.less_memory.stacked_residuals import Choice, Uses, with_less_stacked
from tracegraph.control.scan import Scan
from tracegraph.core.shapes import static_shape
from tracegraph.core.source import Source
from tracegraph.core.types import bytes_of_type
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.shape import Concatenate, Reshape, Slice

#: The fewest steps of a scan that is divided, and of a segment.
_SHORTEST, _FEWEST = 6, 2
#: How much memory a division may waste if it leaves no steps over: for those a program needs the
#: loops twice, and copies of the rows.
_WASTE = 1.25


@dataclass(frozen=True)
class _Parts:
    """Rows as those of the segments, `[segments, steps, ...]`, and those of the steps left over."""

    segments: Tensor
    rest: Tensor | None


@dataclass(frozen=True)
class Division:
    """A scan of the user, of `length` steps, and the steps in one of its segments."""

    source: Source
    length: int
    steps: int

    def __str__(self) -> str:
        count, rest = divmod(self.length, self.steps)
        others = f" and one of {rest}" if rest else ""
        return (
            f"segments: scan of {self.length} steps, {self.source}; {count} of {self.steps} "
            f"steps{others}, each run again for its gradient"
        )


def with_segments(graph: Graph, choose: Choice) -> tuple[Graph, list[Division]] | None:
    """The graph with the scans that stack values for reverse scans divided into segments, of which
    `choose` says what they keep, and the divisions of the user's scans; None if there is no such
    scan, or keeping all is best."""
    uses = Uses(graph)
    lengths = _lengths(graph, uses)
    if not lengths:
        return None
    divided = _divided_scans(graph, uses, lengths)
    divisions = [
        Division(node.source, node.op.length, steps)  # type: ignore[attr-defined]
        for node, steps in divided.items()
        if not node.source.roles
    ]
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        parts: dict[Tensor, _Parts] = {}
        for node in graph.nodes:
            if node in divided:
                _Divided(builder, node, divided[node]).add(env, parts, uses)
            else:
                replay([node], env)
        made = builder.finish([env[y] for y in graph.outputs])
    found = with_less_stacked(made, choose)
    return None if found is None else (found, divisions)


def _lengths(graph: Graph, uses: Uses) -> dict[int, int]:
    """The length of the segments, by that of the scans: scans that read each other's rows are
    equally long."""
    states: dict[int, int] = {}
    stacked: dict[int, int] = {}
    for node in graph.nodes:
        op, rows = node.op, uses.left_out(node)
        if not rows or not isinstance(op, Scan) or op.has_effects:
            continue
        (length,) = static_shape((op.length,))
        if length < _SHORTEST:
            continue
        states[length] = states.get(length, 0) + sum(map(bytes_of, node.outputs[: op.states]))
        stacked[length] = stacked.get(length, 0) + sum(map(bytes_of, rows)) // length
    return {length: _best(length, states[length], stacked[length]) for length in states}


def _best(length: int, states: int, stacked: int) -> int:
    """The length of the segments with which least is held: `states` bytes before each of them,
    `stacked` bytes for each step of one."""
    ideal = math.sqrt(length * states / max(stacked, 1))
    longest = length // 2
    first = min(max(_FEWEST, int(ideal / 2)), longest)

    def held(steps: int) -> float:
        count, rest = divmod(length, steps)
        return (count * states + (steps + rest) * stacked) * (_WASTE if rest else 1.0)

    return min(range(first, min(max(int(2 * ideal), first), longest) + 1), key=held)


def _divided_scans(graph: Graph, uses: Uses, lengths: Mapping[int, int]) -> dict[Node, int]:
    """The scans to divide, each with the length of its segments."""
    found: dict[Node, int] = {}
    for node in graph.nodes:
        op = node.op
        steps = lengths.get(static_shape((op.length,))[0]) if isinstance(op, Scan) else None
        if steps is not None and not op.has_effects:
            for y in uses.left_out(node):
                found.update(dict.fromkeys((node, *uses.users[y]), steps))
    return {node: steps for node, steps in found.items() if not node.op.has_effects}


def bytes_of(x: Tensor) -> int:
    """The bytes of a tensor of known sizes."""
    return bytes_of_type(x.type)


class _Divided:
    """A scan as a scan of its segments, and a scan of the steps left over, which are the last."""

    def __init__(self, builder: Builder, node: Node, steps: int) -> None:
        assert isinstance(node.op, Scan)
        self._builder, self._node, self._op = builder, node, node.op
        self._steps = steps
        self._count, self._rest = divmod(node.op.length, steps)

    def add(self, env: dict[Tensor, Tensor], parts: dict[Tensor, _Parts], uses: Uses) -> None:
        """Appends the scans. `parts` are stacked values that only divided scans read."""
        op, node = self._op, self._node
        constants = [env[x] for x in node.inputs[: op.constants]]
        states = [env[x] for x in node.inputs[op.constants : op.rows]]
        rows = [parts[x] if x in parts else self._parts(env[x]) for x in node.inputs[op.rows :]]
        outer = op.with_body(self._segment(), op.constants, op.states)
        scans = [(outer.with_length(self._count), [x.segments for x in rows])]
        if self._rest:
            scans.append((op.with_length(self._rest), [x.rest for x in rows if x.rest is not None]))
        made: list[Sequence[Tensor]] = []
        for scan, given in scans[:: -1 if op.reverse else 1]:
            outputs = self._add(scan, *constants, *states, *given)
            states = outputs[: op.states]
            made.append(outputs[op.states :])
        env.update(zip(node.outputs, states))
        left_out = {*uses.left_out(node)}
        segments, *rest = made[:: -1 if op.reverse else 1]
        for i, y in enumerate(node.outputs[op.states :]):
            found = _Parts(segments[i], rest[0][i] if rest else None)
            if y in left_out:
                parts[y] = found
            else:
                env[y] = self._joined(found, y)

    def _add(self, op: Scan | Slice | Reshape | Concatenate, *inputs: Tensor) -> Sequence[Tensor]:
        return self._builder.add(op, inputs, self._node.source)

    def _segment(self) -> Graph:
        """A step of the outer scan: the steps of a segment."""
        op = self._op
        with Builder(derived_name(op.body, "segment")) as builder:
            inputs = [builder.input_like(x) for x in op.body.inputs[: op.rows]]
            for x in op.body.inputs[op.rows :]:
                wide = x.type.with_shape((self._steps, *x.type.shape))
                inputs.append(builder.input_like(x, wide))
            inner = op.with_length(self._steps)
            return builder.finish(builder.add(inner, tuple(inputs), self._node.source))

    def _parts(self, x: Tensor) -> _Parts:
        divided, row = self._count * self._steps, x.type.shape[1:]
        shape = self._count, self._steps, *row
        if not self._rest:
            (segments,) = self._add(Reshape(shape), x)
            return _Parts(segments, None)
        zeros, ones = (0,) * len(row), (1,) * (1 + len(row))
        (first,) = self._add(Slice((0, *zeros), (divided, *row), ones), x)
        (rest,) = self._add(Slice((divided, *zeros), x.type.shape, ones), x)
        (segments,) = self._add(Reshape(shape), first)
        return _Parts(segments, rest)

    def _joined(self, parts: _Parts, y: Tensor) -> Tensor:
        shape = self._count * self._steps, *y.type.shape[1:]
        (joined,) = self._add(Reshape(shape), parts.segments)
        if parts.rest is not None:
            (joined,) = self._add(Concatenate(0), joined, parts.rest)
        return joined
