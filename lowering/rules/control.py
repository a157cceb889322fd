"""Lowering of `tracegraph.control`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lowering.distribution.layout import unstated
from lowering.program import BY_TABLE, Lowering, graph_function
from lowering.rules import lowers
from lowering.rules.accumulate import type_of_sum
from tracegraph.control.branch import Cond, Switch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While, WhileGradient
from tracegraph.ir.tensor import Graph


@lowers(Cond)
def _cond(op: Cond, decider: Any, *xs: Any, way: Lowering = BY_TABLE) -> Any:
    return jax.lax.cond(decider, _branch(op.true, way), _branch(op.false, way), *xs)


@lowers(Switch)
def _switch(op: Switch, decider: Any, *xs: Any, way: Lowering = BY_TABLE) -> Any:
    last = len(op.branches) - 1
    place = jnp.where((decider < 0) | (decider > last), last, decider)
    return jax.lax.switch(place, [_branch(branch, way) for branch in op.branches], *xs)


def _branch(graph: Graph, way: Lowering) -> Callable[..., tuple[Any, ...]]:
    run = graph_function(graph, way)
    return lambda *xs: unstated(graph, run(*xs))


@lowers(Scan)
def _scan(op: Scan, *xs: Any, way: Lowering = BY_TABLE) -> Any:
    constants, states = xs[: op.constants], xs[op.constants : op.rows]
    body = graph_function(op.body, way)

    def step(states: Any, rows: Any) -> Any:
        outputs = body(*constants, *states, *rows)
        return outputs[: op.states], outputs[op.states :]

    length: Any = op.length
    last, stacked = jax.lax.scan(step, states, xs[op.rows :], length, op.reverse)
    return (*last, *stacked)


@lowers(While)
def _while(op: While, *xs: Any) -> Any:
    constants, start = xs[: op.constants], xs[op.constants :]
    condition, body = graph_function(op.condition), graph_function(op.body)
    if not op.counts:
        return jax.lax.while_loop(
            lambda states: condition(*constants, *states)[0],
            lambda states: body(*constants, *states),
            start,
        )
    count, states = jax.lax.while_loop(
        lambda carry: condition(*constants, *carry[1])[0],
        lambda carry: (carry[0] + 1, body(*constants, *carry[1])),
        (jnp.int32(0), start),
    )
    return (*states, count)


@lowers(WhileGradient)
def _while_gradient(op: WhileGradient, count: Any, *xs: Any) -> Any:
    start = xs[op.constants : len(op.body.inputs)]
    back = _StepsBack(op, xs[: op.constants], count)
    slots = [jnp.zeros((back.size, *x.shape), x.dtype).at[0].set(x) for x in start]
    numbers = jnp.zeros((back.size,), jnp.int32)
    gs = iter(xs[len(op.body.inputs) :])
    results = [
        jnp.zeros(xs[i].shape, type_of_sum(xs[i].dtype)) if sums else next(gs)
        for i, sums in zip(op.targets, back.is_sum, strict=False)
    ]
    results += gs  # what is carried besides
    blocks = (count + back.length - 1) // back.length
    carry = (blocks, jnp.int32(0), numbers, slots, results)
    found = jax.lax.while_loop(lambda carry: carry[0] > 0, back.block_back, carry)[-1]
    count = len(op.targets)
    rows = zip(op.targets, found[:count], strict=True)
    return (*(y.astype(xs[i].dtype) for i, y in rows), *found[count:])


class _StepsBack:
    """A loop backwards, block of steps after block. `slots` have a place for each state that is
    kept: first those of checkpoints, each of which begins the block of the number at its place,
    then those of the steps of one block. The first of these has on the way there what nothing comes
    back to."""

    def __init__(self, op: WhileGradient, constants: Sequence[Any], count: Any) -> None:
        self.constants, self.count = constants, count
        self.body, self.backward = graph_function(op.body), graph_function(op.backward)
        self.is_sum = [i < op.constants for i in op.targets] + [False] * op.extras
        #: The number of places, and the number of steps in a block.
        self.size, self.length = op.checkpoints, _block_length(op.checkpoints, count)
        self.of_block = self.size - self.length

    def block_back(self, carry: Any) -> Any:
        front, place, numbers, slots, results = carry
        place, numbers, slots, states = self._descend(front, place, numbers, slots)
        front = front - 1
        steps = jnp.minimum(self.count - front * self.length, self.length)
        slots = _stored(slots, self.of_block, states)
        slots = jax.lax.fori_loop(0, steps - 1, self._keep, slots)

        def step_back(i: Any, results: Any) -> Any:
            return self._step_back(slots, steps - 1 - i, results)

        results = jax.lax.fori_loop(0, steps, step_back, results)
        is_done = (place > 0) & (numbers[place] >= front)
        return front, jnp.where(is_done, place - 1, place), numbers, slots, results

    def _descend(self, front: Any, place: Any, numbers: Any, slots: Any) -> Any:
        """The state with which the block before `front` begins, with checkpoints on the way."""

        def is_before(carry: Any) -> Any:
            return carry[0] < front - 1

        def advance(carry: Any) -> Any:
            number, place, numbers, slots, states = carry
            blocks = _blocks_to_checkpoint(front - number, self.of_block - place)
            states = self._forward(blocks * self.length, states)
            number = number + blocks
            is_kept = (number < front - 1) & (place + 1 < self.of_block)
            into = place + 1
            slots = _stored(slots, into, states)
            numbers = numbers.at[into].set(number)
            return number, jnp.where(is_kept, into, place), numbers, slots, states

        states = tuple(slot[place] for slot in slots)
        found = (numbers[place], place, numbers, slots, states)
        return jax.lax.while_loop(is_before, advance, found)[1:]

    def _forward(self, steps: Any, states: Any) -> Any:
        def step(_: Any, states: Any) -> Any:
            return self.body(*self.constants, *states)

        return jax.lax.fori_loop(0, steps, step, states)

    def _keep(self, step: Any, slots: Any) -> Any:
        """Stores the state after a step, which is read from where it was stored: XLA would copy a
        state that is both stored and carried."""
        place = self.of_block + step
        states = self.body(*self.constants, *(slot[place] for slot in slots))
        return _stored(slots, place + 1, states)

    def _step_back(self, slots: Any, step: Any, results: Any) -> Any:
        states = [slot[self.of_block + step] for slot in slots]
        seeds = [g for g, sums in zip(results, self.is_sum, strict=True) if not sums]
        found = self.backward(*self.constants, *states, *seeds)
        rows = zip(results, found, self.is_sum, strict=True)
        return [old + new if sums else new for old, new, sums in rows]


def _stored(slots: Sequence[Any], place: Any, states: Sequence[Any]) -> list[Any]:
    return [slot.at[place].set(x) for slot, x in zip(slots, states, strict=True)]


#: From so many checkpoints on half of them are for the steps of one block, which then go back
#: without a search for the last checkpoint. With fewer that would multiply what is computed again.
_BLOCKS_FROM = 16


def _block_length(checkpoints: int, count: Any) -> Any:
    """How many of the places are for the steps of one block. A loop of fewer steps than there are
    places is one block."""
    usual = checkpoints // 2 if checkpoints >= _BLOCKS_FROM else 1
    return jnp.where(count < checkpoints, checkpoints - 1, usual)


def _blocks_to_checkpoint(blocks: Any, places: Any) -> Any:
    """How far the next checkpoint is, where so many blocks are to be reversed and so many places
    are there, that of the state where they begin among them: (places + r - 1 over r - 1) for the
    least r for which (places + r over r) is enough."""

    def is_too_few(carry: Any) -> Any:
        return carry[1] < blocks

    def repeat_once_more(carry: Any) -> Any:
        repetitions, reach = carry
        more = repetitions + 1
        return more, reach * (places + more) / more

    start = (jnp.int32(0), jnp.float32(1))
    repetitions, reach = jax.lax.while_loop(is_too_few, repeat_once_more, start)
    before = reach * repetitions / (places + repetitions)
    return jnp.clip(jnp.round(before).astype(jnp.int32), 1, jnp.maximum(blocks - 1, 1))
