"""`as_jax`: traced functions under JAX's own transformations, by our derivatives.

The oracles are JAX on the same function written for it, our own derivatives, and NumPy.
"""

import dataclasses
import inspect
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from lowering.export import jax_derivatives
from lowering.export.jax_derivatives import differentiable
from lowering.program import graph_function
from lowering.rules import RULES as LOWERING_RULES
from tests.compiling import QUICK
from tests.derived_graphs import jvp_graph, vjp_graph
from tests.op_table import CASES
from tests.ops.test_ops import has_derivative, traced
from tests.oracles import raises
from tracegraph.core.types import complex128, float64
from tracegraph.ops import constant, elementwise, random
from tracegraph.passes import registry

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

W = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)
X = np.array([[0.5, -1.0], [2.0, 0.125], [-0.75, 1.5], [0.3, 0.2]], np.float32)
HERE = os.path.basename(__file__)


def close(found, wanted, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, wanted
    )


# A plain function.


@tg.function
def network(x, w):
    return tg.reduce_mean(tg.square(tg.tanh(x @ w) + 0.5 * tg.sin(x)[:, :1]))


def network_of_jax(x, w):
    return jnp.mean(jnp.square(jnp.tanh(x @ w) + 0.5 * jnp.sin(x)[:, :1]))


TRANSFORMS = {
    "call": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(f, argnums=(0, 1)),
    "value_and_grad": jax.value_and_grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda f: jax.hessian(f, argnums=1),
    "third order": lambda f: jax.jacfwd(jax.hessian(f, argnums=1), argnums=1),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (jnp.cos(x), jnp.sin(w))),
    "linearize": lambda f: lambda x, w: jax.linearize(f, x, w)[1](jnp.cos(x), jnp.sin(w)),
    "vmap": lambda f: jax.vmap(lambda row, w: f(row[None], w), in_axes=(0, None)),
    "jit of vmap of grad": lambda f: jax.jit(
        jax.vmap(lambda row, w: jax.grad(f)(row[None], w), in_axes=(0, None))
    ),
    "grad of scan": lambda f: jax.grad(
        lambda x, w: jax.lax.scan(lambda c, row: (c + f(row[None] * c, w), c), 1.0, x)[0]
    ),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations(name):
    transform = TRANSFORMS[name]
    found, wanted = (transform(f)(X, W) for f in (network.as_jax(), network_of_jax))
    close(found, wanted)


@dataclasses.dataclass
class Layer:
    weights: object
    bias: object


def test_structures_keywords_and_what_leaves_may_be():
    @tg.function
    def apply(layer, x, *, factor=1.0, options=None):
        """What users read."""
        y = x @ layer["w"] + layer["b"]
        return {"y": factor * y, "pair": (tg.reduce_sum(y), None), "layer": Layer(y, y)}

    f = apply.as_jax()
    for x, w in itertools.product((X, jnp.asarray(X), tg.constant(X)), (W, jnp.asarray(W))):
        found = f({"w": w, "b": 1}, x, factor=2)
        close(found["y"], 2.0 * (X @ W + 1.0))
        assert found["pair"][1] is None
        leaves = (found["y"], found["pair"][0], found["layer"].weights)
        assert all(isinstance(y, jax.Array) for y in leaves)
    assert f.__doc__ == "What users read."
    assert str(inspect.signature(f)) == "(layer, x, *, factor=1.0, options=None)"
    plain = tg.function(lambda x, factor: factor * x).as_jax()
    close(jax.jit(plain, static_argnames="factor")(X, factor=3.0), 3.0 * X)


def test_one_trace_per_signature():
    @tg.function
    def double(x):
        return 2 * x

    f = jax.jit(double.as_jax())
    for size in (2, 3, 2, 3):
        f(jnp.ones(size))
    jax.grad(lambda x: double.as_jax()(x).sum())(jnp.ones(2))
    assert double.experimental_get_tracing_count() == 2


