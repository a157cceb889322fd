"""Operators that permute and reflect."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import as_integers, given
from tracegraph.array.creation import ones, range as numbers_from, zeros
from tracegraph.array.indexing.selection import gather
from tracegraph.array.shaping import expand_dims
from tracegraph.core.types import as_dtype, float32, int32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import HINTS, common_batch, parameter, with_batch
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.elementwise.unary import abs as absolute, square
from tracegraph.math.norms import l2_normalize
from tracegraph.math.product import matmul
from tracegraph.math.sorting import argsort, sort
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, static_value
from tracegraph.typing import DTypeLike, TensorLike


class LinearOperatorPermutation(LinearOperator):
    """The operator that permutes the rows of its argument.

    - `perm`: row indices, [..., n]: row i of the result is row perm[i] of the argument.
    - `dtype`: float32 by default.
    - The promises are those of `tg.linalg.LinearOperator`.

    Raises ValueError for indices that are known not to be a permutation.

    >>> tg.linalg.LinearOperatorPermutation([1, 2, 0]).matvec([5.0, 6.0, 7.0]).numpy()
    array([6., 7., 5.], dtype=float32)
    """

    def __init__(
        self,
        perm: TensorLike,
        dtype: DTypeLike = float32,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorPermutation",
    ) -> None:
        arguments = given(locals())
        self._perm = parameter(name, perm, 1, "the permutation")
        as_integers(name, "the numbers of rows perm", self._perm)
        _check_permutation(name, self._perm)
        fact = (True, "permutations are")
        self._promise(as_dtype(dtype), arguments, is_non_singular=fact, is_square=fact)

    @property
    def perm(self) -> Tensor:
        """The row indices."""
        return self._perm

    def _shape(self) -> Any:
        return self._perm.shape.concatenate(self._perm.shape[-1:])

    def _assert_non_singular(self) -> None:
        numbers = as_tensor(self._perm)
        rows = numbers_from(numbers.type.shape[-1], dtype=numbers.dtype)
        self._check(equal(sort(numbers), rows), "perm is not a permutation", numbers)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        numbers = as_tensor(self._perm)
        numbers = argsort(numbers) if adjoint else numbers
        lead = common_batch("matmul", (self.batch_shape, x.type.shape[:-2]))
        numbers = broadcast(numbers, (*lead, numbers.type.shape[-1]))
        return gather(with_batch(x, lead), numbers, axis=len(lead), batch_dims=len(lead))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs, not adjoint, adjoint_arg)

    def _log_abs_determinant(self) -> Tensor:
        return zeros(list(self.batch_shape), self.dtype)

    def _to_dense(self) -> Tensor:
        return cast_to(equal(*self._numbers_and_columns()), self.dtype)

    def _numbers_and_columns(self) -> tuple[Tensor, Tensor]:
        numbers = expand_dims(as_tensor(self._perm), -1)
        return numbers, numbers_from(numbers.type.shape[-2], dtype=numbers.dtype)

    def _diag_part(self) -> Tensor:
        numbers = as_tensor(self._perm)
        rows = numbers_from(numbers.type.shape[-1], dtype=numbers.dtype)
        return cast_to(equal(numbers, rows), self.dtype)

    def _cond(self) -> Tensor:
        return ones(list(self.batch_shape), self.dtype)

    def _linop_inverse(self) -> LinearOperator:
        return LinearOperatorPermutation(
            argsort(as_tensor(self._perm)), self.dtype, is_self_adjoint=self.is_self_adjoint
        )

    _linop_adjoint = _linop_inverse


def _check_permutation(name: str, perm: Any) -> None:
    known = static_value(as_tensor(perm))
    if known is None:
        return
    known = np.asarray(known)
    rows = np.arange(known.shape[-1])
    if not np.array_equal(np.sort(known), np.broadcast_to(rows, known.shape)):
        fact = f"{name}: perm is {known.tolist()}, which is not a permutation"
        fail(SignatureError, fact, fix=f"give each of the numbers 0 to {len(rows) - 1} once")


class LinearOperatorHouseholder(LinearOperator):
    """The operator that reflects at a hyperplane: 1 - 2 v v^H, with v of length 1.

    - `reflection_axis`: [..., n], the axes v, of any nonzero length.

    It solves equations by applying itself, since it is its own inverse.

    >>> tg.linalg.LinearOperatorHouseholder([3.0, 0.0]).matvec([1.0, 2.0]).numpy()
    array([-1.,  2.], dtype=float32)
    """

    def __init__(
        self,
        reflection_axis: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorHouseholder",
    ) -> None:
        arguments = given(locals())
        self._reflection_axis = parameter(name, reflection_axis, 1, "the axis")
        facts: dict[str, Any] = dict.fromkeys(HINTS, (True, "reflections are"))
        facts["is_positive_definite"] = (False, "reflections are not")
        self._promise(self._reflection_axis.dtype, arguments, **facts)

    @property
    def reflection_axis(self) -> Tensor:
        """The axes of the reflections, as given."""
        return self._reflection_axis

    def _shape(self) -> Any:
        return self._reflection_axis.shape.concatenate(self._reflection_axis.shape[-1:])

    def _unit(self) -> Tensor:
        """The axes scaled to length 1, as columns."""
        return expand_dims(l2_normalize(as_tensor(self._reflection_axis), -1, epsilon=0.0), -1)

    def _assert_non_singular(self) -> None:
        """Passes: a reflection is non-singular."""

    _assert_self_adjoint = _assert_non_singular

    def _assert_positive_definite(self) -> None:
        self._check(as_tensor(False), "a reflection is not positive definite")

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        axis = self._unit()
        return x - 2 * axis * matmul(axis, x, adjoint_a=True)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs, adjoint, adjoint_arg)

    def _determinant(self) -> Tensor:
        return -ones(list(self.batch_shape), self.dtype)

    def _log_abs_determinant(self) -> Tensor:
        return zeros(list(self.batch_shape), self.dtype)

    def _trace(self) -> Tensor:
        size = cast_to(as_tensor(self.domain_dimension), self.dtype)
        return broadcast(size - 2, tuple(self.batch_shape))

    def _diag_part(self) -> Tensor:
        return cast_to(1 - 2 * square(absolute(self._unit()[..., 0])), self.dtype)

    def _eigvals(self) -> Tensor:
        signs = 1 - 2 * cast_to(equal(numbers_from(self.domain_dimension), 0), int32)
        return broadcast(cast_to(signs, self.dtype), tuple(self.shape[:-1]))

    def _cond(self) -> Tensor:
        return ones(list(self.batch_shape), self.dtype)

    def _linop_inverse(self) -> LinearOperator:
        return self
