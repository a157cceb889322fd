"""Reductions and scans: maximum, product, truth, position of the extreme, running totals."""

from __future__ import annotations

import typing
from typing import ClassVar

import numpy as np

from tracegraph.core.shapes import Size, element_count, same_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import DType, TensorType, bool_, int16, int32, int64, uint16
from tracegraph.errors import DTypeMismatch, Mismatch, counted
from tracegraph.ir.op import Batched, Derivative, Op, Tangents, WithoutDerivative, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import (
    Sum,
    batched_operands,
    full,
    shifted,
    spread,
    steps_of_reduction,
    without_axes,
    zeros_of,
)
from tracegraph.ops.elementwise import (
    DIV,
    EQUAL,
    EXP,
    INEXACT,
    MUL,
    NUMERIC,
    SELECT,
    SUB,
    Cast,
    StopGradient,
    add_all,
    check_kind,
    conjugated,
    scale,
)
from tracegraph.ops.shape import Pad, Reshape, Transpose, inverse, without_axis

REAL_NUMBERS = frozenset(["floating", "integer"])


class Reduction(Op, abstract=True):
    """One element for all elements along `axes`, which are dropped; along all axes if None."""

    axes: tuple[int, ...] | None
    #: Kinds of data types that the operand may have.
    kinds: ClassVar[frozenset[str]]
    #: NumPy's function of the same value.
    reference: ClassVar[typing.Any] = None

    def factor(self, y: Tensor, x: Tensor) -> Tensor | None:
        """dy/dx, as a tensor of the shape of x; None if it is zero."""
        raise NotImplementedError

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, self.kinds)
        return x.with_shape(without_axes(x, self.axes))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        factor = self.factor(y, x)
        return (None if factor is None else MUL(spread(g, x.type, self.axes), conjugated(factor)),)

    def jvp(self, tangents: Tangents, y: Tensor, x: Tensor) -> Derivative:
        product = scale(tangents[0], self.factor(y, x))
        return None if product is None else Sum(self.axes)(product)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return type(self)(shifted(self.axes, x))(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=self.axes)

    def flops(self, x: TensorType) -> Size:
        return steps_of_reduction(x.shape, without_axes(x, self.axes))

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(type(self).reference(x, axis=self.axes))


class Extreme(Reduction, abstract=True):
    """The derivative is shared evenly by the elements that are the extreme."""

    kinds = REAL_NUMBERS
    is_largest: ClassVar[bool]

    def factor(self, y: Tensor, x: Tensor) -> Tensor:
        is_extreme = Cast(x.dtype)(IsExtreme(self.axes, self.is_largest)(x))
        return DIV(is_extreme, spread(Sum(self.axes)(is_extreme), x.type, self.axes))


class Max(Extreme):
    """The largest element; -inf, or the least integer, if there is none"""

    name = "reduce_max"
    is_largest = True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.max(x, axis=self.axes, initial=lowest(x.dtype))


class Min(Extreme):
    """The smallest element; inf, or the greatest integer, if there is none"""

    name = "reduce_min"
    is_largest = False

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.min(x, axis=self.axes, initial=highest(x.dtype))


class IsExtreme(WithoutDerivative):
    """Which elements are the largest along `axes`, or the smallest; none is one of nan

    Comparing x with its maximum may find none: where XLA computes x twice, once for each, it may
    round the two in different ways. This op always finds one.
    """

    axes: tuple[int, ...] | None
    largest: bool

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, REAL_NUMBERS)
        without_axes(x, self.axes)  # which checks them
        return x.with_dtype(bool_)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return IsExtreme(shifted(self.axes, x), self.largest)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.emptied()

    def flops(self, x: TensorType) -> Size:
        return 2 * element_count(x.shape)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        reduce, start = (np.max, lowest) if self.largest else (np.min, highest)
        return x == reduce(x, axis=self.axes, initial=start(x.dtype), keepdims=True)


