"""Why a gradient is None: the way from the source to the target, and where it breaks.

A value reaches the target along a path of nodes. The first of them that the tape did not follow,
or whose rule has no derivative for what the path brings, is the break. Where there is no path at
all, what the tape remembers of the values that left to NumPy and came back, and of what was made
outside of its block, tells why.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref

from tracegraph.control.call import Call
from tracegraph.control.custom import CustomCall
from tracegraph.control.flow import Flow, Flows, types_of
from tracegraph.control.recompute import RecomputedCall
from tracegraph.errors import message
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import HostCall, Read
from tracegraph.passes.registry import is_registered
from tracegraph.runtime.history import (
    Crossing,
    History,
    Span,
    Step,
    alive,
    step_before,
    types_of_outputs,
)
from tracegraph.runtime.trace import Trace
from tracegraph.runtime.variable import Variable
from tracegraph.source import Source, here


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why a gradient is None, as `tape.explain(target, source)` tells.

    - `reason`: one of "connected", "not_watched", "before_tape", "after_tape", "tape_used",
      "recording_stopped", "not_recorded", "stop_gradient", "dtype", "no_derivative",
      "no_gradient", "custom_gradient", "assigned", "overwritten", "numpy", "unused" and
      "unconnected".
    - `text`: what happened, the line, and what to do; `str()` gives it.
    - `source`: the line of the break, with its `file` and `line`.
    - `path`: the lines from the source of the gradient up to the break.
    """

    reason: str
    text: str
    source: Source
    path: tuple[Source, ...]

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def line(self) -> int:
        return self.source.line

    @property
    def is_connected(self) -> bool:
        """Whether there is a gradient."""
        return self.reason == "connected"

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Record:
    """What a tape knows: its history, the nodes that it follows, and whom it watches."""

    history: History
    followed: Sequence[Node | Step]
    is_tracked: Callable[[Tensor], bool]
    watches_variables: bool
    builder: Builder


# The rows of a record: what was computed, by whom it was seen.

_FOLLOWED, _PASSED, _UNSEEN = range(3)


#: What needs no weak reference to be resolved.
_PLAIN = frozenset([Tensor])


class _Row:
    """A node or a step, with numbers for its tensors."""

    __slots__ = ("entry", "inputs", "op", "outputs", "source", "standing")

    def __init__(
        self,
        entry: Node | Step,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        standing: int,
    ) -> None:
        self.entry = entry
        self.op = entry.op
        self.inputs = inputs
        self.outputs = outputs
        self.source = entry.source
        self.standing = standing


class _Edge(NamedTuple):
    """One step of a path: by which input it enters a row, and by which output it leaves."""

    row: _Row
    entry: int
    exit: int


