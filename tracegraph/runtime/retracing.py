"""Why a function was traced again: the argument that differed, and both values."""

from __future__ import annotations

import collections
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tracegraph.runtime.signature import ObjectKey, Request
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
        return f"at {self.place}: " + ("; ".join(self.changes) or "the structure changed")


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


class _Calls:
    """Recent calls of one place in the source, whichever object was decorated there."""

    def __init__(self) -> None:
        self.recent: collections.deque[bool] = collections.deque(maxlen=_WINDOW)
        self.warnings = 0


_by_code: weakref.WeakKeyDictionary[Any, _Calls] = weakref.WeakKeyDictionary()


class Retracing:
    """Counts the calls of a function that traced, and warns when they are too many."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        code = getattr(function, "__code__", None)
        # The same code decorated again and again, as in a loop, counts together.
        self._calls = _Calls() if code is None else _by_code.setdefault(code, _Calls())
        self._known: list[tuple[Request, list[str]]] = []
        self._retraces: list[Retrace] = []

    @property
    def recent(self) -> collections.deque[bool]:
        """The row of calls in progress that all traced."""
        return self._calls.recent

    def seen(self, is_traced: bool) -> None:
        """Notes a call, and warns if too many of the last ones traced."""
        calls = self._calls
        if not is_traced:
            calls.recent.clear()
            return
        calls.recent.append(True)
        if len(calls.recent) == _WINDOW and calls.warnings < _WARNINGS:
            calls.warnings += 1
            place = here()
            warnings.warn_explicit(self._warning(), UserWarning, place.file, place.line)

    def trace(self, request: Request, names: list[str]) -> None:
        """Notes a trace."""
        if self._known:
            changes = self._changes(request, names)
            self._retraces.append(Retrace(str(here()), changes))
        self._known.append((request, names))
        del self._known[:-8]
        del self._retraces[:-256]

    def explanation(self) -> RetraceExplanation:
        return RetraceExplanation(self._name, self._retraces)

    def _warning(self) -> str:
        reason = (
            "; ".join(self._retraces[-1].changes)
            if self._retraces
            else "the function was decorated again: decorate it once, outside of the loop"
        )
        return (
            f"{_WINDOW} of the last {_WINDOW} calls of {self._name} were traced, which is slow. "
            f"The last time, {reason}. Pass tensors in place of Python numbers, use "
            "reduce_retracing=True or an input_signature with None for sizes that vary"
        )

    def _changes(self, request: Request, names: list[str]) -> tuple[str, ...]:
        """The differences from the most similar trace."""
        best: tuple[str, ...] | None = None
        for known, _ in reversed(self._known):
            found = _differences(known, request, names)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
        return best if best is not None else ("the structure of the arguments changed",)


def _differences(old: Request, new: Request, names: list[str]) -> tuple[str, ...] | None:
    if old.structure != new.structure:
        return None
    rows = zip(names, old.keys, new.keys, old.leaves, new.leaves, strict=True)
    return tuple(
        f"argument {name!r} was {_text(old_key, old_leaf)} and is now {_text(new_key, new_leaf)}"
        for name, old_key, new_key, old_leaf, new_leaf in rows
        if old_key != new_key
    )


def _text(key: Any, leaf: Any) -> str:
    if isinstance(key, TensorType):
        return str(key)
    if isinstance(key, ObjectKey):
        return f"another {key.text}"
    text = repr(leaf)
    return text if len(text) <= 40 else text[:37] + "..."
