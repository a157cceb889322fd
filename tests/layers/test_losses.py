"""Losses against their formulae in NumPy, in both modes and at extremes; reductions and errors."""

import itertools

import numpy as np
import pytest

import tracegraph as tg

# The same function is decorated for every case.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

losses = tg.losses
RANDOM = np.random.default_rng(5)
ROWS, CLASSES = 6, 4
NUMBERS = RANDOM.normal(size=(2, ROWS, CLASSES)).astype(np.float32)
SHARES = RANDOM.dirichlet(np.ones(CLASSES), size=(2, ROWS)).astype(np.float32)
UNITS = RANDOM.uniform(size=(ROWS, CLASSES)).astype(np.float32)
BITS = RANDOM.integers(0, 2, (ROWS, CLASSES)).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, ROWS).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
WEIGHTS = RANDOM.uniform(size=ROWS).astype(np.float32)
EPS = 1e-7

# ---------------------------------------------------------------- the formulae, in float64


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


def inner(p):
    return np.clip(p, EPS, 1 - EPS)


def bce(y, p):
    return -y * np.log(inner(p)) - (1 - y) * np.log(1 - inner(p))


def bce_of_logits(y, x):
    return np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))


def ce(y, p):
    return -(y * np.log(inner(p / p.sum(-1, keepdims=True)))).sum(-1)


def ce_of_logits(y, x):
    shifted = x - x.max(-1, keepdims=True)
    return -(y * (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))).sum(-1)


def one_hot(labels):
    return np.eye(CLASSES)[labels]


def signs(y):
    return 2 * y - 1 if set(np.unique(y)) <= {0, 1} else y


def huber(y, x, delta=1.0):
    e = np.abs(y - x)
    return np.where(e <= delta, e**2 / 2, delta * e - delta**2 / 2).mean(-1)


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), EPS)


def kl(y, x):
    y, x = np.clip(y, EPS, 1), np.clip(x, EPS, 1)
    return (y * np.log(y / x)).sum(-1)


def smooth(y, share, classes):
    return y * (1 - share) + share / classes


def focal(y, p, gamma=2.0, loss=bce):
    return ((1 - y * p - (1 - y) * (1 - p)) ** gamma * loss(y, p)).mean(-1)


def categorical_focal(y, p, alpha=0.25, gamma=2.0):
    p = inner(p / p.sum(-1, keepdims=True))
    return (-alpha * (1 - p) ** gamma * y * np.log(p)).sum(-1)


def log1(x):
    return np.log(np.maximum(x, EPS) + 1)


def dice(y, p):
    return 1 - (2 * (y * p).sum(-1) + EPS) / ((y + p).sum(-1) + EPS)


def tversky(y, p, alpha=0.5, beta=0.5):
    both, missed, wrong = (y * p).sum(-1), (y * (1 - p)).sum(-1), ((1 - y) * p).sum(-1)
    return 1 - both / (both + alpha * missed + beta * wrong + EPS)


def generalized(y, p, q=0.5):
    return (1 - np.take_along_axis(p, y[:, None].astype(int), -1)[:, 0] ** q) / q


def circle(y, x, gamma=80, margin=0.4, remove_diagonal=True):
    """Row by row, over pairs."""
    found = []
    for i, row in enumerate(x):
        same, other = [], []
        for j, reference in enumerate(x):
            d = max(1 - row @ reference, 0)
            if y[i] != y[j]:
                other.append(gamma * max(1 + margin - d, 0) * (1 - margin - d))
            elif i != j or not remove_diagonal:
                same.append(gamma * (d + margin) * (d - margin))
        found.append(np.log1p(np.sum(np.exp(same)) * np.sum(np.exp(other))))
    return np.array(found)


def ctc(y, x):
    """-log of the sum over all paths."""
    found = []
    for labels, logits in zip(y, x):
        p, total = softmax(logits), 0.0
        for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
            merged = [k for n, k in enumerate(path) if n == 0 or path[n - 1] != k]
            if [k for k in merged if k] == [k for k in labels if k]:
                total += np.prod([p[n, k] for n, k in enumerate(path)])
        found.append(-np.log(total))
    return np.array(found)


