"""The forward form of a while that calls Python functions, which reverse mode must not call again.

Such a loop runs step by step from Python, so each step can return what the rules of the body read,
to be stacked as in a scan. The number of steps is an open size that the run determines. From then
on its derivatives are those of a scan of this length. Inside another loop, each step of which has a
number of its own, the rows are filled up to the largest, and the scan leaves out what was added.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.calls.call import applied, has_plan, own_size, residual_plan, results_of_effects
from tracegraph.control.scan import ConditionalLoop, Flags, Scan, rows_of_steps, swapped
from tracegraph.control.without_prints import lengths_of_runs, without_tokens
from tracegraph.core.shapes import Size
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType, bool_
from tracegraph.errors import Mismatch
from tracegraph.ir.op import (
    Batched,
    Derivative,
    Flow,
    MissingRule,
    OnHost,
    Region,
    RunRegion,
    Tangents,
)
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import stack
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import names_in
from tracegraph.passes.vectorise import stacked_outputs, vectorise


class RecordedWhile(ConditionalLoop):
    """The states after the last step, for each step True, and the other outputs of all steps,
    stacked: `(*constants, *states) -> (*states, bool[length], *stacked)`.

    `condition` and `body` take the constants and the states; the body runs as long as the condition
    holds, and `length` is how often it ran, which the run tells.
    """

    length: Size

    counts = True

    @property
    def states(self) -> int:
        return len(self.condition.inputs) - self.constants

    @property
    def regions(self) -> tuple[Region, ...]:
        inputs = tuple(range(len(self.body.inputs)))
        stacked = range(self.states, len(self.body.outputs))
        places = (*range(self.states), *(1 + i for i in stacked))
        return (
            Region(self.body, inputs, places, self.carried),
            Region(self.condition, inputs, (), is_condition=True),
        )

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        constants, states = values[: self.constants], values[self.constants :]
        made: list[Sequence[Any]] = []
        while np.asarray(run(self.condition, [*constants, *states], 0)[0]):
            outputs = run(self.body, [*constants, *states], 0)
            states = outputs[: self.states]
            made.append(outputs[self.states :])
        stacked = rows_of_steps().stacked_steps
        rows = stacked(self.body, self.states, values, made, len(made), on_host)
        return [*states, np.ones(len(made), np.bool_), *rows]

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [
            *outputs[self.states : self.states + 1],
            *self._as_scan().outputs_sized_by_run(self._without_steps(outputs)),
        ]

    @property
    def sizes_of_runs(self) -> set[str]:
        return {str(self.length)}

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        found = self._as_scan().infer(*types)
        steps = TensorType(bool_, (self.length,))
        return (*found[: self.states], steps, *found[self.states :])

    def _as_scan(self) -> Scan:
        return Scan(self.body, self.constants, self.states, self.length)

    def _of_rows(self) -> Scan:
        """The scan that leaves out rows that are of no step: it takes as its last input, and as
        rows, which are."""
        key = "of rows", self.constants, self.states
        body = self.body.cached(key, lambda: self._as_scan().with_optional_steps().body)
        return Scan(body, self.constants, self.states, self.length)

    def with_graphs(self, condition: Graph, body: Graph, constants: int) -> RecordedWhile:
        return RecordedWhile(body, constants, condition, self.length)

    def recorded(self) -> RecordedWhile:
        return recorded_while(self.body, self.constants, self.condition, self.length)

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.body.outputs) + 1
        gs, ys = self._without_steps(values[:count]), self._without_steps(values[count : 2 * count])
        xs = (*without_tokens(values[2 * count :]), values[count + self.states])
        return self._of_rows().pulled_back(gs, ys, xs)[:-1]

    def _without_steps(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return (*values[: self.states], *values[self.states + 1 :])

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        count = len(self.body.outputs) + 1
        ys = self._without_steps(values[:count])
        xs = (*values[count:], values[self.states])
        found = self._of_rows().jvp((*tangents, None), *ys, *xs)
        return (*found[: self.states], None, *found[self.states :])

    def pruned(self, used: Flags) -> tuple[RecordedWhile, Flags, Flags]:
        """The loop without what is stacked for tangents that are not taken. What rules of reverse
        mode read stays: they find it among the outputs."""
        read = {*residual_plan(self.body).residuals} if has_plan(self.body) else set[Tensor]()
        stacked = zip(self.body.outputs[self.states :], used[self.states + 1 :], strict=True)
        kept = ((True,) * self.states, tuple(is_used or y in read for y, is_used in stacked))
        takes, has = (True,) * len(self.body.inputs), (*kept[0], True, *kept[1])
        if all(has):
            return self, takes, has
        outputs = itertools.compress(self.body.outputs, self._without_steps(has))
        body = dead_code(self.body.with_outputs(tuple(outputs)))
        return RecordedWhile(body, self.constants, self.condition, self.length), takes, has

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        size = own_size(self.body, n)
        flags = self.with_states(batched, lambda flags: vectorise(self.body, flags, size)[1])
        condition, (ends_apart,) = vectorise(self.condition, flags, size)
        if ends_apart:
            raise Mismatch(
                "a loop calls Python, and in a parallel loop each iteration runs it another number "
                "of times",
                fix="use tg.map_fn, which runs one iteration after the other",
            )
        wide, has = vectorise(self.body, flags, size)
        wanted = (*flags[self.constants :], *has[self.states :])
        pairs = zip(xs, batched, flags, strict=True)
        inputs = [stack(x, n) if is_wide and not was else x for x, was, is_wide in pairs]
        body = stacked_outputs(wide, has, wanted, size)
        op = RecordedWhile(body, self.constants, condition, self.length)
        outputs = applied(op, inputs)
        rows = zip(outputs[self.states + 1 :], wanted[self.states :], strict=True)
        stacked = [swapped(y, is_wide) for y, is_wide in rows]
        return (*outputs[: self.states + 1], *stacked), (
            *wanted[: self.states],
            False,
            *wanted[self.states :],
        )

    def depends(self, *patterns: Pattern) -> Pattern:
        raise MissingRule(self, "sparsity")

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        found = self.reached(inputs)
        return (*found[: self.states], False, *found[self.states :])

    def flow(self, flows: Sequence[Flow]) -> Flow:
        found = super().flow(flows)
        values, derivatives = [*found.values], [*found.derivatives]
        for masks in (values, derivatives):  # of the number of steps, which comes last there
            masks.insert(self.states, masks.pop())
        return Flow(tuple(values), tuple(derivatives))


def recorded_while(body: Graph, constants: int, condition: Graph, length: Size) -> RecordedWhile:
    """The forward form of a while whose body may return other outputs after the states."""
    body = body.cached(("records", constants), lambda: (_recording(body, constants),))[0]
    return RecordedWhile(body, constants, condition, length)


def _recording(body: Graph, constants: int) -> Graph:
    """The body that also returns, for stacking, what its rules read, and what its Python functions
    returned. Results of open sizes are stacked only for rules: these may differ from step to
    step."""
    plan = residual_plan(body)
    outputs = plan.forward.outputs[: len(body.outputs)]
    known = {*plan.forward.inputs[:constants], *outputs[len(body.inputs) - constants :]}
    lengths = lengths_of_runs(plan.forward)
    kept = [y for y in results_of_effects(plan.forward) if names_in(y.type) <= lengths]
    missing = [x for x in dict.fromkeys((*plan.residuals, *kept)) if x not in known]
    is_same = all(x is y for x, y in zip(plan.forward.inputs, body.inputs, strict=True))
    return body if is_same and not missing else plan.forward.with_outputs((*outputs, *missing))
