"""Tracebacks of errors that leave a function: the user's frames, without ours between them.

A bare `raise` adds no entry for its own frame, and hands on the traceback that the error has then.
So whoever catches an error trims its traceback and lets it go by a bare `raise`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from tracegraph import source
from tracegraph.errors import (
    DTypeError,
    GradientError,
    LoadError,
    LoweringError,
    ShapeError,
    TraceError,
)
from tracegraph.ir.builder import current
from tracegraph.runtime.boundary import explaining, misfit

_PACKAGE = os.path.dirname(os.path.abspath(source.__file__))
_OURS = (_PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "lowering") + os.sep)
_KINDS = (DTypeError, GradientError, LoadError, LoweringError, ShapeError, TraceError)


class _Settings:
    is_filtering = True


_settings = _Settings()


def enable_traceback_filtering() -> None:
    """Leaves tracegraph's own frames out of the tracebacks of errors in a `@tg.function`."""
    _settings.is_filtering = True


def disable_traceback_filtering() -> None:
    """Leaves tracebacks as they are, with the frames of tracegraph: for those who work on it."""
    _settings.is_filtering = False


def is_traceback_filtering_enabled() -> bool:
    """Whether tracegraph's own frames are left out of tracebacks, as they are by default."""
    return _settings.is_filtering


Door = TypeVar("Door", bound=Callable[..., Any])


def door(function: Door) -> Door:
    """The function, whose errors leave tracegraph with the user's frames alone, as those of calls
    of functions do."""

    @explaining
    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            refusal = misfit(function, args, kwargs, error)
            if refusal is None:
                if current().is_top_level:  # others leave through the call that is being traced
                    leave_out_our_frames(error)
                raise
        try:
            raise refusal
        except TraceError:
            refusal.__traceback__ = None
            raise

    return entered  # type: ignore[return-value]


def asked(getter: Door) -> Door:
    """A `__getattr__`, or a `__get__`, that refuses names: its errors have the user's frames."""

    @functools.wraps(getter)
    def __getattr__(*args: Any) -> Any:
        try:
            return getter(*args)
        except AttributeError as error:
            leave_out_our_frames(error)
            raise

    return __getattr__  # type: ignore[return-value]


def leave_out_our_frames(error: Exception) -> None:
    """Leaves the user's frames alone in the traceback of an error, which is raised again then.

    An error that is ours to mend, none that says what the user did, keeps them all.
    """
    frames = list(_frames(error.__traceback__))
    if not _settings.is_filtering or not frames:
        return
    if _is_ours(frames[-1]) and not _is_about_the_user(error, frames):
        return
    found: TracebackType | None = None
    for at in reversed(frames):
        if not _is_ours(at):
            found = TracebackType(found, at.tb_frame, at.tb_lasti, at.tb_lineno)
    error.__traceback__ = found


def _is_about_the_user(error: Exception, frames: list[TracebackType]) -> bool:
    """Whether an error that we raised says what the user did, as what `fail` raises does, and what
    says that there is no such attribute to whoever asks for one."""
    if isinstance(error, _KINDS) or hasattr(error, "fact"):
        return True
    ours = list(itertools.takewhile(_is_ours, reversed(frames)))
    if isinstance(error, AttributeError):
        return ours[-1].tb_frame.f_code.co_name == "__getattr__"
    return isinstance(error, TypeError) and _is_misfit_of_the_users(str(error), ours[0].tb_frame)


#: How Python refuses a call, by the function's name in its class or module.
_MISFIT = re.compile(r"(.+?)\(\) (?:missing|takes|got) ")


def _is_misfit_of_the_users(text: str, frame: FrameType) -> bool:
    """Whether a frame of ours called a function of the user's that does not take what it is given,
    such as a `call` without the inputs."""
    match = _MISFIT.match(text)
    if match is None:
        return False
    name = match[1].rpartition(".")[2]
    for value in frame.f_locals.values():
        own = getattr(value, "__dict__", {}).values()
        for found in (value, *own, inspect.getattr_static(value, name, None)):
            function = inspect.unwrap(getattr(found, "__func__", found))
            if isinstance(function, FunctionType) and function.__qualname__ == match[1]:
                return not _is_in_the_house(function.__code__.co_filename)
    return False


def _frames(at: TracebackType | None) -> Iterator[TracebackType]:
    while at is not None:
        yield at
        at = at.tb_next


def _is_ours(at: TracebackType) -> bool:
    return _is_in_the_house(at.tb_frame.f_code.co_filename)


def _is_in_the_house(file: str) -> bool:
    return os.path.abspath(file).startswith(_OURS)
