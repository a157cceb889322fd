"""Layers that change hue, saturation and sharpness of images at random, or take their colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph import image
from tracegraph.array.arguments import as_number
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import add_n
from tracegraph.array.shaping import pad, reshape, tile
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import window
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.images.colours import OfColours
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, divide, multiply, subtract
from tracegraph.math.elementwise.unary import exp, square
from tracegraph.nn.convolutions import depthwise_conv2d
from tracegraph.operands.conversion import as_tensor


class _Tinting(OfColours):
    """A layer whose factor is from 0 to 1: a number is the largest."""

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(factor, value_range, seed, data_format, **options)

    def _factor(self, factor: Any) -> tuple[float, float]:
        return self._part("factor", factor)

    def _from_0_to_1(self, x: Tensor) -> Tensor:
        low, high = self.value_range
        return divide(subtract(x, low), high - low)

    def _in_range(self, x: Tensor) -> Tensor:
        """The inverse of `_from_0_to_1`, of what is clipped."""
        low, high = self.value_range
        return add(multiply(clip_by_value(x, 0.0, 1.0), high - low), low)


class RandomHue(_Tinting):
    """Rotates the hue of each RGB image by up to half a circle, in training; see
    `tg.image.adjust_hue`.

    - `factor`: the largest rotation to either side, from 0 to 1 for half a circle; or two numbers,
      the least and the largest.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`, for three channels. Raises ShapeError for
    what is not RGB images of known height and width, ValueError for a factor out of range or for
    equal values in `value_range`.

    >>> x = tg.constant([[[255.0, 0.0, 0.0]]])
    >>> tg.layers.RandomHue([1.0, 1.0])(x).numpy().ravel()
    array([  0., 255., 255.], dtype=float32)
    """

    _is_of_rgb = True

    def _changed(self, x: Tensor) -> Tensor:
        half = multiply(self._draw_factor(x, *self.factor), 0.5)
        turn = where(self._is_drawn(x, 0.5, 0.5), multiply(half, -1.0), half)
        return self._in_range(image.adjust_hue(self._from_0_to_1(x), turn))


class RandomSaturation(_Tinting):
    """Multiplies the saturation of each RGB image by factor / (1 - factor), with a random factor
    for each image, in training; see `tg.image.adjust_saturation`.

    - `factor`: from 0 for grey over 0.5 for no change to 1 for full colours; a number is the
      largest factor, and two are the least and the largest.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    Shapes, dtypes, `training` and errors are as in `RandomHue`.

    >>> x = tg.constant([[[200.0, 100.0, 100.0]]])
    >>> tg.layers.RandomSaturation([0.0, 0.0])(x).numpy().ravel()
    array([200., 200., 200.], dtype=float32)
    """

    _is_of_rgb = True

    def _changed(self, x: Tensor) -> Tensor:
        factor = self._draw_factor(x, *self.factor)
        ratio = divide(factor, subtract(1 + _EPSILON, factor))
        return self._in_range(image.adjust_saturation(self._from_0_to_1(x), ratio))


#: As in Keras: a factor of 1 multiplies by its reciprocal.
_EPSILON = 1e-7


class RandomColorDegeneration(_Tinting):
    """x + factor * (grey - x), with a random factor for each RGB image, in training; see
    `tg.image.rgb_to_grayscale`.

    - `factor`: from 0 for no change to 1 for grey; a number is the largest factor, and two are the
      least and the largest.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    Shapes, dtypes, `training` and errors are as in `RandomHue`.

    >>> x = tg.constant([[[100.0, 0.0, 0.0]]])
    >>> tg.layers.RandomColorDegeneration([0.5, 0.5])(x).numpy().ravel().round(1)
    array([64.9, 14.9, 14.9], dtype=float32)
    """

    _is_of_rgb = True

    def _changed(self, x: Tensor) -> Tensor:
        difference = subtract(image.rgb_to_grayscale(x), x)
        mixed = add(x, multiply(self._draw_factor(x, *self.factor), difference))
        return clip_by_value(mixed, *self.value_range)


class RandomSharpness(_Tinting):
    """Blurs or sharpens each image, in training: blurred + 2 factor (x - blurred), with a random
    factor for each image.

    - `factor`: from 0 for blurred images over 0.5 for no change to 1 for sharp ones; a number is
      the largest factor, and two are the least and the largest.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    A blurred pixel is 5/13 of itself and 1/13 of each of its 8 neighbours, which are 0 outside of
    the image. Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is
    not images of known height and width, ValueError for a factor out of range or for equal values
    in `value_range`.

    >>> x = tg.constant([[[13.0], [26.0]]])
    >>> tg.layers.RandomSharpness([0.0, 0.0])(x).numpy().ravel()
    array([ 7., 11.], dtype=float32)
    """

    def _changed(self, x: Tensor) -> Tensor:
        weights = reshape(as_tensor(_BLUR, x.dtype), [3, 3, 1, 1])
        filters = tile(weights, [1, 1, x.shape[3], 1])
        blurred = depthwise_conv2d(x, filters, (1, 1, 1, 1), "SAME")
        twice = multiply(self._draw_factor(x, *self.factor), 2.0)
        sharp = add(blurred, multiply(twice, subtract(x, blurred)))
        return clip_by_value(sharp, *self.value_range)


#: The weights of a pixel and its neighbours, those of the Python Imaging Library's SMOOTH.
_BLUR = [[1 / 13, 1 / 13, 1 / 13], [1 / 13, 5 / 13, 1 / 13], [1 / 13, 1 / 13, 1 / 13]]


class RandomGaussianBlur(_Tinting):
    """Each image blurred or not, in training: the mean of a pixel and its neighbours, weighted by
    e ** (-(distance / sigma) ** 2 / 2).

    - `factor`: the probability of a blur is drawn for each image, from 0 to `factor`, or between
      the two numbers that it is; from 0 to 1.
    - `kernel_size`: how many pixels of a line are averaged: an odd number, or two, for columns and
      rows.
    - `sigma`: the standard deviation, in pixels; or two numbers, the least and the largest, between
      which it is drawn for each image.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    Outside of an image, pixels are 0. Shapes, dtypes and `training` are as in `RandomFlip`. Raises
    ShapeError for what is not images of known height and width, ValueError for an argument out of
    range, for an even size or for equal values in `value_range`.

    >>> x = tg.constant([[[0.0], [100.0], [0.0]]])
    >>> blur = tg.layers.RandomGaussianBlur([1.0, 1.0], kernel_size=[1, 3])
    >>> blur(x).numpy().ravel().round(1)
    array([27.4, 45.2, 27.4], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        kernel_size: int | Sequence[int] = 3,
        sigma: float | Sequence[float] = 1.0,
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **options)
        self.kernel_size = window("RandomGaussianBlur", "kernel_size", kernel_size, 2)
        if not all(size % 2 for size in self.kernel_size):
            fact = f"RandomGaussianBlur: kernel_size is {shown(kernel_size)}"
            fail(
                SignatureError, fact, fix="use odd numbers, so that there is a pixel in the middle"
            )
        ends = sigma if isinstance(sigma, (list, tuple)) else (sigma, sigma)
        self.sigma = self._two("sigma", ends, 0)

    def _changed(self, x: Tensor) -> Tensor:
        sigma = add(self._draw_factor(x, *self.sigma), 1e-6)
        y = x
        for axis, size in enumerate(self.kernel_size, 1):
            y = self._blurred(y, sigma, axis, size)
        return clip_by_value(where(self._is_drawn(x, *self.factor), y, x), *self.value_range)

    def _blurred(self, x: Tensor, sigma: Tensor, axis: int, size: int) -> Tensor:
        """The weighted means along one axis."""
        sides = [(size // 2, size // 2) if k == axis else (0, 0) for k in range(4)]
        padded, length = pad(x, sides), self.sides(x)[axis - 1]
        shares = [square(divide(k - size // 2, sigma)) for k in range(size)]
        weights = [exp(multiply(share, -0.5)) for share in shares]
        parts = [
            multiply(weight, padded[(slice(None),) * axis + (slice(k, k + length),)])
            for k, weight in enumerate(weights)
        ]
        return divide(add_n(parts), add_n(weights))


class RandomInvert(_Tinting):
    """Each image inverted or not, in training: low + high - x, for values from low to high.

    - `factor`: the probability of an inversion is drawn for each image, from 0 to `factor`, or
      between the two numbers that it is; from 0 to 1.
    - `value_range`: the least and the largest value of a pixel.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is not images
    of known height and width, ValueError for a factor out of range or for equal values in
    `value_range`.

    >>> x = tg.constant([[[55.0], [255.0]]])
    >>> tg.layers.RandomInvert([1.0, 1.0])(x).numpy().ravel()
    array([200.,   0.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **options)

    def _changed(self, x: Tensor) -> Tensor:
        return where(self._is_drawn(x, *self.factor), subtract(sum(self.value_range), x), x)


class RandomGrayscale(AtRandom):
    """Each RGB image made grey or not, in training; see `tg.image.rgb_to_grayscale`. The results
    have three equal channels.

    - `factor`: the probability, from 0 to 1.
    - `data_format`, `seed`: as in `RandomFlip`.

    Shapes, dtypes, `training` and errors are as in `RandomHue`.

    >>> x = tg.constant([[[100.0, 0.0, 0.0]]])
    >>> tg.layers.RandomGrayscale(1.0)(x).numpy().ravel().round(2)
    array([29.89, 29.89, 29.89], dtype=float32)
    """

    _is_of_rgb = True

    @takes_options
    def __init__(
        self,
        factor: float = 0.5,
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = as_number("RandomGrayscale", "factor", factor, low=0, high=1)
        self._set_seed(seed)
        self._set_format(data_format)

    def _changed(self, x: Tensor) -> Tensor:
        is_grey = self._is_drawn(x, self.factor, self.factor)
        return where(is_grey, image.rgb_to_grayscale(x), x)
