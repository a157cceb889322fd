"""Resizing images: each row and column of the result is a weighted sum of the original ones, so
resizing is a product with two matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_integers,
    as_number,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import range as range_of
from tracegraph.array.indexing.selection import gather, gather_nd, where
from tracegraph.array.joining import stack
from tracegraph.array.runtime_sizes import with_runtime_sizes
from tracegraph.array.shaping import broadcast_to, expand_dims, reshape
from tracegraph.core.shapes import (
    Size,
    floor_divide,
    maximum as largest_size,
    minimum as smallest_size,
    same_size,
)
from tracegraph.core.types import DType, TensorType, float32, float64, int32, int64
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.image.geometry import pad_to_bounding_box
from tracegraph.image.pictures import as_images
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    floordiv,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import greater_equal, less, less_equal, logical_and
from tracegraph.math.elementwise.unary import abs, ceil, exp, floor, sin
from tracegraph.math.product import einsum
from tracegraph.math.reduction import reduce_sum
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.shape import with_sizes
from tracegraph.tracing.index_checks import value_now
from tracegraph.typing import ShapeLike, SizeLike, TensorLike


class ResizeMethod:
    """The names of the methods of `resize`.

    >>> tg.image.ResizeMethod.BILINEAR
    'bilinear'
    """

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


def resize(
    images: TensorLike,
    size: ShapeLike,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resizes images [examples, height, width, channels], or one image.

    - `size`: the new height and width.
    - `method`: "bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian" or
      "mitchellcubic". The centres of pixels lie halfway between their edges.
    - `antialias`: whether each pixel of a smaller image combines all pixels that it covers; ignored
      by "nearest" and "area".
    - `preserve_aspect_ratio`: whether to use the smaller of the two scales for both axes.

    Returns float32, or the dtype of the images for "nearest". Raises ShapeError for anything but
    images and for a size that is not a pair, ValueError for an unknown method.

    >>> tg.image.resize([[[0.0], [4.0]]], [1, 4]).numpy()[0, :, 0]
    array([0., 1., 3., 4.], dtype=float32)
    """
    op = "resize"
    x = as_images(op, images, ranks=(3, 4))
    kind = as_choice(op, "method", method, _METHODS)
    target = _target(op, x, size, as_flag(op, "preserve_aspect_ratio", preserve_aspect_ratio))
    is_smooth = as_flag(op, "antialias", antialias)
    if x.dtype.is_complex or x.dtype.is_bool:
        refuse(op, f"the images are {x.type}", x, fix="convert them: tg.cast(x, tg.float32)")
    _check_size(x, target, x.dtype if kind == "nearest" else float32)
    if kind == "nearest":
        for axis, count in zip((x.ndim - 3, x.ndim - 2), target):
            x = gather(x, _nearest(x.type.shape[axis], count), axis=axis)
        return x
    rows, columns = (
        cast_to(_weights(kind, x.type.shape[axis], count, is_smooth), float32)
        for axis, count in zip((x.ndim - 3, x.ndim - 2), target)
    )
    y = einsum("ih,...hwc->...iwc", rows, cast_to(x, float32))
    return einsum("jw,...iwc->...ijc", columns, y)


def resize_with_pad(
    image: TensorLike,
    target_height: SizeLike,
    target_width: SizeLike,
    method: str = ResizeMethod.BILINEAR,
    antialias: bool = False,
) -> Tensor:
    """Resizes images without changing their aspect ratio, and centres them on zeros of the given
    sizes.

    The side that does not fill its size is rounded down, and what comes before it is half of what
    it would leave, rounded down too. Arguments and errors are those of `resize`.

    >>> tg.image.resize_with_pad(tg.ones([2, 2, 1]), 1, 3).numpy()[0, :, 0]
    array([0., 1., 0.], dtype=float32)
    """
    op = "resize_with_pad"
    x = as_images(op, image, ranks=(3, 4))
    rows, columns = _target(op, x, [target_height, target_width], False)
    height, width = x.type.shape[-3:-1]
    sides = (height, rows, width, columns), (width, columns, height, rows)
    y = resize(x, [_scaled(*side) for side in sides], method, antialias=antialias)
    top, left = (_before(*side) for side in sides)
    return pad_to_bounding_box(y, top, left, rows, columns)


def _target(op: str, x: Tensor, size: Any, keeps_ratio: bool) -> tuple[Size, Size]:
    sizes = as_sizes(op, "size", with_runtime_sizes(op, size))
    if len(sizes) != 2 or any(known_int(count) and count < 1 for count in sizes):
        refuse(op, f"size is {list(sizes)}", x, fix="give a height and a width of 1 or more")
    own = x.type.shape[-3:-1]
    if any(known_int(count) and count == 0 for count in own):
        refuse(op, f"{x.type} has no pixels", x, fix="check that there is an image")
    if not keeps_ratio:
        return sizes  # type: ignore[return-value]
    if all(map(known_int, (*own, *sizes))):
        scale = min(count / whole for count, whole in zip(sizes, own))
        height, width = (max(int(whole * scale + 0.5), 1) for whole in own)  # type: ignore[operator]
        return height, width
    (height, width), (rows, columns) = own, sizes
    return _scaled(height, rows, width, columns, 1), _scaled(width, columns, height, rows, 1)


