"""Ops that move elements without computing: reshape, transpose, slice, pad, join, reverse."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tracegraph.core.shapes import (
    Dim,
    Shape,
    ShapeVariable,
    Size,
    ceiling_divide,
    element_count,
    maximum,
    same_shape,
    same_size,
)
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType, bool_
from tracegraph.errors import Mismatch
from tracegraph.ir.op import Batched, Derivative, Op, Tangents, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum, batched_operands, full, linear_tangent, stack
from tracegraph.ops.elementwise import SELECT, SUB
from tracegraph.ops.movement import Movement, no_flops


class Reshape(Op):
    """The same elements in row-major order under another shape."""

    shape: Shape
    is_linear = True
    flops = no_flops

    def infer(self, x: TensorType) -> TensorType:
        if isinstance(self.shape, ShapeVariable) or x.rank is None:
            return x.with_shape(self.shape)
        if same_size(element_count(x.shape), element_count(self.shape)) is None:
            raise Mismatch(
                f"{x} has {element_count(x.shape)} elements and the shape {list(self.shape)} "
                f"needs {element_count(self.shape)}",
                fix="give sizes whose product is the number of elements, or -1 for one of them",
            )
        return x.with_shape(self.shape)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (Reshape(x.type.shape)(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Reshape((n, *self.shape))(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.reshape(*cast("tuple[int, ...]", self.shape))

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(cast("tuple[int, ...]", self.shape))


class EnsureShape(Movement):
    """x, which is taken to have `shape`, where `apart` are pairs of sizes that are taken to differ:
    every run of a graph with open sizes checks it"""

    shape: Shape
    apart: Shape = ()
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        for left, right in zip(self.apart[::2], self.apart[1::2], strict=True):
            if left == right:
                raise Mismatch(
                    f"a size is {left}, and it was compared with {right} while it was not known, "
                    "and taken to differ",
                    fix="give the size in the TensorSpec, or compare tensors: tg.shape(x)[0] == 1",
                )
        if x.rank is None:
            return x.with_shape(self.shape)
        shape = same_shape(x.shape, self.shape)
        if shape is None:
            raise Mismatch(
                f"{x} does not have the shape {list(self.shape)}, which was assumed of it",
                fix="call it with sizes that fit; an index may be too large for it",
            )
        return x.with_shape(shape)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (EnsureShape(x.type.shape)(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return EnsureShape((n, *self.shape), self.apart)(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x


class Transpose(Movement):
    """y[i_perm[0], i_perm[1], ...] = x[i_0, i_1, ...]"""

    perm: tuple[int, ...]
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(len(x.shape))):
            raise Mismatch(
                f"perm is {list(self.perm)}, which does not order the {len(x.shape)} axes of {x}",
                fix="give each axis once",
            )
        return x.with_shape(tuple(x.shape[axis] for axis in self.perm))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (Transpose(inverse(self.perm))(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Transpose((0, *(axis + 1 for axis in self.perm)))(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.perm)


class Slice(Movement):
    """x[start:stop:stride] on every axis, 0 <= start <= stop <= size and stride >= 1."""

    start: Shape
    stop: Shape
    stride: tuple[int, ...]
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.start) == len(self.stop) == len(self.stride) == len(x.shape):
            raise Mismatch(f"a slice needs one start, stop and stride for each axis of {x}")
        for size, start, stop in zip(x.shape, self.start, self.stop, strict=True):
            known = [bound for bound in (0, start, stop, size) if isinstance(bound, int)]
            if known != sorted(known):
                raise Mismatch(
                    f"a slice [{start}:{stop}] is out of range for {x}",
                    fix="check the bounds against the shape",
                )
        parts = zip(self.start, self.stop, self.stride, strict=True)
        return x.with_shape(tuple(ceiling_divide(b - a, step) for a, b, step in parts))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
        interior = tuple(step - 1 for step in self.stride)
        parts = zip(x.type.shape, self.start, y.type.shape, interior, strict=True)
        after = tuple(size - start - spread_size(count, gap) for size, start, count, gap in parts)
        return (Pad(self.start, after, interior)(g, full(0, TensorType(g.dtype))),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Slice((0, *self.start), (n, *self.stop), (1, *self.stride))(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x[tuple(map(slice, self.start, self.stop, self.stride))]


class Pad(Movement):
    """x with `before`, `after` and, between elements, `interior` copies of a scalar per axis.

    `before` and `after` may be negative, which cuts elements off.
    """

    before: Shape
    after: Shape
    interior: tuple[int, ...]

    is_linear = True

    def infer(self, x: TensorType, value: TensorType) -> TensorType:
        check_same_dtype(self.name, x, value)
        if value.shape != ():
            raise Mismatch(
                f"the padding value is {value}, and it must be a scalar",
                fix="give one number: constant_values=0",
            )
        if not len(self.before) == len(self.after) == len(self.interior) == len(x.shape):
            raise Mismatch(f"padding needs one pair of widths for each of the axes of {x}")
        parts = zip(x.shape, self.before, self.after, self.interior, strict=True)
        return x.with_shape(tuple(padded_size(*part) for part in parts))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, value: Tensor) -> Derivative:
        to_x = self._cut(g, x.type)
        inside = total(to_x)
        return to_x, SUB(total(g), inside)

    def _cut(self, g: Tensor, type: TensorType) -> Tensor:
        undone = Pad(
            tuple(-size for size in self.before),
            tuple(-size for size in self.after),
            (0,) * len(self.before),
        )(g, full(0, TensorType(g.dtype)))
        if not any(self.interior):
            return undone
        strides = tuple(step + 1 for step in self.interior)
        return Slice((0,) * len(strides), undone.type.shape, strides)(undone)

    def jvp(self, tangents: Tangents, y: Tensor, x: Tensor, value: Tensor) -> Derivative:
        return linear_tangent(self, tangents, (x, value))

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor, value: Tensor) -> Batched:
        wide = Pad((0, *self.before), (0, *self.after), (0, *self.interior))
        if not batched[1]:
            return wide(x, value), True
        # Each instance has its own padding value: it is put in where there is no x.
        x = x if batched[0] else stack(x, n)
        is_padding = wide(full(False, x.type.with_dtype(bool_)), full(True, TensorType(bool_)))
        values = BroadcastTo(is_padding.type.shape, (0,))(value)
        return SELECT(is_padding, values, wide(x, full(0, TensorType(x.dtype)))), True

    def numpy(self, x: np.ndarray, value: np.ndarray) -> np.ndarray:
        spread = [
            (size - 1) * (gap + 1) + 1 if size else 0
            for size, gap in zip(x.shape, self.interior, strict=True)
        ]
        wide = np.full(spread, value)
        wide[tuple(slice(None, None, gap + 1) for gap in self.interior)] = x
        sizes = [size + a + b for size, a, b in zip(spread, self.before, self.after, strict=True)]
        result = np.full(sizes, value)
        into: list[slice] = []
        out_of: list[slice] = []
        for size, before, after in zip(spread, self.before, self.after, strict=True):
            into.append(
                slice(max(before, 0), max(before, 0) + size + min(before, 0) + min(after, 0))
            )
            out_of.append(slice(max(-before, 0), size - max(-after, 0)))
        result[tuple(into)] = wide[tuple(out_of)]
        return result


class Concatenate(Movement):
    """The operands one after another along `axis`."""

    axis: int
    is_linear = True

    def infer(self, *xs: TensorType) -> TensorType:
        check_same_dtype(self.name, *xs)
        first = xs[0]
        for x in xs:
            if len(x.shape) <= self.axis:
                fact = f"{x} has no axis {self.axis}, along which it would be joined"
                raise Mismatch(fact, fix="give it the axis by tg.expand_dims, or stack scalars")
        total = first.shape[self.axis]
        for x in xs[1:]:
            rest, first_rest = (without_axis(t.shape, self.axis) for t in (x, first))
            if same_shape(first_rest, rest) is None:
                raise Mismatch(
                    f"{first} and {x} differ on an axis other than {self.axis}, "
                    "along which they are joined",
                    fix="reshape or slice them to equal sizes on the other axes",
                )
            total = total + x.shape[self.axis]
        shape = (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])
        return first.with_shape(shape)

    def vjp(self, g: Tensor, y: Tensor, *xs: Tensor) -> Derivative:
        pieces: list[Tensor] = []
        start: Size = 0
        for x in xs:
            stop = start + x.type.shape[self.axis]
            pieces.append(slice_axis(g, self.axis, start, stop))
            start = stop
        return tuple(pieces)

    def jvp(self, tangents: Tangents, y: Tensor, *xs: Tensor) -> Derivative:
        return linear_tangent(self, tangents, xs)

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        return Concatenate(self.axis + 1)(*batched_operands(n, batched, xs)), True

    def numpy(self, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, axis=self.axis)


class Reverse(Movement):
    """x with the order of the elements along `axes` turned round."""

    axes: tuple[int, ...]
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (self(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Reverse(tuple(axis + 1 for axis in self.axes))(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.axes)


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The order that undoes `perm`."""
    return tuple(int(axis) for axis in np.argsort(perm))


