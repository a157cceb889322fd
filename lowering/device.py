"""Arrays on the device, and JAX's context for 64-bit types."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tracegraph.core.interrupts import uncollected
from tracegraph.core.worker_thread import on_worker_thread

T = TypeVar("T")
_config: Any = jax.config

#: Data types that exist inside JAX's x64 context only.
WIDE = frozenset(["int64", "uint64", "float64", "complex128"])


def x64() -> Any:
    """JAX's context in which 64-bit types exist; its global setting stays as it is."""
    return jax.enable_x64(True)


def has_64_bits() -> bool:
    """Whether 64-bit types exist here: by JAX's setting, or inside its context."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


@functools.cache
def memory_bytes(device: Any) -> int | None:
    """The bytes of memory that a device has, for a CPU those of the machine with its swap space;
    None if nobody says."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is not None or device.platform != "cpu":
        return limit
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:  # no Linux
        return None
    sizes = re.findall(r"^(?:MemTotal|SwapTotal): *(\d+) kB$", text, re.MULTILINE)
    return 1024 * sum(map(int, sizes)) or None


def is_array(value: Any) -> bool:
    """Whether a value is an array of JAX, be it one that stands for a value to come."""
    return isinstance(value, jax.Array)


def strong(array: Any) -> Any:
    """An array of JAX whose type is not that of a mere Python number."""
    return jnp.asarray(array, array.dtype)


def outside_of_traces() -> Any:
    """A context in which JAX computes right away, whatever it is tracing."""
    return jax.ensure_compile_time_eval()


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    """A context in which values are made, and programs run, on a device; on JAX's own choice if it
    is None."""
    with jax.default_device(device):
        yield


def chosen_device() -> Any:
    """What `on_device`, or JAX's own context, has chosen on this thread; None if nobody did."""
    return _config.jax_default_device


def on_worker_thread_here(work: Callable[[], T]) -> T:
    """What `work` returns, done on a worker thread for the device that is chosen on this one."""
    device = chosen_device()

    def placed() -> T:
        with on_device(device):
            return work()

    return on_worker_thread(work if device is None else placed)


def context_of(dtype: Any) -> Any:
    """The context in which arrays of a dtype exist."""
    return x64() if dtype.name in WIDE else contextlib.nullcontext()


def is_staging() -> bool:
    """Whether JAX is tracing a function on this thread, so that what it computes is not a value."""
    return isinstance(jax.device_put(np.False_), Tracer)


@uncollected
def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    with context_of(array.dtype), jax.ensure_compile_time_eval():
        return jax.device_put(array)


@uncollected
def from_dlpack(value: Any) -> Any:
    """What is on a device and has `__dlpack__` as an array of JAX."""
    with x64(), jax.ensure_compile_time_eval():
        return jax.dlpack.from_dlpack(value)


def in_device_memory(x: Any) -> Any:
    """A traced array in the memory of the device, where programs compute."""
    is_on_host = jax.typeof(x).memory_space == jax.memory.Space.Host
    return jax.device_put(x, jax.memory.Space.Device) if is_on_host else x


def copied_to_device_memory(buffer: Any) -> Any:
    """A buffer of its own with the value of one that is in the memory of the host."""
    (kind,) = {device.default_memory().kind for device in buffer.devices()}
    with context_of(buffer.dtype), jax.ensure_compile_time_eval():
        return jax.device_put(buffer, buffer.sharding.with_memory_kind(kind), may_alias=False)


#: Kinds of buffers that were copied already, and those that there is a program for.
_copied: set[tuple[Any, ...]] = set()
_compiled: set[tuple[Any, ...]] = set()
_copy = jax.jit(jnp.copy)


@uncollected
def copy(buffer: Any) -> Any:
    """A buffer with the same value that nobody else holds, where that is.

    JAX compiles a program for copies of a type. It is three times as fast as a transfer, but for
    one copy, as before the first step of training, the transfer is a hundred times sooner done.
    """
    place = buffer.sharding if buffer.committed else None
    key = (buffer.dtype, buffer.shape, place, chosen_device())
    if key not in _copied:
        _copied.add(key)
        with context_of(buffer.dtype), jax.ensure_compile_time_eval():
            return jax.device_put(buffer, place, may_alias=False)
    if key in _compiled:
        return _copy_now(buffer)
    # A signal handler that fell into the compiling could not copy itself.
    found = on_worker_thread_here(lambda: _copy_now(buffer))
    _compiled.add(key)
    return found


def _copy_now(buffer: Any) -> Any:
    with context_of(buffer.dtype), jax.ensure_compile_time_eval():
        return _copy(buffer)


_row = jax.jit(lambda stack, row: jax.lax.dynamic_index_in_dim(stack, row, 0, keepdims=False))


@uncollected
def row(stack: Any, row: int) -> Any:
    """A row of a buffer as one of its own."""
    with context_of(stack.dtype), jax.ensure_compile_time_eval():
        if _is_on_host(stack):
            return jax.device_put(np.asarray(stack)[row], may_alias=False)
        return _row(stack, row)


@uncollected
def stack(buffers: Sequence[Any]) -> Any:
    """The buffers, of one type, as the rows of one."""
    with context_of(buffers[0].dtype), jax.ensure_compile_time_eval():
        if all(map(_is_on_host, buffers)):  # no program need be compiled
            return jax.device_put(np.stack([np.asarray(buffer) for buffer in buffers]))
        return jnp.stack(buffers)


def _is_on_host(buffer: Any) -> bool:
    (device, *others) = buffer.devices()
    return device.platform == "cpu" and not others


def wait_for_all() -> None:
    """Waits until all arrays that there are have their values."""
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted()])
