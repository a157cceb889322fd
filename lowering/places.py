"""JAX's devices as places: where values are, and where programs run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from lowering.device import chosen_device, context_of, is_array
from tracegraph.core.device_names import full_name

#: TensorFlow's names for JAX's platforms; others have JAX's name in capitals.
_KINDS = {"cuda": "GPU", "rocm": "GPU"}
#: How JAX's error begins if the arrays of one program are on several devices.
_SEVERAL_DEVICES = "Received incompatible devices"


def kind_of(device: Any) -> str:
    """The kind of a device, in TensorFlow's terms: CPU, GPU, TPU."""
    platform: str = device.platform
    return _KINDS.get(platform) or platform.upper()


def local_devices() -> dict[str, list[Any]]:
    """The devices of this process by kind, CPUs first, in the order of their numbers."""
    found = {"CPU": list(jax.local_devices(backend="cpu"))}
    usual = jax.local_devices()
    return {**found, kind_of(usual[0]): list(usual)}


def name_of(device: Any) -> str:
    """TensorFlow's name of a device. Numbers count the devices of a kind within one process."""
    alike = [d for d in jax.devices(device.platform) if d.process_index == device.process_index]
    return full_name(kind_of(device), alike.index(device), device.process_index)


def names_of(buffer: Any) -> list[str]:
    """The names of the devices that hold an array; none for an array of NumPy."""
    if not is_array(buffer):
        return []
    return [name_of(d) for d in sorted(buffer.devices(), key=lambda d: d.id)]


def memory_kind_of(buffer: Any) -> str | None:
    """The kind of memory that holds an array, in JAX's terms: "device", "pinned_host"."""
    return buffer.sharding.memory_kind


def memory_kinds() -> list[str]:
    """The kinds of memory that the default device can reach."""
    return sorted(memory.kind for memory in usual_device().addressable_memories())


def process_index() -> int:
    """The index of this process among those that `jax.distributed` joined."""
    return jax.process_index()


def usual_device() -> Any:
    """The device on which JAX creates values here by default."""
    chosen = chosen_device()
    if isinstance(chosen, str):  # JAX also accepts the name of a platform
        return jax.local_devices(backend=chosen)[0]
    return jax.local_devices()[0] if chosen is None else chosen


def kept_on(buffer: Any, device: Any) -> Any:
    """The array moved to a device for good: programs that take it run there."""
    is_there = is_array(buffer) and buffer.committed and buffer.devices() == {device}
    return buffer if is_there else jax.device_put(buffer, device)


def kept_in(buffer: Any, device: Any, memory_kind: str) -> Any:
    """The array in a kind of memory, of `device` or, if that is None, of the devices that hold
    it."""
    array = buffer if is_array(buffer) and device is None else kept_on(buffer, device)
    if array.committed and array.sharding.memory_kind == memory_kind:
        return array
    with context_of(array.dtype):
        return jax.device_put(array, array.sharding.with_memory_kind(memory_kind))


def is_of_several_devices(error: BaseException, buffers: Sequence[Any]) -> bool:
    """Whether a program was refused because its single-device arrays are on different devices."""
    is_told = isinstance(error, ValueError) and str(error).startswith(_SEVERAL_DEVICES)
    return is_told and all(len(x.devices()) == 1 for x in buffers if is_array(x))


def on_one_device(buffers: Sequence[Any]) -> list[Any]:
    """The arrays, moved to the default device."""
    device = usual_device()
    return [jax.device_put(x, device) for x in buffers]
