"""Corners in which a program of JAX and ours could differ: beside JAX, at the very points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

SYMMETRIC = np.float32([[2.0, 0.3], [0.3, 1.0]])


def gradients(fn, x):
    """Ours, and JAX's."""
    tensor = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(tensor)
        y = tg.from_jax(fn)(tensor)
    return tape.gradient(y, tensor), jax.grad(fn)(jnp.asarray(x))


@pytest.mark.parametrize("name", ["inv", "slogdet", "eigvalsh"])
def test_eigenvalues_beside_another_decomposition(name):
    def fn(x):
        other = getattr(jnp.linalg, name)(x)
        other = other[1] if name == "slogdet" else other
        return jnp.sum(other) + jnp.sum(jnp.linalg.eigvalsh(x) ** 2)

    np.testing.assert_allclose(*gradients(fn, SYMMETRIC), 1e-5, 1e-6)
