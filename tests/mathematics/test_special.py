"""Special functions against SciPy, over their whole range, and their derivatives."""

import numpy as np
import pytest
import scipy.special

import tracegraph as tg
from tracegraph.testing import check_gradients

# Functions are made anew for each example.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

WIDE = np.concatenate([np.logspace(-12, 4, 80), np.linspace(0.05, 60, 300)])
SPECIAL = tg.math.special
INF, NAN = np.inf, np.nan


def near(found, expected, tolerance, scale=None):
    """Equal relative to `scale`, or to the values themselves."""
    found = np.asarray(found)
    assert np.isfinite(expected).all()
    error = np.abs(found - expected) / (np.abs(expected) if scale is None else scale)
    assert (error <= tolerance).all(), (error.max(), np.argmax(error))


#: For each function SciPy's, and where it is tried. Waves are compared relative to their height.
FUNCTIONS = {
    "bessel_i0": (scipy.special.i0, WIDE[WIDE < 600]),
    "bessel_i1": (scipy.special.i1, WIDE[WIDE < 600]),
    "bessel_i0e": (scipy.special.i0e, WIDE),
    "bessel_i1e": (scipy.special.i1e, WIDE),
    "bessel_j0": (scipy.special.j0, WIDE),
    "bessel_j1": (scipy.special.j1, WIDE),
    "bessel_y0": (scipy.special.y0, WIDE),
    "bessel_y1": (scipy.special.y1, WIDE),
    "bessel_k0": (scipy.special.k0, WIDE[WIDE < 600]),
    "bessel_k1": (scipy.special.k1, WIDE[WIDE < 600]),
    "bessel_k0e": (scipy.special.k0e, WIDE),
    "bessel_k1e": (scipy.special.k1e, WIDE),
    "dawsn": (scipy.special.dawsn, WIDE),
    "expint": (scipy.special.expi, np.concatenate([-WIDE[WIDE < 600], WIDE[WIDE < 600]])),
    "fresnel_cos": (lambda x: scipy.special.fresnel(x)[1], WIDE[WIDE < 100]),
    "fresnel_sin": (lambda x: scipy.special.fresnel(x)[0], WIDE[WIDE < 100]),
    "spence": (scipy.special.spence, WIDE),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    function, x = FUNCTIONS[name]
    expected = function(x)
    waves = np.minimum(1, x**-0.5) if name[-2:] in ("j0", "j1", "y0", "y1") else 0
    roots = np.abs(x - 1) if name == "spence" else np.ones_like(x) * (name == "expint")
    scale = np.abs(expected) + (x > 1) * waves + roots
    near(getattr(SPECIAL, name)(x), expected, 3e-12, scale)
    x = x[::3].astype(np.float32)
    kept = (x > 1e-30) & (np.abs(expected[::3]) < 1e30) & (np.abs(expected[::3]) > 1e-30)
    x, expected, scale = x[kept], function(x.astype(np.float64))[kept], scale[::3][kept]
    found = getattr(SPECIAL, name)(x)
    assert found.dtype is tg.float32
    near(found, expected, 2e-4 if x.max() > 1e3 else 3e-5, scale)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_16_bits(name):
    found = getattr(SPECIAL, name)(tg.constant([0.5, 2.0], tg.bfloat16))
    assert found.dtype is tg.bfloat16
    near(tg.cast(found, tg.float64), FUNCTIONS[name][0](np.array([0.5, 2.0])), 0.01)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "at_zero", "is_odd"),
    [
        *(("bessel_i0", 1.0, False), ("bessel_i1", 0.0, True), ("bessel_j0", 1.0, False)),
        *(("bessel_i0e", 1.0, False), ("bessel_i1e", 0.0, True), ("bessel_j1", 0.0, True)),
        *(("dawsn", 0.0, True), ("fresnel_cos", 0.0, True), ("fresnel_sin", 0.0, True)),
    ],
)
def test_negative_numbers_and_zero(name, at_zero, is_odd):
    function, x = getattr(SPECIAL, name), np.array([0.3, 3.0, 30.0])
    np.testing.assert_array_equal(function(-x), (-1 if is_odd else 1) * function(x).numpy())
    np.testing.assert_allclose(function(0.0), at_zero, atol=3e-7)
    assert np.isnan(function(np.nan).numpy())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["k0", "k1", "k0e", "k1e", "y0", "y1"])
