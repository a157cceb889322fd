"""Scan: a body applied to the rows of tensors one after another, carrying a state.

Reverse mode is a scan in the opposite direction: the forward form stacks what the rules of the body
read in every step, and keeps values that no step changes once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.calls.call import (
    Call,
    applied,
    as_tuple,
    backward_graph,
    depending_through,
    derived_name,
    own_size,
    places_of_effects,
    residual_plan,
    results_of_effects,
    with_known,
)
from tracegraph.control.branch import narrowed, spread
from tracegraph.control.without_prints import (
    calls_python,
    lengths_of_runs,
    without_prints,
    without_tokens,
)
from tracegraph.core.later import opened
from tracegraph.core.shapes import Size, element_count, same_shape, same_size, static_shape
from tracegraph.core.sparsity_patterns import Pattern, moved
from tracegraph.core.types import TOKEN, DType, TensorType, bool_, bytes_of_type, float32
from tracegraph.errors import Mismatch
from tracegraph.ir.builder import Builder, copy_inputs, inline, replay
from tracegraph.ir.op import (
    Batched,
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
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import Sum, full, stack
from tracegraph.ops.contract import Bilinear, Matmul
from tracegraph.ops.elementwise import ADD, SELECT, Cast
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.forward import jvp
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.passes.specialise import bound_names
from tracegraph.passes.vectorise import stacked_outputs, vectorise
from tracegraph.passes.walk import at_places

#: One flag for each input, or each output, of a body.
Flags = tuple[bool, ...]


class Loop(Op, abstract=True):
    """An op whose body runs again and again: `(*constants, *states, ...)`, of which the body
    returns the new states first."""

    body: Graph
    constants: int

    is_loop = True

    #: Whether the last output counts the runs of the body.
    counts = False
    #: Whether the body may never run, so that the states stay what they begin with.
    may_be_skipped = True

    if TYPE_CHECKING:
        #: How many tensors the body carries from one run to the next.
        states: Any = dataclasses.field(init=False)

    def state_inputs(self) -> range:
        """The positions of the states among the inputs."""
        return range(self.constants, self.constants + self.states)

    @property
    def insertion(self) -> Insertion:
        end = self.constants + self.states
        return Insertion(self.constants, end, self.states)

    @property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """Each output of the body that is a state, with the input that takes it in the next
        step."""
        return tuple(enumerate(self.state_inputs()))

    def with_states(self, inputs: Flags, through: Callable[[Flags], Flags]) -> Flags:
        """The inputs of the body that are reached in any run: `through` maps the inputs reached to
        the outputs reached in one run."""
        while True:
            outputs = through(inputs)[: self.states]
            rows = enumerate(inputs)
            more = tuple(
                has or (i in self.state_inputs() and outputs[i - self.constants]) for i, has in rows
            )
            if more == inputs:
                return inputs
            inputs = more

    def with_tangents(self, tangents: Sequence[Tensor | None]) -> Flags:
        """The inputs of the body that have tangents in any run."""
        given = tuple(t is not None for t in tangents)
        return self.with_states(given, functools.partial(depending_through, self.body))

    def reached(self, inputs: Flags) -> Flags:
        """The outputs of the last run of the body that depend on the inputs reached, where states
        may also stay what they begin with."""
        through = functools.partial(depending_through, self.body)
        found = [*through(self.with_states(inputs, through))]
        if self.may_be_skipped:
            for place, i in enumerate(self.state_inputs()):
                found[place] |= inputs[i]
        return tuple(found)

    def flow(self, flows: Sequence[Flow]) -> Flow:
        (flow, *others) = flows
        values, derivatives = [*flow.values], [*flow.derivatives]
        for masks in (values, derivatives):
            while True:
                more = [mask | self._carried(mask, masks) for mask in masks]
                if more == masks:
                    break
                masks[:] = more
        decided = 0  # whatever the condition of a loop reads affects every state
        for other in others:
            decided |= other.values[0] | self._carried(other.values[0], values)
        for place, i in enumerate(self.state_inputs()):
            values[place] |= 1 << i | decided
            derivatives[place] |= 1 << i
        if self.counts:
            values.append(decided)
            derivatives.append(0)
        return Flow(tuple(values), tuple(derivatives))

    def _carried(self, mask: int, masks: Sequence[int]) -> int:
        """The inputs that reach the states in `mask`."""
        total = 0
        for place, i in enumerate(self.state_inputs()):
            if mask >> i & 1:
                total |= masks[place]
        return total


class ConditionalLoop(Loop, abstract=True):
    """A loop whose body runs as long as its condition holds."""

    condition: Graph

    takes_zero_cotangents = True
    can_prune = True
    can_interpret = True
    leaves_out_regions = True
    repetitions = None

    def regions_run(self, values: Sequence[Any], compute: Any) -> tuple[bool, ...]:
        (begins,) = compute(self.condition, values)
        return bool(begins), True

    def how_often(self, region: Region) -> str:
        return "until it ends"

    def with_regions(
        self, graphs: Sequence[Graph], shared: int = 0, carried: int = 0
    ) -> ConditionalLoop:
        body, condition = graphs
        return self.with_graphs(condition, body, self.constants + shared)

    def with_graphs(self, condition: Graph, body: Graph, constants: int) -> ConditionalLoop:
        """The op with other graphs, which take this many constants."""
        raise NotImplementedError


class Scan(Loop):
    """The states after the last of `length` steps, and the other outputs of all steps, stacked.

    `(*constants, *states, *rows) -> (*states, *stacked)`: step t of the body takes the constants,
    the states of the step before, and row t of the rows. It begins with the last row if `reverse`.
    """

    states: int
    length: Size
    reverse: bool = False

    takes_zero_cotangents = True
    can_prune = True
    can_interpret = True
    leaves_out_regions = True

    @property
    def regions(self) -> tuple[Region, ...]:
        count = len(self.body.outputs)
        inputs = tuple(range(len(self.body.inputs)))
        return (Region(self.body, inputs, tuple(range(count)), self.carried),)

    def regions_run(self, values: Sequence[Any], compute: Any) -> tuple[bool, ...]:
        return (self.length != 0,)

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        constants, states = values[: self.constants], values[self.constants : self.rows]
        length = static_shape((self.length,))[0]
        steps = range(min([length, *self._tokens_given(values)]))
        pairs = zip(self.body.input_types[self.rows :], values[self.rows :], strict=True)
        own = rows_of_steps()
        rows = [own.tokens_of_steps(x, steps) if t is TOKEN else on_host(x) for t, x in pairs]
        made: list[Sequence[Any]] = []
        for step in reversed(steps) if self.reverse else steps:
            outputs = run(self.body, [*constants, *states, *(x[step] for x in rows)], 0)
            states = outputs[: self.states]
            made.append(outputs[self.states :])
        made = made[:: -1 if self.reverse else 1]
        given = [*values[: self.rows], *map(own.one_like, rows)]
        return [*states, *own.stacked_steps(self.body, self.states, given, made, length, on_host)]

    def _tokens_given(self, values: Sequence[Any]) -> Iterator[int]:
        """How many tokens of steps there are in each row of them. Steps that have none are not
        among those of this run: their other rows only fill it up to the longest."""
        for type, x in zip(self.body.input_types[self.rows :], values[self.rows :], strict=True):
            if type is TOKEN and getattr(x, "steps", None) is not None:
                yield len(x.steps)

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        names = lengths_of_runs(self.body)
        return [y for y in outputs[self.states :] if names & bound_names(y.type)] if names else ()

    @property
    def steps(self) -> range | None:  # type: ignore[override]
        if not isinstance(self.length, int):
            return None
        steps = range(self.length)
        return steps[::-1] if self.reverse else steps

    @property
    def row_inputs(self) -> range:  # type: ignore[override]
        return range(self.rows, len(self.body.inputs))

    def how_often(self, region: Region) -> str:
        return "1 time" if self.length == 1 else f"{self.length} times"

    @property
    def repetitions(self) -> Size:  # type: ignore[override]
        return self.length

    def types_inside(self, region: Region, types: Sequence[TensorType]) -> list[TensorType]:
        rows = [*map(_of_one_step, types[self.rows :])]
        return [*types[: self.rows], *rows]

    @property
    def rows(self) -> int:
        """The position of the first input that has rows."""
        return self.constants + self.states

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        for x in types[self.rows :]:
            if x is TOKEN:
                continue
            if not isinstance(x.shape, tuple) or not x.shape:
                raise Mismatch(f"{x} has no rows to scan", fix="give it a first axis")
            if same_size(x.shape[0], self.length) is None:
                raise Mismatch(
                    f"{x} has {x.shape[0]} rows, and the loop has {self.length} steps",
                    fix="give all tensors that are scanned the same first axis",
                )
        steps = [*map(_of_one_step, types[self.rows :])]
        found = Call(self.body).infer(*types[: self.rows], *steps)
        states = [
            kept_state(i, given, new)
            for i, (given, new) in enumerate(zip(types[self.constants : self.rows], found))
        ]
        stacked = [_of_steps(y, self.length) for y in found[self.states :]]
        return (*states, *stacked)

    def with_body(self, body: Graph, constants: int, states: int) -> Scan:
        return Scan(body, constants, states, self.length, self.reverse)

    def with_length(self, length: Size) -> Scan:
        return Scan(self.body, self.constants, self.states, length, self.reverse)

    def with_regions(self, graphs: Sequence[Graph], shared: int = 0, carried: int = 0) -> Scan:
        (body,) = graphs
        return self.with_body(body, self.constants + shared, self.states + carried)

    def with_optional_steps(self) -> Scan:
        body = self.body
        with Builder(body.name) as builder:
            env = copy_inputs(body, builder)
            is_step = builder.input(TensorType(bool_), "is_step")
            replay(body.nodes, env)
            states = [
                SELECT(spread(is_step, env[x].type), env[y], env[x])
                for x, y in zip(body.inputs[self.constants : self.rows], body.outputs)
            ]
            rest = [env[y] for y in body.outputs[self.states :]]
            return self.with_body(builder.finish([*states, *rest]), self.constants, self.states)

    # Derivatives.

    def recorded(self) -> Scan:
        body = self.body.cached(("stacks", self.rows), lambda: (self._stacking_body(),))[0]
        return self if body is self.body else self.with_body(body, self.constants, self.states)

    def _stacking_body(self) -> Graph:
        """The body that also returns, for stacking, what its rules read."""
        plan = residual_plan(self.body)
        known = {*plan.forward.inputs[: self.constants], *plan.forward.inputs[self.rows :]}
        known.update(plan.forward.outputs[self.states :])
        needed = dict.fromkeys((*plan.residuals, *results_of_effects(plan.forward)))
        missing = [x for x in needed if x not in known]
        if plan.forward is self.body and not missing:
            return self.body
        return plan.forward.with_outputs((*plan.forward.outputs, *missing))

    def residual_places(self) -> list[tuple[str, int]]:
        """The positions of the residuals among the inputs and outputs of this op."""
        body = self.body
        places = {y: ("output", i) for i, y in enumerate(body.outputs) if i >= self.states}
        rows = [
            (i, x) for i, x in enumerate(body.inputs) if not 0 <= i - self.constants < self.states
        ]
        places.update((x, ("input", i)) for i, x in rows)
        return [places[x] for x in residual_plan(body).residuals]

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.body.outputs)
        gs, ys = values[:count], values[count : 2 * count]
        xs = without_tokens(values[2 * count :])
        recorded = self.recorded()
        if recorded is not self:
            # It was recorded without a tape, hence without residuals: compute them now.
            recorded = self.silent().recorded()
            ys = as_tuple(recorded(*xs))
            gs = (*gs, *(None,) * (len(ys) - count))
        return recorded.pulled_back(gs, ys, xs)

    def silent(self) -> Scan:
        """The op without its prints, for recomputation."""
        return self.with_body(without_prints(self.body), self.constants, self.states)

    def pulled_back(
        self, gs: Sequence[Tensor | None], ys: Sequence[Tensor], xs: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The cotangents of the inputs, from those of the outputs of the op, a forward form."""
        present = self.states_with_cotangents(tuple(g is not None for g in gs))
        back: BackwardStep = self.body.cached(
            ("scan_backward", self.constants, self.states, present),
            lambda: BackwardStep(self, present, self.residual_places()),
        )
        values = {"input": xs, "output": ys}
        residuals = [values[kind][i] for kind, i in back.residuals]
        given = [(i, gs[i]) for i in back.states]
        seeds = {i: full(0, ys[i].type) if g is None else g for i, g in given}
        found = applied(
            Scan(back.graph, back.constants, back.state_count, self.length, not self.reverse),
            [
                *itertools.compress(residuals, back.is_constant),
                *(seeds[i] for i in back.states),
                *(full(0, type_of_sum(xs[i].type)) for i in back.summed),
                *itertools.compress(residuals, back.is_stacked),
                *(g for g in gs[self.states :] if g is not None),
            ],
        )
        cotangents = dict(back.cotangents(found, residuals))
        return at_places(cotangents, cotangents.values(), len(xs))

    def states_with_cotangents(self, present: Flags) -> Flags:
        """The outputs of a step that have cotangents, in any step."""
        while True:
            _, places = backward_graph(self.body, present)
            reached = {i - self.constants for i in places if i in self.state_inputs()}
            more = tuple(has or i in reached for i, has in enumerate(present))
            if more == present:
                return present
            present = more

    def jvp(self, tangents: Tangents, *values: Tensor) -> tuple[Tensor | None, ...]:
        xs = without_tokens(values[len(self.body.outputs) :])
        given = self.with_tangents(tangents)
        body, places, known = pushed_body(self.body, self.constants, self.states, given)
        ends = (0, self.constants, self.rows, len(xs))
        inputs = [*interleaved(ends, given, xs, tangents), *(values[i] for i in known)]
        first, states = sum(given[: self.constants]), sum(given[self.constants : self.rows])
        op = self.with_body(body, self.constants + first, self.states + states)
        found = applied(op, inputs)[self.states :]
        return at_places(places, found, len(self.body.outputs))

    # Loops.

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        size = own_size(self.body, n)
        flags = self.with_states(batched, lambda flags: vectorise(self.body, flags, size)[1])
        wide, has = vectorise(self.body, flags, size)
        wanted = (*flags[self.constants : self.rows], *has[self.states :])
        inputs = [
            (stack(x, n) if is_wide and not was_wide else x)
            if i < self.rows
            else swapped(x, is_wide)
            for i, (x, was_wide, is_wide) in enumerate(zip(xs, batched, flags, strict=True))
        ]
        op = self.with_body(stacked_outputs(wide, has, wanted, size), self.constants, self.states)
        outputs = applied(op, inputs)
        rows = zip(outputs[self.states :], wanted[self.states :], strict=True)
        return (*outputs[: self.states], *(swapped(y, flag) for y, flag in rows)), wanted

    # Dependences.

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        states = [*patterns[self.constants : self.rows]]
        stacked: list[tuple[Pattern, ...]] = []
        steps = range(self.length)
        for t in reversed(steps) if self.reverse else steps:
            rows = [moved(operator.itemgetter(t), p) for p in patterns[self.rows :]]
            found = Call(self.body).depends(*patterns[: self.constants], *states, *rows)
            states = [*found[: self.states]]
            stacked.append(found[self.states :])
        if self.reverse:
            stacked.reverse()
        if not stacked:
            empty = [static_shape(y.type.shape) for y in self.body.outputs[self.states :]]
            return (*states, *(Pattern.nothing((0, *x), patterns[0].total) for x in empty))
        columns = zip(*stacked, strict=True)
        return (*states, *(moved(lambda *rows: np.stack(rows), *column) for column in columns))

    @property
    def may_be_skipped(self) -> bool:  # type: ignore[override]
        return not isinstance(self.length, int) or self.length == 0

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        return self.reached(inputs)

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        wanted = self._needed(used)
        (body,), keep = narrowed([self.body], wanted, self._kept_states(wanted))
        sizing = keep[self.constants : self.rows]  # also states that only say how large others are
        if sizing != wanted[: self.states]:
            return self.pruned((*sizing, *wanted[self.states :]))
        if body is self.body:
            return self, (True,) * len(keep), wanted
        constants, states = sum(keep[: self.constants]), sum(wanted[: self.states])
        return self.with_body(body, constants, states), keep, wanted

    def _needed(self, used: Flags) -> Flags:
        """The outputs that are used, or that those are computed from in a later step."""
        body = self.body
        while True:
            ends = [y for y, is_used in zip(body.outputs, used, strict=True) if is_used]
            read = {x for node in live_nodes(body.nodes, ends) for x in node.inputs}.union(ends)
            more = tuple(
                is_used or (i < self.states and body.inputs[self.constants + i] in read)
                for i, is_used in enumerate(used)
            )
            if more == used:
                return used
            used = more

    def _kept_states(self, wanted: Flags) -> Flags:
        """The inputs that stay whether or not they are read: those of the carried states."""
        flags = [False] * len(self.body.inputs)
        for i in range(self.states):
            flags[self.constants + i] = wanted[i]
        return tuple(flags)


