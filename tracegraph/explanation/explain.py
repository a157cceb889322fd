"""Why a gradient is None: the path from the source to the target, and where it breaks.

A value reaches the target along a path of nodes. The break is the first node that the tape did not
follow, or whose rule has no derivative for what the path brings. If there is no path at all, the
explanation comes from what the tape remembers of values that left to NumPy and came back, and of
values computed outside its block.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

from tracegraph.control_passes.dataflow import Flow, Flows
from tracegraph.core.source import UNKNOWN, Source, here
from tracegraph.eager.provenance import place_of_last_read, variable_read_by, was_not_noted
from tracegraph.errors import message
from tracegraph.explanation.choices import (
    Choices,
    Values,
    can_choose,
    region_runs,
    values_inside,
    values_of,
)
from tracegraph.explanation.history import (
    Crossing,
    Decision,
    History,
    RememberedNode,
    alive,
    node_before,
    types_of_outputs,
)
from tracegraph.explanation.python_source import (
    BranchPoint,
    branch_point_at,
    is_inside,
    statement_at,
)
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op, Region
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.ops.effect import HostCall, Read
from tracegraph.passes.registry import is_registered
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import Trace

#: If a path is longer than this, the text shows its ends.
_SHOWN = 20

#: A node, or what is remembered of one.
Entry = Node | RememberedNode


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why a gradient is None, as `tape.explain(target, source)` tells.

    - `reason`: one of "connected", "not_watched", "before_tape", "after_tape", "tape_used",
      "recording_stopped", "not_recorded", "stop_gradient", "dtype", "no_derivative",
      "no_gradient", "custom_gradient", "assigned", "overwritten", "numpy", "branch_not_taken",
      "loop_not_run", "unused" and "unconnected".
    - `text`: what happened, the line, and what to do; the result of `str()`.
    - `source`: the line of the break, with its `file` and `line`.
    - `path`: the lines from the source of the gradient to the break.
    - `is_zero`: whether a gradient exists but is 0, because a branch of the graph was not taken or
      a loop ran 0 times.
    """

    reason: str
    text: str
    source: Source
    path: tuple[Source, ...]
    is_zero: bool = False

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def line(self) -> int:
        return self.source.line

    @property
    def is_connected(self) -> bool:
        """Whether there is a gradient."""
        return self.reason == "connected" or self.is_zero

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class TapeRecord:
    """What a tape knows: its history, the nodes that it follows, and the tensors that it
    watches."""

    history: History
    followed: Sequence[Node | RememberedNode]
    is_tracked: Callable[[Tensor], bool]
    watches_variables: bool
    builder: Builder


#: How the tape saw an entry: it followed it, passed it by, or did not see it at all.
_FOLLOWED, _PASSED, _UNSEEN = range(3)


class _Edge(NamedTuple):
    """One step of a path: the input by which it enters a node, and the output by which it
    leaves."""

    node: Entry
    entry: int
    exit: int


