"""Where values are: `tests/devices/test_layouts.py` runs this file in a process that has eight CPU
devices, of which most tests use two.

What JAX says of the arrays is the oracle of where they are, and NumPy of what they hold.
"""

import threading
from typing import Any

import jax
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.slots import gathered

# Loops here decorate one piece of code again and again.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced, which is slow:UserWarning")


def number_of(value):
    """The number of JAX's device that holds a tensor or a Variable."""
    is_variable = isinstance(value, tg.Variable)
    (buffer,) = gathered([value]) if is_variable else [device_buffer(value)]
    (device,) = buffer.devices()
    assert value.device == f"/job:localhost/replica:0/task:0/device:CPU:{device.id}"
    return device.id


def variable_on(name, value):
    with tg.device(name):
        return tg.Variable(value)


@tg.function
def double(x):
    return x * 2


def test_the_devices_are_listed():
    physical = [x.name for x in tg.config.list_physical_devices()]
    assert physical == [f"/physical_device:CPU:{number}" for number in range(8)]
    logical = [x.name for x in tg.config.list_logical_devices("CPU")]
    assert logical == [f"/device:CPU:{number}" for number in range(8)]
    assert tg.config.list_physical_devices("GPU") == []


@pytest.mark.parametrize(
    "name",
    [
        *("cpu:1", "CPU:1", "/cpu:1", "/CPU:1", "device:CPU:1", "/device:CPU:1"),
        *("/job:localhost/replica:0/task:0/device:CPU:1", "/job:localhost/cpu:1"),
        tg.config.LogicalDevice("/device:CPU:1", "CPU"),
        tg.config.PhysicalDevice("/physical_device:CPU:1", "CPU"),
    ],
)
def test_a_device_has_many_names(name):
    with tg.device(name):
        assert number_of(tg.constant([1.0, 2.0])) == 1
    assert number_of(tg.constant([1.0, 2.0])) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_of_jax_stays_on_its_device(dtype, monkeypatch):
    with jax.enable_x64(True):
        array = jax.device_put(np.arange(300, dtype=dtype), jax.devices()[1])
    monkeypatch.setattr("tracegraph.operands.conversion._own_array", None)  # the way to the host
    x, v = tg.constant(array), tg.Variable(array)
    assert x.dtype == v.dtype == tg.as_dtype(dtype)
    found = [x, v, x + 1, double(array), double(x), tg.function(lambda: tg.constant(array) + 1)()]
    assert [number_of(y) for y in found] == [1] * 6
    with tg.device("cpu:0"):
        assert number_of(tg.constant(array)) == number_of(tg.Variable(array)) == 0
    monkeypatch.undo()
    v.assign_add(array)
    np.testing.assert_array_equal(v, 2 * np.asarray(array))  # the owner still has it
    np.testing.assert_array_equal(double(array), 2 * np.asarray(array))


def test_few_numbers_of_another_device_are_constants_of_a_trace():
    shape = jax.device_put(np.array([2, 3]), jax.devices()[1])
    f = tg.function(lambda x: tg.reshape(x, shape))
    assert f.get_concrete_function(tg.TensorSpec([6])).outputs[0].shape == [2, 3]


def test_an_array_of_jax_that_was_given_away_is_told():
    array = jax.device_put(np.arange(300.0), jax.devices()[1])
    x = tg.constant(array)
    array.delete()
    with pytest.raises(tg.errors.LoweringError, match="was given away: pass its copy"):
        double(x).numpy()


def test_what_is_made_in_a_scope_is_there():
    x = tg.constant(np.arange(300.0))
    assert number_of(x) == 0
    with tg.device("cpu:1"):
        small, large = tg.constant(1.0), tg.constant(np.arange(300.0))
        made, computed = tg.ones([3]), x + 1
        copied = tg.identity(x)
        with tg.device("cpu:0"):
            inner = tg.ones([3])
            with tg.device(None):
                free = tg.ones([3])
        behind = tg.ones([3]) * 2
        unread = x * 3
    outside = large * 2
    assert [*map(number_of, (small, large, made, computed, copied, behind, unread))] == [1] * 7
    assert [*map(number_of, (x, inner, free, outside))] == [0] * 4
    np.testing.assert_array_equal(unread, 3 * np.arange(300.0))


@pytest.mark.parametrize("dtype", [tg.float32, tg.float64])
def test_a_function_runs_where_it_is_called(dtype):
    x = tg.constant(np.arange(300), dtype)
    f = tg.function(lambda x: x * 2)
    for number in (0, 1, 0, 0, 1, 1):
        with tg.device(f"cpu:{number}"):
            assert number_of(f(x)) == number
        assert number_of(f(x)) == 0
    assert f.experimental_get_tracing_count() == 1


def test_programs_that_jax_let_go_of_run_where_they_are_called():
    x = tg.constant(np.arange(300.0))
    functions = [tg.function(lambda x, k=k: x * k + 1) for k in range(20)]
    for _ in range(3):
        assert {number_of(f(x)) for f in functions} == {0}
        with tg.device("cpu:1"):
            assert {number_of(f(x)) for f in functions} == {1}


