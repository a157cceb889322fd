"""tg.nn against NumPy and SciPy: values, gradients by differences, kinks, errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import tracegraph as tg

RANDOM = np.random.default_rng(11)


def sample(*shape, dtype=np.float32):
    return RANDOM.normal(size=shape).astype(dtype)


def close(actual, expected, **tolerance):
    value, expected = actual.numpy(), np.asarray(expected)
    assert np.shape(value) == expected.shape
    np.testing.assert_allclose(value, expected, **{"rtol": 2e-5, "atol": 2e-6, **tolerance})


def gradients(fn, *xs):
    tensors = [tg.constant(x) for x in xs]
    with tg.GradientTape() as tape:
        tape.watch(tensors)
        y = fn(*tensors)
    return tape.gradient(y, tensors, unconnected_gradients="zero")


def check_gradient(fn, *xs, order=1):
    """The slope along one direction equals a central difference, in float64."""
    directions = [np.cos(np.arange(x.size) + k).reshape(x.shape) for k, x in enumerate(xs)]

    def total(*tensors):
        y = fn(*tensors)
        return tg.reduce_sum(
            y * tg.cast(tg.reshape(tg.range(1, y.size + 1), y.shape), y.dtype) / y.size
        )

    def slope(*tensors):
        found = 0.0
        with tg.GradientTape() as tape:
            tape.watch(tensors)
            y = total(*tensors)
        grads = tape.gradient(y, list(tensors), unconnected_gradients="zero")
        for g, d in zip(grads, directions, strict=True):
            found = found + tg.reduce_sum(g * d)
        return found

    target = total if order == 1 else slope
    found = sum(
        np.sum(g.numpy() * d) for g, d in zip(gradients(target, *xs), directions, strict=True)
    )
    step = 1e-5
    ends = [
        float(
            target(*(tg.constant(x + sign * step * d) for x, d in zip(xs, directions, strict=True)))
        )
        for sign in (1, -1)
    ]
    assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


# ---------------------------------------------------------------- activations

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "silu": lambda x: x * scipy.special.expit(x),
    "swish": lambda x: x * scipy.special.expit(x),
    "sigmoid": scipy.special.expit,
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + abs(x)),
    "tanh": np.tanh,
    "softmax": lambda x: scipy.special.softmax(x, -1),
    "log_softmax": lambda x: scipy.special.log_softmax(x, -1),
}


def test_activations():
    x = 4 * sample(3, 5, dtype=np.float64)
    wide = [getattr(tg.nn, name)(x) for name in ACTIVATIONS]
    narrow = [getattr(tg.nn, name)(x.astype(np.float32)) for name in ACTIVATIONS]
    for exact, one, other in zip(ACTIVATIONS.values(), wide, narrow, strict=True):
        close(one, exact(x), rtol=1e-10)
        close(other, exact(x), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_activations(name, order):
    check_gradient(getattr(tg.nn, name), 2 * sample(2, 5, dtype=np.float64), order=order)


def test_approximate_gelu():
    x = sample(5)
    expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    close(tg.nn.gelu(x, approximate=True), expected)


def test_arguments_of_activations():
    x = sample(4)
    close(tg.nn.leaky_relu(x, alpha=0.5), np.where(x > 0, x, 0.5 * x))
    close(tg.nn.silu(x, beta=2.0), x * scipy.special.expit(2 * x))
    close(tg.nn.crelu(x), np.maximum(np.concatenate([x, -x]), 0))
    y = sample(3, 4)
    close(tg.nn.softmax(y, axis=0), scipy.special.softmax(y, 0))
    close(tg.nn.log_softmax(y, axis=0), scipy.special.log_softmax(y, 0))


KINKS = {
    "relu": (0.0, 0.0),
    "relu6": (6.0, 0.0),
    "elu": (0.0, 1.0),
    "selu": (0.0, 1.0507009873554805),
    "leaky_relu": (0.0, 0.2),
    "softplus": (0.0, 0.5),
    "softsign": (0.0, 1.0),
    "gelu": (0.0, 0.5),
    "silu": (0.0, 0.5),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks(name):
    at, slope = KINKS[name]
    (found,) = gradients(getattr(tg.nn, name), np.float32(at))
    assert found.numpy() == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_out_are_finite(name):
    x = np.float32([-1e4, -100, 100, 1e4])
    (slope,) = gradients(getattr(tg.nn, name), x)
    assert np.isfinite(getattr(tg.nn, name)(x).numpy()).all()
    assert np.isfinite(slope.numpy()).all()


def test_softmax_with_masked_logits():
    x = np.float32([[0, -np.inf, 0]])
    close(tg.nn.softmax(x), [[0.5, 0, 0.5]])
    assert tg.nn.log_softmax(x).numpy()[0, 1] == -np.inf


# ---------------------------------------------------------------- losses


def one_hot(labels, classes):
    return np.eye(classes)[labels]


def test_softmax_cross_entropy():
    logits, labels = sample(4, 3), np.array([0, 2, 1, 1])
    expected = -scipy.special.log_softmax(logits, -1)[np.arange(4), labels]
    dense = one_hot(labels, 3).astype(np.float32)
    close(tg.nn.softmax_cross_entropy_with_logits(labels=dense, logits=logits), expected)
    close(tg.nn.softmax_cross_entropy_with_logits(dense.T, logits.T, axis=0), expected)
    close(tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), expected)
    for dtype in (np.int32, np.uint8):
        found = tg.nn.sparse_softmax_cross_entropy_with_logits(labels.astype(dtype), logits)
        close(found, expected)


def test_gradient_of_sparse_softmax_cross_entropy():
    logits, labels = sample(4, 3), np.array([0, 2, 1, 1])

    def loss(logits):
        return tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    (slope,) = gradients(loss, logits)
    close(slope, scipy.special.softmax(logits, -1) - one_hot(labels, 3))
    check_gradient(loss, logits.astype(np.float64), order=2)


def test_sparse_labels_may_have_more_axes_and_open_sizes():
    logits, labels = sample(2, 3, 4), np.array([[0, 1, 2], [3, 0, 1]])
    spec = [tg.TensorSpec([None, 3], tg.int64), tg.TensorSpec([None, 3, 4])]
    loss = tg.function(tg.nn.sparse_softmax_cross_entropy_with_logits, input_signature=spec)
    expected = -np.take_along_axis(scipy.special.log_softmax(logits, -1), labels[..., None], -1)
    close(loss(tg.constant(labels), tg.constant(logits)), expected[..., 0])


def test_label_out_of_range():
    logits = tg.zeros([2, 3])
    with pytest.raises(tg.errors.InvalidArgumentError, match="label 3"):
        tg.nn.sparse_softmax_cross_entropy_with_logits([0, 3], logits)
    loss = tg.function(tg.nn.sparse_softmax_cross_entropy_with_logits)
    found = loss(tg.constant([0, 3]), logits).numpy()
    assert np.isfinite(found[0]) and np.isnan(found[1])


@pytest.mark.parametrize(
    ("labels", "logits", "kind", "words"),
    [
        ([0.0, 1.0], [[0.0], [0.0]], TypeError, "integers"),
        ([0, 1], [[0.0]], ValueError, "do not fit"),
        ([[0]], [[0.0]], ValueError, "do not fit"),
    ],
)
def test_bad_labels_are_errors(labels, logits, kind, words):
    with pytest.raises(kind, match=words):
        tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def test_sigmoid_cross_entropy():
    x, z = 3 * sample(4, 3), RANDOM.uniform(size=(4, 3)).astype(np.float32)
    p = scipy.special.expit(x.astype(np.float64))
    close(
        tg.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
        -z * np.log(p) - (1 - z) * np.log1p(-p),
    )
    close(
        tg.nn.weighted_cross_entropy_with_logits(z, x, 2.0),
        -2 * z * np.log(p) - (1 - z) * np.log1p(-p),
    )
    (slope,) = gradients(lambda x: tg.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x), x)
    close(slope, p - z)
    (at_zero,) = gradients(
        lambda x: tg.nn.sigmoid_cross_entropy_with_logits([1.0], x), np.float32([0])
    )
    close(at_zero, [-0.5])
    far = tg.nn.sigmoid_cross_entropy_with_logits([1.0, 0.0], [-1e4, 1e4])
    close(far, [1e4, 1e4])


def test_l2_loss():
    close(tg.nn.l2_loss([3.0, 4.0]), 12.5)


# ---------------------------------------------------------------- convolutions


def convolved(x, y, strides, padding, dilations):
    """A convolution by its definition."""
    n, *spatial, _ = x.shape
    *window, _, outputs = y.shape
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
    if padding == "SAME":
        counts = [-(-s // step) for s, step in zip(spatial, strides, strict=True)]
        total = [
            max((c - 1) * step + r - s, 0)
            for c, step, r, s in zip(counts, strides, reach, spatial, strict=True)
        ]
        x = np.pad(x, [(0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)])
    elif padding != "VALID":
        x = np.pad(x, padding)
    counts = [(s - r) // step + 1 for s, r, step in zip(x.shape[1:-1], reach, strides, strict=True)]
    z = np.zeros((n, *counts, outputs), x.dtype)
    for place in itertools.product(*map(range, window)):
        part = x
        for axis, (k, d, c, step) in enumerate(
            zip(place, dilations, counts, strides, strict=True), 1
        ):
            part = np.take(part, k * d + step * np.arange(c), axis)
        z += part @ y[place]
    return z


CONVOLUTIONS = [
    ((1, 1), "VALID", (1, 1)),
    ((1, 1), "SAME", (1, 1)),
    ((2, 2), "SAME", (1, 1)),
    ((2, 1), "VALID", (1, 1)),
    ((1, 1), "SAME", (2, 2)),
    ((1, 1), "VALID", (1, 2)),
    ((2, 3), "SAME", (1, 1)),
]


@pytest.mark.parametrize(("strides", "padding", "dilations"), CONVOLUTIONS, ids=str)
def test_conv2d(strides, padding, dilations):
    x, y = sample(2, 7, 6, 3), sample(3, 2, 3, 4)
    found = tg.nn.conv2d(x, y, strides, padding, dilations=dilations)
    close(found, convolved(x, y, strides, padding, dilations), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("strides", "padding", "dilations"), CONVOLUTIONS, ids=str)
def test_gradients_of_conv2d(strides, padding, dilations):
    x, y = sample(1, 5, 6, 2, dtype=np.float64), sample(3, 2, 2, 2, dtype=np.float64)
    check_gradient(lambda x, y: tg.nn.conv2d(x, y, strides, padding, dilations=dilations), x, y)


def test_second_gradient_of_conv2d():
    x, y = sample(1, 4, 4, 1, dtype=np.float64), sample(2, 2, 1, 1, dtype=np.float64)
    check_gradient(lambda x, y: tg.sin(tg.nn.conv2d(x, y, 2, "SAME")), x, y, order=2)


def test_forms_of_strides_and_padding():
    x, y = sample(1, 6, 6, 1), sample(3, 3, 1, 1)
    expected = convolved(x, y, (2, 2), "VALID", (1, 1))
    for strides in (2, [2], [2, 2], [1, 2, 2, 1], (2, 2)):
        close(tg.nn.conv2d(x, y, strides, "valid"), expected, rtol=1e-4)
    pads = [[0, 0], [1, 2], [0, 1], [0, 0]]
    close(tg.nn.conv2d(x, y, 1, pads), convolved(x, y, (1, 1), pads, (1, 1)), rtol=1e-4, atol=1e-5)


def test_conv2d_with_open_sizes():
    spec = tg.TensorSpec([None, None, 6, 3])
    y = tg.constant(sample(3, 3, 3, 2))
    for stride in (1, 2):
        f = tg.function(lambda x, s=stride: tg.nn.conv2d(x, y, s, "SAME"), input_signature=[spec])
        for rows in (5, 6):
            x = sample(2, rows, 6, 3)
            expected = convolved(x, y.numpy(), (stride, stride), "SAME", (1, 1))
            close(f(tg.constant(x)), expected, rtol=1e-4, atol=1e-5)


def test_other_convolutions():
    x, y = sample(2, 7, 3), sample(2, 3, 4)
    close(tg.nn.conv1d(x, y, 2, "SAME"), convolved(x, y, (2,), "SAME", (1,)), rtol=1e-4, atol=1e-5)
    x, y = sample(1, 3, 4, 5, 2), sample(2, 2, 2, 2, 3)
    expected = convolved(x, y, (1, 1, 1), "VALID", (1, 1, 1))
    close(tg.nn.conv3d(x, y, 1, "VALID"), expected, rtol=1e-4, atol=1e-5)
    x, y = sample(2, 5, 5, 3), sample(2, 2, 3, 2)
    found = tg.nn.depthwise_conv2d(x, y, [1, 1, 1, 1], "VALID")
    parts = [
        convolved(x[..., c : c + 1], y[:, :, c : c + 1], (1, 1), "VALID", (1, 1)) for c in range(3)
    ]
    close(found, np.concatenate(parts, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "arguments", "words"),
    [
        ((1, 4, 4, 3), (2, 2, 2, 1), (1, "SAME"), "channels"),
        ((4, 4, 3), (2, 2, 3, 1), (1, "SAME"), "4 axes"),
        ((1, 4, 4, 1), (2, 2, 1, 1), (0, "SAME"), "strides"),
        ((1, 4, 4, 1), (2, 2, 1, 1), (1, "FULL"), "padding"),
        ((1, 2, 2, 1), (4, 4, 1, 1), (1, "VALID"), "window"),
    ],
)
def test_bad_convolutions_are_errors(x, y, arguments, words):
    with pytest.raises(tg.errors.ShapeError, match=words) as error:
        tg.nn.conv2d(tg.ones(x), tg.ones(y), *arguments)
    assert "test_nn.py" in str(error.value)


# ---------------------------------------------------------------- pooling


def pooled(x, size, stride, padding, function, fill):
    n, h, w, c = x.shape
    if padding == "SAME":
        counts = [-(-s // stride) for s in (h, w)]
        total = [max((k - 1) * stride + size - s, 0) for k, s in zip(counts, (h, w), strict=True)]
        x = np.pad(
            x, [(0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)], constant_values=fill
        )
    counts = [(s - size) // stride + 1 for s in x.shape[1:-1]]
    z = np.empty((n, *counts, c), x.dtype)
    for i, j in itertools.product(*map(range, counts)):
        part = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
        z[:, i, j] = function(part, axis=(1, 2))
    return z


POOLS = [(2, 2), (2, 1), (3, 2), (3, 3), (1, 2), (3, 1)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("size", "stride"), POOLS)
def test_pooling(size, stride, padding):
    x = sample(2, 7, 6, 3)
    close(
        tg.nn.max_pool2d(x, size, stride, padding),
        pooled(x, size, stride, padding, np.max, -np.inf),
    )
    mean = pooled(x, size, stride, padding, np.nanmean, np.nan)
    close(tg.nn.avg_pool2d(x, size, stride, padding), mean)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("size", "stride"), POOLS)
def test_gradients_of_pooling(size, stride, padding):
    x = sample(1, 5, 6, 2, dtype=np.float64)
    check_gradient(lambda x: tg.nn.max_pool2d(x, size, stride, padding), x)
    check_gradient(lambda x: tg.nn.avg_pool2d(x, size, stride, padding), x)


@pytest.mark.parametrize("size", [2, 3])
def test_the_first_of_equal_elements_has_the_derivative(size):
    x = np.zeros((1, size, size, 1), np.float32)
    (slope,) = gradients(lambda x: tg.nn.max_pool2d(x, size, size, "VALID"), x)
    assert slope.numpy().ravel().tolist() == [1] + [0] * (size * size - 1)
    x[0, 0, 1] = x[0, 1, 0] = 1
    (slope,) = gradients(lambda x: tg.nn.max_pool2d(x, size, size, "VALID"), x)
    assert np.flatnonzero(slope.numpy()).tolist() == [1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [lambda f: f, tg.function], ids=["top level", "function"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 1)])
def test_windows_that_hold_nan_have_the_derivative_nan(size, stride, mode):
    x = sample(1, 5, 5, 1)
    x[0, 0, 1] = np.nan
    x[0, 3, 4] = -np.inf

    def maxima(x):
        places = [slice(i, i + size) for i in range(0, 6 - size, stride)]
        return jnp.stack([jnp.max(x[:, rows, columns]) for rows in places for columns in places])

    expected = np.asarray(jax.grad(lambda x: jnp.sum(maxima(x)))(x))
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    pool = mode(lambda x: tg.nn.max_pool2d(x, size, stride, "VALID"))
    (found,) = gradients(pool, x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.ravel(pool(x)), maxima(x))
    np.testing.assert_array_equal(
        tg.jvp(pool, (x,), (np.ones_like(x),))[1].numpy().ravel()[0], np.nan
    )


def test_pooling_of_other_ranks_dtypes_and_open_sizes():
    x = sample(2, 6, 3)
    close(tg.nn.max_pool(x, 2, 2, "VALID"), x.reshape(2, 3, 2, 3).max(2))
    y = sample(1, 4, 4, 4, 1)
    close(tg.nn.avg_pool(y, 2, 2, "VALID"), y.reshape(1, 2, 2, 2, 2, 2, 2, 1).mean((2, 4, 6)))
    z = np.arange(16, dtype=np.int32).reshape(1, 4, 4, 1)
    close(tg.nn.max_pool2d(z, 3, 1, "SAME"), pooled(z, 3, 1, "SAME", np.max, -99))
    spec = tg.TensorSpec([None, None, 6, 3])
    f = tg.function(lambda x: tg.nn.max_pool2d(x, 2, 2, "SAME"), input_signature=[spec])
    for rows in (4, 5):
        x = sample(1, rows, 6, 3)
        close(f(tg.constant(x)), pooled(x, 2, 2, "SAME", np.max, -np.inf))


def test_window_larger_than_the_image_is_an_error():
    with pytest.raises(tg.errors.ShapeError, match="window"):
        tg.nn.max_pool2d(tg.ones([1, 2, 2, 1]), 3, 1, "VALID")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tg.nn.conv1d(x, tg.ones([2, 3, 4]), 1, "VALID"),
        lambda x: tg.nn.max_pool1d(x, 2, 1, "VALID"),
    ],
)
def test_a_window_over_an_empty_axis_is_an_error_that_says_so(call):
    fact = r"f32\[1,0,3\] has an empty axis, where the window \[2\] has no place"
    with pytest.raises(tg.errors.ShapeError, match=fact):
        call(tg.ones([1, 0, 3]))


# ---------------------------------------------------------------- normalisation and the rest


def test_moments():
    x = sample(4, 3, 2)
    for keepdims in (False, True):
        mean, variance = tg.nn.moments(x, [0, 2], keepdims=keepdims)
        close(mean, x.mean((0, 2), keepdims=keepdims))
        close(variance, x.var((0, 2), keepdims=keepdims))


def test_batch_normalization():
    x, mean, offset, scale = sample(5, 3), sample(3), sample(3), sample(3)
    variance = abs(sample(3)) + 0.5
    expected = (x - mean) / np.sqrt(variance + 1e-3) * scale + offset
    close(tg.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3), expected)
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    close(tg.nn.batch_normalization(x, mean, variance, None, None, 1e-3), expected, atol=1e-5)


def test_l2_normalize_and_bias_add():
    x = sample(4, 3)
    close(tg.nn.l2_normalize(x, -1), x / np.linalg.norm(x, axis=-1, keepdims=True))
    close(tg.nn.l2_normalize(np.zeros(3, np.float32)), np.zeros(3))
    close(tg.nn.bias_add(x, x[0]), x + x[0])
    close(tg.nn.bias_add(x[..., None], x[0], "NCW"), (x + x[0])[..., None])
    with pytest.raises(ValueError, match="channel"):
        tg.nn.bias_add(x, [1.0])


def test_embedding_lookup():
    table = sample(5, 3)
    close(tg.nn.embedding_lookup(table, [[0, 4], [1, 1]]), table[[[0, 4], [1, 1]]])
    clipped = tg.nn.embedding_lookup(table, [0, 4], max_norm=0.1).numpy()
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=-1), 0.1, rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5, 15])
def test_embedding_lookup_of_shards(run, count, max_norm):
    """The first shards have one row more, as TensorFlow's "div" has it: here 13 rows."""
    table, ids = sample(13, 2), np.array([[0, 12, 2], [3, 8, 9]])
    shards = [tg.Variable(part) for part in np.array_split(table, count)]

    def slopes(ids):
        with tg.GradientTape(persistent=True) as tape:
            rows = tg.nn.embedding_lookup(shards, ids, max_norm)
            loss = tg.reduce_sum(rows**3)
        return rows, tape.gradient(loss, shards)

    def whole(table):
        rows = table[ids]
        if max_norm is not None:
            norms = jnp.linalg.norm(rows, axis=-1, keepdims=True)
            rows = rows * max_norm / jnp.maximum(norms, max_norm)
        return rows

    rows, found = run(slopes, ids)
    close(rows, jax.jit(whole)(jnp.asarray(table)), rtol=1e-5)
    expected = jax.jit(jax.grad(lambda table: (whole(table) ** 3).sum()))(jnp.asarray(table))
    parts = [part for part in found if part is not None]  # two of 15 have no row
    close(tg.concat(parts, 0), expected, rtol=1e-4, atol=1e-5)


