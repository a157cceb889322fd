"""`tracegraph run`: an entry on arrays from files and on numbers, its results as files."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tracegraph.commands.answers import (
    Answer,
    Misuse,
    file_names,
    make_folder,
    refuse_name,
    table,
)
from tracegraph.commands.contents import Contents, Entry, Input, open_path
from tracegraph.errors import LoadError, Mismatch, fail, reason_of, shown
from tracegraph.passes.specialise import bind_sizes
from tracegraph.runtime.convert import as_tensor
from tracegraph.runtime.values import host_array
from tracegraph.runtime.variable import Variable
from tracegraph.types import TOKEN, DType, type_of_array

#: Larger results stand in files only.
_SHOWN_ELEMENTS = 1000
#: How a .npy file begins, and where its header says of what kind its elements are.
_MAGIC, _LONGEST_START = b"\x93NUMPY", 256


def run(options: argparse.Namespace) -> Answer:
    given = _pairs(options.inputs)
    contents = open_path(options.path)
    entry = _fitting(contents, options.entry, given)
    arrays = _arrays(entry, given)
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


# What is given.


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """The inputs by name, as they were written."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            fix = "write --inputs name=file.npy or name=1.5"
            raise Misuse(f"the input {text!r} has no name", fix)
        if not value:
            fix = f"write --inputs {name}=file.npy or {name}=1.5"
            raise Misuse(f"the value of the input {name!r} is missing", fix)
        if name in found:
            raise Misuse(f"the input {name!r} is given twice")
        found[name] = value
    return found


def _fitting(contents: Contents, name: str | None, given: Mapping[str, str]) -> Entry:
    """The trace that takes what is given. Raises Misuse if none does, or several would."""
    found = [contents.one(name)] if name is None else contents.find(name)
    if len(found) == 1:
        _check_names(found[0], given)
        return found[0]
    fitting = [entry for entry in found if _fits(entry, given)]
    if not fitting:
        rows = "".join(f"\n    {entry.name}  ({entry.arguments_text})" for entry in found)
        raise Misuse(
            f"none of the {len(found)} traces of {name} takes these inputs:{rows}",
            "give the inputs of one of them",
        )
    if any(entry.fixed != fitting[0].fixed for entry in fitting):
        rows = "".join(f"\n    {entry.name}  ({entry.arguments_text})" for entry in fitting)
        raise Misuse(f"several traces of {name} take these inputs:{rows}", "choose one by --entry")
    is_exact = (entry for entry in fitting if all(x.type.is_static for x in entry.inputs))
    return next(is_exact, fitting[0])


def _fits(entry: Entry, given: Mapping[str, str]) -> bool:
    try:
        _check_names(entry, given)
        _arrays(entry, given)
    except Misuse:
        return False
    return True


def _check_names(entry: Entry, given: Mapping[str, str]) -> None:
    names = [x.name for x in entry.inputs]
    takes = f"{entry.name} takes ({entry.arguments_text})"
    for name in given:
        if name not in names and name not in entry.fixed:
            refuse_name(f"{entry.name} has no input {name!r}", name, names, takes)
    for name, value in entry.fixed.items():
        if name in given and given[name] not in _spellings(value):
            raise Misuse(f"{name} is {given[name]}, and the trace has {value!r}", takes)
    missing = [name for name in names if name not in given]
    if missing:
        raise Misuse(
            f"{entry.name} needs a value for {', '.join(missing)}",
            f"add --inputs {' '.join(f'{name}=...' for name in missing)}; {takes}",
        )


