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


def _threefry(key: Any, count: Any) -> tuple[Any, Any]:
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
    if not (all(isinstance(size, int) for size in shape) and math.prod(shape) < 2**32):
        return threefry_prng_impl.random_bits(key, width, shape)
    x, y = _threefry(key, _positions(shape))
    dtype = np.dtype(f"uint{width}")
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
    draw = jax.random.loggamma if op.log_space else jax.random.gamma
    return _per_key(lambda k, a: draw(_wrap(k), a, dtype=a.dtype), key, alpha)


@lowers(ops.RandomPoisson)
def _poisson(op: ops.RandomPoisson, key: Any, rate: Any) -> Any:
    def draw(k: Any, rate: Any) -> Any:
        own = _wrap(k, "threefry2x32")  # JAX takes no other
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
    return lax.random_gamma_grad(alpha, number)  # type: ignore[reportCallIssue]


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
