"""Chooses by a memory budget how many states the reverse mode of `while` loops keeps."""

from __future__ import annotations

from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph


def with_checkpoints(graph: Graph, size: int, lowers_all: bool) -> Graph:
    """The graph whose loops keep as many states for reverse mode as fit in `size` bytes: those
    whose number nobody set. With `lowers_all` the others keep no more either."""
    return rewritten(graph, lambda _, op: op.with_checkpoints(size, lowers_all))


def checkpoint_notes(graph: Graph) -> list[str]:
    """A note for each loop whose reverse mode keeps some of its states: how many, and its line."""
    return [
        f"checkpoints: while, {node.source}; at most {node.op.states_kept:,} states are kept at a "
        "time, and the steps between them run again for its gradient"
        for node in graph.all_nodes()
        if node.op.states_kept is not None
    ]
