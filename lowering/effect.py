"""Lowering of `tracegraph.ops.effect`: host calls are ordered by the token that they thread."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from lowering.rules import lowers
from tracegraph.ops import effect as ops
from tracegraph.source import here


@lowers(ops.Read)
def _read(op: ops.Read, value: Any, handle: Any) -> Any:
    return value


@lowers(ops.Check)
def _check(op: ops.Check, condition: Any, *operands: Any) -> Any:
    return condition


@lowers(ops.HostCall)
def _host_call(op: ops.HostCall, token: Any, *xs: Any) -> Any:
    done = np.zeros((), np.bool_)
    function = ops.host_function(op, here())

    def call(token: Any, *xs: Any) -> Any:
        return (done, *function(*map(np.asarray, xs)))

    shapes = [jax.ShapeDtypeStruct(type.shape, type.dtype.numpy_dtype) for type in op.types]
    results = (jax.ShapeDtypeStruct((), jnp.bool_), *shapes)
    # Not `ordered`: the token is data, and orders the calls.
    return tuple(io_callback(call, results, token, *xs, ordered=False))


def _is_foreign(record: logging.LogRecord) -> bool:
    """Whether what JAX logs is not the failure of a host function, which its caller is told of."""
    return not (record.exc_info and isinstance(record.exc_info[1], ops.HostFailure))


logging.getLogger(io_callback.__module__).addFilter(_is_foreign)
