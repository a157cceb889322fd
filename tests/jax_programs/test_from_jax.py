"""`tg.from_jax`: where converted functions may stand, what they take, and what is refused."""

import collections
import contextlib
import functools
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracegraph as tg

Pair = collections.namedtuple("Pair", ["first", "second"])


def softened(x, scale=2.0):
    return jnp.tanh(x * scale).sum()


@pytest.mark.sampled(1)
def test_structures_in_and_out(run):
    def fn(pair, table):
        return {"sum": pair.first + table["x"], "rest": [Pair(pair.second, None), ()]}

    given = Pair(tg.constant([1.0]), tg.Variable(2)), {"x": np.float32(3)}
    found = run(tg.from_jax(fn), *given)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(
        fn(Pair(np.float32([1]), np.int32(2)), {"x": np.float32(3)})
    )
    assert found["sum"].numpy() == [4.0] and found["rest"][0].first.numpy() == 2


def test_variables_and_arrays_are_leaves_and_tapes_follow_them():
    v, x = tg.Variable([0.5, -0.5]), np.float32([1.0, 2.0])
    with tg.GradientTape() as tape:
        y = tg.from_jax(lambda v, x: jnp.sum(jnp.sin(v) * x))(v, x)
    np.testing.assert_allclose(tape.gradient(y, v), np.cos([0.5, -0.5]) * x, 1e-6)


def test_python_numbers_do_not_widen_what_they_meet():
    half = tg.constant([1.0], tg.float16)
    converted = tg.from_jax(lambda x, n: x * n)
    assert converted(half, 3.0).dtype is tg.float16
    assert converted(half, tg.constant(3.0)).dtype is tg.float32
    assert converted(2, 3).dtype is tg.int32


def test_arguments_by_name_that_are_numbers_are_static():
    seen = []

    def fn(x, *, power, words=("a",), flag=None):
        seen.append((power, flag))
        return x**power if power > 1 else x

    converted = tg.from_jax(fn)
    assert [float(converted(tg.constant(3.0), power=n)) for n in (2, 1, 2)] == [9.0, 3.0, 9.0]
    assert seen == [(2, None), (1, None)]
    assert float(converted(tg.constant(3.0), power=2, flag="x")) == 9.0


@pytest.mark.parametrize("options", [{}, {"input_signature": [tg.TensorSpec([2])]}])
def test_settings_with_defaults_stay_settings_in_functions(options):
    def fn(x, scale=2.0, train=False, mode="plain", *, axis=None):
        x = x * scale if train else x
        return jnp.sum(x, axis) if mode == "sum" else x

    f = tg.function(tg.from_jax(fn), **options)
    x = tg.constant([1.0, 2.0])
    np.testing.assert_array_equal(f(x), [1.0, 2.0])
    np.testing.assert_array_equal(f(x, train=True, scale=3.0), [3.0, 6.0])
    np.testing.assert_array_equal(f(x, mode="sum", axis=0), 3.0)


def test_static_arguments_by_number_and_name():
    def fn(n, x, axis):
        return sum(jnp.sum(x, axis) for _ in range(n))

    converted = tg.from_jax(fn, static_argnums=(0,), static_argnames="axis")
    assert converted(2, tg.constant([[1.0, 2.0]]), axis=(1,)).numpy() == [6.0]
    assert tg.from_jax(fn, static_argnums=(0, -1))(1, np.float32([1, 2]), 0).numpy() == 3.0


def test_one_trace_for_equal_types():
    count = []

    def fn(x):
        count.append(x.shape)
        return x + 1.0

    converted = tg.from_jax(fn)
    for size in (2, 3, 2):
        converted(tg.zeros([size]))
    assert count == [(2,), (3,)]


def test_derivatives_to_order_three_in_both_modes_are_jaxs():
    def f(x):
        return jnp.sum(jax.nn.softplus(x) * jax.nn.gelu(x) + jax.nn.silu(x) ** 2)

    x = np.float32([0.3, -1.2, 2.0])
    converted = tg.from_jax(f)
    hessian = tg.hessian(converted)(tg.constant(x))
    np.testing.assert_allclose(hessian, jax.hessian(f)(x), 1e-4, 1e-5)
    t = np.float32([1.0, 0.5, -0.2])
    third = jax.jvp(jax.jacfwd(jax.grad(f)), (x,), (t,))[1]
    _, found = tg.jvp(tg.hessian(converted), [tg.constant(x)], [tg.constant(t)])
    np.testing.assert_allclose(found, third, 1e-3, 1e-4)


