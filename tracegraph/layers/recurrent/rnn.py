"""Recurrent layers: a layer runs a cell along the steps of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from tracegraph import nest, regularizers
from tracegraph.array.arguments import as_flag, rank_of, refuse, sizes_of
from tracegraph.array.creation import zeros, zeros_like
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import stack, unstack
from tracegraph.array.shaping import expand_dims, reverse, transpose
from tracegraph.control_flow.loops import scan_with_results
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, flags_of, known
from tracegraph.layers.recurrent.cells import (
    Cell,
    StackedRNNCells,
    build_cell,
    check_cell,
    initial_state_of,
    listed,
    stepped,
)
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.variable import Variable
from tracegraph.typing import Nest, SizeLike, TensorLike

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: What a recurrent layer returns: a Tensor, or with `return_state` a list of them.
    Outputs = TypeVarWithDefault("Outputs", default=Any)
else:  # defaults come with Python 3.13
    Outputs = TypeVar("Outputs")


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
    - `stateful`: whether each call begins with the states that the last one ended with; the
      variables in `states` keep them, and `reset_state` sets them to 0. All calls then have the
      same number of examples, which must be known. Tapes do not go back to earlier calls.
    - `zero_output_for_mask`: whether the outputs of masked steps are zeros, or repeat the previous
      output.

    Arguments of the call:

    - `initial_state`: the state before the first step, in a list; by default zeros, or what the
      last call left where the layer is stateful.
    - `mask`: [examples, steps]; a step where it is false does not change the state.

    The number of steps may be open. Raises ShapeError for inputs that do not have three axes, or
    another number of examples than a stateful layer keeps states for, and ValueError for an
    `initial_state` with a different number of tensors than the cell has.

    >>> layer = tg.layers.RNN(tg.layers.LSTMCell(3), return_sequences=True, return_state=True)
    >>> y, h, c = layer(tg.ones([2, 5, 4]))
    >>> y.shape, h.shape
    (TensorShape([2, 5, 3]), TensorShape([2, 3]))

    A long sequence in parts:

    >>> layer = tg.layers.SimpleRNN(3, stateful=True)
    >>> x = tg.random.normal([2, 6, 4])
    >>> first, whole = layer(x[:, :3]), layer(x[:, 3:])
    >>> layer.reset_state()
    >>> bool(tg.reduce_all(tg.abs(layer(x) - whole) < 1e-5))
    True
    """

    #: The rank of the inputs.
    axes = 3
    _right_inputs = "give [examples, steps, features]"
    #: The states are not weights: as in Keras, `variables` and `get_weights` leave them out.
    _hidden = frozenset(["states"])

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
        **options: Unpack[LayerOptions],
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
        **options: Unpack[LayerOptions],
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
        **options: Unpack[LayerOptions],
    ) -> None: ...
    @takes_options
    def __init__(
        self,
        cell: Layer | Sequence[Layer],
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        if isinstance(cell, (list, tuple)):
            cell = StackedRNNCells(cell, dtype=self._policy)
        op = type(self).__name__
        check_cell(op, cell)
        self.cell = cell
        self.return_sequences = as_flag(op, "return_sequences", return_sequences)
        self.return_state = as_flag(op, "return_state", return_state)
        self.go_backwards = as_flag(op, "go_backwards", go_backwards)
        self.zero_output_for_mask = as_flag(op, "zero_output_for_mask", zero_output_for_mask)
        self.stateful = as_flag(op, "stateful", stateful)
        #: The variables of a stateful layer, in the structure of the cell's state.
        self.states: Any = None
        self.unroll = as_flag(op, "unroll", unroll)

    if not TYPE_CHECKING:  # a type checker sees the call of a Layer

        def __call__(self, sequences: Nest, *more: Any, **arguments: Any) -> Any:
            """The outputs, and the states; see the class for the arguments."""
            return self._called(sequences, more, arguments)

    def build(self, input_shape: Any) -> None:
        if isinstance(input_shape, dict) or len(input_shape) != self.axes:
            fact = f"inputs of the shape {input_shape} do not have {self.axes} axes"
            refuse(type(self).__name__, fact, fix=self._right_inputs)
        build_cell(self.cell, [input_shape[0], *input_shape[2:]])
        if self.stateful:
            self._make_states(input_shape)

    def _make_states(self, input_shape: Any) -> None:
        sizes = [known(self, input_shape, axis) for axis in (0, *range(2, self.axes))]
        first = self._first_state(zeros([1, *sizes], self.compute_dtype))
        self.states = nest.map_structure(_kept_between_calls, first)

    def reset_state(self) -> None:
        """Sets the states that a stateful layer keeps between calls to 0."""
        if self.states is not None:
            nest.map_structure(lambda state: state.assign(zeros_like(state)), self.states)

    def reset_states(self) -> None:
        """Another name of `reset_state`."""
        self.reset_state()

    def get_initial_state(self, batch_size: SizeLike) -> list[Any]:
        """The state before the first step."""
        return initial_state_of(self.cell, batch_size, self.compute_dtype)

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
        if self.stateful:
            nest.map_structure(lambda state, after: state.assign(after), self.states, final)
        y = last if outputs is None else transpose(outputs, [1, 0, *range(2, outputs.ndim)])
        return [y, *listed(final)] if self.return_state else y  # type: ignore[return-value]

    def compute_mask(self, inputs: Nest, mask: TensorLike | None = None) -> TensorLike | None:
        """The mask of the inputs if there is an output for each step, and else None."""
        return mask if self.return_sequences else None

    def _first_state(self, x: Tensor) -> Any:
        return self.get_initial_state(sizes_of(type(self).__name__, x)[1])

    def _kept_state(self, x: Tensor) -> Any:
        """What the last call left."""
        op = type(self).__name__
        kept, examples = nest.flatten(self.states)[0].shape[0], sizes_of(op, x)[1]
        if not isinstance(examples, int) or examples != kept:
            fact = f"it keeps the states of {kept} examples, and the inputs have {examples}"
            fix = f"give {kept} examples, or make a layer for another number of them"
            refuse(op, fact, x, fix=fix)
        return nest.map_structure(lambda state: state.read_value(), self.states)

    def _start(self, given: Any, x: Tensor) -> Any:
        """The state before the first step of [steps, examples, ...]."""
        own = self._kept_state(x) if self.stateful else self._first_state(x)
        if given is None:
            return own
        values, wanted = nest.flatten(given), len(nest.flatten(own))
        if len(values) != wanted:
            op = type(self).__name__
            fact = f"{op}: initial_state has {len(values)} tensors, and the cell {wanted}"
            fail(SignatureError, fact, fix="give a list with one for each of cell.state_size")
        return nest.pack_sequence_as(own, [as_tensor(x, self.compute_dtype) for x in values])

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
        if not isinstance(cell, Cell):
            return (lambda row, states: stepped(cell, row, states, training)), x
        masks = cell.masks(_row(x), start, training)
        return (lambda row, states: cell.advance(row, states, masks)), cell.project(x, masks)


def _kept_between_calls(state: Tensor) -> Variable:
    variable = Variable(state, trainable=False, name="rnn_state")
    variable.has_plain_name = True
    return variable


def _widened(x: Tensor, axes: int) -> Tensor:
    """x with axes of size 1 appended, up to `axes` in all."""
    for axis in range(x.ndim, axes):
        x = expand_dims(x, axis)
    return x


def _row(x: Any) -> Any:
    return as_tensor(x)[0]  # type: ignore[index]


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

    cell_type: type[Cell]

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Splits the arguments of `__init__` into the cell's and the layer's own."""
        own = dict(arguments)
        dtype, name, trainable = (own.pop(key) for key in ("dtype", "name", "trainable"))
        activity = own.pop("activity_regularizer")
        own.pop("use_cudnn", None)  # there is only one implementation
        along = {way: own.pop(way) for way in _WAYS if way in own}
        cell = self.cell_type(**own, dtype=dtype)
        RNN.__init__(self, cell, **along, name=name, dtype=dtype, trainable=trainable)
        self.activity_regularizer = regularizers.get(activity)
        self.units = cell.units
