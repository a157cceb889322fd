"""Random nests of transformations, against the same nests in JAX.

A nest begins with a function of a vector and wraps it three times: in derivatives, loops, branches,
custom gradients, files, and functions of JAX. Its value and its gradient are compared.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

SIZE = 4
MATRIX = np.random.default_rng(0).normal(size=(SIZE, SIZE)) * 0.4
ORDER = [3, 1, 0, 0]

#: Functions from vectors to vectors, of tensors and of JAX arrays.
FUNCTIONS = {
    "sin": (lambda x: tg.sin(x) * x + 1.0, lambda x: jnp.sin(x) * x + 1.0),
    "matvec": (lambda x: tg.linalg.matvec(MATRIX, tg.tanh(x)), lambda x: MATRIX @ jnp.tanh(x)),
    "cumsum": (lambda x: tg.cumsum(x) * 0.5, lambda x: jnp.cumsum(x) * 0.5),
    "where": (
        lambda x: tg.where(x > 0.1, x * x, tg.exp(x) - 0.9),
        lambda x: jnp.where(x > 0.1, x * x, jnp.exp(x) - 0.9),
    ),
    "reverse": (lambda x: tg.reverse(x, [0]) * x, lambda x: x[::-1] * x),
    "sort": (lambda x: tg.sort(x) + tg.roll(x, 1, 0), lambda x: jnp.sort(x) + jnp.roll(x, 1)),
    "gather": (lambda x: tg.gather(x, ORDER) * x, lambda x: x[jnp.array(ORDER)] * x),
}


def scanned(f, g):
    steps = np.linspace(0.0, 1.0, 3)
    return (
        lambda x: tg.scan(lambda s, t: f(s) * 0.5 + t, steps, x)[-1],
        lambda x: jax.lax.scan(lambda s, t: (g(s) * 0.5 + t, None), x, steps)[0],
    )


def mapped(f, g):
    return (
        lambda x: tg.map_fn(lambda s: tg.reduce_sum(f(x * s)), x),
        lambda x: jax.lax.map(lambda s: jnp.sum(g(x * s)), x),
    )


def vectorised(f, g):
    return (
        lambda x: tg.reduce_sum(tg.vectorized_map(f, tg.stack([x, x * 0.5, -x])), 0) * 0.3,
        lambda x: jnp.sum(jax.vmap(g)(jnp.stack([x, x * 0.5, -x])), 0) * 0.3,
    )


def branched(f, g):
    return (
        lambda x: tg.cond(tg.reduce_sum(x) > 0.3, lambda: f(x), lambda: x * 2.0),
        lambda x: jax.lax.cond(jnp.sum(x) > 0.3, g, lambda x: x * 2.0, x),
    )


def staged(f, g):
    @tg.function
    def own(x):
        for _ in tg.range(3):
            if tg.reduce_sum(x) > 0.0:
                x = f(x) * 0.5
            else:
                x = x - 0.5
        return x

    def one_step(x, _):
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: g(x) * 0.5, lambda x: x - 0.5, x), None

    return own, lambda x: jax.lax.scan(one_step, x, length=3)[0]


def with_custom_gradient(f, g):
    """At every order: JAX's forward calls the function with the chosen gradient itself."""
    own = tg.custom_gradient(lambda x: (f(x), lambda dy: 0.7 * dy * tg.cos(x)))
    other = jax.custom_vjp(lambda x: g(x))
    other.defvjp(lambda x: (other(x), x), lambda x, dy: (0.7 * dy * jnp.cos(x),))
    return own, other


def gradient(f, g):
    return (
        tg.grad(lambda x: tg.reduce_sum(f(x) * tg.sin(x))),
        jax.grad(lambda x: jnp.sum(g(x) * jnp.sin(x))),
    )


def tangent(f, g):
    return (
        lambda x: tg.jvp(f, (x,), (tg.cos(x),))[1],
        lambda x: jax.jvp(g, (x,), (jnp.cos(x),))[1],
    )


def jacobian_product(f, g):
    return (
        lambda x: tg.linalg.matvec(tg.jacobian(f)(x), x) * 0.5,
        lambda x: jax.jacrev(g)(x) @ x * 0.5,
    )


def batch_jacobian_product(f, g):
    def own(x):
        with tg.GradientTape() as tape:
            rows = tg.stack([x, x + 0.3])
            tape.watch(rows)
            y = tg.vectorized_map(f, rows)
        jacobians = tape.batch_jacobian(y, rows, unconnected_gradients="zero")
        return tg.reduce_sum(tg.linalg.matvec(jacobians, rows), 0) * 0.4

    def other(x):
        rows = jnp.stack([x, x + 0.3])
        return jnp.einsum("bij,bj->i", jax.vmap(jax.jacrev(g))(rows), rows) * 0.4

    return own, other


def saved(f, g):
    module = tg.Module()
    module.f = tg.function(f, input_signature=[tg.TensorSpec([SIZE], tg.float64)])
    tg.saved_model.save(module, "nest")
    return tg.saved_model.load("nest").f, g


def through_jax(f, g):
    return tg.from_jax(tg.function(f).as_jax()), g


def in_function(f, g):
    return tg.function(f), g


def recomputed(f, g):
    return tg.recompute_grad(f), g


WRAPPERS = (
    scanned,
    mapped,
    vectorised,
    branched,
    staged,
    with_custom_gradient,
    gradient,
    tangent,
    jacobian_product,
    batch_jacobian_product,
    saved,
    through_jax,
    in_function,
    recomputed,
)


@pytest.mark.filterwarnings("ignore:.* calls of a newly made:UserWarning")  # one for each nest
@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(60))
def test_nests_agree_with_jax(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = random.Random(seed)
    f, g = FUNCTIONS[drawn.choice([*FUNCTIONS])]
    names = drawn.sample(WRAPPERS, 3)
    if with_custom_gradient in names:  # JAX has no forward mode of one
        names = [scanned if wrap is tangent else wrap for wrap in names]
    x = np.random.default_rng(seed).normal(size=SIZE) * 0.6
    with jax.enable_x64(True):
        for wrap in names:
            f, g = wrap(f, g)
        slope_of = jax.grad(lambda x: jnp.sum(g(x) * jnp.cos(x)))
        value, slope = jax.jit(lambda x: (g(x), slope_of(x)))(x)
    own = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(own)
        y = f(own)
        total = tg.reduce_sum(y * tg.cos(own))
    found = tape.gradient(total, own, unconnected_gradients="zero")
    told = " of ".join(wrap.__name__ for wrap in reversed(names))
    np.testing.assert_allclose(y.numpy(), value, rtol=1e-8, atol=1e-10, err_msg=told)
    np.testing.assert_allclose(found.numpy(), slope, rtol=1e-7, atol=1e-9, err_msg=told)
