"""Budgets of memory for scans: segments that run again, and nodes that move into the loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.control.less_memory.segments import _best
from tracegraph.eager import backend
from tracegraph.memory_budgets.recomputation import _with_other_loops
from tracegraph.passes.simplify import with_calls_opened

ROWS, WIDTH = 64, 8
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
KERNEL = (np.random.default_rng(1).normal(size=(WIDTH, WIDTH)) / 3).astype(np.float32)


def loss_after(steps, h, kernel):
    for _ in tg.range(steps):
        h = tg.tanh(h @ kernel) * 1.01
    return tg.reduce_sum(h * h)


def gradients(steps):
    def run(x, kernel):
        with tg.GradientTape() as tape:
            tape.watch((x, kernel))
            loss = loss_after(steps, x, kernel)
        return loss, *tape.gradient(loss, (x, kernel))

    return run


def of_jax(steps, segments=1):
    """The same by JAX, whose scan is one of scans that are computed again."""

    def step(h, kernel):
        return jnp.tanh(h @ kernel) * 1.01

    def loss(x, kernel):
        inner = jax.checkpoint(lambda h, _: (step(h, kernel), None))

        def segment(h, _):
            return jax.lax.scan(inner, h, None, length=steps // segments)

        h, _ = jax.lax.scan(jax.checkpoint(segment), x, None, length=segments)
        return jnp.sum(h * h)

    def run(x, kernel):
        value, found = jax.value_and_grad(loss, (0, 1))(x, kernel)
        return value, *found

    return run


def close(found, wanted, tolerance=1e-5):
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def divided(graph):
    """The graph with its loops in the smallest segments that are tried."""
    found = _with_other_loops(with_calls_opened(graph))
    (*_, smallest) = (other for other, divisions in found if divisions)
    return smallest


def test_a_loop_needs_memory_for_the_root_of_its_steps(planned):
    plain = tg.function(gradients(60)).memory(X, KERNEL)
    f = tg.function(gradients(60), memory_budget=plain.temporaries // 5)
    close(f(X, KERNEL), of_jax(60)(X, KERNEL))
    table = f.memory()
    assert table.temporaries <= plain.temporaries // 5
    assert 0 < table.again < 0.7 and not plain.loops
    (note,) = table.loops
    assert note.startswith("segments: scan of 60 steps, ") and "test_memory_budget_of_" in note
    assert note in str(table) and f"# {note}\n" in f.graph(X, KERNEL).as_text()


def test_it_needs_no_more_than_scans_of_scans_in_jax(planned):
    jitted = jax.jit(of_jax(64, segments=8)).lower(X, KERNEL).compile()
    budget = jitted.memory_analysis().temp_size_in_bytes
    f = tg.function(gradients(64), memory_budget=budget)
    assert f.memory(X, KERNEL).temporaries <= budget


def test_the_least_is_named_with_the_segments_of_the_loop():
    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        tg.function(gradients(60), memory_budget=8)(X, KERNEL)
    assert "(segments: scan of 60 steps, " in str(caught.value)


def looped(rows, x, kernel):
    """Rows in and out, and a number of steps that no segments divide."""
    with tg.GradientTape() as tape:
        tape.watch((rows, x, kernel))
        ends = tg.scan(lambda h, row: tg.sin(h @ kernel + row), rows, x, reverse=True)
        loss = tg.reduce_sum(ends * ends)
    return loss, ends, *tape.gradient(loss, (rows, x, kernel))


def twice(x, kernel):
    """A gradient, its sum, and the gradient of that, whose scans read each other's rows."""
    with tg.GradientTape() as outer:
        outer.watch(kernel)
        with tg.GradientTape() as tape:
            tape.watch(kernel)
            loss = loss_after(12, x, kernel)
        first = tape.gradient(loss, kernel)
        total = tg.reduce_sum(first * first)
    return total, first, outer.gradient(total, kernel)


