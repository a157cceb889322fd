"""Estimates of a program's peak memory from the order of its nodes.

The compiler fuses and reorders, so this only says which of two programs is likely to need less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

from tracegraph.control.less_memory.segments import bytes_of
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.memory_budgets.residuals import made_of_nothing
from tracegraph.ops.broadcast import BroadcastTo, Sum
from tracegraph.ops.effect import Read
from tracegraph.ops.elementwise import Elementwise
from tracegraph.ops.reduce import Reduction
from tracegraph.ops.shape import Reshape
from tracegraph.passes.specialise import graphs_inside

#: Ops whose results share the buffers of their operands.
_ALIASES = (Reshape, Read)
#: Ops that the compiler fuses into the loop of their reader, and ops that are such loops.
_FUSED = (Elementwise, BroadcastTo)
_FUSING = (Elementwise, BroadcastTo, Reduction, Sum)


@dataclass
class ScheduleStep:
    """A node, or a barrier, with its operands and results as indices; and whether it is a
    recomputation."""

    node: Node | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_again: bool


def most_held(
    steps: Sequence[ScheduleStep],
    sizes: Sequence[int],
    inputs: Collection[int],
    outputs: Collection[int],
    constant: Set[int],
) -> tuple[int, list[int]]:
    """The peak bytes besides inputs, outputs and constants, and the values alive then. `sizes` are
    those of the values, by index."""
    roots, fused = _roots(steps, len(sizes)), (_fused(steps) | constant).difference(outputs)
    last = _last_reads(steps, roots, fused)
    stay = {*(roots[y] for y in (*inputs, *outputs)), *fused}
    begins: dict[int, int] = {}
    ending: dict[int, list[int]] = {}
    held, most, when = 0, 0, 0
    for i, step in enumerate(steps):
        for y in step.outputs:
            if roots[y] == y and y not in stay and y in last:
                begins[y] = i
                held += sizes[y]
                ending.setdefault(last[y], []).append(y)
        inside = 0 if step.node is None else _most_inside(step.node)
        if held + inside > most:
            most, when = held + inside, i
        held -= sum(sizes[y] for y in ending.pop(i, ()))
    then = [y for y, i in begins.items() if i <= when <= last[y]]
    return most, then or list(range(len(sizes)))


def _most_inside(node: Node) -> int:
    """The peak bytes inside a branch or a step of a loop."""
    return max(map(most_held_by, graphs_inside(node)), default=0)


def most_held_by(graph: Graph) -> int:
    """The peak bytes of a graph as it stands, besides inputs and outputs."""
    return graph.cached("most held", lambda: _most_held_by(graph))


def _most_held_by(graph: Graph) -> int:
    made = (y for node in graph.nodes for y in node.outputs)
    places = {x: i for i, x in enumerate(dict.fromkeys((*graph.inputs, *made)))}

    def places_of(xs: Sequence[Tensor]) -> tuple[int, ...]:
        return tuple(places[x] for x in xs)

    steps = [
        ScheduleStep(node, places_of(node.inputs), places_of(node.outputs), is_again=False)
        for node in graph.nodes
    ]
    inputs, outputs = places_of(graph.inputs), places_of(graph.outputs)
    constant = {places[x] for x in made_of_nothing(graph.nodes)}
    return most_held(steps, [bytes_of(x) for x in places], inputs, outputs, constant)[0]


def _fused(steps: Sequence[ScheduleStep]) -> set[int]:
    """The values that the compiler most likely never stores: each is computed inside the loop that
    reads it, one element at a time."""
    readers: dict[int, list[ScheduleStep]] = {}
    for step in steps:
        for x in step.inputs:
            readers.setdefault(x, []).append(step)
    return {
        y
        for step in steps
        if _is_loop(step, _FUSED)
        for y in step.outputs
        if _is_loop(step, (BroadcastTo,))
        or (len(readers.get(y, ())) == 1 and _is_loop(readers[y][0], _FUSING))
    }


def _is_loop(step: ScheduleStep, kinds: tuple[type, ...]) -> bool:
    return step.node is not None and isinstance(step.node.op, kinds)


def _last_reads(
    steps: Sequence[ScheduleStep], roots: Sequence[int], fused: set[int]
) -> dict[int, int]:
    """The last step that reads each value. The operands of a value that is never stored are read
    when that value is."""
    last: dict[int, int] = {}
    for i in reversed(range(len(steps))):
        step = steps[i]
        when = max((last.get(y, i) for y in step.outputs if y in fused), default=i)
        for x in step.inputs:
            for y in {x, roots[x]}:
                last[y] = max(last.get(y, i), when)
    return last


def _roots(steps: Sequence[ScheduleStep], count: int) -> list[int]:
    """For each value the one whose buffer it shares."""
    roots = list(range(count))
    for step in steps:
        if step.node is None or isinstance(step.node.op, _ALIASES):
            for x, y in zip(step.inputs, step.outputs):
                roots[y] = roots[x]
    return roots
