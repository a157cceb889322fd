"""Schedules: learning rates as functions of the step number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracegraph.array.arguments import as_flag, as_list, as_number
from tracegraph.array.indexing.selection import where
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, counted, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.logic import less, less_equal
from tracegraph.math.elementwise.unary import ceil, cos, floor, log
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.state.module import WithSettings
from tracegraph.typing import TensorLike


class LearningRateSchedule(WithSettings):
    """The base class: a function from the step, an integer of shape (), to a learning rate. An
    optimizer with a schedule as `learning_rate` calls it with `iterations`.

    >>> class Halving(tg.optimizers.schedules.LearningRateSchedule):
    ...     def __call__(self, step):
    ...         return 0.5 ** tg.cast(step, tg.float32)
    >>> optimizer = tg.optimizers.SGD(Halving())
    >>> float(optimizer.learning_rate)
    1.0
    """

    def __init__(self) -> None:
        pass  # that of `object` would raise Python's own errors for arguments

    def __call__(self, step: TensorLike) -> TensorLike:
        raise NotImplementedError

    def _number(self, what: str, value: float, low: float = -math.inf) -> float:
        return as_number(type(self).__name__, what, value, low=low)

    def _steps(self, what: str, value: float) -> float:
        """A number of steps, above 0."""
        if self._number(what, value, low=0) == 0:
            fail(SignatureError, f"{type(self).__name__}: {what} is 0", fix="use 1 or more")
        return value


def _real(step: TensorLike) -> Tensor:
    return cast_to(as_tensor(step), float32)


class ExponentialDecay(LearningRateSchedule):
    """initial_learning_rate * decay_rate ** (step / decay_steps); `staircase` rounds the exponent
    down.

    Raises SignatureError (a ValueError) unless `decay_steps` is above 0.

    >>> rate = tg.optimizers.schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)
    >>> [round(float(rate(step)), 4) for step in (0, 10, 20)]
    [0.1, 0.05, 0.025]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self.initial_learning_rate = self._number(
            "initial_learning_rate", initial_learning_rate, low=0
        )
        self.decay_steps = self._steps("decay_steps", decay_steps)
        self.decay_rate = self._number("decay_rate", decay_rate, low=0)
        self.staircase = as_flag(type(self).__name__, "staircase", staircase)
        self.name = name

    def _part(self, step: TensorLike) -> Tensor:
        part = divide(_real(step), self.decay_steps)
        return floor(part) if self.staircase else part

    def __call__(self, step: TensorLike) -> Tensor:
        power = pow(as_tensor(self.decay_rate, float32), self._part(step))
        return multiply(power, self.initial_learning_rate)


class InverseTimeDecay(ExponentialDecay):
    """initial_learning_rate / (1 + decay_rate * step / decay_steps); `staircase` rounds
    step / decay_steps down.

    Raises SignatureError (a ValueError) unless `decay_steps` is above 0.

    >>> rate = tg.optimizers.schedules.InverseTimeDecay(0.1, decay_steps=10, decay_rate=1.0)
    >>> [round(float(rate(step)), 4) for step in (0, 10, 30)]
    [0.1, 0.05, 0.025]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        super().__init__(initial_learning_rate, decay_steps, decay_rate, staircase, name)

    def __call__(self, step: TensorLike) -> Tensor:
        growth = add(multiply(self._part(step), self.decay_rate), 1.0)
        return divide(self.initial_learning_rate, growth)


class PiecewiseConstantDecay(LearningRateSchedule):
    """Piecewise constant: values[k] up to and including step boundaries[k], and the last value
    after the last boundary.

    - `boundaries`: increasing numbers; there is one more of `values`.

    Raises SignatureError (a ValueError) for a wrong number of values, or boundaries that do not
    increase.

    >>> rate = tg.optimizers.schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.25])
    >>> [float(rate(step)) for step in (10, 11, 21)]
    [1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        boundaries: Sequence[float],
        values: Sequence[float],
        name: str = "PiecewiseConstant",
    ) -> None:
        op = type(self).__name__
        self.boundaries = [
            self._number("a boundary", b) for b in as_list(op, "boundaries", boundaries)
        ]
        self.values = [self._number("a value", v, low=0) for v in as_list(op, "values", values)]
        self.name = name
        if len(self.values) != len(self.boundaries) + 1:
            fail(
                SignatureError,
                f"{op}: there are {counted(len(self.values), 'value')}, and the boundaries are "
                f"{self.boundaries}",
                fix="give one more value than boundaries: one for the steps before the first",
            )
        if any(x >= y for x, y in zip(self.boundaries, self.boundaries[1:])):
            fail(
                SignatureError,
                f"{op}: the boundaries {self.boundaries} do not increase",
                fix="sort them, and give each once",
            )

    def __call__(self, step: TensorLike) -> Tensor:
        at, rate = _real(step), as_tensor(self.values[-1], float32)
        for boundary, value in reversed(list(zip(self.boundaries, self.values))):
            rate = where(less_equal(at, boundary), as_tensor(value, float32), rate)
        return rate