def rows_of_steps() -> Any:
    """The module about rows of steps that Python runs, which few programs need."""
    return opened("tracegraph.control.run_from_python.rows")


def _of_one_step(rows: TensorType) -> TensorType:
    """The type of one row. What the tokens of all steps carry is one token."""
    return rows if rows is TOKEN else rows.with_shape(rows.shape[1:])


def _of_steps(row: TensorType, length: Size) -> TensorType:
    return row if row is TOKEN else row.with_shape((length, *row.shape))


def kept_state(place: int, given: TensorType, new: TensorType) -> TensorType:
    """The type of a state. Raises Mismatch if a step changes it."""
    shape = same_shape(given.shape, new.shape)
    if given.dtype is not new.dtype or shape is None:
        raise Mismatch(
            f"state {place} is {given} before a step and {new} after it",
            fix="let every step return the type that it takes",
        )
    return given.with_shape(shape)


def swapped(x: Tensor, is_wide: bool) -> Tensor:
    """The tensor with its first two axes exchanged: that of an enclosing loop, and the steps."""
    return Transpose((1, 0, *range(2, x.ndim)))(x) if is_wide else x


class BackwardStep:
    """One step of a scan backwards: `(*constant residuals, *state cotangents, *sums, *stacked
    residuals, *cotangents) -> (*state cotangents, *sums, *row cotangents, *factors)`.

    Contributions of steps to the cotangent of a constant are summed from step to step, in float32
    if they have 16 bits, unless they are matrix products: then the stacked factors of all steps are
    multiplied once after the loop.
    """

    def __init__(
        self,
        scan: Scan,
        present: Flags,
        residuals: Sequence[tuple[str, int]],
        takes_out_products: bool = True,
    ) -> None:
        step, places = backward_graph(scan.body, present)
        self.residuals = residuals
        self.is_constant = [kind == "input" and i < scan.constants for kind, i in residuals]
        self.is_stacked = [not flag for flag in self.is_constant]
        #: The states that have cotangents.
        self.states = [i for i in range(scan.states) if present[i]]
        self._rows = [i for i in places if i >= scan.rows]
        self._first_state = scan.constants
        found = dict(zip(places, step.outputs, strict=True))
        by_constant = {i: found[i] for i in places if i < scan.constants}
        self._stacked = [
            *itertools.compress(step.inputs, self.is_stacked),
            *(found[i] for i in self._rows),
        ]
        self._factors = _Factors(by_constant if takes_out_products else {}, self._stacked)
        self.summed = [i for i in by_constant if i not in self._factors.products]
        self._dtypes = {i: scan.body.inputs[i].dtype for i in self.summed}
        self.constants = sum(self.is_constant)
        self.state_count = len(self.states) + len(self.summed)
        self.graph = self._built(scan, step, found)

    def _built(self, scan: Scan, step: Graph, found: dict[int, Tensor]) -> Graph:
        count, states = len(self.residuals), len(self.states)
        with Builder(step.name) as builder:
            env: dict[Tensor, Tensor] = {}
            rows = [*zip(step.inputs[:count], self.is_constant, strict=True)]
            env.update((x, builder.input_like(x)) for x, flag in rows if flag)
            env.update((x, builder.input_like(x)) for x in step.inputs[count : count + states])
            types = [type_of_sum(scan.body.inputs[i].type) for i in self.summed]
            sums = [builder.input(type, "sum") for type in types]
            env.update((x, builder.input_like(x)) for x, flag in rows if not flag)
            env.update((x, builder.input_like(x)) for x in step.inputs[count + states :])
            replay(step.nodes, env)
            outputs = [
                env[found[scan.constants + i]]
                if scan.constants + i in found
                else full(0, scan.body.outputs[i].type)
                for i in self.states
            ]
            pairs = zip(sums, self.summed, strict=True)
            outputs += [ADD(total, _in_dtype(env[found[i]], total.dtype)) for total, i in pairs]
            outputs += [env[found[i]] for i in self._rows]
            outputs += [env[x] for x in self._factors.returned]
            graph = dead_code(builder.finish(outputs))
        passed("backward", graph)
        return graph

    def cotangents(
        self, found: Sequence[Tensor], residuals: Sequence[Tensor]
    ) -> list[tuple[int, Tensor]]:
        """The cotangents of the inputs of the scan by position, from the results of the backward
        scan."""
        rest = iter(found)
        pairs = [(self._first_state + i, next(rest)) for i in self.states]
        pairs += [(i, _in_dtype(next(rest), self._dtypes[i])) for i in self.summed]
        rows = [next(rest) for _ in self._rows]
        pairs += zip(self._rows, rows, strict=True)
        values = [*itertools.compress(residuals, self.is_stacked), *rows]
        stacked = dict(zip(self._stacked, values, strict=True))
        stacked |= dict(zip(self._factors.returned, rest, strict=True))
        return [*pairs, *self._factors.multiplied(stacked)]


