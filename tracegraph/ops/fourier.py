"""Fourier transforms. None of them divides by the number of elements, so that one way is the
adjoint of the other; the public functions divide."""

from __future__ import annotations

import numpy as np

from tracegraph.core.shapes import Size, element_count, floor_divide, same_size, static_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import Mismatch
from tracegraph.ir.op import Batched, Derivative, Op
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import BroadcastTo, OverBatchAxes, full_like, is_increasing
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import (
    EQUAL,
    FLOATING,
    SELECT,
    Cast,
    LogicalOr,
    check_kind,
    complex_of,
)
from tracegraph.ops.index import size_value


class Fft(Op):
    """y[k] = sum_j x[j] e ** (-2 pi i j k / n) along each of `axes`, or with + if `inverse`"""

    axes: tuple[int, ...]
    inverse: bool
    is_linear = True

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, frozenset(["complex"]))
        if not is_increasing(self.axes, len(x.shape)):
            raise Mismatch(
                f"{list(self.axes)} are not axes of {x} in increasing order",
                fix="give a tensor of more axes",
            )
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (Fft(self.axes, not self.inverse)(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return Fft(tuple(axis + 1 for axis in self.axes), self.inverse)(x), True

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=self.axes, keepdims=True).broadcast_to(p.shape)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        transform = np.fft.ifftn if self.inverse else np.fft.fftn
        return transform(x, axes=self.axes, norm="forward" if self.inverse else "backward")

    def flops(self, x: TensorType) -> Size:
        return 20 * element_count(x.shape)


class Rfft(OverBatchAxes):
    """The first n // 2 + 1 elements of the transform of real x[..., n] along the last axis"""

    def infer(self, x: TensorType) -> TensorType:
        check_kind(self.name, x, FLOATING)
        if not x.shape:
            raise Mismatch(f"{x} has no axis to transform", fix="give a vector")
        return TensorType(complex_of(x.dtype), (*x.shape[:-1], half_size(x.shape[-1])))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        n = x.type.shape[-1]
        return (Irfft(n)(g * _weights(g, n, 0.5)),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        return self(tangents[0])

    def depends(self, p: Pattern) -> Pattern:
        size = p.shape[-1] // 2 + 1
        return p.any(axis=-1, keepdims=True).broadcast_to((*p.shape[:-1], size))

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.fft.rfft(x)

    def flops(self, x: TensorType) -> Size:
        return 10 * element_count(x.shape)


class Irfft(OverBatchAxes):
    """Real y[..., size] of the transform with + of z[..., size // 2 + 1] along the last axis, whose
    other elements are the conjugates of these; an element that is its own conjugate counts by its
    real part"""

    size: Size

    def infer(self, z: TensorType) -> TensorType:
        check_kind(self.name, z, frozenset(["complex"]))
        if not z.shape or same_size(z.shape[-1], half_size(self.size)) is None:
            raise Mismatch(
                f"{z} is not a transform of {self.size} real numbers",
                fix="give the first n // 2 + 1 elements of it",
            )
        return TensorType(z.dtype.real, (*z.shape[:-1], self.size))

    def vjp(self, g: Tensor, y: Tensor, z: Tensor) -> Derivative:
        found = Rfft()(g)
        return (found * _weights(found, self.size, 2.0),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, z: Tensor) -> Derivative:
        return self(tangents[0])

    def depends(self, p: Pattern) -> Pattern:
        return p.any(axis=-1, keepdims=True).broadcast_to(
            (*p.shape[:-1], *static_shape((self.size,)))
        )

    def numpy(self, z: np.ndarray) -> np.ndarray:
        (size,) = static_shape((self.size,))
        return np.fft.irfft(z, size, norm="forward")

    def flops(self, z: TensorType) -> Size:
        return 20 * element_count(z.shape)


def half_size(size: Size) -> Size:
    """How many elements of the transform of real numbers determine it."""
    return floor_divide(size, 2) + 1


def _weights(z: Tensor, size: Size, weight: float) -> Tensor:
    """`weight` for the elements of half a transform whose conjugates are missing, 1 for others."""
    numbers = Iota(z.type.shape[-1], int32)()
    both = numbers + numbers
    is_whole = LogicalOr()(
        EQUAL(both, full_like(both, 0)),
        EQUAL(both, BroadcastTo(both.type.shape, ())(size_value(size, int32))),
    )
    is_whole = BroadcastTo(z.type.shape, (z.ndim - 1,))(is_whole)
    return SELECT(is_whole, full_like(z, 1), Cast(z.dtype)(full_like(z, weight)))