def test_batches_have_a_sparse_jacobian_and_a_loop_axis():
    def f(x):
        return jnp.tanh(x[1:] - x[:-1])

    x = np.linspace(-1, 1, 5, dtype=np.float32)
    given = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(given)
        y = tg.from_jax(f)(given)
    jacobian = tape.jacobian(y, given, sparse=True)
    assert len(jacobian.values) == 8
    np.testing.assert_allclose(jacobian.to_dense(), jax.jacobian(f)(x), 1e-5, 1e-6)
    rows = np.stack([x, x**2])
    np.testing.assert_allclose(
        tg.vectorized_map(tg.from_jax(f), tg.constant(rows)), jax.vmap(f)(rows), 1e-5
    )


def test_open_sizes_stay_open_where_jax_allows_it():
    traces = []

    def fn(x):
        traces.append(x.shape)
        return jnp.concatenate([jnp.sum(x, 0), jnp.ones(x.shape[1])]) / x.shape[0]

    step = tg.function(tg.from_jax(fn), input_signature=[tg.TensorSpec([None, 3])])
    for n in (2, 5):
        found = step(tg.ones([n, 3]))
        np.testing.assert_allclose(found, [1, 1, 1, 1 / n, 1 / n, 1 / n], 1e-6)
    assert len(traces) == 1


def test_a_function_is_traced_for_each_size_that_jax_must_know():
    def fn(x):
        return x[:, None] if x.shape[0] > 3 else x

    step = tg.function(tg.from_jax(fn), input_signature=[tg.TensorSpec([None])])
    assert step(tg.zeros([4])).shape == [4, 1]
    assert step(tg.zeros([3])).shape == [3]


def twice_ruled(n):
    """2 n x, by a rule of its own, where n is a size of the program around it."""
    f = jax.custom_vjp(lambda x: 2 * jnp.sum(jnp.ones(n)) * x)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (2 * jnp.sum(jnp.ones(n)) * g,))
    return f


def total(n):
    return jnp.sum(jnp.ones(n))


#: Parts of programs that use an open size which none of their operands has.
REGIONS = {
    "jit": lambda n, x: jax.jit(lambda x: total(n) * x**2)(x),
    "checkpoint": lambda n, x: jax.checkpoint(lambda x: total(n) * jnp.sin(x))(x),
    "scan": lambda n, x: lax.scan(lambda c, _: (c * x + total(n), c), x, None, length=3)[0],
    "while": lambda n, x: lax.fori_loop(0, 3, lambda i, c: c * x + total(n), x),
    "condition": lambda n, x: lax.while_loop(lambda c: c < total(n), lambda c: 2 * c, x**2 + 1),
    "cond": lambda n, x: lax.cond(x > 0, lambda x: total(n) * x**2, lambda x: x, x),
    "switch": lambda n, x: lax.switch(2, [jnp.sin, jnp.cos, lambda x: total(n) * x**2], x),
    "custom_vjp": lambda n, x: twice_ruled(n)(x),
    "nested": lambda n, x: jax.jit(lambda x: jax.checkpoint(twice_ruled(n))(x) ** 2)(x),
    "random": lambda n, x: x * jnp.sum(jax.random.normal(jax.random.PRNGKey(0), (n,))),
    "one_hot": lambda n, x: x * jnp.sum(jax.nn.one_hot(jnp.array([0, 1]), n)[:, 0]),
}


def value_and_slope(f, x):
    """By reverse mode, which JAX's while_loop does not have, or by forward mode."""
    try:
        return jax.value_and_grad(f)(x)
    except ValueError:
        return jax.jvp(f, (x,), (np.float32(1),))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.parametrize("name", REGIONS)
