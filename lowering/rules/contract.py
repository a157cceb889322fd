"""Lowering of `tracegraph.ops.contract`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import sizes
from lowering.distribution.layout import axes_that_divide, mesh_of, whole
from lowering.forms import by_device
from lowering.rules import lowers
from lowering.rules.convolution import by_xla, form_on_cpu, precision
from tracegraph.ops import contract as ops


@lowers(ops.Matmul)
def _matmul(op: ops.Matmul, x: Any, y: Any) -> Any:
    # XLA adds up products of 16 bits in float32. To ask for it, by a preferred type, costs half as
    # much again for bfloat16 on CPUs; `tests/ops/test_numbers.py` looks at what is got.
    batch = tuple(range(x.ndim - 2))
    axes = ((x.ndim - 1,), (y.ndim - 2,)), (batch, batch)
    return lax.dot_general(x, y, axes, precision=precision(op))


@lowers(ops.Conv)
def _conv(op: ops.Conv, x: Any, y: Any) -> Any:
    shapes = (*x.shape, *y.shape)
    if 0 in shapes and not any(map(sizes.is_open, shapes)):  # XLA takes no window without elements
        spatial = op.spatial(x.shape[1:-1], y.shape[:-2])
        return jnp.zeros((x.shape[0], *spatial, y.shape[-1]), x.dtype)
    mesh = mesh_of(x, y)
    if mesh is not None:
        return _divided_conv(op, x, y, mesh)
    form = form_on_cpu(op, x, y)
    if form is None:
        return by_xla(op, x, y)
    return by_device(x, y, cpu=partial(form, op), default=partial(by_xla, op))


def _divided_conv(op: ops.Conv, x: Any, y: Any, mesh: Any) -> Any:
    """A convolution of which those axes are whole whose division XLA's partitioner gets wrong.

    Where x and y are both divided in space, as in the gradient by the kernel, it adds the parts up
    over all devices, so an axis of the mesh that divides neither has each part counted again, and
    so has what fills up sizes that are not multiples. Where there are groups, it takes parts of
    channels that are not whole groups.
    """
    space = range(len(op.strides))
    places = [axis + 1 for axis in space]
    is_whole = axes_that_divide(mesh) > 1 or _has_a_large_window(op, x, y)
    if is_whole:
        x, y = whole(x, places, mesh), whole(y, space, mesh)
    if op.groups != 1:
        x, y = whole(x, [x.ndim - 1], mesh), whole(y, range(y.ndim), mesh)
    z = by_xla(op, x, y)
    return whole(z, places, mesh) if is_whole else z  # for those who have JAX transpose it


def _has_a_large_window(op: ops.Conv, x: Any, y: Any) -> bool:
    """Whether the window has more elements than the result has places, as in the gradient by a
    kernel."""
    window, places = y.shape[:-2], (*op.spatial(x.shape[1:-1], y.shape[:-2]),)
    is_open = any(map(sizes.is_open, (*window, *places)))
    return is_open or math.prod(window) >= math.prod(places)
