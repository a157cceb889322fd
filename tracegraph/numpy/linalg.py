"""The extension `linalg` of the array API standard: `tg.linalg` under its names."""

from __future__ import annotations

import math as python_math
from typing import NamedTuple

from tracegraph import array, linalg, math
from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_flag,
    as_size,
    known_int,
    matrices,
    rank_of,
    refuse,
)
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.systems import rounding
from tracegraph.math.product import vector_product
from tracegraph.math.reduction import norm_of_order
from tracegraph.numpy.data_types import sum_type
from tracegraph.numpy.manipulation import matrix_transpose, moveaxis
from tracegraph.numpy.statistics import sum as sum_of
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to
from tracegraph.typing import Axis, AxisPairs, DTypeLike, TensorLike

det = linalg.det


class Eigh(NamedTuple):
    """The result of `eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """The result of `qr`."""

    Q: Tensor
    R: Tensor


class Slogdet(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor


class SVD(NamedTuple):
    """The result of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def matmul(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The product of matrices in the last two axes. A vector is a row on the left and a column on
    the right, and its extra axis is dropped.

    >>> tg.numpy.matmul([[1, 2], [3, 4]], [1, 1]).numpy()
    array([3, 7], dtype=int32)
    """
    a, b = as_operands("matmul", x1, x2)
    return cast_to(vector_product(a, b, sum_type(a.dtype)), a.dtype)


def vecdot(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1) -> Tensor:
    """The sum of conj(x1) * x2 along an axis.

    >>> tg.numpy.vecdot([1.0, 2.0], [3.0, 4.0]).numpy()
    np.float32(11.0)
    """
    x, y = as_operands("vecdot", x1, x2)
    rank = max(rank_of("vecdot", x), rank_of("vecdot", y))
    products = math.multiply(math.conj(x) if x.dtype.is_complex else x, y)
    return math.reduce_sum(products, as_axis("vecdot", axis, rank, x, y))


def tensordot(x1: TensorLike, x2: TensorLike, /, *, axes: AxisPairs = 2) -> Tensor:
    """The sum of products over pairs of axes; see `tg.tensordot`."""
    x, y = as_operands("tensordot", x1, x2)
    wide = sum_type(x.dtype)
    return cast_to(math.tensordot(cast_to(x, wide), cast_to(y, wide), axes), x.dtype)


def outer(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """y[i, j] = x1[i] * x2[j]

    >>> tg.numpy.linalg.outer([1, 2], [3, 4]).numpy()
    array([[3, 4],
           [6, 8]], dtype=int32)
    """
    x, y = as_operands("outer", x1, x2)
    for operand in (x, y):
        if rank_of("outer", operand) != 1:
            refuse("outer", f"{operand.type} is not a vector", operand, fix="flatten it")
    return math.multiply(x[:, None], y[None])


def cross(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1) -> Tensor:
    """The cross product of 3-vectors along an axis; the other axes broadcast.

    >>> tg.numpy.linalg.cross([1, 0, 0], [0, 1, 0]).numpy()
    array([0, 0, 1], dtype=int32)
    """
    x, y = as_operands("cross", x1, x2)
    wide = sum_type(x.dtype)
    first, second = (cast_to(moveaxis(v, axis, -1), wide) for v in (x, y))
    return cast_to(moveaxis(linalg.cross(first, second), -1, axis), x.dtype)


def cholesky(x: TensorLike, /, *, upper: bool = False) -> Tensor:
    """The lower triangle y with y y^H = x, or the upper one with y^H y = x; see
    `tg.linalg.cholesky`."""
    lower = linalg.cholesky(x)
    return linalg.adjoint(lower) if as_flag("cholesky", "upper", upper) else lower


def inv(x: TensorLike, /) -> Tensor:
    """The inverse of each matrix."""
    return linalg.inv(x)


def pinv(x: TensorLike, /, *, rtol: TensorLike | None = None) -> Tensor:
    """The pseudo-inverse of each matrix; singular values up to `rtol` times the largest count as 0.

    By default `rtol` is the larger size of the matrix times the machine epsilon.
    """
    x = matrices("pinv", x)
    return linalg.pinv(x, rounding("pinv", x) if rtol is None else _of_real(rtol, x))


def _of_real(number: TensorLike, x: Tensor) -> Tensor:
    """A number, or one for each matrix of x, in the dtype of their absolute values."""
    return cast_to(as_tensor(number), x.dtype.real)


def matrix_rank(x: TensorLike, /, *, rtol: TensorLike | None = None) -> Tensor:
    """The number of singular values of each matrix above `rtol` times the largest; see `pinv`."""
    if rtol is None:
        return linalg.matrix_rank(x)
    x = matrices("matrix_rank", x)
    largest = math.reduce_max(svdvals(x), -1)
    limit = math.multiply(largest, _of_real(rtol, x))
    return linalg.matrix_rank(x, array.expand_dims(limit, -1))


def solve(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Solves x1 y = x2 for y, with columns x2[..., n, k] or one vector x2[n].

    >>> tg.numpy.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).numpy()
    array([1. , 0.5], dtype=float32)
    """
    a, b = as_operands("solve", x1, x2)
    if rank_of("solve", b) == 1:
        return linalg.solve(a, b[:, None])[..., 0]
    return linalg.solve(a, b)


def eigh(x: TensorLike, /) -> Eigh:
    """Real eigenvalues, ascending, and eigenvectors of Hermitian matrices; see `tg.linalg.eigh`."""
    values, vectors = linalg.eigh(x)
    return Eigh(math.real(values), vectors)


def eigvalsh(x: TensorLike, /) -> Tensor:
    """The real eigenvalues of Hermitian matrices, ascending; see `tg.linalg.eigh`."""
    return math.real(linalg.eigvalsh(x))


def qr(x: TensorLike, /, *, mode: str = "reduced") -> QR:
    """The QR decomposition x = Q R, with orthonormal columns of Q and upper triangular R; Q is
    square if `mode` is "complete". See `tg.linalg.qr`."""
    as_choice("qr", "mode", mode, ("reduced", "complete"))
    return QR(*linalg.qr(x, full_matrices=mode == "complete"))


def slogdet(x: TensorLike, /) -> Slogdet:
    """The sign of each determinant, and the real logarithm of its absolute value."""
    sign, logarithm = linalg.slogdet(x)
    return Slogdet(sign, math.real(logarithm) if logarithm.dtype.is_complex else logarithm)


def svd(x: TensorLike, /, *, full_matrices: bool = True) -> SVD:
    """The singular value decomposition x = U diag(S) Vh, S descending; see `tg.linalg.svd`.

    >>> tg.numpy.linalg.svd([[0.0, 2.0], [3.0, 0.0]]).S.numpy()
    array([3., 2.], dtype=float32)
    """
    s, u, v = linalg.svd(x, full_matrices=as_flag("svd", "full_matrices", full_matrices))
    return SVD(u, s, linalg.adjoint(v))


def svdvals(x: TensorLike, /) -> Tensor:
    """The singular values of each matrix, descending."""
    return linalg.svd(x, compute_uv=False)


def diagonal(x: TensorLike, /, *, offset: int = 0) -> Tensor:
    """A diagonal of each matrix: `offset` is 0 for the main one, positive above it.

    >>> tg.numpy.linalg.diagonal([[1, 2], [3, 4]], offset=1).numpy()
    array([2], dtype=int32)
    """
    x = as_tensor(x)
    offset = as_size("diagonal", "offset", offset)
    if rank_of("diagonal", x) < 2:
        refuse("diagonal", f"{x.type} has no matrices", x, fix="give a tensor of 2 axes or more")
    rows, columns = x.type.shape[-2:]
    is_outside = (known_int(columns) and offset >= columns) or (known_int(rows) and -offset >= rows)
    if is_outside:
        return array.zeros([*x.shape[:-2], 0], x.dtype)
    return linalg.diag_part(x, k=offset)


def trace(x: TensorLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of a diagonal of each matrix; integers of 8 and 16 bits are added in 32."""
    return sum_of(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def matrix_power(x: TensorLike, n: int, /) -> Tensor:
    """Each square matrix multiplied by itself n times; powers of its inverse if n is negative.

    >>> tg.numpy.linalg.matrix_power([[1.0, 1.0], [0.0, 1.0]], 3).numpy()
    array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    x = matrices("matrix_power", x)
    count = as_size("matrix_power", "n", n)
    if count < 0:
        x, count = linalg.inv(x), -count
    power = None
    while count:
        if count & 1:
            power = x if power is None else math.matmul(power, x)
        count >>= 1
        x = math.matmul(x, x) if count else x
    if power is not None:
        return power
    return array.broadcast_to(array.eye(x.shape[-1], dtype=x.dtype), x.shape)


def vector_norm(
    x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The norm of all elements, or of those along the axes; see `tg.norm`.

    - `ord`: any number p for sum(|x| ** p) ** (1 / p), infinity for the largest and -infinity for
      the smallest absolute value, 0 for the number of nonzero elements.

    >>> tg.numpy.linalg.vector_norm([3.0, 4.0]).numpy()
    np.float32(5.0)
    """
    x = as_tensor(x)
    if ord == 2:
        return math.reduce_euclidean_norm(x, axis, keepdims)
    size = math.abs(x)
    if ord == 0:
        return math.count_nonzero(x, axis, keepdims, size.dtype)
    if python_math.isinf(ord):
        return (math.reduce_max if ord > 0 else math.reduce_min)(size, axis, keepdims)
    if ord == 1:
        return math.reduce_sum(size, axis, keepdims)
    if ord > 0 and size.dtype.is_floating:
        return norm_of_order(size, ord, axis, keepdims)
    return math.pow(math.reduce_sum(math.pow(size, ord), axis, keepdims), 1 / ord)


def matrix_norm(x: TensorLike, /, *, keepdims: bool = False, ord: str | float = "fro") -> Tensor:
    """The norm of each matrix.

    - `ord`: "fro" for the root of the sum of squares, "nuc" for the sum of the singular values, 2
      and -2 for the largest and the smallest of them, 1 and -1 for the largest and the smallest sum
      of absolute values in a column, infinity and -infinity for those in a row.

    >>> tg.numpy.linalg.matrix_norm([[1.0, 2.0], [3.0, 4.0]], ord=1).numpy()
    np.float32(6.0)
    """
    x = matrices("matrix_norm", x)
    keeps = as_flag("matrix_norm", "keepdims", keepdims)
    if ord == "fro":
        return math.reduce_euclidean_norm(x, [-2, -1], keeps)
    as_choice("matrix_norm", "ord", ord if isinstance(ord, str) else float(ord), _ORDERS)
    largest = math.reduce_max if not isinstance(ord, str) and ord > 0 else math.reduce_min
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        norm = math.reduce_sum(values, -1) if ord == "nuc" else largest(values, -1)
    else:
        sums = math.reduce_sum(math.abs(x), -2 if ord in (1, -1) else -1)
        norm = largest(sums, -1)
    return norm[..., None, None] if keeps else norm


_ORDERS = ("fro", "nuc", 2.0, -2.0, 1.0, -1.0, python_math.inf, -python_math.inf)

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
