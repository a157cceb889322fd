"""Arguments of functions that slide a window: data formats, windows, steps and padding.

Computation is channels-last. Channels-first operands are transposed on the way in and out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import as_choice, as_sizes, known_int, rank_of, refuse, sizes_of
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.shapes import Size, ceiling_divide, element_count, maximum
from tracegraph.core.types import TensorType
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.contract import too_large
from tracegraph.ops.shape import Pad, Transpose, at_least

#: Larger steps and windows are rejected as mistakes: XLA counts them in 32 bits.
_LARGEST_STEP = 2**31 - 1

#: The data formats by the number of spatial axes: channels last, and channels first.
_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


def puts_channels_first(op: str, data_format: Any, rank: int) -> bool:
    """Whether a data format over `rank` spatial axes has the channels as axis 1. Raises ValueError
    for an unknown format."""
    as_choice(op, "data_format", data_format, (None, *_FORMATS.get(rank, ()), "N...C", "NC..."))
    return data_format is not None and data_format.startswith("NC")


def channels_last(x: Tensor) -> Tensor:
    """[examples, channels, ...] as [examples, ..., channels]"""
    return Transpose((0, *range(2, x.ndim), 1))(x)


def channels_first(x: Tensor) -> Tensor:
    """[examples, ..., channels] as [examples, channels, ...]"""
    return Transpose((0, x.ndim - 1, *range(1, x.ndim - 1)))(x)


def ranked(op: str, input: Any, rank: int) -> Tensor:
    """A tensor of the given rank. Raises ShapeError for any other."""
    x = as_tensor(input)
    if rank_of(op, x) != rank:
        refuse(op, f"{x.type} does not have {rank} axes", x, fix="give [examples, ..., channels]")
    return x


def with_one_batch_axis(op: str, x: Tensor, rank: int) -> tuple[Tensor, tuple[Size, ...]]:
    """x with all axes before the last `rank + 1` merged into one, and their sizes."""
    sizes = sizes_of(op, x)
    lead, rest = sizes[: -(rank + 1)], sizes[-(rank + 1) :]
    if len(lead) == 1:
        return x, lead
    return reshape(x, [element_count(lead), *rest]), lead


def with_batch_axes(x: Tensor, lead: tuple[Size, ...]) -> Tensor:
    """x with its first axis split back into axes of the sizes `lead`."""
    return x if len(lead) == 1 else reshape(x, [*lead, *x.type.shape[1:]])


def per_axis(op: str, what: str, value: Any, rank: int, is_first: bool = False) -> tuple[int, ...]:
    """One positive int for each spatial axis. If `rank + 2` are given, those for examples and
    channels, which are axis 1 if `is_first`, must be 1."""
    numbers = as_sizes(op, what, value)
    if len(numbers) == rank + 2:
        outer, inner = _apart(numbers, is_first)
        numbers = inner if outer == (1, 1) else numbers
    if len(numbers) == 1:
        numbers = numbers * rank
    if len(numbers) != rank or not all(known_int(n) and 0 < n <= _LARGEST_STEP for n in numbers):
        fix = f"use one positive int, or one for each of {rank} axes"
        refuse(op, f"{what} is {shown(value)}", fix=fix)
    return numbers


def _apart(items: Any, is_first: bool) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """The items for examples and channels, and those for the spatial axes."""
    items = tuple(items)
    channels = 1 if is_first else len(items) - 1
    inner = items[2:] if is_first else items[1:-1]
    return (items[0], items[channels]), inner


def reaches(window: Any, dilations: Any) -> tuple[Any, ...]:
    """The number of elements that a window covers along each axis."""
    return tuple((width - 1) * gap + 1 for width, gap in zip(window, dilations))


def paddings(
    op: str,
    x: TensorType,
    padding: Any,
    reach: tuple[Any, ...],
    steps: tuple[int, ...],
    is_first: bool = False,
) -> tuple[tuple[Any, Any], ...]:
    """The padding before and after each spatial axis of an x with channels last; pairs for all axes
    are in the order of the data format."""
    rank = len(steps)
    if isinstance(padding, str):
        kind = padding.upper()
        if kind == "VALID":
            return ((0, 0),) * rank
        if kind == "SAME":
            sizes = x.shape[1:-1]
            return tuple(_same(*one) for one in zip(sizes, reach, steps))
    elif isinstance(padding, (list, tuple, np.ndarray)):
        pairs = [as_sizes(op, "padding", pair) for pair in padding]
        if len(pairs) == rank + 2:
            outer, inner = _apart(pairs, is_first)
            pairs = list(inner) if not any(any(pair) for pair in outer) else pairs
        if len(pairs) == rank and all(map(_is_padding, pairs)):
            return tuple(pairs)  # type: ignore[return-value]
    fix = 'use "SAME", "VALID", or a pair for each axis, [0, 0] for examples and channels'
    refuse(op, f"padding is {shown(padding)} for {x}", fix=fix)


def is_same(padding: Any) -> bool:
    return isinstance(padding, str) and padding.upper() == "SAME"


def _is_padding(pair: tuple[Any, ...]) -> bool:
    return len(pair) == 2 and not any(known_int(side) and side < 0 for side in pair)


def _same(size: Any, reach: Any, step: int) -> tuple[Any, Any]:
    """The padding that gives size / step results, rounded up; an odd one is larger at the end."""
    total = (ceiling_divide(size, step) - 1) * step + reach - size
    total = maximum(total, 0)
    return total // 2, total - total // 2


class Windows(NamedTuple):
    """Where windows lie over the spatial axes of [examples, ..., channels]."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    pads: tuple[tuple[Any, Any], ...]
    is_same: bool
    is_first: bool
    lead: tuple[Any, ...]

    @property
    def is_padded(self) -> bool:
        return any(side != 0 for pair in self.pads for side in pair)

    def outward(self, z: Tensor) -> Tensor:
        """A result in the data format of the operand, with its batch axes."""
        return with_batch_axes(channels_first(z) if self.is_first else z, self.lead)


