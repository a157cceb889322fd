"""A note on stderr where a compile takes long: which function, how many nodes, how long already.

The lowering stands in `noted` while a program runs for the first time. Whoever is done in time has
started one timer and cancelled it.
"""

from __future__ import annotations

import atexit
import dataclasses
import sys
import threading
import time
import weakref

from tracegraph.ir.tensor import Graph

#: After so many seconds the note comes, once per compile.
SECONDS = 10.0
#: The name of the thread that waits for it.
THREAD = "tracegraph: note of a slow compile"


@dataclasses.dataclass
class _Settings:
    is_on: bool = True
    is_exiting: bool = False

    def exit(self) -> None:
        self.is_exiting = True


_settings = _Settings()
atexit.register(_settings.exit)  # who compiles on another thread then is not heard any more


def set_compile_notes(enabled: bool) -> None:
    """Whether a compile that takes more than 10 seconds says so on stderr, as it does by default.

    >>> tg.config.set_compile_notes(False)
    >>> tg.config.get_compile_notes()
    False
    """
    _settings.is_on = bool(enabled)


def get_compile_notes() -> bool:
    """Whether a compile that takes more than 10 seconds says so on stderr."""
    return _settings.is_on


class _Open(threading.local):
    def __init__(self) -> None:
        self.graphs: list[Graph] = []


_open = _Open()


def is_noted(graph: Graph) -> bool:
    """Whether this thread is in the context of that graph."""
    return any(x is graph for x in _open.graphs)


class noted:
    """The context of the first run of a program, of which `graph` is what it compiles."""

    __slots__ = ("__weakref__", "_graph", "_start", "_timer")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._start = time.monotonic()
        # The timer does not keep the context alive: what an interrupt left behind says nothing.
        self._timer = threading.Timer(SECONDS, _tell, [weakref.ref(self)])
        self._timer.daemon, self._timer.name = True, THREAD

    def __enter__(self) -> None:
        _open.graphs.append(self._graph)
        if _settings.is_on:
            self._timer.start()

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        _open.graphs.pop()

    def text(self) -> str:
        graph, seconds = self._graph, time.monotonic() - self._start
        count = sum(len(inner.nodes) for inner in graph.graphs())
        lines = (str(node.source) for node in graph.nodes if node.source.line)
        place = next(lines, "")
        name = "what was computed at top level" if graph.name == "top_level" else graph.name
        return (
            f"tracegraph: the first run of {name}{place and f' ({place})'} has taken "
            f"{seconds:.0f} s so far: it has {count:,} nodes, and XLA still compiles them. Fewer "
            "nodes compile faster, such as ops on whole tensors in place of Python loops; "
            "tg.config.set_compile_notes(False) silences this note"
        )


def _tell(reference: weakref.ref[noted]) -> None:
    context = reference()
    if context is None or _settings.is_exiting or not _settings.is_on or sys.stderr is None:
        return
    try:
        print(context.text(), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # stderr is closed: nobody listens
        return
