"""Counting: bincount, histograms, confusion matrices."""

from __future__ import annotations

import functools
from typing import Any

from tracegraph.array.arguments import (
    as_choice,
    as_count,
    as_flag,
    as_integers,
    as_size,
    as_sizes,
    known_int,
    rank_of,
    refuse,
)
from tracegraph.array.creation import reaching, zeros
from tracegraph.array.joining import stack
from tracegraph.array.runtime_sizes import largest, runtime_size
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.shapes import maximum, minimum, same_shape
from tracegraph.core.types import DType, as_dtype, float64, int32, int64
from tracegraph.errors import InvalidArgumentError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import clip_by_value, divide, multiply, subtract
from tracegraph.math.elementwise.unary import floor
from tracegraph.math.reduction import summable
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, static_value
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import ADD, LESS, LESS_EQUAL, SELECT, LogicalAnd
from tracegraph.ops.index import ScatterAdd, ScatterMax
from tracegraph.ops.shape import Reshape
from tracegraph.tracing.index_checks import check_up_to, value_now
from tracegraph.typing import Axis, DTypeLike, SizeLike, TensorLike


def bincount(
    arr: TensorLike,
    weights: TensorLike | None = None,
    minlength: SizeLike | None = None,
    maxlength: SizeLike | None = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
    axis: Axis = None,
    binary_output: bool = False,
) -> Tensor:
    """Counts the occurrences of each of 0, 1, ...; with `weights`, sums the weights instead.

    - The length is one more than the largest element, at least `minlength` and at most `maxlength`;
      larger elements do not count. In a function where the elements are unknown, give equal
      lengths.
    - `weights` has the shape of `arr`, and the result its dtype; without weights, it is `dtype`.
    - `axis`: -1 counts each row of a matrix separately, None and 0 all elements together.
    - `binary_output`: whether to return 1 for each element that occurs, rather than a count.

    Raises InvalidArgumentError for a negative element, at top level and if it is known while
    tracing; one that is only known at run time does not count, unless the function is built with
    `check_bounds`. Raises ShapeError for shapes that do not fit, ValueError for an invalid axis and
    for weights with a binary output.

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
    along = axis if axis is None else as_size("bincount", "axis", axis)
    if as_choice("bincount", "axis", along, (None, 0, -1)) != -1:
        x, values = (None if y is None else reshape(y, [-1]) for y in (x, values))
    elif not 1 <= rank_of("bincount", x) <= 2:
        refuse("bincount", f"{x.type} has no rows", x, fix="give a matrix, or a vector, to axis=-1")
    assert x is not None
    length = _bin_count(x, minlength, maxlength)
    *lead, _ = x.type.shape
    values = full(1, x.type.with_dtype(as_dtype(dtype))) if values is None else values
    if known_int(length) and length == 0:
        return zeros([*lead, 0], values.dtype)  # there are no bins
    values = SELECT(is_counted(x, length), values, full(0, values.type))
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
    """The number of bins, after checking that no element is negative."""
    low = 0 if minlength is None else as_count("bincount", "minlength", minlength)
    high = None if maxlength is None else as_count("bincount", "maxlength", maxlength)
    if high is not None and (low == high or (known_int(low) and known_int(high) and low > high)):
        message = "bincount: the elements count from 0, and there is {}"
        check_up_to(x.dtype.max, x, message, "use numbers of zero or more")
        return high
    count = maximum(low, number_count("bincount", "the elements", x))
    return count if high is None else minimum(high, count)


def like(x: Tensor, value: Any) -> Tensor:
    return broadcast(as_tensor(value, x.dtype), x.type.shape)


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: SizeLike | None = None,
    weights: TensorLike | None = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """m[i, j]: how often class i was predicted as class j; with `weights`, the sum of the weights.

    Raises InvalidArgumentError for invalid class numbers, as for indices out of range.

    >>> tg.math.confusion_matrix([0, 1, 1], [0, 1, 0]).numpy()
    array([[1, 0],
           [1, 1]], dtype=int32)
    """
    names = {
        what: reshape(as_integers("confusion_matrix", what, numbers), [-1])
        for what, numbers in {"the labels": labels, "the predictions": predictions}.items()
    }
    rows, columns = names.values()
    _check_lengths(rows, columns, "predictions")
    if weights is not None:
        _check_lengths(rows, reshape(weights, [-1]), "weights")
    if num_classes is None:
        counts = (number_count("confusion_matrix", *one) for one in names.items())
        num_classes = functools.reduce(maximum, counts)
    elif known_int(num_classes):
        for what, numbers in names.items():
            _check_classes(what, numbers, num_classes)
    return counts_of_pairs(rows, columns, num_classes, weights, as_dtype(dtype))


def _check_lengths(labels: Tensor, others: Tensor, what: str) -> None:
    if same_shape(labels.type.shape, others.type.shape) is None:
        fact = f"the labels are {labels.type}, and the {what} {others.type}"
        refuse("confusion_matrix", fact, labels, others, fix=f"give as many {what} as labels")


def _check_classes(what: str, numbers: Tensor, count: Any) -> None:
    """Rejects invalid classes, now or at every run of a function that checks bounds."""
    message = f"confusion_matrix: {what} are from 0 to {count - 1}, and there is {{}}"
    fix = "give as many num_classes as there are, or leave it out"
    check_up_to(count - 1, numbers, message, fix)


def counts_of_pairs(
    rows: Tensor, columns: Tensor, num_classes: Any, weights: TensorLike | None, kind: DType
) -> Tensor:
    """A confusion matrix that ignores invalid class numbers."""
    if known_int(num_classes) and num_classes == 0:
        return zeros([0, 0], kind)
    counted = LogicalAnd()(is_counted(rows, num_classes), is_counted(columns, num_classes))
    weight = full(1, rows.type.with_dtype(kind))
    if weights is not None:
        weight = cast_to(reshape(weights, [-1]), kind)
    places = (cast_to(SELECT(counted, x, full(0, x.type)), int32) for x in (rows, columns))
    table = zeros([num_classes, num_classes], kind)
    return ScatterAdd(0, 0)(table, stack([*places], -1), SELECT(counted, weight, like(weight, 0)))


def number_count(op: str, what: str, numbers: Any) -> Any:
    """One more than the largest of numbers that start at 0: a size found at run time if they are
    not known while tracing."""
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


def is_counted(numbers: Tensor, length: Any) -> Tensor:
    """Which of the numbers are in [0, length)."""
    numbers = reaching(numbers, length)
    limit = like(numbers, length)
    return LogicalAnd()(LESS(numbers, limit), LESS_EQUAL(like(numbers, 0), numbers))


def histogram_fixed_width_bins(
    values: TensorLike,
    value_range: TensorLike,
    nbins: SizeLike = 100,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """The index of the bin that each value falls into, out of `nbins` equal parts of `value_range`,
    a pair (low, high).

    Values outside the range fall into the first or the last bin. Raises ShapeError for a range that
    is not a pair and for no bins, InvalidArgumentError for bounds that are known to be in the wrong
    order.

    >>> tg.histogram_fixed_width_bins([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], nbins=5).numpy()
    array([0, 0, 1, 2, 4, 4], dtype=int32)
    """
    op = "histogram_fixed_width_bins"
    x = as_tensor(values)
    bounds = as_tensor(value_range, None if isinstance(value_range, Tensor) else x.dtype)
    count = as_count(op, "nbins", nbins)
    if bounds.type.shape != (2,) or bounds.dtype is not x.dtype:
        fact = f"the value_range is {bounds.type} for values {x.type}"
        refuse(op, fact, x, bounds, fix="give a pair (low, high) of the dtype of the values")
    if count == 0:
        refuse(op, "nbins is 0", x, fix="use an int of 1 or more")
    known = value_now(bounds)
    if known is not None and not known[0] < known[1]:
        fact = f"{op}: the value_range is {known.tolist()}"
        fail(InvalidArgumentError, fact, fix="give the lower bound first")
    wide = summable(x) if x.dtype.is_floating else cast_to(x, float64)
    low, high = (
        Reshape(())(cut(cast_to(bounds, wide.dtype), 0, place, place + 1)) for place in (0, 1)
    )
    # Half of each number, since the width of the range may be too large for the dtype.
    wide, low, high = (multiply(x, as_tensor(0.5, wide.dtype)) for x in (wide, low, high))
    share = divide(subtract(wide, low), subtract(high, low))
    # Clip before the conversion to integers, which could not hold values far outside.
    last = cast_to(as_tensor(count - 1), wide.dtype)
    place = clip_by_value(floor(multiply(share, cast_to(as_tensor(count), wide.dtype))), 0.0, last)
    return cast_to(place, as_dtype(dtype))


def histogram_fixed_width(
    values: TensorLike,
    value_range: TensorLike,
    nbins: SizeLike = 100,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """The number of values that fall into each of `nbins` equal parts of `value_range`.

    Arguments and errors are those of `histogram_fixed_width_bins`.

    >>> tg.histogram_fixed_width([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], nbins=5).numpy()
    array([2, 1, 1, 0, 2], dtype=int32)
    """
    count = as_count("histogram_fixed_width", "nbins", nbins)
    places = histogram_fixed_width_bins(values, value_range, count)
    return bincount(places, minlength=count, maxlength=count, dtype=dtype)


__all__ = ["bincount", "confusion_matrix", "histogram_fixed_width", "histogram_fixed_width_bins"]
