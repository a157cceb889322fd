"""Metrics against their formulae in NumPy, batch by batch, in both modes; state and errors."""

import numpy as np
import pytest

import tracegraph as tg

# The same function is decorated for every case.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

metrics = tg.metrics
RANDOM = np.random.default_rng(7)
ROWS, CLASSES, CUT = 8, 4, 5
X, Y = RANDOM.normal(size=(2, ROWS, CLASSES)).astype(np.float32)
UNITS = RANDOM.uniform(size=(ROWS, CLASSES)).astype(np.float32)
BITS = RANDOM.integers(0, 2, (ROWS, CLASSES)).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, ROWS).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
WEIGHTS = RANDOM.uniform(size=ROWS).astype(np.float32)
FIRST, SECOND = slice(0, CUT), slice(CUT, ROWS)


def mean_of(rows):
    """The mean of what a function gives for each row."""
    return lambda y, x, w: (rows(y, x) * w).sum() / w.sum()


def counts(y, x, w, thresholds):
    """Right yes, wrong yes, right no and wrong no, of two dimensions, for each threshold."""
    w = np.broadcast_to(w[:, None], x.shape) if x.ndim == 2 else w
    yes = x > np.reshape(thresholds, [-1, *[1] * x.ndim])
    axes = tuple(range(1, x.ndim + 1))
    return [
        (says * (y == label) * w).sum(axes)
        for label, says in ((1, yes), (0, yes), (0, ~yes), (1, ~yes))
    ]


def share(a, b):
    return np.divide(a, a + b, out=np.zeros_like(a), where=a + b > 0)


def precision(y, x, w, thresholds=0.5):
    right, wrong, _, _ = counts(y, x, w, thresholds)
    return np.squeeze(share(right, wrong))


def recall(y, x, w, thresholds=0.5):
    right, _, _, missed = counts(y, x, w, thresholds)
    return np.squeeze(share(right, missed))


def largest(x, k):
    """Those that are among the k largest of their row, and what is below all of the others."""
    return np.where(x >= np.sort(x, -1)[:, -k, None], x, -1e10)


def best(of, where, bound):
    def formula(y, x, w):
        right, wrong, left, missed = counts(y, x, w, np.linspace(0, 1, 200))
        shares = {
            "sensitivity": share(right, missed),
            "specificity": share(left, wrong),
            "precision": share(right, wrong),
        }
        return np.where(shares[where] >= bound, shares[of], 0).max()

    return formula


def area(curve="ROC", method="interpolation", thresholds=None):
    between = np.linspace(0, 1, 200)[1:-1] if thresholds is None else thresholds
    all_of_them = [-1e-7, *between, 1 + 1e-7]

    def formula(y, x, w):
        right, wrong, left, missed = counts(y, x, w, all_of_them)
        found, said = share(right, missed), right + wrong
        if (curve, method) == ("PR", "interpolation"):
            # the integral of precision over recall, with right ones linear in those that say yes
            total = 0.0
            for a, b in zip(range(len(said) - 1), range(1, len(said)), strict=True):
                if said[a] > said[b]:
                    slope = (right[a] - right[b]) / (said[a] - said[b])
                    rest = right[b] - slope * said[b]
                    log = np.log(said[a] / said[b]) if said[b] > 0 else 0
                    total += slope * (right[a] - right[b] + rest * log)
            return total / (right + missed)[0]
        across, height = {
            "ROC": (share(wrong, left), found),
            "PR": (found, share(right, wrong)),
        }[curve]
        pick = {"interpolation": np.add, "minoring": np.minimum, "majoring": np.maximum}[method]
        heights = pick(height[:-1], height[1:]) / (2 if method == "interpolation" else 1)
        return ((across[:-1] - across[1:]) * heights).sum()

    return formula


def each_label(formula):
    return lambda y, x, w: np.mean([formula(y[:, k], x[:, k], w) for k in range(CLASSES)])


