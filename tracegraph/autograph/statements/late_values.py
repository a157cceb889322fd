"""What only steps of a loop set, if only the run knows its size: computed once, after the loop.

All that a loop carries has one shape, but `return array.stack()` leaves the loop. So the loop
carries what the value is computed from, and the nodes that compute it are moved after the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from tracegraph import nest
from tracegraph.autograph.statements.values import flattened
from tracegraph.calls.call import Call, appended, as_tuple
from tracegraph.core.types import TOKEN
from tracegraph.errors import ShapeError, fail
from tracegraph.ir.builder import Builder, current, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import names_chosen, names_in, names_used


@dataclasses.dataclass(frozen=True)
class LateValue:
    """A value, without its tensors, and the graph that computes these."""

    structure: nest.Structure
    leaves: tuple[Any, ...]
    graph: Graph

    def computed(self, given: Sequence[Tensor]) -> Any:
        """The value, for the inputs of the graph."""
        tensors = iter(as_tuple(appended(Call(self.graph), given)))
        leaves = [next(tensors) if isinstance(x, Tensor) else x for x in self.leaves]
        return self.structure.pack(leaves)


def late_value(value: Any) -> tuple[LateValue, tuple[Tensor, ...]] | None:
    """A value with tensors whose sizes are found in the graph being built, as one that is computed
    later from other tensors; None for any other value. Raises ShapeError if computing it has
    effects."""
    leaves, structure = flattened(value)
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    sizes = _Sizes(current().nodes)
    if not any(sizes.names_in(x) for x in tensors):
        return None
    nodes, ends = sizes.nodes_of(tensors)
    with Builder("returned") as builder:
        inputs = {x: builder.input(x.type) for x in ends}
        env = dict(inputs)
        replay(nodes, env)
        graph = simplify(builder.finish([env[x] for x in tensors]))
    read = {x for node in graph.nodes for x in node.inputs} | {*graph.outputs}
    kept = [(x, y) for x, y in zip(ends, graph.inputs, strict=True) if y in read]
    for node in nodes:
        if any(x.type is TOKEN for x in node.inputs):
            _refuse_effect(node)
    graph = Graph(graph.name, tuple(y for _, y in kept), graph.nodes, graph.outputs)
    return LateValue(structure, tuple(leaves), graph), tuple(x for x, _ in kept)


def _refuse_effect(node: Node) -> NoReturn:
    """Raises ShapeError for a node that must run in its step."""
    fail(
        ShapeError,
        "what leaves a loop has a size that only the run knows, and each step has an effect to "
        f"compute it, {node.op.name}; only what has no effects is computed after the loop",
        source=node.source,
        fix="declare the shape with set_shape, or compute it after the loop, which `break` leaves",
    )


class _Sizes:
    """The sizes that nodes find, by name."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._places = {node: place for place, node in enumerate(nodes)}
        self._found = {name: node for node in nodes for name in names_chosen(node)}

    def names_in(self, x: Tensor) -> set[str]:
        return names_in(x.type) & self._found.keys()

    def nodes_of(self, tensors: Iterable[Tensor]) -> tuple[list[Node], list[Tensor]]:
        """The nodes that compute tensors of such sizes, in order, and the tensors without any that
        they read."""
        late: set[Node] = set()
        ends: dict[Tensor, None] = {}
        waiting = [*tensors]
        while waiting:
            x = waiting.pop()
            if x.node is None or x.node not in self._places or not self.names_in(x):
                ends[x] = None
            elif x.node not in late:
                waiting += self._entered(x.node, late)
        return [node for node in self._nodes if node in late], [*ends]

    def _entered(self, node: Node, late: set[Node]) -> Iterator[Tensor]:
        """Enters a node, and those that find the sizes in it; all that these read."""
        finders = {self._found[name] for name in names_used(node) & self._found.keys()}
        # In the same order each time that the loop is traced.
        for one in sorted({node, *finders} - late, key=self._places.__getitem__):
            late.add(one)
            yield from one.inputs


__all__ = ["LateValue", "late_value"]
