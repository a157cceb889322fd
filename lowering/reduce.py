"""Lowering of `tracegraph.ops.reduce`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.rules import lowers
from tracegraph.ops import reduce as ops


def _axes(op: ops.Reduction, x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if op.axes is None else op.axes


@lowers(ops.Max)
def _max(op: ops.Max, x: Any) -> Any:
    return lax.reduce_max(x, _axes(op, x))


@lowers(ops.Min)
def _min(op: ops.Min, x: Any) -> Any:
    return lax.reduce_min(x, _axes(op, x))


@lowers(ops.Prod)
def _prod(op: ops.Prod, x: Any) -> Any:
    return jnp.prod(x, axis=op.axes, dtype=x.dtype)


@lowers(ops.All)
def _all(op: ops.All, x: Any) -> Any:
    return lax.reduce_and(x, _axes(op, x))


@lowers(ops.Any)
def _any(op: ops.Any, x: Any) -> Any:
    return lax.reduce_or(x, _axes(op, x))


@lowers(ops.ArgMax)
def _arg_max(op: ops.ArgMax, x: Any) -> Any:
    return lax.argmax(x, op.axis, op.dtype.as_numpy_dtype)


@lowers(ops.ArgMin)
def _arg_min(op: ops.ArgMin, x: Any) -> Any:
    return lax.argmin(x, op.axis, op.dtype.as_numpy_dtype)


@lowers(ops.CumSum)
def _cum_sum(op: ops.CumSum, x: Any) -> Any:
    return lax.cumsum(x, op.axis, op.reverse)


@lowers(ops.CumProd)
def _cum_prod(op: ops.CumProd, x: Any) -> Any:
    return lax.cumprod(x, op.axis, op.reverse)


@lowers(ops.CumLogsumexp)
def _cum_logsumexp(op: ops.CumLogsumexp, x: Any) -> Any:
    return lax.cumlogsumexp(x, op.axis, op.reverse)


@lowers(ops.Recurrence)
def _recurrence(op: ops.Recurrence, a: Any, b: Any) -> Any:
    return lax.associative_scan(_compose, (a, b), reverse=op.reverse, axis=op.axis)[1]


def _compose(first: Any, second: Any) -> Any:
    """y -> a*y + b applied twice, as one such map."""
    a, b = first
    c, d = second
    return a * c, c * b + d
