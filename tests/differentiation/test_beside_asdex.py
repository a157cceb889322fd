"""Patterns and values of sparse Jacobians beside those of asdex, which has them from JAX's graphs.

asdex is not among the requirements of the tests: its newer versions ask for a newer JAX.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

asdex = pytest.importorskip("asdex")

N = 12
X = np.random.default_rng(4).uniform(0.5, 1.5, N)

#: A function by `tg` and by `jnp`, which differ in the names alone but where two are given.
FUNCTIONS = {
    "diagonal": lambda np_, x: np_.sin(x) * x,
    "neighbours": lambda np_, x: x[1:] * x[:-1] + x[1:] ** 2,
    "second differences": lambda np_, x: x[2:] - 2.0 * x[1:-1] + np_.exp(x[:-2]),
    "halves": lambda np_, x: x[: N // 2] * np_.tanh(x[N // 2 :]),
    "every third": lambda np_, x: np_.cos(x[::3]) * x[0],
    "turned round": lambda np_, x: x[::-1] * x,
    "blocks": lambda np_, x: np_.reshape(x, (3, 4)) * np_.reshape(x, (3, 4))[:, :1],
    "joined": lambda np_, x: (np_.concat if np_ is tg else jnp.concatenate)([x[:3] ** 2, x[6:]], 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_patterns_and_values_are_those_of_asdex(name):
    function = FUNCTIONS[name]
    x = tg.constant(X.astype(np.float32))
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = function(tg, x)
    found = tape.jacobian(y, x, sparse=True)
    sample = jnp.asarray(X, jnp.float32)
    theirs = asdex.jacobian_sparsity(lambda x: function(jnp, x), sample)
    expected = np.zeros(found.shape, bool)
    expected[np.asarray(theirs.rows), np.asarray(theirs.cols)] = True
    own = np.zeros(found.shape, bool)
    own[found.rows, found.cols] = True
    np.testing.assert_array_equal(own, expected)
    values = asdex.jacobian(lambda x: function(jnp, x), sample)(sample)
    dense = np.asarray(values.todense() if hasattr(values, "todense") else values)
    np.testing.assert_allclose(
        found.to_dense().numpy().reshape(found.shape), dense.reshape(found.shape), rtol=1e-5
    )