class _Window:
    """Which entry computed each value, and the paths along these entries.

    An integer stands for a tensor, which may be gone. Large graphs have as many numbers as nodes,
    so walks keep only integers: objects would trigger the garbage collector.
    """

    def __init__(self, flows: Flows, outermost: dict[int, Tensor]) -> None:
        self.flows = flows
        self._outermost = outermost
        #: Entries by standing, in the order of recording.
        self.entries: list[list[Entry]] = [[], [], []]
        #: Inputs that are not followed, by the identity of the entry.
        self._unfollowed: dict[int, int] = {}
        self._makers: dict[int, Entry] = {}
        #: Referents of weak references: they must stay alive, or their numbers could change.
        self._held: list[Tensor | None] = []
        #: The flow in one run through entries that chose, by the identity of the entry.
        self._in_run: Mapping[int, Flow] = {}

    @staticmethod
    def of_record(record: TapeRecord, flows: Flows) -> _Window:
        window = _Window(flows, _outermost(record.builder))
        history = record.history
        # Later ones in this order are known better.
        window._add(history.unseen, _UNSEEN)
        window._add(history.with_assigned(history.all_passed()), _PASSED)
        window._add(history.with_assigned(record.followed), _FOLLOWED)
        return window

    @staticmethod
    def of_region(region: Region, flows: Flows) -> _Window:
        graph = region.graph
        window = _Window(flows, {})
        window._add(graph.nodes, _FOLLOWED)
        steps = [
            RememberedNode.between((graph.outputs[i],), graph.inputs[j], UNKNOWN)
            for i, j in region.carried
        ]
        window._add(steps, _FOLLOWED)
        return window

    def in_run(self, flows: Mapping[int, Flow]) -> _Window:
        """The same entries, where some have the flow of one particular run."""
        window = copy.copy(self)
        window._in_run = flows
        return window

    def _add(self, entries: Sequence[Entry], standing: int) -> None:
        self.entries[standing] += entries
        if standing != _FOLLOWED:
            self._unfollowed.update(dict.fromkeys(map(id, entries), standing))
        makers, number = self._makers, self.number
        for entry in entries:
            for y in entry.outputs:
                if type(y) is Tensor:
                    makers[id(y)] = entry
                else:
                    self._held.append(y())  # type: ignore[operator]
                    makers[number(y)] = entry

    def number(self, x: Any) -> int:
        """The number that stands for a tensor, even for one that is gone."""
        if type(x) is ref:
            found = x()
            if found is None:
                return id(x)
            x = found
        outer = self._outermost
        return id(outer.get(id(x), x)) if outer else id(x)

    def standing(self, entry: Entry) -> int:
        return self._unfollowed.get(id(entry), _FOLLOWED)

    def maker(self, y: int) -> Entry | None:
        """The entry that computed a value, if it is known."""
        return self._makers.get(y)

    def look_back(self, x: Any) -> bool:
        """Adds the entry that computed a value unseen by the tape, if it is known."""
        tensor: Tensor | None = x() if type(x) is ref else x
        if tensor is None:
            return False
        step = node_before(self._outermost.get(id(tensor), tensor))
        if step is None:
            return False
        self._add([step], _UNSEEN)
        return True

    # Flow.

    def flow(self, entry: Entry) -> Flow:
        found = self._in_run.get(id(entry))
        if found is not None:
            return found
        if type(entry) is Node:
            return self.flows.of_node(entry)
        assert isinstance(entry, RememberedNode)
        if entry.op is None:
            every = (1 << len(entry.inputs)) - 1
            return Flow((every,) * len(entry.outputs), (every,) * len(entry.outputs))
        return self.flows.of(entry.op, entry.input_types, entry.output_types)

    def _place(self, entry: Entry, y: int) -> int:
        """The position of a value among the outputs of an entry."""
        outputs = entry.outputs
        return 0 if len(outputs) == 1 else list(map(self.number, outputs)).index(y)

    def _values(self, entry: Entry, y: int) -> Sequence[Any]:
        """The inputs whose values reach an output."""
        if entry.op is None or not entry.op.regions:
            return entry.inputs
        values = self.flow(entry).values[self._place(entry, y)]
        return [x for i, x in enumerate(entry.inputs) if values >> i & 1]

    def _derivatives(self, entry: Entry, y: int) -> Sequence[Any]:
        """The inputs whose derivatives reach an output, as far as the tape followed them."""
        if id(entry) in self._unfollowed:
            return ()
        derivatives = self.flow(entry).derivatives[self._place(entry, y)]
        inputs = entry.inputs
        if derivatives == (1 << len(inputs)) - 1:
            return inputs
        return [x for i, x in enumerate(inputs) if derivatives >> i & 1]

    def broken_at(self, path: Sequence[int]) -> int | None:
        """The first step of a path that the derivative does not pass."""
        for place, (x, y) in enumerate(itertools.pairwise(path)):
            entry = self._makers[y]
            fed = self._derivatives(entry, y)
            # In most cases these are all inputs of the entry.
            if fed is not entry.inputs and x not in map(self.number, fed):
                return place
        return None

    # Walks.

    def _behind(
        self, target: Any, source: int | None, feeding: Callable[[Entry, int], Sequence[Any]]
    ) -> dict[int, int]:
        """The values that reach the target through `feeding`, nearest first, up to the source; each
        with the value from which it was found."""
        makers, number, outer = self._makers, self.number, self._outermost
        last = number(target)
        ahead, waiting = {last: last}, [last]
        if last == source:
            return ahead
        if last not in makers:
            self.look_back(target)
        for y in waiting:  # grows during the loop
            entry = makers.get(y)
            if entry is None:
                continue
            for x in feeding(entry, y):
                key = id(x) if type(x) is Tensor else number(x)
                if key in outer:
                    key = id(outer[key])
                if key in ahead:
                    continue
                ahead[key] = y
                if key == source:
                    return ahead
                if key in makers or self.look_back(x):
                    waiting.append(key)
        return ahead

    def path(self, source: int, target: Any) -> list[int] | None:
        """The shortest path of values from the source to the target."""
        return _way_from(source, self.ancestors(target, source))

    def derivative_path(self, source: int, target: Any) -> list[int] | None:
        """The shortest path of derivatives."""
        return _way_from(source, self._behind(target, source, self._derivatives))

    def along(self, path: Sequence[int]) -> list[Entry]:
        """The entries along a path, one fewer than its values."""
        return [self._makers[y] for y in path[1:]]

    def edge(self, path: Sequence[int], place: int) -> _Edge:
        """How a path passes through the entry at a position."""
        x, y = path[place], path[place + 1]
        node = self._makers[y]
        fed = next(z for z in self._values(node, y) if self.number(z) == x)
        entry = next(i for i, z in enumerate(node.inputs) if z is fed)
        return _Edge(node, entry, self._place(node, y))

    def lines(self, path: Sequence[int]) -> list[Source]:
        return [entry.source for entry in self.along(path)]

    def last_unseen(self, path: Sequence[int], place: int) -> int:
        """The last of consecutive positions, from this one on, that the tape did not see; -1 if
        none."""
        last = -1
        for i in range(place, len(path) - 1):
            if self.standing(self._makers[path[i + 1]]) != _UNSEEN:
                break
            last = i
        return last

    def inside(self, edge: _Edge) -> tuple[_Window, list[int]]:
        """The path through a region of an op, from where an edge enters it to where it leaves."""
        assert edge.node.op is not None
        for region in edge.node.op.regions:
            window = _Window.of_region(region, self.flows)
            ends = _ends_inside(region, edge)
            way = None if ends is None else window.path(*ends)
            if way is not None:
                return window, way
        return self, []

    def left_out(
        self, path: Sequence[int], choices: Choices, known: Mapping[Any, Values]
    ) -> _LeftOut | None:
        """The region on a path of derivatives that a run skipped; `known` has the entries that
        chose, with their inputs."""
        place = self.in_run(choices.flow_of_nodes(known)).broken_at(path)
        if place is None:
            return None
        edge, before = self.edge(path, place), self.lines(path[: place + 2])
        assert edge.node.op is not None
        for run in region_runs(edge.node.op, known[edge.node]):
            window, ends = _Window.of_region(run.region, self.flows), _ends_inside(run.region, edge)
            way = None if ends is None else window.derivative_path(*ends)
            if way is None:
                continue
            if not run.has_run:
                return _LeftOut(edge.node, before, window.lines(way))
            for values in run.values or ():
                found = window.left_out(way, choices, values_inside(run.region.graph, values))
                if found is not None:
                    return _LeftOut(found.node, [*before, *found.before], found.inside)
        return None

    def ancestors(self, target: Any, source: int | None = None) -> dict[int, int]:
        """The values that the target was computed from, nearest first, itself included; the search
        ends at the source."""
        return self._behind(target, source, self._values)

    def descendants(self, source: int) -> set[int]:
        """The values computed from a value, itself included."""
        takers, number = self._takers, self.number
        found, waiting = {source}, [source]
        while waiting:
            for entry in takers.get(waiting.pop(), ()):
                new = [y for y in map(number, entry.outputs) if y not in found]
                found.update(new)
                waiting += new
        return found

    @property
    def _takers(self) -> dict[int, list[Entry]]:
        """The entries by their inputs."""
        takers: dict[int, list[Entry]] = {}
        for entries in self.entries:
            for entry in entries:
                for x in map(self.number, entry.inputs):
                    takers.setdefault(x, []).append(entry)
        return takers

    def users(self, source: int) -> Iterator[Entry]:
        """The entries that the tape saw that take the source."""
        number, is_plain = self.number, not self._outermost
        for entry in itertools.chain(self.entries[_FOLLOWED], self.entries[_PASSED]):
            for x in entry.inputs:
                if source == (id(x) if is_plain and type(x) is Tensor else number(x)):
                    yield entry
                    break


