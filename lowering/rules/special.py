"""Lowering of `tracegraph.ops.special`: JAX's functions, and those that it does not have.

What it does not have is computed by formulas that converge to full precision with few terms: the
trapezoidal rule for periodic or quickly vanishing functions, and series where x is small or large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from lowering.rules import lowers
from lowering.rules.incomplete import beta, in_blocks, lower_gamma, upper_gamma
from tracegraph.ops import special as ops

Function = Callable[..., Any]


def _wide(function: Function) -> Function:
    """A function of numbers of 16 bits too, which are computed in 32."""

    def computed(*xs: Any) -> Any:
        dtype = xs[0].dtype
        wide = jnp.float32 if dtype.itemsize < 4 else dtype
        return function(*(x.astype(wide) for x in xs)).astype(dtype)

    return computed


def _differentiated(function: Function, *orders: int) -> Function:
    """The function of several variables, differentiated so many times by each."""
    for k, order in enumerate(orders):
        for _ in range(order):
            function = _once(function, k)
    return function


def _once(function: Function, k: int) -> Function:
    def derivative(*xs: Any) -> Any:
        def along(x: Any) -> Any:
            return function(*xs[:k], x, *xs[k + 1 :])

        return jax.jvp(along, (xs[k],), (jnp.ones_like(xs[k]),))[1]

    return derivative


# The gamma and beta distributions, and the zeta function.

#: How many terms are taken where derivatives tell nothing of when to stop.
_TERMS = 400


@lowers(ops.Igamma)
def _igamma(op: ops.Igamma, a: Any, x: Any) -> Any:
    if op.order == 0:
        return _wide(partial(in_blocks, lower_gamma))(a, x)
    # Of an infinite a the mass lies at infinity: the series gives nan.
    is_beyond = jnp.isposinf(a) & (x < jnp.inf)
    inner = jnp.where(is_beyond, 1, a)
    if op.order == 1:
        found = _wide(partial(in_blocks, lax.igamma_grad_a))(inner, x)
    else:
        found = _wide(_differentiated(_lower_gamma, op.order))(inner, x)
    return jnp.where(is_beyond, 0, found)


@lowers(ops.Igammac)
def _igammac(op: ops.Igammac, a: Any, x: Any) -> Any:
    if op.order == 0:
        return _wide(_upper_gamma)(a, x)
    return -_igamma(ops.Igamma(op.order), a, x)


def _upper_gamma(a: Any, x: Any) -> Any:
    """igammac(a, x). Where it is 1 - igamma(a, x), which is near 1, the two terms that are left of
    that are computed: 1 - x ** a / gamma(a + 1), and the rest of the series."""
    is_near = jnp.where(x > 0.5, a <= x, a * jnp.log(x) >= -0.4) & (x <= 1) & (a > 0)
    p, z = jnp.where(is_near, a, 1), jnp.where(is_near, x, 1)
    exponent = p * jnp.log(z) - _log_gamma_of_next(p)
    rest = sum((-z) ** k * (1 / math.factorial(k)) / (p + k) for k in range(1, 20))
    near = -jnp.expm1(exponent) - p * jnp.exp(exponent) * rest
    far = in_blocks(upper_gamma, jnp.where(is_near, 1, a), x)
    return jnp.where(is_near, near, far)


def _log_gamma_of_next(a: Any) -> Any:
    """log(gamma(a + 1)) to full precision near a = 0: by the series around 2, which converges
    faster than that around 1."""
    series = _polynomial(_LOG_GAMMA_NEAR_TWO, a) - jnp.log1p(a)
    return jnp.where(a < 0.5, series, lax.lgamma(a + 1))


def _lower_gamma(a: Any, x: Any) -> Any:
    """igamma(a, x), in terms that JAX differentiates by a."""
    is_low = x <= a + 1
    scale = jnp.exp(a * jnp.log(x) - x - lax.lgamma(a))
    low = jnp.where(is_low, x, a)
    series = _summed(lambda k, term: term * low / (a + k), 1 / a)
    high = jnp.where(is_low, a + 2, x)
    fraction = _continued(lambda k: (k * (a - k), high + 1 - a + 2 * k), high + 1 - a)
    return jnp.where(is_low, scale * series, 1 - scale / fraction)


def _summed(following: Function, first: Any) -> Any:
    """The sum of a first term and of those that follow."""

    def add(k: Any, state: Any) -> Any:
        term, total = state
        term = following(k.astype(first.dtype), term)
        return term, total + term

    return lax.fori_loop(1, _TERMS, add, (first, first))[1]


def _continued(parts: Function, first: Any, terms: int = _TERMS) -> Any:
    """first + p_1 / (q_1 + p_2 / (q_2 + ...)) with p_k, q_k = parts(k), from the inside out."""

    def step(i: Any, tail: Any) -> Any:
        p, q = parts((terms - i).astype(first.dtype))
        return p / (q + tail)

    return first + lax.fori_loop(0, terms, step, jnp.zeros_like(first))


@lowers(ops.Betainc)
def _betainc(op: ops.Betainc, a: Any, b: Any, x: Any) -> Any:
    if op.by_a == op.by_b == 0:
        return _wide(partial(in_blocks, beta))(a, b, x)
    return _wide(_differentiated(_incomplete_beta, op.by_a, op.by_b))(a, b, x)


def _incomplete_beta(a: Any, b: Any, x: Any) -> Any:
    """betainc(a, b, x), in terms that JAX differentiates by a and b."""
    is_low = x <= (a + 1) / (a + b + 2)
    p, q = jnp.where(is_low, a, b), jnp.where(is_low, b, a)
    z = jnp.where(is_low, x, 1 - x)
    logarithms = p * jnp.log(z) + q * jnp.log1p(-z)
    scale = jnp.exp(logarithms + lax.lgamma(a + b) - lax.lgamma(a) - lax.lgamma(b)) / p

    def parts(k: Any) -> Any:
        half = jnp.floor(k / 2)
        even = half * (q - half) * z / ((p + 2 * half - 1) * (p + 2 * half))
        odd = -(p + half) * (p + q + half) * z / ((p + 2 * half) * (p + 2 * half + 1))
        return jnp.where(k == 2 * half, even, odd), jnp.ones_like(z)

    found = scale / _continued(parts, jnp.ones_like(z))
    return jnp.where(is_low, found, 1 - found)


@lowers(ops.Zeta)
def _zeta(op: ops.Zeta, x: Any, q: Any) -> Any:
    if op.order == 0:
        return _wide(_zeta_of)(x, q)
    return _wide(_differentiated(_euler_maclaurin, op.order))(x, q)


def _zeta_of(x: Any, q: Any) -> Any:
    """XLA's function, which has nan for an infinite x and 0 for a large q, where q ** -x is too
    small a number: an infinite x leaves the first term, and a large q the integral of all."""
    is_first, is_far = jnp.isposinf(x), q > x * float(jnp.finfo(x.dtype).eps ** -0.5)
    first = jnp.where(q == 1, 1, jnp.where(q > 1, 0, jnp.where(q > 0, jnp.inf, jnp.nan)))
    is_far &= x > 1
    power, edge = jnp.where(is_far, x, 2), jnp.where(is_far, q, 1)
    far = edge ** (1 - power) * (1 / (power - 1) + 0.5 / edge)
    inner = lax.zeta(jnp.where(is_first, 2, x), jnp.where(is_first | is_far, 1, q))
    return jnp.where(is_first, first.astype(x.dtype), jnp.where(is_far, far, inner))


def polygamma(order: int, x: Any) -> Any:
    """The derivative of digamma of an order, from 1 on."""
    if order > 170:
        return special.polygamma(order, x).astype(x.dtype)
    size = (-1) ** (order + 1) * float(math.factorial(order))
    return _wide(lambda x: size * _zeta_of(jnp.full_like(x, order + 1), x))(x)


#: B(2 k) / (2 k)! of Bernoulli's numbers B.
_BERNOULLI = (
    *(1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000),
    *(1 / 74724249600, -3617 / 10670622842880000),
)


def _euler_maclaurin(x: Any, q: Any) -> Any:
    """zeta(x, q), in terms that JAX differentiates by x: a sum, and the integral of the rest with
    its corrections."""
    count = 12
    edge = q + count
    total = sum((q + k) ** -x for k in range(count)) + edge ** (1 - x) / (x - 1) + 0.5 * edge**-x
    factor = x * edge ** (-x - 1)
    for k, number in enumerate(_BERNOULLI):
        total += number * factor
        factor = factor * (x + 2 * k + 1) * (x + 2 * k + 2) / edge**2
    return total


_EULER = 0.5772156649015329

#: The coefficients of log(gamma(2 + a)) in powers of a.
_LOG_GAMMA_NEAR_TWO = [
    *(0.0, 1 - _EULER),
    *((-1) ** k * (_euler_maclaurin(k, 2.0) / k) for k in range(2, 28)),
]


def log_gamma(x: Any) -> Any:
    """XLA's function, and near its zeros, 1 and 2, where that has no correct digit, a series."""
    return _wide(_log_gamma)(x)


