"""Python loops over tensors in a function: each iteration is traced, and many are told."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from types import CodeType

from tracegraph.errors import UnrolledLoopWarning, message
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Tensor
from tracegraph.source import Source, user_line

#: The nodes of one loop from which on it is told.
NODES = 1000

#: Per code object: the instructions where a loop was told of already.
_told: weakref.WeakKeyDictionary[CodeType, set[int]] = weakref.WeakKeyDictionary()


def counted_parts(x: Tensor, parts: Iterator[Tensor], builder: Builder) -> Iterator[Tensor]:
    """The parts of `x` that a loop runs over. Warns, once per line, when the nodes that were added
    since it began are too many."""
    start = len(builder.nodes)
    for iteration, part in enumerate(parts):
        count = len(builder.nodes) - start
        if count >= NODES:
            _warn(x, iteration, count)
            yield part
            yield from parts
            return
        yield part


def _warn(x: Tensor, iterations: int, count: int) -> None:
    place = user_line()
    if place.code is None or _is_told(place):
        return
    length = x.type.shape[0]
    text = message(
        f"a Python loop over a tensor {x.type} is unrolled: {count:,} nodes in {iterations:,} of "
        f"its {length:,} iterations, and each of them is traced and compiled",
        source=place,
        fix="compute on the whole tensor at once, use tg.vectorized_map where iterations are "
        "independent, run fewer of them in one call, or loop outside of the @tg.function",
    )
    warnings.warn_explicit(text, UnrolledLoopWarning, place.file, place.line)


def _is_told(place: Source) -> bool:
    assert place.code is not None
    told = _told.setdefault(place.code, set())
    if place.offset in told:
        return True
    told.add(place.offset)
    return False
