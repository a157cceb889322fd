"""Convolutions and pooling over the axes between the first, the examples, and the last, the
channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.array.arguments import as_choice, as_sizes, known_int, rank_of, refuse, sizes_of
from tracegraph.array.creation import ones
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.shapes import ceiling_divide, maximum
from tracegraph.core.types import TensorType, float32, float64
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import divide
from tracegraph.math.reduction import summable
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.contract import Conv
from tracegraph.ops.elementwise import ADD, MAXIMUM, Maximum
from tracegraph.ops.shape import Pad, at_least

if TYPE_CHECKING:
    from tracegraph.typing import TensorLike, Window

#: Steps and windows that are larger are slips: XLA counts them in 32 bits.
_LARGEST_STEP = 2**31 - 1

#: Larger windows are combined axis by axis.
_LARGEST_WINDOW_AT_ONCE = 4


def conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """z[n, i, j, k] = sum of input[n, i * s + a * d, j * s + b * d, c] * filters[a, b, c, k]

    - `input`: [examples, height, width, channels]; `filters`: [height, width, channels, outputs],
      where the channels of the filters may divide those of the input: then there are groups.
    - `strides` s and `dilations` d: one number, one for height and width each, or four of which
      the first and the last are 1.
    - `padding`: "VALID" for none, "SAME" so that stride 1 keeps the size, or a list of pairs
      (before, after) for all four axes.

    Raises ShapeError if the channels do not fit.

    >>> tg.nn.conv2d(tg.ones([1, 3, 3, 1]), tg.ones([2, 2, 1, 1]), 1, "VALID")[0, :, :, 0].numpy()
    array([[4., 4.],
           [4., 4.]], dtype=float32)
    """
    return _convolved("conv2d", 2, input, filters, strides, padding, data_format, dilations)


def conv1d(
    input: TensorLike,
    filters: TensorLike,
    stride: Window,
    padding: str | Sequence[Any],
    data_format: str = "NWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """A convolution of [examples, width, channels] with [width, channels, outputs]; see `conv2d`.

    >>> tg.nn.conv1d([[[1.0], [2.0], [3.0]]], [[[1.0]], [[1.0]]], 1, "VALID")[0, :, 0].numpy()
    array([3., 5.], dtype=float32)
    """
    return _convolved("conv1d", 1, input, filters, stride, padding, data_format, dilations)


def conv3d(
    input: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """A convolution over depth, height and width; see `conv2d`.

    >>> tg.nn.conv3d(tg.ones([1, 2, 2, 2, 1]), tg.ones([2, 2, 2, 1, 1]), 1, "VALID").numpy().item()
    8.0
    """
    return _convolved("conv3d", 3, input, filters, strides, padding, data_format, dilations)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """A convolution of each channel by itself, with `filter` [height, width, channels, multiplier].

    Output c * multiplier + m is made of channel c.

    >>> tg.nn.depthwise_conv2d(tg.ones([1, 2, 2, 3]), tg.ones([2, 2, 3, 1]), 1, "VALID").shape
    TensorShape([1, 1, 1, 3])
    """
    kernel = _ranked("depthwise_conv2d", filter, 4)
    height, width, channels, multiplier = sizes_of("depthwise_conv2d", kernel)
    kernel = reshape(kernel, [height, width, 1, channels * multiplier])
    name = "depthwise_conv2d"
    return _convolved(name, 2, input, kernel, strides, padding, data_format, dilations)


def _convolved(
    op: str,
    rank: int,
    input: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str,
    dilations: Any,
) -> Tensor:
    x, y = as_operands(op, input, filters)
    if rank_of(op, x) != rank + 2 or rank_of(op, y) != rank + 2:
        refuse(
            op,
            f"{x.type} and {y.type} do not have {rank + 2} axes",
            x,
            y,
            fix="give [examples, ..., channels] and [..., channels, outputs]",
        )
    _check_format(op, data_format, rank)
    steps = _per_axis(op, "strides", strides, rank)
    gaps = _per_axis(op, "dilations", 1 if dilations is None else dilations, rank)
    reach = tuple((width - 1) * gap + 1 for width, gap in zip(y.type.shape, gaps))
    pads = _padding(op, x, padding, reach, steps)
    channels, own = x.type.shape[-1], y.type.shape[-2]
    is_known = known_int(channels) and known_int(own) and own
    groups = channels // own or 1 if is_known else 1
    return Conv(steps, pads, (1,) * rank, gaps, groups)(x, y)


#: The data formats that put the channels last, by the number of spatial axes.
_FORMATS = {1: ("NWC",), 2: ("NHWC",), 3: ("NDHWC",)}


def _check_format(op: str, data_format: Any, rank: int) -> None:
    as_choice(op, "data_format", data_format, (None, *_FORMATS.get(rank, ()), "N...C"))


def _per_axis(op: str, what: str, value: Any, rank: int) -> tuple[int, ...]:
    """One positive int for each spatial axis."""
    numbers = as_sizes(op, what, value)
    if len(numbers) == rank + 2 and numbers[0] == numbers[-1] == 1:
        numbers = numbers[1:-1]
    if len(numbers) == 1:
        numbers = numbers * rank
    if len(numbers) != rank or not all(known_int(n) and 0 < n <= _LARGEST_STEP for n in numbers):
        fix = f"use one positive int, or one for each of {rank} axes"
        refuse(op, f"{what} is {shown(value)}", fix=fix)
    return numbers


def _padding(
    op: str, x: Tensor, padding: Any, reach: tuple[Any, ...], steps: tuple[int, ...]
) -> tuple[tuple[Any, Any], ...]:
    """What is added before and after each spatial axis."""
    rank = len(steps)
    if isinstance(padding, str):
        kind = padding.upper()
        if kind == "VALID":
            return ((0, 0),) * rank
        if kind == "SAME":
            sizes = x.type.shape[1:-1]
            return tuple(_same(*one) for one in zip(sizes, reach, steps))
    elif isinstance(padding, (list, tuple, np.ndarray)):
        pairs = [as_sizes(op, "padding", pair) for pair in padding]
        if len(pairs) == rank + 2 and all(
            side == 0 for pair in (pairs[0], pairs[-1]) for side in pair
        ):
            pairs = pairs[1:-1]
        if len(pairs) == rank and all(map(_is_padding, pairs)):
            return tuple(pairs)  # type: ignore[return-value]
    fix = 'use "SAME", "VALID", or a pair for each axis, [0, 0] for the first and the last'
    refuse(op, f"padding is {shown(padding)}", x, fix=fix)


def _is_padding(pair: tuple[Any, ...]) -> bool:
    return len(pair) == 2 and not any(known_int(side) and side < 0 for side in pair)


def _same(size: Any, reach: Any, step: int) -> tuple[Any, Any]:
    """The padding that gives size / step results, rounded up; one more after than before."""
    total = (ceiling_divide(size, step) - 1) * step + reach - size
    total = maximum(total, 0)
    return total // 2, total - total // 2


# Pooling. Windows are combined from strided slices, one for each place in the window.


def max_pool(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The maximum of each window over the spatial axes; the first of equal ones has the derivative.

    - `input`: [examples, ..., channels]; `ksize`, `strides` and `padding` as in `conv2d`.

    A window that holds nan is nan, and so is its derivative by each element, as for `reduce_max`.

    >>> tg.nn.max_pool(tg.reshape(tg.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
    3.0
    """
    x = as_tensor(input)
    if not (x.dtype.is_floating or x.dtype.is_integer):
        refuse("max_pool", f"{x.type} has no order", x, fix="convert it: tg.cast(x, tg.float32)")
    low = -np.inf if x.dtype.is_floating else x.dtype.min
    larger = Maximum(keeps_nan=True) if x.dtype.is_floating else MAXIMUM
    return _pooled("max_pool", x, ksize, strides, padding, data_format, larger, low)


