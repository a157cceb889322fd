"""Elementwise functions of one tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_inexact
from tracegraph.calls.top_level_calls import composition
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.typing import TensorLike


def negative(x: TensorLike, name: str | None = None) -> Tensor:
    """-x

    >>> tg.negative([1, -2]).numpy()
    array([-1,  2], dtype=int32)
    """
    return ops.NEG(as_tensor(x))


def abs(x: TensorLike, name: str | None = None) -> Tensor:
    """|x|, real for complex x; the derivative at 0 is 0.

    >>> tg.abs([-1.5, 2.0]).numpy()
    array([1.5, 2. ], dtype=float32)
    """
    return ops.ABS(as_tensor(x))


def sign(x: TensorLike, name: str | None = None) -> Tensor:
    """-1, 0 or 1; x / |x| for complex x. The derivative is 0.

    >>> tg.sign([-1.5, 0.0, 2.0]).numpy()
    array([-1.,  0.,  1.], dtype=float32)
    """
    return ops.SIGN(as_tensor(x))


def square(x: TensorLike, name: str | None = None) -> Tensor:
    """x * x

    >>> tg.square([1, -2]).numpy()
    array([1, 4], dtype=int32)
    """
    x = as_tensor(x)
    return ops.MUL(x, x)


def reciprocal(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x

    >>> tg.math.reciprocal([1.0, 2.0]).numpy()
    array([1. , 0.5], dtype=float32)
    """
    x = as_tensor(x)
    return ops.DIV(full_like(x, 1), x)


