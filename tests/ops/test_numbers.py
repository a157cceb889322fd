"""Numbers at their edges: quotients, sums of narrow types, nan, and integers."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tests.ops.test_ops as suite
import tracegraph as tg
from tests.derived_graphs import vjp_graph
from tests.op_table import CASES
from tracegraph.core.types import float64

pytestmark = [
    # Each case decorates a function of its own, from one line.
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls:UserWarning"),
    # Numbers are rounded as users see them, after all that compilers do to a quotient or a sum.
    pytest.mark.usefixtures("optimised"),
]

COUNT = 1 << 20
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def wide(array):
    """The values in the type in which NumPy's oracle computes: float32 for those of 16 bits."""
    return array if array.dtype.itemsize > 2 else array.astype(np.float32)


def rounded(function, *arrays):
    """function(*arrays), computed once and rounded to the type of the arrays. For 16 bits the
    detour is harmless: 24 digits are enough to round a quotient or a root to 11 or 8."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*map(wide, arrays))).astype(arrays[0].dtype)


def same(found, expected):
    """Whether two arrays hold the same numbers, where XLA may flush the smallest ones to 0."""
    found, expected = wide(np.asarray(found)), wide(np.asarray(expected))
    is_tiny = np.abs(expected) <= TINY[str(np.asarray(expected).dtype)]
    return (found == expected) | (np.isnan(found) & np.isnan(expected)) | (is_tiny & (found == 0))


TINY = {name: float(ml_dtypes.finfo(name).tiny) for name in ("float32", "float64")}


def drawn(dtype, seed, low=-60, high=60):
    """Numbers of all magnitudes from 2 ** low to 2 ** high, of both signs."""
    rng = np.random.default_rng(seed)
    numbers = np.exp2(rng.uniform(low, high, COUNT)) * rng.choice([-1.0, 1.0], COUNT)
    return numbers.astype(dtype)


# Quotients.

CONSTANT = 41.3
QUOTIENTS = {
    "by a scalar": (lambda x, y, z, s: x / s, lambda x, y, z, s: rounded(np.divide, x, s)),
    "by a constant": (
        lambda x, y, z, s: x / CONSTANT,
        lambda x, y, z, s: rounded(np.divide, x, np.asarray(CONSTANT, x.dtype)),
    ),
    "by a row": (
        lambda x, y, z, s: tg.reshape(tg.reshape(x, [1024, 1024]) / y[:1024], [-1]),
        lambda x, y, z, s: rounded(np.divide, x.reshape(1024, 1024), y[:1024]).ravel(),
    ),
    "of a constant": (
        lambda x, y, z, s: CONSTANT / x,
        lambda x, y, z, s: rounded(np.divide, np.asarray(CONSTANT, x.dtype), x),
    ),
    "element by element": (
        lambda x, y, z, s: tg.divide(x, y),
        lambda x, y, z, s: rounded(np.divide, x, y),
    ),
    "xdivy": (
        lambda x, y, z, s: tg.math.xdivy(x, y),
        lambda x, y, z, s: rounded(np.divide, x, y),
    ),
    "reciprocal": (
        lambda x, y, z, s: tg.math.reciprocal(x),
        lambda x, y, z, s: rounded(np.divide, np.ones_like(x), x),
    ),
    "power -1 of a root": (
        lambda x, y, z, s: tg.sqrt(tg.abs(x)) ** -1,
        lambda x, y, z, s: rounded(np.divide, np.ones_like(x), rounded(np.sqrt, np.abs(x))),
    ),
    "by a root": (
        lambda x, y, z, s: x / tg.sqrt(tg.abs(y)),
        lambda x, y, z, s: rounded(np.divide, x, rounded(np.sqrt, np.abs(y))),
    ),
    "of a quotient": (
        lambda x, y, z, s: x / y / z,
        lambda x, y, z, s: rounded(np.divide, rounded(np.divide, x, y), z),
    ),
    "by a quotient": (
        lambda x, y, z, s: x / (y / z),
        lambda x, y, z, s: rounded(np.divide, x, rounded(np.divide, y, z)),
    ),
    "of a quotient by a scalar": (
        lambda x, y, z, s: x / s / s,
        lambda x, y, z, s: rounded(np.divide, rounded(np.divide, x, s), s),
    ),
    "of truth values": (
        lambda x, y, z, s: tg.cast(x > 0, x.dtype) / s,
        lambda x, y, z, s: rounded(np.divide, (x > 0).astype(x.dtype), s),
    ),
    "mean": (
        lambda x, y, z, s: tg.reduce_mean(tg.reshape(x, [-1, 1]), axis=1) / 41.0,
        lambda x, y, z, s: rounded(np.divide, x, np.asarray(41, x.dtype)),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", QUOTIENTS)
def test_every_quotient_is_rounded_correctly(form, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    high = 4 if dtype == np.float16 else 20  # so that no product of two leaves the range
    arrays = [drawn(dtype, seed, -high, high) for seed in range(3)]
    arrays.append(np.asarray(41.3, dtype))
    function, oracle = QUOTIENTS[form]
    found = tg.function(function)(*map(tg.constant, arrays)).numpy()
    off = ~same(found, oracle(*arrays))
    assert not off.any(), f"{off.sum()} of {off.size} quotients are off"


EDGES = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_of_infinities_zeros_nan_and_denormal_numbers(dtype, run):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info = ml_dtypes.finfo(dtype)
    edges = [*EDGES, float(info.tiny), float(info.tiny) / 4, float(info.max), float(info.eps)]
    values = np.asarray(edges, dtype)
    is_denormal = (values != 0) & (np.abs(wide(values)) < float(info.tiny))
    flushed = np.where(is_denormal, np.copysign(dtype.type(0), values), values).astype(dtype)

    def quotients(x, ys):
        return [[x / ys[k], x / float(values[k])] for k in range(len(values))]

    found = run(quotients, tg.constant(values), tg.constant(values))
    for divisor, flushed_divisor, pair in zip(values, flushed, found, strict=True):
        expected = rounded(np.divide, values, divisor)
        # XLA's programs for CPUs read and write denormal numbers of 32 and 64 bits as 0.
        on_cpu = rounded(np.divide, flushed, flushed_divisor)
        is_tiny = np.abs(wide(expected)) < float(info.tiny)
        for y in pair:
            y = y.numpy()
            ok = same(y, expected) | same(y, on_cpu) | (is_tiny & (wide(y) == 0))
            assert ok.all(), (divisor, values[~ok], y[~ok], expected[~ok])


def test_a_number_over_itself_is_one(run):
    whole = np.arange(1, 2049, dtype=np.float32)
    for divisor in (41.0, 49.0, 107.0):
        found = run(lambda x, d=divisor: x * d / d, tg.constant(whole))
        np.testing.assert_array_equal(found.numpy(), whole)
    assert (tg.constant(41.0) / 41).numpy() == 1
    assert run(lambda x: x / x[40], tg.constant(whole)).numpy()[40] == 1


@pytest.mark.parametrize("divisor", [41.0, 2e38])
def test_what_runs_through_a_quotient_is_divided_too(run, divisor):
    """The reciprocal of the second divisor is denormal, which XLA for CPUs reads as 0."""
    gs = np.array([41.0, -49.0, 57.3, 1e30], np.float32)

    def cotangent(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x / divisor
        return tape.gradient(y, x, output_gradients=x)

    def tangent(x):
        with tg.autodiff.ForwardAccumulator(x, x) as accumulator:
            y = x / divisor
        return accumulator.jvp(y)

    found = run(lambda x: (cotangent(x), tangent(x)), tg.constant(gs))
    for y in found:
        np.testing.assert_array_equal(y.numpy(), gs / np.float32(divisor))


def test_normalised_and_softmax_divide_as_numpy_does(run):
    """e ** x is XLA's own; what is checked is the division by a sum that is broadcast."""
    x = tg.constant(np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32))

    def parts(x):
        powers = tg.exp(x - tg.reduce_max(x, axis=1, keepdims=True))
        return tg.nn.softmax(x), powers, tg.reduce_sum(powers, axis=1, keepdims=True)

    found, powers, total = (y.numpy() for y in run(parts, x))
    np.testing.assert_array_equal(found, powers / total)


