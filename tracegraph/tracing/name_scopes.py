"""Name scopes: prefixes for the names of things created inside them, and the scopes of nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

from tracegraph.core.contexts import context
from tracegraph.core.source import scoped
from tracegraph.errors import DTypeError, fail, kind_of, shown


class _Scopes(threading.local):
    def __init__(self) -> None:
        #: The open scopes, each under its own key, since tasks and generators exit theirs in any
        #: order.
        self.names: dict[object, str] = {}
        #: The paths of the function being traced, and those of the Module being called.
        self.paths: Any = None
        self.module: tuple[Any, str] = None, ""


_scopes = _Scopes()


@context
def name_scope(name: str) -> Generator[str, None, None]:
    """A context that names what is created inside it: the names of Variables begin with `name/`,
    and nodes of graphs are shown and grouped in that scope. In a graph, a scope whose name is
    already taken gets a number, as `name_1`.

    >>> with tg.name_scope("encoder"):
    ...     w = tg.Variable(1.0, name="w")
    >>> w.name
    'encoder/w:0'
    """
    with _named(name), scoped(name):
        yield "/".join(_scopes.names.values()) + "/"


@context
def _named(name: str) -> Generator[None, None, None]:
    names, key, checked = _scopes.names, object(), checked_name(name)
    try:
        names[key] = checked
        yield
    finally:
        names.pop(key, None)


@context
def module_name_scope(module: Any) -> Generator[str, None, None]:
    """A name scope named after a Module."""
    with _named(module.name), module_scope(module):
        yield "/".join(_scopes.names.values()) + "/"


@context
def module_scope(module: Any) -> Generator[None, None, None]:
    """The scope of the nodes that a Module creates while a function is traced.

    It has the name given to the Module, or its path: `layers/0` within the scope of the object that
    holds it. It is the same scope whenever it is open.
    """
    paths, (outer, prefix) = _scopes.paths, _scopes.module
    path = paths.of(module) if paths is not None else None
    if paths is None or module is outer or path == "":
        yield
        return
    name = path.removeprefix(f"{prefix}/") if path and prefix else path or module.name
    try:
        _scopes.module = module, path or ""
        with scoped(name, module):
            yield
    finally:
        _scopes.module = outer, prefix


@context
def scopes_of(paths: Any) -> Generator[None, None, None]:
    """A context in which scopes start afresh, named by `paths`."""
    outer = _scopes.paths, _scopes.module
    try:
        _scopes.paths, _scopes.module = paths, (None, "")
        with scoped("", is_outermost=True):
            yield
    finally:
        _scopes.paths, _scopes.module = outer


#: Finds the path by which the user's code refers to a Variable; `paths`, on a higher floor, sets
#: it.
finders: list[Callable[[Any], str | None]] = []


def told_name(variable: Any) -> str:
    """The name of a Variable in errors: the user's, or the one that graphs would show, from the
    object that holds it, `blocks.0.kernel`."""
    if not variable.is_unnamed:
        return variable.name
    paths = [] if _scopes.paths is None else [_scopes.paths.of]
    found = (find(variable) for find in (*paths, *finders))
    path = next(filter(None, found), None)
    return dotted(path) if path else variable.name


def dotted(path: str) -> str:
    """A path as graphs and errors show it: `blocks.0.kernel`."""
    return path.replace("/", ".")


def has_scopes() -> bool:
    """Whether this thread is tracing a function, whose nodes have scopes."""
    return _scopes.paths is not None


def scoped_name(name: str) -> str:
    """`name` within the open scopes."""
    return "/".join([*_scopes.names.values(), checked_name(name)])


def checked_name(name: Any) -> str:
    """The name itself. Raises DTypeError if it is not a string."""
    if isinstance(name, str):
        return name
    fact = f"a name is a string, and {shown(name)} is {kind_of(name)}"
    fail(DTypeError, fact, fix='use a string, such as name="w"')
