"""`tg.config`: settings of the process."""

from __future__ import annotations

import os
from pathlib import Path

from tracegraph.core.settings import settings
from tracegraph.errors import TraceError, fail, shown
from tracegraph.functions.function import functions_run_eagerly, run_functions_eagerly
from tracegraph.ir.slow_compiles import get_compile_notes, set_compile_notes

__all__ = [
    "compilation_cache",
    "functions_run_eagerly",
    "get_compile_notes",
    "run_functions_eagerly",
    "set_compilation_cache",
    "set_compile_notes",
]


def set_compilation_cache(path: str | os.PathLike[str] | None) -> None:
    """Keeps compiled programs in a folder, so that the next process need not compile them.

    `path` is a folder, which is made when the first program is kept; None, the default, keeps
    nothing. The environment variable `TRACEGRAPH_CACHE` sets it from outside. Functions are traced
    in each process still.

    What is kept is found again only for the same program, versions, flags and device, and only if
    its bytes are those that were written; otherwise it is compiled anew. Several processes may
    share the folder. One that cannot be written or read gives a UserWarning, and is not used. It
    grows without a bound; delete what is in it whenever you like. Programs are machine code: use a
    folder that only people you trust can write to.

    Raises TraceError (a TypeError) for what is no path.

    >>> tg.config.set_compilation_cache("/tmp/programs")
    >>> tg.config.compilation_cache()
    PosixPath('/tmp/programs')
    >>> tg.config.set_compilation_cache(None)
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        fail(
            TraceError,
            f"{shown(path)} is no path of a folder",
            fix="give a str or pathlib.Path, or None to keep no programs",
        )
    settings.set_compilation_cache(None if path is None else Path(path).expanduser())


def compilation_cache() -> Path | None:
    """The folder in which compiled programs are kept, or None."""
    return settings.compilation_cache
