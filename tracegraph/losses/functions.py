"""Losses as functions of labels and predictions: one value per row."""

from __future__ import annotations

import math

from tracegraph.array.arguments import as_axis, as_flag, as_number, rank_of, refuse, sizes_of
from tracegraph.array.creation import zeros_like
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import expand_dims, squeeze
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import int32
from tracegraph.errors import DTypeError, fail, warn
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.weighting import floating, labels_and_predictions
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    maximum,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.logic import equal, less_equal, logical_or, not_equal
from tracegraph.math.elementwise.unary import (
    abs,
    expm1,
    log,
    log1p,
    negative,
    sigmoid,
    sinh,
    softplus,
    square,
)
from tracegraph.math.norms import l2_normalize, log_softmax
from tracegraph.math.reduction import reduce_all, reduce_max, reduce_mean, reduce_sum, summable
from tracegraph.nn.loss import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.operands.logits import logits_of
from tracegraph.typing import TensorLike

#: A lower bound for probabilities, and for other divisors and arguments of logarithms.
EPSILON = 1e-7

# ---------------------------------------------------------------- numbers


def mean_squared_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean((y_true - y_pred) ** 2) along the last axis.

    y_true and y_pred are [..., n]; the result is [...], in the dtype of y_pred, or float32 for
    integers. If only one of them has a last axis of size 1, that axis is ignored.
    Raises ShapeError for shapes that do not broadcast.

    >>> tg.losses.mean_squared_error([[1.0, 2.0]], [[2.0, 4.0]]).numpy()
    array([2.5], dtype=float32)
    """
    y, x = labels_and_predictions("mean_squared_error", y_true, y_pred)
    return reduce_mean(square(subtract(x, y)), -1)


def mean_absolute_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean(|y_true - y_pred|) along the last axis; see `mean_squared_error` for shapes.

    >>> tg.losses.mean_absolute_error([[1.0, 2.0]], [[2.0, 4.0]]).numpy()
    array([1.5], dtype=float32)
    """
    y, x = labels_and_predictions("mean_absolute_error", y_true, y_pred)
    return reduce_mean(abs(subtract(x, y)), -1)


def mean_absolute_percentage_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """100 * mean(|y_true - y_pred| / max(|y_true|, 1e-7)) along the last axis; see
    `mean_squared_error` for shapes.

    >>> tg.losses.mean_absolute_percentage_error([[1.0, 2.0]], [[2.0, 4.0]]).numpy()
    array([100.], dtype=float32)
    """
    y, x = labels_and_predictions("mean_absolute_percentage_error", y_true, y_pred)
    parts = divide(subtract(y, x), maximum(abs(y), EPSILON))
    return multiply(reduce_mean(abs(parts), -1), 100.0)


