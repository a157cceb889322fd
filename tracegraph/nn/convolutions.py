"""Convolutions and transposed convolutions, their derivatives with respect to the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import (
    as_shape,
    known_int,
    rank_of,
    refuse,
    refuse_mismatch,
    sizes_of,
)
from tracegraph.array.shaping import reshape
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch
from tracegraph.ir.tensor import Tensor
from tracegraph.nn.windows import (
    channels_first,
    channels_last,
    paddings,
    per_axis,
    puts_channels_first,
    ranked,
    reaches,
    with_batch_axes,
    with_one_batch_axis,
)
from tracegraph.operands.conversion import as_operands, as_tensor
from tracegraph.ops.contract import Conv
from tracegraph.ops.shape import with_sizes
from tracegraph.typing import ShapeLike, TensorLike, Window


def conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """z[n, i, j, k] = sum of input[n, i * s + a * d, j * s + b * d, c] * filters[a, b, c, k]

    - `input`: [examples, height, width, channels], where several axes may hold the examples;
      `filters`: [height, width, channels, outputs]. Filters with fewer channels, which must divide
      those of the input, make the convolution grouped.
    - `strides` s and `dilations` d: one number, one each for height and width, or one for each of
      the four axes, being 1 for examples and channels.
    - `padding`: "VALID" for none, "SAME" so that stride 1 keeps the size, or a list of pairs
      (before, after) for all four axes.
    - `data_format`: "NCHW" if the channels are axis 1, in the input, the result, and lists for four
      axes.

    Raises ShapeError if the channels do not fit.

    >>> tg.nn.conv2d(tg.ones([1, 3, 3, 1]), tg.ones([2, 2, 1, 1]), 1, "VALID")[0, :, :, 0].numpy()
    array([[4., 4.],
           [4., 4.]], dtype=float32)
    """
    return _convolved("conv2d", 2, input, filters, strides, padding, data_format, dilations)


def conv1d(
    input: TensorLike,
    filters: TensorLike,
    stride: Window,
    padding: str | Sequence[Any],
    data_format: str = "NWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """A convolution of [examples, width, channels] with [width, channels, outputs]; see `conv2d`.

    >>> tg.nn.conv1d([[[1.0], [2.0], [3.0]]], [[[1.0]], [[1.0]]], 1, "VALID")[0, :, 0].numpy()
    array([3., 5.], dtype=float32)
    """
    return _convolved("conv1d", 1, input, filters, stride, padding, data_format, dilations)


def conv3d(
    input: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NDHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """A convolution over depth, height and width; see `conv2d`.

    >>> tg.nn.conv3d(tg.ones([1, 2, 2, 2, 1]), tg.ones([2, 2, 2, 1, 1]), 1, "VALID").numpy().item()
    8.0
    """
    return _convolved("conv3d", 3, input, filters, strides, padding, data_format, dilations)


def convolution(
    input: TensorLike,
    filters: TensorLike,
    strides: Window | None = None,
    padding: str | Sequence[Any] = "VALID",
    data_format: str | None = None,
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """`conv1d`, `conv2d` or `conv3d`, by the number of axes of `filters`.

    >>> tg.nn.convolution(tg.ones([1, 5, 2]), tg.ones([3, 2, 4])).shape
    TensorShape([1, 3, 4])
    """
    rank = _spatial_rank("convolution", filters)
    steps = 1 if strides is None else strides
    return _convolved("convolution", rank, input, filters, steps, padding, data_format, dilations)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolves each channel by itself, with `filter` [height, width, channels, multiplier].

    Output c * multiplier + m comes from channel c; see `conv2d`.

    >>> tg.nn.depthwise_conv2d(tg.ones([1, 2, 2, 3]), tg.ones([2, 2, 3, 1]), 1, "VALID").shape
    TensorShape([1, 1, 1, 3])
    """
    op = "depthwise_conv2d"
    kernel = _for_each_channel(op, filter)
    return _convolved(op, 2, input, kernel, strides, padding, data_format, dilations)


