"""GradientTape, sentence by sentence.

The expected values are TensorFlow's or come from analysis; where tracegraph differs on purpose the
test says so. The fixture `run` calls a function as it is and compiled by `tg.function`, so that
most tests hold in both modes.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def here(number: int) -> str:
    """How an error names a line of this file."""
    return f"{os.path.basename(__file__)}:{number}"


def values(structure):
    """The structure with NumPy values for tensors; None stays."""
    if isinstance(structure, (list, tuple)):
        return [values(item) for item in structure]
    return None if structure is None else structure.numpy()


def gradient(fn, *sources):
    """The gradients of fn(*sources), one per source, by a tape that watches them."""
    with tg.GradientTape() as tape:
        tape.watch(sources)
        y = fn(*sources)
    return tape.gradient(y, list(sources))


def square_tape(x, **arguments):
    """A tape that recorded x * x, and the result."""
    with tg.GradientTape(**arguments) as tape:
        tape.watch(x)
        y = x * x
    return tape, y


# ---------------------------------------------------------------- constructor


def test_constructor_takes_positions():
    v = tg.Variable(3.0)
    with tg.GradientTape(True, False) as tape:
        y = v * v
    assert tape.gradient(y, v) is None
    assert tape.gradient(y, v) is None  # persistent: no error


def test_autodiff_has_the_same_tape():
    assert tg.autodiff.GradientTape is tg.GradientTape


def test_with_gives_the_tape():
    tape = tg.GradientTape()
    with tape as same:
        pass
    assert same is tape


def test_tape_can_be_entered_by_hand():
    x = tg.constant(3.0)
    tape = tg.GradientTape()
    tape.__enter__()
    tape.watch(x)
    y = x * x
    tape.__exit__(None, None, None)
    assert tape.gradient(y, x).numpy() == 6.0


def test_trainable_variables_are_watched_when_read(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = v * v
        return tape.gradient(y, v)

    assert run(example).numpy() == 6.0


def test_variables_that_are_not_trainable_are_not_watched(run):
    v = tg.Variable(3.0, trainable=False)

    def example():
        with tg.GradientTape() as tape:
            y = v * v
        return tape.gradient(y, v)

    assert run(example) is None


def test_watch_accessed_variables_false_watches_nothing(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape(watch_accessed_variables=False) as tape:
            y = v * v
        assert tape.watched_variables() == ()
        return tape.gradient(y, v)

    assert run(example) is None


def test_constants_are_not_watched(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x)

    assert run(example) is None


def test_persistent_tape_serves_many_gradients(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        return tape.gradient(z, x), tape.gradient(z, y), tape.gradient(y, x), tape.gradient(z, x)

    assert values(run(example)) == [108.0, 18.0, 6.0, 108.0]


# ---------------------------------------------------------------- entering


def test_exited_tape_may_be_entered_again_and_accumulates(run):
    x = tg.constant(3.0)

    def example():
        tape = tg.GradientTape()
        with tape:
            tape.watch(x)
            y = x * x
        with tape:
            z = y * x
        return tape.gradient(z, x)

    assert run(example).numpy() == 27.0


def test_operations_between_two_entries_are_not_recorded(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        lost = x * 5.0
        with tape:
            z = y + lost
        return tape.gradient(z, x)

    assert run(example).numpy() == 6.0


def test_entering_an_active_tape_is_an_error():
    tape = tg.GradientTape()
    with tape, pytest.raises(ValueError, match="recording"):
        tape.__enter__()


def test_tape_is_usable_after_a_refused_entry():
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        with contextlib.suppress(ValueError), tape:
            pass
        z = y * x
    assert tape.gradient(z, x).numpy() == 27.0


def test_exception_in_the_block_leaves_the_tape_usable(run):
    x = tg.constant(3.0)

    def example():
        with contextlib.suppress(KeyError), tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            raise KeyError("from the user's code")
        return tape.gradient(y, x)

    assert run(example).numpy() == 6.0


def test_exception_in_the_block_ends_the_recording():
    x = tg.constant(3.0)
    with contextlib.suppress(KeyError), tg.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        raise KeyError("from the user's code")
    z = y * x
    assert tape.gradient(z, x) is None


# ---------------------------------------------------------------- watch


def test_watch_takes_nested_structures(run):
    a, b, c, d = (tg.constant(value) for value in (2.0, 3.0, 5.0, 7.0))

    def example():
        with tg.GradientTape() as tape:
            tape.watch([a, {"b": b, "c": (c, [d])}])
            y = a * b * c * d
        return tape.gradient(y, [a, b, c, d])

    assert values(run(example)) == [105.0, 70.0, 42.0, 30.0]


def test_watch_takes_variables(run):
    v = tg.Variable(3.0, trainable=False)

    def example():
        with tg.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch({"v": v})
            y = v * v
        return tape.gradient(y, v)

    assert run(example).numpy() == 6.0


def test_watching_twice_is_watching_once(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    assert run(example).numpy() == 6.0


def test_watching_begins_at_the_call_of_watch(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            before = x * x
            tape.watch(x)
            after = x * 5.0
        return tape.gradient([before, after], x)

    assert run(example).numpy() == 5.0


def test_watch_after_exit_is_accepted(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        tape.watch(x)
        return tape.gradient(y, x)

    assert run(example).numpy() == 6.0


def test_watching_is_local_to_the_tape(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as one, tg.GradientTape() as other:
            one.watch(x)
            y = x * x
        return one.gradient(y, x), other.gradient(y, x)

    assert values(run(example)) == [6.0, None]


def test_two_equal_constants_are_distinct_sources(run):
    a, b = tg.constant(3.0), tg.constant(3.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(a)
            y = a * b
        return tape.gradient(y, [a, b])

    assert values(run(example)) == [3.0, None]


def test_two_equal_constants_made_in_a_function_are_distinct_sources():
    @tg.function
    def example():
        a, b = tg.constant(3.0), tg.constant(3.0)
        with tg.GradientTape() as tape:
            tape.watch(a)
            y = a * a + b
        return tape.gradient(y, [a, b])

    assert values(example()) == [6.0, None]


def test_identity_of_a_watched_tensor_is_another_source(run):
    x = tg.constant(3.0)

    def example():
        other = tg.identity(x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, [x, other])

    assert values(run(example)) == [6.0, None]


def test_watching_an_integer_warns_with_its_dtype(run):
    x = tg.constant(3, tg.int64)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
        return tape.gradient(x, x)

    with pytest.warns(UserWarning, match="int64"):
        assert run(example) is None


@pytest.mark.parametrize(
    "bad",
    [1, 1.0, "text", None, np.ones(2), [1.0]],
    ids=["int", "float", "str", "None", "ndarray", "list"],
)
def test_watch_refuses_what_is_not_a_tensor(bad):
    kind = type(bad[0] if isinstance(bad, list) else bad).__name__
    with tg.GradientTape() as tape, pytest.raises(ValueError, match=kind):
        tape.watch(bad)


def test_tape_is_usable_after_a_refused_watch():
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        with contextlib.suppress(ValueError):
            tape.watch(1)
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x).numpy() == 6.0


def test_watch_on_a_tape_never_entered_is_an_error():
    with pytest.raises(RuntimeError):
        tg.GradientTape().watch(tg.constant(3.0))


# ---------------------------------------------------------------- reads of variables


def test_gradient_uses_the_value_that_was_read(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = v * v
        v.assign(100.0)
        return tape.gradient(y, v)

    assert run(example).numpy() == 6.0


def test_assignment_inside_the_block_does_not_change_earlier_reads(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = v * v
            v.assign(5.0)
            z = v * v
        return tape.gradient([y, z], v)

    assert run(example).numpy() == 6.0 + 10.0


def test_every_way_of_reading_leads_to_the_variable(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = v.read_value() ** 2 + 2.0 * v.value() + 5.0 * tg.identity(v) + v
        return tape.gradient(y, v)

    assert run(example).numpy() == 14.0


def test_read_tensor_is_a_source_of_its_own(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            read = v.read_value()
            y = read * read + v
        return tape.gradient(y, [v, read])

    assert values(run(example)) == [7.0, 6.0]


def test_assigned_value_is_not_connected_to_its_producer(run):
    x = tg.constant(3.0)
    v = tg.Variable(0.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            v.assign(x * x)
            y = v * 2.0
        return tape.gradient(y, [x, v])

    assert values(run(example)) == [None, 2.0]


def test_result_of_an_assignment_reads_the_variable(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            new = v.assign_add(1.0)
            y = new * new
        return tape.gradient(y, v)

    assert run(example).numpy() == 8.0


# ---------------------------------------------------------------- gradient: structure


def test_result_has_the_structure_of_the_sources(run):
    a, b, c = tg.constant(2.0), tg.constant(3.0), tg.constant(5.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch([a, b])
            y = a * b
        return tape.gradient(y, {"one": [a, (b,)], "two": c})

    grads = run(example)
    assert set(grads) == {"one", "two"} and grads["two"] is None
    assert isinstance(grads["one"], list) and isinstance(grads["one"][1], tuple)
    assert grads["one"][0].numpy() == 3.0 and grads["one"][1][0].numpy() == 2.0


def test_no_sources_give_an_empty_list(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, [])

    assert run(example) == []


def test_no_targets_give_none(run):
    x = tg.constant(3.0)

    def example():
        tape, _ = square_tape(x, persistent=True)
        return tape.gradient([], x), tape.gradient([], [x])

    single, several = run(example)
    assert single is None
    assert list(several) == [None]


def test_repeated_sources_each_get_the_gradient(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, [x, x])

    assert values(run(example)) == [6.0, 6.0]


def test_target_among_the_sources_adds_one(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        return tape.gradient([y, z], [x, y])

    assert values(run(example)) == [6.0 + 108.0, 1.0 + 18.0]


def test_target_that_is_the_source(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
        return tape.gradient(x, x)

    assert run(example).numpy() == 1.0


def test_target_may_be_a_variable(run):
    v = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = v * v
        return tape.gradient([v, y], v)

    assert run(example).numpy() == 1.0 + 6.0


def test_variable_by_itself_has_derivative_one(run):
    v = tg.Variable([3.0, 4.0])

    def example():
        with tg.GradientTape() as tape:
            v.read_value()
        return tape.gradient(v, v)

    np.testing.assert_array_equal(run(example).numpy(), [1.0, 1.0])


@pytest.mark.parametrize("pack", [list, tuple, lambda pair: dict(zip("ab", pair, strict=True))])
def test_several_targets_are_summed(run, pack):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            pair = [x * x, 5.0 * x]
        return tape.gradient(pack(pair), x)

    assert run(example).numpy() == 11.0


def test_one_target_given_twice_counts_twice(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        return tape.gradient([y, y], x)

    assert run(example).numpy() == 12.0


def test_target_that_is_not_scalar_is_summed(run):
    x = tg.constant([1.0, 2.0])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x[:, None] * tg.constant([[1.0, 2.0, 3.0]])
        return tape.gradient(y, x)

    np.testing.assert_array_equal(run(example).numpy(), [6.0, 6.0])


def test_target_not_recorded_gives_none(run):
    x = tg.constant(3.0)

    def example():
        tape, _ = square_tape(x)
        return tape.gradient(x * 2.0, x)

    assert run(example) is None


def test_gradient_of_an_intermediate_result(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = tg.sin(y)
        return tape.gradient(z, y)

    np.testing.assert_allclose(run(example).numpy(), math.cos(9.0), rtol=1e-5)


def test_gradient_has_the_dtype_and_shape_of_the_source(run):
    x = tg.constant(np.ones((2, 3)), tg.float64)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(x, axis=1)
        return tape.gradient(y, x)

    grad = run(example)
    assert grad.dtype == tg.float64 and grad.shape == (2, 3)


# ---------------------------------------------------------------- gradient: unconnected


@pytest.mark.parametrize("choice", ["none", tg.UnconnectedGradients.NONE])
def test_unconnected_none(run, choice):
    x, other = tg.constant(3.0), tg.constant([1.0, 2.0])

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, [x, other], unconnected_gradients=choice)

    assert values(run(example)) == [6.0, None]


@pytest.mark.parametrize("choice", ["zero", tg.UnconnectedGradients.ZERO])
def test_unconnected_zero(run, choice):
    x, other = tg.constant(3.0), tg.constant([1.0, 2.0], tg.float64)

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, [x, other], unconnected_gradients=choice)

    grad, zeros = run(example)
    assert grad.numpy() == 6.0
    assert zeros.dtype == tg.float64
    np.testing.assert_array_equal(zeros.numpy(), [0.0, 0.0])


@pytest.mark.filterwarnings("ignore:.*int32:UserWarning")
def test_unconnected_zero_of_an_integer_source_is_integer(run):
    x, other = tg.constant(3.0), tg.constant([1, 2])

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, [other], unconnected_gradients="zero")

    (zeros,) = run(example)
    assert zeros.dtype == tg.int32
    np.testing.assert_array_equal(zeros.numpy(), [0, 0])


def test_unknown_unconnected_gradients_is_an_error():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    with pytest.raises(ValueError, match="bogus"):
        tape.gradient(y, x, unconnected_gradients="bogus")
    assert tape.gradient(y, x).numpy() == 6.0  # the tape is not used up


# ---------------------------------------------------------------- gradient: bad arguments


def test_target_none_is_an_error():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    with pytest.raises(TypeError, match="None"):
        tape.gradient(None, x)
    assert tape.gradient(y, x).numpy() == 6.0


@pytest.mark.parametrize("bad", [None, 3.0, "text", np.ones(2)], ids=lambda bad: type(bad).__name__)
def test_source_that_is_not_a_tensor_is_an_error(bad):
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    with pytest.raises((TypeError, ValueError), match=type(bad).__name__.removesuffix("Type")):
        tape.gradient(y, bad)
    assert tape.gradient(y, x).numpy() == 6.0


@pytest.mark.parametrize("bad", [3.0, "text", np.ones(2)], ids=lambda bad: type(bad).__name__)
def test_target_that_is_not_a_tensor_is_an_error(bad):
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    with pytest.raises((TypeError, ValueError), match=type(bad).__name__):
        tape.gradient(bad, x)
    assert tape.gradient(y, x).numpy() == 6.0


def test_bad_source_names_the_line():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    with pytest.raises((TypeError, ValueError)) as error:
        tape.gradient(y, 3.0)
    assert here(line() - 1) in str(error.value)


# ---------------------------------------------------------------- single use


def test_plain_tape_serves_one_gradient(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        tape.gradient(y, x)
        return tape.gradient(y, x)

    with pytest.raises(RuntimeError, match="persistent"):
        run(example)


def test_tape_never_entered_is_an_error():
    x = tg.constant(3.0)
    with pytest.raises(RuntimeError):
        tg.GradientTape().gradient(x, x)


def test_single_use_error_names_the_line():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    tape.gradient(y, x)
    with pytest.raises(RuntimeError) as error:
        tape.gradient(y, x)
    assert here(line() - 1) in str(error.value)


def test_used_tape_may_be_entered_again(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x)
        tape.gradient(y, x)
        with tape:
            tape.watch(x)
            z = x * x * x
        return tape.gradient(z, x)

    assert run(example).numpy() == 27.0


# ---------------------------------------------------------------- gradient inside the block


def test_plain_tape_gradient_inside_its_block(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            grad = tape.gradient(y, x)
        return grad

    assert run(example).numpy() == 6.0


def test_plain_tape_is_used_up_inside_its_block(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.gradient(y, x)
            z = x * y
        return tape.gradient(z, x)

    with pytest.raises(RuntimeError, match="persistent"):
        run(example)


def test_other_tapes_go_on_after_a_gradient_inside_the_block(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as outer, tg.GradientTape() as inner:
            outer.watch(x)
            inner.watch(x)
            y = x * x
            inner.gradient(y, x)
            z = x * y
        return outer.gradient(z, x)

    assert run(example).numpy() == 27.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_persistent_tape_records_a_gradient_inside_its_block(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * x
            dy = tape.gradient(y, x)
            d2y = tape.gradient(dy, x)
        return dy, d2y, tape.gradient(d2y, x), tape.gradient(y, x)

    assert values(run(example)) == [27.0, 18.0, 6.0, 27.0]


def test_gradient_after_the_block_is_not_recorded(run):
    x = tg.constant(3.0)

    def example():
        tape, y = square_tape(x, persistent=True)
        dy = tape.gradient(y, x)
        return tape.gradient(dy, x)

    assert run(example) is None


# ---------------------------------------------------------------- output_gradients


def test_output_gradients_weigh_the_target(run):
    x = tg.constant([1.0, 2.0])

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, x, output_gradients=tg.constant([1.0, 10.0]))

    np.testing.assert_array_equal(run(example).numpy(), [2.0, 40.0])


def two_targets(x, output_gradients, pack):
    """The gradient of pack(x * x, 3 * sum(x)) with the given output gradients."""
    with tg.GradientTape() as tape:
        tape.watch(x)
        targets = pack(x * x, 3.0 * tg.reduce_sum(x))
    return tape.gradient(targets, x, output_gradients=output_gradients)


def test_output_gradients_of_a_list(run):
    x = tg.constant([1.0, 2.0])

    def example():
        return two_targets(x, [tg.constant([1.0, 10.0]), tg.constant(2.0)], lambda *ys: list(ys))

    np.testing.assert_array_equal(run(example).numpy(), [8.0, 46.0])


def test_output_gradients_of_a_dictionary(run):
    x = tg.constant([1.0, 2.0])

    def example():
        weights = {"b": tg.constant(2.0), "a": tg.constant([1.0, 10.0])}
        return two_targets(x, weights, lambda a, b: {"a": a, "b": b})

    np.testing.assert_array_equal(run(example).numpy(), [8.0, 46.0])


def test_output_gradient_none_means_ones(run):
    x = tg.constant([1.0, 2.0])

    def example():
        return two_targets(x, [None, tg.constant(2.0)], lambda *ys: list(ys))

    np.testing.assert_array_equal(run(example).numpy(), [8.0, 10.0])


def test_output_gradients_may_be_arrays(run):
    x = tg.constant([1.0, 2.0])

    def example():
        tape, y = square_tape(x)
        return tape.gradient(y, x, output_gradients=np.array([1.0, 10.0], np.float32))

    np.testing.assert_array_equal(run(example).numpy(), [2.0, 40.0])


def test_output_gradients_are_differentiated(run):
    x, weight = tg.constant(3.0), tg.constant(5.0)

    def example():
        with tg.GradientTape() as outer:
            outer.watch([x, weight])
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = x * x
            dy = inner.gradient(y, x, output_gradients=weight)
        return outer.gradient(dy, [x, weight])

    assert values(run(example)) == [10.0, 6.0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: tg.constant(1.0),
        lambda: tg.constant([1.0, 2.0, 3.0]),
        lambda: tg.constant([[1.0, 2.0]]),
        lambda: [tg.constant([1.0, 2.0])] * 2,
        lambda: {"a": tg.constant([1.0, 2.0])},
    ],
    ids=["scalar", "too long", "rank", "too many", "structure"],
)
def test_output_gradients_must_match_the_target(wrong):
    x = tg.constant([1.0, 2.0])
    tape, y = square_tape(x)
    with pytest.raises(tg.errors.GradientError):
        tape.gradient(y, x, output_gradients=wrong())
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [2.0, 4.0])


def test_too_few_output_gradients_are_an_error():
    x = tg.constant([1.0, 2.0])
    with pytest.raises(tg.errors.GradientError):
        two_targets(x, [tg.constant([1.0, 2.0])], lambda *ys: list(ys))


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_output_gradients_of_another_dtype_are_an_error(dtype):
    x = tg.constant([1.0, 2.0])
    tape, y = square_tape(x)
    with pytest.raises((ValueError, TypeError)):
        tape.gradient(y, x, output_gradients=tg.constant(np.array([1, 2], dtype)))


def test_gradient_error_is_a_value_error():
    assert issubclass(tg.errors.GradientError, ValueError)


# ---------------------------------------------------------------- stop_recording and reset


def test_stop_recording_breaks_the_path(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            with tape.stop_recording():
                y = x * x
            z = y * x
        return tape.gradient(z, x)

    assert run(example).numpy() == 9.0


def test_variables_read_while_stopped_are_not_watched():
    v, w = tg.Variable(3.0), tg.Variable(3.0)
    with tg.GradientTape() as tape:
        with tape.stop_recording():
            v * v
        w * w
    assert [variable is w for variable in tape.watched_variables()] == [True]


def test_stop_recording_concerns_one_tape(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as one, tg.GradientTape() as other:
            one.watch(x)
            other.watch(x)
            with one.stop_recording():
                y = x * x
        return one.gradient(y, x), other.gradient(y, x)

    assert values(run(example)) == [None, 6.0]


def test_recording_goes_on_after_an_exception_while_stopped(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            with contextlib.suppress(KeyError), tape.stop_recording():
                raise KeyError("from the user's code")
            y = x * x
        return tape.gradient(y, x)

    assert run(example).numpy() == 6.0


def test_gradient_while_stopped_is_not_recorded(run):
    x = tg.constant(2.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            with tape.stop_recording():
                dy = tape.gradient(y, x)
            z = dy * x
        return tape.gradient(z, x), tape.gradient(dy, x)

    assert values(run(example)) == [4.0, None]


def test_stop_recording_before_entering_is_an_error():
    with pytest.raises(RuntimeError), tg.GradientTape().stop_recording():
        pass


def test_stop_recording_after_exit_is_an_error():
    with tg.GradientTape() as tape:
        pass
    with pytest.raises(ValueError, match="recording"), tape.stop_recording():
        pass


def test_stop_recording_while_stopped_is_an_error():
    with tg.GradientTape() as tape, tape.stop_recording():
        with pytest.raises(ValueError, match="recording"), tape.stop_recording():
            pass


def test_reset_forgets_what_was_recorded(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.reset()
            tape.watch(x)
            z = y * x
        return tape.gradient(z, x)

    assert run(example).numpy() == 9.0


def test_reset_forgets_what_was_watched(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            tape.reset()
            y = x * x
        return tape.gradient(y, x)

    assert run(example) is None


def test_reset_forgets_the_watched_variables():
    v, w = tg.Variable(3.0), tg.Variable(3.0)
    with tg.GradientTape() as tape:
        v * v
        tape.reset()
        assert tape.watched_variables() == ()
        w * w
    assert [variable is w for variable in tape.watched_variables()] == [True]


def test_reset_keeps_the_tape_persistent(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.reset()
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x), tape.gradient(y, x)

    assert values(run(example)) == [6.0, 6.0]


def test_reset_outside_the_block_is_an_error():
    with tg.GradientTape() as tape:
        pass
    with pytest.raises(ValueError, match="recording"):
        tape.reset()


def test_reset_before_entering_is_an_error():
    with pytest.raises((ValueError, RuntimeError)):
        tg.GradientTape().reset()


def test_reset_while_stopped_is_an_error():
    with tg.GradientTape() as tape, tape.stop_recording(), pytest.raises(ValueError):
        tape.reset()


# ---------------------------------------------------------------- watched_variables


def test_watched_variables_are_in_the_order_of_their_creation():
    first, second = tg.Variable(1.0, name="first"), tg.Variable(1.0, name="second")
    with tg.GradientTape() as tape:
        second * first
        second * second
    assert [variable.name for variable in tape.watched_variables()] == ["first:0", "second:0"]
    assert isinstance(tape.watched_variables(), tuple)


def test_watched_variables_are_the_variables_themselves():
    v = tg.Variable(1.0)
    with tg.GradientTape() as tape:
        v * v
    (watched,) = tape.watched_variables()
    assert watched is v


def test_watched_variables_are_there_after_gradient():
    v = tg.Variable(1.0)
    with tg.GradientTape() as tape:
        y = v * v
    tape.gradient(y, v)
    assert len(tape.watched_variables()) == 1


def test_watched_variables_are_known_inside_the_block():
    v = tg.Variable(1.0)
    with tg.GradientTape() as tape:
        assert tape.watched_variables() == ()
        v * v
        assert len(tape.watched_variables()) == 1


def test_watched_variables_before_entering_are_none_at_all():
    assert tg.GradientTape().watched_variables() == ()


def test_names_of_watched_variables_may_repeat():
    a, b = tg.Variable(1.0), tg.Variable(2.0)
    with tg.GradientTape() as tape:
        a * b
    assert [v.name for v in tape.watched_variables()] == ["Variable:0", "Variable:0"]


def test_watched_variable_that_is_not_trainable_is_listed():
    v = tg.Variable(1.0, trainable=False)
    with tg.GradientTape() as tape:
        tape.watch(v)
        v * v
    assert [variable is v for variable in tape.watched_variables()] == [True]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_variables_of_nested_functions_are_watched(depth):
    v = tg.Variable(3.0)
    fn = tg.function(lambda: v * v)
    for _ in range(depth - 1):
        fn = tg.function(lambda inner=fn: inner())
    for _ in range(2):  # the first call traces, the second does not
        with tg.GradientTape() as tape:
            y = fn()
        assert [variable is v for variable in tape.watched_variables()] == [True]
        assert tape.gradient(y, v).numpy() == 6.0


# ---------------------------------------------------------------- dtypes without gradient


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_source_without_derivative_gives_none_and_a_warning(run, dtype):
    x = tg.constant(np.array([1, 0], dtype))

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cast(x, tg.float32) ** 2
        return tape.gradient(y, x)

    with pytest.warns(UserWarning, match=dtype):
        assert run(example) is None


def test_warning_for_an_integer_source_points_at_the_line():
    v = tg.Variable(3)
    with tg.GradientTape() as tape:
        y = v * v
    with pytest.warns(UserWarning, match="int32") as caught:
        tape.gradient(y, v)
    assert os.path.basename(caught[0].filename) == os.path.basename(__file__)


def test_integer_source_beside_a_float_source(run):
    x, count = tg.constant(3.0), tg.constant(2)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * tg.cast(count, tg.float32)
        return tape.gradient(y, [x, count])

    with pytest.warns(UserWarning, match="int32"):
        assert values(run(example)) == [2.0, None]


def test_cast_to_an_integer_breaks_the_path(run):
    x = tg.constant(3.5)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cast(tg.cast(x, tg.int32), tg.float32) * 2.0
        return tape.gradient(y, x)

    assert run(example) is None


def test_cast_between_floating_dtypes_keeps_the_path(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cast(x, tg.float64) ** 2
        return tape.gradient(y, x)

    grad = run(example)
    assert grad.dtype == tg.float32 and grad.numpy() == 6.0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["argmax", "greater"])
def test_integer_or_boolean_target_gives_none(run, name):
    x = tg.constant([2.0, 3.0])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.argmax(x) if name == "argmax" else x > 1.0
        return tape.gradient(y, x)

    assert run(example) is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_integer_target_beside_a_float_target(run):
    x = tg.constant([2.0, 3.0])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y, z = x * 2.0, tg.argmax(x)
        return tape.gradient([y, z], x)

    np.testing.assert_array_equal(run(example).numpy(), [2.0, 2.0])


@pytest.mark.parametrize("name", ["sign", "round", "floor", "ceil", "rint"])
def test_steps_give_zeros_or_none_alike_in_both_modes(name):
    x = tg.constant(2.25)
    op = getattr(tg.math, name)
    (plain,) = gradient(op, x)
    (compiled,) = tg.function(lambda: gradient(op, x))()
    assert (plain is None) == (compiled is None)
    if plain is not None:
        assert plain.numpy() == compiled.numpy() == 0.0


def test_sign_is_connected(run):
    x = tg.constant([-2.0, 0.0, 3.0])
    (grad,) = run(lambda: gradient(tg.sign, x))
    np.testing.assert_array_equal(grad.numpy(), [0.0, 0.0, 0.0])


# ---------------------------------------------------------------- complex


def test_complex_gradient_is_the_conjugate(run):
    c = tg.constant(1 + 2j)
    assert run(lambda: gradient(lambda c: c * c, c))[0].numpy() == 2 - 4j


def test_real_source_of_a_complex_path_keeps_the_real_part(run):
    r = tg.constant(2.0, tg.float64)

    def fn(r):
        return tg.cast(r, tg.complex128) * tg.constant(3 + 4j)

    grad = run(lambda: gradient(fn, r))[0]
    assert grad.dtype == tg.float64 and grad.numpy() == 3.0


def test_squared_modulus_has_gradient_twice_the_value(run):
    c = tg.constant(1 + 2j)
    grad = run(lambda: gradient(lambda c: tg.math.real(c * tg.math.conj(c)), c))[0]
    assert grad.numpy() == 2 + 4j


def test_modulus_of_a_complex_source(run):
    c = tg.constant(3 + 4j)
    grad = run(lambda: gradient(tg.abs, c))[0]
    np.testing.assert_allclose(grad.numpy(), 0.6 + 0.8j, rtol=1e-12)


# ---------------------------------------------------------------- numerics at kinks

KINKS = {
    "sqrt": (tg.sqrt, [0.0], [np.inf]),
    "abs": (tg.abs, [0.0], [0.0]),
    "relu": (lambda x: tg.nn.relu(x), [0.0], [0.0]),
    "maximum tie": (tg.maximum, [1.0, 1.0], [1.0, 0.0]),
    "minimum tie": (tg.minimum, [1.0, 1.0], [1.0, 0.0]),
    "reduce_max tie": (tg.reduce_max, [[1.0, 1.0, 0.0]], [[0.5, 0.5, 0.0]]),
    "reduce_min tie": (tg.reduce_min, [[1.0, 1.0, 3.0]], [[0.5, 0.5, 0.0]]),
    "clip at the bounds": (
        lambda x: tg.clip_by_value(x, -1.0, 1.0),
        [[-2.0, -1.0, 0.0, 1.0, 2.0]],
        [[0.0, 1.0, 1.0, 1.0, 0.0]],
    ),
    "divide_no_nan": (tg.math.divide_no_nan, [1.0, 0.0], [0.0, 0.0]),
    "square by pow": (lambda x: tg.pow(x, 2.0), [0.0], [0.0]),
    "pow with both": (tg.pow, [0.0, 2.0], [0.0, 0.0]),
    "power of zero": (lambda x: tg.pow(x, 0.0), [0.0], [0.0]),  # TensorFlow: nan
    "negative base": (tg.pow, [-2.0, 3.0], [12.0, 0.0]),
    "guarded sqrt": (lambda x: tg.where(x > 0.0, tg.sqrt(x), 0.0), [[0.0, 4.0]], [[0.0, 0.25]]),
    "log": (tg.math.log, [0.0], [np.inf]),
    "product with a zero": (tg.reduce_prod, [[0.0, 2.0, 3.0]], [[6.0, 0.0, 0.0]]),
    "product with two zeros": (tg.reduce_prod, [[0.0, 0.0, 3.0]], [[0.0, 0.0, 0.0]]),
    "softplus far out": (lambda x: tg.nn.softplus(x), [[-1000.0, 1000.0]], [[0.0, 1.0]]),
    "sigmoid far out": (lambda x: tg.nn.sigmoid(x), [[-1000.0, 1000.0]], [[0.0, 0.0]]),
    "logsumexp far out": (tg.reduce_logsumexp, [[1000.0, 1000.0]], [[0.5, 0.5]]),
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", KINKS)
def test_numerics_at_kinks(run, name):
    fn, at, expected = KINKS[name]
    sources = [tg.constant(x) for x in at]
    grads = run(lambda: gradient(fn, *sources))
    for grad, value in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(grad.numpy(), np.float32(value))


# ---------------------------------------------------------------- stop_gradient and rules


def test_stop_gradient_is_the_identity(run):
    x = tg.constant([3.0, 4.0])
    np.testing.assert_array_equal(run(lambda: tg.stop_gradient(x)).numpy(), [3.0, 4.0])


def test_stop_gradient_stops_one_path(run):
    x = tg.constant(3.0)
    assert run(lambda: gradient(lambda x: tg.stop_gradient(x) * x, x))[0].numpy() == 3.0


def test_stop_gradient_alone_gives_none(run):
    x = tg.constant(3.0)
    assert run(lambda: gradient(tg.stop_gradient, x)) == [None]


def test_missing_rule_is_a_lookup_error_with_its_line(run):
    image = tg.constant([[[0.5]]])
    at = line() + 5

    def example():
        with tg.GradientTape() as tape:
            tape.watch(image)
            y = tg.image.adjust_contrast(image, 0.1)
        return tape.gradient(y, image)

    with pytest.raises(LookupError) as error:
        run(example)
    assert here(at) in str(error.value)


def test_missing_rule_off_the_path_does_no_harm(run):
    image = tg.constant([[[0.5]]])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(image)
            tg.image.adjust_contrast(image, 0.1)
            y = image * 2.0
        return tape.gradient(y, image)

    assert run(example).numpy() == 2.0


def test_register_gradient_accepts_an_op_that_does_not_exist_yet():
    rule = tg.RegisterGradient("OpOfTheFutureA")(lambda op, grad: grad)
    assert callable(rule)


def test_registering_a_gradient_twice_is_a_key_error():
    tg.RegisterGradient("OpOfTheFutureB")(lambda op, grad: grad)
    with pytest.raises(KeyError, match="OpOfTheFutureB"):
        tg.RegisterGradient("OpOfTheFutureB")(lambda op, grad: grad)


def test_register_gradient_wants_a_name():
    with pytest.raises(TypeError):
        tg.RegisterGradient(3)(lambda op, grad: grad)


def test_no_gradient_wants_a_name():
    with pytest.raises(TypeError):
        tg.no_gradient(3)


# The registry is global, so this runs in a process of its own.
REGISTERED_RULE = """
import tracegraph as tg
image = tg.constant([[[0.5], [0.7]]])
compute = tg.function(lambda x: tg.image.adjust_contrast(x, 0.1))
operations = compute.get_concrete_function(image).graph.get_operations()
(name,) = [op.type for op in operations if "contrast" in op.type.lower()]

