"""Derivatives of several slices of one tensor, against JAX: joined, not padded and added."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from tests.derivatives import batch_jacobian, gradient, jacobian
from tests.derived_graphs import vjp_graph
from tests.oracles import assert_near
from tracegraph.core.shapes import element_count
from tracegraph.passes import registry
from tracegraph.passes.simplify import simplify

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]

X = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)

# Pieces of a matrix of 6 x 7, for both tensors and arrays: only indexing is used.
PIECES = {
    "rows": lambda x: [x[i] for i in range(6)],
    "columns": lambda x: [x[:, j] for j in range(7)],
    "columns from the end": lambda x: [x[:, -j] for j in range(1, 8)],
    "parts": lambda x: [x[:, :2], x[:, 2:3], x[:, 3:]],
    "parts in another order": lambda x: [x[:, 3:], x[:, :2], x[:, 2:3]],
    "parts with gaps": lambda x: [x[1:2], x[3:5]],
    "parts with a gap between": lambda x: [x[:, :2], x[:, 5:]],
    "one part": lambda x: [x[2:4, 1:3]],
    "one part twice": lambda x: [x[1:3], x[1:3]],
    "blocks": lambda x: [x[:2, :3], x[:2, 3:], x[2:, :3], x[2:, 3:]],
    "elements": lambda x: [x[i, j] for i in range(0, 6, 2) for j in range(7)],
    "blocks that do not line up": lambda x: [x[:2, :3], x[:2, 3:], x[2:, :5], x[2:, 5:]],
    "a spiral": lambda x: [x[0], x[1:, 0], x[1:, 6], x[5, 1:6], x[1:5, 1:6]],
    "windows": lambda x: [x[:, j : j + 3] for j in range(5)],
    "a part and one inside it": lambda x: [x[:4], x[1:2], x[4:]],
    "all that overlap": lambda x: [x[: i + 1] for i in range(6)],
    "the whole and parts": lambda x: [x, x[:3], x[3:]],
    "every other": lambda x: [x[::2], x[1::2]],
    "every third, of a size that is not a multiple": lambda x: [x[:, r::3] for r in range(3)],
    "strides on both axes": lambda x: [x[i::2, j::3] for i in range(2) for j in range(3)],
    "strides of several sizes": lambda x: [x[::2], x[1::2], x[::3], x[2:4]],
    "strides that end early": lambda x: [x[0:3:2], x[3:6:2], x[1:4:2]],
    "turned round": lambda x: [x[::-1], x[:3], x[4:1:-1], x[:, ::-2]],
    "nothing": lambda x: [x[2:2], x[:2], x[4:]],
    "slices of slices": lambda x: [part[i] for part in (x[:3], x[3:]) for i in range(3)],
}


def folded(module, pieces):
    """A sum in which every element of every piece has a factor of its own."""
    total = 0.0
    for number, piece in enumerate(pieces):
        weights = np.cos(np.arange(np.prod(piece.shape)) + number).reshape(piece.shape)
        weighted = module.sin(piece) * weights.astype(np.float32)
        total = total + (tg.reduce_sum(weighted) if module is tg else weighted.sum())
    return total


@pytest.fixture(params=PIECES)
def pair(request):
    """One function for tensors and the same for arrays."""
    pieces = PIECES[request.param]
    return lambda x: folded(tg, pieces(x)), lambda x: folded(jnp, pieces(x))


def near(found, expected):
    assert_near(np.asarray(found), np.asarray(expected), tolerance=1e-5)


@pytest.mark.sampled(4)
def test_gradients(pair, run):
    ours, theirs = pair
    near(run(lambda x: gradient(ours, x), tg.constant(X)), jax.jit(jax.grad(theirs))(X))


@pytest.mark.sampled(1)
def test_second_order(pair, run):
    ours, theirs = pair

    def squared(x):
        g = gradient(ours, x)
        return tg.reduce_sum(g * g * X)

    found = run(lambda x: gradient(squared, x), tg.constant(X))
    near(found, jax.jit(jax.grad(lambda x: (jax.grad(theirs)(x) ** 2 * X).sum()))(X))


@pytest.mark.sampled(3)
def test_tangents_of_gradients(pair, run):
    ours, theirs = pair

    def pushed(x):
        with tg.autodiff.ForwardAccumulator(x, tg.cos(x)) as accumulator:
            g = gradient(ours, x)
        return accumulator.jvp(g)

    found = run(pushed, tg.constant(X))
    near(found, jax.jit(lambda x: jax.jvp(jax.grad(theirs), (x,), (jnp.cos(x),))[1])(X))


@pytest.mark.sampled(2)
def test_hessians(pair):
    ours, theirs = pair
    expected = jax.jit(jax.hessian(theirs))(X)
    modes = ("reverse", "forward")
    hessians = tg.function(
        lambda x: [jacobian(lambda z: gradient(ours, z), x, mode=mode) for mode in modes]
    )
    for found in hessians(X):
        near(found, expected)


@pytest.mark.sampled(3)
def test_gradients_of_a_batch(pair):
    ours, theirs = pair
    batch = np.stack([X, 2 * X, X - 1])
    found = tg.function(lambda xs: tg.vectorized_map(lambda x: gradient(ours, x), xs))(batch)
    near(found, jax.jit(jax.vmap(jax.grad(theirs)))(batch))


@pytest.mark.sampled(1)
def test_gates_of_a_batch_jacobian(run):
    w = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)

    def ours(x):
        a, b, c = tg.split(x, [3, 1, 3], axis=1)
        return tg.tanh(a @ w) * b + c * a

    def theirs(x):
        a, b, c = jnp.split(x, [3, 4])
        return jnp.tanh(a @ w) * b + c * a

    found = run(lambda x: batch_jacobian(ours, x, mode="reverse"), tg.constant(X))
    near(found, jax.jit(jax.vmap(jax.jacrev(theirs)))(X))


def test_the_rows_of_a_batch_jacobian_of_gates_are_not_moved():
    def gates(x):
        a, b = tg.split(x, 2, axis=1)
        return tg.sin(a) * b

    slopes = tg.function(lambda x: batch_jacobian(gates, x))
    names = [node.op.name for node in slopes.graph(tg.TensorSpec([5, 6])).nodes]
    assert "concatenate" in names and "transpose" not in names


def test_a_gap_is_zeros_and_a_single_slice_is_padded():
    @tg.function
    def slope(x):
        return gradient(lambda z: tg.reduce_sum(z[:1]) - tg.reduce_sum(z[3:]), x)

    assert slope(X[0]).numpy().tolist() == [1, 0, 0, -1, -1, -1, -1]
    names = [node.op.name for node in slope.graph(tg.TensorSpec([7])).nodes]
    assert names.count("concatenate") == 1 and "pad" not in names
    single = tg.function(lambda x: gradient(lambda z: z[1:3], x))
    names = [node.op.name for node in single.graph(tg.TensorSpec([7])).nodes]
    assert names.count("pad") == 1 and "concatenate" not in names


WAYS = {
    "unstack": lambda x, n: tg.unstack(x),
    "split": lambda x, n: tg.split(x, n),
    "indices": lambda x, n: [x[i] for i in range(n)],
    "slices": lambda x, n: [x[i : i + 1] for i in range(n)],
    "columns": lambda x, n: [part[..., 0] for part in tg.split(x, n, axis=0)],
    "windows": lambda x, n: [x[i : i + 3] for i in range(n - 2)],
    "strides": lambda x, n: [x[i::n] for i in range(n)],
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [1, 2])
def test_costs_are_linear_in_the_number_of_pieces(way, order):
    """Counts nodes, and the elements that they make: both were those of the whole per piece."""

    def costs(n):
        @tg.function
        def total(x):
            return sum(tg.reduce_sum(tg.sin(part) * part) for part in WAYS[way](x, n))

        graph = total.graph(tg.TensorSpec([n, 4]))
        for _ in range(order):
            graph = simplify(vjp_graph(graph))
        made = sum(element_count(y.type.shape) for node in graph.nodes for y in node.outputs)
        return np.array([len(graph.nodes), made])

    small, middle, large = costs(12), costs(24), costs(48)
    assert np.all(large - middle <= 2.2 * (middle - small)), (small, middle, large)


def test_rows_of_a_variable_that_is_read_anew_for_each_cost_what_they_take():
    """Each `v[i]` reads v; the slices of all reads meet."""

    def costs(n):
        v = tg.Variable(tg.ones([n, 4]))

        @tg.function
        def slope():
            with tg.GradientTape() as tape:
                state = tg.zeros([4])
                for i in range(n):
                    state = tg.tanh(v[i] + state)
            return tape.gradient(state, v)

        nodes = slope.graph().nodes
        made = sum(element_count(y.type.shape) for node in nodes for y in node.outputs)
        return np.array([len(nodes), made])

    small, middle, large = costs(12), costs(24), costs(48)
    assert np.all(large - middle <= 2.2 * (middle - small)), (small, middle, large)


def test_a_read_of_which_slices_are_taken_may_be_a_source():
    v = tg.Variable([1.0, 2.0, 3.0])
    with tg.GradientTape(persistent=True) as tape:
        value = v.read_value()
        y = value[0] * value[1] + v[1] * v[2]
    near(tape.gradient(y, value), [2.0, 1.0, 0.0])
    near(tape.gradient(y, v), [2.0, 4.0, 2.0])
    by_value, by_variable = tape.gradient(y, [value, v])
    near(by_value, [2.0, 1.0, 0.0])
    near(by_variable, [2.0, 4.0, 2.0])


def test_slices_of_open_size_are_joined():
    @tg.function
    def slope(x):
        def value(z):
            a, b, c = tg.split(z, 3, axis=0)
            return tg.reduce_sum(tg.sin(a) * b + c * c)

        return gradient(value, x)

    def value(z):
        a, b, c = jnp.split(z, 3)
        return (jnp.sin(a) * b + c * c).sum()

    graph = slope.graph(tg.TensorSpec([None, 7]))
    assert "pad" not in [node.op.name for node in graph.nodes]
    open_slope = tg.function(slope, input_signature=[tg.TensorSpec([None, 7])])
    for x in (X, X[:3]):
        near(open_slope(x), jax.jit(jax.grad(value))(x))


@pytest.mark.sweep
def test_slices_of_open_size_that_may_overlap():
    @tg.function(input_signature=[tg.TensorSpec([None, 7])])
    def slope(x):
        return gradient(
            lambda z: tg.reduce_sum(z[1:] * z[:-1]) + tg.reduce_sum(z[:2] ** 3) + z[-1, 0], x
        )

    def value(z):
        return (z[1:] * z[:-1]).sum() + (z[:2] ** 3).sum() + z[-1, 0]

    for x in (X, X[:3], X[:2]):
        near(slope(x), jax.grad(value)(x))


def test_no_gradient_of_slices_is_kept(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {"slice": None})
    x = tg.constant(X)
    assert gradient(lambda z: z[:, :2], x) is None
    near(gradient(lambda z: z * tg.reduce_sum(z[:, :2]), x), np.full_like(X, X[:, :2].sum()))


def test_a_joined_cotangent_has_the_line_of_the_slices():
    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            z = tg.sin(x)
            a, b = z[:3], z[3:]
            y = tg.reduce_sum(a) * tg.reduce_sum(b)
        return tape.gradient(y, x)

    graph = slope.graph(tg.TensorSpec([6, 7]))
    lines = {node.op.name: node.source for node in graph.nodes}
    assert lines["concatenate"].line == lines["slice"].line
    assert lines["concatenate"].roles == ("vjp",)


any_bounds = st.lists(
    st.tuples(*(st.integers(-7, 7) for _ in range(4)), st.integers(1, 3), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@given(st.lists(any_bounds, min_size=10, max_size=10))
@settings(max_examples=4, deadline=None)
def test_any_slices(cases):
    """Ten at a time, which are one program."""

    def pieces(x, bounds):
        return [x[a:b:s, c:d:t] for a, b, c, d, s, t in bounds]

    @tg.function
    def gradients(x):
        return [gradient(lambda x, b=b: folded(tg, pieces(x, b)), x) for b in cases]

    for bounds, found in zip(cases, gradients(tg.constant(X)), strict=True):
        expected = np.zeros_like(X)
        for number, piece in enumerate(pieces(np.arange(42).reshape(6, 7), bounds)):
            weights = np.cos(np.arange(piece.size) + number).astype(np.float32)
            expected.flat[piece.ravel()] += np.cos(X.flat[piece.ravel()]) * weights
        near(found, expected)
