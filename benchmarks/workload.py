"""What a peer passes to the worker to measure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Workload:
    """A step that can be repeated.

    ``step()`` may return before its result is ready; ``block(output)`` waits for it.
    ``observe(output)`` returns the values to compare with the other peers. ``scope()`` is entered
    around everything that is measured; it holds a peer's thread-local settings.
    """

    step: Callable[[], Any]
    block: Callable[[Any], Any]
    observe: Callable[[Any], Iterable[Any]]
    scope: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def first_results(self, count: int) -> list[float]:
        """Returns the results of the next `count` steps, as one flat list."""
        with self.scope():
            return [number for _ in range(count) for number in flat(self.observe(self.step()))]

    def seconds(self, count: int) -> float:
        """Returns the seconds that `count` steps take, including the wait for the last one."""
        with self.scope():
            self.block(self.step())  # caches are cold after another peer's turn
            start = time.perf_counter()
            for _ in range(count):
                output = self.step()
            self.block(output)
            return time.perf_counter() - start

    def calls_lasting(self, seconds: float) -> int:
        """Returns how many steps take about `seconds`."""
        count = 1
        # The first loop of each length may compile.
        while (elapsed := min(self.seconds(count), self.seconds(count))) < seconds / 4:
            count *= 2
        return max(1, round(count * seconds / elapsed))


@dataclass(frozen=True)
class Phases:
    """The seconds of each phase of one cold run, its result, and figures that are not seconds."""

    seconds: dict[str, float]
    result: list[float] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def beside(self, tenth: Phases) -> Phases:
        """Returns these phases with their ratio to those of a workload a tenth as large."""
        return replace(self, others={"to a tenth": self.total / tenth.total})


def first_step(make: Callable[[float], Workload]) -> Callable[[int], Phases]:
    """The first step of a new program. `make` builds it with a number that differs in each turn, so
    that no cache has seen it before."""

    def phases(turn: int) -> Phases:
        workload, watch = make(1.0 - 1e-4 * (turn + 1)), Stopwatch()
        with workload.scope(), watch("first step"):
            output = workload.step()
            workload.block(output)
        return Phases(watch.seconds, flat(workload.observe(output)))

    return phases


class Stopwatch:
    """Records the seconds of consecutive phases.

    >>> watch = Stopwatch()
    >>> with watch("trace"):
    ...     pass
    >>> list(watch.seconds)
    ['trace']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str):
        start = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - start


def flat(values: Iterable[Any]) -> list[float]:
    """Returns the numbers of all arrays in `values`, in order."""
    return [number for value in values for number in np.ravel(np.asarray(value)).tolist()]
