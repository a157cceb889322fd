"""Graphs that are cut: their parts run one after another. Between them Python performs the effects
and reads the sizes for which the next part is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tracegraph.control_passes.split_at_cuts import (
    Part,
    SplitGraph,
    operands,
    split_at_cuts,
    variable_input,
)
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.shapes import static_shape, substitute_shape
from tracegraph.core.source import Source
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import TOKEN, TensorType, type_of_array
from tracegraph.eager import backend
from tracegraph.eager.pending import set_program_maker
from tracegraph.eager.slots import (
    Slot,
    gathered,
    move_variables,
    run_program,
    state_lock,
    store_together_if_same,
)
from tracegraph.effects.pieces import (
    MOST_PROGRAMS,
    DoesNotFit,
    PartProgram,
    Piece,
    Stopped,
    check_sizes,
    interpret,
    is_print,
    narrowed,
    shows_state,
    types_known,
)
from tracegraph.effects.record import Record, ResultShapeError
from tracegraph.errors import (
    InvalidArgumentError,
    Mismatch,
    UnrolledLoopWarning,
    fail,
    message,
    warn,
)
from tracegraph.ir.builder import operand_text, raise_mismatch
from tracegraph.ir.tensor import ASSIGNED, Graph, Node, Tensor
from tracegraph.ops.constant import RuntimeSize
from tracegraph.ops.effect import (
    STOP,
    Check,
    HostCall,
    Made,
    Store,
    host_function,
    sizes_of_loops,
    token_of,
)
from tracegraph.passes.specialise import bind_sizes, with_known_sizes
from tracegraph.tracing.trace import CheckReport

#: The operands of a range check: the smallest and the largest number, and the two bounds.
_RANGE_OPERANDS = 4
#: How many sizes of one region are a reason to warn.
_MANY_SIZES = 32
#: The value of a token, which orders effects and carries no information.
START = np.zeros((), np.bool_)


#: Maps a size to the one that programs are compiled for, or to None if that is the size itself.
BucketOf: TypeAlias = Callable[[int], "int | None"]


class Procedure:
    """A graph that is cut, ready to run: like a program, it maps the buffers of its inputs to those
    of its outputs."""

    #: A run may end at any cut, so no buffer is donated.
    donated = ()

    def __init__(
        self,
        graph: Graph,
        bucket_of: BucketOf | None = None,
        make: Callable[[Graph], Any] = backend.program,
    ) -> None:
        """`bucket_of` maps a size read at run time to the one that later parts are compiled for, or
        to None if they are compiled for the size itself. `make` compiles a graph."""
        self.split: SplitGraph = split_at_cuts(graph)
        parts = self.split.parts
        _tell_assigned(self.split, graph)
        self._parts = [PartProgram(part, graph.name, i == 0, make) for i, part in enumerate(parts)]
        self._bucket_of = bucket_of
        #: The tokens after calls whose derivatives are called, here or by users of the outputs.
        self._kept = frozenset({*_tokens_of_derivatives(parts), *self.split.graph.outputs})
        effects = [node.op for part in parts for node in part.effects]
        self._may_find_other_shapes = any(isinstance(x, HostCall) and x.undeclared for x in effects)
        self._has_effects = bool(effects)
        if bucket_of is not None and self._has_effects:  # before any of them happens
            for part in self._parts:
                part.check_padding()

    def __call__(self, *buffers: Any) -> tuple[Any, ...]:
        return self.run(buffers, {}, [])

    def programs(self) -> list[Any]:
        """The programs of the parts; of those that depend on sizes found by runs, the ones so
        far."""
        return [program for part in self._parts for program in part.programs()]

    def run(
        self,
        buffers: Sequence[Any],
        variables: Mapping[int, Slot],
        assigned: Sequence[tuple[int, Slot]],
        record: Record | None = None,
        is_tracing: bool = False,
    ) -> tuple[Any, ...]:
        """Maps the buffers of the inputs to those of the outputs. If a check fails that precedes a
        Python function, the run ends there: everything later has None for a buffer.

        - `variables`: the Variables that inputs represent, by position; such inputs have no buffer.
        - `assigned`: positions of outputs, and the Variables that get their values at the end.
        - `record`: what was done already; while the call is being traced, the run adds to it.
        """
        graph = self.split.graph
        move_variables(graph, buffers, variables)
        by_input = {graph.inputs[i]: v for i, v in variables.items()}
        if self._may_find_other_shapes and record is None:
            record = Record()
        is_recording = is_tracing or self._may_find_other_shapes
        run = ProcedureRun(by_input, record, is_recording, self._kept)
        run.env.update(zip(graph.inputs, buffers, strict=True))
        final_stores = [(graph.outputs[i], variable) for i, variable in assigned]
        run.bucket_of, run.has_effects = self._bucket_of, self._has_effects
        if not self._has_effects:
            self._compute_and_store(run, final_stores)
            return tuple(map(run.output, graph.outputs))
        try:
            self._run_parts(run, final_stores)
        except Stopped as stop:
            if stop.error is not None:
                raise stop.error from None
            return tuple(map(run.env.get, graph.outputs))
        return tuple(map(run.output, graph.outputs))

    def run_region(
        self, buffers: Sequence[Any], handles: Mapping[Tensor, Slot], piece: Piece | None
    ) -> Sequence[Any]:
        """Runs a region of a branch or a loop: maps the buffers of all inputs to those of the
        outputs. `handles` are the Variables that inputs represent; `piece` is the piece that the
        region is part of, if its calls do not observe Variables. Raises whatever stops the
        enclosing run."""
        graph = self.split.graph
        run = ProcedureRun({}, None, False, self._kept)
        run.handles = dict(handles)
        run.env.update(zip(graph.inputs, buffers, strict=True))
        try:
            if piece is None:
                self._run_parts(run, [])
            else:
                self._run_within(run, piece)
        except Stopped as stop:
            stop.error = stop.error or self._error_of_check(run)
            raise
        return tuple(map(run.value, graph.outputs))

    def _error_of_check(self, run: ProcedureRun) -> Exception | None:
        """The error of the first check that failed."""
        for node in self.split.graph.nodes:
            flag = run.env.get(node.outputs[0]) if isinstance(node.op, Check) else None
            if flag is not None and not np.asarray(flag):
                text, operands = node.op.attributes[0], node.inputs[1:]
                is_range = "{}" in text and len(operands) == _RANGE_OPERANDS
                report = CheckReport(text, node.source, len(operands), is_range=is_range)
                try:
                    report.fail([run.value(x) for x in operands])
                except InvalidArgumentError as error:
                    return error
        return None

    def _run_parts(self, run: ProcedureRun, final_stores: Sequence[tuple[Tensor, Slot]]) -> None:
        """Runs the parts and performs their effects. All reads and stores between two calls that
        may observe Variables form one piece."""
        piece = Piece(run, is_first=bool(run.variables))
        for part in self._parts:
            piece.take(part)
            for node in part.effects:
                if not shows_state(node):
                    piece.take(node)
                    continue
                piece.end()
                run.make(node, None)
                piece = Piece(run)
        piece.end(final_stores)

    def _run_within(self, run: ProcedureRun, piece: Piece) -> None:
        """Runs the parts of a region inside a piece, which collects their stores."""
        for part in self._parts:
            part.compute(run)
            for node in part.effects:
                if isinstance(node.op, Store):
                    piece.store(run, node)
                elif not (piece.is_silent and is_print(node)):
                    run.make(node, piece)

    def _compute_and_store(
        self, run: ProcedureRun, final_stores: Sequence[tuple[Tensor, Slot]]
    ) -> None:
        """Computes all parts, and stores once the last one has run; recomputes if a Variable was
        assigned meanwhile, which is safe since no effect would happen twice."""
        handles, known = [*run.variables.keys()], [*run.variables.values()]
        while True:
            olds = run.values_of(known)
            check_sizes([x.type for x in handles], olds)
            run.env.update(zip(handles, olds, strict=True))
            try:
                for part in self._parts:
                    part.compute(run)
            except DoesNotFit:  # compute this run at its exact sizes
                run.bucket_of = None
                continue
            if not final_stores or _stored(run, final_stores, known, olds):
                return


def _tell_assigned(split: SplitGraph, graph: Graph) -> None:
    """Records for each part which of its outputs become values of Variables, as the original
    `graph` knows it for the end of a run: on several devices, Variables then leave with the
    sharding that they arrived with."""
    assigned = {split.graph.outputs[place] for place, _ in graph.cache.get(ASSIGNED, ())}
    stores = [x for part in split.parts for x in part.effects if isinstance(x.op, Store)]
    assigned.update(node.inputs[2] for node in stores)
    for part in split.parts:
        places = [(i, None) for i, y in enumerate(part.outputs) if y in assigned]
        part.graph.cache.setdefault(ASSIGNED, places)


def _tokens_of_derivatives(parts: Sequence[Part]) -> Iterator[Tensor]:
    for part in parts:
        for node in part.effects:
            if isinstance(node.op, HostCall) and not node.op.is_ordered:
                yield node.inputs[0]


class ProcedureRun:
    """The values and the state of one run."""

    def __init__(
        self,
        variables: dict[Tensor, Slot],
        record: Record | None,
        is_recording: bool,
        kept: frozenset[Tensor],
    ) -> None:
        self.env: dict[Tensor, Any] = {}
        #: The Variables that inputs represent: those read when the run begins, and all.
        self.variables = variables
        self.handles = variables
        self._record = record
        #: How many calls of Python functions were made before the run, which skips them.
        self._made = 0 if record is None else len(record.made)
        self._count = 0
        self._is_recording = is_recording
        self._kept = kept
        #: The open sizes that Python functions chose, and those that were read, by name.
        self._sizes: dict[str, Any] = {}
        #: The padded values of those that were read.
        self._padded_sizes: dict[str, int] = {}
        self.bucket_of: BucketOf | None = None
        #: Whether Python takes what parts hand on, which then is not padded.
        self.has_effects = False
        if is_recording and record is not None:
            record.note_values(list(variables.values()))

    def value(self, tensor: Tensor) -> Any:
        return self.env.get(tensor, START) if tensor.type is TOKEN else self.env[tensor]

    def output(self, tensor: Tensor) -> Any:
        """The unpadded value of an output, on the device: if it is also an input, its value may be
        a NumPy array."""
        value = self.value(tensor)
        if tensor.type is TOKEN:
            return value
        if self.bucket_of is not None and not (self.has_effects or tensor.type.is_static):
            shape = static_shape(substitute_shape(tensor.type.shape, self._sizes))
            value = narrowed(value, shape)
        return backend.put(value) if type(value) is np.ndarray else value

    @property
    def is_repeated(self) -> bool:
        """Whether the next effects were already performed while the call was traced."""
        return self._count < self._made

    def size(self, name: str) -> int:
        """A size that was read."""
        return self._sizes[name]

    def padded_size(self, name: str) -> int:
        """The padded value of a size that was read."""
        return self._padded_sizes[name]

    def read_size(self, name: str, node: Node) -> None:
        """Reads the size of this name from the value of a node's operand."""
        number = int(np.asarray(self.value(node.inputs[0])))
        if number < 0:
            assert isinstance(node.op, RuntimeSize)
            fail(
                InvalidArgumentError,
                node.op.fact or f"a size is computed as {number}",
                source=node.source,
                operands=[operand_text(node.inputs[0])],
                fix=node.op.fix or "compute zero or more, such as tg.maximum(n, 0)",
            )
        bucket = self.bucket_of(number) if self.bucket_of is not None and number else None
        self._sizes[name], self._padded_sizes[name] = number, bucket or number

    def slot(self, handle: Tensor) -> Slot | None:
        """The Variable that an effect's operand represents."""
        return self.handles.get(variable_input(handle))

    def values_of(self, variables: Sequence[Slot]) -> list[Any]:
        """The values of Variables at this point of the program."""
        if not variables:
            return []
        with state_lock:
            if self.is_repeated:
                assert self._record is not None
                return self._record.values(self._count, variables)
            if self._is_recording and self._record is not None:
                return self._record.values_now(self._count, variables)
            return gathered(variables)

    def call(self, node: Node) -> None:
        """Calls the Python function of a node, unless that call was already made."""
        op = node.op.substitute(self._sizes) if self._sizes else node.op
        assert isinstance(op, HostCall)
        if op.ends_runs and not np.all(self.value(operands(node)[0])):
            raise Stopped
        if op.function == STOP:  # it is not a user's call, nor one made before
            return
        made: Made | None = None
        if self.is_repeated and op.is_ordered:
            assert self._record is not None
            made = self._record.made[self._count]
        if made is None or made.sizes != sizes_of_loops(op):  # of a loop, a part may be made
            arrays = [backend.on_host(self.value(x)) for x in operands(node)]
            forward = getattr(self.env.get(node.inputs[0]), "made", None)
            keeps = node.outputs[0] in self._kept
            made = host_function(op, node.source).run(arrays, made, forward, keeps)
        if made is None:  # no iteration made its call, so the results' sizes are unknown
            raise Stopped
        self.env.update(zip(node.outputs[1:], map(backend.put, made.results), strict=True))
        if node.outputs[0] in self._kept:
            self.env[node.outputs[0]] = token_of(made)
        if op.is_ordered:
            self._note(node, op, made)
        if not all(y.type.is_static for y in node.outputs):
            types = [y.type for y in node.outputs[1:]]
            self._sizes.update(bind_sizes(types, [*map(type_of_array, made.results)]))

    def make(self, node: Node, piece: Piece | None) -> None:
        """Performs an effect that stores nothing. `piece` is the piece that it is part of, if it
        does not observe Variables."""
        if isinstance(node.op, HostCall):
            self.call(node)
        else:
            self._interpret(node, piece)

    def _interpret(self, node: Node, piece: Piece | None) -> None:
        """Runs a branch or a loop with effects, unless it already ran."""
        if self.is_repeated:
            assert self._record is not None
            results = self._record.made[self._count].results
        else:
            op = node.op.substitute(self._sizes) if self._sizes else node.op
            slots = [self.slot(x) for x in node.inputs]

            def run(graph: Graph, values: Sequence[Any], first: int) -> Sequence[Any]:
                pairs = zip(graph.inputs, slots[first:])
                handles = {x: v for x, v in pairs if v is not None}
                return _run_region(graph, values, handles, piece, node.source)

            try:
                results = interpret(op, [self.value(x) for x in node.inputs], run)
            except Mismatch as mismatch:
                raise_mismatch(op.name, node.inputs, mismatch, node.source)
        pairs = zip(node.outputs, results, strict=True)
        self.env.update((y, value if y.type is TOKEN else _on_device(value)) for y, value in pairs)
        sized = node.op.outputs_sized_by_run(node.outputs)
        if sized:
            found = [type_of_array(self.env[y]) for y in sized]
            self._sizes.update(bind_sizes([y.type for y in sized], found))
        if piece is not None and piece.is_silent:
            return
        self._count += 1
        if self._is_recording and self._record is not None and self._count > self._made:
            self._record.add(Made(results), list(self.variables.values()))

    def _note(self, node: Node, op: HostCall, made: Made) -> None:
        """Records a call that was made, and raises ResultShapeError for shapes that differ from
        those of the trace."""
        place = self._count
        self._count += 1
        record = self._record
        if not self._is_recording or record is None:
            return
        if self._count > self._made:
            record.add(made, list(self.variables.values()))
        elif record.made[place] is not made:
            record.complete(place, made, list(self.variables.values()))
        if not op.undeclared:
            return
        traced = [TensorShape(type.shape) for type in op.types]
        found = [TensorShape(array.shape) for array in made.results]
        record.shapes[place] = [*map(_common_shape, traced, found)]
        for i in op.undeclared:
            if not traced[i].is_compatible_with(found[i]):
                _refuse_shape(op, found[i], op.types[i], node, record)


