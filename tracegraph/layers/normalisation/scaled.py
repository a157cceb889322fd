"""What normalization layers share: a scale and an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import as_flag, as_number
from tracegraph.layers.base import Layer


class ScaledNormalization(Layer):
    """Has a scale gamma and an offset beta for each element along its axes."""

    _computes_in_full = True

    def _set_scale_and_center(
        self, epsilon: Any, center: Any, scale: Any, beta: Sequence[Any], gamma: Sequence[Any]
    ) -> None:
        op = type(self).__name__
        self.epsilon = as_number(op, "epsilon", epsilon, low=0)
        self.center = as_flag(op, "center", center)
        self.scale = as_flag(op, "scale", scale)
        self._describe("beta", *beta)
        self._describe("gamma", *gamma)

    def _make_scale_and_center(self, shape: Sequence[int]) -> None:
        if self.scale:
            self.gamma = self._make("gamma", shape)
        if self.center:
            self.beta = self._make("beta", shape)

    def _parts(self) -> tuple[Any, Any]:
        """beta and gamma; None for one that is not used."""
        return self.beta if self.center else None, self.gamma if self.scale else None
