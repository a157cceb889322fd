"""The public API stands in a wrapper: what leaves it as an error has the user's frames alone, and
tells users what they called.

Calls between our own modules do not go through it, nor do the calls of a compiled function,
operators, or methods that take no options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

from tracegraph.boundary.argument_errors import SINGLE
from tracegraph.boundary.tracebacks import api_boundary, is_api_boundary


def guard(modules: Iterable[ModuleType]) -> None:
    """Puts the public functions of modules, and the methods of their classes that take options, in
    `api_boundary`. A function of several modules stays one function, found by its public name."""
    functions: dict[FunctionType, Callable[..., Any]] = {}
    classes: set[type] = set()
    for module in modules:
        # What a module loads at its first use is guarded then.
        known = vars(module)
        for name in [name for name in dir(module) if not name.startswith("_") and name in known]:
            value = known[name]
            if isinstance(value, type):
                classes.update(x for x in value.__mro__ if x.__module__.startswith(_PACKAGE_PREFIX))
            elif isinstance(value, FunctionType):
                if value not in functions:
                    functions[value] = _public(value, module.__name__, name)
                setattr(module, name, functions[value])
    for owner in classes:
        _guard_methods(owner)


def _public(function: FunctionType, module: str, name: str) -> Callable[..., Any]:
    """The function in `api_boundary`; that is pickled, and shown, by the name that users import."""
    if is_api_boundary(function):
        return function
    found: Any = api_boundary(function)
    found.__module__, found.__name__, found.__qualname__ = module, name, name
    return found


def _guard_methods(owner: type) -> None:
    for name, member in list(vars(owner).items()):
        is_wrapped = isinstance(member, (classmethod, staticmethod))
        method = member.__func__ if is_wrapped else member
        if not isinstance(method, FunctionType) or is_api_boundary(method):
            continue
        if _is_for_users(name, method):
            found = api_boundary(method)
            setattr(owner, name, type(member)(found) if is_wrapped else found)


def _is_for_users(name: str, method: FunctionType) -> bool:
    """Whether users call it, and may get a name wrong. What the machinery calls for each node, or
    makes for each, takes no options."""
    if name == "__init__":
        return not method.__module__.startswith(_MADE_FOR_EACH_NODE)
    if name == "__call__":
        return any(p.kind in SINGLE for p in [*inspect.signature(method).parameters.values()][1:])
    return not name.startswith("_") and bool(method.__defaults__ or method.__kwdefaults__)


_PACKAGE_PREFIX = "tracegraph."
_MADE_FOR_EACH_NODE = ("tracegraph.ir.", "tracegraph.core.types")
