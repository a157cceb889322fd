"""Operators that are the adjoint or the inverse of another one."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import given
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import conjugate_if, implied
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of


class _WrappedOperator(LinearOperator):
    """An operator with the promises of another one, unless others are given."""

    def _wrap(self, operator: LinearOperator, arguments: dict[str, Any], suffix: str) -> None:
        if not isinstance(operator, LinearOperator):
            name = type(self).__name__
            fact = f"{name}: the operator is {operator!r}"
            fail(SignatureError, fact, fix="give a tg.linalg.LinearOperator")
        self._operator = operator
        hints = {}
        for hint, own in operator._hints_given().items():
            told = arguments[hint]
            hints[hint] = own if told is None else bool(told)
            if own is not None and hints[hint] is not own:
                fact = f"{operator.name}{suffix}: {hint} is {told}, and that of the operator {own}"
                fail(SignatureError, fact, fix=f"leave {hint} out")
        name = arguments["name"] or operator.name + suffix
        LinearOperator.__init__(self, operator.dtype, name=name, parameters=arguments, **hints)

    @property
    def operator(self) -> LinearOperator:
        """The operator that this one was created from."""
        return self._operator

    def _assert_non_singular(self) -> None:
        self._operator.assert_non_singular()

    def _assert_positive_definite(self) -> None:
        self._operator.assert_positive_definite()

    def _assert_self_adjoint(self) -> None:
        self._operator.assert_self_adjoint()

    def _cond(self) -> Tensor:
        return self._operator.cond()


class LinearOperatorAdjoint(_WrappedOperator):
    """The conjugate transposes of another operator's matrices.

    - `operator`: the other one, whose promises hold for both.

    >>> operator = tg.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
    >>> tg.linalg.LinearOperatorAdjoint(operator).to_dense().numpy()
    array([[1., 3.],
           [2., 4.]], dtype=float32)
    """

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        self._wrap(operator, given(locals()), "_adjoint")

    def _shape(self) -> Any:
        *lead, rows, columns = self._operator.shape
        return (*lead, columns, rows)

    def _linop_adjoint(self) -> LinearOperator:
        return self._operator

    def _linop_inverse(self) -> LinearOperator:
        return self._operator.inverse().adjoint()

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(x, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(rhs, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _determinant(self) -> Tensor:
        return conjugate_if(True, self._operator.determinant())

    def _log_abs_determinant(self) -> Tensor:
        return self._operator.log_abs_determinant()

    def _trace(self) -> Tensor:
        return conjugate_if(True, self._operator.trace())

    def _diag_part(self) -> Tensor:
        return conjugate_if(True, self._operator.diag_part())

    def _eigvals(self) -> Tensor:
        return conjugate_if(True, self._operator.eigvals())

    def _to_dense(self) -> Tensor:
        return adjoint_of(self._operator.to_dense())


class LinearOperatorInversion(_WrappedOperator):
    """The inverses of another operator's matrices.

    - `operator`: the other one, whose promises hold for both.

    Raises ValueError if it is known to be singular.

    >>> operator = tg.linalg.LinearOperatorDiag([2.0, 4.0])
    >>> tg.linalg.LinearOperatorInversion(operator).matvec([2.0, 2.0]).numpy()
    array([1. , 0.5], dtype=float32)
    """

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        arguments = given(locals())
        for hint in ("is_non_singular", "is_square"):
            told = arguments[hint] is False or getattr(operator, hint, None) is False
            reason = "only such an operator has an inverse"
            implied(name or type(self).__name__, hint, False if told else None, True, reason)
        arguments["is_non_singular"] = arguments["is_square"] = True
        self._wrap(operator, arguments, "_inv")

    def _shape(self) -> Any:
        return self._operator.shape

    def _linop_inverse(self) -> LinearOperator:
        return self._operator

    def _linop_adjoint(self) -> LinearOperator:
        return LinearOperatorInversion(self._operator.adjoint())

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(x, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _determinant(self) -> Tensor:
        return 1 / self._operator.determinant()

    def _log_abs_determinant(self) -> Tensor:
        return -self._operator.log_abs_determinant()

    def _eigvals(self) -> Tensor:
        return 1 / self._operator.eigvals()


LinearOperator.kinds["adjoint"] = LinearOperatorAdjoint
LinearOperator.kinds["inversion"] = LinearOperatorInversion
