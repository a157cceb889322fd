"""Lowering of `tracegraph.calls`: bodies become functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lowering.program import graph_function
from lowering.rules import lowers
from tracegraph.calls.call import Call
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import RecomputedCall
from tracegraph.calls.undifferentiable import UndifferentiableCall
from tracegraph.ir.tensor import Graph


@lowers(Call, CustomCall, RecomputedCall, UndifferentiableCall)
def _call(op: Call, *xs: Any) -> Any:
    return _function(op.body)(*xs)


def _function(body: Graph) -> Callable[..., tuple[Any, ...]]:
    """One function object per body, so that JAX traces a body once however often it is called."""
    function = body.cache.get("lowered")
    if function is None:
        function = body.cache["lowered"] = jax.jit(graph_function(body))
    return function
