"""A graph applied as one node, one op per file: calls, custom calls, recomputed calls. Importing
the package registers all of them, since graph files refer to them by name."""

from tracegraph.calls import call, custom_call, recompute, undifferentiable

__all__ = ["call", "custom_call", "recompute", "undifferentiable"]
