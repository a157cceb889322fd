"""Lowering of `tracegraph.ops.sort`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import mesh_of, whole
from lowering.forms import by_device
from lowering.rules import lowers
from tracegraph.ops import sort as ops


@lowers(ops.Sort)
def _sort(op: ops.Sort, x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating) or not _is_packed(x):
        return _sorted_values(op, x)
    packed = partial(_taken_in_order, op.axis, op.descending)
    return by_device(x, cpu=packed, default=partial(_sorted_values, op))


@lowers(ops.ArgSort)
def _arg_sort(op: ops.ArgSort, x: Any) -> Any:
    if not _is_packed(x):
        return _sorted_positions(op, x)
    packed = partial(_positions_in_order, op.axis, op.descending)
    return by_device(x, cpu=packed, default=partial(_sorted_positions, op))


def _sorted_values(op: ops.Sort, x: Any) -> Any:
    if not op.descending:
        return lax.sort(x, op.axis)
    # Turned round before and after, so that equal elements keep their order.
    return lax.rev(lax.sort(lax.rev(x, (op.axis,)), op.axis), (op.axis,))


def _sorted_positions(op: ops.ArgSort, x: Any) -> Any:
    positions = lax.broadcasted_iota(jnp.int32, x.shape, op.axis)
    if not op.descending:
        return lax.sort((x, positions), op.axis, num_keys=1)[1]
    operands = tuple(lax.rev(v, (op.axis,)) for v in (x, positions))
    return lax.rev(lax.sort(operands, op.axis, num_keys=1)[1], (op.axis,))


def _is_packed(x: Any) -> bool:
    """Whether its order is that of integers of 32 bits. Not on a mesh, where XLA's partitioner is
    not to be trusted with what is taken by positions."""
    return x.dtype.itemsize <= 4 and mesh_of(x) is None


def _taken_in_order(axis: int, descending: bool, x: Any) -> Any:
    return jnp.take_along_axis(x, _positions_in_order(axis, descending, x), axis)


def _positions_in_order(axis: int, descending: bool, x: Any) -> Any:
    """For CPUs, where XLA sorts integers several times as fast as floating-point numbers and pairs:
    it sorts integers of 64 bits that have the position in their lower half."""
    with jax.enable_x64(True):
        keys = _integers_in_order(x)
        keys = lax.shift_left(~keys if descending else keys, jnp.int64(32))
        keys = keys | lax.broadcasted_iota(jnp.int64, x.shape, axis)
        return lax.sort(keys, axis, is_stable=False).astype(jnp.int32)


def _integers_in_order(x: Any) -> Any:
    """Integers of 32 bits, held in 64, in the order of x, where the two zeros are equal, and nan is
    the largest."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.int64) - (1 << 31 if x.dtype == jnp.uint32 else 0)
    x = x.astype(jnp.float32)
    x = jnp.where(x == 0, jnp.zeros_like(x), jnp.where(jnp.isnan(x), jnp.nan, x))
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32((1 << 31) - 1), bits).astype(jnp.int64)


@lowers(ops.TopK)
def _top_k(op: ops.TopK, x: Any) -> Any:
    count = sizes.size(op.k)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return lax.top_k(x, count)
    # XLA's order tells the signs of 0 and of nan apart.
    ordered = jnp.where(x == 0, jnp.zeros_like(x), jnp.where(jnp.isnan(x), jnp.nan, x))
    indices = lax.top_k(ordered, count)[1]
    return jnp.take_along_axis(x, indices, -1), indices


@lowers(ops.TrueIndices)
def _true_indices(op: ops.TrueIndices, mask: Any) -> Any:
    count = sizes.size(op.size)
    if mask.size == 0:
        return jnp.zeros((*mask.shape[:-1], count), jnp.int32)
    mesh = mesh_of(mask)
    if mesh is not None:  # XLA's partitioner writes what JAX scatters to wrong places
        mask = whole(mask, range(mask.ndim), mesh)
    rows = mask.reshape(-1, mask.shape[-1])
    found = jax.vmap(lambda row: jnp.nonzero(row, size=count, fill_value=0)[0])(rows)
    return found.reshape(*mask.shape[:-1], count).astype(jnp.int32)
