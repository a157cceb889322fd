"""JAX primitives that combine elements: reductions, running totals, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tracegraph.core.types import as_dtype, int16, int32, int64, uint16
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.elementwise import complex_max, complex_min
from tracegraph.jax_programs.equations import Equation, converts
from tracegraph.ops import reduce as ops
from tracegraph.ops.broadcast import Sum, full_like
from tracegraph.ops.elementwise import Cast, FloorMod, Imag, Real
from tracegraph.ops.index import take_along
from tracegraph.ops.sort import ArgSort, Sort, TopK

_REDUCTIONS: dict[str, type[Op]] = {
    "reduce_and": ops.All,
    "reduce_max": ops.Max,
    "reduce_min": ops.Min,
    "reduce_or": ops.Any,
    "reduce_prod": ops.Prod,
    "reduce_sum": Sum,
}


#: What combines complex numbers, and what it makes of no elements.
_OF_COMPLEX = {"reduce_max": (complex_max, -np.inf), "reduce_min": (complex_min, np.inf)}
#: The same for the bits of integers.
_OF_BITS: dict[str, tuple[Callable[..., Any], int]] = {
    "reduce_and": (jnp.bitwise_and, -1),
    "reduce_or": (jnp.bitwise_or, 0),
    "reduce_xor": (jnp.bitwise_xor, 0),
}


def _halved(eqn: Equation, x: Tensor, combine: Callable[..., Any], of_none: Any) -> Tensor:
    """The elements along the axes, combined half with half until one is left."""
    axes = sorted(eqn.params["axes"])

    def reduced(x: Any) -> Any:
        x = jnp.moveaxis(x, axes, range(len(axes)))
        x = x.reshape(math.prod(x.shape[: len(axes)]), *x.shape[len(axes) :])
        if x.shape[0] == 0:
            return jnp.full(x.shape[1:], of_none).astype(x.dtype)
        while (count := x.shape[0]) > 1:
            half = count // 2
            pairs = combine(x[:half], x[half : 2 * half])
            x = jnp.concatenate([pairs, x[2 * half :]])
        return x[0]

    (found,) = eqn.expanded(reduced, x)
    return found


@converts(*_REDUCTIONS)
def _reduce(eqn: Equation, x: Tensor) -> Tensor:
    if eqn.name in _OF_BITS and not x.dtype.is_bool:
        return _halved(eqn, x, *_OF_BITS[eqn.name])
    if eqn.name in _OF_COMPLEX and x.dtype.is_complex:
        return _halved(eqn, x, *_OF_COMPLEX[eqn.name])
    if x.dtype.is_bool and eqn.name not in _OF_BITS:
        return Cast(x.dtype)(_reduction(eqn)(Cast(int32)(x)))
    return _reduction(eqn)(x)


def _reduction(eqn: Equation) -> Op:
    return _REDUCTIONS[eqn.name](tuple(sorted(eqn.params["axes"])))


#: What is said of a primitive that is between devices.
ACROSS_DEVICES = (
    "talks to other devices",
    "take it out of the program, or use jax.vmap within it",
)

_COLLECTIVES: dict[str, type[Op]] = {"psum": Sum, "pmax": ops.Max, "pmin": ops.Min}


@converts(*_COLLECTIVES)
def _collective(eqn: Equation, *xs: Tensor) -> list[Tensor]:
    """A collective over axes by number, which are those of a `jax.vmap` with an axis_name."""
    axes = eqn.params["axes"]
    if not all(isinstance(axis, int) for axis in axes):
        does, fix = ACROSS_DEVICES
        eqn.refuse(f"the primitive {eqn.name!r} {does}, which a graph cannot do", fix)
    return [_COLLECTIVES[eqn.name](tuple(sorted(axes)))(x) for x in xs]


@converts("reduce_xor")
def _reduce_xor(eqn: Equation, x: Tensor) -> Tensor:
    if not x.dtype.is_bool:
        return _halved(eqn, x, *_OF_BITS[eqn.name])
    count = Sum(tuple(sorted(eqn.params["axes"])))(Cast(int32)(x))
    return Cast(x.dtype)(FloorMod()(count, full_like(count, 2)))


@converts("argmax", "argmin")
def _arg_extreme(eqn: Equation, x: Tensor) -> Tensor:
    (axis,) = eqn.params["axes"]
    dtype = as_dtype(eqn.params["index_dtype"])
    own = dtype if dtype in (int16, uint16, int32, int64) else int32
    found = (ops.ArgMax if eqn.name == "argmax" else ops.ArgMin)(axis, own)(x)
    return found if own is dtype else Cast(dtype)(found)


_RUNNING: dict[str, type[Op]] = {
    "cumsum": ops.CumSum,
    "cumprod": ops.CumProd,
    "cumlogsumexp": ops.CumLogsumexp,
}


@converts(*_RUNNING)
def _running(eqn: Equation, x: Tensor) -> Tensor:
    return _RUNNING[eqn.name](eqn.params["axis"], bool(eqn.params["reverse"]))(x)


_EXTREMES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cummax": (jnp.maximum, complex_max),
    "cummin": (jnp.minimum, complex_min),
}


@converts(*_EXTREMES)
def _running_extreme(eqn: Equation, x: Tensor) -> Any:
    params = {"axis": eqn.params["axis"], "reverse": bool(eqn.params["reverse"])}
    step = _EXTREMES[eqn.name][x.dtype.is_complex]
    return eqn.expanded(lambda x: lax.associative_scan(step, x, **params), x)


@converts("sort")
def _sort(eqn: Equation, *xs: Tensor) -> Any:
    axis, count = eqn.params["dimension"], eqn.params["num_keys"]
    if len(xs) == 1 and not xs[0].dtype.is_complex:
        return Sort(axis, False)(xs[0])
    order = _order(xs[:count], axis)
    return [take_along(x, order, axis) for x in xs]


def _order(keys: Sequence[Tensor], axis: int) -> Tensor:
    """The positions that sort by the first key, ties by the second, and so on."""
    *first, last = (part for key in keys for part in _parts(key))
    order = ArgSort(axis, False)(last)
    for key in reversed(first):
        order = take_along(order, ArgSort(axis, False)(take_along(key, order, axis)), axis)
    return order


def _parts(key: Tensor) -> Sequence[Tensor]:
    """Complex numbers are sorted by their real parts, and those of equal ones by the others."""
    return (Real()(key), Imag()(key)) if key.dtype.is_complex else (key,)


@converts("top_k")
def _top_k(eqn: Equation, x: Tensor) -> Any:
    last = x.ndim - 1
    if eqn.params.get("axis", last) not in (last, -1):
        eqn.refuse("top_k along an axis other than the last has no counterpart", "move the axis")
    values, indices = TopK(eqn.params["k"])(x)
    dtype = eqn.types[1].dtype
    return values, indices if indices.dtype is dtype else Cast(dtype)(indices)
