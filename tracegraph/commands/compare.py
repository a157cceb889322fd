"""`tracegraph diff`: what differs between two graphs, or between two saved models."""

from __future__ import annotations

import argparse
from typing import Any

from tracegraph.commands.answers import NO, OK, Answer, Misuse, counted
from tracegraph.commands.contents import Contents, Entry, SavedContents, open_path
from tracegraph.views.compare import diff
from tracegraph.views.outline import printable


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
    """All entries that have one name in both, and what only one of them has."""
    notes = []
    for name in [*before.entries, *(n for n in after.entries if n not in before.entries)]:
        if name not in after.entries:
            notes.append(f"- entry {name}")
        elif name not in before.entries:
            notes.append(f"+ entry {name}")
    notes += _variable_notes(before, after, no_values)
    pairs = [
        (x, after.entries[name]) for name, x in before.entries.items() if name in after.entries
    ]
    return _of_entries(before, after, pairs, notes)


def _variable_notes(before: SavedContents, after: SavedContents, no_values: bool) -> list[str]:
    one, two = ({kept.key: kept for kept in c.variables} for c in (before, after))
    notes = []
    for name in [*one, *(n for n in two if n not in one)]:
        if name not in two:
            notes.append(f"- variable {name}: {one[name].type}")
        elif name not in one:
            notes.append(f"+ variable {name}: {two[name].type}")
        else:
            a, b = one[name], two[name]
            rows = [("type", a.type, b.type), ("trainable", a.trainable, b.trainable)]
            for what, old, new in rows:
                if old != new:
                    notes.append(f"~ variable {name}: {what}: {old} is now {new}")
            if not no_values and a.digest != b.digest:
                notes.append(f"~ variable {name}: its value is another")
    return notes


def _of_entries(
    before: Contents, after: Contents, pairs: list[tuple[Entry, Entry]], notes: list[str]
) -> Answer:
    differences = [(one, two, diff(one.graph, two.graph)) for one, two in pairs]
    parts = ["\n".join(map(printable, notes))] if notes else []
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
        "notes": notes,
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