def test_floor_division_by_zero_is_infinite_as_in_numpy(run):
    x = np.array([1.0, -1.0, 0.0, 41.0, -7.5], np.float32)
    for divisor in (0.0, 41.0, 2.5):
        with np.errstate(all="ignore"):
            expected = np.floor_divide(x, np.float32(divisor))
        found = run(lambda x, d=divisor: x // d, tg.constant(x))
        np.testing.assert_array_equal(found.numpy(), expected)


# Sums of 16 bits.

MANY = 10_000
NARROW = {"float16": tg.float16, "bfloat16": tg.bfloat16}


def gradient_of(function, x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def ones(*shape):
    return lambda dtype: tg.ones(shape, dtype)


#: For each sum a function of ones, the ones, and the value of each of its elements.
SUMS = {
    "all": (tg.reduce_sum, ones(MANY), MANY),
    "all of a matrix": (tg.reduce_sum, ones(100, 100), MANY),
    "rows": (lambda x: tg.reduce_sum(x, 1), ones(8, MANY), MANY),
    "columns": (lambda x: tg.reduce_sum(x, 0), ones(MANY, 8), MANY),
    "middle": (lambda x: tg.reduce_sum(x, 1), ones(2, MANY, 4), MANY),
    "outer": (lambda x: tg.reduce_sum(x, [0, 2]), ones(100, 4, 100), MANY),
    "mean": (lambda x: tg.reduce_mean(x, 0), ones(MANY, 8), 1),
    "logsumexp": (lambda x: tg.exp(tg.reduce_logsumexp(x - 1.0)) / 100.0, ones(MANY), 100),
    "norm": (tg.norm, ones(MANY), 100),
    "cumsum": (lambda x: tg.cumsum(x)[-1:], ones(MANY), MANY),
    "long rows of cumsum": (lambda x: tg.cumsum(x)[-1:], ones(MANY, 64), MANY),
    "matmul": (lambda x: x @ tg.transpose(x), ones(4, MANY), MANY),
    "batched matmul": (lambda x: tg.matmul(x, x, transpose_b=True), ones(2, 4, MANY), MANY),
    "matvec": (lambda x: tg.linalg.matvec(x, x[0]), ones(4, MANY), MANY),
    "einsum": (lambda x: tg.einsum("bi,bi->b", x, x), ones(4, MANY), MANY),
    "einsum of one": (lambda x: tg.einsum("bi->b", x), ones(4, MANY), MANY),
    "tensordot": (lambda x: tg.tensordot(x, x, [[0], [0]]), ones(MANY, 4), MANY),
    "segments": (
        lambda x: tg.math.unsorted_segment_sum(x, tg.zeros([MANY], tg.int32), 1),
        ones(MANY),
        MANY,
    ),
    "means of segments": (
        lambda x: tg.math.unsorted_segment_mean(x * 30.0, tg.zeros([MANY], tg.int32), 1),
        ones(MANY),
        30,
    ),
    "scatter": (
        lambda x: tg.tensor_scatter_nd_add(x[:1], tg.zeros([MANY - 1, 1], tg.int32), x[1:]),
        ones(MANY),
        MANY,
    ),
    "average pooling": (lambda x: tg.nn.avg_pool2d(x, 100, 100, "VALID"), ones(1, 100, 100, 1), 1),
    "convolution": (
        lambda x: tg.nn.conv2d(x, tg.ones([100, 100, 1, 1], x.dtype), 1, "VALID"),
        ones(1, 100, 100, 1),
        MANY,
    ),
    "gradient of a broadcast scalar": (
        lambda x: gradient_of(lambda b: b * tg.ones([MANY], b.dtype), x),
        ones(),
        MANY,
    ),
    "gradient of a bias": (
        lambda x: gradient_of(lambda b: b + tg.ones([MANY, 8], b.dtype), x),
        ones(8),
        MANY,
    ),
    "gradient of gather": (
        lambda x: gradient_of(lambda b: tg.gather(b, tg.zeros([MANY], tg.int32)), x)[:1],
        ones(2),
        MANY,
    ),
    "gradient of what all steps of a scan share": (
        lambda x: gradient_of(lambda b: tg.map_fn(lambda e: e * b, tg.ones([MANY], b.dtype)), x),
        ones(),
        MANY,
    ),
    "gradient of what all steps of a loop share": (
        lambda x: gradient_of(
            lambda b: tg.while_loop(
                lambda k, _: k < MANY,
                lambda k, total: (k + 1, total + tg.cast(b, tg.float32)),
                (0, 0.0),
            )[1],
            x,
        ),
        ones(),
        MANY,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_16_bits_accumulate_in_float32(name, dtype):
    function, make, expected = SUMS[name]
    x = make(NARROW[dtype])
    expected = np.asarray(expected, np.float32).astype(x.dtype.numpy_dtype)
    for found in (function(x), tg.function(lambda: function(make(NARROW[dtype])))()):
        assert found.dtype is x.dtype
        tolerance = 0 if name not in ("logsumexp",) else 0.1
        np.testing.assert_allclose(wide(found.numpy()), wide(expected), rtol=tolerance)


SPREADS = {
    "reduce_variance": lambda x: tg.math.reduce_variance(x, 0),
    "moments": lambda x: tg.nn.moments(x, [0])[1],
    "reduce_std": lambda x: tg.math.reduce_std(x, 0) ** 2,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", SPREADS)
def test_variances_of_16_bits_are_those_of_their_values(name, dtype):
    numbers = np.random.default_rng(0).uniform(90, 300, (MANY, 3))
    x = numbers.astype(NARROW[dtype].numpy_dtype)
    found = wide(SPREADS[name](tg.constant(x)).numpy())
    unit = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(found, np.var(x.astype(np.float64), axis=0), rtol=2 * unit)


@pytest.mark.parametrize("dtype", NARROW)
def test_running_sums_of_16_bits_are_rounded_once(dtype):
    x = np.random.default_rng(0).uniform(0, 1, (500, 2)).astype(NARROW[dtype].numpy_dtype)
    found = tg.cumsum(tg.constant(x)).numpy()
    expected = np.cumsum(x.astype(np.float64), axis=0).astype(np.float32).astype(x.dtype)
    unit = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(wide(found), wide(expected), rtol=unit / 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", NARROW)
def test_second_derivatives_of_16_bits_agree_with_jax(dtype):
    """Through matmul, sums, running sums and scatters, against JAX in double precision."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4, 5)).astype(NARROW[dtype].numpy_dtype)
    at = np.array([0, 2, 0], np.int32)

    def ours(x):
        y = tg.cumsum(tg.matmul(x, x, transpose_b=True), 1) ** 2
        return tg.reduce_sum(tg.gather(y, at) ** 2, 0)

    def theirs(x):
        y = jnp.cumsum(x @ x.T, 1) ** 2
        return jnp.sum(y[at] ** 2, 0)

    def slope(x):
        return gradient_of(ours, x)

    found = gradient_of(slope, tg.constant(x)).numpy()
    with jax.enable_x64(True):
        total = jax.grad(lambda x: jnp.sum(theirs(x)))
        second = jax.jit(jax.grad(lambda x: jnp.sum(total(x))))
        expected = np.asarray(second(x.astype(np.float64)))
    scale = np.abs(expected).max()
    unit = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(wide(found) / scale, expected / scale, atol=8 * unit)
    as_jax = tg.function(ours).as_jax()
    by_jax = jax.jit(jax.grad(lambda x: jnp.sum(as_jax(x).astype(jnp.float32))))(x)
    np.testing.assert_allclose(
        wide(np.asarray(by_jax)), wide(slope(tg.constant(x)).numpy()), rtol=8 * unit, atol=0.3
    )


# Means of integers.

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_mean_of_integers_is_the_true_mean_rounded_to_zero(dtype, run):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(info.min, info.max, (300, 6), dtype=dtype, endpoint=True)
    x[:, 0], x[:, 1] = info.max, info.min  # the sum leaves the range of the type
    x[:, 2] >>= info.bits // 2
    x[::2, 3], x[1::2, 3] = info.max, info.min
    if info.min < 0:
        x[:, 4] = -7
        x[::2, 4] = -8
    expected = [math.trunc(Fraction(sum(map(int, column)), 300)) for column in x.T]

    def means(x):
        return tg.reduce_mean(x, 0), tg.reduce_mean(x), tg.reduce_mean(x, 0, keepdims=True)

    found, mean, kept = run(means, tg.constant(x))
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy(), np.array(expected, dtype))
    whole = math.trunc(Fraction(sum(map(int, x.ravel())), x.size))
    assert int(mean) == whole
    np.testing.assert_array_equal(kept.numpy()[0], found.numpy())
    open_size = tg.function(tg.reduce_mean, input_signature=[tg.TensorSpec([None, 6], dtype)])
    assert int(open_size(x)) == whole
    assert tg.reduce_mean(tg.constant(x[:0], dtype), axis=0).numpy().tolist() == [0] * 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_means_of_segments_of_integers_do_not_wrap(dtype, run):
    info = np.iinfo(dtype)
    x = np.array([info.max] * 4 + [info.min, info.max, info.min, 1], dtype)
    exact = [Fraction(sum(map(int, part)), len(part)) for part in (x[:4], x[4:6], x[6:])]
    ids = np.array([0, 0, 0, 0, 1, 1, 2, 2])

    def means(x):
        return tg.math.unsorted_segment_mean(x, ids, 3), tg.math.segment_mean(x, ids)

    found, whole = (y.numpy() for y in run(means, tg.constant(x)))
    assert found.dtype == (np.float32 if info.bits < 32 else np.float64)
    close = 2 * np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, list(map(float, exact)), rtol=close)
    assert whole.dtype == x.dtype  # as TensorFlow has it
    if info.bits < 64:
        assert whole.tolist() == [*map(math.trunc, exact)]
    np.testing.assert_allclose(whole.astype(float), list(map(float, exact)), atol=1, rtol=close)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [x for x in INTEGERS if "64" not in x])
def test_means_of_windows_of_integers_do_not_wrap(dtype, run):
    info = np.iinfo(dtype)
    x = np.array([info.max] * 4 + [info.min, info.max, info.min, 1], dtype)
    pool = lambda x: tg.nn.avg_pool(tg.reshape(x, [1, 8, 1]), 4, 4, "SAME")  # noqa: E731
    expected = x.reshape(2, 4).mean(1, dtype=np.float64)
    np.testing.assert_allclose(run(pool, tg.constant(x)).numpy().ravel(), expected, rtol=1e-6)


# Not a number.

NAN = math.nan


def slopes(function, *xs):
    """The derivatives of the sum of the results by each operand."""
    xs = [tg.constant(x) for x in xs]
    with tg.GradientTape() as tape:
        tape.watch(xs)
        y = function(*xs)
    found = tape.gradient(y, xs)
    return [dx.numpy() for dx in found]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reduce", [tg.reduce_max, tg.reduce_min])
def test_an_extreme_that_is_nan_has_the_derivative_nan(reduce, run):
    x = np.array([[1.0, NAN, 3.0], [1.0, 5.0, 5.0]], np.float32)
    found = run(lambda x: gradient_of(lambda x: reduce(x, 1), x), tg.constant(x)).numpy()
    assert np.isnan(found[0]).all()
    expected = [0, 0.5, 0.5] if reduce is tg.reduce_max else [1, 0, 0]
    np.testing.assert_array_equal(found[1], expected)
    whole = run(lambda x: gradient_of(reduce, x), tg.constant(x[0])).numpy()
    assert np.isnan(whole).all()


def test_the_slope_of_relu_at_nan_is_0_and_its_value_nan():
    x = np.array([NAN, -1.0, 0.0, 2.0, 7.0], np.float32)
    for function, expected in ((tg.nn.relu, [0, 0, 0, 1, 1]), (tg.nn.relu6, [0, 0, 0, 1, 0])):
        assert np.isnan(function(x).numpy()[0])
        np.testing.assert_array_equal(slopes(function, x)[0], expected)


def test_a_maximum_of_nan_and_a_number_gives_neither_a_derivative():
    x, y = [NAN, 1.0, 1.0, 2.0, 3.0], [1.0, NAN, 1.0, 1.0, 4.0]
    np.testing.assert_array_equal(slopes(tg.maximum, x, y), [[0, 0, 1, 1, 0], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(slopes(tg.minimum, x, y), [[0, 0, 1, 0, 1], [0, 0, 0, 1, 0]])


def test_truncated_division_of_floating_numbers_is_the_quotient_truncated(run):
    x = np.array([1.0, -1.0, 0.0, 7.5, -7.5, np.inf, NAN], np.float32)
    y = np.array([0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0], np.float32)
    with np.errstate(all="ignore"):
        expected = np.trunc(x / y)
    np.testing.assert_array_equal(run(tg.truncatediv, tg.constant(x), tg.constant(y)), expected)


def test_of_bounds_in_the_wrong_order_the_lower_one_wins(run):
    t = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32)
    low, high = np.full(5, 1.0, np.float32), np.full(5, -1.0, np.float32)
    np.testing.assert_array_equal(run(tg.clip_by_value, tg.constant(t), 1.0, -1.0), low)
    found = slopes(tg.clip_by_value, t, low, high)
    np.testing.assert_array_equal(found, [np.zeros(5), np.ones(5), np.zeros(5)])
    # In the right order the derivative at a bound goes to what is clipped.
    found = slopes(tg.clip_by_value, t, high, low)
    np.testing.assert_array_equal(found, [[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])


def test_the_derivative_of_a_power_by_its_exponent_is_nan_where_the_power_is(run):
    x = np.array([NAN, 2.0, -2.0, 0.0, NAN, 2.0, 0.0, -2.0], np.float32)
    y = np.array([2.0, NAN, 0.5, NAN, 0.5, 3.0, 2.0, 2.0], np.float32)
    (_, by_y) = slopes(tg.pow, x, y)
    expected = [*[NAN] * 5, 8 * math.log(2), 0, 0]
    np.testing.assert_allclose(by_y, expected, rtol=1e-6)


# Determinants of singular matrices.


def minors(a):
    """The derivative of the determinant by each element: the signed determinants of the minors."""
    n = a.shape[-1]
    y = np.empty_like(a)
    for i, j in np.ndindex(n, n):
        rest = np.delete(np.delete(a, i, axis=-2), j, axis=-1)
        y[..., i, j] = (-1) ** (i + j) * np.linalg.det(rest)
    return y


def second_minors(a):
    """The second derivatives: h[i, j, k, l] is what the minor without row i and column j has."""
    n = a.shape[-1]
    h = np.zeros((n,) * 4, a.dtype)
    for i, j in np.ndindex(n, n):
        rest = np.delete(np.delete(a, i, axis=0), j, axis=1)
        rows, columns = (np.delete(np.arange(n), k) for k in (i, j))
        h[i, j][np.ix_(rows, columns)] = (-1) ** (i + j) * minors(rest)
    return h


def singular_matrices(n, is_complex):
    """Of every rank below n, and some whose first pivots are 0."""
    rng = np.random.default_rng(n)

    def normal(*shape):
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)

    yield from (normal(n, rank) @ normal(rank, n) for rank in range(n))
    without_column, without_row = normal(n, n), normal(n, n)
    without_column[:, 0] = 0
    without_row[n // 2] = 0
    yield from (without_column, without_row)
    repeated = normal(n, n)
    repeated[-1] = repeated[0]
    yield repeated


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_derivatives_of_the_determinant_hold_where_it_is_0(n, is_complex):
    stack = np.stack([*singular_matrices(n, is_complex)])
    found = gradient_of(tg.linalg.det, tg.constant(stack)).numpy()
    expected = minors(stack)
    np.testing.assert_allclose(np.conj(found), expected, atol=1e-9 * np.abs(expected).max())
    for matrix, one in zip(stack, expected, strict=True):  # where rounding may hide that it is 0
        found_one = gradient_of(tg.linalg.det, tg.constant(matrix)).numpy()
        np.testing.assert_allclose(np.conj(found_one), one, atol=1e-9 * np.abs(expected).max())
    if not is_complex:
        by_jax = jax.jit(jax.vmap(jax.grad(jnp.linalg.det)))
        with jax.enable_x64(True):
            slopes_of_jax = np.asarray(by_jax(jnp.asarray(stack)))
        np.testing.assert_allclose(found[:n], slopes_of_jax[:n], atol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_derivatives_of_the_determinant_hold_where_rounding_hides_that_it_is_0(n):
    """The last pivot is about as large as the rounding errors of the others."""
    rng = np.random.default_rng(2)
    slopes = tg.function(lambda a: gradient_of(tg.linalg.det, a))
    for a in rng.normal(size=(20, n, n)):
        a[-1] = a[0]
        np.testing.assert_allclose(slopes(tg.constant(a)), minors(a), atol=1e-11)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_second_derivatives_of_the_determinant_hold_where_it_is_0(n):
    for a in (*singular_matrices(n, False), np.random.default_rng(0).standard_normal((n, n))):
        found = tg.hessian(tg.linalg.det)(tg.constant(a)).numpy()
        expected = second_minors(a)
        np.testing.assert_allclose(found, expected, atol=1e-9 * max(1, np.abs(expected).max()))


@pytest.mark.sampled(1)
def test_a_regular_matrix_beside_a_singular_one_keeps_its_derivative(run):
    a = np.stack([np.diag([1.0, 2.0, 3.0, 4.0]), np.ones((4, 4))]).astype(np.float32)
    found = run(lambda a: gradient_of(tg.linalg.det, a), tg.constant(a)).numpy()
    expected = [np.diag([24.0, 12.0, 8.0, 6.0]), np.zeros((4, 4))]
    np.testing.assert_allclose(found, expected, atol=1e-5)


# Products of integers.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")])
def test_products_of_narrow_integers_are_exact_in_a_wider_type(dtypes, run):
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, shape, t, endpoint=True)
        for t, shape in zip(dtypes, ((3, 50), (50, 2)))
    )
    if dtypes[0][0] == dtypes[1][0]:
        with pytest.raises(tg.errors.DTypeError, match=r"would leave the range of u?int8"):
            tg.matmul(a, b)
    if dtypes != ("int8", "int8"):
        with pytest.raises(tg.errors.DTypeError, match="not wider"):
            tg.matmul(a, b, output_type=tg.int8)
    for output in ("int32", "int64"):
        found = run(
            lambda a, b, t=output: tg.matmul(a, b, output_type=t), tg.constant(a), tg.constant(b)
        )
        assert found.dtype.name == output
        np.testing.assert_array_equal(found.numpy(), a.astype(int) @ b.astype(int))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_products_of_wide_integers_have_their_type(dtype):
    a = np.arange(6, dtype=dtype).reshape(2, 3)
    for y in (tg.matmul(a, a.T), tg.constant(a) @ a.T, tg.einsum("ij,kj->ik", a, a)):
        assert y.dtype.name == dtype
        np.testing.assert_array_equal(y.numpy(), a @ a.T)


def test_products_of_16_bits_may_be_asked_for_in_32():
    a = tg.constant(np.full((1, 300), 1.001), tg.float16)
    found = tg.matmul(a, a, transpose_b=True, output_type=tg.float32)
    exact = (a.numpy().astype(np.float64) ** 2).sum()
    np.testing.assert_allclose(found.numpy(), [[exact]], rtol=1e-6)
    assert found.dtype is tg.float32


# Every op with a nan in each operand, against JAX's derivative of its lowering.


def with_nan(case, dtype, place):
    """The operands of a row of the table, the middle element of one replaced by nan."""
    arrays = [array.copy() for array in case.values(dtype)]
    flat = arrays[place].reshape(-1)
    flat[flat.size // 2] = NAN
    return arrays


def check_nan(case):
    if case.order < 1 or "f" not in case.kinds or not suite.has_derivative(case, float64):
        return
    graph = suite.traced(case, float64)
    reverse = vjp_graph(graph)
    run, pull = suite.graph_function(graph), suite.graph_function(reverse)
    count = len(graph.inputs)
    for place, x in enumerate(graph.inputs):
        if not x.type.dtype.is_floating or 0 in x.type.shape:
            continue
        arrays = suite.arguments(reverse, with_nan(case, float64, place))

        def compare(*values):
            found = pull(*values)
            expected = suite.jax_vjp(run, values[:count], values[count:])
            return [("vjp", *pair) for pair in zip(found, expected, strict=True)]

        yield suite.Trial(f"{case.op.name} nan in {place}", compare, arrays, case.tolerance)


#: Where our derivatives are not those of JAX, and why.
OTHER_AT_NAN = {
    "abs": "nan, as the sign of nan is; JAX takes the derivative of the number that is not there",
    "reduce_max": "nan for all, as in TensorFlow and in jnp.max; that of lax.reduce_max is 0",
    "reduce_min": "as reduce_max",
    "scatter_max": "nan where the extreme is; that of JAX is 0",
    "scatter_min": "as scatter_max",
    "recurrence": "nan times the 0 before the first element is nan",
    "cofactor": "nan for all; the polynomial of JAX has numbers where it does not read the nan",
    "floor_div": "0 everywhere: a step function has no slope; JAX differentiates the remainder",
    "stop_gradient": "0, which is what it is for",
    "scatter_mul": "JAX has no derivative of it",
    "while": "JAX has no reverse mode for it",
    **dict.fromkeys(
        ["betainc", "expm", "igamma", "igammac", "sqrtm", "zeta"],
        "JAX has no derivative of it, or by one operand",
    ),
    "bessel_i1e": "nan; that of JAX is a number",
    "spence": "JAX's is nan below 1, where the derivative is finite",
    "tridiagonal_solve": "nan for all; JAX has 0 for the elements that are not read",
}


@pytest.mark.sweep
def test_nan_stays_nan_in_the_derivatives_of_every_op():
    cases = [case for case in CASES if not case.is_extra]
    chunks = [cases[k : k + suite.CHUNK] for k in range(0, len(cases), suite.CHUNK)]
    found = [problem for chunk in chunks for problem in suite.failures(check_nan, chunk)]
    assert {problem.split(" nan in")[0] for problem in found} == set(OTHER_AT_NAN), found


def norm_of(x):
    return jnp.sqrt(jnp.sum(x * x))


#: Public functions and JAX's, of one operand.
UNARY = {
    **{
        name: (getattr(tg.math, name), getattr(jnp, name))
        for name in (
            "abs",
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "cos",
            "cosh",
            "exp",
            "expm1",
            "log",
            "log1p",
            "reciprocal",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "square",
            "tan",
            "tanh",
            "cumsum",
            "cumprod",
        )
    },
    **{
        name: (getattr(tg.nn, name), getattr(jax.nn, name))
        for name in (
            "relu",
            "relu6",
            "sigmoid",
            "softplus",
            "softmax",
            "log_softmax",
            "silu",
            "elu",
            "selu",
            "leaky_relu",
            "gelu",
        )
    },
    "reduce_sum": (tg.reduce_sum, jnp.sum),
    "reduce_mean": (tg.reduce_mean, jnp.mean),
    "reduce_max": (tg.reduce_max, jnp.max),
    "reduce_min": (tg.reduce_min, jnp.min),
    "reduce_prod": (tg.reduce_prod, jnp.prod),
    "reduce_variance": (tg.math.reduce_variance, jnp.var),
    "reduce_std": (tg.math.reduce_std, jnp.std),
    "reduce_logsumexp": (tg.reduce_logsumexp, jax.nn.logsumexp),
    "norm": (tg.norm, norm_of),
    "erf": (tg.math.erf, jax.scipy.special.erf),
    "erfc": (tg.math.erfc, jax.scipy.special.erfc),
    "lgamma": (tg.math.lgamma, jax.scipy.special.gammaln),
    "digamma": (tg.math.digamma, jax.scipy.special.digamma),
    "rsqrt": (tg.math.rsqrt, jax.lax.rsqrt),
    "sort": (tg.sort, jnp.sort),
    "power 3": (lambda x: x**3, lambda x: x**3),
    "power -2": (lambda x: x**-2, lambda x: x**-2),
    "power 0": (lambda x: tg.pow(x, 0.0), lambda x: jnp.power(x, 0.0)),
    "power 0.5": (lambda x: x**0.5, lambda x: x**0.5),
    "clip": (lambda x: tg.clip_by_value(x, 0.1, 0.7), lambda x: jnp.clip(x, 0.1, 0.7)),
    "where": (lambda x: tg.where(x > 0.3, x, 2 * x), lambda x: jnp.where(x > 0.3, x, 2 * x)),
}
#: Of two operands.
BINARY = {
    name: (getattr(tg.math, ours), getattr(jnp, name))
    for name, ours in {
        **{name: name for name in ("add", "subtract", "multiply", "divide", "pow", "maximum")},
        "minimum": "minimum",
        "mod": "floormod",
        "arctan2": "atan2",
        "fmod": "truncatemod",
    }.items()
}
#: Where a public function has another derivative at nan than JAX's function of the name, and why.
OTHER_PUBLIC_AT_NAN = {
    "abs": "see the op",
    "elu": "1 at nan, as in TensorFlow, where nan is not below 0; that of JAX is nan",
    "selu": "scale at nan, as in TensorFlow; that of JAX is nan",
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_nan_stays_nan_in_public_functions(name):
    ours, theirs = UNARY.get(name) or BINARY[name]
    numbers = [np.array([0.2, 0.4, 0.6, 0.8]), np.array([0.5, 0.3, 0.9, 0.7])]
    numbers = numbers[: 1 if name in UNARY else 2]
    if name == "acosh":
        numbers[0] += 1
    for place in range(len(numbers)):
        xs = [x.copy() for x in numbers]
        xs[place][1] = NAN
        value = ours(*map(tg.constant, xs))  # computed with the slopes, in one program
        found = [*slopes(ours, *xs)]
        found.insert(0, value.numpy())
        with jax.enable_x64(True):
            total = jax.grad(lambda *v: jnp.sum(theirs(*v)), tuple(range(len(xs))))
            both = lambda *v, total=total: (theirs(*v), *total(*v))  # noqa: E731
            # In one program XLA makes 0 of JAX's infinity times 0.
            both = both if name.startswith("reduce_m") else jax.jit(both)
            expected = [np.asarray(v) for v in both(*xs)]
        masks = [(np.isnan(a), np.isnan(b)) for a, b in zip(found, expected, strict=True)]
        assert (masks[0][0] == masks[0][1]).all(), "a value"
        same_masks = all((a == b).all() for a, b in masks[1:])
        assert same_masks != (name in OTHER_PUBLIC_AT_NAN), (found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_of_16_bits_are_added_in_float32(dtype):
    first = tg.constant([2048.0, 0.5], dtype)  # of which 1 is less than a half of the last bit
    total = tg.function(lambda x, one: tg.add_n([*[one] * 64, x]))(first, tg.ones([2], dtype))
    assert total.dtype.name == dtype
    assert total.numpy().astype(float).tolist() == [2112.0, 64.5]


# ---------------------------------------------------------------- 8 floating bits


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_8_floating_bits_are_kept_moved_and_converted(name, tmp_path):
    dtype, own = getattr(tg, name), np.dtype(getattr(ml_dtypes, name))
    numbers = np.float32([[0.3, -3.3, 1e-3], [7.7, 1000.0, np.nan]])
    x, rounded = tg.constant(numbers, dtype), numbers.astype(own).astype(np.float32)
    variable = tg.Variable(tg.zeros([2, 3], dtype))
    variable.assign(tg.cast(numbers, dtype))
    moved = tg.function(lambda x: tg.transpose(tg.concat([x, x[:1]], 0)))(x)
    tg.saved_model.save(_holder(variable), tmp_path)
    loaded = tg.saved_model.load(tmp_path).v
    for kept in (x, variable, loaded):
        assert kept.dtype is dtype and kept.numpy().dtype == own
        np.testing.assert_array_equal(tg.cast(kept, tg.float32), rounded)
    expected = np.concatenate([rounded, rounded[:1]]).T
    np.testing.assert_array_equal(moved.numpy().astype(np.float32), expected)
    graph = tg.function(lambda: tg.cast(tg.identity(x), tg.float64)).graph()
    assert tg.Graph.from_text(graph.as_text()).as_text() == graph.as_text()
    literal = tg.function(lambda: tg.constant([0.3, np.nan], dtype)).graph().as_text()
    assert tg.Graph.from_text(literal).as_text() == literal
    with pytest.raises(tg.errors.LoadError):
        tg.Graph.from_text(literal.replace("0.3125", "1e9"))


def _holder(variable):
    module = tg.Module()
    module.v = variable
    return module


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + x,
        lambda x: x * 2.0,
        lambda x: x @ x,
        lambda x: x < x,
        lambda x: x == x,
        tg.reduce_sum,
        tg.reduce_mean,
        tg.reduce_max,
        tg.exp,
        tg.sort,
        lambda x: tg.einsum("ij,jk->ik", x, x),
        lambda x: tg.tensor_scatter_nd_add(x, [[0]], x[:1]),
        lambda x: tg.concat([x, tg.cast(x, tg.float16)], 0),
        lambda x: tg.Variable(x).assign_add(x),
    ],
)
def test_8_floating_bits_are_not_computed_with(compute):
    x = tg.ones([2, 2], tg.float8_e5m2)
    with pytest.raises(tg.errors.DTypeError, match=r"tg\.cast\(x, tg\.float(32|16)\)"):
        compute(x)


def test_no_derivative_goes_through_8_bits():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.cast(tg.cast(x, tg.float8_e5m2), tg.float32)
    assert tape.gradient(y, x) is None


#: A vector is multiplied before it is added, which XLA's code for a loop over other axes fuses: so
#: what it computes twice has two values.
ROUNDED_IN_TWO_WAYS = {
    "product": lambda x: tg.reduce_prod(1 + x * 0.01, 0) * 0.3 + x,
    "exponential": lambda x: tg.reduce_prod(tg.exp(x * 0.1), 0) * 0.3 + x,
}
EXTREMES = {
    "norm": lambda x: tg.norm(x, ord=np.inf, axis=1),
    "reduce_max": lambda x: tg.reduce_max(tg.abs(x), axis=0),
    "reduce_min": lambda x: tg.reduce_min(tg.abs(x), axis=1),
    "segments": lambda x: tg.math.unsorted_segment_max(x, np.arange(64) // 7, 10),
    "scatter": lambda x: tg.tensor_scatter_nd_min(x, [[1], [3]], 2.0 * x[:2]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("inner", ROUNDED_IN_TWO_WAYS.values(), ids=ROUNDED_IN_TWO_WAYS.keys())
def test_an_extreme_is_found_though_xla_rounds_its_operand_in_two_ways(
    run, optimised, inner, extreme
):
    x = tg.constant(np.random.default_rng(0).standard_normal((64, 64)))
    direction = np.random.default_rng(1).standard_normal((64, 64))

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            total = tg.reduce_sum(tg.sin(extreme(inner(x))))
        return tape.gradient(total, x)

    def total(x):
        return float(tg.reduce_sum(tg.sin(extreme(inner(tg.constant(x))))))

    step = 1e-7
    moved = (total(x + step * direction) - total(x - step * direction)) / (2 * step)
    found = float(np.vdot(run(slope, x), direction))
    assert abs(found - moved) < 1e-5 * max(1.0, abs(moved))
