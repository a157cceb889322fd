"""Ops that hold graphs, one file per kind. Importing the package registers them all, since files of
graphs name them."""

from tracegraph.control import (
    branch,
    call,
    custom_call,
    recompute,
    scan,
    undifferentiable,
    while_loop,
)

__all__ = [
    "branch",
    "call",
    "custom_call",
    "recompute",
    "scan",
    "undifferentiable",
    "while_loop",
]