def test_where_bessel_functions_end(name):
    found = getattr(SPECIAL, f"bessel_{name}")([0.0, -1.0, INF, NAN])
    np.testing.assert_array_equal(found, [-INF if "y" in name else INF, NAN, 0.0, NAN])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_functions_of_the_smallest_and_the_largest_numbers(dtype):
    """Where x / 2 is rounded to 0, and where e ** x is infinite."""
    tiny, most = np.finfo(dtype).tiny, np.finfo(dtype).max
    steep = [SPECIAL.bessel_y1(tiny).numpy() * -np.pi / 2, SPECIAL.bessel_k1(tiny)]
    np.testing.assert_allclose(steep, 1 / np.array([tiny, tiny]), rtol=1e-6)
    assert SPECIAL.bessel_k1e(tiny).numpy() > 0.9 / tiny
    assert SPECIAL.expint(most).numpy() == INF
    # e ** 714 is infinite in float64, as e ** 91 is in float32.
    x = dtype(714 if dtype is np.float64 else 91)
    expected = np.exp(x / 2) * (1 + 1 / x + 2 / x**2 + 6 / x**3) / x * np.exp(x / 2)
    np.testing.assert_allclose(SPECIAL.expint(x), expected, rtol=1e-5)


def test_bessel_functions_where_two_forms_meet():
    x = np.concatenate([np.linspace(1.5, 2.5, 101), np.linspace(4, 6, 101)])
    for name in ("k0", "k1", "k0e", "k1e"):
        near(getattr(SPECIAL, f"bessel_{name}")(x), getattr(scipy.special, name)(x), 2e-15)
    for name in ("j0", "j1", "y0", "y1"):
        function, expected = getattr(SPECIAL, f"bessel_{name}"), getattr(scipy.special, name)(x)
        near(function(x), expected, 2e-15, np.ones_like(x))


def test_where_quantiles_and_integrals_end():
    x = np.array([0.0, -1e-300, 1e-300])
    quantiles, integrals = tg.math.ndtri([0.0, 1.0]), SPECIAL.expint(x)
    np.testing.assert_array_equal(quantiles, [-INF, INF])
    np.testing.assert_allclose(integrals, scipy.special.expi(x), rtol=1e-14)


def derivative(fn, order):
    for _ in range(order):
        fn = tg.grad(fn)
    return fn


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # By the power series.
        ("bessel_i0", [1.0, 0.0, 1 / 2, 0.0, 3 / 8]),
        ("bessel_i1", [0.0, 1 / 2, 0.0, 3 / 8, 0.0]),
        ("bessel_j0", [1.0, 0.0, -1 / 2, 0.0, 3 / 8]),
        ("bessel_j1", [0.0, 1 / 2, 0.0, -3 / 8, 0.0]),
        ("dawsn", [0.0, 1.0, 0.0, -4.0, 0.0]),
    ],
)
def test_derivatives_at_zero(name, expected):
    function = getattr(SPECIAL, name)
    found = [derivative(function, k)(tg.constant(0.0, tg.float64)) for k in range(5)]
    np.testing.assert_allclose([y.numpy() for y in found], expected, atol=1e-14)


def test_derivatives_of_spence_at_one():
    """log(x) / (1 - x) = -1 + (x - 1) / 2 - (x - 1) ** 2 / 3 + ..."""
    one = tg.constant(1.0, tg.float64)
    found = [derivative(SPECIAL.spence, k)(one) for k in range(4)]
    np.testing.assert_allclose([y.numpy() for y in found], [0.0, -1.0, 0.5, -2 / 3], atol=1e-13)


def test_an_infinite_slope_that_nobody_asks_for():
    for fn in (SPECIAL.bessel_k0, SPECIAL.bessel_y1, SPECIAL.expint):
        found = tg.grad(lambda x, fn=fn: tg.reduce_sum(tg.where(x > 0.0, fn(x), 0.0)))
        assert np.isfinite(found(tg.constant([0.0, 1.0])).numpy()).all()


# The gamma and beta families.


A = np.array([1e-3, 0.5, 1.0, 2.5, 30.0, 400.0])
X = np.array([1e-6, 0.3, 1.0, 4.0, 29.0, 410.0])