@dataclasses.dataclass(frozen=True)
class _LeftOut:
    """A region that a run skipped: the node that did, the lines up to it, and those inside it that
    derivatives would have passed."""

    node: Entry
    before: list[Source]
    inside: list[Source]

    @property
    def is_loop(self) -> bool:
        return self.node.op is not None and self.node.op.repetitions != 1


def _ends_inside(region: Region, edge: _Edge) -> tuple[int, Tensor] | None:
    """The number by which an edge enters a region, and the tensor by which it leaves."""
    if edge.entry not in region.inputs or edge.exit not in region.outputs:
        return None
    entry = region.graph.inputs[region.inputs.index(edge.entry)]
    return id(entry), region.graph.outputs[region.outputs.index(edge.exit)]


def _way_from(x: int, ahead: dict[int, int]) -> list[int] | None:
    """The path from a value to where a search started, if it got that far."""
    if x not in ahead:
        return None
    path = [x]
    while ahead[x] != x:
        x = ahead[x]
        path.append(x)
    return path


def _outermost(builder: Builder | None) -> dict[int, Tensor]:
    """For the tensors of a trace that represent something outside: what they ultimately
    represent."""
    found: dict[int, Tensor] = {}
    while isinstance(builder, Trace):
        found.update((id(inner), outer) for outer, inner in builder.captures.items())
        states = ((builder.states[id(v)].handle, v.handle) for v in builder.variables)
        found.update((id(inner), outer) for inner, outer in states)
        builder = builder.outer
    return {x: _end(found, outer) for x, outer in found.items()}


