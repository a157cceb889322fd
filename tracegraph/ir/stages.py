"""Stages: graphs on their way through the compiler, for whoever watches.

Passes say what they made by `passed`, which costs nothing while nobody watches.
"""

from __future__ import annotations

from collections.abc import Callable

from tracegraph.ir.tensor import Graph

#: Stages of passes that may leave a graph as it is: nodes shared after the algebra of single nodes,
#: dead code pruned, sizes made known.
SHARED, PRUNED, SPECIALISED = "shared", "pruned", "specialised"
MAY_KEEP = (SHARED, PRUNED, SPECIALISED)

#: Takes the name of a stage and either its graph or, for what the compiler makes, its text.
Watcher = Callable[[str, Graph, "str | None"], None]

watchers: list[Watcher] = []


def passed(stage: str, graph: Graph, text: Callable[[], str] | None = None) -> None:
    """Tells the watchers that a graph has passed a stage, of which `text` makes the text."""
    if watchers:
        made = None if text is None else text()
        for watcher in list(watchers):
            watcher(stage, graph, made)
