"""Sizes that only the run knows: a run is cut where a value becomes a size."""

import signal
import threading

import jax
import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near, by_jax

VECTORS = [
    np.array([1.5, -2.2, 3.1, 0.5, -1.2]),
    np.array([-1.1, -2.2, -3.3, -0.5, -1.1]),  # no element is kept
    np.array([1.1, 2.2, 3.1, 0.5, 1.1]),  # all are
    np.array([-1.1, 2.2, -3.2, -0.5, -1.1]),
]
# The programs are decorated once for each test.
pytestmark = pytest.mark.filterwarnings("ignore:.*the function was decorated again")
SPEC = tg.TensorSpec([5], tg.float64)


def positive(x):
    return tg.boolean_mask(x, x > 0)


def count(x):
    return tg.reduce_sum(tg.cast(x > 0, tg.int32))


#: What a value decides the shape of, and the same by NumPy.
PROGRAMS = {
    "boolean_mask": (positive, lambda x: x[x > 0]),
    "index by a mask": (lambda x: x[x > 0] * 2.0, lambda x: x[x > 0] * 2),
    "mask of rows": (
        lambda x: tg.boolean_mask(tg.tile(x[:, None], [1, 2]), x > 0),
        lambda x: np.tile(x[:, None], (1, 2))[x > 0],
    ),
    "mask of columns": (
        lambda x: tg.boolean_mask(tg.tile(x[None], [2, 1]), x > 0, axis=1),
        lambda x: np.tile(x[None], (2, 1))[:, x > 0],
    ),
    "mask of a matrix": (
        lambda x: tg.boolean_mask(x[:, None] * x, x[:, None] * x > 0),
        lambda x: (x[:, None] * x)[x[:, None] * x > 0],
    ),
    "where": (lambda x: tg.where(x > 0), lambda x: np.argwhere(x > 0)),
    "where of a matrix": (
        lambda x: tg.where(x[:, None] * x > 1),
        lambda x: np.argwhere(x[:, None] * x > 1),
    ),
    "where of numbers": (lambda x: tg.where(tg.nn.relu(x)), lambda x: np.argwhere(x > 0)),
    "gather_nd(where)": (lambda x: tg.gather_nd(x, tg.where(x > 0)), lambda x: x[x > 0]),
    "zeros": (lambda x: tg.zeros([count(x), 2]), lambda x: np.zeros((np.sum(x > 0), 2))),
    "ones of a shape": (
        lambda x: tg.ones(tg.stack([count(x), 2])),
        lambda x: np.ones((np.sum(x > 0), 2)),
    ),
    "fill": (lambda x: tg.fill([count(x)], x[0]), lambda x: np.full(np.sum(x > 0), x[0])),
    "eye": (lambda x: tg.eye(count(x)), lambda x: np.eye(np.sum(x > 0))),
    "one_hot": (
        lambda x: tg.one_hot([0, 3], count(x)),
        lambda x: np.stack([np.arange(np.sum(x > 0)) == k for k in (0, 3)]),
    ),
    "broadcast_to": (
        lambda x: tg.broadcast_to(x, [count(x), 5]),
        lambda x: np.broadcast_to(x, (np.sum(x > 0), 5)),
    ),
    "tile": (lambda x: tg.tile(x, [count(x)]), lambda x: np.tile(x, np.sum(x > 0))),
    "pad": (
        lambda x: tg.pad(x, [[count(x), 1]]),
        lambda x: np.pad(x, (np.sum(x > 0), 1)),
    ),
    "range": (lambda x: tg.range(count(x)), lambda x: np.arange(np.sum(x > 0))),
    "range with bounds": (
        lambda x: tg.range(1, 2 * count(x), 3),
        lambda x: np.arange(1, 2 * np.sum(x > 0), 3),
    ),
    "range downwards": (
        lambda x: tg.range(count(x), -3, -2),
        lambda x: np.arange(np.sum(x > 0), -3, -2),
    ),
    "range of numbers": (
        lambda x: tg.range(0.5, tg.reduce_sum(x), 0.75, dtype=tg.float64),
        lambda x: np.arange(0.5, np.sum(x), 0.75),
    ),
    "linspace": (
        lambda x: tg.linspace(np.float64(0), 1.0, count(x) + 2),
        lambda x: np.linspace(0, 1, np.sum(x > 0) + 2),
    ),
    "slice to a bound": (lambda x: x[: count(x)], lambda x: x[: np.sum(x > 0)]),
    "slice from a bound": (lambda x: x[count(x) :], lambda x: x[np.sum(x > 0) :]),
    "slice between bounds": (
        lambda x: x[count(x) - 2 : tg.reduce_max([count(x), 2])],
        lambda x: x[np.sum(x > 0) - 2 : max(np.sum(x > 0), 2)],
    ),
    "slice with a step": (lambda x: x[count(x) :: 2], lambda x: x[np.sum(x > 0) :: 2]),
    "slice beyond the end": (lambda x: x[1 : count(x) + 3], lambda x: x[1 : np.sum(x > 0) + 3]),
    "tg.slice": (lambda x: tg.slice(x, [0], [count(x)]), lambda x: x[: np.sum(x > 0)]),
    "repeat with counts": (
        lambda x: tg.repeat(x, tg.cast(x > 0, tg.int32) * 2),
        lambda x: np.repeat(x, (x > 0) * 2),
    ),
    "repeat by one count": (
        lambda x: tg.repeat(x, count(x)),
        lambda x: np.repeat(x, np.sum(x > 0)),
    ),
    "repeat along an axis": (
        lambda x: tg.repeat(x[:, None] * [1.0, 2.0], tg.cast(x > 0, tg.int32), axis=0),
        lambda x: np.repeat(x[:, None] * [1.0, 2.0], x > 0, axis=0),
    ),
    "reshape": (
        lambda x: tg.reshape(tg.zeros([2 * count(x)]), [count(x), 2]),
        lambda x: np.zeros((np.sum(x > 0), 2)),
    ),
    "reshape with -1": (
        lambda x: tg.reshape(tg.tile(x, [count(x)]), [-1, 5]),
        lambda x: np.tile(x, np.sum(x > 0)).reshape(-1, 5),
    ),
    "split": (
        lambda x: tg.split(x, [count(x), 5 - count(x)])[1],
        lambda x: x[np.sum(x > 0) :],
    ),
    "sequence_mask": (
        lambda x: tg.sequence_mask([count(x), 1]),
        lambda x: np.arange(max(np.sum(x > 0), 1)) < np.array([[np.sum(x > 0)], [1]]),
    ),
    "bincount": (
        lambda x: tg.math.bincount(tg.cast(tg.abs(x), tg.int32)),
        lambda x: np.bincount(np.abs(x).astype(int)),
    ),
    "segment_sum": (
        lambda x: tg.math.segment_sum(x, tg.cast(tg.sort(tg.abs(x)), tg.int32)),
        lambda x: np.bincount(np.sort(np.abs(x)).astype(int), x),
    ),
    "unique": (lambda x: tg.unique(tg.abs(x)).y, lambda x: distinct(np.abs(x))[0]),
    "unique's numbers": (lambda x: tg.unique(tg.abs(x)).idx, lambda x: distinct(np.abs(x))[1]),
    "unique's counts": (
        lambda x: tg.unique_with_counts(tg.abs(x)).count,
        lambda x: distinct(np.abs(x))[2],
    ),
    "dynamic_partition": (
        lambda x: tg.dynamic_partition(x, tg.cast(x > 0, tg.int32), 2)[1],
        lambda x: x[x > 0],
    ),
    "two sizes": (
        lambda x: tg.concat([x[x > 0], x[x < 0], x[x > 1]], 0),
        lambda x: np.concatenate([x[x > 0], x[x < 0], x[x > 1]]),
    ),
    "a size of a size": (
        lambda x: positive(positive(x) - 1.0),
        lambda x: (x[x > 0] - 1)[x[x > 0] > 1],
    ),
    "a nested function": (
        lambda x: tg.concat([INNER(x), INNER(x - 1.0)], 0),
        lambda x: np.concatenate([x[x > 0], (x - 1)[x > 1]]),
    ),
    "statistics": (
        lambda x: tg.reduce_sum(positive(x)) / tg.cast(tg.maximum(count(x), 1), tg.float64),
        lambda x: np.sum(x[x > 0]) / max(np.sum(x > 0), 1),
    ),
}
INNER = tg.function(positive)