X, Y = NUMBERS
#: The function, its settings, what it is called with, and the formula.
CASES = {
    "mean_squared_error": [({}, (Y, X), lambda y, x: ((y - x) ** 2).mean(-1))],
    "mean_absolute_error": [({}, (Y, X), lambda y, x: np.abs(y - x).mean(-1))],
    "mean_absolute_percentage_error": [
        ({}, (Y, X), lambda y, x: 100 * np.abs((y - x) / np.maximum(np.abs(y), EPS)).mean(-1)),
    ],
    "mean_squared_logarithmic_error": [
        ({}, (Y, X), lambda y, x: ((log1(y) - log1(x)) ** 2).mean(-1)),
    ],
    "huber": [({}, (Y, X), huber), ({"delta": 0.3}, (Y, X), lambda y, x: huber(y, x, 0.3))],
    "log_cosh": [({}, (Y, X), lambda y, x: np.log(np.cosh(y - x)).mean(-1))],
    "cosine_similarity": [
        ({}, (Y, X), lambda y, x: -(unit(y) * unit(x)).sum(-1)),
        ({"axis": 0}, (Y, X), lambda y, x: -(unit(y.T) * unit(x.T)).sum(-1)),
    ],
    "poisson": [
        ({}, (np.abs(Y), np.abs(X)), lambda y, x: (x - y * np.log(x + EPS)).mean(-1)),
    ],
    "dice": [({"axis": -1}, (BITS, UNITS), dice)],
    "tversky": [
        ({"axis": -1}, (BITS, UNITS), tversky),
        (
            {"axis": -1, "alpha": 0.3, "beta": 0.9},
            (BITS, UNITS),
            lambda y, p: tversky(y, p, 0.3, 0.9),
        ),
    ],
    "categorical_generalized_cross_entropy": [
        ({"q": 0.5}, (LABELS, SHARES[0]), generalized),
        ({"q": 0.9}, (LABELS, SHARES[0]), lambda y, p: generalized(y, p, 0.9)),
    ],
    "circle": [
        ({"gamma": 3.0}, (LABELS, unit(X)), lambda y, x: circle(y, x, 3.0)),
        (
            {"gamma": 3.0, "margin": 0.1, "remove_diagonal": False},
            (LABELS, unit(X)),
            lambda y, x: circle(y, x, 3.0, 0.1, False),
        ),
    ],
    "ctc": [({}, (np.int32([[1, 2], [2, 0]]), X.reshape(2, 4, 3)), ctc)],
    "kl_divergence": [({}, tuple(SHARES), kl), ({}, (ONE_HOT, SHARES[0]), kl)],
    "hinge": [
        ({}, (BITS, X), lambda y, x: np.maximum(1 - signs(y) * x, 0).mean(-1)),
        ({}, (2 * BITS - 1, X), lambda y, x: np.maximum(1 - y * x, 0).mean(-1)),
    ],
    "squared_hinge": [
        ({}, (BITS, X), lambda y, x: (np.maximum(1 - signs(y) * x, 0) ** 2).mean(-1)),
    ],
    "categorical_hinge": [
        (
            {},
            (ONE_HOT, X),
            lambda y, x: np.maximum(((1 - y) * x).max(-1) - (y * x).sum(-1) + 1, 0),
        ),
    ],
    "binary_crossentropy": [
        ({}, (BITS, UNITS), lambda y, p: bce(y, p).mean(-1)),
        ({"from_logits": True}, (BITS, X), lambda y, x: bce_of_logits(y, x).mean(-1)),
        (
            {"label_smoothing": 0.3},
            (BITS, UNITS),
            lambda y, p: bce(smooth(y, 0.3, 2), p).mean(-1),
        ),
        ({"axis": 0}, (BITS, UNITS), lambda y, p: bce(y, p).mean(0)),
    ],
    "binary_focal_crossentropy": [
        ({}, (BITS, UNITS), focal),
        ({"from_logits": True}, (BITS, X), lambda y, x: focal(y, sigmoid(x))),
        (
            {"apply_class_balancing": True, "alpha": 0.3, "gamma": 1.5, "label_smoothing": 0.1},
            (BITS, UNITS),
            lambda y, p: focal(
                smooth(y, 0.1, 2),
                p,
                1.5,
                lambda y, p: bce(y, p) * (y * 0.3 + (1 - y) * 0.7),
            ),
        ),
    ],
    "categorical_crossentropy": [
        ({}, (ONE_HOT, UNITS), ce),
        ({"from_logits": True}, (ONE_HOT, X), ce_of_logits),
        (
            {"label_smoothing": 0.2},
            (ONE_HOT, SHARES[0]),
            lambda y, p: ce(smooth(y, 0.2, CLASSES), p),
        ),
        ({"axis": 0}, (ONE_HOT.T, UNITS.T), lambda y, p: ce(y.T, p.T)),
    ],
    "categorical_focal_crossentropy": [
        ({}, (ONE_HOT, UNITS), categorical_focal),
        (
            {"from_logits": True, "alpha": 0.4, "gamma": 1.5},
            (ONE_HOT, X),
            lambda y, x: categorical_focal(y, softmax(x), 0.4, 1.5),
        ),
    ],
    "sparse_categorical_crossentropy": [
        ({}, (LABELS, SHARES[0]), lambda y, p: ce(one_hot(y), p)),
        ({}, (LABELS[:, None], SHARES[0]), lambda y, p: ce(one_hot(y[:, 0]), p)),
        ({}, (LABELS.astype(np.float32), SHARES[0]), lambda y, p: ce(one_hot(y.astype(int)), p)),
        ({"from_logits": True}, (LABELS, X), lambda y, x: ce_of_logits(one_hot(y), x)),
        (
            {"from_logits": True, "ignore_class": int(LABELS[0])},
            (LABELS, X),
            lambda y, x: ce_of_logits(one_hot(y), x) * (y != LABELS[0]),
        ),
        (
            {"from_logits": True, "ignore_class": -1},
            (np.where(np.equal(LABELS, LABELS[0]), -1, LABELS), X),
            lambda y, x: np.where(y < 0, 0, ce_of_logits(one_hot(y), x)),
        ),
    ],
}
ROWS_OF_CASES = [(name, *row) for name, rows in CASES.items() for row in rows]


