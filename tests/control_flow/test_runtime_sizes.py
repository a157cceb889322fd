"""Sizes that only the run knows: a run is cut where a value becomes a size."""

import functools
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near, by_jax
from tracegraph.eager import backend
from tracegraph.effects import procedure

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
    "the rest by tg.slice": (
        lambda x: tg.slice(x, [count(x)], [-1]),
        lambda x: x[np.sum(x > 0) :],
    ),
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
    "a nested function of what may be empty": (
        lambda x: BESIDE_EACH_OTHER(positive(x)),
        lambda x: beside_each_other(x[x > 0]),
    ),
    "statistics": (
        lambda x: tg.reduce_sum(positive(x)) / tg.cast(tg.maximum(count(x), 1), tg.float64),
        lambda x: np.sum(x[x > 0]) / max(np.sum(x > 0), 1),
    ),
}
INNER = tg.function(positive)


@tg.function
def BESIDE_EACH_OTHER(x):
    pairs = tg.signal.frame(x, 2, 1)
    return tg.concat([tg.roll(x, 1, 0), x[1:] * x[:-1], tg.reshape(pairs, [-1]), x[::2]], 0)


def beside_each_other(x):
    pairs = np.stack([x[:-1], x[1:]], 1)
    return np.concatenate([np.roll(x, 1), x[1:] * x[:-1], pairs.ravel(), x[::2]])


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    program, reference = PROGRAMS[name]
    f = tg.function(program)
    for x in VECTORS:
        same(f(tg.constant(x)).numpy(), reference(x))
    for x in VECTORS[:2]:  # at top level each size has programs of its own
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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


OF_NOTHING = {
    "unique": lambda x: [*tg.unique(x)],
    "unique_with_counts": lambda x: [*tg.unique_with_counts(x)],
    "roll": lambda x: [tg.roll(x, 1, 0), tg.roll(x, [2], [0])],
    "cumsum": lambda x: [tg.cumsum(x, exclusive=True, reverse=flag) for flag in (False, True)],
    "order": lambda x: [tg.math.is_non_decreasing(x), tg.numpy.diff(x)],
    "gather": lambda x: [tg.gather(x, tg.argsort(x)), tg.gather_nd(x, tg.where(x > 0.0))],
}


def test_a_size_that_turns_out_to_be_0_or_1():
    @tg.function
    def found(x):
        x = tg.boolean_mask(x, x > 5.0)
        return [y for f in OF_NOTHING.values() for y in f(x)]

    for numbers in ([], [7.0], [9.0, 6.0, 9.0]):
        x = tg.constant([1.0, *numbers, 2.0])
        wanted = [y for f in OF_NOTHING.values() for y in f(tg.constant(numbers, tg.float32))]
        for y, want in zip(found(x), wanted, strict=True):
            np.testing.assert_array_equal(y, want)


def test_an_element_of_nothing_is_refused_by_the_run():
    taken = tg.function(lambda x, i: tg.gather(tg.boolean_mask(x, x > 5.0), i))
    assert taken(tg.constant([1.0, 7.0]), tg.constant([0])).numpy() == [7.0]
    with pytest.raises(tg.errors.ShapeError, match="does not have the shape"):
        taken(tg.constant([1.0, 2.0]), tg.constant([0]))


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


# ---------------------------------------------------------------- what else may stand around


def test_graph_text_and_summary_name_the_cut():
    @tg.function
    def kept(x):
        return tg.reduce_sum(tg.boolean_mask(x, x > 0))  # the line

    graph = kept.graph(SPEC)
    line = kept.python_function.__code__.co_firstlineno + 2
    text = graph.as_text()
    assert re.search(
        rf"runtime_size<size=.0>\(.4\) +: i32\[.0\] at test_runtime_sizes.py:{line}", text
    )
    assert tg.Graph.from_text(text).as_text() == text
    summary = graph.summary()
    assert [(cut.found, cut.line) for cut in summary.cuts] == [("?0", line)]
    assert summary.to_dict()["cuts"][0]["found"] == "?0"
    row = next(row for row in str(summary).splitlines() if row.startswith("?0 "))
    assert f"test_runtime_sizes.py:{line}" in row and "# the line" in row


def test_sizes_of_results_are_open_in_the_signature():
    f = tg.function(lambda x: (positive(x), tg.where(x > 0)))
    concrete = f.get_concrete_function(SPEC)
    assert [list(y.shape) for y in concrete.structured_outputs] == [[None], [None, 1]]


