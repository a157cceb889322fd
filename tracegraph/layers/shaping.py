"""Layers that only move, repeat, pad or cut elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_choice, as_size, as_sizes, rank_of, refuse, sizes_of
from tracegraph.array.joining import repeat
from tracegraph.array.shaping import cut, expand_dims, pad, reshape, transpose
from tracegraph.core.shapes import element_count
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.image.resizing import resize
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, is_channels_first, positive, window
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.nn.windows import channels_first, channels_last, ranked
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import Window


class Flatten(Layer):
    """Flattens all axes but the first into one.

    - `data_format`: with "channels_first", the channels first become the last axis.

    Raises ShapeError for a scalar.

    >>> tg.layers.Flatten()(tg.ones([2, 3, 4])).shape
    TensorShape([2, 12])
    """

    @takes_options
    def __init__(self, data_format: str | None = None, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        is_channels_first("Flatten", data_format)
        self.data_format = data_format

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        sizes: Any = sizes_of("Flatten", x)
        if not sizes:
            refuse("Flatten", "a scalar has no axis", x, fix="give inputs with an axis of examples")
        if self.data_format == "channels_first" and len(sizes) > 2:
            x = channels_last(x)
        return reshape(x, [sizes[0], element_count(sizes[1:])])


class Reshape(Layer):
    """Reshapes each example.

    - `target_shape`: the shape of one example; one of its sizes may be -1.

    Raises ShapeError if the number of elements differs.

    >>> tg.layers.Reshape((2, -1))(tg.ones([5, 6])).shape
    TensorShape([5, 2, 3])
    """

    @takes_options
    def __init__(self, target_shape: Sequence[int], **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.target_shape = as_sizes("Reshape", "target_shape", target_shape)

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        if rank_of("Reshape", x) == 0:
            fix = "give [examples, ...]"
            refuse("Reshape", "the inputs are a scalar, which has no examples", x, fix=fix)
        return reshape(x, [sizes_of("Reshape", x)[0], *self.target_shape])


class Permute(Layer):
    """Permutes the axes of each example.

    - `dims`: the axes in their new order; 1 is the first axis after the examples.

    Raises ValueError if `dims` does not name each axis once.

    >>> tg.layers.Permute((2, 1))(tg.ones([5, 2, 3])).shape
    TensorShape([5, 3, 2])
    """

    @takes_options
    def __init__(self, dims: Sequence[int], **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.dims = as_sizes("Permute", "dims", dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            fix = "name each axis once, and begin with 1: (2, 1)"
            fail(SignatureError, f"Permute: dims is {shown(dims)}", fix=fix)

    def call(self, inputs: Tensor) -> Tensor:
        return transpose(inputs, [0, *self.dims])


class RepeatVector(Layer):
    """Repeats [examples, features] `n` times along a new axis 1.

    >>> tg.layers.RepeatVector(3)(tg.ones([5, 2])).shape
    TensorShape([5, 3, 2])
    """

    @takes_options
    def __init__(self, n: int, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.n = positive("RepeatVector", "n", n)

    def call(self, inputs: Tensor) -> Tensor:
        return repeat(expand_dims(ranked("RepeatVector", inputs, 2), 1), self.n, 1)


class _Margins(Layer):
    """Adds elements before and after each spatial axis, or removes them."""

    #: The number of spatial axes.
    rank = 0

    def _describe_margins(self, what: str, value: Any, data_format: Any) -> None:
        self._first = 2 if is_channels_first(type(self).__name__, data_format) else 1
        self.data_format = data_format
        setattr(self, what, _pairs(type(self).__name__, what, value, self.rank))


def _pairs(op: str, what: str, value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """A pair (before, after) for each axis, from one int, one int per axis, or pairs."""
    if not isinstance(value, (list, tuple)):
        value = [as_size(op, what, value)] * rank
    if rank == 1 and len(value) == 2 and all(isinstance(n, int) for n in value):
        value = [value]
    if len(value) != rank:
        fix = f"give one int, or one int or pair for each of {rank} axes"
        fail(SignatureError, f"{op}: {what} is {shown(value)}", fix=fix)
    pairs = (window(op, what, one, 2, low=0) for one in value)
    return tuple((before, after) for before, after in pairs)


class ZeroPadding1D(_Margins):
    """Pads axis 1 with zeros on both ends.

    - `padding`: one int, or a pair (before, after).

    >>> tg.layers.ZeroPadding1D((1, 2))(tg.ones([1, 3, 2])).shape
    TensorShape([1, 6, 2])
    """

    rank = 1

    @takes_options
    def __init__(
        self,
        padding: Window | Sequence[Sequence[int]] = 1,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.padding: Any
        self._describe_margins("padding", padding, data_format)

    def call(self, inputs: Tensor) -> Tensor:
        x = ranked(type(self).__name__, inputs, self.rank + 2)
        margins: list[Any] = [(0, 0)] * x.ndim
        margins[self._first : self._first + self.rank] = self.padding
        return pad(x, margins)


class ZeroPadding2D(ZeroPadding1D):
    """Pads images with zeros.

    - `padding`: one int, one each for height and width, or a pair (before, after) for each.
    - `data_format`: "channels_first" for [examples, channels, height, width].

    >>> tg.layers.ZeroPadding2D(((0, 1), (2, 2)))(tg.ones([1, 3, 3, 2])).shape
    TensorShape([1, 4, 7, 2])
    """

    rank = 2


class ZeroPadding3D(ZeroPadding1D):
    """Pads volumes with zeros; see `ZeroPadding2D`.

    >>> tg.layers.ZeroPadding3D(1)(tg.ones([1, 3, 3, 3, 2])).shape
    TensorShape([1, 5, 5, 5, 2])
    """

    rank = 3


class Cropping2D(_Margins):
    """Crops the margins of images.

    - `cropping`: one int, one each for height and width, or a pair (before, after) for each.

    Raises ShapeError if nothing would be left.

    >>> tg.layers.Cropping2D(((1, 0), (1, 1)))(tg.ones([1, 3, 4, 2])).shape
    TensorShape([1, 2, 2, 2])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        cropping: Window | Sequence[Sequence[int]] = ((0, 0), (0, 0)),
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.cropping: Any
        self._describe_margins("cropping", cropping, data_format)

    def call(self, inputs: Tensor) -> Tensor:
        op = type(self).__name__
        x = ranked(op, inputs, self.rank + 2)
        for axis, (before, after) in enumerate(self.cropping, self._first):
            size: Any = sizes_of(op, x)[axis]
            if isinstance(size, int) and size <= before + after:
                fact = f"{before} + {after} elements are cut off axis {axis}, which has {size}"
                refuse(op, fact, x, fix="cut off less")
            x = cut(x, axis, before, size - after)
        return x