def _run_region(
    graph: Graph,
    values: Sequence[Any],
    slots: Mapping[Tensor, Slot],
    piece: Piece | None,
    source: Source,
) -> Sequence[Any]:
    types = types_known(graph.input_types, values)
    programs = graph.cached("region programs", lambda: LRUCache(MOST_PROGRAMS))
    program = programs.get(types)
    if program is None:
        program = _region_program(graph, types)
        programs.put(types, program)
        if len(programs) == _MANY_SIZES:
            _tell_of_sizes(source)
    if not isinstance(program, Procedure):
        return run_program(program, values)
    given = zip(graph.inputs, program.split.graph.inputs, strict=True)
    return program.run_region(values, {y: slots[x] for x, y in given if x in slots}, piece)


def _tell_of_sizes(source: Source) -> None:
    text = message(
        f"{_MANY_SIZES} sizes have been met in one branch or body of a loop, and each is compiled",
        source=source,
        fix="keep the shapes: write to a tg.TensorArray, or compute with the largest size and a "
        "mask",
    )
    warn(text, UnrolledLoopWarning, source, once=True)


def _region_program(graph: Graph, types: tuple[TensorType, ...]) -> Any:
    with backend.compiling:
        known = graph if graph.input_types == types else with_known_sizes(graph, types, {})
        return program_of(known)


