"""What a graph costs, as a table: per op, per line of the user's code, and in total."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.shapes import Dim, ShapeVariable, Size
from tracegraph.types import TensorType

#: Attributes whose graphs are held but not run: the derivative that the user gave to a call.
_NOT_RUN = ("backward",)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Operation:
    """A node as TensorFlow shows it: `type` is the name of the op, `name` is unique."""

    name: str
    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def control_inputs(self) -> tuple[()]:
        """Operations that come first though no value of theirs is read: there are none, since the
        order of effects is a value too."""
        return ()

    def __repr__(self) -> str:
        return f"<Operation {self.name}: {self.type}>"


def get_operations(graph: Graph) -> list[Operation]:
    """The nodes of the graph in their order. A nested function is one of type `call`."""
    counts: dict[str, int] = {}
    operations = []
    for node in graph.nodes:
        type = node.op.name
        count = counts[type] = counts.get(type, -1) + 1
        name = f"{type}_{count}" if count else type
        operations.append(Operation(name, type, node.inputs, node.outputs))
    return operations


class Cost(NamedTuple):
    """Nodes in the graph and, for one run, bytes written and floating operations."""

    nodes: int = 0
    bytes: Size = 0
    flops: Size = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other)))


def summary(graph: Graph) -> str:
    """A table of the nodes, the bytes they write and the floating operations of one run.

    A graph that is called counts as often as it is called, a loop's body once, all branches of a
    condition. The operations are an estimate: what the op's own `flops(*types)` says, and
    otherwise one for each element of the outputs. Sizes that are not known appear as such.
    """
    by_op: dict[str, Cost] = {}
    by_line: dict[str, Cost] = {}
    for node, times in _runs(graph):
        cost = _cost(node, times)
        for table, key in ((by_op, node.op.name), (by_line, str(node.source))):
            table[key] = table.get(key, Cost()).plus(cost)
    counts = (_count(len(graph.inputs), "input"), _count(len(graph.outputs), "output"))
    nested = _count(sum(1 for _ in graph.graphs()), "graph")
    arguments = [x.type for x in graph.inputs]
    lines = [
        f"@{graph.name}: {', '.join(counts)}, {nested}",
        f"arguments: {elements(arguments)} elements, {bytes_of(arguments)} bytes",
        "",
        *_table("op", by_op),
        "",
        *_table("line", by_line),
    ]
    return "\n".join(lines)


def _runs(graph: Graph) -> Iterator[tuple[Node, int]]:
    """Every node of the graph and of those it runs, with how often it runs."""
    times = dict.fromkeys(graph.graphs(), 0)
    times[graph] = 1
    for caller in reversed(list(times)):  # callers before those that they call
        for node in caller.nodes:
            if times[caller]:
                yield node, times[caller]
            held = [getattr(node.op, name, None) for name in _NOT_RUN]
            for inner in node.op.graphs():
                if all(inner is not graph for graph in held):
                    times[inner] += times[caller]


def _cost(node: Node, times: int) -> Cost:
    if any(True for _ in node.op.graphs()):
        return Cost(1)  # the nodes of its graphs count
    written = [y.type for y in node.outputs]
    return Cost(1, bytes_of(written) * times, _flops(node) * times)


def _flops(node: Node) -> Any:
    rule = getattr(node.op, "flops", None)
    if rule is not None:
        return rule(*(x.type for x in node.inputs))
    return elements(y.type for y in node.outputs) if node.inputs else 0


def elements(types: Iterable[TensorType]) -> Any:
    """How many elements tensors of these types have together; tokens have none."""
    return sum(_element_count(type) for type in types if type.dtype.size)


def bytes_of(types: Iterable[TensorType]) -> Any:
    """How many bytes tensors of these types take together."""
    return sum(_element_count(type) * type.dtype.size for type in types)


def _element_count(type: TensorType) -> Size:
    if isinstance(type.shape, ShapeVariable):
        return Dim.named(f"{type.shape.name}.size")
    return math.prod(type.shape)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _table(title: str, costs: dict[str, Cost]) -> list[str]:
    """The costs, the most nodes first, and their total, in aligned columns."""
    ordered = sorted(costs.items(), key=lambda item: -item[1].nodes)
    total = Cost()
    for cost in costs.values():
        total = total.plus(cost)
    rows = [(title, "nodes", "bytes", "FLOPs")]
    rows += [(name, *map(_number, cost)) for name, cost in [*ordered, ("total", total)]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def _number(size: Size) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)
