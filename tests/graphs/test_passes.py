"""Passes: functions Graph -> Graph that keep graphs valid. Graphs are compared as text."""

import contextlib
import io
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from lowering.program import Program
from tests.derived_graphs import jvp_graph, vjp_graph
from tracegraph.calls import top_level_calls
from tracegraph.calls.call import Call, backward_graph, residual_plan
from tracegraph.core.types import TensorType
from tracegraph.errors import ShapeError
from tracegraph.ir.builder import Builder
from tracegraph.passes.simplify import dead_code, share, simplify
from tracegraph.passes.sparsity import pattern
from tracegraph.passes.specialise import specialise
from tracegraph.passes.vectorise import vectorise

#: The same code is decorated again for each case.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last 5 calls")


def parsed(text):
    return tg.Graph.from_text(textwrap.dedent(text))


def same(graph, text):
    """Checks that the graph reads as `text` and is valid."""
    graph.verify()
    assert graph.as_text().strip() == textwrap.dedent(text).strip()


REPEATED = """
    graph @f(%x: f32[3]) -> (f32[3], f32[3]) {
      %0 = sin(%x)    : f32[3]
      %1 = sin(%x)    : f32[3]
      %2 = mul(%0, %x) : f32[3]
      %3 = mul(%x, %1) : f32[3]
      %4 = exp(%3)    : f32[3]
      return %2, %3
    }
    """


def test_share_makes_each_value_once():
    same(
        simplify(parsed(REPEATED)),
        """
        graph @f(%x: f32[3]) -> (f32[3], f32[3]) {
          %0 = sin(%x)     : f32[3]
          %1 = mul(%0, %x) : f32[3]
          return %1, %1
        }
        """,
    )


def test_dead_code_keeps_what_is_used():
    graph = dead_code(parsed(REPEATED))
    assert [node.op.name for node in graph.nodes] == ["sin", "sin", "mul", "mul"]
    graph.verify()


def test_passes_leave_their_graph_alone():
    graph = parsed(REPEATED)
    before = graph.as_text()
    for run in (share, dead_code, simplify, vjp_graph, jvp_graph):
        run(graph)
    assert graph.as_text() == before


FOLDED = {
    "one is a neutral factor": ("mul(%x, %1)", "1.0", "%x"),
    "minus one turns the sign": ("mul(%x, %1)", "-1.0", "neg"),
    "zero is a neutral term": ("add(%x, %1)", "0.0", "%x"),
    "zero less x turns the sign": ("sub(%1, %x)", "0.0", "neg"),
    "division by one": ("div(%x, %1)", "1.0", "%x"),
}


@pytest.mark.parametrize("name", FOLDED)
def test_algebra(name):
    expression, value, expected = FOLDED[name]
    graph = simplify(
        parsed(
            f"""
            graph @f(%x: f32[3]) -> (f32[3]) {{
              %0 = constant<value=f32 {value}>() : f32[]
              %1 = broadcast_to<shape=[3], axes=[]>(%0) : f32[3]
              %2 = {expression} : f32[3]
              return %2
            }}
            """
        )
    )
    if expected == "%x":
        assert not graph.nodes and graph.outputs == graph.inputs
    else:
        assert [node.op.name for node in graph.nodes] == [expected]


def test_zero_times_x_is_kept_since_x_may_be_infinite():
    graph = simplify(
        parsed(
            """
            graph @f(%x: f32[]) -> (f32[]) {
              %0 = constant<value=f32 0.0>() : f32[]
              %1 = mul(%x, %0) : f32[]
              return %1
            }
            """
        )
    )
    (result,) = Program(graph)(np.float32(np.inf))
    assert np.isnan(result)


def nth_derivative(order):
    def function(x, left):
        if left == 0:
            return tg.sin(tg.tanh(x) * x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x, left - 1)
        return tape.gradient(y, x)

    return tg.function(lambda x: function(x, order))


def nth_derivative_by_jax(order):
    def function(x):
        return jnp.sin(jnp.tanh(x) * x)

    for _ in range(order):
        function = jax.grad(function)
    return function


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", range(1, 8))
def test_high_orders_are_right(order):
    x = 0.5
    found = nth_derivative(order)(tg.constant(x, tg.float64)).numpy()
    with jax.enable_x64(True):
        expected = nth_derivative_by_jax(order)(jnp.float64(x))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_seventh_derivative_stays_small():
    graph = nth_derivative(7).get_concrete_function(tg.TensorSpec([])).graph
    assert len(graph.nodes) <= 260


def test_the_seventh_derivative_in_reverse_stays_small_too():
    """A path through a sum is not elementwise, so every order is built in reverse."""

    def function(x, left):
        if left == 0:
            return tg.reduce_sum(tg.sin(tg.tanh(x) * x))
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x, left - 1)
        return tape.gradient(y, x)

    graph = tg.function(lambda x: function(x, 4)).graph(tg.TensorSpec([5]))
    assert len(graph.nodes) <= 400


