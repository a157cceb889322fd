"""Corners in which a program of JAX and ours could differ: beside JAX, at the very points."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import eq_to_p, le_to_p, lt_to_p
from jax.tree_util import tree_leaves

import tracegraph as tg
from tracegraph.jax_programs.derivatives import custom_rules

SYMMETRIC = np.float32([[2.0, 0.3], [0.3, 1.0]])


def gradients(fn, x):
    """Ours, and JAX's."""
    tensor = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(tensor)
        y = tg.from_jax(fn)(tensor)
    return tape.gradient(y, tensor), jax.grad(fn)(jnp.asarray(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["inv", "slogdet", "eigvalsh"])
def test_eigenvalues_beside_another_decomposition(name):
    def fn(x):
        other = getattr(jnp.linalg, name)(x)
        other = other[1] if name == "slogdet" else other
        return jnp.sum(other) + jnp.sum(jnp.linalg.eigvalsh(x) ** 2)

    np.testing.assert_allclose(*gradients(fn, SYMMETRIC), 1e-5, 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[jnp.array([0, 7])].sum(),
        lambda x: x[jnp.array([-9, 2, 2])].sum(),
        lambda x: (jnp.stack([x, 2 * x], 1)[jnp.array([[1], [5]]), jnp.array([[0, 1]])] ** 2).sum(),
        lambda x: jax.vmap(lambda i: jnp.outer(x, x)[i, ::2] @ x[:2])(jnp.array([3, 1])).sum(),
        lambda x: jnp.take(x, jnp.array([0, 7]), mode="clip").sum(),
        lambda x: x.at[jnp.array([0, 7])].get(mode="fill", fill_value=2.0).sum(),
    ],
)
def test_what_is_read_out_of_range(fn):
    np.testing.assert_allclose(*gradients(fn, np.float32([1.0, 3.0, 4.0])))
    np.testing.assert_allclose(tg.from_jax(fn)(tg.ones([3])), fn(jnp.ones(3)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["promise_in_bounds", "clip", "fill"])
@pytest.mark.parametrize("start", [-1, 1, 2, 5])
def test_windows_that_reach_out_of_range(mode, start):
    numbers = lax.GatherDimensionNumbers((0,), (), (0,))

    def fn(x):
        window = lax.gather(x, jnp.array([start]), numbers, (2,), mode=mode)
        return jnp.sum(window * jnp.array([1.0, 2.0]))

    np.testing.assert_allclose(*gradients(fn, np.float32([1.0, 3.0, 4.0])))


def test_the_derivative_of_abs_at_0_is_1_in_both_modes():
    x = np.float32([-2.0, 0.0, -0.0, 3.0])
    np.testing.assert_array_equal(*gradients(lambda x: jnp.abs(x).sum(), x))
    np.testing.assert_array_equal(*gradients(lambda x: jnp.linalg.norm(x[1:2], 1), x))
    with tg.autodiff.ForwardAccumulator(tensor := tg.constant(x), tg.ones([4])) as accumulator:
        y = tg.from_jax(jnp.abs)(tensor)
    wanted = jax.jvp(jnp.abs, [x], [np.ones_like(x)])[1]
    np.testing.assert_array_equal(accumulator.jvp(y), wanted)


ORDERED = [-np.nan, -np.inf, -1.0, -0.0, 0.0, 1e-3, 1.0, np.inf, np.nan]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("primitive", [lt_to_p, le_to_p, eq_to_p], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.int32])
def test_total_order(primitive, dtype):
    x = np.asarray(ORDERED, dtype) if dtype is not np.int32 else np.int32([-3, 0, 5])
    given = np.repeat(x, len(x)), np.tile(x, len(x))
    found = tg.from_jax(primitive.bind)(*map(tg.constant, given))
    np.testing.assert_array_equal(found, primitive.bind(*given))
    if dtype is not np.int32:
        size = len(x)
        wanted = np.tri(size, k=-1 if primitive is lt_to_p else 0, dtype=bool).T
        wanted = np.eye(size, dtype=bool) if primitive is eq_to_p else wanted
        np.testing.assert_array_equal(np.reshape(found, (size, size)), wanted)


