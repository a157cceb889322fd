"""Lowering of `tracegraph.ops.shape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import mesh_of, whole
from lowering.rules import lowers, lowers_by
from tracegraph.ops import shape as ops


@lowers(ops.EnsureShape)
def _ensure_shape(op: ops.EnsureShape, x: Any) -> Any:
    wanted = sizes.shape(op.shape)
    if tuple(x.shape) != wanted:  # sizes that are known were checked when the graph was specialised
        raise ValueError(f"{list(x.shape)} is taken to be {list(wanted)}, which may differ")
    apart = sizes.shape(op.apart)
    for left, right in zip(apart[::2], apart[1::2], strict=True):
        if not sizes.differ(left, right):
            raise ValueError(f"the sizes {left} and {right} are taken to differ, and may be equal")
    return x


@lowers(ops.Slice)
def _slice(op: ops.Slice, x: Any) -> Any:
    around = [*map(_easy_to_divide, sizes.shape(op.start), sizes.shape(op.stop), op.stride)]
    return lax.slice(x, *zip(*around, strict=True)) if around else x


def _easy_to_divide(start: Any, stop: Any, stride: int) -> tuple[Any, Any, int]:
    """The same elements of an axis; one alone has no stride, since XLA's partitioner refuses to
    divide an axis with another stride than 1 then."""
    is_known = not (sizes.is_open(start) or sizes.is_open(stop))
    is_alone = stride > 1 and is_known and start < stop <= start + stride
    return (start, start + 1, 1) if is_alone else (start, stop, stride)


@lowers(ops.Pad)
def _pad(op: ops.Pad, x: Any, value: Any) -> Any:
    before, after = sizes.shape(op.before), sizes.shape(op.after)
    return padded(x, value, tuple(zip(before, after, op.interior, strict=True)))


def padded(x: Any, value: Any, around: Sequence[tuple[Any, Any, int]]) -> Any:
    """JAX's `pad`. Where XLA's partitioner divides an axis that is cut, it ends the process; where
    it divides one that gets gaps, it refuses some programs, and in others puts elements in wrong
    places. It also takes one pad for another that has the same operand and sizes and a different
    value, so all pads have zeros, in whose places the value is written."""
    mesh = mesh_of(x)
    if mesh is None:
        return lax.pad(x, value, around)
    hard = [
        axis
        for axis, (low, high, gap) in enumerate(around)
        if gap or _may_cut(low) or _may_cut(high)
    ]
    y = lax.pad(whole(x, hard, mesh) if hard else x, jnp.zeros((), x.dtype), around)
    for axis, (low, high, gap) in enumerate(around):
        if (low, high, gap) != (0, 0, 0):
            is_old = lax.pad(jnp.ones(x.shape[axis], jnp.bool_), False, [(low, high, gap)])
            is_old = lax.broadcast_in_dim(is_old, y.shape, [axis])
            y = lax.select(is_old, y, jnp.broadcast_to(value, y.shape))
    return whole(y, hard, mesh) if hard else y


def _may_cut(size: Any) -> bool:
    return sizes.is_open(size) or size < 0


lowers_by(
    {
        ops.Reshape: lambda op, x: lax.reshape(x, sizes.shape(op.shape)),
        ops.Transpose: lambda op, x: lax.transpose(x, op.perm),
        ops.Concatenate: lambda op, *xs: lax.concatenate(xs, op.axis),
        ops.Reverse: lambda op, x: lax.rev(x, op.axes),
    }
)