def f_score(says_yes, average=None, beta=1.0):
    def formula(y, x, w):
        axis = None if average == "micro" else 0
        yes, w = says_yes(x), w[:, None]
        right, wrong, missed = ((z * w).sum(axis) for z in (yes * y, yes * (1 - y), (1 - yes) * y))
        p, r = right / (right + wrong + 1e-7), right / (right + missed + 1e-7)
        score = (1 + beta**2) * p * r / (beta**2 * p + r + 1e-7)
        labels = (y * w).sum(axis)
        return {
            "weighted": lambda: (score * labels / labels.sum()).sum(),
            "macro": lambda: score.mean(),
        }.get(average, lambda: score)()

    return formula


def is_largest(x):
    return (x == x.max(-1, keepdims=True)).astype(float)


def r2(aggregation="uniform_average", p=0):
    def formula(y, x, w):
        w = w[:, None]
        mean = (y * w).sum(0) / w.sum(0)
        total = ((y - mean) ** 2 * w).sum(0)
        scores = 1 - ((y - x) ** 2 * w).sum(0) / total
        if aggregation == "variance_weighted_average":
            scores = (scores * total).sum() / total.sum()
        elif aggregation is not None:
            scores = scores.mean()
        return 1 - (1 - scores) * (y.size - 1) / (y.size - p - 1) if p else scores

    return formula


def overlap(classes, counted=None, ignored=None):
    def formula(y, x, w):
        w = np.broadcast_to(w[:, None], y.shape) * (y != ignored)
        shares = []
        for k in counted or range(classes):
            both = (((y == k) & (x == k)) * w).sum()
            either = (((y == k) | (x == k)) * w).sum()
            shares += [both / either] if either > 0 else []
        return np.mean(shares)

    return formula


def of_one_hot(counted=None):
    return lambda y, x, w: overlap(CLASSES, counted)(
        y.argmax(-1)[:, None], x.argmax(-1)[:, None], w
    )


def correlation(y, x):
    return np.array([np.corrcoef(*pair)[0, 1] for pair in zip(y, x)])


def concordance(y, x):
    apart = (y.mean(-1) - x.mean(-1)) ** 2
    return 2 * correlation(y, x) * y.std(-1) * x.std(-1) / (y.var(-1) + x.var(-1) + apart)


def rows_of(loss, **settings):
    """A loss of `tg.losses`, which has tests of its own."""
    return mean_of(lambda y, x: getattr(tg.losses, loss)(y, x, **settings).numpy())


