"""Losses for the overlap of masks, and for noisy labels."""

from __future__ import annotations

from tracegraph.array.arguments import as_number, as_sizes, rank_of, refuse, sizes_of
from tracegraph.array.creation import one_hot
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.classes import Loss
from tracegraph.losses.functions import EPSILON, class_numbers, of_rows
from tracegraph.losses.weighting import floating, labels_and_predictions
from tracegraph.math.elementwise.arithmetic import add, divide, multiply, pow, subtract
from tracegraph.math.reduction import reduce_sum
from tracegraph.typing import Axis, DTypeLike, TensorLike

_MEAN = "sum_over_batch_size"


def dice(y_true: TensorLike, y_pred: TensorLike, axis: Axis = None) -> Tensor:
    """1 - (2 * sum(y_true * y_pred) + 1e-7) / (sum(y_true) + sum(y_pred) + 1e-7), with the sums
    along `axis`, or over all elements, including the batch.

    y_true and y_pred have the same shape, with elements from 0 to 1; the dtype is that of y_pred,
    or float32 for integers. Raises ShapeError for shapes that do not broadcast.

    Source: Dice, "Measures of the Amount of Ecologic Association Between Species" (1945).

    >>> round(float(tg.losses.dice([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])), 4)
    0.3333
    """
    y, x = labels_and_predictions("dice", y_true, y_pred)
    both = multiply(reduce_sum(multiply(y, x), axis), 2.0)
    total = add(reduce_sum(y, axis), reduce_sum(x, axis))
    return subtract(1.0, divide(add(both, EPSILON), add(total, EPSILON)))


def tversky(
    y_true: TensorLike,
    y_pred: TensorLike,
    alpha: float = 0.5,
    beta: float = 0.5,
    axis: Axis = None,
) -> Tensor:
    """1 - both / (both + alpha * missed + beta * wrong + 1e-7), where both = sum(y_true * y_pred),
    missed = sum(y_true * (1 - y_pred)) and wrong = sum(y_pred * (1 - y_true)); see `dice` for
    shapes. With both weights 0.5, it corresponds to `dice`.

    Source: Salehi, Erdogmus and Gholipour, "Tversky loss function for image segmentation using 3D
    fully convolutional deep networks" (2017).

    >>> round(float(tg.losses.tversky([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], alpha=1.0)), 4)
    0.5
    """
    alpha, beta = as_number("tversky", "alpha", alpha), as_number("tversky", "beta", beta)
    y, x = labels_and_predictions("tversky", y_true, y_pred)
    both = reduce_sum(multiply(y, x), axis)
    missed = multiply(reduce_sum(multiply(subtract(1.0, x), y), axis), alpha)
    wrong = multiply(reduce_sum(multiply(x, subtract(1.0, y)), axis), beta)
    return subtract(1.0, divide(both, add(add(add(both, missed), wrong), EPSILON)))


def categorical_generalized_cross_entropy(
    y_true: TensorLike, y_pred: TensorLike, q: float
) -> Tensor:
    """(1 - p ** q) / q, where p is the probability of the true class: it tends to the cross entropy
    as q goes to 0, and at 1 is the mean absolute error, which suffers less from wrong labels.

    y_true is [...], integers, or [..., 1]; y_pred is [..., classes], probabilities; the result is
    [...], in the dtype of y_pred. Raises SignatureError (a ValueError) for a q that is not between
    0 and 1.

    Source: Zhang and Sabuncu, "Generalized Cross Entropy Loss for Training Deep Neural Networks
    with Noisy Labels" (2018).

    >>> tg.losses.categorical_generalized_cross_entropy([0], [[0.25, 0.75]], q=0.5).numpy()
    array([1.], dtype=float32)
    """
    op = "categorical_generalized_cross_entropy"
    q = _exponent(op, q)
    x, labels = floating(op, y_pred), class_numbers(op, y_true)
    if rank_of(op, x) == 0:
        refuse(op, f"y_pred is {x.type}, which has no classes", x, fix="give [..., classes]")
    hot = one_hot(of_rows(op, labels, x), sizes_of(op, x)[-1], dtype=x.dtype)
    p = reduce_sum(multiply(*labels_and_predictions(op, hot, x)), -1)
    return divide(subtract(1.0, pow(p, q)), q)


def _exponent(op: str, q: float) -> float:
    if not 0 < as_number(op, "q", q) < 1:
        fail(SignatureError, f"{op}: q is {q}", fix="use a number between 0 and 1")
    return q


class Dice(Loss):
    """One minus the overlap of two masks: `tg.losses.dice`. See `Loss`.

    >>> loss = tg.losses.Dice()
    >>> round(float(loss([[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]])), 4)
    0.3333
    """

    def __init__(
        self,
        reduction: str | None = _MEAN,
        name: str | None = "dice",
        axis: Axis = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.axis = None if axis is None else as_sizes(type(self).__name__, "axis", axis)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return dice(y_true, y_pred, self.axis)


class Tversky(Loss):
    """One minus the overlap of two masks, with a weight for each kind of error:
    `tg.losses.tversky`. See `Loss`.

    >>> loss = tg.losses.Tversky(alpha=1.0)
    >>> round(float(loss([[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]])), 4)
    0.5
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str | None = _MEAN,
        name: str | None = "tversky",
        axis: Axis = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.alpha = self._number("alpha", alpha)
        self.beta = self._number("beta", beta)
        self.axis = None if axis is None else as_sizes(type(self).__name__, "axis", axis)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return tversky(y_true, y_pred, self.alpha, self.beta, self.axis)


class CategoricalGeneralizedCrossEntropy(Loss):
    """Cross entropy for noisy labels:
    `tg.losses.categorical_generalized_cross_entropy`. See `Loss`.

    >>> loss = tg.losses.CategoricalGeneralizedCrossEntropy(q=0.5)
    >>> float(loss([0, 1], [[0.25, 0.75], [0.75, 0.25]]))
    1.0
    """

    def __init__(
        self,
        q: float = 0.5,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_generalized_cross_entropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.q = _exponent(type(self).__name__, q)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return categorical_generalized_cross_entropy(y_true, y_pred, self.q)


__all__ = [
    "CategoricalGeneralizedCrossEntropy",
    "Dice",
    "Tversky",
    "categorical_generalized_cross_entropy",
    "dice",
    "tversky",
]