@tg.RegisterGradient(name)
def rule(op, grad):
    assert op.inputs[0].shape == (1, 2, 1) and op.outputs[0].shape == (1, 2, 1)
    return (grad * 7.0,) + (None,) * (len(op.inputs) - 1)

with tg.GradientTape() as tape:
    tape.watch(image)
    y = tg.image.adjust_contrast(image, 0.1)
print(tape.gradient(y, image).numpy().tolist())
"""


def test_registered_rule_replaces_a_missing_one():
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED_RULE], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[[[7.0], [7.0]]]", done.stderr


# ---------------------------------------------------------------- several tapes, higher order


def test_two_tapes_over_the_same_operations(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as one, tg.GradientTape() as other:
            one.watch(x)
            other.watch(x)
            y = x * x
        return one.gradient(y, x), other.gradient(y, x)

    assert values(run(example)) == [6.0, 6.0]


def test_tapes_may_overlap_without_nesting(run):
    x = tg.constant(3.0)

    def example():
        one, other = tg.GradientTape(), tg.GradientTape()
        one.__enter__()
        one.watch(x)
        y = x * x
        other.__enter__()
        other.watch(y)
        z = y * 2.0
        one.__exit__(None, None, None)
        w = z * z
        other.__exit__(None, None, None)
        return one.gradient(z, x), other.gradient(w, y)

    assert values(run(example)) == [12.0, 72.0]


def test_inner_gradient_is_recorded_by_the_outer_tape(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = x**3
            dy = inner.gradient(y, x)
        return outer.gradient(dy, x)

    assert run(example).numpy() == 18.0


def test_inner_gradient_after_the_outer_block_is_not_recorded(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = x**3
        dy = inner.gradient(y, x)
        return outer.gradient(dy, x)

    assert run(example) is None


def test_tape_opened_after_the_forward_sees_the_gradient_nodes_only(run):
    x = tg.constant(3.0)

    def example():
        inner, y = square_tape(x)
        with tg.GradientTape() as outer:
            outer.watch(x)
            dy = inner.gradient(y, x)
        return outer.gradient(dy, x)

    assert run(example).numpy() == 2.0


def nested(fn, depth):
    """The derivative of order `depth` of fn, by that many nested tapes."""
    if depth == 0:
        return fn
    inner = nested(fn, depth - 1)

    def derivative(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    return derivative


def polynomial_derivative(order, x):
    """The derivative of x**7 of the given order."""
    return math.perm(7, order) * x ** (7 - order)


ANALYTIC = {
    "power": (lambda x: x**7, polynomial_derivative),
    "product": (lambda x: x * x * x * x * x * x * x, polynomial_derivative),
    "sin": (tg.sin, lambda order, x: math.sin(x + order * math.pi / 2)),
    "exp": (lambda x: tg.exp(2.0 * x), lambda order, x: 2**order * math.exp(2 * x)),
    "reciprocal": (
        lambda x: 1.0 / x,
        lambda order, x: (-1) ** order * math.factorial(order) / x ** (order + 1),
    ),
    "log": (
        tg.math.log,
        lambda order, x: (-1) ** (order - 1) * math.factorial(order - 1) / x**order,
    ),
    "sqrt": (
        tg.sqrt,
        lambda order, x: math.prod(0.5 - k for k in range(order)) * x ** (0.5 - order),
    ),
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", ANALYTIC)
def test_higher_order_derivatives(run, name, order):
    fn, analytic = ANALYTIC[name]
    x = tg.constant(0.7, tg.float64)
    np.testing.assert_allclose(run(nested(fn, order), x).numpy(), analytic(order, 0.7), rtol=1e-11)


def taylor_of_tanh_sine(x, order):
    """The derivative of sin(tanh(x) * x) of the given order, from its Taylor polynomial."""
    size = order + 1
    tanh = np.zeros(size)
    tanh[0] = math.tanh(x)
    for k in range(order):  # tanh' = 1 - tanh * tanh
        tanh[k + 1] = (float(k == 0) - np.dot(tanh[: k + 1], tanh[k::-1])) / (k + 1)
    inner = tanh * x
    inner[1:] += tanh[:-1]
    sine, cosine = np.zeros(size), np.zeros(size)
    sine[0], cosine[0] = math.sin(inner[0]), math.cos(inner[0])
    for k in range(1, size):
        steps = np.arange(1, k + 1) * inner[1 : k + 1]
        sine[k] = np.dot(steps, cosine[k - 1 :: -1]) / k
        cosine[k] = -np.dot(steps, sine[k - 1 :: -1]) / k
    return math.factorial(order) * sine[order]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_higher_order_derivatives_of_a_composition(run, order):
    x = tg.constant(0.7, tg.float64)
    result = run(nested(lambda x: tg.sin(tg.tanh(x) * x), order), x)
    np.testing.assert_allclose(result.numpy(), taylor_of_tanh_sine(0.7, order), rtol=1e-9)


@pytest.mark.parametrize("depth", [3, 4, 5])
def test_nested_tapes_give_every_order_at_once(run, depth):
    x = tg.constant(0.7, tg.float64)

    def example():
        with contextlib.ExitStack() as stack:
            tapes = [stack.enter_context(tg.GradientTape()) for _ in range(depth)]
            for tape in tapes:
                tape.watch(x)
            derivatives = [tg.sin(x)]
            for tape in reversed(tapes):  # the innermost tape is asked first
                derivatives.append(tape.gradient(derivatives[-1], x))
        return derivatives

    expected = [math.sin(0.7 + order * math.pi / 2) for order in range(depth + 1)]
    np.testing.assert_allclose(values(run(example)), expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_persistent_tape_gives_every_order(run):
    x = tg.constant(0.7, tg.float64)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            derivatives = [tg.exp(2.0 * x)]
            for _ in range(4):
                derivatives.append(tape.gradient(derivatives[-1], x))
        return derivatives

    expected = [2.0**order * math.exp(1.4) for order in range(5)]
    np.testing.assert_allclose(values(run(example)), expected, rtol=1e-12)


def test_second_derivative_that_is_zero_or_none(run):
    """The derivative of a linear function does not depend on x."""
    x = tg.constant(3.0)
    assert run(nested(lambda x: 5.0 * x, 2), x) is None


def test_mixed_second_derivative(run):
    x, y = tg.constant(2.0), tg.constant(3.0)

    def example():
        with tg.GradientTape() as outer:
            outer.watch([x, y])
            with tg.GradientTape() as inner:
                inner.watch(x)
                z = x**2 * y**3
            dz_dx = inner.gradient(z, x)
        return outer.gradient(dz_dx, [x, y])

    assert values(run(example)) == [2.0 * 27.0, 2.0 * 2.0 * 27.0]


def test_second_derivative_of_a_matrix_product(run):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    ta, tb = tg.constant(a), tg.constant(b)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(tb)
            with tg.GradientTape() as inner:
                inner.watch(ta)
                loss = tg.reduce_sum(tg.matmul(ta, tb) ** 2)
            dloss = inner.gradient(loss, ta)
            size = tg.reduce_sum(dloss**2)
        return dloss, outer.gradient(size, tb)

    dloss, d_size = run(example)
    # dloss = 2 a b b', size = 4 tr(b b' a' a b b'), symmetric in s = b b'
    s = b @ b.T
    gram = a.T @ a
    np.testing.assert_allclose(dloss.numpy(), 2 * a @ s, rtol=1e-12)
    np.testing.assert_allclose(d_size.numpy(), 8 * (gram @ s + s @ gram) @ b, rtol=1e-10)


# ---------------------------------------------------------------- function boundaries


def test_tape_inside_a_function():
    @tg.function
    def derivative(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x**3
        return tape.gradient(y, x)

    assert derivative(tg.constant(3.0)).numpy() == 27.0
    assert derivative(tg.constant(2.0)).numpy() == 12.0
    assert derivative.experimental_get_tracing_count() == 1


def test_tape_around_a_function():
    cube = tg.function(lambda x: x**3)
    for value in (3.0, 2.0):
        (grad,) = gradient(cube, tg.constant(value))
        assert grad.numpy() == 3 * value**2
    assert cube.experimental_get_tracing_count() == 1


def test_tape_of_the_top_level_asked_inside_a_function():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    assert tg.function(lambda: tape.gradient(y, x))().numpy() == 6.0


def test_tape_made_in_a_function_cannot_be_used_outside():
    x = tg.constant(3.0)
    leaked = []

    @tg.function
    def f():
        tape, y = square_tape(x)
        leaked.append((tape, y))
        return y

    f()
    tape, y = leaked[0]
    with pytest.raises(TypeError, match="scope"):
        tape.gradient(y, x)


def test_function_may_return_none_gradients():
    x, other = tg.constant(3.0), tg.constant(1.0)

    @tg.function
    def f():
        tape, y = square_tape(x)
        return tape.gradient(y, {"x": x, "other": other})

    grads = f()
    assert grads["x"].numpy() == 6.0
    assert grads["other"] is None


def test_output_that_does_not_depend_on_the_source_gives_none():
    f = tg.function(lambda x, y: (x * 2.0, y * 3.0))
    x, y = tg.constant(1.0), tg.constant(1.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        first, second = f(x, y)
    assert values(tape.gradient(first, [x, y])) == [2.0, None]
    assert values(tape.gradient(second, [x, y])) == [None, 3.0]


def test_function_that_returns_its_argument():
    f = tg.function(lambda x: x)
    assert values(gradient(f, tg.constant(3.0))) == [1.0]


def test_function_that_returns_one_value_twice():
    @tg.function
    def f(x):
        y = x * x
        return y, y

    assert values(gradient(lambda x: list(f(x)), tg.constant(3.0))) == [12.0]


def test_function_called_twice_is_differentiated_through_both_calls():
    f = tg.function(lambda x: x * x)
    assert values(gradient(lambda x: f(f(x)), tg.constant(3.0))) == [108.0]


def test_function_called_with_one_tensor_twice():
    f = tg.function(lambda a, b: a * b)
    assert values(gradient(lambda x: f(x, x), tg.constant(3.0))) == [6.0]


def test_captured_variable_of_a_function():
    v = tg.Variable(3.0)
    f = tg.function(lambda x: x * v * v)
    x = tg.constant(2.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert values(tape.gradient(y, [x, v])) == [9.0, 12.0]


def test_captured_tensor_of_a_function():
    c, x = tg.constant(3.0), tg.constant(2.0)
    f = tg.function(lambda x: x * c * c)
    with tg.GradientTape() as tape:
        tape.watch([c, x])
        y = f(x)
    assert values(tape.gradient(y, [x, c])) == [9.0, 12.0]


def test_variable_passed_to_a_function():
    v = tg.Variable(3.0)
    f = tg.function(lambda v: v * v)
    with tg.GradientTape() as tape:
        y = f(v)
    assert tape.gradient(y, v).numpy() == 6.0


def test_variable_that_is_not_trainable_stays_unwatched_in_a_function():
    v = tg.Variable(3.0, trainable=False)
    f = tg.function(lambda: v * v)
    with tg.GradientTape() as tape:
        y = f()
    assert tape.gradient(y, v) is None


def test_watched_variable_is_followed_into_a_function():
    v = tg.Variable(3.0, trainable=False)
    f = tg.function(lambda: v * v)
    with tg.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(v)
        y = f()
    assert tape.gradient(y, v).numpy() == 6.0


def test_function_read_before_assignment_keeps_its_gradient():
    v = tg.Variable(3.0)
    f = tg.function(lambda: v * v)
    with tg.GradientTape() as tape:
        y = f()
    v.assign(100.0)
    assert tape.gradient(y, v).numpy() == 6.0


def test_assignment_inside_a_called_function(run):
    """Each read counts towards the variable, before and after the assignment."""
    v, x = tg.Variable(3.0), tg.constant(2.0)

    @tg.function
    def f(x):
        y = v * x
        v.assign(10.0 * x)
        return y * v

    def example():
        v.assign(3.0)
        with tg.GradientTape() as tape:
            tape.watch(x)
            z = f(x)
        return tape.gradient(z, [v, x])

    assert values(run(example)) == [2.0 * 20.0 + 6.0, 3.0 * 20.0]


def test_assign_add_inside_a_called_function(run):
    v, x = tg.Variable(3.0), tg.constant(2.0)

    @tg.function
    def f(x):
        y = v * x
        v.assign_add(10.0 * x)
        return y * v

    def example():
        v.assign(3.0)
        with tg.GradientTape() as tape:
            tape.watch(x)
            z = f(x)
        return tape.gradient(z, [v, x])

    assert values(run(example)) == [2.0 * 23.0 + 6.0, 3.0 * 23.0]


def test_assignment_in_a_called_function_is_read_afterwards(run):
    v, x = tg.Variable(3.0), tg.constant(2.0)

    @tg.function
    def store(x):
        v.assign(x * x)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            store(x)
            y = v * x
        return tape.gradient(y, [v, x])

    assert values(run(example)) == [2.0, 4.0]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_gradient_through_nested_functions(run, depth):
    fn = tg.function(lambda x: x**3)
    for _ in range(depth - 1):
        fn = tg.function(lambda x, inner=fn: inner(x))
    x = tg.constant(2.0)
    assert values(run(lambda: gradient(fn, x))) == [12.0]


def test_gradient_inside_a_nested_function_goes_on_outside(run):
    @tg.function
    def derivative(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x**3
        return tape.gradient(y, x)

    x = tg.constant(3.0)
    assert values(run(lambda: gradient(derivative, x))) == [18.0]


SECOND_ORDER = {
    "both tapes outside": lambda f: nested(f, 2),
    "inner tape inside": lambda f: nested(tg.function(nested(f, 1)), 1),
    "both tapes inside": lambda f: tg.function(nested(f, 2)),
    "both functions": lambda f: nested(tg.function(nested(tg.function(f), 1)), 1),
    "all functions": lambda f: tg.function(nested(tg.function(nested(tg.function(f), 1)), 1)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("boundary", SECOND_ORDER)
@pytest.mark.parametrize("compiled", [False, True], ids=["plain body", "function body"])
def test_second_order_across_a_boundary(boundary, compiled):
    body = tg.function(lambda x: tg.sin(x) * x) if compiled else lambda x: tg.sin(x) * x
    second = SECOND_ORDER[boundary](body)
    for value in (0.7, 0.9):
        expected = 2 * math.cos(value) - value * math.sin(value)
        result = second(tg.constant(value, tg.float64))
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("boundary", SECOND_ORDER)
def test_second_order_of_a_function_called_twice(boundary):
    square = tg.function(lambda x: x * x)
    second = SECOND_ORDER[boundary](lambda x: square(square(x)))
    assert second(tg.constant(3.0)).numpy() == 108.0  # 12 x**2


@pytest.mark.parametrize("boundary", SECOND_ORDER)
def test_second_order_with_a_captured_tensor(boundary):
    c = tg.constant(5.0)
    inner = tg.function(lambda x: c * x**3)
    assert SECOND_ORDER[boundary](inner)(tg.constant(3.0)).numpy() == 90.0


@pytest.mark.parametrize("boundary", SECOND_ORDER)
def test_second_order_with_a_captured_variable(boundary):
    v = tg.Variable(5.0)
    inner = tg.function(lambda x: v * x**3)
    second = SECOND_ORDER[boundary](inner)
    assert second(tg.constant(3.0)).numpy() == 90.0
    v.assign(7.0)
    assert second(tg.constant(3.0)).numpy() == 126.0


def second_by_variable(loss, v):
    """The second derivative of loss() by the variable v, both tapes around it."""
    with tg.GradientTape() as outer:
        with tg.GradientTape() as inner:
            y = loss()
        dy = inner.gradient(y, v)
    return outer.gradient(dy, v)


def test_second_order_by_a_captured_variable(run):
    v = tg.Variable(3.0)
    loss = tg.function(lambda: v**3)
    assert run(lambda: second_by_variable(loss, v)).numpy() == 18.0


def test_second_order_by_a_variable_with_the_inner_tape_in_the_function():
    v = tg.Variable(3.0)

    @tg.function
    def derivative():
        with tg.GradientTape() as tape:
            y = v**3
        return tape.gradient(y, v)

    with tg.GradientTape() as outer:
        dy = derivative()
    assert outer.gradient(dy, v).numpy() == 18.0


def test_second_order_by_tensor_and_variable(run):
    v, x = tg.Variable(5.0), tg.constant(3.0)
    f = tg.function(lambda x: v**2 * x**3)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(x)
                y = f(x)
            dy = inner.gradient(y, x)
        return outer.gradient(dy, [x, v])

    assert values(run(example)) == [25.0 * 18.0, 10.0 * 27.0]


def test_second_order_by_a_captured_tensor(run):
    c, x = tg.constant(3.0), tg.constant(2.0)
    f = tg.function(lambda x: x * c**3)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(c)
            with tg.GradientTape() as inner:
                inner.watch(c)
                y = f(x)
            dy = inner.gradient(y, c)
        return outer.gradient(dy, c)

    assert run(example).numpy() == 36.0


@pytest.mark.parametrize("order", [3, 4])
def test_third_and_fourth_order_across_boundaries(order):
    fn = tg.function(lambda x: x**5)
    for _ in range(order):
        fn = tg.function(nested(fn, 1))
    assert fn(tg.constant(2.0)).numpy() == math.perm(5, order) * 2.0 ** (5 - order)


def test_persistent_tape_around_a_function():
    f = tg.function(lambda x: (x * x, x * x * x))
    x = tg.constant(3.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, z = f(x)
    assert values([tape.gradient(y, x), tape.gradient(z, x), tape.gradient(z, y)]) == [
        6.0,
        27.0,
        None,
    ]


def test_nested_structures_through_a_function():
    @tg.function
    def f(tree):
        return {"out": (tree["a"] * tree["b"][0], None, tree["b"][1])}

    a, b, c = tg.constant(2.0), tg.constant(3.0), tg.constant(5.0)
    with tg.GradientTape() as tape:
        tape.watch([a, b, c])
        out = f({"a": a, "b": [b, c]})
    assert values(tape.gradient(out["out"][0], [a, b, c])) == [3.0, 2.0, None]


def test_tape_inside_a_method():
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.w = tg.Variable(3.0)

        @tg.function
        def step(self, x):
            with tg.GradientTape() as tape:
                loss = (self.w * x) ** 2
            return tape.gradient(loss, self.trainable_variables)

    assert values(Model().step(tg.constant(2.0))) == [24.0]


def test_tape_around_a_python_loop(run):
    x = tg.constant(1.5)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(4):
                y = y * x
        return tape.gradient(y, x)

    np.testing.assert_allclose(run(example).numpy(), 5 * 1.5**4, rtol=1e-6)


# ---------------------------------------------------------------- threads


def in_thread(work):
    """Runs work() in another thread and returns its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0]