def _end(found: dict[int, Tensor], x: Tensor) -> Tensor:
    while id(x) in found:
        x = found[id(x)]
    return x


# The explanation.


def explain(
    record: TapeRecord, targets: Sequence[tuple[Any, Tensor]], source: Any, x: Tensor
) -> Explanation:
    """Why the gradient of the targets with respect to a source is None, or that it is not.

    A target is the user's object and the tensor that represents it; `x` represents the source.
    """
    window = _Window.of_record(record, Flows())
    cases = [_Case(record, window, y, source, x) for _, y in targets]
    found = next(filter(None, (case.connected() for case in cases)), None)
    if found is not None:
        return found
    case = next((case for case in cases if case.path is not None), cases[0])
    return case.explanation()


@dataclasses.dataclass(frozen=True)
class _Reason:
    """A reason, what it says about the line, and the fix."""

    word: str
    because: str
    fix: str = ""


class _Case:
    """One target and one source."""

    def __init__(
        self, record: TapeRecord, window: _Window, target: Tensor, given: Any, source: Tensor
    ) -> None:
        self._record = record
        self._window = window
        self._target = target
        self._given = given
        self._source = source
        self._is_tracked = record.is_tracked(source)
        self._x, self._y = window.number(source), window.number(target)

    @functools.cached_property
    def made_of(self) -> dict[int, int]:
        """The values that the target was computed from, nearest first, up to the source."""
        return self._window.ancestors(self._target, self._x)

    @functools.cached_property
    def path(self) -> list[int] | None:
        """The path of values from the source to the target."""
        return _way_from(self._x, self.made_of)

    @functools.cached_property
    def broken_at(self) -> int | None:
        """The first step of the path without a derivative."""
        assert self.path is not None
        return self._window.broken_at(self.path)

    @property
    def _name(self) -> str:
        if isinstance(self._given, Variable):
            return f"the variable {told_name(self._given)!r}"
        name = self._given.name
        return f"{name!r}" if name else f"the tensor {self._given.type}"

    def connected(self) -> Explanation | None:
        """The explanation that the two are connected, if they are."""
        types = self._source.dtype, self._target.dtype
        if not all(dtype.is_differentiable for dtype in types):
            return None
        path, window = self.path, self._window
        if path is None or not (self._is_tracked or self._x == self._y):
            return None
        if self.broken_at is not None:
            path = window.derivative_path(self._x, self._target)
        if path is None:
            return None
        zero = self._zero(path)
        if zero is not None:
            return zero
        lines = _without_repeats(window.lines(path))
        place = lines[-1] if lines else here()
        text = message(f"target and source are connected: {self._name} has a gradient")
        return Explanation("connected", text, place, lines)

    def _zero(self, path: list[int]) -> Explanation | None:
        """The explanation that the gradient is 0, because the run skipped what would have passed it
        on."""
        window, record = self._window, self._record
        entries = window.entries[_FOLLOWED]
        if not record.builder.is_top_level or not any(can_choose(x.op) for x in entries if x.op):
            return None
        choices = Choices(window.flows)
        known = dict(_chosen_by(entries))
        run = window.in_run(choices.flow_of_nodes(known))
        if run.derivative_path(self._x, self._target) is not None:
            return None
        found = window.left_out(path, choices, known)
        if found is None:
            return None
        source = found.node.source
        lines = [*found.before, *found.inside[:1]]
        told = self._told(_left_out_reason(found), source, lines, "0")
        return dataclasses.replace(told, is_zero=True)

    def explanation(self) -> Explanation:
        if not self._source.dtype.is_differentiable:
            return self._of_source_dtype()
        if _is_overwritten(self._source) and not (self._is_tracked and self.path):
            return self._overwritten()
        if self.path is None:
            return self._without_path()
        if not self._is_tracked:
            return self._unwatched(self.path)
        return self._broken(self.path)

    # A path that breaks.

    def _broken(self, path: list[int]) -> Explanation:
        window, place = self._window, self.broken_at
        assert place is not None
        # Of consecutive entries unseen by the tape, the last: its result was seen next, or was
        # given.
        place = max(place, window.last_unseen(path, place))
        lines, edge = window.lines(path[: place + 2]), window.edge(path, place)
        standing = window.standing(edge.node)
        if standing == _UNSEEN:
            return self._outside(edge.node.source, lines)
        while _has_body(edge.node.op):
            inner, way = window.inside(edge)
            inner_place = inner.broken_at(way)
            if inner_place is None:
                break
            window, path, place = inner, way, inner_place
            lines, edge = lines + window.lines(path[: place + 2]), window.edge(path, place)
        reason, source = _reason_of(edge, standing), edge.node.source
        if isinstance(edge.node.op, Read):
            source = _place_of_read(window, path, place)
            given = edge.node.assigned_at if isinstance(edge.node, RememberedNode) else None
            if given is not None:
                reason = _assigned_reason(f"to a Variable at {given}")
                lines.insert(-1, given)
            lines.append(source)
        return self._told(reason, source, lines)

    def _outside(self, source: Source, lines: Sequence[Source]) -> Explanation:
        """The explanation of values computed outside what the tape recorded."""
        return self._told(_outside_reason(self._record.history, source), source, lines)

    def _unwatched(self, path: list[int]) -> Explanation:
        window = self._window
        lines = _without_repeats(window.lines(path))
        unseen = window.last_unseen(path, 0)
        is_seen = unseen < len(path) - 2
        is_used = any(window.users(self._x))
        if not is_seen or (isinstance(self._given, Variable) and not is_used):
            outside = window.lines(path[: unseen + 2])
            return self._outside(outside[-1], outside)
        place = self._place_of_first(path) or lines[0]
        return self._told(self._unwatched_reason(), place, [place])

    def _place_of_first(self, path: list[int]) -> Source | None:
        """Where a Variable that a path starts from is read."""
        if not isinstance(self._given, Variable) or len(path) < 2:
            return None
        is_read = isinstance(self._window.edge(path, 0).node.op, Read)
        return _place_of_read(self._window, path, 0 if is_read else -1)

    def _unwatched_reason(self) -> _Reason:
        given = self._given
        if not isinstance(given, Variable):
            if self._record.history.is_after_reset:
                because = "the tape does not watch it: tape.reset() forgets all that was watched"
                return _Reason("not_watched", because, "call tape.watch(x) after tape.reset()")
            fix = "call tape.watch(x) inside the block, before x is used"
            return _Reason("not_watched", "the tape does not watch it", fix)
        watch = "call tape.watch(variable) before it is read"
        if not given.trainable:
            because = "it was made with trainable=False, and the tape does not watch it by itself"
            return _Reason("not_watched", because, f"{watch}, or make it trainable")
        if not self._record.watches_variables:
            because = "the tape was made with watch_accessed_variables=False, and does not watch it"
            return _Reason("not_watched", because, watch)
        return _Reason("not_watched", "the tape does not watch it", watch)

    # No path.

    def _without_path(self) -> Explanation:
        window = self._window
        numpy = self._by_numpy()
        if numpy is not None:
            return numpy
        is_used = any(window.users(self._x))
        nodes = [node for node in map(window.maker, self.made_of) if node is not None]
        standings = list(map(window.standing, nodes))
        is_followed = _FOLLOWED in standings
        pairs = zip(nodes, standings, strict=True)
        unseen = next((x.source for x, how in pairs if how == _UNSEEN and x.source.line), None)
        if unseen is not None and (standings[0] == _UNSEEN or not (is_followed or is_used)):
            return self._outside(unseen, [unseen])
        arrived = self._arrived()
        if arrived and not is_followed and not is_used:
            place = arrived[-1].source
            return self._told(_FROM_NUMPY, place, [place])
        if not self._target.dtype.is_differentiable:
            place = self._place_of_target(nodes)
            return self._told(_dtype_reason(self._target, "the target"), place, [place])
        return self._not_connected(is_used, nodes)

    def _place_of_target(self, nodes: Sequence[Entry]) -> Source:
        places = (node.source for node in nodes if node.source.line)
        return next(places, self._target.source if self._target.source.line else here())

    def _arrived(self) -> list[Crossing]:
        """The values that came from NumPy and led to the target."""
        number, made_of = self._window.number, self.made_of
        return [x for x in self._record.history.arrived if number(x.tensor) in made_of]

    def _by_numpy(self) -> Explanation | None:
        """The explanation that values from the source went to NumPy, and values from NumPy led to
        the target."""
        back = self._arrived()
        if not back:
            return None
        window = self._window
        reached = window.descendants(self._x)
        left = (x for x in self._record.history.left if window.number(x.tensor) in reached)
        pairs = ((x, y) for x in left for y in back if y.moment > x.moment)
        gone, came = next(pairs, (None, None))
        if gone is None or came is None:
            return None
        before = window.lines(window.path(self._x, gone.tensor) or [])
        return self._told(_FROM_NUMPY, came.source, (*before, gone.source, came.source))

    def _not_connected(self, is_used: bool, nodes: Sequence[Entry]) -> Explanation:
        branch = self._branch_not_taken(nodes)
        if branch is not None:
            return branch
        place = self._place_of_target(nodes)
        if not is_used:
            because = "the target is not made of it, and nothing that the tape recorded uses it"
            called = next((x for entry in nodes for x in _python_calls(entry)), None)
            if called is not None:
                because += f"; the Python function called at {called} may, which tapes do not see"
                fix = "pass it to tg.py_function in inp: it is differentiated by those alone"
                return self._told(_Reason("unused", because, fix), place, (called,))
            if any(was_not_noted(x) for node in nodes for x in alive(node.inputs)):
                because = (
                    "nothing that the tape recorded uses it; the target is made of what a function "
                    "returned before, of which only the first calls are remembered"
                )
            fix = "use it in what makes the target, or leave it out of the sources"
            return self._told(_Reason("unused", because, fix), place, ())
        first = next(self._window.users(self._x)).source
        because = f"it is used at {first}, and nothing made of it reaches the target"
        common = [f"; {text}" for text in self._common()]
        fix = "use what is made of it in the target, or leave it out of the sources"
        return self._told(_Reason("unconnected", because + "".join(common), fix), place, (first,))

    def _branch_not_taken(self, nodes: Sequence[Entry]) -> Explanation | None:
        """The explanation that a decision affecting the target left out code that reads the
        source."""
        made = max((node.source.moment for node in nodes), default=-1)
        for decision in reversed(self._record.history.decisions.values()):
            point = branch_point_at(decision.source)
            if point is None or not (
                decision.source.moment < made or self._may_change_target(point, decision)
            ):
                continue
            names = (x for part in self._left_out(point, decision) for x in ast.walk(part))
            user = next((x for x in names if self._is_of_source(x, decision)), None)
            if user is not None:
                source = decision.source
                line = Source.at(source.file, user.lineno)  # type: ignore[attr-defined]
                return self._told(_branch_reason(line), source, [source, line])
        return None

    def _may_change_target(self, point: BranchPoint, decision: Decision) -> bool:
        """Whether a branch of a decision made after the target was computed mentions it."""
        branches = (*point.left_out_if_true, *point.left_out_if_false)
        names = (x for part in branches for x in ast.walk(part))
        values = (_value_of(x, decision.names) for x in names)
        tensors = (x.handle if isinstance(x, Variable) else x for x in values)
        return any(isinstance(x, Tensor) and self._window.number(x) == self._y for x in tensors)

    def _left_out(self, point: BranchPoint, decision: Decision) -> Sequence[ast.AST]:
        """The code that a decision left out; nothing if it went both ways."""
        if decision.outcomes:
            is_clear = len(decision.outcomes) == 1
            return point.left_out(True in decision.outcomes) if is_clear else ()
        # Decided by a number: infer the outcome from what was recorded in the branches.
        branches = point.left_out_if_true, point.left_out_if_false
        has_run = [self._has_run(branch, decision.source) for branch in branches]
        for branch, is_run, is_other_run in zip(branches, has_run, reversed(has_run), strict=True):
            if not is_run and (is_other_run or any(map(_computes, branch))):
                return branch
        return ()

    def _has_run(self, branch: Sequence[ast.AST], place: Source) -> bool:
        """Whether anything was recorded in a branch of the code at a place."""
        sources = (entry.source for entry in itertools.chain(*self._window.entries))
        places = {source.offset: source for source in sources if source.code is place.code}
        return any(is_inside(part, x) for x in places.values() for part in branch)

    def _is_of_source(self, name: ast.AST, decision: Decision) -> bool:
        """Whether a name referred to the source, or to a value computed from it."""
        if not _is_loaded(name):
            return False
        value = _value_of(name, decision.names)
        tensor = value.handle if isinstance(value, Variable) else value
        is_tensor = isinstance(tensor, Tensor)
        return is_tensor and self._window.path(self._x, tensor) is not None

    def _common(self) -> Iterator[str]:
        """The nearest nodes that source and target have in common: before both, after both."""
        window = self._window
        own = window.ancestors(self._source)
        shared = (window.maker(y) for y in self.made_of if y in own)
        before = next(filter(None, shared), None)
        if before is not None and before.source.line:
            yield f"both are made of what {before.source} computes"
        if not any(window.users(self._y)):
            return
        ours, theirs = map(window.descendants, (self._x, self._y))
        for node in itertools.chain(*window.entries):
            inputs = list(map(window.number, node.inputs))
            if not ours.isdisjoint(inputs) and not theirs.isdisjoint(inputs):
                yield f"they meet at {node.source}"
                return

    # The source itself.

    def _of_source_dtype(self) -> Explanation:
        lines = _without_repeats(self._window.lines(self.path or []))
        user = next(self._window.users(self._x), None)
        place = self._place_of_first(self.path or [])
        if place is None:
            place = lines[0] if lines else here() if user is None else user.source
        return self._told(_dtype_reason(self._source, "the source"), place, [place])

    def _overwritten(self) -> Explanation:
        place = self._source.source
        name = _rebound_name(statement_at(place))
        because = (
            f"the name {name!r} was given to a new tensor, made of a Variable, which nobody watches"
        )
        fix = "change the Variable in place: x.assign_add(...), x.assign_sub(...), x.assign(...)"
        return self._told(_Reason("overwritten", because, fix), place, [place])

    def _told(
        self, reason: _Reason, place: Source, lines: Sequence[Source], gradient: str = "None"
    ) -> Explanation:
        path = _without_repeats(lines)
        fact = f"the gradient with respect to {self._name} is {gradient} ({reason.word}): "
        parts = [message(fact + reason.because, source=place)]
        if len(path) > 1:
            parts.append("  path: " + " -> ".join(_shown(path)))
        if reason.fix:
            parts.append(f"  fix: {reason.fix}")
        return Explanation(reason.word, "\n".join(parts), place, path)


