"""Recomputation: residuals that are not kept are computed again, late, where they are asked for.

The compiler would merge what is computed again with what was computed before, or compute it again
at once: either way nothing would be saved. So one barrier ties the kept values that it starts from
to the cotangent that has just arrived. The cotangent is read behind the barrier, since a compiler
drops what nobody reads from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.memory_budgets.estimates import Step, most_held
from tracegraph.memory_budgets.residuals import BY_GRADIENT, Plan, Timeline, bytes_of, cost
from tracegraph.memory_budgets.stacked_residuals import with_less_stacked
from tracegraph.ops.barrier import Barrier
from tracegraph.passes.simplify import dead_code

#: How many segments hold what was computed again: the one that the backward pass is in, and the
#: one before, some of whose nodes stand among the first ones of this.
_SEGMENTS_HELD = 2
#: The key in `cache` of a graph for the schedule that it was made by.
SCHEDULE = "schedule"


class Schedule:
    """The steps of a timeline under a plan: its own nodes, and what is done again before them."""

    def __init__(self, timeline: Timeline, plan: Plan) -> None:
        self.timeline, self._plan = timeline, plan
        self.steps: list[Step] = []
        self.tensors: list[Tensor] = []
        self._first: dict[Tensor, int] = {x: self._number(x) for x in timeline.graph.inputs}
        #: By segment, the last used at the end: copies of values, and kept values that are tied.
        self._again: dict[int, dict[Tensor, int]] = {}
        self._tied: dict[int, dict[Tensor, int]] = {}
        #: What is read to compute other values again.
        self.begun_from: dict[Tensor, None] = {}
        self._recent: list[Tensor] = []
        self._uses_left = Counter(x for node in timeline.nodes for x in node.inputs)
        self._uses_left.update(timeline.graph.outputs)
        for node in timeline.nodes:
            self._do(node)
        self.outputs = [self._first[y] for y in timeline.graph.outputs]

    def _number(self, x: Tensor) -> int:
        self.tensors.append(x)
        return len(self.tensors) - 1

    def _do(self, node: Node) -> None:
        lacking = [x for x in self.timeline.late_inputs(node) if self.is_made_again(x)]
        again = self._made_again(node, lacking) if lacking else {}
        inputs = {x: again.get(x, self._first[x]) for x in node.inputs}
        outputs = tuple(self._number(y) for y in node.outputs)
        self.steps.append(Step(node, tuple(inputs[x] for x in node.inputs), outputs, False))
        self._first.update(zip(node.outputs, outputs, strict=True))
        self._uses_left.subtract(node.inputs)
        self._recent += [y for y in node.outputs if y not in self.timeline.constant]

    def is_made_again(self, x: Tensor) -> bool:
        """Whether a residual is not kept."""
        return (
            self.timeline.maker.get(x) in self._plan.segments
            and x not in self._plan.kept
            and x not in self.timeline.staying
        )

    def _made_again(self, node: Node, lacking: Sequence[Tensor]) -> dict[Tensor, int]:
        """The numbers of copies of the values, which are computed here if they are not there."""
        for x in lacking:
            self._use(self._segment(x))
        missing = self._missing(lacking)
        if missing:
            self._tie(missing, self._ties(node, lacking))
        for again in missing:
            self._do_again(again)
        found = {x: self._again[self._segment(x)][x] for x in lacking}
        for number in [*self._again][:-_SEGMENTS_HELD]:
            del self._again[number], self._tied[number]
        return found

    def _ties(self, node: Node, lacking: Sequence[Tensor]) -> list[Tensor]:
        """What has just been made, and is read from now on: a barrier delays only what it ties to
        something that is read behind it."""
        excluded = {*lacking, *self.timeline.constant, *self.timeline.inputs}
        ties = [x for x in dict.fromkeys(node.inputs) if x not in excluded]
        while not ties and self._recent:
            last = self._recent[-1]
            if self._uses_left[last] > 0 and not self.is_made_again(last):
                return [last]
            self._recent.pop()
        return ties

    def _use(self, segment: int) -> None:
        self._again[segment] = self._again.pop(segment, {})
        self._tied[segment] = self._tied.pop(segment, {})

    def _copy(self, x: Tensor) -> int | None:
        return self._again.get(self._segment(x), {}).get(x)

    def _segment(self, x: Tensor) -> int:
        """The segment of a value that is made again."""
        return self._plan.segments[self.timeline.maker[x]]

    def _missing(self, lacking: Sequence[Tensor]) -> list[Node]:
        """The nodes to be done again, in their order."""
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
        tied where nothing else delays the node that reads it."""
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
        self.steps.append(Step(None, inputs, (*outputs, *behind), True))
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
        self.steps.append(Step(node, tuple(inputs), outputs, True))
        self._again[segment].update(zip(node.outputs, outputs, strict=True))

    @cached_property
    def work(self) -> float:
        """The operations of the steps that do something again."""
        return sum(cost(step.node) for step in self.steps if step.node and step.is_again)

    @property
    def again(self) -> float:
        """The operations that are done again, those in the bodies of scans too."""
        return self.timeline.work - self.timeline.plain.work + self.work

    @cached_property
    def division(self) -> int:
        """How many segments there are."""
        return len(set(self._plan.segments.values()))

    @cached_property
    def kept(self) -> int:
        """The bytes of what is kept."""
        return sum(map(bytes_of, self._plan.kept))

    @property
    def peak(self) -> int:
        """An estimate of the bytes that are held at once beside the inputs and outputs."""
        return self._held[0]

    @property
    def largest(self) -> Tensor:
        """The largest of the values that are held when most is."""
        return max((self.tensors[y] for y in self._held[1]), key=bytes_of)

    @cached_property
    def _held(self) -> tuple[int, list[int]]:
        sizes = [bytes_of(x) for x in self.tensors]
        constant = {y for y, x in enumerate(self.tensors) if x in self.timeline.constant}
        inputs = range(len(self.timeline.graph.inputs))
        return most_held(self._in_likely_order(), sizes, inputs, self.outputs, constant)

    def _in_likely_order(self) -> list[Step]:
        """The steps; but what the user wrote behind a gradient, such as the step of an optimizer,
        is done once it can be, since the compiler updates in place."""
        when: dict[int, int] = {}
        places = []
        for i, step in enumerate(self.steps):
            place = i
            if self._is_behind_a_gradient(step):
                place = max((when.get(x, 0) for x in step.inputs), default=0)
            when.update(dict.fromkeys(step.outputs, place))
            places.append((place, i))
        return [self.steps[i] for _, i in sorted(places)]

    def _is_behind_a_gradient(self, step: Step) -> bool:
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