def forward_over_reverse(x, kernel):
    with tg.autodiff.ForwardAccumulator(kernel, tg.ones_like(kernel)) as accumulator:
        first = gradients(12)(x, kernel)[-1]
    return first, accumulator.jvp(first)


def twice_in_jax(x, kernel):
    def total(kernel):
        first = of_jax(12)(x, kernel)[-1]
        return jnp.sum(first * first), first

    (value, first), second = jax.value_and_grad(total, has_aux=True)(kernel)
    return value, first, second


def forward_over_reverse_in_jax(x, kernel):
    return jax.jvp(lambda k: of_jax(12)(x, k)[-1], (kernel,), (jnp.ones_like(kernel),))


def looped_in_jax(rows, x, kernel):
    def loss(rows, x, kernel):
        def step(h, row):
            h = jnp.sin(h @ kernel + row)
            return h, h

        _, ends = jax.lax.scan(step, x, rows, reverse=True)
        return jnp.sum(ends * ends), ends

    (value, ends), found = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(rows, x, kernel)
    return value, ends, *found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "run, oracle, args",
    [
        (looped, looped_in_jax, (np.stack([X] * 7), X, KERNEL)),
        (twice, twice_in_jax, (X, KERNEL)),
        (forward_over_reverse, forward_over_reverse_in_jax, (X, KERNEL)),
        (gradients(13), of_jax(13), (X, KERNEL)),
        (gradients(13), of_jax(13), (X[:2], KERNEL)),  # products of all steps, now sums
    ],
    ids=["rows", "second order", "forward over reverse", "odd", "products"],
)
def test_segments_compute_the_same(run, oracle, args):
    found = divided(tg.function(run).graph(*args))
    close(backend.program(found)(*args), oracle(*args))


def test_a_recurrent_layer_keeps_neither_its_inputs_products_nor_its_factors():
    layer = tg.layers.LSTM(8)
    x = np.random.default_rng(2).normal(size=(2, 24, 4)).astype(np.float32)
    layer(x)

    def run(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            loss = tg.reduce_sum(layer(x) ** 2)
        return loss, *tape.gradient(loss, [x, *layer.trainable_variables])

    plain = tg.function(run)
    wanted = plain(x)
    concrete = plain.get_concrete_function(x)
    found = divided(concrete.graph)
    args = [x, *(variable.numpy() for variable in concrete.traced.variables)]
    close(backend.program(found)(*args), wanted)
    # The loops read rows of the input, which are an eighth as wide as the four gates together.
    shapes = {y.type.shape for node in found.nodes for y in node.outputs}
    assert not any(shape[-1:] == (32,) and len(shape) > 2 for shape in shapes)


@pytest.mark.parametrize("steps", [6, 7, 60, 61, 64, 1000])
@pytest.mark.parametrize("states", [1, 4])
def test_the_segments_are_about_as_long_as_the_root(steps, states):
    found = _best(steps, states, 1)
    assert 2 <= found <= steps // 2
    least = 2 * np.sqrt(steps * states)
    assert steps // found * states + found + steps % found <= 1.6 * least + states


def test_a_step_may_call_a_function_that_was_traced_for_any_size():
    vector = tg.TensorSpec([None])

    @tg.function(input_signature=[vector, vector])
    def step(h, x):
        return tg.tanh(h * tg.cast(tg.size(x), tg.float32) / 9.0 + x * tg.reduce_mean(h))

    def gradients_of_steps(h, rows):
        with tg.GradientTape() as tape:
            tape.watch((h, rows))
            loss = tg.reduce_sum(tg.foldl(step, rows, initializer=h) ** 2)
        return tape.gradient(loss, (h, rows))

    def loss_of_jax(h, rows):
        for x in rows:
            h = jnp.tanh(h * x.size / 9.0 + x * h.mean())
        return jnp.sum(h * h)

    h, rows = X[0], X[1:7]
    found = tg.function(gradients_of_steps, memory_budget=700)(tg.constant(h), tg.constant(rows))
    close(found, jax.grad(loss_of_jax, (0, 1))(h, rows), 1e-4)