def _place_of_read(window: _Window, path: Sequence[int], place: int) -> Source:
    """Where a Variable is read: the step at `place`, or, if a function called there reads it
    directly, where that function uses it. A path that enters a function at once has the place
    -1."""
    source = window.along(path)[max(place, 0)].source
    while place + 2 < len(path):
        call = window.edge(path, place + 1)
        is_handed = place < 0 or call.node.source.is_same_place(source)
        if call.node.op is None or not call.node.op.regions or not is_handed:
            break
        window, path = window.inside(call)
        if len(path) < 2:
            break
        first = window.along(path)[0]
        source = first.source
        if first.op is None or not (isinstance(first.op, Read) or first.op.regions):
            break
        place = 0 if isinstance(first.op, Read) else -1
    return source


def _without_repeats(lines: Iterable[Source]) -> tuple[Source, ...]:
    """The known lines, without consecutive repeats."""
    places: dict[Any, tuple[Any, ...]] = {}
    kept: list[Source] = []
    last = None
    for source in lines:
        place = places.get(source.key)
        if place is None:
            place = places[source.key] = source.file, source.line, source.roles
        if place[1] and place != last:
            kept.append(source)
            last = place
    return tuple(kept)


def _shown(path: Sequence[Source]) -> Iterator[str]:
    """The lines as texts show them; only the ends if there are many."""
    if len(path) <= _SHOWN:
        yield from map(str, path)
        return
    half = _SHOWN // 2
    yield from map(str, path[:half])
    yield f"... {len(path) - 2 * half:,} more ..."
    yield from map(str, path[-half:])


