"""Every layer of a family: values against NumPy and JAX, weights, gradients, open sizes, saving."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

L = tg.layers
# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last 5 calls")


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def convolved(x, kernel, strides, padding, dilation=1, groups=1):
    """JAX's convolution with the channels last."""
    rank = x.ndim - 2
    letters = "DHW"[3 - rank :]
    names = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    steps, gaps = (strides,) * rank, (dilation,) * rank
    options = {"dimension_numbers": names, "feature_group_count": groups}
    with jax.enable_x64(True):
        operands = jnp.asarray(x), jnp.asarray(kernel)
        y = jax.lax.conv_general_dilated(*operands, steps, padding, rhs_dilation=gaps, **options)
        return np.asarray(y)


def transposed(x, kernel, strides, padding):
    """JAX's transposed convolution, of a kernel [..., outputs, inputs]."""
    rank = x.ndim - 2
    letters = "DHW"[3 - rank :]
    names = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    options = {"dimension_numbers": names, "transpose_kernel": True}
    with jax.enable_x64(True):
        operands = jnp.asarray(x), jnp.asarray(kernel)
        return np.asarray(jax.lax.conv_transpose(*operands, (strides,) * rank, padding, **options))


def depthwise(kernel):
    *spatial, channels, multiplier = kernel.shape
    return kernel.reshape(*spatial, 1, channels * multiplier)