def distinct(x):
    """NumPy's distinct elements in the order of their occurrence, with numbers and counts."""
    y, first, numbers, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    return y[order], np.argsort(order)[numbers], counts[order]


def same(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    program, reference = PROGRAMS[name]
    f = tg.function(program)
    for x in VECTORS:
        same(f(tg.constant(x)).numpy(), reference(x))
        same(program(tg.constant(x)).numpy(), reference(x))
    assert f.experimental_get_tracing_count() == 1


#: Those of them that depend on x smoothly.
SMOOTH = [
    *("boolean_mask", "index by a mask", "mask of rows", "mask of columns", "mask of a matrix"),
    *("gather_nd(where)", "fill", "broadcast_to", "tile", "pad", "slice to a bound"),
    *("slice between bounds", "slice with a step", "repeat with counts", "repeat along an axis"),
    *("reshape with -1", "split", "segment_sum", "dynamic_partition", "two sizes"),
    *("a size of a size", "a nested function", "statistics", "slice beyond the end"),
]


def cube_sum(program):
    return lambda x: tg.reduce_sum(program(x) ** 3)


def gradient_of(fn):
    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        return tape.gradient(y, x, unconnected_gradients="zero")

    return gradient


def by_differences(reference, x, step=1e-6):
    """The derivative by each element, whose small changes change no size."""
    rows = np.eye(len(x)) * step
    return np.array([(reference(x + d) - reference(x - d)) / (2 * step) for d in rows])


@pytest.mark.parametrize("where", ["tape inside", "tape outside", "top level"])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(name, where):
    program, reference = PROGRAMS[name]
    f = cube_sum(program)
    derivative = {
        "tape inside": tg.function(gradient_of(f)),
        "tape outside": gradient_of(tg.function(f)),
        "top level": gradient_of(f),
    }[where]
    for x in VECTORS[:3]:
        expected = by_differences(lambda x: np.sum(reference(x) ** 3), x)
        np.testing.assert_allclose(derivative(tg.constant(x)).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_and_tangents(name):
    program, _ = PROGRAMS[name]
    f, x, v = cube_sum(program), VECTORS[0], np.linspace(0.5, 1.5, 5)

    def product(x, v):
        with tg.GradientTape() as tape:
            tape.watch(x)
            slope = tg.reduce_sum(gradient_of(f)(x) * v)
        return tape.gradient(slope, x, unconnected_gradients="zero")

    def tangent(x, v):
        with tg.autodiff.ForwardAccumulator(x, v) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    given = tg.constant(x), tg.constant(v)
    slope = gradient_of(f)
    expected = by_differences(lambda x: slope(tg.constant(x)).numpy(), x) @ v
    np.testing.assert_allclose(tg.function(product)(*given).numpy(), expected, atol=1e-5)
    expected = slope(tg.constant(x)).numpy() @ v
    np.testing.assert_allclose(tg.function(tangent)(*given).numpy(), expected, atol=1e-9)


def test_a_jacobian():
    @tg.function
    def jacobian(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = positive(x) ** 2
        return tape.jacobian(y, x)

    for x in VECTORS:
        same(jacobian(tg.constant(x)).numpy(), np.diag(2 * x)[x > 0])


def test_the_oracle_is_jax():
    """By JAX the mask must be known; where it is, so are the derivatives."""
    x = VECTORS[0]
    keeps = np.flatnonzero(x > 0)
    expected = by_jax(jax.hessian(lambda x: jax.numpy.sum(jax.numpy.sin(x[keeps]) ** 3)), x)

    @tg.function
    def hessian(x):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = tg.reduce_sum(tg.sin(positive(x)) ** 3)
            slope = inner.gradient(y, x)
        return outer.jacobian(slope, x)

    assert_near(hessian(tg.constant(x)).numpy(), expected)
