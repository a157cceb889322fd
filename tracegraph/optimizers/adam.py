"""Adam and its variants: optimizers with running means of gradients and of their squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_count, as_flag
from tracegraph.array.creation import ones_like
from tracegraph.array.indexing.selection import where
from tracegraph.core.types import DType, float32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.logic import greater, logical_and
from tracegraph.math.elementwise.unary import abs, sqrt, square
from tracegraph.math.reduction import reduce_euclidean_norm
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.optimizers.base import Optimizer, state, towards
from tracegraph.optimizers.rows import Gradient
from tracegraph.optimizers.shared import Shared, SharedButDecay, takes_shared
from tracegraph.state.variable import Variable
from tracegraph.typing import Rate


class _WithMeans(Optimizer):
    """An optimizer with a running mean of gradients and one of their sizes."""

    slot_names = ("momentum", "velocity")

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.beta_1 = self._number("beta_1", beta_1, low=0, below=1)
        self.beta_2 = self._number("beta_2", beta_2, low=0, below=1)
        self.epsilon = self._number("epsilon", epsilon, low=0)


class Adam(_WithMeans):
    """Adaptive steps from running means: w - a * m / (sqrt(v) + epsilon), with

    m = m + (g - m) * (1 - beta_1), v = v + (g ** 2 - v) * (1 - beta_2), and
    a = learning_rate * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) at step t.

    `amsgrad` uses the largest v so far.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), in the form with
    the corrections inside the rate; `amsgrad`: Reddi, Kale and Kumar, "On the Convergence of
    Adam and Beyond" (2018).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Adam(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **shared)
        self.amsgrad = as_flag("Adam", "amsgrad", amsgrad)
        if self.amsgrad:
            self.slot_names = (*self.slot_names, "velocity_hat")

    def step_factors(self, rate: Tensor, dtype: DType) -> Tensor:
        first, second = self.corrections(dtype, self.beta_1, self.beta_2)
        return rate * sqrt(second) / first  # type: ignore[operator]

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        momentum, velocity, *hats = slots
        m = towards(momentum, gradient, 1 - self.beta_1)
        v = towards(velocity, square(gradient), 1 - self.beta_2)
        largest = [maximum(hat, v) for hat in hats]
        spread = add(sqrt(largest[0] if largest else v), self.epsilon)
        return subtract(value, divide(multiply(m, factors), spread)), m, v, *largest


class AdamW(Adam):
    """Adam with weight decay: w becomes w - w * weight_decay * learning_rate before each step.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.AdamW(0.5, weight_decay=0.1).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.45], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **shared: Unpack[SharedButDecay],
    ) -> None:
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **shared
        )


class Adamax(_WithMeans):
    """Adam in the infinity norm: w - learning_rate / (1 - beta_1 ** t) * m / (u + epsilon), with
    m = m + (g - m) * (1 - beta_1) and u = max(beta_2 * u, |g|) at step t.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), section 7.

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Adamax(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    slot_names = ("momentum", "norm")

    def step_factors(self, rate: Tensor, dtype: DType) -> Tensor:
        (first,) = self.corrections(dtype, self.beta_1)
        return divide(rate, first)

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Tensor
    ) -> tuple[Tensor, ...]:
        momentum, norm = slots
        m = towards(momentum, gradient, 1 - self.beta_1)
        largest = maximum(multiply(norm, self.beta_2), abs(gradient))
        new = subtract(value, divide(multiply(factors, m), add(largest, self.epsilon)))
        return new, m, largest


