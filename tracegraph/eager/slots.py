"""The slots of Variables: reading them, computing and storing are one atomic step.

A slot holds a device array, a Tensor whose value is still pending, or the index of a row of a
stack, in which a rolled program keeps Variables of one type together. A lock keeps other threads
out. It cannot keep out signal handlers and finalizers, which run on the thread that they interrupt;
but Python starts them only between its own instructions. So an atomic step is a single call into C,
built of iterators that C runs: it reads the values, runs the program and stores the results within
one instruction. An interrupt strikes before or after it, may read and assign freely, and nothing
is lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat, starmap
from operator import attrgetter, is_, itemgetter
from sys import getrefcount
from typing import Any

import numpy as np

from tracegraph.core.interrupts import Disturbed, outside_interrupts
from tracegraph.core.source import here
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer, raise_failures, run_failure
from tracegraph.ir.tensor import Graph, Tensor, get_buffer

#: Guards the slots of all Variables against other threads.
state_lock = threading.RLock()


class Slot:
    """Where a Variable keeps its value."""

    __slots__ = ("buffer", "place")

    #: A device array, a Tensor whose value is pending, or a StackRow.
    buffer: Any
    #: The device that keeps it, or a `MemoryPlace`; None for the device that computed it.
    place: Any

    def __init__(self, buffer: Any = None) -> None:
        self.buffer, self.place = buffer, None

    def _restore(self, failed: Tensor, former: Any) -> None:
        """Sets a former content in place of a value that failed."""
        note_pending()
        store_if_same(self, failed, former)


class MemoryPlace:
    """Memory outside that in which programs compute, where a slot keeps its value: its kind, and
    the device; None for the devices that computed the value."""

    __slots__ = ("device", "kind")

    def __init__(self, device: Any, kind: str) -> None:
        self.device, self.kind = device, kind
        _given.memory_places += 1


class StackRow:
    """The content of a slot whose value is a row of the current content of the slot `stack`. Code
    that needs the value alone first moves it to its own buffer: see `own_content`."""

    __slots__ = ("row", "stack")

    def __init__(self, stack: Slot, row: int) -> None:
        self.stack, self.row = stack, row


class _Given:
    """Counts assignments of non-buffers to slots, so that a run need not check all of its Variables
    every time. A run that this misleads fails, and then checks."""

    pending = 0
    #: How many slots were given a `MemoryPlace`; while none, runs need not look for one.
    memory_places = 0


_given = _Given()
_UNMADE = {Tensor, StackRow}
_NUMPY = np.ndarray

_get_place = attrgetter("place")
_put: Callable[[Slot, Any], None] = Slot.__dict__["buffer"].__set__
_exhaust = deque(maxlen=0).extend


def note_pending() -> None:
    """Called before a slot is set to a non-buffer, or to a buffer on other devices."""
    _given.pending += 1


def contents_of(slots: Iterable[Slot]) -> list[Any]:
    """A consistent snapshot of the contents of the slots, buffers or Tensors. Those in stacks are
    moved to their own buffers first."""
    slots = list(slots)
    while True:
        contents = list(map(get_buffer, slots))
        members: dict[Slot, list[Slot]] = {}
        for slot, content in zip(slots, contents, strict=True):
            if type(content) is StackRow:
                members.setdefault(content.stack, []).append(slot)
        if not members:
            return contents
        for stack, taken in members.items():
            _take_out(stack, taken)


def _take_out(stack: Slot, slots: Sequence[Slot]) -> None:
    """Moves the contents of slots to their own buffers where they are still rows of the stack."""
    found = [(slot, slot.buffer) for slot in slots]
    pairs = [(slot, content) for slot, content in found if type(content) is StackRow]
    taken, rows = [slot for slot, _ in pairs], [row for _, row in pairs]
    whole = stack.buffer
    if rows and all(row.stack is stack for row in rows):
        own = backend.rows(whole, [row.row for row in rows])
        # A step by an interrupt in between would give the stack another buffer.
        store_together_if_same(taken, own, (*taken, stack), (*rows, whole))


def own_content(slot: Slot) -> Any:
    """The content of the slot, moved to its own buffer first if it was in a stack."""
    content = slot.buffer
    return contents_of((slot,))[0] if type(content) is StackRow else content


def placed(slots: Sequence[Slot], contents: Iterable[Any]) -> list[Any]:
    """The contents moved to the devices of their slots; pending values stay pending."""
    return [
        content if slot.place is None or type(content) is Tensor else _kept(content, slot.place)
        for slot, content in zip(slots, contents, strict=True)
    ]


def _kept(buffer: Any, place: Any) -> Any:
    if type(place) is MemoryPlace:
        return backend.kept_in(buffer, place.device, place.kind)
    return backend.kept_on(buffer, place)


def store(slots: Sequence[Slot], contents: Iterable[Any]) -> None:
    """Stores contents in slots, atomically."""
    _exhaust(map(_put, slots, placed(slots, contents)))


def store_if_same(slot: Slot, old: Any, new: Any) -> bool:
    """Stores `new` in the slot if it holds `old`; returns whether it did."""
    (new,) = placed((slot,), (new,))
    is_same = map(is_, (old,), map(get_buffer, (slot,)))
    return bool(list(map(_put, compress((slot,), is_same), (new,))))


def store_together_if_same(
    slots: Sequence[Slot], contents: Iterable[Any], known: Sequence[Slot], olds: Sequence[Any]
) -> bool:
    """Atomically stores contents in slots if the slots `known` hold `olds`; returns whether it
    did."""
    contents = placed(slots, contents)
    is_same = map(all, (map(is_, olds, map(get_buffer, known)),))
    stores = starmap(map, compress(((_put, slots, contents),), is_same))
    return bool(list(chain.from_iterable(stores)))


def materialised_content(slot: Slot, tensor: Tensor) -> Any:
    """Replaces a tensor that the slot holds by its buffer, and returns that. Raises an earlier
    failure."""
    buffer = device_buffer(tensor)
    store_if_same(slot, tensor, buffer)
    return buffer


def materialise_slots(slots: Sequence[Slot]) -> None:
    """Computes the pending values of the slots. Raises an earlier failure."""
    while has_unmade(slots):
        for slot, content in zip(slots, contents_of(slots), strict=True):
            if type(content) is Tensor:
                materialised_content(slot, content)


def has_unmade(slots: Iterable[Slot]) -> bool:
    """Whether any slot holds something other than a buffer."""
    return not _UNMADE.isdisjoint(map(type, map(get_buffer, slots)))


def gathered(slots: Sequence[Slot]) -> list[Any]:
    """A consistent snapshot of the buffers of the slots."""
    while True:
        materialise_slots(slots)
        buffers = contents_of(slots)
        if _UNMADE.isdisjoint(map(type, buffers)):
            return buffers


class Step:
    """A program that reads Variables, runs, and stores new values in some of them, atomically.

    It takes buffers, the values of the Variables that it reads, and further buffers, in this order.
    Its outputs at `stored` are the new values of the Variables that it assigns.
    """

    __slots__ = (
        *("_are_unshared", "_known", "_looked_at", "_members", "_new_values", "_rows"),
        "program",
    )
    #: Whether each run makes sure that the Variables are as the program takes them.
    _is_tested = False

    def __init__(self, program: Any, stored: slice) -> None:
        self.program = program
        #: Variables that the program takes in stacks, and their rows in them.
        self._members: list[Slot] = []
        self._rows: list[StackRow] = []
        self._new_values = itemgetter(stored)
        #: Tests by the sum of their reference counts whether the buffers to overwrite are unshared;
        #: None if the program overwrites none.
        self._are_unshared: Callable[[int], bool] | None = None
        if program.donated:
            self._are_unshared = (_COUNT * (stored.stop - stored.start)).__eq__
        #: The kinds of arguments with which it ran: see `Program.kind`.
        self._known: set[tuple[Any, ...]] = set()
        #: When the Variables were last checked and all had buffers: see `_Given`.
        self._looked_at = -1
        if stored.start < stored.stop:
            program.keep()

    def run(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> tuple[Any, ...]:
        """The outputs. Raises the error of an argument that failed earlier, or LoweringError."""
        program = self.program
        is_moved = _given.memory_places and MemoryPlace in map(type, map(_get_place, variables))
        has_kinds = program.takes_any_device or _NUMPY in map(type, buffers)
        if (
            is_moved
            or program.has_run_in is not program.life
            or program.may_be_left
            or (has_kinds and program.kind(buffers) not in self._known)
        ):
            outputs = self._run_first(buffers, variables, rest, assigned)
            if outputs is not None:
                return outputs
            if is_moved:
                return self.run(buffers, variables, rest, assigned)
        if program.is_bound and program.is_elsewhere(buffers):
            return self.run(self._brought(buffers, variables), variables, rest, assigned)
        with state_lock:
            while True:
                if self._looked_at != _given.pending:
                    self._look_at(variables)
                    if not program.has_run:
                        return self.run(buffers, variables, rest, assigned)
                # Exhausting `stores` runs the program, stores its results, and puts the outputs in
                # `found`, unless a buffer to overwrite is shared, or a Variable does not fit.
                found: dict[int, tuple[Any, ...]] = {}
                arguments: Any = map(tuple, (chain(buffers, map(get_buffer, variables), rest),))
                if self._are_unshared is not None:
                    counts = map(sum, (map(getrefcount, map(get_buffer, assigned)),))
                    arguments = compress(arguments, map(self._are_unshared, counts))
                if self._is_tested:
                    arguments = compress(arguments, self._test(variables))
                run = program.jitted if assigned else program.run
                if run is None:  # an interrupt has reset the program
                    return self.run(buffers, variables, rest, assigned)
                arguments = program.with_note(arguments) if program.is_of_all else arguments
                stores: Any = map(found.setdefault, _FIRST, starmap(run, arguments))
                if assigned:
                    new = chain.from_iterable(map(self._new_values, stores))
                    stores = map(setattr, assigned, _BUFFER, new)
                try:
                    program.exhaust(stores)
                    if found and assigned and not found[0]:
                        raise Disturbed
                except outside_interrupts(Exception) as error:
                    found = self._run_again(error, buffers, variables, rest, assigned)
                if found:
                    return found[0]
                self._look_at(variables)
                _unshare(assigned)

    def _test(self, variables: Sequence[Slot]) -> Iterable[bool]:
        """Tests, once it is asked, whether the Variables are still in their stacks."""
        return map(all, (map(is_, map(get_buffer, self._members), self._rows),))

    def _brought(self, buffers: Sequence[Any], variables: Sequence[Slot]) -> Sequence[Any]:
        """The buffers on the program's mesh, to which the Variables move too, or where they are if
        that is another mesh, for which the program is reset."""
        self._move_variables(variables, buffers)
        return self.program.brought(buffers) if self.program.has_run else buffers

    def _look_at(self, variables: Sequence[Slot]) -> None:
        """Computes the Variables' pending values, on the program's devices; records when."""
        self._gather_stacks()
        now = _given.pending
        materialise_slots(variables)
        self._move_variables(variables, ())
        self._looked_at = now

    def _gather_stacks(self) -> None:
        """Gathers the rows of the stacks that the program takes."""

    def _move_variables(self, variables: Sequence[Slot], others: Sequence[Any]) -> None:
        """If several devices run the program, moves Variables from one device to all of them, so
        that later runs see the same kind of arrays as the first."""
        contents = contents_of(variables)
        _move(variables, contents, self.program.moves_to((*others, *contents)))

    def _run_first(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> tuple[Any, ...] | None:
        """The first run. It compiles, which takes time and runs Python, where interrupts may strike
        and other threads continue, so it gets copies of what it would overwrite. None if a Variable
        was assigned meanwhile and the results do not count."""
        with state_lock:
            self._gather_stacks()
            materialise_slots(variables)  # pending values cannot move
            self._move_variables(variables, buffers)
            state = gathered(variables)
        self._check(state)
        given = list(state)
        if self._are_unshared is not None:
            places = {id(variable): i for i, variable in enumerate(variables)}
            for variable in assigned:
                place = places[id(variable)]
                is_moved = type(variable.place) is MemoryPlace
                copied = backend.copied_to_device_memory if is_moved else backend.transferred
                given[place] = copied(state[place])
        kind = self.program.kind(buffers)
        outputs = run_program(self.program, (*buffers, *given, *rest))
        self._known.add(kind)
        if not assigned:
            return outputs
        with state_lock:
            new = self._new_values(outputs)
            known, olds = [*variables, *self._members], [*state, *self._rows]
            return outputs if store_together_if_same(assigned, new, known, olds) else None

    def _check(self, state: Sequence[Any]) -> None:
        """May refuse these values of the Variables."""

    def _run_again(
        self,
        error: Exception,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> dict[int, tuple[Any, ...]]:
        """The outputs, if the error was transient; none to retry."""
        if has_unmade(variables):
            self._look_at(variables)  # an interrupt assigned a pending value
            return {}
        raise_failures((*buffers, *rest))
        if backend.is_exhausted(error):
            raise self.program.exhausted(error) from None
        inputs = (*buffers, *contents_of(variables), *rest)
        is_elsewhere = backend.is_of_several_devices(error, inputs)
        is_elsewhere = is_elsewhere or self.program.is_movable(error, inputs)
        is_transient = is_elsewhere or self.program.is_disturbed(error)
        if not is_transient and not self.program.is_refused_by_a_trace(error):
            raise run_failure(error, here()) from None
        # The failed call's frames still hold the buffers, so these are copied instead of donated;
        # to one device, or to the program's mesh if they were on several.
        outputs = self._run_first(buffers, variables, rest, assigned)
        return {} if outputs is None else {0: outputs}


def _move(slots: Iterable[Slot], contents: Iterable[Any], mesh: Any) -> None:
    """Moves contents on one device to a mesh. If `mesh` is None, moves contents off any mesh: those
    are states of generators, which no program follows."""
    for slot, content in zip(slots, contents):
        if type(content) is Tensor:
            continue
        moved = backend.off_mesh(content) if mesh is None else backend.whole_on(content, mesh)
        if moved is not content:
            note_pending()  # steps that ran before saw it elsewhere
            store_if_same(slot, content, moved)


def take_off_mesh(slot: Slot) -> None:
    """Moves the value of a slot off its mesh, to this process alone, if all of it is here."""
    content = slot.buffer
    if type(content) is Tensor and content.node is None:
        content = materialised_content(slot, content)
    if type(content) not in _UNMADE:
        _move((slot,), (content,), None)


def move_variables(graph: Graph, buffers: Sequence[Any], slots: Mapping[int, Slot]) -> None:
    """If several devices run a graph, moves Variables from one device to all of them: see
    `Step._move_variables`. `slots` are those that inputs represent, by position; `buffers` are
    those of all inputs, with any placeholders for these."""
    if not slots:
        return
    variables = [*slots.values()]
    with state_lock:
        materialise_slots(variables)  # pending values cannot move
        contents = contents_of(variables)
        given = [*buffers]
        for place, content in zip(slots, contents):
            given[place] = content
        _move(variables, contents, backend.home_of(graph, given))


def run_program(program: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a program that stores nothing.

    Raises the error of an argument that failed earlier, or a LoweringError.
    """
    try:
        return program(*arguments)
    except outside_interrupts(Exception) as error:
        raise_failures(arguments)
        raise run_failure(error, here()) from None


def _unshare(slots: Sequence[Slot]) -> None:
    """Gives each slot whose buffer is shared its own copy."""
    for slot in slots:
        content = slot.buffer
        # Referenced by the slot, by `content` and by the call.
        if type(content) not in _UNMADE and getrefcount(content) > 3:
            store_if_same(slot, content, backend.copy(content))


#: The key of a run's outputs in `found`, and the attribute in which slots keep their content.
_FIRST, _BUFFER = (0,), repeat("buffer")


def _calibrated() -> int:
    """References that `Step` counts for a buffer held only by its slot and the arguments."""
    slot = Slot()
    slot.buffer = object()
    arguments = map(tuple, (map(get_buffer, (slot,)),))
    counts = map(sum, (map(getrefcount, map(get_buffer, (slot,))),))
    return next(count for _, count in zip(arguments, counts))


_COUNT = _calibrated()
