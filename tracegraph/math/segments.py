"""Segments: reductions over the elements along the first axis that have the same number."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import as_count, as_integers, rank_of, refuse, sizes_of
from tracegraph.array.creation import fill, reaching
from tracegraph.array.runtime_sizes import is_open
from tracegraph.array.shaping import cut
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import TensorType, bool_, float32, float64, int64
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.counting import is_counted, like, number_count
from tracegraph.math.elementwise.arithmetic import add, divide, floordiv, multiply, subtract
from tracegraph.math.elementwise.unary import sqrt
from tracegraph.math.reduction import summable
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, static_ints
from tracegraph.ops.broadcast import full, full_like
from tracegraph.ops.elementwise import EQUAL, GREATER, SELECT
from tracegraph.ops.index import ScatterAdd, ScatterMax, ScatterMin, ScatterMul, ScatterUpdate
from tracegraph.ops.reduce import highest, lowest
from tracegraph.ops.shape import Reshape
from tracegraph.tracing.index_checks import refuse_outside, value_now

# Segments: elements along the first axis that have the same number.
from tracegraph.typing import SizeLike, TensorLike


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the sum of data[i] over the i with segment_ids[i] = k; negative numbers do not count.

    >>> tg.math.unsorted_segment_sum([1, 2, 3], [0, 1, 0], 2).numpy()
    array([4, 2], dtype=int32)
    """
    return _segmented(ScatterAdd, "unsorted_segment_sum", data, segment_ids, num_segments, 0)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the maximum of data[i] over the i with segment_ids[i] = k; the least value if none.

    >>> tg.math.unsorted_segment_max([1, 2, 3], [0, 1, 0], 2).numpy()
    array([3, 2], dtype=int32)
    """
    x = _ordered("unsorted_segment_max", data)
    start = x.dtype.min
    return _segmented(ScatterMax, "unsorted_segment_max", x, segment_ids, num_segments, start)


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the minimum of data[i] over the i with segment_ids[i] = k; the largest value if none.

    >>> tg.math.unsorted_segment_min([1, 2, 3], [0, 1, 0], 2).numpy()
    array([1, 2], dtype=int32)
    """
    x = _ordered("unsorted_segment_min", data)
    start = x.dtype.max
    return _segmented(ScatterMin, "unsorted_segment_min", x, segment_ids, num_segments, start)


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the product of data[i] over the i with segment_ids[i] = k; 1 if there is none.

    >>> tg.math.unsorted_segment_prod([4, 2, 3], [0, 1, 0], 3).numpy()
    array([12,  2,  1], dtype=int32)
    """
    return _segmented(ScatterMul, "unsorted_segment_prod", data, segment_ids, num_segments, 1)


def unsorted_segment_sqrt_n(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the sum of data[i] over the i with segment_ids[i] = k, divided by the square root of
    their number; 0 if there is none.

    >>> tg.math.unsorted_segment_sqrt_n([3.0, 5.0, 1.0], [0, 1, 0], 2).numpy().round(4)
    array([2.8284, 5.    ], dtype=float32)
    """
    op = "unsorted_segment_sqrt_n"
    x = as_tensor(data)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        refuse(op, f"the data are {x.type}", x, fix="convert them: tg.cast(data, tg.float32)")
    total = _segmented(ScatterAdd, op, x, segment_ids, num_segments, 0)
    real = x.dtype.real
    counts = _segmented(
        ScatterAdd, op, full(1, x.type.with_dtype(real)), segment_ids, num_segments, 0
    )
    root = sqrt(SELECT(EQUAL(counts, like(counts, 0)), like(counts, 1), counts))
    return divide(total, cast_to(root, x.dtype))


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: SizeLike, name: str | None = None
) -> Tensor:
    """y[k] = the mean of data[i] over the i with segment_ids[i] = k; 0 if there is none.

    >>> tg.math.unsorted_segment_mean([1.0, 2.0, 3.0], [0, 1, 0], 2).numpy()
    array([2., 2.], dtype=float32)
    """
    x = as_tensor(data)
    if x.dtype.is_floating and summable(x) is not x:  # sum and count may overflow x's dtype
        mean = unsorted_segment_mean(summable(x), segment_ids, num_segments)
        return cast_to(mean, x.dtype)
    if x.dtype.is_integer:
        return _mean_of_integers(x, segment_ids, num_segments)
    return _mean_in_segments(x, segment_ids, num_segments)