def type_of_sum(type: TensorType) -> TensorType:
    """The type in which values of a type are summed from step to step."""
    is_narrow = type.dtype.is_floating and type.dtype.size < float32.size
    return type.with_dtype(float32) if is_narrow else type


def _in_dtype(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else Cast(dtype)(x)


class _Factors:
    """The cotangents of constants that are matrix products, or sums of a factor of one."""

    def __init__(self, by_constant: Mapping[int, Tensor], stacked: Iterable[Tensor]) -> None:
        known = {*stacked}
        #: What each step returns for them.
        self.returned: list[Tensor] = []
        #: For each constant the op that computes its cotangent, and the op's operands.
        self.products: dict[int, tuple[Op, tuple[Tensor, ...]]] = {}
        for i, g in by_constant.items():
            node = g.node
            if node is None or type(node.op) is not Matmul or g.ndim != 2 or not g.type.is_static:
                continue
            new = {x for x in map(_untransposed, node.inputs) if x not in known}
            if not all(x.type.is_static for x in new):
                continue  # it is not known which of the two is smaller
            if sum(element_count(x.type.shape) for x in new) <= element_count(g.type.shape):
                self.products[i] = node.op, node.inputs
                self.returned += new
                known |= new
        for i, g in by_constant.items():
            node = g.node
            if node is not None and type(node.op) is Sum and node.inputs[0] in known:
                self.products[i] = node.op, node.inputs

    def multiplied(self, stacked: Mapping[Tensor, Tensor]) -> list[tuple[int, Tensor]]:
        """The cotangents, from the values stacked over all steps."""
        return [(i, _over_steps(op, xs, stacked)) for i, (op, xs) in self.products.items()]


def _untransposed(x: Tensor) -> Tensor:
    is_turned = x.node is not None and type(x.node.op) is Transpose
    return x.node.inputs[0] if is_turned and x.node is not None else x


def _over_steps(op: Op, xs: Sequence[Tensor], stacked: Mapping[Tensor, Tensor]) -> Tensor:
    """The sum over all steps of a matrix product, or of a sum."""
    if isinstance(op, Sum):
        (x,) = xs
        axes = range(x.ndim) if op.axes is None else op.axes
        return Sum((0, *(axis + 1 for axis in axes)))(stacked[x])
    x, y = xs
    # The steps are merged into the contracted axis: the columns of x, the rows of y.
    return op(_joined(x, 1, stacked), _joined(y, 0, stacked))


def _joined(x: Tensor, axis: int, stacked: Mapping[Tensor, Tensor]) -> Tensor:
    """The matrices of all steps as one, concatenated along `axis`."""
    plain = _untransposed(x)
    steps = stacked[plain]
    # To merge into the last axis, steps are moved beside it first; a transposed matrix is merged as
    # it was.
    is_turned = plain is not x
    if (axis == 1) == is_turned:
        count, rows, columns = steps.type.shape
        whole = Reshape((count * rows, columns))(steps)
    else:
        count, rows, columns = steps.type.shape
        whole = Reshape((rows, count * columns))(Transpose((1, 0, 2))(steps))
    return Transpose((1, 0))(whole) if is_turned else whole


def pushed_body(
    body: Graph, constants: int, states: int, given: Flags
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """The body of a loop that carries tangents beside the states; the outputs of `body` that have
    one, states first; and the outputs that are known, since Python functions returned them.

    Its inputs are the constants and their tangents, the states and theirs, the rows and theirs,
    where they exist, and of each known output a row."""
    return body.cached(
        ("pushed", constants, states, given), lambda: _pushed(body, constants, states, given)
    )


def _pushed(
    body: Graph, constants: int, states: int, given: Flags
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    rows = constants + states
    effects = places_of_effects(body, states) if calls_python(body) else {}
    silent = body if effects else without_prints(body)
    with Builder(derived_name(body, "jvp")) as builder:
        env: dict[Tensor, Tensor] = {}
        tangents: dict[int, Tensor] = {}
        for start, end in itertools.pairwise((0, constants, rows, len(body.inputs))):
            env.update((x, builder.input_like(x)) for x in silent.inputs[start:end])
            for i in range(start, end):
                if given[i]:
                    tangents[i] = builder.input(body.inputs[i].type, f"t{i}")
        replay(silent.nodes, env)
        ys = [env[y] for y in silent.outputs]
        xs = [env[silent.inputs[i]] for i in tangents]
        found = jvp(builder.nodes, ys, xs, [*tangents.values()])
        kept = [
            (i, full(0, ys[i].type) if t is None else t)
            for i, t in enumerate(found)
            if (given[constants + i] if i < states else t is not None)
        ]
        graph = builder.finish([*ys[:states], *(t for _, t in kept)])
    if effects:
        graph = with_known(graph, {env[y]: i for y, i in effects.items()})
    graph = simplify(graph)
    if graph.has_effects:
        without_prints(body)  # raises the error that says what is wrong
    passed("tangents", graph)
    return graph, tuple(i for i, _ in kept), tuple(effects.values())


#: The largest product that is hoisted out of a loop, in bytes.
_LARGEST_TAKEN_OUT = 1 << 28


def without_row_products(op: Scan, inputs: Sequence[Tensor]) -> tuple[Scan, list[Tensor]]:
    """The scan with the matrix products that need no state hoisted: for all steps they form a
    single product before it. Without states the steps are independent anyway, and the scan stays as
    it is."""
    body, products = op.body, _products_of_rows(op)
    sizes = [bytes_of_type(y.type) for y in products]
    is_known = isinstance(op.length, int) and all(isinstance(size, int) for size in sizes)
    if not (op.states and products and is_known and op.length * sum(sizes) <= _LARGEST_TAKEN_OUT):
        return op, [*inputs]
    stateless = [*range(op.constants), *range(op.rows, len(inputs))]
    nodes = tuple(live_nodes(body.nodes, products))
    given = tuple(body.inputs[i] for i in stateless)
    before = Graph(body.name, given, nodes, tuple(products))
    is_row = tuple(i >= op.rows for i in stateless)
    wide, has = vectorise(before, is_row, op.length)
    stacked = stacked_outputs(wide, has, (True,) * len(has), op.length)
    found = inline(stacked, [inputs[i] for i in stateless])
    rest = tuple(node for node in body.nodes if not {*node.outputs} & {*products})
    with Builder(body.name) as builder:
        env = {x: builder.input_like(x) for x in body.inputs}
        env.update((y, builder.input_for(y)) for y in products)
        replay(rest, env)
        small = dead_code(builder.finish([env[y] for y in body.outputs]))
    return op.with_body(small, op.constants, op.states), [*inputs, *found]


def _products_of_rows(op: Scan) -> list[Tensor]:
    """The matrix products in the body that read rows, and no state."""
    by_state = {*op.body.inputs[op.constants : op.rows]}
    by_row = {*op.body.inputs[op.rows :]}
    products: list[Tensor] = []
    for node in op.body.nodes:
        if not by_state.isdisjoint(node.inputs):
            by_state.update(node.outputs)
        elif not by_row.isdisjoint(node.inputs):
            by_row.update(node.outputs)
            if isinstance(node.op, Bilinear):
                products += node.outputs
    return products


def interleaved(
    ends: Sequence[int], given: Flags, xs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """The inputs of a pushed body: each part of `xs`, delimited by `ends`, followed by its
    tangents."""
    inputs: list[Tensor] = []
    for start, end in itertools.pairwise(ends):
        inputs += xs[start:end]
        for x, t, has in zip(xs[start:end], tangents[start:end], given[start:end], strict=True):
            if has:
                inputs.append(full(0, x.type) if t is None else t)
    return inputs
