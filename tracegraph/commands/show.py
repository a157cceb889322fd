"""`tracegraph show`: what a path holds, or one graph of it in any form."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from tracegraph.archive.directory import ASSETS, EXTRA
from tracegraph.commands.answers import (
    Answer,
    Misuse,
    counted,
    size_text,
    table,
    write_file,
)
from tracegraph.commands.contents import Contents, Entry, SavedContents, open_path
from tracegraph.ir.tensor import Graph
from tracegraph.runtime.module import Module
from tracegraph.saved_model.restored import omitted_of
from tracegraph.text.printer import graph_text
from tracegraph.views import summary, to_dot, to_html, to_json, to_mermaid
from tracegraph.views.outline import shortened

#: The forms of a graph, by the names that --format takes.
FORMATS: dict[str, Callable[[Graph], str]] = {
    "text": lambda graph: graph_text(graph, locations=True),
    "summary": summary,
    "dot": to_dot,
    "mermaid": to_mermaid,
    "html": to_html,
    "json": lambda graph: to_json(graph, indent=1),
}

#: Longer lists of arguments and results are cut in the table.
_WIDEST = 72


def show(options: argparse.Namespace) -> Answer:
    contents = open_path(options.path)
    if options.entry is None and options.format is None:
        if options.output is not None:
            raise Misuse(
                "--output is for a graph, and none was chosen", "add --entry NAME, or --format"
            )
        data = listing_data(contents)
        return Answer(listing_text(contents, data), data)
    entry = contents.one(options.entry)
    format = options.format or ("json" if options.json else "text")
    text = FORMATS[format](entry.graph).rstrip("\n")
    data: dict[str, Any] = {"path": str(options.path), **entry_data(entry), "format": format}
    if options.output is not None:
        write_file(options.output, text + "\n")
        data["output"] = str(options.output)
        return Answer(f"{entry.name} as {format}: {options.output}", data)
    data["content"] = json.loads(text) if format == "json" else text
    return Answer(text, data)


# What there is.


def entry_data(entry: Entry) -> dict[str, Any]:
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
        "nodes": _node_count(entry.graph),
        "custom_gradients": [
            {"body": body, "backward": backward} for body, backward in entry.custom_gradients
        ],
    }


def _node_count(graph: Graph) -> int:
    return sum(len(inner.nodes) for inner in graph.graphs())


def listing_data(contents: Contents) -> dict[str, Any]:
    """What a path holds as data."""
    data: dict[str, Any] = {"path": str(contents.path), "kind": contents.kind}
    if not isinstance(contents, SavedContents):
        return {**data, "entries": [entry_data(entry) for entry in contents.entries.values()]}
    assets, files = [], []
    for name, row in contents.files.items():
        size = row.pairs()["bytes"].count()
        files.append({"name": name, "bytes": size})
        if name.startswith(f"{ASSETS}/"):
            assets.append(name)
    manifest = contents.manifest
    return {
        **data,
        "version": manifest["version"].value,
        "producer": manifest["producer"].value,
        "keeps_custom_gradients": manifest["custom_gradients"].value,
        "objects": [
            {"path": path, "class": type(module).__name__, "omitted": _omitted(module)}
            for path, module in contents.objects
        ],
        "functions": [
            {
                "path": path,
                "name": function.name,
                "traces": [entry_data(entry) for entry in contents.traces[path]],
            }
            for path, function in contents.functions
        ],
        "signatures": [entry_data(entry) for entry in contents.signatures],
        "variables": [
            {
                "name": kept.key,
                "type": kept.type,
                "shape": list(kept.shape),
                "trainable": kept.trainable,
                "bytes": kept.bytes,
            }
            for kept in contents.variables
        ],
        "assets": assets,
        "extra": _extra(contents),
        "files": files,
    }


def _omitted(module: Any) -> dict[str, str]:
    return dict(omitted_of(module)) if isinstance(module, Module) else {}


def _extra(contents: SavedContents) -> list[str]:
    """The user's own files beside the model, which no manifest lists."""
    folder = contents.path / EXTRA
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def listing_text(contents: Contents, data: dict[str, Any]) -> str:
    """What a path holds, as tables."""
    if not isinstance(contents, SavedContents):
        entries = data["entries"]
        head = f"{data['path']}: {counted(len(entries), 'graph')} as text, the entry last"
        return "\n\n".join([head, _entry_table("graph", entries)])
    size = sum(row["bytes"] for row in data["files"])
    custom = "with" if data["keeps_custom_gradients"] else "WITHOUT"
    head = (
        f"{data['path']}: a saved model, format {data['version']}, "
        f"{counted(len(data['files']), 'file')} of {size_text(size)}, {custom} custom gradients"
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
