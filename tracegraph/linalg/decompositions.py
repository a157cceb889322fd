"""Decompositions of matrices, and functions of them.

Eigenvectors and singular vectors of equal values are not unique, and anything computed from them
has an infinite or nan derivative; the derivatives of the values themselves are correct.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_sizes,
    known_array,
    known_int,
    matrices,
    rank_of,
    refuse,
    square_matrices,
)
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut
from tracegraph.core.shapes import same_size
from tracegraph.core.types import as_dtype, int32, int64
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.parts import diag
from tracegraph.math.elementwise.unary import real
from tracegraph.operands.conversion import as_operands, cast_to
from tracegraph.ops.contract import MATMUL, adjoint as adjoint_of
from tracegraph.ops.decomposition import Eig, Eigh, Eigvalsh, Lu, Qr, SingularValues, Svd
from tracegraph.ops.elementwise import SELECT
from tracegraph.ops.linalg import in_triangle
from tracegraph.ops.matrix_function import Expm, Logm, Sqrtm
from tracegraph.typing import DTypeLike, TensorLike


class QRDecomposition(NamedTuple):
    """The result of `tg.linalg.qr`."""

    q: Tensor
    r: Tensor


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> QRDecomposition:
    """The QR decomposition: q with orthonormal columns, upper triangular r, and input = q r.

    For input[..., m, n] and k = min(m, n) the shapes are q[..., m, k] and r[..., k, n], or, if
    `full_matrices`, q[..., m, m] and r[..., m, n]. The columns of q that the input does not
    determine have no derivative; differentiating them is an error.

    >>> q, r = tg.linalg.qr([[3.0, 1.0], [4.0, 2.0]])
    >>> tg.abs(r).numpy().round(4)
    array([[5. , 2.2],
           [0. , 0.4]], dtype=float32)
    """
    x = matrices("qr", input)
    m, n = x.type.shape[-2:]
    is_full = as_flag("qr", "full_matrices", full_matrices)
    if not (known_int(m) and known_int(n) and m < n):
        return QRDecomposition(*Qr(is_full and m != n)(x))
    # The first columns determine q, and so the other columns of r.
    last = x.ndim - 1
    q, r = Qr(False)(cut(x, last, 0, m))
    return QRDecomposition(q, concat([r, MATMUL(adjoint_of(q), cut(x, last, m, n))], -1))


class Factors(NamedTuple):
    """The result of `tg.linalg.lu`."""

    lu: Tensor
    p: Tensor


def lu(input: TensorLike, output_idx_type: DTypeLike = int32, name: str | None = None) -> Factors:
    """The LU decomposition: l and u in one tensor, and a row permutation p, with input[p] = l u.

    The lower triangle l has a diagonal of ones, which is not stored. The shapes are those of
    input[..., n, n], and p[..., n] of dtype `output_idx_type`, int32 or int64. Use the factors with
    `tg.linalg.lu_solve`, `lu_matrix_inverse` and `lu_reconstruct`.

    >>> lu, p = tg.linalg.lu([[0.0, 2.0], [4.0, 0.0]])
    >>> lu.numpy(), p.numpy()
    (array([[4., 0.],
           [0., 2.]], dtype=float32), array([1, 0], dtype=int32))
    """
    factors, p = Lu()(matrices("lu", input))
    kind = as_dtype(output_idx_type)
    if kind not in (int32, int64):
        fail(DTypeError, f"lu: output_idx_type is {kind.name}", fix="use tg.int32 or tg.int64")
    return Factors(factors, cast_to(p, kind))


@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: Literal[True] = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    *,
    compute_uv: Literal[False],
    name: str | None = None,
) -> Tensor: ...
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> Any:
    """The singular value decomposition: tensor = u diag(s) v^H, with orthonormal columns of u and
    v.

    For tensor[..., m, n] and k = min(m, n) the shapes are s[..., k], real and descending,
    u[..., m, k] and v[..., n, k], or u[..., m, m] and v[..., n, n] if `full_matrices`.

    - `compute_uv`: if False, returns only s.

    The derivatives of u and v are infinite or nan if two singular values are equal, or if one is 0
    that is not the last of a square matrix. The derivative of s is correct except where s is 0.

    >>> s, u, v = tg.linalg.svd([[0.0, 2.0], [3.0, 0.0]])
    >>> s.numpy()
    array([3., 2.], dtype=float32)
    >>> (u @ tg.linalg.diag(s) @ tg.transpose(v)).numpy().round(4)
    array([[0., 2.],
           [3., 0.]], dtype=float32)
    """
    x = matrices("svd", tensor)
    is_full = as_flag("svd", "full_matrices", full_matrices)
    if not as_flag("svd", "compute_uv", compute_uv):
        return SingularValues()(x)
    m, n = x.type.shape[-2:]
    return Svd(is_full and m != n)(x)


def eigh(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues w[..., n], ascending, and eigenvectors v[..., :, i] of Hermitian matrices.

    Both have the dtype of the matrices, though eigenvalues are real. Only the lower triangle of
    tensor[..., n, n] is read, and so only it gets a derivative. If two eigenvalues are equal, the
    derivative of the eigenvectors is infinite or nan.

    >>> w, v = tg.linalg.eigh([[2.0, 0.0], [1.0, 2.0]])
    >>> w.numpy().round(4)
    array([1., 3.], dtype=float32)
    """
    w, v = Eigh()(_hermitian("eigh", tensor))
    return cast_to(w, v.dtype), v


