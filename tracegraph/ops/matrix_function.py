"""Functions of square matrices: exponential, logarithm, square root.

The derivative of a function f of a matrix a along e stands in the corner of f of a larger matrix:
f([[a, e], [0, a]]) = [[f(a), df(a; e)], [0, f(a)]]. So one rule serves all of them, at every order,
and also where a has too few eigenvectors.
"""

from __future__ import annotations

from tracegraph.core.shapes import Size, element_count
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.errors import DTypeMismatch
from tracegraph.ir.op import Derivative
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import OverBatchAxes, zeros_of
from tracegraph.ops.contract import adjoint
from tracegraph.ops.linalg import check_square
from tracegraph.ops.shape import Concatenate, slice_axis


class MatrixFunction(OverBatchAxes, abstract=True):
    """A function that is a power series of each square matrix"""

    def infer(self, a: TensorType) -> TensorType:
        return check_square(self.name, a)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor) -> Derivative:
        return (self.along(adjoint(a), g),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, a: Tensor) -> Derivative:
        return self.along(a, tangents[0])

    def along(self, a: Tensor, e: Tensor) -> Tensor:
        """The derivative at a along e."""
        rows, columns = a.ndim - 2, a.ndim - 1
        upper = Concatenate(columns)(a, e)
        lower = Concatenate(columns)(zeros_of(a), a)
        n: Size = a.type.shape[-1]
        whole = self(Concatenate(rows)(upper, lower))
        return slice_axis(slice_axis(whole, rows, 0, n), columns, n, n + n)

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=(-2, -1), keepdims=True).broadcast_to(p.shape)

    def flops(self, a: TensorType) -> Size:
        return 20 * element_count(a.shape) * a.shape[-1]


class Expm(MatrixFunction):
    """The exponential of each matrix, sum over k of a ** k / k!"""


class Logm(MatrixFunction):
    """The logarithm of each complex matrix whose eigenvalues have imaginary parts in (-pi, pi]"""

    def infer(self, a: TensorType) -> TensorType:
        if not a.dtype.is_complex:
            raise DTypeMismatch(
                f"the operand is {a}, and the logarithm of a real matrix may be complex",
                fix="convert it: tg.cast(x, tg.complex64)",
            )
        return super().infer(a)


class Sqrtm(MatrixFunction):
    """The square root of each matrix whose eigenvalues have real parts that are not negative; that
    of a real matrix is real, and nan where there is none"""