def test_searching_and_interpolating():
    grid, values = jnp.array([0.0, 1.0, 2.5]), jnp.array([1.0, -1.0, 4.0])
    x = np.float32([-1.0, 0.0, 0.3, 1.0, 2.0, 2.5, 9.0])
    np.testing.assert_allclose(*gradients(lambda x: jnp.interp(x, grid, values).sum(), x))
    for side in ("left", "right"):

        def places(x, side=side):
            return jnp.searchsorted(grid, x, side=side)

        np.testing.assert_array_equal(tg.from_jax(places)(x), places(x))


def test_the_exponential_of_a_matrix():
    found, wanted = gradients(lambda x: jax.scipy.linalg.expm(x)[0].sum(), SYMMETRIC)
    np.testing.assert_allclose(found, wanted, 1e-5)


def halved(x, y):
    """y * 0.5 ** n, by a loop whose count differs."""
    return lax.while_loop(
        lambda state: state[0] > 1.0, lambda state: (state[0] / 2.0, state[1] * 0.5), (x, y)
    )


def rooted(x, y):
    """A loop in which another step, behind the last, would be of a negative number."""
    return lax.while_loop(
        lambda state: state[0] > 0.0, lambda state: (jnp.sqrt(state[0]) - 1.5, state[1] + x), (x, y)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fn", [halved, rooted])
@pytest.mark.parametrize("shape", [(4,), (2, 2), (0,)])
def test_mapped_loops_that_end_apart(fn, shape):
    given = np.resize(np.float32([9.0, 0.5, 3.0, -1.0]), shape), np.ones((*shape, 2), np.float32)
    mapped = fn
    for _ in shape:
        mapped = jax.vmap(mapped)
    xs = [tg.constant(x) for x in given]
    with tg.GradientTape() as tape:
        tape.watch(xs)
        found = tg.from_jax(mapped)(*xs)
    wanted = mapped(*given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-6)
    # The reverse mode, which JAX has not, against the tangents along each argument.
    gradients = tape.gradient(found, xs)
    for i, x in enumerate(given):
        for place in np.ndindex(x.shape):
            tangents = [np.zeros_like(one) for one in given]
            tangents[i][place] = 1.0
            ts = jax.jvp(mapped, given, tuple(tangents))[1]
            np.testing.assert_allclose(gradients[i][place], sum(map(jnp.sum, ts)), 1e-5)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("a", "the result of a function of JAX is a str: 'a'"),
        ({"b": [1.0, "q"]}, "the result at ['b'][1] of a function of JAX is a str: 'q'"),
        (np.array(["a"]), "the result of a function of JAX is"),
    ],
)
def test_results_that_are_no_arrays_are_refused(result, words):
    with pytest.raises(tg.errors.TraceError) as caught:
        tg.from_jax(lambda x: result)(1.0)
    assert words in str(caught.value) and "fix: return arrays and numbers" in str(caught.value)


@pytest.mark.parametrize("makes", [lambda x: (i for i in [x]), lambda x: [map(abs, [x])]])
def test_iterators_are_refused_by_our_error_alone(makes):
    """JAX warns of them. Warnings are errors here."""
    for call in (lambda: tg.from_jax(makes)(1.0), lambda: tg.from_jax(abs)(makes(1.0))):
        with pytest.raises(tg.errors.TraceError, match=r"of JAX is a (generator|map)"):
            call()


def test_results_that_jax_takes_are_taken():
    assert float(tg.from_jax(lambda x: (x, 2, np.float32(3), np.ones(1), None))(1.0)[3]) == 1.0


def test_keys_of_the_new_style_say_what_to_pass():
    dropout, key = nn.Dropout(0.5, deterministic=False), jax.random.key(1)
    model = tg.Module.from_flax(nn.Sequential([nn.Dense(2), dropout]), {"params": {}})
    for call in (
        lambda: model(tg.ones([2]), rngs={"dropout": key}),
        lambda: tg.function(lambda key: key)(key),
        lambda: tg.constant(key),
    ):
        with pytest.raises(tg.errors.DTypeError, match=r"pass jax\.random\.key_data\(key\)"):
            call()


