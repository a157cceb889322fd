"""Tracebacks of errors that leave a function: only the user's frames, without ours in between.

A bare `raise` adds no entry for its own frame, and keeps the error's current traceback. So code
that catches an error trims its traceback and re-raises it by a bare `raise`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from tracegraph.boundary.argument_errors import label_of, misfit
from tracegraph.core.source import PACKAGE
from tracegraph.errors import (
    DTypeError,
    GradientError,
    LoadError,
    LoweringError,
    ShapeError,
    TraceError,
    is_too_large,
    tell_who_was_called,
)
from tracegraph.ir.builder import current

_OURS = (PACKAGE + os.sep, os.path.join(os.path.dirname(PACKAGE), "lowering") + os.sep)
#: Python modules whose frames appear between functions of ours.
_AROUND = (contextlib.__file__, functools.__file__)
_KINDS = (DTypeError, GradientError, LoadError, LoweringError, ShapeError, TraceError)


class _TracebackSettings:
    is_filtering = True


_settings = _TracebackSettings()


def enable_traceback_filtering() -> None:
    """Leaves tracegraph's own frames out of the tracebacks of errors in a `@tg.function`."""
    _settings.is_filtering = True


def disable_traceback_filtering() -> None:
    """Leaves tracebacks unchanged, with tracegraph's frames: for developers of tracegraph."""
    _settings.is_filtering = False


def is_traceback_filtering_enabled() -> bool:
    """Whether tracegraph's own frames are left out of tracebacks (the default)."""
    return _settings.is_filtering


PublicFunction = TypeVar("PublicFunction", bound=Callable[..., Any])


def api_boundary(function: PublicFunction) -> PublicFunction:
    """The function, whose errors leave tracegraph with only the user's frames, as those of function
    calls do. A call that does not fit its parameters raises the error of `misfit`."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            refusal = misfit(entered, args, kwargs, error)
            if refusal is None:
                if is_too_large(error):
                    tell_who_was_called(error, label_of(entered, args))
                leave_out_our_frames_at_top_level(error)
                raise
        try:
            raise refusal
        except TraceError:
            refusal.__traceback__ = None
            raise

    return entered  # type: ignore[return-value]


def is_api_boundary(function: FunctionType) -> bool:
    """Whether `api_boundary` made a function."""
    return function.__code__ is _API_BOUNDARY


_API_BOUNDARY = api_boundary(lambda: None).__code__


def asked(getter: PublicFunction) -> PublicFunction:
    """A `__getattr__`, `__get__` or `__getitem__` that refuses names or keys: its errors show only
    the user's frames."""

    @functools.wraps(getter)
    def __getattr__(*args: Any) -> Any:
        try:
            return getter(*args)
        except (AttributeError, LookupError) as error:
            leave_out_our_frames(error)
            raise

    return __getattr__  # type: ignore[return-value]


def unary_operator(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """An operator of one operand, whose errors show only the user's frames. It takes one argument,
    so that a call costs less than through `api_boundary`."""

    @functools.wraps(function)
    def operator(x: Any) -> Any:
        try:
            return function(x)
        except BaseException as error:
            leave_out_our_frames_at_top_level(error)
            raise

    return operator


def binary_operator(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operator of two operands, like `unary_operator`."""

    @functools.wraps(function)
    def operator(x: Any, y: Any) -> Any:
        try:
            return function(x, y)
        except BaseException as error:
            leave_out_our_frames_at_top_level(error)
            raise

    return operator


def leave_out_our_frames_at_top_level(error: BaseException) -> None:
    """Like `leave_out_our_frames`; in a trace, errors leave through the call being traced."""
    if current().is_top_level:
        leave_out_our_frames(error)


def leave_out_our_frames(error: BaseException) -> None:
    """Keeps only the user's frames in the traceback of an error, which is then raised again.

    An error that is a bug of ours, rather than about what the user did, keeps them all.
    """
    frames = list(_frames(error.__traceback__))
    if not _settings.is_filtering or not frames:
        return
    users = _of_users(frames)
    ours = list(itertools.takewhile(lambda at: at not in users, reversed(frames)))
    if ours and not _is_about_the_user(error, ours):
        return
    vars(error)[_TOLD] = True  # the next boundary cannot see the frames left out here
    found: TracebackType | None = None
    for at in reversed(users):
        # A signal may strike at an instruction without a line.
        line = at.tb_lineno or at.tb_frame.f_code.co_firstlineno
        found = TracebackType(found, at.tb_frame, at.tb_lasti, line)
    error.__traceback__ = found


def _of_users(frames: list[TracebackType]) -> list[TracebackType]:
    """The frames that are neither ours nor Python's wrappers around our functions, such as a
    context manager's `__exit__` or a cached property."""
    users: list[TracebackType] = []
    is_ours = False
    for at in frames:
        is_ours = _is_ours(at) or (is_ours and at.tb_frame.f_code.co_filename in _AROUND)
        if not is_ours:
            users.append(at)
    return users


def _is_about_the_user(error: BaseException, ours: list[TracebackType]) -> bool:
    """Whether an error that we raised, in the last of our frames, is about what the user did: an
    error from `fail`, or one that an attribute or item does not exist."""
    if isinstance(error, _KINDS) or hasattr(error, "fact") or _TOLD in vars(error):
        return True
    if isinstance(error, (AttributeError, LookupError)):
        return ours[-1].tb_frame.f_code.co_name == "__getattr__"  # that of `asked`
    return isinstance(error, TypeError) and _is_misfit_of_the_users(str(error), ours[0].tb_frame)


#: The attribute that marks an error as being about what the user did.
_TOLD = "_is_about_the_user"

#: Python's message for a refused call, by the function's name in its class or module.
_MISFIT = re.compile(r"(.+?)\(\) (?:missing|takes|got) ")


def _is_misfit_of_the_users(text: str, frame: FrameType) -> bool:
    """Whether a frame of ours called a function of the user's that does not accept its arguments,
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
                return not _is_in_our_packages(function.__code__.co_filename)
    return False


def _frames(at: TracebackType | None) -> Iterator[TracebackType]:
    while at is not None:
        yield at
        at = at.tb_next


def _is_ours(at: TracebackType) -> bool:
    return _is_in_our_packages(at.tb_frame.f_code.co_filename)


def _is_in_our_packages(file: str) -> bool:
    return os.path.abspath(file).startswith(_OURS)
