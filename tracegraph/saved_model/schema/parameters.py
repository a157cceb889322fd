"""The parameters of functions, with their default values, as JSON and back."""

from __future__ import annotations

import inspect
import unicodedata
from typing import Any

from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import Decoder, NoData, Special, encoded
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.saved_model.placeholders import opaque
from tracegraph.state.module import Module

_KINDS = {kind.name.lower(): kind for kind in inspect._ParameterKind}


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
