"""Comparing and measuring images: noise, structure, edges, variation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_count, as_flag, as_number, known_int, refuse
from tracegraph.array.joining import stack
from tracegraph.array.shaping import cut, pad, reshape
from tracegraph.core.shapes import element_count, same_shape
from tracegraph.core.types import TensorType, float32
from tracegraph.image.pictures import as_images, converted
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    maximum,
    multiply,
    pow,
    squared_difference,
    subtract,
)
from tracegraph.math.elementwise.unary import abs, log, rsqrt
from tracegraph.math.reduction import reduce_mean, reduce_prod, reduce_std, reduce_sum, summable
from tracegraph.nn.activation import relu
from tracegraph.nn.convolutions import depthwise_conv2d
from tracegraph.nn.pooling import avg_pool2d
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.typing import TensorLike


def per_image_standardization(image: TensorLike) -> Tensor:
    """Subtracts the mean of each image [..., height, width, channels], and divides by its
    deviation.

    The standard deviation counts as at least 1 / sqrt(elements), so that a constant image becomes
    0. Returns float32, or the image's own floating dtype.

    >>> tg.image.per_image_standardization([[[1.0], [3.0]]]).numpy().tolist()
    [[[-1.0], [1.0]]]
    """
    op = "per_image_standardization"
    x = as_images(op, image)
    own = x if x.dtype.is_floating else cast_to(x, float32)
    x = summable(own)
    axes = [-3, -2, -1]
    count = cast_to(as_tensor(element_count(x.type.shape[-3:])), x.dtype)  # type: ignore[arg-type]
    deviation = reduce_std(x, axes, keepdims=True)
    distance = subtract(x, reduce_mean(x, axes, keepdims=True))
    return cast_to(divide(distance, maximum(deviation, rsqrt(count))), own.dtype)


def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the absolute differences of neighbours, for each image of [examples, height,
    width, channels] or for one image.

    >>> tg.image.total_variation([[[1.0], [3.0]], [[1.0], [2.0]]]).numpy()
    np.float32(4.0)
    """
    x = as_images("total_variation", images, ranks=(3, 4))
    axes = [-3, -2, -1]
    down, across = (reduce_sum(abs(_steps(x, x.ndim + k)), axes) for k in (-3, -2))
    return add(down, across)


def _steps(x: Tensor, axis: int) -> Tensor:
    """The differences of neighbouring elements along an axis."""
    size = x.type.shape[axis]
    return subtract(cut(x, axis, 1, size), cut(x, axis, 0, size - 1))


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """The differences to the next row and to the next column of [examples, height, width,
    channels]; those of the last row and column are 0.

    >>> dy, dx = tg.image.image_gradients(tg.reshape([1.0, 2.0, 4.0, 8.0], [1, 2, 2, 1]))
    >>> dy.numpy()[0, :, :, 0].tolist(), dx.numpy()[0, :, :, 0].tolist()
    ([[3.0, 6.0], [0.0, 0.0]], [[1.0, 0.0], [4.0, 0.0]])
    """
    x = as_images("image_gradients", image, ranks=(4,))
    widths = [[[0, 0]] * axis + [[0, 1]] + [[0, 0]] * (3 - axis) for axis in (1, 2)]
    dy, dx = (pad(_steps(x, axis), width) for axis, width in zip((1, 2), widths))
    return dy, dx


def sobel_edges(image: TensorLike) -> Tensor:
    """Sobel edges: differences along height and width, smoothed in the other direction. Returns
    [examples, height, width, channels, 2] for [examples, height, width, channels]; edges are
    mirrored.

    >>> tg.image.sobel_edges(tg.reshape(tg.range(9.0), [1, 3, 3, 1]))[0, 1, 1, 0].numpy()
    array([24.,  8.], dtype=float32)
    """
    op = "sobel_edges"
    x = as_images(op, image, ranks=(4,))
    if not x.dtype.is_floating:
        refuse(op, f"the images are {x.type}", x, fix="convert them: tg.cast(x, tg.float32)")
    wide = pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    down = _weighted(_weighted(wide, 1, (-1, 0, 1)), 2, (1, 2, 1))
    across = _weighted(_weighted(wide, 2, (-1, 0, 1)), 1, (1, 2, 1))
    return stack([down, across], axis=-1)


