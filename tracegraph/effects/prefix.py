"""Running the beginning of a call while the rest of it is still being traced.

If a Python function does not declare the shape of its result, tracing cannot continue without
calling it. The program is cut there: everything before the call runs, once and for good, with its
prints, calls and assignments, and then the function is called. The finished trace takes the results
that are known and does the rest: see `procedure.Record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import TOKEN
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.effects.procedure import START, Procedure
from tracegraph.effects.record import Record
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import READ, STOP, HostCall, host_function
from tracegraph.ops.shape import Reshape, Slice
from tracegraph.passes.vectorise import widen
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import Trace, report_first_failure


def traces_around(trace: Trace) -> list[Trace]:
    """The open traces around a trace, outermost first, followed by the trace itself."""
    found = [trace]
    while isinstance(found[-1].outer, Trace):
        found.append(found[-1].outer)
    return found[::-1]


def calls_before(trace: Trace) -> int:
    """How many calls of Python functions precede this point of the call."""
    return sum(_count_calls(node) for x in traces_around(trace) for node in x.nodes)


def has_shapes_found(body: Graph, trace: Trace, record: Record | None) -> bool:
    """Whether a body called at this point would have the shapes that its Python functions have
    already returned."""
    if record is None or not record.shapes:
        return True
    return _has_shapes_found(body, record, calls_before(trace))


def _has_shapes_found(body: Graph, record: Record, place: int) -> bool:
    for node in body.nodes:
        op = node.op
        if not all(_has_shapes_found(inner.graph, record, place) for inner in op.regions):
            return False
        if isinstance(op, HostCall) and op.undeclared:
            known = [TensorShape(type.shape) for type in op.types]
            if not all(map(_covers, known, record.shapes.get(place, ()))):
                return False
        place += _count_calls(node)
    return True


def _covers(shape: TensorShape, other: TensorShape) -> bool:
    """Whether every tensor of shape `other` also has shape `shape`."""
    if shape.rank is None or other.rank != shape.rank:
        return shape.rank is None
    return all(type(m) is not int or m == n for m, n in zip(shape, other, strict=True))


def _count_calls(node: Node) -> int:
    if isinstance(node.op, HostCall):
        return int(node.op.is_ordered and node.op.function != STOP)
    found = sum(_count_calls(inner) for region in node.op.regions for inner in region.graph.nodes)
    return found if node.op.inlined is not None else min(found, 1)  # a loop is one effect


def results_of_call(
    trace: Trace, op: HostCall, inputs: Sequence[Tensor], record: Record
) -> Sequence[np.ndarray]:
    """The results of `op`'s Python function in the call being traced, to which all traces around
    `trace` belong. The effects before it are performed and recorded in `record`. Raises the error
    of a failed check before it."""
    place = calls_before(trace)
    if place < len(record.made):  # the function is being traced again
        known = record.made[place]
        first = (0,) * len(known.sizes)
        return [array[first] for array in known.results] if first else known.results
    around = traces_around(trace)
    prefix = _Prefix(around, _values_given(around))
    checks = [check for outer in around for check in outer.checks]
    checked = [x for _, values in checks for x in values]
    graph = prefix.graph([*inputs, trace.take_token(), *checked])
    variables = {
        i: prefix.variables[x].given() for i, x in enumerate(graph.inputs) if x in prefix.variables
    }
    buffers = [*map(prefix.buffer, graph.inputs)]
    outputs = Procedure(graph).run(buffers, variables, [], record, is_tracing=True)
    report_first_failure([report for report, _ in checks], iter(outputs[len(inputs) + 1 :]))
    arrays = [*map(backend.on_host, outputs[: len(inputs)])]
    for outer in around:
        if outer.parallel_rows is not None:
            outer.parallel_rows.begin_run()
    made = host_function(op, here()).run(arrays, keeps=op.is_differentiable)
    assert made is not None  # no loop is around it, and all checks hold
    record.add(made, list(variables.values()))
    return made.results


def store_state(trace: Trace) -> None:
    """Stores what Variables were assigned, since a Python function called next may read them. Rows
    of parallel loops get their own states of the generators drawn from, so that it draws other
    numbers."""
    drawn: dict[int, Variable] = {}
    for outer in reversed(traces_around(trace)):
        states = outer.states
        found = [v for v in outer.variables if v.is_random_state and states[id(v)].is_assigned]
        drawn.update((id(v), v) for v in found)
        if outer.parallel_rows is not None:
            for variable in drawn.values():
                outer.parallel_rows.split(variable)
    trace.store_state()


def _values_given(traces: Sequence[Trace]) -> list[dict[int, Tensor]]:
    """For each trace, by identity, the values of its Variables in the trace around it. Reading them
    may add a node and a Variable there, so the innermost comes first."""
    given: list[dict[int, Tensor]] = []
    for outer, inner in reversed([*pairwise(traces)]):
        given.append({id(v): outer.value_of(v.passed()) for v in inner.variables})
    return [{}, *reversed(given)]


class _Prefix(Builder):
    """The nodes of nested traces, as nodes of a single graph. In a parallel loop, the graph of a
    row is widened, so everything before a place happens in all rows, as in the finished trace."""

    def __init__(
        self, traces: Sequence[Trace], given: Sequence[dict[int, Tensor]], is_row: bool = False
    ) -> None:
        """`given` has the values of each trace's Variables; with `is_row`, the first trace is that
        of a row, and what it takes from outside becomes inputs."""
        super().__init__("prefix")
        self._traces = traces
        self._given = given
        self._is_row = is_row
        #: The inputs that represent Variables.
        self.variables: dict[Tensor, Variable] = {}
        #: The inputs that differ from row to row, with the tensors that they are rows of.
        self._rows: dict[Tensor, Tensor] = {}
        self._handles: dict[int, Tensor] = {}
        self._outside: dict[Tensor, Tensor] = {}
        self._env: dict[Tensor, Tensor] = {}

    def graph(self, outputs: Sequence[Tensor]) -> Graph:
        with self:
            for k, trace in enumerate(self._traces):
                if trace.parallel_rows is not None and (k or not self._is_row):
                    self._widen(k, outputs)
                    break
                self._enter(trace, self._given[k])
                for node in trace.nodes:
                    self._replay(node)
            return self.finish([self._env[y] for y in outputs])

    def buffer(self, x: Tensor) -> Any:
        """The buffer of an input; those of Variables are read when the graph runs."""
        if x in self.variables:
            return None
        return START if x.type is TOKEN else device_buffer(self._outside[x])

    def _widen(self, k: int, outputs: Sequence[Tensor]) -> None:
        """Appends the nodes of trace `k`, a row, and of those in it, for all rows. The `outputs`
        are those of the first row."""
        trace = self._traces[k]
        outputs = [y for y in outputs if y not in self._env]
        row = _Prefix(self._traces[k:], self._given[k:], is_row=True)
        graph = trace.parallel_rows.with_sizes_of_all(row.graph(outputs), [*row._rows])
        env: dict[Tensor, tuple[Tensor, bool]] = {}
        for x in graph.inputs:
            if x in row._rows:
                env[x] = self._of(row._rows[x]), True
            elif x in row.variables:
                env[x] = self._variable(row.variables[x], x, self._given[k]), False
            else:
                env[x] = self._token(trace) if x.type is TOKEN else self._of(row._outside[x]), False
        widen(graph.nodes, env, trace.parallel_rows.count)
        for y, known in zip(outputs, graph.outputs, strict=True):
            value, is_batched = env[known]
            self._env[y] = _first_of(value) if is_batched else value

    def _enter(self, trace: Trace, values: dict[int, Tensor]) -> None:
        """Binds the inputs of a trace to what they represent."""
        assert trace.actual is not None
        rows = trace.parallel_rows
        for x, actual in zip(trace.arguments, trace.actual, strict=True):
            self._env[x] = self._of(actual) if rows is None else self._row(x, actual)
        for outer, x in trace.captures.items():
            self._env[x] = self._of(outer)
        for variable in trace.variables:
            handle = trace.states[id(variable)].handle
            own = None if rows is None else rows.state_of(variable)
            if own is not None:
                self._env[handle] = self._handles[id(variable)] = self._row(handle, own)
            else:
                known = {} if self._is_row and rows is not None else values
                self._env[handle] = self._variable(variable, handle, known)
        if trace.token_input is not None:
            self._env[trace.token_input] = self._token(trace)

    def _row(self, x: Tensor, stacked: Tensor) -> Tensor:
        own = self.input_like(x)
        self._rows[own] = stacked
        return own

    def _variable(self, variable: Variable, like: Tensor, values: dict[int, Tensor]) -> Tensor:
        """What stands for a Variable in a trace, given its value in the trace around that."""
        handle = self._handles.get(id(variable))
        if handle is None:
            handle = self._handles[id(variable)] = self.input_like(like)
            self.variables[handle] = variable
        value = values.get(id(variable))
        return handle if value is None else READ(self._env[value], handle)

    def _token(self, trace: Trace) -> Tensor:
        """The token that a trace begins with."""
        outer = trace.outer
        while isinstance(outer, Trace) and outer.token is None:  # it has had no effects so far
            outer = outer.outer
        known = self._env.get(outer.token) if isinstance(outer, Trace) else None  # type: ignore[arg-type]
        return self.input(TOKEN, "token") if known is None else known

    def _of(self, tensor: Tensor) -> Tensor:
        """Maps a tensor of one of the traces, or of the top level, to this graph."""
        found = self._env.get(tensor)
        if found is None:
            found = self._env[tensor] = self.input_like(tensor)
            self._outside[found] = tensor
        return found

    def _replay(self, node: Node) -> None:
        inputs = [self._env[x] for x in node.inputs]
        self._env.update(
            zip(node.outputs, self.add(node.op, tuple(inputs), node.source), strict=True)
        )


def _first_of(stacked: Tensor) -> Tensor:
    sizes = stacked.type.shape
    rest = tuple(sizes[1:])
    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    return Reshape(rest)(Slice(zeros, (1, *rest), ones)(stacked))