def test_regions_may_use_open_sizes_that_no_operand_has(name):
    converted = tg.from_jax(lambda x: REGIONS[name](x.shape[0], x[0]))

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        return y, tape.gradient(y, x)

    for n in (3, 5):
        x = np.linspace(0.5, 1.0, n, dtype=np.float32)
        wanted, slope = value_and_slope(functools.partial(REGIONS[name], n), x[0])
        y, gradient = f(x)
        np.testing.assert_allclose(y, wanted, 1e-5)
        np.testing.assert_allclose(gradient, [slope, *[0] * (n - 1)], 1e-5)
    assert f.experimental_get_tracing_count() == 1


def test_sizes_in_regions_are_those_of_the_call():
    """Names of sizes inside of a program stand for others at each call."""
    converted = tg.from_jax(lambda y, x: jax.jit(lambda s: jnp.ones(x.shape[0]) * s)(y[0]))

    @tg.function(input_signature=[tg.TensorSpec(["d0"]), tg.TensorSpec(["d1"])])
    def f(x, y):
        return converted(y, x), converted(x, y)

    first, second = f(tg.ones([3]), tg.ones([7]))
    assert first.shape == [3] and second.shape == [7]


#: Programs whose sizes JAX writes with a remainder, a quotient, a power, a maximum, a minimum.
SIZES = {
    "roll": lambda x: jnp.roll(x, (1, -3), 0),
    "flat": lambda x: jnp.outer(x, x).ravel(),
    "stride": lambda x: x[1::3],
    "end": lambda x: x[-5:],
    "start": lambda x: x[:2],
    "windows": lambda x: lax.conv(x[None, None], jnp.ones((1, 1, 3)), (2,), "SAME"),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.parametrize("name", SIZES)
def test_sizes_stay_open_however_jax_writes_them(name):
    converted = tg.from_jax(SIZES[name])

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        return y, tape.gradient(y, x)

    for n in (3, 7):
        x = np.arange(n, dtype=np.float32)
        wanted, pull = jax.vjp(SIZES[name], x)
        y, gradient = f(x)
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_allclose(gradient, pull(np.ones_like(wanted))[0], 1e-5)
    assert f.experimental_get_tracing_count() == 1


#: What JAX refuses of an open size, each in another way.
PER_SIZE = {
    "convolve": lambda x: jnp.convolve(x, jnp.ones(2)),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "permutation": lambda x: jax.random.permutation(jax.random.PRNGKey(1), x),
}


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.parametrize("name", PER_SIZE)
def test_what_jax_refuses_of_open_sizes_is_traced_for_each(name):
    f = tg.function(tg.from_jax(PER_SIZE[name]), input_signature=[tg.TensorSpec([None])])
    for n in (4, 7):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_allclose(f(x), PER_SIZE[name](x), 1e-5)
    found = f.explain_retraces()
    assert "cannot trace it with open sizes" in found.first.failure
    assert found.retraces[-1].changes == ("argument 'x' was f32[4] and is now f32[7]",)


def test_an_open_size_that_jax_refuses_is_told_where_there_is_no_call():
    f = tg.function(tg.from_jax(PER_SIZE["convolve"]))
    with pytest.raises(tg.errors.ShapeError, match="cannot trace it with open sizes: TypeError: "):
        f.get_concrete_function(tg.TensorSpec([None]))


def test_a_sum_over_an_axis_that_nothing_names_is_refused():
    summed = tg.from_jax(lambda x: lax.psum(x, "devices"))
    with pytest.raises(
        tg.errors.TraceError, match=r"unbound axis name: devices.*\n.*\n  fix: name"
    ):
        summed(tg.ones([2]))
    with pytest.raises(NameError, match="name 'absent' is not defined"):
        tg.from_jax(lambda x: absent * x)(tg.ones([2]))  # noqa: F821


def test_a_mistake_of_the_user_does_not_end_the_trace_for_all_sizes():
    traces = []

    def fn(x, wrong=False):
        if wrong:
            raise LookupError("the user's own")
        traces.append(x.shape)
        return x * x.shape[0]

    f = tg.function(tg.from_jax(fn), input_signature=[tg.TensorSpec([None])])
    with pytest.raises(LookupError, match="the user's own"):
        f(tg.ones([2]), wrong=True)
    for n in (2, 3):
        np.testing.assert_array_equal(f(tg.ones([n])), [n] * n)
    assert len(traces) == 1


def test_wide_types_are_those_of_the_argument_alone():
    found = tg.from_jax(lambda x: x * 2 + jnp.arange(2.0))(tg.constant([1.0, 2.0], tg.float64))
    assert found.dtype is tg.float64
    assert tg.from_jax(lambda x: x * np.float64(2))(tg.constant([1.0])).dtype is tg.float32


def test_arrays_that_jax_makes_of_numbers_widen_nothing():
    x = jnp.ones(2, jnp.bfloat16)
    for scale in (jnp.asarray(2.0), jnp.asarray(2), jnp.float32(2)):
        found = tg.from_jax(lambda scale, x: scale * x)(scale, x)
        assert found.dtype.name == (scale * x).dtype.name


def test_keys_are_arrays_and_numbers_are_jaxs():
    def draw(key):
        new, use = jax.random.split(key)
        return new, jax.random.normal(use, (2,)), jax.random.randint(use, (2,), 0, 9)

    for key in (jax.random.key(5), jax.random.PRNGKey(5)):
        new, *numbers = tg.from_jax(draw)(key)
        wanted, *others = draw(key)
        wanted = jax.random.key_data(wanted)
        assert new.numpy().tobytes() == np.asarray(wanted).tobytes()
        for one, other in zip(numbers, others):
            assert one.numpy().tobytes() == np.asarray(other).tobytes()


def test_large_constants_are_captured_and_small_ones_are_nodes():
    large = jnp.arange(1000.0)
    converted = tg.from_jax(lambda x: x + large[:3].sum() + jnp.float32([1, 2, 3]))
    f = tg.function(converted).get_concrete_function(tg.TensorSpec([3]))
    assert [x.shape for x in f.captured_inputs] == [[1000]]
    np.testing.assert_allclose(f(tg.zeros([3])), [4, 5, 6])


def test_the_graph_has_calls_and_the_lines_of_the_program():
    def inner(x):
        return jnp.sin(x) + jnp.cos(x)  # here

    @tg.function
    def f(x):
        return tg.from_jax(lambda x: jax.jit(inner)(x) * jax.jit(inner)(x + 1.0))(x)

    text = f.get_concrete_function(tg.TensorSpec([2])).graph.as_text(locations=True)
    line = inner.__code__.co_firstlineno + 1
    assert len(re.findall(r"= call<body=@inner>", text)) == 2
    assert re.search(rf"= sin\(.*test_from_jax.py:{line}\b", text)


def test_scopes_of_jax_are_scopes_of_the_graph():
    def fn(x):
        with jax.named_scope("encoder"):
            return jnp.sin(x)

    f = tg.function(tg.from_jax(fn)).get_concrete_function(tg.TensorSpec([2]))
    assert "in encoder" in f.graph.as_text(locations=True)


def test_transformations_of_jax_are_no_scopes():
    def loss(x):
        with jax.named_scope("encoder"), jax.named_scope("block"):
            return jnp.sum(jax.nn.relu(x))  # whose rule JAX differentiates

    f = tg.function(tg.from_jax(jax.vmap(jax.grad(loss))))
    graph = f.get_concrete_function(tg.TensorSpec([2, 3])).graph
    scopes = {node.source.scope for inner in graph.graphs() for node in inner.nodes}
    assert scopes == {"", "encoder/block"}


def test_loops_and_recomputation_stay_what_they_are():
    def fn(x):
        y, _ = lax.scan(lambda s, r: (jax.checkpoint(jnp.sin)(s) + r, None), x[0], x)
        return lax.while_loop(lambda y: y < 9.0, lambda y: y * 2.0 + 1.0, y)

    graph = tg.function(tg.from_jax(fn)).get_concrete_function(tg.TensorSpec([4])).graph
    names = {node.op.name for inner in graph.graphs() for node in inner.nodes}
    assert {"scan", "while", "recomputed_call"} <= names


def test_custom_rules_serve_every_order():
    @jax.custom_vjp
    def f(x):
        return x**3

    f.defvjp(lambda x: (x**3, x), lambda x, g: (5.0 * x**2 * g,))
    x = tg.constant(2.0)
    assert float(tg.grad(tg.from_jax(f))(x)) == 20.0
    assert float(tg.grad(tg.grad(tg.from_jax(f)))(x)) == 20.0
    assert float(tg.jvp(tg.from_jax(f), [x], [tg.constant(1.0)])[1]) == 20.0


def test_as_jax_gives_a_function_of_jax_back():
    back = tg.function(tg.from_jax(softened)).as_jax()
    x = jnp.float32([0.1, 0.2])
    np.testing.assert_allclose(jax.grad(back)(x), jax.grad(softened)(x), 1e-6)


def placed(*axes):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def test_a_sharding_constraint_is_a_layout():
    def fn(x):
        return jnp.sum(lax.with_sharding_constraint(jnp.sin(x), placed("x")) ** 2)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = tg.function(tg.from_jax(fn)).get_concrete_function(tg.TensorSpec([2, 3])).graph
    assert 'with_layout<mesh="x=1", axes=["x",none]>' in graph.as_text()
    with tg.GradientTape() as tape:
        given = tg.constant(x)
        tape.watch(given)
        y = tg.from_jax(fn)(given)
    np.testing.assert_allclose(y, fn(x), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, given), jax.grad(fn)(x), rtol=1e-5, atol=1e-6)


