"""Chooses by a memory budget how many states the reverse mode of `while` loops keeps."""

from __future__ import annotations

from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph


def with_checkpoints(graph: Graph, size: int, lowers_all: bool) -> Graph:
    """The graph whose loops keep as many states for reverse mode as fit in `size` bytes: those
    whose number nobody set. With `lowers_all` the others keep no more either."""
    return rewritten(graph, lambda _, op: op.with_checkpoints(size, lowers_all))