@pytest.mark.parametrize("steps", [1_000, pytest.param(5_000, marks=pytest.mark.sweep)])
def test_thousands_of_nodes_do_not_recurse(steps):
    """Python gives up at a depth of a thousand calls."""

    @tg.function
    def chain(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(steps):
                y = tg.sin(y) * 1.01
        return tape.gradient(y, x)

    graph = chain.get_concrete_function(tg.TensorSpec([2])).graph
    assert len(graph.nodes) > 2 * steps
    graph.verify()
    assert tg.Graph.from_text(graph.as_text()).as_text() == graph.as_text()


# Specialisation.


def polymorphic():
    f = tg.function(lambda x: tg.reduce_mean(tg.reshape(x, [-1, 2]) ** 2, axis=0))
    return f.get_concrete_function(tg.TensorSpec(["n", 4])).graph


def test_specialise_replaces_sizes():
    graph = polymorphic()
    small = specialise(graph, [TensorType(tg.float32, (3, 4))])
    small.verify()
    assert small.is_static and not graph.is_static
    assert str(small.nodes[0].outputs[0].type) == "f32[6,2]"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (y,) = Program(small)(x)
    np.testing.assert_allclose(y, (x.reshape(-1, 2) ** 2).mean(0), rtol=1e-6)


def test_specialise_is_kept_on_the_graph():
    graph = polymorphic()
    types = [TensorType(tg.float32, (3, 4))]
    assert specialise(graph, types) is specialise(graph, types)
    assert specialise(graph, graph.input_types) is graph


def test_specialise_fails_at_the_node_that_assumed_too_much():
    f = tg.function(lambda x, y: x + y)
    graph = f.get_concrete_function(tg.TensorSpec(["n"]), tg.TensorSpec(["m"])).graph
    with pytest.raises(ShapeError, match=r"test_passes\.py"):
        specialise(graph, [TensorType(tg.float32, (3,)), TensorType(tg.float32, (4,))])


# Calls.


@tg.function
def inner(x, w):
    return tg.tanh(x * w) * w


def calls_in(graph):
    return [node for node in graph.nodes if isinstance(node.op, Call)]


def test_nested_functions_stay_calls_and_are_differentiated_once():
    @tg.function
    def outer(x, w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            y = inner(inner(inner(x, w), w), w)
        return y, tape.gradient(y, w)

    graph = outer.get_concrete_function(tg.TensorSpec([3]), tg.TensorSpec([3])).graph
    graph.verify()
    bodies = [node.op.body for node in calls_in(graph)]
    assert len(bodies) == 6
    forward, backward = set(bodies[:3]), set(bodies[3:])
    assert len(forward) <= 2 and len(backward) <= 2


def test_backward_graphs_take_residuals_and_compute_no_primal_anew():
    graph = inner.get_concrete_function(tg.TensorSpec([3]), tg.TensorSpec([3])).graph
    plan = residual_plan(graph)
    plan.forward.verify()
    assert residual_plan(plan.forward).forward is plan.forward
    assert len(plan.forward.outputs) > len(graph.outputs)


def test_a_value_kept_for_its_size_can_have_a_cotangent():
    """A gradient in the caller may give one to each result of a forward form."""
    v = tg.Variable([1.0, 2.0])

    @tg.function
    def f(x):
        v.assign(tg.py_function(lambda q: q * 2 + 1, [v], tg.TensorSpec([None])))
        tg.print(v, output_stream=io.StringIO())
        return tg.stop_gradient(v) * 2.0

    forward = residual_plan(f.get_concrete_function(tg.TensorSpec([2])).graph).forward
    results = [y.type for y in forward.outputs]
    assert any(not type.is_static for type in results)
    given = tuple(type.dtype.is_differentiable for type in results)
    backward, _ = backward_graph(forward, given)
    backward.verify()


def gated(h, row):
    z = tg.sigmoid(row)
    return z * h + (1.0 - z) * tg.tanh(0.25 * h + row)


def test_a_backward_graph_makes_numbers_and_arithmetic_again_of_what_is_kept():
    """Of each step the state, the gate and the candidate are kept, neither `1 - z` nor 0.25."""

    def loss(xs, h):
        with tg.GradientTape() as tape:
            tape.watch(xs)
            y = tg.reduce_sum(tg.foldl(gated, xs, h))
        return tape.gradient(y, xs)

    f = tg.function(loss)
    xs, h = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
    (forward, _) = [node for node in f.graph(xs, h).nodes if node.op.name == "scan"]
    assert [str(y.type) for y in forward.outputs] == ["f32[3]", *["f32[4,3]"] * 3]

    def by_jax(xs, h):
        step = lambda h, x: (  # noqa: E731
            jax.nn.sigmoid(x) * h + (1 - jax.nn.sigmoid(x)) * jnp.tanh(0.25 * h + x),
            None,
        )
        return jax.lax.scan(step, h, xs)[0].sum()

    np.testing.assert_allclose(f(xs, h), jax.grad(by_jax)(xs, h), rtol=1e-5)
    hessian = jax.jacobian(jax.grad(by_jax))(xs, h)
    of_loss = tg.jacobian(lambda xs: loss(xs, tg.constant(h)))
    np.testing.assert_allclose(of_loss(tg.constant(xs)), hessian, rtol=1e-4, atol=1e-6)


def test_unused_outputs_of_calls_are_dropped():
    @tg.function
    def two(x):
        return tg.sin(x), tg.exp(x)

    @tg.function
    def outer(x):
        return two(x)[0] + 1.0

    graph = outer.get_concrete_function(tg.TensorSpec([3])).graph
    (call,) = calls_in(graph)
    assert [node.op.name for node in call.op.body.nodes] == ["sin"]


def test_vectorise_widens_only_what_depends_on_the_loop():
    with Builder("f") as builder:
        x = builder.input(TensorType(tg.float32, (3,)), "x")
        w = builder.input(TensorType(tg.float32, (3,)), "w")
        graph = builder.finish([tg.sin(w) * x, tg.exp(w)])
    wide, flags = vectorise(graph, (True, False), 5)
    wide.verify()
    assert flags == (True, False)
    types = {node.op.name: str(node.outputs[0].type) for node in wide.nodes}
    assert types["sin"] == types["exp"] == "f32[3]" and types["mul"] == "f32[5,3]"


@pytest.mark.parametrize("derive", [vjp_graph, jvp_graph], ids=["vjp", "jvp"])
def test_derivatives_of_a_graph_that_returns_a_value_twice(derive):
    with Builder("f") as builder:
        x = builder.input(TensorType(tg.float32, ()), "x")
        y = x * x
        graph = builder.finish([y, y])
    derived = derive(graph)
    derived.verify()
    inputs = [np.float32(3.0), *([np.float32(1.0)] * (len(derived.inputs) - 1))]
    assert float(Program(derived)(*inputs)[-1]) == (12.0 if derive is vjp_graph else 6.0)


def test_a_pass_that_fails_leaves_no_nodes_behind():
    image = tg.constant(np.ones((1, 2, 2, 1), np.float32))

    @tg.function
    def f(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tg.image.adjust_contrast(tg.sin(x), 2.0)
            z = tg.reduce_sum(x * x)
        with contextlib.suppress(LookupError):
            tape.gradient(y, x)
        return tape.gradient(z, x)

    np.testing.assert_array_equal(f(image).numpy(), 2.0 * np.ones((1, 2, 2, 1)))
    names = {node.op.name for node in f.graph(image).nodes}
    assert "cos" not in names


# Patterns.


def test_pattern_of_a_gather_with_known_indices_is_exact():
    with Builder("f") as builder:
        x = builder.input(TensorType(tg.float32, (4,)), "x")
        graph = builder.finish([tg.gather(x, tg.constant([2, 0, 2]) + 1)])
    (found,) = pattern(graph)
    expected = np.zeros((3, 4), bool)
    expected[[0, 1, 2], [3, 1, 3]] = True
    np.testing.assert_array_equal(found.to_dense(), expected)


def test_pattern_without_differentiable_inputs():
    with Builder("f") as builder:
        x = builder.input(TensorType(tg.int32, (4,)), "x")
        graph = builder.finish([tg.cast(x, tg.float32)])
    assert pattern(graph)[0].to_dense().shape == (4, 0)


# Gradients that are derived once per structure.


def slope_of(c, factor):
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = tg.ones([]) * x * c + tg.fill([], factor) * x
    return tape.gradient(y, x).numpy()


def test_derived_gradients_tell_constants_apart():
    assert [slope_of(3.0, 1.0), slope_of(5.0, 1.0), slope_of(3.0, 2.0)] == [4.0, 6.0, 5.0]


def test_derived_gradients_are_derived_once():
    def step():
        x = tg.Variable([1.0, 2.0])
        with tg.GradientTape() as tape:
            y = tg.reduce_sum(tg.exp(x) * tg.sin(x) * 7.0)
        return tape.gradient(y, x).numpy()

    step()
    count = len(top_level_calls._gradients)
    for _ in range(5):
        step()
    assert len(top_level_calls._gradients) == count


def test_what_algebra_makes_stands_on_the_line_of_the_node():
    @tg.function
    def turned(x):
        return -x * x

    lines = {node.source.text for node in turned.graph(tg.ones([2])).nodes}
    assert lines == {"return -x * x"}


STEEP = {"log": tg.math.log, "log1p": tg.math.log1p, "sqrt": tg.sqrt, "rsqrt": tg.math.rsqrt}


@pytest.mark.parametrize("name", STEEP)
def test_a_steep_gradient_asks_one_question(name):
    """Whether the cotangent is 0; and none where it is known."""

    def names(function):
        graph = tg.function(lambda x: tg.grad(function)(x)).graph(tg.TensorSpec([3]))
        return [node.op.name for node in graph.nodes if "vjp" in node.source.roles]

    asked = {"equal", "is_finite", "logical_not", "logical_and", "select"}
    asked |= {"mul_no_nan", "steep_div"}
    found = names(lambda x: tg.reduce_sum(tg.exp(STEEP[name](x))))
    wanted = "mul_no_nan" if name == "rsqrt" else "steep_div"
    assert [op for op in found if op in asked] == [wanted]
    assert asked.isdisjoint(names(lambda x: tg.reduce_sum(STEEP[name](x))))
