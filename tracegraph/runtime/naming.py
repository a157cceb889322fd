"""Name scopes: prefixes for the names of what is made inside them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


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
    _scopes.names.append(name)
    try:
        yield "/".join(_scopes.names) + "/"
    finally:
        _scopes.names.pop()


def scoped_name(name: str) -> str:
    """`name` within the scopes that are open."""
    return "/".join([*_scopes.names, name])
