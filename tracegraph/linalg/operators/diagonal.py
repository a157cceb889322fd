"""Diagonal operators: diagonals, identities and zeros."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import as_shape, given
from tracegraph.array.creation import ones, zeros
from tracegraph.array.shaping import expand_dims
from tracegraph.core.shapes import minimum, same_size
from tracegraph.core.types import as_dtype, float32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import (
    HINTS,
    common_batch,
    conjugate_if,
    implied,
    parameter,
    row_count,
    spread,
)
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of, diag as matrix_of, diag_part, set_diag
from tracegraph.math.elementwise.logic import equal, not_equal
from tracegraph.math.elementwise.unary import abs as absolute, imag, log, real, sqrt
from tracegraph.math.reduction import reduce_prod
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.typing import DTypeLike, ShapeLike, SizeLike, TensorLike


class Diagonal(LinearOperator):
    """An operator whose matrices are square, and 0 off the diagonal.

    `_factors` gives the diagonal as a tensor [..., n], or [..., 1] if it is constant.
    """

    def _factors(self) -> Tensor:
        raise NotImplementedError

    def _assert_non_singular(self) -> None:
        values = self._factors()
        self._check(not_equal(values, 0), "the diagonal has a zero, so it is singular", values)

    def _assert_positive_definite(self) -> None:
        values = self._factors()
        fact = "the diagonal has numbers whose real part is not positive"
        self._check(real(values) > 0, fact, values)

    def _assert_self_adjoint(self) -> None:
        if self.dtype.is_complex:
            values = self._factors()
            self._check(equal(imag(values), 0), "the diagonal is not real", values)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        return self._spread(expand_dims(conjugate_if(adjoint, self._factors()), -1) * x)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        return self._spread(rhs / expand_dims(conjugate_if(adjoint, self._factors()), -1))

    def _spread(self, x: Tensor) -> Tensor:
        return spread(x, tuple(self.batch_shape))

    def _determinant(self) -> Tensor:
        return reduce_prod(self._diag_part(), -1)

    def _log_abs_determinant(self) -> Tensor:
        return self._sum_of_logarithms(self._diag_part())

    def _diag_part(self) -> Tensor:
        return broadcast(self._factors(), tuple(self.shape[:-1]))

    def _eigvals(self) -> Tensor:
        return self._diag_part()

    def _cond(self) -> Tensor:
        return self._ratio(self._diag_part())

    def _to_dense(self) -> Tensor:
        return matrix_of(self._diag_part())

    def _add_to_tensor(self, x: Tensor) -> Tensor:
        shape = common_batch("add_to_tensor", (self.shape, x.type.shape))
        x = broadcast(x, shape)
        return set_diag(x, diag_part(x) + self._diag_part())


class LinearOperatorDiag(Diagonal):
    """The operator of diagonal matrices.

    - `diag`: the diagonals, [..., n].
    - The promises are those of `tg.linalg.LinearOperator`; a real diagonal is self-adjoint.

    >>> operator = tg.linalg.LinearOperatorDiag([2.0, 4.0])
    >>> operator.matvec([1.0, 1.0]).numpy(), operator.determinant().numpy()
    (array([2., 4.], dtype=float32), np.float32(8.0))
    """

    def __init__(
        self,
        diag: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorDiag",
    ) -> None:
        arguments = given(locals())
        self._diag = parameter(name, diag, 1, "the diagonal")
        is_real = not self._diag.dtype.is_complex
        self._promise(
            self._diag.dtype,
            arguments,
            is_self_adjoint=(is_real or None, "a real diagonal is self-adjoint"),
            is_square=(True, "diagonal matrices are square"),
        )

    @property
    def diag(self) -> Tensor:
        """The diagonals that the operator was created from."""
        return self._diag

    def _shape(self) -> Any:
        return self._diag.shape.concatenate(self._diag.shape[-1:])

    def _factors(self) -> Tensor:
        return as_tensor(self._diag)

    def _linop_adjoint(self) -> LinearOperator:
        return LinearOperatorDiag(conjugate_if(True, self._factors()), **self._hints_given())

    def _linop_inverse(self) -> LinearOperator:
        return LinearOperatorDiag(1 / self._factors(), **self._hints_given())

    def _linop_cholesky(self) -> LinearOperator:
        return LinearOperatorDiag(sqrt(self._factors()), **self._hints_given())


class _Sized(LinearOperator):
    """An operator whose sizes are arguments."""

    def _set_sizes(self, num_rows: Any, num_columns: Any, batch_shape: Any) -> None:
        name = type(self).__name__
        self._rows = row_count(name, "num_rows", num_rows)
        self._columns = self._rows
        if num_columns is not None:
            self._columns = row_count(name, "num_columns", num_columns)
        self._lead = () if batch_shape is None else tuple(as_shape(name, batch_shape))

    def _shape(self) -> Any:
        return (*self._lead, self._rows, self._columns)


class LinearOperatorIdentity(Diagonal, _Sized):
    """The operator that returns its argument unchanged.

    - `num_rows`: the number of rows, and of columns.
    - `batch_shape`: leading axes.
    - `dtype`: float32 by default.
    - `assert_proper_shapes`: has no effect, since sizes are always checked.

    >>> tg.linalg.LinearOperatorIdentity(2).matmul([[1.0], [2.0]]).numpy()
    array([[1.],
           [2.]], dtype=float32)
    """

    def __init__(
        self,
        num_rows: SizeLike,
        batch_shape: ShapeLike | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: bool = True,
        is_self_adjoint: bool = True,
        is_positive_definite: bool = True,
        is_square: bool = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorIdentity",
    ) -> None:
        arguments = given(locals())
        self._set_sizes(num_rows, None, batch_shape)
        facts: dict[str, Any] = dict.fromkeys(HINTS, (True, "an identity is"))
        self._promise(as_dtype(dtype or float32), arguments, **facts)

    def _factors(self) -> Tensor:
        return ones([*self._lead, 1], self.dtype)

    def _assert_non_singular(self) -> None:
        """Passes: an identity is non-singular."""

    _assert_positive_definite = _assert_self_adjoint = _assert_non_singular

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._spread(adjoint_of(x) if adjoint_arg else x)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs, adjoint_arg=adjoint_arg)

    def _determinant(self) -> Tensor:
        return ones(list(self._lead), self.dtype)

    def _log_abs_determinant(self) -> Tensor:
        return zeros(list(self._lead), self.dtype)

    def _cond(self) -> Tensor:
        return self._determinant()

    def _linop_inverse(self) -> LinearOperator:
        return self

    _linop_cholesky = _linop_inverse


class LinearOperatorScaledIdentity(Diagonal):
    """The operator that multiplies by a number.

    - `num_rows`: the number of rows, and of columns.
    - `multiplier`: the number, or one for each matrix.
    - `assert_proper_shapes`: has no effect, since sizes are always checked.
    - The promises are those of `tg.linalg.LinearOperator`; a real multiplier is self-adjoint.

    >>> tg.linalg.LinearOperatorScaledIdentity(2, 3.0).determinant().numpy()
    np.float32(9.0)
    """

    def __init__(
        self,
        num_rows: SizeLike,
        multiplier: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorScaledIdentity",
    ) -> None:
        arguments = given(locals())
        self._multiplier = parameter(name, multiplier, 0, "the multiplier")
        self._rows = row_count(name, "num_rows", num_rows)
        is_real = not self._multiplier.dtype.is_complex
        self._promise(
            self._multiplier.dtype,
            arguments,
            is_self_adjoint=(is_real or None, "a real multiple of 1 is"),
            is_square=(True, "multiples of 1 are square"),
        )

    @property
    def multiplier(self) -> Tensor:
        """The number, or one for each matrix."""
        return self._multiplier

    def _shape(self) -> Any:
        return self._multiplier.shape.concatenate([self._rows, self._rows])

    def _factors(self) -> Tensor:
        return expand_dims(as_tensor(self._multiplier), -1)

    def _determinant(self) -> Tensor:
        return as_tensor(self._multiplier) ** self._count()

    def _log_abs_determinant(self) -> Tensor:
        logarithm = log(absolute(as_tensor(self._multiplier)))
        return cast_to(logarithm, self.dtype) * self._count()

    def _trace(self) -> Tensor:
        return as_tensor(self._multiplier) * self._count()

    def _count(self) -> Any:
        """The number of rows, as a factor of the dtype."""
        is_known = type(self._rows) is int
        return self._rows if is_known else cast_to(as_tensor(self._rows), self.dtype)

    def _cond(self) -> Tensor:
        return self._ratio(self._factors())

    def _linop_adjoint(self) -> LinearOperator:
        return self._scaled(conjugate_if(True, as_tensor(self._multiplier)))

    def _linop_inverse(self) -> LinearOperator:
        return self._scaled(1 / as_tensor(self._multiplier))

    def _linop_cholesky(self) -> LinearOperator:
        return self._scaled(sqrt(as_tensor(self._multiplier)))

    def _scaled(self, multiplier: Tensor) -> LinearOperator:
        return LinearOperatorScaledIdentity(self._rows, multiplier, **self._hints_given())


class LinearOperatorZeros(_Sized):
    """The operator of zero matrices, which need not be square.

    - `num_rows`, `num_columns`: the sizes; square by default.
    - `batch_shape`: leading axes.
    - `dtype`: float32 by default.
    - `assert_proper_shapes`: has no effect, since sizes are always checked.

    >>> tg.linalg.LinearOperatorZeros(2).matvec([1.0, 2.0]).numpy()
    array([0., 0.], dtype=float32)
    """

    def __init__(
        self,
        num_rows: SizeLike,
        num_columns: SizeLike | None = None,
        batch_shape: ShapeLike | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: bool | None = False,
        is_self_adjoint: bool | None = True,
        is_positive_definite: bool | None = False,
        is_square: bool | None = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorZeros",
    ) -> None:
        arguments = given(locals())
        self._set_sizes(num_rows, num_columns, batch_shape)
        is_wide = same_size(self._rows, self._columns) is None
        if is_wide and is_square:
            fact = f"{name}: is_square is True, and the operator has {self._rows} rows and "
            fail(SignatureError, f"{fact}{self._columns} columns", fix="give is_square=False")
        super().__init__(
            as_dtype(dtype or float32),
            is_non_singular=implied(name, "is_non_singular", is_non_singular, False, "zeros are"),
            is_self_adjoint=is_self_adjoint and not is_wide,
            is_positive_definite=implied(
                name, "is_positive_definite", is_positive_definite, False, "zeros are not"
            ),
            is_square=is_square,
            name=name,
            parameters=arguments,
        )

    def _assert_non_singular(self) -> None:
        refuse_zeros(self, "singular")

    def _assert_positive_definite(self) -> None:
        refuse_zeros(self, "not positive definite")

    def _assert_self_adjoint(self) -> None:
        """Passes: zeros are self-adjoint."""

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        lead = common_batch("matmul", (self._lead, x.type.shape[:-2]))
        return zeros([*lead, self._inner_size(not adjoint), x.type.shape[-1]], self.dtype)

    def _to_dense(self) -> Tensor:
        return zeros([*self._lead, self._rows, self._columns], self.dtype)

    def _determinant(self) -> Tensor:
        return zeros(list(self._lead), self.dtype)

    _trace = _determinant

    def _log_abs_determinant(self) -> Tensor:
        return log(self._determinant())

    def _diag_part(self) -> Tensor:
        return zeros([*self._lead, minimum(self._rows, self._columns)], self.dtype)

    _eigvals = _diag_part

    def _add_to_tensor(self, x: Tensor) -> Tensor:
        return broadcast(x, common_batch("add_to_tensor", (self.shape, x.type.shape)))

    def _linop_adjoint(self) -> LinearOperator:
        return LinearOperatorZeros(
            self._columns,
            self._rows,
            self._lead,
            self.dtype,
            is_self_adjoint=False,
            is_square=self.is_square,
        )


def refuse_zeros(operator: LinearOperator, what: str) -> None:
    """Raises the error that a check of the values would raise."""
    operator._check(as_tensor(False), f"zeros are {what}")
