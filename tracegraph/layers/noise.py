"""Layers that are random in training, and otherwise return their inputs unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph import regularizers
from tracegraph.array.arguments import as_flag, as_number, sizes_of
from tracegraph.array.indexing.selection import where
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, is_channels_first
from tracegraph.layers.drawing import DrawingLayer
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply
from tracegraph.math.elementwise.logic import greater_equal
from tracegraph.nn.windows import ranked
from tracegraph.operands.conversion import as_tensor
from tracegraph.random.draws import drawn_dtype
from tracegraph.typing import Nest, ShapeLike

#: The limit of `selu` at minus infinity.
_LEAST = -1.6732632423543772 * 1.0507009873554805


class Dropout(DrawingLayer):
    """In training, sets elements to 0 with probability `rate`, and scales the others by
    1 / (1 - rate) (Srivastava and others 2014).

    - `noise_shape`: as in `tg.nn.dropout`.
    - `seed`: the seed of a generator of its own, whose state is in checkpoints and saved models;
      None for the global generator.

    Raises ValueError for a rate that is not in [0, 1).

    >>> tg.layers.Dropout(0.5)(tg.ones([2]), training=False).numpy()
    array([1., 1.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        rate: float,
        noise_shape: ShapeLike | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.rate = as_number(type(self).__name__, "rate", rate, low=0, below=1)
        self.noise_shape = noise_shape
        self._set_seed(seed)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        is_training = as_flag(type(self).__name__, "training", training)
        return self._dropped(x, self.rate, self._noise_shape(x)) if is_training else x

    def _noise_shape(self, x: Tensor) -> Any:
        return self.noise_shape


class SpatialDropout1D(Dropout):
    """`Dropout` of whole channels of [examples, steps, channels] (Tompson and others 2015).

    >>> layer = tg.layers.SpatialDropout1D(0.5)
    >>> y = layer(tg.ones([1, 3, 2]), training=True).numpy()
    >>> bool((y == y[:, :1]).all())
    True
    """

    rank = 1

    @takes_options
    def __init__(
        self, rate: float, seed: int | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(rate, None, seed, **options)
        self.data_format: str | None = None

    def _noise_shape(self, x: Tensor) -> Any:
        ranked(type(self).__name__, x, self.rank + 2)
        sizes = sizes_of(type(self).__name__, x)
        ones = (1,) * self.rank
        if self.data_format == "channels_first":
            return (*sizes[:2], *ones)
        return (sizes[0], *ones, sizes[-1])


class SpatialDropout2D(SpatialDropout1D):
    """`Dropout` of whole channels of [examples, height, width, channels].

    - `data_format`: "channels_first" for [examples, channels, height, width].

    >>> tg.layers.SpatialDropout2D(0.5)(tg.ones([1, 3, 3, 2]), training=True).shape
    TensorShape([1, 3, 3, 2])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(rate, seed, **options)
        is_channels_first(type(self).__name__, data_format)
        self.data_format = data_format


class SpatialDropout3D(SpatialDropout2D):
    """`Dropout` of whole channels of [examples, depth, height, width, channels].

    >>> tg.layers.SpatialDropout3D(0.5)(tg.ones([1, 3, 3, 3, 2]), training=True).shape
    TensorShape([1, 3, 3, 3, 2])
    """

    rank = 3


class GaussianNoise(DrawingLayer):
    """In training, adds normal noise with standard deviation `stddev`.

    >>> tg.layers.GaussianNoise(0.1)([1.0]).numpy()
    array([1.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self, stddev: float, seed: int | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        self.stddev = as_number("GaussianNoise", "stddev", stddev, low=0)
        self._set_seed(seed)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        if not as_flag("GaussianNoise", "training", training) or not self.stddev:
            return x
        sizes = sizes_of("GaussianNoise", x)
        return add(x, self._numbers.normal(sizes, 0.0, self.stddev, x.dtype))


class GaussianDropout(DrawingLayer):
    """In training, multiplies elements by normal noise with mean 1 and variance
    rate / (1 - rate) (Srivastava and others 2014).

    >>> tg.layers.GaussianDropout(0.5)([1.0]).numpy()
    array([1.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self, rate: float, seed: int | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        self.rate = as_number("GaussianDropout", "rate", rate, low=0, below=1)
        self._set_seed(seed)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        if not as_flag("GaussianDropout", "training", training) or not self.rate:
            return x
        deviation = math.sqrt(self.rate / (1 - self.rate))
        sizes = sizes_of("GaussianDropout", x)
        return multiply(x, self._numbers.normal(sizes, 1.0, deviation, x.dtype))


class AlphaDropout(DrawingLayer):
    """In training, sets elements to the minimum of `selu`, -1.7581, with probability `rate`, then
    scales and shifts all so that inputs of mean 0 and variance 1 keep both (Klambauer and others
    2017).

    - `noise_shape`: the shape of the random mask, which broadcasts; None stands for the input's
      size.

    >>> tg.layers.AlphaDropout(0.5)([1.0]).numpy()
    array([1.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.rate = as_number("AlphaDropout", "rate", rate, low=0, below=1)
        self.noise_shape = noise_shape
        self._set_seed(seed)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        if not as_flag("AlphaDropout", "training", training) or not self.rate:
            return x
        sizes = sizes_of("AlphaDropout", x)
        given = sizes if self.noise_shape is None else self.noise_shape
        shape = [own if size is None else size for size, own in zip(given, sizes)]
        u = self._numbers.uniform(shape, dtype=drawn_dtype(x.dtype))
        is_kept = greater_equal(u, self.rate)
        scale = ((1 - self.rate) * (1 + self.rate * _LEAST**2)) ** -0.5
        return add(multiply(where(is_kept, x, _LEAST), scale), -scale * _LEAST * self.rate)


class ActivityRegularization(Layer):
    """Returns its inputs unchanged, and adds l1 * sum(abs(x)) + l2 * sum(x ** 2), divided by the
    number of examples, to `losses`.

    >>> layer = tg.layers.ActivityRegularization(l2=1.0)
    >>> y = layer([[1.0], [3.0]])
    >>> layer.losses[0].numpy().item()
    5.0
    """

    supports_masking = True

    @takes_options
    def __init__(self, l1: float = 0.0, l2: float = 0.0, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.activity_regularizer = regularizers.L1L2(l1, l2)
        self.l1, self.l2 = l1, l2

    def call(self, inputs: Nest) -> Tensor:
        return inputs  # type: ignore[return-value]
