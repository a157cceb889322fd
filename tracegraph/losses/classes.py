"""Losses as objects: functions of labels and predictions, with settings and a reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tracegraph.array.arguments import as_flag, as_number, given
from tracegraph.array.shaping import expand_dims
from tracegraph.boundary.shared_arguments import show_name
from tracegraph.core.types import DType, as_dtype
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.losses import functions
from tracegraph.losses.weighting import as_reduction, checked_options, floating, reduced
from tracegraph.math.elementwise.logic import logical_and, not_equal
from tracegraph.operands.conversion import as_tensor
from tracegraph.operands.masks import mask_of
from tracegraph.state.module import WithSettings
from tracegraph.typing import DTypeLike, TensorLike

_MEAN = "sum_over_batch_size"


class Loss(WithSettings):
    """The base class: reduces the weighted results of `call` to one number.

    - `reduction`: "sum_over_batch_size", the mean, also called "mean"; "sum";
      "mean_with_sample_weight", the sum divided by the sum of the weights; or "none", also None.
    - `dtype`: the dtype that predictions are cast to; by default they keep theirs, and integers
      become float32.

    A loss is called as `loss(y_true, y_pred, sample_weight=None)`. The weights broadcast to the
    losses, whose shape is that of y_pred without the last axis. What the mask of y_pred leaves out,
    which layers handed on to it, does not count. Subclasses define `call`.

    Raises SignatureError (a ValueError) for an unknown reduction, and DTypeError for a dtype that
    is not floating.

    >>> class Largest(tg.losses.Loss):
    ...     def call(self, y_true, y_pred):
    ...         return tg.reduce_max(abs(y_true - y_pred), -1)
    >>> float(Largest()([[0.0, 0.0]], [[1.0, -3.0]]))
    3.0
    """

    def __init__(
        self,
        name: str | None = None,
        reduction: str | None = _MEAN,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.name = name or type(self).__name__
        self.reduction = as_reduction(type(self).__name__, reduction)
        self.dtype: DType | None = None if dtype is None else as_dtype(dtype)
        if self.dtype is not None and not self.dtype.is_floating:
            fail(
                DTypeError,
                f"{type(self).__name__}: dtype is {self.dtype.name}",
                fix="use a floating one, such as tg.float32",
            )

    def _number(self, what: str, value: float, **bounds: float) -> float:
        return as_number(type(self).__name__, what, value, **bounds)

    def _flag(self, what: str, value: bool) -> bool:
        return as_flag(type(self).__name__, what, value)

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """The loss of the predictions, given the labels."""
        labels, predictions = as_tensor(y_true), floating(type(self).__name__, y_pred, self.dtype)
        losses = as_tensor(self.call(labels, predictions))
        mask, of_layers = self.mask(labels, losses), mask_of(y_pred)
        if of_layers is not None:
            mask = of_layers if mask is None else logical_and(mask, of_layers)
        return reduced(type(self).__name__, losses, sample_weight, mask, self.reduction)

    def call(self, y_true: Tensor, y_pred: Tensor) -> TensorLike:
        """The loss of each row."""
        raise NotImplementedError

    def mask(self, y_true: Tensor, losses: Tensor) -> Tensor | None:
        """Which losses count; None for all."""
        return None


class LossOfFunction(Loss):
    """A loss that is a function, by default under its name. Its options are arguments of the class,
    and are stored under their names."""

    function: ClassVar[Callable[..., Tensor]]
    _options: tuple[str, ...]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        show_name(cls, cls.function.__name__)

    def __init__(
        self,
        reduction: str | None = _MEAN,
        name: str | None = "",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(reduction, name, dtype)

    def _start(
        self, reduction: str | None, name: str | None, dtype: DTypeLike | None, **options: Any
    ) -> None:
        """Sets up the loss from the arguments of its `__init__`: `**given(locals())`."""
        own = type(self).function.__name__ if name == "" else name
        super().__init__(own, reduction, dtype)
        vars(self).update(checked_options(type(self).__name__, options))
        self._options = tuple(options)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        options = {name: vars(self)[name] for name in self._options}
        return type(self).function(y_true, y_pred, **options)


class MeanSquaredError(LossOfFunction):
    """The mean squared difference: `tg.losses.mean_squared_error`. See `Loss`.

    >>> loss = tg.losses.MeanSquaredError()
    >>> round(float(loss([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    2.5
    """

    function = functions.mean_squared_error


class MeanAbsoluteError(LossOfFunction):
    """The mean absolute difference: `tg.losses.mean_absolute_error`. See `Loss`.

    >>> loss = tg.losses.MeanAbsoluteError()
    >>> round(float(loss([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    1.5
    """

    function = functions.mean_absolute_error


class MeanAbsolutePercentageError(LossOfFunction):
    """Differences as percentages of labels: `tg.losses.mean_absolute_percentage_error`. See `Loss`.

    >>> loss = tg.losses.MeanAbsolutePercentageError()
    >>> round(float(loss([[1.0, 2.0]], [[2.0, 4.0]])), 4)
    100.0
    """

    function = functions.mean_absolute_percentage_error


class MeanSquaredLogarithmicError(LossOfFunction):
    """Squared differences of logarithms: `tg.losses.mean_squared_logarithmic_error`. See `Loss`.

    >>> loss = tg.losses.MeanSquaredLogarithmicError()
    >>> round(float(loss([[0.0, 1.0]], [[0.0, 3.0]])), 4)
    0.2402
    """

    function = functions.mean_squared_logarithmic_error


class Huber(LossOfFunction):
    """Quadratic for small differences, linear for large ones: `tg.losses.huber`. See `Loss`.

    >>> loss = tg.losses.Huber(delta=1.0)
    >>> round(float(loss([[0.0, 0.0]], [[1.0, 3.0]])), 4)
    1.5
    """

    function = functions.huber
    delta: float

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str | None = _MEAN,
        name: str | None = "huber_loss",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


class LogCosh(LossOfFunction):
    """Logarithms of the hyperbolic cosine of differences: `tg.losses.log_cosh`. See `Loss`.

    >>> loss = tg.losses.LogCosh()
    >>> round(float(loss([[0.0, 0.0]], [[1.0, 100.0]])), 4)
    49.8703
    """

    function = functions.log_cosh


class CosineSimilarity(LossOfFunction):
    """Minus the cosine of the angle along `axis`: `tg.losses.cosine_similarity`. See `Loss`.

    >>> loss = tg.losses.CosineSimilarity()
    >>> round(float(loss([[3.0, 4.0]], [[4.0, 3.0]])), 4)
    -0.96
    """

    function = functions.cosine_similarity
    axis: int

    def __init__(
        self,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "cosine_similarity",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


class Poisson(LossOfFunction):
    """The Poisson loss, for counts: `tg.losses.poisson`. See `Loss`.

    >>> loss = tg.losses.Poisson()
    >>> round(float(loss([[1.0, 0.0]], [[1.0, 2.0]])), 4)
    1.5
    """

    function = functions.poisson


class KLDivergence(LossOfFunction):
    """The Kullback-Leibler divergence: `tg.losses.kl_divergence`. See `Loss`.

    >>> loss = tg.losses.KLDivergence()
    >>> round(float(loss([[1.0, 0.0]], [[0.5, 0.5]])), 4)
    0.6931
    """

    function = functions.kl_divergence


class Hinge(LossOfFunction):
    """How far predictions fall short of a margin of 1: `tg.losses.hinge`. See `Loss`.

    >>> loss = tg.losses.Hinge()
    >>> round(float(loss([[1.0, -1.0]], [[0.5, 0.5]])), 4)
    1.0
    """

    function = functions.hinge


class SquaredHinge(LossOfFunction):
    """The squared shortfall from a margin of 1: `tg.losses.squared_hinge`. See `Loss`.

    >>> loss = tg.losses.SquaredHinge()
    >>> round(float(loss([[1.0, -1.0]], [[0.5, 0.5]])), 4)
    1.25
    """

    function = functions.squared_hinge


class CategoricalHinge(LossOfFunction):
    """The margin between the right class and the others: `tg.losses.categorical_hinge`. See `Loss`.

    >>> loss = tg.losses.CategoricalHinge()
    >>> round(float(loss([[0.0, 1.0]], [[0.5, 0.75]])), 4)
    0.75
    """

    function = functions.categorical_hinge


class BinaryCrossentropy(LossOfFunction):
    """The cross entropy of labels between 0 and 1: `tg.losses.binary_crossentropy`. See `Loss`.

    >>> loss = tg.losses.BinaryCrossentropy(from_logits=True)
    >>> round(float(loss([[1.0, 0.0]], [[0.0, 0.0]])), 4)
    0.6931
    """

    function = functions.binary_crossentropy
    from_logits: bool
    label_smoothing: float
    axis: int

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "binary_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


class BinaryFocalCrossentropy(LossOfFunction):
    """Cross entropy focused on hard labels: `tg.losses.binary_focal_crossentropy`. See `Loss`.

    >>> loss = tg.losses.BinaryFocalCrossentropy()
    >>> round(float(loss([[1.0, 0.0]], [[0.5, 0.5]])), 4)
    0.1733
    """

    function = functions.binary_focal_crossentropy
    apply_class_balancing: bool
    alpha: float
    gamma: float
    from_logits: bool
    label_smoothing: float
    axis: int

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "binary_focal_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._number("alpha", alpha, low=0, high=1)
        self._start(**given(locals()))


class CategoricalCrossentropy(LossOfFunction):
    """The cross entropy of one class out of several: `tg.losses.categorical_crossentropy`. See
    `Loss`.

    >>> loss = tg.losses.CategoricalCrossentropy(from_logits=True)
    >>> round(float(loss([[0.0, 1.0]], [[0.0, 0.0]])), 4)
    0.6931
    """

    function = functions.categorical_crossentropy
    from_logits: bool
    label_smoothing: float
    axis: int

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


class CategoricalFocalCrossentropy(LossOfFunction):
    """Cross entropy focused on hard classes: `tg.losses.categorical_focal_crossentropy`. See
    `Loss`.

    >>> loss = tg.losses.CategoricalFocalCrossentropy()
    >>> round(float(loss([[0.0, 1.0]], [[0.5, 0.5]])), 4)
    0.0433
    """

    function = functions.categorical_focal_crossentropy
    alpha: float
    gamma: float
    from_logits: bool
    label_smoothing: float
    axis: int

    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_focal_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))


class SparseCategoricalCrossentropy(LossOfFunction):
    """The cross entropy of class numbers: `tg.losses.sparse_categorical_crossentropy`. See `Loss`.
    Labels equal to `ignore_class` do not count in a mean.

    >>> loss = tg.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> round(float(loss([1], [[0.0, 0.0]])), 4)
    0.6931
    """

    function = functions.sparse_categorical_crossentropy
    from_logits: bool
    ignore_class: int | None
    axis: int

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = _MEAN,
        axis: int = -1,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        self._start(**given(locals()))

    def mask(self, y_true: Tensor, losses: Tensor) -> Tensor | None:
        if self.ignore_class is None:
            return None
        op = type(self).__name__
        labels = functions.class_numbers(op, y_true)
        return not_equal(functions.of_rows(op, labels, expand_dims(losses, -1)), self.ignore_class)


__all__ = [
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
]
