"""Optimizers of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegraph.core.later import opened

if TYPE_CHECKING:
    from tracegraph.jax_programs.optimizer import OptaxOptimizer


def from_optax(transformation: Any, name: str | None = None) -> OptaxOptimizer:
    """An optimizer that does what a transformation of optax does, bit for bit.

    - `transformation`: what `optax.adamw(1e-3)`, `optax.chain(...)` and their like return.

    Its state is in Variables, so that it is in checkpoints and saved models; they are called after
    their field and the variable that they are kept for, such as `kernel_mu`. Of the parameters the
    transformation sees a dict by the names of the variables. A saved step needs no optax.

    Raises TraceError for what is not a transformation.

    >>> import optax
    >>> v = tg.Variable([1.0, 2.0], name="v")
    >>> optimizer = tg.optimizers.from_optax(optax.sgd(0.5, momentum=0.9))
    >>> _ = optimizer.apply_gradients([(tg.constant([1.0, 1.0]), v)])
    >>> v.numpy(), list(optimizer.optax_state)
    (array([0.5, 1.5], dtype=float32), ['0/trace/v'])
    """
    return opened("tracegraph.jax_programs.optimizer").OptaxOptimizer(transformation, name)


__all__ = ["from_optax"]
