"""Bitwise operations on integers: Python's `&`, `|`, `^`, `~`, `<<` and `>>` as functions.

Operands promote and broadcast as everywhere. All functions raise DTypeError, a TypeError, for
operands that are not integers.
"""

from __future__ import annotations

from typing import Any

from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, elementwise_operands
from tracegraph.ops import elementwise as ops
from tracegraph.typing import TensorLike


def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that are set in both operands.

    >>> tg.bitwise.bitwise_and([12, 5], 6).numpy()
    array([4, 4], dtype=int32)
    """
    return ops.LogicalAnd()(*_integers("bitwise_and", x, y))


def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that are set in either operand.

    >>> tg.bitwise.bitwise_or([12, 5], 6).numpy()
    array([14,  7], dtype=int32)
    """
    return ops.LogicalOr()(*_integers("bitwise_or", x, y))


def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that are set in exactly one operand.

    >>> tg.bitwise.bitwise_xor([12, 5], 6).numpy()
    array([10,  3], dtype=int32)
    """
    return ops.LogicalXor()(*_integers("bitwise_xor", x, y))


def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """The bits that are not set; for signed integers, -x - 1.

    >>> tg.bitwise.invert([0, 5]).numpy()
    array([-1, -6], dtype=int32)
    """
    x = as_tensor(x)
    _check("invert", x)
    return ops.LogicalNot()(x)


def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x with its bits shifted left by y, which is at least 0 and below the number of bits.

    >>> tg.bitwise.left_shift([1, -3], 2).numpy()
    array([  4, -12], dtype=int32)
    """
    return ops.ShiftLeft()(*_integers("left_shift", x, y))


def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x with its bits shifted right by y, at least 0 and below the number of bits; keeps the sign.

    >>> tg.bitwise.right_shift([16, -16], 2).numpy()
    array([ 4, -4], dtype=int32)
    """
    return ops.ShiftRight()(*_integers("right_shift", x, y))


def _integers(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, y = elementwise_operands(op, x, y)
    _check(op, x)
    return x, y


def _check(op: str, x: Tensor) -> None:
    if not x.dtype.is_integer:
        fact = f"{op}: the operand is {x.type}, and only integers have bits to combine"
        fail(DTypeError, fact, operands=[operand_text(x)], fix="convert it: tg.cast(x, tg.int32)")


__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]
