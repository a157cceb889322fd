"""Attribute values and types as text, both ways, exact to the bit.

    value ::= "none" | "true" | "false" | int | float | "(" float "," float ")" | string
            | "bytes" string | dtype | type | size | "*" name | "@" graph | "[" values "]" | array
            | "opaque" string
    array ::= dtype element                    an array without axes:  f32 1.0
            | type "{" elements "}"            f32[2]{1.0, 0x7fc00001}
            | "array" string                   one that a file beside the text has by this name

A float whose bits a decimal would not restore, such as a nan with a payload, is written by its
bits; the dtype beside it gives their number. An object that is not data, such as a Python function,
is printed as `opaque"name"`. That is parsed as a stand-in, which prints the same but cannot be
used.
"""

from __future__ import annotations

import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from tracegraph.core.shapes import Dim, Shape, ShapeVariable, Size, element_count, parse_size
from tracegraph.core.types import (
    BY_SHORT,
    TOKEN,
    DType,
    TensorType,
    as_dtype,
    bfloat16,
    bool_,
    complex128,
    float64,
    token,
)
from tracegraph.errors import LoadError, Mismatch, fail
from tracegraph.ir.tensor import Graph

#: Lists nested deeper than this are refused.
_DEEPEST = 50
#: Sizes and shapes with longer text than this are refused, and so are shapes whose element count
#: would have more terms: nobody writes them, and they could exhaust memory.
_LONGEST_SIZE, _LONGEST_SHAPE = 1000, 10_000
_MOST_TERMS = 512
_MOST_DIGITS = 18

WORD = re.compile(r"[^\W\d][\w.]*")
_INT = re.compile(r"-?[0-9]+")
_DECIMAL = r"-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)|nan"
_FLOAT = re.compile(rf"{_DECIMAL}|0x[0-9a-f]+")
_NUMBER = re.compile(rf"(?:{_DECIMAL}|0x[0-9a-f]{{16}})(?=[,\])]|$)")
_INTS = re.compile(r"\[((?:-?[0-9]{1,18}(?:,-?[0-9]{1,18})*+)?)\]")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_COMPLEX = re.compile(r"\(([^(),\s]+),([^(),\s]+)\)")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_SCALAR = re.compile(r"\([^()\s]*\)|[^\s,()\[\]]+")
_SIZE = re.compile(r"[A-Za-z0-9_.+*(),?$-]+")
_SHAPE = re.compile(r"[?$][0-9]+|[^\W\d][\w.]*")
_PLAIN_SIZES = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*+")
_TYPE = re.compile(r"([a-z]+[0-9a-z]*)(?:\[([^\[\]]*+)\])?")

_KEYWORDS: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": math.inf,
    "nan": math.nan,
    "token": TOKEN,
    **{short: dtype for short, dtype in BY_SHORT.items() if dtype is not token},
}


class Malformed(Mismatch):
    """Text that is not a valid graph: the fact and the fix; the parser adds the place."""

    kind = LoadError


class Opaque:
    """A stand-in for a Python object that text can name but not contain."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(
            LoadError,
            f"the graph was read from a text, and calls a Python function of which the text has "
            f"the name alone: {self!r}",
            fix="trace the function again in the process that runs it",
        )

    def __repr__(self) -> str:
        return _opaque(self)


# Writing.


#: Stores an array beside the text and returns its name there; None for one that stays in the text.
Keep = Callable[[np.ndarray], "str | None"]


def value_text(value: Any, symbols: Mapping[Graph, str], keep: Keep | None = None) -> str:
    """An attribute value as text; `symbols` has the names of the graphs."""
    if isinstance(value, tuple):
        return f"[{','.join([value_text(item, symbols, keep) for item in value])}]"
    if keep is not None and isinstance(value, np.ndarray):
        name = keep(value)
        if name is not None:
            return "array" + quoted(name)
    if isinstance(value, Graph):
        return f"@{symbols[value]}"
    if isinstance(value, np.generic):
        value = _plain(value)
    for kind in type(value).__mro__:
        if kind in _WRITERS:
            return _WRITERS[kind](value)
    return _opaque(value)


def _plain(scalar: np.generic) -> Any:
    """A NumPy scalar as a Python value, or as an array if Python has no such type."""
    plain = isinstance(scalar, (np.integer, np.bool_, np.float64, np.complex128))
    return scalar.item() if plain else np.asarray(scalar)


def quoted(text: str) -> str:
    """A string in JSON form, escaped to ASCII if it contains anything unprintable."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _opaque(value: Any) -> str:
    return "opaque" + quoted(getattr(value, "__qualname__", type(value).__qualname__))


