"""Tables of bounded size: one evicts the least recently used entries, the other clears itself.

They have no lock. Each step is one call into C, which neither another thread nor a signal handler
can split, so code that interrupts a look-up may itself look up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from tracegraph.core.interrupts import outside_interrupts

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """At most `limit` values by key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Key]:
        """A snapshot of the keys."""
        return iter(list(self._kept))

    def get(self, key: Key) -> Value | None:
        """The value of `key`, marked as used; None if there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._touch(key)
        return found

    def put(self, key: Key, value: Value) -> None:
        """Keeps `value` under `key`."""
        self._kept[key] = value
        self._touch(key)
        self._drop()

    def setdefault(self, key: Key, value: Value) -> Value:
        """The value of `key`, which is `value` if there was none."""
        found = self._kept.setdefault(key, value)
        self._touch(key)
        self._drop()
        return found

    def _touch(self, key: Key) -> None:
        try:
            self._kept.move_to_end(key)
        except outside_interrupts(KeyError):
            # Evicted in between, by another thread or an interrupt.
            return

    def _drop(self) -> None:
        while len(self._kept) > self._limit:
            try:
                self._kept.popitem(last=False)
            except outside_interrupts(KeyError):
                return


class Memo(dict[Key, Value]):
    """A dict that is cleared before it exceeds `limit` keys: its values can be recomputed. Reads
    are as fast as a dict's."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int = 4096) -> None:
        super().__init__()
        self._limit = limit

    def remember(self, key: Key, value: Value) -> Value:
        """Keeps `value` under `key`, and returns it."""
        if len(self) >= self._limit:
            self.clear()
        self[key] = value
        return value
