"""Restoring: values are matched with existing Variables, or wait for those still to come.

A restoration matches saved objects with objects of the program, starting from the root, by the
names of their parts. Everything it finds is checked and read before anything is assigned. It waits
for parts that the program does not have yet, without keeping their owners alive: see
`tracegraph.state.deferred`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

from tracegraph.core.source import Source
from tracegraph.eager import backend
from tracegraph.eager.slots import state_lock
from tracegraph.errors import LoadError, MatchError, ShapeError, fail, first_few, warn
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.optimizers.base import slot_names
from tracegraph.state import deferred
from tracegraph.state.variable import DTypeMismatchError, Variable, assign_together, has_room_for
from tracegraph.tracing.name_scopes import told_name
from tracegraph.train.checkpoint_files import Saved
from tracegraph.train.object_graph import (
    Group,
    ObjectGraph,
    optimizer_of,
    parts_with_names,
    slots,
    slots_of,
)

#: The counter of `Checkpoint.save`, which `write` does not save.
COUNTER = "save_counter"

#: An object of the program, and the number of the saved object that it matches.
Pair = tuple[Any, int]


def _nothing() -> None:
    """Replaces a reference to an object that no longer exists."""


_UNKNOWN = (_nothing, -1)


#: The objects that match each saved one, by its number, as weak references.
Found = dict[int, list["weakref.ref[Any]"]]


class Unused:
    """The values of a checkpoint that no Variable took, and whether to warn of them."""

    def __init__(self, saved: Saved, found: Found) -> None:
        self._path = saved.path
        self._keys = [object.key for object in saved.objects]
        self._found = found
        self._place: Source | None = None
        #: Whether the user declared them expected, or has been told of them.
        self.is_known = False

    def tell_after(self, restoration: Restoration, place: Source) -> None:
        """Warns of them at the end of a restoration, when nothing waits any more, without keeping
        it alive until then. `place` is the user's line that started it."""
        self._place = place
        weakref.finalize(restoration, self._tell)

    def keys(self) -> list[str]:
        rows = enumerate(self._keys)
        return sorted(k for n, k in rows if k not in (None, COUNTER) and n not in self._found)

    def _tell(self) -> None:
        keys = self.keys()
        if self.is_known or not keys or self._place is None:
            return
        text = (
            f"values of the checkpoint {self._path} were never used: there was no variable for "
            f"{first_few(keys)}. Give the Checkpoint the objects that it was saved with, or say "
            "that this is meant: checkpoint.restore(path).expect_partial()"
        )
        warn(text, place=self._place)


