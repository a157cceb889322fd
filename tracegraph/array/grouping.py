"""Grouping elements: the distinct ones, and those of each of several partitions."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegraph.array.arguments import (
    as_count,
    as_integers,
    known_int,
    rank_of,
    refuse,
    refuse_kind,
    sizes_of,
)
from tracegraph.array.creation import reaching
from tracegraph.array.indexing.selection import boolean_mask
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import TensorType, as_dtype, int32, int64
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import full, full_like, zeros_of
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import ADD, EQUAL, IMAG, MUL, REAL, SUB, Cast, LogicalAnd, NotEqual
from tracegraph.ops.index import Gather, ScatterAdd, ScatterMin, ScatterUpdate
from tracegraph.ops.reduce import CumSum
from tracegraph.ops.shape import Pad, Reshape
from tracegraph.ops.sort import ArgSort
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_now,
)
from tracegraph.typing import DTypeLike, TensorLike


class Unique(NamedTuple):
    """The result of `unique`."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`."""

    y: Tensor
    idx: Tensor
    count: Tensor


def unique(x: TensorLike, out_idx: DTypeLike = int32, name: str | None = None) -> Unique:
    """The distinct elements of a vector in order of first occurrence, and for each element the
    index of its distinct element.

    - `x`: a vector of numbers or bools. nan equals nothing, so every nan is distinct.
    - `out_idx`: the integer dtype of `idx`.

    Returns `(y, idx)` with y[idx[i]] = x[i]. The number of distinct elements is a size found at run
    time, unless x is known while tracing. Gradients go to the first of equal elements.
    Raises ShapeError unless x is a vector.

    >>> y, idx = tg.unique([3, 1, 3])
    >>> y.numpy(), idx.numpy()
    (array([3, 1], dtype=int32), array([0, 1, 0], dtype=int32))
    """
    values, is_first, numbers = _numbered("unique", x)
    return Unique(boolean_mask(values, is_first), Cast(as_dtype(out_idx))(numbers))


def unique_with_counts(
    x: TensorLike, out_idx: DTypeLike = int32, name: str | None = None
) -> UniqueWithCounts:
    """The result of `unique`, and the number of occurrences of each distinct element.

    >>> tg.unique_with_counts([3, 1, 3]).count.numpy()
    array([2, 1], dtype=int32)
    """
    values, is_first, numbers = _numbered("unique_with_counts", x)
    kind = as_dtype(out_idx)
    y = boolean_mask(values, is_first)
    none = full(0, TensorType(kind, y.type.shape))
    at, ones = Reshape((*numbers.type.shape, 1))(numbers), full_like(Cast(kind)(numbers), 1)
    count = ScatterAdd(0, 0)(none, at, ones) if y.type.shape != (0,) else none
    return UniqueWithCounts(y, Cast(kind)(numbers), count)


def unique_positions(x: TensorLike) -> Tensor:
    """The positions where the distinct elements of a vector first occur, in int32; see `unique`."""
    _, is_first, numbers = _numbered("unique_positions", x)
    return boolean_mask(Iota(numbers.type.shape[0], int32)(), is_first)


def _numbered(op: str, x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The elements, which of them are the first of their kind, and the number of their kind."""
    values = as_tensor(x)
    if rank_of(op, values) != 1:
        refuse(op, f"{values.type} is not a vector", values, fix="flatten it: tg.reshape(x, [-1])")
    (length,) = values.type.shape
    # In sorted order equal elements are adjacent; a kind starts where a run of them starts.
    keys = _pair_numbers(values) if values.dtype.is_complex else values
    order = ArgSort(0, False)(keys)
    ordered = Gather(0, 0)(keys, order)
    previous = Pad((1,), (-1,), (0,))(ordered, full(0, ordered.type.with_shape(())))
    positions = Iota(length, int32)()
    begins = LogicalAnd()(NotEqual()(ordered, previous), NotEqual()(positions, zeros_of(positions)))
    kinds = CumSum(0, False)(Cast(int32)(begins))
    places = full(0, kinds.type)
    kind = ScatterUpdate(0, 0)(places, Reshape((length, 1))(order), kinds)
    # The first element of each kind is at the least of its positions.
    last = broadcast(as_tensor(int32.max), (length,))
    firsts = ScatterMin(0, 0)(last, Reshape((length, 1))(kind), positions)
    first = Gather(0, 0)(firsts, kind)
    is_first = EQUAL(first, positions)
    count = CumSum(0, False)(Cast(int32)(is_first))
    return values, is_first, Gather(0, 0)(SUB(count, full_like(count, 1)), first)


def _pair_numbers(values: Tensor) -> Tensor:
    """Integers that are equal for equal complex numbers, which have no order themselves."""
    (length,) = values.type.shape
    parts = [_numbered("unique", part)[2] for part in (REAL(values), IMAG(values))]
    real, imag = (Cast(int64)(part) for part in parts)
    return ADD(MUL(real, broadcast(cast_to(as_tensor(length), int64), (length,))), imag)


def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Splits the slices of `data` into `num_partitions` groups; group k has those with
    partitions[i] = k.

    `partitions` has the shape of the first axes of `data`; slices keep their order. The number of
    slices in a group is a size found at run time, unless the partitions are known while tracing.
    Raises InvalidArgumentError for more than 2^20 groups, each of which is a tensor, and for a
    number that is not a group, at top level and if it is known while tracing; a slice whose number
    is only known at run time is left out, unless the function is built with `check_bounds`.

    >>> [x.numpy().tolist() for x in tg.dynamic_partition([10, 20, 30], [0, 1, 0], 2)]
    [[10, 30], [20]]
    """
    op = "dynamic_partition"
    x, groups = as_tensor(data), as_integers(op, "the partitions", partitions)
    count = as_count(op, "the number of partitions", num_partitions)
    if not known_int(count) or count == 0:
        refuse_kind(op, "the number of partitions is a positive int", num_partitions, fix="use 2")
    if count > _MOST_GROUPS:
        fact = f"{op}: {count:,} partitions are as many tensors, and the limit is {_MOST_GROUPS:,}"
        fail(InvalidArgumentError, fact, fix="check the number: it is far too large")
    rank = rank_of(op, groups)
    if same_shape(sizes_of(op, x)[:rank], groups.type.shape) is None:
        refuse(
            op, f"{groups.type} partitions for {x.type}", x, groups, fix="give one for each slice"
        )
    _check_groups(x, groups, count)
    if rank == 0:  # one slice
        x, groups = Reshape((1, *x.type.shape))(x), Reshape((1,))(groups)
    groups = reaching(groups, count - 1)
    numbers = (broadcast(as_tensor(k, groups.dtype), groups.type.shape) for k in range(count))
    return [boolean_mask(x, EQUAL(groups, number)) for number in numbers]


#: Each group is a tensor, so a number far too large would fill the memory with tensors.
_MOST_GROUPS = 2**20


def _check_groups(x: Tensor, groups: Tensor, count: int) -> None:
    message = f"dynamic_partition: {{}} is none of {count} groups"
    fix = f"use numbers from 0 to {count - 1}, or give more groups: num_partitions="
    value = value_now(groups)
    if value is not None:
        refuse_outside(value, 0, count - 1, message, fix, (x, groups))
    elif checks_at_run_time():
        check_at_run_time(groups, 0, count - 1, message, fix)


__all__ = ["dynamic_partition", "unique", "unique_with_counts"]
