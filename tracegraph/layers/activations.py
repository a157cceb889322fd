"""Activations as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph import activations, nn
from tracegraph.array.arguments import as_axes, as_number, as_sizes, rank_of
from tracegraph.array.indexing.selection import where
from tracegraph.core.types import float32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, activation_of, known
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.elementwise.logic import greater
from tracegraph.math.elementwise.unary import exp
from tracegraph.math.reduction import reduce_logsumexp, summable
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    InitializerLike,
    RegularizerLike,
    TensorLike,
)


class Activation(Layer):
    """A function without variables, or its name.

    >>> tg.layers.Activation("relu")([-1.0, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(self, activation: ActivationLike, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.activation = activation_of(activation)

    def call(self, inputs: Tensor) -> Tensor:
        return inputs if self.activation is None else self.activation(inputs)


class ReLU(Layer):
    """x where it is above `threshold`, else negative_slope * (x - threshold); at most `max_value`.

    Raises ValueError for a negative slope or maximum.

    >>> tg.layers.ReLU(max_value=6.0)([-1.0, 9.0]).numpy()
    array([0., 6.], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        if max_value is not None:
            as_number("ReLU", "max_value", max_value, low=0)
        self.max_value = max_value
        self.negative_slope = as_number("ReLU", "negative_slope", negative_slope, low=0)
        self.threshold = as_number("ReLU", "threshold", threshold, low=0)

    def call(self, inputs: Tensor) -> Tensor:
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)


class LeakyReLU(Layer):
    """x where it is positive, else negative_slope * x (Maas and others 2013).

    >>> tg.layers.LeakyReLU()([-1.0, 2.0]).numpy()
    array([-0.3,  2. ], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(self, negative_slope: float = 0.3, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.negative_slope = as_number("LeakyReLU", "negative_slope", negative_slope, low=0)

    def call(self, inputs: Tensor) -> Tensor:
        return nn.leaky_relu(inputs, self.negative_slope)


class PReLU(Layer):
    """x where it is positive, else alpha * x, where alpha is learned (He and others 2015).

    - `shared_axes`: the axes along which alpha is shared, such as [1, 2] for images; it is always
      shared among examples.

    Raises ShapeError for an axis that does not exist.

    >>> tg.layers.PReLU("ones")([[-1.0, 2.0]]).numpy()
    array([[-1.,  2.]], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        alpha_initializer: InitializerLike = "zeros",
        alpha_regularizer: RegularizerLike = None,
        alpha_constraint: ConstraintLike = None,
        shared_axes: int | Sequence[int] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self._describe("alpha", alpha_initializer, alpha_regularizer, alpha_constraint)
        axes = () if shared_axes is None else as_sizes("PReLU", "shared_axes", shared_axes)
        self.shared_axes = axes

    def build(self, input_shape: Any) -> None:
        rank = len(input_shape)
        shared = as_axes("PReLU", self.shared_axes, rank)
        sizes = [1 if k in shared else known(self, input_shape, k) for k in range(1, rank)]
        self.alpha = self._make("alpha", sizes)

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        above = nn.relu(x)
        return add(above, multiply(self.alpha, subtract(x, above)))


class ELU(Layer):
    """x where it is not negative, else alpha * (e ** x - 1) (Clevert and others 2015).

    >>> tg.layers.ELU()([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(self, alpha: float = 1.0, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.alpha = as_number("ELU", "alpha", alpha)

    def call(self, inputs: Tensor) -> Tensor:
        return activations.elu(inputs, self.alpha)


class Softmax(Layer):
    """e ** x / sum(e ** x) along `axis`, one or several, where `mask` is true.

    Masked elements get 0, even in rows where all are masked.

    >>> tg.layers.Softmax()([1.0, 1.0, 5.0], mask=[True, True, False]).numpy()
    array([0.5, 0.5, 0. ], dtype=float32)
    """

    supports_masking = True
    _masks_steps = False

    @takes_options
    def __init__(self, axis: int | Sequence[int] = -1, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.axis = as_sizes("Softmax", "axis", axis)

    def call(self, inputs: Tensor, mask: TensorLike | None = None) -> Tensor:
        x = as_tensor(inputs)
        axes = as_axes("Softmax", self.axis, rank_of("Softmax", x), x)
        if mask is None and len(axes) == 1:
            return activations.softmax(x, axes[0])
        return masked_softmax(x, axes, mask)


def masked_softmax(
    x: Tensor, axes: tuple[int, ...], mask: Any = None, may_be_empty: bool = True
) -> Tensor:
    """softmax along `axes` over the elements where `mask` is true, and 0 elsewhere. `mask`
    broadcasts to x; `may_be_empty` says that it may be false in a whole row."""
    if mask is None:
        return _softmax(x, axes)
    kept = as_tensor(mask)
    is_kept: Any = kept if kept.dtype.name == "bool" else greater(cast_to(kept, float32), 0.5)
    # Not infinity: a row masked completely would become nan.
    y = _softmax(where(is_kept, x, as_tensor(x.dtype.min / 2, x.dtype)), axes)
    return where(is_kept, y, as_tensor(0, y.dtype)) if may_be_empty else y


def _softmax(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    if len(axes) == 1:
        return nn.softmax(x, axes[0])
    wide = summable(x)
    return cast_to(exp(subtract(wide, reduce_logsumexp(wide, axes, keepdims=True))), x.dtype)
