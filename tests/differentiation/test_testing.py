"""`tg.testing.check_gradients` finds planted faults, and nothing else."""

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import GradientError
from tracegraph.testing import GradientReport, WrongGradientError, check_gradients

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def cube(slope):
    """x^3 with a slope of its own."""
    return tg.custom_gradient(lambda x: (x**3, lambda dy: slope(dy, x)))


right_cube = cube(lambda dy, x: dy * 3.0 * x**2)


@tg.custom_gradient
def wrong_at_second_order(x):
    """x^3 whose slope is right, and whose slope's slope is not."""

    @tg.custom_gradient
    def slope(x, dy):
        return 3.0 * x**2 * dy, lambda g: (5.0 * x * dy * g, 3.0 * x**2 * g)

    return x**3, lambda dy: slope(x, dy)


def attention(parts, scale):
    weights = tg.nn.softmax(parts["q"] @ tg.transpose(parts["k"]) * scale)
    return {"out": weights @ parts["k"], "count": 3, "none": None}


RNG = np.random.default_rng(3)
RIGHT = {
    "elementwise": (tg.sin, (tg.constant([0.5, -2.0]),)),
    "number": (lambda x: x**2, (3.0,)),
    "structures": (
        attention,
        ({"q": RNG.normal(size=(1, 2)), "k": RNG.normal(size=(2, 2)).astype(np.float32)}, 0.7),
    ),
    "complex": (lambda z: z * z * tg.math.conj(z), (tg.constant([1 + 2j, 3 - 1j]),)),
    "custom gradient": (right_cube, (tg.constant([1.0, -2.0]),)),
    "recomputed": (tg.recompute_grad(tg.tanh), (tg.constant([0.3]),)),
    "integers beside": (lambda x, k: tg.gather(x, k), (RNG.normal(size=5), np.array([1, 3]))),
    "variable": (lambda x: x * tg.sin(x), (tg.Variable([0.1, 0.2]),)),
    "cast inside": (lambda x: tg.sin(tg.cast(x, tg.float32)), (tg.constant([1.0, 2.0]),)),
    "half precision": (lambda x: tg.sin(tg.cast(x, tg.float16)), (tg.constant([1.0, 0.5]),)),
    "function": (tg.function(lambda x: tg.reduce_sum(tg.exp(x))), (tg.constant([1.0, 0.5]),)),
    "nothing in it": (tg.sin, (tg.zeros([0]),)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_reported_right(name):
    fn, args = RIGHT[name]
    report = check_gradients(fn, *args)
    assert isinstance(report, GradientReport)
    assert report.is_right and not report.wrong
    assert {row.order for row in report.comparisons} == {1, 2}
    assert {row.mode for row in report.comparisons if row.order == 1} == {"reverse", "forward"}
    assert len({row.mode for row in report.comparisons if row.order == 2}) == 4


WRONG = {
    "factor": cube(lambda dy, x: dy * 3.001 * x**2),
    "sign": cube(lambda dy, x: -dy * 3.0 * x**2),
    "one element": cube(lambda dy, x: dy * 3.0 * x**2 * tg.constant([1.0, 1.0, 1.01], x.dtype)),
    "nothing": cube(lambda dy, x: tg.zeros_like(dy)),
    "nan": cube(lambda dy, x: dy * np.nan),
    "stopped": lambda x: tg.stop_gradient(x) * x,
    "constant slope": cube(lambda dy, x: dy * tg.stop_gradient(3.0 * x**2)),
    "second order": wrong_at_second_order,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name):
    with pytest.raises(WrongGradientError) as caught:
        check_gradients(WRONG[name], tg.constant([1.0, -2.0, 0.5]))
    error = caught.value
    assert isinstance(error, GradientError) and isinstance(error, AssertionError)
    assert not error.report.is_right
    assert str(error.report) in str(error)
    assert "WRONG" in str(error)


def test_the_report_says_where():
    with pytest.raises(WrongGradientError) as caught:
        check_gradients(WRONG["one element"], tg.constant([1.0, -2.0, 0.5]), order=1)
    reverse, forward = caught.value.report.comparisons
    for row, mode in ((reverse, "reverse"), (forward, "forward")):
        assert (row.order, row.mode, row.argument, row.index) == (1, mode, "x", (2,))
        assert row.analytic == pytest.approx(1.01 * row.numeric, rel=1e-6)
        assert row.error == pytest.approx(abs(row.analytic - row.numeric))
        assert "by x[2]: analytic" in str(row)


def test_orders_tell_faults_apart():
    report = check_gradients(wrong_at_second_order, tg.constant([1.0, -2.0]), order=1)
    assert report.is_right
    with pytest.raises(WrongGradientError) as caught:
        check_gradients(WRONG["constant slope"], tg.constant([1.0, -2.0]))
    assert {row.order for row in caught.value.report.wrong} == {2}


def test_only_the_argument_that_is_wrong():
    @tg.custom_gradient
    def product(x, y):
        return x * y, lambda dy: (dy * y, dy * y)

    with pytest.raises(WrongGradientError) as caught:
        check_gradients(product, 2.0, 3.0, order=1)
    assert {row.argument for row in caught.value.report.wrong} == {"y"}


def test_structures_are_named_by_their_paths():
    report = check_gradients(
        lambda parts: parts["a"][0] * parts["a"][1], {"a": [2.0, 3.0]}, order=1
    )
    assert {row.argument for row in report.comparisons} == {"parts_a_0", "parts_a_1"}


def test_forward_mode_can_be_left_out():
    clip = tg.custom_gradient(lambda x: (x, lambda dy: tg.clip_by_value(dy, -100.0, 100.0)))
    with pytest.raises(LookupError, match="no forward mode"):
        check_gradients(clip, 1.0)
    assert check_gradients(clip, 1.0, modes=["reverse"]).is_right


def test_both_modes_are_compared_with_the_same_differences():
    """The second mode calls the function once for each element, and moves nothing again."""

    def calls(modes):
        count = 0

        def cube(x):
            nonlocal count
            count += 1
            return x**3

        check_gradients(cube, tg.constant([1.0, 2.0]), order=1, modes=modes)
        return count

    assert calls(["reverse", "forward"]) == calls(["reverse"]) + 2


def test_what_has_no_derivative_names_its_line():
    with pytest.raises(LookupError, match=r"adjust_contrast(.|\n)*test_testing.py"):
        check_gradients(lambda x: tg.image.adjust_contrast(x, 2.0), tg.ones([2, 2, 1]))


def test_random_functions_are_refused():
    with pytest.raises(GradientError, match="other values when it was called again"):
        check_gradients(lambda x: x * tg.random.uniform([]), 1.0)


def test_arguments_that_are_not_computed_yet_change_nothing():
    """The first call would compute them, in a program that rounds otherwise than the second."""
    for seed in range(4):
        x = tg.random.stateless_normal([8, 3], [seed, 1])
        mean, variance = tg.nn.moments(x, [0])

        def normalised(x, mean, variance):
            return tg.nn.batch_normalization(x, mean, variance, None, None, 1e-3)

        assert check_gradients(normalised, x * 1.1, mean, variance, order=1).is_right


def test_what_a_function_takes_from_outside_may_round_otherwise():
    values, calls = [1.0, 1.0 + 2**-50], []

    def rounded(x):
        calls.append(x)
        return x * values[min(len(calls), 2) - 1]

    assert check_gradients(rounded, 1.0, order=1).is_right


def test_small_differences_are_found_too():
    calls = []

    def drifting(x):
        calls.append(x)
        return x * (1.0 + 1e-12 * len(calls))

    with pytest.raises(GradientError, match="other values when it was called again"):
        check_gradients(drifting, tg.constant([1.0, 2.0]))


def test_double_precision_is_used_where_the_function_allows_it():
    assert check_gradients(tg.sin, tg.constant([1.0]), order=1).dtype == "float64"
    only_single = tg.function(tg.sin, input_signature=[tg.TensorSpec([1], tg.float32)])
    report = check_gradients(only_single, tg.constant([1.0]), order=1)
    assert report.is_right and report.dtype == "float32"


def test_large_arguments_are_sampled():
    report = check_gradients(lambda x: tg.reduce_sum(x * x), tg.ones([1000, 1000]), order=1)
    assert report.is_right