def _size_text(size: Dim) -> str:
    text = str(size)
    if text.removeprefix("-") not in _KEYWORDS:
        return text
    return f"-1*{text[1:]}" if text.startswith("-") else f"1*{text}"  # a name like `inf` or `f32`


def _array_text(array: np.ndarray) -> str:
    try:
        dtype = as_dtype(array.dtype)
    except TypeError:
        return _opaque(array)
    elements = _element_texts(array.reshape(-1))
    if array.ndim == 0:
        return f"{dtype.short} {elements[0]}"
    return f"{TensorType(dtype, array.shape)}{{{', '.join(elements)}}}"


def _element_texts(array: np.ndarray) -> list[str]:
    """The text of each element of an array with one axis."""
    if array.dtype.kind == "b":
        return ["true" if value else "false" for value in array.tolist()]
    if array.dtype.kind in "iu":
        return list(map(str, array.tolist()))
    if array.dtype.kind == "c":
        parts = _float_texts(np.ascontiguousarray(array).view(f"f{array.itemsize // 2}"))
        return [f"({real},{imaginary})" for real, imaginary in zip(parts[::2], parts[1::2])]
    return _float_texts(array)


def _float_texts(array: np.ndarray) -> list[str]:
    """The shortest decimals, or the bits of values that decimals would not restore."""
    if array.dtype == bfloat16.numpy_dtype:
        texts = list(map(_shortest, array.tolist()))
    else:
        texts = list(map(str, array.tolist() if array.dtype == np.float64 else array))
    bits = _bits(array)
    changed = np.flatnonzero(_bits(_rounded(map(float, texts), array.dtype)) != bits)
    for position in changed.tolist():
        texts[position] = f"0x{int(bits[position]):0{2 * array.itemsize}x}"
    return texts


