"""Whether what is being traced is converted, for what calls functions of the user's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracegraph.autograph import operators as operators  # it fills the hooks
from tracegraph.autograph.conversion import converted, is_straight


class _Thread(threading.local):
    def __init__(self) -> None:
        self.converts = False


_thread = _Thread()


@contextlib.contextmanager
def converting(converts: bool) -> Iterator[None]:
    """A context in which the functions that are called are converted, or not."""
    outer, _thread.converts = _thread.converts, converts
    try:
        yield
    finally:
        _thread.converts = outer


def converted_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as what is being traced calls it."""
    return converted(function) if _thread.converts else function


def converted_for(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function as it is called with these arguments; itself where there is nothing to convert,
    which is told sooner than converting takes."""
    if not _thread.converts or is_straight(function, arguments):
        return function
    return converted(function)