def pooled(x, size, strides, padding, reduce):
    """Windows by NumPy's strides; nothing is padded but for `same`, where nan marks what is."""
    rank = x.ndim - 2
    if padding == "same":
        pads = []
        for n in x.shape[1:-1]:
            total = max((-(-n // strides) - 1) * strides + size - n, 0)
            pads.append((total // 2, total - total // 2))
        x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=np.nan)
    axes = tuple(range(1, rank + 1))
    view = np.lib.stride_tricks.sliding_window_view(x, (size,) * rank, axes)
    view = view[(slice(None), *(slice(None, None, strides),) * rank)]
    return reduce(view, tuple(range(rank + 2, 2 * rank + 2)))


def normal(x, axes, epsilon):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


def grouped(x, groups):
    parts = x.reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    return normal(parts, axes, 1e-3).reshape(x.shape)


def affine(y, *bias):
    return np.asarray(y) + (bias[0] if bias else 0)


X2, X3, X4, X5 = (3, 6), (2, 5, 6), (2, 6, 7, 4), (1, 4, 5, 6, 2)
OF_RANK = {1: (2, 7, 4), 2: (2, 6, 7, 4), 3: (1, 5, 4, 6, 4)}

#: What is called, the shape of its inputs, the names of its weights, and the value by NumPy or JAX.
CASES = {
    "Dense": (lambda **k: L.Dense(3, **k), X3, "kernel bias", lambda x, w, b: x @ w + b),
    "EinsumDense": (
        lambda **k: L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="e", **k),
        X3,
        "kernel bias",
        lambda x, w, b: np.einsum("abc,cde->abde", x, w) + b,
    ),
    "Rescaling": (lambda **k: L.Rescaling(2.0, -1.0, **k), X2, "", lambda x: 2 * x - 1),
    "Identity": (L.Identity, X2, "", lambda x: x),
    "Lambda": (lambda **k: L.Lambda(lambda x: 3 * x, **k), X2, "", lambda x: 3 * x),
    "Flatten": (L.Flatten, X4, "", lambda x: x.reshape(2, -1)),
    "Flatten first": (
        lambda **k: L.Flatten("channels_first", **k),
        X4,
        "",
        lambda x: np.moveaxis(x, 1, -1).reshape(2, -1),
    ),
    "Reshape": (lambda **k: L.Reshape((-1, 2), **k), X3, "", lambda x: x.reshape(2, -1, 2)),
    "Permute": (lambda **k: L.Permute((3, 1, 2), **k), X4, "", lambda x: x.transpose(0, 3, 1, 2)),
    "RepeatVector": (lambda **k: L.RepeatVector(4, **k), X2, "", lambda x: np.stack([x] * 4, 1)),
    "Activation": (lambda **k: L.Activation("tanh", **k), X2, "", np.tanh),
    "ReLU": (
        lambda **k: L.ReLU(1.0, 0.1, 0.25, **k),
        X2,
        "",
        lambda x: np.minimum(np.where(x > 0.25, x, 0.1 * (x - 0.25)), 1),
    ),
    "LeakyReLU": (L.LeakyReLU, X2, "", lambda x: np.where(x > 0, x, 0.3 * x)),
    "ELU": (lambda **k: L.ELU(0.5, **k), X2, "", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "PReLU": (
        lambda **k: L.PReLU("ones", shared_axes=1, **k),
        X3,
        "alpha",
        lambda x, a: np.where(x > 0, x, a * x),
    ),
    "Softmax": (
        lambda **k: L.Softmax((1, 2), **k),
        X3,
        "",
        lambda x: np.exp(x) / np.exp(x).sum((1, 2), keepdims=True),
    ),
    "LayerNormalization": (
        lambda **k: L.LayerNormalization([1, 3], **k),
        X4,
        "gamma beta",
        lambda x, g, b: normal(x, (1, 3), 1e-3) * g[:, None] + b[:, None],
    ),
    "GroupNormalization": (
        lambda **k: L.GroupNormalization(2, **k),
        X4,
        "gamma beta",
        lambda x, g, b: grouped(x, 2) * g + b,
    ),
    "RMSNormalization": (
        L.RMSNormalization,
        X3,
        "scale",
        lambda x, s: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * s,
    ),
    "UnitNormalization": (
        lambda **k: L.UnitNormalization(1, **k),
        X3,
        "",
        lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    ),
    "BatchNormalization": (
        lambda **k: L.BatchNormalization(axis=1, **k),
        X3,
        "gamma beta moving_mean moving_variance",
        lambda x, g, b, m, v: ((x.swapaxes(1, 2) - m) / np.sqrt(v + 1e-3) * g + b).swapaxes(1, 2),
    ),
    "ZeroPadding1D": (
        lambda **k: L.ZeroPadding1D((1, 2), **k),
        X3,
        "",
        lambda x: np.pad(x, [(0, 0), (1, 2), (0, 0)]),
    ),
    "ZeroPadding2D first": (
        lambda **k: L.ZeroPadding2D(((1, 2), (0, 3)), data_format="channels_first", **k),
        X4,
        "",
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 3)]),
    ),
    "ZeroPadding3D": (
        L.ZeroPadding3D,
        X5,
        "",
        lambda x: np.pad(x, [(0, 0), (1, 1), (1, 1), (1, 1), (0, 0)]),
    ),
    "Cropping1D": (lambda **k: L.Cropping1D((1, 2), **k), X3, "", lambda x: x[:, 1:-2]),
    "Cropping2D": (
        lambda **k: L.Cropping2D(((1, 0), (2, 1)), **k),
        X4,
        "",
        lambda x: x[:, 1:, 2:-1],
    ),
    "Cropping3D": (L.Cropping3D, X5, "", lambda x: x[:, 1:-1, 1:-1, 1:-1]),
    "UpSampling1D": (lambda **k: L.UpSampling1D(3, **k), X3, "", lambda x: x.repeat(3, 1)),
    "UpSampling2D": (
        lambda **k: L.UpSampling2D((2, 3), **k),
        X4,
        "",
        lambda x: x.repeat(2, 1).repeat(3, 2),
    ),
    "UpSampling3D": (
        L.UpSampling3D,
        X5,
        "",
        lambda x: x.repeat(2, 1).repeat(2, 2).repeat(2, 3),
    ),
    "TimeDistributed": (
        lambda **k: L.TimeDistributed(L.Dense(3, **k), **k),
        X3,
        "kernel bias",
        lambda x, w, b: x @ w + b,
    ),
    "Conv1D causal": (
        lambda **k: L.Conv1D(3, 2, padding="causal", dilation_rate=2, **k),
        OF_RANK[1],
        "kernel bias",
        lambda x, w, b: affine(convolved(np.pad(x, [(0, 0), (2, 0), (0, 0)]), w, 1, "VALID", 2), b),
    ),
    "Conv2D groups": (
        lambda **k: L.Conv2D(6, 2, groups=2, activation="relu", use_bias=False, **k),
        OF_RANK[2],
        "kernel",
        lambda x, w: np.maximum(convolved(x, w, 1, "VALID", 1, 2), 0),
    ),
    "Conv2D first": (
        lambda **k: L.Conv2D(3, 2, data_format="channels_first", **k),
        OF_RANK[2],
        "kernel bias",
        lambda x, w, b: np.moveaxis(
            affine(convolved(np.moveaxis(x, 1, -1), w, 1, "VALID"), b), -1, 1
        ),
    ),
    "Conv2DTranspose more": (
        lambda **k: L.Conv2DTranspose(3, 2, strides=3, output_padding=2, **k),
        OF_RANK[2],
        "kernel bias",
        lambda x, w, b: affine(
            np.pad(transposed(x, w, 3, "VALID"), [(0, 0), (0, 1), (0, 1), (0, 0)]), b
        ),
    ),
    "DepthwiseConv2D": (
        lambda **k: L.DepthwiseConv2D(2, padding="same", depth_multiplier=2, **k),
        OF_RANK[2],
        "kernel bias",
        lambda x, w, b: affine(convolved(x, depthwise(w), 1, "SAME", 1, 4), b),
    ),
    "DepthwiseConv1D": (
        lambda **k: L.DepthwiseConv1D(3, strides=2, **k),
        OF_RANK[1],
        "kernel bias",
        lambda x, w, b: affine(convolved(x, depthwise(w), 2, "VALID", 1, 4), b),
    ),
    "SeparableConv2D": (
        lambda **k: L.SeparableConv2D(3, 2, depth_multiplier=2, **k),
        OF_RANK[2],
        "depthwise_kernel pointwise_kernel bias",
        lambda x, w, p, b: convolved(x, depthwise(w), 1, "VALID", 1, 4) @ p[0, 0] + b,
    ),
    "SeparableConv1D": (
        lambda **k: L.SeparableConv1D(3, 2, padding="same", **k),
        OF_RANK[1],
        "depthwise_kernel pointwise_kernel bias",
        lambda x, w, p, b: convolved(x, depthwise(w), 1, "SAME", 1, 4) @ p[0] + b,
    ),
}
for rank, shape in OF_RANK.items():
    for padding in ("valid", "same"):
        upper, axes = padding.upper(), tuple(range(1, rank + 1))
        CASES |= {
            f"Conv{rank}D {padding}": (
                lambda rank=rank, padding=padding, **k: getattr(L, f"Conv{rank}D")(
                    3, 2, strides=2, padding=padding, **k
                ),
                shape,
                "kernel bias",
                lambda x, w, b, upper=upper: affine(convolved(x, w, 2, upper), b),
            ),
            f"Conv{rank}DTranspose {padding}": (
                lambda rank=rank, padding=padding, **k: getattr(L, f"Conv{rank}DTranspose")(
                    3, 3, strides=2, padding=padding, **k
                ),
                shape,
                "kernel bias",
                lambda x, w, b, upper=upper: affine(transposed(x, w, 2, upper), b),
            ),
            f"MaxPooling{rank}D {padding}": (
                lambda rank=rank, padding=padding, **k: getattr(L, f"MaxPooling{rank}D")(
                    3, 2, padding, **k
                ),
                shape,
                "",
                lambda x, padding=padding: pooled(x, 3, 2, padding, np.nanmax),
            ),
            f"AveragePooling{rank}D {padding}": (
                lambda rank=rank, padding=padding, **k: getattr(L, f"AveragePooling{rank}D")(
                    2, padding=padding, **k
                ),
                shape,
                "",
                lambda x, padding=padding: pooled(x, 2, 2, padding, np.nanmean),
            ),
        }
    CASES |= {
        f"GlobalMaxPooling{rank}D": (
            lambda rank=rank, **k: getattr(L, f"GlobalMaxPooling{rank}D")(keepdims=True, **k),
            shape,
            "",
            lambda x, axes=axes: x.max(axes, keepdims=True),
        ),
        f"GlobalAveragePooling{rank}D": (
            lambda rank=rank, **k: getattr(L, f"GlobalAveragePooling{rank}D")(**k),
            shape,
            "",
            lambda x, axes=axes: x.mean(axes),
        ),
    }


def built(name):
    """A layer with weights, and its inputs. Nobody reads what the weights begin with, so that
    nothing is compiled for it."""
    make, shape, _, _ = CASES[name]
    layer = make(dtype="float64")
    x = sample(*shape)
    layer(x)
    for k, v in enumerate(layer.variables):
        v.assign(np.abs(0.6 * sample(*v.shape, seed=k + 1)) + 0.1)
    return layer, x


@pytest.fixture(params=CASES, ids=str)
def case(request):
    _, _, names, expected = CASES[request.param]
    return *built(request.param), names.split(), expected


@pytest.fixture(params=range(6))
def many(request):
    """A sixth of the layers, for what compiles them together: pairs of a layer and its inputs."""
    return [built(name) for name in [*CASES][request.param :: 6]]


def close(actual, expected, tolerance=1e-10):
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(9)
def test_value_and_weights(case):
    layer, x, names, expected = case
    assert [v.name for v in layer.variables] == names
    weights = [v.numpy() for v in layer.variables]
    close(layer(x), expected(x, *weights))
    assert layer(x).dtype == tg.float64
    assert layer.count_params() == sum(w.size for w in weights)


@pytest.mark.sampled(3)
def test_open_number_of_examples(case):
    layer, x, _, expected = case
    spec = tg.TensorSpec([None, *x.shape[1:]], tg.float64)
    compute = tg.function(layer, input_signature=[spec])
    weights = [v.numpy() for v in layer.variables]
    for examples in (x, x[:1]):
        if examples.shape == x.shape:  # the formulas of some have the number of examples in them
            close(compute(tg.constant(examples)), expected(examples, *weights))
        else:
            close(compute(tg.constant(examples)), layer(x)[:1].numpy())


def weighted(layer, x):
    y = layer(x)
    return tg.reduce_sum(y * sample(*y.shape, seed=9))


@pytest.mark.sampled(1)
def test_gradients_by_inputs_and_weights(many):
    """Against differences, for which all layers are moved at once, each at one place."""
    layers, xs = zip(*many, strict=True)

    @tg.function
    def totals(xs):
        return tg.stack([weighted(*pair) for pair in zip(layers, xs, strict=True)])

    @tg.function
    def slopes(xs):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            parts = [weighted(*pair) for pair in zip(layers, xs, strict=True)]
        return [
            tape.gradient(part, [x, *layer.trainable_variables])
            for part, layer, x in zip(parts, layers, xs, strict=True)
        ]

    places, step = np.random.default_rng(3), 1e-6
    values = [[x, *(v.numpy() for v in layer.trainable_variables)] for layer, x in many]
    moves = [
        [
            (k, tuple(places.integers(0, n) for n in tensor.shape))
            for k, tensor in enumerate(tensors)
            for _ in range(3)
        ]
        for tensors in values
    ]

    def moved(sign, number):
        """The totals where each layer with so many moves is moved."""
        given = list(xs)
        for i, (layer, tensors) in enumerate(zip(layers, values, strict=True)):
            if number < len(moves[i]):
                k, at = moves[i][number]
                tensor = tensors[k].copy()
                tensor[at] += sign * step
                given[i] = tensor if k == 0 else given[i]
                for variable, other in zip(layer.trainable_variables, tensors[1:], strict=True):
                    variable.assign(tensor if other is tensors[k] else other)
        return totals([*map(tg.constant, given)]).numpy()

    found = slopes([*map(tg.constant, xs)])
    for number in range(max(map(len, moves))):
        expected = (moved(1, number) - moved(-1, number)) / (2 * step)
        for i, gradients in enumerate(found):
            if number < len(moves[i]):
                k, at = moves[i][number]
                close_to = pytest.approx(expected[i], rel=1e-5, abs=1e-6)
                assert gradients[k].numpy()[at] == close_to, layers[i]


@pytest.mark.sampled(1)
def test_parallel_loop_is_the_loop(many):
    layers, xs = zip(*many, strict=True)

    @tg.function
    def alone(xs):
        return [layer(x) for layer, x in zip(layers, xs, strict=True)]

    rows = [tg.constant(np.stack([x, 2 * x])) for x in xs]
    found = tg.function(lambda rows: tg.vectorized_map(alone, rows))(rows)
    expected = [alone([tg.constant(factor * x) for x in xs]) for factor in (1, 2)]
    for y, first, second in zip(found, *expected, strict=True):
        close(y, np.stack([first.numpy(), second.numpy()]))


# ---------------------------------------------------------------- what random layers do in training


def test_spatial_dropout_leaves_out_whole_channels():
    tg.random.set_seed(1)
    for layer, shape, axes in (
        (L.SpatialDropout1D(0.5), (8, 5, 6), (1,)),
        (L.SpatialDropout2D(0.5), (8, 3, 4, 6), (1, 2)),
        (L.SpatialDropout2D(0.5, "channels_first"), (8, 6, 3, 4), (2, 3)),
        (L.SpatialDropout3D(0.5), (8, 2, 3, 2, 6), (1, 2, 3)),
    ):
        x = np.ones(shape, np.float32)
        close(layer(x), x)
        y = layer(x, training=True).numpy()
        assert set(np.unique(y)) == {0, 2}
        assert (y.max(axes) == y.min(axes)).all()


def test_gaussian_noise_and_dropout():
    tg.random.set_seed(1)
    x = np.full([20000], 2.0, np.float32)
    close(L.GaussianNoise(0.5)(x), x)
    y = L.GaussianNoise(0.5)(x, training=True).numpy()
    assert y.mean() == pytest.approx(2, abs=0.02) and y.std() == pytest.approx(0.5, rel=0.03)
    close(L.GaussianDropout(0.2)(x), x)
    y = L.GaussianDropout(0.2)(x, training=True).numpy()
    assert y.mean() == pytest.approx(2, abs=0.02)
    assert y.std() == pytest.approx(2 * np.sqrt(0.2 / 0.8), rel=0.03)


def test_alpha_dropout_keeps_mean_and_variance():
    tg.random.set_seed(1)
    x = np.random.default_rng(2).normal(size=[50, 400]).astype(np.float32)
    close(L.AlphaDropout(0.3)(x), x)
    y = L.AlphaDropout(0.3)(x, training=True).numpy()
    assert y.mean() == pytest.approx(0, abs=0.03) and y.std() == pytest.approx(1, abs=0.03)
    _, counts = np.unique(y, return_counts=True)
    assert counts.max() / y.size == pytest.approx(0.3, abs=0.02)  # all that were left out are one
    rows = L.AlphaDropout(0.5, noise_shape=(None, 1))(x, training=True).numpy()
    assert (np.isclose(rows, rows[:, :1]).all(1) == np.isclose(rows[:, 0], rows[:, 1])).all()


def windows(size, count):
    return [slice(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["Average", "Max"])
def test_adaptive_pools_reduce_windows_that_cover_all(kind):
    x = np.random.default_rng(3).normal(size=[2, 7, 5, 4, 3]).astype(np.float32)
    x[0, 0, 0, 0, 0] = np.inf
    reduce = np.mean if kind == "Average" else np.max
    for rank, counts in ((1, (3,)), (2, (7, 2)), (3, (2, 3, 4))):
        part = x[(slice(None),) * (rank + 1) + (0,) * (3 - rank)]
        expected = np.empty((2, *counts, 3), np.float32)
        for place in np.ndindex(*counts):
            cut = tuple(windows(n, c)[k] for n, c, k in zip(part.shape[1:], counts, place))
            axes = tuple(range(1, rank + 1))
            expected[(slice(None), *place)] = reduce(part[(slice(None), *cut)], axes)
        layer = getattr(L, f"Adaptive{kind}Pooling{rank}D")
        close(layer(counts)(part), expected, 1e-5)
        first = layer(counts, "channels_first")(np.moveaxis(part, -1, 1))
        close(first, np.moveaxis(expected, -1, 1), 1e-5)


def test_spectral_normalization_divides_by_the_largest_singular_value():
    x = np.ones([2, 4, 4, 3], np.float32)
    layer = L.SpectralNormalization(L.Conv2D(5, 2), power_iterations=30)
    layer(x)
    before = layer.layer.kernel.numpy()
    close(layer(x), layer.layer(x))
    step = tg.function(lambda: layer(x, training=True))
    step()
    largest = np.linalg.svd(before.reshape(-1, 5), compute_uv=False)[0]
    np.testing.assert_allclose(layer.layer.kernel.numpy(), before / largest, rtol=1e-3)
    zero = L.SpectralNormalization(L.Dense(2, kernel_initializer="zeros"))
    close(zero(np.ones([1, 3], np.float32), training=True), np.zeros([1, 2]))
    with pytest.raises(ValueError, match="makes no kernel"):
        L.SpectralNormalization(L.Flatten())(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [1, 3])
def test_steps_of_spectral_normalization(count):
    """As in Keras: v from u, then u from v; the weights are in its order too."""
    layer = L.SpectralNormalization(L.Dense(3, dtype="float64"), count, dtype="float64")
    x, weights = sample(2, 4), [sample(*shape, seed=1) for shape in ([4, 3], [1, 3], [3])]
    layer(x)
    layer.set_weights(weights)
    w, u, bias = weights
    for _ in range(count):
        v = u @ w.T / np.linalg.norm(u @ w.T)
        u = v @ w / np.linalg.norm(v @ w)
    kernel = w / (v @ w @ u.T)
    close(layer(x, training=True), x @ kernel + bias)
    for found, expected in zip(layer.get_weights(), [kernel, u, bias]):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_functions_of_several_inputs_are_their_layers():
    x, y = np.float32([[1, 2]]), np.float32([[3, 5]])
    for name in ("add", "subtract", "multiply", "average", "maximum", "minimum", "concatenate"):
        close(getattr(L, name)([x, y]), getattr(L, name.capitalize())()([x, y]))
    close(L.concatenate([x, y], axis=0), np.concatenate([x, y]))
    close(L.dot([x, y], axes=1, normalize=True), L.Dot(1, normalize=True)([x, y]))


# ---------------------------------------------------------------- tables and several inputs


def test_embedding():
    layer = L.Embedding(5, 3, mask_zero=True)
    ids = np.array([[1, 0], [4, 4]])
    close(layer(ids), layer.embeddings.numpy()[ids])
    assert layer.embeddings.shape == (5, 3) and abs(layer.embeddings.numpy()).max() <= 0.05
    assert layer.compute_mask(ids).numpy().tolist() == [[True, False], [True, True]]
    close(layer([[1.0, 0.0]]), layer.embeddings.numpy()[[[1, 0]]])
    with tg.GradientTape() as tape:
        total = tg.reduce_sum(layer(ids))
    close(tape.gradient(total, layer.embeddings), [[1] * 3, [1] * 3, [0] * 3, [0] * 3, [2] * 3])
    table = sample(5, 3).astype(np.float32)
    close(L.Embedding(5, 3, weights=[table])(ids), table[ids])


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (L.Add(), lambda x, y: x + y),
        (L.Subtract(), lambda x, y: x - y),
        (L.Multiply(), lambda x, y: x * y),
        (L.Average(), lambda x, y: (x + y) / 2),
        (L.Maximum(), np.maximum),
        (L.Minimum(), np.minimum),
        (L.Concatenate(), lambda x, y: np.concatenate([x, y], -1)),
        (L.Dot(1), lambda x, y: (x * y).sum(1, keepdims=True)),
        (L.Dot(1, normalize=True), lambda x, y: ((x * y).sum(1) / norms(x) / norms(y))[:, None]),
    ],
)
def test_merging(layer, expected):
    x, y = sample(4, 3).astype(np.float32), sample(4, 3, seed=1).astype(np.float32)
    close(layer([x, y]), expected(x, y), 1e-5)
    close(layer([tg.constant(x), y.tolist()]), expected(x, y), 1e-5)


