"""Contexts that are left whatever strikes.

Python looks for signals where a function begins. A handler that raises there, where `__exit__` is
a function of Python, has left the block without its exit: a tape would record for ever. Here a
`with` block is left by C alone, down to the `finally` of a generator, into which Python falls
without a look for signals. The first steps there must be plain stores or calls of C, and then all
is as it was before anything may strike again.
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
    """The context of a generator that yields once, in a `try` with a `finally`.

    What is derived of `IOBase` is left by its `__exit__`, which is written in C and calls `close`:
    here that of the generator, which is C too.

    Once it was left, it is entered again with what `again` makes. Raises TraceError for one that
    is open.
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
            return value  # `next` would be a call, behind which Python looks for signals


def _refuse_open() -> NoReturn:
    fail(
        TraceError,
        "a context was entered again while it is open",
        source=here(),
        fix="make another one for the inner `with` block",
    )


def context(function: Callable[P, Block]) -> Callable[P, Context]:
    """Makes a generator function one that returns contexts, as `contextlib.contextmanager` does."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Context:
        make = functools.partial(function, *args, **kwargs)
        return Context(make(), make)

    return made


class Exit:
    """The `__exit__` of a class whose blocks are those of a generator: `entry` returns the Context
    of the block that is open, or of the next one."""

    def __init__(self, entry: Callable[[Any], Context]) -> None:
        self._entry = entry

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., None]:
        # Python asks for it before it enters, when nothing is lost yet.
        return self._of_class if instance is None else self._entry(instance).__exit__

    def _of_class(self, instance: Any, *exception: Any) -> None:
        self._entry(instance).__exit__(*exception)
