"""Running a traced body: as one program at top level, as a call node while tracing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.control.call import Call, call, forward_form, repeats
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Graph, Node, Tensor, get_buffer, host_tensor
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise
from tracegraph.runtime import backend
from tracegraph.runtime.lineage import Callee
from tracegraph.runtime.pending import device_buffer, make, raise_failures, run_failure
from tracegraph.runtime.trace import CheckReport, Trace, Traced, current_trace
from tracegraph.runtime.values import host_array
from tracegraph.runtime.variable import (
    Variable,
    complete_landings,
    land,
    landings,
    state_lock,
    unsettled,
)
from tracegraph.source import here
from tracegraph.types import TOKEN, TensorType

_START = np.zeros((), np.bool_)


class Execution:
    """A traced body at concrete types, compiled: what the hot path of a call holds."""

    def __init__(self, traced: Traced, types: Sequence[TensorType]) -> None:
        self.traced = traced
        self.variables = traced.variables
        self.assigned = [traced.variables[i] for i in traced.assigned]
        self.graph = specialise(traced.graph, types)
        donated = [traced.argument_count + i for i in traced.assigned]
        self.program = (
            backend.program(dead_code(self.graph), donated) if donated else _program(self.graph)
        )
        self.donates = bool(self.program.donated)
        self.result_types = self.graph.output_types[: traced.result_count]
        self.callee = self.callee_with(traced.variables)
        self._assigned_places = list(traced.assigned)
        self._is_warm = False
        #: Whether there is neither state nor a check to see to.
        self.is_simple = not (traced.variables or traced.checks or traced.has_token)

    def callee_with(self, variables: Sequence[Variable]) -> Callee:
        """What results remember of a call with these Variables."""
        return _callee(self.graph, self.traced, variables)

    def run(
        self, buffers: Sequence[Any], variables: Sequence[Variable] | None = None
    ) -> list[Tensor]:
        """The result tensors, from the buffers of the arguments and the Variables of this call."""
        traced = self.traced
        rest = (*map(device_buffer, traced.captures), *((_START,) if traced.has_token else ()))
        if self.variables:
            outputs = self._run_with_state(buffers, variables or self.variables, rest)
        else:
            outputs = run_program(self.program, (*buffers, *rest), [])
        if traced.checks:
            report_checks(traced, outputs)
        return [*map(Tensor, self.result_types, outputs)]

    def _run_with_state(
        self, buffers: Sequence[Any], variables: Sequence[Variable], rest: Sequence[Any]
    ) -> tuple[Any, ...]:
        assigned = self.assigned
        if variables is not self.variables:
            assigned = [variables[i] for i in self.traced.assigned]
        box: list[Any] = []
        with state_lock():
            state = gather(variables)
            if self.donates and (not self._is_warm or self._is_shared(state)):
                self._copy_shared(state)
            landings.append((assigned, box, self.traced.result_count))
            try:
                outputs = run_program(self.program, (*buffers, *state, *rest), box)
            finally:
                complete_landings()
            self._is_warm = True
        return outputs

    def _is_shared(self, state: list[Any]) -> bool:
        """Whether somebody beyond its Variable holds a buffer that would be overwritten."""
        donated = map(state.__getitem__, self._assigned_places)
        return sum(map(sys.getrefcount, donated)) > _BASELINE * len(self._assigned_places)

    def _copy_shared(self, state: list[Any]) -> None:
        """Copies what is shared. The first call, which compiles in Python, gives copies of all:
        an interrupt inside it then loses nothing."""
        for place in self._assigned_places:
            if not self._is_warm or sys.getrefcount(state[place]) > _BASELINE - 1:
                state[place] = backend.copy(state[place])


def run_program(program: Any, arguments: tuple[Any, ...], box: list[Any]) -> tuple[Any, ...]:
    """The outputs of a program, which C code alone puts into `box`: no signal falls between.

    Raises the error of the argument that failed before, of a Python function that the program
    called, or a LoweringError.
    """
    try:
        program.run_into(box, arguments)
        if program.has_host_calls:
            # Python functions that it calls have finished when the caller goes on, and their
            # errors are raised here.
            backend.wait(box[0])
    except Exception as error:
        raise_failures(arguments)
        box.clear()
        raise run_failure(error, here()) from None
    return box[0]


def gather(variables: Sequence[Variable]) -> list[Any]:
    """The buffers of the variables. Needs `state_lock`."""
    if landings:
        complete_landings()
    if unsettled:
        for variable in variables:
            variable.settle()
    return list(map(get_buffer, variables))


def report_checks(traced: Traced, outputs: Sequence[Any]) -> None:
    """Raises the error of the first check whose flag among the outputs is false."""
    place = traced.first_check
    for report in traced.checks:
        if not bool(outputs[place]):
            report.fail(outputs[place + 1 : place + 1 + report.operand_count])
        place += 1 + report.operand_count


def _shared_baseline() -> int:
    """References that `_is_shared` sees of a buffer that one slot and one list hold."""

    class Holder:
        __slots__ = ("buffer",)

    holder = Holder()
    holder.buffer = object()
    state = list(map(get_buffer, [holder]))
    return max(map(sys.getrefcount, state))


_BASELINE = _shared_baseline()


def input_types(
    traced: Traced, types: Sequence[TensorType], variables: Sequence[Variable]
) -> tuple[TensorType, ...]:
    """The types of all inputs of a call: those of the arguments, and of the Variables now."""
    rest = [x.type for x in traced.graph.inputs[traced.argument_count :]]
    for i, variable in enumerate(variables):
        if not variable.tensor_type.is_static:
            rest[i] = variable.made_tensor().type
    return (*types, *rest)


def run_recorded(
    traced: Traced, arguments: Sequence[Tensor], variables: Sequence[Variable]
) -> list[Tensor]:
    """Runs at top level while tapes record: the forward form, recorded as one call node."""
    builder = current()
    with state_lock():
        types = input_types(traced, [x.type for x in arguments], variables)
        plain = specialise(traced.graph, types)
        forward = forward_form(plain)
        reads = [variable.read_value() for variable in variables]
        token = [host_tensor(TOKEN, _START)] if traced.has_token else []
        inputs = (*arguments, *reads, *traced.captures, *token)
        buffers = _run_forward(plain, forward, (*map(device_buffer, inputs),))
        assigned = [variables[i] for i in traced.assigned]
        land(assigned, buffers[traced.result_count :])
        for variable in assigned:
            unsettled.pop(id(variable), None)
    node = Node(Call(forward), inputs, here(), builder)
    node.outputs = outputs = tuple(map(Tensor, forward.output_types, buffers))
    for recorder in builder.recorders:
        recorder.record(node)
    for variable, value in zip(assigned, outputs[traced.result_count :], strict=False):
        variable.tell_assigned(value)
    report_checks(traced, buffers)
    results = list(outputs[: traced.result_count])
    _callee(forward, traced, variables).remember(arguments, results, node.source)
    return results


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
    token = [host_tensor(TOKEN, _START)] if execution.traced.has_token else []
    handles = [variable.handle for variable in variables]
    inputs = (*arguments, *handles, *execution.traced.captures, *token)
    node = Node(Call(execution.graph), inputs, here(), builder)
    node.outputs = tuple(results)
    for recorder in builder.recorders:
        recorder.record(node)


def _run_forward(plain: Graph, forward: Graph, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs of a forward form. Where its residuals are inputs and outputs of the plain body,
    the plain program gives them, so nothing is compiled again."""
    places = forward.kept("places", lambda: repeats(forward, len(plain.outputs)))
    if places is None:
        return run_program(_program(forward), inputs, [])
    outputs = run_program(_program(plain), inputs, [])
    values = {"input": inputs, "output": outputs}
    return (*outputs, *(values[kind][place] for kind, place in places))


