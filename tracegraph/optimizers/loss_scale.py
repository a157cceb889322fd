"""Dynamic loss scaling, which keeps float16 gradients from underflowing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph.array.arguments import as_list, refuse_kind
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import stack
from tracegraph.boundary.tracebacks import asked
from tracegraph.control_flow.branches import cond
from tracegraph.core.types import float32, int32
from tracegraph.errors import SignatureError, fail, fail_absent
from tracegraph.ir.builder import at_top_level
from tracegraph.math.elementwise.arithmetic import add, multiply
from tracegraph.math.elementwise.logic import equal, is_finite
from tracegraph.math.reduction import reduce_all
from tracegraph.optimizers.base import Given, Optimizer, atomic_step, connected_pairs, state
from tracegraph.optimizers.rows import RowGradient
from tracegraph.state.module import Module, in_scope
from tracegraph.state.variable import Variable
from tracegraph.typing import Rate

#: What Keras 2 had, and what to do instead.
_FORMER = {
    "get_scaled_loss": "use optimizer.scale_loss(loss)",
    "get_unscaled_gradients": "leave it out: apply_gradients divides the gradients by the scale",
    "loss_scale": "use optimizer.dynamic_scale",
    "dynamic": "the scale is always dynamic; scale the loss yourself for a fixed one",
    "initial_growth_steps": "use optimizer.dynamic_growth_steps",
    "dynamic_counter": "use optimizer.step_counter",
}


class LossScaleOptimizer(Optimizer):
    """Wraps an optimizer, and scales the loss by `dynamic_scale`.

    `minimize` multiplies the loss by it; for gradients that you compute yourself, `scale_loss`
    does. `apply_gradients` divides the gradients. If any of them is infinite or nan, it skips the
    step and halves the scale; after `dynamic_growth_steps` steps without one it doubles the scale.

    - `inner_optimizer`: the optimizer that takes the steps, with its learning rate, clipping etc.
    - `initial_scale`: the first scale.

    Raises DTypeError (a TypeError) if `inner_optimizer` is not an optimizer, and SignatureError (a
    ValueError) if it has its own `loss_scale_factor`, or for numbers that are not above 0.

    Source: Micikevicius et al., "Mixed Precision Training" (2017).

    >>> optimizer = tg.optimizers.LossScaleOptimizer(tg.optimizers.SGD(0.5), initial_scale=8.0)
    >>> v = tg.Variable(1.0)
    >>> with tg.GradientTape() as tape:
    ...     loss = optimizer.scale_loss(v * v)
    >>> _ = optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    >>> float(v)
    0.0
    """

    def __init__(
        self,
        inner_optimizer: Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
    ) -> None:
        # Settings and step state belong to the inner optimizer.
        Module.__init__(self, name)
        if not isinstance(inner_optimizer, Optimizer):
            rule = "inner_optimizer is an optimizer"
            fix = "give one, such as tg.optimizers.Adam()"
            refuse_kind("LossScaleOptimizer", rule, inner_optimizer, fix=fix)
        if inner_optimizer._scale() is not None:
            fail(
                SignatureError,
                f"LossScaleOptimizer: {inner_optimizer!r} scales losses itself",
                fix="leave out its loss_scale_factor",
            )
        self.inner_optimizer = inner_optimizer
        self.initial_scale = self._optional("initial_scale", initial_scale, above=0)
        self._count("dynamic_growth_steps", dynamic_growth_steps, 1)
        self.dynamic_growth_steps = dynamic_growth_steps
        with at_top_level():
            self.step_counter = state(0, "step_counter", int32)
            self.dynamic_scale = state(float(initial_scale), "dynamic_scale", float32)

    if not TYPE_CHECKING:

        @asked
        def __getattr__(self, name: str) -> NoReturn:
            if name in _FORMER:
                fact = f"a LossScaleOptimizer has no attribute {name!r}"
                fail_absent(name, f"{fact}, which was Keras 2's", _FORMER[name])
            super().__getattr__(name)

    def __repr__(self) -> str:
        return f"<LossScaleOptimizer of {self.inner_optimizer!r}>"

    @property
    def iterations(self) -> Variable:  # type: ignore[override]
        """The number of calls of `apply_gradients` whose gradients were finite."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Variable:
        """The learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Rate) -> None:
        self.inner_optimizer.learning_rate = value

    def build(self, var_list: Iterable[Variable]) -> None:
        """Creates the state for the variables now rather than at their first step."""
        self.inner_optimizer.build(var_list)

    def exclude_from_weight_decay(
        self,
        var_list: Iterable[Variable] | None = None,
        var_names: Iterable[str] | None = None,
    ) -> None:
        """Excludes variables from the inner optimizer's weight decay."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Sets variables to the running means that the inner optimizer keeps."""
        self.inner_optimizer.finalize_variable_values(as_list("finalize", "var_list", var_list))

    def _scale(self) -> Any:
        return self.dynamic_scale

    @in_scope
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Given, Variable]], name: str | None = None
    ) -> Variable:
        """Takes one step if all gradients, which are those of the scaled loss, are finite. Steps of
        several threads come one after the other.

        Raises GradientError (a ValueError) if all gradients are None. Returns `iterations`.
        """
        pairs = connected_pairs(grads_and_vars, self.inner_optimizer.sparse_updates)

        def step() -> None:
            self.inner_optimizer.apply_gradients(self._unscaled_pairs(pairs))
            is_due = equal(self.step_counter, self.dynamic_growth_steps - 1)
            self.step_counter.assign(where(is_due, 0, add(self.step_counter, 1)))
            scale = self.dynamic_scale.read_value()
            self.dynamic_scale.assign(where(is_due, multiply(scale, 2.0), scale))

        def shrink() -> None:
            self.step_counter.assign(0)
            self.dynamic_scale.assign(multiply(self.dynamic_scale.read_value(), 0.5))

        values = [g.sums if isinstance(g, RowGradient) else g for g, _ in pairs]
        finite = reduce_all(stack([reduce_all(is_finite(x)) for x in values]))
        with atomic_step():
            self.build([v for _, v in pairs])  # state must outlive the branches
            cond(finite, step, shrink)
        return self.iterations


__all__ = ["LossScaleOptimizer"]
