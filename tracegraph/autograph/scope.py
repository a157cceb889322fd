"""Whether the current trace converts the user's functions that it calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracegraph.autograph import hooks as hooks  # fills the hooks
from tracegraph.autograph.function_conversion import converted, is_straight


class _Conversion(threading.local):
    def __init__(self) -> None:
        self.converts = False


_thread = _Conversion()


@contextlib.contextmanager
def converting(converts: bool) -> Iterator[None]:
    """A context in which called functions are converted, or not."""
    outer, _thread.converts = _thread.converts, converts
    try:
        yield
    finally:
        _thread.converts = outer


def converted_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the current trace calls it."""
    return converted(function) if _thread.converts else function


def converted_for(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function as called with these arguments; itself if there is nothing to convert, which is
    faster to find out than converting."""
    if not _thread.converts or is_straight(function, arguments):
        return function
    return converted(function)
