"""Optimizers that scale gradients or their running means, globally or per element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tracegraph.array.arguments import as_flag
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.unary import sign, sqrt, square
from tracegraph.optimizers.base import Optimizer, mixed
from tracegraph.optimizers.shared import Shared, takes_shared
from tracegraph.typing import Rate


class SGD(Optimizer):
    """Gradient descent: w - learning_rate * g.

    With momentum, m = momentum * m - learning_rate * g, and w + m; with `nesterov` too,
    w + momentum * m - learning_rate * g.

    Source of `nesterov`: Sutskever et al., "On the importance of initialization and momentum in
    deep learning" (2013).

    >>> v = tg.Variable([1.0, 2.0])
    >>> _ = tg.optimizers.SGD(0.5).apply_gradients([(tg.constant([1.0, 1.0]), v)])
    >>> v.numpy().round(4)
    array([0.5, 1.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.momentum = self._number("momentum", momentum, low=0, high=1)
        self.nesterov = as_flag("SGD", "nesterov", nesterov)
        self.slot_names = ("momentum",) if momentum else ()

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        step = multiply(gradient, factors)
        if not slots:
            return (subtract(value, step),)
        (momentum,) = slots
        moved = subtract(multiply(momentum, self.momentum), step)
        if self.nesterov:
            return add(value, subtract(multiply(moved, self.momentum), step)), moved
        return add(value, moved), moved


class RMSprop(Optimizer):
    """Gradients over their root mean square: w - learning_rate * g / sqrt(v + epsilon), with
    v = rho * v + (1 - rho) * g ** 2.

    `centered` uses the variance, v - a ** 2 with a = rho * a + (1 - rho) * g, instead of v.
    With `momentum`, m = momentum * m + the step, and w - m.

    Source: Tieleman and Hinton, lecture 6.5 of "Neural Networks for Machine Learning" (2012);
    `centered`: Graves, "Generating Sequences With Recurrent Neural Networks" (2013).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.RMSprop(0.5, rho=0.0).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.rho = self._number("rho", rho, low=0, high=1)
        self.momentum = self._number("momentum", momentum, low=0, high=1)
        self.epsilon = self._number("epsilon", epsilon, low=0)
        self.centered = as_flag("RMSprop", "centered", centered)
        self.slot_names = (
            "velocity",
            *(["momentum"] if momentum else []),
            *(["average_gradient"] if self.centered else []),
        )

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        old = dict(zip(self.slot_names, slots))
        new = {"velocity": mixed(old["velocity"], square(gradient), self.rho)}
        spread = new["velocity"]
        if self.centered:
            new["average_gradient"] = mixed(old["average_gradient"], gradient, self.rho)
            spread = subtract(spread, square(new["average_gradient"]))
        step = divide(multiply(factors, gradient), sqrt(add(spread, self.epsilon)))
        if self.momentum:
            step = new["momentum"] = add(multiply(old["momentum"], self.momentum), step)
        return subtract(value, step), *(new[name] for name in self.slot_names)


class Adagrad(Optimizer):
    """Gradients over the root of the sum of their squares:
    w - learning_rate * g / sqrt(s + epsilon), with s = s + g ** 2, where s starts at
    `initial_accumulator_value`.

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization" (2011).

    >>> v = tg.Variable([1.0])
    >>> optimizer = tg.optimizers.Adagrad(0.5, initial_accumulator_value=0.0)
    >>> _ = optimizer.apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        value = self._number("initial_accumulator_value", initial_accumulator_value, low=0)
        self.initial_accumulator_value = value
        self.epsilon = self._number("epsilon", epsilon, low=0)
        self.slot_names = ("accumulator",)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        (accumulator,) = slots
        total = add(accumulator, square(gradient))
        step = divide(multiply(factors, gradient), sqrt(add(total, self.epsilon)))
        return subtract(value, step), total


class Adadelta(Optimizer):
    """Steps sized by earlier steps: w - learning_rate * d, with
    d = g * sqrt(s + epsilon) / sqrt(v + epsilon), v = rho * v + (1 - rho) * g ** 2, and then
    s = rho * s + (1 - rho) * d ** 2.

    Source: Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012), where the learning rate
    is 1.

    >>> v = tg.Variable([1.0])
    >>> optimizer = tg.optimizers.Adadelta(1.0, rho=0.0, epsilon=1.0)
    >>> _ = optimizer.apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.1056], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.rho = self._number("rho", rho, low=0, high=1)
        self.epsilon = self._number("epsilon", epsilon, low=0)
        self.slot_names = ("accumulated_grad", "accumulated_delta_var")

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        squares, steps = slots
        size = sqrt(add(steps, self.epsilon))
        mean = mixed(squares, square(gradient), self.rho)
        step = divide(multiply(size, gradient), sqrt(add(mean, self.epsilon)))
        return subtract(value, multiply(factors, step)), mean, mixed(steps, square(step), self.rho)


class Ftrl(Optimizer):
    """Follow the regularized leader; `l1_regularization_strength` makes weights exactly 0.

    With p = -learning_rate_power, n' = n + g ** 2, where n starts at `initial_accumulator_value`,
    z = z + g + 2 * l2_shrinkage_regularization_strength * w
    - (n' ** p - n ** p) / learning_rate * w, l1 = l1_regularization_strength and
    l2 = l2_regularization_strength + beta / (2 * learning_rate),
    w = (clip(z, -l1, l1) - z) / (n' ** p / learning_rate + 2 * l2).

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013).

    >>> v = tg.Variable([0.0])
    >>> optimizer = tg.optimizers.Ftrl(0.5, initial_accumulator_value=0.0)
    >>> _ = optimizer.apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([-0.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.learning_rate_power = self._number("learning_rate_power", learning_rate_power, high=0)
        value = self._number("initial_accumulator_value", initial_accumulator_value, low=0)
        self.initial_accumulator_value = value
        for what, strength in (
            ("l1_regularization_strength", l1_regularization_strength),
            ("l2_regularization_strength", l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength),
            ("beta", beta),
        ):
            self._number(what, strength, low=0)
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta
        self.slot_names = ("accumulator", "linear")

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value if name == "accumulator" else 0.0

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        squares, linear = slots
        total = add(squares, square(gradient))
        power, old_power = (pow(x, -self.learning_rate_power) for x in (total, squares))
        moved = multiply(divide(subtract(power, old_power), factors), value)
        shrinkage = multiply(value, 2 * self.l2_shrinkage_regularization_strength)
        leader = add(linear, subtract(add(gradient, shrinkage), moved))
        bound = self.l1_regularization_strength
        ridge = add(2 * self.l2_regularization_strength, divide(self.beta, factors))
        clipped = clip_by_value(leader, -bound, bound)
        new = divide(subtract(clipped, leader), add(divide(power, factors), ridge))
        return new, total, leader


class Lion(Optimizer):
    """Steps of constant size, by the sign of a running mean:
    w - learning_rate * sign(beta_1 * m + (1 - beta_1) * g), and then
    m = beta_2 * m + (1 - beta_2) * g.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Lion(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.beta_1 = self._number("beta_1", beta_1, low=0, high=1)
        self.beta_2 = self._number("beta_2", beta_2, low=0, high=1)
        self.slot_names = ("momentum",)

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        (momentum,) = slots
        target = add(multiply(momentum, self.beta_1), multiply(gradient, 1 - self.beta_1))
        new = subtract(value, multiply(factors, sign(target)))
        return new, mixed(momentum, gradient, self.beta_2)


__all__ = ["SGD", "Adadelta", "Adagrad", "Ftrl", "Lion", "RMSprop"]
