"""Optimizers of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegraph.core.later import opened

if TYPE_CHECKING:
    from tracegraph.jax_programs.libraries.optimizer import OptaxOptimizer


def from_optax(transformation: Any, name: str | None = None) -> OptaxOptimizer:
    """An optimizer that does what an optax transformation does, bit for bit.

    - `transformation`: the result of `optax.adamw(1e-3)`, `optax.chain(...)` and the like.

    Its state lives in Variables, so checkpoints and saved models include it. Each is named after
    its variable and its field, such as `kernel_mu`. The transformation sees the parameters as a
    dict keyed by variable name. A saved step does not need optax.

    Raises TraceError for anything but a transformation.

    >>> import optax
    >>> v = tg.Variable([1.0, 2.0], name="v")
    >>> optimizer = tg.optimizers.from_optax(optax.sgd(0.5, momentum=0.9))
    >>> _ = optimizer.apply_gradients([(tg.constant([1.0, 1.0]), v)])
    >>> v.numpy(), list(optimizer.optax_state)
    (array([0.5, 1.5], dtype=float32), ['0/trace/v'])
    """
    return opened("tracegraph.jax_programs.libraries.optimizer").OptaxOptimizer(
        transformation, name
    )


__all__ = ["from_optax"]
