"""When Python's garbage collector may run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from gc import disable, enable, isenabled
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

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
