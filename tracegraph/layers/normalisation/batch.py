"""Normalization of each channel over a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from tracegraph import nn
from tracegraph.array.arguments import (
    as_axis,
    as_flag,
    as_number,
    as_size,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import stop_gradient
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import broadcast_to, expand_dims, squeeze
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import along_channels, flags_of, known
from tracegraph.layers.normalisation.scaled import ScaledNormalization
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.unary import sqrt, square
from tracegraph.math.reduction import reduce_sum, summable
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.state.variable import Variable
from tracegraph.typing import ConstraintLike, InitializerLike, RegularizerLike, TensorLike


class BatchNormalization(ScaledNormalization):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, for each channel along `axis` (Ioffe
    and Szegedy 2015).

    In training, uses the mean and variance of the batch and updates the moving ones:
    moving = moving * momentum + batch * (1 - momentum). Otherwise, uses the moving ones.

    - `center`, `scale`: whether to use beta and gamma.
    - `renorm`: in training, multiplies the normalized values by r and adds d, which correct them
      towards slower means: r = stddev / renorm_stddev, d = (mean - renorm_mean) / renorm_stddev
      (Ioffe 2017). The derivative takes r and d as constants.
    - `renorm_clipping`: bounds "rmin" and "rmax" of r, and "dmax" of |d|, by name.
    - `renorm_momentum`: the momentum of renorm_mean and renorm_stddev.
    - `synchronized`: accepted but has no effect: there is one replica.

    The `mask` of a call has the shape of the inputs without the last axis. In training, elements
    where it is false count neither in the mean nor in the variance. Raises ShapeError for a mask of
    another rank.

    >>> layer = tg.layers.BatchNormalization()
    >>> layer(tg.constant([[1.0], [3.0]]), training=True).numpy().round(2).tolist()
    [[-1.0], [1.0]]
    >>> [v.name for v in layer.variables]
    ['gamma', 'beta', 'moving_mean', 'moving_variance']
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        moving_mean_initializer: InitializerLike = "zeros",
        moving_variance_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        renorm: bool = False,
        renorm_clipping: Mapping[str, float] | None = None,
        renorm_momentum: float = 0.99,
        synchronized: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        as_flag("BatchNormalization", "synchronized", synchronized)
        self.renorm = as_flag("BatchNormalization", "renorm", renorm)
        self.renorm_clipping = _clipping(renorm_clipping)
        self.renorm_momentum = as_number(
            "BatchNormalization", "renorm_momentum", renorm_momentum, low=0, high=1
        )
        self.axis = as_size("BatchNormalization", "axis", axis)
        self.momentum = as_number("BatchNormalization", "momentum", momentum, low=0, high=1)
        beta = beta_initializer, beta_regularizer, beta_constraint
        gamma = gamma_initializer, gamma_regularizer, gamma_constraint
        self._set_scale_and_center(epsilon, center, scale, beta, gamma)
        self._describe("moving_mean", moving_mean_initializer)
        self._describe("moving_variance", moving_variance_initializer)

    def build(self, input_shape: Any) -> None:
        axis = as_axis("BatchNormalization", self.axis, len(input_shape))
        shape = [known(self, input_shape, axis)]
        self._make_scale_and_center(shape)
        names = "moving_mean", "moving_variance"
        self.moving_mean, self.moving_variance = (self._make_moving(x, shape) for x in names)
        if self.renorm:
            self._make_renorm(shape)

    def _make_renorm(self, shape: Sequence[int]) -> None:
        starts: Any = vars(self)

        def stddev(shape: Any, dtype: Any = None) -> Tensor:
            return sqrt(starts["moving_variance_initializer"](shape, dtype))

        def make(name: str, start: Any) -> Variable:
            return self.add_weight(shape, start, name=name, trainable=False)

        self.moving_stddev = make("moving_stddev", stddev)
        self.renorm_mean = make("renorm_mean", starts["moving_mean_initializer"])
        self.renorm_stddev = make("renorm_stddev", stddev)

    def _make_moving(self, name: str, shape: Sequence[int]) -> Variable:
        start = getattr(self, f"{name}_initializer")
        return self.add_weight(shape, start, name=name, trainable=False)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: TensorLike | None = None
    ) -> Tensor:
        x = as_tensor(inputs)
        rank = rank_of("BatchNormalization", x)
        axis = as_axis("BatchNormalization", self.axis, rank, x)
        wide = summable(x)
        if as_flag("BatchNormalization", "training", training) and self.trainable:
            others = [k for k in range(rank) if k != axis]
            mean, variance = _moments_where(mask, wide, others)
            offsets = self._corrected(mean, variance) if self.renorm else self._parts()
            self._move_all(mean, variance)
        else:
            mean, variance = self.moving_mean, self.moving_variance
            offsets = self._parts()
        parts: Any = [
            None
            if p is None
            else along_channels(cast_to(as_tensor(p), wide.dtype), rank - 1 - axis)
            for p in (mean, variance, *offsets)
        ]
        y = nn.batch_normalization(wide, *parts, variance_epsilon=self.epsilon)
        return cast_to(y, x.dtype)

    def _corrected(self, mean: Tensor, variance: Tensor) -> tuple[Any, Any]:
        """beta and gamma after the corrections of batch renormalization."""
        beta, gamma = self._parts()
        slow = maximum(self.renorm_stddev, math.sqrt(self.epsilon))
        r = divide(sqrt(add(variance, self.epsilon)), slow)
        d = divide(subtract(mean, self.renorm_mean), slow)
        bounds = self.renorm_clipping
        r = maximum(r, bounds["rmin"]) if "rmin" in bounds else r
        r = minimum(r, bounds["rmax"]) if "rmax" in bounds else r
        d = clip_by_value(d, -bounds["dmax"], bounds["dmax"]) if "dmax" in bounds else d
        r, d = stop_gradient(r), stop_gradient(d)
        if gamma is not None:
            r, d = multiply(r, gamma), multiply(d, gamma)
        return (d if beta is None else add(d, beta)), r

    def _move_all(self, mean: Tensor, variance: Tensor) -> None:
        _move(self.moving_mean, mean, self.momentum)
        if not self.renorm:
            _move(self.moving_variance, variance, self.momentum)
            return
        stddev = sqrt(add(variance, self.epsilon))
        _move(self.renorm_mean, mean, self.renorm_momentum)
        _move(self.renorm_stddev, stddev, self.renorm_momentum)
        _move(self.moving_stddev, stddev, self.momentum)
        moved = square(self.moving_stddev)
        self.moving_variance.assign(maximum(subtract(moved, self.epsilon), 0.0))


def _move(moving: Variable, batch: Tensor, momentum: float) -> None:
    moved = add(multiply(summable(as_tensor(moving)), momentum), multiply(batch, 1 - momentum))
    moving.assign(cast_to(moved, moving.dtype))


def _clipping(bounds: Any) -> dict[str, float]:
    """The bounds of batch renormalization that are given."""
    op = "BatchNormalization"
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping) or set(bounds) - {"rmin", "rmax", "dmax"}:
        fix = 'give some of them: {"rmin": 1 / 3, "rmax": 3.0, "dmax": 5.0}'
        fact = f'{op}: renorm_clipping has "rmin", "rmax" and "dmax", and is {shown(bounds)}'
        fail(SignatureError, fact, fix=fix)
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    for name in given:
        low = given.get("rmin", 0) if name == "rmax" else 0
        as_number(op, f"the {name} of renorm_clipping", given[name], low=low)
    return given


def _moments_where(mask: TensorLike | None, x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """The mean and the variance of the elements of x where the mask, which lacks the last axis, is
    true; 0 where none is."""
    if mask is None:
        return nn.moments(x, axes)
    flags = flags_of(mask)
    if rank_of("BatchNormalization", flags) != x.ndim - 1:
        fact = f"a mask of {flags.type} does not fit inputs of {x.type}"
        fix = "give a mask with the shape of the inputs without the last axis"
        refuse("BatchNormalization", fact, x, fix=fix)
    kept = broadcast_to(expand_dims(flags, -1), sizes_of("BatchNormalization", x))
    zero = as_tensor(0.0, x.dtype)
    count = maximum(reduce_sum(cast_to(kept, x.dtype), axes, keepdims=True), 1.0)
    mean = divide(reduce_sum(where(kept, x, zero), axes, keepdims=True), count)
    spread = where(kept, square(subtract(x, mean)), zero)
    variance = divide(reduce_sum(spread, axes, keepdims=True), count)
    return squeeze(mean, axes), squeeze(variance, axes)
