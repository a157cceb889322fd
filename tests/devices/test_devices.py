"""Devices: their names, and what one of them shows. What several show is in `eight_devices`."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.core.device_names import DeviceName, full_name, parsed

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.mark.slow
def test_what_is_tried_on_a_gpu_holds_for_a_second_cpu():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-m", "gpu", str(Path(__file__).with_name("test_on_gpu.py"))],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "TRACEGRAPH_TEST_DEVICE": "cpu:1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", DeviceName("CPU", None, None)),
        ("gpu:3", DeviceName("GPU", 3, None)),
        ("/device:GPU:*", DeviceName("GPU", None, None)),
        ("/job:worker/replica:0/task:2/device:TPU:1", DeviceName("TPU", 1, 2)),
        ("/job:localhost", DeviceName(None, None, None)),
        ("", DeviceName(None, None, None)),
        (full_name("GPU", 4, 5), DeviceName("GPU", 4, 5)),
    ],
)
def test_names_are_read_as_tensorflow_has_them(name, expected):
    assert parsed(name) == expected


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("abacus", "'abacus' is not the name of a device"),
        (
            "/cpu:0/abacus:1",
            "'/cpu:0/abacus:1' is not the name of a device: 'abacus:1' is not a part of one",
        ),
        ("cpu:0:1", "'cpu:0:1' is not the name of a device"),
        ("gpu:-1", "'-1' is not a number of a device in 'gpu:-1'"),
        ("gpu:one", "'one' is not a number of a device in 'gpu:one'"),
        ("/task:x/cpu:0", "'x' is not a number of a device in '/task:x/cpu:0'"),
        (3, "a device has a name, and this is an int"),
        (lambda op: "cpu:0", "tg.device was given a function, which TensorFlow 1 had for graphs"),
    ],
)
def test_what_is_no_name(name, fact):
    with pytest.raises(ValueError) as caught:
        tg.device(name)
    assert str(caught.value).split("\n")[0] == fact


def test_this_process_has_a_cpu():
    assert tg.constant(1.0).device == tg.Variable(1.0).device == CPU
    assert tg.config.list_physical_devices("CPU")[0] == ("/physical_device:CPU:0", "CPU")
    assert tg.constant(1.0).memory_kind == "device"
    with pytest.raises(ValueError, match="3 is not a kind of device"):
        tg.config.list_physical_devices(3)  # type: ignore[arg-type]
    devices = []
    tg.function(lambda x: devices.append((x.device, x.memory_kind)) or x)(tg.constant(1.0))
    assert devices == [(CPU, None)]


def steps_of_every_kind(v, w):
    """Functions that change v by every way in which a program runs."""

    def step(x):
        v.assign_add(w * x)
        w.assign(w + 1.0)
        return v * w

    def printed(x):
        step(x)
        tg.print(v, output_stream="file:///dev/null")

    def called(x):
        step(x)
        v.assign(tg.ensure_shape(tg.numpy_function(lambda a: 2.0 * a, [v], tg.float32), [4]))

    def recorded(x):
        with tg.GradientTape() as tape:
            y = tg.reduce_sum(tg.function(step)(x))
        v.assign_add(tape.gradient(y, v))

    eager = [step, called, recorded, lambda x: v.assign(v + x), lambda x: v.assign_sub(x)]
    options = [{}, {"locate_numerics": True}, {"memory_budget": "1MiB"}]
    traced = [tg.function(step, **chosen) for chosen in options]
    return [*eager, *traced, tg.function(printed), tg.function(called)]


def test_a_variable_is_kept_in_the_memory_of_the_host():
    start = np.arange(4, dtype=np.float32)
    found = []
    for kind in (None, "pinned_host"):
        v, w = tg.Variable(start, memory_kind=kind), tg.Variable(start)
        values = []
        for f in steps_of_every_kind(v, w):
            for _ in range(3):  # the first run goes another way than those that follow
                v.assign(start)
                f(tg.constant(start + 0.5))
                assert v.memory_kind == (kind or "device") and w.memory_kind == "device"
                values.append(v.numpy())
        found.append(values)
    np.testing.assert_array_equal(*found)
    again = pickle.loads(pickle.dumps(v))
    assert copy.deepcopy(v).memory_kind == again.memory_kind == "pinned_host"


def test_a_kind_of_memory_that_is_not_there():
    with pytest.raises(ValueError, match="memory_kind is 'flash', and the device has device, pin"):
        tg.Variable(1.0, memory_kind="flash")


def test_a_scope_can_be_entered_again_and_not_twice():
    scope = tg.device("cpu:0")
    for _ in range(2):
        with scope:
            assert tg.ones([2]).device == CPU
    with scope, pytest.raises(TypeError, match="entered again while it is open"):
        with scope:
            pass
