"""Colours: dtypes, colour spaces, and brightness, contrast, hue and saturation."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import as_flag, as_number, rank_of, refuse
from tracegraph.array.creation import is_tensor
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, tile
from tracegraph.core.shapes import same_size
from tracegraph.effects.checks_and_prints import check
from tracegraph.image.pictures import as_colours, as_floating, as_images, converted
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.logic import equal, greater, greater_equal, less
from tracegraph.math.elementwise.unary import abs, floor
from tracegraph.math.product import tensordot
from tracegraph.math.reduction import reduce_all
from tracegraph.operands.conversion import as_operands, as_tensor
from tracegraph.ops.image import AdjustContrast
from tracegraph.ops.shape import with_size
from tracegraph.typing import DTypeLike, TensorLike


def convert_image_dtype(
    image: TensorLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Converts images to another dtype; the largest value of an integer dtype becomes 1.0.

    - `saturate`: whether to clip values to the range of an integer dtype.

    Raises DTypeError for bool and complex images.

    >>> tg.image.convert_image_dtype(tg.constant([0, 255], tg.uint8), tg.float32).numpy()
    array([0., 1.], dtype=float32)
    """
    op = "convert_image_dtype"
    return converted(op, as_tensor(image), dtype, as_flag(op, "saturate", saturate))


def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """image + delta; integers are scaled to [0, 1] for it, and clipped to their range.

    >>> tg.image.adjust_brightness([[[0.5]]], 0.25).numpy().item()
    0.75
    """
    op = "adjust_brightness"
    x = as_tensor(image)
    y = as_floating(x)
    return converted(
        op, add(y, as_tensor(delta, None if is_tensor(delta) else y.dtype)), x.dtype, True
    )


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """(x - mean) * contrast_factor + mean, with the mean of each channel of each image; integers
    are scaled to [0, 1] for it, and clipped to their range. `contrast_factor` is one number, and
    anything else raises ShapeError.

    This op has no derivative: `GradientTape.gradient` raises a LookupError that names its line.
    Register one with `tg.RegisterGradient("adjust_contrast")`.

    >>> tg.image.adjust_contrast([[[1.0], [3.0]]], 2.0).numpy().tolist()
    [[[0.0], [4.0]]]
    """
    op = "adjust_contrast"
    own = as_tensor(images)
    if rank_of(op, own) < 3:
        refuse(op, f"{own.type} is not an image", own, fix="give [height, width, channels]")
    x, factor = as_operands(op, as_floating(own) if own.dtype.is_integer else own, contrast_factor)
    if rank_of(op, factor) != 0:
        fact = f"contrast_factor is {factor.type}, and images have one"
        refuse(op, fact, own, factor, fix="give a number; for one each, use tg.vectorized_map")
    return converted(op, AdjustContrast()(x, factor), own.dtype, True)


def adjust_gamma(image: TensorLike, gamma: TensorLike = 1, gain: TensorLike = 1) -> Tensor:
    """gain * image ** gamma; integers are scaled to [0, 1] for it, and clipped to their range.

    Raises ValueError for a negative gamma.

    >>> tg.image.adjust_gamma([[[0.5]]], 2.0).numpy().item()
    0.25
    """
    op = "adjust_gamma"
    x = as_tensor(image)
    y = as_floating(x)
    if not is_tensor(gamma):
        gamma = float(as_number(op, "gamma", gamma, low=0))
    else:
        gamma = as_tensor(gamma)
        check(reduce_all(greater_equal(gamma, 0)), f"{op}: gamma is negative", (gamma,))
    return converted(op, multiply(pow(y, gamma), gain), x.dtype, True)


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """Rotates the hue of RGB images by `delta`, from -1 to 1, as a fraction of the full circle.

    Raises ValueError for a delta out of range.

    >>> tg.image.adjust_hue([[[1.0, 0.0, 0.0]]], 1 / 3).numpy().round(3)
    array([[[0., 1., 0.]]], dtype=float32)
    """
    op = "adjust_hue"
    if not is_tensor(delta):
        delta = float(as_number(op, "delta", delta, low=-1, high=1))
    x = as_images(op, image)
    hue, saturation, value = _hsv(as_colours(op, as_floating(x)))
    moved = add(hue, delta)
    return converted(op, _rgb(subtract(moved, floor(moved)), saturation, value), x.dtype, False)


def adjust_saturation(
    image: TensorLike, saturation_factor: TensorLike, name: str | None = None
) -> Tensor:
    """Multiplies the saturation of RGB images, and clips it to [0, 1].

    >>> tg.image.adjust_saturation([[[1.0, 0.5, 0.5]]], 0.0).numpy().tolist()
    [[[1.0, 1.0, 1.0]]]
    """
    op = "adjust_saturation"
    x = as_images(op, image)
    hue, saturation, value = _hsv(as_colours(op, as_floating(x)))
    scaled = clip_by_value(multiply(saturation, saturation_factor), 0.0, 1.0)
    return converted(op, _rgb(hue, scaled, value), x.dtype, False)


