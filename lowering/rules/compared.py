"""Comparisons of values with what was computed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax


def compared(compare: Callable[..., tuple[Any, Any]], *xs: Any) -> Any:
    """What `compare` finds, where it finds something everywhere: its second result says where.

    A value that two parts of a program read may be computed in each of them, and rounded in two
    ways: XLA's own code for CPUs fuses a product with a sum where it sees both, and 16-bit values
    may keep more digits. No barrier forbids it. So a maximum may be equal to none of its elements.
    Where that happens, and where there is nan, the comparison is made again within a branch, whose
    operands lie in memory.
    """
    xs = tuple(map(lax.stop_gradient, xs))
    found, is_found = compare(*xs)
    return lax.cond(
        jnp.all(is_found), lambda found, *xs: found, lambda found, *xs: compare(*xs)[0], found, *xs
    )
