"""Convolutions on CPUs: as XLA computes them, or as products of matrices.

A product takes the elements of x that meet the kernel, a row for each result, and the kernel. These
patches are several times as large as x, so they are made part by part, each of which stays in the
processor's cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering import sizes
from tracegraph.ops.contract import Conv

Form = Callable[[Conv, Any, Any], Any]

#: The bytes of patches that are made at a time. From 256 KiB to 4 MiB it makes no difference.
PART = 1 << 20

#: Convolutions with fewer operations are left to XLA: they take some tenths of a millisecond.
LEAST_WORK = 1 << 22

#: With more slices than this the patches take longer to make than the convolution takes.
MOST_SLICES = 32


def form_on_cpu(op: Conv, x: Any, y: Any) -> Form | None:
    """The form that is faster than XLA's own on a CPU, if there is one.

    Measured on two cores that others used, by processor time, in times of XLA's own form. The
    gradient by the kernel in float32, batch 64: 28 x 28 places, 32 to 64 channels, 0.17 for windows
    of 3 x 3, 0.1 of 5 x 5, 0.21 of 1 x 1; 8 x 8 and 16 x 16 places, 32 to 64 channels, 0.8;
    strides of 2, 0.65; 4 x 4 places, 256 channels, 0.9; 1 and 3 channels, 0.6 and 1.0; windows of
    7 x 7, 1.2. In float64, where XLA has plain loops, 0.1, and 0.12 for the convolution itself and
    its gradient by x. In float32 these two are as fast as products of matrices, and patches take
    1.3 to 2 times as long.
    """
    shapes = (*x.shape, *y.shape, op.groups)
    if any(map(sizes.is_open, shapes)) or op.groups != 1 or op.flops(x, y) < LEAST_WORK:
        return None
    is_wide = x.dtype == jnp.float64
    if not is_wide and x.dtype != jnp.float32:
        return None
    window = y.shape[:-2]
    places = math.prod(op.spatial(x.shape[1:-1], window))
    if places < math.prod(window):  # as in the gradient by a kernel, where x has the channels first
        return by_channels if places <= MOST_SLICES else None
    return by_examples if is_wide and math.prod(window) <= MOST_SLICES else None


def by_examples(op: Conv, x: Any, y: Any) -> Any:
    """A product of patches and kernel for each part of the examples."""
    window, places = y.shape[:-2], tuple(op.spatial(x.shape[1:-1], y.shape[:-2]))
    kernel = y.reshape(-1, y.shape[-1])
    n = x.shape[0]
    size = _part(n, math.prod(places) * kernel.shape[0] * x.dtype.itemsize)

    def convolved(start: Any) -> Any:
        part = _padded(op, lax.dynamic_slice_in_dim(x, start, size))
        patches = _slices(part, window, op.rhs_dilation, places, op.strides)
        return lax.dot(patches.reshape(-1, kernel.shape[0]), kernel)

    with jax.named_scope("convolution_by_examples"):
        z = lax.map(convolved, jnp.arange(0, n, size, dtype=jnp.int32))
        return z.reshape(n, *places, y.shape[-1])


def by_channels(op: Conv, x: Any, y: Any) -> Any:
    """A sum of products, one for each part of the channels of x; the window has many elements, and
    the result few places."""
    window, places = y.shape[:-2], tuple(op.spatial(x.shape[1:-1], y.shape[:-2]))
    channels, outputs = y.shape[-2:]
    columns = math.prod(places) * x.shape[0]
    size = _part(channels, math.prod(window) * columns * x.dtype.itemsize)
    contracted = (((0,), (0,)), ((), ()))
    is_tall = columns < outputs  # products are faster with the longer rows on the right

    def add(total: Any, start: Any) -> tuple[Any, None]:
        part = _padded(op, lax.dynamic_slice_in_dim(images, start, size))
        patches = _slices(part, places, op.strides, window, op.rhs_dilation)
        kernel = lax.dynamic_slice_in_dim(kernels, start, size).reshape(-1, outputs)
        left, right = patches.reshape(-1, columns), kernel
        if not is_tall:
            left, right = right, left
        return total + lax.dot_general(left, right, contracted), None

    with jax.named_scope("convolution_by_channels"):
        images, kernels = jnp.swapaxes(x, 0, -1), jnp.moveaxis(y, -2, 0)
        starts = jnp.arange(0, channels, size, dtype=jnp.int32)
        shape = (columns, outputs) if is_tall else (outputs, columns)
        z, _ = lax.scan(add, jnp.zeros(shape, x.dtype), starts)
        z = (z.T if is_tall else z).reshape(outputs, *places, x.shape[0])
        return jnp.swapaxes(z, 0, -1)


def _part(count: int, size: int) -> int:
    """The most that divide `count` and make patches of at most `PART` bytes, `size` each."""
    most = max(PART // size, 1)
    return max(n for n in range(1, min(count, most) + 1) if count % n == 0)


def _padded(op: Conv, x: Any) -> Any:
    around: list[Any] = [(0, 0, 0)]
    for (low, high), step in zip(op.padding, op.lhs_dilation, strict=True):
        around.append((low, high, step - 1))
    return lax.pad(x, jnp.zeros((), x.dtype), (*around, (0, 0, 0)))


_Sizes = Sequence[Any]  # which are ints here, be they declared as open


def _slices(x: Any, counts: _Sizes, steps: _Sizes, lengths: _Sizes, gaps: _Sizes) -> Any:
    """Slices of x side by side along the last axis: `counts` of them, `steps` apart, each of
    `lengths` elements that lie `gaps` apart."""
    parts = []
    for place in itertools.product(*map(range, counts)):
        starts = [k * step for k, step in zip(place, steps, strict=True)]
        reach = ((length - 1) * gap + 1 for length, gap in zip(lengths, gaps, strict=True))
        limits = (start + size for start, size in zip(starts, reach, strict=True))
        ends = (x.shape[0], *limits, x.shape[-1])
        parts.append(lax.slice(x, (0, *starts, 0), ends, (1, *gaps, 1)))
    return lax.concatenate(parts, x.ndim - 1)
