"""Selecting elements: where, boolean_mask, gather; and writing at indices: scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_count,
    as_integers,
    as_shape,
    as_size,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.joining import together
from tracegraph.array.runtime_sizes import true_positions
from tracegraph.core.shapes import element_count, maximum, same_shape
from tracegraph.core.types import TensorType, bool_, int32, int64
from tracegraph.errors import counted
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
    converted,
    from_array,
    static_value,
)
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import NEG, SELECT, Cast
from tracegraph.ops.index import Gather, GatherNd, ScatterAdd, ScatterMax, ScatterMin, ScatterUpdate
from tracegraph.ops.shape import Concatenate, Reshape, with_sizes
from tracegraph.tracing.index_checks import in_range, taken_from
from tracegraph.typing import Axis, ShapeLike, TensorLike


def where(
    condition: TensorLike,
    x: TensorLike | None = None,
    y: TensorLike | None = None,
    name: str | None = None,
) -> Tensor:
    """x where the condition is true, else y; all three broadcast.

    With only the condition: the int64 positions where it is true, one row for each. Their number is
    a size found at run time, unless the condition is known while tracing.

    >>> tg.where([True, False], [1, 2], [3, 4]).numpy()
    array([1, 4], dtype=int32)
    >>> tg.where([True, False, True]).numpy()
    array([[0],
           [2]])
    """
    condition = as_tensor(condition)
    if x is None and y is None:
        return _positions(condition)
    if x is None or y is None:
        refuse("where", "only one of x and y was given", condition, fix="give both or none")
    if condition.dtype is not bool_:
        condition = condition != 0  # type: ignore[assignment]
    x, y = as_operands("where", x, y)
    shape = broadcast_shape("where", condition, x, y)
    return SELECT(broadcast(condition, shape), broadcast(x, shape), broadcast(y, shape))


def _positions(condition: Tensor) -> Tensor:
    known = static_value(condition)
    if known is not None:
        return from_array(np.argwhere(known).astype(np.int64))
    sizes = sizes_of("where", condition)
    if condition.dtype is not bool_:
        condition = condition != 0  # type: ignore[assignment]
    flat = Cast(int64)(true_positions("where", Reshape((element_count(sizes),))(condition)))
    columns, step = [], as_tensor(1, int64)
    for size in reversed(sizes):
        length = cast_to(as_tensor(maximum(size, 1)), int64)  # an empty axis has no positions
        columns.append((flat // step) % length)  # type: ignore[operator]
        step = step * length  # type: ignore[assignment]
    if not columns:
        return Reshape((*flat.type.shape, 0))(full(0, flat.type.with_shape((*flat.type.shape, 0))))
    return Concatenate(1)(*(Reshape((*c.type.shape, 1))(c) for c in reversed(columns)))


def boolean_mask(
    tensor: TensorLike, mask: TensorLike, axis: Axis = None, name: str | None = None
) -> Tensor:
    """The elements of `tensor` where `mask` is true, along one axis in place of the mask's axes.

    The mask has the shape of the axes of `tensor` from `axis` on. The number of elements kept is a
    size found at run time, unless the mask is known while tracing.
    Raises ShapeError for a mask that does not fit.

    >>> tg.boolean_mask([1, 2, 3], [True, False, True]).numpy()
    array([1, 3], dtype=int32)
    """
    x, mask = as_tensor(tensor), as_tensor(mask)
    sizes = sizes_of("boolean_mask", x)
    if mask.dtype is not bool_ or mask.type.shape == ():
        refuse("boolean_mask", f"the mask is {mask.type}", mask, fix="give a bool mask with axes")
    first = 0 if axis is None else as_axis("boolean_mask", axis, len(sizes), x)
    last = first + mask.ndim
    if same_shape(sizes[first:last], mask.type.shape) is None:
        refuse(
            "boolean_mask",
            f"the mask {mask.type} does not fit {x.type}",
            x,
            mask,
            fix="the mask needs the sizes of the axes that it stands for",
        )
    sizes = (*sizes[:first], *mask.type.shape, *sizes[last:])
    x = with_sizes(x, sizes)
    count = element_count(sizes[first:last])
    flat = Reshape((*sizes[:first], count, *sizes[last:]))(x)
    known = static_value(mask)
    if known is None:
        return Gather(first, 0)(flat, true_positions("boolean_mask", Reshape((count,))(mask)))
    return Gather(first, 0)(flat, from_array(np.flatnonzero(known).astype(np.int32)))


# Reading at indices.


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: Axis = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Tensor:
    """The slices of `params` at `indices` along `axis`, side by side.

    The axes of `indices` replace `axis`; the first `batch_dims` axes of both are matched, and
    `axis` defaults to `batch_dims`. A negative `batch_dims` counts from the rank of `indices`, a
    negative `axis` from that of `params`. Gradients are dense.
    Raises InvalidArgumentError for an index out of range, at top level and if it is known while
    tracing. An index that is only known at run time is clamped to the nearest element, unless the
    function is built with `check_bounds`.

    >>> tg.gather([10, 20, 30], [2, 0]).numpy()
    array([30, 10], dtype=int32)
    """
    x, at = as_tensor(params), as_integers("gather", "the indices", indices)
    sizes = sizes_of("gather", x)
    batch_dims = 0 if batch_dims is None else batch_dims
    batch = _batch_count("gather", batch_dims, rank_of("gather", at), at)
    place = as_axis("gather", batch_dims if axis is None else axis, len(sizes), x)
    if place < batch:
        refuse("gather", f"axis {place} is a batch axis", x, fix=f"use axis={batch} or more")
    x = taken_from("gather", x, at, (place,))
    return Gather(place, batch)(x, at)


def _batch_count(op: str, batch_dims: Any, rank: int, at: Tensor) -> int:
    """How many leading axes of indices of rank `rank` are batch axes; negative from the end."""
    count = as_size(op, "batch_dims", batch_dims)
    if not (known_int(count) and -rank <= count <= rank):
        refuse(
            op,
            f"batch_dims is {count}, out of range for indices of {counted(rank, 'axis', 'axes')}",
            at,
            fix=f"use a number from {-rank} to {rank}" if rank else "use batch_dims=0",
        )
    return count + rank if count < 0 else count


def gather_nd(
    params: TensorLike,
    indices: TensorLike,
    batch_dims: int = 0,
    name: str | None = None,
    bad_indices_policy: str = "",
) -> Tensor:
    """The slices of `params` at index vectors, which lie along the last axis of `indices`.

    y[b, i, ...] = params[b, indices[b, i, 0], indices[b, i, 1], ..., ...]. Indices out of range are
    treated as in `gather`; "" and "DEFAULT" are the only `bad_indices_policy`.

    >>> tg.gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]]).numpy()
    array([2, 3], dtype=int32)
    """
    _check_policy("gather_nd", bad_indices_policy)
    x, at = as_tensor(params), as_integers("gather_nd", "the indices", indices)
    sizes, depth = sizes_of("gather_nd", x), _depth("gather_nd", at)
    batch_dims = as_axis("gather_nd", as_count("gather_nd", "batch_dims", batch_dims), at.ndim, at)
    if batch_dims + depth > len(sizes):
        refuse("gather_nd", f"indices of {depth} numbers into {x.type}", x, at, fix="use fewer")
    x = taken_from("gather_nd", x, at, range(batch_dims, batch_dims + depth))
    return GatherNd(batch_dims, batch_dims)(x, at)


def _check_policy(op: str, bad_indices_policy: Any) -> None:
    """Checks that the policy is a default: indices out of range are always treated the same way."""
    as_choice(op, "bad_indices_policy", bad_indices_policy, ("", "DEFAULT"))


def _depth(op: str, at: Tensor) -> int:
    sizes = sizes_of(op, at)
    if not sizes or not known_int(sizes[-1]):
        refuse(op, f"the indices are {at.type}", at, fix="give index vectors along the last axis")
    return sizes[-1]  # type: ignore[return-value]


# Writing at indices.


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with the slices at the index vectors `indices` replaced by `updates`.

    The index vectors lie along the last axis of `indices`. If several updates are for one place,
    any of them may win. Raises InvalidArgumentError for a vector out of range, at top level and if
    it is known while tracing. The update of one that is only known at run time is dropped, unless
    the function is built with `check_bounds`.

    >>> tg.tensor_scatter_nd_update([1, 2, 3], [[1]], [9]).numpy()
    array([1, 9, 3], dtype=int32)
    """
    return _scattered(ScatterUpdate, "tensor_scatter_nd_update", tensor, indices, updates)


