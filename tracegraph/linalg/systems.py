"""Systems of linear equations, inverses and determinants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_inexact,
    as_integers,
    as_number,
    known_int,
    matrices,
    rank_of,
    refuse,
    square_matrices,
)
from tracegraph.array.creation import eye
from tracegraph.array.joining import stack
from tracegraph.array.shaping import cut, expand_dims, pad
from tracegraph.core.shapes import maximum, same_shape
from tracegraph.core.types import bfloat16, float16, float32, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.parts import diag, diag_part
from tracegraph.math.elementwise.unary import log
from tracegraph.math.product import with_common_batch
from tracegraph.operands.conversion import as_operands, as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import Sum
from tracegraph.ops.contract import MATMUL, adjoint as adjoint_of, swap_last
from tracegraph.ops.decomposition import Pinv, SingularValues, triangles
from tracegraph.ops.elementwise import CONJ, REAL
from tracegraph.ops.index import Gather
from tracegraph.ops.linalg import Cholesky, Det, Slogdet, Solve, TriangularSolve, TridiagonalSolve
from tracegraph.ops.shape import Reshape, with_size
from tracegraph.ops.sort import ArgSort
from tracegraph.typing import TensorLike


def solve(
    matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """Solves matrix y = rhs for the columns y, or matrix^H y = rhs if `adjoint`.

    The shapes are matrix[..., n, n] and rhs[..., n, k]; the leading axes broadcast. A singular
    matrix gives inf or nan. Raises ShapeError if the matrix is not square, or rhs is a vector.

    >>> tg.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [[2.0], [2.0]]).numpy()
    array([[1. ],
           [0.5]], dtype=float32)
    """
    a, b = system("solve", matrix, rhs)
    return Solve(as_flag("solve", "adjoint", adjoint))(a, b)


def system(op: str, matrix: Any, rhs: Any) -> tuple[Tensor, Tensor]:
    """Matrices and right-hand sides with a common dtype and the same leading axes."""
    a, b = as_operands(op, matrix, rhs)
    ranks = rank_of(op, a), rank_of(op, b)
    if min(ranks) < 2:
        short = a if ranks[0] < 2 else b
        fix = "give a vector a last axis of size 1: x[..., tg.newaxis]"
        refuse(op, f"{short.type} is not a matrix", a, b, fix=fix)
    return with_common_batch(op, a, b)


def triangular_solve(
    matrix: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solves matrix y = rhs for the columns y, reading only the lower triangle.

    Reads the upper triangle if `lower` is False; `adjoint` solves with the conjugate transpose of
    the triangle. The shapes are matrix[..., n, n] and rhs[..., n, k]; the leading axes broadcast.

    >>> tg.linalg.triangular_solve([[2.0, 9.0], [1.0, 1.0]], [[2.0], [3.0]]).numpy()
    array([[1.],
           [2.]], dtype=float32)
    """
    op = "triangular_solve"
    a, b = system(op, matrix, rhs)
    is_adjoint, is_lower = as_flag(op, "adjoint", adjoint), as_flag(op, "lower", lower)
    return TriangularSolve(is_adjoint, is_lower)(a, b)


def inv(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverse of each matrix, or of its conjugate transpose if `adjoint`; see
    `tg.linalg.solve`. 16-bit inverses are computed in float32, and rounded once.

    >>> tg.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).numpy()
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    given = matrices("inv", input)
    a = cast_to(given, float32) if given.dtype in (bfloat16, float16) else given
    identity = broadcast(eye(a.type.shape[-1], dtype=a.dtype), a.type.shape)
    return cast_to(Solve(as_flag("inv", "adjoint", adjoint))(a, identity), given.dtype)


def det(input: TensorLike, name: str | None = None) -> Tensor:
    """The determinant of each matrix.

    Its first and second derivatives are correct for singular matrices too; those of higher order
    are nan there.

    >>> tg.linalg.det([[2.0, 1.0], [1.0, 2.0]]).numpy()
    np.float32(3.0)
    """
    return Det()(matrices("det", input))


class SignAndLogarithm(NamedTuple):
    """The result of `tg.linalg.slogdet`."""

    sign: Tensor
    log_abs_determinant: Tensor