def _weighted(x: Tensor, axis: int, weights: Sequence[int]) -> Tensor:
    """The weighted sum of neighbours along an axis, one for each weight."""
    size = x.type.shape[axis] - len(weights) + 1  # type: ignore[operator]
    total = None
    for place, weight in enumerate(weights):
        if weight:
            part = multiply(cut(x, axis, place, place + size), weight)
            total = part if total is None else add(total, part)
    assert total is not None
    return total


def psnr(a: TensorLike, b: TensorLike, max_val: TensorLike, name: str | None = None) -> Tensor:
    """The peak signal-to-noise ratio of pairs of images [..., height, width, channels], in
    decibels: 10 log10(max_val ** 2 / mean((a - b) ** 2)).

    - `max_val`: the largest possible value of the images, such as 255 for uint8.

    Returns float32 [...]. Raises ShapeError if the shapes differ.

    >>> tg.image.psnr([[[0.0]]], [[[0.1]]], max_val=1.0).numpy().round(3)
    np.float32(20.0)
    """
    op = "psnr"
    x, y, largest = _pair(op, a, b, max_val)
    error = reduce_mean(squared_difference(x, y), [-3, -2, -1])
    return multiply(subtract(multiply(log(largest), 2.0), log(error)), 10 / math.log(10))


