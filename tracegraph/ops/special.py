"""Special functions of real numbers, element by element, and what is JAX's own.

Some have a parameter for which no formula of the derivative is known: those count how often they
are differentiated by it, as `igamma<order=1>` does, and the lowering computes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tracegraph.core.types import TensorType
from tracegraph.ir.op import Derivative, Op, rule
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.ops.elementwise import (
    ABS,
    COS,
    DIGAMMA,
    EQUAL,
    EXP,
    FLOATING,
    GREATER,
    GREATER_EQUAL,
    INTEGER,
    LESS,
    LOG,
    MUL_NO_NAN,
    NUMERIC,
    ORDERED,
    SELECT,
    SIGN,
    SIN,
    Abs,
    Cast,
    Discrete,
    Elementwise,
    Factors,
    Lgamma,
    Log1p,
    Polygamma,
    Steep,
)

LGAMMA, LOG1P = Lgamma(), Log1p()


class Special(Elementwise, abstract=True):
    """A function of real numbers."""

    kinds: ClassVar[frozenset[str]] = FLOATING


class SteepSpecial(Steep, abstract=True):
    """A function of real numbers that is infinite somewhere."""

    kinds: ClassVar[frozenset[str]] = FLOATING


# The gamma and beta distributions, and the zeta function.


class Igamma(Special):
    """The integral from 0 to x of t ** (a - 1) e ** -t dt / gamma(a), for positive a and x,
    differentiated `order` times by a"""

    order: int = 0

    def partials(self, y: Tensor, a: Tensor, x: Tensor) -> Factors:
        return Igamma(self.order + 1)(a, x), _gamma_density(a, x, self.order)


class Igammac(Special):
    """1 - igamma(a, x), exact where that is near 1, differentiated `order` times by a"""

    order: int = 0

    def partials(self, y: Tensor, a: Tensor, x: Tensor) -> Factors:
        return Igammac(self.order + 1)(a, x), -_gamma_density(a, x, self.order)


def _gamma_density(a: Tensor, x: Tensor, order: int) -> Tensor:
    """x ** (a - 1) e ** -x / gamma(a), differentiated `order` times by a."""
    density = EXP(MUL_NO_NAN(LOG(x), a - 1) - x - LGAMMA(a))
    by_a = [LOG(x) - DIGAMMA(a), *(-_polygamma(k, a) for k in range(1, order))]
    return _times(density, _of_exponential(by_a, order))


def _polygamma(order: int, x: Tensor) -> Tensor:
    return DIGAMMA(x) if order == 0 else Polygamma(order)(x)


def _of_exponential(derivatives: Sequence[Tensor], order: int) -> Tensor | None:
    """The derivative of e ** f of an order, over e ** f, from those of f; None stands for 1."""
    found: list[Tensor | None] = [None]
    for k in range(order):
        terms = [
            _times(derivatives[i], found[k - i]) * float(math.comb(k, i))  # type: ignore[operator]
            for i in range(k + 1)
        ]
        found.append(sum(terms[1:], terms[0]))
    return found[order]


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    """Their product, and 0 where x is, as densities are at the ends; None stands for 1."""
    return x if factor is None else MUL_NO_NAN(factor, x)


class Betainc(Special):
    """The integral from 0 to x of t ** (a - 1) (1 - t) ** (b - 1) dt / beta(a, b), for positive a
    and b and 0 <= x <= 1, differentiated `by_a` times by a and `by_b` times by b"""

    by_a: int = 0
    by_b: int = 0

    def partials(self, y: Tensor, a: Tensor, b: Tensor, x: Tensor) -> Factors:
        return (
            Betainc(self.by_a + 1, self.by_b)(a, b, x),
            Betainc(self.by_a, self.by_b + 1)(a, b, x),
            _beta_density(a, b, x, self.by_a, self.by_b),
        )


def _beta_density(a: Tensor, b: Tensor, x: Tensor, by_a: int, by_b: int) -> Tensor:
    """x ** (a - 1) (1 - x) ** (b - 1) / beta(a, b), differentiated by a and by b."""
    whole = a + b
    scale = LGAMMA(whole) - LGAMMA(a) - LGAMMA(b)
    density = EXP(MUL_NO_NAN(LOG(x), a - 1) + MUL_NO_NAN(LOG1P(-x), b - 1) + scale)

    def derivative(i: int, j: int) -> Tensor:
        """That of the logarithm of the density, i times by a and j times by b."""
        of_whole = _polygamma(i + j - 1, whole)
        if i and j:
            return of_whole
        found = of_whole - _polygamma(i + j - 1, a if i else b)
        if i + j > 1:
            return found
        return found + (LOG(x) if i else LOG1P(-x))

    return _times(density, _of_exponential_of_two(derivative, by_a, by_b))


def _of_exponential_of_two(
    derivative: Callable[[int, int], Tensor], i: int, j: int
) -> Tensor | None:
    """As `_of_exponential`, for functions of two variables."""
    if i == j == 0:
        return None
    total = None
    # One derivative is taken first, by a if there is one; the others go by the product rule.
    first, second = (i - 1, j) if i else (0, j - 1)
    for k in range(first + 1):
        for m in range(second + 1):
            rest = _of_exponential_of_two(derivative, first - k, second - m)
            one = derivative(k + 1, m) if i else derivative(k, m + 1)
            term = _times(one, rest) * float(math.comb(first, k) * math.comb(second, m))
            total = term if total is None else total + term
    return total


class Zeta(Special):
    """The sum over k >= 0 of (q + k) ** -x, for x > 1, differentiated `order` times by x"""

    order: int = 0

    def partials(self, y: Tensor, x: Tensor, q: Tensor) -> Factors:
        by_q = -x * self(x + 1, q)
        if self.order:
            by_q = by_q - float(self.order) * Zeta(self.order - 1)(x + 1, q)
        return Zeta(self.order + 1)(x, q), by_q


# Bessel functions.


def _over_variable(y: Tensor, x: Tensor, sign: int) -> Tensor:
    """y / x of a function of order 1, and near 0 by its series, so that derivatives hold there."""
    return _near_or(ABS(x), _series_over_variable(x, sign), y, x)


def _series_over_variable(x: Tensor, sign: int) -> Tensor:
    """The sum over k of sign ** k (x / 2) ** (2 k) / (2 k! (k + 1)!)"""
    terms = [1 / (2 * math.factorial(k) * math.factorial(k + 1)) for k in range(8)]
    return _polynomial(terms, x * x * (0.25 * sign))


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    total = full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _near_or(distance: Tensor, near: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, or `near` where the distance from the zero of both is small."""
    is_near = LESS(distance, full_like(distance, _NEAR))
    safe = SELECT(is_near, full_like(denominator, 1), denominator)
    return SELECT(is_near, near, numerator / safe)


