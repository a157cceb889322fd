"""The only module that imports the backend, `lowering`, and it does so on first use."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracegraph.core.later import opened
from tracegraph.core.settings import settings
from tracegraph.core.tensorshape import set_layouts
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.core.worker_thread import on_worker_thread
from tracegraph.ir.pass_observers import SPECIALISED, passed
from tracegraph.ir.tensor import Graph

#: Compiling is rare and expensive: one compile at a time, so that threads never duplicate one.
compiling = threading.RLock()


@functools.cache
def _lowering() -> Any:
    # A signal handler that struck during the import would find a half-initialised module.
    return on_worker_thread(lambda: importlib.import_module("lowering"))


def program(graph: Graph, donated: Sequence[int] = ()) -> Any:
    """The compiled program of a graph whose sizes are known: a `lowering.program.Program`."""
    made = _lowering().program.Program(graph, donated)
    passed(SPECIALISED, graph)
    for stage in ("stablehlo", "optimized_hlo"):
        passed(stage, graph, lambda stage=stage: compiler_ir(made, stage, None))
    return made


def top_level_program(graph: Graph) -> Any:
    """The program of a graph of the top level, which takes and returns buffers."""
    host_program = _lowering().host_program
    if host_program.may_be_host_program(graph):
        return host_program.HostProgram(graph, lambda: program(graph))
    return program(graph)


def compiler_ir(program: Any, stage: str, platform_name: str | None) -> Any:
    """The compiler's text of a program at a given stage."""
    return _lowering().stages.stage_text(program, stage, platform_name)


def text_of_key(program: Any) -> str:
    """The text that identifies a program kept on disk."""
    return _lowering().stages.text_of_key(program)


def device_costs(program: Any, buffers: Sequence[Any], result_count: int) -> Any:
    """A program's cost on each of several devices: a `views.devices.DeviceCosts`."""
    return _lowering().stages.device_costs(program, buffers, result_count)


def differentiable(graph: Graph) -> Any:
    """The graph as a function of arrays that JAX can transform, with our derivatives."""
    return _lowering().jax_derivatives.differentiable(graph)


def renew_differentiable() -> None:
    """Rebuilds such functions, since an interrupt may have left one unfinished."""
    _lowering().jax_derivatives.renew()


def outside_of_traces() -> Any:
    """A context in which JAX computes immediately, whatever it is tracing."""
    return _lowering().device.outside_of_traces()


def is_jax_array(value: Any) -> bool:
    """Whether a value is a JAX array, concrete or a tracer."""
    return _lowering().device.is_array(value)


def strong(array: Any) -> Any:
    """A JAX array without the weak type of a Python number."""
    return _lowering().device.strong(array)


def jax_types(arrays: Sequence[Any]) -> list[TensorType]:
    """The types of JAX arrays, with names for their symbolic sizes."""
    dtypes, shapes = [as_dtype(a.dtype) for a in arrays], [a.shape for a in arrays]
    return _lowering().sizes.types_of(dtypes, shapes)


def keep_program(program: Any, folder: Path) -> None:
    """Compiles a program and keeps it beside the model in `folder`. Raises OSError."""
    opened("lowering.precompiled").keep(program, folder)


def use_programs_of(folder: Path) -> None:
    """Loads programs from beside the model in `folder`; warns where that is not possible."""
    opened("lowering.precompiled").use(folder)


def compiles() -> list[Any]:
    """The most recently compiled programs, each a `lowering.program.Compile`."""
    return list(_lowering().program.compiles)


def recorded(run: Callable[[], Any]) -> Any:
    """What XLA does while `run` runs, as a `lowering.profiling.profiler.Recording`."""
    return opened("lowering.profiling.profiler").recorded(run)


def platforms() -> tuple[str, ...]:
    """The kinds of devices that programs can be exported for."""
    return _lowering().stablehlo.PLATFORMS


def stablehlo(
    graph: Graph,
    names: Sequence[str],
    constants: Sequence[Any],
    results: Sequence[str],
    platforms: Sequence[str],
    constraints: Sequence[str],
) -> bytes:
    """A graph as a serialised program; see `lowering.export.stablehlo`."""
    export = _lowering().stablehlo.stablehlo
    return export(graph, names, constants, results, platforms, constraints)


