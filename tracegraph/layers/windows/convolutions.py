"""Convolutions: plain, transposed, depthwise, and separable."""

from __future__ import annotations

from typing import Any, Unpack

from tracegraph import nn
from tracegraph.array.arguments import rank_of, refuse, sizes_of
from tracegraph.array.shaping import pad, reshape
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import (
    Affine,
    Layer,
    format_of,
    is_channels_first,
    known,
    padding_of,
    positive,
    window,
)
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.nn.windows import reaches
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    InitializerLike,
    RegularizerLike,
    Window,
)

CONVOLUTIONS: Any = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}


class WindowedLayer(Layer):
    """Common to all convolutions: windows over `rank` axes, and the position of the channels."""

    #: The number of spatial axes.
    rank = 0
    #: Values of `padding` besides "valid" and "same".
    other_paddings: tuple[str, ...] = ()

    def _set_windows(
        self, kernel_size: Any, strides: Any, padding: Any, data_format: Any, dilation_rate: Any
    ) -> None:
        op, rank = type(self).__name__, self.rank
        self.kernel_size = window(op, "kernel_size", kernel_size, rank)
        self.strides = window(op, "strides", strides, rank)
        self.padding = padding_of(op, padding, *self.other_paddings)
        self.data_format = data_format
        self._is_first = is_channels_first(op, data_format)
        self.dilation_rate = window(op, "dilation_rate", dilation_rate, rank)
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            fact = f"{op}: strides are {self.strides}, and dilation_rate is {self.dilation_rate}"
            fail(SignatureError, fact, fix="use 1 for one of them")

    def _channels(self, input_shape: Any) -> int:
        if isinstance(input_shape, dict) or len(input_shape) < self.rank + 2:
            op, shape = type(self).__name__, input_shape
            axes = self.rank + 2
            fact = f"inputs of the shape {shape}, and they have {axes} axes"
            refuse(op, fact, fix="give [examples, ..., channels]")
        return known(self, input_shape, 1 if self._is_first else len(input_shape) - 1)

    def _convolved(self, x: Any, kernel: Any, strides: Any, gaps: Any) -> Tensor:
        padding = self.padding
        if padding == "CAUSAL":
            x, padding = self._after_zeros(as_tensor(x)), "VALID"
        form = format_of(self.data_format)
        return CONVOLUTIONS[self.rank](x, kernel, strides, padding, form, gaps)

    def _after_zeros(self, x: Tensor) -> Tensor:
        """x with zeros before its steps, as many as a window reaches back."""
        (reach,) = reaches(self.kernel_size, self.dilation_rate)
        margins: list[Any] = [(0, 0)] * rank_of("Conv1D", x)
        margins[2 if self._is_first else 1] = (reach - 1, 0)
        return pad(x, margins)


class _Windowed(WindowedLayer, Affine):
    """A convolution, with a bias and an activation."""


