"""Layouts on 8 devices: `tests/devices/test_layouts.py` runs this file in a process that has
them."""

import contextlib
import copy
import functools
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import tracegraph as tg
from tests.counting_reads import bytes_of_reads
from tests.project.test_docs import ON_8_DEVICES, execute
from tracegraph.archive.layouts import read_layout
from tracegraph.archive.manifest import Entry
from tracegraph.core.types import TensorType
from tracegraph.distribute import Layout, Mesh, with_layout

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(8, 4)).astype(np.float32), RNG.normal(size=(4, 6)).astype(np.float32)
MESH = Mesh({"data": 4, "model": 2})
ROWS, TILES = Layout(MESH, ["data", None]), Layout(MESH, ["data", "model"])


@pytest.fixture
def compiled():
    """What XLA compiles while the test runs."""
    found, is_open = [], True

    def note(event, seconds, **_):
        if is_open and event == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    is_open = False


def jax_sharding(*axes):
    """The oracle: JAX's own sharding over the devices in their order."""
    devices = np.array(jax.devices()).reshape(4, 2)
    return NamedSharding(jax.sharding.Mesh(devices, ("data", "model")), PartitionSpec(*axes))


def parts(value):
    """What each device holds, beside the part of the whole that it should be."""
    array = value.numpy()
    buffer = jax.numpy.asarray(value.__array__()) if value.layout is None else value.buffer
    return [(np.asarray(shard.data), array[shard.index]) for shard in buffer.addressable_shards]


# Meshes and layouts.


def test_meshes_that_say_the_same_are_equal():
    devices = jax.devices()
    assert MESH == Mesh({"data": 4, "model": 2}, devices) == Mesh(MESH.shape)
    assert hash(MESH) == hash(Mesh({"data": 4, "model": 2}, np.array(devices).reshape(4, 2)))
    others = [Mesh({"model": 4, "data": 2}), Mesh({"data": 8}), Mesh(MESH.shape, devices[::-1])]
    assert all(other != MESH for other in others)
    assert MESH.shape == {"data": 4, "model": 2} and MESH.size == 8
    assert (MESH.devices == np.array(devices).reshape(4, 2)).all()
    assert pickle.loads(pickle.dumps(others[2])) == others[2] == copy.deepcopy(others[2])


def test_sizes_of_a_mesh_may_be_numbers_of_numpy():
    mesh = Mesh({"data": np.int64(4), "model": np.uint8(2)})
    assert mesh == MESH and all(type(size) is int for size in mesh.shape.values())


def test_devices_of_a_mesh_have_names():
    chosen = jax.devices()[2:4]
    named = [tg.config.list_logical_devices()[2], "/CPU:3"]
    assert Mesh({"data": 2}, named) == Mesh({"data": 2}, chosen)
    assert Mesh({"data": 2}, np.array(chosen, object)).devices.tolist() == chosen


def test_layouts_that_say_the_same_are_equal():
    assert TILES == Layout(MESH, ("data", ("model",))) == Layout(MESH.jax_mesh, ["data", "model"])
    assert TILES != ROWS and Layout(MESH, [[], None]) == Layout(MESH, [None, None])
    assert TILES.mesh == MESH and TILES.sharding == jax_sharding("data", "model")
    both = Layout(MESH, [("data", "model"), None])
    assert both.sharding.is_equivalent_to(jax_sharding(("data", "model"), None), 2)


def test_a_layout_may_be_given_in_three_ways():
    with MESH:
        listed = with_layout(X, ["data", None])
    assert listed.layout == with_layout(X, ROWS).layout == ROWS
    assert with_layout(X, jax_sharding("data")).layout == ROWS


@pytest.mark.parametrize("axes", [["data", None], [None, "model"], [("model", "data"), None]])
def test_each_device_has_its_part(run, axes):
    layout = Layout(MESH, axes)
    y = run(lambda x: with_layout(2.0 * x, layout), tg.constant(X))
    assert y.layout == layout
    np.testing.assert_array_equal(y.numpy(), 2.0 * X)
    oracle = jax.device_put(2.0 * X, jax_sharding(*axes))
    for mine, theirs in zip(y.buffer.addressable_shards, oracle.addressable_shards):
        assert mine.device == theirs.device
        np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(theirs.data))


def test_an_array_of_jax_stays_divided():
    array = jax.device_put(X, jax_sharding("data", "model"))
    double = tg.function(lambda x: x * 2.0)
    for value in (
        tg.constant(array),
        tg.Variable(array),
        double(array),
        double(tg.constant(array)),
    ):
        assert value.layout == TILES
    assert (tg.constant(array) + 1.0).layout == TILES
    np.testing.assert_array_equal(tg.constant(array).numpy(), X)
    assert tg.constant(array, tg.float64).dtype is tg.float64
    v = tg.Variable(array)
    v.assign_add(array)
    np.testing.assert_array_equal(np.asarray(array), X)  # the owner still has it
    assert v.layout == TILES


def test_a_value_that_was_computed_with_divided_ones_declares_no_layout():
    """It is on the mesh because all that was pending ran as one program."""
    double = with_layout(X, ROWS) * 2.0
    v = tg.Variable(tg.ones([8, 4]) * 3.0)
    other = Mesh({"data": 2})
    f = tg.function(lambda x: v.assign(with_layout(x, Layout(other, ["data", None])) + v))
    assert double.layout == ROWS and v.declared_layout is None
    np.testing.assert_array_equal(f(X), X + 3.0)


def test_a_whole_array_of_jax_is_not_overwritten_by_a_variable():
    array = jax.device_put(X, jax_sharding())
    v = tg.Variable(array)
    step = tg.function(lambda: v.assign_add(X))
    for count in (2.0, 3.0):
        np.testing.assert_allclose(step(), count * X, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(array), X)


def test_an_array_on_a_mesh_of_explicit_axes_is_one_of_ours():
    mesh = jax.make_mesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    array = jax.device_put(X, NamedSharding(mesh, PartitionSpec("data")))
    v = tg.Variable(array)
    step = tg.function(lambda x: v.assign_add(tg.reshape(tg.reshape(x, [4, 8]), [8, 4])))
    for x in (array, tg.constant(array), with_layout(array, TILES), X):
        step(x)
        assert v.layout == tg.constant(array).layout == ROWS
    np.testing.assert_allclose(v.numpy(), 5.0 * X, rtol=1e-6)
    with jax.set_mesh(mesh):
        assert tg.function(lambda x: with_layout(x @ W, ROWS))(array).layout == ROWS


def test_a_copy_is_divided_as_its_original():
    for layout in (ROWS, TILES):
        x = with_layout(X, layout)
        for copied in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
            assert copied.layout == layout
            np.testing.assert_array_equal(copied.numpy(), X)


def test_a_tensor_is_in_the_memory_of_the_devices():
    on_host = ROWS.sharding.with_memory_kind("pinned_host")
    message = refused(TypeError, lambda: with_layout(X, on_host))
    assert "is in the memory 'pinned_host', and tensors are in 'device'" in message
    assert with_layout(X, on_host.with_memory_kind("device")).layout == ROWS


