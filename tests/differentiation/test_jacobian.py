"""Jacobians: dense, of batches and sparse, against JAX, finite differences and each other."""

import dataclasses
import functools
import itertools
import os
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from lowering.program import graph_function
from tests.derivatives import batch_jacobian, gradient, jacobian
from tests.differentiation.test_sparsity import by_numpy, programs, random_values, traced
from tests.oracles import assert_near, by_jax, numbers
from tracegraph.calls import top_level_calls
from tracegraph.core.shapes import Dim
from tracegraph.core.types import TensorType, float64
from tracegraph.eager.pending import compiled_count
from tracegraph.errors import GradientError, MissingRuleError
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.jacobians import jacobian as dense, row_independence
from tracegraph.jacobians.jacobian import JacobianPlan
from tracegraph.jacobians.sparse_products import sparse_jacobian, sparsity
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import specialise
from tracegraph.passes.subgraph import subgraph_between

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]

RNG = np.random.default_rng(0)
W = RNG.standard_normal((3, 4))


def line():
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def here(number):
    """How an error names a line of this file."""
    return f"{os.path.basename(__file__)}:{number}:"


# Dense, against JAX.

FUNCTIONS = {
    "square": (lambda x: tg.sin(x) * tg.reduce_sum(x), lambda x: jnp.sin(x) * x.sum(), (4,)),
    "tall": (lambda x: tg.tanh(x @ W), lambda x: jnp.tanh(x @ W), (2, 3)),
    "wide": (
        lambda x: tg.reduce_sum(tg.exp(x) * x, 1),
        lambda x: (jnp.exp(x) * x).sum(1),
        (2, 5),
    ),
    "scalar source": (
        lambda x: tg.sin(x * tg.constant([1.0, 2.0, 3.0], tg.float64)),
        lambda x: jnp.sin(x * jnp.array([1.0, 2.0, 3.0])),
        (),
    ),
    "scalar target": (lambda x: tg.reduce_prod(x), lambda x: x.prod(), (2, 2)),
    "both scalars": (lambda x: x**3, lambda x: x**3, ()),
    "moved": (
        lambda x: tg.transpose(tg.cumsum(tg.concat([x, x * x], 0), 1)),
        lambda x: jnp.cumsum(jnp.concatenate([x, x * x], 0), 1).T,
        (2, 3),
    ),
    "taken": (
        lambda x: tg.gather(tg.nn.softmax(x), [2, 0, 2], axis=1),
        lambda x: jax.nn.softmax(x)[:, jnp.array([2, 0, 2])],
        (2, 3),
    ),
    "itself": (lambda x: x, lambda x: x, (2, 2)),
}
OPTIONS = [
    {},
    {"mode": "reverse"},
    {"mode": "forward"},
    {"chunk_size": 1},
    {"chunk_size": 2, "mode": "forward"},
    {"chunk_size": 3, "mode": "reverse"},
    {"chunk_size": 1000},
    {"parallel_iterations": 2},
    {"parallel_iterations": 2, "chunk_size": 3},
    {"experimental_use_pfor": False},
    {"experimental_use_pfor": False, "mode": "forward"},
]


@functools.cache
def expected_of(name):
    _, function, shape = FUNCTIONS[name]
    return by_jax(jax.jacfwd(function), numbers(*shape))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_gives_the_jacobian(name):
    function, _, shape = FUNCTIONS[name]
    x = tg.constant(numbers(*shape))
    found = [jacobian(function, x, **options) for options in OPTIONS]
    inside = tg.function(lambda x: [jacobian(function, x, **o) for o in OPTIONS])(x)
    for matrix in (*found, *inside):
        assert_near(matrix, expected_of(name))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [tg.float16, tg.bfloat16, tg.float32, tg.float64])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_has_the_dtype_of_the_source(dtype, mode):
    x = tg.cast(tg.constant([1.0, 2.0]), dtype)
    found = jacobian(lambda x: x * x[0], x, mode=mode)
    assert found.dtype is dtype
    assert_near(tg.cast(found, tg.float64), [[2.0, 0.0], [2.0, 1.0]])


def test_a_cast_on_the_way(run):
    x = tg.constant([1.0, 2.0])
    for mode in ("reverse", "forward"):
        found = run(lambda x, m=mode: jacobian(lambda x: tg.cast(x, tg.float64) ** 2, x, mode=m), x)
        assert_near(tg.cast(found, tg.float64), np.diag([2.0, 4.0]))


def test_sources_in_a_structure(run):
    def compute(p):
        with tg.GradientTape() as tape:
            tape.watch(p)
            y = tg.linalg.matvec(p["w"], p["b"][0]) * p["b"][1]
        return tape.jacobian(y, p)

    w, b, c = numbers(2, 3), numbers(3), numbers(2)
    found = run(compute, {"w": tg.constant(w), "b": (tg.constant(b), tg.constant(c))})
    expected = by_jax(jax.jacrev(lambda w, b, c: w @ b * c, (0, 1, 2)), w, b, c)
    assert isinstance(found["b"], tuple)
    for one, other in zip((found["w"], *found["b"]), expected, strict=True):
        assert_near(one, other)