def test_what_device_put_divides_has_a_layout():
    x = tg.ones([2, 3])
    f = tg.function(tg.from_jax(lambda x: jax.device_put(x, placed("x")) * 2.0))
    graph = f.get_concrete_function(x).graph
    assert 'with_layout<mesh="x=1", axes=["x",none]>' in graph.as_text()
    np.testing.assert_array_equal(f(x), 2.0 * np.ones([2, 3]))


def test_the_shardings_of_a_jit_are_layouts():
    def doubled(x, y):
        return x * 2.0, y * 3.0

    options = {"in_shardings": (placed("x"), None), "out_shardings": (None, placed(None, "x"))}
    f = tg.function(tg.from_jax(jax.jit(doubled, **options)))
    x = tg.ones([2, 3])
    text = f.get_concrete_function(x, x).graph.as_text()
    assert 'with_layout<mesh="x=1", axes=["x",none]>(%arg0)' in text
    assert text.count("with_layout") == 2 and 'axes=[none,"x"]' in text
    for found, factor in zip(f(x, x), (2.0, 3.0)):
        np.testing.assert_array_equal(found, factor * np.ones([2, 3]))
    elsewhere = jax.jit(
        lambda x: x, out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    assert "tg.device" in str(refusal(lambda x: elsewhere(x), x).value)


@pytest.mark.parametrize("place", [None, jax.memory.Space.Device])
def test_device_put_to_the_device_of_the_program_is_the_value(place):
    found = tg.from_jax(lambda x: jax.device_put((x, 2.0 * x), place))(tg.ones([2]))
    np.testing.assert_array_equal(found, [np.ones(2), 2.0 * np.ones(2)])


# What is refused.


def refusal(fn, *args, **kwargs):
    with pytest.raises(Exception) as caught:
        tg.from_jax(fn)(*args, **kwargs)
    return caught


def line_of(fn, offset=1):
    return f"test_from_jax.py:{fn.__code__.co_firstlineno + offset}"


@pytest.mark.parametrize(
    ("place", "fix"),
    [
        (jax.devices()[0], "tg.device"),
        (jax.sharding.SingleDeviceSharding(jax.devices()[0]), "tg.device"),
        (jax.memory.Space.Host, "memory_kind"),
    ],
)
def test_device_put_to_a_device_or_a_memory_is_refused_with_its_line(place, fix):
    def fn(x):
        return jax.device_put(x, place)

    error = refusal(fn, tg.ones([2])).value
    assert isinstance(error, tg.errors.TraceError)
    assert str(place) in str(error) and line_of(fn) in str(error) and fix in str(error)


def test_a_primitive_without_counterpart_is_named_with_its_line():
    def fn(x):
        return lax.linalg.hessenberg(x)[0]

    caught = refusal(fn, tg.ones([3, 3]))
    assert caught.type is tg.errors.TraceError
    assert "'hessenberg' of JAX has no counterpart" in str(caught.value)
    assert line_of(fn) in str(caught.value)


@pytest.mark.parametrize("name", ["print", "scan", "callback", "sharding"])
def test_what_does_more_than_compute_is_refused(name):
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)

    def fn(x):
        if name == "print":
            jax.debug.print("{}", x)
        if name == "scan":  # JAX leaves it no results, and it prints nevertheless
            lax.scan(lambda c, a: (c, jax.debug.print("{}", a)), 0.0, x)
        if name == "callback":
            x = jax.pure_callback(np.sin, shape, x)
        if name == "sharding":
            x = lax.with_sharding_constraint(x, placed(jax.sharding.PartitionSpec.UNCONSTRAINED))
        return x

    caught = refusal(fn, tg.ones([2]))
    assert caught.type is tg.errors.TraceError
    told = {
        "print": "debug",
        "scan": "debug",
        "callback": "pure_callback",
        "sharding": "leaves axes to XLA",
    }
    assert told[name] in str(caught.value)
    assert re.search(r"test_from_jax.py:\d+", str(caught.value))


