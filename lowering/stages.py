"""The texts of XLA's stages."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.mlir import ir

from lowering import disk
from lowering.distribution import layout
from lowering.program import Program
from tracegraph.core.source import here
from tracegraph.errors import SignatureError, message
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.layout import layout_text
from tracegraph.views.device_costs import DeviceCosts, DividedValue, collectives_in


def text_of_key(program: Program) -> str:
    """The text that identifies programs on disk: it has no user lines."""
    return disk.program_text(program.lowered())


def _stablehlo_bytes(program: Program) -> bytes:
    """The module as MLIR bytecode, produced from its text, which contains no paths of this machine,
    so that the bytes of a program are the same everywhere."""
    lowered, file = program.lowered(), io.BytesIO()
    context = lowered.compiler_ir("stablehlo").context
    module = ir.Module.parse(lowered.as_text(dialect="stablehlo"), context=context)
    module.operation.write_bytecode(file)
    return file.getvalue()


def _hlo(program: Program) -> str:
    return program.lowered().as_text(dialect="hlo", debug_info=True)


def _optimized(program: Program) -> str:
    return program.compiled().as_text()


def _optimized_proto(program: Program) -> bytes:
    """The module that XLA runs, as a serialized protocol buffer."""
    (module,) = program.compiled().runtime_executable().hlo_modules()
    return module.as_serialized_hlo_module_proto()


def _optimized_dot(program: Program) -> str:
    """The module that XLA runs as a picture, in Graphviz's language."""
    computation: Any = type(program.lowered().compiler_ir("hlo"))
    return computation(_optimized_proto(program)).as_hlo_dot_graph()


def _bytes(text: Callable[[Program], str]) -> Callable[[Program], bytes]:
    return lambda program: text(program).encode()


def device_costs(program: Program, buffers: Sequence[Any], result_count: int) -> DeviceCosts:
    """A program's cost on each of several devices, for buffers like these; None stands for an
    argument that may be anywhere."""
    compiled = program.compiled_for(buffers)
    mesh = program.mesh or layout.home_of(program.graph, buffers)
    count = 1 if mesh is None else mesh.size
    shardings = compiled.input_shardings[0]
    given = [_share(x, x.name or "", x.role, y) for x, y in zip(program.graph.inputs, shardings)]
    made = zip(program.graph.outputs[:result_count], compiled.output_shardings)
    memory = compiled.memory_analysis()
    return DeviceCosts(
        layout.text_of(mesh) if mesh is not None else "",
        count,
        tuple(given),
        tuple([_share(y, f"result {i}", "result", found) for i, (y, found) in enumerate(made)]),
        0 if memory is None else memory.temp_size_in_bytes,
        collectives_in(compiled.as_text(), count),
        program.has_run,
    )


def _share(x: Tensor, name: str, role: str, sharding: Any) -> DividedValue:
    shape, size = x.type.shape, x.type.dtype.size
    whole = math.prod(shape) * size
    if sharding is None:
        return DividedValue(name, role, "not read", whole, 0)
    found = layout.placement_of(sharding, len(shape))
    if found is None:  # on one device
        return DividedValue(name, role, "", whole, whole)
    own = math.prod(sharding.shard_shape(shape)) * size
    return DividedValue(name, role, layout_text(found.axes), whole, own)


_STAGES: dict[str, Callable[[Program], Any]] = {
    "stablehlo": lambda program: program.lowered().as_text(dialect="stablehlo", debug_info=True),
    "stablehlo_serialized": _stablehlo_bytes,
    "hlo": _hlo,
    "hlo_no_metadata": lambda program: program.lowered().as_text(dialect="hlo"),
    "hlo_serialized": _bytes(_hlo),
    "optimized_hlo": _optimized,
    "optimized_hlo_serialized": _bytes(_optimized),
    "optimized_hlo_proto_serialized": _optimized_proto,
    "optimized_hlo_dot": _optimized_dot,
}


def stage_text(program: Program, stage: str, platform_name: str | None = None) -> Any:
    """The text, or bytes for a serialized stage. Raises ValueError for an unknown stage, and for a
    platform that this machine lacks."""
    own = {device.platform for device in jax.devices()}
    if platform_name is not None and platform_name.lower() not in own:
        raise SignatureError(
            message(
                f"there is no platform {platform_name!r} here",
                source=here(),
                fix=f"use one of {', '.join(sorted(own))}, or leave platform_name out",
            )
        )
    if stage not in _STAGES:
        raise SignatureError(
            message(
                f"{stage!r} is not a stage of the compiler",
                source=here(),
                fix=f"use one of {', '.join(_STAGES)}",
            )
        )
    return _STAGES[stage](program)
