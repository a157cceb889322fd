"""Storage of a model's graphs, tensors and files: a directory, or memory."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracegraph.archive import limits
from tracegraph.archive.directory import EXTRA, Reader, read_extras
from tracegraph.archive.manifest import SAVE_AGAIN, Entry
from tracegraph.core.types import TensorType, type_of_array
from tracegraph.errors import LoadError, fact_of, fail, fix_of
from tracegraph.ir.tensor import Graph
from tracegraph.saved_model.options import LoadOptions
from tracegraph.saved_model.schema.source_lines import LINES, Lines, read_lines
from tracegraph.state.variable import Variable
from tracegraph.text.parser import parse_module

_FIELDS = (
    *("format", "version", "producer", "custom_gradients", "graphs", "root", "signatures"),
    *("objects", "functions", "variables", "weights", "constants", "files"),
)


def manifest_fields(entry: Entry) -> dict[str, Entry]:
    """The entries of a manifest. Raises LoadError if one is missing or unknown."""
    optional = (EXTRA, LINES)
    names = (*_FIELDS, *optional)
    fields = dict(zip(names, entry.fields(*_FIELDS, optional=optional), strict=True))
    fields[EXTRA].optional(read_extras)
    return fields


class Storage(NamedTuple):
    """The data beside a manifest, which may lie in a directory or in memory."""

    #: The values of Variables and of constants, by name: each has a `type` and can be `read`.
    weights: Mapping[str, Any]
    constants: Mapping[str, Any]
    #: The source lines that are known.
    lines: Lines
    #: The graphs of a file, by name.
    graphs: Callable[[Entry], dict[str, Graph]]
    #: Gives a Variable its value, and its layout if it has one.
    fill: Callable[[Variable, Any, Any], None]
    #: The path of a user's file, and that of a program.
    asset: Callable[[Entry], str | os.PathLike[str]]
    program: Callable[[Entry], Path]
    #: Raises LoadError for a listed file that nothing uses.
    check_all_used: Callable[[Entry], None]


def in_directory(reader: Reader, fields: Mapping[str, Entry], options: LoadOptions) -> Storage:
    """The storage of a directory, which is not trusted."""
    names = reader.check_files(fields["files"])
    if options.verify:
        reader.verify()
    lines = fields[LINES].optional(read_lines) or {}
    tensors = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    weights, constants = reader.tables(tensors, fields["weights"], fields["constants"])
    return Storage(
        weights,
        constants,
        lines,
        lambda entry: _read_graphs(reader, entry, _Arrays(constants), lines),
        Variable.keep_in_file,
        reader.asset,
        reader.program,
        lambda entry: reader.check_all_used(entry, tensors),
    )


def _read_graphs(
    reader: Reader, entry: Entry, arrays: Mapping[str, Any], lines: Lines
) -> dict[str, Graph]:
    data = reader.checked_bytes(entry, limits.TEXT_BYTES)
    if not data.strip():
        return {}
    try:
        return parse_module(data.decode(), arrays, lines)
    except UnicodeDecodeError as error:
        fact = f"{reader.path(entry)} is not text: {error}"
        fail(LoadError, fact, fix=SAVE_AGAIN, cause=error)
    except LoadError as error:
        fact = f"{reader.path(entry)}: {fact_of(error)}"
        fail(LoadError, fact, fix=fix_of(error) or SAVE_AGAIN, cause=error)


class _Arrays(UserDict[str, Any]):
    """The arrays beside a text, each read when the text names it."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name).read()


def in_memory(
    graphs: dict[str, Graph], weights: Mapping[str, TensorType], arrays: Mapping[str, np.ndarray]
) -> Storage:
    """The storage of what is to be written, for the rehearsal of loading: Variables get no values,
    and programs are not written yet."""
    return Storage(
        {key: _Held(type) for key, type in weights.items()},
        {key: _Held(type_of_array(x), x) for key, x in arrays.items()},
        {},
        lambda entry: graphs,
        lambda variable, stored, layout: None,
        lambda entry: __file__,  # any file that exists: the asset is not copied yet
        lambda entry: Path(),
        lambda entry: None,
    )


class _Held(NamedTuple):
    """An array to be written to a file; only the types of Variables' values matter."""

    type: TensorType
    array: np.ndarray | None = None

    def read(self) -> Any:
        return self.array
