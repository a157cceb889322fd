"""Layers that change images by several other layers, at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_choice, as_flag, as_number
from tracegraph.array.creation import zeros_like
from tracegraph.array.joining import split
from tracegraph.control_flow.branches import switch_case
from tracegraph.control_flow.loops import foldl
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import positive
from tracegraph.layers.images.at_random import AtRandom
from tracegraph.layers.images.colours import RandomBrightness, RandomContrast
from tracegraph.layers.images.levels import (
    AutoContrast,
    Equalization,
    RandomPosterization,
    Solarization,
)
from tracegraph.layers.images.mixing import LEAST, log_of_gamma
from tracegraph.layers.images.moving import RandomRotation, RandomShear, RandomTranslation
from tracegraph.layers.images.tints import (
    RandomColorDegeneration,
    RandomHue,
    RandomSaturation,
    RandomSharpness,
)
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, multiply
from tracegraph.nn.activation import softmax
from tracegraph.operands.conversion import cast_to


class _Composed(AtRandom):
    """A layer of layers, which draw from its numbers."""

    parts: list[AtRandom]

    def _set_parts(self, *parts: AtRandom) -> None:
        for part in parts:
            part.seed_generator = self.seed_generator
        self.parts = list(parts)


class RandomColorJitter(_Composed):
    """Changes brightness, contrast, saturation and hue of each image, in this order, in training:
    those whose factor is given, as `RandomBrightness`, `RandomContrast`, `RandomSaturation` and
    `RandomHue` do.

    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `brightness_factor`, `contrast_factor`, `saturation_factor`, `hue_factor`: the `factor` of
      these layers.
    - `seed`, `data_format`: as in `RandomFlip`.

    Shapes, dtypes, `training` and errors are as in these layers.

    >>> x = tg.constant([[[200.0, 100.0, 100.0]]])
    >>> jitter = tg.layers.RandomColorJitter(saturation_factor=[0.0, 0.0], hue_factor=0.5)
    >>> jitter(x).numpy().ravel()
    array([200., 200., 200.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        brightness_factor: float | Sequence[float] | None = None,
        contrast_factor: float | Sequence[float] | None = None,
        saturation_factor: float | Sequence[float] | None = None,
        hue_factor: float | Sequence[float] | None = None,
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self._set_values(value_range, seed, data_format)
        self._is_of_rgb = saturation_factor is not None or hue_factor is not None
        kinds = {
            RandomBrightness: brightness_factor,
            RandomContrast: contrast_factor,
            RandomSaturation: saturation_factor,
            RandomHue: hue_factor,
        }
        given = [(kind, factor) for kind, factor in kinds.items() if factor is not None]
        self._set_parts(*(kind(factor, value_range=value_range) for kind, factor in given))

    def _changed(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part._changed(x)
        return x


class _Chosen(_Composed):
    """A layer of layers of which a few are chosen at random, for all images of a batch."""

    _is_of_rgb = True

    def _make_parts(self, factor: Any, interpolation: str, all_ops: bool = True) -> None:
        name = type(self).__name__
        self.factor = self._part("factor", factor)
        self.interpolation = as_choice(
            name, "interpolation", interpolation, ("bilinear", "nearest")
        )
        ends, values = self.factor, self.value_range
        bits = max(1, int(8 * ends[1]))
        parts = [
            RandomShear(ends, ends, interpolation=interpolation),
            RandomTranslation(ends, ends, interpolation=interpolation),
            RandomRotation(ends, interpolation=interpolation),
            RandomPosterization(bits, values),
            Solarization(ends, ends, values),
            AutoContrast(values),
            Equalization(values),
        ]
        if all_ops:
            kinds = (RandomBrightness, RandomColorDegeneration, RandomContrast, RandomSharpness)
            parts += [kind(ends, values) for kind in kinds]
        self._set_parts(*parts)

    def _changed_by(self, x: Tensor, which: Tensor) -> Tensor:
        """x changed by the part of this number; unchanged, if it is the number of parts."""
        changes = [lambda part=part: part._changed(x) for part in self.parts]
        return switch_case(which, [*changes, lambda: x])


class RandAugment(_Chosen):
    """Changes images by a few layers that are chosen at random, one after the other, in training.

    They are chosen for all images of a batch, among `RandomShear`, `RandomTranslation`,
    `RandomRotation`, `RandomPosterization`, `Solarization`, `AutoContrast`, `Equalization`,
    `RandomBrightness`, `RandomColorDegeneration`, `RandomContrast` and `RandomSharpness`.

    - `value_range`: the least and the largest value of a pixel.
    - `num_ops`: how many layers are chosen, some perhaps twice.
    - `factor`: that of these layers: a number from 0 to 1, or two, the least and the largest.
      `RandomPosterization` keeps 8 times as many bits, and at least one.
    - `interpolation`, `seed`, `data_format`: as in `RandomRotation`.

    Shapes, dtypes and `training` are as in `RandomFlip`, for three channels. Raises ShapeError for
    what is not RGB images of known height and width, ValueError for an argument out of range. From
    Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced Search Space".

    >>> tg.layers.RandAugment(num_ops=1)(tg.ones([4, 4, 3])).shape
    TensorShape([4, 4, 3])
    """

    @takes_options
    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_ops: int = 2,
        factor: float | Sequence[float] = 0.5,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.num_ops = positive("RandAugment", "num_ops", num_ops)
        self._set_values(value_range, seed, data_format)
        self._make_parts(factor, interpolation)

    def _changed(self, x: Tensor) -> Tensor:
        chosen = self._numbers.uniform([self.num_ops], 0, len(self.parts), int32)
        return foldl(self._changed_by, chosen, x)


class AugMix(_Chosen):
    """share * x + (1 - share) * (the weighted mean of some chains), in training: a chain changes
    images by a few layers that are chosen at random, one after the other.

    Layers, weights and the share are drawn for all images of a batch. Layers are those of
    `RandAugment`, or none in their place.

    - `value_range`: the least and the largest value of a pixel, to which results are clipped.
    - `num_chains`, `chain_depth`: the number of chains, and of layers in each.
    - `factor`: as in `RandAugment`.
    - `alpha`: the parameter of the distributions of the weights, Dirichlet's, and of the share, the
      beta distribution.
    - `all_ops`: whether the last four of the layers are among those to choose from.
    - `interpolation`, `seed`, `data_format`: as in `RandomRotation`.

    Shapes, dtypes, `training` and errors are as in `RandAugment`; `alpha` must be positive. From
    Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and
    Uncertainty".

    >>> tg.layers.AugMix(num_chains=1, chain_depth=1)(tg.ones([4, 4, 3])).shape
    TensorShape([4, 4, 3])
    """

    @takes_options
    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_chains: int = 3,
        chain_depth: int = 3,
        factor: float | Sequence[float] = 0.3,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.num_chains = positive("AugMix", "num_chains", num_chains)
        self.chain_depth = positive("AugMix", "chain_depth", chain_depth)
        self.alpha = as_number("AugMix", "alpha", alpha, low=LEAST)
        self.all_ops = as_flag("AugMix", "all_ops", all_ops)
        self._set_values(value_range, seed, data_format)
        self._make_parts(factor, interpolation, self.all_ops)

    def _changed(self, x: Tensor) -> Tensor:
        shape = [self.num_chains, self.chain_depth]
        chosen = self._numbers.uniform(shape, 0, len(self.parts) + 1, int32)
        # One draw for the weights and the share: draws of gamma distributions compile slowly.
        drawn = log_of_gamma(self._numbers, [self.num_chains + 2], self.alpha)
        weights, (share, other) = (
            cast_to(softmax(part), x.dtype) for part in split(drawn, [self.num_chains, 2])
        )

        def with_chain(total: Tensor, chain: tuple[Tensor, Tensor]) -> Tensor:
            which, weight = chain
            return add(total, multiply(foldl(self._changed_by, which, x), weight))

        mixed = foldl(with_chain, (chosen, weights), zeros_like(x))
        y = add(multiply(share, x), multiply(other, mixed))
        return clip_by_value(y, *self.value_range)