# Variables.


def test_a_variable_keeps_its_layout():
    v = tg.Variable(X, layout=ROWS)
    doubled = tg.function(lambda: v.assign(v * 2.0))
    steps = [
        lambda: v.assign(X),
        lambda: v.assign_add(X),
        doubled,
        doubled,
        lambda: v[1:3].assign(X[1:3]),
        lambda: v.scatter_update(tg.IndexedSlices(X[:1], [3])),
    ]
    expected = X.copy()
    for step in steps:
        step()
        assert v.layout == ROWS and v.read_value().layout == ROWS
    expected = 8.0 * X
    expected[1:3], expected[3] = X[1:3], X[0]
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6)
    assert copy.deepcopy(v).layout == pickle.loads(pickle.dumps(v)).layout == ROWS


def test_an_initial_value_is_made_in_place():
    made = []

    def start():
        made.append(tg.random.normal([64, 8]))
        return made[0]

    v = tg.Variable(start, layout=TILES)
    assert not made[0].is_made, "the whole value is nowhere"
    assert {part.shape for part, _ in parts(v.read_value())} == {(16, 4)}
    np.testing.assert_array_equal(v.numpy(), made[0].numpy())


def test_numbers_are_the_same_whatever_the_layout():
    def drawn(layout):
        tg.random.set_seed(7)
        values = tg.function(lambda: with_layout(tg.random.normal([8, 4]), layout))
        return [values().numpy() for _ in range(2)]

    alone = Layout(Mesh({"data": 1}), [None, None])
    np.testing.assert_array_equal(drawn(alone), drawn(TILES))