def test_shards_that_do_not_fit():
    table = sample(8, 2)
    with pytest.raises(ValueError, match=r"\[2, 6\] rows, and 8 rows are divided into \[4, 4\]"):
        tg.nn.embedding_lookup([table[:2], table[2:]], [0])
    with pytest.raises(ValueError, match="rows of one shape"):
        tg.nn.embedding_lookup([table, table[:, :1]], [0])
    with pytest.raises(ValueError, match="no tensors"):
        tg.nn.embedding_lookup([], [0])
    with pytest.raises(tg.errors.InvalidArgumentError, match=r"index 8 .* the size 8"):
        tg.nn.embedding_lookup([table[:4], table[4:]], [8])


def test_dropout():
    tg.random.set_seed(3)
    x = tg.ones([200, 50])
    y = tg.nn.dropout(x, 0.25).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert (tg.nn.dropout(x, 0.25).numpy() != y).any()
    assert tg.nn.dropout(x, 0.0) is x
    rows = tg.nn.dropout(x, 0.5, noise_shape=[200, 1]).numpy()
    assert (rows == rows[:, :1]).all()
    with pytest.raises(ValueError, match="rate"):
        tg.nn.dropout(x, 1.0)


def test_a_rate_of_dropout_is_one_number():
    x = tg.ones([2])
    for rate in ([0.0, 0.5], np.array([0.5]), tg.constant([0.5, 0.5])):
        with pytest.raises(tg.errors.ShapeError, match=r"dropout: rate is f(32|64)\["):
            tg.nn.dropout(x, rate)
    assert tg.nn.dropout(x, tg.constant(0.0)).numpy().tolist() == [1.0, 1.0]


