"""Layers that wrap a layer."""

from __future__ import annotations

from typing import Any, Unpack

from tracegraph import nest
from tracegraph.array.arguments import rank_of, refuse, refuse_kind, sizes_of
from tracegraph.array.shaping import reshape
from tracegraph.core.shapes import element_count
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, takes
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import TensorLike


class TimeDistributed(Layer):
    """Applies a layer to each step of [examples, steps, ...].

    The layer sees examples and steps as one axis, so a layer that mixes examples, as
    `BatchNormalization` does in training, also mixes steps.

    >>> tg.layers.TimeDistributed(tg.layers.Dense(3))(tg.ones([2, 5, 4])).shape
    TensorShape([2, 5, 3])
    """

    supports_masking = True

    @takes_options
    def __init__(self, layer: Layer, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        if not isinstance(layer, Layer):
            fix = "give one such as tg.layers.Dense(3)"
            refuse_kind("TimeDistributed", "it takes a layer", layer, fix=fix)
        self.layer = layer

    def call(
        self, inputs: TensorLike, training: bool | None = None, mask: TensorLike | None = None
    ) -> Tensor:
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
    """x with its first two axes merged."""
    sizes = sizes_of("TimeDistributed", x)
    return reshape(x, [element_count(sizes[:2]), *sizes[2:]])