def test_the_derivative_of_a_cube_root_at_0_is_infinite():
    x = np.float32([-8.0, 0.0, 1.0])
    np.testing.assert_allclose(*gradients(lambda x: jnp.cbrt(x).sum(), x), 1e-6)


def multiplied(x, y, **options):
    return jnp.matmul(x, y, **options)


def slid(x, y, **options):
    return lax.conv_general_dilated(x[None, None], y[None, None], (1, 1), "SAME", **options)


@pytest.mark.parametrize("function", [multiplied, slid])
@pytest.mark.parametrize("asked", ["highest", "high", None, ("default", "highest")])
def test_products_keep_the_precision_that_is_asked_for(function, asked):
    """In derivatives of both modes and in maps too, as JAX's do."""

    def fn(x, y):
        return jnp.sum(function(x, y, precision=asked) ** 2)

    def ours(x, y):
        with tg.GradientTape() as tape:
            tape.watch([x, y])
            value = tg.from_jax(fn)(x, y)
        return tape.gradient(value, [x, y])

    def of_a_map(x, y):
        return tg.vectorized_map(lambda x: tg.jvp(ours, [x, y], [x, y])[1], x)

    x, y = tg.ones([2, 3, 3]), tg.ones([3, 3])
    f = tg.function(of_a_map)
    text = f.get_concrete_function(x, y).graph.as_text()
    products = [line for line in text.split("\n") if " = matmul" in line or " = conv<" in line]
    name = "highest" if isinstance(asked, tuple) else asked
    assert len(products) > 4
    assert all((f'precision="{name}"' in line) == (name is not None) for line in products)
    lowered = jax.jit(f.as_jax()).lower(x.numpy(), y.numpy()).as_text()
    assert (name or "default").upper() in lowered
    assert name is None or "DEFAULT" not in lowered
    wanted = jax.vmap(lambda x: jax.jvp(jax.grad(fn, (0, 1)), (x, y.numpy()), (x, y.numpy()))[1])
    for one, other in zip(f(x, y), wanted(x.numpy()), strict=True):
        np.testing.assert_allclose(one, other, 1e-5)


def test_an_algorithm_for_products_is_refused():
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32
    with pytest.raises(tg.errors.TraceError, match=r"dot_general asks for the algorithm .*BF16_"):
        tg.from_jax(lambda x: jnp.matmul(x, x, precision=preset))(tg.ones([2, 2]))


@pytest.mark.parametrize("function", [lax.pmax, lax.pmin, lax.pmean])
def test_collectives_within_vmap_are_reductions(function):
    def fn(x):
        inner = jax.vmap(lambda x: x - function(x, ("rows", "columns")), axis_name="columns")
        return jax.vmap(inner, axis_name="rows")(x)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(tg.from_jax(fn)(x), jax.jit(fn)(x), 1e-6)


@pytest.mark.parametrize("function", [lax.cbrt, lax.exp2])
def test_cube_roots_and_powers_of_2_have_the_bits_of_jax(function):
    x = np.random.default_rng(0).normal(scale=3.0, size=500).astype(np.float32)
    x = np.concatenate([x, np.float32([0.0, -0.0, 8.0, np.inf, -np.inf, np.nan, 1e-40])])
    np.testing.assert_array_equal(tg.from_jax(function)(x), jax.jit(function)(x))


def test_tangents_and_cotangents_of_what_is_rounded_are_rounded_likewise():
    def rounded(x):
        return jax.lax.reduce_precision(x, 5, 2)

    x, direction = np.float32([0.1, -2.3, 1e-9]), np.float32([0.3, 1.7, -5.1])
    ours = tg.from_jax(rounded)
    for wrap in (lambda f: f, jax.jit):
        wanted = jax.jvp(wrap(rounded), (x,), (direction,))[1]
        np.testing.assert_array_equal(tg.jvp(ours, (x,), (direction,))[1].numpy(), wanted)
    pulled = tg.vjp(ours, x)[1](direction)
    np.testing.assert_array_equal(*map(np.ravel, (pulled, jax.vjp(rounded, x)[1](direction)[0])))


