"""Arrays on the device, and JAX's context for 64-bit types."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

#: Data types that exist inside JAX's x64 context only.
WIDE = frozenset(["int64", "uint64", "float64", "complex128"])


def x64() -> Any:
    """JAX's context in which 64-bit types exist; its global setting stays as it is."""
    return jax.enable_x64(True)


def _context(dtype: Any) -> Any:
    return x64() if dtype.name in WIDE else contextlib.nullcontext()


def wait(buffers: Any) -> None:
    """Returns when the buffers are made."""
    jax.block_until_ready(buffers)


def is_staging() -> bool:
    """Whether JAX is tracing a function on this thread, so that what it computes is no value."""
    return isinstance(jax.device_put(np.False_), Tracer)


def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    with _context(array.dtype), jax.ensure_compile_time_eval():
        return jax.device_put(array)


def copy(buffer: Any) -> Any:
    """A buffer with the same value that nobody else holds."""
    with _context(buffer.dtype), jax.ensure_compile_time_eval():
        return jnp.array(buffer, copy=True)
