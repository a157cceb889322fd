"""What a tape at top level follows as one node: compositions of many ops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import tracegraph as tg
from tracegraph.eager.pending import compiled_count
from tracegraph.ir.builder import current
from tracegraph.passes import registry

LOGITS = np.random.default_rng(0).normal(size=(4, 3))
LABELS = np.array([0, 2, 1, 2])
SHARES = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.1, 0.8, 0.1]])


def sparse_loss(x):
    return tg.nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS, logits=x)


def jax_sparse_loss(x):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), LABELS[:, None], 1)[:, 0]


LAYER = tg.layers.LayerNormalization(center=False, scale=False, dtype=tg.float64)

#: Ours and JAX's.
COMPOSITIONS = {
    "sparse_softmax_cross_entropy": (sparse_loss, jax_sparse_loss),
    "sigmoid_cross_entropy": (
        lambda x: tg.nn.sigmoid_cross_entropy_with_logits(labels=SHARES, logits=x),
        lambda x: jax.nn.softplus(x) - x * SHARES,
    ),
    "softmax": (tg.nn.softmax, jax.nn.softmax),
    "log_softmax": (tg.nn.log_softmax, jax.nn.log_softmax),
    "softmax of columns": (lambda x: tg.nn.softmax(x, axis=0), lambda x: jax.nn.softmax(x, 0)),
    "softplus": (tg.math.softplus, jax.nn.softplus),
    "gelu": (tg.nn.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "layer normalization": (LAYER, lambda x: jax.nn.standardize(x, epsilon=LAYER.epsilon)),
    "logsumexp": (lambda x: tg.reduce_logsumexp(x, 1), lambda x: jax.nn.logsumexp(x, 1)),
}
EACH = pytest.mark.parametrize("name", COMPOSITIONS)


@EACH
def test_a_tape_at_top_level_sees_one_call(name):
    function, _ = COMPOSITIONS[name]
    x = tg.Variable(LOGITS)
    (x.read_value() + 0.0).numpy()  # runs what earlier tests left pending
    with tg.GradientTape():
        function(x)
        names = [node.op.name for node in current().nodes]
    assert names.count("call") == 1
    assert not {"exp", "log", "log1p", "sum"} & {*names}


@EACH
def test_calls_have_the_derivatives_of_their_ops(name):
    function, of_jax = COMPOSITIONS[name]
    x = tg.constant(LOGITS)
    with tg.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
            loss = tg.reduce_sum(y**2)
        slope = inner.gradient(loss, x)
        product = tg.reduce_sum(slope * LOGITS)
    with tg.autodiff.ForwardAccumulator(x, tg.constant(SHARES)) as accumulator:
        pushed = accumulator.jvp(function(x))
    found = y, slope, outer.gradient(product, x), outer.jacobian(y, x), pushed
    with jax.enable_x64(True):
        expected = derivatives_of(of_jax)
    for own, other in zip(found, expected):
        assert_allclose(own.numpy(), other, rtol=1e-9, atol=1e-12)


@functools.partial(jax.jit, static_argnums=0)  # one program, not one for each primitive
def derivatives_of(function):
    def total(x):
        return (function(x) ** 2).sum()

    return (
        function(LOGITS),
        jax.grad(total)(LOGITS),
        jax.jvp(jax.grad(total), (LOGITS,), (LOGITS,))[1],
        jax.jacobian(function)(LOGITS),
        jax.jvp(function, (LOGITS,), (SHARES,))[1],
    )


def test_each_place_and_type_has_its_own_graph():
    x = tg.constant(LOGITS)
    with tg.GradientTape() as tape:
        tape.watch(x)
        found = [tg.nn.softmax(z) for z in (x, x[:2], tg.cast(x, tg.float32))]
        found.append(tg.nn.softmax(x, axis=0))
        calls = [y.node for y in found]
    bodies = [node.op.body for node in calls]
    assert len({id(body) for body in bodies}) == 4
    for node, body in zip(calls, bodies):
        assert {inner.source.line for inner in body.nodes} == {node.source.line}
        assert {inner.source.text for inner in body.nodes} == {node.source.text}


def test_iterations_share_their_graphs_and_programs():
    def step():
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(tg.nn.log_softmax(x) * SHARES)
        x.assign_sub(0.1 * tape.gradient(loss, x))
        return float(loss)

    x = tg.Variable(LOGITS)
    first = step()
    step()
    before = compiled_count()
    losses = [step() for _ in range(5)]
    assert compiled_count() == before
    assert max(losses) < first


def test_without_a_tape_other_places_run_the_same_program():
    x = tg.constant(LOGITS)
    tg.nn.log_softmax(x).numpy()
    before = compiled_count()
    tg.nn.log_softmax(x).numpy()
    with tg.GradientTape():  # which watches nothing here
        tg.nn.log_softmax(x).numpy()
    assert compiled_count() == before


def test_a_function_has_the_ops_themselves():
    names = [node.op.name for node in tg.function(sparse_loss).graph(tg.constant(LOGITS)).nodes]
    assert "call" not in names and "log" in names


def test_a_refusal_names_the_op_inside_that_derivatives_pass_through():
    x = tg.constant(LOGITS)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.nn.softmax(x, axis=0)
    # Not the largest element, which is subtracted without a derivative.
    with pytest.raises(tg.errors.GradientError, match="independent: sum makes a row") as caught:
        tape.batch_jacobian(y, x)
    assert "y = tg.nn.softmax(x, axis=0)" in str(caught.value)


def test_what_is_registered_later_counts(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_places", {})

    def slope():
        with tg.GradientTape() as tape:
            y = tg.math.softplus(x)
        return tape.gradient(y, x)

    x = tg.Variable(LOGITS)
    assert_allclose(slope().numpy(), 1 / (1 + np.exp(-LOGITS)))
    tg.no_gradient("log1p")
    assert_allclose(slope().numpy(), LOGITS >= 0)  # what is left is relu
