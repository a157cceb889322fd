"""JAX programs as graphs: `tg.from_jax`, and the bridges to optax, flax and equinox on top."""

from tracegraph.jax_programs.programs import from_jax

__all__ = ["from_jax"]
