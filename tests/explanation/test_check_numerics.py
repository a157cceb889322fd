"""Functions that check numerics name the line inside of branches and loops, and the step."""

import inspect
import re

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import NumericsError

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def log_of_less(x, count):
    for _ in tg.range(count):  # the loop
        x = tg.math.log(x - 1.0)  # here
    return x


def sum_of_logs(xs):
    def step(total, x):
        return total + tg.math.log(x)  # here

    return tg.scan(step, xs, 0.0)  # the loop


def sum_of_logs_backwards(xs):
    def step(total, x):
        return total + tg.math.log(x)  # here

    return tg.scan(step, xs, 0.0, reverse=True)  # the loop


def chosen(x):
    if x > 0.0:
        return tg.math.log(x - 1.0)  # here
    return x


def one_of_three(index, x):
    return tg.switch_case(
        index,
        [
            lambda: x,
            lambda: 1.0 / x,  # here
            lambda: x * x,
        ],
    )


def until_it_is_large(x):
    while x < 100.0:  # the loop
        x = 0.0 / (x - 3.0) + x + 1.0  # here
    return x


def while_its_log_is_small(x):
    while tg.math.log(x) < 100.0:  # here
        x = x - 1.0
    return x


def triangle(x):
    total = 0.0
    for i in tg.range(3):  # the loop
        for j in tg.range(i + 1):  # the loop inside
            total = total + tg.math.log(x - tg.cast(i + j, tg.float32))  # here
    return total


def branch_in_a_loop(xs):
    total = 0.0
    for x in xs:  # the loop
        if x < 2.0:
            total = total + 1.0 / x  # here
        else:
            total = total * x
    return total


def line_of(function, mark):
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


def failure(function, *arguments):
    """The error of a function that checks numerics: its fact, and its line."""
    with pytest.raises(NumericsError) as caught:
        tg.function(function, check_numerics=True)(*map(tg.constant, arguments))
    return told(caught.value)


def told(error):
    fact, place = str(error).split("\n")[:2]
    return fact, int(re.search(r"\.py:(\d+)", place)[1])


FACT = "{}: f32[] holds nan or infinity, and the operands are finite"
STEP = "step {} of the loop at test_check_numerics.py:{}"


@pytest.mark.parametrize(
    ("function", "arguments", "op", "step"),
    [
        (log_of_less, (3.0, 5), "log", 1),
        (log_of_less, (1.0, 5), "log", 0),
        (sum_of_logs, ([1.0, 2.0, 0.0, -1.0],), "log", 2),
        (sum_of_logs_backwards, ([0.0, 2.0, 1.0, 3.0],), "log", 3),
        (until_it_is_large, (0.0,), "div", 3),
        (branch_in_a_loop, ([1.0, 3.0, 0.0, 1.0],), "div", 2),
    ],
)
def test_a_loop_names_the_line_and_the_step(function, arguments, op, step):
    fact, line = failure(function, *arguments)
    where = STEP.format(step, line_of(function, "the loop"))
    assert fact == f"{FACT.format(op)}; in {where}, counted from 0"
    assert line == line_of(function, "here")


@pytest.mark.parametrize(
    ("function", "arguments", "op"), [(chosen, (0.5,), "log"), (one_of_three, (1, 0.0), "div")]
)
def test_a_branch_names_the_line(function, arguments, op):
    assert failure(function, *arguments) == (FACT.format(op), line_of(function, "here"))


def test_loops_in_loops_name_the_step_of_each():
    fact, line = failure(triangle, 3.0)
    outer, inner = (line_of(triangle, mark) for mark in ("the loop", "the loop inside"))
    where = f"{STEP.format(2, outer)} and {STEP.format(1, inner)}"
    assert fact == f"{FACT.format('log')}; in {where}, counted from 0"
    assert line == line_of(triangle, "here")


def test_the_condition_of_a_loop_is_watched():
    fact, line = failure(while_its_log_is_small, 2.0)
    own = line_of(while_its_log_is_small, "here")
    assert (fact, line) == (f"{FACT.format('log')}; in {STEP.format(1, own)}, counted from 0", own)
    fact, line = failure(while_its_log_is_small, 0.0)  # before the first step
    assert (fact, line) == (FACT.format("log"), own)


