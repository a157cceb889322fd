"""Sizes of arrays that grow in a loop which decides by what it reads of them.

The size is not known before the loop has run, and the loop cannot run in a buffer that is too
small. So it runs for the sizes alone, in buffers that it may outgrow: it then stops, and runs again
in larger ones. Every step until then has read what it wrote, so the sizes of the first run that
fits are right.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from typing import cast

from tracegraph.calls.call import appended
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.core.shapes import Dim
from tracegraph.core.types import TensorType, int32, int64
from tracegraph.ir.builder import Builder, current, inline, replay
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import RuntimeSize, constant
from tracegraph.ops.elementwise import (
    MAXIMUM,
    MINIMUM,
    MUL,
    Cast,
    Greater,
    LessEqual,
    LogicalAnd,
    LogicalOr,
    StopGradient,
)
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.specialise import names_in, names_used
from tracegraph.tensor_arrays.tensor_array import refuse_growth

#: The elements in the first buffers, and how many times more the next ones have. Each size is
#: compiled, so few are tried.
_FIRST, _TIMES = 256, 8


def sizes_by_trial(
    name: str, op: Scan | While, inputs: Sequence[Tensor], capacity: Dim, places: Sequence[int]
) -> list[Tensor]:
    """The final sizes, int32 scalars, that a loop gives as its outputs at `places`. `capacity` is
    the size of the buffers among its inputs, which no run has found: each trial has its own."""
    if _may_go_on(op.body, capacity, {*op.body.inputs}):
        refuse_growth(name, "what is read of it decides how long a loop in a step runs")
    flags = tuple(i in places for i in range(len(op.output_types(tuple(inputs)))))
    small, keep, has = op.pruned(flags)
    inputs = [x for x, is_kept in zip(inputs, keep, strict=True) if is_kept]
    found = [sum(has[:place]) for place in places]
    nodes = _taken_out(capacity, inputs)
    made = {y for node in nodes for y in node.outputs}
    taken = [x for node in nodes for x in node.inputs] + inputs
    outer = list(dict.fromkeys(x for x in taken if x not in made))

    with Builder("trial") as builder:
        captured = [builder.input_like(x) for x in outer]
        tried = builder.input(TensorType(int64, ()), "capacity")
        for _ in places:
            builder.input(TensorType(int32, ()), "size")
        more = MAXIMUM(MUL(tried, constant(_TIMES, int64)), constant(_FIRST, int64))
        tried = MINIMUM(more, constant(int32.max, int64))
        RuntimeSize(capacity)(tried)
        env = dict(zip(outer, captured, strict=True))
        replay(nodes, env)
        loop, given = _stopping(small, [env[x] for x in inputs], tried, found)
        outputs = appended(loop, given)
        trial = builder.finish([tried, *(outputs[place] for place in found)])
    with Builder("is_outgrown") as builder:
        tried, *sizes = [builder.input_like(x) for x in trial.inputs][len(outer) :]
        outgrown = [Greater()(Cast(int64)(size), tried) for size in sizes]
        condition = builder.finish([functools.reduce(LogicalOr(), outgrown)])
    given = [_without_slope(x) for x in outer]
    start = [constant(0, int64), *(constant(1, int32) for _ in places)]
    return [*appended(While(trial, len(outer), condition, 2), [*given, *start])[1:]]


def _may_go_on(graph: Graph, capacity: Dim, full: Set[Tensor]) -> bool:
    """Whether a loop in a graph may not end where an array has been outgrown in the same step.
    `full` are the inputs that are as the step before left them."""
    for node in graph.nodes:
        op = node.op
        changed = {region.inputs[i] for region in op.regions for _, i in region.carried}
        # A tensor without elements only holds sizes.
        kept = [
            i not in changed and (x in full or 0 in x.type.shape) for i, x in enumerate(node.inputs)
        ]
        if _has_condition(op) and op.may_never_end:
            pairs = zip(node.inputs, kept, strict=True)
            if any(not is_kept and capacity.names() & names_in(x.type) for x, is_kept in pairs):
                return True
        for region in op.regions:
            places = zip(region.graph.inputs, region.inputs, strict=False)
            if _may_go_on(region.graph, capacity, {x for x, i in places if kept[i]}):
                return True
    return False


def _has_condition(op: Op) -> bool:
    """Whether an op is a loop that a condition ends."""
    return any(region.is_condition for region in op.regions)


def _taken_out(capacity: Dim, outputs: Sequence[Tensor]) -> list[Node]:
    """The nodes that compute these outputs from a size. The graph under construction loses them,
    and all others that follow from the size: it has no such size outside of the trial."""
    builder = current()
    found: set[Tensor] = set()
    nodes: list[Node] = []
    for node in builder.nodes:
        if capacity.names() & names_used(node) or not found.isdisjoint(node.inputs):
            nodes.append(node)
            found.update(node.outputs)
    builder.nodes[:] = [node for node in builder.nodes if found.isdisjoint(node.outputs)]
    return live_nodes(nodes, outputs)


def _without_slope(x: Tensor) -> Tensor:
    return appended(StopGradient(), (x,))[0] if x.dtype.is_differentiable else x


def _stopping(
    op: Op, inputs: Sequence[Tensor], capacity: Tensor, places: Sequence[int]
) -> tuple[Op, list[Tensor]]:
    """The loop that also ends as soon as a size, a state at one of the `places`, is larger than the
    capacity; and its inputs. A scan has an end anyway."""
    if not _has_condition(op):
        return op, [*inputs]
    op = cast("While", op)
    with Builder(op.condition.name) as builder:
        limit = builder.input(capacity.type, "capacity")
        given = [builder.input_like(x) for x in op.condition.inputs]
        sizes = [given[op.constants + place] for place in places]
        fit = [LessEqual()(Cast(int64)(size), limit) for size in sizes]
        condition = builder.finish(
            [functools.reduce(LogicalAnd(), [*inline(op.condition, given), *fit])]
        )
    with Builder(op.body.name) as builder:
        builder.input(capacity.type, "capacity")
        body = builder.finish(inline(op.body, [builder.input_like(x) for x in op.body.inputs]))
    return op.with_graphs(condition, body, op.constants + 1), [capacity, *inputs]