def _has_body(op: Any) -> bool:
    """Whether the body of an op explains why its derivative breaks."""
    return bool(op.regions) and op.chosen_gradient is None


def _outside_reason(history: History, source: Source) -> _Reason:
    """Why the tape did not record a value created at that moment."""
    cause = "reset" if history.is_after_reset else "before"
    for span in history.spans:
        if source.moment < span.start:
            break
        cause = "inside" if span.stop is None or source.moment < span.stop else span.cause
    return _OUTSIDE[cause]


def _chosen_by(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Values]]:
    """The entries that may skip a region, with their input values, as far as these still exist."""
    for entry in entries:
        if entry.op is None or not can_choose(entry.op) or entry.op.has_effects:
            continue
        given = list(alive(entry.inputs))
        if len(given) == len(entry.inputs):
            yield entry, values_of(given)


def _left_out_reason(found: _LeftOut) -> _Reason:
    """Why a gradient is 0 in a run that skipped a region."""
    line = next((x for x in found.inside if x.line), None)
    user = "that returns it" if line is None else f"that uses it, at {line},"
    if found.is_loop:
        return _Reason("loop_not_run", f"the loop {user} ran 0 times")
    return _Reason("branch_not_taken", f"the branch {user} was not taken: it was decided here")


def _branch_reason(line: Source) -> _Reason:
    because = f"the branch that uses it, at {line}, was not taken: it was decided here"
    fix = "use tg.where(condition, x, y), or take None as zero: unconnected_gradients='zero'"
    return _Reason("branch_not_taken", because, fix)


