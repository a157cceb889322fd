"""Linear algebra: matrices and their parts, systems of equations, determinants.

A matrix that has no inverse raises nothing: as in XLA, the results hold inf or nan, and so does
the Cholesky factor of a matrix that is not positive definite. Of the decompositions there is
Cholesky's; the others are not here yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_open_number,
    as_size,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import eye
from tracegraph.array.joining import stack
from tracegraph.array.shaping import expand_dims, pad, squeeze
from tracegraph.core.shapes import element_count, same_shape, same_size
from tracegraph.core.types import bool_, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.norms import global_norm, l2_normalize
from tracegraph.math.product import einsum, matmul, tensordot, with_common_batch
from tracegraph.math.reduction import norm
from tracegraph.math.unary import log
from tracegraph.operands.conversion import as_operands, as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import BroadcastTo, Sum, zeros_of
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import adjoint as adjoint_of
from tracegraph.ops.contract import swap_last
from tracegraph.ops.elementwise import REAL, SELECT, SUB, LogicalAnd
from tracegraph.ops.linalg import Cholesky, Det, Slogdet, Solve, TriangularSolve
from tracegraph.ops.shape import Reshape, with_size

if TYPE_CHECKING:
    from tracegraph.typing import Axis, TensorLike


def matrix_transpose(
    a: TensorLike, name: str = "matrix_transpose", conjugate: bool = False
) -> Tensor:
    """Each matrix a[..., i, j] transposed: [..., j, i]; with `conjugate`, its complex conjugate.

    >>> tg.linalg.matrix_transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = _matrices("matrix_transpose", a)
    is_adjoint = as_flag("matrix_transpose", "conjugate", conjugate)
    return adjoint_of(x) if is_adjoint else swap_last(x)


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The conjugate transpose of each matrix.

    >>> tg.linalg.adjoint([[1j]]).numpy()
    array([[0.-1.j]])
    """
    return adjoint_of(_matrices("adjoint", matrix))


def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    name: str | None = None,
) -> Tensor:
    """y[..., i] = sum_j a[..., i, j] * b[..., j]

    >>> tg.linalg.matvec([[1, 2], [3, 4]], [1, 1]).numpy()
    array([3, 7], dtype=int32)
    """
    column = expand_dims(as_tensor(b), -1)
    return squeeze(matmul(a, column, transpose_a=transpose_a, adjoint_a=adjoint_a), axis=-1)


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the diagonal of each matrix: sum_i x[..., i, i]

    >>> tg.linalg.trace([[1, 2], [3, 4]]).numpy()
    np.int32(5)
    """
    diagonal = diag_part(x)
    return Sum((diagonal.ndim - 1,))(diagonal)


def diag(
    diagonal: TensorLike,
    name: str = "diag",
    k: TensorLike = 0,
    num_rows: int | Tensor = -1,
    num_cols: int | Tensor = -1,
    padding_value: TensorLike = 0,
) -> Tensor:
    """Matrices with the vectors diagonal[..., :] on a diagonal and `padding_value` elsewhere.

    - `k`: which diagonal, an int: those above the main one are positive.
    - `num_rows`, `num_cols`: the sizes; -1 is as few as will do, in square matrices if both are.

    >>> tg.linalg.diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    >>> tg.linalg.diag([1], k=1).numpy()
    array([[0, 1],
           [0, 0]], dtype=int32)
    """
    x = as_tensor(diagonal)
    rank = rank_of("diag", x)
    if rank == 0:
        refuse("diag", "a scalar is no diagonal", x, fix="give a vector")
    padding = as_tensor(padding_value, x.dtype)
    if padding.type.shape != ():
        refuse("diag", f"the padding value is {padding.type}", padding, fix="give one number")
    n = x.type.shape[-1]
    margins = _margins(n, as_size("diag", "k", k), num_rows, num_cols, x)
    shape = (*x.type.shape, n)
    wide = BroadcastTo(shape, tuple(range(rank)))(x)
    block = SELECT(broadcast(eye(n, dtype=bool_), shape), wide, broadcast(padding, shape))
    if margins == [(0, 0), (0, 0)]:
        return block
    return pad(block, [*[(0, 0)] * (rank - 1), *margins], constant_values=padding)


