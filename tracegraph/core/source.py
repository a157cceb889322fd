"""The user's line: where a node was made, and which passes derived it.

Capturing a place keeps the code object and the instruction offset, which costs about a
microsecond; the line is found only when somebody asks.
"""

from __future__ import annotations

import bisect
import contextlib
import dis
import functools
import importlib.util
import itertools
import linecache
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any


def _folders(*names: str) -> tuple[str, ...]:
    """The folders of packages, which are not loaded for that."""
    found = [importlib.util.find_spec(name) for name in names]
    return tuple(os.path.dirname(os.path.abspath(str(x.origin))) + os.sep for x in found if x)


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Where frames are not the user's: our packages, and what stands between the user and us.
_OUR_PACKAGES = (
    PACKAGE + os.sep,
    os.path.join(os.path.dirname(PACKAGE), "lowering") + os.sep,
    *_folders("numpy", "jax", "jax" + "lib"),  # which no line names: nothing of it is used
    *(os.path.abspath(str(module.__file__)) for module in (contextlib, functools)),
)
#: Per file name: whether frames of that file belong to us and not to the user.
ours_by_file: dict[str, bool] = {}


#: Files of ours that decide in the place of the user's code, as what converts it does.
stand_for_users: set[str] = set()


#: A new moment: each is later than the ones before, on any thread.
next_moment = itertools.count().__next__


class Source:
    """A place in the user's code and the roles that passes gave to what was made there.

    `file` is the path as Python knows it, `line` counts from 1, `roles` is a tuple such as
    `("vjp", "pfor")`, `scope` is the name scope, such as `encoder/dense`. `moment` counts the
    places in the order in which they were captured.
    """

    __slots__ = ("_origin", "_place", "_text", "code", "moment", "offset", "roles", "scope")

    #: The moment of the place that this one was derived of.
    _origin: int

    #: The file and the line, once somebody asked.
    _place: tuple[str, int]
    #: The line of source of a place that is known by name alone.
    _text: str

    def __init__(
        self,
        code: CodeType | None,
        offset: int,
        roles: tuple[str, ...] = (),
        scope: str = "",
        moment: int | None = None,
    ) -> None:
        self.code = code
        self.offset = offset
        self.roles = roles
        self.scope = scope
        self.moment = next_moment() if moment is None else moment

    @staticmethod
    def at(
        file: str, line: int, roles: tuple[str, ...] = (), scope: str = "", text: str = ""
    ) -> Source:
        """A place that is known by name, as a parser knows it, and maybe its line of source."""
        source = Source(None, -1, roles, scope)
        source._place, source._text = (file, line), text
        return source

    @property
    def file(self) -> str:
        return self._resolved()[0]

    @property
    def line(self) -> int:
        return self._resolved()[1]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for what was made at one place, in one scope, by the same passes. Places of traced
        code are told apart before their lines are looked up, which takes longer."""
        if self.code is None:
            return self.file, self.line, self.roles, self.scope
        return id(self.code), self.offset, self.roles, self.scope

    def _resolved(self) -> tuple[str, int]:
        try:
            return self._place
        except AttributeError:
            assert self.code is not None
            self._place = self.code.co_filename, _line_of(self.code, self.offset)
            return self._place

    def derived_by(self, role: str) -> Source:
        """The same place with one more role; a role that is repeated stays once."""
        if self.roles and self.roles[-1] == role:
            return self
        derived = Source(self.code, self.offset, (*self.roles, role), self.scope)
        derived._origin = self.origin
        if self.code is None:
            derived._place, derived._text = self._place, self._text
        return derived

    @property
    def origin(self) -> int:
        """The moment of the place that the user's code made, be this one derived of it: what is
        made by one node's rules has the origin of the node."""
        return getattr(self, "_origin", self.moment)

    def is_same_place(self, other: Source) -> bool:
        """Whether it is the same instruction of the user, whatever was derived there."""
        return self.code is other.code and self.offset == other.offset

    @property
    def text(self) -> str:
        """The line of source itself, stripped; empty when it cannot be read. A place that is known
        by name alone may be that of another file here, and is not looked up."""
        if self.code is None:
            return self._text
        return linecache.getline(self.file, self.line).strip()

    @property
    def is_by_name(self) -> bool:
        """Whether it is a line of a file that was saved, and that need not be here."""
        return self.code is None and self.line > 0

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}"
        return " ".join((place, *self.roles))

    def __repr__(self) -> str:
        return f"Source({self})"


UNKNOWN = Source.at("?", 0)


def _line_of(code: CodeType, offset: int) -> int:
    table = _line_tables.get(code)
    if table is None:
        rows = [(start, line) for start, _, line in code.co_lines() if line is not None]
        table = _line_tables[code] = ([start for start, _ in rows], [line for _, line in rows])
    starts, lines = table
    row = bisect.bisect_right(starts, offset) - 1
    return lines[row] if row >= 0 else code.co_firstlineno


def instruction_of(frame: FrameType) -> int:
    """The offset of the instruction that a frame runs.

    Python inlines the calls of `x[0]` or `x.shape` once they have run a few times, and `f_lasti`
    then points to the last cache entry of the instruction, no longer to the instruction itself. One
    place would be two, and what is kept by places would be derived and compiled again.
    """
    code, offset = frame.f_code, frame.f_lasti
    return offset - (_distances.get(id(code)) or _distances_of(code))[offset >> 1]


