"""Normalization of each example: to mean 0 and variance 1, or to norm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph import nn
from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_number,
    as_size,
    as_sizes,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.shaping import reshape
from tracegraph.calls.top_level_calls import composition
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, along_channels, known
from tracegraph.layers.normalisation.scaled import ScaledNormalization
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.elementwise.unary import rsqrt, square
from tracegraph.math.norms import l2_normalize
from tracegraph.math.reduction import reduce_mean, summable
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import ConstraintLike, InitializerLike, RegularizerLike


class LayerNormalization(ScaledNormalization):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, for each example, along `axis` (Ba and
    others 2016).

    - `axis`: one axis or several, whose sizes must be known; they are the shape of gamma and beta.
    - `center`, `scale`: whether to use beta and gamma.

    >>> tg.layers.LayerNormalization(epsilon=0.0)([[1.0, 3.0]]).numpy()
    array([[-1.,  1.]], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.axis = as_sizes("LayerNormalization", "axis", axis)
        beta = beta_initializer, beta_regularizer, beta_constraint
        gamma = gamma_initializer, gamma_regularizer, gamma_constraint
        self._set_scale_and_center(epsilon, center, scale, beta, gamma)

    def build(self, input_shape: Any) -> None:
        axes = as_axes("LayerNormalization", self.axis, len(input_shape))
        self._make_scale_and_center([known(self, input_shape, axis) for axis in axes])

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        axes = as_axes("LayerNormalization", self.axis, rank_of("LayerNormalization", x), x)
        y = _normalized(x, axes=axes, epsilon=self.epsilon)
        beta, gamma = (p if p is None else _on(p, axes, x.ndim) for p in self._parts())
        y = y if gamma is None else multiply(y, gamma)
        return y if beta is None else add(y, beta)


@composition
def _normalized(x: Tensor, *, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) along the axes."""
    wide = summable(x)
    mean, variance = nn.moments(wide, axes, keepdims=True)
    factor = rsqrt(add(variance, epsilon))
    return cast_to(multiply(subtract(wide, mean), factor), x.dtype)


def _on(part: Any, axes: tuple[int, ...], rank: int) -> Any:
    """A weight on some axes of the inputs, with axes of size 1 between and after them."""
    if axes == tuple(range(rank - len(axes), rank)):
        return part
    sizes = dict(zip(axes, as_tensor(part).type.shape))
    return reshape(part, [sizes.get(axis, 1) for axis in range(axes[0], rank)])


class GroupNormalization(ScaledNormalization):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, for each example and each of `groups`
    groups of channels (Wu and He 2018).

    - `groups`: must divide the number of channels; -1 for as many groups as channels.
    - `axis`: the axis of channels.
    - `center`, `scale`: whether to use beta and gamma.

    Raises ShapeError if `groups` does not divide the number of channels.

    >>> tg.layers.GroupNormalization(groups=2, epsilon=0.0)([[1.0, 3.0, 5.0, 9.0]]).numpy()
    array([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.groups = as_size("GroupNormalization", "groups", groups)
        self.axis = as_size("GroupNormalization", "axis", axis)
        beta = beta_initializer, beta_regularizer, beta_constraint
        gamma = gamma_initializer, gamma_regularizer, gamma_constraint
        self._set_scale_and_center(epsilon, center, scale, beta, gamma)

    def build(self, input_shape: Any) -> None:
        axis = as_axis("GroupNormalization", self.axis, len(input_shape))
        channels = known(self, input_shape, axis)
        groups = channels if self.groups == -1 else self.groups
        if axis == 0 or groups < 1 or channels % groups:
            fact = f"{channels} channels along axis {axis} do not fall into {self.groups} groups"
            fix = "use a number of groups that divides them, and an axis after the first"
            refuse("GroupNormalization", fact, fix=fix)
        self._group_count = groups
        self._make_scale_and_center([channels])

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        sizes = sizes_of("GroupNormalization", x)
        axis = as_axis("GroupNormalization", self.axis, len(sizes), x)
        count = self._group_count
        parts: list[Any] = [*sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1 :]]
        wide = reshape(summable(x), parts)
        axes = [k for k in range(1, len(parts)) if k != axis]
        mean, variance = nn.moments(wide, axes, keepdims=True)
        factor = rsqrt(add(variance, self.epsilon))
        y = cast_to(reshape(multiply(subtract(wide, mean), factor), sizes), x.dtype)
        after = len(sizes) - 1 - axis
        beta, gamma = (p if p is None else along_channels(p, after) for p in self._parts())
        y = y if gamma is None else multiply(y, gamma)
        return y if beta is None else add(y, beta)


class RMSNormalization(Layer):
    """x / sqrt(mean(x ** 2) + epsilon) * scale, along `axis` (Zhang and Sennrich 2019).

    - `axis`: one axis or several, whose sizes must be known; they are the shape of the scale.

    >>> tg.layers.RMSNormalization()([[3.0, 4.0]]).numpy().round(3)
    array([[0.849, 1.131]], dtype=float32)
    """

    _computes_in_full = True

    @takes_options
    def __init__(
        self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        self.axis = as_sizes("RMSNormalization", "axis", axis)
        self.epsilon = as_number("RMSNormalization", "epsilon", epsilon, low=0)

    def build(self, input_shape: Any) -> None:
        axes = as_axes("RMSNormalization", self.axis, len(input_shape))
        sizes = [known(self, input_shape, axis) for axis in axes]
        self.scale = self.add_weight(sizes, "ones", name="scale")

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        axes = as_axes("RMSNormalization", self.axis, rank_of("RMSNormalization", x), x)
        wide = summable(x)
        factor = rsqrt(add(reduce_mean(square(wide), axes, keepdims=True), self.epsilon))
        return multiply(cast_to(multiply(wide, factor), x.dtype), _on(self.scale, axes, x.ndim))


class UnitNormalization(Layer):
    """x / sqrt(sum(x ** 2)) along `axis`, one or several; 0 stays 0.

    >>> tg.layers.UnitNormalization()([[3.0, 4.0]]).numpy().round(2)
    array([[0.6, 0.8]], dtype=float32)
    """

    _computes_in_full = True

    supports_masking = True

    @takes_options
    def __init__(self, axis: int | Sequence[int] = -1, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.axis = as_sizes("UnitNormalization", "axis", axis)

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        axes = as_axes("UnitNormalization", self.axis, rank_of("UnitNormalization", x), x)
        return cast_to(l2_normalize(summable(x), axes, epsilon=1e-24), x.dtype)
