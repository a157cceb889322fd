"""Layers that resize and crop images, [height, width, channels] or a batch of them."""

from __future__ import annotations

from typing import Unpack

from tracegraph import image
from tracegraph.array.arguments import as_choice, as_flag, as_number, rank_of, refuse
from tracegraph.array.creation import saturate_cast
from tracegraph.array.shaping import expand_dims, pad, squeeze, transpose
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, is_channels_first, known, positive
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.unary import round as rounded
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import TensorLike

_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian")


class OfImages(Layer):
    """A layer of images, one or a batch, which have the channels last, or first if it says so."""

    data_format: str | None = None

    def _set_format(self, data_format: str | None) -> None:
        is_channels_first(type(self).__name__, data_format)
        self.data_format = data_format

    def batch_of(self, inputs: TensorLike) -> Tensor:
        """The images as a batch with the channels last, and of known heights and widths."""
        x, name = as_tensor(inputs), type(self).__name__
        if rank_of(name, x) not in (3, 4):
            fix = "give [height, width, channels], or a batch of such images"
            refuse(name, f"images are {x.type}", x, fix=fix)
        x = x if x.ndim == 4 else expand_dims(x, 0)
        x = transpose(x, [0, 2, 3, 1]) if self.data_format == "channels_first" else x
        self.sides(x)
        return x

    def sides(self, x: Tensor) -> tuple[int, int]:
        """The height and the width of a batch with the channels last, which must be known."""
        return known(self, x.shape, 1), known(self, x.shape, 2)

    def _as_given(self, x: Tensor, inputs: TensorLike) -> Tensor:
        """A batch of results as the inputs are: one or a batch, with the channels where they are
        there."""
        x = transpose(x, [0, 3, 1, 2]) if self.data_format == "channels_first" else x
        return x if as_tensor(inputs).ndim == 4 else squeeze(x, 0)


def _in_ratio(size: int, own: int, wanted: int) -> int:
    """The length of one side where the other is `size`, as `own` to `wanted`."""
    return int(float(size * own) / wanted)


def resized_in_ratio(x: Tensor, sides: tuple[int, int], height: int, width: int) -> Tensor:
    """The largest part in the middle with the ratio of `height` and `width`, in that size."""
    part = _cropped_to_ratio(x, sides, height, width)
    return cast_to(image.resize(part, (height, width)), x.dtype)


class Resizing(OfImages):
    """Images of another size, by `tg.image.resize`. Integers stay of their dtype.

    - `height`, `width`: the new size.
    - `interpolation`: a method of `tg.image.resize`.
    - `crop_to_aspect_ratio`, `pad_to_aspect_ratio`: whether to cut, or to fill with `fill_value`,
      what is at the sides, so that shapes are not stretched; at most one.
    - `data_format`: "channels_last" or "channels_first".

    Images are [height, width, channels], or a batch of them; sizes must be known. Raises ValueError
    for both, ShapeError for what is not such images.

    >>> tg.layers.Resizing(1, 2)(tg.constant([[[1.0], [3.0]], [[5.0], [7.0]]])).numpy()[..., 0]
    array([[3., 5.]], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.height = positive("Resizing", "height", height)
        self.width = positive("Resizing", "width", width)
        self.interpolation = as_choice("Resizing", "interpolation", interpolation, _METHODS)
        self.crop_to_aspect_ratio = as_flag(
            "Resizing", "crop_to_aspect_ratio", crop_to_aspect_ratio
        )
        self.pad_to_aspect_ratio = as_flag("Resizing", "pad_to_aspect_ratio", pad_to_aspect_ratio)
        if self.crop_to_aspect_ratio and self.pad_to_aspect_ratio:
            fact = "Resizing: images cannot be both cropped and padded to the ratio"
            fail(SignatureError, fact, fix="give one of the two")
        self.fill_mode = as_choice("Resizing", "fill_mode", fill_mode, ("constant",))
        self.fill_value = as_number("Resizing", "fill_value", fill_value)
        self.antialias = as_flag("Resizing", "antialias", antialias)
        self._set_format(data_format)

    def call(self, inputs: Tensor) -> Tensor:
        x = self.batch_of(inputs)
        size = (self.height, self.width)
        if self.crop_to_aspect_ratio:
            x = _cropped_to_ratio(x, self.sides(x), *size)
        elif self.pad_to_aspect_ratio:
            x = self._padded(x)
        y = image.resize(x, size, self.interpolation, antialias=self.antialias)
        if y.dtype is not x.dtype:
            y = saturate_cast(rounded(y) if x.dtype.is_integer else y, x.dtype)
        return self._as_given(y, inputs)

    def _padded(self, x: Tensor) -> Tensor:
        height, width = self.sides(x)
        tall = max(height, _in_ratio(width, self.height, self.width))
        wide = max(width, _in_ratio(height, self.width, self.height))
        above, before = (tall - height) // 2, (wide - width) // 2  # Keras fills both sides alike
        sides = [(above, above), (before, before)]
        fill = cast_to(as_tensor(self.fill_value), x.dtype)
        return pad(x, [(0, 0), *sides, (0, 0)], constant_values=fill)


def _cropped_to_ratio(x: Tensor, sides: tuple[int, int], height: int, width: int) -> Tensor:
    """The largest part in the middle with this ratio of sides."""
    tall, wide = sides
    rows = max(min(tall, _in_ratio(wide, height, width)), 1)
    columns = max(min(wide, _in_ratio(tall, width, height)), 1)
    start = (tall - rows) // 2, (wide - columns) // 2
    return image.crop_to_bounding_box(x, *start, rows, columns)


class CenterCrop(OfImages):
    """The middle of images; smaller images are resized to the size after they are cropped to its
    ratio of sides.

    Images are [height, width, channels], or a batch of them, of known sizes; results have the dtype
    in which the layer computes. Raises ShapeError for what is not such images.

    >>> tg.layers.CenterCrop(1, 1)(tg.reshape(tg.range(9.0), [3, 3, 1])).numpy().item()
    4.0
    """

    @takes_options
    def __init__(
        self,
        height: int,
        width: int,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.height = positive("CenterCrop", "height", height)
        self.width = positive("CenterCrop", "width", width)
        self._set_format(data_format)

    def call(self, inputs: Tensor) -> Tensor:
        x = cast_to(self.batch_of(inputs), self.compute_dtype)
        height, width = self.sides(x)
        size = self.height, self.width
        if height >= self.height and width >= self.width:
            start = (height - self.height) // 2, (width - self.width) // 2
            y = image.crop_to_bounding_box(x, *start, *size)
        else:
            y = resized_in_ratio(x, self.sides(x), *size)
        return self._as_given(y, inputs)