def _distances_of(code: CodeType) -> bytes:
    """For each unit of the code, how many bytes its instruction began before it."""
    distances = bytearray()
    for opcode in code.co_code[::2]:
        distances.append(distances[-1] + 2 if opcode == _CACHE else 0)
    number = id(code)
    _watched[number] = weakref.ref(code, lambda _: (_distances.pop(number), _watched.pop(number)))
    _distances[number] = found = bytes(distances)
    return found


_CACHE = dis.opmap["CACHE"]
#: `_distances_of` each code object, by its id: to find the object itself hashes its instructions.
_distances: dict[int, bytes] = {}
_watched: dict[int, weakref.ref[CodeType]] = {}

#: Per code object: where its lines start, as offsets of instructions, and the lines.
_line_tables: weakref.WeakKeyDictionary[CodeType, tuple[list[int], list[int]]]
_line_tables = weakref.WeakKeyDictionary()


class _Current(threading.local):
    def __init__(self) -> None:
        self.source: Source | None = None
        #: The name scope that is open, and who took which names in each while a function is traced.
        self.scope = ""
        self.taken: dict[str, dict[str, object]] | None = None
        #: The `scoped` that was entered last, and is open.
        self.innermost: scoped | None = None


_current = _Current()


def place_of_thread() -> _Current:
    """Where `sourced` keeps the place of this thread, for code that must restore it."""
    return _current


def is_ours(file: str) -> bool:
    """Whether frames of a file, as Python knows it, are not the user's."""
    found = ours_by_file.get(file)
    if found is None:
        found = ours_by_file[file] = os.path.abspath(file).startswith(_OUR_PACKAGES)
    return found


def here(skip: int = 1) -> Source:
    """The place of the innermost frame that is not ours, or what `sourced` says.

    `skip` is how many of the innermost frames are known to be ours.
    """
    if _current.source is not None:
        return _current.source
    frame = sys._getframe(skip)
    while frame is not None:
        code = frame.f_code
        ours = ours_by_file.get(code.co_filename)  # each node that is made comes through here
        if not (is_ours(code.co_filename) if ours is None else ours):
            distances = _distances.get(id(code)) or _distances_of(code)
            offset = frame.f_lasti
            return Source(code, offset - distances[offset >> 1], (), _current.scope)
        frame = frame.f_back
    return UNKNOWN


#: The frame so many calls below, by CPython's own function under a public name.
frame_at = sys._getframe


def user_frame() -> FrameType | None:
    """The innermost frame that is not ours."""
    return next(user_frames(), None)


def user_frames(innermost: FrameType | None = None) -> Iterator[FrameType]:
    """The frames that are not ours, from the innermost on; by default from that of the caller."""
    frame = innermost or sys._getframe(1)
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def user_line() -> Source:
    """The place of the innermost frame that is not ours, whatever `sourced` says."""
    return _source_of(user_frame())


def line_of_thread(number: int | None) -> Source:
    """The place where a thread is, be it inside of C: that of its innermost frame of the user's."""
    innermost = None if number is None else sys._current_frames().get(number)
    return UNKNOWN if innermost is None else _source_of(next(user_frames(innermost), None))


def _source_of(frame: FrameType | None) -> Source:
    return UNKNOWN if frame is None else Source(frame.f_code, instruction_of(frame))


def caller_of(function: object) -> Source:
    """The place where a Python function begins, for errors about its signature."""
    code = getattr(function, "__code__", None)
    return Source(code, -1) if code else UNKNOWN


class sourced(contextlib.ContextDecorator):
    """A context in which every node made belongs to `source`: rules of ops run inside it."""

    __slots__ = ("_outer", "source")

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> None:
        self._outer = _current.source
        _current.source = self.source

    def __exit__(self, *exception: object) -> None:
        _current.source = self._outer


class scoped:
    """A context in which the nodes that are made belong to the scope `name` in the one that is
    open.

    While a function is traced, a name that was taken in that scope before gets a number, as
    `dense_1`, unless it is the same `owner` that comes again. `is_outermost` leaves the scopes
    that are open, and begins to count anew. Scopes that are left in another order, as tasks and
    generators may leave them, leave nothing behind.
    """

    __slots__ = ("_is_open", "_is_outermost", "_name", "_outer", "_owner")

    def __init__(self, name: str, owner: object = None, is_outermost: bool = False) -> None:
        self._name = name
        self._owner = owner
        self._is_outermost = is_outermost

    def __enter__(self) -> str:
        self._outer = _current.scope, _current.taken, _current.innermost
        self._is_open = True
        _current.innermost = self
        if self._is_outermost:
            _current.scope, _current.taken = self._name, {}
        else:
            _current.scope = _free_scope(self._name, self._owner)
        return _current.scope

    def __exit__(self, *exception: object) -> None:
        self._is_open = False
        last = _current.innermost
        while last is not None and not last._is_open:
            _current.scope, _current.taken, last = last._outer
        _current.innermost = last


def _free_scope(name: str, owner: object) -> str:
    outer = _current.scope
    if _current.taken is not None:
        taken = _current.taken.setdefault(outer, {})
        candidates = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(1)))
        name = next(c for c in candidates if c not in taken or _is_same(taken[c], owner))
        taken[name] = owner
    return f"{outer}/{name}" if outer else name


def _is_same(old: object, new: object) -> bool:
    return old is new and new is not None


@contextlib.contextmanager
def unsourced() -> Iterator[None]:
    """A context in which places are captured again, as when a pass calls the user's code."""
    with sourced(None):  # type: ignore[arg-type]
        yield
