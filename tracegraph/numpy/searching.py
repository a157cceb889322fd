"""Sorting, searching and sets. Positions and counts are int32."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegraph import array, math
from tracegraph.array.arguments import as_flag, rank_of, refuse
from tracegraph.array.grouping import unique_positions
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import Axis, TensorLike


def _direction(op: str, descending: bool) -> str:
    return "DESCENDING" if as_flag(op, "descending", descending) else "ASCENDING"


def sort(
    x: TensorLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The elements in order along an axis.

    >>> tg.numpy.sort([3, 1, 2], descending=True).numpy()
    array([3, 2, 1], dtype=int32)
    """
    as_flag("sort", "stable", stable)
    return math.sort(x, axis, _direction("sort", descending))


def argsort(
    x: TensorLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The positions that sort the elements along an axis; equal ones keep their order."""
    return math.argsort(x, axis, _direction("argsort", descending), stable)


def argmax(x: TensorLike, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the largest element along an axis, or in flattened x.

    >>> tg.numpy.argmax([[1, 5], [7, 2]]).numpy()
    np.int32(2)
    """
    return _extreme("argmax", math.argmax, x, axis, keepdims)


def argmin(x: TensorLike, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the smallest element along an axis, or in flattened x."""
    return _extreme("argmin", math.argmin, x, axis, keepdims)


def _extreme(op: str, find: Any, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    keeps = as_flag(op, "keepdims", keepdims)
    if axis is None:
        found = find(array.reshape(x, [-1]), 0, int32)
        return array.reshape(found, [1] * rank_of(op, x)) if keeps else found
    found = find(x, axis, int32)
    return array.expand_dims(found, axis) if keeps else found


def count_nonzero(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The number of nonzero elements along the axes.

    >>> tg.numpy.count_nonzero([[0, 1], [2, 3]]).numpy()
    np.int32(3)
    """
    return math.count_nonzero(x, axis, keepdims, int32)


def nonzero(x: TensorLike, /) -> tuple[Tensor, ...]:
    """The positions of the nonzero elements: one vector for each axis.

    Their number is a size found at run time, unless x is known while tracing. Raises ShapeError for
    a scalar.

    >>> [at.numpy() for at in tg.numpy.nonzero([[0, 7], [8, 0]])]
    [array([0, 1], dtype=int32), array([1, 0], dtype=int32)]
    """
    x = as_tensor(x)
    if rank_of("nonzero", x) == 0:
        refuse("nonzero", f"{x.type} has no axes", x, fix="give it one: x[None]")
    is_found = x if x.dtype.is_bool else x != 0
    return tuple(array.unstack(array.cast(array.where(is_found), int32), axis=1))


def searchsorted(
    x1: TensorLike, x2: TensorLike, /, *, side: str = "left", sorter: TensorLike | None = None
) -> Tensor:
    """The positions at which to insert x2, of any shape, into the sorted vector x1.

    - `side`: "left" for before equal elements, "right" for after them;
    - `sorter`: the positions that sort x1, if it is not sorted.

    >>> tg.numpy.searchsorted([1, 3, 5], [[3], [4]]).numpy()
    array([[1],
           [2]], dtype=int32)
    """
    sequence = as_tensor(x1) if sorter is None else array.gather(x1, sorter)
    values = as_tensor(x2, sequence.dtype if isinstance(x2, (int, float)) else None)
    found = math.searchsorted(sequence, array.reshape(values, [-1]), side)
    return array.reshape(found, values.shape)


def where(condition: TensorLike, x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 where the condition is true, else x2; all three broadcast.

    >>> tg.numpy.where([True, False], tg.constant([1.0, 2.0]), 0.0).numpy()
    array([1., 0.], dtype=float32)
    """
    return array.where(condition, x1, x2)


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: TensorLike, /) -> UniqueAll:
    """The distinct elements in order of first occurrence, the positions where they first occur, for
    each element of x the index of its distinct element, and the counts.

    nan equals nothing, so every nan is distinct. The number of distinct elements is a size found at
    run time, unless x is known while tracing.

    >>> found = tg.numpy.unique_all([[3, 1], [3, 3]])
    >>> found.values.numpy(), found.indices.numpy(), found.counts.numpy()
    (array([3, 1], dtype=int32), array([0, 1], dtype=int32), array([3, 1], dtype=int32))
    >>> found.inverse_indices.numpy()
    array([[0, 1],
           [0, 0]], dtype=int32)
    """
    x = as_tensor(x)
    row = array.reshape(x, [-1])
    values, inverse, counts = array.unique_with_counts(row)
    return UniqueAll(values, unique_positions(row), array.reshape(inverse, x.shape), counts)


def unique_counts(x: TensorLike, /) -> UniqueCounts:
    """The distinct elements, and how often they occur; see `unique_all`."""
    values, _, counts = array.unique_with_counts(array.reshape(x, [-1]))
    return UniqueCounts(values, counts)


def unique_inverse(x: TensorLike, /) -> UniqueInverse:
    """The distinct elements, and for each element of x the index of its own; see `unique_all`."""
    x = as_tensor(x)
    values, inverse = array.unique(array.reshape(x, [-1]))
    return UniqueInverse(values, array.reshape(inverse, x.shape))


def unique_values(x: TensorLike, /) -> Tensor:
    """The distinct elements; see `unique_all`.

    >>> tg.numpy.unique_values([3, 1, 3]).numpy()
    array([3, 1], dtype=int32)
    """
    return array.unique(array.reshape(x, [-1])).y


__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "count_nonzero",
    "nonzero",
    "searchsorted",
    "sort",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "where",
]