def slogdet(input: TensorLike, name: str | None = None) -> SignAndLogarithm:
    """The sign of each determinant, and the logarithm of its absolute value, in the same dtype.

    The sign of a complex determinant is a number with absolute value 1. A singular matrix has
    sign 0 and logarithm -inf.

    >>> sign, logarithm = tg.linalg.slogdet([[0.0, 1.0], [1.0, 0.0]])
    >>> sign.numpy(), abs(logarithm.numpy())
    (np.float32(-1.0), np.float32(0.0))
    """
    x = matrices("slogdet", input)
    sign, logarithm = Slogdet()(x)
    return SignAndLogarithm(sign, cast_to(logarithm, x.dtype))


def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The real logarithm of the determinant of each Hermitian positive definite matrix.

    >>> tg.linalg.logdet([[1.0, 0.0], [0.0, 1.0]]).numpy()
    np.float32(0.0)
    """
    diagonal = diag_part(cholesky(matrix))
    logarithms = log(REAL(diagonal) if diagonal.dtype.is_complex else diagonal)
    return 2.0 * Sum((logarithms.ndim - 1,))(logarithms)


def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """The lower triangle y with y y^H = input, for each Hermitian positive definite matrix.

    For any other matrix a, the factor is that of (a + a^H) / 2, so gradients are Hermitian too. It
    is nan if that is not positive definite.

    >>> tg.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]]).numpy()
    array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    return Cholesky()(matrices("cholesky", input))


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solves a x = rhs for the columns x, given the factor `chol = tg.linalg.cholesky(a)`.

    >>> chol = tg.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]])
    >>> tg.linalg.cholesky_solve(chol, [[6.0], [4.0]]).numpy()
    array([[1.],
           [1.]], dtype=float32)
    """
    a, b = system("cholesky_solve", chol, rhs)
    return TriangularSolve(True, True)(a, TriangularSolve(False, True)(a, b))


def lstsq(
    matrix: TensorLike,
    rhs: TensorLike,
    l2_regularizer: float = 0.0,
    fast: bool = True,
    name: str | None = None,
) -> Tensor:
    """The columns y that minimize |matrix y - rhs| ** 2 + l2_regularizer |y| ** 2.

    The shapes are matrix[..., m, n] and rhs[..., m, k]; the leading axes broadcast. If the matrix
    has fewer rows than columns, y is the smallest solution of all equations.

    - `fast`: whether to use the Cholesky factor of the normal equations, which squares the
      condition number. If False, uses the pseudo-inverse, which also works without full rank, but
      not with a regularizer.

    Raises ShapeError if the rows do not fit, ValueError for a regularizer below 0.

    >>> tg.linalg.lstsq([[2.0], [0.0]], [[1.0], [3.0]]).numpy()
    array([[0.5]], dtype=float32)
    """
    a, b = system("lstsq", matrix, rhs)
    if same_shape(a.type.shape[-2:-1], b.type.shape[-2:-1]) is None:
        fact = f"{a.type.shape[-2]} equations have {b.type.shape[-2]} right-hand sides"
        refuse("lstsq", fact, a, b, fix="give one row for each equation")
    weight = as_number("lstsq", "l2_regularizer", l2_regularizer, low=0.0)
    if not as_flag("lstsq", "fast", fast):
        return MATMUL(pinv(a), b)
    m, n = a.type.shape[-2:]
    conjugate = adjoint_of(a)
    is_wide = isinstance(m, int) and isinstance(n, int) and m < n
    products = MATMUL(a, conjugate) if is_wide else MATMUL(conjugate, a)
    if weight:
        size = products.type.shape[-1]
        ridge = eye(size, dtype=a.dtype) * as_tensor(weight, a.dtype)  # type: ignore[operator]
        products = products + broadcast(ridge, products.type.shape)  # type: ignore[operator]
    if is_wide:
        return MATMUL(conjugate, cholesky_solve(Cholesky()(products), b))
    return cholesky_solve(Cholesky()(products), MATMUL(conjugate, b))


def pinv(
    a: TensorLike,
    rcond: TensorLike | None = None,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """The pseudo-inverse of each matrix a[..., m, n], of shape [..., n, m].

    - `rcond`: singular values up to this times the largest one count as 0; a number, or one for
      each matrix. By default 10 max(m, n) times the machine epsilon.
    - `validate_args`: has no effect: there is nothing to check at run time.

    The derivative is that among matrices of the same rank, and finite for equal singular values.

    >>> tg.linalg.pinv([[2.0, 0.0], [0.0, 0.0]]).numpy()
    array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    x = matrices("pinv", a)
    lead, dtype = x.type.shape[:-2], x.dtype.real
    if rcond is None:
        rcond = 10.0 * rounding("pinv", x)
    return Pinv()(x, broadcast(as_tensor(rcond, dtype), lead))