def mean_squared_logarithmic_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean((log(1 + y_true) - log(1 + y_pred)) ** 2) along the last axis, for numbers above 0:
    those below 1e-7 count as 1e-7. See `mean_squared_error` for shapes.

    >>> loss = tg.losses.mean_squared_logarithmic_error([[0.0, 1.0]], [[0.0, 3.0]])
    >>> loss.numpy().round(4)
    array([0.2402], dtype=float32)
    """
    y, x = labels_and_predictions("mean_squared_logarithmic_error", y_true, y_pred)
    y, x = (log1p(maximum(z, EPSILON)) for z in (y, x))
    return reduce_mean(square(subtract(x, y)), -1)


def huber(y_true: TensorLike, y_pred: TensorLike, delta: float = 1.0) -> Tensor:
    """The mean along the last axis of e ** 2 / 2 where e = |y_true - y_pred| is at most `delta`,
    and of delta * e - delta ** 2 / 2 elsewhere; see `mean_squared_error` for shapes.

    Source: Huber, "Robust Estimation of a Location Parameter" (1964).

    >>> tg.losses.huber([[0.0, 0.0]], [[1.0, 3.0]]).numpy()
    array([1.5], dtype=float32)
    """
    y, x = labels_and_predictions("huber", y_true, y_pred)
    delta = as_number("huber", "delta", delta, low=0)
    error = subtract(x, y)
    size = abs(error)
    far = subtract(multiply(size, delta), delta * delta / 2)
    return reduce_mean(where(less_equal(size, delta), multiply(square(error), 0.5), far), -1)


def log_cosh(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean(log(cosh(y_pred - y_true))) along the last axis, without overflow; see
    `mean_squared_error` for shapes.

    >>> tg.losses.log_cosh([[0.0, 0.0]], [[1.0, 100.0]]).numpy().round(4)
    array([49.8703], dtype=float32)
    """
    y, x = labels_and_predictions("log_cosh", y_true, y_pred)
    error = subtract(x, y)
    is_small = less_equal(abs(error), 1.0)
    # cosh(e) - 1 = 2 sinh(e / 2) ** 2, of which even tiny errors keep their digits.
    half = sinh(multiply(where(is_small, error, 0.0), 0.5))
    small = log1p(multiply(square(half), 2.0))
    large = subtract(add(error, softplus(multiply(error, -2.0))), math.log(2.0))
    return reduce_mean(where(is_small, small, large), -1)


