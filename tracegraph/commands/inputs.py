"""Values of `--inputs`: the trace that takes them, and their arrays from files and texts."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tracegraph.commands.answers import Misuse, refuse_name
from tracegraph.commands.contents import Contents, Input, NamedGraph
from tracegraph.core.shapes import dim_names
from tracegraph.core.source import UNKNOWN
from tracegraph.core.types import DType, TensorType, type_of_array
from tracegraph.errors import LoadError, Mismatch, fail, reason_of, shown
from tracegraph.passes.specialise import bind_sizes

#: How a .npy file begins, and where its header has the kind of its elements.
_MAGIC, _LONGEST_START = b"\x93NUMPY", 256


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """The inputs by name, as written by the user."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            fix = "write --inputs name=file.npy or name=1.5"
            raise Misuse(f"the input {text!r} has no name", fix)
        if not value:
            fix = f"write --inputs {name}=file.npy or {name}=1.5"
            raise Misuse(f"the value of the input {name!r} is missing", fix)
        if name in found:
            fact = f"the input {name!r} is given twice: {shown(found[name])} and {shown(value)}"
            raise Misuse(fact, f"give {name}=... once")
        found[name] = value
    return found


# The trace.


def fitting(contents: Contents, name: str | None, given: Mapping[str, str]) -> NamedGraph:
    """The trace that accepts the given inputs, with defaults for the others. Raises Misuse if there
    is none, or more than one."""
    traces = [contents.one(name)] if name is None else contents.find(name)
    if len(traces) == 1:
        _check_names(traces[0], given)
        return traces[0]
    found = [entry for entry in traces if _fits(entry, given)]
    if not found:
        raise Misuse(
            f"none of the {len(traces)} traces of {name} takes these inputs:{_rows(traces)}",
            "give the inputs of one of them",
        )
    found = [entry for entry in found if entry.has_defaults_but_for(given)] or found
    if any(entry.fixed != found[0].fixed for entry in found):
        raise Misuse(
            f"several traces of {name} take these inputs:{_rows(found)}",
            f"say which: {_difference(found)}; or choose one by --entry",
        )
    is_exact = (entry for entry in found if all(x.type.is_static for x in entry.inputs))
    return next(is_exact, found[0])


def _rows(entries: Sequence[NamedGraph]) -> str:
    return "".join(f"\n    {entry.name}  ({entry.arguments_text})" for entry in entries)


def _difference(entries: Sequence[NamedGraph]) -> str:
    """The inputs that would distinguish the traces, with the values of the first."""
    first = entries[0].fixed
    names = [n for n in first if any(n not in x.fixed or x.fixed[n] != first[n] for x in entries)]
    return " ".join(["add --inputs", *(f"{name}={first[name]}" for name in names)])


def _fits(entry: NamedGraph, given: Mapping[str, str]) -> bool:
    try:
        _check_names(entry, given)
        arrays_of(entry, given)
    except Misuse:
        return False
    return True


def _check_names(entry: NamedGraph, given: Mapping[str, str]) -> None:
    names = [x.name for x in entry.inputs]
    takes = f"{entry.name} takes ({entry.arguments_text})"
    for name in given:
        if name not in names and name not in entry.fixed:
            refuse_name(f"{entry.name} has no input {name!r}", name, names, takes)
    for name, value in entry.fixed.items():
        if name in given and given[name] not in _spellings(value):
            raise Misuse(f"{name} is {given[name]}, and the trace has {value!r}", takes)
    missing = [n for n in names if n not in given and entry.default_array(n) is None]
    if missing:
        raise Misuse(
            f"{entry.name} needs a value for {', '.join(missing)}",
            f"add --inputs {' '.join(f'{name}=...' for name in missing)}; {takes}",
        )


