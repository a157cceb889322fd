"""Isotonic regression: the nearest non-increasing, or non-decreasing, sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import as_axis, as_flag, rank_of, refuse
from tracegraph.array.creation import range as range_of, stop_gradient
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import cut, expand_dims, pad, squeeze
from tracegraph.core.shapes import maximum, minimum
from tracegraph.core.types import float32, float64, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide, subtract
from tracegraph.math.elementwise.logic import equal, greater, greater_equal
from tracegraph.math.elementwise.unary import negative
from tracegraph.math.product import matmul
from tracegraph.math.reduction import cumsum, reduce_max, reduce_min, reduce_sum
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.index import move_axis
from tracegraph.typing import Axis, TensorLike


class Isotonic(NamedTuple):
    """The result of `isotonic_regression`."""

    output: Tensor
    segments: Tensor


def isotonic_regression(inputs: TensorLike, decreasing: bool = True, axis: Axis = -1) -> Isotonic:
    """The non-increasing sequence along `axis` that is nearest to `inputs`, in least squares.

    - `decreasing`: if False, the sequence is non-decreasing.

    The result is constant on segments, where it is the mean of the inputs; so is its derivative.
    Returns it, and the segment number of each element as int32. Integers give float64, or float32
    if they have 8 or 16 bits. The memory grows with the square of the axis.

    >>> found = tg.nn.isotonic_regression([3.0, 1.0, 2.0, 0.0])
    >>> found.output.numpy(), found.segments.numpy()
    (array([3. , 1.5, 1.5, 0. ], dtype=float32), array([0, 1, 1, 2], dtype=int32))
    """
    op = "isotonic_regression"
    x = as_tensor(inputs)
    if x.dtype.is_integer:
        x = cast_to(x, float64 if x.dtype.size > 2 else float32)
    if not x.dtype.is_floating:
        refuse(op, f"{x.type} has no order", x, fix="convert it: tg.cast(x, tg.float32)")
    place = as_axis(op, axis, rank_of(op, x), x)
    rows = move_axis(x, place, x.ndim - 1)
    falls = as_flag(op, "decreasing", decreasing)
    rising = cast_to(stop_gradient(rows), float64)
    segments = _segments(negative(rising) if falls else rising)
    is_together = equal(expand_dims(segments, -1), expand_dims(segments, -2))
    shares = cast_to(is_together, x.dtype)
    shares = divide(shares, reduce_sum(shares, axis=-1, keepdims=True))
    output = squeeze(matmul(shares, expand_dims(rows, -1)), -1)
    return Isotonic(*(move_axis(y, x.ndim - 1, place) for y in (output, segments)))


def _segments(x: Tensor) -> Tensor:
    """The segments of the nearest non-decreasing sequence: one begins where no mean of elements
    that start there is below one of elements that end before."""
    size: Any = x.type.shape[-1]
    sums = pad(cumsum(x, axis=-1), [*[[0, 0]] * (x.ndim - 1), [1, 0]])
    place = range_of(size)
    length = subtract(expand_dims(place, 0), expand_dims(place, 1)) + 1  # type: ignore[operator]
    is_there = greater(length, 0)
    totals = subtract(
        expand_dims(cut(sums, x.ndim - 1, 1, size + 1), -2),
        expand_dims(cut(sums, x.ndim - 1, 0, size), -1),
    )
    means = divide(totals, cast_to(where(is_there, length, 1), x.dtype))
    smallest = reduce_min(where(is_there, means, np.inf), axis=-1)
    largest = reduce_max(where(is_there, means, -np.inf), axis=-2)
    last = x.ndim - 1
    begins = greater_equal(
        cut(smallest, last, minimum(size, 1), size), cut(largest, last, 0, maximum(size - 1, 0))
    )
    begins = pad(cast_to(begins, int32), [*[[0, 0]] * last, [minimum(size, 1), 0]])
    return cumsum(begins, axis=-1)


__all__ = ["isotonic_regression"]
