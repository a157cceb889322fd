"""What a GPU computes, beside a CPU: `pytest -m gpu`, skipped where JAX finds no GPU.

`TRACEGRAPH_TEST_DEVICE=cpu:1` with two CPU devices tries the tests themselves, without a GPU.
"""

import os
import signal

import jax
import numpy as np
import pytest

import tracegraph as tg
from lowering.places import local_devices
from lowering.program import graph_function
from tests.derived_graphs import vjp_graph
from tests.devices.test_cuda_lowering import chunks, dtypes_of
from tests.op_table import Case
from tests.ops.test_ops import (
    PRECISION,
    arguments,
    difference_of,
    has_derivative,
    is_inexact,
    traced,
)
from tracegraph.core.device_names import parsed

NAME = os.environ.get("TRACEGRAPH_TEST_DEVICE", "gpu:0")
#: Ops that are not compared number by number: the mesh of a layout is of one kind, and each library
#: chooses the signs of vectors.
NOT_HERE = {"with_layout", "svd", "eigh"}
#: How far a GPU may be from a CPU: both round, and sum in an order of their own.
SLACK = 32


def device():
    wanted = parsed(NAME)
    found = local_devices().get(wanted.kind or "", [])
    return found[wanted.number or 0] if len(found) > (wanted.number or 0) else None


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device() is None, reason=f"JAX finds no device {NAME}"),
    pytest.mark.filterwarnings("ignore:.*were traced, which is slow:UserWarning"),
]


@pytest.fixture
def scope():
    """Everything is computed on the GPU."""
    with tg.device(NAME):
        yield


def is_there(value):
    """Whether a tensor or a Variable is on the GPU."""
    wanted = parsed(NAME)
    return value.device.endswith(f":{wanted.kind}:{wanted.number or 0}")


# Ops.


def trials(cases):
    """Graphs and arrays: each row in each type, and its gradient."""
    for case in cases:
        if case.op.name in NOT_HERE:
            continue
        for dtype in dtypes_of(case):
            graph = traced(case, dtype)
            graphs = [("value", graph)]
            if case.order > 0 and has_derivative(case, dtype):
                graphs.append(("gradient", vjp_graph(graph)))
            for what, each in graphs:
                values = arguments(each, case.values(dtype))
                yield f"{what} of {case} in {dtype.name}", case, dtype, graph_function(each), values


def computed(runs, rows, *places):
    """The results of all trials as one program, for each place where it runs."""

    @jax.jit
    def run_all(rows):
        return [run(*row) for run, row in zip(runs, rows, strict=True)]

    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return [jax.tree.map(np.asarray, run_all(jax.device_put(rows, x))) for x in places]


def tolerance_of(case: Case, dtype) -> float:
    return max(case.tolerance, SLACK * case.slack * PRECISION.get(dtype.name, 0))


@pytest.mark.parametrize("cases", chunks())
def test_every_op_computes_what_a_cpu_computes_and_always_the_same(cases):
    names, owners, dtypes, runs, rows = zip(*trials(cases), strict=True)
    places = jax.devices("cpu")[0], device(), device()
    on_cpu, first, second = computed(runs, rows, *places)
    wrong = []
    for name, case, dtype, *found in zip(names, owners, dtypes, first, second, on_cpu, strict=True):
        for a, again, wanted in zip(*found, strict=True):
            problem = difference_of(a, wanted, tolerance_of(case, dtype), "")
            wrong += [f"{name}: {problem}"] if problem else []
            if a.tobytes() != again.tobytes():
                wrong.append(f"{name}: two runs differ: {a} and {again}")
    assert not wrong, "\n".join(wrong)
    assert any(is_inexact(y) for result in first for y in result)


def by_values(s, u, v):
    return (u * tg.tanh(s)) @ tg.linalg.matrix_transpose(v)


#: What does not depend on the signs of vectors.
FREE_OF_SIGNS = {
    "svd": lambda x: by_values(*tg.linalg.svd(x)),
    "svd of a wide matrix": lambda x: by_values(*tg.linalg.svd(x[:2])),
    "eigh": lambda x: (lambda w, v: by_values(w, v, v))(*tg.linalg.eigh(x + tg.transpose(x))),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", FREE_OF_SIGNS.values(), ids=FREE_OF_SIGNS)
def test_decompositions_and_their_gradients_are_those_of_a_cpu(function, dtype):
    x = np.random.default_rng(3).standard_normal((4, 4)).astype(dtype)

    @tg.function
    def value_and_gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            total = tg.reduce_sum(tg.sin(3 * y))
        return y, tape.gradient(total, x)

    results = []
    for name in (NAME, "cpu:0"):
        with tg.device(name):
            results.append(value_and_gradient(tg.constant(x)))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1_000 * np.finfo(dtype).eps)


@pytest.mark.parametrize("divisor", [41.0, 41.3, "row", "each"])
def test_float32_quotients_are_rounded_once(scope, divisor):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((64, 1 << 14)).astype(np.float32)
    y = np.asarray({"row": x[:1] + 3, "each": x[::-1] * 1.7}.get(divisor, divisor), np.float32)
    found = tg.function(lambda x, y: x / y)(x, y)
    np.testing.assert_array_equal(found, x / y)


