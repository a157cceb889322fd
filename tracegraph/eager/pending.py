"""The top level: nodes stay pending until a value is read; then they run as one program.

Programs are cached by structure: the ops and types, how they are wired, and which values are held.
A value is *held* if something other than the pending nodes refers to its tensor; the reference
count tells. Values that nobody holds are never computed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import compress, islice
from sys import getrefcount
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.source import Source, here, user_line
from tracegraph.eager import backend
from tracegraph.eager.provenance import ProvenanceMap
from tracegraph.errors import (
    LoweringError,
    ResourceExhaustedError,
    SignatureError,
    fact_of,
    is_of_run,
    message,
)
from tracegraph.ir.builder import (
    Builder,
    builder_of_thread,
    refuse_leaked,
    refuse_value,
    set_top_level,
)
from tracegraph.ir.tensor import ASSIGNED, Graph, Node, Tensor, pending_tensor, set_buffer
from tracegraph.ops.elementwise import Identity
from tracegraph.passes.simplify import dead_code

#: From this many pending nodes on, the list is cut at a loop iteration.
_FIRST_CUT = 64
#: Code that reads values less often than this runs many iterations between reads: the list is cut
#: at this length. One program of many iterations runs no faster and takes longer to compile; and
#: long-pending nodes reach the garbage collector's oldest generation, which is expensive to scan.
_LONGEST_ASKED = 1024
_MANY_CUT = 128
#: The list is never longer than this many nodes.
_LAST_CUT = 4096
#: More nodes than a public function makes, nearly always.
_NEW = 64
#: Programs kept for the whole process.
_PROGRAM_LIMIT = 512
#: Host arrays larger than this, in bytes, move to the device at first use and stay there.
_HOST_BYTES = 256
#: How long a thread waits for another thread to run that thread's list, in seconds.
_PATIENCE = 0.1

T = TypeVar("T")
_exhaust = deque(maxlen=0).extend

#: An interpreter without a global lock counts references per thread, and defers counts: there
#: everything counts as held, so that nothing is dropped and no buffer is donated.
COUNTS_ARE_TRUSTED: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Failure:
    """Stands in for the buffer of a value whose computation failed."""

    __slots__ = ("error", "undo")

    def __init__(self, error: BaseException, undo: list[Callable[[], None]]) -> None:
        self.error = error
        #: Give Variables their former contents in place of values that failed in the same run.
        self.undo = undo

    def raise_error(self) -> NoReturn:
        """Raises the error. From then on the Variables have their former values again."""
        while self.undo:
            self.undo.pop()()
        raise self.error


class Assignable(Protocol):
    """What values are assigned to: see `slots.Slot`."""

    buffer: Any

    def _restore(self, failed: Tensor, former: Any) -> None:
        """Sets the content `former` in place of `failed`."""


class _Assigned:
    """Pending values that were assigned to a slot, one after the other, and its content before
    them."""

    __slots__ = ("_references", "former", "slot")

    def __init__(self, slot: Assignable, former: Any, value: Tensor) -> None:
        self.slot = weakref.ref(slot)
        self.former = former
        self._references = [weakref.ref(value)]

    def add(self, value: Tensor) -> None:
        self._references.append(weakref.ref(value))

    def ends_with(self, slot: Assignable, content: Any) -> bool:
        """Whether the slot is this one, and its content the last of the values."""
        return self.slot() is slot and self._references[-1]() is content

    def values(self) -> list[Tensor]:
        """Those that are alive, as all are that an unfinished run may compute."""
        return [value for reference in self._references if (value := reference()) is not None]

    def keep_pending(self) -> bool:
        """Forgets what is no longer pending; whether anything is left."""
        pending = [reference for reference in self._references if _is_pending(reference())]
        if pending:  # an interrupt may still ask for the last one
            self._references = pending
        return bool(pending)

    def failed(self) -> Tensor | None:
        """The slot's content, if it is one of the values and failed."""
        slot = self.slot()
        content = None if slot is None else slot.buffer
        is_failed = type(content) is Tensor and failure_of(content) is not None
        return content if is_failed and any(content is x for x in self.values()) else None

    def undo(self, failed: Tensor, former: Any) -> None:
        slot = self.slot()
        if slot is not None:
            slot._restore(failed, former)


