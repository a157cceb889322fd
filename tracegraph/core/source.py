"""The user's line: where a node was created, and which passes derived it.

Capturing a place stores the code object and the instruction offset, which costs about a
microsecond; the line number is looked up only on demand.
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
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple


def _folders(*names: str) -> tuple[str, ...]:
    """The folders of packages, found without importing them."""
    found = [importlib.util.find_spec(name) for name in names]
    return tuple(os.path.dirname(os.path.abspath(str(x.origin))) + os.sep for x in found if x)


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Where frames are not the user's: our packages, and libraries between the user and us.
_OUR_PACKAGES = (
    PACKAGE + os.sep,
    os.path.join(os.path.dirname(PACKAGE), "lowering") + os.sep,
    *_folders("numpy", "jax", "jax" + "lib"),  # no line names it: we use nothing of it
    *(os.path.abspath(str(module.__file__)) for module in (contextlib, functools)),
)
#: Where Python's own library is.
_LIBRARY = os.path.dirname(os.__file__) + os.sep
#: By file name: whether frames of that file are ours rather than the user's.
ours_by_file: dict[str, bool] = {}


#: Files of ours that act on behalf of the user's code, such as those that convert it.
stand_for_users: set[str] = set()


#: A new moment, later than all before it on any thread.
next_moment = itertools.count().__next__


class Source:
    """A place in the user's code and the roles that passes gave to nodes derived from it.

    `file` is the path as Python knows it, `line` counts from 1, `roles` is a tuple such as
    `("vjp", "pfor")`, `scope` is the name scope, such as `encoder/dense`. `moment` numbers the
    places in the order in which they were captured.
    """

    __slots__ = ("_origin", "_place", "_text", "code", "moment", "offset", "roles", "scope")

    #: The moment of the place that this one was derived from.
    _origin: int

    #: The file and the line, once looked up.
    _place: tuple[str, int]
    #: The source text of a place that is known by name only.
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
        """A place known by name, as from a parser, optionally with its line of source text."""
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
        """Equal for nodes created at one place, in one scope, by the same passes. It distinguishes
        places in traced code without looking up their lines, which is slower."""
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
        """The same place with one more role; a repeated role is kept once."""
        if self.roles and self.roles[-1] == role:
            return self
        return self._with((*self.roles, role), self.scope)

    def in_scope(self, scope: str) -> Source:
        """The same place in another name scope."""
        if scope == self.scope:
            return self
        return self._with(self.roles, scope)

    def _with(self, roles: tuple[str, ...], scope: str) -> Source:
        new = Source(self.code, self.offset, roles, scope)
        new._origin = self.origin
        if self.code is None:
            new._place, new._text = self._place, self._text
        return new

    @property
    def origin(self) -> int:
        """The moment of the user's place that this one was captured at or derived from: everything
        a node's rules create has the origin of the node."""
        return getattr(self, "_origin", self.moment)

    def is_same_place(self, other: Source) -> bool:
        """Whether it is the same instruction of the user's, whatever was derived there."""
        return self.code is other.code and self.offset == other.offset

    @property
    def text(self) -> str:
        """The stripped source line; empty if it cannot be read. A place known only by name may
        refer to another file on this machine, so it is not looked up."""
        if self.code is None:
            return self._text
        return linecache.getline(self.file, self.line).strip()

    @property
    def is_by_name(self) -> bool:
        """Whether it is a line of a saved file, which need not exist here."""
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


def instruction_of(code: CodeType, offset: int) -> int:
    """The offset of the instruction that a frame of `code` is executing, from its `f_lasti`.

    Python inlines calls such as `x[0]` or `x.shape` once they have run a few times; `f_lasti` then
    points to the last cache entry of the instruction rather than the instruction itself. One place
    would become two, and everything keyed by place would be derived and compiled twice.
    """
    return offset - (_distances.get(id(code)) or _distances_of(code))[offset >> 1]


def _distances_of(code: CodeType) -> bytes:
    """For each code unit, how many bytes earlier its instruction begins."""
    distances = bytearray()
    for opcode in code.co_code[::2]:
        distances.append(distances[-1] + 2 if opcode == _CACHE else 0)
    number = id(code)
    _watched[number] = weakref.ref(code, lambda _: (_distances.pop(number), _watched.pop(number)))
    _distances[number] = found = bytes(distances)
    return found


_CACHE = dis.opmap["CACHE"]
#: `_distances_of` each code object, by id: hashing a code object hashes its instructions.
_distances: dict[int, bytes] = {}
_watched: dict[int, weakref.ref[CodeType]] = {}

#: Per code object: the instruction offsets where its lines start, and the lines.
_line_tables: weakref.WeakKeyDictionary[CodeType, tuple[list[int], list[int]]]
_line_tables = weakref.WeakKeyDictionary()


class _Current(threading.local):
    def __init__(self) -> None:
        self.source: Source | None = None
        #: The open name scope.
        self.scope = ""


_current = _Current()


def place_of_thread() -> _Current:
    """The record of this thread's place and name scope, for code that must set or restore them."""
    return _current


def is_ours(file: str) -> bool:
    """Whether frames of a file, by its name in Python, are not the user's."""
    found = ours_by_file.get(file)
    if found is None:
        found = ours_by_file[file] = os.path.abspath(file).startswith(_OUR_PACKAGES)
    return found


