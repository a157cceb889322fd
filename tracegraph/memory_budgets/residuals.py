"""Residuals: values that the backward part of a graph reads from its forward part, and which of
them to keep.

A graph with gradients has *phases*: each begins with the first node that a gradient derived, after
nodes that the user wrote. A value of one phase that a derived node of a later phase reads is a
*residual*. It is kept from one to the other, or recomputed from kept values.

Minimum cuts choose what to keep. Each phase is divided into *segments* at points where few bytes
cross from earlier to later nodes; what crosses is kept. Inside a segment the cut weighs the bytes
kept against the work of recomputation. (Jain and others, "Checkmate", 2020, solve the same
trade-off by integer programs; a cut finds the optimum for a segment in almost no time.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tracegraph.control.less_memory.segments import bytes_of
from tracegraph.core.shapes import element_count
from tracegraph.core.source import Source
from tracegraph.ir.builder import INPUT
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.memory_budgets.cuts import Edge, behind_minimum_cut
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.constant import Constant
from tracegraph.ops.random import FromKey, FromParameters
from tracegraph.passes.simplify import with_calls_opened
from tracegraph.passes.specialise import graphs_inside

#: The role of nodes that a gradient derived.
BY_GRADIENT = "vjp"
#: The role of nodes that forward mode derived.
BY_TANGENTS = "jvp"


@dataclass(frozen=True)
class KeptValues:
    """Which values are kept, and the segment of each node."""

    kept: frozenset[Tensor]
    segments: dict[Node, int]


@dataclass(frozen=True)
class Residual:
    """A value that a later phase reads: its bytes, its position, and the cost of computing it."""

    value: Tensor
    bytes: int
    flops: int

    @property
    def source(self) -> Source:
        return self.value.source


class Timeline:
    """A graph of known sizes with its calls inlined, and the values that its later phases read from
    earlier ones."""

    def __init__(
        self, graph: Graph, plain: Timeline | None = None, notes: Sequence[object] = ()
    ) -> None:
        """`plain` is the timeline of the graph that this one was rewritten from, if any, and
        `notes` say how its loops differ."""
        self.notes = tuple(map(str, notes))
        self.graph = with_calls_opened(graph)
        self.plain = self if plain is None else plain
        self.nodes = self.graph.nodes
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.phases = _phases(self.nodes)
        self.maker = {y: node for node in self.nodes for y in node.outputs}
        self.inputs = frozenset(self.graph.inputs)
        #: Values that depend on no input of the graph: the compiler may move them anywhere.
        self.constant = made_of_nothing(self.nodes)
        #: The nodes that gradients derived.
        self.rules = frozenset(n for n in self.nodes if BY_GRADIENT in n.source.roles)
        self.has_tangents = any(BY_TANGENTS in node.source.roles for node in self.rules)
        #: For each node the operations that it takes.
        self.costs = {node: cost(node) for node in self.nodes}
        #: For each node the values that a rule reads from phases before its own.
        self.late_inputs = {node: self._late_inputs(node) for node in self.nodes}
        #: The minimum cuts found so far, by the keys of their networks.
        self._cuts: dict[tuple[Edge, ...], list[int]] = {}
        self.users: dict[Tensor, list[Node]] = {}
        for node in self.nodes:
            for x in dict.fromkeys(node.inputs):
                self.users.setdefault(x, []).append(node)

    @cached_property
    def work(self) -> float:
        """The operations of all nodes, each counted once."""
        return sum(self.costs.values())

    @cached_property
    def residuals(self) -> list[Residual]:
        """The values that later phases read and nothing else keeps, largest first."""
        return sorted(map(self.residual, self.read_late), key=lambda residual: -residual.bytes)

    def residual(self, x: Tensor) -> Residual:
        """The size and cost of a value that a node computes."""
        return Residual(x, bytes_of(x), int(self.costs[self.maker[x]]))

    @cached_property
    def read_late(self) -> set[Tensor]:
        """The values that a rule of a later phase reads, except those that stay anyway."""
        every = {x for inputs in self.late_inputs.values() for x in inputs}
        return every - self.staying

    def _late_inputs(self, node: Node) -> list[Tensor]:
        if node not in self.rules:
            return []
        phase = self.phases[node]
        return [x for x in node.inputs if self._phase_of(x) < phase]

    def _phase_of(self, x: Tensor) -> int:
        return self.phases[self.maker[x]] if x in self.maker else 0

    @cached_property
    def staying(self) -> set[Tensor]:
        """The values alive to the end, or up to a later phase that is not a gradient's."""
        found = {*self.graph.inputs, *self.graph.outputs, *self.constant}
        for node in self.nodes:
            if BY_GRADIENT not in node.source.roles:
                found.update(x for x in node.inputs if self._phase_of(x) < self.phases[node])
        return found

    @cached_property
    def _needed(self) -> list[Node]:
        """The nodes that compute residuals from staying values, in order."""
        wanted = set(self.read_late)
        needed = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs):
                needed.append(node)
                wanted.update(x for x in node.inputs if x not in self.staying)
        return needed[::-1]

    # Segments.

    def total(self) -> int:
        """The bytes of all values that could be recomputed."""
        return sum(bytes_of(y) for node in self._needed for y in node.outputs)

    def segments(self, limit: int) -> dict[Node, int]:
        """The segment index of each node that may be recomputed. A segment computes at most `limit`
        bytes if it is divided, and is divided where the fewest bytes cross."""
        found: dict[Node, int] = {}
        number = 0
        for phase in sorted({self.phases[node] for node in self._needed}):
            nodes = [node for node in self._needed if self.phases[node] == phase]
            for segment in _divided(nodes, self._crossing(nodes), limit):
                found.update(dict.fromkeys(segment, number))
                number += 1
        return found

    def _crossing(self, nodes: Sequence[Node]) -> list[int]:
        """For each of the nodes the bytes computed up to it that later ones of them read."""
        place = {node: i for i, node in enumerate(nodes)}
        change = [0] * (len(nodes) + 1)
        for i, node in enumerate(nodes):
            for y in node.outputs:
                if y in self.staying:
                    continue
                last = max((place.get(user, 0) for user in self.users.get(y, ())), default=0)
                if last > i:
                    change[i] += bytes_of(y)
                    change[last] -= bytes_of(y)
        total, crossing = 0, []
        for i in range(len(nodes)):
            total += change[i]
            crossing.append(total)
        return crossing

    # Plans.

    def plan(
        self, segments: dict[Node, int], price: float, last: int = 0, price_of_last: float = 0.0
    ) -> KeptValues:
        """What to keep if a unit of work costs `price` bytes, and `price_of_last` in the `last`
        segments. Those are the first that the backward pass needs, when memory is at its peak:
        recomputing one of them would save nothing at that time."""
        crossing = {x for node in self._needed for x in self._from_outside(node, segments)}
        kept = crossing & set(self._values)
        by_segment: dict[int, list[Node]] = {}
        for node in self._needed:
            by_segment.setdefault(segments[node], []).append(node)
        reads = Reads(self.users, self.read_late, self.staying)
        for number, nodes in by_segment.items():
            is_last = number >= len(by_segment) - last
            flow = CutNetwork(reads, nodes, crossing, price_of_last if is_last else price)
            places = self._cuts.get(flow.key)
            if places is None:
                places = self._cuts[flow.key] = flow.cut()
            kept.update(flow.values[i] for i in places)
        return KeptValues(frozenset(kept), segments)

    def _from_outside(self, node: Node, segments: dict[Node, int]) -> Iterator[Tensor]:
        """The values that a node reads from other segments of its phase."""
        for x in node.inputs:
            maker = self.maker.get(x)
            if maker is None or segments.get(maker, segments[node]) == segments[node]:
                continue
            if self.phases[maker] == self.phases[node]:
                yield x

    @cached_property
    def _values(self) -> dict[Tensor, None]:
        """The values of the nodes that may be recomputed."""
        made = (y for node in self._needed for y in node.outputs)
        return dict.fromkeys(y for y in made if y not in self.staying)

    def prices(self, count: int) -> list[float]:
        """Prices, from one at which no work is repeated down to one at which all is."""
        ratios = [
            bytes_of(y) / self.costs[node]
            for node in self._needed
            for y in node.outputs
            if self.costs[node] and bytes_of(y)
        ]
        if not ratios:
            return [0.0]
        low, high = min(ratios) / 2, max(ratios) * 2
        steps = (high / low) ** (1 / max(count - 1, 1))
        return [high / steps**i for i in range(count)] + [0.0]


