"""Pooling: the maximum or the mean of each window over the spatial axes.

Short windows are combined from strided slices, one for each position in the window. For long ones
that would make graphs that grow with the window, so neighbours are combined instead, as often as
the window can be halved.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracegraph.array.arguments import as_choice, as_flag, known_int, refuse
from tracegraph.array.creation import ones
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.types import TensorType, as_dtype, float32, float64, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide, multiply
from tracegraph.math.reduction import summable
from tracegraph.nn.windows import Windows, overlapping, padded, ranked, slices, windows_over
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import (
    ADD,
    AND,
    EQUAL,
    GREATER,
    MAXIMUM,
    SELECT,
    LogicalOr,
    Maximum,
    NotEqual,
)
from tracegraph.ops.shape import Pad
from tracegraph.typing import DTypeLike, TensorLike, Window

#: Larger windows are combined axis by axis.
_LARGEST_WINDOW_AT_ONCE = 4
#: Longer windows are combined by neighbours.
_LONGEST_IN_SLICES = 16

#: Tensors of one shape, whose elements belong together, such as a value and its position.
Elements: TypeAlias = tuple[Tensor, ...]
#: Combines what is earlier in a window with what follows it.
Combine: TypeAlias = Callable[[Elements, Elements], Elements]


def max_pool(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The maximum of each window over the spatial axes; the first of equal ones gets the
    derivative.

    - `input`: [examples, ..., channels]; `ksize`, `strides`, `padding` and `data_format` as in
      `conv2d`.

    A window that contains nan is nan, and so is its derivative for each element, as in
    `reduce_max`.

    >>> tg.nn.max_pool(tg.reshape(tg.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
    3.0
    """
    return _max_pool("max_pool", as_tensor(input), ksize, strides, padding, data_format)


def _max_pool(
    op: str, x: Tensor, ksize: Any, strides: Any, padding: Any, data_format: Any, gaps: Any = 1
) -> Tensor:
    if not (x.dtype.is_floating or x.dtype.is_integer):
        refuse(op, f"{x.type} has no order", x, fix="convert it: tg.cast(x, tg.float32)")
    low = -np.inf if x.dtype.is_floating else x.dtype.min
    larger = Maximum(keeps_nan=True) if x.dtype.is_floating else MAXIMUM
    x, windows = _pooled(op, x, ksize, strides, padding, data_format, gaps)
    (largest,) = _combined((x,), windows, lambda a, b: (larger(a[0], b[0]),), (low,))
    return windows.outward(largest)


