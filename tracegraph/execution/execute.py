"""Runs a traced body: as one program at top level, as a call node while tracing."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.calls.call import Call, call, forward_form, repeats
from tracegraph.control.while_loop import has_while_gradients
from tracegraph.control_flow.regions import set_runner
from tracegraph.control_passes.split_at_cuts import has_calls_that_see, with_own_sizes
from tracegraph.core.later import opened
from tracegraph.core.shapes import Dim, Size
from tracegraph.core.source import Source, here
from tracegraph.core.types import TOKEN, TensorType, int32
from tracegraph.eager import backend
from tracegraph.eager.pending import COUNTS_ARE_TRUSTED, device_buffer
from tracegraph.eager.provenance import Callee
from tracegraph.eager.slots import (
    Slot,
    Step,
    gathered,
    move_variables,
    run_program,
    state_lock,
    store_together_if_same,
)
from tracegraph.effects.pieces import check_sizes, types_known
from tracegraph.effects.procedure import START, Procedure
from tracegraph.effects.record import Record, current_record, recorded_call
from tracegraph.errors import TraceError, fail
from tracegraph.execution.run_options import PLAIN, RunOptions
from tracegraph.ir.builder import Builder, copy_inputs, current, replay
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import ASSIGNED, Graph, Node, Tensor, get_buffer, host_tensor
from tracegraph.operands.conversion import known_value
from tracegraph.ops.constant import Iota, RuntimeSize, constant
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.state.variable import Variable
from tracegraph.tracing.index_checks import value_at_hand
from tracegraph.tracing.trace import (
    CallTrace,
    Trace,
    Traced,
    current_trace,
    pass_check_on,
    report_first_failure,
    restored,
)

if TYPE_CHECKING:
    from tracegraph.eager.layouts import Layout
    from tracegraph.rolling.roll import Rolled

#: Inspects a run: the body, its graph with known sizes, the inputs and the outputs.
LookAt = Callable[[Traced, Graph, Sequence[Any], Sequence[Any]], None]

#: A smaller graph has too few nodes to be worth a loop.
_FEWEST_NODES = 200


class Execution:
    """A traced body compiled for concrete types: what the hot path of a call holds."""

    #: Whether a run may overwrite the buffers of the Variables that it assigns.
    may_overwrite = True
    #: Whether Python inspects the results of a run.
    looks_at_results = False

    def __init__(
        self,
        traced: Traced,
        types: Sequence[TensorType],
        options: RunOptions = PLAIN,
    ) -> None:
        self.traced = traced
        self._budget = options.memory_budget
        self._roll = options.roll
        self.variables = traced.variables
        self.assigned = [traced.variables[i] for i in traced.assigned]
        self.graph = specialise(traced.graph, types)
        self.graph.cache.setdefault(ASSIGNED, traced.assigned_places)
        self.result_types = self.graph.output_types[: traced.result_count]
        self._are_types_known = all(type.is_static for type in self.result_types)
        self.callee = self.callee_with(traced.variables)
        self._stored = slice(traced.result_count, traced.result_count + len(traced.assigned))
        #: Runs the parts of a graph that is cut.
        self._procedure: Procedure | None = None
        if self.graph.cuts_runs:
            bucket_of = None if options.buckets is None else options.buckets.of
            self._procedure = Procedure(self.graph, bucket_of, self._made)
        #: Whether there is no state, check, cut or possible interrupt to handle.
        self.is_simple = not (
            traced.variables
            or traced.checks
            or self.looks_at_results
            or self._is_cut
            or self.graph.may_never_end
        )

    @property
    def _is_cut(self) -> bool:
        return self._procedure is not None or self.traced.has_token

    @property
    def compile_seconds(self) -> float | None:
        """How long the program took to compile, or all those of a graph that is cut; None if none
        is compiled."""
        known = [program.compile_seconds for program in self._programs_so_far()]
        seconds = [each for each in known if each is not None]
        return sum(seconds) if seconds else None

    @property
    def is_of_saved_model(self) -> bool:
        """Whether the program was loaded from beside a saved model."""
        programs = self._programs_so_far()
        return bool(programs) and all(program.is_of_saved_model for program in programs)

    def _programs_so_far(self) -> list[Any]:
        if self._procedure is not None:
            return self._procedure.programs()
        return [program] if (program := vars(self).get("program")) is not None else []

    @functools.cached_property
    def rolled(self) -> Rolled | None:
        """The rolled form that runs in place of the graph, if blocks of it repeat and a loop
        pays."""
        is_whole = self.may_overwrite and not (self._is_cut or self.graph.may_never_end)
        always = self._roll == "always"
        # In a loop, a memory budget cannot see what each block keeps.
        is_asked = self._budget is None and (always or self._may_pay_to_roll)
        if not (is_whole and is_asked):
            return None
        rolling = opened("tracegraph.execution.rolling")
        return rolling.rolled_body(self.traced, self.graph, always)

    @property
    def _may_pay_to_roll(self) -> bool:
        """Not on a GPU, which starts the kernels of a straight program all at once, but those of a
        loop step by step: the step of a transformer of four layers took 1.6 times as long."""
        is_long = self._roll == "auto" and self.graph.node_count() >= _FEWEST_NODES
        return is_long and backend.usual_device().platform == "cpu"

    @functools.cached_property
    def program(self) -> Any:
        """The whole graph compiled as one program."""
        donated = self._donated()
        if self.rolled is not None:
            return self._made(self.rolled.graph, donated)
        if not donated and self._budget is None:
            return program_of(self.graph)
        return self._made(_pruned(self.graph), donated)

    def _donated(self) -> list[int]:
        """The inputs whose buffers the program may overwrite."""
        # A run that may never end can be abandoned, so it gets none.
        if not (self.may_overwrite and COUNTS_ARE_TRUSTED) or self.graph.may_never_end:
            return []
        traced = self.traced if self.rolled is None else self.rolled
        places = [self.traced.argument_count + i for i in traced.assigned]
        if self.rolled is not None:
            return places
        new = zip(places, self.graph.outputs[self._stored], strict=True)
        # A Variable that is resized needs a buffer of another size.
        return [place for place, y in new if y.type == self.graph.inputs[place].type]

    def _made(self, graph: Graph, donated: Sequence[int] = ()) -> Any:
        """The program of a graph, within the memory budget."""
        if self._budget is None:
            return _compiled(graph, donated)
        return opened("tracegraph.memory_budgets.search").fitted(graph, donated, self._budget)

    def notes(self) -> list[str]:
        """Notes on the loops in the program that the graph does not have."""
        found = [] if self.rolled is None else self.rolled.notes()
        if self._budget is not None and "program" in self.__dict__:
            found += opened("tracegraph.memory_budgets.table").loop_notes(self.program)
        if self._budget is None and has_while_gradients(self.graph):
            # A budget decides only once the program's needs are known.
            graph = dead_code(self.graph) if self.rolled is None else self.rolled.graph
            loops = opened("tracegraph.control.stacked_whiles").stacked_loops(graph)
            size_text = opened("tracegraph.memory_budgets.budget").size_text
            found += [
                f"stacked: while of at most {loop.length} steps, {loop.node.source}; "
                f"{size_text(loop.bytes)} for its gradient"
                for loop in loops
            ]
        return found

    def memory(self) -> Any:
        """The memory that the programs of a run need, and the values that they keep: see
        `MemoryTable`."""
        programs = [self.program] if self._procedure is None else self._procedure.programs()
        return opened("tracegraph.memory_budgets.table").memory_table(programs, self._budget)

    @functools.cached_property
    def _step(self) -> Step:
        found = self.rolled
        if found is None or not found.stacks:
            types = self._types_of_variables
            open_ones = (not v.tensor_type.is_static for v in self.variables)
            sized = SizedStep(self.program, self._stored, types) if any(open_ones) else None
            return sized or Step(self.program, self._stored)
        stacked_step = opened("tracegraph.execution.rolling").stacked_step
        return stacked_step(found, self.traced, self.program)

    @property
    def _types_of_variables(self) -> list[TensorType]:
        count = self.traced.argument_count
        return [x.type for x in self.graph.inputs[count : count + len(self.variables)]]

    def device_costs(self) -> Any:
        """The cost of a run on each of several devices; see `views.devices.DeviceCosts`."""
        traced = self.traced
        if self._is_cut:
            fail(
                TraceError,
                f"summary: a run of @{self.graph.name} is cut into several programs, which have no "
                "costs of devices together",
                fix="take prints and calls of Python out of the function, or ask for plain "
                "summary()",
            )
        state = gathered(self.variables)
        captured = map(device_buffer, traced.captures)
        buffers = ((None,) * traced.argument_count, state, captured)
        given = tuple(itertools.chain(*buffers))
        program = self.program if self.rolled is None else program_of(self.graph)
        return backend.device_costs(program, given, traced.result_count)

    def step_alone(self) -> Step | None:
        """The step, if a run consists of nothing else and, after the Variables, takes only the
        captured tensors."""
        traced = self.traced
        is_alone = bool(traced.variables) and not (traced.checks or self._is_cut)
        return self._step if is_alone else None

    @property
    def _first_check(self) -> int:
        if self.rolled is None:
            return self.traced.first_check
        return self.traced.result_count + len(self.rolled.assigned)

    def callee_with(self, variables: Sequence[Variable]) -> Callee:
        """What results remember of a call with these Variables."""
        return _callee(self.graph, self.traced, variables)

    def run(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Variable] | None = None,
        record: Record | None = None,
    ) -> list[Tensor]:
        """The result tensors, from the buffers of the arguments and the Variables of this call.
        `record` holds what was done while the call was traced."""
        traced = self.traced
        rest: tuple[Any, ...] = ()
        if traced.captures or traced.has_token:
            rest = (*map(device_buffer, traced.captures), *((START,) if traced.has_token else ()))
        assigned: Sequence[Variable] = self.assigned
        if variables is None or variables is self.variables:
            variables = self.variables
        else:
            assigned = [variables[i] for i in traced.assigned]
        if self._procedure is not None:
            outputs = self._run_procedure(buffers, variables, rest, assigned, record)
        else:
            outputs = self._outputs(buffers, variables, rest, assigned)
        if traced.checks:
            report_first_failure(traced.checks, iter(outputs[self._first_check :]))
        return [*map(Tensor, self._known_types(outputs), outputs)]

    def _outputs(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Variable],
        rest: Sequence[Any],
        assigned: Sequence[Variable],
    ) -> Sequence[Any]:
        """The outputs of the program; the Variables have been assigned theirs by then."""
        if variables:
            return self._step.run(buffers, variables, rest, assigned)
        return run_program(self.program, (*buffers, *rest))

    def _known_types(self, outputs: Sequence[Any]) -> Sequence[TensorType]:
        types = self.result_types
        return types if self._are_types_known else types_known(types, outputs[: len(types)])

    def _run_procedure(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Variable],
        rest: Sequence[Any],
        assigned: Sequence[Variable],
        record: Record | None,
    ) -> tuple[Any, ...]:
        assert self._procedure is not None
        if not variables:
            return self._procedure.run((*buffers, *rest), {}, [], record)
        bind_stand_ins(self.traced, variables)
        return self._procedure.run(
            (*buffers, *(None,) * len(variables), *rest),
            {self.traced.argument_count + i: v for i, v in enumerate(variables)},
            list(enumerate(assigned, self.traced.result_count)),
            record,
        )


_get_shape = operator.attrgetter("shape")


class SizedStep(Step):
    """A step whose program is for the current sizes of Variables of open shape, which it compares
    in each run."""

    __slots__ = ("_fits", "_types")
    _is_tested = True

    def __init__(self, program: Any, stored: slice, types: Sequence[TensorType]) -> None:
        super().__init__(program, stored)
        self._types = types
        self._fits = tuple(x.shape for x in types).__eq__

    def _look_at(self, variables: Sequence[Slot]) -> None:
        super()._look_at(variables)
        self._check(gathered(variables))

    def _test(self, variables: Sequence[Slot]) -> Iterable[bool]:
        """Tests, once it is asked, whether the Variables have the sizes of the program."""
        shapes = map(_get_shape, map(get_buffer, variables))
        return map(self._fits, map(tuple, (shapes,)))

    def _check(self, state: Sequence[Any]) -> None:
        check_sizes(self._types, state)


def bind_stand_ins(traced: Traced, variables: Sequence[Variable]) -> None:
    """Binds a trace's stand-ins, in its Python functions, to the Variables of this call."""
    for own, given in zip(traced.variables, variables, strict=True):
        if own is not given:
            own.stand_for(given)