def exp(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x

    >>> tg.exp([0.0, 1.0]).numpy().round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    return ops.EXP(as_tensor(x))


def expm1(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x - 1, exact near 0

    >>> tg.math.expm1([0.0, 1.0]).numpy().round(4)
    array([0.    , 1.7183], dtype=float32)
    """
    return ops.Expm1()(as_tensor(x))


def log(x: TensorLike, name: str | None = None) -> Tensor:
    """The natural logarithm of x.

    >>> tg.math.log([1.0, 10.0]).numpy().round(4)
    array([0.    , 2.3026], dtype=float32)
    """
    return ops.LOG(as_tensor(x))


def log1p(x: TensorLike, name: str | None = None) -> Tensor:
    """log(1 + x), exact near 0

    >>> tg.math.log1p([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return ops.Log1p()(as_tensor(x))


def sqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """The square root of x; its derivative at 0 is infinite.

    >>> tg.sqrt([0.0, 4.0]).numpy().round(4)
    array([0., 2.], dtype=float32)
    """
    return ops.SQRT(as_tensor(x))


def rsqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / sqrt(x)

    >>> tg.math.rsqrt([1.0, 4.0]).numpy().round(4)
    array([1. , 0.5], dtype=float32)
    """
    return ops.RSQRT(as_tensor(x))


def sin(x: TensorLike, name: str | None = None) -> Tensor:
    """sin(x), x in radians

    >>> tg.sin([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8415], dtype=float32)
    """
    return ops.SIN(as_tensor(x))


def cos(x: TensorLike, name: str | None = None) -> Tensor:
    """cos(x), x in radians

    >>> tg.cos([0.0, 1.0]).numpy().round(4)
    array([1.    , 0.5403], dtype=float32)
    """
    return ops.COS(as_tensor(x))


def tan(x: TensorLike, name: str | None = None) -> Tensor:
    """tan(x), x in radians

    >>> tg.tan([0.0, 1.0]).numpy().round(4)
    array([0.    , 1.5574], dtype=float32)
    """
    return ops.Tan()(as_tensor(x))


def asin(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x.

    >>> tg.asin([0.0, 1.0]).numpy().round(4)
    array([0.    , 1.5708], dtype=float32)
    """
    return ops.Asin()(as_tensor(x))


def acos(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [0, pi] whose cosine is x.

    >>> tg.acos([1.0, 0.0]).numpy().round(4)
    array([0.    , 1.5708], dtype=float32)
    """
    return ops.Acos()(as_tensor(x))


def atan(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x.

    >>> tg.atan([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7854], dtype=float32)
    """
    return ops.Atan()(as_tensor(x))


def sinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic sine of x.

    >>> tg.sinh([0.0, 1.0]).numpy().round(4)
    array([0.    , 1.1752], dtype=float32)
    """
    return ops.SINH(as_tensor(x))


def cosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic cosine of x.

    >>> tg.cosh([0.0, 1.0]).numpy().round(4)
    array([1.    , 1.5431], dtype=float32)
    """
    return ops.COSH(as_tensor(x))


def tanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic tangent of x.

    >>> tg.tanh([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7616], dtype=float32)
    """
    return ops.Tanh()(as_tensor(x))


def asinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of the hyperbolic sine.

    >>> tg.asinh([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8814], dtype=float32)
    """
    return ops.Asinh()(as_tensor(x))


def acosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of the hyperbolic cosine, for x >= 1.

    >>> tg.acosh([1.0, 2.0]).numpy().round(4)
    array([0.   , 1.317], dtype=float32)
    """
    return ops.Acosh()(as_tensor(x))


def atanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of the hyperbolic tangent, for |x| < 1.

    >>> tg.atanh([0.0, 0.5]).numpy().round(4)
    array([0.    , 0.5493], dtype=float32)
    """
    return ops.Atanh()(as_tensor(x))


def sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / (1 + e ** -x)

    >>> tg.sigmoid([0.0, 1.0]).numpy().round(4)
    array([0.5   , 0.7311], dtype=float32)
    """
    return ops.Sigmoid()(as_tensor(x))


def erf(x: TensorLike, name: str | None = None) -> Tensor:
    """The error function, 2 / sqrt(pi) times the integral of e ** -t**2 from 0 to x.

    >>> tg.math.erf([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8427], dtype=float32)
    """
    return ops.Erf()(as_tensor(x))


def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """1 - erf(x), exact for large x

    >>> tg.math.erfc([0.0, 1.0]).numpy().round(4)
    array([1.    , 0.1573], dtype=float32)
    """
    return ops.Erfc()(as_tensor(x))


def erfinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of erf, for |x| < 1.

    >>> tg.math.erfinv([0.0, 0.5]).numpy().round(4)
    array([0.    , 0.4769], dtype=float32)
    """
    return ops.ErfInv()(as_tensor(x))


def lgamma(x: TensorLike, name: str | None = None) -> Tensor:
    """The logarithm of |gamma(x)|.

    >>> tg.math.lgamma([1.0, 5.0]).numpy().round(4)
    array([0.    , 3.1781], dtype=float32)
    """
    return ops.Lgamma()(as_tensor(x))


def digamma(x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of lgamma.

    >>> tg.math.digamma([1.0, 5.0]).numpy().round(4)
    array([-0.5772,  1.5061], dtype=float32)
    """
    return ops.DIGAMMA(as_tensor(x))


def floor(x: TensorLike, name: str | None = None) -> Tensor:
    """The largest integer that is not above x, in the dtype of x.

    >>> tg.floor([-1.5, 1.5]).numpy()
    array([-2.,  1.], dtype=float32)
    """
    return _stepped(ops.FLOOR, x)


def ceil(x: TensorLike, name: str | None = None) -> Tensor:
    """The smallest integer that is not below x, in the dtype of x.

    >>> tg.math.ceil([-1.5, 1.5]).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return _stepped(ops.Ceil(), x)


def round(x: TensorLike, name: str | None = None) -> Tensor:
    """The nearest integer, halves to even, in the dtype of x.

    >>> tg.round([0.5, 1.5, 2.6]).numpy()
    array([0., 2., 3.], dtype=float32)
    """
    return _stepped(ops.Round(), x)


rint = round


def _stepped(op: Any, x: Any) -> Tensor:
    """Applies `op`; integers are returned unchanged."""
    x = as_tensor(x)
    return x if x.dtype.is_integer else op(x)


def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """log(1 + e ** x), without overflow; its derivative is sigmoid(x).

    >>> tg.math.softplus([-1000.0, 0.0, 1000.0]).numpy().round(4)
    array([0.000e+00, 6.931e-01, 1.000e+03], dtype=float32)
    """
    return _softplus(as_tensor(features))


@composition
def _softplus(x: Tensor) -> Tensor:
    is_positive, tail = softplus_parts(x)
    return ops.ADD(ops.SELECT(is_positive, x, zeros_of(x)), tail)


def softplus_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether x is at least 0, and softplus(x) - max(x, 0)."""
    # Not max(x, 0) and |x|: their derivatives at 0 would not add up to 1/2.
    is_positive = ops.GREATER_EQUAL(x, zeros_of(x))
    return is_positive, ops.Log1p()(ops.EXP(ops.SELECT(is_positive, ops.NEG(x), x)))


def log_sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """log(sigmoid(x)) = -softplus(-x)

    >>> tg.math.log_sigmoid([-1000.0, 0.0]).numpy().round(4)
    array([-1.000e+03, -6.931e-01], dtype=float32)
    """
    return ops.NEG(softplus(ops.NEG(as_tensor(x))))


def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """x / (1 + |x|), which is -1 and 1 at the infinities. Raises DTypeError for integers and truth
    values.

    >>> tg.math.softsign([-1.0, 3.0, float("inf")]).numpy()
    array([-0.5 ,  0.75,  1.  ], dtype=float32)
    """
    x = as_inexact("softsign", features)
    if x.dtype.is_floating:
        largest = full_like(x, x.dtype.max)
        x = ops.MAXIMUM(ops.NEG(largest), ops.MINIMUM(x, largest))
    return x / (1 + ops.ABS(x))  # type: ignore[operator]


def real(input: TensorLike, name: str | None = None) -> Tensor:
    """The real part; a real tensor is returned unchanged.

    >>> tg.math.real(1 + 2j).numpy()
    np.float64(1.0)
    """
    x = as_tensor(input)
    return ops.REAL(x) if x.dtype.is_complex else x


def imag(input: TensorLike, name: str | None = None) -> Tensor:
    """The imaginary part; zeros for a real tensor.

    >>> tg.math.imag(1 + 2j).numpy()
    np.float64(2.0)
    """
    x = as_tensor(input)
    return ops.IMAG(x) if x.dtype.is_complex else zeros_of(x)


def conj(x: TensorLike, name: str | None = None) -> Tensor:
    """The complex conjugate; a real tensor is returned unchanged.

    >>> tg.math.conj(1 + 2j).numpy()
    np.complex128(1-2j)
    """
    x = as_tensor(x)
    return ops.CONJ(x) if x.dtype.is_complex else x


def angle(input: TensorLike, name: str | None = None) -> Tensor:
    """The angle of a complex number from the positive real axis, in radians; 0 or pi for real ones,
    and nan for nan. Raises DTypeError for integers and truth values.

    >>> tg.math.angle([1j, -1.0]).numpy()
    array([1.57079633, 3.14159265])
    """
    x = as_inexact("angle", input)
    if x.dtype.is_complex:
        return ops.Atan2()(ops.IMAG(x), ops.REAL(x))
    zero = zeros_of(x)
    angle = ops.SELECT(ops.LESS(x, zero), full_like(x, np.asarray(math.pi)), zero)
    return ops.SELECT(ops.EQUAL(x, x), angle, full_like(x, np.asarray(math.nan)))


__all__ = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "imag",
    "lgamma",
    "log",
    "log1p",
    "log_sigmoid",
    "negative",
    "real",
    "reciprocal",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "tan",
    "tanh",
]