def class_of(name):
    words = {"kl_divergence": "KLDivergence", "ctc": "CTC"}
    return getattr(losses, words.get(name, "".join(w.capitalize() for w in name.split("_"))))


def wide(arrays):
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(4))
def test_functions_follow_the_formula(part):
    rows = ROWS_OF_CASES[part::4]

    def every(data):
        calls = zip(rows, data, strict=True)
        return [getattr(losses, name)(*pair, **settings) for (name, settings, _, _), pair in calls]

    traced = tg.function(every)
    narrow = [tuple(map(tg.constant, data)) for _, _, data, _ in rows]
    exact = [tuple(map(tg.constant, wide(data))) for _, _, data, _ in rows]
    for found, dtype, tolerances in (
        (every(narrow), tg.float32, (2e-5, 1e-6)),
        (traced(narrow), tg.float32, (2e-5, 1e-6)),
        (traced(exact), tg.float64, (1e-9, 1e-12)),
    ):
        for loss, (name, settings, data, formula) in zip(found, rows, strict=True):
            assert loss.dtype is dtype, name
            np.testing.assert_allclose(
                loss.numpy(), formula(*wide(data)), *tolerances, err_msg=f"{name}{settings}"
            )


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "settings", "data", "formula"), ROWS_OF_CASES)
def test_classes_reduce_what_the_functions_return(name, settings, data, formula):
    rows = formula(*wide(data))
    weights = WEIGHTS if len(rows) == ROWS else WEIGHTS[: len(rows)]
    counts = np.ones(len(rows))
    if "ignore_class" in settings:
        counts = (data[0] != settings["ignore_class"]).astype(float)
    if name == "circle":
        counts = (rows > 0).astype(float)
    expected = {
        ("none", False): rows,
        ("none", True): rows * weights,
        ("sum", False): rows.sum(),
        ("sum", True): (rows * weights).sum(),
        ("sum_over_batch_size", False): rows.sum() / counts.sum(),
        ("sum_over_batch_size", True): (rows * weights).sum() / counts.sum(),
        ("mean_with_sample_weight", True): (rows * weights).sum() / (weights * counts).sum(),
    }

    @tg.function
    def every(y, x, weights):
        reduced = [
            class_of(name)(**settings, reduction=reduction)(
                y, x, sample_weight=weights if has_weights else None
            )
            for reduction, has_weights in expected
        ]
        return reduced, class_of(name)(**settings)(y, x)

    found, whole = every(*map(tg.constant, (*data, weights)))
    for loss, value in zip(found, expected.values(), strict=True):
        np.testing.assert_allclose(loss.numpy(), value, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(
        whole.numpy(), expected["sum_over_batch_size", False], rtol=2e-5, atol=1e-6
    )


# ---------------------------------------------------------------- extremes

FAR = np.float32([[100, -100, 0, 100], [-100, 100, 100, -100]])
CORNERS = np.float32([[0, 1, 0, 1], [1, 0, 0, 0]])
HOT = np.float32([[0, 1, 0, 0], [1, 0, 0, 0]])
EXTREMES = {
    **{name: [({}, CORNERS, FAR), ({}, FAR, FAR), ({}, CORNERS, 0 * FAR)] for name in CASES},
    **{
        name: [
            ({"from_logits": True}, CORNERS, FAR),
            ({"from_logits": True, "label_smoothing": 0.1}, CORNERS, FAR),
            ({}, CORNERS, CORNERS),
            ({}, CORNERS, 1 - CORNERS),
            ({"label_smoothing": 1.0}, CORNERS, 1 - CORNERS),
        ]
        for name in ("binary_crossentropy", "binary_focal_crossentropy")
    },
    **{
        name: [
            ({"from_logits": True}, HOT, FAR),
            ({"from_logits": True, "label_smoothing": 0.1}, HOT, FAR),
            ({}, HOT, HOT),
            ({}, HOT, HOT[::-1].copy()),
        ]
        for name in ("categorical_crossentropy", "categorical_focal_crossentropy")
    },
    "sparse_categorical_crossentropy": [
        ({"from_logits": True}, np.int32([1, 0]), FAR),
        ({}, np.int32([1, 0]), HOT),
        ({}, np.int32([0, 1]), HOT),
    ],
    "categorical_generalized_cross_entropy": [({"q": 0.5}, np.int32([1, 0]), HOT)],
    "circle": [({}, np.int32([1, 0]), HOT), ({}, np.int32([1, 1]), HOT)],
    "ctc": [({}, np.int32([[1], [2]]), np.stack([FAR, FAR]))],
    "kl_divergence": [({}, CORNERS, CORNERS), ({}, CORNERS, 1 - CORNERS)],
    "poisson": [({}, CORNERS, 0 * FAR), ({}, CORNERS, np.abs(FAR))],
    "mean_squared_logarithmic_error": [({}, CORNERS, FAR)],
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", EXTREMES)
def test_losses_and_gradients_are_finite_at_extremes(name):
    found = []
    for settings, y, x in EXTREMES[name]:
        predictions = tg.constant(x)
        with tg.GradientTape() as tape:
            tape.watch(predictions)
            loss = getattr(losses, name)(y, predictions, **settings)
        found.append((settings, loss, tape.gradient(loss, predictions)))
    for settings, loss, slope in found:
        assert np.isfinite(loss.numpy()).all(), (settings, loss.numpy())
        assert np.isfinite(slope.numpy()).all(), (settings, slope.numpy())


def test_losses_from_logits_are_those_of_the_formula_far_out():
    y, x = CORNERS.astype(np.float64), FAR.astype(np.float64)
    found = losses.binary_crossentropy(CORNERS, FAR, from_logits=True)
    np.testing.assert_allclose(found.numpy(), bce_of_logits(y, x).mean(-1), rtol=1e-6)
    found = losses.categorical_crossentropy(HOT, FAR, from_logits=True)
    np.testing.assert_allclose(found.numpy(), ce_of_logits(HOT.astype(np.float64), x), rtol=1e-6)
    found = losses.binary_focal_crossentropy([[1.0]], [[-100.0]], from_logits=True)
    assert found.numpy() == pytest.approx(100.0)
    found = losses.categorical_focal_crossentropy([[1.0, 0.0]], [[-100.0, 0.0]], from_logits=True)
    assert found.numpy() == pytest.approx(25.0)


@pytest.mark.parametrize("dtype", [tg.float16, tg.bfloat16])
def test_losses_of_probabilities_of_16_bits_are_finite(dtype):
    sure = tg.cast(tg.constant([[0.0, 1.0]]), dtype)
    wrong = 1 - sure
    for name in ("binary_crossentropy", "categorical_crossentropy", "kl_divergence"):
        for y, expected in ((sure, 0.0), (wrong, -np.log(1e-7))):
            found = getattr(losses, name)(y, sure)
            assert found.dtype is dtype
            assert float(found[0]) == pytest.approx(expected, rel=0.02, abs=1e-6), (name, y)


def test_means_of_more_float16_losses_than_the_largest_number():
    x, y = (tg.fill([70_000, 1], tg.constant(number, tg.float16)) for number in (1.5, 0.0))
    for reduction in ("mean", "mean_with_sample_weight"):
        loss = losses.MeanAbsoluteError(reduction=reduction)
        assert loss(y, x).numpy() == 1.5
        assert loss(y, x, sample_weight=tg.ones_like(x)).numpy() == 1.5
    assert tg.nn.compute_average_loss(x[:, 0]).numpy() == 1.5


def test_losses_of_probabilities_near_0_and_1_keep_their_digits():
    p = np.float32([[0.999998, 2e-6]])
    exact = p.astype(np.float64)
    found = losses.binary_crossentropy([[1.0, 0.0]], p)
    np.testing.assert_allclose(found.numpy(), bce(np.float64([[1, 0]]), exact).mean(-1), rtol=1e-6)
    found = losses.sparse_categorical_crossentropy([0], p)
    np.testing.assert_allclose(found.numpy(), [-np.log(exact[0, 0] / exact.sum())], rtol=1e-6)
    found = losses.categorical_focal_crossentropy([[1.0, 0.0]], [[20.0, 0.0]], from_logits=True)
    other = np.exp(-20.0)
    np.testing.assert_allclose(found.numpy(), [0.25 * other**2 * other], rtol=1e-6)


def test_gradients_are_those_of_the_formula():
    x = tg.constant(X)
    with tg.GradientTape() as tape:
        tape.watch(x)
        loss = losses.CategoricalCrossentropy(from_logits=True)(ONE_HOT, x)
    np.testing.assert_allclose(
        tape.gradient(loss, x).numpy(), (softmax(X) - ONE_HOT) / ROWS, rtol=1e-5, atol=1e-6
    )


# ---------------------------------------------------------------- shapes and weights


def test_a_last_axis_of_one_does_not_count():
    column, row = X[:, :1], Y[:, 0]
    expected = ((column[:, 0] - row) ** 2).mean()
    for y, x in ((row, column), (column, row)):
        found = losses.MeanSquaredError()(y, x)
        assert found.numpy() == pytest.approx(expected, rel=1e-5)


def test_weights_of_elements_of_rows_and_of_columns():
    y, x = Y[None], X[None]  # [1, rows, classes], whose losses are [1, rows]
    rows = ((Y - X) ** 2).mean(-1)
    for weights in (WEIGHTS[None], WEIGHTS[None, :, None]):
        found = losses.MeanSquaredError(reduction="sum")(y, x, weights)
        assert found.numpy() == pytest.approx((rows * WEIGHTS).sum(), rel=1e-5)
    assert losses.MeanSquaredError()(y, x, 0.0).numpy() == 0.0
    weighted = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert weighted(y, x, 0.0).numpy() == 0.0


def test_open_sizes_are_one_trace():
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    specs = [tg.TensorSpec([None], tg.int32), tg.TensorSpec([None, CLASSES])]
    traced = tg.function(loss, input_signature=specs)
    for count in (2, ROWS):
        found = traced(LABELS[:count], X[:count])
        assert found.numpy() == pytest.approx(loss(LABELS[:count], X[:count]).numpy(), rel=1e-6)
    assert traced.experimental_get_tracing_count() == 1


def test_all_labels_ignored_is_no_loss():
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
    assert loss([1, 1], X[:2]).numpy() == 0.0


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_ignored_labels_in_a_column_are_those_of_a_row(reduction):
    loss = losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=int(LABELS[0]), reduction=reduction
    )
    x = tg.constant(X)
    x._keras_mask = tg.constant(np.arange(ROWS) != 1)
    row, column = loss(LABELS, x).numpy(), loss(LABELS[:, None], x).numpy()
    np.testing.assert_array_equal(column, row, strict=True)


def test_dtypes():
    assert losses.mean_squared_error([[1]], [[2]]).dtype is tg.float32
    assert losses.MeanSquaredError()([[1.0]], tg.ones([1, 1], tg.float64)).dtype is tg.float64
    assert losses.MeanSquaredError(dtype="float16")([[1.0]], [[2.0]]).dtype is tg.float16


def test_a_loss_of_the_users_own():
    class Largest(losses.Loss):
        def call(self, y_true, y_pred):
            return tg.reduce_max(abs(y_true - y_pred), -1)

    found = Largest(reduction="sum")([[0.0, 0.0], [1.0, 1.0]], [[1.0, -3.0], [1.0, 2.0]])
    assert found.numpy() == 4.0
    assert repr(losses.Huber(0.5)) == "<Huber(delta=0.5)>"
    assert repr(Largest(reduction="sum")) == "<Largest(reduction='sum')>"


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: losses.MeanSquaredError("average"), ValueError, "reduction is 'average'"),
        (lambda: losses.MeanSquaredError(dtype=tg.int32), TypeError, "dtype is int32"),
        (lambda: losses.Huber(-1.0), ValueError, "delta is -1.0"),
        (lambda: losses.Huber("a"), TypeError, "delta is a number"),
        (lambda: losses.BinaryCrossentropy(1), TypeError, "from_logits is True or False"),
        (lambda: losses.BinaryCrossentropy(label_smoothing=2.0), ValueError, "smoothing is 2.0"),
        (lambda: losses.BinaryFocalCrossentropy(gamma=-1.0), ValueError, "gamma is -1.0"),
        (lambda: losses.CategoricalFocalCrossentropy(alpha=-1.0), ValueError, "alpha is -1.0"),
        (lambda: losses.mean_squared_error([[1.0, 2.0]], [[1.0] * 3]), ValueError, "mean_squared_"),
        (lambda: losses.MeanSquaredError()([[1.0]], [["a"]]), TypeError, "cannot be a tensor"),
        (lambda: losses.MeanSquaredError()(X, Y, [1.0, 2.0]), ValueError, "MeanSquaredError: the"),
        (lambda: losses.huber(X, Y, delta=-1.0), ValueError, "huber: delta is -1.0"),
        (lambda: losses.binary_crossentropy(X, Y, "yes"), TypeError, "binary_crossentropy: from_l"),
        (lambda: losses.categorical_crossentropy(X, Y, axis=2), ValueError, "axis 2 is out of"),
        (
            lambda: losses.sparse_categorical_crossentropy(LABELS, X, axis=0),
            ValueError,
            "not the l",
        ),
        (lambda: losses.sparse_categorical_crossentropy(LABELS[:2], X), ValueError, "do not fit"),
        (lambda: losses.categorical_crossentropy([0, 1], np.eye(2)), ValueError, "one-hot rows"),
        (
            lambda: tg.nn.sparse_softmax_cross_entropy_with_logits([[0.5, 0.5]], [1]),
            TypeError,
            "labels come first",
        ),
        (
            lambda: losses.sparse_categorical_crossentropy([True], X[:1]),
            TypeError,
            "numbers of cla",
        ),
    ],
)
def test_bad_arguments_of_losses_are_errors(call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "test_losses.py" in str(caught.value)
    assert "fix: " in str(caught.value)


def test_overlap_is_that_of_the_whole_batch_unless_an_axis_is_given():
    y, p = (x.reshape(1, -1).astype(np.float64) for x in (BITS, UNITS))
    np.testing.assert_allclose(losses.dice(BITS, UNITS).numpy(), dice(y, p)[0], rtol=1e-5)
    np.testing.assert_allclose(losses.Tversky()(BITS, UNITS), tversky(y, p)[0], rtol=1e-5)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.5])
