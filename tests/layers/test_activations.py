"""Activations, regularizers, constraints, initializers and tg.keras, against formulas in NumPy."""

import importlib

import numpy as np
import pytest
import scipy.special

import tracegraph as tg

A = tg.activations
POINTS = np.array([-7.0, -2.5, -0.7, -0.2, 0.3, 0.8, 1.6, 4.5, 7.5])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def sparsest(x):
    """The nearest probabilities to each row, by bisection of what is taken off."""
    low, high = x.max(-1, keepdims=True) - 1, x.max(-1, keepdims=True)
    for _ in range(200):
        middle = (low + high) / 2
        is_large = np.maximum(x - middle, 0).sum(-1, keepdims=True) > 1
        low, high = np.where(is_large, middle, low), np.where(is_large, high, middle)
    return np.maximum(x - low, 0)


FORMULAS = {
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "exponential": np.exp,
    "gelu": lambda x: x * (1 + scipy.special.erf(x / np.sqrt(2))) / 2,
    "hard_shrink": lambda x: np.where(abs(x) > 0.5, x, 0),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "linear": lambda x: x,
    "log_sigmoid": lambda x: -softplus(-x),
    "log_softmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "softplus": softplus,
    "softsign": lambda x: x / (1 + abs(x)),
    "sparse_plus": lambda x: np.where(x < -1, 0, np.where(x > 1, x, (x + 1) ** 2 / 4)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "sparsemax": sparsest,
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "tanh_shrink": lambda x: x - np.tanh(x),
}


def close(actual, expected, tolerance=1e-12, name=""):
    found = actual.numpy()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)


def test_values_and_derivatives():
    seed = np.cos(np.arange(9.0))

    @tg.function
    def both(x):
        found = []
        for name in FORMULAS:
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = A.get(name)(x)
                total = tg.reduce_sum(y * seed)
            found.append((y, tape.gradient(total, x)))
        return found

    step = 1e-6
    for (name, formula), (y, slope) in zip(FORMULAS.items(), both(POINTS), strict=True):
        assert A.get(name) is getattr(A, name)
        close(y, formula(POINTS), 1e-10, name)
        slopes = [
            ((formula(POINTS + e) - formula(POINTS - e)) * seed).sum() / (2 * step)
            for e in step * np.eye(9)
        ]
        close(slope, slopes, 1e-6, name)
        assert tg.layers.Activation(name)([0.5, 0.1]).dtype == tg.float32


@pytest.mark.parametrize(
    ("name", "points", "values", "slopes"),
    [
        ("softsign", [np.inf, -np.inf, 3.0], [1.0, -1.0, 0.75], [0.0, 0.0, 0.0625]),
        ("squareplus", [1e30, -1e30, 0.0, -1e3], [1e30, 0.0, 1.0, 1e-3], [1.0, 0.0, 0.5, 1e-6]),
    ],
)
def test_far_out_the_limit_is_reached(name, points, values, slopes):
    x = tg.constant(points)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = A.get(name)(x)
    close(y, values, 1e-5)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), slopes, rtol=1e-5, atol=1e-12)


def test_squareplus_without_its_root_is_relu():
    close(A.squareplus([0.0, 2.0, -2.0], 0), [0.0, 2.0, 0.0])


@pytest.mark.parametrize("name", [*FORMULAS, "threshold"])
def test_nan_stays_nan(name):
    """Its own value is nan, and where a row is normalised those of the row are."""
    function = A.threshold if name == "threshold" else A.get(name)
    given = (0.5, -1.0) if name == "threshold" else ()
    found = function(tg.constant([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]]), *given).numpy()
    is_of_row = name in ("softmax", "log_softmax", "sparsemax")
    assert np.isnan(found).tolist() == [[is_of_row, True, is_of_row], [False] * 3]


def test_every_activation_has_a_formula_here():
    assert {*dir(A)} == {*FORMULAS, "get", "glu", "threshold"}


def test_arguments_of_activations():
    x = tg.constant(POINTS)
    expected = np.minimum(np.where(POINTS > 0.5, POINTS, 0.1 * (POINTS - 0.5)), 2)
    close(A.relu(x, 0.1, 2.0, 0.5), expected)
    close(A.elu(x, 0.3), np.where(POINTS > 0, POINTS, 0.3 * np.expm1(POINTS)))
    close(A.celu(x, 2.0), np.where(POINTS > 0, POINTS, 2 * np.expm1(POINTS / 2)))
    close(A.threshold(x, 1.0, -3.0), np.where(POINTS > 1, POINTS, -3))
    close(A.gelu(x, True), FORMULAS["gelu"](POINTS), 1e-3)
    rows = np.random.default_rng(0).normal(size=[3, 4, 5])
    close(A.glu(tg.constant(rows), 1), rows[:, :2] * sigmoid(rows[:, 2:]))
    close(A.sparsemax(tg.constant(rows), 1), sparsest(rows.swapaxes(1, 2)).swapaxes(1, 2), 1e-9)


# ---------------------------------------------------------------- regularizers

W = np.random.default_rng(1).normal(size=[3, 4])


