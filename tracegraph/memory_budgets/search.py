"""Finds programs that fit a budget: estimates what to recompute, compiles, and measures.

The compiler fuses, shares and reorders, so only a compiled program tells what it needs. The
schedules of a graph are ordered by their work; estimates, corrected by the measurements so far, say
which to try, and bisection continues from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

from tracegraph.control.stacked_whiles import with_stacked_whiles
from tracegraph.eager import backend
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.tensor import Graph
from tracegraph.memory_budgets.budget import size_text
from tracegraph.memory_budgets.loop_checkpoints import with_checkpoints
from tracegraph.memory_budgets.recomputation import Schedule, trade_offs
from tracegraph.passes.simplify import dead_code

#: How many programs are compiled to approach the optimum, and how many of the smallest ones if none
#: of those fits.
_MOST_TRIES, _LAST_TRIES = 5, 4
#: The excess of recomputation, as a share of all work, that is accepted over the least that might
#: fit.
_GAIN = 0.02
#: The assumed ratio of a program's memory to its estimate before one is measured; the lowest ratio
#: assumed for any.
_USUAL, _LEAST = 1.1, 0.6
#: The divisors of the budget by which loops choose how many states they keep: the first that fits.
#: The last leaves each of them two.
_SHARES_OF_LOOPS = (4, 16, sys.maxsize)


def fitted(graph: Graph, donated: Sequence[int], budget: int) -> Any:
    """The program of a graph that takes `budget` bytes beside its inputs and outputs at most, with
    as little work as was found. Raises InvalidArgumentError with the least that was found."""
    pruned, searches = dead_code(graph), []
    with backend.compiling:
        for share in _SHARES_OF_LOOPS:
            found = with_stacked_whiles(pruned, budget // share)
            found = with_checkpoints(found, budget // share, lowers_all=bool(searches))
            if searches and found is searches[-1].graph:
                continue
            searches.append(_ProgramSearch(found.assigning_as(graph), donated, budget))
            program = searches[-1].run()
            if program is not None:
                return program
    min(searches, key=lambda search: search.least).refuse()


class _ProgramSearch:
    def __init__(self, graph: Graph, donated: Sequence[int], budget: int) -> None:
        self.graph, self._donated, self._budget = graph, tuple(donated), budget
        #: The compiled programs, by their index among the schedules, and the bytes that they take.
        self._programs: dict[int, Any] = {}
        self._needs: dict[int, int] = {}

    @cached_property
    def _schedules(self) -> list[Schedule]:
        return trade_offs(self.graph)

    def run(self) -> Any:
        """A program that fits; None if none was found."""
        if self._schedules[0].peak * _LEAST <= self._budget and self._holds(0):
            return self._programs[0]
        place = self._closest()
        return None if place is None else self._programs[place]

    def _holds(self, place: int) -> bool:
        """Whether the program of a schedule fits the budget; the first one is the unchanged
        graph."""
        graph = self._schedules[place].graph() if place else self.graph
        program = backend.program(graph.assigning_as(self.graph), self._donated)
        needed = program.memory().temporaries
        self._needs[place] = needed
        if needed <= self._budget:
            self._programs[place] = program
        return needed <= self._budget

    def _closest(self) -> int | None:
        """The index of a schedule that fits, with hardly more work than one that does not."""
        fails, holds, found = 0, len(self._schedules), None
        for _ in range(_MOST_TRIES):
            place = self._promising(fails, holds)
            if place is None:
                break
            if self._holds(place):
                holds = found = place
            else:
                fails = place
        if found is not None:
            return found
        last = range(len(self._schedules) - 1, -1, -1)[:_LAST_TRIES]
        return next((i for i in last if i not in self._needs and self._holds(i)), None)

    def _promising(self, fails: int, holds: int) -> int | None:
        """The index of the schedule in between with the least work that is expected to fit; None if
        none is worth a try."""
        between = range(fails + 1, holds)
        if holds < len(self._schedules):
            least = self._schedules[fails + 1].again
            if self._schedules[holds].again - least <= _GAIN * self._schedules[0].timeline.work:
                return None
        measured = max(self._needs, default=None)
        share = _USUAL
        if measured is not None and self._schedules[measured].peak:
            share = self._needs[measured] / self._schedules[measured].peak
        likely = (i for i in between if self._schedules[i].peak * share <= self._budget)
        found = next(likely, None)
        if found is None and between and holds == len(self._schedules):
            return between[-1]
        return found

    @property
    def least(self) -> int:
        """The fewest bytes that any program took."""
        return min(self._needs.values())

    def refuse(self) -> NoReturn:
        """Raises the error for a budget that no program fits."""
        place = min(self._needs, key=self._needs.__getitem__)
        needed, given = size_text(self._needs[place]), size_text(self._budget)
        if needed == given:  # as rounded
            needed, given = f"{self._needs[place]} B", f"{self._budget} B"
        largest = self._schedules[place].largest
        loops = "".join(f" ({note})" for note in self._schedules[place].timeline.notes)
        fail(
            InvalidArgumentError,
            f"the least found for {self.graph.name} is {needed} in addition to its arguments and "
            f"results, and its memory_budget is {given}. The largest value when it holds most is "
            f"{largest.type}{loops}",
            source=largest.source,
            fix=f'give memory_budget="{needed.replace(" ", "")}" or more, or compute with smaller '
            "tensors, such as smaller batches",
        )
