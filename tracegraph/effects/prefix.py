"""Running the beginning of a call while the rest of it is still being traced.

If a Python function does not declare the shape of its result, tracing cannot continue without
calling it. The program is cut there: everything before the call runs, once and for good, with its
prints, calls and assignments, and then the function is called. The finished trace takes the results
that are known and does the rest: see `procedure.Record`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    prefix = _Prefix(around)
    checks = [check for outer in around for check in outer.checks]
    checked = [x for _, values in checks for x in values]
    graph = prefix.graph([*inputs, trace.take_token(), *checked])
    variables = {
        i: prefix.variables[x] for i, x in enumerate(graph.inputs) if x in prefix.variables
    }
    buffers = [*map(prefix.buffer, graph.inputs)]
    outputs = Procedure(graph).run(buffers, variables, [], record, is_tracing=True)
    report_first_failure([report for report, _ in checks], iter(outputs[len(inputs) + 1 :]))
    arrays = [*map(backend.on_host, outputs[: len(inputs)])]
    made = host_function(op, here()).run(arrays, keeps=op.is_differentiable)
    assert made is not None  # no loop is around it, and all checks hold
    record.add(made, list(variables.values()))
    return made.results


class _Prefix(Builder):
    """The nodes of nested traces, as nodes of a single graph."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        super().__init__("prefix")
        self._traces = traces
        #: The inputs that represent Variables.
        self.variables: dict[Tensor, Variable] = {}
        self._handles: dict[int, Tensor] = {}
        self._outside: dict[Tensor, Tensor] = {}
        self._env: dict[Tensor, Tensor] = {}

    def graph(self, outputs: Sequence[Tensor]) -> Graph:
        # A trace may have to read a Variable for the one inside it, which adds a node, and a
        # Variable to the reads of the trace around it: so the innermost comes first.
        pairs = list(zip(self._traces, self._traces[1:]))
        given = [
            {id(v): outer.value_of(v.passed()) for v in inner.variables}
            for outer, inner in reversed(pairs)
        ][::-1]
        with self:
            for trace, values in zip(self._traces, [{}, *given], strict=True):
                self._enter(trace, values)
                for node in trace.nodes:
                    self._replay(node)
            return self.finish([self._env[y] for y in outputs])

    def buffer(self, x: Tensor) -> Any:
        """The buffer of an input; those of Variables are read when the graph runs."""
        if x in self.variables:
            return None
        return START if x.type is TOKEN else device_buffer(self._outside[x])

    def _enter(self, trace: Trace, values: dict[int, Tensor]) -> None:
        """Binds the inputs of a trace to what they represent."""
        assert trace.actual is not None
        for x, actual in zip(trace.arguments, trace.actual, strict=True):
            given = self._of(actual)
            self._env[x] = _first_of(given) if trace.takes_first_of_actual else given
        for outer, x in trace.captures.items():
            self._env[x] = self._of(outer)
        for variable in trace.variables:
            handle = self._handles.get(id(variable))
            inner = trace.states[id(variable)].handle
            if handle is None:
                handle = self._handles[id(variable)] = self.input_like(inner)
                self.variables[handle] = variable.given()
            value = values.get(id(variable))
            self._env[inner] = handle if value is None else READ(self._env[value], handle)
        if trace.token_input is not None:
            outer = trace.outer
            while isinstance(outer, Trace) and outer.token is None:  # it has had no effects so far
                outer = outer.outer
            known = self._env.get(outer.token) if isinstance(outer, Trace) else None  # type: ignore[arg-type]
            self._env[trace.token_input] = self.input(TOKEN, "token") if known is None else known

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
