"""Optimizers for matrices: factored running means, and orthogonalized steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tracegraph.array.arguments import as_count, as_flag, as_list
from tracegraph.array.shaping import expand_dims
from tracegraph.core.types import DType
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
from tracegraph.math.elementwise.unary import sqrt, square
from tracegraph.math.product import matmul
from tracegraph.math.reduction import norm, reduce_mean
from tracegraph.operands.conversion import cast_to
from tracegraph.optimizers.adam import Adam
from tracegraph.optimizers.base import Optimizer, mixed
from tracegraph.optimizers.shared import Shared, SharedButDecay, takes_shared
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.optimizers.rows import Gradient
    from tracegraph.typing import Rate


class Adafactor(Optimizer):
    """Adaptive steps with factored second moments, which store a row and a column per matrix:
    w - max(epsilon_2, rms(w)) * min(learning_rate, 1 / sqrt(t)) * u / max(1, rms(u) /
    clip_threshold) at step t, with u = g / sqrt(v).

    With s = g ** 2 + epsilon_1 and b = 1 - t ** beta_2_decay, v of a vector or scalar is
    b * v + (1 - b) * s. With more axes it is r * c / mean(r) over the last two: r and c are such
    running means of the means of s over columns, and over rows. rms is the root mean square.

    `relative_step` is accepted as in Keras: the rate is at most 1 / sqrt(t) either way.

    Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"
    (2018).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Adafactor(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    #: Steps depend on means over the whole variable.
    has_steps_of_rows = False

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.beta_2_decay = self._number("beta_2_decay", beta_2_decay, high=0)
        self.epsilon_1 = self._number("epsilon_1", epsilon_1, low=0)
        self.epsilon_2 = self._number("epsilon_2", epsilon_2, low=0)
        self.clip_threshold = self._number("clip_threshold", clip_threshold, low=0)
        self.relative_step = as_flag("Adafactor", "relative_step", relative_step)
        self.slot_names = ("rows", "columns")

    def slot_axes(self, name: str, variable: Variable) -> Sequence[int]:
        axes = [*super().slot_axes(name, variable)]
        if name not in self.slot_names:
            return axes
        if len(axes) < 2:
            return axes if name == "rows" else ()
        return axes[:-1] if name == "rows" else [*axes[:-2], axes[-1]]

    def step_factors(self, rate: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
        step = cast_to(add(self.updates(), 1), dtype)
        return minimum(rate, divide(1.0, sqrt(step))), subtract(1.0, pow(step, self.beta_2_decay))

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> tuple[Tensor, ...]:
        rate, beta = factors
        squares = add(square(gradient), self.epsilon_1)
        rows, columns = slots
        if value.ndim < 2:
            rows = mixed(rows, squares, beta)
            spread = rows
        else:
            rows = mixed(rows, reduce_mean(squares, -1), beta)
            columns = mixed(columns, reduce_mean(squares, -2), beta)
            shares = divide(rows, reduce_mean(rows, -1, True))
            spread = multiply(expand_dims(shares, -1), expand_dims(columns, -2))
        step = divide(gradient, sqrt(spread))
        step = divide(step, maximum(1.0, divide(_rms(step), self.clip_threshold)))
        rate = multiply(maximum(self.epsilon_2, _rms(value)), rate)
        return subtract(value, multiply(rate, step)), rows, columns


def _rms(x: Tensor) -> Tensor:
    return sqrt(reduce_mean(square(x)))


class Muon(Adam):
    """Steps of equal size along all directions of a matrix: w - learning_rate * rms_rate *
    sqrt(max(rows, columns)) * o(g + momentum * m), with m = momentum * m + g; without `nesterov`
    it is o(m), and with a `rms_rate` of None the step is learning_rate * o.

    o brings all singular values close to 1: x / (|x| + 1e-7), and then `ns_steps` times
    muon_a * x + (muon_b * y + muon_c * y @ y) @ x with y = x @ x.T, of x or x.T, whichever is wide.

    Variables with 2 axes take these steps, and decay by `weight_decay`. All others take steps of
    `Adam` with adam_lr_ratio * learning_rate, and decay by adam_weight_decay * learning_rate; so do
    variables with "embedding" in their name, unless `exclude_embeddings` is False, and those in
    whose name one of the regular expressions `exclude_layers` matches. The output layer of a
    network should be among these.

    Source: Jordan et al., "Muon: An Optimizer for Hidden Layers in Neural Networks" (2024);
    `rms_rate`: Liu et al., "Muon is Scalable for LLM Training" (2025).

    >>> v = tg.Variable([[1.0, 0.0], [0.0, 1.0]])
    >>> optimizer = tg.optimizers.Muon(0.1, weight_decay=None, ns_steps=20, rms_rate=None)
    >>> _ = optimizer.apply_gradients([(tg.constant([[5.0, 0.0], [0.0, 3.0]]), v)])
    >>> v.numpy().round(1) + 0.0
    array([[0.9, 0. ],
           [0. , 0.9]], dtype=float32)
    """

    #: A step depends on the whole matrix.
    has_steps_of_rows = False

    @takes_shared
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        *,
        exclude_layers: Iterable[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1.0,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **shared: Unpack[SharedButDecay],
    ) -> None:
        super().__init__(
            learning_rate, adam_beta_1, adam_beta_2, epsilon, weight_decay=weight_decay, **shared
        )
        self.adam_beta_1, self.adam_beta_2 = self.beta_1, self.beta_2
        self.adam_weight_decay = self._optional("adam_weight_decay", adam_weight_decay)
        self.exclude_layers = tuple(as_list("Muon", "exclude_layers", exclude_layers or []))
        self.exclude_embeddings = as_flag("Muon", "exclude_embeddings", exclude_embeddings)
        self.muon_a = self._number("muon_a", muon_a)
        self.muon_b = self._number("muon_b", muon_b)
        self.muon_c = self._number("muon_c", muon_c)
        self.adam_lr_ratio = self._number("adam_lr_ratio", adam_lr_ratio, low=0)
        self.momentum = self._number("momentum", momentum, low=0, high=1)
        self.ns_steps = as_count("Muon", "ns_steps", ns_steps)
        self.nesterov = as_flag("Muon", "nesterov", nesterov)
        self.rms_rate = self._optional("rms_rate", rms_rate)

    def slot_axes(self, name: str, variable: Variable) -> Sequence[int]:
        is_needed = name != "velocity" or self._is_of_adam(variable)
        return super().slot_axes(name, variable) if is_needed else ()

    def _is_of_adam(self, variable: Variable) -> bool:
        name = variable.name
        return (
            len(variable.shape) != 2
            or (self.exclude_embeddings and "embedding" in name.lower())
            or any(re.search(keyword, name) for keyword in self.exclude_layers)
        )

    def _decay_of(self, variable: Variable) -> float | None:
        return self.adam_weight_decay if self._is_of_adam(variable) else self.weight_decay

    def step_factors(self, rate: Tensor, dtype: DType) -> Any:
        return rate, super().step_factors(multiply(rate, self.adam_lr_ratio), dtype)

    def _step(self, gradient: Gradient, variable: Variable, rate: Tensor, factors: Any) -> None:
        of_matrices, of_adam = factors
        own = of_adam if self._is_of_adam(variable) else (of_matrices,)
        super()._step(gradient, variable, rate, own)

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> tuple[Tensor, ...]:
        if not isinstance(factors, tuple):
            return super().update_step(gradient, value, slots, factors)
        momentum, unused = slots
        m = add(multiply(momentum, self.momentum), gradient)
        ahead = add(gradient, multiply(m, self.momentum)) if self.nesterov else m
        rate = factors[0]
        if self.rms_rate is not None:
            rate = multiply(rate, self.rms_rate * max(value.shape) ** 0.5)
        return subtract(value, multiply(rate, self._orthogonal(ahead))), m, unused

    def _orthogonal(self, x: Tensor) -> Tensor:
        is_tall = x.shape[-2] > x.shape[-1]
        size = add(norm(x, axis=(-2, -1), keepdims=True), 1e-7)
        x = divide(x, size)
        for _ in range(self.ns_steps):
            y = matmul(x, x, transpose_a=is_tall, transpose_b=not is_tall)
            y = add(multiply(y, self.muon_b), multiply(matmul(y, y), self.muon_c))
            x = add(multiply(x, self.muon_a), matmul(x, y) if is_tall else matmul(y, x))
        return x


__all__ = ["Adafactor", "Muon"]
