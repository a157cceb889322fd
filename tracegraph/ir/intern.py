"""Graphs interned by structure and source line, so that repeated traces share one graph.

Undecorated code traces a custom gradient at every call. If an equal graph was seen before, that
graph is reused with everything derived from it, and nothing is compiled again.
"""

from __future__ import annotations

from typing import Any

from tracegraph.core.lru_cache import LRUCache
from tracegraph.ir.tensor import Graph

#: Graphs kept for the whole process; the least recently used are dropped first.
_LIMIT = 512
_kept: LRUCache[Any, Graph] = LRUCache(_LIMIT)


def interned(graph: Graph) -> Graph:
    """The first graph seen with the same ops, from the same lines, wired in the same way."""
    return _kept.setdefault(_structure(graph), graph)


def _structure(graph: Graph) -> Any:
    numbers = {x: i for i, x in enumerate(graph.inputs)}
    key: list[Any] = [graph.name, graph.input_types]
    for node in graph.nodes:
        key.append((node.op, node.source.key, *(numbers[x] for x in node.inputs)))
        for y in node.outputs:
            numbers[y] = len(numbers)
    return (*key, tuple(numbers[y] for y in graph.outputs))
