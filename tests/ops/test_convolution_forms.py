"""The forms of convolutions on CPUs, against XLA's own convolution and its derivatives by JAX."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracegraph as tg
from lowering import program
from lowering.rules import convolution
from lowering.rules.convolution import (
    by_channels,
    by_examples,
    by_groups,
    by_planes,
    by_shifts,
    by_spreading,
    form_on_cpu,
    sums_of_shifts,
)
from tracegraph.ops.contract import Conv

LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def by_xla(op, x, y):
    return lax.conv_general_dilated(
        x,
        y,
        op.strides,
        op.padding,
        op.lhs_dilation,
        op.rhs_dilation,
        LAYOUTS[len(op.strides)],
        feature_group_count=op.groups,
    )


def sample(shape, dtype):
    return np.random.default_rng(8).normal(size=shape).astype(dtype)


PADDING = [((0, 0), (0, 0)), ((1, 2), (0, 1)), ((-1, 2), (3, -2))]
WAYS = list(itertools.product([(1, 1), (2, 1)], PADDING, [(1, 1), (1, 3)], [(1, 1), (2, 1)]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("strides", "padding", "lhs", "rhs"), WAYS)
@pytest.mark.parametrize("form", [by_examples, by_channels])
@pytest.mark.parametrize("part", [1, 2_000, 1 << 20])
def test_forms_of_every_kind_of_window(form, part, strides, padding, lhs, rhs, monkeypatch):
    monkeypatch.setattr(convolution, "PART", part)  # many parts, some, one
    op = Conv(strides, padding, lhs, rhs, 1)
    with jax.enable_x64(True):
        x, y = sample((6, 9, 7, 4), np.float64), sample((3, 2, 4, 5), np.float64)
        found, expected = jax.jit(lambda x, y: (form(op, x, y), by_xla(op, x, y)))(x, y)
    assert found.shape == expected.shape and 0 not in found.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("strides", "padding", "lhs", "rhs"), WAYS)
@pytest.mark.parametrize("form", [by_shifts, sums_of_shifts, by_groups])
@pytest.mark.parametrize("part", [1, 1 << 20])
def test_forms_in_groups(form, part, strides, padding, lhs, rhs, monkeypatch):
    monkeypatch.setattr(convolution, "PART", part)
    op = Conv(strides, padding, lhs, rhs, 3)
    examples = 1 if form is sums_of_shifts else 4
    with jax.enable_x64(True):
        x, y = sample((examples, 9, 7, 6), np.float64), sample((3, 2, 2, 12), np.float64)
        found, expected = jax.jit(lambda x, y: (form(op, x, y), by_xla(op, x, y)))(x, y)
    assert found.shape == expected.shape and 0 not in found.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("form", [by_shifts, sums_of_shifts, by_planes])
def test_sums_of_16_bits_are_rounded_once(form, dtype):
    rank, groups = (3, 1) if form is by_planes else (2, 4)
    op = Conv((1,) * rank, ((1, 1),) * rank, (1,) * rank, (1,) * rank, groups)
    channels = 40 if form is sums_of_shifts else 4
    x = jnp.asarray(sample((1, *[8] * rank, channels), dtype))
    y = jnp.asarray(sample((*[3] * rank, channels // groups, 4), dtype))
    expected = by_xla(op, x.astype(jnp.float32), y.astype(jnp.float32))
    found = form(op, x, y)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=float(jnp.finfo(dtype).eps))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("form", [by_examples, by_channels])
@pytest.mark.parametrize("outputs", [1, 200])
def test_forms_of_other_ranks_and_widths(form, rank, outputs, monkeypatch):
    monkeypatch.setattr(convolution, "PART", 4_000)
    op = Conv((2,) * rank, ((1, 0),) * rank, (1,) * rank, (1,) * rank, 1)
    x = sample((3, *[8, 5, 7][:rank], 7), np.float32)
    y = sample((*[3, 2, 3][:rank], 7, outputs), np.float32)
    found = form(op, jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(found, by_xla(op, x, y), rtol=1e-4, atol=1e-4)


DEPTHS = list(itertools.product([1, 2], [(0, 0), (1, 2), (-1, 2)], [1, 3], [1, 2]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("stride", "padding", "lhs", "rhs"), DEPTHS)
@pytest.mark.parametrize("window", [2, 7])
def test_the_planes_of_every_kind_of_window(window, stride, padding, lhs, rhs):
    """Windows of few planes, and results of few planes."""
    planes = 9 if window == 2 else {1: 14, 3: 6}[lhs]
    op = Conv((stride, 2, 1), (padding, (1, 0), (0, 1)), (lhs, 1, 2), (rhs, 1, 1), 1)
    with jax.enable_x64(True):
        x, y = sample((4, planes, 6, 5, 3), np.float64), sample((window, 2, 3, 3, 5), np.float64)
        found, expected = jax.jit(lambda x, y: (by_planes(op, x, y), by_xla(op, x, y)))(x, y)
    assert found.shape == expected.shape and 0 not in found.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("rest", [0, 2])
def test_each_element_becomes_a_block(size, rest, monkeypatch):
    """As in the gradient by x of windows that do not overlap, and do not reach the last places."""
    monkeypatch.setattr(convolution, "LEAST_WORK", 1)
    padding = (2, 2 + rest), (1, 1)
    op = Conv((1, 1), padding, (3 if size > 1 else 1, 2), (1, 1), 1)
    x, y = sample((5, size, 6, 4), np.float32), sample((3, 2, 4, 7), np.float32)
    assert form_on_cpu(op, x, y) is by_spreading
    found, expected = jax.jit(lambda x, y: (by_spreading(op, x, y), by_xla(op, x, y)))(x, y)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


STEPS = [(1, "SAME", 1), (2, "SAME", 1), (1, "VALID", 2), (3, "VALID", 1)]


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.parametrize(("strides", "padding", "dilations"), STEPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_and_gradients_of_functions(dtype, strides, padding, dilations):
    x, y = sample((7, 29, 31, 12), dtype), sample((3, 5, 12, 34), dtype)

    def convolved(x, y):
        return lax.conv_general_dilated(
            x,
            y,
            (strides, strides),
            padding,
            rhs_dilation=(dilations, dilations),
            dimension_numbers=LAYOUTS[2],
        )

    @tg.function
    def run(x, y, g):
        with tg.GradientTape() as tape:
            tape.watch((x, y))
            z = tg.nn.conv2d(x, y, strides, padding, dilations=dilations)
        return z, *tape.gradient(z, (x, y), output_gradients=g)

    @jax.jit
    def by_jax(x, y, g):
        z, pull = jax.vjp(convolved, x, y)
        return z, *pull(g)

    with jax.enable_x64(True):
        g = sample(jax.eval_shape(convolved, x, y).shape, dtype)
        expected = by_jax(x, y, g)
    tolerance = 1e-11 if dtype is np.float64 else 1e-3
    for found, wanted in zip(run(x, y, g), expected, strict=True):
        assert found.dtype.as_numpy_dtype is dtype
        np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)
    text = run.experimental_get_compiler_ir(x, y, g)(stage="stablehlo")
    for form in "convolution_by_channels", "convolution_by_examples":
        assert (form in text) == (dtype is np.float64)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strides", [1, 2])
def test_values_and_gradients_over_three_axes(strides, dtype, monkeypatch):
    monkeypatch.setattr(convolution, "LEAST_WORK", 1)
    x, y = sample((2, 5, 8, 6, 4), dtype), sample((3, 2, 3, 4, 6), dtype)

    def convolved(x, y):
        steps = (strides,) * 3
        return lax.conv_general_dilated(x, y, steps, "SAME", dimension_numbers=LAYOUTS[3])

    @tg.function
    def run(x, y, g):
        with tg.GradientTape() as tape:
            tape.watch((x, y))
            z = tg.nn.conv3d(x, y, [1, *[strides] * 3, 1], "SAME")
        return z, *tape.gradient(z, (x, y), output_gradients=g)

    with jax.enable_x64(True):
        z, pull = jax.vjp(convolved, x, y)
        g = sample(z.shape, dtype)
        expected = z, *pull(g)
    tolerance = 1e-12 if dtype is np.float64 else 1e-4
    for found, wanted in zip(run(x, y, g), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)
    text = run.experimental_get_compiler_ir(x, y, g)(stage="stablehlo")
    assert "convolution_by_planes" in text


def chosen(x, y, groups=1, lhs_dilation=1):
    rank = len(x[0]) - 2
    op = Conv((1,) * rank, ((0, 0),) * rank, (lhs_dilation,) * rank, (1,) * rank, groups)
    with jax.enable_x64(True):
        return form_on_cpu(op, jnp.zeros(*x), jnp.zeros(*y))


def test_which_form_is_chosen():
    wide, float32 = np.float64, np.float32
    assert chosen(((32, 30, 30, 16), wide), ((3, 3, 16, 16), wide)) is by_examples
    assert chosen(((32, 30, 30, 16), float32), ((3, 3, 16, 16), float32)) is None
    assert chosen(((32, 30, 30, 3), float32), ((3, 3, 3, 16), float32)) is by_shifts
    assert chosen(((32, 30, 30, 3), float32), ((3, 3, 3, 64), float32)) is None  # too many outputs
    assert chosen(((16, 30, 30, 3), float32), ((28, 28, 3, 16), float32)) is by_channels
    assert chosen(((16, 30, 30, 32), float32), ((28, 28, 32, 16), float32)) is None
    assert chosen(((16, 30, 30, 32), wide), ((28, 28, 32, 16), wide)) is by_channels
    assert chosen(((16, 7, 7, 64), float32), ((7, 7, 64, 128), float32)) is None
    of_transposed = ((16, 15, 15, 32), float32), ((27, 27, 32, 16), float32)
    assert chosen(*of_transposed, lhs_dilation=2) is by_channels
    assert chosen(((16, 28, 28, 32), float32), ((28, 28, 32, 16), float32)) is by_channels
    assert chosen(((16, 30, 30, 32), np.float16), ((28, 28, 32, 16), np.float16)) is None
    assert chosen(((16, 34, 34, 32), wide), ((28, 28, 32, 16), wide)) is None  # 49 places
    for dtype in np.float16, float32, wide:
        kernel = (3, 3, 3, 8, 16), dtype
        assert chosen(((4, 12, 12, 12, 8), dtype), kernel) is by_planes
        assert chosen(((8, 14, 14, 14, 4), dtype), ((12, 12, 12, 4, 16), dtype)) is by_planes
    assert chosen(((8, 12, 12, 12, 16), float32), ((1, 1, 1, 16, 32), float32)) is None
    assert chosen(((8, 13, 13, 13, 4), float32), ((12, 12, 12, 4, 16), float32)) is by_channels
    assert chosen(((32, 30, 30, 16), wide), ((3, 3, 8, 16), wide), groups=2) is by_shifts
    assert chosen(((32, 30, 30, 64), wide), ((3, 3, 32, 64), wide), groups=2) is by_groups
    assert chosen(((32, 30, 30, 99), wide), ((3, 3, 9, 99), wide), groups=11) is None  # too many
    assert chosen(((8, 30, 30, 64), float32), ((3, 3, 1, 64), float32), groups=64) is by_shifts
    assert chosen(((1, 30, 30, 512), float32), ((28, 28, 8, 64), float32), groups=64) is (
        sums_of_shifts
    )
    assert chosen(((1, 5, 5, 4), float32), ((3, 3, 1, 4), float32), groups=4) is None
    assert chosen(((1, 5, 5, 2), wide), ((3, 3, 2, 2), wide)) is None  # next to no work


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_without_examples(dtype):
    @tg.function
    def run(x, y):
        with tg.GradientTape() as tape:
            tape.watch((x, y))
            z = tg.nn.conv2d(x, y, 1, "SAME")
        return z, *tape.gradient(z, (x, y))

    z, by_x, by_y = run(np.zeros((0, 28, 28, 32), dtype), np.ones((3, 3, 32, 64), dtype))
    assert z.shape == (0, 28, 28, 64) and by_x.shape == (0, 28, 28, 32)
    np.testing.assert_array_equal(by_y.numpy(), np.zeros((3, 3, 32, 64)))


def test_groups_with_gradients():
    x, y = sample((8, 28, 28, 32), np.float64), sample((3, 3, 16, 32), np.float64)

    def convolved(x, y):
        return lax.conv_general_dilated(
            x, y, (1, 1), "SAME", dimension_numbers=LAYOUTS[2], feature_group_count=2
        )

    with tg.GradientTape() as tape:
        kernel = tg.Variable(y)
        z = tg.reduce_sum(tg.sin(tg.nn.conv2d(tg.constant(x), kernel, 1, "SAME")))
    with jax.enable_x64(True):
        expected = jax.grad(lambda y: jnp.sum(jnp.sin(convolved(x, y))))(jnp.asarray(y))
    found = tape.gradient(z, kernel)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


def test_a_depthwise_convolution_with_gradients():
    x, y = sample((4, 14, 14, 32), np.float32), sample((3, 3, 32, 1), np.float32)

    def convolved(x, y):
        return lax.conv_general_dilated(
            x,
            y.reshape(3, 3, 1, 32),
            (2, 2),
            "SAME",
            dimension_numbers=LAYOUTS[2],
            feature_group_count=32,
        )

    @tg.function
    def run(x, y, g):
        with tg.GradientTape() as tape:
            tape.watch((x, y))
            z = tg.nn.depthwise_conv2d(x, y, [1, 2, 2, 1], "SAME")
        return z, *tape.gradient(z, (x, y), output_gradients=g)

    z, pull = jax.vjp(convolved, jnp.asarray(x), jnp.asarray(y))
    g = sample(z.shape, np.float32)
    for found, expected in zip(run(x, y, g), (z, *pull(jnp.asarray(g))), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    text = run.experimental_get_compiler_ir(x, y, g)(stage="stablehlo")
    assert "convolution_by_shifts" in text and "convolution_by_sums_of_shifts" in text


def test_convolutions_are_left_to_xla_where_it_knows_the_option():
    f = tg.function(lambda x, y: tg.nn.conv2d(x, y, 1, "SAME"))
    graph = f.get_concrete_function(np.ones((1, 4, 4, 1)), np.ones((2, 2, 1, 1))).graph
    assert dict([program._OWN_CONVOLUTIONS]).items() <= program._compiler_options(graph).items()
    plain = tg.function(lambda x: x + 1).get_concrete_function(np.ones(2)).graph
    assert program._OWN_CONVOLUTIONS[0] not in program._compiler_options(plain)
    assert not program._is_known("xla_an_option_that_is_not_there", "1")


def test_programs_for_several_platforms_have_both_forms():
    x, y = sample((4, 28, 28, 16), np.float64), sample((3, 3, 16, 16), np.float64)
    f = tg.function(lambda x, y: tg.nn.conv2d(x, y, 1, "SAME"))
    data = tg.export.stablehlo(f, x, y, platforms=("cpu", "cuda"))
    exported = jax.export.deserialize(bytearray(data))
    text = exported.mlir_module()
    assert "stablehlo.convolution" in text and "stablehlo.while" in text
    plain = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
    with jax.enable_x64(True):
        expected = by_xla(plain, x, y)
    np.testing.assert_allclose(f(x, y).numpy(), expected, rtol=1e-11, atol=1e-11)
    text = f.experimental_get_compiler_ir(x, y)(stage="optimized_hlo")
    assert "convolution(" not in text  # the program for this machine has one of them
