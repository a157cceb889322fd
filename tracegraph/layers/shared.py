"""The arguments that all layers share, defined once."""

from __future__ import annotations

from typing import TypedDict

from tracegraph.boundary.shared_arguments import shared_arguments
from tracegraph.core.types import float32
from tracegraph.typing import DTypeLike


class LayerOptions(TypedDict, total=False):
    """What layers take besides their own arguments; `Layer` documents it."""

    name: str | None
    dtype: DTypeLike
    trainable: bool


takes_options = shared_arguments(
    LayerOptions, LayerOptions(name=None, dtype=float32, trainable=True)
)