class Prod(Reduction):
    """The product of the elements; its derivatives of every order hold where elements are 0"""

    name = "reduce_prod"
    kinds = NUMERIC

    def factor(self, y: Tensor, x: Tensor) -> Tensor:
        if self.axes is None:
            row = Reshape((element_count(x.type.shape),))(x)
            return Reshape(x.type.shape)(Prod((0,)).factor(y, row))
        # The product of all others, as what comes before times what comes after.
        kept = tuple(axis for axis in range(x.ndim) if axis not in self.axes)
        order = (*kept, *self.axes)
        sizes = tuple(x.type.shape[axis] for axis in order)
        rows = (*sizes[: len(kept)], element_count(sizes[len(kept) :]))
        row = Reshape(rows)(Transpose(order)(x))
        last = len(kept)
        before, after = (shift(CumProd(last, flag)(row), last, flag, 1) for flag in (False, True))
        return Transpose(inverse(order))(Reshape(sizes)(MUL(before, after)))

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.prod(x, axis=self.axes, dtype=x.dtype)


class TruthReduction(Reduction, abstract=True):
    """A reduction of truth values, which has no derivative."""

    kinds = frozenset(["bool"])

    def factor(self, y: Tensor, x: Tensor) -> None:
        return None

    def depends(self, p: Pattern) -> Pattern:
        return super().depends(p).emptied()


class All(TruthReduction):
    """Whether all elements are true"""

    name = "reduce_all"
    reference = np.all


class Any(TruthReduction):
    """Whether some element is true"""

    name = "reduce_any"
    reference = np.any


class ArgExtreme(WithoutDerivative, abstract=True):
    """The index along `axis` of the extreme, the first of several; of nan if there is one."""

    axis: int
    dtype: DType
    reference: ClassVar[typing.Any]

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, REAL_NUMBERS | {"bool"})
        check_axis(x, self.axis)
        if self.dtype not in (int16, uint16, int32, int64):
            raise DTypeMismatch(
                f"an index has the type int16, uint16, int32 or int64, not {self.dtype.name}",
                fix="give output_type=tg.int32",
            )
        if x.shape[self.axis] == 0:
            raise Mismatch(
                f"{x} has no elements along axis {self.axis}, so none is the extreme",
                fix="check that the tensor is not empty before it is reduced",
            )
        return TensorType(self.dtype, without_axis(x.shape, self.axis))

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return type(self)(self.axis + 1, self.dtype)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=self.axis).emptied()

    def flops(self, x: TensorType) -> Size:
        return steps_of_reduction(x.shape, without_axis(x.shape, self.axis))

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return type(self).reference(x, axis=self.axis).astype(self.dtype.numpy_dtype)


class ArgMax(ArgExtreme):
    """The index of the largest element along `axis`, the first of several"""

    reference = np.argmax


class ArgMin(ArgExtreme):
    """The index of the smallest element along `axis`, the first of several"""

    reference = np.argmin


class Cumulative(Op, abstract=True):
    """y[k] combines x[0], ..., x[k] along `axis`; from the other end if `reverse`."""

    axis: int
    reverse: bool
    kinds: ClassVar[frozenset[str]] = NUMERIC
    #: NumPy's function of the same value.
    reference: ClassVar[typing.Any]

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, self.kinds)
        check_axis(x, self.axis)
        return x

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return type(self)(self.axis + 1, self.reverse)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.accumulate(self.axis, self.reverse)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return running(type(self).reference, x, self.axis, self.reverse)


class CumSum(Cumulative):
    """Running totals: y[k] = x[0] + ... + x[k] along `axis`"""

    is_linear = True
    reference = np.add.accumulate

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (CumSum(self.axis, not self.reverse)(g),)


