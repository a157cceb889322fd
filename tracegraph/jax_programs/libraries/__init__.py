"""Modules of flax and equinox, and optimizers of optax, as ours."""
