"""Low-rank updates of operators."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import given, refuse
from tracegraph.array.creation import eye
from tracegraph.array.shaping import expand_dims
from tracegraph.core.shapes import same_shape
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import common_batch, conjugate_if, implied, parameter
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.operators.diagonal import LinearOperatorDiag
from tracegraph.linalg.parts import adjoint as adjoint_of
from tracegraph.linalg.systems import det, slogdet, solve
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_sum
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import TensorLike


class LinearOperatorLowRankUpdate(LinearOperator):
    """The operator L + U D V^H, with another operator L, tall matrices U and V and a diagonal D.

    - `base_operator`: L, of shape [..., m, n].
    - `u`: U, [..., m, k].
    - `diag_update`: the diagonal of D, [..., k]; ones by default.
    - `v`: V, [..., n, k]; `u` by default.
    - `is_diag_update_positive`: a promise that the elements of `diag_update` are positive.
    - The other promises are those of `tg.linalg.LinearOperator`. If L is self-adjoint and positive
      definite, `v` is not given and D is positive, so is this operator.

    Equations and determinants reduce to those of L and of matrices [..., k, k]; L must have an
    inverse. Raises ShapeError if the sizes do not fit.

    >>> identity = tg.linalg.LinearOperatorIdentity(2)
    >>> operator = tg.linalg.LinearOperatorLowRankUpdate(identity, [[1.0], [2.0]])
    >>> operator.to_dense().numpy(), operator.determinant().numpy()
    (array([[2., 2.],
           [2., 5.]], dtype=float32), np.float32(6.0))
    """

    def __init__(
        self,
        base_operator: LinearOperator,
        u: TensorLike,
        diag_update: TensorLike | None = None,
        v: TensorLike | None = None,
        is_diag_update_positive: bool | None = None,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorLowRankUpdate",
    ) -> None:
        arguments = given(locals())
        self._base_operator = base_operator
        self._u = parameter(name, u, 2, "u")
        self._v = None if v is None else parameter(name, v, 2, "v")
        self._diag_update = None
        if diag_update is not None:
            self._diag_update = parameter(name, diag_update, 1, "diag_update")
        self._is_diag_update_positive = _is_positive(name, diag_update, is_diag_update_positive)
        is_symmetric = self._is_symmetric()
        if is_symmetric and base_operator.is_positive_definite and self._is_diag_update_positive:
            reason = "L and D are positive definite"
            hint = "is_positive_definite"
            is_positive_definite = implied(name, hint, is_positive_definite, True, reason)
        if is_symmetric and is_self_adjoint is None:
            is_self_adjoint = True
        super().__init__(
            base_operator.dtype,
            is_non_singular=is_non_singular,
            is_self_adjoint=is_self_adjoint,
            is_positive_definite=is_positive_definite,
            is_square=is_square,
            name=name,
            parameters=arguments,
        )
        self._check_shapes()

    def _is_symmetric(self) -> bool:
        """Whether L and the arguments imply that it is self-adjoint."""
        is_real = self._diag_update is None or not self._diag_update.dtype.is_complex
        return bool(self._base_operator.is_self_adjoint and self._v is None and is_real)

    def _check_shapes(self) -> None:
        v = self._u if self._v is None else self._v
        rank = self._u.shape[-1]
        wanted = {
            "u": (self._u, (self._base_operator.range_dimension, rank)),
            "v": (v, (self._base_operator.domain_dimension, rank)),
            "diag_update": (self._diag_update, (rank,)),
        }
        for what, (x, sizes) in wanted.items():
            if x is not None and same_shape(tuple(x.shape[-len(sizes) :]), sizes) is None:
                fact = f"{what} has the shape {x.shape}, which must end in {list(sizes)}"
                refuse(
                    self.name, fact, fix="give u [..., m, k], v [..., n, k], diag_update [..., k]"
                )
        self._shape()  # raises for leading axes that do not broadcast

    @property
    def base_operator(self) -> LinearOperator:
        """The operator L."""
        return self._base_operator

    @property
    def u(self) -> Tensor:
        """The columns U."""
        return self._u

    @property
    def v(self) -> Tensor:
        """The columns V, which are U by default."""
        return self._u if self._v is None else self._v

    @property
    def diag_update(self) -> Tensor | None:
        """The diagonal of D, or None for ones."""
        return self._diag_update

    @property
    def is_diag_update_positive(self) -> bool | None:
        """Whether the elements of D are positive; None if unknown."""
        return self._is_diag_update_positive

    @property
    def diag_operator(self) -> LinearOperator | None:
        """The operator D, or None for ones."""
        if self._diag_update is None:
            return None
        return LinearOperatorDiag(
            self._diag_update, is_positive_definite=self._is_diag_update_positive
        )

    def _shape(self) -> Any:
        parts = [self._base_operator.batch_shape, self._u.shape[:-2]]
        parts += [] if self._v is None else [self._v.shape[:-2]]
        parts += [] if self._diag_update is None else [self._diag_update.shape[:-1]]
        lead = common_batch(self.name, parts)
        return (*lead, self._base_operator.range_dimension, self._base_operator.domain_dimension)

    def _scaled(self, x: Tensor, is_adjoint: bool = False) -> Tensor:
        """D x, or D^H x."""
        if self._diag_update is None:
            return x
        return expand_dims(conjugate_if(is_adjoint, as_tensor(self._diag_update)), -1) * x

    def _columns(self, is_adjoint: bool = False) -> tuple[Tensor, Tensor]:
        """U and V of the operator, or of its adjoint."""
        u, v = as_tensor(self._u), as_tensor(self.v)
        return (v, u) if is_adjoint else (u, v)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        u, v = self._columns(adjoint)
        update = matmul(u, self._scaled(matmul(v, x, adjoint_a=True), adjoint))
        return self._base_operator.matmul(x, adjoint=adjoint) + update

    def _capacitance(self, inner: Tensor, v: Tensor, is_adjoint: bool = False) -> Tensor:
        """1 + D V^H L^-1 U, from inner = L^-1 U, which also exists if D has zeros."""
        product = self._scaled(matmul(v, inner, adjoint_a=True), is_adjoint)
        return product + eye(product.type.shape[-1], dtype=self.dtype)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        """Woodbury's formula: with b = L^-1 rhs, b - L^-1 U (1 + D V^H L^-1 U)^-1 D V^H b."""
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        u, v = self._columns(adjoint)
        direct = self._base_operator.solve(rhs, adjoint=adjoint)
        inner = self._base_operator.solve(u, adjoint=adjoint)
        target = self._scaled(matmul(v, direct, adjoint_a=True), adjoint)
        return direct - matmul(inner, solve(self._capacitance(inner, v, adjoint), target))

    def _determinant(self) -> Tensor:
        if not self._base_operator.is_square:
            return super()._determinant()
        u, v = self._columns()
        return det(self._capacitance(self._base_operator.solve(u), v)) * (
            self._base_operator.determinant()
        )

    def _log_abs_determinant(self) -> Tensor:
        u, v = self._columns()
        small = self._capacitance(self._base_operator.solve(u), v)
        return slogdet(small).log_abs_determinant + self._base_operator.log_abs_determinant()

    def _diag_part(self) -> Tensor:
        u, v = self._columns()
        size = min_size(u, v)
        scaled = (
            u if self._diag_update is None else u * expand_dims(as_tensor(self._diag_update), -2)
        )
        products = scaled[..., :size, :] * conjugate_if(True, v)[..., :size, :]
        return self._base_operator.diag_part() + reduce_sum(products, -1)

    def _linop_adjoint(self) -> LinearOperator:
        diagonal = self._diag_update
        return LinearOperatorLowRankUpdate(
            self._base_operator.adjoint(),
            self.v,
            None if diagonal is None else conjugate_if(True, as_tensor(diagonal)),
            self._u,
            self._is_diag_update_positive,
            **self._hints_given(),
        )


def min_size(u: Tensor, v: Tensor) -> Any:
    """The number of rows of u and v that are on the diagonal."""
    rows, columns = u.type.shape[-2], v.type.shape[-2]
    is_known = type(rows) is int and type(columns) is int
    return min(rows, columns) if is_known else rows


def _is_positive(name: str, diag_update: Any, hint: bool | None) -> bool | None:
    if diag_update is not None:
        return hint
    if hint is False:
        fact = f"{name}: is_diag_update_positive is False, and D is 1"
        fail(SignatureError, fact, fix="leave is_diag_update_positive out, or give diag_update")
    return True
