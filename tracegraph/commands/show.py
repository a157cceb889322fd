"""`tracegraph show`: the contents of a path, or its graphs in any form."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracegraph.archive.directory import ASSETS, EXTRA
from tracegraph.commands.answers import Answer, Misuse, size_text, table, write_file
from tracegraph.commands.contents import (
    Contents,
    NamedGraph,
    SavedContents,
    SavedVariable,
    open_path,
)
from tracegraph.errors import counted
from tracegraph.ir.tensor import Graph
from tracegraph.passes.partition import backward_part, forward_part
from tracegraph.saved_model.loaded_modules import omitted_of
from tracegraph.state.module import Module
from tracegraph.text.printer import graph_text, module_text
from tracegraph.views import summary, to_dot, to_html, to_json, to_mermaid
from tracegraph.views.data import json_data
from tracegraph.views.dot import dot_text
from tracegraph.views.graph_frames import html_page
from tracegraph.views.mermaid import mermaid_text
from tracegraph.views.outline import outline, printable, shortened


class Form(NamedTuple):
    """A form of graphs: `one` as text, `several` as one text, and one as `data`."""

    one: Callable[[Graph], str]
    several: Callable[[Sequence[NamedGraph]], str]
    data: Callable[[Graph], Any]


def _graphs(entries: Sequence[NamedGraph]) -> list[Graph]:
    return [entry.graph for entry in entries]


def _text(graph: Graph) -> str:
    return graph_text(graph, locations=True)


def _summaries(entries: Sequence[NamedGraph]) -> str:
    parts = (f"entry {printable(entry.name)}\n{summary(entry.graph)}" for entry in entries)
    return "\n\n\n".join(parts)


def _page(entries: Sequence[NamedGraph]) -> str:
    """A page of pages: the page of each graph has its own security policy, and stays isolated."""
    named = [(printable(entry.name), entry.graph) for entry in entries]
    return html_page(counted(len(named), "graph"), named)


def _outlines(entries: Sequence[NamedGraph]) -> str:
    return json.dumps({entry.name: json_data(entry.graph) for entry in entries}, indent=1)


#: The forms of graphs, by their names for --format.
FORMATS = {
    "text": Form(_text, lambda entries: module_text(_graphs(entries), locations=True), _text),
    "summary": Form(summary, _summaries, lambda graph: summary(graph).to_dict()),
    "dot": Form(to_dot, lambda entries: dot_text(outline(*_graphs(entries))), to_dot),
    "mermaid": Form(
        to_mermaid, lambda entries: mermaid_text(outline(*_graphs(entries))), to_mermaid
    ),
    "html": Form(to_html, _page, to_html),
    "json": Form(lambda graph: to_json(graph, indent=1), _outlines, json_data),
}

#: The parts of a graph, by their names for --part.
PARTS = {"forward": forward_part, "backward": backward_part}

#: Longer lists of arguments and results are shortened in the table.
_WIDEST = 72


def show(options: argparse.Namespace) -> Answer:
    contents = open_path(options.path)
    if options.entry is None and options.format is None and options.part is None:
        if options.output is not None:
            raise Misuse(
                "--output is for a graph, and none was chosen", "add --entry NAME, or --format"
            )
        data = listing_data(contents)
        return Answer(listing_text(contents, data), data)
    format = options.format or ("json" if options.json else "text")
    entries = contents.chosen(options.entry)
    if options.part is not None:
        entries = [entry.with_graph(PARTS[options.part](entry.graph)) for entry in entries]
    return _of_entries(options, entries, format)


def _of_entries(options: argparse.Namespace, entries: Sequence[NamedGraph], format: str) -> Answer:
    """One graph in a form, or all that the options did not distinguish."""
    form = FORMATS[format]
    is_one = len(entries) == 1
    text = form.one(entries[0].graph) if is_one else form.several(entries)
    data: dict[str, Any] = {"path": str(options.path), "format": format}
    rows = [entry_data(entry) for entry in entries]
    if options.output is not None:
        write_file(options.output, text.rstrip("\n") + "\n")
        data["output"] = str(options.output)
    elif options.json:
        for row, entry in zip(rows, entries, strict=True):
            row["content"] = _content(form.data(entry.graph))
    data.update(rows[0] if is_one else {"entries": rows})
    if options.output is None:
        return Answer(text.rstrip("\n"), data)
    what = entries[0].name if is_one else counted(len(entries), "graph")
    return Answer(f"{what} as {format}: {options.output}", data)


def _content(data: Any) -> Any:
    return data.rstrip("\n") if isinstance(data, str) else data


# Listings.


def entry_data(entry: NamedGraph) -> dict[str, Any]:
    """An entry as data."""
    return {
        "entry": entry.name,
        "graph": entry.graph.name,
        "inputs": [
            {"name": x.name, "type": str(x.type), "is_variable": x.is_variable}
            for x in entry.inputs
        ],
        "fixed": {name: repr(value) for name, value in entry.fixed.items()},
        "outputs": [{"name": name, "type": str(type)} for name, type in entry.outputs.items()],
        "variables": len(entry.variables),
        "nodes": entry.graph.node_count(),
        "custom_gradients": [
            {"body": body, "backward": backward} for body, backward in entry.custom_gradients
        ],
    }


def listing_data(contents: Contents) -> dict[str, Any]:
    """The contents of a path as data."""
    data: dict[str, Any] = {"path": str(contents.path), "kind": contents.kind}
    if not isinstance(contents, SavedContents):
        return {**data, "entries": list(map(entry_data, contents.entries.values()))}
    manifest = contents.manifest
    return {
        **data,
        "version": manifest["version"].value,
        "producer": manifest["producer"].value,
        "keeps_custom_gradients": manifest["custom_gradients"].value,
        "custom_gradients": sorted(
            {body for entry in contents.entries.values() for body, _ in entry.custom_gradients}
        ),
        "objects": [_object_data(*row) for row in contents.objects],
        "functions": _function_data(contents),
        "signatures": list(map(entry_data, contents.signatures)),
        "variables": list(map(_variable_data, contents.variables)),
        "assets": [name for name in contents.files if name.startswith(f"{ASSETS}/")],
        "extra": _extra(contents),
        "files": [
            {"name": name, "bytes": row.pairs()["bytes"].count()}
            for name, row in contents.files.items()
        ],
    }


def _object_data(path: str, module: Module) -> dict[str, Any]:
    return {"path": path, "class": type(module).__name__, "omitted": dict(omitted_of(module))}


def _function_data(contents: SavedContents) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "name": function.name,
            "traces": list(map(entry_data, contents.traces[path])),
        }
        for path, function in contents.functions
    ]


def _variable_data(kept: SavedVariable) -> dict[str, Any]:
    return {
        "name": kept.key,
        "type": kept.type,
        "shape": list(kept.shape),
        "trainable": kept.trainable,
        "bytes": kept.bytes,
    }


def _extra(contents: SavedContents) -> list[str]:
    """The user's own files beside the model, which no manifest lists."""
    folder = contents.path / EXTRA
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _custom_text(data: dict[str, Any]) -> str:
    if not data["keeps_custom_gradients"]:
        return ", WITHOUT custom gradients"
    names = data["custom_gradients"]
    return f", with {counted(len(names), 'custom gradient')}" if names else ""


