"""What a call at top level did while it was traced, and the record of the call of this thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

from tracegraph.core.tensorshape import TensorShape
from tracegraph.eager.slots import Slot, gathered, state_lock
from tracegraph.errors import InvalidArgumentError
from tracegraph.ops.effect import Made


class Record:
    """What a call at top level did while it was traced: its first effects, up to some call of a
    Python function whose results had to be seen for tracing to go on.

    The run of the finished trace takes these results, and does what is left.
    """

    def __init__(self) -> None:
        #: The calls of Python functions that were made, in program order.
        self.made: list[Made] = []
        #: By the number of calls before and the Variable: its value then.
        self._values: dict[tuple[int, int], Any] = {}
        #: By the number of calls before: the shapes that results of undeclared rank have had, with
        #: None for sizes that differed. They are those of the call where they are traced again.
        self.shapes: dict[int, list[TensorShape]] = {}

    def add(self, made: Made, variables: Sequence[Slot]) -> None:
        """Notes a call that was made, and the values of Variables behind it."""
        self.made.append(made)
        self.note_values(variables)

    def note_values(self, variables: Sequence[Slot]) -> None:
        """Notes the values of Variables after the calls so far."""
        with state_lock:
            values = gathered(variables)
        for variable, value in zip(variables, values, strict=True):
            self._values.setdefault((len(self.made), id(variable)), value)

    def values(self, count: int, variables: Sequence[Slot]) -> list[Any]:
        """The values that Variables had after so many calls; those of Variables that were met
        later, which nothing takes, are those now."""
        pairs = zip(variables, gathered(variables), strict=True)
        return [self._values.get((count, id(variable)), now) for variable, now in pairs]


class ResultShapeError(InvalidArgumentError):
    """A Python function returned another shape than was traced, where none is declared. `record`
    has what was done up to there, so that tracing again can go on from it."""

    record: Record


class _Call(local):
    #: The record of the call that this thread makes at top level; None outside of calls.
    record: Record | None = None


_call = _Call()


def current_record() -> Record | None:
    """The record of the call that this thread makes; None outside of calls."""
    return _call.record


@contextmanager
def recorded_call(record: Record | None = None) -> Iterator[None]:
    """A context for a call at top level: what it traces and runs. It begins with no effects, or
    with those that a `record` has."""
    before, _call.record = _call.record, record or Record()
    try:
        yield
    finally:
        _call.record = before