def test_tape_records_the_operations_of_its_thread_only():
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = in_thread(lambda: x * x)
    assert y.numpy() == 9.0
    assert tape.gradient(y, x) is None


def test_variables_read_in_another_thread_are_not_watched():
    v = tg.Variable(3.0)
    with tg.GradientTape() as tape:
        in_thread(lambda: v * v)
    assert tape.watched_variables() == ()


def test_tapes_of_many_threads_do_not_meet():
    start = threading.Barrier(4)
    grads = {}

    def work(number):
        x = tg.constant(float(number))
        start.wait()
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            for _ in range(20):
                y = y + x
        grads[number] = tape.gradient(y, x).numpy()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grads == {number: 2.0 * number + 20.0 for number in range(4)}


def test_tape_may_be_asked_in_another_thread():
    x = tg.constant(3.0)
    tape, y = square_tape(x)
    assert in_thread(lambda: tape.gradient(y, x)).numpy() == 6.0


def test_gradients_emit_no_warning_for_floating_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(gradient(lambda x: x * x, tg.constant(3.0))) == [6.0]


# ---------------------------------------------------------------- sharing of derived nodes


def test_tape_opened_later_sees_what_a_gradient_computes():
    x = tg.constant(0.7)
    with tg.GradientTape(persistent=True) as inner:
        inner.watch(x)
        u = tg.sin(x)  # the derivative of cos computes it again
        y = tg.cos(x) + 0.0 * u
    with tg.GradientTape() as outer:
        outer.watch(x)
        slope = inner.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(slope, x).numpy(), -np.cos(0.7), rtol=1e-6)


