"""Layers around a layer: both directions of a sequence, and each step of it."""

from __future__ import annotations

import copy
from typing import Any

from tracegraph import nest
from tracegraph.array.arguments import as_choice, rank_of, refuse, refuse_kind, sizes_of
from tracegraph.array.joining import concat
from tracegraph.array.shaping import reshape, reverse
from tracegraph.core.shapes import element_count
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, takes
from tracegraph.layers.recurrent import RNN
from tracegraph.math.arithmetic import add, multiply
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import DTypeLike, Nest


class Bidirectional(Layer):
    """A recurrent layer and a second one that goes backwards (Schuster and Paliwal 1997).

    - `layer`: a recurrent layer that was not called yet.
    - `merge_mode`: how the two outputs become one: "concat", "sum", "mul", "ave", or None for a
      tuple of both.
    - `backward_layer`: the second layer; by default a copy of the first in the other direction.

    The call is that of the layer; `initial_state` has the states of the first layer, and then
    those of the second, and so have the states that are returned.

    >>> layer = tg.layers.Bidirectional(tg.layers.LSTM(3, return_sequences=True))
    >>> layer(tg.ones([2, 5, 4])).shape
    TensorShape([2, 5, 6])
    """

    def __init__(
        self,
        layer: Any,
        merge_mode: str | None = "concat",
        weights: Any = None,
        backward_layer: Any = None,
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(name, dtype)
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
        self._initial_weights = weights

    @staticmethod
    def _other_way(layer: RNN) -> RNN:
        if layer.built:
            fact = "Bidirectional: the layer was called before, so it has variables"
            fail(SignatureError, fact, fix="give a new one, or a backward_layer beside it")
        other = copy.deepcopy(layer)
        other.go_backwards = not layer.go_backwards
        return other

    @property
    def return_sequences(self) -> bool:
        """Whether the outputs of all steps are returned."""
        return self.forward_layer.return_sequences

    @property
    def return_state(self) -> bool:
        """Whether the states behind the last steps are returned too."""
        return self.forward_layer.return_state

    def build(self, input_shape: Any) -> None:
        for layer in (self.forward_layer, self.backward_layer):
            if not layer.built:
                layer.build(input_shape)
                layer.built = True
        if self._initial_weights is not None:
            self.set_weights(self._initial_weights)

    def __call__(self, sequences: Nest, *more: Any, **arguments: Any) -> Any:
        """The outputs of both directions, and the states; see the class for the arguments."""
        return self._called(sequences, more, arguments)

    def call(  # type: ignore[override]
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        there, back = None, None
        if initial_state is not None:
            half = len(initial_state) // 2
            there, back = initial_state[:half], initial_state[half:]
        options = {"mask": mask, "training": training}
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
        return [*(merged if self.merge_mode is None else [merged]), *states]

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


class TimeDistributed(Layer):
    """A layer on each step of [examples, steps, ...].

    Examples and steps become one axis for it, so a layer that mixes examples, as
    `BatchNormalization` does in training, mixes the steps too.

    >>> tg.layers.TimeDistributed(tg.layers.Dense(3))(tg.ones([2, 5, 4])).shape
    TensorShape([2, 5, 3])
    """

    def __init__(self, layer: Any, name: str | None = None, dtype: DTypeLike = float32) -> None:
        super().__init__(name, dtype)
        if not isinstance(layer, Layer):
            fix = "give one such as tg.layers.Dense(3)"
            refuse_kind("TimeDistributed", "it takes a layer", layer, fix=fix)
        self.layer = layer

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        x = as_tensor(inputs)
        if rank_of("TimeDistributed", x) < 2:
            fix = "give [examples, steps, ...]"
            refuse("TimeDistributed", f"{x.type} does not have 2 axes or more", x, fix=fix)
        lead = sizes_of("TimeDistributed", x)[:2]
        options: dict[str, Any] = {}
        if mask is not None and takes(self.layer, "mask"):
            options["mask"] = _joined(as_tensor(mask))
        y = self.layer(_joined(x), training=training, **options)
        return nest.map_structure(lambda z: reshape(z, [*lead, *z.type.shape[1:]]), y)


def _joined(x: Tensor) -> Tensor:
    """x with its first two axes as one."""
    sizes = sizes_of("TimeDistributed", x)
    return reshape(x, [element_count(sizes[:2]), *sizes[2:]])
