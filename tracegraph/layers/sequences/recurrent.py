"""Recurrent layers: a cell computes one step, and a layer scans it along a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, overload

from tracegraph import nest, nn, regularizers
from tracegraph.array.arguments import (
    as_flag,
    as_list,
    as_number,
    rank_of,
    refuse,
    refuse_kind,
    sizes_of,
)
from tracegraph.array.creation import ones_like, zeros, zeros_like
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import concat, split, stack, unstack
from tracegraph.array.shaping import expand_dims, reverse, transpose
from tracegraph.control_flow.loops import scan_with_results
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, activation_of, flags_of, known_last, positive, takes
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.product import matmul
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    DTypeLike,
    InitializerLike,
    Nest,
    RegularizerLike,
    SizeLike,
    TensorLike,
)

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeVar as TypeVarWithDefault

    #: What a recurrent layer returns: a Tensor, or with `return_state` a list of them.
    Outputs = TypeVarWithDefault("Outputs", default=Any)

    #: Dropout factors for the inputs of one step, and for the state.
    Masks = tuple[Tensor | None, Tensor | None]
else:  # defaults come with Python 3.13
    Outputs = TypeVar("Outputs")


class _Cell(Layer):
    """One step: a product with the inputs, which does not need the state, and the rest."""

    #: The number of gates, or products, in a step.
    gates = 1
    #: The number of tensors in the state.
    states = 1

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
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(name, dtype)
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
        self.recurrent_dropout, self.seed = rate, seed

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
        return [zeros([batch_size, self.units], self.dtype) for _ in range(self.states)]

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
        before = _as_list(states)
        masks = self.masks(inputs, before, training)
        return self.advance(self.project(inputs, masks), before, masks)

    def masks(self, inputs: Tensor, states: Sequence[Tensor], training: bool | None) -> Masks:
        """Dropout factors for the inputs of one step, and for the state, shared by all steps of a
        sequence (Gal and Ghahramani 2015); None for no dropout."""
        is_training = as_flag(type(self).__name__, "training", training)
        parts = ((inputs, self.dropout), (states[0], self.recurrent_dropout))
        of_inputs, of_state = (
            nn.dropout(ones_like(x), rate, seed=self.seed) if is_training and rate else None
            for x, rate in parts
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


class SimpleRNNCell(_Cell):
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


class LSTMCell(_Cell):
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
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            *(kernel_initializer, recurrent_initializer, bias_initializer),
            *(kernel_regularizer, recurrent_regularizer, bias_regularizer),
            *(kernel_constraint, recurrent_constraint, bias_constraint),
            *(dropout, recurrent_dropout, seed, name, dtype),
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


class GRUCell(_Cell):
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
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            *(kernel_initializer, recurrent_initializer, bias_initializer),
            *(kernel_regularizer, recurrent_regularizer, bias_regularizer),
            *(kernel_constraint, recurrent_constraint, bias_constraint),
            *(dropout, recurrent_dropout, seed, name, dtype),
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

    def __init__(
        self, cells: Sequence[Any], name: str | None = None, dtype: DTypeLike = float32
    ) -> None:
        super().__init__(name, dtype)
        self.cells = [*as_list("StackedRNNCells", "cells", cells)]
        if not self.cells:
            fact = "StackedRNNCells: there are no cells"
            fail(SignatureError, fact, fix="give at least one, such as tg.layers.GRUCell(4)")
        for cell in self.cells:
            _check_cell("StackedRNNCells", cell)

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
        return [_initial_state(cell, batch_size, self.dtype) for cell in self.cells]

    def build(self, input_shape: Any) -> None:
        shape: Any = [*input_shape]
        for cell in self.cells:
            _build_cell(cell, shape)
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
            inputs, after = _stepped(cell, inputs, before, training)
            found.append(after)
        return inputs, found


class RNN(Layer, Generic[Outputs]):
    """Runs a cell along the steps of [examples, steps, features].

    - `cell`: a cell, a list of cells, or any layer that can be called as cell(inputs, states) and
      has a `state_size`.
    - `return_sequences`: whether to return the outputs of all steps, [examples, steps, features],
      rather than that of the last one.
    - `return_state`: whether to return the states after the last step too, in a list after the
      output.
    - `go_backwards`: whether to start with the last step; outputs are in the order of
      computation.
    - `zero_output_for_mask`: whether the outputs of masked steps are zeros, or repeat the previous
      output.

    Arguments of the call:

    - `initial_state`: the state before the first step, in a list; zeros by default.
    - `mask`: [examples, steps]; a step where it is false does not change the state.

    The number of steps may be open. Raises ShapeError for inputs that do not have three axes, and
    ValueError for an `initial_state` with a different number of tensors than the cell has.

    >>> layer = tg.layers.RNN(tg.layers.LSTMCell(3), return_sequences=True, return_state=True)
    >>> y, h, c = layer(tg.ones([2, 5, 4]))
    >>> y.shape, h.shape
    (TensorShape([2, 5, 3]), TensorShape([2, 3]))
    """

    #: The rank of the inputs.
    axes = 3
    _right_inputs = "give [examples, steps, features]"

    @overload
    def __init__(
        self: RNN[Tensor],
        cell: Layer | Sequence[Layer],
        return_sequences: bool = ...,
        return_state: Literal[False] = ...,
        go_backwards: bool = ...,
        stateful: bool = ...,
        unroll: bool = ...,
        zero_output_for_mask: bool = ...,
        name: str | None = ...,
        dtype: DTypeLike = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: RNN[list[Tensor]],
        cell: Layer | Sequence[Layer],
        return_sequences: bool = ...,
        *,
        return_state: Literal[True],
        go_backwards: bool = ...,
        stateful: bool = ...,
        unroll: bool = ...,
        zero_output_for_mask: bool = ...,
        name: str | None = ...,
        dtype: DTypeLike = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        cell: Layer | Sequence[Layer],
        return_sequences: bool = ...,
        return_state: bool = ...,
        go_backwards: bool = ...,
        stateful: bool = ...,
        unroll: bool = ...,
        zero_output_for_mask: bool = ...,
        name: str | None = ...,
        dtype: DTypeLike = ...,
    ) -> None: ...
    def __init__(
        self,
        cell: Layer | Sequence[Layer],
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(name, dtype)
        cell = StackedRNNCells(cell, dtype=dtype) if isinstance(cell, (list, tuple)) else cell
        op = type(self).__name__
        _check_cell(op, cell)
        self.cell = cell
        self.return_sequences = as_flag(op, "return_sequences", return_sequences)
        self.return_state = as_flag(op, "return_state", return_state)
        self.go_backwards = as_flag(op, "go_backwards", go_backwards)
        self.zero_output_for_mask = as_flag(op, "zero_output_for_mask", zero_output_for_mask)
        if as_flag(op, "stateful", stateful):
            fix = "use return_state=True, and give the state to the next call: initial_state=states"
            fail(SignatureError, f"{op}: layers keep no state between calls", fix=fix)
        self.unroll = as_flag(op, "unroll", unroll)

    if not TYPE_CHECKING:  # a type checker sees the call of a Layer

        def __call__(self, sequences: Nest, *more: Any, **arguments: Any) -> Any:
            """The outputs, and the states; see the class for the arguments."""
            return self._called(sequences, more, arguments)

    def build(self, input_shape: Any) -> None:
        if isinstance(input_shape, dict) or len(input_shape) != self.axes:
            fact = f"inputs of the shape {input_shape} do not have {self.axes} axes"
            refuse(type(self).__name__, fact, fix=self._right_inputs)
        _build_cell(self.cell, [input_shape[0], *input_shape[2:]])

    def get_initial_state(self, batch_size: SizeLike) -> list[Any]:
        """The state before the first step."""
        return _initial_state(self.cell, batch_size, self.dtype)

    def call(
        self,
        sequences: TensorLike,
        initial_state: Nest = None,
        mask: TensorLike | None = None,
        training: bool | None = False,
    ) -> Outputs:
        x = as_tensor(sequences)
        op = type(self).__name__
        if rank_of(op, x) != self.axes:
            refuse(op, f"{x.type} does not have {self.axes} axes", x, fix=self._right_inputs)
        x = transpose(x, [1, 0, *range(2, self.axes)])
        kept = None if mask is None else _widened(transpose(as_tensor(mask)), self.axes)
        if self.go_backwards:
            x = reverse(x, [0])
            kept = None if kept is None else reverse(kept, [0])
        start = self._start(initial_state, x)
        last, final, outputs = self._run(x, start, kept, training)
        y = last if outputs is None else transpose(outputs, [1, 0, *range(2, outputs.ndim)])
        return [y, *_as_list(final)] if self.return_state else y  # type: ignore[return-value]

    def _first_state(self, x: Tensor) -> Any:
        return self.get_initial_state(sizes_of(type(self).__name__, x)[1])

    def _start(self, given: Any, x: Tensor) -> Any:
        """The state before the first step of [steps, examples, ...]."""
        own = self._first_state(x)
        if given is None:
            return own
        values, wanted = nest.flatten(given), len(nest.flatten(own))
        if len(values) != wanted:
            op = type(self).__name__
            fact = f"{op}: initial_state has {len(values)} tensors, and the cell {wanted}"
            fail(SignatureError, fact, fix="give a list with one for each of cell.state_size")
        return nest.pack_sequence_as(own, [as_tensor(x, self.dtype) for x in values])

    def _run(self, x: Tensor, start: Any, kept: Any, training: Any) -> tuple[Any, Any, Any]:
        """The output of the last step, the states after it, and the outputs of all, or None."""
        step, rows = self._step_of(x, start, training)
        if self.unroll:
            return self._unrolled(step, rows, start, kept)
        # The outputs of a step have the type of the first one's.
        first = step(nest.map_structure(_row, rows), start)[0]
        blank = zeros_like(first)

        def along(states: Any, row: Any) -> Any:
            (_, before), own = states, row[0]
            y, after = self._masked(step, own, before, states[0], row[1:])
            return (y, after), (y if self.return_sequences else ())

        elems = (rows,) if kept is None else (rows, kept)
        (last, final), outputs = scan_with_results(
            type(self).__name__, along, (blank, start), elems
        )
        return last, final, outputs if self.return_sequences else None

    def _masked(self, step: Any, row: Any, before: Any, last: Any, kept: Sequence[Any]) -> Any:
        """A step. If it is masked, the states stay, and the output is zeros or the previous one."""
        y, after = step(row, before)
        if not kept:
            return y, after
        other = zeros_like(y) if self.zero_output_for_mask else last
        is_kept = flags_of(kept[0])
        after = nest.map_structure(lambda new, old: where(is_kept, new, old), after, before)
        return where(is_kept, y, other), after

    def _unrolled(self, step: Any, rows: Tensor, start: Any, kept: Any) -> tuple[Any, Any, Any]:
        outputs: list[Any] = []
        states, flags = start, None if kept is None else unstack(kept)
        for k, row in enumerate(unstack(rows)):
            last = outputs[-1] if outputs else zeros_like(step(row, states)[0])
            y, states = self._masked(step, row, states, last, () if flags is None else (flags[k],))
            outputs.append(y)
        return outputs[-1], states, stack(outputs) if self.return_sequences else None

    def _step_of(self, x: Tensor, start: Any, training: Any) -> tuple[Any, Any]:
        """A function of a row and the states, and the rows. For our own cells, the product with
        the inputs is computed for all steps at once."""
        cell = self.cell
        if not isinstance(cell, _Cell):
            return (lambda row, states: _stepped(cell, row, states, training)), x
        masks = cell.masks(_row(x), start, training)
        return (lambda row, states: cell.advance(row, states, masks)), cell.project(x, masks)


def _widened(x: Tensor, axes: int) -> Tensor:
    """x with axes of size 1 appended, up to `axes` in all."""
    for axis in range(x.ndim, axes):
        x = expand_dims(x, axis)
    return x


def _row(x: Any) -> Any:
    return as_tensor(x)[0]  # type: ignore[index]


def _as_list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _check_cell(op: str, cell: Any) -> None:
    if isinstance(cell, type) or not callable(cell) or not hasattr(type(cell), "state_size"):
        if not isinstance(cell, type) and "state_size" in getattr(cell, "__dict__", {}):
            return
        fix = "give one such as tg.layers.LSTMCell(8), or a layer with a state_size"
        refuse_kind(op, "a cell makes one step", cell, fix=fix)


def _build_cell(cell: Any, shape: Any) -> None:
    if isinstance(cell, Layer) and not cell.built:
        cell.build(shape)


def _first_size(size: Any) -> Any:
    return _first_size(size[0]) if isinstance(size, (list, tuple)) else size


def _initial_state(cell: Any, batch_size: Any, dtype: Any) -> Any:
    """The initial state that a cell defines, or zeros of its `state_size`."""
    if hasattr(type(cell), "get_initial_state"):
        return cell.get_initial_state(batch_size)
    return [zeros([batch_size, size], dtype) for size in nest.flatten(cell.state_size)]


def _stepped(cell: Any, inputs: Any, states: Any, training: Any) -> tuple[Any, Any]:
    """The output of a cell, and its states in the structure of the previous ones."""
    options = {"training": training} if takes(cell, "training") else {}
    output, after = cell(inputs, states, **options)
    return output, nest.pack_sequence_as(states, nest.flatten(after))


#: The arguments of `RNN` that its subclasses with cells of ours share.
_WAYS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "unroll",
    "zero_output_for_mask",
)


class OwnRNN(RNN[Outputs]):
    """A layer with one of our cells, to which most arguments go."""

    cell_type: type[_Cell]

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Splits the arguments of `__init__` into the cell's and the layer's own."""
        own = dict(arguments)
        dtype, name = own.pop("dtype"), own.pop("name")
        activity = own.pop("activity_regularizer")
        own.pop("use_cudnn", None)  # there is only one implementation
        along = {way: own.pop(way) for way in _WAYS if way in own}
        cell = self.cell_type(**own, dtype=dtype)
        RNN.__init__(self, cell, **along, name=name, dtype=dtype)
        self.activity_regularizer = regularizers.get(activity)
        self.units = cell.units


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an `__init__`, from its local names."""
    return {key: value for key, value in arguments.items() if key not in ("self", "__class__")}


if TYPE_CHECKING:

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
    ) -> None:
        self._begin(given(locals()))
