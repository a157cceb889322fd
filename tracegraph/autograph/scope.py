"""The user's functions as traces call them: converted, unless the trace is of code that is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracegraph.autograph import hooks as hooks  # fills the hooks
from tracegraph.autograph.function_conversion import converted, is_straight
from tracegraph.control_flow.regions import set_converter, telling
from tracegraph.tracing.trace import current_trace


def converted_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the code being run calls it. At top level, where Python knows all values, it
    stays as it is."""
    trace = current_trace()
    return converted(function) if trace is not None and trace.converts else function


def as_traced(function: Callable[..., Any], arguments: Sequence[Any] = ()) -> Callable[..., Any]:
    """The function as the current trace, or one that begins at top level, calls it with these
    arguments; itself if there is nothing to convert, which is faster to find out than converting.
    """
    trace = current_trace()
    if trace is not None and not trace.converts:
        return function
    return function if is_straight(function, arguments) else converted(function)


def as_iteration(form: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function as the public function `form` traces it, once for all elements."""
    return telling(form, as_traced(function))


@contextlib.contextmanager
def not_converting() -> Iterator[None]:
    """A context in which the current trace converts nothing that it calls."""
    trace = current_trace()
    if trace is None:
        yield
        return
    outer, trace.converts = trace.converts, False
    try:
        yield
    finally:
        trace.converts = outer


set_converter(as_traced)
