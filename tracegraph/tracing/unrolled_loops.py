"""Python loops over tensors in a function: each iteration is traced, and many are told."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from types import CodeType

from tracegraph.core.source import Source, user_line
from tracegraph.errors import UnrolledLoopWarning, counted, message, warn
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Tensor

#: The nodes of one loop from which on it is told.
NODES = 1000

#: Per code object: the instructions where a loop was told of already.
_told: weakref.WeakKeyDictionary[CodeType, set[int]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass
class _Loop:
    """What one loop of the code has added to one trace: it may be entered many times."""

    #: How often it was entered, and the nodes and iterations of the times that are over.
    entries: int = 0
    nodes: int = 0
    iterations: int = 0
    #: How many tensors it runs over now, in step, and where the nodes of this time start.
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
_loops: weakref.WeakKeyDictionary[Builder, dict[tuple[CodeType | None, int], _Loop]]
_loops = weakref.WeakKeyDictionary()


def counted_slices(x: Tensor, parts: Iterator[Tensor], builder: Builder) -> Iterator[Tensor]:
    """The parts of `x` that a loop runs over. Warns, once per line, when the nodes that the loop
    has added to the trace are too many, however often it was entered."""
    place = user_line()
    loops = _loops.setdefault(builder, {})
    loop = loops.setdefault((place.code, place.offset), _Loop())
    loop.enter(len(builder.nodes))
    iterations = 0
    try:
        for part in parts:
            _check(x, loop, loops, iterations, builder)
            iterations += 1
            yield part
        _check(x, loop, loops, iterations, builder)
    finally:
        loop.leave(len(builder.nodes), iterations)


def _check(x: Tensor, loop: _Loop, loops: dict, iterations: int, builder: Builder) -> None:
    nodes, entries = len(builder.nodes) - loop.start, 1
    # Around a loop that is inside of another one the outer one counts: it has all nodes of both.
    if loop.entries > 1 and not any(other.width for other in loops.values() if other is not loop):
        nodes, entries = nodes + loop.nodes, loop.entries
        iterations += loop.iterations
    if nodes >= NODES:
        _warn(x, entries, iterations, nodes)


def _warn(x: Tensor, entries: int, iterations: int, nodes: int) -> None:
    place = user_line()
    if place.code is None or _is_told(place):
        return
    times = f"of its {x.type.shape[0]:,} iterations"
    if entries > 1:
        times = f"iterations, as it was entered {counted(entries, 'time')}"
    text = message(
        f"a Python loop over a tensor {x.type} is unrolled: {nodes:,} nodes in {iterations:,} "
        f"{times}, and each of them is traced and compiled",
        source=place,
        fix="compute on the whole tensor at once, use tg.vectorized_map where iterations are "
        "independent, run fewer of them in one call, or loop outside of the @tg.function",
    )
    warn(text, UnrolledLoopWarning, place)


def _is_told(place: Source) -> bool:
    assert place.code is not None
    told = _told.setdefault(place.code, set())
    if place.offset in told:
        return True
    told.add(place.offset)
    return False