def test_rounding_of_what_is_not_finite_has_the_slope_0():
    x = np.float32([np.inf, -np.inf, 2.5, -0.3])
    np.testing.assert_array_equal(*gradients(lambda x: (x + lax.round(x)).sum(), x))


def complex_numbers(*shape):
    rng = np.random.default_rng(5)
    return np.complex64(rng.normal(size=shape) + 1j * rng.normal(size=shape))


@jax.custom_jvp
def squared(x):
    return x * x


@squared.defjvp
def _squared_rule(primals, tangents):
    return squared(primals[0]), 2j * primals[0] * tangents[0]


@jax.custom_vjp
def turned(x):
    return 1j * x


doubled = jax.custom_vjp(lambda x: 2.0 * x)
doubled.defvjp(lambda x: (2.0 * x, x), lambda x, g: (3.0 * g * jnp.cos(x),))

turned.defvjp(lambda x: (1j * x, x), lambda x, g: ((2 + 1j) * x * g,))


def extremes(x):
    y = x.T
    both = lax.max(x, y) + 2j * lax.min(x, y) + jnp.max(x, 0) * jnp.min(x, 1, initial=0.5)
    return both + lax.cummax(x, axis=1), lax.atan2(x, y + 2), lax.conj(x.real)


def test_order_of_complex_numbers():
    x = complex_numbers(3, 3)
    x[1] = [1 - 1j, 1 + 1j, 1]

    def fn(x):
        order = jnp.argsort(x, 1), lax.sort((x, x.imag), dimension=0, num_keys=2)
        return *extremes(x), *order, lax.reduce_max(x[:0], (0,))

    for found, wanted in zip(tree_leaves(tg.from_jax(fn)(x)), tree_leaves(fn(x))):
        np.testing.assert_allclose(found, wanted, 1e-5)


def test_products_are_cut_to_the_type_of_the_result_after_the_sum():
    x, y = np.float32([[1.5, 2.5, -0.7]]), np.float32([[2.5], [1.5], [0.9]])

    def fn(x, y):
        pairs = ("float32", "int32"), ("bfloat16", "int8")
        return [
            jnp.matmul(x.astype(given), y.astype(given), preferred_element_type=wanted)
            for given, wanted in pairs
        ]

    for found, wanted in zip(tg.from_jax(fn)(x, y), jax.jit(fn)(x, y)):
        assert found.dtype.numpy_dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_windows_of_bools_and_bits_and_windows_that_do_not_fit():
    def fn(x):
        over = partial(lax.reduce_window, window_dimensions=(2,), window_strides=(1,))
        is_odd = over(x % 2 == 1, False, lax.max, padding="SAME")
        image = x.astype(jnp.float32)[None, None]
        return [
            is_odd,
            over(x % 3 == 1, True, lax.min, padding="SAME"),
            over(x, 0, lax.bitwise_or, padding="VALID"),
            over(x.astype(jnp.uint8), np.uint8(255), lax.bitwise_and, padding="SAME"),
            lax.conv_general_dilated(image, jnp.ones((2, 1, 9)), (1,), "VALID"),
            lax.reduce_window(x, 0, lax.add, (9,), (2,), "VALID"),
            over(x[:0], 0, lax.add, padding="VALID"),
        ]

    x = np.int32([5, 3, 12, -7, 2, 0])
    for found, wanted in zip(tg.from_jax(fn)(x), fn(x)):
        np.testing.assert_array_equal(found, wanted)


