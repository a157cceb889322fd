"""Numbers at their edges: quotients, sums of narrow types, nan, and integers."""

import ml_dtypes
import numpy as np
import pytest

import tracegraph as tg

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
