"""The text that `tg.print` writes: values as TensorFlow formats them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.core.settings import settings
from tracegraph.errors import TraceError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.state.variable import Variable

#: Stands in for a tensor while a structure is formatted: no text of a user's contains it.
_HOLE = f"<{os.urandom(16).hex()}>"
#: Significant digits to try: the fewer, if they round-trip.
_DIGITS = {True: (15, 17), False: (6, 9)}


class _Hole:
    """Stands in for a value in the text of a structure, and records the value when formatted: so
    the
    values are in the order of the text."""

    def __init__(self, value: Any, shown: list[Any]) -> None:
        self._value = value
        self._shown = shown

    def __repr__(self) -> str:
        self._shown.append(self._value)
        return _HOLE


def template_of(inputs: Sequence[Any], sep: str, end: str) -> tuple[tuple[str, ...], list[Any]]:
    """The text pieces around the tensors, Variables and arrays in `inputs`, one more than there are
    values, and the values themselves."""
    found: list[Any] = []

    def hole(leaf: Any) -> Any:
        is_array = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
        if not is_array and not isinstance(leaf, (Tensor, Variable)):
            return leaf
        return _Hole(leaf, found)

    parts = [str(nest.map_structure(hole, part)) for part in inputs]
    return tuple((sep.join(parts) + end).split(_HOLE)), found


class AppendedFile:
    """A file that prints append to. No string can stand for it: a graph parsed from text names the
    file but does not write to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: Its name in the text of a graph.
        self.__qualname__ = f"file://{path}"

    def write(self, text: str) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(text)

    def flush(self) -> None:
        """Does nothing: each text is written immediately."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AppendedFile) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)


class Template:
    """The function of arrays that prints: `pieces` are the texts around them.

    `summarize` elements are shown at each end of an axis, all for -1. `stream` is "stdout",
    "stderr", or a stream.
    """

    def __init__(self, pieces: Sequence[str], summarize: int, stream: Any) -> None:
        self._pieces = pieces
        self._summarize = summarize
        self._stream = stream

    def __call__(self, *arrays: np.ndarray) -> tuple[()]:
        if not settings.makes_effects:
            return ()
        values = [value_text(np.asarray(array), self._summarize) for array in arrays]
        rows = itertools.zip_longest(self._pieces, values, fillvalue="")
        _write("".join(itertools.chain.from_iterable(rows)), self._stream)
        return ()


def _write(text: str, stream: Any) -> None:
    if isinstance(stream, str):
        stream = {"stdout": sys.stdout, "stderr": sys.stderr}[stream]
    if not hasattr(stream, "write"):
        fail(
            TraceError,
            f"tg.print: {shown(stream)} is not a stream to write to",
            fix="print to sys.stdout or sys.stderr, which the text of a graph can name",
        )
    stream.write(text)
    stream.flush()


def value_text(array: np.ndarray, summarize: int) -> str:
    """An array as TensorFlow prints it: numbers as short as exactness allows, one row below
    another,
    and only the first and last elements of long axes.

    >>> value_text(np.array([[1.0, 0.5], [2.0, 4.0]]), 3)
    '[[1 0.5]\\n [2 4]]'
    """
    return _rows(array, summarize, 1)


def _rows(array: np.ndarray, summarize: int, depth: int) -> str:
    if array.ndim == 0:
        return _number(array[()])
    between = " " if array.ndim == 1 else "\n" * (array.ndim - 1) + " " * depth
    size = len(array)
    if summarize == -1 or size <= 2 * summarize:
        texts = [_rows(x, summarize, depth + 1) for x in array]
    else:
        ends = [*array[:summarize], *array[size - summarize :]]
        texts = [_rows(x, summarize, depth + 1) for x in ends]
        texts.insert(summarize, "...")
    return f"[{between.join(texts)}]"


def _number(value: Any) -> str:
    if isinstance(value, np.bool_):
        return str(int(value))
    if isinstance(value, np.complexfloating):
        imaginary = _number(value.imag)
        return f"({_number(value.real)}{'' if imaginary.startswith('-') else '+'}{imaginary}j)"
    if isinstance(value, np.integer):
        return str(value)
    is_double = isinstance(value, np.float64)
    exact = value if is_double else np.float32(value)
    few, many = _DIGITS[is_double]
    text = f"{exact:.{few}g}"
    return text if type(exact)(text) == exact or exact != exact else f"{exact:.{many}g}"


__all__ = ["AppendedFile", "Template", "template_of", "value_text"]
