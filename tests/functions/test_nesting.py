"""Functions that call functions: five hundred, one inside the other, as deep as Python's go.

Most runs try some of it on 80 functions, in a quarter of the room that Python gives.
"""

import copy
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.core import recursion_limit
from tracegraph.passes.simplify import dead_code

pytestmark = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="these Pythons let C call C 1,500 times only, which no setting of theirs changes",
)
LEVELS = 500
FACTOR = 1.001


def around(inner):
    return tg.function(lambda x: inner(x * FACTOR))


def nest(levels=LEVELS):
    """A function that calls a function that calls one, and so on; none is traced yet."""
    found = tg.function(lambda x: tg.sin(x))
    for _ in range(levels - 1):
        found = around(found)
    return found


def by_jax(x, levels=LEVELS):
    return jnp.sin(x * FACTOR ** (levels - 1))


@pytest.fixture(autouse=True)
def _the_limit_stays():
    limit = sys.getrecursionlimit()
    yield
    assert sys.getrecursionlimit() == limit and recursion_limit.recursion_limit() == limit


@pytest.fixture(params=[80, pytest.param(LEVELS, marks=pytest.mark.sweep)])
def levels(request, _the_limit_stays):
    """How many functions. Where they are few the recursion limit is so low that they do not fit."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(min(usual, 1000 * request.param // LEVELS + 180))
    yield request.param
    sys.setrecursionlimit(usual)


@pytest.fixture(name="x")
def _x():
    return tg.constant([0.3, -0.7])


def agrees(value, expected):
    np.testing.assert_allclose(value, expected, rtol=2e-4)


def test_five_hundred_functions_are_traced_by_one_call(x):
    sys.setrecursionlimit(1000)  # as Python has it, whatever the runner of tests set
    function = nest()
    agrees(function(x), by_jax(x.numpy()))
    assert len(list(function.get_concrete_function(x).graph.graphs())) == LEVELS


def test_branches_that_call_functions_with_branches(x):
    inner = tg.function(lambda x: tg.sin(x))

    def in_branch(inner):
        return tg.function(lambda x: tg.cond(x[0] > 0.0, lambda: inner(x * FACTOR), lambda: x))

    for _ in range(30):
        inner = in_branch(inner)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(450)
    try:
        found = inner(x)
    finally:
        sys.setrecursionlimit(usual)
    np.testing.assert_allclose(found, by_jax(x.numpy(), 31), rtol=1e-5)


def test_a_nest_of_loops_that_jax_cannot_lower_is_refused(x):
    inner = tg.sin

    def in_loop(inner):
        return lambda x: tg.foldl(lambda total, row: inner(total + row), x, tg.zeros([1]))

    for _ in range(40):
        inner = in_loop(inner)
    f = tg.function(inner)
    f.graph(x)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(450)
    try:
        for _ in range(2):
            with pytest.raises(RecursionError, match=r"nested 40 deep.* limit of 450") as caught:
                f(x)
            assert isinstance(caught.value, tg.errors.LoweringError)
    finally:
        sys.setrecursionlimit(usual)


def test_pruning_nested_whiles_takes_linear_time(x):
    inner = tg.sin

    def in_loop(inner):
        return lambda x: tg.while_loop(lambda y: y[0] > 9.0, lambda y: inner(y), x)

    for _ in range(7):
        inner = in_loop(inner)
    count = 0

    def counted(frame, event, _):
        nonlocal count
        count += frame.f_code is dead_code.__code__

    f = tg.function(lambda x: inner(x))
    sys.setprofile(counted)
    try:
        f.graph(x)
    finally:
        sys.setprofile(None)
    assert count < 400  # 7,000 where each loop prunes its body several times


def test_a_thread_traces_as_deep(x):
    results = []
    thread = threading.Thread(target=lambda: results.append(nest()(x).numpy()))
    thread.start()
    thread.join()
    agrees(results[0], by_jax(x.numpy()))


def slope(x, levels):
    return jax.grad(lambda x: by_jax(x, levels).sum())(x.numpy())


@pytest.mark.parametrize("is_traced", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_gradient_by_a_tape_outside(x, levels, is_traced):
    function = nest(levels)
    if is_traced:
        function(x)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    agrees(tape.gradient(y, x), slope(x, levels))


def test_gradient_by_a_tape_inside(x, levels):
    function = nest(levels)

    @tg.function
    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    agrees(gradient(x), slope(x, levels))


def test_second_derivative(x, levels):
    function = nest(levels)
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        g = tape.gradient(y, x)
    second = jax.grad(lambda x: jax.grad(lambda x: by_jax(x, levels).sum())(x).sum())(x.numpy())
    agrees(outer.gradient(g, x), second)


def test_jvp(x, levels):
    function = nest(levels)
    with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
        y = function(x)
    agrees(accumulator.jvp(y), slope(x, levels))


@pytest.mark.parametrize("of", ["jacobian", "batch_jacobian"])
def test_jacobians(x, levels, of):
    function, x = nest(levels), tg.expand_dims(x, 1)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    found = np.asarray(getattr(tape, of)(y, x)).reshape(2, -1)
    diagonal = np.diag(slope(x, levels)[:, 0]) if of == "jacobian" else slope(x, levels)
    agrees(found, diagonal)


def test_vectorized_map(x, levels):
    agrees(tg.vectorized_map(nest(levels), x), by_jax(x.numpy(), levels))


@pytest.mark.parametrize(
    "options",
    [{}, {"check_numerics": True}, {"check_bounds": True}, {"bucket_sizes": [4]}],
    ids=str,
)
def test_open_sizes_and_options(x, levels, options):
    function = nest(levels)
    spec = [tg.TensorSpec([None])]
    outer = tg.function(lambda x: function(x), input_signature=spec, **options)
    agrees(outer(x), by_jax(x.numpy(), levels))


def test_as_jax(x, levels):
    function = nest(levels).as_jax()
    agrees(jax.grad(lambda x: function(x).sum())(x.numpy()), slope(x, levels))


def test_saving_and_loading(x, levels, tmp_path):
    module = tg.Module()
    module.f = nest(levels)
    module.f.get_concrete_function(tg.TensorSpec([None]))
    tg.saved_model.save(module, tmp_path / "deep")
    loaded = tg.saved_model.load(tmp_path / "deep")
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(x)
    agrees(y, by_jax(x.numpy(), levels))
    agrees(tape.gradient(y, x), slope(x, levels))


def test_text_views_and_copies(x, levels):
    graph = nest(levels).get_concrete_function(x).graph
    text = graph.as_text()
    again = type(graph).from_text(text)
    again.verify()
    assert again.as_text() == text
    assert copy.deepcopy(graph) is graph
    views = (graph.summary, graph.to_dot, graph.to_json, graph.to_mermaid, graph.to_html)
    for view in (*views, graph._repr_html_, graph.to_networkx, graph.to_model_explorer):
        assert str(view())


def test_recursion_without_end_is_refused(levels):
    @tg.function
    def endless(x):
        return endless(x * 2.0)

    with pytest.raises(tg.errors.TraceError, match=r"(?s)recursion limit.*fix: call the inner"):
        endless(tg.constant(1.0))
    assert tg.executing_eagerly()


def test_recursion_of_plain_python_has_no_more_room_than_elsewhere(x):
    depths = []

    def plain(depth):
        depths[-1] = depth
        return plain(depth + 1)

    for run in (plain, tg.function(plain)):
        depths.append(0)
        with pytest.raises(RecursionError):
            run(1)
    assert depths[1] <= depths[0] + 10


def test_an_interrupt_leaves_the_limit_as_it_was():
    @tg.function
    def interrupted(x):
        raise KeyboardInterrupt

    function = interrupted
    for _ in range(50):
        function = around(function)
    with pytest.raises(KeyboardInterrupt):
        function(tg.constant(1.0))


# Parts of a call.


def test_a_result_without_a_derivative_does_not_hide_those_of_the_others():
    """The contrast has no rule, and no gradient of the other results needs one."""

    @tg.function
    def inner(x):
        return tg.sin(x) * x, tg.image.adjust_contrast(x, 2.0), tg.cos(x)

    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y, _, z = inner(x)
            total = tg.reduce_sum(3.0 * y + z)
        return tape.gradient(total, x)

    x = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(2, 2, 3)
    wanted = jax.grad(lambda x: (3.0 * jnp.sin(x) * x + jnp.cos(x)).sum())(x)
    np.testing.assert_allclose(slope(tg.constant(x)), wanted, rtol=1e-5)
