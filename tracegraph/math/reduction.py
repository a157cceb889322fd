"""Reductions along axes, and running totals.

`axis` is one axis, several, or None for all; `keepdims` keeps the axes with size 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import ml_dtypes

from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_flag,
    as_inexact,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
    with_ones,
    without,
)
from tracegraph.calls.top_level_calls import composition
from tracegraph.core.shapes import ShapeVariable, element_count
from tracegraph.core.types import TensorType, as_dtype, float32, float64, int64
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    floordiv,
    maximum,
    multiply,
    subtract,
    truncatediv,
)
from tracegraph.math.elementwise.logic import truth
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops import elementwise as ops, reduce as reductions
from tracegraph.ops.broadcast import Sum, full, full_like, spread, zeros_of
from tracegraph.ops.decomposition import SINGULAR_VALUES
from tracegraph.ops.shape import Pad, Reshape, Transpose
from tracegraph.ops.special import ReducePrecision
from tracegraph.typing import Axis, DTypeLike, TensorLike


def _reduced(op: Callable[[Any], Any], name: str, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    """op(axes)(x); with `keepdims`, dropped axes are replaced by axes of size 1."""
    keepdims = as_flag(name, "keepdims", keepdims)
    if isinstance(x.type.shape, ShapeVariable) and axis is None and not keepdims:
        return op(None)(x)
    sizes = sizes_of(name, x)
    axes = as_axes(name, axis, len(sizes), x)
    y = op(axes)(x) if axes else x
    return Reshape(with_ones(sizes, axes))(y) if keepdims and axes else y


def keeps_axes(x: Tensor, axis: Axis) -> bool:
    """Whether a reduction that will be broadcast to x keeps its axes. If the rank is unknown, all
    elements are reduced to a scalar, which needs none."""
    return not (axis is None and x.type.rank is None)


def reduced_count(name: str, x: Tensor, axis: Axis) -> Tensor:
    """The number of elements reduced to one, in the dtype of x."""
    if axis is None:
        count = element_count(x.type.shape)
    else:
        sizes = sizes_of(name, x)
        count = element_count(tuple(sizes[k] for k in as_axes(name, axis, len(sizes), x)))
    if known_int(count):
        return full(count, TensorType(x.dtype))
    return cast_to(as_tensor(count), x.dtype)


def reduce_sum(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The sum along the axes.

    >>> tg.reduce_sum([[1, 2], [3, 4]], axis=1).numpy()
    array([3, 7], dtype=int32)
    """
    return _reduced(Sum, "reduce_sum", as_tensor(input_tensor), axis, keepdims)


