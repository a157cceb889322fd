"""JAX primitives that create, move, repeat and join elements."""

from __future__ import annotations

from typing import Any

import jax

from tracegraph.eager.layouts import as_layout, check_memory
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import (
    Equation,
    broadcast_to,
    converts,
    converts_by,
    whole_numbers,
)
from tracegraph.jax_programs.sizes import size_of, sizes_of
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import DimSize, Iota, constant
from tracegraph.ops.elementwise import IDENTITY, Cast
from tracegraph.ops.index import UPDATE_SLICE, DynamicSlice
from tracegraph.ops.shape import Concatenate, Pad, Reshape, Reverse, Slice, Transpose, slice_axis


@converts("broadcast_in_dim")
def _broadcast_in_dim(eqn: Equation, x: Tensor, *sizes: Tensor) -> Tensor:
    return broadcast_to(x, eqn.type.shape, eqn.params["broadcast_dimensions"])


@converts("reshape")
def _reshape(eqn: Equation, x: Tensor, *sizes: Tensor) -> Tensor:
    order = eqn.params["dimensions"]  # in which the elements of x are read
    x = x if order is None else Transpose(tuple(order))(x)
    return Reshape(eqn.type.shape)(x)


@converts("stack")
def _stack(eqn: Equation, *xs: Tensor) -> Tensor:
    axis = eqn.params["axis"]
    shape = (*eqn.type.shape[:axis], 1, *eqn.type.shape[axis + 1 :])
    rows = [Reshape(shape)(x) for x in xs]
    return rows[0] if len(rows) == 1 else Concatenate(axis)(*rows)


@converts("unstack")
def _unstack(eqn: Equation, x: Tensor) -> list[Tensor]:
    axis = eqn.params["axis"]
    rows = (slice_axis(x, axis, place, place + 1) for place in range(len(eqn.types)))
    return [Reshape(type.shape)(row) for row, type in zip(rows, eqn.types, strict=True)]


@converts("split")
def _split(eqn: Equation, x: Tensor) -> list[Tensor]:
    axis, parts, start = eqn.params["axis"], [], 0
    for size in sizes_of(eqn.params["sizes"]):
        parts.append(slice_axis(x, axis, start, start + size))
        start = start + size
    return parts


@converts("tile")
def _tile(eqn: Equation, x: Tensor) -> Tensor:
    counts = sizes_of(eqn.params["reps"])
    wide = tuple(size for pair in zip(counts, x.type.shape, strict=True) for size in pair)
    spread = BroadcastTo(wide, tuple(range(1, 2 * x.ndim, 2)))(x)
    return Reshape(eqn.type.shape)(spread)


@converts("pad")
def _pad(eqn: Equation, x: Tensor, value: Tensor) -> Tensor:
    config = eqn.params["padding_config"]
    before, after = (sizes_of([row[k] for row in config]) for k in (0, 1))
    return Pad(before, after, whole_numbers([row[2] for row in config]))(x, value)


@converts("slice")
def _slice(eqn: Equation, x: Tensor) -> Tensor:
    starts, stops = sizes_of(eqn.params["start_indices"]), sizes_of(eqn.params["limit_indices"])
    return Slice(starts, stops, whole_numbers(eqn.params["strides"] or (1,) * x.ndim))(x)


@converts("dynamic_slice")
def _dynamic_slice(eqn: Equation, x: Tensor, *starts: Tensor) -> Tensor:
    return DynamicSlice(eqn.type.shape)(x, *_alike(starts[: x.ndim]))


@converts("dynamic_update_slice")
def _dynamic_update_slice(eqn: Equation, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    return UPDATE_SLICE(x, update, *_alike(starts))


def _alike(starts: Any) -> list[Tensor]:
    """Starts cast to one dtype: the widest among them."""
    if not starts:
        return []
    widest = max((start.dtype for start in starts), key=lambda dtype: (dtype.size, dtype.name))
    return [start if start.dtype is widest else Cast(widest)(start) for start in starts]


@converts("iota")
def _iota(eqn: Equation, *sizes: Tensor) -> Tensor:
    axis, type = eqn.params["dimension"], eqn.type
    numbers = Iota(type.shape[axis], type.dtype)()
    return numbers if len(type.shape) == 1 else BroadcastTo(type.shape, (axis,))(numbers)


@converts("dim_as_value")
def _dim_as_value(eqn: Equation) -> Tensor:
    size = size_of(eqn.params["dim"])
    if isinstance(size, int):
        return constant(size, eqn.type.dtype)
    return Cast(eqn.type.dtype)(DimSize(size)())


@converts("device_put")
def _device_put(eqn: Equation, *xs: Tensor) -> list[Tensor]:
    return [put(eqn, x, place) for x, place in zip(xs, eqn.params["devices"], strict=True)]


def put(eqn: Equation, x: Tensor, place: Any) -> Tensor:
    """x where a program puts it. Raises TraceError for anything but a NamedSharding."""
    if place is None or place is jax.memory.Space.Device:
        return IDENTITY(x)
    if isinstance(place, jax.sharding.NamedSharding):
        return _laid_out(x, place)
    if isinstance(place, jax.memory.Space):
        fix = "keep a value there in tg.Variable(..., memory_kind=)"
    else:
        fix = "call the function inside tg.device, or divide the value by a NamedSharding"
    eqn.refuse(f"the program puts a value on {place}, and a graph is placed from outside", fix)


@converts("sharding_constraint")
def _sharding_constraint(eqn: Equation, x: Tensor) -> Tensor:
    sharding = eqn.params["sharding"]
    if eqn.params.get("unconstrained_dims"):
        fact = f"{sharding} leaves axes to XLA, and a layout states each axis"
        eqn.refuse(fact, "name an axis of the mesh, or None, for each")
    return _laid_out(x, sharding)


def _laid_out(x: Tensor, sharding: Any) -> Tensor:
    check_memory("from_jax", sharding)
    return as_layout(sharding, x.ndim).op(x)


converts_by(
    {
        "squeeze": lambda eqn, x: Reshape(eqn.type.shape)(x),
        "expand_dims": lambda eqn, x: Reshape(eqn.type.shape)(x),
        "transpose": lambda eqn, x: Transpose(tuple(eqn.params["permutation"]))(x),
        "rev": lambda eqn, x: Reverse(tuple(sorted(eqn.params["dimensions"])))(x),
        "concatenate": lambda eqn, *xs: Concatenate(eqn.params["dimension"])(*xs),
        "empty": lambda eqn: full(0, eqn.type),
        "empty2": lambda eqn: full(0, eqn.type),
        "optimization_barrier": lambda eqn, *xs: Barrier()(*xs),
    }
)
