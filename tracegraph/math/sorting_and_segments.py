"""Sorting, searching and counting: sort, top_k, bincount, segments, histograms."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_count,
    as_flag,
    as_integers,
    as_open_number,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import fill, one_hot, zeros
from tracegraph.array.runtime_sizes import is_open, largest, runtime_size
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.shapes import maximum, minimum, same_shape
from tracegraph.core.types import TensorType, as_dtype, bool_, float32, float64, int32, int64
from tracegraph.errors import InvalidArgumentError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import add, divide, floordiv, multiply, subtract
from tracegraph.math.reduction import summable
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    broadcast,
    cast_to,
    static_ints,
    static_value,
)
from tracegraph.ops.broadcast import BroadcastTo, Sum, full, full_like
from tracegraph.ops.elementwise import (
    ADD,
    EQUAL,
    GREATER,
    LESS,
    LESS_EQUAL,
    SELECT,
    Cast,
    LogicalAnd,
)
from tracegraph.ops.index import Gather, ScatterAdd, ScatterMax, ScatterMin, ScatterUpdate
from tracegraph.ops.shape import Reshape
from tracegraph.ops.sort import ArgSort, Sort, TopK
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_now,
)

if TYPE_CHECKING:
    from tracegraph.typing import Axis, DTypeLike, TensorLike


class ValuesAndIndices(NamedTuple):
    """What `top_k` returns."""

    values: Tensor
    indices: Tensor


def _is_descending(op: str, direction: str) -> bool:
    return as_choice(op, "direction", direction, ("ASCENDING", "DESCENDING")) == "DESCENDING"


def sort(
    values: TensorLike, axis: Axis = -1, direction: str = "ASCENDING", name: str | None = None
) -> Tensor:
    """The elements in order along `axis`; `direction` is "ASCENDING" or "DESCENDING".

    >>> tg.sort([3, 1, 2]).numpy(), tg.sort([3, 1, 2], direction="DESCENDING").numpy()
    (array([1, 2, 3], dtype=int32), array([3, 2, 1], dtype=int32))
    """
    x = as_tensor(values)
    place = as_axis("sort", axis, rank_of("sort", x), x)
    return Sort(place, _is_descending("sort", direction))(x)


def argsort(
    values: TensorLike,
    axis: Axis = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """The int32 positions that put the elements in order along `axis`; always stable.

    >>> tg.argsort([3, 1, 2]).numpy()
    array([1, 2, 0], dtype=int32)
    """
    as_flag("argsort", "stable", stable)
    x = as_tensor(values)
    place = as_axis("argsort", axis, rank_of("argsort", x), x)
    return ArgSort(place, _is_descending("argsort", direction))(x)


def top_k(
    input: TensorLike,
    k: Any = 1,
    sorted: bool = True,
    index_type: DTypeLike = int32,
    name: str | None = None,
) -> ValuesAndIndices:
    """The k largest elements along the last axis, the largest first, and their positions.

    >>> values, indices = tg.math.top_k([1, 5, 3], k=2)
    >>> values.numpy(), indices.numpy()
    (array([5, 3], dtype=int32), array([1, 2], dtype=int32))
    """
    as_flag("top_k", "sorted", sorted)
    x = as_tensor(input)
    count = as_count("top_k", "k", k)
    if rank_of("top_k", x) == 0:
        refuse("top_k", f"{x.type} has no axis", x, fix="give a tensor with an axis")
    values, indices = TopK(count)(x)
    return ValuesAndIndices(values, cast_to(indices, as_dtype(index_type)))


def in_top_k(
    targets: TensorLike, predictions: TensorLike, k: Any, name: str | None = None
) -> Tensor:
    """Whether predictions[i, targets[i]] is among the k largest of its row; ties count.

    False for a target that is no class of its row.

    >>> tg.math.in_top_k([1, 0], [[0.1, 0.9], [0.2, 0.8]], k=1).numpy()
    array([ True, False])
    """
    targets = as_integers("in_top_k", "the targets", targets)
    predictions = as_tensor(predictions)
    count = as_open_number("in_top_k", "k", k)
    if rank_of("in_top_k", predictions) != 2 or rank_of("in_top_k", targets) != 1:
        fact = f"targets {targets.type} do not fit predictions {predictions.type}"
        fix = "give targets[batch] and predictions[batch, classes]"
        refuse("in_top_k", fact, targets, predictions, fix=fix)
    own = Gather(1, 1)(predictions, targets)
    larger = GREATER(predictions, BroadcastTo(predictions.type.shape, (0,))(own))
    rank = Sum((1,))(Cast(int32)(larger))
    is_near = rank < (count if isinstance(count, Tensor) else min(count, _LARGEST_COUNT))  # type: ignore[operator]
    return LogicalAnd()(is_near, _is_counted(targets, predictions.type.shape[1]))


#: No int32 rank is larger.
_LARGEST_COUNT = 2**31 - 1


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """Where `values` would be put into the sorted sequences along the last axis to keep them so.

    Before elements that are equal if `side` is "left", after them if it is "right".

    >>> tg.searchsorted([1, 3, 5], [3, 4]).numpy()
    array([1, 2], dtype=int32)
    """
    as_choice("searchsorted", "side", side, ("left", "right"))
    sequence, x = as_operands("searchsorted", sorted_sequence, values)
    if not rank_of("searchsorted", sequence) == rank_of("searchsorted", x) >= 1:
        fact = f"the sequences {sequence.type} and the values {x.type} do not have as many axes"
        refuse("searchsorted", fact, sequence, x, fix="give both the same leading axes")
    *lead, length = sequence.type.shape
    count = x.type.shape[-1]
    shape = (*lead, count, length)
    rank = len(shape)
    left = BroadcastTo(shape, (*range(rank - 2), rank - 1))(sequence)
    right = BroadcastTo(shape, tuple(range(rank - 1)))(x)
    is_before = (LESS if side == "left" else LESS_EQUAL)(left, right)
    return Sum((rank - 1,))(Cast(as_dtype(out_type))(is_before))


def bincount(
    arr: TensorLike,
    weights: TensorLike | None = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
    axis: Axis = None,
    binary_output: Any = False,
) -> Tensor:
    """How often each of 0, 1, ... is among the elements; with `weights`, the sum of theirs.

    - The length is one more than the largest element, at least `minlength` and at most `maxlength`;
      larger elements do not count. In a function whose elements are not known, give both alike.
    - `weights` has the shape of `arr`, and the result its dtype; without, it is `dtype`.
    - `axis` -1 counts each row of a matrix by itself, None and 0 all elements together.
    - `binary_output`: 1 for whatever is there in place of how often, without weights.

    Raises InvalidArgumentError for a negative element, at top level and where it is known while
    tracing; one that is known only at run time does not count, unless the function is built with
    `check_bounds`. Raises ShapeError for shapes that do not fit, ValueError for another axis and
    for weights of a binary output.

    >>> tg.math.bincount([0, 2, 2]).numpy()
    array([1, 0, 2], dtype=int32)
    >>> tg.math.bincount([[0, 2, 2], [1, 1, 1]], axis=-1, binary_output=True).numpy()
    array([[1, 0, 1],
           [0, 1, 0]], dtype=int32)
    """
    x = as_integers("bincount", "the elements", arr)
    values = None if weights is None else as_tensor(weights)
    is_binary = as_flag("bincount", "binary_output", binary_output)
    _check_weights(x, values, is_binary)
    if as_choice("bincount", "axis", axis, (None, 0, -1)) != -1:
        x, values = (None if y is None else reshape(y, [-1]) for y in (x, values))
    elif not 1 <= rank_of("bincount", x) <= 2:
        refuse("bincount", f"{x.type} has no rows", x, fix="give a matrix, or a vector, to axis=-1")
    assert x is not None
    length = _bin_count(x, minlength, maxlength)
    *lead, _ = x.type.shape
    values = full(1, x.type.with_dtype(as_dtype(dtype))) if values is None else values
    if known_int(length) and length == 0:
        return zeros([*lead, 0], values.dtype)  # there is no bin to count in
    values = SELECT(_is_counted(x, length), values, full(0, values.type))
    at = Reshape((*x.type.shape, 1))(x)
    place = len(lead)
    combine = (ScatterMax if is_binary else ScatterAdd)(place, place)
    return combine(zeros([*lead, length], values.dtype), at, values)


def _check_weights(x: Tensor, weights: Tensor | None, is_binary: bool) -> None:
    if weights is None:
        return
    if is_binary:
        fact = "bincount: a binary output has no weights, and they were given"
        fail(SignatureError, fact, fix="leave out weights= or binary_output=")
    if same_shape(x.type.shape, weights.type.shape) is None:
        fact = f"the weights {weights.type} do not have the shape of the elements {x.type}"
        refuse("bincount", fact, x, weights, fix="give one weight for each element")


def _bin_count(x: Tensor, minlength: Any, maxlength: Any) -> Any:
    """How many bins there are, and that no element is negative."""
    low = 0 if minlength is None else as_count("bincount", "minlength", minlength)
    high = None if maxlength is None else as_count("bincount", "maxlength", maxlength)
    if high is not None and (low == high or (known_int(low) and known_int(high) and low > high)):
        message = "bincount: the elements count from 0, and there is {}"
        fix = "use numbers of zero or more"
        value = value_now(x)
        if value is not None:
            refuse_outside(value, 0, x.dtype.max, message, fix, (x,))
        elif checks_at_run_time():
            check_at_run_time(x, 0, x.dtype.max, message, fix)
        return high
    count = maximum(low, _number_count("bincount", "the elements", x))
    return count if high is None else minimum(high, count)


def _like(x: Tensor, value: Any) -> Tensor:
    return broadcast(as_tensor(value, x.dtype), x.type.shape)


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: Any = None,
    weights: TensorLike | None = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """m[i, j]: how often class i was predicted as class j; with `weights`, the sum of theirs.

    >>> tg.math.confusion_matrix([0, 1, 1], [0, 1, 0]).numpy()
    array([[1, 0],
           [1, 1]], dtype=int32)
    """
    rows, columns = reshape(labels, [-1]), reshape(predictions, [-1])
    if num_classes is None:
        names = {"the labels": rows, "the predictions": columns}
        counts = (_number_count("confusion_matrix", *one) for one in names.items())
        num_classes = functools.reduce(maximum, counts)
    kind = as_dtype(dtype)
    row_is, column_is = (one_hot(x, num_classes, dtype=kind) for x in (rows, columns))
    if weights is not None:
        weight = cast_to(reshape(weights, [-1]), kind)
        row_is = row_is * reshape(weight, [-1, 1])  # type: ignore[operator]
    table = BroadcastTo((*row_is.type.shape, column_is.type.shape[1]), (0, 1))(row_is)
    other = BroadcastTo(table.type.shape, (0, 2))(column_is)
    return Sum((0,))(table * other)  # type: ignore[operator]


# Segments: elements along the first axis that have the same number.


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: Any, name: str | None = None
) -> Tensor:
    """y[k] = the sum of data[i] over the i with segment_ids[i] = k; negative numbers do not count.

    >>> tg.math.unsorted_segment_sum([1, 2, 3], [0, 1, 0], 2).numpy()
    array([4, 2], dtype=int32)
    """
    return _segmented(ScatterAdd, "unsorted_segment_sum", data, segment_ids, num_segments, 0)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: Any, name: str | None = None
) -> Tensor:
    """y[k] = the maximum of data[i] over the i with segment_ids[i] = k; the least value if none.

    >>> tg.math.unsorted_segment_max([1, 2, 3], [0, 1, 0], 2).numpy()
    array([3, 2], dtype=int32)
    """
    x = _ordered("unsorted_segment_max", data)
    start = x.dtype.min
    return _segmented(ScatterMax, "unsorted_segment_max", x, segment_ids, num_segments, start)


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: Any, name: str | None = None
) -> Tensor:
    """y[k] = the minimum of data[i] over the i with segment_ids[i] = k; the largest value if none.

    >>> tg.math.unsorted_segment_min([1, 2, 3], [0, 1, 0], 2).numpy()
    array([1, 2], dtype=int32)
    """
    x = _ordered("unsorted_segment_min", data)
    start = x.dtype.max
    return _segmented(ScatterMin, "unsorted_segment_min", x, segment_ids, num_segments, start)


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: Any, name: str | None = None
) -> Tensor:
    """y[k] = the mean of data[i] over the i with segment_ids[i] = k; 0 if there is none.

    >>> tg.math.unsorted_segment_mean([1.0, 2.0, 3.0], [0, 1, 0], 2).numpy()
    array([2., 2.], dtype=float32)
    """
    x = as_tensor(data)
    if x.dtype.is_floating and summable(x) is not x:  # sum and count may leave the range of x
        mean = unsorted_segment_mean(summable(x), segment_ids, num_segments)
        return cast_to(mean, x.dtype)
    if x.dtype.is_integer:
        return _mean_of_integers(x, segment_ids, num_segments)
    return _mean_in_segments(x, segment_ids, num_segments)


def _mean_in_segments(x: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
    """Sums by counts; of integers whose sums keep their range, a floating number."""
    total = unsorted_segment_sum(x, segment_ids, num_segments)
    count = unsorted_segment_sum(full(1, x.type), segment_ids, num_segments)
    return divide(total, SELECT(EQUAL(count, _like(count, 0)), _like(count, 1), count))


def _mean_of_integers(x: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
    """The true mean: numbers of 64 bits are added up in halves, which leaves room."""
    if x.dtype.size < 8:
        mean = _mean_in_segments(summable(x), segment_ids, num_segments)
        return cast_to(mean, float32 if x.dtype.size < 4 else float64)
    high = floordiv(x, _HALF)
    low = subtract(x, multiply(high, _HALF))
    means = [_mean_in_segments(part, segment_ids, num_segments) for part in (high, low)]
    return add(multiply(means[0], float(_HALF)), means[1])


#: What 64 bits are divided by into two halves.
_HALF = 2**32


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the sum of data[i] over the i with segment_ids[i] = k, which must be known.

    >>> tg.math.segment_sum([1, 2, 3], [0, 0, 1]).numpy()
    array([3, 3], dtype=int32)
    """
    return unsorted_segment_sum(data, segment_ids, _segment_count("segment_sum", segment_ids))


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the mean of data[i] over the i with segment_ids[i] = k, which must be known.

    >>> tg.math.segment_mean([1.0, 2.0, 3.0], [0, 0, 1]).numpy()
    array([1.5, 3. ], dtype=float32)
    """
    return unsorted_segment_mean(data, segment_ids, _segment_count("segment_mean", segment_ids))


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the maximum of data[i] over the i with segment_ids[i] = k, 0 if there is none.

    The numbers must be known.

    >>> tg.math.segment_max([1, 2, 3], [0, 0, 1]).numpy()
    array([2, 3], dtype=int32)
    """
    count = _segment_count("segment_max", segment_ids)
    return _zero_in_gaps(unsorted_segment_max(data, segment_ids, count), segment_ids)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """y[k] = the minimum of data[i] over the i with segment_ids[i] = k, 0 if there is none.

    The numbers must be known.

    >>> tg.math.segment_min([1, 2, 3], [0, 0, 1]).numpy()
    array([1, 3], dtype=int32)
    """
    count = _segment_count("segment_min", segment_ids)
    return _zero_in_gaps(unsorted_segment_min(data, segment_ids, count), segment_ids)