def rounding(op: str, x: Tensor) -> Any:
    """max(m, n) times the distance of 1 and the next number: a float, or a tensor where a size is
    open. Raises DTypeError for integers."""
    rows, columns = as_inexact(op, x).type.shape[-2:]
    size: Any = maximum(rows, columns)
    eps = float(np.finfo(x.dtype.real.numpy_dtype).eps)
    return (size if known_int(size) else cast_to(as_tensor(size), x.dtype.real)) * eps


def matrix_rank(
    a: TensorLike,
    tol: TensorLike | None = None,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """The rank of each matrix a[..., m, n]: the number of singular values above `tol`, in int32.

    - `tol`: a number, or a tensor that broadcasts with the singular values, such as [..., 1] for
      one per matrix. By default the largest singular value times max(m, n) times the machine
      epsilon.
    - `validate_args`: has no effect: there is nothing to check at run time.

    >>> tg.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]]).numpy()
    np.int32(1)
    """
    x = matrices("matrix_rank", a)
    s = SingularValues()(x)
    if tol is None:
        largest = s if s.type.shape[-1] == 0 else cut(s, s.ndim - 1, 0, 1)
        limit = largest * rounding("matrix_rank", x)  # type: ignore[operator]
    else:
        limit = as_tensor(tol, s.dtype)
    is_counted = s > limit  # type: ignore[operator]
    return Sum((is_counted.ndim - 1,))(cast_to(is_counted, int32))


def lu_solve(
    lower_upper: TensorLike,
    perm: TensorLike,
    rhs: TensorLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solves a y = rhs for the columns y, given `lower_upper, perm = tg.linalg.lu(a)`.

    The shapes are lower_upper[..., n, n], perm[..., n] and rhs[..., n, k]; the leading axes
    broadcast. Raises ShapeError if they do not fit, DTypeError if `perm` does not consist of
    integers.

    >>> factors = tg.linalg.lu([[0.0, 2.0], [4.0, 0.0]])
    >>> tg.linalg.lu_solve(*factors, [[2.0], [4.0]]).numpy()
    array([[1.],
           [1.]], dtype=float32)
    """
    op = "lu_solve"
    factors, b = system(op, lower_upper, rhs)
    numbers = _permutation(op, perm, factors)
    if same_shape(factors.type.shape[-1:], b.type.shape[-2:-1]) is None:
        fact = f"{factors.type.shape[-1]} equations have {b.type.shape[-2]} right-hand sides"
        refuse(op, fact, factors, b, fix="give one row for each equation")
    rows = _permuted(with_size(b, b.ndim - 2, factors.type.shape[-1]), numbers)
    lower, upper = triangles(factors)
    return TriangularSolve(False, False)(upper, TriangularSolve(False, True)(lower, rows))


def lu_matrix_inverse(
    lower_upper: TensorLike,
    perm: TensorLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """The inverse of each matrix a, given `lower_upper, perm = tg.linalg.lu(a)`.

    >>> tg.linalg.lu_matrix_inverse(*tg.linalg.lu([[0.0, 2.0], [4.0, 0.0]])).numpy()
    array([[0.  , 0.25],
           [0.5 , 0.  ]], dtype=float32)
    """
    factors = matrices("lu_matrix_inverse", lower_upper)
    return lu_solve(factors, perm, eye(factors.type.shape[-1], dtype=factors.dtype))


def lu_reconstruct(
    lower_upper: TensorLike,
    perm: TensorLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """The matrices a with `lower_upper, perm = tg.linalg.lu(a)`.

    >>> tg.linalg.lu_reconstruct(*tg.linalg.lu([[0.0, 2.0], [4.0, 0.0]])).numpy()
    array([[0., 2.],
           [4., 0.]], dtype=float32)
    """
    op = "lu_reconstruct"
    factors = matrices(op, lower_upper)
    numbers = _permutation(op, perm, factors)
    return _permuted(MATMUL(*triangles(factors)), ArgSort(numbers.ndim - 1, False)(numbers))


def _permutation(op: str, perm: Any, factors: Tensor) -> Tensor:
    """The row numbers, with the leading axes of the factors."""
    numbers = as_integers(op, "the numbers of rows perm", perm)
    shape = factors.type.shape[:-1]
    if same_shape(shape[-1:], factors.type.shape[-1:]) is None:
        refuse(op, f"the factors {factors.type} are not square", factors, fix="give square ones")
    if rank_of(op, numbers) < 1 or same_shape(numbers.type.shape[-1:], shape[-1:]) is None:
        fact = f"the permutation {numbers.type} is not one number for each row of {factors.type}"
        refuse(op, fact, numbers, factors, fix="give what tg.linalg.lu returns")
    return broadcast(with_size(numbers, numbers.ndim - 1, shape[-1]), shape)


def _permuted(x: Tensor, numbers: Tensor) -> Tensor:
    """x[..., numbers[..., i], :]"""
    return Gather(x.ndim - 2, x.ndim - 2)(x, numbers)


def tridiagonal_solve(
    diagonals: TensorLike | Sequence[TensorLike],
    rhs: TensorLike,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    name: str | None = None,
    partial_pivoting: bool = True,
    perturb_singular: bool = False,
) -> Tensor:
    """Solves a y = rhs for tridiagonal matrices a.

    - `diagonals`: in the format "compact", one tensor [..., 3, n] of the diagonals above, on and
      below the main one, where the last element of the first and the first of the last are not
      read; in the format "sequence", the three diagonals, each [..., n], or [..., n - 1] off the
      main one; in the format "matrix", the matrices [..., n, n].
    - `rhs`: [..., n, k], or vectors [..., n]. The leading axes broadcast.
    - `transpose_rhs`, `conjugate_rhs`: whether rhs is given transposed, or conjugated.
    - `partial_pivoting`: has no effect: rows are always exchanged.
    - `perturb_singular`: whether to treat a pivot of 0 as a tiny one, so that y is finite rather
      than nan.

    Raises ShapeError if the sizes do not fit, ValueError for an unknown format.

    >>> tg.linalg.tridiagonal_solve([[1.0, 0.0], [2.0, 2.0], [0.0, 1.0]], [3.0, 3.0]).numpy()
    array([1., 1.], dtype=float32)
    """
    op = "tridiagonal_solve"
    is_perturbed = as_flag(op, "perturb_singular", perturb_singular)
    as_flag(op, "partial_pivoting", partial_pivoting)
    columns, b = as_operands(op, compact_diagonals(op, diagonals, diagonals_format), rhs)
    is_vector = 0 < rank_of(op, b) == columns.ndim - 1
    if is_vector:
        b = expand_dims(b, -1)
    else:
        b = matrices(op, b)
    if as_flag(op, "transpose_rhs", transpose_rhs) and not is_vector:
        b = swap_last(b)
    if as_flag(op, "conjugate_rhs", conjugate_rhs) and b.dtype.is_complex:
        b = CONJ(b)
    columns, b = _common_rows(op, columns, b)
    upper, middle, lower = _three(columns)
    y = TridiagonalSolve(is_perturbed)(lower, middle, upper, b)
    return Reshape(y.type.shape[:-1])(y) if is_vector else y


def tridiagonal_matmul(
    diagonals: TensorLike | Sequence[TensorLike],
    rhs: TensorLike,
    diagonals_format: str = "compact",
    name: str | None = None,
) -> Tensor:
    """The products a rhs with tridiagonal matrices a; rhs is [..., n, k].

    The formats of `diagonals` are those of `tg.linalg.tridiagonal_solve`; the leading axes
    broadcast. Raises ShapeError if the sizes do not fit, ValueError for an unknown format.

    >>> compact = [[1.0, 0.0], [2.0, 2.0], [0.0, 1.0]]
    >>> tg.linalg.tridiagonal_matmul(compact, [[1.0], [1.0]]).numpy()
    array([[3.],
           [3.]], dtype=float32)
    """
    op = "tridiagonal_matmul"
    columns, b = as_operands(op, compact_diagonals(op, diagonals, diagonals_format), rhs)
    columns, b = _common_rows(op, columns, matrices(op, b))
    rows = b.ndim - 2
    after = _shifted(cut(b, rows, 1, b.type.shape[rows]), rows, (0, 1))
    before = _shifted(cut(b, rows, 0, b.type.shape[rows] - 1), rows, (1, 0))
    found = None
    for diagonal, moved in zip(_three(columns), (after, b, before), strict=True):
        product = expand_dims(diagonal, -1) * moved  # type: ignore[operator]
        found = product if found is None else found + product
    return found  # type: ignore[return-value]


def _shifted(x: Tensor, axis: int, margin: tuple[int, int]) -> Tensor:
    """x with zeros inserted before or after it along one axis."""
    return pad(x, [margin if k == axis else (0, 0) for k in range(x.ndim)])


def compact_diagonals(op: str, diagonals: Any, form: Any) -> Tensor:
    """The diagonals above, on and below the main one as columns: [..., n, 3]."""
    form = as_choice(op, "diagonals_format", form, ("compact", "sequence", "matrix"))
    if form == "matrix":
        a = square_matrices(op, diagonals)
        return swap_last(diag_part(a, k=(-1, 1), align="LEFT_RIGHT"))
    if form == "sequence":
        return _of_sequence(op, diagonals)
    x = matrices(op, diagonals)
    if x.type.shape[-2] != 3:
        fact = f"the diagonals are {x.type}, and there are three of them"
        refuse(op, fact, x, fix="give a tensor [..., 3, n], or name another diagonals_format")
    return swap_last(x)


def _of_sequence(op: str, diagonals: Any) -> Tensor:
    if not isinstance(diagonals, (list, tuple)) or len(diagonals) != 3:
        x = as_tensor(diagonals)
        fact = f"the diagonals are {x.type}, and there are three of them"
        refuse(op, fact, x, fix="give a list of the three diagonals above, on and below the main")
    upper, middle, lower = (as_tensor(x) for x in diagonals)
    last = rank_of(op, middle) - 1
    size = middle.type.shape[last] if last >= 0 else 1

    def whole(x: Tensor, margin: tuple[int, int]) -> Tensor:
        is_short = rank_of(op, x) == last + 1 and x.type.shape[last] == size - 1
        return _shifted(x, last, margin) if is_short else x

    return stack([whole(upper, (0, 1)), middle, whole(lower, (1, 0))], axis=-1)


def _common_rows(op: str, columns: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonals as columns, and right-hand sides, with the same leading axes."""
    if same_shape(columns.type.shape[-2:-1], b.type.shape[-2:-1]) is None:
        fact = f"diagonals of {columns.type.shape[-2]} elements for {b.type.shape[-2]} rows"
        refuse(op, fact, columns, b, fix="give one element of each diagonal for each row")
    return with_common_batch(op, columns, b)


def _three(columns: Tensor) -> list[Tensor]:
    last = columns.ndim - 1
    return [Reshape(columns.type.shape[:-1])(cut(columns, last, k, k + 1)) for k in range(3)]


def banded_triangular_solve(
    bands: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solves a y = rhs for the columns y, with banded triangular a; a^H y = rhs if `adjoint`.

    - `bands`: [..., k, n], whose first row is the main diagonal; each further row is the next
      diagonal below. With `lower=False` the last row is the main diagonal. Lower diagonals begin
      with elements that are not read, upper ones end with them.
    - `rhs`: [..., n, m]. The leading axes broadcast.

    Raises ShapeError if the sizes do not fit or are open.

    >>> tg.linalg.banded_triangular_solve([[2.0, 2.0], [0.0, 1.0]], [[2.0], [3.0]]).numpy()
    array([[1.],
           [1.]], dtype=float32)
    """
    op = "banded_triangular_solve"
    x = matrices(op, bands)
    is_lower, count = as_flag(op, "lower", lower), x.type.shape[-2]
    if not isinstance(count, int) or not count >= 1:
        refuse(op, f"{x.type} has {count} diagonals", x, fix="give at least one, as TensorSpec")
    k = (1 - count, 0) if is_lower else (0, count - 1)
    n = x.type.shape[-1]
    if known_int(n) and count > max(n, 1):
        refuse(op, f"{x.type} has {count} diagonals of a matrix of {n} rows", x, fix="give fewer")
    if count == 1:
        whole = diag(Reshape((*x.type.shape[:-2], n))(x))
    else:
        whole = diag(x, "diag", k, n, n, align="LEFT_RIGHT")  # type: ignore
    return triangular_solve(whole, rhs, is_lower, adjoint)


__all__ = [
    "banded_triangular_solve",
    "cholesky",
    "cholesky_solve",
    "det",
    "inv",
    "logdet",
    "lstsq",
    "lu_matrix_inverse",
    "lu_reconstruct",
    "lu_solve",
    "matrix_rank",
    "pinv",
    "slogdet",
    "solve",
    "triangular_solve",
    "tridiagonal_matmul",
    "tridiagonal_solve",
]
