"""Why a function was traced again: the argument that differed, and both values."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tracegraph import nest
from tracegraph.errors import shown
from tracegraph.runtime.signature import ObjectKey, Request, VariableKey
from tracegraph.runtime.trace import innermost_trace
from tracegraph.source import here
from tracegraph.types import TensorType

#: A warning comes when this many of the last calls traced, at most so often per function.
_WINDOW = 5
_WARNINGS = 2


@dataclasses.dataclass(frozen=True)
class Retrace:
    """One trace after the first."""

    place: str
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return f"at {self.place}: " + "; ".join(self.changes)


class RetraceExplanation:
    """The traces of a function after the first, with what differed; its text is for people."""

    def __init__(self, name: str, retraces: Sequence[Retrace]) -> None:
        self.name = name
        self.retraces = tuple(retraces)

    def __str__(self) -> str:
        if not self.retraces:
            return f"{self.name} was not retraced"
        return "\n".join([f"{self.name} was retraced:", *(f"  {r}" for r in self.retraces)])

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.retraces)


class _Row:
    """A row of calls that all traced."""

    def __init__(self) -> None:
        self.length = 0
        self.warnings = 0
        self.place: str | None = None

    def extend(self) -> bool:
        """Whether the row is now long enough for a warning."""
        self.length += 1
        if self.length < _WINDOW or self.warnings >= _WARNINGS:
            return False
        self.length = 0
        self.warnings += 1
        return True


#: Per code object: first calls of functions made of it, one after another at one place.
_decorated: weakref.WeakKeyDictionary[Any, _Row] = weakref.WeakKeyDictionary()


class Retracing:
    """Counts the calls of a function that traced, and warns when they are too many."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._code = getattr(inspect.unwrap(function), "__code__", None)
        self._has_traced = False
        self.row = _Row()
        self._known: list[Request] = []
        self._retraces: list[Retrace] = []

    def seen(self, is_traced: bool) -> None:
        """Notes a call, and warns if too many in a row traced."""
        if not is_traced:
            self.row.length = 0
            return
        if self.row.extend():
            self._warn("; ".join(self._retraces[-1].changes) if self._retraces else "")
        if not self._has_traced:
            self._has_traced = True
            self._seen_decorated()

    def _seen_decorated(self) -> None:
        """The same code decorated again and again at one place, as in a loop, is warned of too;
        not so functions that call each other, which one call traces."""
        if self._code is None or innermost_trace() is not None:
            return
        row = _decorated.setdefault(self._code, _Row())
        place = str(here())
        if row.place != place:
            row.place, row.length = place, 0
        if row.extend():
            self._warn("the function was decorated again: decorate it once, outside of the loop")

    def _warn(self, reason: str) -> None:
        place = here()
        text = (
            f"{_WINDOW} of the last {_WINDOW} calls of {self._name} were traced, which is slow. "
            f"The last time, {reason}. Pass tensors in place of Python numbers, use "
            "reduce_retracing=True or an input_signature with None for sizes that vary"
        )
        warnings.warn_explicit(text, UserWarning, place.file, place.line)

    def forget(self) -> None:
        """Begins anew, as `clear_cache` does."""
        self.row.length = 0
        self._known.clear()

    def trace(self, request: Request) -> None:
        """Notes a trace."""
        if self._known:
            self._retraces.append(Retrace(str(here()), self._changes(request)))
        self._known.append(request)
        del self._known[:-8]
        del self._retraces[:-256]

    def explanation(self) -> RetraceExplanation:
        return RetraceExplanation(self._name, self._retraces)

    def _changes(self, request: Request) -> tuple[str, ...]:
        """The differences from the most similar trace."""
        found = [_differences(known, request) for known in reversed(self._known)]
        return min(found, key=len)


def _differences(old: Request, new: Request) -> tuple[str, ...]:
    """One text for each leaf that differs, or for each argument whose structure does."""
    before, after = arguments_of(old), arguments_of(new)
    found: list[str] = []
    for name in dict.fromkeys((*after, *before)):
        was, is_now = before.get(name, _MISSING), after.get(name, _MISSING)
        old_places, old_structure = nest.flatten_structure(was)
        new_places, new_structure = nest.flatten_structure(is_now)
        if old_structure != new_structure or _MISSING in (was, is_now):
            found.append(_difference(name, shown_argument(old, was), shown_argument(new, is_now)))
            continue
        for i, j in zip(old_places, new_places, strict=True):
            if old.keys[i] != new.keys[j]:
                texts = _text(old.keys[i], old.leaves[i]), _text(new.keys[j], new.leaves[j])
                found.append(_difference(new.names[j], *texts))
    return tuple(found)


def _difference(name: str, was: str, is_now: str) -> str:
    return f"argument {name!r} was {was} and is now {'another' if was == is_now else is_now}"


#: Stands for an argument that a call does not have.
_MISSING = object()


def arguments_of(request: Request) -> dict[str, Any]:
    """The arguments by name, with the positions of their leaves in their places."""
    args, kwargs = request.structure.pack(list(range(request.structure.count)))
    return {**dict(zip(request.signature.positional(len(args)), args, strict=True)), **kwargs}


def shown_argument(request: Request, argument: Any) -> str:
    """An argument with its structure, and what counts of its leaves."""
    if argument is _MISSING:
        return "not given"
    positions, structure = nest.flatten_structure(argument)
    leaves = [_Leaf(_text(request.keys[i], request.leaves[i])) for i in positions]
    text = str(structure.pack(leaves))
    return text if len(text) <= 60 else f"{text[:57]}... ({len(leaves)} leaves)"


class _Leaf:
    """A leaf as text, which a structure shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _text(key: Any, leaf: Any) -> str:
    if isinstance(key, TensorType):
        return str(key)
    if isinstance(key, VariableKey):
        return f"Variable {key.alias + 1} of the call, {key.type}"
    if isinstance(key, ObjectKey):
        return f"another {key.text}"
    return shown(leaf)
