"""The slots of Variables: read, computed with and stored in one piece.

A slot holds an array of the device, a Tensor whose value is not made yet, or the number of a row of
a stack, in which a rolled program keeps Variables of one type together. Other threads are kept
away by a lock. Signal handlers and finalizers are not, since they run on the thread that they
interrupt; but Python starts them between its own instructions only. So what must be one piece is
one call of C, made of iterators that C runs: it takes the values, runs the program and stores the
results within one instruction. An interrupt falls before it or behind it, may read and assign what
it likes, and nothing is lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat, starmap
from operator import attrgetter, is_, itemgetter
from sys import getrefcount
from typing import Any

from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.source import here
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer, raise_failures, run_failure
from tracegraph.ir.tensor import Graph, Tensor, get_buffer

#: Guards the slots of all Variables against other threads.
state_lock = threading.RLock()


class Slot:
    """Where a Variable keeps its value."""

    __slots__ = ("buffer", "place")

    #: An array of the device, a Tensor whose value is not made yet, or a StackRow.
    buffer: Any
    #: The device that keeps it, or a `MemoryPlace`; None for the device that has computed it.
    place: Any

    def __init__(self, buffer: Any = None) -> None:
        self.buffer, self.place = buffer, None


class MemoryPlace:
    """Memory that keeps the value of a slot beside that in which programs compute: its kind, and
    the device; None for those that have computed the value."""

    __slots__ = ("device", "kind")

    def __init__(self, device: Any, kind: str) -> None:
        self.device, self.kind = device, kind
        _given.memory_places += 1


class StackRow:
    """What a slot holds whose value is a row of what the slot `stack` holds now. Whoever asks for
    the value by itself gives it a buffer of its own: see `own_content`."""

    __slots__ = ("row", "stack")

    def __init__(self, stack: Slot, row: int) -> None:
        self.stack, self.row = stack, row


class _Given:
    """How often a slot was given what is not a buffer, so that a run need not look at all its
    Variables each time. A run that it misleads fails, and looks then."""

    pending = 0
    #: How many slots were given a `MemoryPlace`, so that a run need not look for one.
    memory_places = 0


_given = _Given()
_UNMADE = {Tensor, StackRow}

_get_place = attrgetter("place")
_put: Callable[[Slot, Any], None] = Slot.__dict__["buffer"].__set__
_exhaust = deque(maxlen=0).extend


def note_pending() -> None:
    """Called before a slot is given what is not a buffer, or one on other devices."""
    _given.pending += 1


def contents_of(slots: Iterable[Slot]) -> list[Any]:
    """What the slots hold, buffers or Tensors, all at one moment."""
    slots = list(slots)
    while True:
        contents = list(map(get_buffer, slots))
        if StackRow not in map(type, contents):
            return contents
        for slot in slots:
            own_content(slot)


def own_content(slot: Slot) -> Any:
    """What the slot holds, after it got a buffer of its own if its value was in a stack."""
    while True:
        content = slot.buffer
        if type(content) is not StackRow:
            return content
        stack, whole = content.stack, content.stack.buffer
        own = backend.row(whole, content.row)
        # A step that an interrupt makes in between gives the stack another buffer.
        if store_together_if_same((slot,), (own,), (slot, stack), (content, whole)):
            return own


def placed(slots: Sequence[Slot], contents: Iterable[Any]) -> list[Any]:
    """The contents on the devices that keep those of the slots; what is not made yet stays so."""
    return [
        content if slot.place is None or type(content) is Tensor else _kept(content, slot.place)
        for slot, content in zip(slots, contents, strict=True)
    ]


def _kept(buffer: Any, place: Any) -> Any:
    if type(place) is MemoryPlace:
        return backend.kept_in(buffer, place.device, place.kind)
    return backend.kept_on(buffer, place)


def store(slots: Sequence[Slot], contents: Iterable[Any]) -> None:
    """Stores contents in slots, all at one moment."""
    _exhaust(map(_put, slots, placed(slots, contents)))


def store_if_same(slot: Slot, old: Any, new: Any) -> bool:
    """Stores `new` in the slot if it holds `old`; whether it did."""
    (new,) = placed((slot,), (new,))
    is_same = map(is_, (old,), map(get_buffer, (slot,)))
    return bool(list(map(_put, compress((slot,), is_same), (new,))))


def store_together_if_same(
    slots: Sequence[Slot], contents: Iterable[Any], known: Sequence[Slot], olds: Sequence[Any]
) -> bool:
    """Stores contents in slots if the slots `known` hold `olds`, all at one moment; whether it
    did."""
    contents = placed(slots, contents)
    is_same = map(all, (map(is_, olds, map(get_buffer, known)),))
    stores = starmap(map, compress(((_put, slots, contents),), is_same))
    return bool(list(chain.from_iterable(stores)))


def materialised_content(slot: Slot, tensor: Tensor) -> Any:
    """The buffer of a tensor that the slot holds, which takes its place. Raises what failed."""
    buffer = device_buffer(tensor)
    store_if_same(slot, tensor, buffer)
    return buffer


def materialise_slots(slots: Sequence[Slot]) -> None:
    """Makes the values of the slots exist. Raises what failed."""
    while has_unmade(slots):
        for slot in slots:
            content = own_content(slot)
            if type(content) is Tensor:
                materialised_content(slot, content)


def has_unmade(slots: Iterable[Slot]) -> bool:
    """Whether a slot holds what is not a buffer."""
    return not _UNMADE.isdisjoint(map(type, map(get_buffer, slots)))


def gathered(slots: Sequence[Slot]) -> list[Any]:
    """The buffers of the slots, all at one moment."""
    while True:
        materialise_slots(slots)
        buffers = contents_of(slots)
        if _UNMADE.isdisjoint(map(type, buffers)):
            return buffers


class Step:
    """A program that reads Variables, runs, and stores new values in some of them, as one piece.

    It takes buffers, the values of the Variables that it reads, and further buffers, in this order.
    Of its outputs those at `stored` are the new values of the Variables that it assigns.
    """

    __slots__ = ("_are_unshared", "_looked_at", "_members", "_new_values", "_rows", "program")

    def __init__(self, program: Any, stored: slice) -> None:
        self.program = program
        #: Variables that the program takes in stacks, and the rows that they are then.
        self._members: list[Slot] = []
        self._rows: list[StackRow] = []
        self._new_values = itemgetter(stored)
        #: Whether nobody else holds the buffers to overwrite, by the sum of their references; None
        #: where none is overwritten.
        self._are_unshared: Callable[[int], bool] | None = None
        if program.donated:
            self._are_unshared = (_COUNT * (stored.stop - stored.start)).__eq__
        #: When the Variables were looked at last, and all had buffers: see `_Given`.
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
        """The outputs. Raises the error of an argument that failed before, or LoweringError."""
        program = self.program
        is_moved = _given.memory_places and MemoryPlace in map(type, map(_get_place, variables))
        if is_moved or program.has_run_in is not program.life or program.may_be_left:
            outputs = self._run_first(buffers, variables, rest, assigned)
            if outputs is not None:
                return outputs
            if is_moved:
                return self.run(buffers, variables, rest, assigned)
        if program.is_bound and program.is_elsewhere(buffers):
            self._settle(variables, buffers)
            # On the mesh of the program, or on another one, for which it has begun anew.
            given = program.brought(buffers) if program.has_run else buffers
            return self.run(given, variables, rest, assigned)
        with state_lock:
            while True:
                if self._looked_at != _given.pending:
                    self._look_at(variables)
                    if not program.has_run:
                        return self.run(buffers, variables, rest, assigned)
                # `stores` runs the program and stores its results when it is exhausted; `found`
                # has the outputs then: none, and nothing was run, if somebody beyond a Variable
                # holds a buffer that the program would overwrite, or a Variable left its stack.
                found: dict[int, tuple[Any, ...]] = {}
                arguments: Any = map(tuple, (chain(buffers, map(get_buffer, variables), rest),))
                if self._are_unshared is not None:
                    counts = map(sum, (map(getrefcount, map(get_buffer, assigned)),))
                    arguments = compress(arguments, map(self._are_unshared, counts))
                if self._members:
                    is_row = map(is_, map(get_buffer, self._members), self._rows)
                    arguments = compress(arguments, map(all, (is_row,)))
                run = program.jitted if assigned else program.run
                stores: Any = map(found.setdefault, _FIRST, starmap(run, arguments))
                if assigned:
                    new = chain.from_iterable(map(self._new_values, stores))
                    stores = map(setattr, assigned, _BUFFER, new)
                try:
                    program.exhaust(stores)
                except Exception as error:
                    if is_of_interrupt(error):
                        raise
                    found = self._run_again(error, buffers, variables, rest, assigned)
                if found:
                    return found[0]
                self._look_at(variables)
                _unshare(assigned)

    def _look_at(self, variables: Sequence[Slot]) -> None:
        """Makes the values of the Variables exist on the devices of the program; notes when."""
        self._gather_stacks()
        now = _given.pending
        materialise_slots(variables)
        self._settle(variables, ())
        self._looked_at = now

    def _gather_stacks(self) -> None:
        """Gathers the rows of the stacks that the program takes."""

    def _settle(self, variables: Sequence[Slot], others: Sequence[Any]) -> None:
        """Where several devices run the program, Variables that are on one move to all of them: a
        later run then has the same kind of arrays as the first."""
        contents = contents_of(variables)
        _move(variables, contents, self.program.moves_to((*others, *contents)))

    def _run_first(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> tuple[Any, ...] | None:
        """The first run compiles, which takes time and runs Python, where interrupts may fall and
        other threads go on: it is given copies of what it would overwrite. None if a Variable was
        assigned meanwhile, so that the results do not count."""
        with state_lock:
            self._gather_stacks()
            materialise_slots(variables)  # what is pending cannot move
            self._settle(variables, buffers)
            state = gathered(variables)
        given = list(state)
        if self._are_unshared is not None:
            places = {id(variable): i for i, variable in enumerate(variables)}
            for variable in assigned:
                place = places[id(variable)]
                is_moved = type(variable.place) is MemoryPlace
                copied = backend.copied_to_device_memory if is_moved else backend.copy
                given[place] = copied(state[place])
        outputs = run_program(self.program, (*buffers, *given, *rest))
        if not assigned:
            return outputs
        with state_lock:
            new = self._new_values(outputs)
            known, olds = [*variables, *self._members], [*state, *self._rows]
            return outputs if store_together_if_same(assigned, new, known, olds) else None

    def _run_again(
        self,
        error: Exception,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> dict[int, tuple[Any, ...]]:
        """The outputs, where the error is one of the moment; none to try once more."""
        if has_unmade(variables):
            self._look_at(variables)  # an interrupt assigned what is not made yet
            return {}
        raise_failures((*buffers, *rest))
        if backend.is_exhausted(error):
            raise self.program.exhausted(error) from None
        inputs = (*buffers, *contents_of(variables), *rest)
        is_elsewhere = backend.is_of_several_devices(error, inputs)
        is_elsewhere = is_elsewhere or self.program.is_movable(error, inputs)
        if not is_elsewhere and not self.program.is_refused_by_a_trace(error):
            raise run_failure(error, here()) from None
        # The frames of what failed hold the buffers, so they are not given away, but copied; to one
        # device, or to the mesh of the program, where they were on several.
        outputs = self._run_first(buffers, variables, rest, assigned)
        return {} if outputs is None else {0: outputs}


def _move(slots: Iterable[Slot], contents: Iterable[Any], mesh: Any) -> None:
    """Moves to a mesh what one device has of these contents. If it is None, what is on some mesh
    comes from there: those are states of generators, which no program follows."""
    for slot, content in zip(slots, contents):
        if type(content) is Tensor:
            continue
        moved = backend.off_mesh(content) if mesh is None else backend.whole_on(content, mesh)
        if moved is not content:
            note_pending()  # steps that ran before had it elsewhere
            store_if_same(slot, content, moved)


def take_off_mesh(slot: Slot) -> None:
    """Lets the value of a slot be one of this process alone, if it is there."""
    content = slot.buffer
    if type(content) is Tensor and content.node is None:
        content = materialised_content(slot, content)
    if type(content) not in _UNMADE:
        _move((slot,), (content,), None)


def settle(graph: Graph, buffers: Sequence[Any], slots: Mapping[int, Slot]) -> None:
    """Where several devices run a graph, Variables that are on one move to all of them: see
    `Step._settle`. `slots` are those that inputs stand for, by position; `buffers` those of all
    inputs, whatever they have for these."""
    if not slots:
        return
    variables = [*slots.values()]
    with state_lock:
        materialise_slots(variables)  # what is pending cannot move
        contents = contents_of(variables)
        given = [*buffers]
        for place, content in zip(slots, contents):
            given[place] = content
        _move(variables, contents, backend.home_of(graph, given))


def run_program(program: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a program that stores nothing.

    Raises the error of the argument that failed before, or a LoweringError.
    """
    try:
        return program(*arguments)
    except Exception as error:
        if is_of_interrupt(error):
            raise
        raise_failures(arguments)
        raise run_failure(error, here()) from None


def _unshare(slots: Sequence[Slot]) -> None:
    """Gives each slot whose buffer somebody else holds a copy of its own."""
    for slot in slots:
        content = slot.buffer
        # Held by the slot, by `content` and by the call.
        if type(content) not in _UNMADE and getrefcount(content) > 3:
            store_if_same(slot, content, backend.copy(content))


#: The key of the outputs that a run finds, and the name under which slots keep their contents.
_FIRST, _BUFFER = (0,), repeat("buffer")


def _calibrated() -> int:
    """References that `Step` counts of a buffer that its slot and the arguments hold alone."""
    slot = Slot()
    slot.buffer = object()
    arguments = map(tuple, (map(get_buffer, (slot,)),))
    counts = map(sum, (map(getrefcount, map(get_buffer, (slot,))),))
    return next(count for _, count in zip(arguments, counts))


_COUNT = _calibrated()