def test_a_generator_leaves_the_mesh_where_nothing_else_is_on_it(compiled):
    def draws():
        tg.random.set_seed(7)
        divided = tg.function(lambda: tg.random.normal([8, 4]) + with_layout(X, ROWS))
        alone = tg.function(lambda: tg.random.normal([3]))
        for turn in range(3):
            yield divided()
            yield alone()
            yield tg.random.normal([3])
            yield with_layout(tg.random.normal([8]), Layout(MESH, ["data"]))
            yield tg.random.normal([3])
            with tg.GradientTape():
                yield alone()
            with tg.device("cpu:3"):
                yield alone() + tg.random.normal([3])
            assert turn < 2 or not compiled
            compiled.clear()

    def drawn_without():
        tg.random.set_seed(7)
        for _ in range(3):
            yield tg.random.normal([8, 4]) + X
            yield from (tg.random.normal([3]) for _ in range(2))
            yield tg.random.normal([8])
            yield from (tg.random.normal([3]) for _ in range(2))
            yield tg.random.normal([3]) + tg.random.normal([3])

    found = []
    for i, y in enumerate(draws()):
        found.append(y.numpy())
        expected = {0: ROWS, 3: Layout(MESH, ["data"])}.get(i % 7)
        assert y.layout == expected, i
        assert expected or y.device.endswith("CPU:3" if i % 7 == 6 else "CPU:0")
    for mine, theirs in zip(found, drawn_without(), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


class Net(tg.Module):
    dropout: tg.layers.Layer | None = None

    def __init__(self):
        super().__init__()
        self.layers = [tg.layers.Dense(8, activation="tanh"), tg.layers.Dense(2)]
        self.scale = tg.Variable(tg.ones([8]))

    def __call__(self, x):
        return self.layers[1](self.layers[0](x) * self.scale)


TABLE = {"layers/0/kernel": [None, "model"], "*/kernel": ["model", None], "scale": ["data"]}


@pytest.mark.parametrize("is_built", [False, True])
def test_a_table_gives_layouts_by_paths(is_built):
    net = Net()
    if is_built:
        net(X)
    with MESH:
        given = net.apply_layouts(TABLE)
    assert given["scale"] == Layout(MESH, ["data"]) and len(given) == (3 if is_built else 1)
    net(X)
    first, second = net.layers
    assert first.kernel.layout == Layout(MESH, [None, "model"])
    assert second.kernel.layout == Layout(MESH, ["model", None])
    optimizer = tg.optimizers.Adam()
    optimizer.build(net.trainable_variables)
    kept = {v.name: v.layout for v in optimizer.variables if v.shape == (4, 8)}
    assert set(kept.values()) == {Layout(MESH, [None, "model"])} and len(kept) == 2


def test_weights_that_layers_make_later_are_made_in_place():
    made = []

    def start(shape, dtype):
        made.append(tg.random.normal(shape, dtype=dtype))
        return made[-1]

    model = tg.layers.Sequential([tg.layers.Dense(8, kernel_initializer=start, use_bias=False)])
    model.apply_layouts({"*/kernel": TILES})
    predict = tg.function(model)
    y = predict(X)
    assert model.variables[0].layout == TILES
    assert not any(x.is_made for x in made), "the whole value is nowhere"
    np.testing.assert_allclose(y.numpy(), X @ made[0].numpy(), rtol=1e-5, atol=1e-6)


def test_a_table_that_does_not_fit_changes_nothing():
    net = Net()
    net(X)
    table = {"scale": Layout(MESH, ["data"]), "layers/1/kernel": Layout(MESH, [None, "data"])}
    message = refused(ValueError, lambda: net.apply_layouts(table))
    assert "apply_layouts: 'layers/1/kernel': axis 1 of a tensor [8, 2] has the size 2" in message
    assert net.scale.layout is None
    net = Net()
    net.layers[0](X)
    refused(ValueError, lambda: net.apply_layouts({"*/kernel": Layout(MESH, ["data"])}))
    net.apply_layouts({"*/kernel": ROWS})  # the first one waits for nothing
    net(X)
    assert [layer.kernel.layout for layer in net.layers] == [ROWS, ROWS]


def test_the_last_table_counts_for_layers_that_are_not_built_yet():
    net = Net()
    net.apply_layouts({"*/kernel": Layout(MESH, [None, "data"]), "*/bias": Layout(MESH, ["model"])})
    net.apply_layouts({"layers/1/*": Layout(MESH, ["data", None]), "scale": ROWS.of_axes([0])})
    net.apply_layouts({"*/1/kernel": ROWS, "*/1/bias": Layout(MESH, [None])})
    net(X)
    first, second = net.layers
    assert first.kernel.layout == Layout(MESH, [None, "data"])
    assert second.kernel.layout == ROWS and second.bias.layout == Layout(MESH, [None])
    assert first.bias.layout == Layout(MESH, ["model"])


def test_a_pattern_that_fits_nothing_is_refused():
    net = Net()
    net(X)
    with pytest.raises(ValueError, match=r"no variable has a path like '\*/kernels'") as caught:
        net.apply_layouts({"*/kernels": ROWS})
    assert "layers/0/kernel" in str(caught.value)


def test_a_pattern_that_fits_nothing_is_told_when_the_last_layer_is_built():
    net = Net()
    net.apply_layouts({"*/kernels": ROWS})
    net.layers[0](X)  # the other one could have them
    with pytest.warns(UserWarning, match=r"no variable has a path like '\*/kernels'") as caught:
        net(X)
    (warning,) = caught
    assert "layers/1/bias" in str(warning.message) and warning.filename == __file__


def test_layers_that_make_no_variables_are_not_waited_for():
    net = Net()
    net.dropout = dropout = tg.layers.Dropout(0.5)
    net(X)
    with pytest.warns(UserWarning, match=r"no variable has a path like 'scales'"):
        net.apply_layouts({"scales": Layout(MESH, ["data"])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.apply_layouts({"scale": Layout(MESH, ["data"])})
        dropout(X)


def test_a_divided_variable_may_be_kept_in_the_memory_of_the_host(compiled):
    v = tg.Variable(X, layout=ROWS, memory_kind="pinned_host")
    w = tg.Variable(W, memory_kind="pinned_host")
    assert tg.Variable(X, layout=ROWS.sharding).memory_kind == "device"
    on_host = ROWS.sharding.with_memory_kind("pinned_host")
    assert tg.Variable(X, layout=on_host).memory_kind == "pinned_host"

    @tg.function
    def step(x):
        y = with_layout(x * v, ROWS) @ w
        v.assign_add(x)
        w.assign(0.5 * w)
        return y

    for number in range(4):
        np.testing.assert_allclose(
            step(X).numpy(), X * X * (1 + number) @ W * 0.5**number, rtol=1e-4, atol=1e-5
        )
        assert v.layout == ROWS and w.layout == Layout(MESH, [None, None])
        assert v.memory_kind == w.memory_kind == "pinned_host"
        assert number < 2 or not compiled
        compiled.clear()
    v.take_layout(TILES)
    assert v.layout == TILES and v.memory_kind == "pinned_host"
    np.testing.assert_allclose(v.numpy(), 5.0 * X, rtol=1e-6)


# Training.


def trained(table, batch_layout, steps=4):
    """The losses of a few steps, and the weights, with a table of layouts."""
    tg.random.set_seed(3)
    net, optimizer = Net(), tg.optimizers.SGD(0.1, momentum=0.9)
    with MESH:
        net.apply_layouts(table)

    @tg.function
    def step(x):
        x = x if batch_layout is None else with_layout(x, batch_layout)
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.nn.dropout(net(x), 0.25) ** 2)
        weights = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    losses = [float(step(X)) for _ in range(steps)]
    return losses, [v.numpy() for v in net.variables], net, step


@functools.cache
def trained_alone():
    """The losses and the weights where nothing is divided."""
    return trained({}, None)[:2]


EVERY = ("data", "model")
ZERO = {
    "layers/0/kernel": [None, EVERY],
    "layers/1/kernel": [EVERY, None],
    "layers/0/bias": [EVERY],
    "scale": [EVERY],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("table", [{}, ZERO, TABLE], ids=["data", "zero", "tensor"])
def test_training_is_the_same_whatever_is_divided(table, compiled):
    losses, weights = trained_alone()
    many_losses, many_weights, net, step = trained(table, ROWS)
    np.testing.assert_allclose(many_losses, losses, rtol=1e-5)
    for one, many in zip(weights, many_weights, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-6)
    assert all(v.layout is not None for v in net.variables)
    compiled.clear()
    for _ in range(3):
        step(X)
    assert not compiled, "a step with the same layouts is compiled once"


COLUMNS = Layout(MESH, [None, "data"])


def dense_step(table, batch, is_built=False, **options):
    """A layer of which the table divides what it says, a step of training it, and the batch."""
    tg.random.set_seed(5)
    layer = tg.layers.Dense(8)
    if is_built:
        layer(X)
    layer.apply_layouts(table)

    @tg.function(**options)
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(layer(x) ** 2)
        weights = layer.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.1 * gradient)
        return loss

    return layer, lambda: float(step(batch)), step


@pytest.mark.sampled(3)
@pytest.mark.parametrize("budget", [None, "100KiB"])
@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    ("table", "is_batch_divided"),
    [({"kernel": COLUMNS}, False), ({"kernel": COLUMNS}, True), ({}, True)],
)
def test_what_has_no_layout_stays_whole(table, is_batch_divided, is_built, budget, compiled):
    _, step, _ = dense_step({}, X)
    expected = [step() for _ in range(3)]
    batch = with_layout(X, ROWS) if is_batch_divided else X
    layer, step, _ = dense_step(table, batch, is_built, memory_budget=budget)
    losses = [step()]
    compiled.clear()
    losses += [step(), step()]
    assert not compiled, "the first step has the arrays of all others"
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert layer.bias.layout == Layout(MESH, [None])
    assert layer.kernel.layout == table.get("kernel", Layout(MESH, [None, None]))


def classifier():
    """A layer, an optimizer, and a step of both."""
    layer, optimizer = tg.layers.Dense(8), tg.optimizers.Adam(0.1)

    @tg.function
    def step():
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((layer(X) - 1.0) ** 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    return layer, optimizer, step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_goes_on_with_another_table(is_built, is_first, tmp_path):
    layer, optimizer, step = classifier()
    for _ in range(2):
        step()
    path = tg.train.Checkpoint(layer=layer, optimizer=optimizer).save(tmp_path / "saved")
    wanted = [float(step()) for _ in range(2)]

    layer, optimizer, step = classifier()
    if is_built:
        layer(X)
    acts = [
        lambda: layer.apply_layouts({"kernel": TILES}),
        lambda: tg.train.Checkpoint(layer=layer, optimizer=optimizer).restore(path),
    ]
    for act in acts if is_first else acts[::-1]:
        act()
    np.testing.assert_allclose([float(step()) for _ in range(2)], wanted, rtol=1e-5)
    kept = [v for v in optimizer.variables if v.shape.rank == 2]
    assert [v.layout for v in (layer.kernel, *kept)] == [TILES] * 3


def test_what_has_some_axes_of_a_weight_is_divided_as_they_are():
    weight = tg.Variable(RNG.normal(size=(8, 4, 6)), layout=Layout(MESH, [None, "data", "model"]))
    optimizer = tg.optimizers.Adafactor()
    optimizer.build([weight])
    kept = {v.shape[-1]: v for v in optimizer.variables if v.shape.rank}
    assert kept[4].layout == Layout(MESH, [None, "data"])
    assert kept[6].layout == Layout(MESH, [None, "model"])
    weight.take_layout(Layout(MESH, ["data", None, "model"]))
    assert kept[4].layout == ROWS
    assert kept[6].layout == TILES


def test_the_state_of_an_optimizer_of_optax_is_divided_as_its_variables():
    optax = pytest.importorskip("optax")
    weight, bias = tg.Variable(W, layout=TILES), tg.Variable(W[0])
    optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    optimizer.build([weight, bias])
    slots = {slot.name: slot.layout for slot in optimizer.variables if slot.shape.rank}
    assert [*slots.values()] == [TILES, None, TILES, None]
    bias.take_layout(Layout(MESH, ["model"]))
    assert [x.layout for x in optimizer.variables if x.ndim == 1] == [bias.layout] * 2


def test_what_will_be_compiled_is_described_before_it_has_run():
    layer, step, function = dense_step({"kernel": COLUMNS}, X, is_built=True)
    assert "all-reduce" in str(function.get_concrete_function(X).summary(devices=True))
    step()
    assert layer.bias.layout == Layout(MESH, [None])


def test_a_variable_without_a_layout_stays_whole_beside_a_kernel_that_is_divided():
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 4, "model": 2}), [None, "model"])
    kernel = tg.Variable(tg.ones([16, 8]), layout=layout)
    bias = tg.Variable(tg.zeros([8]))
    optimizer = tg.optimizers.Adam(0.1)
    for _ in range(2):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.square(tg.tanh(tg.ones([4, 16]) @ kernel + bias) - 0.5))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, [kernel, bias]), [kernel, bias], strict=True)
        )
        for variable in (bias, *optimizer.variables):
            if variable.shape == bias.shape:
                assert variable.layout.axes == (None,)
    assert kernel.layout == layout


