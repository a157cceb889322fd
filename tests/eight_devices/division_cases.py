"""Every op on operands that are divided, on 8 devices, against one of them:
`tests/devices/test_layouts.py` runs this file in a process that has them. XLA's partitioner gets
some divisions wrong, most of them where an axis of the mesh divides nothing."""

import itertools
import random

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tracegraph as tg
from lowering.program import graph_function
from tests.derived_graphs import vjp_graph
from tests.op_table import CASES
from tests.ops.test_ops import CHUNK, arguments, difference_of, has_derivative, traced
from tracegraph.core.types import type_of_array
from tracegraph.ir.builder import Builder
from tracegraph.ops import index
from tracegraph.ops.layout import WithLayout
from tracegraph.ops.shape import Pad

DEVICES = np.array(jax.devices())
#: The axis `idle` divides no operand.
MESHES = (
    Mesh(DEVICES[:6].reshape(2, 3), ("a", "b")),
    Mesh(DEVICES.reshape(2, 2, 2), ("a", "b", "idle")),
)


@pytest.fixture
def some(request):
    """Chooses which of a list of divisions a case tries: all of them where each run leaves it
    out, and otherwise one, which differs from case to case."""
    if request.node.get_closest_marker("sweep"):
        return lambda forms: forms
    return lambda forms: random.Random(request.node.name).sample(forms, 1)


def divided(array, mesh, axes):
    return jax.device_put(np.asarray(array), NamedSharding(mesh, PartitionSpec(*axes)))


def greedily(array, mesh, is_from_last):
    """An array of which as many axes are divided as may be, from the first or from the last on."""
    axes, left = [None] * array.ndim, [name for name in mesh.axis_names if name != "idle"]
    for axis in range(array.ndim)[:: -1 if is_from_last else 1]:
        fits = (x for x in left if array.shape[axis] and array.shape[axis] % mesh.shape[x] == 0)
        axes[axis] = next(fits, None)
        left = [name for name in left if name != axes[axis]]
    return divided(array, mesh, axes)


def unevenly(array, mesh, is_from_last):
    """An array whose first axes, or last, are divided into parts of different sizes once `cut` has
    removed what is appended here."""
    places = [axis for axis, size in enumerate(array.shape) if size > 1]
    names = [name for name in mesh.axis_names if name != "idle"]
    chosen = dict(zip(places[:: -1 if is_from_last else 1], names))
    around = [(0, -size % mesh.shape.get(chosen.get(i), 1)) for i, size in enumerate(array.shape)]
    fill = np.full((), np.nan if array.dtype.kind in "fc" else 1).astype(array.dtype)
    wide = np.pad(array, around, constant_values=fill) if places else array
    return divided(wide, mesh, [chosen.get(axis) for axis in range(array.ndim)])


def cut(x, shape):
    return x[tuple(map(slice, shape))]