def total(x: Tensor) -> Tensor:
    return Sum(tuple(range(x.ndim)))(x)


def padded_size(size: Any, before: Any, after: Any, interior: int) -> Any:
    return spread_size(size, interior) + before + after


def spread_size(size: Any, interior: int) -> Any:
    """The size of an axis with `interior` more elements between each two of its own."""
    return size if interior == 0 else maximum((size - 1) * (interior + 1) + 1, 0)


def without_axis(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def with_sizes(x: Tensor, sizes: Shape) -> Tensor:
    """x, whose shape is taken to be `sizes`, which every run checks where one of them is open."""
    return x if sizes == x.type.shape else EnsureShape(sizes)(x)


def may_take_rank_of(own: Shape, other: Shape) -> bool:
    """Whether a shape whose rank only the run knows, that of what a Python function returns, may be
    taken to be another one, which it meets in a branch or a loop."""
    if not isinstance(own, ShapeVariable) or isinstance(other, ShapeVariable):
        return False
    names = [name for size in other if isinstance(size, Dim) for name in size.names()]
    return own.name.startswith("?") and not any(name.startswith("?") for name in names)


def with_rank_of(x: Tensor, shape: Shape) -> Tensor:
    """x, taken to have this shape if only the run knows its rank; the run checks it."""
    return with_sizes(x, shape) if may_take_rank_of(x.type.shape, shape) else x


def with_size(x: Tensor, axis: int, size: Size) -> Tensor:
    """x, of which one axis is taken to have `size`."""
    return with_sizes(x, (*x.type.shape[:axis], size, *x.type.shape[axis + 1 :]))


def at_least(x: Tensor, axis: int, size: Size) -> Tensor:
    """x, of which one axis is taken to have `size` or more."""
    return with_size(x, axis, maximum(x.type.shape[axis], size))


def slice_axis(x: Tensor, axis: int, start: Any, stop: Any, stride: int = 1) -> Tensor:
    """x[start:stop:stride] along one axis."""
    shape = x.type.shape
    rank = len(shape)
    return Slice(
        tuple(start if k == axis else 0 for k in range(rank)),
        tuple(stop if k == axis else shape[k] for k in range(rank)),
        tuple(stride if k == axis else 1 for k in range(rank)),
    )(x)
