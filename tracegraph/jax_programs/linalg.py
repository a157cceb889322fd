"""JAX primitives for matrices and Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import Equation, converts
from tracegraph.ops import decomposition, fourier, linalg
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.contract import conjugate, swap_last
from tracegraph.ops.elementwise import SELECT


@converts("cholesky")
def _cholesky(eqn: Equation, a: Tensor) -> Tensor:
    return linalg.Cholesky()(_of_triangle(eqn, a, lower=True))


def _of_triangle(eqn: Equation, a: Tensor, lower: bool) -> Tensor:
    """The Hermitian matrix with this triangle: JAX ignores the other one."""

    def mirrored(a: Any) -> Any:
        rows, columns = (lax.broadcasted_iota(int, a.shape, a.ndim - k) for k in (2, 1))
        is_read = rows >= columns if lower else rows <= columns
        return jnp.where(is_read, a, jnp.conj(jnp.swapaxes(a, -1, -2)))

    (found,) = eqn.expanded(mirrored, a)
    return found


@converts("triangular_solve")
def _triangular_solve(eqn: Equation, a: Tensor, b: Tensor) -> Tensor:
    params = eqn.params
    if not params["left_side"]:  # y a = b is a^T y^T = b^T
        b = swap_last(b)
    transposed = params["transpose_a"] == params["left_side"]
    lower = params["lower"]
    conjugated = params["conjugate_a"]
    if params["unit_diagonal"]:
        a = SELECT(linalg.on_diagonal(a), full_like(a, 1), a)
    if conjugated != transposed:
        a = conjugate(a)
    y = linalg.TriangularSolve(transposed, lower)(a, b)
    return y if params["left_side"] else swap_last(y)


@converts("lu")
def _lu(eqn: Equation, a: Tensor) -> Any:
    factors, order = decomposition.Lu()(a)
    (pivots,) = eqn.expanded(_pivots, order, like=[eqn.eqn.outvars[2]])
    return factors, pivots, order


def _pivots(order: Any) -> Any:
    """The row exchanges that produce an order: step k exchanges rows k and pivots[k]."""
    lead, n = order.shape[:-1], order.shape[-1]

    def of_one(order: Any) -> Any:
        def step(rows: Any, k: Any) -> Any:
            place = jnp.argmax(rows == order[k]).astype(order.dtype)
            return rows.at[place].set(rows[k]).at[k].set(order[k]), place

        return lax.scan(step, jnp.arange(n, dtype=order.dtype), jnp.arange(n))[1]

    return jnp.reshape(jax.vmap(of_one)(jnp.reshape(order, (-1, n))), (*lead, n))


@converts("lu_pivots_to_permutation")
def _lu_pivots_to_permutation(eqn: Equation, pivots: Tensor) -> Any:
    size = eqn.params["permutation_size"]

    def order(pivots: Any) -> Any:
        lead = pivots.shape[:-1]

        def of_one(pivots: Any) -> Any:
            def exchange(rows: Any, row: Any) -> Any:
                k, place = row
                return rows.at[k].set(rows[place]).at[place].set(rows[k]), None

            steps = jnp.arange(pivots.shape[0], dtype=pivots.dtype), pivots
            return lax.scan(exchange, jnp.arange(size, dtype=pivots.dtype), steps)[0]

        rows = jnp.reshape(pivots, (-1, pivots.shape[-1]))
        return jnp.reshape(jax.vmap(of_one)(rows), (*lead, size))

    return eqn.expanded(order, pivots)


@converts("eigh")
def _eigh(eqn: Equation, a: Tensor) -> Any:
    w, v = decomposition.Eigh()(_of_triangle(eqn, a, bool(eqn.params["lower"])))
    return v, w


@converts("qr")
def _qr(eqn: Equation, a: Tensor) -> Any:
    if eqn.params.get("pivoting"):
        eqn.refuse("qr with pivoting has no counterpart", "use jnp.linalg.qr")
    return decomposition.Qr(bool(eqn.params["full_matrices"]))(a)


@converts("geqrf")
def _geqrf(eqn: Equation, a: Tensor) -> Any:
    return eqn.expanded(_of_matrices(_reflections), a)


@converts("householder_product")
def _householder_product(eqn: Equation, a: Tensor, taus: Tensor) -> Any:
    def product(a: Any, taus: Any) -> Any:
        return _reflected(a, taus, jnp.eye(*a.shape, dtype=a.dtype), is_adjoint=False)

    return eqn.expanded(_of_matrices(product), a, taus)


@converts("ormqr")
def _ormqr(eqn: Equation, a: Tensor, taus: Tensor, c: Tensor) -> Any:
    is_left, is_adjoint = bool(eqn.params["left"]), bool(eqn.params["transpose"])

    def applied(a: Any, taus: Any, c: Any) -> Any:
        if is_left:
            return _reflected(a, taus, c, is_adjoint)
        return _reflected(a, taus, c.conj().T, not is_adjoint).conj().T  # c q = (q^H c^H)^H

    return eqn.expanded(_of_matrices(applied), a, taus, c)


def _of_matrices(function: Any) -> Any:
    """A function of single matrices and vectors, mapped over the axes in front of theirs."""

    def of_all(*xs: Any) -> Any:
        mapped = function
        for _ in range(xs[0].ndim - 2):
            mapped = jax.vmap(mapped)
        return mapped(*xs)

    return of_all


def _reflections(a: Any) -> Any:
    """LAPACK's form of a QR decomposition: R, below it the vectors of the reflections
    I - tau v v^H, whose first elements are 1, and the taus."""
    rows = jnp.arange(a.shape[0])

    def step(a: Any, k: Any) -> Any:
        column, alpha = a[:, k], a[k, k]
        rest = jnp.where(rows > k, column, 0)
        norm = jnp.sqrt(jnp.sum(jnp.abs(rest) ** 2) + jnp.abs(alpha) ** 2)
        beta = jnp.where(alpha.real < 0, norm, -norm).astype(a.dtype)
        is_done = jnp.all(rest == 0) & (alpha.imag == 0)
        tau = jnp.where(is_done, 0, (beta - alpha) / jnp.where(is_done, 1, beta))
        v = jnp.where(rows == k, 1, rest / jnp.where(is_done, 1, alpha - beta))
        changed = a - jnp.conj(tau) * jnp.outer(v, v.conj() @ a)
        a = jnp.where(jnp.arange(a.shape[1]) > k, changed, a)
        made = jnp.where(rows == k, jnp.where(is_done, alpha, beta), jnp.where(rows > k, v, column))
        return a.at[:, k].set(made), tau

    return lax.scan(step, a, jnp.arange(min(a.shape)))


def _reflected(a: Any, taus: Any, c: Any, is_adjoint: bool) -> Any:
    """q c, or q^H c, where q is the product of the reflections that the columns of a hold."""
    rows = jnp.arange(a.shape[0])

    def step(c: Any, row: Any) -> Any:
        k, tau = row
        v = jnp.where(rows > k, a[:, k], 0).at[k].set(1)
        return c - (jnp.conj(tau) if is_adjoint else tau) * jnp.outer(v, v.conj() @ c), None

    steps = jnp.arange(taus.shape[0]), taus
    return lax.scan(step, c, steps, reverse=not is_adjoint)[0]


@converts("tridiagonal_solve")
def _tridiagonal_solve(eqn: Equation, below: Tensor, d: Tensor, above: Tensor, b: Tensor) -> Tensor:
    perturbs = bool(eqn.params.get("perturb_singular"))
    return linalg.TridiagonalSolve(perturbs)(below, d, above, b)


@converts("svd")
def _svd(eqn: Equation, a: Tensor) -> Any:
    if not eqn.params["compute_uv"]:
        return decomposition.SINGULAR_VALUES(a)
    s, u, v = decomposition.Svd(bool(eqn.params["full_matrices"]))(a)
    return s, u, conjugate(swap_last(v))


@converts("fft")
def _fft(eqn: Equation, x: Tensor) -> Tensor:
    kind, lengths = eqn.params["fft_type"].name, eqn.params["fft_lengths"]
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    if kind == "FFT":
        return fourier.Fft(axes, False)(x)
    if kind == "RFFT":
        y = fourier.Rfft()(x)
        return fourier.Fft(axes[:-1], False)(y) if len(axes) > 1 else y
    count = 1
    for size in lengths:
        count *= size
    if kind == "IFFT":
        y = fourier.Fft(axes, True)(x)
    else:
        y = fourier.Fft(axes[:-1], True)(x) if len(axes) > 1 else x
        y = fourier.Irfft(lengths[-1])(y)
    return y * full_like(y, 1 / count)
