"""Elementwise functions, under the names of the array API standard.

Most are the functions of `tg.math` themselves; the others add what the standard requires, such as
integers that `ceil` leaves unchanged.
"""

from __future__ import annotations

import builtins
import math as python_math

from tracegraph import math
from tracegraph.array import bitcast, cast, complex, where, zeros_like
from tracegraph.bitwise import left_shift, right_shift
from tracegraph.core.types import as_dtype, bool_, float32
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    conj,
    cos,
    cosh,
    divide,
    equal,
    exp,
    expm1,
    greater,
    greater_equal,
    imag,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    pow,
    real,
    reciprocal,
    round,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
)
from tracegraph.operands.conversion import as_tensor, binary, cast_to, elementwise_operands
from tracegraph.ops.elementwise import LogicalAnd, LogicalNot, LogicalOr, LogicalXor
from tracegraph.typing import TensorLike

floor_divide, remainder = math.floordiv, math.floormod
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift

_bitwise_and = binary(LogicalAnd(), "bitwise_and")
_bitwise_or = binary(LogicalOr(), "bitwise_or")
_bitwise_xor = binary(LogicalXor(), "bitwise_xor")


def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits that are set in both operands; for bools, whether both are true.

    >>> tg.numpy.bitwise_and(tg.constant([12, 5]), 6).numpy()
    array([4, 4], dtype=int32)
    """
    return _bitwise_and(x1, x2)


def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits that are set in either operand; for bools, whether either is true."""
    return _bitwise_or(x1, x2)


def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits that are set in exactly one operand; for bools, whether they differ."""
    return _bitwise_xor(x1, x2)


def bitwise_invert(x: TensorLike, /) -> Tensor:
    """The bits that are not set; for bools, the negation."""
    return LogicalNot()(as_tensor(x))


def ceil(x: TensorLike, /) -> Tensor:
    """The smallest integral value that is not below x; integers are unchanged.

    >>> tg.numpy.ceil([1.5, -1.5]).numpy(), tg.numpy.ceil(3).numpy()
    (array([ 2., -1.], dtype=float32), np.int32(3))
    """
    x = as_tensor(x)
    return x if x.dtype.is_integer else math.ceil(x)


def floor(x: TensorLike, /) -> Tensor:
    """The largest integral value that is not above x; integers are unchanged."""
    x = as_tensor(x)
    return x if x.dtype.is_integer else math.floor(x)


def trunc(x: TensorLike, /) -> Tensor:
    """x rounded towards zero; integers are unchanged.

    >>> tg.numpy.trunc([1.5, -1.5]).numpy()
    array([ 1., -1.], dtype=float32)
    """
    x = as_tensor(x)
    return x if x.dtype.is_integer else where(less(x, 0), math.ceil(x), math.floor(x))


def isfinite(x: TensorLike, /) -> Tensor:
    """Whether each element is neither infinite nor nan; true for integers.

    >>> tg.numpy.isfinite([1.0, float("inf")]).numpy()
    array([ True, False])
    """
    x = as_tensor(x)
    return math.is_finite(x) if x.dtype.is_differentiable else _everywhere(x, True)


def isinf(x: TensorLike, /) -> Tensor:
    """Whether each element is infinite; false for integers."""
    x = as_tensor(x)
    return math.is_inf(x) if x.dtype.is_differentiable else _everywhere(x, False)


def isnan(x: TensorLike, /) -> Tensor:
    """Whether each element is nan; false for integers."""
    x = as_tensor(x)
    return math.is_nan(x) if x.dtype.is_differentiable else _everywhere(x, False)


def _everywhere(x: Tensor, value: builtins.bool) -> Tensor:
    answer = zeros_like(x, bool_)
    return logical_not(answer) if value else answer


def positive(x: TensorLike, /) -> Tensor:
    """x itself."""
    return as_tensor(x)


def log2(x: TensorLike, /) -> Tensor:
    """The logarithm to the base 2.

    >>> tg.numpy.log2([1.0, 8.0]).numpy()
    array([0., 3.], dtype=float32)
    """
    return multiply(log(x), 1 / python_math.log(2))


def log10(x: TensorLike, /) -> Tensor:
    """The logarithm to the base 10."""
    return multiply(log(x), 1 / python_math.log(10))


def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """log(e ** x1 + e ** x2), without overflow and accurate for results near 0.

    >>> tg.numpy.logaddexp([0.0, 1000.0], [0.0, 1000.0]).numpy()
    array([6.9314718e-01, 1.0006932e+03], dtype=float32)
    """
    x, y = elementwise_operands("logaddexp", x1, x2)
    is_first = greater_equal(x, y)
    high, low = where(is_first, x, y), where(is_first, y, x)
    # The difference of two equal infinities would be nan.
    is_same = logical_and(equal(low, high), math.is_inf(high))
    difference = where(is_same, zeros_like(high), subtract(low, high))
    return add(high, math.softplus(difference))


def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """sqrt(x1 ** 2 + x2 ** 2), without overflow; its derivatives at (0, 0) are 0.

    >>> tg.numpy.hypot([3.0, 1e30], [4.0, 1e30]).numpy()
    array([5.0000000e+00, 1.4142135e+30], dtype=float32)
    """
    x, y = elementwise_operands("hypot", x1, x2)
    wide = float32 if x.dtype.size < 4 else x.dtype
    length = cast_to(abs(complex(cast(x, wide), cast(y, wide))), x.dtype)
    # If one side is infinite, the other does not matter, even if it is nan.
    return where(logical_or(isinf(x), isinf(y)), python_math.inf, length)


def signbit(x: TensorLike, /) -> Tensor:
    """Whether the sign bit of each floating-point number is set, as it is for -0.0.

    >>> tg.numpy.signbit([-1.0, -0.0, 0.0]).numpy()
    array([ True,  True, False])
    """
    x = _floating("signbit", x)
    return less(bitcast(x, as_dtype(f"int{8 * x.dtype.size}")), 0)


def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The absolute values of x1 with the signs of x2.

    >>> tg.numpy.copysign([1.0, -2.0], [-0.0, 3.0]).numpy()
    array([-1.,  2.], dtype=float32)
    """
    x, y = elementwise_operands("copysign", x1, x2)
    return where(equal(signbit(x), signbit(y)), x, negative(x))


def _floating(op: str, x: TensorLike) -> Tensor:
    x = as_tensor(x)
    if x.dtype.is_floating:
        return x
    fact = f"{op}: the operand is {x.type}, and it must be floating"
    fail(DTypeError, fact, operands=[operand_text(x)], fix="convert it: tg.cast(x, tg.float32)")


def clip(x: TensorLike, /, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x where it is between the bounds, else the nearer bound; see `tg.clip_by_value`.

    >>> tg.numpy.clip([-2.0, 0.5, 2.0], -1.0, 1.0).numpy(), tg.numpy.clip([-2, 2], max=0).numpy()
    (array([-1. ,  0.5,  1. ], dtype=float32), array([-2,  0], dtype=int32))
    """
    if min is not None and max is not None:
        return math.clip_by_value(x, min, max)
    if min is not None:
        return maximum(as_tensor(x), min)
    return as_tensor(x) if max is None else minimum(as_tensor(x), max)


__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
]
