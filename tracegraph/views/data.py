"""Graphs as JSON: their outline, for programs in any language."""

from __future__ import annotations

import json
import os
from typing import Any

from tracegraph.ir.tensor import Graph
from tracegraph.views.outline import GraphOutline, NodeOutline, ValueOutline, outline
from tracegraph.views.output import written

#: Increased whenever readers of the JSON would have to change.
VERSION = 1


def to_json(
    graph: Graph, path: str | os.PathLike[str] | None = None, indent: int | None = None
) -> str:
    """The graph and all graphs that it holds as JSON, callees first; `entry` names the graph. The
    text is also written to `path` if that is given.

    It contains what the text form does, in structured form: values with `dtype` and `shape`, in
    which an open size is a string; nodes with the names of their operands; and, for each attribute
    that holds a graph, the name of that graph. Large constants are truncated: to store a graph,
    store its text.
    """
    return written("to_json", json.dumps(json_data(graph), indent=indent), path)


def json_data(graph: Graph) -> dict[str, Any]:
    """What `to_json` writes, as dicts, lists, strings and numbers."""
    found = outline(graph)
    return {
        "format": "tracegraph-outline",
        "version": VERSION,
        "entry": found.entry.name,
        "graphs": [_graph(inner) for inner in found],
    }


def _graph(graph: GraphOutline) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": list(map(_value, graph.inputs)),
        "nodes": list(map(_node, graph.nodes)),
        "outputs": list(graph.outputs),
        "output_types": list(graph.output_types),
    }


def _value(value: ValueOutline) -> dict[str, Any]:
    found = {
        "name": value.name,
        "type": value.type,
        "dtype": value.dtype,
        "shape": list(value.shape),
    }
    return {**found, "given_name": value.given_name} if value.given_name else found


def _node(node: NodeOutline) -> dict[str, Any]:
    place = node.place
    return {
        "id": node.id,
        "op": node.op,
        "attributes": dict(node.attributes),
        "operands": list(node.operands),
        "outputs": list(map(_value, node.outputs)),
        "calls": [{"attribute": attribute, "graph": name} for attribute, name in node.calls],
        "file": place.file,
        "line": place.line,
        "roles": list(place.roles),
    }
