"""Which nodes of two graphs correspond, by what they compute and by what is computed from them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tracegraph.ir.op import Op, attribute_key
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.views.alignment import align
from tracegraph.views.outline import GraphOutline, outline


def _number(table: dict[Any, int], key: Hashable) -> int:
    """The number of a key: equal keys have the same."""
    return table.setdefault(key, len(table))


class Side:
    """One of the two graphs with all graphs that it holds."""

    def __init__(self, graph: Graph) -> None:
        self.graphs = list(graph.graphs())
        self.outline = outline(graph)
        self.outlines = dict(zip(self.graphs, self.outline.graphs))
        self.names = {inner: found.name for inner, found in self.outlines.items()}
        #: A number for each graph: equal for graphs that compute the same.
        self.contents: dict[Graph, int] = {}
        #: A number for each graph: equal for graphs that are compared with each other.
        self.partners: dict[Graph, int] = {}

    def read_contents(self, table: dict[Any, int]) -> None:
        for graph in self.graphs:  # callees first
            found = self.outlines[graph]
            inputs = [(place, x.type) for place, x in enumerate(found.inputs)]
            values = {x: _number(table, ("input", *row)) for x, row in zip(graph.inputs, inputs)}
            nodes = _deep_numbers(graph, values, self.contents, table)
            outputs = tuple([values.get(y, -1) for y in graph.outputs])
            key = ("graph", tuple(inputs), outputs, tuple(sorted(nodes)))
            self.contents[graph] = _number(table, key)


def _shallow(op: Op, graphs: Mapping[Graph, int]) -> Hashable:
    """A key of what an op does: its name and attributes, with numbers for the graphs it holds."""
    return (op.name, *(_attribute(value, graphs) for value in op.attributes))


def _attribute(value: Any, graphs: Mapping[Graph, int]) -> Hashable:
    if isinstance(value, Graph):
        return ("graph", graphs[value])
    if isinstance(value, tuple):
        return (tuple, *(_attribute(item, graphs) for item in value))
    if callable(value):  # an object that text cannot hold is only named there, and here
        return (callable, getattr(value, "__qualname__", type(value).__qualname__))
    return attribute_key(value)


def _deep_numbers(
    graph: Graph, values: dict[Tensor, int], graphs: Mapping[Graph, int], table: dict[Any, int]
) -> list[int]:
    """A number for each node, equal if equal ops compute from equal values, down to the inputs.
    `values` has those of the inputs, and collects those of all values."""
    shallow: dict[Op, int] = {}
    numbers = []
    for node in graph.nodes:
        op = shallow.get(node.op)
        if op is None:
            op = shallow[node.op] = _number(table, ("op", _shallow(node.op, graphs)))
        operands = tuple([values.get(x, -1) for x in node.inputs])
        types = tuple([y.type for y in node.outputs])
        number = _number(table, ("node", op, operands, types))
        for place, y in enumerate(node.outputs):
            values[y] = _number(table, ("value", number, place))
        numbers.append(number)
    return numbers


class Paired(NamedTuple):
    """Which graphs are compared, and which are on one side only."""

    pairs: list[tuple[Graph, Graph]]
    removed: list[Graph]
    added: list[Graph]


def paired(one: Side, two: Side) -> Paired:
    """Pairs of equal name and content first, then of equal name, then of equal content."""
    keys: tuple[Callable[[Side, Graph], Hashable], ...] = (
        lambda side, graph: (side.outlines[graph].name, side.contents[graph]),
        lambda side, graph: side.outlines[graph].name,
        lambda side, graph: side.contents[graph],
    )
    partner = {one.graphs[-1]: two.graphs[-1]}
    for key in keys:
        taken = set(partner.values())
        waiting: dict[Hashable, deque[Graph]] = defaultdict(deque)
        for b in two.graphs:
            if b not in taken:
                waiting[key(two, b)].append(b)
        for a in one.graphs:
            if a not in partner and waiting[key(one, a)]:
                partner[a] = waiting[key(one, a)].popleft()
    for number, (a, b) in enumerate(partner.items()):
        one.partners[a] = two.partners[b] = number
    for side in (one, two):
        for graph in side.graphs:
            side.partners.setdefault(graph, -1 - len(side.partners))
    taken = set(partner.values())
    return Paired(
        pairs=[(a, partner[a]) for a in one.graphs if a in partner],
        removed=[a for a in one.graphs if a not in partner],
        added=[b for b in two.graphs if b not in taken],
    )


class Matching:
    """Two graphs, and which of their inputs and nodes correspond: `inputs` and `match`."""

    def __init__(self, one: Side, two: Side, a: Graph, b: Graph, inputs: Mapping[int, int]) -> None:
        self.graphs = a, b
        self.outlines = one.outlines[a], two.outlines[b]
        self.inputs = inputs
        table: dict[Any, int] = {}
        self.positions = [{x: n for n, x in enumerate(graph.inputs)} for graph in self.graphs]
        self.values = self._input_numbers()
        self.deep = [
            _deep_numbers(graph, values, side.partners, table)
            for graph, values, side in zip(self.graphs, self.values, (one, two))
        ]
        self.shallow = [
            [_number(table, _shallow(node.op, side.partners)) for node in graph.nodes]
            for graph, side in zip(self.graphs, (one, two))
        ]
        self.producers = [
            {
                y: (n, place)
                for n, node in enumerate(graph.nodes)
                for place, y in enumerate(node.outputs)
            }
            for graph in self.graphs
        ]
        #: The node of the second graph that corresponds to a node of the first, by position.
        self.match: dict[int, int] = {}
        self._match()

    def _input_numbers(self) -> tuple[dict[Tensor, int], dict[Tensor, int]]:
        """Numbers below -1: corresponding inputs of one type are one value."""
        a, b = self.graphs
        back = {j: i for i, j in self.inputs.items()}
        numbers = []
        for n, x in enumerate(b.inputs):
            i = back.get(n)
            is_one = i is not None and a.inputs[i].type is x.type
            numbers.append(i if is_one else n + len(a.inputs))
        left = {x: -2 - n for n, x in enumerate(a.inputs)}
        return left, {x: -2 - n for x, n in zip(b.inputs, numbers)}

    def _match(self) -> None:
        """First matches nodes that compute the same, those with equal uses before others; then
        others with equal uses; then equal ops in order; then ops of one name with a common
        neighbour; and last one op in place of another."""
        heights = self._heights()
        self._match_keys(*(list(zip(*keys)) for keys in zip(self.deep, heights)))
        self._match_keys(*self.deep)
        self._match_keys(*heights)
        left, right = self._rest()
        pairs = align([self.shallow[0][n] for n in left], [self.shallow[1][m] for m in right])
        for i, j in pairs:
            self.match[left[i]] = right[j]
        left, right = self._rest()
        names = [
            [graph.nodes[n].op.name for n in rest]
            for graph, rest in zip(self.graphs, (left, right))
        ]
        uses = self._uses(0), self._uses(1)
        for i, j in align(*names):
            if self._have_neighbours(left[i], right[j], uses):
                self.match[left[i]] = right[j]
        self._match_places(uses)

    def _match_places(self, uses: Any) -> None:
        """Matches nodes that read the same and are read by the same, whatever they compute."""
        left, right = self._rest()
        by_uses = {tuple(sorted(uses[1][m])): m for m in right if uses[1][m]}
        for n in left:
            if all(reader < 0 or reader in self.match for reader, _, _ in uses[0][n]):
                places = ((self.match.get(reader, -1), *rest) for reader, *rest in uses[0][n])
                m = by_uses.get(tuple(sorted(places)))
                if m is not None and self._read_the_same(n, m):
                    self.match[n] = m

    def _read_the_same(self, n: int, m: int) -> bool:
        xs, ys = (graph.nodes[i].inputs for graph, i in zip(self.graphs, (n, m)))
        return len(xs) == len(ys) > 0 and all(map(self.is_same, xs, ys))

    def _match_keys(self, left: Sequence[Any], right: Sequence[Any]) -> None:
        """Matches nodes with equal keys, in order."""
        taken = set(self.match.values())
        waiting: dict[Any, deque[int]] = defaultdict(deque)
        for m, key in enumerate(right):
            if m not in taken:
                waiting[key].append(m)
        for n, key in enumerate(left):
            if n not in self.match and waiting[key]:
                self.match[n] = waiting[key].popleft()

    def _rest(self) -> tuple[list[int], list[int]]:
        """The positions of the nodes that are not yet matched."""
        taken = set(self.match.values())
        left, right = (range(len(graph.nodes)) for graph in self.graphs)
        return [n for n in left if n not in self.match], [m for m in right if m not in taken]

    def _uses(self, side: int) -> list[list[tuple[int, int, int]]]:
        """For each node `(node, operand, output)` for its readers; the end is node -1."""
        graph, producers = self.graphs[side], self.producers[side]
        uses: list[list[tuple[int, int, int]]] = [[] for _ in graph.nodes]
        readers: list[tuple[int, Iterable[Tensor]]] = [(-1, graph.outputs)]
        readers += [(n, node.inputs) for n, node in enumerate(graph.nodes)]
        for reader, operands in readers:
            for operand, x in enumerate(operands):
                if x in producers:
                    maker, place = producers[x]
                    uses[maker].append((reader, operand, place))
        return uses

    def _heights(self) -> list[list[int]]:
        """A number for each node, equal if equal ops lead by equal paths to the outputs."""
        table: dict[Any, int] = {}
        return [self._heights_of(side, table) for side in (0, 1)]

    def _heights_of(self, side: int, table: dict[Any, int]) -> list[int]:
        uses, shallow = self._uses(side), self.shallow[side]
        heights = [0] * len(shallow)
        for n in range(len(shallow) - 1, -1, -1):
            ways = [(heights[m] if m >= 0 else -1, k, place) for m, k, place in uses[n]]
            heights[n] = _number(table, (shallow[n], tuple(sorted(ways))))
        return heights

    def _have_neighbours(self, n: int, m: int, uses: Any) -> bool:
        """Whether two nodes read the same, or are read by the same, at the same position."""
        a, b = (graph.nodes[i] for graph, i in zip(self.graphs, (n, m)))
        if any(self.is_same(x, y) for x, y in zip(a.inputs, b.inputs)):
            return True
        right = set(uses[1][m])
        return any(
            (self.match.get(reader, -1) if reader >= 0 else -1, operand, place) in right
            for reader, operand, place in uses[0][n]
            if reader < 0 or reader in self.match
        )

    def is_same(self, x: Tensor, y: Tensor) -> bool:
        """Whether a value of the first graph corresponds to one of the second."""
        if x in self.values[0] and self.values[0][x] == self.values[1].get(y):
            return True
        made, partner = self.producers[0].get(x), self.producers[1].get(y)
        if made is not None and partner is not None:
            return (self.match.get(made[0]), made[1]) == partner
        i, j = self.positions[0].get(x), self.positions[1].get(y)
        return i is not None and j is not None and self.inputs.get(i) == j


def inputs_by_place(a: GraphOutline, b: GraphOutline) -> dict[int, int]:
    """Pairs the inputs by position, whatever their names."""
    return {i: i for i in range(min(len(a.inputs), len(b.inputs)))}


def inputs_by_name(a: GraphOutline, b: GraphOutline) -> dict[int, int]:
    """Pairs the inputs by name, and the rest by position."""
    by_name = {x.name: j for j, x in enumerate(b.inputs)}
    found = {i: by_name[x.name] for i, x in enumerate(a.inputs) if x.name in by_name}
    taken = set(found.values())
    for i in range(min(len(a.inputs), len(b.inputs))):
        if i not in found and i not in taken:
            found[i] = i
    return found
