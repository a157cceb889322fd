"""A table of a graph's costs: per op, per line of the user's code, and in total."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegraph.control_passes.split_at_cuts import split_at_cuts
from tracegraph.core.shapes import Size, dim_names, element_count, substitute_size
from tracegraph.core.types import TensorType, bytes_of_type
from tracegraph.errors import TraceError, counted, fail
from tracegraph.ir.tensor import DEVICE_COSTS, NOTES, Graph, Node, Tensor
from tracegraph.ops.constant import RuntimeSize
from tracegraph.ops.effect import HostCall, Read
from tracegraph.passes.specialise import bind_sizes, bound_names, with_sizes
from tracegraph.text.printer import graph_symbols, value_names
from tracegraph.views.device_costs import DeviceCosts, aligned
from tracegraph.views.outline import shortened


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Operation:
    """A node as TensorFlow shows it: `type` is the name of the op, `name` is unique."""

    name: str
    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def control_inputs(self) -> tuple[()]:
        """Operations that come first although none of their values is read: there are none, since
        the order of effects is also a value."""
        return ()

    def __repr__(self) -> str:
        return f"<Operation {self.name}: {self.type}>"


def get_operations(graph: Graph) -> list[Operation]:
    """The nodes of the graph in order. A nested function is one of type `call`."""
    counts: dict[str, int] = {}
    operations = []
    for node in graph.nodes:
        type = node.op.name
        count = counts[type] = counts.get(type, -1) + 1
        name = f"{type}_{count}" if count else type
        operations.append(Operation(name, type, node.inputs, node.outputs))
    return operations


class NodeCost(NamedTuple):
    """Numbers of nodes in the graph and, for one run, of bytes written and floating-point
    operations."""

    nodes: int = 0
    bytes: Size = 0
    flops: Size = 0

    def plus(self, other: NodeCost) -> NodeCost:
        return NodeCost(*(a + b for a, b in zip(self, other)))

    def of_runs(self, times: int, sizes: Sizes) -> NodeCost:
        """The cost of this many runs, at these values of open sizes."""
        values = dict(sizes)
        written, flops = (substitute_size(x, values) * times for x in (self.bytes, self.flops))
        return NodeCost(self.nodes, written, flops)


#: The parts of a program: the user's nodes and those a pass derived, and the user's nodes after the
#: first gradient.
FORWARD, BACKWARD, AFTER, TANGENT = "forward", "backward", "after", "tangents"
_PARTS = (FORWARD, BACKWARD, AFTER, TANGENT)

#: The cost of each part of the program.
Costs = dict[str, NodeCost]

#: The value assumed for open sizes when rows are sorted.
_TYPICAL_SIZE = 1000
#: Longer lines of code are truncated in the table.
_LONGEST_CODE = 60
_NO_SCOPE = "(no scope)"


@dataclass(frozen=True)
class SummaryRow:
    """The cost of one op, one line of the user's code, one name scope, or one run of a branch or of
    the body of a loop; `by` says which: "op", "line", "scope" or "region".

    `costs` has the cost of each part of the program, `total` that of all. A line has the file, the
    number and, if known, the code; a branch or body has how often it `runs`, in words.
    """

    by: str
    name: str
    costs: Costs
    file: str = ""
    line: int = 0
    code: str = ""
    runs: str = ""

    @property
    def total(self) -> NodeCost:
        return _sum(self.costs.values())

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON form; open sizes are strings."""
        row: dict[str, Any] = {"by": self.by, "name": self.name, **_cost_data(self.costs)}
        if self.by == "line":
            row.update(file=self.file, line=self.line, code=self.code)
        if self.by == "region":
            row.update(runs=self.runs)
        return row


class Cut(NamedTuple):
    """A place where a run is cut: what is determined there, such as a size, and the user's line."""

    found: str
    file: str
    line: int
    code: str


def cuts_of(graph: Graph) -> list[Cut]:
    """The places between the programs of one run, in order."""
    if not graph.cuts_runs:
        return []
    parts = split_at_cuts(graph).parts
    between = [node for part in parts[:-1] for node in (*part.sizes, *part.effects)]
    return [
        Cut(_found_at(node), node.source.file, node.source.line, node.source.text)
        for node in between
        if isinstance(node.op, (RuntimeSize, HostCall)) or _sizes_found(node)
    ]


