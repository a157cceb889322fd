"""Derivatives at top level are compiled once: 20 steps of a loop, counted by us and by JAX."""

import jax.monitoring
import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import batch_jacobian, gradient, jacobian
from tracegraph.eager.pending import compiled_count

STEPS = 20

_compiled_by_jax = []


def _listen(event, duration, **_):
    if event.endswith("backend_compile_duration"):
        _compiled_by_jax.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@tg.custom_gradient
def rounded(x):
    return tg.round(x), lambda g: g * tg.cos(x)


def banded(x):
    return x[1:] * x[:-1]


def cubes(x):
    return tg.reduce_sum(x[1:] ** 3 * tg.sin(x[:-1]))


def rows(x):
    z = tg.reshape(x, [-1, 3])
    return batch_jacobian(lambda z: tg.sin(z) * tg.reduce_sum(z, axis=1, keepdims=True), z)


def steps(z):
    weights = tg.eye(3)
    found = tg.scan(
        lambda s, row: tg.tanh(s + row[None] @ weights), tg.reshape(z, [-1, 3]), z[None, :3]
    )
    return tg.reduce_sum(found**2)


PROGRAMS = {
    "gradient": lambda x: gradient(lambda z: tg.reduce_sum(z[0] * z[1:]), x),
    "dense Jacobian": lambda x: jacobian(banded, x),
    "Jacobian by columns": lambda x: jacobian(banded, x, mode="forward"),
    "sparse Jacobian": lambda x: jacobian(banded, x, sparse=True).values,
    "sparse Jacobian as a dense one": lambda x: jacobian(banded, x, sparse=True).to_dense(),
    "product of a sparse Jacobian": lambda x: jacobian(banded, x, sparse=True) @ tg.ones(x.shape),
    "sparse Jacobian of picked elements": lambda x: (
        jacobian(lambda z: z * tg.gather(z, [0] * z.shape[0]) + z[3], x, sparse=True).values
    ),
    "Hessian": lambda x: jacobian(lambda z: gradient(cubes, z), x),
    "sparse Hessian": lambda x: jacobian(lambda z: gradient(cubes, z), x, sparse=True).values,
    "batch_jacobian": rows,
    "vectorized_map": lambda x: tg.vectorized_map(
        lambda r: gradient(cubes, r), x[None] * x[:, None]
    ),
    "scan whose products are taken out": lambda x: gradient(steps, x),
    "map_fn": lambda x: gradient(lambda z: tg.reduce_sum(tg.map_fn(tg.sin, z)), x),
    "custom_gradient": lambda x: gradient(lambda z: tg.reduce_sum(rounded(z) * z), x),
}


def compiles_of(step):
    """How many programs each of the steps compiled, by our count and JAX's."""
    counts = []
    for number in range(STEPS):
        before = compiled_count(), len(_compiled_by_jax)
        assert np.all(np.isfinite(step(number).numpy()))
        counts.append((compiled_count() - before[0], len(_compiled_by_jax) - before[1]))
    return counts


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("kind", "size"), [("tensor", 12), ("variable", 15)])
def test_only_the_first_step_compiles(name, kind, size):
    rng = np.random.default_rng(0)
    variable = tg.Variable(tg.zeros([size]))

    def step(number):
        value = rng.uniform(0.1, 1, size).astype(np.float32)
        if kind == "tensor":
            return PROGRAMS[name](tg.constant(value))
        variable.assign(value)
        return PROGRAMS[name](tg.convert_to_tensor(variable))

    first, *others = compiles_of(step)
    assert first != (0, 0)
    assert others == [(0, 0)] * (STEPS - 1)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_loop_that_ends_with_an_update_compiles_two_programs(is_sparse):
    """The second begins with what the first step left pending. There is no third."""
    w = tg.Variable(np.ones(14, np.float32))

    def step(number):
        x = tg.constant(np.arange(14, dtype=np.float32) + number)
        j = jacobian(lambda z: tg.sin(z) * w, x, sparse=is_sparse)
        j = (j.to_dense() if is_sparse else j).numpy()
        np.testing.assert_allclose(j, np.diag(np.cos(x.numpy()) * (number + 1)), rtol=1e-5)
        w.assign_add(tg.ones([14]))
        return x

    counts = compiles_of(step)
    assert counts[2:] == [(0, 0)] * (STEPS - 2)
    assert w.numpy().tolist() == [STEPS + 1] * 14  # nothing stays pending for the next test


READS = {
    "as it is": lambda w: w,
    "its value": lambda w: w.value(),
    "a result": lambda w: tg.nn.relu(w) + 0.0,
    "a result that was made": lambda w: made(tg.nn.relu(w)),
    "a result of a function": tg.function(tg.nn.relu),
}


def made(x):
    assert x.numpy().shape == (12, 12)
    return x


@pytest.mark.parametrize("read", READS)
def test_zeros_of_a_variable_do_not_compile_again(read):
    """They come and go: what a Variable has zero now is not part of a sparsity."""
    rng = np.random.default_rng(0)
    x = tg.constant(rng.uniform(0.1, 1, 12).astype(np.float32))
    w = tg.Variable(np.eye(12, dtype=np.float32))
    found = []

    def step(number):
        j = jacobian(lambda z: tg.linalg.matvec(READS[read](w), z), x, sparse=True)
        dense = j.to_dense()
        found.append((j.nnz, np.array_equal(dense.numpy(), w.numpy())))
        w.assign(np.maximum(rng.normal(size=(12, 12)), 0).astype(np.float32))
        return j.values

    first, *others = compiles_of(step)
    assert first != (0, 0)
    assert others == [(0, 0)] * (STEPS - 1)
    assert found == [(144, True)] * STEPS


def test_zeros_of_a_constant_are_known():
    x = tg.ones([12])
    j = jacobian(
        lambda z: tg.linalg.matvec(tg.constant(np.eye(12, dtype=np.float32)), z), x, sparse=True
    )
    assert j.nnz == 12


def test_a_line_has_one_place_however_python_runs_it():
    """Python calls `x[1:]` in another way from its eighth run on."""
    x = tg.ones([3])
    sources = [x[1:].source for _ in range(30)]
    assert len({source.key for source in sources}) == 1
    assert sources[0].text.startswith("sources = ")
