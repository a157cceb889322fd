"""A graph as one HTML file, to view, search and print, with or without a network.

The page contains everything: the outline of the graph as data, its text, and the style and script
from `page/` beside this module. Its security policy forbids it to load anything, or to run anything
but that script, whatever names a graph may contain.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from tracegraph.errors import counted
from tracegraph.ir.op import OPS
from tracegraph.ir.tensor import Graph
from tracegraph.text.printer import graph_text
from tracegraph.views.outline import (
    GraphOutline,
    NodeOutline,
    Outline,
    PlaceOutline,
    ValueOutline,
    outline,
)
from tracegraph.views.output import written

#: The parts of the script, in the order in which they are concatenated.
_SCRIPTS = (
    "model.js",
    "links.js",
    "layout.js",
    "groups.js",
    "planes.js",
    "wires.js",
    "paint.js",
    "elements.js",
    "state.js",
    "marks.js",
    "camera.js",
    "minimap.js",
    "opening.js",
    "folding.js",
    "selection.js",
    "panel.js",
    "finding.js",
    "picture.js",
    "tree.js",
    "input.js",
    "start.js",
)
#: The families of ops that share a colour, by the module that defines an op.
_FAMILIES = {
    "constant": "data",
    "random": "data",
    "elementwise": "elementwise",
    "image": "elementwise",
    "contract": "contraction",
    "reduce": "reduction",
    "broadcast": "movement",
    "index": "movement",
    "shape": "movement",
    "sort": "movement",
    "barrier": "effect",
    "effect": "effect",
}
#: Ops defined in the file of another family.
_EXCEPTIONS = {"sum": "reduction"}
#: Attributes are truncated for the page, whose text also has them in full.
_LONGEST_ATTRIBUTE = 400
_HEIGHT = 560


def to_html(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    seconds: Mapping[str, float] | None = None,
) -> str:
    """The graph as one HTML page, which is also written to `path` if that is given.

    The page is self-contained. It shows the nodes as they flow, by the lines that created
    them or by their name scopes, expands called functions in place, finds nodes by op, name, line
    and type, and links forward and backward nodes of one instruction across functions. Large graphs
    start as a few closed groups. All nodes are also in a tree, for keyboards and screen readers.
    Without JavaScript the page is the text of the graph.

    `seconds` says how long each line took, such as `{"mlp.py:6 vjp": 0.001}`, as `tg.profile`
    measures it; a file may have its whole path. Slow nodes are coloured, and the panel shows the
    times.
    """
    page = _page(outline(graph), graph_text(graph, locations=True), seconds)
    return written("to_html", page, path)


def html_frame(graph: Graph) -> str:
    """The page in a frame of bounded height, isolated from the notebook that shows it."""
    page = html.escape(to_html(graph))
    title = html.escape(f"graph {graph.name}")
    return (
        f'<iframe srcdoc="{page}" title="{title}" sandbox="allow-scripts allow-downloads" '
        f'loading="lazy" width="100%" height="{_HEIGHT}" '
        'style="border: 1px solid #8884; border-radius: 10px; max-height: 85vh"></iframe>'
    )


def _page(found: Outline, text: str, seconds: Mapping[str, float] | None = None) -> str:
    style, script = _asset("page.css"), _script()
    entry = found.entry
    counts = _counts(found)
    parts = {
        "title": html.escape(entry.name),
        "counts": html.escape(counts),
        "label": html.escape(f"Graph {entry.name}: {counts}"),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "text": html.escape(text, quote=False),
        "data": _data(found, seconds or {}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _counts(found: Outline) -> str:
    nodes = sum(len(graph.nodes) for graph in found)
    functions = len(found.graphs)
    where = f" in {functions:,} functions" if functions > 1 else ""
    return f"{counted(nodes, 'node')}{where}, {counted(len(found.entry.inputs), 'argument')}"


@cache
def _asset(name: str) -> str:
    return resources.files("tracegraph.views").joinpath("page", name).read_text("utf-8")


@cache
def _script() -> str:
    parts = "\n".join(map(_asset, _SCRIPTS))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _data(found: Outline, seconds: Mapping[str, float]) -> str:
    """The outline as JSON that is safe in a script element: no `<` ends it."""
    text = json.dumps(_Tables(found, seconds).module, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Tables:
    """A compact outline: types, places and ops are in tables, and values are numbers."""

    def __init__(self, found: Outline, seconds: Mapping[str, float]) -> None:
        self.graph_numbers = {graph.name: number for number, graph in enumerate(found)}
        self.types: dict[tuple[str, str], int] = {}
        self.files: dict[str, int] = {}
        self.places: dict[PlaceOutline, int] = {}
        self.ops: dict[tuple[str, Any], int] = {}
        self.place_rows: dict[tuple[Any, ...], int] = {}
        #: Origins are numbered from 1: 0 is none.
        self.origins: dict[int | None, int] = {None: 0}
        graphs = list(map(self.graph, found))
        self.module = {
            "types": list(self.types),
            "places": list(self.place_rows),
            "ops": [(op, family(op), rows) for op, rows in self.ops],
            "graphs": graphs,
        }
        if seconds:
            files = list(self.files)
            self.module["seconds"] = [
                _seconds_of((files[file], short), " ".join((str(line), *roles)), seconds)
                for short, line, roles, _, file, _ in self.place_rows
            ]

    def graph(self, graph: GraphOutline) -> dict[str, Any]:
        made = [value for node in graph.nodes for value in node.outputs]
        numbers = {value.name: n for n, value in enumerate((*graph.inputs, *made))}
        return {
            "name": graph.name,
            "inputs": [(x.name, self.type(x), x.given_name, x.scope) for x in graph.inputs],
            "nodes": [self.node(node, numbers) for node in graph.nodes],
            "outputs": [numbers.get(name, -1) for name in graph.outputs],
            "resultNames": graph.result_names,
        }

    def node(self, node: NodeOutline, numbers: dict[str, int]) -> list[Any]:
        row: list[Any] = [
            self.op(node),
            self.place(node.place),
            [numbers.get(name, -1) for name in node.operands],
            list(map(self.type, node.outputs)),
            [(attribute, self.graph_numbers[name]) for attribute, name in node.calls],
            node.scope,
            node.outputs[0].given_name if node.outputs else "",
            self.origins.setdefault(node.origin, len(self.origins)),
        ]
        while not row[-1] and len(row) > 4:
            row.pop()
        return row

    def type(self, value: ValueOutline) -> int:
        return self.types.setdefault((value.type, value.dtype), len(self.types))

    def place(self, place: PlaceOutline) -> int:
        found = self.places.get(place)
        if found is None:
            # Files with one name in several folders are distinguished without naming the folders.
            file = self.files.setdefault(place.file, len(self.files))
            row = (
                place.short_file,
                place.line,
                place.roles,
                place.code,
                file,
                place.instruction,
            )
            found = self.places[place] = self.place_rows.setdefault(row, len(self.place_rows))
        return found

    def op(self, node: NodeOutline) -> int:
        rows = tuple((name, _cut(text)) for name, text in node.attributes)
        return self.ops.setdefault((node.op, rows), len(self.ops))


def _seconds_of(files: Sequence[str], rest: str, seconds: Mapping[str, float]) -> float:
    """How long a line took, which is known by the whole path of its file or by the name of it."""
    return next((seconds[x] for x in (f"{file}:{rest}" for file in files) if x in seconds), 0)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_ATTRIBUTE else f"{text[: _LONGEST_ATTRIBUTE - 1]}…"


@cache
def family(op: str) -> str:
    """The family of the op with this name, which determines its colour in pictures."""
    kind = OPS.get(op)
    package, _, module = kind.__module__.rpartition(".") if kind is not None else ("", "", "")
    if package.endswith((".calls", ".control")):
        return "call"
    return _EXCEPTIONS.get(op) or _FAMILIES.get(module, "elementwise")
