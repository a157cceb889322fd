"""Lowering of `tracegraph.ops.matrix_function`.

Logarithm and square root go by the Schur form, for which JAX has LAPACK, so on CPUs only.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import linalg

from lowering.rules import lowers
from tracegraph.ops import matrix_function as ops

#: Up to this norm the fraction of polynomials that stands for the exponential is exact.
_SMALL = 2.0
#: How near to the identity, and how many points of Gauss: as many as double precision needs.
_NEAR, _POINTS = 0.25, 8
#: After so many roots nothing but the identity is left of a matrix that has a logarithm.
_ROOTS = 100


@lowers(ops.Expm)
def _expm(op: ops.Expm, a: Any) -> Any:
    # JAX halves large matrices once less than it should, which costs half of the digits. So they
    # are halved here, and what it is given is small.
    def one(a: Any) -> Any:
        norm = jnp.max(jnp.sum(jnp.abs(a), axis=0), initial=0)
        halvings = jnp.clip(jnp.ceil(jnp.log2(norm / _SMALL)), 0, jnp.finfo(norm.dtype).maxexp)
        small = linalg.expm(a * jnp.exp2(-halvings).astype(a.dtype))
        times = jnp.where(jnp.isfinite(norm), halvings, 0).astype(jnp.int32)
        return lax.fori_loop(0, times, lambda _, y: jnp.matmul(y, y, precision="highest"), small)

    return _for_each_matrix(one)(a)


def _for_each_matrix(function: Any) -> Any:
    """A function of one matrix as a function of many."""
    return jnp.vectorize(function, signature="(n,n)->(n,n)")


@lowers(ops.Sqrtm)
def _sqrtm(op: ops.Sqrtm, a: Any) -> Any:
    y = _by_schur_form(_triangular_root, a)
    if jnp.iscomplexobj(a):
        return y
    rounding = jnp.finfo(a.dtype).eps ** 0.5 * jnp.max(jnp.abs(y), (-2, -1), keepdims=True)
    is_real = jnp.all(jnp.abs(jnp.imag(y)) <= rounding, (-2, -1), keepdims=True)
    return jnp.where(is_real, jnp.real(y), jnp.nan)


@lowers(ops.Logm)
def _logm(op: ops.Logm, a: Any) -> Any:
    return _by_schur_form(_triangular_logarithm, a)


def _by_schur_form(function: Any, a: Any) -> Any:
    """function(a) by that of the triangle t, where a = z t z^H."""
    dtype = jnp.result_type(a.dtype, jnp.complex64)
    if 0 in a.shape:
        return jnp.zeros(a.shape, dtype)
    t, z = lax.linalg.schur(a.astype(dtype))
    return z @ _for_each_matrix(function)(jnp.triu(t)) @ jnp.conj(jnp.swapaxes(z, -1, -2))


def _triangular_root(t: Any) -> Any:
    """The triangle u with u u = t, column by column: what stands above the diagonal of column j
    solves (u + u[j, j]) x = t[:, j]."""
    n = t.shape[-1]
    roots = jnp.sqrt(jnp.diagonal(t))
    rows, identity = jnp.arange(n), jnp.eye(n, dtype=t.dtype)

    def column(j: Any, u: Any) -> Any:
        is_above = rows < j
        sums = roots + roots[j]
        # Two eigenvalues of 0 have a root only where nothing stands between them: 0 / tiny is 0.
        sums = jnp.where(sums == 0, jnp.finfo(sums.dtype).tiny, sums)
        left = u + jnp.diag(sums - jnp.diagonal(u))
        left = jnp.where(is_above[:, None] & is_above, left, identity)
        x = linalg.solve_triangular(left, jnp.where(is_above, t[:, j], 0))
        return u.at[:, j].add(jnp.where(is_above, x, 0))

    return lax.fori_loop(1, n, column, jnp.diag(roots))


def _triangular_logarithm(t: Any) -> Any:
    """Of a root near the identity, log(1 + x) = integral of x / (1 + s x) over s from 0 to 1."""
    identity = jnp.eye(t.shape[-1], dtype=t.dtype)

    def is_far(state: Any) -> Any:
        root, count = state
        distance = jnp.max(jnp.sum(jnp.abs(root - identity), axis=0))
        return (distance > _NEAR) & (count < _ROOTS)

    def halved(state: Any) -> Any:
        root, count = state
        return _triangular_root(root), count + 1

    root, count = lax.while_loop(is_far, halved, (t, jnp.zeros((), jnp.int32)))
    x = root - identity
    places, weights = np.polynomial.legendre.leggauss(_POINTS)
    found = jnp.zeros_like(t)
    for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
        found += float(weight) * linalg.solve_triangular(identity + float(place) * x, x)
    whole = found * (2.0 ** count.astype(x.real.dtype)).astype(t.dtype)
    return whole - jnp.diag(jnp.diagonal(whole)) + jnp.diag(jnp.log(jnp.diagonal(t)))
