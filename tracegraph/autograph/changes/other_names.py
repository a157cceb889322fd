"""Containers that may be one object: after an `if` in which one branch gives a name another list,
the name stands for that or for the one before, which may have other names.

A graph has a container of its own for such a name. A change of it in place is carried over to the
others, under the condition by which they are it, and the other way round. Where a condition was
known in a branch or a loop alone, what may have changed refuses to be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import getrefcount
from typing import Any, NamedTuple

from tracegraph import nest
from tracegraph.autograph.changes import containers
from tracegraph.autograph.changes.attributes import SlotTable
from tracegraph.autograph.changes.containers import Held, filled, put, table_of
from tracegraph.autograph.staging import Exits, chosen, negated
from tracegraph.autograph.state_values import SetUnlessLeft, Undefined, is_undefined, without_flags
from tracegraph.core.source import here
from tracegraph.eager.pending import COUNTS_ARE_TRUSTED
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.elementwise import LogicalAnd, LogicalOr
from tracegraph.tracing.trace import current_trace

#: Gives the condition by which two containers are one; None where it is not known.
Condition = Callable[[], Tensor | None]


def with_one_object_each(
    kept: Iterable[Any], pred: Tensor, given: list[tuple[Any, ...]], joined: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What the names of a state stand for after a choice, with one container where both branches
    end with one, whatever names and items it has. The containers `kept` were there before, and the
    last two of `given` are what the branches end with, the one where `pred` holds first."""
    one, other = given[-2:]
    given.clear()  # the regions keep the list, and nothing is to keep what is in it
    return tuple(map(_OneObjectEach(kept, pred).given, one, other, joined))


class _OneObjectEach:
    """The containers that are made for one choice."""

    def __init__(self, kept: Iterable[Any], pred: Tensor) -> None:
        self._made: dict[tuple[int, int], Any] = {(id(x), id(x)): x for x in kept}
        self._pred = pred

    def given(self, one: Any, other: Any, joined: Any) -> Any:
        """The joined value of what the branches end with."""
        if isinstance(joined, SetUnlessLeft):
            return replace(joined, value=self.given(one, other, joined.value))
        one, other = without_flags(one), without_flags(other)
        # Where a branch sets nothing, nothing is read.
        one, other = (other if is_undefined(one) else one), (one if is_undefined(other) else other)
        if isinstance(joined, tuple):
            if type(one) is type(other) is type(joined) and len(one) == len(other) == len(joined):
                make = getattr(joined, "_make", tuple)
                return make(map(self.given, one, other, joined))
            return joined
        tables = [table_of(x) for x in (one, other, joined)]
        if joined is one or any(x is None or isinstance(x, set) for x in tables):
            return self._made.get((id(one), id(other)), joined)
        if (id(one), id(other)) in self._made:
            return self._made[id(one), id(other)]
        self._made[id(one), id(other)] = joined
        if type(joined) is type(one) is type(other):
            self._join(*tables)
        return joined

    def _join(self, one: Any, other: Any, joined: Any) -> None:
        keys = _keys(joined) if len(one) == len(other) == len(joined) else ()
        for key in keys:
            joined[key] = self.given(one[key], other[key], joined[key])
        link(joined, one, _if(self._pred, True))
        link(joined, other, _if(self._pred, False))


def settle_after_loop(
    before: Sequence[Any], begun: Sequence[Any], ended: Sequence[Any], after: Sequence[Any]
) -> None:
    """Notes what the names of a loop's state may stand for after it: for what they stood for before
    it, or at the end of a step. A step begins with containers of its own."""
    outer = {id(own): table for own, table in _pairs(tuple(begun), tuple(before))}
    ways = [[*_pairs(tuple(after), tuple(x))] for x in (before, ended)]
    for table, own in itertools.chain(*ways):
        link(table, outer.get(id(own), own), lambda: None)
    if all(len({id(own) for _, own in pairs}) == len(pairs) for pairs in ways):
        _set_apart([table for table, _ in ways[0]])
    settle()