class Nadam(_WithMeans):
    """Adam with Nesterov momentum: with m and v as in Adam,
    w - learning_rate * m' / (sqrt(v / (1 - beta_2 ** t)) + epsilon),
    m' = u[t + 1] * m / (1 - u[1] * ... * u[t + 1]) + (1 - u[t]) * g / (1 - u[1] * ... * u[t]), and
    u[t] = beta_1 * (1 - 0.96 ** t / 2) at step t.

    Source: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Nadam(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.4686], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **shared)
        with at_top_level():
            self.u_product = state(1.0, "u_product", float32)

    def _update(self, gradients: Sequence[Gradient], variables: list[Variable]) -> None:
        (now,) = self._shares(float32, 1)
        self.u_product.assign(multiply(self.u_product, now))
        super()._update(gradients, variables)

    def _shares(self, dtype: DType, *offsets: int) -> list[Tensor]:
        """u at the steps `offsets` after the last one taken."""
        steps = (cast_to(add(self.updates(), offset), dtype) for offset in offsets)
        powers = (pow(as_tensor(0.96, dtype), step) for step in steps)
        return [multiply(subtract(1.0, multiply(power, 0.5)), self.beta_1) for power in powers]

    def step_factors(self, rate: Tensor, dtype: DType) -> tuple[Tensor, Tensor, Tensor]:
        """The factors of m, of g and of the square root of v."""
        now, following = self._shares(dtype, 1, 2)
        product = cast_to(as_tensor(self.u_product), dtype)
        (second,) = self.corrections(dtype, self.beta_2)
        of_mean = divide(multiply(rate, following), subtract(1.0, multiply(product, following)))
        of_gradient = divide(multiply(rate, subtract(1.0, now)), subtract(1.0, product))
        return of_mean, of_gradient, second

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> tuple[Tensor, ...]:
        of_mean, of_gradient, second = factors
        momentum, velocity = slots
        m = towards(momentum, gradient, 1 - self.beta_1)
        v = towards(velocity, square(gradient), 1 - self.beta_2)
        step = add(multiply(of_mean, m), multiply(of_gradient, gradient))
        return subtract(value, divide(step, add(sqrt(divide(v, second)), self.epsilon))), m, v


class Lamb(_WithMeans):
    """Adam with steps proportional to the norm of the weights, for large batches:
    w - learning_rate * |w| / |d| * d, where
    d = m / (1 - beta_1 ** t) / (sqrt(v / (1 - beta_2 ** t)) + epsilon), and m and v are as in Adam.
    The norms are over all elements of a variable, and count as 1 if either is 0.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
    (2019).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Lamb(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    #: Steps depend on the norm of the whole variable.
    has_steps_of_rows = False

    def step_factors(self, rate: Tensor, dtype: DType) -> tuple[Tensor, Tensor, Tensor]:
        first, second = self.corrections(dtype, self.beta_1, self.beta_2)
        return rate, first, second

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> tuple[Tensor, ...]:
        rate, first, second = factors
        momentum, velocity = slots
        m = towards(momentum, gradient, 1 - self.beta_1)
        v = towards(velocity, square(gradient), 1 - self.beta_2)
        step = divide(divide(m, first), add(sqrt(divide(v, second)), self.epsilon))
        size, length = (reduce_euclidean_norm(x) for x in (value, step))
        is_usual = logical_and(greater(size, 0.0), greater(length, 0.0))
        ratio = where(is_usual, divide(size, length), ones_like(size))
        return subtract(value, multiply(multiply(ratio, rate), step)), m, v


class ScheduleFreeAdamW(_WithMeans):
    """AdamW that needs no schedule: gradients are taken between z, which takes the steps, and x,
    the mean of all z so far.

    At step t, v = v + (g ** 2 - v) * (1 - beta_2),
    z = z - a * g / (sqrt(v / (1 - beta_2 ** t)) + epsilon), x = x + (z - x) / t, and the variable
    becomes (1 - beta_1) * z + beta_1 * x. The slot "momentum" holds z, which begins as the
    variable.

    - `beta_1`: the share of x in the variable, above 0.
    - `warmup_steps`: an int; a is the learning rate times min(t / warmup_steps, 1), or the rate
      itself if this is 0.

    Other arguments and errors are those of `Optimizer`; SignatureError is raised for a `beta_1` of
    0, too. Slots have the variable's shape and dtype. Source: Defazio et al., "The Road Less
    Scheduled" (2024).

    >>> v = tg.Variable([1.0])
    >>> optimizer = tg.optimizers.ScheduleFreeAdamW(0.5)
    >>> for _ in range(2):
    ...     _ = optimizer.apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.225], dtype=float32)
    """

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **shared)
        if beta_1 == 0:  # x is computed from the variable by a quotient
            fact = f"{type(self).__name__}: beta_1 is 0"
            fail(SignatureError, fact, fix="use a number above 0 and below 1")
        self.warmup_steps = as_count(type(self).__name__, "warmup_steps", warmup_steps)

    def _first_value(self, name: str, variable: Variable, shape: Sequence[Any]) -> Tensor:
        if name == "momentum":
            return variable.read_value()
        return super()._first_value(name, variable, shape)

    def step_factors(self, rate: Tensor, dtype: DType) -> tuple[Tensor, Tensor, Tensor]:
        """The rate, the correction of v, and the share of the new z in x."""
        step = cast_to(add(self.updates(), 1), dtype)
        if self.warmup_steps:
            rate = multiply(rate, minimum(divide(step, self.warmup_steps), 1.0))
        (second,) = self.corrections(dtype, self.beta_2)
        return rate, second, divide(1.0, step)

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> tuple[Tensor, ...]:
        rate, second, share = factors
        momentum, velocity = slots
        v = towards(velocity, square(gradient), 1 - self.beta_2)
        spread = add(sqrt(divide(v, second)), self.epsilon)
        z = subtract(momentum, divide(multiply(rate, gradient), spread))
        x = divide(subtract(value, multiply(momentum, 1 - self.beta_1)), self.beta_1)
        mean = add(multiply(subtract(1.0, share), x), multiply(share, z))
        return add(multiply(z, 1 - self.beta_1), multiply(mean, self.beta_1)), z, v


__all__ = ["Adam", "AdamW", "Adamax", "Lamb", "Nadam", "ScheduleFreeAdamW"]
