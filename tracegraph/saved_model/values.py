"""The values of Variables as files: whole, or in parts that processes write together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tracegraph.archive.array_parts import DividedArray, divided_array, merged
from tracegraph.archive.directory import Writer
from tracegraph.core.settings import settings
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import DistributedError, fact_of, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import is_divided


def write_values(
    path: str, stem: str, values: Mapping[str, Tensor], commit: Callable[[Writer, Any], None]
) -> None:
    """Writes values to the files `stem` of a directory, and calls `commit`, with their manifest
    entry, to write the manifest. With several processes, all call this: each writes the parts it
    owns, and the first one also writes whole values and the manifest."""
    is_first = settings.process_index == 0
    forms = {key: _form(value) for key, value in values.items()}
    arrays = {k: x for k, x in forms.items() if is_first or isinstance(x, DividedArray)}
    if settings.process_count == 1:
        with Writer(path) as writer:
            commit(writer, writer.add_arrays(stem, arrays))
    else:
        _write_together(path, f"{stem}-{settings.process_index}", arrays, commit)


def _write_together(
    path: str,
    stem: str,
    arrays: Mapping[str, np.ndarray | DividedArray],
    commit: Callable[[Writer, Any], None],
) -> None:
    """Writes the files of all processes, and then the single manifest that makes them valid."""
    is_first = settings.process_index == 0
    divided = [f"{key}: {x.type}" for key, x in arrays.items() if isinstance(x, DividedArray)]

    def make_folder() -> Any:  # or refuses it
        if is_first:
            with Writer(path):
                pass
        return os.path.abspath(path), sorted(divided)

    begun = _in_each_process(path, make_folder)
    _check_values(path, [values for _, values in begun])
    with Writer(path) as writer:

        def write() -> Any:
            rows = writer.add_arrays(stem, arrays)
            if not is_first:
                writer.give_away()
            return rows, writer.written_files()

        def make_count() -> None:
            if is_first:
                for number, (_, files) in enumerate(written[1:], 1):
                    _check_files(path, number, begun[number][0], files)
                    writer.adopt(files)
                commit(writer, merged([rows for rows, _ in written]))

        written = _in_each_process(path, write)
        _in_each_process(path, make_count)  # it is valid before anybody goes on


def _check_values(path: str, values: list[list[str]]) -> None:
    """Raises DistributedError, in all processes, unless each saves the same divided values."""
    for number, others in enumerate(values):
        only = [{*values[0]} - {*others}, {*others} - {*values[0]}]
        if any(only):
            told = [", ".join(sorted(x)[:3]) or "not" for x in only]
            fail(
                DistributedError,
                f"nothing was saved to {path}, since processes save different values: process 0 "
                f"has {told[0]}, and process {number} {told[1]}",
                fix="save the same objects in every process",
            )


def _check_files(path: str, number: int, others: str, files: Iterable[str]) -> None:
    """Raises DistributedError if files that another process wrote to a directory are elsewhere."""
    missing = next((x for x in files if not os.path.exists(os.path.join(path, x))), None)
    if missing is not None:
        fail(
            DistributedError,
            f"process {number} wrote {missing} to {others}, and it is not in {path}",
            fix="give all processes one path, on a file system that all of them have",
        )


def _in_each_process(path: str, step: Callable[[], Any]) -> list[Any]:
    """The result of a step of saving in each process. If it fails in some, it raises in all, which
    would otherwise wait for each other forever."""
    result, failure = None, None
    try:
        result = step()
    except Exception as error:
        failure = error
    told = [result, None if failure is None else fact_of(failure)]
    data = json.dumps(told).encode()
    answers = [*map(json.loads, backend.gathered_from_processes(data, "save to a directory"))]
    if failure is not None:
        raise failure
    for index, (_, fact) in enumerate(answers):
        if fact is not None:
            fail(
                DistributedError,
                f"nothing was saved to {path}, since process {index} failed: {fact}",
                fix="see to that process, and save again",
            )
    return [result for result, _ in answers]


def _form(value: Tensor) -> np.ndarray | DividedArray:
    """A value in the form in which it is written: divided, or whole."""
    buffer = device_buffer(value)
    if not is_divided(buffer) or buffer.is_fully_replicated:
        return host_array(value)
    return divided_array(value.type, backend.own_parts(buffer))
