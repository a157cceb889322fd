"""Which integers a scalar may be: bounds that follow from constants, through branches and loops.

The states of a loop are followed from step to step, as long as they are the same in every run, or
lie between numbers that are. So the counter of a loop is known in each of its steps, and after a
loop that a tensor may end early, its largest possible value is known.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np

from tracegraph.core.types import DType, TensorType
from tracegraph.ir.builder import INPUT
from tracegraph.ir.op import Op, Region
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops import elementwise as ops
from tracegraph.ops.effect import Check, Read

#: The smallest and the largest value of a scalar; the values of a known vector; or None.
Range = tuple[int, int] | np.ndarray | None

#: The search gives up after this many nodes: a second or two.
_MOST_NODES = 500_000
#: The limit where only milliseconds may be spent.
_FEW_NODES = 2_000
#: A loop is not followed for longer while no comparison of its condition gets nearer to an outcome.
_MOST_IDLE_STEPS = 32


def range_of(x: Tensor) -> tuple[int, int] | None:
    """The smallest and the largest possible value of an integer scalar; None if unknown."""
    found = ranges_of([x])[0]
    return found if isinstance(found, tuple) else None


def ranges_of(xs: Sequence[Tensor]) -> list[Range]:
    """What is known of tensors in the graph under construction."""
    try:
        return _Walk().tensors(xs)
    except _TooLong:
        return [None] * len(xs)


def state_ranges(op: Op, inputs: Sequence[Range]) -> list[Range]:
    """What is known of the states after a loop, given what is known of its inputs."""
    for follow in (_Walk().states, _Walk().unchanged):
        try:
            return follow(op, inputs)
        except _TooLong:  # less is known without following its steps
            continue
    return [None] * len(op.regions[0].carried)


def most_steps(loop: Node) -> int | None:
    """The most times that a loop can run; None if nothing bounds it."""
    walk = _Walk(_FEW_NODES)
    try:
        return walk.most_steps(loop.op, lambda i: walk.tensors([loop.inputs[i]])[0])
    except _TooLong:
        return None


_DECIDED = ((0, 0), (1, 1))


class _TooLong(Exception):
    """A loop has too many steps to be followed."""


class _Walk:
    def __init__(self, most_nodes: int = _MOST_NODES) -> None:
        self._left = most_nodes
        #: How often a comparison had a definite outcome, or was nearer to one than before.
        self._progress = 0
        #: How far comparisons of the innermost loop were from each outcome, at best.
        self._margins: dict[Node, list[int]] = {}
        self._plans: dict[Graph, list[Node]] = {}

    def tensors(self, xs: Sequence[Tensor]) -> list[Range]:
        """What follows from the nodes that compute some tensors, in whatever graph."""
        env: dict[Tensor, Range] = {}
        waiting = [*xs]
        while waiting:
            x = waiting[-1]
            if x in env:
                waiting.pop()
            elif not _is_followed(x.type) or x.node is None:
                env[x] = _value_of(x) if _is_followed(x.type) else None
            elif missing := [y for y in x.node.inputs if y not in env]:
                waiting += missing
            else:
                self._add(x.node, env)
        return [env[x] for x in xs]

    def graph(self, graph: Graph, inputs: Iterable[Range]) -> list[Range]:
        """What is known of the outputs of a graph."""
        env = dict(zip(graph.inputs, inputs, strict=True))
        for node in self._plan(graph):
            self._add(node, env)
        return [env.get(y, _unknown(y.type)) for y in graph.outputs]

    def _plan(self, graph: Graph) -> list[Node]:
        """The nodes of a graph that compute something to follow."""
        plan = self._plans.get(graph)
        if plan is None:
            nodes = graph.nodes
            plan = [node for node in nodes if any(_is_followed(y.type) for y in node.outputs)]
            self._plans[graph] = plan
        return plan

    def _add(self, node: Node, env: dict[Tensor, Range]) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        inputs = [env[x] if x in env else _unknown(x.type) for x in node.inputs]
        for y, found in zip(node.outputs, self._op(node, inputs), strict=True):
            env[y] = _within(found, y.type)
        if isinstance(node.op, ops.Relation):
            self._progress += self._is_progress(node, inputs, env[node.outputs[0]])

    def _is_progress(self, node: Node, operands: Sequence[Range], found: Range) -> bool:
        """Whether a comparison has an outcome, or is nearer to one than in earlier steps."""
        one, other = operands
        if not (isinstance(one, tuple) and isinstance(other, tuple)):
            return isinstance(found, tuple) and found in _DECIDED  # not the numbers of a vector
        margins = [one[1] - other[0], other[1] - one[0]]
        least = self._margins.get(node)
        self._margins[node] = margins if least is None else [*map(min, least, margins)]
        return self._margins[node] != least or found in _DECIDED

    def _op(self, node: Node, inputs: list[Range]) -> Sequence[Range]:
        op = node.op
        if op is INPUT:
            return [None]
        rule = _RULES.get(type(op))
        if rule is not None and (found := rule(*inputs)) is not None:
            return [found]
        if op.inlined is not None:
            return self.graph(op.inlined, inputs)
        if op.is_loop:
            return self._loop(node, inputs)
        if op.regions:
            return self._alternatives(node, inputs)
        return [_exact(node, inputs)] if len(node.outputs) == 1 else [None] * len(node.outputs)

    def _alternatives(self, node: Node, inputs: list[Range]) -> list[Range]:
        """What is known after the region that runs, or after any of those that may."""
        op = node.op
        known = [_known(*pair) for pair in zip(node.inputs, inputs, strict=True)]
        found: list[list[Range]] = [[] for _ in node.outputs]
        for region, may_run in zip(op.regions, op.may_run(known), strict=True):
            if may_run:
                given = [inputs[i] for i in region.inputs]
                ends = self.graph(region.graph, given)
                for place, end in zip(region.outputs, ends, strict=True):
                    found[place].append(end)
        return [_hull(column) if column else None for column in found]

    def _loop(self, node: Node, inputs: list[Range]) -> list[Range]:
        op = node.op
        found: list[Range] = [None] * len(node.outputs)
        region = op.regions[0]
        places = [region.outputs[y] for y, _ in region.carried]
        for place, state in zip(places, self.states(op, inputs), strict=True):
            found[place] = state
        if op.count_output is not None:
            most = self.most_steps(op, inputs.__getitem__)
            found[op.count_output] = None if most is None else (0, most)
        return found

    def most_steps(self, op: Op, range_at: Callable[[int], Range]) -> int | None:
        """The most times that a loop can run, from what is known of its inputs."""
        found: list[int] = []
        for place, growth, bound, fixed in op.counters():
            start = _scalar(range_at(place))
            end = _scalar(self.tensors([bound])[0] if fixed is None else range_at(fixed))
            if not (isinstance(start, tuple) and isinstance(end, tuple)):
                continue
            # If it overflows its type, it is negative or small again, and the loop continues.
            if end[1] - 1 + growth <= _limits(bound.dtype)[1]:
                found.append(max(-((start[0] - end[1]) // growth), 0))
        return min(found, default=None)

    def states(self, op: Op, inputs: Sequence[Range]) -> list[Range]:
        """What is known of the states after a loop."""
        region, *others = op.regions
        conditions = [x for x in others if x.is_condition]
        loop = _FollowedLoop(region, op.row_inputs, inputs)
        try:
            if op.steps is not None:
                return self._counted(loop, op.steps)
            return self._while(loop, conditions[0]) if conditions else [None] * loop.count
        except _TooLong:
            if self._left < 0:
                raise
            return self.unchanged(op, inputs)

    def unchanged(self, op: Op, inputs: Sequence[Range]) -> list[Range]:
        """What is known of the states after a loop of any length: those that no step changes."""
        loop = _FollowedLoop(op.regions[0], op.row_inputs, inputs)
        states = loop.start
        while True:
            found = self._step(loop, states)
            rest = [x if x == new else None for x, new in zip(states, found, strict=True)]
            if rest == states:
                return states
            states = rest

    def _step(
        self, loop: _FollowedLoop, states: list[Range], number: int | None = None
    ) -> list[Range]:
        """What is known of the states after one more step."""
        found = self.graph(loop.region.graph, loop.given(loop.region, states, number))
        return [found[y] for y, _ in loop.region.carried]

    def _counted(self, loop: _FollowedLoop, steps: Iterable[int]) -> list[Range]:
        states = loop.start
        for number in steps:
            states = self._step(loop, states, number)
        return states

    def _while(self, loop: _FollowedLoop, condition: Region) -> list[Range]:
        around, self._margins = self._margins, {}
        try:
            return self._while_steps(loop, condition)
        finally:
            self._margins = around

    def _while_steps(self, loop: _FollowedLoop, condition: Region) -> list[Range]:
        states = loop.start
        ends: list[Range] | None = None
        idle = _MOST_IDLE_STEPS  # a first step without progress is the last
        while True:
            before = self._progress
            (goes_on,) = self.graph(condition.graph, loop.given(condition, states))
            idle = idle + 1 if self._progress == before else 0
            if goes_on != (0, 0) and idle > _MOST_IDLE_STEPS:
                raise _TooLong  # no counter ends it
            if goes_on != (1, 1):  # it may end here
                ends = states if ends is None else [*map(_hull, zip(ends, states, strict=True))]
            if goes_on == (0, 0):
                break
            new = self._step(loop, states)
            if new == states:  # later steps add nothing
                break
            states = new
        return states if ends is None else ends


class _FollowedLoop:
    """The region that a loop repeats, and what is known of the loop's inputs."""

    def __init__(self, region: Region, rows: Container[int], inputs: Sequence[Range]) -> None:
        self.region = region
        self._rows, self._inputs = rows, inputs
        #: The inputs of the loop that are states.
        self._states = [region.inputs[i] for _, i in region.carried]
        self.count = len(self._states)
        self.start = [_scalar(inputs[i]) for i in self._states]

    def given(
        self, region: Region, states: Sequence[Range], step: int | None = None
    ) -> list[Range]:
        """What is known of the inputs of a region in a step, whose number may be unknown."""
        by_input = dict(zip(self._states, states, strict=True))
        return [
            by_input[i]
            if i in by_input
            else _row(self._inputs[i], step, x.type)
            if i in self._rows
            else self._inputs[i]
            for i, x in zip(region.inputs, region.graph.inputs, strict=True)
        ]