def norms(x):
    return np.linalg.norm(x, axis=1)


def test_merging_of_other_shapes():
    x, y, z = sample(2, 3, 4), sample(2, 4), sample(2, 4, 5)
    as64 = {"dtype": "float64"}
    close(L.Add(**as64)([x, y, x]), 2 * x + y[:, None])
    close(L.Dot((2, 1), **as64)([x, z]), np.einsum("aij,ajk->aik", x, z))
    close(L.Dot((2, 1), **as64)([x, y]), np.einsum("aij,aj->ai", x, y))
    close(L.Concatenate(1, **as64)([x, x]), np.concatenate([x, x], 1))


def test_mean_over_the_steps_that_are_there():
    x, mask = sample(2, 3, 4), np.array([[1, 1, 0], [0, 1, 0]], bool)
    found = L.GlobalAveragePooling1D(dtype="float64")(x, mask=mask)
    close(found, np.stack([x[0, :2].mean(0), x[1, 1]]))


def test_softmax_of_what_is_not_masked():
    x, mask = sample(2, 3), np.array([[1, 0, 1], [0, 0, 0]], bool)
    powers = np.exp(x[0]) * mask[0]
    close(L.Softmax(dtype="float64")(x, mask=mask), np.stack([powers / powers.sum(), np.zeros(3)]))


