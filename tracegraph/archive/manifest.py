"""JSON that is not trusted: read strictly, and taken apart with errors that name the place.

What Python's reader lets pass is refused: a name that is given twice in one object, numbers that
are not finite, integers beyond 64 bits, texts that are not unicode, and nesting without end. The
last line is a checksum of all that stands above it, so that no damage is read as something else.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from tracegraph.archive import limits
from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.shapes import MOST_AXES
from tracegraph.errors import LoadError, SignatureError, fail

#: The widest integer.
_WIDEST = 2**63
#: The most bytes of a manifest.
LARGEST = limits.MANIFEST_BYTES
#: The most that a message shows of a name.
_SHOWN = 60

#: Lines that are written are no longer than this where they can be divided.
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
    """The JSON text of an object, the same for the same one in every process: what fits stands on
    one line, and of what does not, each entry begins a line. The last one is the checksum.

    Raises SignatureError for what `read` would refuse.
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
    """The entries of a manifest. Raises LoadError where what every format has is missing."""
    fields = entry.pairs()
    for name in ("format", "version"):
        if name not in fields:
            entry.fail(f"the field {name!r} is missing")
    return fields


def check_version(fields: Mapping[str, Entry], version: int) -> None:
    """Raises LoadError for a version of a format that came after the one that is read here. What
    else such a file holds is not known, and is not looked at."""
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
    """A name as messages show it: what does not print is escaped."""
    text = str(value)[:_SHOWN]
    return text if text.isprintable() else repr(text)


def _too_large(data: bytes) -> str:
    """What is too much of a JSON text to be read; nothing if it is not."""
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
    """The value of a JSON text. Raises LoadError that names `file` and where it is wrong."""
    problem = _too_large(data)
    if problem:
        fail(LoadError, f"{file} {problem}", fix=SAVE_AGAIN)
    try:
        text = data.decode()
        value = json.loads(
            text, object_pairs_hook=_without_twins, parse_constant=_refuse, parse_int=_integer
        )
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        if is_of_interrupt(error):
            raise
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        fact = f"{file} is no JSON: {reason}"
        fail(LoadError, fact, fix=SAVE_AGAIN, cause=error)
    problem = _too_deep(value)
    if problem:
        fail(LoadError, f"{file} {problem}", fix=SAVE_AGAIN)
    return Entry(value, file)


def unsealed(data: bytes, entry: Entry) -> Entry:
    """What was read of `data`, without its checksum. Raises LoadError where it was changed."""
    head, seal = data[:-_SEAL], data[-_SEAL:]
    if seal != _seal(head):
        fail(
            LoadError,
            f"{entry.file} was changed: its checksum is not that of what it holds",
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
    """A value in a manifest, and its place: each question checks what it returns."""

    __slots__ = ("file", "place", "value")

    def __init__(self, value: Any, file: str, place: str = "$") -> None:
        self.value = value
        self.file = file
        self.place = place

    def fail(
        self, fact: str, fix: str = SAVE_AGAIN, cause: BaseException | None = None
    ) -> NoReturn:
        """Raises the LoadError of something wrong at this place."""
        fact = f"{self.file}: {self.place}: {fact}"
        fail(LoadError, fact, fix=fix, cause=cause)

    def _of(self, kind: type[T]) -> T:
        if type(self.value) is not kind:
            self.fail(f"it is {_KINDS[type(self.value)]}, and it must be {_KINDS[kind]}")
        return self.value

    def text(self) -> str:
        """A string of unicode."""
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
        """What the string stands for."""
        found = self.text()
        if found not in choices:
            self.fail(f"it is {excerpt(found)}, and it must be one of {_listed(choices)}")
        return choices[found]

    @property
    def is_null(self) -> bool:
        return self.value is None

    def optional(self, ask: Callable[[Entry], T]) -> T | None:
        """None for null, else what `ask` makes of it."""
        return None if self.is_null else ask(self)

    def items(self) -> list[Entry]:
        """The entries of a list."""
        rows = enumerate(self._of(list))
        return [Entry(item, self.file, f"{self.place}[{i}]") for i, item in rows]

    def two(self) -> tuple[Entry, Entry]:
        """The entries of a list that has two."""
        items = self.items()
        if len(items) != 2:
            self.fail(f"it has {len(items)} entries, and it must have 2")
        return items[0], items[1]

    def each(self, ask: Callable[[Entry], T]) -> list[T]:
        """What `ask` makes of each entry of a list."""
        return [ask(item) for item in self.items()]

    def axes(self) -> list[Entry]:
        """The entries of a list that is a shape."""
        found = self.items()
        if len(found) > MOST_AXES:
            self.fail(f"it has {len(found)} axes, more than {MOST_AXES}")
        return found

    def pairs(self) -> dict[str, Entry]:
        """The entries of an object by their names."""
        found = self._of(dict)
        return {name: Entry(item, self.file, self._inside(name)) for name, item in found.items()}

    def fields(self, *names: str, optional: tuple[str, ...] = ()) -> list[Entry]:
        """The entries of an object that must have these names, may have the `optional` ones,
        which are null where they are missing, and has no others."""
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
    """Whether a string holds halves of surrogate pairs, which no file can hold."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def label_problem(name: str) -> str:
    """What makes a string no name of something; nothing if it is one. Two names that look the
    same are the same."""
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
