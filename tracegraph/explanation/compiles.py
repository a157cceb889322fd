"""Which programs were compiled, and why so many."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tracegraph.eager import backend
from tracegraph.errors import counted

#: The name of computations outside functions.
_TOP_LEVEL = "top_level"
#: Up to this many differing values, a text shows all.
_SHOWN = 4
_TRACES = "see f.explain_retraces()"


@dataclasses.dataclass(frozen=True)
class CompileRow:
    """The programs of one name and line: how many, how long they took, what differed, the fix.

    `name` is that of the function; `change` and `fix` are empty for a single program.
    """

    name: str
    place: str
    count: int
    seconds: float
    change: str
    fix: str

    def __str__(self) -> str:
        name = "top level" if self.name == _TOP_LEVEL else self.name
        text = f"{self.seconds:8.3f} s  {counted(self.count, 'program')}  {name}"
        text += f" at {self.place}" if self.place else ""
        text += f": {self.change}" if self.change else ""
        return f"{text}\n    fix: {self.fix}" if self.fix else text


class CompileExplanation:
    """The programs that were compiled, the slowest first; its text is a table."""

    def __init__(self, rows: Sequence[CompileRow]) -> None:
        self.rows = tuple(rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        count = sum(row.count for row in self.rows)
        head = f"{counted(count, 'program')} took {self.seconds:.3f} s to compile"
        return "\n".join([head, *map(str, self.rows)])

    __repr__ = __str__


def explanation() -> CompileExplanation:
    """What was compiled so far."""
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for found in backend.compiles():
        groups[found.name, found.place].append(found)
    rows = [_row(*key, found) for key, found in groups.items()]
    return CompileExplanation(sorted(rows, key=lambda row: -row.seconds))


def _row(name: str, place: str, found: Sequence[Any]) -> CompileRow:
    change, fix = _change(name, found) if len(found) > 1 else ("", "")
    return CompileRow(name, place, len(found), sum(x.seconds for x in found), change, fix)


def _change(name: str, found: Sequence[Any]) -> tuple[str, str]:
    """What differs among the programs of one line, and what to do about it."""
    counts = [x.nodes for x in found]
    is_loop = name == _TOP_LEVEL
    if len(set(counts)) > 1:
        fix = "decorate what the loop repeats with @tg.function, or ask for values in one place"
        return f"they have {_several(counts)} nodes", fix if is_loop else _TRACES
    if len({tuple(x.types) for x in found}) > 1:
        fix = "pad to few sizes" if is_loop else "pad to few sizes, as with bucket_sizes"
        if len({tuple(y.shape for y in x.types) for x in found}) == 1:
            fix = "compute with one dtype: tg.cast(x, tg.float32)" if is_loop else _TRACES
        return f"they take {_several(_differing(found))}", fix
    for made in zip(*(x.made for x in found)):
        if len({x.shape for x in made}) > 1:
            fix = "pad to few sizes" if is_loop else _TRACES
            return f"they compute {_several(made)}", fix
    if is_loop:
        fix = "decorate what the loop repeats with @tg.function"
        return "other values are held, or other numbers are part of the program", fix
    return "they are of several traces, or of gradients", _TRACES


def _differing(found: Sequence[Any]) -> list[str]:
    """The types that each program takes, without those that all of them take at one place."""
    rows = [tuple(x.types) for x in found]
    if len({len(row) for row in rows}) == 1:
        # Many arguments often change in the same way: each way is shown once.
        columns = dict.fromkeys(column for column in zip(*rows) if len({*column}) > 1)
        rows = list(zip(*columns))
    return [", ".join(map(str, row)) for row in rows]


def _several(values: Sequence[Any]) -> str:
    texts = [str(x) for x in dict.fromkeys(values)]
    rest = ["..."] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *rest])