class Conv2D(_Windowed):
    """activation(convolution of x with the kernel + bias), over height and width

    - `filters`: the number of outputs; `kernel_size`, `strides`, `dilation_rate`: one int, or one
      per spatial axis; `padding`: "valid" or "same"; `groups`: splits the channels into groups,
      each of which computes its share of the outputs.
    - `data_format`: "channels_last" for inputs [examples, height, width, channels], the default,
      or "channels_first" for [examples, channels, height, width].
    - The other arguments are those of `Dense`.

    The number of channels must be known. Raises ValueError for groups that do not divide both the
    channels and the filters, and for strides and dilations that are both above 1.

    >>> tg.layers.Conv2D(8, 3, padding="same")(tg.ones([1, 5, 5, 2])).shape
    TensorShape([1, 5, 5, 8])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Window = 1,
        groups: int = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, **options)
        self.filters = positive(type(self).__name__, "filters", filters)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        self.groups = positive(type(self).__name__, "groups", groups)
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        channels = self._channels(input_shape)
        if channels % self.groups or self.filters % self.groups:
            fail(
                SignatureError,
                f"{type(self).__name__}: {channels} channels and {self.filters} filters do not "
                f"fall into {self.groups} groups",
                fix="use a number of groups that divides both",
            )
        shape = [*self.kernel_size, channels // self.groups, self.filters]
        self.kernel = self._make("kernel", shape)
        self._make_bias(self.filters)

    def call(self, inputs: Tensor) -> Tensor:
        y = self._convolved(inputs, self.kernel, self.strides, self.dilation_rate)
        return self._finished(y, self._is_first)


class Conv1D(Conv2D):
    """activation(convolution of x with the kernel + bias), over the steps of [examples, steps,
    channels]

    - `padding`: "valid", "same", or "causal", so that step t of the result does not depend on steps
      after t (van den Oord and others 2016).
    - The other arguments are those of `Conv2D`.

    >>> tg.layers.Conv1D(4, 3, padding="causal")(tg.ones([1, 5, 2])).shape
    TensorShape([1, 5, 4])
    """

    rank = 1
    other_paddings = ("causal",)


class Conv3D(Conv2D):
    """activation(convolution of x with the kernel + bias), over depth, height and width; the
    arguments are those of `Conv2D`.

    >>> tg.layers.Conv3D(4, 2)(tg.ones([1, 3, 4, 5, 2])).shape
    TensorShape([1, 2, 3, 4, 4])
    """

    rank = 3


class Conv2DTranspose(_Windowed):
    """activation(transposed convolution of x with the kernel + bias): enlarges images.

    - `output_padding`: how many elements to add at each end of the result, less than the stride; by
      default as many as are needed to cover all windows.
    - The other arguments are those of `Conv2D`; there are no groups.

    Kernels have shape [height, width, filters, channels]. The output sizes are size * stride for
    padding "same", and (size - 1) * stride + max(kernel, stride) for "valid". The method is that of
    Zeiler and others (2010).

    >>> tg.layers.Conv2DTranspose(3, 2, strides=2)(tg.ones([1, 4, 4, 2])).shape
    TensorShape([1, 8, 8, 3])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        output_padding: Window | None = None,
        data_format: str | None = None,
        dilation_rate: Window = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, **options)
        op = type(self).__name__
        self.filters = positive(op, "filters", filters)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        more = output_padding
        if more is not None:
            more = window(op, "output_padding", more, self.rank, low=0)
            if any(n >= step for n, step in zip(more, self.strides)):
                fact = f"{op}: output_padding is {shown(output_padding)}"
                fail(SignatureError, fact, fix=f"use less than the strides, {self.strides}")
        self.output_padding = more
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        channels = self._channels(input_shape)
        self.kernel = self._make("kernel", [*self.kernel_size, self.filters, channels])
        self._make_bias(self.filters)

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        examples, *rest = sizes_of(type(self).__name__, x)
        spatial = self._enlarged(rest[1:] if self._is_first else rest[:-1])
        channels = self.filters
        sizes = [channels, *spatial] if self._is_first else [*spatial, channels]
        y = nn.conv_transpose(
            x,
            self.kernel,
            [examples, *sizes],
            self.strides,
            self.padding,
            format_of(self.data_format),
            self.dilation_rate,
        )
        return self._finished(y, self._is_first)

    def _enlarged(self, sizes: list[Any]) -> list[Any]:
        reach = reaches(self.kernel_size, self.dilation_rate)
        more = self.output_padding or (None,) * self.rank
        rows = zip(sizes, reach, self.strides, more)
        if self.padding == "VALID":
            return [
                (size - 1) * step + (max(width, step) if extra is None else width + extra)
                for size, width, step, extra in rows
            ]
        return [
            size * step if extra is None else (size - 1) * step + width % 2 + extra
            for size, width, step, extra in rows
        ]


class Conv1DTranspose(Conv2DTranspose):
    """`Conv2DTranspose` for [examples, steps, channels].

    >>> tg.layers.Conv1DTranspose(3, 4, strides=2, padding="same")(tg.ones([1, 5, 2])).shape
    TensorShape([1, 10, 3])
    """

    rank = 1


class Conv3DTranspose(Conv2DTranspose):
    """`Conv2DTranspose` for [examples, depth, height, width, channels].

    >>> tg.layers.Conv3DTranspose(3, 2, strides=2)(tg.ones([1, 2, 2, 2, 2])).shape
    TensorShape([1, 4, 4, 4, 3])
    """

    rank = 3