def test_incomplete_gamma_functions():
    a, x = np.meshgrid(A, X)
    for fn, expected in (
        (tg.math.igamma, scipy.special.gammainc(a, x)),
        (tg.math.igammac, scipy.special.gammaincc(a, x)),
    ):
        near(fn(a, x), expected, 1e-11, np.maximum(expected, 1e-290))
    found = tg.math.igamma(tg.constant(2.0), [[1.0], [3.0]])
    assert found.shape == (2, 1) and found.dtype is tg.float32
    assert tg.math.igamma(2.0, 0.0).numpy() == 0.0
    slopes = tg.grad(tg.math.igamma, argnums=(0, 1))(tg.constant(1.0), tg.constant(0.0))
    np.testing.assert_allclose(slopes[1], 1.0, rtol=1e-6)


def test_derivatives_of_the_incomplete_gamma_function_by_its_parameter():
    """A whole number a ends the fraction by which the function is computed, not its derivative."""
    a, x = np.meshgrid([0.1, 1.0, 2.0, 3.0, 50.0], [1e-10, 0.5, 1.01, 2.0, 5.0, 60.0])
    step = 1e-3 * a
    values = [scipy.special.gammainc(a + k * step, x) for k in (-2, -1, 1, 2)]
    expected = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    found = tg.grad(lambda a: tg.reduce_sum(tg.math.igamma(a, x)))(tg.constant(a))
    near(found, expected, 1e-7, np.abs(expected) + 1e-10)


def test_the_upper_gamma_function_where_the_lower_one_is_near_one():
    a, x = np.meshgrid(np.logspace(-12, 0, 25), [1e-30, 1e-12, 1e-3, 0.3, 0.49, 0.51, 0.8, 1.0])
    near(tg.math.igammac(a, x), scipy.special.gammaincc(a, x), 1e-14)
    assert tg.math.igammac(2.0, 0.0).numpy() == 1.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_functions_of_infinity(dtype):
    """SciPy has other values of zeta(inf, q) than the limit."""
    expected = {
        "igamma": ([INF, 2.0, INF, INF], [1.0, INF, 0.0, NAN], [0.0, 1.0, 0.0, NAN]),
        "igammac": ([INF, 2.0, INF, INF], [1.0, INF, 0.0, NAN], [1.0, 0.0, 1.0, NAN]),
        "zeta": ([INF, INF, INF, 3.0, NAN], [1.0, 2.0, 0.5, INF, 1.0], [1.0, 0.0, INF, 0.0, NAN]),
    }
    pairs = [(SPECIAL.expint(np.array([INF, -INF, NAN], dtype)), [INF, 0.0, NAN])]
    for name, (first, second, values) in expected.items():
        found = getattr(tg.math, name)(np.array(first, dtype), np.array(second, dtype))
        pairs.append((found, values))
    for found, values in pairs:
        np.testing.assert_array_equal(found, values)


def test_the_inverse_error_function():
    y = np.concatenate([np.linspace(-0.999, 0.999, 201), 1 - np.logspace(-15, -1, 60)])
    near(tg.math.erfinv(y[y != 0]), scipy.special.erfinv(y[y != 0]), 1e-14)
    ends = tg.math.erfinv(np.array([1.0, -1.0, 1.5, NAN, 0.0]))
    np.testing.assert_array_equal(ends, [INF, -INF, NAN, NAN, 0.0])


def test_the_incomplete_beta_function():
    a, b, x = np.meshgrid(A, A, [0.0, 1e-5, 0.3, 0.5, 0.99, 1.0])
    expected = scipy.special.betainc(a, b, x)
    near(tg.math.betainc(a, b, x), expected, 1e-10, np.maximum(expected, 1e-290))
    found = tg.math.betainc(tg.constant(2.0), [1.0, 2.0], [[0.5], [0.25]])
    assert found.shape == (2, 2)


def test_incomplete_functions_of_many_numbers_of_different_sizes():
    """They are computed in blocks, which go on until their last number has converged."""
    random = np.random.default_rng(0)
    a, b = 10 ** random.uniform(-3, 4, (2, 5000))
    x, z = a * 10 ** random.normal(0, 0.3, 5000), random.uniform(0, 1, 5000)
    a[0] = x[0] = 1e6
    for found, expected in (
        (tg.math.igamma(a, x).numpy(), scipy.special.gammainc(a, x)),
        (tg.math.igammac(a, x).numpy(), scipy.special.gammaincc(a, x)),
    ):
        near(found, expected, 1e-9, np.maximum(expected, 1e-200))
    expected, found = scipy.special.betainc(a, b, z), tg.math.betainc(a, b, z)
    near(found, expected, 1e-9, np.maximum(expected, 1e-200))


