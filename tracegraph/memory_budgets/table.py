"""A table of the memory that a function's programs need, and of the values kept for gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracegraph.ir.tensor import Graph
from tracegraph.memory_budgets.budget import size_text
from tracegraph.memory_budgets.loop_checkpoints import checkpoint_notes
from tracegraph.memory_budgets.recomputation import SCHEDULE, Schedule, kept_only
from tracegraph.memory_budgets.residuals import Residual, Timeline
from tracegraph.views.device_costs import aligned
from tracegraph.views.summary import short_names

#: Longer lines of code are cut in the table.
_LONGEST_CODE = 50


@dataclass(frozen=True)
class MemoryRow:
    """A line of the user's code: how many `values` of it gradients read, or are recomputed from;
    the bytes of those that are `kept` and of those computed `again`, and the floating-point
    operations that computing all of them once takes."""

    file: str
    line: int
    code: str
    values: int = 0
    kept: int = 0
    again: int = 0
    flops: int = 0


@dataclass(frozen=True)
class MemoryTable:
    """The memory that the programs of a function need, in bytes; `str` is a table.

    - `arguments`, `results`: of a call's inputs, including Variables, and of its outputs; `shared`
      are those of the results that are stored in the buffers of arguments.
    - `temporaries`: of intermediate values, the maximum over all programs; a `memory_budget` bounds
      it.
    - `again`: the share of work that is recomputed, such as 0.21.
    - `loops`: which loops run steps again for their gradients, a sentence for each. `again` counts
      the steps of scans; how often a `while` runs is known only at run time.
    - `rows`: a `MemoryRow` for each line whose values gradients read, the largest first.
    """

    name: str
    budget: int | None
    arguments: int
    results: int
    shared: int
    temporaries: int
    again: float
    loops: tuple[str, ...]
    rows: tuple[MemoryRow, ...]

    def __str__(self) -> str:
        head = [
            ("arguments", size_text(self.arguments), ""),
            ("results", size_text(self.results), f"{size_text(self.shared)} in place of arguments"),
            ("temporaries", size_text(self.temporaries), self._bound()),
        ]
        return "\n".join([f"@{self.name}", *aligned(head, "<><"), *self._lines()])

    def _bound(self) -> str:
        return "" if self.budget is None else f"of a memory_budget of {size_text(self.budget)}"

    def _lines(self) -> list[str]:
        if not self.rows:
            return [*self.loops, "gradients read no value of an earlier node"]
        kept, again = (sum(getattr(row, name) for row in self.rows) for name in ("kept", "again"))
        names = short_names({row.file for row in self.rows})
        cells = [
            (
                f"{names[row.file]}:{row.line}",
                f"{row.values:,}",
                size_text(row.kept),
                size_text(row.again),
                f"{row.flops:,}",
                row.code[:_LONGEST_CODE],
            )
            for row in self.rows
        ]
        title = ("line", "values", "kept", "made again", "FLOPs to make", "code")
        said = f"gradients read {size_text(kept + again)}"
        if again:
            said += f": {size_text(kept)} kept, the rest made again by {self.again:.1%} more work"
        elif self.again:
            said += f"; steps of loops run again, {self.again:.1%} more work"
        return ["", *self.loops, said, *aligned([title, *cells], "<>>>><")]

    __repr__ = __str__


def memory_table(programs: Sequence[Any], budget: int | None) -> MemoryTable:
    """The table of the programs that make up a run."""
    needs = [program.memory() for program in programs]
    schedules = [_schedule(program.graph) for program in programs]
    work = sum(schedule.timeline.plain.work for schedule in schedules)
    again = sum(schedule.again for schedule in schedules)
    return MemoryTable(
        name=programs[0].graph.name,
        budget=budget,
        arguments=sum(need.arguments for need in needs),
        results=sum(need.results for need in needs),
        shared=sum(need.shared for need in needs),
        temporaries=max(need.temporaries for need in needs),
        again=again / work if work else 0.0,
        loops=tuple(note for schedule in schedules for note in _notes(schedule)),
        rows=_rows(schedules),
    )


def loop_notes(program: Any) -> list[str]:
    """Which loops of a program run steps again for their gradients."""
    return _notes(_schedule(program.graph))


def _notes(schedule: Schedule) -> list[str]:
    return [*schedule.timeline.notes, *checkpoint_notes(schedule.timeline.graph)]


def _schedule(graph: Graph) -> Schedule:
    """The schedule from which a graph was built, or one of the unchanged graph."""
    return graph.cache.get(SCHEDULE) or kept_only(Timeline(graph))


def _rows(schedules: Sequence[Schedule]) -> tuple[MemoryRow, ...]:
    rows: dict[tuple[str, int], MemoryRow] = {}
    for schedule in schedules:
        timeline = schedule.timeline
        others = [x for x in schedule.begun_from if x not in timeline.read_late]
        others = [timeline.residual(x) for x in others if x not in timeline.staying]
        for residual in (*timeline.residuals, *others):
            _add(rows, residual, schedule.is_made_again(residual.value))
    return tuple(sorted(rows.values(), key=lambda row: (-row.kept, -row.again, -row.flops)))


def _add(rows: dict[tuple[str, int], MemoryRow], residual: Residual, is_again: bool) -> None:
    source = residual.source
    place = source.file, source.line
    row = rows.get(place) or MemoryRow(*place, source.text)
    rows[place] = replace(
        row,
        values=row.values + 1,
        kept=row.kept + (0 if is_again else residual.bytes),
        again=row.again + (residual.bytes if is_again else 0),
        flops=row.flops + residual.flops,
    )