def _for_each_channel(op: str, filter: Any) -> Tensor:
    """[height, width, channels, multiplier] as a kernel with one group per channel."""
    kernel = ranked(op, filter, 4)
    height, width, channels, multiplier = sizes_of(op, kernel)
    return reshape(kernel, [height, width, 1, channels * multiplier])


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str | None = None,
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """`depthwise_conv2d`, followed by a convolution with `pointwise_filter`, [1, 1, channels *
    multiplier, outputs], which mixes the channels.

    Raises ShapeError if the filters do not fit each other.

    >>> x = tg.ones([1, 3, 3, 2])
    >>> depthwise, pointwise = tg.ones([2, 2, 2, 1]), tg.ones([1, 1, 2, 5])
    >>> tg.nn.separable_conv2d(x, depthwise, pointwise, 1, "SAME").shape
    TensorShape([1, 3, 3, 5])
    """
    op = "separable_conv2d"
    mixing = ranked(op, pointwise_filter, 4)
    if mixing.type.shape[:2] != (1, 1):
        fact = f"the pointwise filter is {mixing.type}"
        refuse(op, fact, mixing, fix="give [1, 1, channels * multiplier, outputs]")
    kernel = _for_each_channel(op, depthwise_filter)
    each = _convolved(op, 2, input, kernel, strides, padding, data_format, dilations)
    return _convolved(op, 2, each, mixing, 1, "VALID", data_format, None)


def atrous_conv2d(
    value: TensorLike,
    filters: TensorLike,
    rate: int,
    padding: str | Sequence[Any],
    name: str | None = None,
) -> Tensor:
    """`conv2d` with the dilation `rate` along height and width.

    >>> tg.nn.atrous_conv2d(tg.ones([1, 5, 5, 1]), tg.ones([3, 3, 1, 1]), 2, "VALID").shape
    TensorShape([1, 1, 1, 1])
    """
    return _convolved("atrous_conv2d", 2, value, filters, 1, padding, None, rate)


def conv2d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Window,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """The derivative of `conv2d` with respect to its input, at a cotangent `input`: enlarges
    images.

    - `input`: [examples, height, width, channels]; `filters`: [height, width, outputs, channels].
    - `output_shape`: the shape of the result. A `conv2d` of such a tensor with the same `strides`,
      `padding` and `dilations` must give the shape of `input`.

    Raises ShapeError if it does not.

    >>> y = tg.nn.conv2d_transpose(tg.ones([1, 2, 2, 1]), tg.ones([2, 2, 3, 1]), [1, 4, 4, 3], 2)
    >>> y[0, :, :, 0].numpy()
    array([[1., 1., 1., 1.],
           [1., 1., 1., 1.],
           [1., 1., 1., 1.],
           [1., 1., 1., 1.]], dtype=float32)
    """
    op = "conv2d_transpose"
    return _transposed(
        op, 2, input, filters, output_shape, strides, padding, data_format, dilations
    )


def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Window,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """The derivative of `conv1d` with respect to its input; see `conv2d_transpose`.

    >>> y = tg.nn.conv1d_transpose([[[1.0], [2.0]]], [[[1.0]], [[10.0]]], [1, 4, 1], 2)
    >>> y[0, :, 0].numpy()
    array([ 1., 10.,  2., 20.], dtype=float32)
    """
    op = "conv1d_transpose"
    return _transposed(
        op, 1, input, filters, output_shape, strides, padding, data_format, dilations
    )