def report_checks(traced: Traced, outputs: Sequence[Any]) -> None:
    """Raises the error of the first check whose flag in the outputs is false."""
    report_first_failure(traced.checks, iter(outputs[traced.first_check :]))


def laid_out_buffers(buffers: Sequence[Any], layouts: Sequence[Layout | None]) -> list[Any]:
    """The buffers of arguments, each in its declared layout."""
    return [
        buffer
        if layout is None or backend.has_sharding(buffer, layout.sharding)
        else backend.put_on_mesh(buffer, *layout.placement)
        for buffer, layout in zip(buffers, layouts, strict=True)
    ]


def input_types(
    traced: Traced, types: Sequence[TensorType], variables: Sequence[Variable]
) -> tuple[TensorType, ...]:
    """The types of all inputs of a call: those of the arguments, and the Variables' current
    ones."""
    rest = [x.type for x in traced.graph.inputs[traced.argument_count :]]
    for i, variable in enumerate(variables):
        if not variable.tensor_type.is_static:
            rest[i] = variable.made_tensor().type
    return (*types, *rest)


def run_recorded(
    traced: Traced,
    arguments: Sequence[Tensor],
    variables: Sequence[Variable],
    record: Record | None = None,
    look: LookAt | None = None,
) -> list[Tensor]:
    """Runs at top level while tapes record: runs the forward form, recorded as one call node.
    `record` holds what was done while the call was traced. `look` receives the body with known
    sizes, and the program's inputs and outputs, before Variables are assigned."""
    types = input_types(traced, [x.type for x in arguments], variables)
    plain = specialise(traced.graph, types)
    forward = forward_form(plain)
    for graph in (plain, forward):
        graph.cache.setdefault(ASSIGNED, traced.assigned_places)
    program = forward.cached("forward_program", lambda: _forward_program(plain, forward))
    given = traced, arguments, variables, record
    seen = None if look is None else functools.partial(look, traced, plain)
    sizes = types[traced.argument_count :][: len(variables)]
    all_types = forward.output_types
    inputs, outputs, at = run_and_record(program, Call(forward), all_types, *given, seen, sizes)
    report_checks(traced, list(map(get_buffer, outputs)))
    results = list(outputs[: traced.result_count])
    _callee(forward, traced, variables).remember(inputs[: len(arguments)], results, at)
    return results


