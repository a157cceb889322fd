"""Lowering of `tracegraph.ops.constant`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.rules import lowers
from tracegraph.ops import constant as ops
from tracegraph.shapes import static_shape, static_size


@lowers(ops.Constant)
def _constant(op: ops.Constant) -> Any:
    return jnp.asarray(op.value)


@lowers(ops.DimSize)
def _dim_size(op: ops.DimSize) -> Any:
    return jnp.asarray(op.size, jnp.int32)


@lowers(ops.Sizes)
def _sizes(op: ops.Sizes) -> Any:
    return jnp.asarray(static_shape(op.shape), jnp.int32)


@lowers(ops.Iota)
def _iota(op: ops.Iota) -> Any:
    return lax.iota(op.dtype.numpy_dtype, static_size(op.size))
