"""Elementwise arithmetic with two operands, which are promoted and broadcast first."""

from __future__ import annotations

from typing import Any

from tracegraph.core.shapes import same_shape
from tracegraph.core.types import float32, float64
from tracegraph.errors import ShapeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    binary,
    cast_to,
    elementwise_operands,
)
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.tracing.index_checks import check_divisor, check_exponent
from tracegraph.typing import TensorLike

FLOOR_DIV, FLOOR_MOD, TRUNCATE_MOD = ops.FloorDiv(), ops.FloorMod(), ops.TruncateMod()

#: The integer exponents up to which a power is computed by multiplication.
_LARGEST_EXPONENT = 64

_add, _subtract, _multiply = (
    binary(ops.ADD, "add"),
    binary(ops.SUB, "subtract"),
    binary(ops.MUL, "multiply"),
)
_atan2 = binary(ops.Atan2(), "atan2")
_maximum, _minimum = binary(ops.MAXIMUM, "maximum"), binary(ops.MINIMUM, "minimum")


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x + y

    >>> tg.add([1, 2], 3).numpy()
    array([4, 5], dtype=int32)
    """
    return _add(x, y)


def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - y

    >>> tg.subtract([1, 2], 3).numpy()
    array([-2, -1], dtype=int32)
    """
    return _subtract(x, y)


def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y

    >>> tg.multiply([1, 2], 3).numpy()
    array([3, 6], dtype=int32)
    """
    return _multiply(x, y)


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """scalar * x

    >>> tg.scalar_mul(3, [1, 2]).numpy()
    array([3, 6], dtype=int32)
    """
    return _multiply(scalar, as_tensor(x))


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y; integers give float64, those of 8 and 16 bits float32.

    >>> tg.divide(3.0, 2.0).numpy(), tg.divide(3, 2).numpy()
    (np.float32(1.5), np.float64(1.5))
    """
    if type(x) is Tensor and type(y) is Tensor and x.type is y.type and not x.dtype.is_integer:
        return ops.DIV(x, y)
    x, y = _divisible(*elementwise_operands("divide", x, y))
    return ops.DIV(x, y)