def run_and_record(
    program: Any,
    op: Op,
    types: Sequence[TensorType],
    traced: Traced,
    arguments: Sequence[Tensor],
    variables: Sequence[Variable],
    record: Record | None,
    look: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    sizes: Sequence[TensorType] = (),
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Source]:
    """Runs a body at top level by a program or a procedure, and shows it to tapes as a node of `op`
    whose outputs have the `types`. Returns the inputs, the outputs and the user's place. `look`
    receives the program's inputs and outputs before Variables are assigned. `sizes` are the types
    of the Variables for which the program is."""
    builder = current()
    places = range(traced.argument_count, traced.argument_count + len(variables))
    assigned = [variables[i] for i in traced.assigned]
    token = [host_tensor(TOKEN, START)] if traced.has_token else []
    by_place = dict(zip(places, variables, strict=True))
    given = (*map(device_buffer, arguments), *variables, *map(device_buffer, traced.captures))
    move_variables(traced.graph, given, by_place)
    while True:
        reads = [variable.read_value() for variable in variables]
        check_sizes(sizes, [x.type for x in reads])
        inputs = (*arguments, *reads, *traced.captures, *token)
        buffers = (*map(device_buffer, inputs),)
        if isinstance(program, Procedure):
            bind_stand_ins(traced, variables)
            stored = list(zip(itertools.count(traced.result_count), assigned))
            outputs = program.run(buffers, by_place, stored, record)
            break
        outputs = run_program(program, buffers)
        if look is not None:
            look(buffers, outputs)
        olds = [buffers[i] for i in places]
        new = outputs[traced.result_count : traced.result_count + len(assigned)]
        with state_lock:
            if not assigned or store_together_if_same(assigned, new, variables, olds):
                break
    at = here()
    node = Node(op, inputs, at, builder)
    node.outputs = tuple(map(Tensor, types_known(types, outputs), outputs))
    for recorder in builder.recorders:
        recorder.record(node)
    for variable, value in zip(assigned, node.outputs[traced.result_count :], strict=False):
        variable.tell_assigned(value)
    return inputs, node.outputs, at


