"""Pooling: the maximum or the mean of windows, or of all steps or pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from tracegraph import nn
from tracegraph.array.arguments import as_flag, known_int
from tracegraph.array.creation import range as range_of, zeros_like
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.shaping import expand_dims
from tracegraph.core.shapes import ceiling_divide
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, format_of, is_channels_first, padding_of, window
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import divide, minimum, multiply
from tracegraph.math.reduction import reduce_max, reduce_mean, reduce_sum
from tracegraph.nn.windows import ranked
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import TensorLike, Window


class _Pooling(Layer):
    """Reduces each window over `rank` axes to one element."""

    rank = 0
    pool: Callable[..., Tensor]

    @takes_options
    def __init__(
        self,
        pool_size: Window = 2,
        strides: Window | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self.pool_size = window(op, "pool_size", pool_size, self.rank)
        is_given = strides is not None
        self.strides = window(op, "strides", strides, self.rank) if is_given else self.pool_size
        self.padding = padding_of(op, padding)
        is_channels_first(op, data_format)
        self.data_format = data_format

    def call(self, inputs: Tensor) -> Tensor:
        form = format_of(self.data_format)
        return type(self).pool(inputs, self.pool_size, self.strides, self.padding, form)


class MaxPooling2D(_Pooling):
    """The maximum of each window of [examples, height, width, channels].

    - `pool_size`, `strides`: one int, or one each for height and width; strides default to
      pool_size; `padding`: "valid" or "same".
    - `data_format`: "channels_first" for [examples, channels, height, width].

    >>> tg.layers.MaxPooling2D(2)(tg.ones([1, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 3])
    """

    rank = 2
    pool = staticmethod(nn.max_pool2d)


class MaxPooling1D(_Pooling):
    """The maximum of each window of [examples, steps, channels]; see `MaxPooling2D`.

    >>> tg.layers.MaxPooling1D(2)(tg.ones([1, 4, 3])).shape
    TensorShape([1, 2, 3])
    """

    rank = 1
    pool = staticmethod(nn.max_pool1d)


class MaxPooling3D(_Pooling):
    """The maximum of each window of [examples, depth, height, width, channels]; see `MaxPooling2D`.

    >>> tg.layers.MaxPooling3D(2)(tg.ones([1, 4, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 2, 3])
    """

    rank = 3
    pool = staticmethod(nn.max_pool3d)


class AveragePooling2D(_Pooling):
    """The mean of each window of [examples, height, width, channels]; see `MaxPooling2D`.

    Padding does not count.

    >>> tg.layers.AveragePooling2D(2)(tg.ones([1, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 3])
    """

    rank = 2
    pool = staticmethod(nn.avg_pool2d)


class AveragePooling1D(_Pooling):
    """The mean of each window of [examples, steps, channels]; see `AveragePooling2D`.

    >>> tg.layers.AveragePooling1D(2)([[[1.0], [3.0]]]).numpy().item()
    2.0
    """

    rank = 1
    pool = staticmethod(nn.avg_pool1d)


class AveragePooling3D(_Pooling):
    """The mean of each window of [examples, depth, height, width, channels]; see
    `AveragePooling2D`.

    >>> tg.layers.AveragePooling3D(2)(tg.ones([1, 4, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 2, 3])
    """

    rank = 3
    pool = staticmethod(nn.avg_pool3d)


class _AdaptivePooling(Layer):
    """Divides each axis into a given number of windows that cover it."""

    rank = 0

    @takes_options
    def __init__(
        self, output_size: Window, data_format: str | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self.output_size = window(op, "output_size", output_size, self.rank)
        self._first = 2 if is_channels_first(op, data_format) else 1
        self.data_format = data_format

    def call(self, inputs: Tensor) -> Tensor:
        x = ranked(type(self).__name__, as_tensor(inputs), self.rank + 2)
        for k, count in enumerate(self.output_size):
            x = self._along(x, self._first + k, count)
        return x

    def _along(self, x: Tensor, axis: int, count: int) -> Tensor:
        """`count` windows along one axis: window k reaches from k * size / count, rounded down, to
        (k + 1) * size / count, rounded up."""
        size: Any = x.type.shape[axis]
        number: Any = np.arange(count)
        if not known_int(size):
            number, size = range_of(count), cast_to(as_tensor(size), int32)
        starts = number * size // count
        sizes = -(-(number + 1) * size // count) - starts
        within = self._within(x.type.shape[axis], count, sizes)
        least: Any = np.minimum if known_int(size) else minimum
        places = starts[:, None] + least(within, sizes[:, None] - 1)
        counts = within < sizes[:, None]
        ones = [None] * (x.ndim - axis - 1)
        return self._reduced(gather(x, places, axis=axis), counts[:, :, *ones], axis + 1)

    @staticmethod
    def _within(size: Any, count: int, sizes: Any) -> Any:
        """The numbers of the elements of the longest window."""
        if known_int(size):
            return np.arange(sizes.max())
        # No window is longer than a whole share and what its two ends add to it.
        return range_of(ceiling_divide(size, count) + 1)

    def _reduced(self, windows: Tensor, counts: Any, axis: int) -> Tensor:
        """One element per window along an axis; a shorter window repeats its last element where
        `counts` is false."""
        raise NotImplementedError


class AdaptiveAveragePooling1D(_AdaptivePooling):
    """The means of `output_size` windows of [examples, steps, channels]; see
    `AdaptiveAveragePooling2D`.

    >>> tg.layers.AdaptiveAveragePooling1D(2)([[[1.0], [2.0], [6.0]]]).numpy().ravel()
    array([1.5, 4. ], dtype=float32)
    """

    rank = 1

    def _reduced(self, windows: Tensor, counts: Any, axis: int) -> Tensor:
        total = reduce_sum(where(counts, windows, zeros_like(windows)), axis)
        return divide(total, reduce_sum(cast_to(as_tensor(counts), total.dtype), 1))


class AdaptiveAveragePooling2D(AdaptiveAveragePooling1D):
    """The means of windows of [examples, height, width, channels], for a given number of windows.

    - `output_size`: the number of windows: one int, or one each for height and width. They may
      overlap: window k reaches from k * size / count, rounded down, to (k + 1) * size / count,
      rounded up.
    - `data_format`: "channels_first" for [examples, channels, height, width].

    Raises ShapeError for inputs without 4 axes.

    >>> tg.layers.AdaptiveAveragePooling2D((2, 3))(tg.ones([1, 7, 7, 4])).shape
    TensorShape([1, 2, 3, 4])
    """

    rank = 2


class AdaptiveAveragePooling3D(AdaptiveAveragePooling1D):
    """The means of windows of [examples, depth, height, width, channels]; see
    `AdaptiveAveragePooling2D`.

    >>> tg.layers.AdaptiveAveragePooling3D(2)(tg.ones([1, 7, 7, 7, 4])).shape
    TensorShape([1, 2, 2, 2, 4])
    """

    rank = 3


class AdaptiveMaxPooling1D(_AdaptivePooling):
    """The maxima of `output_size` windows of [examples, steps, channels]; the windows are those of
    `AdaptiveAveragePooling2D`.

    >>> tg.layers.AdaptiveMaxPooling1D(2)([[[1.0], [2.0], [6.0]]]).numpy().ravel()
    array([2., 6.], dtype=float32)
    """

    rank = 1

    def _reduced(self, windows: Tensor, counts: Any, axis: int) -> Tensor:
        return reduce_max(windows, axis)


class AdaptiveMaxPooling2D(AdaptiveMaxPooling1D):
    """The maxima of windows of [examples, height, width, channels]; see
    `AdaptiveAveragePooling2D`.

    >>> tg.layers.AdaptiveMaxPooling2D(2)(tg.ones([1, 7, 7, 4])).shape
    TensorShape([1, 2, 2, 4])
    """

    rank = 2


class AdaptiveMaxPooling3D(AdaptiveMaxPooling1D):
    """The maxima of windows of [examples, depth, height, width, channels]; see
    `AdaptiveAveragePooling2D`.

    >>> tg.layers.AdaptiveMaxPooling3D(2)(tg.ones([1, 7, 7, 7, 4])).shape
    TensorShape([1, 2, 2, 2, 4])
    """

    rank = 3


class _GlobalPooling(Layer):
    """Reduces each channel to one element."""

    rank = 0
    reduce: Callable[..., Tensor]

    @takes_options
    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self._axes = [*range(2, self.rank + 2)]
        if not is_channels_first(op, data_format):
            self._axes = [axis - 1 for axis in self._axes]
        self.data_format, self.keepdims = data_format, as_flag(op, "keepdims", keepdims)

    def call(self, inputs: Tensor) -> Tensor:
        x = ranked(type(self).__name__, inputs, self.rank + 2)
        return type(self).reduce(x, self._axes, self.keepdims)


class GlobalMaxPooling1D(_GlobalPooling):
    """The maximum over the steps of [examples, steps, channels].

    - `keepdims`: whether to keep the axes, with size 1.
    - `data_format`: "channels_first" for [examples, channels, steps].

    >>> tg.layers.GlobalMaxPooling1D()([[[1.0], [3.0]]]).numpy()
    array([[3.]], dtype=float32)
    """

    rank = 1
    reduce = staticmethod(reduce_max)


class GlobalMaxPooling2D(_GlobalPooling):
    """The maximum over height and width; see `GlobalMaxPooling1D`.

    >>> tg.layers.GlobalMaxPooling2D(keepdims=True)(tg.ones([2, 4, 4, 3])).shape
    TensorShape([2, 1, 1, 3])
    """

    rank = 2
    reduce = staticmethod(reduce_max)


class GlobalMaxPooling3D(_GlobalPooling):
    """The maximum over depth, height and width; see `GlobalMaxPooling1D`.

    >>> tg.layers.GlobalMaxPooling3D()(tg.ones([2, 4, 4, 4, 3])).shape
    TensorShape([2, 3])
    """

    rank = 3
    reduce = staticmethod(reduce_max)


class GlobalAveragePooling1D(_GlobalPooling):
    """The mean over the steps of [examples, steps, channels]; see `GlobalMaxPooling1D`.

    With a `mask`, [examples, steps], in the call, the mean is over the steps where it is true.

    >>> layer = tg.layers.GlobalAveragePooling1D()
    >>> layer([[[1.0], [3.0]]], mask=[[True, False]]).numpy()
    array([[1.]], dtype=float32)
    """

    rank = 1
    reduce = staticmethod(reduce_mean)

    def call(self, inputs: Tensor, mask: TensorLike | None = None) -> Tensor:
        if mask is None:
            return super().call(inputs)
        x = ranked("GlobalAveragePooling1D", inputs, 3)
        (steps,) = self._axes
        weights = expand_dims(cast_to(as_tensor(mask), x.dtype), 3 - steps)
        total = reduce_sum(multiply(x, weights), steps, self.keepdims)
        return divide(total, reduce_sum(weights, steps, self.keepdims))


class GlobalAveragePooling2D(_GlobalPooling):
    """The mean over height and width; see `GlobalMaxPooling1D`.

    >>> tg.layers.GlobalAveragePooling2D()(tg.ones([2, 4, 4, 3])).shape
    TensorShape([2, 3])
    """

    rank = 2
    reduce = staticmethod(reduce_mean)


class GlobalAveragePooling3D(_GlobalPooling):
    """The mean over depth, height and width; see `GlobalMaxPooling1D`.

    >>> tg.layers.GlobalAveragePooling3D()(tg.ones([2, 4, 4, 4, 3])).shape
    TensorShape([2, 3])
    """

    rank = 3
    reduce = staticmethod(reduce_mean)


MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalMaxPool1D, GlobalMaxPool2D = GlobalMaxPooling1D, GlobalMaxPooling2D
GlobalMaxPool3D = GlobalMaxPooling3D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D
