"""Lowering of `tracegraph.ops.effect`: host calls are ordered by the token that they thread."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from lowering.rules import lowers, lowers_by
from tracegraph.core.source import here
from tracegraph.core.types import TOKEN, TensorType, as_dtype
from tracegraph.ops import effect as ops


@lowers(ops.HostCall)
def _host_call(op: ops.HostCall, token: Any, *xs: Any) -> Any:
    # What runs here is divided at its effects, which Python makes in between; see
    # `tracegraph.control_passes.split_at_cuts`. This is how the whole graph reads as one program.
    done = np.zeros((), np.bool_)
    function = ops.host_function(op, here())

    def call(token: Any, *xs: Any) -> Any:
        results = function(*map(np.asarray, xs))
        assert results is not None  # all sizes are known
        return (done, *results)

    types = op.infer(TOKEN, *[TensorType(as_dtype(x.dtype), x.shape) for x in xs])[1:]
    shapes = [jax.ShapeDtypeStruct(type.shape, type.dtype.numpy_dtype) for type in types]
    results = (jax.ShapeDtypeStruct((), jnp.bool_), *shapes)
    # Not `ordered`: the token is data, and orders the calls.
    return tuple(io_callback(call, results, token, *xs, ordered=False))


lowers_by(
    {
        ops.Read: lambda op, value, handle: value,
        ops.Check: lambda op, condition, *operands: condition,
        ops.FirstToken: lambda op: np.zeros((), np.bool_),
        ops.Store: lambda op, token, handle, value: token,
        ops.Load: lambda op, token, handle: handle,
    }
)