def conv3d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Window,
    padding: str | Sequence[Any] = "SAME",
    data_format: str = "NDHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """The derivative of `conv3d` with respect to its input; see `conv2d_transpose`.

    >>> x, filters = tg.ones([1, 2, 2, 2, 1]), tg.ones([2, 2, 2, 3, 1])
    >>> tg.nn.conv3d_transpose(x, filters, [1, 4, 4, 4, 3], 2).shape
    TensorShape([1, 4, 4, 4, 3])
    """
    op = "conv3d_transpose"
    return _transposed(
        op, 3, input, filters, output_shape, strides, padding, data_format, dilations
    )


def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Window,
    padding: str | Sequence[Any] = "SAME",
    data_format: str | None = None,
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """`conv1d_transpose`, `conv2d_transpose` or `conv3d_transpose`, by the rank of `filters`.

    >>> tg.nn.conv_transpose(tg.ones([1, 3, 1]), tg.ones([2, 4, 1]), [1, 6, 4], 2).shape
    TensorShape([1, 6, 4])
    """
    op, rank = "conv_transpose", _spatial_rank("conv_transpose", filters)
    return _transposed(
        op, rank, input, filters, output_shape, strides, padding, data_format, dilations
    )


def atrous_conv2d_transpose(
    value: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    rate: int,
    padding: str | Sequence[Any],
    name: str | None = None,
) -> Tensor:
    """The derivative of `atrous_conv2d` with respect to its input; see `conv2d_transpose`.

    >>> x, filters = tg.ones([1, 1, 1, 1]), tg.ones([3, 3, 2, 1])
    >>> tg.nn.atrous_conv2d_transpose(x, filters, [1, 5, 5, 2], 2, "VALID").shape
    TensorShape([1, 5, 5, 2])
    """
    op = "atrous_conv2d_transpose"
    return _transposed(op, 2, value, filters, output_shape, 1, padding, None, rate)


def depthwise_conv2d_backprop_input(
    input_sizes: ShapeLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str = "NHWC",
    dilations: Window | None = None,
    name: str | None = None,
) -> Tensor:
    """The derivative of `depthwise_conv2d` with respect to an input of shape `input_sizes`, at the
    cotangent `out_backprop`.

    >>> g, filter = tg.ones([1, 1, 1, 3]), tg.ones([2, 2, 3, 1])
    >>> tg.nn.depthwise_conv2d_backprop_input([1, 2, 2, 3], filter, g, 1, "VALID").shape
    TensorShape([1, 2, 2, 3])
    """
    op = "depthwise_conv2d_backprop_input"
    kernel = _for_each_channel(op, filter)
    return _transposed(
        op, 2, out_backprop, kernel, input_sizes, strides, padding, data_format, dilations
    )


def _spatial_rank(op: str, filters: Any) -> int:
    kernel = as_tensor(filters)
    rank = rank_of(op, kernel) - 2
    if not 1 <= rank <= 3:
        fact = f"the filters are {kernel.type}, and they have 3, 4 or 5 axes"
        refuse(op, fact, kernel, fix="give [..., channels, outputs]")
    return rank


def _convolved(
    op: str,
    rank: int,
    input: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
) -> Tensor:
    x, y = as_operands(op, input, filters)
    is_short = rank_of(op, x) < rank + 2
    if is_short or rank_of(op, y) != rank + 2:
        wrong = (
            f"the input {x.type} has fewer than" if is_short else f"the filters {y.type} have not"
        )
        refuse(
            op,
            f"{wrong} {rank + 2} axes",
            x,
            y,
            fix="give [examples, ..., channels] and [..., channels, outputs]",
        )
    is_first = puts_channels_first(op, data_format, rank)
    x, lead = with_one_batch_axis(op, x, rank)
    x = channels_last(x) if is_first else x
    z = _conv(op, x.type, y.type, strides, padding, dilations, is_first)(x, y)
    return with_batch_axes(channels_first(z) if is_first else z, lead)


def _conv(
    op: str,
    x: TensorType,
    y: TensorType,
    strides: Any,
    padding: Any,
    dilations: Any,
    is_first: bool,
) -> Conv:
    """The op that convolves x, whose channels are last, with y."""
    rank = len(x.shape) - 2
    steps = per_axis(op, "strides", strides, rank, is_first)
    gaps = per_axis(op, "dilations", 1 if dilations is None else dilations, rank, is_first)
    pads = paddings(op, x, padding, reaches(y.shape, gaps), steps, is_first)
    channels, own = x.shape[-1], y.shape[-2]
    # A kernel that does not divide the channels is refused as one kernel, without groups.
    divides = known_int(channels) and known_int(own) and own and channels % own == 0
    groups = channels // own or 1 if divides else 1
    return Conv(steps, pads, (1,) * rank, gaps, groups)


def _transposed(
    op: str,
    rank: int,
    input: Any,
    filters: Any,
    output_shape: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
) -> Tensor:
    g, y = as_operands(op, input, filters)
    sizes = as_shape(op, output_shape)
    if not rank_of(op, g) == rank_of(op, y) == len(sizes) == rank + 2:
        refuse(
            op,
            f"{g.type}, {y.type} and the output_shape {list(sizes)} do not have {rank + 2} axes",
            g,
            y,
            fix="give [examples, ..., channels], [..., outputs, channels] and the whole shape",
        )
    is_first = puts_channels_first(op, data_format, rank)
    g = channels_last(g) if is_first else g
    if is_first:
        sizes = (sizes[0], *sizes[2:], sizes[1])
    x = TensorType(g.dtype, sizes)
    conv = _conv(op, x, y.type, strides, padding, dilations, is_first)
    try:
        made = conv.infer(x, y.type)
    except Mismatch as mismatch:
        refuse_mismatch(op, mismatch, g, y)
    if same_shape(made.shape, g.type.shape) is None:
        refuse(
            op,
            f"the output_shape gives {x}, of which the convolution makes {made}, not {g.type}",
            g,
            y,
            fix="change output_shape, strides or padding",
        )
    z = with_sizes(conv.transposed(with_sizes(g, made.shape), y, sizes[1:-1]), sizes)
    return channels_first(z) if is_first else z


__all__ = [
    "atrous_conv2d",
    "atrous_conv2d_transpose",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "conv_transpose",
    "convolution",
    "depthwise_conv2d",
    "depthwise_conv2d_backprop_input",
    "separable_conv2d",
]
