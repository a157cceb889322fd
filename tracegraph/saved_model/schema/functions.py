"""Functions as JSON and back: their parameters with default values, and how they run."""

from __future__ import annotations

import inspect
import unicodedata
from typing import Any

from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import Decoder, NoData, Special, encoded
from tracegraph.execution.run_options import PLAIN, Roll, RunOptions
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.saved_model.placeholders import opaque
from tracegraph.state.module import Module

_KINDS = {kind.name.lower(): kind for kind in inspect._ParameterKind}

#: The optional field of a function; if it is missing, all options have their defaults.
RUN_OPTIONS = "run_options"

_ROLLS: dict[str, Roll] = {"always": "always", "never": False}


def written_parameters(signature: inspect.Signature, special: Special) -> list[Any]:
    """The JSON of parameters; `special` writes default values that are not plain data."""

    def of_default(value: Any) -> Any:
        # Functions are created from their parameters, so they cannot be default values.
        if isinstance(value, (Function, ConcreteFunction, Module)):
            raise NoData(value)
        return special(value)

    found = []
    for parameter in signature.parameters.values():
        row: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name.lower()}
        if parameter.default is not parameter.empty:
            try:
                row["default"] = encoded(parameter.default, of_default)
            except NoData:
                row["default"] = opaque(parameter.default)
        found.append(row)
    return found


def read_parameters(entry: Entry, defaults: Decoder) -> inspect.Signature:
    """The parameters; `defaults` reads their default values. Raises LoadError."""
    found = [_parameter(row, defaults) for row in entry.items()]
    if any(unicodedata.normalize("NFKC", p.name) != p.name for p in found):
        entry.fail("the name of a parameter is written in several ways")
    try:
        return inspect.Signature(found)
    except ValueError as error:
        entry.fail(str(error), cause=error)


def _parameter(row: Entry, defaults: Decoder) -> inspect.Parameter:
    name, kind, default = row.fields("name", "kind", optional=("default",))
    has_default = "default" in row.pairs()
    value = defaults.read(default) if has_default else inspect.Parameter.empty
    try:
        return inspect.Parameter(name.label(), kind.choice(_KINDS), default=value)
    except ValueError as error:
        row.fail(str(error), cause=error)


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
