"""Name scopes: prefixes for the names of what is made inside them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tracegraph.errors import DTypeError, fail, kind_of, shown
from tracegraph.source import here


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_scopes = _Scopes()


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """A context in which the names of Variables begin with `name/`.

    >>> with tg.name_scope("encoder"):
    ...     w = tg.Variable(1.0, name="w")
    >>> w.name
    'encoder/w:0'
    """
    _scopes.names.append(checked_name(name))
    try:
        yield "/".join(_scopes.names) + "/"
    finally:
        _scopes.names.pop()


def scoped_name(name: str) -> str:
    """`name` within the scopes that are open."""
    return "/".join([*_scopes.names, checked_name(name)])


def checked_name(name: Any) -> str:
    """The name itself. Raises DTypeError if it is no string."""
    if isinstance(name, str):
        return name
    fact = f"a name is a string, and {shown(name)} is {kind_of(name)}"
    fail(DTypeError, fact, source=here(), fix='use a string, such as name="w"')