def _pair(op: str, a: Any, b: Any, max_val: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Two stacks of images, and the largest value, as float32 scaled to [0, 1]."""
    x, y = as_operands(op, a, b)
    x, y = as_images(op, x), as_images(op, y)
    if same_shape(x.type.shape, y.type.shape) is None:
        refuse(op, f"{x.type} and {y.type} have different shapes", x, y, fix="give pairs of images")
    largest = as_tensor(as_number(op, "max_val", max_val) if _is_plain(max_val) else max_val)
    largest = cast_to(largest, x.dtype)
    x, y, largest = (converted(op, z, float32, False) for z in (x, y, largest))
    return x, y, largest


def _is_plain(value: Any) -> bool:
    return not (isinstance(value, Tensor) or hasattr(value, "dtype"))


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> Tensor:
    """The structural similarity of pairs of images [..., height, width, channels]: the mean, over
    windows and channels, of a product of two measures, which is 1 for identical images.

    - `max_val`: the largest possible value of the images, such as 255 for uint8.
    - `filter_size`, `filter_sigma`: the size and standard deviation of the Gaussian windows.
    - `k1`, `k2`: constants that keep the measures of brightness and of contrast from being 0 / 0:
      (k * max_val) ** 2 is added.
    - `return_index_map`: whether to return the map over all windows instead of the mean.

    Returns float32 [...]. Raises ShapeError if shapes differ, or images are smaller than a window.

    >>> image = tg.reshape(tg.range(256.0), [16, 16, 1])
    >>> tg.image.ssim(image, image, max_val=255.0).numpy()
    np.float32(1.0)
    """
    op = "ssim"
    x, y, largest = _pair(op, img1, img2, max_val)
    windows = _Gaussian(op, x, filter_size, filter_sigma)
    brightness, contrast = _similarities(x, y, largest, windows, k1, k2)
    found = multiply(brightness, contrast)
    if not as_flag(op, "return_index_map", return_index_map):
        found = reduce_mean(found, [-3, -2])
    return reduce_mean(found, [-1])


#: The weights of the five scales, by Wang, Simoncelli and Bovik.
_POWERS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    power_factors: Sequence[float] = _POWERS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """`ssim` over several scales, each half the size of the previous one: the product of powers of
    the contrast measures, and of the full measure at the smallest scale.

    Measures below 0 count as 0. Raises ShapeError if the smallest images are smaller than a window.

    >>> image = tg.reshape(tg.range(1024.0), [32, 32, 1])
    >>> tg.image.ssim_multiscale(image, image, 1024.0, (0.5, 0.5)).numpy()
    np.float32(1.0)
    """
    op = "ssim_multiscale"
    x, y, largest = _pair(op, img1, img2, max_val)
    parts = []
    for k in range(len(power_factors)):
        if k > 0:
            x, y = _halved(x), _halved(y)
        windows = _Gaussian(op, x, filter_size, filter_sigma)
        brightness, contrast = _similarities(x, y, largest, windows, k1, k2)
        is_last = k == len(power_factors) - 1
        measure = multiply(brightness, contrast) if is_last else contrast
        parts.append(relu(reduce_mean(measure, [-3, -2])))
    powers = as_tensor([float(power) for power in power_factors], float32)
    return reduce_mean(reduce_prod(pow(stack(parts, axis=-1), powers), axis=-1), [-1])


def _halved(x: Tensor) -> Tensor:
    """Means over squares of four pixels; an odd row or column at the end is repeated."""
    lead, (height, width, channels) = x.type.shape[:-3], x.type.shape[-3:]
    flat = reshape(x, [-1, height, width, channels])
    odd = [[0, size % 2] for size in (height, width)]
    half = avg_pool2d(pad(flat, [[0, 0], *odd, [0, 0]], "SYMMETRIC"), 2, 2, "VALID")
    return reshape(half, [*lead, *half.type.shape[1:]])


class _Gaussian:
    """A function from images to the weighted means of their windows."""

    def __init__(self, op: str, x: Tensor, size: Any, sigma: Any) -> None:
        count = as_count(op, "filter_size", size)
        deviation = float(as_number(op, "filter_sigma", sigma))
        for own in x.type.shape[-3:-1]:
            if known_int(own) and own < count:  # type: ignore[operator]
                fact = f"the windows of {count} pixels are larger than {x.type}"
                refuse(op, fact, x, fix="give a smaller filter_size")
        offsets = np.arange(count) - (count - 1) / 2
        weights = np.exp(-0.5 * (offsets / deviation) ** 2)
        self._weights = (weights / weights.sum()).astype(np.float32)

    def __call__(self, x: Tensor) -> Tensor:
        lead, (height, width, channels) = x.type.shape[:-3], x.type.shape[-3:]
        flat = reshape(x, [-1, height, width, channels])
        count = len(self._weights)
        for sizes in ((count, 1), (1, count)):  # first down, then across
            kernel = reshape(as_tensor(self._weights), [*sizes, 1, 1])
            kernel = multiply(kernel, full(1, TensorType(float32, (1, 1, channels, 1))))
            flat = depthwise_conv2d(flat, kernel, 1, "VALID")
        return reshape(flat, [*lead, *flat.type.shape[1:]])


def _similarities(
    x: Tensor, y: Tensor, largest: Tensor, mean: Callable[[Tensor], Tensor], k1: float, k2: float
) -> tuple[Tensor, Tensor]:
    """The brightness measure, and the contrast and structure measure, of each window."""
    scales = (as_number("ssim", what, k) for what, k in (("k1", k1), ("k2", k2)))
    first, second = (pow(multiply(largest, float(k)), 2.0) for k in scales)
    by_x, by_y = mean(x), mean(y)
    product = multiply(multiply(by_x, by_y), 2.0)
    squares = add(multiply(by_x, by_x), multiply(by_y, by_y))
    brightness = divide(add(product, first), add(squares, first))
    together = multiply(mean(multiply(x, y)), 2.0)
    apart = mean(add(multiply(x, x), multiply(y, y)))
    contrast = divide(
        add(subtract(together, product), second), add(subtract(apart, squares), second)
    )
    return brightness, contrast


__all__ = [
    "image_gradients",
    "per_image_standardization",
    "psnr",
    "sobel_edges",
    "ssim",
    "ssim_multiscale",
    "total_variation",
]
