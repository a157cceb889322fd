"""Containers that may be one object: after an `if` in which one branch gives a name another list,
the name stands for that or for the one before, which may have other names.

A graph has a container of its own for such a name. What is changed in one container in place is
selected into the others where they are the same object. Where only an earlier branch or loop knew
that, what may have changed refuses to be read.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import getrefcount
from typing import Any, NamedTuple

from tracegraph import nest
from tracegraph.autograph.changes import containers
from tracegraph.autograph.changes.attributes import SlotTable
from tracegraph.autograph.changes.containers import Held, filled, put, table_of
from tracegraph.autograph.statements.branches import Exits, chosen, negated
from tracegraph.autograph.statements.values import (
    SetInLoop,
    SetUnlessLeft,
    Unknown,
    is_undefined,
    without_flags,
)
from tracegraph.core.source import here
from tracegraph.eager.pending import COUNTS_ARE_TRUSTED
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.elementwise import LogicalAnd, LogicalOr
from tracegraph.tracing.trace import current_trace

#: Whether two containers are one object; None if it is not known.
Same = Tensor | bool | None


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
        if isinstance(joined, (SetUnlessLeft, SetInLoop)):
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
        _made_of(joined, [one, other], self._pred)


def begin_step(
    begun: Sequence[Any],
    before: Sequence[Any],
    held: Iterable[Held],
    shared: Iterable[tuple[int, int]],
) -> None:
    """Notes that a step of a loop begins with containers of its own in place of those before the
    loop, where these have other names: in what the step has as `held`, or in the state. The names
    whose numbers are `shared` may stand for one container after a step."""
    pairs = [*_pairs(tuple(begun), tuple(before))]
    ways = defaultdict[int, list[Any]](list)
    for first, second in shared:
        for one, other in _pairs(begun[first], begun[second]):
            ways[id(other)].append(one)
    named = Counter(id(table) for _, table in pairs)
    named.update(number for x in held for number in x.identities)
    known = {id(own.table) for own in _watched()}
    for own, table in pairs:
        if named[id(table)] > 1 or id(table) in known:
            ways[id(own)].append(table)
        if ways[id(own)]:
            _made_of(own, ways[id(own)], is_begun=True)


def shared_after(ended: Sequence[Any]) -> set[tuple[int, int]]:
    """The numbers of the names that may stand for one container after a step."""
    tables = [(k, table_of(without_flags(x))) for k, x in enumerate(ended)]
    found = [(k, table) for k, table in tables if table is not None]
    pairs = itertools.combinations(found, 2)
    return {(k, i) for (k, one), (i, other) in pairs if _may_be_same(one, other)}


def _may_be_same(one: Any, other: Any) -> bool:
    trace = current_trace()
    known = {} if trace is None else trace.joined
    if id(one) in known and id(other) in known:
        return known[id(one)].same_as(known[id(other)]) is not False
    return one is other


def settle_after_loop(
    before: Sequence[Any], begun: Sequence[Any], ended: Sequence[Any], after: Sequence[Any]
) -> None:
    """Notes what the names of a loop's state may stand for after it: for what they stood for before
    it, or at the end of a step. A step begins with containers of its own."""
    outer = {id(own): table for own, table in _pairs(tuple(begun), tuple(before))}
    steps = defaultdict[int, list[Any]](list)
    for first, last in _pairs(tuple(before), tuple(ended)):
        steps[id(first)].append(outer.get(id(last), last))
    pairs = [*_pairs(tuple(after), tuple(before))]
    for own, table in pairs:
        ways = [table]
        for each in ways:
            ways += [x for x in steps[id(each)] if all(x is not y for y in ways)]
        _made_of(own, ways)
    firsts = {id(table) for _, table in pairs}
    lasts = {id(x) for number in firsts for x in steps[number]}
    if len(firsts) == len(lasts) == len(pairs):
        _set_apart([own for own, _ in pairs])
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

    #: None as soon as nothing else has it.
    table: Any
    #: What was in it when its changes were last carried over.
    items: Any
    #: Counts up: what another one is made of comes before it.
    number: int
    #: What it may be; nothing, if it is an object by itself.
    ways: Sequence[_Watched] = ()
    #: The first of two ways, if it holds, else the second; None where that is not known.
    pred: Tensor | None = None
    #: Whether a step of a loop begins with it: a later step may begin with what no way tells.
    is_begun: bool = False
    #: Those that have one of these in common are never one object.
    apart: set[object] = field(default_factory=set)
    #: Whether it is the same as an older one.
    same: dict[Any, Same] = field(default_factory=dict)

    @property
    def is_held(self) -> bool:
        """Whether anything but this has the container."""
        return self.references > _ALONE or not COUNTS_ARE_TRUSTED

    @property
    def references(self) -> int:
        """How many references there are to it, as Python counts them."""
        if isinstance(self.table, SlotTable):
            return getrefcount(self.table.owner)
        return getrefcount(self.table)

    @property
    def is_usable(self) -> bool:
        """Whether it has no tensors of a branch or a loop that is complete."""
        tensors = [x for x in nest.flatten(self.table) if isinstance(x, Tensor)]
        return all(map(_may_use, tensors))

    def look(self) -> _Change:
        """What has changed since the last look."""
        old, self.items = self.items, self.table.copy()
        return _Change.of(old, self.items)

    def take(self, change: _Change, new: Any, same: Same) -> None:
        """Puts what changed in the container `new` into this one too, where it is the same."""
        if change.is_of_items and {*_keys(self.table)}.issuperset(change.keys):
            for key in change.keys:
                old = self.table[key]
                self.table[key] = _unknown() if same is None else _selected(same, new[key], old)
        else:
            put(self.table, filled(self.table or [None], _unknown()))
        self.items = self.table.copy()

    def same_as(self, other: _Watched) -> Same:
        """Whether both are one object."""
        waiting = [_in_order(self, other)]
        while waiting:
            newer, older = waiting[-1]
            pairs = [] if newer._knows(older) else newer._pairs_with(older)
            missing = [(one, other) for one, other in pairs if not one._knows(other)]
            if not missing:
                waiting.pop()
                if not newer._knows(older):
                    newer.same[older] = newer._is(older)
            waiting += missing
        newer, older = _in_order(self, other)
        return newer._found(older)

    def _knows(self, older: _Watched) -> bool:
        found = self.same.get(older, ...)
        is_known = found is not ... and not (isinstance(found, Tensor) and not _may_use(found))
        return self is older or is_known or bool(self.apart & older.apart)

    def _found(self, older: _Watched) -> Same:
        if self is older:
            return True
        return False if self.apart & older.apart else self.same[older]

    def _pairs_with(self, older: _Watched) -> list[tuple[_Watched, _Watched]]:
        """What is to be compared with what: of one choice, the ways by which each branch ends."""
        is_of_one_choice = self.pred is not None and self.pred is older.pred
        others = older.ways if is_of_one_choice else [older] * len(self.ways)
        return [*map(_in_order, self.ways, others)]

    def _is(self, older: _Watched) -> Same:
        ways = [one._found(other) for one, other in self._pairs_with(older)]
        if all(x is False for x in ways):
            return False
        if all(x is True for x in ways) and not self.is_begun:
            return True
        if self.pred is None or not _may_use(self.pred):
            return None
        parts = [_both(self.pred, ways[0]), _both(negated(self.pred), ways[1])]
        if any(x is None for x in parts):
            return None
        tensors = [x for x in parts if isinstance(x, Tensor)]
        return tensors[0] if len(tensors) == 1 else LogicalOr()(*tensors)


#: The count of a container that nothing else has.
_ALONE = _Watched([], [], 0).references


def _in_order(one: _Watched, other: _Watched) -> tuple[_Watched, _Watched]:
    """The newer one first."""
    return (one, other) if one.number > other.number else (other, one)


def _both(pred: Tensor, same: Same) -> Same:
    if isinstance(same, Tensor):
        return LogicalAnd()(pred, same)
    return pred if same else same


def _may_use(tensor: Tensor) -> bool:
    trace = current_trace()
    return trace is not None and trace.may_use(tensor)


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


def _made_of(
    made: Any, ways: Sequence[Any], pred: Tensor | None = None, is_begun: bool = False
) -> None:
    """Notes what a container that was made may be: `pred` tells which of two."""
    trace = current_trace()
    if trace is not None:
        found = [_watch(trace.joined, x) for x in ways]
        own = _watch(trace.joined, made)
        own.ways, own.pred, own.is_begun = found, pred, is_begun


def _watch(joined: dict[int, Any], table: Any) -> _Watched:
    if id(table) not in joined:
        joined[id(table)] = _Watched(table, table.copy(), next(_numbers))
    return joined[id(table)]


_numbers = itertools.count()


def _set_apart(tables: Iterable[Any]) -> None:
    """Notes that these are different objects."""
    trace, mark = current_trace(), object()
    if trace is not None:
        for x in tables:
            _watch(trace.joined, x).apart.add(mark)


def _watched() -> list[_Watched]:
    """The containers that something else has, too; the rest is dropped."""
    trace = current_trace()
    if trace is None:
        return []
    while dropped := [own for own in trace.joined.values() if not own.is_held]:
        for own in dropped:
            del trace.joined[id(own.table)]
            own.table = own.items = None
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
    for other in _watched():
        # That a step changes what it begins with is told by `containers.LeftContainers`.
        is_told = own.is_begun and other in own.ways
        same = False if other is own or is_told else other.same_as(own)
        if same is False or not other.is_usable:
            continue
        if other in changes and changes[other].clashes_with(changes[own]):
            fail(
                SignatureError,
                "two names that may stand for one container are changed by one statement",
                fix="change them one after the other, in two statements",
            )
        other.take(changes[own], own.table, same)


def held_with_others(
    names: Sequence[str], values: Sequence[Any], state: Sequence[Held]
) -> list[Held]:
    """The containers that the names of a statement's state stand for before it, and those that may
    be one with any that it reaches, apart from those that are in its `state` already."""
    found = containers.held_by_names(names, values, state)
    return found + held_beside((*found, *state))


def held_beside(known: Iterable[Held]) -> list[Held]:
    """The containers that a statement may change together with those that are `known`."""
    numbers = {id(x.container) for x in known}
    watched = [own for own in _watched() if id(own.table) not in numbers]
    rest = [own.table for own in watched if own.is_usable]
    return [Held.of("a container with another name", x, is_named=True) for x in rest]


def watching(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may change containers in place."""

    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        carry_over()
        return result

    return called


def _keys(table: Any) -> Any:
    return [*table] if isinstance(table, dict) else range(len(table))


def _selected(same: Tensor | bool, new: Any, old: Any) -> Any:
    """The new item where the containers are the same, else the old one."""
    if new is old or not isinstance(same, Tensor) or is_undefined(new):
        return new
    if is_undefined(old):
        return old
    name = "the item of a container with two names"
    exits = Exits(unread=frozenset([name]))
    (item,) = chosen(same, lambda: ((new,), (new,)), lambda: ((old,), (old,)), (name,), exits)
    return item


def _unknown() -> Unknown:
    fact = f"this item may have been changed in place at {here()}, by another name, which stands "
    fact += "for the same container on some paths only"
    return Unknown("an item", fact, "give one of the names a copy: ys = [*xs]")