def _found_at(node: Node) -> str:
    op = node.op
    if isinstance(op, RuntimeSize):
        return str(op.size)
    return f"results of {op.called}" if isinstance(op, HostCall) else ", ".join(_sizes_found(node))


def _sizes_found(node: Node) -> list[str]:
    """The sizes that the run of a branch or a loop tells."""
    sized = node.op.outputs_sized_by_run(node.outputs)
    return sorted(set[str]().union(*(bound_names(y.type) for y in sized)))


class Summary(str):
    """The table that `summary` creates, as text, with its numbers: `rows`, `totals`,
    `to_dict()`."""

    #: The rows of all tables, grouped by table, the most expensive first.
    rows: tuple[SummaryRow, ...]
    #: The cost of each part of the program: forward, backward, after and tangents, where they
    #: exist.
    totals: Costs
    #: The name, the type and the role of each input: argument, variable, captured or token.
    inputs: tuple[tuple[str, TensorType, str], ...]
    #: Where a run is cut into programs: what is determined there, and the user's line.
    cuts: tuple[Cut, ...]
    #: What several devices hold and send, if requested.
    devices: DeviceCosts | None

    def __new__(
        cls,
        text: str,
        rows: Iterable[SummaryRow] = (),
        totals: Costs | None = None,
        inputs: Iterable[tuple[str, TensorType, str]] = (),
        cuts: Iterable[Cut] = (),
        devices: DeviceCosts | None = None,
    ) -> Summary:
        found = super().__new__(cls, text)
        found.devices = devices
        found.cuts = tuple(cuts)
        found.rows = tuple(rows)
        found.totals = totals or {}
        found.inputs = tuple(inputs)
        return found

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON has them; open sizes are strings, as in `to_json()`."""
        inputs = [
            {"name": name, "type": str(type), "role": role, **_size_data([type])}
            for name, type, role in self.inputs
        ]
        return {
            "inputs": inputs,
            "rows": [row.to_dict() for row in self.rows],
            "total": _cost_data(self.totals),
            "cuts": [{"found": cut.found, "file": cut.file, "line": cut.line} for cut in self.cuts],
            **({} if self.devices is None else {"devices": self.devices.to_dict()}),
        }


def summary(graph: Graph, devices: bool = False) -> Summary:
    """A table of a graph's costs: per op, per line of the user's code, per name scope if there are
    any, and in total, its nodes, the bytes they write and the floating-point operations of one run,
    the most expensive rows first; then its inputs. It is a str that also has the numbers: `rows`,
    `totals` and `to_dict()`.

    Inputs that represent Variables count as parameters; a graph parsed from text does not
    distinguish them, nor the tensors that a function captured, from arguments.

    If a gradient pass derived nodes, forward and backward are shown side by side, and so are the
    tangents of forward mode; a line then has the nodes that the user wrote there and those derived
    from them. Forward is what `graph.forward()` has; the user's nodes after the first gradient,
    such as an optimizer step, are listed as after.

    A called graph counts once per call, at the sizes of that call; the body of a loop once per
    step, or once if their number is unknown; all branches of a conditional. A separate table shows
    the cost of one run of each, and how often that is: in a parallel loop whose iterations decide
    for themselves, branches are computed "for all rows".

    The operations are an estimate: the op's `flops(*types)`, or otherwise one for each element of
    the outputs. So a multiplication, a comparison and a `tanh` count as one each, whatever they
    cost the machine, and so does an operation on complex numbers or integers; a matrix product has
    two for each pair of elements that meet, and moving elements has none. Unknown sizes appear as
    such; where a run is cut into several programs, since only the run knows a size or the result of
    a Python function, the lines are listed as cuts.

    With `devices`, for the graph of a function, it also has `devices`, the compiled program's costs
    on several devices: the bytes that each holds of Variables, arguments and results, and the
    collectives with their lines, the bytes exchanged, and those that a device sends.

    >>> f = tg.function(lambda x: tg.tanh(x))
    >>> table = f.get_concrete_function(tg.TensorSpec([3])).graph.summary()
    >>> [(row.name, row.total.flops) for row in table.rows if row.by == "op"]
    [('tanh', 3)]
    """
    runs = list(_runs(graph))
    rows = {"op": _by_op(runs), "line": _by_line(runs), "scope": _by_scope(runs)}
    totals = _costs(runs)
    head = _head(graph)
    if len(totals) > 1:
        nodes, written, flops = map(_number, _sum(totals.values()))
        head.append(f"together: {nodes} nodes, {written} bytes written, {flops} FLOPs")
    tables = [_table(by, found, totals) for by, found in rows.items() if found or by != "scope"]
    rows["region"] = _by_region(graph)
    cuts = cuts_of(graph)
    costs = _device_costs(graph) if devices else None
    texts = [head, *tables, _region_table(rows["region"]), _cut_table(cuts), _inputs(graph)]
    if costs is not None:
        texts += [costs.in_total(), costs.by_value(), costs.by_collective()]
    text = "\n\n".join("\n".join(table) for table in texts if table)
    names = value_names(graph)
    inputs = [(names[x], x.type, role) for x, role in _roles(graph).items()]
    return Summary(text, itertools.chain(*rows.values()), totals, inputs, cuts, costs)


def _device_costs(graph: Graph) -> DeviceCosts:
    found = graph.cache.get(DEVICE_COSTS)
    costs = None if found is None else found()
    if costs is None:
        fail(
            TraceError,
            f"summary: @{graph.name} is not a graph of a function that runs on several devices",
            fix="call the function, and ask f.get_concrete_function(...).graph",
        )
    return costs()


# Rows.

#: A node, the part of the program that it belongs to, and what it costs there.
Run = tuple[Node, str, NodeCost]


def _costs(runs: Iterable[Run]) -> Costs:
    costs: Costs = {}
    for _, part, cost in runs:
        costs[part] = costs.get(part, NodeCost()).plus(cost)
    return costs


def _grouped(runs: Iterable[Run], key: Callable[[Node], Any]) -> list[tuple[Any, Costs]]:
    """The costs of the nodes by key, the most operations and then the most bytes first."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run[0]), []).append(run)
    rows = [(found, _costs(group)) for found, group in groups.items()]
    return sorted(rows, key=lambda row: _order(_sum(row[1].values())))


