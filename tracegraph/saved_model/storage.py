"""Storage of a model's graphs, tensors and files: a directory, or memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tracegraph.archive import limits
from tracegraph.archive.array_parts import stored_arrays, unlisted
from tracegraph.archive.directory import EXTRA, Reader, read_extras
from tracegraph.archive.manifest import SAVE_AGAIN, Entry
from tracegraph.archive.tensors import Stored, TensorFile
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


class Storage:
    """The data beside a manifest: graphs and tensors by name, and the user's files."""

    weights: Mapping[str, Any]
    constants: Mapping[str, Any]
    #: The source lines that are known.
    lines: Lines = MappingProxyType({})

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        """The graphs of a file, by name."""
        raise NotImplementedError

    def fill(self, variable: Variable, stored: Any, layout: Any) -> None:
        """Gives a Variable its value, and its layout if it has one."""
        raise NotImplementedError

    def asset(self, entry: Entry) -> str | os.PathLike[str]:
        raise NotImplementedError

    def program(self, entry: Entry) -> Path:
        raise NotImplementedError

    def check_all_used(self, entry: Entry) -> None:
        """Raises LoadError for a listed file that is not used."""


class DirectoryStorage(Storage):
    """Storage in a directory, which is not trusted."""

    def __init__(self, reader: Reader, fields: Mapping[str, Entry], options: LoadOptions) -> None:
        self._reader = reader
        names = reader.check_files(fields["files"])
        if options.verify:
            reader.verify()
        self.lines = fields[LINES].optional(read_lines) or {}
        self._tensors = {
            name: TensorFile(reader.root / name, str(reader.root / name))
            for name in names
            if name.endswith(".safetensors") and "/" not in name
        }
        self.weights = stored_arrays(fields["weights"], self._tensors)
        self.constants = stored_arrays(fields["constants"], self._tensors)
        extra = next(unlisted(self._tensors.values(), (self.weights, self.constants)), None)
        if extra is not None:
            reader.entry.fail(f"no table lists the tensor {extra}")

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        data = self._reader.checked_bytes(entry, limits.TEXT_BYTES)
        if not data.strip():
            return {}
        arrays = _Arrays(self.constants)
        try:
            return parse_module(data.decode(), arrays, self.lines)
        except UnicodeDecodeError as error:
            fact = f"{self._reader.path(entry)} is not text: {error}"
            fail(LoadError, fact, fix=SAVE_AGAIN, cause=error)
        except LoadError as error:
            fact = f"{self._reader.path(entry)}: {fact_of(error)}"
            fail(LoadError, fact, fix=fix_of(error) or SAVE_AGAIN, cause=error)

    def fill(self, variable: Variable, stored: Any, layout: Any) -> None:
        variable.keep_in_file(stored, layout)

    def asset(self, entry: Entry) -> Path:
        return self._reader.asset(entry)

    def program(self, entry: Entry) -> Path:
        return self._reader.program(entry)

    def check_all_used(self, entry: Entry) -> None:
        self._reader.check_all_used(entry, self._tensors)


class _Arrays(Mapping[str, Any]):
    """The arrays beside a text, each read when the text names it."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Any:
        return self._stored[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Any:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class MemoryStorage(Storage):
    """The data to be written to files, for the rehearsal of loading."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        weights: Mapping[str, TensorType],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self._graphs = dict(graphs)
        self.weights = {key: _Held(type) for key, type in weights.items()}
        self.constants = {key: _Held(type_of_array(x), x) for key, x in arrays.items()}

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        return self._graphs

    def fill(self, variable: Variable, stored: Any, layout: Any) -> None:
        """Does nothing: values would only be read."""

    def asset(self, entry: Entry) -> str:
        return __file__  # any file that exists: the asset is not copied yet


class _Held(NamedTuple):
    """An array to be written to a file; only the types of Variables' values matter."""

    type: TensorType
    array: np.ndarray | None = None

    def read(self) -> Any:
        return self.array