def is_of_us(value: Any) -> bool:
    """Whether a module, or what defines a value, is of tracegraph."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return isinstance(name, str) and name.partition(".")[0] == _US


_US = __name__.partition(".")[0]
#: The name by which converted code refers to its hooks; what it adds begins in the same way.
HOOKS = "ag__"


def here(skip: int = 1) -> Source:
    """The place of the user's innermost frame, or the one that `sourced` set.

    `skip` is how many of the innermost frames are known to be ours.
    """
    if _current.source is not None:
        return _current.source
    frame = sys._getframe(skip)
    while frame is not None:
        code = frame.f_code
        ours = ours_by_file.get(code.co_filename)  # hot path: every node comes through here
        if not (is_ours(code.co_filename) if ours is None else ours):
            distances = _distances.get(id(code)) or _distances_of(code)
            offset = frame.f_lasti
            return Source(code, offset - distances[offset >> 1], (), _current.scope)
        frame = frame.f_back
    return UNKNOWN


#: The frame that many calls down the stack: CPython's own function under a public name.
frame_at = sys._getframe


def user_frame() -> FrameType | None:
    """The user's innermost frame."""
    return next(user_frames(), None)


def user_frames(innermost: FrameType | None = None) -> Iterator[FrameType]:
    """The user's frames, innermost first; by default starting at the caller."""
    frame = innermost or sys._getframe(1)
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def user_line() -> Source:
    """The place of the user's innermost frame, even inside `sourced`."""
    return _source_of(user_frame())


def line_of_thread(number: int | None) -> Source:
    """The place of a thread's innermost user frame outside of Python's library, even while the
    thread is inside C."""
    innermost = None if number is None else sys._current_frames().get(number)
    if innermost is None:
        return UNKNOWN
    return _source_of(next((x for x in user_frames(innermost) if not _is_of_library(x)), None))


def _is_of_library(frame: FrameType) -> bool:
    """Whether a frame is of Python's own library."""
    file = frame.f_code.co_filename
    return file.startswith(_LIBRARY) and "site-packages" not in file


def _source_of(frame: FrameType | None) -> Source:
    return Source(frame.f_code, instruction_of(frame.f_code, frame.f_lasti)) if frame else UNKNOWN


def caller_of(function: object) -> Source:
    """The place where a Python function is defined, for errors about its signature."""
    code = getattr(function, "__code__", None)
    return Source(code, -1) if code else UNKNOWN


class sourced(contextlib.ContextDecorator):
    """A context in which every new node belongs to `source`; the rules of ops run inside it."""

    __slots__ = ("_outer", "source")

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> None:
        self._outer = _current.source
        _current.source = self.source

    def __exit__(self, *exception: object) -> None:
        _current.source = self._outer


@contextlib.contextmanager
def unsourced() -> Iterator[None]:
    """A context that captures places anew, as when a pass calls the user's code."""
    with sourced(None):  # type: ignore[arg-type]
        yield


# Lines and scopes in the names of XLA's operations.

#: What JAX calls its own functions, and the parts of its loops and branches.
_OF_JAX = r"jit\(.*\)|while|body|cond|closed_call|branch_\d+_fun|checkpoint|remat"
_LINE = r"(?P<file>[^/]+):(?P<line>\d+)(?P<roles>(?: \w+)*)"
#: A scope of the user's that reads like one of these, and one that is marked to tell them apart.
_AMBIGUOUS = re.compile(f"(?:{_OF_JAX}|{_LINE})'*")
_MARKED = re.compile(f"(?:{_OF_JAX}|{_LINE})'+")
_OF_JAX_ALONE, _LINE_ALONE = re.compile(_OF_JAX), re.compile(_LINE)
#: The files by their names in programs, in which a slash would separate scopes.
_files: dict[str, str] = {}


def operation_name(source: Source) -> str:
    """The scope, the line and the roles of a node, as the names of XLA's operations have them:
    `encoder/dense/mlp.py:6 vjp`. Files of one name in several folders have different names."""
    scopes = source.scope.split("/") if source.scope else []
    marked = [f"{x}'" if _AMBIGUOUS.fullmatch(x) else x for x in scopes]
    place = f"{_name_in_programs(source.file)}:{source.line}"
    return "/".join([*marked, " ".join((place, *source.roles))])


def _name_in_programs(file: str) -> str:
    """The name of a file without its folders, or with as many as no other file had until now."""
    parts = file.replace("\\", "/").split("/")
    names = (".".join(parts[-depth:]) for depth in range(1, len(parts) + 1))
    numbered = (f"{parts[-1]}_{count}" for count in itertools.count(2))
    return next(x for x in itertools.chain(names, numbered) if _files.setdefault(x, file) == file)


def without_folders(name: str) -> str:
    """The name of an operation as it is in every process: with the bare names of files."""

    def bare(part: str) -> str:
        match = _LINE_ALONE.fullmatch(part)
        file = None if match is None else _files.get(match["file"])
        if match is None or file is None:
            return part
        return f"{os.path.basename(file)}:{match['line']}{match['roles']}"

    return "/".join(map(bare, name.split("/")))


class OperationPlace(NamedTuple):
    """Whose an operation of XLA is: the file, or its name if another process compiled the program,
    and the line; the roles; the scope."""

    file: str
    line: int
    roles: tuple[str, ...]
    scope: str


def places_in(name: str) -> list[OperationPlace]:
    """The places in the name of an operation of XLA: of a call and what it calls, outermost
    first."""
    found: list[OperationPlace] = []
    scopes: list[str] = []
    for part in name.split("/"):
        match = _LINE_ALONE.fullmatch(part)
        if match is not None:
            file, roles = _files.get(match["file"], match["file"]), match["roles"].split()
            place = file, int(match["line"]), tuple(roles), "/".join(scopes)
            found.append(OperationPlace(*place))
            scopes = []
        elif _OF_JAX_ALONE.fullmatch(part):
            scopes = []
        else:
            scopes.append(part[:-1] if _MARKED.fullmatch(part) else part)
    return found
