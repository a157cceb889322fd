"""Contractions: products that sum over an axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracegraph.core.shapes import (
    Shape,
    Size,
    element_count,
    floor_divide,
    minimum,
    same_shape,
    same_size,
    static_shape,
)
from tracegraph.core.sparsity_patterns import Pattern, element_numbers
from tracegraph.core.types import TensorType
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, KnownValues, Op, Tangents, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import CONJ, NUMERIC, add_all, check_kind
from tracegraph.ops.index import move_axis
from tracegraph.ops.shape import Reshape, Reverse, Transpose


class Bilinear(Op, abstract=True):
    """An op that is linear in each of its two operands."""

    def jvp(self, tangents: Tangents, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        tx, ty = tangents
        by_x = None if tx is None else self(tx, y)
        by_y = None if ty is None else self(x, ty)
        return add_all([by_x, by_y])


def same_batch(x: TensorType, y: TensorType) -> Shape:
    """The leading axes of two stacks of matrices. Raises Mismatch if they differ."""
    leading = same_shape(x.shape[:-2], y.shape[:-2])
    if leading is None:
        raise Mismatch(
            f"batch dimensions differ: {x} and {y}",
            fix="broadcast one of them with tg.broadcast_to",
        )
    return leading


#: How exactly the products of a contraction are computed, where a device has faster, less exact
#: ones. CPUs have none.
PRECISIONS = ("default", "high", "highest")


def check_products(precision: str) -> None:
    """Raises Mismatch for a precision that there is not."""
    if precision not in PRECISIONS:
        raise Mismatch(
            f"there is no precision {precision!r}", fix=f"use one of {', '.join(PRECISIONS)}"
        )


def check_inner_sizes(x: TensorType, y: TensorType) -> None:
    """Raises Mismatch unless a product of x and y, matrices or vectors, can sum over an axis of
    both: the last one of x, and the last but one of a matrix y."""
    if same_size(x.shape[-1], y.shape[-2:][0]) is None:
        raise Mismatch(
            f"inner dimensions differ: {x} times {y}",
            fix="transpose an operand or check the layer width",
        )


class Matmul(Bilinear):
    """z[..., i, k] = sum_j x[..., i, j] * y[..., j, k]; leading axes are batch axes, equal."""

    precision: str = "default"

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        check_products(self.precision)
        dtype = check_same_dtype(self.name, x, y)
        if dtype.is_bool:
            raise DTypeMismatch(
                f"{x} times {y}: truth values have no product", fix="use tg.cast(x, tg.int32)"
            )
        check_kind(self.name, x, NUMERIC)
        if dtype.is_integer and dtype.size < 4:
            raise DTypeMismatch(
                f"{x} times {y}: sums of products would leave the range of {dtype.name}",
                fix="ask for a wider result: tg.matmul(a, b, output_type=tg.int32)",
            )
        if len(x.shape) < 2 or len(x.shape) != len(y.shape):
            raise Mismatch(
                f"the operands must both be matrices, or equally many of them: {x} times {y}",
                fix="use tg.tensordot or tg.linalg.matvec for vectors",
            )
        check_inner_sizes(x, y)
        return x.with_shape((*same_batch(x, y), x.shape[-2], y.shape[-1]))

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        return self(g, adjoint(y)), self(adjoint(x), g)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor, y: Tensor) -> Batched:
        if all(batched):  # leading axes of both operands are batch axes already
            return self(x, y), True
        # The other operand is shared: the loop axis joins the rows of x, or the columns of y.
        if batched[0]:
            rows = x.type.shape[-2]
            z = self(merge_axis(x, x.ndim - 3), y)
            return split_axis(z, z.ndim - 2, n, rows), True
        columns = y.type.shape[-1]
        z = self(x, merge_axis(y, y.ndim - 2))
        return split_axis(z, z.ndim - 1, n, columns), True

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        return p.any(axis=-1, keepdims=True) | q.any(axis=-2, keepdims=True)

    def depends_given(self, values: KnownValues, p: Pattern, q: Pattern) -> Pattern:
        """Products with an element that is known to be zero take no part in the sums."""
        x, y = values
        if (x is None) == (y is None) or p.ndim != 2:
            return self.depends(p, q)
        if y is None:
            return _combined(x != 0, q)
        return _turned(_combined((y != 0).T, _turned(p)))

    def flops(self, x: TensorType, y: TensorType) -> Size:
        return 2 * element_count(x.shape) * y.shape[-1]

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.matmul(x, y)


def _combined(links: np.ndarray, q: Pattern) -> Pattern:
    """Row i of the result has what the rows j of q have together where links[i, j]."""
    rows, inner = np.nonzero(links)
    shape = (links.shape[0], q.shape[1])
    return q.take(element_numbers(q.shape)[inner]).put(element_numbers(shape)[rows], shape)


def _turned(p: Pattern) -> Pattern:
    return p.take(element_numbers(p.shape).T)


MATMUL = Matmul()


def too_large(window: Sequence[Size], operand: str, x: TensorType) -> str:
    """What is wrong with a window that has no place in x, [batch, *spatial, channels]."""
    if 0 in x.shape[1:-1]:
        return f"{x} has an empty axis, where the window {list(window)} has no place"
    return f"the window {list(window)} is larger than {operand}"


class Conv(Bilinear):
    """z[n, o, k] = sum over w, c of x[n, o * stride + w * rhs_dilation - low, c] * y[w, c, k].

    x has the shape [n, *spatial, channels], the kernel y [*window, channels / groups, outputs].
    `padding` gives (low, high) for each spatial axis, which may be negative; `lhs_dilation - 1`
    zeros stand between the elements of x, and `rhs_dilation - 1` between those of y. With `groups`,
    the k-th part of the outputs sees the k-th part of the channels only.
    """

    strides: tuple[int, ...]
    padding: tuple[tuple[Size, Size], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: Size
    precision: str = "default"

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        check_products(self.precision)
        dtype = check_same_dtype(self.name, x, y)
        check_kind(self.name, x, NUMERIC)
        rank = len(self.strides)
        if not len(x.shape) == len(y.shape) == rank + 2:
            raise Mismatch(
                f"a convolution over {rank} axes needs {rank + 2} axes of both operands: "
                f"{x} and {y}",
                fix="give [batch, *spatial, channels] and [*window, channels, outputs]",
            )
        if same_size(x.shape[-1], y.shape[-2] * self.groups) is None:
            groups = f" in {self.groups} groups" if self.groups != 1 else ""
            raise Mismatch(
                f"{x} has {x.shape[-1]} channels, and the kernel {y}{groups} "
                f"takes {y.shape[-2] * self.groups}",
                fix="give images as [batch, *spatial, channels], and kernels as [*window, "
                "channels / groups, outputs]",
            )
        rest = y.shape[-1] - floor_divide(y.shape[-1], self.groups) * self.groups
        if isinstance(rest, int) and rest:
            raise Mismatch(
                f"the {y.shape[-1]} outputs of {y} do not fall into {self.groups} equal groups",
                fix="make the number of outputs a multiple of the groups",
            )
        sizes = tuple(self.spatial(x.shape[1:-1], y.shape[:-2]))
        for size in sizes:
            if isinstance(size, int) and size < 0:
                fact = too_large(y.shape[:-2], f"the padded {x}", x)
                raise Mismatch(fact, fix="use a smaller window or more padding")
        return TensorType(dtype, (x.shape[0], *sizes, y.shape[-1]))

    def spatial(self, sizes: Any, window: Any) -> Iterator[Size]:
        """The spatial sizes of the result."""
        for k, (size, width) in enumerate(zip(sizes, window, strict=True)):
            low, high = self.padding[k]
            padded = dilated(size, self.lhs_dilation[k]) + low + high
            yield floor_divide(padded - dilated(width, self.rhs_dilation[k]), self.strides[k]) + 1

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        return self._to_x(g, x, y), self._to_y(g, x, y)

    def _to_x(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.transposed(g, conjugate(y), x.type.shape[1:-1])

    def transposed(self, g: Tensor, y: Tensor, sizes: Shape) -> Tensor:
        """The convolution by y, as a linear function of an x with spatial `sizes`, transposed.

        The kernel turned round, its channels and outputs exchanged, slides over g.
        """
        padding: list[tuple[Size, Size]] = []
        for k, (size, width, count) in enumerate(self._sizes(g, sizes, y)):
            low = width - self.padding[k][0] - 1
            padding.append((low, size + width - 1 - count - low))
        steps = self.lhs_dilation, tuple(padding), self.strides, self.rhs_dilation
        transposed = Conv(*steps, self.groups, self.precision)
        *window, channels, outputs = y.type.shape
        rank = len(window)
        kernel = Reverse(tuple(range(rank)))(y)
        kernel = Reshape((*window, channels, self.groups, floor_divide(outputs, self.groups)))(
            kernel
        )
        kernel = Transpose((*range(rank), rank + 2, rank + 1, rank))(kernel)
        shape = (*window, floor_divide(outputs, self.groups), self.groups * channels)
        return transposed(g, Reshape(shape)(kernel))

    def _to_y(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """x slides over g, where examples and channels have changed their roles."""
        padding: list[tuple[Size, Size]] = []
        for k, (size, width, count) in enumerate(self._sizes(g, x.type.shape[1:-1], y)):
            low = self.padding[k][0]
            padding.append((low, count - size + width - low - 1))
        steps = self.rhs_dilation, tuple(padding), self.lhs_dilation, self.strides
        transposed = Conv(*steps, self.groups, self.precision)
        n, *spatial, _ = x.type.shape
        channels = y.type.shape[-2]
        rank = len(spatial)
        middle = range(1, rank + 1)
        # [n, spatial, groups, channels] to [channels, spatial, groups * n]
        image = Reshape((n, *spatial, self.groups, channels))(conjugate(x))
        image = Transpose((rank + 2, *middle, rank + 1, 0))(image)
        image = Reshape((channels, *spatial, self.groups * n))(image)
        kernel = Transpose((*middle, 0, rank + 1))(g)
        return Transpose((*middle, 0, rank + 1))(transposed(image, kernel))

    def _sizes(self, g: Tensor, sizes: Shape, y: Tensor) -> Iterator[tuple[Size, Size, Size]]:
        """For each spatial axis the sizes of x, which are `sizes`, y and g with their dilations."""
        for k in range(len(self.strides)):
            yield (
                dilated(sizes[k], self.lhs_dilation[k]),
                dilated(y.type.shape[k], self.rhs_dilation[k]),
                dilated(g.type.shape[k + 1], self.strides[k]),
            )

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor, y: Tensor) -> Batched:
        if not batched[1]:  # the loop axis joins the examples
            z = self(merge_axis(x, 0), y)
            return Reshape((n, x.type.shape[1], *z.type.shape[1:]))(z), True
        outputs = y.type.shape[-1]
        per_group = floor_divide(outputs, self.groups)
        if not batched[0]:  # it joins the outputs of each group
            grouped = Reshape((*y.type.shape[:-1], self.groups, per_group))(y)
            kernel = move_axis(grouped, 0, grouped.ndim - 2)
            z = self(x, Reshape((*y.type.shape[1:-1], n * outputs))(kernel))
            z = Reshape((*z.type.shape[:-1], self.groups, n, per_group))(z)
            z = move_axis(z, z.ndim - 2, 0)
            return Reshape((*z.type.shape[:-2], outputs))(z), True
        if n == 0:  # there is no convolution of no groups
            z = self.infer(*(TensorType(v.dtype, v.type.shape[1:]) for v in (x, y)))
            return full(0, z.with_shape((0, *z.shape))), True
        # It joins the groups.
        steps = self.strides, self.padding, self.lhs_dilation, self.rhs_dilation
        wide = Conv(*steps, n * self.groups, self.precision)
        z = wide(merge_axis(x, x.ndim - 2), merge_axis(y, y.ndim - 2))
        return split_axis(z, z.ndim - 1, n, outputs), True

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        n, *spatial, channels = p.shape
        *window, _, outputs = q.shape
        sizes = static_shape(tuple(self.spatial(spatial, window)))
        # The channels that a group sees, and those of the kernel, are summed over.
        (groups,) = static_shape((self.groups,))
        p = p.reshape(n, *spatial, groups, channels // groups).any(axis=-1)
        q = q.any(axis=-2)
        z, x, y = (element_numbers(s) for s in ((n, *sizes, outputs), p.shape, q.shape))
        x = np.repeat(x, outputs // self.groups, axis=-1)
        links = [np.zeros((3, 0), np.int64)]
        for place, into, out_of in self.taps(spatial, window, sizes):
            met = np.broadcast_arrays(z[:, *into], x[:, *out_of], y[place])
            links.append(np.stack([numbers.reshape(-1) for numbers in met]))
        places, xs, ys = np.concatenate(links, axis=1)
        return p.take(xs).put(places, z.shape) | q.take(ys).put(places, z.shape)

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        n, *spatial, _ = x.shape
        *window, channels, outputs = y.shape
        sizes = static_shape(tuple(self.spatial(spatial, window)))
        x = x.reshape(n, *spatial, self.groups, channels)
        y = y.reshape(*window, channels, self.groups, outputs // self.groups)
        z = np.zeros((n, *sizes, self.groups, outputs // self.groups), x.dtype)
        for place, into, out_of in self.taps(spatial, window, sizes):
            z[:, *into] += np.einsum("n...gc,cgk->n...gk", x[:, *out_of], y[place])
        return z.reshape(n, *sizes, outputs)

    def flops(self, x: TensorType, y: TensorType) -> Size:
        """Two for each element of the window at each place where it lies, in padding too, as
        convolutions are counted by custom; the zeros of dilation do not count. So either gradient
        takes as many as the convolution itself."""
        n, *spatial, _ = x.shape
        *window, channels, outputs = y.shape
        sizes = self.spatial(spatial, window)
        products = n * channels * outputs
        for size, width, count in zip(spatial, window, sizes, strict=True):
            products = products * minimum(size, count) * width
        return 2 * products

    def taps(self, spatial: Any, window: Any, sizes: Any) -> Iterator[tuple[Any, Any, Any]]:
        """For each element of the window: its place, the results it takes part in, and the
        elements of x it meets there, as arrays of positions that index one axis each."""
        for place in itertools.product(*map(range, window)):
            into: list[np.ndarray] = []
            out_of: list[np.ndarray] = []
            for k, offset in enumerate(place):
                met = np.arange(int(sizes[k])) * self.strides[k] - self.padding[k][0]
                met = met + offset * self.rhs_dilation[k]
                is_there = (met >= 0) & (met < dilated(spatial[k], self.lhs_dilation[k]))
                is_there &= met % self.lhs_dilation[k] == 0
                into.append(np.flatnonzero(is_there))
                out_of.append(met[is_there] // self.lhs_dilation[k])
            yield place, _crossed(into), _crossed(out_of)


def _crossed(positions: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    return np.ix_(*positions) if positions else ()


def dilated(size: Size, dilation: int) -> Size:
    """The size of an axis with `dilation - 1` zeros between its elements."""
    return size if isinstance(size, int) and size == 0 else (size - 1) * dilation + 1


def merge_axis(x: Tensor, axis: int) -> Tensor:
    """x with its first axis joined with another, which is `axis` when the first is not counted."""
    moved = move_axis(x, 0, axis)
    shape = moved.type.shape
    return Reshape((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))(moved)


def split_axis(x: Tensor, axis: int, n: Any, size: Size) -> Tensor:
    """Undoes `merge_axis`: the first axis again has size n, and `axis` has `size`."""
    shape = x.type.shape
    return move_axis(Reshape((*shape[:axis], n, size, *shape[axis + 1 :]))(x), axis, 0)


def conjugate(x: Tensor) -> Tensor:
    return CONJ(x) if x.dtype.is_complex else x


def swap_last(x: Tensor) -> Tensor:
    """x with its last two axes exchanged."""
    order = list(range(x.ndim))
    order[-2:] = order[-1], order[-2]
    return Transpose(tuple(order))(x)


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose of each matrix."""
    return conjugate(swap_last(x))