def _callee(graph: Graph, traced: Traced, variables: Sequence[Variable]) -> Callee:
    handles = [variable.handle for variable in variables]
    return Callee(graph, handles, traced.captures, variables is not traced.variables)


def note_call(
    execution: Execution,
    arguments: Sequence[Tensor],
    variables: Sequence[Variable],
    results: Sequence[Tensor],
) -> None:
    """Tells tapes of a call that they do not follow, so that they can explain why."""
    builder = current()
    token = [host_tensor(TOKEN, START)] if execution.traced.has_token else []
    handles = [variable.handle for variable in variables]
    inputs = (*arguments, *handles, *execution.traced.captures, *token)
    node = Node(Call(execution.graph), inputs, here(), builder)
    node.outputs = tuple(results)
    for recorder in builder.recorders:
        recorder.record(node)


def _forward_program(plain: Graph, forward: Graph) -> Any:
    """The callable that computes a forward form. If its residuals are inputs and outputs of the
    plain body, the plain program provides them, so nothing is compiled again."""
    if forward.cuts_runs:
        return Procedure(forward)
    places = repeats(forward, len(plain.outputs))
    if places is None:
        return program_of(forward)

    def run(*inputs: Any) -> tuple[Any, ...]:
        outputs = program_of(plain)(*inputs)
        values = {"input": inputs, "output": outputs}
        return (*outputs, *(values[kind][place] for kind, place in places))

    return run