def _program(graph: Graph) -> Any:
    """The program of a graph that keeps its inputs, made once."""
    return graph.kept("program", lambda: backend.program(dead_code(graph)))


def run_nested(
    traced: Traced, arguments: Sequence[Tensor], variables: Sequence[Variable]
) -> list[Tensor]:
    """Appends the body as a call node to the graph that is being built."""
    return append_call(functools.partial(call, traced.graph), traced, arguments, variables)


def append_call(
    append: Callable[[tuple[Tensor, ...]], Sequence[Tensor]],
    traced: Traced,
    arguments: Sequence[Tensor],
    variables: Sequence[Variable],
) -> list[Tensor]:
    """Appends a call of the body of `traced` to what is being built, and takes state and effects
    on from there: variables, token and checks. Returns the results.

    `append` is given the inputs, and returns all outputs of the body.
    """
    builder = current()
    trace = builder if isinstance(builder, Trace) else None
    reads = [variable.read_value() for variable in variables]
    inputs = (*arguments, *reads, *traced.captures)
    if traced.has_token:
        inputs = (*inputs, host_tensor(TOKEN, _START) if trace is None else trace.take_token())
    outputs = append(inputs if trace is None else trace.admit_all(inputs))
    rest = iter(outputs[traced.result_count :])
    for i in traced.assigned:
        variables[i].assign(next(rest))
    if traced.has_token and trace is not None:
        trace.give_token(next(rest))
    elif traced.has_token:
        make(next(rest))  # at top level what has effects runs at once
    for report in traced.checks:
        pass_check_on(report, tuple(next(rest) for _ in range(1 + report.operand_count)))
    return list(outputs[: traced.result_count])


def pass_check_on(report: CheckReport, values: tuple[Tensor, ...]) -> None:
    """Takes a check of a body on to what is being built: a trace reports it at every run, the top
    level raises its error at once. `values` are its flag and its operands."""
    trace = current_trace()
    if trace is not None:
        trace.add_check(report, values)
    elif not bool(host_array(values[0])):
        report.fail([host_array(x) for x in values[1:]])
