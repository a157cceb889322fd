"""Attributes and items that code of the user's own sets.

The state of a statement is set back to what was read before each branch and iteration. So a setter
must store what reading gives: `self.v = 2 * value` would double the state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tracegraph.autograph.statements.values import SetUnlessLeft, is_undefined
from tracegraph.control_flow.set_while_tracing import changed_by
from tracegraph.core.source import is_ours
from tracegraph.errors import SignatureError, fail


def item_of(owner: Any, key: Any) -> Any:
    """The state of an item. Raises LookupError where no item can be set, so that none is state,
    and SignatureError for an item that cannot be set back."""
    setter = getattr(type(owner), "__setitem__", None)
    if setter is None or is_undefined(owner):
        raise LookupError(key)
    value = owner[key]
    if _is_users(setter):
        _check(setter, owner, value, lambda: setter(owner, key, value))
    return value


def check_attribute(owner: Any, name: str, value: Any) -> None:
    """Raises SignatureError for an attribute, which has this value, that cannot be set back."""
    kind = type(owner)
    held = inspect.getattr_static(kind, name, None)
    setter = held.fset if isinstance(held, property) else getattr(type(held), "__set__", None)
    for code in (setter, kind.__setattr__):
        if _is_users(code):
            _check(code, owner, value, lambda: setattr(owner, name, value))
            return


def _is_users(setter: Any) -> bool:
    return isinstance(setter, FunctionType) and not is_ours(setter.__code__.co_filename)


def _check(setter: Any, owner: Any, value: Any, set_again: Callable[[], None]) -> None:
    """Raises SignatureError if setting what was read changes what the object holds."""
    if isinstance(value, SetUnlessLeft):
        return
    kind = type(owner).__name__
    if found := changed_by(kind, owner, set_again):
        fail(
            SignatureError,
            f"{setter.__name__} of {kind} sets state of a branch or a loop that a tensor decides "
            f"about, which cannot be set back: setting what was read changes {found[0]}",
            fix=f"set what it stores in the statement itself, such as {found[0]}",
        )


__all__ = ["check_attribute", "item_of"]
