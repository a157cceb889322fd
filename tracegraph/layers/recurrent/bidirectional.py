"""A layer that runs recurrent layers in both directions of a sequence."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from tracegraph.array.arguments import as_choice, refuse_kind
from tracegraph.array.joining import concat
from tracegraph.array.shaping import reverse
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer
from tracegraph.layers.recurrent.rnn import RNN, Outputs
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply
from tracegraph.typing import Nest, TensorLike


class Bidirectional(Layer, Generic[Outputs]):
    """Runs a recurrent layer forwards and a second one backwards (Schuster and Paliwal 1997).

    - `layer`: a recurrent layer that has not been called yet.
    - `merge_mode`: how to combine the two outputs: "concat", "sum", "mul", "ave", or None for a
      tuple of both.
    - `backward_layer`: the second layer; by default a copy of the first in the other direction.

    Both have the same `return_sequences`, `return_state` and `stateful`; SignatureError (a
    ValueError) otherwise. With `return_sequences=True` the outputs at masked steps are zeros,
    whatever the layers say.

    The call is that of the layer; `initial_state` has the states of the first layer, and then
    those of the second, and so have the states that are returned.

    >>> layer = tg.layers.Bidirectional(tg.layers.LSTM(3, return_sequences=True))
    >>> layer(tg.ones([2, 5, 4])).shape
    TensorShape([2, 5, 6])
    """

    @overload
    def __init__(
        self: Bidirectional[tuple[Tensor, Tensor]],
        layer: RNN[Tensor],
        merge_mode: None,
        weights: Sequence[TensorLike] | None = ...,
        backward_layer: RNN[Tensor] | None = ...,
        **options: Unpack[LayerOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        layer: RNN[Outputs],
        merge_mode: str | None = ...,
        weights: Sequence[TensorLike] | None = ...,
        backward_layer: RNN[Outputs] | None = ...,
        **options: Unpack[LayerOptions],
    ) -> None: ...
    @takes_options
    def __init__(
        self,
        layer: RNN[Any],
        merge_mode: str | None = "concat",
        weights: Sequence[TensorLike] | None = None,
        backward_layer: RNN[Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        for part in (layer, layer if backward_layer is None else backward_layer):
            if not isinstance(part, RNN):
                fix = "give a recurrent layer, such as tg.layers.LSTM(8)"
                refuse_kind("Bidirectional", "it goes along sequences", part, fix=fix)
        modes = ("concat", "sum", "mul", "ave", None)
        self.merge_mode = as_choice("Bidirectional", "merge_mode", merge_mode, modes)
        self.forward_layer = layer
        self.backward_layer = self._other_way(layer) if backward_layer is None else backward_layer
        if self.backward_layer.go_backwards == layer.go_backwards:
            fact = "Bidirectional: both layers go in the same direction"
            fail(SignatureError, fact, fix="give one of them go_backwards=True")
        for setting in ("return_sequences", "return_state", "stateful"):
            there, back = getattr(layer, setting), getattr(self.backward_layer, setting)
            if there != back:
                fact = f"Bidirectional: {setting} is {there} in layer, and {back} in backward_layer"
                fail(SignatureError, fact, fix="make both layers with the same settings")
        # Each layer would repeat what it saw last at a masked step, and that is another step for
        # each direction.
        for part in (layer, self.backward_layer):
            part.zero_output_for_mask = part.return_sequences
        self._initial_weights = weights

    @staticmethod
    def _other_way(layer: RNN[Any]) -> RNN[Any]:
        if layer.built:
            fact = "Bidirectional: the layer was called before, so it has variables"
            fail(SignatureError, fact, fix="give a new one, or also a backward_layer")
        other = copy.deepcopy(layer)
        other.go_backwards = not layer.go_backwards
        return other

    @property
    def return_sequences(self) -> bool:
        """Whether to return the outputs of all steps."""
        return self.forward_layer.return_sequences

    @property
    def return_state(self) -> bool:
        """Whether to return the states after the last steps too."""
        return self.forward_layer.return_state

    @property
    def stateful(self) -> bool:
        """Whether each call begins with the states that the last one ended with."""
        return self.forward_layer.stateful

    def reset_state(self) -> None:
        """Sets the states that stateful layers keep between calls to 0."""
        self.forward_layer.reset_state()
        self.backward_layer.reset_state()

    def reset_states(self) -> None:
        """Another name of `reset_state`."""
        self.reset_state()

    def build(self, input_shape: Any) -> None:
        for layer in (self.forward_layer, self.backward_layer):
            if not layer.built:
                layer.build(input_shape)
        if self._initial_weights is not None:
            self.set_weights(self._initial_weights)

    if not TYPE_CHECKING:  # a type checker sees the call of a Layer

        def __call__(self, sequences: Nest, *more: Any, **arguments: Any) -> Any:
            """The outputs of both directions, and the states; see the class for the arguments."""
            return self._called(sequences, more, arguments)

    def call(
        self,
        sequences: TensorLike,
        initial_state: Sequence[TensorLike] | None = None,
        mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Outputs:
        there: Any = None
        back: Any = None
        if initial_state is not None:
            half = len(initial_state) // 2
            there, back = initial_state[:half], initial_state[half:]
        options: dict[str, Any] = {"mask": mask, "training": training}
        y = self.forward_layer(sequences, initial_state=there, **options)
        z = self.backward_layer(sequences, initial_state=back, **options)
        states: list[Any] = []
        if self.return_state:
            states = [*y[1:], *z[1:]]
            y, z = y[0], z[0]
        if self.return_sequences:
            z = reverse(z, [1])
        merged = self._merged(y, z)
        if not states:
            return merged
        return [*(merged if self.merge_mode is None else [merged]), *states]  # type: ignore[return-value]

    def compute_mask(self, inputs: Nest, mask: TensorLike | None = None) -> TensorLike | None:
        """The mask of the inputs, if there is an output for each step; one for both outputs."""
        kept = mask if self.return_sequences else None
        return [kept, kept] if self.merge_mode is None else kept

    def _merged(self, y: Tensor, z: Tensor) -> Any:
        match self.merge_mode:
            case "concat":
                return concat([y, z], -1)
            case "sum":
                return add(y, z)
            case "ave":
                return multiply(add(y, z), 0.5)
            case "mul":
                return multiply(y, z)
        return y, z