def cosines(rows):
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = [abs(unit[i] @ unit[j]) for i in range(len(unit)) for j in range(i)]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        (tg.regularizers.L1(0.3), 0.3 * abs(W).sum()),
        (tg.regularizers.L2(0.3), 0.3 * (W**2).sum()),
        (tg.regularizers.L1L2(0.3, 0.2), 0.3 * abs(W).sum() + 0.2 * (W**2).sum()),
        (tg.regularizers.get("l1"), 0.01 * abs(W).sum()),
        (tg.regularizers.get("L2"), 0.01 * (W**2).sum()),
        (tg.regularizers.get("l1_l2"), 0),
        (tg.regularizers.OrthogonalRegularizer(0.5), 0.5 * cosines(W)),
        (tg.regularizers.OrthogonalRegularizer(0.5, "columns"), 0.5 * cosines(W.T)),
    ],
)
def test_regularizers(regularizer, expected):
    found = regularizer(tg.Variable(W))
    assert found.shape == () and found.dtype == tg.float64
    close(found, expected)


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    ("constraint", "norm"),
    [
        (tg.constraints.MaxNorm(1.0, axis=1), lambda n: np.minimum(n, 1)),
        (tg.constraints.UnitNorm(axis=1), np.ones_like),
        (tg.constraints.MinMaxNorm(1.0, 1.5, axis=1), lambda n: np.clip(n, 1.0, 1.5)),
        (
            tg.constraints.MinMaxNorm(1.0, 1.5, 0.25, axis=1),
            lambda n: 0.25 * np.clip(n, 1.0, 1.5) + 0.75 * n,
        ),
    ],
)
def test_constraints_of_norms(constraint, norm):
    norms = np.linalg.norm(W, axis=1, keepdims=True)
    assert norms.min() < 1.0 < 1.5 < norms.max()
    close(constraint(tg.Variable(W)), W * norm(norms) / norms, 1e-6)
    assert np.isfinite(constraint(np.zeros([2, 2])).numpy()).all()


def test_the_other_constraints():
    close(tg.constraints.get("non_neg")(W), np.maximum(W, 0))
    assert isinstance(tg.constraints.get("max_norm"), tg.constraints.MaxNorm)
    assert tg.constraints.get(None) is None


# ---------------------------------------------------------------- initializers


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (2, 3, 5)])
def test_orthogonal(shape):
    q = tg.initializers.Orthogonal(gain=2.0)(shape, "float64").numpy().reshape(-1, shape[-1])
    rows, columns = q.shape
    product = q @ q.T if rows < columns else q.T @ q
    np.testing.assert_allclose(product, 4 * np.eye(min(q.shape)), atol=1e-12)
    assert q.shape == (int(np.prod(shape[:-1])), shape[-1])


def test_orthogonal_matrices_are_uniform():
    tg.random.set_seed(4)
    first = [tg.initializers.Orthogonal()([2, 2]).numpy()[0, 0] for _ in range(300)]
    assert abs(np.mean(first)) < 0.15 and np.var(first) == pytest.approx(0.5, abs=0.08)


def test_identity_and_names_of_initializers():
    close(tg.initializers.Identity(3.0)([2, 3]), 3 * np.eye(2, 3))
    for name, kind in (("uniform", "RandomUniform"), ("HeNormal", "HeNormal"), ("zero", "Zeros")):
        assert type(tg.initializers.get(name)) is getattr(tg.initializers, kind)
    assert tg.initializers.glorot_uniform is tg.initializers.GlorotUniform


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: A.get("cosh"), ValueError, "not an activation"),
        (lambda: A.relu([1.0], max_value=-1.0), ValueError, "max_value"),
        (lambda: A.glu([1.0, 2.0, 3.0]), ValueError, "split"),
        (lambda: A.sparsemax([1.0], axis=1), ValueError, "out of range"),
        (lambda: tg.regularizers.L1("much"), TypeError, "l1 is a number"),
        (lambda: tg.regularizers.L2(-1.0), ValueError, "l2 is -1"),
        (lambda: tg.regularizers.OrthogonalRegularizer(mode="all"), ValueError, "mode"),
        (lambda: tg.regularizers.OrthogonalRegularizer()([1.0]), ValueError, "2 axes"),
        (lambda: tg.regularizers.get("l3"), ValueError, "not a regularizer"),
        (lambda: tg.constraints.MaxNorm(-1), ValueError, "max_value"),
        (lambda: tg.constraints.MinMaxNorm(2.0, 1.0), ValueError, "max_value"),
        (lambda: tg.constraints.get(3), ValueError, "not a constraint"),
        (lambda: tg.initializers.Orthogonal()([3]), ValueError, "2 axes"),
        (lambda: tg.initializers.Identity()([3, 3, 3]), ValueError, "a matrix"),
        (lambda: tg.initializers.get("nothing"), ValueError, "not an initializer"),
    ],
)
def test_bad_arguments_of_these_functions_are_errors(make, kind, words):
    with pytest.raises(kind, match=words) as error:
        make()
    assert "test_activations.py" in str(error.value)
    assert "fix: " in str(error.value)


# ---------------------------------------------------------------- tg.keras


def test_keras_is_the_same_modules():
    for name in ("activations", "constraints", "initializers", "layers", "optimizers"):
        assert getattr(tg.keras, name) is getattr(tg, name)
        assert importlib.import_module(f"tracegraph.keras.{name}") is getattr(tg, name)
    assert tg.keras.Sequential is tg.layers.Sequential
    assert tg.keras.Loss is tg.losses.Loss
    for name in ("Initializer", "Metric", "Optimizer", "Regularizer"):
        assert getattr(tg.keras, name) is getattr(getattr(tg, f"{name.lower()}s"), name)
    with pytest.raises(AttributeError, match=r"fix: use tg\.keras\.Sequential"):
        _ = tg.keras.Model
    with pytest.raises(AttributeError, match=r'Huber\(reduction="sum"\)'):
        _ = tg.keras.losses.Reduction
    with pytest.raises(AttributeError, match='fix: give each layer dtype="mixed_float16"'):
        _ = tg.keras.mixed_precision
