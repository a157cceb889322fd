"""Linear algebra: systems of equations, determinants, and the Cholesky factor.

Matrices stand in the last two axes, and all axes before them are batch axes. A matrix that has no
inverse raises nothing: the results hold inf or nan, as XLA computes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.core.shapes import Size, element_count, floor_divide, same_shape, same_size
from tracegraph.core.sparsity_patterns import Pattern, element_numbers, moved
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, Op, Tangents, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import (
    BroadcastTo,
    OverBatchAxes,
    Sum,
    batched_operands,
    full,
    stack,
    zeros_of,
)
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import MATMUL, adjoint, conjugate, merge_axis, same_batch, split_axis
from tracegraph.ops.elementwise import (
    COMPLEX,
    EQUAL,
    GREATER_EQUAL,
    IMAG,
    INEXACT,
    MUL,
    SELECT,
    Cast,
    check_kind,
    conjugated,
)
from tracegraph.ops.shape import Pad


def check_precision(a: TensorType) -> None:
    """Raises a DTypeMismatch for types of 16 bits."""
    if a.dtype.size < 4:
        raise DTypeMismatch(
            f"the operand is {a}, and 16 bits are too few to factor a matrix",
            fix="convert it: tg.cast(x, tg.float32)",
        )


def check_matrix(op: str, a: TensorType) -> tuple[Size, Size]:
    """The numbers of rows and columns. Raises Mismatch unless a is made of matrices of at least
    32 bits."""
    check_kind(op, a, INEXACT)
    check_precision(a)
    if len(a.shape) < 2:
        raise Mismatch(f"{a} is not a matrix", fix="give a tensor of at least two axes")
    return a.shape[-2], a.shape[-1]


def check_square(op: str, a: TensorType) -> TensorType:
    """a, if it is made of square matrices of at least 32 bits. Raises Mismatch otherwise."""
    check_matrix(op, a)
    size = same_size(a.shape[-2], a.shape[-1])
    if size is None:
        raise Mismatch(f"the matrix {a} is not square", fix="give as many rows as columns")
    return a.with_shape((*a.shape[:-2], size, size))


def _cube(a: TensorType) -> Size:
    """n ** 3 for each matrix: what factoring costs is a fraction of it."""
    return element_count(a.shape) * a.shape[-1]


class Solver(Op, abstract=True):
    """y with a y = b, or a^H y = b if `adjoint`; a[..., n, n], and b[..., n, k] are k columns"""

    adjoint: bool

    def opposite(self) -> Op:
        """The op that solves with the conjugate transpose."""
        raise NotImplementedError

    def part(self, a: Tensor) -> Tensor:
        """What is read of a matrix, and 0 elsewhere."""
        raise NotImplementedError

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_same_dtype(self.name, a, b)
        a = check_square(self.name, a)
        if len(a.shape) != len(b.shape):
            raise Mismatch(
                f"the operands must both be matrices, or equally many of them: {a} and {b}",
                fix="give a vector a last axis of size 1: b[..., tg.newaxis]",
            )
        size = same_size(a.shape[-1], b.shape[-2])
        if size is None:
            raise Mismatch(
                f"{a.shape[-1]} equations have {b.shape[-2]} right-hand sides: {a} and {b}",
                fix="give one row for each equation",
            )
        return b.with_shape((*same_batch(a, b), size, b.shape[-1]))

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Derivative:
        to_b = self.opposite()(a, g)
        rows, columns = (y, to_b) if self.adjoint else (to_b, y)
        return -self.part(MATMUL(rows, adjoint(columns))), to_b

    def jvp(self, tangents: Tangents, y: Tensor, a: Tensor, b: Tensor) -> Derivative:
        ta, tb = tangents
        if ta is None:
            return None if tb is None else self(a, tb)
        moved_by = self.part(ta)
        product = MATMUL(adjoint(moved_by) if self.adjoint else moved_by, y)
        return self(a, -product if tb is None else tb - product)

    def batch(self, n: Size, batched: tuple[bool, ...], a: Tensor, b: Tensor) -> Batched:
        if batched[0]:
            return self(a, b if batched[1] else stack(b, n)), True
        # One matrix serves all: the loop axis joins the columns, and it is factored once.
        columns = b.type.shape[-1]
        y = self(a, merge_axis(b, b.ndim - 2))
        return split_axis(y, y.ndim - 1, n, columns), True


class Solve(Solver):
    """y with a y = b, or a^H y = b if `adjoint`; a[..., n, n], and b[..., n, k] are k columns"""

    def opposite(self) -> Solver:
        return Solve(not self.adjoint)

    def part(self, a: Tensor) -> Tensor:
        return a

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        known = p.any(axis=(-2, -1), keepdims=True) | q.any(axis=-2, keepdims=True)
        return known.broadcast_to(q.shape)

    def numpy(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.linalg.solve(_adjoint(a) if self.adjoint else a, b)

    def flops(self, a: TensorType, b: TensorType) -> Size:
        return floor_divide(2 * _cube(a), 3) + 2 * element_count(b.shape) * a.shape[-1]


class TriangularSolve(Solver):
    """y with a y = b, or a^H y = b if `adjoint`, where of a the triangle alone is read"""

    lower: bool

    def opposite(self) -> Solver:
        return TriangularSolve(not self.adjoint, self.lower)

    def part(self, a: Tensor) -> Tensor:
        return SELECT(in_triangle(a, self.lower), a, zeros_of(a))

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        p = _of_triangle(p, self.lower)
        p = moved(_transposed, p) if self.adjoint else p
        known = p.any(axis=-1, keepdims=True) | q
        return known.accumulate(q.ndim - 2, reverse=self.lower is self.adjoint)

    def numpy(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = np.tril(a) if self.lower else np.triu(a)
        return np.linalg.solve(_adjoint(a) if self.adjoint else a, b)

    def flops(self, a: TensorType, b: TensorType) -> Size:
        return element_count(b.shape) * a.shape[-1]


class TridiagonalSolve(Op):
    """y[..., n, k] with a y = b, where of a[i, i - 1], a[i, i] and a[i, i + 1] the elements
    [..., i] of three vectors are made; rows are exchanged where that is needed.

    The first element of the lower diagonal and the last of the upper one are not read. With
    `perturb_singular` a pivot that is 0 counts as a tiny one.
    """

    perturb_singular: bool

    def infer(
        self, lower: TensorType, middle: TensorType, upper: TensorType, b: TensorType
    ) -> TensorType:
        check_same_dtype(self.name, lower, middle, upper, b)
        check_kind(self.name, b, INEXACT)
        check_precision(b)
        for diagonal in (lower, middle, upper):
            if same_shape(diagonal.shape, b.shape[:-1]) is None:
                raise Mismatch(
                    f"a diagonal {diagonal} has not one element for each row of {b}",
                    fix="give as many elements as there are equations",
                )
        return b

    def vjp(
        self, g: Tensor, y: Tensor, lower: Tensor, middle: Tensor, upper: Tensor, b: Tensor
    ) -> Derivative:
        lower, middle, upper = map(conjugate, (lower, middle, upper))
        axis = lower.ndim - 1
        to_b = self(_moved(upper, axis, 1), middle, _moved(lower, axis, -1), g)
        products = [
            -Sum((y.ndim - 1,))(MUL(to_b, conjugate(_moved(y, axis, step)))) for step in (1, 0, -1)
        ]
        return (*products, to_b)

    def batch(self, n: Size, batched: tuple[bool, ...], *operands: Tensor) -> Batched:
        if any(batched[:3]):
            return self(*batched_operands(n, batched, operands)), True
        # As for `Solver`: one matrix serves all.
        *diagonals, b = operands
        y = self(*diagonals, merge_axis(b, b.ndim - 2))
        return split_axis(y, y.ndim - 1, n, b.type.shape[-1]), True

    def depends(self, p: Pattern, q: Pattern, r: Pattern, b: Pattern) -> Pattern:
        known = (p | q | r).any(axis=-1, keepdims=True)
        known = known.reshape(*known.shape, 1) | b.any(axis=-2, keepdims=True)
        return known.broadcast_to(b.shape)

    def numpy(
        self, lower: np.ndarray, middle: np.ndarray, upper: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        n: int = middle.shape[-1]
        i = np.arange(n)
        a = np.zeros((*middle.shape, n), middle.dtype)
        a[..., i, i] = middle
        a[..., i[1:], i[:-1]] = lower[..., 1:]
        a[..., i[:-1], i[1:]] = upper[..., :-1]
        return np.linalg.solve(a, b)

    def flops(
        self, lower: TensorType, middle: TensorType, upper: TensorType, b: TensorType
    ) -> Size:
        return 8 * element_count(b.shape)


def _moved(x: Tensor, axis: int, step: int) -> Tensor:
    """x with each element `step` places further along an axis, and 0 where none comes."""
    if step == 0:
        return x
    before, after = [0] * x.ndim, [0] * x.ndim
    before[axis], after[axis] = step, -step
    zero = full(0, x.type.with_shape(()))
    return Pad(tuple(before), tuple(after), (0,) * x.ndim)(x, zero)


class Det(OverBatchAxes):
    """The determinant of each matrix a[..., n, n]"""

    def infer(self, a: TensorType) -> TensorType:
        a = check_square(self.name, a)
        return a.with_shape(a.shape[:-2])

    def vjp(self, g: Tensor, y: Tensor, a: Tensor) -> Derivative:
        return (spread(a, g) * conjugated(COFACTOR(a)),)

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=(-2, -1))

    def numpy(self, a: np.ndarray) -> np.ndarray:
        return np.linalg.det(a)

    def flops(self, a: TensorType) -> Size:
        return floor_divide(2 * _cube(a), 3)


class Cofactor(OverBatchAxes):
    """The derivative of the determinant of each matrix by each of its elements, which is finite
    where the matrix is singular too"""

    def infer(self, a: TensorType) -> TensorType:
        return check_square(self.name, a)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor) -> Derivative:
        return (conjugated(COFACTOR_ALONG(a, conjugated(g))),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, a: Tensor) -> Derivative:
        return COFACTOR_ALONG(a, tangents[0])

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=(-2, -1), keepdims=True).broadcast_to(p.shape)

    def numpy(self, a: np.ndarray) -> np.ndarray:
        y = np.empty_like(a)
        for i, j in np.ndindex(a.shape[-2:]):
            minor = np.delete(np.delete(a, i, axis=-2), j, axis=-1)
            y[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
        return y

    def flops(self, a: TensorType) -> Size:
        return floor_divide(8 * _cube(a), 3)


class CofactorAlong(OverBatchAxes):
    """The derivative of `cofactor` of each matrix a along e: the second one of the determinant.

    It is finite where the matrix is singular; its own derivative by a is not.
    """

    def infer(self, a: TensorType, e: TensorType) -> TensorType:
        check_same_dtype(self.name, a, e)
        a, e = check_square(self.name, a), check_square(self.name, e)
        if len(a.shape) != len(e.shape) or same_size(a.shape[-1], e.shape[-1]) is None:
            raise Mismatch(
                f"the matrices {a} and the directions {e} differ in shape",
                fix="give a direction of the same shape",
            )
        return a.with_shape((*same_batch(a, e), *a.shape[-2:]))

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, e: Tensor) -> Derivative:
        solve, along = Solve(False), conjugated(g)
        by_e, by_g = solve(a, e), solve(a, along)
        e_trace, g_trace = trace(by_e), trace(by_g)
        products = MATMUL(by_e, by_g)
        mixed = products + MATMUL(by_g, by_e)
        mixed = mixed - spread(a, g_trace) * by_e - spread(a, e_trace) * by_g
        whole = spread(a, e_trace * g_trace - trace(products))
        mixed = SELECT(on_diagonal(a), mixed + whole, mixed)
        to_a = Solve(True)(a, adjoint(spread(a, Det()(a)) * mixed))
        return to_a, conjugated(self(a, along))

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        return (p | q).any(axis=(-2, -1), keepdims=True).broadcast_to(p.shape)

    def numpy(self, a: np.ndarray, e: np.ndarray) -> np.ndarray:
        det, inverse = np.linalg.det(a)[..., None, None], np.linalg.inv(a)
        trace = np.trace(inverse @ e, axis1=-2, axis2=-1)[..., None, None]
        return det * _transposed(trace * inverse - inverse @ e @ inverse)

    def flops(self, a: TensorType, e: TensorType) -> Size:
        return 20 * _cube(a)


COFACTOR, COFACTOR_ALONG = Cofactor(), CofactorAlong()


class Slogdet(Op):
    """The sign of the determinant of each matrix, and the logarithm of its absolute value.

    The sign of a complex matrix is a number of absolute value 1; the logarithm is always real.
    """

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        a = check_square(self.name, a)
        return a.with_shape(a.shape[:-2]), TensorType(a.dtype.real, a.shape[:-2])

    def vjp(self, g_sign: Tensor, g: Tensor, sign: Tensor, y: Tensor, a: Tensor) -> Derivative:
        if a.dtype.is_complex:  # the sign turns with the imaginary part of d log det
            g = COMPLEX(g, IMAG(g_sign * conjugated(sign)))
        return (_over(a, g),)

    def batch(self, n: Size, batched: tuple[bool, ...], a: Tensor) -> Batched:
        return self(a), (True, True)

    def depends(self, p: Pattern) -> tuple[Pattern, ...]:
        p = p.any(axis=(-2, -1))
        return p, p

    def numpy(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        sign, y = np.linalg.slogdet(a)
        return sign, y

    def flops(self, a: TensorType) -> Size:
        return floor_divide(2 * _cube(a), 3)


class Cholesky(OverBatchAxes):
    """The lower triangle y with y y^H = (a + a^H) / 2, which must be positive definite"""

    def infer(self, a: TensorType) -> TensorType:
        return check_square(self.name, a)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor) -> Derivative:
        product = MATMUL(adjoint(y), g)
        below, diagonal = in_triangle(y, True), on_diagonal(y)
        half = SELECT(diagonal, product * 0.5, SELECT(below, product, zeros_of(y)))
        solve = TriangularSolve(True, True)
        left = solve(y, half)  # y^-H half y^-1, of which the Hermitian part is meant
        whole = adjoint(solve(y, adjoint(left)))
        return ((whole + adjoint(whole)) * 0.5,)

    def depends(self, p: Pattern) -> Pattern:
        # Of row i what comes first, and the block that the first j rows and columns make.
        along = (p | moved(_transposed, p)).accumulate(p.ndim - 1)
        corners = np.diagonal(element_numbers(p.shape), axis1=-2, axis2=-1)
        blocks = along.accumulate(p.ndim - 2).take(corners[..., np.newaxis, :])
        return _of_triangle(along | blocks, True)

    def numpy(self, a: np.ndarray) -> np.ndarray:
        hermitian: np.ndarray = (a + _adjoint(a)) / 2
        return np.linalg.cholesky(hermitian)

    def flops(self, a: TensorType) -> Size:
        return floor_divide(_cube(a), 3)


def _over(a: Tensor, factor: Tensor) -> Tensor:
    """factor a^-H, with one factor for each matrix: the derivative of log det."""
    wide = spread(a, Cast(a.dtype)(factor))
    return Solve(True)(a, SELECT(on_diagonal(a), wide, zeros_of(a)))


def spread(a: Tensor, factor: Tensor) -> Tensor:
    """One number for each matrix of `a`, repeated for each of its elements."""
    return BroadcastTo(a.type.shape, tuple(range(a.ndim - 2)))(factor)


def trace(a: Tensor) -> Tensor:
    """The sum of the diagonal of each matrix."""
    return Sum((a.ndim - 2, a.ndim - 1))(SELECT(on_diagonal(a), a, zeros_of(a)))


def rows_and_columns(a: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the row and of the column of each element."""
    shape, rank = a.type.shape, a.ndim
    numbers = Iota(shape[-1], int32)()
    return BroadcastTo(shape, (rank - 2,))(numbers), BroadcastTo(shape, (rank - 1,))(numbers)


def on_diagonal(a: Tensor) -> Tensor:
    """Where the diagonals are."""
    return EQUAL(*rows_and_columns(a))


def in_triangle(a: Tensor, lower: bool) -> Tensor:
    """Where the lower triangles are, or the upper ones, with the diagonals."""
    rows, columns = rows_and_columns(a)
    return GREATER_EQUAL(rows, columns) if lower else GREATER_EQUAL(columns, rows)


def _of_triangle(p: Pattern, lower: bool) -> Pattern:
    """The pattern of the triangles alone."""
    inside = np.tri(*p.shape[-2:], dtype=bool)
    return p.take(np.where(inside if lower else inside.T, element_numbers(p.shape), -1))


def _transposed(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _adjoint(a: np.ndarray) -> Any:
    return np.conj(_transposed(a))