def _computes(part: ast.AST) -> bool:
    """Whether code would have been recorded if it had run: calls may be recorded elsewhere."""
    return any(isinstance(node, ast.BinOp | ast.UnaryOp | ast.AugAssign) for node in ast.walk(part))


def _is_loaded(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)


def _value_of(node: ast.AST, names: Mapping[str, ref[Any]]) -> Any:
    """The value of a name, or of an attribute of its value, at the time; None if unknown."""
    if isinstance(node, ast.Attribute):
        return getattr(_value_of(node.value, names), "__dict__", {}).get(node.attr)
    found = names.get(node.id) if isinstance(node, ast.Name) else None
    return None if found is None else found()


_INSIDE = "compute it inside the `with` block"
_OUTSIDE = {
    "before": _Reason("before_tape", "this was computed before the tape was opened", _INSIDE),
    "reset": _Reason(
        "before_tape",
        "this was computed before tape.reset(), which forgets all that was recorded and watched",
        "compute it after tape.reset()",
    ),
    "left": _Reason("after_tape", "this was computed after the tape's block", _INSIDE),
    "stopped": _Reason(
        "recording_stopped",
        "this was computed while the recording was stopped",
        "compute it outside of tape.stop_recording()",
    ),
    "used": _Reason(
        "tape_used",
        "this was computed after the tape, which is not persistent, had been used",
        "ask for gradients after the block, or use tg.GradientTape(persistent=True)",
    ),
    "inside": _Reason(
        "not_recorded",
        "this was computed where the tape does not record: on another thread, or in another trace",
        "compute it where the tape was opened",
    ),
}
_FROM_NUMPY = _Reason(
    "numpy",
    "the value went through NumPy or Python, which tapes do not see, and came back here",
    "use the functions of tg in place of NumPy's, or a tg.custom_gradient",
)


