"""Constraints: functions that map a weight to the nearest allowed value.

A Variable has one as its `constraint`, and optimizers apply it to the value after an update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegraph.api.absent import publish
from tracegraph.array.arguments import as_number, as_sizes, identified
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, divide, maximum, multiply
from tracegraph.math.reduction import reduce_euclidean_norm
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.module import WithSettings
from tracegraph.typing import Axis, TensorLike

#: Added to norms before dividing by them.
_EPSILON = 1e-7


class Constraint(WithSettings):
    """A function of a weight that returns its replacement."""

    def __init__(self) -> None:
        pass  # that of `object` would raise Python's own errors for arguments

    def __call__(self, w: TensorLike) -> Tensor:
        raise NotImplementedError


def _norms(w: Tensor, axis: Any) -> Tensor:
    return reduce_euclidean_norm(w, axis, keepdims=True)


def _with_norms(w: Tensor, wanted: Tensor, norms: Tensor) -> Tensor:
    return multiply(w, divide(wanted, add(norms, _EPSILON)))


class MaxNorm(Constraint):
    """Scales vectors along `axis` whose norm is above `max_value` to that norm (Srivastava and
    others 2014).

    - `axis`: 0 for the kernel of a Dense layer, [0, 1, 2] for that of a convolution.

    >>> tg.constraints.MaxNorm(1.0)([[3.0, 0.3], [4.0, 0.4]]).numpy().round(3).tolist()
    [[0.6000000238418579, 0.30000001192092896], [0.800000011920929, 0.4000000059604645]]
    """

    def __init__(self, max_value: float = 2, axis: Axis = 0) -> None:
        self.max_value = as_number("MaxNorm", "max_value", max_value, low=0)
        self.axis = as_sizes(type(self).__name__, "axis", axis)

    def __call__(self, w: TensorLike) -> Tensor:
        x = as_tensor(w)
        norms = _norms(x, self.axis)
        return _with_norms(x, clip_by_value(norms, 0.0, float(self.max_value)), norms)


class NonNeg(Constraint):
    """max(w, 0)

    >>> tg.constraints.NonNeg()([-1.0, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """

    def __call__(self, w: TensorLike) -> Tensor:
        return maximum(as_tensor(w), 0)


class UnitNorm(Constraint):
    """Scales vectors along `axis` to norm 1.

    >>> tg.constraints.UnitNorm()([3.0, 4.0]).numpy().round(2)
    array([0.6, 0.8], dtype=float32)
    """

    def __init__(self, axis: Axis = 0) -> None:
        self.axis = as_sizes(type(self).__name__, "axis", axis)

    def __call__(self, w: TensorLike) -> Tensor:
        x = as_tensor(w)
        return divide(x, add(_norms(x, self.axis), _EPSILON))


class MinMaxNorm(Constraint):
    """Moves the norms of vectors along `axis` towards [min_value, max_value].

    - `rate`: 1 moves them all the way at once; less, only that share of the way.

    >>> tg.constraints.MinMaxNorm(1.0, 2.0)([0.3, 0.4]).numpy().round(2)
    array([0.6, 0.8], dtype=float32)
    """

    def __init__(
        self,
        min_value: float = 0.0,
        max_value: float = 1.0,
        rate: float = 1.0,
        axis: Axis = 0,
    ) -> None:
        self.min_value = as_number("MinMaxNorm", "min_value", min_value, low=0)
        self.max_value = as_number("MinMaxNorm", "max_value", max_value, low=min_value)
        self.rate = as_number("MinMaxNorm", "rate", rate, low=0, high=1)
        self.axis = as_sizes(type(self).__name__, "axis", axis)

    def __call__(self, w: TensorLike) -> Tensor:
        x = as_tensor(w)
        norms = _norms(x, self.axis)
        inside = clip_by_value(norms, float(self.min_value), float(self.max_value))
        wanted = add(multiply(inside, self.rate), multiply(norms, 1 - self.rate))
        return _with_norms(x, wanted, norms)


max_norm, min_max_norm, non_neg, unit_norm = MaxNorm, MinMaxNorm, NonNeg, UnitNorm

_BY_NAME: dict[str, type[Constraint]] = {
    **{kind.__name__: kind for kind in (MaxNorm, MinMaxNorm, NonNeg, UnitNorm)},
    "max_norm": MaxNorm,
    "min_max_norm": MinMaxNorm,
    "non_neg": NonNeg,
    "unit_norm": UnitNorm,
}


def get(identifier: object) -> Callable[[TensorLike], Tensor] | None:
    """The constraint of a name such as "non_neg", a function unchanged, or None for None.

    >>> tg.constraints.get("non_neg")([-1.0, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """
    return identified("constraint", identifier, _BY_NAME)


__all__ = [
    "Constraint",
    "MaxNorm",
    "MinMaxNorm",
    "NonNeg",
    "UnitNorm",
    "get",
    "max_norm",
    "min_max_norm",
    "non_neg",
    "unit_norm",
]

publish(__name__)
