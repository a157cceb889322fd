"""Python values and structures as JSON: only data, and nothing that would have to be imported.

None, booleans, integers and strings represent themselves. Everything else is an object with one
name, which says what it is:

    {"float": "2.5"}  {"complex": ["0.0", "1.0"]}  {"bytes": "00ff"}  {"int": "9007199254740993"}
    {"scalar": "f32 2.5"}  {"dtype": "f32"}  {"type": "f32[n,4]"}  {"shape": [null, 4]}
    {"spec": {"shape": [null, 4], "dtype": "f32", "name": null}}
    {"list": [...]}  {"tuple": [...]}  {"dict": [[key, value], ...]}  {"ordered_dict": [...]}
    {"default_dict": {"default": "list", "items": [[key, value], ...]}}
    {"namedtuple": {"name": "Point", "fields": [["x", ...], ["y", ...]]}}  {"dataclass": ...}

Each value has one form, so rewriting what was read gives the same text. A namedtuple or dataclass
is restored with the same name and fields: its class is not looked up. Encodings that a caller adds,
such as for Variables, have names of the caller's own.
"""

from __future__ import annotations

import collections
import dataclasses
import keyword
import re
import types
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegraph.archive import limits
from tracegraph.archive.layouts import LAYOUT_FIELDS, read_layout, written_layout
from tracegraph.archive.manifest import Entry, excerpt, has_surrogates
from tracegraph.core.shapes import Dim
from tracegraph.core.tensorshape import TensorShape, TensorSpec
from tracegraph.core.types import BY_SHORT, DType, TensorType, as_dtype, token
from tracegraph.errors import shown
from tracegraph.text.literals import LiteralReader, read_size, read_type, value_text

#: Integers beyond this are written as text.
_WIDEST = 2**53


class NoData(Exception):
    """A value that is not data: no file can hold it."""


_INT = re.compile("-?[1-9][0-9]*")

#: Encodes values specific to a caller; raises NoData for anything else.
Special = Callable[[Any], Any]
#: Encodes an item of a container, or a key of a dict if the flag is set.
Inside = Callable[[Any, bool], Any]


def _no_special(value: Any) -> Any:
    raise NoData(value)


#: Dict classes fully described by their entries, with the names of their encodings.
_DICTS = {
    **dict.fromkeys([dict, collections.UserDict, types.MappingProxyType], "dict"),
    collections.Counter: "dict",
    collections.OrderedDict: "ordered_dict",
    collections.defaultdict: "default_dict",
}
#: What may give the value of a missing key of a defaultdict; another factory is not kept.
_DEFAULTS = {
    kind.__name__: kind for kind in (bool, bytes, complex, dict, float, int, list, set, str, tuple)
}


def encoded(value: Any, special: Special = _no_special, inside: Inside | None = None) -> Any:
    """The JSON of a value. Raises NoData for anything that is not data, and for such items inside
    it unless `inside` substitutes something else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_text(value)
    write = _SCALARS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    enter = inside or (lambda item, is_key: encoded(item, special))
    if type(value) in (list, tuple):
        name = "list" if type(value) is list else "tuple"
        return {name: [enter(item, False) for item in value]}
    if type(value) in _DICTS:
        items = [[enter(key, True), enter(item, False)] for key, item in value.items()]
        return _dict_of(value, items)
    kind = record_kind(value)
    try:
        return special(value)  # a dataclass may be a Module
    except NoData:
        if kind is None:
            raise
    rows = record_fields(value)
    if record_problem(kind, type(value).__name__, [name for name, _ in rows]):
        raise NoData(value)
    fields = [[name, enter(item, False)] for name, item in rows]
    return {kind: {"name": type(value).__name__, "fields": fields}}


def _dict_of(value: Any, items: list[list[Any]]) -> Any:
    """A dict of one of the known classes, given its items."""
    name = _DICTS[type(value)]
    if name != "default_dict":
        return {name: items}
    default = value.default_factory
    known = next((text for text, kind in _DEFAULTS.items() if kind is default), None)
    return {name: {"default": known, "items": items}}


def _numpy_scalar(value: np.generic) -> Any:
    try:
        as_dtype(value.dtype)
    except TypeError:
        raise NoData(value) from None
    return {"scalar": value_text(np.asarray(value), {})}


def _checked_text(value: str) -> str:
    if has_surrogates(value):
        raise NoData(value)
    return str(value)


def _int(value: int) -> Any:
    if abs(value) < _WIDEST:
        return value
    if abs(value) >= 10 ** (limits.MOST_DIGITS - 1):
        raise NoData(value)
    return {"int": str(value)}


def _spec(spec: TensorSpec) -> Any:
    row = {**_shape(spec.shape), "dtype": spec.dtype.short, "name": spec.name}
    return {"spec": {**row, **written_layout(spec.layout)}}


def _shape(shape: TensorShape) -> Any:
    if shape.rank is None:
        return {"shape": None}
    return {"shape": [str(n) if isinstance(n, Dim) else n for n in shape]}


_SCALARS: dict[type, Callable[[Any], Any]] = {
    int: _int,
    float: lambda value: {"float": repr(value)},
    complex: lambda value: {"complex": [repr(value.real), repr(value.imag)]},
    bytes: lambda value: {"bytes": value.hex()},
    DType: lambda value: {"dtype": value.short},
    TensorType: lambda value: {"type": str(value)},
    TensorSpec: _spec,
    TensorShape: _shape,
}


def record_kind(value: Any) -> str | None:
    """Whether a value is a namedtuple or a dataclass instance."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "namedtuple"
    return "dataclass" if dataclasses.is_dataclass(value) and not isinstance(value, type) else None


