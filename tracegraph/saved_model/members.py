"""What to save: everything reachable through the attributes, methods and containers of an object,
with paths."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tracegraph.archive.value_encoding import NoData, encoded
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.saved_model.loaded_functions import SignatureFunction
from tracegraph.saved_model.loaded_modules import LoadedModule, own_attributes
from tracegraph.saved_model.names import joined
from tracegraph.saved_model.placeholders import described, entries, leaves
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable, VariableReference

#: The path of functions that are only reachable as signatures.
SIGNATURES = "signatures"


class Members:
    """The Modules, functions and Variables reachable from an object and its signatures, each with
    the first path that leads to it.

    An optimizer's slot is named after its Variable, wherever that is.
    """

    def __init__(self, root: Any, signatures: Mapping[str, Any]) -> None:
        self.found: list[Any] = []
        self._paths: dict[int, str] = {}
        #: For each dict keyed by Variables: its path, a Variable, and the slots kept for it.
        self._kept: list[tuple[str, Variable, Any]] = []
        self._visit("", root)
        self._visit(SIGNATURES, dict(sorted(signatures.items())))
        for path, variable, kept in self._kept:
            self._name_slots(path.rpartition("/")[0], variable, kept)

    def path_of(self, thing: Any) -> str | None:
        return self._paths.get(id(thing))

    def _visit(self, path: str, value: Any) -> None:
        value = value.concrete if isinstance(value, SignatureFunction) else value
        if isinstance(value, (Variable, Module, Function, ConcreteFunction)):
            if id(value) in self._paths:
                return
            self._paths[id(value)] = path
            self.found.append(value)
            rows = members_of(value) if isinstance(value, Module) else []
        else:
            rows = entries(value) or []
        for name, item in rows:
            if isinstance(name, VariableReference):
                self._kept.append((path, name.deref(), item))
            else:
                self._visit(joined(path, key_name(name)), item)

    def _name_slots(self, owner: str, variable: Variable, kept: Any) -> None:
        name = self._paths.get(id(variable), variable.base_name)
        for place, slot in leaves("", kept):
            if isinstance(slot, Variable):
                is_after = slot.base_name.startswith(variable.base_name)
                rest = slot.base_name.removeprefix(variable.base_name) if is_after else f"/{place}"
                self._paths.setdefault(id(slot), joined(owner, name + rest))
                self.found.append(slot)


def members_of(module: Module) -> list[tuple[str, Any]]:
    """The attributes and the decorated methods of a module."""
    attributes = [pair for pair in own_attributes(module) if not _is_cache(pair[0])]
    return [*attributes, *_methods(module)]


def key_name(key: Any) -> str:
    """The name of a container's entry in paths."""
    try:
        encoded(key)
    except NoData:  # its repr may contain a memory address
        return described(key)
    return str(key)


def _methods(module: Module) -> list[tuple[str, Function]]:
    """The decorated methods of the class by name: bound to the instance, or as attribute lookup
    returns static and class methods."""
    names = {
        name
        for cls in type(module).__mro__
        for name, value in vars(cls).items()
        if isinstance(_undecorated(value), Function) and name not in vars(module)
    }
    return [(name, getattr(module, name)) for name in sorted(names) if not _is_cache(name)]


def _undecorated(member: Any) -> Any:
    """The function inside a static or class method."""
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _is_cache(name: str) -> bool:
    """Whether an attribute is where a method keeps its traces; `_methods` finds those."""
    return name.startswith("_tg_function_")


def is_called_in_python(module: Module) -> bool:
    """Whether the class has a `__call__` that is not a `tg.function`."""
    call = type(module).__call__ if callable(module) else None
    return not isinstance(module, LoadedModule) and inspect.isfunction(call)
