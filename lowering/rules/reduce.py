"""Lowering of `tracegraph.ops.reduce`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import mesh_of, whole
from lowering.forms import by_device
from lowering.rules import lowers, lowers_by
from lowering.rules.accumulate import in_float32
from lowering.rules.compared import compared
from tracegraph.ops import reduce as ops


def _axes(op: ops.Reduction | ops.IsExtreme, x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if op.axes is None else op.axes


@lowers(ops.IsExtreme)
def _is_extreme(op: ops.IsExtreme, x: Any) -> Any:
    axes, extreme = _axes(op, x), lax.reduce_max if op.largest else lax.reduce_min

    def compare(x: Any) -> tuple[Any, Any]:
        found = lax.eq(x, jnp.broadcast_to(jnp.expand_dims(extreme(x, axes), axes), x.shape))
        return found, lax.reduce_or(found, axes)

    return compared(compare, x)


@lowers(ops.Prod)
def _prod(op: ops.Prod, x: Any) -> Any:
    return in_float32(lambda x: jnp.prod(x, axis=op.axes, dtype=x.dtype), x)


def _first(op: ops.ArgExtreme, x: Any, extreme: Callable[..., Any]) -> Any:
    """The first index of the extreme, or of nan. On CPU `lax.argmax` takes eight times as long."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.int8)
    count = x.shape[op.axis]
    number = jnp.int64 if op.dtype.size == 8 else jnp.int32  # also the one after the last

    def compare(x: Any) -> tuple[Any, Any]:
        wanted = lax.expand_dims(extreme(x, (op.axis,)), (op.axis,))
        is_wanted = lax.bitwise_or(lax.eq(x, jnp.broadcast_to(wanted, x.shape)), lax.ne(x, x))
        positions = lax.broadcasted_iota(number, x.shape, op.axis)
        none = lax.full_like(positions, count)
        first = lax.reduce_min(lax.select(is_wanted, positions, none), (op.axis,))
        return first, lax.lt(first, lax.full_like(first, count))

    return compared(compare, x).astype(op.dtype.numpy_dtype)


#: For each running combination JAX's function, that of two numbers, and what changes none.
_RUNNING: dict[type[ops.Cumulative], tuple[Callable[..., Any], Callable[..., Any], float]] = {
    ops.CumSum: (lax.cumsum, lax.add, 0),
    ops.CumProd: (lax.cumprod, lax.mul, 1),
    ops.CumLogsumexp: (lax.cumlogsumexp, jnp.logaddexp, -jnp.inf),
}


@lowers(*_RUNNING)
def _cumulative(op: ops.Cumulative, x: Any) -> Any:
    tree, combine, neutral = _RUNNING[type(op)]
    return _running(op, partial(tree, axis=op.axis, reverse=op.reverse), combine, neutral, x)


@lowers(ops.Recurrence)
def _recurrence(op: ops.Recurrence, a: Any, b: Any) -> Any:
    def tree(a: Any, b: Any) -> Any:
        return lax.associative_scan(_compose, (a, b), reverse=op.reverse, axis=op.axis)[1]

    return _running(op, tree, lambda y, a, b: a * y + b, 0, a, b)


def _compose(first: Any, second: Any) -> Any:
    """y -> a*y + b applied twice, as one such map."""
    a, b = first
    c, d = second
    return a * c, c * b + d


#: From this many elements in a row on, going through the rows one by one is faster on a CPU.
LONG_ROW = 64


def _running(
    op: Any, tree: Callable[..., Any], step: Callable[..., Any], start: Any, *xs: Any
) -> Any:
    """Combines along an axis: one row after the other on a CPU where rows are long, as a tree
    otherwise. XLA's partitioner takes the parts of a value that it made for one reduction, with
    the start around them, for those of another; so only reductions that start with 0 see parts."""

    def rows(*xs: Any) -> Any:
        def one(y: Any, row: Any) -> Any:
            y = step(y, *row)
            return y, y

        moved = tuple(jnp.moveaxis(x, op.axis, 0) for x in xs)
        first = jnp.full_like(moved[0][0], start)
        _, ys = lax.scan(one, first, moved, reverse=op.reverse)
        return jnp.moveaxis(ys, 0, op.axis)

    mesh = mesh_of(*xs) if start else None
    if mesh is not None:
        xs = tuple(whole(x, [op.axis], mesh) for x in xs)
    size, steps = xs[0].size, xs[0].shape[op.axis]
    if sizes.is_open(steps):
        return in_float32(rows, *xs)
    if sizes.is_open(size) or size < LONG_ROW * steps or steps < 2:
        return in_float32(tree, *xs)
    return in_float32(partial(by_device, cpu=rows, default=tree), *xs)


lowers_by(
    {
        ops.Max: lambda op, x: lax.reduce_max(x, _axes(op, x)),
        ops.Min: lambda op, x: lax.reduce_min(x, _axes(op, x)),
        ops.All: lambda op, x: lax.reduce_and(x, _axes(op, x)),
        ops.Any: lambda op, x: lax.reduce_or(x, _axes(op, x)),
        ops.ArgMax: lambda op, x: _first(op, x, lax.reduce_max),
        ops.ArgMin: lambda op, x: _first(op, x, lax.reduce_min),
    }
)
