"""Lowering of `tracegraph.ops.index`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import axes_that_divide, mesh_of, whole
from lowering.forms import by_device
from lowering.rules import lowers
from lowering.rules.accumulate import in_float32
from lowering.rules.compared import compared
from tracegraph.ops import index as ops


@lowers(ops.Gather, ops.GatherNd)
def _gather(op: ops.GatherNd, x: Any, indices: Any) -> Any:
    if isinstance(op, ops.Gather):
        indices = indices[..., None]
    x, indices = _divided_rightly(op, x, _widened(indices))
    b, count = op.batch_dims, indices.shape[-1]
    index_shape = indices.shape[b:-1]
    shape = (*x.shape[: op.axis], *index_shape, *x.shape[op.axis + count :])
    if 0 in shape or 0 in x.shape:  # XLA refuses to read one element of an axis that has none
        return jnp.zeros(shape, x.dtype)
    indexed = range(op.axis, op.axis + count)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=_window_axes(op, len(shape), len(index_shape)),
        collapsed_slice_dims=tuple(indexed),
        start_index_map=tuple(indexed),
        operand_batching_dims=tuple(range(b)),
        start_indices_batching_dims=tuple(range(b)),
    )
    single = {*range(b), *indexed}
    window = tuple(1 if axis in single else size for axis, size in enumerate(x.shape))
    if op.clamps:
        return lax.gather(x, indices, numbers, window, mode="clip")
    return lax.gather(x, indices, numbers, window, mode="fill", fill_value=0)


_SCATTERS: dict[type, Callable[..., Any]] = {
    ops.ScatterAdd: lax.scatter_add,
    ops.ScatterUpdate: lax.scatter,
    ops.ScatterMax: lax.scatter_max,
    ops.ScatterMin: lax.scatter_min,
    ops.ScatterMul: lax.scatter_mul,
}


@lowers(*_SCATTERS)
def _scatter(op: ops.Scatter, x: Any, indices: Any, updates: Any) -> Any:
    if 0 in updates.shape or 0 in x.shape:
        return x
    x, indices, updates = _divided_rightly(op, x, _widened(indices), updates)
    b, count = op.batch_dims, indices.shape[-1]
    if count == 0:  # XLA simplifies such a scatter wrongly: it is given an axis of 1 to index
        first = jnp.zeros((*indices.shape[:-1], 1), indices.dtype)
        y = _scatter(op, jnp.expand_dims(x, op.axis), first, updates)
        return jnp.squeeze(y, op.axis)
    indexed = range(op.axis, op.axis + count)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=_window_axes(op, updates.ndim, indices.ndim - 1 - b),
        inserted_window_dims=tuple(indexed),
        scatter_dims_to_operand_dims=tuple(indexed),
        operand_batching_dims=tuple(range(b)),
        scatter_indices_batching_dims=tuple(range(b)),
    )
    mode = "clip" if op.clamps else "drop"

    def scatter(x: Any, indices: Any, updates: Any, mode: str = mode) -> Any:
        return _SCATTERS[type(op)](x, indices, updates, numbers, mode=mode)

    def scatter_the_last(x: Any, indices: Any, updates: Any) -> Any:
        return scatter(x, _of_the_last(op, x, indices), updates, mode="drop")

    if isinstance(op, ops.ScatterAdd):
        return in_float32(lambda x, updates: scatter(x, indices, updates), x, updates)
    if isinstance(op, ops.ScatterUpdate) and math.prod(indices.shape[b:-1]) != 1:
        return by_device(x, indices, updates, cpu=scatter, default=scatter_the_last)
    return scatter(x, indices, updates)


def _of_the_last(op: ops.Scatter, x: Any, indices: Any) -> Any:
    """The indices, of which all but the last for each place lead outside.

    A CPU writes one update after the other. A GPU writes them all at once: of several for one place
    any one stays, or some numbers of each, and another at every run.
    """
    b, count = op.batch_dims, indices.shape[-1]
    every = indices.shape[:-1]
    sizes_of_places = (*x.shape[:b], *x.shape[op.axis : op.axis + count])
    numbers = jnp.arange(math.prod(every), dtype=jnp.int32).reshape(every)
    nothing = jnp.full(sizes_of_places, -1, jnp.int32)
    last = _scatter(ops.ScatterMax(b, b, op.clamps), nothing, indices, numbers)
    is_last = lax.eq(_gather(ops.GatherNd(b, b, op.clamps), last, indices), numbers)
    if op.clamps:
        columns = [jnp.clip(indices[..., i], 0, sizes_of_places[b + i] - 1) for i in range(count)]
        indices = jnp.stack(columns, -1)
    outside = jnp.iinfo(indices.dtype).max
    return jnp.where(is_last[..., None], indices, jnp.full_like(indices, outside))


@lowers(ops.ScatterIsExtreme)
def _scatter_is_extreme(op: ops.ScatterIsExtreme, x: Any, indices: Any, updates: Any) -> Any:
    places = op.axis, op.batch_dims, op.clamps

    def compare(x: Any, updates: Any) -> tuple[Any, Any]:
        y = _scatter(op.scatter, x, indices, updates)
        found = lax.eq(x, y), lax.eq(updates, _gather(ops.GatherNd(*places), y, indices))
        # As numbers, since no scatter joins truth values.
        by_x, by_updates = (is_found.astype(jnp.int32) for is_found in found)
        return found, _scatter(ops.ScatterMax(*places), by_x, indices, by_updates) > 0

    return compared(compare, x, updates)


def _divided_rightly(op: Any, x: Any, indices: Any, *updates: Any) -> tuple[Any, ...]:
    """The operands, of which those axes are whole whose division XLA's partitioner gets wrong: the
    numbers of one place, for which it ends with an error; and where there are batch axes, those
    that are indexed, and those of the places. Of these it joins the parts of too many devices,
    where an axis of the mesh divides neither.

    Where something is written, so are axes of batches and places that devices cannot divide evenly:
    the partitioner writes what fills up the last part to the place 0, or ends the process.
    """
    mesh = mesh_of(x, indices, *updates)
    if mesh is None:
        return x, indices, *updates
    b, last = op.batch_dims, indices.ndim - 1
    uneven = {i for i in range(last if updates else 0) if _may_be_uneven(indices.shape[i], mesh)}
    batches, places = uneven & {*range(b)}, uneven - {*range(b)}
    indexed: Iterable[int] = ()
    if b and axes_that_divide(mesh) > 1:
        indexed, places = range(op.axis, op.axis + indices.shape[-1]), {*range(b, last)}
    read = {*batches, *indexed}
    written = {*batches, *(op.axis + i - b for i in places)}
    return (
        whole(x, read, mesh) if read else x,
        whole(indices, {*batches, *places, last}, mesh),
        *(whole(each, written, mesh) if written else each for each in updates),
    )


def _may_be_uneven(size: Any, mesh: Any) -> bool:
    """Whether some axes of a mesh divide an axis of this size into parts of different sizes."""
    return sizes.is_open(size) or size % mesh.size != 0


def _widened(indices: Any) -> Any:
    """Indices of at least 32 bits: with fewer XLA's partitioner ends the process."""
    return indices.astype(jnp.int32) if indices.dtype.itemsize < 4 else indices


def _window_axes(op: Any, rank: int, index_rank: int) -> tuple[int, ...]:
    """The axes of what is read or written that are neither batch axes nor index axes."""
    return *range(op.batch_dims, op.axis), *range(op.axis + index_rank, rank)


@lowers(ops.DynamicSlice)
def _dynamic_slice(op: ops.DynamicSlice, x: Any, *starts: Any) -> Any:
    if not starts:
        return x
    if 0 in x.shape:
        return jnp.zeros(sizes.shape(op.sizes), x.dtype)
    return lax.dynamic_slice(x, starts, sizes.shape(op.sizes), allow_negative_indices=False)


@lowers(ops.DynamicUpdateSlice)
def _dynamic_update_slice(op: ops.DynamicUpdateSlice, x: Any, update: Any, *starts: Any) -> Any:
    if not starts or 0 in update.shape or 0 in x.shape:
        return update if not starts else x
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)
