"""What of a Module is saved: its attributes, and the methods that are functions."""

from __future__ import annotations

import inspect
from typing import Any

from tracegraph.runtime.function import Function
from tracegraph.runtime.module import Module
from tracegraph.saved_model.modules import LoadedModule, own_attributes


def attributes_of(module: Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in own_attributes(module) if not _is_cache(name)]


def methods(module: Module) -> list[tuple[str, Function]]:
    """The decorated methods of the class by name, bound to the instance or, where they are static
    or of the class, as calling them finds them."""
    names = {
        name
        for cls in type(module).__mro__
        for name, value in vars(cls).items()
        if isinstance(_undecorated(value), Function) and name not in vars(module)
    }
    return [(name, getattr(module, name)) for name in sorted(names) if not _is_cache(name)]


def _undecorated(member: Any) -> Any:
    """What a static method or one of the class stands around."""
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _is_cache(name: str) -> bool:
    """Whether an attribute is where a method keeps its traces; `methods` finds those."""
    return name.startswith("_tg_function_")


def is_called_in_python(module: Module) -> bool:
    """Whether the class has a `__call__` that is no `tg.function`."""
    call = type(module).__call__ if callable(module) else None
    return not isinstance(module, LoadedModule) and inspect.isfunction(call)
