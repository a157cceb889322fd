"""Calls that change a list, or advance an iterator, that the code of a statement has from outside.

The statement is traced once, so such a change would happen once, whatever the tensors are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from tracegraph import nest
from tracegraph.autograph.staging import ListGrows, is_in_loop, thread
from tracegraph.autograph.state_values import is_carried
from tracegraph.errors import SignatureError, fail
from tracegraph.tensor_arrays.tensor_array import TensorList


def list_append(items: Any, value: Any) -> Any:
    """The list after `items.append(value)`. One that a loop of the graph carries is an array."""
    if isinstance(items, TensorList):
        return items.appended(value)
    if type(items) is list:
        if is_carried(value) and is_in_loop(items):
            raise ListGrows(items, value)
        if any(map(is_carried, nest.flatten(value))):
            refuse_change(items.append)
    items.append(value)
    return items


def list_extend(items: Any, values: Any) -> Any:
    """The list after `items.extend(values)`."""
    if not isinstance(items, (TensorList, list)):
        items.extend(values)
        return items
    for value in [*values]:
        items = list_append(items, value)
    return items


def list_insert(items: Any, place: Any, value: Any) -> Any:
    """The list after `items.insert(place, value)`."""
    if type(items) is list and any(map(is_carried, nest.flatten(value))):
        refuse_change(items.insert)
    items.insert(place, value)
    return items


def refuse_change(method: Any) -> None:
    """Raises SignatureError if a method would change a list from outside the branch or body being
    traced."""
    for own in thread.entered:
        if id(method.__self__) in own.held:
            refuse(method, is_loop=own.kind == "a loop")


def refuse(method: Any, is_loop: bool, source: Any = None) -> NoReturn:
    """Raises the SignatureError for a method that changes a list in a loop or a branch."""
    where = "a loop" if is_loop else "a branch"
    fail(
        SignatureError,
        f".{method.__name__}() changes a list in {where} that a tensor decides about; it "
        "is traced once, and the list is Python's",
        source=source,
        fix="write to a tg.TensorArray, or let tg.scan stack what each step returns"
        if is_loop
        else "set a name in both branches, and change the list after them",
    )


def check_advance(iterated: Any) -> None:
    """Raises SignatureError if `iterated` is an iterator from outside the branch or body being
    traced."""
    for own in thread.entered if isinstance(iterated, Iterator) else ():
        if id(iterated) in own.held:
            thread.advanced += 1
            if own.kind:
                refuse_advance(own.kind)


def refuse_advance(kind: str) -> NoReturn:
    """Raises the SignatureError for an iterator that "a loop" or "a branch" advances."""
    fail(
        SignatureError,
        f"Python's iterator is advanced in {kind} that a tensor decides about; it is traced "
        "once, so it takes one item, whatever the tensor is",
        fix="loop over the items themselves, as a tensor: for x in tg.stack(items); or index it: "
        "items[i]"
        if kind == "a loop"
        else "take the item before the `if`",
    )
