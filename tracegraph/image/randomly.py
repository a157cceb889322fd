"""Random changes to images, drawn from a generator or, for `stateless_*`, as a function of a seed
of two integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegraph.array.arguments import as_number, as_sizes, known_int, refuse, sizes_of
from tracegraph.array.creation import convert_to_tensor
from tracegraph.array.indexing.selection import where
from tracegraph.array.indexing.slices import slice_of
from tracegraph.array.shaping import reshape, reverse
from tracegraph.core.types import float32, int32
from tracegraph.errors import SignatureError, fail
from tracegraph.image.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from tracegraph.image.pictures import as_images
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.logic import less
from tracegraph.operands.conversion import as_tensor
from tracegraph.random.distributions import uniform
from tracegraph.random.stateless import stateless_uniform
from tracegraph.typing import ShapeLike, TensorLike

#: Draws uniform numbers: draw(shape, low, high, dtype).
_Draw = Callable[[Any, Any, Any, Any], Tensor]


def _drawing(seed: Any) -> _Draw:
    return lambda shape, low, high, dtype: uniform(shape, low, high, dtype, seed=seed)


def _drawing_from(seed: Any) -> _Draw:
    return lambda shape, low, high, dtype: stateless_uniform(shape, seed, low, high, dtype)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_left_right` with probability one half, independently for each image.

    >>> tg.image.random_flip_left_right(tg.ones([2, 4, 4, 3])).shape
    TensorShape([2, 4, 4, 3])
    """
    return _flipped("random_flip_left_right", image, -2, _drawing(seed))


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_up_down` with probability one half, independently for each image.

    >>> tg.image.random_flip_up_down(tg.ones([4, 4, 3])).shape
    TensorShape([4, 4, 3])
    """
    return _flipped("random_flip_up_down", image, -3, _drawing(seed))


def stateless_random_flip_left_right(image: TensorLike, seed: TensorLike) -> Tensor:
    """`random_flip_left_right` as a function of a seed of two integers.

    >>> tg.image.stateless_random_flip_left_right([[[1], [2]]], seed=[1, 2]).shape
    TensorShape([1, 2, 1])
    """
    return _flipped("stateless_random_flip_left_right", image, -2, _drawing_from(seed))


def stateless_random_flip_up_down(image: TensorLike, seed: TensorLike) -> Tensor:
    """`random_flip_up_down` as a function of a seed of two integers.

    >>> tg.image.stateless_random_flip_up_down([[[1]], [[2]]], seed=[1, 2]).shape
    TensorShape([2, 1, 1])
    """
    return _flipped("stateless_random_flip_up_down", image, -3, _drawing_from(seed))


def _flipped(op: str, image: Any, axis: int, draw: _Draw) -> Tensor:
    x = as_images(op, image, ranks=(3, 4))
    lead = x.type.shape[:-3]
    is_turned = reshape(less(draw(lead, 0.0, 1.0, float32), 0.5), [*lead, 1, 1, 1])
    return where(is_turned, reverse(x, [x.ndim + axis]), x)


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by a random number in [-max_delta, max_delta).

    Raises ValueError for a negative max_delta.

    >>> tg.image.random_brightness([[[0.5]]], 0.0).numpy().item()
    0.5
    """
    return _brightened("random_brightness", image, max_delta, _drawing(seed))


def stateless_random_brightness(image: TensorLike, max_delta: float, seed: TensorLike) -> Tensor:
    """`random_brightness` as a function of a seed of two integers.

    >>> tg.image.stateless_random_brightness([[[0.5]]], 0.25, seed=[1, 2]).shape
    TensorShape([1, 1, 1])
    """
    return _brightened("stateless_random_brightness", image, max_delta, _drawing_from(seed))


def _brightened(op: str, image: Any, max_delta: Any, draw: _Draw) -> Tensor:
    most = float(as_number(op, "max_delta", max_delta, low=0))
    return adjust_brightness(image, draw([], -most, most, float32))


def random_contrast(
    image: TensorLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """`adjust_contrast` by a random factor in [lower, upper).

    Raises ValueError for a negative `lower`, and unless `upper` is above it.

    >>> tg.image.random_contrast([[[1.0], [1.0]]], 0.5, 2.0).numpy().tolist()
    [[[1.0], [1.0]]]
    """
    factor = _factor("random_contrast", lower, upper, _drawing(seed))
    return adjust_contrast(image, factor)


def stateless_random_contrast(
    image: TensorLike, lower: float, upper: float, seed: TensorLike
) -> Tensor:
    """`random_contrast` as a function of a seed of two integers.

    >>> tg.image.stateless_random_contrast([[[1.0], [1.0]]], 0.5, 2.0, seed=[1, 2]).shape
    TensorShape([1, 2, 1])
    """
    factor = _factor("stateless_random_contrast", lower, upper, _drawing_from(seed))
    return adjust_contrast(image, factor)


def random_saturation(
    image: TensorLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """`adjust_saturation` by a random factor in [lower, upper).

    Raises ValueError for a negative `lower`, and unless `upper` is above it.

    >>> tg.image.random_saturation([[[0.5, 0.5, 0.5]]], 0.5, 2.0).numpy().tolist()
    [[[0.5, 0.5, 0.5]]]
    """
    factor = _factor("random_saturation", lower, upper, _drawing(seed))
    return adjust_saturation(image, factor)


def stateless_random_saturation(
    image: TensorLike, lower: float, upper: float, seed: TensorLike
) -> Tensor:
    """`random_saturation` as a function of a seed of two integers.

    >>> tg.image.stateless_random_saturation([[[0.5, 0.5, 0.2]]], 0.5, 2.0, seed=[1, 2]).shape
    TensorShape([1, 1, 3])
    """
    factor = _factor("stateless_random_saturation", lower, upper, _drawing_from(seed))
    return adjust_saturation(image, factor)


def _factor(op: str, lower: Any, upper: Any, draw: _Draw) -> Tensor:
    low, high = (float(as_number(op, *pair)) for pair in (("lower", lower), ("upper", upper)))
    as_number(op, "lower", low, low=0)
    if not low < high:
        fact = f"{op}: lower is {low:g} and upper {high:g}"
        fail(SignatureError, fact, fix="give an upper above lower")
    return draw([], low, high, float32)


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_hue` by a random number in [-max_delta, max_delta).

    Raises ValueError unless max_delta is from 0 to 1/2.

    >>> tg.image.random_hue([[[0.5, 0.5, 0.5]]], 0.5).numpy().tolist()
    [[[0.5, 0.5, 0.5]]]
    """
    return _hued("random_hue", image, max_delta, _drawing(seed))


def stateless_random_hue(image: TensorLike, max_delta: float, seed: TensorLike) -> Tensor:
    """`random_hue` as a function of a seed of two integers.

    >>> tg.image.stateless_random_hue([[[0.5, 0.5, 0.2]]], 0.5, seed=[1, 2]).shape
    TensorShape([1, 1, 3])
    """
    return _hued("stateless_random_hue", image, max_delta, _drawing_from(seed))


def _hued(op: str, image: Any, max_delta: Any, draw: _Draw) -> Tensor:
    most = float(as_number(op, "max_delta", max_delta, low=0, high=0.5))
    return adjust_hue(image, draw([], -most, most, float32))


def random_crop(
    value: TensorLike, size: ShapeLike, seed: int | None = None, name: str | None = None
) -> Tensor:
    """A random slice of a tensor, with the given sizes, one per axis.

    Raises ShapeError for a size larger than the tensor's.

    >>> tg.image.random_crop(tg.ones([5, 5, 3]), [2, 3, 3]).shape
    TensorShape([2, 3, 3])
    """
    return _cropped("random_crop", value, size, _drawing(seed))


def stateless_random_crop(
    value: TensorLike, size: ShapeLike, seed: TensorLike, name: str | None = None
) -> Tensor:
    """`random_crop` as a function of a seed of two integers.

    >>> tg.image.stateless_random_crop(tg.ones([5, 5, 3]), [2, 3, 3], seed=[1, 2]).shape
    TensorShape([2, 3, 3])
    """
    return _cropped("stateless_random_crop", value, size, _drawing_from(seed))


def _cropped(op: str, value: Any, size: Any, draw: _Draw) -> Tensor:
    x, sizes = as_tensor(value), as_sizes(op, "size", size)
    own = sizes_of(op, x)
    if len(sizes) != len(own):
        refuse(op, f"size is {list(sizes)} for {x.type}", x, fix="give one size for each axis")
    for axis, (whole, part) in enumerate(zip(own, sizes)):
        if known_int(part) and (part < 0 or (known_int(whole) and part > whole)):
            refuse(op, f"a part of {part} of axis {axis} of {x.type}", x, fix="give a smaller size")
    if not own:
        return x
    room = convert_to_tensor([whole - part + 1 for whole, part in zip(own, sizes)], int32)
    starts = draw([len(own)], 0, room, int32)
    return slice_of(x, starts, list(sizes))


__all__ = [
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "stateless_random_brightness",
    "stateless_random_contrast",
    "stateless_random_crop",
    "stateless_random_flip_left_right",
    "stateless_random_flip_up_down",
    "stateless_random_hue",
    "stateless_random_saturation",
]
