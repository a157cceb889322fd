"""Metrics of binary decisions: confusion counts, precision, recall, areas under curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_number,
    as_size,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import ones_like, range as numbers_to
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import expand_dims, reshape, transpose
from tracegraph.core.types import bool_
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.functions import EPSILON
from tracegraph.losses.weighting import of_one_rank, real
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    divide_no_nan,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import equal, greater, greater_equal, logical_and
from tracegraph.math.elementwise.unary import log, sigmoid
from tracegraph.math.reduction import reduce_any, reduce_max, reduce_mean, reduce_sum
from tracegraph.math.sorting import top_k as largest
from tracegraph.metrics.metric import Metric
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape, cast_to

if TYPE_CHECKING:
    from tracegraph.state.variable import Variable
    from tracegraph.typing import DTypeLike, TensorLike

#: Below all predictions: a class outside the `top_k` is never predicted positive.
_NEVER = -1e10

_COUNTS = ("true_positives", "false_positives", "true_negatives", "false_negatives")


class _Confusion(Metric):
    """Confusion counts for each of some thresholds."""

    #: The counts that are kept.
    _kept: tuple[str, ...] = ()

    if TYPE_CHECKING:
        true_positives: Variable
        false_positives: Variable
        true_negatives: Variable
        false_negatives: Variable

    thresholds: list[float]
    top_k: int | None = None
    class_id: int | None = None

    def _set_thresholds(self, thresholds: Any, default: float) -> None:
        given = thresholds if isinstance(thresholds, (list, tuple)) else [thresholds]
        if thresholds is not None:
            for threshold in given:
                as_number(type(self).__name__, "a threshold", threshold, low=0, high=1)
        self.thresholds = [default] if thresholds is None else list(given)
        self._add_variables([len(self.thresholds)], *self._kept)

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds the counts of a batch; weights broadcast to the predictions, aligned on the left."""
        y, x, weights = self._operands(y_true, y_pred, sample_weight)
        self._count(*(reshape(z, [1, -1]) for z in (y, x, weights)))

    def _count(self, y: Tensor, x: Tensor, weights: Tensor) -> None:
        """Adds the counts along the last axis; operands are [labels or 1, rows]."""
        of_yes, of_no = (where(cast_to(y, bool_), *z) for z in ((weights, 0.0), (0.0, weights)))
        bounds = as_tensor(np.asarray(self.thresholds), self.dtype)
        says_yes = greater(expand_dims(x, 0), reshape(bounds, [-1, 1, 1]))
        right, wrong = (
            reduce_sum(where(says_yes, expand_dims(z, 0), 0.0), -1) for z in (of_yes, of_no)
        )
        missed, left = (
            subtract(reduce_sum(z, -1), found) for z, found in ((of_yes, right), (of_no, wrong))
        )
        for name, count in zip(_COUNTS, (right, wrong, left, missed)):
            if name in self._kept:
                variable = getattr(self, name)
                variable.assign_add(reshape(count, variable.shape))

    def _operands(
        self, y_true: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        op = type(self).__name__
        y, x = (cast_to(real(op, z), self.dtype) for z in (y_true, y_pred))
        x, y = of_one_rank(x, y, op)
        weights = None if sample_weight is None else self._weights_of(x, sample_weight)
        if self.top_k is not None:
            x = self._among_largest(x, self.top_k)
        if self.class_id is not None:
            classes = sizes_of(op, x)
            if len(classes) < 2:
                refuse(
                    op, f"class_id needs classes, and y_pred is {x.type}", x, fix="[rows, classes]"
                )
            y, x = (z[..., self.class_id, None] for z in (y, x))
        shape = broadcast_shape(op, x, y)
        weights = ones_like(x) if weights is None else weights
        if broadcast_shape(op, x, y, weights) != shape:
            fact = (
                f"a sample_weight of {weights.type} has more elements than predictions of {x.type}"
            )
            refuse(op, fact, weights, fix="give one weight for each prediction, or for each row")
        return tuple(broadcast(z, shape) for z in (y, x, weights))  # type: ignore[return-value]

    def _weights_of(self, x: Tensor, sample_weight: Any) -> Tensor:
        """The weights, with axes of size 1 appended up to the rank of the predictions."""
        weights = cast_to(real(type(self).__name__, sample_weight), self.dtype)
        rank, own = rank_of(type(self).__name__, x), rank_of(type(self).__name__, weights)
        return reshape(weights, [*sizes_of(type(self).__name__, weights), *[1] * (rank - own)])

    def _among_largest(self, x: Tensor, k: int) -> Tensor:
        chosen = largest(x, k)[1]
        classes = numbers_to(sizes_of(type(self).__name__, x)[-1], dtype=chosen.dtype)
        found = reduce_any(equal(expand_dims(chosen, -1), classes), -2)
        return where(found, x, _NEVER)

    def _of_one(self, value: Tensor) -> Tensor:
        """The single element if there is one threshold, else all."""
        return value[0] if len(self.thresholds) == 1 else value


class _Counter(_Confusion):
    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._set_thresholds(thresholds, 0.5)

    def result(self) -> Tensor:
        return self._of_one(getattr(self, self._kept[0]).read_value())


class TruePositives(_Counter):
    """The number of true positives, by weight.

    - `thresholds`: one, or several with a count each: predictions above it are positive; 0.5 by
      default.

    >>> count = tg.metrics.TruePositives()
    >>> float(count([1, 0, 0, 0], [0.9, 0.6, 0.7, 0.2]))
    1.0
    """

    _kept = ("true_positives",)


class FalsePositives(_Counter):
    """The number of false positives, by weight; see `TruePositives`.

    >>> count = tg.metrics.FalsePositives()
    >>> float(count([1, 0, 0, 0], [0.9, 0.6, 0.7, 0.2]))
    2.0
    """

    _kept = ("false_positives",)


class TrueNegatives(_Counter):
    """The number of true negatives, by weight; see `TruePositives`.

    >>> count = tg.metrics.TrueNegatives()
    >>> float(count([1, 0, 0, 0], [0.9, 0.6, 0.7, 0.2]))
    1.0
    """

    _kept = ("true_negatives",)


class FalseNegatives(_Counter):
    """The number of false negatives, by weight; see `TruePositives`.

    >>> count = tg.metrics.FalseNegatives()
    >>> float(count([1, 0, 0, 0], [0.9, 0.6, 0.7, 0.2]))
    0.0
    """

    _kept = ("false_negatives",)


class _Share(_Confusion):
    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if top_k is not None:
            as_number(type(self).__name__, "top_k", top_k, low=1)
        if class_id is not None:
            as_number(type(self).__name__, "class_id", class_id, low=0)
        self.top_k, self.class_id = top_k, class_id
        self._set_thresholds(thresholds, 0.5 if top_k is None else _NEVER)

    def result(self) -> Tensor:
        right, wrong = (getattr(self, name) for name in self._kept)
        return self._of_one(divide_no_nan(right, add(right, wrong)))


class Precision(_Share):
    """The share of positive predictions that are right; 0 if there are none.

    - `thresholds`: one, or several with a result each: predictions above it are positive; 0.5 by
      default.
    - `top_k`: how many classes of [..., classes] may be positive: those with the largest
      predictions. All of these are, unless there are `thresholds`.
    - `class_id`: the only class to evaluate.

    >>> precision = tg.metrics.Precision()
    >>> float(precision([0, 1, 1, 1], [0.6, 0.2, 0.7, 0.1]))
    0.5
    """

    _kept = ("true_positives", "false_positives")


class Recall(_Share):
    """The share of positive labels that are found; 0 if there are none. The arguments are those of
    `Precision`.

    >>> recall = tg.metrics.Recall()
    >>> round(float(recall([0, 1, 1, 1], [0.6, 0.2, 0.7, 0.1])), 4)
    0.3333
    """

    _kept = ("true_positives", "false_negatives")


def _count_of_thresholds(op: str, count: Any, least: int) -> int:
    number = as_size(op, "num_thresholds", count)
    return as_number(op, "num_thresholds", number, low=least, high=_MOST_THRESHOLDS)


#: Each threshold has its own counts.
_MOST_THRESHOLDS = 2**24


class _Best(_Confusion):
    """The maximum of one rate over the thresholds at which another is high enough."""

    _kept = _COUNTS
    #: The rate whose highest value counts, and the one with a bound.
    _rates: ClassVar[tuple[str, str]]

    def _start(self, what: str, bound: Any, num_thresholds: int, class_id: int | None) -> None:
        op = type(self).__name__
        self.value = as_number(op, what, bound, low=0, high=1)
        count = _count_of_thresholds(op, num_thresholds, 1)
        self.class_id = class_id
        self._set_thresholds([0.5] if count == 1 else np.linspace(0, 1, count).tolist(), 0.5)

    def result(self) -> Tensor:
        right, wrong, left, missed = (getattr(self, name).read_value() for name in _COUNTS)
        shares = {
            "sensitivity": divide_no_nan(right, add(right, missed)),
            "specificity": divide_no_nan(left, add(left, wrong)),
            "precision": divide_no_nan(right, add(right, wrong)),
        }
        what, where_large = self._rates
        is_large = greater_equal(shares[where_large], self.value)
        return reduce_max(where(is_large, shares[what], 0.0))


class SensitivityAtSpecificity(_Best):
    """The highest sensitivity, the share of labels 1 found, at a specificity, the share of labels 0
    found, of at least `specificity`.

    - `num_thresholds`: how many thresholds from 0 to 1 to try; predictions above one are positive.
    - `class_id`: the only class of [..., classes] to evaluate.

    >>> metric = tg.metrics.SensitivityAtSpecificity(0.5)
    >>> float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8]))
    0.5
    """

    _rates = ("sensitivity", "specificity")

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._start("specificity", specificity, num_thresholds, class_id)


class SpecificityAtSensitivity(_Best):
    """The highest specificity, the share of labels 0 found, at a sensitivity, the share of labels 1
    found, of at least `sensitivity`. The other arguments are those of `SensitivityAtSpecificity`.

    >>> metric = tg.metrics.SpecificityAtSensitivity(0.5)
    >>> round(float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8])), 4)
    0.6667
    """

    _rates = ("specificity", "sensitivity")

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._start("sensitivity", sensitivity, num_thresholds, class_id)


class PrecisionAtRecall(_Best):
    """The highest precision at a recall of at least `recall`. The other arguments are those of
    `SensitivityAtSpecificity`.

    >>> metric = tg.metrics.PrecisionAtRecall(0.5)
    >>> float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8]))
    0.5
    """

    _rates = ("precision", "sensitivity")

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._start("recall", recall, num_thresholds, class_id)


class RecallAtPrecision(_Best):
    """The highest recall at a precision of at least `precision`. The other arguments are those of
    `SensitivityAtSpecificity`.

    >>> metric = tg.metrics.RecallAtPrecision(0.5)
    >>> float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8]))
    1.0
    """

    _rates = ("sensitivity", "precision")

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._start("precision", precision, num_thresholds, class_id)


class AUC(_Confusion):
    """The area under a curve, computed from `num_thresholds` thresholds from 0 to 1.

    - `curve`: "ROC", the true positive rate over the false positive rate; "PR", precision over
      recall; or "PRGAIN", precision gain over recall gain, relative to always predicting positive.
    - `summation_method`: "interpolation", the trapezoidal rule, or for "PR" the formula of Davis
      and Goadrich; "minoring" or "majoring", by the lower or the higher end of each step.
    - `thresholds`: the thresholds between 0 and 1, in place of their number.
    - `multi_label`: whether predictions are [rows, labels] with a curve for each label; the result
      is the mean of the areas, weighted by `label_weights`. `num_labels` is their number.
    - `from_logits`: whether predictions are logits rather than probabilities.

    Raises SignatureError (a ValueError) for an unknown curve or method, and for fewer than 2
    thresholds.

    Sources: Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves" (2006);
    Flach and Kull, "Precision-Recall-Gain Curves: PR Analysis Done Right" (2015).

    >>> area = tg.metrics.AUC(num_thresholds=3)
    >>> float(area([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9]))
    0.75
    """

    _kept = _COUNTS

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: DTypeLike | None = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Sequence[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        methods = ("interpolation", "minoring", "majoring")
        self.curve = as_choice("AUC", "curve", curve, ("ROC", "PR", "PRGAIN"))
        self.summation_method = as_choice("AUC", "summation_method", summation_method, methods)
        self.multi_label = as_flag("AUC", "multi_label", multi_label)
        self.from_logits = as_flag("AUC", "from_logits", from_logits)
        self.label_weights = label_weights
        if thresholds is None:
            num_thresholds = _count_of_thresholds("AUC", num_thresholds, 2)
        between = np.linspace(0, 1, num_thresholds)[1:-1] if thresholds is None else thresholds
        for threshold in between:
            as_number("AUC", "a threshold", threshold, low=0, high=1)
        self.thresholds = [-EPSILON, *sorted(between), 1 + EPSILON]
        self.num_thresholds = len(self.thresholds)
        self.built = False
        if not self.multi_label:
            self._build([self.num_thresholds])
        elif num_labels is not None:
            self._build([self.num_thresholds, num_labels])

    def _build(self, shape: Sequence[Any]) -> None:
        self._add_variables(shape, *self._kept)
        self.built = True

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds the counts of a batch; weights broadcast to the predictions, aligned on the left."""
        x = cast_to(real(type(self).__name__, y_pred), self.dtype)
        x = clip_by_value(sigmoid(x) if self.from_logits else x, 0.0, 1.0)
        if not self.multi_label:
            return super().update_state(y_true, x, sample_weight)
        if rank_of("AUC", x) != 2:
            refuse("AUC", f"y_pred is {x.type}", x, fix="give [rows, labels], or no multi_label")
        if not self.built:
            self._build([self.num_thresholds, sizes_of("AUC", x)[1]])
        self._count(*(transpose(z) for z in self._operands(y_true, x, sample_weight)))
        return None

    def result(self) -> Tensor:
        of_pr = self.curve == "PR" and self.summation_method == "interpolation"
        areas = reduce_sum(self._areas_between_points() if of_pr else self._areas(), 0)
        if not self.multi_label:
            return areas
        if self.label_weights is None:
            return reduce_mean(areas)
        weights = as_tensor(self.label_weights, self.dtype)
        return divide_no_nan(reduce_sum(multiply(areas, weights)), reduce_sum(weights))

    def _areas(self) -> Tensor:
        """The areas of the steps between the thresholds."""
        x, y = self._points()
        heights: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "interpolation": lambda a, b: divide(add(a, b), 2.0),
            "minoring": minimum,
            "majoring": maximum,
        }
        height = heights[self.summation_method](y[:-1], y[1:])
        return multiply(subtract(x[:-1], x[1:]), height)

    def _points(self) -> tuple[Tensor, Tensor]:
        right, wrong, left, missed = (getattr(self, name).read_value() for name in _COUNTS)
        recall = divide_no_nan(right, add(right, missed))
        if self.curve == "ROC":
            return divide_no_nan(wrong, add(wrong, left)), recall
        if self.curve == "PR":
            return recall, divide_no_nan(right, add(right, wrong))
        scale = divide_no_nan(add(right, missed), add(left, wrong))
        gains = (subtract(1.0, multiply(scale, divide_no_nan(z, right))) for z in (missed, wrong))
        is_none = equal(right, 0.0)
        recall, precision = (where(is_none, z, gain) for z, gain in zip((0.0, 1.0), gains))
        return maximum(recall, 0.0), precision

    def _areas_between_points(self) -> Tensor:
        """The areas under the precision-recall curve, on which true positives are interpolated
        linearly in the positive predictions."""
        right, missed = self.true_positives.read_value(), self.false_negatives.read_value()
        yes = add(right, self.false_positives)
        found, said = subtract(right[:-1], right[1:]), subtract(yes[:-1], yes[1:])
        slope = divide_no_nan(found, maximum(said, 0.0))
        intercept = subtract(right[1:], multiply(slope, yes[1:]))
        is_usual = logical_and(greater(yes[:-1], 0.0), greater(yes[1:], 0.0))
        ratio = where(is_usual, divide_no_nan(yes[:-1], maximum(yes[1:], 0.0)), 1.0)
        area = multiply(slope, add(found, multiply(intercept, log(ratio))))
        return divide_no_nan(area, maximum(add(right[1:], missed[1:]), 0.0))


__all__ = [
    "AUC",
    "FalseNegatives",
    "FalsePositives",
    "Precision",
    "PrecisionAtRecall",
    "Recall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "TrueNegatives",
    "TruePositives",
]
