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
