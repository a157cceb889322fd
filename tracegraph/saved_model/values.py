"""The values of Variables as files: whole, or in parts that the processes write together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracegraph.archive.directory import Writer
from tracegraph.archive.parts import DividedArray, divided_array, merged
from tracegraph.core.settings import settings
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.tensor_methods import host_array
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import is_divided


def write_values(
    path: str, stem: str, values: Mapping[str, Tensor], commit: Callable[[Writer, Any], None]
) -> None:
    """Writes values to the files `stem` of a directory, and has `commit` write the manifest, given
    what that says of them. Of several processes, which all call this, each writes the parts that it
    owns, and the first one what is whole, and the manifest."""
    is_first = settings.process_index == 0
    forms = {key: _form(value) for key, value in values.items()}
    arrays = {k: x for k, x in forms.items() if is_first or isinstance(x, DividedArray)}
    if settings.process_count == 1:
        with Writer(path) as writer:
            commit(writer, writer.add_arrays(stem, arrays))
        return
    if is_first:
        with Writer(path):  # makes the folder, or refuses it
            pass
    backend.gathered_from_processes(b"")
    with Writer(path) as writer:
        rows = writer.add_arrays(f"{stem}-{settings.process_index}", arrays)
        told = json.dumps([rows, writer.written_files()]).encode()
        if not is_first:
            writer.give_away()
        tables, files = zip(*map(json.loads, backend.gathered_from_processes(told)), strict=True)
        if is_first:
            for others in files:
                writer.adopt(others)
            commit(writer, merged(tables))
    backend.gathered_from_processes(b"")  # it counts when anybody goes on


def _form(value: Tensor) -> np.ndarray | DividedArray:
    """A value as it is written: divided as it is, or as a whole."""
    buffer = device_buffer(value)
    if not is_divided(buffer) or buffer.is_fully_replicated:
        return host_array(value)
    return divided_array(value.type, backend.own_parts(buffer))