_NEAR = 0.1


class BesselI0(Special):
    """The modified Bessel function of the first kind of order 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (BesselI1()(x),)


class BesselI1(Special):
    """The modified Bessel function of the first kind of order 1"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (BesselI0()(x) - _over_variable(y, x, 1),)


class BesselI0e(Special):
    """e ** -|x| times the modified Bessel function of the first kind of order 0"""

    name = "bessel_i0e"

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (BesselI1e()(x) - SIGN(x) * y,)


class BesselI1e(Special):
    """e ** -|x| times the modified Bessel function of the first kind of order 1"""

    name = "bessel_i1e"

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        ratio = _near_or(ABS(x), EXP(-ABS(x)) * _series_over_variable(x, 1), y, x)
        return (BesselI0e()(x) - ratio - SIGN(x) * y,)


class BesselJ0(Special):
    """The Bessel function of the first kind of order 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-BesselJ1()(x),)


class BesselJ1(Special):
    """The Bessel function of the first kind of order 1"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (BesselJ0()(x) - _over_variable(y, x, -1),)


class BesselY0(SteepSpecial):
    """The Bessel function of the second kind of order 0, for x > 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-BesselY1()(x),)


class BesselY1(SteepSpecial):
    """The Bessel function of the second kind of order 1, for x > 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (BesselY0()(x) - y / x,)


class BesselK0(SteepSpecial):
    """The modified Bessel function of the second kind of order 0, for x > 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-BesselK1()(x),)


class BesselK1(SteepSpecial):
    """The modified Bessel function of the second kind of order 1, for x > 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-BesselK0()(x) - y / x,)


class BesselK0e(SteepSpecial):
    """e ** x times the modified Bessel function of the second kind of order 0, for x > 0"""

    name = "bessel_k0e"

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (y - BesselK1e()(x),)