def test_a_value_that_is_asked_for_is_refused_with_the_line():
    def fn(x):
        return x if x[0] > 0 else -x

    caught = refusal(fn, tg.ones([2]))
    assert caught.type is tg.errors.TraceError
    assert line_of(fn) in str(caught.value) and "static_argn" in str(caught.value)
    assert "fix: choose by jnp.where, jax.lax.cond" in str(caught.value)


def test_a_tracer_that_leaks_is_refused():
    kept = []

    def leaks(x):
        kept.append(x)
        return x * 2

    tg.from_jax(leaks)(tg.ones([2]))
    caught = refusal(lambda x: x + kept[0], tg.ones([2]))
    assert caught.type is tg.errors.TraceError and "keep no traced value" in str(caught.value)


def two(x, n, *, k=2):
    return x * n * k


def many(x, *xs, **settings):
    return x * len(xs)


@pytest.mark.parametrize("function", [two, many])
@pytest.mark.parametrize(
    "options",
    [
        *({"static_argnums": n} for n in ("a", 5, 2, -1, (1, 7), (1, -1), 1.0, [[1]], None)),
        *({"static_argnames": name} for name in ("k", "q", ("k", "q"), 3, ["k", 3], b"k", None)),
        {"static_argnums": 1, "static_argnames": "q"},
        {"static_argnums": np.int64(1)},
    ],
)
def test_static_arguments_are_refused_where_jit_refuses_them(function, options):
    expected = None
    with contextlib.suppress(TypeError, ValueError):
        expected = jax.jit(function, **options)(np.ones(2, np.float32), 3)
    if expected is None:
        with pytest.raises(tg.errors.SignatureError, match=f"^{function.__name__}: static_argn"):
            tg.from_jax(function, **options)
    else:
        found = tg.from_jax(function, **options)(tg.ones([2]), 3)
        np.testing.assert_array_equal(found, expected)


