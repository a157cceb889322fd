"""Statistics, the table, the targets and the JSON file."""

import os
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter

from benchmarks.harness import Outcome
from benchmarks.rows import LONE, TARGETS, UNITS, Row, Target

HEADINGS = ("row", "figure", "peer", "median", "fastest", "/ best", "/ jax")
WIDTHS = (22, 12, 14, 11, 11, 8, 8)
OURS = "tracegraph"


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Ratios are medians of the ratios within one round, since absolute times drift. `to_best` is the
    ratio to the best of the others; a ratio is None if there is nothing to divide by.
    """

    row: str
    figure: str
    variant: str
    unit: str
    median: float
    fastest: float
    to_best: float | None
    to_jax: float | None
    samples: list[float]


def lines_of(outcome: Outcome) -> Iterator[Line]:
    """Returns the lines of one row: per figure, the fastest variant first."""
    for figure in figures_of(outcome):
        samples = {
            variant: [sample[figure] for sample in values]
            for variant, values in outcome.samples.items()
            if figure in values[0]
        }
        yield from sorted(lines_of_figure(outcome.row, figure, samples), key=attrgetter("median"))


def lines_of_figure(row: Row, figure: str, samples: dict[str, list[float]]) -> Iterator[Line]:
    references = {} if figure in LONE else samples
    others = [values for variant, values in references.items() if variant != OURS]
    best = min(others, key=statistics.median, default=None)
    for variant, values in samples.items():
        yield Line(
            row.name,
            figure,
            variant,
            UNITS.get(figure, "s"),
            statistics.median(values),
            min(values),
            paired_ratio(values, best),
            paired_ratio(values, references.get("jax")),
            values,
        )


def figures_of(outcome: Outcome) -> list[str]:
    """Returns the figures that any variant has, in order of appearance."""
    first = (values[0] for values in outcome.samples.values())
    return list(dict.fromkeys(figure for sample in first for figure in sample))


def paired_ratio(values: list[float] | None, reference: list[float] | None) -> float | None:
    """Returns the median ratio of the two samples of each round."""
    if not values or not reference or min(reference) <= 0:
        return None
    return statistics.median(a / b for a, b in zip(values, reference))


def heading() -> str:
    return aligned(HEADINGS)


def table(outcome: Outcome) -> Iterator[str]:
    """Returns the printed lines of one row."""
    yield f"-- {outcome.row.title}"
    for line in lines_of(outcome):
        ratios = ("" if ratio is None else f"{ratio:.2f}" for ratio in (line.to_best, line.to_jax))
        amounts = (amount(value, line.unit) for value in (line.median, line.fastest))
        yield aligned((line.row, line.figure, line.variant, *amounts, *ratios))
    for variant, difference in outcome.differences.items():
        allowed = f"{outcome.row.tolerance:.0e} is allowed"
        yield f"!! {variant}: its result differs by {difference:.1e}, {allowed}"
    for variant, reason in outcome.skipped.items():
        yield f"!! {variant}: failed: {reason}"


def aligned(cells) -> str:
    return " ".join(
        cell.ljust(width) if index < 3 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, WIDTHS))
    ).rstrip()


def amount(value: float, unit: str) -> str:
    """Returns a figure in human-readable form.

    >>> amount(4.5678e-6, "s"), amount(0.0123, "s"), amount(156.2, "MB")
    ('4.568 us', '12.3 ms', '156.2 MB')
    """
    if unit != "s":
        return f"{value:.1f} {unit}"
    for factor, name in ((1e-6, "us"), (1e-3, "ms")):
        if value < factor * 1000:
            return f"{value / factor:.4g} {name}"
    return f"{value:.4g} s"


@dataclass(frozen=True)
class Verdict:
    """A target and what was reached; None if it was not measured."""

    target: Target
    reached: float | None

    @property
    def text(self) -> str:
        target, figure = self.target, f"{self.target.row} {self.target.figure}"
        against = f" / {target.against}" if target.against else ""
        bound = f"{figure}{against} <= {target.limit:g}"
        if self.reached is None:
            return f"{bound:48s} not measured"
        word = "reached" if self.reached <= target.limit else "MISSED"
        return f"{bound:48s} {self.reached:8.3f}  {word}"


def verdicts(outcomes: dict[str, Outcome]) -> list[Verdict]:
    """Returns the verdicts on the targets of the rows that were run."""
    targets = (target for target in TARGETS if target.row in outcomes)
    return [Verdict(target, reached(target, outcomes)) for target in targets]


def reached(target: Target, outcomes: dict[str, Outcome]) -> float | None:
    """Returns tracegraph's figure, divided by what the target compares it with."""
    ours = figure_of(outcomes, target.row, OURS, target.figure)
    if not target.against:
        return statistics.median(ours) if ours else None
    return paired_ratio(ours, figure_of(outcomes, target.row, target.against, target.figure))


def figure_of(
    outcomes: dict[str, Outcome], row: str, variant: str, figure: str
) -> list[float] | None:
    """Returns one figure of each round; None if `variant` was not measured."""
    samples = outcomes[row].samples.get(variant) if row in outcomes else None
    return [sample[figure] for sample in samples] if samples else None


def machine() -> dict:
    """Returns what a reader needs to know about the machine, without its name."""
    return {
        "system": platform.system(),
        "processor": processor(),
        "cores": cores(),
        "python": platform.python_version(),
    }


def cores() -> int | None:
    """Returns how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def processor() -> str:
    if sys.platform != "linux":
        return platform.processor()
    with open("/proc/cpuinfo") as lines:
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def as_json(outcomes: dict[str, Outcome], versions: dict, missing: dict, options: dict) -> dict:
    return {
        "machine": machine(),
        "versions": versions,
        "missing": missing,
        "options": options,
        "rows": [asdict(line) for outcome in outcomes.values() for line in lines_of(outcome)],
        "failed": {name: o.skipped for name, o in outcomes.items() if o.skipped},
        "differences": {name: o.differences for name, o in outcomes.items() if o.differences},
        "targets": [
            {**asdict(verdict.target), "reached": verdict.reached} for verdict in verdicts(outcomes)
        ],
    }
