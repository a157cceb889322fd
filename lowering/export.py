"""Programs as bytes of StableHLO, for every size and for several kinds of devices."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as dialect

from lowering import sizes
from lowering.device import x64
from lowering.program import graph_function, shape_struct
from tracegraph.errors import LoweringError, SignatureError, fail
from tracegraph.ir.tensor import Graph
from tracegraph.passes.specialise import bound_names
from tracegraph.source import here
from tracegraph.types import TensorType

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

    The first inputs of the graph are the arguments `names`, the others are `constants`; the
    outputs are called `results`. The constraints hold of the open sizes of the arguments.
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
        structs = dict(zip(names, _structs(types, constraints), strict=True))
        exported = export.export(jax.jit(run), platforms=list(platforms))(**structs)
        return bytes(_without_paths(exported).serialize())


#: A place as MLIR prints it that has a name of its own: that of a scope, or of an argument.
_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"[()]')


def _without_paths(exported: export.Exported) -> export.Exported:
    """The program with our lines and without the files of this machine, which JAX adds to them:
    it tells nobody where it was made, and is the same bytes wherever it is."""
    with ir.Context() as context:
        dialect.register_dialect(context)
        sdy.register_dialect(context)  # of rules for shardings, which calls of LAPACK have
        module = dialect.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        module.operation.walk(_rename)
        compatibility = dialect.StablehloCompatibilityRequirement.WEEK_4  # as JAX does
        version = dialect.get_version_from_compatibility_requirement(compatibility)
        data = dialect.serialize_portable_artifact(module, version, allow_other_dialects=True)
    return dataclasses.replace(exported, mlir_module_serialized=data)


def _rename(operation: ir.Operation) -> ir.WalkResult:
    """Leaves names alone in the places of an operation and of the arguments of its blocks."""
    operation.location = _named(operation.location)
    for region in operation.regions:
        for block in region.blocks:
            for argument in block.arguments:
                argument.set_location(_named(argument.location))
    return ir.WalkResult.ADVANCE


def _named(place: ir.Location) -> ir.Location:
    name = _NAME.match(str(place))
    return ir.Location.name(name[1]) if name else ir.Location.unknown()


def _structs(types: Sequence[TensorType], constraints: Sequence[str]) -> list[Any]:
    """The types as JAX's, with symbolic sizes for open ones."""
    names = sorted(set().union(*map(bound_names, types)))
    with sizes.named(sizes.symbolic(names, constraints)):
        return [shape_struct(type, sizes.shape(type.shape)) for type in types]


def _check_platforms(platforms: Sequence[str]) -> None:
    unknown = [name for name in platforms if name not in PLATFORMS]
    if unknown or not platforms:
        fail(
            SignatureError,
            f"platforms are {list(platforms)}, and known ones are {list(PLATFORMS)}",
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
