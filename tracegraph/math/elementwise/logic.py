"""Elementwise comparisons and logic. Results are bool and have no derivative."""

from __future__ import annotations

from typing import Any

from tracegraph.core.types import bool_
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, binary, cast_to
from tracegraph.ops import elementwise as ops
from tracegraph.typing import TensorLike

_AND, _NOT, _NOT_EQUAL, _IS_FINITE = (
    ops.LogicalAnd(),
    ops.LogicalNot(),
    ops.NotEqual(),
    ops.IsFinite(),
)
_equal, _not_equal = binary(ops.EQUAL, "equal"), binary(_NOT_EQUAL, "not_equal")
_less, _less_equal = binary(ops.LESS, "less"), binary(ops.LESS_EQUAL, "less_equal")
_greater = binary(ops.GREATER, "greater")
_greater_equal = binary(ops.GREATER_EQUAL, "greater_equal")
_and, _or = binary(_AND, "logical_and"), binary(ops.LogicalOr(), "logical_or")
_xor = binary(ops.LogicalXor(), "logical_xor")


def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x == y

    >>> tg.equal([1, 2], 2).numpy()
    array([False,  True])
    """
    return _equal(x, y)


def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x != y

    >>> tg.not_equal([1, 2], 2).numpy()
    array([ True, False])
    """
    return _not_equal(x, y)


def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x < y

    >>> tg.less([1, 2], 2).numpy()
    array([ True, False])
    """
    return _less(x, y)


def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x <= y

    >>> tg.less_equal([1, 3], 2).numpy()
    array([ True, False])
    """
    return _less_equal(x, y)


def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x > y

    >>> tg.greater([1, 3], 2).numpy()
    array([False,  True])
    """
    return _greater(x, y)


def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x >= y

    >>> tg.greater_equal([1, 2], 2).numpy()
    array([False,  True])
    """
    return _greater_equal(x, y)


def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x and y, for bools

    >>> tg.logical_and([True, False], True).numpy()
    array([ True, False])
    """
    return _and(*_truths("logical_and", x, y))


def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x or y, for bools

    >>> tg.logical_or([True, False], False).numpy()
    array([ True, False])
    """
    return _or(*_truths("logical_or", x, y))


def logical_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Either x or y but not both, for bools

    >>> tg.math.logical_xor([True, False], True).numpy()
    array([False,  True])
    """
    return _xor(*_truths("logical_xor", x, y))


def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """not x, for bools

    >>> tg.logical_not([True, False]).numpy()
    array([False,  True])
    """
    return _NOT(*_truths("logical_not", x))


def _truths(op: str, *values: Any) -> list[Tensor]:
    return [truth(op, value) for value in values]


def truth(op: str, value: TensorLike) -> Tensor:
    """The value as a bool tensor. Raises DTypeError for other dtypes."""
    x = as_tensor(value)
    if isinstance(value, (list, tuple)) and x.type.is_static and 0 in x.type.shape:
        x = cast_to(x, bool_)  # an empty list has no dtype
    if x.dtype is not bool_:
        fail(
            DTypeError,
            f"{op}: the operand is {x.type}, and it must be bool",
            operands=[operand_text(x)],
            fix="compare it: x != 0; bits of integers are combined by & | ^ ~",
        )
    return x


def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether x is neither infinite nor nan.

    >>> tg.math.is_finite([1.0, float("inf"), float("nan")]).numpy()
    array([ True, False, False])
    """
    return _IS_FINITE(as_tensor(x))


def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether x is nan.

    >>> tg.math.is_nan([1.0, float("inf"), float("nan")]).numpy()
    array([False, False,  True])
    """
    x = as_tensor(x)
    return _NOT_EQUAL(x, x)


def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether x is inf or -inf.

    >>> tg.math.is_inf([1.0, float("inf"), float("nan")]).numpy()
    array([False,  True, False])
    """
    x = as_tensor(x)
    return _AND(_NOT(_IS_FINITE(x)), ops.EQUAL(x, x))


__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]
