"""Lowering of `tracegraph.control`: bodies become functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lowering.program import BY_TABLE, Lowering, graph_function
from lowering.rules import lowers
from lowering.rules.accumulate import type_of_sum
from tracegraph.control import call as ops
from tracegraph.control.branch import Cond, Switch
from tracegraph.control.custom_call import CustomCall
from tracegraph.control.recompute import RecomputedCall
from tracegraph.control.scan import Scan
from tracegraph.control.undifferentiable import UndifferentiableCall
from tracegraph.control.while_loop import While, WhileGradient
from tracegraph.ir.tensor import Graph


@lowers(ops.Call, CustomCall, RecomputedCall, UndifferentiableCall)
def _call(op: ops.Call, *xs: Any) -> Any:
    return _function(op.body)(*xs)


def _function(body: Graph) -> Callable[..., tuple[Any, ...]]:
    """One function object per body, so that JAX traces a body once however often it is called."""
    function = body.cache.get("lowered")
    if function is None:
        function = body.cache["lowered"] = jax.jit(graph_function(body))
    return function


@lowers(Cond)
def _cond(op: Cond, decider: Any, *xs: Any, way: Lowering = BY_TABLE) -> Any:
    true, false = graph_function(op.true, way), graph_function(op.false, way)
    return jax.lax.cond(decider, true, false, *xs)


@lowers(Switch)
def _switch(op: Switch, decider: Any, *xs: Any, way: Lowering = BY_TABLE) -> Any:
    last = len(op.branches) - 1
    place = jnp.where((decider < 0) | (decider > last), last, decider)
    return jax.lax.switch(place, [graph_function(branch, way) for branch in op.branches], *xs)


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
    constants, start = xs[: op.constants], xs[op.constants : len(op.body.inputs)]
    body, backward = graph_function(op.body), graph_function(op.backward)
    #: The last place is for states that nothing comes back to.
    last = op.checkpoints - 1
    is_sum = [i < op.constants for i in op.targets]

    def forward(steps: Any, states: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, states: body(*constants, *states), states)

    def descend(front: Any, place: Any, numbers: Any, slots: Any) -> Any:
        """The state of the step before `front`, with checkpoints on the way to it."""

        def is_before(carry: Any) -> Any:
            return carry[0] < front - 1

        def advance(carry: Any) -> Any:
            number, place, numbers, slots, states = carry
            steps = _steps_to_checkpoint(front - number, last - place)
            states = forward(steps, states)
            number = number + steps
            is_kept = (number < front - 1) & (place + 1 < last)
            into = place + 1
            slots = [slot.at[into].set(x) for slot, x in zip(slots, states, strict=True)]
            numbers = numbers.at[into].set(number)
            return number, jnp.where(is_kept, into, place), numbers, slots, states

        states = tuple(slot[place] for slot in slots)
        found = (numbers[place], place, numbers, slots, states)
        return jax.lax.while_loop(is_before, advance, found)[1:]

    def step_back(carry: Any) -> Any:
        front, place, numbers, slots, results = carry
        place, numbers, slots, states = descend(front, place, numbers, slots)
        seeds = [g for g, sums in zip(results, is_sum, strict=True) if not sums]
        found = backward(*constants, *states, *seeds)
        results = [
            old + new if sums else new
            for old, new, sums in zip(results, found, is_sum, strict=True)
        ]
        front = front - 1
        is_done = (place > 0) & (numbers[place] >= front)
        return front, jnp.where(is_done, place - 1, place), numbers, slots, results

    slots = [jnp.zeros((op.checkpoints, *x.shape), x.dtype).at[0].set(x) for x in start]
    numbers = jnp.zeros((op.checkpoints,), jnp.int32)
    gs = iter(xs[len(op.body.inputs) :])
    results = [
        jnp.zeros(xs[i].shape, type_of_sum(xs[i].dtype)) if sums else next(gs)
        for i, sums in zip(op.targets, is_sum, strict=True)
    ]
    carry = (count, jnp.int32(0), numbers, slots, results)
    found = jax.lax.while_loop(lambda carry: carry[0] > 0, step_back, carry)[-1]
    return tuple(y.astype(xs[i].dtype) for i, y in zip(op.targets, found, strict=True))


def _steps_to_checkpoint(steps: Any, places: Any) -> Any:
    """How far the next checkpoint is, where so many steps are to be reversed and so many places are
    there, that of the state where they begin among them: (places + r - 1 over r - 1) for the least
    r for which (places + r over r) is enough."""

    def is_too_few(carry: Any) -> Any:
        return carry[1] < steps

    def repeat_once_more(carry: Any) -> Any:
        repetitions, reach = carry
        more = repetitions + 1
        return more, reach * (places + more) / more

    start = (jnp.int32(0), jnp.float32(1))
    repetitions, reach = jax.lax.while_loop(is_too_few, repeat_once_more, start)
    before = reach * repetitions / (places + repetitions)
    return jnp.clip(jnp.round(before).astype(jnp.int32), 1, jnp.maximum(steps - 1, 1))