def windows_over(
    op: str, x: Tensor, ksize: Any, strides: Any, padding: Any, data_format: Any, gaps: Any = 1
) -> tuple[Tensor, Windows]:
    """x with one batch axis and its channels last, and the windows over it."""
    rank = rank_of(op, x) - 2
    if rank < 1:
        refuse(op, f"{x.type} has no spatial axis", x, fix="give [examples, ..., channels]")
    is_first = puts_channels_first(op, data_format, rank)
    x, lead = with_one_batch_axis(op, x, rank)
    x = channels_last(x) if is_first else x
    arguments = (("ksize", ksize), ("strides", strides), ("dilations", gaps))
    sizes, steps, gaps = (per_axis(op, what, value, rank, is_first) for what, value in arguments)
    reach = reaches(sizes, gaps)
    pads = paddings(op, x.type, padding, reach, steps, is_first)
    is_empty = is_same(padding) and 0 in x.type.shape[1:-1]  # without elements there is no window
    for size, pair, width in zip(sizes_of(op, x)[1:-1], pads, reach):
        whole = size + pair[0] + pair[1]
        if known_int(whole) and whole < width and not is_empty:
            fact = too_large(reach, str(x.type), x.type)
            refuse(op, fact, x, fix="use SAME")
    return x, Windows(sizes, steps, gaps, pads, is_same(padding), is_first, lead)


def overlapping(x: Tensor, windows: Windows) -> Windows:
    """The windows without the positions that are padding in all of them, such as most of a window
    that is far longer than its axis. At least one position remains."""
    sizes, pads = list(windows.sizes), list(windows.pads)
    reach = reaches(windows.sizes, windows.gaps)
    for k, size in enumerate(x.type.shape[1:-1]):
        (before, after), step, gap = pads[k], windows.steps[k], windows.gaps[k]
        if size == 0 or not all(map(known_int, (size, before, after))):
            continue
        last_start = (size + before + after - reach[k]) // step * step - before
        first = min(max(-last_start // gap, 0), sizes[k] - 1)
        behind = min(max(sizes[k] + -(size + before) // gap, 0), after // gap, sizes[k] - 1 - first)
        pads[k] = before - first * gap, after - behind * gap
        sizes[k] -= first + behind
    return windows._replace(sizes=tuple(sizes), pads=tuple(pads))


def padded(x: Tensor, windows: Windows, neutral: Any) -> Tensor:
    """x with `neutral` around it where windows extend past the edge."""
    if windows.is_padded:
        before, after = ((0, *(pair[k] for pair in windows.pads), 0) for k in (0, 1))
        x = Pad(before, after, (0,) * x.ndim)(x, full(neutral, TensorType(x.dtype)))
    if not windows.is_same:
        for axis, width in enumerate(reaches(windows.sizes, windows.gaps), 1):
            x = at_least(x, axis, width)
    return x


def slices(x: Tensor, windows: Windows, axes: tuple[int, ...] | None = None) -> Iterator[Tensor]:
    """For each position in the window, in row-major order, the elements there in all windows; along
    all spatial axes or some."""
    axes = tuple(range(1, x.ndim - 1)) if axes is None else axes
    sizes, steps, gaps = (
        [numbers[axis - 1] for axis in axes]
        for numbers in (windows.sizes, windows.steps, windows.gaps)
    )
    reach = reaches(sizes, gaps)
    counts = [(x.type.shape[k] - width) // step + 1 for k, width, step in zip(axes, reach, steps)]
    for place in itertools.product(*map(range, sizes)):
        part = x
        for axis, offset, gap, count, step in zip(axes, place, gaps, counts, steps):
            if known_int(count) and count <= 0:
                part = cut(part, axis, 0, 0)
            else:
                start = offset * gap
                part = cut(part, axis, start, start + (count - 1) * step + 1, step)
        yield part
