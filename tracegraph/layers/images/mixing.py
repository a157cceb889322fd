"""Layers that mix images with others of their batch, or erase a part of them, at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_number, rank_of, refuse, sizes_of
from tracegraph.array.creation import range as numbers
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.shaping import expand_dims, reshape
from tracegraph.core.shapes import same_size
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.image.resizing import between
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import known
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, divide, multiply, subtract
from tracegraph.math.elementwise.logic import greater_equal, less, logical_and
from tracegraph.math.elementwise.unary import log, sigmoid, sqrt
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.random.draws import draw_gamma, shuffled
from tracegraph.random.generators import Generator

#: Added to parameters of distributions that may be 0.
LEAST = 1e-6


def log_of_gamma(source: Generator, shape: Sequence[Any], alpha: Any) -> Tensor:
    """Logarithms of random numbers of a gamma distribution, which themselves are 0 in float32 for a
    small alpha: x u ** (1 / alpha) has it if x has that of alpha + 1, and u is uniform."""
    a = as_tensor(alpha, float32)
    more = draw_gamma(source.next_key(), shape, add(a, 1.0), as_tensor(1.0, float32))
    u = subtract(1.0, source.uniform(shape))
    return add(log(more), divide(log(u), a))


class _Mixing(AtRandom):
    """A layer that mixes each image of a batch with another one, and their labels as much."""

    def _changed_with(self, x: Tensor, labels: Any) -> tuple[Tensor, Any]:
        count = sizes_of(type(self).__name__, x)[0]
        if count == 1:
            return x, labels
        order = shuffled(self._numbers.next_key(), numbers(count))
        y, share = self._mixed(x, gather(x, order))
        if labels is not None:
            one = self._vectors(labels, x)
            share = cast_to(reshape(share, [-1, 1]), one.dtype)
            labels = between(gather(one, order), one, share)
        return y, labels

    def _vectors(self, labels: Any, x: Tensor) -> Tensor:
        """Labels as vectors, which can be mixed."""
        one, name = as_tensor(labels), type(self).__name__
        if rank_of(name, one) != 2 or same_size(one.type.shape[0], x.type.shape[0]) is None:
            fact = f"the labels are {one.type}, of images {x.type}"
            refuse(name, fact, one, fix="give a vector for each image: tg.one_hot(labels, classes)")
        return cast_to(one, self.compute_dtype)

    def _mixed(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed images, and how much of each comes from x, [examples, 1, 1, 1]."""
        raise NotImplementedError

    def _share(self, x: Tensor, alpha: Any) -> Tensor:
        """Numbers of the beta distribution with two equal parameters, [examples, 1, 1, 1]."""
        shape = [2, sizes_of(type(self).__name__, x)[0], 1, 1, 1]
        one, other = log_of_gamma(self._numbers, shape, alpha)
        return sigmoid(subtract(one, other))


