"""The outline of a graph: the plain data from which every picture of it is drawn.

A view of a graph uses the names of its text: `%3` here is the `%3` of `as_text()`, `@layer.1` its
`@layer.1`, and attributes read as they do there. A view needs nothing but the outline, which
contains only strings and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tracegraph.core.shapes import ShapeVariable
from tracegraph.core.source import UNKNOWN, Source
from tracegraph.core.types import TensorType
from tracegraph.ir.op import Op, graphs_in
from tracegraph.ir.tensor import ASSIGNED, Graph, Node, Tensor
from tracegraph.text.literals import value_text
from tracegraph.text.printer import graph_symbols, value_names

#: The consumer of edges that lead to the results of the graph.
RETURN = "return"
#: Larger arrays are truncated to their first few elements: only the text preserves all bits.
_LARGEST_ARRAY, _SHOWN = 32, 8


@dataclass(frozen=True)
class ValueOutline:
    """A value: its name and type as text, and the parts of the type.

    A known size is an int, an open one its text; `("*s",)` is the shape of unknown rank.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int | str, ...]
    #: The user's name for it, from which the name of an input derives. Empty for most.
    given_name: str = ""
    #: The name scope in which it was named, such as `encoder/dense`; empty for most.
    scope: str = ""


@dataclass(frozen=True)
class PlaceOutline:
    """The user's line, and the passes that derived nodes from it; an empty file is unknown.

    Nodes with one place and different `roles` belong together, as forward and backward do;
    `instruction` distinguishes instructions on one line, and is -1 if unknown.
    """

    file: str = ""
    line: int = 0
    roles: tuple[str, ...] = ()
    instruction: int = -1
    #: The stripped source line; empty if it cannot be read.
    code: str = ""

    @property
    def short_file(self) -> str:
        """The file without its directories."""
        return self.file.replace("\\", "/").rpartition("/")[2]

    def __str__(self) -> str:
        """`mlp.py:6 vjp`, as in the text; empty if the place is unknown."""
        place = f"{self.short_file}:{self.line}" if self.file else ""
        return " ".join([place, *self.roles]).strip()


@dataclass(frozen=True)
class NodeOutline:
    """A node. Its `id` is the name of its first output, and unique in its graph."""

    id: str
    op: str
    #: `(name, text)` of each attribute that differs from its default.
    attributes: tuple[tuple[str, str], ...]
    #: The names of the operands.
    operands: tuple[str, ...]
    outputs: tuple[ValueOutline, ...]
    place: PlaceOutline
    #: `(attribute, name of the graph)` for each graph that the op holds.
    calls: tuple[tuple[str, str], ...] = ()
    #: The names of the graphs that it runs, excluding a user's derivative of a call.
    runs: tuple[str, ...] = ()
    #: The name scope in which it was created, such as `encoder/dense`; empty for most.
    scope: str = ""
    #: Shared by a node and everything that its rules created; None if parsed from text.
    origin: int | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """The op and its attributes, as in the text."""
        attributes = ", ".join(f"{name}={text}" for name, text in self.attributes)
        return f"{self.op}<{attributes}>" if attributes else self.op


@dataclass(frozen=True)
class Edge:
    """A value passed from output `output` of `producer` to operand `operand` of `consumer`.

    `producer` is the id of a node or the name of an input; `consumer` is the id of a node, or
    `return`, whose operands are the results of the graph.
    """

    producer: str
    output: int
    consumer: str
    operand: int
    value: ValueOutline


@dataclass(frozen=True)
class GraphOutline:
    """One graph: inputs, nodes in order, and the names of its results."""

    name: str
    inputs: tuple[ValueOutline, ...]
    nodes: tuple[NodeOutline, ...]
    outputs: tuple[str, ...]
    output_types: tuple[str, ...]
    edges: tuple[Edge, ...]
    #: The name of each result, such as the variable whose new value it is; else empty.
    result_names: tuple[str, ...] = ()

    @cached_property
    def values(self) -> Mapping[str, ValueOutline]:
        """Every value by its name."""
        made = (value for node in self.nodes for value in node.outputs)
        return {value.name: value for value in (*self.inputs, *made)}


@dataclass(frozen=True)
class Outline:
    """A graph and all graphs that it holds, callees first; `entry` is the graph itself, and the
    last of several."""

    graphs: tuple[GraphOutline, ...]

    @property
    def entry(self) -> GraphOutline:
        return self.graphs[-1]

    def __iter__(self) -> Iterator[GraphOutline]:
        return iter(self.graphs)

    def __getitem__(self, name: str) -> GraphOutline:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, GraphOutline]:
        return {graph.name: graph for graph in self.graphs}

    @cached_property
    def calls(self) -> tuple[tuple[str, str, str, str], ...]:
        """`(caller, id of the node, attribute, callee)` for each graph that a node holds."""
        return tuple(
            (graph.name, node.id, attribute, callee)
            for graph in self.graphs
            for node in graph.nodes
            for attribute, callee in node.calls
        )


def outline(*graphs: Graph) -> Outline:
    """The outline of a graph, or of several, and of all graphs that they hold; shared ones appear
    once. Linear in the number of nodes."""
    symbols = graph_symbols(graphs)
    return Outline(tuple(map(_Writer(symbols).graph, symbols)))