def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    return _lowering().device.put(array)


def layouts() -> Any:
    """Users' meshes and layouts: `tracegraph.eager.layouts`, imported on first use."""
    return opened("tracegraph.eager.layouts")


set_layouts(layouts)


def devices() -> list[Any]:
    """All devices, including those of other processes."""
    return _lowering().layout.devices()


def numbers_of(devices: Sequence[Any]) -> tuple[int, ...] | None:
    """The indices of devices; None if they are the first ones in order."""
    return _lowering().layout.numbers_of(devices)


def jax_mesh(text: str, numbers: tuple[int, ...] | None) -> Any:
    """JAX's mesh for the text of one; None if this machine lacks the devices."""
    return _lowering().layout.jax_mesh(text, numbers)


def sharding(mesh: str, numbers: tuple[int, ...] | None, axes: Sequence[Any]) -> Any:
    """JAX's sharding for a layout; None if this machine lacks the devices."""
    layout = _lowering().layout
    return layout.sharding(layout.Placement(mesh, numbers, tuple(axes)))


def placement_of_sharding(sharding: Any, rank: int) -> Any:
    """The mesh's text, the indices of its devices, and the axes of a JAX sharding; None for a
    single-device sharding."""
    return _lowering().layout.placement_of(sharding, rank)


def placement_of_array(array: Any) -> Any:
    """The same for a buffer; None for one on a single device, or on the host."""
    return _lowering().layout.placement_of_array(array)


def home_of(graph: Graph, buffers: Sequence[Any]) -> Any:
    """The JAX mesh that a graph runs on for these inputs; None for one device."""
    return _lowering().layout.home_of(graph, buffers)


def common_work(nodes: Any) -> list[bool]:
    """For each node whether it belongs to work of all processes; empty if there is only one."""
    return _lowering().layout.common_work(nodes) if settings.process_count > 1 else []


def whole_on(buffer: Any, mesh: Any) -> Any:
    """A single-device buffer replicated over JAX's mesh; a sharded buffer unchanged."""
    return _lowering().layout.whole_on(buffer, mesh)


def off_mesh(buffer: Any) -> Any:
    """A buffer replicated over a mesh, as a buffer of this process alone."""
    return _lowering().layout.off_mesh(buffer)


def put_on_mesh(array: Any, mesh: str, numbers: tuple[int, ...] | None, axes: Sequence[Any]) -> Any:
    """A new buffer with a layout; each device is sent only what it holds."""
    layout = _lowering().layout
    return layout.put(array, layout.Placement(mesh, numbers, tuple(axes)))


def has_sharding(buffer: Any, sharding: Any) -> bool:
    """Whether a buffer is sharded as a JAX sharding says, on its mesh."""
    return _lowering().layout.has_sharding(buffer, sharding)


def from_dlpack(value: Any) -> Any:
    """A device array with `__dlpack__` as a JAX array."""
    return _lowering().device.from_dlpack(value)


def copy(buffer: Any) -> Any:
    """An unshared buffer with the same value."""
    return _lowering().device.copy(buffer)


def transferred(buffer: Any) -> Any:
    """An unshared buffer with the same value, for a single copy: nothing is compiled for it."""
    return _lowering().device.transferred(buffer)


def rows(stack: Any, places: Sequence[int]) -> Sequence[Any]:
    """Rows of a buffer as buffers of their own."""
    return _lowering().device.rows(stack, places)


def stack(buffers: Sequence[Any]) -> Any:
    """Buffers of one type, stacked as the rows of one buffer."""
    return _lowering().device.stack(buffers)


# Devices.


def local_devices() -> dict[str, list[Any]]:
    """JAX's devices in this process by kind: CPU, GPU, TPU."""
    return _lowering().places.local_devices()


def process_index() -> int:
    """The index of this process among those of `jax.distributed`."""
    return _lowering().places.process_index()


def device_names(buffer: Any) -> list[str]:
    """The names of the devices that hold a buffer."""
    return _lowering().places.names_of(buffer)