class _Window:
    """Rows, by whom each value was made, and the paths along them."""

    def __init__(self, flows: Flows, aliases: dict[int, Tensor]) -> None:
        self._flows = flows
        self._aliases = aliases
        self.rows: list[_Row] = []
        self.makers: dict[int, tuple[_Row, int]] = {}

    @staticmethod
    def of_record(record: Record, target: Tensor, flows: Flows) -> _Window:
        window = _Window(flows, _aliases(record.builder))
        for entry in record.followed:
            window.add(entry, _FOLLOWED)
        for entry in record.history.all_passed():
            window.add(entry, _PASSED)
        for step in record.history.unseen:
            window.add(step, _UNSEEN)
        window._add_unseen(target)
        return window

    @staticmethod
    def of_body(body: Graph, flows: Flows) -> _Window:
        window = _Window(flows, {})
        for node in body.nodes:
            window.add(node, _FOLLOWED)
        return window

    def number(self, x: Any) -> int:
        """What stands for a tensor, or for one that is gone."""
        if type(x) is ref:
            found = x()
            if found is None:
                return id(x)
            x = found
        return id(self.outermost(x))

    def outermost(self, x: Tensor) -> Tensor:
        """What a tensor of a trace stands for, or the tensor itself."""
        aliases = self._aliases
        while id(x) in aliases:
            x = aliases[id(x)]
        return x

    def _numbers(self, tensors: tuple[Any, ...]) -> tuple[int, ...]:
        if not self._aliases and _PLAIN.issuperset(map(type, tensors)):
            return tuple(map(id, tensors))
        return tuple(map(self.number, tensors))

    def add(self, entry: Node | Step, standing: int) -> _Row:
        inputs, outputs = self._numbers(entry.inputs), self._numbers(entry.outputs)
        row = _Row(entry, inputs, outputs, standing)
        self.rows.append(row)
        for place, y in enumerate(outputs):
            self.makers.setdefault(y, (row, place))
        return row

    def _add_unseen(self, target: Tensor) -> None:
        """Adds what the target was made of that the tape did not see, as far as it is known."""
        seen: set[int] = set()
        waiting: list[tuple[int, Any]] = [(self.number(target), target)]
        while waiting:
            number, x = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            made = self.makers.get(number)
            row = self._unseen_row(x) if made is None else made[0]
            if row is not None:
                waiting.extend(zip(row.inputs, row.entry.inputs, strict=True))

    def _unseen_row(self, x: Any) -> _Row | None:
        """What made a value that the tape did not see being made, if that is known."""
        steps = (step_before(self.outermost(tensor)) for tensor in alive([x]))
        step = next(steps, None)
        return None if step is None else self.add(step, _UNSEEN)

    # What flows.

    def flow(self, row: _Row) -> Flow:
        entry = row.entry
        if entry.op is None:
            every = (1 << len(row.inputs)) - 1
            return Flow((every,) * len(row.outputs), (every,) * len(row.outputs))
        if isinstance(entry, Step):
            return self._flows.of(entry.op, entry.input_types, entry.output_types)
        return self._flows.of(entry.op, types_of(entry.inputs), types_of_outputs(entry))

    def _feeding(self, row: _Row, place: int) -> Iterable[tuple[int, int]]:
        """The inputs whose values reach an output, and their places."""
        if not isinstance(row.op, Call):
            return enumerate(row.inputs)
        values = self.flow(row).values[place]
        return [(i, x) for i, x in enumerate(row.inputs) if values >> i & 1]

    def is_carried(self, edge: _Edge) -> bool:
        """Whether the derivative goes along an edge."""
        row = edge.row
        if row.standing != _FOLLOWED:
            return False
        derivatives = self.flow(row).derivatives[edge.exit]
        x = row.inputs[edge.entry]
        return any(derivatives >> i & 1 and other == x for i, other in enumerate(row.inputs))

    def reached(self, source: int) -> set[int]:
        """What the derivative by the source reaches."""
        found = {source}
        for row in self.rows:
            if row.standing != _FOLLOWED or found.isdisjoint(row.inputs):
                continue
            mask = 0
            for i, x in enumerate(row.inputs):
                mask |= (x in found) << i
            for y, through in zip(row.outputs, self.flow(row).derivatives, strict=False):
                if through & mask:
                    found.add(y)
        return found

    def path(self, source: int, target: int) -> list[_Edge] | None:
        """The shortest way that values take from the source to the target."""
        ahead: dict[int, _Edge | None] = {target: None}
        waiting = deque([target])
        while waiting:
            y = waiting.popleft()
            if y == source:
                return list(_followed(ahead, source))
            made = self.makers.get(y)
            if made is None:
                continue
            row, place = made
            for i, x in self._feeding(row, place):
                if x not in ahead:
                    ahead[x] = _Edge(row, i, place)
                    waiting.append(x)
        return None

    def ancestors(self, target: int) -> dict[int, _Row | None]:
        """What the target is made of, the nearest first, and what made it."""
        found: dict[int, _Row | None] = {}
        waiting = deque([target])
        while waiting:
            y = waiting.popleft()
            if y in found:
                continue
            row, place = self.makers.get(y, (None, 0))
            found[y] = row
            if row is not None:
                waiting.extend(x for _, x in self._feeding(row, place))
        return found

    def descendants(self, source: int) -> set[int]:
        """What is made of a value, itself included."""
        takers: dict[int, list[_Row]] = {}
        for row in self.rows:
            for x in row.inputs:
                takers.setdefault(x, []).append(row)
        found, waiting = {source}, [source]
        while waiting:
            for row in takers.get(waiting.pop(), ()):
                new = [y for y in row.outputs if y not in found]
                found.update(new)
                waiting += new
        return found

    def users(self, source: int) -> Iterator[_Row]:
        """The rows that the tape saw and that take the source."""
        return (row for row in self.rows if row.standing != _UNSEEN and source in row.inputs)


def _followed(ahead: dict[int, _Edge | None], source: int) -> Iterator[_Edge]:
    edge = ahead[source]
    while edge is not None:
        yield edge
        edge = ahead[edge.row.outputs[edge.exit]]


