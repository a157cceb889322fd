"""Lowering of `tracegraph.ops.special`: JAX's functions, and those that it does not have or
computes slowly."""

from __future__ import annotations

import functools
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
from lowering.rules.bessel import bessel_j, bessel_k, bessel_y
from lowering.rules.exponential_integral import expint
from lowering.rules.incomplete import beta, in_blocks, lower_gamma, lower_gamma_by_a, upper_gamma
from lowering.rules.polynomials import polynomial
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
        found = _wide(partial(in_blocks, lower_gamma_by_a))(inner, x)
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
    series = polynomial(_LOG_GAMMA_NEAR_TWO, a) - jnp.log1p(a)
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


def _continued(parts: Function, first: Any) -> Any:
    """first + p_1 / (q_1 + p_2 / (q_2 + ...)) with p_k, q_k = parts(k), from the inside out."""

    def step(i: Any, tail: Any) -> Any:
        p, q = parts((_TERMS - i).astype(first.dtype))
        return p / (q + tail)

    return first + lax.fori_loop(0, _TERMS, step, jnp.zeros_like(first))


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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def polygamma(order: int, x: Any) -> Any:
    """The derivative of digamma of an order, from 1 on."""
    if order > 170:  # whose factorial is infinite in float64
        return special.polygamma(order, x).astype(x.dtype)
    size = (-1) ** (order + 1) * float(math.factorial(order))
    return _wide(lambda x: size * _zeta_of(jnp.full_like(x, order + 1), x))(x)


@polygamma.defjvp
def _polygamma_slope(order: int, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """For JAX, which has no derivative of zeta."""
    (x,), (change,) = primals, tangents
    return polygamma(order, x), polygamma(order + 1, x) * change


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


#: The coefficients of log(gamma(2 + a)) in powers of a.
_LOG_GAMMA_NEAR_TWO = [
    *(0.0, 1 - np.euler_gamma),
    *((-1) ** k * (_euler_maclaurin(k, 2.0) / k) for k in range(2, 28)),
]


def log_gamma(x: Any) -> Any:
    """XLA's function, and near its zeros, 1 and 2, where that has no correct digit, a series."""
    return _wide(_log_gamma)(x)


def _log_gamma(x: Any) -> Any:
    is_near, is_low = jnp.abs(x - 1.5) < 1, x < 1.5
    a = jnp.where(is_near, x - jnp.where(is_low, 1, 2), 0)
    near = polynomial(_LOG_GAMMA_NEAR_TWO, a) - jnp.where(is_low, jnp.log1p(a), 0)
    return jnp.where(is_near, near, lax.lgamma(x))


_FUNCTIONS: dict[type, Function] = {
    ops.BesselI0: special.i0,
    ops.BesselI1: special.i1,
    ops.BesselI0e: special.i0e,
    ops.BesselI1e: special.i1e,
    ops.BesselJ0: bessel_j(0),
    ops.BesselJ1: bessel_j(1),
    ops.BesselY0: bessel_y(0),
    ops.BesselY1: bessel_y(1),
    ops.BesselK0: bessel_k(0, False),
    ops.BesselK1: bessel_k(1, False),
    ops.BesselK0e: bessel_k(0, True),
    ops.BesselK1e: bessel_k(1, True),
    ops.Dawsn: special.dawsn,
    ops.Expint: expint,
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