def test_gradient_that_equals_another_tensor_is_a_source_of_its_own(run):
    x, c = tg.constant(2.0), tg.constant(5.0)

    def example():
        with tg.GradientTape() as outer:
            outer.watch(c)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = x * c
            slope = inner.gradient(y, x)  # equals c
            z = slope * 2.0 + c * 3.0
        return outer.gradient(z, slope)

    assert run(example).numpy() == 2.0


def test_masked_square_root_has_no_nan(run):
    x = tg.constant([-1.0, 0.0, 4.0])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(tg.where(x > 0.0, tg.sqrt(x), 0.0) ** 2)
        return tape.gradient(y, x)

    np.testing.assert_allclose(run(example).numpy(), [0.0, 0.0, 1.0])


def test_target_that_is_not_watched_is_no_source():
    x, v = tg.constant(3.0), tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = v * x
    assert tape.gradient([y, x], x) is None
    with tg.GradientTape() as tape:
        y = v * v
    assert tape.gradient([y, x], x).numpy() == 1.0


def test_result_of_stop_gradient_is_not_watched(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.stop_gradient(x)
            z = y * 2.0
        return tape.gradient(z, y)

    assert run(example) is None


# ---------------------------------------------------------------- constants that are watched


@pytest.mark.parametrize("is_traced", [False, True], ids=["top level", "function"])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_a_watched_constant_is_not_taken_for_an_equal_value(is_traced, mode):
    """The seed of the inner gradient is ones, and so is x: they are not one value."""
    m = tg.constant([0.3, 0.5])

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.sin(x * m)
        return tape.gradient(y, x)

    def example():
        x = tg.ones([2])
        if mode == "forward":
            with tg.autodiff.ForwardAccumulator(x, tg.ones([2])) as accumulator:
                g = slope(x)
            return accumulator.jvp(g)
        with tg.GradientTape() as outer:
            outer.watch(x)
            g = slope(x)
        return outer.gradient(g, x)

    found = tg.function(example)() if is_traced else example()
    expected = -(m.numpy() ** 2) * np.sin(m.numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_what_was_made_of_a_constant_before_a_tape_was_opened_is_made_anew():
    @tg.function
    def example():
        x = tg.constant([0.5, 1.0])
        early = tg.cos(x)
        with tg.autodiff.ForwardAccumulator(x, tg.ones([2])) as accumulator:
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = tg.sin(x)
            g = tape.gradient(y, x)
        return early, accumulator.jvp(g)

    found = example()[1]
    np.testing.assert_allclose(found.numpy(), -np.sin([0.5, 1.0]), rtol=1e-6)


# A target that is a source.


@pytest.mark.parametrize("watched", [False, True])
def test_a_target_among_the_sources_has_the_gradient_one(run, watched):
    def gradients(x, w):
        with tg.GradientTape(persistent=True) as tape:
            if watched:
                tape.watch(x)
            y = x * x
        return (
            tape.gradient(x, x),
            tape.gradient(x, x, output_gradients=tg.constant(5.0)),
            tape.gradient(y, y),
            tape.gradient([y, y], y),
            tape.gradient([y, x], x),
            tape.gradient(y, x),
            tape.gradient(x, w),
        )

    found = run(gradients, tg.constant(2.0), tg.constant(3.0))
    # What is not recorded does not count: without the watch, y is not a function of x.
    wanted = [1.0, 5.0, 1.0, 2.0, *((5.0, 4.0) if watched else (1.0, None)), None]
    assert [None if g is None else float(g) for g in found] == wanted


@pytest.mark.parametrize("is_read", [False, True])
def test_a_variable_is_connected_with_itself(run, is_read):
    v = tg.Variable(3.0)

    def gradients():
        with tg.GradientTape(persistent=True) as tape:
            y = v * v if is_read else tg.constant(1.0)
        return tape.gradient(v, v), tape.gradient([y, v], v)

    assert [float(g) for g in run(gradients)] == [1.0, 7.0 if is_read else 1.0]


def test_explain_says_that_a_tensor_is_connected_with_itself():
    x = tg.constant(2.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(tg.constant(1.0))
    assert tape.explain(x, x).reason == "connected"


def test_a_tape_shows_what_it_is_doing():
    v = tg.Variable(2.0)
    tape = tg.GradientTape()
    assert repr(tape) == "<GradientTape, never entered>"
    with tape:
        assert repr(tape) == "<GradientTape, recording: 0 operations, 0 variables>"
        y = tg.sin(v)
        assert repr(tape) == "<GradientTape, recording: 2 operations, 1 variable>"
    assert repr(tape) == "<GradientTape, stopped: 2 operations, 1 variable>"
    tape.gradient(y, v)
    assert repr(tape) == "<GradientTape, used>"
    assert repr(tg.GradientTape(persistent=True)) == (
        "<GradientTape(persistent=True), never entered>"
    )


# ---------------------------------------------------------------- entered again inside a trace


def squares(x, tape):
    """What is recorded inside the block; x and 2 x squared."""
    with tape:
        y = x * 2.0
        z = y * y
    return y, z


@pytest.mark.parametrize("is_watched_inside", [True, False])
def test_a_tape_that_is_entered_again_follows_arguments(is_watched_inside):
    x = tg.constant(3.0)
    tape = tg.GradientTape(persistent=True)
    with tape:
        tape.watch(x)

    @tg.function
    def gradients(x):
        with tape:
            if is_watched_inside:
                tape.watch(x)
            y = x * 2.0
            z = y * y
        return tape.gradient(z, y), tape.gradient(z, x)

    for _ in range(2):
        assert [g.numpy() for g in gradients(x)] == [12.0, 24.0]


@pytest.mark.parametrize("wrap", [lambda f: f, tg.function, lambda f: tg.function(tg.function(f))])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_tape_is_entered_again_inside_a_function(wrap, persistent):
    """As TensorFlow's `GradientTapeTest.testPersistentTape` has it, with 12 and 24."""
    x = tg.constant(3.0)
    tape = tg.GradientTape(persistent=persistent)
    with tape:
        tape.watch(x)

    @wrap
    def f():
        y, z = squares(x, tape)
        return tape.gradient(z, [y, x])

    assert [g.numpy() for g in f()] == [12.0, 24.0]
    if persistent:
        with tape:
            y = x * 5.0
        assert tape.gradient(y, x).numpy() == 5.0


@pytest.mark.parametrize("wrap", [lambda f: f, tg.function, lambda f: tg.function(tg.function(f))])
def test_what_a_tape_recorded_outside_counts_inside(wrap):
    x, v = tg.constant(3.0), tg.Variable(2.0)
    other = tg.Variable(4.0, trainable=False)
    tape = tg.GradientTape(persistent=True, watch_accessed_variables=False)
    with tape:
        tape.watch([x, v, other])
        u = v * x * x
        y = tg.sin(u) * other

    @wrap
    def f():
        with tape:
            z = y * y * x + v * other
        return tape.gradient(z, [x, v, other, u, y]), tape.jacobian(z, x), tape.gradient(u, x)

    def z(x, v, other):
        y = jnp.sin(v * x * x) * other
        return y * y * x + v * other

    wanted = jax.jit(jax.grad(z, (0, 1, 2)))(3.0, 2.0, 4.0)
    for _ in range(2):
        found, slope, inner = f()
        np.testing.assert_allclose([g.numpy() for g in found[:3]], wanted, rtol=1e-5)
        y_now = np.sin(18.0) * 4.0
        by_u = 2.0 * y_now * 3.0 * np.cos(18.0) * 4.0
        np.testing.assert_allclose(found[3].numpy(), by_u, rtol=1e-4)
        np.testing.assert_allclose(found[4].numpy(), 2.0 * y_now * 3.0, rtol=1e-5)
        np.testing.assert_allclose(slope.numpy(), wanted[0], rtol=1e-5)
        assert inner.numpy() == 12.0
    assert tape.gradient(y, u).numpy() == np.float32(4.0 * np.cos(np.float32(18.0)))


def test_a_tape_goes_on_through_two_traces():
    x = tg.constant(3.0)
    tape = tg.GradientTape(persistent=True)
    with tape:
        tape.watch(x)
        a = x * x

    @tg.function
    def outer():
        with tape:
            b = a * x

        @tg.function
        def inner():
            with tape:
                c = b * b * a
            return tape.gradient(c, [x, a, b])

        return inner(), tape.gradient(b, [x, a])

    (by_x, by_a, by_b), (outer_by_x, outer_by_a) = outer()
    assert by_x.numpy() == 8 * 3.0**7 and by_b.numpy() == 2 * 27.0 * 9.0  # c = x^8
    assert by_a.numpy() == 27.0**2 + 2 * 27.0 * 9.0 * 3.0
    assert outer_by_x.numpy() == 27.0 and outer_by_a.numpy() == 3.0


def test_a_tape_that_is_used_up_inside_a_function_is_used_up():
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
    tg.function(lambda: tape.gradient(squares(x, tape)[1], x))()
    with pytest.raises(RuntimeError, match="used already"):
        tape.gradient(x, x)


@pytest.mark.parametrize("make", [tg.Variable, tg.constant])
def test_a_tape_from_outside_knows_what_was_computed_of_an_argument(make):
    """In plain code y = x * x * x of which x * x was computed outside. A trace serves one Variable
    then; of a tensor, which the next call may replace, the derivative is refused."""
    x = make(3.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        square = x * x

    def cube(x):
        with tape:
            y = square * x
        return tape.gradient(y, x)

    def unread(x):
        with tape:
            y = 1.0 * square
        return tape.gradient(y, x)

    def twice(x):
        with tape:
            y = 2.0 * x
        return tape.gradient(y, x)

    assert (float(cube(x)), float(unread(x))) == (27.0, 6.0)
    assert float(tg.function(twice)(x)) == 2.0
    for plain, expected in ((cube, 27.0), (unread, 6.0)):
        compiled = tg.function(plain)
        if make is tg.Variable:
            assert float(compiled(x)) == expected and float(compiled(x)) == expected
        else:
            with pytest.raises(
                tg.errors.GradientError, match="saw computed from it outside the function"
            ):
                compiled(x)


def test_recording_is_not_stopped_inside_of_a_body_that_the_tape_sees_as_one_node():
    """In plain code the derivative is 1; a loop would give 27, since it is one node to the tape."""

    def outer(x, count):
        with tg.GradientTape() as tape:
            tape.watch(x)
            total = x
            for _ in tg.range(count):
                with tape.stop_recording():
                    left_out = total * 2.0
                total = total + left_out
        return tape.gradient(total, x)

    def stopped(x, tape):
        with tape.stop_recording():
            return x * 2.0

    x = tg.constant(1.0)
    assert float(outer(x, 3)) == 1.0  # at top level the loop is Python's
    with pytest.raises(RuntimeError, match="this tape was opened outside it"):
        tg.function(outer)(x, tg.constant(3))
    with (
        tg.GradientTape() as tape,
        pytest.raises(RuntimeError, match="records all of it as one node"),
    ):
        tape.watch(x)
        tg.function(lambda x: stopped(x, tape))(x)
    with tg.GradientTape() as tape, pytest.raises(RuntimeError, match=r"apply tg\.stop_gradient"):
        tape.watch(x)
        tg.cond(x > 0, lambda: stopped(x, tape), lambda: x)


def in_for(product, x):
    for _ in tg.range(2):
        x = product(x)
    return x


def in_if(product, x):
    if x > 0.0:
        x = product(x)
    return x


def in_cond(product, x):
    return tg.cond(x > 0.0, lambda: product(x), lambda: x)


ENTERED_AGAIN_IN = {
    "for": in_for,
    "if": in_if,
    "while_loop": lambda product, x: tg.while_loop(
        lambda i, x: i < 2, lambda i, x: (i + 1, product(x)), (0, x)
    )[1],
    "cond": in_cond,
    "function": lambda product, x: tg.function(product)(x),
    "vectorized_map": lambda product, x: tg.vectorized_map(product, tg.stack([x, x]))[0],
}


@pytest.mark.parametrize("is_opened_before", [True, False])
@pytest.mark.parametrize("region", ENTERED_AGAIN_IN.values(), ids=ENTERED_AGAIN_IN)
def test_what_a_tape_recorded_inside_a_region_is_not_taken_for_nothing(region, is_opened_before):
    """The gradient was None, where plain code has a number; or the table of the tape counted as
    one of the user's."""
    w, other = tg.Variable(3.0), tg.Variable(2.0)

    @tg.function
    def f(x):
        tape = tg.GradientTape(persistent=True)
        if is_opened_before:
            with tape:
                before = other * w

        def product(x):
            with tape:
                return x * w

        y = region(product, x)
        if is_opened_before:
            assert tape.gradient(before, w) is not None
            assert tape.gradient(before, x) is None
        return tape.gradient(y, w)

    words = "was entered again inside" if is_opened_before else "it was opened inside"
    with pytest.raises(tg.errors.GradientError, match=words) as caught:
        f(tg.constant(2.0))
    assert "return tape.gradient(y, w)" in str(caught.value)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("region", ENTERED_AGAIN_IN.values(), ids=ENTERED_AGAIN_IN)
def test_a_number_is_refused_that_lacks_what_a_tape_recorded_inside_a_region(region, persistent):
    """The gradient was that of the path outside alone. What the region does not concern is right,
    and so is what its result does not reach."""
    w, other = tg.Variable(3.0), tg.Variable(2.0)

    @tg.function
    def f(x, is_alone):
        tape = tg.GradientTape(persistent=persistent)
        with tape:
            before = other * w

        def product(x):
            with tape:
                return x * w

        y = region(product, x)
        with tape:
            z = before * (tg.stop_gradient(y) if is_alone else y + other)
        if not is_alone and persistent:
            assert tape.gradient(z, other) is not None
        return tape.gradient(z, w)

    x = tg.constant(2.0)
    with pytest.raises(tg.errors.GradientError, match="was entered again inside") as caught:
        f(x, False)
    assert "return tape.gradient(z, w)" in str(caught.value)
    assert float(f(x, True)) == 2.0 * float(region(lambda x: x * w, x))


def test_a_tape_for_one_use_knows_the_variables_that_it_watched_inside_a_region():
    """The gradient was None: what a used tape forgets was asked after its use."""
    w, other = tg.Variable(3.0), tg.Variable(2.0)

    @tg.function
    def f(x):
        tape = tg.GradientTape()
        with tape:
            _ = other * x

        def product(x):
            with tape:
                return x * w

        return tape.gradient(in_cond(product, x), w)

    with pytest.raises(tg.errors.GradientError, match="was entered again inside"):
        f(tg.constant(2.0))


def added_products(s, xs):
    total = 0.0
    for x in xs:
        total += x * s
    return total


MANY_USES = {
    "of different ops": lambda s, xs: tg.reduce_sum(tg.stack([x * s for x in xs])),
    "elementwise": added_products,
    "slices": lambda s, xs: tg.reduce_sum(tg.stack([x * s[None][0] for x in xs])),
    "concatenated": lambda s, xs: tg.reduce_sum(tg.concat([s[None]] * len(xs), 0) * tg.stack(xs)),
}


@pytest.mark.parametrize("make", [tg.constant, tg.Variable])
@pytest.mark.parametrize("use", MANY_USES.values(), ids=MANY_USES)
def test_many_cotangents_of_16_bits_are_added_in_float32(use, make):
    """256 and 1 are 256 in bfloat16, so the gradient was 512."""
    s = make(tg.constant(1.0, tg.bfloat16))
    factors = [256.0, *[1.0] * 15, 256.0]

    def gradient():
        with tg.GradientTape() as tape:
            tape.watch(s)
            y = use(s, [tg.constant(x, tg.bfloat16) for x in factors])
        return tape.gradient(y, s)

    assert float(gradient()) == float(tg.function(gradient)()) == 528.0  # 527 has no bfloat16


def test_three_cotangents_of_16_bits_cost_no_conversion():
    def gradient(s):
        with tg.GradientTape() as tape:
            tape.watch(s)
            y = tg.stack([s * 2.0, tg.exp(s), tg.sin(s)])
        return tape.gradient(y, s)

    graph = tg.function(gradient).get_concrete_function(tg.TensorSpec([], tg.float16)).graph
    assert "cast<" not in graph.as_text()