def _zero_in_gaps(y: Tensor, segment_ids: Any) -> Tensor:
    """Segments, whose numbers are known, with 0 in those that have no elements."""
    count = y.type.shape[0]
    if is_open(segment_ids):
        ones = full_like(as_integers("segment", "the segment numbers", segment_ids), 1)
        found = unsorted_segment_sum(ones, segment_ids, count)
        return _where_filled(GREATER(found, _like(found, 0)), y)
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
    return _number_count(op, "the segment numbers", segment_ids)


def _number_count(op: str, what: str, numbers: Any) -> Any:
    """One more than the largest of numbers that count from 0: a size that each run finds, where
    they are not known while tracing."""
    x = as_integers(op, what, numbers)
    value = static_value(x)
    if value is None:
        return runtime_size(op, ADD(largest(x, -1), as_tensor(1, int64)))
    known = as_sizes(op, what, value)
    if min(known, default=0) < 0:
        fail(
            InvalidArgumentError,
            f"{op}: {what} count from 0, and there is {min(known)}",
            fix="use numbers of zero or more",
        )
    return max(known, default=-1) + 1


def _is_counted(numbers: Tensor, length: Any) -> Tensor:
    """Which of the numbers are from 0 to below `length`."""
    numbers = _reaching(numbers, length)
    limit = _like(numbers, length)
    return LogicalAnd()(LESS(numbers, limit), LESS_EQUAL(_like(numbers, 0), numbers))


