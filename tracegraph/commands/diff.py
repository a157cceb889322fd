"""`tracegraph diff`: the differences between two graphs, or between two saved models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracegraph.commands.answers import NO, OK, Answer, Misuse
from tracegraph.commands.contents import (
    Contents,
    NamedGraph,
    SavedContents,
    SavedVariable,
    open_path,
)
from tracegraph.errors import counted
from tracegraph.views.graph_diff import diff
from tracegraph.views.outline import printable


@dataclass(frozen=True)
class Note:
    """A difference outside the graphs: `kind` is added, removed or changed; `what` is entry or
    variable; `field` is the property of a Variable that differs. `before` and `after` are None if
    absent; for values, which are compared by checksum, `after` is the largest difference."""

    kind: str
    what: str
    name: str
    field: str | None = None
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.kind != "changed":
            type = self.before or self.after
            sign = "-" if self.kind == "removed" else "+"
            return f"{sign} {self.what} {self.name}" + (f": {type}" if type else "")
        head = f"~ {self.what} {self.name}:"
        if self.field == "value":
            by = f" by up to {self.after:.3g}" if self.after else ""
            return f"{head} its values differ{by}"
        return f"{head} {self.field}: {self.before} is now {self.after}"


def compare(options: argparse.Namespace) -> Answer:
    names = options.entry or []
    if len(names) > 2:
        raise Misuse(f"--entry was given {len(names)} times", "give one for both, or one for each")
    before, after = open_path(options.before), open_path(options.after)
    if not names and isinstance(before, SavedContents) and isinstance(after, SavedContents):
        return _of_models(before, after, options.no_values)
    first, second = (names[0], names[-1]) if names else (None, None)
    return _of_entries(before, after, [(before.one(first), after.one(second))], [])


def _of_models(before: SavedContents, after: SavedContents, no_values: bool) -> Answer:
    """The differences of entries with the same name, and the entries that only one model has."""
    notes = [*_entry_notes(before, after), *_variable_notes(before, after, no_values)]
    pairs = [
        (x, after.entries[name]) for name, x in before.entries.items() if name in after.entries
    ]
    return _of_entries(before, after, pairs, notes)


def _entry_notes(before: SavedContents, after: SavedContents) -> Iterator[Note]:
    for name in dict.fromkeys([*before.entries, *after.entries]):
        if name not in after.entries:
            yield Note("removed", "entry", name)
        elif name not in before.entries:
            yield Note("added", "entry", name)


def _variable_notes(before: SavedContents, after: SavedContents, no_values: bool) -> Iterator[Note]:
    one, two = ({kept.key: kept for kept in c.variables} for c in (before, after))
    for name in dict.fromkeys([*one, *two]):
        if name not in two:
            yield Note("removed", "variable", name, before=one[name].type)
        elif name not in one:
            yield Note("added", "variable", name, after=two[name].type)
        else:
            yield from _changes(name, one[name], two[name], no_values)


def _changes(
    name: str, before: SavedVariable, after: SavedVariable, no_values: bool
) -> Iterator[Note]:
    for field in ("type", "trainable"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield Note("changed", "variable", name, field, old, new)
    if not no_values and before.digest != after.digest:
        yield Note("changed", "variable", name, "value", after=_distance(before, after))


def _distance(before: SavedVariable, after: SavedVariable) -> float | None:
    """The largest difference of two values of the same shape, if it is a number."""
    if before.shape != after.shape:
        return None
    one, two = (np.asarray(kept.read(), complex) for kept in (before, after))
    found = float(np.max(np.abs(one - two), initial=0.0))
    return found if np.isfinite(found) else None


def _of_entries(
    before: Contents, after: Contents, pairs: list[tuple[NamedGraph, NamedGraph]], notes: list[Note]
) -> Answer:
    differences = [(one, two, diff(one.graph, two.graph)) for one, two in pairs]
    parts = ["\n".join(printable(str(note)) for note in notes)] if notes else []
    for one, two, found in differences:
        if found:
            name = one.name if one.name == two.name else f"{one.name} and {two.name}"
            parts.append(f"entry {printable(name)}\n{found}")
    is_same = not parts
    compared = counted(len(pairs), "graph")
    text = "\n\n".join(parts) or f"no difference in {compared}"
    data: dict[str, Any] = {
        "before": str(before.path),
        "after": str(after.path),
        "is_same": is_same,
        "notes": list(map(asdict, notes)),
        "entries": [
            {"before": one.name, "after": two.name, "changes": list(map(_change, found))}
            for one, two, found in differences
        ],
    }
    return Answer(text, data, OK if is_same else NO)


def _change(change: Any) -> dict[str, Any]:
    return {
        "graph": change.graph,
        "kind": change.kind,
        "what": change.what,
        "before": change.before,
        "after": change.after,
        "details": list(change.details),
    }
