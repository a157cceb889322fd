"""Name scopes: prefixes for the names of things created inside them, and the scopes of nodes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any

from tracegraph.core.contexts import Context, context
from tracegraph.core.source import place_of_thread
from tracegraph.errors import DTypeError, fail, kind_of, shown


class _Scopes(threading.local):
    def __init__(self) -> None:
        #: The open scopes, each under its own key, since tasks and generators exit theirs in any
        #: order.
        self.names: dict[object, str] = {}
        #: The paths of the function being traced, and those of the Module being called.
        self.paths: Any = None
        self.module: tuple[Any, str] = None, ""
        #: Which owners took which names in each scope of the current trace.
        self.taken: dict[str, dict[str, object]] | None = None
        #: The open scope of nodes that was entered last.
        self.innermost: _NodeScope | None = None


_scopes = _Scopes()


class NameScope(Context):
    """A context of `name_scope`; `name` is that of the scope."""

    def __init__(self, name: str, make: Callable[[], Generator[Any, None, None]]) -> None:
        super().__init__(make(), make)
        self.name = name


def name_scope(name: str) -> NameScope:
    """A context that names what is created inside it: the names of Variables begin with `name/`,
    and nodes of graphs are shown and grouped in that scope. In a graph, a scope whose name is
    already taken gets a number, as `name_1`. A name that ends with `/`, as that which the context
    gives, is not within the open scopes. The context has the `name`.

    >>> with tg.name_scope("encoder"):
    ...     w = tg.Variable(1.0, name="w")
    >>> w.name
    'encoder/w:0'
    """

    def opened() -> Generator[str, None, None]:
        with _named(name), _node_scope(name.removesuffix("/")):
            yield _open_path()

    return NameScope(name, opened)


@context
def _named(name: str) -> Generator[None, None, None]:
    names, key, checked = _scopes.names, object(), checked_name(name)
    try:
        names[key] = checked
        yield
    finally:
        names.pop(key, None)


def _open_path() -> str:
    """The names of the open scopes, each followed by `/`."""
    path = ""
    for name in _scopes.names.values():
        path = name if name.endswith("/") else f"{path}{name}/"
    return path


def scope_inside(name: str) -> str | None:
    """The scope of this name within the open ones, or None if none is open."""
    return f"{_open_path()}{name}/" if _scopes.names else None


def module_name_scope(module: Any, name: str) -> NameScope:
    """The name scope of a Module."""

    def opened() -> Generator[str, None, None]:
        with _named(name), module_scope(module):
            yield _open_path()

    return NameScope(name, opened)


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
        with _node_scope(name, module):
            yield
    finally:
        _scopes.module = outer, prefix


@context
def scopes_of(paths: Any) -> Generator[None, None, None]:
    """A context in which scopes start afresh, named by `paths`."""
    outer = _scopes.paths, _scopes.module
    try:
        _scopes.paths, _scopes.module = paths, (None, "")
        with _node_scope("", is_outermost=True):
            yield
    finally:
        _scopes.paths, _scopes.module = outer


class _NodeScope:
    """An open scope: what was current outside it, and the open scope entered next."""

    __slots__ = ("inner", "outer")

    def __init__(self) -> None:
        self.inner: _NodeScope | None = None
        self.outer = place_of_thread().scope, _scopes.taken, _scopes.innermost


@context
def _node_scope(
    name: str, owner: object = None, is_outermost: bool = False
) -> Generator[None, None, None]:
    """A context in which new nodes belong to the scope `name`, nested in the open one.

    While a function is traced, a name already used in that scope gets a number, as `dense_1`,
    unless the same `owner` enters it again. `is_outermost` leaves the open scopes and restarts the
    numbering. Tasks and generators may exit their scopes in any order: one that is exited before
    the scopes inside it is taken out of the chain.
    """
    place, scopes, this = place_of_thread(), _scopes, _NodeScope()
    path, taken = (name, {}) if is_outermost else (_free_scope(name, owner), scopes.taken)
    _, _, parent = this.outer
    try:
        place.scope, scopes.taken, scopes.innermost = path, taken, this
        if parent is not None:
            parent.inner = this
        yield
    finally:
        # No call and no loop, where a signal handler could raise.
        if this.inner is not None:
            this.inner.outer = this.outer
        else:
            place.scope, scopes.taken, scopes.innermost = this.outer
        if this.outer[2] is not None:
            this.outer[2].inner = this.inner


def _free_scope(name: str, owner: object) -> str:
    outer, taken_in = place_of_thread().scope, _scopes.taken
    if taken_in is not None:
        taken = taken_in.setdefault(outer, {})
        candidates = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(1)))
        name = next(c for c in candidates if c not in taken or _is_same(taken[c], owner))
        taken[name] = owner
    return f"{outer}/{name}" if outer else name


def _is_same(old: object, new: object) -> bool:
    return old is new and new is not None


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
    return _open_path() + checked_name(name)


def checked_name(name: Any) -> str:
    """The name itself. Raises DTypeError if it is not a string."""
    if isinstance(name, str):
        return name
    fact = f"a name is a string, and {shown(name)} is {kind_of(name)}"
    fail(DTypeError, fact, fix='use a string, such as name="w"')