def _order(cost: NodeCost) -> tuple[int, ...]:
    return tuple(-_magnitude(size) for size in (cost.flops, cost.bytes, cost.nodes))


def _magnitude(size: Size) -> int:
    """A size as a number for comparison, even if parts of it are open."""
    found = substitute_size(size, dict.fromkeys(dim_names(size), _TYPICAL_SIZE))
    return found if isinstance(found, int) else 0


def _by_op(runs: Iterable[Run]) -> list[SummaryRow]:
    groups = _grouped(runs, lambda node: node.op.name)
    return [SummaryRow("op", name, costs) for name, costs in groups]


def _by_line(runs: Iterable[Run]) -> list[SummaryRow]:
    """Rows by the user's lines, including the nodes that passes derived from them."""
    code: dict[tuple[str, int], str] = {}

    def place(node: Node) -> tuple[str, int]:
        found = node.source.file, node.source.line
        if not code.get(found):
            code[found] = node.source.text
        return found

    groups = _grouped(runs, place)
    names = short_names({file for (file, _), _ in groups})
    return [
        SummaryRow("line", f"{names[file]}:{line}", costs, file, line, code[file, line])
        for (file, line), costs in groups
    ]


def short_names(files: Iterable[str]) -> dict[str, str]:
    """The name of each file without its folders, or with as many as make it unique."""
    parts = {file: file.replace("\\", "/").split("/") for file in files}
    deepest = max(map(len, parts.values()), default=0)
    names: dict[str, str] = {}
    for depth in range(1, deepest + 1):
        found = {file: "/".join(steps[-depth:]) for file, steps in parts.items()}
        counts = Counter(found.values())
        for file, name in found.items():
            if counts[name] == 1 or depth == deepest:
                names.setdefault(file, name)
    return names