def test_polygamma_of_an_order_that_is_no_whole_number_is_nan():
    x = np.float32([0, 1, 2, 1.5, -1]), np.float32([0.5, 1.5, 2, 0.3, 2])
    np.testing.assert_allclose(tg.from_jax(lax.polygamma)(*x), lax.polygamma(*x), 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fn",
    [
        squared,
        turned,
        lambda x: jnp.linalg.slogdet(x)[1],
        lambda x: jnp.linalg.solve(x, x[:, :2] ** 2),
        lambda x: jnp.linalg.inv(x) @ jnp.conj(x),
        lambda x: extremes(x)[0] * jnp.sort(x, 0) + lax.sign(x),
    ],
    ids=["custom_jvp", "custom_vjp", "slogdet", "solve", "inv", "extremes"],
)
def test_derivatives_of_complex_numbers_are_the_conjugates_of_jaxs(fn):
    x = tg.constant(complex_numbers(3, 3))
    y, pull = jax.vjp(fn, x.numpy())
    g = complex_numbers(*y.shape)
    g = g if jnp.iscomplexobj(y) else g.real
    with tg.GradientTape() as tape:
        tape.watch(x)
        found = tg.from_jax(fn)(x)
    (wanted,) = pull(np.conj(g))
    np.testing.assert_allclose(tape.gradient(found, x, g), np.conj(wanted), 1e-4, 1e-4)
    if fn is turned:  # JAX has no forward mode for it
        return
    tangent = complex_numbers(3, 3)[::-1]
    with tg.autodiff.ForwardAccumulator(x, tg.constant(tangent)) as accumulator:
        found = tg.from_jax(fn)(x)
    _, wanted = jax.jvp(fn, [x.numpy()], [tangent])
    np.testing.assert_allclose(accumulator.jvp(found), wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("lower", [True, False])
def test_one_triangle_of_a_matrix_is_read(lower):
    a = np.float32([[4.0, 9.0, -8.0], [1.0, 5.0, 7.0], [0.5, 2.0, 6.0]])

    def fn(a):
        w = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)[1]
        return w, jax.scipy.linalg.cholesky(jnp.swapaxes(a, 0, 1) if not lower else a, lower=True)

    a = a if lower else a.T
    for found, wanted in zip(tg.from_jax(fn)(a), fn(a)):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_a_function_that_a_scatter_applies_is_refused():
    with pytest.raises(tg.errors.TraceError, match=r"x\.at\[i\]\.apply"):
        tg.from_jax(lambda x: x.at[jnp.array([0, 1, 1])].apply(jnp.sin))(tg.ones([3]))


@pytest.mark.parametrize("reduce", [lax.reduce_and, lax.reduce_or, lax.reduce_xor])
@pytest.mark.parametrize(("shape", "axes"), [((5, 3), (0,)), ((2, 4, 3), (0, 2)), ((0, 2), (0,))])
def test_bits_of_integers_are_combined(reduce, shape, axes):
    x = np.random.default_rng(3).integers(-99, 99, shape).astype(np.int32)
    fn = partial(reduce, axes=axes)
    np.testing.assert_array_equal(tg.from_jax(fn)(x), fn(jnp.asarray(x)))
    small = jnp.asarray(x).astype(jnp.uint8)
    np.testing.assert_array_equal(tg.from_jax(fn)(np.asarray(small)), fn(small))


@pytest.mark.parametrize("kind", [jnp.uint8, jnp.uint16, jnp.float32])
def test_bits_are_split_and_joined(kind):
    x = np.random.default_rng(3).normal(size=(3, 2)).astype(np.float32)

    def fn(x):
        parts = lax.bitcast_convert_type(x, kind)
        return parts, lax.bitcast_convert_type(parts, jnp.int32)

    for found, wanted in zip(tg.from_jax(fn)(x), fn(jnp.asarray(x))):
        np.testing.assert_array_equal(found, wanted)