def listing_text(contents: Contents, data: dict[str, Any]) -> str:
    """The contents of a path as tables."""
    if not isinstance(contents, SavedContents):
        entries = data["entries"]
        head = f"{data['path']}: {counted(len(entries), 'graph')} as text, the entry last"
        return "\n\n".join([head, _entry_table("graph", entries)])
    size = sum(row["bytes"] for row in data["files"])
    head = (
        f"{data['path']}: a saved model, format {data['version']}, "
        f"{counted(len(data['files']), 'file')} of {size_text(size)}{_custom_text(data)}"
    )
    parts = [
        head,
        _object_table(data["objects"]),
        _function_table(data["functions"]),
        _entry_table("signature", data["signatures"]),
        _variable_table(data["variables"]),
        _gradient_table([*data["functions"], {"traces": data["signatures"]}]),
        _file_table(data),
    ]
    return "\n\n".join(part for part in parts if part)


def _object_table(rows: list[Any]) -> str:
    if not rows:
        return ""
    lines = [("object", "class", "not saved")]
    for row in rows:
        omitted = ", ".join(f"{name} ({what})" for name, what in row["omitted"].items())
        lines.append((row["path"], row["class"], omitted))
    return table(lines, "<<<")


def _function_table(functions: list[Any]) -> str:
    rows = []
    for function in functions:
        rows += function["traces"] or [{"entry": function["path"]}]
    return _entry_table("function", rows)


def _entry_table(title: str, rows: list[Any]) -> str:
    if not rows:
        return ""
    lines: list[tuple[Any, ...]] = [(title, "arguments", "results", "nodes", "variables")]
    for row in rows:
        if "graph" not in row:
            lines.append((row["entry"], "never traced before saving: no graph", "", "", ""))
            continue
        arguments = [f"{x['name']}: {x['type']}" for x in row["inputs"]]
        arguments += [f"{name}={value}" for name, value in row["fixed"].items()]
        results = [f"{y['name']}: {y['type']}" for y in row["outputs"]]
        texts = [shortened(", ".join(words), _WIDEST) for words in (arguments, results)]
        lines.append((row["entry"], *texts, row["nodes"], row["variables"]))
    return table(lines, "<<<>>")


def _variable_table(rows: list[Any]) -> str:
    if not rows:
        return ""
    lines: list[tuple[Any, ...]] = [("variable", "type", "bytes", "")]
    for row in rows:
        cells = row["name"], row["type"], f"{row['bytes']:,}"
        lines.append((*cells, "trainable" if row["trainable"] else ""))
    trainable = sum(row["bytes"] for row in rows if row["trainable"])
    total = sum(row["bytes"] for row in rows)
    note = f"of which {trainable:,} trainable" if 0 < trainable < total else ""
    return table([*lines, ("total", "", f"{total:,}", note)], "<<><")


def _gradient_table(functions: list[Any]) -> str:
    """Each custom gradient once, with where it is used."""
    found: dict[tuple[str, str], list[str]] = {}
    for function in functions:
        for trace in function["traces"]:
            for pair in trace["custom_gradients"]:
                found.setdefault((pair["body"], pair["backward"]), []).append(trace["entry"])
    if not found:
        return ""
    rows = [(body, backward, ", ".join(used)) for (body, backward), used in found.items()]
    return table([("custom gradient of", "is", "used in"), *rows], "<<<")


def _file_table(data: dict[str, Any]) -> str:
    rows: list[tuple[Any, ...]] = [("file", "bytes")]
    rows += [(row["name"], f"{row['bytes']:,}") for row in data["files"]]
    rows += [(f"{EXTRA}/{name}", "not checked") for name in data["extra"]]
    return table(rows, "<>")