def test_batch_normalization_without_scale_and_center():
    layer = L.BatchNormalization(center=False, scale=False)
    layer(np.ones([2, 3]), training=True)
    assert [v.name for v in layer.weights] == ["moving_mean", "moving_variance"]


# ---------------------------------------------------------------- models


def many_layers():
    return L.Sequential(
        [
            L.Conv2D(4, 3, padding="same", kernel_regularizer="l2"),
            L.BatchNormalization(),
            L.PReLU(shared_axes=[1, 2]),
            L.DepthwiseConv2D(2),
            L.GroupNormalization(2),
            L.MaxPooling2D(),
            L.SpatialDropout2D(0.2),
            L.Reshape((-1, 4)),
            L.Bidirectional(L.LSTM(3, return_sequences=True)),
            L.LayerNormalization(),
            L.GRU(5, return_sequences=True),
            L.Conv1DTranspose(4, 2),
            L.GlobalAveragePooling1D(),
            L.Dense(2, kernel_constraint="max_norm"),
        ],
        name="many",
    )


@pytest.mark.sweep
def test_a_model_with_many_layers_is_saved_and_loaded(tmp_path):
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.net = many_layers()

        @tg.function(input_signature=[tg.TensorSpec([None, 6, 6, 3])])
        def __call__(self, x):
            return self.net(x, training=False)

    model = Model()
    x = sample(4, 6, 6, 3).astype(np.float32)
    y = model(x).numpy()
    tg.saved_model.save(model, tmp_path / "saved")
    loaded = tg.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded(x).numpy(), y, rtol=1e-6)
    tg.train.Checkpoint(model=model).write(tmp_path / "checkpoint")
    other = Model()
    tg.train.Checkpoint(model=other).read(tmp_path / "checkpoint")
    np.testing.assert_allclose(other(x).numpy(), y, rtol=1e-6)
    names = [name for name, _ in tg.train.list_variables(tmp_path / "checkpoint")]
    assert "model/net/layers/0/kernel" in names
    assert "model/net/layers/8/backward_layer/cell/recurrent_kernel" in names


