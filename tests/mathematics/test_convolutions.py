"""Convolutions, transposed ones and pools, against JAX's, in every data format."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracegraph as tg
from tracegraph.ops.contract import Conv

RANDOM = np.random.default_rng(5)
LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
WINDOW = {1: "WIO", 2: "HWIO", 3: "DHWIO"}


def sample(*shape, dtype=np.float64):
    return RANDOM.normal(size=shape).astype(dtype)


def close(found, expected, tolerance=1e-10):
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def first(x):
    return np.moveaxis(x, -1, 1)


def convolved(x, y, strides, padding, dilations, groups=1):
    rank = x.ndim - 2
    with jax.enable_x64(True):
        return np.asarray(
            lax.conv_general_dilated(
                x,
                y,
                [strides] * rank,
                padding,
                rhs_dilation=[dilations] * rank,
                dimension_numbers=(LAST[rank], WINDOW[rank], LAST[rank]),
                feature_group_count=groups,
            )
        )


def by_the_input(g, y, shape, strides, padding, dilations):
    """The derivative of a convolution by its input, by JAX."""
    with jax.enable_x64(True):
        x = jnp.zeros(shape)
        rank = x.ndim - 2

        def forward(x):
            return lax.conv_general_dilated(
                x,
                y,
                [strides] * rank,
                padding,
                rhs_dilation=[dilations] * rank,
                dimension_numbers=(LAST[rank], WINDOW[rank], LAST[rank]),
            )

        return np.asarray(jax.jit(lambda x, g: jax.vjp(forward, x)[1](g)[0])(x, jnp.asarray(g)))


NAMES = {1: "conv1d", 2: "conv2d", 3: "conv3d"}
FORMS = list(itertools.product([1, 2, 3], [1, 2], [1, 2], ["SAME", "VALID"]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("rank", "strides", "dilations", "padding"), FORMS)
def test_convolutions_of_every_rank_and_format(rank, strides, dilations, padding):
    x, y = sample(2, *[7, 6, 5][:rank], 4), sample(*[3, 2, 2][:rank], 4, 3)
    expected = convolved(x, y, strides, padding, dilations)
    arguments = (strides, padding)
    own = getattr(tg.nn, NAMES[rank])
    of_last = [
        own(x, y, *arguments, dilations=dilations),
        tg.nn.convolution(x, y, strides, padding, dilations=dilations),
    ]
    of_first = [
        own(first(x), y, *arguments, data_format=FIRST[rank], dilations=dilations),
        tg.nn.convolution(first(x), y, strides, padding, FIRST[rank], [dilations]),
    ]
    for found in of_last:
        close(found, expected)
    for found in of_first:
        close(found, first(expected))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("rank", "strides", "dilations", "padding"), FORMS)
def test_transposed_convolutions(rank, strides, dilations, padding):
    shape = (2, *[7, 6, 5][:rank], 3)
    y = sample(*[3, 2, 2][:rank], 3, 4)
    g = sample(*convolved(np.zeros(shape), y, strides, padding, dilations).shape)
    expected = by_the_input(g, y, shape, strides, padding, dilations)
    own = getattr(tg.nn, f"{NAMES[rank]}_transpose")
    turned = (shape[0], shape[-1], *shape[1:-1])
    found = [
        own(g, y, shape, strides, padding, dilations=dilations),
        tg.nn.conv_transpose(g, y, shape, strides, padding, None, dilations),
        own(first(g), y, turned, strides, padding, FIRST[rank], dilations),
    ]
    for one, other in zip(found, (expected, expected, first(expected)), strict=True):
        close(one, other)


def test_a_padding_that_cuts_what_strides_step_over():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 12, 8, 4)), rng.normal(size=(2, 2, 4, 6))
    for padding in itertools.product((-2, -1, 1), (-1, 1), (-1, 0), (-2, 2)):
        op = Conv((2, 3), (padding[:2], padding[2:]), (1, 1), (1, 1), 1)
        operands = [tg.constant(z, tg.float32) for z in (x, y)]
        np.testing.assert_allclose(op(*operands).numpy(), op.numpy(x, y), rtol=1e-4, atol=1e-4)


def test_lists_for_all_axes_follow_the_data_format():
    x, y = sample(1, 6, 8, 2), sample(3, 3, 2, 1)
    pads = [[0, 0], [1, 2], [0, 1], [0, 0]]
    expected = lax.conv_general_dilated(
        x.astype(np.float32),
        y.astype(np.float32),
        (2, 3),
        pads[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    close(tg.nn.conv2d(x, y, [1, 2, 3, 1], pads), expected, 1e-4)
    turned = [pads[0], pads[3], *pads[1:3]]
    found = tg.nn.conv2d(first(x), y, [1, 1, 2, 3], turned, "NCHW")
    close(found, first(np.asarray(expected)), 1e-4)
    with pytest.raises(ValueError, match=r"strides is \[1, 2, 3, 1\]"):
        tg.nn.conv2d(first(x), y, [1, 2, 3, 1], "SAME", "NCHW")
    with pytest.raises(ValueError, match=r"padding is .* for f64\[1,6,8,2\]"):
        tg.nn.conv2d(x, y, 1, turned)


def test_several_batch_axes():
    x, y = sample(2, 3, 5, 6, 2), sample(2, 2, 2, 4)
    rows = convolved(x.reshape(6, 5, 6, 2), y, 1, "SAME", 1)
    close(tg.nn.conv2d(x, y, 1, "SAME"), rows.reshape(2, 3, 5, 6, 4))
    close(tg.nn.conv2d(x[0, 0][None], y, 1, "SAME"), rows[:1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rate", [1, 2])
def test_depthwise_separable_and_atrous(rate):
    x, y, mixing = sample(2, 7, 6, 3), sample(3, 2, 3, 2), sample(1, 1, 6, 4)
    each = convolved(x, y.reshape(3, 2, 1, 6), 1, "SAME", rate, groups=3)
    for data_format, turn in (("NHWC", np.asarray), ("NCHW", first)):
        found = tg.nn.depthwise_conv2d(turn(x), y, 1, "SAME", data_format, [rate, rate])
        close(found, turn(each))
        arguments = (turn(x), y, mixing, 1, "SAME", data_format, [rate, rate])
        close(tg.nn.separable_conv2d(*arguments), turn(each @ mixing[0, 0]))
    kernel = sample(2, 2, 3, 4)
    expected = convolved(x, kernel, 1, "VALID", rate)
    close(tg.nn.atrous_conv2d(x, kernel, rate, "VALID"), expected)
    found = tg.nn.atrous_conv2d_transpose(expected, kernel, x.shape, rate, "VALID")
    close(found, by_the_input(expected, kernel, x.shape, 1, "VALID", rate))
    kernel = tg.constant(y)
    with tg.GradientTape() as tape:
        image = tg.constant(x)
        tape.watch(image)
        z = tg.nn.depthwise_conv2d(image, kernel, 2, "SAME")
    g = sample(*z.shape)
    found = tg.nn.depthwise_conv2d_backprop_input(x.shape, kernel, g, 2, "SAME")
    close(found, tape.gradient(z, image, g).numpy())


def test_gradients_of_transposed_convolutions():
    g, y = sample(1, 3, 3, 2), sample(2, 2, 3, 2)
    shape = (1, 6, 6, 3)

    def total(g, y):
        return tg.reduce_sum(tg.sin(tg.nn.conv2d_transpose(g, y, shape, 2)))

    def expected(g, y):
        _, pull = jax.vjp(
            lambda x: lax.conv_general_dilated(
                x, y, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            jnp.zeros(shape),
        )
        return jnp.sum(jnp.sin(pull(g)[0]))

    with jax.enable_x64(True):
        wanted = jax.jit(jax.grad(expected, (0, 1)))(jnp.asarray(g), jnp.asarray(y))
    found = tg.grad(total, argnums=(0, 1))(tg.constant(g), tg.constant(y))
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def test_transposed_convolution_with_open_sizes():
    y = tg.constant(sample(2, 2, 3, 1))

    @tg.function(input_signature=[tg.TensorSpec([None, None, None, 1], tg.float64)])
    def grown(g):
        shape = [tg.shape(g)[0], 2 * g.shape[1], 2 * g.shape[2], 3]
        return tg.nn.conv2d_transpose(g, y, shape, 2)

    for sizes in ((1, 3, 4, 1), (2, 2, 2, 1)):
        g = sample(*sizes)
        shape = (sizes[0], 2 * sizes[1], 2 * sizes[2], 3)
        close(grown(tg.constant(g)), by_the_input(g, y.numpy(), shape, 2, "SAME", 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.nn.convolution(tg.ones([1, 2, 1]), tg.ones([2, 1])), r"f32\[2,1\], and they"),
        (lambda: tg.nn.conv1d(tg.ones([1, 2, 1]), tg.ones([1, 1, 1]), 1, "SAME", "NHWC"), "NWC"),
        (lambda: tg.nn.conv1d(tg.ones([2, 1]), tg.ones([1, 1, 1]), 1, "SAME"), "3 axes"),
        (
            lambda: tg.nn.conv2d_transpose(tg.ones([1, 2, 2, 1]), tg.ones([2, 2, 1, 1]), [4, 4], 2),
            r"output_shape \[4, 4\]",
        ),
        (
            lambda: tg.nn.conv1d_transpose(tg.ones([1, 2, 1]), tg.ones([2, 1, 1]), [1, 9, 1], 2),
            r"makes f32\[1,5,1\], not f32\[1,2,1\]",
        ),
        (
            lambda: tg.nn.conv1d_transpose(tg.ones([1, 2, 3]), tg.ones([2, 1, 2]), [1, 4, 1], 2),
            r"makes f32\[1,2,2\], not f32\[1,2,3\]",
        ),
        (
            lambda: tg.nn.separable_conv2d(
                tg.ones([1, 4, 4, 1]), tg.ones([2, 2, 1, 1]), tg.ones([2, 1, 1, 1]), 1, "SAME"
            ),
            "pointwise filter",
        ),
        (
            lambda: tg.nn.atrous_conv2d(tg.ones([1, 4, 4, 1]), tg.ones([2, 2, 1, 1]), 0, "SAME"),
            "dilations is 0",
        ),
        (lambda: tg.nn.pool(tg.ones([1, 4, 1]), [2], "SUM"), '"MAX" or "AVG"'),
        (lambda: tg.nn.max_pool1d(tg.ones([1, 4]), 2, 2, "SAME"), "3 axes"),
        (lambda: tg.nn.avg_pool3d(tg.ones([1, 4, 4, 1]), 2, 2, "SAME"), "5 axes"),
        (lambda: tg.nn.pool(tg.ones([1, 4, 1]), [2], "MAX", dilations=[4]), r"window \[5\]"),
        (
            lambda: tg.nn.max_pool_with_argmax(tg.ones([1, 4, 4, 1]), 2, 2, "SAME", "NCHW"),
            "NHWC",
        ),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "test_convolutions.py" in str(error.value)
    assert "fix: " in str(error.value)


# ---------------------------------------------------------------- pools


def windows_of(x, size, strides, dilations, padding, start, combine):
    """A pool by JAX, over the axes between the first and the last."""
    rank = x.ndim - 2
    with jax.enable_x64(True):
        return np.asarray(
            lax.reduce_window(
                jnp.asarray(x),
                start,
                combine,
                (1, *[size] * rank, 1),
                (1, *[strides] * rank, 1),
                padding,
                window_dilation=(1, *[dilations] * rank, 1),
            )
        )


def maxima(x, *window):
    return windows_of(x, *window, -jnp.inf, lax.max)


def means(x, *window):
    one = np.ones_like(x)
    return windows_of(x, *window, 0.0, lax.add) / windows_of(one, *window, 0.0, lax.add)


POOLS = list(
    itertools.product([1, 2, 3], [(2, 2, 1), (3, 1, 1), (2, 1, 2), (3, 2, 2)], ["SAME", "VALID"])
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("rank", "window", "padding"), POOLS)
def test_pools_of_every_rank_and_format(rank, window, padding):
    x = sample(2, *[8, 6, 7][:rank], 2)
    size, strides, dilations = window
    pairs = []
    for kind, expected in (("MAX", maxima), ("AVG", means)):
        wanted = expected(x, size, strides, dilations, padding)
        arguments = (size, kind, strides, padding)
        pairs += [
            (tg.nn.pool(x, *arguments, dilations=dilations), wanted),
            (tg.nn.pool(first(x), *arguments, FIRST[rank], [dilations]), first(wanted)),
        ]
        if dilations == 1:
            own = getattr(tg.nn, f"{kind.lower()}_pool{rank}d")
            pairs += [
                (own(x, size, strides, padding), wanted),
                (own(first(x), [size], [strides], padding, FIRST[rank]), first(wanted)),
            ]
    for found, wanted in pairs:
        close(found, wanted)


LONG_WINDOWS = [
    *[(101, 17, 17, "SAME"), (40, 33, 40, "VALID"), (75, 18, 25, "VALID")],  # apart
    *[(37, 23, 1, "SAME"), (70, 31, 4, "VALID"), (41, 32, 20, "SAME")],  # with common elements
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("length", "size", "step", "padding"), LONG_WINDOWS)
def test_long_windows(length, size, step, padding):
    x = np.random.default_rng(0).integers(0, 5, (2, length, 3)).astype(np.float32)  # with ties

    def by_jax(x, start, combine):
        return lax.reduce_window(x, start, combine, (1, size, 1), (1, step, 1), padding)

    def mean_by_jax(x):
        return by_jax(x, 0.0, lax.add) / by_jax(jnp.ones_like(x), 0.0, lax.add)

    @jax.jit
    def expected(x):
        pools = (lambda x: by_jax(x, -jnp.inf, lax.max)), mean_by_jax
        return [f(pool, x) for pool in pools for f in (lambda p, x: p(x), slope_of_square)]

    def slope_of_square(pool, x):
        return jax.grad(lambda x: (pool(x) ** 2).sum())(x)

    found = []
    for pool in (tg.nn.max_pool1d, tg.nn.avg_pool1d):
        slope = tg.grad(lambda x, pool=pool: tg.reduce_sum(pool(x, size, step, padding) ** 2))
        found += [pool(x, size, step, padding), slope(tg.constant(x))]
    for one, other in zip(found, expected(x), strict=True):
        close(one, other, 1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dilations", [2, 3])
def test_long_windows_with_gaps(dilations):
    x = sample(2, 70, 3)
    for kind, expected in (("MAX", maxima), ("AVG", means)):
        for strides in (1, 2):
            found = tg.nn.pool(x, 19, kind, strides, "VALID", dilations=dilations)
            close(found, expected(x, 19, strides, dilations, "VALID"))


@pytest.mark.parametrize("step", [1, 5, 4096])
@pytest.mark.parametrize("pool", [tg.nn.max_pool2d, tg.nn.avg_pool2d, tg.nn.max_pool_with_argmax])
def test_the_graph_of_a_pool_hardly_grows_with_its_window(pool, step):
    def count(size):
        f = tg.function(lambda x: pool(x, [size, 1], min(step, size), "VALID"))
        return len(f.get_concrete_function(tg.TensorSpec([1, 5000, 1, 1])).graph.nodes)

    assert count(4096) < 3 * count(64)


@pytest.mark.parametrize(
    ("size", "step", "gap"), [(2**31 - 1, 1, 1), (2**31 - 1, 2, 1), (10**8, 1, 3)]
)
def test_a_window_far_longer_than_its_axis_costs_what_the_axis_does(size, step, gap):
    x = np.float32([2.0, 8.0, 5.0])
    starts = step * np.arange(-(-len(x) // step))
    padding = starts[-1] + (size - 1) * gap + 1 - len(x)
    offsets = np.arange(len(x)) - (starts - padding // 2)[:, None]  # from each window's start
    for kind, reduced in (("MAX", np.max), ("AVG", np.mean)):
        found = tg.nn.pool(x.reshape(1, -1, 1), size, kind, step, "SAME", dilations=gap)
        wanted = [reduced(x[row % gap == 0]) for row in offsets]
        close(found[0, :, 0], wanted)


@pytest.mark.parametrize(("step", "reached"), [(20, 20), (10, 20), (9, 20), (1, 26)])
def test_nan_in_one_long_window_stays_in_it(step, reached):
    x = tg.Variable(np.where(np.arange(60) == 6, np.nan, 1.0).reshape(1, 60, 1))
    with tg.GradientTape() as tape:
        y = tg.nn.max_pool1d(x, 20, step, "VALID")
    slope = tape.gradient(y, x).numpy().ravel()
    np.testing.assert_array_equal(np.isnan(slope), np.arange(60) < reached)
    assert np.nansum(slope[reached:]) == np.nansum(slope)


@pytest.mark.parametrize(("size", "step"), [(19, 1), (19, 4), (20, 20)])
def test_where_the_maxima_of_long_windows_stand(size, step):
    x = np.random.default_rng(1).integers(0, 4, 60).astype(np.float32)  # with equal elements
    x[41] = np.nan
    found = tg.nn.max_pool_with_argmax(x.reshape(1, 60, 1, 1), [size, 1], step, "VALID")
    windows = np.lib.stride_tricks.sliding_window_view(x, size)[::step]
    expected = np.argmax(windows, 1) + np.arange(len(windows)) * step
    np.testing.assert_array_equal(found.argmax.numpy().ravel(), expected)
    np.testing.assert_array_equal(found.output.numpy().ravel(), windows.max(1))


def test_pools_of_padding_that_is_given():
    x = sample(1, 5, 6, 2)
    pads = [[0, 0], [1, 0], [2, 1], [0, 0]]
    wanted = maxima(np.pad(x, pads, constant_values=-np.inf), 3, 2, 1, "VALID")
    close(tg.nn.max_pool2d(x, 3, 2, pads), wanted)
    wanted = maxima(np.pad(x[:, :1, :2], pads, constant_values=-np.inf), 2, 2, 1, "VALID")
    close(tg.nn.max_pool2d(x[:, :1, :2], 2, 2, pads), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("counts_examples", [False, True])
def test_where_the_maxima_stand(padding, counts_examples):
    x = RANDOM.integers(0, 9, (3, 5, 6, 2)).astype(np.float32)  # with equal elements
    output, argmax = tg.nn.max_pool_with_argmax(
        x, 3, 2, padding, include_batch_in_index=counts_examples
    )
    close(output, maxima(x, 3, 2, 1, padding))
    assert argmax.dtype == tg.int64
    flat = x.reshape(-1) if counts_examples else x.reshape(3, -1)
    at = argmax.numpy().reshape(3, -1)
    found = flat[at] if counts_examples else np.take_along_axis(flat, at, 1)
    np.testing.assert_array_equal(found.reshape(output.shape), output.numpy())
    same = tg.nn.max_pool_with_argmax(np.zeros_like(x), 3, 1, "VALID", output_dtype=tg.int32)
    offsets = np.arange(3)[:, None] * 6 * 2 + np.arange(4) * 2  # the first of equal elements
    expected = np.broadcast_to((offsets[..., None] + np.arange(2)), (3, 3, 4, 2))
    np.testing.assert_array_equal(same.argmax.numpy(), expected)
    assert same.argmax.dtype == tg.int32