def test_a_setting_that_is_assigned_compiles_nothing(compiled):
    rate, v = tg.Variable(0.5), tg.Variable(X, layout=ROWS)
    step = tg.function(lambda: v.assign_sub(rate * v))
    step()
    rate.assign(0.25)
    compiled.clear()
    step()
    np.testing.assert_allclose(v.numpy(), 0.375 * X, rtol=1e-6)
    assert not compiled


# Derivatives.


def results(laid_out, w, x):
    """Derivatives of every kind, with `laid_out` around what is between."""
    found = {}

    def layer(x):
        return laid_out(tg.tanh(x @ w))

    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(layer(x) ** 2)
    found["tape"] = tape.gradient(loss, w)

    @tg.function
    def twice(x):
        with tg.GradientTape() as outer:
            with tg.GradientTape() as inner:
                loss = tg.reduce_sum(layer(x) ** 2)
            slope = inner.gradient(loss, w)
            size = tg.reduce_sum(slope * slope)
        return slope, outer.gradient(size, w)

    found["first"], found["second"] = twice(x)

    @tg.custom_gradient
    def tripled(x):
        return laid_out(x * x), lambda g: laid_out(3.0 * g * x)

    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(tripled(layer(x)))
    found["custom"] = tape.gradient(loss, w)
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(tg.recompute_grad(layer)(x) ** 3)
    found["recomputed"] = tape.gradient(loss, w)

    @tg.function
    def scanned(x):
        with tg.GradientTape() as tape:
            states = tg.scan(
                lambda state, row: laid_out(tg.tanh(state + layer(row))),
                tg.stack([x, 2.0 * x]),
                initializer=tg.zeros([8, 6]),
            )
            loss = tg.reduce_sum(states)
        return tape.gradient(loss, w)

    @tg.function
    def looped(x, count):
        with tg.GradientTape() as tape:
            state, i = tg.zeros([8, 6]), tg.constant(0)
            while i < count:
                state, i = laid_out(tg.tanh(state + layer(x))), i + 1
            loss = tg.reduce_sum(state)
        return tape.gradient(loss, w)

    found["scan"], found["while"] = scanned(x), looped(x, tg.constant(3))
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        rows = layer(x)
        total = tg.reduce_sum(rows, axis=1)
    found["jacobian"] = tape.jacobian(total, x)
    found["batch_jacobian"] = tape.batch_jacobian(rows, x)
    found["hessian"] = tg.hessian(lambda x: tg.reduce_sum(layer(x) ** 3))(x)
    found["vmap"] = tg.vectorized_map(lambda row: layer(tg.stack([row] * 8))[0], x)
    with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as forward:
        y = layer(x)
    found["forward"] = forward.jvp(y)
    return found


def test_derivatives_are_the_same_whatever_is_divided():
    one = results(lambda x: x, tg.Variable(W), tg.constant(X))
    divided = tg.Variable(W, layout=TILES)
    many = results(lambda x: with_layout(x, ROWS), divided, with_layout(X, ROWS))
    for kind, value in one.items():
        np.testing.assert_allclose(many[kind].numpy(), value.numpy(), atol=2e-5, err_msg=kind)
    y = np.tanh(X @ W)
    np.testing.assert_allclose(many["first"], X.T @ (2 * y * (1 - y**2)), rtol=1e-4, atol=1e-5)
    for kind in ("first", "second", "recomputed", "scan", "while"):
        assert many[kind].layout == TILES, f"the gradient by a Variable is divided as it: {kind}"