def _reaching(numbers: Tensor, length: Any) -> Tensor:
    """The numbers in a type that has `length` too."""
    return cast_to(numbers, int64) if known_int(length) and length > numbers.dtype.max else numbers


def _segmented(op: Any, name: str, data: Any, segment_ids: Any, count: Any, start: Any) -> Tensor:
    x, ids = as_tensor(data), as_integers(name, "the segment numbers", segment_ids)
    length = as_count(name, "the number of segments", count)
    rank = len(sizes_of(name, ids))
    if same_shape(sizes_of(name, x)[:rank], ids.type.shape) is None:
        refuse(name, f"{ids.type} numbers for {x.type}", x, ids, fix="give one for each element")
    rest = x.type.shape[rank:]
    # What does not count goes to one more segment, which is cut off.
    ids = _reaching(ids, length)
    at = SELECT(_is_counted(ids, length), ids, _like(ids, length))
    total = fill([length + 1, *rest], as_tensor(np.asarray(start, x.dtype.numpy_dtype)))
    result = op(0, 0)(total, Reshape((*ids.type.shape, 1))(at), x)
    return cut(result, 0, 0, length)


__all__ = [
    "argsort",
    "bincount",
    "confusion_matrix",
    "in_top_k",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "sort",
    "top_k",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_sum",
]