def test_a_variable_stays_where_it_was_made():
    v = variable_on("cpu:1", [1.0, 2.0])
    v.assign([3.0, 4.0])
    assert number_of(v) == 1
    v.assign(tg.constant([1.0, 1.0]) * 5)
    assert number_of(v) == 1
    v.assign_add(tg.constant([1.0, 2.0]))
    assert number_of(v) == 1
    with tg.device("cpu:0"):
        v.assign_sub([1.0, 1.0])
        assert number_of(v + 1) == 1  # a program runs where what it takes is kept
    assert number_of(v) == 1
    assert v.memory_kind == "device"
    np.testing.assert_array_equal(v, [5.0, 6.0])


def test_variables_on_two_devices_meet():
    u, v = variable_on("cpu:0", [1.0, 2.0]), variable_on("cpu:1", [3.0, 4.0])
    assert number_of(u * v) == 0
    with tg.device("cpu:1"):
        assert number_of(u * v) == 1

    @tg.function
    def step(x):
        u.assign_add(v * x)
        v.assign_sub(u)
        return u * v

    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for k in range(4):
        a = a + b * k
        b = b - a
        np.testing.assert_array_equal(step(tg.constant(float(k))), a * b)
        np.testing.assert_array_equal([u.numpy(), v.numpy()], [a, b])
        assert [number_of(u), number_of(v)] == [0, 1]
    with tg.GradientTape() as tape:
        y = step(tg.constant(0.0))  # v becomes v - u; assignments stop gradients
    for found, wanted in zip(tape.gradient(y, [u, v]), (b - a, a), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert [number_of(u), number_of(v)] == [0, 1]


def test_training_on_the_second_device():
    def losses(name):
        with tg.device(name):
            tg.random.set_seed(3)
            layer = tg.layers.Dense(1)
            optimizer = tg.optimizers.Adam(0.1)
            x = tg.random.normal([8, 3])

            @tg.function
            def step():
                with tg.GradientTape() as tape:
                    loss = tg.reduce_mean((layer(x) - 1.0) ** 2)
                optimizer.minimize(loss, layer.trainable_variables, tape=tape)
                return loss

            found = [float(step()) for _ in range(5)]
            places = {number_of(v) for v in [*layer.variables, *optimizer.variables]}
        return found, places

    first, on_first = losses("cpu:0")
    second, on_second = losses("cpu:1")
    assert first == second and first[-1] < first[0]
    assert (on_first, on_second) == ({0}, {1})


def test_a_tape_goes_through_scopes():
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        with tg.device("cpu:1"):
            y = x * x
        z = y * x
    assert float(tape.gradient(z, x)) == 27.0


def test_a_function_is_one_program_on_the_device_of_the_call():
    @tg.function
    def f(x):
        with tg.device("cpu:1"):
            y = x + 1
        return y * 2

    x = tg.constant([1.0])
    assert number_of(f(x)) == 0
    with tg.device("cpu:1"):
        assert number_of(f(x)) == 1
    with pytest.raises(tg.errors.InvalidArgumentError, match="there is no device 'cpu:8'"):

        @tg.function
        def g(x):
            with tg.device("cpu:8"):
                return x + 1

        g(x)


def test_an_error_leaves_the_scope():
    with pytest.raises(ZeroDivisionError):
        with tg.device("cpu:1"):
            1 / 0  # noqa: B018
    assert number_of(tg.ones([2])) == 0
    assert jax.numpy.zeros(2).devices() == {jax.devices()[0]}


def test_each_thread_has_its_own_scope():
    found = []
    with tg.device("cpu:1"):
        thread = threading.Thread(target=lambda: found.append(number_of(tg.ones([2]))))
        thread.start()
        thread.join()
        assert number_of(tg.ones([2])) == 1
    assert found == [0]


def test_a_device_that_is_not_there():
    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        tg.device("cpu:8")
    assert "there is no device 'cpu:8'; those of this process are /device:CPU:0" in str(
        caught.value
    )
    tg.config.set_soft_device_placement(True)
    try:
        with tg.device("gpu:3"):
            assert number_of(tg.ones([2])) == 0
    finally:
        tg.config.set_soft_device_placement(False)
    with pytest.raises(tg.errors.InvalidArgumentError, match="belongs to process 1, and this is 0"):
        tg.device("/job:worker/task:1/cpu:0")


def test_what_interpreted_loops_compute_is_there():
    @tg.function
    def f(x):
        for i in tg.range(2):
            tg.print(i)
            x = x + 1
        return x

    with tg.device("cpu:1"):
        assert number_of(f(tg.constant([1.0]))) == 1


_compiled = []


def _note(event: str, duration: float, **_: Any) -> None:
    if event.endswith("backend_compile_duration"):
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_note)  # type: ignore[arg-type]


def test_a_step_is_compiled_once_for_a_variable_that_stays():
    v = variable_on("cpu:1", [1.0, 2.0])
    step = tg.function(lambda: v.assign_add([1.0, 1.0]))
    count = len(_compiled)
    step()
    first = len(_compiled)
    assert first > count  # it is counted
    step()
    step()
    assert len(_compiled) == first
    np.testing.assert_array_equal(v, [4.0, 5.0])
