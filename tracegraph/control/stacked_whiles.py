"""Reverse mode of bounded `while` loops on values that their steps stack.

The gradient of a `while` keeps a bounded number of states and recomputes what the rules of the body
read: each step runs three times, in the loop, on the way back to its state, and before it is
reversed. If the maximum number of steps is known, and rows for that many steps fit in memory, the
loop itself writes what is read, and the gradient is a backward loop over these rows.

The choice is made when a program is compiled, after all derivatives: so it applies to every order,
to parallel loops, and to whatever else became the gradient of a loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property

from tracegraph.calls.call import has_plan
from tracegraph.control.scan import BackwardStep, Scan, type_of_sum
from tracegraph.control.while_loop import (
    COUNT,
    While,
    WhileGradient,
    has_while_gradients,
    usual_checkpoints,
)
from tracegraph.control_passes.ranges import most_steps
from tracegraph.core.source import sourced
from tracegraph.core.types import bytes_of_type
from tracegraph.ir.builder import Builder, copy_inputs, inline, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import ADD, SUB, Less
from tracegraph.ops.index import DynamicSlice, DynamicUpdateSlice
from tracegraph.ops.shape import Reshape
from tracegraph.passes.simplify import dead_code, with_calls_opened
from tracegraph.passes.specialise import specialise

#: The most bytes for the rows of all loops without a budget: zeroing them takes a millisecond or
#: two, which a loop that ends early must earn back.
STACKED_BYTES = 1 << 24

#: The most steps of such a loop: beyond, memory stays constant however many there are.
LONGEST_STACKED = 1 << 12

#: Maps tensors of the old graph to their values in the new one.
Values = dict[Tensor, Tensor]


def with_stacked_whiles(graph: Graph, budget: int | None = None) -> Graph:
    """The graph whose loops stack what their gradients read, within the bytes of a budget."""
    opened = _with_loops_in_sight(graph)
    loops = _chosen(opened, budget)
    if not loops:
        return graph
    whole = {loop.node: loop for loop in loops.values() if loop.is_whole}
    with Builder(graph.name) as builder:
        env = copy_inputs(opened, builder)
        for node in opened.nodes:
            with sourced(node.source):
                if node in whole:
                    whole[node].append(env)
                elif node in loops:
                    env.update(zip(node.outputs, loops[node].reversed_by(node, env), strict=True))
                else:
                    replay([node], env)
        return dead_code(builder.finish([env[y] for y in opened.outputs]))


def stacked_loops(graph: Graph) -> list[Stacking]:
    """The loops of a graph that stack what their gradients read."""
    return list(dict.fromkeys(_chosen(_with_loops_in_sight(graph), None).values()))


def _with_loops_in_sight(graph: Graph) -> Graph:
    """The graph with calls that hold loops inlined, if one has a gradient of a loop."""
    bodies = (node.op.inlined for node in graph.nodes)
    if not any(body is not None and has_while_gradients(body) for body in bodies):
        return graph
    return with_calls_opened(graph, _has_whiles)


def _has_whiles(graph: Graph) -> bool:
    return any(isinstance(node.op, While | WhileGradient) for node in graph.all_nodes())


def _chosen(graph: Graph, budget: int | None) -> dict[Node, Stacking]:
    """The loops whose rows fit, by the nodes of their gradients; several may share the rows."""
    known: dict[tuple[object, ...], Stacking | None] = {}
    chosen: dict[Node, Stacking] = {}
    asked = sys.maxsize if budget is None else budget
    usual = min(STACKED_BYTES, asked)
    made_by = {y: place for place, node in enumerate(graph.nodes) for y in node.outputs}
    for node in graph.nodes:
        loop = _counted_by(node)
        if loop is None:
            continue
        key = loop, node.op, node.inputs[1 : 1 + len(node.op.body.inputs)]  # type: ignore
        if key not in known:
            found = known[key] = _stacking(loop, node, made_by, usual, asked)
            used = 0 if found is None else found.bytes
            usual, asked = usual - used, asked - used
        stacking = known[key]
        if stacking is not None:
            chosen[node] = stacking
    return chosen


def _counted_by(node: Node) -> Node | None:
    """The loop that counts the steps of a gradient, if its steps can also output what the gradient
    reads."""
    op = node.op
    if type(op) is not WhileGradient or op.extras or op.body.cuts_runs:
        return None
    loop = node.inputs[0].node
    is_counted = loop is not None and type(loop.op) is While and loop.op.counts
    return loop if is_counted and has_plan(op.body) else None


def _stacking(
    loop: Node, node: Node, made_by: dict[Tensor, int], usual: int, asked: int
) -> Stacking | None:
    """The loop of a gradient with rows, if it is bounded and they fit: in `asked` bytes, if more
    states were asked for than are kept by default, at least one for each step."""
    op, length = node.op, most_steps(loop)
    assert isinstance(op, WhileGradient)
    states = usual_checkpoints(op.body.input_types[op.constants :])
    if not length or op.checkpoints < min(states, length):
        return None
    is_asked = op.checkpoints >= length and op.checkpoints > states
    if length > LONGEST_STACKED and not is_asked:
        return None
    found = Stacking(loop, node, length, made_by)
    fits = found.is_static and found.bytes <= (asked if is_asked else usual)
    return found if fits else None


class Stacking:
    """A loop that stacks what is read from its steps: `node`, if that has the body and the inputs
    of the gradient, otherwise another one with as many steps."""

    def __init__(self, node: Node, gradient: Node, length: int, made_by: dict[Tensor, int]) -> None:
        assert isinstance(node.op, While)
        assert isinstance(gradient.op, WhileGradient)
        self.node, self.length = node, length
        self._old, self._op = node.op, gradient.op
        self._trips, *rest = gradient.inputs
        self._inputs = rest[: len(self._op.body.inputs)]
        #: The loop as a scan. Its rows are those of the maximum number of steps.
        op = self._op
        self._body = specialise(op.body, [x.type for x in self._inputs])
        self._scan = Scan(self._body, op.constants, op.states, length).recorded()
        extra = self._scan.body.outputs[op.states :]
        self._row_types = [y.type.with_shape((length, *y.type.shape)) for y in extra]
        #: The positions among the gradient's inputs that `node` takes; None if it is another loop.
        self._places = self._found_places(made_by)
        #: The number of steps and the rows, in the new graph.
        self._made: tuple[Tensor, Sequence[Tensor]] | None = None

    @property
    def is_whole(self) -> bool:
        return self._places is not None

    @property
    def is_static(self) -> bool:
        return all(x.is_static for x in self._row_types)

    @property
    def bytes(self) -> int:
        """The size of the rows that are read."""
        read = {x for node in self._back.graph.nodes for x in node.inputs}
        rows = self._back.graph.inputs[-sum(self._back.is_stacked) :]
        return self.length * sum(bytes_of_type(x.type) for x in rows if x in read)

    def _found_places(self, made_by: dict[Tensor, int]) -> list[int] | None:
        body, own, first = self._old.body, self._op.body, self._op.constants
        places = {x: i for i, x in enumerate(own.inputs)}
        if any(x not in places for x in body.inputs):
            return None
        found = [places[x] for x in body.inputs]
        given = [self._inputs[i] for i in found]
        ends = [own.outputs[i - first] for i in found[self._old.constants :]]
        # The gradient's body may take inputs that the loop no longer has and that may come later.
        at = made_by[self.node.outputs[0]]
        if any(made_by.get(x, -1) > at for x in self._inputs):
            return None
        is_same = given == [*self.node.inputs] and ends == [*body.outputs]
        return found if is_same else None

    def append(self, env: Values) -> tuple[Tensor, Sequence[Tensor]]:
        """Appends the loop; returns the number of its steps, and the rows."""
        op = self._op
        xs = [env[x] for x in self._inputs]
        trips = () if self.is_whole else (env[self._trips],)
        body, constants = self._forward_body()
        loop = While(body, constants, self._condition(body, constants), op.checkpoints)
        start, zeros = constant(0, COUNT.dtype), [full(0, x) for x in self._row_types]
        given = (*xs[: op.constants], *trips, start, *zeros, *xs[op.constants :])
        found: Sequence[Tensor] = loop(*given)
        self._made = found[0], found[1 : 1 + len(zeros)]
        if self._places is not None:
            ends = dict(enumerate(found[1 + len(zeros) :], op.constants))
            states = [ends[i] for i in self._places[self._old.constants :]]
            env.update(zip(self.node.outputs, [*states, found[0]], strict=True))
        return self._made

    def _forward_body(self) -> tuple[Graph, int]:
        """`(*constants, number of steps if it is passed, step, *rows, *states) -> (step, *rows,
        *states)`, and how many of the inputs are not states."""
        op, states = self._op, self._op.states
        with Builder(self._scan.body.name) as builder:
            consts = [builder.input_like(x) for x in self._body.inputs[: op.constants]]
            if not self.is_whole:
                builder.input(COUNT, "count")
            constants = len(builder.inputs)
            step = builder.input(COUNT, "step")
            rows = [builder.input(x, "rows") for x in self._row_types]
            old = [builder.input_like(x) for x in self._body.inputs[op.constants :]]
            new = inline(self._scan.body, [*consts, *old])
            written = [_written(*pair, step) for pair in zip(rows, new[states:], strict=True)]
            one = constant(1, COUNT.dtype)
            return builder.finish([ADD(step, one), *written, *new[:states]]), constants

    def _condition(self, body: Graph, constants: int) -> Graph:
        with Builder(self._old.condition.name) as builder:
            inputs = [builder.input_like(x) for x in body.inputs]
            if self._places is None:
                return builder.finish([Less()(inputs[constants], inputs[constants - 1])])
            given = [*inputs[: self._op.constants], *inputs[-self._op.states :]]
            given = [given[i] for i in self._places]
            condition = specialise(self._old.condition, [x.type for x in given])
            return builder.finish(inline(condition, given))

    def reversed_by(self, gradient: Node, env: Values) -> list[Tensor]:
        """Appends the backward loop; returns the outputs of a gradient."""
        op = self._op
        count, rows = self._made or self.append(env)
        xs = [env[x] for x in self._inputs]
        given = (env[x] for x in gradient.inputs[1 + len(xs) :])
        gs = dict(zip((i for i in op.targets if i >= op.constants), given, strict=True))
        values = {"input": xs, "output": [*xs[op.constants :], *rows]}
        residuals = [values[kind][i] for kind, i in self._back.residuals]
        start = [full(0, xs[op.constants + i].type) for i in self._back.states]
        start = [gs.get(op.constants + i, zero) for i, zero in zip(self._back.states, start)]
        start += [full(0, type_of_sum(xs[i].type)) for i in self._back.summed]
        loop = While(*self._graphs_back(residuals), op.checkpoints)
        constants = [x for x, is_one in zip(residuals, self._back.is_constant) if is_one]
        stacked = [x for x, is_one in zip(residuals, self._back.is_stacked) if is_one]
        found = loop(*constants, *stacked, count, *start)[1:]
        cotangents = dict(self._back.cotangents(found, residuals))
        return [cotangents[i] if i in cotangents else full(0, xs[i].type) for i in op.targets]

    @cached_property
    def _back(self) -> BackwardStep:
        scan, op = self._scan, self._op
        extra = len(scan.body.outputs) - op.states
        present = scan.states_with_cotangents((*op.present, *(False,) * extra))
        return BackwardStep(scan, present, scan.residual_places(), takes_out_products=False)

    def _graphs_back(self, residuals: Sequence[Tensor]) -> tuple[Graph, int, Graph]:
        """`(*constant residuals, *rows, step, *states) -> (step, *states)`, the number of inputs
        that are not states, and whether a step is left."""
        step = self._back.graph
        split = self._back.constants, len(step.inputs) - sum(self._back.is_stacked)
        with Builder(step.name) as builder:
            consts = [builder.input_like(x) for x in step.inputs[: split[0]]]
            wide = [x for x, is_one in zip(residuals, self._back.is_stacked) if is_one]
            rows = [builder.input(x.type, "rows") for x in wide]
            number = SUB(builder.input(COUNT, "step"), constant(1, COUNT.dtype))
            states = [builder.input_like(x) for x in step.inputs[split[0] : split[1]]]
            given = [*consts, *states, *(_row(x, number) for x in rows)]
            body = builder.finish([number, *inline(step, given)])
        constants = len(consts) + len(rows)
        with Builder(f"{step.name}_goes_on") as builder:
            inputs = [builder.input_like(x) for x in body.inputs]
            goes_on = Less()(constant(0, COUNT.dtype), inputs[constants])
            return body, constants, builder.finish([goes_on])


def _written(rows: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """The rows with the one at `place`, a scalar int32, replaced."""
    zeros = [constant(0, COUNT.dtype)] * row.ndim
    wide = Reshape((1, *row.type.shape))(row)
    return DynamicUpdateSlice()(rows, wide, place, *zeros)


def _row(rows: Tensor, place: Tensor) -> Tensor:
    """The row at `place`, a scalar int32."""
    zeros = [constant(0, COUNT.dtype)] * (rows.ndim - 1)
    shape = rows.type.shape[1:]
    return Reshape(shape)(DynamicSlice((1, *shape))(rows, place, *zeros))
