"""Lowering of `tracegraph.ops.sort`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import mesh_of, whole
from lowering.rules import lowers
from tracegraph.ops import sort as ops


@lowers(ops.Sort)
def _sort(op: ops.Sort, x: Any) -> Any:
    if not op.descending:
        return lax.sort(x, op.axis)
    # Turned round before and after, so that equal elements keep their order.
    return lax.rev(lax.sort(lax.rev(x, (op.axis,)), op.axis), (op.axis,))


@lowers(ops.ArgSort)
def _arg_sort(op: ops.ArgSort, x: Any) -> Any:
    positions = lax.broadcasted_iota(jnp.int32, x.shape, op.axis)
    if not op.descending:
        return lax.sort((x, positions), op.axis, num_keys=1)[1]
    operands = tuple(lax.rev(v, (op.axis,)) for v in (x, positions))
    return lax.rev(lax.sort(operands, op.axis, num_keys=1)[1], (op.axis,))


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
