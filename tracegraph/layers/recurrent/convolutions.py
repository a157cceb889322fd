"""Recurrent layers whose products are convolutions: long short-term memory of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from tracegraph.array.arguments import given, refuse
from tracegraph.array.creation import zeros_like
from tracegraph.array.joining import split
from tracegraph.core.types import float32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import along_channels, format_of
from tracegraph.layers.recurrent.cells import LSTMCell
from tracegraph.layers.recurrent.rnn import Outputs, OwnRNN
from tracegraph.layers.windows.convolutions import CONVOLUTIONS, WindowedLayer

if TYPE_CHECKING:
    from typing import Unpack

    from tracegraph.layers.recurrent.kinds import RecurrentSettings
    from tracegraph.typing import (
        ActivationLike,
        ConstraintLike,
        DTypeLike,
        InitializerLike,
        RegularizerLike,
        Window,
    )

    class _ConvLSTMSettings(RecurrentSettings, total=False):
        """What the constructors take besides what the overloads name."""

        data_format: str | None
        dilation_rate: Window
        activation: ActivationLike
        recurrent_activation: ActivationLike
        use_bias: bool
        unit_forget_bias: bool


class ConvLSTM1DCell(LSTMCell, WindowedLayer):
    """One step of `ConvLSTM1D`: an `LSTMCell` with convolutions in place of products."""

    rank = 1

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window,
        padding: str,
        data_format: str | None,
        dilation_rate: Window,
        **of_lstm: Any,
    ) -> None:
        super().__init__(filters, **of_lstm)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        self.filters = filters
        self.gate_axis = -self.rank - 1 if self._is_first else -1

    def build(self, input_shape: Any) -> None:
        wide = self.gates * self.filters
        shape = [*self.kernel_size, self._channels(input_shape), wide]
        self.kernel = self._make("kernel", shape)
        shape = [*self.kernel_size, self.filters, wide]
        self.recurrent_kernel = self._make("recurrent", shape, name="recurrent_kernel")
        if self.use_bias:
            self._make_bias(wide)

    def _input_bias(self) -> Any:
        return along_channels(self.bias, self.rank if self._is_first else 0)

    def _of_inputs(self, x: Any) -> Tensor:
        return self._convolved(x, self.kernel, self.strides, self.dilation_rate)

    def _of_state(self, h: Any) -> Tensor:
        form = format_of(self.data_format)
        return CONVOLUTIONS[self.rank](h, self.recurrent_kernel, 1, "SAME", form)

    def get_initial_state(self, batch_size: Any) -> list[Tensor]:
        op = type(self).__name__
        refuse(op, "the size of the state is that of the outputs", fix="leave out initial_state")

    def state_before(self, inputs: Any) -> list[Tensor]:
        """The state before a step with these inputs: zeros."""
        state = zeros_like(split(self.project(inputs, (None, None)), self.gates, self.gate_axis)[0])
        return [state] * self.states


class ConvLSTM2DCell(ConvLSTM1DCell):
    rank = 2


class ConvLSTM3DCell(ConvLSTM1DCell):
    rank = 3


class ConvLSTM1D(OwnRNN[Outputs]):
    """`LSTM` along the steps of [examples, steps, rows, channels]; see `ConvLSTM2D`.

    >>> tg.layers.ConvLSTM1D(3, 2)(tg.ones([2, 4, 5, 1])).shape
    TensorShape([2, 4, 3])
    """

    cell_type = ConvLSTM1DCell
    axes = 4
    _right_inputs = "give [examples, steps, rows, channels]"

    @overload
    def __init__(
        self: ConvLSTM1D[list[Tensor]],
        filters: int,
        kernel_size: Window,
        strides: Window = ...,
        padding: str = ...,
        *,
        return_state: Literal[True],
        **settings: Unpack[_ConvLSTMSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: ConvLSTM1D[Tensor],
        filters: int,
        kernel_size: Window,
        strides: Window = ...,
        padding: str = ...,
        *,
        return_state: Literal[False] = ...,
        **settings: Unpack[_ConvLSTMSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = ...,
        padding: str = ...,
        *,
        return_state: bool,
        **settings: Unpack[_ConvLSTMSettings],
    ) -> None: ...
    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Window = 1,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        name: str | None = None,
        dtype: DTypeLike = float32,
        trainable: bool = True,
    ) -> None:
        self._begin(given(locals()))

    def _first_state(self, x: Tensor) -> Any:
        return self.cell.state_before(x[0])  # type: ignore[index]


class ConvLSTM2D(ConvLSTM1D[Outputs]):
    """`LSTM` along the steps of [examples, steps, height, width, channels], with convolutions in
    place of products (Shi and others 2015).

    - `filters`: the number of channels of h and c; `kernel_size`, `strides`, `padding`,
      `data_format`, `dilation_rate`: as in `Conv2D`, for the convolution of the inputs. The
      convolution of h has stride 1 and padding "same".
    - The other arguments are those of `LSTM`; so are those of the call.

    The outputs are [examples, height, width, filters], or those of all steps.

    >>> layer = tg.layers.ConvLSTM2D(3, 2, padding="same", return_sequences=True)
    >>> layer(tg.ones([2, 4, 5, 5, 1])).shape
    TensorShape([2, 4, 5, 5, 3])
    """

    cell_type = ConvLSTM2DCell
    axes = 5
    _right_inputs = "give [examples, steps, height, width, channels]"


class ConvLSTM3D(ConvLSTM1D[Outputs]):
    """`LSTM` along the steps of [examples, steps, depth, height, width, channels]; see
    `ConvLSTM2D`.

    >>> tg.layers.ConvLSTM3D(3, 2)(tg.ones([2, 4, 5, 5, 5, 1])).shape
    TensorShape([2, 4, 4, 4, 3])
    """

    cell_type = ConvLSTM3DCell
    axes = 6
    _right_inputs = "give [examples, steps, depth, height, width, channels]"
