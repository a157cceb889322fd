"""Wraps the public API: its errors show only the user's frames, and name what the user called.

Calls between our own modules bypass the wrapper, as do calls of a compiled function, operators, and
methods without arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

from tracegraph.boundary.tracebacks import api_boundary, is_api_boundary

#: The functions wrapped in `api_boundary`.
_guarded: dict[FunctionType, Callable[..., Any]] = {}


def guard(modules: Iterable[ModuleType]) -> None:
    """Wraps the public functions of modules, and the methods of their classes that take arguments,
    in `api_boundary`. A function in several modules stays one function, found by its public
    name."""
    classes: set[type] = set()
    for module in modules:
        for name in filter(lambda name: not name.startswith("_"), dir(module)):
            value = vars(module).get(name)  # lazy names are not imported yet
            if isinstance(value, type):
                classes.update(x for x in value.__mro__ if x.__module__.startswith(_PACKAGE_PREFIX))
            elif isinstance(value, FunctionType):
                setattr(module, name, public(value, module.__name__, name))
    for owner in classes:
        guard_methods(owner)


def public(function: FunctionType, module: str, name: str) -> Callable[..., Any]:
    """The function in `api_boundary`, which pickles, and is shown, by the name that users
    import."""
    if is_api_boundary(function):
        return function
    if function not in _guarded:
        found: Any = api_boundary(function)
        found.__module__, found.__name__, found.__qualname__ = module, name, name
        _guarded[function] = found
    return _guarded[function]


def guard_methods(owner: type) -> None:
    """Wraps the methods of a class that take arguments in `api_boundary`."""
    for name, member in list(vars(owner).items()):
        is_wrapped = isinstance(member, (classmethod, staticmethod))
        method = member.__func__ if is_wrapped else member
        if not isinstance(method, FunctionType) or is_api_boundary(method):
            continue
        if _is_for_users(name, method) or (is_wrapped and not name.startswith("_")):
            found = api_boundary(method)
            setattr(owner, name, type(member)(found) if is_wrapped else found)


def _is_for_users(name: str, method: FunctionType) -> bool:
    """Whether users call it, and may get an argument wrong. Where the machinery calls methods for
    each node or step, only those with options are for users."""
    own = inspect.unwrap(method)  # a wrapper, such as that of a Module's scope, has no arguments
    if name == "__init__":
        return not method.__module__.startswith(_MADE_FOR_EACH_NODE)
    if name.startswith("_") and name != "__call__":
        return False
    if name != "__call__" and method.__module__.startswith(_CALLED_IN_EACH_STEP):
        return bool(own.__defaults__ or own.__kwdefaults__)
    code = own.__code__
    return code.co_argcount + code.co_kwonlyargcount > 1  # more than `self`


_PACKAGE_PREFIX = "tracegraph."
_MADE_FOR_EACH_NODE = ("tracegraph.ir.", "tracegraph.core.types")
_CALLED_IN_EACH_STEP = (*_MADE_FOR_EACH_NODE, "tracegraph.state.variable")
