"""Lowering of `tracegraph.ops.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import lu_factor, lu_solve

from lowering import sizes
from lowering.rules import lowers, lowers_by
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


@lowers(ops.TridiagonalSolve)
def _tridiagonal_solve(
    op: ops.TridiagonalSolve, lower: Any, middle: Any, upper: Any, b: Any
) -> Any:
    if 0 in b.shape:
        return b
    first = jnp.arange(lower.shape[-1]) == 0
    lower, upper = jnp.where(first, 0, lower), jnp.where(first[::-1], 0, upper)
    return lax.linalg.tridiagonal_solve(
        lower, middle, upper, b, perturb_singular=op.perturb_singular
    )


@lowers(ops.Cofactor)
def _cofactor(op: ops.Cofactor, a: Any) -> Any:
    if not sizes.is_open(a.shape[-1]) and a.shape[-1] in _POLYNOMIALS:
        return _POLYNOMIALS[a.shape[-1]](a)
    factors = lu_factor(a)  # those of the determinant: XLA computes them once
    det = jnp.linalg.det(a)[..., None, None]

    def regular(a: Any) -> Any:
        return lu_solve(factors, jnp.eye(a.shape[-1], dtype=a.dtype) * det, trans=1)

    if sizes.is_open(a.shape[-1]) or 0 in a.shape:
        return regular(a)
    return lax.cond(_is_regular(factors[0]), regular, _by_singular_values, a)


#: Cofactors of small matrices. JAX computes their determinants as polynomials too, which is not the
#: product of the pivots where the matrix is nearly singular.
_POLYNOMIALS = {
    1: jnp.ones_like,
    2: lambda a: jnp.flip(a, (-2, -1)) * jnp.asarray([[1, -1], [-1, 1]], a.dtype),
    3: lambda a: jnp.cross(jnp.roll(a, -1, -2), jnp.roll(a, -2, -2)),
}


def _is_regular(factors: Any) -> Any:
    """Whether no pivot of any matrix is lost in the rounding errors of the largest one."""
    pivots = jnp.abs(jnp.diagonal(factors, axis1=-2, axis2=-1))
    noise = factors.shape[-1] * jnp.finfo(pivots.dtype).eps * jnp.max(pivots, -1, keepdims=True)
    return jnp.all(pivots > noise)


def _by_singular_values(a: Any) -> Any:
    """The cofactors of matrices of any rank: a = u s v^H, and those of s are products."""
    u, s, vh, turn = _singular(a)
    inverse = jnp.where(s == 0, 0, 1 / s)[..., :-1]  # a product without a 0 before the last is 0
    last = jnp.prod(s[..., :-1], axis=-1, keepdims=True)
    others = jnp.concatenate([last * s[..., -1:] * inverse, last], axis=-1)
    return turn * (jnp.conj(u) * others[..., None, :]) @ jnp.conj(vh)


def _singular(a: Any) -> tuple[Any, Any, Any, Any]:
    """u, s, v^H, and det(u) det(v^H) with axes of size 1."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    turn = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return u, s.astype(a.dtype), vh, turn[..., None, None]


@lowers(ops.CofactorAlong)
def _cofactor_along(op: ops.CofactorAlong, a: Any, e: Any) -> Any:
    n = a.shape[-1]
    if not sizes.is_open(n) and n < 2:
        return jnp.zeros_like(a)  # the only cofactor is 1
    u, s, vh, turn = _singular(a)
    turned = jnp.conj(jnp.swapaxes(u, -1, -2)) @ e @ jnp.conj(jnp.swapaxes(vh, -1, -2))
    pairs = _products_without_two(s)
    along = jnp.diagonal(turned, axis1=-2, axis2=-1)
    trace = (pairs @ along[..., None])[..., 0]
    found = jnp.eye(n, dtype=a.dtype) * trace[..., None, :] - pairs * turned
    return turn * jnp.conj(u) @ jnp.swapaxes(found, -1, -2) @ jnp.conj(vh)


def _products_without_two(s: Any) -> Any:
    """For each pair i, j the product of all s but s[i] and s[j]; 0 where i = j.

    The values decrease, so what is 0 stands last, and all but the last two may be divided by.
    """
    first, second, last = s[..., :-2], s[..., -2:-1], s[..., -1:]
    inverse = jnp.where(first == 0, 0, 1 / first)
    whole = jnp.prod(first, axis=-1, keepdims=True)
    both = second * last * whole
    corner = both[..., None] * inverse[..., :, None] * inverse[..., None, :]
    corner = jnp.where(jnp.eye(first.shape[-1], dtype=bool), 0, corner)
    sides = jnp.stack([last * whole * inverse, second * whole * inverse], axis=-1)
    zero = jnp.zeros_like(whole)
    ends = jnp.stack(
        [jnp.concatenate([zero, whole], axis=-1), jnp.concatenate([whole, zero], axis=-1)], axis=-2
    )
    upper = jnp.concatenate([corner, sides], axis=-1)
    lower = jnp.concatenate([jnp.swapaxes(sides, -1, -2), ends], axis=-1)
    return jnp.concatenate([upper, lower], axis=-2)


lowers_by(
    {
        ops.Det: lambda op, a: jnp.linalg.det(a),
        ops.Slogdet: lambda op, a: tuple(jnp.linalg.slogdet(a)),
        ops.Cholesky: lambda op, a: lax.linalg.cholesky(a, symmetrize_input=True),
    }
)
