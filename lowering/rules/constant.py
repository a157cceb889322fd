"""Lowering of `tracegraph.ops.constant`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules import lowers
from tracegraph.ops import constant as ops


@lowers(ops.Constant)
def _constant(op: ops.Constant) -> Any:
    return jnp.asarray(op.value)


@lowers(ops.DimSize)
def _dim_size(op: ops.DimSize) -> Any:
    return jnp.asarray(sizes.size(op.size), jnp.int32)


@lowers(ops.Sizes)
def _sizes(op: ops.Sizes) -> Any:
    shape = sizes.shape(op.shape)
    if not any(map(sizes.is_open, shape)):
        return jnp.asarray(shape, jnp.int32)
    return jnp.stack([jnp.asarray(size, jnp.int32) for size in shape])


@lowers(ops.Iota)
def _iota(op: ops.Iota) -> Any:
    return lax.iota(op.dtype.numpy_dtype, sizes.size(op.size))
