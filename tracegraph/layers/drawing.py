"""The base class of layers that draw random numbers."""

from __future__ import annotations

from typing import Any

from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer
from tracegraph.nn.normalisation import dropped
from tracegraph.random.generators import Generator, generator_of, own_generator


class DrawingLayer(Layer):
    """A layer that draws from a generator of its own if it has a seed, and otherwise from the
    global one.

    The state of its own generator is one of its `variables`, as in Keras, so checkpoints and saved
    models hold it; it is none of its `weights`.
    """

    seed: int | None = None
    #: The layer's own generator, if it has a seed.
    seed_generator: Generator | None = None

    def _set_seed(self, seed: int | None) -> None:
        self.seed = seed
        if seed is not None:
            self.seed_generator = own_generator(seed)

    @property
    def _numbers(self) -> Generator:
        return generator_of() if self.seed_generator is None else self.seed_generator

    def _dropped(self, x: Any, rate: float, noise_shape: Any = None) -> Tensor:
        """`tg.nn.dropout` with random numbers of this layer."""

        def draw(shape: Any, dtype: Any) -> Tensor:
            return self._numbers.uniform(shape, dtype=dtype)

        return dropped("dropout", x, rate, noise_shape, draw)