def test_a_loaded_function_finds_its_sizes(tmp_path):
    module = tg.Module()
    module.kept = tg.function(lambda x: positive(x) ** 2, input_signature=[SPEC])
    tg.saved_model.save(module, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model")
    for x in VECTORS:
        x = tg.constant(x)
        same(loaded.kept(x).numpy(), module.kept(x).numpy())
        slope = gradient_of(lambda x: tg.reduce_sum(loaded.kept(x)))
        same(slope(x).numpy(), np.where(x.numpy() > 0, 2 * x.numpy(), 0))


def test_equal_sizes_have_one_name():
    """Of one value, of equal values, and of values that are a known number apart."""

    @tg.function
    def sizes(x):
        n = count(x)
        together = tg.zeros([n]) + tg.ones([n]) + tg.cast(tg.range(n), tg.float32)
        longer = tg.concat([together, tg.zeros([2])], 0)
        return longer + tg.ones([n + 2]) + tg.ones([count(x) + 2])

    graph = sizes.graph(SPEC)
    assert graph.as_text().count("runtime_size<") == 1
    same(sizes(tg.constant(VECTORS[0])).numpy(), np.array([3.0, 4, 5, 2, 2]))


def test_an_empty_range_beside_a_size_that_is_a_known_number_larger():
    """What is below a size that was read may be negative, and a range is empty then."""
    f = tg.function(lambda n, x: (tg.zeros([n + 1]), tg.range(n), x[2 : n + 1]))
    for n in (-1, 0, 1, 3):
        zeros, numbers, part = f(tg.constant(n), tg.constant(np.arange(5.0)))
        assert zeros.shape == (n + 1,)
        same(numbers.numpy(), np.arange(n))
        same(part.numpy(), np.arange(5.0)[2 : n + 1])


def test_a_size_that_only_a_shape_has_stays():
    """Nothing takes the numbers of such a size, and yet it is read."""
    like = tg.function(lambda x: tg.zeros_like(INNER(x)))
    for x in VECTORS:
        assert like(tg.constant(x)).shape == (np.sum(x > 0),)


def test_sizes_that_must_be_equal_are_compared_by_the_run():
    f = tg.function(lambda x: x[x > 0] + x[x < 0])
    same(f(tg.constant([1.0, -2.0, 3.0, -5.0])).numpy(), np.array([-1.0, -2.0]))
    with pytest.raises(tg.errors.ShapeError, match=r"different shapes: f32\[3\] and f32\[1\]"):
        f(tg.constant([1.0, 2.0, 3.0, -5.0]))


def test_python_that_was_told_that_sizes_differ():
    """A run in which they are equal is refused, with the line of the question."""

    @tg.function
    def asked(x):
        y = x[x > 0]
        if y.shape[0] == 2:
            return tg.reduce_sum(y)
        return tg.reduce_max(y)

    assert asked(tg.constant([1.0, 2.0, 3.0])).numpy() == 3.0
    with pytest.raises(tg.errors.ShapeError, match="a size is 2, and it was compared with 2"):
        asked(tg.constant([1.0, 2.0, -3.0]))


def test_a_size_below_zero():
    f = tg.function(lambda n: tg.zeros([n]))
    with pytest.raises(tg.errors.InvalidArgumentError, match="a size is computed as -2") as caught:
        f(tg.constant(-2))
    assert "tg.zeros([n])" in str(caught.value) and "fix: " in str(caught.value)


@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_range_with_a_step_of_zero(zero):
    f = tg.function(lambda d: tg.range(0, 4, d))
    with pytest.raises(tg.errors.InvalidArgumentError, match="range: the step is 0") as caught:
        f(tg.constant(zero))
    assert "tg.range(0, 4, d)" in str(caught.value) and "such as 1 or -1" in str(caught.value)


def test_a_range_of_open_sizes():
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(x):
        n = x.shape[0]
        return tg.range(0, 9, n - 2), tg.range(0.0, n, 1.5)

    for n in (1, 3, 4):
        steps, floats = f(tg.zeros([n]))
        np.testing.assert_array_equal(steps, np.arange(0, 9, n - 2))
        np.testing.assert_array_equal(floats, np.arange(0.0, n, 1.5))
    with pytest.raises(tg.errors.InvalidArgumentError, match="range: the step is 0"):
        f(tg.zeros([2]))


def test_a_size_that_is_no_integer():
    with pytest.raises(tg.errors.ShapeError, match=r"zeros: a size is f32\[\]"):
        tg.function(lambda n: tg.zeros([n]))(tg.constant(2.0))
    with pytest.raises(tg.errors.ShapeError, match="number of its axes is not known"):
        tg.function(lambda n: tg.zeros(tg.range(n)))(tg.constant(2))


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: tg.while_loop(lambda s: s < 9.0, lambda s: s + tg.reduce_sum(x[x > s]), [0.0]),
        lambda x: tg.map_fn(lambda s: tg.reduce_sum(x[x > s]), x),
        lambda x: tg.map_fn(
            lambda s: tg.cond(s > 0, lambda: tg.reduce_sum(x[x > s]), lambda: s), x
        ),
    ],
)
def test_loops_refuse_sizes_with_the_line(loop):
    with pytest.raises(tg.errors.TraceError, match="a size that only the run knows") as caught:
        tg.function(loop)(tg.ones([3]))
    assert "test_runtime_sizes.py" in str(caught.value) and "fix: " in str(caught.value)