def test_a_model_with_many_layers_trains():
    tg.random.set_seed(1)
    model = many_layers()
    optimizer = tg.optimizers.Adam(0.01)
    x = tg.constant(sample(8, 6, 6, 3).astype(np.float32))
    target = tg.reduce_sum(x[..., :2], [1, 2]) / 6.0

    @tg.function
    def step():
        with tg.GradientTape() as tape:
            error = tg.reduce_mean((model(x, training=True) - target) ** 2)
            loss = error + tg.add_n(model.losses)
        trained = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return error

    first = float(step())
    assert all(np.isfinite(v.numpy()).all() for v in model.variables)
    for _ in range(60):
        last = float(step())
    assert last < 0.5 * first


def test_weights_are_taken_and_given():
    one, other = L.Dense(2), L.Dense(2)
    for layer in (one, other):
        layer(np.ones([1, 3]))
    other.set_weights(one.get_weights())
    close(other.kernel, one.kernel.numpy())
    with pytest.raises(tg.errors.ShapeError, match="1 values for 2 variables"):
        other.set_weights([np.ones([3, 2])])


def test_an_input_builds_a_sequential():
    model = L.Sequential([L.Input([4]), L.Dense(3), tg.nn.relu])
    assert [v.shape for v in model.variables] == [(4, 3), (3,)]
    model.add(L.Dense(1))
    assert model.count_params() == 15 + 4
    other = L.Sequential([L.Dense(3)])
    other.build([None, 4])
    assert other.layers[0].kernel.shape == (4, 3)
    assert model.pop().units == 1 and len(model.layers) == 2
    with pytest.raises(TypeError, match="at the beginning"):
        model.add(L.Input([4]))


