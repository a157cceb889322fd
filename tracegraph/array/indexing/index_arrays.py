"""NumPy's indexing with integer arrays: x[rows], x[rows, columns], x[2, :, columns]."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import as_integers, refuse_kind
from tracegraph.array.indexing.selection import gather, gather_nd
from tracegraph.array.joining import stack
from tracegraph.core.shapes import Size
from tracegraph.core.types import int32, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape, cast_to, has_dtype
from tracegraph.ops.broadcast import zeros_of
from tracegraph.ops.elementwise import ADD, LESS, SELECT
from tracegraph.ops.shape import Transpose


def is_index_array(item: Any) -> bool:
    """Whether an index is a tensor or an array with axes."""
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return has_dtype(item) and as_tensor(item).type.shape != ()


def is_gathered(item: Any) -> bool:
    """Whether an index next to such an array is treated as one: it is neither a slice nor None."""
    return item is not None and not isinstance(item, slice)


def taken_at(x: Tensor, items: list[Any]) -> Tensor:
    """x[items], where each item belongs to one axis, and slices and None keep theirs whole.

    The arrays broadcast to one shape. Its axes replace the indexed ones if those are adjacent;
    otherwise they come first. Raises DTypeError for indices that are not integers.
    """
    axes = [axis for axis, item in enumerate(items) if is_gathered(item)]
    arrays = [counted_from_zero(_integers(items[axis]), x.type.shape[axis]) for axis in axes]
    if len(axes) == 1:
        return gather(x, arrays[0], axis=axes[0])
    shape = broadcast_shape("getitem", *arrays)
    at = stack([broadcast(at, shape) for at in arrays], axis=-1)
    others = [axis for axis in range(len(items)) if axis not in axes]
    y = gather_nd(Transpose((*axes, *others))(x), at)
    if axes[-1] - axes[0] >= len(axes):
        return y
    # The axes of the arrays go after those that precede the first one.
    rank, before = len(shape), axes[0]
    order = (*range(rank, rank + before), *range(rank), *range(rank + before, y.ndim))
    return Transpose(order)(y)


def _integers(item: Any) -> Tensor:
    if isinstance(item, bool | np.bool_):
        refuse_kind("getitem", "an index is an integer", item, fix="use a mask alone: x[mask]")
    return as_integers("getitem", "the indices", item)


def counted_from_zero(indices: Tensor, size: Size) -> Tensor:
    """Indices along an axis, with negative ones counted from its end."""
    if indices.dtype.is_unsigned:
        return indices
    indices = cast_to(indices, int64 if indices.dtype is int64 else int32)
    length = broadcast(cast_to(as_tensor(size), indices.dtype), indices.type.shape)
    is_negative = LESS(indices, zeros_of(indices))
    return SELECT(is_negative, ADD(indices, length), indices)
