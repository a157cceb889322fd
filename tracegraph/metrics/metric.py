"""Metrics: running totals in Variables, and their results; means and sums of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tracegraph import initializers
from tracegraph.array.arguments import as_function, as_shape, rank_of
from tracegraph.array.creation import ones_like, zeros_like
from tracegraph.boundary.shared_arguments import show_name
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.weighting import checked_options, masked, of_one_rank, real
from tracegraph.math.elementwise.arithmetic import divide_no_nan, multiply
from tracegraph.math.reduction import reduce_mean, reduce_sum
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape, cast_to
from tracegraph.operands.masks import mask_of
from tracegraph.state.deferred import announce
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable
from tracegraph.typing import DTypeLike, InitializerLike, TensorLike

if TYPE_CHECKING:
    from typing import ParamSpec, Protocol, TypeVar

    Arguments = ParamSpec("Arguments")
    Output = TypeVar("Output", covariant=True)

    # How calls of a metric are typed: they take what `update_state` takes, and return `result`.

    class _OpenMetric(Protocol):
        """A metric of which only the base class is known."""

        def update_state(self, *args: object, **kwargs: object) -> Any: ...

    class _Measure(Protocol[Arguments, Output]):
        def update_state(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any: ...
        def result(self) -> Output: ...


class Metric(Module):
    """The base class: `update_state` adds to Variables, and `result` reads them.

    A call does both. `reset_state` sets all Variables to 0. Everything works inside functions, and
    checkpoints and saved models include the Variables as for any Module.

    - `dtype`: the dtype of the Variables and of the result; float32 by default.

    Subclasses create their Variables with `add_weight`, and define `update_state` and `result`.
    Raises DTypeError for a dtype that is neither floating nor integer.

    >>> class Largest(tg.metrics.Metric):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.largest = self.add_weight(name="largest")
    ...
    ...     def update_state(self, values):
    ...         self.largest.assign(tg.maximum(self.largest, tg.reduce_max(values)))
    ...
    ...     def result(self):
    ...         return self.largest.read_value()
    >>> largest = Largest()
    >>> float(largest([1.0, 3.0])), float(largest([2.0]))
    (3.0, 3.0)
    """

    _holds_weights, _is_named_as_in_keras = False, True

    def __init__(self, dtype: DTypeLike | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.dtype: DType = float32 if dtype is None else as_dtype(dtype)
        if not (self.dtype.is_floating or self.dtype.is_integer):
            fail(
                DTypeError,
                f"{type(self).__name__}: dtype is {self.dtype.name}",
                fix="use a floating one, such as tg.float32",
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: InitializerLike | None = "zeros",
        dtype: DTypeLike | None = None,
        aggregation: str | None = "sum",
        name: str | None = None,
    ) -> Variable:
        """Creates a Variable, which tapes do not watch automatically.

        - `initializer`: a function of a shape and a dtype that returns the initial value, or its
          name; None means "zeros".
        - `dtype`: by default that of the metric.
        - `aggregation`: how to combine replicas, of which there is one.
        """
        kind = self.dtype if dtype is None else as_dtype(dtype)
        start = initializers.get("zeros" if initializer is None else initializer)
        with at_top_level():
            value = start(as_shape("add_variable", shape), kind)
            variable = Variable(value, trainable=False, name=name)
        variable.has_plain_name = True
        return variable

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: InitializerLike | None = "zeros",
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Variable:
        """`add_variable`, by default for a scalar."""
        return self.add_variable(shape, initializer, dtype, name=name)

    def _add_variables(self, shape: Sequence[Any], *names: str) -> None:
        """Creates Variables as attributes of these names."""
        for name in names:
            setattr(self, name, self.add_weight(shape, name=name))
        announce(self)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Adds a batch to the Variables."""
        raise NotImplementedError

    def result(self) -> Any:
        """The metric over all batches since the last reset."""
        raise NotImplementedError

    def reset_state(self) -> None:
        """Sets all Variables to 0."""
        for variable in self.variables:
            variable.assign(zeros_like(variable))

    @overload
    def __call__(self: _OpenMetric, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def __call__(
        self: _Measure[Arguments, Output], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Output: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Updates the state and returns the result."""
        api_boundary(self.update_state)(*args, **kwargs)
        return self.result()

    def _weights(self, sample_weight: TensorLike | None) -> Tensor | None:
        if sample_weight is None:
            return None
        return cast_to(real(type(self).__name__, sample_weight), self.dtype)

    def _by_sample(
        self,
        values: TensorLike,
        sample_weight: TensorLike | None,
        reduce: Callable[[Tensor, Any], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """One value per row, and its weight: weights broadcast to values of equal rank, and further
        axes of the values are reduced."""
        op = type(self).__name__
        x, weights = cast_to(real(op, values), self.dtype), self._weights(sample_weight)
        if weights is None:
            x = reduce(x, list(range(1, rank_of(op, x))))
            return x, ones_like(x)
        x, weights = of_one_rank(x, weights, op)
        x = reduce(x, list(range(rank_of(op, weights), rank_of(op, x))))
        weights = broadcast(weights, broadcast_shape(op, x, weights))
        rest = list(range(1, rank_of(op, weights)))
        return reduce(multiply(x, weights), rest), reduce(weights, rest)


class Sum(Metric):
    """The sum of all values times their weights.

    >>> total = tg.metrics.Sum()
    >>> total.update_state([1.0, 2.0])
    >>> total.update_state([3.0, 4.0], sample_weight=[1.0, 0.0])
    >>> float(total.result())
    6.0
    """

    def __init__(self, name: str = "sum", dtype: DTypeLike | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_weight(name="total")

    def update_state(self, values: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Adds the values, times weights that broadcast to them."""
        x, _ = self._by_sample(values, sample_weight, reduce_sum)
        self.total.assign_add(reduce_sum(x))

    def result(self) -> Tensor:
        return self.total.read_value()


class Mean(Metric):
    """The weighted mean of all values; 0 if there are none.

    Without weights each row counts once, however many values it has.

    >>> mean = tg.metrics.Mean()
    >>> mean.update_state([1.0, 2.0])
    >>> mean.update_state(6.0)
    >>> float(mean.result())
    3.0
    """

    def __init__(self, name: str = "mean", dtype: DTypeLike | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_weight(name="total")
        self.count = self.add_weight(name="count")

    def update_state(self, values: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Adds the values, times weights that broadcast to them."""
        x, weights = self._by_sample(values, sample_weight, reduce_mean)
        self.total.assign_add(reduce_sum(x))
        self.count.assign_add(reduce_sum(weights))

    def result(self) -> Tensor:
        return divide_no_nan(self.total, self.count)


class MeanMetricWrapper(Mean):
    """The mean of `fn(y_true, y_pred, **kwargs)`, a function that returns one value per row.

    >>> error = tg.metrics.MeanMetricWrapper(lambda y_true, y_pred: abs(y_true - y_pred))
    >>> float(error([1.0, 2.0], [2.0, 4.0]))
    1.5
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)  # type: ignore[arg-type]
        self._fn = as_function("MeanMetricWrapper", "fn", fn)
        self._arguments = kwargs

    def update_state(  # type: ignore[override]
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> None:
        """Adds the function's values for a batch, times weights that broadcast to them; what the
        mask of y_pred leaves out has the weight 0."""
        labels, predictions = as_tensor(y_true), as_tensor(y_pred)
        values = self._fn(labels, predictions, **self._arguments)
        weights = masked(type(self).__name__, self.dtype, sample_weight, mask_of(y_pred), "sum")
        super().update_state(values, self._masked(labels, values, weights))

    def _masked(self, y_true: Tensor, values: Any, sample_weight: Any) -> Any:
        """The weights, which are 0 for rows that do not count."""
        return sample_weight


class MeanOfFunction(MeanMetricWrapper):
    """The mean of a function of ours, by default under its name. Its options are arguments of the
    class."""

    function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        show_name(cls, cls.function.__name__)

    def __init__(self, name: str = "", dtype: DTypeLike | None = None) -> None:
        self._start(name, dtype)

    def _start(self, name: str, dtype: DTypeLike | None, **options: Any) -> None:
        """Sets up the metric from the arguments of its `__init__`: `**given(locals())`."""
        function = type(self).function
        own = function.__name__ if name == "" else name
        super().__init__(function, own, dtype, **checked_options(type(self).__name__, options))


__all__ = ["Mean", "MeanMetricWrapper", "Metric", "Sum"]
