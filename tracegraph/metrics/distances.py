"""Losses and distances as metrics: their mean over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegraph.array.arguments import as_choice, as_count, given, rank_of, refuse, sizes_of
from tracegraph.array.creation import size
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import expand_dims
from tracegraph.ir.tensor import Tensor
from tracegraph.losses import functions
from tracegraph.losses.functions import EPSILON
from tracegraph.losses.weighting import labels_and_predictions, of_one_rank, real
from tracegraph.math.elementwise.arithmetic import add, divide, divide_no_nan, multiply, subtract
from tracegraph.math.elementwise.logic import greater, is_inf, not_equal
from tracegraph.math.elementwise.unary import sqrt, square
from tracegraph.math.reduction import reduce_mean, reduce_std, reduce_sum, reduce_variance
from tracegraph.metrics.metric import Mean, MeanOfFunction, Metric
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape, cast_to

if TYPE_CHECKING:
    from tracegraph.state.variable import Variable
    from tracegraph.typing import Axis, DTypeLike, TensorLike


class MeanSquaredError(MeanOfFunction):
    """The mean of `tg.losses.mean_squared_error`.

    >>> metric = tg.metrics.MeanSquaredError()
    >>> round(float(metric([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    2.5
    """

    function = functions.mean_squared_error


class RootMeanSquaredError(Mean):
    """The root mean squared difference.

    >>> metric = tg.metrics.RootMeanSquaredError()
    >>> round(float(metric([[0.0, 0.0]], [[1.0, 7.0]])), 4)
    5.0
    """

    def __init__(
        self, name: str = "root_mean_squared_error", dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(  # type: ignore[override]
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds the squared differences of a batch, times weights that broadcast to them."""
        y, x = labels_and_predictions(type(self).__name__, y_true, y_pred)
        super().update_state(square(subtract(x, y)), sample_weight)

    def result(self) -> Tensor:
        return sqrt(super().result())


class MeanAbsoluteError(MeanOfFunction):
    """The mean of `tg.losses.mean_absolute_error`.

    >>> metric = tg.metrics.MeanAbsoluteError()
    >>> round(float(metric([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    1.5
    """

    function = functions.mean_absolute_error


class MeanAbsolutePercentageError(MeanOfFunction):
    """The mean of `tg.losses.mean_absolute_percentage_error`.

    >>> metric = tg.metrics.MeanAbsolutePercentageError()
    >>> round(float(metric([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    100.0
    """

    function = functions.mean_absolute_percentage_error


class MeanSquaredLogarithmicError(MeanOfFunction):
    """The mean of `tg.losses.mean_squared_logarithmic_error`.

    >>> metric = tg.metrics.MeanSquaredLogarithmicError()
    >>> round(float(metric([[0.0, 1.0]], [[0.0, 3.0]])), 4)
    0.2402
    """

    function = functions.mean_squared_logarithmic_error


class LogCoshError(MeanOfFunction):
    """The mean of `tg.losses.log_cosh`.

    >>> metric = tg.metrics.LogCoshError()
    >>> round(float(metric([[0.0, 0.0]], [[1.0, 100.0]])), 4)
    49.8703
    """

    function = functions.log_cosh

    def __init__(
        self,
        name: str = "logcosh",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


def _cosine(y_true: Tensor, y_pred: Tensor, axis: int) -> Tensor:
    return functions.cosine("CosineSimilarity", y_true, y_pred, axis)


class CosineSimilarity(MeanOfFunction):
    """The mean cosine of the angle between labels and predictions along `axis`: 1 for the same
    direction.

    >>> metric = tg.metrics.CosineSimilarity()
    >>> round(float(metric([[3.0, 4.0]], [[4.0, 3.0]])), 4)
    0.96
    """

    function = _cosine

    def __init__(
        self,
        name: str = "cosine_similarity",
        dtype: DTypeLike | None = None,
        axis: int = -1,
    ) -> None:
        self._start(**given(locals()))


def pearson_correlation(y_true: TensorLike, y_pred: TensorLike, axis: Axis = -1) -> Tensor:
    """The Pearson correlation of labels and predictions along `axis`: the mean product of their
    deviations from the mean, over the standard deviations, each with 1e-7 added.

    >>> tg.metrics.pearson_correlation([[0.0, 1.0, 0.5]], [[0.1, 0.9, 0.5]]).numpy().round(4)
    array([1.], dtype=float32)
    """
    y, x = labels_and_predictions("pearson_correlation", y_true, y_pred)
    y, x = (
        divide(subtract(z, reduce_mean(z, axis, True)), add(reduce_std(z, axis, True), EPSILON))
        for z in (y, x)
    )
    return reduce_mean(multiply(y, x), axis)


def concordance_correlation(y_true: TensorLike, y_pred: TensorLike, axis: Axis = -1) -> Tensor:
    """The concordance of labels and predictions along `axis`:
    2 * covariance / (sum of both variances + squared difference of the means + 1e-7).

    Source: Lin, "A Concordance Correlation Coefficient to Evaluate Reproducibility" (1989).

    >>> y, x = [[0.0, 1.0, 0.5]], [[0.1, 0.9, 0.5]]
    >>> tg.metrics.concordance_correlation(y, x).numpy().round(4)
    array([0.9756], dtype=float32)
    """
    y, x = labels_and_predictions("concordance_correlation", y_true, y_pred)
    mean, other = (reduce_mean(z, axis, True) for z in (y, x))
    both = reduce_mean(multiply(subtract(y, mean), subtract(x, other)), axis)
    apart = reduce_mean(square(subtract(mean, other)), axis)
    spread = add(add(reduce_variance(y, axis), reduce_variance(x, axis)), apart)
    return divide(multiply(both, 2.0), add(spread, EPSILON))


class PearsonCorrelation(MeanOfFunction):
    """The mean of `tg.metrics.pearson_correlation` along `axis`: 1 if predictions are an increasing
    linear function of the labels.

    >>> metric = tg.metrics.PearsonCorrelation()
    >>> y_true, y_pred = [[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]]
    >>> round(float(metric(y_true, y_pred)), 4)
    0.9967
    """

    function = pearson_correlation

    def __init__(
        self,
        name: str = "pearson_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
    ) -> None:
        self._start(**given(locals()))


class ConcordanceCorrelation(MeanOfFunction):
    """The mean of `tg.metrics.concordance_correlation` along `axis`: 1 if predictions equal labels.

    >>> metric = tg.metrics.ConcordanceCorrelation()
    >>> y_true, y_pred = [[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]]
    >>> round(float(metric(y_true, y_pred)), 4)
    0.9816
    """

    function = concordance_correlation

    def __init__(
        self,
        name: str = "concordance_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
    ) -> None:
        self._start(**given(locals()))


class Hinge(MeanOfFunction):
    """The mean of `tg.losses.hinge`.

    >>> metric = tg.metrics.Hinge()
    >>> round(float(metric([[1.0, -1.0]], [[0.5, 0.5]])), 4)
    1.0
    """

    function = functions.hinge


class SquaredHinge(MeanOfFunction):
    """The mean of `tg.losses.squared_hinge`.

    >>> metric = tg.metrics.SquaredHinge()
    >>> round(float(metric([[1.0, -1.0]], [[0.5, 0.5]])), 4)
    1.25
    """

    function = functions.squared_hinge


class CategoricalHinge(MeanOfFunction):
    """The mean of `tg.losses.categorical_hinge`.

    >>> metric = tg.metrics.CategoricalHinge()
    >>> round(float(metric([[0.0, 1.0]], [[0.5, 0.75]])), 4)
    0.75
    """

    function = functions.categorical_hinge


class KLDivergence(MeanOfFunction):
    """The mean of `tg.losses.kl_divergence`.

    >>> metric = tg.metrics.KLDivergence()
    >>> round(float(metric([[1.0, 0.0]], [[0.5, 0.5]])), 4)
    0.6931
    """

    function = functions.kl_divergence


class Poisson(MeanOfFunction):
    """The mean of `tg.losses.poisson`.

    >>> metric = tg.metrics.Poisson()
    >>> round(float(metric([[1.0, 0.0]], [[1.0, 2.0]])), 4)
    1.5
    """

    function = functions.poisson


class BinaryCrossentropy(MeanOfFunction):
    """The mean of `tg.losses.binary_crossentropy`.

    >>> metric = tg.metrics.BinaryCrossentropy()
    >>> round(float(metric([[0.0, 1.0]], [[0.25, 0.75]])), 4)
    0.2877
    """

    function = functions.binary_crossentropy

    def __init__(
        self,
        name: str = "binary_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        self._start(**given(locals()))


class CategoricalCrossentropy(MeanOfFunction):
    """The mean of `tg.losses.categorical_crossentropy`.

    >>> metric = tg.metrics.CategoricalCrossentropy()
    >>> round(float(metric([[0.0, 1.0]], [[0.25, 0.75]])), 4)
    0.2877
    """

    function = functions.categorical_crossentropy

    def __init__(
        self,
        name: str = "categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
    ) -> None:
        self._start(**given(locals()))


class SparseCategoricalCrossentropy(MeanOfFunction):
    """The mean of `tg.losses.sparse_categorical_crossentropy`, without labels equal to
    `ignore_class`.

    >>> metric = tg.metrics.SparseCategoricalCrossentropy()
    >>> round(float(metric([1], [[0.25, 0.75]])), 4)
    0.2877
    """

    function = functions.sparse_categorical_crossentropy

    def __init__(
        self,
        name: str = "sparse_categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        self.ignore_class = ignore_class
        self._start(**given(locals()))

    def _masked(self, y_true: Tensor, values: Any, sample_weight: Any) -> Any:
        if self.ignore_class is None:
            return sample_weight
        name = type(self).__name__
        counts = not_equal(functions.class_numbers(name, y_true), self.ignore_class)
        mask, _ = of_one_rank(cast_to(counts, self.dtype), as_tensor(values), name)
        weights = self._weights(sample_weight)
        return mask if weights is None else multiply(*of_one_rank(mask, weights, name))


class R2Score(Metric):
    """The share of the labels' variance that predictions explain: 1 - sum((y_true - y_pred) ** 2) /
    sum((y_true - mean(y_true)) ** 2), for each column of two [rows, columns].

    - `class_aggregation`: "uniform_average", the mean over columns; "variance_weighted_average";
      or None for one number per column.
    - `num_regressors`: p, the number of independent predictors; the score s becomes
      1 - (1 - s) * (n - 1) / (n - p - 1) for n labels, if n is more than p + 1.

    Raises SignatureError (a ValueError) for an unknown `class_aggregation`, and ShapeError for
    labels that are not a table.

    >>> score = tg.metrics.R2Score()
    >>> round(float(score([[1.0], [4.0], [3.0]], [[2.0], [4.0], [4.0]])), 4)
    0.5714
    """

    if TYPE_CHECKING:
        squared_sum: Variable
        sum: Variable
        total_mse: Variable
        count: Variable

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str = "r2_score",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        kinds = ("uniform_average", "variance_weighted_average", None)
        self.class_aggregation = as_choice("R2Score", "class_aggregation", class_aggregation, kinds)
        self.num_regressors = as_count("R2Score", "num_regressors", num_regressors)
        self.num_samples = self.add_weight(name="num_samples")
        self.built = False

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds a batch, with a weight for each row, or for each element."""
        y, x = labels_and_predictions(
            "R2Score", y_true, cast_to(real("R2Score", y_pred), self.dtype)
        )
        if rank_of("R2Score", y) != 2:
            refuse("R2Score", f"y_true is {y.type}", y, fix="give a table: [rows, columns]")
        if not self.built:
            self._add_variables(
                sizes_of("R2Score", y)[1:], "squared_sum", "sum", "total_mse", "count"
            )
            self.built = True
        weights = self._weights(1.0 if sample_weight is None else sample_weight)
        weights = expand_dims(weights, 1) if weights.ndim == 1 else weights  # type: ignore[union-attr]
        weights = broadcast(weights, broadcast_shape("R2Score", y, weights))  # type: ignore[arg-type]
        self.sum.assign_add(reduce_sum(multiply(y, weights), 0))
        self.squared_sum.assign_add(reduce_sum(multiply(square(y), weights), 0))
        self.total_mse.assign_add(reduce_sum(multiply(square(subtract(y, x)), weights), 0))
        self.count.assign_add(reduce_sum(weights, 0))
        self.num_samples.assign_add(cast_to(as_tensor(size(y)), self.dtype))

    def result(self) -> Tensor:
        total = subtract(self.squared_sum, divide(square(self.sum), self.count))
        scores = subtract(1.0, divide(self.total_mse, total))
        scores = where(is_inf(scores), 0.0, scores)
        if self.class_aggregation == "uniform_average":
            scores = reduce_mean(scores)
        elif self.class_aggregation is not None:
            scores = divide(reduce_sum(multiply(scores, total)), reduce_sum(total))
        return self._adjusted(scores) if self.num_regressors else scores

    def _adjusted(self, scores: Tensor) -> Tensor:
        others = subtract(self.num_samples, 1.0)
        left = subtract(others, self.num_regressors)
        lost = multiply(subtract(1.0, scores), divide_no_nan(others, left))
        return where(greater(left, 0.0), subtract(1.0, lost), scores)


__all__ = [
    "BinaryCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "ConcordanceCorrelation",
    "CosineSimilarity",
    "Hinge",
    "KLDivergence",
    "LogCoshError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "PearsonCorrelation",
    "Poisson",
    "R2Score",
    "RootMeanSquaredError",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "concordance_correlation",
    "pearson_correlation",
]
