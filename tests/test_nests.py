"""Random nests of branches, loops and calls have the derivatives of the steps that they take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st

import tracegraph as tg
from tests.nests import Tie, in_python, programs, staged
from tracegraph.control.call import Call

WEIGHTS = np.array([1.0, -0.7])
DIRECTION = np.array([0.4, -1.0, 0.8, 0.3])
#: Where a program is differentiated: the lanes of a parallel loop, which go different ways.
LANES = np.array([[0.7, -0.4, 0.9, 0.2], [-1.1, 0.3, 0.1, -0.8], [0.2, 1.3, -0.6, 1.1]])


# As plain Python.


def by_python(program, z):
    """Value, integer, truth, gradient, jvp, the Hessian by DIRECTION, and the Jacobian."""

    last = in_python(program)
    state = last(z)

    def height(z):
        return jnp.sum(WEIGHTS * jnp.sin(last(z).x))

    gradient = jax.grad(height)
    slope, second = jax.jvp(gradient, (z,), (jnp.asarray(DIRECTION),))
    rows = [jax.grad(lambda z, i=i: last(z).x[i])(z) for i in range(2)]
    return {
        "state": state.x,
        "integer": state.k,
        "truth": state.b,
        "gradient": slope,
        "jvp": slope @ DIRECTION,
        "second": second,
        "jacobian": jnp.stack(rows),
    }


# Staged.


def found_for(final, z):
    """The same of a function that gives the last state, by each way there is."""

    def height(z):
        return tg.reduce_sum(WEIGHTS * tg.sin(final(z).x))

    def slope(z):
        with tg.GradientTape() as tape:
            tape.watch(z)
            y = height(z)
        return tape.gradient(y, z, unconnected_gradients="zero")

    def pushed(function):
        with tg.autodiff.ForwardAccumulator(z, tg.constant(DIRECTION)) as accumulator:
            y = function(z)
        return accumulator.jvp(y, unconnected_gradients="zero")

    with tg.GradientTape() as tape:
        tape.watch(z)
        turn = tg.reduce_sum(slope(z) * DIRECTION)
    backwards = tape.gradient(turn, z, unconnected_gradients="zero")
    with tg.GradientTape() as tape:
        tape.watch(z)
        state = final(z)
    return {
        "state": state.x,
        "integer": state.k,
        "truth": state.b,
        "gradient": slope(z),
        "jvp": pushed(height),
        "second": (backwards, pushed(slope)),
        "jacobian": tape.jacobian(state.x, z, unconnected_gradients="zero"),
    }


def in_lanes(final, rows):
    """States and gradients of all lanes at once."""

    def lane(z):
        with tg.GradientTape() as tape:
            tape.watch(z)
            state = final(z)
            y = tg.reduce_sum(WEIGHTS * tg.sin(state.x))
        gradient = tape.gradient(y, z, unconnected_gradients="zero")
        return {"state": state.x, "integer": state.k, "truth": state.b, "gradient": gradient}

    return tg.vectorized_map(lane, rows)


def agree(found, expected, tolerance=1e-10):
    for name, value in found.items():
        for one in value if isinstance(value, tuple) else (value,):
            wanted = np.asarray(expected[name])
            one = np.asarray(one)
            assert one.shape == wanted.shape, name
            size = 1.0 + np.max(np.abs(wanted)) if wanted.size else 1.0
            np.testing.assert_allclose(one, wanted, rtol=0, atol=tolerance * size, err_msg=name)


def known(program, rows):
    """What plain Python finds in all lanes. Rejects programs where rounding may decide."""
    with jax.enable_x64(True):
        try:
            return [by_python(program, jnp.asarray(z)) for z in rows]
        except Tie:
            reject()


def check(program, is_decorated):
    expected = known(program, LANES)
    final = staged(program)
    decorated = tg.function if is_decorated else lambda f: f
    rows = tg.constant(LANES)
    for z, wanted in zip(rows[:2], expected, strict=False):
        agree(decorated(lambda z: found_for(final, z))(z), wanted)
    lanes = decorated(lambda rows: in_lanes(final, rows))(rows)
    for i, wanted in enumerate(expected):
        agree({name: value[i] for name, value in lanes.items()}, wanted)


SETTINGS = settings(
    max_examples=24,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=list(HealthCheck),
)


@SETTINGS
@seed(12)
@given(programs, st.booleans())
def test_nests(program, is_decorated):
    check(program, is_decorated)
