"""Operators that are matrix or Kronecker products of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegraph.array.arguments import given, refuse
from tracegraph.array.shaping import expand_dims
from tracegraph.core.shapes import element_count, same_size
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import (
    HINTS,
    all_hint,
    common_batch,
    common_dtype,
    folded,
    joined_name,
)
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.math.elementwise.unary import abs as absolute
from tracegraph.operands.conversion import cast_to
from tracegraph.ops.shape import Reshape, Transpose


class Several(LinearOperator):
    """An operator composed of a list of others."""

    def _set_operators(self, operators: Sequence[LinearOperator], name: str | None, sign: str):
        """Stores the operators; returns the dtype and the name."""
        kind = type(self).__name__
        for operator in operators:
            if not isinstance(operator, LinearOperator):
                fact = f"{kind}: the operators have {operator!r} among them"
                fail(SignatureError, fact, fix="give a list of tg.linalg.LinearOperator")
        self._operators = list(operators)
        dtype = common_dtype(name or kind, self._operators)
        return dtype, name or joined_name(self._operators, sign)

    @property
    def operators(self) -> list[LinearOperator]:
        """The operators that this one was created from."""
        return list(self._operators)

    def _common_lead(self) -> tuple[Any, ...]:
        return common_batch(self.name, (operator.batch_shape for operator in self._operators))

    def _are_square(self) -> bool:
        return all(operator.is_square for operator in self._operators)

    def _all(self, ask: Callable[[Any], Tensor]) -> list[Tensor]:
        return [ask(operator) for operator in self._operators]

    def _assert_non_singular(self) -> None:
        if not self._are_square():
            return super()._assert_non_singular()
        for operator in self._operators:
            operator.assert_non_singular()

    def _determinant(self) -> Tensor:
        if not self._are_square():
            return super()._determinant()
        return folded(multiply, self._all(lambda operator: operator.determinant()))

    def _log_abs_determinant(self) -> Tensor:
        if not self._are_square():
            return super()._log_abs_determinant()
        return sum(self._all(lambda operator: operator.log_abs_determinant()))  # type: ignore


class LinearOperatorComposition(Several):
    """The product of the matrices of several operators; the last one is applied first.

    - `operators`: a list of them; the leading axes broadcast.
    - The promises are those of `tg.linalg.LinearOperator`; it is non-singular if all are.

    Raises ShapeError if the sizes do not fit, ValueError if the dtypes differ.

    >>> first = tg.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
    >>> second = tg.linalg.LinearOperatorDiag([2.0, 1.0])
    >>> tg.linalg.LinearOperatorComposition([first, second]).to_dense().numpy()
    array([[2., 2.],
           [6., 4.]], dtype=float32)
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        arguments = given(locals())
        dtype, name = self._set_operators(operators, name, "_o_")
        for left, right in zip(self._operators, self._operators[1:]):
            if same_size(left.domain_dimension, right.range_dimension) is None:
                fact = f"an operator of shape {left.shape} is followed by one of {right.shape}"
                refuse(name, fact, fix="give each as many columns as the next one has rows")
        is_regular = all_hint(operators, "is_non_singular")
        is_gram, reason = self._is_gram(), "it is an operator times its adjoint"
        self._promise(
            dtype,
            arguments,
            name,
            is_non_singular=(is_regular or None, "all operators are"),
            is_self_adjoint=(is_gram or None, reason),
            is_positive_definite=((is_gram and is_regular) or None, reason),
        )

    def _is_gram(self) -> bool:
        """Whether it is the product of operators and, in reverse order, of their adjoints."""
        operators = self._operators
        return len(operators) % 2 == 0 and all(
            _are_adjoint(left, right) for left, right in zip(operators, reversed(operators))
        )

    def _linop_cholesky(self) -> LinearOperator:
        left = self._operators[0]
        if (
            len(self._operators) == 2
            and self._is_gram()
            and isinstance(left, self.kinds["triangular"])
        ):
            return left if left.is_positive_definite else _with_positive_diagonal(left)
        return super()._linop_cholesky()

    def _shape(self) -> Any:
        rows = self._operators[0].range_dimension
        return (*self._common_lead(), rows, self._operators[-1].domain_dimension)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        for operator in self._operators if adjoint else reversed(self._operators):
            x = operator.matmul(x, adjoint=adjoint)
        return x

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        for operator in reversed(self._operators) if adjoint else self._operators:
            rhs = operator.solve(rhs, adjoint=adjoint)
        return rhs

    def _linop_adjoint(self) -> LinearOperator:
        return LinearOperatorComposition(
            [operator.adjoint() for operator in reversed(self._operators)], **self._hints_given()
        )

    def _linop_inverse(self) -> LinearOperator:
        if not self._are_square():
            return super()._linop_inverse()
        hints = {**self._hints_given(), "is_non_singular": True}
        parts = [operator.inverse() for operator in reversed(self._operators)]
        return LinearOperatorComposition(parts, **hints)