def _spellings(value: Any) -> tuple[str, ...]:
    """How a Python value may be written: as in Python and as in JSON."""
    found = [str(value), repr(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        found.append(json.dumps(value))
    return tuple(found)


def _arrays(entry: Entry, given: Mapping[str, str]) -> list[np.ndarray]:
    """The inputs in their order. Raises Misuse for one of another type."""
    arrays = [_array(own, given[own.name]) for own in entry.inputs]
    types = [own.type for own in entry.inputs]
    found = [type_of_array(array) for array in arrays]
    for own, type in zip(entry.inputs, found):
        try:
            bind_sizes([own.type], [type])
        except Mismatch:
            raise Misuse(f"the input {own.name!r} is {type}, and {own.type} is expected") from None
    try:
        bind_sizes(types, found)
    except Mismatch as mismatch:
        raise Misuse(f"the inputs of {entry.name}: {mismatch.fact}", mismatch.fix) from None
    return arrays


def _array(own: Input, text: str) -> np.ndarray:
    return _from_file(own, Path(text)) if text.endswith(".npy") else _from_text(own, text)


def _from_file(own: Input, path: Path) -> np.ndarray:
    try:
        array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise Misuse(f"the input {own.name!r}: {path} cannot be read: {reason_of(error)}") from None
    except (ValueError, EOFError) as error:
        _refuse_file(path, error)
    wanted = own.type.dtype
    if wanted.numpy_dtype == array.dtype:
        return array
    if array.dtype in (_carrier(wanted), np.dtype(f"V{wanted.size}")) and _carrier(wanted):
        is_raw = array.dtype.kind == "V"
        return array.view(wanted.numpy_dtype) if is_raw else array.astype(wanted.numpy_dtype)
    fix = f"save it as {(_carrier(wanted) or wanted.numpy_dtype).name}: array.astype(...)"
    given = array.dtype.name
    raise Misuse(f"the input {own.name!r} is {given} in {path}, and {own.type} is expected", fix)


def _refuse_file(path: Path, error: Exception) -> NoReturn:
    """Says what a file is that NumPy does not read. NumPy's own advice is to allow pickles, which
    run whatever code is in them."""
    with path.open("rb") as file:
        start = file.read(_LONGEST_START)
    fix = "write an array of numbers with np.save"
    if not start:
        why = "it is empty"
    elif not start.startswith(_MAGIC):
        why = "it does not begin as a .npy file does"
    elif b"'|O'" in start:
        why, fix = "it holds Python objects", "convert them to numbers: array.astype(np.float32)"
    else:
        why = "its header or its data is damaged"
    fail(LoadError, f"{path} is no array of numbers: {why}", fix=fix, cause=error)


def _from_text(own: Input, text: str) -> np.ndarray:
    """A number, a truth value or nested lists of them, as JSON; complex numbers as in Python."""
    wanted = own.type.dtype
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = complex(text)
        except ValueError:
            _refuse_value(own, text)
    try:
        array = np.asarray(value)
        if not _mixes(array.dtype.kind, wanted):
            _refuse_value(own, text)
        return np.asarray(value, wanted.numpy_dtype)
    except (ValueError, TypeError, OverflowError):
        _refuse_value(own, text)


def _mixes(kind: str, wanted: DType) -> bool:
    """Whether numbers of a kind may stand for values of a dtype without a loss."""
    if kind == "b":
        return wanted.numpy_dtype.kind == "b"
    if kind in "iu":
        return wanted.numpy_dtype.kind != "b"
    return (kind == "f" and wanted.is_differentiable) or (kind == "c" and wanted.is_complex)


def _refuse_value(own: Input, text: str) -> NoReturn:
    raise Misuse(
        f"the input {own.name!r} is {shown(text)}, and {own.type} is expected",
        "give a file.npy, a number such as 1.5, true, or lists such as [[1,2],[3,4]]",
    )


# What comes out.


def _carrier(dtype: DType) -> np.dtype | None:
    """The dtype in which a file holds values, bit for bit as many, of one that NumPy lacks."""
    if dtype.numpy_dtype.isbuiltin == 1:
        return None
    return np.dtype(np.float32 if dtype.is_differentiable else np.int8)


def _row(name: str, array: np.ndarray, folder: Path | None, file: str) -> dict[str, Any]:
    type = type_of_array(array)
    carrier = _carrier(type.dtype)
    kept = array if carrier is None else array.astype(carrier)
    row: dict[str, Any] = {
        "name": name,
        "type": str(type),
        "dtype": type.dtype.name,
        "shape": list(array.shape),
    }
    if folder is not None:
        path = folder / f"{file}.npy"
        try:
            np.save(path, kept, allow_pickle=False)
        except OSError as error:
            raise Misuse(f"{path} cannot be written: {reason_of(error)}") from None
        row["file"] = str(path)
        row["file_dtype"] = kept.dtype.name
    if array.size <= _SHOWN_ELEMENTS:
        row["value"] = _plain(kept.tolist())
    return row


def _plain(value: Any) -> Any:
    """A value as JSON has it: what is not finite is a string, a complex number a pair."""
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