class _Writer:
    """Writes outlines; caches those of ops, types and places, which many nodes share."""

    def __init__(self, symbols: dict[Graph, str]) -> None:
        self.symbols = symbols
        self.ops: dict[Op, tuple[Any, Any, Any]] = {}
        self.types: dict[TensorType, tuple[str, str, tuple[int | str, ...]]] = {}
        self.places: dict[Any, PlaceOutline] = {}

    def graph(self, graph: Graph) -> GraphOutline:
        names = value_names(graph)
        values = {x: self.value(x, names[x]) for x in graph.inputs}
        producers = {x: (names[x], 0) for x in graph.inputs}
        edges: list[Edge] = []
        nodes = []
        for number, node in enumerate(graph.nodes):
            found = self.node(node, names, f"%{number}()")
            edges += _edges(found.id, node.inputs, producers, values)
            for place, (y, value) in enumerate(zip(node.outputs, found.outputs)):
                producers[y] = found.id, place
                values[y] = value
            nodes.append(found)
        edges += _edges(RETURN, graph.outputs, producers, values)
        return GraphOutline(
            name=self.symbols[graph],
            inputs=tuple([values[x] for x in graph.inputs]),
            nodes=tuple(nodes),
            outputs=tuple([names[y] for y in graph.outputs]),
            output_types=tuple(map(str, graph.output_types)),
            edges=tuple(edges),
            result_names=_result_names(graph, names),
        )

    def node(self, node: Node, names: Mapping[Tensor, str], anonymous: str) -> NodeOutline:
        attributes, calls, runs = self.ops.get(node.op) or self.op(node.op)
        outputs = tuple([self.value(y, names[y]) for y in node.outputs])
        return NodeOutline(
            id=outputs[0].name if outputs else anonymous,
            op=node.op.name,
            attributes=attributes,
            operands=tuple([names[x] for x in node.inputs]),
            outputs=outputs,
            place=self.place(node.source),
            calls=calls,
            runs=runs,
            scope=node.source.scope,
            origin=None if node.source.code is None else node.source.origin,
        )

    def value(self, x: Tensor, name: str) -> ValueOutline:
        type, dtype, shape = self.types.get(x.type) or self.type(x.type)
        given = str(x.name or "")
        return ValueOutline(name, type, dtype, shape, given, given.rpartition("/")[0])

    def type(self, type: TensorType) -> tuple[str, str, tuple[int | str, ...]]:
        sizes = type.shape
        if isinstance(sizes, ShapeVariable):
            shape = (str(sizes),)
        else:
            shape = tuple([size if isinstance(size, int) else str(size) for size in sizes])
        found = self.types[type] = str(type), type.dtype.name, shape
        return found

    def op(self, op: Op) -> tuple[Any, Any, Any]:
        """The attributes of an op as text, the graphs that it holds, and those that it runs."""
        rows = list(op.given_attributes())
        attributes = tuple((name, attribute_text(value, self.symbols)) for name, value in rows)
        calls = tuple(
            (name, self.symbols[inner]) for name, value in rows for inner in graphs_in(value)
        )
        runs = tuple(self.symbols[region.graph] for region in op.regions)
        found = self.ops[op] = attributes, calls, runs
        return found

    def place(self, source: Source) -> PlaceOutline:
        key = source.key
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = _place(source)
        return found


def attribute_text(value: Any, symbols: Mapping[Graph, str]) -> str:
    """An attribute as in the text, except that large arrays are truncated."""
    if isinstance(value, np.ndarray) and value.size > _LARGEST_ARRAY:
        first = value.reshape(-1)[:_SHOWN]
        dtype, _, elements = value_text(first, symbols).partition(f"[{_SHOWN}]{{")
        if elements:
            sizes = ",".join(map(str, value.shape))
            return f"{dtype}[{sizes}]{{{elements.removesuffix('}')}, ...}}"
    return value_text(value, symbols)


def shortened(text: str, longest: int) -> str:
    """The text on one line of at most `longest` characters, all printable."""
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def printable(text: str) -> str:
    """The text with spaces for line ends and tabs, and a mark for other unprintable characters: no
    file format accepts control characters, and some reorder the text displayed around them."""
    if text.isprintable():
        return text
    words = " ".join(text.split())
    return "".join([letter if letter.isprintable() else "\ufffd" for letter in words])


def _result_names(graph: Graph, names: Mapping[Tensor, str]) -> tuple[str, ...]:
    """Names new values of variables after the arguments that hold the old ones."""
    assigned = dict(graph.cache.get(ASSIGNED, ()))
    found = [
        f"new {names[graph.inputs[assigned[k]]].removeprefix('%')}"
        if k in assigned
        else y.name or ""
        for k, y in enumerate(graph.outputs)
    ]
    return tuple(found)


def _edges(
    consumer: str,
    operands: tuple[Tensor, ...],
    producers: Mapping[Tensor, tuple[str, int]],
    values: Mapping[Tensor, ValueOutline],
) -> list[Edge]:
    """The edges that end in one node; an operand that an invalid graph does not define gets
    none."""
    return [
        Edge(*producers[x], consumer, operand, values[x])
        for operand, x in enumerate(operands)
        if x in producers
    ]


def _place(source: Source) -> PlaceOutline:
    if source.line == UNKNOWN.line and source.file == UNKNOWN.file:
        return PlaceOutline(roles=source.roles)
    return PlaceOutline(source.file, source.line, source.roles, source.offset, source.text)