#: Into how many segments a graph is divided, about. A division matters where work is cheap and much
#: is done again: the first two are tried at all prices, the others at the lowest ones.
_DIVISIONS = (1, 6, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96)
_PRICES, _LOWEST = 10, 3
#: What a unit of work is worth in bytes, where the body of a scan is computed again: more than the
#: work of most elementwise ops, more than that of products of matrices, nothing.
_PRICES_OF_STEPS = (0.2, 0.005, 0.0)
#: Between the extremes there are schedules for so many shares of the segments.
_SHARES, _FEWEST_MIXED = 12, 4
#: How many of those that hold least are worth a try.
_LEAST = 4
#: A schedule is worth a try only if it holds this much less than one of less work.
_STEP = 0.97
#: What holds so much of another schedule's bytes is nearly equal to it.
_NEAR = 0.95


def kept_only(timeline: Timeline) -> Schedule:
    """The schedule that keeps every residual."""
    return Schedule(timeline, Plan(frozenset(timeline.read_late), {}))


def trade_offs(graph: Graph) -> list[Schedule]:
    """Schedules of a graph from the one that does nothing again to the one that holds least: each
    does more work than the one before, and holds less."""
    plain = Timeline(graph)
    others = (with_less_stacked(plain, price) for price in _PRICES_OF_STEPS)
    timelines = [plain, *(Timeline(other, plain) for other in others if other is not None)]
    found = [schedule for timeline in timelines for schedule in _schedules(timeline)]
    best = found[:1]
    for schedule in sorted(found, key=lambda schedule: (schedule.again, schedule.peak)):
        if schedule.peak < _STEP * best[-1].peak:
            best.append(schedule)
    return [*best, *(schedule for schedule in _least(found) if schedule not in best)]


def _least(found: Sequence[Schedule]) -> list[Schedule]:
    """Those that hold least, each with another division, the least of all at the end: of what is
    nearly equal the estimates do not tell which is smaller."""
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
    """Schedules between the one that holds least and one that does little again: the last of the
    segments have the high price."""
    count = len(set(segments.values()))
    for last in sorted({count * share // _SHARES for share in range(1, _SHARES)} - {0}):
        yield Schedule(timeline, timeline.plan(segments, price, last, high))
