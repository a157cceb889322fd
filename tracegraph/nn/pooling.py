"""Pooling: the maximum or the mean of each window over the spatial axes.

Windows are combined from strided slices, one for each position in the window; long windows that do
not overlap, by combining neighbours until one element is left of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import as_choice, as_flag, refuse
from tracegraph.array.creation import ones
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.types import TensorType, as_dtype, float32, float64, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide, multiply
from tracegraph.math.reduction import summable
from tracegraph.nn.windows import Windows, padded, ranked, slices, windows_over
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import ADD, GREATER, MAXIMUM, SELECT, Maximum
from tracegraph.typing import DTypeLike, TensorLike, Window

#: Larger windows are combined axis by axis.
_LARGEST_WINDOW_AT_ONCE = 4
#: Longer windows that do not overlap are combined by neighbours: a slice for each position would
#: make graphs that grow with the window.
_LONGEST_IN_SLICES = 16


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
    x, windows = windows_over(op, x, ksize, strides, padding, data_format, gaps)
    return windows.outward(_pooled(x, windows, larger, low))


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
    x, windows = windows_over(op, x, ksize, strides, padding, data_format, gaps)
    total = _pooled(x, windows, ADD, 0)
    if windows.is_padded:
        one = ones((1, *x.type.shape[1:-1], 1), x.dtype)
        return windows.outward(divide(total, _pooled(one, windows, ADD, 0)))
    count = full(math.prod(windows.sizes), TensorType(x.dtype))
    return windows.outward(divide(total, count))


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
    inner, windows = windows_over(op, x, ksize, strides, padding, data_format)
    places = broadcast(_positions(x, kind, counts_examples), x.type.shape)
    parts = (padded(part, windows, fill) for part, fill in ((inner, low), (places, 0)))
    best, at = None, None
    for value, place in zip(*(slices(part, windows) for part in parts)):
        if best is None or at is None:
            best, at = value, place
        else:
            is_larger = GREATER(value, best)
            best, at = SELECT(is_larger, value, best), SELECT(is_larger, place, at)
    assert at is not None
    return OutputAndArgmax(output, at)


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


def _pooled(
    x: Tensor, windows: Windows, combine: Callable[[Tensor, Tensor], Tensor], neutral: Any
) -> Tensor:
    x = padded(x, windows, neutral)
    rank = x.ndim - 2
    if math.prod(windows.sizes) <= _LARGEST_WINDOW_AT_ONCE:
        return _combined(slices(x, windows), combine)
    # The last axis first, so that the first of equal elements in row-major order stays first.
    for axis in reversed(range(1, rank + 1)):
        size, step, gap = (
            numbers[axis - 1] for numbers in (windows.sizes, windows.steps, windows.gaps)
        )
        count = (x.type.shape[axis] - (size - 1) * gap - 1) // step + 1
        are_apart = gap == 1 and (step == size or count == 1) and count != 0
        if are_apart and size > _LONGEST_IN_SLICES:
            x = _combined_by_neighbours(x, axis, count, size, combine)
        else:
            x = _combined(slices(x, windows, (axis,)), combine)
    return x


def _combined_by_neighbours(
    x: Tensor, axis: int, count: Any, size: int, combine: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Combines each of the `count` windows of `size` elements that follow one another along an
    axis. The earlier neighbour comes first, so the first of equal elements stays first."""
    before, after = x.type.shape[:axis], x.type.shape[axis + 1 :]
    x = reshape(cut(x, axis, 0, count * size), [*before, count, size, *after])
    inner = axis + 1
    while size > 1:
        pairs, rest = divmod(size, 2)
        first, second = (cut(x, inner, start, 2 * pairs, 2) for start in (0, 1))
        last = [cut(x, inner, size - 1, size)] if rest else []
        x = concat([combine(first, second), *last], inner)
        size = pairs + rest
    return reshape(x, [*before, count, *after])


def _combined(parts: Any, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    result = None
    for part in parts:
        result = part if result is None else combine(result, part)
    assert result is not None
    return result


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
