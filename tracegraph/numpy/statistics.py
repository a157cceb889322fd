"""Sums, products, extremes, moments, and differences along axes."""

from __future__ import annotations

from typing import Any

from tracegraph import array, math
from tracegraph.array.arguments import as_axis, as_count, as_flag, as_number, rank_of
from tracegraph.array.shaping import neighbours
from tracegraph.core.types import as_dtype, bool_, float32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.reduction import reduced_count, summable
from tracegraph.numpy.data_types import sum_type
from tracegraph.numpy.manipulation import only_axis
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import Axis, DTypeLike, TensorLike


def _summable(x: TensorLike, dtype: DTypeLike | None) -> Tensor:
    """x in the dtype in which its elements are added or multiplied."""
    x = as_tensor(x)
    return cast_to(x, sum_type(x.dtype) if dtype is None else as_dtype(dtype))


def sum(
    x: TensorLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The sum along the axes; integers of 8 and 16 bits are added in 32 bits.

    >>> tg.numpy.sum(tg.constant([100, 100], tg.int8)).numpy()
    np.int32(200)
    """
    return math.reduce_sum(_summable(x, dtype), axis, keepdims)


def prod(
    x: TensorLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The product along the axes; integers of 8 and 16 bits are multiplied in 32 bits."""
    return math.reduce_prod(_summable(x, dtype), axis, keepdims)


def max(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along the axes; equal ones share the derivative equally."""
    return math.reduce_max(x, axis, keepdims)


def min(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along the axes; equal ones share the derivative equally."""
    return math.reduce_min(x, axis, keepdims)


def mean(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along the axes; float32 for integers, unlike `tg.reduce_mean`.

    >>> tg.numpy.mean([1, 2]).numpy()
    np.float32(1.5)
    """
    return math.reduce_mean(_fractional(x), axis, keepdims)


def _fractional(x: TensorLike) -> Tensor:
    x = as_tensor(x)
    return x if x.dtype.is_differentiable else cast_to(x, float32)


def var(
    x: TensorLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The sum of |x - mean(x)| ** 2 along the axes, divided by n - correction, for n elements.

    >>> tg.numpy.var([1.0, 3.0], correction=1).numpy()
    np.float32(2.0)
    """
    x = _fractional(x)
    ratio = _ratio("var", x, axis, correction)
    return _times(math.reduce_variance(x, axis, keepdims), ratio)


def std(
    x: TensorLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of `var`; its gradient is nan where that is 0."""
    x = _fractional(x)
    ratio = _ratio("std", x, axis, correction)
    return _times(math.reduce_std(x, axis, keepdims), None if ratio is None else math.sqrt(ratio))


def _ratio(op: str, x: Tensor, axis: Axis, correction: float) -> Tensor | None:
    """n / (n - correction) for n elements; None without a correction."""
    less = as_number(op, "correction", correction)
    if less == 0:
        return None
    count = reduced_count(op, summable(math.abs(x)), axis)  # a real number, also of complex x
    return count / (count - less)  # type: ignore[operator]


def _times(y: Tensor, ratio: Tensor | None) -> Tensor:
    return y if ratio is None else cast_to(cast_to(y, ratio.dtype) * ratio, y.dtype)  # type: ignore[operator]


def all(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along the axes are true, or nonzero."""
    return math.reduce_all(cast_to(as_tensor(x), bool_), axis, keepdims)


def any(x: TensorLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along the axes is true, or nonzero.

    >>> tg.numpy.any([0.0, 2.0]).numpy()
    np.True_
    """
    return math.reduce_any(cast_to(as_tensor(x), bool_), axis, keepdims)


def cumulative_sum(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Cumulative sums along an axis, which is optional for a vector; they start with 0 if
    `include_initial`.

    >>> tg.numpy.cumulative_sum([1, 2, 3], include_initial=True).numpy()
    array([0, 1, 3, 6], dtype=int32)
    """
    return _cumulative("cumulative_sum", math.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Cumulative products along an axis, which is optional for a vector; they start with 1 if
    `include_initial`.

    >>> tg.numpy.cumulative_prod([1, 2, 3]).numpy()
    array([1, 2, 6], dtype=int32)
    """
    return _cumulative("cumulative_prod", math.cumprod, 1, x, axis, dtype, include_initial)


def _cumulative(
    op: str, scan: Any, initial: int, x: Any, axis: int | None, dtype: Any, has_initial: bool
) -> Tensor:
    x = _summable(x, dtype)
    if axis is None and rank_of(op, x) == 0:
        x = array.reshape(x, [1])
    axis = only_axis(op, x) if axis is None else axis
    y = scan(x, axis)
    if not as_flag(op, "include_initial", has_initial):
        return y
    place = as_axis(op, axis, x.ndim, x)
    shape = [1 if k == place else size for k, size in enumerate(x.shape)]
    return array.concat([array.fill(shape, as_tensor(initial, x.dtype)), y], axis)


def diff(
    x: TensorLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """The differences of neighbours along an axis, taken n times.

    - `prepend`, `append`: values added before and after x first.

    >>> tg.numpy.diff([1, 4, 9]).numpy(), tg.numpy.diff([1, 4, 9], n=2).numpy()
    (array([3, 5], dtype=int32), array([2], dtype=int32))
    """
    x = as_tensor(x)
    place = as_axis("diff", axis, rank_of("diff", x), x)
    parts = [prepend, x, append]
    if prepend is not None or append is not None:
        x = array.concat([part for part in parts if part is not None], place)
    for _ in range(as_count("diff", "n", n)):
        size = x.shape[place]
        if size == 0:
            break
        before, after = neighbours(x, place)
        x = after - before  # type: ignore[operator]
    return x


__all__ = [
    "all",
    "any",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]
