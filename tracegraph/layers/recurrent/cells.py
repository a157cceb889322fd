"""Cells of recurrent layers: one step of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tracegraph import nest
from tracegraph.array.arguments import as_flag, as_list, as_number, refuse, refuse_kind
from tracegraph.array.creation import ones_like, zeros
from tracegraph.array.joining import concat, split, unstack
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, activation_of, known_last, positive, takes
from tracegraph.layers.drawing import DrawingLayer
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.product import matmul
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    InitializerLike,
    Nest,
    RegularizerLike,
    SizeLike,
)

if TYPE_CHECKING:
    #: Dropout factors for the inputs of one step, and for the state.
    Masks = tuple[Tensor | None, Tensor | None]


class Cell(DrawingLayer):
    """One step: a product with the inputs, which does not need the state, and the rest."""

    #: The number of gates, or products, in a step.
    gates = 1
    #: The number of tensors in the state.
    states = 1

    @takes_options
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
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self.units = positive(op, "units", units)
        self.activation = activation_of(activation) or as_tensor
        self.use_bias = as_flag(op, "use_bias", use_bias)
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe(
            "recurrent", recurrent_initializer, recurrent_regularizer, recurrent_constraint
        )
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)
        self.dropout = as_number(op, "dropout", dropout, low=0, below=1)
        rate = as_number(op, "recurrent_dropout", recurrent_dropout, low=0, below=1)
        self.recurrent_dropout = rate
        self._set_seed(seed)

    @property
    def state_size(self) -> int | list[int]:
        """The size of the state, or a list of sizes."""
        return self.units if self.states == 1 else [self.units] * self.states

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self.units

    def build(self, input_shape: Any) -> None:
        wide = self.gates * self.units
        self.kernel = self._make("kernel", [known_last(self, input_shape), wide])
        self.recurrent_kernel = self._make("recurrent", [self.units, wide], name="recurrent_kernel")
        if self.use_bias:
            self._make_bias(wide)

    def _make_bias(self, wide: int) -> None:
        self.bias = self._make("bias", [wide])

    def get_initial_state(self, batch_size: SizeLike) -> list[Tensor]:
        """The state before the first step: zeros."""
        return [zeros([batch_size, self.units], self.compute_dtype) for _ in range(self.states)]

    if not TYPE_CHECKING:  # a type checker sees the call of a Layer

        def __call__(self, inputs: Nest, states: Nest = None, **arguments: Any) -> Any:
            """The output of one step, and the list of new states."""
            if states is None:
                name = type(self).__name__
                fix = "call it as cell(inputs, states), with cell.get_initial_state(batch_size)"
                refuse(name, "it was called without states", fix=f"{fix} first")
            return self._called(inputs, [states], arguments)

    def call(
        self, inputs: Tensor, states: Nest, training: bool | None = False
    ) -> tuple[Tensor, list[Tensor]]:
        before = listed(states)
        masks = self.masks(inputs, before, training)
        return self.advance(self.project(inputs, masks), before, masks)

    def masks(self, inputs: Tensor, states: Sequence[Tensor], training: bool | None) -> Masks:
        """Dropout factors for the inputs of one step, and for the state, shared by all steps of a
        sequence (Gal and Ghahramani 2015); None for no dropout."""
        is_training = as_flag(type(self).__name__, "training", training)
        parts = ((inputs, self.dropout), (states[0], self.recurrent_dropout))
        of_inputs, of_state = (
            self._dropped(ones_like(x), rate) if is_training and rate else None for x, rate in parts
        )
        return of_inputs, of_state

    def project(self, inputs: Tensor, masks: Masks) -> Tensor:
        """inputs @ kernel + bias, for one step or for a whole sequence with steps first."""
        x = inputs if masks[0] is None else multiply(inputs, masks[0])
        y = self._of_inputs(x)
        return add(y, self._input_bias()) if self.use_bias else y

    def _of_inputs(self, x: Any) -> Tensor:
        return matmul(x, self.kernel)

    def _of_state(self, h: Any) -> Tensor:
        return matmul(h, self.recurrent_kernel)

    def _input_bias(self) -> Any:
        return self.bias

    def advance(
        self, projected: Tensor, states: Sequence[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        """The output and the new states, given projected inputs."""
        raise NotImplementedError

    def _recurrent(self, state: Tensor, masks: Masks) -> Tensor:
        return state if masks[1] is None else multiply(state, masks[1])


class SimpleRNNCell(Cell):
    """h' = activation(x @ kernel + h @ recurrent_kernel + bias), one step (Elman 1990).

    - `units`: the size of the state.
    - `kernel_*`, `recurrent_*`, `bias_*`: initializers, regularizers and constraints of the
      weights; the other arguments are those of `LSTMCell`.

    Call it as cell(inputs, states), with inputs [examples, features] and a list of one state
    [examples, units]; it returns the output and the list of the next state.

    >>> cell = tg.layers.SimpleRNNCell(3)
    >>> y, states = cell(tg.ones([2, 4]), cell.get_initial_state(2))
    >>> y.shape
    TensorShape([2, 3])
    """

    def advance(
        self, projected: Tensor, states: Sequence[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        h = self._recurrent(states[0], masks)
        y = self.activation(add(projected, matmul(h, self.recurrent_kernel)))
        return y, [y]


class LSTMCell(Cell):
    """One step of long short-term memory (Hochreiter and Schmidhuber 1997; Gers and others 2000).

    With i, f, g, o = split(x @ kernel + h @ recurrent_kernel + bias), in this order,
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g) and h' = sigmoid(o) * tanh(c').

    - `units`: the size of h and c.
    - `activation`, `recurrent_activation`: replacements for tanh and sigmoid.
    - `unit_forget_bias`: whether to initialize the bias of f to ones (Jozefowicz and others 2015).
    - `dropout`, `recurrent_dropout`: the dropout rates, in training, for the inputs and for h.

    Call it as cell(inputs, [h, c]); it returns h' and [h', c'].

    >>> cell = tg.layers.LSTMCell(3)
    >>> y, (h, c) = cell(tg.ones([2, 4]), cell.get_initial_state(2))
    >>> y.shape
    TensorShape([2, 3])
    """

    gates, states = 4, 2
    #: The axis along which the gates are concatenated.
    gate_axis = -1

    @takes_options
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
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            *(kernel_initializer, recurrent_initializer, bias_initializer),
            *(kernel_regularizer, recurrent_regularizer, bias_regularizer),
            *(kernel_constraint, recurrent_constraint, bias_constraint),
            *(dropout, recurrent_dropout, seed),
            **options,
        )
        self.recurrent_activation = activation_of(recurrent_activation) or as_tensor
        self.unit_forget_bias = as_flag("LSTMCell", "unit_forget_bias", unit_forget_bias)

    def _make_bias(self, wide: int) -> None:
        start = self._forgetting_bias if self.unit_forget_bias else None
        self.bias = self._make("bias", [wide], initializer=start)

    def _forgetting_bias(self, shape: Any, dtype: Any) -> Tensor:
        own: Any = vars(self)["bias_initializer"]
        n = self.units
        ones = zeros([n], dtype) + 1  # type: ignore[operator]
        return concat([own([n], dtype), ones, own([2 * n], dtype)], 0)

    def advance(
        self, projected: Tensor, states: Sequence[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        h, c = states
        product = self._of_state(self._recurrent(h, masks))
        i, f, g, o = split(add(projected, product), 4, self.gate_axis)
        kept = multiply(self.recurrent_activation(f), c)
        c = add(kept, multiply(self.recurrent_activation(i), self.activation(g)))
        h = multiply(self.recurrent_activation(o), self.activation(c))
        return h, [h, c]


class GRUCell(Cell):
    """One step of a gated recurrent unit (Cho and others 2014).

    With z and r = sigmoid(x @ kernel + h @ recurrent_kernel + bias), whose third part belongs to g,
    h' = z * h + (1 - z) * tanh(x @ kernel_g + r * (h @ recurrent_kernel_g + bias)).

    - `units`: the size of h.
    - `reset_after`: False for (r * h) @ recurrent_kernel_g, as in the first version of the paper;
      then there is one bias. Otherwise there are two, one of them for the product with h.
    - The other arguments are those of `LSTMCell`.

    Call it as cell(inputs, [h]); it returns h' and [h'].

    >>> cell = tg.layers.GRUCell(3)
    >>> y, states = cell(tg.ones([2, 4]), cell.get_initial_state(2))
    >>> y.shape
    TensorShape([2, 3])
    """

    gates = 3

    @takes_options
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
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            *(kernel_initializer, recurrent_initializer, bias_initializer),
            *(kernel_regularizer, recurrent_regularizer, bias_regularizer),
            *(kernel_constraint, recurrent_constraint, bias_constraint),
            *(dropout, recurrent_dropout, seed),
            **options,
        )
        self.recurrent_activation = activation_of(recurrent_activation) or as_tensor
        self.reset_after = as_flag("GRUCell", "reset_after", reset_after)

    def _make_bias(self, wide: int) -> None:
        self.bias = self._make("bias", [2, wide] if self.reset_after else [wide])

    def _input_bias(self) -> Any:
        return unstack(self.bias)[0] if self.reset_after else self.bias

    def advance(
        self, projected: Tensor, states: Sequence[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        h = states[0]
        seen = self._recurrent(h, masks)
        n = self.units
        x_gates, x_new = split(projected, [2 * n, n], -1)
        if self.reset_after:
            product = matmul(seen, self.recurrent_kernel)
            if self.use_bias:
                product = add(product, unstack(self.bias)[1])
            gates, new = split(product, [2 * n, n], -1)
            z, r = split(self.recurrent_activation(add(x_gates, gates)), 2, -1)
            new = multiply(r, new)
        else:
            of_gates, of_new = split(self.recurrent_kernel, [2 * n, n], -1)
            gates = add(x_gates, matmul(seen, of_gates))
            z, r = split(self.recurrent_activation(gates), 2, -1)
            new = matmul(multiply(r, seen), of_new)
        g = self.activation(add(x_new, new))
        h = add(multiply(z, h), multiply(subtract(1.0, z), g))
        return h, [h]


class StackedRNNCells(Layer):
    """Cells applied one after the other, as a single cell whose state is the list of their states.

    >>> cell = tg.layers.StackedRNNCells([tg.layers.LSTMCell(3), tg.layers.LSTMCell(5)])
    >>> tg.layers.RNN(cell)(tg.ones([2, 7, 4])).shape
    TensorShape([2, 5])
    """

    @takes_options
    def __init__(self, cells: Sequence[Any], **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.cells = [*as_list("StackedRNNCells", "cells", cells)]
        if not self.cells:
            fact = "StackedRNNCells: there are no cells"
            fail(SignatureError, fact, fix="give at least one, such as tg.layers.GRUCell(4)")
        for cell in self.cells:
            check_cell("StackedRNNCells", cell)

    @property
    def state_size(self) -> Any:
        """The list of the cells' state sizes."""
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> Any:
        """The size of the output of the last cell."""
        return self.cells[-1].output_size

    def get_initial_state(self, batch_size: SizeLike) -> list[Any]:
        """The states of all cells before the first step."""
        return [initial_state_of(cell, batch_size, self.compute_dtype) for cell in self.cells]

    def build(self, input_shape: Any) -> None:
        shape: Any = [*input_shape]
        for cell in self.cells:
            build_cell(cell, shape)
            shape = [shape[0], _first_size(getattr(cell, "output_size", cell.state_size))]

    if not TYPE_CHECKING:  # a type checker sees the call of a Layer

        def __call__(self, inputs: Nest, states: Nest = None, **arguments: Any) -> Any:
            """The output of the last cell, and the list of new states."""
            return self._called(inputs, [states], arguments)

    def call(
        self, inputs: Tensor, states: Sequence[Nest], training: bool | None = False
    ) -> tuple[Tensor, list[Any]]:
        found: list[Any] = []
        for cell, before in zip(self.cells, states, strict=True):
            inputs, after = stepped(cell, inputs, before, training)
            found.append(after)
        return inputs, found


def listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def check_cell(op: str, cell: Any) -> None:
    if isinstance(cell, type) or not callable(cell) or not hasattr(type(cell), "state_size"):
        if not isinstance(cell, type) and "state_size" in getattr(cell, "__dict__", {}):
            return
        fix = "give one such as tg.layers.LSTMCell(8), or a layer with a state_size"
        refuse_kind(op, "a cell makes one step", cell, fix=fix)


def build_cell(cell: Any, shape: Any) -> None:
    if isinstance(cell, Layer) and not cell.built:
        cell.build(shape)


def _first_size(size: Any) -> Any:
    return _first_size(size[0]) if isinstance(size, (list, tuple)) else size


def initial_state_of(cell: Any, batch_size: Any, dtype: Any) -> Any:
    """The initial state that a cell defines, or zeros of its `state_size`."""
    if hasattr(type(cell), "get_initial_state"):
        return listed(cell.get_initial_state(batch_size=batch_size))
    return [zeros([batch_size, size], dtype) for size in nest.flatten(cell.state_size)]


def stepped(cell: Any, inputs: Any, states: Any, training: Any) -> tuple[Any, Any]:
    """The output of a cell, and its states in the structure of the previous ones."""
    options = {"training": training} if takes(cell, "training") else {}
    output, after = cell(inputs, states, **options)
    return output, nest.pack_sequence_as(states, nest.flatten(after))