def test_no_sources_and_repeated_sources(run):
    def compute(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return tape.jacobian(y, []), tape.jacobian(y, [x, {"again": x}])

    none, (one, other) = run(compute, tg.constant([1.0, 2.0]))
    assert none == []
    assert_near(one, np.diag([2.0, 4.0]))
    assert_near(other["again"], one)


@dataclasses.dataclass
class Layer:
    kernel: tg.Variable
    bias: tg.Variable


def test_variables(run):
    layer = Layer(tg.Variable(numbers(3, 4)), tg.Variable(numbers(4)))
    x = numbers(2, 3)

    def compute():
        with tg.GradientTape() as tape:
            y = tg.nn.relu(x @ layer.kernel + layer.bias)
        return tape.jacobian(y, [layer.kernel, layer.bias])

    kernel, bias = layer.kernel.numpy(), layer.bias.numpy()
    expected = by_jax(jax.jacrev(lambda w, b: jax.nn.relu(x @ w + b), (0, 1)), kernel, bias)
    for one, other in zip(run(compute), expected, strict=True):
        assert_near(one, other)


def test_a_variable_that_is_read_several_times(run):
    v = tg.Variable([1.0, 2.0])

    def compute():
        with tg.GradientTape(persistent=True) as tape:
            y = v * v + v
        return [tape.jacobian(y, v), tape.jacobian(y, v, sparse=True).to_dense()]

    for found in run(compute):
        assert_near(found, np.diag([3.0, 5.0]))


def test_a_variable_as_the_target(run):
    v = tg.Variable([1.0, 2.0])

    def compute():
        with tg.GradientTape(persistent=True) as tape:
            pass
        return tape.jacobian(v, v), tape.jacobian(v, v, sparse=True).to_dense()

    for found in run(compute):
        assert_near(found, np.eye(2))


def test_values_of_variables_are_those_of_the_recording():
    v = tg.Variable([3.0])
    with tg.GradientTape() as tape:
        y = v * v
    v.assign([100.0])
    assert_near(tape.jacobian(y, v), [[6.0]])


def test_unconnected(run):
    x, z = tg.constant([1.0, 2.0]), tg.constant([[1.0]])

    def compute(x, z):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch([x, z])
            y = x * x
            other = z * 3.0
        del other
        return (
            tape.jacobian(y, [x, z])[1],
            tape.jacobian(y, [x, z], tg.UnconnectedGradients.ZERO)[1],
            tape.jacobian(tg.stop_gradient(y), x),
            tape.jacobian(y, z, "zero", sparse=True).to_dense(),
            tape.jacobian(y, [z, x], sparse=True)[0],
            tape.jacobian(tg.stop_gradient(y), x, sparse=True),
        )

    none, zero, stopped, sparse_zero, sparse_none, sparse_stopped = run(compute, x, z)
    assert none is stopped is sparse_none is sparse_stopped is None
    assert_near(zero, np.zeros((2, 1, 1)))
    assert_near(sparse_zero, np.zeros((2, 1, 1)))


def test_integers_are_unconnected(run):
    def compute(x, n):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * tg.cast(n, tg.float32)
        with pytest.warns(UserWarning, match="int32"):
            found = tape.jacobian(y, [n, x])[0]
        with pytest.warns(UserWarning, match="int32"):
            zeros = tape.jacobian(y, n, "zero")
        with pytest.warns(UserWarning, match="int32"):
            of_integers = tape.jacobian(tg.cast(y, tg.int32), x)
        return found, zeros, of_integers

    none, zeros, of_integers = run(compute, tg.constant([1.0, 2.0]), tg.constant([3, 4]))
    assert none is of_integers is None
    assert zeros.dtype is tg.int32
    assert zeros.shape == (2, 2)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
@pytest.mark.parametrize("options", [*OPTIONS[:5], {"experimental_use_pfor": False}])
def test_nothing_to_differentiate(run, shape, options):
    found = run(lambda x: jacobian(lambda x: x * x, x, **options), tg.ones(shape))
    assert found.shape == (*shape, *shape)


def test_empty_targets_of_full_sources(run):
    x = tg.ones([3])
    for options in ({}, {"mode": "forward"}, {"mode": "reverse"}, {"chunk_size": 2}):
        assert run(lambda x, o=options: jacobian(lambda x: x[:0], x, **o), x).shape == (0, 3)
    found = jacobian(lambda x: x[:0], x, sparse=True)
    assert (found.shape, found.nnz, found.colors) == ((0, 3), 0, 0)
    assert found.to_dense().shape == (0, 3)
    assert found.to_scipy().shape == (0, 3)


# Complex numbers: what `gradient` gives for each element of the target.

COMPLEX_FUNCTIONS = [
    lambda z: z * z,
    lambda z: tg.math.conj(z) * z[0],
    lambda z: tg.math.real(z) * tg.math.imag(z),
    lambda z: tg.abs(z) + 0.0,
    lambda z: tg.exp(z) * tg.complex(tg.math.real(z), tg.math.real(z)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", COMPLEX_FUNCTIONS)
def test_complex_sources(function):
    z = tg.constant([1.0 + 2.0j, 3.0 - 1.0j])
    rows = [gradient(lambda z, i=i: function(z)[i], z) for i in range(2)]
    jacobians = [jacobian(function, z, **options) for options in OPTIONS[:6]]
    jacobians.append(jacobian(function, z, sparse=True).to_dense())
    row = tg.reshape(z, [2, 1])
    modes = (None, "forward", "reverse")
    of_rows = [batch_jacobian(lambda z: z * tg.exp(z), row, mode=mode) for mode in modes]
    slopes = gradient(lambda z: z * tg.exp(z), row)
    for found in jacobians:
        assert_near(found, np.stack([row.numpy() for row in rows]))
    for found in of_rows:
        assert_near(found, slopes.numpy()[:, :, np.newaxis])


def test_complex_targets_of_real_sources():
    x = tg.constant([1.0, 2.0], tg.float64)

    def function(x):
        return tg.complex(x * x, x[::-1]) * (2.0 - 1.0j)

    rows = [gradient(lambda x, i=i: function(x)[i], x) for i in range(2)]
    jacobians = [jacobian(function, x, **options) for options in OPTIONS[:6]]
    jacobians.append(jacobian(function, x, sparse=True).to_dense())
    for found in jacobians:
        assert found.dtype is tg.float64
        assert_near(found, np.stack([row.numpy() for row in rows]))


def test_a_bottleneck_of_complex_numbers_is_none():
    a, b, c = numbers(2, 40), numbers(2, 40, seed=1), numbers(40, 2)
    x = tg.constant(numbers(40))

    def function(x):
        z = tg.complex(tg.linalg.matvec(a, x), tg.linalg.matvec(b, x))
        z = z * z
        return tg.linalg.matvec(c, tg.math.real(z)) * tg.linalg.matvec(c, tg.math.imag(z))

    expected = by_jax(
        jax.jacrev(lambda x: (c @ ((a @ x) ** 2 - (b @ x) ** 2)) * (c @ (2 * (a @ x) * (b @ x)))),
        x.numpy(),
    )
    assert_near(jacobian(function, x), expected, 1e-8)


# Tapes.


def test_a_plain_tape_is_used_up(run):
    def compute(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        found = tape.jacobian(y, x, experimental_use_pfor=False, parallel_iterations=2)
        for again in (tape.jacobian, tape.gradient):
            with pytest.raises(RuntimeError, match="not persistent"):
                again(y, x)
        return found

    assert_near(run(compute, tg.constant([1.0, 2.0])), np.diag([2.0, 4.0]))


def test_inside_the_block(run):
    def compute(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * x
            j = tape.jacobian(y, x)
        with tg.GradientTape() as plain:
            plain.watch(x)
            inner = plain.jacobian(x * x, x)
            assert plain.watched_variables() == ()
        return tape.jacobian(j, x), inner

    third, inner = run(compute, tg.constant([1.0, 2.0]))
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0], expected[1, 1, 1] = 6.0, 12.0
    assert_near(third, expected)
    assert_near(inner, np.diag([2.0, 4.0]))


BAD = {
    "a list": (lambda t, x, y: t.jacobian([y, y], x), TypeError),
    "None": (lambda t, x, y: t.jacobian(None, x), TypeError),
    "a number": (lambda t, x, y: t.jacobian(3.0, x), TypeError),
    "a source that is a number": (lambda t, x, y: t.jacobian(y, 3.0), TypeError),
    "no source": (lambda t, x, y: t.jacobian(y, None), TypeError),
    "zero iterations": (lambda t, x, y: t.jacobian(y, x, parallel_iterations=0), ValueError),
    "half a chunk": (lambda t, x, y: t.jacobian(y, x, chunk_size=0.5), ValueError),
    "a chunk of True": (lambda t, x, y: t.jacobian(y, x, chunk_size=True), ValueError),
    "a mode": (lambda t, x, y: t.jacobian(y, x, mode="sideways"), ValueError),
    "unconnected": (lambda t, x, y: t.jacobian(y, x, "bogus"), ValueError),
    "lists of rows": (lambda t, x, y: t.batch_jacobian([y], x), TypeError),
    "lists of sources": (lambda t, x, y: t.batch_jacobian(y, [x]), TypeError),
    "rank": (lambda t, x, y: t.batch_jacobian(y[0], x), ValueError),
    "rank of the source": (lambda t, x, y: t.batch_jacobian(y, x[0]), ValueError),
    "rows": (lambda t, x, y: t.batch_jacobian(y[:1], x), ValueError),
    "a chunk of rows": (lambda t, x, y: t.batch_jacobian(y, x, chunk_size=0), ValueError),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", BAD)
def test_bad_requests(run, name):
    request, error = BAD[name]

    def compute(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        request(tape, x, y)

    with pytest.raises(error) as caught:
        run(compute, tg.ones([2, 3]))
    assert isinstance(caught.value, GradientError)
    assert "fix:" in str(caught.value)
    assert os.path.basename(__file__) in str(caught.value)


def test_several_targets_are_refused_with_the_repair():
    with tg.GradientTape() as tape:
        x = tg.Variable([1.0])
        y = x * x
    with pytest.raises(TypeError, match=r"tg\.concat"):
        tape.jacobian([y, y], x)


def test_a_sparse_jacobian_is_traced_for_each_open_size():
    function = tg.function(
        lambda x: jacobian(lambda x: x[1:] * x[:-1], x, sparse=True),
        input_signature=[tg.TensorSpec([None])],
    )
    with pytest.raises(ValueError, match="a sparse Jacobian needs every size"):
        function.get_concrete_function()
    for size in (3, 5, 3):
        x = np.arange(1.0, size + 1, dtype=np.float32)
        found = function(x)
        assert (found.shape, found.nnz) == ((size - 1, size), 2 * size - 2)
        assert_near(found.to_dense(), jax.jacobian(lambda x: x[1:] * x[:-1])(x), 1e-6)
    graphs = [trace.graph for trace in function.traces]
    assert sorted(graph.input_types[0].shape[0] for graph in graphs) == [3, 5]


STENCIL = np.eye(6, k=1) - 2 * np.eye(6) + np.eye(6, k=-1)
EVEN = np.arange(6) % 2 == 0
KNOWN_ZEROS = {
    "a matrix and a vector": (lambda x: tg.linalg.matvec(tg.constant(STENCIL), x) + x**3, 16),
    "a matrix on the right": (lambda x: (x[None] @ tg.constant(STENCIL))[0] ** 2, 16),
    "a transposed matrix": (
        lambda x: tg.matmul(tg.constant(STENCIL), x[:, None], transpose_a=True)[:, 0],
        16,
    ),
    "an einsum": (lambda x: tg.einsum("ij,j->i", tg.constant(STENCIL), x) ** 2, 16),
    "two products": (
        lambda x: tg.linalg.matvec(tg.constant(STENCIL), tg.linalg.matvec(tg.constant(STENCIL), x)),
        24,
    ),
    "a choice": (lambda x: tg.where(tg.constant(EVEN), x * x, tg.roll(x, 1, 0)), 6),
    "a diagonal": (lambda x: tg.linalg.diag(x * x), 6),
    "a band": (lambda x: tg.linalg.band_part(x[:, None] * x[None, :], 0, 1), 16),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", KNOWN_ZEROS)
def test_zeros_that_are_known_leave_no_entry(run, name):
    function, count = KNOWN_ZEROS[name]
    x = tg.constant(numbers(6))
    few, whole = run(lambda x: (jacobian(function, x, sparse=True), jacobian(function, x)), x)
    assert_near(few.to_dense(), whole)
    assert few.nnz == count


def test_other_zeros_are_another_pattern():
    x = tg.constant(numbers(6))
    for k in (0, 1, 2):
        found = jacobian(
            lambda x, k=k: tg.linalg.matvec(tg.constant(np.eye(6, k=k)), x * x), x, sparse=True
        )
        assert_near(found.to_dense(), 2 * np.eye(6, k=k) * np.asarray(x))
        assert found.nnz == 6 - k


# Orders.


def curved(x):
    return tg.sin(x) * tg.reduce_sum(x * x)


def curved_by_jax(x):
    return jnp.sin(x) * jnp.sum(x * x)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("modes", [*itertools.product(("reverse", "forward", None), repeat=2)])
def test_a_jacobian_of_a_jacobian(run, modes):
    inner, outer = modes
    x = numbers(3)
    found = run(
        lambda x: jacobian(lambda x: jacobian(curved, x, mode=inner), x, mode=outer), tg.constant(x)
    )
    assert_near(found, by_jax(jax.jacfwd(jax.jacrev(curved_by_jax)), x))


def test_a_gradient_of_a_jacobian(run):
    x = numbers(3)
    found = run(lambda x: gradient(lambda x: tg.sin(jacobian(curved, x)), x), tg.constant(x))
    summed = jax.grad(lambda x: jnp.sin(jax.jacrev(curved_by_jax)(x)).sum())
    assert_near(found, by_jax(summed, x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"mode": "forward"}, {"sparse": True}, {"chunk_size": 2}])
def test_a_hessian(run, options):
    x = numbers(4)

    def hessian(x):
        found = jacobian(lambda x: gradient(lambda x: tg.reduce_sum(curved(x)), x), x, **options)
        return found.to_dense() if options.get("sparse") else found

    expected = by_jax(jax.hessian(lambda x: curved_by_jax(x).sum()), x)
    assert_near(run(hessian, tg.constant(x)), expected)


def test_the_hessian_of_a_layer(run):
    x, kernel, bias = numbers(5, 3), tg.Variable(numbers(3, 2)), tg.Variable(numbers(2))

    def hessian():
        with tg.GradientTape(persistent=True) as outer:
            with tg.GradientTape() as inner:
                loss = tg.reduce_mean(tg.tanh(x @ kernel + bias) ** 2)
            slopes = inner.gradient(loss, [kernel, bias])
        return [outer.jacobian(slope, [kernel, bias]) for slope in slopes]

    def loss(w, b):
        return jnp.mean(jnp.tanh(x @ w + b) ** 2)

    expected = by_jax(jax.hessian(loss, (0, 1)), kernel.numpy(), bias.numpy())
    for row, other in zip(run(hessian), expected, strict=True):
        for one, block in zip(row, other, strict=True):
            assert_near(one, block)


def rows_of(x):
    return tg.nn.softmax(x @ W) * tg.reduce_sum(x * x, 1, keepdims=True)


def rows_by_jax(x):
    return jax.nn.softmax(x @ W) * (x * x).sum(-1, keepdims=True)


@pytest.mark.sampled(1)
def test_a_gradient_of_a_batch_jacobian(run):
    x = numbers(2, 3)
    found = run(lambda x: gradient(lambda x: batch_jacobian(rows_of, x) ** 2, x), tg.constant(x))
    row = jax.jacrev(lambda r: rows_by_jax(r[None])[0])
    assert_near(found, by_jax(jax.grad(lambda x: (jax.vmap(row)(x) ** 2).sum()), x))


@pytest.mark.sampled(1)
def test_a_batch_jacobian_of_a_gradient(run):
    x = numbers(2, 3)
    found = run(lambda x: batch_jacobian(lambda x: gradient(rows_of, x), x), tg.constant(x))
    row = jax.hessian(lambda r: rows_by_jax(r[None]).sum())
    assert_near(found, by_jax(jax.vmap(row), x))


# Functions, loops, accumulators.


@tg.function
def called(x):
    return tg.tanh(x @ W)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"mode": "forward"}, {"mode": "reverse", "chunk_size": 3}])
def test_through_called_functions(run, options):
    x = numbers(2, 3)
    outer = tg.function(lambda x: called(x) * called(2.0 * x))
    found = run(lambda x: jacobian(outer, x, **options), tg.constant(x))
    assert_near(found, by_jax(jax.jacfwd(lambda x: jnp.tanh(x @ W) * jnp.tanh(2 * x @ W)), x))
    j = run(lambda x: jacobian(outer, x, sparse=True).to_dense(), tg.constant(x))
    assert_near(j, found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["reverse", "forward", None])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_open_sizes(mode, chunk_size):
    def function(x):
        return x[1:] * tg.sin(x[:-1]) * tg.reduce_sum(x)

    compute = tg.function(
        lambda x: jacobian(function, x, mode=mode, chunk_size=chunk_size),
        input_signature=[tg.TensorSpec([None], tg.float64)],
    )
    for size in (1, 2, 5):
        x = numbers(size)
        expected = by_jax(jax.jacfwd(lambda x: x[1:] * jnp.sin(x[:-1]) * x.sum()), x)
        assert_near(compute(x), expected)
    assert compute.experimental_get_tracing_count() == 1


def test_open_batches():
    compute = tg.function(
        lambda x: batch_jacobian(rows_of, x), input_signature=[tg.TensorSpec([None, 3], tg.float64)]
    )
    row = jax.vmap(jax.jacrev(lambda r: rows_by_jax(r[None])[0]))
    for size in (0, 1, 4):
        assert_near(compute(numbers(size, 3)), by_jax(row, numbers(size, 3)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, {"mode": "forward"}, {"mode": "reverse"}])
def test_inside_a_loop(run, options):
    x = numbers(4, 3)
    expected = by_jax(jax.vmap(jax.jacfwd(curved_by_jax)), x)

    def compute(x):
        dense = tg.vectorized_map(lambda r: jacobian(curved, r, **options), x)
        few = tg.vectorized_map(lambda r: jacobian(curved, r, sparse=True).to_dense(), x)
        return dense, few

    for found in run(compute, tg.constant(x)):
        assert_near(found, expected)


@pytest.mark.sampled(1)
def test_batches_inside_a_loop(run):
    x = numbers(2, 4, 3)
    row = jax.vmap(jax.vmap(jax.jacrev(lambda r: rows_by_jax(r[None])[0])))
    found = run(
        lambda x: tg.vectorized_map(lambda s: batch_jacobian(rows_of, s), x), tg.constant(x)
    )
    assert_near(found, by_jax(row, x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_under_an_accumulator_and_over_one(run, mode):
    x, t = numbers(3), numbers(3, seed=1)

    def under(x, t):
        with tg.autodiff.ForwardAccumulator(x, t) as accumulator:
            j = jacobian(curved, x, mode=mode)
        return accumulator.jvp(j)

    def over(x, t):
        def pushed(x):
            with tg.autodiff.ForwardAccumulator(x, t) as accumulator:
                y = curved(x)
            return accumulator.jvp(y)

        return jacobian(pushed, x, mode=mode)

    expected = by_jax(lambda x, t: jax.jvp(jax.jacrev(curved_by_jax), (x,), (t,))[1], x, t)
    assert_near(run(under, tg.constant(x), tg.constant(t)), expected)
    expected = by_jax(jax.jacrev(lambda x: jax.jvp(curved_by_jax, (x,), (t,))[1]), x)
    assert_near(run(over, tg.constant(x), tg.constant(t)), expected)


@pytest.mark.sampled(1)
def test_an_outer_tape_sees_how_it_is_made(run):
    v = tg.Variable(numbers(3))

    def compute():
        with tg.GradientTape() as outer:
            with tg.GradientTape() as inner:
                y = tg.sin(v) * v[0]
            j = inner.jacobian(y, v)
            dense = tg.reduce_sum(j * j)
        return outer.gradient(dense, v)

    def loss(v):
        return (jax.jacrev(lambda v: jnp.sin(v) * v[0])(v) ** 2).sum()

    assert_near(run(compute), by_jax(jax.grad(loss), v.numpy()))


# Work.


def built(function, *shapes):
    """The simplified graph of a function of tensors."""
    return simplify(traced(function, *shapes))


def flops_of_products(graph):
    total = 0
    for inner in graph.graphs():
        for node in inner.nodes:
            if node.op.name == "matmul":
                total += 2 * node.outputs[0].size * node.inputs[0].type.shape[-1]
    return total


def widest(graph):
    """The most elements of a value in the graph."""
    return max(y.size for inner in graph.graphs() for node in inner.nodes for y in node.outputs)


def bottleneck(x, a):
    return tg.linalg.matvec(a, tg.sin(tg.linalg.matvec(a, x, transpose_a=True)))


def test_a_bottleneck_takes_few_passes():
    n, few = 1000, 4

    def work(mode):
        graph = built(
            lambda x, a: jacobian(lambda x: bottleneck(x, a), x, mode=mode), (n,), (n, few)
        )
        large = [node for node in graph.nodes if any(y.size >= n * n for y in node.outputs)]
        return flops_of_products(graph), [node.op.name for node in large]

    flops, large = work(None)
    # One product makes the result. About eight passes, each of a product with the matrix, go there.
    assert flops <= 2 * n * n * few + 2 * few * (2 * n * few) + 10 * 2 * n * few
    assert large == ["matmul"]
    assert work("reverse")[0] > 2 * flops or len(work("reverse")[1]) > 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [12, 60])
def test_a_bottleneck_gives_the_same(run, n):
    x, a = numbers(n), numbers(n, 4)
    found = run(lambda x: jacobian(lambda x: bottleneck(x, a), x), tg.constant(x))
    assert_near(found, by_jax(jax.jacrev(lambda x: a @ jnp.sin(a.T @ x)), x))


@pytest.mark.sampled(1)
def test_a_bottleneck_of_several_tensors_and_sources(run):
    a, b, c = numbers(40, 2), numbers(40, 1, seed=1), numbers(3, 40, seed=2)

    def function(x, y):
        p, q = tg.linalg.matvec(tg.transpose(a), x), tg.linalg.matvec(tg.transpose(b), y * x)
        return tg.linalg.matvec(tg.transpose(c), tg.concat([tg.sin(p) * q, q * q], 0)) + p[0]

    def function_by_jax(x, y):
        p, q = a.T @ x, b.T @ (y * x)
        return c.T @ jnp.concatenate([jnp.sin(p) * q, q * q], 0) + p[0]

    def compute(x, y):
        with tg.GradientTape() as tape:
            tape.watch([x, y])
            z = function(x, y)
        return tape.jacobian(z, [x, y])

    x, y = numbers(40), numbers(40, seed=5)
    expected = by_jax(jax.jacrev(function_by_jax, (0, 1)), x, y)
    for one, other in zip(run(compute, tg.constant(x), tg.constant(y)), expected, strict=True):
        assert_near(one, other)


@pytest.mark.sampled(1)
def test_a_source_that_goes_around_the_bottleneck(run):
    x = numbers(30)

    def function(x):
        return tg.reduce_sum(tg.sin(x)) * tg.ones([30], tg.float64) + x[3] * x

    def function_by_jax(x):
        return jnp.sin(x).sum() * jnp.ones(30) + x[3] * x

    found = run(lambda x: jacobian(function, x), tg.constant(x))
    assert_near(found, by_jax(jax.jacrev(function_by_jax), x))


def test_what_depends_on_primals_alone_is_computed_once():
    for mode in ("reverse", "forward"):
        graph = built(
            lambda x, m=mode: jacobian(lambda x: tg.exp(tg.sin(x @ W)), x, mode=m), (2, 3)
        )
        wide = [
            node
            for node in graph.nodes
            if node.op.name in ("exp", "sin", "cos") and node.outputs[0].size > 8
        ]
        assert not wide


def test_the_cheaper_direction_is_taken():
    def passes(function, size):
        graph = built(lambda x: jacobian(function, x), (size,))
        return max(y.size for node in graph.nodes for y in node.outputs)

    many = numbers(50, 2)
    # 2 numbers to 50 and back: neither widens 50 numbers by 50.
    assert passes(lambda x: tg.sin(tg.linalg.matvec(many, x)), 2) <= 100
    assert passes(lambda x: tg.linalg.matvec(many.T, tg.sin(x)), 50) <= 100


def test_later_calls_compile_nothing():
    def compute(x, **options):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.sin(x) * tg.reduce_sum(x)
        return tape.jacobian(y, x, **options).numpy()

    for options in ({}, {"mode": "forward"}, {"chunk_size": 2}):
        (tg.constant(1.0) + 1.0).numpy()  # with which runs what earlier tests left pending
        compute(tg.constant(numbers(5)), **options)
        before, kept = compiled_count(), set(top_level_calls._gradients)
        for k in range(3):
            compute(tg.constant(numbers(5, seed=k)), **options)
        assert compiled_count() == before
        assert set(top_level_calls._gradients) == kept


def test_later_calls_of_the_other_kinds_compile_nothing():
    def few(x):
        return jacobian(lambda x: x[1:] * tg.gather(x, [0, 1, 2]), x, sparse=True).values.numpy()

    def rows(x):
        return batch_jacobian(rows_of, tg.reshape(x, [-1, 1]) * tg.ones([1, 3], tg.float64)).numpy()

    for compute in (few, rows):
        (tg.constant(1.0) + 1.0).numpy()
        compute(tg.constant(numbers(4)))
        before, kept = compiled_count(), set(top_level_calls._gradients)
        for k in range(3):
            compute(tg.constant(numbers(4, seed=k)))
        assert compiled_count() == before
        assert set(top_level_calls._gradients) == kept


def test_computed_indices_are_part_of_what_is_kept():
    """The same nodes and values, and another computation of the indices before the tape."""

    def compute(indices, x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tg.gather(x * x, indices)
        return tape.jacobian(y, x, sparse=True).to_dense().numpy(), tape.jacobian(y, x).numpy()

    x, base = tg.constant([1.0, 2.0, 3.0, 4.0]), [0, 1, 2]
    for make in (lambda n: n + 1, lambda n: n * 1, lambda n: n - 1 + 1, lambda n: n // 1):
        few, dense = compute(make(tg.constant(base)), x)
        np.testing.assert_array_equal(few, dense)


def test_computed_indices_are_part_of_the_proof():
    def compute(indices):
        x = tg.constant(numbers(3, 2))
        return batch_jacobian(lambda x: tg.gather(x * x, indices % 3), x).numpy()

    assert compute(tg.constant([0, 1, 2]) * 1).shape == (3, 2, 2)
    with pytest.raises(GradientError, match="gather"):
        compute(tg.constant([0, 1, 2]) + 1)
    assert compute(tg.constant([0, 1, 2]) + 0).shape == (3, 2, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("budget", [1, 2_000, 50_000])
def test_the_memory_budget_divides_the_work(monkeypatch, mode, budget):
    size = 20
    expected = by_jax(jax.jacfwd(lambda x: jnp.tanh(jnp.outer(x, x) @ x)), numbers(size))

    def function(x):
        return tg.tanh(tg.linalg.matvec(x[:, tg.newaxis] * x, x))

    monkeypatch.setattr(dense, "MEMORY_BUDGET", budget)
    graph = traced(lambda x: jacobian(function, x, mode=mode), (size,))
    calls = [node for node in graph.nodes if node.op.name == "call"]
    assert len(calls) == {1: 20, 2_000: 20, 50_000: len(calls)}[budget]
    assert (len(calls) < 20) == (budget == 50_000)
    for inner in graph.graphs():
        if inner is not graph and budget > 1:
            assert max(y.size * 8 for node in inner.nodes for y in node.outputs) <= budget + 8 * 400
    with jax.enable_x64(True):
        found = graph_function(graph)(jnp.asarray(numbers(size)))[0]
    assert_near(found, expected)


def test_the_budget_counts_only_static_sizes(monkeypatch):
    monkeypatch.setattr(dense, "MEMORY_BUDGET", 1)
    compute = tg.function(
        lambda x: jacobian(lambda x: x * x, x), input_signature=[tg.TensorSpec([None])]
    )
    assert_near(compute(tg.constant([1.0, 2.0])), np.diag([2.0, 4.0]))


def test_chunks_share_one_body():
    graph = traced(lambda x: jacobian(tg.sin, x, mode="reverse", chunk_size=2), (7,))
    bodies = [node.op.body for node in graph.nodes if node.op.name == "call"]
    assert len(bodies) == 4
    assert len(set(bodies)) == 2  # the last one is narrower


# Batches.


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"mode": "reverse"}, {"mode": "forward"}, {"chunk_size": 2}),
        *({"parallel_iterations": 3}, {"experimental_use_pfor": False}),
        {"mode": "forward", "chunk_size": 2},
    ],
)
def test_a_batch_jacobian(run, options):
    x = numbers(5, 3)
    row = jax.vmap(jax.jacrev(lambda r: rows_by_jax(r[None])[0]))
    found = run(lambda x: batch_jacobian(rows_of, x, **options), tg.constant(x))
    assert_near(found, by_jax(row, x))


@pytest.mark.sampled(1)
def test_rows_with_several_axes(run):
    x = numbers(2, 3, 2)

    def function(x):
        return tg.reshape(tg.matmul(x, x, transpose_b=True), [2, 3, 3]) + tg.reduce_max(
            x, [1, 2], keepdims=True
        )

    def function_by_jax(r):
        return r @ r.T + r.max()

    for mode in ("forward", "reverse"):
        found = run(lambda x, m=mode: batch_jacobian(function, x, mode=m), tg.constant(x))
        assert_near(found, by_jax(jax.vmap(jax.jacrev(function_by_jax)), x))


def test_unconnected_rows_give_zeros(run):
    x = tg.ones([4, 3])
    found = run(lambda x: batch_jacobian(lambda x: tg.ones([4, 2]), x), x)
    assert_near(found, np.zeros((4, 2, 3)))
    found = run(lambda x: batch_jacobian(lambda x: tg.stop_gradient(x), x), x)
    assert_near(found, np.zeros((4, 3, 3)))
    v = tg.Variable(np.ones((2, 3), np.float32))
    with tg.GradientTape() as tape:
        y = v * v
    assert_near(tape.batch_jacobian(y, v), np.stack([2 * np.eye(3)] * 2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("options", [{}, {"mode": "forward"}, {"chunk_size": 2}])
def test_empty_batches(run, shape, options):
    found = run(lambda x: batch_jacobian(lambda x: x * x, x, **options), tg.ones(shape))
    assert found.shape == (*shape, shape[1])


KERNEL = numbers(3, 3, 2, 2)
SCALE = numbers(4)


def convolved(x):
    found = tg.nn.conv2d(tg.reshape(x, [-1, 3, 2, 2]), KERNEL, 1, "SAME")
    return tg.reshape(tg.nn.max_pool2d(found, 2, 1, "SAME"), [-1, 12])


def normalised(x):
    mean = tg.reduce_mean(x, 1, keepdims=True)
    deviation = tg.math.reduce_std(x, 1, keepdims=True)
    return (x - mean) / (deviation + 0.1)


def turned(x):
    return tg.transpose(tg.tanh(tg.transpose(x) * tg.constant(numbers(3, 1))))


def attended(x):
    x = tg.reshape(x, [-1, 3, 4])
    return tg.reshape(tg.nn.softmax(tg.matmul(x, x, transpose_b=True)) @ x, [-1, 12])


def folded(x):
    return tg.reshape(tg.reshape(tg.sin(x), [-1]) * 2.0, [-1, 3])


def by_functions(x):
    return tg.function(lambda x: called(x) * 2.0)(x)


def by_loop(x):
    return tg.vectorized_map(lambda row: tg.sin(row) * row[0], x)


def assembled(x):
    return tg.concat([x[:2], x[2:]], 0) * 1.0


def picked(x):
    rows = tg.range(tg.shape(x)[0])
    return tg.gather(x, rows[:, tg.newaxis], axis=0)[:, 0] * x


def stepped(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(tg.tanh(x) ** 2)  # one number, of which each row makes its own part
    return tape.gradient(y, x)


INDEPENDENT = [
    ("dense", rows_of, 3),
    ("convolution", convolved, 12),
    ("layer norm", normalised, 3),
    ("transposes", turned, 3),
    ("attention", attended, 12),
    ("reshapes", folded, 3),
    ("functions", by_functions, 3),
    ("loop", by_loop, 3),
    ("pieces", assembled, 3),
    ("own positions", picked, 3),
    ("gradients", stepped, 3),
    ("turned in rows", lambda x: tg.reverse(tg.roll(tg.sort(x), 1, 1), [1]), 3),
    ("sums in rows", lambda x: tg.cumsum(x, 1) * tg.reduce_logsumexp(x, 1, keepdims=True), 3),
    ("weights of the batch", lambda x: x * tg.reduce_mean(tg.stop_gradient(x), 0), 3),
    ("chosen by the batch", lambda x: tg.where(tg.reduce_mean(x) > 0.0, x, x * x), 3),
    ("itself", lambda x: x, 3),
    ("a shift back", lambda x: tg.roll(tg.roll(x, 1, 0), -1, 0), 3),
]
IDS = [name for name, *_ in INDEPENDENT]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "function", "width"), INDEPENDENT, ids=IDS)
@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
def test_independent_rows_are_accepted(name, function, width, is_open):
    x = numbers(4, width)
    size = None if is_open else 4
    compute = tg.function(
        lambda x: (batch_jacobian(function, x), jacobian(function, x)),
        input_signature=[tg.TensorSpec([size, width], tg.float64)],
    )
    rows, matrix = map(np.asarray, compute(x))
    for b in range(4):
        assert_near(rows[b], matrix[b, :, b])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "function", "width"), INDEPENDENT, ids=IDS)
@pytest.mark.parametrize("options", [{"mode": "reverse"}, {"mode": "reverse", "chunk_size": 2}])
def test_as_many_rows_as_elements(name, function, width, options):
    # Equal sizes tell no axis from another, and a batch may look like a joined pair of axes.
    for rows in (width, width * width):
        x = numbers(rows, width)
        compute = tg.function(
            lambda x: (batch_jacobian(function, x, **options), jacobian(function, x))
        )
        found, matrix = map(np.asarray, compute(tg.constant(x)))
        for b in range(rows):
            assert_near(found[b], matrix[b, :, b])


@pytest.mark.parametrize(("function", "width"), [(rows_of, 3), (convolved, 12), (normalised, 3)])
def test_rows_come_first_without_moving_the_result(function, width):
    compute = tg.function(lambda x: batch_jacobian(function, x, mode="reverse"))
    graph = compute.get_concrete_function(tg.constant(numbers(5, width))).graph
    moved = [
        node
        for node in graph.nodes
        if type(node.op).__name__ == "Transpose"
        and node.op.perm[:2] == (1, 0)
        and node.outputs[0].ndim > 2
    ]
    assert not moved, graph.as_text()


def mean_of_batch(x):
    return x - tg.reduce_mean(x, 0)


def batch_norm(x):
    mean, variance = tg.nn.moments(x, [0])
    return tg.nn.batch_normalization(x, mean, variance, None, None, 1e-3)


def by_mixing_function(x):
    return tg.function(lambda x: tg.sin(tg.reverse(x, [0])))(x)


def paired(x):
    return tg.reshape(tg.reverse(tg.reshape(x, [-1, 2, 3]), [1]), [-1, 3])


def shifted(x):
    return tg.pad(x[1:], [[0, 1], [0, 0]]) * 2.0


MIXING = [
    ("mean", mean_of_batch, "sum"),
    ("batch norm", batch_norm, None),
    ("flip", lambda x: tg.sin(tg.reverse(x, [0])), "reverse"),
    ("roll", lambda x: tg.roll(x, 1, 0) * 2.0, None),
    ("roll far", lambda x: tg.roll(x, 462, 0) * 2.0, None),
    ("sum of all", lambda x: x + tg.reduce_sum(x), "sum"),
    ("cumulative sum", lambda x: tg.cumsum(x, 0), None),
    ("softmax over rows", lambda x: tg.nn.softmax(x, 0), None),
    ("functions", by_mixing_function, "reverse"),
    ("pairs", paired, "reverse"),
    ("shift", shifted, None),
    ("sort", lambda x: tg.sort(x, 0), None),
    ("others", lambda x: tg.concat([x[2:], x[:2]], 0), "concatenate"),
    (
        "others far",
        lambda x: tg.concat([x[200:], x[:200]], 0) if x.shape[0] != 4 else x[::-1],
        None,
    ),
    ("product", lambda x: tg.matmul(x, x, transpose_b=True) @ x, None),
    ("gather", lambda x: tg.gather(x, [1, 0, 3, 2])[: tg.shape(x)[0]], None),
    ("computed", lambda x: tg.gather(x, (tg.range(tg.shape(x)[0]) + 6931) % tg.shape(x)[0]), None),
    ("first row", lambda x: x * x[:1], None),
]


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("name", "function", "op"), MIXING, ids=[name for name, *_ in MIXING])
@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
def test_mixed_rows_are_refused(name, function, op, is_open):
    size = None if is_open and name not in ("gather",) else 4
    compute = tg.function(
        lambda x: batch_jacobian(function, x),
        input_signature=[tg.TensorSpec([size, 3], tg.float64)],
    )
    with pytest.raises(GradientError, match="batch_jacobian") as caught:
        compute(numbers(4, 3))
    text = str(caught.value)
    assert "tape.jacobian" in text
    if op is not None:
        assert f"{op} makes a row" in text


def test_the_line_that_mixes(run):
    lines = []

    def function(x):
        y = tg.tanh(x)
        lines.append(line() + 1)
        z = y * tg.reduce_sum(y, 0)
        return tg.sin(z) * 2.0

    with pytest.raises(ValueError, match="sum makes a row") as caught:
        run(lambda x: batch_jacobian(function, x), tg.ones([4, 3]))
    assert here(lines[0]) in str(caught.value)


def test_the_line_that_mixes_in_what_is_called(run):
    lines = []

    def mix(z):
        lines.append(line() + 1)
        return z - tg.reduce_max(tg.tanh(z), 0)

    inner = tg.function(mix)
    outer = tg.function(lambda z: inner(z * 2.0) + 1.0)
    for function in (inner, outer, tg.recompute_grad(mix), tg.recompute_grad(outer)):
        with pytest.raises(ValueError, match="reduce_max makes a row") as caught:
            run(lambda x, f=function: batch_jacobian(f, x), tg.ones([4, 3]))
        assert here(lines[0]) in str(caught.value)


def test_the_line_that_mixes_in_a_custom_gradient(run):
    lines = []

    @tg.custom_gradient
    def function(x):
        def rule(g):
            lines.append(line() + 1)
            return tg.reverse(g, [0])

        return tg.tanh(x), rule

    with pytest.raises(ValueError, match="reverse makes a row") as caught:
        run(lambda x: batch_jacobian(function, x), tg.ones([4, 3]))
    assert here(lines[0]) in str(caught.value)


def test_each_of_two_equal_graphs_has_its_own_line():
    """What is traced or derived is kept by structure; equal structures of two places are two."""

    def mixed(rule, kind):
        @tg.custom_gradient
        def function(x):
            return tg.tanh(x), rule

        def energy(x):
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = kind(x)
            return tape.gradient(y, x)

        for mixing in (function, energy):
            with pytest.raises(ValueError, match="rows are not independent") as caught:
                batch_jacobian(mixing, tg.ones([4, 3]))
            yield str(caught.value)

    first = mixed(lambda g: tg.reverse(g, [0]), lambda x: tg.reduce_sum(x, 0) ** 3.0)  # once
    second = mixed(lambda g: tg.reverse(g, [0]), lambda x: tg.reduce_sum(x, 0) ** 3.0)  # again
    for texts, mark in ((first, "# once"), (second, "# again")):
        assert [mark in text for text in texts] == [True, True]


def test_known_indices_reach_what_is_called():
    """The gather inside moves no rows, so the one that mixes them comes after it."""
    own = tg.constant([0, 1, 2, 3])

    @tg.function
    def inner(x, at):
        y = tg.gather(x, at)
        return tg.cumsum(y, 0)

    with pytest.raises(ValueError, match=r"cum_?sum makes a row"):
        batch_jacobian(lambda x: inner(x, own), tg.ones([4, 3]))


def test_the_line_that_turns(run):
    lines = []

    def function(x):
        y = tg.transpose(tg.tanh(x))
        z = tg.transpose(y) * 3.0
        lines.append(line() + 1)
        z = tg.transpose(z)
        return tg.sin(z) * 2.0

    with pytest.raises(ValueError, match="transpose makes a row") as caught:
        run(lambda x: batch_jacobian(function, x), tg.ones([3, 3]))
    assert here(lines[0]) in str(caught.value)


def test_axes_as_long_as_the_batch_are_no_rows():
    """What turns the other axes mixes rows wherever they are not as long as the batch."""

    def function(x):
        n, m = tg.shape(x)[0], tg.shape(x)[1]
        return tg.reshape(tg.transpose(tg.reshape(tg.transpose(x), [n, m])), [n, m])

    compute = tg.function(
        lambda x: batch_jacobian(function, x),
        input_signature=[tg.TensorSpec([None, None], tg.float64)],
    )
    with pytest.raises(GradientError, match="not independent"):
        compute(numbers(4, 3))


def test_indices_that_are_not_known_are_refused():
    compute = tg.function(lambda x, at: batch_jacobian(lambda x: tg.gather(x, at), x))
    with pytest.raises(GradientError, match="gather makes a row"):
        compute(tg.ones([4, 3]), tg.constant([0, 1, 2, 3]))
    own = tg.constant([0, 1, 2, 3])
    assert tg.function(lambda x: batch_jacobian(lambda x: tg.gather(x, own), x))(
        tg.ones([4, 3])
    ).shape == (4, 3, 3)


ROWS, WIDTH = 4, 3
WITHIN = [
    lambda x: tg.sin(x) + x,
    lambda x: x * tg.reduce_sum(x, 1, keepdims=True),
    lambda x: x @ tg.constant(numbers(WIDTH, WIDTH)),
    lambda x: tg.reverse(x, [1]) * 0.5,
    lambda x: tg.cumsum(x, 1),
    lambda x: tg.roll(x, 1, 1),
    lambda x: tg.concat([x[:, 1:], tg.tanh(x[:, :1])], 1),
    lambda x: tg.transpose(tg.sin(tg.transpose(x))),
    lambda x: tg.reshape(tg.reshape(x, [-1]) * 2.0, [-1, WIDTH]),
    lambda x: tg.where(x > 0.0, x, 0.5 * x),
    lambda x: tg.gather(x, [2, 0, 1], axis=1),
]
ACROSS = [
    lambda x: tg.reverse(x, [0]),
    lambda x: tg.roll(x, 1, 0),
    lambda x: tg.roll(x, -1, 0),
    lambda x: tg.roll(x, ROWS, 0),
    lambda x: tg.cumsum(x, 0),
    lambda x: x - tg.reduce_mean(x, 0),
    lambda x: x + x[:1],
    lambda x: tg.concat([x[1:], x[:1]], 0),
    lambda x: tg.concat([x[:2], x[2:]], 0),
    lambda x: tg.reshape(tg.reverse(tg.reshape(x, [-1]), [0]), [-1, WIDTH]),
    lambda x: tg.reshape(tg.roll(tg.reshape(x, [-1]), WIDTH, 0), [-1, WIDTH]),
    lambda x: x * tg.cast(tg.range(tg.shape(x)[0]), tg.float64)[:, tg.newaxis],
]


def proved(graph):
    try:
        row_independence.check_rows_independent(graph, {})
    except GradientError:
        return False
    return True


def mixes(graph, rows):
    """Whether a row of the result changes with another row of the argument, by differences."""
    graph = specialise(graph, [TensorType(float64, (rows, WIDTH))])
    value = numbers(rows, WIDTH, seed=3)
    (start,) = by_numpy(graph, [value])
    for row in range(rows):
        near = value.copy()
        near[row] += 1e-3 * np.array([1.0, 2.0, 0.5])
        (moved,) = by_numpy(graph, [near])
        others = np.arange(rows) != row
        if (start != moved).reshape(rows, WIDTH)[others].any():
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*WITHIN, *ACROSS]), min_size=1, max_size=4), st.booleans())
def test_no_mixing_graph_is_accepted(steps, is_open):
    with Builder("f") as builder:
        rows = Dim.named("rows") if is_open else ROWS
        x = builder.input(TensorType(float64, (rows, WIDTH)), "x")
        graph = builder.finish([functools.reduce(lambda y, step: step(y), steps, x)])
    accepted = proved(graph)
    if accepted:
        assert not any(mixes(graph, n) for n in ((ROWS, 5, 6, 9) if is_open else (ROWS,)))
    if all(step in WITHIN for step in steps):
        assert accepted, graph.as_text()


