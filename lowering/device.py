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
from jax.extend.core import get_opaque_trace_state

from tracegraph.core.interrupts import uncollected
from tracegraph.core.worker_thread import Task, on_worker_thread

T = TypeVar("T")
_config: Any = jax.config

#: Data types that exist only inside JAX's x64 context.
WIDE = frozenset(["int64", "uint64", "float64", "complex128"])


def x64() -> Any:
    """JAX's context in which 64-bit types exist; its global setting does not change."""
    return jax.enable_x64(True)


def has_64_bits() -> bool:
    """Whether 64-bit types exist here: by JAX's setting, or inside its context."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


@functools.cache
def memory_bytes(device: Any) -> int | None:
    """The memory of a device in bytes, for a CPU that of the machine including swap; None if
    unknown."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is not None or device.platform != "cpu":
        return limit
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:  # not Linux
        return None
    sizes = re.findall(r"^(?:MemTotal|SwapTotal): *(\d+) kB$", text, re.MULTILINE)
    return 1024 * sum(map(int, sizes)) or None


def is_array(value: Any) -> bool:
    """Whether a value is a JAX array, concrete or a tracer."""
    return isinstance(value, jax.Array)


def strong(array: Any) -> Any:
    """A JAX array without the weak type of a Python number."""
    return jnp.asarray(array, array.dtype)


#: JAX's state on a thread that traces nothing.
_NO_TRACE = Task(get_opaque_trace_state).result()


def outside_of_traces() -> Any:
    """A context in which JAX computes immediately, whatever it is tracing. It is JAX's own only if
    JAX is tracing: a compiled function keeps one entry per context of its thread, and a signal
    handler that struck inside of another context could run no program by the usual entry."""
    if get_opaque_trace_state() == _NO_TRACE:
        return contextlib.nullcontext()
    return jax.ensure_compile_time_eval()


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    """A context that creates values and runs programs on a device; on JAX's default if it is
    None."""
    with jax.default_device(device):
        yield


def chosen_device() -> Any:
    """The device that `on_device`, or JAX's own context, chose on this thread; None if neither
    did."""
    return _config.jax_default_device


def on_worker_thread_here(work: Callable[[], T]) -> T:
    """The result of `work`, run on a worker thread with this thread's chosen device."""
    device = chosen_device()

    def placed() -> T:
        with on_device(device):
            return work()

    return on_worker_thread(work if device is None else placed)


def context_of(dtype: Any) -> Any:
    """The context in which arrays of a dtype exist."""
    return x64() if dtype.name in WIDE else contextlib.nullcontext()


def is_staging() -> bool:
    """Whether JAX is tracing on this thread, so that what it computes is not a concrete value."""
    return get_opaque_trace_state() != _NO_TRACE and isinstance(jax.device_put(np.False_), Tracer)


@uncollected
def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    with context_of(array.dtype), outside_of_traces():
        return jax.device_put(array)


@uncollected
def from_dlpack(value: Any) -> Any:
    """A device array with `__dlpack__` as a JAX array."""
    with x64(), outside_of_traces():
        return jax.dlpack.from_dlpack(value)


def in_device_memory(x: Any) -> Any:
    """A traced array moved to device memory, where programs compute."""
    is_on_host = jax.typeof(x).memory_space == jax.memory.Space.Host
    return jax.device_put(x, jax.memory.Space.Device) if is_on_host else x


def copied_to_device_memory(buffer: Any) -> Any:
    """A new buffer in device memory with the value of one in host memory."""
    (kind,) = {device.default_memory().kind for device in buffer.devices()}
    with context_of(buffer.dtype), outside_of_traces():
        return jax.device_put(buffer, buffer.sharding.with_memory_kind(kind), may_alias=False)


#: Kinds of buffers that were copied before, and those that have a compiled copy program.
_copied: set[tuple[Any, ...]] = set()
_compiled: set[tuple[Any, ...]] = set()
_copy = jax.jit(jnp.copy)


def _unless_struck(compute: Callable[[], T], transfer: Callable[[], T]) -> T:
    """The result of `compute`; that of `transfer` in a signal handler that struck while JAX traced
    the same computation, which it does once per context of a thread."""
    try:
        return compute()
    except RecursionError:
        return transfer()


@uncollected
def transferred(buffer: Any) -> Any:
    """An unshared buffer with the same value, in the same place, without compiling anything."""
    place = buffer.sharding if buffer.committed else None
    with context_of(buffer.dtype), outside_of_traces():
        return jax.device_put(buffer, place, may_alias=False)


@uncollected
def copy(buffer: Any) -> Any:
    """An unshared buffer with the same value, in the same place.

    JAX compiles a copy program per type. It is three times as fast as a transfer; but for a single
    copy, as before the first step of training, the transfer takes a hundredth of the time.
    """
    place = buffer.sharding if buffer.committed else None
    key = (buffer.dtype, buffer.shape, place, chosen_device())
    if key not in _copied:
        _copied.add(key)
        return transferred(buffer)
    if key in _compiled:
        return _unless_struck(lambda: _copy_now(buffer), lambda: transferred(buffer))
    # A signal handler that struck during the compile could not copy anything itself.
    found = on_worker_thread_here(lambda: _copy_now(buffer))
    _compiled.add(key)
    return found


def _copy_now(buffer: Any) -> Any:
    with context_of(buffer.dtype), outside_of_traces():
        return _copy(buffer)


_row = jax.jit(lambda stack, row: jax.lax.dynamic_index_in_dim(stack, row, 0, keepdims=False))


@uncollected
def row(stack: Any, row: int) -> Any:
    """A row of a buffer as a buffer of its own."""
    with context_of(stack.dtype), outside_of_traces():
        on_host = functools.partial(_row_by_host, stack, row)
        if _is_on_host(stack):
            return on_host()
        return _unless_struck(lambda: _row(stack, row), on_host)


def _row_by_host(stack: Any, row: int) -> Any:
    return jax.device_put(np.asarray(stack)[row], may_alias=False)


@uncollected
def stack(buffers: Sequence[Any]) -> Any:
    """Buffers of one type, stacked as the rows of one buffer."""
    with context_of(buffers[0].dtype), outside_of_traces():
        on_host = functools.partial(_stack_by_host, buffers)
        if all(map(_is_on_host, buffers)):  # needs no compiled program
            return on_host()
        return _unless_struck(lambda: jnp.stack(buffers), on_host)


def _stack_by_host(buffers: Sequence[Any]) -> Any:
    return jax.device_put(np.stack([np.asarray(buffer) for buffer in buffers]))


def _is_on_host(buffer: Any) -> bool:
    (device, *others) = buffer.devices()
    return device.platform == "cpu" and not others


def wait_for_all() -> None:
    """Waits until all existing arrays have their values."""
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted()])
