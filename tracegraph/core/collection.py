"""When Python's garbage collector may run."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Before Python 3.12 the collector, which calls finalizers and lets signal handlers in, may run
#: wherever C makes an object; since then it runs between instructions only. JAX notes the frames of
#: each run in one array for each thread, and makes objects meanwhile: a run by a finalizer or a
#: handler in between overwrites the array, and code objects that are in use are freed. So there
#: nothing may be collected while JAX runs.
COLLECTS_IN_C = sys.version_info < (3, 12)


def uncollected(function: Callable[P, T]) -> Callable[P, T]:
    """The function, during which nothing is collected where that would run inside of C."""
    if not COLLECTS_IN_C:
        return function

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        was_enabled = gc.isenabled()
        try:
            gc.disable()
            return function(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return run
