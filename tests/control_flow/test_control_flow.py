"""Branches and loops as users have them: values, every derivative, Variables, checks and errors."""

import functools
import inspect
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient, jacobian
from tests.oracles import assert_near, by_jax, numbers, raises, tensor
from tracegraph.calls.call import Call
from tracegraph.control.branch import Cond
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    ShapeError,
    SignatureError,
    TraceError,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]


def f64(value):
    return tg.constant(value, tg.float64)


def line_of(function, mark="# here"):
    """`file:line` of the line of a function that has the mark."""
    lines, start = inspect.getsourcelines(function)
    (place,) = [i for i, line in enumerate(lines) if mark in line]
    return f"test_control_flow.py:{start + place}"


def derivatives(function, x, order):
    """The value and the derivatives up to `order` of a function of one number, by nested tapes."""
    if order == 0:
        return [function(x)]
    with tg.GradientTape() as tape:
        tape.watch(x)
        found = derivatives(function, x, order - 1)
    return [*found, tape.gradient(found[-1], x)]


def repeat(step, x, count, **options):
    """`step` applied to x so many times."""
    loop = tg.while_loop(lambda i, x: i < count, lambda i, x: (i + 1, step(x)), (0, x), **options)
    return loop[1]


# Few iterations, few states.


@pytest.mark.parametrize("form", ["foldl", "while_loop"])
def test_a_step_that_forgets_the_state_may_never_run(form):
    def end(x, rows):
        if form == "foldl":
            return tg.foldl(lambda state, row: tg.ones([2]) + row, rows, x)
        n = tg.shape(rows)[0]
        return tg.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, tg.ones([2])), (0, x))[1]

    def slopes(x, rows, end=end):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = tg.reduce_sum(tg.sin(end(x, rows)))
            first = tape.gradient(y, x, unconnected_gradients="zero")
        return first, outer.gradient(first, x, unconnected_gradients="zero")

    x = tg.constant([0.5, -1.0])
    spec = [tg.TensorSpec([2]), tg.TensorSpec([None])]
    inside = tg.function(lambda x, rows: slopes(x, rows), input_signature=spec)
    for count in range(2):
        rows = tg.zeros([count])
        expected = [np.zeros(2)] * 2 if count else [np.cos(x), -np.sin(x)]
        found = slopes(x, rows), inside(x, rows), slopes(x, rows, tg.function(end))
        np.testing.assert_allclose(np.asarray(found), [expected] * 3, rtol=1e-6)


@pytest.mark.sampled(1)
def test_zero_iterations(run):
    x, w = f64(1.5), f64(2.0)

    def all_of(x, w):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch([x, w])
            y = repeat(lambda x: x * w, x, 0)
            rows = tg.zeros([0, 2], tg.float64)
            z = tg.foldl(lambda s, row: s * w + tg.reduce_sum(row), rows, x)
            stacked = tg.map_fn(lambda row: row * x, rows)
        slopes = [tape.gradient(t, [x, w], unconnected_gradients="zero") for t in (y, z)]
        return y, z, stacked, slopes

    y, z, stacked, slopes = run(all_of, x, w)
    assert (float(y), float(z), stacked.shape) == (1.5, 1.5, (0, 2))
    assert [[*map(float, pair)] for pair in slopes] == [[1.0, 0.0], [1.0, 0.0]]


@pytest.mark.sampled(1)
def test_state_that_nothing_reads(run):
    def both(x):
        def body(i, y, idle, noise):
            return i + 1, y * x, idle, noise * 2.0 + y

        return tg.while_loop(lambda i, *_: i < 3, body, (0, x, f64(7.0), f64(1.0)))

    _, y, idle, _ = run(both, f64(2.0))
    assert (float(y), float(idle)) == (16.0, 7.0)
    first, second = (
        run(lambda x, k=k: gradient(lambda x: both(x)[k], x), f64(2.0)) for k in (1, 2)
    )
    assert float(first) == 32.0
    assert second is None or float(second) == 0.0


def test_branch_that_returns_its_input(run):
    def chosen(x):
        return tg.cond(x > 1.0, lambda: x, lambda: x * x)

    for x, value, slope in ((2.0, 2.0, 1.0), (0.5, 0.25, 1.0), (-3.0, 9.0, -6.0)):
        assert float(run(chosen, f64(x))) == value
        assert float(run(lambda x: gradient(chosen, x), f64(x))) == slope


@pytest.mark.sampled(1)
def test_loop_inside_a_branch_inside_a_loop(run):
    def staged(x):
        def body(i, x):
            looped = lambda: repeat(lambda x: tg.sin(x) + 0.1, x, i)  # noqa: E731
            return i + 1, tg.cond(i % 2 > 0, looped, lambda: x * x)

        return tg.while_loop(lambda i, x: i < 5, body, (0, x))[1]

    def plain(x):
        for i in range(5):
            if i % 2:
                for _ in range(i):
                    x = jnp.sin(x) + 0.1
            else:
                x = x * x
        return x

    with jax.enable_x64(True):
        third = jax.grad(jax.grad(plain))
        all_of = [plain, jax.grad(plain), third, jax.grad(third)]
        wanted = jax.jit(lambda x: jnp.stack([f(x) for f in all_of]))(1.3)
    assert_near(run(lambda x: tg.stack(derivatives(staged, x, 3)), f64(1.3)), wanted)


@pytest.mark.sampled(1)
def test_integers_and_truths_beside_numbers(run):
    def loop(x):
        def body(n, flag, x):
            return n // 2, tg.logical_not(flag), tg.where(flag, x * x, x + tg.cast(n, x.dtype))

        return tg.while_loop(lambda n, *_: n > 0, body, (tg.constant(9), tg.constant(True), x))

    n, flag, x = run(loop, f64(3.0))
    # 3 -> 9 -> 9 + 4 = 13 -> 169 -> 169 + 1
    assert (int(n), bool(flag), float(x)) == (0, True, 170.0)
    assert float(run(lambda x: gradient(lambda x: loop(x)[2], x), f64(3.0))) == 2 * 13 * 2 * 3


# Variables and random numbers.


@pytest.mark.parametrize("is_decorated", [False, True])
def test_variable_assigned_in_one_branch_only(is_decorated):
    v = tg.Variable(f64(2.0))

    def step(x):
        def assigns():
            v.assign(x * 3.0)
            return v * x

        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tg.cond(x > 0.0, assigns, lambda: v * v)
        return y, tape.gradient(y, x), tape.gradient(y, v)

    run = tg.function(step) if is_decorated else step
    y, by_x, _ = run(f64(-1.0))
    assert (float(y), float(v)) == (4.0, 2.0)
    assert by_x is None or float(by_x) == 0.0
    assert float(run(f64(-1.0))[2]) == 4.0
    y, by_x, _ = run(f64(5.0))
    assert (float(y), float(v)) == (75.0, 15.0)
    # As in TensorFlow an assigned value is cut off from what it was made of.
    assert float(by_x) == 15.0
    assert float(run(f64(-1.0))[0]) == 225.0


@pytest.mark.parametrize("is_decorated", [False, True])
def test_variable_assigned_in_a_loop(is_decorated):
    v = tg.Variable(1.0)

    def double(count):
        def body(i):
            v.assign(v * 2.0)
            return i + 1

        tg.while_loop(lambda i: i < count, body, [0])
        return v + 0.0

    run = tg.function(double) if is_decorated else double
    assert [float(run(tg.constant(n))) for n in (3, 0, 2)] == [8.0, 8.0, 32.0]
    tg.map_fn(lambda x: v.assign_add(x), tg.constant([1.0, 2.0, 3.0]))
    assert float(v) == 38.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["python", "while", "scan"])