NUMBERS, BINARY, CATEGORIES, CLASS = (Y, X), (BITS, UNITS), (ONE_HOT, UNITS), (LABELS, UNITS)
ONE = (BITS[:, 0], UNITS[:, 0])
PIXELS = RANDOM.integers(0, 3, (ROWS, CLASSES)), RANDOM.integers(0, 3, (ROWS, CLASSES))
FLOAT = {"dtype": "float32"}
RIGHT = mean_of(lambda y, x: x.argmax(-1) == y)
#: The class, its settings, what it is called with, and the formula of labels, predictions, weights.
CASES = [
    ("Accuracy", {}, (BITS, 1 - BITS[::-1]), mean_of(lambda y, x: (y == x).mean(-1))),
    ("BinaryAccuracy", {}, BINARY, mean_of(lambda y, x: (y == (x > 0.5)).mean(-1))),
    (
        "BinaryAccuracy",
        {"threshold": 0.3},
        (BITS[:, 0], UNITS[:, :1]),
        mean_of(lambda y, x: y == (x[:, 0] > 0.3)),
    ),
    ("CategoricalAccuracy", {}, CATEGORIES, lambda y, x, w: RIGHT(y.argmax(-1), x, w)),
    ("SparseCategoricalAccuracy", {}, CLASS, RIGHT),
    (
        "SparseCategoricalAccuracy",
        {},
        (LABELS[:, None], UNITS),
        lambda y, x, w: RIGHT(y[:, 0], x, w),
    ),
    (
        "TopKCategoricalAccuracy",
        {"k": 2},
        CATEGORIES,
        mean_of(lambda y, x: ((largest(x, 2) > -1) * y).sum(-1)),
    ),
    (
        "SparseTopKCategoricalAccuracy",
        {"k": 3},
        CLASS,
        mean_of(lambda y, x: (largest(x, 3) > -1)[np.arange(len(y)), y]),
    ),
    (
        "SparseTopKCategoricalAccuracy",
        {"k": 2, "from_sorted_ids": True},
        (LABELS, np.argsort(UNITS, -1)),
        mean_of(lambda y, x: (x[:, :2] == y[:, None]).any(-1)),
    ),
    ("MeanSquaredError", {}, NUMBERS, mean_of(lambda y, x: ((y - x) ** 2).mean(-1))),
    (
        "RootMeanSquaredError",
        {},
        NUMBERS,
        lambda y, x, w: np.sqrt(mean_of(lambda y, x: ((y - x) ** 2).mean(-1))(y, x, w)),
    ),
    ("MeanAbsoluteError", {}, NUMBERS, mean_of(lambda y, x: np.abs(y - x).mean(-1))),
    ("MeanAbsolutePercentageError", {}, NUMBERS, rows_of("mean_absolute_percentage_error")),
    ("MeanSquaredLogarithmicError", {}, NUMBERS, rows_of("mean_squared_logarithmic_error")),
    ("LogCoshError", {}, NUMBERS, mean_of(lambda y, x: np.log(np.cosh(y - x)).mean(-1))),
    (
        "CosineSimilarity",
        {},
        NUMBERS,
        mean_of(
            lambda y, x: (y * x).sum(-1) / np.linalg.norm(y, axis=-1) / np.linalg.norm(x, axis=-1)
        ),
    ),
    ("Hinge", {}, (2 * BITS - 1, X), mean_of(lambda y, x: np.maximum(1 - y * x, 0).mean(-1))),
    ("SquaredHinge", {}, (2 * BITS - 1, X), rows_of("squared_hinge")),
    ("CategoricalHinge", {}, CATEGORIES, rows_of("categorical_hinge")),
    ("KLDivergence", {}, CATEGORIES, rows_of("kl_divergence")),
    ("Poisson", {}, BINARY, rows_of("poisson")),
    ("BinaryCrossentropy", {}, BINARY, rows_of("binary_crossentropy")),
    (
        "BinaryCrossentropy",
        {"from_logits": True, "label_smoothing": 0.1},
        (BITS, X),
        rows_of("binary_crossentropy", from_logits=True, label_smoothing=0.1),
    ),
    ("CategoricalCrossentropy", {}, CATEGORIES, rows_of("categorical_crossentropy")),
    (
        "SparseCategoricalCrossentropy",
        {"from_logits": True},
        (LABELS, X),
        rows_of("sparse_categorical_crossentropy", from_logits=True),
    ),
    (
        "SparseCategoricalCrossentropy",
        {"ignore_class": int(LABELS[0])},
        CLASS,
        lambda y, x, w: rows_of("sparse_categorical_crossentropy")(y, x, w * (y != LABELS[0])),
    ),
    ("R2Score", {}, NUMBERS, r2()),
    ("R2Score", {"class_aggregation": None}, NUMBERS, r2(None)),
    (
        "R2Score",
        {"class_aggregation": "variance_weighted_average", "num_regressors": 2},
        NUMBERS,
        r2("variance_weighted_average", 2),
    ),
    ("R2Score", {"num_regressors": 99}, NUMBERS, r2()),
    ("Precision", {}, BINARY, precision),
    ("Precision", {}, ONE, precision),
    (
        "Precision",
        {"thresholds": [0.7, 0.2]},
        BINARY,
        lambda y, x, w: precision(y, x, w, [0.7, 0.2]),
    ),
    (
        "Precision",
        {"top_k": 2},
        BINARY,
        lambda y, x, w: precision(y, largest(x, 2), w, -1e10),
    ),
    (
        "Precision",
        {"top_k": 2, "class_id": 1},
        BINARY,
        lambda y, x, w: precision(y[:, 1], largest(x, 2)[:, 1], w, -1e10),
    ),
    ("Recall", {}, BINARY, recall),
    ("Recall", {"class_id": 3}, BINARY, lambda y, x, w: recall(y[:, 3], x[:, 3], w)),
    (
        "Recall",
        {"thresholds": [0.7, 0.2]},
        BINARY,
        lambda y, x, w: recall(y, x, w, [0.7, 0.2]),
    ),
    ("TruePositives", {}, BINARY, lambda y, x, w: counts(y, x, w, 0.5)[0][0]),
    ("FalsePositives", {}, BINARY, lambda y, x, w: counts(y, x, w, 0.5)[1][0]),
    ("TrueNegatives", {}, BINARY, lambda y, x, w: counts(y, x, w, 0.5)[2][0]),
    (
        "FalseNegatives",
        {"thresholds": [0.1, 0.9]},
        BINARY,
        lambda y, x, w: counts(y, x, w, [0.1, 0.9])[3],
    ),
    (
        "SensitivityAtSpecificity",
        {"specificity": 0.4},
        BINARY,
        best("sensitivity", "specificity", 0.4),
    ),
    (
        "SpecificityAtSensitivity",
        {"sensitivity": 0.6},
        BINARY,
        best("specificity", "sensitivity", 0.6),
    ),
    ("PrecisionAtRecall", {"recall": 0.6}, BINARY, best("precision", "sensitivity", 0.6)),
    (
        "RecallAtPrecision",
        {"precision": 0.5},
        ONE,
        best("sensitivity", "precision", 0.5),
    ),
    *[
        ("AUC", {"curve": curve, "summation_method": method}, BINARY, area(curve, method))
        for curve in ("ROC", "PR")
        for method in ("interpolation", "minoring", "majoring")
    ],
    ("AUC", {"thresholds": [0.5, 0.3]}, ONE, area(thresholds=[0.3, 0.5])),
    (
        "AUC",
        {"from_logits": True},
        (BITS, X),
        lambda y, x, w: area()(y, (1 / (1 + np.exp(-x))).astype(np.float32), w),
    ),
    ("AUC", {"multi_label": True}, BINARY, each_label(area())),
    (
        "AUC",
        {"multi_label": True, "num_labels": CLASSES, "label_weights": [0.0, 0.0, 1.0, 0.0]},
        BINARY,
        lambda y, x, w: area()(y[:, 2], x[:, 2], w),
    ),
    ("F1Score", {}, CATEGORIES, f_score(is_largest)),
    (
        "F1Score",
        {"average": "macro", "threshold": 0.5},
        BINARY,
        f_score(lambda x: x > 0.5, "macro"),
    ),
    ("F1Score", {"average": "micro"}, CATEGORIES, f_score(is_largest, "micro")),
    (
        "FBetaScore",
        {"average": "weighted", "beta": 2.0, "threshold": 0.4},
        BINARY,
        f_score(lambda x: x > 0.4, "weighted", 2.0),
    ),
    ("MeanIoU", {"num_classes": 3, **FLOAT}, PIXELS, overlap(3)),
    ("MeanIoU", {"num_classes": 4, "ignore_class": 1, **FLOAT}, PIXELS, overlap(4, ignored=1)),
    ("IoU", {"num_classes": 3, "target_class_ids": [0, 2], **FLOAT}, PIXELS, overlap(3, [0, 2])),
    ("OneHotMeanIoU", {"num_classes": CLASSES, **FLOAT}, CATEGORIES, of_one_hot()),
    (
        "OneHotIoU",
        {"num_classes": CLASSES, "target_class_ids": [1, 2], **FLOAT},
        CATEGORIES,
        of_one_hot([1, 2]),
    ),
    ("PearsonCorrelation", {}, NUMBERS, mean_of(correlation)),
    ("ConcordanceCorrelation", {}, NUMBERS, mean_of(concordance)),
    (
        "BinaryIoU",
        {"threshold": 0.3, **FLOAT},
        BINARY,
        lambda y, x, w: overlap(2)(y, x >= 0.3, w),
    ),
    (
        "MeanIoU",
        {"num_classes": CLASSES, "sparse_y_true": False, "sparse_y_pred": False, **FLOAT},
        CATEGORIES,
        of_one_hot(),
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("has_weights", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize(
    ("name", "settings", "data", "formula"), CASES, ids=[f"{c[0]}-{k}" for k, c in enumerate(CASES)]
)
def test_metrics_follow_the_formula_over_batches(name, settings, data, formula, has_weights):
    y, x = data
    weights = WEIGHTS if has_weights else np.ones(ROWS, np.float32)
    wide = [z.astype(np.float64) if z.dtype.kind == "f" else z for z in data]
    expected = formula(*wide, weights.astype(np.float64))
    eager, traced = (getattr(metrics, name)(**settings) for _ in range(2))
    update = tg.function(lambda *batch: traced.update_state(*batch))
    of_pixels = "IoU" in name and data is not CATEGORIES
    for part in (FIRST, SECOND):
        batch = [y[part], x[part]]
        if has_weights:
            batch.append(weights[part, None] if of_pixels else weights[part])
        eager.update_state(*batch)
        update(*map(tg.constant, batch))
    for result in (eager.result(), traced.result(), tg.function(lambda: traced.result())()):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)
    for metric in (eager, traced):
        metric.reset_state()
        assert not any(v.numpy().any() for v in metric.variables)


def test_the_gains_of_precision_and_recall():
    found = metrics.AUC(curve="PRGAIN", thresholds=[0.5])
    y, x = [1, 1, 0, 0], [0.9, 0.4, 0.6, 0.1]
    # above 0.5: one right, one wrong, one missed; gains 1 - 1 * 1 / 1 = 0; above 0: 2 and 2, so 1
    # and 0; above 1: none, so 0 and 1
    assert found(y, x).numpy() == pytest.approx(1 * 0 + 0 * 0.5)
    sure = metrics.AUC(curve="PRGAIN", thresholds=[0.5])
    # above 0.5: two right, no wrong one, none missed: gains 1 and 1
    assert sure(y, [0.9, 0.8, 0.2, 0.1]).numpy() == pytest.approx(1.0)


# ---------------------------------------------------------------- means, sums, state


def test_means_and_sums_of_any_shape():
    total, mean = metrics.Sum(), metrics.Mean()
    for values, weights in ((3.0, None), (X, None), (X, WEIGHTS), (X, UNITS), (X[0], 2.0)):
        total.update_state(values, weights)
        mean.update_state(values, weights)
    parts = [3.0, X.sum(), (X * WEIGHTS[:, None]).sum(), (X * UNITS).sum(), (X[0] * 2).sum()]
    assert total.result().numpy() == pytest.approx(sum(parts), rel=1e-5)
    rows = [3.0, X.mean(-1).sum(), (X.mean(-1) * WEIGHTS).sum(), (X * UNITS).mean(-1).sum()]
    rows += [X[0].mean() * 2]  # one weight is that of one value, the mean of all
    count = 1 + ROWS + WEIGHTS.sum() + UNITS.mean(-1).sum() + 2
    assert mean.result().numpy() == pytest.approx(sum(rows) / count, rel=1e-5)


def test_a_metric_of_nothing_is_zero():
    for make in (metrics.Mean, metrics.Sum, metrics.Precision, metrics.Recall, metrics.AUC):
        assert make().result().numpy() == 0.0
    assert metrics.Mean()([1.0], sample_weight=0.0).numpy() == 0.0


def test_a_call_updates_and_returns_the_result():
    mean = metrics.Mean()
    assert mean(1.0).numpy() == 1.0
    step = tg.function(lambda x: mean(x))
    assert step(tg.constant(3.0)).numpy() == 2.0
    assert step(tg.constant(5.0)).numpy() == 3.0
    assert step.experimental_get_tracing_count() == 1
    assert mean.count.numpy() == 3


def test_metrics_stand_beside_a_training_step():
    layer, optimizer = tg.layers.Dense(CLASSES), tg.optimizers.Adam(0.1)
    loss_of = tg.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss_mean, accuracy = metrics.Mean("loss"), metrics.SparseCategoricalAccuracy()

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            logits = layer(x)
            loss = loss_of(y, logits)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        loss_mean.update_state(loss)
        accuracy.update_state(y, logits)

    for epoch in range(30):
        loss_mean.reset_state()
        accuracy.reset_state()
        for part in (FIRST, SECOND):
            step(tg.constant(X[part]), tg.constant(LABELS[part]))
        if epoch == 0:
            start = float(loss_mean.result())
    assert float(loss_mean.result()) < start / 2
    right = (layer(X).numpy().argmax(-1) == LABELS).mean()
    assert abs(float(accuracy.result()) - right) <= 1 / ROWS
    assert not loss_mean.trainable_variables


@pytest.mark.parametrize("make", [metrics.Mean, metrics.R2Score], ids=["mean", "made later"])
def test_metrics_go_through_checkpoints(make, tmp_path):
    first, second = make(), make()
    arguments = (X,) if make is metrics.Mean else (Y, X)
    first.update_state(*(z[FIRST] for z in arguments))
    path = tg.train.Checkpoint(metric=first).write(str(tmp_path / "saved"))
    tg.train.Checkpoint(metric=second).read(path)
    for metric in (first, second):
        metric.update_state(*(z[SECOND] for z in arguments))
    assert first.result().numpy() == second.result().numpy() != 0


def test_state_that_is_made_in_a_function():
    score = metrics.F1Score()
    update = tg.function(lambda y, x: score.update_state(y, x))
    traces = []
    for _ in range(3):
        update(tg.constant(ONE_HOT), tg.constant(UNITS))
        traces.append(update.experimental_get_tracing_count())
    assert traces[1] == traces[2]
    assert [v.name for v in score.variables] == [
        *("true_positives", "false_positives", "false_negatives", "intermediate_weights")
    ]
    np.testing.assert_allclose(score.intermediate_weights.numpy(), 3 * ONE_HOT.sum(0))


def test_open_sizes_are_one_trace():
    area_under = metrics.AUC(num_thresholds=11)
    specs = [tg.TensorSpec([None]), tg.TensorSpec([None])]
    update = tg.function(area_under.update_state, input_signature=specs)
    for part in (FIRST, SECOND):
        update(BITS[part, 0], UNITS[part, 0])
    whole = metrics.AUC(num_thresholds=11)(BITS[:, 0], UNITS[:, 0])
    assert area_under.result().numpy() == pytest.approx(whole.numpy(), rel=1e-6)


def test_weights_do_not_outnumber_the_predictions_of_one_class():
    precision = metrics.Precision(class_id=1)
    with pytest.raises(tg.errors.ShapeError, match=r"Precision: a sample_weight of f32\[.*\] has"):
        precision.update_state(ONE_HOT, UNITS, sample_weight=np.ones_like(UNITS))
    precision.update_state(ONE_HOT, UNITS, sample_weight=UNITS[:, 0])


def test_dtypes_and_names():
    mean = metrics.Mean("loss", tg.float64)
    assert mean(1.0).dtype is tg.float64
    assert repr(mean) == "<Mean name=loss>"
    assert [v.name for v in mean.variables] == ["total", "count"]  # in the order of Keras
    counted = metrics.MeanIoU(2)
    counted.update_state([0, 1], [0, 1], sample_weight=[2, 3])
    assert counted.total_cm.dtype is tg.int32
    assert counted.total_cm.numpy().tolist() == [[2, 0], [0, 3]]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: metrics.Mean(dtype=tg.bool), TypeError, "Mean: dtype is bool"),
        (lambda: metrics.Mean(name="a/name"), ValueError, "not a valid module name"),
        (lambda: metrics.Mean()(["a"]), TypeError, "cannot be a tensor"),
        (lambda: metrics.Mean()([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "Mean: the shapes"),
        (lambda: metrics.Accuracy()([1, 2], [1, 2, 3]), ValueError, "Accuracy: the shapes"),
        (lambda: metrics.BinaryAccuracy(threshold="a"), TypeError, "threshold is a number"),
        (lambda: metrics.TopKCategoricalAccuracy(k=0), ValueError, "k is 0"),
        (lambda: metrics.SparseCategoricalAccuracy()([0] * 3, X), ValueError, "sparse_categor"),
        (lambda: metrics.SparseCategoricalAccuracy()(np.eye(2), [0, 1]), ValueError, "labels f"),
        (lambda: metrics.SparseCategoricalAccuracy()(np.eye(2), np.eye(2)), ValueError, "labels f"),
        (lambda: metrics.CategoricalAccuracy()([0, 1], np.eye(2)), ValueError, "predictions f"),
        (lambda: metrics.Precision(thresholds=[0.5, 2.0]), ValueError, "a threshold is 2.0"),
        (lambda: metrics.Precision(top_k=0), ValueError, "top_k is 0"),
        (lambda: metrics.Precision(class_id=-1), ValueError, "class_id is -1"),
        (lambda: metrics.Recall(class_id=1)([1], [1.0]), ValueError, "class_id needs classes"),
        (lambda: metrics.Recall()([1, 0], [1.0, 0.0, 1.0]), ValueError, "Recall: the shapes"),
        (lambda: metrics.AUC(num_thresholds=1), ValueError, "num_thresholds is 1"),
        (lambda: metrics.AUC(curve="roc curve"), ValueError, "curve is 'roc curve'"),
        (lambda: metrics.AUC(summation_method="x"), ValueError, "summation_method is 'x'"),
        (lambda: metrics.AUC(multi_label=True)([1], [1.0]), ValueError, "AUC: y_pred is"),
        (lambda: metrics.PrecisionAtRecall(1.5), ValueError, "recall is 1.5"),
        (lambda: metrics.F1Score(average="all"), ValueError, "average is 'all'"),
        (lambda: metrics.F1Score()([1.0], [1.0]), ValueError, "F1Score: y_true is"),
        (lambda: metrics.FBetaScore(beta=0.0), ValueError, "beta is 0.0"),
        (lambda: metrics.IoU(2, [2]), ValueError, "a target class is 2"),
        (lambda: metrics.MeanIoU(0), ValueError, "num_classes is 0"),
        (lambda: metrics.MeanIoU(2)([0], [0], [0.5]), TypeError, "counts are int32"),
        (lambda: metrics.R2Score("mean"), ValueError, "class_aggregation is 'mean'"),
        (lambda: metrics.R2Score()([1.0], [1.0]), ValueError, "R2Score: y_true is"),
        (lambda: metrics.BinaryCrossentropy(label_smoothing=-1.0), ValueError, "smoothing is -1"),
        (lambda: metrics.Mean().update(1.0), AttributeError, "update"),
    ],
)
def test_bad_arguments_of_metrics_are_errors(call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    if kind is not AttributeError:
        assert "test_metrics.py" in str(caught.value)
        assert "fix: " in str(caught.value)
