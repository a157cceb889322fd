"""Parses text into graphs. The input is untrusted: anything wrong with it is a LoadError.

Every node is rebuilt, so its types are inferred, and must equal those that the text claims.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import UNKNOWN, Source
from tracegraph.core.types import TensorType
from tracegraph.errors import LoadError, Mismatch, TraceError, fail, kind_of, shown
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import OPS, Op
from tracegraph.ir.tensor import NOTES, Graph, Tensor, get_type
from tracegraph.text.literals import WORD, LiteralReader, Malformed, excerpt, read_type
from tracegraph.text.verifier import check_arity

_NAME = r"[^\W\d][\w.]*+"
_VALUE = r"%[\w.]++"
_VALUES = rf"{_VALUE}(?:, {_VALUE})*+"
# The parts of a node in order, and what is missing if one does not match. Every repetition is
# possessive, so that matching is linear in the length of any text.
_PARTS = (
    (rf"\s*+({_VALUES}|\(\)) = ", "values and ' = '"),
    (rf'({_NAME}(?:<(?:[^"<>]++|"(?:[^"\\]++|\\.)*+")*+>)?+)', "the name of an op"),
    (rf"\(((?:{_VALUES})?+)\)", "attributes in <> or operands in ()"),
    (r' *+: ([^\s,"]++(?:, ?[^\s,"]++)*+)', "' : ' and the types of the outputs"),
    (r"(?: ++at (.++))?\s*+$", "the end of the line, or ' at ' and a place"),
)
_NODE = re.compile("".join(part for part, _ in _PARTS))
_NODE_FORM = "%0 = op<attribute=value>(%x, %y) : f32[2] at file.py:6"
_HEADER = re.compile(rf"graph @({_NAME})\(")
_HEADER_FORM = "graph @name(%x: f32[2]) -> (f32[2]) {"
_RETURN = re.compile(rf"\s*+return(?: ({_VALUES}))?\s*+$")
_WORD = r'"(?:[^"\\]++|\\.)*+"|[^\s":]++'
_PLACE = re.compile(rf'({_WORD}):([0-9]{{1,9}})(?: in ({_WORD}))?((?: [^\s":]++)*+)')
_ATTRIBUTE = re.compile(r"([^\W\d]\w*)=")


def parse(text: str) -> Graph:
    """The last graph in `text`, the entry, which must use all others.

    Raises LoadError with the line number and the fault there, TraceError (a TypeError) for anything
    other than text.
    """
    parser = _LineParser(text)
    *others, entry = parser.module().values()
    used = {id(graph) for graph in entry.graphs()}
    for other in others:
        if id(other) not in used:
            parser.number = parser.headers[other.name]
            parser.fail(
                f"the graph @{other.name} is not used by the last one, @{entry.name}",
                fix="remove it, or put the entry last",
            )
    return entry


def parse_module(
    text: str,
    arrays: Mapping[str, np.ndarray] | None = None,
    lines: Mapping[tuple[str, int], str] = MappingProxyType({}),
) -> dict[str, Graph]:
    """All graphs in `text` by name, in order; `arrays` has those that the text only names, and
    `lines` the known source lines, by file and number.

    Raises LoadError as `parse` does.
    """
    return _LineParser(text, arrays, lines).module()


class _LineParser:
    """Reads line after line; `number` is the line to which errors refer."""

    def __init__(
        self,
        text: str,
        arrays: Mapping[str, np.ndarray] | None = None,
        lines: Mapping[tuple[str, int], str] = MappingProxyType({}),
    ) -> None:
        if not isinstance(text, str):
            fail(
                TraceError,
                f"the text of a graph is a str, and {shown(text)} is {kind_of(text)}",
                fix="decode it: data.decode()" if isinstance(text, bytes) else "pass str(graph)",
            )
        self.lines = text.replace("\r\n", "\n").split("\n")
        self.number = 0
        self.arrays = arrays
        self.code = lines
        self.graphs: dict[str, Graph] = {}
        self.headers: dict[str, int] = {}
        # Parse results are cached: most nodes share their op, types and place.
        self.ops: dict[str, Op] = {}
        self.types: dict[str, tuple[TensorType, ...]] = {}
        self.places: dict[str | None, Source] = {None: UNKNOWN}

    def fail(self, fact: str, fix: str = "", cause: BaseException | None = None) -> NoReturn:
        line = self.lines[self.number - 1].strip() if self.number else ""
        where = f"line {self.number}: {fact}" + (f"\n  text: {excerpt(line, 200)}" if line else "")
        fail(LoadError, where, source=UNKNOWN, fix=fix, cause=cause)

    def module(self) -> dict[str, Graph]:
        notes: list[str] = []
        try:
            while self.number < len(self.lines):
                line = self.lines[self.number].rstrip()
                self.number += 1
                if line.startswith("#"):
                    notes.append(line.removeprefix("#").removeprefix(" "))
                elif line:
                    self.graph(line, notes)
                    notes = []
        except Mismatch as mismatch:
            self.fail(mismatch.fact, mismatch.fix)
        if not self.graphs:
            self.fail("the text holds no graph", fix=f"begin with a line such as: {_HEADER_FORM}")
        return self.graphs

    def graph(self, header: str, notes: list[str]) -> None:
        """Reads the graph that starts at the current line; advances to its last line."""
        start = self.number
        whole, end = self.whole_header(header)
        name, arguments, results = self.split_header(whole)
        if name in self.graphs:
            raise Malformed(f"there are two graphs @{name}", fix="give each graph its own name")
        builder = Builder(name)
        env: dict[str, Tensor] = {}
        for place, argument in enumerate(arguments, 1):
            self.number = min(start + place, end)  # in a long header each has its own line
            self.argument(argument, builder, env)
        self.number = end
        self.nodes(builder, env)
        outputs = self.results(env)
        if tuple(map(get_type, outputs)) != results:
            returned = _types_text(outputs)
            raise Malformed(f"@{name} returns {returned}, and line {start} claims other types")
        self.closing()
        self.graphs[name] = builder.finish(outputs)
        if notes:
            self.graphs[name].cache[NOTES] = lambda: notes
        self.headers[name] = start

    def whole_header(self, header: str) -> tuple[str, int]:
        """Joins a header, which may be broken after brackets and commas, into one line; and the
        number of its last line."""
        words, number = [header], self.number
        for line in itertools.islice(self.lines, number, None):
            line = line.strip()
            if not words[-1].endswith(("(", ",")) and not line.startswith(")"):
                break
            words.append(f" {line}" if words[-1].endswith(",") else line)
            number += 1
        return "".join(words), number

    def split_header(self, header: str) -> tuple[str, list[str], tuple[Any, ...]]:
        begin = _HEADER.match(header)
        arguments, arrow, results = header.partition(") -> (")
        if begin is None or not arrow or not results.endswith(") {"):
            if begin is not None and arrow and ") {" in results:
                raise Malformed("more follows '{' on its line", fix="end the line after '{'")
            raise Malformed("a graph must begin here", fix=f"write: {_HEADER_FORM}")
        rest = arguments[begin.end() :]
        listed = re.split(", (?=%)", rest) if rest else []
        return begin[1], listed, self.listed_types(results.removesuffix(") {"))

    def argument(self, text: str, builder: Builder, env: dict[str, Tensor]) -> None:
        name, colon, type = text.partition(": ")
        if not colon or name[:1] != "%" or WORD.fullmatch(name, 1) is None:
            raise Malformed(f"{excerpt(text)} is not an argument", fix="write %name: f32[2]")
        self.bind([name], (builder.input(read_type(type), name[1:]),), env)

    def nodes(self, builder: Builder, env: dict[str, Tensor]) -> None:
        """Reads nodes up to the first line that is not a node."""
        lines, match_node = self.lines, _NODE.match
        for number in range(self.number + 1, len(lines) + 1):
            match = match_node(lines[number - 1])
            self.number = number
            if match is None:
                if lines[number - 1].lstrip().startswith(("return", "}")):
                    return
                self.diagnose(lines[number - 1])
            self.node(match, builder, env)
        raise Malformed("the text ends inside of a graph", fix="end it with 'return' and '}'")

    def node(self, match: re.Match[str], builder: Builder, env: dict[str, Tensor]) -> None:
        values, op_text, operands, types_text, place = match.groups()
        op = self.ops.get(op_text) or self.op(op_text)
        inputs = self.values(operands, env)
        self.infer(op, inputs)
        outputs = builder.add(op, inputs, self.places.get(place) or self.place(place))
        types = self.types.get(types_text) or self.listed_types(types_text)
        if tuple(map(get_type, outputs)) != types:
            inferred = _types_text(outputs)
            raise Malformed(f"{op.name} makes {inferred}, and the text claims {types_text}")
        self.bind(values.split(", ") if values != "()" else [], outputs, env)

    def values(self, text: str | None, env: dict[str, Tensor]) -> tuple[Tensor, ...]:
        try:
            return tuple([env[name] for name in text.split(", ")]) if text else ()
        except KeyError as error:
            raise Malformed(
                f"the value {error.args[0]} is not defined above in this graph",
                fix="define a value before it is used",
            ) from None

    def bind(self, names: list[str], values: tuple[Tensor, ...], env: dict[str, Tensor]) -> None:
        if len(names) != len(values):
            raise Malformed(f"there are {len(names)} names for {len(values)} values")
        for name, value in zip(names, values):
            if name in env:
                raise Malformed(f"the value {name} is defined twice", fix="give it another name")
            env[name] = value

    def infer(self, op: Op, inputs: tuple[Tensor, ...]) -> None:
        """Infers types before the builder does, whose errors would try to read the user's files."""
        try:
            op.output_types(inputs)
        except Mismatch as mismatch:
            raise Malformed(f"{op.name}: {mismatch.fact}", mismatch.fix) from None
        except outside_interrupts(Exception) as error:
            check_arity(op, len(inputs))
            operands = _types_text(inputs)
            self.fail(f"{op.name} does not fit its operands {operands}: {error}", cause=error)

    def results(self, env: dict[str, Tensor]) -> tuple[Tensor, ...]:
        match = _RETURN.match(self.lines[self.number - 1])
        if match is None:
            raise Malformed("a graph must return here", fix="write: return %0, %1")
        return self.values(match[1], env)

    def closing(self) -> None:
        self.number = min(self.number + 1, len(self.lines))
        if self.lines[self.number - 1].strip() != "}":
            raise Malformed("a graph must end here", fix="write a line with nothing but }")

    def diagnose(self, line: str) -> NoReturn:
        """Raises the error for a line that is not a node: what is missing, and where."""
        at = 0
        for part, what in _PARTS:
            match = re.compile(part).match(line, at)
            if match is None:
                found = excerpt(line[at:]) if line[at:].strip() else "the end"
                raise Malformed(f"expected {what} and found {found}", fix=f"write: {_NODE_FORM}")
            at = match.end()
        raise AssertionError(f"the parts match and the whole does not: {line!r}")

    def listed_types(self, text: str) -> tuple[TensorType, ...]:
        listed = text.split(", ") if text not in ("", "()") else ()
        types = self.types[text] = tuple(map(read_type, listed))
        return types

    def place(self, text: str) -> Source:
        match = _PLACE.fullmatch(text.rstrip())
        if match is None:
            raise Malformed(
                f"{excerpt(text)} is not a place", fix="write: file.py:6 in encoder vjp"
            )
        file, scope = _unquoted(match[1], "file name"), _unquoted(match[3] or "", "scope")
        if "/" in file or "\\" in file:
            raise Malformed(f"{excerpt(file)} names a folder", fix="name the file alone")
        roles = tuple(match[4].split())
        line = int(match[2])
        code = self.code.get((file, line), "")
        source = self.places[text] = Source.at(file, line, roles, scope, code)
        return source

    def op(self, text: str) -> Op:
        """The op of a node, from its name and attributes."""
        name, bracket, attributes = text.partition("<")
        cls = OPS.get(name)
        if cls is None:
            close = " or ".join(difflib.get_close_matches(name, OPS, n=3))
            raise Malformed(f"there is no op {name}", fix=f"did you mean {close}?" if close else "")
        values = self.read_attributes(cls, attributes.removesuffix(">") if bracket else "")
        try:
            op = self.ops[text] = cls(**values).as_read()
        except Mismatch:
            raise
        except outside_interrupts(Exception) as error:
            self.fail(f"{name} refuses its attributes: {error}", cause=error)
        return op

    def read_attributes(self, cls: type[Op], text: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        reader = LiteralReader(text, self.graphs, self.arrays)
        while not reader.is_done:
            if values and not reader.skip(", "):
                reader.fail("expected ', '")
            name = reader.take(_ATTRIBUTE, "an attribute such as axis=0")[1]
            if name not in cls.field_names:
                has = ", ".join(cls.field_names) or "none"
                raise Malformed(f"{cls.name} has no attribute {name}; its attributes: {has}")
            if name in values:
                raise Malformed(f"the attribute {name} is given twice")
            start = reader.at
            values[name] = reader.value()
            _check_attribute(cls, name, values[name], text[start : reader.at])
        _check_complete(cls, values)
        return values


def _unquoted(word: str, what: str) -> str:
    try:
        return json.loads(word) if word.startswith('"') else word
    except ValueError as error:
        raise Malformed(f"{excerpt(word)} is not a {what}: {error}") from None


def _types_text(values: tuple[Tensor, ...]) -> str:
    return f"({', '.join([str(x.type) for x in values])})"


def _check_attribute(cls: type[Op], name: str, value: Any, text: str) -> None:
    if not _fits(value, _annotations(cls).get(name, Any)):
        wanted = cls.fields.parameters[name].annotation
        raise Malformed(f"the attribute {name} of {cls.name} is {excerpt(text)}, not {wanted}")


def _check_complete(cls: type[Op], values: dict[str, Any]) -> None:
    for name, field in cls.fields.parameters.items():
        if name not in values and field.default is field.empty:
            raise Malformed(f"{cls.name} lacks its attribute {name}")


@functools.cache
def _annotations(cls: type[Op]) -> dict[str, Any]:
    """The types of the fields; none if they name types that exist only for type checkers."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a parsed value has the annotated type. An int is accepted for a float."""
    if hint is Any:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _fits_items(value, arguments)
    if hint in _NUMBERS:
        return type(value) in _NUMBERS[hint]
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _fits_items(value: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if len(hints) == 2 and hints[1] is Ellipsis:
        return all(_fits(item, hints[0]) for item in value)
    return len(value) == len(hints) and all(map(_fits, value, hints))


_NUMBERS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    complex: (complex, float, int),
}
