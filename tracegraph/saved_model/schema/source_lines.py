"""The source lines that created nodes, for readers of the graphs; as JSON and back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from tracegraph.archive import limits
from tracegraph.archive.manifest import Entry, label_problem
from tracegraph.core.source import Source

#: The field of the manifest.
LINES = "lines"
_LINE_NUMBER = re.compile("[1-9][0-9]{0,8}")
#: Source lines by file name and line number.
Lines = Mapping[tuple[str, int], str]


def written_lines(sources: Iterable[Source], takes_all: bool) -> dict[str, dict[str, str]]:
    """The lines at these locations by file name and line number: all, or only those known because a
    file had them. A line that differs between two files of the same name is omitted.
    """
    found: dict[tuple[str, int], set[str]] = {}
    for source in sources:
        if takes_all or source.code is None:
            text = " ".join(source.text.split("\t"))[: limits.LONGEST_NAME]
            if text and text.isprintable():
                found.setdefault((os.path.basename(source.file), source.line), set()).add(text)
    table: dict[str, dict[str, str]] = {}
    for (file, line), texts in sorted(found.items()):
        if len(texts) == 1:
            table.setdefault(file, {})[str(line)] = texts.pop()
    return table


def read_lines(entry: Entry) -> Lines:
    """The lines by file and number. Raises LoadError."""
    found: dict[tuple[str, int], str] = {}
    for file, table in entry.pairs().items():
        if label_problem(file) or "/" in file or "\\" in file:
            table.fail("its key is not the name of a file")
        for number, text in table.pairs().items():
            if not _LINE_NUMBER.fullmatch(number):
                text.fail("its key is not the number of a line")
            line = text.text()
            if not line or len(line) > limits.LONGEST_NAME or not line.isprintable():
                text.fail("it is not a line of source")
            found[file, int(number)] = line
    return found
