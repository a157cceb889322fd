"""Open sizes: their names in a file, and in this process."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable
from typing import Any

from tracegraph.archive.manifest import Entry
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import TensorType
from tracegraph.ir.tensor import Graph
from tracegraph.passes.specialise import (
    bound_names,
    names_chosen,
    new_names,
    renamed,
    unbound_names,
    with_sizes,
)
from tracegraph.state.variable import names_of_sizes

#: The JSON entry for the type of a Variable, and that type.
SizeRow = tuple[dict[str, Any], TensorType]


def name_sizes(rows: Iterable[SizeRow], taken: Container[str]) -> dict[str, Any]:
    """Names the open sizes of Variables v0, v1 and so on, and writes their types with these names,
    since the names in the process depend on how many came before. Returns the new name of each."""
    rows = list(rows)
    names = (name for i in itertools.count() if (name := f"v{i}") not in taken)
    sizes: dict[str, Any] = {}
    for _, type in rows:
        if not bound_names(type) <= sizes.keys():
            sizes.update(new_names(type, names))
    for entry, type in rows:
        entry["type"] = str(with_sizes(type, sizes))
    return sizes


class LoadedSizes:
    """The open sizes of the Variables in a file, each with a unique name in this process."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        types = {type for graph in graphs for type in graph.input_types}
        #: Names of open sizes in the graphs; the sizes that replace those of Variables here; and
        #: the graphs with the new ones.
        self._taken = set().union(*map(bound_names, types))
        self._sizes: dict[str, Any] = {}
        self._own: dict[Graph, Graph] = {}
        #: Graphs in which all open sizes have values.
        self._closed: set[Graph] = set()

    def of_variable(self, entry: Entry, type: TensorType) -> TensorType:
        """The type of a saved Variable; no two Variables share the name of an open size."""
        names = bound_names(type)
        if names & self._sizes.keys() or len(names) < _open_count(type):
            entry.fail("two open sizes of variables have one name")
        return self.named(entry, type)

    def named(self, entry: Entry, type: TensorType) -> TensorType:
        """The type of a Variable with new names for its open sizes: the names in the file may
        belong to another Variable here."""
        if type.is_static:
            return type
        if not isinstance(type.shape, ShapeVariable):
            open_sizes = [size for size in type.shape if isinstance(size, Dim)]
            if any(size.name is None or "." in size.name for size in open_sizes):
                entry.fail("an open size of a variable is a name")
        if not bound_names(type) <= self._sizes.keys():
            self._sizes.update(new_names(type, names_of_sizes(self._taken)))
        return with_sizes(type, self._sizes)

    def renamed(self, graph: Graph) -> Graph:
        """The graph with the names that sizes have in this process."""
        return renamed(graph, self._sizes, self._own) if self._sizes else graph

    def check(self, entry: Entry, graph: Graph) -> None:
        """Raises LoadError for an open size to which no input of its graph gives a value."""
        for inner in graph.graphs():
            if inner not in self._closed:
                # A call may return a sum of sizes that its run finds, such as f64[?0+?3].
                found = set[str]().union(*map(names_chosen, inner.all_nodes()))
                unknown = [x for x in unbound_names(inner.inputs, inner.nodes) if x not in found]
                if unknown:
                    entry.fail(f"no input of @{inner.name} gives the size {unknown[0]} a value")
                self._closed.add(inner)


def _open_count(type: TensorType) -> int:
    """The number of open sizes in a type; an open shape counts as one."""
    if isinstance(type.shape, ShapeVariable):
        return 1
    return sum(isinstance(size, Dim) for size in type.shape)