def _dtype_reason(tensor: Any, what: str) -> _Reason:
    return _Reason(
        "dtype",
        f"{what} is {tensor.dtype.name}, which has no derivatives",
        "compute with floating numbers, such as tg.float32",
    )


def _reason_of(edge: _Edge, standing: int) -> _Reason:
    """Why the derivative does not pass an edge that the tape saw."""
    node, op = edge.node, edge.node.op
    assert op is not None
    made = node.output_types if isinstance(node, RememberedNode) else types_of_outputs(node)
    dtype = made[edge.exit].dtype
    if op.stops_gradients:
        return _Reason("stop_gradient", "tg.stop_gradient stops the gradient here", "remove it")
    if isinstance(op, Read):
        return _assigned_reason("to a Variable")
    if isinstance(op, HostCall):
        return _FROM_HOST
    if not dtype.is_differentiable:
        because = f"{op.name} makes {dtype.name} of it, which has no derivatives"
        return _Reason("dtype", because, "compute with floating numbers up to the target")
    return _rule_reason(op, standing)


def _python_calls(entry: Entry) -> Iterator[Source]:
    """Where an entry calls Python functions, even in its bodies."""
    op = entry.op
    if isinstance(op, HostCall) and callable(op.function):
        yield entry.source
    for node in (node for body in (op.graphs() if op else ()) for node in body.nodes):
        yield from _python_calls(node)


def _rule_reason(op: Op, standing: int) -> _Reason:
    if is_registered(op):
        because = f"the gradient that was registered for {op.name} is None here"
        return _Reason("no_gradient", because, "register a gradient that returns a tensor")
    if op.chosen_gradient is not None:
        name = op.regions[0].graph.name
        name = "<lambda>" if name == "lambda_" else name  # the name that graphs use
        because = f"the custom gradient of {name} returns None for it"
        return _Reason("custom_gradient", because, "return a gradient for this argument")
    if standing == _PASSED:
        because = "it was watched only after this line had used it"
        return _Reason("not_watched", because, "call tape.watch before the first use")
    because = f"{op.name} has no derivative with respect to it: it is constant between jumps"
    fix = "use a smooth function in its place, or a tg.custom_gradient"
    return _Reason("no_derivative", because, fix)


def _assigned_reason(where: str) -> _Reason:
    because = f"it was assigned {where}, which is read here: state stops gradients"
    return _Reason("assigned", because, "use the tensor itself in place of the Variable")


_FROM_HOST = _Reason(
    "numpy",
    "a Python function computes this at run time, which tapes do not see into",
    "use the functions of tg, or tg.py_function, or a tg.custom_gradient",
)


# A name that referred to a Variable and now refers to a tensor.


def _is_overwritten(tensor: Tensor) -> bool:
    """Whether the statement that created a tensor rebound the name of a Variable to it."""
    statement = statement_at(tensor.source)
    if statement is None or _rebound_name(statement) is None:
        return False
    if tensor.node is None:
        read_at = place_of_last_read(tensor)
        return read_at is not None and is_inside(statement, read_at)
    return _reads_variable(tensor.node, statement)


def _reads_variable(node: Node, statement: ast.stmt) -> bool:
    """Whether the nodes of a statement that lead to one of them include a read of a Variable."""
    waiting, seen = [node], {node}
    for node in waiting:  # grows during the loop
        if any(map(_is_read, node.inputs)):
            return True
        before = {x.node for x in node.inputs if x.node is not None} - seen
        seen |= before
        waiting += (x for x in before if x.source.line and is_inside(statement, x.source))
    return False


def _is_read(x: Tensor) -> bool:
    is_node = x.node is not None and isinstance(x.node.op, Read)
    return is_node or variable_read_by(x) is not None


def _rebound_name(statement: ast.stmt | None) -> str | None:
    """The name that a statement both assigns and reads, as `x = x + 1` does."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    read = {ast.unparse(node) for node in ast.walk(statement.value) if isinstance(node, ast.expr)}
    names = (ast.unparse(part) for target in targets for part in _parts(target))
    return next((name for name in names if name in read), None)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """The targets that a statement assigns, one by one."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _parts(part)
    else:
        yield target
