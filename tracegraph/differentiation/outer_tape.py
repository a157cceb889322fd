"""The record of a tape that is re-entered inside a trace, translated into that trace.

A tape that is open at top level, or in an outer trace, may be entered again inside a function that
is being traced. What it recorded outside still counts: the trace captures tensors from there, and
derivatives continue through the nodes that computed them.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from typing import Any, TypeAlias

from tracegraph.core.source import here
from tracegraph.errors import GradientError, fail
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.ops.broadcast import Sum
from tracegraph.ops.elementwise import IDENTITY
from tracegraph.ops.index import Gather
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import Trace

#: A node, with the inputs and outputs it has outside the trace. A trace stands for a node that
#: takes one row of a tensor for it.
_Row: TypeAlias = tuple[Node | Trace, list[Tensor], list[Tensor]]


class OuterTape:
    """The record of a tape outside a trace: `record` is that of the tape, and `nodes`, `tracked`,
    `variables` and `outside` are its contents."""

    def __init__(
        self,
        record: dict[str, Any],
        nodes: Sequence[Node],
        tracked: Container[Tensor],
        variables: dict[int, Variable],
        outside: OuterTape | None,
        trace: Trace,
        follows_arguments: bool = False,
    ) -> None:
        self.record = record
        self._nodes = nodes
        self._tracked = tracked
        self._variables = variables
        self._outside = outside
        self._trace = trace
        #: How many nodes came before the trace, in the trace that is its place.
        self.start = len(record["_builder"].nodes)
        #: Whether arguments that are rows or copies of tensors are computed from those. If not,
        #: all arguments are sources.
        self._follows_arguments = follows_arguments
        #: How many captures of the trace have been examined.
        self._seen = 0
        #: The trace's captures of tensors that are followed outside.
        self._ends: list[Tensor] = []
        self._are_arguments_new = True

    def has_watched(self, variable: Variable) -> bool:
        """Whether the tape watched a Variable outside. If that Variable is an argument of the
        trace, the trace then serves it alone: what was computed from it outside counts too."""
        if variable.is_stand_in and self.has_watched(variable.given()):
            variable.actual()
            return True
        return id(variable) in self._variables or (
            self._outside is not None and self._outside.has_watched(variable)
        )

    def new_captures(self) -> Iterator[Tensor]:
        """The new inputs of the trace that stand for tensors followed outside. Arguments count as
        sources: each call computes them from something else."""
        if self._are_arguments_new:
            self._are_arguments_new = False
            pairs = zip(self._trace.actual or (), self._trace.arguments)
            yield from (own for tensor, own in pairs if self._follows(tensor))
        captures = self._trace.captures
        for tensor, own in itertools.islice(captures.items(), self._seen, None):
            if self._follows(tensor):
                self._ends.append(tensor)
                yield own
        self._seen = len(captures)

    def _follows(self, tensor: Tensor) -> bool:
        return tensor in self._tracked or (
            self._outside is not None and self._outside._follows(tensor)
        )

    def nodes_from(self, sources: Sequence[Tensor]) -> list[Node]:
        """The nodes outside that lie between sources, which are tensors of the trace, and the
        trace's captures, as nodes of the trace."""
        variables = self._all_variables()
        used = {id(v) for v in self._trace.variables}
        own = {x: tensor for tensor, x in self._trace.captures.items()}
        own.update((v.handle_in(self._trace), v.handle) for v in variables if id(v) in used)
        below = self._computed_of({own.get(x, x) for x in sources})
        needed = {*self._ends, *self._trace.arguments}
        between = []
        for row in reversed(below):
            if not needed.isdisjoint(row[2]):
                needed.update(row[1])
                between.append(row)
        by_handle = {v.handle: v for v in variables}
        return [
            self._translated(node, inputs, outputs, by_handle)
            for node, inputs, outputs in reversed(between)
        ]

    def _computed_of(self, reached: set[Tensor]) -> list[_Row]:
        """The nodes outside that depend on any of the tensors `reached`, to which their outputs are
        added."""
        below = []
        for row in self._rows():
            if not reached.isdisjoint(row[1]):
                reached.update(row[2])
                below.append(row)
        return below

    def refuse_arguments_among(self, sources: Sequence[Tensor]) -> None:
        """Rejects an argument if the trace captured something computed from it outside: the trace
        serves other arguments too, and that value does not depend on those."""
        given = dict(zip(self._trace.arguments, self._trace.actual or ()))
        for source in sources:
            reached = {given[source]} if source in given else set()
            self._computed_of(reached)
            found = next((x for x in self._ends if x in reached and x is not given[source]), None)
            if found is not None:
                fail(
                    GradientError,
                    "the gradient with respect to the argument "
                    f"{source.name or source.type} would omit a captured {found.type} that this "
                    "tape saw computed from it outside the function",
                    fix="capture the tensor instead of passing it, or compute inside the function "
                    "everything that depends on it",
                )

    def _all_variables(self) -> list[Variable]:
        """The Variables that the tape watched outside."""
        outer = [] if self._outside is None else self._outside._all_variables()
        return [*outer, *self._variables.values()]

    def _rows(self) -> Iterator[_Row]:
        """The nodes outside, with their inputs and outputs at top level or in the trace that
        created them."""
        if self._outside is not None:
            yield from self._outside._rows()
        builder = self.record["_builder"]
        origins: dict[Tensor, Tensor] = {}
        if isinstance(builder, Trace):
            origins.update((own, tensor) for tensor, own in builder.captures.items())
        origins.update((v.handle_in(builder), v.handle) for v in self._variables.values())
        for node in self._nodes:
            inputs = [origins.get(x, x) for x in node.inputs]
            yield node, inputs, [origins.get(y, y) for y in node.outputs]
        if self._follows_arguments:
            for copy, tensor in self._trace.copies.items():
                node = Node(IDENTITY, (tensor,), here(), builder)
                yield node, [origins.get(tensor, tensor)], [copy]
            for row, tensor in self._trace.rows.items():
                yield self._trace, [origins.get(tensor, tensor)], [row]

    def _translated(
        self,
        node: Node | Trace,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        variables: dict[Tensor, Variable],
    ) -> Node:
        def own(x: Tensor) -> Tensor:
            found = variables.get(x)
            if found is not None:
                return found.handle_in(self._trace)
            return self._trace.admit_all((x,))[0]

        op: Op
        if not isinstance(node, Trace):
            op, source = node.op, node.source
        elif inputs[0].type.shape[0] == 0:  # no step takes the row, and the sum has its type
            op, source = Sum((0,)), here()
        else:
            inputs, op, source = [*inputs, node.number_of_row()], Gather(0, 0), here()
        new = Node(op, tuple(map(own, inputs)), source, self._trace)
        new.outputs = tuple(map(own, outputs))
        return new


