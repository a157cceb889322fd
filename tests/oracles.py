"""What tests share: numbers, JAX as the oracle, and errors that say what to do."""

import jax
import numpy as np
import pytest

import tracegraph as tg


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0):
    return tg.constant(numbers(*shape, seed=seed))


def by_jax(function, *xs):
    """A JAX function of arrays, transformed as it may be, in double precision."""
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(function)(*xs))


def assert_near(found, expected, tolerance=1e-10):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def raises(kind, words, call):
    """The message of the error that a call raises, which has a repair."""
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "fix: " in str(caught.value)
    return str(caught.value)