def program_of(graph: Graph) -> Any:
    """The program of a graph that does not overwrite its inputs, created once."""
    return graph.cached("program", lambda: _compiled(_pruned(graph)))


def _compiled(graph: Graph, donated: Sequence[int] = ()) -> Any:
    """The program of a graph, whose loops stack what their gradients read where that pays."""
    if has_while_gradients(graph):
        stacked_whiles = opened("tracegraph.control.stacked_whiles")
        graph = stacked_whiles.with_stacked_whiles(graph).assigning_as(graph)
    return backend.program(graph, donated)


def _pruned(graph: Graph) -> Graph:
    """The graph without dead code, with its record of assignments kept."""
    return dead_code(graph).assigning_as(graph)


def run_nested(
    traced: Traced, arguments: Sequence[Tensor], variables: Sequence[Variable]
) -> list[Tensor]:
    """Appends the body as a call node to the graph under construction."""
    append = functools.partial(call, with_own_sizes(_with_sizes_known(traced.graph, arguments)))
    return append_call(append, traced, arguments, variables)


def _with_sizes_known(graph: Graph, arguments: Sequence[Tensor]) -> Graph:
    """The graph with the sizes that only a run knows, but that follow from integers which the
    caller knows while it is traced."""
    if not graph.cuts_runs:
        return graph
    given = zip(graph.inputs, arguments)
    known = {x: value_at_hand(y) for x, y in given if y.dtype.is_integer}
    sizes: dict[str, Any] = {}
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        env.update({x: constant(value) for x, value in known.items() if value is not None})
        for node in graph.nodes:
            if (
                isinstance(node.op, RuntimeSize)
                and (size := _known_size(env[node.inputs[0]])) is not None
            ):
                sizes[str(node.op.size)] = size
                env[node.outputs[0]] = Iota(size, int32)()
            else:
                replay([node], env, lambda op: op.substitute(sizes))
        found = builder.finish([env[y] for y in graph.outputs])
    return found.assigning_as(graph) if sizes else graph