def avg_pool(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The mean of each window over the spatial axes; what is padded does not count.

    >>> tg.nn.avg_pool(tg.reshape(tg.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
    1.5
    """
    x = as_tensor(input)
    if summable(x) is not x:
        mean = avg_pool(summable(x), ksize, strides, padding, data_format)
        is_short = x.dtype.is_integer and x.dtype.size < 4
        return cast_to(mean, x.dtype if x.dtype.is_floating else float32 if is_short else float64)
    total = _pooled("avg_pool", x, ksize, strides, padding, data_format, ADD, 0)
    if isinstance(padding, str) and padding.upper() == "VALID":
        count = math.prod(_per_axis("avg_pool", "ksize", ksize, x.ndim - 2))
        return divide(total, full(count, TensorType(x.dtype)))
    one = ones((1, *x.type.shape[1:-1], 1), x.dtype)
    return divide(total, _pooled("avg_pool", one, ksize, strides, padding, data_format, ADD, 0))


def max_pool2d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` of [examples, height, width, channels].

    >>> tg.nn.max_pool2d(tg.ones([1, 4, 4, 3]), 2, 2, "SAME").shape
    TensorShape([1, 2, 2, 3])
    """
    return max_pool(_ranked("max_pool2d", input, 4), ksize, strides, padding, data_format)


def avg_pool2d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` of [examples, height, width, channels].

    >>> tg.nn.avg_pool2d(tg.ones([1, 4, 4, 3]), 2, 2, "SAME").shape
    TensorShape([1, 2, 2, 3])
    """
    return avg_pool(_ranked("avg_pool2d", input, 4), ksize, strides, padding, data_format)


def _ranked(op: str, input: Any, rank: int) -> Tensor:
    x = as_tensor(input)
    if rank_of(op, x) != rank:
        refuse(op, f"{x.type} does not have {rank} axes", x, fix="give [examples, ..., channels]")
    return x


def _pooled(
    op: str,
    x: Tensor,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    combine: Callable[[Tensor, Tensor], Tensor],
    neutral: Any,
) -> Tensor:
    rank = rank_of(op, x) - 2
    if rank < 1:
        refuse(op, f"{x.type} has no spatial axis", x, fix="give [examples, ..., channels]")
    _check_format(op, data_format, rank)
    window, steps = (
        _per_axis(op, what, value, rank) for what, value in (("ksize", ksize), ("strides", strides))
    )
    pads = _padding(op, x, padding, window, steps)
    is_same = isinstance(padding, str) and padding.upper() == "SAME"
    is_empty = is_same and 0 in x.type.shape[1:-1]  # without an element there is no window
    if any(side != 0 for pair in pads for side in pair):
        before, after = ((0, *(pair[k] for pair in pads), 0) for k in (0, 1))
        x = Pad(before, after, (0,) * (rank + 2))(x, full(neutral, TensorType(x.dtype)))
    for axis, width in enumerate(window, 1):
        size = x.type.shape[axis]
        if known_int(size) and size < width and not is_empty:
            refuse(op, f"the window {list(window)} is larger than {x.type}", x, fix="use SAME")
        x = x if is_same else at_least(x, axis, width)
    if math.prod(window) <= _LARGEST_WINDOW_AT_ONCE:
        return _combined(x, tuple(range(1, rank + 1)), window, steps, combine)
    # The last axis first: of equal elements the first in row-major order stays the first.
    for axis in reversed(range(1, rank + 1)):
        x = _combined(x, (axis,), window[axis - 1 : axis], steps[axis - 1 : axis], combine)
    return x


def _combined(
    x: Tensor,
    axes: tuple[int, ...],
    window: tuple[int, ...],
    steps: tuple[int, ...],
    combine: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """All places of the window, combined in row-major order."""
    sizes = x.type.shape
    counts = [(sizes[k] - width) // step + 1 for k, width, step in zip(axes, window, steps)]
    result = None
    for place in itertools.product(*map(range, window)):
        part = x
        for axis, offset, count, step in zip(axes, place, counts, steps):
            if known_int(count) and count <= 0:
                part = cut(part, axis, 0, 0)
            else:
                part = cut(part, axis, offset, offset + (count - 1) * step + 1, step)
        result = part if result is None else combine(result, part)
    assert result is not None
    return result


__all__ = [
    "avg_pool",
    "avg_pool2d",
    "conv1d",
    "conv2d",
    "conv3d",
    "depthwise_conv2d",
    "max_pool",
    "max_pool2d",
]
