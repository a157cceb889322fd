"""Programs of JAX as graphs: `tg.from_jax`, and what is built on it for optax, flax and equinox."""

from tracegraph.jax_programs.programs import from_jax

__all__ = ["from_jax"]