def test_a_function_with_a_rule_for_vmap_is_what_it_computes():
    @jax.custom_batching.custom_vmap
    def f(x):
        return jnp.sin(x)

    @f.def_vmap
    def _(size, batched, x):
        return 2 * jnp.sin(x), True

    x = np.float32([0.5, 1.0])
    np.testing.assert_allclose(tg.from_jax(f)(x), np.sin(x), 1e-6)
    np.testing.assert_allclose(tg.from_jax(jax.vmap(f))(x), 2 * np.sin(x), 1e-6)


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("approx_top_k", lambda x: lax.approx_max_k(x, 1)),
        (
            "linear_call",
            lambda x: jax.custom_derivatives.linear_call(
                lambda r, x: 2 * x, lambda r, x: 2 * x, (), x
            ),
        ),
    ],
)
def test_primitives_without_a_counterpart_are_refused_by_name(name, fn):
    with pytest.raises(tg.errors.TraceError, match=f"the primitive '{name}'"):
        tg.from_jax(fn)(tg.ones([3]))


@pytest.mark.sweep
def test_distributions_that_stand_on_logarithms_of_gamma_numbers():
    def draw(key, a):
        return jax.random.beta(key, a, 2.0), jax.random.dirichlet(key, jnp.stack([a, a + 1.0]))

    key = jax.random.PRNGKey(4)
    found = tg.from_jax(draw)(np.asarray(key), np.float32(0.7))
    for one, other in zip(found, draw(key, jnp.float32(0.7))):
        np.testing.assert_allclose(one, other, 1e-6)


def test_a_factor_computed_of_constants_alone_is_computed_again_in_the_gradient():
    def fn(x):  # as in the logarithms of the gamma and the beta density
        return jnp.sum(jax.scipy.special.xlogy(lax.sub(jnp.float32(2.0), jnp.float32(1.0)), x))

    np.testing.assert_allclose(*gradients(fn, np.float32([0.5, 2.0])), 1e-6)


def test_branches_that_keep_results_of_different_shapes_for_higher_derivatives():
    def looped(x):
        return lax.fori_loop(0, 3, lambda k, s: doubled(s) * 0.5 + k * x, x)

    once = jax.jit(lambda x: jnp.sin(x) * x)

    def fn(x):  # one branch has stacks of the loop to keep, and the other works element by element
        return lax.cond(x[0] > 0, looped, lambda x: once(once(x) * 0.5), x).sum()

    for sign in (-1.0, 1.0):
        np.testing.assert_allclose(*gradients(fn, sign * np.float32([0.5, 0.7])), 1e-5)


def test_sizes_that_are_numbers_of_numpy():
    def fn(x):  # as the programs of gradients of windows have them
        steps = np.int64(2), np.int64(1)
        padded = lax.pad(x, 0.0, [(np.int64(1), np.int64(0), step - 1) for step in steps])
        windows = lax.reduce_window(padded, 0.0, lax.add, steps, steps, "SAME")
        return jnp.sum(lax.slice(windows, (0, 0), (3, 2), steps) ** 2)

    np.testing.assert_allclose(
        *gradients(fn, np.float32([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), 1e-6
    )


def test_tangents_of_integers_are_left_out():
    x = np.array([0.3, -5.0, 12.0], np.float32)
    np.testing.assert_allclose(*gradients(lambda x: jnp.ldexp(x, 2).sum(), x))
    np.testing.assert_allclose(*gradients(lambda x: jnp.sin(jnp.frexp(x)[0]).sum(), x))


def test_an_implicit_root_has_the_slope_of_its_equation():
    def root(a):
        def solve(f, start):
            return jax.lax.fori_loop(0, 30, lambda _, z: z - f(z) / (3 * z * z + 1), start)

        def solve_tangent(g, y):
            return y / g(jnp.ones_like(y))

        return jax.lax.custom_root(lambda z: z**3 + z - a, jnp.zeros_like(a), solve, solve_tangent)

    x = np.array([0.3, -5.0, 12.0], np.float32)
    np.testing.assert_allclose(*gradients(lambda x: root(x).sum(), x), rtol=1e-6)


def test_a_rule_that_calls_its_own_function_by_jit_has_a_second_derivative():
    """The bits of a number have no slope: without its rule the gradient would be None."""

    @jax.custom_vjp
    def same(x):
        return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.int32), x.dtype)

    jitted = jax.jit(same)
    same.defvjp(lambda x: (same(x), None), lambda _, g: (jitted(g),))

    x = np.array([0.3, -5.0, 12.0], np.float32)
    with tg.GradientTape() as outer:
        outer.watch(x := tg.constant(x))
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = tg.reduce_sum(tg.sin(tg.from_jax(jitted)(x)))
        slope = inner.gradient(y, x)
    np.testing.assert_allclose(slope, np.cos(x), rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(slope, x), -np.sin(x), rtol=1e-6)


