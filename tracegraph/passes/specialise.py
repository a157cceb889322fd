"""Specialisation: a polymorphic graph for given sizes. Re-inferring the types is the check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.errors import Mismatch
from tracegraph.ir.builder import Builder, replay
from tracegraph.ir.tensor import Graph
from tracegraph.shapes import Dim, Shape, ShapeVariable, axis_count, element_count, substitute_shape
from tracegraph.types import TensorType


def bind_sizes(formal: Sequence[TensorType], actual: Sequence[TensorType]) -> dict[str, Any]:
    """What each name in the formal shapes stands for. Raises Mismatch if the types do not fit."""
    sizes: dict[str, Any] = {}
    for expected, given in zip(formal, actual, strict=True):
        if expected is given:
            continue
        if expected.dtype is not given.dtype:
            raise Mismatch(f"{expected} was expected and {given} was given")
        _bind_shape(expected.shape, given.shape, sizes)
    for expected, given in zip(formal, actual, strict=True):
        if not expected.is_static and substitute_shape(expected.shape, sizes) != given.shape:
            raise Mismatch(
                f"{expected} was expected and {given} was given, where the other arguments make "
                f"it {expected.with_shape(substitute_shape(expected.shape, sizes))}",
                fix="sizes of one name must be equal",
            )
    return sizes


def bound_names(type: TensorType) -> set[str]:
    """The names that an input of a graph gives a value: those that are sizes of its by themselves,
    and that of its shape."""
    if isinstance(type.shape, ShapeVariable):
        return {str(type.shape)}
    return {size.name for size in type.shape if isinstance(size, Dim) and size.name is not None}


def _bind_shape(expected: Shape, given: Shape, sizes: dict[str, Any]) -> None:
    if isinstance(expected, ShapeVariable):
        sizes.setdefault(str(expected), given)
        for of_shape in (element_count, axis_count):
            sizes.setdefault(str(of_shape(expected)), of_shape(given))
        return
    if isinstance(given, ShapeVariable) or len(expected) != len(given):
        raise Mismatch(f"the shape {list(expected)} was expected and {given} was given")
    for size, value in zip(expected, given, strict=True):
        if isinstance(size, Dim) and size.name is not None:
            sizes.setdefault(size.name, value)
        elif isinstance(size, int) and size != value:
            raise Mismatch(f"the shape {list(expected)} was expected and {list(given)} was given")


def specialise(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """`graph` for inputs of `types`: sizes replaced, every node inferred anew.

    Fails at the node, hence with the user's line, that assumed too much. The result is kept on
    the graph. A graph whose types are these already is returned as it is.
    """
    types = tuple(types)
    if graph.input_types == types:
        return graph
    return graph.kept(("specialise", types), lambda: _specialised(graph, types))


def _specialised(graph: Graph, types: tuple[TensorType, ...]) -> Graph:
    sizes = bind_sizes(graph.input_types, types)
    with Builder(graph.name) as builder:
        env = {x: builder.input(type, x.name) for x, type in zip(graph.inputs, types, strict=True)}
        replay(graph.nodes, env, lambda op: op.substitute(sizes))
        return builder.finish([env[y] for y in graph.outputs])