def _scaled(own: Any, count: Any, other: Any, other_count: Any, halves: int = 0) -> Size:
    """The size `own` times the smaller one of the scales of both axes, plus these halves, rounded
    down, and at least 1."""
    beside = floor_divide(2 * own * other_count + halves * other, 2 * other)
    return largest_size(smallest_size(count, beside), 1)


def _before(own: Any, count: Any, other: Any, other_count: Any) -> Size:
    """Half of what `own` times the smaller one of the scales leaves of `count`, rounded down."""
    return largest_size(floor_divide(count * other - own * other_count, 2 * other), 0)


def _check_size(x: Tensor, target: Sequence[Size], dtype: DType) -> None:
    """Rejects images too large for any machine, before computing the positions of their pixels."""
    TensorType(dtype, (*x.type.shape[:-3], *target, x.type.shape[-1]))


def _number(size: Size, dtype: Any = float64) -> Tensor:
    return cast_to(as_tensor(size), dtype)


def _nearest(own: Size, count: Size) -> Tensor:
    """For each position, the one whose pixel contains its centre: (2 i + 1) * own / (2 count)."""
    places = add(multiply(range_of(count, dtype=int64), 2), 1)
    found = floordiv(multiply(places, _number(own, int64)), multiply(_number(count, int64), 2))
    return minimum(found, subtract(_number(own, int64), 1))


def _weights(kind: str, own: Size, count: Size, is_smooth: bool) -> Tensor:
    """The matrix [count, own] whose rows are the weights of the elements and sum to 1."""
    scale = divide(_number(own), _number(count))
    place = expand_dims(range_of(count, dtype=float64), 1)
    element = expand_dims(range_of(own, dtype=float64), 0)
    if kind == "area":
        start = multiply(place, scale)
        end = minimum(add(start, scale), add(element, 1.0))
        return divide(maximum(subtract(end, maximum(start, element)), 0.0), scale)
    centre = multiply(add(place, 0.5), scale)
    width = maximum(scale, 1.0) if is_smooth else 1.0
    distance = abs(divide(subtract(add(element, 0.5), centre), width))
    weights = _KERNELS[kind](distance)
    return divide(weights, reduce_sum(weights, axis=1, keepdims=True))


def _cubic(b: float, c: float) -> Callable[[Tensor], Tensor]:
    """The two-parameter piecewise cubic kernels: 0 and 1/2 give Keys' kernel, 1/3 and 1/3
    Mitchell's."""

    def polynomial(x: Tensor, *coefficients: float) -> Tensor:
        total = as_tensor(coefficients[0], x.dtype)
        for number in coefficients[1:]:
            total = add(multiply(total, x), number)
        return divide(total, 6.0)

    def kernel(x: Tensor) -> Tensor:
        near = polynomial(x, 12 - 9 * b - 6 * c, -18 + 12 * b + 6 * c, 0.0, 6 - 2 * b)
        far = polynomial(x, -b - 6 * c, 6 * b + 30 * c, -12 * b - 48 * c, 8 * b + 24 * c)
        return where(less(x, 1.0), near, where(less(x, 2.0), far, 0.0))

    return kernel


def _lanczos(radius: float) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        is_middle = less(x, 1e-3)
        angle = multiply(where(is_middle, 1.0, x), math.pi)
        waves = multiply(sin(angle), sin(divide(angle, radius)))
        value = divide(multiply(waves, radius), multiply(angle, angle))
        return where(is_middle, 1.0, where(less_equal(x, radius), value, 0.0))

    return kernel


def _gaussian(x: Tensor) -> Tensor:
    """A normal curve with standard deviation 1/2, cut off at three of them."""
    return where(less(x, 1.5), exp(multiply(multiply(x, x), -2.0)), 0.0)


_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "bilinear": lambda x: maximum(subtract(1.0, x), 0.0),
    "bicubic": _cubic(0, 0.5),
    "lanczos3": _lanczos(3.0),
    "lanczos5": _lanczos(5.0),
    "gaussian": _gaussian,
    "mitchellcubic": _cubic(1 / 3, 1 / 3),
}
_METHODS = (*_KERNELS, "nearest", "area")