def record_fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of a namedtuple or dataclass, in their order."""
    if isinstance(value, tuple):
        return list(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def record_problem(kind: str, name: str, fields: Sequence[str]) -> str:
    """Why no namedtuple or dataclass can have this name and these fields; empty if one can."""
    if len(fields) > limits.MOST_FIELDS:
        return f"it has {len(fields)} fields, more than {limits.MOST_FIELDS}"
    for text in (name, *fields):
        if not _is_name(text):
            return f"{excerpt(text)} is not a name"
    if len(set(fields)) < len(fields):
        return "two fields have one name"
    hidden = "_" if kind == "namedtuple" else "__"  # names that the classes reserve
    wrong = [text for text in fields if text.startswith(hidden)]
    return f"no field can be called {wrong[0]}" if wrong else ""


def _is_name(text: str) -> bool:
    """Whether a string is an identifier, in Python's canonical form."""
    is_plain = text.isidentifier() and not keyword.iskeyword(text) and len(text) <= 200
    return is_plain and unicodedata.is_normalized("NFKC", text)


class Records:
    """The namedtuple and dataclass classes restored so far: one for each name and fields."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, str, tuple[str, ...]], type] = {}

    def find(self, kind: str, name: str, fields: tuple[str, ...]) -> type | None:
        """The class that was created for these, if any."""
        return self._classes.get((kind, name, fields))

    def make(self, kind: str, name: str, fields: tuple[str, ...]) -> type | None:
        """The only class for these; None if there are too many."""
        found = self.find(kind, name, fields)
        if found is None and len(self._classes) < limits.MOST_RECORDS:
            if kind == "namedtuple":
                found = collections.namedtuple(name, fields)
            else:
                found = dataclasses.make_dataclass(name, fields)
            self._classes[kind, name, fields] = found
        return found


class Decoder:
    """Reads what `encoded` wrote; `special` maps each of the caller's own names to its reader."""

    def __init__(
        self,
        records: Records | None = None,
        special: Mapping[str, Callable[[Entry], Any]] | None = None,
    ) -> None:
        self.records = records or Records()
        self._readers: dict[str, Callable[[Entry], Any]] = {
            "int": _read_int,
            "float": _read_float,
            "complex": lambda e: complex(*map(_read_float, e.items(2))),
            "bytes": _read_bytes,
            "scalar": _read_scalar,
            "dtype": lambda e: e.choice(BY_SHORT),
            "type": read_tensor_type,
            "spec": _read_spec,
            "shape": lambda e: TensorShape(_sizes(e)),
            "list": lambda e: e.each(self.read),
            "tuple": lambda e: tuple(e.each(self.read)),
            "dict": self._dict,
            "ordered_dict": lambda e: collections.OrderedDict(self._dict(e)),
            "default_dict": self._default_dict,
            "namedtuple": lambda e: self._record("namedtuple", e),
            "dataclass": lambda e: self._record("dataclass", e),
            **(special or {}),
        }

    def read(self, entry: Entry) -> Any:
        """The value of an entry. Raises LoadError for what `encoded` never writes."""
        value = entry.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return entry.text()
        if isinstance(value, int):
            if abs(entry.integer()) >= _WIDEST:
                entry.fail(f'the integer {value} is written {{"int": "{value}"}}')
            return value
        pairs = entry.pairs()
        if len(pairs) != 1:
            entry.fail(f"a value is an object with one name, and this one has {len(pairs)}")
        ((name, inner),) = pairs.items()
        reader = self._readers.get(name)
        if reader is None:
            entry.fail(f"there is no kind of value {excerpt(name)}")
        return reader(inner)

    def _dict(self, entry: Entry) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for row in entry.items():
            key, value = map(self.read, row.items(2))
            try:
                is_twin = key in found
            except TypeError:
                row.fail("the key has no hash")
            if is_twin:
                row.fail(f"the key {shown(key)} is given twice")
            found[key] = value
        return found

    def _default_dict(self, entry: Entry) -> collections.defaultdict[Any, Any]:
        default, items = entry.fields("default", "items")
        factory = default.optional(lambda e: e.choice(_DEFAULTS))
        return collections.defaultdict(factory, self._dict(items))

    def _record(self, kind: str, entry: Entry) -> Any:
        name_entry, fields_entry = entry.fields("name", "fields")
        rows = [row.items() for row in fields_entry.items()]
        if any(len(row) != 2 for row in rows):
            fields_entry.fail("each field is a list of a name and a value")
        name, names = name_entry.text(), tuple(row[0].text() for row in rows)
        problem = record_problem(kind, name, names)
        if problem:
            entry.fail(problem)
        cls = self.records.make(kind, name, names)
        if cls is None:
            entry.fail(
                f"there are more than {limits.MOST_RECORDS} kinds of namedtuples and dataclasses"
            )
        return cls(*[self.read(row[1]) for row in rows])


