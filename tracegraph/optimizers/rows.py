"""Gradients of some rows of a variable, and steps that leave the other rows unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tracegraph.array.arguments import as_integers, refuse
from tracegraph.array.creation import ones_like, zeros_like
from tracegraph.array.indexing.selection import gather, scatter_nd, tensor_scatter_nd_update, where
from tracegraph.array.shaping import reshape
from tracegraph.core.shapes import Shape, same_shape
from tracegraph.core.tensorshape import IndexedSlices
from tracegraph.core.types import TensorType
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.math.elementwise.logic import not_equal
from tracegraph.math.reduction import reduce_any
from tracegraph.math.segments import unsorted_segment_sum
from tracegraph.math.sorting import searchsorted, sort
from tracegraph.operands.conversion import as_tensor
from tracegraph.tracing.index_checks import check_range


class RowGradient(NamedTuple):
    """The gradient of some rows: `indices` is sorted, with repetitions.

    `sums` has the sum of all values for a row at its first occurrence, and 0 at the others; `first`
    gives, for each position, that of the first occurrence.
    """

    sums: Tensor
    indices: Tensor
    first: Tensor
    shape: Shape


Gradient: TypeAlias = Tensor | RowGradient


def rows_of(op: str, slices: IndexedSlices, variable: TensorType) -> RowGradient:
    """Converts IndexedSlices to Rows.

    Raises ShapeError for values that are not rows of a variable of this type, and
    InvalidArgumentError for an index that is known to be out of range.
    """
    values, indices = _checked(op, slices, variable)
    ascending = sort(indices)
    first = searchsorted(ascending, ascending)
    places = searchsorted(ascending, indices)
    sums = unsorted_segment_sum(values, places, values.type.shape[0])
    return RowGradient(sums, ascending, first, variable.shape)


def dense_of(op: str, slices: IndexedSlices, variable: TensorType) -> Tensor:
    """Converts IndexedSlices to a tensor: values for the same row add up, other rows are 0."""
    values, indices = _checked(op, slices, variable)
    return scatter_nd(reshape(indices, [-1, 1]), values, variable.shape)


def _checked(op: str, slices: IndexedSlices, variable: TensorType) -> tuple[Tensor, Tensor]:
    """The rows, along a single axis, and their indices."""
    values = as_tensor(slices.values)
    indices = as_integers(op, "the indices", slices.indices)
    if not variable.shape:
        refuse(op, f"IndexedSlices {values.type} of a scalar", values, fix="use a tensor")
    expected = (*indices.type.shape, *variable.shape[1:])
    if not same_shape(values.type.shape, expected):
        refuse(
            op,
            f"the values {values.type} of IndexedSlices with the indices {indices.type} are not "
            f"rows of {variable}",
            values,
            fix="give one row, values[k], for each index, indices[k]",
        )
    check_range(op, host_tensor(variable, None), indices, [0])
    return reshape(values, [-1, *variable.shape[1:]]), reshape(indices, [-1])


def dense(gradient: Gradient) -> Tensor:
    """A gradient as one tensor."""
    if isinstance(gradient, Tensor):
        return gradient
    return scatter_nd(reshape(gradient.indices, [-1, 1]), gradient.sums, gradient.shape)


def mapped(change: Callable[[Tensor], Tensor], gradient: Gradient) -> Gradient:
    """Applies a function to the values of a gradient."""
    if isinstance(gradient, RowGradient):
        return gradient._replace(sums=change(gradient.sums))
    return change(gradient)


def updated_rows(
    update: Callable[..., Sequence[Tensor]],
    gradient: Gradient,
    old: Sequence[Tensor],
    is_by_rows: bool,
) -> list[Tensor]:
    """`update(gradient, *old)` for the rows that have a gradient; the others keep their old values.

    - `is_by_rows`: whether each row of the result depends only on the same row of the operands.
    """
    if isinstance(gradient, RowGradient) and is_by_rows:
        parts = [gather(x, gradient.indices) for x in old]
        new = update(gather(gradient.sums, gradient.first), *parts)
        vectors = reshape(gradient.indices, [-1, 1])
        # A row named twice appears twice, with the same new value.
        return [tensor_scatter_nd_update(x, vectors, y) for x, y in zip(old, new, strict=True)]
    new, is_touched = update(dense(gradient), *old), _touched(gradient)
    return [where(is_touched, y, x) for x, y in zip(old, new, strict=True)]


def _touched(gradient: Gradient) -> Tensor:
    """Which rows have a gradient, in a shape that broadcasts over them."""
    if isinstance(gradient, RowGradient):
        whole = dense(gradient._replace(sums=ones_like(gradient.sums)))
        return not_equal(whole, zeros_like(whole))
    is_there = not_equal(gradient, zeros_like(gradient))
    axes = [*range(1, len(gradient.type.shape))]
    return reduce_any(is_there, axes, keepdims=True) if axes else is_there
