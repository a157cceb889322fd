"""Hoists effects out of a call with its own backward graph: they happen once, before the call.

A custom backward starts from the inputs of the body, so it would repeat the effects of the body.
Instead the call takes the results of the effects as further inputs. Their derivatives, which second
orders need, follow the ordinary rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tracegraph.calls.call import as_tuple, naming
from tracegraph.core.types import TOKEN
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import HostCall
from tracegraph.passes.common_subexpressions import live_nodes


@dataclasses.dataclass(frozen=True)
class Hoisted:
    """A graph in two halves: its effects with what they need, and the `rest`, which takes the
    effects' results as inputs after those of the graph. Tokens stay in the first half."""

    graph: Graph
    effects: tuple[Node, ...]
    rest: Graph
    #: All nodes of the graph outside the first half, including those that the rest does not need.
    others: tuple[Node, ...]

    def around(self, op: Op) -> Graph:
        """The whole graph again, with `op` in place of the rest."""
        with Builder(self.graph.name) as builder:
            env = copy_inputs(self.graph, builder)
            replay(self.effects, env)
            outputs = as_tuple(op(*(env[x] for x in self.rest.inputs)))
            env.update(zip(self.rest.outputs, outputs, strict=True))
            return builder.finish([env[y] for y in self.graph.outputs])


def hoisted(graph: Graph, ends: Sequence[Tensor] = (), keeps_values: bool = True) -> Hoisted:
    """Splits the effects off a graph.

    - `ends`: tensors that are also computed from the rest, by nodes of the graph.
    - `keeps_values`: whether the rest takes everything that was computed for the effects, or only
      the effects' results, and recomputes the other values.
    """
    effects = [node for node in graph.nodes if _is_effect(node)]
    first = live_nodes(graph.nodes, [y for node in effects for y in node.outputs])
    outside = set(first if keeps_values else effects)
    others = [node for node in graph.nodes if node not in outside]
    outputs = tuple(y for y in graph.outputs if y.type is not TOKEN)
    read = {*outputs, *ends}
    read.update(x for node in live_nodes(others, read) for x in node.inputs)
    inputs = [x for x in graph.inputs if x in read or x.type is not TOKEN]
    made = [y for node in graph.nodes if node in outside for y in node.outputs]
    given = [*inputs, *(y for y in made if y in read)]
    given += naming([y for y in made if not y.type.is_static], given)
    rest = Graph(graph.name, tuple(given), tuple(live_nodes(others, outputs)), outputs)
    return Hoisted(graph, tuple(first), rest, tuple(others))


def _is_effect(node: Node) -> bool:
    op = node.op
    return op.has_effects or (op.cuts_runs and not isinstance(op, HostCall))