def memory_kind(buffer: Any) -> str | None:
    """The kind of memory that holds a buffer."""
    return _lowering().places.memory_kind_of(buffer)


def chosen_device() -> Any:
    """The device chosen on this thread for values and programs, or None."""
    return _lowering().device.chosen_device()


def usual_device() -> Any:
    """The device on which this thread creates values and runs programs by default."""
    return _lowering().places.usual_device()


def on_device(device: Any) -> Any:
    """A context that creates values and runs programs on a device."""
    return _lowering().device.on_device(device)


def device_changed() -> None:
    """Called when this thread chose another device."""
    _lowering().program.device_changed()


def memory_kinds() -> list[str]:
    """The kinds of memory that the default device can reach."""
    return _lowering().places.memory_kinds()


def kept_in(buffer: Any, device: Any, memory_kind: str) -> Any:
    """A buffer that stays in a kind of memory, of `device` or, if that is None, of the devices that
    hold it."""
    return _lowering().places.kept_in(buffer, device, memory_kind)


def copied_to_device_memory(buffer: Any) -> Any:
    """A new buffer in device memory with the value of one in host memory."""
    return _lowering().device.copied_to_device_memory(buffer)


def kept_on(buffer: Any, device: Any) -> Any:
    """A buffer that stays on a device."""
    return _lowering().places.kept_on(buffer, device)


def is_of_several_devices(error: BaseException, buffers: Sequence[Any]) -> bool:
    """Whether a program was refused because its single-device arrays are on different devices."""
    return _lowering().places.is_of_several_devices(error, buffers)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that a program ran out of memory."""
    return _lowering().memory.is_exhausted(error)


# Processes.


def join_processes(
    address: str | None,
    count: int | None,
    index: int | None,
    local_device_ids: Sequence[int] | None,
    timeout: int,
) -> None:
    """Joins this process to others; see `lowering.distribution.processes`."""
    _lowering().processes.initialize(address, count, index, local_device_ids, timeout)


def processes_joined() -> bool:
    """Whether this process is joined to others."""
    return _lowering().processes.is_initialized()


def on_host(buffer: Any) -> np.ndarray:
    """A buffer as a NumPy array. One sharded over processes is gathered, so all of them must call
    this."""
    return _lowering().processes.on_host(buffer)


def gathered_on_host(buffer: Any) -> np.ndarray:
    """The same where not all processes may call this: one that waits in vain gets an error."""
    return _lowering().agreement.gathered_on_host(buffer)


def watched_by(watch: Any) -> None:
    """Sets what watches the other processes: see `ProcessSettings` of the lowering."""
    lowered = _lowering().processes.settings
    lowered.end, lowered.leave_together = watch.end, watch.leave_together
    lowered.has_ended, lowered.give, lowered.log = watch.has_ended, watch.give, watch.runs


def leave_together() -> None:
    """Waits until all processes agree to exit; all of them must call this."""
    _lowering().processes.settings.leave_together()


def joined_as() -> tuple[int, int]:
    """The index of this process and the number of processes, once it has joined others."""
    processes = _lowering().processes
    return processes.index(), processes.count()


def common_number() -> int:
    """A random number common to all processes; each must call this."""
    return _lowering().processes.common_number()


def from_local(array: np.ndarray, sharding: Any) -> Any:
    """A buffer to which each process contributes its part. Raises DistributedError if processes
    contribute different values of one part."""
    return _lowering().agreement.from_local(array, sharding)


def gathered_from_processes(data: bytes, doing: str) -> list[bytes]:
    """Every process's data, in process order; all of them must call this, for one purpose."""
    return _lowering().processes.gathered(data, doing)


def own_parts(buffer: Any) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The parts of a sharded buffer that this process writes, each with its start: every part
    belongs to one process."""
    return _lowering().processes.own_parts(buffer)


def from_parts(type: TensorType, sharding: Any, read: Any) -> Any:
    """A buffer with a JAX sharding, whose parts on this process's devices `read(begin, end)`
    returns."""
    return _lowering().processes.from_parts(type, sharding, read)
