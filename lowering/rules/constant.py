"""Lowering of `tracegraph.ops.constant`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules import lowers, lowers_by
from tracegraph.ops import constant as ops


@lowers(ops.Sizes)
def _sizes(op: ops.Sizes) -> Any:
    shape = sizes.shape(op.shape)
    if not any(map(sizes.is_open, shape)):
        return jnp.asarray(shape, jnp.int32)
    return jnp.stack([jnp.asarray(size, jnp.int32) for size in shape])


lowers_by(
    {
        ops.Constant: lambda op: jnp.asarray(op.value),
        ops.DimSize: lambda op: jnp.asarray(sizes.size(op.size), jnp.int32),
        ops.Iota: lambda op: lax.iota(op.dtype.numpy_dtype, sizes.size(op.size)),
    }
)
