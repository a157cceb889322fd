"""A note on stderr about a slow compile: which function, how many nodes, how long so far.

The lowering holds `noted` open during the first run of a program. A compile that finishes in time
costs one thread, started and ended. That thread samples what is running, so that time spent in a
signal handler or a finalizer does not count towards the compile.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Generator

from tracegraph.core.interrupts import is_interrupt
from tracegraph.core.source import frame_at, is_ours
from tracegraph.errors import DTypeError, fail, kind_of, shown
from tracegraph.ir.tensor import Graph

#: The note appears after this many seconds, once per compile.
SECONDS = 10.0
#: With fewer nodes than these, their number is not what makes a compile slow.
MANY_NODES = 300
#: How often the thread samples until then.
LOOKS = 20
#: How long to wait for a thread when Python exits: after a fork there may be none.
_LAST_WAIT = 1.0


@dataclasses.dataclass
class _CompileSettings:
    is_on: bool = True
    is_exiting: bool = False


_settings = _CompileSettings()


@atexit.register
def _exit() -> None:
    """Ends all watches, and waits for their threads. Compiles on other threads print no note then.

    A thread that is left behind may be collecting garbage, such as arrays of JAX. It would end
    where these wait for Python, and take the process with it: "exception not rethrown".
    """
    _settings.is_exiting = True
    for watch in [*watching]:
        watch.is_over.set()
        watch.has_ended.acquire(timeout=_LAST_WAIT)


def set_compile_notes(enabled: bool) -> None:
    """Whether a compile that takes more than 10 seconds reports it on stderr (the default).

    >>> tg.config.set_compile_notes(False)
    >>> tg.config.get_compile_notes()
    False
    """
    if type(enabled) is not bool:
        fact = f"set_compile_notes: enabled is {kind_of(enabled)}: {shown(enabled)}"
        fail(DTypeError, fact, fix="use True or False")
    _settings.is_on = enabled


def get_compile_notes() -> bool:
    """Whether a compile that takes more than 10 seconds reports it on stderr."""
    return _settings.is_on


class _OpenCompiles(threading.local):
    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: The contexts, as far as they are there.
        self.contexts: list[weakref.ref[noted]] = []


_open = _OpenCompiles()


def is_noted(graph: Graph) -> bool:
    """Whether this thread is in the `noted` context of that graph."""
    return any(x is graph for x in _open.graphs)


def note_compiled() -> None:
    """Records that the program of this thread's innermost context is compiled and now runs."""
    context = _innermost()
    if context is not None:
        context.is_compiled = True


@contextlib.contextmanager
def waiting_for_processes() -> Generator[None]:
    """A context in which this thread's innermost compile waits for other processes."""
    context = _innermost()
    if context is not None:
        context.is_waiting = True
    try:
        yield
    finally:
        if context is not None:
            context.is_waiting = False


def _innermost() -> noted | None:
    return _open.contexts[-1]() if _open.contexts else None


class noted:
    """The context of the first run of a program compiled from `graph`."""

    __slots__ = (
        "__weakref__",
        "_base",
        "_graph",
        "_last",
        "_seconds",
        "_thread",
        "_watch",
        "is_compiled",
        "is_waiting",
    )

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.is_compiled = self.is_waiting = False
        self._thread = threading.get_ident()
        #: The compiling frame, by identity alone: it lives as long as the context is open.
        self._base = 0
        self._seconds, self._last = 0.0, time.monotonic()
        # The thread holds the context weakly: one that an interrupt abandoned prints nothing.
        self._watch = _CompileWatch(weakref.ref(self))

    def __enter__(self) -> None:
        self._base = id(frame_at(1))
        _open.graphs.append(self._graph)
        _open.contexts.append(weakref.ref(self))
        if _settings.is_on and not _settings.is_exiting:
            self._watch.start()

    def __exit__(self, *exception: object) -> None:
        self._watch.is_over.set()
        _open.graphs.pop()
        _open.contexts.pop()

    def is_slow(self) -> bool:
        """Whether it has taken too long by now; adds the time since the last call."""
        now = time.monotonic()
        if not self._is_interrupted():
            self._seconds += now - self._last
        self._last = now
        return self._seconds >= SECONDS

    def _is_interrupted(self) -> bool:
        # Public, in spite of its name.
        frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and id(frame) != self._base:
            if not is_ours(frame.f_code.co_filename) and is_interrupt(frame):
                return True
            frame = frame.f_back
        return False

    def text(self) -> str:
        graph, seconds = self._graph, self._seconds
        lines = (str(node.source) for node in graph.nodes if node.source.line)
        place = next((f" (its first op is at {line})" for line in lines), "")
        name = "what was computed at top level" if graph.name == "top_level" else graph.name
        return (
            f"tracegraph: the first run of {name}{place} has taken "
            f"{seconds:.0f} s so far: {self._doing()}; tg.config.set_compile_notes(False) "
            "silences such notes, one for each slow compile"
        )

    def _doing(self) -> str:
        if self.is_waiting:
            return "it waits for the other processes to run the same"
        if self.is_compiled:
            return (
                "it is compiled, and runs. A loop that may never end takes maximum_iterations, "
                "and Ctrl-C ends the wait"
            )
        count = self._graph.node_count()
        doing = f"it has {count:,} nodes, and XLA still compiles them"
        if count < MANY_NODES:
            return f"{doing}. These are few: other programs may keep the processors busy"
        advice = "Fewer nodes compile faster, such as ops on whole tensors in place of Python loops"
        return f"{doing}. {advice}"


class _CompileWatch:
    """Watches one compile, on its own thread, until it is over or slow.

    The thread is started without `threading`: a signal handler that compiles may have interrupted
    code that was starting a thread and holds that module's lock.
    """

    def __init__(self, context: weakref.ref[noted]) -> None:
        self.is_over = threading.Event()
        self.has_ended = _thread.allocate_lock()
        self._context = context

    def start(self) -> None:
        self.has_ended.acquire()
        watching[self] = None
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            while not self.is_over.wait(SECONDS / LOOKS):
                context = self._context()
                if context is None:
                    return
                if context.is_slow():
                    _tell(context)
                    return
                del context
        finally:
            self.has_ended.release()  # nothing that follows allocates, and so collects garbage
            watching.pop(self, None)


#: The watches that have not ended.
watching: dict[_CompileWatch, None] = {}


def _tell(context: noted) -> None:
    if _settings.is_exiting or not _settings.is_on or sys.stderr is None:
        return
    try:
        print(context.text(), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # stderr is closed: nobody reads it
        return
