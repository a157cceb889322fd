"""Values that wait for objects that do not exist yet.

A restored checkpoint may hold values for Variables that are created later: when a layer is first
called, when an optimizer takes its first step, when an attribute is assigned. The owner announces
each addition, and whatever waits for the owner looks at it again.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class Waiting(Protocol):
    """Something that waits for the parts of an owner."""

    def resume(self, kept_for: Any) -> None:
        """Examines the owner's present parts; see `announce`."""
        ...


#: Owners by identity, each with the records that wait for it; empty most of the time.
waiting: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}


def wait(owner: Any, record: Waiting) -> None:
    """Calls `record.resume` at every announcement of `owner`, for as long as the owner lives."""
    number = id(owner)
    if number not in waiting:

        def forget(_: Any, table: dict[int, Any] = waiting) -> None:
            table.pop(number, None)  # not by its name, which is None when Python ends

        waiting[number] = (weakref.ref(owner, forget), [])
    waiting[number][1].append(record)


def records(owner: Any) -> list[Any]:
    """The records that wait for `owner`, in the order in which they started."""
    found = waiting.get(id(owner))
    return list(found[1]) if found is not None else []


def stop(owner: Any, record: Waiting) -> None:
    """Stops `record` from waiting for `owner`."""
    found = waiting.get(id(owner))
    if found is not None and record in found[1]:
        found[1].remove(record)
        if not found[1]:
            del waiting[id(owner)]


def announce(owner: Any, kept_for: Any = None) -> None:
    """Tells the records that wait for `owner` that it has something new: an attribute, or a slot
    for the Variable `kept_for`."""
    for record in records(owner):
        record.resume(kept_for)