@functools.lru_cache(1 << 16)
def _shortest(value: float) -> str:
    """The shortest decimal that rounds to `value` in bfloat16, whose own text is not shortest."""
    exact = np.array(value, bfloat16.numpy_dtype)
    texts = (str(float(f"{value:.{digits}g}")) for digits in range(1, 5))
    return next((text for text in texts if np.array(float(text), exact.dtype) == exact), str(value))


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _rounded(values: Iterable[float], dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(list(values), np.float64).astype(dtype)


_WRITERS: dict[type, Callable[[Any], str]] = {
    NoneType: lambda value: "none",
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: lambda value: _float_texts(np.array([value]))[0],
    complex: lambda value: _element_texts(np.array([value]))[0],
    str: quoted,
    bytes: lambda value: f'bytes"{value.hex()}"',
    DType: lambda dtype: _opaque(dtype) if dtype is token else dtype.short,
    TensorType: str,
    ShapeVariable: str,
    Dim: _size_text,
    np.ndarray: _array_text,
}


# Reading types.


def read_type(text: str) -> TensorType:
    """The type whose `str` is `text`. Raises Malformed, or Mismatch for impossible sizes."""
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in BY_SHORT or (match[1] == "token") != (match[2] is None):
        raise Malformed(f"{excerpt(text)} is not a type", fix="write a type such as f32[16,4]")
    return TOKEN if match[2] is None else TensorType(BY_SHORT[match[1]], read_shape(match[2]))


def read_shape(text: str) -> Shape:
    """The shape between the brackets of a type."""
    if not text:
        return ()
    if _PLAIN_SIZES.fullmatch(text):
        return tuple(map(int, text.split(",")))
    if text.startswith("*"):
        return _shape_variable(text[1:])
    if len(text) > _LONGEST_SHAPE:
        raise Malformed(f"the shape {excerpt(text)} is too long")
    shape = tuple(map(read_size, _split_sizes(text)))
    if math.prod(len(size.terms) for size in shape if isinstance(size, Dim)) > _MOST_TERMS:
        raise Malformed(f"the shape {excerpt(text)} is too long a polynomial")
    return shape


def _shape_variable(name: str) -> ShapeVariable:
    if _SHAPE.fullmatch(name) is None:
        raise Malformed(
            f"{excerpt('*' + name)} is not a shape", fix="name it like a value, as in *s"
        )
    return ShapeVariable(name)


def read_size(text: str) -> Size:
    """One size: an int or an expression."""
    if len(text) > _LONGEST_SIZE or _SIZE.fullmatch(text) is None:
        raise Malformed(f"{excerpt(text)} is not a size", fix="write a size such as 4 or 2*batch+1")
    if re.search(rf"[0-9]{{{_MOST_DIGITS + 1}}}", text):
        raise Malformed(f"the size {excerpt(text)} is larger than any tensor")
    try:
        return parse_size(text)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _split_sizes(text: str) -> list[str]:
    """The parts between commas outside parentheses."""
    parts, depth = [""], 0
    for piece in re.split("([(),])", text):
        depth += (piece == "(") - (piece == ")")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


# Reading arrays.


def _read_array(type: TensorType, words: list[str]) -> np.ndarray:
    """The array of `type` with the elements that `words` spell."""
    if not type.is_static or element_count(type.shape) != len(words):
        raise Malformed(f"an array of type {type} is given {len(words)} elements")
    return _read_elements(type.dtype, words).reshape(tuple(type.shape))


def _read_elements(dtype: DType, words: list[str]) -> np.ndarray:
    if dtype.is_complex:
        pairs = [match.groups() for match in map(_COMPLEX.fullmatch, words) if match]
        _check(dtype, words, _COMPLEX.fullmatch)
        parts = _read_floats(dtype.real, [part for pair in pairs for part in pair])
        return parts.view(f"c{dtype.size}")
    if dtype.is_floating or dtype.is_storage:
        return _read_floats(dtype, words)
    if dtype is bool_:
        _check(dtype, words, {"true", "false"}.__contains__)
        return np.array([word == "true" for word in words], np.bool_)
    _check(dtype, words, _INT.fullmatch)
    try:
        return np.array(list(map(int, words)), dtype.numpy_dtype)
    except (OverflowError, ValueError):
        raise Malformed(f"an integer is out of the range of {dtype.name}") from None


def _read_floats(dtype: DType, words: list[str]) -> np.ndarray:
    _check(dtype, words, _FLOAT.fullmatch)
    assert dtype.numpy_dtype is not None
    is_bits = [word.startswith("0x") for word in words]
    numbers = [0.0 if bits else float(word) for bits, word in zip(is_bits, words)]
    values = _rounded(numbers, dtype.numpy_dtype)
    for position in np.flatnonzero(~np.isfinite(values)).tolist():
        if not words[position].endswith(("inf", "nan")):
            raise Malformed(f"{excerpt(words[position])} is out of the range of {dtype.name}")
    for position in np.flatnonzero(is_bits).tolist():
        word = words[position]
        if len(word) != len("0x") + 2 * dtype.size:
            raise Malformed(f"{excerpt(word)} are not the {8 * dtype.size} bits of a {dtype.name}")
        values.view(f"u{dtype.size}")[position] = int(word, 16)
    return values


def _check(dtype: DType, words: list[str], is_right: Callable[[str], Any]) -> None:
    for word in words:
        if not is_right(word):
            raise Malformed(f"{excerpt(word)} is not an element of type {dtype.name}")


# Reading values.


class LiteralReader:
    """Reads values one after another from `text`; `graphs` has the graphs defined before, `arrays`
    those stored beside the text."""

    def __init__(
        self, text: str, graphs: Mapping[str, Graph], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.text = text
        self.at = 0
        self.graphs = graphs
        self.arrays = arrays or {}

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.text)

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """The match of `pattern` at this position. Raises Malformed, saying that `what` is
        missing."""
        match = pattern.match(self.text, self.at)
        if match is None:
            self.fail(f"expected {what}")
        self.at = match.end()
        return match

    def fail(self, fact: str) -> NoReturn:
        found = "the end" if self.is_done else excerpt(self.text[self.at :])
        raise Malformed(f"{fact} and found {found}")

    def skip(self, word: str) -> bool:
        """Whether `word` comes next; if so, advances past it."""
        found = self.text.startswith(word, self.at)
        self.at += len(word) * found
        return found

    def value(self, depth: int = 0) -> Any:
        """The value that starts here."""
        ints = _INTS.match(self.text, self.at)
        if ints is not None:
            self.at = ints.end()
            return tuple(map(int, ints[1].split(","))) if ints[1] else ()
        first = self.text[self.at : self.at + 1]
        if first == "[":
            return self._list(depth + 1)
        if first == '"':
            return self._string()
        if first == "(":
            pair = self.take(_COMPLEX, "a complex number")
            return complex(_read_elements(complex128, [pair[0]])[0])
        if first == "@":
            return self._graph()
        if first == "*":
            self.at += 1
            return ShapeVariable(self.take(_SHAPE, "the name of a shape")[0])
        number = _NUMBER.match(self.text, self.at)
        if number is not None:
            self.at = number.end()
            return _number(number[0])
        return self._word()

    def _list(self, depth: int) -> tuple[Any, ...]:
        if depth > _DEEPEST:
            raise Malformed(f"lists are nested more than {_DEEPEST} deep")
        self.at += 1
        items = [self.value(depth)]
        while self.skip(","):
            self.skip(" ")
            items.append(self.value(depth))
        if not self.skip("]"):
            self.fail("expected ',' or ']'")
        return tuple(items)

    def _string(self) -> str:
        try:
            return json.loads(self.take(_STRING, "a string")[0])
        except ValueError as error:
            raise Malformed(f"a string is not in JSON's form: {error}") from None

    def _graph(self) -> Graph:
        self.at += 1
        name = self.take(WORD, "the name of a graph")[0]
        if name not in self.graphs:
            raise Malformed(
                f"the graph @{name} is not defined above",
                fix="define a graph before those that call it; no graph calls itself",
            )
        return self.graphs[name]

    def _word(self) -> Any:
        match = WORD.match(self.text, self.at)
        after = self.text[match.end() : match.end() + 1] if match else ""
        if match is None or after in tuple("+-*(") or (match[0] not in _KEYWORDS and after != '"'):
            return self._size()
        self.at = match.end()
        word, value = match[0], _KEYWORDS.get(match[0])
        if after == '"':
            return self._marked(word)
        return self._typed(value) if isinstance(value, DType) else value

    def _marked(self, word: str) -> Any:
        text = self._string()
        if word == "opaque":
            return Opaque(text)
        if word == "array":
            return self._kept_array(text)
        if word != "bytes" or _HEX.fullmatch(text) is None:
            raise Malformed(f"{word}{excerpt(text)} is not a value")
        return bytes.fromhex(text)

    def _kept_array(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise Malformed(
                f"there is no array {excerpt(name)} beside the text",
                fix="read the text with the file of arrays that was written with it",
            )
        return self.arrays[name]

    def _typed(self, dtype: DType) -> Any:
        """A dtype, a type, or an array of that type."""
        if self.skip(" "):
            word = self.take(_SCALAR, f"a number of type {dtype.name}")[0]
            return _read_array(TensorType(dtype), [word])
        if not self.skip("["):
            return dtype
        type = TensorType(dtype, read_shape(self._until("]")))
        if not self.skip("{"):
            return type
        elements = self._until("}")
        return _read_array(type, elements.split(", ") if elements else [])

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.fail(f"expected {end!r} further on")
        start, self.at = self.at, stop + 1
        return self.text[start:stop]

    def _size(self) -> Size:
        """A size expression, up to a comma or bracket outside parentheses."""
        start, depth = self.at, 0
        while not self.is_done:
            letter = self.text[self.at]
            depth += (letter == "(") - (letter == ")")
            if letter == "]" or (letter == "," and depth == 0):
                break
            self.at += 1
        if start == self.at:
            self.fail("expected a value")
        return read_size(self.text[start : self.at])


def _number(word: str) -> int | float:
    if word.startswith("0x"):
        return struct.unpack(">d", bytes.fromhex(word[2:]))[0]
    if _INT.fullmatch(word) is None:
        return float(_read_elements(float64, [word])[0])
    try:
        return int(word)
    except ValueError as error:
        raise Malformed(f"{excerpt(word)}: {error}") from None


def excerpt(text: str, longest: int = 60) -> str:
    """A quoted excerpt of foreign text for errors: short and printable."""
    return quoted(text if len(text) <= longest else f"{text[:longest]}...")
