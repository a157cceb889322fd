"""Headroom for frames: our own nesting does not count towards Python's recursion limit.

Tracing a function inside another adds one frame of the user's to the stack and a dozen of ours;
deriving from nested graphs adds only ours. Python limits recursion to stop what would not
terminate. So our frames make room for themselves: while they are open, the limit is raised by
their number, and traced functions nest as deep as plain Python ones.

Since Python 3.11, calls between Python functions use no C stack, which is what the limit guarded.
Calls through C, of which our frames make few, still do; so the increase is bounded, which also
stops infinite recursion through functions of ours.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

from tracegraph.core.source import is_ours
from tracegraph.core.worker_thread import entered, shared_lock

#: The most that the limit is raised by: on Python 3.11 this many frames of ours take less than a
#: quarter of an 8 MB C stack. Later versions limit calls through C separately.
_MOST = 20_000
#: Python 3.11 also counts calls through C, such as calling an object, so some of our frames count
#: twice.
_WEIGHT = 1.25 if sys.version_info < (3, 12) else 1.0


class _OpenHeadroom(threading.local):
    #: This thread's innermost frame with headroom, and by how much the thread raised the limit.
    frame: FrameType | None = None
    raised: int = 0


_open = _OpenHeadroom()
#: The limit is global to the process, and so is the amount it was raised by.
_lock = shared_lock()
_raised = 0


class headroom:
    """A context in which our frames on the stack do not count as recursion."""

    __slots__ = ("_before", "_outer")

    def __enter__(self) -> None:
        self._outer, frames = _counted_above(_open.frame)
        # If an interrupt struck in an exit, the next headroom undoes what it left behind.
        self._before = 0 if self._outer is None else _open.raised
        _raise_to(self._before + int(_WEIGHT * frames))
        _open.frame = sys._getframe(1)

    def __exit__(self, *exception: object) -> None:
        _open.frame = self._outer
        _raise_to(self._before)


def _counted_above(base: FrameType | None) -> tuple[FrameType | None, int]:
    """How many frames of ours are on the stack above `base`, which has room for those below; if
    `base` is not on the stack, it is returned as None."""
    count = 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not base:
        count += is_ours(frame.f_code.co_filename)
        frame = frame.f_back
    return frame, count


def _raise_to(frames: int) -> None:
    """Sets this thread's raise of the limit to `frames`, within the cap on all threads together.

    Only the difference is added: other threads raise the limit too, and so may the user.
    """
    global _raised
    with entered(_lock):
        change = min(frames - _open.raised, _MOST - _raised)
        sys.setrecursionlimit(sys.getrecursionlimit() + change)
        _raised += change
        _open.raised += change


def recursion_limit() -> int:
    """Python's recursion limit as the user set it, without the room for our frames."""
    return sys.getrecursionlimit() - _raised