def test_incomplete_functions_at_the_ends():
    ends = [0.0, 1e-300, 1e-30, 1.0, 1e4, INF, -1.0, NAN]
    a, x = np.meshgrid(ends, ends)
    is_known = ~(np.isinf(a) & np.isinf(x))  # nan in SciPy
    for fn, exact in (
        (tg.math.igamma, scipy.special.gammainc),
        (tg.math.igammac, scipy.special.gammaincc),
    ):
        np.testing.assert_allclose(fn(a, x).numpy()[is_known], exact(a, x)[is_known], 1e-9, 1e-12)
    a, b, x = np.meshgrid(ends, ends, [0.0, 1e-300, 1e-30, 0.3, 1.0, 2.0, NAN])
    np.testing.assert_allclose(
        tg.math.betainc(a, b, x), scipy.special.betainc(a, b, x), 1e-9, 1e-12
    )


def test_gamma_and_beta_of_large_parameters_in_float32():
    a, x = np.float32([1e3, 1e5, 1e5]), np.float32([990.0, 1e5, 1.005e5])
    wide = a.astype(np.float64), x.astype(np.float64)
    density = scipy.stats.gamma.pdf(wide[1], wide[0])
    for fn, exact, sign in (
        (tg.math.igamma, scipy.special.gammainc, 1),
        (tg.math.igammac, scipy.special.gammaincc, -1),
    ):
        np.testing.assert_allclose(fn(a, x).numpy(), exact(*wide), rtol=1e-6)
        slope = tg.grad(lambda a, x, fn=fn: tg.reduce_sum(fn(a, x)), argnums=1)(a, x)
        np.testing.assert_allclose(slope.numpy(), sign * density, rtol=1e-6)
    z = np.float32([0.49, 0.5, 0.501])
    exact = scipy.special.betainc(wide[0], wide[0], z.astype(np.float64))
    np.testing.assert_allclose(tg.math.betainc(a, a, z).numpy(), exact, rtol=1e-6)
    slope = tg.grad(lambda z: tg.reduce_sum(tg.math.betainc(a, a, z)))(tg.constant(z))
    density = scipy.stats.beta.pdf(z.astype(np.float64), wide[0], wide[0])
    np.testing.assert_allclose(slope.numpy(), density, rtol=1e-6)


def steps(fn, a, order):
    """The derivative by `a` by differences of values of high precision."""
    h = 1e-3 * a
    if order == 2:
        return (fn(a + h) - 2 * fn(a) + fn(a - h)) / h**2
    return (8 * (fn(a + h) - fn(a - h)) - (fn(a + 2 * h) - fn(a - 2 * h))) / (12 * h)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", [0.5, 2.0, 20.0, 150.0])
@pytest.mark.parametrize("x", [0.4, 3.0, 21.0, 160.0])
def test_derivatives_by_the_parameter_of_gamma(a, x):
    for fn, exact in (
        (tg.math.igamma, scipy.special.gammainc),
        (tg.math.igammac, scipy.special.gammaincc),
    ):
        for order in (1, 2):
            found = derivative(lambda a, fn=fn: fn(a, x), order)(tg.constant(a, tg.float64))
            expected = steps(lambda a, exact=exact: exact(a, x), a, order)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("x", [0.02, 0.4, 0.9])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.7), (2.0, 3.0), (40.0, 30.0)])
def test_derivatives_by_the_parameters_of_beta(a, b, x):
    for order in (1, 2):
        found = derivative(lambda a: tg.math.betainc(a, b, x), order)(tg.constant(a, tg.float64))
        expected = steps(lambda a: scipy.special.betainc(a, b, x), a, order)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)
        found = derivative(lambda b: tg.math.betainc(a, b, x), order)(tg.constant(b, tg.float64))
        expected = steps(lambda b: scipy.special.betainc(a, b, x), b, order)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


