"""Rolled programs: equal blocks as one loop, with Variables kept in stacks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegraph as tg
from tracegraph.errors import SignatureError


def runs_in(function, *args):
    """How often each block of the programs of a function repeats."""
    execution = function.get_concrete_function(*args).execution([x.type for x in args])
    return [] if execution.rolled is None else [len(run) for run in execution.rolled.runs]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Perceptron:
    """Layers of one width and a step of Adam, compiled with the option `roll`."""

    def __init__(self, roll, layers=8, width=6, rate=0.0):
        self.kernels = [tg.Variable(numbers(width, width, seed=i) / 3) for i in range(layers)]
        self.biases = [tg.Variable(numbers(width, seed=100 + i)) for i in range(layers)]
        self.optimizer = tg.optimizers.Adam(0.01)
        self.generator = tg.random.Generator.from_seed(1)
        self.rate = rate
        self.step = tg.function(self.train, roll=roll)
        self.predict = tg.function(self.forward, roll=roll)
        self.x = tg.constant(numbers(4, width, seed=99))

    @property
    def variables(self):
        return [*itertools.chain(*zip(self.kernels, self.biases))]

    def forward(self, x):
        for kernel, bias in zip(self.kernels, self.biases):
            h = tg.tanh(x @ kernel + bias)
            if self.rate:
                h *= tg.cast(self.generator.uniform(h.shape) > self.rate, tg.float32)
            x = x + h
        return x

    def train(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(self.forward(x) ** 2)
        gradients = tape.gradient(loss, self.variables)
        gradients, norm = tg.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(gradients, self.variables))
        return loss, norm

    def state(self):
        return [v.numpy() for v in (*self.variables, *self.optimizer.variables)]


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_training_is_the_same(rate):
    plain, rolled = Perceptron(False, rate=rate), Perceptron("always", rate=rate)
    for _ in range(5):
        assert_same([x.numpy() for x in rolled.step(rolled.x)], [x.numpy() for x in plain.step(plain.x)])
    assert_same(rolled.state(), plain.state())
    assert max(runs_in(rolled.step, rolled.x)) == 8
    assert runs_in(plain.step, plain.x) == []


def test_variables_are_read_and_assigned_between_the_steps():
    plain, rolled = Perceptron(False), Perceptron("always")
    for model in (plain, rolled):
        model.step(model.x)
        before = model.kernels[3].read_value()
        model.kernels[2].assign(model.kernels[2] * 0.5)
        model.step(model.x)
        model.kernels[4].assign_add(tg.ones_like(model.kernels[4]))
        model.predict(model.x)
        model.before = before
    assert_same([rolled.before.numpy()], [plain.before.numpy()])
    assert_same([rolled.predict(rolled.x).numpy()], [plain.predict(plain.x).numpy()])
    plain.step(plain.x)
    rolled.step(rolled.x)
    assert_same(rolled.state(), plain.state())


def test_stacks_are_kept_from_step_to_step():
    model = Perceptron("always")
    model.step(model.x)
    first = model.kernels[0].buffer
    model.step(model.x)
    assert type(first).__name__ == "StackRow"
    assert model.kernels[0].buffer is first
    model.predict(model.x)
    assert model.kernels[0].buffer is first  # the other function takes the same stack
    value = model.kernels[0].numpy()
    assert model.kernels[0].buffer is not first
    model.step(model.x)
    assert np.any(model.kernels[0].numpy() != value)


# Random blocks.

WIDTH = 3
BINARY = (tg.add, tg.multiply, tg.subtract, tg.maximum, lambda x, y: x / (1.0 + y * y))
UNARY = (tg.sin, tg.tanh, lambda x: x + tg.reduce_sum(x, keepdims=True), lambda x: -x)


@st.composite
def programs(draw):
    """Two loops of Python over blocks: what each block computes, of what, and what is returned."""
    operand = st.tuples(
        st.sampled_from(["state", "local", "shared", "own", "tied", "other"]), st.integers(0, 5)
    )
    line = st.tuples(st.integers(0, len(BINARY) - 1), st.integers(0, len(UNARY)), operand, operand)
    loops = [
        (draw(st.integers(1, 2)), draw(st.lists(line, min_size=2, max_size=7)), draw(st.booleans()))
        for _ in range(2)
    ]
    return draw(st.integers(4, 9)), loops, draw(st.lists(st.integers(0, 200), max_size=3))


def computed(program, own, matrices, shared):
    """The outputs of a program, in plain calls."""
    count, loops, returned = program
    other, outputs, every = [], [], []
    for states, lines, is_backward in loops:
        state = [shared[i] * (i + 1.0) for i in range(states)]
        blocks = range(count)
        made = []
        for i in reversed(blocks) if is_backward else blocks:
            local = []
            sources = {
                "state": state,
                "local": local,
                "shared": shared,
                "own": [own[i], tg.linalg.matvec(matrices[i], own[i])],
                # The first two blocks have the same, or one that all share.
                "tied": [own[max(i, 1)], own[0] if i < 2 else own[i]],
                "other": [] if not other else other[i],
            }
            for binary, unary, *operands in lines:
                chosen = [sources[kind] or state for kind, _ in operands]
                x, y = (xs[n % len(xs)] for xs, (_, n) in zip(chosen, operands))
                z = BINARY[binary](x, y)
                local.append(z if unary == len(UNARY) else UNARY[unary](z))
            state = [tg.tanh(x) for x in (*local[-states:], *state)][:states]
            made.append(local)
        other = made[::-1] if is_backward else made
        outputs += state
        every += [x for local in made for x in local]
    return [*outputs, *(every[i % len(every)] for i in returned)]


def value_and_gradients(program, roll):
    rng = np.random.default_rng(3)
    own = [tg.Variable(rng.normal(size=WIDTH)) for _ in range(program[0])]
    matrices = [tg.Variable(rng.normal(size=(WIDTH, WIDTH))) for _ in range(program[0])]
    shared = [tg.constant(rng.normal(size=WIDTH)) for _ in range(2)]

    @tg.function(roll=roll)
    def run(*shared):
        matrices[0].assign(matrices[0] * 1.0)
        with tg.GradientTape() as tape:
            tape.watch(shared)
            ys = computed(program, own, [m[None][0] for m in matrices], shared)
            total = tg.add_n([tg.reduce_sum(y * y) for y in ys])
        sources = [*own, *matrices, *shared]
        found = tape.gradient(total, sources, unconnected_gradients="zero")
        for variable, g in zip(own, found):
            variable.assign_sub(0.1 * g)
        return ys, found

    run(*shared)
    ys, found = run(*shared)
    return [x.numpy() for x in (*ys, *found, *own)], runs_in(run, *shared)


def assert_rolls_right(program):
    found, _ = value_and_gradients(program, "always")
    expected, _ = value_and_gradients(program, False)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*decorated again")
@settings(max_examples=12, deadline=None, derandomize=True)
@given(programs())
def test_random_blocks(program):
    assert_rolls_right(program)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*decorated again")
@settings(max_examples=400, deadline=None)
@given(programs())
def test_many_random_blocks(program):
    assert_rolls_right(program)
