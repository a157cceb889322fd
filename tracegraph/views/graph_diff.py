"""Differences between two graphs: nodes are matched by what they compute, not by their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracegraph.errors import TraceError, fail, kind_of, shown
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.views.node_matching import Matching, Side, inputs_by_name, inputs_by_place, paired
from tracegraph.views.outline import NodeOutline, shortened

#: The most changes shown per graph; `changes` has them all.
_SHOWN = 100
_LONGEST_TEXT = 160
#: The most traces named for a function with several.
_SHOWN_TRACES = 10


@dataclass(frozen=True)
class Change:
    """One difference: `kind` is added, removed or changed; `what` is node, input, output or graph.

    `before` and `after` are lines of text, empty if there is none; `details` says how they differ.
    """

    graph: str
    kind: str
    what: str
    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "changed":
            lines = [f"~ {self.before}", f"  {self.after}"]
            return "\n".join([*lines, *(f"    {detail}" for detail in self.details)])
        return f"- {self.before}" if self.kind == "removed" else f"+ {self.after}"


@dataclass(frozen=True)
class GraphDiff:
    """The differences between two graphs. It is false if there are none; its text is for people."""

    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "no difference"
        by_graph: dict[str, list[Change]] = {}
        for change in self.changes:
            by_graph.setdefault(change.graph, []).append(change)
        return "\n\n".join("\n".join(_section(*item)) for item in by_graph.items())

    def __repr__(self) -> str:
        return f"<GraphDiff: {len(self.changes)} changes>"


def _section(name: str, changes: list[Change]) -> Iterator[str]:
    kinds = ("added", "removed", "changed")
    counts = [(sum(change.kind == kind for change in changes), kind) for kind in kinds]
    yield f"@{name}: {', '.join(f'{count} {kind}' for count, kind in counts if count)}"
    for change in changes[:_SHOWN]:
        yield from (f"  {line}" for line in str(change).split("\n"))
    if len(changes) > _SHOWN:
        yield f"  ... and {len(changes) - _SHOWN:,} more"


def diff(before: object, after: object) -> GraphDiff:
    """What differs between two graphs: of graphs themselves, of concrete functions, or of functions
    that have one trace.

    Nodes that compute the same from the same operands are equal, whatever their numbers, order and
    lines; an inserted node is one addition. Graphs that ops hold are compared by name, and if names
    differ, by what they compute. The names of graphs and of inputs do not count. Where something
    differs, inputs are paired by name or by position, whichever leaves fewer changes.

    Raises TraceError (a TypeError) for an object without a graph, or with several.

    >>> a = tg.function(lambda x: tg.tanh(x) * 2.0).get_concrete_function(tg.TensorSpec([3]))
    >>> b = tg.function(lambda x: tg.tanh(x) * 3.0).get_concrete_function(tg.TensorSpec([3]))
    >>> bool(tg.diff(a, a)), len(tg.diff(a, b))
    (False, 1)
    """
    one, two = Side(_graph_of(before)), Side(_graph_of(after))
    contents: dict[Any, int] = {}
    one.read_contents(contents)
    two.read_contents(contents)
    changes: list[Change] = []
    rest = paired(one, two)
    for a, b in rest.pairs:
        if one.contents[a] != two.contents[b]:
            changes += _fewest_changes(one, two, a, b)
    name = two.outline.entry.name
    changes += [Change(name, "removed", "graph", f"graph @{one.names[a]}") for a in rest.removed]
    changes += [Change(name, "added", "graph", "", f"graph @{two.names[b]}") for b in rest.added]
    return GraphDiff(tuple(changes))


def _graph_of(value: Any) -> Graph:
    """The graph of an object that has one: a concrete function, or a function with a single
    trace."""
    graph = getattr(value, "graph", value)
    if isinstance(graph, Graph):
        return graph
    traces = getattr(value, "traces", None)
    if not isinstance(traces, list):
        fail(
            TraceError,
            f"diff: {shown(value)} is {kind_of(value)}, not a graph",
            fix="give graphs, such as f.get_concrete_function(x).graph",
        )
    if len(traces) == 1:
        return traces[0].graph
    count = f"has {len(traces)} traces" if traces else "was not traced yet"
    lines = [trace.pretty_printed_signature(verbose=False) for trace in traces[:_SHOWN_TRACES]]
    more = [f"and {len(traces) - len(lines)} more"] if len(traces) > len(lines) else []
    fail(
        TraceError,
        "\n    ".join([f"diff: {value.name} {count}", *lines, *more]),
        fix="choose one: f.get_concrete_function(x), with arguments or TensorSpecs for x"
        if traces
        else "trace it: f.get_concrete_function(x), with arguments or TensorSpecs for x",
    )


def _fewest_changes(one: Side, two: Side, a: Graph, b: Graph) -> list[Change]:
    """The changes between two graphs, with inputs paired by name or by position."""
    outlines = one.outlines[a], two.outlines[b]
    by_name, by_place = inputs_by_name(*outlines), inputs_by_place(*outlines)
    found = _Comparison(Matching(one, two, a, b, by_name)).changes()
    if by_place == by_name:
        return found
    other = _Comparison(Matching(one, two, a, b, by_place)).changes()
    return min(found, other, key=len)  # ties go to the first


class _Comparison:
    """What differs between two graphs whose nodes are matched."""

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.graphs = matching.graphs
        self.outlines = matching.outlines

    def changes(self) -> list[Change]:
        return [*self._of_inputs(), *self._of_nodes(), *self._of_outputs()]

    def _change(self, kind: str, what: str, *texts: str, details: Sequence[str] = ()) -> Change:
        return Change(self.outlines[1].name, kind, what, *texts, details=tuple(details))

    def _of_inputs(self) -> Iterator[Change]:
        a, b = self.outlines[0].inputs, self.outlines[1].inputs
        back = {j: i for i, j in self.matching.inputs.items()}
        for n, x in enumerate(a):
            if n not in self.matching.inputs:
                yield self._change("removed", "input", f"input {x.name}: {x.type}")
        for m, y in enumerate(b):
            if m not in back:
                yield self._change("added", "input", "", f"input {y.name}: {y.type}")
                continue
            x = a[back[m]]
            details = list(_differences([("type", x.type, y.type)]))
            if back[m] != m:
                details.append(f"position: {back[m]} is now {m}")
            if details:
                details = [*_differences([("name", x.name, y.name)]), *details]
                texts = f"input {x.name}: {x.type}", f"input {y.name}: {y.type}"
                yield self._change("changed", "input", *texts, details=details)

    def _of_nodes(self) -> Iterator[Change]:
        """In the order of the second graph; a removed node comes before what followed it."""
        a, b = self.outlines
        back = {m: n for n, m in self.matching.match.items()}
        gone = deque(n for n in range(len(a.nodes)) if n not in self.matching.match)
        following = len(a.nodes)
        ends = []  # the node of the first graph before which each of the second comes
        for m in reversed(range(len(b.nodes))):
            following = back.get(m, following)
            ends.append(following)
        for m, node in enumerate(b.nodes):
            n = back.get(m)
            while gone and gone[0] < ends[-1 - m]:
                yield self._change("removed", "node", _line(a.nodes[gone.popleft()]))
            if n is None:
                yield self._change("added", "node", "", _line(node))
            elif details := list(self._node_details(n, m)):
                yield self._change(
                    "changed", "node", _line(a.nodes[n]), _line(node), details=details
                )
        for n in gone:
            yield self._change("removed", "node", _line(a.nodes[n]))

    def _node_details(self, n: int, m: int) -> Iterator[str]:
        node, other = (graph.nodes[i] for graph, i in zip(self.graphs, (n, m)))
        if self.matching.deep[0][n] == self.matching.deep[1][m]:
            return
        a, b = self.outlines[0].nodes[n], self.outlines[1].nodes[m]
        if a.op != b.op:
            yield f"op: {a.op} is now {b.op}"
        elif self.matching.shallow[0][n] != self.matching.shallow[1][m]:
            yield from _attribute_differences(a, b)
        for k in range(max(len(node.inputs), len(other.inputs))):
            if k >= len(other.inputs):
                yield f"operand {k}: {a.operands[k]} is gone"
            elif k >= len(node.inputs):
                yield f"operand {k}: {b.operands[k]} is new"
            elif not self.matching.is_same(node.inputs[k], other.inputs[k]):
                names = self._name(0, node.inputs[k]), self._name(1, other.inputs[k])
                yield f"operand {k}: {names[0]} is now {names[1]}"
        yield from _differences([("type", _types(a), _types(b))])

    def _name(self, side: int, x: Tensor) -> str:
        """A value's name, with the op that computes it: a bare number says nothing."""
        made = self.matching.producers[side].get(x)
        if made is not None:
            node = self.outlines[side].nodes[made[0]]
            return f"{node.outputs[made[1]].name} ({node.op})"
        place = self.matching.positions[side].get(x)
        return "%undefined" if place is None else self.outlines[side].inputs[place].name

    def _of_outputs(self) -> Iterator[Change]:
        ys, zs = (graph.outputs for graph in self.graphs)
        for k in range(max(len(ys), len(zs))):
            before, after = (
                f"output {k}: {self._name(side, values[k])}: {values[k].type}"
                if k < len(values)
                else ""
                for side, values in enumerate((ys, zs))
            )
            if not after:
                yield self._change("removed", "output", before)
            elif not before:
                yield self._change("added", "output", "", after)
            elif not self.matching.is_same(ys[k], zs[k]) or ys[k].type is not zs[k].type:
                yield self._change("changed", "output", before, after)


def _line(node: NodeOutline) -> str:
    """A node as in the text; long attributes are truncated."""
    made = ", ".join(y.name for y in node.outputs) or "()"
    place = f" at {node.place}" if str(node.place) else ""
    left = shortened(f"{made} = {node.label}({', '.join(node.operands)})", _LONGEST_TEXT)
    return f"{left} : {_types(node)}{place}"


def _differences(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    for what, before, after in rows:
        if before != after:
            yield f"{what}: {before} is now {after}"


def _attribute_differences(a: NodeOutline, b: NodeOutline) -> Iterator[str]:
    """The attributes that differ; one that is not written has its default."""
    before, after = dict(a.attributes), dict(b.attributes)
    rows = []
    for name in dict.fromkeys([*before, *after]):
        old, new = (texts.get(name, "its default") for texts in (before, after))
        rows.append((name, shortened(old, _LONGEST_TEXT), shortened(new, _LONGEST_TEXT)))
    found = list(_differences(rows))
    yield from found or ["attributes: they differ where they are too long to show"]


def _types(node: NodeOutline) -> str:
    return ", ".join(y.type for y in node.outputs) or "()"
