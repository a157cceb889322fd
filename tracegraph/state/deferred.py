"""Values that wait for what does not exist yet.

A restored checkpoint may hold values of Variables that are made later: when a layer is called
first, when an optimizer takes its first step, when an attribute is assigned. The owner of such a
place announces that it has something new, and whoever waits for it looks what that is.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class Waiting(Protocol):
    """Something that waits for the parts of an owner."""

    def resume(self, kept_for: Any) -> None:
        """Looks what the owner has now; see `announce`."""
        ...


#: Owners by identity, each with those who wait for it; empty most of the time.
waiting: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}


def wait(owner: Any, record: Waiting) -> None:
    """Resumes `record` at every announcement of `owner`, for as long as the owner lives."""
    number = id(owner)
    if number not in waiting:

        def forget(_: Any) -> None:
            waiting.pop(number, None)

        waiting[number] = (weakref.ref(owner, forget), [])
    waiting[number][1].append(record)


def records(owner: Any) -> list[Any]:
    """Those who wait for `owner`, in the order in which they began."""
    found = waiting.get(id(owner))
    return list(found[1]) if found is not None else []


def stop(owner: Any, record: Waiting) -> None:
    """Ends the waiting of `record`."""
    found = waiting.get(id(owner))
    if found is not None and record in found[1]:
        found[1].remove(record)
        if not found[1]:
            del waiting[id(owner)]


def announce(owner: Any, kept_for: Any = None) -> None:
    """Tells those who wait for `owner` that it has something new: an attribute, or what it keeps
    for the Variable `kept_for`."""
    for record in records(owner):
        record.resume(kept_for)
