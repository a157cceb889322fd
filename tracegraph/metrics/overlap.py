"""Metrics of overlap between labels and predictions: F scores, intersection over union."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_number,
    as_size,
    as_sizes,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.shaping import expand_dims, reshape
from tracegraph.core.types import float32, int32
from tracegraph.errors import DTypeError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.functions import EPSILON
from tracegraph.losses.weighting import floating, real
from tracegraph.math.counting import counts_of_pairs
from tracegraph.math.elementwise.arithmetic import add, divide, multiply, subtract
from tracegraph.math.elementwise.logic import (
    equal,
    greater,
    greater_equal,
    less,
    logical_and,
    logical_not,
    logical_or,
)
from tracegraph.math.elementwise.unary import abs
from tracegraph.math.reduction import argmax, reduce_mean, reduce_sum
from tracegraph.metrics.metric import Metric
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape, cast_to
from tracegraph.ops.reduce import IsExtreme

if TYPE_CHECKING:
    from tracegraph.state.variable import Variable
    from tracegraph.typing import DTypeLike, TensorLike


class FBetaScore(Metric):
    """(1 + beta ** 2) * precision * recall / (beta ** 2 * precision + recall), for labels and
    predictions [rows, classes].

    - `average`: "micro" counts over all classes; "macro" is the mean over classes; "weighted" is
      that mean weighted by the number of labels; None gives one number per class.
    - `threshold`: from 0 to 1; predictions above it are positive. By default the largest of a row
      is.

    Raises SignatureError (a ValueError) for an unknown average, a `beta` that is not above 0 or a
    threshold out of range, and ShapeError for shapes that do not fit.

    >>> score = tg.metrics.FBetaScore(beta=2.0, threshold=0.5)
    >>> y_true = [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    >>> score(y_true, [[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]]).numpy().round(4)
    array([0.3846, 0.9091, 0.8333], dtype=float32)
    """

    if TYPE_CHECKING:
        true_positives: Variable
        false_positives: Variable
        false_negatives: Variable
        intermediate_weights: Variable

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str = "fbeta_score",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        op = type(self).__name__
        self.average = as_choice(op, "average", average, ("micro", "macro", "weighted", None))
        self.beta = as_number(op, "beta", beta, low=0)
        if not beta:
            fail(SignatureError, f"{op}: beta is {beta}", fix="use a number above 0")
        if threshold is not None:
            as_number(op, "threshold", threshold, low=0, high=1)
        self.threshold = threshold
        self.built = False

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds the counts of a batch, with a weight for each row."""
        op = type(self).__name__
        y, x = (cast_to(real(op, z), self.dtype) for z in (y_true, y_pred))
        broadcast_shape(op, y, x)
        if not rank_of(op, y) == rank_of(op, x) == 2:
            refuse(op, f"y_true is {y.type} and y_pred {x.type}", y, x, fix="give [rows, classes]")
        if not self.built:
            shape = [] if self.average == "micro" else sizes_of(op, x)[1:]
            names = ("true_positives", "false_positives", "false_negatives")
            self._add_variables(shape, *names, "intermediate_weights")
            self.built = True
        yes, weights = self._says_yes(x), self._weights(sample_weight)
        self._count(self.true_positives, multiply(yes, y), weights)
        self._count(self.false_positives, multiply(yes, subtract(1.0, y)), weights)
        self._count(self.false_negatives, multiply(subtract(1.0, yes), y), weights)
        self._count(self.intermediate_weights, y, weights)

    def _says_yes(self, x: Tensor) -> Tensor:
        if self.threshold is not None:
            return cast_to(greater(x, self.threshold), self.dtype)
        is_largest = IsExtreme((x.ndim - 1,), True)(x)
        return cast_to(logical_and(is_largest, greater(abs(x), 1e-9)), self.dtype)

    def _count(self, variable: Variable, values: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            values = multiply(values, expand_dims(weights, 1))
        variable.assign_add(reduce_sum(values, None if self.average == "micro" else 0))

    def result(self) -> Tensor:
        right = self.true_positives.read_value()
        precision, recall = (
            divide(right, add(add(right, wrong), EPSILON))
            for wrong in (self.false_positives, self.false_negatives)
        )
        square = self.beta**2
        spread = add(add(multiply(precision, square), recall), EPSILON)
        score = multiply(divide(multiply(precision, recall), spread), 1 + square)
        if self.average == "weighted":
            labels = self.intermediate_weights.read_value()
            return reduce_sum(multiply(score, divide(labels, add(reduce_sum(labels), EPSILON))))
        return score if self.average is None else reduce_mean(score)


class F1Score(FBetaScore):
    """2 * precision * recall / (precision + recall): `FBetaScore` with `beta=1`.

    >>> score = tg.metrics.F1Score(average="macro")
    >>> round(float(score([[1, 0], [0, 1], [0, 1]], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])), 4)
    0.6667
    """

    def __init__(
        self,
        average: str | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)


class IoU(Metric):
    """The mean intersection over union of some classes: the number of rows where both label and
    prediction are the class, over the number where at least one is. Classes that never occur in
    either do not count.

    - `num_classes`: the number of classes; `target_class_ids` selects those that count.
    - `ignore_class`: a label whose rows are left out, as are rows with class numbers out of range.
    - `sparse_y_true`, `sparse_y_pred`: whether they are class numbers; otherwise they have a class
      axis, `axis`, and the largest element counts.
    - `dtype`: int32 by default; use a floating one for weights that are not integers.

    Raises SignatureError (a ValueError) for classes out of range, and DTypeError for weights that
    the dtype cannot hold.

    >>> metric = tg.metrics.IoU(num_classes=2, target_class_ids=[0])
    >>> round(float(metric([0, 0, 1, 1], [0, 1, 0, 1])), 4)
    0.3333
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__(name=name, dtype=int32 if dtype is None else dtype)
        op = type(self).__name__
        self.num_classes = as_number(
            op, "num_classes", as_size(op, "num_classes", num_classes), low=1
        )
        self.target_class_ids = [
            as_number(op, "a target class", number, low=0, below=num_classes)
            for number in as_sizes(op, "target_class_ids", target_class_ids)
        ]
        self.ignore_class, self.axis = ignore_class, as_size(op, "axis", axis)
        self.sparse_y_true = as_flag(op, "sparse_y_true", sparse_y_true)
        self.sparse_y_pred = as_flag(op, "sparse_y_pred", sparse_y_pred)
        self.total_cm = self.add_weight((num_classes, num_classes), name="total_confusion_matrix")

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds a batch, of any shape, with weights that broadcast to the labels."""
        op = type(self).__name__
        y = self._numbers(y_true, self.sparse_y_true)
        x = self._numbers(y_pred, self.sparse_y_pred)
        weights = as_tensor(1 if sample_weight is None else sample_weight)
        if weights.dtype.is_floating and not self.dtype.is_floating:
            fail(
                DTypeError,
                f"{op}: sample_weight is {weights.type}, and the counts are {self.dtype.name}",
                fix="make the metric with dtype=tg.float32",
            )
        weights = broadcast(cast_to(weights, self.dtype), broadcast_shape(op, y, weights))
        y, x, weights = (reshape(z, [-1]) for z in (y, x, weights))
        broadcast_shape(op, y, x)
        left_out = logical_or(self._is_outside(y), self._is_outside(x))
        if self.ignore_class is not None:
            left_out = logical_or(left_out, equal(y, self.ignore_class))
        y, x, weights = (where(left_out, 0, z) for z in (y, x, weights))
        counts = counts_of_pairs(y, x, self.num_classes, weights, self.dtype)
        self.total_cm.assign_add(counts)

    def _numbers(self, value: TensorLike, is_sparse: bool) -> Tensor:
        return cast_to(as_tensor(value) if is_sparse else argmax(value, self.axis), int32)

    def _is_outside(self, numbers: Tensor) -> Tensor:
        fits = logical_and(greater_equal(numbers, 0), less(numbers, self.num_classes))
        return logical_not(fits)

    def result(self) -> Tensor:
        counts = cast_to(self.total_cm.read_value(), float32)
        wanted = as_tensor(np.asarray(self.target_class_ids), int32)
        both = reduce_sum(multiply(counts, as_tensor(np.eye(self.num_classes), float32)), 0)
        either = subtract(add(reduce_sum(counts, 0), reduce_sum(counts, 1)), both)
        both, either = gather(both, wanted), gather(either, wanted)
        exists = cast_to(greater(either, 1e-9), float32)
        shares = multiply(divide(both, add(either, EPSILON)), exists)
        return divide(reduce_sum(shares), add(reduce_sum(exists), EPSILON))


class MeanIoU(IoU):
    """`IoU` over all classes.

    >>> metric = tg.metrics.MeanIoU(num_classes=2)
    >>> round(float(metric([0, 0, 1, 1], [0, 1, 0, 1])), 4)
    0.3333
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        op = type(self).__name__
        count = as_number(op, "num_classes", as_size(op, "num_classes", num_classes), low=1)
        settings: tuple[Any, ...] = (name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis)
        super().__init__(num_classes, range(count), *settings)


class BinaryIoU(IoU):
    """`IoU` of two classes: predictions of at least `threshold` are class 1.

    >>> metric = tg.metrics.BinaryIoU(target_class_ids=[0, 1], threshold=0.3)
    >>> round(float(metric([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.7])), 4)
    0.3333
    """

    def __init__(
        self,
        target_class_ids: Sequence[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype)
        self.threshold = as_number("BinaryIoU", "threshold", threshold)

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds a batch, of any shape, with weights that broadcast to the labels."""
        x = floating(type(self).__name__, y_pred)
        says_yes = cast_to(greater_equal(x, self.threshold), int32)
        super().update_state(y_true, says_yes, sample_weight)


class OneHotIoU(IoU):
    """`IoU` of labels, and by default predictions, that have a class axis.

    >>> metric = tg.metrics.OneHotIoU(num_classes=2, target_class_ids=[0])
    >>> y_true, y_pred = [[1, 0], [1, 0], [0, 1], [0, 1]], [[9, 1], [1, 9], [9, 1], [1, 9]]
    >>> round(float(metric(y_true, y_pred)), 4)
    0.3333
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        settings: tuple[Any, ...] = (name, dtype, ignore_class, False, sparse_y_pred, axis)
        super().__init__(num_classes, target_class_ids, *settings)


class OneHotMeanIoU(MeanIoU):
    """`OneHotIoU` over all classes.

    >>> metric = tg.metrics.OneHotMeanIoU(num_classes=2)
    >>> y_true, y_pred = [[1, 0], [1, 0], [0, 1], [0, 1]], [[9, 1], [1, 9], [9, 1], [1, 9]]
    >>> round(float(metric(y_true, y_pred)), 4)
    0.3333
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis)


__all__ = [
    "BinaryIoU",
    "F1Score",
    "FBetaScore",
    "IoU",
    "MeanIoU",
    "OneHotIoU",
    "OneHotMeanIoU",
]