def test_what_is_assigned_in_a_loop_is_cut_off(run, form):
    v = tg.Variable(f64(2.0))

    def step(y, x):
        new = y * v
        v.assign(x * y)
        return new

    def looped(x):
        if form == "while":
            return repeat(lambda y: step(y, x), x, 3)
        if form == "scan":
            return tg.foldl(lambda y, _: step(y, x), tg.zeros([3]), x)
        y = x
        for _ in range(3):
            y = step(y, x)
        return y

    def slopes(x):
        v.assign(2.0)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = looped(x) + v * x
        return y, *tape.gradient(y, [x, v])

    # All reads count towards the Variable, and nothing towards what was assigned.
    assert [*map(float, run(slopes, f64(1.5)))] == [45.5625, 30.375, 36.9375]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_decorated", [False, True])
def test_random_numbers_in_a_loop(is_decorated):
    def drawn():
        generator = tg.random.Generator.from_seed(7)

        def numbers():
            body = lambda total, _: generator.normal([2])  # noqa: E731
            return tg.scan(body, tg.zeros([4]), tg.zeros([2]))

        run = tg.function(numbers) if is_decorated else numbers
        return np.concatenate([run(), run()])

    first, second = drawn(), drawn()
    assert len({*first.ravel().tolist()}) == 16
    np.testing.assert_array_equal(first, second)


class Twice(tg.Module):
    """A layer whose Variable is created when it is called first."""

    v = None

    def __call__(self, x):
        if self.v is None:
            self.v = tg.Variable(2.0)
        return self.v * x


LAZY = {
    "cond": lambda x, layer: tg.cond(x > 0.0, lambda: layer(x), lambda: x),
    "scan": lambda x, layer: tg.scan(lambda y, _: layer(y), tg.range(3), x)[-1],
    "map_fn": lambda x, layer: tg.reduce_sum(tg.map_fn(layer, x + tg.zeros([2]))),
    "vectorized_map": lambda x, layer: tg.reduce_sum(tg.vectorized_map(layer, x + tg.zeros([2]))),
    "while_loop": lambda x, layer: tg.while_loop(lambda y: y < 9.0, lambda y: [layer(y)], [x])[0],
    "cond in scan": lambda x, layer: tg.scan(
        lambda y, _: tg.cond(y > 0.0, lambda: layer(y), lambda: y), tg.range(3), x
    )[-1],
}


@pytest.mark.parametrize("name", LAZY)
def test_a_variable_that_a_body_creates(run, name):
    layer = Twice()

    def slope():
        x = tg.constant(1.5)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = LAZY[name](x, layer)
        return y, *tape.gradient(y, [x, layer.v])

    # y = 1.5 v^n, where n is how often the layer was called, or twice 1.5 v.
    mapped = (6, 4, 3)
    expected = {"cond": (3, 2, 1.5), "map_fn": mapped, "vectorized_map": mapped}
    assert [float(t) for t in run(slope)] == [*expected.get(name, (12, 8, 18))]
    assert layer.v.numpy() == 2.0


@pytest.mark.parametrize("name", LAZY)
def test_a_variable_that_each_trace_creates_is_refused(name):
    def create():
        return LAZY[name](tg.constant(1.5), lambda x: x * tg.Variable(2.0))

    words = "may create Variables on its first call only, and this one is created on later calls"
    raises(SignatureError, f"^a (branch or a|parallel) loop {words}", create)
    raises(SignatureError, f"^a @tg.function {words}", tg.function(create))


# Reverse mode of a while.


def powers(n, count, x):
    """Closed forms of x^(2^n) and of its derivatives."""
    found, factor = [], 1.0
    for k in range(count + 1):
        found.append(factor * x ** (2**n - k))
        factor *= 2**n - k
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checkpoints", [None, 2, 3, 5])
@pytest.mark.parametrize("is_decorated", [False, True])
def test_squarings(is_decorated, checkpoints):
    def power(x, n):
        return repeat(lambda x: x * x, x, n, checkpoints=checkpoints)

    def all_of(x, n):
        return tg.stack(derivatives(lambda x: power(x, n), x, 3))

    run = tg.function(all_of) if is_decorated else all_of
    for n in (5, 1) if is_decorated else (5,):
        found = run(f64(1.1), tg.constant(n))
        np.testing.assert_allclose(found, powers(n, 3, 1.1), rtol=1e-10)


