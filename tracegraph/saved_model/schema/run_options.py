"""Options for compiling and running a function, as JSON and back."""

from __future__ import annotations

from typing import Any

from tracegraph.archive.manifest import Entry
from tracegraph.execution.run_options import PLAIN, Roll, RunOptions

#: The optional field of a function; if it is missing, all options have their defaults.
RUN_OPTIONS = "run_options"

_ROLLS: dict[str, Roll] = {"always": "always", "never": False}


def written_run_options(options: RunOptions) -> dict[str, Any]:
    """The field of the manifest, if any option differs from the default."""
    said: dict[str, Any] = {}
    if options.buckets is not None:
        said["bucket_sizes"] = options.buckets.option
    if options.memory_budget is not None:
        said["memory_budget"] = options.memory_budget
    if options.locate_numerics:
        said["locate_numerics"] = True
    if options.roll != PLAIN.roll:
        said["roll"] = next(name for name, roll in _ROLLS.items() if roll == options.roll)
    return {RUN_OPTIONS: said} if said else {}


def read_run_options(entry: Entry) -> dict[str, Any]:
    """The options of `tg.function` in the field."""
    if entry.is_null:
        return {}
    buckets, budget, locate, roll = entry.fields(
        optional=("bucket_sizes", "memory_budget", "locate_numerics", "roll")
    )
    options = {
        "bucket_sizes": buckets.optional(_bucket_sizes),
        "memory_budget": budget.optional(_positive),
        "locate_numerics": locate.optional(Entry.flag),
        "roll": roll.optional(lambda entry: entry.choice(_ROLLS)),
    }
    return {name: value for name, value in options.items() if value is not None}


def _bucket_sizes(entry: Entry) -> str | list[int]:
    if isinstance(entry.value, str):
        return entry.choice({"powers_of_two": "powers_of_two"})
    sizes = entry.each(_positive)
    if not sizes:
        entry.fail("there is no size")
    return sizes


def _positive(entry: Entry) -> int:
    found = entry.count()
    if found == 0:
        entry.fail("it is 0, and it must be positive")
    return found
