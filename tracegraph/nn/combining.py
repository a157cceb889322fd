"""The elements of each window over the spatial axes, combined by an associative function.

Short windows are combined from strided slices, one for each position in the window. For long ones
that would make graphs that grow with the window, so neighbours are combined instead, as often as
the window can be halved.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from tracegraph.array.arguments import known_int
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.types import TensorType
from tracegraph.ir.tensor import Tensor
from tracegraph.nn.windows import Windows, padded, slices
from tracegraph.ops.broadcast import full
from tracegraph.ops.shape import Pad

#: Larger windows are combined axis by axis.
_LARGEST_WINDOW_AT_ONCE = 4
#: Longer windows are combined by neighbours.
_LONGEST_IN_SLICES = 16

#: Tensors of one shape, whose elements belong together, such as a value and its position.
Elements: TypeAlias = tuple[Tensor, ...]
#: Combines what is earlier in a window with what follows it.
Combine: TypeAlias = Callable[[Elements, Elements], Elements]


def combined(x: Elements, windows: Windows, combine: Combine, neutral: tuple[Any, ...]) -> Elements:
    """The elements of each window of [examples, ..., channels], combined in row-major order; where
    windows extend past the edge, with `neutral`."""
    x = tuple(padded(part, windows, fill) for part, fill in zip(x, neutral, strict=True))
    if math.prod(windows.sizes) <= _LARGEST_WINDOW_AT_ONCE:
        return _in_slices(x, windows, combine)
    # The last axis first, so that the order stays row-major.
    for axis in reversed(range(1, x[0].ndim - 1)):
        x = _combined_along(x, axis, windows, combine)
    return x


def _in_slices(
    x: Elements, windows: Windows, combine: Combine, axes: tuple[int, ...] | None = None
) -> Elements:
    return functools.reduce(combine, zip(*(slices(part, windows, axes) for part in x)))


def _combined_along(x: Elements, axis: int, windows: Windows, combine: Combine) -> Elements:
    size, step, gap = (
        numbers[axis - 1] for numbers in (windows.sizes, windows.steps, windows.gaps)
    )
    count = (x[0].type.shape[axis] - (size - 1) * gap - 1) // step + 1
    # Runs of elements with gaps and steps would also reach elements that no window has.
    is_dense = gap == 1 or (step == 1 and known_int(count) and count >= gap)
    is_empty = known_int(count) and count <= 0
    if size <= _LONGEST_IN_SLICES or is_empty or not is_dense:
        return _in_slices(x, windows, combine, (axis,))
    # Elements that two windows share come in whole blocks as long as the step.
    step = size if known_int(count) and count == 1 else step
    if size < step:  # so that the last row is whole, too
        x = tuple(_extended(part, axis, step - size) for part in x)
    blocks, rest = divmod(size, step)
    parts = []
    if rest:
        parts.append(_rows(x, axis, 0, count, step, rest, combine))
    if blocks:
        rows = _rows(x, axis, rest, count + (blocks - 1) * gap, step, step, combine)
        parts.append(_runs(rows, axis, count, blocks, gap, combine))
    return functools.reduce(combine, parts)


def _rows(
    x: Elements, axis: int, start: int, count: Any, step: int, size: int, combine: Combine
) -> Elements:
    """Combines the first `size` of `step` elements, `count` times, from `start` on."""
    if step == 1:
        return _cut(x, axis, start, start + count)
    shape = x[0].type.shape
    before, after = shape[:axis], shape[axis + 1 :]
    x = _cut(x, axis, start, start + count * step)
    x = tuple(reshape(part, [*before, count, step, *after]) for part in x)
    inner = axis + 1
    x = _cut(x, inner, 0, size)
    while size > 1:
        pairs, rest = divmod(size, 2)
        first, second = (_cut(x, inner, start, 2 * pairs, 2) for start in (0, 1))
        found = combine(first, second)
        last = _cut(x, inner, size - 1, size)
        x = tuple(concat(both, inner) for both in zip(found, last)) if rest else found
        size = pairs + rest
    return tuple(reshape(part, [*before, count, *after]) for part in x)


def _extended(x: Tensor, axis: int, count: int) -> Tensor:
    """x with elements after its last ones, which no window has."""
    zeros = (0,) * x.ndim
    after = (*zeros[:axis], count, *zeros[axis + 1 :])
    return Pad(zeros, after, zeros)(x, full(0, TensorType(x.dtype)))


def _runs(x: Elements, axis: int, count: Any, length: int, gap: int, combine: Combine) -> Elements:
    """For each of the first `count` places, the combination of `length` elements from there on,
    `gap` apart.

    Runs of 1, 2, 4, … elements are combined from two each. A run of any length consists of those
    that its binary form names, so no element is in it twice.
    """
    parts, start, width = [], 0, 1
    while width <= length:
        if length & width:
            parts.append(_cut(x, axis, start * gap, start * gap + count))
            start += width
        reach = width * gap
        width *= 2
        if width <= length:
            end = x[0].type.shape[axis]
            x = combine(_cut(x, axis, 0, end - reach), _cut(x, axis, reach, end))
    return functools.reduce(combine, parts)


def _cut(x: Elements, axis: int, start: Any, stop: Any, stride: int = 1) -> Elements:
    return tuple(cut(part, axis, start, stop, stride) for part in x)


__all__ = ["combined"]