def _by_scope(runs: list[Run]) -> list[SummaryRow]:
    """Rows by name scope; none if no node has one."""
    groups = _grouped(runs, lambda node: node.source.scope)
    if all(not name for name, _ in groups):
        return []
    return [SummaryRow("scope", name or _NO_SCOPE, costs) for name, costs in groups]


def _by_region(graph: Graph) -> list[SummaryRow]:
    """Rows for the graphs that an op chooses from or runs repeatedly, each for one run."""
    symbols = graph_symbols([graph])
    found = {
        region.graph: (node.op.name, node.op.how_often(region))
        for node in graph.all_nodes()
        for region in node.op.regions
        if node.op.how_often(region)
    }
    rows = [
        SummaryRow("region", f"{op} @{symbols[inner]}", _costs(_runs(inner)), runs=runs)
        for inner, (op, runs) in found.items()
    ]
    return sorted(rows, key=lambda row: _order(row.total))


def _region_table(found: list[SummaryRow]) -> list[str]:
    rows = [(row.name, row.runs, *map(_number, row.total)) for row in found]
    return (
        aligned([("one run of", "runs", "nodes", "bytes", "FLOPs"), *rows], "<<>>>") if rows else []
    )


def _cost_data(costs: Costs) -> dict[str, Any]:
    parts = {part: _plain(costs[part]) for part in _PARTS if part in costs}
    return {**_plain(_sum(costs.values())), "parts": parts}


def _plain(cost: NodeCost) -> dict[str, Any]:
    return {name: _json_size(size) for name, size in cost._asdict().items()}


def _size_data(types: list[TensorType]) -> dict[str, Any]:
    sizes = {"elements": elements(types), "bytes": bytes_of(types)}
    return {name: _json_size(size) for name, size in sizes.items()}