def test_signatures_with_open_sizes():
    @tg.function(input_signature=[tg.TensorSpec([None, 2]), tg.TensorSpec([])])
    def scaled(x, factor):
        return factor * x[1:]

    f = scaled.as_jax()
    for rows in (1, 2, 5):
        x = np.ones([rows, 2], np.float32)
        close(jax.jit(f)(x, 3.0), 3.0 * x[1:])
        close(jax.grad(lambda x: f(x, 3).sum())(x), np.r_[0 * x[:1], 3.0 + 0 * x[1:]])
    assert scaled.experimental_get_tracing_count() == 1
    message = raises(TypeError, r"f32\[2,3\], and TensorSpec", lambda: f(jnp.ones((2, 3)), 1.0))
    assert HERE in message


def test_a_size_that_was_assumed_is_traced_again():
    opened = tg.function(lambda x, y: x + y, reduce_retracing=True)
    f = opened.as_jax()
    for left, right in ((2, 2), (3, 3), (3, 1), (1, 3)):
        close(f(jnp.ones(left), jnp.ones(right)), 2.0 * np.ones(max(left, right)))


def test_concrete_functions():
    concrete = network.get_concrete_function(tg.TensorSpec([None, 2]), tg.TensorSpec([2, 3]))
    close(jax.grad(concrete.as_jax())(X, W), jax.grad(network_of_jax)(X, W))
    close(concrete.as_jax()(x=X, w=W), network_of_jax(X, W))
    raises(TypeError, r"'w' is f32\[3,2\]", lambda: concrete.as_jax()(X, jnp.ones((3, 2))))


def test_sizes_that_jax_leaves_open():
    f = network.as_jax()
    sizes = jax.export.symbolic_shape("rows, 2")
    traced = jax.jit(jax.grad(f)).trace(jax.ShapeDtypeStruct(sizes, np.float32), W)
    assert [str(size) for size in traced.out_info.shape] == ["rows", "2"]


# Derivatives that are ours.


@tg.custom_gradient
def doubled(x):
    """The identity, whose derivative is said to be 2."""
    return tg.identity(x), lambda dy: 2.0 * dy


@tg.custom_gradient
def clipped(x):
    """The identity, whose cotangent is clipped: it is not linear."""
    return tg.identity(x), lambda dy: tg.clip_by_value(dy, -0.5, 0.5)


@tg.custom_gradient
def nested(x):
    """A cube whose first derivative is 3x^2, and whose second is said to be 100."""

    def first(dy):
        @tg.custom_gradient
        def slope(x):
            return 3.0 * x * x, lambda ddy: 100.0 * ddy

        return dy * slope(x)

    return x * x * x, first


@tg.custom_gradient
def twofold(x):
    """A backward that has a gradient of its own by the cotangent, which is another one."""

    @tg.custom_gradient
    def first(dy):
        return 7.0 * dy, lambda ddy: 11.0 * ddy

    return x * x, first


def tape_derivatives(f, x, order):
    """The value and the derivatives by nested tapes; None is zero."""
    found = derived(f, tg.constant(x), order)
    return [0.0 if y is None else float(y) for y in found]


def derived(f, x, order):
    if order == 0:
        return [f(x)]
    with tg.GradientTape() as tape:
        tape.watch(x)
        lower = derived(f, x, order - 1)
    return [*lower, None if lower[-1] is None else tape.gradient(lower[-1], x)]


def modes_of(count):
    """Orders of modes, the innermost first."""
    return itertools.product("fr", repeat=count)


def forward(f):
    """The derivative of a function of one number, in forward mode."""
    return lambda x: tg.jvp(f, (x,), (tg.ones_like(x),))[1]