def _pairs(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """The containers at the same places of two values of one structure."""
    one, other = without_flags(one), without_flags(other)
    tables = [x if isinstance(x, tuple) else table_of(x) for x in (one, other)]
    if one is other or type(one) is not type(other) or tables[0] is None:
        return
    if not isinstance(one, (tuple, set)):
        yield tables[0], tables[1]
    for key in _keys(tables[0]) if _keys(tables[0]) == _keys(tables[1]) else ():
        yield from _pairs(tables[0][key], tables[1][key])


@dataclass(eq=False)
class _Watched:
    """A list, a deque, a dict, or the attributes of an object."""

    table: Any
    #: What was in it when its changes were last carried over.
    items: Any
    #: What may be the same object, with the conditions.
    others: dict[_Watched, Condition] = field(default_factory=dict)
    #: Those that have one of these in common are never one object.
    apart: set[object] = field(default_factory=set)

    @property
    def is_held(self) -> bool:
        """Whether anything but this has the container."""
        if isinstance(self.table, SlotTable):
            count = getrefcount(self.table.owner)
        else:
            count = getrefcount(self.table)
        return count > 2 or not COUNTS_ARE_TRUSTED

    @property
    def is_usable(self) -> bool:
        """Whether it has no tensors of a branch or a loop that is complete."""
        trace = current_trace()
        tensors = [x for x in nest.flatten(self.table) if isinstance(x, Tensor)]
        return trace is not None and all(map(trace.may_use, tensors))

    def look(self) -> _Change:
        """What has changed since the last look."""
        old, self.items = self.items, self.table.copy()
        return _Change.of(old, self.items)

    def take(self, change: _Change, new: Any, holds: Tensor | None) -> None:
        """Puts what changed in the container `new` into this one too, where the condition
        `holds`."""
        if change.is_of_items and holds is not None and _fits(change.keys, self.table):
            for key in change.keys:
                self.table[key] = _selected(holds, new[key], self.table[key])
        elif change.is_of_items and _fits(change.keys, self.table):
            for key in change.keys:
                self.table[key] = _unknown()
        else:
            put(self.table, filled(self.table or [None], _unknown()))
        self.items = self.table.copy()


class _Change(NamedTuple):
    #: The keys or indices whose values are others.
    keys: Sequence[Any]
    #: False if there are more or fewer items.
    is_of_items: bool = True

    @staticmethod
    def of(old: Any, new: Any) -> _Change:
        if len(old) != len(new) or (isinstance(new, dict) and old.keys() != new.keys()):
            return _Change((), False)
        return _Change([key for key in _keys(new) if old[key] is not new[key]])

    def __bool__(self) -> bool:
        return not self.is_of_items or bool(self.keys)

    def clashes_with(self, other: _Change) -> bool:
        if not self.is_of_items or not other.is_of_items:
            return bool(self) and bool(other)
        return not {*self.keys}.isdisjoint(other.keys)


# Of the function that is being traced.


def link(one: Any, other: Any, condition: Condition) -> None:
    """Notes that two containers are one object under a condition."""
    trace = current_trace()
    if trace is not None and one is not other:
        known = trace.joined
        first, second = (known.setdefault(id(x), _Watched(x, x.copy())) for x in (one, other))
        _link(first, second, condition)


def _set_apart(tables: Iterable[Any]) -> None:
    """Notes that these are different objects."""
    trace, mark = current_trace(), object()
    for own in () if trace is None else (trace.joined.get(id(x)) for x in tables):
        if own is not None:
            own.apart.add(mark)


def _link(one: _Watched, other: _Watched, condition: Condition) -> None:
    if one.apart & other.apart:
        return
    if one in other.others:
        condition = _combined(LogicalOr, condition, other.others[one])
    one.others[other] = other.others[one] = condition


def _watched() -> list[_Watched]:
    """The containers that something else has, too; the rest is dropped."""
    trace = current_trace()
    if trace is None:
        return []
    while dropped := [own for own in trace.joined.values() if not own.is_held]:
        for own in dropped:
            del trace.joined[id(own.table)]
            for other in own.others:
                del other.others[own]
            for (one, first), (other, second) in itertools.combinations(own.others.items(), 2):
                _link(one, other, _combined(LogicalAnd, first, second))
    return [*trace.joined.values()]


def settle() -> None:
    """Takes what is in the containers as it is: a statement has set it, in all of them."""
    for own in _watched():
        own.look()


def carry_over() -> None:
    """Carries over what a statement of the user's has changed in place."""
    looks = {own: own.look() for own in _watched()}
    changes = {own: change for own, change in looks.items() if change}
    for own in changes:
        _spread(own, changes)


def _spread(own: _Watched, changes: Mapping[_Watched, _Change]) -> None:
    """Carries over what has changed in one container to those that it may be."""
    change, seen = changes[own], {own}
    waiting: list[tuple[_Watched, Any, Condition | None]] = [(own, own.table, None)]
    for each, new, before in waiting:
        for other, condition in [*each.others.items()]:
            if other in seen or other.apart & own.apart:
                continue
            seen.add(other)
            if other in changes and changes[other].clashes_with(change):
                fail(
                    SignatureError,
                    "two names that may stand for one container are changed by one statement",
                    fix="change them one after the other, in two statements",
                )
            condition = _combined(LogicalAnd, before, condition) if before else condition
            if other.is_usable:
                other.take(change, new, condition())
                waiting.append((other, other.table, None))
            else:
                waiting.append((other, new, condition))


def held_by_names(names: Sequence[str], values: Sequence[Any], state: Sequence[Held]) -> list[Held]:
    """The containers that the names of a statement's state stand for before it, and those that may
    be one with any that it reaches, apart from those that are in its `state` already."""
    found = containers.held_by_names(names, values, state)
    return found + held_beside((*found, *state))


def held_beside(known: Iterable[Held]) -> list[Held]:
    """The containers that a statement may change together with those that are `known`."""
    numbers = {id(x.container) for x in known}
    watched = [own for own in _watched() if id(own.table) not in numbers]
    rest = [own.table for own in watched if own.is_usable]
    return [Held.of("another name", x, is_named=True) for x in rest]


def watching(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may change containers in place."""

    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        carry_over()
        return result

    return called


def _keys(table: Any) -> Any:
    return [*table] if isinstance(table, dict) else range(len(table))


def _fits(keys: Sequence[Any], table: Any) -> bool:
    return {*_keys(table)}.issuperset(keys)


def _selected(holds: Tensor, new: Any, old: Any) -> Any:
    """The new item where the condition holds, else the old one."""
    if new is old or is_undefined(old) or is_undefined(new):
        return old if is_undefined(old) else new
    name = "the item of a container with two names"
    exits = Exits(unread=frozenset([name]))
    (item,) = chosen(holds, lambda: ((new,), (new,)), lambda: ((old,), (old,)), (name,), exits)
    return item


def _unknown() -> Undefined:
    fact = f"this item may have been changed in place at {here()}, by another name, which stands "
    fact += "for the same container on some paths only"
    return Undefined("an item", fact, "give one of the names a copy: ys = [*xs]")


def _if(pred: Tensor, holds: bool) -> Condition:
    def condition() -> Tensor | None:
        trace = current_trace()
        if trace is None or not trace.may_use(pred):
            return None
        return pred if holds else negated(pred)

    return condition


def _combined(kind: type[Any], first: Condition, second: Condition) -> Condition:
    def condition() -> Tensor | None:
        one, other = first(), second()
        return None if one is None or other is None else kind()(one, other)

    return condition
