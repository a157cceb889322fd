"""Operators of dense matrices, and of triangular ones."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import given
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import parameter
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of, band_part, diag_part
from tracegraph.linalg.systems import triangular_solve
from tracegraph.math.elementwise.logic import not_equal
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_prod
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import TensorLike


class LinearOperatorFullMatrix(LinearOperator):
    """The operator of dense matrices.

    - `matrix`: [..., m, n].
    - The promises are those of `tg.linalg.LinearOperator`.

    >>> operator = tg.linalg.LinearOperatorFullMatrix([[2.0, 1.0], [0.0, 4.0]])
    >>> operator.solvevec([4.0, 8.0]).numpy()
    array([1., 2.], dtype=float32)
    """

    def __init__(
        self,
        matrix: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorFullMatrix",
    ) -> None:
        arguments = given(locals())
        self._matrix = parameter(name, matrix, 2, "the matrix")
        self._promise(self._matrix.dtype, arguments)

    @property
    def matrix(self) -> Tensor:
        """The matrices that the operator was created from."""
        return self._matrix

    def _shape(self) -> Any:
        return self._matrix.shape

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return matmul(self._to_dense(), x, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _to_dense(self) -> Tensor:
        return as_tensor(self._matrix)


class LinearOperatorLowerTriangular(LinearOperator):
    """The operator of the lower triangles of matrices.

    - `tril`: [..., n, n], of which only the lower triangle is read.
    - The promises are those of `tg.linalg.LinearOperator`.

    It solves equations by substitution; the determinant is the product of the diagonal.

    >>> operator = tg.linalg.LinearOperatorLowerTriangular([[2.0, 9.0], [1.0, 4.0]])
    >>> operator.determinant().numpy()
    np.float32(8.0)
    """

    def __init__(
        self,
        tril: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorLowerTriangular",
    ) -> None:
        arguments = given(locals())
        self._tril = parameter(name, tril, 2, "the triangle")
        square = (True, "triangles are square")
        self._promise(self._tril.dtype, arguments, is_square=square)

    @property
    def tril(self) -> Tensor:
        """The matrices that the operator was created from."""
        return self._tril

    def _shape(self) -> Any:
        return self._tril.shape

    def _assert_non_singular(self) -> None:
        values = self._diag_part()
        self._check(not_equal(values, 0), "the diagonal has a zero, so it is singular", values)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return matmul(self._to_dense(), x, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        return triangular_solve(as_tensor(self._tril), rhs, adjoint=adjoint)

    def _determinant(self) -> Tensor:
        return reduce_prod(self._diag_part(), -1)

    def _log_abs_determinant(self) -> Tensor:
        return self._sum_of_logarithms(self._diag_part())

    def _diag_part(self) -> Tensor:
        return diag_part(as_tensor(self._tril))

    def _eigvals(self) -> Tensor:
        return self._diag_part()

    def _to_dense(self) -> Tensor:
        return band_part(as_tensor(self._tril), -1, 0)


LinearOperator.kinds["triangular"] = LinearOperatorLowerTriangular
