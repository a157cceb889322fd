"""Sums of numbers of 16 bits, which are added up in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax


def in_float32(function: Callable[..., Any], *xs: Any) -> Any:
    """function(*xs) of arrays of one type; of float16 and bfloat16 it is computed in float32.

    XLA would mostly do so by itself, but where it folds constants, and in scatters, it adds in the
    type that it is given, in which 10,000 ones sum to 2,048 or 256.
    """
    dtype = xs[0].dtype
    if not is_narrow(dtype):
        return function(*xs)
    wide = (lax.convert_element_type(x, jnp.float32) for x in xs)
    return lax.convert_element_type(function(*wide), dtype)


def is_narrow(dtype: Any) -> bool:
    """Whether numbers of this type are floating and have 16 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 2


def type_of_sum(dtype: Any) -> Any:
    """The type in which numbers of a type are added up from step to step."""
    return jnp.float32 if is_narrow(dtype) else dtype
