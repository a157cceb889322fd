"""Convolutions, and on CPUs what is faster: products of matrices, and sums of shifted arrays.

A product takes the elements of x that meet the kernel, a row for each result, and the kernel. These
patches are several times as large as x, so they are made part by part, each of which stays in the
processor's cache.

Where the groups have few channels, the products are too small to be fast. The result is then a sum
over the window: x, shifted by one place of the window, times what the kernel has there.

A convolution over three axes is a sum of convolutions over two, which XLA is faster at. Where each
element of x becomes a block of the result, one product makes the blocks.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules.shape import padded
from tracegraph.ops.contract import Conv, Matmul

Form = Callable[[Conv, Any, Any], Any]

#: The bytes of patches that are made at a time. From 256 KiB to 4 MiB it makes no difference.
PART = 1 << 20

#: Convolutions with fewer operations are left to XLA: they take some tenths of a millisecond.
LEAST_WORK = 1 << 22

#: The same for convolutions in groups, of which XLA's take up to 30 times as long.
LEAST_WORK_IN_GROUPS = 1 << 16

#: With more slices than this the patches take longer to make than the convolution takes.
MOST_SLICES = 32

#: With fewer places in its result, the gradient by a kernel over three axes takes longer by planes.
LEAST_PLACES_BY_PLANES = 9

#: XLA's gradient by a kernel is slow with fewer examples: its sums over them are too short.
LEAST_EXAMPLES = 4

#: XLA is slow where a larger window leaves one place, as in the gradient by a kernel of one place.
LEAST_WINDOW = 100

#: A convolution of so few channels, to so few outputs, is a sum of shifted images.
MOST_CHANNELS, MOST_OUTPUTS = 3, 32

#: The most shifted arrays in one expression, which XLA compiles as one loop.
MOST_SHIFTS = 72

#: The most groups of which each becomes a convolution of its own.
MOST_GROUPS = 8


def precision(op: Matmul | Conv) -> str | None:
    """What JAX is asked for; None leaves it to JAX's own setting."""
    return None if op.precision == "default" else op.precision


def by_xla(op: Conv, x: Any, y: Any) -> Any:
    """XLA's own convolution."""
    rank = len(op.strides)
    layout = (0, rank + 1, *range(1, rank + 1))  # where batch, channels and space stand
    kernel = (rank + 1, rank, *range(rank))  # outputs, channels, window
    padding = tuple((sizes.size(low), sizes.size(high)) for low, high in op.padding)
    lhs_dilation = op.lhs_dilation
    if any(sizes.is_open(size) or size < 0 for pair in padding for size in pair):
        # JAX takes no open sizes here; and with strides XLA's convolution on CPUs reads beyond an
        # x that is cut at its beginning.
        around = ((*pair, step - 1) for pair, step in zip(padding, lhs_dilation, strict=True))
        x = padded(x, jnp.zeros((), x.dtype), ((0, 0, 0), *around, (0, 0, 0)))
        padding, lhs_dilation = ((0, 0),) * rank, (1,) * rank
    return lax.conv_general_dilated(
        x,
        y,
        op.strides,
        padding,
        lhs_dilation,
        op.rhs_dilation,
        lax.ConvDimensionNumbers(layout, kernel, layout),
        feature_group_count=sizes.size(op.groups),
        precision=precision(op),
    )