def test_polygamma_and_zeta():
    order, x = np.meshgrid([0.0, 1.0, 2.0, 5.0], [0.1, 1.0, 3.5, 40.0])
    expected = scipy.special.polygamma(order.astype(int), x)
    near(tg.math.polygamma(order, x), expected, 1e-13)
    near(tg.function(tg.math.polygamma)(order, x), expected, 1e-13)
    near(tg.math.polygamma(3, x[:, 0]), scipy.special.polygamma(3, x[:, 0]), 1e-13)
    found = tg.grad(lambda x: tg.reduce_sum(tg.math.polygamma(order, x)))(tg.constant(x))
    near(found, scipy.special.polygamma(order.astype(int) + 1, x), 1e-12)
    q = np.array([0.2, 1.0, 7.0, 300.0])
    for s in (1.01, 2.0, 3.7, 12.0):
        near(tg.math.zeta(tg.constant(s, tg.float64), q), scipy.special.zeta(s, q), 1e-13)
        found = tg.grad(lambda s: tg.math.zeta(s, q[1]))(tg.constant(s, tg.float64))
        np.testing.assert_allclose(
            found, steps(lambda s: scipy.special.zeta(s, q[1]), s, 1), rtol=1e-3 if s < 2 else 1e-6
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-13)])
def test_derivatives_of_digamma_at_large_numbers(dtype, tolerance):
    """They are about 1 / x, also where 1 / x ** 2 is too small for the dtype."""
    x = np.array([3e3, 1e10, 1e19, 1e30, INF], dtype)
    first, second = (scipy.special.polygamma(n, x.astype(float)) for n in (1, 2))
    slope, curvature = tg.grad(tg.math.digamma), tg.grad(tg.grad(tg.math.digamma))
    for found, expected in (
        (tg.math.polygamma(1.0, x), first),
        (tg.math.polygamma(np.ones(5, dtype), x), first),
        (tg.math.zeta(dtype(2), x), first),
        (tg.vmap(slope)(tg.constant(x)), first),
        (tg.vmap(curvature)(tg.constant(x)), second),
    ):
        np.testing.assert_allclose(found, expected, tolerance, atol=1e-37)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-13)])
def test_the_log_of_gamma_near_its_zeros(dtype, tolerance):
    """By its series, since SciPy has ten digits there."""
    steps = np.array([-0.1, -1e-3, -1e-6, 0.0, 1e-6, 1e-3, 0.1])
    for zero, slope in ((1, -np.euler_gamma), (2, 1 - np.euler_gamma)):
        x = (zero + steps).astype(dtype)
        a = x.astype(float) - zero
        rest = sum(scipy.special.zeta(k, zero) / k * (-a) ** k for k in range(2, 30))
        np.testing.assert_allclose(tg.math.lgamma(x), slope * a + rest, tolerance)


@pytest.mark.parametrize("order", [1e-30, 0.5, -1.0, np.nan])
def test_polygamma_has_whole_orders_only(order):
    orders = tg.constant([order, 1.0], tg.float64)
    found = tg.math.polygamma(orders, tg.constant([2.0, 2.0], tg.float64)).numpy()
    assert np.isnan(found[0])
    near(found[1], scipy.special.polygamma(1, 2.0), 1e-13)


def test_lbeta():
    x = np.abs(np.random.default_rng(0).standard_normal((2, 3))) + 0.1
    expected = scipy.special.gammaln(x).sum(-1) - scipy.special.gammaln(x.sum(-1))
    near(tg.math.lbeta(x), expected, 1e-13)
    assert tg.math.lbeta(np.zeros((0,))).numpy() == -np.inf


def test_quantiles():
    def both(p):
        return tg.math.ndtri(p), tg.math.erfcinv(2.0 * p)

    p = np.array([1e-300, 1e-10, 0.2, 0.5, 0.7, 1 - 1e-10])
    exact = scipy.special.ndtri(p), scipy.special.erfcinv(2 * p)
    for found, expected in zip(both(tg.constant(p)), exact, strict=True):
        near(found, expected, 1e-13, np.abs(expected) + 1e-3)
    check_gradients(tg.function(both), tg.constant([0.15, 0.5, 0.9], tg.float64))


# The others.


def test_the_number_after_one_and_its_derivative():
    for dtype in (np.float32, np.float64):
        x, y = np.array([1.0, 1.0, -3.0], dtype), np.array([2.0, 0.0, -3.0], dtype)
        np.testing.assert_array_equal(tg.math.nextafter(x, y), np.nextafter(x, y))
    slopes = tg.grad(tg.math.nextafter, argnums=(0, 1))(tg.constant(1.0), tg.constant(2.0))
    assert [slope.numpy() for slope in slopes] == [1.0, 0.0]


