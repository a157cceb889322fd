"""Graphs as Mermaid flowcharts, which many documentation and code sites draw."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping

from tracegraph.ir.tensor import Graph
from tracegraph.views.outline import RETURN, GraphOutline, NodeOutline, Outline, outline, shortened
from tracegraph.views.output import written
from tracegraph.views.scope_tree import scoped_nodes

_LONGEST_LABEL = 60
#: Characters that need no escape between quotes; others are written by number, as `#34;`.
_SPECIAL = re.compile(r"[^\w .,:=%@()\[\]/+-]")


def to_mermaid(graph: Graph, path: str | os.PathLike[str] | None = None) -> str:
    """The graph as a Mermaid flowchart, with one subgraph for each graph that it holds, and one
    inside it for each name scope; the text is also written to `path` if that is given.

    For a block ```` ```mermaid ```` of a page. By default Mermaid refuses more than 500 edges or
    50,000 characters, which its settings `maxEdges` and `maxTextSize` raise; use `to_html()` and
    `to_dot()` for larger graphs.
    """
    return written("to_mermaid", mermaid_text(outline(graph)), path)


def mermaid_text(found: Outline) -> str:
    """An outline, possibly of several graphs, as one flowchart."""
    words = {inner.name: f"g{number}" for number, inner in enumerate(found)}
    ids = {inner.name: _ids(words[inner.name], inner) for inner in found}
    lines = ["flowchart TB"]
    for inner in found:
        lines += _subgraph(words[inner.name], inner, ids[inner.name])
    for caller, node, attribute, callee in found.calls:
        lines.append(f"  {ids[caller][node]} -.->|{_quoted(attribute)}| {words[callee]}")
    lines.append("  classDef derived fill:#fdf0e6,stroke:#c99a6b")
    return "\n".join(lines) + "\n"


def _subgraph(word: str, graph: GraphOutline, ids: Mapping[str, str]) -> Iterator[str]:
    yield f"  subgraph {word}[{_quoted('@' + graph.name)}]"
    yield "    direction TB"
    for value in graph.inputs:
        yield f"    {ids[value.name]}([{_quoted(value.name, value.type)}])"
    yield from _scopes(word, graph, ids)
    yield f"    {ids[RETURN]}([{_quoted(RETURN)}])"
    for edge in graph.edges:
        type = _quoted(edge.value.type)
        yield f"    {ids[edge.producer]} -->|{type}| {ids[edge.consumer]}"
    yield "  end"


def _scopes(word: str, graph: GraphOutline, ids: Mapping[str, str]) -> Iterator[str]:
    """The nodes, those in a scope within a subgraph."""
    numbers = itertools.count()
    for depth, item in scoped_nodes(graph):
        space = "    " + "  " * depth
        if item is None:
            yield f"{space}end"
        elif isinstance(item, str):
            label = _quoted(shortened(item, _LONGEST_LABEL))
            yield f"{space}subgraph {word}s{next(numbers)}[{label}]"
            yield f"{space}  direction TB"
        else:
            derived = ":::derived" if item.place.roles else ""
            yield f"{space}{ids[item.id]}[{_label(item)}]{derived}"


def _ids(word: str, graph: GraphOutline) -> dict[str, str]:
    """An id for each input and node of the graph, and for its results."""
    names = [*(value.name for value in graph.inputs), *(node.id for node in graph.nodes), RETURN]
    return {name: f"{word}n{place}" for place, name in enumerate(names)}


def _label(node: NodeOutline) -> str:
    first = f"{', '.join(value.name for value in node.outputs)} = {node.op}"
    attributes = [f"{name}={shortened(text, _LONGEST_LABEL)}" for name, text in node.attributes]
    return _quoted(first, *attributes, shortened(str(node.place), _LONGEST_LABEL))


def _quoted(*lines: str) -> str:
    texts = [_SPECIAL.sub(_entity, line) for line in lines if line]
    return f'"{"<br/>".join(texts)}"'


def _entity(match: re.Match[str]) -> str:
    return f"#{ord(match[0])};"