def form_on_cpu(op: Conv, x: Any, y: Any) -> Form | None:
    """The form that is faster than XLA's own on a CPU, if there is one.

    Measured on two quiet cores with AVX-512, by time, in times of XLA's own form, with windows of
    3 x 3 unless said otherwise. Planes, windows of 3 x 3 x 3, in float32: 0.2 to 0.4, and 0.01 to
    0.1 for the gradient by x with strides of 2; their gradient by the kernel, 0.3 for one and two
    examples, about 1 for sixteen. Shifted images: 1 channel and 32 outputs, 0.35; 3 and 16, 0.35;
    3 and 64, 0.85. The gradient by the kernel by channels: one and two examples, 0.4; four and
    more, 0.9 to 4; windows of 1 x 1, 0.5 to 0.7; of a transposed convolution, 0.2. Spreading, in
    the gradient by x of windows of 16 x 16 with strides of 16, 0.07; 2 x 2, 0.9. In float64, where
    XLA has plain loops, channels take 0.1, and examples 0.12.
    """
    shapes = (*x.shape, *y.shape, op.groups)
    if any(map(sizes.is_open, shapes)):
        return None
    if op.groups != 1:
        return _form_in_groups(op, x, y)
    if op.flops(x, y) < LEAST_WORK or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    # In the gradient by a kernel, x has the channels first and the examples last, and the result
    # has few places: those of the kernel's window.
    spatial = [*op.spatial(x.shape[1:-1], y.shape[:-2])]
    window, places = math.prod(y.shape[:-2]), math.prod(spatial)
    is_gradient = places < window
    if places > 1 and window > 1 and _is_spread(op, x, y):
        return by_spreading
    is_worth_planes = places >= LEAST_PLACES_BY_PLANES if is_gradient else window > 1
    if len(spatial) == 3 and is_worth_planes and min(spatial[0], y.shape[0]) <= MOST_SLICES:
        return by_planes
    if x.dtype == jnp.float64:
        fits = min(places, window) <= MOST_SLICES
        return (by_channels if is_gradient else by_examples) if fits else None
    if x.dtype != jnp.float32:
        return None
    if is_gradient:
        is_fast = window < LEAST_WINDOW if places == 1 else x.shape[-1] >= LEAST_EXAMPLES
        is_plain = len(spatial) < 3 and max(op.lhs_dilation) == 1
        return None if (is_fast and is_plain) or places > MOST_SLICES else by_channels
    channels, outputs = y.shape[-2:]
    is_small = channels <= MOST_CHANNELS and outputs <= MOST_OUTPUTS
    return by_shifts if is_small and window * channels <= MOST_SLICES else None


def _form_in_groups(op: Conv, x: Any, y: Any) -> Form | None:
    """The form that is faster than XLA's own for a convolution in groups, if there is one.

    Measured on two quiet cores with AVX-512, by time, in times of XLA's own form, in float32. One
    channel in each group, 8 x 56 x 56 places and 64 channels, windows of 3 x 3: 0.04; windows of
    7 x 7, 0.03; the gradient by the kernel, 0.2. Groups of 8 channels, 256 in all, 0.35. Two groups
    of 64 channels, 0.7 to 1.1.
    """
    flops = op.flops(x, y)
    if not jnp.issubdtype(x.dtype, jnp.floating) or flops < LEAST_WORK_IN_GROUPS:
        return None
    window, places = y.shape[:-2], (*op.spatial(x.shape[1:-1], y.shape[:-2]),)
    if math.prod(window) * y.shape[-2] <= MOST_SHIFTS:
        return by_shifts
    if x.shape[0] == 1 and math.prod(places) <= MOST_SHIFTS:  # as in the gradient by a kernel
        return sums_of_shifts
    return by_groups if op.groups <= MOST_GROUPS and flops >= LEAST_WORK else None