def test_of_several_updates_for_one_place_the_last_stays(scope):
    at = np.random.default_rng(5).integers(0, 50, 10_000)
    updates = np.arange(30_000, dtype=np.float32).reshape(10_000, 3)
    wanted = np.zeros((50, 3), np.float32)
    wanted[at] = updates
    found = tg.tensor_scatter_nd_update(tg.zeros([50, 3]), at[:, None], updates)
    np.testing.assert_array_equal(found, wanted)


# Programs.


def test_values_and_variables_are_there(scope):
    x, v = tg.constant([1.0, 2.0]), tg.Variable([3.0, 4.0])
    y = tg.function(lambda x: x * v)(x)
    assert is_there(x) and is_there(v) and is_there(y) and is_there(x + v)
    np.testing.assert_array_equal(y, [3.0, 8.0])


def test_a_step_overwrites_its_variables(scope):
    v = tg.Variable(tg.zeros([1 << 20]))

    @tg.function
    def step(x):
        v.assign_add(x)

    x = tg.ones([1 << 20])
    for _ in range(3):
        step(x)
    before = v.buffer.unsafe_buffer_pointer()
    places = set()
    for _ in range(4):
        step(x)
        places.add(v.buffer.unsafe_buffer_pointer())
    assert places == {before} or len(places) <= 2  # in place, or to and fro
    np.testing.assert_array_equal(v[:2], [7.0, 7.0])


def test_a_read_outlives_the_step_that_overwrites(scope):
    v = tg.Variable(tg.zeros([1 << 20]))
    step = tg.function(lambda: v.assign_add(tg.ones([1 << 20])))
    kept = []
    for _ in range(4):
        kept.append(v.read_value())
        step()
    assert [float(x[0]) for x in kept] == [0.0, 1.0, 2.0, 3.0]


def test_an_interrupt_in_training_loses_nothing(scope):
    v = tg.Variable(0.0)
    count = tg.function(lambda: v.assign_add(1.0))
    count()  # compiled: what falls into that is tried by `test_interrupts.py`
    seen = []

    def handler(*_):
        count()
        seen.append(1)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        calls = 0
        while len(seen) < 20:
            count()
            calls += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert float(v) == 1 + calls + len(seen)


def test_callbacks_and_prints(scope, capfd):
    seen = []

    @tg.function
    def f(x):
        tg.print("x is", x)
        y = tg.py_function(lambda x: seen.append(float(x)) or x.numpy() + 1, [x], tg.float32)
        return tg.ensure_shape(y, []) * 2

    assert float(f(tg.constant(3.0))) == 8.0
    assert seen == [3.0]
    assert "x is 3" in capfd.readouterr().err


def model():
    tg.random.set_seed(1)
    layer = tg.layers.Dense(3)
    layer(tg.ones([1, 4]))
    return layer


@pytest.mark.parametrize(("first", "second"), [(NAME, "cpu:0"), ("cpu:0", NAME)])
def test_what_one_kind_saves_the_other_loads(first, second, tmp_path):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with tg.device(first):
        layer = model()
        predict = tg.function(lambda x: layer(x))
        wanted = predict(tg.constant(x)).numpy()
        module = tg.Module()
        module.layer, module.predict = layer, predict
        tg.saved_model.save(module, tmp_path / "model")
        path = tg.train.Checkpoint(layer=layer).save(tmp_path / "checkpoint")
    with tg.device(second):
        loaded = tg.saved_model.load(tmp_path / "model")
        np.testing.assert_allclose(loaded.predict(tg.constant(x)), wanted, rtol=1e-5, atol=1e-5)
        other = model()
        other.kernel.assign(tg.zeros_like(other.kernel))
        tg.train.Checkpoint(layer=other).restore(path).assert_consumed()
        np.testing.assert_array_equal(other.kernel, layer.kernel)
        np.testing.assert_allclose(other(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_training_goes_as_on_a_cpu(dtype):
    def losses(name):
        with tg.device(name):
            w = tg.Variable(tg.cast(np.linspace(-1, 1, 12).reshape(4, 3), dtype))
            x = tg.cast(np.linspace(0, 1, 32).reshape(8, 4), dtype)

            @tg.function
            def step():
                with tg.GradientTape() as tape:
                    loss = tg.reduce_mean(tg.square(tg.tanh(x @ w) - 1))
                w.assign_sub(tg.cast(0.1, dtype) * tape.gradient(loss, w))
                return loss

            return [float(step()) for _ in range(10)]

    found, wanted = losses(NAME), losses("cpu:0")
    np.testing.assert_allclose(found, wanted, rtol=SLACK * PRECISION[dtype])
    assert found[-1] < found[0]


def test_too_large_an_array_is_told(scope):
    if not NAME.startswith("gpu"):
        pytest.skip("the memory of a CPU is that of the machine")
    square = tg.function(lambda x: tg.sort(tg.reshape(x[:, None] * x[None, :], [-1]))[0])
    gpu = device()
    assert gpu is not None
    size = int(np.sqrt(gpu.memory_stats()["bytes_limit"] / 4))
    with pytest.raises(tg.errors.ResourceExhaustedError, match="its largest values"):
        square(tg.ones([size]))
    assert float(tg.reduce_sum(tg.ones([3]))) == 3.0
