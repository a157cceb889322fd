"""Lowering of `tracegraph.ops.broadcast`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules import lowers
from lowering.rules.accumulate import in_float32
from tracegraph.ops import broadcast as ops


@lowers(ops.BroadcastTo)
def _broadcast_to(op: ops.BroadcastTo, x: Any) -> Any:
    return lax.broadcast_in_dim(x, sizes.shape(op.shape), op.axes)


@lowers(ops.Sum)
def _sum(op: ops.Sum, x: Any) -> Any:
    return in_float32(lambda x: jnp.sum(x, axis=op.axes, dtype=x.dtype), x)