def _read_int(entry: Entry) -> int:
    text = entry.text()
    if not _INT.fullmatch(text):
        entry.fail(f"{excerpt(text)} is not an integer")
    if len(text) > limits.MOST_DIGITS:
        entry.fail(f"the integer has {len(text)} digits, more than {limits.MOST_DIGITS}")
    if abs(int(text)) < _WIDEST:
        entry.fail(f"the integer {text} is written without quotes")
    return int(text)


def _read_float(entry: Entry) -> float:
    text = entry.text()
    try:
        found = float(text)
    except ValueError:
        entry.fail(f"{excerpt(text)} is not a number")
    if repr(found) != text:
        entry.fail(f"the number {excerpt(text)} is written {found!r}")
    return found


def _read_bytes(entry: Entry) -> bytes:
    text = entry.text()
    if len(text) % 2 or not set(text) <= set("0123456789abcdef"):
        entry.fail(f"{excerpt(text)} are not bytes in hexadecimal digits")
    return bytes.fromhex(text)


def _read_scalar(entry: Entry) -> np.generic:
    found = entry.tried(LiteralReader(entry.text(), {}).value)
    if not isinstance(found, np.ndarray) or found.ndim or value_text(found, {}) != entry.text():
        entry.fail(f"{excerpt(entry.text())} is not a scalar, such as 'f32 2.5'")
    return found.reshape(-1)[0]


def read_tensor_type(entry: Entry) -> TensorType:
    """A type such as "f32[n,4]"."""
    found = entry.tried(lambda: read_type(entry.text()))
    if str(found) != entry.text():
        entry.fail(f"the type {excerpt(entry.text())} is written {found}")
    return found


def _read_spec(entry: Entry) -> TensorSpec:
    shape, dtype, name, layout = entry.fields("shape", "dtype", "name", optional=LAYOUT_FIELDS)
    if dtype.choice(BY_SHORT) is token:
        dtype.fail("no tensor is a token")
    spec = TensorSpec(_sizes(shape), dtype.choice(BY_SHORT), name.optional(Entry.text))
    if layout.is_null:
        return spec
    return TensorSpec(spec.shape, spec.dtype, spec.name, read_layout(layout, spec.open_type))


def _sizes(entry: Entry) -> list[Any] | None:
    return None if entry.is_null else [_size(size) for size in entry.axes()]


def _size(entry: Entry) -> Any:
    if entry.is_null:
        return None
    if not isinstance(entry.value, str):
        return entry.count()
    size = entry.tried(lambda: read_size(entry.text()))
    if not isinstance(size, Dim) or str(size) != entry.text():
        entry.fail(f"the size {excerpt(entry.text())} is written {size}")
    return size.name or size
