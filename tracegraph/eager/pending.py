"""The top level: nodes are pending until somebody asks for a value; then they run as one program.

Programs are cached by structure: the ops and types, how they are wired, and which values are held.
A value is *held* if somebody other than the pending nodes refers to its tensor, which its
reference count tells. Values that nobody holds are never computed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getrefcount
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.source import Source, here, user_frame
from tracegraph.eager import backend
from tracegraph.eager.provenance import ProvenanceMap
from tracegraph.errors import (
    LoweringError,
    ResourceExhaustedError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
    message,
)
from tracegraph.ir.builder import Builder, builder_of_thread, operand_text, set_top_level
from tracegraph.ir.tensor import Graph, Node, Tensor, pending_tensor, set_buffer
from tracegraph.ops.elementwise import Identity
from tracegraph.passes.simplify import dead_code

#: From this many pending nodes on, the list is cut where it repeats.
_FIRST_CUT = 64
#: Code that asks less often than this runs many iterations: the list is cut at this length. One
#: program of many iterations runs no faster and takes longer to compile; and nodes that are pending
#: for long reach the garbage collector's oldest generation, which is expensive to scan.
_LONGEST_ASKED = 1024
_MANY_CUT = 128
#: The list is never longer than this many nodes.
_LAST_CUT = 4096
#: Programs kept for the whole process.
_PROGRAM_LIMIT = 512
#: Host arrays larger than this, in bytes, move to the device at first use and stay there.
_HOST_BYTES = 256
#: How long a thread waits for another one to run its list, in seconds.
_PATIENCE = 0.1
_PRINT_FIX = "return it from the @tg.function, or print it there with tg.print"

T = TypeVar("T")
_exhaust = deque(maxlen=0).extend

#: An interpreter without a global lock counts references for each thread by itself, and defers
#: counts: there everything counts as held, so that nothing is dropped, and no buffer is given away.
COUNTS_ARE_TRUSTED: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Failure:
    """Stands for the buffer of a value whose computation failed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Pending(Builder):
    """The pending nodes of one thread."""

    is_top_level = True

    frames = 3  # `add`, `Op.__call__`
    #: Whether it belongs to a Python function that a program calls.
    is_of_host_call = False

    def __init__(self) -> None:
        super().__init__("top_level")
        self.lock = threading.RLock()
        self.thread = threading.get_ident()
        #: At this length the list is cut, from `_usual_cut` on after each run.
        self._next_cut = self._usual_cut = _FIRST_CUT
        #: How many nodes were cut off since somebody last asked.
        self._cut_off = 0
        #: Weak references to whatever keeps nodes and must drop them once they have run.
        self.keepers: list[weakref.ref[Any]] = []

    def admit_all(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([self.admit(x) for x in inputs])

    def admit(self, tensor: Tensor) -> Tensor:
        """A tensor from elsewhere: of another thread it is evaluated; of a trace it has leaked."""
        node = tensor.node
        if node is None or node.builder is self:
            return tensor
        if node.builder is not None and node.builder.is_top_level:
            materialise(tensor)
            return tensor
        refuse_leaked(tensor)

    def _cut(self) -> None:
        """Runs whole iterations of a loop that never asks for a value."""
        nodes = self.nodes[:]  # an interrupt may run them meanwhile
        if not nodes:
            return
        position = _last_like(nodes, nodes[0])
        if position == 0:
            # The list begins before the loop: run what comes before its second iteration.
            position = _first_like(nodes, nodes[-1]) + 1
            position = 0 if position == len(nodes) else position
        if position == 0 and len(nodes) >= _LAST_CUT:
            # All but the last node, whose outputs nobody has been given yet.
            position = len(nodes) - 1
        if position == 0:
            self._next_cut = 2 * len(nodes)
            return
        self._next_cut = self._usual_cut
        self._cut_off += position
        self._run(position)

    def evaluate(self) -> None:
        """Computes every held value that is pending: somebody has asked.

        A loop that asks in every iteration gets whole iterations, however long they are: the list
        is cut only where it grows well beyond what was pending when somebody last asked.
        """
        asked = self._cut_off + len(self.nodes)
        self._run(None)
        usual = max(_FIRST_CUT, 2 * asked) if asked <= _LONGEST_ASKED else _MANY_CUT
        self._usual_cut = self._next_cut = usual
        self._cut_off = 0

    def _run(self, count: int | None) -> None:
        """Computes every held value of the first `count` pending nodes; of all nodes if it is None.

        The list is emptied only after the values are stored, so an interrupt loses nothing. Nodes
        that an interrupt adds in the meantime come after these, and stay.
        """
        thread = threading.get_ident()
        if self.worker == thread:
            return  # who asks has what it wants made by itself
        if thread == self.thread:
            with self.lock:
                self._run_as(thread, count)
        else:
            self.alone(lambda is_alone: self._run_as(thread, count) if is_alone else None)

    def _run_as(self, thread: int, count: int | None) -> None:
        try:
            self.worker = thread
            self._run_first(count, thread == self.thread and COUNTS_ARE_TRUSTED)
        finally:
            self.worker = None

    def alone(self, work: Callable[[bool], T]) -> T:
        """What `work` returns, done while no other thread runs the list, if that comes soon; `work`
        is told. A signal handler may have struck the thread that runs its own list, and wait for
        what this thread holds, such as the lock of all Variables: each would wait for the other."""
        if threading.get_ident() == self.thread:
            with self.lock:
                return work(True)
        held: list[bool] = []
        try:
            # One call of C: no interrupt falls between the two.
            _exhaust(map(held.append, map(self.lock.acquire, (True,), (_PATIENCE,))))
            return work(held[0])
        finally:
            if held and held[0]:
                self.lock.release()

    def _run_first(self, count: int | None, trust_counts: bool) -> None:
        nodes = self.nodes[:count]
        if not nodes:
            return
        try:
            batch = _Batch(nodes, self.nodes, trust_counts)
        except Exception as error:
            if is_of_interrupt(error):
                raise
            # An input failed before.
            self._fail_dependents()
            nodes = self.nodes[:]
            batch = _Batch(nodes, nodes, trust_counts)
        batch.run()
        del self.nodes[: len(nodes)]
        batch.release()
        if self.keepers:
            self._tell_keepers()

    def _tell_keepers(self) -> None:
        keepers, self.keepers = self.keepers, []
        for reference in keepers:
            keeper = reference()
            if keeper is not None:
                keeper.let_go()

    def _fail_dependents(self) -> None:
        """Values computed from one that failed have failed too, and are no longer pending."""
        for node in self.nodes[:]:
            failures = (getattr(x, "buffer", None) for x in node.inputs)
            failure = next((x for x in failures if type(x) is Failure), None)
            if failure is not None:
                for y in node.outputs:
                    set_buffer(y, failure)
                self.nodes.remove(node)


def _last_like(nodes: Sequence[Node], node: Node) -> int:
    """The last position of the instruction that made `node`; 0 if there is none after it."""
    for position in range(len(nodes) - 1, 0, -1):
        if _is_like(nodes[position], node):
            return position
    return 0


def _first_like(nodes: Sequence[Node], node: Node) -> int:
    """The first position of the instruction that made `node`."""
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
        key = self._wire(nodes)
        self.held = self._find_held(pending) if trust_counts else list(range(len(self.values)))
        self._wires = tuple(key)

    @property
    def key(self) -> tuple[Any, ...]:
        """The structure: equal batches have one program."""
        return self._wires, tuple(self.held)

    def keep_only(self, value: Tensor) -> None:
        """Counts one value as held, and no other."""
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
            for y in node.outputs:
                slots[id(y)] = len(self.values)
                self.values.append(y)
                uses.append(0)
        self._slots, self._uses = slots, uses
        return key

    def _find_held(self, pending: Sequence[Node]) -> list[int]:
        uses = self._uses
        for node in pending[len(self.nodes) :]:  # what waits behind a cut counts as a holder
            for x in node.inputs:
                slot = self._slots.get(id(x))
                if slot is not None and slot >= 0:
                    uses[slot] -= 1_000_000
        return held_positions(self.values, uses, _BASELINE)

    def run(self) -> None:
        try:
            kept = self._program()
            outputs = kept.program(*self.buffers)
        except Exception as error:
            if is_of_interrupt(error):
                raise
            self._run_one_by_one()
            return
        kept.provenance.remember(self.nodes, self.inputs, self.values)
        for slot, buffer in zip(self.held, outputs, strict=True):
            value = self.values[slot]
            if value.node is not None:  # another thread may have computed it: it has its bits
                set_buffer(value, buffer)

    def release(self) -> None:
        """Drops at once the values that nobody holds, and what they were computed from: a node and
        its outputs refer to each other, and buffers must not wait for the garbage collector.
        """
        if len(self.held) == len(self.values):
            return
        held = {id(self.values[slot]) for slot in self.held}
        self.values.clear()
        for node in self.nodes:
            if not held.issuperset(map(id, node.outputs)):
                node.outputs = _Released(map(weakref.ref, node.outputs))

    def _program(self) -> _Kept:
        kept = _programs.get(self.key)
        if kept is None:
            kept = _Kept(program_of(self._graph(self.held)), self._provenance_map())
            kept = _programs.setdefault(self.key, kept)
        return kept

    def _provenance_map(self) -> ProvenanceMap:
        slots, nodes = self._slots, self.nodes
        wires = [([slots[id(x)] for x in node.inputs], len(node.outputs)) for node in nodes]
        copies = [slots[id(x.outputs[0])] for x in nodes if isinstance(x.op, Identity)]
        return ProvenanceMap(wires, self.held, copies)

    def _graph(self, held: Sequence[int]) -> Graph:
        with Builder("top_level") as builder:
            env = {x: builder.input_like(x) for x in self.inputs}
            for node in self.nodes:
                made = builder.add(node.op, tuple([env[x] for x in node.inputs]), node.source)
                env.update(zip(node.outputs, made, strict=True))
            return builder.finish([env[self.values[slot]] for slot in held])

    def _run_one_by_one(self) -> None:
        """After a failure: each held value by itself, from what it needs; those that fail keep
        their error."""
        for slot in self.held:
            value = self.values[slot]
            try:
                (buffer,) = program_of(dead_code(self._graph([slot])))(*self.buffers)
            except Exception as own:
                if is_of_interrupt(own):
                    raise
                set_buffer(value, Failure(run_failure(own, value.source)))
            else:
                set_buffer(value, buffer)


#: What runs a graph, effects included: set by the floor of effects.
_runners: list[Callable[[Graph], Any]] = [backend.program]


def set_program_maker(make: Callable[[Graph], Any]) -> None:
    """Called once, by what runs graphs with effects."""
    _runners[:] = [make]


def program_of(graph: Graph) -> Any:
    """What computes a graph: called with the buffers of its inputs, it returns those of its
    outputs."""
    return _runners[0](graph)


def held_positions(values: list[Tensor], uses: list[int], baseline: int) -> list[int]:
    """Positions of the tensors that have more references than pending nodes account for."""
    return [i for i, y in enumerate(values) if getrefcount(y) > uses[i] + baseline]


def _calibrated() -> int:
    """References of a tensor that only its node and a batch have, as `held_positions` sees it."""
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
        """What is kept by a key: `kept`, if no other thread was faster."""
        found = self._kept.setdefault(key, kept)
        self.compiled += found is kept
        return found


_programs = _Programs(_PROGRAM_LIMIT)


def compiled_count() -> int:
    """How many programs the top level has compiled in this process."""
    return _programs.compiled


def device_buffer(tensor: Tensor) -> Any:
    """The buffer of a tensor, made and on the device. Raises what failed."""
    try:
        buffer = tensor.buffer
    except AttributeError:
        materialise(tensor)
        try:
            buffer = tensor.buffer
        except AttributeError:
            buffer = tensor.buffer = _sent(tensor)
            del tensor.host
    if type(buffer) is Failure:
        raise buffer.error
    return buffer


def _sent(tensor: Tensor) -> Any:
    """The buffer of a value that is on the host, or in a file: of the latter each device may have a
    part."""
    divide = getattr(tensor.host, "sent", None)
    return backend.put(host_value(tensor)) if divide is None else divide()


def host_value(tensor: Tensor) -> Any:
    """The array of a tensor that is on the host; one that stands in a file is read now."""
    if not isinstance(tensor.host, np.ndarray | np.generic):
        tensor.host = tensor.host.read()
    return tensor.host


def program_input(tensor: Tensor) -> Any:
    """What a program at top level takes for a tensor that has a value. Small host arrays stay on
    the host, since most are numbers that are used once."""
    try:
        buffer = tensor.buffer
    except AttributeError:
        if tensor.node is not None:
            return device_buffer(tensor)
        is_small = tensor.host.nbytes <= _HOST_BYTES
        return host_value(tensor) if is_small else device_buffer(tensor)
    if type(buffer) is Failure:
        raise buffer.error
    return buffer


def run_failure(error: Exception, source: Source) -> Exception:
    """The error of a program that could not run, with the user's line."""
    is_deleted = isinstance(error, RuntimeError) and "deleted" in str(error)
    if type(error).__name__ != "JaxRuntimeError" and not is_deleted:
        return error
    fact = f"the program could not run: {fact_of(error)}"
    if "RESOURCE_EXHAUSTED" in str(error):
        fix = "compute with fewer or smaller tensors"
        return ResourceExhaustedError(message(fact, source=source, fix=fix))
    fix = _DELETED if is_deleted else ""
    return LoweringError(message(fact, source=source, fix=fix))


_DELETED = "an array of JAX's was given away: pass its copy, jax.numpy.copy(x), to what keeps it"


def raise_failures(buffers: Iterable[Any]) -> None:
    """Raises the error of the first buffer whose computation failed."""
    for buffer in buffers:
        if type(buffer) is Failure:
            raise buffer.error


def materialise(tensor: Tensor) -> None:
    """Computes the value of `tensor` if needed. Raises the error of a computation that failed."""
    node = tensor.node
    if node is not None:
        builder = node.builder
        if builder is None or not builder.is_top_level:
            refuse_value(tensor)
        assert isinstance(builder, Pending)
        builder.evaluate()
        if tensor.node is not None:  # the list is being run, or the value was judged dead
            _recompute(tensor)
    if type(getattr(tensor, "buffer", None)) is Failure:
        raise tensor.buffer.error


def _recompute(tensor: Tensor) -> None:
    """Computes a value from its node and the nodes that it needs, without the list: no value is
    ever lost. At worst the thread whose list it is computes the same beside it."""
    builder = tensor.node.builder  # type: ignore[union-attr]
    assert isinstance(builder, Pending)
    builder.alone(lambda _: _compute_alone(tensor))


def _compute_alone(tensor: Tensor) -> None:
    order = _needed_nodes(tensor)
    _Batch(order, order, trust_counts=False).run()


def _needed_nodes(tensor: Tensor) -> list[Node]:
    """The nodes that compute a pending tensor, in order."""
    needed: list[Node] = []
    stack, seen = [tensor.node], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        needed.append(node)
        if isinstance(node.outputs, _Released):
            node.outputs = node.outputs.restored(node)
        stack.extend(x.node for x in node.inputs)
    return _topological(needed)


def buffer_alone(tensor: Tensor) -> Any:
    """The buffer of a pending tensor, whose nodes stay pending. What it is computed from is not
    kept, whoever holds it: so it may be larger than the memory of one device."""
    builder = tensor.node.builder  # type: ignore[union-attr]
    assert isinstance(builder, Pending)

    def computed(_: bool) -> Any:
        order = _needed_nodes(tensor)
        batch = _Batch(order, order, trust_counts=False)
        batch.keep_only(tensor)
        (buffer,) = batch.outputs()
        return buffer

    return builder.alone(computed)


class _Released(tuple):
    """Weak references in place of the outputs of a node that has run and seemed unneeded."""

    def restored(self, node: Node) -> tuple[Tensor, ...]:
        """The outputs, with new tensors for those that are gone."""
        types = node.op.output_types(node.inputs)
        found = (reference() for reference in self)
        pairs = zip(found, types, strict=True)
        return tuple(pending_tensor(type, node) if y is None else y for y, type in pairs)


def _topological(nodes: list[Node]) -> list[Node]:
    chosen = set(nodes)
    order: list[Node] = []
    placed: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack[-1]
        if node in placed:
            stack.pop()
            continue
        waiting = [x.node for x in node.inputs if x.node in chosen and x.node not in placed]
        if waiting:
            stack.extend(waiting)  # type: ignore[arg-type]
        else:
            order.append(stack.pop())
            placed.add(node)
    return order


def refuse_value(
    tensor: Tensor,
    what: str = "its value",
    fix: str = _PRINT_FIX,
    *,
    kind: type[TraceError] = TraceError,
) -> NoReturn:
    """Raises the TraceError for a value that a graph tensor does not have."""
    builder = None if tensor.node is None else tensor.node.builder
    if builder is not None and not builder.is_open:
        refuse_leaked(tensor)
    fail(
        kind,
        f"{what} was asked of a tensor {tensor.type} that has no value while tracing",
        operands=[operand_text(tensor)],
        fix=_argument_fix(tensor) or fix,
    )


def refuse_leaked(tensor: Tensor) -> NoReturn:
    """Raises the SignatureError for a tensor used outside of the trace that made it."""
    where = "a @tg.function that was traced"
    fix = "return it from the function, and use the returned value"
    builder = None if tensor.node is None else tensor.node.builder
    region = getattr(builder, "region", None)
    if region is not None:
        where = f"the branch or the body of the loop at {region}"
        fix = (
            "return it from there, or set the name in the statement itself: what a function called "
            "there sets, by `nonlocal` or in an object, is not state of the statement"
        )
        if builder is not None and builder.is_open:  # what is outside is a tape that knows another
            where += ", which is not traced to its end"
            fix = (
                "open the GradientTape or the ForwardAccumulator in the branch or the body, or "
                "watch before it and ask behind it: one from outside follows what the statement "
                "returns"
            )
    fail(
        SignatureError,
        f"a tensor {tensor.type} is out of scope: it belongs to {where}, and it was used outside",
        operands=[operand_text(tensor)],
        fix=_argument_fix(tensor) or fix,
    )


def _argument_fix(tensor: Tensor) -> str:
    """The repair where a Python function that a program calls uses a tensor that was traced."""
    if not builder_of_thread().top_level.is_of_host_call:  # type: ignore[attr-defined]
        return ""
    frame = user_frame()
    known = {} if frame is None else frame.f_locals
    name = next((name for name, value in known.items() if value is tensor), "the tensor")
    rows = "in inp=" if name == "the tensor" else f"inp=[..., {name}]"
    return f"give {name} to the Python function as an argument, {rows}, and use that there"


@contextlib.contextmanager
def in_host_call(pending: Builder | None = None) -> Iterator[None]:
    """A context for a Python function that a program calls: this thread has a pending list of its
    own there, since the list it had may be what is being run. Nothing outside records it.

    `pending` is the list of an earlier call, whose recording continues.
    """
    where = builder_of_thread()
    builder, top_level = where.builder, where.top_level
    where.builder = where.top_level = pending = pending or Pending()
    pending.is_of_host_call = True  # type: ignore[attr-defined]
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
    "refuse_leaked",
    "refuse_value",
]
