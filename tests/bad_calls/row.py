"""Rows of calls that are wrong, and the operands that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tracegraph as tg

DTYPE, SHAPE, VALUE = tg.errors.DTypeError, tg.errors.ShapeError, ValueError
GRADIENT, TRACE, FAILED = (
    tg.errors.GradientError,
    tg.errors.TraceError,
    tg.errors.InvalidArgumentError,
)


class Row(NamedTuple):
    """A call, whose parameters are named as the operands that it is given."""

    path: str
    call: Callable[..., Any]
    kind: type[Exception]
    words: tuple[str, ...]


#: What the parameters of a row stand for.
OPERANDS = {
    "x": tg.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "y": tg.constant([[1.0, 2.0], [3.0, 4.0]]),
    "v": tg.constant([1.0, 2.0, 3.0, 4.0]),
    "i": tg.constant([1, 2, 3]),
    "b": tg.constant([True, False]),
    "s": tg.constant(2.0),
    "image": tg.ones([1, 4, 4, 3]),
}


def rows(path: str, *bad: tuple[Any, ...]) -> list[Row]:
    return [Row(path, call, kind, words) for call, kind, *words in bad]
