"""The effects of a top-level call while it was traced, and the record of this thread's call."""

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
    """The effects that a top-level call performed while it was traced: the first ones, up to a call
    of a Python function whose results tracing needed to continue.

    The run of the finished trace takes these results and does the rest.
    """

    def __init__(self) -> None:
        #: The calls of Python functions that were made, in program order.
        self.made: list[Made] = []
        #: By the number of calls before and the Variable: its value then.
        self._values: dict[tuple[int, int], Any] = {}
        #: By the number of calls before: the shapes that results of undeclared rank have had, with
        #: None for sizes that differed. A new trace of the call uses them.
        self.shapes: dict[int, list[TensorShape]] = {}

    def add(self, made: Made, variables: Sequence[Slot]) -> None:
        """Records a call that was made, and the values of Variables after it."""
        self.made.append(made)
        self.note_values(variables)

    def complete(self, place: int, made: Made, variables: Sequence[Slot]) -> None:
        """Records that a call was made in all iterations of the parallel loops around it, of which
        the first ones were made before, and the values of Variables after it."""
        self.made[place] = made
        self.values_now(place + 1, variables)

    def note_values(self, variables: Sequence[Slot]) -> None:
        """Records the values of Variables after the calls so far."""
        self.values_now(len(self.made), variables)

    def values_now(self, count: int, variables: Sequence[Slot]) -> list[Any]:
        """The present values of Variables, recorded as those after `count` calls. What comes after
        the last call takes the latest: until it is done, a signal handler or a thread may assign
        some."""
        with state_lock:
            values = gathered(variables)
        self._values.update(((count, id(v)), x) for v, x in zip(variables, values, strict=True))
        return values

    def values(self, count: int, variables: Sequence[Slot]) -> list[Any]:
        """The values that Variables had after `count` calls; for Variables first seen later, whose
        values nothing takes, the current ones."""
        pairs = zip(variables, gathered(variables), strict=True)
        return [self._values.get((count, id(variable)), now) for variable, now in pairs]


class ResultShapeError(InvalidArgumentError):
    """A Python function whose result shape is undeclared returned another shape than was traced.
    `record` holds what was done up to there, so that a new trace can continue from it."""

    record: Record


class _Call(local):
    #: The record of the call that this thread makes at top level; None outside of calls.
    record: Record | None = None


_call = _Call()


def current_record() -> Record | None:
    """The record of this thread's call; None outside of calls."""
    return _call.record


@contextmanager
def recorded_call(record: Record | None = None) -> Iterator[None]:
    """A context for a call at top level, its tracing and its run. It starts without effects, or
    with those in `record`."""
    before, _call.record = _call.record, record or Record()
    try:
        yield
    finally:
        _call.record = before
