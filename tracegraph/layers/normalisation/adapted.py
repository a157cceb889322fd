"""Normalization of features by a mean and a variance that are known before training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from tracegraph.array.arguments import as_axes, as_flag, as_sizes, refuse
from tracegraph.array.shaping import reshape
from tracegraph.core.types import int32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, known
from tracegraph.layers.features.batches import batches_of
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, divide, maximum, multiply, subtract
from tracegraph.math.elementwise.unary import sqrt
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import TensorLike

#: About how many elements of an array are averaged at once.
_CHUNK = 1 << 22
#: The least standard deviation: Keras' `epsilon()`.
_LEAST = 1e-7


class Normalization(Layer):
    """(x - mean) / sqrt(variance), for each position along `axis`; the divisor is at least 1e-7.

    The mean and the variance are given, or computed of data by `adapt`. A layer without either
    returns its inputs.

    - `axis`: the axes that have a mean and a variance for each position, whose sizes must be known;
      None for one mean and one variance of all elements.
    - `mean`, `variance`: numbers, or arrays whose axes are the last ones of `axis`; both or
      neither.
    - `invert`: whether to undo this: x * sqrt(variance) + mean.

    Inputs, which may be integers, are cast to the layer's dtype. Raises ShapeError if the mean and
    the variance have different shapes, or shapes that do not fit the inputs.

    >>> layer = tg.layers.Normalization()
    >>> layer.adapt(np.array([[0.0, 7.0], [2.0, 9.0]]))
    >>> layer([[0.0, 8.0]]).numpy()
    array([[-1.,  0.]], dtype=float32)
    """

    supports_masking = True
    _computes_in_full = True

    @takes_options
    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: TensorLike | None = None,
        variance: TensorLike | None = None,
        invert: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.axis = () if axis is None else as_sizes("Normalization", "axis", axis)
        self.invert = as_flag("Normalization", "invert", invert)
        if (mean is None) != (variance is None):
            fact = f"Normalization: mean is {mean}, and variance is {variance}"
            fail(SignatureError, fact, fix="give both, or neither and call adapt(data)")
        self.input_mean, self.input_variance = mean, variance
        if mean is not None and variance is not None:
            shapes = as_tensor(mean).shape, as_tensor(variance).shape
            if shapes[0] != shapes[1] or len(shapes[0]) > len(self.axis):
                fact = f"the mean has the shape {shapes[0]}, and the variance {shapes[1]}"
                fix = f"give both one shape, of at most {len(self.axis)} axes, as axis has"
                refuse("Normalization", fact, fix=fix)

    def build(self, input_shape: Any) -> None:
        rank = len(input_shape)
        axes = as_axes("Normalization", self.axis, rank)
        sizes = {axis: known(self, input_shape, axis) for axis in axes}
        self._rank, self._sizes = rank, sizes
        if self.input_mean is None:
            shape = [*sizes.values()]
            self.adapt_mean = self.add_weight(shape, "zeros", name="mean", trainable=False)
            self.adapt_variance = self.add_weight(shape, "ones", name="variance", trainable=False)
            self.count = self.add_weight([], "zeros", int32, name="count", trainable=False)
        else:
            self._check_given(as_tensor(self.input_mean).shape)

    def _check_given(self, shape: Sequence[int]) -> None:
        for size, (axis, wanted) in zip(reversed(shape), reversed(self._sizes.items())):
            if size not in (1, wanted):
                fact = f"the mean has {size} elements along axis {axis}, and the inputs {wanted}"
                refuse("Normalization", fact, fix=f"give {wanted} of them, or one")

    @property
    def mean(self) -> Tensor:
        """The mean, as it is broadcast with the inputs; the layer must have been called or
        adapted."""
        return self._on_axes(self.adapt_mean if self.input_mean is None else self.input_mean)

    @property
    def variance(self) -> Tensor:
        """The variance, as it is broadcast with the inputs."""
        given = self.input_variance
        return self._on_axes(self.adapt_variance if given is None else given)

    def _on_axes(self, value: Any) -> Tensor:
        """A mean or a variance, with axes of size 1 where the layer has none."""
        x = cast_to(as_tensor(value), self.dtype)
        last = [*self._sizes][len(self._sizes) - len(x.shape) :]
        sizes = dict(zip(last, x.shape))
        return reshape(x, [sizes.get(axis, 1) for axis in range(self._rank)])

    def adapt(self, data: TensorLike | Iterable[Any]) -> None:
        """Sets the mean and the variance to those of the data: an array or a tensor, or an iterable
        of batches, of which the first one counts if a batch is a tuple. They are summed in float64
        (Chan and others 1979).

        Raises SignatureError (a ValueError) for no data, or if the mean was given; ShapeError for
        batches that do not fit each other, DTypeError for data that are not real numbers.
        """
        if self.input_mean is not None:
            fact = "Normalization: the mean and the variance were given, so they are not adapted"
            fail(SignatureError, fact, fix="make the layer without them")
        batches = batches_of("Normalization", data)
        first = next(batches, None)
        if first is None:
            fail(SignatureError, "Normalization: there are no data", fix="give at least one batch")
        if not self.built:
            self.build(first.shape)
        total, mean, variance = 0, np.zeros(()), np.zeros(())
        for batch in itertools.chain([first], batches):
            self._check_batch(batch.shape)
            for part in _parts(batch, is_whole=0 in self._sizes):
                count, *new = self._moments(part)
                share = count / (total := total + count) if count else 0.0
                middle = mean + (new[0] - mean) * share
                variance = (variance + (mean - middle) ** 2) * (1 - share) + (
                    new[1] + (new[0] - middle) ** 2
                ) * share
                mean = middle
        if not total:
            fail(SignatureError, "Normalization: the data are empty", fix="give some examples")
        self.adapt_mean.assign(cast_to(as_tensor(mean), self.dtype))
        self.adapt_variance.assign(cast_to(as_tensor(variance), self.dtype))

    def _check_batch(self, shape: Sequence[int]) -> None:
        fits = len(shape) == self._rank
        if not fits or any(shape[axis] != size for axis, size in self._sizes.items()):
            sizes = ", ".join(f"{size} along axis {axis}" for axis, size in self._sizes.items())
            fact = f"data have the shape {tuple(shape)}, and the layer {self._rank} axes: {sizes}"
            refuse("Normalization", fact, fix="give each batch the same features")

    def _moments(self, part: np.ndarray) -> tuple[int, Any, Any]:
        others = tuple(axis for axis in range(self._rank) if axis not in self._sizes)
        count = math.prod(part.shape[axis] for axis in others)
        if not count:
            return 0, 0.0, 0.0
        wide = part.astype(np.float64)
        return count, wide.mean(axis=others), wide.var(axis=others)

    def call(self, inputs: Tensor) -> Tensor:
        x = cast_to(as_tensor(inputs), self.dtype)
        deviation = maximum(sqrt(self.variance), _LEAST)
        if self.invert:
            return add(multiply(x, deviation), self.mean)
        return divide(subtract(x, self.mean), deviation)


def _parts(batch: np.ndarray, *, is_whole: bool) -> Iterator[np.ndarray]:
    """A large batch in parts along its first axis, unless that axis has means of its own."""
    if is_whole or batch.ndim == 0 or batch.size <= _CHUNK:
        yield batch
        return
    rows = max(1, _CHUNK // max(1, batch.size // len(batch)))
    for start in range(0, len(batch), rows):
        yield batch[start : start + rows]
