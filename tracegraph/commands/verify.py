"""`tracegraph verify`: whether files are unchanged, and graphs and derivatives correct."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracegraph.archive.directory import Reader
from tracegraph.archive.tensors import file_digest
from tracegraph.commands.answers import NO, OK, Answer, table
from tracegraph.commands.check_derivatives import DerivativeCheck, check_derivatives
from tracegraph.commands.contents import NamedGraph, SavedContents, open_path
from tracegraph.errors import DTypeError, LoadError, ShapeError, counted, fact_of
from tracegraph.saved_model.options import FORMAT, VERSION
from tracegraph.text.verifier import verify as verify_graph

#: The `--json` fields for a path that could not be read, the same as in every answer.
UNREAD = {
    "is_right": False,
    "error": None,
    "fix": None,
    "files": [],
    "graphs": [],
    "derivatives": [],
}


def verify(options: argparse.Namespace) -> Answer:
    path: Path = options.path
    files = list(_files(path)) if path.is_dir() else []
    data: dict[str, Any] = {"path": str(path), **UNREAD, "files": files}
    if not all(row["is_right"] for row in files):
        data["error"] = f"{path} is damaged: {_changed(files)}"
        return Answer(f"{_file_table(files)}\n\n{path} is DAMAGED", data, NO)
    contents = open_path(path)
    if isinstance(contents, SavedContents):
        _read_tensors(contents)
    entries = contents.find(options.entry) if options.entry else contents.distinct
    graphs = [_graph_row(entry) for entry in entries]
    sound = [entry for entry, row in zip(entries, graphs) if row["is_right"]]
    checks = [(entry, check_derivatives(entry)) for entry in sound]
    is_right = len(sound) == len(entries) and not any(check.is_wrong for _, check in checks)
    data["graphs"] = graphs
    data["derivatives"] = [_check_data(entry, check) for entry, check in checks]
    data["is_right"] = is_right
    parts = [_file_table(files), _graph_table(graphs), _check_table(checks)]
    parts.append(_conclusion(path, graphs, [check for _, check in checks], is_right))
    return Answer("\n\n".join(part for part in parts if part), data, OK if is_right else NO)


def _files(path: Path) -> Iterator[dict[str, Any]]:
    """Compares each file that the manifest lists with its checksum.

    Raises LoadError for a manifest that cannot be read, and for files that are missing or
    truncated.
    """
    reader = Reader(path)
    reader.check_format(FORMAT, VERSION)
    entries = reader.entry.pairs()
    if "files" not in entries:
        reader.entry.fail("the field 'files' is missing")
    for name in reader.check_files(entries["files"]):
        size, digest = entries["files"].pairs()[name].fields("bytes", "sha256")
        is_right = file_digest(path / name) == digest.text()
        yield {"name": name, "bytes": size.count(), "is_right": is_right}


def _read_tensors(contents: SavedContents) -> None:
    """Reads every tensor once, comparing it with its own checksum. Raises LoadError."""
    storage = contents.storage
    for stored in (*storage.weights.values(), *storage.constants.values()):
        stored.read()


def _changed(files: list[dict[str, Any]]) -> str:
    names = [row["name"] for row in files if not row["is_right"]]
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'} from the checksum"


def _graph_row(entry: NamedGraph) -> dict[str, Any]:
    inner = list(entry.graph.graphs())
    row = {
        "entry": entry.name,
        "graphs": len(inner),
        "nodes": sum(len(graph.nodes) for graph in inner),
        "is_right": True,
        "error": None,
    }
    try:
        verify_graph(entry.graph)
    except (LoadError, ShapeError, DTypeError) as error:
        return {**row, "is_right": False, "error": fact_of(error)}
    return row


def _check_data(entry: NamedGraph, check: DerivativeCheck) -> dict[str, Any]:
    """A check as data; numbers that were not found are None, and `reason` says why."""
    is_tested = check.error is not None
    return {
        "entry": entry.name,
        "verdict": check.verdict,
        "by": list(check.sources),
        "without_custom_gradients": list(check.without),
        "reason": None if is_tested else check.note,
        "jvp": check.forward if is_tested else None,
        "vjp": check.reverse if is_tested else None,
        "error": check.error,
        "limit": check.limit if is_tested else None,
    }


def _file_table(files: list[dict[str, Any]]) -> str:
    if not files:
        return ""
    rows: list[tuple[Any, ...]] = [("file", "bytes", "SHA-256")]
    for row in files:
        rows.append((row["name"], f"{row['bytes']:,}", "right" if row["is_right"] else "CHANGED"))
    return table(rows, "<><")


def _graph_table(graphs: list[dict[str, Any]]) -> str:
    if not graphs:
        return ""
    rows: list[tuple[Any, ...]] = [("entry", "graphs", "nodes", "types")]
    for row in graphs:
        verdict = "right" if row["is_right"] else f"WRONG: {row['error']}"
        rows.append((row["entry"], row["graphs"], row["nodes"], verdict))
    return table(rows, "<>><")


def _check_table(checks: list[tuple[NamedGraph, DerivativeCheck]]) -> str:
    if not checks:
        return ""
    rows: list[tuple[Any, ...]] = [("entry", "<Jv, w>", "<v, J'w>", "error", "derivatives")]
    for entry, check in checks:
        if check.error is None:
            rows.append((entry.name, "", "", "", f"{check.verdict}: {check.note}"))
            continue
        numbers = f"{check.forward:.7g}", f"{check.reverse:.7g}", f"{check.error:.1e}"
        by = f", by {', '.join(check.sources)}" if check.sources else ""
        rows.append((entry.name, *numbers, f"{check.verdict}{by}{_without_text(check)}"))
    return table(rows, "<>>><")


def _without_text(check: DerivativeCheck) -> str:
    """The custom gradients left out of the test: they ran, but nothing more is known of them."""
    if not check.without:
        return ""
    return f", but for the custom gradient of {', '.join(check.without)}, which is yours to judge"


def _conclusion(
    path: Path, graphs: list[dict[str, Any]], checks: list[DerivativeCheck], is_right: bool
) -> str:
    if not is_right:
        return f"{path} is WRONG"
    tested = sum(check.error is not None for check in checks)
    rest = len(checks) - tested
    missing = f", {rest} not tested for the reasons above" if rest else ""
    return f"{path} is right: {counted(len(graphs), 'graph')}, {tested} with derivatives{missing}"
