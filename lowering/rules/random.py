"""Lowering of `tracegraph.ops.random`: every value follows from a Threefry key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl, threefry_prng_impl

from lowering import sizes
from lowering.device import x64
from lowering.rules import lowers
from lowering.rules.incomplete import in_blocks, slope_of_number
from lowering.rules.threefry import Words, hashed, threefry
from lowering.rules.whole_numbers import binomial, drawn_again, poisson
from tracegraph.ops import random as ops


def _per_key(make: Callable[..., Any], key: Any, *others: Any) -> Any:
    """make(key, *others), once for each key along the leading axes."""
    for _ in range(key.ndim - 1):
        make = jax.vmap(make)
    return make(key, *others)


def _random_bits(key: Any, width: int, shape: Sequence[Any]) -> Any:
    """JAX's numbers of `width` bits, bit for bit."""
    if not _is_known(shape):
        return threefry_prng_impl.random_bits(key, width, shape)
    return _bits_of(threefry(key, _positions(shape)), width)


def _is_known(shape: Sequence[Any]) -> bool:
    """Whether the positions of elements are known, and have 32 bits."""
    return all(isinstance(size, int) for size in shape) and math.prod(shape) < 2**32


def _bits_of(words: Any, width: int) -> Any:
    """Numbers of `width` bits, made from two words."""
    (x, y), dtype = words, np.dtype(f"uint{width}")
    if width == 64:
        return (x.astype(dtype) << dtype.type(32)) | y.astype(dtype)
    return (x ^ y).astype(dtype)


def _positions(shape: Sequence[int]) -> Any:
    """The position of each element in an array of this shape. As a sum over the axes, each device
    computes its own part of it."""
    found = jnp.zeros(shape, np.uint32)
    for axis, size in enumerate(shape):
        step = np.uint32(math.prod(shape[axis + 1 :]))
        found += lax.broadcasted_iota(np.uint32, shape, axis) * step if size > 1 else 0
    return found


_GENERATOR = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    fold_in=threefry_prng_impl.fold_in,
    random_bits=_random_bits,
    name="threefry2x32",
    tag="fry",
)


#: Its keys are the words that another generator made: a key gives one number.
_WORDS = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    fold_in=threefry_prng_impl.fold_in,
    random_bits=lambda words, width, shape: _bits_of(words, width),
    name="words",
    tag="wds",
)


#: JAX's own generator.
_JAX = "threefry2x32"


def _wrap(key: Any, generator: Any = _GENERATOR) -> Any:
    return jax.random.wrap_key_data(key, impl=generator)


@lowers(ops.RandomSplit)
def _split(op: ops.RandomSplit, key: Any) -> Any:
    return _per_key(
        lambda k: jax.random.key_data(jax.random.split(_wrap(k), sizes.size(op.count))), key
    )


@lowers(ops.RandomFold)
def _fold(op: ops.RandomFold, key: Any, data: Any) -> Any:
    return _per_key(lambda k, d: jax.random.key_data(jax.random.fold_in(_wrap(k), d)), key, data)


@lowers(ops.RandomBits)
def _bits(op: ops.RandomBits, key: Any) -> Any:
    dtype = op.dtype.numpy_dtype
    return _per_key(lambda k: jax.random.bits(_wrap(k), sizes.shape(op.shape), dtype), key)


@lowers(ops.RandomUniform)
def _uniform(op: ops.RandomUniform, key: Any) -> Any:
    dtype = op.dtype.numpy_dtype
    return _per_key(lambda k: jax.random.uniform(_wrap(k), sizes.shape(op.shape), dtype), key)


@lowers(ops.RandomNormal)
def _normal(op: ops.RandomNormal, key: Any) -> Any:
    dtype = op.dtype.numpy_dtype
    return _per_key(lambda k: jax.random.normal(_wrap(k), sizes.shape(op.shape), dtype), key)


