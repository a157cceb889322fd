"""Order: sorting, the positions that sort, and the largest elements."""

from __future__ import annotations

import numpy as np

from tracegraph.core.shapes import Dim, Size, static_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, Op, WithoutDerivative
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import OverBatchAxes, zeros_of
from tracegraph.ops.elementwise import ORDERED, check_kind
from tracegraph.ops.index import add_along, take_along
from tracegraph.ops.reduce import check_axis


class Sort(Op):
    """x in ascending or descending order along `axis`; nan counts as the largest.

    Equal elements, such as 0.0 and -0.0, keep their order.
    """

    axis: int
    descending: bool

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, ORDERED)
        check_axis(x, self.axis)
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (add_along(zeros_of(x), self._order(x), g, self.axis),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        return take_along(tangents[0], self._order(x), self.axis)

    def _order(self, x: Tensor) -> Tensor:
        return ArgSort(self.axis, self.descending)(x)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Sort(self.axis + 1, self.descending)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=self.axis, keepdims=True).broadcast_to(p.shape)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        if not self.descending:
            return np.sort(x, axis=self.axis, kind="stable")
        # Turned round before and after, so that equal elements keep their order.
        return np.flip(np.sort(np.flip(x, self.axis), self.axis, kind="stable"), self.axis)


class ArgSort(WithoutDerivative):
    """The int32 positions along `axis` that put x in order; equal elements keep their order"""

    axis: int
    descending: bool

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, ORDERED)
        check_axis(x, self.axis)
        return x.with_dtype(int32)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return ArgSort(self.axis + 1, self.descending)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.emptied()

    def numpy(self, x: np.ndarray) -> np.ndarray:
        if not self.descending:
            return np.argsort(x, axis=self.axis, kind="stable").astype(np.int32)
        backwards = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
        return np.flip(x.shape[self.axis] - 1 - backwards, self.axis).astype(np.int32)


class TopK(OverBatchAxes):
    """The k largest elements along the last axis, in descending order, and their positions.

    Of equal elements the first comes first; nan counts as the largest.
    """

    name = "top_k"
    k: int

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_kind(self.name, x, ORDERED)
        check_axis(x, len(x.shape) - 1)
        size = x.shape[-1]
        if isinstance(size, int) and type(self.k) is int and not 0 <= self.k <= size:
            raise Mismatch(
                f"the {self.k} largest of {size} elements were asked for",
                fix="give a k between 0 and the size of the last axis",
            )
        shape = (*x.shape[:-1], self.k)
        return x.with_shape(shape), TensorType(int32, shape)

    def vjp(self, g: Tensor, _: Tensor, values: Tensor, indices: Tensor, x: Tensor) -> Derivative:
        return (add_along(zeros_of(x), indices, g, x.ndim - 1),)

    def jvp(
        self, tangents: tuple[Tensor], values: Tensor, indices: Tensor, x: Tensor
    ) -> Derivative:
        return take_along(tangents[0], indices, x.ndim - 1), None

    def depends(self, p: Pattern) -> tuple[Pattern, ...]:
        found = p.any(axis=-1, keepdims=True).broadcast_to((*p.shape[:-1], self.k))
        return found, found.emptied()

    def numpy(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        axis = x.ndim - 1
        indices = ArgSort(axis, True).numpy(x)[..., : self.k]
        return np.take_along_axis(x, indices, axis), indices


class TrueIndices(WithoutDerivative, OverBatchAxes):
    """The int32 positions of the first `size` true elements along the last axis; then 0"""

    size: Dim | int

    def infer(self, mask: TensorType) -> TensorType:
        if not mask.dtype.is_bool or not mask.shape:
            raise DTypeMismatch(f"the mask is {mask}, and it must be a bool tensor with axes")
        return TensorType(int32, (*mask.shape[:-1], self.size))

    def depends(self, mask: Pattern) -> Pattern:
        return Pattern.nothing(static_shape((*mask.shape[:-1], self.size)), mask.total)

    def numpy(self, mask: np.ndarray) -> np.ndarray:
        if not isinstance(self.size, int):
            return NotImplemented
        found = np.zeros((*mask.shape[:-1], self.size), np.int32)
        for row in np.ndindex(mask.shape[:-1]):
            positions = np.flatnonzero(mask[row])[: self.size]
            found[row][: len(positions)] = positions
        return found