def by_shifts(op: Conv, x: Any, y: Any) -> Any:
    """The sum over the window, and the channels of a group, of shifted x times the kernel there."""
    *window, channels, outputs = y.shape
    places = (*op.spatial(x.shape[1:-1], window),)
    n = x.shape[0]
    size = _part(n, math.prod(places) * outputs * x.dtype.itemsize, parts=2)

    def convolved(start: Any) -> Any:
        part = _padded(op, lax.dynamic_slice_in_dim(images, start, size))
        shifted = _shifted(part, window, op.rhs_dilation, places, op.strides)
        terms = (
            image[..., c, None] * factor[c]
            for image, factor in zip(shifted, factors, strict=True)
            for c in range(channels)
        )
        return functools.reduce(operator.add, terms).astype(x.dtype)

    # In a loop, which XLA does not merge with what makes x: that would be computed for each shift.
    with jax.named_scope("convolution_by_shifts"):
        images = _accumulated(x).reshape(*x.shape[:-1], op.groups, channels)
        factors = _accumulated(y).reshape(-1, channels, op.groups, outputs // op.groups)
        z = lax.map(convolved, jnp.arange(0, n, size, dtype=jnp.int32))
        return z.reshape(n, *places, outputs)


def sums_of_shifts(op: Conv, x: Any, y: Any) -> Any:
    """For each place of the result, the sum of shifted x times y. In the gradient by a kernel, x
    has one example, the channel of each group, and the channels of a group are the examples. Their
    products are added up as arrays of some rows, which stay in the cache, and then each array."""
    *window, n, outputs = y.shape
    places = (*op.spatial(x.shape[1:-1], window),)
    row = math.prod((*places, *window[1:], outputs)) * y.dtype.itemsize
    height = _part(window[0], row)
    parts = window[0] // height
    gap = op.rhs_dilation[0]
    reach = (places[0] - 1) * op.strides[0] + (height - 1) * gap + 1

    def add(totals: list[Any], k: Any) -> tuple[list[Any], None]:
        start = k % parts * height
        image = lax.dynamic_slice_in_dim(images[None, k // parts], start * gap, reach, axis=1)
        kernel = lax.dynamic_slice_in_dim(kernels[k // parts], start, height)
        shifted = _shifted(image, places, op.strides, (height, *window[1:]), op.rhs_dilation)
        return [t + part[0] * kernel for t, part in zip(totals, shifted, strict=True)], None

    with jax.named_scope("convolution_by_sums_of_shifts"):
        image, kernel = map(_accumulated, (x[0], y))
        # The examples stand first, as they do in what JAX's transposes make of both.
        images = jnp.moveaxis(image.reshape(*image.shape[:-1], op.groups, n), -1, 0)
        images = _padded(op, images)[..., None]
        kernels = jnp.moveaxis(kernel, -2, 0).reshape(n, *window, op.groups, -1)
        totals = [jnp.zeros((height, *kernels.shape[2:]), image.dtype)] * math.prod(places)
        totals, _ = lax.scan(add, totals, jnp.arange(n * parts, dtype=jnp.int32))
        z = jnp.stack([jnp.sum(total, (*range(len(window)),)) for total in totals])
        return z.reshape(1, *places, outputs).astype(x.dtype)


def by_groups(op: Conv, x: Any, y: Any) -> Any:
    """A convolution for each group."""
    steps = op.strides, op.padding, op.lhs_dilation, op.rhs_dilation
    single = Conv(*steps, 1, op.precision)
    pairs = zip(*(jnp.split(z, sizes.size(op.groups), axis=-1) for z in (x, y)), strict=True)
    with jax.named_scope("convolution_by_groups"):
        results = [(form_on_cpu(single, *pair) or by_xla)(single, *pair) for pair in pairs]
        return lax.concatenate(results, x.ndim - 1)


def by_planes(op: Conv, x: Any, y: Any) -> Any:
    """Over three axes: for each plane of the window, a convolution of the planes that meet it, and
    the sum of these. Where the result has fewer planes, as in the gradient by a kernel: for each of
    them, one convolution, which sums over the planes of the window as it does over channels."""
    stride, gap = op.strides[0], op.rhs_dilation[0]
    places: Any = next(op.spatial(x.shape[1:-1], y.shape[:-2]))
    depth = y.shape[0]
    steps = op.strides[1:], op.padding[1:], op.lhs_dilation[1:], op.rhs_dilation[1:]
    plane = Conv(*steps, 1, op.precision)

    def convolved(x: Any, y: Any) -> Any:
        return (form_on_cpu(plane, x, y) or by_xla)(plane, x, y)

    def planes(first: int, count: int, step: int) -> Any:
        return lax.slice_in_dim(image, first, first + (count - 1) * step + 1, step, axis=1)

    with jax.named_scope("convolution_by_planes"):
        image, kernel = _padded(op, _accumulated(x), axes=1), _accumulated(y)
        if depth <= places:
            met = (planes(k * gap, places, stride) for k in range(depth))
            flat = (part.reshape(-1, *part.shape[2:]) for part in met)
            z = functools.reduce(operator.add, map(convolved, flat, kernel))
            z = z.reshape(x.shape[0], places, *z.shape[1:])
        else:
            met = (planes(k * stride, depth, gap) for k in range(places))
            deep = (jnp.moveaxis(part, 1, -2) for part in met)
            deep = (part.reshape(*part.shape[:-2], -1) for part in deep)
            kernel = jnp.moveaxis(kernel, 0, -3)
            kernel = kernel.reshape(*kernel.shape[:-3], -1, kernel.shape[-1])
            z = jnp.stack([convolved(part, kernel) for part in deep], axis=1)
        return z.astype(x.dtype)


def _is_spread(op: Conv, x: Any, y: Any) -> bool:
    """Whether each place of the result sees one element of x, each of which becomes a block: as in
    the gradient by x where windows do not overlap, such as those of a vision transformer."""
    return all(
        (size == 1 or lhs == window) and low == window - 1 <= high and stride == rhs == 1
        for size, window, (low, high), stride, lhs, rhs in zip(
            x.shape[1:-1],
            y.shape[:-2],
            op.padding,
            op.strides,
            op.lhs_dilation,
            op.rhs_dilation,
            strict=True,
        )
    )


def by_spreading(op: Conv, x: Any, y: Any) -> Any:
    """One product, whose results are put side by side."""
    rank, n, outputs = len(op.strides), x.shape[0], y.shape[-1]
    with jax.named_scope("convolution_by_spreading"):
        kernel = jnp.moveaxis(lax.rev(y, (*range(rank),)), -2, 0)
        z = lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision(op))
        blocks = ((1 + k, 1 + rank + k) for k in range(rank))
        z = z.transpose(0, *itertools.chain(*blocks), z.ndim - 1)
        z = z.reshape(n, *map(operator.mul, x.shape[1:-1], y.shape[:-2]), outputs)
        rest = ((0, high - low, 0) for low, high in op.padding)
        return lax.pad(z, jnp.zeros((), z.dtype), ((0, 0, 0), *rest, (0, 0, 0)))


def _accumulated(x: Any) -> Any:
    """x in the type in which its sums are accumulated."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


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


def _part(count: int, size: int, parts: int = 1) -> int:
    """The most that divide `count` and make patches of at most `PART` bytes, `size` each; where
    `count` allows it, at least so many `parts` of it."""
    most = max(min(PART // size, count // parts), 1)
    return max(n for n in range(1, most + 1) if count % n == 0)


def _padded(op: Conv, x: Any, axes: int | None = None) -> Any:
    """x with what the convolution puts around and between its elements, along the first so many
    spatial axes, or all."""
    around: list[Any] = [(0, 0, 0)]
    for (low, high), step in zip(op.padding[:axes], op.lhs_dilation[:axes], strict=True):
        around.append((low, high, step - 1))
    rest = [(0, 0, 0)] * (x.ndim - len(around))
    return lax.pad(x, jnp.zeros((), x.dtype), (*around, *rest))


_Sizes = Sequence[Any]  # which are ints here, be they declared as open


def _slices(x: Any, counts: _Sizes, steps: _Sizes, lengths: _Sizes, gaps: _Sizes) -> Any:
    """The shifted parts of x side by side along its last axis."""
    return lax.concatenate([*_shifted(x, counts, steps, lengths, gaps)], x.ndim - 1)


def _shifted(x: Any, counts: _Sizes, steps: _Sizes, lengths: _Sizes, gaps: _Sizes) -> Iterator[Any]:
    """Slices of x along its spatial axes: `counts` of them, `steps` apart, each of `lengths`
    elements that lie `gaps` apart."""
    rest = x.shape[len(counts) + 1 :]
    for place in itertools.product(*map(range, counts)):
        starts = [k * step for k, step in zip(place, steps, strict=True)]
        reach = ((length - 1) * gap + 1 for length, gap in zip(lengths, gaps, strict=True))
        limits = (start + size for start, size in zip(starts, reach, strict=True))
        zeros, ones = (0,) * len(rest), (1,) * len(rest)
        yield lax.slice(x, (0, *starts, *zeros), (x.shape[0], *limits, *rest), (1, *gaps, *ones))