class PolynomialDecay(LearningRateSchedule):
    """Decays from the initial rate to `end_learning_rate`, where it stays:
    (initial - end) * (1 - step / decay_steps) ** power + end.

    `cycle` restarts the decay whenever the end is reached, with 2, 3, … times the `decay_steps`.

    Raises SignatureError (a ValueError) unless `decay_steps` is above 0.

    >>> rate = tg.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
    >>> [float(rate(step)) for step in (0, 5, 20)]
    [1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self.initial_learning_rate = self._number(
            "initial_learning_rate", initial_learning_rate, low=0
        )
        self.decay_steps = self._steps("decay_steps", decay_steps)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate, low=0)
        self.power = self._number("power", power)
        self.cycle = as_flag(type(self).__name__, "cycle", cycle)
        self.name = name

    def __call__(self, step: TensorLike) -> Tensor:
        at = _real(step)
        if self.cycle:
            rounds = maximum(ceil(divide(at, self.decay_steps)), 1.0)
            part = divide(at, multiply(rounds, self.decay_steps))
        else:
            part = divide(minimum(at, self.decay_steps), self.decay_steps)
        height = self.initial_learning_rate - self.end_learning_rate
        left = pow(subtract(1.0, part), self.power)
        return add(multiply(left, height), self.end_learning_rate)


class CosineDecay(LearningRateSchedule):
    """Decays along half a cosine wave from a rate to `alpha` times it, where it stays:
    rate * ((1 - alpha) * (1 + cos(pi * step / decay_steps)) / 2 + alpha).

    - `warmup_target`: that rate, reached linearly from `initial_learning_rate` in `warmup_steps`
      before the `decay_steps` begin. None means no warm-up: the rate is the initial one.

    Raises SignatureError (a ValueError) unless `decay_steps` is above 0, and for a
    `warmup_target` without `warmup_steps`.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> rate = tg.optimizers.schedules.CosineDecay(0.0, 10, warmup_target=1.0, warmup_steps=4)
    >>> [round(float(rate(step)), 4) for step in (0, 2, 4, 9, 14, 99)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        self.initial_learning_rate = self._number(
            "initial_learning_rate", initial_learning_rate, low=0
        )
        self.decay_steps = self._steps("decay_steps", decay_steps)
        self.alpha = self._number("alpha", alpha, low=0)
        self.name = name
        self.warmup_target = warmup_target
        self.warmup_steps = self._number("warmup_steps", warmup_steps, low=0)
        if warmup_target is not None:
            self._number("warmup_target", warmup_target, low=0)
            self._steps("warmup_steps", warmup_steps)

    def __call__(self, step: TensorLike) -> Tensor:
        at, start = _real(step), self.initial_learning_rate
        if self.warmup_target is None:
            return self._decayed(at, start)
        rise = divide(multiply(at, self.warmup_target - start), self.warmup_steps)
        decayed = self._decayed(subtract(at, self.warmup_steps), self.warmup_target)
        return where(less(at, self.warmup_steps), add(rise, start), decayed)

    def _decayed(self, at: Tensor, rate: float) -> Tensor:
        part = divide(minimum(at, self.decay_steps), self.decay_steps)
        return multiply(_wave(part, 1.0, self.alpha), rate)


class CosineDecayRestarts(LearningRateSchedule):
    """Half cosine waves in sequence: the first decays from the initial rate to `alpha` times it in
    `first_decay_steps`; each later one is `t_mul` times as long and starts at `m_mul` times the
    height.

    Raises SignatureError (a ValueError) unless `first_decay_steps` is above 0, and for a `t_mul`
    below 1, with which the waves would run out.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> rate = tg.optimizers.schedules.CosineDecayRestarts(1.0, 10, m_mul=0.5)
    >>> [round(float(rate(step)), 4) for step in (0, 5, 10, 20, 30)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self.initial_learning_rate = self._number(
            "initial_learning_rate", initial_learning_rate, low=0
        )
        self.first_decay_steps = self._steps("first_decay_steps", first_decay_steps)
        self.t_mul = self._number("t_mul", t_mul, low=1)
        self.m_mul = self._number("m_mul", m_mul, low=0)
        self.alpha = self._number("alpha", alpha, low=0)
        self.name = name

    def __call__(self, step: TensorLike) -> Tensor:
        at = divide(_real(step), self.first_decay_steps)
        number = self._wave_at(at)
        length = pow(as_tensor(self.t_mul, float32), number)
        part = clip_by_value(divide(subtract(at, self._begin(number)), length), 0.0, 1.0)
        height = pow(as_tensor(self.m_mul, float32), number)
        return multiply(_wave(part, height, self.alpha), self.initial_learning_rate)

    def _begin(self, number: Tensor) -> Tensor:
        """The start of a wave, in lengths of the first one."""
        if self.t_mul == 1:
            return number
        growth = subtract(pow(as_tensor(self.t_mul, float32), number), 1.0)
        return divide(growth, self.t_mul - 1.0)

    def _wave_at(self, at: Tensor) -> Tensor:
        """The number of the wave, from 0."""
        if self.t_mul == 1:
            return floor(at)
        growth = add(multiply(at, self.t_mul - 1.0), 1.0)
        # At the start of a wave, rounding must not put the step in the previous one.
        return floor(divide(add(log(growth), _ROUNDING), math.log(self.t_mul)))


#: Larger than the error of the logarithm of a step count in float32.
_ROUNDING = 3e-6


def _wave(part: Tensor, height: Tensor | float, alpha: float) -> Tensor:
    """Half a cosine wave, from `height` to `alpha`."""
    fallen = multiply(multiply(add(cos(multiply(part, math.pi)), 1.0), 0.5), height)
    return add(multiply(fallen, 1.0 - alpha), alpha)


__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
]
