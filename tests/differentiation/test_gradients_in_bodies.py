"""`tg.gradients` and `tg.hessians` in the bodies of branches, loops and functions, of tensors that
were computed outside of them. TensorFlow 2.21 gives the same numbers."""

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore:5 of the last 5 calls")
COUNT = 6


def in_pfor(body):
    return tg.vectorized_map(lambda i: body(), tg.range(2))[1]


def in_map(body):
    return tg.map_fn(lambda i: body(), tg.constant([0.0, 1.0]))[1]


def in_while(body):
    start = tg.constant(0), tg.zeros(COUNT)
    return tg.while_loop(lambda k, s: k < 2, lambda k, s: (k + 1, body()), start)[1]


def in_cond(body):
    return tg.cond(tg.constant(1) > 0, body, lambda: tg.zeros(COUNT))


def in_both(body):
    return tg.function(lambda: in_map(lambda: in_cond(body)))()


@pytest.mark.parametrize("within", [in_pfor, in_map, in_while, in_cond, in_both])
def test_what_was_computed_outside_counts(within):
    weight = tg.Variable(2.0)

    @tg.function
    def f(x):
        square = x * x
        cube = square * x
        read = weight * weight * x

        def body():
            (first,) = tg.gradients(cube, x)
            (both,) = tg.gradients(cube * x, x)
            (stopped,) = tg.gradients(cube * x, x, stop_gradients=square)
            (middle,) = tg.gradients(cube * square, square)
            (by_weight,) = tg.gradients(read, weight)
            second = tg.hessians(cube, x)[0] + tg.gradients(first, x)[0]
            return tg.stack([first, both, stopped, middle, by_weight, second])

        return within(body)

    x, w = 3.0, 2.0
    wanted = [3 * x**2, 4 * x**3, 2 * x**3, 2 * x**3, 2 * w * x, 12 * x]
    np.testing.assert_allclose(f(tg.constant(x)).numpy(), wanted, rtol=1e-6)


LOOPS = {
    "map_fn": lambda step, rows: tg.map_fn(step, rows),
    "vectorized_map": lambda step, rows: tg.vectorized_map(step, rows),
    "scan": lambda step, rows: tg.scan(lambda s, row: step(row), rows, tg.zeros(2)),
    "from the end": lambda step, rows: tg.scan(
        lambda s, row: step(row), rows, tg.zeros(2), reverse=True
    ),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_rows_are_computed_from_their_tensor(loop):
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(x):
        slopes = loop(lambda row: tg.gradients(row * tg.reduce_sum(x), x)[0], x * x)
        return slopes, tg.gradients(slopes, x)[0]

    slopes, second = f(tg.constant([2.0, 3.0]))
    # d(x_i^2 sum(x)) / dx_j is x_i^2 + 2 x_i sum(x) where i is j; its sum is the sum of
    # 2 x_i^2 + 2 x_i sum(x).
    assert slopes.numpy().tolist() == [[24.0, 4.0], [9.0, 39.0]]
    assert second.numpy().tolist() == [28.0, 32.0]


@pytest.mark.parametrize("loop", [LOOPS["map_fn"], LOOPS["vectorized_map"]])
def test_no_rows(loop):
    f = tg.function(lambda x: loop(lambda row: tg.gradients(tg.reduce_sum(row), x)[0], x * x))
    assert f(tg.zeros([0, 2])).shape == (0, 0, 2)


def test_a_python_loop_over_rows_and_a_parallel_loop_at_top_level():
    @tg.function
    def f(x):
        total = tg.zeros_like(x)
        for row in x * 3.0:
            total += tg.gradients(row * row, x)[0]
        return total

    x = tg.constant([2.0, 3.0])
    assert f(x).numpy().tolist() == [36.0, 54.0]
    found = tg.vectorized_map(lambda row: tg.gradients(row * row, x)[0], x)
    assert found.numpy().tolist() == [[4.0, 0.0], [0.0, 6.0]]


def test_arguments_of_a_custom_gradient_are_computed_from_what_is_given():
    @tg.function
    def f(x):
        @tg.custom_gradient
        def cube(u):
            y = u * u * u
            return y, lambda g: g * tg.gradients(y, x)[0]

        return tg.gradients(cube(x), x)[0]

    assert float(f(tg.constant(2.0))) == 12.0


def test_other_arguments_are_sources_of_their_own():
    @tg.function
    def f(x):
        states = tg.constant(0), x * x, tg.zeros(())

        def body(k, s, g):
            assert tg.gradients(s, x) == [None]
            return k + 1, s, tg.gradients(s * x, s)[0]

        return tg.while_loop(lambda k, s, g: k < 1, body, states)[2]

    assert float(f(tg.constant(3.0))) == 3.0


@pytest.mark.parametrize("is_known", [True, False])
def test_none_for_what_was_computed_at_top_level_is_refused(is_known):
    x = tg.constant(2.0)
    y = x * x
    if is_known:
        y.numpy()
    with pytest.raises(GradientError, match="computed from the source at top level") as error:
        tg.vectorized_map(lambda i: tg.gradients(y * 3.0, x)[0], tg.range(2))
    assert "test_gradients_in_bodies.py" in str(error.value)
    weight = tg.Variable(2.0)
    doubled = weight * 2.0
    with pytest.raises(GradientError, match="computed from the source at top level"):
        tg.function(lambda: tg.gradients(doubled, weight))()
    free = tg.constant(1.0)
    assert tg.function(lambda: tg.gradients(y, free))() == [None]
    assert tg.function(lambda: tg.gradients(tg.stop_gradient(y), x))() == [None]


def test_a_tape_that_is_asked_in_a_parallel_loop_is_told_where():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        with pytest.raises(ValueError, match="the body of the loop at test_gradients_in_bodies"):
            tg.vectorized_map(lambda row: tape.gradient(row * row, x), x)