def test_a_wrong_static_argument_is_told_with_what_the_function_takes():
    with pytest.raises(ValueError, match=r"two: static_argnums has 5, .* takes 2 .*: two\(x, n, "):
        tg.from_jax(two, static_argnums=(0, 5))
    with pytest.raises(ValueError, match=r"two: static_argnums has -3, and the function takes 2 "):
        tg.from_jax(two, static_argnums=-3)  # jit's answer depends on what it has cached
    with pytest.raises(ValueError, match=r"'q', which the function does not take: two\(x, n, "):
        tg.from_jax(two, static_argnames=("n", "q"))
    with pytest.raises(ValueError, match="'x', which the function takes by position only"):
        tg.from_jax(lambda x, /: x, static_argnames="x")
    with pytest.raises(ValueError, match=r"static argument 0 is a Tensor.*\n.*\n  fix: give a Py"):
        tg.from_jax(two, static_argnums=0)(tg.ones([2]), 3)


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "mode"}])
def test_positions_and_names_of_static_arguments_follow_from_each_other(options):
    def fn(x, mode):
        return x + 1 if mode == "plus" else x

    converted, compiled = tg.from_jax(fn, **options), jax.jit(fn, **options)
    for args, kwargs in (((1.0, "plus"), {}), ((1.0,), {"mode": "plus"})):
        assert converted(*args, **kwargs).numpy() == compiled(*args, **kwargs) == 2.0