def _is_followed(type: TensorType) -> bool:
    is_whole = type.dtype.is_integer or type.dtype.is_bool
    return is_whole and isinstance(type.shape, tuple) and len(type.shape) <= 1


def _unknown(type: TensorType) -> Range:
    return (0, 1) if type.dtype.is_bool and type.shape == () else None


def _value_of(x: Tensor) -> Range:
    """The value of a tensor without a node, if it has one."""
    if not hasattr(x, "buffer") and not hasattr(x, "host"):
        return _unknown(x.type)
    value = getattr(x, "host", None)
    value = x.buffer if value is None else value
    return _unknown(x.type) if value is None else _of_array(np.asarray(value))


def _of_array(value: np.ndarray) -> Range:
    if value.dtype.kind not in "bui" or value.ndim > 1:
        return None
    return value if value.ndim else (int(value), int(value))


def _within(found: Range, type: TensorType) -> Range:
    """What is known of a result of this type, which may overflow."""
    if not _is_followed(type) or found is None:
        return _unknown(type)
    if isinstance(found, np.ndarray):
        return found
    if type.dtype.is_bool:
        is_nonzero = found[0] > 0 or found[1] < 0
        return (1, 1) if is_nonzero else (0, int(found != (0, 0)))
    low, high = _limits(type.dtype)
    return found if low <= found[0] and found[1] <= high else None


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy_dtype)
    return int(limits.min), int(limits.max)