def _log_gamma(x: Any) -> Any:
    is_near, is_low = jnp.abs(x - 1.5) < 1, x < 1.5
    a = jnp.where(is_near, x - jnp.where(is_low, 1, 2), 0)
    near = _polynomial(_LOG_GAMMA_NEAR_TWO, a) - jnp.where(is_low, jnp.log1p(a), 0)
    return jnp.where(is_near, near, lax.lgamma(x))


# Bessel functions.

#: From here on the asymptotic series of the ordinary functions has full precision.
_FAR, _FAR_TERMS = 25.0, 24


def _angles(count: int) -> np.ndarray:
    """Angles in the first quarter of a circle, equally far from each other."""
    return (np.arange(count) + 0.5) * (np.pi / 2 / count)


def _log_weights(count: int) -> np.ndarray:
    """With these weights cos(x sin(t)) is summed to the sum over k of (-1) ** k J(2 k, x) / k."""
    k = np.arange(1, count + 1)
    return np.cos(2 * np.outer(_angles(count), k)) @ ((-1.0) ** k / k) / count


def _over_circle(function: Function, x: Any, weights: np.ndarray) -> Any:
    """The sum of weights[j] * function(x, sine of angle j)."""
    sines = jnp.asarray(np.sin(_angles(len(weights))), x.dtype)
    return jnp.sum(jnp.asarray(weights, x.dtype) * function(x[..., None], sines), axis=-1)


