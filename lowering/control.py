"""Lowering of `tracegraph.control`: bodies become functions of their own."""

from __future__ import annotations

from typing import Any

import jax

from lowering.program import graph_function
from lowering.rules import lowers
from tracegraph.control import call as ops
from tracegraph.control.custom_call import CustomCall
from tracegraph.control.recompute import RecomputedCall
from tracegraph.control.undifferentiable import UndifferentiableCall


@lowers(ops.Call, CustomCall, RecomputedCall, UndifferentiableCall)
def _call(op: ops.Call, *xs: Any) -> Any:
    function = op.body.cache.get("lowered")
    if function is None:
        # One function object per body, so that JAX traces a body once however often it is called.
        function = op.body.cache["lowered"] = jax.jit(graph_function(op.body))
    return function(*xs)
