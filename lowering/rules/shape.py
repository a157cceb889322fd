"""Lowering of `tracegraph.ops.shape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from lowering import sizes
from lowering.layout import mesh_of, whole
from lowering.rules import lowers
from tracegraph.ops import shape as ops


@lowers(ops.Reshape)
def _reshape(op: ops.Reshape, x: Any) -> Any:
    return lax.reshape(x, sizes.shape(op.shape))


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


@lowers(ops.Transpose)
def _transpose(op: ops.Transpose, x: Any) -> Any:
    return lax.transpose(x, op.perm)


@lowers(ops.Slice)
def _slice(op: ops.Slice, x: Any) -> Any:
    return lax.slice(x, sizes.shape(op.start), sizes.shape(op.stop), op.stride)


@lowers(ops.Pad)
def _pad(op: ops.Pad, x: Any, value: Any) -> Any:
    before, after = sizes.shape(op.before), sizes.shape(op.after)
    return padded(x, value, tuple(zip(before, after, op.interior, strict=True)))


def padded(x: Any, value: Any, around: Sequence[tuple[Any, Any, int]]) -> Any:
    """JAX's `pad`. XLA's partitioner ends the process where it divides an axis that is cut."""
    cut = [axis for axis, (low, high, _) in enumerate(around) if _cuts(low) or _cuts(high)]
    mesh = mesh_of(x) if cut else None
    if mesh is None:
        return lax.pad(x, value, around)
    return whole(lax.pad(whole(x, cut, mesh), value, around), cut, mesh)


def _cuts(size: Any) -> bool:
    return sizes.is_open(size) or size < 0


@lowers(ops.Concatenate)
def _concatenate(op: ops.Concatenate, *xs: Any) -> Any:
    return lax.concatenate(xs, op.axis)


@lowers(ops.Reverse)
def _reverse(op: ops.Reverse, x: Any) -> Any:
    return lax.rev(x, op.axes)