@jax.custom_jvp
def clamped(x):
    return jnp.clip(x, -1.0, 1.0)


@clamped.defjvp
def _(primals, tangents):
    """Not the derivative: it also has a slope outside of the range."""
    return clamped(*primals), 0.5 * tangents[0]


@pytest.mark.parametrize("loop", ["scan", "while", "cond"])
def test_a_rule_holds_for_what_has_a_derivative_only_in_a_later_step(loop):
    """A zero enters first; the argument reaches the function two steps later."""

    def shifted(states):
        a, b, c = states
        return b, c, a + clamped(a) * 1.5

    def fn(x):
        states = (jnp.float32(0.0), jnp.float32(0.25), x)
        if loop == "scan":
            states, _ = lax.scan(lambda s, _: (shifted(s), None), states, None, length=5)
        elif loop == "while":
            states = lax.fori_loop(0, 5, lambda _, s: shifted(s), states)
        else:
            states = lax.cond(x > 0.0, lambda s: shifted(shifted(shifted(s))), shifted, states)
        return states[0] + 2.0 * states[1] + 3.0 * states[2]

    np.testing.assert_allclose(*gradients(fn, np.float32(3.0)), rtol=1e-6)


def halved(inner):
    """A function whose computation and rule use another one, and whose rule uses itself."""

    @jax.custom_jvp
    def outer(x):
        return inner(x) * 0.5

    @outer.defjvp
    def _(primals, tangents):
        (x,), (tangent,) = primals, tangents
        return outer(x), inner(x) * outer(x) * tangent

    return outer


def test_rules_that_use_each_other_are_read_as_deep_as_one_rule(monkeypatch):
    """Each choice of three uses of each function was read, in any order: a solver of diffrax took a
    minute to trace."""
    fn = jnp.sin
    for _ in range(3):
        fn = halved(fn)
    read, backward = [], custom_rules._backward
    monkeypatch.setattr(custom_rules, "_backward", lambda *args: read.append(0) or backward(*args))
    found = tg.grad(tg.grad(tg.from_jax(fn)))(tg.constant(0.3))
    np.testing.assert_allclose(found, jax.grad(jax.grad(fn))(0.3), rtol=1e-5)
    assert len(read) < 30


@jax.custom_jvp
def without_tangent(x):
    return x + 0.0


@partial(without_tangent.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    if not isinstance(tangents[0], jax.custom_derivatives.SymbolicZero):
        raise ValueError("a tangent")
    return without_tangent(*primals), jnp.zeros_like(primals[0])


def advanced(t, y):
    return t + 0.1, y * jnp.cos(t)


@pytest.mark.parametrize(
    "both",
    [
        jax.jit(advanced),
        jax.checkpoint(advanced),
        lambda t, y: lax.cond(t > 0.05, advanced, lambda t, y: (2.0 * t, y), t, y),
        lambda t, y: lax.fori_loop(0, 2, lambda _, state: advanced(*state), (t, y)),
        lambda t, y: lax.while_loop(lambda s: s[0] < 0.35, lambda s: advanced(*s), (t, y)),
        lambda t, y: (t + jnp.floor(y), y),
    ],
)
def test_rules_that_refuse_a_tangent_get_none_where_jax_gives_none(both):
    """Operations of several values, of which one depends on the argument, as solvers keep time."""

    @jax.checkpoint
    def fn(x):
        def step(state, _):
            t, y = both(*state)
            return (without_tangent(t), y), t

        (t, y), _ = lax.scan(step, (0.0, x), None, length=3)
        return y + t

    x = tg.constant(0.7)
    with tg.autodiff.ForwardAccumulator(x, tg.constant(1.0)) as forward:
        y = tg.from_jax(fn)(x)
    np.testing.assert_allclose(
        forward.jvp(y), jax.jvp(fn, (jnp.float32(0.7),), (jnp.float32(1),))[1], 1e-6
    )


def by_iterations(x):
    """The solution of a system by a loop of as many steps as it needs."""
    matrix = jnp.outer(x, x) + jnp.diag(jnp.array([2.0, 3.0, 4.0]))
    found, _ = jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, jnp.sin(x), tol=1e-7)
    return jnp.sum(found**3)


