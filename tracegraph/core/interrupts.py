"""Code that Python runs between two instructions of other code.

Signal handlers, finalizers and weak-reference callbacks run on the stack of the code that they
interrupt. A trace must not record their operations as its own, so looking up a trace's builder
inspects the frames in between.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from gc import disable, enable, isenabled
from types import CodeType, FrameType
from typing import Any, TypeVar, TypeVarTuple

from tracegraph.core.source import is_ours, ours_by_file

Arguments = TypeVarTuple("Arguments")
E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

#: Code that only a finalizer runs.
_FINALIZERS = frozenset([weakref.finalize.__call__.__code__])


def is_interrupt(frame: FrameType) -> bool:
    """Whether Python itself called the function of `frame`, rather than the code below it.

    A signal handler receives the frame that it interrupts; a weak-reference callback receives the
    reference, which is dead by then; `__del__` is recognised by its name.
    """
    code = frame.f_code
    if code.co_name == "__del__" or code in _FINALIZERS:
        return True
    count = _parameter_count(code)
    if not count:
        return False
    local, below = frame.f_locals, frame.f_back
    given = [local.get(name) for name in code.co_varnames[:count]]
    packed = given[-1] if code.co_flags & inspect.CO_VARARGS else None
    if isinstance(packed, tuple):
        given.extend(packed)
    return any(value is below or _is_dead(value) for value in given)


def is_of_interrupt(error: BaseException) -> bool:
    """Whether an interrupt raised `error`. The interrupted code must not treat it as its own
    failure: the error propagates, as in plain Python, and nothing is retried."""
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if not is_ours(frame.f_code.co_filename) and is_interrupt(frame):
            return True
        step = step.tb_next
    return False


def outside_interrupts(*kinds: type[E]) -> tuple[type[E], ...]:
    """These exceptions in an `except` clause, unless an interrupt raised the one at hand."""
    error = sys.exception()
    return () if isinstance(error, kinds) and is_of_interrupt(error) else kinds


def _parameter_count(code: CodeType) -> int:
    """How many of the first local variables of a function are positional parameters."""
    # Keyword-only parameters come between the positional ones and *args.
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_argcount + (code.co_kwonlyargcount + 1 if has_varargs else 0)


def _is_dead(value: Any) -> bool:
    return type(value) is weakref.ReferenceType and value() is None


class Stack:
    """The frames of a computation, starting from its first: tells its own code from an interrupt.

    Remembers the user's innermost frame, so that most queries stop at their first frame.
    """

    __slots__ = ("_base", "_known", "is_left")

    def __init__(self, base: FrameType) -> None:
        self._base = base
        self._known: FrameType = base
        #: Whether the computation is known to be over: a caller was found on other frames.
        self.is_left = False

    def is_interrupted_by(self, frame: FrameType | None) -> bool:
        """Whether `frame`, which is running, belongs to an interrupt of the computation."""
        base, known = self._base, self._known
        innermost: FrameType | None = None
        while frame is not None and frame is not known and frame is not base:
            file = frame.f_code.co_filename  # hot path: every node comes through here
            if not (ours_by_file[file] if file in ours_by_file else is_ours(file)):
                if is_interrupt(frame):
                    return True
                innermost = innermost or frame
            frame = frame.f_back
        if frame is None:
            self.is_left = True
        elif innermost is not None:
            self._known = innermost
        return False


class Disturbed(Exception):
    """A run that must be atomic was not begun, since an interrupt could strike in it."""


# The garbage collector.

#: Before Python 3.12 the collector, which calls finalizers and lets signal handlers in, could run
#: wherever C creates an object; since then it runs only between instructions. JAX records the
#: frames of each run in one array per thread and allocates objects meanwhile: a run started by a
#: finalizer or handler in between overwrites the array, and code objects still in use are freed. So
#: on those versions collection must be off while JAX runs.
COLLECTS_IN_C = sys.version_info < (3, 12)


def uncollected(function: Callable[[*Arguments], T]) -> Callable[[*Arguments], T]:
    """The function, run with collection off on versions where the collector may run inside C."""
    if not COLLECTS_IN_C:
        return function

    def run(*args: *Arguments) -> T:
        return call_uncollected(function, args)

    run.__doc__ = function.__doc__
    return run


def call_uncollected(function: Callable[[*Arguments], T], arguments: tuple[*Arguments]) -> T:
    """The result of the function, called as `uncollected` functions are."""
    if not (COLLECTS_IN_C and isenabled()):
        return function(*arguments)
    try:
        disable()
        return function(*arguments)
    finally:
        enable()