def _near_j(order: int, x: Any) -> Any:
    weights = np.full(20, 1 / 20)
    if order == 0:
        return _over_circle(lambda x, sine: jnp.cos(x * sine), x, weights)
    return _over_circle(lambda x, sine: sine * jnp.sin(x * sine), x, weights)


def _near_y(order: int, x: Any) -> Any:
    """The function of order 0 by Neumann's series, and that of order 1 by its derivative."""
    weights = _log_weights(40)
    logarithm = jnp.log(x / 2) + _EULER
    if order == 0:
        rest = _over_circle(lambda x, sine: jnp.cos(x * sine), x, weights)
        return (2 / np.pi) * (logarithm * _near_j(0, x) - 2 * rest)
    rest = _over_circle(lambda x, sine: sine * jnp.sin(x * sine), x, weights)
    return (2 / np.pi) * (logarithm * _near_j(1, x) - _near_j(0, x) / x - 2 * rest)


def _far_pair(order: int, x: Any) -> tuple[Any, Any]:
    """The functions of the first and the second kind, for large x."""
    terms = [1.0]
    for k in range(1, _FAR_TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    inverse = 1 / x
    even = _polynomial([t * (-1) ** k for k, t in enumerate(terms[::2])], inverse * inverse)
    odd = _polynomial([t * (-1) ** k for k, t in enumerate(terms[1::2])], inverse * inverse)
    odd = odd * inverse
    sine, cosine = jnp.sin(x), jnp.cos(x)
    # Of the angle x - pi / 4, or x - 3 pi / 4, without rounding it.
    c, s = (cosine + sine, sine - cosine) if order == 0 else (sine - cosine, -sine - cosine)
    scale = jnp.sqrt(inverse / np.pi)
    return scale * (even * c - odd * s), scale * (even * s + odd * c)


def _polynomial(coefficients: list[float], x: Any) -> Any:
    total = jnp.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _bessel_j(order: int) -> Function:
    def value(x: Any) -> Any:
        size = jnp.abs(x)
        is_near = size < _FAR
        near = _near_j(order, jnp.where(is_near, size, 1))
        found = jnp.where(is_near, near, _far_pair(order, jnp.where(is_near, _FAR, size))[0])
        found = jnp.where(jnp.isinf(x), 0, found)
        return found if order == 0 else jnp.copysign(1, x).astype(x.dtype) * found

    return value


def _bessel_y(order: int) -> Function:
    def value(x: Any) -> Any:
        is_near = ~(x >= _FAR)
        near = _near_y(order, jnp.where(is_near, x, 1))
        found = jnp.where(is_near, near, _far_pair(order, jnp.where(is_near, _FAR, x))[1])
        found = jnp.where(x == 0, -jnp.inf, found)
        return jnp.where(jnp.isposinf(x), 0, found)

    return value


def _near_k(order: int, x: Any) -> Any:
    """By the series for small x."""
    square = x * x / 4
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 17))])
    factorials = np.concatenate([[1.0], np.cumprod(np.arange(1.0, 17.0))])
    if order == 0:
        rest = _polynomial((harmonic[:16] / factorials[:16] ** 2).tolist(), square)
        return rest - (jnp.log(x / 2) + _EULER) * special.i0(x)
    weights = (harmonic[:16] + harmonic[1:17] - 2 * _EULER) / (factorials[:16] * factorials[1:17])
    rest = _polynomial(weights.tolist(), square)
    return 1 / x + jnp.log(x / 2) * special.i1(x) - x / 4 * rest