def test_forward_mode_of_an_iterative_solver():
    """Its loop does not show that the solution is linear in the right-hand side."""
    x, direction = np.float32([0.3, -0.5, 0.8]), np.float32([1.0, 2.0, -1.0])
    tensor = tg.constant(x)
    with tg.autodiff.ForwardAccumulator(tensor, tg.constant(direction)) as forward:
        with tg.GradientTape() as tape:
            tape.watch(tensor)
            y = tg.from_jax(by_iterations)(tensor)
        gradient = tape.gradient(y, tensor)
    wanted = jax.jvp(jax.value_and_grad(by_iterations), (x,), (direction,))[1]
    for found, one in zip((forward.jvp(y), forward.jvp(gradient)), wanted, strict=True):
        np.testing.assert_allclose(found, one, 1e-4, 1e-5)


def by_steps(x):
    """A state without a derivative in a loop of branches, which recomputes."""

    def step(state, _):
        moved = jax.checkpoint(lambda t, y: lax.cond(y > 0, advanced, lambda t, y: (t, y), t, y))
        t, y = moved(*state)
        return (0.0 * t, y), None

    return lax.scan(step, (0.0, x), None, length=2)[0]


@pytest.mark.parametrize("states", [lambda x: (jnp.sign(x) - 1, x), jax.checkpoint(by_steps)])
def test_a_slope_that_is_infinite_at_a_value_without_derivative(states):
    """As in a Brownian bridge, where the time is 0: JAX has no tangent there, and not a tangent of
    zero."""

    def fn(x):
        t, y = states(x)
        return y + jax.jit(lambda t: jnp.sqrt(jnp.minimum(t, 0.0)))(t)

    x = tg.constant(0.7)
    with tg.autodiff.ForwardAccumulator(x, tg.constant(1.0)) as forward:
        y = tg.from_jax(fn)(x)
    np.testing.assert_allclose(
        forward.jvp(y), jax.jvp(fn, (jnp.float32(0.7),), (jnp.float32(1),))[1], 1e-6
    )


def test_a_rule_whose_cotangent_has_another_dtype():
    """The integers have 64 bits, and then so have the zeros of the rule."""

    @jax.custom_vjp
    def chosen(x, places):
        return x[places]

    def backward(places, g):
        spread = jnp.zeros(4).at[places].add(5.0 * g)
        return spread, np.zeros(places.shape, jax.dtypes.float0)

    chosen.defvjp(lambda x, places: (x[places], places), backward)
    x, places = tg.constant([1.0, 2.0, 3.0, 4.0]), np.array([0, 2])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.from_jax(chosen)(x, places)
    gradient = tape.gradient(y, x)
    assert gradient.dtype == tg.float32
    np.testing.assert_array_equal(gradient, [5.0, 0.0, 5.0, 0.0])


def test_indices_without_sign_need_no_wide_integers():
    def fn(x, places):  # the search reads at uint32, in a loop
        found = jnp.searchsorted(jnp.sort(x), x)
        return found, x.at[places].get(mode="clip"), x.at[places].get(mode="fill", fill_value=7.0)

    args = np.float32([3, 1, 2]), np.uint32([0, 2, 3, 2**31, 2**32 - 1])
    taken = tg.function(tg.from_jax(fn))
    for found in (taken(*args), jax.jit(taken.as_jax())(*args)):
        for one, other in zip(found, jax.jit(fn)(*args), strict=True):
            np.testing.assert_array_equal(one, other)
