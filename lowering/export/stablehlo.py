"""Programs as StableHLO bytes, for every size and for several kinds of devices."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo as dialect

from lowering import sizes
from lowering.device import x64
from lowering.export.assumed import open_sizes
from lowering.program import graph_function, shape_struct
from tracegraph.core.shapes import Dim
from tracegraph.core.source import here, without_folders
from tracegraph.core.types import TensorType
from tracegraph.errors import LoweringError, SignatureError, fail, shown
from tracegraph.ir.tensor import Graph

#: The kinds of devices that JAX exports for.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def stablehlo(
    graph: Graph,
    names: Sequence[str],
    constants: Sequence[Any],
    results: Sequence[str],
    platforms: Sequence[str],
    constraints: Sequence[str] = (),
) -> bytes:
    """The serialised program `(**arguments) -> dict of results`.

    The first inputs of the graph are the arguments `names`, the others are `constants`; the outputs
    are named `results`. The constraints apply to the open sizes of the arguments, in addition to
    the graph's own assumptions.
    """
    _check_platforms(platforms)
    _check_installed()
    lowered = graph_function(graph)

    def run(**arguments: Any) -> dict[str, Any]:
        outputs = lowered(*(arguments[name] for name in names), *constants)
        return dict(zip(results, outputs, strict=True))

    run.__name__ = run.__qualname__ = graph.name
    with x64():
        types = graph.input_types[: len(names)]
        known = open_sizes(graph, _open_names(types), constants, constraints)
        with sizes.named(known):
            shapes = [sizes.shape(type.shape) for type in types]
        structs = dict(zip(names, map(shape_struct, types, shapes), strict=True))
        exported = export.export(jax.jit(run), platforms=list(platforms))(**structs)
        return bytes(_without_paths(exported).serialize())


def _open_names(types: Sequence[TensorType]) -> list[str]:
    """The names of open sizes, in the order of the arguments."""
    every = (size.name for type in types for size in type.shape if isinstance(size, Dim))
    return list(dict.fromkeys(name for name in every if name is not None))


#: A location, as MLIR prints it, with its own name: that of a scope, or of an argument.
_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"[()]')


def _without_paths(exported: export.Exported) -> export.Exported:
    """The program with our lines but without the file paths of this machine, which JAX adds: it
    does not reveal where it was built, and its bytes are the same everywhere."""
    with ir.Context() as context:
        dialect.register_dialect(context)
        sdy.register_dialect(context)  # for sharding rules, which LAPACK calls have
        module = dialect.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        module.operation.walk(_rename)
        compatibility = dialect.StablehloCompatibilityRequirement.WEEK_4  # as JAX does
        version = dialect.get_version_from_compatibility_requirement(compatibility)
        data = dialect.serialize_portable_artifact(module, version, allow_other_dialects=True)
    return dataclasses.replace(exported, mlir_module_serialized=data)


def _rename(operation: ir.Operation) -> ir.WalkResult:
    """Reduces the locations of an operation, and of its blocks' arguments, to names."""
    operation.location = _named(operation.location)
    for region in operation.regions:
        for block in region.blocks:
            for argument in block.arguments:
                argument.set_location(_named(argument.location))
    return ir.WalkResult.ADVANCE


def _named(place: ir.Location) -> ir.Location:
    name = _NAME.match(str(place))
    return ir.Location.name(without_folders(name[1])) if name else ir.Location.unknown()


def _check_platforms(platforms: Sequence[str]) -> None:
    given = list(platforms) if isinstance(platforms, Iterable) else shown(platforms)
    if not given or not set(given) <= set(PLATFORMS):
        fail(
            SignatureError,
            f"platforms are {given}, and known ones are {list(PLATFORMS)}",
            source=here(),
            fix='write platforms=("cpu", "cuda")',
        )


def _check_installed() -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        fail(
            LoweringError,
            "programs are exported with the package flatbuffers, which is not installed",
            source=here(),
            fix="pip install 'tracegraph[export]'",
        )