def _spellings(value: Any) -> tuple[str, ...]:
    """How a Python value may be written: as in Python and as in JSON."""
    found = [str(value), repr(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        found.append(json.dumps(value))
    return tuple(found)


# The arrays.


def arrays_of(entry: NamedGraph, given: Mapping[str, str]) -> list[np.ndarray]:
    """The inputs in order. Raises Misuse for one of another type."""
    arrays = [_given_or_default(entry, own, given) for own in entry.inputs]
    types = [own.type for own in entry.inputs]
    found = [type_of_array(array) for array in arrays]
    for own, type in zip(entry.inputs, found):
        try:
            bind_sizes([own.type], [type])
        except Mismatch:
            fact = f"the input {own.name!r} is {type}, and {own.type} is expected"
            raise Misuse(fact, _shape_fix(own.type)) from None
    try:
        bind_sizes(types, found)
    except Mismatch as mismatch:
        raise Misuse(f"the inputs of {entry.name}: {mismatch.fact}", mismatch.fix) from None
    return arrays


def _given_or_default(entry: NamedGraph, own: Input, given: Mapping[str, str]) -> np.ndarray:
    if own.name in given:
        return _array(own, given[own.name])
    default = entry.default_array(own.name)
    assert default is not None, own.name
    return default


def _shape_fix(type: TensorType) -> str:
    """The expected shape, and which of its sizes are free."""
    if type.shape == ():
        return "give one number, without brackets"
    words = str(type).partition("[")[2]
    sizes = type.shape if isinstance(type.shape, tuple) else ()
    names = sorted(set().union(*map(dim_names, sizes)))
    free = f"; {', '.join(names)} may be any size" if names else ""
    return f"give an array of the shape [{words}{free}"


def _array(own: Input, text: str) -> np.ndarray:
    return _from_file(own, Path(text)) if text.endswith(".npy") else _from_text(own, text)


def carrier_of(dtype: DType) -> np.dtype | None:
    """The dtype in which a file stores, bit for bit, values of a dtype that NumPy lacks."""
    if dtype.numpy_dtype.isbuiltin == 1:
        return None
    return np.dtype(np.float32 if dtype.is_differentiable else np.int8)


def _from_file(own: Input, path: Path) -> np.ndarray:
    try:
        array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError)
        fix = f'write it with np.save("{path}", array)' if is_absent else "give a file to read"
        fact = f"the input {own.name!r}: {path} cannot be read: {reason_of(error)}"
        raise Misuse(fact, fix) from None
    except (ValueError, EOFError) as error:
        _refuse_file(path, error)
    wanted = own.type.dtype
    if wanted.numpy_dtype == array.dtype:
        return array
    carrier = carrier_of(wanted)
    if carrier and array.dtype in (carrier, np.dtype(f"V{wanted.size}")):
        is_raw = array.dtype.kind == "V"
        return array.view(wanted.numpy_dtype) if is_raw else array.astype(wanted.numpy_dtype)
    fix = f"save it as {(carrier or wanted.numpy_dtype).name}: array.astype(...)"
    given = array.dtype.name
    raise Misuse(f"the input {own.name!r} is {given} in {path}, and {own.type} is expected", fix)


def _refuse_file(path: Path, error: Exception) -> NoReturn:
    """Says what a file that NumPy cannot read is. NumPy's own advice is to allow pickles, which run
    any code they contain."""
    with path.open("rb") as file:
        start = file.read(_LONGEST_START)
    fix = "write an array of numbers with np.save"
    if not start:
        why = "it is empty"
    elif not start.startswith(_MAGIC):
        why = "it does not begin as a .npy file does"
    elif b"'|O'" in start:
        why, fix = "it holds Python objects", "convert them to numbers: array.astype(np.float32)"
    else:
        why = "its header or its data is damaged"
    fact = f"{path} is not an array of numbers: {why}"
    fail(LoadError, fact, source=UNKNOWN, fix=fix, cause=error)


# Numbers and lists of them.

_Number = bool | int | float | complex
_WORD, _WHOLE = re.compile(r"[^\s\[\],]+"), re.compile(r"[-+]?\d+")
_TRUTH = {"true": True, "True": True, "false": False, "False": False}


class _Literal(NamedTuple):
    """Nested lists as the elements and shape of an array; a single number has shape ()."""

    numbers: list[_Number]
    shape: tuple[int, ...]


def _from_text(own: Input, text: str) -> np.ndarray:
    """The array for a number, a boolean or nested lists of them. Raises Misuse."""
    literal = _literal(own, text)
    wanted = own.type.dtype
    for number in literal.numbers:
        if not _mixes(number, wanted):
            fact = f"the input {own.name!r} has {number}, and {own.type} is expected"
            raise Misuse(fact, f"give {_KINDS[wanted.kind]}")
    _check_range(own, literal.numbers)
    return np.asarray(literal.numbers, wanted.numpy_dtype).reshape(literal.shape)


def _literal(own: Input, text: str) -> _Literal:
    """Reads JSON's numbers, booleans and lists, and Python's `nan`, `inf` and complex numbers,
    which JSON lacks: each word is replaced by its index in the text, and JSON parses the lists."""
    numbers: list[_Number] = []

    def numbered(word: re.Match[str]) -> str:
        numbers.append(_number(word[0]))
        return str(len(numbers) - 1)

    try:
        places = json.loads(_WORD.sub(numbered, text))
    except (ValueError, RecursionError):
        _refuse_text(own, text)
    try:
        return _Literal(numbers, np.shape(places))
    except ValueError:
        fact = f"the input {own.name!r} is {shown(text)}, whose lists differ in length"
        raise Misuse(f"{fact}, and {own.type} is expected", _shape_fix(own.type)) from None


def _number(word: str) -> _Number:
    """Parses a word. Raises ValueError if it is not a number."""
    if word in _TRUTH:
        return _TRUTH[word]
    if word[-1] in "jJ)":
        return complex(word)
    return int(word) if _WHOLE.fullmatch(word) else float(word)


def _refuse_text(own: Input, text: str) -> NoReturn:
    fact = f"the input {own.name!r} is {shown(text)}, and {own.type} is expected"
    suffix = Path(text).suffix
    if suffix == ".npz":
        fact += ": .npz files hold several arrays and are not read"
        raise Misuse(fact, f'save one: np.save("{own.name}.npy", np.load("{text}")[name])')
    if os.path.isfile(text):
        raise Misuse(f"{fact}: files are read as .npy", f'write np.save("{own.name}.npy", array)')
    raise Misuse(
        fact,
        "give a file.npy, a number such as 1.5, 1+2j, nan or -inf, true, or lists such as "
        "[[1,2],[3,4]]",
    )


_KINDS = {
    "bool": "true or false",
    "integer": "whole numbers",
    "floating": "real numbers",
    "complex": "numbers",
}


def _mixes(number: _Number, wanted: DType) -> bool:
    """Whether a number may stand for a value of a dtype without loss."""
    if isinstance(number, bool) or wanted.is_bool:
        return isinstance(number, bool) and wanted.is_bool
    if isinstance(number, complex):
        return wanted.is_complex
    return isinstance(number, int) or wanted.is_differentiable


def _check_range(own: Input, numbers: Sequence[_Number]) -> None:
    """Raises Misuse for a number out of the dtype's range, which NumPy would make infinite."""
    dtype = own.type.dtype
    if dtype.is_bool:
        return
    kind = float if dtype.is_differentiable else int
    low, high = kind(dtype.real.min), kind(dtype.real.max)
    for number in numbers:
        parts = (number.real, number.imag)
        if any(not low <= x <= high and _overflows(x, dtype) for x in parts):
            fact = f"the input {own.name!r} has {number}, which is out of range: {dtype.name}"
            raise Misuse(f"{fact} goes from {low} to {high}", "give numbers in that range")


def _overflows(number: float, dtype: DType) -> bool:
    """Whether a number beyond the largest one is not just rounded to it, as NumPy's printed form of
    the largest number is."""
    if isinstance(number, int):
        return True
    with np.errstate(over="ignore"):
        rounded = np.float64(number).astype(dtype.real.numpy_dtype)
    return math.isfinite(number) and not np.isfinite(rounded)
