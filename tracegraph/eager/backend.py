"""The backend `lowering`: the only module that imports it, at first use."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracegraph.core.later import opened
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.core.worker_thread import on_worker_thread
from tracegraph.ir.pass_observers import SPECIALISED, passed
from tracegraph.ir.tensor import Graph

#: Compiling is rare and expensive: one at a time, so that threads never compile a thing twice.
compiling = threading.RLock()


@functools.cache
def _lowering() -> Any:
    # A signal handler that fell into the import would find a module that is not whole.
    return on_worker_thread(lambda: importlib.import_module("lowering"))


def program(graph: Graph, donated: Sequence[int] = ()) -> Any:
    """The compiled program of a graph whose sizes are known: a `lowering.program.Program`."""
    made = _lowering().program.Program(graph, donated)
    passed(SPECIALISED, graph)
    for stage in ("stablehlo", "optimized_hlo"):
        passed(stage, graph, lambda stage=stage: compiler_ir(made, stage, None))
    return made


def compiler_ir(program: Any, stage: str, platform_name: str | None) -> Any:
    """The compiler's text of a program at a stage."""
    return _lowering().stages.stage_text(program, stage, platform_name)


def device_costs(program: Any, buffers: Sequence[Any], result_count: int) -> Any:
    """What a program costs each of several devices: a `views.devices.DeviceCosts`."""
    return _lowering().stages.device_costs(program, buffers, result_count)


def differentiable(graph: Graph) -> Any:
    """The graph as a function of arrays that JAX transforms, with our derivatives."""
    return _lowering().jax_derivatives.differentiable(graph)


def renew_differentiable() -> None:
    """Makes such functions anew, since an interrupt may have left one unfinished."""
    _lowering().jax_derivatives.renew()


def outside_of_traces() -> Any:
    """A context in which JAX computes right away, whatever it is tracing."""
    return _lowering().device.outside_of_traces()


def is_jax_array(value: Any) -> bool:
    """Whether a value is an array of JAX, be it one that stands for a value to come."""
    return _lowering().device.is_array(value)


def strong(array: Any) -> Any:
    """An array of JAX whose type is not that of a mere Python number."""
    return _lowering().device.strong(array)


def jax_types(arrays: Sequence[Any]) -> list[TensorType]:
    """The types of JAX's arrays; their symbolic sizes have names."""
    dtypes, shapes = [as_dtype(a.dtype) for a in arrays], [a.shape for a in arrays]
    return _lowering().sizes.types_of(dtypes, shapes)


def keep_program(program: Any, folder: Path) -> None:
    """Compiles a program, and keeps it beside the model in a folder. Raises OSError."""
    opened("lowering.precompiled").keep(program, folder)


def use_programs_of(folder: Path) -> None:
    """Takes programs from beside the model in a folder; warns if that cannot be."""
    opened("lowering.precompiled").use(folder)


def compiles() -> list[Any]:
    """The programs that were compiled last, each a `lowering.program.Compile`."""
    return list(_lowering().program.compiles)


def recorded(run: Callable[[], Any]) -> Any:
    """What XLA does while `run` runs, as a `lowering.profiler.Recording`."""
    return opened("lowering.profiler").recorded(run)


def platforms() -> tuple[str, ...]:
    """The kinds of devices that programs can be exported for."""
    return _lowering().stablehlo_export.PLATFORMS


def stablehlo(
    graph: Graph,
    names: Sequence[str],
    constants: Sequence[Any],
    results: Sequence[str],
    platforms: Sequence[str],
    constraints: Sequence[str],
) -> bytes:
    """A graph as a serialised program; see `lowering.stablehlo_export`."""
    export = _lowering().stablehlo_export.stablehlo
    return export(graph, names, constants, results, platforms, constraints)


def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    return _lowering().device.put(array)


def layouts() -> Any:
    """What users have of meshes and layouts: `tracegraph.eager.layouts`, opened at first use."""
    return opened("tracegraph.eager.layouts")


def devices() -> list[Any]:
    """All devices, those of other processes among them."""
    return _lowering().layout.devices()


def numbers_of(devices: Sequence[Any]) -> tuple[int, ...] | None:
    """The numbers of devices; None for the first ones in their order."""
    return _lowering().layout.numbers_of(devices)


def jax_mesh(text: str, numbers: tuple[int, ...] | None) -> Any:
    """JAX's mesh for the text of one; None where this machine lacks the devices."""
    return _lowering().layout.jax_mesh(text, numbers)


def sharding(mesh: str, numbers: tuple[int, ...] | None, axes: Sequence[Any]) -> Any:
    """JAX's sharding of a layout; None where this machine lacks the devices."""
    layout = _lowering().layout
    return layout.sharding(layout.Placement(mesh, numbers, tuple(axes)))


def placement_of_sharding(sharding: Any, rank: int) -> Any:
    """The text of the mesh, the numbers of its devices and the axes of a sharding of JAX's; None
    for that of one device."""
    return _lowering().layout.placement_of(sharding, rank)


def placement_of_array(array: Any) -> Any:
    """The same of a buffer; None for one that is on one device, or on the host."""
    return _lowering().layout.placement_of_array(array)


def whole_on(buffer: Any, mesh: Any) -> Any:
    """A buffer of one device on every device of JAX's mesh; one that is divided as it is."""
    return _lowering().layout.whole_on(buffer, mesh)


def put_on_mesh(array: Any, mesh: str, numbers: tuple[int, ...] | None, axes: Sequence[Any]) -> Any:
    """A buffer of its own with a layout; each device is sent what it holds, and no more."""
    layout = _lowering().layout
    return layout.put(array, layout.Placement(mesh, numbers, tuple(axes)))


def from_dlpack(value: Any) -> Any:
    """What is on a device and has `__dlpack__` as an array of JAX."""
    return _lowering().device.from_dlpack(value)


def copy(buffer: Any) -> Any:
    """A buffer with the same value that nobody else holds."""
    return _lowering().device.copy(buffer)


def row(stack: Any, row: int) -> Any:
    """A row of a buffer as one of its own."""
    return _lowering().device.row(stack, row)


def stack(buffers: Sequence[Any]) -> Any:
    """The buffers, of one type, as the rows of one."""
    return _lowering().device.stack(buffers)