def lost_inside(trace: Trace, start: int, x: Tensor) -> set[Tensor]:
    """What depends on `x` through a branch, a loop or a call, the first after the first `start`
    nodes of `trace`. A tape that was entered again inside it knows nothing of that path."""
    reached = {x}
    for node in trace.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    lost: set[Tensor] = set()
    region = next((node for node in trace.nodes[start:] if node.op.regions), None)
    for node in trace.nodes[start:]:
        if node is region or "pfor" in node.source.roles:  # whose regions are part of the trace
            lost.update(reached.intersection(node.outputs))
        lost.update(node.depending(lost))
    return lost


class _Everything:
    def __contains__(self, x: object) -> bool:
        return True


def nodes_around(trace: Trace, sources: Sequence[Tensor]) -> list[Node]:
    """The nodes of the enclosing traces that lie between sources and what a trace takes from
    outside, as nodes of the trace: what a tape around all of them would have recorded. Rows that a
    loop takes of tensors count; its other arguments do not."""
    around = _record_around(trace)
    for _ in around.new_captures():
        pass
    return around.nodes_from(sources)


def _record_around(trace: Trace) -> OuterTape:
    outer = trace.outer
    record, everything = {"_builder": outer}, _Everything()
    if not isinstance(outer, Trace):  # what was computed at top level is constant
        return OuterTape(record, (), everything, {}, None, trace, follows_arguments=True)
    variables = {id(v): v for v in outer.variables}
    outside = _record_around(outer)
    nodes = tuple(outer.nodes)
    return OuterTape(record, nodes, everything, variables, outside, trace, follows_arguments=True)