def _divisible(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Integer operands of a true division as floating-point ones."""
    if not x.dtype.is_integer:
        return x, y
    dtype = float32 if x.dtype.size < 4 else float64
    return cast_to(x, dtype), cast_to(y, dtype)


truediv = realdiv = divide


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """floor(x / y)

    Raises InvalidArgumentError for an integer divided by zero, at top level and if the divisor is
    known while tracing. A zero that is only known at run time gives a meaningless number, unless
    the function is built with `check_bounds`.

    >>> tg.math.floordiv([7, -7], 2).numpy()
    array([ 3, -4], dtype=int32)
    """
    return FLOOR_DIV(*_divided("floordiv", x, y))


def _divided(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """The operands of a division. Raises InvalidArgumentError if integers are divided by zero."""
    x, y = as_operands(op, x, y)
    if y.dtype.is_integer:
        check_divisor(op, x, y)
    return (x, y) if x.type is y.type else elementwise_operands(op, x, y)


def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - floor(x / y) * y, which has the sign of y. For division by zero see `floordiv`.

    >>> tg.math.floormod([7, -7], 4).numpy()
    array([3, 1], dtype=int32)
    """
    return FLOOR_MOD(*_divided("floormod", x, y))


mod = floormod


def truncatediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, rounded towards zero. For integer division by zero see `floordiv`.

    >>> tg.truncatediv([7, -7], 2).numpy()
    array([ 3, -3], dtype=int32)
    """
    x, y = _divided("truncatediv", x, y)
    if x.dtype.is_floating:
        quotient = ops.DIV(x, y)
        return ops.SELECT(
            ops.LESS(quotient, zeros_of(quotient)), ops.Ceil()(quotient), ops.FLOOR(quotient)
        )
    return FLOOR_DIV(ops.SUB(x, TRUNCATE_MOD(x, y)), y)


def truncatemod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - trunc(x / y) * y, which has the sign of x. For division by zero see `floordiv`.

    >>> tg.truncatemod([7, -7], 4).numpy()
    array([ 3, -3], dtype=int32)
    """
    return TRUNCATE_MOD(*_divided("truncatemod", x, y))


def divide_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, or 0 where y is 0; the derivatives are 0 there too.

    >>> tg.math.divide_no_nan([1.0, 3.0], [0.0, 2.0]).numpy()
    array([0. , 1.5], dtype=float32)
    """
    x, y = _divisible(*elementwise_operands("divide_no_nan", x, y))
    is_zero = ops.EQUAL(y, zeros_of(y))
    quotient = ops.DIV(x, ops.SELECT(is_zero, full_like(y, 1), y))
    return ops.SELECT(is_zero, zeros_of(x), quotient)


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, or 0 where y is 0, even if x is infinite or nan; the derivatives are 0 there too.

    >>> tg.math.multiply_no_nan([float("nan"), 3.0], [0.0, 2.0]).numpy()
    array([0., 6.], dtype=float32)
    """
    x, y = elementwise_operands("multiply_no_nan", x, y)
    return ops.MUL_NO_NAN(x, y) if x.dtype.is_differentiable else ops.MUL(x, y)


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x ** y

    An exponent that is an integral Python number is part of the graph: the power is computed by
    multiplication, is correct for negative x, and its derivative at y = 0 is 0.
    Raises DTypeError for an integer tensor with a negative exponent, at top level and if it is
    known while tracing. An exponent that is only known at run time gives a meaningless number,
    unless the function is built with `check_bounds`.

    >>> tg.pow([2.0, 3.0], 2).numpy()
    array([4., 9.], dtype=float32)
    """
    if isinstance(y, (int, float)) and not isinstance(y, bool):
        x = as_tensor(x)
        if y == 0.5 and x.dtype.is_differentiable:
            return ops.SQRT(x)
        if _is_static_exponent(x, y):
            return ops.IntegerPow(int(y))(x)
    x, y = elementwise_operands("pow", x, y)
    if x.dtype.is_integer:
        check_exponent(x, y)
    return ops.POW(x, y)


def _is_static_exponent(x: Tensor, y: Any) -> bool:
    if x.dtype.is_integer:
        return isinstance(y, int)
    # x ** 0 is left to the general op: it stays connected to x, with derivative 0.
    return float(y).is_integer() and y != 0 and -_LARGEST_EXPONENT <= y <= _LARGEST_EXPONENT


def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The larger of x and y; if they are equal, the derivative goes to x.

    >>> tg.maximum([1, 5], 3).numpy()
    array([3, 5], dtype=int32)
    """
    return _maximum(x, y)


def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The smaller of x and y; if they are equal, the derivative goes to x.

    >>> tg.minimum([1, 5], 3).numpy()
    array([1, 3], dtype=int32)
    """
    return _minimum(x, y)


def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """(x - y) * conj(x - y)

    >>> tg.math.squared_difference([1.0, 5.0], 3.0).numpy()
    array([4., 4.], dtype=float32)
    """
    difference = _subtract(x, y)
    if difference.dtype.is_complex:
        return ops.MUL(difference, ops.CONJ(difference))
    return ops.MUL(difference, difference)


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The angle of the point (x, y) from the positive x axis, in radians.

    >>> tg.atan2(1.0, 0.0).numpy()
    np.float32(1.5707964)
    """
    return _atan2(y, x)


def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * log(y), or 0 where x is 0, whatever y is.

    The derivative with respect to x is log(y), even where x is 0, unless log(y) is not finite
    there: then it is 0. TensorFlow's is 0 wherever x is 0.

    >>> tg.math.xlogy([0.0, 2.0], [0.0, 1.0]).numpy()
    array([0., 0.], dtype=float32)
    """
    x, y = elementwise_operands("xlogy", x, y)
    return _product_unless(x, y, ops.LOG, full_like(y, 1))


def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * log(1 + y), or 0 where x is 0, whatever y is.

    For the derivative where x is 0 see `xlogy`.

    >>> tg.math.xlog1py([0.0, 2.0], [-1.0, 0.0]).numpy()
    array([0., 0.], dtype=float32)
    """
    x, y = elementwise_operands("xlog1py", x, y)
    return _product_unless(x, y, ops.Log1p(), zeros_of(y))


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, or 0 where x is 0, whatever y is.

    The derivative with respect to x is 1 / y, even where x is 0, unless 1 / y is not finite there:
    then it is 0. TensorFlow's is 0 wherever x is 0.

    >>> tg.math.xdivy([0.0, 3.0], [0.0, 2.0]).numpy()
    array([0. , 1.5], dtype=float32)
    """
    x, y = elementwise_operands("xdivy", x, y)
    one = full_like(y, 1)
    is_left_out = _is_left_out(x, ops.DIV(one, y))
    quotient = ops.DIV(x, ops.SELECT(is_left_out, one, y))
    return ops.SELECT(is_left_out, zeros_of(x), quotient)


def _product_unless(x: Tensor, y: Tensor, function: Any, harmless: Tensor) -> Tensor:
    """x * function(y), but 0 where x is 0 and the other factor is not finite; there `harmless`
    replaces y, so that no derivative is nan."""
    is_left_out = _is_left_out(x, function(y))
    factor = function(ops.SELECT(is_left_out, harmless, y))
    return ops.MUL(x, ops.SELECT(is_left_out, zeros_of(factor), factor))


def _is_left_out(x: Tensor, factor: Tensor) -> Tensor:
    """Where x is 0 and what it is to be multiplied by is not finite."""
    return ops.AND(ops.EQUAL(x, zeros_of(x)), ops.LogicalNot()(ops.IsFinite()(factor)))


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor:
    """t where it is between the bounds, else the nearer bound; the derivative at a bound is 1.

    If the lower bound is above the upper one, it is the result. Raises ShapeError for bounds that
    do not broadcast to the shape of t.

    >>> tg.clip_by_value([-2.0, 0.5, 2.0], -1.0, 1.0).numpy()
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return in_shape_of("clip_by_value", t, _maximum(_minimum(t, clip_value_max), clip_value_min))


def in_shape_of(op: str, x: Any, result: Tensor) -> Tensor:
    """The result, which must have the shape of x. Raises ShapeError if another operand made it
    larger."""
    own = as_tensor(x)
    if same_shape(own.type.shape, result.type.shape) is None:
        fail(
            ShapeError,
            f"{op}: {own.type} is clipped, and with the bounds the shape is {result.type}",
            operands=[operand_text(own)],
            fix="give a bound that broadcasts to the tensor",
        )
    return result


__all__ = [
    "add",
    "atan2",
    "clip_by_value",
    "divide",
    "divide_no_nan",
    "floordiv",
    "floormod",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "pow",
    "realdiv",
    "scalar_mul",
    "squared_difference",
    "subtract",
    "truediv",
    "truncatediv",
    "truncatemod",
    "xdivy",
    "xlog1py",
    "xlogy",
]
