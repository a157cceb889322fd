"""Forward mode and the functional API, against JAX and finite differences."""

import functools
import itertools
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.differentiation.test_sparsity import traced
from tests.oracles import assert_near, by_jax, numbers, tensor
from tracegraph.errors import GradientError, MissingRuleError
from tracegraph.passes.simplify import simplify

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]
ForwardAccumulator = tg.autodiff.ForwardAccumulator
W = np.random.default_rng(9).standard_normal((3, 3))


def push(fn, x, t):
    """The derivative of fn at x along t, by an accumulator."""
    with ForwardAccumulator(x, t) as accumulator:
        y = fn(x)
    return accumulator.jvp(y)


def pull(fn, x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.gradient(y, x)


def curved(x):
    return tg.sin(x @ W) * tg.reduce_sum(x * x)


def curved_by_jax(x):
    return jnp.sin(x @ W) * (x * x).sum()


# The accumulator.


def test_the_jvp(run):
    x, t = numbers(2, 3), numbers(2, 3, seed=1)
    found = run(lambda x, t: push(curved, x, t), tg.constant(x), tg.constant(t))
    assert_near(found, by_jax(lambda x, t: jax.jvp(curved_by_jax, (x,), (t,))[1], x, t))
    step = 1e-6
    with jax.enable_x64(True):
        difference = (curved_by_jax(x + step * t) - curved_by_jax(x - step * t)) / (2 * step)
    assert_near(found, difference, 1e-7)


def test_forward_is_the_transpose_of_reverse(run):
    x, t, g = tensor(2, 3), tensor(2, 3, seed=1), tensor(2, 3, seed=2)

    def compute(x, t, g):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = curved(x)
        pulled = tape.gradient(y, x, output_gradients=g)
        return tg.reduce_sum(pulled * t), tg.reduce_sum(push(curved, x, t) * g)

    one, other = run(compute, x, t, g)
    assert_near(one, other)


def test_structures(run):
    p = {"a": tensor(3), "b": (tensor(3, seed=1), [tensor(seed=2)])}
    t = {"a": tensor(3, seed=3), "b": (tensor(3, seed=4), [tensor(seed=5)])}

    def compute(p, t):
        with ForwardAccumulator(p, t) as accumulator:
            y = {"y": p["a"] * p["b"][0] * p["b"][1][0], "none": None}
        return accumulator.jvp([y, p["a"]])

    found, own = run(compute, p, t)
    assert found["none"] is None
    assert_near(own, t["a"])
    leaves = [p["a"], p["b"][0], p["b"][1][0]], [t["a"], t["b"][0], t["b"][1][0]]
    xs, ts = ([leaf.numpy() for leaf in side] for side in leaves)
    expected = by_jax(lambda *xs: jax.jvp(lambda a, b, c: a * b * c, xs, tuple(ts))[1], *xs)
    assert_near(found["y"], expected)


def test_none_among_the_primals(run):
    def compute(x):
        with ForwardAccumulator([x, None], [tg.ones_like(x), None]) as accumulator:
            y = x * x
        return accumulator.jvp(y)

    assert_near(run(compute, tg.constant([1.0, 2.0])), [2.0, 4.0])


def test_variables(run):
    v, w = tg.Variable(numbers(3)), tg.Variable(numbers(3, seed=1))

    def compute():
        with ForwardAccumulator([v], [tg.ones([3], tg.float64)]) as accumulator:
            y = tg.sin(v) * w * v
        return accumulator.jvp([y, v, w, v * 2.0])

    y, own, other, late = run(compute)
    a, b = v.numpy(), w.numpy()
    assert_near(y, np.cos(a) * a * b + np.sin(a) * b)
    assert_near(own, np.ones(3))
    assert other is None
    assert late is None  # made after the block


def test_a_variable_as_the_tangent(run):
    v, t = tg.Variable([1.0, 2.0]), tg.Variable([3.0, 4.0])
    assert_near(run(lambda: push(lambda v: v * v, v, t)), [6.0, 16.0])


def test_an_assigned_variable_keeps_the_tangent_of_what_was_read():
    v = tg.Variable(3.0)
    with ForwardAccumulator(v, 1.0) as accumulator:
        before = v * v
        v.assign(10.0)
    assert_near(accumulator.jvp(before), 6.0)


def test_inside_and_after_the_block(run):
    def compute(x):
        with ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = x * x
            inside = accumulator.jvp(y)
            z = y * x
        after = x * 3.0
        return inside, accumulator.jvp(z), accumulator.jvp(after), accumulator.jvp(x)

    inside, z, after, own = run(compute, tg.constant([1.0, 2.0]))
    assert_near(inside, [2.0, 4.0])
    assert_near(z, [3.0, 12.0])
    assert after is None
    assert_near(own, [1.0, 1.0])


def test_unconnected(run):
    def compute(x, z):
        with ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = tg.stop_gradient(x) * z
            n = tg.cast(x, tg.int32)
        return (
            accumulator.jvp([y, n, z]),
            accumulator.jvp([y, n, z], tg.UnconnectedGradients.ZERO),
            accumulator.jvp({"y": y, "none": None}, "zero"),
        )

    none, zero, packed = run(compute, tg.constant([1.0, 2.0]), tg.constant(3.0))
    assert none == [None, None, None]
    for one, shape in zip(zero, [(2,), (2,), ()], strict=True):
        assert_near(one, np.zeros(shape))
    assert zero[1].dtype is tg.int32
    assert packed["none"] is None
    assert_near(packed["y"], np.zeros(2))


def test_an_accumulator_that_was_never_entered():
    x = tg.constant(1.0)
    accumulator = ForwardAccumulator(x, 2.0)
    assert accumulator.jvp(x * x) is None


def test_an_accumulator_that_is_entered_again(run):
    def compute(x):
        accumulator = ForwardAccumulator(x, tg.ones_like(x))
        with accumulator:
            y = x * x
        with accumulator:
            z = y * x
        return accumulator.jvp([y, z])

    y, z = run(compute, tg.constant(2.0))
    assert_near(y, 4.0)
    assert_near(z, 12.0)


def test_tangents_of_other_kinds(run):
    def compute(x):
        array = push(lambda x: x * x, x, np.float32([0.0, 1.0]))
        number = push(lambda x: x * x, tg.reduce_sum(x), 2.0)
        return array, number

    array, number = run(compute, tg.constant([3.0, 4.0]))
    assert_near(array, [0.0, 8.0])
    assert_near(number, 28.0)


def test_complex_numbers(run):
    x, t = np.array([1 + 2j, 3 - 1j]), np.array([0.5j, 1.0 + 1j])
    found = run(
        lambda x, t: push(lambda z: z * z * tg.exp(z), x, t), tg.constant(x), tg.constant(t)
    )
    expected = by_jax(lambda x, t: jax.jvp(lambda z: z * z * jnp.exp(z), (x,), (t,))[1], x, t)
    assert_near(found, expected)


def test_no_tangent_of_what_other_threads_compute():
    import threading

    x, box = tg.constant(2.0), []
    with ForwardAccumulator(x, 1.0) as accumulator:
        thread = threading.Thread(target=lambda: box.append(x * x))
        thread.start()
        thread.join()
    assert accumulator.jvp(box[0]) is None


def test_through_functions(run):
    inner = tg.function(lambda x, k: {"y": tg.tanh(x) * k, "n": tg.cast(x, tg.int32)})
    x, t = tensor(3), tensor(3, seed=1)

    def compute(x, t):
        with ForwardAccumulator(x, t) as accumulator:
            found = inner(inner(x, 2.0)["y"], 3.0)
        return accumulator.jvp(found)

    found = run(compute, x, t)
    assert found["n"] is None
    expected = by_jax(
        lambda x, t: jax.jvp(lambda x: 3 * jnp.tanh(2 * jnp.tanh(x)), (x,), (t,))[1],
        x.numpy(),
        t.numpy(),
    )
    assert_near(found["y"], expected)


def test_functions_that_read_variables(run):
    v = tg.Variable(numbers(3))
    inner = tg.function(lambda x: x * v * v)
    x = tensor(3, seed=1)
    found = run(lambda x: push(lambda _: inner(x), v, tg.ones([3], tg.float64)), x)
    assert_near(found, 2 * x.numpy() * v.numpy())


def test_an_outer_accumulator_of_a_function_that_makes_its_own(run):
    slope = tg.function(lambda x: push(tg.sin, x, tg.ones_like(x)))
    x = tensor(3)
    assert_near(run(lambda x: push(slope, x, tg.ones_like(x)), x), -np.sin(x.numpy()))


# Any nesting.


def derivative(mode, fn):
    """The derivative of an elementwise function, in one of the modes."""
    if mode == "push":
        return lambda x: push(fn, x, tg.ones_like(x))
    if mode == "pull":
        return lambda x: pull(fn, x)
    if mode == "jacobian":
        return lambda x: tg.linalg.diag_part(tg.jacobian(fn)(x))
    if mode == "function":
        return tg.function(derivative("push", fn))
    if mode == "jvp":
        return lambda x: tg.jvp(fn, (x,), (tg.ones_like(x),))[1]
    return lambda x: tg.vectorized_map(derivative("push", fn), x)


MODES = ["push", "pull", "jacobian", "function", "jvp", "loop"]


@functools.cache
def expected_derivative(order):
    def function(x):
        return jnp.sin(jnp.tanh(x) * x)

    for _ in range(order):
        function = jax.grad(function)
    return by_jax(jax.vmap(function), numbers(3))


@pytest.mark.sampled(1)
def test_second_order(run):
    modes = [*itertools.product(MODES[:4], repeat=2)]
    functions = [
        functools.reduce(lambda f, mode: derivative(mode, f), m, elementwise) for m in modes
    ]
    found = run(lambda x: [function(x) for function in functions], tensor(3))
    for one in found:
        assert_near(one, expected_derivative(2))


def test_fourth_order():
    functions = []
    for pattern in ("jjjj", "vvvv", "jvjv", "vjvj", "jjvv"):
        modes = ["push" if letter == "j" else "pull" for letter in pattern]
        functions.append(functools.reduce(lambda f, m: derivative(m, f), modes, elementwise))
    every = tg.function(lambda x: [function(x) for function in functions])
    for found in every(tensor(3)):
        assert_near(found, expected_derivative(4), 1e-9)


@pytest.mark.parametrize(
    "modes",
    [
        ("push", "pull", "jacobian"),
        ("jacobian", "jacobian", "push"),
        ("function", "pull", "function"),
        ("pull", "function", "loop"),
        ("jvp", "pull", "loop"),
    ],
)
def test_third_order(modes):
    function = functools.reduce(lambda f, mode: derivative(mode, f), modes, elementwise)
    assert_near(function(tensor(3)), expected_derivative(3), 1e-9)


def elementwise(x):
    return tg.sin(tg.tanh(x) * x)


def test_two_directions_at_once(run):
    x, s, t = tensor(3), tensor(3, seed=1), tensor(3, seed=2)

    def compute(x, s, t):
        with ForwardAccumulator(x, s) as outer:
            with ForwardAccumulator(x, t) as inner:
                y = tg.reduce_sum(tg.sin(x) * x * x[0])
            pushed = inner.jvp(y)
        return outer.jvp(pushed), outer.jvp(y), pushed, inner.jvp(y)

    def second(x, s, t):
        def f(x):
            return (jnp.sin(x) * x * x[0]).sum()

        return jax.jvp(lambda x: jax.jvp(f, (x,), (t,))[1], (x,), (s,))[1]

    mixed, first, pushed, again = run(compute, x, s, t)
    values = [v.numpy() for v in (x, s, t)]
    assert_near(mixed, by_jax(second, *values))
    assert_near(pushed, again)
    assert not np.allclose(first, pushed)


def test_tapes_between_accumulators(run):
    x = tensor(3)

    def compute(x):
        with ForwardAccumulator(x, tg.ones_like(x)) as outer:
            with tg.GradientTape() as tape:
                tape.watch(x)
                with ForwardAccumulator(x, tg.ones_like(x)) as inner:
                    y = tg.exp(x) * x
                first = inner.jvp(y)
            second = tape.gradient(first, x)
        return outer.jvp(second)

    assert_near(run(compute, x), np.exp(x.numpy()) * (x.numpy() + 3))


@pytest.mark.sampled(1)
def test_hessian_vector_products(run):
    x, t = numbers(4), numbers(4, seed=1)

    def rosenbrock(x):
        return tg.reduce_sum((x[1:] - x[:-1] ** 2) ** 2)

    def forward_over_reverse(x, t):
        return push(lambda x: pull(rosenbrock, x), x, t)

    def reverse_over_forward(x, t):
        return pull(lambda x: push(rosenbrock, x, t), x)

    expected = by_jax(
        lambda x, t: jax.jvp(jax.grad(lambda x: ((x[1:] - x[:-1] ** 2) ** 2).sum()), (x,), (t,))[1],
        x,
        t,
    )
    for function in (forward_over_reverse, reverse_over_forward):
        assert_near(run(function, tg.constant(x), tg.constant(t)), expected)


# Errors.

X = tg.constant([1.0, 2.0])
BAD = {
    "structures": (lambda: ForwardAccumulator([X], X), "structure"),
    "numbers of tangents": (lambda: ForwardAccumulator([X, X * 1], [X]), "structure"),
    "dtypes": (lambda: ForwardAccumulator(X, tg.constant([1.0, 2.0], tg.float64)), "f64"),
    "shapes": (lambda: ForwardAccumulator(X, tg.constant([1.0])), r"f32\[1\]"),
    "shapes that would broadcast": (lambda: ForwardAccumulator(X, tg.constant(1.0)), "f32"),
    "the same twice": (lambda: ForwardAccumulator([X, X], [X, X]), "several times"),
    "integers": (lambda: ForwardAccumulator(tg.constant([1]), tg.constant([1])), "i32"),
    "a number": (lambda: ForwardAccumulator(1.0, 1.0), "float"),
    "an array": (lambda: ForwardAccumulator(np.ones(2), np.ones(2)), "ndarray"),
    "a tangent of None": (lambda: ForwardAccumulator([X], [None]), "tangent"),
    "a str": (lambda: ForwardAccumulator(X, "a"), "tangent"),
    "jvp of a number": (lambda: ForwardAccumulator(X, X).jvp(3.0), "float"),
    "jvp of a str": (lambda: ForwardAccumulator(X, X).jvp({"a": "b"}), "str"),
    "unconnected": (lambda: ForwardAccumulator(X, X).jvp(X, "bogus"), "bogus"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_accumulators(name):
    request, fact = BAD[name]
    with pytest.raises((GradientError, TypeError), match=fact) as caught:
        request()
    assert "fix:" in str(caught.value)
    assert os.path.basename(__file__) in str(caught.value)


def test_an_active_accumulator_is_not_entered_again():
    accumulator = ForwardAccumulator(X, X)
    with accumulator:
        with pytest.raises(ValueError, match="already recording"):
            with accumulator:
                pass
        y = X * X
    assert_near(accumulator.jvp(y), 2 * X.numpy() ** 2)


def test_an_exception_in_the_block_ends_the_recording():
    accumulator = ForwardAccumulator(X, X)
    with pytest.raises(ZeroDivisionError), accumulator:
        y = X * X
        raise ZeroDivisionError
    z = y * X
    assert accumulator.jvp(y) is not None
    assert accumulator.jvp(z) is None


def test_a_gradient_that_is_no_derivative_is_refused():
    @tg.custom_gradient
    def clipped(x):
        return x * 1.0, lambda g: tg.clip_by_norm(g, 1.0)

    with pytest.raises(MissingRuleError, match="linear"):
        push(clipped, X, X)


# The functional API.


def tree(seed=0):
    return {"w": numbers(3, 2, seed=seed), "b": [numbers(2, seed=seed + 1), numbers(seed=seed + 2)]}


def loss(p, x, scale=2.0):
    return tg.reduce_sum(tg.tanh(x @ p["w"] + p["b"][0]) ** 2) * p["b"][1] * scale


def loss_by_jax(p, x, scale=2.0):
    return (jnp.tanh(x @ p["w"] + p["b"][0]) ** 2).sum() * p["b"][1] * scale


def tensors(structure):
    return tg.nest.map_structure(tg.constant, structure)


def assert_trees_near(found, expected):
    one, treedef = jax.tree_util.tree_flatten(tg.nest.map_structure(lambda y: np.asarray(y), found))
    other, wanted = jax.tree_util.tree_flatten(expected)
    assert treedef == wanted
    for a, b in zip(one, other, strict=True):
        assert_near(a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("argnums", [0, 1, (0,), (1, 0)])
def test_value_and_grad(run, argnums):
    p, x = tree(), numbers(4, 3)
    value, slopes = run(tg.value_and_grad(loss, argnums), tensors(p), tg.constant(x))
    expected, wanted = by_jax(jax.value_and_grad(loss_by_jax, argnums), p, x)
    assert_near(value, expected)
    assert_trees_near(slopes, wanted)
    assert_trees_near(run(tg.grad(loss, argnums), tensors(p), tg.constant(x)), wanted)


def test_grad_takes_keywords_and_arrays():
    p, x = tree(), numbers(4, 3)
    found = tg.grad(loss)(p, x, scale=3.0)
    assert_trees_near(found, by_jax(lambda p, x: jax.grad(loss_by_jax)(p, x, scale=3.0), p, x))


def test_grad_of_numbers():
    assert float(tg.grad(lambda x, y: x * y, -1)(3.0, 4.0)) == 3.0
    assert float(tg.grad(lambda x: x**2)(3)) == 6.0
    assert float(tg.grad(tg.grad(lambda x: x**3))(2.0)) == 12.0
    assert_near(tg.grad(lambda x, y: x * 0.0 + y)(1.0, 2.0), 0.0)
    zero, one = tg.grad(lambda x, y: y * 1.0, (0, 1))(tg.constant([1.0]), 2.0)
    assert_near(zero, [0.0])
    assert_near(one, 1.0)


def test_grad_of_variables_and_functions():
    v = tg.Variable(numbers(3))
    square = tg.function(lambda v: tg.reduce_sum(v * v))
    assert_near(tg.grad(square)(v), 2 * v.numpy())
    assert_near(tg.function(tg.grad(square))(tensor(3)), 2 * numbers(3))


def test_grad_of_the_same_tensor_twice():
    x = tg.constant(3.0)
    found = tg.grad(lambda a, b: a * a * b, (0, 1))(x, x)
    assert [float(g) for g in found] == [18.0, 9.0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
@pytest.mark.parametrize("options", [{}, {"mode": "forward"}, {"mode": "reverse", "chunk_size": 2}])
def test_jacobian(run, argnums, options):
    p, x = tree(), numbers(2, 3)

    def function(p, x):
        y = tg.tanh(x @ p["w"] + p["b"][0]) * p["b"][1]
        return {"y": y, "z": (tg.reduce_sum(y), x * 2.0)}

    def function_by_jax(p, x):
        y = jnp.tanh(x @ p["w"] + p["b"][0]) * p["b"][1]
        return {"y": y, "z": (y.sum(), x * 2.0)}

    found = run(tg.jacobian(function, argnums, **options), tensors(p), tg.constant(x))
    assert_trees_near(found, by_jax(jax.jacfwd(function_by_jax, argnums), p, x))


@pytest.mark.sampled(1)
def test_hessian(run):
    p, x = tree(), numbers(2, 3)
    found = run(tg.hessian(loss), tensors(p), tg.constant(x))
    assert_trees_near(found, by_jax(jax.hessian(loss_by_jax), p, x))


def test_hessian_of_two_arguments():
    def function(x, y):
        return tg.reduce_sum(tg.exp(x) * y)

    x, y = numbers(2), numbers(2, seed=1)
    found = tg.hessian(function, (0, 1))(tg.constant(x), tg.constant(y))
    expected = by_jax(jax.hessian(lambda x, y: (jnp.exp(x) * y).sum(), (0, 1)), x, y)
    assert_trees_near(found, expected)


def test_jvp(run):
    p, t, x = tree(), tree(5), numbers(2, 3)

    def function(p):
        y = tg.sin(p["w"]) * p["b"][1]
        return y, [tg.reduce_sum(y * p["b"][0]), None]

    def function_by_jax(p):
        y = jnp.sin(p["w"]) * p["b"][1]
        return y, [(y * p["b"][0]).sum(), None]

    found = run(lambda p, t: tg.jvp(function, (p,), (t,)), tensors(p), tensors(t))
    expected = by_jax(lambda p, t: jax.jvp(function_by_jax, (p,), (t,)), p, t)
    for one, other in zip(found, expected, strict=True):
        assert one[1][1] is None
        assert_trees_near([one[0], one[1][0]], [other[0], other[1][0]])
    assert_near(tg.jvp(lambda x: tg.ones([2]), (x,), (x,))[1], [0.0, 0.0])


def test_vjp(run):
    p, x = tree(), numbers(2, 3)

    def function(p, x):
        y = tg.sin(x @ p["w"]) * p["b"][1]
        return {"y": y, "x": tg.reduce_sum(x)}

    def function_by_jax(p, x):
        y = jnp.sin(x @ p["w"]) * p["b"][1]
        return {"y": y, "x": x.sum()}

    g = {"y": numbers(2, 2, seed=8), "x": numbers(seed=9)}

    def compute(p, x, g):
        y, pull = tg.vjp(function, p, x)
        return y, pull(g), pull(g)

    y, one, again = run(compute, tensors(p), tg.constant(x), tensors(g))

    def expected_of(p, x, g):
        y, pull = jax.vjp(function_by_jax, p, x)
        return y, pull(g)

    value, wanted = by_jax(expected_of, p, x, g)
    assert isinstance(one, tuple)
    assert_trees_near(y, value)
    for found in (one, again):
        assert_trees_near(found[1], wanted[1])
        assert_trees_near(found[0], wanted[0])


def test_linearize(run):
    p, t = tree(), tree(5)

    def function(p):
        return tg.sin(p["w"] @ p["b"][0][:, tg.newaxis]) * p["b"][1], p["w"]

    def function_by_jax(p):
        return jnp.sin(p["w"] @ p["b"][0][:, None]) * p["b"][1], p["w"]

    def compute(p, t):
        y, linear = tg.linearize(function, p)
        return y, linear(t), linear(tg.nest.map_structure(lambda t: 2.0 * t, t))

    y, one, twice = run(compute, tensors(p), tensors(t))
    value, expected = by_jax(lambda p, t: jax.jvp(function_by_jax, (p,), (t,)), p, t)
    assert_trees_near(y, value)
    assert_trees_near(one, expected)
    assert_trees_near(twice, tuple(2 * e for e in expected))


def test_hvp(run):
    p, t, x = tree(), tree(5), numbers(2, 3)
    found = run(
        lambda p, t: tg.hvp(lambda p: loss(p, tg.constant(x)), (p,), (t,)), tensors(p), tensors(t)
    )
    slope = jax.grad(lambda p: loss_by_jax(p, x))
    expected = by_jax(lambda p, t: jax.jvp(slope, (p,), (t,))[1], p, t)
    assert_trees_near(found[0], expected)
    bare = tg.hvp(lambda x: tg.reduce_sum(x**3), tg.constant([1.0, 2.0]), [1.0, 1.0])
    assert_near(bare, [6.0, 12.0])


@pytest.mark.sampled(1)
def test_doors_compose(run):
    x = numbers(4, 3)

    def function(r):
        return tg.reduce_sum(tg.sin(r) * r[0])

    def function_by_jax(r):
        return (jnp.sin(r) * r[0]).sum()

    def ours(x):
        return [
            tg.vmap(tg.hessian(function))(x),
            tg.jacobian(tg.vmap(tg.grad(function)))(x),
            tg.grad(lambda x: tg.reduce_sum(tg.hessian(function)(x) ** 2))(x[0]),
            tg.linearize(tg.grad(function), x[0])[1](x[0]),
        ]

    def theirs(x):
        return [
            jax.vmap(jax.hessian(function_by_jax))(x),
            jax.jacrev(jax.vmap(jax.grad(function_by_jax)))(x),
            jax.grad(lambda x: (jax.hessian(function_by_jax)(x) ** 2).sum())(x[0]),
            jax.jvp(jax.grad(function_by_jax), (x[0],), (x[0],))[1],
        ]

    for found, expected in zip(run(ours, tg.constant(x)), by_jax(theirs, x), strict=True):
        assert_near(found, expected)


BAD_DOORS = {
    "a vector": (lambda: tg.grad(lambda x: x)(X), "tg.jacobian"),
    "an integer result": (lambda: tg.grad(lambda x: tg.cast(x, tg.int32))(1.0), "i32"),
    "an integer argument": (lambda: tg.grad(lambda x: x)(tg.constant(1)), "i32"),
    "a list of results": (lambda: tg.grad(lambda x: [x, x])(1.0), None),
    "None": (lambda: tg.grad(lambda x: None)(1.0), None),
    "positions": (lambda: tg.grad(lambda x: x, 1)(1.0), "argnums"),
    "a str": (lambda: tg.grad(lambda x: x)("a"), "str"),
    "the number of tangents": (lambda: tg.jvp(lambda x: x, (X,), (X, X)), "tangents"),
    "the shape of a tangent": (lambda: tg.jvp(lambda x: x, (X,), (X[:1],)), r"f32\[1\]"),
    "a tangent of a linear map": (lambda: tg.linearize(lambda x: x, X)[1](X, X), "tangents"),
    "its shape": (lambda: tg.linearize(lambda x: x * x, X)[1](X[:1]), r"f32\[1\]"),
    "its dtype": (lambda: tg.linearize(lambda x: x * x, X)[1](tg.cast(X, tg.float64)), "f64"),
    "a cotangent": (lambda: tg.vjp(lambda x: x, X)[1](X[:1]), r"f32\[1\]"),
    "the structure of cotangents": (lambda: tg.vjp(lambda x: [x, x], X)[1](X), None),
    "a mode": (lambda: tg.jacobian(lambda x: x, mode="up")(X), "up"),
}


@pytest.mark.parametrize("name", BAD_DOORS)
def test_bad_doors(name):
    request, fact = BAD_DOORS[name]
    with pytest.raises((ValueError, TypeError), match=fact) as caught:
        request()
    assert "fix:" in str(caught.value)
    assert os.path.basename(__file__) in str(caught.value)


# High orders.


def nested_tapes(fn, order):
    for _ in range(order):
        fn = functools.partial(pull, fn)
    return fn


def total_nodes(graph):
    return sum(len(inner.nodes) for inner in graph.graphs())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", [elementwise, tg.function(elementwise)], ids=["plain", "called"])
def test_ten_orders_stay_small(inner):
    sizes = [
        total_nodes(simplify(traced(nested_tapes(inner, order), (3,)))) for order in (5, 9, 10)
    ]
    assert sizes[-1] <= 600
    assert sizes[-1] - sizes[1] < 150  # and it does not double with each order


def nested_accumulators(fn, order):
    for _ in range(order):
        fn = functools.partial(along_ones, fn)
    return fn


def along_ones(fn, x):
    return push(fn, x, tg.ones_like(x))


@pytest.mark.sweep
def test_ten_orders_stay_small_in_forward_mode():
    """Not quite as small as tapes: -a - b stays, as -(a + b) is another zero where they cancel."""
    sizes = [
        total_nodes(simplify(traced(nested_accumulators(elementwise, order), (3,))))
        for order in (5, 9, 10)
    ]
    assert sizes[-1] <= 640
    assert sizes[-1] - sizes[1] < 160  # and it does not double with each order


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", [elementwise, tg.function(elementwise)], ids=["plain", "called"])
def test_high_orders_are_right(run, inner):
    order = 5
    expected = by_jax(
        jax.vmap(
            functools.reduce(
                lambda f, _: jax.grad(f), range(order), lambda x: jnp.sin(jnp.tanh(x) * x)
            )
        ),
        numbers(3) * 0.5,
    )
    found = run(nested_tapes(inner, order), tg.constant(numbers(3) * 0.5))
    assert_near(found, expected, 1e-8)


@pytest.mark.parametrize("order", [1, 4])
def test_forward_modes_stay_small(order):
    function = elementwise
    for _ in range(order):
        function = (lambda f: lambda x: push(f, x, tg.ones_like(x)))(function)
    graph = simplify(traced(function, (3,)))
    assert total_nodes(graph) <= 30 * 2**order
    assert math.prod(graph.outputs[0].type.shape) == 3


ENTRY_POINTS = {
    "grad": lambda fn: tg.grad(fn)(2.0),
    "jacobian": lambda fn: tg.jacobian(fn)(2.0),
    "hessian": lambda fn: tg.hessian(fn)(2.0),
    "hvp": lambda fn: tg.hvp(fn, 2.0, 1.0),
    "jvp": lambda fn: tg.jvp(fn, (2.0,), (1.0,))[1],
    "vjp": lambda fn: tg.vjp(fn, 2.0)[1](1.0)[0],
    "linearize": lambda fn: tg.linearize(fn, 2.0)[1](1.0),
}
DETOURS = {
    "float": lambda x: float(x) * x,
    "item": lambda x: x.item() * x,
    "numpy": lambda x: (x * x).numpy() * x,
    "a function of NumPy": lambda x: np.sin(x) * x,
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("detour", DETOURS)
def test_a_detour_through_numpy_is_no_derivative(entry_point, detour):
    with pytest.raises(tg.errors.TraceError, match="the derivative would miss") as caught:
        ENTRY_POINTS[entry_point](DETOURS[detour])
    assert "test_forward.py" in str(caught.value)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_values_that_leave_and_do_not_come_back(entry_point, capsys):
    other = tg.Variable(3.0)

    def fn(x):
        print(x, f"{x:.2f}", float(other), tg.stop_gradient(x).numpy())
        return x**3 if x > 0.0 else x

    # The first derivative of x**3 at 2, and the second.
    assert float(ENTRY_POINTS[entry_point](fn)) == 12.0
    assert "2.00" in capsys.readouterr().out


def test_integers_among_the_primals(run):
    n, k = tg.constant([2, 3]), np.array([True, False])

    def function(x, n, k):
        return x * tg.cast(n, tg.float32) * tg.cast(k, tg.float32) * 2.0

    def compute(x):
        y, t = tg.jvp(function, (x, n, k), (tg.ones_like(x), None, None))
        linear = tg.linearize(function, x, n, k)[1]
        return y, t, linear(tg.ones_like(x), None, None), tg.vjp(function, x, n, k)[1](y)

    y, t, linear, pulled = run(compute, tg.constant([1.0, 2.0]))
    assert_near(y, [4.0, 0.0])
    assert_near(t, [4.0, 0.0])
    assert_near(linear, [4.0, 0.0])
    assert_near(pulled[0], [16.0, 0.0])
    assert pulled[1] is pulled[2] is None


def test_values_are_held_while_tangents_are_made():
    """At top level what is pending may run while an accumulator appends to it."""
    x = tensor(3)
    function = tg.jacobian(tg.jacobian(elementwise))
    expected = by_jax(
        lambda x, t: jax.jvp(
            jax.jacrev(jax.jacrev(lambda x: jnp.sin(jnp.tanh(x) * x))), (x,), (t,)
        )[1],
        x.numpy(),
        np.ones(3),
    )
    for _ in range(2):
        assert_near(push(function, x, tg.ones_like(x)), expected)


def test_an_accumulator_that_was_never_entered_knows_its_primals():
    x, other = tg.Variable(1.0), tg.constant(1.0)
    accumulator = tg.autodiff.ForwardAccumulator(x, tg.constant(2.0))
    assert float(accumulator.jvp(x)) == 2.0
    assert accumulator.jvp(other) is None
    assert float(accumulator.jvp(other, "zero")) == 0.0


def test_an_accumulator_says_what_it_does():
    x, y = tg.constant([1.0, 2.0]), tg.Variable(3.0)
    accumulator = tg.autodiff.ForwardAccumulator([x, y], [x, tg.constant(1.0)])
    assert repr(accumulator) == "<ForwardAccumulator, never entered>"
    with accumulator:
        assert repr(accumulator) == "<ForwardAccumulator, recording: 2 primals, 2 tangents>"
        tg.sin(x)
        assert repr(accumulator) == "<ForwardAccumulator, recording: 2 primals, 3 tangents>"
    assert repr(accumulator) == "<ForwardAccumulator, stopped: 2 primals, 3 tangents>"
    with tg.autodiff.ForwardAccumulator(x, x) as one:
        assert repr(one) == "<ForwardAccumulator, recording: 1 primal, 1 tangent>"