def avg_pool(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The mean of each window over the spatial axes; padding does not count.

    >>> tg.nn.avg_pool(tg.reshape(tg.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
    1.5
    """
    return _avg_pool("avg_pool", as_tensor(input), ksize, strides, padding, data_format)


def _avg_pool(
    op: str, x: Tensor, ksize: Any, strides: Any, padding: Any, data_format: Any, gaps: Any = 1
) -> Tensor:
    if summable(x) is not x:
        mean = _avg_pool(op, summable(x), ksize, strides, padding, data_format, gaps)
        is_short = x.dtype.is_integer and x.dtype.size < 4
        return cast_to(mean, x.dtype if x.dtype.is_floating else float32 if is_short else float64)
    x, windows = _pooled(op, x, ksize, strides, padding, data_format, gaps)
    total = _total(x, windows)
    if windows.is_padded:
        one = ones((1, *x.type.shape[1:-1], 1), x.dtype)
        return windows.outward(divide(total, _total(one, windows)))
    count = full(math.prod(windows.sizes), TensorType(x.dtype))
    return windows.outward(divide(total, count))


def _pooled(op: str, x: Tensor, *arguments: Any) -> tuple[Tensor, Windows]:
    """x with one batch axis and its channels last, and the windows over it; see `windows_over`."""
    x, windows = windows_over(op, x, *arguments)
    return x, overlapping(x, windows)


def _total(x: Tensor, windows: Windows) -> Tensor:
    """The sum of each window."""
    return _combined((x,), windows, lambda a, b: (ADD(a[0], b[0]),), (0,))[0]


def pool(
    input: TensorLike,
    window_shape: Window,
    pooling_type: str,
    strides: Window | None = None,
    padding: str | Sequence[Any] = "VALID",
    data_format: str | None = None,
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """`max_pool` or `avg_pool`, for the `pooling_type` "MAX" or "AVG", over windows whose elements
    are `dilations` apart.

    >>> x = tg.reshape(tg.range(5.0), [1, 5, 1])
    >>> tg.nn.pool(x, [2], "MAX", dilations=[2])[0, :, 0].numpy()
    array([2., 3., 4.], dtype=float32)
    """
    kind = as_choice("pool", "pooling_type", pooling_type, ("MAX", "AVG"))
    pooled = _max_pool if kind == "MAX" else _avg_pool
    steps, gaps = (1 if value is None else value for value in (strides, dilations))
    return pooled("pool", as_tensor(input), window_shape, steps, padding, data_format, gaps)


def max_pool1d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` of [examples, width, channels].

    >>> tg.nn.max_pool1d([[[1.0], [3.0], [2.0]]], 2, 1, "VALID")[0, :, 0].numpy()
    array([3., 3.], dtype=float32)
    """
    x = ranked("max_pool1d", input, 3)
    return _max_pool("max_pool1d", x, ksize, strides, padding, data_format)


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
    x = ranked("max_pool2d", input, 4)
    return _max_pool("max_pool2d", x, ksize, strides, padding, data_format)


def max_pool3d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` of [examples, depth, height, width, channels].

    >>> tg.nn.max_pool3d(tg.ones([1, 4, 4, 4, 3]), 2, 2, "SAME").shape
    TensorShape([1, 2, 2, 2, 3])
    """
    x = ranked("max_pool3d", input, 5)
    return _max_pool("max_pool3d", x, ksize, strides, padding, data_format)


def avg_pool1d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` of [examples, width, channels].

    >>> tg.nn.avg_pool1d([[[1.0], [3.0], [2.0]]], 2, 1, "VALID")[0, :, 0].numpy()
    array([2. , 2.5], dtype=float32)
    """
    x = ranked("avg_pool1d", input, 3)
    return _avg_pool("avg_pool1d", x, ksize, strides, padding, data_format)


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
    x = ranked("avg_pool2d", input, 4)
    return _avg_pool("avg_pool2d", x, ksize, strides, padding, data_format)


def avg_pool3d(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` of [examples, depth, height, width, channels].

    >>> tg.nn.avg_pool3d(tg.ones([1, 4, 4, 4, 3]), 2, 2, "SAME").shape
    TensorShape([1, 2, 2, 2, 3])
    """
    x = ranked("avg_pool3d", input, 5)
    return _avg_pool("avg_pool3d", x, ksize, strides, padding, data_format)


class OutputAndArgmax(NamedTuple):
    """The result of `max_pool_with_argmax`."""

    output: Tensor
    argmax: Tensor


def max_pool_with_argmax(
    input: TensorLike,
    ksize: Window,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    output_dtype: DTypeLike = int64,
    include_batch_in_index: bool = False,
    name: str | None = None,
) -> OutputAndArgmax:
    """`max_pool` of [examples, height, width, channels], and the position of each maximum.

    Positions count the elements of one example in row-major order, or, with
    `include_batch_in_index`, those of all examples. Among equal elements, the first counts.

    >>> x = tg.reshape([1.0, 4.0, 3.0, 2.0], [1, 2, 2, 1])
    >>> output, argmax = tg.nn.max_pool_with_argmax(x, 2, 2, "VALID")
    >>> output.numpy().item(), argmax.numpy().item()
    (4.0, 1)
    """
    op = "max_pool_with_argmax"
    as_choice(op, "data_format", data_format, (None, "NHWC"))
    counts_examples = as_flag(op, "include_batch_in_index", include_batch_in_index)
    kind = as_dtype(output_dtype)
    x = ranked(op, input, 4)
    output = _max_pool(op, x, ksize, strides, padding, data_format)
    low = -np.inf if x.dtype.is_floating else x.dtype.min
    inner, windows = _pooled(op, x, ksize, strides, padding, data_format)
    places = broadcast(_positions(x, kind, counts_examples), x.type.shape)
    _, at = _combined((inner, places), windows, _larger_with_position, (low, 0))
    return OutputAndArgmax(output, at)


def _larger_with_position(a: Elements, b: Elements) -> Elements:
    """The larger of two values, and its position; a nan counts as the largest."""
    is_nan = AND(NotEqual()(b[0], b[0]), EQUAL(a[0], a[0]))
    is_later = LogicalOr()(GREATER(b[0], a[0]), is_nan)
    return tuple(SELECT(is_later, late, early) for early, late in zip(a, b, strict=True))


def _positions(x: Tensor, kind: Any, counts_examples: bool) -> Tensor:
    """The position of each element of x, in all of x or in its example."""
    total: Tensor = full(0, TensorType(kind))
    for axis, size in enumerate(x.type.shape):
        own = Iota(size, kind)()
        if axis == 0 and not counts_examples:
            own = multiply(own, 0)
        rest = [1] * (x.ndim - axis - 1)
        total = add(multiply(total, cast_to(as_tensor(size), kind)), reshape(own, [size, *rest]))
    return total


def _combined(
    x: Elements, windows: Windows, combine: Combine, neutral: tuple[Any, ...]
) -> Elements:
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


__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_argmax",
    "pool",
]