def reduce_mean(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The mean along the axes, in the dtype of the tensor; for integers it is rounded towards zero.

    For integers it is exact, however large their sum; float16 and bfloat16 are summed in float32.

    >>> tg.reduce_mean([[1.0, 2.0], [3.0, 4.0]], axis=0).numpy()
    array([2., 3.], dtype=float32)
    """
    x = as_tensor(input_tensor)
    wide = summable(x)

    def total(z: Tensor) -> Tensor:
        return _reduced(Sum, "reduce_mean", z, axis, keepdims)

    if not x.dtype.is_integer:
        return cast_to(divide(total(wide), reduced_count("reduce_mean", wide, axis)), x.dtype)
    count = maximum(reduced_count("reduce_mean", wide, axis), 1)  # the mean of no integers is 0
    mean = _exact_mean(wide, count, total) if wide is x else truncatediv(total(wide), count)
    return cast_to(mean, x.dtype)


def _exact_mean(x: Tensor, count: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean, rounded towards zero, of integers whose sum may overflow: quotients by `count` and
    remainders have sums that fit, up to wrapping there and back."""
    quotients = floordiv(x, count)
    rest = total(subtract(x, multiply(quotients, count)))
    whole = floordiv(rest, count)
    floor = add(total(quotients), whole)
    is_fraction = ops.NotEqual()(rest, multiply(whole, count))
    is_below = ops.AND(ops.LESS(floor, zeros_of(floor)), is_fraction)
    return add(floor, cast_to(is_below, x.dtype))


def summable(x: Tensor) -> Tensor:
    """x in a dtype in which a sum of many elements is exact, or as accurate as in float32."""
    if x.dtype.is_integer and x.dtype.size < 8:
        return ops.Cast(int64)(x)
    return ops.Cast(float32)(x) if x.dtype.is_floating and x.dtype.size < 4 else x


def reduce_max(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The largest element along the axes; equal ones share the derivative equally.

    >>> tg.reduce_max([[1, 2], [3, 4]], axis=1).numpy()
    array([2, 4], dtype=int32)
    """
    return _reduced(reductions.Max, "reduce_max", as_tensor(input_tensor), axis, keepdims)


def reduce_min(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The smallest element along the axes; equal ones share the derivative equally.

    >>> tg.reduce_min([[1, 2], [3, 4]], axis=1).numpy()
    array([1, 3], dtype=int32)
    """
    return _reduced(reductions.Min, "reduce_min", as_tensor(input_tensor), axis, keepdims)


def reduce_prod(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The product along the axes.

    >>> tg.reduce_prod([[1, 2], [3, 4]], axis=1).numpy()
    array([ 2, 12], dtype=int32)
    """
    return _reduced(reductions.Prod, "reduce_prod", as_tensor(input_tensor), axis, keepdims)


def reduce_all(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Whether all bools along the axes are true.

    >>> tg.reduce_all([[True, False], [True, True]], axis=1).numpy()
    array([False,  True])
    """
    return _reduced(reductions.All, "reduce_all", truth("reduce_all", input_tensor), axis, keepdims)


def reduce_any(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Whether any bool along the axes is true.

    >>> tg.reduce_any([[True, False], [False, False]], axis=1).numpy()
    array([ True, False])
    """
    return _reduced(reductions.Any, "reduce_any", truth("reduce_any", input_tensor), axis, keepdims)


def reduce_logsumexp(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """log(sum(e ** x)) along the axes, without overflow.

    >>> tg.reduce_logsumexp([1000.0, 1000.0]).numpy()
    np.float32(1000.6932)
    """
    x = as_inexact("reduce_logsumexp", input_tensor)

    def over_axes(axes: Any) -> Callable[[Tensor], Tensor]:
        return functools.partial(_log_of_powers, axes=axes)

    return _reduced(over_axes, "reduce_logsumexp", x, axis, keepdims)


@composition
def _log_of_powers(x: Tensor, *, axes: tuple[int, ...] | None) -> Tensor:
    """log(sum(e ** x)) along `axes`, which are dropped. Neither the sum of powers nor those that
    are left of it fit 16 bits."""
    wide = summable(x)
    top, below = beside_top(wide, axes)
    return cast_to(ops.ADD(log_of_sum(below, Sum(axes)), top), x.dtype)


def beside_top(x: Tensor, axes: tuple[int, ...] | None) -> tuple[Tensor, Tensor]:
    """The largest element along `axes`, which are dropped, or 0 where it is not finite; and x
    minus it.

    Where the power of one element outweighs those of all others, its own difference has no
    derivative: it is always 0. So what the differences of the others contribute is not added to a
    number near 1, which would round it away. Elsewhere what is subtracted has none, since results
    do not depend on it: it would be a sum over the others, with the rounding errors of all."""
    top = reductions.Max(axes)(x)
    is_finite = ops.IsFinite()(top)
    top = ops.SELECT(is_finite, top, zeros_of(top))
    still = ops.StopGradient()(top)
    weight = Sum(axes)(ops.EXP(ops.SUB(x, spread(still, x.type, axes))))
    outweighs = ops.AND(is_finite, ops.LESS(weight, full_like(weight, 2)))
    top = ops.SELECT(outweighs, top, still)
    below = ops.SUB(x, spread(top, x.type, axes))
    is_top = ops.EQUAL(below, zeros_of(below))
    is_constant = ops.AND(is_top, spread(outweighs, is_top.type, axes))
    return top, ops.SELECT(is_constant, ops.StopGradient()(below), below)


def finite_top(x: Tensor, axis: Axis) -> Tensor:
    """The largest element along the axes, which stay as ones, or 0 where it is not finite: what is
    subtracted before powers are taken. Values do not depend on it, so it has no derivative."""
    top = ops.StopGradient()(reduce_max(x, axis, keeps_axes(x, axis)))
    return ops.SELECT(ops.IsFinite()(top), top, zeros_of(top))


def log_of_sum(below: Tensor, reduced: Callable[[Tensor], Tensor]) -> Tensor:
    """log(reduced(e ** below)) for a sum `reduced`, where the largest elements of `below` are 0."""
    # Powers of what is largest are 1, beside which small ones would be rounded: they are counted.
    is_top = ops.Cast(below.dtype)(ops.EQUAL(below, zeros_of(below)))
    rest = reduced(ops.SUB(ops.EXP(below), is_top))
    others = ops.SUB(reduced(is_top), full_like(rest, 1))
    return ops.Log1p()(ops.ADD(rest, others))


def reduce_variance(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The mean of |x - mean(x)| ** 2 along the axes.

    >>> tg.math.reduce_variance([1.0, 2.0, 3.0, 4.0]).numpy()
    np.float32(1.25)
    """
    x = as_inexact("reduce_variance", input_tensor)
    wide = summable(x)
    if wide is not x:  # use the unrounded mean
        return ops.Cast(x.dtype)(reduce_variance(wide, axis, keepdims))
    mean = reduce_mean(x, axis, keeps_axes(x, axis))
    return reduce_mean(squared_modulus(ops.SUB(x, broadcast(mean, x.type.shape))), axis, keepdims)


def reduce_std(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the variance; its gradient is nan where the variance is 0.

    >>> tg.math.reduce_std([1.0, 1.0, 3.0, 3.0]).numpy()
    np.float32(1.0)
    """
    x = as_inexact("reduce_std", input_tensor)
    wide = summable(x)
    scale = scale_near(largest_modulus(wide, axis))
    root = ops.SQRT(reduce_variance(over(wide, scale), axis, keepdims))
    return cast_to(_times_scale(root, scale), x.dtype.real)


def reduce_euclidean_norm(
    input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """sqrt(sum(|x| ** 2)) along the axes; for integers it is rounded down.

    >>> tg.math.reduce_euclidean_norm([3.0, 4.0]).numpy()
    np.float32(5.0)
    """
    x = as_tensor(input_tensor)
    if x.dtype.is_integer:
        return cast_to(reduce_euclidean_norm(cast_to(x, float64), axis, keepdims), x.dtype)
    x = as_inexact("reduce_euclidean_norm", x)
    wide = summable(x)
    scale = scale_near(largest_modulus(wide, axis))
    total = reduce_sum(squared_modulus(over(wide, scale)), axis, keepdims)
    return cast_to(_times_scale(ops.SQRT(total), scale), x.dtype.real)


def largest_modulus(x: Tensor, axis: Axis) -> Tensor:
    """The largest |x| along the axes, which stay as ones, without a derivative; of complex numbers
    the largest part."""
    parts = (ops.REAL(x), ops.IMAG(x)) if x.dtype.is_complex else (x,)
    found = [reduce_max(ops.ABS(part), axis, keeps_axes(x, axis)) for part in parts]
    return ops.StopGradient()(functools.reduce(ops.MAXIMUM, found))


def _times_scale(y: Tensor, scale: Tensor) -> Tensor:
    """y times a scale whose axes of size 1 it may lack."""
    is_kept = y.type.rank == scale.type.rank
    return ops.MUL(y, scale if is_kept else Reshape(y.type.shape)(scale))


def scale_near(top: Tensor) -> Tensor:
    """What numbers up to `top` are divided by before they are raised to a power and added up: a
    power of two near `top`, which rounds nothing."""
    limits = ml_dtypes.finfo(top.dtype.numpy_dtype)
    edge = 2.0 ** (limits.maxexp - 2)  # its inverse is a normal number too
    near = ReducePrecision(limits.nexp, 0)(top)
    return ops.MINIMUM(ops.MAXIMUM(near, full_like(top, 1 / edge)), full_like(top, edge))


def over(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, for real or complex x."""
    inverse = broadcast(ops.DIV(full_like(scale, 1), scale), x.type.shape)
    if not x.dtype.is_complex:
        return ops.MUL(x, inverse)
    return ops.COMPLEX(ops.MUL(ops.REAL(x), inverse), ops.MUL(ops.IMAG(x), inverse))


def squared_modulus(x: Tensor) -> Tensor:
    """|x| ** 2"""
    return ops.REAL(ops.MUL(x, ops.CONJ(x))) if x.dtype.is_complex else ops.MUL(x, x)


def norm(
    tensor: TensorLike,
    ord: str | float = "euclidean",
    axis: Axis = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """The norm of all elements, or of vectors along one axis, or of matrices along two.

    - `ord`: for vectors, "euclidean" (also "fro"), 1, 2, infinity, or any positive number p; for
      matrices, "euclidean", 1, 2 (the largest singular value) and infinity.

    The gradient at 0 is nan, as in TensorFlow. Raises ShapeError for any other number of axes.

    >>> tg.norm([3.0, 4.0]).numpy(), tg.norm([3.0, -4.0], ord=1).numpy()
    (np.float32(5.0), np.float32(7.0))
    """
    x = as_inexact("norm", tensor)
    axes = None if axis is None else as_sizes("norm", "an axis", axis)
    if axes is not None and len(axes) not in (1, 2):
        refuse("norm", f"the axes are {axes}", x, fix="use one axis, two axes, or None for all")
    keepdims = as_flag("norm", "keepdims", keepdims)
    if isinstance(ord, bool) or not isinstance(ord, (str, int, float)):
        refuse_order(ord)
    if ord in ("euclidean", "fro") or (ord == 2 and (axes is None or len(axes) == 1)):
        return reduce_euclidean_norm(x, axes, keepdims)
    size = ops.ABS(x)
    if axes is not None and len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    if ord == math.inf:
        return reduce_max(size, axes, keepdims)
    if ord == 1:
        return reduce_sum(size, axes, keepdims)
    if isinstance(ord, (int, float)) and ord > 0:
        return norm_of_order(size, ord, axes, keepdims)
    refuse_order(ord)


def norm_of_order(size: Tensor, ord: float, axis: Axis, keepdims: bool) -> Tensor:
    """sum(size ** ord) ** (1 / ord) along the axes, of floating numbers that are
    not negative, and a positive order."""
    scale = scale_near(largest_modulus(size, axis))
    total = reduce_sum(over(size, scale) ** ord, axis, keepdims)  # type: ignore[operator]
    return _times_scale(total ** (1 / ord), scale)  # type: ignore[operator]


def _matrix_norm(x: Tensor, ord: Any, axes: tuple[Any, ...], keepdims: bool) -> Tensor:
    as_axes("norm", axes, x.ndim, x)  # raises if an axis is named twice
    rows, columns = (as_axis("norm", axis, x.ndim, x) for axis in axes)
    if ord not in (1, 2, math.inf):
        refuse_order(ord)
    shape = sizes_of("norm", x)
    if ord == 2:
        last = (*(k for k in range(x.ndim) if k not in (rows, columns)), rows, columns)
        values = SINGULAR_VALUES(Transpose(last)(x))
        largest = reduce_max(values, -1)
        return Reshape(with_ones(shape, (rows, columns)))(largest) if keepdims else largest
    summed, compared = (rows, columns) if ord == 1 else (columns, rows)
    largest = reduce_max(reduce_sum(ops.ABS(x), summed, keepdims=True), compared, keepdims=True)
    return largest if keepdims else Reshape(without(shape, (rows, columns)))(largest)


def refuse_order(ord: Any) -> NoReturn:
    fail(
        SignatureError,
        f"norm: there is no norm of order {shown(ord)} here",
        fix='use "euclidean", 1, infinity, or a positive number for vectors',
    )


def argmax(
    input: TensorLike, axis: Axis = None, output_type: DTypeLike = int64, name: str | None = None
) -> Tensor:
    """The position of the largest element along `axis` (0 by default), the first in case of ties.

    >>> tg.argmax([[1, 5], [7, 2]], axis=1).numpy()
    array([1, 0])
    """
    x = as_tensor(input)
    place = as_axis("argmax", 0 if axis is None else axis, rank_of("argmax", x), x)
    return reductions.ArgMax(place, int64 if output_type is None else as_dtype(output_type))(x)


def argmin(
    input: TensorLike, axis: Axis = None, output_type: DTypeLike = int64, name: str | None = None
) -> Tensor:
    """The position of the smallest element along `axis` (0 by default), the first in case of ties.

    >>> tg.argmin([[1, 5], [7, 2]], axis=1).numpy()
    array([0, 1])
    """
    x = as_tensor(input)
    place = as_axis("argmin", 0 if axis is None else axis, rank_of("argmin", x), x)
    return reductions.ArgMin(place, int64 if output_type is None else as_dtype(output_type))(x)


def count_nonzero(
    input: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """The number of nonzero elements along the axes.

    >>> tg.math.count_nonzero([[0, 1], [2, 3]]).numpy()
    np.int64(3)
    """
    x = as_tensor(input)
    is_counted = x if x.dtype.is_bool else ops.NotEqual()(x, zeros_of(x))
    return reduce_sum(ops.Cast(as_dtype(dtype))(is_counted), axis, keepdims)


def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """The fraction of elements that are 0, as float32.

    >>> tg.math.zero_fraction([0, 1, 2, 0]).numpy()
    np.float32(0.5)
    """
    x = as_tensor(value)
    is_counted = x if x.dtype.is_bool else ops.NotEqual()(x, zeros_of(x))
    return 1 - reduce_mean(ops.Cast(float32)(is_counted))  # type: ignore[operator]


def cumsum(
    x: TensorLike,
    axis: Axis = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Cumulative sums along `axis`: y[k] = x[0] + ... + x[k].

    - `exclusive`: whether to leave x[k] out of y[k];
    - `reverse`: whether to sum from the other end.

    >>> tg.cumsum([1, 2, 3]).numpy(), tg.cumsum([1, 2, 3], exclusive=True).numpy()
    (array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    return _scanned(reductions.CumSum, "cumsum", x, axis, exclusive, reverse, 0)


def cumprod(
    x: TensorLike,
    axis: Axis = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Cumulative products along `axis`: y[k] = x[0] * ... * x[k]; see `cumsum`.

    >>> tg.math.cumprod([1, 2, 3]).numpy()
    array([1, 2, 6], dtype=int32)
    """
    return _scanned(reductions.CumProd, "cumprod", x, axis, exclusive, reverse, 1)


def cumulative_logsumexp(
    x: TensorLike,
    axis: Axis = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """log(e ** x[0] + ... + e ** x[k]) along `axis`, without overflow; see `cumsum`.

    >>> tg.math.cumulative_logsumexp([0.0, 0.0]).numpy().round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return _scanned(
        reductions.CumLogsumexp, "cumulative_logsumexp", x, axis, exclusive, reverse, -math.inf
    )


def _scanned(
    op: Any, name: str, x: Any, axis: Any, exclusive: bool, reverse: bool, start: float
) -> Tensor:
    x = as_tensor(x)
    if isinstance(axis, (list, tuple)):
        refuse(name, f"the axis is {shown(axis)}", x, fix="use one int")
    place = as_axis(name, axis, rank_of(name, x), x)
    reverse = as_flag(name, "reverse", reverse)
    y = op(place, reverse)(x)
    if not as_flag(name, "exclusive", exclusive):
        return y
    ends = (-1, 1) if reverse else (1, -1)
    before, after = (tuple(end if k == place else 0 for k in range(y.ndim)) for end in ends)
    return Pad(before, after, (0,) * y.ndim)(y, full(start, y.type.with_shape(())))


__all__ = [
    "argmax",
    "argmin",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_logsumexp",
    "norm",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "zero_fraction",
]