def _aliases(builder: Builder | None) -> dict[int, Tensor]:
    """By the tensors of a trace that stand for something outside: what they stand for."""
    found: dict[int, Tensor] = {}
    while isinstance(builder, Trace):
        found.update((id(inner), outer) for outer, inner in builder.captures.items())
        states = ((builder.states[id(v)].handle, v.handle) for v in builder.variables)
        found.update((id(inner), outer) for inner, outer in states)
        builder = builder.outer
    return found


# The explanation.


def explain(
    record: Record, targets: Sequence[tuple[Any, Tensor]], source: Any, x: Tensor
) -> Explanation:
    """Why the gradient of the targets with respect to a source is None, or that it is not.

    A target is what the user gave and the tensor that stands for it; `x` stands for the source.
    """
    flows = Flows()
    cases = [_Case(record, y, source, x, flows) for _, y in targets]
    found = next(filter(None, (case.connected() for case in cases)), None)
    if found is not None:
        return found
    case = next((case for case in cases if case.path is not None), cases[0])
    return case.explanation()


@dataclasses.dataclass(frozen=True)
class _Reason:
    """A reason, what it says of the line, and the repair."""

    word: str
    because: str
    fix: str = ""


class _Case:
    """One target and one source."""

    def __init__(
        self, record: Record, target: Tensor, given: Any, source: Tensor, flows: Flows
    ) -> None:
        self._record = record
        self._target = target
        self._given = given
        self._source = source
        self._flows = flows
        self._window = window = _Window.of_record(record, target, flows)
        self._is_tracked = record.is_tracked(source)
        self._x, self._y = window.number(source), window.number(target)
        self.path = window.path(self._x, self._y)

    @property
    def _name(self) -> str:
        if isinstance(self._given, Variable):
            return f"the variable {self._given.name!r}"
        name = self._given.name
        return f"{name!r}" if name else f"the tensor {self._given.type}"

    def connected(self) -> Explanation | None:
        """That the two are connected, if they are."""
        is_own = self._x == self._y
        types = self._source.dtype, self._target.dtype
        if not all(dtype.is_differentiable for dtype in types):
            return None
        if not (self._is_tracked or is_own) or self._y not in self._window.reached(self._x):
            return None
        lines = _without_repeats(_lines(self.path or []))
        place = lines[-1] if lines else here()
        text = message(f"target and source are connected: {self._name} has a gradient")
        return Explanation("connected", text, place, lines)

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

    def _broken(self, path: list[_Edge]) -> Explanation:
        window, lines = self._window, []
        edge = self._break(window, path, lines)
        assert edge is not None
        if edge.row.standing == _UNSEEN:
            return self._outside(edge.row.source, tuple(lines))
        while _has_body(edge.row.op):
            body = edge.row.op.body  # type: ignore[union-attr]
            inner = _Window.of_body(body, self._flows)
            ends = id(body.inputs[edge.entry]), id(body.outputs[edge.exit])
            way = inner.path(*ends)
            found = None if way is None else self._break(inner, way, lines)
            if found is None:
                break
            window, edge = inner, found
        return self._told(_reason_of(edge), edge.row.source, tuple(lines))

    def _break(self, window: _Window, path: list[_Edge], lines: list[Source]) -> _Edge | None:
        """The first edge without a derivative, and in `lines` those up to it. Of what the tape did
        not see, the last in a row: it is what the tape saw next, or was given."""
        place = next((i for i, edge in enumerate(path) if not window.is_carried(edge)), None)
        if place is None:
            return None
        while path[place].row.standing == _UNSEEN and _is_unseen_at(path, place + 1):
            place += 1
        lines.extend(_lines(path[: place + 1]))
        return path[place]

    def _outside(self, source: Source, lines: tuple[Source, ...]) -> Explanation:
        """What was made outside of what the tape recorded."""
        return self._told(_outside_reason(self._record.history.spans, source), source, lines)

    def _unwatched(self, path: list[_Edge]) -> Explanation:
        lines = _lines(path)
        seen = [edge.row for edge in path if edge.row.standing != _UNSEEN]
        user = next(self._window.users(self._x), None)
        if not seen or (isinstance(self._given, Variable) and user is None):
            place = 0
            while _is_unseen_at(path, place + 1):
                place += 1
            return self._outside(path[place].row.source, _lines(path[: place + 1]))
        return self._told(self._unwatched_reason(), lines[0], lines[:1])

    def _unwatched_reason(self) -> _Reason:
        given = self._given
        if not isinstance(given, Variable):
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
        made_of = window.ancestors(self._y)
        numpy = self._by_numpy(made_of)
        if numpy is not None:
            return numpy
        is_used = any(window.users(self._x))
        rows = [row for row in made_of.values() if row is not None]
        is_followed = any(row.standing == _FOLLOWED for row in rows)
        unseen = [row.source for row in rows if row.standing == _UNSEEN and row.source.line]
        if unseen and (rows[0].standing == _UNSEEN or not (is_followed or is_used)):
            return self._outside(unseen[0], (unseen[0],))
        arrived = self._arrived(made_of)
        if arrived and not is_followed and not is_used:
            place = arrived[-1].source
            return self._told(_FROM_NUMPY, place, (place,))
        if not self._target.dtype.is_differentiable:
            place = self._place_of_target(rows)
            return self._told(_dtype_reason(self._target, "the target"), place, (place,))
        return self._apart(is_used, made_of, rows)

    def _place_of_target(self, rows: Sequence[_Row]) -> Source:
        places = (row.source for row in rows if row.source.line)
        return next(places, self._target.source if self._target.source.line else here())

    def _arrived(self, made_of: dict[int, _Row | None]) -> list[Crossing]:
        """What came from NumPy and became the target."""
        arrived = self._record.history.arrived
        return [crossing for crossing in arrived if self._window.number(crossing.tensor) in made_of]

    def _by_numpy(self, made_of: dict[int, _Row | None]) -> Explanation | None:
        """That what the source became went to NumPy, and what came back became the target."""
        back = self._arrived(made_of)
        if not back:
            return None
        window = self._window
        reached = window.descendants(self._x)
        left = (x for x in self._record.history.left if window.number(x.tensor) in reached)
        pairs = ((x, y) for x in left for y in back if y.moment > x.moment)
        gone, came = next(pairs, (None, None))
        if gone is None or came is None:
            return None
        before = _lines(window.path(self._x, window.number(gone.tensor)) or [])
        return self._told(_FROM_NUMPY, came.source, (*before, gone.source, came.source))

    def _apart(
        self, is_used: bool, made_of: dict[int, _Row | None], rows: Sequence[_Row]
    ) -> Explanation:
        place = self._place_of_target(rows)
        if not is_used:
            because = "the target is not made of it, and nothing that the tape recorded uses it"
            fix = "use it in what makes the target, or leave it out of the sources"
            return self._told(_Reason("unused", because, fix), place, ())
        first = next(self._window.users(self._x)).source
        because = f"it is used at {first}, and nothing made of it reaches the target"
        common = [f"; {text}" for text in self._common(made_of)]
        fix = "use what is made of it in the target, or leave it out of the sources"
        return self._told(_Reason("unconnected", because + "".join(common), fix), place, (first,))

    def _common(self, made_of: dict[int, _Row | None]) -> Iterator[str]:
        """The nearest nodes that source and target have in common: before both, after both."""
        own = self._window.ancestors(self._x)
        before = next((row for y, row in made_of.items() if row is not None and y in own), None)
        if before is not None and before.source.line:
            yield f"both are made of what {before.source} computes"
        ours, theirs = map(self._window.descendants, (self._x, self._y))
        for row in self._window.rows:
            if not ours.isdisjoint(row.inputs) and not theirs.isdisjoint(row.inputs):
                yield f"they meet at {row.source}"
                return

    # The source itself.

    def _of_source_dtype(self) -> Explanation:
        lines = _lines(self.path or [])
        user = next(self._window.users(self._x), None)
        place = lines[0] if lines else here() if user is None else user.source
        return self._told(_dtype_reason(self._source, "the source"), place, lines[:1])

    def _overwritten(self) -> Explanation:
        place = self._source.source
        because = (
            f"the name {_rebound_name(place)!r} was given to a new tensor, made of a Variable, "
            "which nobody watches"
        )
        fix = "change the Variable in place: x.assign_add(...), x.assign_sub(...), x.assign(...)"
        return self._told(_Reason("overwritten", because, fix), place, (place,))

    def _told(self, reason: _Reason, place: Source, lines: tuple[Source, ...]) -> Explanation:
        lines = _without_repeats(lines)
        fact = f"the gradient with respect to {self._name} is None ({reason.word}): "
        parts = [message(fact + reason.because, source=place)]
        if len(lines) > 1:
            parts.append("  path: " + " -> ".join(map(str, lines)))
        if reason.fix:
            parts.append(f"  fix: {reason.fix}")
        return Explanation(reason.word, "\n".join(parts), place, lines)