# From 16 checkpoints on half of them are for the steps of one block.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("checkpoints", [2, 3, 5, 15, 16, 17, 40])
def test_checkpoints_reach_every_count(checkpoints):
    function = tg.function(
        lambda x, n: gradient(
            lambda x: repeat(lambda x: 0.5 * tg.sin(x) + x, x, n, checkpoints=checkpoints), x
        )
    )
    x, slope = 0.3, 1.0
    for count in range(301):
        if count in (0, 1, 2, 3, 7, 8, 14, 15, 16, 17, 39, 40, 41, 100, 300):
            found = function(f64(0.3), tg.constant(count))
            np.testing.assert_allclose(found, slope, rtol=1e-10)
        x, slope = 0.5 * np.sin(x) + x, slope * (0.5 * np.cos(x) + 1.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checkpoints", [None, 2, 3, 5])
def test_square_root_by_newton(run, checkpoints):
    def root(a):
        def body(x, _):
            return 0.5 * (x + a / x), x

        def is_apart(x, before):
            return tg.abs(x - before) > 1e-13

        # Derivatives lag behind values by a step or two.
        x, _ = tg.while_loop(is_apart, body, (a, a + 1.0), checkpoints=checkpoints)
        return repeat(lambda x: 0.5 * (x + a / x), x, 3, checkpoints=checkpoints)

    found = run(lambda a: tg.stack(derivatives(root, a, 3)), f64(3.0))
    wanted = [3**0.5, 0.5 * 3**-0.5, -0.25 * 3**-1.5, 0.375 * 3**-2.5]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


@pytest.mark.sampled(1)
def test_while_inside_other_loops(run):
    def staged(x):
        row = lambda s, n: repeat(lambda s: tg.sin(s) * x, s, n)  # noqa: E731
        inside = tg.foldl(row, tg.constant([2, 0, 3]), x)
        return repeat(lambda s: repeat(lambda s: s * tg.cos(s), s, 2), inside, 3)

    def plain(x):
        s = x
        for n in (2, 0, 3):
            for _ in range(n):
                s = jnp.sin(s) * x
        for _ in range(6):
            s = s * jnp.cos(s)
        return s

    with jax.enable_x64(True):
        second = jax.grad(jax.grad(plain))
        all_of = [plain, jax.grad(plain), second]
        wanted = jax.jit(lambda x: jnp.stack([f(x) for f in all_of]))(1.2)
    assert_near(run(lambda x: tg.stack(derivatives(staged, x, 2)), f64(1.2)), wanted)


@pytest.mark.sampled(1)
def test_a_tape_around_and_inside(run):
    def energy(x):
        def body(i, x):
            return i + 1, x - 0.1 * gradient(lambda x: tg.reduce_sum(x**4), x)

        return tg.reduce_sum(tg.while_loop(lambda i, _: i < 3, body, (0, x))[1])

    def plain(x):
        for _ in range(3):
            x = x - 0.4 * x**3
        return jnp.sum(x)

    x = numbers(3)
    with jax.enable_x64(True):
        slope, second = jax.jit(lambda x: (jax.grad(plain)(x), jax.hessian(plain)(x)))(x)
    assert_near(run(lambda x: gradient(energy, x), f64(x)), slope)
    assert_near(run(lambda x: jacobian(lambda x: gradient(energy, x), x), f64(x)), second)


@pytest.mark.sampled(1)
def test_a_gradient_that_is_no_gradient_in_a_loop(run):
    """Its second derivatives are not symmetric, so no order of the modes stands for another."""

    @tg.custom_gradient
    def product(x, y):
        return x * y, lambda g: (g * y * x, g * tg.sin(x))

    def loop(count):
        def ends(x, y):
            body = lambda i, x, y: (i + 1, product(x, y) + 0.3, 0.9 * y + 0.1 * x)  # noqa: E731
            _, x, y = tg.while_loop(lambda i, *_: i < count, body, (0, x, y))
            return x * y

        return ends

    @jax.custom_jvp
    def by_jax(x, y):
        return x * y

    @by_jax.defjvp
    def _(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        return by_jax(x, y), dx * y * x + dy * jnp.sin(x)

    def plain(x, y):
        for _ in range(3):
            x, y = by_jax(x, y) + 0.3, 0.9 * y + 0.1 * x
        return x * y

    def tangent_of_gradient(x, y, count):
        with tg.autodiff.ForwardAccumulator([x, y], [f64(1.0), f64(2.0)]) as accumulator:
            slopes = gradient(lambda xs: loop(count)(*xs), [x, y])
        return accumulator.jvp(slopes)

    def third(x, y, count):
        total = lambda xs: tg.add_n(tangent_of_gradient(*xs, count))  # noqa: E731
        return gradient(total, [x, y])

    with jax.enable_x64(True):
        pushed = lambda *x: jax.jvp(jax.grad(plain, (0, 1)), x, (1.0, 2.0))[1]  # noqa: E731
        wanted = jax.jit(pushed)(0.8, 1.3)
        wanted_third = jax.jit(jax.grad(lambda *x: sum(pushed(*x)), (0, 1)))(0.8, 1.3)
    arguments = f64(0.8), f64(1.3), tg.constant(3)
    assert_near(run(tangent_of_gradient, *arguments), wanted)
    assert_near(run(third, *arguments), wanted_third)


@pytest.mark.sampled(1)
def test_a_gradient_that_is_not_linear_in_a_loop(run):
    @tg.custom_gradient
    def clipped(x):
        return x * 1.0, lambda g: tg.clip_by_value(g, -0.5, 0.5) * x

    def of_unknown_length(x, count):
        return repeat(clipped, x, count)

    def of_known_length(x):
        return tg.foldl(lambda x, _: clipped(x), tg.range(2), x)

    first = lambda x, n: gradient(lambda x: of_unknown_length(x, n), x)  # noqa: E731
    assert_near(run(first, f64(0.8), tg.constant(2)), 0.32)  # 0.5 * x * x
    # 0.5 * x, and by the first step once more: clip(0.5 * x) * x.
    assert_near(run(lambda x: derivatives(of_known_length, x, 2)[2], f64(0.8)), 0.72)
    second = lambda x, n: derivatives(lambda x: of_unknown_length(x, n), x, 2)[2]  # noqa: E731
    call = lambda: run(second, f64(0.8), tg.constant(2))  # noqa: E731
    text = raises(tg.errors.MissingRuleError, "not linear in its cotangents", call)
    assert "tg.scan" in text


MEMORY = """
import sys
import tracegraph as tg

def slope(x, count):
    with tg.GradientTape() as tape:
        tape.watch(x)
        body = lambda i, y: (i + 1, tg.sin(y) * 0.5 + y)
        y = tg.while_loop(lambda i, y: i < count, body, (0, x))[1]
    return tape.gradient(y, x)

slope = tg.function(slope)
x = tg.ones([10_000])
slope(x, tg.constant(2)).numpy()
slope(x, tg.constant(int(sys.argv[1]))).numpy()
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_count():
    def peak(count):
        command = [sys.executable, "-c", MEMORY, str(count)]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    few, many = peak(1_000), peak(100_000)
    # Stacked, 99,000 states more would take 4 GB.
    assert many - few < 20_000, f"{few} and {many} kB"


# Parallel loops.


@pytest.mark.sampled(1)
def test_a_hundred_lanes_with_their_own_counts(run):
    x = np.linspace(0.9, 1.1, 100)
    counts = np.arange(100)

    def lane(pair):
        x, n = pair
        return tg.stack(derivatives(lambda x: repeat(lambda y: y * x, x, n), x, 2))

    found = run(lambda x, n: tg.vectorized_map(lane, (x, n)), f64(x), tg.constant(counts, tg.int32))
    n = counts + 1.0
    wanted = np.stack([x**n, n * x ** (n - 1), n * (n - 1) * x ** (n - 2)], 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


@pytest.mark.sampled(1)
def test_lanes_not_taken_are_harmless(run):
    rows = np.array([4.0, -1.0, 0.25, 0.0])

    def all_of(rows, w):
        with tg.GradientTape() as tape:
            tape.watch([rows, w])

            def lane(x):
                risky = lambda: tg.sqrt(x * w) + tg.math.log(x * w)  # noqa: E731
                return tg.cond(x > 0.0, risky, lambda: x * w)

            found = tg.vectorized_map(lane, rows)
            total = tg.reduce_sum(found)
        return found, *tape.gradient(total, [rows, w])

    found, by_rows, by_shared = run(all_of, f64(rows), f64(1.0))
    assert_near(found, [2 + np.log(4.0), -1.0, 0.5 + np.log(0.25), 0.0])
    assert_near(by_rows, [0.25 + 0.25, 1.0, 1.0 + 4.0, 1.0])
    assert_near(by_shared, (1 + 1) - 1.0 + (0.25 + 1))


def test_no_lane_takes_the_branch_that_is_not_defined(run):
    def all_of(rows, w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            lane = lambda x: tg.cond(x > 0.0, lambda: tg.sqrt(x * w), lambda: x * w)  # noqa: E731
            found = tg.reduce_sum(tg.vectorized_map(lane, rows))
        return tape.gradient(found, w)

    assert float(run(all_of, f64([-1.0, -2.0]), f64(1.0))) == -3.0


@pytest.mark.sampled(1)
def test_finished_lanes_are_harmless(run):
    def slope(rows, w):
        with tg.GradientTape() as tape:
            tape.watch([rows, w])

            # Each step makes x smaller by w; one more than those asked for is a root of a negative.
            def lane(x):
                return tg.while_loop(lambda x: x >= w, lambda x: [tg.sqrt(x - w)], [x])[0]

            found = tg.vectorized_map(lane, rows)
            total = tg.reduce_sum(found)
        return found, *tape.gradient(total, [rows, w])

    found, by_rows, by_w = run(slope, f64([0.5, 3.0, 12.0]), f64(1.0))
    two = np.sqrt(2.0)
    first, second = np.sqrt(11.0), np.sqrt(np.sqrt(11.0) - 1.0)
    third = np.sqrt(second - 1.0)
    # 0.5 stays; 3 -> 1.41 -> 0.64; 12 -> 3.3 -> 1.52 -> 0.72
    assert_near(found, [0.5, np.sqrt(two - 1.0), third])
    inner = 1 / (2 * np.sqrt(two - 1.0))
    last = 1 / (2 * third)
    middle = last / (2 * second)
    assert_near(by_rows, [1.0, inner / (2 * two), middle / (2 * first)])
    assert_near(by_w, -(inner + inner / (2 * two)) - (last + middle + middle / (2 * first)))


# Connections.


def test_what_only_the_other_branch_uses_has_gradient_zero(run):
    def slope(x, w):
        with tg.GradientTape() as tape:
            tape.watch([x, w])
            y = tg.cond(x > 0.0, lambda: x * 2.0, lambda: x * w)
        return tape.gradient(y, [x, w])

    assert [*map(float, run(slope, f64(1.0), f64(3.0)))] == [2.0, 0.0]
    assert [*map(float, run(slope, f64(-1.0), f64(3.0)))] == [3.0, -1.0]


CUT = {
    "cond": lambda x, w: tg.cond(w > 0.0, lambda: x, lambda: x * tg.stop_gradient(w)),
    "while": lambda x, w: repeat(lambda y: y * tg.stop_gradient(w), x, 3),
    "scan": lambda x, w: tg.scan(lambda y, _: y * tg.stop_gradient(w), tg.zeros([2]), x),
    "map_fn": lambda x, w: tg.map_fn(lambda y: y * tg.stop_gradient(w), x[tg.newaxis]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CUT)
def test_nothing_connects(run, name):
    def slope(x, w):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch([x, w])
            y = CUT[name](x, w)
        assert tape.gradient(y, x) is not None
        assert tape.gradient(y, w) is None
        found = tape.explain(y, w)
        assert found.reason == "stop_gradient"
        assert "test_control_flow.py" in str(found)
        return y

    run(slope, f64(2.0), f64(3.0))


@pytest.mark.sampled(1)
def test_the_count_of_a_loop_has_no_gradient(run):
    def slope(x, w):
        with tg.GradientTape() as tape:
            tape.watch([x, w])
            y = tg.while_loop(lambda y: y < w, lambda y: y * 2.0, [x])[0]
        found = tape.gradient(y, [x, w])
        assert found[1] is None
        return found[0]

    assert float(run(slope, f64(1.0), f64(5.0))) == 8.0


def test_no_back_prop(run):
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.while_loop(lambda y: y < 5.0, lambda y: y * 2.0, [x], back_prop=False)
        assert tape.gradient(y, x) is None
        return y[0]

    assert float(run(slope, f64(1.0))) == 8.0


# Effects.


@pytest.mark.parametrize("is_decorated", [False, True])
def test_checks_name_the_line_and_stop_assignments(is_decorated):
    v = tg.Variable(0.0)

    def checked(x):
        tg.debugging.assert_greater(x, 0.0, message="used up")  # here
        v.assign_add(1.0)
        return x - 1.0

    loops = {
        "while": lambda x: tg.while_loop(
            lambda i, x: i < 9, lambda i, x: (i + 1, checked(x)), (0, x)
        ),
        "scan": lambda x: tg.foldl(lambda x, _: checked(x), tg.zeros([9]), x),
        "cond": lambda x: tg.cond(x > 9.0, lambda: x, lambda: checked(x)),
    }
    for name, start in (("while", 2.5), ("scan", 2.5), ("cond", -0.5)):
        call = tg.function(loops[name]) if is_decorated else loops[name]
        v.assign(0.0)
        with pytest.raises(InvalidArgumentError, match="used up") as caught:
            np.asarray(tg.nest.flatten(call(tg.constant(start)))[-1])
        assert line_of(checked) in str(caught.value)
        assert "-0.5" in str(caught.value)
        assert float(v) == (3.0 if name != "cond" else 0.0)


# What is refused.


def test_bodies_that_change_their_state():
    i = tg.constant(0)
    fixed = lambda i: i < 3  # noqa: E731
    text = raises(
        TraceError,
        re.escape("the body returns ['*', '*'], and the loop variables are ['*']"),
        lambda: tg.while_loop(fixed, lambda i: (i + 1, i), [i]),  # here
    )
    assert line_of(test_bodies_that_change_their_state) in text
    raises(
        DTypeError,
        re.escape("type i32[] before the loop, and f32[] after one step"),
        lambda: tg.while_loop(fixed, lambda i: tg.cast(i, tg.float32), [i]),
    )
    raises(
        ShapeError,
        re.escape("shape (1,) before the loop, and (2,) after one step"),
        lambda: tg.while_loop(
            lambda x: x[0] < 3.0, lambda x: tg.concat([x, x], 0), [tg.constant([0.0])]
        ),
    )
    raises(
        DTypeError,
        re.escape("f32[] before the loop, and f64[] after one step"),
        lambda: tg.scan(lambda s, x: tg.cast(x, tg.float64), tg.constant([1.0, 2.0])),
    )


def test_conditions_that_are_no_bool():
    def step(x):
        return x + 1

    def loop(test, x):
        return lambda: tg.while_loop(test, step, [tg.constant(x)])

    raises(DTypeError, re.escape("condition is i32[], and it must be one bool"), loop(step, 0))
    raises(
        ShapeError,
        re.escape("condition is bool[2], and it must have the shape ()"),
        loop(lambda x: x < 1, [0, 0]),
    )


def test_predicates_that_are_no_bool():
    one, two = lambda: tg.constant(1.0), lambda: tg.constant(2.0)
    raises(DTypeError, re.escape("predicate is f32[], and"), lambda: tg.cond(one(), one, two))
    raises(
        ShapeError,
        re.escape("predicate is bool[2], and it must have the shape ()"),
        lambda: tg.cond(tg.constant([True, True]), one, two),
    )
    raises(DTypeError, "the index is f32", lambda: tg.switch_case(tg.constant(1.0), [one, two]))
    raises(TraceError, "true_fn is a Tensor", lambda: tg.cond(one() > 0.0, one(), two))  # type: ignore


def test_branches_that_differ():
    yes, x = tg.constant(True), tg.constant(1.0)

    def text(kind, words, one, two):
        found = raises(kind, words, lambda: tg.cond(yes, one, two))  # here
        assert line_of(text) in found

    text(
        TraceError,
        re.escape("true_fn returns a tensor and false_fn ('*', '*')"),
        lambda: x,
        lambda: (x, x),
    )
    text(TraceError, "true_fn returns None and false_fn a tensor", lambda: None, lambda: x)
    text(
        TraceError,
        re.escape("true_fn returns {'a': '*', 'b': None} and false_fn {'a': None, 'b': '*'}"),
        lambda: {"a": x, "b": None},
        lambda: {"a": None, "b": x},
    )
    text(
        TraceError,
        re.escape("the result of true_fn is f32[], and of false_fn i32[]"),
        lambda: x,
        lambda: tg.constant(1),
    )
    text(
        ShapeError,
        re.escape("the result of true_fn is f32[], and of false_fn f32[2]"),
        lambda: x,
        lambda: tg.stack([x, x]),
    )


def test_other_arguments_that_do_not_fit():
    x = tensor(3)
    raises(
        TraceError,
        "checkpoints is 1, and it must be an int from 2 on",
        lambda: repeat(tg.sin, x, 2, checkpoints=1),
    )
    raises(
        DTypeError,
        re.escape("maximum_iterations is f64[3], and it must be one integer"),
        lambda: repeat(tg.sin, x, 2, maximum_iterations=x),
    )
    raises(
        ShapeError,
        "the first sizes of elems differ: 3 and 2",
        lambda: tg.map_fn(lambda pair: pair[0], (x, x[:2])),
    )
    raises(ShapeError, "has no first axis", lambda: tg.scan(lambda s, x: s, f64(1.0)))
    raises(ShapeError, "elems has no elements", lambda: tg.foldr(tg.add, x[:0]))
    raises(SignatureError, "there are no pairs", lambda: tg.case([]))
    raises(SignatureError, "there are no branches", lambda: tg.switch_case(tg.constant(0), []))


# Each function.


@pytest.mark.sampled(5)
@pytest.mark.parametrize("index", [0, 1, 2, 7, -1])
def test_switch_case_out_of_range_takes_the_last(run, index):
    def all_of(i, x):
        chosen = lambda x: tg.switch_case(i, [lambda: x, lambda: x * x, lambda: x**3])  # noqa: E731
        return tg.stack(derivatives(chosen, x, 1))

    wanted = {0: [2.0, 1.0], 1: [4.0, 4.0]}.get(index, [8.0, 12.0])
    assert_near(run(all_of, tg.constant(index), f64(2.0)), wanted)


def test_switch_case_with_numbers_and_a_default(run):
    numbered = {3: lambda: tg.constant(30), 5: lambda: tg.constant(50)}
    chosen = lambda i: tg.switch_case(i, numbered, default=lambda: tg.constant(-1))  # noqa: E731
    assert [int(run(chosen, tg.constant(i))) for i in (3, 4, 5, -3)] == [30, -1, 50, -1]
    last = lambda i: tg.switch_case(i, numbered)  # noqa: E731
    assert [int(run(last, tg.constant(i))) for i in (3, 4, 5, -3)] == [30, 50, 50, 50]


@pytest.mark.sampled(1)
def test_switch_case_in_lanes(run):
    def lane(pair):
        i, x = pair
        chosen = lambda x: tg.switch_case(i, [lambda: x, lambda: x * x, lambda: x**3])  # noqa: E731
        return tg.stack(derivatives(chosen, x, 1))

    index, rows = tg.constant([0, 2, 1, 9]), f64([1.0, 2.0, 3.0, 4.0])
    found = run(lambda i, x: tg.vectorized_map(lane, (i, x)), index, rows)
    assert_near(found, [[1.0, 1.0], [8.0, 12.0], [9.0, 6.0], [64.0, 48.0]])


def test_case(run):
    def chosen(x, exclusive=False):
        pairs = [(x < 0.0, lambda: -x), (x < 5.0, lambda: x * 2.0)]
        return tg.case(pairs, default=lambda: x, exclusive=exclusive)

    assert [float(run(chosen, f64(x))) for x in (-3.0, 2.0, 7.0)] == [3.0, 4.0, 7.0]
    assert float(run(lambda x: chosen(x, True), f64(2.0))) == 4.0
    with pytest.raises(InvalidArgumentError, match="several predicates hold"):
        float(run(lambda x: chosen(x, True), f64(-3.0)))
    with pytest.raises(InvalidArgumentError, match="no predicate holds"):
        float(run(lambda x: tg.case([(x < 0.0, lambda: x)]), f64(1.0)))


def test_map_fn_signatures(run):
    x, k = tensor(3, 2), tg.constant([1, 2, 3])
    found = run(lambda x: tg.map_fn(lambda row: row[0] > 0.0, x, fn_output_signature=tg.bool), x)
    np.testing.assert_array_equal(found, numbers(3, 2)[:, 0] > 0.0)

    def both(x, k):
        signature = (tg.TensorSpec([2], tg.float64), {"n": tg.int32})
        body = lambda p: (p[0] * tg.cast(p[1], tg.float64), {"n": p[1] + 1})  # noqa: E731
        return tg.map_fn(body, (x, k), fn_output_signature=signature)

    rows, rest = run(both, x, k)
    assert_near(rows, numbers(3, 2) * np.array([[1.0], [2.0], [3.0]]))
    assert rest["n"].numpy().tolist() == [2, 3, 4]
    raises(
        DTypeError,
        "fn returns bool, and fn_output_signature has float32",
        lambda: tg.map_fn(lambda row: row[0] > 0.0, x, dtype=tg.float32),
    )
    open_shape = tg.TensorSpec([None], tg.float64)
    assert run(lambda x: tg.map_fn(lambda row: row, x, open_shape), x).shape == (3, 2)
    raises(
        ShapeError,
        r"fn returns the shape \(2,\), and fn_output_signature has \(3,\)",
        lambda: tg.map_fn(lambda row: row, x, tg.TensorSpec([3], tg.float64)),
    )
    raises(
        TraceError,
        "fn returns 1 tensors, and fn_output_signature has 2",
        lambda: tg.map_fn(lambda row: row, x, dtype=(tg.float64, tg.float64)),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("initializer", [None, 0.5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_and_folds(run, reverse, initializer):
    rows = numbers(4)
    start = None if initializer is None else f64(initializer)

    def step(s, x):
        return s * x + tg.sin(s)

    def all_of(x):
        fold = tg.foldr if reverse else tg.foldl
        return tg.scan(step, x, start, reverse=reverse), fold(step, x, start)

    def plain(x):
        order = list(range(4))[::-1] if reverse else list(range(4))
        s, found = initializer, {}
        for t in order:
            s = x[t] if s is None else s * x[t] + jnp.sin(s)
            found[t] = s
        return jnp.stack([found[t] for t in range(4)])

    stacked, folded = run(all_of, f64(rows))
    with jax.enable_x64(True):
        wanted, slopes = jax.jit(lambda x: (plain(x), jax.jacobian(plain)(x)))(rows)
    assert_near(stacked, wanted)
    assert_near(folded, wanted[0 if reverse else -1])
    assert_near(run(lambda x: jacobian(lambda x: all_of(x)[0], x), f64(rows)), slopes)
    last = run(lambda x: gradient(lambda x: all_of(x)[1], x), f64(rows))
    assert_near(last, slopes[0 if reverse else -1])


@pytest.mark.sampled(1)
def test_maximum_iterations(run):
    def bounded(x, bound):
        return tg.while_loop(lambda x: x < 100.0, lambda x: x * 2.0, [x], maximum_iterations=bound)[
            0
        ]

    found = [float(run(lambda x, b=b: bounded(x, b), f64(1.0))) for b in (0, 3, 50, None)]
    assert found == [1.0, 8.0, 128.0, 128.0]
    assert float(run(bounded, f64(1.0), tg.constant(4))) == 16.0
    assert float(run(lambda x: gradient(lambda x: bounded(x, 3), x), f64(1.0))) == 8.0
    for far in (2**40, 2**32 + 2, tg.constant(2**32 + 2), tg.constant(2**63, tg.uint64)):
        assert float(run(lambda x, b=far: bounded(x, b), f64(1.0))) == 128.0
    assert float(bounded(f64(1.0), -(2**32) + 2)) == 1.0


# Views of one function of each.

EACH = {
    "cond": lambda x: tg.cond(x[0] > 0.0, lambda: tg.sin(x), lambda: x * x),
    "switch_case": lambda x: tg.switch_case(
        tg.cast(x[0] * 2.0, tg.int32), [lambda: x, lambda: tg.sin(x), lambda: x * x]
    ),
    "while_loop": lambda x: tg.while_loop(
        lambda x: tg.reduce_sum(x * x) < 9.0, lambda x: [x * 1.5 + 0.1 * tg.sin(x)], [x]
    )[0],
    "scan": lambda x: tg.scan(lambda s, row: tg.sin(s) * row, x, f64(0.7)),
    "map_fn": lambda x: tg.map_fn(lambda row: tg.sin(row) * row + x[0], x),
    "foldr": lambda x: tg.foldr(lambda s, row: tg.sin(s) * row, x) * x,
}


PLAIN = {
    "cond": lambda x: jnp.sin(x),
    "switch_case": lambda x: jnp.sin(x),
    "while_loop": lambda x: _grown(x),
    "scan": lambda x: jnp.stack([*_scanned(x)]),
    "map_fn": lambda x: jnp.sin(x) * x + x[0],
    "foldr": lambda x: _folded(x) * x,
}


def _scanned(x):
    s = 0.7
    for row in x:
        s = jnp.sin(s) * row
        yield s


def _folded(x):
    s = x[-1]
    for row in x[-2::-1]:
        s = jnp.sin(s) * row
    return s


def _grown(x):
    for _ in range(3):
        x = x * 1.5 + 0.1 * jnp.sin(x)
    return x


POINT = np.array([0.6, -0.5, 0.9])


@functools.cache
def wanted_of(name):
    """Value, Jacobian, and the Hessian of the sum of sines, by JAX."""
    plain = PLAIN[name]

    def all_of(x):
        second = jax.hessian(lambda x: jnp.sum(jnp.sin(plain(x))))(x)
        return plain(x), jax.jacobian(plain)(x), second

    return by_jax(all_of, POINT)


def found_by(function, x):
    def slope(x):
        return gradient(lambda x: tg.reduce_sum(tg.sin(function(x))), x)

    return [function(x), jacobian(function, x), jacobian(slope, x)]


def assert_all_near(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        assert_near(ours, theirs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EACH)
def test_each_by_jax(run, name):
    assert_all_near(run(lambda x: found_by(EACH[name], x), f64(POINT)), wanted_of(name))


@pytest.mark.parametrize("name", EACH)
def test_each_through_text(name):
    graph = tg.function(EACH[name]).get_concrete_function(tg.TensorSpec([3], tg.float64)).graph
    parsed = tg.Graph.from_text(graph.as_text())
    assert parsed.as_text() == graph.as_text()
    all_of = tg.function(lambda x: found_by(lambda x: Call(parsed)(x), x))
    assert_all_near(all_of(f64(POINT)), wanted_of(name))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EACH)
def test_each_with_an_open_size_saved(name, tmp_path):
    module: Any = tg.Module()
    module.f = tg.function(EACH[name], input_signature=[tg.TensorSpec([None], tg.float64)])
    assert_all_near(found_by(module.f, f64(POINT)), wanted_of(name))
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    assert_all_near(found_by(loaded.f, f64(POINT)), wanted_of(name))
    longer = np.concatenate([POINT, [0.2]])
    assert_near(loaded.f(f64(longer)), EACH[name](f64(longer)))


def powers_by_a_while(x, w):
    body = lambda i, y: (i + 1, tg.tanh(y) * w * x)  # noqa: E731
    return tg.while_loop(lambda i, y: i < 3, body, (0, x))[1]


def chosen_of_two(x, w):
    return tg.cond(tg.reduce_sum(w) > 0.0, lambda: w * 2.0, lambda: w + 1.0) * x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [powers_by_a_while, chosen_of_two])
def test_what_is_used_from_outside_has_the_open_size_of_a_state(function):
    def slopes(x, w):
        with tg.GradientTape() as tape:
            tape.watch([x, w])
            y = tg.reduce_sum(function(x, w))
        return tape.gradient(y, [x, w])

    specs = [tg.TensorSpec(["n", 2], tg.float64)] * 2
    found = tg.function(slopes, input_signature=specs)
    for n in (1, 3):
        x, w = tensor(n, 2), tg.cos(tensor(n, 2))
        for ours, wanted in zip(found(x, w), slopes(x, w), strict=True):
            assert_near(ours, wanted)


def test_the_gradient_of_a_matrix_of_all_steps_is_one_product_on_either_side():
    """The rows of all steps are put beside each other as the product wants them turned."""
    numbers = np.random.default_rng(0)
    shapes = [(3, 7), (7, 7), (7, 7), (2, 3, 7)]  # the products are smaller than the matrices
    xs = [numbers.normal(size=shape) for shape in shapes]

    def stepping(tanh, turned, u, w):
        def step(h, row):
            first = tanh(0.3 * (h @ w) + row)
            return turned(tanh(0.3 * (u @ turned(first))) - 0.2 * turned(h))

        return step

    @tg.function
    def found(h, u, w, rows):
        with tg.GradientTape() as tape:
            tape.watch([h, u, w, rows])
            y = tg.reduce_sum(tg.scan(stepping(tg.tanh, tg.transpose, u, w), rows, h))
        return tape.gradient(y, [h, u, w, rows])

    def total(h, u, w, rows):
        step, sums = stepping(jnp.tanh, jnp.transpose, u, w), 0.0
        for row in rows:
            h = step(h, row)
            sums += h.sum()
        return sums

    wanted = by_jax(jax.grad(total, (0, 1, 2, 3)), *xs)
    for ours, theirs in zip(found(*map(f64, xs)), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("other", "type"),
    [(lambda x: tg.cast(x, tg.int32), r"i32\[2\]"), (lambda x: x[:1], r"f32\[1\]")],
)
def test_graphs_of_other_results_are_no_branches_of_one_op(other, type):
    """As a text may bring them: functions are refused before they become graphs."""
    spec = tg.TensorSpec([2], tg.float32)
    graphs = [tg.function(f).get_concrete_function(spec).graph for f in (tg.sin, other)]
    wanted = rf"branch 0 returns f32\[2\] where branch 1 returns {type}"
    with pytest.raises(ShapeError, match=wanted):
        Cond(*graphs)(tg.constant(True), tg.constant([1.0, 2.0]))


def test_what_the_rows_of_a_parallel_loop_share_is_not_repeated():
    """The product of a loop whose rows end apart has one matrix, and its cotangent sums the rows
    that went through it, though others would have become infinite."""
    limits = np.array([1.0, 8.0, 3.0, 100.0])

    def one(x, limit, w):
        return tg.while_loop(
            lambda y: tg.reduce_sum(y) < limit, lambda y: [tg.linalg.matvec(w, y) * y], [x]
        )[0]

    def slopes(xs, w, each):
        with tg.GradientTape() as tape:
            tape.watch([xs, w])
            y = tg.reduce_sum(tg.sin(each(xs, w)))
        return tape.gradient(y, [xs, w])

    def together(xs, w):
        return tg.vectorized_map(lambda row: one(*row, w), (xs, f64(limits)))

    def one_by_one(xs, w):
        return tg.stack([one(xs[k], limit, w) for k, limit in enumerate(f64(limits))])

    xs, w = f64(np.linspace(1.1, 1.9, 12).reshape(4, 3)), f64(np.eye(3) + 0.3)
    for ours, wanted in zip(slopes(xs, w, together), slopes(xs, w, one_by_one), strict=True):
        assert_near(ours, wanted)
    specs = tg.TensorSpec([4, 3], tg.float64), tg.TensorSpec([3, 3], tg.float64)
    assert "f64[4,3,3]" not in tg.function(together).get_concrete_function(*specs).graph.as_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EACH)
def test_each_in_jax(name):
    function = tg.function(EACH[name], input_signature=[tg.TensorSpec([3], tg.float64)]).as_jax()
    with jax.enable_x64(True):
        second = jax.jacfwd(jax.grad(lambda x: jnp.sum(jnp.sin(function(x)))))
        all_of = jax.jit(lambda x: [function(x), jax.jacrev(function)(x), second(x)])
        assert_all_near(all_of(jnp.asarray(POINT)), wanted_of(name))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EACH)
def test_each_in_lanes(run, name):
    rows = np.stack([POINT, -POINT, 2.0 * POINT])

    def slope(x):
        return gradient(lambda x: tg.reduce_sum(tg.sin(EACH[name](x))), x)

    found = run(lambda rows: tg.vectorized_map(slope, rows), f64(rows))
    assert_near(found, np.stack([slope(f64(x)) for x in rows]))


@pytest.mark.parametrize("length", [0, 1, 3])
def test_sparse_jacobian_of_a_recurrence(length):
    def walk(x):
        step = lambda s, row: 0.5 * s + tg.sin(row)  # noqa: E731
        return tg.scan(step, x, tg.zeros([2], tg.float64))

    x = tensor(length, 2)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = walk(x)
    found = tape.jacobian(y, x, sparse=True)
    # Each of the two columns by itself, and nothing of later rows.
    assert found.values.shape[0] == length * (length + 1)
    assert_near(found.to_dense(), tape.jacobian(y, x))


def test_sparse_jacobian_by_a_loop_of_unknown_length(run):
    def step(x):
        body = lambda i, x: (i + 1, x + 0.1 * tg.concat([x[1:], x[:1]], 0) ** 2)  # noqa: E731
        return tg.while_loop(lambda i, _: i < 2, body, (0, x))[1]

    def both(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = step(x)
        return tape.jacobian(y, x, sparse=True).to_dense(), tape.jacobian(y, x)

    found, wanted = run(both, tensor(6))
    assert_near(found, wanted)


@pytest.mark.sampled(1)
def test_sparse_hessian_by_a_loop_of_unknown_length(run):
    def hessians(x, weights):
        with tg.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                step = lambda i, y: (i + 1, y + 0.1 * weights * tg.sin(y))  # noqa: E731
                y = tg.while_loop(lambda i, _: i < 3, step, (0, x))[1]
                total = tg.reduce_sum(y * y)
            slope = tape.gradient(total, x)
        sparse = outer.jacobian(slope, x, sparse=True)
        return sparse.values, sparse.to_dense(), outer.jacobian(slope, x)

    values, found, wanted = run(hessians, tensor(6), tensor(6))
    assert values.shape[0] == 6  # a diagonal
    assert_near(found, wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "body",
    [
        lambda x: tg.cond(tg.reduce_sum(x) > 0, lambda: tg.sin(x), lambda: x * 2.0),
        lambda x: tg.switch_case(tg.cast(x[0] > 0, tg.int32), [lambda: x * 3.0, lambda: -x]),
        lambda x: tg.while_loop(lambda y: tg.reduce_sum(y) < 9, lambda y: [y + 1.0], [x])[0],
    ],
    ids=["cond", "switch_case", "while_loop"],
)
def test_a_parallel_loop_of_no_iterations_around_a_choice(run, body):
    def slopes(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = body(x)
        return y, tape.gradient(y, x)

    for y in run(lambda xs: tg.vectorized_map(slopes, xs), tensor(0, 3)):
        assert y.shape == (0, 3)


# Explanations.


def test_explanations_follow_the_count():
    def loop(x, n, other):
        with tg.GradientTape() as tape:
            tape.watch([x, n, other])
            counts = lambda y, k: (y * 2.0, k + n)  # noqa: E731
            y, _ = tg.while_loop(lambda y, k: k < 5.0, counts, (x, f64(0.0)))
        assert tape.gradient(y, n) is None
        return tape.explain(y, n), tape.explain(y, other)

    by_count, apart = loop(f64(1.0), f64(2.0), f64(3.0))
    assert (by_count.reason, apart.reason) == ("no_derivative", "unused")


# The step in which a check fails.


def place_of(function, mark):
    lines, start = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return f"test_control_flow.py:{start + number}"


def reads_in_a_loop(x, count):
    total = 0.0
    for i in tg.range(count):  # the loop
        total = total + x[i]
    return total


def reads_in_a_condition(x, count):
    i = count
    while x[i] > 0.0:  # the loop
        i += 1
    return i


def reads_in_a_scan(x, count):
    at = tg.constant([0, 1, 1, 5, 7]) + count * 0
    return tg.scan(lambda total, i: total + x[i], at, 0.0)  # the loop


def asserts_in_a_map(x, count):
    def squared(row):
        tg.debugging.assert_less(row, 3.0, "too large")
        return row * row

    return tg.map_fn(squared, x * tg.cast(count, tg.float32))  # the loop


def asserts_with_a_bound(x, count):
    def body(i, y):
        tg.debugging.assert_less(i, 3)
        return i + 1, y * 2.0

    return tg.while_loop(lambda i, y: True, body, (count, x), maximum_iterations=9)  # the loop


CHECKED = {
    reads_in_a_loop: (4, 2, "getitem: index 2 is out of range for axis 0 of f32[2]"),
    reads_in_a_condition: (0, 2, "getitem: index 2 is out of range for axis 0 of f32[2]"),
    reads_in_a_scan: (0, 3, "getitem: index 5 is out of range for axis 0 of f32[2]"),
    asserts_in_a_map: (2, 1, "too large: x < y does not hold"),
    asserts_with_a_bound: (1, 2, "x < y does not hold"),
}


def failed_check(function, *arguments):
    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        function(*arguments)
    return str(caught.value).split("\n")[0]


@pytest.mark.parametrize("function", CHECKED)
def test_a_check_in_a_loop_names_the_step(function):
    count, step, fact = CHECKED[function]
    where = f"; in step {step} of the loop at {place_of(function, 'the loop')}, counted from 0"
    checked = tg.function(function, check_bounds=True)
    assert failed_check(checked, tg.constant([1.0, 2.0]), tg.constant(count)) == fact + where


def test_a_check_in_loops_names_the_step_of_each():
    @tg.function
    def triangle(limit):
        for i in tg.range(4):  # outer
            for j in tg.range(i + 1):  # inner
                tg.debugging.assert_less(i + j, limit)

    test = test_a_check_in_loops_names_the_step_of_each
    outer, inner = place_of(test, "outer"), place_of(test, "inner")
    assert failed_check(triangle, tg.constant(4)) == (
        f"x < y does not hold; in step 2 of the loop at {outer} and step 2 of the loop at {inner}, "
        "counted from 0"
    )
    triangle(tg.constant(7))


def test_a_check_of_a_called_function_has_the_step_of_the_loop_around_it():
    @tg.function
    def checked(i):
        tg.debugging.assert_less(i, 2)
        return i

    @tg.function
    def walk(count):
        total = 0
        for i in tg.range(count):  # loop
            total += checked(i)
        return total

    place = place_of(test_a_check_of_a_called_function_has_the_step_of_the_loop_around_it, "loop")
    fact = failed_check(walk, tg.constant(5))
    assert fact == f"x < y does not hold; in step 2 of the loop at {place}, counted from 0"
    assert walk(tg.constant(2)).numpy() == 1


def test_a_check_of_loops_in_a_parallel_loop_has_the_step_of_the_first_that_failed():
    def walk(limit):
        tg.while_loop(lambda i: i < 5, lambda i: [asserted(i, limit)], [0])
        return limit

    def asserted(i, limit):
        tg.debugging.assert_less(i, limit)
        return i + 1

    fact = failed_check(lambda: tg.vectorized_map(walk, tg.constant([2, 9, 3])))
    assert fact.startswith("x < y does not hold; in step 2 of the loop at test_control_flow.py:")


@pytest.mark.sampled(1)
def test_checks_of_iterations_that_end_apart_or_decide_apart(run):
    def asserted(i):
        tg.debugging.assert_less(i, 4)
        return i + 1

    def walk(limit):
        return tg.while_loop(lambda i: i < limit, lambda i: [asserted(i)], [0])[0]

    def root(x):
        def checked():
            tg.debugging.assert_less(x, 5.0)
            return tg.sqrt(x)

        return tg.cond(x > 0.0, checked, lambda: -x)

    def written(n):
        ta = tg.TensorArray(tg.int32, size=3)
        body = lambda i, ta: (i + 1, ta.write(i, i))  # noqa: E731
        return tg.while_loop(lambda i, _: i < n, body, (0, ta))[1].stack()

    def of_all(fn, *values):
        return run(lambda x: tg.vectorized_map(fn, x), tg.constant(values))

    assert of_all(walk, 1, 4, 0).numpy().tolist() == [1, 4, 0]
    assert of_all(root, 4.0, -3.0).numpy().tolist() == [2.0, 3.0]
    assert of_all(written, 2, 0, 3).numpy().tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 2]]
    with pytest.raises(InvalidArgumentError, match=r"in step \[0 4 2 4\] of the loop at"):
        of_all(walk, 1, 9, 3, 8)
    with pytest.raises(InvalidArgumentError, match=r"operand 0: \[4. 7. 8.\]"):
        of_all(root, 4.0, 7.0, 8.0)
    empty = run(lambda x: tg.vectorized_map(root, x), tg.zeros([0]))
    assert empty.shape == (0,)


def test_a_saved_check_in_a_loop_names_the_step(tmp_path):
    module: Any = tg.Module()
    specs = [tg.TensorSpec([2]), tg.TensorSpec([], tg.int32)]
    module.f = tg.function(reads_in_a_loop, check_bounds=True, input_signature=specs)
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    x = tg.constant([1.0, 2.0])
    assert loaded.f(x, tg.constant(2)).numpy() == 3.0
    where = f"; in step 2 of the loop at {place_of(reads_in_a_loop, 'the loop')}, counted from 0"
    assert where in failed_check(loaded.f, x, tg.constant(3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [reads_in_a_loop, reads_in_a_scan])
def test_a_loop_that_checks_has_its_derivatives(function):
    x, count = tg.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), tg.constant(3)

    def slope(checks):
        f = tg.function(function, check_bounds=checks)
        return gradient(lambda x: tg.reduce_sum(f(x, count)), x)

    assert_near(slope(True), slope(False))


def test_a_shape_invariant_of_none_is_the_shape_of_the_variable():
    start, fits = [0, tg.constant([0, 1])], [None, tg.TensorShape([2])]
    step = lambda k, x: (k + 1, x + 1)  # noqa: E731
    assert tg.while_loop(lambda k, x: k < 4, step, start, fits)[1].numpy().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("invariant", "kind"),
    [(tg.TensorShape([5]), ValueError), (tg.TensorSpec([3, 2]), ValueError), ("foo", TypeError)],
)
def test_shape_invariants_that_do_not_fit(invariant, kind):
    loop = (lambda i, x: i < 2, lambda i, x: (i + 1, x + 1))
    start = (0, tg.zeros([2]))
    right = [tg.TensorShape([]), tg.TensorSpec([None])]
    assert tg.while_loop(*loop, start, right)[1].numpy().tolist() == [2, 2]
    with pytest.raises(kind, match=r"invariant(?s:.*)fix: "):
        tg.while_loop(*loop, start, [right[0], invariant])


def test_a_tensor_out_of_its_scope_is_a_value_error_too():
    kept = []
    tg.cond(tg.constant(True), lambda: kept.append(tg.zeros([]) + 1) or 0, lambda: 1)
    with pytest.raises(ValueError, match="out of scope") as caught:
        kept[0] + 1
    assert isinstance(caught.value, TypeError)


def test_a_tape_from_outside_of_a_body_is_named():
    @tg.function
    def watched(x):
        with tg.GradientTape() as tape:
            for _ in tg.range(3):  # here
                tape.watch(x)
                x = x * 2.0
        return tape.gradient(x, x)

    @tg.function
    def pushed(x):
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            total = x * 0.0
            for _ in tg.range(3):  # here
                x = x * 2.0
                total += accumulator.jvp(x)
        return total

    for function in (watched, pushed):
        words = f"the branch or the body of the loop at {line_of(function.python_function)}"
        found = raises(SignatureError, words, lambda f=function: f(f64(1.5)))
        assert "open the GradientTape or the ForwardAccumulator in the branch or the body" in found


class Last:
    def note(self, y):
        self.value = y * 2.0
        return self.value


def test_what_a_method_sets_in_a_loop_is_refused_with_the_loop():
    @tg.function
    def f(x):
        last = Last()
        for _ in tg.range(3):  # here
            x = last.note(x)
        return last.value

    words = f"the branch or the body of the loop at {line_of(f.python_function)}, and it was used"
    assert "what a method" in raises(SignatureError, words, lambda: f(f64(1.5)))


def test_results_of_python_functions_of_unknown_rank_name_the_repair():
    def sin(x):
        return tg.numpy_function(np.sin, [x], tg.float64)

    forms = [
        lambda x: tg.map_fn(sin, tg.stack([x, x])),
        lambda x: sin(x) if x > 0.0 else x[None][x[None] < 0.0],
        lambda x: repeat(lambda x: tg.transpose(sin(x)), x, 3),
        lambda x: repeat(lambda x: tg.add_n([sin(x), x]), x, 3),
    ]
    for form in forms:
        with pytest.raises(
            ShapeError, match=r"y\.set_shape\(\[…\]\), or Tout=tg\.TensorSpec"
        ) as caught:
            tg.function(form)(f64(0.5))
        assert "test_control_flow.py" in str(caught.value)


def test_results_of_python_functions_take_the_shape_of_what_they_meet():
    seen, v = [], tg.Variable(0.0, dtype=tg.float64)

    def sin(x):
        return tg.numpy_function(lambda a: (seen.append(float(v)), np.sin(a))[1], [x], tg.float64)

    def assigned(x):
        if x > 0.0:
            v.assign(sin(x))
        return v.read_value()

    def added(x):
        for _ in tg.range(2):
            x = x + sin(x)
        return x

    def is_added(x):
        return x + np.sin(x) + np.sin(x + np.sin(x))

    scalar = tg.TensorSpec([], tg.float64)
    forms = [  # what each gives for x, and how often it calls Python
        (lambda x: sin(x) if x > 0.0 else x, np.sin, 1),
        (lambda x: tg.cond(x <= 0.0, lambda: x, lambda: sin(x)), np.sin, 1),
        (lambda x: tg.switch_case(1, [lambda: x, lambda: sin(x)]), np.sin, 1),
        (lambda x: repeat(sin, x, 2), lambda x: np.sin(np.sin(x)), 2),
        (lambda x: tg.scan(lambda s, y: sin(s), tg.stack([x, x]))[1], np.sin, 1),
        (lambda x: tg.map_fn(sin, x[None], fn_output_signature=scalar)[0], np.sin, 1),
        (assigned, np.sin, 1),
        (added, is_added, 2),
    ]
    x = f64(0.5)
    for form, expected, count in forms:
        f = tg.function(form)
        for _ in range(2):
            seen.clear()
            np.testing.assert_allclose(f(x).numpy(), expected(0.5), rtol=1e-15)
            assert len(seen) == count


def test_a_result_of_another_shape_than_what_it_meets_is_refused():
    @tg.function
    def f(x):
        y = x
        if x > 0.0:
            y = tg.numpy_function(lambda a: np.stack([a, a]), [x], tg.float64)
        return y

    assert f(f64(-1.0)).numpy() == -1.0
    with pytest.raises(ShapeError, match=r"f64\[2\] does not have the shape \[\]") as caught:
        f(f64(1.0))
    assert "test_control_flow.py" in str(caught.value)


def test_ensure_shape_declares_what_a_python_function_returns():
    def twice(function):
        def step(x):
            y = tg.numpy_function(function, [x], tg.float64)
            return x + tg.reduce_sum(tg.ensure_shape(y, [None, 2]), 0)

        return tg.function(lambda x: repeat(step, x, 2))

    x = np.array([[0.3, 0.5], [0.7, 0.9]])
    first = x + np.sin(x).sum(0)
    np.testing.assert_allclose(twice(np.sin)(x).numpy(), first + np.sin(first).sum(0))
    with pytest.raises(InvalidArgumentError, match=r"returned the shape \(4,\) and Tout says"):
        twice(np.ravel)(x)


@pytest.mark.parametrize("holds", [True, False])
def test_branches_that_hand_on_residuals_of_other_types(holds):
    """Residuals of one type share a place among the results of the branches, and no others."""
    x = np.array([0.3, 0.5, 0.7])

    @tg.function
    def slope(x, holds):
        with tg.GradientTape() as tape:
            tape.watch(x)
            whole = lambda: tg.reduce_sum(tg.sin(tg.exp(x)))  # noqa: E731
            y = tg.cond(holds, whole, lambda: tg.sin(tg.exp(x[0]) * x[1]))
        return tape.gradient(y, x)

    e = np.exp(x)
    one, other = np.cos(e) * e, np.cos(e[0] * x[1]) * np.array([e[0] * x[1], e[0], 0.0])
    found = slope(tg.constant(x), tg.constant(holds))
    np.testing.assert_allclose(found, one if holds else other, rtol=1e-12)
