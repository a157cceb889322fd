"""Lowering of `tracegraph.ops.fourier`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lowering import sizes
from lowering.rules import lowers
from tracegraph.ops import fourier as ops


def _in_rows(y: Any) -> Any:
    """y in the layout that XLA's transforms on CPUs need. What comes behind, such as Cholesky's
    factor of LAPACK, or in front, such as what divides an axis, would give them its own, by
    columns, and the program could not run."""
    return jax.lax.optimization_barrier(y.reshape(-1)).reshape(y.shape)


@lowers(ops.Fft)
def _fft(op: ops.Fft, x: Any) -> Any:
    if 0 in x.shape:
        return x
    transform = jnp.fft.ifftn if op.inverse else jnp.fft.fftn
    return _in_rows(
        transform(_in_rows(x), axes=op.axes, norm="forward" if op.inverse else "backward")
    )


@lowers(ops.Rfft)
def _rfft(op: ops.Rfft, x: Any) -> Any:
    return _in_rows(jnp.fft.rfft(_in_rows(x)))


@lowers(ops.Irfft)
def _irfft(op: ops.Irfft, z: Any) -> Any:
    n: Any = sizes.size(op.size)
    return _in_rows(jnp.fft.irfft(_in_rows(z), n, norm="forward"))
