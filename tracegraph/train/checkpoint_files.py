"""Checkpoints as files: a manifest of the objects, and the values of their Variables.

    {"format": "tracegraph.checkpoint", "version": 1, "producer": "tracegraph 0.1.0",
     "objects": [{"parts": {"model": 1}}, {"parts": {"kernel": 2}}, {"variable": "model/kernel"}],
     "values": {"model/kernel": {"file": ..., "dtype": "f32", "shape": [4, 2], "sha256": ...}},
     "files": {...}}

Object 0 is the root. An optimizer's slots are listed beside its parts:
`"slots": [[2, "momentum", 7]]` says that object 7 is the momentum of object 2.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegraph.archive.array_parts import StoredArray
from tracegraph.archive.directory import (
    MANIFEST,
    Reader,
    Writer,
    is_in_use,
    is_waiting,
    read_whole,
    removing,
)
from tracegraph.archive.manifest import Entry
from tracegraph.core.settings import settings
from tracegraph.errors import NothingSavedError, fail
from tracegraph.saved_model.values import write_values
from tracegraph.state.variable import Variable, values_now
from tracegraph.train.checkpoint_state import is_whole
from tracegraph.train.object_graph import ObjectGraph
from tracegraph.version import PRODUCER

FORMAT = "tracegraph.checkpoint"
VERSION = 1
_STEM = "values"
_VALUES = re.compile(_STEM + r"-[a-z0-9-]*\.safetensors")


# Writing.


def write_checkpoint(path: str, graph: ObjectGraph) -> None:
    """Writes the present values of a graph's Variables to a directory. With several processes,
    all call this: see `write_values`."""
    held = values_now(graph.variables())
    remove_torn(Path(path))
    content = {
        "format": FORMAT,
        "version": VERSION,
        "producer": PRODUCER,
        "objects": [_written(graph, number) for number in range(len(graph.objects))],
    }

    def commit(writer: Writer, rows: Any) -> None:
        writer.commit({**content, "values": rows})

    write_values(path, _STEM, held, commit)


def _written(graph: ObjectGraph, number: int) -> dict[str, Any]:
    if isinstance(graph.objects[number], Variable):
        return {"variable": graph.paths[number]}
    entry: dict[str, Any] = {"parts": graph.parts[number]}
    if graph.slots[number]:
        entry["slots"] = [list(row) for row in graph.slots[number]]
    return entry


def remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint: first the manifest that makes it valid, then its files. The user's
    files, and the directory if it holds any, stay. With several processes, the first one does
    it."""
    if settings.process_index:
        return
    with removing, contextlib.suppress(FileNotFoundError):  # a signal handler removed it first
        if path.is_symlink() or not path.is_dir() or is_in_use(path):
            return
        (path / MANIFEST).unlink(missing_ok=True)
        for file in [*path.iterdir()]:
            if _is_ours(file):
                file.unlink(missing_ok=True)
        if not any(path.iterdir()):
            path.rmdir()


def remove_torn(path: Path) -> None:
    """Removes what is left by a process that was killed before its checkpoint was complete, or
    while it removed one. A directory that holds anything else, or is being written, is left alone.
    With several processes, the first one does it."""
    if settings.process_index:
        return
    with removing, contextlib.suppress(FileNotFoundError):
        is_torn = path.is_dir() and not is_whole(str(path)) and not is_in_use(path)
        if is_torn and all(map(_is_ours, path.iterdir())):
            remove_checkpoint(path)


def _is_ours(file: Path) -> bool:
    """Whether a file belongs to a checkpoint, or to an unfinished one."""
    return _VALUES.fullmatch(file.name) is not None or is_waiting(file.name)


# Reading.


@dataclass(frozen=True)
class SavedObject:
    """An object in a checkpoint: a Variable, with the key of its value, or one with parts."""

    key: str | None
    parts: dict[str, int]
    #: The number of a Variable, the name of a slot kept for it, and the number of the slot.
    slots: list[tuple[int, str, int]]


class Saved:
    """A checkpoint: its objects, and their values, which are read on demand.

    Raises LoadError for anything that differs from what `write_checkpoint` writes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        reader = Reader(path)
        reader.check_format(FORMAT, VERSION)
        fields = ("format", "version", "producer", "objects", "values", "files")
        _, _, producer, objects, values, files = reader.entry.fields(*fields)
        producer.text()
        names = reader.check_files(files)
        (self.values,) = reader.tables(names, values)
        self.objects = objects.each(self._object)
        self._check(objects)
        reader.check_all_used(files, names)

    def _object(self, entry: Entry) -> SavedObject:
        if entry.pairs().keys() == {"variable"}:
            return SavedObject(entry.pairs()["variable"].text(), {}, [])
        parts, slots = entry.fields("parts", optional=("slots",))
        rows = [] if slots.is_null else slots.each(_slot_row)
        return SavedObject(None, {n: e.count() for n, e in parts.pairs().items()}, rows)

    def _check(self, entry: Entry) -> None:
        """Raises LoadError for dangling numbers or keys."""
        count = len(self.objects)
        keys = [saved.key for saved in self.objects if saved.key is not None]
        if not count or self.objects[0].key is not None:
            entry.fail("the first object is the root, and has parts")
        if sorted(keys) != sorted(self.values):
            entry.fail("the values are not those of its variables, each once")
        for saved in self.objects:
            kept = [number for place, _, slot in saved.slots for number in (place, slot)]
            if any(number >= count for number in [*saved.parts.values(), *kept]):
                entry.fail(f"there are {count} objects, and another one is named")
            if any(self.objects[number].key is None for number in kept):
                entry.fail("slots are variables, and are kept for variables")

    def value(self, number: int) -> StoredArray:
        """The value of an object that is a Variable."""
        return self.values[self.key(number)]

    def key(self, number: int) -> str:
        key = self.objects[number].key
        assert key is not None
        return key


def _slot_row(entry: Entry) -> tuple[int, str, int]:
    variable, name, slot = entry.items(3)
    return variable.count(), name.text(), slot.count()


def open_checkpoint(path: str) -> Saved:
    """Opens the checkpoint at a path. Raises LoadError that lists the existing paths instead."""
    if not os.path.exists(path):
        others = sorted(str(found) for found in Path(path).parent.glob(Path(path).name + "-*"))
        if others:
            fail(
                NothingSavedError,
                f"there is no checkpoint {path}",
                fix=f"give the path that save returned, such as {others[-1]!r}",
            )
    return read_whole(path, lambda: Saved(path))