def _json_size(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def _sum(costs: Iterable[NodeCost]) -> NodeCost:
    return functools.reduce(NodeCost.plus, costs, NodeCost())


def _head(graph: Graph) -> list[str]:
    counts = (counted(len(graph.inputs), "input"), counted(len(graph.outputs), "output"))
    nested = counted(sum(1 for _ in graph.graphs()), "graph")
    lines = [f"@{graph.name}: {', '.join(counts)}, {nested}"]
    types: dict[str, list[TensorType]] = {"argument": []}
    for x, role in _roles(graph).items():
        types.setdefault(role, []).append(x.type)
    lines.append(f"arguments: {_size_of(types['argument'])}")
    for role, title in (("variable", "parameters"), ("captured", "captured")):
        if role in types:
            lines.append(f"{title}: {len(types[role])} of them, {_size_of(types[role])}")
    if NOTES in graph.cache:
        lines += graph.cache[NOTES]()
    return lines


def _size_of(types: list[TensorType]) -> str:
    return f"{_number(elements(types))} elements, {_number(bytes_of(types))} bytes"


def _roles(graph: Graph) -> dict[Tensor, str]:
    """The inputs and their roles: Variables are those of a trace, and those that the graph reads as
    Variables."""
    read = {node.inputs[1] for node in graph.nodes if isinstance(node.op, Read)}
    return {x: "variable" if x in read else x.role for x in graph.inputs}


def _cut_table(cuts: Sequence[Cut]) -> list[str]:
    names = short_names({cut.file for cut in cuts})
    rows = [(cut.found, f"{names[cut.file]}:{cut.line}", cut.code) for cut in cuts]
    return aligned([("cut", "line", "code"), *rows], "<<<") if cuts else []


def _inputs(graph: Graph) -> list[str]:
    names = value_names(graph)
    rows = [
        (names[x], str(x.type), _number(elements([x.type])), _number(bytes_of([x.type])))
        for x in graph.inputs
    ]
    return aligned([("input", "type", "elements", "bytes"), *rows], "<<>>") if rows else []


#: Values of the open sizes of a graph, in terms of those of the summarised graph.
Sizes = tuple[tuple[str, Any], ...]
#: How often a graph or a node runs in each part of the program, at each of the sizes.
Counts = Counter[tuple[str, Sizes]]


def _runs(graph: Graph) -> Iterator[Run]:
    """Every node of the graph and of those it runs, with its cost in each part of the program and
    at each of the sizes. A node that runs several times counts as one node."""
    times: dict[Graph, Counts] = {inner: Counter() for inner in graph.graphs()}
    times[graph][FORWARD, ()] = 1
    for caller in reversed(list(times)):  # callers before callees
        for node, own in _parted(caller.nodes):
            runs: Counts = Counter()
            for (part, sizes), count in times[caller].items():
                runs[_part_of_run(own, part), sizes] += count
            cost = _cost(node)
            for (part, sizes), count in runs.items():
                yield node, part, cost.of_runs(count, sizes)
                cost = cost._replace(nodes=0)
            for inner, types in _graphs_run(node):
                for (part, sizes), count in runs.items():
                    again = substitute_size(node.op.repetitions or 1, dict(sizes))
                    times[inner][part, _sizes_inside(inner, types, sizes)] += count * again


def _parted(nodes: Iterable[Node]) -> Iterator[tuple[Node, str]]:
    """The nodes of a graph, each with the part of it that it belongs to."""
    written = FORWARD
    for node in nodes:
        roles = node.source.roles
        if "vjp" in roles:
            written = AFTER
            yield node, BACKWARD
        else:
            yield node, TANGENT if "jvp" in roles else written


def _part_of_run(own: str, caller: str) -> str:
    """The part of the program to which a node of a called graph belongs: everything that the
    backward calls is backward, whoever wrote it."""
    is_written = own in (FORWARD, AFTER)
    return caller if is_written and caller != FORWARD else own


def _graphs_run(node: Node) -> Iterator[tuple[Graph, list[TensorType]]]:
    """The graphs that a node runs, with the types of their inputs."""
    types = [x.type for x in node.inputs]
    for region in node.op.regions:
        yield region.graph, node.op.types_inside(region, types)


def _sizes_inside(graph: Graph, types: Sequence[TensorType], sizes: Sizes) -> Sizes:
    """The values of a graph's open sizes, for inputs of these types from a node."""
    if all(type.is_static for type in graph.input_types):
        return ()
    given = [with_sizes(type, dict(sizes)) for type in types]
    return tuple(bind_sizes(graph.input_types, given, assumes=True).items())


def _cost(node: Node) -> NodeCost:
    """The cost of one run of a node; for a call, the nodes of the callee count instead."""
    if any(True for _ in node.op.graphs()):
        return NodeCost(1)
    return NodeCost(1, bytes_of(y.type for y in node.outputs), _flops(node))


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
    return sum(map(bytes_of_type, types))


def _table(title: str, found: list[SummaryRow], totals: Costs) -> list[str]:
    """The rows and their total in aligned columns; the parts of the program are side by side if
    there are several, and the code follows the lines if any is known."""
    parts = [part for part in _PARTS if part in totals] or [FORWARD]
    code = [shortened(row.code, _LONGEST_CODE) for row in found]
    rows = [(title, *("nodes", "bytes", "FLOPs") * len(parts), "code")]
    for name, costs, text in [
        *((shortened(row.name, _LONGEST_CODE), row.costs, x) for row, x in zip(found, code)),
        ("total", totals, ""),
    ]:
        cells = [costs.get(part, NodeCost()) for part in parts]
        rows.append((name, *(_number(size) for cost in cells for size in cost), text))
    if not any(code):
        rows = [row[:-1] for row in rows]
    lines = aligned(rows, "<" + ">>>" * len(parts) + "<")
    return lines if len(parts) == 1 else [_titles(rows, parts), *lines]


def _titles(rows: list[tuple[str, ...]], parts: list[str]) -> str:
    """The names of the parts, each above its first column."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    line = ""
    for place, part in enumerate(parts):
        start = sum(width + 2 for width in widths[: 1 + 3 * place])
        first = start + widths[1 + 3 * place] - len("nodes")
        line = f"{line:<{first}}{part}"
    return line


def _number(size: Size) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)