def eigvalsh(tensor: TensorLike, name: str | None = None) -> Tensor:
    """The eigenvalues of Hermitian matrices, ascending; see `tg.linalg.eigh`.

    >>> tg.linalg.eigvalsh([[2.0, 0.0], [1.0, 2.0]]).numpy().round(4)
    array([1., 3.], dtype=float32)
    """
    x = _hermitian("eigvalsh", tensor)
    return cast_to(Eigvalsh()(x), x.dtype)


def _hermitian(op: str, tensor: Any) -> Tensor:
    """Hermitian matrices from their lower triangles."""
    x = square_matrices(op, tensor)
    return SELECT(in_triangle(x, True), x, adjoint_of(x))


def eig(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Complex eigenvalues w[..., n], in no particular order, and eigenvectors v[..., :, i].

    The tensor[..., n, n] may be real; w and v are complex64, or complex128 for double precision.
    Each eigenvector has norm 1, and its largest element is real; where that changes sign or
    position, or two eigenvalues are equal, it has no derivative. JAX supports this on CPUs only.

    >>> w, v = tg.linalg.eig([[0.0, -1.0], [1.0, 0.0]])
    >>> sorted(w.numpy().imag.tolist())
    [-1.0, 1.0]
    """
    return Eig()(matrices("eig", tensor))


def eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """The complex eigenvalues of each matrix, in no particular order; see `tg.linalg.eig`.

    >>> tg.linalg.eigvals([[2.0, 5.0], [0.0, 2.0]]).numpy()
    array([2.+0.j, 2.+0.j], dtype=complex64)
    """
    return Eig()(matrices("eigvals", tensor))[0]


@overload
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: Literal[True] = ...,
    select: str = ...,
    select_range: object = ...,
    tol: TensorLike | None = ...,
    name: str | None = ...,
) -> Tensor: ...
@overload
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: Literal[False],
    select: str = ...,
    select_range: object = ...,
    tol: TensorLike | None = ...,
    name: str | None = ...,
) -> tuple[Tensor, Tensor]: ...
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: bool = True,
    select: str = "a",
    select_range: object = None,
    tol: TensorLike | None = None,
    name: str | None = None,
) -> Any:
    """Eigenvalues of a Hermitian tridiagonal matrix, ascending, and optionally eigenvectors.

    - `alpha`: the main diagonal [n], of which only the real part counts.
    - `beta`: the diagonal above it [n - 1]; the one below is its conjugate.
    - `eigvals_only`: if False, returns the pair (w, v); see `tg.linalg.eigh`.
    - `select`: "a" for all; "i" for those from `select_range[0]` to `select_range[1]`, counted from
      0, both included; "v" for those in the interval (select_range[0], select_range[1]], where
      the eigenvalues must be known while tracing.
    - `tol`: has no effect: eigenvalues are always exact up to rounding.

    The dense matrix is built, so n should not exceed a few thousand. Raises ShapeError if the
    diagonals or the range do not fit, ValueError for an unknown `select`.

    >>> tg.linalg.eigh_tridiagonal([2.0, 2.0], [1.0]).numpy().round(4)
    array([1., 3.], dtype=float32)
    """
    op = "eigh_tridiagonal"
    select = as_choice(op, "select", select, ("a", "i", "v"))
    a, b = as_operands(op, alpha, beta)
    are_vectors = rank_of(op, a) == 1 and rank_of(op, b) == 1
    if not are_vectors or same_size(b.type.shape[0], a.type.shape[0] - 1) is None:
        fact = f"the diagonals are {a.type} and {b.type}"
        refuse(op, fact, a, b, fix="give vectors of n and of n - 1 elements")
    whole = diag(a)
    if b.type.shape[0] != 0:
        below = diag(adjoint_of(b[None])[:, 0] if b.dtype.is_complex else b, k=-1)  # type: ignore[index]
        whole = whole + below  # type: ignore[operator]
    w, v = (
        (eigvalsh(whole), None)
        if as_flag("eigh_tridiagonal", "eigvals_only", eigvals_only)
        else eigh(whole)
    )
    w = real(w)
    first, last = _selected(op, select, select_range, w)
    w = w if first is None else cut(w, 0, first, last)
    if v is None:
        return w
    return w, v if first is None else cut(v, 1, first, last)


def _selected(op: str, select: str, limits: Any, w: Tensor) -> Any:
    """The range of the selected eigenvalues: the first, and the end, which is excluded."""
    if select == "a":
        return None, None
    if not isinstance(limits, (list, tuple, np.ndarray)) or len(limits) != 2:
        refuse(op, f"select_range is {limits!r}", w, fix="give the pair (lowest, highest)")
    if select == "v":
        values = known_array(op, w, 'use select="i", or select="a" and a mask')
        first, last = np.searchsorted(values, np.asarray(limits, values.dtype), side="right")
        return int(first), int(last)
    first, last = as_sizes(op, "select_range", limits)
    count = w.type.shape[0]
    if known_int(count) and not 0 <= first <= last < count:
        fix = f"give numbers from 0 to {count - 1}, the lower one first"
        refuse(op, f"there are no eigenvalues {first} to {last} of {count}", w, fix=fix)
    return first, last + 1


def expm(input: TensorLike, name: str | None = None) -> Tensor:
    """The exponential of each matrix: 1 + x + x x / 2 + x x x / 6 + ...

    >>> tg.linalg.expm([[0.0, 1.0], [0.0, 0.0]]).numpy()
    array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    return Expm()(matrices("expm", input))


def logm(input: TensorLike, name: str | None = None) -> Tensor:
    """The logarithm y of each complex matrix, with expm(y) = input.

    The imaginary parts of its eigenvalues are in (-pi, pi]. A singular matrix has no logarithm: the
    elements are infinite or nan. JAX supports this on CPUs only. Raises DTypeError for a real
    tensor.

    >>> tg.linalg.logm(tg.constant([[1.0, 1.0], [0.0, 1.0]], tg.complex64)).numpy().real.round(4)
    array([[0., 1.],
           [0., 0.]], dtype=float32)
    """
    return Logm()(matrices("logm", input))


def sqrtm(input: TensorLike, name: str | None = None) -> Tensor:
    """The square root y of each matrix, with y y = input.

    It is the principal root, whose eigenvalues have no negative real part. The root of a real
    matrix is real, and nan if an eigenvalue is negative; convert the matrix to a complex dtype for
    another root. The derivative is infinite where an eigenvalue is 0. JAX supports this on CPUs
    only.

    >>> tg.linalg.sqrtm([[4.0, 1.0], [0.0, 4.0]]).numpy()
    array([[2.  , 0.25],
           [0.  , 2.  ]], dtype=float32)
    """
    return Sqrtm()(matrices("sqrtm", input))


__all__ = [
    "eig",
    "eigh",
    "eigh_tridiagonal",
    "eigvals",
    "eigvalsh",
    "expm",
    "logm",
    "lu",
    "qr",
    "sqrtm",
    "svd",
]
