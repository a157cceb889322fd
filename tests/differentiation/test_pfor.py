"""Parallel loops against loops: `tg.pfor`, `tg.vectorized_map` and `tg.vmap`."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from tests.derivatives import gradient, jacobian
from tests.oracles import assert_near, by_jax, numbers, tensor
from tracegraph.errors import MissingRuleError, ShapeError, TraceError
from tracegraph.passes.simplify import dead_code

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]
Pair = collections.namedtuple("Pair", "first second")


# Values.

ROWS = {
    "norm": lambda r: tg.reduce_sum(r * r),
    "softmax": tg.nn.softmax,
    "matrix": lambda r: tg.linalg.matvec(tg.constant(numbers(2, 3)), r),
    "outer": lambda r: r[:, tg.newaxis] * r,
    "sort": lambda r: tg.sort(r)[::-1],
    "argmax": lambda r: tg.argmax(r),
    "truth": lambda r: r > 0.0,
    "own index": lambda r: tg.gather(r, tg.argmax(r)),
    "write": lambda r: tg.tensor_scatter_nd_update(r, [[1]], r[:1]),
    "where": lambda r: tg.where(tg.reduce_sum(r) > 0.0, r, -r),
    "one hot": lambda r: tg.one_hot(tg.argmax(r), 3, dtype=tg.float64) * r,
    "pieces": lambda r: tg.concat([r[1:], tg.zeros([2], tg.float64), r[:1]], 0),
    "complex": lambda r: tg.complex(r, 2.0 * r) * 1j,
    "constant": lambda r: tg.constant([1.0, 2.0]),
    "empty": lambda r: r[:0],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_rows_by_a_loop(run, count):
    x = tensor(4, 3)[:count]
    loops = run(lambda x: [tg.vectorized_map(function, x) for function in ROWS.values()], x)
    rows = [[function(row) for row in x] for function in ROWS.values()]
    for function, found, expected in zip(ROWS.values(), loops, rows, strict=True):
        one = function(tensor(3))
        assert found.dtype is one.dtype
        if count:
            assert_near(found, np.stack([row.numpy() for row in expected]))
        else:
            assert found.shape == (0, *one.shape)


def test_pfor_counts(run):
    found = run(lambda: tg.pfor(lambda i: i * i, 4))
    assert found.dtype is tg.int32
    assert found.numpy().tolist() == [0, 1, 4, 9]
    assert run(lambda: tg.pfor(lambda i: i > 1, 3)).numpy().tolist() == [False, False, True]
    assert run(lambda: tg.pfor(lambda i: i, 1)).numpy().tolist() == [0]
    assert run(lambda: tg.pfor(lambda i: tg.ones([2]), 0)).shape == (0, 2)
    assert run(lambda: tg.pfor(lambda i: i, tg.constant([3, 4]).shape[0])).shape == (2,)


def test_structures_in_and_out(run):
    def function(row):
        both = row["pair"].first + row["pair"].second[0]
        return {"sum": both, "none": None, "tuple": (both * 2.0, [row["n"], 7])}

    x = {"pair": Pair(tensor(3, 2), [tensor(3, 2, seed=1)]), "n": tg.constant([4, 5, 6])}
    found = run(lambda x: tg.vectorized_map(function, x), x)
    total = x["pair"].first.numpy() + x["pair"].second[0].numpy()
    assert found["none"] is None
    assert_near(found["sum"], total)
    doubled, (n, seven) = found["tuple"]
    assert_near(doubled, 2 * total)
    assert n.numpy().tolist() == [4, 5, 6]
    assert seven.numpy().tolist() == [7, 7, 7]


def test_none_alone(run):
    assert run(lambda: tg.pfor(lambda i: None, 3)) is None
    assert run(lambda x: tg.vectorized_map(lambda r: (None, r[1]), (x, None)), tensor(2)) == (
        None,
        None,
    )


def test_what_is_the_same_for_all(run):
    x, w = tensor(4, 3), tensor(1, 3, seed=1)
    found = run(lambda x, w: tg.vectorized_map(lambda r: r[0] * r[1] + r[2], (x, w, 2)), x, w)
    assert_near(found, x.numpy() * w.numpy() + 2)
    found = run(lambda w: tg.vectorized_map(lambda r: r[0] + r[1], (w, 1.0)), w)
    assert_near(found, w.numpy() + 1)
    none = run(lambda x, w: tg.vectorized_map(lambda r: r[0] + r[1], (x[:0], w)), x, w)
    assert none.shape == (0, 3)


def test_what_is_captured_is_not_stacked(run):
    x, w, v = tensor(4, 3), tensor(3, 3, seed=1), tg.Variable(numbers(3, seed=2))

    def function(w):
        local = tg.sin(w)
        return tg.vectorized_map(lambda r: tg.linalg.matvec(local, r) + v, x)

    assert_near(run(function, w), x.numpy() @ np.sin(w.numpy()).T + v.numpy())


def test_arrays_and_variables_as_elements(run):
    x, v = numbers(4, 3), tg.Variable(numbers(4))
    found = run(lambda: tg.vectorized_map(lambda r: r[0] * r[1], (x, v)))
    assert_near(found, x * v.numpy()[:, np.newaxis])


def test_loops_in_loops(run):
    x, y = tensor(2, 3), tensor(4, 3, seed=1)

    def function(x, y):
        return tg.vectorized_map(
            lambda a: tg.vectorized_map(lambda b: tg.reduce_sum(a * b) + b[0], y), x
        )

    assert_near(run(function, x, y), x.numpy() @ y.numpy().T + y.numpy()[:, 0])
    found = run(lambda: tg.pfor(lambda i: tg.pfor(lambda j: tg.pfor(lambda k: i + j * k, 2), 3), 4))
    i, j, k = np.indices((4, 3, 2))
    np.testing.assert_array_equal(found.numpy(), i + j * k)


def test_loops_over_what_the_outer_loop_has(run):
    x = tensor(2, 3, 4)
    found = run(lambda x: tg.vectorized_map(lambda m: tg.vectorized_map(tg.sort, m), x), x)
    assert_near(found, np.sort(x.numpy(), -1))


def test_functions_inside(run):
    inner = tg.function(lambda r, k: tg.tanh(r) * k)
    x = tensor(4, 3)

    def function(x):
        return tg.vectorized_map(lambda r: inner(r, 2.0) + inner(x[0], r[0]), x)

    expected = 2 * np.tanh(x.numpy()) + np.tanh(x.numpy()[0]) * x.numpy()[:, :1]
    assert_near(run(function, x), expected)


def test_open_counts():
    compute = tg.function(
        lambda x: tg.vectorized_map(lambda r: tg.sort(r * r[0]), x),
        input_signature=[tg.TensorSpec([None, 3], tg.float64)],
    )
    count = tg.function(
        lambda x: tg.pfor(lambda i: x[i] * 2.0, tg.shape(x)[0]),
        input_signature=[tg.TensorSpec([None], tg.float64)],
    )
    for size in (0, 1, 4):
        x = numbers(size, 3)
        assert_near(compute(x), np.sort(x * x[:, :1], -1))
        if size:  # of no elements there is none to take
            assert_near(count(x[:, 0]), 2 * x[:, 0])


def test_open_sizes_inside():
    compute = tg.function(
        lambda x, y: tg.vectorized_map(lambda r: tg.cumsum(r) * tg.reduce_sum(y), x),
        input_signature=[
            tg.TensorSpec([None, None], tg.float64),
            tg.TensorSpec([None], tg.float64),
        ],
    )
    x, y = numbers(2, 3), numbers(5)
    assert_near(compute(x, y), np.cumsum(x, 1) * y.sum())


MODELS = {
    "called": lambda f: tg.function(f),
    "recomputed": lambda f: tg.recompute_grad(f),
    "custom": lambda f: tg.custom_gradient(lambda x: (f(x), lambda g: 2.0 * g)),
    "called and custom": lambda f: tg.function(
        tg.custom_gradient(lambda x: (f(x), lambda g: 2.0 * g))
    ),
}


@pytest.mark.sweep
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_loops_of_open_length_around_calls(name):
    # The sizes of the loops and those of the called function have the same names by themselves.
    weights = tensor(3, 3)
    model = MODELS[name](lambda x: tg.nn.softmax(x @ weights))

    def slopes(x, y):
        def outer(a):
            def inner(b):
                with tg.GradientTape() as tape:
                    tape.watch(a)
                    loss = tg.reduce_sum(model(tg.stack([a, b, a * b])) ** 2)
                return tape.gradient(loss, a)

            return tg.vectorized_map(inner, y)

        return tg.vectorized_map(outer, x)

    specs = [tg.TensorSpec([None, 3], tg.float64)] * 2
    open_sizes = tg.function(slopes, input_signature=specs)
    for n, k in ((4, 2), (3, 3), (1, 5)):
        x, y = tensor(n, 3), tensor(k, 3, seed=1)
        model(x), model(y)  # traced for the same sizes as the loops have
        assert_near(open_sizes(x, y), slopes(x, y))
    assert open_sizes.experimental_get_tracing_count() == 1


def test_a_jacobian_through_calls_whose_sizes_are_multiples():
    twice = tg.function(lambda x: tg.concat([x, x], 0))
    soft = tg.function(tg.nn.softmax)

    @tg.function(input_signature=[tg.TensorSpec([None, 2], tg.float64)])
    def found(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = twice(x) * soft(tg.concat([x, x], 0))
        return tape.jacobian(y, x)

    def by_jax(x):
        x = jnp.concatenate([x, x])
        return x * jax.nn.softmax(x)

    for size in (1, 4):
        x = numbers(size, 2)
        with jax.enable_x64(True):
            assert_near(found(x), jax.jit(jax.jacobian(by_jax))(x))


@settings(max_examples=3, deadline=None)
@given(st.lists(st.sampled_from(sorted(ROWS)), min_size=6, max_size=9), st.integers(1, 3))
def test_several_results(names, count):
    x = tensor(count, 3)
    found = tg.vectorized_map(lambda r: [ROWS[name](r) for name in names], x)
    rows = [[ROWS[name](row) for row in x] for name in names]  # one program, with all of `found`
    for one, expected in zip(found, rows, strict=True):
        assert_near(one, np.stack([row.numpy() for row in expected]))


# Work.


def graph_of(function, *shapes):
    """What a function of tensors makes, without what nobody needs."""
    specs = [tg.TensorSpec(shape, tg.float64) for shape in shapes]
    return dead_code(tg.function(function).get_concrete_function(*specs).graph)


def test_what_the_iterations_share_is_computed_once():
    def function(x, w):
        return tg.vectorized_map(lambda r: r * tg.reduce_sum(tg.exp(w @ w)), x)

    graph = graph_of(function, (100, 3), (7, 7))
    counts = collections.Counter(node.op.name for node in graph.nodes)
    assert counts["matmul"] == counts["exp"] == counts["sum"] == 1
    for node in graph.nodes:
        if node.op.name in ("matmul", "exp"):
            assert node.outputs[0].type.shape == (7, 7)


def test_nested_loops_widen_only_what_depends_on_them():
    def function(x, y):
        return tg.vectorized_map(lambda a: tg.vectorized_map(lambda b: tg.sin(a) * tg.cos(b), y), x)

    graph = graph_of(function, (10,), (20,))
    sizes = {node.op.name: node.outputs[0].size for node in graph.nodes}
    assert (sizes["sin"], sizes["cos"], sizes["mul"]) == (10, 20, 200)


def test_functions_inside_share_what_does_not_depend_on_the_loop():
    inner = tg.function(lambda r, w: r * tg.reduce_sum(tg.exp(w)))
    graph = graph_of(lambda x, w: tg.vectorized_map(lambda r: inner(r, w), x), (100, 3), (7, 7))
    exps = [
        node.outputs[0].size
        for body in graph.graphs()
        for node in body.nodes
        if node.op.name == "exp"
    ]
    assert exps == [49]


def test_gradients_do_not_multiply_shared_work():
    def function(x, w):
        return gradient(lambda w: tg.reduce_sum(tg.vectorized_map(lambda r: r * tg.exp(w), x)), w)

    graph = graph_of(function, (100,), (5,))
    assert [n.outputs[0].size for n in graph.nodes if n.op.name == "exp"] == [5]


# Derivatives.


def loss_of_row(r):
    return tg.reduce_sum(tg.tanh(r) * r[0])


def loss_by_jax(r):
    return (jnp.tanh(r) * r[0]).sum()


def test_gradients_through_a_loop(run):
    x = numbers(4, 3)
    found = run(
        lambda x: gradient(lambda x: tg.vectorized_map(loss_of_row, x) ** 2, x), tg.constant(x)
    )
    expected = by_jax(jax.grad(lambda x: (jax.vmap(loss_by_jax)(x) ** 2).sum()), x)
    assert_near(found, expected)


def test_gradients_inside_a_loop(run):
    x = numbers(4, 3)
    found = run(lambda x: tg.vectorized_map(lambda r: gradient(loss_of_row, r), x), tg.constant(x))
    assert_near(found, by_jax(jax.vmap(jax.grad(loss_by_jax)), x))


def test_gradients_of_captured_values_and_variables(run):
    x, v, w = tensor(4, 3), tg.Variable(numbers(3, seed=1)), tensor(3, seed=2)

    def compute(w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            y = tg.vectorized_map(lambda r: tg.reduce_sum(tg.sin(r * v) * w), x)
        return tape.gradient(y, [v, w])

    def loss(v, w):
        return (jnp.sin(x.numpy() * v) * w).sum()

    expected = by_jax(jax.grad(loss, (0, 1)), v.numpy(), w.numpy())
    for one, other in zip(run(compute, w), expected, strict=True):
        assert_near(one, other)


def test_each_example_has_its_own_gradient(run):
    x, kernel = tensor(5, 3), tg.Variable(numbers(3, 2))

    def one(row):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(tg.tanh(row[tg.newaxis] @ kernel))
        return tape.gradient(loss, kernel)

    found = run(lambda x: tg.vectorized_map(one, x), x)
    row = jax.grad(lambda w, r: jnp.tanh(r @ w).sum())
    expected = by_jax(jax.vmap(row, (None, 0)), kernel.numpy(), x.numpy())
    assert_near(found, expected)


@pytest.mark.sampled(1)
def test_jacobians_inside_and_outside(run):
    x = numbers(4, 3)

    inside = run(
        lambda x: tg.vectorized_map(lambda r: jacobian(lambda r: tg.sin(r) * r[0], r), x),
        tg.constant(x),
    )
    assert_near(inside, by_jax(jax.vmap(jax.jacrev(lambda r: jnp.sin(r) * r[0])), x))
    outside = run(
        lambda x: jacobian(lambda x: tg.vectorized_map(loss_of_row, x), x), tg.constant(x)
    )
    assert_near(outside, by_jax(jax.jacrev(jax.vmap(loss_by_jax)), x))


def test_forward_through_and_inside(run):
    x, t = tensor(4, 3), tensor(4, 3, seed=1)

    def through(x, t):
        with tg.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = tg.vectorized_map(loss_of_row, x)
        return accumulator.jvp(y)

    def inside(x, t):
        def one(pair):
            with tg.autodiff.ForwardAccumulator(pair[0], pair[1]) as accumulator:
                y = loss_of_row(pair[0])
            return accumulator.jvp(y)

        return tg.vectorized_map(one, (x, t))

    expected = by_jax(
        lambda x, t: jax.jvp(jax.vmap(loss_by_jax), (x,), (t,))[1], x.numpy(), t.numpy()
    )
    assert_near(run(through, x, t), expected)
    assert_near(run(inside, x, t), expected)


# Random numbers.


def test_each_iteration_has_its_own_numbers(run):
    tg.random.set_seed(5)
    found = run(lambda: tg.pfor(lambda i: tg.random.normal([3]), 200)).numpy()
    assert len(np.unique(found, axis=0)) == 200
    assert abs(found.mean()) < 0.2
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.25


@pytest.mark.sampled(1)
def test_numbers_of_several_draws_and_loops_differ(run):
    def compute():
        one = tg.pfor(lambda i: [tg.random.uniform([]), tg.random.uniform([])], 5)
        return tg.concat([*one, tg.pfor(lambda i: tg.random.uniform([]), 5)], 0)

    found = run(compute).numpy()
    assert len(np.unique(found)) == 15


@pytest.mark.sampled(1)
def test_numbers_repeat_after_a_seed(run):
    def compute():
        return tg.vectorized_map(
            lambda r: r + tg.random.normal([2], dtype=tg.float64), tensor(3, 2)
        )

    found = []
    for _ in range(2):
        tg.random.set_seed(7)
        function = functools.partial(run, compute)
        found.append((function().numpy(), function().numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_later_calls_draw_other_numbers():
    tg.random.set_seed(3)
    compute = tg.function(lambda: tg.pfor(lambda i: tg.random.uniform([]), 3))
    first, second = compute().numpy(), compute().numpy()
    assert len(np.unique([first, second])) == 6
    tg.random.set_seed(3)
    np.testing.assert_array_equal(compute().numpy(), first)


@pytest.mark.sampled(1)
def test_numbers_in_nested_loops_and_functions(run):
    inner = tg.function(lambda: tg.random.uniform([]))
    found = run(lambda: tg.pfor(lambda i: tg.pfor(lambda j: inner(), 4), 3)).numpy()
    assert found.shape == (3, 4)
    assert len(np.unique(found)) == 12


# vmap.


@pytest.mark.sampled(1)
def test_axes_in_and_out(run):
    x, y = numbers(2, 4, 3), numbers(3, 5, seed=1)

    def one(a, b):
        return a @ b

    for in_axis in (0, 1, -2):
        for out_axis in (0, 1, -1):
            if in_axis == 0:
                expected = by_jax(jax.vmap(one, (0, None), out_axis), x, y)
            else:
                expected = by_jax(jax.vmap(one, (1, None), out_axis), x, y)
            mapped = tg.vmap(one, (in_axis, None), out_axis)
            assert_near(run(mapped, tg.constant(x), tg.constant(y)), expected)


def test_structures_of_arguments(run):
    x = {"a": tensor(3, 2), "b": [tensor(3, 2, seed=1), None]}
    mapped = tg.vmap(lambda d, k: (d["a"] * d["b"][0] * k, None), (0, None))
    found, none = run(lambda x: mapped(x, 2.0), x)
    assert none is None
    assert_near(found, 2 * x["a"].numpy() * x["b"][0].numpy())


def test_vmap_of_vmap(run):
    x, y = tensor(2, 3), tensor(4, 3, seed=1)
    dot = tg.vmap(tg.vmap(lambda a, b: tg.reduce_sum(a * b), (None, 0)), (0, None))
    assert_near(run(dot, x, y), x.numpy() @ y.numpy().T)


def test_vmap_of_grad(run):
    x = numbers(4, 3)
    found = run(tg.vmap(tg.grad(loss_of_row)), tg.constant(x))
    assert_near(found, by_jax(jax.vmap(jax.grad(loss_by_jax)), x))


def test_keywords_are_mapped_along_their_first_axis(run):
    x, k = tensor(3, 2), tensor(3, seed=1)
    mapped = tg.vmap(lambda x, k: x * k)
    assert_near(run(lambda x, k: mapped(x, k=k), x, k), x.numpy() * k.numpy()[:, np.newaxis])


# Bad input.

V = tg.Variable(1.0)


BAD = {
    "an assignment": (lambda: tg.pfor(lambda i: V.assign_add(1.0), 3), ValueError, "Variable"),
    "a number of axes": (
        lambda: tg.vectorized_map(lambda r: r, tg.constant(1.0)),
        ShapeError,
        "no first axis",
    ),
    "sizes": (
        lambda: tg.vectorized_map(lambda r: r[0] + r[1], (tg.ones([2]), tg.ones([3]))),
        ShapeError,
        "differ",
    ),
    "no tensors": (lambda: tg.vectorized_map(lambda r: r, (1.0, None)), ShapeError, "no tensor"),
    "minus one": (lambda: tg.pfor(lambda i: i, -1), ValueError, "-1"),
    "half": (lambda: tg.pfor(lambda i: i, 1.5), TypeError, "1.5"),
    "a str": (lambda: tg.pfor(lambda i: "a", 3), TraceError, "str"),
    "a decision": (lambda: tg.pfor(lambda i: sorted([i, 1])[0], 3), TypeError, "tg.where"),
    "a value": (lambda: tg.pfor(lambda i: i.numpy(), 3), TypeError, "numpy"),
    "axes": (lambda: tg.vmap(lambda x: x, 2)(tg.ones([2, 2])), ValueError, "axis 2"),
    "axes out": (lambda: tg.vmap(lambda x: x, 0, 2)(tg.ones([2, 2])), ValueError, "axis 2"),
    "a count of axes": (
        lambda: tg.vmap(lambda x, y: x, (0,))(tg.ones([2]), tg.ones([2])),
        ShapeError,
        "1 entries",
    ),
    "unit sizes in vmap": (
        lambda: tg.vmap(lambda x, y: x + y)(tg.ones([2]), tg.ones([1])),
        ShapeError,
        "differ",
    ),
    "no axes": (lambda: tg.vmap(lambda x: x, None)(tg.ones([2])), ShapeError, "no tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_loops(run, name):
    request, error, fact = BAD[name]
    with pytest.raises(error, match=fact) as caught:
        run(request)
    assert "fix:" in str(caught.value)
    assert "test_pfor.py" in str(caught.value)


def test_an_op_without_a_rule_names_its_line(monkeypatch):
    from tracegraph.ir.op import MissingRule
    from tracegraph.ops.elementwise import SIN

    def missing(self, *_):
        raise MissingRule(self, "batching")

    monkeypatch.setattr(type(SIN), "batch", missing)
    with pytest.raises(MissingRuleError, match="sin") as caught:
        tg.vectorized_map(tg.sin, tensor(3))
    assert "test_pfor.py" in str(caught.value)


def test_a_failure_leaves_the_loop_behind():
    with pytest.raises(ZeroDivisionError):
        tg.pfor(lambda i: 1 // 0, 3)
    assert tg.executing_eagerly()
    assert tg.pfor(lambda i: i, 2).numpy().tolist() == [0, 1]


def test_a_leaked_tensor():
    box = []
    tg.pfor(lambda i: box.append(i) or i, 3)
    with pytest.raises(TypeError, match="out of scope"):
        (box[0] + 1).numpy()


def test_assertions_hold_for_each_iteration(run):
    def compute(x):
        return tg.vectorized_map(lambda r: (tg.debugging.assert_less(r, 1.0), r)[1], x)

    x = tg.constant([0.5, 0.25])
    assert_near(run(compute, x), x.numpy())
    with pytest.raises(tg.errors.InvalidArgumentError):
        np.asarray(run(compute, tg.constant([0.5, 1.5])))


def test_tapes_inside_do_not_see_other_iterations(run):
    """The sum over the loop is not what the tape inside differentiates."""
    x = tensor(3)
    found = run(lambda x: tg.vectorized_map(lambda r: gradient(lambda r: r * r * x[0], r), x), x)
    assert_near(found, 2 * x.numpy() * x.numpy()[0])


def test_a_tape_opened_outside_is_used_inside(run):
    x = tensor(3)

    def compute(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x**3
        return tg.vectorized_map(
            lambda g: tape.gradient(y, x, output_gradients=g), tg.eye(3, dtype=tg.float64)
        )

    assert_near(run(compute, x), np.diag(3 * x.numpy() ** 2))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda f: tg.vectorized_map(f, tg.ones(2)), "vectorized_map"),
        (lambda f: tg.vmap(f)(tg.ones(2)), "vmap"),
        (lambda f: tg.pfor(f, 2), "pfor"),
    ],
)
def test_what_is_no_tensor_names_what_was_called(call, name):
    with pytest.raises(TypeError, match=f"the function of {name} returned a str: 's'"):
        call(lambda x: "s")


def products(function, *specs):
    """How many multiplications the matrix products in the graph of a function make."""
    graph = tg.function(function).get_concrete_function(*specs).graph
    nodes = [node for inner in graph.graphs() for node in inner.nodes]
    found = [node for node in nodes if node.op.name == "matmul"]
    return sum(node.outputs[0].size * node.inputs[0].type.shape[-1] for node in found)


def test_work_that_all_iterations_share_is_done_once():
    n, size = 50, 20
    matrix, rows = tg.TensorSpec([size, size]), tg.TensorSpec([n, size])

    def shared(a, xs):
        return tg.vectorized_map(lambda x: tg.linalg.matvec(a @ a @ a, x), xs)

    def slopes(a, xs):
        def loss(x):
            return tg.reduce_sum(tg.linalg.matvec(tg.linalg.matmul(a, a), x) ** 2)

        return tg.vectorized_map(tg.grad(loss), xs)

    assert products(shared, matrix, rows) == 2 * size**3 + n * size**2
    # The product of the matrices once, and for each row one product on the way there and back.
    assert products(slopes, matrix, rows) == size**3 + 2 * n * size**2
