"""Accuracies: the share of predictions that are right."""

from __future__ import annotations

from tracegraph.array.arguments import as_flag, as_number, given, rank_of, refuse, sizes_of
from tracegraph.array.shaping import expand_dims, reshape, squeeze
from tracegraph.core.types import float32
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.functions import class_numbers
from tracegraph.losses.weighting import floating, labels_and_predictions
from tracegraph.math.elementwise.logic import equal, greater
from tracegraph.math.reduction import argmax, reduce_any
from tracegraph.math.sorting import in_top_k
from tracegraph.metrics.metric import MeanOfFunction
from tracegraph.operands.conversion import as_tensor, broadcast_shape, cast_to
from tracegraph.typing import DTypeLike, TensorLike


def _equal(op: str, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    y, x = labels_and_predictions(op, y_true, y_pred)
    return cast_to(equal(y, x), float32)


def accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    return _equal("Accuracy", y_true, y_pred)


def binary_accuracy(y_true: TensorLike, y_pred: TensorLike, threshold: float = 0.5) -> Tensor:
    """1 where `y_pred > threshold` agrees with y_true, which holds zeros and ones, else 0: a
    float32 of their shape. If only one of them has a last axis of size 1, that axis is ignored.

    >>> tg.metrics.binary_accuracy([1, 0, 1], [0.9, 0.6, 0.7]).numpy()
    array([1., 0., 1.], dtype=float32)
    """
    op = "binary_accuracy"
    bound = as_number(op, "threshold", threshold)
    return _equal(op, y_true, cast_to(greater(floating(op, y_pred), bound), float32))


def categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """1 where y_true and y_pred, [..., classes], are largest for the same class, else 0: a float32
    of shape [...].

    >>> tg.metrics.categorical_accuracy([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]).numpy()
    array([1., 0.], dtype=float32)
    """
    return _of_classes("categorical_accuracy", argmax(y_true, -1), y_pred)


def sparse_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """1 where y_pred, [..., classes], is largest for the class number y_true, else 0: a float32 of
    shape [...]. y_true is [...] or [..., 1].

    >>> tg.metrics.sparse_categorical_accuracy([1, 0], [[0.1, 0.9], [0.2, 0.8]]).numpy()
    array([1., 0.], dtype=float32)
    """
    op = "sparse_categorical_accuracy"
    return _of_classes(op, _numbers(op, y_true, y_pred), y_pred)


def _numbers(op: str, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    labels = class_numbers(op, y_true)
    has_axis = rank_of(op, labels) == rank_of(op, as_tensor(y_pred))
    return squeeze(labels, [-1]) if has_axis and sizes_of(op, labels)[-1] == 1 else labels


def _of_classes(op: str, labels: Tensor, y_pred: TensorLike) -> Tensor:
    found = argmax(y_pred, -1)
    if rank_of(op, labels) != rank_of(op, found):
        refuse(
            op,
            f"labels {labels.type} do not fit predictions {as_tensor(y_pred).type}",
            labels,
            as_tensor(y_pred),
            fix="pass the labels first, and predictions with one more axis at the end: the classes",
        )
    labels = cast_to(labels, found.dtype)
    broadcast_shape(op, labels, found)
    return cast_to(equal(labels, found), float32)


def top_k_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike, k: int = 5) -> Tensor:
    """1 where the class with the largest y_true is among the `k` with the largest y_pred, else 0:
    a float32 of shape [...]; both are [..., classes].

    >>> tg.metrics.top_k_categorical_accuracy([[0, 0, 1]], [[0.1, 0.7, 0.2]], k=2).numpy()
    array([1.], dtype=float32)
    """
    return sparse_top_k_categorical_accuracy(argmax(y_true, -1), y_pred, k)


def sparse_top_k_categorical_accuracy(
    y_true: TensorLike, y_pred: TensorLike, k: int = 5, from_sorted_ids: bool = False
) -> Tensor:
    """1 where the class number y_true, [...] or [..., 1], is among the `k` classes with the largest
    y_pred, [..., classes], else 0: a float32 of shape [...].

    - `from_sorted_ids`: whether y_pred holds class numbers, the most likely first.

    >>> tg.metrics.sparse_top_k_categorical_accuracy([2], [[0.1, 0.7, 0.2]], k=2).numpy()
    array([1.], dtype=float32)
    """
    op = "sparse_top_k_categorical_accuracy"
    labels, x = _numbers(op, y_true, y_pred), as_tensor(y_pred)
    if as_flag(op, "from_sorted_ids", from_sorted_ids):
        first = cast_to(x, labels.dtype)[..., :k]
        return cast_to(reduce_any(equal(expand_dims(labels, -1), first), -1), float32)
    if rank_of(op, x) == 0:
        refuse(
            op, f"y_pred is {x.type}, and it has an axis of classes", x, fix="give [..., classes]"
        )
    rows = reshape(floating(op, x), [-1, sizes_of(op, x)[-1]])
    found = in_top_k(reshape(labels, [-1]), rows, k)
    return reshape(cast_to(found, float32), list(sizes_of(op, x)[:-1]))


class Accuracy(MeanOfFunction):
    """How often predictions equal labels.

    >>> accuracy = tg.metrics.Accuracy()
    >>> float(accuracy([1, 2, 3, 4], [0, 2, 3, 4]))
    0.75
    """

    function = accuracy


class BinaryAccuracy(MeanOfFunction):
    """How often `y_pred > threshold` agrees with labels of 0 and 1.

    >>> accuracy = tg.metrics.BinaryAccuracy()
    >>> float(accuracy([1, 1, 0, 0], [0.9, 0.4, 0.2, 0.1]))
    0.75
    """

    function = binary_accuracy

    def __init__(
        self,
        name: str = "binary_accuracy",
        dtype: DTypeLike | None = None,
        threshold: float = 0.5,
    ) -> None:
        self.threshold = threshold
        self._start(**given(locals()))


class CategoricalAccuracy(MeanOfFunction):
    """How often predictions are largest for the true class, given one-hot labels.

    >>> accuracy = tg.metrics.CategoricalAccuracy()
    >>> float(accuracy([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]))
    0.5
    """

    function = categorical_accuracy


class SparseCategoricalAccuracy(MeanOfFunction):
    """How often predictions are largest for the true class, given its number as label.

    >>> accuracy = tg.metrics.SparseCategoricalAccuracy()
    >>> float(accuracy([1, 0], [[0.1, 0.9], [0.2, 0.8]]))
    0.5
    """

    function = sparse_categorical_accuracy


class TopKCategoricalAccuracy(MeanOfFunction):
    """How often the true class is among the `k` largest predictions, given one-hot labels.

    >>> accuracy = tg.metrics.TopKCategoricalAccuracy(k=1)
    >>> float(accuracy([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]))
    0.5
    """

    function = top_k_categorical_accuracy

    def __init__(
        self,
        k: int = 5,
        name: str = "top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self.k = k
        self._start(**given(locals()))


class SparseTopKCategoricalAccuracy(MeanOfFunction):
    """How often the true class is among the `k` largest predictions, given its number as label.

    - `from_sorted_ids`: whether predictions are class numbers, the most likely first.

    >>> accuracy = tg.metrics.SparseTopKCategoricalAccuracy(k=1)
    >>> float(accuracy([1, 0], [[0.1, 0.9], [0.2, 0.8]]))
    0.5
    """

    function = sparse_top_k_categorical_accuracy

    def __init__(
        self,
        k: int = 5,
        name: str = "sparse_top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
        from_sorted_ids: bool = False,
    ) -> None:
        self.k, self.from_sorted_ids = k, from_sorted_ids
        self._start(**given(locals()))


__all__ = [
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
]
