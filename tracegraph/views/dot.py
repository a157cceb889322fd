"""Graphs in the language of Graphviz: `dot -Tsvg` draws them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from tracegraph.ir.tensor import Graph
from tracegraph.views.outline import (
    RETURN,
    GraphOutline,
    NodeOutline,
    Outline,
    outline,
    printable,
    shortened,
)
from tracegraph.views.output import written
from tracegraph.views.scope_tree import scoped_nodes

#: Attributes longer than this are truncated in the boxes, and in the tooltips.
_LONGEST_LABEL, _LONGEST_TIP = 60, 1000

_HEAD = """\
  compound=true; newrank=true;
  fontname="Helvetica";
  node [shape=box, style="rounded,filled", fillcolor="#eef3fb", color="#7d93b8", \
fontname="Helvetica", fontsize=11, margin="0.12,0.06"];
  edge [color="#8a8f98", fontname="Helvetica", fontsize=9, fontcolor="#5b616b", arrowsize=0.7];"""
_INPUT = 'shape=ellipse, fillcolor="#f4f4f4", color="#9aa0a8"'
#: Nodes that a pass derived, mainly the backward, have their own colour.
_DERIVED = 'fillcolor="#fdf0e6", color="#c99a6b"'
_SCOPE = 'fontsize=11; fontcolor="#5b616b"; color="#c3c9d2";'
_CALL = 'style=dashed, color="#b0b6bf", constraint=false'


def to_dot(graph: Graph, path: str | os.PathLike[str] | None = None) -> str:
    """The graph in the language of Graphviz, with one cluster for each graph that it holds, and one
    inside it for each name scope; the text is also written to `path` if that is given.

    Boxes are ops, named as in the text, edges show the type of the value, and a dashed edge leads
    from a call to what it calls. Nodes that a pass derived have another colour. The names of nodes
    are those of `to_networkx()`.
    """
    return written("to_dot", dot_text(outline(graph)), path)


def dot_text(found: Outline) -> str:
    """An outline, possibly of several graphs, as one picture."""
    lines = [f"digraph {_quoted(found.entry.name)} {{", _HEAD]
    for number, inner in enumerate(found):
        lines += _cluster(number, inner)
    lines += _calls(found)
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(number: int, graph: GraphOutline) -> Iterator[str]:
    yield f"  subgraph cluster_{number} {{"
    yield f'    label={_quoted("@" + graph.name)}; style=rounded; color="#c3c9d2"; labeljust=l;'
    for value in graph.inputs:
        label = _quoted(value.name, value.type)
        tip = _quoted(shortened(value.given_name or value.name, _LONGEST_TIP))
        yield f"    {_id(graph, value.name)} [label={label}, tooltip={tip}, {_INPUT}];"
    yield from _scopes(number, graph)
    yield f"    {_id(graph, RETURN)} [label={_quoted(RETURN)}, {_INPUT}];"
    for edge in graph.edges:
        ends = f"{_id(graph, edge.producer)} -> {_id(graph, edge.consumer)}"
        yield f"    {ends} [label={_quoted(edge.value.type)}];"
    yield "  }"


def _scopes(number: int, graph: GraphOutline) -> Iterator[str]:
    """The nodes, those in a scope within a cluster."""
    numbers = itertools.count()
    for depth, item in scoped_nodes(graph):
        space = "    " + "  " * depth
        if item is None:
            yield f"{space}}}"
        elif isinstance(item, str):
            yield f"{space}subgraph cluster_{number}_{next(numbers)} {{"
            yield f"{space}  label={_quoted(shortened(item, _LONGEST_LABEL))}; {_SCOPE}"
        else:
            yield f"{space}{_id(graph, item.id)} [{_look(item)}];"


def _look(node: NodeOutline) -> str:
    first = f"{', '.join(value.name for value in node.outputs)} = {node.op}"
    attributes = [f"{name}={shortened(text, _LONGEST_LABEL)}" for name, text in node.attributes]
    tip = "  ".join(filter(None, [node.label, str(node.place), node.place.code]))
    look = f"label={_quoted(first, *attributes)}, tooltip={_quoted(shortened(tip, _LONGEST_TIP))}"
    return f"{look}, {_DERIVED}" if node.place.roles else look


def _calls(found: Outline) -> Iterator[str]:
    numbers = {graph.name: number for number, graph in enumerate(found)}
    for caller, node, attribute, callee in found.calls:
        inner = found[callee]
        first = inner.inputs[0].name if inner.inputs else RETURN
        ends = f"{_id(found[caller], node)} -> {_id(inner, first)}"
        label = f"label={_quoted(attribute)}, lhead=cluster_{numbers[callee]}"
        yield f"  {ends} [{label}, {_CALL}];"


def _id(graph: GraphOutline, name: str) -> str:
    return _quoted(f"{graph.name}/{name}")


def _quoted(*lines: str) -> str:
    """A Graphviz string, in which displayed text may contain escapes and HTML entities."""
    texts = [
        printable(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
        for line in lines
    ]
    return '"' + "\\n".join(texts) + '"'