def test_a_gradient_is_divided_as_its_source():
    """XLA would have all of these gradients whole on each device."""
    weight, x, scale = tg.Variable(W, layout=TILES), with_layout(X, ROWS), tg.constant(X)

    @tg.function
    def inside(x, scale):
        return slopes(with_layout(x, ROWS), scale)

    def slopes(x, scale):
        with tg.GradientTape() as tape:
            tape.watch([x, scale])
            loss = tg.reduce_sum(x @ weight) * tg.reduce_sum(scale) + tg.reduce_sum(weight)
        return tape.gradient(loss, [weight, x, scale])

    for of_weight, of_x, of_scale in (slopes(x, scale), inside(X, scale)):
        assert [of_weight.layout, of_x.layout] == [TILES, ROWS]
        expected = X.sum() * X.sum(axis=0)[:, None] + np.ones_like(W)
        np.testing.assert_allclose(of_weight, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(of_scale[0, 0], (X @ W).sum(), rtol=1e-4, atol=1e-4)


def test_branches_may_divide_their_results_in_different_ways():
    columns = Layout(MESH, [None, "data"])

    @tg.function
    def chosen(place, x):
        branches = [lambda: with_layout(2.0 * x, ROWS), lambda: with_layout(x, columns), lambda: x]
        return tg.switch_case(place, branches)

    @tg.function
    def slope(place, x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cond(
                place == 0, lambda: with_layout(2.0 * x, columns), lambda: with_layout(x, ROWS)
            )
            total = tg.reduce_sum(tg.sin(y) * tg.cast(chosen(place, x), tg.float32))
        return tape.gradient(total, x)

    for place, factor in enumerate([2.0, 1.0, 1.0]):
        np.testing.assert_array_equal(chosen(place, X).numpy(), factor * X)
        y = factor * X
        wanted = factor * (np.cos(y) * y + np.sin(y))
        np.testing.assert_allclose(slope(place, X).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_batch_rule_puts_an_undivided_axis_in_front():
    graph = (
        tg.function(tg.vmap(lambda row: with_layout(row, Layout(MESH, ["data"]))))
        .get_concrete_function(tg.TensorSpec([3, 8]))
        .graph
    )
    assert 'with_layout<mesh="data=4,model=2", axes=[none,"data"]>(%' in graph.as_text()


@pytest.mark.parametrize("axes", [["data", "model"], [None, "model"], ["model", "data"]])
def test_transforms_along_divided_axes(axes):
    x = with_layout(X, Layout(MESH, axes))
    z = tg.cast(x, tg.complex64)
    for found, expected in [
        (tg.abs(tg.signal.fft(z)), np.abs(np.fft.fft(X))),
        (tg.abs(tg.signal.fft2d(z)), np.abs(np.fft.fft2(X))),
        (tg.abs(tg.signal.rfft(x)), np.abs(np.fft.rfft(X))),
        (tg.signal.irfft(z, [6]), np.fft.irfft(X, 6)),
    ]:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


# Text and files.


def test_layouts_are_printed_parsed_and_saved(tmp_path):
    module = tg.Module()
    module.w = tg.Variable(W, layout=Layout(MESH, [None, "model"]))
    module.apply = tg.function(
        lambda x: with_layout(x @ module.w, ROWS), input_signature=[tg.TensorSpec([8, 4])]
    )
    text = module.apply.get_concrete_function().graph.as_text()
    assert 'with_layout<mesh="data=4,model=2", axes=["data",none]>' in text
    assert tg.Graph.from_text(text).as_text() == text
    tg.saved_model.save(module, tmp_path)
    half = Mesh({"model": 2, "data": 2}, jax.devices()[4:])
    for mesh, around in ((MESH, contextlib.nullcontext()), (half, half)):
        with around:
            loaded = tg.saved_model.load(tmp_path)
        y = loaded.apply(X)
        assert y.layout == Layout(mesh, ["data", None])
        np.testing.assert_allclose(y.numpy(), X @ W, rtol=1e-5, atol=1e-6)
    with Mesh({"rows": 8}):
        assert "axes=[none,none]" in tg.Graph.from_text(text).as_text()


@pytest.fixture
def saved(tmp_path):
    """A folder with a layer that was saved, whose kernel is divided, as is what is kept for it."""
    layer, optimizer = tg.layers.Dense(6), tg.optimizers.SGD(0.1, momentum=0.9)
    layer(X)
    layer.apply_layouts({"kernel": TILES})
    layer.kernel.assign(W)
    optimizer.build(layer.trainable_variables)
    module = tg.Module()
    module.layer, module.optimizer = layer, optimizer
    module.apply = tg.function(layer, input_signature=[tg.TensorSpec([8, 4])])
    tg.saved_model.save(module, tmp_path)
    return tmp_path


def test_variables_of_a_saved_model_keep_their_layouts(saved, monkeypatch):
    counts = bytes_of_reads(monkeypatch.setattr)
    loaded = tg.saved_model.load(saved)
    kernel, bias = loaded.layer.kernel, loaded.layer.bias
    assert kernel.layout == TILES
    assert not counts, "nothing is read before it is asked for"
    buffer = kernel.read_value().buffer
    assert len(counts) == 8 and sum(counts) == W.nbytes, "each part once"
    for shard in buffer.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), W[shard.index])
    assert buffer.sharding == jax_sharding("data", "model")
    assert bias.layout is None
    kept = [v.layout for v in loaded.optimizer.variables if v.shape == W.shape]
    assert kept == [TILES]
    np.testing.assert_allclose(loaded.apply(X).numpy(), X @ W, rtol=1e-5, atol=1e-6)
    kernel.assign(2.0 * W)
    assert kernel.layout == TILES


def test_an_axis_that_two_of_the_mesh_divide_is_saved(tmp_path):
    every = Layout(MESH, [("data", "model"), None])
    module = tg.Module()
    module.w = tg.Variable(X, layout=every)
    spec = tg.TensorSpec([8, 4], layout=every)
    module.apply = tg.function(lambda x: x + module.w, input_signature=[spec])
    tg.saved_model.save(module, tmp_path)
    loaded = tg.saved_model.load(tmp_path)
    assert loaded.w.layout == loaded.apply(X).layout == every
    np.testing.assert_array_equal(loaded.w.numpy(), X)


def test_layouts_of_a_saved_model_mean_the_mesh_around(saved):
    half = Mesh({"model": 2, "data": 2}, jax.devices()[4:])
    with half:
        loaded = tg.saved_model.load(saved)
    assert loaded.layer.kernel.layout == Layout(half, ["data", "model"])
    tg.saved_model.save(loaded, saved)
    assert tg.saved_model.load(saved).layer.kernel.layout == Layout(half, ["data", "model"])
    with Mesh({"rows": 8}) as mesh:
        kernel = tg.saved_model.load(saved).layer.kernel
    assert kernel.layout == Layout(mesh, [None, None])
    np.testing.assert_array_equal(kernel.numpy(), W)
    with Mesh({"data": 8}), pytest.raises(tg.errors.LoadError, match="'data' of 8 does not divide"):
        tg.saved_model.load(saved)


FEWER = """
import sys, numpy as np, tracegraph as tg
loaded = tg.saved_model.load(sys.argv[1])
assert loaded.layer.kernel.layout is None
np.save(sys.argv[2], loaded.layer.kernel.numpy())
loaded.layer.kernel.assign_add(tg.ones([4, 6]))
tg.saved_model.save(loaded, sys.argv[1])
"""


@pytest.mark.sweep  # `tests/devices/test_layouts.py` loads and saves such a model on one device
def test_a_model_comes_back_from_where_the_devices_are_not(saved, tmp_path):
    environment = {**os.environ, "XLA_FLAGS": ""}
    file = tmp_path.with_suffix(".npy")
    command = [sys.executable, "-c", FEWER, str(saved), str(file)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(file), W)
    kernel = tg.saved_model.load(saved).layer.kernel
    assert kernel.layout == TILES
    np.testing.assert_array_equal(kernel.numpy(), W + 1.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"mesh": "data=4,model=2", "axes": ["rows", None]}, "names the axis 'rows'"),
        ({"mesh": "data=3", "axes": ["data", None]}, "'data' of 3 does not divide"),
        ({"mesh": "data=4", "axes": ["data"]}, "a layout for 1 axis"),
        ({"mesh": "data", "axes": [None, None]}, "'data' is not a mesh"),
        ({"mesh": "data=4", "axes": [None, None], "devices": ["x"]}, "an integer"),
        ({"mesh": "data=2", "axes": [None, None], "devices": [1, 1]}, "the devices [1, 1]"),
        ({"mesh": "data=4"}, "axes"),
        ("data", "an object"),
    ],
)
def test_a_layout_in_a_manifest_is_not_trusted(row, words):
    entry = Entry({"layout": row}, "file").pairs()["layout"]
    with pytest.raises(tg.errors.LoadError, match=re.escape(words)):
        read_layout(entry, TensorType(tg.float32, (4, 6)))