class DepthwiseConv2D(_Windowed):
    """activation(convolution of each channel by itself + bias)

    - `depth_multiplier`: the number of outputs per channel; output c * depth_multiplier + m comes
      from channel c.
    - The other arguments are those of `Conv2D`; those for the kernel begin with `depthwise_`, and
      it has shape [height, width, channels, depth_multiplier].

    >>> tg.layers.DepthwiseConv2D(3, depth_multiplier=2)(tg.ones([1, 5, 5, 4])).shape
    TensorShape([1, 3, 3, 8])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Window = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        depthwise_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        depthwise_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        depthwise_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, **options)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        count = positive(type(self).__name__, "depth_multiplier", depth_multiplier)
        self.depth_multiplier = count
        self._describe(
            "depthwise", depthwise_initializer, depthwise_regularizer, depthwise_constraint
        )
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        channels = self._channels(input_shape)
        shape = [*self.kernel_size, channels, self.depth_multiplier]
        self.kernel = self._make("depthwise", shape, name="kernel")
        self._make_bias(channels * self.depth_multiplier)

    def call(self, inputs: Tensor) -> Tensor:
        kernel = for_each_channel(self.kernel)
        y = self._convolved(inputs, kernel, self.strides, self.dilation_rate)
        return self._finished(y, self._is_first)


def for_each_channel(kernel: Any) -> Tensor:
    """[..., channels, multiplier] as a kernel with one group per channel."""
    *spatial, channels, multiplier = as_tensor(kernel).type.shape
    return reshape(kernel, [*spatial, 1, channels * multiplier])


class DepthwiseConv1D(DepthwiseConv2D):
    """`DepthwiseConv2D` for [examples, steps, channels]; `padding` may be "causal".

    >>> tg.layers.DepthwiseConv1D(3, padding="causal")(tg.ones([1, 5, 4])).shape
    TensorShape([1, 5, 4])
    """

    rank = 1
    other_paddings = ("causal",)


class SeparableConv2D(_Windowed):
    """A depthwise convolution followed by a 1 x 1 convolution that mixes the channels (Chollet
    2016).

    - `depth_multiplier`: the number of outputs per channel before mixing.
    - The other arguments are those of `Conv2D`; those for the two kernels begin with `depthwise_`
      and `pointwise_`.

    >>> tg.layers.SeparableConv2D(8, 3)(tg.ones([1, 5, 5, 4])).shape
    TensorShape([1, 3, 3, 8])
    """

    rank = 2

    @takes_options
    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Window = 1,
        depth_multiplier: int = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        depthwise_initializer: InitializerLike = "glorot_uniform",
        pointwise_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        depthwise_regularizer: RegularizerLike = None,
        pointwise_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        depthwise_constraint: ConstraintLike = None,
        pointwise_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, **options)
        self.filters = positive(type(self).__name__, "filters", filters)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        count = positive(type(self).__name__, "depth_multiplier", depth_multiplier)
        self.depth_multiplier = count
        self._describe(
            "depthwise", depthwise_initializer, depthwise_regularizer, depthwise_constraint
        )
        self._describe(
            "pointwise", pointwise_initializer, pointwise_regularizer, pointwise_constraint
        )
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        channels = self._channels(input_shape)
        shape = [*self.kernel_size, channels, self.depth_multiplier]
        self.depthwise_kernel = self._make("depthwise", shape, name="depthwise_kernel")
        mixing = [*(1,) * self.rank, channels * self.depth_multiplier, self.filters]
        self.pointwise_kernel = self._make("pointwise", mixing, name="pointwise_kernel")
        self._make_bias(self.filters)

    def call(self, inputs: Tensor) -> Tensor:
        kernel = for_each_channel(self.depthwise_kernel)
        each = self._convolved(inputs, kernel, self.strides, self.dilation_rate)
        form = format_of(self.data_format)
        y = CONVOLUTIONS[self.rank](each, self.pointwise_kernel, 1, "VALID", form)
        return self._finished(y, self._is_first)


class SeparableConv1D(SeparableConv2D):
    """`SeparableConv2D` for [examples, steps, channels]; `padding` may be "causal".

    >>> tg.layers.SeparableConv1D(8, 3)(tg.ones([1, 5, 4])).shape
    TensorShape([1, 3, 8])
    """

    rank = 1
    other_paddings = ("causal",)


Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution1DTranspose, Convolution2DTranspose = Conv1DTranspose, Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
SeparableConvolution1D, SeparableConvolution2D = SeparableConv1D, SeparableConv2D
