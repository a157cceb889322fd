"""A trace that is compiled for one size after another: a warning says so, once."""

import sys

import numpy as np
import pytest

import tracegraph as tg


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def doubled(shape):
    """A function of one open argument."""
    return tg.function(lambda x: x * 2.0, input_signature=[tg.TensorSpec(shape, name="x")])


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.filterwarnings("error")
def test_four_sizes_of_one_trace_do_not_warn():
    f = doubled([None])
    for size in (1, 2, 3, 4, 4, 3, 2, 1):
        f(zeros(size))


def test_the_fifth_size_of_a_trace_warns_with_the_sizes_and_the_repair():
    f = doubled([None, 3])
    with pytest.warns(UserWarning) as caught:
        for size in range(2, 7):
            at = line() + 1
            f(zeros(size, 3))
    (warning,) = caught
    text = str(warning.message)
    assert "compiled for 5 different sizes" in text
    assert "axis 0 of argument 'x': 2, 3, 4, 5, 6" in text
    assert "axis 1" not in text
    assert "bucket_sizes=" in text and "fixed sizes" in text
    assert (warning.filename, warning.lineno) == (__file__, at)


def test_a_trace_warns_once_and_each_trace_by_itself():
    f, g = doubled([None]), doubled([None])
    with pytest.warns(UserWarning) as caught:
        for size in range(1, 9):
            f(zeros(size))
        for size in range(1, 9):
            g(zeros(size))
    assert len(caught) == 2


def test_the_sizes_of_every_open_axis_are_named():
    f = tg.function(
        lambda x, y: tg.reduce_sum(x) + tg.reduce_sum(y),
        input_signature=[tg.TensorSpec([None, None], name="x"), tg.TensorSpec(["m"], name="y")],
    )
    with pytest.warns(UserWarning) as caught:
        for size in range(1, 6):
            f(zeros(size, 2 * size), zeros(7))
    text = str(caught[0].message)
    assert "axis 0 of argument 'x': 1, 2, 3, 4, 5; axis 1 of argument 'x': 2, 4, 6, 8, 10" in text
    assert "argument 'y'" not in text


def test_shapes_of_open_rank_are_named():
    f = doubled(None)
    with pytest.warns(UserWarning) as caught:
        for size in range(1, 6):
            f(zeros(*[2] * size))
    assert "shape of argument 'x': [2], [2, 2], [2, 2, 2]" in str(caught[0].message)


def test_sizes_compiled_under_a_tape_count_too():
    f, v = doubled([None]), tg.Variable(1.0)
    with pytest.warns(UserWarning, match="5 different sizes") as caught:
        for size in range(1, 7):
            with tg.GradientTape() as tape:
                y = f(tg.ones(size) * v)
            tape.gradient(y, v)
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_one_size_with_and_without_a_tape_counts_once():
    f, v = doubled([None]), tg.Variable(1.0)
    for size in range(1, 5):
        f(zeros(size))
        with tg.GradientTape():
            f(tg.ones(size) * v)


def advice(f, sizes=(2, 3, 4, 5, 6), given=zeros):
    """What the warning about these sizes advises."""
    with pytest.warns(UserWarning, match="5 different sizes") as caught:
        for size in sizes:
            f(given(size))
    return str(caught[0].message).rsplit("Sizes so far: ", 1)[1]


def test_bucket_sizes_are_not_advised_where_they_would_be_refused():
    spectrum = tg.function(
        lambda x: tg.signal.fft(tg.cast(x, tg.complex64)),
        input_signature=[tg.TensorSpec([None], name="x")],
    )
    text = advice(spectrum)
    assert "bucket_sizes=" not in text and "Call it with few sizes; tg.function cannot" in text
    assert (
        "fft" in text and f"{__file__}:{spectrum.python_function.__code__.co_firstlineno}" in text
    )
    text = advice(doubled(None), given=lambda size: zeros(*[2] * size))
    assert "bucket_sizes=" not in text and "the rank of f32[*s0] is open" in text


def test_bucket_sizes_are_advised_only_where_fewer_programs_follow():
    assert "bucket_sizes=[16])" in advice(doubled([None]), (1, 2, 4, 8, 16))
    v = tg.Variable(zeros(2), shape=[None])

    def assigned(size):
        v.assign(zeros(size))
        return zeros(3)

    text = advice(tg.function(lambda x: x[0] * v), given=assigned)
    assert "bucket_sizes=" not in text and "those of Variables" in text


def test_the_advice_for_calls_that_a_tape_watches_is_to_open_it_inside():
    f = doubled([None])

    def watched(size):
        tape.watch(x := tg.zeros([size]))
        return x

    with tg.GradientTape(persistent=True) as tape:
        assert "open the tape inside the function" in advice(f, given=watched)
