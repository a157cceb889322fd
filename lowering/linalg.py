"""Lowering of `tracegraph.ops.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import lu_factor, lu_solve

from lowering.rules import lowers
from tracegraph.ops import linalg as ops


@lowers(ops.Solve)
def _solve(op: ops.Solve, a: Any, b: Any) -> Any:
    # Both directions use the factors of `a` itself, so that XLA computes them once for a result
    # and its gradient.
    return lu_solve(lu_factor(a), b, trans=2 if op.adjoint else 0)


@lowers(ops.TriangularSolve)
def _triangular_solve(op: ops.TriangularSolve, a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=op.lower,
        transpose_a=op.adjoint,
        conjugate_a=op.adjoint,
    )


@lowers(ops.Det)
def _det(op: ops.Det, a: Any) -> Any:
    return jnp.linalg.det(a)


@lowers(ops.Slogdet)
def _slogdet(op: ops.Slogdet, a: Any) -> Any:
    return tuple(jnp.linalg.slogdet(a))


@lowers(ops.Cholesky)
def _cholesky(op: ops.Cholesky, a: Any) -> Any:
    return lax.linalg.cholesky(a, symmetrize_input=True)