def test_summary_of_a_sequential():
    model = L.Sequential([L.Input([4, 2]), L.Flatten(), L.Dense(3, name="hidden"), L.Dropout(0.5)])
    model.add(L.BatchNormalization())
    lines = []
    model.summary(print_fn=lines.append)
    assert lines == [
        "Sequential",
        "layer               output shape  parameters",
        "------------------  ------------  ----------",
        "Flatten             (None, 8)              0",
        "hidden (Dense)      (None, 3)             27",
        "Dropout             (None, 3)              0",
        "BatchNormalization  (None, 3)             12",
        "------------------  ------------  ----------",
        "39 parameters, 33 of them trainable",
    ]
    lines.clear()
    L.Sequential([L.MaxPool2D(), L.AvgPool2D()]).summary(print_fn=lines.append)
    assert [line.split()[0] for line in lines[3:5]] == ["MaxPooling2D", "AveragePooling2D"]
    assert lines[-1] == "not built yet: call the model, or begin it with tg.layers.Input(shape)"


# ---------------------------------------------------------------- losses and constraints


def test_losses_of_weights_and_of_activities():
    inner = L.Dense(3, kernel_regularizer=tg.regularizers.L2(0.5), activity_regularizer="l1")
    model = L.Sequential([inner, L.ActivityRegularization(l2=1.0)])
    x = sample(4, 2).astype(np.float32)
    y = model(x).numpy()
    found = [float(loss) for loss in model.losses]
    kernel = inner.kernel.numpy()
    expected = [0.5 * (kernel**2).sum(), 0.01 * abs(y).sum() / 4, (y**2).sum() / 4]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    model(x)
    assert len(model.losses) == 3  # those of the last call alone


def test_losses_in_a_function_have_gradients():
    layer = L.Dense(1, use_bias=False, kernel_regularizer=tg.regularizers.L2(0.5))
    x = np.ones([1, 2], np.float32)
    layer(x)

    @tg.function
    def gradient():
        with tg.GradientTape() as tape:
            layer(x)
            loss = tg.add_n(layer.losses)
        return tape.gradient(loss, layer.kernel)

    close(gradient(), layer.kernel.numpy(), 1e-6)


def test_a_module_lists_the_losses_of_its_layers_unless_it_has_its_own():
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.layer = L.Dense(1, kernel_regularizer="l2")

    model = Model()
    model.layer(np.ones([1, 2]))
    assert len(model.losses) == 1
    model.losses = [1, 2]
    assert model.losses == [1, 2]


def test_several_inputs_by_position_and_by_name():
    class Gate(L.Layer):
        def call(self, x, context, sign=1):
            return x + sign * context

    layer, x, y = Gate(), tg.ones([2]), np.full([2], 2.0)
    close(layer(x, y), [3, 3])
    close(layer(x, context=y, sign=-1), [-1, -1])
    close(layer(x=x, context=y), [3, 3])
    with pytest.raises(TypeError, match="takes 3 arguments by position, and 4 were given"):
        layer(x, y, 1, 2)
    with pytest.raises(TypeError, match="'x' is missing"):
        layer(context=y)


def test_a_loss_that_a_layer_adds_itself():
    class Watched(L.Layer):
        def call(self, inputs):
            self.add_loss(tg.reduce_sum(inputs))
            return inputs

    model = L.Sequential([Watched(), Watched()])
    model([1.0, 2.0])
    assert [float(loss) for loss in model.losses] == [3, 3]


def test_constraints_stand_at_the_variables():
    layer = L.Dense(2, kernel_constraint="non_neg", bias_constraint=tg.constraints.MaxNorm(1.0))
    layer(np.ones([1, 3]))
    assert isinstance(layer.kernel.constraint, tg.constraints.NonNeg)
    assert layer.bias.constraint.max_value == 1.0


