"""What values were made of, once they have let go of their nodes: so that a None can be explained.

Nothing here keeps a value alive, and no chain of values: each remembers a bounded number of weak
references, and what stands for a Variable itself.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref

from tracegraph.control.flow import Flows
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.source import Source

#: How many of the tensors that it was made of a value remembers, the nearest first.
_LIMIT = 32
#: Where programs have more results than this, each remembers fewer.
_FEW_RESULTS, _LOWER_LIMIT = 16, 8


class Origins:
    """What a value was made of: weak references, and the tensors that stand for Variables.

    `read_at` is where the last of the Variables was used, if there is one.
    """

    __slots__ = ("read_at", "tensors")

    def __init__(self, tensors: tuple[Any, ...], read_at: Source | None) -> None:
        self.tensors = tensors
        self.read_at = read_at


class _Array:
    """Stands for an argument that is no tensor."""

    _origins = Origins((), None)


ARRAY = _Array()


class Callee:
    """A function that was called: its body, and the inputs of it that follow the arguments.

    `takes_variables` says whether Variables among them are arguments themselves.
    """

    __slots__ = ("graph", "rest", "takes_variables")

    def __init__(
        self,
        graph: Graph,
        handles: Sequence[Tensor],
        captures: Sequence[Tensor],
        takes_variables: bool,
    ) -> None:
        self.graph = ref(graph)
        self.rest = (*handles, *map(ref, captures))
        self.takes_variables = takes_variables

    def remember(self, arguments: Sequence[Any], results: Sequence[Tensor], at: Source) -> None:
        """Notes for the results of a call where it was, and what it was given."""
        inputs = []
        for x in arguments:  # on the hot path of every call
            try:
                origins = x._origins
            except AttributeError:
                origins = x._origins = None  # which is found faster at the next call
            inputs.append(ref(x) if origins is None else _beyond(x, origins))
        for place, y in enumerate(results):
            y._source = at
            y._origins = self, inputs, place

    def origins_of(self, inputs: Sequence[Any], place: int) -> tuple[Any, ...]:
        """What the result at a place was made of."""
        inputs = (*inputs, *self.rest)
        graph = self.graph()
        if graph is not None:
            flow = Flows().of_graph(graph).values[place]
            inputs = tuple(x for i, x in enumerate(inputs) if flow >> i & 1)
        return tuple(_flat(inputs))


def variable_read_by(x: Tensor) -> Tensor | None:
    """What stands for the Variable that a tensor is a read of, if it is one."""
    origins = getattr(x, "_origins", None)
    return origins if type(origins) is Tensor else None


def origins_of(x: Tensor) -> tuple[Any, ...] | None:
    """What a value that has no node was made of, as far as it is known."""
    origins = getattr(x, "_origins", None)
    if origins is None:
        return None
    if type(origins) is Tensor:
        return (origins,)
    if type(origins) is Origins:
        return origins.tensors
    callee, inputs, place = origins
    return callee.origins_of(inputs, place)


def place_of_last_read(x: Tensor) -> Source | None:
    """Where the last of the Variables was used that such a value was made of."""
    origins = getattr(x, "_origins", None)
    if type(origins) is Origins:
        return origins.read_at
    if type(origins) is not tuple:
        return None
    callee, inputs, _ = origins
    is_given_one = callee.takes_variables or Tensor in map(type, inputs)
    return x.source if is_given_one else None


def _flat(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if type(entry) is tuple:
            yield from entry
        else:
            yield entry


def _origin(x: Tensor) -> Any:
    """What is remembered of a tensor: a read of a Variable is soon gone, the Variable is not."""
    origins = getattr(x, "_origins", None)
    return ref(x) if origins is None else _beyond(x, origins)


def _beyond(x: Any, origins: Any) -> Any:
    """What is remembered of a tensor and, since it may be gone soon, of what it was made of."""
    kind = type(origins)
    if kind is Tensor:
        return origins
    behind = origins.tensors if kind is Origins else (*_flat(origins[1]), *origins[0].rest)
    there = [y for y in behind if type(y) is not ref or y() is not None]
    return (ref(x), *there[: _LIMIT - 1]) if type(x) is Tensor else ()


class _Trail(NamedTuple):
    """What a result was made of, as places in a list of entries; and each with the position of
    the node that took it, the last node first."""

    places: tuple[int, ...]
    takers: list[tuple[int, int]]


class Trails:
    """For the results of a program, by which of its slots each was made: the inputs, which count
    down from -1, and the values that somebody holds.

    It follows from the structure of the program, and from which values are reads of Variables.
    """

    def __init__(
        self, wires: Sequence[tuple[Sequence[int], int]], held: Sequence[int], copies: Sequence[int]
    ) -> None:
        #: For each node the slots of its inputs; for each value its node.
        self._inputs = [slots for slots, _ in wires]
        self._makers = [place for place, (_, count) in enumerate(wires) for _ in range(count)]
        self._held = held
        #: The values among which reads of Variables may be.
        self._copies = copies
        self._known: dict[frozenset[int], tuple[list[int], list[tuple[int, _Trail]]]] = {}

    def remember(
        self, nodes: Sequence[Node], inputs: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Notes for the results what they were made of, before they let go of their nodes."""
        copies = self._copies
        reads = frozenset([i for i in copies if variable_read_by(values[i]) is not None])
        slots, trails = self._known.get(reads) or self._found(reads)
        entries = [_origin(values[x] if x >= 0 else inputs[-x - 1]) for x in slots]
        is_flat = tuple not in map(type, entries)
        for slot, (places, takers) in trails:
            tensors = tuple([entries[i] for i in places])
            if not is_flat:
                tensors = tuple(itertools.islice(_flat(tensors), _LIMIT))
            last = next((node for i, node in takers if type(entries[i]) is Tensor), None)
            read_at = None if last is None else nodes[last].source
            values[slot]._origins = Origins(tensors, read_at)

    def _found(self, reads: frozenset[int]) -> tuple[list[int], list[tuple[int, _Trail]]]:
        """The slots that something was made of, and the trail of each result that is no read."""
        ends = reads.union(self._held)
        limit = _LIMIT if len(self._held) <= _FEW_RESULTS else _LOWER_LIMIT
        places: dict[int, int] = {}
        trails = []
        for slot in self._held:
            if slot not in reads:
                found = self._behind(slot, ends, reads, limit)
                takers = [(places.setdefault(x, len(places)), node) for x, node in found]
                own = tuple(i for i, _ in takers)
                trails.append((slot, _Trail(own, sorted(takers, key=_node, reverse=True))))
        self._known[reads] = list(places), trails
        return self._known[reads]

    def _behind(
        self, slot: int, ends: frozenset[int], reads: frozenset[int], limit: int
    ) -> list[tuple[int, int]]:
        """Slots that a value was made of, each with the node that took it, the nearest first."""
        found, waiting, seen = [], [slot], {slot}
        for y in waiting:  # it grows meanwhile
            node = self._makers[y]
            for x in self._inputs[node]:
                if x in seen:
                    continue
                seen.add(x)
                if x < 0 or x in ends:
                    found.append((x, node))
                if x >= 0 and x not in reads:
                    waiting.append(x)
            if len(found) >= limit:
                break
        return found[:limit]


_node = operator.itemgetter(1)
