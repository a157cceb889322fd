"""While: a body applied to a state as long as a condition holds; and its reverse mode.

How often the body runs is known only by running it. So the forward form returns the count of steps,
and `WhileGradient` goes through them backwards with a bounded number of states in memory: it runs
forward once more, keeps states at the checkpoints of the binomial schedule, and recomputes from
the last checkpoint what lies beyond it. With c checkpoints and r repetitions (c + r over r) steps
can be
reversed. (Griewank and Walther, "Algorithm 799: revolve", 2000.) The unit of the schedule is
a block of steps, whose states are all kept while it is reversed: half of the places are for them,
unless there are few.

Every derivative of such a gradient is one of a loop of dual numbers. Let F be the loop on states x,
and G the loop on pairs (x, t) that pushes tangents t forward. The reverse of G maps cotangents
(a, b) of both parts to those of (x, t): the first is J'a + D(Jt)'b, the second J'b. So
- the tangent of J'b along (t, db) is the first with a = db;
- the transpose of b -> J'b at u is Ju, a loop forward, and the cotangent of x is the first with
  a = 0 and t = u.
The tangent requires symmetric second derivatives, and those by a user-chosen gradient need not
be symmetric. There it is the transpose of the cotangents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracegraph.calls.call import Call, applied, as_tuple, derived_name, has_plan, own_size
from tracegraph.control.branch import (
    Cond,
    all_rows,
    harmless_rows,
    narrowed,
    select_rows,
    with_inputs,
)
from tracegraph.control.recorded_while import recorded_while
from tracegraph.control.scan import (
    ConditionalLoop,
    Flags,
    Loop,
    interleaved,
    kept_state,
    pushed_body,
)
from tracegraph.control.without_prints import without_prints, without_tokens
from tracegraph.core.shapes import Size
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TOKEN, TensorType, bool_, bytes_of_type, int32
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.builder import Builder, copy_inputs, inline, replay
from tracegraph.ir.op import (
    Batched,
    Counter,
    Derivative,
    Flow,
    Insertion,
    OnHost,
    Op,
    Region,
    RunRegion,
    Tangents,
)
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import full, stack
from tracegraph.ops.constant import constant, constant_value
from tracegraph.ops.elementwise import (
    ADD,
    Add,
    Cast,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    Sub,
)
from tracegraph.ops.reduce import Any as AnyOf, Max
from tracegraph.passes.gradient import gradient
from tracegraph.passes.registry import user_rules
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.passes.specialise import bind_sizes, names_in, names_used
from tracegraph.passes.vectorise import stacked_outputs, vectorise
from tracegraph.passes.walk import at_places

COUNT = TensorType(int32, ())
#: A loop of more steps may run for seconds or hours. It can be interrupted, as one that may never
#: end, whose price is small beside so many steps.
LONG_LOOP = 2**24
#: By default reverse mode keeps as many states as fit in this many bytes, but within these bounds:
#: 1,024 are enough for 262,000 steps that are computed twice.
_CHECKPOINT_BYTES = 1 << 22
_FEWEST, _MOST = 32, 1024


def usual_checkpoints(states: Sequence[TensorType]) -> int:
    """The default number of states of these types that reverse mode keeps."""
    return max(checkpoints_within(_CHECKPOINT_BYTES, states), _FEWEST)


def checkpoints_within(size: int, states: Sequence[TensorType]) -> int:
    """How many states of these types reverse mode keeps in `size` bytes, at least 2."""
    types = (x for x in states if x.is_static and x is not TOKEN)
    one = sum(map(bytes_of_type, types))
    return min(max(size // max(one, 1), 2), _MOST)


class While(ConditionalLoop):
    """The states after the last step: `(*constants, *states) -> (*states, count if counts)`.

    `condition` and `body` take the constants and the states; the body runs as long as the condition
    holds, `count` times. Reverse mode keeps `checkpoints` states in memory, whatever the count is.
    """

    checkpoints: int
    counts: bool = False
    #: If it calls Python, the size that gives reverse mode the number of steps.
    length: Size | None = None

    @property
    def states(self) -> int:
        return len(self.body.outputs)

    @property
    def regions(self) -> tuple[Region, ...]:
        inputs = tuple(range(len(self.body.inputs)))
        return (
            Region(self.body, inputs, tuple(range(self.states)), self.carried),
            Region(self.condition, inputs, (), is_condition=True),
        )

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        constants, states = values[: self.constants], values[self.constants :]
        count = 0
        while np.asarray(run(self.condition, [*constants, *states], 0)[0]):
            states = run(self.body, [*constants, *states], 0)
            count += 1
        return [*states, np.int32(count)] if self.counts else states

    @property
    def count_output(self) -> int | None:  # type: ignore[override]
        return self.states if self.counts else None

    @property
    def sizes_of_runs(self) -> set[str]:
        return set() if self.length is None else {str(self.length)}

    @property
    def may_never_end(self) -> bool:
        counters = (counter for _, counter in self._counters())
        return not any(map(_ends_soon, counters)) or super().may_never_end

    def counters(self) -> Iterator[Counter]:
        """The states through which the condition bounds the number of steps."""
        yield from (counter for is_less, counter in self._counters() if is_less)

    def _counters(self) -> Iterator[tuple[bool, Counter]]:
        """The integers that go towards a fixed bound in each step, and whether the condition is
        that they are less than it; `growth` is by how much they approach it."""
        inputs = {x: i for i, x in enumerate(self.condition.inputs)}
        for test, places in _conjunction(self.condition.outputs[0], inputs):
            sign = 0 if test.node is None else _DIRECTIONS.get(type(test.node.op), 0)
            if test.node is None or not sign:
                continue
            one, two = test.node.inputs
            for counter, bound, direction in ((one, two, sign), (two, one, -sign)):
                place, fixed = places.get(counter), places.get(bound)
                if place is None:
                    continue
                is_fixed = (
                    constant_value(bound) is not None if fixed is None else fixed < self.constants
                )
                growth = direction * _growth(self.body, place, self.constants)
                if is_fixed and growth > 0:
                    is_less = type(test.node.op) is Less and counter is one
                    yield is_less, Counter(place, growth, bound, fixed)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        found = Call(self.condition).infer(*types)
        if len(found) != 1 or found[0].dtype is not bool_ or found[0].shape != ():
            raise DTypeMismatch(
                f"the condition is {', '.join(map(str, found))}, and it must be one bool",
                fix="compare the state, and reduce it: tg.reduce_all(x > 0)",
            )
        new = Call(self.body).infer(*types)
        if self.constants + len(new) != len(types):
            raise Mismatch(f"the body returns {len(new)} states of {len(types) - self.constants}")
        rows = zip(types[self.constants :], new, strict=True)
        states = tuple(kept_state(i, *row) for i, row in enumerate(rows))
        return (*states, COUNT) if self.counts else states

    def with_graphs(self, condition: Graph, body: Graph, constants: int) -> While:
        return While(body, constants, condition, self.checkpoints, self.counts, self.length)

    # Derivatives.

    def recorded(self) -> Op:
        if self.length is None or not has_plan(self.body):
            parts = (self.body, self.constants, self.condition, self.checkpoints)
            return While(*parts, True, self.length)
        return recorded_while(self.body, self.constants, self.condition, self.length)

    def vjp(self, *values: Any) -> Derivative:
        count = self.states + self.counts
        gs, ys = values[: self.states], values[count : 2 * count]
        xs = without_tokens(values[2 * count :])
        if not self.counts:  # it was recorded without a tape: count the steps now
            ys = as_tuple(self.silent().recorded()(*xs))
        present = tuple(g is not None for g in gs)
        op = while_gradient(without_prints(self.body), self.constants, present, self.checkpoints)
        given = [
            full(0, xs[i].type) if gs[i - self.constants] is None else gs[i - self.constants]
            for i in op.targets
            if i >= self.constants
        ]
        found = applied(op, (ys[-1], *xs, *given)) if op.targets else ()
        return at_places(op.targets, found, len(xs))

    def silent(self) -> While:
        """The op without its prints, for recomputation."""
        return self.with_graphs(self.condition, without_prints(self.body), self.constants)

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        xs = without_tokens(values[self.states + self.counts :])
        given = self.with_tangents(tangents)
        op, inputs, places = pushed_loop(self.silent(), given, xs, tangents)
        found = applied(op, inputs)[self.states :]
        return at_places(places, found, self.states + self.counts)

    # Loops.

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        size = own_size(self.body, n)
        flags = self.with_states(batched, lambda flags: vectorise(self.body, flags, size)[1])
        condition, (ends_apart,) = vectorise(self.condition, flags, size)
        if ends_apart and self.cuts_runs:
            raise Mismatch(
                "a loop has effects, or finds a size as it runs, and in a parallel loop each "
                "iteration runs it another number of times",
                fix="use tg.map_fn, which runs one iteration after the other",
            )
        if ends_apart:
            return self._each_as_long(n, size, batched, xs)
        states = flags[self.constants :]
        body = stacked_outputs(*vectorise(self.body, flags, size), states, size)
        inputs = _stacked_where(xs, batched, flags, n)
        outputs = applied(self.with_graphs(condition, body, self.constants), inputs)
        return outputs, (*states, False) if self.counts else states

    def _each_as_long(
        self, n: Any, size: Any, batched: Sequence[bool], xs: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], Flags]:
        """Each iteration of the enclosing loop runs the body as often as it needs; finished
        iterations wait for the others."""
        flags = (*batched[: self.constants], *(True,) * self.states)
        inputs = _stacked_where(xs, batched, flags, n)
        # A call binds the condition's own sizes, as the loop does.
        (first,) = applied(Call(all_rows(self.condition, flags, size)), inputs)
        counts = full(0, TensorType(int32, (n,)))
        op = _masked(self, flags, size)
        outputs = applied(op, (*inputs[: self.constants], first, counts, *inputs[self.constants :]))
        _, count, *states = outputs[: 2 + self.states]
        found = (*states, count) if self.counts else tuple(states)
        return found, (True,) * len(found)

    # Dependences.

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        constants, states = patterns[: self.constants], patterns[self.constants :]
        states = _grown(states, lambda states: Call(self.body).depends(*constants, *states))
        count = () if not self.counts else (Pattern.nothing((), patterns[0].total),)
        return (*states, *count)

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        found = self.reached(inputs)
        return (*found, False) if self.counts else found

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        wanted = self._needed(used[: self.states])
        anyway = (*(False for _ in range(self.constants)), *wanted)
        (body,), takes = narrowed([self.body], wanted, anyway)
        condition_takes = narrowed([self.condition], (True,))[1]
        keep = tuple(map(any, zip(takes, condition_takes, strict=True)))
        counts = self.counts and used[-1]
        has = (*wanted, counts) if self.counts else wanted
        if all(keep) and all(wanted) and counts == self.counts and body is self.body:
            return self, keep, has
        (body,), _ = narrowed([self.body], wanted, keep)
        (condition,), _ = narrowed([self.condition], (True,), keep)
        constants = sum(keep[: self.constants])
        loop = While(body, constants, condition, self.checkpoints, counts, self.length)
        return loop, keep, has

    def _needed(self, used: Flags) -> Flags:
        """The states that are used, or that another state or the condition is computed from."""
        through = narrowed([self.condition], (True,))[1]
        used = tuple(map(any, zip(used, through[self.constants :], strict=True)))
        while True:
            takes = narrowed([self.body], used)[1][self.constants :]
            more = tuple(map(any, zip(used, takes, strict=True)))
            if more == used:
                return used
            used = more


def _narrowed_test(condition: Graph) -> tuple[Graph, Sequence[bool]]:
    """The condition, and which of its inputs it takes: those that it reads, or whose sizes it
    needs."""
    test = dead_code(condition)
    read = {x for node in test.nodes for x in node.inputs}.union(test.outputs)
    names = set[str]().union(*map(names_used, test.nodes))
    kept = [x in read or bool(names & names_in(x.type)) for x in test.inputs]
    return with_inputs(test, kept), kept


_NO_DERIVATIVE = "a loop whose states change their sizes has no derivative"
_KEEP_SHAPES = "keep the shapes: write to a tg.TensorArray, and stack it after the loop"


class ResizingWhile(While):
    """The states after the last step, of which some have other sizes after each:
    `(*constants, *states) -> states`.

    An XLA program has fixed sizes. So Python runs the condition and the body, as programs for each
    size that occurs. The body takes open sizes; `results` are the types of the states after the
    loop, with names of their own for those sizes.
    """

    results: tuple[TensorType, ...] = ()

    can_prune = False

    @property
    def cuts_runs(self) -> bool:
        return True

    @property
    def _resized(self) -> list[int]:
        """The states that change their sizes."""
        given = names_in(self.body.input_types)
        return [i for i, x in enumerate(self.results) if names_in(x) - given]

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [outputs[i] for i in self._resized]

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        bind_sizes(self.body.input_types, types, assumes=True)
        resized, given = self._resized, types[self.constants :]
        return tuple(
            new if i in resized else kept_state(i, old, new)
            for i, (old, new) in enumerate(zip(given, self.results, strict=True))
        )

    def with_graphs(self, condition: Graph, body: Graph, constants: int) -> While:
        added = (y.type for y in body.outputs[len(self.results) :])
        parts = body, constants, condition, self.checkpoints, False, None
        return ResizingWhile(*parts, (*self.results, *added))

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        # The condition is compiled for the sizes that it reads alone.
        test, kept = self.condition, [True] * len(values)
        if not test.cuts_runs:
            test, kept = test.cached("what it reads", lambda: _narrowed_test(test))
        states = values[self.constants :]
        while True:
            values = [*values[: self.constants], *states]
            given = [x for x, is_kept in zip(values, kept, strict=True) if is_kept]
            if not np.asarray(run(test, given, 0)[0]):
                return states
            states = run(self.body, values, 0)

    def recorded(self) -> Op:
        return self

    def vjp(self, *values: Any) -> Derivative:
        raise Mismatch(_NO_DERIVATIVE, fix=_KEEP_SHAPES)

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        raise Mismatch(_NO_DERIVATIVE, fix=_KEEP_SHAPES)

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        fact = "a loop whose states change their sizes cannot run for all iterations at once"
        raise Mismatch(fact, fix="use tg.map_fn, which runs one iteration after the other")

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        raise Mismatch(
            "a loop whose states change their sizes has no sparsity pattern", fix=_KEEP_SHAPES
        )


def _conjunction(
    test: Tensor, places: Mapping[Tensor, int]
) -> Iterator[tuple[Tensor, Mapping[Tensor, int]]]:
    """The tests that must all hold for `test` to hold, each with the `places` of tensors of its
    graph. One may be decided only where another holds, as by Python's `and`."""
    node = test.node
    op = None if node is None else node.op
    if node is not None and type(op) is LogicalAnd:
        for part in node.inputs:
            yield from _conjunction(part, places)
    elif node is not None and isinstance(op, Cond) and _is_false(_output_of(op.false, node, test)):
        decider, *given = node.inputs
        yield from _conjunction(decider, places)
        pairs = zip(op.true.inputs, given, strict=True)
        inner = {own: places[x] for own, x in pairs if x in places}
        yield from _conjunction(_output_of(op.true, node, test), inner)
    else:
        yield test, places