def test_the_exponent_of_a_generalized_cross_entropy_is_between_0_and_1(q):
    with pytest.raises(tg.errors.SignatureError, match=f"q is {q}"):
        losses.CategoricalGeneralizedCrossEntropy(q)
    with pytest.raises(tg.errors.SignatureError, match=f"q is {q}"):
        losses.categorical_generalized_cross_entropy([0], [[0.5, 0.5]], q)


def losses_and_metrics():
    """Functions of labels, predictions and perhaps weights, by name."""
    for name in ("MeanSquaredError", "Hinge", "LogCosh", "Poisson", "KLDivergence", "Dice"):
        yield name, getattr(losses, name)()
    for name in ("binary_crossentropy", "cosine_similarity", "huber", "tversky"):
        yield name, getattr(losses, name)
    for name in ("MeanSquaredError", "AUC", "Precision", "F1Score", "R2Score", "CosineSimilarity"):
        yield f"metrics.{name}", getattr(tg.metrics, name)()


REAL = np.float32([[1, 0]])
COMPLEX = np.complex64([[1 + 2j, 0]])


@pytest.mark.parametrize(("name", "measure"), [*losses_and_metrics()])
def test_imaginary_parts_are_not_dropped(name, measure):
    """They were, in silence."""
    for y_true, y_pred in ((COMPLEX, REAL), (REAL, COMPLEX)):
        with pytest.raises(tg.errors.DTypeError, match="are of real numbers, and this is c64") as e:
            measure(y_true, y_pred)
        assert "test_losses.py" in str(e.value) and "fix: give tg.abs(x)" in str(e.value)
    with pytest.raises(tg.errors.DTypeError, match="are of real numbers"):
        tg.metrics.Mean()(REAL, sample_weight=COMPLEX)
    with pytest.raises(tg.errors.DTypeError, match="are of real numbers"):
        losses.MeanSquaredError()(REAL, REAL, sample_weight=COMPLEX[0, :1])


