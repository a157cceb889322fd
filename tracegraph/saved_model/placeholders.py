"""Placeholders for values that no file can hold, in the file and after loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from tracegraph.archive.manifest import label_problem
from tracegraph.archive.value_encoding import record_fields, record_kind
from tracegraph.core.tensorshape import TensorShape
from tracegraph.errors import TraceError, fail, kind_of
from tracegraph.saved_model.names import is_special, joined
from tracegraph.state.module import Module


class NotSaved:
    """Replaces a value that no file can hold in a list, a dict or a default, so that positions and
    keys stay the same. Using it raises an error that says what it was."""

    def __init__(self, what: str) -> None:
        self._what = what

    @property
    def _fact(self) -> str:
        return f"this was {self._what}, which no file can hold: it was not saved"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(TraceError, self._fact, fix="put it back into its place after loading")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError("it is empty" if is_special(name) else self._fact)

    def __repr__(self) -> str:
        return f"<{self._what}, which was not saved>"


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """The items of a container, by key, index or field; None if it is not a container."""
    if isinstance(value, Mapping) and not isinstance(value, Module):
        return list(value.items())
    if isinstance(value, (list, tuple)) and not isinstance(value, TensorShape):
        return record_fields(value) if record_kind(value) else list(enumerate(value))
    if record_kind(value) and not isinstance(value, Module):
        return record_fields(value)
    return None


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a value and of its containers, by path."""
    rows = entries(value)
    if rows is None:
        yield path, value
        return
    for name, item in rows:
        yield from leaves(joined(path, name), item)


def not_saved_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The values left out of a list or dict, by path."""
    for inner, leaf in leaves(path, value):
        if isinstance(leaf, NotSaved):
            yield inner, vars(leaf)["_what"]


def opaque(value: Any) -> dict[str, str]:
    """The JSON that replaces a value that is not data."""
    return {"opaque": described(value)}


def described(value: Any) -> str:
    """A description of a value that is not data."""
    if isinstance(value, NotSaved):
        return vars(value)["_what"]
    if type(value) in (*PLAIN_ARRAYS, np.ma.MaskedArray):
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else "an array"
        return f"{kind} of {value.dtype.name or value.dtype.kind}"
    text = kind_of(value)
    return "an object" if label_problem(text) else text


#: Plain array classes; others, such as masked arrays, hold more than an array.
PLAIN_ARRAYS = (np.ndarray, np.memmap)


def has_hash(entry: Any) -> bool:
    """Whether the object loaded from a value's JSON can be a dict key."""
    if not isinstance(entry, dict):
        return True
    ((kind, inner),) = entry.items()
    if kind in ("tuple", "namedtuple"):
        items = inner if kind == "tuple" else [item for _, item in inner["fields"]]
        return all(map(has_hash, items))
    return kind not in _WITHOUT_HASH


_WITHOUT_HASH = ("list", "dict", "ordered_dict", "default_dict", "dataclass", "array", "variable")
