"""Random nests of branches, loops and calls have the derivatives of the steps that they take."""

import gc
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings, strategies as st

import tracegraph as tg
from tests.nests import (
    START,
    Staged,
    State,
    Tie,
    first_order_programs,
    in_python,
    programs,
    programs_with_variable,
    shallow_programs,
    shallow_programs_with_variable,
    staged,
)
from tracegraph import nest
from tracegraph.calls.call import Call
from tracegraph.eager import pending

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]

SPEC = tg.TensorSpec([4], tg.float64)
WEIGHTS = np.array([1.0, -0.7])
DIRECTION = np.array([0.4, -1.0, 0.8, 0.3])
#: Where a program is differentiated: the lanes of a parallel loop, which go different ways.
LANES = np.array([[0.7, -0.4, 0.9, 0.2], [-1.1, 0.3, 0.1, -0.8], [0.2, 1.3, -0.6, 1.1]])


# As plain Python.


def by_python(program, z):
    """Value, integer, truth, gradient, jvp, the Hessian by DIRECTION, and the Jacobian."""

    last = in_python(program)
    state, variable = last(z)

    def height(*given):
        return jnp.sum(WEIGHTS * jnp.sin(last(*given)[0].x))

    gradient = jax.grad(height)
    slope, second = jax.jvp(gradient, (z,), (jnp.asarray(DIRECTION),))
    rows = [jax.grad(lambda z, i=i: last(z)[0].x[i])(z) for i in range(2)]
    return {
        "state": state.x,
        "integer": state.k,
        "truth": state.b,
        "gradient": slope,
        "jvp": slope @ DIRECTION,
        "second": second,
        "jacobian": jnp.stack(rows),
        "variable": variable,
        "by variable": jax.grad(height, 1)(z, jnp.asarray(START)),
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


# Ways to one program.


def as_it_is(program, folder):
    return staged(program)


def through_text(program, folder):
    final = staged(program)
    graph = tg.function(lambda z: tuple(final(z))).get_concrete_function(SPEC).graph
    text = graph.as_text()
    parsed = tg.Graph.from_text(text)
    assert parsed.as_text() == text
    return lambda z: State(*Call(parsed)(z))


def through_files(program, folder):
    final, module = staged(program), tg.Module()
    module.final = tg.function(lambda z: tuple(final(z)), input_signature=[SPEC])
    tg.saved_model.save(module, folder)
    loaded = tg.saved_model.load(folder)
    return lambda z: State(*loaded.final(z))


WAYS = {"as it is": as_it_is, "text": through_text, "files": through_files}


def check(program, way, is_decorated):
    """The derivatives of a program in each lane, alone and in a parallel loop over all lanes."""
    expected = known(program, LANES)
    decorated = tg.function if is_decorated else lambda f: f
    rows = tg.constant(LANES)
    with tempfile.TemporaryDirectory() as folder:
        final = WAYS[way](program, folder)
        derivatives = decorated(lambda z: found_for(final, z))
        for z, wanted in zip(rows if is_decorated else rows[:1], expected, strict=False):
            agree(derivatives(z), wanted)
        lanes = decorated(lambda rows: in_lanes(final, rows))(rows)
    for i, wanted in enumerate(expected):
        agree({name: value[i] for name, value in lanes.items()}, wanted)


def check_derivatives_as_text(program):
    """All derivatives at once, as a graph that was printed and parsed."""
    expected = known(program, LANES[:1])
    final = staged(program)
    derivatives = tg.function(lambda z: nest.flatten(found_for(final, z)))
    graph = derivatives.get_concrete_function(SPEC).graph
    found = Call(tg.Graph.from_text(graph.as_text()))(tg.constant(LANES[0]))
    names = ("gradient", "integer", "jacobian", "jvp", "second", "second", "state", "truth")
    for name, value in zip(names, found, strict=True):
        agree({name: value}, expected[0])


def check_with_variable(program, is_decorated):
    """The derivatives of a program that reads and assigns a Variable, and its last value."""
    expected = known(program, LANES[:2])
    world = Staged()
    final = staged(program, world)

    def begun(z):
        world.assign(START)
        return final(z)

    def by_variable(z):
        with tg.GradientTape() as tape:
            y = tg.reduce_sum(WEIGHTS * tg.sin(begun(z).x))
        found = tape.gradient(y, world.variable, unconnected_gradients="zero")
        return found, world.read()

    decorated = tg.function if is_decorated else lambda f: f
    derivatives = decorated(lambda z: found_for(begun, z))
    by_variable = decorated(by_variable)
    rows = tg.constant(LANES[:2])
    for z, wanted in zip(rows if is_decorated else rows[:1], expected, strict=False):
        agree(derivatives(z), wanted)
        agree(dict(zip(("by variable", "variable"), by_variable(z), strict=True)), wanted)


def check_by_jax(program):
    """The derivatives of `as_jax`, taken by JAX."""
    expected = known(program, LANES)
    final = staged(program)
    function = tg.function(lambda z: tuple(final(z)), input_signature=[SPEC]).as_jax()

    def height(z):
        return jnp.sum(WEIGHTS * jnp.sin(function(z)[0]))

    def all_of(z):
        gradient, second = jax.jvp(jax.grad(height), (z,), (jnp.asarray(DIRECTION),))
        found = {"state": function(z)[0], "gradient": gradient, "second": second}
        return found | {"jacobian": jax.jacobian(lambda z: function(z)[0])(z)}

    with jax.enable_x64(True):
        lanes = jax.jit(jax.vmap(all_of))(jnp.asarray(LANES))
    for i, wanted in enumerate(expected):
        agree({name: value[i] for name, value in lanes.items()}, wanted)


def check_pattern(program):
    """The sparse Jacobian, whose pattern must have all that is not 0."""
    expected = known(program, LANES[:1])
    z = tg.constant(LANES[0])
    with tg.GradientTape() as tape:
        tape.watch(z)
        x = staged(program)(z).x
    found = tape.jacobian(x, z, sparse=True, unconnected_gradients="zero")
    agree({"jacobian": found.to_dense()}, expected[0])


def fixed(count, number):
    """A test of so many programs, the same ones each time."""

    def decorate(function):
        usual = settings(
            max_examples=count,
            phases=(Phase.generate, Phase.shrink),
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        )
        return usual(seed(number)(function))

    return decorate


ways = st.sampled_from([*WAYS])


ALL_NESTS = [("as it is", programs, 3, 54), ("text", programs, 3, 51), ("files", programs, 3, 52)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("way", "of", "count", "number"),
    [
        ("as it is", shallow_programs, 2, 54),
        ("text", programs, 2, 51),
        ("files", programs, 2, 52),
        *(pytest.param(*case, marks=pytest.mark.sweep) for case in ALL_NESTS),
    ],
)
def test_nests(way, of, count, number):
    run = given(of, st.booleans())(lambda program, decorated: check(program, way, decorated))
    fixed(count, number)(run)()


@pytest.mark.sweep
@fixed(10, 12)
@given(programs, ways, st.booleans())
def test_more_nests(program, way, is_decorated):
    check(program, way, is_decorated)


@fixed(2, 13)
@given(shallow_programs)
def test_derivatives_as_text(program):
    check_derivatives_as_text(program)


@fixed(2, 14)
@given(shallow_programs)
def test_derivatives_by_jax(program):
    check_by_jax(program)


@fixed(2, 32)
@given(shallow_programs_with_variable, st.booleans())
def test_nests_with_a_variable(program, is_decorated):
    check_with_variable(program, is_decorated)


@pytest.mark.sweep
@pytest.mark.parametrize(("count", "number"), [(3, 32), (4, 19)])
def test_more_nests_with_a_variable(count, number):
    fixed(count, number)(given(programs_with_variable, st.booleans())(check_with_variable))()


@fixed(4, 15)
@given(first_order_programs)
def test_patterns(program):
    check_pattern(program)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("check", "of", "count", "number"),
    [
        (check_derivatives_as_text, programs, 2, 13),
        (check_by_jax, programs, 3, 14),
        (check_pattern, first_order_programs, 10, 15),
    ],
)
def test_more_derivatives(check, of, count, number):
    fixed(count, number)(given(of)(check))()


# Two thousand, in pieces that let go of their programs.


@pytest.fixture
def few_programs(monkeypatch):
    """What top-level code compiles is dropped with the test: each kernel has pages of its own, of
    which a process has 65,530."""
    monkeypatch.setattr(pending, "_programs", pending._Programs(64))
    yield
    gc.collect()


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("number", range(40))
def test_many_nests(number):
    fixed(50, 1000 + number)(given(programs, ways, st.booleans())(check))()


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("number", range(8))
def test_many_nests_with_a_variable(number):
    fixed(50, 2000 + number)(given(programs_with_variable, st.booleans())(check_with_variable))()


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("check", [check_derivatives_as_text, check_by_jax, check_pattern])
def test_many_derivatives(check, number):
    fixed(50, 3000 + number)(given(first_order_programs)(check))()
