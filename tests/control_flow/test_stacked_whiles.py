"""Loops of bounded length whose gradients read what the steps stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient
from tests.oracles import assert_near
from tracegraph.control.stacked_whiles import with_stacked_whiles
from tracegraph.control.while_loop import WhileGradient
from tracegraph.passes.simplify import dead_code

LENGTH = 12
WEIGHTS = np.linspace(-0.7, 0.9, 9).reshape(3, 3)
START = np.array([[0.3, -0.2, 0.8], [0.1, 0.5, -0.4]])


def f64(value):
    return tg.constant(value, tg.float64)


def gradients_of_whiles(function, *args):
    """How many gradients of loops the program of a function has, and its graph before."""
    graph = dead_code(function.get_concrete_function(*args).graph)
    count = lambda graph: sum(  # noqa: E731
        type(node.op) is WhileGradient for inner in graph.graphs() for node in inner.nodes
    )
    return count(graph), count(with_stacked_whiles(graph))


def tanh_steps(x, w, limit, **options):
    """x through tanh(x @ w) until its norm is below the limit: what it is then, and how often."""
    _, y, count = tg.while_loop(
        lambda norm, y, n: norm > limit,
        lambda norm, y, n: (tg.reduce_sum(y * y), tg.tanh(y @ w), n + 1),
        (tg.constant(100.0, tg.float64), x, 0),
        maximum_iterations=LENGTH,
        **options,
    )
    return y, count


def tanh_steps_by_jax(x, w, count):
    for _ in range(count):
        x = jnp.tanh(x @ w)
    return x


def slopes(loss, *xs):
    with tg.GradientTape() as tape:
        tape.watch(xs)
        y = loss(*xs)
    return (y, *tape.gradient(y, xs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("limit", "count"), [(1e9, 0), (50.0, 1), (0.6, 3), (-1.0, LENGTH)])
def test_first_derivatives_are_those_of_jax(limit, count):
    @tg.function
    def found(x, w):
        _, n = tanh_steps(x, w, limit)
        assert n.dtype == tg.int32
        return n, *slopes(lambda x, w: tg.reduce_sum(tanh_steps(x, w, limit)[0] ** 2), x, w)

    assert gradients_of_whiles(found, f64(START), f64(WEIGHTS)) == (1, 0)
    n, y, *gs = found(f64(START), f64(WEIGHTS))
    assert n == count
    with jax.enable_x64(True):
        loss = lambda x, w: jnp.sum(tanh_steps_by_jax(x, w, count) ** 2)  # noqa: E731
        wanted = jax.jit(jax.value_and_grad(loss, (0, 1)))(START, WEIGHTS)
    np.testing.assert_allclose(y, wanted[0], rtol=1e-12)
    for g, w in zip(gs, wanted[1], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-15)


def test_higher_orders_and_forward_mode_are_those_of_few_checkpoints():
    def all_of(checkpoints):
        def loss(x):
            y, _ = tanh_steps(x, f64(WEIGHTS), 0.1, checkpoints=checkpoints)
            return tg.reduce_sum(y * y)

        @tg.function
        def found(x, v):
            with tg.autodiff.ForwardAccumulator(x, v) as forward:
                g = gradient(loss, x)
            second = lambda x: tg.reduce_sum(gradient(loss, x) * v)  # noqa: E731
            third = lambda x: tg.reduce_sum(gradient(second, x) * v)  # noqa: E731
            return g, forward.jvp(g), gradient(second, x), gradient(third, x)

        return found

    x, v = f64(START), f64(np.cos(START))
    stacked, recomputed = all_of(None), all_of(2)
    before, after = gradients_of_whiles(stacked, x, v)
    assert before > 2
    assert after == 0
    assert gradients_of_whiles(recomputed, x, v) == (before, before)
    for a, b in zip(stacked(x, v), recomputed(x, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_a_loop_inside_of_a_loop():
    def loss(x, checkpoints=None):
        def step(i, y):
            inner = tg.while_loop(
                lambda k, z: k < i,
                lambda k, z: (k + 1, tg.sin(z) * 1.1),
                (0, y),
                maximum_iterations=4,
            )
            return i + 1, inner[1] * y

        return tg.reduce_sum(
            tg.while_loop(lambda i, y: i < 5, step, (0, x), checkpoints=checkpoints)[1]
        )

    @tg.function
    def stacked(x):
        return gradient(loss, x)

    # That of the inner one is in a step of the outer one, behind which its rows are gone.
    assert gradients_of_whiles(stacked, f64(START)) == (2, 1)
    wanted = gradient(lambda x: loss(x, 2), f64(START))
    np.testing.assert_allclose(stacked(f64(START)), wanted, rtol=1e-12)


def slope_of_sum(power):
    def loss(x):
        return tg.reduce_sum(tanh_steps(x, f64(WEIGHTS), 0.1, checkpoints=2)[0] ** power)

    return gradient(loss, f64(START))


def test_losses_of_one_loop_share_its_rows():
    @tg.function
    def found(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, _ = tanh_steps(x, f64(WEIGHTS), 0.1)
            a, b = tg.reduce_sum(y), tg.reduce_sum(y**3)
        return tape.gradient(a, x), tape.gradient(b, x)

    concrete = found.get_concrete_function(f64(START))
    assert gradients_of_whiles(found, f64(START)) == (2, 0)
    assert concrete.as_text().count("# stacked: while of at most 12 steps") == 1
    for power, g in zip((1, 3), found(f64(START)), strict=True):
        np.testing.assert_allclose(g, slope_of_sum(power), rtol=1e-12)


def test_a_loop_in_another_function_and_variables():
    w = tg.Variable(f64(WEIGHTS))

    @tg.function
    def model(x):
        return tanh_steps(x, w, 0.1)[0]

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(model(x) ** 2)
        w.assign_sub(0.5 * tape.gradient(loss, w))
        return loss

    assert gradients_of_whiles(step, f64(START)) == (1, 0)
    wanted = gradient(
        lambda w: tg.reduce_sum(tanh_steps(f64(START), w, 0.1, checkpoints=2)[0] ** 2), f64(WEIGHTS)
    )
    step(f64(START))
    np.testing.assert_allclose(w, WEIGHTS - 0.5 * wanted.numpy(), rtol=1e-12)


def test_at_top_level():
    x = f64(START)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(tanh_steps(x, f64(WEIGHTS), 0.1)[0])
    np.testing.assert_allclose(tape.gradient(y, x), slope_of_sum(1), rtol=1e-12)


def test_numbers_of_16_bits_are_summed_in_32():
    @tg.function
    def found(x):
        def loss(x):
            steps = tg.while_loop(lambda i, s: i < 4000, lambda i, s: (i + 1, s + x), (0, x * 0.0))
            return steps[1]

        return gradient(loss, x)

    x = tg.constant(1.0, tg.bfloat16)
    assert gradients_of_whiles(found, x) == (1, 0)
    assert_near(
        tg.cast(found(x), tg.float32), tg.cast(tg.constant(4000.0, tg.bfloat16), tg.float32)
    )


def test_a_chosen_gradient_in_the_body_is_kept():
    @tg.custom_gradient
    def doubled(x):
        return x * 2.0, lambda g: g * 3.0

    @tg.function
    def found(x):
        return gradient(
            lambda x: tg.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, doubled(y)), (0, x))[
                1
            ],
            x,
        )

    assert gradients_of_whiles(found, f64(1.0)) == (1, 0)
    assert found(f64(1.0)) == 3.0**5


def test_what_runs_python_is_not_stacked(capfd):
    @tg.function
    def found(x):
        def body(i, y):
            tg.print(i)
            return i + 1, tg.sin(y)

        return gradient(lambda x: tg.while_loop(lambda i, y: i < 3, body, (0, x))[1], x)

    wanted = gradient(lambda x: tg.sin(tg.sin(tg.sin(x))), f64(0.5))
    np.testing.assert_allclose(found(f64(0.5)), wanted, rtol=1e-12)
    assert capfd.readouterr().err.split() == ["0", "1", "2"]


def steps_of(count, **options):
    @tg.function
    def found(x, n):
        def loss(x):
            test = lambda i, y: i < (n if count is None else count)  # noqa: E731
            return tg.while_loop(test, lambda i, y: (i + 1, tg.sin(y)), (0, x), **options)[1]

        return gradient(lambda x: tg.reduce_sum(loss(x)), x)

    return found


@pytest.mark.parametrize(
    ("count", "options", "is_stacked"),
    [
        (50, {}, True),
        (None, {}, False),  # nothing bounds it
        (None, {"maximum_iterations": 50}, True),
        (50, {"checkpoints": 49}, False),
        (50, {"checkpoints": 50}, True),
        (4096, {}, True),
        (4097, {}, False),
        (10**6, {}, False),
        (10**6, {"checkpoints": 10**4}, False),
        (10**6, {"checkpoints": 10**6}, True),
    ],
)
def test_what_is_stacked(count, options, is_stacked):
    found = steps_of(count, **options)
    x, n = f64(np.ones(8)), tg.constant(5)
    assert gradients_of_whiles(found, x, n) == (1, 0 if is_stacked else 1)
    text = found.get_concrete_function(x, n).as_text()
    assert ("# stacked: while of at most" in text) is is_stacked


def test_rows_that_are_large_are_not_stacked():
    # Of 4,000 steps of 1,000 numbers: 32 MB.
    assert gradients_of_whiles(steps_of(4000), f64(np.ones(1000)), tg.constant(5)) == (1, 1)


def test_a_budget_leaves_rows_that_do_not_fit():
    x, n = tg.ones([1000]), tg.constant(5)
    wanted = steps_of(1000, checkpoints=2)(x, n)
    for budget, least, most in (("64MiB", 4e6, 64e6), ("400KiB", 0, 400e3)):
        found = tg.function(steps_of(1000).python_function, memory_budget=budget)
        np.testing.assert_allclose(found(x, n), wanted, rtol=1e-6)
        assert least <= found.memory().temporaries <= most


def test_a_state_that_nothing_reads_and_one_that_ends_early():
    @tg.function
    def found(x):
        def loss(x):
            start = (x, tg.zeros([2], tg.float64), tg.constant(0))
            a, *_ = tg.while_loop(
                lambda a, b, i: tg.reduce_max(a) < 5.0,
                lambda a, b, i: (a * 1.5, b + a, i + 2),
                start,
                maximum_iterations=30,
            )
            return tg.reduce_sum(a)

        return gradient(loss, x)

    assert gradients_of_whiles(found, f64([1.0, 2.0]))[1] == 0
    np.testing.assert_allclose(found(f64([1.0, 2.0])), [1.5**3, 1.5**3], rtol=1e-12)


def test_an_open_size_is_that_of_the_call():
    @tg.function(input_signature=[tg.TensorSpec([None], tg.float64)])
    def slope(x):
        def loss(x):
            return tg.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tg.sin(y)), (0, x))[1]

        return gradient(lambda x: tg.reduce_sum(loss(x)), x)

    def three(x):
        return tg.sin(tg.sin(tg.sin(x)))

    for x in ([0.5, 1.0], [0.1, 0.2, 0.3]):
        first = gradient(lambda x: tg.reduce_sum(three(x)), f64(x))
        np.testing.assert_allclose(slope(f64(x)), first, rtol=1e-12)
        assert "# stacked: while of at most 3 steps" in slope.get_concrete_function().as_text()
        # The derivative of a call at top level knows the size that the function left open.
        second = gradient(lambda x: gradient(lambda x: tg.reduce_sum(three(x)), x), f64(x))
        np.testing.assert_allclose(gradient(slope, f64(x)), second, rtol=1e-12)


def by_and(x):
    i = 0
    while i < 40 and tg.reduce_sum(x) > 1.0:
        x = tg.sin(x)
        i += 1
    return x


def by_break(x):
    i = 0
    while i < 40:
        x = tg.sin(x)
        i += 1
        if tg.reduce_sum(x) < 1.0:
            break
    return x


def by_and_behind(x):
    i = 0
    while tg.reduce_sum(x) > 1.0 and i < 40:
        x = tg.sin(x)
        i += 1
    return x


@pytest.mark.parametrize("loop", [by_and, by_break, by_and_behind])
def test_a_bound_that_is_one_of_several_tests(loop):
    found = tg.function(lambda x: gradient(lambda x: tg.reduce_sum(tg.sin(loop(x))), x))
    x = f64([0.9, 0.5])
    assert "# stacked: while of at most" in found.get_concrete_function(x).as_text()
    wanted = gradient(lambda x: tg.reduce_sum(tg.sin(loop(x))), x)  # by Python, which decides
    np.testing.assert_allclose(found(x), wanted, rtol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("test", "dtype", "step"),
    [
        (lambda i: i // 2 < 7, tg.int32, 1),
        (lambda i: i - 5 < 7, tg.int32, 1),
        # 0, 100, 200, 44, …: 23 steps, and not 3.
        (lambda i: i < tg.constant(250, tg.uint8), tg.uint8, 100),
        (lambda i: i < tg.constant(120, tg.int8), tg.int8, 100),
    ],
)
def test_what_is_no_bound_of_the_number_of_steps(test, dtype, step):
    def body(i, y):
        return i + tg.constant(step, dtype), tg.sin(y)

    def loss(x):
        start = tg.constant(0, dtype)
        return tg.while_loop(lambda i, y: test(i), body, (start, x))[1]

    def plain(x):
        i = tg.constant(0, dtype)
        while test(i):
            i, x = body(i, x)
        return x

    @tg.function
    def found(x):
        return gradient(loss, x)

    np.testing.assert_allclose(found(f64(0.5)), gradient(plain, f64(0.5)), rtol=1e-12)
    assert gradients_of_whiles(found, f64(0.5)) == (1, 1)


def test_a_size_that_the_run_finds_reaches_the_functions_that_are_called():
    @tg.function
    def grown(x, n):
        found = tg.TensorArray(tg.float64, size=0, dynamic_size=True).write(0, x)
        i = 1
        while i < n:
            tg.autograph.experimental.set_loop_options(maximum_iterations=LENGTH)
            found = found.write(i, x * x)
            i += 1
        return found.stack()

    @tg.function
    def hessian(x, n):
        with tg.GradientTape() as outer:
            outer.watch(x)
            slope = gradient(lambda x: tg.reduce_sum(grown(x, n) ** 2), x)
        return outer.jacobian(slope, x)

    x = np.array([0.7, 0.3])
    for n in (1, 4):
        assert_near(hessian(f64(x), tg.constant(n)), np.diag(2 + 12 * (n - 1) * x**2))


def test_functions_in_functions_whose_gradients_read_what_comes_behind_the_loop():
    def loss(x, checkpoints=None):
        def body(i, y):
            return i + 1, tg.sin(y) * y + x

        loop = tg.while_loop(lambda i, y: i < 7, body, (0, x), checkpoints=checkpoints)
        return tg.reduce_sum(loop[1])

    inner = tg.function(loss)
    slope = tg.function(lambda x: gradient(inner, x))
    both = tg.function(lambda x: slope(x) + slope(x * 2.0))
    x = f64([0.3, 0.7])
    wanted = [gradient(lambda x: loss(x, 2), y) for y in (x, x * 2.0)]
    np.testing.assert_allclose(both(x), wanted[0] + wanted[1], rtol=1e-12)


def steps_of_a_loop_in_a_branch(z, v, loop, choose):
    """Three steps, some of which set a state again and again until it is small: the next state
    follows from others, so the first one decides only how often."""

    def settled(x):
        begun = 0.5 * x + v * tg.cos(x + z)
        return loop(lambda s: tg.reduce_sum(s) > 1.2, lambda s: 0.3 + v * tg.cos(3.0 * z), begun, 2)

    def step(x):
        x = v * tg.sin(x) + z
        return choose(tg.reduce_sum(x) > 0.0, lambda: settled(x), lambda: x * 2.0)

    return loop(lambda x: tg.reduce_sum(x) < 100.0, step, z, 3)


def in_the_graph(test, body, begun, most):
    return tg.while_loop(test, lambda s: (body(s),), (begun,), maximum_iterations=most)[0]


def in_python(test, body, state, most):
    for _ in range(most):
        state = body(state) if bool(test(state)) else state
    return state


def test_a_state_that_only_a_condition_reads_has_its_derivatives():
    """A residual of the loop lies on no path from which derivatives of the first order come."""
    v, z = tg.Variable([1.2, 0.7], dtype=tg.float64), f64([0.3, 0.4])

    def products(z, loop, choose):
        with tg.GradientTape() as tape:
            tape.watch(z)
            with tg.autodiff.ForwardAccumulator(z, f64([1.0, 0.5])) as forward:
                y = tg.reduce_sum(tg.sin(steps_of_a_loop_in_a_branch(z, v, loop, choose)))
            tangent = forward.jvp(y)
        return tape.gradient(tangent, [z, v])

    found = tg.function(lambda z: products(z, in_the_graph, tg.cond))(z)
    expected = products(z, in_python, lambda test, one, other: one() if bool(test) else other())
    assert_near(found, expected, 1e-12)
