"""The elements of a procedure: the programs of its parts; the pieces of a run, which compute parts
and store Variables atomically; and the branches and loops that run from Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.control_passes.split_at_cuts import Part, has_calls_that_see, variable_input
from tracegraph.core.later import opened
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.shapes import static_shape, substitute_shape, substitute_size
from tracegraph.core.types import TensorType
from tracegraph.eager import backend
from tracegraph.eager.slots import Slot, run_program, state_lock, store_together_if_same
from tracegraph.errors import InvalidArgumentError, fail, warn
from tracegraph.ir.builder import operand_text
from tracegraph.ir.op import Op, RunRegion
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import STOP, HostCall, Store
from tracegraph.passes.specialise import bind_sizes, with_known_sizes

if TYPE_CHECKING:
    from tracegraph.effects.procedure import ProcedureRun
    from tracegraph.padding.padded import Padded

#: How many programs to keep per part: one for each of the latest sizes.
MOST_PROGRAMS = 128
#: So many programs of one part, for different sizes, are a reason to warn.
_MANY_PROGRAMS = 5


class DoesNotFit(Exception):
    """A size exceeds its padded size."""


class Stopped(Exception):
    """A check failed, and the rest of the run does not happen. `error` is the check's error, if it
    is inside a branch or a loop."""

    error: Exception | None = None


class SizesChanged(Exception):
    """Another thread or an interrupt has resized a Variable before a program read it that is for
    its former sizes: nothing has happened yet."""


def check_sizes(types: Iterable[TensorType], contents: Iterable[Any]) -> None:
    """Raises SizesChanged if the contents of Variables have other sizes than these types."""
    if any(map(_is_resized, types, contents)):
        raise SizesChanged


def _is_resized(type: TensorType, content: Any) -> bool:
    return type.is_static and type.shape != tuple(content.shape)


class PartProgram:
    """A part and its programs: a single one, or one for each set of sizes known when it begins."""

    def __init__(self, part: Part, name: str, is_first: bool, make: Callable[[Graph], Any]) -> None:
        """`name` is that of the whole graph, for a warning of many sizes."""
        self._part = part
        self._name = name
        self._make = make
        self._is_first = is_first
        self._programs: LRUCache[tuple[Any, ...], Any] = LRUCache(MOST_PROGRAMS)
        #: Whether some of its sizes are known only when it begins.
        self._has_sizes = bool(part.names) or not part.graph.is_static
        #: The sizes that are read when it ends, by name.
        self._sizes = [(str(node.op.attributes[0]), node) for node in part.sizes]
        self.effects = part.effects

    def programs(self) -> list[Any]:
        """Its programs; if they depend on sizes that runs find, those compiled so far."""
        if self._has_sizes:
            return [p for p in map(self._programs.get, list(self._programs)) if p is not None]
        return [self._only_program] if self._part.outputs else []

    def check_padding(self) -> None:
        """Raises ShapeError if the part has sizes that runs find, and cannot be padded."""
        if self._has_sizes and self._part.outputs:
            _ = self._padded

    def reads(self, run: ProcedureRun) -> list[tuple[Tensor, Slot]]:
        """The tensors that take a Variable's value at the start of the part, with the Variables."""
        found = list(run.variables.items()) if self._is_first else []
        for node in self._part.loads:
            slot = run.slot(node.inputs[1])
            if slot is None:  # in a parallel loop: the value that its body received
                run.env[node.outputs[0]] = run.value(variable_input(node.inputs[1]))
            else:
                found.append((node.outputs[0], slot))
        return found

    def compute(self, run: ProcedureRun) -> None:
        """Runs the part's program, and reads the sizes that it computes."""
        part = self._part
        if part.outputs:
            buffers = [run.value(x) for x in part.inputs]
            compute = self._compute
            if self._has_sizes and run.bucket_of is not None:
                compute = self._compute_apart if run.has_effects else self._compute_padded
            run.env.update(zip(part.outputs, compute(run, buffers), strict=True))
        for name, node in self._sizes:
            run.read_size(name, node)

    def _compute(self, run: ProcedureRun, buffers: Sequence[Any]) -> Sequence[Any]:
        if not self._has_sizes:
            return run_program(self._only_program, buffers)
        sizes = {name: run.size(name) for name in self._part.names}
        return run_program(self._program(self._part.graph, buffers, sizes), buffers)

    def _compute_padded(self, run: ProcedureRun, buffers: Sequence[Any]) -> Sequence[Any]:
        found = self._padded
        true = {name: run.size(name) for name in found.names}
        wide = {name: run.padded_size(name) for name in found.names}
        for size in found.growing:
            if substitute_size(size, true) > substitute_size(size, wide):
                raise DoesNotFit
        given = [*buffers, *(np.asarray(size, np.int32) for size in true.values())]
        return run_program(self._program(found.graph, given, wide), given)

    def _compute_apart(self, run: ProcedureRun, buffers: Sequence[Any]) -> Sequence[Any]:
        """Pads what the part is given, and cuts what it computes to size: in a run with effects,
        Python may take it."""
        found, bucket_of, types = self._padded, run.bucket_of, self._part.graph.input_types
        assert bucket_of is not None
        if any(buffer is None for buffer in buffers):  # what an aborted run did not compute
            return self._compute(run, buffers)
        true = bind_sizes(types, types_known(types, buffers))
        true.update((name, run.size(name)) for name in self._part.names)
        wide = {name: bucket_of(true[name]) or true[name] for name in found.names}
        if any(substitute_size(n, true) > substitute_size(n, wide) for n in found.growing):
            return self._compute(run, buffers)
        shapes = (static_shape(substitute_shape(type.shape, wide)) for type in types)
        given = [*map(_widened, buffers, shapes)]
        given += [np.asarray(true[name], np.int32) for name in found.names]
        outputs = run_program(self._program(found.graph, given, wide), given)
        shapes = (static_shape(substitute_shape(y.type.shape, true)) for y in self._part.outputs)
        return [*map(narrowed, outputs, shapes)]

    @functools.cached_property
    def _only_program(self) -> Any:
        """The program of a part whose sizes are all known."""
        with backend.compiling:
            return self._make(self._part.graph)

    @functools.cached_property
    def _padded(self) -> Padded:
        graph = self._part.graph
        count, results = len(graph.inputs), range(len(graph.outputs))
        padded = opened("tracegraph.padding.padded").padded
        return padded(graph, count, results, range(0), self._part.names)

    def _program(self, graph: Graph, buffers: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        types = graph.input_types
        if not graph.is_static:
            types = types_known(types, buffers)
        key = (graph, types, *sizes.values())
        program = self._programs.get(key)
        if program is None:
            with backend.compiling:
                program = self._programs.get(key)
                if program is None:
                    known = with_known_sizes(graph, types, sizes)
                    program = self._make(known.assigning_as(graph))
                    self._programs.put(key, program)
            exact = [key for key in self._programs if key[0] is self._part.graph]
            if graph is self._part.graph and len(exact) == _MANY_PROGRAMS:
                self._tell_of_sizes(exact)
        return program

    def _tell_of_sizes(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Warns of many sizes, each of which is compiled; `keys` are those of the programs."""
        found = []
        for graph, types, *read in keys:
            sizes = read or [*bind_sizes(graph.input_types, types).values()]
            found.append(str(sizes[0]) if len(sizes) == 1 else str(tuple(sizes)))
        warn(
            f"one trace of {self._name} was compiled for {_MANY_PROGRAMS} different sizes that its "
            f"runs found, which is slow: XLA compiles each size again. Sizes so far: "
            f"{', '.join(found)}. Pad them to few sizes with "
            'tg.function(bucket_sizes="powers_of_two"), or compute with all elements and a mask',
            once=True,
        )


def _widened(value: Any, shape: tuple[int, ...]) -> Any:
    """A value with zeros at the ends of its axes, on the host; the value itself if it has this
    shape."""
    if tuple(value.shape) == shape:
        return value
    wide = np.zeros(shape, value.dtype)
    wide[tuple(map(slice, value.shape))] = backend.on_host(value)
    return wide


def narrowed(value: Any, shape: tuple[int, ...]) -> Any:
    """The part of a padded value that has this shape, on the host; the value itself if that is
    all."""
    if tuple(value.shape) == shape:
        return value
    return np.ascontiguousarray(backend.on_host(value)[tuple(map(slice, shape))])


class Piece:
    """The work of a run between two calls that may observe Variables: it reads Variables, computes,
    prints, and stores everything atomically. If another thread or a signal handler assigned one of
    them meanwhile, it recomputes everything, and prints nothing twice."""

    def __init__(self, run: ProcedureRun, is_first: bool = False) -> None:
        self._run = run
        #: Whether no Python function has been called yet.
        self._is_first = is_first
        #: Parts, and the effects between them.
        self._steps: list[PartProgram | Node] = []
        #: The Variables that were read, and their values at that time.
        self._known: list[Slot] = []
        self._olds: list[Any] = []
        #: The values to store in Variables.
        self._stores: list[tuple[Any, Slot]] = []
        #: Prints deferred until the stores, so that they show what was computed last.
        self._prints: list[Node] = []
        #: Whether it is recomputing.
        self.is_silent = False

    def take(self, step: PartProgram | Node) -> None:
        """Runs a part, or performs an effect that observes no Variable. If a check failed, stores
        what was assigned before it and stops the run."""
        self._steps.append(step)
        if isinstance(step, Node) and is_print(step):
            self._prints.append(step)
            return
        if not isinstance(step, Node) or step.op.regions:  # earlier prints come first
            self._print()
        stop = self._stop_of(step)
        while stop is not None:
            if self._is_stored(self._stores):
                self._print()
                raise stop
            stop = self._stop_anew()

    def end(self, final_stores: Sequence[tuple[Tensor, Slot]] = ()) -> None:
        """Stores everything, and performs the remaining prints."""
        run, stop = self._run, None
        while True:
            final = [(run.output(y), slot) for y, slot in final_stores] if stop is None else []
            if self._is_stored([*self._stores, *final]):
                break
            stop = self._stop_anew()
        self._print()
        if stop is not None:
            raise stop

    def store(self, run: ProcedureRun, node: Node) -> None:
        """Records what a node of a run stores."""
        slot = run.slot(node.inputs[1])
        assert slot is not None, f"{node} stores in what stands for no Variable"
        self._stores.append((run.output(node.inputs[2]), slot))

    def _is_stored(self, stores: Sequence[tuple[Any, Slot]]) -> bool:
        if not stores or self._run.is_repeated:
            return True
        new, slots = [value for value, _ in stores], [slot for _, slot in stores]
        with state_lock:
            return store_together_if_same(slots, new, self._known, self._olds)

    def _stop_anew(self) -> Stopped | None:
        """Recomputes everything, up to a check that fails."""
        self._known, self._olds, self._stores, self.is_silent = [], [], [], True
        stops = (self._stop_of(step) for step in self._steps)
        found = next((stop for stop in stops if stop is not None), None)
        self.is_silent = False
        return found

    def _stop_of(self, step: PartProgram | Node) -> Stopped | None:
        """Runs a part, or performs an effect. If a check failed, returns what stops the run."""
        try:
            if isinstance(step, PartProgram):
                self._compute(step)
            elif isinstance(step.op, Store):
                self.store(self._run, step)
            elif not is_print(step):
                self._run.make(step, self)
        except Stopped as stop:
            return stop
        return None

    def _compute(self, part: PartProgram) -> None:
        run, reads = self._run, part.reads(self._run)
        known = [slot for _, slot in reads]
        olds = run.values_of(known)
        for (x, _), old in zip(reads, olds, strict=True):
            if self._is_first:
                check_sizes((x.type,), (old,))
            else:
                _check_shape(x, old)
            run.env[x] = old
        part.compute(run)
        self._known += known
        self._olds += olds

    def _print(self) -> None:
        for node in self._prints:
            self._run.call(node)
        self._prints = []


def _check_shape(x: Tensor, value: Any) -> None:
    """Refuses a Variable that has been given another shape since the run called Python: the run has
    computed with the former sizes."""
    node = x.node
    if node is not None and _is_resized(x.type, value):
        old, new = list(x.type.shape), list(value.shape)
        fail(
            InvalidArgumentError,
            f"a Variable had the shape {old} when this run began, and has been given the shape "
            f"{new} after a call of Python",
            source=node.source,
            operands=[operand_text(node.inputs[1])],
            fix="read it in another call, which begins with the new shape, or keep the shape",
        )


def is_print(node: Node) -> bool:
    """Whether it is a call that prints, among effects that observe no Variable."""
    return isinstance(node.op, HostCall) and node.op.function != STOP


def shows_state(node: Node) -> bool:
    """Whether it calls Python functions that may observe Variables."""
    if isinstance(node.op, HostCall):
        return node.op.sees_variables
    return any(has_calls_that_see(region.graph) for region in node.op.regions)


def types_known(types: Sequence[TensorType], buffers: Sequence[Any]) -> tuple[TensorType, ...]:
    """The types of the actual values: Python functions have chosen the sizes that were open. A
    value that an aborted run did not compute is None, and keeps its type."""
    return tuple(
        t if t.is_static or b is None else t.with_shape(tuple(b.shape))
        for t, b in zip(types, buffers, strict=True)
    )


# Branches and loops with effects: each region runs separately, so that effects can happen in the
# middle of it.


def interpret(op: Op, values: Sequence[Any], run: RunRegion) -> Sequence[Any]:
    """The outputs of a branch or a loop, from the values of its inputs."""
    assert op.can_interpret, f"{op} has effects, and nothing runs it"
    return op.interpret(values, run, backend.on_host)