class CumProd(Cumulative):
    """Running products: y[k] = x[0] * ... * x[k]; derivatives hold where elements are 0"""

    reference = np.multiply.accumulate

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        # dy[j]/dx[k] = y[k-1] * (x[k+1] * ... * x[j]), and the sum over j obeys a recurrence.
        later = shift(conjugated(x), self.axis, not self.reverse, 0)
        total = Recurrence(self.axis, not self.reverse)(later, g)
        return (MUL(conjugated(shift(y, self.axis, self.reverse, 1)), total),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        before = shift(y, self.axis, self.reverse, 1)
        return Recurrence(self.axis, self.reverse)(x, MUL(before, tangents[0]))


class CumLogsumexp(Cumulative):
    """y[k] = log(exp(x[0]) + ... + exp(x[k])) along `axis`, without overflow"""

    kinds = frozenset(["floating"])
    reference = np.logaddexp.accumulate

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        share, ratio = self._shares(x, y)
        total = Recurrence(self.axis, not self.reverse)(
            shift(ratio, self.axis, not self.reverse, 0), g
        )
        return (MUL(share, total),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        share, ratio = self._shares(x, y)
        return Recurrence(self.axis, self.reverse)(ratio, MUL(share, tangents[0]))

    def _shares(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """exp(x[k]), and the sum up to k-1, as parts of the sum up to k.

        They are divided by the sum of exp(x - y), which is 1 only as far as y is exact: for huge
        numbers y is rounded to the largest of them, and each would count as the whole sum.
        """
        y = StopGradient()(y)
        share = exp_difference(x, y)
        kept = exp_difference(shift(y, self.axis, self.reverse, -np.inf), y)
        sums = Recurrence(self.axis, self.reverse)(kept, share)
        before = MUL(kept, shift(sums, self.axis, self.reverse, 0))
        is_none = EQUAL(sums, zeros_of(sums))
        sums = SELECT(is_none, full(1, sums.type), sums)
        return DIV(share, sums), DIV(before, sums)


class Recurrence(Op):
    """y[k] = a[k] * y[k-1] + b[k] along `axis`, with y[-1] = 0; from the other end if `reverse`.

    Its derivatives are recurrences again, so those of running products need no division.
    """

    axis: int
    reverse: bool

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_same_dtype(self.name, a, b)
        check_kind(self.name, a, INEXACT)
        shape = same_shape(a.shape, b.shape)
        if shape is None:
            raise Mismatch(
                f"the operands have different shapes: {a} and {b}",
                fix="broadcast one of them with tg.broadcast_to",
            )
        check_axis(a, self.axis)
        return a.with_shape(shape)

    def flops(self, a: TensorType, b: TensorType) -> Size:
        return 2 * element_count(a.shape)

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Derivative:
        later = shift(conjugated(a), self.axis, not self.reverse, 0)
        total = Recurrence(self.axis, not self.reverse)(later, g)
        return MUL(total, conjugated(shift(y, self.axis, self.reverse, 0))), total

    def jvp(self, tangents: Tangents, y: Tensor, a: Tensor, b: Tensor) -> Derivative:
        ta, tb = tangents
        by_a = scale(ta, shift(y, self.axis, self.reverse, 0))
        total = add_all([by_a, tb])
        return None if total is None else self(a, total)

    def batch(self, n: Size, batched: tuple[bool, ...], a: Tensor, b: Tensor) -> Batched:
        a, b = batched_operands(n, batched, (a, b))
        return Recurrence(self.axis + 1, self.reverse)(a, b), True

    def depends(self, a: Pattern, b: Pattern) -> Pattern:
        return (a | b).accumulate(self.axis, self.reverse)

    def numpy(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = (np.moveaxis(x, self.axis, 0) for x in (a, b))
        y = np.zeros_like(b)
        order = range(len(b))
        before = np.zeros_like(b[0]) if len(b) else None
        for k in reversed(order) if self.reverse else order:
            before = y[k] = a[k] * before + b[k]
        return np.moveaxis(y, 0, self.axis)


def shift(x: Tensor, axis: int, reverse: bool, value: typing.Any) -> Tensor:
    """x[k-1] at k along `axis`, x[k+1] if `reverse`, with `value` at the end that is left free."""
    steps = tuple(int(k == axis) for k in range(x.ndim))
    back = tuple(-step for step in steps)
    before, after = (back, steps) if reverse else (steps, back)
    return Pad(before, after, (0,) * x.ndim)(x, full(value, TensorType(x.dtype)))


def exp_difference(x: Tensor, y: Tensor) -> Tensor:
    """exp(x - y), and 0 where both are -inf."""
    is_lowest = EQUAL(y, full(-np.inf, y.type))
    zero = zeros_of(x)
    return SELECT(is_lowest, zero, EXP(SUB(x, SELECT(is_lowest, zero, y))))


def running(accumulate: typing.Any, x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """NumPy's `accumulate` along an axis from either end."""
    if reverse:
        return np.flip(accumulate(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)
    return accumulate(x, axis=axis, dtype=x.dtype)


def check_axis(x: TensorType, axis: int) -> None:
    rank = len(x.shape)
    if not 0 <= axis < rank:
        raise Mismatch(
            f"axis {axis} is out of range for {x}, which has {counted(rank, 'axis', 'axes')}",
            fix=f"give an axis from 0 to {rank - 1}" if rank else "give a tensor with an axis",
        )


def lowest(dtype: np.dtype) -> typing.Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: np.dtype) -> typing.Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf
