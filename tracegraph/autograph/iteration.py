"""The iterables of a staged `for`: tensors along their first axis, ranges, and several in step.

A range in a `for` is never built as a tensor: the loop counts.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from tracegraph import nest
from tracegraph.autograph.statements.values import in_graph
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import ShapeError, TraceError, fail
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import Iota
from tracegraph.tensor_arrays.tensor_array import TensorList
from tracegraph.tracing.trace import current_trace


class Steps:
    """Items computed one after another from a counter, which may be a nest of tensors."""

    #: The largest number of items, if it is known while tracing.
    bound: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """The items, for a Python function, which needs to know their number."""
        rows = self.rows()
        if rows is None:
            fail(
                TraceError,
                "a `for` runs over what Python goes through, with a range whose length is known "
                "only when the graph runs",
                fix="give each part as a tensor or a range, or loop over the range and index: x[i]",
            )
        count = nest.flatten(rows)[0].shape[0]
        return iter([nest.map_structure(lambda x, k=k: x[k], rows) for k in range(count)])

    def rows(self) -> Any:
        """All items, as the rows of a nest of tensors; None if their number is unknown."""
        return None

    def first(self) -> Any:
        """The counter at the first item."""
        raise NotImplementedError

    def has(self, counter: Any) -> Any:
        """Whether there is an item at the counter."""
        raise NotImplementedError

    def after(self, counter: Any) -> Any:
        """The counter after the item."""
        raise NotImplementedError

    def item(self, counter: Any) -> Any:
        """The item at the counter."""
        raise NotImplementedError


class Slices(Steps):
    """A tensor along its first axis."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = as_tensor(tensor)
        type = self._tensor.type
        if type.shape == ():
            fail(
                ShapeError,
                f"a `for` runs over the first axis, and a tensor {type} has none",
                fix="loop over tg.range(n), or over a tensor with axes",
            )
        size = type.shape[0]
        self._count = as_tensor(size, int32)
        self.bound = size if isinstance(size, int) else None

    def rows(self) -> Any:
        return self._tensor

    def first(self) -> Any:
        return as_tensor(0, int32)

    def has(self, counter: Any) -> Any:
        return counter < self._count

    def after(self, counter: Any) -> Any:
        return counter + 1

    def item(self, counter: Any) -> Any:
        if self.bound == 0:  # there is no item, but the body is traced anyway
            row = TensorType(self._tensor.dtype, self._tensor.type.shape[1:])
            return full(0, row)
        return self._tensor[counter]


class Range(Steps):
    """From `start` in steps of `delta` up to `limit`, any of which may be values of the graph."""

    def __init__(self, start: Any, limit: Any, delta: Any, dtype: Any = None) -> None:
        bounds = [start, limit, delta]
        if dtype is None:
            typed = [x for x in bounds if not isinstance(x, (int, float))]
            dtype = as_tensor(typed[0] if typed else sum(bounds)).dtype
        is_number = isinstance(delta, (int, float))
        fact, fix = "range: the step is 0", "use a step such as 1 or -1"
        if is_number and not delta:
            fail(ShapeError, fact, fix=fix)
        if not is_number and (trace := current_trace()) is not None:
            trace.check(as_tensor(delta != 0), fact, (), fix)
        self._rises = delta > 0 if is_number else None
        self._known = None
        if all(isinstance(x, int) for x in bounds) and delta:
            self._known = builtins.range(*bounds)
            self.bound = len(self._known)
        self._start, self._limit = as_tensor(start, dtype), as_tensor(limit, dtype)
        # A number is part of the body, which shows that the counter ends the loop.
        self._delta = delta if is_number else as_tensor(delta, dtype)

    def rows(self) -> Any:
        if self._known is None:
            return None
        return self._start + self._delta * Iota(len(self._known), self._start.dtype)()

    def first(self) -> Any:
        return self._start

    def has(self, counter: Any) -> Any:
        if self._rises is not None:
            return counter < self._limit if self._rises else counter > self._limit
        rises = (self._delta > 0) & (counter < self._limit)
        return rises | ((self._delta < 0) & (counter > self._limit))

    def after(self, counter: Any) -> Any:
        return counter + self._delta

    def item(self, counter: Any) -> Any:
        return counter


