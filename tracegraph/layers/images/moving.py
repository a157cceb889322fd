"""Layers that turn, move and zoom images at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from tracegraph.array.arguments import as_choice, as_number, sizes_of
from tracegraph.array.creation import range as numbers
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.joining import unstack
from tracegraph.array.shaping import broadcast_to, expand_dims, reshape
from tracegraph.core.types import float32, int32
from tracegraph.image.resizing import between
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    floormod,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import equal, greater, greater_equal, less, logical_and
from tracegraph.math.elementwise.unary import (
    abs as absolute,
    cos,
    exp,
    floor,
    negative,
    sign,
    sin,
    square,
)
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_sum
from tracegraph.operands.conversion import as_tensor, cast_to

_FILLS = ("reflect", "wrap", "constant", "nearest")


class _Moving(AtRandom):
    """A layer that takes each pixel from another place of the same image."""

    def _set_filling(
        self,
        fill_mode: str,
        interpolation: str,
        seed: int | None,
        fill_value: float,
        data_format: str | None,
    ) -> None:
        name = type(self).__name__
        self.fill_mode = as_choice(name, "fill_mode", fill_mode, _FILLS)
        self.interpolation = as_choice(
            name, "interpolation", interpolation, ("bilinear", "nearest")
        )
        self.fill_value = as_number(name, "fill_value", fill_value)
        self._set_seed(seed)
        self._set_format(data_format)

    def _taken(self, x: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The pixels at these places, [examples, height, width], which need not be whole."""
        wide = float32 if x.dtype.size < 4 else x.dtype
        values = cast_to(x, wide)
        height, width = self.sides(x)
        row, column = _inside(row, height, self.fill_mode), _inside(column, width, self.fill_mode)
        if self.interpolation == "nearest":
            at = [_rounded(place) for place in (row, column)]
            return cast_to(self._pixels(values, *at), x.dtype)
        top, left = floor(row), floor(column)
        down, right = (expand_dims(subtract(a, b), -1) for a, b in ((row, top), (column, left)))
        down, right = cast_to(down, wide), cast_to(right, wide)
        above, below = (
            between(self._pixels(values, y, left), self._pixels(values, y, add(left, 1.0)), right)
            for y in (top, add(top, 1.0))
        )
        return cast_to(between(above, below, down), x.dtype)

    def _pixels(self, x: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The pixels at whole places; outside, the fill value or the nearest pixel."""
        count, *_, channels = sizes_of(type(self).__name__, x)
        height, width = self.sides(x)
        rows, columns = clip_by_value(row, 0, height - 1), clip_by_value(column, 0, width - 1)
        # Places are exact in float32 only up to 2 ** 24, and rows and columns always.
        at = add(multiply(cast_to(rows, int32), width), cast_to(columns, int32))
        at = broadcast_to(at, [count, height, width])
        shape = [count, height * width]
        found = gather(reshape(x, [*shape, channels]), reshape(at, shape), batch_dims=1)
        y = reshape(found, [count, height, width, channels])
        if self.fill_mode != "constant":
            return y
        is_inside = logical_and(_is_at(row, height), _is_at(column, width))
        return where(expand_dims(is_inside, -1), y, as_tensor(self.fill_value, x.dtype))

    def _places(self, x: Tensor) -> tuple[Tensor, Tensor, float, float]:
        """The rows [1, height, 1] and the columns [1, 1, width], counted from the middle, and the
        middle itself."""
        y, z = ((size - 1) / 2 for size in self.sides(x))
        rows, columns = self._lines(x)
        return subtract(rows, y), subtract(columns, z), y, z

    def _lines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of the rows, [1, height, 1], and of the columns, [1, 1, width]."""
        rows, columns = (numbers(size, dtype=float32) for size in self.sides(x))
        return reshape(rows, [1, -1, 1]), reshape(columns, [1, 1, -1])


def _rounded(place: Tensor) -> Tensor:
    """The nearest whole number; of a half, the one that is further from 0."""
    return multiply(sign(place), floor(add(absolute(place), 0.5)))


def _is_at(place: Tensor, count: int) -> Tensor:
    return logical_and(greater_equal(place, 0.0), less(place, float(count)))


def _inside(place: Tensor, count: int, mode: str) -> Tensor:
    """Where a place of a line of pixels is found, if it is outside: as in TensorFlow's
    ImageProjectiveTransformV3."""
    if mode == "constant":
        return place
    if mode == "reflect":  # dcba|abcd|dcba
        turn = floormod(place, 2.0 * count)
        place = where(greater_equal(turn, float(count)), subtract(2.0 * count - 1, turn), turn)
    elif mode == "wrap" and count > 1:  # abcd|abcd|abcd
        last = count - 1.0
        before = add(place, multiply(add(floor(divide(negative(place), last)), 1.0), float(count)))
        after = subtract(place, multiply(floor(divide(place, last)), float(count)))
        place = where(less(place, 0.0), before, where(greater(place, last), after, place))
    return clip_by_value(place, 0.0, count - 1.0)


class RandomRotation(_Moving):
    """Each image turned around its middle by a random angle, in training.

    - `factor`: the largest part of a full turn, in both directions; or two numbers, the least and
      the largest part, counter-clockwise.
    - `fill_mode`: what is outside of an image: "reflect" for dcba|abcd|dcba, "wrap" for
      abcd|abcd|abcd, "nearest" for aaaa|abcd|dddd, or "constant" for `fill_value`.
    - `interpolation`: "bilinear" or "nearest".
    - `seed`: as in `Dropout`.
    - `data_format`: "channels_last" or "channels_first".

    Shapes, dtypes and `training` are as in `RandomFlip`. Places outside are found as by
    TensorFlow's ImageProjectiveTransformV3. Raises ShapeError for what is not images of known
    height and width, ValueError for another mode or a factor of more than two numbers.

    >>> x = tg.constant([[[1.0], [2.0]], [[3.0], [4.0]]])
    >>> tg.layers.RandomRotation([0.25, 0.25])(x).numpy()[..., 0].round(3)
    array([[2., 4.],
           [1., 3.]], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._range("factor", factor)
        self._set_filling(fill_mode, interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        angle = self._draw(x, *(2 * math.pi * part for part in self.factor))
        across, along = cos(angle), sin(angle)
        rows, columns, y, z = self._places(x)
        row = add(add(multiply(columns, along), multiply(rows, across)), y)
        column = add(subtract(multiply(columns, across), multiply(rows, along)), z)
        return self._taken(x, row, column)


class RandomTranslation(_Moving):
    """Each image moved by a random part of its height and of its width, in training.

    - `height_factor`, `width_factor`: the largest part, in both directions; or two numbers, the
      least and the largest part, down and to the right.
    - `fill_mode`, `interpolation`, `seed`, `fill_value`, `data_format`: as in `RandomRotation`.

    Shapes, dtypes and errors are those of `RandomRotation`; factors are from -1 to 1.

    >>> x = tg.constant([[[1.0], [2.0], [3.0]]])
    >>> move = tg.layers.RandomTranslation(0.0, [1 / 3, 1 / 3], fill_mode="constant")
    >>> move(x).numpy().ravel()
    array([0., 1., 2.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.height_factor = self._range("height_factor", height_factor, -1, 1)
        self.width_factor = self._range("width_factor", width_factor, -1, 1)
        self._set_filling(fill_mode, interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        height, width = self.sides(x)
        rows, columns, y, z = self._places(x)
        down = multiply(self._draw(x, *self.height_factor), float(height))
        right = multiply(self._draw(x, *self.width_factor), float(width))
        return self._taken(x, subtract(add(rows, y), down), subtract(add(columns, z), right))


class RandomZoom(_Moving):
    """Each image made larger or smaller around its middle, at random, in training.

    - `height_factor`: how much more of the height is seen, at most: 0.2 for 0.8 to 1.2 times the
      height; or two numbers, the least and the largest. Negative numbers zoom in.
    - `width_factor`: the same for the width; by default each image keeps its ratio of sides.
    - `fill_mode`, `interpolation`, `seed`, `fill_value`, `data_format`: as in `RandomRotation`.

    Shapes, dtypes and errors are those of `RandomRotation`; factors are from -1 to 1.

    >>> x = tg.reshape(tg.range(16.0), [4, 4, 1])
    >>> tg.layers.RandomZoom([-0.5, -0.5])(x).numpy()[0, :, 0]
    array([3.75, 4.25, 4.75, 5.25], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float] | None = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.height_factor = self._range("height_factor", height_factor, -1, 1)
        is_one = width_factor is None
        self.width_factor = None if is_one else self._range("width_factor", width_factor, -1, 1)
        self._set_filling(fill_mode, interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        rows, columns, y, z = self._places(x)
        tall = add(self._draw(x, *self.height_factor), 1.0)
        wide = tall
        if self.width_factor is not None:
            wide = add(self._draw(x, *self.width_factor), 1.0)
        return self._taken(x, add(multiply(rows, tall), y), add(multiply(columns, wide), z))


class RandomShear(_Moving):
    """Each image sheared at random, in training: the pixel at row i and column k is taken from row
    i + y k and column k + x i.

    - `x_factor`, `y_factor`: the largest x and y; or two numbers, the least and the largest; from 0
      to 1. Both are negative for one half of the images.
    - `interpolation`, `fill_mode`, `fill_value`, `data_format`, `seed`: as in `RandomRotation`.

    Shapes, dtypes and errors are those of `RandomRotation`; ValueError is raised for factors out of
    range too.

    >>> x = tg.constant([[[1.0], [2.0]], [[3.0], [4.0]]])
    >>> shear = tg.layers.RandomShear(x_factor=[1.0, 1.0], fill_mode="constant")
    >>> shear(x).numpy()[1, :, 0].tolist() in ([4.0, 0.0], [0.0, 3.0])
    True
    """

    @takes_options
    def __init__(
        self,
        x_factor: float | Sequence[float] = 0.0,
        y_factor: float | Sequence[float] = 0.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.x_factor = self._part("x_factor", x_factor)
        self.y_factor = self._part("y_factor", y_factor)
        self._set_filling(fill_mode, interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        rows, columns = self._lines(x)
        sign_of = where(less(self._draw(x, -1.0, 1.0), 0), -1.0, 1.0)
        down, right = (
            multiply(self._draw(x, *factor), sign_of) for factor in (self.y_factor, self.x_factor)
        )
        row, column = add(rows, multiply(columns, down)), add(columns, multiply(rows, right))
        return self._taken(x, row, column)


class RandomPerspective(_Moving):
    """Each image seen from the side or not, in training: all corners but the first one are moved.

    - `factor`: the probability is drawn for each image, from 0 to `factor`, or between the two
      numbers that it is; from 0 to 1.
    - `scale`: corners are moved by up to half of this part of the height and of the width; from 0
      to 1.
    - `interpolation`, `seed`, `data_format`: as in `RandomRotation`.
    - `fill_value`: the value of pixels that are taken from outside.

    Shapes, dtypes and errors are those of `RandomRotation`; ValueError is raised for a factor or a
    scale out of range too.

    >>> tg.layers.RandomPerspective(scale=0.5)(tg.ones([4, 4, 3])).shape
    TensorShape([4, 4, 3])
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float = 1.0,
        interpolation: str = "bilinear",
        fill_value: float = 0.0,
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._part("factor", factor)
        self.scale = as_number("RandomPerspective", "scale", scale, low=0, high=1)
        self._set_filling("constant", interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        half = self.scale / 2
        right, down, *last = (add(self._draw(x, -half, half), 1.0) for _ in range(4))
        y = self._taken(x, *self._seen_from(x, right, down, *last))
        return where(self._is_drawn(x, *self.factor), y, x)

    def _seen_from(
        self, x: Tensor, right: Tensor, down: Tensor, last_right: Tensor, last_down: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Where pixels are taken from if the corner (1, 0) is moved to (right, 0), (0, 1) to
        (0, down), and (1, 1) to (last_right, last_down), in parts of the width and of the height.

        As (0, 0) stays, the map back is (u, v) -> ((a + 1 / right) u, (b + 1 / down) v) divided by
        a u + b v + 1; that it maps the last corner to (1, 1) gives a and b.
        """
        tall, wide = (max(size - 1.0, 1.0) for size in self.sides(x))
        v, u = (divide(line, side) for line, side in zip(self._lines(x), (tall, wide)))
        a = divide(subtract(divide(last_down, down), 1.0), last_right)
        b = divide(subtract(divide(last_right, right), 1.0), last_down)
        below = add(add(multiply(a, u), multiply(b, v)), 1.0)
        below = where(equal(below, 0.0), _NOTHING, below)  # pixels at the horizon are outside
        row = divide(multiply(multiply(add(b, divide(1.0, down)), v), tall), below)
        column = divide(multiply(multiply(add(a, divide(1.0, right)), u), wide), below)
        return row, column


class RandomElasticTransform(_Moving):
    """Each image distorted as if it were drawn on rubber or not, in training: pixels are taken from
    nearby places, at distances that change smoothly.

    Distances are normal random numbers, averaged with the weights e ** (-(distance / s) ** 2 / 2)
    along both axes, times s * a, where s is 0.05 * scale * the shorter side and a is 0.1 * scale *
    the longer side.

    - `factor`: the probability is drawn for each image, from 0 to `factor`, or between the two
      numbers that it is; from 0 to 1.
    - `scale`: the largest scale, from 0 to 1, or two numbers; it is drawn for each image.
    - `interpolation`, `fill_mode`, `fill_value`, `seed`, `data_format`: as in `RandomRotation`.
    - `value_range`: the least and the largest value of a pixel, to which results are clipped.

    Shapes, dtypes and errors are those of `RandomRotation`; ValueError is raised for a factor or a
    scale out of range, and for equal values in `value_range`, too. From Simard, Steinkraus and
    Platt, "Best Practices for Convolutional Neural Networks Applied to Visual Document Analysis".

    >>> tg.layers.RandomElasticTransform(scale=0.5)(tg.ones([4, 4, 3])).shape
    TensorShape([4, 4, 3])
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float | Sequence[float] = 1.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._part("factor", factor)
        self.scale = self._part("scale", scale)
        self._set_values(value_range, seed, data_format)
        self._set_filling(fill_mode, interpolation, seed, fill_value, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        sides, (rows, columns) = self.sides(x), self._lines(x)
        scale = reshape(self._draw(x, *self.scale), [-1, 1, 1])
        s = multiply(scale, 0.05 * min(sides))
        of_rows, of_columns = (expand_dims(_shares(s, size), 1) for size in sides)
        noise = self._numbers.normal([sizes_of(type(self).__name__, x)[0], 2, *sides])
        smooth = matmul(matmul(of_rows, noise), of_columns)
        reach = expand_dims(multiply(multiply(scale, 0.1 * max(sides)), s), 1)
        down, right = unstack(multiply(smooth, reach), axis=1)
        y = self._taken(x, add(rows, down), add(columns, right))
        return clip_by_value(where(self._is_drawn(x, *self.factor), y, x), *self.value_range)


def _shares(sigma: Tensor, size: int) -> Tensor:
    """The weights of the pixels of a line in the mean around each of them, [examples, size, size].
    Outside of the line there is nothing, with a weight too."""

    def weights(distances: Tensor) -> Tensor:
        return exp(multiply(square(divide(distances, add(sigma, _NOTHING))), -0.5))

    line = numbers(size, dtype=float32)
    total = reduce_sum(weights(numbers(1 - size, size, dtype=float32)), axis=-1, keepdims=True)
    return divide(weights(subtract(expand_dims(line, -1), line)), total)


#: In place of 0 as a divisor, so that what is far outside is finite.
_NOTHING = 1e-20
