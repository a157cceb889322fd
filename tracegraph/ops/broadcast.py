"""Broadcast and sum, each the transpose of the other, and tensors filled with one value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tracegraph.core.shapes import (
    Dim,
    Shape,
    ShapeVariable,
    Size,
    element_count,
    same_size,
    static_shape,
)
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, Op, rule
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.constant import Constant, constant
from tracegraph.ops.movement import Movement


class BroadcastTo(Movement):
    """x repeated along new axes: axis k of x becomes axis axes[k] of the result.

    y[i_0, ..., i_n] = x[i_axes[0], i_axes[1], ...]. `axes` increase. An axis keeps its size:
    an axis of size 1 that should grow is dropped first.
    """

    shape: Shape
    axes: tuple[int, ...]
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        if isinstance(self.shape, ShapeVariable):
            if x.shape != ():
                raise Mismatch(f"only a scalar can be broadcast to {self.shape}, not {x}")
            return x.with_shape(self.shape)
        if len(self.axes) != len(x.shape) or not is_increasing(self.axes, len(self.shape)):
            raise Mismatch(
                f"the axes {list(self.axes)} do not place the {len(x.shape)} axes of {x} in "
                f"{list(self.shape)}",
                fix="give one axis of the result for each axis of x, in increasing order",
            )
        kept = [self.shape[axis] for axis in self.axes]
        if None in [same_size(a, b) for a, b in zip(kept, x.shape, strict=True)]:
            raise Mismatch(
                f"{x} cannot be broadcast to {list(self.shape)} along axes {list(self.axes)}",
                fix="only axes of size 1 are repeated: check the two shapes",
            )
        return x.with_shape(self.shape)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        if isinstance(self.shape, ShapeVariable):
            return (Sum(None)(g),)
        dropped = tuple(axis for axis in range(g.ndim) if axis not in self.axes)
        return (Sum(dropped)(g) if dropped else g,)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        shifted = tuple(axis + 1 for axis in self.axes)
        return BroadcastTo((n, *self.shape), (0, *shifted))(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        sizes = [1] * len(self.shape)
        for axis, size in zip(self.axes, x.shape, strict=True):
            sizes[axis] = size
        return np.ascontiguousarray(np.broadcast_to(x.reshape(sizes), static_shape(self.shape)))


class Sum(Op):
    """The sum over `axes`, which are dropped; over all axes if None, for tensors of any rank."""

    axes: tuple[int, ...] | None
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.is_bool or x.dtype.is_storage:
            kind, target = ("truth values", "int32") if x.dtype.is_bool else ("8 bits", "float32")
            raise DTypeMismatch(
                f"the operand is {x}, and {kind} have no sum",
                fix=f"convert it: tg.cast(x, tg.{target})",
            )
        return x.with_shape(without_axes(x, self.axes))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (spread(g, x.type, self.axes),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Sum(shifted(self.axes, x))(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=self.axes)

    def flops(self, x: TensorType) -> Size:
        return steps_of_reduction(x.shape, self.infer(x).shape)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.sum(x, axis=self.axes, dtype=x.dtype)


def steps_of_reduction(whole: Shape, reduced: Shape) -> Size:
    """How often two elements are combined where a tensor of one shape becomes one of another."""
    steps = element_count(whole) - element_count(reduced)
    return max(steps, 0) if isinstance(steps, int) else steps  # nothing is reduced to zeros


def full(value: Any, type: TensorType) -> Tensor:
    """A tensor of `type` with every element `value`."""
    scalar = constant(value, type.dtype)
    return scalar if type.shape == () else BroadcastTo(type.shape, ())(scalar)


def full_like(x: Tensor, value: Any) -> Tensor:
    return full(value, x.type)


def zeros_of(x: Tensor) -> Tensor:
    return full(0, x.type)


def linear_tangent(
    op: Callable[..., Tensor], tangents: Sequence[Tensor | None], xs: Sequence[Tensor]
) -> Tensor | None:
    """The tangent of an op that is linear in all of `xs` together."""
    if all(t is None for t in tangents):
        return None
    return op(*(zeros_of(x) if t is None else t for t, x in zip(tangents, xs, strict=True)))


def stack(x: Tensor, n: Any) -> Tensor:
    """x repeated along a new leading axis of size n."""
    shape = x.type.shape
    return BroadcastTo((n, *shape), tuple(range(1, len(shape) + 1)))(x)


def batched_operands(
    n: Any, batched: Sequence[bool], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The inputs with a leading loop axis on all of them."""
    return tuple(x if b else stack(x, n) for x, b in zip(inputs, batched, strict=True))


class OverBatchAxes(Op, abstract=True):
    """An op whose operands have leading batch axes, so that a loop axis is one more of them."""

    @rule
    def batch(self, n: Size, batched: tuple[bool, ...], *operands: Tensor) -> Batched:
        return self(*batched_operands(n, batched, operands)), True


def spread(g: Tensor, type: TensorType, axes: tuple[int, ...] | None) -> Tensor:
    """g repeated along `axes` of `type`: the transpose of a sum over them."""
    if axes is None:
        return BroadcastTo(type.shape, ())(g)
    kept = tuple(axis for axis in range(len(type.shape)) if axis not in axes)
    return BroadcastTo(type.shape, kept)(g)


def without_axes(x: TensorType, axes: tuple[int, ...] | None) -> Shape:
    """The shape of x with `axes` dropped, all of them if None."""
    if axes is None:
        return ()
    if not is_increasing(axes, len(x.shape)):
        raise Mismatch(
            f"the axes {list(axes)} are not axes of {x} in increasing order",
            fix=f"give each axis once, as a number from 0 to {len(x.shape) - 1}",
        )
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


def is_increasing(axes: tuple[int, ...], rank: int) -> bool:
    """Whether the axes are axes of a tensor of `rank`, each greater than the one before."""
    limits = (-1, *axes, rank)
    return all(a < b for a, b in itertools.pairwise(limits))


def shifted(axes: tuple[int, ...] | None, batched: Tensor) -> tuple[int, ...]:
    """The axes as they count after a loop axis was put first; `batched` already has it."""
    if axes is None:
        return tuple(range(1, batched.ndim))
    return tuple(axis + 1 for axis in axes)


def holder_of_sizes(names: Iterable[str], add: Callable[..., tuple[Tensor, ...]]) -> Tensor:
    """A tensor without elements that has open sizes, for a graph that uses them where none of its
    other inputs has them. `add` appends its nodes."""
    (nothing,) = add(Constant(np.False_), ())
    (holder,) = add(BroadcastTo((*map(Dim.named, names), 0), ()), (nothing,))
    holder.name = "sizes"
    return holder