def _output_of(branch: Graph, node: Node, output: Tensor) -> Tensor:
    """What a branch returns for an output of its node."""
    return next(y for y, of in zip(branch.outputs, node.outputs, strict=False) if of is output)


def _is_false(x: Tensor) -> bool:
    value = constant_value(x)
    return value is not None and not np.any(value)


#: Where the first operand of a condition must go for it to end.
_DIRECTIONS: dict[type[Op], int] = {Less: 1, LessEqual: 1, Greater: -1, GreaterEqual: -1}


def _ends_soon(counter: Counter) -> bool:
    """Whether a counter that starts at 0, or counts down, bounds the steps by few, as far as that
    is known."""
    bound = constant_value(counter.bound)
    return bound is None or int(bound) <= counter.growth * LONG_LOOP


def _growth(body: Graph, place: int, constants: int) -> int:
    """The constant by which an integer state, an input of the body, grows in each step; 0 if it
    does anything else."""
    if place < constants:
        return 0
    x, y = body.inputs[place], body.outputs[place - constants]
    if y.node is None or type(y.node.op) not in (Add, Sub) or not x.dtype.is_integer:
        return 0
    one, two = y.node.inputs
    sign = 1 if type(y.node.op) is Add else -1
    other = two if one is x else one if two is x and sign > 0 else None
    value = None if other is None else constant_value(other)
    return 0 if value is None else sign * int(value)


def _grown(
    patterns: Sequence[Pattern], step: Callable[[Sequence[Pattern]], Sequence[Pattern]]
) -> tuple[Pattern, ...]:
    """What values depend on that start with `patterns` and take any number of steps."""
    while True:
        more = [old | new for old, new in zip(patterns, step(patterns), strict=True)]
        if [p.count for p in more] == [p.count for p in patterns]:
            return tuple(more)
        patterns = more


def _stacked_where(
    xs: Sequence[Tensor], has: Sequence[bool], wants: Sequence[bool], n: Any
) -> list[Tensor]:
    rows = zip(xs, has, wants, strict=True)
    return [stack(x, n) if wide and not was_wide else x for x, was_wide, wide in rows]


def _masked(loop: While, flags: Flags, n: Any) -> While:
    """The loop of n iterations that end separately, with two more states in front: which of them
    continue, and how often each ran. Flagged inputs have one value for each iteration."""
    body, condition = all_rows(loop.body, flags, n), all_rows(loop.condition, flags, n)
    constants = loop.constants
    mask = TensorType(bool_, (n,))
    with Builder(body.name) as builder:
        consts = [builder.input_like(x) for x in body.inputs[:constants]]
        goes_on = builder.input(mask, "goes_on")
        counts = builder.input(TensorType(int32, (n,)), "counts")
        states = [builder.input_like(x) for x in body.inputs[constants:]]
        found = inline(body, harmless_rows(goes_on, [*consts, *states], flags))
        new = [select_rows(goes_on, *row) for row in zip(found, states, strict=True)]
        (still,) = inline(condition, [*consts, *new])
        counted = ADD(counts, Cast(int32)(goes_on))
        wide = builder.finish([LogicalAnd()(goes_on, still), counted, *new])
    with Builder(condition.name) as builder:
        inputs = [builder.input_like(x) for x in wide.inputs]
        some = builder.finish([AnyOf((0,))(inputs[constants])])
    return While(wide, constants, some, loop.checkpoints, False)


def pushed_loop(
    loop: While, given: Flags, xs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[While, list[Tensor], tuple[int, ...]]:
    """The loop that carries tangents beside the states, its inputs, and the states that have
    tangents, which come after the states."""
    body, places, _ = pushed_body(loop.body, loop.constants, loop.states, given)
    constants = loop.constants + sum(given[: loop.constants])
    with Builder(loop.condition.name) as builder:
        inputs = [builder.input_like(x) for x in body.inputs]
        plain = [
            *inputs[: loop.constants],
            *inputs[constants : constants + loop.states],
        ]
        condition = builder.finish(inline(loop.condition, plain))
    op = While(body, constants, condition, loop.checkpoints, False)
    return op, interleaved((0, loop.constants, len(xs)), given, xs, tangents), places


class WhileGradient(Loop):
    """The cotangents of a loop that ran `count` times: `(count, *constants, *states,
    *cotangents) -> those of the inputs of the body at the places `targets`.

    The states are those that the loop began with. There is a cotangent for the last value of each
    state among the targets; `backward` takes the inputs of the body and these, one step back.
    At most `checkpoints` states are in memory beside the one that is computed. There may be
    `extras`, which `backward` takes and gives besides, from step to step.
    """

    backward: Graph
    targets: tuple[int, ...]
    checkpoints: int
    extras: int = 0

    takes_zero_cotangents = True
    transpose_reads_cotangents = True
    repetitions = None
    can_prune = True
    adds_up = True  # the cotangents of constants

    @property
    def states(self) -> int:
        return len(self.body.outputs)

    @property
    def regions(self) -> tuple[Region, ...]:
        inputs = tuple(range(1, 1 + len(self.backward.inputs)))
        return (
            Region(self.backward, inputs, tuple(range(len(self.targets) + self.extras))),
            Region(self.body, inputs[: len(self.body.inputs)], ()),
        )

    def how_often(self, region: Region) -> str:
        return "for each step"

    @property
    def insertion(self) -> Insertion:
        end = 1 + len(self.backward.inputs)
        return Insertion(1 + self.constants, end, len(self.targets) + self.extras)

    def with_regions(
        self, graphs: Sequence[Graph], shared: int = 0, carried: int = 0
    ) -> WhileGradient:
        backward, body = graphs
        targets = tuple(i if i < self.constants else i + shared for i in self.targets)
        constants, extras = self.constants + shared, self.extras + carried
        return WhileGradient(body, constants, backward, targets, self.checkpoints, extras)

    def with_checkpoints(self, size: int, lowers_all: bool) -> WhileGradient:
        states = self.body.input_types[self.constants :]
        count = checkpoints_within(size, states)
        if self.checkpoints != usual_checkpoints(states):  # somebody set it
            count = min(count, self.checkpoints) if lowers_all else self.checkpoints
        parts = self.body, self.constants, self.backward, self.targets
        return WhileGradient(*parts, count, self.extras)

    @property
    def states_kept(self) -> int:  # type: ignore[override]
        return self.checkpoints

    @property
    def ends(self) -> tuple[int, int, int]:
        """Where the constants and the states start and end among the inputs of the body."""
        return 0, self.constants, len(self.body.inputs)

    @property
    def present(self) -> Flags:
        """Which states have cotangents."""
        return tuple(i in self.targets for i in self.state_inputs())

    def infer(self, count: TensorType, *types: TensorType) -> tuple[TensorType, ...]:
        if count is not COUNT:
            raise DTypeMismatch(f"the count of steps is {count}, and it must be {COUNT}")
        given = types[: len(self.body.inputs)]
        Call(self.body).infer(*given)
        Call(self.backward).infer(*types)
        return (*(given[i] for i in self.targets), *types[len(types) - self.extras :])

    def flow(self, flows: Sequence[Flow]) -> Flow:
        return Op.flow(self, flows)

    def _split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The inputs of the loop, and the cotangents of its states."""
        return values[: len(self.body.inputs)], values[len(self.body.inputs) :]

    def vjp(self, *values: Any) -> Derivative:
        self._check_forward()
        count = len(self.targets)
        us, (trips, *rest) = values[:count], values[2 * count :]
        xs, gs = self._split(rest)
        tangents = at_places(self.targets, us, len(xs))
        given = self.with_tangents(tangents)
        pushed, places, _ = pushed_body(self.body, self.constants, self.states, given)
        inputs = interleaved(self.ends, given, xs, tangents)
        constants = self.constants + sum(given[: self.constants])
        # The transpose by the cotangents: the tangents of the loop, with the same number of steps.
        found = run_for(pushed, constants, trips, inputs, self.checkpoints)[self.states :]
        forward = dict(zip(places, found, strict=True))
        states = [i - self.constants for i in self.targets if i >= self.constants]
        by_cotangents = [forward.get(i) for i in states]
        # The cotangents of the inputs: those of the loop of pairs, from its second part.
        by_state = dict(zip(states, gs, strict=True))
        seeds = {self.states + k: by_state.get(i) for k, i in enumerate(places)}
        by_inputs = gradient_of_pairs(self, pushed, constants, given, trips, inputs, seeds)
        return (None, *by_inputs[0], *by_cotangents)

    def _check_forward(self) -> None:
        """Raises Mismatch if a user-chosen gradient cannot push tangents."""
        if not all(op.has_forward for op in user_rules(self.body.nodes)):
            raise Mismatch(
                "its derivative pushes tangents through the loop, which has a custom gradient that "
                "is not linear in its cotangents",
                fix="make that backward function linear in its cotangents, or use a loop of known "
                "length: tg.scan, or a `for` over tg.range(10)",
            )

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        trips, *rest = values[len(self.targets) :]
        xs, gs = self._split(rest)
        dxs, dgs = self._split(tangents[1:])
        given = self.with_tangents(dxs)
        states = [i - self.constants for i in self.targets if i >= self.constants]
        if not any(given):
            op, seeds = self, [full(0, g.type) if d is None else d for d, g in zip(dgs, gs)]
            return applied(op, (trips, *xs, *seeds))
        if any(True for _ in user_rules(self.body.nodes)):
            return NotImplemented
        pushed, places, _ = pushed_body(self.body, self.constants, self.states, given)
        inputs = interleaved(self.ends, given, xs, dxs)
        constants = self.constants + sum(given[: self.constants])
        by_state = dict(zip(states, gs, strict=True))
        seeds_of = {self.states + k: by_state.get(i) for k, i in enumerate(places)}
        seeds_of |= dict(zip(states, dgs, strict=True))
        found, _ = gradient_of_pairs(self, pushed, constants, given, trips, inputs, seeds_of)
        return tuple(found[i] for i in self.targets)

    def batch(self, n: Size, batched: tuple[bool, ...], count: Tensor, *rest: Tensor) -> Batched:
        size = own_size(self.body, n)
        xs, gs = self._split(rest)
        has_xs, has_gs = self._split(batched[1:])
        # Every iteration has its own cotangents, and so also its own value of anything that has
        # one.
        flags = tuple(
            has or i >= self.constants or i in self.targets for i, has in enumerate(has_xs)
        )
        inputs = _stacked_where(xs, has_xs, flags, n)
        seeds = _stacked_where(gs, has_gs, (True,) * len(gs), n)
        states = (True,) * self.states
        body = stacked_outputs(*vectorise(self.body, flags, size), states, size)
        if not batched[0]:
            op = while_gradient(body, self.constants, self.present, self.checkpoints)
            return self._aligned(op, 0, applied(op, (count, *inputs, *seeds))), True
        body = _ending_apart(self, size, flags)
        longest = Max((0,))(count)
        op = while_gradient(body, self.constants + 1, (False, *self.present), self.checkpoints)
        step = constant(0, int32)
        given = [*inputs[: self.constants], count, step, *inputs[self.constants :]]
        return self._aligned(op, 2, applied(op, (longest, *given, *seeds))), True

    def _aligned(
        self, op: WhileGradient, shift: int, found: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The results of another gradient, whose states come `shift` positions later, for our
        targets."""
        by_place = dict(zip(op.targets, found, strict=True))
        places = [i + shift if i >= self.constants else i for i in self.targets]
        return tuple(by_place[i] for i in places)

    def depends(self, count: Pattern, *patterns: Pattern) -> tuple[Pattern, ...]:
        xs, gs = self._split(patterns)
        constants, states = xs[: self.constants], xs[self.constants :]
        states = _grown(states, lambda states: Call(self.body).depends(*constants, *states))
        first = sum(i < self.constants for i in self.targets)
        nothing = [Pattern.nothing(xs[i].shape, count.total) for i in self.targets[:first]]
        backward = Call(self.backward)
        return _grown(
            (*nothing, *gs), lambda found: backward.depends(*constants, *states, *found[first:])
        )

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        return (*(True for _ in self.targets), *(False for _ in range(self.extras)))

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        # The cotangents of states depend on each other, those of constants only on themselves.
        pairs = zip(self.targets, used, strict=False)
        has = tuple(is_used or i >= self.constants for i, is_used in pairs)
        has += (True,) * self.extras
        keep = (True,) * (1 + len(self.backward.inputs))
        if all(has):
            return self, keep, has
        outputs = tuple(itertools.compress(self.backward.outputs, has))
        backward = self.backward.cached(
            ("only", has), lambda: dead_code(self.backward.with_outputs(outputs))
        )
        targets = tuple(itertools.compress(self.targets, has))
        op = WhileGradient(
            self.body, self.constants, backward, targets, self.checkpoints, self.extras
        )
        return op, keep, has


def has_while_gradients(graph: Graph) -> bool:
    """Whether a graph, or one that it calls, goes back through loops of unknown length."""
    return any(type(node.op) is WhileGradient for node in graph.all_nodes())


def while_gradient(body: Graph, constants: int, present: Flags, checkpoints: int) -> WhileGradient:
    """The reverse mode of a loop, given cotangents of the states that are `present`."""
    backward, targets = body.cached(
        ("while_backward", constants, present), lambda: _backward(body, constants, present)
    )
    return WhileGradient(body, constants, backward, targets, checkpoints)


def _backward(body: Graph, constants: int, present: Flags) -> tuple[Graph, tuple[int, ...]]:
    """One step back, and the inputs that it computes cotangents of: all states that have one in any
    step, and the constants that these reach."""
    while True:
        graph, targets = _step_back(body, present)
        states = {i - constants for i in targets if i >= constants}
        more = tuple(has or i in states for i, has in enumerate(present))
        if more == present:
            break
        present = more
    wanted = [i for i in range(len(body.inputs)) if i in targets or _has(present, i - constants)]
    graph, _ = _step_back(body, present, wanted)
    passed("backward", graph)
    return graph, tuple(wanted)


def _has(flags: Flags, place: int) -> bool:
    return place >= 0 and flags[place]


def _step_back(
    body: Graph, present: Flags, wanted: Sequence[int] | None = None
) -> tuple[Graph, tuple[int, ...]]:
    """`(*inputs, *cotangents) -> cotangents of the inputs` that have one, or that are wanted."""
    with Builder(derived_name(body, "vjp")) as builder:
        env = copy_inputs(body, builder)
        ys = [y for y, has in zip(body.outputs, present, strict=True) if has]
        gs = [builder.input(y.type, f"g{i}") for i, y in enumerate(ys)]
        replay(body.nodes, env)
        places = [i for i, x in enumerate(body.inputs) if x.type.dtype.is_differentiable]
        xs = [env[body.inputs[i]] for i in places]
        found = dict(zip(places, gradient(builder.nodes, [env[y] for y in ys], xs, gs)))
        kept = [i for i in places if found[i] is not None] if wanted is None else wanted
        outputs = [full(0, body.inputs[i].type) if found.get(i) is None else found[i] for i in kept]
        graph = builder.finish(outputs)  # type: ignore[arg-type]
    return simplify(graph), tuple(kept)


def gradient_of_pairs(
    op: WhileGradient,
    pushed: Graph,
    constants: int,
    given: Flags,
    trips: Tensor,
    inputs: Sequence[Tensor],
    seeds: dict[int, Tensor | None],
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The reverse mode of the loop of pairs, from cotangents of its states by position: the
    cotangents of the inputs of the loop, and of their tangents."""
    present = tuple(seeds.get(i) is not None for i in range(len(pushed.outputs)))
    pairs = while_gradient(pushed, constants, present, op.checkpoints)
    filled = [
        full(0, inputs[constants + i].type) if seeds.get(i) is None else seeds[i]
        for i, has in enumerate(pairs.present)
        if has
    ]
    found = applied(pairs, (trips, *inputs, *filled)) if pairs.targets else ()  # type: ignore
    by_place = dict(zip(pairs.targets, found, strict=True))
    firsts: list[Tensor | None] = []
    seconds: list[Tensor | None] = []
    place = 0
    for part in (range(op.constants), range(op.constants, len(given))):
        firsts += [by_place.get(place + k) for k in range(len(part))]
        place += len(part)
        for i in part:
            seconds.append(by_place.get(place) if given[i] else None)
            place += given[i]
    return firsts, seconds


def run_for(
    body: Graph, constants: int, count: Tensor, inputs: Sequence[Tensor], checkpoints: int
) -> tuple[Tensor, ...]:
    """The states after `count` steps of a body."""
    with Builder(body.name) as builder:
        consts = [builder.input_like(x) for x in body.inputs[:constants]]
        builder.input(COUNT, "count")
        step = builder.input(COUNT, "step")
        states = [builder.input_like(x) for x in body.inputs[constants:]]
        one = constant(1, int32)
        counted = builder.finish([ADD(step, one), *inline(body, [*consts, *states])])
    with Builder(f"{body.name}_goes_on") as builder:
        given = [builder.input_like(x) for x in counted.inputs]
        condition = builder.finish([Less()(given[constants + 1], given[constants])])
    op = While(counted, constants + 1, condition, checkpoints, False)
    start = constant(0, int32)
    return applied(op, (*inputs[:constants], count, start, *inputs[constants:]))[1:]


def _ending_apart(op: WhileGradient, n: Any, flags: Flags) -> Graph:
    """The body of iterations that end separately, with their counts after the constants, and the
    step number before the states. Finished iterations keep their states."""
    wide = stacked_outputs(*vectorise(op.body, flags, n), (True,) * op.states, n)
    with Builder(wide.name) as builder:
        consts = [builder.input_like(x) for x in wide.inputs[: op.constants]]
        counts = builder.input(TensorType(int32, (n,)), "counts")
        step = builder.input(COUNT, "step")
        states = [builder.input_like(x) for x in wide.inputs[op.constants :]]
        goes_on = Less()(stack(step, n), counts)
        found = inline(wide, harmless_rows(goes_on, [*consts, *states], flags))
        new = [select_rows(goes_on, *row) for row in zip(found, states, strict=True)]
        return builder.finish([ADD(step, constant(1, int32)), *new])