class Restoration:
    """The restoration of one checkpoint into objects."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self._found: Found = {}
        self.unused = Unused(saved, self._found)
        self._numbers: dict[int, tuple[weakref.ref[Variable], int]] = {}
        #: Weak: those that wait hold this, not the other way round, so that both end with the
        #: objects they wait for.
        self._with_slots: weakref.WeakSet[_WaitingOwner] = weakref.WeakSet()

    def begin(self, root: Group, place: Source) -> None:
        """Restores the objects that exist below `root`, and waits for the rest. A final warning
        about values that no Variable took names `place`."""
        pairs = self._matched([(root, 0)])
        pairs += self._new_slots(pairs)
        self._check_one_value_each(pairs)
        self._read_others({number for _, number in pairs})
        self._assign(pairs)
        self._wait(pairs)
        self.unused.tell_after(self, place)

    def resume(self, pairs: Iterable[Pair]) -> None:
        """Restores objects that were missing, the objects below them, and their slots; skips
        Variables that already have a value under another name."""
        new = self._matched(
            (value, number)
            for value, number in pairs
            if not isinstance(value, Variable) or self.number_of(value) is None
        )
        self._assign(new)
        self._wait(new)
        variables = [number for value, number in new if isinstance(value, Variable)]
        for waiting in [*self._with_slots] if variables else ():
            waiting.find_slots(variables)

    # Matching.

    def objects(self, number: int) -> list[Any]:
        """The living objects that match a saved one."""
        found = (reference() for reference in self._found.get(number, ()))
        return [value for value in found if value is not None]

    def has_found(self, number: int) -> bool:
        """Whether a saved object was matched, even if its match no longer exists."""
        return number in self._found

    def number_of(self, variable: Variable) -> int | None:
        """The number of the saved Variable from which this one was restored."""
        reference, number = self._numbers.get(id(variable), _UNKNOWN)
        return number if reference() is variable else None

    def _matched(self, start: Iterable[Pair]) -> list[Pair]:
        """The new pairs that follow from those given, in the order of the walk."""
        queue, found = list(start), []
        seen: set[tuple[int, int]] = set()
        for value, number in queue:  # which grows
            saved = self.saved.objects[number]
            is_known = (id(value), number) in seen or any(
                value is known for known in self.objects(number)
            )
            if is_known or isinstance(value, Variable) != (saved.key is not None):
                continue
            seen.add((id(value), number))
            found.append((value, number))
            if saved.key is None:
                inside = parts_with_names(value, saved.parts)
                queue += [(part, saved.parts[name]) for name, part in inside.items()]
        return found

    def _new_slots(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs of slots. Optimizers create now the slots their first step would create."""
        variables: dict[int, list[Variable]] = {}
        for value, number in pairs:
            if isinstance(value, Variable):
                variables.setdefault(number, []).append(value)
        found = []
        for owner, number in pairs:
            rows = [
                (v, *row[1:])
                for row in self.saved.objects[number].slots
                for v in variables.get(row[0], ())
            ]
            optimizer = optimizer_of(owner)
            if optimizer is not None:
                names = slot_names(optimizer)
                optimizer.build([v for v, name, n in rows if name in names and self._fits(v, n)])
            kept = _by_variable(owner) if rows else {}
            keys = (((id(v), name), n) for v, name, n in rows)
            found += [(kept[key], n) for key, n in keys if key in kept]
        return self._matched(found)

    def _fits(self, variable: Variable, number: int) -> bool:
        return has_room_for(variable, self.saved.value(number).type)

    def _check_one_value_each(self, pairs: list[Pair]) -> None:
        keys: dict[int, str] = {}
        for value, number in pairs:
            key = self.saved.objects[number].key
            if key is not None and keys.setdefault(id(value), key) != key:
                fail(
                    LoadError,
                    f"the variable {told_name(value)!r} has two values in the checkpoint "
                    f"{self.saved.path}: {keys[id(value)]} and {key}",
                    fix="restore to objects whose variables are shared as those that were saved",
                )

    # Assigning.

    def _read_others(self, numbers: set[int]) -> None:
        """Compares the checksums of values that will not be assigned now: a checkpoint that is
        damaged anywhere is not restored at all."""
        for number, saved in enumerate(self.saved.objects):
            if saved.key is not None and number not in numbers:
                self.saved.value(number).read()

    def _assign(self, pairs: list[Pair]) -> None:
        """Assigns the Variables, after all values have been checked and read."""
        rows = [(value, number) for value, number in pairs if isinstance(value, Variable)]
        self._check_types(rows)
        tensors = [self._tensor(variable, number) for variable, number in rows]
        assign_together([variable for variable, _ in rows], tensors)
        for value, number in pairs:
            self._found.setdefault(number, []).append(weakref.ref(value))
        for variable, number in rows:
            self._numbers[id(variable)] = (weakref.ref(variable), number)

    def _tensor(self, variable: Variable, number: int) -> Tensor:
        """The value of a Variable; if it is sharded, each device reads its own part."""
        stored, layout = self.saved.value(number), variable.layout
        if layout is None:
            return host_tensor(stored.type, stored.read())
        buffer = backend.from_parts(stored.type, layout.sharding, stored.reader())
        return Tensor(stored.type, buffer)

    def _check_types(self, rows: list[Pair]) -> None:
        unfit = [(v, n) for v, n in rows if not self._fits(v, n)]
        if not unfit:
            return
        facts = [
            f"{self.saved.key(n)} is {self.saved.value(n).type} there, and the variable "
            f"{told_name(v)!r} is {v.tensor_type}"
            for v, n in unfit
        ]
        self.unused.is_known = True
        is_dtype = all(v.dtype is self.saved.value(n).type.dtype for v, n in unfit)
        fail(
            ShapeError if is_dtype else DTypeMismatchError,
            f"the checkpoint {self.saved.path} does not fit, and the variables keep their values: "
            f"{first_few(facts, '; ')}",
            fix="make the variables as they were made when they were saved",
        )

    # Waiting.

    def _wait(self, pairs: list[Pair]) -> None:
        for owner, number in pairs:
            if isinstance(owner, Variable):
                continue
            saved = self.saved.objects[number]
            labels = {(self.saved.key(row[0]), row[1]) for row in saved.slots}
            for older in deferred.records(owner):
                if isinstance(older, _WaitingOwner):
                    older.give_way(saved.parts.keys(), labels)
            inside = parts_with_names(owner, saved.parts)
            missing = {name: n for name, n in saved.parts.items() if name not in inside}
            rows = [row for row in saved.slots if not self.has_found(row[2])]
            if missing or rows:
                waiting = _WaitingOwner(self, owner, missing, rows)
                deferred.wait(owner, waiting)
                if rows:
                    self._with_slots.add(waiting)

    def end_slots(self, waiting: _WaitingOwner) -> None:
        self._with_slots.discard(waiting)


