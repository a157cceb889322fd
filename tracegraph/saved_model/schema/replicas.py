"""Fields of a Variable for code that runs on several replicas, as JSON and back."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tracegraph.archive.manifest import Entry
from tracegraph.state.variable import Variable, VariableAggregation, VariableSynchronization

_DEFAULTS: dict[str, enum.Enum] = {
    "synchronization": VariableSynchronization.AUTO,
    "aggregation": VariableAggregation.NONE,
}
#: The optional fields of a Variable; a missing one has the default value.
REPLICA_FIELDS = tuple(_DEFAULTS)


def written_replicas(variable: Variable) -> dict[str, str]:
    """The fields that differ from the defaults, under lower-case names."""
    chosen = {name: type(usual)(getattr(variable, name)) for name, usual in _DEFAULTS.items()}
    return {n: value.name.lower() for n, value in chosen.items() if value is not _DEFAULTS[n]}


def read_replicas(variable: Variable, entries: Sequence[Entry]) -> None:
    """Sets the fields in the entries of `REPLICA_FIELDS`."""
    for (name, usual), entry in zip(_DEFAULTS.items(), entries, strict=True):
        choices = {member.name.lower(): member for member in type(usual)}
        if not entry.is_null:
            setattr(variable, name, entry.choice(choices))
