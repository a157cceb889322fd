"""Warns about Python loops in a function: every iteration is traced, which may be many."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import TypeVar

from tracegraph.core.source import Source, user_line
from tracegraph.errors import UnrolledLoopWarning, counted, message, warn
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Tensor

#: The number of nodes of one loop that triggers the warning.
NODES = 1000

T = TypeVar("T")

#: Per code object: the instructions of loops that were already reported.
_told: weakref.WeakKeyDictionary[CodeType, set[int]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass
class _UnrolledLoop:
    """The nodes that one loop in the code has added to one trace, over all times it was entered."""

    #: How often it was entered, and the nodes and iterations of the completed times.
    entries: int = 0
    nodes: int = 0
    iterations: int = 0
    #: How many sequences it is iterating in step, and where the nodes of this time start.
    width: int = 0
    start: int = 0

    def enter(self, place: int) -> None:
        if self.width == 0:
            self.entries += 1
            self.start = place
        self.width += 1

    def leave(self, place: int, iterations: int) -> None:
        self.width -= 1
        if self.width == 0:
            self.nodes += place - self.start
            self.iterations += iterations


#: Per trace: its loops, by their place in the code.
_loops: weakref.WeakKeyDictionary[Builder, dict[tuple[CodeType | None, int], _UnrolledLoop]]
_loops = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """The report about a loop: what it is, its number of iterations if known, and the fix."""

    text: str
    length: int | None
    fix: str


def over_tensor(x: Tensor) -> Unrolled:
    fix = (
        "compute on the whole tensor at once, use tg.vectorized_map where iterations are "
        "independent, run fewer of them in one call, or loop outside of the @tg.function"
    )
    return Unrolled(f"a Python loop over a tensor {x.type}", x.type.shape[0], fix)  # type: ignore[arg-type]


def over_growing(length: int | None) -> Unrolled:
    fix = (
        "keep the shapes of its state: write to a tg.TensorArray, or let tg.scan stack what each "
        "step returns"
    )
    return Unrolled("a loop whose steps differ in a shape", length, fix)


def over_range(numbers: range) -> Unrolled:
    fix = (
        "loop over tg.range, which makes one node of it, compute on whole tensors, or loop outside "
        "of the @tg.function"
    )
    return Unrolled(f"a Python loop over {numbers}", len(numbers), fix)


#: A `while` whose test is decided by Python.
WHILE = Unrolled(
    "a Python `while`",
    None,
    "let a tensor decide, such as a counter i = tg.constant(0), which makes one node of it, or "
    "loop outside of the @tg.function",
)


def counted_items(loop_of: Unrolled, items: Iterable[T], builder: Builder) -> Iterator[T]:
    """The items of a loop. Warns, once per line, if the loop has added too many nodes to the trace,
    over all times it was entered."""
    place = user_line()
    loops = _loops.setdefault(builder, {})
    loop = loops.setdefault((place.code, place.offset), _UnrolledLoop())
    loop.enter(len(builder.nodes))
    iterations = 0
    try:
        for item in items:
            _check(loop_of, loop, loops, iterations, builder)
            iterations += 1
            yield item
        _check(loop_of, loop, loops, iterations, builder)
    finally:
        loop.leave(len(builder.nodes), iterations)


def _check(
    loop_of: Unrolled, loop: _UnrolledLoop, loops: dict, iterations: int, builder: Builder
) -> None:
    nodes, entries = len(builder.nodes) - loop.start, 1
    # In a nest of loops the outer one counts: it has all the nodes of both.
    if loop.entries > 1 and not any(other.width for other in loops.values() if other is not loop):
        nodes, entries = nodes + loop.nodes, loop.entries
        iterations += loop.iterations
    if nodes >= NODES:
        _warn(loop_of, entries, iterations, nodes)


def _warn(loop_of: Unrolled, entries: int, iterations: int, nodes: int) -> None:
    place = user_line()
    if place.code is None or _is_told(place):
        return
    times = "iterations" if loop_of.length is None else f"of its {loop_of.length:,} iterations"
    if entries > 1:
        times = f"iterations, as it was entered {counted(entries, 'time')}"
    text = message(
        f"{loop_of.text} is unrolled: {nodes:,} nodes in {iterations:,} {times}, and each of them "
        "is traced and compiled",
        source=place,
        fix=loop_of.fix,
    )
    warn(text, UnrolledLoopWarning, place)


def _is_told(place: Source) -> bool:
    assert place.code is not None
    told = _told.setdefault(place.code, set())
    if place.offset in told:
        return True
    told.add(place.offset)
    return False
