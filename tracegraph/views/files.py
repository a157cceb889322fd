"""Views as files: a view that is given a path writes its text there too."""

from __future__ import annotations

import os
from typing import Any

from tracegraph.errors import DTypeError, fail, kind_of, shown
from tracegraph.source import here


def written(view: str, text: str, path: str | os.PathLike[str] | None) -> str:
    """The text of a view, which is also written to `path` if that is given.

    Raises DTypeError (a TypeError) for a path that is none: Python would take a number for an open
    file.
    """
    if path is not None:
        _check_path(view, path)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return text


def _check_path(view: str, path: Any) -> None:
    if isinstance(path, (str, os.PathLike)):
        return
    fail(
        DTypeError,
        f"{view}: the path {shown(path)} is {kind_of(path)}",
        source=here(),
        fix=f"give the name of a file, or name the argument: {view}(indent=1)"
        if view == "to_json"
        else f'give the name of a file: {view}("graph.txt")',
    )
