"""Lowering of `tracegraph.ops.contract`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.rules import lowers
from lowering.rules.convolution import form_on_cpu
from tracegraph.ops import contract as ops


@lowers(ops.Matmul)
def _matmul(op: ops.Matmul, x: Any, y: Any) -> Any:
    # XLA adds up products of 16 bits in float32. To ask for it, by a preferred type, costs half as
    # much again for bfloat16 on CPUs; `tests/test_numbers.py` looks at what is got.
    batch = tuple(range(x.ndim - 2))
    return lax.dot_general(x, y, (((x.ndim - 1,), (y.ndim - 2,)), (batch, batch)))


@lowers(ops.Conv)
def _conv(op: ops.Conv, x: Any, y: Any) -> Any:
    shapes = (*x.shape, *y.shape)
    if 0 in shapes and not any(map(sizes.is_open, shapes)):  # XLA takes no window without elements
        spatial = op.spatial(x.shape[1:-1], y.shape[:-2])
        return jnp.zeros((x.shape[0], *spatial, y.shape[-1]), x.dtype)
    form = form_on_cpu(op, x, y)
    if form is None:
        return _plain_conv(op, x, y)
    return lax.platform_dependent(x, y, cpu=partial(form, op), default=partial(_plain_conv, op))


def _plain_conv(op: ops.Conv, x: Any, y: Any) -> Any:
    rank = len(op.strides)
    layout = (0, rank + 1, *range(1, rank + 1))  # where batch, channels and space stand
    kernel = (rank + 1, rank, *range(rank))  # outputs, channels, window
    padding = tuple((sizes.size(low), sizes.size(high)) for low, high in op.padding)
    lhs_dilation = op.lhs_dilation
    if any(sizes.is_open(size) for pair in padding for size in pair):  # more than JAX takes here
        around = ((*pair, step - 1) for pair, step in zip(padding, lhs_dilation, strict=True))
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *around, (0, 0, 0)))
        padding, lhs_dilation = ((0, 0),) * rank, (1,) * rank
    return lax.conv_general_dilated(
        x,
        y,
        op.strides,
        padding,
        lhs_dilation,
        op.rhs_dilation,
        lax.ConvDimensionNumbers(layout, kernel, layout),
        feature_group_count=sizes.size(op.groups),
    )