def cosine_similarity(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Minus the cosine of the angle between y_true and y_pred along `axis`: -1 for vectors in the
    same direction, 0 for a zero vector. See `mean_squared_error` for shapes.

    >>> tg.losses.cosine_similarity([[3.0, 4.0]], [[6.0, 8.0]]).numpy().round(4)
    array([-1.], dtype=float32)
    """
    return negative(cosine("cosine_similarity", y_true, y_pred, axis))


def cosine(op: str, y_true: TensorLike, y_pred: TensorLike, axis: int) -> Tensor:
    """The cosine of the angle between two vectors along an axis."""
    y, x = labels_and_predictions(op, y_true, y_pred)
    y, x = (l2_normalize(z, axis, EPSILON * EPSILON) for z in (y, x))
    return reduce_sum(multiply(y, x), axis)


def poisson(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean(y_pred - y_true * log(y_pred + 1e-7)) along the last axis: the negative log-likelihood
    of counts with expectation y_pred, up to terms without y_pred. See `mean_squared_error` for
    shapes.

    >>> tg.losses.poisson([[1.0, 0.0]], [[1.0, 2.0]]).numpy().round(4)
    array([1.5], dtype=float32)
    """
    y, x = labels_and_predictions("poisson", y_true, y_pred)
    return reduce_mean(subtract(x, multiply(y, log(add(x, EPSILON)))), -1)


def kl_divergence(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """sum(y_true * log(y_true / y_pred)) along the last axis, for probabilities, which are clipped
    to [1e-7, 1]. See `mean_squared_error` for shapes.

    Source: Kullback and Leibler, "On Information and Sufficiency" (1951).

    >>> tg.losses.kl_divergence([[1.0, 0.0]], [[0.5, 0.5]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    y, x = labels_and_predictions("kl_divergence", y_true, y_pred)
    dtype = x.dtype
    y, x = (clip_by_value(summable(z), EPSILON, 1.0) for z in (y, x))
    return cast_to(reduce_sum(multiply(y, log(divide(y, x))), -1), dtype)


# ---------------------------------------------------------------- margins


def hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean(max(1 - y_true * y_pred, 0)) along the last axis. Labels are -1 and 1; if all of them
    are 0 or 1, 0 counts as -1. See `mean_squared_error` for shapes.

    >>> tg.losses.hinge([[1.0, -1.0]], [[0.5, 0.5]]).numpy()
    array([1.], dtype=float32)
    """
    return reduce_mean(_missing_margin("hinge", y_true, y_pred), -1)


def squared_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """mean(max(1 - y_true * y_pred, 0) ** 2) along the last axis, for labels as in `hinge`.

    >>> tg.losses.squared_hinge([[1.0, -1.0]], [[0.5, 0.5]]).numpy()
    array([1.25], dtype=float32)
    """
    return reduce_mean(square(_missing_margin("squared_hinge", y_true, y_pred)), -1)


def _missing_margin(op: str, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    y, x = labels_and_predictions(op, y_true, y_pred)
    is_binary = reduce_all(logical_or(equal(y, 0), equal(y, 1)))
    signs = where(is_binary, subtract(multiply(y, 2.0), 1.0), y)
    return maximum(subtract(1.0, multiply(signs, x)), 0.0)


def categorical_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """max(max((1 - y_true) * y_pred) - sum(y_true * y_pred) + 1, 0), with the inner maximum and the
    sum along the last axis, which holds the classes. Labels are 0 and 1.

    >>> tg.losses.categorical_hinge([[0.0, 1.0]], [[0.5, 0.75]]).numpy()
    array([0.75], dtype=float32)
    """
    y, x = labels_and_predictions("categorical_hinge", y_true, y_pred)
    right = reduce_sum(multiply(y, x), -1)
    wrong = reduce_max(multiply(subtract(1.0, y), x), -1)
    return maximum(add(subtract(wrong, right), 1.0), 0.0)


# ---------------------------------------------------------------- probabilities


def binary_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """mean(-y_true * log(y_pred) - (1 - y_true) * log(1 - y_pred)) along `axis`.

    - `from_logits`: whether y_pred holds logits rather than probabilities. The loss of logits is
      computed without overflow; probabilities are kept at least 1e-7 away from 0 and 1, unless
      they are those of an activation, which holds on to its logits: these are used then, with a
      warning if `from_logits` is true as well.
    - `label_smoothing`: s, from 0 to 1; labels y become y * (1 - s) + s / 2.

    See `mean_squared_error` for shapes. Raises SignatureError (a ValueError) for a
    `label_smoothing` out of range.

    >>> tg.losses.binary_crossentropy([[1.0, 0.0]], [[0.5, 0.5]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "binary_crossentropy"
    y, x = labels_and_predictions(op, y_true, y_pred)
    y = _smoothed(op, y, label_smoothing, 2)
    x, from_logits = _logits(op, x, from_logits, None)
    return reduce_mean(_of_binary(y, x, from_logits), axis)


def _logits(op: str, x: Tensor, from_logits: bool, axis: int | None) -> tuple[Tensor, bool]:
    """The predictions, and whether they are logits: those of probabilities that a sigmoid as an
    activation made, or a softmax along `axis`."""
    from_logits = as_flag(op, "from_logits", from_logits)
    found = logits_of(x, axis)
    if found is None or found.dtype is not x.dtype:
        return x, from_logits
    if from_logits:
        kind = "sigmoid" if axis is None else "softmax"
        warn(f"{op}: from_logits is True, and y_pred are the probabilities of a {kind}. The logits "
             f"that these were made of are used; leave out the {kind}, or from_logits")  # fmt: skip
    return found, True


def _of_binary(y: Tensor, x: Tensor, from_logits: bool) -> Tensor:
    if from_logits:
        return sigmoid_cross_entropy_with_logits(labels=y, logits=x)
    p = _inside(x)
    of_ones, of_zeros = (cast_to(z, x.dtype) for z in (log(p), log1p(negative(p))))
    return negative(add(multiply(y, of_ones), multiply(subtract(1.0, y), of_zeros)))


def _inside(p: Tensor) -> Tensor:
    """Probabilities away from 0 and 1, in a dtype that has numbers so close to 1."""
    return clip_by_value(summable(p), EPSILON, 1.0 - EPSILON)


def _log_inside(p: Tensor) -> Tensor:
    """log(p), at most -EPSILON, in the dtype of p."""
    return cast_to(log(_inside(p)), p.dtype)


def _smoothed(op: str, labels: Tensor, label_smoothing: float, classes: Tensor | int) -> Tensor:
    """The labels, with a share of them spread over all classes."""
    share = as_number(op, "label_smoothing", label_smoothing, low=0, high=1)
    if not share:
        return labels
    return add(multiply(labels, 1.0 - share), divide(as_tensor(share, labels.dtype), classes))


def binary_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """`binary_crossentropy` with elements multiplied by (1 - p) ** gamma before the mean, where
    p = y_true * y_pred + (1 - y_true) * (1 - y_pred) is the probability of the label.

    - `apply_class_balancing`: whether to also multiply by
      y_true * alpha + (1 - y_true) * (1 - alpha).

    The other arguments are those of `binary_crossentropy`.

    Source: Lin et al., "Focal Loss for Dense Object Detection" (2017).

    >>> tg.losses.binary_focal_crossentropy([[1.0, 0.0]], [[0.5, 0.5]]).numpy().round(4)
    array([0.1733], dtype=float32)
    """
    op = "binary_focal_crossentropy"
    y, x = labels_and_predictions(op, y_true, y_pred)
    y = _smoothed(op, y, label_smoothing, 2)
    x, from_logits = _logits(op, x, from_logits, None)
    of_one, of_zero = (sigmoid(x), sigmoid(negative(x))) if from_logits else (x, subtract(1.0, x))
    other = subtract(1.0, y)
    # Computed as the probability of the other label, which from logits does not vanish too early.
    wrong = add(multiply(y, of_zero), multiply(other, of_one))
    gamma = as_number(op, "gamma", gamma, low=0)
    loss = multiply(pow(wrong, gamma), _of_binary(y, x, from_logits))
    alpha = as_number(op, "alpha", alpha, low=0, high=1)
    if as_flag(op, "apply_class_balancing", apply_class_balancing):
        loss = multiply(loss, add(multiply(y, alpha), multiply(other, 1.0 - alpha)))
    return reduce_mean(loss, axis)


def categorical_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """-sum(y_true * log(y_pred)) along `axis`, which holds the classes.

    - `y_true`: probabilities, such as one-hot rows.
    - `y_pred`: of the same shape: logits with `from_logits`, else probabilities, which are divided
      by their sum and kept at least 1e-7 away from 0 and 1; those of an activation, as in
      `binary_crossentropy`.
    - `label_smoothing`: s, from 0 to 1; labels y become y * (1 - s) + s / number of classes.

    Raises ShapeError for shapes that do not broadcast, and SignatureError (a ValueError) for a
    `label_smoothing` out of range.

    >>> tg.losses.categorical_crossentropy([[0.0, 1.0]], [[0.5, 0.5]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "categorical_crossentropy"
    y, x = _classes(op, y_true, y_pred, label_smoothing, axis)
    x, from_logits = _logits(op, x, from_logits, as_axis(op, axis, rank_of(op, x), x))
    if from_logits:
        return softmax_cross_entropy_with_logits(labels=y, logits=x, axis=axis)
    return negative(reduce_sum(multiply(y, _log_probabilities(x, axis)), axis))


def _classes(
    op: str, y_true: TensorLike, y_pred: TensorLike, label_smoothing: float, axis: int
) -> tuple[Tensor, Tensor]:
    labels, predictions = as_tensor(y_true), as_tensor(y_pred)
    sizes = sizes_of(op, predictions)
    if sizes and same_shape(sizes_of(op, labels), sizes[:-1]) is not None:
        refuse(
            op,
            f"the labels {labels.type} have no axis of classes, as {predictions.type} has",
            labels,
            predictions,
            fix="use the function with `sparse` in its name, or one-hot rows: tg.one_hot(labels, "
            f"{sizes[-1]})",
        )
    y, x = labels_and_predictions(op, labels, predictions)
    sizes = sizes_of(op, y)
    count = sizes[as_axis(op, axis, len(sizes), y)]
    return _smoothed(op, y, label_smoothing, cast_to(as_tensor(count), y.dtype)), x


def _log_probabilities(x: Tensor, axis: int) -> Tensor:
    return _log_inside(divide(x, reduce_sum(x, axis, True)))


def categorical_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """-sum(alpha * (1 - y_pred) ** gamma * y_true * log(y_pred)) along `axis`, which holds the
    classes. The other arguments are those of `categorical_crossentropy`.

    Source: Lin et al., "Focal Loss for Dense Object Detection" (2017).

    >>> loss = tg.losses.categorical_focal_crossentropy([[0.0, 1.0]], [[0.5, 0.5]])
    >>> loss.numpy().round(4)
    array([0.0433], dtype=float32)
    """
    op = "categorical_focal_crossentropy"
    y, x = _classes(op, y_true, y_pred, label_smoothing, axis)
    alpha, gamma = (as_number(op, n, v, low=0) for n, v in (("alpha", alpha), ("gamma", gamma)))
    is_logit = as_flag(op, "from_logits", from_logits)
    logarithm = log_softmax(x, axis) if is_logit else _log_probabilities(x, axis)
    weight = multiply(pow(negative(expm1(logarithm)), gamma), alpha)
    return negative(reduce_sum(multiply(weight, multiply(y, logarithm)), axis))


def sparse_categorical_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    from_logits: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
) -> Tensor:
    """-log(y_pred[..., y_true]): the loss of integer labels.

    - `y_true`: class numbers from 0, integers or integral floats: [...], or [..., 1].
    - `y_pred`: [..., classes]: logits with `from_logits`, else probabilities, which are kept at
      least 1e-7 away from 0 and 1 and divided by their sum; those of an activation, as in
      `binary_crossentropy`.
    - `ignore_class`: a label whose loss is 0.

    Labels out of range are treated as in `tg.nn.sparse_softmax_cross_entropy_with_logits`.
    Raises ShapeError for shapes that do not fit, and for an `axis` other than the last one.

    >>> tg.losses.sparse_categorical_crossentropy([1], [[0.5, 0.5]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "sparse_categorical_crossentropy"
    x, labels = floating(op, y_pred), class_numbers(op, y_true)
    rank = rank_of(op, x)
    if as_axis(op, axis, rank, x) != rank - 1:
        refuse(op, f"axis {axis} is not the last one of {x.type}", x, fix="move it there")
    labels = of_rows(op, labels, x)
    x, from_logits = _logits(op, x, from_logits, rank - 1)
    counts = None if ignore_class is None else not_equal(labels, ignore_class)
    if counts is not None:
        labels = where(counts, labels, zeros_like(labels))
        x = where(expand_dims(counts, -1), x, zeros_like(x))
    if not from_logits:
        x = _log_inside(x)
    loss = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return loss if counts is None else where(counts, loss, zeros_like(loss))


def of_rows(op: str, labels: Tensor, x: Tensor) -> Tensor:
    """Labels, one per row of predictions, without a last axis of size 1."""
    has_an_axis_more = rank_of(op, labels) == rank_of(op, x) and sizes_of(op, labels)[-1] == 1
    return squeeze(labels, [-1]) if has_an_axis_more else labels


def class_numbers(op: str, y_true: TensorLike) -> Tensor:
    """Labels as integers. Raises DTypeError if they are not real numbers."""
    labels = as_tensor(y_true)
    if labels.dtype.is_integer:
        return labels
    if not labels.dtype.is_floating:
        fail(
            DTypeError,
            f"{op}: y_true is {labels.type}, and it must be numbers of classes",
            operands=[operand_text(labels)],
            fix="use integers from 0",
        )
    return cast_to(labels, int32)


__all__ = [
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "cosine_similarity",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
]
