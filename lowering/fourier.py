"""Lowering of `tracegraph.ops.fourier`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lowering import sizes
from lowering.rules import lowers
from tracegraph.ops import fourier as ops


@lowers(ops.Fft)
def _fft(op: ops.Fft, x: Any) -> Any:
    if 0 in x.shape:
        return x
    transform = jnp.fft.ifftn if op.inverse else jnp.fft.fftn
    return transform(x, axes=op.axes, norm="forward" if op.inverse else "backward")


@lowers(ops.Rfft)
def _rfft(op: ops.Rfft, x: Any) -> Any:
    return jnp.fft.rfft(x)


@lowers(ops.Irfft)
def _irfft(op: ops.Irfft, z: Any) -> Any:
    n: Any = sizes.size(op.size)
    return jnp.fft.irfft(z, n, norm="forward")
