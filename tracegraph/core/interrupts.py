"""Code that Python runs between two instructions of other code.

Signal handlers, finalizers and callbacks of weak references run on the stack of whatever they
interrupt. A function that is being traced must not take their operations for its own, so whoever
asks for the current builder of a trace looks at the frames between.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from gc import disable, enable, isenabled
from types import CodeType, FrameType
from typing import Any, TypeVar, TypeVarTuple

from tracegraph.core.source import is_ours

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

#: Code that only a finalizer runs.
_FINALIZERS = frozenset([weakref.finalize.__call__.__code__])


def is_interrupt(frame: FrameType) -> bool:
    """Whether Python itself called the function of `frame`, and not the code below it.

    Python gives a signal handler the frame that it interrupts, and a callback of a weak reference
    the reference, which is dead by then; `__del__` is known by its name.
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
    """Whether an interrupt raised `error`. What was interrupted must not take it for its own: it
    ends there, as in plain Python, and nothing is tried once more."""
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if not is_ours(frame.f_code.co_filename) and is_interrupt(frame):
            return True
        step = step.tb_next
    return False


def _parameter_count(code: CodeType) -> int:
    """How many of the first local variables of a function are its parameters by position."""
    # Keyword-only parameters stand between those by position and *args.
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_argcount + (code.co_kwonlyargcount + 1 if has_varargs else 0)


def _is_dead(value: Any) -> bool:
    return type(value) is weakref.ReferenceType and value() is None


class Stack:
    """The frames of a computation, from the one where it began: tells its own code from an
    interrupt.

    The innermost frame of the user is remembered, so most questions end at their first frame.
    """

    __slots__ = ("_base", "_known", "is_left")

    def __init__(self, base: FrameType) -> None:
        self._base = base
        self._known: FrameType = base
        #: Whether the computation was found to be over: who asked stands on other frames.
        self.is_left = False

    def is_interrupted_by(self, frame: FrameType | None) -> bool:
        """Whether `frame`, which is running, belongs to an interrupt of the computation."""
        base, known = self._base, self._known
        innermost: FrameType | None = None
        while frame is not None and frame is not known and frame is not base:
            if not is_ours(frame.f_code.co_filename):
                if is_interrupt(frame):
                    return True
                innermost = innermost or frame
            frame = frame.f_back
        if frame is None:
            self.is_left = True
        elif innermost is not None:
            self._known = innermost
        return False


# The garbage collector.

#: Before Python 3.12 the collector, which calls finalizers and lets signal handlers in, may run
#: wherever C makes an object; since then it runs between instructions only. JAX notes the frames of
#: each run in one array for each thread, and makes objects meanwhile: a run by a finalizer or a
#: handler in between overwrites the array, and code objects that are in use are freed. So there
#: nothing may be collected while JAX runs.
COLLECTS_IN_C = sys.version_info < (3, 12)


def uncollected(function: Callable[[*Arguments], T]) -> Callable[[*Arguments], T]:
    """The function, during which nothing is collected where that would run inside of C."""
    if not COLLECTS_IN_C:
        return function

    def run(*args: *Arguments) -> T:
        if not isenabled():
            return function(*args)
        try:
            disable()
            return function(*args)
        finally:
            enable()

    run.__doc__ = function.__doc__
    return run
