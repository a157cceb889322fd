"""Order: sorting, the largest elements, searching, permutations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_count,
    as_flag,
    as_integers,
    as_number,
    as_open_number,
    as_size,
    known_int,
    rank_of,
    refuse,
)
from tracegraph.array.shaping import neighbours, reshape
from tracegraph.core.types import DType, TensorType, as_dtype, bool_, int32, int64
from tracegraph.errors import InvalidArgumentError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.counting import is_counted
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import BroadcastTo, Sum, full
from tracegraph.ops.constant import Iota
from tracegraph.ops.index import Gather, ScatterUpdate, move_axis
from tracegraph.ops.reduce import All
from tracegraph.ops.shape import Reshape
from tracegraph.ops.sort import ArgSort, Sort, TopK
from tracegraph.tracing.index_checks import value_now
from tracegraph.typing import Axis, DTypeLike, SizeLike, TensorLike


class ValuesAndIndices(NamedTuple):
    """The result of `top_k`."""

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
    """The int32 positions that sort the elements along `axis`; always stable.

    >>> tg.argsort([3, 1, 2]).numpy()
    array([1, 2, 0], dtype=int32)
    """
    as_flag("argsort", "stable", stable)
    x = as_tensor(values)
    place = as_axis("argsort", axis, rank_of("argsort", x), x)
    return ArgSort(place, _is_descending("argsort", direction))(x)


def top_k(
    input: TensorLike,
    k: SizeLike = 1,
    sorted: bool = True,
    index_type: DTypeLike = int32,
    name: str | None = None,
) -> ValuesAndIndices:
    """The k largest elements along the last axis, in descending order, and their positions.

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
    targets: TensorLike, predictions: TensorLike, k: SizeLike, name: str | None = None
) -> Tensor:
    """Whether predictions[i, targets[i]] is among the k largest of its row; ties count.

    False for a target that is not a class of its row, and for a row with a number that is not
    finite.

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
    shape = predictions.type.shape
    own = BroadcastTo(shape, (0,))(Gather(1, 1)(predictions, targets))
    # A value read twice may have been rounded differently, so nothing counts as above itself.
    numbers = BroadcastTo(shape, (1,))(Iota(shape[1], targets.dtype)())
    is_other = ops.NotEqual()(numbers, BroadcastTo(shape, (0,))(targets))
    larger = ops.LogicalAnd()(is_other, ops.GREATER(predictions, own))
    rank = Sum((1,))(ops.Cast(int32)(larger))
    is_near = rank < (count if isinstance(count, Tensor) else min(count, _LARGEST_COUNT))  # type: ignore[operator]
    is_near = ops.LogicalAnd()(is_near, is_counted(targets, predictions.type.shape[1]))
    # Nothing is larger than nan, so a row that holds one would have it, and its rest, near the top.
    return ops.LogicalAnd()(is_near, All((1,))(ops.IsFinite()(predictions)))


#: No int32 rank is larger.
_LARGEST_COUNT = 2**31 - 1


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """The positions at which to insert `values` into the sorted sequences along the last axis.

    Before equal elements if `side` is "left", after them if it is "right". A nan is inserted before
    all elements, or after them.

    >>> tg.searchsorted([1, 3, 5], [3, 4]).numpy()
    array([1, 2], dtype=int32)
    """
    as_choice("searchsorted", "side", side, ("left", "right"))
    sequence, x = as_operands("searchsorted", sorted_sequence, values)
    if not rank_of("searchsorted", sequence) == rank_of("searchsorted", x) >= 1:
        fact = f"the sequences {sequence.type} and the values {x.type} do not have as many axes"
        refuse("searchsorted", fact, sequence, x, fix="give both the same leading axes")
    comes_before = ops.LESS if side == "left" else _is_not_above
    length = sequence.type.shape[-1]
    if known_int(length) and length > _FEW:
        return cast_to(_halved(sequence, x, comes_before), as_dtype(out_type))
    return _counted(sequence, x, comes_before, as_dtype(out_type))


#: Sequences up to this length are compared with each value in full.
_FEW = 64


def _counted(sequence: Tensor, x: Tensor, comes_before: Any, dtype: DType) -> Tensor:
    """The number of elements in the sequences that come before each value."""
    *lead, length = sequence.type.shape
    shape = (*lead, x.type.shape[-1], length)
    rank = len(shape)
    left = BroadcastTo(shape, (*range(rank - 2), rank - 1))(sequence)
    right = BroadcastTo(shape, tuple(range(rank - 1)))(x)
    return Sum((rank - 1,))(ops.Cast(dtype)(comes_before(left, right)))


def _is_not_above(element: Tensor, x: Tensor) -> Tensor:
    """element <= x, and true for a nan, which is inserted after all elements."""
    is_below = ops.LESS_EQUAL(element, x)
    return ops.LogicalOr()(is_below, ops.NotEqual()(x, x)) if x.dtype.is_floating else is_below


def _halved(sequence: Tensor, x: Tensor, comes_before: Any) -> Tensor:
    """The same by binary search, with as many steps as the length has binary digits."""
    lead = len(sequence.type.shape) - 1
    length: Any = sequence.type.shape[-1]
    dtype = int32 if length < int32.max // 2 else int64
    type = x.type.with_dtype(dtype)
    found, last = full(0, type), full(length, type)
    for digit in reversed(range(length.bit_length())):
        next_one = ops.ADD(found, full(2**digit, type))
        place = ops.SUB(ops.MINIMUM(next_one, last), full(1, type))
        element = Gather(lead, lead)(sequence, place)
        is_further = ops.LogicalAnd()(ops.LESS_EQUAL(next_one, last), comes_before(element, x))
        found = ops.SELECT(is_further, next_one, found)
    return found


def approx_max_k(
    operand: TensorLike,
    k: SizeLike,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> ValuesAndIndices:
    """The k largest elements along `reduction_dimension`, and their positions; always exact,
    whatever the `recall_target`.

    >>> values, indices = tg.nn.approx_max_k([1.0, 5.0, 3.0], 2)
    >>> values.numpy(), indices.numpy()
    (array([5., 3.], dtype=float32), array([1, 2], dtype=int32))
    """
    op = "approx_max_k"
    _check_approximation(op, recall_target, reduction_input_size_override, aggregate_to_topk)
    return _extremes(op, operand, k, reduction_dimension, False)


def approx_min_k(
    operand: TensorLike,
    k: SizeLike,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> ValuesAndIndices:
    """The k smallest elements along `reduction_dimension`, in ascending order; see `approx_max_k`.

    >>> tg.math.approx_min_k([1.0, 5.0, 3.0], 2).values.numpy()
    array([1., 3.], dtype=float32)
    """
    op = "approx_min_k"
    _check_approximation(op, recall_target, reduction_input_size_override, aggregate_to_topk)
    return _extremes(op, operand, k, reduction_dimension, True)


def _check_approximation(op: str, recall: Any, size: Any, is_aggregated: Any) -> None:
    """Rejects invalid values of arguments that have no effect here."""
    as_number(op, "recall_target", recall, low=0.0, high=1.0)
    as_size(op, "reduction_input_size_override", size)
    as_flag(op, "aggregate_to_topk", is_aggregated)


def _extremes(op: str, operand: Any, k: Any, axis: Any, is_smallest: bool) -> ValuesAndIndices:
    x = as_tensor(operand)
    place = as_axis(op, axis, rank_of(op, x), x)
    if not x.dtype.is_floating:
        refuse(op, f"the operand is {x.type}", x, fix="convert it: tg.cast(x, tg.float32)")
    rows = move_axis(ops.NEG(x) if is_smallest else x, place, x.ndim - 1)
    values, indices = TopK(as_count(op, "k", k))(rows)
    values = ops.NEG(values) if is_smallest else values
    return ValuesAndIndices(*(move_axis(y, x.ndim - 1, place) for y in (values, indices)))


def invert_permutation(x: TensorLike, name: str | None = None) -> Tensor:
    """y[x[i]] = i, for a permutation of 0, 1, ..., n - 1.

    Raises InvalidArgumentError if it is known not to be one.

    >>> tg.math.invert_permutation([3, 0, 2, 1]).numpy()
    array([1, 3, 2, 0], dtype=int32)
    """
    op = "invert_permutation"
    x = as_integers(op, "the numbers", x)
    if rank_of(op, x) != 1:
        refuse(op, f"{x.type} is not a vector", x, fix="give a vector of integers")
    known = value_now(x)
    if known is not None and not np.array_equal(np.sort(known), np.arange(len(known))):
        fact = f"{op}: {shown(known.tolist())} is not a permutation of 0 to {len(known) - 1}"
        fail(InvalidArgumentError, fact, fix="give each number once")
    places = Reshape((*x.type.shape, 1))(x)
    return ScatterUpdate(0, 0)(full(0, x.type), places, Iota(x.type.shape[0], x.dtype)())


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether no element, in row-major order, is smaller than the previous one.

    >>> tg.math.is_non_decreasing([1, 1, 2]).numpy()
    np.True_
    """
    return _is_ordered("is_non_decreasing", ops.LESS_EQUAL, x)


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether every element, in row-major order, is larger than the previous one.

    >>> tg.math.is_strictly_increasing([1, 1, 2]).numpy()
    np.False_
    """
    return _is_ordered("is_strictly_increasing", ops.LESS, x)


def _is_ordered(op: str, compare: Any, x: Any) -> Tensor:
    x = as_tensor(x)
    if not (x.dtype.is_floating or x.dtype.is_integer):
        refuse(op, f"{x.type} has no order", x, fix="convert it: tg.cast(x, tg.float32)")
    flat = reshape(x, [-1])
    count = flat.type.shape[0]
    if known_int(count) and count < 2:
        return full(True, TensorType(bool_))
    return All((0,))(compare(*neighbours(flat, 0)))


__all__ = [
    "approx_max_k",
    "approx_min_k",
    "argsort",
    "in_top_k",
    "invert_permutation",
    "is_non_decreasing",
    "is_strictly_increasing",
    "searchsorted",
    "sort",
    "top_k",
]
