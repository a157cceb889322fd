"""What values were made of, once they have let go of their nodes: so that a None can be explained.

Nothing here keeps a value alive, and no chain of values: each remembers a bounded number of weak
references, and what stands for a Variable itself.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from tracegraph.control_passes.dataflow import Flows
from tracegraph.core.source import Source, here, next_moment, ours_by_file, place_of_thread
from tracegraph.ir.tensor import Graph, Node, Tensor

#: How many of the tensors that it was made of a value remembers, the nearest first.
_LIMIT = 32
#: Where programs have more results than this, each remembers fewer.
_FEW_RESULTS, _LOWER_LIMIT = 16, 8
#: How many calls of a function are noted at first, and again once a tape was opened.
_CALLS_NOTED = 100
#: Frames between the user's and `here` that are ours: the call, and its note.
_FRAMES = 3
_place = place_of_thread()


class _TopLevelTapes:
    """Whether tapes were ever opened at top level, where alone they see values of calls, and what
    waits for the first one: objects with a method `note_again`."""

    def __init__(self) -> None:
        self.were_opened = False
        self.waiting: WeakSet[Any] = WeakSet()

    def open(self) -> None:
        """Notes that a tape is opened at top level."""
        if not self.were_opened:
            self.were_opened = True
            for waiting in list(self.waiting):
                waiting.note_again()
            self.waiting.clear()


TOP_LEVEL_TAPES = _TopLevelTapes()


class Provenance:
    """What a value was made of: weak references, and the tensors that stand for Variables.

    `read_at` is where the last of the Variables was used, if there is one.
    """

    __slots__ = ("read_at", "tensors")

    def __init__(self, tensors: tuple[Any, ...], read_at: Source | None) -> None:
        self.tensors = tensors
        self.read_at = read_at


class Assignment(NamedTuple):
    """What a Variable was given, where and when."""

    value: ref[Tensor]
    source: Source
    moment: int


def remember_assignment(handle: Tensor, value: Tensor) -> Assignment:
    """Notes what the Variable that a handle stands for was given last."""
    found = Assignment(ref(value), here(), next_moment())
    handle._assigned = found
    return found


def last_assignment(handle: Tensor) -> Assignment | None:
    """What the Variable was given last, before tapes were opened too."""
    return getattr(handle, "_assigned", None)


class _Array:
    """Stands for an argument that is not a tensor."""

    _provenance = Provenance((), None)


ARRAY = _Array()


class Callee:
    """A function that was called: its body, and the inputs of it that follow the arguments.

    `takes_variables` says whether Variables among them are arguments themselves.
    """

    __slots__ = ("__weakref__", "calls_left", "graph", "rest", "takes_variables")

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
        #: How many calls are to be noted yet on the hot path.
        self.calls_left = _CALLS_NOTED

    def note_again(self) -> None:
        """Notes as many calls as at first."""
        self.calls_left = _CALLS_NOTED

    def note(self, arguments: Sequence[Any], results: Sequence[Tensor], frame: FrameType) -> None:
        """Notes for the results of a call by `frame` what `remember` does, on the hot path.

        It is asked while `calls_left` is not 0: it costs an eighth of a short call, so it is done
        for the first calls, and once more after the first tape was opened at top level.
        """
        self.calls_left = max(self.calls_left - 1, 0)  # threads may count one call twice
        if not self.calls_left and not TOP_LEVEL_TAPES.were_opened:
            TOP_LEVEL_TAPES.waiting.add(self)
        code = frame.f_code
        at: Any = code, frame.f_lasti, (), _place.scope, next_moment()  # cheaper than a Source
        if ours_by_file.get(code.co_filename, True) or _place.source is not None:
            at = here(_FRAMES)
        self.remember(arguments, results, at)

    def remember(self, arguments: Sequence[Any], results: Sequence[Tensor], at: Any) -> None:
        """Notes for the results of a call where it was, and what it was given. `at` is a Source, or
        a tuple of what one is made of."""
        inputs = []
        for x in arguments:
            provenance = getattr(x, "_provenance", None)
            inputs.append(ref(x) if provenance is None else _beyond(x, provenance))
        for place, y in enumerate(results):
            y._source = at
            y._provenance = self, inputs, place

    def provenance_of(self, inputs: Sequence[Any], place: int) -> tuple[Any, ...]:
        """What the result at a place was made of."""
        inputs = (*inputs, *self.rest)
        graph = self.graph()
        if graph is not None:
            flow = Flows().of_graph(graph).values[place]
            inputs = tuple(x for i, x in enumerate(inputs) if flow >> i & 1)
        return tuple(_flat(inputs))


def variable_read_by(x: Tensor) -> Tensor | None:
    """What stands for the Variable that a tensor is a read of, if it is one."""
    provenance = getattr(x, "_provenance", None)
    return provenance if type(provenance) is Tensor else None


def provenance_of(x: Tensor) -> tuple[Any, ...] | None:
    """What a value that has no node was made of, as far as it is known."""
    provenance = getattr(x, "_provenance", None)
    if provenance is None:
        return None
    if type(provenance) is Tensor:
        return (provenance,)
    if type(provenance) is Provenance:
        return provenance.tensors
    callee, inputs, place = provenance
    return callee.provenance_of(inputs, place)


def was_not_noted(x: Tensor) -> bool:
    """Whether a value is the result of a call that was not one of the first."""
    return x.node is None and not hasattr(x, "_provenance") and not hasattr(x, "_source")


def comes_of_variable(x: Tensor) -> bool:
    """Whether a value that has no node is that of a Variable, or was made of one."""
    return Tensor in map(type, provenance_of(x) or ())


def place_of_last_read(x: Tensor) -> Source | None:
    """Where the last of the Variables was used that such a value was made of."""
    provenance = getattr(x, "_provenance", None)
    if type(provenance) is Provenance:
        return provenance.read_at
    if type(provenance) is not tuple:
        return None
    callee, inputs, _ = provenance
    is_given_one = callee.takes_variables or Tensor in map(type, inputs)
    return x.source if is_given_one else None


def _flat(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if type(entry) is tuple:
            yield from entry
        else:
            yield entry


def _beyond(x: Any, provenance: Any) -> Any:
    """What is remembered of a tensor and, since it may be gone soon, of what it was made of."""
    kind = type(provenance)
    if kind is Tensor:
        return provenance
    behind = (
        provenance.tensors if kind is Provenance else (*_flat(provenance[1]), *provenance[0].rest)
    )
    there = [y for y in behind if type(y) is not ref or y() is not None]
    return (ref(x), *there[: _LIMIT - 1]) if type(x) is Tensor else ()


class _ResultProvenance(NamedTuple):
    """Of a result: what it was made of, picked from the entries of all slots, and the positions
    of those with that of the node that took each, the last node first."""

    slot: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    takers: list[tuple[int, int]]


class _Found(NamedTuple):
    """What follows from a structure and from the reads in it: the values and the inputs that
    results were made of, and the provenance of each result. `read_at` has, for the positions
    of entries that are Variables, the node that took the last of them, for each result."""

    values: list[int]
    inputs: list[int]
    results: list[_ResultProvenance]
    read_at: dict[tuple[int, ...], list[int | None]]


class ProvenanceMap:
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
        self._known: dict[tuple[int, ...], _Found] = {}

    def remember(
        self, nodes: Sequence[Node], inputs: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Notes for the results what they were made of, before they let go of their nodes."""
        copies = self._copies
        reads = tuple([i for i in copies if variable_read_by(values[i]) is not None])
        found = self._known.get(reads) or self._find(reads)
        tensors = [values[i] for i in found.values]
        tensors += [inputs[i] for i in found.inputs]
        entries = []
        for x in tensors:  # in every run of a loop that is not decorated
            provenance = getattr(x, "_provenance", None)
            entries.append(ref(x) if provenance is None else _beyond(x, provenance))
        kinds = [*map(type, entries)]
        handles = tuple([i for i, kind in enumerate(kinds) if kind is Tensor])
        read_at = found.read_at.get(handles) or _last_takers(found, handles)
        is_flat = tuple not in kinds
        for (slot, pick, _), node in zip(found.results, read_at, strict=True):
            own = pick(entries)
            if not is_flat:
                own = tuple(itertools.islice(_flat(own), _LIMIT))
            values[slot]._provenance = Provenance(own, None if node is None else nodes[node].source)

    def _find(self, reads: tuple[int, ...]) -> _Found:
        ends = {*reads, *self._held}
        limit = _LIMIT if len(self._held) <= _FEW_RESULTS else _LOWER_LIMIT
        behind = {y: self._behind(y, ends, reads, limit) for y in self._held if y not in reads}
        slots = dict.fromkeys(x for found in behind.values() for x, _ in found)
        values, inputs = [x for x in slots if x >= 0], [x for x in slots if x < 0]
        places = {x: i for i, x in enumerate((*values, *inputs))}
        results = []
        for slot, found in behind.items():
            takers = [(places[x], node) for x, node in found]
            pick = _picker([place for place, _ in takers])
            results.append(_ResultProvenance(slot, pick, sorted(takers, key=_node, reverse=True)))
        self._known[reads] = _Found(values, [-x - 1 for x in inputs], results, {})
        return self._known[reads]

    def _behind(
        self, slot: int, ends: Container[int], reads: Container[int], limit: int
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


def _last_takers(found: _Found, handles: tuple[int, ...]) -> list[int | None]:
    """For each result the last node that took one of the Variables."""
    own = set(handles)
    last = [next((node for i, node in x.takers if i in own), None) for x in found.results]
    found.read_at[handles] = last
    return last


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What picks the items at the places, as a tuple."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: tuple([items[i] for i in places])
