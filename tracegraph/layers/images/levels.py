"""Layers that change how light the pixels of images are: each by itself, or by all of its image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tracegraph.array.arguments import sizes_of
from tracegraph.array.creation import ones_like, range as numbers
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.shaping import reshape
from tracegraph.core.types import float32, float64, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import positive
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, divide, multiply, subtract
from tracegraph.math.elementwise.logic import equal, greater, less
from tracegraph.math.elementwise.unary import floor, round as rounded
from tracegraph.math.reduction import cumsum, reduce_max, reduce_min
from tracegraph.math.segments import unsorted_segment_sum
from tracegraph.operands.conversion import as_tensor, cast_to


class _OfBytes(AtRandom):
    """A layer whose formula is that of pixels from 0 to 255, whatever the range of values is."""

    def _bytes_of(self, x: Tensor) -> Tensor:
        low, high = self.value_range
        if (low, high) != (0, 255):
            x = multiply(divide(subtract(x, low), high - low), 255.0)
        return clip_by_value(x, 0.0, 255.0)

    def _values_of(self, x: Tensor) -> Tensor:
        """The inverse of `_bytes_of`."""
        low, high = self.value_range
        return x if (low, high) == (0, 255) else add(multiply(divide(x, 255.0), high - low), low)


class Solarization(AtRandom):
    """Inverts the pixels of each image that are not below a threshold, in training: low + high - x,
    for values from low to high.

    - `addition_factor`: the part of the range of values that is added to all pixels before; they
      are clipped to the range then. It is drawn for each image, from 0 to this number, or between
      the two numbers that it is; from 0 to 1.
    - `threshold_factor`: the same for the threshold: 0 inverts all pixels, and 1 the lightest.
    - `value_range`: the least and the largest value of a pixel.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is not images
    of known height and width, ValueError for a factor out of range or for equal values in
    `value_range`.

    >>> x = tg.constant([[[55.0], [200.0]]])
    >>> tg.layers.Solarization(threshold_factor=[0.5, 0.5])(x).numpy().ravel()
    array([55., 55.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        addition_factor: float | Sequence[float] = 0.0,
        threshold_factor: float | Sequence[float] = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.addition_factor = self._part("addition_factor", addition_factor)
        self.threshold_factor = self._part("threshold_factor", threshold_factor)
        self._set_values(value_range, seed, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        low, high = self.value_range
        addition, threshold = (
            multiply(self._draw_factor(x, *factor), high - low)
            for factor in (self.addition_factor, self.threshold_factor)
        )
        y = clip_by_value(add(x, addition), low, high)
        return where(less(y, add(threshold, low)), y, subtract(low + high, y))


class RandomPosterization(_OfBytes):
    """Keeps some of the 8 bits of each pixel, in training, and sets the lower ones to 0.

    - `factor`: the number of bits, from 1 to 8; or two numbers, the least and the largest, between
      which it is drawn for each image.
    - `value_range`: the values of pixels that are 0 and 255 as 8 bits; what is outside is clipped.
    - `data_format`, `seed`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Results are constant between their steps,
    so their derivative is 0. Raises ShapeError for what is not images of known height and width,
    ValueError for numbers out of range or for equal values in `value_range`.

    >>> x = tg.constant([[[55.0], [200.0]]])
    >>> tg.layers.RandomPosterization(2)(x).numpy().ravel()
    array([  0., 192.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        factor: int | Sequence[int],
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        ends = factor if isinstance(factor, (list, tuple)) else (factor, factor)
        self._two("factor", ends, 1, 8)
        ends = [positive("RandomPosterization", "factor", end) for end in ends]
        self.factor = min(ends), max(ends)
        self._set_values(value_range, seed, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        shape = [sizes_of("RandomPosterization", x)[0], 1, 1, 1]
        least, most = self.factor
        bits = self._numbers.uniform(shape, least, most + 1, int32)
        step = gather(as_tensor([2.0 ** (8 - k) for k in range(9)], x.dtype), bits)
        return self._values_of(multiply(floor(divide(self._bytes_of(x), step)), step))


class _InBothModes(_OfBytes):
    """A layer that changes images in training and otherwise, and draws no numbers."""

    def _kept(self, x: Tensor) -> Tensor:
        return self._changed(x)


class AutoContrast(_InBothModes):
    """(x - least) * (high - low) / (largest - least) + low, with the least and the largest pixel of
    each channel of each image: it then has all values from low to high.

    - `value_range`: low and high.
    - `data_format`: as in `RandomFlip`.

    A channel of equal pixels stays. Shapes and dtypes are as in `RandomFlip`; `training` makes no
    difference. Raises ShapeError for what is not images of known height and width, ValueError for
    equal values in `value_range`.

    >>> x = tg.constant([[[100.0], [110.0], [120.0]]])
    >>> tg.layers.AutoContrast()(x).numpy().ravel()
    array([  0. , 127.5, 255. ], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self._set_values(value_range, None, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        low, high = self.value_range
        least, largest = (reduce(x, [1, 2], keepdims=True) for reduce in (reduce_min, reduce_max))
        is_flat = equal(largest, least)
        width = where(is_flat, ones_like(least), subtract(largest, least))
        part = divide(subtract(x, least), width)
        return where(is_flat, x, add(multiply(part, high - low), low))


class Equalization(_InBothModes):
    """Each value of a channel replaced by the share of the pixels that are at most as light, so
    that values are used alike often: the histogram of each channel of each image is made even.

    - `value_range`: the least and the largest value of a pixel, to which values are clipped.
    - `bins`: the number of ranges of values that are told apart.
    - `data_format`: as in `RandomFlip`.

    The k-th of the values that are left is round(255 (c[k] - c[0]) / (c[-1] - c[0])) as 8 bits,
    where c[k] counts the pixels up to it; a channel of one value stays. Shapes and dtypes are as in
    `RandomFlip`; `training` makes no difference, and the derivative is 0. Raises ShapeError for
    what is not images of known height and width, ValueError for equal values in `value_range` or a
    number of bins that is not positive.

    >>> x = tg.constant([[[100.0], [101.0], [102.0], [102.0]]])
    >>> tg.layers.Equalization()(x).numpy().ravel()
    array([  0.,  85., 255., 255.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        bins: int = 256,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.bins = positive("Equalization", "bins", bins)
        self._set_values(value_range, None, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        count, *_, channels = sizes_of("Equalization", x)
        values = self._bytes_of(cast_to(x, float32))
        place = cast_to(divide(multiply(values, self.bins - 1.0), 255.0), int32)
        line = reshape(numbers(count * channels), [count, 1, 1, channels])
        at = reshape(add(multiply(line, self.bins), place), [-1])
        pixels = unsorted_segment_sum(ones_like(at), at, count * channels * self.bins)
        upto = cumsum(reshape(pixels, [count * channels, self.bins]), 1)
        total = upto[:, -1:]
        first = reduce_min(where(greater(upto, 0), upto, total), 1, keepdims=True)
        others = subtract(total, first)
        is_flat = equal(others, 0)
        levels = multiply(cast_to(subtract(upto, first), float64), 255.0)
        levels = divide(levels, cast_to(where(is_flat, ones_like(others), others), float64))
        table = clip_by_value(rounded(levels), 0.0, 255.0)
        found = reshape(gather(reshape(table, [-1]), at), values.type.shape)
        y = self._values_of(cast_to(found, x.dtype))
        return where(reshape(is_flat, [count, 1, 1, channels]), x, y)
