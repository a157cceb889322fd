"""Recurrent layers with cells of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

from tracegraph.array.arguments import given
from tracegraph.core.types import float32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.recurrent.cells import GRUCell, LSTMCell, SimpleRNNCell
from tracegraph.layers.recurrent.rnn import Outputs, OwnRNN
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    DTypeLike,
    InitializerLike,
    RegularizerLike,
)

if TYPE_CHECKING:
    from typing import Unpack

    class RecurrentSettings(TypedDict, total=False):
        """What all recurrent layers take, besides `return_state`."""

        kernel_initializer: InitializerLike
        recurrent_initializer: InitializerLike
        bias_initializer: InitializerLike
        kernel_regularizer: RegularizerLike
        recurrent_regularizer: RegularizerLike
        bias_regularizer: RegularizerLike
        activity_regularizer: RegularizerLike
        kernel_constraint: ConstraintLike
        recurrent_constraint: ConstraintLike
        bias_constraint: ConstraintLike
        dropout: float
        recurrent_dropout: float
        return_sequences: bool
        go_backwards: bool
        stateful: bool
        seed: int | None
        name: str | None
        dtype: DTypeLike
        trainable: bool

    class _CellSettings(RecurrentSettings, total=False):
        unroll: bool
        zero_output_for_mask: bool

    class _LSTMSettings(_CellSettings, total=False):
        unit_forget_bias: bool
        use_cudnn: bool | str

    class _GRUSettings(_CellSettings, total=False):
        reset_after: bool
        use_cudnn: bool | str


class SimpleRNN(OwnRNN[Outputs]):
    """`SimpleRNNCell` along the steps of [examples, steps, features]. The arguments are those of
    the cell and of `RNN`; so are those of the call.

    >>> tg.layers.SimpleRNN(3)(tg.ones([2, 5, 4])).shape
    TensorShape([2, 3])
    """

    cell_type = SimpleRNNCell

    @overload
    def __init__(
        self: SimpleRNN[list[Tensor]],
        units: int,
        activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[True],
        **settings: Unpack[_CellSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: SimpleRNN[Tensor],
        units: int,
        activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[False] = ...,
        **settings: Unpack[_CellSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        units: int,
        activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: bool,
        **settings: Unpack[_CellSettings],
    ) -> None: ...
    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        zero_output_for_mask: bool = False,
        name: str | None = None,
        dtype: DTypeLike = float32,
        trainable: bool = True,
    ) -> None:
        self._begin(given(locals()))


class LSTM(OwnRNN[Outputs]):
    """`LSTMCell` along the steps of [examples, steps, features]. The arguments are those of the
    cell and of `RNN`; so are those of the call. The state is [h, c].

    >>> y, h, c = tg.layers.LSTM(3, return_state=True)(tg.ones([2, 5, 4]))
    >>> y.shape
    TensorShape([2, 3])
    """

    cell_type = LSTMCell

    @overload
    def __init__(
        self: LSTM[list[Tensor]],
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[True],
        **settings: Unpack[_LSTMSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: LSTM[Tensor],
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[False] = ...,
        **settings: Unpack[_LSTMSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: bool,
        **settings: Unpack[_LSTMSettings],
    ) -> None: ...
    def __init__(
        self,
        units: int,
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
        unroll: bool = False,
        use_cudnn: bool | str = "auto",
        zero_output_for_mask: bool = False,
        name: str | None = None,
        dtype: DTypeLike = float32,
        trainable: bool = True,
    ) -> None:
        self._begin(given(locals()))


class GRU(OwnRNN[Outputs]):
    """`GRUCell` along the steps of [examples, steps, features]. The arguments are those of the cell
    and of `RNN`; so are those of the call.

    >>> tg.layers.GRU(3, return_sequences=True)(tg.ones([2, 5, 4])).shape
    TensorShape([2, 5, 3])
    """

    cell_type = GRUCell

    @overload
    def __init__(
        self: GRU[list[Tensor]],
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[True],
        **settings: Unpack[_GRUSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GRU[Tensor],
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: Literal[False] = ...,
        **settings: Unpack[_GRUSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        units: int,
        activation: ActivationLike = ...,
        recurrent_activation: ActivationLike = ...,
        use_bias: bool = ...,
        *,
        return_state: bool,
        **settings: Unpack[_GRUSettings],
    ) -> None: ...
    def __init__(
        self,
        units: int,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "orthogonal",
        bias_initializer: InitializerLike = "zeros",
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
        unroll: bool = False,
        reset_after: bool = True,
        use_cudnn: bool | str = "auto",
        zero_output_for_mask: bool = False,
        name: str | None = None,
        dtype: DTypeLike = float32,
        trainable: bool = True,
    ) -> None:
        self._begin(given(locals()))
