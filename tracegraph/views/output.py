"""Output of views: a view writes its text to a path, if one is given."""

from __future__ import annotations

import os
from typing import Any

from tracegraph.archive.directory import write_output
from tracegraph.errors import TraceError, fail, kind_of, shown


class Written(str):
    """A text that was written to a file, which is what its `repr` shows at a prompt."""

    def __new__(cls, text: str, path: str | os.PathLike[str]) -> Written:
        found = super().__new__(cls, text)
        found.path = os.fspath(path)
        return found

    #: The file.
    path: str

    def __repr__(self) -> str:
        return f"<{len(self):,} characters in {self.path}>"


def written(view: str, text: str, path: str | os.PathLike[str] | None) -> str:
    """The text of a view, which is also written to `path` if that is given.

    Raises TraceError (a TypeError) for an invalid path: Python would take a number for an open
    file. Raises OSError for a file that cannot be written, which is then unchanged.
    """
    if path is None:
        return text
    _check_path(view, path)
    write_output(path, text.encode())
    return Written(text, path)


def _check_path(view: str, path: Any) -> None:
    if isinstance(path, (str, os.PathLike)):
        return
    fail(
        TraceError,
        f"{view}: the path {shown(path)} is {kind_of(path)}",
        fix=f"give the name of a file, or name the argument: {view}(indent=1)"
        if view == "to_json"
        else f'give the name of a file: {view}("graph.txt")',
    )