class InStep(Steps):
    """Several sequences in step: tuples of their items, until the shortest ends."""

    def __init__(self, steps: Sequence[Steps]) -> None:
        self._steps = steps
        self.bound = min((x.bound for x in steps if x.bound is not None), default=None)

    def rows(self) -> Any:
        rows = [x.rows() for x in self._steps]
        is_known = all(x.bound is not None for x in self._steps) and not any(
            x is None for x in rows
        )
        return tuple([nest.map_structure(self._cut, x) for x in rows]) if is_known else None

    def _cut(self, row: Any) -> Any:
        return row if row.shape[0] == self.bound else row[: self.bound]

    def first(self) -> Any:
        return tuple([x.first() for x in self._steps])

    def has(self, counter: Any) -> Any:
        all_have, *others = [x.has(at) for x, at in zip(self._steps, counter, strict=True)]
        for has in others:
            all_have = all_have & has
        return all_have

    def after(self, counter: Any) -> Any:
        return tuple([x.after(at) for x, at in zip(self._steps, counter, strict=True)])

    def item(self, counter: Any) -> Any:
        return tuple([x.item(at) for x, at in zip(self._steps, counter, strict=True)])


class Enumerated(InStep):
    """Items with their numbers."""

    def __init__(self, start: Any, steps: Steps) -> None:
        last = None if steps.bound is None or not isinstance(start, int) else start + steps.bound
        super().__init__([_Numbers(start) if last is None else Range(start, last, 1), steps])


class _Numbers(Range):
    """All numbers from `start` on."""

    def __init__(self, start: Any) -> None:
        super().__init__(start, start, 1)
        self.bound = None

    def has(self, counter: Any) -> Any:
        return as_tensor(True)


def staged_steps(iterated: Any) -> Steps | None:
    """The steps of a loop that a graph must compute; None for one that Python iterates."""
    if isinstance(iterated, Steps):
        return iterated
    if isinstance(iterated, TensorList) and not iterated.has_known_length:
        return Slices(iterated.stack())
    return Slices(iterated) if in_graph(iterated) else None


def steps_of_range(*bounds: Any) -> Range | None:
    """The steps of Python's `range`, if a graph must compute a bound."""
    if not any(map(in_graph, bounds)):
        return None
    start, limit, delta = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return Range(start, limit, delta)


def steps_of_tensor_range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: Any = None
) -> Range:
    """The steps of `tg.range`."""
    start, limit = (0, start) if limit is None else (start, limit)
    return Range(start, limit, delta, dtype)


def steps_in_step(*iterables: Any, strict: bool = False) -> Steps | None:
    """The steps of `zip`, if a graph must compute all of its sequences; if they must have equal
    lengths, that must be known."""
    if any(isinstance(x, Steps) for x in iterables):
        iterables = tuple([_as_range(x) for x in iterables])
    steps = [found for found in map(staged_steps, iterables) if found is not None]
    bounds = {found.bound for found in steps}
    is_strict = strict and (len(bounds) != 1 or None in bounds)
    return InStep(steps) if steps and len(steps) == len(iterables) and not is_strict else None


def _as_range(iterable: Any) -> Any:
    """A Python range as one that a graph counts through; anything else unchanged."""
    if not isinstance(iterable, builtins.range):
        return iterable
    return Range(iterable.start, iterable.stop, iterable.step)


def numbered_steps(iterable: Any, start: Any = 0) -> Steps | None:
    """The steps of `enumerate`, if a graph must compute them."""
    steps = staged_steps(iterable)
    return None if steps is None else Enumerated(start, steps)


#: Functions that create steps in a `for`, by the function that the user called; `tracegraph.api`
#: adds `tg.range`.
makers: dict[Any, Any] = {enumerate: numbered_steps, range: steps_of_range, zip: steps_in_step}


def maker(function: Any) -> Any:
    """The function that creates steps in place of one called in a `for`; or None."""
    try:
        return makers.get(inspect.unwrap(function))
    except TypeError:  # not hashable
        return None
