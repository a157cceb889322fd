"""Parallel for: a Python function traced for one iteration, then run for all of them at once.

Only values that depend on the iteration get a loop axis; all others are computed once. The nodes
are appended to the graph being built, so gradients, functions and other loops compose freely.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegraph.control_flow.regions import with_largest_sizes
from tracegraph.core.source import Source, here
from tracegraph.core.types import int32
from tracegraph.effects.record import current_record, recorded_call
from tracegraph.errors import SignatureError, TraceError, fail
from tracegraph.execution.execute import prepare_effects, run_recorded
from tracegraph.ir.builder import Builder, at_top_level, builder_of_thread, current
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import stack
from tracegraph.ops.constant import Iota, RuntimeSize
from tracegraph.ops.random import RandomSplit
from tracegraph.ops.reduce import All
from tracegraph.ops.shape import Reshape, Slice
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import first_size_finder
from tracegraph.passes.vectorise import widen
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import Trace, Traced, pass_check_on, restored


class Rows:
    """The rows of a parallel loop in the builder `outer`. Each gets a state of its own for the
    random generators that it draws from: they move on before the loop, since Python functions that
    it calls may draw numbers as well."""

    def __init__(self, count: Any, outer: Builder, source: Source) -> None:
        self.count = count
        self._outer = outer
        self._source = source
        self._states: dict[int, Tensor] = {}
        #: Whether tracing had to call a Python function for rows of this call.
        self._have_run = False

    def state_of(self, variable: Variable) -> Tensor | None:
        """The states of a random generator, one for each row; None before it was split."""
        return self._states.get(id(variable))

    def split(self, variable: Variable) -> Tensor:
        """The same, splitting the state of the generator when first asked for it."""
        found = self.state_of(variable)
        if found is not None:
            return found
        if self._have_run and not self._outer.is_top_level:
            fail(
                TraceError,
                f"a parallel loop draws from {told_name(variable)!r} for the first time after a "
                "Python function whose result has no declared shape, which this call has already "
                "called",
                source=self._source,
                fix="give the shape in Tout: tg.TensorSpec([3], tg.float32), or draw a number "
                "before the call",
            )
        with _inside(self._outer):
            keys = RandomSplit(self.count + 1)(variable.read_value())
            variable.assign(Reshape((2,))(Slice((0, 0), (1, 2), (1, 1))(keys)))
            own = Slice((1, 0), (self.count + 1, 2), (1, 1))(keys)
        return self._states.setdefault(id(variable), own)

    def begin_run(self) -> None:
        """Notes that a Python function is called for rows while they are being traced."""
        self._have_run = True

    @staticmethod
    def with_sizes_of_all(graph: Graph, arguments: Sequence[Tensor]) -> Graph:
        """The graph of one row, where a size that each row finds for itself has the largest value
        of all, if that is known. Other sizes are found once, before the loop. `arguments` are the
        inputs that differ from row to row."""
        own = set(arguments)
        has_own_size = False
        for node in graph.nodes:
            if not own.isdisjoint(node.inputs):
                own.update(node.outputs)
                has_own_size |= type(node.op) is RuntimeSize
                has_own_size |= any(map(first_size_finder, node.op.graphs()))
        if not has_own_size:
            return graph
        found = with_largest_sizes(dead_code(graph))
        return graph if isinstance(found, str) else found


@contextmanager
def _inside(builder: Builder) -> Iterator[None]:
    """A context for appending nodes to the builder around a trace, or at top level."""
    if builder.is_top_level:
        with at_top_level():
            yield
        return
    where = builder_of_thread()
    inner, where.builder = where.builder, builder
    try:
        yield
    finally:
        where.builder = inner


def parallel_for(
    function: Callable[[list[Tensor]], Any],
    elements: Sequence[Tensor],
    count: Any,
    caller: str = "pfor",
) -> Any:
    """Calls `function` on the elements of each iteration; stacks the results on a new first axis.

    `elements` are tensors with a first axis of size `count`. `function` takes the list of one
    iteration's elements, and returns a structure of tensors and None. Errors about its results name
    the `caller`, the function that the user called.
    """
    if not current().is_top_level:
        traced, results, rows = _traced(function, elements, count, caller)
        traced, elements = _with_own_inputs(traced, elements, rows)
        return _widened(traced, results, elements, count)
    with recorded_call():
        traced, results, rows = _traced(function, elements, count, caller)
        traced, elements = _with_own_inputs(traced, elements, rows)
        if not traced.graph.cuts_runs:
            return _widened(traced, results, elements, count)
        whole = _as_one_body(traced, elements, count)
        return results.pack(run_recorded(whole, elements, traced.variables, current_record()))


def _with_own_inputs(
    traced: Traced, elements: Sequence[Tensor], rows: Rows
) -> tuple[Traced, list[Tensor]]:
    """The body and its elements, among them the number of each iteration, if it asked for it, and
    the states of random generators that it draws from: each is split among the iterations."""
    _refuse_assignments(traced)
    numbers = [Iota(rows.count, int32)()] * (traced.argument_count - len(elements))
    random = [traced.variables[i] for i in traced.assigned]
    own = [rows.split(variable) for variable in random]
    inputs, outputs = traced.graph.inputs, traced.graph.outputs
    first, behind = traced.argument_count, traced.argument_count + len(traced.variables)
    handles = dict(enumerate(inputs[first:behind]))
    given = (*inputs[:first], *map(handles.pop, traced.assigned), *handles.values())
    end = traced.result_count
    made = (*outputs[:end], *outputs[end + len(random) :])
    body = dataclasses.replace(
        traced,
        graph=Graph(traced.graph.name, (*given, *inputs[behind:]), traced.graph.nodes, made),
        argument_count=first + len(random),
        variables=tuple(traced.variables[i] for i in handles),
        assigned=(),
    )
    return body, [*elements, *numbers, *own]


def _widened(traced: Traced, results: Results, elements: Sequence[Tensor], count: Any) -> Any:
    """The packed results of all iterations; their nodes are appended to the graph being built."""
    trace, shows_state = prepare_effects(traced)
    env: dict[Tensor, tuple[Tensor, bool]] = {}
    inputs = iter(traced.graph.inputs)
    env.update((next(inputs), (x, True)) for x in elements)
    env.update((next(inputs), (v.read_value(), False)) for v in traced.variables)
    env.update((next(inputs), (x, False)) for x in traced.captures)
    if trace is not None and traced.has_token:
        env[next(inputs)] = trace.take_token(), False
    widen(traced.graph.nodes, env, count)
    outputs = [env[y] for y in traced.graph.outputs]
    if trace is not None and traced.has_token:
        trace.give_token(outputs[traced.result_count][0])
        if shows_state:
            trace.forget_state()
    _report_checks(traced, outputs)
    return results.pack(_stacked(outputs[: traced.result_count], count))


def _stacked(outputs: Sequence[tuple[Tensor, bool]], count: Any) -> list[Tensor]:
    return [y if is_batched else stack(y, count) for y, is_batched in outputs]


def _as_one_body(traced: Traced, elements: Sequence[Tensor], count: Any) -> Traced:
    """All iterations as a separate body, for top level, where effects happen immediately."""
    with Builder("parallel_for") as builder:
        env: dict[Tensor, tuple[Tensor, bool]] = {}
        places = zip(traced.graph.inputs, (*elements, *traced.graph.inputs[len(elements) :]))
        for k, (inner, outer) in enumerate(places):
            env[inner] = builder.input_like(inner, outer.type), k < len(elements)
        widen(traced.graph.nodes, env, count)
        outputs = [env[y] for y in traced.graph.outputs]
        tokens = [y for y, _ in outputs[traced.result_count :]][: traced.has_token]
        stacked = _stacked(outputs[: traced.result_count], count)
        checked = [x for values in _check_values(traced, outputs) for x in values]
        graph = builder.finish([*stacked, *tokens, *checked])
    return dataclasses.replace(traced, graph=graph)


def _traced(
    function: Callable[[list[Tensor]], Any], elements: Sequence[Tensor], count: Any, caller: str
) -> tuple[Traced, Results, Rows]:
    def run(is_first: bool = True) -> tuple[Traced, Results, Rows]:
        with Trace("pfor") as trace:
            trace.create_as_outer()
            trace.parallel = here()
            rows = trace.parallel_rows = Rows(count, trace.outer, here())
            if trace.outer.is_top_level:
                trace.what, trace.may_create = "a parallel loop", is_first
            trace.region, trace.orders_state = here(), False
            has_iterations = type(count) is int and count > 0
            is_call = has_iterations and all(x.type.is_static for x in elements)
            trace.actual = list(elements) if is_call else None
            types = [x.type.with_shape(x.type.shape[1:]) for x in elements]
            given = [trace.argument(type, None) for type in types]
            trace.rows.update(zip(given, elements, strict=True))
            result = function(given)
            leaves, structure = result_leaves(result, f"the function of {caller}", here())
            traced = trace.traced([y for y in leaves if y is not None])
        if trace.created and trace.outer.is_top_level:  # again, now that the Variables exist
            return run(is_first=False)
        graph = rows.with_sizes_of_all(traced.graph, traced.graph.inputs[: traced.argument_count])
        body = dataclasses.replace(traced, graph=graph)
        return body, Results(structure, leaves), rows

    return restored(run)


def _refuse_assignments(traced: Traced) -> None:
    for i in traced.assigned:
        variable = traced.variables[i]
        if not variable.is_random_state:
            fail(
                SignatureError,
                f"the variable {told_name(variable)!r} is assigned in every iteration of a "
                "parallel loop, and their order is not known",
                fix="return the values, and assign what they sum up to after the loop",
            )


def _report_checks(traced: Traced, outputs: Sequence[tuple[Tensor, bool]]) -> None:
    for report, values in zip(traced.checks, _check_values(traced, outputs), strict=True):
        pass_check_on(report, values)


def _check_values(
    traced: Traced, outputs: Sequence[tuple[Tensor, bool]]
) -> Iterator[tuple[Tensor, ...]]:
    """The flag and operands of each check. A check holds if it holds in all iterations, even where
    each iteration performs it separately, as in a loop that some leave before others."""
    place = traced.first_check
    for report in traced.checks:
        (flag, is_apart), *operands = outputs[place : place + 1 + report.operand_count]
        place += 1 + report.operand_count
        yield All(None)(flag) if is_apart else flag, *(x for x, _ in operands)
