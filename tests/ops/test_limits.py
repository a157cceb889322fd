"""Functions at the ends of their range: tiny and huge numbers, ties, zeros, infinities and nan,
with first and second derivatives, against closed forms in fifty digits and TensorFlow's
conventions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.core.types import DType

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

INF, NAN = float("inf"), float("nan")
BOTH_SIDES = (1e-30, 1e-12, 1e-4, 0.5, 3.0, 20.0, 1e4, 1e12, 1e30)
EVERYWHERE = (*BOTH_SIDES, *(-x for x in BOTH_SIDES))
mp = mpmath.mp.clone()
mp.dps = 50


class Smooth(NamedTuple):
    """A function, itself and both derivatives in closed form, and where it is tried."""

    function: Callable[..., Any]
    exact: tuple[Callable[[Any], Any], ...]
    points: tuple[float, ...] = EVERYWHERE
    #: What is a difference of numbers of this size is only near in their units.
    size: float = 0.0


def sech(x):
    return 1 / mp.cosh(x)


def logistic(x):
    return 1 / (1 + mp.exp(-x))


def slope_of_logistic(x):
    return logistic(x) * logistic(-x)


NEAR_ONE = (1e-30, 1e-8, 0.3, -0.7, 0.999999, -0.9999999, 0.99)
SMOOTH = {
    "exp": Smooth(tg.exp, (mp.exp,) * 3),
    "expm1": Smooth(tg.math.expm1, (mp.expm1, mp.exp, mp.exp)),
    "log": Smooth(tg.math.log, (mp.log, lambda x: 1 / x, lambda x: -1 / x**2), BOTH_SIDES),
    "log1p": Smooth(
        tg.math.log1p, (mp.log1p, lambda x: 1 / (1 + x), lambda x: -1 / (1 + x) ** 2), BOTH_SIDES
    ),
    "sqrt": Smooth(
        tg.sqrt, (mp.sqrt, lambda x: 1 / mp.sqrt(x) / 2, lambda x: -(x**-1.5) / 4), BOTH_SIDES
    ),
    "rsqrt": Smooth(
        tg.math.rsqrt,
        (lambda x: x**-0.5, lambda x: -(x**-1.5) / 2, lambda x: 0.75 * x**-2.5),
        BOTH_SIDES,
    ),
    "reciprocal": Smooth(
        tg.math.reciprocal, (lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3)
    ),
    "tanh": Smooth(
        tg.tanh, (mp.tanh, lambda x: sech(x) ** 2, lambda x: -2 * mp.tanh(x) * sech(x) ** 2), size=1
    ),
    "sigmoid": Smooth(
        tg.sigmoid,
        (logistic, slope_of_logistic, lambda x: slope_of_logistic(x) * (1 - 2 * logistic(x))),
        size=1,
    ),
    "softplus": Smooth(
        tg.nn.softplus,
        (
            lambda x: mp.log1p(mp.exp(x)) if x < 50 else x + mp.exp(-x),
            logistic,
            slope_of_logistic,
        ),
        size=1,
    ),
    "log_sigmoid": Smooth(
        tg.math.log_sigmoid,
        (
            lambda x: -mp.log1p(mp.exp(-x)) if x > -50 else x - mp.exp(x),
            lambda x: logistic(-x),
            lambda x: -slope_of_logistic(x),
        ),
        size=1,
    ),
    "atan": Smooth(
        tg.atan, (mp.atan, lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2)
    ),
    "asinh": Smooth(
        tg.asinh,
        (mp.asinh, lambda x: 1 / mp.sqrt(1 + x * x), lambda x: -x / (1 + x * x) ** mp.mpf(1.5)),
    ),
    "acosh": Smooth(
        tg.acosh,
        (
            mp.acosh,
            lambda x: 1 / mp.sqrt(x - 1) / mp.sqrt(x + 1),
            lambda x: -x / (x - 1) ** mp.mpf(1.5) / (x + 1) ** mp.mpf(1.5),
        ),
        (1.0001, 3.0, 20.0, 1e4, 1e12, 1e30),
    ),
    "asin": Smooth(
        tg.asin,
        (mp.asin, lambda x: 1 / mp.sqrt(1 - x * x), lambda x: x / (1 - x * x) ** mp.mpf(1.5)),
        NEAR_ONE,
    ),
    "acos": Smooth(
        tg.acos,
        (mp.acos, lambda x: -1 / mp.sqrt(1 - x * x), lambda x: -x / (1 - x * x) ** mp.mpf(1.5)),
        NEAR_ONE,
    ),
    "atanh": Smooth(
        tg.atanh,
        (mp.atanh, lambda x: 1 / (1 - x * x), lambda x: 2 * x / (1 - x * x) ** 2),
        NEAR_ONE,
    ),
    "atan2 of 1e-30": Smooth(
        lambda x: tg.atan2(x, tg.fill(x.shape, tg.constant(1e-30, x.dtype))),
        (
            lambda x: mp.atan2(x, mp.mpf(1e-30)),
            lambda x: mp.mpf(1e-30) / (x * x + mp.mpf(1e-60)),
            lambda x: -2 * x * mp.mpf(1e-30) / (x * x + mp.mpf(1e-60)) ** 2,
        ),
        BOTH_SIDES,
    ),
    "atan2 of 1e30": Smooth(
        lambda x: tg.atan2(x, tg.fill(x.shape, tg.constant(1e30, x.dtype))),
        (
            lambda x: mp.atan2(x, mp.mpf(1e30)),
            lambda x: mp.mpf(1e30) / (x * x + mp.mpf(1e60)),
            lambda x: -2 * x * mp.mpf(1e30) / (x * x + mp.mpf(1e60)) ** 2,
        ),
        BOTH_SIDES,
    ),
    "erf": Smooth(
        tg.math.erf,
        (
            mp.erf,
            lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x),
            lambda x: -4 * x / mp.sqrt(mp.pi) * mp.exp(-x * x),
        ),
    ),
    "erfc": Smooth(
        tg.math.erfc,
        (
            mp.erfc,
            lambda x: -2 / mp.sqrt(mp.pi) * mp.exp(-x * x),
            lambda x: 4 * x / mp.sqrt(mp.pi) * mp.exp(-x * x),
        ),
    ),
    "logaddexp": Smooth(
        lambda x: tg.reduce_logsumexp(tg.stack([x, tg.zeros_like(x)]), 0),
        (
            lambda x: mp.log1p(mp.exp(x)) if x < 50 else x + mp.exp(-x),
            logistic,
            slope_of_logistic,
        ),
        size=1,
    ),
    "logsumexp beside another number": Smooth(
        lambda x: tg.reduce_logsumexp(tg.stack([x, tg.zeros_like(x)]), 0),
        (lambda x: mp.log1p(mp.exp(x)), logistic, slope_of_logistic),
        (-1.0, -3.0, -20.0, -30.0, -70.0, 1.0, 3.0, 20.0, 30.0, 70.0),
    ),
    "log_cosh": Smooth(
        lambda x: tg.losses.log_cosh(tg.zeros_like(x)[:, None], x[:, None]),
        (
            lambda x: mp.log1p(2 * mp.sinh(x / 2) ** 2) if abs(x) < 99 else abs(x) - mp.log(2),
            mp.tanh,
            lambda x: sech(x) ** 2,
        ),
        (1e-12, 1e-4, 0.3, 0.99, 1.01, 3.0, 12.0, 1e4, -1e-4, -0.6, -2.0, -12.0, -1e4),
    ),
}


def derivatives(function: Callable[..., Any], x: Any) -> list[np.ndarray]:
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x, unconnected_gradients="zero")
    second = outer.gradient(first, x, unconnected_gradients="zero")
    return [np.asarray(v) for v in (y, first, second)]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", [tg.float32, tg.float64], ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_extremes(name: str, dtype: DType):
    case = SMOOTH[name]
    xs = np.array(case.points, dtype.numpy_dtype)
    found = derivatives(case.function, tg.constant(xs))
    limits = np.finfo(xs.dtype)
    for order, (values, exact) in enumerate(zip(found, case.exact, strict=True)):
        for x, value in zip(xs.tolist(), values.tolist(), strict=True):
            expected = float(exact(mp.mpf(x)))
            smallest = float(limits.tiny) * 1e3
            if abs(expected) > float(limits.max) / 8 or abs(expected) < smallest:
                assert abs(value) >= abs(expected) / 2 or abs(value) <= smallest
                continue  # a step on the way may overflow a little before the result does
            slack = (64 + 4 * x * x * ("erf" in name) + 2 * abs(x) * ("exp" in name)) * float(
                limits.eps
            )
            allowed = slack * (abs(expected) + case.size)
            assert abs(value - expected) <= allowed, (name, order, x, value, expected)


class Limit(NamedTuple):
    """A function of some numbers, and the cotangents of its sum of first and of second order: the
    second of the sum of the first."""

    name: str
    function: Callable[..., Any]
    xs: tuple[Any, ...]
    first: tuple[Any, ...]
    second: tuple[Any, ...] | None = None


LIMITS = [
    Limit("abs", tg.abs, (0.0,), (0.0,), (0.0,)),
    Limit("abs at -0", tg.abs, (-0.0,), (0.0,), (0.0,)),
    Limit("abs of inf", tg.abs, (-INF,), (-1.0,), (0.0,)),
    Limit("abs of nan", tg.abs, (NAN,), (NAN,)),
    Limit("sign", tg.sign, (0.0,), (0.0,), (0.0,)),
    Limit("relu", tg.nn.relu, ([-1.0, 0.0, 2.0, NAN],), ([0.0, 0.0, 1.0, 0.0],), ([0.0] * 4,)),
    Limit("relu6", tg.nn.relu6, ([0.0, 6.0, 3.0, 7.0],), ([0.0, 0.0, 1.0, 0.0],), ([0.0] * 4,)),
    Limit("elu", tg.nn.elu, ([0.0, -INF, INF],), ([1.0, 0.0, 1.0],)),
    Limit("celu", tg.activations.celu, ([NAN, -INF, 0.0, 2.0],), ([NAN, 0.0, 1.0, 1.0],)),
    Limit("sqrt", tg.sqrt, (0.0,), (INF,)),
    Limit("square", tg.square, ([0.0, 1e-30],), ([0.0, 2e-30],), ([2.0, 2.0],)),
    Limit("norm", tg.norm, ([0.0, 0.0],), ([NAN, NAN],)),
    Limit("pow of 0 and 2", tg.pow, (0.0, 2.0), (0.0, 0.0)),
    Limit("pow of 0 and 1", tg.pow, (0.0, 1.0), (1.0, 0.0)),
    Limit("pow of 0 and 0", tg.pow, (0.0, 0.0), (0.0, 0.0)),
    Limit("pow by 2", lambda x: x**2, (0.0,), (0.0,), (2.0,)),
    Limit("pow by 1", lambda x: x**1, (0.0,), (1.0,), (0.0,)),
    Limit("pow by 0", lambda x: x**0, (0.0,), (0.0,), (0.0,)),
    Limit("maximum", tg.maximum, (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)),
    Limit("maximum of inf", tg.maximum, (INF, INF), (1.0, 0.0), (0.0, 0.0)),
    Limit("maximum of nan", tg.maximum, (NAN, 1.0), (0.0, 0.0), (0.0, 0.0)),
    Limit("minimum", tg.minimum, (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)),
    Limit("minimum of zeros", tg.minimum, (0.0, -0.0), (1.0, 0.0), (0.0, 0.0)),
    Limit("clip", lambda x: tg.clip_by_value(x, 0.0, 1.0), ([0.0, 1.0, 2.0],), ([1.0, 1.0, 0.0],)),
    Limit("reduce_max", tg.reduce_max, ([3.0, 1.0, 3.0],), ([0.5, 0.0, 0.5],), ([0.0] * 3,)),
    Limit(
        "reduce_min", tg.reduce_min, ([3.0, 3.0, 3.0, 4.0],), ([1 / 3] * 3 + [0.0],), ([0.0] * 4,)
    ),
    Limit("reduce_max of inf", tg.reduce_max, ([INF, 1.0],), ([1.0, 0.0],), ([0.0, 0.0],)),
    Limit("reduce_max of -inf", tg.reduce_max, ([-INF, -INF],), ([0.5, 0.5],), ([0.0, 0.0],)),
    Limit(
        "reduce_prod", tg.reduce_prod, ([2.0, 0.0, 3.0],), ([0.0, 6.0, 0.0],), ([3.0, 5.0, 2.0],)
    ),
    Limit(
        "reduce_prod of zeros", tg.reduce_prod, ([0.0, 0.0, 3.0],), ([0.0] * 3,), ([3.0, 3.0, 0.0],)
    ),
    Limit("logsumexp of -inf", tg.reduce_logsumexp, ([-INF, 0.0],), ([0.0, 1.0],), ([0.0, 0.0],)),
    Limit("logsumexp of ties", tg.reduce_logsumexp, ([1.0] * 4,), ([0.25] * 4,), ([0.0] * 4,)),
    Limit("logsumexp of large", tg.reduce_logsumexp, ([1e30, 1e30],), ([0.5, 0.5],)),
    Limit(
        "softmax of large",
        lambda x: tg.nn.softmax(x)[0],
        ([1e30, 0.0],),
        ([0.0, 0.0],),
        ([0.0, 0.0],),
    ),
    Limit("divide_no_nan", tg.math.divide_no_nan, (1.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    Limit("divide_no_nan of inf", tg.math.divide_no_nan, (INF, 0.0), (0.0, 0.0)),
    Limit("multiply_no_nan", tg.math.multiply_no_nan, (INF, 0.0), (0.0, 0.0)),
    Limit(
        "reciprocal_no_nan",
        tg.math.reciprocal_no_nan,
        ([0.0, 2.0],),
        ([0.0, -0.25],),
        ([0.0, 0.25],),
    ),
    Limit("xlogy", tg.math.xlogy, (0.0, 0.0), (0.0, 0.0)),
    Limit("xlog1py", tg.math.xlog1py, (0.0, -1.0), (0.0, 0.0)),
    Limit("xdivy", tg.math.xdivy, (0.0, 0.0), (0.0, 0.0)),
    Limit("where of sqrt", lambda x: tg.where(x > 0.0, tg.sqrt(x), 0.0), (0.0,), (0.0,), (0.0,)),
    Limit("where of log", lambda x: tg.where(x > 0.0, tg.math.log(x), 0.0), (0.0,), (0.0,), (0.0,)),
    Limit("sort of ties", lambda x: tg.sort(x)[0], ([1.0, 1.0],), ([1.0, 0.0],), ([0.0, 0.0],)),
    Limit(
        "top_k of ties",
        lambda x: tg.math.top_k(x, 1)[0],
        ([1.0, 1.0],),
        ([1.0, 0.0],),
        ([0.0] * 2,),
    ),
    Limit("floor", tg.floor, (1.0,), (0.0,), (0.0,)),
    Limit("mod", lambda x: tg.math.floormod(x, 2.0), (4.0,), (1.0,), (0.0,)),
    Limit("log1p", tg.math.log1p, (-1.0,), (INF,)),
    Limit(
        "cross entropy",
        lambda x: tg.nn.sigmoid_cross_entropy_with_logits(tg.ones_like(x), x),
        ([-1e30, 0.0, 1e30],),
        ([-1.0, -0.5, 0.0],),
        ([0.0, 0.25, 0.0],),
    ),
    Limit(
        "softmax cross entropy",
        lambda x: tg.nn.softmax_cross_entropy_with_logits([1.0, 0.0], x),
        ([-1e30, 1e30],),
        ([-1.0, 1.0],),
        ([0.0, 0.0],),
    ),
    Limit(
        "segment_max of ties",
        lambda x: tg.math.segment_max(x, [0, 0, 1]),
        ([2.0, 2.0, 1.0],),
        ([0.5, 0.5, 1.0],),
        ([0.0] * 3,),
    ),
    Limit("cumprod of zero", tg.math.cumprod, ([2.0, 0.0, 3.0],), ([1.0, 8.0, 0.0],)),
    Limit("atan2 of 0", tg.atan2, (0.0, 0.0), (NAN, NAN)),
    Limit("atan2 of inf", tg.atan2, (INF, 1.0), (0.0, 0.0)),
    Limit("asinh", tg.asinh, ([0.0, 1.0, -INF],), ([1.0, 0.5**0.5, 0.0],)),
    Limit("acos at 1", tg.acos, (1.0,), (-INF,)),
    Limit("atanh at 1", tg.atanh, (1.0,), (INF,)),
    Limit("erfinv at 1", tg.math.erfinv, (1.0,), (INF,)),
    Limit("lgamma at inf", tg.math.lgamma, (INF,), (INF,)),
]
#: How many programs they are.
PARTS = 5


def both_derivatives(limit: Limit, xs):
    with tg.GradientTape() as outer:
        outer.watch(xs)
        with tg.GradientTape() as inner:
            inner.watch(xs)
            y = limit.function(*xs)
        first = inner.gradient(y, xs, unconnected_gradients="zero")
        total = tg.add_n([tg.reduce_sum(g) for g in first])
    return first, outer.gradient(total, xs, unconnected_gradients="zero")


@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("is_decorated", [False, True], ids=["top level", "function"])
def test_limits(part: int, is_decorated: bool):
    """Many at once: each program that is compiled costs more than what is in it."""
    limits = LIMITS[part::PARTS]

    def compute(points):
        return [both_derivatives(*pair) for pair in zip(limits, points, strict=True)]

    points = [tuple(tg.constant(np.asarray(x, np.float64)) for x in limit.xs) for limit in limits]
    found = (tg.function(compute) if is_decorated else compute)(points)
    for limit, (first, second) in zip(limits, found, strict=True):
        for value, expected in zip(first, limit.first, strict=True):
            close(value, expected, limit)
        if limit.second is not None:
            for value, expected in zip(second, limit.second, strict=True):
                close(value, expected, limit)


def close(found, expected, limit: Limit):
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-12, atol=0, err_msg=limit.name)


class Homogeneous(NamedTuple):
    """A function of two numbers of which f(s x) is s ** degree f(x), and which no s may break."""

    name: str
    function: Callable[..., Any]
    degree: int
    #: Whether it is so for large numbers, for small ones, or for both.
    signs: tuple[int, ...] = (-1, 1)


HOMOGENEOUS = [
    Homogeneous("norm", tg.norm, 1),
    Homogeneous("reduce_euclidean_norm", tg.math.reduce_euclidean_norm, 1),
    Homogeneous("norm of order 3", lambda x: tg.norm(x, 3), 1),
    Homogeneous("norm of order 1/2", lambda x: tg.norm(x, 0.5), 1),
    Homogeneous("vector_norm", tg.numpy.linalg.vector_norm, 1),
    Homogeneous("vector_norm of order 4", lambda x: tg.numpy.linalg.vector_norm(x, ord=4), 1),
    Homogeneous("complex norm", lambda x: tg.norm(tg.complex(x, 2.0 * x)), 1),
    Homogeneous("norms of rows", lambda x: tg.norm(tg.stack([x, x]), axis=1)[0], 1),
    Homogeneous("global_norm", lambda x: tg.linalg.global_norm([x[:1], None, x[None, 1:]]), 1),
    Homogeneous("l2_normalize", lambda x: tg.math.l2_normalize(x, epsilon=0.0)[0], 0),
    Homogeneous("l2_normalize of large", lambda x: tg.math.l2_normalize(x)[0], 0, (1,)),
    Homogeneous("normalize", lambda x: tg.linalg.normalize(x)[0][0], 0),
    Homogeneous("clip_by_norm", lambda x: tg.clip_by_norm(x, 0.5)[0], 0, (1,)),
    Homogeneous("clip_by_norm of small", lambda x: tg.clip_by_norm(x, 10.0)[0], 1, (-1,)),
    Homogeneous(
        "clip_by_global_norm", lambda x: tg.clip_by_global_norm([x], 0.5)[0][0][0], 0, (1,)
    ),
    Homogeneous(
        "clip_by_global_norm of small",
        lambda x: tg.clip_by_global_norm([x], 10.0)[0][0][0],
        1,
        (-1,),
    ),
    Homogeneous("UnitNorm", lambda x: tg.constraints.UnitNorm()(x)[0], 0, (1,)),
    Homogeneous(
        "cosine similarity", lambda x: tg.losses.cosine_similarity(x, tg.reverse(x, [0])), 0, (1,)
    ),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sign", [-1, 1], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [tg.float32, tg.float64], ids=str)
@pytest.mark.parametrize("case", HOMOGENEOUS, ids=lambda case: case.name)
def test_norms_of_what_has_no_square(case: Homogeneous, dtype: DType, sign: int):
    if sign not in case.signs:
        return
    exponent = sign * (100 if dtype is tg.float32 else 1000)
    x = np.array([3.0, 4.0], dtype.numpy_dtype)
    limits = np.finfo(x.dtype)
    usual = derivatives(case.function, tg.constant(x))
    found = derivatives(case.function, tg.constant(np.ldexp(x, exponent)))
    for order, (value, expected) in enumerate(zip(found, usual, strict=True)):
        size = exponent * (case.degree - order)
        if limits.minexp < size < limits.maxexp - 4:
            close = np.testing.assert_allclose
            close(np.ldexp(value, -size), expected, rtol=1e-6, atol=8 * float(limits.eps))


def test_norms_that_are_not_finite_or_zero():
    x = tg.constant([[INF, 1.0], [NAN, 1.0], [0.0, 0.0], [INF, NAN]], tg.float32)
    np.testing.assert_array_equal(tg.norm(x, axis=1), [INF, NAN, 0.0, NAN])
    np.testing.assert_array_equal(tg.norm(x, 3, axis=1), [INF, NAN, 0.0, NAN])
    assert tg.norm(tg.zeros([0])).numpy() == 0.0
    kept = tg.clip_by_norm(tg.constant([1e-30, -1e-37]), 1e10)
    np.testing.assert_array_equal(kept, np.float32([1e-30, -1e-37]))
    far = tg.constraints.MaxNorm(0.5)(np.float32([3e30, 4e30]))
    np.testing.assert_allclose(far, [0.3, 0.4], rtol=1e-6)
    both = tg.clip_by_norm(tg.constant([3e-30, 4e-30]), 1e-30)
    np.testing.assert_allclose(both, [0.6e-30, 0.8e-30], rtol=1e-6)


@pytest.mark.usefixtures("optimised")
def test_norms_of_ordinary_numbers_are_those_of_the_plain_formula():
    """Numbers are scaled by powers of two, and ordinary ones not at all; where a product and a sum
    become one instruction is up to LLVM."""
    x = np.random.default_rng(0).standard_normal((40, 7)).astype(np.float32) * 1e3
    plain = tg.function(lambda x: tg.sqrt(tg.reduce_sum(x * x, axis=1)))
    norms = tg.norm(x, axis=1).numpy()
    np.testing.assert_allclose(norms, plain(x), rtol=2**-23)
    for exponent in (80, -100):
        far = tg.norm(np.ldexp(x, exponent), axis=1)
        np.testing.assert_array_equal(far, np.ldexp(norms, exponent))
