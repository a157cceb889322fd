"""Traces: which graphs a file can hold, and checks of a graph against its manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.archive.manifest import Entry
from tracegraph.calls.registered_gradients import with_registered_gradients
from tracegraph.calls.undifferentiable import without_custom_gradients
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import TOKEN, DType, TensorType
from tracegraph.errors import (
    DTypeError,
    GradientError,
    ShapeError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
)
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Graph, Node
from tracegraph.ops.layout import placement_around
from tracegraph.saved_model.schema.structures import Packed
from tracegraph.signatures.signature import Request
from tracegraph.text.literals import Opaque, read_size, read_type
from tracegraph.tracing.trace import Traced


def trace_as_declared(function: Function) -> None:
    """Traces a function for its input signature. If it needs a rank or size that the signature
    leaves open, it keeps the traces of its calls.

    Raises ShapeError if it then was not called, and SignatureError if it cannot be traced at all.
    """
    if not function.has_source:
        return
    was_called = bool(function.traces)
    if any(trace.request.mesh for trace in function.traces):
        return  # the mesh around may be another one now, or none
    try:
        concrete = function.get_concrete_function()
    except ShapeError as error:
        if was_called:
            return
        if any(spec.shape.rank is None for spec in nest.flatten(function.input_signature)):
            _refuse_rank(function, fact_of(error), error)
        raise
    except TraceError as error:
        if isinstance(error, ValueError):
            raise
        raise SignatureError(f"{function.name} cannot be saved: {error}") from error
    if not was_called and any(isinstance(x.shape, tuple) for x in _of_open_rank(concrete)):
        _refuse_rank(function, "an op needs the rank of an argument")


def of_one_mesh(function: Function) -> list[ConcreteFunction]:
    """The traces of a function. Of traces that differ only in the surrounding mesh, takes the one
    for the present mesh, or else the one that was called last."""
    around, found = (placement_around(),), {}
    for trace in function.traces:
        key = trace.request.key[:-1]
        if key not in found or found[key].request.mesh != around:
            found[key] = trace
    return list(found.values())


def _of_open_rank(concrete: ConcreteFunction) -> list[TensorType]:
    """The types of the arguments whose rank the input signature leaves open."""
    specs = [spec for spec in concrete.request.tensor_specs if spec is not None]
    pairs = zip(specs, concrete.argument_types)
    return [type for spec, type in pairs if spec.shape.rank is None]


def _refuse_rank(function: Function, fact: str, cause: Exception | None = None) -> NoReturn:
    fail(
        ShapeError,
        f"{function.name} cannot be saved for every shape that its input_signature allows: {fact}",
        fix="give the rank in the input_signature, such as tg.TensorSpec([None, None]), or call "
        "the function once with each rank that is to be saved",
        cause=cause,
    )


def saved_graph(concrete: ConcreteFunction, has_custom_gradients: bool) -> Graph:
    """The graph of a trace as it is written, with or without the user's custom gradients. Raises
    SignatureError if no file can hold it."""
    for node in concrete.graph.all_nodes():
        _check_data(node, concrete.name)
    if not has_custom_gradients:
        return without_custom_gradients(concrete.graph)
    try:
        return with_registered_gradients(concrete.graph)
    except (TraceError, GradientError, ShapeError, DTypeError) as error:
        fail(
            SignatureError,
            f"{concrete.name} uses an op whose registered gradient cannot be saved: "
            f"{fact_of(error)}",
            fix="write the gradient with tg ops of op.inputs, op.outputs and the cotangents, "
            "or save with SaveOptions(experimental_custom_gradients=False)",
            cause=error,
        )


def _check_data(node: Node, name: str) -> None:
    """Raises SignatureError for a node that calls Python, or writes to a Python object."""
    for value in _flat(node.op.attributes):
        if isinstance(value, _DATA):
            continue
        called = getattr(value, "__qualname__", type(value).__name__)
        does = "calls the Python function" if callable(value) else "writes to"
        is_text = isinstance(value, Opaque)
        fail(
            SignatureError,
            f"{name} {does} {called} when it runs, and no file can hold "
            f"{'more than its name' if is_text else 'it'}",
            source=node.source,
            fix="write it with tg ops, print to sys.stdout or sys.stderr, or keep it outside of "
            "what is saved",
        )


#: The types of op attributes, other than tuples.
_DATA = (
    *(NoneType, bool, int, float, complex, str, bytes, np.ndarray, np.generic),
    *(DType, TensorType, Dim, ShapeVariable, Graph),
)


def check_readable(graphs: Iterable[Graph]) -> None:
    """Raises Mismatch for an open size or shape whose text is too long to read."""
    inner = {inner for graph in graphs for inner in graph.graphs()}
    nodes = [node for graph in inner for node in graph.nodes]
    types = {x.type for graph in inner for x in graph.inputs}
    types.update(y.type for node in nodes for y in node.outputs)
    for type in types:
        if not type.is_static:
            read_type(str(type))
    for size in {x for node in nodes for x in _flat(node.op.attributes) if isinstance(x, Dim)}:
        read_size(str(size))


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def with_results(entry: Entry, traced: Traced, count: int) -> Traced:
    """The traced body with its number of results, which must be possible for the graph."""
    traced = dataclasses.replace(traced, result_count=count)
    flags = sum(1 + report.operand_count for report in traced.checks)
    wanted = count + len(traced.assigned) + traced.has_token + flags
    if wanted != len(traced.graph.outputs):
        entry.fail(f"the graph has {len(traced.graph.outputs)} outputs, and {wanted} are described")
    return traced


def check_inputs(entry: Entry, traced: Traced, request: Request) -> None:
    """Raises LoadError if a graph's inputs and outputs do not match the manifest."""
    wanted = [
        *request.types,
        *(v.tensor_type for v in traced.variables),
        *(x.type for x in traced.captures),
        *([TOKEN] if traced.has_token else []),
    ]
    found = traced.graph.input_types
    if len(found) != len(wanted):
        entry.fail(f"the graph has {len(found)} inputs, and {len(wanted)} are described")
    for number, (type, described) in enumerate(zip(found, wanted)):
        if type is not described:
            entry.fail(f"input {number} of the graph is {type}, and {described} is described")


