"""Graphs for Model Explorer, Google's viewer of large models."""

from __future__ import annotations

import json
import os
from typing import Any

from tracegraph.ir.tensor import Graph
from tracegraph.views.network import shape_text
from tracegraph.views.outline import (
    RETURN,
    Edge,
    GraphOutline,
    NodeOutline,
    ValueOutline,
    outline,
    printable,
)
from tracegraph.views.output import written


def to_model_explorer(graph: Graph, path: str | os.PathLike[str] | None = None) -> str:
    """The graph as JSON that Model Explorer opens: `model-explorer graph.json`. The text is also
    written to `path` if that is given.

    The graph itself comes first, followed by the graphs that it holds, each separately; clicking a
    call leads there. Name scopes become layers. Nodes are named as in the text.
    """
    found = outline(graph)
    graphs = [_graph(inner) for inner in reversed(found.graphs)]
    text = json.dumps({"label": found.entry.name, "graphs": graphs})
    return written("to_model_explorer", text, path)


def _graph(graph: GraphOutline) -> dict[str, Any]:
    arriving: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        arriving.setdefault(edge.consumer, []).append(edge)
    nodes = [_input(value) for value in graph.inputs]
    nodes += [_node(node, arriving.get(node.id, [])) for node in graph.nodes]
    nodes.append(_end(graph, arriving.get(RETURN, [])))
    attributes = {"inputs": str(len(graph.inputs)), "nodes": str(len(graph.nodes))}
    return {"id": graph.name, "nodes": nodes, "groupNodeAttributes": {"": attributes}}


def _input(value: ValueOutline) -> dict[str, Any]:
    return {
        "id": value.name,
        "label": value.name,
        "namespace": printable(value.scope),
        "attrs": _pairs(("name", value.given_name)),
        "incomingEdges": [],
        "outputsMetadata": [_metadata(0, value)],
    }


def _node(node: NodeOutline, arriving: list[Edge]) -> dict[str, Any]:
    place = node.place
    about = (
        ("values", ", ".join(value.name for value in node.outputs)),
        ("source", str(place)),
        ("code", place.code),
        ("file", place.file),
    )
    found = {
        "id": node.id,
        "label": node.op,
        "namespace": printable(node.scope),
        "attrs": _pairs(*node.attributes, *about),
        "incomingEdges": list(map(_arriving, arriving)),
        "inputsMetadata": [_tag(edge) for edge in arriving],
        "outputsMetadata": [_metadata(i, value) for i, value in enumerate(node.outputs)],
    }
    callees = list(dict.fromkeys(name for _, name in node.calls))
    return {**found, "subgraphIds": callees} if callees else found


def _end(graph: GraphOutline, arriving: list[Edge]) -> dict[str, Any]:
    return {
        "id": RETURN,
        "label": RETURN,
        "namespace": "",
        "attrs": _pairs(("types", ", ".join(graph.output_types))),
        "incomingEdges": list(map(_arriving, arriving)),
        "inputsMetadata": [_tag(edge) for edge in arriving],
        "outputsMetadata": [],
    }


def _arriving(edge: Edge) -> dict[str, str]:
    return {
        "sourceNodeId": edge.producer,
        "sourceNodeOutputId": str(edge.output),
        "targetNodeInputId": str(edge.operand),
    }


def _metadata(place: int, value: ValueOutline) -> dict[str, Any]:
    about = (
        ("__tensor_tag", value.name),
        ("tensor_shape", value.type),  # the key that the viewer's adapters use
        ("dtype", value.dtype),
        ("shape", shape_text(value)),
    )
    return {"id": str(place), "attrs": _pairs(*about)}


def _tag(edge: Edge) -> dict[str, Any]:
    return {"id": str(edge.operand), "attrs": _pairs(("__tensor_tag", edge.value.name))}


def _pairs(*attributes: tuple[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": printable(text)} for key, text in attributes if text]
