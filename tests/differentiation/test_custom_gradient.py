"""Custom gradients: one backward for every use; recomputation; gradients passed straight through.

The oracles are JAX, differences of values, and arithmetic done by hand.
"""

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from lowering.program import compile_graph
from tests.compiling import QUICK
from tests.oracles import by_jax
from tracegraph.calls.custom_call import CustomCall
from tracegraph.eager import backend
from tracegraph.errors import GradientError, LoadError, ShapeError
from tracegraph.ir.tensor import Graph

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn)`: fn() as it is, or fn() compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn: tg.function(fn)()
    return lambda fn: fn()


def vector(*values: float) -> Any:
    return tg.constant(values, tg.float64)


def near(found: Any, expected: Any, tolerance: float = 1e-9, name: str = "") -> None:
    pair = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(*pair, tolerance, tolerance, err_msg=name)


def gradients(fn: Callable[..., Any], *xs: Any) -> list[Any]:
    """The gradients of fn(*xs), None among them."""
    with tg.GradientTape() as tape:
        tape.watch([x for x in xs if isinstance(x, tg.Tensor)])
        y = fn(*xs)
    return tape.gradient(y, list(xs))


# ---------------------------------------------------------------- fifty rules times their uses


@dataclass(frozen=True)
class Rule:
    """A custom gradient, what it computes, and a function that has the derivative it claims."""

    name: str
    function: Callable[[Any], Any]
    primal: Callable[[Any], Any]
    #: The function whose derivatives are those of the rule, if it is not the primal.
    slope: Callable[[Any], Any] | None = None

    def oracle(self, x: Any) -> Any:
        if self.slope is None:
            return self.primal(x)
        y = self.slope(x)
        return y + jax.lax.stop_gradient(self.primal(x) - y)


def rule(primal: Callable[[Any], Any], pullback: Callable[[Any, Any], Any]) -> Any:
    """A custom gradient whose backward is `pullback(dy, x)`."""

    @tg.custom_gradient
    def function(x):
        return primal(x), lambda dy: pullback(dy, x)

    return function


def of_result(primal: Callable[[Any], Any], pullback: Callable[[Any, Any], Any]) -> Any:
    """A custom gradient whose backward is `pullback(dy, y)`, of its own result."""

    @tg.custom_gradient
    def function(x):
        y = primal(x)
        return y, lambda dy: pullback(dy, y)

    return function


MATRIX = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 3.0]])
SQUARE = np.array([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0], [0.0, 1.0, 1.0]])
WEIGHTS = np.array([0.3, -2.0, 1.5])
PICKS = np.eye(3)[[2, 0, 2, 1]]
FACTOR = tg.Variable(WEIGHTS, trainable=False)


def row(v: Any) -> Any:
    return tg.reshape(v, [1, -1])


@tg.custom_gradient
def log1pexp(x):
    e = tg.exp(x)
    return tg.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


@tg.function
def nested_square(x):
    return x * x


@tg.function
def nested_pullback(dy, x):
    return 2.0 * x * dy


@tg.custom_gradient
def of_functions(x):
    return nested_square(x), lambda dy: nested_pullback(dy, x)


inner_sine = rule(tg.sin, lambda dy, x: dy * tg.cos(x))


@tg.custom_gradient
def of_a_custom_gradient(x):
    return inner_sine(x) * x, lambda dy: dy * (inner_sine(x) + x * tg.cos(x))


@tg.custom_gradient
def explicit_second(x):
    """x^3, whose second derivative is stated, not derived."""

    @tg.custom_gradient
    def slope(x, dy):
        return 3.0 * x**2 * dy, lambda g: (6.0 * x * dy * g, 3.0 * x**2 * g)

    return x**3, lambda dy: slope(x, dy)


@tg.custom_gradient
def of_recomputation(x):
    return tg.recompute_grad(lambda v: tg.sin(v) * v)(
        x
    ), lambda dy: dy * (x * tg.cos(x) + tg.sin(x))


@tg.custom_gradient
def of_a_tape(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(x**4)
    slope = tape.gradient(y, x)
    return y, lambda dy: dy * slope


@tg.custom_gradient
def in_two_parts(x):
    return (tg.sin(x), tg.exp(x)), lambda a, b: a * tg.cos(x) + b * tg.exp(x)


@tg.custom_gradient
def of_a_dict(parts):
    a, b = parts["a"], parts["b"]
    return {"p": a * b, "q": [b]}, lambda p, q: {"a": p * b, "b": p * a + q}


@tg.custom_gradient
def scaled(x, by=1.0):
    return x * by, lambda dy: (dy * by, None)


@tg.custom_gradient
def rolled(x, count):
    return tg.roll(x, 1, 0) * tg.cast(count, x.dtype), lambda dy: (
        tg.roll(dy, -1, 0) * tg.cast(count, dy.dtype),
        None,
    )


@tg.custom_gradient
def looped(x):
    return tg.vectorized_map(lambda v: v * v, x), lambda dy: tg.vectorized_map(
        lambda pair: 2.0 * pair[0] * pair[1], (dy, x)
    )


def concatenated(dy: Any, x: Any) -> Any:
    return dy[:3] + 2.0 * x * dy[3:]


RULES = [
    Rule("identity", rule(tg.identity, lambda dy, x: dy), lambda x: x),
    Rule("square", rule(lambda x: x * x, lambda dy, x: 2.0 * dy * x), lambda x: x * x),
    Rule("cube", rule(lambda x: x**3, lambda dy, x: 3.0 * x**2 * dy), lambda x: x**3),
    Rule("sine", inner_sine, jnp.sin),
    Rule("exp", of_result(tg.exp, lambda dy, y: dy * y), jnp.exp),
    Rule("log1pexp", log1pexp, jax.nn.softplus),
    Rule("tanh", of_result(tg.tanh, lambda dy, y: dy * (1.0 - y * y)), jnp.tanh),
    Rule("sigmoid", of_result(tg.sigmoid, lambda dy, y: dy * y * (1.0 - y)), jax.nn.sigmoid),
    Rule("inverse", of_result(lambda x: 1.0 / x, lambda dy, y: -dy * y * y), lambda x: 1 / x),
    Rule(
        "length",
        of_result(lambda x: tg.sqrt(1.0 + x * x), lambda dy, y: dy * tg.sqrt(1.0 - 1.0 / y**2)),
        lambda x: jnp.sqrt(1 + x * x),
        lambda x: _positive_slope(x),
    ),
    Rule("larger", rule(tg.identity, lambda dy, x: 10.0 * dy), lambda x: x, lambda x: 10 * x),
    Rule("reversed slope", rule(tg.identity, lambda dy, x: -dy), lambda x: x, lambda x: -x),
    Rule("round", rule(tg.round, lambda dy, x: dy), jnp.round, lambda x: x),
    Rule("sign", rule(tg.sign, lambda dy, x: dy), jnp.sign, lambda x: x),
    Rule(
        "soft floor",
        rule(tg.floor, lambda dy, x: dy * (1.0 - tg.tanh(x) ** 2)),
        jnp.floor,
        jnp.tanh,
    ),
    Rule(
        "spike",
        rule(
            lambda x: tg.cast(x > 0.0, x.dtype),
            lambda dy, x: dy * 4.0 * tg.sigmoid(4.0 * x) * tg.sigmoid(-4.0 * x),
        ),
        lambda x: (x > 0).astype(x.dtype),
        lambda x: jax.nn.sigmoid(4 * x),
    ),
    Rule(
        "half where negative",
        rule(tg.identity, lambda dy, x: tg.where(x > 0.0, dy, 0.5 * dy)),
        lambda x: x,
        lambda x: jnp.where(x > 0, x, 0.5 * x),
    ),
    Rule(
        "leaky relu",
        rule(
            lambda x: tg.where(x > 0.0, x, 0.1 * x),
            lambda dy, x: dy * tg.where(x > 0.0, tg.ones_like(x), 0.1 * tg.ones_like(x)),
        ),
        lambda x: jnp.where(x > 0, x, 0.1 * x),
    ),
    Rule("softplus", rule(tg.nn.softplus, lambda dy, x: dy * tg.sigmoid(x)), jax.nn.softplus),
    Rule(
        "swish",
        rule(
            lambda x: x * tg.sigmoid(x),
            lambda dy, x: dy * tg.sigmoid(x) * (1.0 + x * tg.sigmoid(-x)),
        ),
        jax.nn.swish,
    ),
    Rule("sum", rule(tg.reduce_sum, lambda dy, x: dy * tg.ones_like(x)), jnp.sum),
    Rule("mean", rule(tg.reduce_mean, lambda dy, x: tg.fill([3], dy / 3.0)), jnp.mean),
    Rule(
        "sum of squares",
        rule(lambda x: tg.reduce_sum(x * x), lambda dy, x: 2.0 * dy * x),
        lambda x: jnp.sum(x * x),
    ),
    Rule(
        "logsumexp",
        rule(tg.reduce_logsumexp, lambda dy, x: dy * tg.nn.softmax(x)),
        jax.nn.logsumexp,
    ),
    Rule(
        "norm",
        rule(tg.norm, lambda dy, x: dy * x / tg.norm(x)),
        jnp.linalg.norm,
    ),
    Rule(
        "dot",
        rule(lambda x: tg.reduce_sum(x * WEIGHTS), lambda dy, x: dy * WEIGHTS),
        lambda x: x @ WEIGHTS,
    ),
    Rule(
        "matmul",
        rule(
            lambda x: tg.reshape(row(x) @ MATRIX.T, [2]),
            lambda dy, x: tg.reshape(row(dy) @ MATRIX, [3]),
        ),
        lambda x: MATRIX @ x,
    ),
    Rule(
        "outer product",
        rule(
            lambda x: tg.transpose(row(x)) @ row(x),
            lambda dy, x: tg.reshape((dy + tg.transpose(dy)) @ tg.transpose(row(x)), [3]),
        ),
        lambda x: jnp.outer(x, x),
    ),
    Rule(
        "quadratic form",
        rule(
            lambda x: tg.reshape(row(x) @ SQUARE @ tg.transpose(row(x)), []),
            lambda dy, x: dy * tg.reshape(row(x) @ (SQUARE + SQUARE.T), [3]),
        ),
        lambda x: x @ SQUARE @ x,
    ),
    Rule(
        "cumsum",
        rule(tg.cumsum, lambda dy, x: tg.cumsum(dy, reverse=True)),
        jnp.cumsum,
    ),
    Rule(
        "reverse",
        rule(lambda x: tg.reverse(x, [0]), lambda dy, x: tg.reverse(dy, [0])),
        lambda x: x[::-1],
    ),
    Rule(
        "roll",
        rule(lambda x: tg.roll(x, 1, 0), lambda dy, x: tg.roll(dy, -1, 0)),
        lambda x: jnp.roll(x, 1),
    ),
    Rule("slice", rule(lambda x: x[1:], lambda dy, x: tg.pad(dy, [[1, 0]])), lambda x: x[1:]),
    Rule(
        "pad",
        rule(lambda x: tg.pad(x, [[1, 2]]), lambda dy, x: dy[1:4]),
        lambda x: jnp.pad(x, (1, 2)),
    ),
    Rule(
        "gather",
        rule(
            lambda x: tg.gather(x, [2, 0, 2, 1]),
            lambda dy, x: tg.reshape(row(dy) @ PICKS, [3]),
        ),
        lambda x: x[jnp.array([2, 0, 2, 1])],
    ),
    Rule(
        "take the cotangent apart",
        rule(
            lambda x: x[:2] * 2.0,
            lambda dy, x: tg.gather(tg.concat([dy, [0.0]], 0), [0, 1, 2]) * 2.0,
        ),
        lambda x: 2 * x[:2],
    ),
    Rule(
        "concat",
        rule(lambda x: tg.concat([x, x * x], 0), concatenated),
        lambda x: jnp.concatenate([x, x * x]),
    ),
    Rule(
        "stack",
        rule(lambda x: tg.stack([x, tg.sin(x)]), lambda dy, x: dy[0] + dy[1] * tg.cos(x)),
        lambda x: jnp.stack([x, jnp.sin(x)]),
    ),
    Rule(
        "broadcast",
        rule(
            lambda x: tg.broadcast_to(tg.expand_dims(x, 1), [3, 2]),
            lambda dy, x: tg.reduce_sum(dy, axis=1),
        ),
        lambda x: jnp.broadcast_to(x[:, None], (3, 2)),
    ),
    Rule(
        "softmax",
        of_result(tg.nn.softmax, lambda dy, y: (dy - tg.reduce_sum(dy * y)) * y),
        jax.nn.softmax,
    ),
    Rule(
        "centre",
        rule(lambda x: x - tg.reduce_mean(x), lambda dy, x: dy - tg.reduce_mean(dy)),
        lambda x: x - jnp.mean(x),
    ),
    Rule(
        "product",
        rule(tg.reduce_prod, lambda dy, x: dy * tg.reduce_prod(x) / x),
        jnp.prod,
    ),
    Rule(
        "soft maximum",
        rule(tg.reduce_max, lambda dy, x: dy * tg.nn.softmax(5.0 * x)),
        jnp.max,
        lambda x: jax.nn.logsumexp(5 * x) / 5,
    ),
    Rule(
        "nothing",
        rule(tg.sin, lambda dy, x: tg.zeros_like(dy)),
        jnp.sin,
        lambda x: 0 * x,
    ),
    Rule("functions", of_functions, lambda x: x * x),
    Rule("a custom gradient", of_a_custom_gradient, lambda x: jnp.sin(x) * x),
    Rule("an explicit second order", explicit_second, lambda x: x**3),
    Rule("a recomputation", of_recomputation, lambda x: jnp.sin(x) * x),
    Rule("a tape", of_a_tape, lambda x: jnp.sum(x**4)),
    Rule(
        "two outputs",
        lambda x: in_two_parts(x)[0] * in_two_parts(x)[1],
        lambda x: jnp.sin(x) * jnp.exp(x),
    ),
    Rule(
        "structures",
        lambda x: (lambda y: y["p"] + y["q"][0])(of_a_dict({"a": tg.sin(x), "b": x})),
        lambda x: jnp.sin(x) * x + x,
    ),
    Rule("a keyword", lambda x: scaled(x, by=2.5), lambda x: 2.5 * x),
    Rule("an integer", lambda x: rolled(x, tg.constant(3)), lambda x: 3 * jnp.roll(x, 1)),
    Rule(
        "a variable",
        rule(lambda x: x * FACTOR, lambda dy, x: dy * FACTOR),
        lambda x: x * WEIGHTS,
    ),
    Rule("a loop", looped, lambda x: x * x),
]


def _positive_slope(x: Any) -> Any:
    """|x| / sqrt(1 + x^2) as a slope, integrated: the rule of "length" knows y alone."""
    return jnp.sign(x) * jnp.sqrt(1 + x * x)


X = np.array([0.7, -1.3, 2.1])
ROWS = np.array([X, [0.2, 1.1, -0.4]])
TANGENT = np.array([1.0, -0.5, 2.0])


def mixed(y: Any, library: Any) -> Any:
    """One number of the result, with a second derivative of its own."""
    total = library.reduce_sum if library is tg else library.sum
    return total(library.sin(y) + 0.5 * y * y)


def uses(function: Callable[[Any], Any]) -> dict[str, Any]:
    """Every use of one rule, at X and at ROWS."""
    x, tangent = tg.constant(X), tg.constant(TANGENT)

    def number(v: Any) -> Any:
        return mixed(function(v), tg)

    kept = tg.recompute_grad(number)
    value, pull = tg.vjp(function, x)
    return {
        "value": value,
        "vjp": pull(tg.cos(tg.ones_like(value)))[0],
        "jvp": tg.jvp(function, (x,), (tangent,))[1],
        "reverse": tg.jacobian(function, mode="reverse")(x),
        "forward": tg.jacobian(function, mode="forward")(x),
        "hessian": tg.hessian(number)(x),
        "hvp": tg.hvp(number, x, tangent),
        "map": tg.vectorized_map(tg.grad(number), tg.constant(ROWS)),
        "mapped": tg.grad(lambda v: tg.reduce_sum(tg.vectorized_map(number, v) ** 2))(
            tg.constant(ROWS)
        ),
        "recomputed": tg.grad(kept)(x),
        "recomputed twice": tg.hvp(kept, x, tangent),
    }


def expected_uses(function: Callable[[Any], Any]) -> dict[str, Any]:
    """The same from one evaluation of JAX's derivatives at ROWS, whose first row is X."""

    def number(v: Any) -> Any:
        return mixed(function(v), jnp)

    def at(v: Any) -> Any:
        slope = jax.grad(number)
        return function(v), jax.jacobian(function)(v), number(v), slope(v), jax.jacfwd(slope)(v)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(at), compiler_options=QUICK)(ROWS)
    values, jacobians, numbers, slopes, hessians = map(np.asarray, found)
    value, jacobian, hessian = values[0], jacobians[0], hessians[0]
    return {
        "value": value,
        "vjp": np.cos(1.0) * jacobian.sum(tuple(range(value.ndim))),
        "jvp": jacobian @ TANGENT,
        "reverse": jacobian,
        "forward": jacobian,
        "hessian": hessian,
        "hvp": hessian @ TANGENT,
        "map": slopes,
        "mapped": 2.0 * numbers[:, None] * slopes,
        "recomputed": slopes[0],
        "recomputed twice": hessian @ TANGENT,
    }


def test_there_are_fifty_rules():
    assert len({each.name for each in RULES}) == len(RULES) >= 50


@pytest.mark.sampled(4)
@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_every_use_of_every_rule(each: Rule):
    expected = expected_uses(each.oracle)
    found = tg.function(lambda: uses(each.function))()
    assert found.keys() == expected.keys()
    for use, value in expected.items():
        near(found[use], value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("each", RULES[::9], ids=lambda each: each.name)
def test_every_use_of_some_rules_at_top_level(each: Rule):
    found = uses(each.function)
    for use, value in expected_uses(each.oracle).items():
        near(found[use], value)


# ---------------------------------------------------------------- sentence by sentence


def test_the_backward_is_called_instead_of_the_derivative(run):
    clip = rule(tg.identity, lambda dy, x: tg.clip_by_norm(dy, 0.5))
    v = tg.Variable(2.0)

    def example():
        with tg.GradientTape() as tape:
            output = clip(v * v)
        return tape.gradient(output, v)

    assert run(example).numpy() == 2.0


def test_variables_are_found_and_given(run):
    v, frozen = tg.Variable(2.0), tg.Variable(5.0, trainable=False)
    seen = []

    @tg.custom_gradient
    def f(x):
        def grad(dy, variables=None):
            seen.append(variables)
            return dy * v, [dy * x * 7.0]

        return x * v * frozen, grad

    def example():
        return gradients(lambda x, v: f(x), tg.constant(3.0), v)

    assert [g.numpy() for g in run(example)] == [2.0, 21.0]
    assert [w is v for w in seen[0]] == [True]


def test_a_backward_without_variables_serves_the_arguments_alone():
    v = tg.Variable(2.0, name="v")

    @tg.custom_gradient
    def scaled(x):
        return x * v, lambda dy: 100.0 * dy

    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = scaled(x)
    by_x, by_v = tape.gradient(y, [x, v])
    assert by_x.numpy() == 100.0 and by_v is None
    assert tape.explain(y, v).reason == "custom_gradient"


def test_variables_may_go_to_any_keywords():
    v = tg.Variable(2.0)

    @tg.custom_gradient
    def f(x):
        return x * v, lambda dy, **rest: (dy * v, [dy * x for _ in rest["variables"]])

    assert [g.numpy() for g in gradients(lambda x, v: f(x), tg.constant(3.0), v)] == [2.0, 3.0]


def test_a_frozen_variable_needs_no_keyword():
    frozen = tg.Variable(5.0, trainable=False)

    @tg.custom_gradient
    def f(x):
        return x * frozen, lambda dy: dy * frozen * 2.0

    assert float(tg.grad(f)(1.0)) == 10.0


def test_variables_inside_of_a_function_are_found_too():
    v = tg.Variable(2.0)
    inner = tg.function(lambda x: x * v)

    @tg.custom_gradient
    def f(x):
        return inner(x), lambda dy, variables=None: (dy * v, [dy * x * 7.0])

    assert [g.numpy() for g in gradients(lambda x, v: f(x), tg.constant(3.0), v)] == [2.0, 21.0]


def test_a_variable_gradient_may_be_none():
    v, w = tg.Variable(2.0), tg.Variable(3.0)

    @tg.custom_gradient
    def f(x):
        return x * v * w, lambda dy, variables=None: (dy, [None, dy])

    found = gradients(lambda x, v, w: f(x), tg.constant(3.0), v, w)
    assert [None if g is None else g.numpy() for g in found] == [1.0, None, 1.0]


def test_a_variable_as_an_argument(run):
    v = tg.Variable([2.0, 3.0])
    hundred = rule(tg.identity, lambda dy, x: 100.0 * dy * x)

    def example():
        with tg.GradientTape() as tape:
            y = hundred(v)
        return tape.gradient(y, v)

    np.testing.assert_array_equal(run(example).numpy(), [200.0, 300.0])


def test_a_variable_that_is_an_argument_and_read():
    v = tg.Variable(2.0)

    @tg.custom_gradient
    def f(x):
        return x * v, lambda dy, variables=None: (100.0 * dy, [1000.0 * dy])

    with tg.GradientTape() as tape:
        y = f(v)
    assert tape.gradient(y, v).numpy() == 1100.0


def test_a_variable_read_in_the_backward_alone_has_a_second_derivative():
    v = tg.Variable(2.0, trainable=False)

    @tg.custom_gradient
    def f(x):
        return x * 1.0, lambda dy: dy * v**2

    x = tg.constant(3.0)
    with tg.GradientTape() as outer:
        outer.watch(v)
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        slope = inner.gradient(y, x)
    assert slope.numpy() == 4.0
    assert outer.gradient(slope, v).numpy() == 4.0


def test_keywords_bind_by_signature():
    @tg.custom_gradient
    def f(x, y):
        return x * y, lambda dy: (dy * y * 10.0, dy * x * 100.0)

    x, y = tg.constant(2.0), tg.constant(3.0)
    for call in (lambda x, y: f(x, y=y), lambda x, y: f(y=y, x=x), f):
        assert [g.numpy() for g in gradients(call, x, y)] == [30.0, 200.0]


def test_none_among_the_gradients():
    @tg.custom_gradient
    def f(x, y):
        return x * y, lambda dy: (dy * y, None)

    found = gradients(f, tg.constant(2.0), tg.constant(3.0))
    assert found[0].numpy() == 3.0
    assert found[1] is None


@pytest.mark.parametrize("other", [2.0, 3, True, None, "mode"], ids=repr)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_no_array_is_passed_as_it_is(other, count):
    seen = []

    @tg.custom_gradient
    def f(x, other):
        seen.append(other)
        return x * 2.0, lambda dy: (7.0 * dy, None)[:count]

    assert float(tg.grad(lambda x: f(x, other))(1.0)) == 7.0
    assert seen == [other]
    assert type(seen[0]) is type(other)


def test_defaults_stay_with_the_function():
    @tg.custom_gradient
    def f(x, power=2):
        return x**power, lambda dy: dy * power * x ** (power - 1)

    assert float(tg.grad(f)(3.0)) == 6.0
    assert float(tg.grad(lambda x: f(x, power=3))(3.0)) == 27.0


def test_arrays_become_tensors():
    seen = []

    @tg.custom_gradient
    def f(x, y):
        seen.extend([x, y])
        return x * y, lambda dy: (tg.reduce_sum(dy * y), dy * x)

    y = f(np.float32(2.0), np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(y.numpy(), [2.0, 4.0])
    assert all(isinstance(x, tg.Tensor) for x in seen)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_in_and_out(run):
    @tg.custom_gradient
    def f(parts, pair):
        def grad(p, q):  # outputs in the order of the keys
            return {"a": [p * 2.0], "b": q * 3.0}, Pair(p * 5.0, q * 7.0)

        return {"q": parts["b"] + pair.second, "p": parts["a"][0] + pair.first}, grad

    def example():
        parts = {"b": tg.constant(1.0), "a": [tg.constant(2.0)]}
        pair = Pair(tg.constant(3.0), tg.constant(4.0))
        with tg.GradientTape() as tape:
            tape.watch([parts, pair])
            y = f(parts, pair)
            total = y["p"] + 10.0 * y["q"]
        return y, tape.gradient(total, (parts, pair))

    y, (parts, pair) = run(example)
    assert (y["p"].numpy(), y["q"].numpy()) == (5.0, 5.0)
    assert (parts["a"][0].numpy(), parts["b"].numpy()) == (2.0, 30.0)
    assert isinstance(pair, Pair)
    assert (pair.first.numpy(), pair.second.numpy()) == (5.0, 70.0)


def test_methods():
    class Layer:
        factor = 3.0

        @tg.custom_gradient
        def call(self, x):
            return x * self.factor, lambda dy: dy * self.factor * 10.0

    assert float(tg.grad(Layer().call)(1.0)) == 30.0
    assert float(Layer().call(2.0)) == 6.0


def test_callable_objects_and_decorators_with_parentheses():
    class Double:
        def __call__(self, x):
            return x * 2.0, lambda dy: dy * 20.0

    assert float(tg.grad(tg.custom_gradient(Double()))(1.0)) == 20.0
    assert float(tg.grad(tg.custom_gradient()(Double()))(1.0)) == 20.0


def test_unused_outputs_pass_zeros(run):
    @tg.custom_gradient
    def f(x):
        return (x * 2.0, x * 3.0, x * 5.0), lambda a, b, c: a + 10.0 * b + 100.0 * c

    def example():
        x = tg.constant(1.0)
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b, _ = f(x)
        return tape.gradient(b, x), tape.gradient([a, b], x)

    assert [g.numpy() for g in run(example)] == [10.0, 11.0]


def test_integers_among_arguments_and_outputs():
    seen = []

    @tg.custom_gradient
    def f(x, k):
        def grad(g, whole):
            seen.append(whole.dtype)
            return g * 5.0, None

        return (x * 2.0, k + 1), grad

    x, k = tg.constant(1.0), tg.constant(3)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y, number = f(x, k)
    assert number.numpy() == 4
    assert tape.gradient(y, x).numpy() == 5.0
    assert seen == [tg.int32]


def test_a_gradient_of_an_integer_is_ignored():
    @tg.custom_gradient
    def f(x, k):
        return x * 2.0, lambda dy: (dy, dy)

    found = gradients(lambda x: f(x, tg.constant(3)), tg.constant(1.0))
    assert found[0].numpy() == 1.0


def test_what_is_captured_has_no_gradient():
    w = tg.constant(5.0)

    @tg.custom_gradient
    def f(x):
        return x * w, lambda dy: dy * w * 3.0

    found = gradients(lambda x, w: f(x), tg.constant(2.0), w)
    assert found[0].numpy() == 15.0
    assert found[1] is None


def test_no_output_and_no_gradient():
    @tg.custom_gradient
    def f(x):
        return None, lambda: None

    assert f(tg.constant(1.0)) is None


def test_a_gradient_that_is_none_for_all():
    f = rule(tg.sin, lambda dy, x: None)
    assert gradients(f, tg.constant(1.0)) == [None]
    assert float(tg.jvp(f, (1.0,), (1.0,))[1]) == 0.0


# ---------------------------------------------------------------- order


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_captured_intermediates_at_every_order(run, order):
    found, expected = log1pexp, jax.nn.softplus
    for _ in range(order):
        found, expected = tg.grad(found), jax.grad(expected)
    near(run(lambda: found(vector(100.0)[0] * 0.005)), by_jax(expected, 0.5), 1e-5)


def test_large_arguments_as_in_the_textbook():
    assert float(tg.grad(log1pexp)(100.0)) == 1.0
    assert np.isnan(float(tg.grad(lambda x: tg.math.log(1 + tg.exp(x)))(100.0)))


def test_an_explicit_second_order_rule_is_called(run):
    @tg.custom_gradient
    def f(x):
        @tg.custom_gradient
        def slope(x, dy):
            return 2.0 * x * dy, lambda g: (200.0 * g * dy, 2.0 * x * g)

        return x * x, lambda dy: slope(x, dy)

    assert float(run(lambda: tg.grad(f)(tg.constant(3.0)))) == 6.0
    assert float(run(lambda: tg.grad(tg.grad(f))(tg.constant(3.0)))) == 200.0
    assert (
        float(run(lambda: tg.jvp(tg.grad(f), (tg.constant(3.0),), (tg.constant(1.0),))[1])) == 200
    )


def test_tapes_in_every_nesting():
    x = vector(0.7, -1.3)

    def third(a, b, c):
        found = log1pexp
        for derive in (a, b, c):
            found = derive(found)
        return found(x)

    def forward(fn):
        return lambda v: tg.jvp(fn, (v,), (tg.ones_like(v),))[1]

    def reverse(fn):
        return tg.grad(lambda v: tg.reduce_sum(fn(v)))

    expected = by_jax(jax.vmap(jax.grad(jax.grad(jax.grad(jax.nn.softplus)))), x.numpy())
    for choice in np.ndindex(2, 2, 2):
        near(third(*((forward, reverse)[k] for k in choice)), expected)


def test_persistent_tapes_and_targets_in_between():
    x = vector(0.5)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = log1pexp(x)
        z = log1pexp(y * y)
    sigmoid = 1 / (1 + np.exp(-np.array([0.5])))
    near(tape.gradient(y, x), sigmoid)
    near(tape.gradient(z, y), tape.gradient(z, x).numpy() / sigmoid)
    near(tape.gradient(z, x), tg.grad(lambda v: log1pexp(log1pexp(v) ** 2)[0])(x))


def test_forward_accumulators():
    x = vector(0.5, 1.5)
    with tg.autodiff.ForwardAccumulator(x, vector(1.0, 10.0)) as accumulator:
        y = log1pexp(x)
        z = tg.reduce_sum(y)
    near(accumulator.jvp(z), [1.0, 10.0] @ (1 / (1 + np.exp(-x.numpy()))))


def test_batch_jacobians():
    x = tg.constant(ROWS)
    f = rule(lambda x: tg.tanh(x) @ SQUARE, lambda dy, x: dy @ SQUARE.T * (1.0 - tg.tanh(x) ** 2))
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    expected = by_jax(jax.vmap(jax.jacobian(lambda v: jnp.tanh(v) @ SQUARE)), ROWS)
    near(tape.batch_jacobian(y, x), expected)
    near(tape.batch_jacobian(y, x, experimental_use_pfor=False), expected)
    for mode in ("reverse", "forward"):
        whole = tape.jacobian(y, x, mode=mode).numpy()
        near(np.einsum("bibj->bij", whole), expected)
        near(whole.sum(2), expected)


def test_a_backward_that_the_body_knows_nothing_of_in_a_loop():
    """The second output is a constant, and its cotangent reaches x all the same."""

    @tg.custom_gradient
    def f(x):
        return (x * 1.0, tg.constant(5.0)), lambda a, b: a + 3.0 * b

    def number(x):
        a, b = f(x)
        return a * 2.0 + b * x

    xs = tg.constant([1.0, 2.0, 3.0])
    expected = [10.0, 13.0, 16.0]  # 2 + 3 x, and 5
    np.testing.assert_allclose(tg.vectorized_map(tg.grad(number), xs).numpy(), expected)
    mapped = tg.grad(lambda v: tg.reduce_sum(tg.vectorized_map(number, v)))
    np.testing.assert_allclose(mapped(xs).numpy(), expected)
    for mode in ("reverse", "forward"):
        whole = tg.jacobian(lambda v: tg.vectorized_map(number, v), mode=mode)(xs)
        np.testing.assert_allclose(whole.numpy(), np.diag(expected))


def test_loops_with_operands_that_are_shared():
    @tg.custom_gradient
    def f(x, w):
        return x * w, lambda dy: (dy * w * 10.0, dy * x * 100.0)

    xs, w = tg.constant([1.0, 2.0, 3.0]), tg.constant(4.0)

    def total(xs, w):
        return tg.reduce_sum(tg.vmap(f, in_axes=(0, None))(xs, w))

    by_x, by_w = tg.grad(total, (0, 1))(xs, w)
    np.testing.assert_array_equal(by_x.numpy(), [40.0, 40.0, 40.0])
    assert by_w.numpy() == 600.0


def test_complex_numbers():
    """The derivative of z^2 in TensorFlow's convention, and its real part alone."""
    square = rule(lambda z: z * z, lambda dy, z: dy * tg.math.conj(2.0 * z))
    z, t = tg.constant([1 + 2j, -0.5j]), tg.constant([0.5 - 1j, 2 + 0j])
    np.testing.assert_allclose(gradients(square, z)[0].numpy(), [2 - 4j, 1j], rtol=1e-6)
    pushed = tg.jvp(square, (z,), (t,))[1]
    np.testing.assert_allclose(pushed.numpy(), 2 * z.numpy() * t.numpy(), rtol=1e-6)
    only_real = rule(tg.math.real, lambda dy, z: tg.complex(dy, tg.zeros_like(dy)))
    np.testing.assert_allclose(tg.jvp(only_real, (z,), (t,))[1].numpy(), [0.5, 2.0])
    assert tg.testing.check_gradients(square, z).is_right
    assert tg.testing.check_gradients(only_real, z).is_right


# ---------------------------------------------------------------- functions, loops, threads


def test_open_sizes():
    sine = rule(tg.sin, lambda dy, x: dy * tg.cos(x))

    @tg.function(input_signature=[tg.TensorSpec([None], tg.float64)])
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = sine(x)
        return tape.gradient(y, x), tg.jvp(sine, (x,), (x,))[1]

    for count in (1, 3, 0):
        x = np.arange(count) * 0.3
        back, forth = slope(tg.constant(x))
        near(back, np.cos(x))
        near(forth, np.cos(x) * x)


def jax_layer(x: Any) -> Any:
    return jnp.sum(jax.nn.softplus(x) * x)


def test_a_gradient_of_a_function_that_calls_it():
    @tg.function
    def layer(x):
        return tg.reduce_sum(log1pexp(x) * x)

    x = vector(0.3, -0.8)
    expected = by_jax(lambda x: (jax.grad(jax_layer)(x), jax.hessian(jax_layer)(x)), x.numpy())
    near(tg.grad(layer)(x), expected[0])
    near(tg.hessian(layer)(x), expected[1])


@pytest.mark.sampled(1)
def test_random_numbers_are_those_of_the_forward_pass(run):
    @tg.custom_gradient
    def dropped(x):
        mask = tg.random.uniform([100])
        return x * mask, lambda dy: dy * mask

    x = tg.ones([100])

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = dropped(x)
        return y, tape.gradient(y, x)

    first, second = run(example), run(example)
    for y, g in (first, second):
        np.testing.assert_array_equal(y.numpy(), g.numpy())
    assert (first[0].numpy() != second[0].numpy()).any()


def test_state_in_the_function(run):
    count = tg.Variable(1.0, trainable=False)

    @tg.custom_gradient
    def f(x):
        count.assign_add(x)
        return x * count, lambda dy: dy * count

    found = run(lambda: gradients(f, tg.constant(3.0)))
    assert found[0].numpy() == 4.0
    assert count.numpy() == 4.0


def step(f: Callable[..., Any], x: Any) -> Any:
    return gradients(f, tg.constant(x))[0].numpy()


def test_a_loop_at_top_level_compiles_once(compiled_by):
    @tg.custom_gradient
    def f(x):
        return x * x * 0.25, lambda dy: dy * 0.5 * x

    step(f, [1.0, 2.0])
    assert compiled_by(lambda: [step(f, [float(k), 2.0]) for k in range(10)]) == 0


def test_what_is_captured_may_change_without_compiling(compiled_by):
    scales = [np.full(3, 0.5 + k, np.float32) for k in range(6)]

    def at(scale):
        @tg.custom_gradient
        def f(x):
            return x * scale, lambda dy: dy * scale * float(scale[0])

        return step(f, [1.0, 2.0, 3.0])

    np.testing.assert_array_equal(at(scales[0]), scales[0] ** 2)
    assert compiled_by(lambda: [at(scale) for scale in scales]) == 0
    np.testing.assert_array_equal(at(scales[3]), scales[3] ** 2)


def test_a_number_among_the_arguments_may_change_without_compiling(compiled_by):
    @tg.custom_gradient
    def cooled(x, temperature):
        return x / temperature, lambda dy: (dy / temperature, None)

    def at(temperature):
        return step(lambda x: cooled(x, temperature), [1.0, 2.0])

    at(0.25)
    assert compiled_by(lambda: [at(0.5 + 0.2 * k) for k in range(1, 6)]) == 0
    np.testing.assert_array_equal(at(4.0), [0.25, 0.25])


def test_nested_ones_may_change_without_compiling(compiled_by):
    def at(scale):
        inner = rule(lambda x: x * scale, lambda dy, x: dy * scale)
        outer = rule(lambda x: inner(x) * x, lambda dy, x: dy * 2.0 * inner(x))
        return step(outer, [1.0, 2.0])

    np.testing.assert_array_equal(at(0.5), [1.0, 2.0])
    assert compiled_by(lambda: [at(0.5 + 0.25 * k) for k in range(5)]) <= 1  # where it is 1
    np.testing.assert_array_equal(at(1.5), [3.0, 6.0])


def test_recomputation_in_a_loop_compiles_once(compiled_by):
    def at(scale):
        return step(tg.recompute_grad(lambda x: tg.sin(x * scale)), [1.0, 2.0])

    at(0.5)
    assert compiled_by(lambda: [at(0.75 + k) for k in range(5)]) == 0


def test_what_was_captured_is_let_go():
    def once():
        scale = tg.constant(np.ones(3, np.float32))
        f = rule(lambda x: x * scale, lambda dy, x: dy * scale)
        step(f, [1.0, 2.0, 3.0])
        return weakref.ref(scale)

    reference = once()
    gc.collect()
    assert reference() is None


def test_threads():
    errors = []

    def work(number):
        try:
            f = rule(tg.sin, lambda dy, x: dy * number)
            for _ in range(5):
                assert step(f, 0.5) == number
                assert float(tg.jvp(f, (0.5,), (2.0,))[1]) == 2.0 * number
        except BaseException as error:  # reported to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(0.5 + k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_everything_is_usable_after_an_error():
    @tg.custom_gradient
    def f(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tg.function(lambda x: f(x))(tg.constant(1.0))
    with pytest.raises(RuntimeError, match="mine"):
        f(tg.constant(1.0))
    assert float(tg.grad(log1pexp)(0.0)) == 0.5


# ---------------------------------------------------------------- forward mode


@tg.function
def hides_a_stop(dy):
    return dy * 2.0 + tg.stop_gradient(dy)


@tg.function
def plain_product(dy, x):
    return dy * 2.0 * x


NOT_LINEAR = {
    "clip": lambda dy, x: tg.clip_by_value(dy, -1.0, 1.0),
    "clip by norm": lambda dy, x: tg.clip_by_norm(dy, 0.5),
    "sign": lambda dy, x: tg.sign(dy),
    "abs": lambda dy, x: tg.abs(dy),
    "stop_gradient": lambda dy, x: tg.stop_gradient(dy),
    "stop_gradient in a sum": lambda dy, x: dy + tg.stop_gradient(dy),
    "stop_gradient in a function": lambda dy, x: hides_a_stop(dy),
    "affine": lambda dy, x: dy + 1.0,
    "plus x": lambda dy, x: dy + x,
    "where the cotangent": lambda dy, x: tg.where(dy > 0.0, dy, 0.0),
    "where x": lambda dy, x: tg.where(x > 0.0, dy, 1.0),
    "relu": lambda dy, x: tg.nn.relu(dy),
    "maximum": lambda dy, x: tg.maximum(dy, x),
    "round": lambda dy, x: tg.round(dy),
    "modulus": lambda dy, x: tg.math.floormod(dy, tg.ones_like(dy)),
    "to integers": lambda dy, x: tg.cast(tg.cast(dy, tg.int32), dy.dtype),
    "ones": lambda dy, x: tg.ones_like(x),
    "x": lambda dy, x: x,
    "square": lambda dy, x: dy * dy,
    "power": lambda dy, x: dy**3,
    "division": lambda dy, x: x / dy,
    "argmax": lambda dy, x: dy * tg.cast(tg.argmax(dy), dy.dtype),
    "sort": lambda dy, x: tg.sort(dy),
    "nan": lambda dy, x: tg.where(tg.math.is_nan(dy), tg.zeros_like(dy), dy),
    "logsumexp": lambda dy, x: dy + tg.reduce_logsumexp(dy),
    "imaginary part": lambda dy, x: tg.math.real(tg.complex(dy, x)),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_refused_in_forward_mode(name):
    pullback = NOT_LINEAR[name]
    f = rule(tg.sin, pullback)
    x = tg.constant([-2.0, 1.0, 3.0])
    with pytest.raises(GradientError, match="a custom gradient has no forward mode") as caught:
        tg.jvp(f, (x,), (x,))
    assert isinstance(caught.value, LookupError)
    line = pullback.__code__.co_firstlineno
    if "function" in name:
        line = hides_a_stop.python_function.__code__.co_firstlineno + 2
    if name != "x":  # which no line of the backward computes
        assert f"test_custom_gradient.py:{line}:" in str(caught.value)
    # Reverse mode works as it is written, and jacobian finds its way.
    dy = tg.constant([1.0, 0.25, -3.0])
    found, expected = tg.vjp(f, x)[1](dy)[0], pullback(dy, x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    assert tg.jacobian(f)(x).shape == (3, 3)


LINEAR = {
    "matmul": lambda dy, x: tg.reshape(row(dy) @ SQUARE.astype(np.float32), [3]),
    "cumsum": lambda dy, x: tg.cumsum(dy),
    "reverse": lambda dy, x: tg.reverse(dy, [0]),
    "gather": lambda dy, x: tg.gather(dy, [2, 2, 0]),
    "functions": plain_product,
    "where x": lambda dy, x: tg.where(x > 0.0, dy, 0.0),
    "where x, zeros": lambda dy, x: tg.where(x > 0.0, tg.zeros_like(dy), -dy),
    "zeros added": lambda dy, x: dy * 2.0 + tg.zeros_like(x),
    "zeros": lambda dy, x: tg.zeros_like(x),
    "a list of zeros": lambda dy, x: tg.concat([dy[:1], [0.0, 0.0]], 0),
    "sum": lambda dy, x: tg.ones_like(x) * tg.reduce_sum(dy),
    "division": lambda dy, x: dy / (2.0 + tg.sign(x)),
    "complex": lambda dy, x: tg.math.real(tg.math.conj(tg.complex(dy, tg.zeros_like(dy)))),
    "convolution": lambda dy, x: tg.reshape(
        tg.nn.conv1d(tg.reshape(dy, [1, 3, 1]), tg.reshape(x, [3, 1, 1]), 1, "SAME"), [3]
    ),
    "loop": lambda dy, x: tg.vectorized_map(lambda pair: pair[0] * pair[1], (dy, x)),
    "sorted x": lambda dy, x: tg.gather(dy, tg.argsort(x)),
    "other precision": lambda dy, x: tg.cast(tg.cast(dy, tg.float64) * 2.0, tg.float32),
    "recomputed": lambda dy, x: tg.recompute_grad(lambda a, b: a * tg.sin(b))(dy, x),
    "custom": lambda dy, x: rule(lambda v: 3.0 * v, lambda g, v: 3.0 * g)(dy) * x,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_is_transposed(name):
    pullback = LINEAR[name]
    f = rule(tg.sin, pullback)
    x, t = tg.constant([-2.0, 1.0, 3.0]), tg.constant([0.5, -1.0, 2.0])
    # All of it is one program, which runs when the first value is read.
    rows = [pullback(tg.constant(row), x) for row in np.eye(3, dtype=np.float32)]
    along = tg.jvp(f, (x,), (t,))[1]
    in_a_loop = tg.jvp(lambda x: tg.vectorized_map(f, tg.stack([x, x]))[1], (x,), (t,))[1]
    jacobians = [tg.jacobian(f, mode=mode)(x) for mode in ("forward", "reverse")]
    matrix = np.stack([row.numpy() for row in rows])
    for found in (along, in_a_loop):
        np.testing.assert_allclose(found.numpy(), matrix @ t.numpy(), rtol=1e-5)
    for found in jacobians:
        np.testing.assert_allclose(found.numpy(), matrix, rtol=1e-5)


def test_only_some_arguments_move():
    @tg.custom_gradient
    def f(x, y):
        return x * y, lambda dy: (dy * y, dy * x)

    x, y = tg.constant(2.0), tg.constant(3.0)
    assert float(tg.jvp(lambda x: f(x, y), (x,), (1.0,))[1]) == 3.0
    assert float(tg.jvp(lambda y: f(x, y), (y,), (1.0,))[1]) == 2.0
    assert float(tg.jvp(f, (x, y), (1.0, 1.0))[1]) == 5.0


# ---------------------------------------------------------------- patterns


def taped(f: Callable[..., Any], x: Any) -> Any:
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    return tape, y


ROW_WISE = {
    "elementwise": (lambda dy, x: dy * x, 12),
    "clipped": (lambda dy, x: tg.clip_by_value(dy, -0.5, 0.5) * x, 12),
    "dense": (lambda dy, x: (dy * x) @ tg.ones([3, 3]), 36),
    "softmax": (lambda dy, x: dy * x - tg.reduce_sum(dy, axis=1, keepdims=True), 36),
    "reversed features": (lambda dy, x: tg.reverse(dy, [1]), 12),
    "one feature": (lambda dy, x: tg.pad(dy[:, 1:2], [[0, 0], [1, 1]]), 4),
    "nothing": (lambda dy, x: tg.zeros_like(x), 0),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_the_pattern_is_that_of_the_backward(name):
    """The body mixes all rows; what counts is the backward."""
    pullback, count = ROW_WISE[name]
    f = rule(lambda x: x + tg.reduce_sum(x), pullback)
    x = tg.constant(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    tape, y = taped(f, x)
    whole, of_rows = tape.jacobian(y, x, mode="reverse"), tape.batch_jacobian(y, x)
    sparse = tape.jacobian(y, x, sparse=True)
    assert sparse.nnz == count
    dense, whole = sparse.to_dense(), whole.numpy()
    near(of_rows, np.einsum("bibj->bij", whole), 1e-6)
    near(dense, whole, 1e-6)


MIXING = {
    "clip by the norm of the batch": lambda dy, x: tg.clip_by_norm(dy, 0.5),
    "sum over the batch": lambda dy, x: dy + tg.reduce_sum(dy, axis=0, keepdims=True),
    "reversed batch": lambda dy, x: tg.reverse(dy, [0]),
    "not linear": lambda dy, x: tg.sign(dy),
    "constant": lambda dy, x: tg.ones_like(dy),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_refused(name):
    f = rule(tg.identity, MIXING[name])
    x = tg.constant(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    tape, y = taped(f, x)
    with pytest.raises(GradientError, match="the rows are not independent: ") as caught:
        tape.batch_jacobian(y, x)
    # What mixes inside of the rule is named, but the call where the rule has no transpose.
    is_linear = name in ("sum over the batch", "reversed batch")
    named = f'"{name}": lambda dy, x:' if is_linear else "custom_call"
    assert named in str(caught.value)
    whole = tape.jacobian(y, x, mode="reverse").numpy()
    near(tape.jacobian(y, x, sparse=True).to_dense(), whole, 1e-6)


def test_patterns_are_composed():
    """Several operands and outputs, behind and in front of other ops."""

    @tg.custom_gradient
    def f(x, y):
        return (x * 1.0, tg.reduce_sum(y)), lambda a, b: (a * 2.0, tg.fill([4], b))

    def whole(v):
        a, b = f(v[:4], tg.roll(v[4:], 1, 0))
        return tg.concat([a[1:] - a[:-1], tg.reshape(b, [1])], 0)

    x = tg.constant(np.arange(8, dtype=np.float32))
    tape, y = taped(whole, x)
    dense = tape.jacobian(y, x, mode="reverse").numpy()
    sparse = tape.jacobian(y, x, sparse=True)
    near(sparse.to_dense(), dense)
    assert sparse.nnz == np.count_nonzero(dense) == 10


# ---------------------------------------------------------------- text


def graph_with_a_custom_gradient() -> Graph:
    @tg.function
    def layer(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(log1pexp(x))
        return y, tape.gradient(y, x), in_two_parts(x), tg.recompute_grad(tg.sin)(x)

    return layer.get_concrete_function(tg.TensorSpec([3])).graph


def test_text_round_trip():
    graph = graph_with_a_custom_gradient()
    text = graph.as_text()
    assert "custom_call<body=@log1pexp, backward=@log1pexp_backward, sources=[0]>(" in text
    assert "recomputed_call<body=@sin, backward=@sin_backward, sources=[0]>(" in text
    parsed = Graph.from_text(text)
    assert parsed.as_text() == text
    parsed.verify()
    graph.verify()
    x = np.array([0.1, 0.2, 0.3], np.float32)
    for found, expected in zip(compile_graph(parsed)(x), compile_graph(graph)(x), strict=True):
        np.testing.assert_array_equal(found, expected)


FITTING = """\
graph @f(%x: f32[2], %k: i32[]) -> (f32[2], i32[]) {
  %0 = sin(%x) : f32[2]
  return %0, %k
}

graph @g(%x: f32[2], %k: i32[], %g0: f32[2]) -> (f32[2]) {
  %0 = cos(%x)      : f32[2]
  %1 = mul(%0, %g0) : f32[2]
  return %1
}

graph @h(%x: f32[2], %k: i32[]) -> (f32[2], i32[]) {
  %0, %1 = custom_call<body=@f, backward=@g, sources=[0]>(%x, %k) : f32[2], i32[]
  return %0, %1
}
"""

MISFITS = {
    "too many inputs": ("%g0: f32[2]) ->", "%g0: f32[2], %g1: f32[2]) ->", "it takes 4 inputs"),
    "too few sources": ("sources=[0]", "sources=[]", "1 outputs for 0 sources"),
    "an integer as source": ("sources=[0]", "sources=[1]", "not distinct differentiable inputs"),
    "no such source": ("sources=[0]", "sources=[7]", "not distinct differentiable inputs"),
    "a negative source": ("sources=[0]", "sources=[-1]", "not distinct differentiable inputs"),
    "another type of input": (
        "graph @g(%x: f32[2], %k: i32[], ",
        "graph @g(%x: f32[2], %k: i32[2], ",
        "its input 1 is i32[2], and it must be i32[]",
    ),
    "another type of output": (
        "-> (f32[2]) {\n  %0 = cos(%x)      : f32[2]\n  %1 = mul(%0, %g0) : f32[2]\n  return %1",
        "-> (f32[]) {\n  %0 = sum<axes=[0]>(%g0) : f32[]\n  return %0",
        "its cotangent of f32[2] is f32[]",
    ),
}


def test_a_backward_that_fits_is_parsed():
    assert Graph.from_text(FITTING).as_text() == FITTING.rstrip()


@pytest.mark.parametrize("name", MISFITS)
def test_a_backward_that_does_not_fit_is_refused(name):
    old, new, problem = MISFITS[name]
    assert old in FITTING
    with pytest.raises(LoadError) as caught:
        Graph.from_text(FITTING.replace(old, new))
    assert "@g is not a backward of @f" in str(caught.value)
    assert problem in str(caught.value)


def test_verify_refuses_a_backward_that_does_not_fit():
    graph = Graph.from_text(FITTING)
    (node,) = graph.nodes
    op = node.op
    node.op = CustomCall(op.body, Graph("g", op.backward.inputs, (), ()), (0,))
    with pytest.raises(
        ShapeError, match="@g is not a backward of @f: it has 0 outputs for 1 sources"
    ):
        graph.verify()


# ---------------------------------------------------------------- recomputation


def network(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = tg.tanh(x * w) + tg.sin(x)
    return tg.reduce_sum(x)


def jax_network(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = jnp.tanh(x * w) + jnp.sin(x)
    return jnp.sum(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_recomputation_at_every_order(run, order):
    kept = tg.recompute_grad(network)
    x, w = vector(0.3, -0.7), vector(1.2, 0.4)
    found, expected = kept, jax_network
    for _ in range(order):
        found = _summed(tg.grad(found), tg.reduce_sum)
        expected = _summed(jax.grad(expected), jnp.sum)
    with jax.enable_x64(True):
        number = jax.jit(expected, compiler_options=QUICK)(x.numpy(), w.numpy())
    near(run(lambda: found(x, w)), number)


def _summed(fn: Callable[..., Any], total: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: total(fn(*xs))


@pytest.mark.sampled(1)
def test_every_use_of_a_recomputation(run):
    kept = tg.recompute_grad(network)
    x, w, t = vector(0.3, -0.7), vector(1.2, 0.4), vector(1.0, 2.0)

    def example():
        return {
            "gradients": tg.grad(kept, (0, 1))(x, w),
            "hessian": tg.hessian(kept, 1)(x, w),
            "jvp": tg.jvp(kept, (x, w), (t, t))[1],
            "hvp": tg.hvp(lambda v: kept(v, w), x, t),
            "map": tg.vectorized_map(lambda v: tg.grad(kept)(v, w), tg.stack([x, t])),
            "forward": tg.jacobian(lambda v: kept(v, w), mode="forward")(x),
        }

    def oracle(a, b, t):
        slope = jax.grad(jax_network)
        return {
            "gradients": jax.grad(jax_network, (0, 1))(a, b),
            "hessian": jax.hessian(jax_network, 1)(a, b),
            "jvp": jax.jvp(jax_network, (a, b), (t, t))[1],
            "hvp": jax.jvp(lambda v: slope(v, b), (a,), (t,))[1],
            "map": [slope(a, b), slope(t, b)],
            "forward": slope(a, b),
        }

    expected = by_jax(oracle, x.numpy(), w.numpy(), t.numpy())
    for name, value in run(example).items():
        near(value, expected[name], name=name)


def test_recomputation_with_variables_captures_and_structures(run):
    v, c = tg.Variable([1.5, 2.0]), tg.constant([0.5, 3.0])

    @tg.recompute_grad
    def f(parts, count):
        y = tg.sin(parts["x"] * v) * c
        return {"y": y, "sum": tg.reduce_sum(y), "count": count + 1}

    def example():
        x = tg.constant([0.2, 0.4])
        with tg.GradientTape() as tape:
            tape.watch([x, c])
            out = f({"x": x}, tg.constant(4))
            total = tg.reduce_sum(out["y"] ** 2) + out["sum"]
        return out["count"], tape.gradient(total, [x, v, c])

    def oracle(x, v, c):
        y = jnp.sin(x * v) * c
        return jnp.sum(y**2) + jnp.sum(y)

    count, found = run(example)
    expected = jax.jit(jax.grad(oracle, (0, 1, 2)))(
        np.float32([0.2, 0.4]), np.float32([1.5, 2.0]), np.float32([0.5, 3.0])
    )
    assert count.numpy() == 5
    for g, e in zip(found, expected, strict=True):
        near(g, e, 1e-5)


@pytest.mark.sampled(1)
def test_recomputation_draws_the_same_numbers(run):
    @tg.recompute_grad
    def dropped(x):
        return tg.sin(x * tg.random.uniform([50])) * 1.0

    x = tg.ones([50])

    def example():
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = dropped(x)
            g = tape.gradient(y, x)
        return y, g, outer.gradient(g, x)

    for _ in range(2):
        y, g, h = (value.numpy() for value in run(example))
        mask = np.arcsin(y)
        np.testing.assert_allclose(g, np.cos(mask) * mask, rtol=1e-5)
        np.testing.assert_allclose(h, -np.sin(mask) * mask**2, rtol=1e-5)


def test_recomputation_reads_the_variables_of_the_forward_pass():
    v = tg.Variable(2.0)
    f = tg.recompute_grad(lambda x: tg.sin(x * v))
    x = tg.constant(0.5)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    v.assign(100.0)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), 2.0 * np.cos(1.0), rtol=1e-6)


@pytest.mark.sampled(1)
def test_nested_recomputation(run):
    inner = tg.recompute_grad(lambda x: tg.sin(tg.exp(x)))
    outer = tg.recompute_grad(lambda x: inner(inner(x)) * x)

    def oracle(x):
        return jnp.sin(jnp.exp(jnp.sin(jnp.exp(x)))) * x

    first = jax.grad(oracle)
    expected = by_jax(lambda v: (first(v), jax.grad(first)(v)), 0.3)
    x = vector(0.3)[0]
    near(run(lambda: tg.grad(outer)(x)), expected[0])
    near(run(lambda: tg.grad(tg.grad(outer))(x)), expected[1])


def test_what_is_printed_is_printed_once(capfd):
    f = tg.recompute_grad(lambda x: (tg.print("here"), tg.sin(x))[1])
    assert float(tg.grad(f)(0.0)) == 1.0
    captured = capfd.readouterr()
    assert (captured.out + captured.err).count("here") == 1


def stack(x: Any, weights: Any, wrap: Callable[..., Any]) -> Any:
    """Sixteen layers whose gradient needs what they compute."""

    def layer(x, w):
        return tg.tanh(tg.tanh(tg.tanh(x @ w) @ w) @ w)

    for w in weights:
        x = wrap(layer)(x, w)
    return tg.reduce_sum(x)


def temporary_memory(wrap: Callable[..., Any], rows: int, columns: int) -> int:
    """The bytes that the gradient's program needs beside its inputs and outputs."""
    x = tg.TensorSpec([rows, columns])

    @tg.function
    def slopes(x, weights):
        return tg.grad(lambda x: stack(x, tg.unstack(weights), wrap))(x)

    graph = slopes.get_concrete_function(x, tg.TensorSpec([16, columns, columns])).graph
    return compile_graph(graph).lowered().compile().memory_analysis().temp_size_in_bytes


def test_recomputation_saves_memory():
    usual = temporary_memory(lambda f: f, 2048, 512)
    saving = temporary_memory(tg.recompute_grad, 2048, 512)
    assert saving <= 0.5 * usual, (saving, usual)


def test_recomputation_saves_memory_in_a_scan():
    """Over identical blocks: of each step its state is kept, and nothing in between."""
    rows, columns, steps = 512, 64, 50

    def block(x, w):
        for _ in range(4):
            x = tg.tanh(x @ w) + tg.sin(x)
        return x

    def needed(wrap):
        chain = lambda x, ws: tg.reduce_sum(tg.foldl(wrap(block), ws, x) ** 2)  # noqa: E731
        slopes = tg.function(lambda x, ws: tg.grad(chain, argnums=1)(x, ws))
        specs = tg.TensorSpec([rows, columns]), tg.TensorSpec([steps, columns, columns])
        graph = slopes.get_concrete_function(*specs).graph
        return compile_graph(graph).lowered().compile().memory_analysis().temp_size_in_bytes

    state = 4 * rows * columns * steps
    assert needed(tg.recompute_grad) <= 1.5 * state
    assert needed(lambda f: f) >= 3 * state


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "loop",
    [
        lambda f, x: tg.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, f(s)), (0, x))[1],
        lambda f, x: tg.foldl(lambda s, _: f(s), tg.range(3), x),
        lambda f, x: tg.map_fn(f, x[None])[0],
        lambda f, x: tg.cond(x > 0.0, lambda: f(x), lambda: x),
    ],
)
def test_recomputation_in_loops_and_branches(loop):
    """Of few numbers too, whose loops XLA compiles otherwise."""
    plain = lambda x: tg.tanh(tg.sin(x) * x)  # noqa: E731
    again = tg.recompute_grad(plain)
    x = tg.constant(1.5)
    expected = tg.grad(lambda x: loop(plain, x))(x).numpy()
    for wrap in (lambda f: f, tg.function):
        found = wrap(tg.grad(lambda x: loop(again, x)))(x).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


# ---------------------------------------------------------------- straight through


def test_grad_pass_through(run):
    rounded = tg.grad_pass_through(tg.round)
    x = tg.constant([1.3, 2.6])

    def example():
        return rounded(x), tg.grad(lambda v: tg.reduce_sum(rounded(v) ** 2))(x)

    y, g = run(example)
    np.testing.assert_array_equal(y.numpy(), [1.0, 3.0])
    np.testing.assert_array_equal(g.numpy(), [2.0, 6.0])


def test_grad_pass_through_other_arguments_and_variables():
    v = tg.Variable(2.0)
    f = tg.grad_pass_through(lambda x, y, mode=None: tg.round(x * y) * v)
    x, y = tg.constant(1.3), tg.constant(3.0)
    for options in ({}, {"mode": "linear"}, {"mode": None}):
        found = gradients(lambda x, y, v, options=options: f(x, y, **options), x, y, v)
        assert found[0].numpy() == 1.0
        assert found[1:] == [None, None]
    found = gradients(lambda x, y: f(x, y, "linear"), x, y)
    assert found[0].numpy() == 1.0
    assert float(tg.grad(lambda x: tg.grad_pass_through(tg.sign)(x=x))(5.0)) == 1.0


def test_grad_pass_through_of_structures():
    f = tg.grad_pass_through(lambda parts: {k: tg.floor(x) for k, x in parts.items()})
    parts = {"b": tg.constant(1.5), "a": tg.constant(2.5)}
    with tg.GradientTape() as tape:
        tape.watch(parts)
        out = f(parts)
        y = 2.0 * out["a"] + 3.0 * out["b"]
    assert y.numpy() == 7.0
    assert {k: g.numpy() for k, g in tape.gradient(y, parts).items()} == {"a": 2.0, "b": 3.0}


def test_grad_pass_through_in_forward_mode_and_loops():
    f = tg.grad_pass_through(tg.sign)
    assert float(tg.jvp(f, (3.0,), (2.0,))[1]) == 2.0
    xs = tg.constant([1.0, -2.0])
    np.testing.assert_array_equal(tg.vectorized_map(tg.grad(f), xs).numpy(), [1.0, 1.0])


# ---------------------------------------------------------------- gradients that are forbidden


def test_prevent_gradient(run):
    x = tg.Variable(2.0)

    def example():
        with tg.GradientTape() as tape:
            y = tg.raw_ops.PreventGradient(input=x * 3.0, message="not through here") * 2.0
        return tape.gradient(y, x)

    with pytest.raises(LookupError, match="explicitly disabled here: not through here") as caught:
        run(example)
    assert f"test_custom_gradient.py:{example.__code__.co_firstlineno + 2}:" in str(caught.value)
    assert run(lambda: tg.raw_ops.PreventGradient(input=x)).numpy() == 2.0


def test_prevent_gradient_in_forward_mode():
    def f(x):
        return tg.raw_ops.PreventGradient(input=x)

    with pytest.raises(LookupError, match="explicitly disabled"):
        tg.jvp(f, (1.0,), (1.0,))
    assert tg.vectorized_map(f, tg.constant([1.0, 2.0])).shape == (2,)


# ---------------------------------------------------------------- what is passed by name alone


@tg.custom_gradient
def scaled_by_name(x, *, scale, shift):
    return x * scale + shift, lambda dy: (dy * scale, dy * x, dy * 10.0)


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_is_passed_by_name_alone_has_gradients_in_signature_order(is_traced):
    def gradients(x, scale, shift):
        with tg.GradientTape() as tape:
            tape.watch([x, scale, shift])
            y = scaled_by_name(x, shift=shift, scale=scale)
        return tape.gradient(y, [x, scale, shift])

    fn = tg.function(gradients) if is_traced else gradients
    found = fn(tg.constant(2.0), tg.constant(3.0), tg.constant(4.0))
    assert [float(g) for g in found] == [3.0, 2.0, 10.0]


def test_a_backward_that_leaves_out_what_is_followed_is_refused():
    @tg.custom_gradient
    def scaled(x, *, scale):
        return x * scale, lambda dy: dy * scale

    x, scale = tg.constant(2.0), tg.constant(3.0)
    assert float(tg.grad(lambda x: scaled(x, scale=scale))(x)) == 3.0
    with tg.GradientTape() as tape:
        tape.watch([x, scale])
        with pytest.raises(ValueError, match="returned 1 gradient for 2 arguments"):
            scaled(x, scale=scale)


def test_grad_pass_through_of_what_is_passed_by_name_alone():
    step = tg.grad_pass_through(stepped)
    x, width = tg.constant(2.4), tg.constant(1.0)
    with tg.GradientTape() as tape:
        tape.watch([x, width])
        y = step(x, width=width)
    slope, other = tape.gradient(y, [x, width])
    assert float(slope) == 1.0 and other is None


def stepped(x, *, width):
    return tg.round(x / width) * width


# What is compiled.


@tg.custom_gradient
def doubling(x):
    return x, lambda g: 2.0 * g


@jax.custom_vjp
def jax_doubling(x):
    return x


jax_doubling.defvjp(lambda x: (x, None), lambda _, g: (2.0 * g,))

BODIES = {
    "residuals that are inputs": (lambda x: x * x, lambda x: x * x, 2),
    "a residual that is the result": (tg.exp, jnp.exp, 2),
    "a result that a custom gradient passes on": (
        lambda x: doubling(tg.tanh(x)),
        lambda x: jax_doubling(jnp.tanh(x)),
        2,
    ),
    "a residual of its own": (lambda x: 3.0 * tg.tanh(x), lambda x: 3.0 * jnp.tanh(x), 3),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("is_plain_first", [True, False])
def test_a_call_under_a_tape_runs_the_plain_program_where_that_gives_the_residuals(
    body, is_plain_first, monkeypatch
):
    """And the second derivative goes by the custom gradient where it lies between: JAX has it."""
    function, reference, expected = BODIES[body]
    f = tg.function(function)
    x = tg.constant([0.3, -0.7])
    program, made = backend.program, []
    monkeypatch.setattr(backend, "program", lambda *a: made.append(a[0].name) or program(*a))
    if is_plain_first:
        f(x).numpy()
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    slope = tape.gradient(y, x).numpy()
    np.testing.assert_allclose(y.numpy(), reference(x.numpy()), rtol=1e-6)
    np.testing.assert_allclose(f(x).numpy(), reference(x.numpy()), rtol=1e-6)
    assert len(made) == expected, made
    first = jax.grad(lambda x: reference(x).sum())
    second = jax.grad(lambda x: first(x).sum())
    of_jax = jax.jit(lambda x: (first(x), second(x)))(x.numpy())
    np.testing.assert_allclose(slope, of_jax[0], rtol=1e-6)
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        slope = tape.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(slope, x).numpy(), of_jax[1], rtol=1e-5)


# Dicts.


@pytest.mark.parametrize("mode", [tg.function, lambda f: f], ids=["function", "top level"])
@pytest.mark.parametrize("order", [("z", "a"), ("a", "z")])
def test_cotangents_of_a_dict_come_in_the_order_of_sorted_keys(mode, order):
    got = []

    @tg.custom_gradient
    def f(x, y):
        def grad(*cotangents):
            got.append(len(cotangents))
            of_a, of_z = cotangents
            return of_z * 2.0, of_a * 3.0

        results = {"z": x * 2.0, "a": y * 3.0}
        return {key: results[key] for key in order}, grad

    def plain(x, y):
        return {"z": x * 2.0, "a": y * 3.0}

    def slopes(fn):
        x, y = tg.constant(3.0), tg.constant(5.0)
        with tg.GradientTape() as tape:
            tape.watch([x, y])
            result = fn(x, y)
            loss = result["z"] * 100.0 + result["a"]
        return tape.gradient(loss, [x, y])

    found, wanted = (mode(lambda fn=fn: slopes(fn))() for fn in (f, plain))
    assert [float(x) for x in found] == [float(x) for x in wanted] == [200.0, 3.0]
    assert [*f(tg.constant(1.0), tg.constant(1.0))] == list(order) and set(got) == {2}


@pytest.mark.parametrize(
    "gradients",
    [
        lambda g: {"z": g * 5.0, "a": g * 3.0},
        lambda g: {"a": g * 3.0, "z": g * 5.0},
        lambda g: (g * 3.0, g * 5.0),
    ],
    ids=["dict", "dict in another order", "one after another, by sorted keys"],
)
def test_gradients_of_a_dict_may_be_a_dict_in_any_order(gradients):
    @tg.custom_gradient
    def f(p):
        return p["z"] * p["a"], gradients

    p = {"z": tg.Variable(3.0), "a": tg.Variable(5.0)}
    with tg.GradientTape() as tape:
        y = f(p)
    found = tape.gradient(y, p)
    assert {key: float(x) for key, x in found.items()} == {"z": 5.0, "a": 3.0}
    assert [*found] == ["z", "a"]


def test_a_parallel_loop_over_a_function_of_unknown_rank():
    """The custom gradient inside was traced for any rank, and the rows have one."""

    @tg.custom_gradient
    def cube(x, w):
        def back(g):
            return 3.0 * g * x * x * w, tg.reduce_sum(g * x * x * x)

        return x * x * x * w, back

    specs = [tg.TensorSpec(None, tg.float64), tg.TensorSpec([], tg.float64)]
    inner = tg.function(lambda x, w: cube(x, w) + x, input_signature=specs)
    w = tg.constant(0.7, tg.float64)

    def slopes(x):
        with tg.GradientTape() as tape:
            tape.watch([x, w])
            y = inner(x, w)
        return tape.gradient(y, [x, w])

    rows = np.array([[0.3, -1.2], [0.4, 0.9], [1.1, 0.2]])
    found = tg.vectorized_map(slopes, tg.constant(rows))
    by_both = jax.grad(lambda x, w: (x**3 * w + x).sum(), (0, 1))
    expected = by_jax(jax.vmap(by_both, (0, None)), rows, 0.7)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)


@pytest.mark.parametrize("spec", [tg.TensorSpec([]), tg.float32], ids=["declared", "open"])
def test_a_backward_function_that_calls_python_is_refused(spec, run):
    @tg.custom_gradient
    def double(x):
        return x * 2.0, lambda g: tg.py_function(lambda q: q * 2.0, [g], spec)

    with pytest.raises(GradientError, match="its backward function prints, checks, calls Python"):
        run(lambda: double(tg.constant(1.0)))