def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    crop_size: ShapeLike,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Crops boxes and resizes them to `crop_size`: [boxes, crop height, crop width, channels].

    - `image`: [examples, height, width, channels].
    - `boxes`: [boxes, 4], each (y1, x1, y2, x2), where 0 is the first row or column of pixels and 1
      the last one; `box_indices`: the example of each box.
    - `method`: "bilinear" or "nearest"; pixels outside the image are `extrapolation_value`.

    Returns float32. Differentiable with respect to the boxes for "bilinear".
    Raises ShapeError for shapes that do not fit, and InvalidArgumentError for boxes that are known
    not to be finite.

    >>> image = tg.reshape(tg.range(9.0), [1, 3, 3, 1])
    >>> tg.image.crop_and_resize(image, [[0.0, 0.0, 1.0, 0.5]], [0], [3, 2])[0, :, :, 0].numpy()
    array([[0., 1.],
           [3., 4.],
           [6., 7.]], dtype=float32)
    """
    op = "crop_and_resize"
    x = as_images(op, image, ranks=(4,))
    corners, at = as_tensor(boxes), as_integers(op, "the box_indices", box_indices)
    target = as_sizes(op, "crop_size", with_runtime_sizes(op, crop_size))
    kind = as_choice(op, "method", method, ("bilinear", "nearest"))
    outside = float(as_number(op, "extrapolation_value", extrapolation_value))
    sizes = sizes_of(op, corners)
    fits = len(sizes) == 2 and same_size(sizes[1], 4) is not None and corners.dtype.is_floating
    if not fits or rank_of(op, at) != 1 or same_size(at.type.shape[0], sizes[0]) is None:
        fact = f"boxes {corners.type} of examples {at.type}"
        refuse(op, fact, corners, at, fix="give floating boxes [boxes, 4] and one example for each")
    if len(target) != 2 or any(known_int(count) and count < 1 for count in target):
        refuse(op, f"crop_size is {list(target)}", x, fix="give two sizes of 1 or more")
    corners = with_sizes(corners, (*at.type.shape, 4))
    x, corners = cast_to(x, float32), cast_to(corners, float32)
    _check_finite(op, corners)
    _check_size(x, target, float32)
    lines = [
        _line(corners[:, k], corners[:, k + 2], x.type.shape[1 + k], target[k])  # type: ignore[index]
        for k in (0, 1)
    ]
    found = _nearest_of(x, at, lines) if kind == "nearest" else _between(x, at, lines)
    is_inside = [
        logical_and(greater_equal(line, 0.0), less_equal(line, subtract(_number(size, float32), 1)))
        for line, size in zip(lines, x.type.shape[1:3])
    ]
    whole = logical_and(expand_dims(is_inside[0], 2), expand_dims(is_inside[1], 1))
    return where(expand_dims(whole, 3), found, outside)


def _check_finite(op: str, boxes: Tensor) -> None:
    """Rejects boxes with infinite corners, if they are known: all their pixels would be outside."""
    value = value_now(boxes)
    if value is not None and not np.isfinite(value).all():
        wrong = value[~np.isfinite(value).all(axis=1)][0]
        fact = f"{op}: a box is {wrong.tolist()}"
        fail(InvalidArgumentError, fact, operands=[operand_text(boxes)], fix="use finite corners")


def _line(start: Tensor, end: Tensor, size: Size, count: Size) -> Tensor:
    """The coordinates [boxes, count] of the rows, or columns, of each box."""
    last = subtract(_number(size, float32), 1)
    if known_int(count) and count == 1:
        middle = multiply(multiply(add(start, end), 0.5), last)
        return expand_dims(middle, 1)
    share = divide(range_of(count, dtype=float32), subtract(_number(count, float32), 1))
    span = multiply(expand_dims(subtract(end, start), 1), expand_dims(share, 0))
    return multiply(add(expand_dims(start, 1), span), last)


def _pixels(x: Tensor, at: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """x[at[b], row[b, i], column[b, j]], with positions clamped to the image."""
    shape = (row.type.shape[0], row.type.shape[1], column.type.shape[1])
    parts = [reshape(cast_to(at, int32), [-1, 1, 1])]
    for k, (place, axis) in enumerate(((row, 2), (column, 1))):
        last = subtract(_number(x.type.shape[1 + k], float32), 1)
        inside = maximum(minimum(place, last), 0.0)
        parts.append(expand_dims(cast_to(inside, int32), axis))
    return gather_nd(x, stack([broadcast_to(part, shape) for part in parts], axis=-1))


def _nearest_of(x: Tensor, at: Tensor, lines: list[Tensor]) -> Tensor:
    return _pixels(x, at, *(floor(add(line, 0.5)) for line in lines))


def _between(x: Tensor, at: Tensor, lines: list[Tensor]) -> Tensor:
    rows, columns = lines
    low = [floor(line) for line in lines]
    high = [ceil(line) for line in lines]
    down = reshape(subtract(rows, low[0]), [*rows.type.shape, 1, 1])
    right = reshape(subtract(columns, low[1]), [columns.type.shape[0], 1, columns.type.shape[1], 1])
    top, bottom = (
        between(_pixels(x, at, row, low[1]), _pixels(x, at, row, high[1]), right)
        for row in (low[0], high[0])
    )
    return between(top, bottom, down)


def between(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """What lies a share of the way from x to y."""
    return add(x, multiply(subtract(y, x), share))


__all__ = ["ResizeMethod", "crop_and_resize", "resize", "resize_with_pad"]