# ---------------------------------------------------------------- errors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos3", "lanczos5"])
def test_pixels_between_pixels(method):
    x = sample(2, 4, 3, 2)
    theirs = {"bilinear": "linear", "bicubic": "cubic"}.get(method, method)
    with jax.enable_x64(True):
        resize = jax.jit(lambda x: jax.image.resize(x, (2, 8, 9, 2), theirs))
        expected = np.asarray(resize(x))
    found = L.UpSampling2D((2, 3), None, method, dtype=tg.float64)(x)
    assert found.dtype == tg.float64
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    first = L.UpSampling2D((2, 3), "channels_first", method, dtype=tg.float64)(
        np.moveaxis(x, -1, 1)
    )
    np.testing.assert_array_equal(first.numpy(), np.moveaxis(found.numpy(), -1, 1))


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: L.Embedding(0, 2), ValueError, "input_dim is 0"),
        (lambda: L.Embedding(3, 2, mask_zero=1), TypeError, "mask_zero"),
        (lambda: L.EinsumDense("ab", 3), ValueError, "not an equation"),
        (lambda: L.EinsumDense("ab,bc->ac", 3)(tg.ones([2, 2, 2])), ValueError, "inputs of"),
        (lambda: L.EinsumDense("ab,bc->ac", [None])(tg.ones([2, 2])), ValueError, "size 'c'"),
        (lambda: L.EinsumDense("ab,bc->ac", 3, bias_axes="z")(tg.ones([2, 2])), ValueError, "z"),
        (lambda: L.Conv1D(2, 3, padding="causa"), ValueError, "causal"),
        (lambda: L.Conv2D(2, 3, padding="causal"), ValueError, "padding"),
        (lambda: L.Conv2D(2, 3, strides=2, dilation_rate=2), ValueError, "dilation_rate"),
        (lambda: L.Conv2D(2, 3)(tg.ones([4, 4, 1])), ValueError, "4 axes"),
        (lambda: L.Conv2D(2, [3, 3, 3]), ValueError, "kernel_size"),
        (lambda: L.Conv2DTranspose(2, 3, 2, output_padding=2), ValueError, "output_padding"),
        (lambda: L.DepthwiseConv2D(3, depth_multiplier=0), ValueError, "depth_multiplier"),
        (lambda: L.MaxPooling1D(2)(tg.ones([2, 2])), ValueError, "3 axes"),
        (lambda: L.GlobalMaxPooling2D("NHWC"), ValueError, "channels_last"),
        (lambda: L.GlobalMaxPooling2D()(tg.ones([2, 2])), ValueError, "4 axes"),
        (lambda: L.Reshape((4, 4))(tg.ones([2, 3])), ValueError, "elements"),
        (lambda: L.Permute((1, 3)), ValueError, "each axis once"),
        (lambda: L.Permute((2, 1))(tg.ones([2, 2])), ValueError, "transpose"),
        (lambda: L.RepeatVector(2.5), TypeError, "n must be"),
        (lambda: L.ZeroPadding2D([1, 2, 3]), ValueError, "padding is"),
        (lambda: L.ZeroPadding2D(-1), ValueError, "padding is"),
        (lambda: L.Cropping1D(2)(tg.ones([1, 3, 1])), ValueError, "cut off"),
        (lambda: L.UpSampling2D(2, interpolation="area"), ValueError, "interpolation"),
        (lambda: L.ReLU(max_value=-1), ValueError, "max_value"),
        (lambda: L.PReLU(shared_axes=3)(tg.ones([2, 2])), ValueError, "out of range"),
        (lambda: L.Softmax(axis=2)(tg.ones([2, 2])), ValueError, "out of range"),
        (lambda: L.LayerNormalization(axis=[1, 1])(tg.ones([2, 2])), ValueError, "twice"),
        (lambda: L.GroupNormalization(3)(tg.ones([2, 4])), ValueError, "3 groups"),
        (lambda: L.RMSNormalization(epsilon=-1), ValueError, "epsilon"),
        (lambda: L.Add()(tg.ones([2])), ValueError, "list of tensors"),
        (lambda: L.Subtract()([tg.ones([2])] * 3), ValueError, "two tensors"),
        (lambda: L.Add()([tg.ones([2, 3]), tg.ones([2, 4])]), ValueError, "broadcast"),
        (lambda: L.Dot(0)([tg.ones([2, 2])] * 2), ValueError, "examples"),
        (lambda: L.Dot([1, 1, 1]), ValueError, "axes is"),
        (lambda: L.Concatenate()([tg.ones([2, 3]), tg.ones([3, 3])]), ValueError, "concat"),
        (lambda: L.SpatialDropout1D(1.5), ValueError, "rate"),
        (lambda: L.GaussianNoise(-1.0), ValueError, "stddev"),
        (lambda: L.TimeDistributed(tg.nn.relu), TypeError, "takes a layer"),
        (lambda: L.TimeDistributed(L.Dense(2))(tg.ones([2])), ValueError, "2 axes"),
        (lambda: L.Lambda(3), TypeError, "function"),
        (lambda: setattr(L.Dense(2), "trainable", "no"), TypeError, "trainable"),
        (lambda: L.Dense(2, kernel_regularizer="l3"), ValueError, "regularizer"),
        (lambda: L.Dense(2, kernel_constraint=3), ValueError, "constraint"),
    ],
)
def test_bad_arguments_of_the_families_are_errors(make, kind, words):
    with pytest.raises(kind, match=words) as error:
        make()
    assert "test_layer_families.py" in str(error.value)
    assert "fix: " in str(error.value)


# ---------------------------------------------------------------- masks in a Sequential

