"""What converted code sets: states of attributes, and names that an expression must not set."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from tracegraph.autograph.changes.objects import objects_kept, refuse_set
from tracegraph.autograph.changes.setters import check_attribute
from tracegraph.autograph.statements.values import content, raw_content, without_flags
from tracegraph.core.source import is_ours
from tracegraph.errors import SignatureError, fail


def state_of(owner: Any, name: str) -> Any:
    """The state of an attribute. That of a property is what its setter stores: setting it to what
    it returns may store something else. Raises SignatureError for one that cannot be set back."""
    stored = _stored(owner, name)
    if not stored:
        value = getattr(owner, name)
        check_attribute(owner, name, value)
        return value
    return {x: getattr(owner, x) for x in stored if hasattr(owner, x)}


def set_state(owner: Any, name: str, state: Any) -> None:
    """Sets an attribute to a state of it."""
    stored, value = _stored(owner, name), without_flags(state)
    if not stored:
        setattr(owner, name, state)
        return
    for x in stored:
        if x in value:
            is_flagged = value is not state
            setattr(
                owner, x, dataclasses.replace(state, value=value[x]) if is_flagged else value[x]
            )
        elif hasattr(owner, x):
            delattr(owner, x)


def names_stored(body: Any, names: Sequence[str]) -> Iterator[str]:
    """The attributes that the setters of properties among the names of a body store."""
    code = getattr(body, "__code__", None)
    cells = dict(zip(code.co_freevars, body.__closure__ or ())) if code is not None else {}
    for path, dot, attribute in (name.rpartition(".") for name in names):
        first, *rest = path.split(".")
        if dot and first in cells:
            with contextlib.suppress(AttributeError, ValueError):  # not set, or an item
                owner = functools.reduce(getattr, rest, content(cells[first]))
                yield from (f"{path}.{x}" for x in _stored(owner, attribute))


def _stored(owner: Any, name: str) -> tuple[str, ...]:
    """The attributes that the setter of a property stores, if it only sets its object's own."""
    found = getattr(type(owner), name, None)
    setter = found.fset if isinstance(found, property) else None
    if not isinstance(setter, FunctionType) or is_ours(setter.__code__.co_filename):
        return ()
    return _stored_by(setter.__code__)


@functools.lru_cache(maxsize=1024)
def _stored_by(setter: CodeType) -> tuple[str, ...]:
    stored: list[str] = []
    for before, step in itertools.pairwise(dis.get_instructions(setter)):
        if step.opname == "STORE_ATTR":
            loaded = before.argval if isinstance(before.argval, tuple) else (before.argval,)
            if not before.opname.startswith("LOAD_FAST") or loaded[-1] != setter.co_varnames[0]:
                return ()
            stored.append(step.argval)
    return (*dict.fromkeys(stored),)


@contextlib.contextmanager
def names_kept(part: Callable[[], Any], name: str) -> Iterator[None]:
    """A context in which the functions that a part of an expression calls must not set names around
    them, nor attributes: an expression has no state. `name` is that of its value."""
    before = [*_cells_reached(part, set())]
    with objects_kept(part, (), is_loop=False) as attributes:
        yield
        changed = [(cell, of, old) for cell, of, old in before if raw_content(cell) is not old]
        for cell, _, old in changed:
            cell.cell_contents = old
        if changed:
            fail(
                SignatureError,
                f"a function called in {name} sets {changed[0][1]!r}; this part is traced once, "
                "whatever value the tensor has",
                fix=_APART,
            )
    refuse_set(attributes, f"a method or a function called in {name} sets", _APART)


_APART = "call it in an `if` of its own, and use a name that the `if` sets"


def _cells_reached(function: Any, seen: set[int]) -> Iterator[tuple[CellType, str, Any]]:
    """The cells of a function and of the functions in them, with their names and contents."""
    seen.add(id(function))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        inside = raw_content(cell)
        yield cell, name, inside
        if isinstance(inside, FunctionType) and id(inside) not in seen:
            yield from _cells_reached(inside, seen)
