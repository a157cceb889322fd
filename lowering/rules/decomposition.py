"""Lowering of `tracegraph.ops.decomposition`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.rules import lowers, lowers_by
from tracegraph.ops import decomposition as ops


def _transposed(a: Any) -> Any:
    return jnp.swapaxes(a, -1, -2)


@lowers(ops.Lu)
def _lu(op: ops.Lu, a: Any) -> Any:
    factors, _, p = lax.linalg.lu(a)
    return factors, p


@lowers(ops.Svd)
def _svd(op: ops.Svd, a: Any) -> Any:
    u, s, vh = lax.linalg.svd(a, full_matrices=op.full_matrices)
    return s, u, jnp.conj(_transposed(vh))


@lowers(ops.Eigh)
def _eigh(op: ops.Eigh, a: Any) -> Any:
    v, w = lax.linalg.eigh(a)
    return w, v


@lowers(ops.Eig)
def _eig(op: ops.Eig, a: Any) -> Any:
    # The derivatives are wanted where JAX differentiates the lowered function, as tests do.
    return tuple(lax.linalg.eig(a, compute_left_eigenvectors=False, enable_eigvec_derivs=True))


lowers_by(
    {
        ops.Qr: lambda op, a: tuple(lax.linalg.qr(a, full_matrices=op.full_matrices)),
        ops.SingularValues: lambda op, a: lax.linalg.svd(a, full_matrices=False, compute_uv=False),
        ops.Eigvalsh: lambda op, a: jnp.linalg.eigvalsh(a, symmetrize_input=True),
        ops.Pinv: lambda op, a, cutoff: jnp.linalg.pinv(a, rtol=lax.stop_gradient(cutoff)),
    }
)