class _WaitingOwner:
    """The parts and slots of one owner that a restoration waits for."""

    def __init__(
        self,
        restoration: Restoration,
        owner: Any,
        missing: dict[str, int],
        rows: list[tuple[int, str, int]],
    ) -> None:
        self._restoration = restoration
        self._owner = weakref.ref(owner)
        self._missing = missing
        #: For each Variable's number, the numbers of its slots by name.
        self._slots: dict[int, dict[str, int]] = {}
        for variable, name, slot in rows:
            self._slots.setdefault(variable, {})[name] = slot

    def resume(self, kept_for: Any) -> None:
        """Restores the parts and slots that the owner has gained since."""
        owner = self._owner()
        if owner is None:
            return
        with state_lock:
            if kept_for is not None:
                number = self._restoration.number_of(kept_for)
                self.find_slots([] if number is None else [number])
                return
            inside = parts_with_names(owner, self._missing) if self._missing else {}
            # A part is restored once: one that replaces it later is left unchanged.
            self._restoration.resume([(x, self._missing.pop(name)) for name, x in inside.items()])
            self.find_slots([*self._slots])

    def find_slots(self, variables: Iterable[int]) -> None:
        """Restores the slots that the owner has created for the Variables with these numbers."""
        owner = self._owner()
        if owner is None:
            return
        pairs = []
        for number in variables:
            wanted = self._slots.get(number, {})
            for variable in self._restoration.objects(number) if wanted else ():
                found = slots_of(owner, variable)
                pairs += [(found[name], wanted.pop(name)) for name in [*wanted] if name in found]
            if not wanted:
                self._slots.pop(number, None)
        if pairs:
            self._restoration.resume(pairs)
        self._end_if_done(owner)

    def give_way(self, names: Iterable[str], labels: set[tuple[str, str]]) -> None:
        """Leaves parts and slots to a checkpoint that was restored after this one."""
        self._restoration.unused.is_known = True
        for name in names:
            self._missing.pop(name, None)
        for number, wanted in [*self._slots.items()]:
            key = self._restoration.saved.key(number)
            rest = {name: slot for name, slot in wanted.items() if (key, name) not in labels}
            self._slots[number] = rest
            if not rest:
                del self._slots[number]
        self._end_if_done(self._owner())

    def _end_if_done(self, owner: Any) -> None:
        if not self._slots:
            self._restoration.end_slots(self)
            if not self._missing:
                deferred.stop(owner, self)


def _by_variable(owner: Any) -> dict[tuple[int, str], Variable]:
    """An object's slots, by the identity of the Variable and the name of the slot."""
    return {(id(variable), name): slot for variable, name, slot in slots(owner)}


# Reports.


class CheckpointLoadStatus:
    """How a restored checkpoint matches the objects: the result of `restore`."""

    def __init__(self, root: Group, restoration: Restoration) -> None:
        self._root = root
        self._restoration = restoration

    def assert_consumed(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless every value of the checkpoint was matched with a Variable,
        and vice versa. Values that still wait for Variables are not matched."""
        self._compare(self._restoration.unused.keys(), self._unrestored())
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless every Variable that exists now was restored."""
        missing = self._unrestored()
        if missing:
            self._compare(self._restoration.unused.keys(), missing)
        return self

    def assert_nontrivial_match(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless something below the root was matched."""
        saved = self._restoration.saved
        own = {0, saved.objects[0].parts.get(COUNTER, 0)}
        if all(n in own or not self._restoration.has_found(n) for n in range(len(saved.objects))):
            self._compare(self._restoration.unused.keys(), self._unrestored())
            _refuse(f"the checkpoint {saved.path} has nothing that could be restored")
        return self

    def expect_partial(self) -> CheckpointLoadStatus:
        """Declares that the checkpoint is only partly used, which suppresses the final warning
        about unused values."""
        self._restoration.unused.is_known = True
        return self

    def __repr__(self) -> str:
        unused, missing = len(self._restoration.unused.keys()), len(self._unrestored())
        given = len(ObjectGraph(self._root).variables().keys() - {COUNTER}) - missing
        return (
            f"<tg.train status: {given} Variables restored, {missing} without a value, "
            f"{unused} values unused>"
        )

    def _unrestored(self) -> list[str]:
        """The paths of the Variables that were not restored."""
        rows = ObjectGraph(self._root).variables().items()
        number_of = self._restoration.number_of
        return sorted(path for path, v in rows if path != COUNTER and number_of(v) is None)

    def _compare(self, unused: list[str], missing: list[str]) -> None:
        facts = []
        if unused:
            facts.append(f"there is no variable for the values of {first_few(unused)}")
        if missing:
            facts.append(f"there is no value for the variables {first_few(missing)}")
        if facts:
            self._restoration.unused.is_known = True
            path = self._restoration.saved.path
            _refuse(f"the checkpoint {path} and the objects differ: {'; '.join(facts)}")


def _refuse(fact: str) -> NoReturn:
    fail(
        MatchError,
        fact,
        fix="give the Checkpoint the objects, by the names, that it was saved with; layers and "
        "optimizers make variables at their first call",
    )


class InitializationOnlyStatus:
    """The result of `restore(None)`: nothing was restored, and the assertions say so."""

    def assert_consumed(self) -> NoReturn:
        """Raises AssertionError."""
        fail(
            MatchError,
            "no checkpoint was given, so nothing was restored: the path was None",
            fix="save a checkpoint first; tg.train.latest_checkpoint returns None without one",
        )

    assert_existing_objects_matched = assert_consumed

    assert_nontrivial_match = assert_consumed

    def __repr__(self) -> str:
        return "<tg.train status: nothing was restored, the path was None>"

    def expect_partial(self) -> InitializationOnlyStatus:
        """Does nothing: nothing is expected."""
        return self