@lowers(ops.RandomGamma)
def _gamma(op: ops.RandomGamma, key: Any, alpha: Any) -> Any:
    """JAX's numbers, each from a key of its own: by Marsaglia and Tsang, A simple method for
    generating gamma variables (2000). JAX draws them one by one, or all until the last is
    accepted. Here each gets one attempt, which most need, and the others are collected."""
    if alpha.size == 0:
        return alpha
    if not _is_known(alpha.shape) or alpha.size >= 2**31:
        draw = jax.random.loggamma if op.log_space else jax.random.gamma
        return _per_key(lambda k, a: draw(_wrap(k, _JAX), a, dtype=a.dtype), key, alpha)
    places = _positions(alpha.shape[key.ndim - 1 :])
    keys = _per_key(lambda k: threefry(k, places), key)
    keys, flat = tuple(word.reshape(-1) for word in keys), alpha.reshape(-1)
    first, other = hashed((keys, 0), (keys, 1))
    cubes = (_accepted if flat.size <= _FEW else _collected)(first, flat)
    (words,) = hashed((other, 0))
    return _scaled(cubes, words, flat, op.log_space).reshape(alpha.shape)


#: So many numbers are all drawn until the last is accepted.
_FEW = 4096


def _number(draw: Callable[..., Any], words: Words, dtype: Any) -> Any:
    """What draw(key, (), dtype), a function of JAX, makes for each key that gives these words."""
    return jax.vmap(lambda *key: draw(_wrap(jnp.stack(key), _WORDS), (), dtype))(*words)


def _centre(alpha: Any) -> Any:
    """Marsaglia and Tsang's d, of alpha + 1 where alpha is below 1."""
    return jnp.where(alpha >= 1, alpha, alpha + 1) - alpha.dtype.type(1 / 3)


def _proposed(normal: Words, uniform: Words, alpha: Any) -> tuple[Any, Any, Any]:
    """The cube of the proposal for each alpha, whether it is positive or nan, and whether it is
    refused, which nan is not."""
    number, centre = alpha.dtype.type, _centre(alpha)
    x = _number(jax.random.normal, normal, alpha.dtype)
    root = 1 + x * (number(1 / 3) / jnp.sqrt(centre))
    square, cube = x * x, root * root * root
    u = _number(jax.random.uniform, uniform, alpha.dtype)
    is_outside = u >= 1 - number(0.0331) * (square * square)
    bound = square * number(0.5) + centre * ((1 - cube) + jnp.log(cube))
    return cube, ~(root <= 0), is_outside & (jnp.log(u) >= bound)


def _accepted(key: Words, alpha: Any, is_wanted: Any = None) -> Any:
    """For each alpha the cube of the first proposal that is accepted."""

    def attempt(state: Any) -> Any:
        key, normal_key, cube, waits = state
        next_key, uniform_key, next_normal, normal = hashed(
            (key, 0), (key, 2), (normal_key, 0), (normal_key, 1)
        )
        normal, uniform, fresh = hashed((normal, 0), (uniform_key, 0), (next_key, 1))
        found, is_positive, is_refused = _proposed(normal, uniform, alpha)
        # A proposal that is not positive is followed by another normal number alone.
        key = _chosen(is_positive, next_key, key)
        normal_key = _chosen(is_positive, fresh, next_normal)
        cube = jnp.where(waits & is_positive, found, cube)
        return key, normal_key, cube, waits & (~is_positive | is_refused)

    waits = jnp.ones(alpha.shape, bool) if is_wanted is None else is_wanted
    start = key, *hashed((key, 1)), jnp.ones_like(alpha), waits
    return lax.while_loop(lambda state: jnp.any(state[3]), attempt, start)[2]


def _chosen(condition: Any, x: Words, y: Words) -> Words:
    return jnp.where(condition, x[0], y[0]), jnp.where(condition, x[1], y[1])