def wrong(label, run, operands, forms, tolerance=1e-8):
    """What a function of divided operands gives that it does not give for whole ones; `forms` are
    functions that divide the operands."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        expected = jax.tree.map(np.asarray, jax.jit(run)(*operands))
        for form in forms:
            found = jax.tree.map(np.asarray, jax.jit(run)(*form(operands)))
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
            for number, (x, y) in enumerate(pairs):
                if difference := difference_of(x, y, tolerance, ""):
                    yield f"{label(number)} of {form(operands)}: {difference}"


def graphs_of(case):
    """The op alone, and with its gradient, each with its operands."""
    graph = traced(case)
    with_gradient = case.order > 0 and has_derivative(case, case.own_dtype)
    for each in (graph, vjp_graph(graph)) if with_gradient else (graph,):
        yield each, arguments(each, case.values(case.own_dtype))


ROWS = [case for case in CASES if not isinstance(case.op, WithLayout)]  # those have a mesh
CHUNKS = [ROWS[k : k + CHUNK] for k in range(0, len(ROWS), CHUNK)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "rows", CHUNKS, ids=lambda rows: f"{rows[0].family}-{CASES.index(rows[0])}"
)
def test_every_op_has_the_same_value_and_gradient(rows, some):
    found = [(case, *each) for case in rows for each in graphs_of(case)]
    runs = [graph_function(graph) for _, graph, _ in found]
    names = [f"{graph.name} of {case}" for case, graph, _ in found for _ in graph.outputs]

    shapes = [[np.shape(x) for x in values] for *_, values in found]

    def run(*groups):
        return [each(*map(cut, *pair)) for each, *pair in zip(runs, groups, shapes, strict=True)]

    forms = [
        lambda groups, how=how, mesh=mesh, is_from_last=is_from_last: [
            [how(np.asarray(x), mesh, is_from_last) for x in group] for group in groups
        ]
        for how, mesh, is_from_last in itertools.product(
            (greedily, unevenly), MESHES, (False, True)
        )
    ]
    tolerance = max(1e-8, *(case.tolerance for case in rows))
    operands = [values for *_, values in found]
    assert not [*wrong(names.__getitem__, run, operands, some(forms), tolerance)]


# Convolutions: an image that is divided in space, alone and with others.

FORMS = [([1], []), ([1, 2], []), ([1], [-1]), ([0, 1], [-1]), ([-1, 0], [-1, -2])]


def on_axes(array, mesh, places):
    """An array that the axes of a mesh divide in turn, at these places."""
    axes = [None] * array.ndim
    for name, place in zip(mesh.axis_names, places):
        axes[place] = name
    return divided(array, mesh, axes)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("padding", "groups"), [("SAME", 1), ("VALID", 1), ("SAME", 2)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("shape", [{"a": 2, "b": 2, "idle": 2}, {"a": 4, "idle": 2}, {"a": 8}])
def test_convolutions_of_images_that_are_divided(
    shape, rank, groups, stride, dilation, padding, some
):
    rng = np.random.default_rng(0)
    mesh = Mesh(DEVICES.reshape(*shape.values()), tuple(shape))
    x = rng.normal(size=(8, *(8, 4, 3)[:rank], 8)).astype(np.float32)
    kernel = rng.normal(size=(*(3, 2, 2)[:rank], 8 // groups, 8)).astype(np.float32)

    def slopes(x, kernel):
        with tg.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tg.nn.convolution(x, kernel, stride, padding, dilations=dilation)
            loss = tg.reduce_sum(tg.sin(y))
        return y, *tape.gradient(loss, [x, kernel])

    specs = [tg.TensorSpec(x.shape), tg.TensorSpec(kernel.shape)]
    graph = tg.function(slopes).get_concrete_function(*specs).graph
    forms = [
        lambda operands, form=form: [on_axes(z, mesh, axes) for z, axes in zip(operands, form)]
        for form in FORMS
        if rank > 1 or form[0] != [1, 2]
    ]
    assert not [*wrong(str, graph_function(graph), [x, kernel], some(forms), 1e-4)]


def test_a_function_that_ran_on_one_device_before_has_the_right_gradient():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(8, 16, 4)), rng.normal(size=(3, 4, 6))
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 4, "model": 2}), [None, "data", None])

    @tg.function
    def slope(x, kernel):
        with tg.GradientTape() as tape:
            tape.watch(kernel)
            loss = tg.reduce_sum(tg.sin(tg.nn.conv1d(x, kernel, 1, "SAME")))
        return tape.gradient(loss, kernel)

    expected = slope(x, kernel).numpy()
    for _ in range(2):
        found = slope(tg.distribute.with_layout(x, layout), kernel).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_array_equal(slope(x, kernel).numpy(), expected)


def test_the_gradient_that_jax_takes_of_a_convolution_is_right():
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=size).astype(np.float32) for size in ((8, 16, 4), (3, 4, 6)))
    convolve = tg.function(lambda x, kernel: tg.nn.conv1d(x, kernel, 1, "SAME"))
    run = convolve.as_jax()
    slope = jax.grad(lambda x, kernel: jax.numpy.sin(run(x, kernel)).sum(), argnums=(0, 1))
    many = jax.vmap(slope, in_axes=(0, None))
    forms = [lambda operands: [divided(operands[0], MESHES[1], [None, "a"]), operands[1]]]
    assert not [*wrong(str, slope, [x, kernel], forms, 1e-4)]
    forms = [lambda operands: [divided(operands[0], MESHES[1], [None, None, "a"]), operands[1]]]
    assert not [*wrong(str, many, [np.stack([x, 2 * x]), kernel], forms, 1e-4)]


# Gathers, scatters and pads: random divisions.


def anyhow(array, mesh, chance):
    """An array that some axes of a mesh divide, at any places."""
    names = list(mesh.axis_names)
    axes = [None] * array.ndim
    for name in chance.sample(names, chance.randint(0, len(names))):
        fits = [i for i, n in enumerate(array.shape) if n % mesh.shape[name] == 0 and not axes[i]]
        if fits:
            axes[chance.choice(fits)] = name
    return divided(array, mesh, axes)


INDEXED = [
    index.GatherNd,
    index.ScatterAdd,
    index.ScatterUpdate,
    index.ScatterMax,
    index.ScatterMin,
    index.ScatterMul,
    index.ScatterIsExtreme,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", INDEXED, ids=lambda kind: kind.__name__)
def test_what_is_indexed_may_be_divided_anyhow(kind, seed, some):
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    batch, count = seed % 3, 1 + seed % 2

    def shape(least, most):
        return [chance.choice([2, 3, 4, 6]) for _ in range(chance.randint(least, most))]

    lead, before, indexed, after = (
        shape(batch, batch),
        shape(0, 1),
        shape(count, count),
        shape(0, 1),
    )
    places = shape(0, 2)
    x = rng.integers(-9, 9, size=(*lead, *before, *indexed, *after)).astype(np.float32)
    drawn = [rng.integers(0, size, size=(*lead, *places)) for size in indexed]
    indices = np.stack(drawn, axis=-1).astype(chance.choice([np.uint8, np.int32]))
    updates = rng.integers(-9, 9, size=(*lead, *before, *places, *after)).astype(np.float32)
    if kind is index.ScatterUpdate:
        updates[:] = 7  # which of two updates of one place counts is not said
    extra = {"largest": True} if kind is index.ScatterIsExtreme else {}
    op = kind(len([*lead, *before]), batch, bool(chance.getrandbits(1)), **extra)
    operands = [x, indices] if kind is index.GatherNd else [x, indices, updates]
    run = graph_function(graph_of(op, operands))
    forms = [
        lambda operands, mesh=mesh: [anyhow(each, mesh, chance) for each in operands]
        for mesh in MESHES * 3
    ]
    assert not [*wrong(str, run, operands, some(forms))]


@pytest.mark.parametrize("mesh", [*MESHES, Mesh(DEVICES, ("a",))], ids=["6", "8", "one axis"])
def test_places_that_are_written_may_be_divided_unevenly(mesh):
    """As the first 3 of 8 rows are, and with them what is embedded, sorted or searched there."""
    rng = np.random.default_rng(0)
    rows, numbers = rng.normal(size=(3, 4)), np.array([1, 2, 2], np.int32)
    many = np.array([[3, 1], [2, 3], [1, 1]], np.int32)

    def slopes(rows, numbers, many):
        with tg.GradientTape() as tape:
            tape.watch(rows)
            embedded = tg.gather(rows, numbers), tg.gather(rows, many, axis=1, batch_dims=1)
            found = [tg.sort(rows, axis=0), *tg.math.top_k(rows, 2)[:1], *embedded]
            loss = tg.add_n([tg.reduce_sum(tg.sin(x)) for x in found])
        return tape.gradient(loss, rows)

    def several(rows, numbers, many):
        written = [tg.scatter_nd(numbers[:, None], x, [4, 4]) for x in (rows, rows * 2)]
        sums = tg.math.unsorted_segment_sum(rows, numbers, 4)
        return *written, sums, slopes(rows, numbers, many)

    operands = [rows, numbers, many]
    specs = [tg.TensorSpec(x.shape, x.dtype) for x in operands]
    run = graph_function(tg.function(several).get_concrete_function(*specs).graph)

    def of_parts(*wide):
        return run(*map(cut, wide, [x.shape for x in operands]))

    forms = [
        lambda operands, last=last: [unevenly(x, mesh, last) for x in operands]
        for last in (False, True)
    ]
    assert not [*wrong(str, of_parts, operands, forms)]


def graph_of(op, operands):
    with Builder("f") as builder:
        inputs = [builder.input(type_of_array(x), f"x{i}") for i, x in enumerate(operands)]
        outputs = op(*inputs)
        return builder.finish(outputs if isinstance(outputs, tuple) else (outputs,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("interior", [0, 1])
@pytest.mark.parametrize("ends", [(-1, 1), (2, -2), (-1, -2)])
def test_axes_that_are_cut_may_be_divided(ends, interior):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    op = Pad((ends[0], 1), (ends[1], 0), (interior, interior))
    forms = [
        lambda operands, axes=axes: [divided(operands[0], MESHES[1], axes), operands[1]]
        for axes in (["a", "b"], ["a", None], [None, "a"], [("a", "idle"), "b"])
    ]
    operands = [x, np.float32(3)]
    run = graph_function(graph_of(op, operands))
    assert not [*wrong(str, run, operands, forms)]


def test_windows_of_one_value_that_are_filled_differently():
    """XLA's partitioner takes one for the other, in plain JAX as well."""
    x = np.random.default_rng(0).normal(size=(8, 8, 2)).astype(np.float32)
    around = [[1, 2], [0, 1], [0, 0]]

    def run(x):
        pads = [tg.pad(x, around, constant_values=value) for value in (0, 5, -7)]
        pools = [tg.nn.pool(x, [3], kind, padding="SAME") for kind in ("AVG", "MAX")]
        running = [tg.cumsum(x), tg.math.cumprod(x), tg.math.cumulative_logsumexp(x)]
        return *pads, *pools, *running

    graph = tg.function(run).get_concrete_function(tg.TensorSpec(x.shape)).graph
    forms = [
        lambda operands, axes=axes: [divided(operands[0], MESHES[1], axes)]
        for axes in (["a"], [None, "b"], ["a", "b"])
    ]
    assert not [*wrong(str, graph_function(graph), [x], forms, 1e-5)]


