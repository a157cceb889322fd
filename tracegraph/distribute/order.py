"""What processes do one after another, compared while they go on.

Programs whose arrays are divided among processes must run in all of them, in the same order.
Otherwise some processes wait for ever, or exchange data with the wrong program. To compare before
each run would cost more than the run. So each process keeps a log of what it does, a thread sends
the log to the first process every second, and that one finds the first difference.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Follows the last entry of a log if that was refused, and did not take place.
_REFUSED = ""


class ActionLog:
    """What this process has done since it was last told: the kind of each thing, in order."""

    def __init__(self) -> None:
        #: Only ever changed by single calls into C: threads and signal handlers append to it.
        self.done: list[str] = []
        #: What each kind is in words, and what was told of it last.
        self.words: dict[str, str] = {}
        self._told: dict[str, str] = {}

    def note(self, kind: str, words: str) -> None:
        """Notes a thing that is done now."""
        self.words[kind] = words
        self.done.append(kind)

    def take_back(self) -> None:
        """Notes that the last thing was refused."""
        self.done.append(_REFUSED)

    def taken(self) -> dict[str, Any]:
        """What was done since the last call, and what of it is new in words. Call it from one
        thread at a time."""
        done = self.done[: len(self.done)]
        del self.done[: len(done)]
        known = ((kind, self.words[kind]) for kind in {*done} - {_REFUSED})
        words = {kind: told for kind, told in known if self._told.get(kind) != told}
        self._told.update(words)
        return {"done": done, "words": words}


class FirstDifference(NamedTuple):
    """The first things that two processes did not do alike, in words, and how many all did before
    them."""

    first: int
    told: str
    second: int
    other: str
    common: int


class Order:
    """What all processes have done, from the first thing on that not all have gone beyond."""

    def __init__(self, count: int) -> None:
        self._done: list[deque[str]] = [deque() for _ in range(count)]
        self._words: list[dict[str, str]] = [{} for _ in range(count)]
        #: How many things all have done alike before these.
        self._common = 0
        self._lock = threading.Lock()

    def add(
        self, process: int, done: Iterable[str], words: Mapping[str, str]
    ) -> FirstDifference | None:
        """Adds what a process has done. Returns the first difference, if there is one now."""
        with self._lock:
            self._words[process].update(words)
            own = self._done[process]
            for kind in done:
                own.append(kind) if kind != _REFUSED else own.pop()
            return self._difference()

    def _difference(self) -> FirstDifference | None:
        while True:
            begun = [i for i, each in enumerate(self._done) if each]
            other = next((i for i in begun if self._done[i][0] != self._done[begun[0]][0]), None)
            if other is not None:
                told = (self._words[i][self._done[i][0]] for i in (begun[0], other))
                return FirstDifference(begun[0], next(told), other, next(told), self._common)
            # The last thing that any of them did stays, since it may still be taken back.
            if not all(len(each) > 1 for each in self._done):
                return None
            for each in self._done:
                each.popleft()
            self._common += 1