# ---------------------------------------------------------------- probabilities of activations

FAR_OUT = NUMBERS[0] * 40.0  # most of these probabilities are 0 or 1 in float32

CROSS_ENTROPIES = {
    "binary_crossentropy": ("sigmoid", BITS, {"label_smoothing": 0.1}),
    "binary_focal_crossentropy": ("sigmoid", BITS, {"gamma": 1.5}),
    "categorical_crossentropy": ("softmax", ONE_HOT, {"label_smoothing": 0.1}),
    "sparse_categorical_crossentropy": ("softmax", LABELS, {"ignore_class": 1}),
}


def value_and_slope(loss, x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        total = tg.reduce_mean(loss(x))
    return total, tape.gradient(total, x)


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropies_of_an_activation_are_those_of_its_logits(name):
    kind, labels, settings = CROSS_ENTROPIES[name]
    loss, x = getattr(losses, name), tg.constant(FAR_OUT)
    plain = getattr(tg.nn, kind)
    expected = value_and_slope(lambda x: loss(labels, x, from_logits=True, **settings), x)
    makers = [
        getattr(tg.activations, kind),
        tg.layers.Activation(kind),
        tg.layers.Activation(plain),
    ]
    makers += [tg.layers.Softmax()] if kind == "softmax" else []

    def total(make):
        return lambda x: loss(labels, make(x), **settings)

    for make in makers:
        for run in (value_and_slope, tg.function(value_and_slope)):
            for found, right in zip(run(total(make), x), expected):
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
    # Others have only their numbers, at top level and in functions.
    clipped = [f(total(plain), x)[0] for f in (value_and_slope, tg.function(value_and_slope))]
    np.testing.assert_allclose(clipped[0], clipped[1], rtol=1e-5)
    assert float(clipped[0]) < 0.8 * float(expected[0])


def test_only_the_activation_of_the_loss_hands_on_its_logits():
    x = tg.constant(FAR_OUT)
    wide, deep = tg.activations.softmax(x, axis=0), tg.activations.softmax(x)
    for p, call in (
        (wide, lambda p: losses.categorical_crossentropy(ONE_HOT, p)),
        (deep, lambda p: losses.binary_crossentropy(BITS, p)),
        (tg.activations.sigmoid(x), lambda p: losses.categorical_crossentropy(ONE_HOT, p)),
    ):
        np.testing.assert_array_equal(call(p), call(tg.constant(p.numpy())))
    wider = losses.BinaryCrossentropy(dtype="float64")(BITS, tg.activations.sigmoid(x))
    assert wider.dtype == tg.float64 and float(wider) < 16


def test_branches_and_loops_know_the_logits_of_probabilities_from_around():
    loss, x = losses.BinaryCrossentropy(), tg.constant(FAR_OUT)

    @tg.function
    def run(x):
        p = tg.activations.sigmoid(x)
        inside = loss(BITS, p) if tg.reduce_sum(p) > 0.0 else 0.0
        for _ in tg.range(2):
            inside += loss(BITS, p)
        return inside / 3.0, loss(BITS, p)

    for found in run(x):
        assert float(found) == pytest.approx(float(loss(BITS, tg.activations.sigmoid(x))), 1e-5)


def test_probabilities_with_from_logits_are_a_warning():
    loss, x = losses.BinaryCrossentropy(from_logits=True), tg.constant(NUMBERS[0])
    with pytest.warns(UserWarning, match="from_logits is True, and y_pred are the probabilities"):
        found = loss(BITS, tg.activations.sigmoid(x))
    assert float(found) == float(loss(BITS, x))