def _collected(key: Words, alpha: Any) -> Any:
    """As `_accepted`: those whose first proposal is not accepted, of which there are 5 % at most,
    are drawn again together, a sixteenth of all at a time."""
    normal, uniform = hashed((key, 1), (key, 2))
    normal, uniform = hashed((normal, 1), (uniform, 0))
    (normal,) = hashed((normal, 0))
    cube, is_positive, is_refused = _proposed(normal, uniform, alpha)

    def draw(places: Any, is_wanted: Any) -> Any:
        own = key[0][places], key[1][places]
        return _accepted(own, alpha[places], is_wanted)

    return drawn_again(draw, cube, ~is_positive | is_refused, 16)


def _scaled(cube: Any, words: Words, alpha: Any, log_space: bool) -> Any:
    """The numbers of the cubes. Where alpha is below 1, those of alpha + 1 are multiplied by
    u ** (1 / alpha)."""
    is_large, centre = alpha >= 1, _centre(alpha)
    if log_space:
        logarithm = -_number(jax.random.exponential, words, alpha.dtype)
        power = jnp.where(is_large | (logarithm == 0), 0, logarithm * (1 / alpha))
        return jnp.log(centre) + jnp.log(cube) + power
    u = 1 - _number(jax.random.uniform, words, alpha.dtype)
    return centre * cube * jnp.where(is_large, 1, u ** (1 / alpha))


@lowers(ops.RandomPoisson)
def _poisson(op: ops.RandomPoisson, key: Any, rate: Any) -> Any:
    return _whole(poisson, key, rate)


@lowers(ops.RandomBinomial)
def _binomial(op: ops.RandomBinomial, key: Any, counts: Any, chances: Any) -> Any:
    return _whole(binomial, key, counts, chances)


def _whole(draw: Callable[..., Any], key: Any, *parameters: Any) -> Any:
    """Draws whole numbers in float64, each from two words of its own."""
    shape, dtype = parameters[0].shape, parameters[0].dtype
    if 0 in shape:
        return parameters[0]
    words = _per_key(lambda k: _words(k, shape[key.ndim - 1 :]), key)
    with x64():
        flat = (lax.convert_element_type(x, np.float64).reshape(-1) for x in parameters)
        found = draw(tuple(word.reshape(-1) for word in words), *flat)
        return lax.convert_element_type(found.reshape(shape), dtype)


def _words(key: Any, shape: Sequence[Any]) -> Words:
    """Two words for each element."""
    if _is_known(shape):
        return threefry(key, _positions(shape))
    bits = jax.random.bits(_wrap(key), (2, *shape), np.uint32)
    return bits[0], bits[1]


@lowers(ops.GammaSlope)
def _gamma_slope(op: ops.GammaSlope, alpha: Any, number: Any) -> Any:
    wide = jnp.promote_types(alpha.dtype, np.float32)
    xs = (lax.convert_element_type(x, wide) for x in (alpha, number))
    return lax.convert_element_type(in_blocks(slope_of_number, *xs), alpha.dtype)


@lowers(ops.RandomPermutation)
def _permutation(op: ops.RandomPermutation, key: Any) -> Any:
    start = jnp.arange(sizes.size(op.size), dtype=jnp.int32)
    return _per_key(lambda k: jax.random.permutation(_wrap(k), start), key)


@lowers(ops.RngBitGenerator)
def _rng_bit_generator(op: ops.RngBitGenerator, state: Any) -> Any:
    algorithm = lax.RandomAlgorithm[op.algorithm.upper()]
    dtype: Any = op.dtype.numpy_dtype
    shape = sizes.shape(op.shape)

    def generated(state: Any) -> Any:
        return lax.rng_bit_generator(state, shape, dtype, algorithm)

    generate: Callable[..., Any] = generated
    # Not `jax.vmap`, which makes the numbers of all states from the first.
    for _ in range(state.ndim - 1):
        generate = partial(lax.map, generate)
    return generate(state)
