"""Derivatives through branches and loops that call Python functions: what they made is kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import raises
from tracegraph.errors import ShapeError


def next_state(called):
    """A Python function without a gradient, which notes what it is called with."""

    def function(p):
        called.append(float(p))
        return 0.5 * p + 1.0

    return lambda p: tg.numpy_function(function, [p], tg.TensorSpec([], tg.float64))


def episode(called, x, steps):
    """Rewards of at most so many steps, until the state is large."""
    following = next_state(called)
    state, total = tg.constant(1.0, tg.float64), tg.constant(0.0, tg.float64)
    for _ in tg.range(steps):
        p = x * state * tg.sin(total + x)
        total += p * p
        state = following(p)
        if state > 2.9:
            break
    return total


def episode_in_jax(x, steps):
    state, total = 1.0, 0.0
    for _ in range(steps):
        p = x * state * jnp.sin(total + x)
        total = total + p * p
        state = 0.5 * jax.lax.stop_gradient(p) + 1.0
        if state > 2.9:
            break
    return total


def of_both_orders(compute):
    """The value of a function, and its first and second derivative."""

    def values(x, steps):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = compute(x, steps)
            slope = tape.gradient(y, x)
        return y, slope, outer.gradient(slope, x)

    return tg.function(values)


def in_jax(x, steps):
    fn = functools.partial(episode_in_jax, steps=steps)
    with jax.enable_x64(True):
        return np.array([f(x) for f in (fn, jax.grad(fn), jax.grad(jax.grad(fn)))])


def test_reverse_mode_through_a_while_keeps_what_python_returned():
    called = []
    values = of_both_orders(functools.partial(episode, called))
    for x, steps in ((1.3, 5), (1.3, 1), (1.3, 2), (3.7, 9), (1.3, 0)):
        called.clear()
        found = values(tg.constant(x, tg.float64), tg.constant(steps))
        if steps == 0:
            assert [float(y) for y in found] == [0.0, 0.0, 0.0] and not called
        else:
            np.testing.assert_allclose(found, in_jax(x, steps), rtol=1e-10)
            assert 1 <= len(called) <= steps


def test_reverse_mode_at_top_level_and_through_calls_of_other_lengths():
    called = []
    inner = tg.function(lambda x, steps: episode(called, x, steps))
    both = lambda x, steps: inner(x, steps) + 2.0 * inner(x, steps + 1)  # noqa: E731
    expected = in_jax(1.3, 1) + 2.0 * in_jax(1.3, 2)
    for whole in (of_both_orders(both), of_both_orders(tg.function(both)).python_function):
        called.clear()
        found = whole(tg.constant(1.3, tg.float64), tg.constant(1))
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        assert len(called) == 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", [lambda fn, x: fn(x), lambda fn, x: tg.function(fn)(x)])
def test_reverse_mode_reads_variables_that_python_assigns_in_a_while(call):
    w = tg.Variable(np.full((2, 2), 0.3))

    def acted(z):
        w.assign_add(0.1 * np.eye(2))
        return np.tanh(z)

    def step(i, h, total):
        z = h @ w
        h = tg.numpy_function(acted, [z], tg.TensorSpec([1, 2], tg.float64))
        return i + 1, h, total + tg.reduce_sum(z**3)

    def loss(steps):
        start = (0, tg.ones([1, 2], tg.float64), tg.constant(0.0, tg.float64))
        with tg.GradientTape() as tape:
            _, _, total = tg.while_loop(lambda i, *_: i < steps, step, start)
        return total, tape.gradient(total, w)

    def in_jax(values):
        h, total = jnp.ones((1, 2)), 0.0
        for i in range(3):
            z = h @ (values + 0.1 * i * jnp.eye(2))
            h, total = jax.lax.stop_gradient(jnp.tanh(z)), total + (z**3).sum()
        return total

    total, slope = call(loss, tg.constant(3))
    with jax.enable_x64(True):
        expected, by_w = jax.value_and_grad(in_jax)(jnp.full((2, 2), 0.3))
    np.testing.assert_allclose(total, expected, rtol=1e-12)
    np.testing.assert_allclose(slope, by_w, rtol=1e-12)


def test_a_while_with_python_has_derivatives_in_a_branch_and_in_a_loop():
    called = []

    def chosen(x, steps):
        return tg.cond(x > 0.0, lambda: episode(called, x, steps), lambda: x)

    def repeated(x, steps):
        return tg.foldl(lambda y, n: y + chosen(x, n), steps, 0.0 * x)

    x, steps = tg.constant(1.3, tg.float64), tg.constant(2)
    np.testing.assert_allclose(of_both_orders(chosen)(x, steps), in_jax(1.3, 2), rtol=1e-10)
    np.testing.assert_allclose(of_both_orders(chosen)(-x, steps), [-1.3, 1.0, 0.0])
    called.clear()
    repeated(x, np.array([1, 0, 5, 2]))
    once, called[:] = [*called], []
    found = of_both_orders(repeated)(x, tg.constant([1, 0, 5, 2]))
    expected = sum(in_jax(1.3, n) for n in (1, 5, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert called == pytest.approx(once)


@tg.custom_gradient
def cubed(x):
    """By NumPy, which returns the slope too."""
    y, slope = tg.numpy_function(lambda a: (a**3, 3 * a**2), [x], [tg.float64] * 2)
    y.set_shape([])
    slope.set_shape([])
    return y, lambda g: g * slope


@pytest.mark.parametrize(
    ("power", "f"),
    [
        (9, lambda x: tg.foldl(lambda y, _: cubed(y), tg.zeros([2]), x)),
        (9, lambda x: tg.while_loop(lambda y: y < 2.5, lambda y: cubed(y), [x])[0]),
        (3, lambda x: tg.cond(x > 0.0, lambda: cubed(x), lambda: x)),
    ],
    ids=["scan", "while", "cond"],
)
def test_a_numpy_function_that_returns_its_slope_has_a_gradient_in_loops_and_branches(power, f):
    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    x = 1.2
    found = slope(tg.constant(x, tg.float64))
    np.testing.assert_allclose(found, power * x ** (power - 1), rtol=1e-12)


def by_python(calls):
    """A `py_function` of two numbers, which decides in Python."""

    def product(x, k):
        calls.append(float(x))
        return tg.sin(x) * k if x > 0.0 else x * k

    return lambda x, k: tg.py_function(product, [x, k], tg.TensorSpec([], tg.float64))


def by_graph(calls):
    """The same without Python."""
    return lambda x, k: tg.cond(x > 0.0, lambda: tg.sin(x) * k, lambda: x * k)


ROWS = np.array([1.0, 2.0, 3.0])


def in_a_scan(f, x, k):
    return tg.foldl(lambda y, row: f(y, k) * row + y, ROWS, x)


def in_a_while(f, x, k):
    step = lambda i, y: (i + 1, f(y, k) * f(k, y) + y)  # noqa: E731
    return tg.while_loop(lambda i, y: (i < 3) & (y < 5.0), step, (0, x))[1]


def in_no_step(f, x, k):
    return tg.while_loop(lambda y: y > 5.0, lambda y: [f(y, k)], [x])[0]


def in_a_branch(f, x, k):
    return tg.cond(x > 0.5, lambda: f(x, k) * f(k, x), lambda: x) + tg.cond(
        x > 0.9, lambda: x, lambda: f(x, x) * k
    )


def in_a_branch_in_scans(f, x, k):
    def row(y, r):
        return tg.cond(y > 1.5, lambda: f(y, k) + r, lambda: y * 1.4)

    return tg.foldl(lambda y, r: tg.foldl(row, ROWS, y * r), ROWS, x)


def in_a_branch_that_drops_it(f, x, k):
    """Inside a scan, which hands on what the call in the branch returned."""
    branch = lambda y: tg.cond(y > 0.5, lambda: (f(y, k), y * k)[1], lambda: y * 1.4)  # noqa: E731
    return tg.foldl(lambda y, row: branch(y * row), ROWS, x)


def in_whiles_in_branches(f, x, k):
    """Each branch has a loop of its own length, and one is inside another branch."""
    many = lambda y, n: tg.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, f(y, k)), (0, y))[1]  # noqa: E731
    less = lambda y: tg.cond(k > 2.0, lambda: y, lambda: many(y * k, tg.cast(k * 2.0, tg.int32)))  # noqa: E731
    one = lambda y: tg.cond(y > 0.5, lambda: many(y, tg.cast(k * 3.0, tg.int32)), lambda: less(y))  # noqa: E731
    return one(x) * k + one(-x)


def times(n, step, y):
    """The state behind so many steps of a while."""
    n = tg.cast(n, tg.int32)
    return tg.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, step(y)), (0, y))[1]


def in_whiles_of_other_lengths(f, x, k):
    """Where what was added to the shorter ones may not give nan."""
    step = lambda y: f(y, k) + 1.5 * tg.math.log(y * y)  # noqa: E731
    return tg.foldl(lambda y, n: times(n, step, y), np.array([0.0, 2.0, 0.0, 3.0]), x)


def in_whiles_of_products(f, x, k):
    """A loop of matrix products multiplies what its steps stacked, behind it."""
    w = tg.stack([[x, k], [-k, x]])

    def step(h):
        h = tg.tanh(h @ w)
        return tg.stack([[f(h[0, 0], k), h[0, 1]]])

    many = lambda h, n: times(n, step, h) + 0.1 * h  # noqa: E731
    return tg.reduce_sum(tg.foldl(many, np.array([1.0, 0.0, 3.0]), tg.stack([[x, k]])) ** 2)


def in_loops_of_three_levels(f, x, k):
    def outer(i, y):
        rows = lambda y, n: times(tg.minimum(i, n), lambda y: f(y, k), y * 1.2) + y * 0.1  # noqa: E731
        return i + 1, tg.foldl(rows, np.array([1, 3, 2]), y)

    return tg.while_loop(lambda i, _: i < 3, outer, (0, x))[1]


def in_whiles_of_three_levels(f, x, k):
    """Where a step of the outer loop runs none of the middle one."""
    inner = lambda y, i: times(i, lambda y: 1.3 * f(y, k), y) + 0.1  # noqa: E731
    middle = lambda y, i: times(2 * i % 3, lambda y: inner(y, i), y)  # noqa: E731
    return tg.foldl(middle, np.array([0, 1, 2]), x)


def in_episodes_with_tapes(f, x, k):
    def step(y, n):
        with tg.GradientTape() as tape:
            tape.watch(y)
            z = times(n, lambda y: f(y, k), y * n)
        return tape.gradient(z, y) * 0.4 + y

    return tg.foldl(step, ROWS[[0, 2, 1]], x)


NESTS = [
    in_whiles_of_other_lengths,
    in_whiles_of_products,
    in_loops_of_three_levels,
    in_whiles_of_three_levels,
    in_episodes_with_tapes,
    in_a_scan,
    in_a_while,
    in_no_step,
    in_a_branch,
    in_a_branch_in_scans,
    in_a_branch_that_drops_it,
    in_whiles_in_branches,
]


@pytest.mark.parametrize("nest", NESTS, ids=lambda f: f.__name__)
def test_each_call_of_a_py_function_is_differentiated_and_made_once(nest):
    """By reverse mode of two orders, in one function, at top level around it, and in lanes."""

    def of(make, calls):
        f = make(calls)

        def slopes(x, k):
            with tg.GradientTape() as outer:
                outer.watch([x, k])
                with tg.GradientTape() as tape:
                    tape.watch([x, k])
                    y = function(f, x, k)
                by_x, by_k = tape.gradient(y, [x, k], unconnected_gradients="zero")
                product = by_x * by_k
            return y, by_x, by_k, *outer.gradient(product, [x, k], unconnected_gradients="zero")

        return slopes

    calls, x, k = [], tg.constant(0.7, tg.float64), tg.constant(1.3, tg.float64)
    function = nest
    wanted = tg.function(of(by_graph, []))(x, k)
    nest(by_python(calls), x, k)
    count, calls[:] = len(calls), []
    np.testing.assert_allclose(tg.function(of(by_python, calls))(x, k), wanted, rtol=1e-12)
    assert len(calls) == count == {in_no_step: 0, in_a_branch: 3}.get(nest, count)
    function = tg.function(nest)
    np.testing.assert_allclose(of(by_python, calls)(x, k), wanted, rtol=1e-12)
    assert len(calls) == 2 * count


@pytest.mark.filterwarnings("ignore:.*the function was decorated again")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("nest", NESTS, ids=lambda f: f.__name__)
def test_forward_mode_makes_each_call_of_a_py_function_once(nest):
    """At top level around a function, and around reverse mode in one."""

    def of(make, calls):
        f = make(calls)
        inner = tg.function(lambda x, k: nest(f, x, k))

        def pushed(x, k):
            directions = [tg.constant(1.0, tg.float64), tg.constant(-0.5, tg.float64)]
            with tg.autodiff.ForwardAccumulator([x, k], directions) as accumulator:
                y = inner(x, k)
            return y, accumulator.jvp(y, unconnected_gradients="zero")

        @tg.function
        def both(x, k):
            directions = [tg.constant(1.0, tg.float64), tg.constant(-0.5, tg.float64)]
            with tg.autodiff.ForwardAccumulator([x, k], directions) as accumulator:
                with tg.GradientTape() as tape:
                    tape.watch([x, k])
                    y = nest(f, x, k)
                slopes = tape.gradient(y, [x, k], unconnected_gradients="zero")
            return [accumulator.jvp(z, unconnected_gradients="zero") for z in (y, *slopes)]

        return pushed, both

    calls, x, k = [], tg.constant(0.7, tg.float64), tg.constant(1.3, tg.float64)
    nest(by_python(calls), x, k)
    count = len(calls)
    for compute, known in zip(of(by_python, calls), of(by_graph, []), strict=True):
        calls.clear()
        np.testing.assert_allclose(compute(x, k), known(x, k), rtol=1e-12)
        assert len(calls) == count


def test_forward_mode_through_an_episode_takes_what_python_returned():
    called = []

    @tg.function
    def values(x, steps):
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = episode(called, x, steps)
        return y, accumulator.jvp(y)

    found = values(tg.constant(1.3, tg.float64), tg.constant(5))
    np.testing.assert_allclose(found, in_jax(1.3, 5)[:2], rtol=1e-10)
    assert 1 <= len(called) <= 5


def test_rows_of_a_parallel_loop_with_a_py_function_in_a_scan():
    def slopes(make):
        def values(xs):
            with tg.GradientTape() as tape:
                tape.watch(xs)
                each = lambda x: in_a_scan(make([]), x, tg.constant(1.3, tg.float64))  # noqa: E731
                ys = tg.vectorized_map(each, xs)
            return tape.jacobian(ys, xs)

        return tg.function(values)(tg.constant([0.3, -0.7], tg.float64))

    np.testing.assert_allclose(slopes(by_python), slopes(by_graph), rtol=1e-12)


def test_what_has_another_shape_in_each_step_is_not_kept():
    sizes = iter(range(1, 9))

    def values(x, steps):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tg.range(steps):
                made = tg.numpy_function(
                    lambda _: np.ones(next(sizes), np.float32), [y], tg.TensorSpec([None])
                )
                y *= tg.reduce_sum(x * made)
        return tape.gradient(y, x)

    text = raises(
        ShapeError, "cannot be kept", lambda: tg.function(values)(tg.constant(2.0), tg.constant(3))
    )
    assert "for _ in tg.range(steps)" in text


def played(reward):
    """An environment as users hand it to `tg.numpy_function`: it ends behind four actions."""
    state, count = np.array([0.3, -0.2], np.float32), 0

    def act(action):
        nonlocal state, count
        count += 1
        state = np.float32(0.9) * state + np.float32(action)
        return state, reward(count), np.array(count >= 4, np.int32)

    return act


def test_an_actor_critic_in_which_only_dtypes_of_results_are_declared():
    """As in a tutorial: shapes are told by `set_shape`, by a write and by a condition."""
    w = tg.Variable([[0.5, -0.3], [0.1, 0.4]])
    act = played(lambda count: np.array(count * 10, np.int32))

    @tg.function
    def trained(initial, limit):
        probabilities = tg.TensorArray(tg.float32, size=0, dynamic_size=True)
        rewards = tg.TensorArray(tg.int32, size=0, dynamic_size=True)
        with tg.GradientTape() as tape:
            state = initial
            for t in tg.range(limit):
                probs = tg.nn.softmax(tg.linalg.matvec(w, state))
                action = t % 2
                probabilities = probabilities.write(t, probs[action])
                state, reward, done = tg.numpy_function(
                    act, [action], [tg.float32, tg.int32, tg.int32]
                )
                state.set_shape(initial.shape)
                rewards = rewards.write(t, reward)
                if tg.cast(done, tg.bool):
                    break
            loss = -tg.reduce_sum(tg.math.log(probabilities.stack()))
        return loss, tape.gradient(loss, w), rewards.stack()

    def in_jax(w):
        state, loss = np.array([0.3, -0.2], np.float32), 0.0
        for t in range(4):
            loss -= jnp.log(jax.nn.softmax(w @ state)[t % 2])
            state = np.float32(0.9) * state + np.float32(t % 2)
        return loss

    loss, slope, rewards = trained(tg.constant([0.3, -0.2]), 20)
    expected, by_w = jax.value_and_grad(in_jax)(jnp.asarray(w.numpy()))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, by_w, rtol=1e-5)
    assert rewards.numpy().tolist() == [10, 20, 30, 40]


def test_a_result_that_has_not_the_shape_it_was_taken_for_is_refused():
    act = played(lambda count: np.zeros(3, np.int32))

    @tg.function
    def rewards(limit):
        found = tg.TensorArray(tg.int32, size=9)
        for t in tg.range(limit):
            _, reward, _ = tg.numpy_function(act, [t], [tg.float32, tg.int32, tg.int32])
            found = found.write(t, reward)
        return found.stack()

    error = tg.errors.InvalidArgumentError
    raises(error, r"returned the shape \(3,\) and Tout says \(\)", lambda: rewards(tg.constant(2)))


@pytest.mark.parametrize("option", ["check_numerics", "locate_numerics"])
def test_numerics_name_the_step_of_a_loop_that_is_recorded(option):
    def values(x, steps):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tg.range(steps):
                y = tg.math.log(y - 1.0)
                y += 0.0 * next_state([])(y)
        return tape.gradient(y, x)

    error = tg.errors.NumericsError
    call = tg.function(values, **{option: True})
    text = raises(
        error, "in step 1 of the loop", lambda: call(tg.constant(1.3, tg.float64), tg.constant(3))
    )
    assert "y = tg.math.log(y - 1.0)" in text


def two_calls_in_a_step(called, x, steps):
    following = next_state(called)
    s = x
    for _ in steps:
        j = 0
        while j < 2:  # Python decides, so each step has both calls
            s = s * x + following(s)
            j += 1
    return s


def test_several_calls_in_a_step_keep_what_they_returned():
    called = []
    found = of_both_orders(lambda x, steps: two_calls_in_a_step(called, x, tg.range(2)))
    values = found(tg.constant(0.5, tg.float64), 0)
    assert len(called) == 4
    constant = jax.lax.stop_gradient

    def plain(x):
        s = x
        for _ in range(4):
            s = s * x + 0.5 * constant(s) + 1.0
        return s

    with jax.enable_x64(True):
        expected = [f(0.5) for f in (plain, jax.grad(plain), jax.grad(jax.grad(plain)))]
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    unknown = of_both_orders(lambda x, n: two_calls_in_a_step(called, x, tg.range(n)))
    np.testing.assert_allclose(
        unknown(tg.constant(0.5, tg.float64), tg.constant(2)), expected, rtol=1e-10
    )
