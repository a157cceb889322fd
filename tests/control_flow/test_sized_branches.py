"""Branches that return tensors of sizes that only the run knows: the same results as plain Python
on NumPy's numbers, and every derivative."""

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near

VECTORS = [
    np.array([1.5, -2.2, 3.1, 0.5, -1.2]),
    np.array([-1.1, -2.2, -3.3, -0.5, -1.1]),  # no element is kept
    np.array([1.1, 2.2, 3.1, 0.5, 1.1]),  # all are
]
# The programs are decorated once for each test.
pytestmark = pytest.mark.filterwarnings("ignore:.*the function was decorated again")
SPECS = [tg.TensorSpec([5], tg.float64), tg.TensorSpec([], tg.int32)]


def masked_or_whole(x, n):
    if n > 0:
        y = x[x > 0]
    else:
        y = x
    return y * 2


def two_sizes(x, n):
    return x[x > 0] if n > 0 else x[x < 1] ** 2


def left_early(x, n):
    if n < 1:
        return x[x > 0]
    if n < 2:
        return x * x
    return x[x < 0]


def three_ways(x, n):
    if n == 0:
        y = x[x > 0]
    elif n == 1:
        y = x[x > 1] * x[0]
    else:
        y = x[1:]
    return y**2


def known_before(x, n):
    kept = x[x > 0] ** 2
    y = kept if n > 0 else x
    return y * y


def nested(x, n):
    y = x
    if n > 0:
        y = x[x < 2]
        if n > 1:
            y = y[y > 0]
    return y * x[0]


def rows(x, n):
    grid = x[:, None] * x
    if n > 0:
        grid = grid[x > 0]
    return grid * 3


def both_axes(x, n):
    grid = x[:, None] * x
    if n > 0:
        grid = x[x > 0][:, None] * x[x < 2]
    return grid


def joined_behind(x, n):
    y = x[x > 0] if n > 0 else x
    z = y[y < 2]
    return z * x[0] if n > 1 else y + y**2


def twice(x, n):
    return masked_or_whole(x, n) if n < 2 else masked_or_whole(x * x - 1.0, n)


PROGRAMS = {
    program.__name__: program
    for program in (
        *(masked_or_whole, two_sizes, left_early, three_ways, known_before, nested, rows),
        *(both_axes, joined_behind, twice),
    )
}


def cube_sum(program):
    return lambda x, n: tg.reduce_sum(program(x, n) ** 3)


def pulled(f):
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x, n)
        return tape.gradient(y, x, unconnected_gradients="zero")

    return slope


def pushed(f):
    def slope(x, n):
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = f(x, n)
        return accumulator.jvp(y)

    return slope


def by_differences(f, x, step=1e-6):
    """The derivative by each element, whose small changes change no size."""
    rows = np.eye(len(x)) * step
    return np.array([(f(x + d) - f(x - d)) / (2 * step) for d in rows])


CASES = [pytest.param(name, n, id=f"{name}, {n}") for name in PROGRAMS for n in (0, 1, 2)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    program = PROGRAMS[name]
    f = tg.function(program)
    for x in VECTORS:
        for n in (0, 1, 2):
            expected = program(x, n)
            found = f(tg.constant(x), tg.constant(n))
            assert tuple(found.shape) == expected.shape
            assert_near(found, expected)
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "n"), CASES)
def test_derivatives(name, n):
    program, x = PROGRAMS[name], VECTORS[0]
    given = tg.constant(x), tg.constant(n)
    slope = by_differences(lambda x: np.sum(program(x, n) ** 3), x)
    f = cube_sum(program)
    gradients = [tg.function(pulled(f)), pulled(tg.function(f))]
    for gradient in gradients:
        np.testing.assert_allclose(gradient(*given), slope, rtol=1e-7, atol=1e-6)
    tangent = tg.function(pushed(program))(*given)
    along = by_differences(lambda step: program(x + step, n), np.zeros(1))[0]
    np.testing.assert_allclose(tangent, along, rtol=1e-7, atol=1e-6)
    second = tg.function(pulled(lambda x, n: tg.reduce_sum(pulled(f)(x, n) ** 2)))
    exact = gradients[0]
    squares = by_differences(lambda x: np.sum(exact(tg.constant(x), given[1]).numpy() ** 2), x)
    np.testing.assert_allclose(second(*given), squares, rtol=1e-6, atol=1e-5)