@pytest.mark.parametrize("axes", [["data", None], ["data", "model"], [("model", "data"), None]])
def test_what_a_slice_with_a_stride_is_taken_from_may_be_divided(axes):
    x = np.random.default_rng(0).normal(size=(24, 4))
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 4, "model": 2}), axes)
    slices = [slice(start, stop, step) for start in (0, 9, 22) for stop, step in ((24, 2), (23, 3))]

    @tg.function
    def slopes(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            z = tg.distribute.with_layout(tg.sin(x), layout)
            losses = [tg.reduce_sum(tg.exp(z[each])) for each in slices]
        return [tape.gradient(loss, x) for loss in losses]

    for each, found in zip(slices, slopes(x), strict=True):
        expected = np.zeros_like(x)
        expected[each] = np.exp(np.sin(x[each])) * np.cos(x[each])
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("is_divided", [False, True])
def test_what_comes_from_an_argument_that_is_on_no_mesh_may_be_divided(is_divided):
    """The layout of the result divides the operands, or another argument names the mesh alone."""
    x, other = np.arange(12.0).reshape(2, 6), np.ones((12, 6))
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 4, "model": 2}), ["data", None])
    gaps = Pad((8, 0), (1, 0), (1, 0))

    @tg.function
    def f(x, other):
        y = gaps(x, tg.constant(0.0, tg.float64)) + other
        return y if is_divided else tg.distribute.with_layout(y, layout)

    expected = np.ones((12, 6))
    expected[8:12:2] += x
    given = tg.distribute.with_layout(other, layout) if is_divided else other
    np.testing.assert_array_equal(f(x, given), expected)


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_layout_may_name_axes_of_the_mesh_in_any_order(is_assigned):
    """XLA alone computes some products with a bias wrongly in such a layout."""
    random = np.random.default_rng(0)
    mesh = tg.distribute.Mesh({"a": 2, "b": 2, "idle": 2})

    def on_mesh(x, *axes):
        return tg.distribute.with_layout(x, tg.distribute.Layout(mesh, axes))

    x, w, b = random.normal(size=(8, 4)), random.normal(size=(4, 12)), random.normal(size=12)
    v = tg.Variable(on_mesh(np.zeros((8, 12)), ("idle", "b"), None))

    @tg.function
    def f(x, w, b):
        y = tg.sin(x @ w + b)
        return v.assign(y) if is_assigned else on_mesh(y, ("idle", "b"), None)

    found = f(on_mesh(x, "b", "idle"), on_mesh(w, "a", None), on_mesh(b, "a"))
    np.testing.assert_allclose(v if is_assigned else found, np.sin(x @ w + b), rtol=1e-12)
