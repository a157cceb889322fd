"""Specialisation: a polymorphic graph at given sizes. Re-inferring the types is the check."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, cast

from tracegraph.core.shapes import (
    Dim,
    Shape,
    ShapeVariable,
    Size,
    axis_count,
    element_count,
    same_shape,
    substitute_shape,
)
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch
from tracegraph.ir.builder import Builder, replay, substituted
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import RuntimeSize


def bind_sizes(
    formal: Sequence[TensorType], actual: Sequence[TensorType], assumes: bool = False
) -> dict[str, Any]:
    """The values of the names in the formal shapes. Raises Mismatch if the types do not fit.

    Open sizes that must be equal are either written alike or, if `assumes`, assumed equal; where
    they are known, that is checked.
    """
    sizes: dict[str, Any] = {}
    for expected, given in zip(formal, actual, strict=True):
        if expected is given:
            continue
        if expected.dtype is not given.dtype:
            raise Mismatch(f"{expected} was expected and {given} was given")
        _bind_shape(expected.shape, given.shape, sizes)
    for expected, given in zip(formal, actual, strict=True):
        if expected.is_static:
            continue
        wanted = substitute_shape(expected.shape, sizes)
        if wanted != given.shape and not (assumes and same_shape(wanted, given.shape) is not None):
            raise Mismatch(
                f"{expected} was expected and {given} was given, where the other arguments make "
                f"it {expected.with_shape(wanted)}",
                fix="sizes of one name must be equal",
            )
    return sizes


def bound_names(type: TensorType) -> set[str]:
    """The names whose values an input of a graph determines: those that are whole sizes of it, and
    that of its shape."""
    if isinstance(type.shape, ShapeVariable):
        return {str(type.shape)}
    return {size.name for size in type.shape if isinstance(size, Dim) and size.name is not None}


def unbound_names(inputs: Iterable[Tensor], nodes: Iterable[Node]) -> list[str]:
    """The open sizes and shapes in a graph that neither an input nor an effect determines; those in
    the graphs it calls are theirs."""
    inputs, nodes = list(inputs), list(nodes)
    used = set[str]().union(*(names_in(x.type) for x in inputs), *map(names_used, nodes))
    if not used:
        return []
    known = set[str]().union(*(bound_names(x.type) for x in inputs), *map(names_chosen, nodes))
    shapes = [name[1:] for name in known if name.startswith("*")]
    known.update(f"{name}.{of}" for name in shapes for of in ("size", "rank"))
    return sorted(used - known)


def first_size_finder(graph: Graph) -> Node | None:
    """The first node in a graph, or in the graphs in it, that finds a size in a value."""
    nodes = (node for inner in (graph, *graph.graphs()) for node in inner.nodes)
    return next((node for node in nodes if type(node.op) is RuntimeSize), None)


def first_of_unknown_size(graph: Graph) -> Node | None:
    """The first node in a graph, or in the graphs in it, that has a size which only the run
    knows."""
    return next(filter(names_chosen, graph.all_nodes()), None)


def names_chosen(node: Node, outputs: Iterable[Tensor] | None = None) -> set[str]:
    """The sizes and shapes that only the run of a node knows, if it has only these outputs."""
    outputs = node.outputs if outputs is None else outputs
    if not node.op.cuts_runs:
        return set()
    # A loop of known length is given that length.
    given = names_in(node.op.repetitions).union(*(names_in(x.type) for x in node.inputs))
    return node.op.sizes_of_runs.union(*(bound_names(y.type) for y in outputs)) - given


def names_used(node: Node, outputs: Iterable[Tensor] | None = None) -> set[str]:
    """The open sizes and shapes in the attributes of a node and the types of its outputs, or of
    these outputs."""
    outputs = node.outputs if outputs is None else outputs
    return names_in(node.op.attributes).union(*(names_in(y.type) for y in outputs))


def names_in(value: Any) -> set[str]:
    """The open sizes and shapes in a type, a shape, or a tuple of them."""
    if isinstance(value, Dim):
        return set(value.names())
    if isinstance(value, ShapeVariable):
        return {str(value)}
    if isinstance(value, TensorType):
        return set() if value.is_static else names_in(value.shape)
    items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    return set[str]().union(*map(names_in, items))


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
    """`graph` for inputs of `types`: replaces sizes and infers every node anew.

    Fails at the node, and so with the user's line, that assumed too much. The result is cached on
    the graph. A graph that already has these types is returned unchanged.
    """
    types = tuple(types)
    if graph.input_types == types:
        return graph
    return graph.cached(("specialise", types), lambda: _specialised(graph, types))


def graphs_inside(node: Node) -> list[Graph]:
    """The graphs of the regions of a node, for the types of its inputs: a function that is called
    may be traced for any sizes."""
    types = [x.type for x in node.inputs]
    pairs = [(region.graph, region) for region in node.op.regions]
    return [
        graph if graph.is_static else specialise(graph, node.op.types_inside(region, types))
        for graph, region in pairs
    ]


def with_known_sizes(graph: Graph, types: Sequence[TensorType], sizes: Mapping[str, Size]) -> Graph:
    """`graph` for inputs of `types` and for `sizes` that no input determines; not cached."""
    return _specialised(graph, tuple(types), sizes)


def check_types(graph: Graph, types: Sequence[TensorType]) -> None:
    """Raises what `specialise` would raise for inputs of `types`; caches nothing."""
    if graph.input_types != tuple(types):
        _specialised(graph, tuple(types))


def _specialised(
    graph: Graph, types: tuple[TensorType, ...], given: Mapping[str, Size] | None = None
) -> Graph:
    sizes = {**(given or {}), **bind_sizes(graph.input_types, types, assumes=True)}
    with Builder(graph.name) as builder:
        env = {x: builder.input_like(x, type) for x, type in zip(graph.inputs, types, strict=True)}
        replay(graph.nodes, env, lambda op: op.substitute(sizes))
        return builder.finish([env[y] for y in graph.outputs])


def renamed(graph: Graph, sizes: Mapping[str, Any], done: dict[Graph, Graph]) -> Graph:
    """`graph`, and all that it calls, with its open sizes renamed by `sizes`; `done` maps the
    graphs already renamed, and collects the others."""
    for inner in graph.graphs():  # callees first
        if inner not in done:
            done[inner] = _renamed(inner, sizes, done)
    return done[graph]


def _renamed(graph: Graph, sizes: Mapping[str, Any], done: dict[Graph, Graph]) -> Graph:
    def changed(value: Any) -> Any:
        if isinstance(value, Graph):
            return done[value]
        if isinstance(value, tuple):
            old = cast("tuple[Any, ...]", value)
            new = tuple(map(changed, old))
            return old if all(map(operator.is_, new, old)) else new
        return substituted(value, sizes)

    def with_names(op: Any) -> Any:
        old = op.attributes
        new = [changed(value) for value in old]
        return op if all(map(operator.is_, old, new)) else type(op)(*new)

    types = [with_sizes(type, sizes) for type in graph.input_types]
    calls_changed = any(done[x] is not x for node in graph.nodes for x in node.op.graphs())
    chosen = sizes.keys() - set().union(*map(bound_names, graph.input_types))
    if types == list(graph.input_types) and not calls_changed and not _uses(graph, chosen):
        return graph
    with Builder(graph.name) as builder:
        env = {x: builder.input_like(x, type) for x, type in zip(graph.inputs, types, strict=True)}
        replay(graph.nodes, env, with_names)
        return builder.finish([env[y] for y in graph.outputs])


def _uses(graph: Graph, names: Set[str]) -> bool:
    """Whether a graph uses names that no input determines: sizes that are chosen inside."""
    return bool(names) and any(not names.isdisjoint(names_used(node)) for node in graph.nodes)


def new_names(type: TensorType, names: Iterator[str]) -> dict[str, Any]:
    """Maps the plain named sizes of a type, or its shape variable, to ones under fresh names."""
    if isinstance(type.shape, ShapeVariable):
        shape = ShapeVariable(next(names))
        return {
            str(old): new
            for of in (_itself, element_count, axis_count)
            for old, new in [(of(type.shape), of(shape))]
        }
    named = [size.name for size in type.shape if isinstance(size, Dim) and size.name]
    return {name: Dim.named(next(names)) for name in named}


def _itself(shape: Shape) -> Shape:
    return shape


def with_sizes(type: TensorType, sizes: Mapping[str, Any]) -> TensorType:
    """A type with named sizes replaced."""
    return type if type.is_static else type.with_shape(substitute_shape(type.shape, sizes))
