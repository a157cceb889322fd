"""Results of commands: answers, refusals, and tables."""

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
from tracegraph.views.device_costs import aligned
from tracegraph.views.outline import printable

#: Exit codes: the answer is yes; it is no, or the data is bad; there is no answer.
OK, NO, TROUBLE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Answer:
    """The result of a command: `text` for people, `data` for `--json`, and the exit code."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    code: int = OK


class Misuse(Exception):
    """A request for something that does not exist: the fact and the fix."""

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.fix = fix


def refuse_name(fact: str, name: str, names: Sequence[str], otherwise: str) -> NoReturn:
    """Raises Misuse for an unknown name, listing similar ones."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        raise Misuse(fact, f"did you mean {' or '.join(near)}?")
    raise Misuse(fact, otherwise)


def table(rows: Iterable[Sequence[Any]], sides: str) -> str:
    """Formats rows, the first with the titles, in aligned columns: `<` left, `>` right.

    Text from untrusted files must not move the cursor, so cells are made
    printable.
    """
    return "\n".join(aligned([[printable(str(cell)) for cell in row] for row in rows], sides))


def size_text(count: int) -> str:
    """A number of bytes in readable form: 512 B, 12.3 kB, 1.2 GB."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def write_file(path: Path, data: str | bytes | Callable[[Path], None]) -> None:
    """Writes a result atomically, from data or by a function. Raises Misuse if the path cannot be
    written; an existing file is then unchanged."""
    try:
        write_output(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise Misuse(fact_of(error), fix_of(error)) from None


def file_names(names: Iterable[str]) -> list[str]:
    """File names that stay in their folder, whatever names a model gives its contents."""
    words = (re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".-")[:200] for name in names)
    return unique([word or "output" for word in words])


def make_folder(path: Path) -> None:
    """Creates a folder for results. Raises Misuse if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{path} cannot be a folder: {reason_of(error)}") from None
