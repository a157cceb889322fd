"""The generator of all random numbers, Threefry: two words from a key and a count."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

#: Threefry's rotations, of the even and the odd groups of four rounds, and its constant: Salmon et
#: al., Parallel random numbers: as easy as 1, 2, 3 (2011), table 2 and section 4.3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_GROUPS = 5


#: The two words that a key and a count make, each an array: numbers, or another key.
Words = tuple[Any, Any]


def threefry(key: Any, count: Any) -> Words:
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


def hashed(*pairs: tuple[Words, int]) -> list[Words]:
    """The words of some keys and counts. They are computed as one array, which compiles once, and
    which XLA does not compute again for each use."""
    x, y = (jnp.stack([key[k] for key, _ in pairs]) for k in range(2))
    counts = np.array([count for _, count in pairs], np.uint32)
    words = threefry((x, y), jnp.broadcast_to(counts[:, None], x.shape))
    x, y = lax.optimization_barrier(words)
    return [*zip(x, y, strict=True)]