def _lines(path: Sequence[_Edge]) -> tuple[Source, ...]:
    """The lines of a path, without those that are not known."""
    return tuple(edge.row.source for edge in path if edge.row.source.line)


def _without_repeats(lines: Sequence[Source]) -> tuple[Source, ...]:
    """The lines, each once where it follows upon itself."""
    pairs = zip(lines, (None, *lines), strict=False)
    return tuple(x for x, last in pairs if last is None or str(x) != str(last))


def _is_unseen_at(path: Sequence[_Edge], place: int) -> bool:
    return place < len(path) and path[place].row.standing == _UNSEEN


def _has_body(op: Any) -> bool:
    """Whether the body of an op tells why its derivative breaks."""
    is_custom = isinstance(op, CustomCall) and not isinstance(op, RecomputedCall)
    return isinstance(op, Call) and not is_custom


def _outside_reason(spans: Sequence[Span], source: Source) -> _Reason:
    """Why the tape did not record what was made at that moment."""
    cause = "before"
    for span in spans:
        if source.moment < span.start:
            break
        cause = "inside" if span.stop is None or source.moment < span.stop else span.cause
    return _OUTSIDE[cause]


_INSIDE = "compute it inside the `with` block"
_OUTSIDE = {
    "before": _Reason("before_tape", "this was computed before the tape was opened", _INSIDE),
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


def _reason_of(edge: _Edge) -> _Reason:
    """Why the derivative does not go along an edge that the tape saw."""
    row, op = edge.row, edge.row.op
    assert op is not None
    outputs = row.entry.output_types if isinstance(row.entry, Step) else None
    made = outputs or types_of_outputs(row.entry)  # type: ignore[arg-type]
    dtype = made[edge.exit].dtype
    if op.stops_gradients:
        return _Reason("stop_gradient", "tg.stop_gradient stops the gradient here", "remove it")
    if isinstance(op, Read):
        return _ASSIGNED
    if isinstance(op, HostCall):
        return _FROM_HOST
    if not dtype.is_differentiable:
        because = f"{op.name} makes {dtype.name} of it, which has no derivatives"
        return _Reason("dtype", because, "compute with floating numbers up to the target")
    return _rule_reason(row, op)


def _rule_reason(row: _Row, op: Op) -> _Reason:
    if is_registered(op):
        because = f"the gradient that was registered for {op.name} is None here"
        return _Reason("no_gradient", because, "register a gradient that returns a tensor")
    if isinstance(op, CustomCall):
        because = f"the custom gradient of {op.body.name} returns None for it"
        return _Reason("custom_gradient", because, "return a gradient for this argument")
    if row.standing == _PASSED:
        because = "it was watched only after this line had used it"
        return _Reason("not_watched", because, "call tape.watch before the first use")
    because = f"{op.name} has no derivative with respect to it: it is constant between jumps"
    fix = "use a smooth function in its place, or a tg.custom_gradient"
    return _Reason("no_derivative", because, fix)


_ASSIGNED = _Reason(
    "assigned",
    "it was assigned to a Variable, which is read here: state stops gradients",
    "use the tensor itself in place of the Variable",
)
_FROM_HOST = _Reason(
    "numpy",
    "a Python function computes this at run time, which tapes do not see into",
    "use the functions of tg, or tg.py_function, or a tg.custom_gradient",
)


# A name that was a Variable, and is a tensor now.


def _is_overwritten(tensor: Tensor) -> bool:
    return _is_made_of_variable(tensor) and _rebound_name(tensor.source) is not None


def _is_made_of_variable(tensor: Tensor) -> bool:
    node = tensor.node
    if node is None:
        return any(isinstance(origin, Tensor) for origin in getattr(tensor, "_origins", ()))
    return any(_is_read(x) for x in node.inputs)


def _is_read(x: Tensor) -> bool:
    is_node = x.node is not None and isinstance(x.node.op, Read)
    return is_node or getattr(x, "_read_of", None) is not None


def _rebound_name(source: Source) -> str | None:
    """The name that a statement assigns and reads at once, as `x = x + 1` does."""
    try:
        (statement,) = ast.parse(source.text).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(statement, ast.Assign):
        return None
    read = {ast.unparse(node) for node in ast.walk(statement.value) if isinstance(node, ast.expr)}
    names = (ast.unparse(target) for target in statement.targets)
    return next((name for name in names if name in read), None)
