"""`tg.profile`: where the time of a call goes, by the user's lines."""

from __future__ import annotations

import dataclasses
import json
import linecache
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tracegraph.array.arguments import as_count
from tracegraph.core.source import places_in
from tracegraph.eager import backend
from tracegraph.errors import TraceError, fail, shown
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.builder import current, top_level
from tracegraph.ir.tensor import Graph
from tracegraph.tracing.name_scopes import dotted
from tracegraph.views.html import to_html
from tracegraph.views.output import written
from tracegraph.views.summary import short_names

#: The line of operations for which XLA names none: copies, and work that belongs to nobody.
ELSEWHERE = "no line"
_READ = "  (read from disk, with the lines of when it was compiled)"
#: Increased when readers of the JSON would have to change.
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Cost:
    """The total time of one operation on one line, over all its runs, in seconds.

    `line` is `file:line`, with the folders of the file if others of the profile have its name;
    `scope` is the name scope, `op` the operation as named in XLA's metadata, such as `dot_general`.
    `roles` are the passes that derived it from the line, such as `vjp`. `is_backward` says whether
    it belongs to a gradient, also to one that a user wrote.
    """

    line: str
    scope: str
    op: str
    roles: tuple[str, ...]
    seconds: float
    is_backward: bool = False


@dataclasses.dataclass(frozen=True)
class Share:
    """The seconds of one line, scope or op, forward and backward."""

    name: str
    forward: float
    backward: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


class Profile:
    """Where the time of a call went; created by `tg.profile`. Prints as a table by line.

    `costs` has the single operations; `lines`, `scopes` and `ops` sum them up, the most expensive
    first. `seconds` is the total time of all operations, which may run in parallel, and `elapsed`
    the time of the call.
    """

    def __init__(self, name: str, recording: Any, graph: Graph | None) -> None:
        self.name = name
        self._recording = recording
        self._graph = graph
        self.elapsed: float = recording.seconds
        names = {name for operation in recording.operations for name in operation.shares}
        #: Whose each name in XLA's metadata is, and the file of each line.
        self._costs, self._files = _parsed({*names, ""})
        self.costs = self._costs_of(recording.operations)
        modules = {operation.module.rstrip("_") for operation in recording.operations}
        #: Whether a program came from disk, in which are the lines that it was compiled with.
        self._is_read = any(x.module in modules for x in backend.compiles() if x.is_read)
        self.seconds = sum(cost.seconds for cost in self.costs)

    @property
    def lines(self) -> tuple[Share, ...]:
        """The seconds of each `file:line`."""
        return _shares(self.costs, lambda cost: cost.line)

    @property
    def scopes(self) -> tuple[Share, ...]:
        """The seconds of each name scope; operations outside any have the empty scope."""
        return _shares(self.costs, lambda cost: cost.scope)

    @property
    def ops(self) -> tuple[Share, ...]:
        """The seconds of each kind of operation."""
        return _shares(self.costs, lambda cost: cost.op)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<profile of {self.name}: {_time(self.elapsed)}>"

    def table(self, by: str = "lines", most: int = 20) -> str:
        """A table of the shares of `by`, which is "lines", "scopes" or "ops", most expensive first.

        `most` is how many rows it has. Raises TraceError (a TypeError) for any other `by`,
        ShapeError (a ValueError) or DTypeError (a TypeError) if `most` is not a count.
        """
        if by not in ("lines", "scopes", "ops"):
            fact = f"profile: by is {shown(by)}"
            fail(TraceError, fact, fix='give "lines", "scopes" or "ops"')
        most = as_count("profile", "most", most)
        shares = getattr(self, by)
        head = f"{self.name}: {_time(self.seconds)} in operations, {_time(self.elapsed)} in all"
        title = f"{'share':>7s}{'forward':>11s}{'backward':>11s}  {by[:-1]}"
        rows = [head, _READ, title] if self._is_read else [head, title]
        for share in shares[:most]:
            part = share.seconds / self.seconds if self.seconds else 0.0
            times = f"{_time(share.forward):>11s}{_time(share.backward):>11s}"
            code = self._text(share.name) if by == "lines" else ""
            text = f"{share.name}  {code}".rstrip() or "(none)"
            rows.append(f"{part:>7.1%}{times}  {text}")
        if len(shares) > most:
            rest = sum(share.seconds for share in shares[most:])
            rows.append(f"{'':29s}  {len(shares) - most:,} more, {_time(rest)}")
        return "\n".join(rows)

    def to_json(self, path: str | os.PathLike[str] | None = None, indent: int | None = None) -> str:
        """The costs as JSON, most expensive first; also written to `path` if given."""
        data = {
            "format": "tracegraph-profile",
            "version": VERSION,
            "name": self.name,
            "elapsed": self.elapsed,
            "seconds": self.seconds,
            "costs": [dataclasses.asdict(cost) for cost in self.costs],
        }
        return written("to_json", json.dumps(data, indent=indent), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The page that `graph.to_html` makes, with expensive nodes coloured.

        Raises TraceError (a TypeError) unless a `tg.function`, or an object that is called by one,
        ran: nothing else has a graph.
        """
        if self._graph is None:
            fact = f"profile: {self.name} is not a @tg.function, so there is no graph of it"
            fail(TraceError, fact, fix="decorate it with @tg.function, and profile that")
        seconds: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            number = cost.line.rpartition(":")[2]
            place = f"{self._files.get(cost.line, '')}:{number}"
            seconds[" ".join((place, *cost.roles))] += cost.seconds
        return to_html(self._graph, path, seconds)

    def to_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """All runs of operations on their threads, as JSON for https://ui.perfetto.dev; also
        written to `path` if given."""
        threads = {x.thread: n for n, x in enumerate(self._recording.operations, 1)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": n, "args": {"name": thread}}
            for thread, n in threads.items()
        ]
        events = []
        for x in self._recording.operations:
            cost = self._costs[max(x.shares, key=x.shares.__getitem__, default="")]
            what = f"{' '.join((cost.line, *cost.roles))} {cost.op}" if cost.op else x.name
            arguments = {"instruction": x.name, "program": x.module, "scope": cost.scope}
            times = {
                "ts": x.start * 1e6,
                "dur": x.seconds * 1e6,
                "pid": 1,
                "tid": threads[x.thread],
            }
            events.append({"ph": "X", "name": what, **times, "args": arguments})
        data = {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}
        return written("to_trace", json.dumps(data), path)

    def _costs_of(self, operations: Iterable[Any]) -> tuple[Cost, ...]:
        seconds: dict[Cost, float] = defaultdict(float)
        for operation in operations:
            for name, part in operation.shares.items() or (("", 1.0),):
                seconds[self._costs[name]] += part * operation.seconds
        found = (dataclasses.replace(cost, seconds=total) for cost, total in seconds.items())
        return tuple(sorted(found, key=lambda cost: -cost.seconds))

    def _text(self, line: str) -> str:
        """The source text of a line: as the graph has it, or as the file that was run has it."""
        file, number = self._files.get(line, ""), line.rpartition(":")[2]
        if self._graph is not None:
            nodes = (node for graph in self._graph.graphs() for node in graph.nodes)
            for node in nodes:
                if str(node.source.line) == number and node.source.file == file:
                    return node.source.text
        return linecache.getline(file, int(number)).strip() if os.path.isabs(file) else ""


def _parsed(names: Iterable[str]) -> tuple[dict[str, Cost], dict[str, str]]:
    """Whose operations with these names in XLA's metadata are; and the file of each line."""
    places = {name: places_in(name.partition(";")[0].rpartition("/")[0]) for name in names}
    short = short_names({found[-1].file for found in places.values() if found})
    costs: dict[str, Cost] = {}
    files: dict[str, str] = {}
    for name, found in places.items():
        op = name.partition(";")[0].rpartition("/")[2]
        if not found:
            costs[name] = Cost(ELSEWHERE, "", op, (), 0.0)
            continue
        last = found[-1]
        line = f"{short[last.file]}:{last.line}"
        files[line] = last.file
        is_backward = any("vjp" in place.roles for place in found)  # a gradient may call anything
        costs[name] = Cost(line, dotted(last.scope), op, last.roles, 0.0, is_backward)
    return costs, files


def _shares(costs: Iterable[Cost], key: Callable[[Cost], str]) -> tuple[Share, ...]:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cost in costs:
        found[key(cost)][cost.is_backward] += cost.seconds
    shares = (Share(name, *seconds) for name, seconds in found.items())
    return tuple(sorted(shares, key=lambda share: -share.seconds))


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-6:.0f} µs"


