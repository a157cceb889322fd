"""What values were computed from, after they drop their nodes: explains why a gradient is None.

Nothing here keeps a value or a chain of values alive: each value remembers a bounded number of weak
references, and the tensors that represent Variables.
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

#: How many of its ancestors a value remembers, the nearest first.
_LIMIT = 32
#: In programs with more results than this, each result remembers fewer.
_FEW_RESULTS, _LOWER_LIMIT = 16, 8
#: How many calls of a function are recorded at first, and again after a tape is opened.
_CALLS_NOTED = 100
#: Frames of ours between the user's and `here`: the call, and its recording.
_FRAMES = 3
_place = place_of_thread()


class _TopLevelTapes:
    """Whether a tape was ever opened at top level, the only place where tapes see the results of
    calls; and the objects that wait for the first one, each with a method `note_again`."""

    def __init__(self) -> None:
        self.were_opened = False
        self.waiting: WeakSet[Any] = WeakSet()

    def open(self) -> None:
        """Records that a tape is opened at top level."""
        if not self.were_opened:
            self.were_opened = True
            for waiting in list(self.waiting):
                waiting.note_again()
            self.waiting.clear()


TOP_LEVEL_TAPES = _TopLevelTapes()


class Provenance:
    """What a value was computed from: weak references, and the tensors that represent Variables.

    `read_at` is where the last of the Variables was read, if any.
    """

    __slots__ = ("read_at", "tensors")

    def __init__(self, tensors: tuple[Any, ...], read_at: Source | None) -> None:
        self.tensors = tensors
        self.read_at = read_at


class Assignment(NamedTuple):
    """What was assigned to a Variable, where and when."""

    value: ref[Tensor]
    source: Source
    moment: int


def remember_assignment(handle: Tensor, value: Tensor) -> Assignment:
    """Records the last assignment to the Variable that `handle` represents."""
    found = Assignment(ref(value), here(), next_moment())
    handle._assigned = found
    return found


def last_assignment(handle: Tensor) -> Assignment | None:
    """The last assignment to the Variable, even from before tapes were opened."""
    return getattr(handle, "_assigned", None)


class _Array:
    """Stands in for an argument that is not a tensor."""

    _provenance = Provenance((), None)


ARRAY = _Array()


class Callee:
    """A function that was called: its body, and the inputs of it after the arguments.

    `takes_variables` says whether Variables among them are themselves arguments.
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
        #: How many more calls to record on the hot path.
        self.calls_left = _CALLS_NOTED

    def note_again(self) -> None:
        """Records as many more calls as at first."""
        self.calls_left = _CALLS_NOTED

    def note(self, arguments: Sequence[Any], results: Sequence[Tensor], frame: FrameType) -> None:
        """On the hot path, records for the results of a call by `frame` what `remember` would.

        Called while `calls_left` is not 0: recording costs an eighth of a short call, so only the
        first calls are recorded, and again that many after the first tape opens at top level.
        """
        self.calls_left = max(self.calls_left - 1, 0)  # threads may double-count a call
        if not self.calls_left and not TOP_LEVEL_TAPES.were_opened:
            TOP_LEVEL_TAPES.waiting.add(self)
        code = frame.f_code
        at: Any = code, frame.f_lasti, (), _place.scope, next_moment()  # cheaper than a Source
        if ours_by_file.get(code.co_filename, True) or _place.source is not None:
            at = here(_FRAMES)
        self.remember(arguments, results, at)

    def remember(self, arguments: Sequence[Any], results: Sequence[Tensor], at: Any) -> None:
        """Records for the results of a call its place and its arguments. `at` is a Source, or the
        tuple of arguments to build one from."""
        inputs = []
        for x in arguments:
            provenance = getattr(x, "_provenance", None)
            inputs.append(ref(x) if provenance is None else _beyond(x, provenance))
        for place, y in enumerate(results):
            y._source = at
            y._provenance = self, inputs, place

    def provenance_of(self, inputs: Sequence[Any], place: int) -> tuple[Any, ...]:
        """What the result at a position was computed from."""
        inputs = (*inputs, *self.rest)
        graph = self.graph()
        if graph is not None:
            flow = Flows().of_graph(graph).values[place]
            inputs = tuple(x for i, x in enumerate(inputs) if flow >> i & 1)
        return tuple(_flat(inputs))


