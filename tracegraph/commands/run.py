"""`tracegraph run`: runs an entry on arrays from files and on numbers; results go to files."""

from __future__ import annotations

import argparse
import functools
import json
import math
import types
from pathlib import Path
from typing import Any

import numpy as np

from tracegraph.commands.answers import Answer, file_names, make_folder, table, write_file
from tracegraph.commands.contents import open_path
from tracegraph.commands.inputs import arrays_of, carrier_of, fitting, pairs
from tracegraph.core.types import TOKEN, type_of_array
from tracegraph.eager.tensor_methods import host_array
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.variable import Variable

#: Larger results are only written to files.
_SHOWN_ELEMENTS = 1000


def run(options: argparse.Namespace) -> Answer:
    given = pairs(options.inputs)
    contents = open_path(options.path)
    entry = fitting(contents, options.entry, given)
    arrays = arrays_of(entry, given)
    if options.outdir is not None:
        make_folder(options.outdir)
    arguments = [
        Variable(array) if own.is_variable else as_tensor(array)
        for own, array in zip(entry.inputs, arrays, strict=True)
    ]
    results = [x for x in entry.call(arguments) if x.type is not TOKEN]
    names = [name for name, type in entry.outputs.items() if type is not TOKEN]
    rows = [
        _row(name, host_array(x), options.outdir, file)
        for name, x, file in zip(names, results, file_names(names))
    ]
    data = {"path": str(options.path), "entry": entry.name, "outputs": rows}
    return Answer(_text(rows, options.outdir), data)


# Results.


def _row(name: str, array: np.ndarray, folder: Path | None, file: str) -> dict[str, Any]:
    type = type_of_array(array)
    carrier = carrier_of(type.dtype)
    kept = array if carrier is None else array.astype(carrier)
    row: dict[str, Any] = {
        "name": name,
        "type": str(type),
        "dtype": type.dtype.name,
        "shape": list(array.shape),
    }
    if folder is not None:
        path = folder / f"{file}.npy"
        write_file(path, functools.partial(_save, kept))
        row["file"] = str(path)
        row["file_dtype"] = kept.dtype.name
    if array.size <= _SHOWN_ELEMENTS:
        row["value"] = _plain(kept.tolist())
    return row


def _save(array: np.ndarray, path: Path) -> None:
    with open(path, "wb") as file:
        # NumPy tells why a disk is full only for objects that it does not know as files.
        np.save(types.SimpleNamespace(write=file.write), array, allow_pickle=False)  # type: ignore[call-overload]


def _plain(value: Any) -> Any:
    """A value as JSON: numbers that are not finite become strings, complex ones pairs."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(rows: list[dict[str, Any]], folder: Path | None) -> str:
    if not rows:
        return "no results"
    lines: list[tuple[Any, ...]] = [("output", "dtype", "shape", "value" if not folder else "file")]
    for row in rows:
        last = row.get("file") or _short(row.get("value", "..."))
        if row.get("file_dtype", row["dtype"]) != row["dtype"]:
            last += f" (as {row['file_dtype']}, which holds every {row['dtype']})"
        lines.append((row["name"], row["dtype"], row["shape"], last))
    return table(lines, "<<<<")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
