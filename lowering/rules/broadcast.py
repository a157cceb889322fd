"""Lowering of `tracegraph.ops.broadcast`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules import lowers_by
from lowering.rules.accumulate import in_float32
from tracegraph.ops import broadcast as ops

lowers_by(
    {
        ops.BroadcastTo: lambda op, x: lax.broadcast_in_dim(x, sizes.shape(op.shape), op.axes),
        ops.Sum: lambda op, x: in_float32(lambda x: jnp.sum(x, axis=op.axes, dtype=x.dtype), x),
    }
)
