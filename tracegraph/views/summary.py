"""What a graph costs, as a table: per op, per line of the user's code, and in total."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import Read
from tracegraph.shapes import Size, element_count
from tracegraph.text.printer import value_names
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


#: The costs of the rows of a table, by the part of the program that causes them.
Costs = dict[str, dict[str, Cost]]

#: What a pass derived is shown beside what the user wrote.
FORWARD, BACKWARD, TANGENT = "forward", "backward", "tangents"
_PARTS = (FORWARD, BACKWARD, TANGENT)


def summary(graph: Graph) -> str:
    """A table of what a graph takes and makes: its inputs, and per op, per line of the user's code
    and in total its nodes, the bytes they write and the floating operations of one run.

    Inputs that the graph reads as Variables are counted as its parameters. Where a gradient pass
    derived nodes, forward and backward stand beside each other, and so do the tangents of forward
    mode; the nodes of a line are then those that the user wrote there and those derived of them.

    A graph that is called counts as often as it is called, a loop's body once, all branches of a
    condition. The operations are an estimate: what `flops(*types)` of the op says, and otherwise
    one for each element of the outputs. So a multiplication, a comparison and a `tanh` are one
    each, whatever the machine takes for them, and so is an operation on complex numbers or
    integers; a product of matrices has two for each pair of elements that meet, and moving
    elements has none. Sizes that are not known appear as such.
    """
    by_op: Costs = {}
    by_line: Costs = {}
    total: dict[str, Cost] = {}
    for node, part, cost in _runs(graph):
        for row in (
            by_op.setdefault(node.op.name, {}),
            by_line.setdefault(_line(node), {}),
            total,
        ):
            row[part] = row.get(part, Cost()).plus(cost)
    head = _head(graph)
    if len(total) > 1:
        nodes, written, flops = map(_number, _sum(total.values()))
        head.append(f"together: {nodes} nodes, {written} bytes written, {flops} FLOPs")
    tables = [_inputs(graph), _table("op", by_op, total), _table("line", by_line, total)]
    return "\n\n".join("\n".join(table) for table in [head, *tables] if table)


def _sum(costs: Iterable[Cost]) -> Cost:
    return functools.reduce(Cost.plus, costs, Cost())


def _head(graph: Graph) -> list[str]:
    counts = (_count(len(graph.inputs), "input"), _count(len(graph.outputs), "output"))
    nested = _count(sum(1 for _ in graph.graphs()), "graph")
    lines = [f"@{graph.name}: {', '.join(counts)}, {nested}"]
    lines.append(f"arguments: {_size_of([x.type for x in graph.inputs])}")
    handles = _handles(graph)
    if handles:
        parameters = [x.type for x in graph.inputs if x in handles]
        lines.append(f"parameters: {len(parameters)} of them, {_size_of(parameters)}")
    return lines


def _size_of(types: list[TensorType]) -> str:
    return f"{_number(elements(types))} elements, {_number(bytes_of(types))} bytes"


def _handles(graph: Graph) -> set[Tensor]:
    """The inputs that stand for Variables, as far as the graph reads them by `read`."""
    read = {node.inputs[1] for node in graph.nodes if isinstance(node.op, Read)}
    return read.intersection(graph.inputs)


def _inputs(graph: Graph) -> list[str]:
    names = value_names(graph)
    rows = [
        (names[x], str(x.type), _number(elements([x.type])), _number(bytes_of([x.type])))
        for x in graph.inputs
    ]
    return _aligned([("input", "type", "elements", "bytes"), *rows], "<<>>") if rows else []


def _runs(graph: Graph) -> Iterator[tuple[Node, str, Cost]]:
    """Every node of the graph and of those it runs, with its cost in each part of the program.

    What a node of the backward calls is backward too, whoever wrote it. A node that runs in
    several parts counts as a node of the first.
    """
    times: dict[Graph, dict[str, int]] = {inner: {} for inner in graph.graphs()}
    times[graph] = {FORWARD: 1}
    for caller in reversed(list(times)):  # callers before those that they call
        for node in caller.nodes:
            own = _part(node)
            runs: dict[str, int] = {}
            for part, count in times[caller].items():
                part = part if own == FORWARD else own
                runs[part] = runs.get(part, 0) + count
            for place, (part, count) in enumerate(runs.items()):
                yield node, part, _cost(node, count)._replace(nodes=0 if place else 1)
            held = [getattr(node.op, name, None) for name in _NOT_RUN]
            for inner in node.op.graphs():
                if all(inner is not graph for graph in held):
                    for part, count in runs.items():
                        times[inner][part] = times[inner].get(part, 0) + count


def _part(node: Node) -> str:
    roles = node.source.roles
    return BACKWARD if "vjp" in roles else TANGENT if "jvp" in roles else FORWARD


def _line(node: Node) -> str:
    """The user's line, of which the passes derived what they derived."""
    return str(node.source).removesuffix(" ".join(("", *node.source.roles)))


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
    return sum(element_count(type.shape) for type in types if type.dtype.size)


def bytes_of(types: Iterable[TensorType]) -> Any:
    """How many bytes tensors of these types take together."""
    return sum(element_count(type.shape) * type.dtype.size for type in types)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _table(title: str, costs: Costs, total: dict[str, Cost]) -> list[str]:
    """The costs, the most nodes first, and their total, in aligned columns; the parts of the
    program stand beside each other if there are several."""
    parts = [part for part in _PARTS if part in total] or [FORWARD]
    ordered = sorted(costs.items(), key=lambda item: -_sum(item[1].values()).nodes)
    rows = [(title, *("nodes", "bytes", "FLOPs") * len(parts))]
    for name, row in [*ordered, ("total", total)]:
        cells = [row.get(part, Cost()) for part in parts]
        rows.append((name, *(_number(size) for cost in cells for size in cost)))
    lines = _aligned(rows, "<" + ">>>" * len(parts))
    if len(parts) == 1:
        return lines
    return [_titles(rows, parts), *lines]


def _titles(rows: list[tuple[str, ...]], parts: list[str]) -> str:
    """The names of the parts, each above the first of its columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    line = ""
    for place, part in enumerate(parts):
        start = sum(width + 2 for width in widths[: 1 + 3 * place])
        first = start + widths[1 + 3 * place] - len("nodes")
        line = f"{line:<{first}}{part}"
    return line


def _aligned(rows: list[tuple[str, ...]], sides: str) -> list[str]:
    """The rows with their columns aligned, to the left or to the right as `sides` says."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip()
        for row in rows
    ]


def _number(size: Size) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)
