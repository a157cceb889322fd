"""Observers of passes, such as graph dumps: they see each graph on its way through the compiler.

Passes call `passed`, which costs nothing while there are no observers.
"""

from __future__ import annotations

from collections.abc import Callable

from tracegraph.ir.tensor import Graph

#: Stages of passes that may leave a graph unchanged: sharing of nodes after the algebra of single
#: nodes, pruning of dead code, specialisation of sizes.
SHARED, PRUNED, SPECIALISED = "shared", "pruned", "specialised"
MAY_KEEP = (SHARED, PRUNED, SPECIALISED)

#: Called with the name of a stage and its graph or, for the compiler's output, its text.
Observer = Callable[[str, Graph, "str | None"], None]

observers: list[Observer] = []


def passed(stage: str, graph: Graph, text: Callable[[], str] | None = None) -> None:
    """Tells the observers that a graph has passed a stage; `text` renders the stage's text."""
    if observers:
        made = None if text is None else text()
        for observer in list(observers):
            observer(stage, graph, made)
