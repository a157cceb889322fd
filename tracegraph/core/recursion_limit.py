"""Headroom for frames: what of ours is nested does not count towards Python's recursion limit.

A function that is traced inside another adds one frame of the user's to the stack, and a dozen of
ours; what is derived of nested graphs adds frames of ours alone. Python bounds recursion to end
what would not end by itself. So our frames make room for themselves: the limit is raised by their
number while they are open, and functions of ours nest as deep as plain ones of Python do.

Since Python 3.11 calls between Python functions need no C stack, which the limit guarded. Those
through C, of which our frames make few, do; so what is added is bounded, which also ends recursion
through functions of ours.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

from tracegraph.core.source import is_ours
from tracegraph.core.worker_thread import entered, shared_lock

#: The most that the limit is raised by: on Python 3.11 this many frames of ours take less than a
#: quarter of a C stack of 8 MB. Later ones count calls through C by themselves.
_MOST = 20_000
#: Python 3.11 counts calls through C too, such as that of an object: so some of our frames count
#: twice.
_WEIGHT = 1.25 if sys.version_info < (3, 12) else 1.0


class _Open(threading.local):
    #: The frame of the innermost headroom on this thread, and what this thread raised the limit by.
    frame: FrameType | None = None
    raised: int = 0


_open = _Open()
#: The limit is one for the process, and so is what it is raised by.
_lock = shared_lock()
_raised = 0


class headroom:
    """A context in which the frames of ours that are on the stack do not count as recursion."""

    __slots__ = ("_before", "_outer")

    def __enter__(self) -> None:
        self._outer, frames = _counted_above(_open.frame)
        # What an interrupt left behind, where it fell into an exit, ends with the next headroom.
        self._before = 0 if self._outer is None else _open.raised
        _raise_to(self._before + int(_WEIGHT * frames))
        _open.frame = sys._getframe(1)

    def __exit__(self, *exception: object) -> None:
        _open.frame = self._outer
        _raise_to(self._before)


def _counted_above(base: FrameType | None) -> tuple[FrameType | None, int]:
    """How many frames of ours are on the stack above `base`, which has room for those below; a
    base that is not on the stack is None."""
    count = 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not base:
        count += is_ours(frame.f_code.co_filename)
        frame = frame.f_back
    return frame, count


def _raise_to(frames: int) -> None:
    """Lets this thread raise the limit by `frames`, or by what all threads together may.

    The difference is what is added: other threads raise it too, and the user may.
    """
    global _raised
    with entered(_lock):
        change = min(frames - _open.raised, _MOST - _raised)
        sys.setrecursionlimit(sys.getrecursionlimit() + change)
        _raised += change
        _open.raised += change


def recursion_limit() -> int:
    """Python's recursion limit as it is set, without the room for our frames."""
    return sys.getrecursionlimit() - _raised
