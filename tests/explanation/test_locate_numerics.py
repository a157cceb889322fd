"""`locate_numerics`: which node is named where results are not finite, and that runs are plain."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.explanation.test_check_numerics import (
    branch_in_a_loop,
    line_of,
    log_of_less,
    one_of_three,
    sum_of_logs,
    sum_of_logs_backwards,
    triangle,
    until_it_is_large,
)
from tracegraph.control_passes import locate_numerics
from tracegraph.errors import NumericsError

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def located(function):
    return tg.function(function, locate_numerics=True)


def failure(function, *arguments):
    """The text of the error of a function that locates, and the line that it names."""
    with pytest.raises(FloatingPointError) as caught:
        located(function)(*map(tg.constant, arguments))
    assert isinstance(caught.value, NumericsError)
    text = str(caught.value)
    return text, int(re.search(r"\.py:(\d+):", text)[1])


STEP = "step {} of the loop at test_check_numerics.py:{}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("function", "arguments", "op", "step"),
    [
        (log_of_less, (3.0, 5), "log", 1),
        (log_of_less, (1.0, 5), "log", 0),
        (sum_of_logs, ([1.0, 2.0, 0.0, -1.0],), "log", 2),
        (sum_of_logs_backwards, ([0.0, 2.0, 1.0, 3.0],), "log", 3),
        (branch_in_a_loop, ([1.0, 3.0, 0.0, 1.0],), "div", 2),
    ],
)
def test_a_loop_names_the_line_and_the_step(function, arguments, op, step):
    text, line = failure(function, *arguments)
    where = STEP.format(step, line_of(function, "the loop"))
    fact = f"{op}: f32[] holds nan or infinity, and the operands are finite; in {where}"
    assert text.startswith(f"{fact}, counted from 0\n")
    assert line == line_of(function, "here")


def test_a_while_and_loops_inside_of_loops():
    text, line = failure(until_it_is_large, 0.0)
    assert f"in {STEP.format(3, line_of(until_it_is_large, 'the loop'))}," in text
    assert line == line_of(until_it_is_large, "here")
    text, line = failure(triangle, 3.0)
    outer, inner = (line_of(triangle, mark) for mark in ("the loop", "the loop inside"))
    assert f"in {STEP.format(2, outer)} and {STEP.format(1, inner)}, counted from 0" in text
    assert line == line_of(triangle, "here")


def logs_of_jax(xs):
    return jax.lax.scan(lambda c, x: (c * jnp.log(x), None), 1.0, xs)[0]  # here


def test_a_program_of_jax_names_its_own_line():
    text, line = failure(lambda xs: tg.from_jax(logs_of_jax)(xs), [1.0, 2.0, -3.0])
    assert line == line_of(logs_of_jax, "here")
    assert f"in step 2 of the loop at test_locate_numerics.py:{line}, counted from 0\n" in text
    assert "operand 0: f32[]  (an argument), numbers from -3 to -3" in text


def test_a_branch_is_entered():
    text, line = failure(one_of_three, 1, 0.0)
    assert text.startswith("div: f32[] holds nan or infinity, and the operands are finite\n")
    assert line == line_of(one_of_three, "here")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_warm_calls_are_looked_at(count):
    """Those of one tensor, of several, and of nests each have a short path."""
    functions = {
        1: lambda x: tg.math.log(x),
        2: lambda x, y: tg.math.log(x) * y,
        3: lambda x, y, rest: tg.math.log(x) * y + rest["z"],
    }
    f = tg.function(functions[count], locate_numerics=True)

    def call(number):
        x = tg.sin(tg.constant([number]))
        x.numpy()  # a buffer on the device
        return f(*(x, x, {"z": x})[:count])

    for _ in range(3):
        assert np.isfinite(call(1.0)).all()
    with pytest.raises(NumericsError, match=r"^log: "):
        call(0.0)
    assert np.isfinite(call(1.0)).all()


def test_the_ranges_of_the_operands_are_told():
    text, _ = failure(lambda x: tg.reduce_sum(tg.math.log(x) * 0.5), [-2.0, 0.0, 3.5])
    assert "(argument %x), numbers from -2 to 3.5" in text


def test_a_mask_of_infinities_blames_nobody():
    """What a constant brings in is meant; the row without any number left is the one to blame."""

    @tg.function(locate_numerics=True)
    def attended(scores, mask):
        return tg.nn.softmax(tg.where(mask, scores, -np.inf))

    scores = tg.constant([[1.0, 2.0], [3.0, 4.0]])
    y = attended(scores, tg.constant([[True, False], [True, True]]))
    np.testing.assert_allclose(y, [[1, 0], [0.26894143, 0.7310586]], rtol=1e-6)
    with pytest.raises(
        NumericsError, match=r"^sub: .* holds nan or infinity, and no operand is nan"
    ):
        attended(scores, tg.constant([[False, False], [True, True]]))
    y = located(lambda x: tg.where(x > 0.0, x, -np.inf))(tg.constant([1.0, -1.0]))
    np.testing.assert_array_equal(y, [1.0, -np.inf])


def test_what_a_selection_leaves_out_is_not_blamed():
    """`check_numerics` blames it, since it looks at each node alone."""
    f = located(lambda x: tg.where(x > 0.0, tg.math.log(x), 0.0))
    np.testing.assert_array_equal(f(tg.constant([1.0, 0.0])), [0.0, 0.0])


def test_arguments_and_variables_that_hold_nan_are_named():
    v = tg.Variable([1.0, 2.0], name="weights")
    f = located(lambda x: x * v)
    with pytest.raises(NumericsError, match=r"argument 'x' holds nan in 1 of 2 elements, numbers"):
        f(tg.constant([np.nan, 1.0]))
    v.assign([np.inf, 2.0])
    with pytest.raises(NumericsError, match="Variable 'weights' holds infinity in 1 of 2 elements"):
        f(tg.constant([1.0, 1.0]))


def test_no_variable_is_assigned_and_none_is_lost():
    w, count = tg.Variable([4.0, 9.0]), tg.Variable(0)

    @tg.function(locate_numerics=True)
    def step(x):
        count.assign_add(1)
        w.assign(tg.sqrt(w - x))
        return tg.reduce_sum(x)  # which is finite

    assert float(step(tg.constant([0.0, 0.0]))) == 0.0
    kept = w.read_value()
    for _ in range(2):
        with pytest.raises(NumericsError, match=r"^sqrt: "):
            step(tg.constant([5.0, 0.0]))
    assert int(count) == 1
    np.testing.assert_array_equal(w, [2.0, 3.0])
    step(tg.constant([1.0, 2.0]))
    np.testing.assert_array_equal(w, [1.0, 1.0])
    np.testing.assert_array_equal(kept, [2.0, 3.0])


def test_functions_that_it_calls_and_gradients_in_it_are_searched():
    @tg.function
    def root(x):
        return tg.sqrt(x)  # here

    @tg.function(locate_numerics=True)
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = root(x)
        return tape.gradient(y, x)

    with pytest.raises(NumericsError) as caught:
        slope(tg.constant([4.0, 0.0]))
    assert "jvp derived it from this line" in str(caught.value)
    assert "tg.sqrt(x)  # here" in str(caught.value)
    np.testing.assert_allclose(slope(tg.constant([4.0])), [0.25])


LOOPS = "the loop", "the loop inside"


def roots_backwards(x, count):
    with tg.GradientTape() as tape:
        tape.watch(x)
        outer, total = 0, x
        while outer < count:  # the loop
            inner = 0
            while inner < count:  # the loop inside
                total = tg.sqrt(total + tg.cast(inner, tg.float32))  # here
                inner += 1
            outer += 1
        y = tg.reduce_sum(total)
    return tape.gradient(y, x)


def test_the_steps_back_of_a_while_tell_the_ranges_of_the_operands():
    text, line = failure(roots_backwards, [0.0, 16.0], 2)
    assert line == line_of(roots_backwards, "here")
    at = [f"test_locate_numerics.py:{line_of(roots_backwards, x)} vjp" for x in LOOPS]
    assert f"in step 1 of the loop at {at[0]} and step 1 of the loop at {at[1]}, counted" in text
    # The step that fails is the first, whose results are 0 and 4: a slope is 1 / (2 * result).
    first, second = [x for x in text.split("\n") if x.startswith("  operand")]
    assert first.endswith(", numbers from 1 to 1")
    assert second.endswith(", numbers from 0 to 8")


def test_a_call_under_a_tape_is_searched():
    f = located(lambda x: tg.math.log(x))
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
        with pytest.raises(NumericsError, match=r"^log: "):
            f(x - 1.0)
    np.testing.assert_allclose(tape.gradient(y, x), [1.0, 0.5])


def test_a_call_in_another_function_is_left_to_that_one():
    inner = located(lambda x: tg.math.log(x))
    assert np.isneginf(tg.function(lambda x: inner(x) * 2.0)(tg.constant(0.0)).numpy())


@pytest.mark.parametrize("options", [{"bucket_sizes": [4]}, {}])
def test_what_cannot_run_once_more_is_watched(options, capsys):
    def f(x):
        if not options:
            tg.print("once")
        return tg.math.log(x)

    f = tg.function(f, locate_numerics=True, reduce_retracing=True, **options)
    f(tg.ones([2])), f(tg.ones([3]))
    capsys.readouterr()
    with pytest.raises(NumericsError, match=r"^log: "):
        f(tg.constant([1.0, 0.0, 1.0]))
    assert capsys.readouterr().err.count("once") == (0 if options else 1)


def test_what_python_returns_is_blamed_with_the_tensors_that_it_took():
    def f(x):
        return tg.numpy_function(lambda x: x * np.nan, [x], tg.float64)

    text, _ = failure(f, np.ones(2))
    fact, _, operand, _ = text.split("\n")
    assert fact.startswith("host_call: f64[2] holds nan") and "f64[2]  (argument %x)" in operand


def test_many_nodes_and_other_types(monkeypatch):
    monkeypatch.setattr(locate_numerics, "_LONGEST", 20)

    def f(x, z):
        for i in range(20):
            x = tg.sin(x) + 1.0
            if i == 13:
                x = x + tg.math.log(tg.cast(z, tg.float32) - 1.0)
        return tg.cast(x, tg.bfloat16), tg.complex(x, x), z

    text, _ = failure(f, 0.5, 1)
    assert text.startswith("log: f32[] holds nan or infinity, and the operands are finite\n")
    assert "numbers from 0 to 0" in text
    text, _ = failure(tg.math.log, np.complex64([0, 3 + 4j]))
    assert ", absolute values from 0 to 5\n" in text


@pytest.mark.parametrize("option", ["locate_numerics", "check_numerics"])
def test_a_conversion_to_eight_bits_that_overflows_is_blamed(option):
    """It was overlooked, and the conversion back was blamed."""

    def f(x):
        stored = tg.cast(x * 2.0, tg.float8_e4m3fn)  # here
        return stored, tg.cast(stored, tg.float32) * 3.0

    f = tg.function(f, **{option: True})
    np.testing.assert_array_equal(f(tg.constant([4.0, 1.0]))[1], [24.0, 6.0])
    with pytest.raises(NumericsError, match=r"^cast: f8e4m3fn\[2\] holds .*finite\n.*\n?.*# here"):
        f(tg.constant([1e9, 1.0]))


def test_functions_without_numbers_and_saved_ones(tmp_path):
    assert int(located(lambda x: x + 1)(tg.constant(1))) == 2
    module = tg.Module()
    module.f = tg.function(tg.math.log, input_signature=[tg.TensorSpec([])], locate_numerics=True)
    tg.saved_model.save(module, tmp_path)
    loaded = tg.saved_model.load(tmp_path)
    assert np.isneginf(tg.function(lambda x: loaded.f(x))(tg.constant(0.0)).numpy())
    for function in (loaded.f, located(lambda x: loaded.f(x))):
        with pytest.raises(NumericsError, match=r"^log: "):
            function(tg.constant(0.0))


def test_the_option_is_a_truth_value():
    with pytest.raises(TypeError, match="locate_numerics"):
        tg.function(tg.sin, locate_numerics="yes")  # type: ignore[arg-type]