def left_early(x, n):
    kept = tg.boolean_mask(x, x > 0.0)
    if n < 1:
        return tg.reduce_sum(kept)
    if n > 2:
        return tg.reduce_sum(kept**2) * tg.reduce_prod(tg.boolean_mask(x, x > 1.0))
    xs, k = [], 0
    while k < n:
        xs.append(tg.cast(k + 1, x.dtype) * kept[0])
        k += 1
    return tg.reduce_sum(kept) + tg.reduce_sum(tg.stack(xs) ** 2)


def plain_left_early(x, n):
    kept = jnp.where(x > 0, x, 0)
    if n < 1:
        return jnp.sum(kept)
    if n > 2:
        return jnp.sum(kept**2) * jnp.prod(jnp.where(x > 1, x, 1))
    return jnp.sum(kept) + sum((k + 1) ** 2 for k in range(n)) * x[0] ** 2  # it is kept


def pulled(f):
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x, n)
        return tape.gradient(y, x)

    return slope


def pushed(f):
    def slope(x, n):
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = f(x, n)
        return accumulator.jvp(y)

    return slope


def second(f):
    return pulled(lambda x, n: tg.reduce_sum(pulled(f)(x, n) ** 2))


@pytest.mark.sweep
def test_a_branch_may_compute_a_size_that_its_results_do_not_have(tmp_path):
    x = VECTORS[0]
    f = tg.function(left_early, input_signature=[SPEC, tg.TensorSpec([], tg.int32)])
    model = tg.Module()
    model.f = f
    tg.saved_model.save(model, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model").f
    traced = [tg.function(of(left_early)) for of in (pulled, pushed, second)]
    at_top_level = [pulled(f), pushed(f), second(f), pulled(loaded)]
    for n in (0, 2, 5):
        given = tg.constant(x), tg.constant(n)
        plain = functools.partial(plain_left_early, n=n)
        square = lambda x, plain=plain: jnp.sum(jax.grad(plain)(x) ** 2)  # noqa: E731
        oracles = (plain, jax.grad(plain), jax.grad(square))
        value, slope, bend = by_jax(lambda x, fs=oracles: [f(x) for f in fs], x)
        for run in (f, loaded):
            assert_near(run(*given), value)
        for form, wanted in zip(traced, (slope, np.sum(slope), bend), strict=True):
            assert_near(form(*given), wanted)
        if n == 2:  # the branch with a list as long as the run makes it
            wanted = slope, np.sum(slope), bend, slope
            for form, one in zip(at_top_level, wanted, strict=True):
                assert_near(form(*given), one)


def test_a_branch_with_a_size_assigns_and_checks():
    total = tg.Variable(1.0, dtype=tg.float64)

    @tg.function
    def f(x, n):
        if n > 0:
            kept = tg.boolean_mask(x, x > 0.0)
            total.assign_add(tg.reduce_sum(kept))
            assert tg.reduce_sum(kept) < 6.0, "too large"
            total.assign_add(100.0)
        return n

    x = tg.constant(VECTORS[0])  # its positive elements are 5.1 in all
    for n, expected in ((0, 1.0), (1, 106.1)):
        assert int(f(x, tg.constant(n))) == n
        assert_near(total, expected)
    with pytest.raises(tg.errors.InvalidArgumentError, match="too large"):
        f(2.0 * x, tg.constant(1))
    assert_near(total, 116.3)


def told(x, n):
    if n > 0:
        kept = tg.boolean_mask(x, x > 0.0)
        tg.print("kept", tg.size(kept))
        return tg.reduce_sum(kept**3)
    tg.print("all")
    return tg.reduce_sum(x)


def test_a_branch_with_a_size_prints_once(capfd):
    x = tg.constant(VECTORS[0])
    kept = np.where(VECTORS[0] > 0, VECTORS[0], 0)
    plain = {1: ("kept 3", 3 * kept**2, 36 * kept**3), 0: ("all", np.ones(5), np.zeros(5))}
    for form in (told, tg.function(told)):
        for n, (text, slope, slope_of_square) in plain.items():
            for run, wanted in (
                (tg.function(pulled(form)), slope),
                (tg.function(pushed(form)), np.sum(slope)),
                (tg.function(second(form)), slope_of_square),
            ):
                assert_near(run(x, tg.constant(n)), wanted)
                assert capfd.readouterr().err == f"{text}\n"


def test_a_branch_with_a_size_calls_python():
    def f(x, n):
        if n > 0:
            total = tg.reduce_sum(tg.boolean_mask(x, x > 0.0))
            negative = tg.numpy_function(np.negative, [total], tg.float64)
            negative.set_shape([])
            return negative
        return x[0]

    x, n = tg.constant(VECTORS[0]), tg.constant(1)
    assert_near(tg.function(f)(x, n), -5.1)
    assert_near(tg.function(pulled(lambda x, n: f(x, n) * x[1]))(x, n), [0, -5.1, 0, 0, 0])


def test_a_size_in_a_branch_is_looked_at_by_check_numerics():
    def f(x, n):
        return tg.reduce_sum(tg.math.log(tg.boolean_mask(x, x < 2.0))) if n > 0 else x[0]

    for options in ({"check_numerics": True}, {"locate_numerics": True}):
        checked = tg.function(f, **options)
        assert float(checked(tg.constant(VECTORS[0]), tg.constant(0))) == 1.5
        with pytest.raises(tg.errors.NumericsError, match="log: f64"):
            checked(tg.constant(VECTORS[0]), tg.constant(1))


def test_parallel_loops_refuse_a_size_of_each_iteration():
    rows = tg.ones([2, 3])
    for mapped in (tg.vectorized_map, tg.function(tg.vectorized_map)):
        with pytest.raises(tg.errors.MissingRuleError, match="each iteration may have another"):
            mapped(lambda row: tg.reduce_sum(row[row > 0]), rows)
    z = tg.constant([1.0, -1.0, 2.0])
    shared = lambda rows: tg.vectorized_map(lambda r: r * z[z > 0], rows)  # noqa: E731
    for mapped in (shared, tg.function(shared)):
        same(mapped(tg.constant([1.0, 2.0])).numpy(), np.array([[1, 2], [2, 4]]))


def test_one_program_of_xla_has_no_such_sizes():
    f = tg.function(positive)
    asked = [
        lambda: f.as_jax()(VECTORS[0]),
        lambda: tg.export.stablehlo(f, SPEC),
        lambda: f.experimental_get_compiler_ir(tg.constant(VECTORS[0])),
    ]
    for ask in asked:
        with pytest.raises(tg.errors.TraceError, match="a size that only its runs know"):
            ask()


def test_custom_gradients_and_recomputation():
    def doubled(x):
        y = positive(x)
        return tg.reduce_sum(y**3), lambda g: g * 6.0 * tg.nn.relu(x) ** 2

    x = VECTORS[0]
    plain, custom = 3 * np.maximum(x, 0) ** 2, 6 * np.maximum(x, 0) ** 2
    again = tg.recompute_grad(lambda x: tg.reduce_sum(positive(x) ** 3))
    for fn, expected in ((tg.custom_gradient(doubled), custom), (again, plain)):
        for wrap in (lambda g: g, tg.function):
            same(wrap(gradient_of(fn))(tg.constant(x)).numpy(), expected)
        same(gradient_of(tg.function(fn))(tg.constant(x)).numpy(), expected)


def test_between_prints_and_python_functions(capsys):
    seen = []

    @tg.function
    def mixed(x):
        y = positive(x)
        tg.print("kept", tg.shape(y)[0])
        z = tg.numpy_function(lambda q: seen.append(q.shape) or q * 2, [y], tg.float64)
        z = tg.ensure_shape(z, [None])
        return tg.reduce_sum(z[z > 2.5])

    x = VECTORS[0]
    assert mixed(tg.constant(x)).numpy() == np.sum(2 * x[2 * x > 2.5])
    assert "kept 3" in capsys.readouterr().err
    assert seen[-1] == (3,)


def test_check_numerics_behind_a_cut():
    f = tg.function(lambda x: tg.reduce_sum(tg.math.log(positive(x) - 1.0)), check_numerics=True)
    with pytest.raises(FloatingPointError, match="log"):
        f(tg.constant(VECTORS[0]))


# ---------------------------------------------------------------- state


def test_a_training_step():
    v = tg.Variable(np.ones(5))

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(positive(v * x) ** 2)
        v.assign_sub(0.1 * tape.gradient(loss, v))
        return loss

    expected = np.ones(5)
    for x in VECTORS:
        kept = expected * x > 0
        loss = step(tg.constant(x)).numpy()
        np.testing.assert_allclose(loss, np.sum((expected * x)[kept] ** 2))
        expected = expected - 0.1 * np.where(kept, 2 * expected * x**2, 0)
        np.testing.assert_allclose(v.numpy(), expected)


def test_a_run_that_fails_behind_a_cut_assigns_nothing():
    v = tg.Variable(1.0)

    @tg.function
    def step(x):
        v.assign_add(1.0)
        y = x[x > 0] + x[x < 0]
        v.assign_add(tg.reduce_sum(y))
        return y

    with pytest.raises(tg.errors.ShapeError):
        step(tg.constant([1.0, 2.0, -3.0]))
    assert v.numpy() == 1.0
    step(tg.constant([1.0, -3.0]))
    assert v.numpy() == 0.0


def test_an_assignment_between_the_parts_is_not_lost(monkeypatch):
    """The run begins again where somebody has assigned what it read."""
    v = tg.Variable(10.0)

    @tg.function
    def step(x):
        v.assign_add(tg.reduce_sum(x[x > 0]) * 1.0)

    step(tg.constant([1.0, -2.0]))
    assert v.numpy() == 11.0
    reading, assigned = procedure.ProcedureRun.read_size, []

    def interrupted(run, *given):
        reading(run, *given)
        if not assigned:
            assigned.append(True)
            other = threading.Thread(target=lambda: v.assign(100.0))
            other.start()
            other.join()

    monkeypatch.setattr(procedure.ProcedureRun, "read_size", interrupted)
    step(tg.constant([1.0, -2.0]))
    assert v.numpy() == 101.0


def test_an_interrupt_between_the_parts_loses_nothing(monkeypatch):
    v = tg.Variable(10.0)
    step = tg.function(lambda x: v.assign_add(tg.reduce_sum(x[x > 0])))
    step(tg.constant([1.0, -2.0]))

    def struck(run, *given):
        raise KeyboardInterrupt

    monkeypatch.setattr(procedure.ProcedureRun, "read_size", struck)
    with pytest.raises(KeyboardInterrupt):
        step(tg.constant([1.0, -2.0]))
    monkeypatch.undo()
    assert v.numpy() == 11.0
    step(tg.constant([1.0, -2.0]))
    assert v.numpy() == 12.0


def test_a_variable_of_open_shape():
    v = tg.Variable([1.0], shape=tg.TensorShape([None]))
    keep = tg.function(lambda x: v.assign(x[x > 0]))
    for x in ([1.0, -2.0, 3.0], [-1.0, -1.0, 2.0], [-1.0, -1.0, -1.0]):
        keep(tg.constant(x))
        same(v.numpy(), np.array([number for number in x if number > 0]))


# ---------------------------------------------------------------- programs


def programs(monkeypatch):
    """A list that grows with every program that is made."""
    made, make = [], backend.program

    def counted(*given):
        made.append(given)
        return make(*given)

    monkeypatch.setattr(backend, "program", counted)
    return made


def test_a_program_for_each_size(monkeypatch):
    made = programs(monkeypatch)
    f = tg.function(lambda x: tg.reduce_sum(positive(x)))
    for x in (*VECTORS, *VECTORS):
        f(tg.constant(x))
    assert len(made) == 1 + len({np.sum(x > 0) for x in VECTORS})


def test_programs_for_buckets_of_sizes(monkeypatch):
    made = programs(monkeypatch)
    rng = np.random.default_rng(0)

    @tg.function(bucket_sizes="powers_of_two")
    def statistics(x):
        y = positive(x)
        longer = tg.concat([y, 2.0 * y], 0)
        return (
            *(y, tg.reduce_mean(y), tg.reduce_max(y), tg.cumsum(y), tg.sort(y), longer),
            *(tg.unique(tg.round(y)).y, tg.where(y > 1), tg.argsort(y, direction="DESCENDING")),
        )

    sizes = set()
    for _ in range(20):
        x = rng.normal(size=24)
        y = x[x > 0]
        sizes.add(len(y))
        expected = (
            *(y, y.mean(), y.max(), np.cumsum(y), np.sort(y), np.concatenate([y, 2 * y])),
            *(distinct(np.round(y))[0], np.argwhere(y > 1), np.argsort(-y, kind="stable")),
        )
        for found, wanted in zip(statistics(tg.constant(x)), expected, strict=True):
            same(found.numpy(), wanted)
    assert len(sizes) > 5
    # Two parts, three with the distinct elements and the positions, in buckets of 8, 16 and 32.
    assert len(made) <= 1 + 3 * 4


def test_buckets_and_gradients(monkeypatch):
    made = programs(monkeypatch)
    rng = np.random.default_rng(1)
    slope = tg.function(
        gradient_of(lambda x: tg.reduce_sum(positive(x) ** 3)), bucket_sizes="powers_of_two"
    )
    for _ in range(10):
        x = rng.normal(size=12)
        same(slope(tg.constant(x)).numpy(), np.where(x > 0, 3 * x**2, 0))
    assert len(made) <= 1 + 4


def test_buckets_do_not_stand_in_the_way_of_a_fixed_length():
    """What becomes shorter where a size grows is computed at the size itself."""
    fixed = tg.function(
        lambda x: tg.pad(positive(x), [[0, 5 - count(x)]]), bucket_sizes="powers_of_two"
    )
    for x in VECTORS:
        same(fixed(tg.constant(x)).numpy(), np.pad(x[x > 0], (0, np.sum(x < 0))))


@pytest.mark.parametrize("sizes", [[None], [0]])
def test_parts_of_nothing_whose_bounds_the_run_finds(sizes):
    @tg.function(input_signature=[tg.TensorSpec(sizes), tg.TensorSpec([], tg.int32)])
    def parts(x, n):
        return x[:n], x[n:], x[-n:]

    for n in (0, 1):
        assert [part.shape for part in parts(tg.zeros([0]), tg.constant(n))] == [(0,)] * 3


def test_a_function_that_is_given_nothing():
    """It was traced for open sizes, which are positive then."""
    inner = tg.function(
        lambda x: (*tg.unique(x), tg.cumsum(x, exclusive=True, reverse=True)),
    )
    outer = tg.function(lambda x: inner(tg.boolean_mask(x, x > 0)))
    assert [y.shape for y in outer(tg.constant([-1.0, -2.0]))] == [(0,)] * 3
    found = [y.numpy().tolist() for y in outer(tg.constant([3.0, -2.0, 1.0, 3.0]))]
    assert found == [[3.0, 1.0], [0, 1, 0], [4.0, 3.0, 0.0]]


@pytest.mark.filterwarnings("default:one trace of")
def test_many_sizes_are_told_of_once():
    f = tg.function(lambda x: tg.reduce_sum(positive(x)))
    xs = [tg.concat([tg.ones([k]), -tg.ones([7 - k])], 0) for k in range(7)]
    with pytest.warns(UserWarning, match="5 different sizes that its runs found") as told:
        for x in (*xs, *xs):
            f(x)
    assert len(told) == 1 and "Sizes so far: 0, 1, 2, 3, 4." in str(told[0].message)
    assert told[0].filename == __file__


def of_kept_rows(buckets, seen):
    """A step on the rows that a run keeps, of which Python sees some."""
    w = tg.Variable([0.5, -0.3])

    def doubled(rows):
        seen.append(rows.shape)
        return rows * 2.0

    @tg.function(bucket_sizes=buckets)
    def step(x):
        with tg.GradientTape() as tape:
            rows = tg.boolean_mask(x, x[:, 0] > 0)
            y = tg.linalg.matvec(rows, w)
            other = tg.py_function(doubled, [rows], tg.TensorSpec([None, 2]))
            loss = tg.reduce_mean(y**2) + tg.reduce_sum(other) * 0.1 + tg.reduce_max(y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, rows, other, tg.reduce_sum(tg.cumsum(y))

    return step, w


def test_buckets_of_parts_between_calls_of_python(monkeypatch):
    made, seen, seen_padded = programs(monkeypatch), [], []
    plain, w = of_kept_rows(None, seen)
    padded, v = of_kept_rows("powers_of_two", seen_padded)
    counts = []
    for k in (7, 5, 6, 8):
        x = tg.constant(np.random.default_rng(k).normal(size=(12, 2)).astype(np.float32))
        x = tg.concat([tg.abs(x[:k]), -tg.abs(x[k:])], 0)
        expected = plain(x)
        before = len(made)
        for own, wanted in zip(padded(x), expected, strict=True):
            np.testing.assert_allclose(own.numpy(), wanted.numpy(), rtol=1e-5)
        counts.append(len(made) - before)
    assert seen == seen_padded == [(k, 2) for k in (7, 5, 6, 8)]
    np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=1e-5)
    assert counts[0] > 0 and counts[1:] == [0, 0, 0]


def episode(buckets, lengths):
    """The gradient of a loop whose number of steps Python decides."""
    w = tg.Variable(0.5)
    left = []

    def moved(x):
        left[0] -= 1
        return np.float32(x * 0.9), left[0] == 0

    @tg.function(bucket_sizes=buckets)
    def learn(x):
        with tg.GradientTape() as tape:
            values = tg.TensorArray(tg.float32, size=0, dynamic_size=True)
            for t in tg.range(100):
                values = values.write(t, tg.tanh(w * x))
                x, is_over = tg.numpy_function(moved, [x], [tg.float32, tg.bool])
                x.set_shape([])
                if is_over:
                    break
            loss = tg.reduce_mean(tg.cumsum(values.stack()))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    for length in lengths:
        left[:] = [length]
        yield float(learn(tg.constant(1.0)))
    yield float(w)


def test_buckets_of_a_loop_that_calls_python(monkeypatch):
    lengths = [6, 5, 7, 8]
    expected = [*episode(None, lengths)]
    made = programs(monkeypatch)
    found = episode("powers_of_two", lengths)
    first = next(found)
    compiled = len(made)
    np.testing.assert_allclose([first, *found], expected, rtol=1e-5)
    assert len(made) == compiled


def test_a_part_that_cannot_be_padded_is_refused_before_python_is_called():
    called = []

    @tg.function(bucket_sizes="powers_of_two")
    def f(x):
        tg.py_function(lambda: called.append(1), [], [])
        rows = tg.boolean_mask(x, x[:, 0] > 0)
        return tg.linalg.det(rows @ tg.transpose(rows))

    f.get_concrete_function(tg.TensorSpec([3, 2]))
    with pytest.raises(tg.errors.ShapeError, match="cannot be computed on padded operands"):
        f(tg.ones([3, 2]))
    assert not called


def test_buckets_that_are_larger_than_the_whole():
    """A part of 9 to 12 elements is in a bucket of 16, and the whole has 12."""
    x = np.arange(12.0)

    @tg.function(bucket_sizes="powers_of_two")
    def parts(x, n):
        first, rest = tg.split(x, [n, 12 - n])
        slope = tg.grad(lambda x: tg.reduce_sum(x[:n] ** 2))(x)
        return x[:n], x[n:], x[:n:2], x[:n][3:], first, rest, slope

    for n in (4, 8, 9, 11, 12):
        expected = x[:n], x[n:], x[:n:2], x[:n][3:], x[:n], x[n:], np.where(x < n, 2 * x, 0)
        found = parts(tg.constant(x), tg.constant(n))
        for own, wanted in zip(found, expected, strict=True):
            same(own.numpy(), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reverse", [False, True])
def test_buckets_of_steps_of_a_scan(monkeypatch, reverse):
    """Padding changes no state: behind the last step, and before the first one backwards."""
    made = programs(monkeypatch)

    def recurrence(y):
        return tg.scan(
            lambda s, x: tg.sin(s + x) / x, y, tg.constant(0.5, tg.float64), reverse=reverse
        )

    @tg.function(bucket_sizes="powers_of_two")
    def states(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            s = recurrence(positive(x))
            loss = tg.reduce_sum(s**2)
        last = tg.foldl(lambda s, x: tg.sin(s + x) / x, positive(x), tg.constant(0.5, tg.float64))
        return s, last, tape.gradient(loss, x), tg.map_fn(lambda y: 1.0 / y, positive(x))

    def by_steps(y):
        found, s = [], 0.5
        for x in y:
            s = np.sin(s + x) / x
            found.append(s)
        return np.array(found)

    def in_order(y):
        return by_steps(y[::-1])[::-1] if reverse else by_steps(y)

    def loss(x):
        return np.sum(in_order(x[x > 0]) ** 2)

    rng = np.random.default_rng(0)
    for _ in range(8):
        x = rng.normal(size=20)
        x = x + 0.8 * np.sign(x)
        y = x[x > 0]
        found, last, slope, inverse = (t.numpy() for t in states(tg.constant(x)))
        same(found, in_order(y))
        same(last, by_steps(y)[-1])
        same(inverse, 1 / y)
        steps = 1e-6 * np.eye(20)
        central = [(loss(x + step) - loss(x - step)) / 2e-6 for step in steps]
        np.testing.assert_allclose(slope, central, rtol=1e-5, atol=1e-6)
    assert len(made) <= 1 + 3


def test_buckets_of_arguments_and_of_sizes():
    f = tg.function(
        lambda x: tg.reduce_sum(positive(x)),
        input_signature=[tg.TensorSpec([None], tg.float64)],
        bucket_sizes=[4, 8],
    )
    for x in (*VECTORS, VECTORS[0][:3], VECTORS[0][:1]):
        np.testing.assert_allclose(f(tg.constant(x)).numpy(), np.sum(x[x > 0]))


def test_open_arguments_and_sizes_of_the_run():
    f = tg.function(positive, input_signature=[tg.TensorSpec([None], tg.float64)])
    for x in (*VECTORS, VECTORS[0][:3], VECTORS[0][:1]):
        same(f(tg.constant(x)).numpy(), x[x > 0])


def in_a_loop(x):
    n = tg.shape(x)[0]
    total = x
    for _ in tg.range(3):
        total += tg.ones([n + 1], tg.float64)[:n] * total[: n // 2 + 1][0]
    return total


def in_a_branch(x):
    n = tg.shape(x)[0]
    return tg.cond(x[0] > 0.0, lambda: tg.fill([n], x[0]), lambda: x * x)


def in_an_array(x):
    n = tg.shape(x)[0]

    def row(factor):
        found = tg.TensorArray(tg.float64, size=n)
        for i in tg.range(n):
            found = found.write(i, factor * x[i])
        return found.stack()

    return tg.map_fn(row, x[:2])


BY_NUMPY = {
    in_a_loop: lambda x: x + 7.0 * x[0],
    in_a_branch: lambda x: np.full_like(x, x[0]) if x[0] > 0.0 else x * x,
    in_an_array: lambda x: x[:2, None] * x,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [5, None])
@pytest.mark.parametrize("f", BY_NUMPY)
def test_a_size_that_follows_from_shapes_outside_is_one_in_a_loop(f, size):
    function = tg.function(f, input_signature=[tg.TensorSpec([size], tg.float64)])
    for x in VECTORS if size else (VECTORS[0][:3], VECTORS[1]):
        np.testing.assert_allclose(function(tg.constant(x)), BY_NUMPY[f](x))
        slope = tg.grad(lambda x: tg.reduce_sum(function(x) * x[0]))(tg.constant(x))
        by_step = [
            np.sum(BY_NUMPY[f](x + step) * (x + step)[0])
            - np.sum(BY_NUMPY[f](x - step) * (x - step)[0])
            for step in 1e-6 * np.eye(len(x))
        ]
        np.testing.assert_allclose(slope, np.array(by_step) / 2e-6, rtol=1e-6, atol=1e-6)


def test_a_number_at_hand_is_a_size_in_a_loop_at_top_level():
    n = tg.constant(2)
    found = tg.map_fn(lambda x: x * tg.ones([n + 1]), tg.constant([1.0, 2.0]))
    np.testing.assert_array_equal(found, [[1.0] * 3, [2.0] * 3])


def test_sizes_of_captured_constants_are_known():
    """A loop cannot find a size, but what it takes from around it never changes."""
    for n in (2, 3):
        outer = tg.constant([n])

        @tg.function
        def traced(rows):
            shape = tg.constant([2])

            def body(i, x):
                y = tg.ones(tg.concat([shape, outer + 1], 0))  # noqa: B023
                assert y.shape == (2, n + 1)  # noqa: B023
                return i + 1, x + tg.reduce_sum(y)

            total = tg.while_loop(lambda i, _: i < 2, body, (0, 0.0))[1]
            return total, tg.zeros([rows])

        for rows in (4, 5):  # an argument is none of these
            total, zeros = traced(tg.constant(rows))
            assert total.numpy() == 4 * (n + 1) and zeros.shape == (rows,)
        branch = tg.cond(tg.constant(True), lambda: tg.ones(outer * 2), lambda: tg.zeros([2 * n]))  # noqa: B023
        assert branch.shape == (2 * n,)


def test_a_margin_that_turns_out_to_be_negative_is_refused():
    padded = tg.function(lambda x: tg.pad(x, [[0, x.shape[0] - 5]]))
    concrete = padded.get_concrete_function(tg.TensorSpec([None]))
    assert concrete(tg.ones([7])).numpy().tolist() == [1.0] * 7 + [0.0] * 2
    with pytest.raises(tg.errors.ShapeError, match="-2"):
        concrete(tg.ones([3]))


def test_an_item_of_a_shape_is_one_number():
    many = tg.constant([[5, 6], [7, 8]])
    traced = tg.function(lambda sizes: tg.zeros([sizes, 3]))
    for call, item in (
        (lambda: tg.zeros([many, 3]), "i32\\[2,2\\]"),  # not its first number
        (lambda: tg.reshape(tg.ones([6]), [np.array([2, 3]), 1]), "i64\\[2\\]"),
        (lambda: tg.layers.GRU(3).get_initial_state(tg.ones([2, 3, 4])), "f32\\[2,3,4\\]"),
        (lambda: traced(tg.constant([4, 5])), "i32\\[2\\]"),  # not two axes
    ):
        with pytest.raises(tg.errors.ShapeError, match=f"has an item {item}, which is not one"):
            call()
    assert tg.zeros([tg.constant([2]), np.array([3]), np.array(1)]).shape == [2, 3, 1]
    assert traced(tg.constant([4])).shape == [4, 3]


@pytest.mark.parametrize("wrap", [tg.function, lambda f: f], ids=["function", "top level"])
def test_rows_that_depend_on_a_size_of_the_run_are_refused(wrap):
    positive = tg.function(lambda x: tg.reduce_sum(tg.boolean_mask(x, x > 0.0) ** 2) * x)

    def slopes(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = positive(x)
        return tape.batch_jacobian(y, x)

    with pytest.raises(tg.errors.GradientError, match=r"only the run knows the size(?s:.*)fix: "):
        wrap(slopes)(tg.ones([2, 3]))


def test_a_function_that_returns_a_sum_of_sizes_is_saved_inside_another_one(tmp_path):
    @tg.function
    def halved_behind(x):
        count = tg.reduce_sum(tg.cast(x > 0.0, tg.int32))
        return tg.concat([x[:count], x[count:] * 0.5], 0)

    model = tg.Module()
    model.f = tg.function(lambda x: halved_behind(x) * 3.0, [tg.TensorSpec([None])])
    tg.saved_model.save(model, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model").f
    x = tg.constant([1.0, -2.0, 3.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = loaded(x)
    np.testing.assert_array_equal(y, [3.0, -6.0, 4.5])
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 3.0, 1.5])