def _far_k(order: int, x: Any) -> Any:
    """e ** x times the function: the integral of e ** (x (1 - cosh t)) cosh(order t) over t > 0."""
    count = 24
    step = jnp.arccosh(1 + 40 / x) / count
    t = step[..., None] * jnp.arange(1, count + 1, dtype=x.dtype)
    values = jnp.exp(-2 * x[..., None] * jnp.sinh(t / 2) ** 2) * (jnp.cosh(t) if order else 1)
    return step * (0.5 + jnp.sum(values, axis=-1))


def _bessel_k(order: int, is_scaled: bool) -> Function:
    def value(x: Any) -> Any:
        is_near = ~(x > 2)
        inner, outer = jnp.where(is_near, x, 1), jnp.where(is_near, 2, x)
        near, far = _near_k(order, inner), _far_k(order, outer)
        if is_scaled:
            near = near * jnp.exp(inner)
        else:
            far = far * jnp.exp(-outer)
        found = jnp.where(x == 0, jnp.inf, jnp.where(is_near, near, far))
        return jnp.where(jnp.isposinf(x), 0, found)

    return value


# Integrals.


def _expint(x: Any) -> Any:
    """JAX's function for positive numbers; for small negative ones it never returns."""
    size = jnp.abs(x)
    positive = special.expi(jnp.where((x > 0) & (x < jnp.inf), x, 1))
    positive = jnp.where(x < jnp.inf, positive, x)
    small = _polynomial([1 / (k * math.factorial(k)) for k in range(1, 19)], x) * x
    small += _EULER + jnp.log(size)
    far = jnp.where(size > 1, size, 2)
    fraction = _continued(lambda k: (-k * k, far + 1 + 2 * k), far + 1, 100)
    negative = jnp.where(size > 1, -jnp.exp(-far) / fraction, small)
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, positive, negative))


_FUNCTIONS: dict[type, Function] = {
    ops.BesselI0: special.i0,
    ops.BesselI1: special.i1,
    ops.BesselI0e: special.i0e,
    ops.BesselI1e: special.i1e,
    ops.BesselJ0: _bessel_j(0),
    ops.BesselJ1: _bessel_j(1),
    ops.BesselY0: _bessel_y(0),
    ops.BesselY1: _bessel_y(1),
    ops.BesselK0: _bessel_k(0, False),
    ops.BesselK1: _bessel_k(1, False),
    ops.BesselK0e: _bessel_k(0, True),
    ops.BesselK1e: _bessel_k(1, True),
    ops.Dawsn: special.dawsn,
    ops.Expint: _expint,
    ops.FresnelCos: lambda x: special.fresnel(x)[1],
    ops.FresnelSin: lambda x: special.fresnel(x)[0],
    ops.Spence: special.spence,
    ops.Ndtri: special.ndtri,
}


def _plain(function: Function) -> Function:
    wide = _wide(function)
    return lambda op, *xs: wide(*xs)


for _op, _function in _FUNCTIONS.items():
    lowers(_op)(_plain(_function))


@lowers(ops.NextAfter)
def _next_after(op: ops.NextAfter, x: Any, y: Any) -> Any:
    return lax.nextafter(x, y)


@lowers(ops.JaxDiv)
def _div(op: ops.JaxDiv, x: Any, y: Any) -> Any:
    return lax.div(x, y)


@lowers(ops.JaxAbs)
def _abs(op: ops.JaxAbs, x: Any) -> Any:
    return jnp.abs(x)


@lowers(ops.JaxMax)
def _max(op: ops.JaxMax, x: Any, y: Any) -> Any:
    return lax.max(x, y)


@lowers(ops.JaxMin)
def _min(op: ops.JaxMin, x: Any, y: Any) -> Any:
    return lax.min(x, y)


@lowers(ops.PopulationCount)
def _population_count(op: ops.PopulationCount, x: Any) -> Any:
    return lax.population_count(x)


@lowers(ops.LeadingZeros)
def _leading_zeros(op: ops.LeadingZeros, x: Any) -> Any:
    return lax.clz(x)


@lowers(ops.ReducePrecision)
def _reduce_precision(op: ops.ReducePrecision, x: Any) -> Any:
    return lax.reduce_precision(x, op.exponent_bits, op.mantissa_bits)
