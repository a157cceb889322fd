"""Numbers of the Poisson and the binomial distribution, in float64.

Few are searched for one by one from 0. The others are by transformed rejection: Hoermann, The
transformed rejection method for generating Poisson random variables, and The generation of binomial
random variates (both 1993). Most are accepted at once; the others are collected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.rules.incomplete import in_blocks
from lowering.rules.polynomials import polynomial
from lowering.rules.threefry import Words, hashed, threefry

#: From this mean on numbers are made by rejection.
_MANY = 10.0


def drawn_again(draw: Callable[..., Any], found: Any, waits: Any, part: int) -> Any:
    """`found`, with a number from draw(places, is_wanted) in place of each that waits.

    Each round draws `size // part` numbers, or 256 if that is more; those that are not wanted fill
    up the round.
    """
    size = found.shape[0]
    few = min(size, max(size // part, 256)) if isinstance(size, int) else size
    whole = np.int32 if isinstance(size, int) and size < 2**30 else np.int64
    ranks = lax.iota(whole, few)

    def collected(state: Any) -> Any:
        found, waits = state
        counts = jnp.cumsum(waits.astype(whole))
        is_wanted = ranks < counts[-1]
        places = jnp.minimum(jnp.searchsorted(counts, ranks + 1), size - 1)
        fresh = draw(places, is_wanted)
        places = jnp.where(is_wanted, places, size + ranks)  # the others are put nowhere
        change = {"mode": "drop", "unique_indices": True}
        return found.at[places].set(fresh, **change), waits.at[places].set(False, **change)

    return lax.while_loop(lambda state: jnp.any(state[1]), collected, (found, waits))[0]


def poisson(words: Words, rate: Any) -> Any:
    """A number for each rate."""
    is_few, is_many = (rate >= 0) & (rate < _MANY), (rate >= _MANY) & (rate < jnp.inf)
    few = in_blocks(_few_of_poisson, _unit(words), jnp.where(is_few, rate, 0))
    law, parameters = (_poisson_hat, _poisson_excess), [jnp.where(is_many, rate, _MANY)]
    many = _by_rejection(*law, words, is_many, *parameters)
    found = jnp.where(is_few, few, jnp.where(is_many, many, rate))
    return jnp.where(rate >= 0, found, jnp.nan)


def binomial(words: Words, counts: Any, chances: Any) -> Any:
    """How many of some trials succeed, for each count of trials and their chances."""
    counts, rarer = jnp.floor(counts), jnp.where(chances < 0.5, chances, 1 - chances)
    is_right = (counts >= 0) & (rarer >= 0)
    mean = jnp.where(is_right & (counts < jnp.inf), counts * rarer, 0)
    is_many = mean >= _MANY
    few_counts, few_chances = (jnp.where(is_right & ~is_many, x, 0) for x in (counts, rarer))
    few = in_blocks(_few_of_binomial, _unit(words), few_counts, few_chances)
    law = _binomial_hat, _binomial_excess
    parameters = jnp.where(is_many, counts, 4 * _MANY), jnp.where(is_many, rarer, 0.5)
    mode = jnp.floor((parameters[0] + 1) * parameters[1])
    of_mode = lax.optimization_barrier(_logarithm(mode, *parameters))
    many = _by_rejection(*law, words, is_many, *parameters, of_mode)
    found = jnp.where(is_many, many, few)
    found = jnp.where(chances < 0.5, found, counts - found)
    return jnp.where(is_right, jnp.where(jnp.isinf(counts), counts, found), jnp.nan)


def _unit(words: Words) -> Any:
    """A number from 0 to 1."""
    x, y = (word.astype(np.float64) for word in words)
    return (x + (y + 0.5) * 2**-32) * 2**-32


# Few: the first number whose cumulative probability is above a number from 0 to 1.


def _few_of_poisson(u: Any, rate: Any) -> Any:
    return _searched(u, jnp.exp(-rate), lambda k: rate * (1 / k))


def _few_of_binomial(u: Any, counts: Any, chance: Any) -> Any:
    odds = chance / (1 - chance)
    first = jnp.exp(counts * jnp.log1p(-chance))
    found = _searched(u, first, lambda k: (counts - (k - 1)) * odds * (1 / k))
    return jnp.minimum(found, counts)


def _searched(u: Any, first: Any, ratio: Callable[..., Any]) -> Any:
    """`first` is the probability of 0, and ratio(k) that of k over that of k - 1."""

    def goes_on(rest: Any, probability: Any) -> Any:
        # What rounding leaves of u is not searched for.
        return (rest > probability) & (probability > 2**-56)

    def step(state: Any) -> Any:
        k, found, rest, probability = state
        waits = goes_on(rest, probability)
        k = k + 1
        found, rest = jnp.where(waits, k, found), jnp.where(waits, rest - probability, rest)
        return k, found, rest, jnp.where(waits, probability * ratio(k), probability)

    start = (np.float64(0), jnp.zeros_like(u), u, first)
    return lax.while_loop(lambda state: jnp.any(goes_on(*state[2:])), step, start)[1]


# Many: by transformed rejection.


class _Hat(NamedTuple):
    """Under the names that Hoermann gives its parameters."""

    a: Any
    b: Any
    c: Any
    alpha: Any


def _by_rejection(
    hat: Callable[..., _Hat], excess: Callable[..., Any], words: Words, is_wanted: Any, *xs: Any
) -> Any:
    """`hat` gives the hat for the parameters xs of a distribution, and `excess` the logarithm of a
    number's probability, for the binomial distribution relative to the mode's."""

    def proposed(first: Words, second: Words, *xs: Any) -> tuple[Any, Any]:
        """A number for each of the parameters, and whether it is refused."""
        shape, u = hat(*xs), _unit(first) - 0.5
        edge = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * shape.a / edge + shape.b) * u + shape.c)
        height = _unit(second) * shape.alpha / (shape.a / (edge * edge) + shape.b)
        return k, ~(jnp.log(height) <= excess(k, *xs))

    def draw(places: Any, is_wanted: Any) -> Any:
        key, parameters = (words[0][places], words[1][places]), [x[places] for x in xs]

        def attempt(state: Any) -> Any:
            count, found, waits = state
            first, second = (
                threefry(key, jnp.full_like(key[0], count + np.uint32(k))) for k in range(2)
            )
            k, is_refused = proposed(first, second, *parameters)
            return count + np.uint32(2), jnp.where(waits, k, found), waits & is_refused

        start = np.uint32(1), jnp.zeros_like(parameters[0]), is_wanted
        return lax.while_loop(lambda state: jnp.any(state[2]), attempt, start)[1]

    # The words of an element are its first proposal, and the key of all that follow.
    (second,) = hashed((words, 0))
    found, is_refused = proposed(words, second, *xs)
    return drawn_again(draw, found, is_wanted & is_refused, 8)


def _poisson_hat(rate: Any) -> _Hat:
    b = 0.931 + 2.53 * jnp.sqrt(rate)
    alpha = 1.1239 + 1.1328 / (b - 3.4)
    return _Hat(-0.059 + 0.02483 * b, b, rate + 0.43, alpha)


def _poisson_excess(k: Any, rate: Any) -> Any:
    return jnp.where(k >= 0, _tilt(k, rate) - _rest(k), -jnp.inf)


def _binomial_hat(counts: Any, chance: Any, of_mode: Any) -> _Hat:
    deviation = jnp.sqrt(counts * chance * (1 - chance))
    b = 1.15 + 2.53 * deviation
    alpha = (2.83 + 5.1 / b) * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * chance
    return _Hat(a, b, counts * chance + 0.5, alpha)


def _binomial_excess(k: Any, counts: Any, chance: Any, of_mode: Any) -> Any:
    is_possible = (k >= 0) & (k <= counts)
    return jnp.where(is_possible, _logarithm(k, counts, chance) - of_mode, -jnp.inf)


def _logarithm(k: Any, counts: Any, chance: Any) -> Any:
    """That of the probability of k successes, but for a constant. (Loader, Fast and accurate
    computation of binomial probabilities, 2000.)"""
    successes = _tilt(k, counts * chance) - _rest(k)
    return successes + _tilt(counts - k, counts * (1 - chance)) - _rest(counts - k)


def _tilt(k: Any, mean: Any) -> Any:
    """k log(mean / k) + k - mean, exact where k is near the mean."""
    distance = mean - k
    return jnp.where(k > 0, k * jnp.log1p(distance / k) - distance, -mean)


#: log(k!) - k log(k) + k for small k.
_RESTS = [math.lgamma(k + 1) - k * math.log(k or 1) + k for k in range(8)]
#: The terms of Stirling's series.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _rest(k: Any) -> Any:
    """log(k!) - k log(k) + k, by Stirling's series where k is large. Selections take less time than
    a look-up, which is not vectorised."""
    large = jnp.where(k >= len(_RESTS), k, len(_RESTS))
    z = 1 / large
    found = 0.5 * jnp.log(2 * math.pi * large) + z * polynomial(_STIRLING, z * z)
    for number, rest in enumerate(_RESTS):
        found = jnp.where(k == number, rest, found)
    return found