def test_settings_by_position_and_lists_as_static_arguments_are_refused():
    caught = refusal(lambda x, mode: x, tg.ones([2]), "same")
    assert "is a str: 'same'" in str(caught.value) and "static_argnums" in str(caught.value)
    with pytest.raises(tg.errors.SignatureError, match="cannot be hashed"):
        tg.from_jax(lambda x, axes: x, static_argnums=1)(tg.ones([2]), [1])
    with pytest.raises(tg.errors.TraceError, match="is not a function"):
        tg.from_jax(3)


WEIGHT = tg.Variable([2.0, 3.0], name="weight")


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: x * jnp.asarray(WEIGHT), "reads"),
        (lambda x: x * WEIGHT.numpy(), "reads"),
        (lambda x: x * float(WEIGHT[0]), "reads"),
        (lambda x: x * (WEIGHT + 1.0).numpy(), "reads"),
        (lambda x: (WEIGHT.assign([0.0, 0.0]), x)[1], "assigns"),
        (lambda x: (WEIGHT.assign_add([1.0, 1.0]), x)[1], "assigns"),
        (lambda x: (WEIGHT.scatter_nd_update([[0]], [1.0]), x)[1], "assigns"),
    ],
)
def test_a_variable_that_tracing_would_fix_is_refused(fn, what):
    """What it reads would stay as it is now, whatever is assigned later."""
    match = rf"{what} the Variable 'weight' .*\n  at .*\n  fix: pass the Variable as an argument"
    with pytest.raises(tg.errors.TraceError, match=match):
        tg.from_jax(fn)(tg.ones([2]))
    np.testing.assert_array_equal(WEIGHT, [2.0, 3.0])
    passed = tg.from_jax(lambda x, w: x * w)(tg.ones([2]), WEIGHT)  # as the fix says
    np.testing.assert_array_equal(passed, [2.0, 3.0])


@pytest.mark.parametrize("combine", [lambda x, y: x * y, lambda x, y: y * x, jnp.dot])
def test_a_tensor_from_outside_is_an_argument(combine):
    @tg.function
    def captured(y):
        return tg.from_jax(lambda x: combine(x, y))(tg.ones([2]))

    fix = "\n  fix: pass the tensor to the function of JAX as an argument"
    with pytest.raises((tg.errors.TraceError, tg.errors.SignatureError)) as caught:
        captured(tg.ones([2]))
    text = str(caught.value)
    assert text.endswith(fix) and "  at " + __file__ in text
    f = tg.function(lambda y: tg.from_jax(combine)(tg.ones([2]), y))  # as the fix says
    np.testing.assert_array_equal(f(tg.ones([2])), combine(np.ones(2), np.ones(2)))


def test_a_signal_handler_uses_variables_while_jax_traces():
    seen, count = [], tg.Variable(1)

    def handle(number, frame):
        seen.append(count.numpy())
        count.assign_add(1)

    def fn(x):
        signal.raise_signal(signal.SIGUSR1)
        return x

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        tg.from_jax(fn)(tg.ones([2]))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [1] and int(count) == 2


def test_an_unknown_rank_is_traced_for_each_rank():
    f = tg.function(tg.from_jax(lambda x: jnp.sum(x)), input_signature=[tg.TensorSpec(None)])
    assert float(f(tg.ones([2, 3]))) == 6.0


def test_other_generators_are_refused():
    caught = refusal(lambda k: jax.random.uniform(k), jax.random.key(0, impl="rbg"))
    assert "threefry" in str(caught.value)


def test_an_error_of_jax_stays_and_has_the_line():
    def fn(x):
        y = jnp.sin(x)
        return y @ jnp.ones([5])

    with pytest.raises(TypeError, match="contracting dimensions") as caught:
        tg.from_jax(fn)(tg.ones([3]))
    assert not isinstance(caught.value, tg.errors.TraceError)
    (note,) = (note for note in caught.value.__notes__ if "from_jax" in note)
    assert note.startswith("in fn(f32[3])") and note.endswith(line_of(fn, 2))


def test_a_static_argument_of_jit_must_be_named_again():
    """What jax.jit was told cannot be read from its result."""
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    with pytest.raises(tg.errors.TraceError, match=r"static_argnums or static_argnames"):
        tg.from_jax(power)(tg.constant(2.0), 3)
    assert float(tg.from_jax(power, static_argnums=1)(tg.constant(2.0), 3)) == 8.0
