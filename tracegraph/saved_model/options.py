"""Options of saving and loading, and files that belong to a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracegraph.errors import LoadError, SignatureError, fail, shown
from tracegraph.source import here

#: What the format is called, and the newest version of it that is written and read.
FORMAT = "tracegraph.saved_model"
VERSION = 1
#: The most bytes of graphs that are written and read: each takes some dozens of memory.
LARGEST_TEXT = 2**28


@dataclass(frozen=True)
class SaveOptions:
    """How a model is saved.

    - `experimental_custom_gradients`: whether custom gradients are saved with their functions.
      Without them a gradient through such a function raises LookupError after loading.
    - `locations`: whether every node keeps the file name and the line where it was made.
    - `stablehlo`: kinds of devices, "cpu" or several of them as `("cpu", "cuda")`, for which each
      of the `signatures` is also written as a program, see `tg.export.stablehlo`: for readers that
      run it without tracegraph. Variables are constants of it, with the values of now.
    - `extra`: files for the folder `extra`, as bytes by name; they are never read here.
    """

    experimental_custom_gradients: bool = True
    locations: bool = True
    stablehlo: str | Sequence[str] = ()
    extra: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    - `verify`: whether every file is compared with its checksum at once. Without it the graphs
      are, and each tensor is when it is used first.
    """

    verify: bool = False


class Asset:
    """A file that is saved with a model: after loading, `path` is where the copy lies.

    Raises ValueError if there is no such file.

    >>> with open("words.txt", "w") as file:
    ...     _ = file.write("one two")
    >>> tg.saved_model.Asset("words.txt").path
    'words.txt'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not Path(path).is_file():
            fail(
                LoadError,
                f"there is no file {shown(os.fspath(path))} to be an asset",
                source=here(),
                fix="give the path of a file that exists",
            )
        self._path = os.fspath(path)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    asset_path = path

    def __fspath__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<tg.saved_model.Asset {self._path!r}>"


def as_options(kind: type, given: Any) -> Any:
    """The options that were given, or the default ones. Raises ValueError for anything else."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        fail(
            SignatureError,
            f"the options are {shown(given)}, and not a tg.saved_model.{kind.__name__}",
            source=here(),
            fix=f"write options=tg.saved_model.{kind.__name__}(...)",
        )
    return given