def _on_device(value: Any) -> Any:
    return backend.put(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def _common_shape(one: TensorShape, other: TensorShape) -> TensorShape:
    """The most specific shape that covers both, with None for sizes that differ."""
    if one.rank is None or one.rank != other.rank:
        return TensorShape(None)
    pairs = zip(one, other, strict=True)
    return TensorShape([m if type(m) is int and m == n else None for m, n in pairs])


def _refuse_shape(
    op: HostCall, found: TensorShape, type: TensorType, node: Node, record: Record
) -> NoReturn:
    error = ResultShapeError(
        message(
            f"{op.called} returned the shape {found}, and {type} was traced",
            source=node.source,
            fix="return one shape always, or give the sizes that change as None in Tout: "
            "tg.TensorSpec([None], tg.float32)",
        )
    )
    error.record = record
    raise error


def _stored(
    run: ProcedureRun,
    stores: Sequence[tuple[Tensor, Slot]],
    known: Sequence[Slot],
    olds: Sequence[Any],
) -> bool:
    """Stores atomically if the Variables in `known` still have the values that were read."""
    slots, new = [slot for _, slot in stores], [run.output(y) for y, _ in stores]
    with state_lock:
        return store_together_if_same(slots, new, known, olds)


def program_of(graph: Graph) -> Any:
    """The callable that computes a graph: a program, or a procedure if it is cut."""
    return Procedure(graph) if graph.cuts_runs else backend.top_level_program(graph)


set_program_maker(program_of)