def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Converts RGB colours [..., 3], from 0 to 1, to hue, saturation and value, from 0 to 1.

    The hue of grey is 0. Raises DTypeError for integers, ShapeError unless the last size is 3.

    >>> tg.image.rgb_to_hsv([0.0, 0.5, 0.0]).numpy().round(4)
    array([0.3333, 1.    , 0.5   ], dtype=float32)
    """
    x = as_colours("rgb_to_hsv", images)
    return concat(list(_hsv(x)), x.ndim - 1)


def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value, each [..., 1]."""
    red, green, blue = (cut(x, x.ndim - 1, k, k + 1) for k in range(3))
    value = maximum(maximum(red, green), blue)
    spread = subtract(value, minimum(minimum(red, green), blue))
    saturation = where(
        greater(value, 0.0), divide(spread, where(greater(value, 0.0), value, 1.0)), 0.0
    )
    width = multiply(where(greater(spread, 0.0), spread, 1.0), 6.0)
    hue = where(
        equal(red, value),
        divide(subtract(green, blue), width),
        where(
            equal(green, value),
            add(divide(subtract(blue, red), width), 1 / 3),
            add(divide(subtract(red, green), width), 2 / 3),
        ),
    )
    hue = where(greater(spread, 0.0), where(less(hue, 0.0), add(hue, 1.0), hue), 0.0)
    return hue, saturation, value


def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Converts hue, saturation and value, [..., 3] from 0 to 1, to RGB: inverse of `rgb_to_hsv`.

    >>> tg.image.hsv_to_rgb([1 / 3, 1.0, 0.5]).numpy().round(4)
    array([0. , 0.5, 0. ], dtype=float32)
    """
    x = as_colours("hsv_to_rgb", images)
    return _rgb(*(cut(x, x.ndim - 1, k, k + 1) for k in range(3)))


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    angle = multiply(hue, 6.0)
    shares = (
        subtract(abs(subtract(angle, 3.0)), 1.0),
        subtract(2.0, abs(subtract(angle, 2.0))),
        subtract(2.0, abs(subtract(angle, 4.0))),
    )
    grey = subtract(1.0, saturation)
    parts = [add(grey, multiply(saturation, clip_by_value(share, 0.0, 1.0))) for share in shares]
    return multiply(concat(parts, hue.ndim - 1), value)


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Converts RGB images [..., 3] to [..., 1]: 0.2989 red + 0.587 green + 0.114 blue.

    >>> tg.image.rgb_to_grayscale([[[1.0, 0.0, 0.0]]]).numpy().round(4).tolist()
    [[[0.298900...]]]
    """
    op = "rgb_to_grayscale"
    x = as_tensor(images)
    y = as_colours(op, as_floating(x))
    grey = tensordot(y, as_tensor([[0.2989], [0.587], [0.114]], y.dtype), 1)
    return converted(op, grey, x.dtype, False)


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Converts images [..., 1] to [..., 3], with three equal channels.

    Raises ShapeError unless the last size is 1.

    >>> tg.image.grayscale_to_rgb([[[0.5]]]).numpy().tolist()
    [[[0.5, 0.5, 0.5]]]
    """
    op = "grayscale_to_rgb"
    x = as_tensor(images)
    if not rank_of(op, x) or same_size(x.type.shape[-1], 1) is None:
        refuse(op, f"{x.type} does not have 1 channel", x, fix="give [..., 1]")
    return tile(with_size(x, x.ndim - 1, 1), [*[1] * (x.ndim - 1), 3])


#: YIQ and YUV as combinations of red, green and blue: one column each; and their inverses.
_YIQ = [
    [0.299, 0.59590059, 0.2115],
    [0.587, -0.27455667, -0.52273617],
    [0.114, -0.32134392, 0.31119955],
]
_FROM_YIQ = [
    [1.0, 1.0, 1.0],
    [0.95598634, -0.27201283, -1.10674021],
    [0.6208248, -0.64720424, 1.70423049],
]
_YUV = [
    [0.299, -0.14714119, 0.61497538],
    [0.587, -0.28886916, -0.51496512],
    [0.114, 0.43601035, -0.10001026],
]
_FROM_YUV = [
    [1.0, 1.0, 1.0],
    [0.0, -0.394642334, 2.03206185],
    [1.13988303, -0.58062185, 0.0],
]


def _mixed(op: str, images: Any, matrix: list[list[float]]) -> Tensor:
    x = as_colours(op, images)
    return tensordot(x, as_tensor(matrix, x.dtype), 1)


def rgb_to_yiq(images: TensorLike) -> Tensor:
    """Converts RGB colours [..., 3], from 0 to 1, to YIQ: luminance Y and two chroma values.

    >>> tg.image.rgb_to_yiq([1.0, 0.0, 0.0]).numpy().round(3)
    array([0.299, 0.596, 0.212], dtype=float32)
    """
    return _mixed("rgb_to_yiq", images, _YIQ)


def yiq_to_rgb(images: TensorLike) -> Tensor:
    """Converts YIQ colours [..., 3] to RGB: the inverse of `rgb_to_yiq`.

    >>> tg.image.yiq_to_rgb([1.0, 0.0, 0.0]).numpy()
    array([1., 1., 1.], dtype=float32)
    """
    return _mixed("yiq_to_rgb", images, _FROM_YIQ)


def rgb_to_yuv(images: TensorLike) -> Tensor:
    """Converts RGB colours [..., 3], from 0 to 1, to YUV: luminance Y and two chroma values.

    >>> tg.image.rgb_to_yuv([1.0, 0.0, 0.0]).numpy().round(3)
    array([ 0.299, -0.147,  0.615], dtype=float32)
    """
    return _mixed("rgb_to_yuv", images, _YUV)


def yuv_to_rgb(images: TensorLike) -> Tensor:
    """Converts YUV colours [..., 3] to RGB: the inverse of `rgb_to_yuv`.

    >>> tg.image.yuv_to_rgb([1.0, 0.0, 0.0]).numpy()
    array([1., 1., 1.], dtype=float32)
    """
    return _mixed("yuv_to_rgb", images, _FROM_YUV)


__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "convert_image_dtype",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "yiq_to_rgb",
    "yuv_to_rgb",
]