def tensor_scatter_nd_add(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> Tensor:
    """`tensor` with `updates` added at the index vectors; updates for the same place add up.

    Vectors out of range are treated as in `tensor_scatter_nd_update`; "" and "DEFAULT"
    are the only `bad_indices_policy`.

    >>> tg.tensor_scatter_nd_add([1, 2, 3], [[1], [1]], [10, 20]).numpy()
    array([ 1, 32,  3], dtype=int32)
    """
    _check_policy("tensor_scatter_nd_add", bad_indices_policy)
    return _scattered(ScatterAdd, "tensor_scatter_nd_add", tensor, indices, updates)


def tensor_scatter_nd_sub(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> Tensor:
    """`tensor` with `updates` subtracted at the index vectors; see `tensor_scatter_nd_add`.

    >>> tg.tensor_scatter_nd_sub([1, 2, 3], [[1]], [10]).numpy()
    array([ 1, -8,  3], dtype=int32)
    """
    _check_policy("tensor_scatter_nd_sub", bad_indices_policy)
    x, updates = together("tensor_scatter_nd_sub", [as_tensor(tensor), updates])
    return _scattered(ScatterAdd, "tensor_scatter_nd_sub", x, indices, NEG(updates))


def tensor_scatter_nd_max(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> Tensor:
    """`tensor` with the elements at the index vectors replaced by their maximum with the
    updates; see `tensor_scatter_nd_add`.

    >>> tg.tensor_scatter_nd_max([1, 2, 3], [[1]], [9]).numpy()
    array([1, 9, 3], dtype=int32)
    """
    _check_policy("tensor_scatter_nd_max", bad_indices_policy)
    return _scattered(ScatterMax, "tensor_scatter_nd_max", tensor, indices, updates)


def tensor_scatter_nd_min(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> Tensor:
    """`tensor` with the elements at the index vectors replaced by their minimum with the
    updates; see `tensor_scatter_nd_add`.

    >>> tg.tensor_scatter_nd_min([1, 2, 3], [[1]], [0]).numpy()
    array([1, 0, 3], dtype=int32)
    """
    _check_policy("tensor_scatter_nd_min", bad_indices_policy)
    return _scattered(ScatterMin, "tensor_scatter_nd_min", tensor, indices, updates)


def scatter_nd(
    indices: TensorLike,
    updates: TensorLike,
    shape: ShapeLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> Tensor:
    """Zeros of `shape` with `updates` added at the index vectors; for bool updates, whether any of
    them is true.

    Vectors out of range are treated as in `tensor_scatter_nd_update`; "" and "DEFAULT"
    are the only `bad_indices_policy`.

    >>> tg.scatter_nd([[1], [3]], [9, 8], [4]).numpy()
    array([0, 9, 0, 8], dtype=int32)
    """
    _check_policy("scatter_nd", bad_indices_policy)
    updates = as_tensor(updates)
    if updates.dtype is bool_:
        return cast_to(scatter_nd(indices, cast_to(updates, int32), shape), bool_)
    zeros = full(0, TensorType(updates.dtype, as_shape("scatter_nd", shape)))
    return _scattered(ScatterAdd, "scatter_nd", zeros, indices, updates)


def _scattered(op: Any, name: str, tensor: Any, indices: Any, updates: Any) -> Tensor:
    x, at = as_tensor(tensor), as_integers(name, "the indices", indices)
    updates = updates if isinstance(updates, Tensor) else converted(updates, x.dtype)
    sizes, depth = sizes_of(name, x), _depth(name, at)
    if depth > len(sizes):
        refuse(name, f"indices of {depth} numbers into {x.type}", x, at, fix="use fewer")
    x = in_range(name, x, at, range(depth))
    return op(0, 0)(x, at, updates)


__all__ = [
    "boolean_mask",
    "gather",
    "gather_nd",
    "scatter_nd",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "where",
]