def test_a_loop_that_would_never_end_ends_with_the_failure():
    def never(x):
        while tg.math.logical_not(x > 100.0):
            x = x + tg.math.log(x)
        return x

    fact, _ = failure(never, 0.5)
    assert re.match(r"log: .*; in step 1 of the loop at", fact)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (log_of_less, (30.0, 2)),
        (log_of_less, (1.0, 0)),
        (log_of_less, (np.nan, 3)),
        (sum_of_logs, ([1.0, 2.0],)),
        (sum_of_logs_backwards, ([1.0, 2.0],)),
        (chosen, (-0.5,)),
        (lambda x: one_of_three(tg.size(x) + 1, x), (0.0,)),
        (until_it_is_large, (0.5,)),
        (triangle, (10.0,)),
        (branch_in_a_loop, ([1.0, 3.0],)),
    ],
)
def test_where_all_is_well_results_and_gradients_are_the_same(function, arguments):
    def both(f):
        x = tg.constant(arguments[0])
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x, *map(tg.constant, arguments[1:]))
        return y, tape.gradient(y, x)

    found, wanted = (both(tg.function(function, check_numerics=flag)) for flag in (True, False))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_gradients_through_loops_are_watched():
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tg.range(3):
                y = tg.sqrt(y)  # here
        return tape.gradient(y, x)

    with pytest.raises(NumericsError) as caught:
        tg.function(slope, check_numerics=True)(tg.constant(0.0))
    fact, line = told(caught.value)
    assert "vjp derived it from this line" in fact
    assert line == line_of(slope, "here")


def roots(x, n, checkpoints=None):
    """Its slope is infinite in the first step, from x = 0, which its reverse mode comes to last."""
    step = lambda i, y: (i + 1, tg.sqrt(y) + 1.0)  # noqa: E731  # here
    loop = tg.while_loop(lambda i, y: i < n, step, (0, x), checkpoints=checkpoints)  # the loop
    return loop[1]


def slope_of_roots(x, n, checkpoints=None):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = roots(x, n, checkpoints)
    return tape.gradient(y, x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("option", ["check_numerics", "locate_numerics"])
@pytest.mark.parametrize("checkpoints", [None, 2])
def test_the_reverse_mode_of_a_while_names_the_line_and_the_step(option, checkpoints):
    f = tg.function(lambda x, n: slope_of_roots(x, n, checkpoints), **{option: True})
    plain = tg.function(lambda x, n: slope_of_roots(x, n, checkpoints))
    for x, n in ((2.0, 5), (0.5, 1), (0.0, 0)):
        given = tg.constant(x), tg.constant(n)
        np.testing.assert_array_equal(f(*given), plain(*given))
    with pytest.raises(NumericsError) as caught:
        f(tg.constant(0.0), tg.constant(4))
    fact, line = told(caught.value)
    where = STEP.format(3, f"{line_of(roots, 'the loop')} vjp")
    assert fact.startswith("div: f32[] holds nan") and "vjp derived it from this line" in fact
    assert fact.endswith(f"; in {where}, counted from 0")
    assert line == line_of(roots, "here")


@pytest.mark.parametrize("option", ["check_numerics", "locate_numerics"])
def test_the_reverse_mode_of_a_while_in_a_loop_names_both_steps(option):
    def f(xs, n):
        return tg.map_fn(lambda x: slope_of_roots(x, n), xs)  # the rows

    checked = tg.function(f, **{option: True})
    np.testing.assert_allclose(
        checked(tg.constant([4.0, 9.0]), tg.constant(1)), [1 / 4, 1 / 6], rtol=1e-6
    )
    with pytest.raises(NumericsError) as caught:
        checked(tg.constant([1.0, 0.0, 2.0]), tg.constant(2))
    fact, line = told(caught.value)
    rows, loop = line_of(f, "the rows"), line_of(roots, "the loop")
    where = f"{STEP.format(1, rows)} and {STEP.format(1, f'{loop} vjp')}"
    assert fact.endswith(f"; in {where}, counted from 0")
    assert line == line_of(roots, "here")


def test_each_row_of_a_parallel_loop():
    checked = tg.function(sum_of_logs, check_numerics=True)
    rows = tg.constant([[1.0, 2.0, 3.0], [1.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
    with pytest.raises(NumericsError) as caught:
        tg.vectorized_map(checked, rows)
    fact, line = told(caught.value)
    assert line == line_of(sum_of_logs, "here")
    assert STEP.format(2, line_of(sum_of_logs, "the loop")) in fact  # of the first row that failed


def test_no_variable_is_assigned_where_a_step_fails():
    v = tg.Variable(1.0)

    @tg.function(check_numerics=True)
    def update(xs):
        for x in xs:
            v.assign(v / x)

    with pytest.raises(NumericsError, match=r"div: .* in step 1 of the loop"):
        update(tg.constant([2.0, 0.0]))
    assert v.numpy() == 1.0
    update(tg.constant([2.0, 4.0]))
    assert v.numpy() == 0.125


def test_a_saved_function_names_the_step(tmp_path):
    module = tg.Module()
    spec = tg.TensorSpec([None])
    module.f = tg.function(sum_of_logs, check_numerics=True, input_signature=[spec])
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded.f(tg.ones([3])), np.zeros(3))
    with pytest.raises(NumericsError) as caught:
        loaded.f(tg.constant([1.0, 0.0]))
    fact, _ = told(caught.value)
    assert STEP.format(1, line_of(sum_of_logs, "the loop")) in fact
    assert f"(traced at test_check_numerics.py:{line_of(sum_of_logs, 'here')})" in fact
