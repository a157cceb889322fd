"""Layers that change images at random: their base class, flips and crops."""

from __future__ import annotations

import math
from typing import Any, Unpack, overload

from tracegraph.array.arguments import as_choice, as_flag, as_number, sizes_of
from tracegraph.array.indexing.selection import where
from tracegraph.array.indexing.slices import slice_of
from tracegraph.array.shaping import expand_dims, reverse
from tracegraph.core.types import float32, int32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.image.pictures import as_colours
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import positive
from tracegraph.layers.drawing import DrawingLayer
from tracegraph.layers.images.sizes import OfImages, resized_in_ratio
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.logic import less
from tracegraph.operands.conversion import as_tensor, cast_to


class AtRandom(OfImages, DrawingLayer):
    """A layer that changes each image at random, unless a call has `training=False`.

    A call takes images, or a dict of "images" and their "labels", and returns the same.
    """

    value_range: tuple[float, float]
    _is_of_rgb = False

    @overload
    def call(self, inputs: Tensor, training: bool | None = ...) -> Tensor: ...
    @overload
    def call(self, inputs: dict[str, Any], training: bool | None = ...) -> dict[str, Tensor]: ...
    def call(
        self, inputs: Tensor | dict[str, Any], training: bool | None = True
    ) -> Tensor | dict[str, Tensor]:
        given: dict[str, Any] = inputs if isinstance(inputs, dict) else {"images": inputs}
        name, images = type(self).__name__, given.get("images")
        if images is None or not given.keys() <= {"images", "labels"}:
            fact = f"{name}: the inputs are named {shown(list(given))}"
            fail(SignatureError, fact, fix='give {"images": images, "labels": labels}')
        x = cast_to(self.batch_of(images), self.compute_dtype)
        if self._is_of_rgb:
            as_colours(name, x)
        labels = given.get("labels")
        if training is None or as_flag(name, "training", training):
            x, labels = self._changed_with(x, labels)
        else:
            x = self._kept(x)
        y = self._as_given(x, images)
        return {"images": y, "labels": as_tensor(labels)} if "labels" in given else y

    def _changed_with(self, x: Tensor, labels: Any) -> tuple[Tensor, Any]:
        """The images in training, and their labels, which only mixed images change."""
        return self._changed(x), labels

    def _changed(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _kept(self, x: Tensor) -> Tensor:
        """What a call returns that is not in training."""
        return x

    def _draw(self, x: Tensor, low: float, high: float) -> Tensor:
        """One number for each image, [examples, 1, 1]."""
        count = sizes_of(type(self).__name__, x)[0]
        if low == high:
            return as_tensor(low, float32)
        return self._numbers.uniform([count, 1, 1], low, high)

    def _draw_factor(self, x: Tensor, low: float, high: float) -> Tensor:
        """One number for each image, [examples, 1, 1, 1], of the images' dtype."""
        return cast_to(expand_dims(self._draw(x, low, high), -1), x.dtype)

    def _is_drawn(self, x: Tensor, low: float, high: float) -> Tensor:
        """Whether each image is changed, [examples, 1, 1, 1], with a probability that is drawn for
        it."""
        return expand_dims(less(self._draw(x, 0.0, 1.0), self._draw(x, low, high)), -1)

    def _range(
        self, what: str, factor: Any, low: float = -math.inf, high: float = math.inf
    ) -> tuple[float, float]:
        """The least and the largest of a factor: two numbers, or one for both signs of it."""
        if isinstance(factor, (list, tuple)):
            return self._two(what, factor, low, high)
        size = abs(as_number(type(self).__name__, what, factor, low=low, high=high))
        return -size, size

    def _part(self, what: str, factor: Any) -> tuple[float, float]:
        """The least and the largest of a factor from 0 to 1: a number is the largest."""
        if isinstance(factor, (list, tuple)):
            return self._two(what, factor, 0, 1)
        return 0.0, as_number(type(self).__name__, what, factor, low=0, high=1)

    def _set_values(self, given: Any, seed: int | None, data_format: str | None) -> None:
        """Stores the least and the largest value of a pixel, and what most layers have."""
        low, high = self._two("value_range", given)
        if low == high:
            fact = f"{type(self).__name__}: value_range is {shown(given)}, which has one value"
            fail(SignatureError, fact, fix="give the least and the largest value of a pixel")
        self.value_range = low, high
        self._set_seed(seed)
        self._set_format(data_format)

    def _two(
        self, what: str, numbers: Any, low: float = -math.inf, high: float = math.inf
    ) -> tuple[float, float]:
        """The least and the largest of two numbers."""
        name = type(self).__name__
        if not isinstance(numbers, (list, tuple)) or len(numbers) != 2:
            fact = f"{name}: {what} is {shown(numbers)}"
            fail(SignatureError, fact, fix="give two numbers, the least and the largest")
        first, last = (as_number(name, what, part, low=low, high=high) for part in numbers)
        return min(first, last), max(first, last)


class RandomFlip(AtRandom):
    """Each image flipped or not, with probability 1/2, in training; see `tg.image`.

    - `mode`: "horizontal", "vertical", or "horizontal_and_vertical" for both or neither.
    - `seed`: as in `Dropout`.
    - `data_format`: "channels_last" or "channels_first".

    Images are [height, width, channels], or a batch of them; results have their shape, and the
    dtype in which the layer computes. A call that is not told otherwise, by its `training` or by a
    layer around, is in training. Raises ShapeError for what is not images of known height and
    width, ValueError for another mode.

    >>> x = tg.constant([[[1.0], [2.0]]])
    >>> y = tg.layers.RandomFlip("horizontal")(x).numpy().ravel().tolist()
    >>> y in ([1.0, 2.0], [2.0, 1.0])
    True
    """

    @takes_options
    def __init__(
        self,
        mode: str = "horizontal_and_vertical",
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        choices = ("horizontal", "vertical", "horizontal_and_vertical")
        self.mode = as_choice("RandomFlip", "mode", mode, choices)
        self._set_seed(seed)
        self._set_format(data_format)

    def _changed(self, x: Tensor) -> Tensor:
        axes = [axis for axis, word in ((1, "vertical"), (2, "horizontal")) if word in self.mode]
        return where(self._is_drawn(x, 0.5, 0.5), reverse(x, axes), x)


class RandomCrop(AtRandom):
    """A part of the images of the given size, at a random place that all images of a batch share,
    in training.

    Otherwise, and for images that are smaller, it is the largest part in the middle that has the
    ratio of the two sides, resized to the size.

    - `height`, `width`: the size of the part.
    - `seed`, `data_format`: as in `RandomFlip`.

    Images are [height, width, channels], or a batch of them, of known sizes; results have the dtype
    in which the layer computes. A call that is not told otherwise, by its `training` or by a layer
    around, is in training. Raises ShapeError for what is not such images, ValueError for a size
    that is not positive.

    >>> layer = tg.layers.RandomCrop(2, 2)
    >>> x = tg.reshape(tg.range(9.0), [3, 3, 1])
    >>> layer(x).numpy()[0, 0, 0] in (0, 1, 3, 4)
    True
    >>> layer(x, training=False).numpy()[..., 0]
    array([[1. , 2.5],
           [5.5, 7. ]], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.height = positive("RandomCrop", "height", height)
        self.width = positive("RandomCrop", "width", width)
        self._set_seed(seed)
        self._set_format(data_format)

    def _changed(self, x: Tensor) -> Tensor:
        height, width = self.sides(x)
        if height < self.height or width < self.width:
            return self._kept(x)
        places = [1, height - self.height + 1, width - self.width + 1, 1]
        starts = self._numbers.uniform([4], 0, places, int32)
        count, *_, channels = sizes_of("RandomCrop", x)
        return slice_of(x, starts, [count, self.height, self.width, channels])

    def _kept(self, x: Tensor) -> Tensor:
        return resized_in_ratio(x, self.sides(x), self.height, self.width)