def _known_size(n: Tensor) -> Size | None:
    """The value of an integer as a size, if it follows from constants and is known to be one."""
    value = known_value(n)
    size = None if value is None else np.asarray(value)[()]
    if isinstance(size, Dim):
        return size if size.name else None
    return None if size is None or size < 0 else int(size)


def _run_at_once(name: str, call: Callable[[], Any]) -> Any:
    """The result of a call at top level, traced and run as a function would be."""

    def traced_call() -> tuple[Traced, Results]:
        with CallTrace(name) as trace:
            leaves, structure = result_leaves(call(), name, here())
            return trace.traced([y for y in leaves if y is not None]), Results(structure, leaves)

    with recorded_call():
        traced, results = restored(traced_call)
        return results.pack(run_recorded(traced, [], traced.variables, current_record()))


set_runner(_run_at_once)


def append_call(
    append: Callable[[tuple[Tensor, ...]], Sequence[Tensor]],
    traced: Traced,
    arguments: Sequence[Tensor],
    variables: Sequence[Variable],
) -> list[Tensor]:
    """Appends a call of the body of `traced` to the graph under construction, and takes over its
    state and effects: variables, token and checks. Returns the results. At top level there are no
    token-ordered effects: see `run_recorded`.

    `append` receives the inputs and returns all outputs of the body.
    """
    trace, shows_state = prepare_effects(traced)
    inputs = (*arguments, *map(Variable.read_value, variables), *traced.captures)
    if trace is None:
        outputs = append(inputs)
    else:
        token = (trace.take_token(),) if traced.has_token else ()
        outputs = append(trace.admit_all((*inputs, *token)))
        if shows_state:
            trace.forget_state()
        if traced.has_token:
            trace.give_token(outputs[traced.result_count + len(traced.assigned)])
    for i, value in zip(traced.assigned, outputs[traced.result_count :], strict=False):
        variables[i].assign(value)
    behind = iter(outputs[traced.first_check :])
    for report in traced.checks:
        pass_check_on(report, tuple(next(behind) for _ in range(1 + report.operand_count)))
    return list(outputs[: traced.result_count])


def prepare_effects(traced: Traced) -> tuple[Trace | None, bool]:
    """Prepares the current trace, if any, for the effects of a body. Returns the trace, and whether
    calls in the body see the state, which the trace has stored for them."""
    trace = current_trace()
    shows_state = trace is not None and has_calls_that_see(traced.graph)
    if trace is not None and shows_state:
        trace.store_state()
    if trace is not None and traced.has_token:
        trace.end_where_checks_failed()
    return trace, shows_state
