"""What commands give back: answers, refusals, and the tables in them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tracegraph.archive.directory import write_output
from tracegraph.errors import fact_of, fix_of, reason_of
from tracegraph.text.printer import unique
from tracegraph.views.devices import aligned
from tracegraph.views.outline import printable

#: Exit codes: the answer is yes, it is no or the data is bad, there is no answer.
OK, NO, TROUBLE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Answer:
    """What a command found: `text` for people, `data` for `--json`, and the exit code."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    code: int = OK


class Misuse(Exception):
    """A command that was asked for something that is not there: the fact and the repair."""

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.fix = fix


def refuse_name(fact: str, name: str, names: Sequence[str], otherwise: str) -> NoReturn:
    """Raises Misuse for a name that is not there, with those that are near it."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        raise Misuse(fact, f"did you mean {' or '.join(near)}?")
    raise Misuse(fact, otherwise)


def table(rows: Iterable[Sequence[Any]], sides: str) -> str:
    """The rows, the first of which has the titles, with their columns aligned: `<` left, `>` right.

    What comes from a file that nobody vouches for must not move the cursor: cells are made
    printable.
    """
    return "\n".join(aligned([[printable(str(cell)) for cell in row] for row in rows], sides))


def size_text(count: int) -> str:
    """A number of bytes as people read it: 512 B, 12.3 kB, 1.2 GB."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def write_file(path: Path, data: str | bytes | Callable[[Path], None]) -> None:
    """Writes a result, or has it written, in one step. Raises Misuse for a path that cannot be
    written, whose file is then as it was."""
    try:
        write_output(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise Misuse(fact_of(error), fix_of(error)) from None


def file_names(names: Iterable[str]) -> list[str]:
    """Names of files that stay in their folder, whatever a model calls what goes into them."""
    words = (re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".-")[:200] for name in names)
    return unique([word or "output" for word in words])


def make_folder(path: Path) -> None:
    """Makes a folder for results. Raises Misuse where none can be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{path} cannot be a folder: {reason_of(error)}") from None
