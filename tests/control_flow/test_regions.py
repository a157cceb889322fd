"""A higher-order op is one class and one lowering rule: a throw-away `switch` goes everywhere.

Nothing in tracegraph knows it. What else asks about ops with graphs (tapes, explanations,
Jacobians, checked numerics, padding, bounds, text, saving, JAX) finds its answers in the class.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from lowering.program import graph_function
from lowering.rules import RULES
from tests.derived_graphs import jvp_graph, vjp_graph
from tracegraph.calls.call import Call
from tracegraph.control.branch import stacked_outputs
from tracegraph.control_passes.ranges import range_of
from tracegraph.core.types import int32
from tracegraph.errors import DTypeMismatch, Mismatch, NumericsError
from tracegraph.ir.op import OPS, Insertion, Op, Region
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import Cos, Sin
from tracegraph.passes.vectorise import vectorise


def widened(graph, batched, n):
    """The graph of n iterations, each with outputs of its own."""
    wide, flags = vectorise(graph, batched, n)
    return stacked_outputs(wide, flags, (True,) * len(flags), n)


def make_switch():
    class ThrowAwaySwitch(Op):
        """The outputs of the branch that `index` names: `(index, *xs)`."""

        branches: tuple[Graph, ...]

        takes_zero_cotangents = True

        @property
        def regions(self):
            inputs = tuple(range(1, 1 + len(self.branches[0].inputs)))
            outputs = tuple(range(len(self.branches[0].outputs)))
            return tuple(Region(branch, inputs, outputs) for branch in self.branches)

        @property
        def insertion(self):
            return Insertion(1, 1 + len(self.branches[0].inputs), len(self.branches[0].outputs))

        def with_regions(self, graphs, shared=0, carried=0):
            return ThrowAwaySwitch(tuple(graphs))

        def infer(self, index, *types):
            if index.dtype is not int32 or index.shape != ():
                raise DTypeMismatch(f"the index is {index}, and it must be one int32")
            first, *others = [Call(branch).infer(*types) for branch in self.branches]
            if any(found != first for found in others):
                raise Mismatch("the branches return different types")
            return first

        def vjp(self, *values):
            count = len(self.branches[0].outputs)
            gs, index, xs = values[:count], values[2 * count], values[2 * count + 1 :]
            seeds = [full(0, y.type) if g is None else g for g, y in zip(gs, values[count:])]
            found = ThrowAwaySwitch(tuple(map(vjp_graph, self.branches)))(index, *xs, *seeds)
            return None, *(found if isinstance(found, tuple) else (found,))

        def jvp(self, tangents, *values):
            index, *xs = values[len(self.branches[0].outputs) :]
            ts = [full(0, x.type) if t is None else t for t, x in zip(tangents[1:], xs)]
            pushed = [jvp_graph(branch) for branch in self.branches]
            pushed = [x.with_outputs(x.outputs[-len(self.branches[0].outputs) :]) for x in pushed]
            found = ThrowAwaySwitch(tuple(pushed))(index, *xs, *ts)
            return found if isinstance(found, tuple) else (found,)

        def batch(self, n, batched, index, *xs):
            assert not batched[0], "each iteration would take a branch of its own"
            wide = tuple(widened(branch, batched[1:], n) for branch in self.branches)
            outputs = ThrowAwaySwitch(wide)(index, *xs)
            is_one = len(wide[0].outputs) == 1
            return outputs, True if is_one else (True,) * len(wide[0].outputs)

    RULES[ThrowAwaySwitch] = lambda op, index, *xs: jax.lax.switch(
        index, [graph_function(branch) for branch in op.branches], *xs
    )
    return ThrowAwaySwitch


@pytest.fixture(scope="module")
def switch():
    kind = make_switch()
    yield kind
    del OPS[kind.name], RULES[kind]


def branch(function, shape=(3,), dtype=tg.float32):
    concrete = tg.function(function).get_concrete_function(tg.TensorSpec(shape, dtype))
    return concrete.graph


@pytest.fixture(scope="module")
def chosen(switch):
    """A function of an index and a vector: its sine, its cube, or three times what stops."""
    branches = (
        branch(lambda x: tg.sin(x) * x),
        branch(lambda x: x * x * x),
        branch(lambda x: 3.0 * tg.stop_gradient(x)),
    )
    op = switch(branches)
    return lambda index, x: op(tg.convert_to_tensor(index), tg.convert_to_tensor(x))


X = np.array([0.3, -1.2, 2.0], np.float32)


def by_jax(index, x):
    branches = [lambda x: jnp.sin(x) * x, lambda x: x**3, lambda x: 3.0 * jax.lax.stop_gradient(x)]
    return branches[index](x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_values_and_derivatives(chosen, index, is_decorated):
    def all_of(index, x):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = chosen(index, x)
            g = inner.gradient(y, x)
            total = tg.reduce_sum(g * g)
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            z = chosen(index, x)
        with tg.autodiff.ForwardAccumulator(x, tg.ones([3])) as accumulator:
            pushed = chosen(index, x)
        second = outer.gradient(total, x, unconnected_gradients="zero")
        return y, g, second, tape.jacobian(z, x), accumulator.jvp(pushed)

    run = tg.function(all_of) if is_decorated else all_of
    found = run(tg.constant(index, tg.int32), tg.constant(X))

    def gradient(x):
        return jax.grad(lambda x: by_jax(index, x).sum())(x)

    expected = (
        by_jax(index, X),
        gradient(X),
        jax.grad(lambda x: (gradient(x) ** 2).sum())(X),
        jax.jacobian(lambda x: by_jax(index, x))(jnp.asarray(X)),
        jax.jvp(lambda x: by_jax(index, x), (X,), (np.ones_like(X),))[1],
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_parallel_loops(chosen):
    rows = np.stack([X, X + 1.0])
    f = tg.function(lambda index, xs: tg.vectorized_map(lambda x: chosen(index, x), xs))
    for index in (0, 1, 2):
        found = f(tg.constant(index, tg.int32), tg.constant(rows))
        np.testing.assert_allclose(found, by_jax(index, rows), rtol=1e-5)


def test_explanations_enter_the_branches(switch):
    """No branch lets the derivative through: the line inside is told."""

    def stopped(x):
        return tg.stop_gradient(x) * 2.0  # here

    op = switch((branch(stopped), branch(lambda x: tg.round(x))))
    x = tg.constant(X)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = op(tg.constant(0), x)
    found = tape.explain(y, x)
    assert found.reason == "stop_gradient"
    assert found.source.line == stopped.__code__.co_firstlineno + 1


def test_explanations_know_that_one_branch_connects(chosen):
    x = tg.constant(X)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = chosen(2, x)
    assert tape.explain(y, x).reason == "connected"


def test_the_index_has_no_derivative(chosen):
    index, x = tg.constant(1), tg.constant(X)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = chosen(index, x)
    with pytest.warns(UserWarning, match="its gradient is None"):
        assert tape.gradient(y, index) is None
    assert tape.explain(y, index).reason == "dtype"


def test_rows_that_may_meet_are_refused(chosen):
    """The op says nothing of its rows, so no proof is to be had; the dense Jacobian is."""
    x = tg.constant(X[:, np.newaxis])
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = chosen(0, x[:, 0])[:, tg.newaxis]
    with pytest.raises(ValueError, match="throw_away_switch"):
        tape.batch_jacobian(y, x)
    expected = np.diag(np.cos(X) * X + np.sin(X))
    np.testing.assert_allclose(tape.jacobian(y, x)[:, 0, :, 0], expected, rtol=1e-5)


def test_text_and_saving(chosen, tmp_path):
    f = tg.function(
        chosen, input_signature=[tg.TensorSpec([], tg.int32), tg.TensorSpec([3], tg.float32)]
    )
    graph = f.get_concrete_function().graph
    assert Graph.from_text(graph.as_text()).as_text() == graph.as_text()
    module = tg.Module()
    module.f = f
    tg.saved_model.save(module, str(tmp_path / "model"))
    loaded = tg.saved_model.load(str(tmp_path / "model"))
    x = tg.constant(X)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(tg.constant(0), x)
    np.testing.assert_allclose(y, np.sin(X) * X, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), np.cos(X) * X + np.sin(X), rtol=1e-5)


def test_as_jax(chosen):
    spec = [tg.TensorSpec([3], tg.float32)]
    f = tg.function(lambda x: chosen(tg.constant(1), x), input_signature=spec).as_jax()
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(jnp.asarray(X)), 3 * X**2, rtol=1e-5)


def test_checked_numerics_name_the_line_in_the_branch(switch):
    def root(x):
        return tg.sqrt(x) + 1.0

    op = switch((branch(lambda x: x * 2.0), branch(root)))
    f = tg.function(lambda index, x: op(index, x), check_numerics=True)
    np.testing.assert_array_equal(f(tg.constant(0), tg.constant(X)), 2.0 * X)
    with pytest.raises(NumericsError, match=r"^sqrt: f32\[3\]") as caught:
        f(tg.constant(1), tg.constant(X))
    assert f".py:{root.__code__.co_firstlineno + 1}:" in str(caught.value)


def test_branches_on_padded_operands(switch):
    """What a branch combines along an open axis are the elements, and not the zeros behind them."""
    functions = (lambda x: x / tg.reduce_max(x), lambda x: x - tg.reduce_mean(x))
    op = switch(tuple(branch(function, [None]) for function in functions))
    spec = [tg.TensorSpec([], tg.int32), tg.TensorSpec([None], tg.float32)]
    f = tg.function(lambda index, x: op(index, x), spec, bucket_sizes="powers_of_two")
    x = -np.abs(X)
    for index, wanted in enumerate((x / x.max(), x - x.mean())):
        np.testing.assert_allclose(f(tg.constant(index), tg.constant(x)), wanted, rtol=1e-6)


def test_bounds_are_those_of_all_branches(switch):
    functions = (lambda n: n + 1, lambda n: n * 2)
    op = switch(tuple(branch(function, [], tg.int32) for function in functions))
    assert range_of(op(tg.constant(0), tg.constant(3))) == (4, 6)


def test_a_rewrite_reaches_every_branch():
    def one_of_two(i, x):
        return tg.switch_case(i, [lambda: tg.sin(x), lambda: tg.sin(x) * 2.0])

    graph = tg.function(one_of_two).get_concrete_function(tg.constant(0), tg.constant(X)).graph
    found = rewritten(graph, lambda _, op: Cos() if isinstance(op, Sin) else op)
    assert found.as_text() == graph.as_text().replace(" sin(", " cos(")


def test_views(chosen):
    f = tg.function(lambda x: chosen(tg.constant(1), x))
    graph = f.get_concrete_function(tg.TensorSpec([3], tg.float32)).graph
    assert "throw_away_switch" in graph.as_text()
    assert "throw_away_switch" in graph.to_html()
    assert graph.summary()
