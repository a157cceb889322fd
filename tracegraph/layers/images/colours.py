"""Layers that change the colours of images at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_number
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, multiply, subtract
from tracegraph.math.reduction import reduce_mean


class OfColours(AtRandom):
    """A layer that changes each image by a random factor, and clips the values of pixels."""

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._factor(factor)
        self._set_values(value_range, seed, data_format)

    def _factor(self, factor: Any) -> tuple[float, float]:
        raise NotImplementedError


class RandomContrast(OfColours):
    """(x - mean) * contrast + mean for each channel of each image, with a random contrast for each
    image, in training; see `tg.image.adjust_contrast`.

    - `factor`: how much the contrast differs from 1, at most, from 0 to 1; or two numbers, how much
      less and how much more it may be.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is not images
    of known height and width, ValueError for a factor out of range or for equal values in
    `value_range`.

    >>> x = tg.constant([[[10.0], [20.0]]])
    >>> tg.layers.RandomContrast(0.2)(x).shape
    TensorShape([1, 2, 1])
    """

    def _factor(self, factor: Any) -> tuple[float, float]:
        if not isinstance(factor, (list, tuple)):
            size = as_number("RandomContrast", "factor", factor, low=0, high=1)
            return size, size
        self._two("factor", factor)
        less, more = factor
        if less > 1 or less + more < 0:
            fact = f"RandomContrast: factor is {shown(factor)}, for {1 - less:g} to {1 + more:g}"
            fail(SignatureError, fact, fix="give how much less, at most 1, and how much more")
        return less, more

    def _changed(self, x: Tensor) -> Tensor:
        less, more = self.factor
        contrast = self._draw_factor(x, 1 - less, 1 + more)
        mean = reduce_mean(reduce_mean(x, 1, keepdims=True), 2, keepdims=True)
        return clip_by_value(add(multiply(subtract(x, mean), contrast), mean), *self.value_range)


class RandomBrightness(OfColours):
    """x + brightness, with a random brightness for each image, in training.

    - `factor`: the largest part of the range of values to add or to subtract, from 0 to 1; or two
      numbers, the least and the largest part, from -1 to 1.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is not images
    of known height and width, ValueError for a factor out of range or for equal values in
    `value_range`.

    >>> x = tg.constant([[[10.0], [200.0]]])
    >>> tg.layers.RandomBrightness([0.5, 0.5])(x).numpy().ravel()
    array([137.5, 255. ], dtype=float32)
    """

    def _factor(self, factor: Any) -> tuple[float, float]:
        return self._range("factor", factor, -1, 1)

    def _changed(self, x: Tensor) -> Tensor:
        low, high = self.value_range
        part = self._draw_factor(x, *self.factor)
        return clip_by_value(add(x, multiply(part, high - low)), low, high)