class BesselK1e(SteepSpecial):
    """e ** x times the modified Bessel function of the second kind of order 1, for x > 0"""

    name = "bessel_k1e"

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (y - BesselK0e()(x) - y / x,)


# Integrals.


class Dawsn(Special):
    """e ** -x**2 times the integral of e ** t**2 from 0 to x"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 - 2 * x * y,)


class Expint(SteepSpecial):
    """The integral of e ** t / t up to x, its principal value for x > 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (EXP(x) / x,)


class FresnelCos(Special):
    """The integral of cos(pi t ** 2 / 2) from 0 to x"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (COS((math.pi / 2) * x * x),)


class FresnelSin(Special):
    """The integral of sin(pi t ** 2 / 2) from 0 to x"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (SIN((math.pi / 2) * x * x),)


class Spence(SteepSpecial):
    """The integral of log(t) / (1 - t) from 1 to x, for x >= 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        below = 1 - x
        near = _polynomial([-1 / (k + 1) for k in range(14)], below)
        return (_near_or(ABS(below), near, LOG(x), below),)


class Ndtri(SteepSpecial):
    """The x at which the normal distribution function is y, for 0 < y < 1"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (math.sqrt(2 * math.pi) * EXP(0.5 * y * y),)


class NextAfter(Special):
    """The number next to x in the direction of y"""

    name = "nextafter"
    reference = np.nextafter

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, zeros_of(y)


# As JAX defines what is defined otherwise in `elementwise.py`: its programs consist of it.


class JaxDiv(Elementwise):
    """x / y as XLA's simplifier leaves it, which may round twice; of integers, rounded to zero"""

    kinds = NUMERIC

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return JaxDiv()(full_like(y, 1), y), -JaxDiv()(z, y)

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if np.issubdtype(x.dtype, np.inexact):
            return np.divide(x, y)
        if not y.all():
            return NotImplemented
        return ((x - np.fmod(x, y)) // y).astype(x.dtype)


class JaxAbs(Abs):
    """|x|; the derivative at 0 is 1, of complex numbers 0"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        one = full_like(x, 1)
        return (SELECT(GREATER_EQUAL(x, zeros_of(x)), one, -one),)


class EvenExtreme(Elementwise, abstract=True):
    """The derivative is shared evenly by the two where they are equal."""

    kinds = ORDERED
    #: Whether its first operand is the extreme alone.
    is_first: ClassVar[Op]

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        x_is, y_is = map(Cast(z.dtype), (self.is_first(x, y), self.is_first(y, x)))
        half = full_like(z, 0.5)
        shares = EQUAL(x, y)
        return SELECT(shares, half, x_is), SELECT(shares, half, y_is)


class JaxMax(EvenExtreme):
    """max(x, y); the derivative is shared where they are equal"""

    reference = np.maximum
    is_first = GREATER


class JaxMin(EvenExtreme):
    """min(x, y); the derivative is shared where they are equal"""

    reference = np.minimum
    is_first = LESS


class PopulationCount(Discrete):
    """How many bits of x are 1"""

    kinds = INTEGER

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.bitwise_count(x.view(_unsigned(x.dtype))).astype(x.dtype)


class LeadingZeros(Discrete):
    """How many bits of x above the highest that is 1 are 0"""

    kinds = INTEGER

    def numpy(self, x: np.ndarray) -> np.ndarray:
        bits = 8 * x.dtype.itemsize
        rest, used = np.array(x.view(_unsigned(x.dtype))), np.zeros(x.shape, np.int64)
        for _ in range(bits):
            used += rest != 0
            rest >>= np.ones((), rest.dtype)
        return np.asarray(bits - used).astype(x.dtype)


class ReducePrecision(Elementwise):
    """x rounded to numbers of so many bits of exponent and mantissa; tangents and cotangents are
    rounded likewise"""

    exponent_bits: int
    mantissa_bits: int
    kinds = frozenset(["floating"])
    is_linear = True  # for the rules of derivatives, as in JAX
    jvp = Op.jvp

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1,)

    def is_diagonal_on(self, type: TensorType) -> bool:
        return False  # rounding a tangent multiplies it by no factor known beforehand

    @rule
    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (self(g),)


def _unsigned(dtype: np.dtype) -> Any:
    return np.dtype(f"uint{8 * dtype.itemsize}")
