"""Which form of a rule a program gets, where the rule has several for the kinds of devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from jax import lax
from jax.extend.backend import backends


class _Thread(threading.local):
    #: Whether what this thread traces runs in this process.
    runs_here = False


_thread = _Thread()


def by_device(*xs: Any, default: Callable[..., Any], **forms: Callable[..., Any]) -> Any:
    """What the form for the device computes from the arrays: of `forms`, by the names of JAX's
    platforms, or the default.

    Where only CPUs can run the program, only theirs is traced. JAX traces the others too, since it
    knows the device later, and they may be large; and it leaves the choice in the program.
    """
    if _thread.runs_here and _has_only_cpus():
        return forms.get("cpu", default)(*xs)
    return lax.platform_dependent(*xs, default=default, **forms)


def for_this_process(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function for JAX to trace, whose program runs in this process and is not exported."""

    @functools.wraps(run)
    def traced(*arrays: Any) -> Any:
        before = _thread.runs_here
        _thread.runs_here = True
        try:
            return run(*arrays)
        finally:
            _thread.runs_here = before

    return traced


@functools.cache
def _has_only_cpus() -> bool:
    return {*backends()} == {"cpu"}