CUSTOM = {
    "doubled": doubled,
    "clipped": clipped,
    "nested": nested,
    "twofold": twofold,
    "in a function": tg.function(lambda x: nested(doubled(x) * x)),
    "in two functions": tg.function(lambda x: tg.function(lambda y: y * nested(y))(tg.sin(x))),
    "within": lambda x: doubled(nested(x)) * x,
    "recomputed": tg.recompute_grad(lambda x: nested(tg.sin(x)) * x),
    "recomputed clip": tg.recompute_grad(lambda x: clipped(x * x) * x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("compiled", [False, True], ids=["as it is", "jit"])
def test_custom_gradients_of_every_order(name, compiled):
    f = CUSTOM[name]
    wanted = tape_derivatives(f, 0.75, 3)
    g = tg.function(f).as_jax()
    for value in wanted:
        close(jax.jit(g)(0.75) if compiled else g(0.75), value, 1e-4)
        g = jax.grad(g)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["doubled", "nested", "in a function", "in two functions", "within"]
)
def test_custom_gradients_in_both_modes(name):
    f = tg.function(CUSTOM[name]).as_jax()
    _, slope, curvature, _ = tape_derivatives(CUSTOM[name], 0.75, 3)
    close(jax.jvp(f, (0.75,), (2.0,))[1], 2.0 * slope)
    for outer, inner in itertools.product((jax.jacfwd, jax.jacrev), repeat=2):
        close(outer(inner(f))(0.75), curvature, 1e-4)
    points = jnp.array([0.75, 0.75])
    close(jax.vmap(jax.hessian(f))(points), [curvature, curvature], 1e-4)


@tg.custom_gradient
def exponential(x):
    """A backward with a derivative by x and one by the cotangent, both of its own."""
    second = tg.custom_gradient(
        lambda x, dy: (dy * tg.exp(x) * 2.0, lambda d: (d * dy * 5.0 * x, d * tg.exp(x) * 3.0))
    )
    return tg.exp(x), lambda dy: second(x, dy)


@tg.custom_gradient
def product(x, y):
    """Two inputs and two outputs, of which one is an integer's."""
    rule = tg.custom_gradient(
        lambda x, y, g: (g * y, lambda d: (5.0 * d * x, 2.0 * d * g, 3.0 * d * y))
    )
    return (x * y, tg.shape(x)), lambda g, _: (rule(x, y, g), rule(y, x, g))


NESTED = {
    "exponential": exponential,
    "twofold": twofold,
    "product": lambda x: product(x, tg.sin(x))[0],
    "twice": lambda x: exponential(0.5 * exponential(x)),
    "in a function": tg.function(lambda x: tg.reduce_sum(exponential(tg.stack([x, 2.0 * x])))),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("modes", ["".join(m) for k in (1, 2, 3) for m in modes_of(k)])
@pytest.mark.parametrize("name", NESTED)
def test_nested_custom_gradients_in_both_modes(name, modes):
    """What our own passes give: forward mode transposes what reverse mode calls."""
    ours, theirs = NESTED[name], tg.function(NESTED[name]).as_jax()
    for mode in modes:
        ours = forward(ours) if mode == "f" else tg.grad(ours)
        theirs = (jax.jacfwd if mode == "f" else jax.jacrev)(theirs)
    wanted = ours(tg.constant(0.75)).numpy()
    close(jax.jit(theirs)(jnp.float32(0.75)), wanted, 1e-4)
    close(jax.jit(jax.vmap(theirs))(jnp.float32([0.75]))[0], wanted, 1e-4)
    if len(modes) < 3:  # op by op, of which JAX compiles each by itself
        close(theirs(jnp.float32(0.75)), wanted, 1e-4)


def test_nested_custom_gradients_within_transformations():
    f = tg.function(exponential).as_jax()
    x = jnp.array([0.25, 0.5])
    looped = lambda x: jax.lax.scan(lambda c, _: (0.5 * f(c), None), x, None, 3)[0].sum()  # noqa: E731
    plain = lambda x: (0.5 * f(0.5 * f(0.5 * f(x)))).sum()  # noqa: E731
    for derive in (jax.grad, jax.jacfwd, lambda f: jax.jacfwd(jax.jacfwd(f))):
        close(derive(looped)(x), derive(plain)(x), 1e-4)
    for derive in (jax.grad, jax.hessian):
        close(derive(jax.checkpoint(plain))(x), derive(plain)(x), 1e-4)
    rows = jnp.stack([x, x + 1.0])
    mapped = jax.vmap(lambda x, w: (w * f(x)).sum(), in_axes=(0, None))
    for derive in (jax.jacfwd, jax.jacrev):
        found = derive(mapped, argnums=1)(rows, x)
        close(found, f(rows))


def test_a_backward_that_is_not_linear_has_reverse_mode_alone():
    f = tg.function(lambda x: tg.reduce_sum(clipped(x) * x)).as_jax()
    x = np.array([0.25, -3.0, 2.0], np.float32)
    close(jax.grad(f)(x), x + np.clip(x, -0.5, 0.5))
    close(jax.vmap(jax.grad(f))(x[:, None])[:, 0], x + np.clip(x, -0.5, 0.5))
    for derive in (jax.jacfwd, lambda f: lambda x: jax.jvp(f, (x,), (x,))):
        for g in (f, jax.jit(f)):
            call = lambda g=g, derive=derive: derive(g)(x)  # noqa: E731
            assert HERE in raises(tg.errors.MissingRuleError, "not linear in the cotangent", call)
    g = tg.function(lambda x: tg.reduce_sum(clipped(x**3))).as_jax()
    close(jax.jacrev(jax.grad(g))(x), np.diag(0.5 * 6.0 * x))


def test_variables_of_a_custom_gradient():
    v = tg.Variable(3.0)

    @tg.custom_gradient
    def scaled(x):
        return v * x, lambda dy, variables=None: (5.0 * dy, [dy])

    f = tg.function(lambda x: scaled(x)).as_jax()
    assert (float(f(2.0)), float(jax.grad(f)(2.0))) == (6.0, 5.0)


@pytest.mark.parametrize("is_linear", [True, False])
def test_cotangents_of_complex_numbers_are_those_of_jax(is_linear):
    @tg.custom_gradient
    def square(z):
        def backward(dz):
            slope = 2.0 * tg.math.conj(z)
            if is_linear:
                return dz * slope
            return slope * tg.complex(tg.maximum(tg.math.real(dz), -9.0), tg.math.imag(dz))

        return z * z, backward

    z = jnp.complex64(1 + 2j)
    for part, part_of_jax in ((tg.math.real, jnp.real), (tg.math.imag, jnp.imag)):
        found = jax.grad(tg.function(lambda z, part=part: part(square(z))).as_jax())(z)
        close(found, jax.grad(lambda z, part=part_of_jax: part(z * z))(z))


@pytest.fixture
def register(monkeypatch):
    """`tg.RegisterGradient`, undone after the test."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_places", dict(registry._places))
    return tg.RegisterGradient


IMAGE = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
RULES = {
    "linear": lambda op, g: (3.0 * g, None),
    "not linear": lambda op, g: (3.0 * tg.minimum(g, 9.0), None),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RULES)
def test_registered_gradients(register, name):
    register("adjust_contrast")(RULES[name])
    f = tg.function(lambda x: tg.reduce_sum(tg.image.adjust_contrast(x, 2.0) * x)).as_jax()
    y = np.asarray(tg.image.adjust_contrast(IMAGE, 2.0))
    close(jax.grad(f)(IMAGE), y + 3.0 * (IMAGE if name == "linear" else np.minimum(IMAGE, 9.0)))
    close(jax.vmap(jax.grad(f))(IMAGE[None]), jax.grad(f)(IMAGE)[None])
    if name == "linear":
        close(jax.jacfwd(f)(IMAGE), jax.grad(f)(IMAGE))


def test_a_registered_gradient_that_is_not_linear_has_no_forward_mode(register):
    register("adjust_contrast")(RULES["not linear"])
    x = tg.constant(IMAGE)
    push = lambda: tg.jvp(lambda x: tg.image.adjust_contrast(x, 2.0), (x,), (x,))  # noqa: E731
    assert HERE in raises(tg.errors.MissingRuleError, "not linear in the cotangent", push)


def test_an_op_that_is_declared_to_have_no_gradient(register):
    tg.no_gradient("adjust_contrast")
    f = tg.function(lambda x: tg.reduce_sum(tg.image.adjust_contrast(x, 2.0) * x)).as_jax()
    close(jax.grad(f)(IMAGE), np.asarray(tg.image.adjust_contrast(IMAGE, 2.0)))


def test_recomputation_is_left_to_checkpoint():
    deep = tg.recompute_grad(lambda x: tg.sin(tg.sin(tg.sin(x))))
    f = tg.function(lambda x: tg.reduce_sum(deep(x))).as_jax()
    of_jax = lambda x: jnp.sum(jnp.sin(jnp.sin(jnp.sin(x))))  # noqa: E731
    for derive in (jax.grad, jax.jacfwd, jax.hessian):
        close(derive(f)(X[0]), derive(of_jax)(X[0]))
    _, pull = jax.vjp(f, X[0])
    assert sum(leaf.size for leaf in jax.tree.leaves(pull)) <= X[0].size  # the argument alone


KINKS = {
    "relu": (tg.nn.relu, [-1.0, 0.0, 2.0], [0.0, 0.0, 1.0]),
    "maximum": (lambda x: tg.maximum(x, 1.0), [0.0, 1.0, 2.0], None),
    "abs": (tg.abs, [-1.0, 0.0, 2.0], [-1.0, 0.0, 1.0]),
    "pow": (lambda x: x ** tg.constant(2.0), [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]),
    "stop_gradient": (lambda x: x * tg.stop_gradient(x), [3.0], [3.0]),
    "norm": (tg.norm, [0.0, 0.0], None),
    "reduce_max": (tg.reduce_max, [1.0, 1.0, 0.0], None),
    "sort": (lambda x: tg.sort(x)[0], [1.0, 1.0], None),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_have_our_derivatives(name):
    f, x, wanted = KINKS[name]
    x = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    ours = tape.gradient(y, x).numpy()
    if wanted is not None:
        np.testing.assert_array_equal(ours, wanted)
    g = tg.function(lambda x: tg.reduce_sum(f(x))).as_jax()
    for derive in (jax.grad, jax.jacfwd):
        np.testing.assert_array_equal(derive(g)(x.numpy()), ours)


def test_a_gradient_that_is_prevented_is_refused_where_it_was():
    guarded = tg.function(lambda x: tg.raw_ops.PreventGradient(input=x, message="no way") * 2.0)
    f = guarded.as_jax()
    assert float(f(1.0)) == 2.0
    message = raises(tg.errors.GradientError, "no way", lambda: jax.grad(f)(1.0))
    assert HERE in message


# Every op: JAX's transformations give what our passes build.

WRAPPED = [
    case
    for case in CASES
    if not isinstance(case.op, (elementwise.PreventGradient, random.GammaSlope, constant.Nullary))
    and case.op.name != "adjust_contrast"
    and not getattr(case.op, "full_matrices", False)  # whose vectors have no derivative
]
CHUNKS = [WRAPPED[k::64] for k in range(64)]


def dtype_of(case):
    """The type in which a row is tried; None where it has no derivative."""
    dtype = float64 if "f" in case.kinds or not case.kinds else complex128
    is_allowed = dtype not in case.refuses and (dtype is float64 or "c" in case.kinds)
    return dtype if is_allowed and has_derivative(case, dtype) else None


def is_inexact(array):
    return jnp.issubdtype(array.dtype, jnp.inexact)


def derivatives(case, xs):
    """Pairs of JAX's derivatives of a row and those that our graphs compute."""
    graph = traced(case, dtype_of(case))
    places = [i for i, x in enumerate(xs) if is_inexact(x)]

    def run(*values):
        given = dict(zip(places, values))
        ys = differentiable(graph)(*(given.get(i, x) for i, x in enumerate(xs)))
        return tuple(y for y in ys if is_inexact(y))

    values = [xs[i] for i in places]
    ts = [0.5 + 0.25 * jnp.cos(jnp.real(x)).astype(x.dtype) for x in values]
    ys, pushed = jax.jvp(run, values, ts)
    gs = tuple(0.5 + 0.25 * jnp.sin(jnp.real(y)).astype(y.dtype) for y in ys)
    gs = tuple(jnp.where(jnp.isfinite(g), g, 1.0) for g in gs)
    _, pull = jax.vjp(run, *values)
    forward = graph_function(jvp_graph(graph))(*xs, *ts)[len(graph.outputs) :]
    reverse = graph_function(vjp_graph(graph))(*xs, *map(jnp.conj, gs))
    yield from zip(pushed, forward, strict=True)
    yield from zip(map(jnp.conj, pull(gs)), reverse, strict=True)
    if case.order > 1 and not any(map(jnp.iscomplexobj, (*values, *ys))):
        second = graph_function(vjp_graph(vjp_graph(graph)))(*xs, *gs, *ts)
        _, pull = jax.vjp(lambda *values: jax.vjp(run, *values)[1](gs), *values)
        yield from zip(pull(tuple(ts)), second[: len(places)], strict=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
def test_derivatives_of_every_op(chunk):
    cases = [case for case in CHUNKS[chunk] if dtype_of(case) is not None]
    arrays = [case.values(dtype_of(case)) for case in cases]
    with jax.enable_x64(True):
        both = jax.jit(lambda rows: [list(derivatives(c, xs)) for c, xs in zip(cases, rows)])
        found = both.lower(arrays).compile(compiler_options=QUICK)(arrays)
    for case, pairs in zip(cases, found, strict=True):
        for a, b in pairs:
            size = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7 * size, err_msg=str(case))


# Variables and captures.


def test_variables_enter_with_the_value_that_they_have_at_the_call():
    v = tg.Variable([1.0, 2.0])
    f = tg.function(lambda x: tg.reduce_sum(v * x)).as_jax()
    compiled = jax.jit(f)
    ones = jnp.ones(2)
    before = compiled(ones)
    value = tg.function(lambda: v.read_value()).as_jax()()

    @tg.function
    def step():
        v.assign_add([1.0, 1.0])

    for _ in range(3):
        step()  # in place, but for the buffers that JAX holds
    assert (float(before), float(f(ones)), float(compiled(ones))) == (3.0, 9.0, 3.0)
    assert value.tolist() == [1.0, 2.0]
    close(jax.grad(f)(ones), [4.0, 5.0])
    v.assign(2.0 * v)  # pending when JAX traces
    assert float(jax.jit(lambda x: f(x))(ones)) == 18.0
    assert v.numpy().tolist() == [8.0, 10.0]


def test_what_is_pending_is_computed_outside_of_what_jax_traces():
    c = tg.constant(3.0) * 2.0
    f = jax.jit(tg.function(lambda x: x * c).as_jax())
    assert float(f(2.0)) == 12.0
    assert c.numpy() == 6.0


def test_variables_that_the_first_call_creates_and_variables_as_arguments():
    class Scale(tg.Module):
        w = None

        @tg.function
        def __call__(self, x):
            if self.w is None:
                self.w = tg.Variable(tg.fill([2], 3.0))
            return x * self.w

    scale = Scale()
    assert jax.jit(scale.__call__.as_jax())(jnp.ones(2)).tolist() == [3.0, 3.0]
    assert scale.w.numpy().tolist() == [3.0, 3.0]
    f = tg.function(lambda v, x: v * x).as_jax()
    for value in (2.0, 5.0):
        assert float(jax.grad(f, argnums=1)(tg.Variable(value), 1.0)) == value


def test_per_example_gradients_of_a_layer():
    layer = tg.layers.Dense(3, activation=tg.nn.relu)
    f = tg.function(lambda x: tg.reduce_sum(layer(x))).as_jax()
    f(X)  # builds it
    kernel = layer.kernel.numpy()
    wanted = ((X @ kernel > 0.0)[:, None] * kernel).sum(-1)
    close(jax.vmap(jax.grad(lambda row: f(row[None])))(X), wanted)


def test_an_interrupt_leaves_no_function_behind_that_jax_refuses(monkeypatch):
    f = tg.function(lambda x: tg.sin(x)).as_jax()
    rule = LOWERING_RULES[elementwise.Sin]

    def interrupted(op, x):
        raise KeyboardInterrupt

    monkeypatch.setitem(LOWERING_RULES, elementwise.Sin, interrupted)
    before = jax_derivatives._made.era
    with pytest.raises(KeyboardInterrupt):
        f(jnp.ones(2))
    assert jax_derivatives._made.era > before
    monkeypatch.setitem(LOWERING_RULES, elementwise.Sin, rule)
    close(f(jnp.ones(2)), np.sin(np.ones(2)))


# What a function of JAX cannot do.


def test_what_does_more_than_return_its_results_is_refused():
    v = tg.Variable(0.0, name="counter")
    refused = {
        "assigns the Variable 'counter'": lambda x: v.assign_add(x),
        "draws random numbers": lambda x: x + tg.random.normal([]),
        "checks values": lambda x: tg.debugging.assert_positive(x),
        "calls Python": lambda x: tg.numpy_function(np.sin, [x], tg.float32),
    }
    for words, body in refused.items():
        f = tg.function(body).as_jax()
        for call in (f, jax.jit(f), jax.grad(f)):
            assert HERE in raises(
                tg.errors.TraceError, words, lambda call=call: call(1.0 + X[0, 0])
            )
    assert v.numpy() == 0.0


def test_random_numbers_of_a_seed():
    f = tg.function(lambda x, seed: x * tg.random.stateless_normal([2], seed)).as_jax()
    seed = np.array([1, 2], np.int32)
    noise = tg.random.stateless_normal([2], seed).numpy()
    close(jax.jit(f)(2.0, seed), 2.0 * noise)
    close(jax.jacfwd(f)(2.0, seed), noise)


def test_prints(capfd):
    @tg.function
    def noisy(x):
        tg.print("x is", x)
        return 2.0 * x

    f = noisy.as_jax()
    jax.block_until_ready(jax.jit(f)(1.0))
    jax.block_until_ready(jax.vmap(jax.grad(f))(jnp.array([2.0, 3.0])))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().err.splitlines()) == ["x is 1", "x is 2", "x is 3"]


def test_64_bits_follow_the_setting_of_jax():
    assert not jax.config.jax_enable_x64
    f = tg.function(lambda x: tg.sin(x)).as_jax()
    g = tg.function(lambda x: tg.cast(tg.cast(x, tg.float64) / 3.0, tg.float32)).as_jax()
    wide = np.array([1.0, 2.0])
    assert HERE in raises(tg.errors.DTypeError, r"f64\[2\] has 64 bits", lambda: f(wide))
    assert HERE in raises(tg.errors.DTypeError, r"f64\[2\] has 64 bits", lambda: g(X[0]))
    raises(tg.errors.DTypeError, "64 bits", lambda: jax.grad(lambda x: g(x).sum())(X[0]))
    assert f(jnp.asarray(wide)).dtype == np.float32
    with jax.enable_x64(True):
        assert f(wide).dtype == np.float64
        np.testing.assert_array_equal(np.asarray(f(wide)), np.sin(wide))
        np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(wide), np.cos(wide), rtol=1e-15)
        assert g(X[0]).dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_arrays_of_types_that_tensors_do_not_have():
    f = tg.function(lambda x: x).as_jax()
    raises(tg.errors.DTypeError, "argument 'x' is an array of key", lambda: f(jax.random.key(0)))


