"""Recomputation: residuals that are not kept are recomputed, late, where they are needed.

By default the compiler would merge a recomputation with the first computation, or perform it early:
either way nothing would be saved. So a barrier ties the kept values that it starts from to the
cotangent that has just arrived. The cotangent is read through the barrier, since the compiler drops
barrier operands that nobody reads.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

from tracegraph.control.stacked_residuals import with_less_stacked
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.memory_budgets.estimates import ScheduleStep, most_held
from tracegraph.memory_budgets.residuals import (
    BY_GRADIENT,
    KeptValues,
    Timeline,
    bytes_of,
    kept_in_step,
)
from tracegraph.memory_budgets.row_nodes import with_row_nodes_inside
from tracegraph.memory_budgets.segments import Division, with_segments
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.passes.simplify import dead_code

#: How many segments hold recomputed values at a time: the one that the backward pass is in, and the
#: one before, some of whose nodes come among the first ones of this.
_SEGMENTS_HELD = 2
#: The key in a graph's `cache` for the schedule from which the graph was built.
SCHEDULE = "schedule"


class Schedule:
    """The steps of a timeline under a plan: its own nodes, and the recomputations before them."""

    def __init__(self, timeline: Timeline, plan: KeptValues) -> None:
        self.timeline, self._plan = timeline, plan
        self.steps: list[ScheduleStep] = []
        self.tensors: list[Tensor] = []
        self._first: dict[Tensor, int] = {x: self._number(x) for x in timeline.graph.inputs}
        #: By segment, in order of last use: copies of values, and kept values that are tied.
        self._again: dict[int, dict[Tensor, int]] = {}
        self._tied: dict[int, dict[Tensor, int]] = {}
        #: The values that recomputations read.
        self.begun_from: dict[Tensor, None] = {}
        self._recent: list[Tensor] = []
        self._uses_left = Counter(x for node in timeline.nodes for x in node.inputs)
        self._uses_left.update(timeline.graph.outputs)
        #: How often rules still read each value, and the results of rules that are read again.
        self._rules_left = Counter(x for node in timeline.rules for x in node.inputs)
        self._cotangents: dict[Tensor, None] = {}
        for node in timeline.nodes:
            self._do(node)
        self.outputs = [self._first[y] for y in timeline.graph.outputs]

    def _number(self, x: Tensor) -> int:
        self.tensors.append(x)
        return len(self.tensors) - 1

    def _do(self, node: Node) -> None:
        lacking = [x for x in self.timeline.late_inputs[node] if self.is_made_again(x)]
        again = self._made_again(node, lacking) if lacking else {}
        inputs = {x: again.get(x, self._first[x]) for x in node.inputs}
        outputs = tuple(self._number(y) for y in node.outputs)
        self.steps.append(ScheduleStep(node, tuple(inputs[x] for x in node.inputs), outputs, False))
        self._first.update(zip(node.outputs, outputs, strict=True))
        for x in node.inputs:
            self._uses_left[x] -= 1
        if node in self.timeline.rules:
            self._note_cotangents(node)
        self._recent += [y for y in node.outputs if y not in self.timeline.constant]

    def _note_cotangents(self, node: Node) -> None:
        for x in node.inputs:
            self._rules_left[x] -= 1
            if not self._rules_left[x]:
                self._cotangents.pop(x, None)
        if not isinstance(node.op, BroadcastTo):  # which is never stored
            self._cotangents.update((y, None) for y in node.outputs if self._rules_left[y])

    def is_made_again(self, x: Tensor) -> bool:
        """Whether a residual is recomputed rather than kept."""
        return (
            self.timeline.maker.get(x) in self._plan.segments
            and x not in self._plan.kept
            and x not in self.timeline.staying
        )

    def _made_again(self, node: Node, lacking: Sequence[Tensor]) -> dict[Tensor, int]:
        """The indices of copies of the values, recomputed here if there are none yet."""
        for x in lacking:
            self._use(self._segment(x))
        missing = self._missing(lacking)
        if missing:
            ties = [*self._ties(node, lacking), *self._waiting(node)]
            self._tie(missing, list(dict.fromkeys(ties)))
        for again in missing:
            self._do_again(again)
        found = {x: self._again[self._segment(x)][x] for x in lacking}
        for number in [*self._again][:-_SEGMENTS_HELD]:
            del self._again[number], self._tied[number]
        return found

    def _ties(self, node: Node, lacking: Sequence[Tensor]) -> list[Tensor]:
        """Values that were just computed and are read from here on: a barrier delays only values
        tied to something that is read after it."""
        excluded = {*lacking, *self.timeline.constant, *self.timeline.inputs}
        ties = [x for x in dict.fromkeys(node.inputs) if x not in excluded]
        while not ties and self._recent:
            last = self._recent[-1]
            if self._uses_left[last] > 0 and not self.is_made_again(last):
                return [last]
            self._recent.pop()
        return ties

    def _waiting(self, node: Node) -> Iterator[Tensor]:
        """The cotangents that this and later rules of the phase read. They go through the barrier
        too: otherwise the compiler would fuse the sums of all blocks, such as the cotangents along
        residual connections, into one at the end, and hold their operands until then. Where rules
        have tangents as well, too many values wait, and a barrier would have to store them all."""
        timeline = self.timeline
        if timeline.has_tangents:
            return
        for x in self._cotangents:
            is_of_phase = timeline.phases[timeline.maker[x]] == timeline.phases[node]
            if is_of_phase and x not in timeline.constant and not self.is_made_again(x):
                yield x

    def _use(self, segment: int) -> None:
        self._again[segment] = self._again.pop(segment, {})
        self._tied[segment] = self._tied.pop(segment, {})

    def _copy(self, x: Tensor) -> int | None:
        return self._again.get(self._segment(x), {}).get(x)

    def _segment(self, x: Tensor) -> int:
        """The segment of a recomputed value."""
        return self._plan.segments[self.timeline.maker[x]]

    def _missing(self, lacking: Sequence[Tensor]) -> list[Node]:
        """The nodes to recompute, in order."""
        found: set[Node] = set()
        maker = self.timeline.maker
        stack = [maker[x] for x in lacking if self._copy(x) is None]
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found.add(node)
            stack += [
                maker[x] for x in node.inputs if self.is_made_again(x) and self._copy(x) is None
            ]
        return sorted(found, key=self.timeline.place.__getitem__)

    def _tie(self, missing: Sequence[Node], ties: Sequence[Tensor]) -> None:
        """One barrier between the kept values that are read and the ties. An input of the graph is
        tied if nothing else delays the node that reads it."""
        segments = self._plan.segments
        wanted: dict[tuple[int, Tensor], None] = {}
        delayed: set[Tensor] = set()
        for node in missing:
            segment = segments[node]
            self._use(segment)
            own = [x for x in node.inputs if not self.is_made_again(x)]
            others = [x for x in node.inputs if self.is_made_again(x)]
            made = [x for x in own if x.node is not None and x not in self.timeline.constant]
            made = [x for x in made if x not in self.timeline.inputs]
            is_delayed = bool(made) or any(
                x in delayed or self._copy(x) is not None for x in others
            )
            chosen = made if is_delayed else [x for x in own if x not in self.timeline.constant]
            if is_delayed or chosen:
                delayed.update(node.outputs)
            for x in chosen:
                if x not in self._tied[segment]:
                    wanted[segment, x] = None
        values = list(dict.fromkeys(x for _, x in wanted))
        if not values:
            return
        inputs = tuple(self._first[x] for x in (*values, *ties))
        outputs = [self._number(x) for x in values]
        behind = [self._number(x) for x in ties]
        self.steps.append(ScheduleStep(None, inputs, (*outputs, *behind), True))
        self._first.update(zip(ties, behind, strict=True))
        by_value = dict(zip(values, outputs, strict=True))
        for segment, x in wanted:
            self._tied[segment][x] = by_value[x]
        self.begun_from.update(dict.fromkeys(values))

    def _do_again(self, node: Node) -> None:
        segment = self._plan.segments[node]
        tied = self._tied[segment]
        inputs = []
        for x in node.inputs:
            copy = self._copy(x) if self.is_made_again(x) else tied.get(x)
            inputs.append(self._first[x] if copy is None else copy)
        outputs = tuple(self._number(y) for y in node.outputs)
        self.steps.append(ScheduleStep(node, tuple(inputs), outputs, True))
        self._again[segment].update(zip(node.outputs, outputs, strict=True))

    @cached_property
    def work(self) -> float:
        """The operations in the recomputation steps."""
        costs = self.timeline.costs
        return sum(costs[step.node] for step in self.steps if step.node and step.is_again)

    @property
    def again(self) -> float:
        """All recomputed operations, including those in the bodies of scans."""
        return self.timeline.work - self.timeline.plain.work + self.work

    @cached_property
    def division(self) -> int:
        """The number of segments."""
        return len(set(self._plan.segments.values()))

    @cached_property
    def kept(self) -> int:
        """The bytes that are kept."""
        return sum(map(bytes_of, self._plan.kept))

    @property
    def peak(self) -> int:
        """An estimate of the peak bytes besides inputs and outputs."""
        return self._held[0]

    @property
    def largest(self) -> Tensor:
        """The largest of the values alive at the peak."""
        return max((self.tensors[y] for y in self._held[1]), key=bytes_of)

    @cached_property
    def _held(self) -> tuple[int, list[int]]:
        sizes = [bytes_of(x) for x in self.tensors]
        constant = {y for y, x in enumerate(self.tensors) if x in self.timeline.constant}
        inputs = range(len(self.timeline.graph.inputs))
        return most_held(self._in_likely_order(), sizes, inputs, self.outputs, constant)

    def _in_likely_order(self) -> list[ScheduleStep]:
        """The steps, but with the user's nodes after a gradient, such as an optimizer step, as
        early as possible, since the compiler updates in place."""
        when: dict[int, int] = {}
        places = []
        for i, step in enumerate(self.steps):
            place = i
            if self._is_behind_a_gradient(step):
                place = max((when.get(x, 0) for x in step.inputs), default=0)
            when.update(dict.fromkeys(step.outputs, place))
            places.append((place, i))
        return [self.steps[i] for _, i in sorted(places)]

    def _is_behind_a_gradient(self, step: ScheduleStep) -> bool:
        node = step.node
        if node is None or step.is_again or BY_GRADIENT in node.source.roles:
            return False
        return self.timeline.phases[node] > 0

    def graph(self) -> Graph:
        """The graph of the steps."""
        old = self.timeline.graph
        with Builder(old.name) as builder:
            env = [builder.input_like(x) for x in old.inputs]
            env += [None] * (len(self.tensors) - len(env))  # type: ignore[list-item]
            for step in self.steps:
                inputs = tuple([env[x] for x in step.inputs])
                if step.node is None:
                    made = builder.add(Barrier(), inputs, inputs[-1].source)
                else:
                    source = step.node.source
                    source = source.derived_by(BY_GRADIENT) if step.is_again else source
                    made = builder.add(step.node.op, inputs, source)
                for number, y in zip(step.outputs, made, strict=True):
                    env[number] = y
            graph = dead_code(builder.finish([env[y] for y in self.outputs]))
        graph.cache[SCHEDULE] = self
        return graph


#: The approximate numbers of segments to try. The division matters where work is cheap and much is
#: recomputed: the first two are tried at all prices, the others at the lowest ones.
_DIVISIONS = (1, 6, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96)
_PRICES, _LOWEST = 10, 3
#: The price of a unit of work in bytes when the body of a scan is recomputed: above the work of
#: most elementwise ops, above that of matrix products, zero.
_PRICES_OF_STEPS = (0.2, 0.005, 0.0)
#: Between the extremes, schedules are tried for this many shares of the segments.
_SHARES, _FEWEST_MIXED = 12, 4
#: How many of the smallest schedules are worth a try.
_LEAST = 4
#: A schedule is worth a try only if it needs this fraction, or less, of one with less work.
_STEP = 0.97
#: A schedule that needs at least this fraction of another's bytes is nearly equal to it.
_NEAR = 0.95


def kept_only(timeline: Timeline) -> Schedule:
    """The schedule that keeps every residual."""
    return Schedule(timeline, KeptValues(frozenset(timeline.read_late), {}))


def trade_offs(graph: Graph) -> list[Schedule]:
    """Schedules of a graph, from the one that recomputes nothing to the smallest one: each does
    more work than the one before, and holds less."""
    plain = Timeline(graph)
    others = _with_other_loops(plain.graph)
    timelines = [plain, *(Timeline(other, plain, divisions) for other, divisions in others)]
    found = [schedule for timeline in timelines for schedule in _schedules(timeline)]
    best = found[:1]
    for schedule in sorted(found, key=lambda schedule: (schedule.again, schedule.peak)):
        if schedule.peak < _STEP * best[-1].peak:
            best.append(schedule)
    return [*best, *(schedule for schedule in _least(found) if schedule not in best)]


def _with_other_loops(graph: Graph) -> Iterator[tuple[Graph, list[Division]]]:
    """The graph with scans that stack less, those that stack more first, and how the scans are
    divided."""
    choices = [functools.partial(kept_in_step, price=price) for price in _PRICES_OF_STEPS]
    smaller = [with_less_stacked(graph, choose) for choose in choices]
    yield from ((other, []) for other in smaller if other is not None)
    inside = with_row_nodes_inside(graph)
    if inside is not None:
        smaller = [inside, with_less_stacked(inside, choices[-1])]
        yield from ((other, []) for other in smaller if other is not None)
    for other in (inside or graph, smaller[-1]):
        segmented = None if other is None else with_segments(other, choices[-1])
        if segmented is not None:
            yield segmented


def _least(found: Sequence[Schedule]) -> list[Schedule]:
    """The schedules that hold least, each with another division, the smallest last: where they are
    nearly equal the estimates cannot tell which is smaller."""
    by_size = sorted(found, key=lambda schedule: (schedule.peak, schedule.kept))
    least: dict[int, Schedule] = {}
    for schedule in by_size:
        if _NEAR * schedule.peak <= by_size[0].peak:
            least.setdefault(schedule.division, schedule)
    return [*least.values()][:_LEAST][::-1]


def _schedules(timeline: Timeline) -> Iterator[Schedule]:
    yield kept_only(timeline)
    total, prices = timeline.total(), timeline.prices(_PRICES)
    seen, least = set(), None
    for i, count in enumerate(_DIVISIONS):
        segments = timeline.segments(total // count)
        for price in prices if i < 2 else prices[-_LOWEST:]:
            plan = timeline.plan(segments, price)
            if plan.kept in seen:
                continue
            seen.add(plan.kept)
            schedule = Schedule(timeline, plan)
            yield schedule
            is_divided = schedule.division >= _FEWEST_MIXED
            if is_divided and (least is None or schedule.peak < least[0].peak):
                least = schedule, segments, price
    if least is not None:
        yield from _mixtures(timeline, *least[1:], prices[len(prices) // 2])


def _mixtures(
    timeline: Timeline, segments: dict[Node, int], price: float, high: float
) -> Iterator[Schedule]:
    """Schedules between the smallest one and one that recomputes little: the last of the segments
    have the high price."""
    count = len(set(segments.values()))
    for last in sorted({count * share // _SHARES for share in range(1, _SHARES)} - {0}):
        yield Schedule(timeline, timeline.plan(segments, price, last, high))
