"""Finds the node of a graph to blame for non-finite results.

The graph is inlined and divided into parts. Each part also reports for everything it computes
whether it is finite, infinite or nan. From the non-finite results the search follows non-finite
values back to a node whose operands are finite. An infinity that only comes from a constant, as in
masks, is nobody's fault; then the same search is made for nan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from tracegraph.control_passes.check_numerics import computable, may_be_nan
from tracegraph.core.types import bool_, int8
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import Constant, constant
from tracegraph.ops.effect import Check
from tracegraph.ops.elementwise import ADD, AND, Cast, IsFinite, LogicalNot, NotEqual
from tracegraph.ops.reduce import All
from tracegraph.ops.shape import Concatenate, Reshape

MESSAGE = "the results hold nan or infinity"

#: What a part reports for a tensor.
FINITE, INFINITE, NAN = range(3)
#: Nodes per part; each part is a program.
_LONGEST = 200


def with_finite_check(graph: Graph, count: int) -> Graph:
    """`graph` with one more output: whether the first `count` outputs are finite."""
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        replay(graph.nodes, env)
        outputs = [env[y] for y in graph.outputs]
        holds = constant(True, bool_)
        for y in dict.fromkeys(filter(may_be_nan, outputs[:count])):
            holds = AND(holds, All(None)(IsFinite()(computable(y))))
        return builder.finish([*outputs, Check(MESSAGE)(holds)])


@dataclasses.dataclass(frozen=True)
class Section:
    """Some nodes of a graph as their own graph, from `inputs` to `outputs` followed by one array:
    FINITE, INFINITE or NAN for each tensor in `told`."""

    nodes: Sequence[Node]
    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    told: tuple[Tensor, ...]


def parts(graph: Graph) -> Iterator[Section]:
    """The parts of an inlined graph, in order."""
    last = {x: number for number, node in enumerate(graph.nodes) for x in node.inputs}
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    for start in range(0, len(graph.nodes), _LONGEST):
        nodes = graph.nodes[start : start + _LONGEST]
        end = start + len(nodes)
        made = [y for node in nodes for y in node.outputs]
        outputs = tuple(y for y in made if last.get(y, -1) >= end)
        yield part_of(graph.name, nodes, outputs, [y for y in made if may_be_nan(y)])


def part_of(
    name: str, nodes: Sequence[Node], outputs: Sequence[Tensor], told: Sequence[Tensor]
) -> Section:
    """A part with these nodes."""
    made = {y for node in nodes for y in node.outputs}
    read = dict.fromkeys(x for node in nodes for x in node.inputs if x not in made)
    read.update(dict.fromkeys(y for y in (*outputs, *told) if y not in made))
    with Builder(name) as builder:
        env = {x: builder.input_like(x) for x in read}
        replay(nodes, env)
        found = [env[y] for y in outputs]
        if told:
            found.append(Concatenate(0)(*(Reshape((1,))(_state(env[y])) for y in told)))
        return Section(nodes, builder.finish(found), tuple(read), tuple(outputs), tuple(told))


def _state(x: Tensor) -> Tensor:
    """FINITE, INFINITE or NAN, whichever is the worst of the elements."""
    as_number, x = Cast(int8), computable(x)
    is_wrong = as_number(LogicalNot()(All(None)(IsFinite()(x))))
    is_nan = as_number(LogicalNot()(All(None)(LogicalNot()(NotEqual()(x, x)))))
    return ADD(is_wrong, is_nan)


def blamed(graph: Graph, states: Mapping[Tensor, int]) -> tuple[list[Node], list[Tensor]]:
    """The nodes to blame for non-finite outputs of `graph`, in order; and, if there are none, the
    inputs through which the non-finite values came."""
    inputs: set[Tensor] = set()
    for bad in (INFINITE, NAN):  # nan counts as not finite too
        nodes, found = _reached(graph, lambda x, bad=bad: states.get(x, FINITE) >= bad)
        if nodes:
            return [node for node in graph.nodes if node in nodes], []
        inputs |= found
    return [], [x for x in graph.inputs if x in inputs]


def _reached(graph: Graph, is_bad: Callable[[Tensor], bool]) -> tuple[set[Node], set[Tensor]]:
    """Where the search back from the bad outputs ends: nodes whose operands are good, and bad
    inputs of the graph."""
    stack: list[Tensor] = [y for y in graph.outputs if is_bad(y)]
    seen: set[Tensor] = set(stack)
    inputs = set(graph.inputs)
    nodes: set[Node] = set()
    while stack:
        x = stack.pop()
        node = x.node
        if x in inputs or node is None:
            continue
        bad = [z for z in node.inputs if is_bad(z)]
        if not bad and not isinstance(node.op, Constant):
            nodes.add(node)
        stack.extend(z for z in bad if z not in seen)
        seen.update(bad)
    return nodes, inputs & seen
