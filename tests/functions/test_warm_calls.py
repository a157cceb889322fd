"""Warm calls: how many frames of ours they take, and that 64 bits stay 64 bits on every way in."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.eager import slots as state

OUR_PACKAGES = tuple(
    str(Path(tg.__file__).parent.parent / name) for name in ("tracegraph", "lowering")
)


def frames_of_ours(call):
    """The names of the functions of ours that a call enters."""
    names = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OUR_PACKAGES):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("calls_before", [3, 300])
def test_a_warm_call_has_at_most_four_frames(dtype, calls_before):
    increment = tg.function(lambda x: x + 1)
    x = tg.constant(np.ones(3, dtype))
    with tg.GradientTape():
        pass  # from now on calls might be noted
    for _ in range(calls_before):
        increment(x)
    assert len(frames_of_ours(lambda: increment(x))) <= 4


def test_arrays_of_numpy_and_tensors_share_the_short_way():
    add = tg.function(lambda x, y: x + y)
    array = np.ones(3, np.float32)
    for _ in range(3):
        add(array, array)
    tensor = tg.add(array, 0)
    for _ in range(300):  # the first ones may be noted
        add(tensor, tensor)
    assert len(frames_of_ours(lambda: add(tensor, tensor))) <= 4
    by_hand = frames_of_ours(lambda: add(tensor, array))
    assert "scanned" not in by_hand and "_call_slowly" not in by_hand
    np.testing.assert_array_equal(add(tensor, array), [2, 2, 2])
    assert add.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_warm_step_has_at_most_four_frames(dtype):
    v = tg.Variable(np.zeros(3, dtype))

    @tg.function
    def step(x, y):
        v.assign_add(x * y)
        return tg.reduce_sum(v)

    x = tg.constant(np.ones(3, dtype))
    for _ in range(300):
        step(x, x)
    assert len(frames_of_ours(lambda: step(x, x))) <= 4
    np.testing.assert_array_equal(v.numpy(), np.full(3, 301, dtype))


def test_the_mesh_around_costs_a_warm_call_one_frame():
    counts = []
    with tg.distribute.Mesh({"data": 1}) as mesh:
        for layout in (["data"], tg.distribute.Layout(mesh, ["data"])):
            f = tg.function(lambda x, layout=layout: tg.distribute.with_layout(x + 1, layout))
            x = tg.distribute.with_layout(np.ones(3, np.float32), ["data"])
            for _ in range(3):
                f(x)
            counts.append(len(frames_of_ours(lambda f=f, x=x: f(x))))
            assert f.experimental_get_tracing_count() == 1
    assert counts[0] == counts[1] + 1


@pytest.mark.parametrize("kind", [tg.constant, np.asarray])
def test_a_warm_call_under_a_tape_does_not_bind_its_arguments_again(kind):
    v = tg.Variable(2.0)

    @tg.function
    def scaled(x, power=2):
        v.assign_add(1.0)
        return v * x["a"] ** power

    def slope(value):
        with tg.GradientTape() as tape:
            y = scaled({"a": kind(np.float32(value))}, power=3)
        return tape.gradient(y, v).numpy()

    assert [slope(1.0), slope(2.0)] == [1.0, 8.0]
    names = frames_of_ours(lambda: slope(3.0))
    assert "run_recorded" in names and not {"_request", "_find_and_run", "find"} & set(names)
    assert slope(4.0) == 64.0 and v.numpy() == 6.0
    assert scaled.experimental_get_tracing_count() == 1


def test_an_array_of_jax_takes_the_short_way():
    double = tg.function(lambda x: x * 2)
    array = jax.numpy.arange(3.0)
    for _ in range(3):
        double(array)
    assert "_find_and_run" not in frames_of_ours(lambda: double(array))
    np.testing.assert_array_equal(double(array), [0.0, 2.0, 4.0])
    with tg.GradientTape() as tape:
        x = tg.constant(array)
        tape.watch(x)
        y = double(x)
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0] * 3)
    assert double.experimental_get_tracing_count() == 1


ODD = 2**53 - 1  # neither a float32 nor an int32


@pytest.mark.parametrize("order", ["tensor first", "array first"])
@pytest.mark.parametrize("has_state", [False, True])
def test_wide_arguments_stay_wide_on_the_host_and_on_the_device(order, has_state):
    total = tg.Variable(np.float64(0))

    @tg.function
    def add(x, n):
        if has_state:
            total.assign_add(x[0])
        return x + 1.0, n + 1

    arrays = np.array([1 / 3, 2 / 3]), np.array([ODD])
    tensors = tg.constant(arrays[0]), tg.constant(arrays[1])
    ways = [tensors, arrays] if order == "tensor first" else [arrays, tensors]
    ways.append((arrays[0], tensors[1]))
    for given in ways * 3:
        x, n = add(*given)
        assert (x.dtype, n.dtype) == (tg.float64, tg.int64)
        np.testing.assert_array_equal(x.numpy(), arrays[0] + 1)
        np.testing.assert_array_equal(n.numpy(), arrays[1] + 1)
    if has_state:
        expected = np.float64(0)
        for _ in range(9):
            expected += arrays[0][0]
        assert total.numpy() == expected
    assert add.experimental_get_tracing_count() == 1


def test_a_step_that_is_misled_about_what_is_pending_looks_again(monkeypatch):
    v = tg.Variable(1.0)

    @tg.function
    def double():
        v.assign(v * 2.0)

    double()
    double()
    monkeypatch.setattr("tracegraph.state.variable.note_pending", lambda: None)
    v.assign(tg.constant(3.0) + 4.0)
    assert type(v.buffer) is tg.Tensor  # not made yet, and nobody was told
    looked_at = state._given.pending
    double()
    assert state._given.pending == looked_at
    assert v.numpy() == 14.0


def test_random_numbers_of_64_bits_keep_them_when_a_call_is_warm():
    """JAX lowers random bits after it has traced, and narrows them outside of its x64 context."""
    generator = tg.random.Generator.from_seed(3)
    draw = tg.function(lambda n: generator.uniform([4], maxval=2**40, dtype=tg.int64) + n)
    zero = tg.constant(0, tg.int64)
    found = np.concatenate([draw(zero).numpy() for _ in range(8)])
    again = tg.random.Generator.from_seed(3)
    expected = [again.uniform([4], maxval=2**40, dtype=tg.int64).numpy() for _ in range(8)]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert found.max() > 2**33


def test_a_warm_step_overwrites_a_variable_of_open_shape(monkeypatch):
    """A first run copies what it would overwrite, and so did each run of a Variable that may be
    resized: its sizes are compared without a copy."""
    v = tg.Variable(np.zeros(3, np.float32), shape=[None])

    @tg.function
    def step(x):
        v.assign(v + x)
        return tg.reduce_sum(v)

    x, firsts = tg.constant(1.0), []
    for _ in range(3):
        step(x)
    first = state.Step._run_first
    monkeypatch.setattr(state.Step, "_run_first", lambda *args: firsts.append(args) or first(*args))
    assert step(x).numpy() == 12.0 and not firsts
    v.assign(np.zeros(2, np.float32))
    assert step(x).numpy() == 2.0 and len(firsts) == 1