def _margins(n: Any, k: Any, num_rows: Any, num_cols: Any, x: Tensor) -> list[tuple[Any, Any]]:
    """How many rows stand before and after a block of n rows on diagonal k, and columns."""
    before = max(-k, 0), max(k, 0)
    given = as_size("diag", "num_rows", num_rows), as_size("diag", "num_cols", num_cols)
    fewest = tuple(n + count for count in before)
    if given == (-1, -1):
        sizes = n + abs(k), n + abs(k)
    else:
        sizes = tuple(f if size == -1 else size for size, f in zip(given, fewest, strict=True))
    after = tuple(size - f for size, f in zip(sizes, fewest, strict=True))
    if any(known_int(count) and count < 0 for count in after) or 0 not in after:
        rows, columns = fewest
        fact = f"{x.type} is no diagonal {k} of {sizes[0]} rows and {sizes[1]} columns"
        fix = f"give num_rows={rows} and num_cols={columns}, or more of one of the two"
        refuse("diag", fact, x, fix=fix)
    return list(zip(before, after, strict=True))


def diag_part(
    input: TensorLike,
    name: str = "diag_part",
    k: TensorLike = 0,
    padding_value: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """A diagonal of each matrix: y[..., i] = x[..., i, i + k], or x[..., i - k, i] for negative k.

    - `k`: an int, or a pair (lowest, highest) for the diagonals between them, stacked along a new
      axis from the highest to the lowest.
    - `padding_value`: what fills those that are shorter than the longest.
    - `align`: on which side diagonals above and below the main one stand; "RIGHT_LEFT" fills the
      former at the front and the latter at the end.

    >>> tg.linalg.diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    >>> tg.linalg.diag_part([[1, 2], [3, 4]], k=(-1, 1)).numpy()
    array([[0, 2],
           [1, 4],
           [3, 0]], dtype=int32)
    """
    x = _matrices("diag_part", input)
    sides = as_choice("diag_part", "align", align, _ALIGNMENTS).split("_")
    numbers = as_sizes("diag_part", "k", k)
    if not 1 <= len(numbers) <= 2 or numbers[0] > numbers[-1]:
        fix = "give an int, or a pair (lowest, highest)"
        refuse("diag_part", f"k is {list(numbers)}", x, fix=fix)
    if numbers[0] == numbers[-1]:
        return _diagonal(x, numbers[0])
    rows, columns = x.type.shape[-2:]
    if not (known_int(rows) and known_int(columns)):
        fix = "give the sizes in the TensorSpec, or take one diagonal after another"
        refuse(
            "diag_part", f"the sizes of {x.type} must be known for several diagonals", x, fix=fix
        )
    longest = min(rows + min(numbers[1], 0), columns - max(numbers[0], 0))
    found = []
    for number in range(numbers[1], numbers[0] - 1, -1):
        one = _diagonal(x, number)
        missing = longest - one.type.shape[-1]
        # The main diagonal stands where either side would have it on the right.
        own = sides if number == 0 else sides[:1] if number > 0 else sides[1:]
        margin = (missing, 0) if "RIGHT" in own else (0, missing)
        margins = [*[(0, 0)] * (x.ndim - 2), margin]
        found.append(pad(one, margins, constant_values=as_tensor(padding_value, x.dtype)))
    return stack(found, axis=-2)


_ALIGNMENTS = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


def _diagonal(x: Tensor, k: Any) -> Tensor:
    """One diagonal of each matrix."""
    if k != 0:
        x = x[..., max(-k, 0) :, max(k, 0) :]  # type: ignore[index]
    rows, columns = x.type.shape[-2:]
    if known_int(rows) and known_int(columns) and rows != columns:
        n = min(rows, columns)
        x = x[..., :n, :n]  # type: ignore[index]
    return einsum("...ii->...i", x)


def set_diag(input: TensorLike, diagonal: TensorLike, name: str = "set_diag") -> Tensor:
    """Each matrix with another diagonal, which is as long as its shorter side.

    >>> tg.linalg.set_diag([[1, 2], [3, 4]], [8, 9]).numpy()
    array([[8, 2],
           [3, 9]], dtype=int32)
    """
    x = _matrices("set_diag", input)
    rank, shape = x.ndim, x.type.shape
    *lead, rows, columns = shape
    new = as_tensor(diagonal, x.dtype)
    is_tall = known_int(rows) and known_int(columns) and rows > columns
    if same_shape(new.type.shape, (*lead, columns if is_tall else rows)) is None or not (
        (known_int(rows) and known_int(columns)) or same_size(rows, columns) is not None
    ):
        fix = "give one number for each row or column, whichever are fewer"
        refuse("set_diag", f"a diagonal {new.type} for {x.type}", x, new, fix=fix)
    if not (known_int(rows) and known_int(columns)):
        x = with_size(x, rank - 1, rows)
    # The number that belongs on the diagonal, all along its row, or its column if they are fewer.
    wide = BroadcastTo(shape, (*range(rank - 2), rank - 1 if is_tall else rank - 2))(new)
    return SELECT(broadcast(eye(rows, columns, dtype=bool_), shape), wide, x)


def band_part(
    input: TensorLike, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """Each matrix with 0 outside of a band: `num_lower` diagonals below and `num_upper` above.

    A negative number keeps all of them. The numbers may be tensors.

    >>> tg.linalg.band_part([[1, 2], [3, 4]], 0, -1).numpy()
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    x = _matrices("band_part", input)
    rows, columns = x.type.shape[-2:]
    shape = (rows, columns)
    i = BroadcastTo(shape, (0,))(Iota(rows, int32)())
    j = BroadcastTo(shape, (1,))(Iota(columns, int32)())
    inside = None
    for count, distance in ((num_lower, SUB(i, j)), (num_upper, SUB(j, i))):
        limit = as_open_number("band_part", "a number of diagonals", count)
        if known_int(limit) and limit < 0:
            continue
        near = distance <= limit  # type: ignore[operator]
        if isinstance(limit, Tensor):
            near = near | (limit < 0)  # type: ignore[operator]
        inside = near if inside is None else LogicalAnd()(inside, near)
    if inside is None:
        return x
    return SELECT(broadcast(inside, x.type.shape), x, zeros_of(x))


def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """The cross product of vectors of three along the last axis.

    >>> tg.linalg.cross([1, 0, 0], [0, 1, 0]).numpy()
    array([0, 0, 1], dtype=int32)
    """
    permutation = np.zeros((3, 3, 3), np.int32)
    permutation[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
    permutation[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1
    x, y = as_tensor(a), as_tensor(b)
    return einsum("ijk,...j,...k->...i", as_tensor(permutation.astype(x.dtype.numpy_dtype)), x, y)


def normalize(
    tensor: TensorLike, ord: float | str = "euclidean", axis: Axis = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The tensor divided by its norm along `axis`, and the norm; see `tg.norm`.

    >>> unit, length = tg.linalg.normalize([3.0, 4.0])
    >>> unit.numpy(), length.numpy()
    (array([0.6, 0.8], dtype=float32), array([5.], dtype=float32))
    """
    x = as_tensor(tensor)
    length = norm(x, ord, axis, keepdims=True)
    return x / length, length  # type: ignore[operator]


def tensor_diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """The tensor y[i, j, ..., i, j, ...] = x[i, j, ...], 0 elsewhere.

    >>> tg.linalg.tensor_diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    sizes = sizes_of("tensor_diag", x)
    flat = diag(Reshape((element_count(sizes),))(x))
    return Reshape((*sizes, *sizes))(flat)


def tensor_diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """The diagonal y[i, j, ...] = x[i, j, ..., i, j, ...] of a tensor whose sizes come twice.

    >>> tg.linalg.tensor_diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    """
    x = as_tensor(input)
    sizes = sizes_of("tensor_diag_part", x)
    half = len(sizes) // 2
    if len(sizes) in (0, 2 * half + 1) or same_shape(sizes[:half], sizes[half:]) is None:
        fix = "give a tensor of the shape (*sizes, *sizes)"
        refuse("tensor_diag_part", f"{x.type} has no such diagonal", x, fix=fix)
    count = element_count(sizes[:half])
    return Reshape(sizes[:half])(_diagonal(Reshape((count, count))(x), 0))


def solve(
    matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """The columns y with matrix y = rhs, or with matrix^H y = rhs if `adjoint`.

    The shapes are matrix[..., n, n] and rhs[..., n, k]; the leading axes broadcast. A singular
    matrix gives inf or nan. Raises ShapeError if the matrix is not square, or rhs is a vector.

    >>> tg.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [[2.0], [2.0]]).numpy()
    array([[1. ],
           [0.5]], dtype=float32)
    """
    a, b = _system("solve", matrix, rhs)
    return Solve(as_flag("solve", "adjoint", adjoint))(a, b)


def triangular_solve(
    matrix: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """The columns y with matrix y = rhs, of which the lower triangle alone is read.

    The upper triangle if `lower` is False; `adjoint` solves with the conjugate transpose of the
    triangle. The shapes are matrix[..., n, n] and rhs[..., n, k]; the leading axes broadcast.

    >>> tg.linalg.triangular_solve([[2.0, 9.0], [1.0, 1.0]], [[2.0], [3.0]]).numpy()
    array([[1.],
           [2.]], dtype=float32)
    """
    op = "triangular_solve"
    a, b = _system(op, matrix, rhs)
    is_adjoint, is_lower = as_flag(op, "adjoint", adjoint), as_flag(op, "lower", lower)
    return TriangularSolve(is_adjoint, is_lower)(a, b)


def inv(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverse of each matrix, of its conjugate transpose if `adjoint`; see `tg.linalg.solve`.

    >>> tg.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).numpy()
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    a = _matrices("inv", input)
    identity = broadcast(eye(a.type.shape[-1], dtype=a.dtype), a.type.shape)
    return Solve(as_flag("inv", "adjoint", adjoint))(a, identity)


def det(input: TensorLike, name: str | None = None) -> Tensor:
    """The determinant of each matrix.

    Its first and second derivatives hold where the matrix is singular too; those of higher order
    are nan there.

    >>> tg.linalg.det([[2.0, 1.0], [1.0, 2.0]]).numpy()
    np.float32(3.0)
    """
    return Det()(_matrices("det", input))


class SignAndLogarithm(NamedTuple):
    """What `tg.linalg.slogdet` returns."""

    sign: Tensor
    log_abs_determinant: Tensor


def slogdet(input: TensorLike, name: str | None = None) -> SignAndLogarithm:
    """The sign of each determinant, and the logarithm of its absolute value, of the same dtype.

    The sign of a complex determinant is a number of absolute value 1. A singular matrix has the
    sign 0 and the logarithm -inf.

    >>> sign, logarithm = tg.linalg.slogdet([[0.0, 1.0], [1.0, 0.0]])
    >>> sign.numpy(), abs(logarithm.numpy())
    (np.float32(-1.0), np.float32(0.0))
    """
    x = _matrices("slogdet", input)
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

    Of another matrix a the factor of (a + a^H) / 2 is meant, so gradients are Hermitian too. It
    is nan where that is not positive definite.

    >>> tg.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]]).numpy()
    array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    return Cholesky()(_matrices("cholesky", input))


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """The columns x with a x = rhs, given the factor `chol = tg.linalg.cholesky(a)`.

    >>> chol = tg.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]])
    >>> tg.linalg.cholesky_solve(chol, [[6.0], [4.0]]).numpy()
    array([[1.],
           [1.]], dtype=float32)
    """
    a, b = _system("cholesky_solve", chol, rhs)
    return TriangularSolve(True, True)(a, TriangularSolve(False, True)(a, b))


def _system(op: str, matrix: Any, rhs: Any) -> tuple[Tensor, Tensor]:
    """Matrices and right-hand sides of one dtype, with the same leading axes."""
    a, b = as_operands(op, matrix, rhs)
    ranks = rank_of(op, a), rank_of(op, b)
    if min(ranks) < 2:
        short = a if ranks[0] < 2 else b
        fix = "give a vector a last axis of size 1: x[..., tg.newaxis]"
        refuse(op, f"{short.type} is not a matrix", a, b, fix=fix)
    return with_common_batch(op, a, b)


def _matrices(op: str, x: Any) -> Tensor:
    x = as_tensor(x)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} is not a matrix", x, fix="give a tensor of at least two axes")
    return x


__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "logdet",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "set_diag",
    "slogdet",
    "solve",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
    "triangular_solve",
]