def profile(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Calls `f(*args, **kwargs)` and reports where the time goes, by the lines that created the
    graph.

    `f` is called twice: the first call traces and compiles, the second is recorded by XLA's
    profiler. It may be a `tg.function`, or any function that computes with tensors. Operations
    that XLA fused share their time, in proportion to their estimated work.

    Raises TraceError (a TypeError) if `f` is not callable, and inside a function being traced;
    LoweringError while another profile is being recorded.

    >>> @tg.function
    ... def f(x):
    ...     return tg.reduce_sum(tg.sort(x))
    >>> profile = tg.profile(f, tg.random.normal([512, 512]))
    >>> profile.ops[0].name
    'sort'
    """
    if not callable(f):
        fact = f"profile: {shown(f)} is not a callable object"
        fail(TraceError, fact, fix="give the function, and then its arguments: tg.profile(f, x)")
    if not current().is_top_level:
        fact = "profile: a function is being traced, which runs nothing"
        fail(TraceError, fact, fix="call tg.profile outside of functions")

    def run() -> Any:
        results = f(*args, **kwargs)
        top_level().evaluate()  # type: ignore[attr-defined]
        return results

    recording = backend.recorded(run)
    name: str = getattr(f, "name", "") or getattr(f, "__name__", str(f))
    return Profile(name, recording, _graph_of(f, args, kwargs))


def _graph_of(f: Callable[..., Any], args: Any, kwargs: Any) -> Graph | None:
    """The graph that a call runs, if `f` is a `tg.function` or an object that is called by one."""
    called = f if isinstance(f, (Function, ConcreteFunction)) else f.__call__  # type: ignore[operator]
    if isinstance(called, ConcreteFunction):
        return called.graph
    return called.graph(*args, **kwargs) if isinstance(called, Function) else None
