"""Tables of layouts: which layout each Variable of a Module takes, by patterns of paths."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tracegraph.core.source import here
from tracegraph.eager.layouts import Layout, Mesh, as_layout, check_layout
from tracegraph.errors import SignatureError, fail, message, shown, warn
from tracegraph.ops.layout import mesh_around
from tracegraph.state.deferred import records, stop, wait
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable


def apply_layouts(root: Module, table: Any) -> dict[str, Layout]:
    """The layouts of the existing Variables, by path; Variables that layers create later take
    theirs on creation. See `Module.apply_layouts`."""
    if not isinstance(table, Mapping) or not all(isinstance(x, str) for x in table):
        fail(
            SignatureError,
            f"apply_layouts: the table is {shown(table)}",
            fix='give layouts by patterns of paths, as in {"*/kernel": ["data", None]}',
        )
    waiting = _WaitingTable(root, table)
    given = waiting.apply()
    unused = waiting.unused()
    if waiting.is_done and unused:
        fail(SignatureError, unused.fact, fix=unused.fix)
    waiting.warn_of_unused()
    return given


class _Unused(NamedTuple):
    """The message about patterns that match no Variable."""

    fact: str
    fix: str


class _WaitingTable:
    """A table applied to a module that may still create Variables."""

    def __init__(self, root: Module, table: Mapping[str, Any]) -> None:
        self.root = root
        self.table = table
        #: The mesh for layouts that the table gives as axes alone.
        self.mesh: Mesh | None = mesh_around()
        self.used: set[str] = set()
        #: The Variables examined so far, and the Modules that announce their new attributes.
        self._known: set[int] = set()
        self._owners: list[Module] = []
        #: Whether all modules are built; whether building the others could create Variables.
        self.is_done, self._may_grow = False, True
        self._source, self._has_warned = here(), False

    def apply(self) -> dict[str, Layout]:
        """Gives the Variables created since the last call their layouts: all of them, or none if
        one does not fit."""
        parts = list(_parts(self.root))
        new = [(path, part) for path, part in parts if id(part) not in self._known]
        found = [(path, x, self._layout_for(path, x)) for path, x in new if isinstance(x, Variable)]
        for _, part in new:
            self._known.add(id(part))
            if isinstance(part, Module):
                wait(part, self)
                self._owners.append(part)
        given: dict[str, Layout] = {}
        for path, variable, layout in found:
            if layout is not None:
                variable.take_layout(layout)
                given[path] = layout
        modules = [part for _, part in parts if isinstance(part, Module)]
        unbuilt = [part for part in modules if not getattr(part, "built", True)]
        self.is_done = not unbuilt
        self._may_grow = any(getattr(part, "_makes_variables", True) for part in unbuilt)
        if self.is_done:
            for owner in self._owners:
                stop(owner, self)
        return given

    def _layout_for(self, path: str, variable: Variable) -> Layout | None:
        """The table's layout for a Variable; None if a later table has one. Raises ShapeError if
        it does not fit."""
        pattern = next((x for x in self.table if _fits(path, x)), None)
        if pattern is None:
            return None
        self.used.add(pattern)
        if any(_fits(path, x) for table in self._later() for x in table):
            return None
        layout = as_layout(self.table[pattern], variable.ndim, self.mesh)
        check_layout(f"apply_layouts: {path!r}", variable.tensor_type, layout)
        return layout

    def _later(self) -> list[Mapping[str, Any]]:
        """The tables applied to the same module after this one."""
        tables = [
            x for x in records(self.root) if isinstance(x, _WaitingTable) and x.root is self.root
        ]
        return [x.table for x in tables[tables.index(self) + 1 :]] if self in tables else []

    def resume(self, kept_for: Any) -> None:
        """Called when a module of the tree gets an attribute."""
        if not self.is_done:
            self.apply()
            self.warn_of_unused()

    def unused(self) -> _Unused | None:
        """The message about patterns that match nothing, if there are any."""
        patterns = [repr(pattern) for pattern in self.table if pattern not in self.used]
        if not patterns:
            return None
        paths = [path for path, part in _parts(self.root) if isinstance(part, Variable)]
        return _Unused(
            f"apply_layouts: no variable has a path like {', '.join(patterns)}",
            f"the paths are {', '.join(paths) or 'none: the module has no variables'}",
        )

    def warn_of_unused(self) -> None:
        """Warns once of patterns that match nothing, as soon as no more Variables can appear."""
        if self._has_warned or self._may_grow:
            return
        self._has_warned = True
        unused = self.unused()
        if unused is not None:
            warn(message(unused.fact, fix=unused.fix), place=self._source)


def _fits(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern. `*` matches anything; `*/kernel` also matches the `kernel`
    of the root module."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(f"/{path}", pattern)


def _parts(root: Module) -> Iterator[tuple[str, Any]]:
    """The Modules and Variables below `root` with their paths, each once, nearest first."""
    seen: set[int] = set()
    level: list[tuple[str, Any]] = [("", root)]
    while level:
        below: list[tuple[str, Any]] = []
        for path, part in level:
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, Variable | Module):
                yield path, part
            below += [(f"{path}/{key}" if path else key, x) for key, x in _entries(part)]
        level = below


def _entries(part: Any) -> Iterator[tuple[str, Any]]:
    """The contents of a Module or a container, by name."""
    if isinstance(part, Module):
        named: Any = ((k, x) for k, x in part._ordered_attributes() if k not in part._hidden)
    elif isinstance(part, Mapping):
        named = part.items()
    elif isinstance(part, list | tuple):
        named = enumerate(part)
    else:
        return
    for key, value in named:
        if isinstance(value, Variable | Module | Mapping | list | tuple):
            yield str(key), value