class Cropping1D(Cropping2D):
    """Crops the ends of sequences; see `Cropping2D`.

    >>> tg.layers.Cropping1D(1)(tg.ones([1, 5, 2])).shape
    TensorShape([1, 3, 2])
    """

    rank = 1

    @takes_options
    def __init__(
        self, cropping: Window | Sequence[Sequence[int]] = (1, 1), **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(cropping, None, **options)


class Cropping3D(Cropping2D):
    """Crops the margins of volumes; see `Cropping2D`.

    >>> tg.layers.Cropping3D(1)(tg.ones([1, 3, 4, 5, 2])).shape
    TensorShape([1, 1, 2, 3, 2])
    """

    rank = 3

    @takes_options
    def __init__(
        self,
        cropping: Window | Sequence[Sequence[int]] = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(cropping, data_format, **options)


#: "nearest" repeats; the others are methods of `tg.image.resize`.
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")


class UpSampling2D(Layer):
    """Repeats each pixel along height and width, or fills in pixels between them.

    - `size`: the number of repeats: one int, or one each for height and width.
    - `interpolation`: "nearest", or "bilinear", "bicubic", "lanczos3" or "lanczos5", which
      `tg.image.resize` computes, in float32.

    >>> tg.layers.UpSampling2D(2)(tg.reshape([1.0, 2.0], [1, 1, 2, 1]))[0, ..., 0].numpy()
    array([[1., 1., 2., 2.],
           [1., 1., 2., 2.]], dtype=float32)
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        size: Window = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self.size = window(op, "size", size, self.rank)
        self._first = 2 if is_channels_first(op, data_format) else 1
        self.data_format = data_format
        self.interpolation = as_choice(op, "interpolation", interpolation, _INTERPOLATIONS)

    def call(self, inputs: Tensor) -> Tensor:
        x = ranked(type(self).__name__, inputs, self.rank + 2)
        if self.interpolation != "nearest":
            return self._resized(x)
        for axis, count in enumerate(self.size, self._first):
            x = repeat(x, count, axis)
        return x

    def _resized(self, x: Tensor) -> Tensor:
        is_first = self._first == 2
        y = channels_last(x) if is_first else x
        sizes = [size * count for size, count in zip(y.type.shape[1:], self.size)]
        y = cast_to(resize(y, sizes, self.interpolation), x.dtype)
        return channels_first(y) if is_first else y


class UpSampling1D(UpSampling2D):
    """Repeats each step of a sequence.

    >>> tg.layers.UpSampling1D(2)(tg.ones([1, 3, 2])).shape
    TensorShape([1, 6, 2])
    """

    rank = 1

    @takes_options
    def __init__(self, size: int = 2, **options: Unpack[LayerOptions]) -> None:
        super().__init__(size, **options)


class UpSampling3D(UpSampling2D):
    """Repeats each element of a volume along depth, height and width.

    >>> tg.layers.UpSampling3D(2)(tg.ones([1, 1, 2, 3, 1])).shape
    TensorShape([1, 2, 4, 6, 1])
    """

    rank = 3

    @takes_options
    def __init__(
        self,
        size: Window = (2, 2, 2),
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(size, data_format, **options)
