"""Saving and loading as users call them: paths are checked, a reader beside a writer sees what is
whole, and errors have the frames of the user alone."""

from __future__ import annotations

import functools
import os
from typing import Any

from tracegraph.archive import manifest
from tracegraph.archive.directory import Reader, as_path, read_whole
from tracegraph.errors import LoadError
from tracegraph.runtime.tracebacks import door
from tracegraph.saved_model import reading, writing
from tracegraph.saved_model.modules import LoadedModule
from tracegraph.saved_model.options import FORMAT, LoadOptions, SaveOptions


@door
@functools.wraps(writing.save)
def save(
    obj: Any,
    path: str | os.PathLike[str],
    signatures: Any = None,
    options: SaveOptions | None = None,
) -> None:
    writing.save(obj, as_path("tg.saved_model.save", path), signatures, options)


@door
@functools.wraps(reading.load)
def load(
    path: str | os.PathLike[str], tags: Any = None, options: LoadOptions | None = None
) -> LoadedModule:
    path = as_path("tg.saved_model.load", path)
    return read_whole(path, lambda: reading.load(path, tags, options))


@door
def contains_saved_model(export_dir: str | os.PathLike[str]) -> bool:
    """Whether a model was saved to a directory. What stands in its files is not looked at.

    >>> tg.saved_model.save(tg.Module(), "empty")
    >>> tg.saved_model.contains_saved_model("empty"), tg.saved_model.contains_saved_model(".")
    (True, False)
    """
    try:
        head = manifest.head(Reader(as_path("contains_saved_model", export_dir)).entry)
    except LoadError:
        return False
    return head["format"].value == FORMAT
