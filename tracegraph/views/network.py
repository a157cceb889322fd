"""Graphs for NetworkX, with its algorithms and file formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tracegraph.ir.tensor import Graph
from tracegraph.views.outline import (
    RETURN,
    Edge,
    GraphOutline,
    NodeOutline,
    Outline,
    ValueOutline,
    outline,
    printable,
)

if TYPE_CHECKING:
    from networkx import MultiDiGraph


def to_networkx(graph: Graph, nested: bool = True) -> MultiDiGraph:
    """The graph as a `networkx.MultiDiGraph`; `networkx` is imported by the first call.

    There is a node for each input, each op and each output; their `kind` says which. They are
    named as in the text, prefixed by the name of their graph: `layer/%x`, `layer/%3`,
    `layer/return.0`. An edge is a value; its `output` and `operand` are the positions where it
    leaves and arrives, and `operand` is also its key.

    With `nested`, the graphs that ops hold are included: the attribute `calls` of an op names
    them, `body=layer`, and `graph` of a node says where it is. An edge leads from an op to each
    input of a graph that it runs, so that searches for what depends on a value also enter calls.
    The `kind` of an edge says which it is, "value" or "call"; the key of a call is the attribute
    and the position of the input, `body.0`. No edge leads back from a called graph, which several
    may call.

    All attributes are str or int, so that `networkx.write_graphml` and `networkx.node_link_data`
    can write them. Attributes that do not apply are "" or -1.
    """
    import networkx

    found = outline(graph)
    graphs = found.graphs if nested else (found.entry,)
    result = networkx.MultiDiGraph(
        name=found.entry.name, entry=found.entry.name, graphs=" ".join(g.name for g in graphs)
    )
    for inner in graphs:
        result.add_nodes_from(_nodes(inner))
        for edge in inner.edges:
            producer, consumer, key, attributes = _edge(inner.name, edge)
            result.add_edge(producer, consumer, key, **attributes)
    if nested:
        for producer, consumer, key, attributes in _call_edges(found):
            result.add_edge(producer, consumer, key, **attributes)
    return result


def _call_edges(found: Outline) -> Iterator[tuple[str, str, str, dict[str, str | int]]]:
    """An edge from each op to the inputs of the graphs that it runs."""
    for caller, node in ((graph.name, node) for graph in found for node in graph.nodes):
        for attribute, callee in node.calls:
            if callee not in node.runs:
                continue
            for place, value in enumerate(found[callee].inputs):
                ends = f"{caller}/{node.id}", f"{callee}/{value.name}"
                attributes = _edge_attributes("call", value, output=-1, operand=place)
                yield *ends, f"{attribute}.{place}", {**attributes, "attribute": attribute}


def _nodes(graph: GraphOutline) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, value in enumerate(graph.inputs):
        yield f"{graph.name}/{value.name}", _attributes(graph.name, "input", [value], index)
    for index, node in enumerate(graph.nodes):
        common = _attributes(graph.name, "op", node.outputs, index)
        yield f"{graph.name}/{node.id}", {**common, **_of_op(node)}
    values = graph.values
    for index, name in enumerate(graph.outputs):
        returned = [values[name]] if name in values else []
        attributes = _attributes(graph.name, "output", returned, index)
        yield f"{graph.name}/{RETURN}.{index}", attributes


def _attributes(
    graph: str, kind: str, values: Sequence[ValueOutline], index: int
) -> dict[str, str | int]:
    """The attributes of every node; `index` counts the nodes of one kind."""
    return {
        "graph": graph,
        "kind": kind,
        "index": index,
        "op": kind,
        "attributes": "",
        "calls": "",
        "values": " ".join(value.name for value in values),
        "types": ", ".join(value.type for value in values),
        "dtype": " ".join(value.dtype for value in values),
        "shape": " ".join(shape_text(value) for value in values),
        "given_name": printable(" ".join(value.given_name for value in values).strip()),
        "scope": printable(values[0].scope) if values else "",
        "file": "",
        "line": -1,
        "roles": "",
        "code": "",
    }


def _of_op(node: NodeOutline) -> dict[str, str | int]:
    place = node.place
    return {
        "op": node.op,
        "attributes": printable(", ".join(f"{name}={text}" for name, text in node.attributes)),
        "calls": " ".join(f"{attribute}={name}" for attribute, name in node.calls),
        "file": printable(place.file),
        "line": place.line if place.file else -1,
        "roles": " ".join(place.roles),
        "code": printable(place.code),
        "scope": printable(node.scope),
    }


def _edge(graph: str, edge: Edge) -> tuple[str, str, int, dict[str, str | int]]:
    value = edge.value
    is_returned = edge.consumer == RETURN
    consumer = f"{RETURN}.{edge.operand}" if is_returned else edge.consumer
    operand = 0 if is_returned else edge.operand
    attributes = _edge_attributes("value", value, edge.output, operand)
    return f"{graph}/{edge.producer}", f"{graph}/{consumer}", operand, attributes


def _edge_attributes(
    kind: str, value: ValueOutline, output: int, operand: int
) -> dict[str, str | int]:
    """The attributes of every edge; `attribute` is that of the op that holds the called graph."""
    return {
        "kind": kind,
        "attribute": "",
        "value": value.name,
        "output": output,
        "operand": operand,
        "type": value.type,
        "dtype": value.dtype,
        "shape": shape_text(value),
    }


def shape_text(value: ValueOutline) -> str:
    """A shape as in a type: `[16,4]`."""
    return f"[{','.join(map(str, value.shape))}]" if value.dtype != "token" else ""