def _exact(node: Node, inputs: Sequence[Range]) -> Range:
    """The value of a node that follows only from values."""
    values: list[np.ndarray] = []
    if not node.outputs[0].type.is_static:
        return None
    for x, found in zip(node.inputs, inputs, strict=True):
        value = _known(x, found)
        if value is None:
            return None
        values.append(value)
    value = node.op.numpy(*values)
    return None if value is NotImplemented else _of_array(np.asarray(value))


def _known(x: Tensor, found: Range) -> np.ndarray | None:
    """The value of a tensor of which this is known, if there is only one."""
    if isinstance(found, tuple):
        return np.asarray(found[0], x.dtype.numpy_dtype) if found[0] == found[1] else None
    return found


def _row(rows: Range, step: int | None, type: TensorType) -> Range:
    if step is None or not isinstance(rows, np.ndarray):
        return _unknown(type)
    return _of_array(rows[step])


def _scalar(found: Range) -> Range:
    """The range to follow for a state: vectors change."""
    return found if isinstance(found, tuple) else None


def _hull(found: Sequence[Range]) -> Range:
    """What holds of a value that is one of these."""
    ranges = [x for x in found if isinstance(x, tuple)]
    if len(ranges) != len(found):
        return None
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _at_corners(function: Callable[..., Any]) -> Callable[..., Range]:
    """The rule of a function that is monotonic in each operand."""

    def rule(*operands: Range) -> Range:
        if any(not isinstance(x, tuple) for x in operands):
            return None
        corners = itertools.product(*map(set, operands))  # type: ignore[arg-type]
        found = [int(function(*corner)) for corner in corners]
        return min(found), max(found)

    return rule


def _select(which: Range, one: Range, other: Range) -> Range:
    if isinstance(which, tuple) and which[0] == which[1]:
        return one if which[0] else other
    return _hull([one, other])


def _equal(one: Range, other: Range) -> Range:
    if not (isinstance(one, tuple) and isinstance(other, tuple)):
        return None
    if one[1] < other[0] or other[1] < one[0]:
        return (0, 0)
    return (1, 1) if one == other and one[0] == one[1] else (0, 1)


def _negated(x: Range) -> Range:
    return (1 - x[1], 1 - x[0]) if isinstance(x, tuple) else None


def _same(x: Range, *_: Range) -> Range:
    return x


_RULES: dict[type[Op], Callable[..., Range]] = {
    ops.Add: _at_corners(operator.add),
    ops.Sub: _at_corners(operator.sub),
    ops.Mul: _at_corners(operator.mul),
    ops.Neg: _at_corners(operator.neg),
    ops.Maximum: _at_corners(max),
    ops.Minimum: _at_corners(min),
    ops.Less: _at_corners(operator.lt),
    ops.LessEqual: _at_corners(operator.le),
    ops.Greater: _at_corners(operator.gt),
    ops.GreaterEqual: _at_corners(operator.ge),
    ops.LogicalAnd: _at_corners(operator.and_),
    ops.LogicalOr: _at_corners(operator.or_),
    ops.LogicalNot: _negated,
    ops.Equal: _equal,
    ops.NotEqual: lambda one, other: _negated(_equal(one, other)),
    ops.Select: _select,
    ops.Cast: _same,
    ops.Identity: _same,
    ops.StopGradient: _same,
    Read: _same,
    Check: lambda *_: (1, 1),  # a run in which it fails has no results
}

__all__ = ["range_of", "ranges_of", "state_ranges"]