def _are_adjoint(left: LinearOperator, right: LinearOperator) -> bool:
    """Whether either of two operators is the adjoint of the other."""
    if left is right:
        return left.is_self_adjoint is True
    pairs = ((left, right), (right, left))
    return any(_is_adjoint(x) and getattr(x, "operator", None) is y for x, y in pairs)


def _is_adjoint(operator: LinearOperator) -> bool:
    return isinstance(operator, LinearOperator.kinds["adjoint"])


def _with_positive_diagonal(triangle: Any) -> LinearOperator:
    """The triangle L with columns rotated so that the diagonal is positive; L L^H is unchanged."""
    diagonal = triangle.diag_part()
    signs = diagonal / cast_to(absolute(diagonal), diagonal.dtype)
    columns = triangle.to_dense() / expand_dims(signs, -2)
    return type(triangle)(columns, is_non_singular=True)


class LinearOperatorKronecker(Several):
    """The Kronecker product: block i, j of the matrix is a[i, j] times the product of the rest.

    - `operators`: a list of them; the leading axes broadcast.
    - The promises are those of `tg.linalg.LinearOperator`; those that all operators make hold for
      it.

    Products, solutions and determinants come from the factors: the matrix, whose size is the
    product of all theirs, is never built.

    >>> left = tg.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
    >>> right = tg.linalg.LinearOperatorDiag([1.0, 10.0])
    >>> tg.linalg.LinearOperatorKronecker([left, right]).diag_part().numpy()
    array([ 1., 10.,  4., 40.], dtype=float32)
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        arguments = given(locals())
        dtype, name = self._set_operators(operators, name, "_x_")
        holds = {hint: all_hint(operators, hint) for hint in HINTS}
        # A quarter turn is positive definite, but its square is -1.
        holds["is_positive_definite"] &= holds["is_self_adjoint"]
        facts = {hint: (value or None, "all operators are") for hint, value in holds.items()}
        self._promise(dtype, arguments, name, **facts)

    def _shape(self) -> Any:
        rows = element_count(tuple(operator.range_dimension for operator in self._operators))
        columns = element_count(tuple(operator.domain_dimension for operator in self._operators))
        return (*self._common_lead(), rows, columns)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        sizes = [operator._inner_size(adjoint) for operator in self._operators]
        return self._applied(x, sizes, lambda one, part: one.matmul(part, adjoint=adjoint))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        if not self._are_square():
            return super()._solve(rhs, adjoint, adjoint_arg)
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        sizes = [operator.range_dimension for operator in self._operators]
        return self._applied(rhs, sizes, lambda one, part: one.solve(part, adjoint=adjoint))

    def _applied(
        self, x: Tensor, sizes: Sequence[Any], apply: Callable[[Any, Tensor], Tensor]
    ) -> Tensor:
        """Applies each operator along its own axis of x, the last one first.

        The rows of x are numbered like (first, ..., last); the axes have these `sizes`.
        """
        count = x.type.shape[-1]
        after: tuple[Any, ...] = (count,)
        for number in reversed(range(len(sizes))):
            before, width = element_count(tuple(sizes[:number])), element_count(after)
            whole = (*x.type.shape[:-2], before, sizes[number], width)
            flat = _first_two_exchanged(Reshape(whole)(x))
            *lead, own, _, _ = flat.type.shape
            y = apply(self._operators[number], Reshape((*lead, own, before * width))(flat))
            *lead, new, _ = y.type.shape
            turned = _first_two_exchanged(Reshape((*lead, new, before, width))(y))
            x = Reshape((*lead, before * new, width))(turned)
            after = (new, *after)
        return Reshape((*x.type.shape[:-2], element_count(after[:-1]), count))(x)

    def _determinant(self) -> Tensor:
        if not self._are_square():
            return super()._determinant()
        return folded(multiply, (op.determinant() ** power for op, power in self._powers()))

    def _log_abs_determinant(self) -> Tensor:
        if not self._are_square():
            return super()._log_abs_determinant()
        return sum(op.log_abs_determinant() * power for op, power in self._powers())  # type: ignore

    def _powers(self) -> list[tuple[LinearOperator, Any]]:
        """Each operator, with the power of its determinant in that of the product."""
        sizes = [operator.domain_dimension for operator in self._operators]
        others = [element_count((*sizes[:k], *sizes[k + 1 :])) for k in range(len(sizes))]
        return list(zip(self._operators, others, strict=True))

    def _trace(self) -> Tensor:
        if not self._are_square():
            return super()._trace()
        return folded(multiply, self._all(lambda operator: operator.trace()))

    def _diag_part(self) -> Tensor:
        if not self._are_square():
            return super()._diag_part()
        return folded(_outer, self._all(lambda operator: operator.diag_part()))

    def _eigvals(self) -> Tensor:
        if not (self._are_square() and all_hint(self._operators, "is_self_adjoint")):
            return super()._eigvals()
        return folded(_outer, self._all(lambda operator: operator.eigvals()))

    def _cond(self) -> Tensor:
        if not self._are_square():
            return super()._cond()
        return folded(multiply, self._all(lambda operator: operator.cond()))

    def _to_dense(self) -> Tensor:
        return folded(_kronecker, self._all(lambda operator: operator.to_dense()))

    def _assert_self_adjoint(self) -> None:
        if not all_hint(self._operators, "is_self_adjoint"):
            return super()._assert_self_adjoint()
        for operator in self._operators:
            operator.assert_self_adjoint()

    def _linop_adjoint(self) -> LinearOperator:
        return self._of_each(lambda operator: operator.adjoint())

    def _linop_inverse(self) -> LinearOperator:
        if not self._are_square():
            return super()._linop_inverse()
        return self._of_each(lambda operator: operator.inverse())

    def _linop_cholesky(self) -> LinearOperator:
        if not all(operator._can_use_cholesky() for operator in self._operators):
            return super()._linop_cholesky()
        parts = [operator.cholesky() for operator in self._operators]
        return LinearOperatorKronecker(parts, is_non_singular=True)

    def _of_each(self, make: Callable[[Any], LinearOperator]) -> LinearOperator:
        parts = [make(operator) for operator in self._operators]
        return LinearOperatorKronecker(parts, **self._hints_given())


def _first_two_exchanged(x: Tensor) -> Tensor:
    """x[..., i, j, k] with i and j exchanged."""
    rank = x.ndim
    return Transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1))(x)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """The products x[..., i] y[..., j], flattened along one axis."""
    both = x[..., :, None] * y[..., None, :]
    *lead, rows, columns = both.type.shape
    return Reshape((*lead, rows * columns))(both)


def _kronecker(x: Tensor, y: Tensor) -> Tensor:
    both = x[..., :, None, :, None] * y[..., None, :, None, :]
    *lead, m, p, n, q = both.type.shape
    return Reshape((*lead, m * p, n * q))(both)
