"""The incomplete gamma and beta functions, by series and continued fractions until they converge.

JAX's functions carry the derivatives along, which the values do not need, and go on for all
elements until the last converges. On CPUs a few elements are computed at a time here, so that what
they need stays in the cache, and an element that takes long holds up only few others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering.forms import by_device

#: So many elements are computed at a time.
_BLOCK = 2048
#: What has not converged after so many steps, as for parameters above 1e10, is nan.
_STEPS = 1_000_000


def in_blocks(function: Callable[..., Any], *xs: Any) -> Any:
    """function(*xs), element by element; on CPUs block by block."""
    size = xs[0].size
    if not isinstance(size, int) or size <= _BLOCK:
        return function(*xs)
    return by_device(*xs, cpu=partial(_by_block, function), default=function)


def _by_block(function: Callable[..., Any], *xs: Any) -> Any:
    shape, size = xs[0].shape, xs[0].size
    rest = -size % _BLOCK
    blocks = (jnp.pad(x.reshape(-1), (0, rest), mode="edge").reshape(-1, _BLOCK) for x in xs)
    found = lax.map(lambda block: function(*block), tuple(blocks))
    return found.reshape(-1)[:size].reshape(shape)


def lower_gamma(a: Any, x: Any) -> Any:
    """igamma(a, x)"""
    is_low, low, high = _gamma_parts(a, x)
    found = jnp.where(is_low, low, 1 - high)
    return _with_ends(found, 0, 1, a, x)


def upper_gamma(a: Any, x: Any) -> Any:
    """igammac(a, x)"""
    is_low, low, high = _gamma_parts(a, x)
    found = jnp.where(is_low, 1 - low, high)
    return _with_ends(found, 1, 0, a, x)


def _gamma_parts(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Where the lower function is computed, it, and the upper one elsewhere. The other numbers of
    both are those that converge at once."""
    is_low, a, x = _sides(a, x)
    scale = jnp.exp(a * jnp.log(x) - x - lax.lgamma(a))
    p, far = jnp.where(is_low, 1, a), jnp.where(is_low, 2, x)
    first = far + 1 - p
    fraction = _continued(lambda k: [(k * (p - k), first + 2 * k)], first)
    return is_low, scale * _series(jnp.where(is_low, x, 0), a) / a, scale / fraction