def _phases(nodes: Iterable[Node]) -> dict[Node, int]:
    phases: dict[Node, int] = {}
    phase, was_derived = 0, False
    for node in nodes:
        is_derived = BY_GRADIENT in node.source.roles
        phase += is_derived and not was_derived
        was_derived = is_derived
        phases[node] = phase
    return phases


def made_of_nothing(nodes: Iterable[Node]) -> frozenset[Tensor]:
    found: set[Tensor] = set()
    for node in nodes:
        if found.issuperset(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


def _divided(
    nodes: Sequence[Node], crossing: Sequence[int], limit: int
) -> Iterator[Sequence[Node]]:
    """Divides nodes into segments: each as long as the limit allows, cut at the point in its last
    half where the fewest bytes cross."""
    start, made = 0, 0
    i = 0
    sizes = [sum(map(bytes_of, node.outputs)) for node in nodes]
    while i < len(nodes):
        made += sizes[i]
        i += 1
        if made <= limit or i - start < 2 or i == len(nodes):
            continue
        half, done = start, 0
        while done < limit / 2 and half < i - 1:
            done += sizes[half]
            half += 1
        end = min(range(half, i), key=lambda place: (crossing[place - 1], -place))
        end = max(end, start + 1)
        yield nodes[start:end]
        start = i = end
        made = 0
    yield nodes[start:]


class Reads(NamedTuple):
    """What a flow needs to know: the nodes that read each value, the values that are read late, and
    those available anyway."""

    users: dict[Tensor, list[Node]]
    late: set[Tensor]
    staying: set[Tensor]


class CutNetwork:
    """The network of one segment, whose minimum cut says which values are kept."""

    def __init__(
        self, reads: Reads, nodes: Sequence[Node], crossing: set[Tensor], price: float
    ) -> None:
        place = {node: _FIRST + i for i, node in enumerate(nodes)}
        self.values: list[Tensor] = []
        self._first_value = _FIRST + len(nodes)
        self._edges: list[Edge] = []
        for node, i in place.items():
            work = math.inf if is_kept_always(node) else price * cost(node)
            self._edges.append((_SOURCE, i, work))
            for y in node.outputs:
                users = [place[user] for user in reads.users.get(y, ()) if user in place]
                if not users and y not in reads.late:
                    continue
                number = self._first_value + len(self.values)
                self.values.append(y)
                is_free = y in reads.staying or y in crossing
                self._edges.append((i, number, 0 if is_free else bytes_of(y)))
                if y in reads.late:
                    self._edges.append((number, _SINK, math.inf))
                self._edges += [(number, user, math.inf) for user in users]
        #: Equal for segments with equal networks.
        self.key = tuple(self._edges)

    def cut(self) -> list[int]:
        """The positions of the values that are kept."""
        behind = behind_minimum_cut(self._edges, _SOURCE, _SINK)
        return [
            end - self._first_value
            for start, end, _ in self._edges
            if end >= self._first_value and behind[end] and not behind[start]
        ]


#: The vertices of a flow: the two ends, then its nodes, then their values.
_SOURCE, _SINK, _FIRST = range(3)


def kept_in_step(
    nodes: Sequence[Node], late: set[Tensor], staying: set[Tensor], price: float
) -> list[Tensor]:
    """Which values of one step of a loop to keep, if `late` are read later and `staying` are there
    anyway; a unit of work costs `price` bytes."""
    users: dict[Tensor, list[Node]] = {}
    for node in nodes:
        for x in dict.fromkeys(node.inputs):
            users.setdefault(x, []).append(node)
    free = made_of_nothing(node for node in nodes if node.op is not INPUT)
    flow = CutNetwork(Reads(users, late, staying | free), nodes, set(), price)
    # What is made of nothing costs nothing to cut at, and is made again rather than stacked.
    return list(dict.fromkeys(x for x in map(flow.values.__getitem__, flow.cut()) if x not in free))


def is_kept_always(node: Node) -> bool:
    """Whether a node's results are never recomputed: inputs, random numbers, effects, and operands
    of a user's barrier."""
    op: Any = node.op
    if op is INPUT:
        return True
    return op.has_effects or op.cuts_runs or isinstance(op, (FromKey, FromParameters, Barrier))


def cost(node: Node) -> float:
    """The work of a node, in operations: the number that its op states, otherwise one per element
    of its results, plus its share of memory traffic."""
    if isinstance(node.op, Constant):
        return 0
    made = sum(element_count(y.type.shape) for y in node.outputs)
    rule = getattr(node.op, "flops", None)
    if rule is None:
        work = sum(sum(map(cost, graph.nodes)) for graph in graphs_inside(node)) or made
        repetitions = node.op.repetitions
        return work * (1 if repetitions is None else repetitions) + made
    return rule(*(x.type for x in node.inputs)) + made