IDS = np.array([[3, 1, 0, 0], [2, 0, 4, 1]])


def embedding():
    return L.Embedding(5, 3, mask_zero=True)


def near(x, y):
    np.testing.assert_allclose(x.numpy(), np.asarray(y), rtol=1e-5)


def test_a_sequential_hands_masks_on():
    first, second = L.LSTM(2, return_sequences=True), L.GRU(2)
    inner = L.Sequential([embedding(), L.Activation("tanh")])
    model = L.Sequential([inner, first, L.Dropout(0.5), second])
    x, mask = tg.tanh(inner.layers[0](IDS)), IDS != 0
    wanted = second(first(x, mask=mask), mask=mask)
    near(model(IDS), wanted)
    near(tg.function(model)(tg.constant(IDS)), wanted)
    assert not np.allclose(second(first(x)), wanted)
    assert second.compute_mask(x, mask) is None and first.compute_mask(x, mask) is mask


@pytest.mark.parametrize("between", [L.Reshape([4, 3]), L.Conv1D(3, 1), tg.tanh])
def test_a_mask_ends_at_a_layer_that_may_move_steps(between):
    table, last = embedding(), L.GlobalAveragePooling1D()
    model = L.Sequential([table, between, last])
    near(model(IDS), last(between(table(IDS))))


def test_a_mask_given_to_a_sequential():
    x, mask = sample(2, 3, 4).astype(np.float32), np.array([[1, 1, 0], [0, 1, 0]], bool)
    pool = L.GlobalAveragePooling1D()
    model = L.Sequential([L.Identity(), pool], name="model")
    near(model(x, mask=mask), pool(x, mask=mask))
    near(
        L.Sequential([L.Softmax(), pool])(x, mask=mask),
        pool(tg.nn.softmax(x), mask=mask),
    )
    chosen = L.Lambda(lambda x: x, mask=lambda x, mask: mask)
    near(L.Sequential([chosen, pool])(x, mask=mask), pool(x, mask=mask))


def test_masking():
    x = np.array([[[1.0, 2.0], [-1.0, -1.0], [-1.0, 0.0]]])
    layer, pool = L.Masking(-1.0), L.GlobalAveragePooling1D()
    near(layer(x), [[[1.0, 2.0], [0.0, 0.0], [-1.0, 0.0]]])
    assert layer.compute_mask(x).numpy().tolist() == [[True, False, True]]
    near(L.Sequential([layer, pool])(x), [[0.0, 1.0]])


@pytest.mark.parametrize(
    ("axis", "shape"),
    [(-1, (6, 3)), (None, (5,)), ((1, 3), (4, 2, 5, 3)), (0, (2, 7)), (2, (8, 2, 3))],
)
@pytest.mark.parametrize("kind", ["array", "tensor", "batches", "tuples"])
def test_normalization_adapts_to_data(axis, shape, kind):
    x = 100 + 3 * sample(*shape)
    kept = () if axis is None else tuple(k % len(shape) for k in np.atleast_1d(axis))
    others = tuple(k for k in range(len(shape)) if k not in kept)
    parts = [x] if 0 in kept else [x[:1], x[1:1], x[1:]]
    data = {"array": x, "tensor": tg.constant(x), "batches": parts}
    data["tuples"] = ((part, "label") for part in parts)
    layer, back = L.Normalization(axis), L.Normalization(axis, invert=True)
    layer.adapt(data[kind])
    wanted = (x - x.mean(others, keepdims=True)) / x.std(others, keepdims=True)
    y = tg.function(layer)(tg.constant(x, tg.float32))
    assert np.allclose(y.numpy(), wanted, atol=1e-3)
    assert np.allclose(layer.mean.numpy(), x.mean(others, keepdims=True), 1e-6)
    assert np.allclose(layer.variance.numpy(), x.var(others, keepdims=True), 1e-5)
    back.adapt(x)
    assert np.allclose(back(y).numpy(), x, 1e-5)
    assert [v.name for v in layer.variables] == ["mean", "variance", "count"]
    assert layer.trainable_variables == []


def test_normalization_adapts_in_parts(monkeypatch):
    """Large arrays, of integers too, are averaged in float64, some rows at a time."""
    module = importlib.import_module("tracegraph.layers.normalisation.adapted")
    monkeypatch.setattr(module, "_CHUNK", 10)
    x = np.arange(10**6, 10**6 + 24, dtype=np.int32).reshape(8, 3)
    layer = L.Normalization()
    before = layer(np.float32([[1, 2, 3]])).numpy()
    assert before.tolist() == [[1, 2, 3]]  # mean 0, variance 1
    layer.adapt(x)
    assert np.allclose(layer.variance.numpy(), x.var(0), 1e-6)
    assert np.allclose(layer(x[:2]).numpy(), (x[:2] - x.mean(0)) / x.std(0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_normalization_with_a_given_mean(dtype):
    layer = L.Normalization((1, 2), mean=[1.0, 2.0], variance=[0.0, 4.0], dtype=dtype)
    x = sample(3, 4, 2)
    y = layer(x)
    wanted = (x - [1, 2]) / [1e-7, 2]
    assert y.dtype is layer.compute_dtype
    assert np.allclose(y.numpy().astype(float), wanted, 1e-2 if "mixed" in dtype else 1e-5)
    model = tg.layers.Sequential([L.Normalization(mean=3.0, variance=2.0), L.Dense(1)])
    assert model(tg.constant([[1], [2], [3]])).shape == (3, 1)
    with pytest.raises(tg.errors.ShapeError, match="the mean has 2 elements along axis 2"):
        layer.build([3, 4, 5])