def test_an_input_signature_declares_layouts(tmp_path, compiled):
    with MESH:
        spec = tg.TensorSpec([None, 4], layout=["data", None], name="x")
    assert spec.layout == ROWS and spec == pickle.loads(pickle.dumps(spec))
    assert spec != tg.TensorSpec([None, 4], name="x") and "layout=Layout(Mesh(" in repr(spec)

    @tg.function(input_signature=[spec])
    def f(x):
        return x * 2.0

    assert str(f.get_concrete_function()).count("x: [data, -] of data=4,model=2") == 1
    assert f(X).layout == f(tg.Variable(X)).layout == ROWS
    laid_out, elsewhere = with_layout(X, ROWS), with_layout(X, Layout(MESH, [None, "model"]))
    compiled.clear()
    for given in (X, X.tolist(), tg.constant(X), laid_out, elsewhere, laid_out, tg.constant(X), X):
        y = f(given)
        assert y.layout == ROWS
        np.testing.assert_array_equal(y.numpy(), 2.0 * X)
    assert not compiled, "arguments always come in the same layout"
    with tg.GradientTape() as tape:
        x = tg.constant(X)
        tape.watch(x)
        y = f(x)
    assert tape.gradient(y, x).layout == ROWS
    outer = tg.function(lambda x: f(x) + 1.0)
    assert outer(X).layout == ROWS
    message = refused(ValueError, lambda: f(X[:6]))
    assert "f: argument 'x': axis 0 of a tensor [6, 4] has the size 6, which 'data' of 4" in message
    tg.saved_model.save(f, tmp_path)
    loaded = tg.saved_model.load(tmp_path)
    assert loaded(X).layout == ROWS
    assert loaded.content_.input_signature == (spec,)
    with Mesh({"data": 2}) as half:
        assert tg.saved_model.load(tmp_path)(X).layout == Layout(half, ["data", None])


def test_a_trace_may_be_asked_for_with_layouts(tmp_path):
    module = tg.Module()
    module.f = f = tg.function(lambda x: 2.0 * x)
    spec = tg.TensorSpec([None, 4], layout=ROWS)
    concrete = f.get_concrete_function(spec)
    assert f.get_concrete_function(spec) is concrete
    assert concrete(X).layout == concrete(with_layout(X, COLUMNS)).layout == ROWS
    assert f(X).layout is None, "a call that asks for none has none"
    assert len(f.traces) == 2 and "the layouts of its arguments were" in str(f.explain_retraces())
    message = refused(ValueError, lambda: concrete(X[:6]))
    assert "argument 'x': axis 0 of a tensor [6, 4] has the size 6, which 'data' of 4" in message
    module.concrete = concrete
    tg.saved_model.save(module, tmp_path)
    loaded = tg.saved_model.load(tmp_path)
    assert loaded.concrete(X).layout == ROWS and loaded.f(X).layout is None


def test_a_loaded_trace_with_layouts_serves_all_arguments(tmp_path):
    module = tg.Module()
    module.f = tg.function(lambda x: 2.0 * x)
    module.f.get_concrete_function(tg.TensorSpec([8, 4], layout=ROWS))
    tg.saved_model.save(module, tmp_path)
    loaded = tg.saved_model.load(tmp_path)
    assert [loaded.f(X).layout for _ in range(3)] == [ROWS] * 3


HALF = Mesh({"data": 2}, jax.devices()[4:6])


def by_axes():
    """A function that names axes of the mesh around, one that calls it, and one of one mesh."""
    rows = tg.function(lambda x: with_layout(2.0 * x, ["data", None]))
    calling = tg.function(lambda x: rows(x) + 1.0)

    @tg.function
    def of_half(x):
        with HALF:
            return rows(x)

    return rows, calling, of_half


def test_axes_mean_the_mesh_of_each_call():
    rows, calling, of_half = by_axes()
    for mesh in (MESH, HALF, MESH, HALF, HALF):
        with mesh:
            found = [rows(X).layout, calling(X).layout, of_half(X).layout]
        assert found == [Layout(mesh, ["data", None])] * 2 + [Layout(HALF, ["data", None])]
    assert of_half(X).layout.mesh == HALF
    counts = [f.experimental_get_tracing_count() for f in (rows, calling, of_half)]
    assert counts == [2, 2, 1]
    text = str(rows.explain_retraces())
    assert "mesh around was Mesh({'data': 4, 'model': 2}) and is now Mesh({'data': 2})" in text
    message = refused(ValueError, lambda: calling(X))
    assert "and there is no mesh" in message and "or around each call of the function" in message
    with tg.GradientTape() as tape, HALF:
        x = tg.constant(X)
        tape.watch(x)
        y = rows(x)
    assert tape.gradient(y, x).layout.mesh == HALF


def test_open_sizes_have_a_trace_for_each_mesh():
    rows = tg.function(lambda x: with_layout(x, ["data", None]), reduce_retracing=True)
    for mesh in (MESH, HALF, MESH):
        for count in (4, 8, 16):
            with mesh:
                assert rows(np.ones((count, 2), np.float32)).layout.mesh == mesh
    assert rows.experimental_get_tracing_count() == 3  # one of them open for each


def test_a_function_that_names_no_axes_is_traced_once():
    double = tg.function(lambda x: with_layout(2.0 * x, ROWS))
    for around in (MESH, HALF, contextlib.nullcontext()):
        with around:
            assert double(X).layout == ROWS
    assert double.experimental_get_tracing_count() == 1


def test_of_several_meshes_that_of_the_save_is_saved(tmp_path):
    module = tg.Module()
    module.rows = tg.function(
        lambda x: with_layout(x, ["data", None]), input_signature=[tg.TensorSpec([None, 4])]
    )
    for mesh in (HALF, MESH):
        with mesh:
            module.rows(X)
    tg.saved_model.save(module, tmp_path)
    assert tg.saved_model.load(tmp_path).rows(X).layout.mesh == MESH, "the one called last"
    with HALF:
        tg.saved_model.save(module, tmp_path)
    assert tg.saved_model.load(tmp_path).rows(X).layout.mesh == HALF


def test_threads_enter_a_mesh_at_the_same_time():
    entered, left = threading.Barrier(2), []

    def work():
        with MESH:
            entered.wait()
            assert with_layout(X, ["data", None]).layout == ROWS
            entered.wait()
        left.append(refused(ValueError, lambda: with_layout(X, ["data", None])))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(left) == 2


def test_what_is_not_held_divides_nothing():
    """A pending value that nobody holds any more is not computed, nor does its mesh count."""
    divided = tg.fill([8, 4], 1.0)
    with_layout(divided, ROWS)
    del divided
    v = tg.Variable(tg.fill([8, 4], 2.0))
    assert v.layout is None


def test_a_signature_tells_the_layouts():
    w = tg.Variable(W, layout=TILES, name="w")

    @tg.function
    def layer(x):
        y = with_layout(x, ROWS) @ w
        return tg.reduce_sum(y), with_layout(y, ROWS)

    text = str(layer.get_concrete_function(tg.TensorSpec([8, 4])))
    assert text.endswith(
        "Layouts:\n"
        "  x: [data, -] of data=4,model=2\n"
        "  w: [data, model] of data=4,model=2\n"
        "  result 1: [data, -] of data=4,model=2"
    )


def test_devices_that_are_not_the_first_are_named():
    half = Mesh({"data": 4}, jax.devices()[4:])
    f = tg.function(lambda x: with_layout(x, Layout(half, ["data", None])))
    assert (
        'mesh="data=4", axes=["data",none], devices=[4,5,6,7]>' in f.graph(tg.constant(X)).as_text()
    )
    assert {shard.device.id for shard in f(X).buffer.addressable_shards} == {4, 5, 6, 7}


def test_effects_between_keep_layouts(capfd):
    v = tg.Variable(X, layout=ROWS)

    @tg.function
    def f(x):
        y = with_layout(x + v, ROWS)
        z = tg.numpy_function(lambda a: 2.0 * a, [y], tg.float32)
        v.assign(tg.ensure_shape(z, [8, 4]))
        return y

    assert f(X).layout == ROWS and v.layout == ROWS
    np.testing.assert_allclose(v.numpy(), 4.0 * X, rtol=1e-6)


