"""JAX's random numbers, bit for bit. Keys are arrays of key data for JAX's threefry generator."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from tracegraph.core.types import as_dtype, uint32
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import Equation, converts, is_key
from tracegraph.jax_programs.sizes import sizes_of
from tracegraph.ops import random as ops
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.elementwise import IDENTITY, Cast
from tracegraph.ops.shape import Reshape


def _check_threefry(eqn: Equation) -> None:
    for x in (*eqn.eqn.invars, *eqn.eqn.outvars):
        aval: Any = x.aval
        if is_key(aval) and "fry" not in str(aval.dtype):
            eqn.refuse(
                f"keys of the type {aval.dtype} have no counterpart here",
                "use JAX's default generator: jax.random.key(0, impl='threefry2x32')",
            )


@converts("random_wrap", "random_unwrap", "random_clone")
def _same_data(eqn: Equation, key: Tensor) -> Tensor:
    _check_threefry(eqn)
    return IDENTITY(key)


@converts("random_seed")
def _random_seed(eqn: Equation, seed: Tensor) -> Any:
    _check_threefry(eqn)

    def key_of(seed: Any) -> Any:
        # The upper and the lower half of a 64-bit seed.
        high = jnp.zeros(seed.shape, jnp.uint32)
        if seed.dtype.itemsize == 8:
            high = lax.shift_right_logical(seed, jnp.asarray(32, seed.dtype)).astype(jnp.uint32)
            seed = lax.bitwise_and(seed, jnp.asarray(0xFFFFFFFF, seed.dtype))
        return jnp.stack([high, seed.astype(jnp.uint32)], -1)

    return eqn.expanded(key_of, seed)


@converts("random_bits")
def _random_bits(eqn: Equation, key: Tensor) -> Tensor:
    _check_threefry(eqn)
    dtype = as_dtype(f"uint{eqn.params['bit_width']}")
    return ops.RandomBits(sizes_of(eqn.params["shape"]), dtype)(key)


@converts("random_split")
def _random_split(eqn: Equation, key: Tensor) -> Tensor:
    _check_threefry(eqn)
    shape = sizes_of(eqn.params["shape"])
    keys = ops.RandomSplit(math.prod(shape))(key)
    return keys if len(shape) == 1 else Reshape(eqn.type.shape)(keys)


@converts("random_fold_in")
def _random_fold_in(eqn: Equation, key: Tensor, data: Tensor) -> Tensor:
    _check_threefry(eqn)
    data = data if data.dtype is uint32 else Cast(uint32)(data)
    batch = eqn.type.shape[:-1]
    if data.type.shape != batch:
        data = BroadcastTo(batch, ())(data)
    if key.type.shape[:-1] != batch:
        key = BroadcastTo(eqn.type.shape, (len(batch),))(key)
    return ops.RandomFold()(key, data)


@converts("random_gamma")
def _random_gamma(eqn: Equation, key: Tensor, alpha: Tensor) -> Tensor:
    _check_threefry(eqn)
    return ops.RandomGamma(bool(eqn.params["log_space"]))(key, alpha)


@converts("rng_bit_generator")
def _rng_bit_generator(eqn: Equation, state: Tensor) -> Any:
    dtype = as_dtype(eqn.params["dtype"])
    algorithm = eqn.params["algorithm"].name.lower()
    return ops.RngBitGenerator(sizes_of(eqn.params["shape"]), dtype, algorithm)(state)


@converts("threefry2x32")
def _threefry2x32(eqn: Equation, *operands: Tensor) -> Any:
    return eqn.expanded(threefry2x32, *operands)


_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def threefry2x32(key_0: Any, key_1: Any, x_0: Any, x_1: Any) -> tuple[Any, Any]:
    """Twenty rounds of the Threefry cipher on pairs of 32 bits. (Salmon and others, "Parallel
    random numbers: as easy as 1, 2, 3", 2011.)"""
    keys = key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(0x1BD11BDA)
    x_0, x_1 = x_0 + key_0, x_1 + key_1
    for round in range(5):
        for count in _ROTATIONS[round % 2]:
            x_0 = x_0 + x_1
            x_1 = (x_1 << jnp.uint32(count)) | (x_1 >> jnp.uint32(32 - count))
            x_1 = x_0 ^ x_1
        x_0 = x_0 + keys[(round + 1) % 3]
        x_1 = x_1 + keys[(round + 2) % 3] + jnp.uint32(round + 1)
    return x_0, x_1
