"""Rules of branches and loops that are broken on purpose: small programs notice each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.mutants import LOWERING, Mutant, broken
from tracegraph.control.branch import Branch, Cond, Switch
from tracegraph.control.scan import BackwardStep, Scan
from tracegraph.control.stacked_whiles import Stacking
from tracegraph.control.while_loop import While, WhileGradient

MATRIX = np.array([[0.3, -0.5], [0.4, 0.2]])
ROWS = np.array([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]])
STARTS = np.array([[0.4, 0.7], [-0.6, -0.9], [0.8, 0.1]])


def branches(x, m):
    y = tg.cond(tg.reduce_sum(x) > 0.0, lambda: tg.sin(x) * x, lambda: x * x * x + m[0])
    return tg.switch_case(tg.cast(y[0] > 0.1, tg.int32), [lambda: y * y, lambda: tg.exp(y) * m[1]])


def branches_by_jax(x, m):
    y = jnp.where(x.sum() > 0.0, jnp.sin(x) * x, x**3 + m[0])
    return jnp.where(y[0] > 0.1, jnp.exp(y) * m[1], y * y)


def scanned(x, m):
    def step(state, row):
        new = tg.tanh(tg.linalg.matvec(m, state) + row)
        return new * state[0] + row

    return tg.scan(step, tg.constant(ROWS) * x, x)[-1]


def scanned_by_jax(x, m):
    state = x
    for row in jnp.asarray(ROWS) * x:
        state = jnp.tanh(m @ state + row) * state[0] + row
    return state


def looped(x, m):
    """From each start in another number of steps."""

    def step(i, y):
        return i + 1, tg.sin(tg.linalg.matvec(m, y)) + x * y

    count = 3 + tg.cast(x[0] > 0.5, tg.int32) * 2
    return tg.while_loop(lambda i, y: i < count, step, (0, x), checkpoints=3)[1]


def bounded(x, m):
    """As `looped`, in a loop that stacks what its gradient reads."""

    def step(i, y):
        return i + 1, tg.sin(tg.linalg.matvec(m, y)) + x * y

    count = 3 + tg.cast(x[0] > 0.5, tg.int32) * 2
    return tg.while_loop(lambda i, y: i < count, step, (0, x), maximum_iterations=6)[1]


def looped_by_jax(x, m):
    def steps(count):
        y = x
        for _ in range(count):
            y = jnp.sin(m @ y) + x * y
        return y

    return jnp.where(x[0] > 0.5, steps(5), steps(3))


def everything(function):
    """By us: values, gradients, tangents and second gradients, of all starts at once, and
    of the first alone."""

    def total(x, m):
        return tg.reduce_sum(tg.sin(function(x, m)))

    def of_one(x):
        m = tg.constant(MATRIX)
        with tg.GradientTape() as outer:
            outer.watch([x, m])
            with tg.GradientTape() as inner:
                inner.watch([x, m])
                y = total(x, m)
            first = inner.gradient(y, [x, m])
            part = tg.reduce_sum(first[0] * x) + tg.reduce_sum(first[1] * m)
        second = outer.gradient(part, [x, m])
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            with tg.GradientTape() as tape:
                tape.watch(m)
                z = total(x, m)
            slope = tape.gradient(z, m)
        return y, first, second, accumulator.jvp(z), accumulator.jvp(slope)

    lanes = tg.function(lambda xs: tg.vectorized_map(of_one, xs))(tg.constant(STARTS))
    alone = tg.function(of_one)(tg.constant(STARTS[0]))
    return tg.nest.flatten([lanes, alone])


def everything_by_jax(function):
    def total(x, m):
        return jnp.sin(function(x, m)).sum()

    def of_one(x):
        m = jnp.asarray(MATRIX)

        def part(x, m):
            first = jax.grad(total, (0, 1))(x, m)
            return (first[0] * x).sum() + (first[1] * m).sum()

        ones = (jnp.ones_like(x),)
        tangent = jax.jvp(lambda x: total(x, m), (x,), ones)[1]
        slope = jax.jvp(lambda x: jax.grad(total, 1)(x, m), (x,), ones)[1]
        first, second = (jax.grad(f, (0, 1))(x, m) for f in (total, part))
        return total(x, m), [*first], [*second], tangent, slope

    with jax.enable_x64(True):
        in_one_program = jax.jit(lambda xs: [jax.vmap(of_one)(xs), of_one(xs[0])])
        return jax.tree.leaves(in_one_program(jnp.asarray(STARTS)))


def is_right(function, by_jax):
    pairs = zip(everything(function), everything_by_jax(by_jax), strict=True)
    return all(np.allclose(ours, theirs, rtol=1e-9, atol=1e-11) for ours, theirs in pairs)


PROGRAMS = [
    (branches, branches_by_jax),
    (scanned, scanned_by_jax),
    (looped, looped_by_jax),
    (bounded, looped_by_jax),
]


@pytest.mark.parametrize(
    "program",
    [PROGRAMS[0], *(pytest.param(pair, marks=pytest.mark.sweep) for pair in PROGRAMS[1:])],
    ids=lambda pair: pair[0].__name__,
)
def test_nothing_is_broken(program):
    assert is_right(*program)


MUTANTS = [
    (0, Mutant(Cond, "taken_by", "LogicalNot()(decider)", "decider")),
    (0, Mutant(Switch, "taken_by", "full(False, mask.type)", "full(True, mask.type)")),
    (0, Mutant(Branch, "_each_by_itself", "select_rows(taken, new, old)", "new")),
    (
        0,
        Mutant(
            Branch, "jvp", "at_places(places, pushed,", "at_places(places, [t + t for t in pushed],"
        ),
    ),
    (0, Mutant(Branch, "_backward", "_filled(places, of_one,", "_filled(places[::-1], of_one,")),
    (1, Mutant(Scan, "pulled_back", "not self.reverse", "self.reverse")),
    (1, Mutant(Scan, "states_with_cotangents", "has or i in reached", "has")),
    (1, Mutant(Scan, "batch", "swapped(y, flag)", "y")),
    (1, Mutant(BackwardStep, "_built", "ADD(total, _in_dtype(", "(lambda y: y)(_in_dtype(")),
    (1, Mutant(Scan, LOWERING, "op.reverse", "not op.reverse")),
    (2, Mutant(While, "vjp", "(ys[-1], *xs", "(ys[-1] - 1, *xs")),
    (2, Mutant(WhileGradient, "vjp", "[forward.get(i) for i in states]", "[None for i in states]")),
    (2, Mutant(WhileGradient, "jvp", "seeds_of |= dict(zip(states, dgs, strict=True))", "pass")),
    (2, Mutant(WhileGradient, "batch", "longest = Max((0,))(count)", "longest = count[0]")),
    (2, Mutant(While, LOWERING, "carry[0] + 1", "carry[0] + 2")),
    (2, Mutant(WhileGradient, LOWERING, "carry[0] > 0", "carry[0] > 1")),
    (3, Mutant(Stacking, "_forward_body", "ADD(step, one)", "ADD(step, ADD(one, one))")),
    (3, Mutant(Stacking, "_graphs_back", "constant(1, COUNT", "constant(2, COUNT")),
    (3, Mutant(Stacking, "_graphs_back", "Less()(constant(0,", "Less()(constant(1,")),
    (3, Mutant(Stacking, "reversed_by", "*stacked, count,", "*stacked, SUB(count, count),")),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("place", "mutant"), MUTANTS, ids=lambda x: str(x))
def test_the_mutant_is_caught(place, mutant):
    with broken(mutant):
        try:
            caught = not is_right(*PROGRAMS[place])
        except Exception:  # a graph that does not hold together is noticed too
            caught = True
    assert caught