def called_in_python(values):
    result = tg.numpy_function(lambda a: a, [values], tg.float32)
    return tg.ensure_shape(result, values.shape)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize(
    ("between", "options"),
    [
        (lambda x: x, {}),
        (lambda x: tg.print(x, output_stream="file:///dev/null") or x, {}),
        (called_in_python, {}),
        (lambda x: tg.ensure_shape(tg.boolean_mask(x, x < 1e9), [4]), {}),
        (lambda x: x, {"locate_numerics": True}),
        (lambda x: x, {"check_numerics": True}),
        (lambda x: x, {"memory_budget": "100KiB"}),
    ],
    ids=["plain", "print", "call", "size", "located", "checked", "budget"],
)
def test_a_function_is_compiled_for_a_mesh_once(between, options, is_recorded, compiled):
    w, v = tg.Variable(X[:4]), tg.Variable(X[:4], layout=ROWS)
    bias, expected = tg.Variable(tg.zeros([4])), np.zeros(4, np.float32)

    @tg.function(**options)
    def step(x):
        y = tg.tanh(with_layout(x, ROWS) @ w @ v) + bias
        mean = between(tg.reduce_mean(y, axis=0))
        bias.assign(0.5 * bias + mean)
        w.assign(0.9 * w)
        return tg.reduce_sum(y)

    def recorded(x):
        with tg.GradientTape() as tape:
            y = step(x)
        return tape.gradient(y, v)

    now = X[:4].copy()
    for run in range(3):
        (recorded if is_recorded else step)(X)
        y = np.tanh(X @ now @ X[:4]) + expected
        expected, now = 0.5 * expected + y.mean(axis=0), np.float32(0.9) * now
        np.testing.assert_allclose(bias.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert not compiled or run == 0, "the first run has the arrays of all others"
        compiled.clear()
    assert w.layout == Layout(MESH, [None, None]) and bias.layout == Layout(MESH, [None])
    assert v.layout == ROWS


# What XLA made of it.


def costs_of(step, *types):
    return step.get_concrete_function(*types).summary(devices=True).devices


def test_a_gradient_is_summed_over_the_devices():
    w = tg.Variable(np.ones((64, 32), np.float32))

    @tg.function
    def step(x):
        x = with_layout(x, Layout(MESH, [EVERY, None]))
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(tg.tanh(tg.matmul(x, w)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    step(np.ones((16, 64), np.float32))
    costs = costs_of(step, tg.TensorSpec([16, 64]))
    assert costs.mesh == "data=4,model=2" and costs.device_count == 8
    assert costs.bytes_of("variable") == (8192, 8192)
    assert {x.kind for x in costs.collectives} == {"all-reduce"}
    assert sum(x.bytes for x in costs.collectives) == 8192 + 4  # the gradient and the loss
    assert costs.sent == sum(2 * x.bytes * 7 // 8 for x in costs.collectives)
    assert any("layout_cases.py" in line for x in costs.collectives for line in x.lines)
    graph = step.get_concrete_function(tg.TensorSpec([16, 64])).graph
    assert graph.summary(devices=True).to_dict()["devices"]["sent"] == costs.sent


def test_a_divided_weight_is_gathered():
    w = tg.Variable(np.ones((64, 32), np.float32), layout=Layout(MESH, [EVERY, None]))
    every = Layout(MESH, [EVERY, None])
    f = tg.function(lambda x: with_layout(tg.matmul(with_layout(x, every), w), every))
    costs = costs_of(f, tg.TensorSpec([4096, 64]))
    assert costs.bytes_of("variable") == (1024, 8192)
    found = [(x.kind, x.devices, x.bytes, x.sent) for x in costs.collectives]
    assert found == [("all-gather", 8, 8192, 8192 * 7 // 8)]
    (result,) = costs.results
    assert (result.layout, result.on_device, result.bytes) == ("[data+model, -]", 65536, 524288)


def test_a_loop_counts_as_often_as_it_runs():
    w = tg.Variable(W[:, :4], layout=Layout(MESH, ["model", None]))

    @tg.function
    def f(x):
        return tg.scan(lambda s, _: with_layout(s @ w, ROWS), tg.range(5), initializer=x)

    costs = costs_of(f, tg.TensorSpec([8, 4]))
    inside = [x for x in costs.collectives if x.runs == 5]
    assert [x.kind for x in inside] == ["all-reduce"]
    assert inside[0].sent == 5 * 2 * inside[0].bytes * (inside[0].devices - 1) // inside[0].devices


def test_what_did_not_run_and_what_is_not_read_is_told():
    same = tg.function(lambda x, y: x)
    x = with_layout(X, ROWS)
    before = costs_of(same, x, x)
    assert (before.device_count, before.has_run) == (1, False)
    told = "(it has not run: what has no layout is taken to be on one device)"
    assert told in str(before) and "on one device  " in str(before)
    same(x, x)
    after = costs_of(same, x, x)
    assert (after.device_count, after.has_run) == (8, True) and told not in str(after)
    found = [(x.layout, x.on_device, x.bytes) for x in (*after.inputs, *after.results)]
    assert found == [("[data, -]", 32, 128), ("not read", 0, 128), ("[data, -]", 32, 128)]
    # Nobody holds the function.
    assert "each of 8 devices" in tg.function(lambda: x).get_concrete_function().summary(
        devices=True
    )


def test_weights_divided_by_all_take_an_eighth():
    *_, step = trained(ZERO, Layout(MESH, [EVERY, None]))
    costs = step.get_concrete_function(tg.TensorSpec([8, 4])).summary(devices=True).devices
    own, whole = costs.bytes_of("variable")
    undivided = sum(
        x.bytes for x in costs.inputs if x.role == "variable" and x.on_device == x.bytes
    )
    assert own - undivided == (whole - undivided) // 8


# What is wrong.

OTHER = Mesh({"data": 8})


def refused(kind, action):
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words", "action"),
    [
        (
            ValueError,
            "the mesh data=16 has 16 devices, and there are 8",
            lambda: Mesh({"data": 16}),
        ),
        (ValueError, "the axis 'data' of a mesh has the size 0", lambda: Mesh({"data": 0})),
        (ValueError, "a mesh has no axes", lambda: Mesh({})),
        (ValueError, "an axis of a mesh is called 'a b'", lambda: Mesh({"a b": 2})),
        (ValueError, "the shape of a mesh is [4, 2]", lambda: Mesh([4, 2])),
        (
            ValueError,
            "the mesh a=4 has 4 devices, and 3 were given",
            lambda: Mesh({"a": 4}, jax.devices()[:3]),
        ),
        (
            ValueError,
            "the mesh a=2 has 2 devices, and 2 were given, some of them twice",
            lambda: Mesh({"a": 2}, [jax.devices()[1]] * 2),
        ),
        (ValueError, "an int is not a device: 3", lambda: Mesh({"a": 1}, [3])),
        (
            tg.errors.InvalidArgumentError,
            "there is no device 'cpu:9'",
            lambda: Mesh({"a": 1}, ["cpu:9"]),
        ),
        (
            ValueError,
            "a layout names the axis 'rows', and the mesh is data=4,model=2",
            lambda: Layout(MESH, ["rows"]),
        ),
        (
            ValueError,
            "a layout uses the axis 'data' of the mesh twice",
            lambda: Layout(MESH, ["data", ("model", "data")]),
        ),
        (ValueError, "an entry of a layout is 3", lambda: Layout(MESH, [3])),
        (ValueError, "the axes of a layout are 'data'", lambda: Layout(MESH, "data")),
        (ValueError, "an int is not a mesh: 3", lambda: Layout(3, ["data"])),
        (
            ValueError,
            "axis 0 of a tensor [6, 4] has the size 6, which 'data' of 4 does not divide",
            lambda: with_layout(np.ones((6, 4)), ROWS),
        ),
        (
            ValueError,
            "the size 4, which 'data' of 4 x 'model' of 2 = 8 does not divide",
            lambda: with_layout(X, Layout(MESH, [None, EVERY])),
        ),
        (
            ValueError,
            "a layout for 2 axes, ['data', None], was given to a tensor of 1 axis, [8]",
            lambda: tg.Variable(np.ones(8), layout=ROWS),
        ),
        (
            ValueError,
            "tg.TensorSpec: axis 0 of a tensor [6, d] has the size 6, which 'data' of 4 does not",
            lambda: tg.TensorSpec([6, None], layout=ROWS),
        ),
        (
            ValueError,
            "tg.TensorSpec: a layout was given to a tensor whose rank is not known",
            lambda: tg.TensorSpec(None, layout=ROWS),
        ),
        (
            TypeError,
            "declare the layout in the input_signature",
            lambda: tg.function(
                lambda x: x, input_signature=[tg.TensorSpec([8, 4])]
            ).get_concrete_function(tg.TensorSpec([8, 4], layout=ROWS)),
        ),
        (
            ValueError,
            "the axes ['data', None] were given as a layout, and there is no mesh",
            lambda: with_layout(X, ["data", None]),
        ),
        (ValueError, "an int is not a layout: 3", lambda: with_layout(X, 3)),
        (
            TypeError,
            "from_local was called while a function is traced",
            lambda: tg.function(lambda x: tg.distribute.from_local(x, ROWS))(X),
        ),
        (
            ValueError,
            "names no axes of a mesh",
            lambda: with_layout(X, jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        ),
    ],
)
def test_bad_input_is_refused(kind, words, action):
    message = refused(kind, action)
    assert words in message and "\n  fix: " in message


def test_a_size_that_is_open_is_checked_when_it_is_known():
    f = tg.function(lambda x: with_layout(x, ROWS), input_signature=[tg.TensorSpec([None, 4])])
    assert f(X).layout == ROWS
    assert "size 6, which 'data' of 4 does not divide" in refused(ValueError, lambda: f(X[:6]))


@pytest.mark.parametrize("layout", [None, ROWS], ids=["stated", "declared"])
def test_a_size_that_nothing_divides_is_padded_to_a_bucket(layout):
    w = tg.Variable(W)

    @tg.function(bucket_sizes=[8, 16], input_signature=[tg.TensorSpec([None, 4], layout=layout)])
    def f(x):
        with tg.GradientTape() as tape:
            y = tg.tanh((x if layout else with_layout(x, ROWS)) @ w)
            loss = tg.reduce_mean(y * y)
        return loss, y, tape.gradient(loss, w)

    for count in (6, 8, 1, 5, 20):  # the last one is longer than any bucket, and divided
        x = np.resize(X, (count, 4))
        loss, y, slope = f(x)
        expected = np.tanh(x @ W)
        by_w = x.T @ (2 * expected * (1 - expected**2)) / expected.size
        np.testing.assert_allclose(loss.numpy(), np.mean(expected**2), rtol=1e-5)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slope.numpy(), by_w, rtol=1e-4, atol=1e-6)
    spec = tg.TensorSpec([None, 4], layout=layout)
    narrow = tg.function(lambda x: with_layout(x, ROWS), [spec], bucket_sizes=[7])
    assert "size 6, which 'data' of 4 does not divide" in refused(ValueError, lambda: narrow(X[:6]))


@pytest.mark.parametrize("devices", [None, slice(None, None, -1)])
def test_two_meshes_do_not_meet_in_one_program(devices):
    shape = {"data": 8} if devices is None else MESH.shape
    other = Mesh(shape, None if devices is None else jax.devices()[devices])
    v, elsewhere = tg.Variable(X, layout=ROWS), with_layout(X, Layout(other, ["data", None]))
    step = tg.function(lambda x: v.assign_add(x))
    step(X)
    for action in (
        lambda: step(elsewhere),
        lambda: (v + elsewhere).numpy(),
        lambda: tg.function(lambda x: with_layout(x, ROWS))(elsewhere),
    ):
        assert "two meshes meet in one program: " in refused(ValueError, action)
    step(X)
    np.testing.assert_allclose(v.numpy(), 3.0 * X, rtol=1e-6)
    assert (elsewhere * 2.0).layout == elsewhere.layout, "each alone goes on"


def test_what_is_whole_elsewhere_comes_to_the_mesh_of_a_step():
    v, w = tg.Variable(X, layout=ROWS), tg.Variable(tg.ones([8, 4]))
    step = tg.function(lambda x: (v.assign_add(x * w), w.assign(w)))
    add = tg.function(lambda x, y: with_layout(x, ROWS) + y)
    with tg.device("cpu:3"):
        pinned = tg.Variable(X)
    whole = Layout(Mesh({"data": 2}, jax.devices()[4:6]), [None, None])
    array = jax.device_put(X, jax.devices()[2])
    for count, x in enumerate([X, with_layout(X, whole), pinned, array, tg.constant(array)] * 2):
        step(x)
        assert v.layout == ROWS
        np.testing.assert_allclose(v.numpy(), (2.0 + count) * X, rtol=1e-6)
        assert add(x, X).layout == add(X, x).layout == (v + x).layout == ROWS
    assert pinned.device.endswith("CPU:3") and pinned.layout is None
    both = tg.function(lambda: pinned.assign(pinned + v))
    for _ in range(3):
        both()
        assert pinned.device.endswith("CPU:3")
    np.testing.assert_allclose(pinned.numpy(), 34.0 * X, rtol=1e-6)


def test_an_array_of_one_device_does_not_meet_those_of_others():
    v = tg.Variable(X, layout=Layout(Mesh({"data": 4}, jax.devices()[4:]), ["data", None]))
    x = with_layout(X, Layout(Mesh({"one": 1}, jax.devices()[1:2]), [None, None]))
    np.testing.assert_allclose((v + x).numpy(), 2.0 * X, rtol=1e-6)  # all of it may move


@pytest.mark.sweep
@pytest.mark.parametrize("page", ON_8_DEVICES, ids=lambda page: page.name)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    execute(page, {"__name__": "page"})
