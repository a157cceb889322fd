"""Graphs compared by structure, so that equal ones are one graph, or one block of a loop.

Undecorated code traces a custom gradient at every call. If an equal graph was seen before, that
graph is reused with everything derived from it, and nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.recursion_limit import headroom
from tracegraph.ir.op import Op, attribute_key
from tracegraph.ir.tensor import Graph, Node

#: Graphs kept for the whole process; the least recently used are dropped first.
_LIMIT = 512
_kept: LRUCache[Any, Graph] = LRUCache(_LIMIT)


def interned(graph: Graph) -> Graph:
    """The first graph seen with the same ops, from the same lines, wired in the same way."""
    key = graph.name, _structure(graph, lambda node: (node.op, node.source.key))
    return _kept.setdefault(key, graph)


class OpForms:
    """What ops compute, as keys: equal for equal ops, and for those whose graphs are equal except
    for names and lines. Two traces of one branch make two graphs."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[Graph, int] = {}

    def of(self, op: Op) -> Any:
        if not op.graphs():
            return op
        return (type(op), *map(self._attribute, op.attributes))

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Graph):
            return (Graph, self._number(value))
        if isinstance(value, tuple):
            return (tuple, *map(self._attribute, cast("tuple[Any, ...]", value)))
        return attribute_key(value)

    def _number(self, graph: Graph) -> int:
        if graph not in self._known:
            with headroom():
                key = _structure(graph, lambda node: self.of(node.op))
            self._known[graph] = self._numbers.setdefault(key, len(self._numbers))
        return self._known[graph]


def _structure(graph: Graph, key_of: Callable[[Node], Any]) -> Any:
    """How the nodes of a graph are wired, each given by a key of its own."""
    numbers = {x: i for i, x in enumerate(graph.inputs)}
    key: list[Any] = [graph.input_types]
    for node in graph.nodes:
        key.append((key_of(node), *(numbers[x] for x in node.inputs)))
        for y in node.outputs:
            numbers[y] = len(numbers)
    return (*key, tuple(numbers[y] for y in graph.outputs))