def test_polynomials():
    coefficients = [np.float32(2.0), np.ones((2, 1), np.float32), np.float32(-1.0)]
    x = np.array([0.5, 3.0, -1.0], np.float32)
    expected = 2 * x**2 + np.ones((2, 1)) * x - 1
    np.testing.assert_allclose(tg.math.polyval(coefficients, x), expected, rtol=1e-6)
    assert tg.math.polyval([], x).numpy().tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(tg.errors.DTypeError, match="coeffs is a list"):
        tg.math.polyval(tg.ones([3]), x)


def test_orders():
    for x, rises, grows in (
        *(([1, 2, 3], True, True), ([1, 1, 3], True, False), ([3, 2], False, False)),
        *(([[1, 2], [2, 5]], True, False), ([], True, True), ([7], True, True)),
        ([1.0, np.nan], False, False),
    ):
        assert bool(tg.math.is_non_decreasing(x).numpy()) is rises
        assert bool(tg.function(tg.math.is_strictly_increasing)(x).numpy()) is grows


def test_permutations_turned_round():
    x = np.random.default_rng(0).permutation(9)
    found = tg.function(tg.math.invert_permutation)(tg.constant(x))
    assert found.dtype is tg.int64
    np.testing.assert_array_equal(found, np.argsort(x))
    for bad, kind in (
        *(([0, 0], "InvalidArgument"), ([1, 2], "InvalidArgument"), ([-1, 0], "InvalidArgument")),
        *(([[0]], "Shape"), ([0.0, 1.0], "DType")),
    ):
        with pytest.raises(
            getattr(tg.errors, f"{kind}Error"), match="invert_permutation"
        ) as caught:
            tg.math.invert_permutation(bad)
        assert "test_special.py" in str(caught.value)


def test_reciprocals_that_stay_finite():
    x = tg.constant([0.0, 2.0, -4.0])
    assert tg.math.reciprocal_no_nan(x).numpy().tolist() == [0.0, 0.5, -0.25]
    found = tg.grad(lambda x: tg.reduce_sum(tg.math.reciprocal_no_nan(x)))(x)
    assert found.numpy().tolist() == [0.0, -0.25, -0.0625]


BAD = {
    "igamma of integers": (lambda: tg.math.igamma(1, 2), "DType", "only floating"),
    "igamma of two kinds": (lambda: tg.math.igamma(tg.constant(1), [2.0]), "DType", "int32"),
    "igammac of shapes": (lambda: tg.math.igammac(tg.ones([2]), tg.ones([3])), "Shape", "igammac"),
    "betainc of shapes": (
        lambda: tg.math.betainc(tg.ones([2]), 1.0, tg.ones([3])),
        "Shape",
        "betainc",
    ),
    "betainc of integers": (lambda: tg.math.betainc(1, 2, 3), "DType", "only floating"),
    "betainc of complex": (lambda: tg.math.betainc(1j, 1j, 1j), "DType", "only floating"),
    "lbeta of a scalar": (lambda: tg.math.lbeta(1.0), "Shape", "not a vector"),
    "lbeta of integers": (lambda: tg.math.lbeta([1, 2]), "DType", "only floating"),
    "polygamma of integers": (lambda: tg.math.polygamma(1, 2), "DType", "only floating"),
    "zeta of shapes": (lambda: tg.math.zeta(tg.ones([2]), tg.ones([3])), "Shape", "zeta"),
    "ndtri of integers": (lambda: tg.math.ndtri([1]), "DType", "only floating"),
    "erfcinv of bool": (lambda: tg.math.erfcinv(True), "DType", "bool"),
    "nextafter of integers": (lambda: tg.math.nextafter(1, 2), "DType", "only floating"),
    **{
        f"{name} of {kind}": (
            lambda name=name, value=value: getattr(SPECIAL, name)(value),
            "DType",
            "only floating",
        )
        for name in FUNCTIONS
        for kind, value in (("integers", [1]), ("complex numbers", [1j]), ("bool", True))
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    call, kind, words = BAD[name]
    with pytest.raises(getattr(tg.errors, f"{kind}Error"), match=words) as caught:
        call()
    assert "test_special.py" in str(caught.value)
    assert "fix: " in str(caught.value)