def check_outputs(entry: Entry, traced: Traced, packed: Packed) -> None:
    """Raises LoadError if a graph's outputs do not match the manifest."""
    results = traced.graph.output_types[: traced.result_count]
    outputs = traced.graph.output_types[traced.result_count :]
    for number, count in packed.sparse.items():
        if results[number].shape != (count,):
            entry.fail(f"a matrix of {count} values has those of type {results[number]}")
    for number, place in enumerate(traced.assigned):
        expected = traced.variables[place].tensor_type
        if not _may_hold(expected, outputs[number]):
            entry.fail(f"a variable of type {expected} is assigned {outputs[number]}")
    if traced.has_token and outputs[len(traced.assigned)] is not TOKEN:
        entry.fail("the token is not where it is described")
    if traced.graph.output_types.count(TOKEN) > traced.has_token:
        entry.fail("a token is not a result")
    place = traced.first_check
    for report in traced.checks:
        flag = traced.graph.output_types[place]
        if flag.dtype.name != "bool" or flag.shape != ():
            entry.fail(f"the flag of a check is {flag}")
        operands = traced.graph.output_types[place + 1 : place + 1 + report.operand_count]
        if (report.is_range or report.sites) and not _are_numbers(operands):
            entry.fail("the operands of a check of this kind are integers, one for each")
        place += 1 + report.operand_count


def _are_numbers(operands: Sequence[TensorType]) -> bool:
    """Whether operands are integers, either single or one for each iteration of a loop."""
    shapes = {operand.shape for operand in operands if operand.shape != ()}
    return all(operand.dtype.is_integer for operand in operands) and len(shapes) <= 1


def _may_hold(variable: TensorType, value: TensorType) -> bool:
    """Whether a variable may be assigned a value of this type; its open sizes match any."""
    if variable.dtype is not value.dtype:
        return False
    if variable.is_static or isinstance(variable.shape, ShapeVariable):
        return variable is value or isinstance(variable.shape, ShapeVariable)
    if isinstance(value.shape, ShapeVariable) or len(value.shape) != len(variable.shape):
        return False
    pairs = zip(variable.shape, value.shape, strict=True)
    return all(size == given for size, given in pairs if isinstance(size, int))