class MixUp(_Mixing):
    """share * x + (1 - share) * other, for each image x and a random other one of its batch, in
    training. The same is done to labels.

    - `alpha`: the share has the beta distribution with `alpha` as both parameters: it is near 0 or
      1 for small ones.
    - `data_format`, `seed`: as in `RandomFlip`.

    A call takes images, or a dict of "images" and of "labels", [examples, classes], and returns the
    same. One image stays as it is. Shapes, dtypes and `training` are as in `RandomFlip`. Raises
    ShapeError for what is not images of known height and width, or labels that are not vectors,
    ValueError for an `alpha` that is not positive. From Zhang et al., "mixup: Beyond Empirical Risk
    Minimization".

    >>> x = {"images": tg.ones([4, 2, 2, 3]), "labels": tg.one_hot([0, 1, 1, 0], 2)}
    >>> y = tg.layers.MixUp()(x)
    >>> tg.reduce_sum(y["labels"], 1).numpy()
    array([1., 1., 1., 1.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        alpha: float = 0.2,
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.alpha = as_number("MixUp", "alpha", alpha, low=LEAST)
        self._set_seed(seed)
        self._set_format(data_format)

    def _mixed(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        share = self._share(x, self.alpha)
        return between(other, x, cast_to(share, x.dtype)), share


class _OfBoxes(AtRandom):
    """A layer that changes a rectangle of each image."""

    def _is_in_box(self, x: Tensor, *parts: Tensor) -> Tensor:
        """Whether each pixel is in a rectangle at a random place, [examples, height, width, 1],
        given the parts of the height and of the width that it has."""
        found = []
        for axis, (size, part) in enumerate(zip(self.sides(x), parts)):
            length = multiply(part, float(size))
            start = multiply(self._draw(x, 0.0, 1.0), subtract(float(size), length))
            line = reshape(numbers(size, dtype=float32), [-1, 1] if axis == 0 else [1, -1])
            found.append(logical_and(greater_equal(line, start), less(line, add(start, length))))
        return expand_dims(logical_and(*found), -1)


class CutMix(_Mixing, _OfBoxes):
    """A rectangle of each image replaced by that of a random other one of its batch, in training.
    Labels are mixed in the ratio of the areas.

    - `factor`: the part of the area that stays has the beta distribution with this number as both
      parameters. It is drawn for each batch, from 0 to `factor`, or between the two numbers that it
      is; from 0 to 1.
    - `seed`, `data_format`: as in `RandomFlip`.

    Inputs and results, errors and `training` are as in `MixUp`; ValueError is raised for a factor
    out of range. From Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features".

    >>> x = {"images": tg.ones([4, 2, 2, 3]), "labels": tg.one_hot([0, 1, 1, 0], 2)}
    >>> tg.layers.CutMix()(x)["images"].shape
    TensorShape([4, 2, 2, 3])
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._part("factor", factor)
        self._set_seed(seed)
        self._set_format(data_format)

    def _mixed(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.factor
        alpha = low if low == high else self._numbers.uniform([], low, high)
        share = self._share(x, add(alpha, LEAST))
        side = sqrt(subtract(1.0, share[..., 0]))
        return where(self._is_in_box(x, side, side), other, x), share


class RandomErasing(_OfBoxes):
    """A rectangle of each image replaced by noise or by a number, in training.

    - `factor`: the probability is drawn for each image, from 0 to `factor`, or between the two
      numbers that it is; from 0 to 1.
    - `scale`: two numbers from 0 to 1, between which the squares of the parts of the height and of
      the width are drawn that the rectangle has; or the largest.
    - `fill_value`: a number, or one for each channel; by default noise of the normal distribution
      times the largest value.
    - `value_range`: the least and the largest value of a pixel, to which what is filled in is
      clipped.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes and `training` are as in `RandomFlip`. Raises ShapeError for what is not images
    of known height and width, ValueError for a factor out of range or for equal values in
    `value_range`. From Zhong et al., "Random Erasing Data Augmentation".

    >>> erase = tg.layers.RandomErasing([1.0, 1.0], scale=[1.0, 1.0], fill_value=7.0)
    >>> erase(tg.ones([1, 2, 1])).numpy().ravel()
    array([7., 7.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float | Sequence[float] = (0.02, 0.33),
        fill_value: float | Sequence[float] | None = None,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.factor = self._part("factor", factor)
        self.scale = self._part("scale", scale)
        values = fill_value if isinstance(fill_value, (list, tuple)) else [fill_value]
        if fill_value is not None:
            values = [as_number("RandomErasing", "fill_value", value) for value in values]
        self.fill_value = None if fill_value is None else values
        self._set_values(value_range, seed, data_format)

    def _changed(self, x: Tensor) -> Tensor:
        parts = [sqrt(self._draw(x, *self.scale)) for _ in range(2)]
        is_erased = logical_and(self._is_in_box(x, *parts), self._is_drawn(x, *self.factor))
        return where(is_erased, clip_by_value(self._filling(x), *self.value_range), x)

    def _filling(self, x: Tensor) -> Tensor:
        if self.fill_value is None:
            noise = self._numbers.normal(sizes_of("RandomErasing", x))
            return cast_to(multiply(noise, self.value_range[1]), x.dtype)
        channels = known(self, x.shape, 3)
        if len(self.fill_value) not in (1, channels):
            fact = f"RandomErasing: fill_value is {shown(self.fill_value)}, for {channels} channels"
            fail(SignatureError, fact, fix="give one number, or one for each channel")
        return as_tensor(self.fill_value, x.dtype)
