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


#: What was computed before, of which kind of buffers, and what has a compiled program.
_computed: set[tuple[Any, ...]] = set()
_compiled: set[tuple[Any, ...]] = set()


def _place_of(buffer: Any) -> Any:
    """Where computations must keep the buffer; None if JAX may move it."""
    return buffer.sharding if buffer.committed else None


def _by_program(name: str, buffer: Any, compute: Callable[[], T], transfer: Callable[[], T]) -> T:
    """The result of `compute`, which JAX compiles per kind of buffer; the first time that of
    `transfer`, which compiles nothing.

    A compiled program is three to ten times as fast. But for a single time, as before the first
    step of training, a transfer takes a hundredth of what compiling does.
    """
    key = (name, buffer.dtype, buffer.shape, _place_of(buffer), chosen_device())
    if key not in _computed:
        _computed.add(key)
        return transfer()
    if key in _compiled:
        try:
            return compute()
        except RecursionError:
            # This is a signal handler that struck while JAX traced the same computation, which it
            # does once per context of a thread.
            return transfer()
    # A signal handler that struck during the compile could not compute anything itself.
    found = on_worker_thread_here(compute)
    _compiled.add(key)
    return found


@uncollected
def transferred(buffer: Any) -> Any:
    """An unshared buffer with the same value, in the same place, without compiling anything."""
    with context_of(buffer.dtype), outside_of_traces():
        return jax.device_put(buffer, _place_of(buffer), may_alias=False)


_copy = jax.jit(jnp.copy)


@uncollected
def copy(buffer: Any) -> Any:
    """An unshared buffer with the same value, in the same place."""

    def compute() -> Any:
        with context_of(buffer.dtype), outside_of_traces():
            return _copy(buffer)

    return _by_program("copy", buffer, compute, lambda: transferred(buffer))


_row = jax.jit(lambda stack, row: jax.lax.dynamic_index_in_dim(stack, row, 0, keepdims=False))
_rows = jax.jit(tuple)


@uncollected
def rows(stack: Any, places: Sequence[int]) -> Sequence[Any]:
    """Rows of a buffer as buffers of their own."""

    def compute() -> Sequence[Any]:
        with context_of(stack.dtype), outside_of_traces():
            if len(places) == 1:
                return [_row(stack, *places)]
            every = _rows(stack)
            return [every[place] for place in places]

    def transfer() -> Sequence[Any]:
        with context_of(stack.dtype), outside_of_traces():
            every = np.asarray(stack)
            return jax.device_put([every[i] for i in places], _place_of(stack), may_alias=False)

    return _by_program("row" if len(places) == 1 else "rows", stack, compute, transfer)


_stack = jax.jit(lambda *buffers: jnp.stack(buffers))


@uncollected
def stack(buffers: Sequence[Any]) -> Any:
    """Buffers of one type, stacked as the rows of one buffer."""

    def compute() -> Any:
        with context_of(buffers[0].dtype), outside_of_traces():
            return _stack(*buffers)

    def transfer() -> Any:
        with context_of(buffers[0].dtype), outside_of_traces():
            found = np.stack([np.asarray(buffer) for buffer in buffers])
            return jax.device_put(found, _place_of(buffers[0]))

    return _by_program(f"stack {len(buffers)}", buffers[0], compute, transfer)


def wait_for_all() -> None:
    """Waits until all existing arrays have their values."""
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted()])