def test_shape_errors_name_the_line():
    f = tg.function(lambda x: x @ x).as_jax()
    message = raises(tg.errors.ShapeError, "inner dimensions differ", lambda: jax.jit(f)(W))
    assert HERE in message


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.bool_])
def test_other_types(dtype):
    x = jnp.asarray([0, 1, 1], dtype)
    f = tg.function(lambda x: (tg.identity(x), tg.cast(x, tg.float32) * 2.0)).as_jax()
    same, double = jax.jit(f)(x)
    assert same.dtype == dtype
    assert double.tolist() == [0.0, 2.0, 2.0]


def test_a_result_of_a_number_is_no_weak_type():
    f = tg.function(lambda x: x * 2.0).as_jax()
    assert not jax.jit(f)(1.0).weak_type
    assert (f(jnp.float32(1.0)) + jnp.bfloat16(1.0)).dtype == jnp.float32


def test_as_jax_inside_of_as_jax():
    inner = tg.function(lambda x: nested(x))
    outer = tg.function(lambda x: tg.sin(inner(x)))
    both = lambda x: outer.as_jax()(inner.as_jax()(x))  # noqa: E731
    single = tg.function(lambda x: outer(inner(x))).as_jax()
    close(jax.grad(jax.grad(both))(0.5), jax.grad(jax.grad(single))(0.5))


def test_sorting_is_differentiated_by_jax():
    x = np.float32([[3, -0.0, 1, 0.0], [np.inf, 2, -1, 2]])
    weights = np.arange(8, dtype=np.float32).reshape(2, 4)
    f = tg.function(lambda x: tg.reduce_sum(tg.sort(x) * weights)).as_jax()
    expected = np.empty_like(weights)
    np.put_along_axis(expected, np.argsort(x, kind="stable"), weights, -1)
    np.testing.assert_array_equal(jax.grad(f)(x), expected)