def _sides(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Where the lower function is computed; and a and x, 1 where the ends are set later."""
    is_right = (a > 0) & (x > 0) & (a < jnp.inf) & (x < jnp.inf)
    # On CPUs XLA takes subnormal numbers for 0, whose logarithm is infinite.
    x = jnp.where(is_right, jnp.maximum(x, jnp.finfo(x.dtype).tiny), 1)
    a = jnp.where(is_right, a, 1)
    return ~((x >= 1) & (x > a)), a, x


def _series(x: Any, a: Any) -> Any:
    return _summed(lambda k, term: term * (x / (a + k)), jnp.ones_like(a))


def lower_gamma_by_a(a: Any, x: Any) -> Any:
    """The derivative of igamma(a, x) by a."""
    relative, p, z = _relative_slope(a, x)
    found = relative * jnp.exp(p * jnp.log(z) - z - lax.lgamma(p))
    is_end = (x == 0) | jnp.isposinf(x) | jnp.isposinf(a)
    return jnp.where((a > 0) & (x >= 0), jnp.where(is_end, 0, found), jnp.nan)


def slope_of_number(a: Any, x: Any) -> Any:
    """How a number x of the gamma distribution moves with a while igamma(a, x) stays the same."""
    relative, _, z = _relative_slope(a, x)
    is_known = (a > 0) & (x >= 0) & (a < jnp.inf) & (x < jnp.inf)
    return jnp.where(is_known, jnp.where(x == 0, 0, -z * relative), jnp.nan)


def _relative_slope(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """The derivative of igamma(a, x) by a over x ** a e ** -x / gamma(a); and a and x, 1 where the
    ends are set later."""
    is_low, p, z = _sides(a, x)
    near, logarithm = jnp.where(is_low, z, 0), jnp.log(z)
    series, by_p = jax.jvp(partial(_series, near), (p,), (jnp.ones_like(p),))
    # For small a, of x ** a e ** -x / gamma(a + 1), whose derivative is small there.
    low = (series * (logarithm - lax.digamma(p + 1)) + by_p) / p
    fraction, slope = _fraction_and_slope(jnp.where(is_low, 1, p), jnp.where(is_low, 2, z))
    high = (slope + lax.digamma(p) - logarithm) / fraction
    return jnp.where(is_low, low, high), p, z


def _fraction_and_slope(a: Any, x: Any) -> tuple[Any, Any]:
    """The fraction of the upper function, by Lentz's method as in `_continued`, and the derivative
    of its logarithm by a, which goes on where a whole number a ends the fraction itself."""
    eps, first = jnp.finfo(x.dtype).eps, x + 1 - a

    def step(state: Any) -> Any:
        k, total, slope, (upper, by_upper), (lower, by_lower), _ = state
        p, q = k * (a - k), first + 2 * k
        by_upper = -1 + (k - p * (by_upper / upper)) / upper
        by_lower = -1 + k * lower + p * by_lower
        upper, lower = q + p / upper, 1 / (q + p * lower)
        by_lower = -lower * lower * by_lower
        change, waits = by_upper / upper + by_lower / lower, is_left(state)
        total = jnp.where(waits, total * (upper * lower), total)
        slope = jnp.where(waits, slope + change, slope)
        change = jnp.maximum(jnp.abs(upper * lower - 1), jnp.abs(change))
        return k + 1, total, slope, (upper, by_upper), (lower, by_lower), change

    def goes_on(state: Any) -> Any:
        return (state[0] < _STEPS) & jnp.any(is_left(state))

    def is_left(state: Any) -> Any:
        return state[5] > 8 * eps * jnp.maximum(1, jnp.abs(state[2]))

    zero, one = jnp.zeros_like(first), jnp.ones_like(first)
    start = (first.dtype.type(1), first, -1 / first, (first, -one), (zero, zero), one)
    state = lax.while_loop(goes_on, step, start)
    return state[1], jnp.where(is_left(state), jnp.nan, state[2])


def _with_ends(found: Any, at_zero: int, at_infinity: int, a: Any, x: Any) -> Any:
    found = jnp.where(x == 0, at_zero, found)
    # Of an infinite a the mass lies at infinity, and of a = 0 at 0.
    found = jnp.where(jnp.isposinf(a) & (x >= 0), at_zero, found)
    found = jnp.where(jnp.isposinf(x) | (a == 0), at_infinity, found)
    is_wrong = (x < 0) | (a < 0) | ((a == 0) & (x == 0)) | jnp.isnan(a) | jnp.isnan(x)
    return jnp.where(is_wrong, jnp.nan, found)


def beta(a: Any, b: Any, x: Any) -> Any:
    """betainc(a, b, x). (NIST Digital Library of Mathematical Functions, 8.17.22.)"""
    is_right = (a > 0) & (b > 0) & (a < jnp.inf) & (b < jnp.inf) & (x >= 0) & (x <= 1)
    is_low = ~is_right | (x < (a + 1) / (a + b + 2))
    p, q = jnp.where(is_low, a, b), jnp.where(is_low, b, a)
    p, q = jnp.where(is_right, p, 1), jnp.where(is_right, q, 1)
    z = jnp.where(is_right, jnp.where(is_low, x, 1 - x), 0)

    def parts(k: Any) -> Any:
        half = (k - 1) / 2
        # The first factor first, since products of the smallest numbers are 0.
        odd = -(p + half) / (p + 2 * half) * ((p + q + half) * z / (p + 2 * half + 1))
        half = half + 1
        even = half * (q - half) * z / ((p + 2 * half - 1) * (p + 2 * half))
        return [(odd, 1), (even, 1)]

    logarithm = q * jnp.log1p(-z) + lax.lgamma(p + q) - lax.lgamma(q)
    # For very small p, p * gamma(p) is 1.
    is_small = p < 2 * jnp.finfo(p.dtype).tiny
    scale = jnp.exp(p * jnp.log(z) + logarithm - lax.lgamma(p)) / p
    scale = jnp.where(is_small, jnp.exp(logarithm), scale)
    found = scale / _continued(parts, jnp.ones_like(z))
    found = jnp.where(is_low, found, 1 - found)
    return _with_ends_of_beta(found, a, b, x)


def _with_ends_of_beta(found: Any, a: Any, b: Any, x: Any) -> Any:
    """All mass is at 0 where a is 0 or b infinite, and at 1 where b is 0 or a infinite."""
    is_at_zero, is_at_one = (a == 0) | jnp.isposinf(b), (b == 0) | jnp.isposinf(a)
    found = jnp.where((is_at_one & (x != 1)) | (is_at_zero & (x == 0)), 0, found)
    found = jnp.where((is_at_zero & (x != 0)) | (is_at_one & (x == 1)), 1, found)
    is_wrong = (a < 0) | (b < 0) | ~((x >= 0) & (x <= 1)) | jnp.isnan(a) | jnp.isnan(b)
    return jnp.where(is_wrong | (is_at_zero & is_at_one), jnp.nan, found)


def _summed(following: Callable[..., Any], first: Any) -> Any:
    """The sum of a first term and of those that follow, until they no longer change it."""

    def add(state: Any) -> Any:
        k, term, total = state
        term = following(k, term)
        return k + 1, term, total + term

    def goes_on(state: Any) -> Any:
        return (state[0] < _STEPS) & jnp.any(is_left(state))

    def is_left(state: Any) -> Any:
        return jnp.abs(state[1]) > jnp.finfo(first.dtype).eps * jnp.abs(state[2])

    state = lax.while_loop(goes_on, add, (first.dtype.type(1), first, first))
    return jnp.where(is_left(state), jnp.nan, state[2])


def _continued(parts: Callable[..., Any], first: Any) -> Any:
    """first + p_1 / (q_1 + p_2 / (q_2 + ...)), by Lentz's method. parts(k) are the pairs (p, q)
    from k on that are computed together; the fraction has converged once they change nothing."""
    tiny = jnp.finfo(first.dtype).tiny
    together = len(parts(first.dtype.type(1)))

    def step(state: Any) -> Any:
        k, total, upper, lower, _ = state
        factor, change = jnp.ones_like(total), jnp.zeros_like(total)
        for p, q in parts(k):
            upper, lower = _not_zero(q + p / upper, tiny), 1 / _not_zero(q + p * lower, tiny)
            factor = factor * (upper * lower)
            change = jnp.maximum(change, jnp.abs(upper * lower - 1))
        # Rounding would add up while others converge.
        total = jnp.where(is_left(state), total * factor, total)
        return k + together, total, upper, lower, change

    def goes_on(state: Any) -> Any:
        return (state[0] < _STEPS) & jnp.any(is_left(state))

    def is_left(state: Any) -> Any:
        return state[4] > 8 * jnp.finfo(first.dtype).eps  # what rounding leaves

    one = jnp.ones_like(first)
    state = (first.dtype.type(1), first, first, jnp.zeros_like(first), one)
    state = lax.while_loop(goes_on, step, state)
    return jnp.where(is_left(state), jnp.nan, state[1])


def _not_zero(x: Any, tiny: Any) -> Any:
    return jnp.where(jnp.abs(x) < tiny, tiny, x)