def _is_pending(value: Tensor | None) -> bool:
    return value is not None and value.node is not None


def failure_of(tensor: Tensor) -> Failure | None:
    """The failure that a tensor has for a buffer."""
    buffer = getattr(tensor, "buffer", None)
    return buffer if type(buffer) is Failure else None


class Pending(Builder):
    """The pending nodes of one thread."""

    is_top_level = True

    frames = 3  # `add`, `Op.__call__`

    def __init__(self) -> None:
        super().__init__("top_level")
        self.lock = threading.RLock()
        self.thread = threading.get_ident()
        #: The length at which the list is cut; reset to `_usual_cut` after each run.
        self._next_cut = self._usual_cut = _FIRST_CUT
        #: The length at which work of all processes is cut, of which they must run the same.
        self._common_cut = _MANY_CUT
        #: How many nodes were cut off since a value was last read.
        self._cut_off = 0
        #: Whether interrupts added nodes while the list ran for a reader.
        self._was_struck = False
        #: How many nodes of the other kind the last run left: see `evaluate`.
        self._set_apart = 0
        #: What was assigned to slots, by their identities.
        self._assigned: dict[int, _Assigned] = {}
        #: Weak references to objects that keep nodes and must drop them once they have run.
        self.keepers: list[weakref.ref[Any]] = []
        #: How many nodes were searched for a loop that may never end, and whether one was found.
        self._searched, self._has_endless = 0, False
        #: Whether an interrupt has ended the wait for a run of such a loop.
        self._was_left = False

    @property
    def may_never_end(self) -> bool:
        """Whether a pending branch, loop or call is or holds a loop without a known bound."""
        new, self._searched = self.nodes[self._searched :], len(self.nodes)
        # Each assignment asks, so that most nodes must be passed over quickly.
        if any(node.op.can_prune and node.op.may_never_end for node in new):
            self._has_endless = True
        return self._has_endless

    def admit_all(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([self.admit(x) for x in inputs])

    def admit(self, tensor: Tensor) -> Tensor:
        """An outside tensor: one of another thread is evaluated, one of a trace has leaked."""
        node = tensor.node
        if node is None or node.builder is self:
            return tensor
        if node.builder is not None and node.builder.is_top_level:
            materialise(tensor)
            return tensor
        refuse_leaked(tensor)

    def note_assigned(self, slot: Assignable, value: Tensor, former: Any) -> None:
        """See the function of this name."""
        found = self._assigned.get(id(slot))
        if found is not None and found.ends_with(slot, former):
            found.add(value)
        else:
            self._assigned[id(slot)] = _Assigned(slot, former, value)

    def _cut(self) -> None:
        """Runs whole iterations of a loop that never reads a value."""
        nodes = self.nodes[:]  # an interrupt may run them meanwhile
        kinds = backend.common_work(nodes)
        if any(kinds):
            self._cut_common(nodes, kinds)
        elif nodes:
            position = _end_of_iterations(nodes)
            most = _MANY_CUT if kinds else len(nodes)  # or work of all may be cut too late
            self._next_cut = self._usual_cut if position else len(nodes) + min(len(nodes), most)
            self._cut_off += position
            self._run(position)

    def _cut_common(self, nodes: Sequence[Node], kinds: Sequence[bool]) -> None:
        """Runs what this process computes for itself, and cuts the work of all processes, in each
        of them at the same node: the one that makes it long enough."""
        common = [*compress(nodes, kinds)]
        # What was added lately may be for an op that is not done, and soon be part of that work.
        new = kinds[-_NEW:].count(False)
        alone = [node for node, kind in zip(nodes, kinds[:-_NEW]) if not kind]
        self._run_in_pieces(len(alone), {*alone})
        if len(common) >= self._common_cut and kinds[-1]:
            position = _end_of_iterations(common)
            self._common_cut = _MANY_CUT if position else 2 * len(common)
            self._run(position, {*common})
            del common[:position]
        self._next_cut = len(self.nodes) + max(self._common_cut - len(common) - new, 1)

    def evaluate(self, read: Node | None = None) -> None:
        """Computes every held pending value, because one of the node `read` was read. Where several
        processes compute together, work of all and of this one alone are computed apart.

        A loop that reads a value in every iteration gets programs of whole iterations, however
        long: the list is cut only once it grows well beyond its length at the last read.
        """
        asked = self._cut_off + len(self.nodes)
        nodes = self.nodes[:]
        kinds = backend.common_work(nodes)
        if kinds:
            self._evaluate_apart(nodes, kinds, read)
        elif self._was_struck:
            # A signal handler may add nodes faster than programs of new lengths can be compiled.
            self._run_in_pieces(len(nodes))
        else:
            self._run(None, self._beside_endless(nodes, read) if self._was_left else None)
        self._was_struck = len(self.nodes) > self._set_apart
        is_usual = asked <= _LONGEST_ASKED and not kinds
        self._usual_cut = self._next_cut = max(_FIRST_CUT, 2 * asked) if is_usual else _MANY_CUT
        self._cut_off = 0

    def _beside_endless(self, nodes: Sequence[Node], read: Node | None) -> set[Node] | None:
        """What can be computed without the loops that may never end, and all that `read` needs;
        None if nobody holds what those loops compute, so that they are dropped."""
        self._was_left = self.may_never_end
        batch, endless = self._batch(nodes), set[Node | None]()
        for node in batch.nodes:
            is_endless = node.op.can_prune and node.op.may_never_end
            if is_endless or any(x.node in endless for x in node.inputs):
                endless.add(node)
        if not any(batch.values[i].node in endless for i in batch.held):
            return None
        return {*nodes} - endless | {*_needed_nodes(read)}

    def _evaluate_apart(
        self, nodes: Sequence[Node], kinds: Sequence[bool], read: Node | None
    ) -> None:
        """All processes run the same of what they compute together, and each what it needs of the
        rest."""
        common = {*compress(nodes, kinds)}
        if read is None or read in common:
            self._run(None, common)
        if read is None:
            self._run(None, {*nodes} - common)
        elif read not in common:
            self._run(None, {*_needed_nodes(read)})

    def _run_in_pieces(self, left: int, chosen: Set[Node] | None = None) -> None:
        """Runs `left` nodes in pieces whose lengths are powers of two, so that few programs serve
        lists of all lengths."""
        has_run = True
        while has_run and left > 0:
            length = 1 << min(left, _FIRST_CUT).bit_length() - 1
            has_run = self._run(length, chosen)
            left -= length

    def _run(self, count: int | None, chosen: Set[Node] | None = None) -> bool:
        """Computes every held value of the first `count` pending nodes, or of all if it is None;
        only of those that are chosen, if any are, which do not depend on others. False if the list
        is running already, here or on another thread.

        The list is emptied only after the values are stored, so an interrupt loses nothing. Nodes
        that an interrupt adds meanwhile come after these, and stay.
        """
        thread = threading.get_ident()
        if self.worker == thread:
            return False  # the reader then computes its value alone
        if thread == self.thread:
            with self.lock:
                return self._run_as(thread, count, chosen)
        return self.alone(lambda is_alone: is_alone and self._run_as(thread, count, chosen))

    def _run_as(self, thread: int, count: int | None, chosen: Set[Node] | None) -> bool:
        try:
            self.worker = thread
            self._set_apart = 0
            if chosen is not None:
                found = self._set_first(chosen)
                count = found if count is None else min(count, found)
            self._run_first(count)
            return True
        except BaseException:
            self._was_left = self.may_never_end
            raise
        finally:
            self.worker = None

    def _set_first(self, chosen: Set[Node]) -> int:
        """Puts the chosen nodes before the others, and returns their number."""
        nodes = self.nodes[:]
        found = sum(node in chosen for node in nodes)
        self.nodes[: len(nodes)] = sorted(nodes, key=lambda node: node not in chosen)
        self._set_apart = len(nodes) - found
        return found

    def alone(self, work: Callable[[bool], T]) -> T:
        """Runs `work` while no other thread runs this list, if the lock is free soon; `work`
        receives whether it is. A signal handler may have interrupted the thread that is running its
        own list and now wait for a lock that this thread holds, such as the lock of all Variables:
        waiting longer would deadlock."""
        if threading.get_ident() == self.thread:
            with self.lock:
                return work(True)
        held: list[bool] = []
        try:
            # One call into C: no interrupt can fall between acquiring and recording it.
            _exhaust(map(held.append, map(self.lock.acquire, (True,), (_PATIENCE,))))
            return work(held[0])
        finally:
            if held and held[0]:
                self.lock.release()

    def _run_first(self, count: int | None) -> None:
        nodes = self.nodes[:count]
        if not nodes:
            return
        between = self._assigned_between(nodes)
        batch = self._batch(nodes)
        if self._assigned:
            batch.find_assigned([*self._assigned.values()])
        batch.run()
        if batch.has_failed:
            self._prepare_undo(batch)
        del self.nodes[: len(batch.nodes)]
        self._searched, self._has_endless = 0, False
        batch.release()
        if self._assigned:
            self._forget_assigned(between)
        if self.keepers:
            self._tell_keepers()

    def _batch(self, nodes: Sequence[Node]) -> _Batch:
        """The first nodes as a batch; all of them, if what some are computed from failed before."""
        trust_counts = COUNTS_ARE_TRUSTED and threading.get_ident() == self.thread
        try:
            return _Batch(nodes, self.nodes, trust_counts)
        except outside_interrupts(Exception):
            self._fail_dependents()
            nodes = self.nodes[:]
            batch = _Batch(nodes, nodes, trust_counts)
            batch.has_failed = True
            return batch

    def _assigned_between(self, nodes: Sequence[Node]) -> list[tuple[_Assigned, Tensor]]:
        """The values of Variables between these nodes and later ones, if those assign again. The
        caller holds them, so that they are computed."""
        if not self._assigned or len(nodes) == len(self.nodes):
            return []
        first, between = {*nodes}, []
        for assigned in [*self._assigned.values()]:
            values = assigned.values()
            before = [value for value in values if value.node in first]
            if before and before[-1] is not values[-1]:
                between.append((assigned, before[-1]))
        return between

    def _prepare_undo(self, batch: _Batch) -> None:
        """Has the errors of failed values restore the Variables to which these were assigned."""
        for assigned in [*self._assigned.values()]:
            failed = assigned.failed()
            if failed is not None:
                former = batch.last_good(assigned.values(), assigned.former)
                undo = functools.partial(assigned.undo, failed, former)
                failed.buffer.undo.append(undo)

    def _forget_assigned(self, between: list[tuple[_Assigned, Tensor]]) -> None:
        """Forgets the assignments of values that have been computed."""
        for assigned, value in between:
            assigned.former = value
        if not self.nodes:
            self._assigned.clear()
        for key, assigned in [*self._assigned.items()]:
            if not assigned.keep_pending():
                self._assigned.pop(key, None)

    def _tell_keepers(self) -> None:
        keepers, self.keepers = self.keepers, []
        for reference in keepers:
            keeper = reference()
            if keeper is not None:
                keeper.let_go()

    def _fail_dependents(self) -> None:
        """Marks values computed from a failed one as failed, and no longer pending."""
        for node in self.nodes[:]:
            failure = next(filter(None, map(failure_of, node.inputs)), None)
            if failure is not None:
                for y in node.outputs:
                    set_buffer(y, failure)
                self.nodes.remove(node)


def _end_of_iterations(nodes: Sequence[Node]) -> int:
    """Where whole iterations of a loop end; 0 if that is unknown, and the list may still grow."""
    position = _last_like(nodes, nodes[0])
    if position == 0:
        # The list begins before the loop: run what comes before its second iteration.
        position = _first_like(nodes, nodes[-1]) + 1
    if position in (0, len(nodes)):
        # All but the last node, whose outputs no caller has received yet.
        position = len(nodes) - 1 if len(nodes) >= _LAST_CUT else 0
    return position


def _last_like(nodes: Sequence[Node], node: Node) -> int:
    """The last position of the instruction that created `node`; 0 if none comes after it."""
    for position in range(len(nodes) - 1, 0, -1):
        if _is_like(nodes[position], node):
            return position
    return 0


def _first_like(nodes: Sequence[Node], node: Node) -> int:
    """The first position of the instruction that created `node`."""
    return next(i for i, other in enumerate(nodes) if _is_like(other, node))


def _is_like(x: Node, y: Node) -> bool:
    if x.op is not y.op:
        return False
    a, b = x.source, y.source
    return a.code is b.code and a.offset == b.offset and a.roles == b.roles


class _Batch:
    """Pending nodes as one program: its key, its inputs, and which outputs are held."""

    def __init__(self, nodes: Sequence[Node], pending: Sequence[Node], trust_counts: bool) -> None:
        self.nodes = nodes
        self.buffers: list[Any] = []
        self.inputs: list[Tensor] = []
        self.values: list[Tensor] = []
        self.held: list[int] = []
        self.assigned: tuple[int, ...] = ()
        self.has_failed = False
        key = self._wire(nodes)
        self.held = self._find_held(pending) if trust_counts else list(range(len(self.values)))
        self._wires = tuple(key)

    @property
    def key(self) -> tuple[Any, ...]:
        """The structure: equal batches have one program."""
        return self._wires, tuple(self.held), self.assigned

    def find_assigned(self, assigned: Iterable[_Assigned]) -> None:
        """Finds which outputs are values of slots: on a mesh these are whole, as functions leave
        them, unless a layout is stated, while XLA chooses how other outputs are divided."""
        slots = {self._slots.get(id(value)) for each in assigned for value in each.values()}
        self.assigned = tuple([i for i, slot in enumerate(self.held) if slot in slots])

    def keep_only(self, value: Tensor) -> None:
        """Treats one value as held, and no other."""
        self.held = [self._slots[id(value)]]

    def outputs(self) -> Sequence[Any]:
        """The buffers of the held values."""
        return self._program().program(*self.buffers)

    def _wire(self, nodes: Sequence[Node]) -> list[Any]:
        slots: dict[int, int] = {}
        key: list[Any] = []
        uses: list[int] = []
        for node in nodes:
            key.append(node.op)
            for x in node.inputs:
                slot = slots.get(id(x))
                if slot is None:
                    self.inputs.append(x)
                    self.buffers.append(program_input(x))
                    slot = slots[id(x)] = -len(self.inputs)
                    key.append(x.type)
                elif slot >= 0:
                    uses[slot] += 1
                key.append(slot)
            for y in _outputs_of(node):
                slots[id(y)] = len(self.values)
                self.values.append(y)
                uses.append(0)
        self._slots, self._uses = slots, uses
        return key

    def _find_held(self, pending: Sequence[Node]) -> list[int]:
        uses = self._uses
        for node in pending[len(self.nodes) :]:  # nodes after a cut count as holders
            for x in node.inputs:
                slot = self._slots.get(id(x))
                if slot is not None and slot >= 0:
                    uses[slot] -= 1_000_000
        return held_positions(self.values, uses, _BASELINE)

    def run(self) -> None:
        try:
            kept = self._program()
            outputs = kept.program(*self.buffers)
        except outside_interrupts(Exception):
            self._run_one_by_one()
            return
        kept.provenance.remember(self.nodes, self.inputs, self.values)
        for slot, buffer in zip(self.held, outputs, strict=True):
            value = self.values[slot]
            if value.node is not None:  # another thread may have computed it, with the same bits
                set_buffer(value, buffer)

    def release(self) -> None:
        """Drops unheld values and their operands at once: a node and its outputs form a cycle, and
        buffers must not wait for the garbage collector.
        """
        if len(self.held) == len(self.values):
            return
        held = {id(self.values[slot]) for slot in self.held}
        self.values.clear()
        for node in self.nodes:
            outputs = node.outputs
            if not isinstance(outputs, _Released) and not held.issuperset(map(id, outputs)):
                node.outputs = _Released(map(weakref.ref, outputs))

    def _program(self) -> _Kept:
        kept = _programs.get(self.key)
        if kept is None:
            graph = dead_code(self._graph(self.held))
            graph.cache.setdefault(ASSIGNED, [(place, None) for place in self.assigned])
            kept = _Kept(program_of(graph), self._provenance_map())
            kept = _programs.setdefault(self.key, kept)
        return kept

    def _provenance_map(self) -> ProvenanceMap:
        slots, values = self._slots, iter(enumerate(self.values))
        wires, copies = [], []
        for node in self.nodes:
            made = [*islice(values, len(node.outputs))]
            wires.append(([slots[id(x)] for x in node.inputs], len(made)))
            copies += [slot for slot, _ in made if isinstance(node.op, Identity)]
        return ProvenanceMap(wires, self.held, copies)

    def _graph(self, held: Sequence[int]) -> Graph:
        with Builder("top_level") as builder:
            env = {x: builder.input_like(x) for x in self.inputs}
            # The nodes' own outputs another thread may release meanwhile.
            values = iter(self.values)
            for node in self.nodes:
                made = builder.add(node.op, tuple([env[x] for x in node.inputs]), node.source)
                env.update(zip(islice(values, len(made)), made, strict=True))
            return builder.finish([env[self.values[slot]] for slot in held])

    def _run_one_by_one(self) -> None:
        """After a failure, computes each held value separately, with only the nodes that it needs;
        those that fail keep their error."""
        self.has_failed = True
        undo: list[Callable[[], None]] = []
        for slot in self.held:
            set_buffer(self.values[slot], self._computed_alone(slot, undo))

    def _computed_alone(self, slot: int, undo: list[Callable[[], None]]) -> Any:
        """The buffer of one value, or its failure."""
        try:
            (buffer,) = program_of(dead_code(self._graph([slot])))(*self.buffers)
        except outside_interrupts(Exception) as error:
            return Failure(run_failure(error, self.values[slot].source), undo)
        return buffer

    def last_good(self, values: Sequence[Tensor], former: Any) -> Any:
        """The last of the values that does not fail, or else the former content."""
        for value in reversed(values):
            buffer = getattr(value, "buffer", None)
            if buffer is None and id(value) in self._slots:
                buffer = self._computed_alone(self._slots[id(value)], [])
            if buffer is not None and type(buffer) is not Failure:
                return buffer
        return former


#: Compiles a graph to something that runs it with its effects; the floor of effects sets it.
_runners: list[Callable[[Graph], Any]] = [backend.program]


def set_program_maker(make: Callable[[Graph], Any]) -> None:
    """Called once, by the code that runs graphs with effects."""
    _runners[:] = [make]


def program_of(graph: Graph) -> Any:
    """The callable that computes a graph: from the buffers of its inputs to those of its
    outputs."""
    return _runners[0](graph)


def held_positions(values: list[Tensor], uses: list[int], baseline: int) -> list[int]:
    """Positions of the tensors with more references than the pending nodes account for."""
    return [i for i, y in enumerate(values) if getrefcount(y) > uses[i] + baseline]


def _calibrated() -> int:
    """References to a tensor held only by its node and a batch, as `held_positions` counts them."""
    node = Node(None, (), here(), None)  # type: ignore[arg-type]
    node.outputs = (pending_tensor(None, node),)  # type: ignore[arg-type]
    values = list(node.outputs)
    return next(b for b in range(1, 100) if not held_positions(values, [0], b))


_BASELINE = _calibrated()


class _Kept(NamedTuple):
    """A program, and the provenance of its results."""

    program: Any
    provenance: ProvenanceMap


class _Programs:
    """Programs by structure; drops the least recently used first."""

    def __init__(self, limit: int) -> None:
        self._kept: LRUCache[Any, _Kept] = LRUCache(limit)
        self.compiled = 0

    def get(self, key: Any) -> _Kept | None:
        return self._kept.get(key)

    def setdefault(self, key: Any, kept: _Kept) -> _Kept:
        """The entry for a key: `kept`, unless another thread was faster."""
        found = self._kept.setdefault(key, kept)
        self.compiled += found is kept
        return found


_programs = _Programs(_PROGRAM_LIMIT)


def compiled_count() -> int:
    """How many programs the top level has compiled in this process."""
    return _programs.compiled


def device_buffer(tensor: Tensor) -> Any:
    """The buffer of a tensor, computed if need be and on the device. Raises an earlier failure."""
    try:
        buffer = tensor.buffer
    except AttributeError:
        materialise(tensor)
        try:
            buffer = tensor.buffer
        except AttributeError:
            buffer = _sent(tensor)
    if type(buffer) is Failure:
        buffer.raise_error()
    return buffer


def _sent(tensor: Tensor) -> Any:
    """Moves a value from the host or a file to its buffer; from a file, each device may read only
    its part. Another thread, or a handler, may do so meanwhile: the value is without a buffer or
    without a host, never both."""
    try:
        host = tensor.host
    except AttributeError:
        return tensor.buffer
    divide = getattr(host, "sent", None)
    buffer = tensor.buffer = backend.put(host_value(tensor)) if divide is None else divide()
    with contextlib.suppress(AttributeError):
        del tensor.host
    return buffer


def host_value(tensor: Tensor) -> Any:
    """The array of a tensor on the host; one in a file is read now."""
    try:
        host = tensor.host
    except AttributeError:  # it was moved meanwhile
        return backend.on_host(tensor.buffer)
    if not isinstance(host, np.ndarray | np.generic):
        host = tensor.host = host.read()
    return host


#: Stands for the host of a value that another thread moved to the device.
_MOVED: Any = object()


def program_input(tensor: Tensor) -> Any:
    """The argument that a top-level program takes for a tensor with a value. Small host arrays stay
    on the host, since most are numbers that are used once."""
    try:
        buffer = tensor.buffer
    except AttributeError:
        if tensor.node is not None:
            return device_buffer(tensor)
        host = getattr(tensor, "host", _MOVED)
        if host is None:
            # What is computed from it fails too, and does not stay pending.
            tensor.buffer = buffer = Failure(_without_value(tensor), [])
            raise buffer.error from None
        is_small = host is not _MOVED and host.nbytes <= _HOST_BYTES
        return host_value(tensor) if is_small else device_buffer(tensor)
    if type(buffer) is Failure:
        raise buffer.error  # which makes results fail too: nobody has been told of it yet
    return buffer


def _without_value(tensor: Tensor) -> Exception:
    """The error for a value computed from a tensor that only stands for a Variable."""
    fact = f"a tensor {tensor.type} has no value: it is the handle of the variable {tensor.name!r}"
    return SignatureError(message(fact, source=user_line(), fix="use the variable itself"))


def run_failure(error: Exception, source: Source) -> Exception:
    """The error of a program that failed to run, with the user's line."""
    is_deleted = isinstance(error, RuntimeError) and "deleted" in str(error)
    if not is_of_run(error) and not is_deleted:
        return error
    fact = f"the program could not run: {fact_of(error)}"
    if "RESOURCE_EXHAUSTED" in str(error):
        fix = "compute with fewer or smaller tensors"
        return ResourceExhaustedError(message(fact, source=source, fix=fix))
    fix = _DELETED if is_deleted else ""
    return LoweringError(message(fact, source=source, fix=fix))


_DELETED = "an array of JAX's was given away: pass its copy, jax.numpy.copy(x), to what keeps it"


def materialise_endless(tensor: Tensor) -> None:
    """Computes the value of `tensor` if it is pending with a loop that may never end: an interrupt
    of that loop then comes before what is done with the value."""
    builder = tensor.node and tensor.node.builder
    if isinstance(builder, Pending) and builder.may_never_end:
        materialise(tensor)


def note_assigned(slot: Assignable, value: Tensor, former: Any) -> None:
    """Notes that a pending value is about to replace the content `former` of a slot, which gets
    that back if the value fails."""
    builder = value.node and value.node.builder
    if isinstance(builder, Pending):  # unless an interrupt has had the value computed
        builder.note_assigned(slot, value, former)


def raise_failures(buffers: Iterable[Any]) -> None:
    """Raises the error of the first buffer whose computation failed."""
    for buffer in buffers:
        if type(buffer) is Failure:
            buffer.raise_error()


def materialise(tensor: Tensor) -> None:
    """Computes the value of `tensor` if needed. Raises the error of a failed computation."""
    node = tensor.node
    if node is not None:
        builder = node.builder
        if builder is None or not builder.is_top_level:
            refuse_value(tensor)
        assert isinstance(builder, Pending)
        builder.evaluate(node)
        if tensor.node is not None:  # the list is running, or the value was judged dead
            _recompute(tensor)
    failure = failure_of(tensor)
    if failure is not None:
        failure.raise_error()


def _recompute(tensor: Tensor) -> None:
    """Computes a value from its node and that node's dependences, without the list: no value is
    ever lost. At worst the list's own thread computes the same value concurrently."""
    builder = tensor.node.builder  # type: ignore[union-attr]
    assert isinstance(builder, Pending)
    builder.alone(lambda _: _compute_alone(tensor))


def _compute_alone(tensor: Tensor) -> None:
    order = _needed_nodes(tensor.node)
    _Batch(order, order, trust_counts=False).run()


def _needed_nodes(last: Node | None) -> list[Node]:
    """The nodes that compute the outputs of a pending node, in order; none for None."""
    order: dict[Node, None] = {}
    stack = [] if last is None else [last]
    while stack:
        nodes = [x.node for x in stack[-1].inputs]
        waiting = [node for node in nodes if node is not None and node not in order]
        if waiting:
            stack.extend(waiting)
        else:
            order.setdefault(stack.pop())
    return [*order]


def buffer_alone(tensor: Tensor) -> Any:
    """The buffer of a pending tensor, whose nodes stay pending. Its operands are not kept, even if
    they are held, so together they may exceed the memory of one device."""
    builder = tensor.node.builder  # type: ignore[union-attr]
    assert isinstance(builder, Pending)

    def computed(_: bool) -> Any:
        order = _needed_nodes(tensor.node)
        batch = _Batch(order, order, trust_counts=False)
        batch.keep_only(tensor)
        (buffer,) = batch.outputs()
        return buffer

    return builder.alone(computed)


def _outputs_of(node: Node) -> tuple[Tensor, ...]:
    """The outputs of a pending node, which has them again if they were released."""
    outputs = node.outputs
    if isinstance(outputs, _Released):
        outputs = node.outputs = outputs.restored(node)
    return outputs


class _Released(tuple):
    """Weak references that replace the outputs of a node that has run and seemed unneeded."""

    def restored(self, node: Node) -> tuple[Tensor, ...]:
        """The outputs, with new tensors in place of dead ones."""
        types = node.op.output_types(node.inputs)
        found = (reference() for reference in self)
        pairs = zip(found, types, strict=True)
        return tuple(pending_tensor(type, node) if y is None else y for y, type in pairs)


@contextlib.contextmanager
def in_host_call(pending: Builder | None = None) -> Iterator[None]:
    """A context for a Python function that a program calls: inside, this thread has a fresh pending
    list, since its usual one may be running. Nothing outside records its nodes.

    `pending` is the list of an earlier call whose recording continues.
    """
    where = builder_of_thread()
    builder, top_level = where.builder, where.top_level
    where.builder = where.top_level = pending = pending or Pending()
    pending.is_of_host_call = True
    try:
        yield
    finally:
        where.builder, where.top_level = builder, top_level


set_top_level(Pending)

__all__ = [
    "Failure",
    "LoweringError",
    "Pending",
    "compiled_count",
    "device_buffer",
    "in_host_call",
    "materialise",
]
