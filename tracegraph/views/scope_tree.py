"""The name scopes of a graph as nested boxes, as pictures draw them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracegraph.views.outline import GraphOutline, NodeOutline


@dataclass
class _Scope:
    name: str
    nodes: list[NodeOutline] = field(default_factory=list)
    inner: dict[str, _Scope] = field(default_factory=dict)


def scoped_nodes(graph: GraphOutline) -> Iterator[tuple[int, NodeOutline | str | None]]:
    """The contents of the graph, in the order in which boxes hold them, each with its depth.

    A str opens the box of a scope, and None closes the innermost one. Each scope has one box, which
    holds forward and backward nodes; one that only contains another scope is merged with it.
    """
    waiting = _within(_tree(graph), 0)
    while waiting:
        depth, item = waiting.pop()
        if not isinstance(item, _Scope):
            yield depth, item
            continue
        names = [item.name]
        while not item.nodes and len(item.inner) == 1:
            (item,) = item.inner.values()
            names.append(item.name)
        yield depth, "/".join(names)
        waiting += [(depth, None), *_within(item, depth + 1)]


def _within(scope: _Scope, depth: int) -> list[tuple[int, NodeOutline | _Scope | None]]:
    """The contents of the scope, in reverse."""
    return [(depth, item) for item in reversed([*scope.nodes, *scope.inner.values()])]


def _tree(graph: GraphOutline) -> _Scope:
    root = _Scope("")
    for node in graph.nodes:
        scope = root
        for name in filter(None, node.scope.split("/")):
            scope = scope.inner.setdefault(name, _Scope(name))
        scope.nodes.append(node)
    return root
