"""Lowering of `tracegraph.ops.barrier`."""

from __future__ import annotations

from typing import Any

import jax

from lowering.rules import lowers
from tracegraph.ops import barrier as ops


@lowers(ops.Barrier)
def _barrier(op: ops.Barrier, *xs: Any) -> Any:
    return tuple(jax.lax.optimization_barrier(xs))
