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
from lowering.rules import lowers
from lowering.rules.incomplete import in_blocks
from tracegraph.ops import random as ops


def _per_key(make: Callable[..., Any], key: Any, *others: Any) -> Any:
    """make(key, *others), once for each key along the leading axes."""
    for _ in range(key.ndim - 1):
        make = jax.vmap(make)
    return make(key, *others)


#: A rate above which JAX's numbers of the Poisson distribution are not used. JAX computes their
#: probabilities in float32: at 1e8 their variance is half as large again as it should be.
_MANY = 2.0**16
#: What is folded into a key for numbers that do not depend on those that JAX makes from its halves.
_OTHER_NUMBERS = 0x6E6F726D
#: Threefry's rotations, of the even and the odd groups of four rounds, and its constant: Salmon et
#: al., Parallel random numbers: as easy as 1, 2, 3 (2011), table 2 and section 4.3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_GROUPS = 5


#: The two words that a key and a count make, each an array: numbers, or another key.
Words = tuple[Any, Any]


def _threefry(key: Any, count: Any) -> Words:
    """The two words of Threefry-2x32 with 20 rounds for each count, whose upper word is 0.

    On CPUs JAX lowers the rounds to a loop, which keeps its state in memory. It takes up to 11
    times as long to compile, depending on the shape, and up to twice as long to run.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(_PARITY))
    x, y = jnp.broadcast_to(keys[0], count.shape), count + keys[1]
    for group in range(_GROUPS):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _random_bits(key: Any, width: int, shape: Sequence[Any]) -> Any:
    """JAX's numbers of `width` bits, bit for bit."""
    if not _is_known(shape):
        return threefry_prng_impl.random_bits(key, width, shape)
    return _bits_of(_threefry(key, _positions(shape)), width)


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
    keys = _per_key(lambda k: _threefry(k, places), key)
    keys, flat = tuple(word.reshape(-1) for word in keys), alpha.reshape(-1)
    first, other = _hashed((keys, 0), (keys, 1))
    cubes = (_accepted if flat.size <= _FEW else _collected)(first, flat)
    (words,) = _hashed((other, 0))
    return _scaled(cubes, words, flat, op.log_space).reshape(alpha.shape)


#: So many numbers are all drawn until the last is accepted.
_FEW = 4096


def _hashed(*pairs: tuple[Words, int]) -> list[Words]:
    """The words of some keys and counts. They are computed as one array, which compiles once, and
    which XLA does not compute again for each use."""
    x, y = (jnp.stack([key[k] for key, _ in pairs]) for k in range(2))
    counts = np.array([count for _, count in pairs], np.uint32)
    words = _threefry((x, y), jnp.broadcast_to(counts[:, None], x.shape))
    x, y = lax.optimization_barrier(words)
    return [*zip(x, y, strict=True)]


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
        next_key, uniform_key, next_normal, normal = _hashed(
            (key, 0), (key, 2), (normal_key, 0), (normal_key, 1)
        )
        normal, uniform, fresh = _hashed((normal, 0), (uniform_key, 0), (next_key, 1))
        found, is_positive, is_refused = _proposed(normal, uniform, alpha)
        # A proposal that is not positive is followed by another normal number alone.
        key = _chosen(is_positive, next_key, key)
        normal_key = _chosen(is_positive, fresh, next_normal)
        cube = jnp.where(waits & is_positive, found, cube)
        return key, normal_key, cube, waits & (~is_positive | is_refused)

    waits = jnp.ones(alpha.shape, bool) if is_wanted is None else is_wanted
    start = key, *_hashed((key, 1)), jnp.ones_like(alpha), waits
    return lax.while_loop(lambda state: jnp.any(state[3]), attempt, start)[2]


def _chosen(condition: Any, x: Words, y: Words) -> Words:
    return jnp.where(condition, x[0], y[0]), jnp.where(condition, x[1], y[1])


def _collected(key: Words, alpha: Any) -> Any:
    """As `_accepted`: those whose first proposal is not accepted, of which there are 5 % at most,
    are drawn again together, a sixteenth of all at a time."""
    normal, uniform = _hashed((key, 1), (key, 2))
    normal, uniform = _hashed((normal, 1), (uniform, 0))
    (normal,) = _hashed((normal, 0))
    cube, is_positive, is_refused = _proposed(normal, uniform, alpha)
    size = alpha.shape[0]
    ranks = lax.iota(np.int32, size // 16)

    def draw(state: Any) -> Any:
        cubes, waits = state
        counts = jnp.cumsum(waits.astype(np.int32))
        is_wanted = ranks < counts[-1]
        places = jnp.minimum(jnp.searchsorted(counts, ranks + 1), size - 1)
        own = key[0][places], key[1][places]
        found = _accepted(own, alpha[places], is_wanted)
        places = jnp.where(is_wanted, places, size + ranks)  # the others are put nowhere
        change = {"mode": "drop", "unique_indices": True}
        return cubes.at[places].set(found, **change), waits.at[places].set(False, **change)

    start = cube, ~is_positive | is_refused
    return lax.while_loop(lambda state: jnp.any(state[1]), draw, start)[0]


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
    def draw(k: Any, rate: Any) -> Any:
        own = _wrap(k, _JAX)  # JAX takes no other
        few = jax.random.poisson(own, jnp.minimum(rate, _MANY), dtype=jnp.int32)
        n = jax.random.normal(jax.random.fold_in(_wrap(k), _OTHER_NUMBERS), rate.shape, rate.dtype)
        # Normal numbers with the skewness of the distribution, by Cornish and Fisher's expansion.
        many = jnp.round(rate + jnp.sqrt(rate) * n + (n * n - 1) / 6)
        many = jnp.where(jnp.isinf(rate), rate, many)
        return jnp.where(rate > _MANY, many, few.astype(rate.dtype))

    return _per_key(draw, key, rate)


@lowers(ops.RandomBinomial)
def _binomial(op: ops.RandomBinomial, key: Any, counts: Any, chances: Any) -> Any:
    def draw(k: Any, counts: Any, chances: Any) -> Any:
        return jax.random.binomial(_wrap(k), counts, chances, dtype=counts.dtype)

    return _per_key(draw, key, counts, chances)


@lowers(ops.GammaSlope)
def _gamma_slope(op: ops.GammaSlope, alpha: Any, number: Any) -> Any:
    return in_blocks(lax.random_gamma_grad, alpha, number)


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