def test_dropout_in_a_function_is_fresh_at_every_call():
    drop = tg.function(lambda x: tg.nn.dropout(x, 0.5))
    x = tg.ones([100])
    assert (drop(x).numpy() != drop(x).numpy()).any()


def test_gradient_of_dropout_is_its_mask():
    (slope,) = gradients(lambda x: tg.nn.dropout(x, 0.5), np.ones(100, np.float32))
    assert set(np.unique(slope.numpy())) == {0, 2}


def test_adjust_contrast():
    image = sample(2, 4, 5, 3)
    mean = image.mean((1, 2), keepdims=True)
    close(tg.image.adjust_contrast(image, 2.0), (image - mean) * 2 + mean)
    with pytest.raises(ValueError, match="image"):
        tg.image.adjust_contrast(tg.ones([2, 2]), 2.0)


def test_gradients_of_a_convolution_of_nothing():
    kernel = tg.Variable(tg.ones([3, 1, 1]))
    with tg.GradientTape() as tape:
        y = tg.nn.conv1d(tg.zeros([2, 0, 1]), kernel, 2, "SAME")
    assert y.shape == (2, 0, 1)
    assert tape.gradient(y, kernel).numpy().tolist() == [[[0.0]], [[0.0]], [[0.0]]]


def test_moments_of_elements_that_count_nothing():
    x = tg.constant([[1.0, 2.0], [3.0, 5.0]])
    mean, variance = tg.nn.weighted_moments(x, [1], [[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_array_equal(mean, [0, 4])
    np.testing.assert_array_equal(variance, [0, 1])
