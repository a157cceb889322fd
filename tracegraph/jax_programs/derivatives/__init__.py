"""Derivatives that a JAX program states itself, and where it has any."""
