"""Pooling: the maximum or the mean of each window over the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import as_choice, as_flag, refuse
from tracegraph.array.creation import ones
from tracegraph.array.shaping import reshape
from tracegraph.core.types import TensorType, as_dtype, float32, float64, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide, multiply
from tracegraph.math.reduction import summable
from tracegraph.nn.combining import Elements, combined
from tracegraph.nn.windows import Windows, ranked, windows_over
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
from tracegraph.typing import DTypeLike, TensorLike, Window


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
    (largest,) = combined((x,), windows, lambda a, b: (larger(a[0], b[0]),), (low,))
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
    x, windows = windows_over(op, x, ksize, strides, padding, data_format, gaps)
    total = _total(x, windows)
    if windows.is_padded:
        one = ones((1, *x.type.shape[1:-1], 1), x.dtype)
        return windows.outward(divide(total, _total(one, windows)))
    count = full(math.prod(windows.sizes), TensorType(x.dtype))
    return windows.outward(divide(total, count))


def _total(x: Tensor, windows: Windows) -> Tensor:
    """The sum of each window."""
    return combined((x,), windows, lambda a, b: (ADD(a[0], b[0]),), (0,))[0]


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
    _, at = combined((inner, places), windows, _larger_with_position, (low, 0))
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
