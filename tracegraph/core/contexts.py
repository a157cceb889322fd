"""Contexts whose exit always runs, even when a signal handler raises.

CPython checks for signals on entry to a Python function. If `__exit__` is a Python function, a
handler that raises at its entry leaves the block without an exit, and a tape would record forever.
Here only C code runs between the end of a `with` block and the `finally` of a generator, which
Python enters without checking for signals. The first steps of that `finally` must be plain stores
or calls into C, so that all state is restored before anything can interrupt again.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Generator
from typing import Any, NoReturn, ParamSpec

from tracegraph.core.source import here
from tracegraph.errors import TraceError, fail

P = ParamSpec("P")
Block = Generator[Any, None, None]


class Context(io.IOBase):
    """The context of a generator that yields once, inside `try`/`finally`.

    `IOBase.__exit__` is written in C and calls `close`, which here is the generator's own and also
    C.

    Once exited, the context can be entered again with the generator that `again` makes. Raises
    TraceError if it is still open.
    """

    def __init__(self, generator: Block, again: Callable[[], Block] | None = None) -> None:
        self._again = again
        self._take(generator)

    def _take(self, generator: Block) -> None:
        self.generator = generator
        self.close = generator.close  # type: ignore[attr-defined]

    def __enter__(self) -> Any:
        state = inspect.getgeneratorstate(self.generator)
        if state == inspect.GEN_CLOSED and self._again is not None:
            self._take(self._again())
        elif state != inspect.GEN_CREATED:
            _refuse_open()
        for value in self.generator:
            return value  # not `next`: that would be a call, after which Python checks for signals


def _refuse_open() -> NoReturn:
    fail(
        TraceError,
        "a context was entered again while it is open",
        source=here(),
        fix="make another one for the inner `with` block",
    )


def context(function: Callable[P, Block]) -> Callable[P, Context]:
    """Makes a generator function return contexts, as `contextlib.contextmanager` does."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Context:
        make = functools.partial(function, *args, **kwargs)
        return Context(make(), make)

    return made


class Exit:
    """The `__exit__` of a class whose blocks are those of a generator: `entry` returns the Context
    of the open block, or of the next one."""

    def __init__(self, entry: Callable[[Any], Context]) -> None:
        self._entry = entry

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., None]:
        # Python looks this up before it enters, when there is nothing to lose yet.
        return self._of_class if instance is None else self._entry(instance).__exit__

    def _of_class(self, instance: Any, *exception: Any) -> None:
        self._entry(instance).__exit__(*exception)
