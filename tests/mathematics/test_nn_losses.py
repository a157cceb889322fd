"""Losses and regressions of tg.nn against plain definitions: enumeration, SciPy, JAX."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(8)


def sample(*shape, dtype=np.float64):
    return RANDOM.normal(size=shape).astype(dtype)


def close(found, expected, tolerance=1e-10):
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- cross entropies


def test_losses_of_nearly_sure_predictions_keep_their_digits():
    far = np.float32([8.0, 17.0, 60.0])
    logits = np.stack([far, 0 * far - 1], axis=-1)
    with mpmath.workdps(50):
        others = [mpmath.exp(-1 - mpmath.mpf(float(x))) for x in far]
        wanted = [float(mpmath.log1p(q)) for q in others]
        slopes = [float(-q / (1 + q)) for q in others]
        bends = [float(q / (1 + q) ** 2) for q in others]

    def dense(x):
        return tg.nn.softmax_cross_entropy_with_logits(tg.one_hot([0, 0, 0], 2), x)

    def sparse(x):
        return tg.nn.sparse_softmax_cross_entropy_with_logits([0, 0, 0], x)

    def of_sigmoid(x):
        return tg.nn.sigmoid_cross_entropy_with_logits([1.0, 1.0, 1.0], x[:, 0] - x[:, 1])

    @tg.function
    def derivatives(x):
        along = tg.constant([[1.0, 0.0]] * 3)
        found = [dense(x), sparse(x), of_sigmoid(x)]
        for loss in (sparse, of_sigmoid, dense):
            first = tg.grad(lambda x, loss=loss: tg.reduce_sum(loss(x)))
            found += [tg.transpose(y)[0] for y in tg.jvp(first, (x,), (along,))]
        return found

    found = derivatives(logits)
    expected = [wanted] * 3 + [slopes, bends] * 3
    for own, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(own.numpy(), exact, rtol=1e-5)


@pytest.mark.parametrize("row", [[0.0, 30.0, 2.0], [5.0, 5.0, -30.0], [4.0, 4.0, 4.0]])
def test_derivatives_of_log_softmax_keep_their_digits(row):
    """The one largest logit, two that share its place, and none that stands out."""
    row = np.float32(row)
    with mpmath.workdps(50):
        powers = [mpmath.exp(mpmath.mpf(float(x))) for x in row]
        shares = [p / sum(powers) for p in powers]
        others = [sum(p for p in powers if p is not own) / sum(powers) for own in powers]
        n = range(3)
        slopes = [[float(others[i] if i == k else -shares[k]) for k in n] for i in n]
        bends = [[float(shares[i] * (-others[i] if i == k else shares[k])) for k in n] for i in n]

    @tg.function
    def derivatives(x):
        first = tg.jacobian(tg.nn.log_softmax)(x)
        return first, tg.hessian(lambda x: tg.nn.log_softmax(x)[1])(x)

    for found, expected in zip(derivatives(row), (slopes, bends), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-6)


@pytest.mark.parametrize("dtype", [tg.float16, tg.bfloat16, tg.float32], ids=lambda x: x.name)
def test_derivatives_of_softmax_of_many_classes_keep_their_digits(dtype):
    """No class stands out, and cotangents have one sign: their sum is hundreds of times larger."""
    x = tg.cast(RANDOM.uniform(0.0, 0.2, 6000), dtype)
    g = tg.cast(RANDOM.uniform(0.03, 0.1, 6000), dtype)
    xs, gs = x.numpy().astype(np.float64), g.numpy().astype(np.float64)
    p = scipy.special.softmax(xs)

    @tg.function
    def derivatives(x, g):
        fns = (tg.nn.softmax, tg.nn.log_softmax, tg.reduce_logsumexp)
        return [tg.vjp(f, x)[1](along)[0] for f, along in zip(fns, (g, g, g[0]), strict=True)]

    expected = p * (gs - p @ gs), gs - p * gs.sum(), p * gs[0]
    digits = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}[dtype.name]
    step = 6e-8 if dtype is tg.float16 else 0.0  # of denormal numbers
    for found, exact in zip(derivatives(x, g), expected, strict=True):
        found, size = tg.cast(found, tg.float64).numpy(), np.abs(exact).max()
        np.testing.assert_allclose(found, exact, rtol=0, atol=digits * size + step)


def test_float16_has_cross_entropies_of_more_classes_than_its_largest_number():
    count = 70_000
    x = tg.zeros([1, count], tg.float16)
    losses = {
        "logsumexp": tg.reduce_logsumexp(x, 1),
        "log_softmax": -tg.nn.log_softmax(x)[:, 0],
        "dense": tg.nn.softmax_cross_entropy_with_logits(tg.one_hot([3], count), x),
        "sparse": tg.nn.sparse_softmax_cross_entropy_with_logits([3], x),
    }
    for name, loss in losses.items():
        assert loss.numpy() == np.float16(np.log(count)), name
    assert tg.nn.softmax(x)[0, 0].numpy() == np.float16(1 / count)


def test_infinite_logits_that_are_right_have_no_loss():
    logits = tg.constant([[1.0, 2.0, -np.inf]])
    loss, slope = tg.value_and_grad(
        lambda x: tg.reduce_sum(tg.nn.softmax_cross_entropy_with_logits([[0.0, 1.0, 0.0]], x))
    )(logits)
    assert loss.numpy() == pytest.approx(np.log1p(np.exp(-1.0)))
    other = scipy.special.expit(-1.0)
    np.testing.assert_allclose(slope.numpy(), [[other, -other, 0.0]], rtol=1e-6)
    rows = tg.constant([[-np.inf, 2.0, -np.inf], [np.inf, 2.0, 1.0]])
    loss, slope = tg.value_and_grad(
        lambda x: tg.reduce_sum(tg.nn.sparse_softmax_cross_entropy_with_logits([1, 0], x))
    )(rows)
    assert loss.numpy() == 0.0
    np.testing.assert_array_equal(slope.numpy(), np.zeros([2, 3]))
    found = tg.nn.sigmoid_cross_entropy_with_logits([1.0, 0.0, 0.0], [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(found.numpy(), [0.0, 0.0, np.nan])


# ---------------------------------------------------------------- alignments


def ctc_by_enumeration(logits, labels, blank):
    """-log of the sum over all alignments, of logits[frames, classes]; for JAX too."""
    chances = jax.nn.log_softmax(logits)
    paths = [
        path
        for path in itertools.product(range(logits.shape[-1]), repeat=len(logits))
        if [k for k, _ in itertools.groupby(path) if k != blank] == list(labels)
    ]
    if not paths:
        return np.inf
    return -jax.nn.logsumexp(chances[np.arange(len(logits)), np.array(paths)].sum(1))


ROWS = [([1, 2, 2], 3, 6), ([2, 0, 0], 1, 4), ([1, -1, -1], 1, 1), ([0, 0, 0], 0, 3)]


COUNTS, FRAMES = ([row[k] for row in ROWS] for k in (1, 2))
LOGITS = sample(6, len(ROWS), 4)


def labels_of(blank):
    shift = 0 if blank == 0 else 1  # the last class is the blank, so labels are below
    return np.array([row for row, _, _ in ROWS]) - shift


@functools.cache
def by_enumeration(blank):
    """The losses of LOGITS, and the gradient of the sum of their squares."""
    labels = labels_of(blank)

    def losses(x):
        own = range(len(ROWS))
        parts = [(x[: FRAMES[k], k], labels[k, : COUNTS[k]], blank % 4) for k in own]
        return jnp.stack([ctc_by_enumeration(*part) for part in parts])

    with jax.enable_x64(True):
        both = jax.jit(lambda x: (losses(x), jax.grad(lambda x: jnp.sum(losses(x) ** 2))(x)))
        return both(LOGITS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("blank", [0, 3, -1])
@pytest.mark.parametrize("time_major", [True, False])
def test_ctc_loss_is_the_sum_over_all_alignments(run, blank, time_major):
    labels = labels_of(blank)

    def loss(x):
        x = x if time_major else tg.transpose(x, [1, 0, 2])
        return tg.nn.ctc_loss(
            labels, x, COUNTS, FRAMES, logits_time_major=time_major, blank_index=blank
        )

    values, slopes = by_enumeration(blank)
    close(run(loss, tg.constant(LOGITS)), values)
    found = run(tg.grad(lambda x: tg.reduce_sum(loss(x) ** 2)), tg.constant(LOGITS))
    close(found, slopes)


@pytest.mark.sweep
def test_second_derivatives_of_ctc_loss():
    logits = sample(3, 1, 3)

    def loss(x):
        return tg.reduce_sum(tg.nn.ctc_loss([[1]], x, [1], [3]))

    def expected(x):
        return ctc_by_enumeration(x[:, 0], [1], 0)

    with jax.enable_x64(True):
        wanted = jax.jit(jax.hessian(expected))(jnp.asarray(logits))
    close(tg.function(tg.hessian(loss))(tg.constant(logits)), wanted)


def test_too_few_frames_for_the_labels():
    logits = tg.Variable(sample(2, 1, 3))
    with tg.GradientTape() as tape:
        loss = tg.nn.ctc_loss([[1, 1]], logits, [2], [2])
    assert loss.numpy() == [np.inf]
    np.testing.assert_array_equal(tape.gradient(loss, logits).numpy(), 0)


# ---------------------------------------------------------------- samples of classes

TABLE, OFFSETS = sample(9, 4), sample(9)
LABELS = np.array([[1, 5], [0, 2], [8, 3]])
INPUTS = sample(3, 4)
DRAWN = (np.array([5, 7, 0]), np.full((3, 2), 0.3), np.array([0.2, 0.5, 0.9]))


def logits_of_sample(removes_hits):
    own = np.einsum("bd,btd->bt", INPUTS, TABLE[LABELS]) + OFFSETS[LABELS] - np.log(DRAWN[1])
    others = INPUTS @ TABLE[DRAWN[0]].T + OFFSETS[DRAWN[0]] - np.log(DRAWN[2])
    if removes_hits:
        others[0, 0] = others[1, 2] = -np.inf
    return np.concatenate([own, others], 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("removes_hits", [True, False])
def test_losses_of_a_sample(removes_hits):
    arguments = (TABLE, OFFSETS, LABELS, INPUTS, 3, 9, 2, DRAWN, removes_hits)
    logits = logits_of_sample(removes_hits)
    chances = scipy.special.log_softmax(logits, -1)
    close(tg.nn.sampled_softmax_loss(*arguments), -chances[:, :2].mean(1))
    own, others = np.logaddexp(logits, 0)[:, :2], np.logaddexp(logits, 0)[:, 2:]
    expected = (own - logits[:, :2] / 2).sum(1) + others.sum(1)
    close(tg.nn.nce_loss(*arguments), expected)
    shards = [TABLE[:5], TABLE[5:]]
    found = tg.nn.nce_loss(shards, OFFSETS, *arguments[2:])
    close(found, expected)


def test_gradients_of_losses_of_a_sample_are_finite():
    table = tg.Variable(TABLE)
    with tg.GradientTape() as tape:
        loss = tg.nn.sampled_softmax_loss(table, OFFSETS, LABELS, INPUTS, 5, 9, 2, seed=3)
    assert loss.shape == (3,)
    assert np.isfinite(tape.gradient(loss, table).numpy()).all()


def log_uniform(count):
    k = np.arange(count)
    return np.log((k + 2) / (k + 1)) / np.log(count + 1)


SAMPLERS = {
    "uniform_candidate_sampler": lambda count: np.full(count, 1 / count),
    "log_uniform_candidate_sampler": log_uniform,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_candidates_have_their_probabilities(name):
    chances = SAMPLERS[name](8)
    sampler = getattr(tg.random, name)
    tg.random.set_seed(1)
    drawn = sampler([[0, 7]], 2, 20_000, unique=False, range_max=8)
    counts = np.bincount(drawn.sampled_candidates.numpy(), minlength=8)
    assert scipy.stats.chisquare(counts, 20_000 * chances).pvalue > 1e-3
    close(drawn.true_expected_count, 20_000 * chances[[[0, 7]]], 1e-6)
    close(drawn.sampled_expected_count, 20_000 * chances[drawn.sampled_candidates.numpy()], 1e-6)


def different_by_rejection(rng, chances, count):
    found, tries = [], 0
    while len(found) < count:
        k = rng.choice(len(chances), p=chances)
        tries += 1
        found += [k] if k not in found else []
    return found, tries


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SAMPLERS)
def test_different_candidates_are_drawn_as_if_one_by_one(name):
    """How often each class is among them, and the tries, from which the expected counts follow."""
    chances, rounds, rng = SAMPLERS[name](6), 2000, np.random.default_rng(0)
    sampler = getattr(tg.random, name)
    tg.random.set_seed(2)
    draw = tg.function(lambda: sampler([[5]], 1, 4, unique=True, range_max=6))
    ours = [draw() for _ in range(rounds)]
    theirs = [different_by_rejection(rng, chances, 4) for _ in range(rounds)]
    assert all(len(set(x.sampled_candidates.numpy().tolist())) == 4 for x in ours)
    counts = np.bincount(np.concatenate([x.sampled_candidates.numpy() for x in ours]))
    wanted = np.bincount(np.concatenate([found for found, _ in theirs]))
    np.testing.assert_allclose(counts / rounds, wanted / rounds, atol=0.06)
    expected = [1 - (1 - chances[5]) ** tries for _, tries in theirs]
    found = [x.true_expected_count.numpy().item() for x in ours]
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=0.03)
    assert np.std(found) == pytest.approx(np.std(expected), rel=0.15)


# ---------------------------------------------------------------- the rest


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [1, 2, 7, 20])
@pytest.mark.parametrize("decreasing", [True, False])
def test_isotonic_regression(size, decreasing):
    x = sample(3, size)
    found = tg.nn.isotonic_regression(x, decreasing)
    wanted = [scipy.optimize.isotonic_regression(row, increasing=not decreasing) for row in x]
    close(found.output, [row.x for row in wanted])
    blocks = [np.repeat(np.arange(len(b.blocks) - 1), np.diff(b.blocks)) for b in wanted]
    np.testing.assert_array_equal(found.segments.numpy(), blocks)
    assert found.segments.dtype == tg.int32
    turned = tg.nn.isotonic_regression(x.T, decreasing, axis=0)
    close(turned.output, found.output.numpy().T)


def test_derivatives_of_isotonic_regression_are_means_of_segments():
    x = tg.constant([3.0, 1.0, 2.0, 0.0], tg.float64)
    matrix = tg.jacobian(lambda x: tg.nn.isotonic_regression(x).output)(x)
    close(matrix, scipy.linalg.block_diag(1, np.full((2, 2), 0.5), 1))
    assert tg.nn.isotonic_regression([2, 1]).output.dtype == tg.float64
    assert tg.nn.isotonic_regression(tg.constant([2, 1], tg.int16)).output.dtype == tg.float32


def test_segments_of_isotonic_regression_with_equal_values_are_as_short_as_can_be():
    found = tg.nn.isotonic_regression([[1.0, 3.0, 2.0], [2.0, 2.0, 2.0]])
    close(found.output, np.full((2, 3), 2.0))
    np.testing.assert_array_equal(found.segments.numpy(), [[0, 0, 1], [0, 1, 2]])
    assert tg.nn.isotonic_regression(tg.zeros([2, 0])).segments.shape == [2, 0]


def test_log_poisson_loss():
    t, x = np.array([0.0, 0.5, 1.0, 2.0, 7.0]), sample(5)
    close(tg.nn.log_poisson_loss(t, x), np.exp(x) - t * x)
    stirling = scipy.special.xlogy(t, t) - t + 0.5 * np.log(2 * np.pi * np.maximum(t, 0.1))
    full = np.exp(x) - t * x + np.where(t > 1, stirling, 0)
    close(tg.nn.log_poisson_loss(t, x, compute_full_loss=True), full)
    slope = tg.grad(lambda t: tg.reduce_sum(tg.nn.log_poisson_loss(t, x, True)))(tg.constant(t))
    close(slope, -x + np.where(t > 1, np.log(np.maximum(t, 0.1)) + 0.5 / np.maximum(t, 0.1), 0))


def test_average_losses():
    losses = sample(4, 3)
    close(tg.nn.compute_average_loss(losses), losses.sum() / 4)
    weights = np.array([1.0, 0.0, 2.0, 0.5])
    found = tg.nn.compute_average_loss(losses, weights, global_batch_size=8)
    close(found, (losses * weights[:, None]).sum() / 8)
    close(tg.nn.scale_regularization_loss(losses), losses.sum())


def test_weighted_moments_and_statistics():
    x, weights = sample(4, 3, 2), RANDOM.integers(1, 5, (4, 3, 1)).astype(float)
    whole = np.broadcast_to(weights, x.shape)
    mean = np.average(x, (0, 2), whole)
    variance = np.average((x - mean[:, None]) ** 2, (0, 2), whole)
    for keepdims in (False, True):
        found = tg.nn.weighted_moments(x, [0, 2], weights, keepdims)
        for y, wanted in zip(found, (mean, variance), strict=True):
            close(y, wanted[None, :, None] if keepdims else wanted)
    statistics = tg.nn.sufficient_statistics(x, [0, 2], shift=0.5)
    assert statistics[0].numpy() == 8
    found = tg.nn.normalize_moments(*statistics)
    close(found[0], x.mean((0, 2)))
    close(found[1], x.var((0, 2)))


@pytest.mark.parametrize("radius", [0, 1, 2, 9])
def test_local_response_normalization(radius):
    x = sample(2, 3, 2, 5)
    total = np.stack(
        [(x[..., max(k - radius, 0) : k + radius + 1] ** 2).sum(-1) for k in range(5)], -1
    )
    close(
        tg.nn.local_response_normalization(x, radius, 1.5, 0.7, 0.8), x / (1.5 + 0.7 * total) ** 0.8
    )
    assert tg.nn.lrn is tg.nn.local_response_normalization


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("strides", "dilations"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilation_and_erosion(strides, dilations, padding):
    x, y = sample(2, 6, 5, 3), sample(2, 3, 3)

    def by_pools(x, y):
        """Of a filter that is one number, and -inf elsewhere, the maximum is a moved image."""
        parts = []
        for a, b in np.ndindex(2, 3):
            kernel = np.zeros((2, 3, 1, 3))
            kernel[a, b] = 1
            with jax.enable_x64(True):
                moved = jax.lax.conv_general_dilated(
                    np.where(np.isfinite(x), x, 0) + 100,  # what is padded stays 0
                    kernel,
                    [strides] * 2,
                    padding,
                    rhs_dilation=[dilations] * 2,
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                    feature_group_count=3,
                )
            moved = np.asarray(moved)
            parts.append(np.where(moved == 0, -np.inf, moved - 100) + y[a, b])
        return np.max(parts, 0)

    arguments = (strides, padding, "NHWC", dilations)
    close(tg.nn.dilation2d(x, y, *arguments), by_pools(x, y))
    close(tg.nn.erosion2d(x, y, *arguments), -by_pools(-x, y[::-1, ::-1]))


def test_stateless_dropout(run):
    x = tg.ones([200, 50])

    def drop(x):
        return tg.nn.experimental.stateless_dropout(x, 0.25, [1, 2], noise_shape=[None, 1])

    y = run(drop, x).numpy()
    np.testing.assert_array_equal(y, drop(x).numpy())
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (y == y[:, :1]).all()
    other = tg.nn.experimental.stateless_dropout(x, 0.25, [1, 3])
    assert (other.numpy() != y).any()
    drawn = tg.nn.experimental.general_dropout(x, 0.5, tg.random.uniform)
    assert set(np.unique(drawn)) == {0, 2}


PICTURE = tg.ones([1, 2, 2, 3])


def test_l2_normalize_of_complex_numbers():
    z = sample(3, 4) + 1j * sample(3, 4)
    close(tg.nn.l2_normalize(z, 1), z / np.linalg.norm(z, axis=1, keepdims=True))
    close(tg.nn.l2_normalize(z), z / np.linalg.norm(z))


def test_softmax_of_the_last_axis_by_default():
    x = sample(2, 3)
    close(tg.nn.softmax(x, None), scipy.special.softmax(x, -1))
    close(tg.nn.log_softmax(x, None), scipy.special.log_softmax(x, -1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.nn.ctc_loss([1], tg.ones([2, 1, 3]), [1], [2]), "labels i32"),
        (lambda: tg.nn.ctc_loss([[1]], tg.ones([1, 2, 3]), [1], [2]), "as many examples"),
        (lambda: tg.nn.ctc_loss([[1]], tg.ones([2, 1, 3]), [1], [2], blank_index=3), "3 classes"),
        (lambda: tg.nn.ctc_loss([[1.0]], tg.ones([2, 1, 3]), [1], [2]), "must be integers"),
        (lambda: tg.nn.isotonic_regression([True, False]), "no order"),
        (lambda: tg.nn.isotonic_regression([1.0], axis=1), "axis 1"),
        (lambda: tg.nn.log_poisson_loss([1.0], [1.0, 2.0]), "shape of log_input"),
        (lambda: tg.nn.compute_average_loss([1.0], [[1.0]]), "the weights"),
        (lambda: tg.nn.compute_average_loss(tg.constant(2.0)), r"the losses are f32\[\]"),
        (lambda: tg.nn.compute_average_loss([1.0], None, -2), "global_batch_size is -2"),
        (lambda: tg.nn.lrn(tg.ones([3])), "not floating images"),
        (lambda: tg.nn.lrn(tg.ones([1, 1, 1, 1]), -1), "depth_radius is -1"),
        (
            lambda: tg.nn.dilation2d(
                tg.ones([1, 2, 2, 3]), tg.ones([1, 1, 2]), 1, "SAME", "NHWC", 1
            ),
            "do not have the channels",
        ),
        (
            lambda: tg.nn.erosion2d(PICTURE, tg.ones([1, 1]), 1, "SAME", "NHWC", 1),
            "the filters",
        ),
        (
            lambda: tg.random.uniform_candidate_sampler([[0]], 1, 4, True, 3),
            "4 different candidates of 3",
        ),
        (lambda: tg.random.uniform_candidate_sampler([0], 1, 4, False, 3), "num_true of 1"),
        (
            lambda: tg.random.log_uniform_candidate_sampler([[0, 10]], 2, 4, False, 3),
            "index 10 is out of range for the size 3",
        ),
        (lambda: tg.nn.nce_loss(TABLE, OFFSETS, LABELS, INPUTS, 3, 9), "num_true of 1"),
        (lambda: tg.nn.experimental.stateless_dropout([1.0], 0.5, [1]), "the seed is"),
        (lambda: tg.nn.experimental.stateless_dropout([1.0], 1.5, [1, 2]), "rate is 1.5"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises((ValueError, TypeError), match=words) as error:
        call()
    assert "test_nn_losses.py" in str(error.value)
    assert "fix: " in str(error.value)


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("first", [False, True])
def test_depth_and_space(first):
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    expected = x.reshape(2, 2, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 2, 3, 12)
    turn = (lambda x: np.moveaxis(x, -1, 1)) if first else np.asarray
    name = "NCHW" if first else "NHWC"
    close(tg.nn.space_to_depth(turn(x), 2, name), turn(expected))
    close(tg.nn.depth_to_space(turn(expected), 2, name), turn(x))


def test_space_and_batch():
    x = np.arange(2 * 3 * 5 * 2).reshape(2, 3, 5, 2)
    pads = [[1, 0], [0, 1]]
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    expected = np.concatenate([padded[:, a::2, b::3] for a in range(2) for b in range(3)])
    found = tg.space_to_batch(x, [2, 3], pads)
    close(found, expected)
    close(tg.batch_to_space(found, [2, 3], pads), x)
    close(tg.space_to_batch_nd(x, [3], [[0, 0]]), np.concatenate([x[:, k::3] for k in range(3)]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.nn.space_to_depth(tg.ones([1, 3, 4, 1]), 2), "2 does not divide 3"),
        (lambda: tg.nn.depth_to_space(tg.ones([1, 3, 4, 2]), 2), "4 does not divide 2"),
        (lambda: tg.nn.depth_to_space(tg.ones([3, 4, 2]), 2), "4 axes"),
        (lambda: tg.nn.space_to_depth(tg.ones([1, 2, 2, 1]), 0), "block_size is 0"),
        (lambda: tg.space_to_batch(tg.ones([1, 3]), [2], [[0, 0]]), "2 does not divide 3"),
        (lambda: tg.space_to_batch(tg.ones([1, 3]), [3], [[0, 0], [0, 0]]), "2 rows"),
        (lambda: tg.space_to_batch(tg.ones([1, 3]), [3, 1], [[0, 0], [0, 0]]), "2 sizes"),
        (lambda: tg.batch_to_space(tg.ones([3, 3]), [2], [[0, 0]]), "2 does not divide 3"),
        (lambda: tg.batch_to_space(tg.ones([2, 3]), [2], [[4, 3]]), "crops"),
        (lambda: tg.batch_to_space(tg.ones([2, 3]), [-2], [[0, 0]]), "block_shape is"),
    ],
)
def test_blocks_that_do_not_fit(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "fix: " in str(error.value)


# ---------------------------------------------------------------- normalised images


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_fused_batch_norm(run, first, factor):
    x, given = sample(2, 3, 4, 5), RANDOM.uniform(1, 2, (4, 5))
    turn = (lambda x: np.moveaxis(x, -1, 1)) if first else np.asarray
    name = "NCHW" if first else "NHWC"

    def normalise(x, is_training):
        scale, offset, mean, variance = given
        return tg.nn.fused_batch_norm(
            x, scale, offset, mean, variance, 0.01, name, is_training, None, factor
        )

    own = (x.mean((0, 1, 2)), x.var((0, 1, 2)))
    estimates = (own[0], x.var((0, 1, 2), ddof=1))
    kept = [
        (1 - factor) * old + factor * new for old, new in zip(given[2:], estimates, strict=True)
    ]
    for is_training, used, ends in ((True, own, kept), (False, given[2:], given[2:])):
        found = run(lambda x, t=is_training: normalise(x, t), tg.constant(turn(x)))
        wanted = (x - used[0]) / np.sqrt(used[1] + 0.01) * given[0] + given[1]
        close(found[0], turn(wanted))
        for one, other in zip(found[1:], ends, strict=True):
            close(one, other)


def test_fused_batch_norm_refuses():
    with pytest.raises(ValueError, match="mean and variance are not given"):
        tg.nn.fused_batch_norm(PICTURE, [1.0] * 3, [0.0] * 3, is_training=False)
    with pytest.raises(ValueError, match="the operand is"):
        tg.nn.fused_batch_norm([[1.0]], [1.0], [0.0])
    with pytest.raises(ValueError, match="NHWC"):
        tg.nn.fused_batch_norm(PICTURE, [1.0] * 3, [0.0] * 3, data_format="NWC")
