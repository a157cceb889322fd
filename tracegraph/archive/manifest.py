"""Untrusted JSON: parsed strictly, and taken apart with errors that name the place.

It refuses what Python's parser accepts: duplicate names in an object, non-finite numbers, integers
beyond 64 bits, invalid unicode, and unlimited nesting. The last line is a checksum of everything
above it, so that no damage goes unnoticed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from tracegraph.archive import limits
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import MOST_AXES
from tracegraph.errors import LoadError, Mismatch, SignatureError, fail

#: The widest integer.
_WIDEST = 2**63
#: The most bytes of a manifest.
LARGEST = limits.MANIFEST_BYTES
#: The most characters of a name that a message shows.
_SHOWN = 60

#: Written lines are no longer than this, where they can be broken.
_WIDEST_LINE = 100

_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}

T = TypeVar("T")


def written(content: Mapping[str, Any]) -> bytes:
    """The JSON text of an object, identical in every process: what fits is on one line, otherwise
    each entry starts a line. The last line is the checksum.

    Raises SignatureError for content that `read` would refuse.
    """
    problem = _too_deep(content)
    rows = [] if problem else [f"{_one_line(k)}: {_lines(v, ' ')}" for k, v in content.items()]
    data = ("{\n " + "".join(f"{row},\n " for row in rows)).encode()[:-1]
    problem = problem or _too_large(data)
    if problem:
        fail(SignatureError, f"what is saved {problem}", fix="save it in parts")
    return data + _seal(data)


def _seal(data: bytes) -> bytes:
    return b' "checksum": "' + hashlib.sha256(data).hexdigest().encode() + b'"\n}\n'


_SEAL = len(_seal(b""))


def head(entry: Entry) -> dict[str, Entry]:
    """The entries of a manifest. Raises LoadError if a field that every format has is missing."""
    fields = entry.pairs()
    for name in ("format", "version"):
        if name not in fields:
            entry.fail(f"the field {name!r} is missing")
    return fields


def check_version(fields: Mapping[str, Entry], version: int) -> None:
    """Raises LoadError for a later version of a format than the one read here. The rest of such a
    file is unknown, and is not inspected."""
    found = fields["version"].count()
    if found > version:
        producer = fields.get("producer")
        by = f", written by {_plain(producer.value)}," if producer is not None else ""
        fields["version"].fail(
            f"the format has version {found}{by} and this tracegraph reads up to {version}",
            fix="install a newer tracegraph",
        )
    if found < 1:
        fields["version"].fail("there is no version 0")


def _plain(value: Any) -> str:
    """A name as messages show it, with unprintable characters escaped."""
    text = str(value)[:_SHOWN]
    return text if text.isprintable() else repr(text)


def _too_large(data: bytes) -> str:
    """Which limit a JSON text exceeds; empty if none."""
    if len(data) > limits.MANIFEST_BYTES:
        return f"has {len(data)} bytes, more than any manifest"
    if sum(map(data.count, (b",", b"[", b"{"))) > limits.MOST_VALUES:
        return f"has more than {limits.MOST_VALUES} values"
    return ""


def _too_deep(value: Any) -> str:
    layer = [value]
    for _ in range(limits.DEEPEST):
        layer = [x for value in layer for x in _items(value)]
        if not layer:
            return ""
    return f"is nested more than {limits.DEEPEST} deep"


def _lines(value: Any, indent: str) -> str:
    text = _one_line(value)
    if len(indent) + len(text) <= _WIDEST_LINE or not isinstance(value, (dict, list)) or not value:
        return text
    inner = indent + " "
    if isinstance(value, dict):
        rows = [f"{_one_line(name)}: {_lines(item, inner)}" for name, item in value.items()]
        begin, end = "{", "}"
    else:
        rows = [_lines(item, inner) for item in value]
        begin, end = "[", "]"
    body = f",\n{inner}".join(rows)
    return f"{begin}\n{inner}{body}\n{indent}{end}"


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read(data: bytes, file: str) -> Entry:
    """The value of a JSON text. Raises LoadError, naming `file` and the place of the error."""
    problem = _too_large(data)
    if problem:
        fail(LoadError, f"{file} {problem}", fix=SAVE_AGAIN)
    try:
        text = data.decode()
        value = json.loads(
            text, object_pairs_hook=_without_twins, parse_constant=_refuse, parse_int=_integer
        )
    except outside_interrupts(UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        fact = f"{file} is not JSON: {reason}"
        fail(LoadError, fact, fix=SAVE_AGAIN, cause=error)
    problem = _too_deep(value)
    if problem:
        fail(LoadError, f"{file} {problem}", fix=SAVE_AGAIN)
    return Entry(value, file)


def unsealed(data: bytes, entry: Entry) -> Entry:
    """The value parsed from `data`, without its checksum. Raises LoadError if it was altered."""
    head, seal = data[:-_SEAL], data[-_SEAL:]
    if seal != _seal(head):
        fail(
            LoadError,
            f"{entry.file} was changed: its checksum does not match its contents",
            fix=SAVE_AGAIN,
        )
    rest = {name: value for name, value in entry.value.items() if name != "checksum"}
    return Entry(rest, entry.file)


SAVE_AGAIN = "the file is damaged, or was not written by tracegraph: save it again"


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {excerpt(twin)} is given twice in one object")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _integer(text: str) -> int:
    if len(text) > len(str(-_WIDEST)) or not -_WIDEST <= int(text) < 2 * _WIDEST:
        raise ValueError(f"the integer {text[:30]} has more than 64 bits")
    return int(text)


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class Entry:
    """A value in a manifest, and its place: every accessor checks what it returns."""

    __slots__ = ("file", "place", "value")

    def __init__(self, value: Any, file: str, place: str = "$") -> None:
        self.value = value
        self.file = file
        self.place = place

    def fail(
        self, fact: str, fix: str = SAVE_AGAIN, cause: BaseException | None = None
    ) -> NoReturn:
        """Raises the LoadError for a fault at this place."""
        fact = f"{self.file}: {self.place}: {fact}"
        fail(LoadError, fact, fix=fix, cause=cause)

    def tried(self, read: Callable[[], T]) -> T:
        """What `read` returns; a Mismatch that it raises is a fault at this place."""
        try:
            return read()
        except Mismatch as mismatch:
            self.fail(mismatch.fact, cause=mismatch)

    def _of(self, kind: type[T]) -> T:
        if type(self.value) is not kind:
            self.fail(f"it is {_KINDS[type(self.value)]}, and it must be {_KINDS[kind]}")
        return self.value

    def text(self) -> str:
        """A valid unicode string."""
        found = self._of(str)
        if has_surrogates(found):
            self.fail("the string holds half of a pair of surrogates")
        return found

    def label(self) -> str:
        """A string that names something."""
        found = self.text()
        problem = label_problem(found)
        if problem:
            self.fail(f"the name {excerpt(found)} {problem}")
        return found

    def flag(self) -> bool:
        return self._of(bool)

    def count(self, most: int = _WIDEST) -> int:
        """An integer from 0 to below `most`."""
        found = self._of(int)
        if not 0 <= found < most:
            self.fail(f"it is {found}, and it must be from 0 to {most - 1}")
        return found

    def integer(self) -> int:
        return self._of(int)

    def choice(self, choices: Mapping[str, T]) -> T:
        """The value that the string selects."""
        found = self.text()
        if found not in choices:
            self.fail(f"it is {excerpt(found)}, and it must be one of {_listed(choices)}")
        return choices[found]

    @property
    def is_null(self) -> bool:
        return self.value is None

    def optional(self, ask: Callable[[Entry], T]) -> T | None:
        """None for null, else the result of `ask`."""
        return None if self.is_null else ask(self)

    def items(self, count: int | None = None) -> list[Entry]:
        """The entries of a list, of this length if one is given."""
        found = self._of(list)
        if count not in (None, len(found)):
            self.fail(f"it has {len(found)} entries, and it must have {count}")
        return [Entry(item, self.file, f"{self.place}[{i}]") for i, item in enumerate(found)]

    def each(self, ask: Callable[[Entry], T]) -> list[T]:
        """The result of `ask` for each entry of a list."""
        return [ask(item) for item in self.items()]

    def axes(self) -> list[Entry]:
        """The entries of a list that is a shape."""
        found = self.items()
        if len(found) > MOST_AXES:
            self.fail(f"it has {len(found)} axes, more than {MOST_AXES}")
        return found

    def pairs(self) -> dict[str, Entry]:
        """The entries of an object by name."""
        found = self._of(dict)
        return {name: Entry(item, self.file, self._inside(name)) for name, item in found.items()}

    def fields(self, *names: str, optional: tuple[str, ...] = ()) -> list[Entry]:
        """The entries of an object that must have these names, may have the `optional` ones, which
        are null if missing, and has no others."""
        found = self.pairs()
        for name in names:
            if name not in found:
                self.fail(f"the field {name!r} is missing")
        for name in found:
            if name not in names and name not in optional:
                self.fail(f"the field {excerpt(name)} is not known")
        missing = Entry(None, self.file, self.place)
        return [found.get(name, missing) for name in (*names, *optional)]

    def _inside(self, name: str) -> str:
        is_plain = name.isidentifier() and len(name) <= _SHOWN
        return f"{self.place}.{name}" if is_plain else f"{self.place}[{excerpt(name)}]"


def has_surrogates(text: str) -> bool:
    """Whether a string contains surrogate halves, which no file can hold."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def label_problem(name: str) -> str:
    """Why a string is not a valid name; empty if it is. Two names that look alike count as the
    same."""
    if not name:
        return "is empty"
    if len(name) > limits.LONGEST_NAME:
        return f"has more than {limits.LONGEST_NAME} letters"
    if not name.isprintable():
        return "holds letters that do not print"
    return "" if unicodedata.is_normalized("NFC", name) else "is written in several ways"


def excerpt(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _listed(names: Iterable[str]) -> str:
    few = list(itertools.islice(names, 13))
    shown = [name if name.isprintable() and len(name) <= _SHOWN else excerpt(name) for name in few]
    return ", ".join(shown[:12]) + (" and others" if len(few) > 12 else "") or "nothing"