def _mean_in_segments(x: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
    """Sums divided by counts; a floating-point number for integers whose sums do not overflow."""
    total = unsorted_segment_sum(x, segment_ids, num_segments)
    count = unsorted_segment_sum(full(1, x.type), segment_ids, num_segments)
    return divide(total, SELECT(EQUAL(count, like(count, 0)), like(count, 1), count))


def _mean_of_integers(x: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
    """The exact mean: 64-bit numbers are summed in halves, which leaves room."""
    if x.dtype.size < 8:
        mean = _mean_in_segments(summable(x), segment_ids, num_segments)
        return cast_to(mean, float32 if x.dtype.size < 4 else float64)
    high = floordiv(x, _HALF)
    low = subtract(x, multiply(high, _HALF))
    means = [_mean_in_segments(part, segment_ids, num_segments) for part in (high, low)]
    return add(multiply(means[0], float(_HALF)), means[1])


#: The divisor that splits 64 bits into two halves.
_HALF = 2**32


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the sum of data[i] over the i with segment_ids[i] = k, which must be known.

    >>> tg.math.segment_sum([1, 2, 3], [0, 0, 1]).numpy()
    array([3, 3], dtype=int32)
    """
    return unsorted_segment_sum(data, segment_ids, _segment_count("segment_sum", segment_ids))


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the mean of data[i] over the i with segment_ids[i] = k, which must be known; for
    integers it is rounded towards zero.

    >>> tg.math.segment_mean([1.0, 2.0, 3.0], [0, 0, 1]).numpy()
    array([1.5, 3. ], dtype=float32)
    """
    x, count = as_tensor(data), _segment_count("segment_mean", segment_ids)
    return cast_to(unsorted_segment_mean(x, segment_ids, count), x.dtype)


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the maximum of data[i] over the i with segment_ids[i] = k, 0 if there is none.

    The numbers must be known.

    >>> tg.math.segment_max([1, 2, 3], [0, 0, 1]).numpy()
    array([2, 3], dtype=int32)
    """
    return _extreme(ScatterMax, "segment_max", data, segment_ids, lowest)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the minimum of data[i] over the i with segment_ids[i] = k, 0 if there is none.

    The numbers must be known.

    >>> tg.math.segment_min([1, 2, 3], [0, 0, 1]).numpy()
    array([1, 3], dtype=int32)
    """
    return _extreme(ScatterMin, "segment_min", data, segment_ids, highest)


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the product of data[i] over the i with segment_ids[i] = k, which must be known.

    >>> tg.math.segment_prod([4, 2, 3], [0, 0, 1]).numpy()
    array([8, 3], dtype=int32)
    """
    return unsorted_segment_prod(data, segment_ids, _segment_count("segment_prod", segment_ids))


def _extreme(op: Any, name: str, data: Any, segment_ids: Any, start: Any) -> Tensor:
    """Maxima or minima, infinite ones too, and 0 in empty segments."""
    x, count = _ordered(name, data), _segment_count(name, segment_ids)
    found = _segmented(op, name, x, segment_ids, count, start(x.dtype.numpy_dtype))
    return _zero_in_gaps(found, segment_ids)


def _zero_in_gaps(y: Tensor, segment_ids: Any) -> Tensor:
    """Segments, whose numbers are known, with 0 in the empty ones."""
    count = y.type.shape[0]
    if is_open(segment_ids):
        ones = full_like(as_integers("segment", "the segment numbers", segment_ids), 1)
        found = unsorted_segment_sum(ones, segment_ids, count)
        return _where_filled(GREATER(found, like(found, 0)), y)
    filled = sorted(set(static_ints(segment_ids, "the segment numbers")))
    if len(filled) == count:
        return y
    at = as_tensor(np.reshape(filled, (-1, 1)))
    flags = TensorType(bool_, (len(filled),))
    is_filled = ScatterUpdate(0, 0)(full(False, flags.with_shape((count,))), at, full(True, flags))
    return _where_filled(is_filled, y)


def _where_filled(is_filled: Tensor, y: Tensor) -> Tensor:
    shape = (y.type.shape[0], *[1] * (y.ndim - 1))
    return SELECT(broadcast(Reshape(shape)(is_filled), y.type.shape), y, full(0, y.type))


def _ordered(op: str, data: Any) -> Tensor:
    x = as_tensor(data)
    if not (x.dtype.is_floating or x.dtype.is_integer):
        refuse(op, f"{x.type} has no order", x, fix="convert it: tg.cast(x, tg.float32)")
    return x


def _segment_count(op: str, segment_ids: Any) -> Any:
    """The number of segments of sorted numbers. Raises ShapeError for what is not a vector, and
    InvalidArgumentError for numbers that are known not to be sorted."""
    ids = as_integers(op, "the segment numbers", segment_ids)
    if rank_of(op, ids) != 1:
        fix = f"give a vector, or use tg.math.unsorted_{op}"
        refuse(op, f"the segment numbers are {ids.type}, not a vector", ids, fix=fix)
    value = value_now(ids)
    if value is not None:
        falls = np.flatnonzero(value[1:] < value[:-1])
        if falls.size:
            before, after = value[falls[0] : falls[0] + 2]
            fail(
                InvalidArgumentError,
                f"{op}: the segment numbers must be sorted, and {after} comes after {before}",
                operands=[operand_text(ids)],
                fix=f"use tg.math.unsorted_{op}",
            )
    return number_count(op, "the segment numbers", ids)


def _segmented(op: Any, name: str, data: Any, segment_ids: Any, count: Any, start: Any) -> Tensor:
    x, ids = as_tensor(data), as_integers(name, "the segment numbers", segment_ids)
    length = as_count(name, "the number of segments", count)
    rank = len(sizes_of(name, ids))
    if same_shape(sizes_of(name, x)[:rank], ids.type.shape) is None:
        refuse(name, f"{ids.type} numbers for {x.type}", x, ids, fix="give one for each element")
    _refuse_beyond(name, x, ids, length)
    rest = x.type.shape[rank:]
    # Elements that do not count go to an extra segment, which is cut off.
    ids = reaching(ids, length)
    at = SELECT(is_counted(ids, length), ids, like(ids, length))
    total = fill([length + 1, *rest], as_tensor(np.asarray(start, x.dtype.numpy_dtype)))
    result = op(0, 0)(total, Reshape((*ids.type.shape, 1))(at), x)
    return cut(result, 0, 0, length)


def _refuse_beyond(op: str, x: Tensor, ids: Tensor, length: Any) -> None:
    """Raises InvalidArgumentError for numbers that are known to be too large for `length`."""
    value = value_now(ids)
    if value is not None:
        message = f"{op}: segment number {{}} is too large for {length} segments"
        fix = "give more segments; negative numbers do not count"
        refuse_outside(value, int64.min, length - 1, message, fix, (x, ids))


__all__ = [
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
]