def variable_read_by(x: Tensor) -> Tensor | None:
    """The tensor that represents the Variable that x was read from, if any."""
    provenance = getattr(x, "_provenance", None)
    return provenance if type(provenance) is Tensor else None


def provenance_of(x: Tensor) -> tuple[Any, ...] | None:
    """What a value without a node was computed from, as far as it is known."""
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
    """Whether a value is the result of a call that was not recorded, as it was not among the
    first."""
    return x.node is None and not hasattr(x, "_provenance") and not hasattr(x, "_source")


def comes_of_variable(x: Tensor) -> bool:
    """Whether a value without a node was read or computed from a Variable."""
    return Tensor in map(type, provenance_of(x) or ())


def place_of_last_read(x: Tensor) -> Source | None:
    """Where the last of the Variables that such a value was computed from was read."""
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
    """What is remembered of a tensor and, since it may soon be gone, of its own ancestors."""
    kind = type(provenance)
    if kind is Tensor:
        return provenance
    behind = (
        provenance.tensors if kind is Provenance else (*_flat(provenance[1]), *provenance[0].rest)
    )
    there = [y for y in behind if type(y) is not ref or y() is not None]
    return (ref(x), *there[: _LIMIT - 1]) if type(x) is Tensor else ()


class _ResultProvenance(NamedTuple):
    """For a result: what it was computed from, picked from the entries of all slots; and the
    positions of those entries, each with that of the node that used it, the last node first."""

    slot: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    takers: list[tuple[int, int]]


class _Reached(NamedTuple):
    """What follows from a structure and the reads in it: the values and inputs that results were
    computed from, and the provenance of each result. `read_at` maps positions of entries that are
    Variables to the node that used the last of them, for each result."""

    values: list[int]
    inputs: list[int]
    results: list[_ResultProvenance]
    read_at: dict[tuple[int, ...], list[int | None]]


class ProvenanceMap:
    """For each result of a program, the slots it was computed from: inputs, numbered down from -1,
    and held values.

    It depends only on the program's structure and on which values are reads of Variables.
    """

    def __init__(
        self, wires: Sequence[tuple[Sequence[int], int]], held: Sequence[int], copies: Sequence[int]
    ) -> None:
        #: For each node the slots of its inputs; for each value its node.
        self._inputs = [slots for slots, _ in wires]
        self._makers = [place for place, (_, count) in enumerate(wires) for _ in range(count)]
        self._held = held
        #: The values that may be reads of Variables.
        self._copies = copies
        self._known: dict[tuple[int, ...], _Reached] = {}

    def remember(
        self, nodes: Sequence[Node], inputs: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Records what the results were computed from, before they drop their nodes."""
        copies = self._copies
        reads = tuple([i for i in copies if variable_read_by(values[i]) is not None])
        found = self._known.get(reads) or self._find(reads)
        tensors = [values[i] for i in found.values]
        tensors += [inputs[i] for i in found.inputs]
        entries = []
        for x in tensors:  # hot: every run of an undecorated loop
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

    def _find(self, reads: tuple[int, ...]) -> _Reached:
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
        self._known[reads] = _Reached(values, [-x - 1 for x in inputs], results, {})
        return self._known[reads]

    def _behind(
        self, slot: int, ends: Container[int], reads: Container[int], limit: int
    ) -> list[tuple[int, int]]:
        """Slots that a value was computed from, each with the node that used it, nearest first."""
        found, waiting, seen = [], [slot], {slot}
        for y in waiting:  # grows during the loop
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


def _last_takers(found: _Reached, handles: tuple[int, ...]) -> list[int | None]:
    """For each result the last node that used one of the Variables."""
    own = set(handles)
    last = [next((node for i, node in x.takers if i in own), None) for x in found.results]
    found.read_at[handles] = last
    return last


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that picks the items at `places`, as a tuple."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: tuple([items[i] for i in places])
