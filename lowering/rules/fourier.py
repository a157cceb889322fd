"""Lowering of `tracegraph.ops.fourier`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from lowering import sizes
from lowering.distribution.layout import mesh_of, whole
from lowering.rules import lowers
from tracegraph.ops import fourier as ops


def _in_rows(y: Any) -> Any:
    """y in the layout that XLA's transforms on CPUs need. What comes after, such as Cholesky's
    factor of LAPACK, or in front, such as what divides an axis, would give them its own, by
    columns, and the program could not run."""
    return jax.lax.optimization_barrier(y.reshape(-1)).reshape(y.shape)


def _along(x: Any, axes: Iterable[int]) -> Any:
    """x in rows, with these axes whole: parts of different sizes come from XLA's partitioner by
    columns again."""
    mesh = mesh_of(x)
    return _in_rows(x if mesh is None else whole(x, axes, mesh))


@lowers(ops.Fft)
def _fft(op: ops.Fft, x: Any) -> Any:
    if 0 in x.shape:
        return x
    transform = jnp.fft.ifftn if op.inverse else jnp.fft.fftn
    return _in_rows(
        transform(_along(x, op.axes), axes=op.axes, norm="forward" if op.inverse else "backward")
    )


@lowers(ops.Rfft)
def _rfft(op: ops.Rfft, x: Any) -> Any:
    return _in_rows(jnp.fft.rfft(_along(x, [x.ndim - 1])))


@lowers(ops.Irfft)
def _irfft(op: ops.Irfft, z: Any) -> Any:
    n: Any = sizes.size(op.size)
    return _in_rows(jnp.fft.irfft(_along(z, [z.ndim - 1]), n, norm="forward"))