# Sparse.


def check_sparse_and_dense(graph, seed):
    """The compressed Jacobian of the last tensor of a random graph, spread out, is the dense."""
    rng = np.random.default_rng(seed)
    values = random_values(graph, rng)
    given_values = {
        v: value for v, value in zip(graph.inputs[1:], values[1:]) if rng.random() < 0.5
    }
    x, y = graph.inputs[0], graph.outputs[-1]
    between, known = subgraph_between(graph.nodes, x, y, given_values.get)
    found = sparsity(between, known, is_symmetric=False)
    with Builder("both") as builder:
        env = copy_inputs(graph, builder)
        replay(graph.nodes, env)
        ends = env[y], env[x]
        try:
            (entries,) = sparse_jacobian(builder.nodes, *ends, found)
        except MissingRuleError:  # a derivative of the table's that has none itself
            with pytest.raises(MissingRuleError):
                for mode in ("reverse", "forward"):  # the sparse one may take either, or both
                    dense.jacobian(builder.nodes, ends[0], [ends[1]], JacobianPlan(mode=mode))
            return
        (whole,) = dense.jacobian(builder.nodes, ends[0], [ends[1]], JacobianPlan(mode="reverse"))
        assert entries is None or entries.type.shape == found.rows.shape
        both = builder.finish([t for t in (entries, whole) if t is not None])
    assert (entries is None) == (whole is None)
    if entries is None:
        return
    results = by_numpy(both, values)
    if results is None:
        return
    expected = results[1].reshape(found.shape)
    spread = np.zeros(found.shape)
    spread[found.rows, found.columns] = results[0]
    if np.isfinite(expected).all():
        np.testing.assert_allclose(spread, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@settings(max_examples=80, deadline=None)
@given(programs(), st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sparse_and_dense_are_equal(graph, seed):
    check_sparse_and_dense(graph, seed)


@pytest.mark.sweep
@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sparse_and_dense_are_equal_for_more_graphs(graph, seed):
    check_sparse_and_dense(graph, seed)


def tridiagonal(x):
    padded = tg.pad(x, [[1, 1]])
    return padded[:-2] - 2.0 * x * x + tg.sin(padded[2:])


def arrowhead(x):
    return tg.concat([tg.reduce_sum(x * x, keepdims=True), x[1:] * x[0] + x[1:] ** 2], 0)


def test_a_tridiagonal_jacobian_takes_three_products():
    n = 10_000
    x = tg.constant(numbers(n))
    found = jacobian(tridiagonal, x, sparse=True)
    assert (found.colors, found.nnz, found.shape) == (3, 3 * n - 2, (n, n))
    v = x.numpy()
    expected = np.zeros((3, n))
    expected[0], expected[1], expected[2, 1:] = 1.0, -4 * v, np.cos(v[1:])
    scipy = found.to_scipy()
    np.testing.assert_array_equal(found.rows, np.sort(found.rows))
    for offset in (-1, 0, 1):
        diagonal = expected[offset + 1]
        assert_near(scipy.diagonal(offset), diagonal[max(offset, 0) : n + min(offset, 0)])
    w = numbers(n, seed=1)
    assert_near(found @ w, scipy @ w)


def test_an_arrowhead_takes_few_products():
    n = 10_000
    x = tg.constant(numbers(n))
    found = jacobian(arrowhead, x, sparse=True)
    assert found.colors <= 4
    assert found.nnz == 3 * n - 2
    small = jacobian(arrowhead, x[:5], sparse=True)
    assert_near(small.to_dense(), jacobian(arrowhead, x[:5]))
    w = numbers(n, seed=1)
    assert_near(found @ w, found.to_scipy() @ w)


@pytest.mark.sampled(1)
def test_an_arrowhead_hessian_takes_two_products(run):
    n = 200
    x = tg.constant(numbers(n))

    def hessian(x, **options):
        def function(x):
            return tg.reduce_sum(tg.sin(x[1:]) * x[0] * x[0])

        return jacobian(lambda x: gradient(function, x), x, **options)

    few = run(lambda x: hessian(x, sparse=True), x)
    assert few.colors == 2
    assert_near(few.to_dense(), run(hessian, x))


def rosenbrock(x):
    return tg.reduce_sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["tensor", "Variable"])
def test_a_banded_hessian(run, kind):
    x = tg.constant(numbers(30)) if kind == "tensor" else tg.Variable(numbers(30))

    def compute(*given):
        at = given[0] if given else x
        return jacobian(lambda x: gradient(rosenbrock, x), at, sparse=True)

    found = run(compute, x) if kind == "tensor" else run(compute)
    assert found.colors == 3
    assert found.nnz == 88
    expected = by_jax(
        jax.hessian(lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()),
        x.numpy(),
    )
    assert_near(found.to_dense(), expected)


@pytest.mark.sampled(1)
def test_a_gradient_of_a_part_is_not_taken_for_symmetric(run):
    """One of the tapes sees less of the function than the other."""

    def partial(x, sparse):
        with tg.GradientTape() as first:
            first.watch(x)
            a = tg.sin(x)
            with tg.GradientTape() as second:
                second.watch(x)
                y = tg.reduce_sum(a[1:] * x[:-1] ** 2)
                inner = second if sparse[1] else first
                outer = first if sparse[1] else second
                if not sparse[1]:
                    with first.stop_recording():
                        g = inner.gradient(y, x)
            if sparse[1]:
                g = inner.gradient(y, x)
        found = outer.jacobian(g, x, sparse=sparse[0])
        return found.to_dense() if sparse[0] else found

    x = tg.constant(numbers(5))
    for order in (False, True):
        expected = run(lambda x, o=order: partial(x, (False, o)), x)
        assert_near(run(lambda x, o=order: partial(x, (True, o)), x), expected)
        assert not np.allclose(expected, expected.numpy().T)


def test_a_users_gradient_is_not_taken_for_symmetric(run):
    @tg.custom_gradient
    def odd(x):
        return tg.reduce_sum(x * x), lambda g: g * x * tg.roll(x, 1, 0)

    def compute(x, **options):
        found = jacobian(lambda x: gradient(odd, x), x, **options)
        return found.to_dense() if options else found

    x = tg.constant(numbers(4))
    assert_near(run(lambda x: compute(x, sparse=True), x), run(compute, x))


def test_sparse_in_a_structure(run):
    p = {"a": tg.constant(numbers(3)), "b": [tg.constant(numbers(3, seed=1)), tg.constant([1.0])]}

    def compute(p):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(p)
            y = p["a"] * p["b"][0][::-1]
        few, whole = tape.jacobian(y, p, sparse=True), tape.jacobian(y, p)
        return few["a"].to_dense(), few["b"][0].to_dense(), few["b"][1], whole

    a, b, none, whole = run(compute, p)
    assert_near(a, whole["a"])
    assert_near(b, whole["b"][0])
    assert none is whole["b"][1] is None


def test_sparse_of_several_axes(run):
    x = tg.constant(numbers(2, 3, 2))

    def function(x):
        return tg.cumsum(x, 2)[:, ::-1] * x

    found = run(lambda x: jacobian(function, x, sparse=True).to_dense(), x)
    assert_near(found, run(lambda x: jacobian(function, x), x))
    whole = jacobian(function, x, sparse=True)
    assert whole.shape == (12, 12)
    assert whole.dtype is tg.float64
    assert "nnz=26" in repr(whole)


def test_products_with_the_matrix(run):
    x, v, m = numbers(5), numbers(5, seed=1), numbers(5, 3, seed=2)
    expected = by_jax(jax.jacfwd(lambda x: x[1:] * x[:-1]), x)

    def compute(x, v, m):
        found = jacobian(lambda x: x[1:] * x[:-1], x, sparse=True)
        return found @ v, found @ m

    one, other = run(compute, *map(tg.constant, (x, v, m)))
    assert_near(one, expected @ v)
    assert_near(other, expected @ m)
    found = jacobian(lambda x: x[1:] * x[:-1], tg.constant(x), sparse=True)
    assert_near(found @ v.tolist(), expected @ v)
    for bad in (v[1:], np.ones((4, 2)), np.ones((5, 1, 1)), np.float64(2.0)):
        with pytest.raises(ValueError, match=r"\(4, 5\)"):
            found @ bad


@pytest.mark.sampled(4)
@pytest.mark.parametrize("as_factor", [tg.constant, np.asarray, np.ndarray.tolist, tg.Variable])
def test_products_from_the_left(run, as_factor):
    x, v, m = numbers(5), numbers(4, seed=1), numbers(3, 4, seed=2)
    expected = by_jax(jax.jacfwd(lambda x: x[1:] * x[:-1]), x)
    left, many = as_factor(v), as_factor(m)

    def compute(x):
        found = jacobian(lambda x: x[1:] * x[:-1], x, sparse=True)
        return left @ found, many @ found, tg.matmul(many, found), tg.constant(v) @ found.T.T

    one, several, same, twice = run(compute, tg.constant(x))
    for product in (one, twice):
        assert_near(product, v @ expected)
    for product in (several, same):
        assert_near(product, m @ expected)
    found = jacobian(lambda x: x[1:] * x[:-1], tg.constant(x), sparse=True)
    for bad in (v[1:], np.ones((4, 2)), np.ones((5, 1, 4)), np.float64(2.0)):
        with pytest.raises(
            tg.errors.ShapeError, match=r"shape \(4, 5\) was given as the factor of f"
        ):
            bad @ found
    with pytest.raises(ValueError, match=r"give j\.T"):
        tg.matmul(m, found, transpose_b=True)


@pytest.mark.sampled(1)
def test_the_transposed_matrix(run):
    def function(x):
        return tg.reshape(x[0] * x, [3, 1]) + x

    def compute(x):
        found = jacobian(function, x, sparse=True)
        return found.to_dense(), found.T.to_dense(), found.T

    x = tg.constant(numbers(3))
    whole, turned, matrix = run(compute, x)
    assert turned.shape.as_list() == [3, 3, 3]
    assert_near(turned, np.moveaxis(whole.numpy(), -1, 0))
    assert matrix.shape == (3, 9)
    np.testing.assert_array_equal(matrix.rows, np.sort(matrix.rows))
    assert_near(matrix.to_scipy().todense(), whole.numpy().reshape(9, 3).T)
    found = jacobian(function, x, sparse=True)
    take = tg.function(lambda j: j.values)
    for j in (found.T, found.T, found.T.T, found):
        take(j)
    assert take.experimental_get_tracing_count() == 2


@pytest.mark.sampled(1)
def test_scaled_matrices(run):
    def compute(x):
        j = jacobian(tridiagonal, x, sparse=True)
        scale = x[0]
        scaled = [2 * j, j * 2.0, -j, j / 4, scale * j, j * scale, np.float64(3.0) * j]
        return [j.to_dense(), scale, *(s.to_dense() for s in scaled)]

    j, scale, *found = (y.numpy() for y in run(compute, tg.constant(numbers(4))))
    for value, factor in zip(found, [2, 2, -1, 0.25, scale, scale, 3], strict=True):
        assert_near(value, factor * j)

    def loss(x):
        return tg.reduce_sum((x[0] * jacobian(tridiagonal, x, sparse=True)).values ** 2)

    def dense_loss(x):
        return tg.reduce_sum((x[0] * jacobian(tridiagonal, x)) ** 2)

    x = tg.constant(numbers(4))
    assert_near(run(lambda x: gradient(loss, x), x), run(lambda x: gradient(dense_loss, x), x))


def test_what_a_sparse_jacobian_does_not_do():
    j = jacobian(tridiagonal, tg.constant(numbers(4)), sparse=True)
    for use in (lambda: j[0, 1], lambda: list(j)):
        with pytest.raises(
            TypeError, match=r"fix: use j.to_dense\(\)\[...\] or j.to_scipy"
        ) as caught:
            use()
        assert "shape (4, 4) was asked for" in str(caught.value)
    for use in (lambda: j * np.ones(4), lambda: np.ones(4) * j, lambda: tg.ones([4]) * j):
        with pytest.raises(ValueError, match=r"was scaled by f(32|64)\[4\]"):
            use()


@pytest.mark.sampled(1)
def test_a_dense_jacobian_is_made_where_entries_are_many(run, monkeypatch):
    x, n = numbers(150), 150
    for name in ("colour", "colour_rows", "colour_symmetric"):
        monkeypatch.delattr(f"tracegraph.jacobians.sparse_products.{name}")  # nothing is coloured

    def dense_function(x):
        return x * tg.reduce_sum(x)

    def nearly(x):  # half of the entries
        return tg.cumsum(x * x)

    def energy(x):
        return tg.reduce_sum(x * x) ** 2

    for function, count in ((dense_function, n * n), (nearly, n * (n + 1) // 2)):
        few, whole = run(
            lambda x, f=function: (jacobian(f, x, sparse=True), jacobian(f, x)), tg.constant(x)
        )
        assert (few.colors, few.nnz) == (n, count)
        assert_near(few.to_dense(), whole)
        assert_near(few.T.to_dense(), whole.numpy().T)
    few, whole = run(lambda x: (tg.hessian(energy, sparse=True)(x), tg.hessian(energy)(x)), x)
    assert (few.colors, few.nnz) == (n, n * n)
    assert_near(few.to_dense(), whole)


@pytest.mark.sampled(1)
def test_sparse_jacobians_and_hessians_of_functions(run):
    x, y = (tg.constant(numbers(6, seed=seed)) for seed in (0, 1))

    def function(x, y):
        return {"a": x[1:] * y[:-1], "b": tg.reduce_sum(x)}

    for argnums in (0, (0, 1)):
        few = run(tg.jacobian(function, argnums, sparse=True), x, y)
        whole = run(tg.jacobian(function, argnums), x, y)
        for name in "ab":
            pairs = few[name], whole[name]
            for matrix, expected in [pairs] if argnums == 0 else zip(*pairs, strict=True):
                assert_near(matrix.to_dense(), expected)

    def arrow(x):
        return tg.reduce_sum(tg.sin(x[1:]) * x[0] * x[0])

    found = run(tg.hessian(arrow, sparse=True), x)
    assert found.colors == 2  # it is known to be symmetric
    assert_near(found.to_dense(), run(tg.hessian(arrow, mode="reverse", chunk_size=2), x))
    assert_near(
        found.to_dense(),
        by_jax(jax.hessian(lambda x: (jnp.sin(x[1:]) * x[0] ** 2).sum()), x.numpy()),
    )


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacobian", "hessian"])
def test_arguments_in_the_place_of_argnums_are_refused_at_once(name):
    for argnums in (tg.ones([2]), tg.constant(1), np.ones(2), np.array(1), tg.Variable(1), 1.0):
        with pytest.raises(tg.errors.DTypeError, match=r"argnums is .* must be an int") as caught:
            getattr(tg, name)(tg.reduce_sum, argnums)
        assert str(caught.value).endswith(
            "fix: give positions of arguments, counted from 0; the arguments go to the function "
            f"that is returned: tg.{name}(fn)(x)"
        )


def test_gradients_through_the_values(run):
    x = numbers(4)

    def loss(x):
        return tg.reduce_sum(jacobian(tridiagonal, x, sparse=True).values ** 2)

    def by_columns(x):
        padded = jnp.pad(x, 1)
        return padded[:-2] - 2.0 * x * x + jnp.sin(padded[2:])

    expected = by_jax(jax.grad(lambda x: (jax.jacfwd(by_columns)(x) ** 2).sum()), x)
    assert_near(run(lambda x: gradient(loss, x), tg.constant(x)), expected)


def test_a_sparse_jacobian_is_returned_from_a_function():
    compute = tg.function(lambda x: {"j": jacobian(tridiagonal, x, sparse=True), "x": x})
    for seed in (0, 1):
        x = tg.constant(numbers(6, seed=seed))
        found = compute(x)["j"]
        assert isinstance(found, tg.SparseJacobian)
        assert found.colors == 3
        assert_near(found.to_dense(), jacobian(tridiagonal, x))
        assert found.to_scipy().shape == (6, 6)


def test_there_is_no_stack_of_sparse_jacobians():
    with pytest.raises(ValueError, match="to_dense") as caught:
        tg.vectorized_map(lambda r: jacobian(tridiagonal, r, sparse=True), tg.ones([2, 3]))
    assert os.path.basename(__file__) in str(caught.value)


def test_a_matrix_has_no_host_form_while_tracing():
    with pytest.raises(TypeError):
        tg.function(lambda x: jacobian(tridiagonal, x, sparse=True).to_scipy())(tg.ones([3]))


def test_a_product_that_has_no_forward_rule_is_by_rows():
    @tg.custom_gradient
    def clipped(x):
        return x * 2.0, lambda g: tg.clip_by_value(g, -1.0, 1.0)

    x = tg.constant(numbers(4))
    found = jacobian(lambda x: clipped(x) * 0.25, x, sparse=True)
    assert_near(found.to_dense(), jacobian(lambda x: clipped(x) * 0.25, x))


def test_no_warning_is_given():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jacobian(tridiagonal, tg.constant(numbers(5)), sparse=True).to_dense().numpy()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", [None, "forward", "reverse"])
@pytest.mark.parametrize("choice", ["none", "raise"])
def test_gradient_that_is_zero_by_rule_is_connected(mode, choice):
    @tg.custom_gradient
    def tripled(x):
        return x * 3.0, lambda g: tg.zeros_like(g)

    @tg.custom_gradient
    def cut(x):
        return x * 3.0, lambda g: None

    x = tg.constant([[1.0, 2.0]])
    options = {"mode": mode, "unconnected_gradients": choice}
    assert np.array_equal(jacobian(tripled, x, **options), np.zeros((1, 2, 1, 2)))
    assert np.array_equal(batch_jacobian(tripled, x, **options), np.zeros((1, 2, 2)))
    wide = tg.constant(np.ones(100, np.float32))
    through = jacobian(lambda z: tg.ones([100]) * tg.reduce_sum(tripled(z)), wide, **options)
    assert np.array_equal(through, np.zeros((100, 100)))
    if choice == "none":
        assert jacobian(cut, x, mode=mode) is None


# Unit seeds that meet a matrix.

LAYERS = {
    "two layers": lambda m, x, w, v: m.tanh(m.tanh(x @ w) @ v),
    "one layer": lambda m, x, w, v: m.tanh(x @ w),
    "a matrix alone": lambda m, x, w, v: x @ w,
    "two products": lambda m, x, w, v: m.tanh(x @ w) * m.sin(x @ w) + m.cos(x @ w),
    "two matrices": lambda m, x, w, v: m.tanh(x @ w) * m.sin(x @ (2 * w)),
    "a shortcut": lambda m, x, w, v: m.tanh(m.tanh(x @ w) @ v) + m.sin(x @ w),
    "scaled at last": lambda m, x, w, v: 3 * (m.sin(m.tanh(x @ w) @ v) * 2 - m.tanh(x @ w) @ v),
    "nothing before": lambda m, x, w, v: m.tanh(m.sin(x) @ w) @ v,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["reverse", "forward", None])
def test_batch_jacobians_of_layers(run, mode):
    x, w, v = (RNG.standard_normal(shape) for shape in ((5, 3), (3, 4), (4, 4)))
    ours = [lambda z, f=f: f(tg, z, w, v) for f in LAYERS.values()]
    theirs = [jax.vmap(jax.jacrev(lambda z, f=f: f(jnp, z, w, v))) for f in LAYERS.values()]
    found = run(lambda x: [batch_jacobian(f, x, mode=mode) for f in ours], tg.constant(x))
    expected = by_jax(lambda x: [f(x) for f in theirs], x)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


def test_unit_seeds_meet_no_matrix_product():
    slopes = tg.function(
        lambda x, w, v: batch_jacobian(lambda z: LAYERS["two layers"](tg, z, w, v), x)
    )
    for batch in (256, None):
        specs = [tg.TensorSpec([batch, 32]), tg.TensorSpec([32, 32]), tg.TensorSpec([32, 32])]
        products = [n for n in slopes.graph(*specs).nodes if n.op.name == "matmul"]
        assert len(products) == 3  # two of the value, and one where there were two
