"""Lowering of `tracegraph.ops.layout`, and everything else about several devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lowering.device import context_of
from lowering.rules import lowers
from tracegraph.core.mesh_axes import mesh_text, parsed_mesh, plain_axes
from tracegraph.ops import layout as ops


class Placement(NamedTuple):
    """The layout of an array: the text of its mesh, the numbers of its devices where they are not
    the first ones, and its axes."""

    mesh: str
    devices: tuple[int, ...] | None
    axes: tuple[Any, ...]


def devices() -> list[Any]:
    """All devices of JAX's, those of other processes among them."""
    return jax.devices()


@functools.cache
def jax_mesh(text: str, numbers: tuple[int, ...] | None) -> Any:
    """JAX's mesh; None where this machine has too few devices, or not those."""
    shape = parsed_mesh(text)
    by_number = {device.id: device for device in jax.devices()}
    chosen = jax.devices()[: math.prod(shape.values())] if numbers is None else None
    if chosen is None and by_number.keys() >= set(numbers or ()):
        chosen = [by_number[number] for number in numbers or ()]
    if chosen is None or len(chosen) != math.prod(shape.values()):
        return None
    return jax.sharding.Mesh(np.array(chosen).reshape([*shape.values()]), tuple(shape))


def numbers_of(devices: Iterable[Any]) -> tuple[int, ...] | None:
    """The numbers of devices; None for the first ones in their order."""
    given = list(devices)
    return None if given == jax.devices()[: len(given)] else tuple([x.id for x in given])


def sharding(placement: Placement) -> Any:
    """JAX's sharding of a layout; None where this machine lacks the devices."""
    mesh = jax_mesh(placement.mesh, placement.devices)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(*placement.axes))


def placement_of(sharding: Any, rank: int) -> Placement | None:
    """The layout that a sharding of JAX's is for arrays of a rank; None for one device."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    mesh, spec = sharding.mesh, tuple(sharding.spec)
    return Placement(
        mesh_text({str(name): size for name, size in mesh.shape.items()}),
        numbers_of(mesh.devices.flat),
        plain_axes((*spec, *(None,) * (rank - len(spec)))),
    )


def placement_of_array(array: Any) -> Placement | None:
    """The layout of a buffer; None for one that is on one device, or on the host."""
    return placement_of(getattr(array, "sharding", None), array.ndim)


def put(array: Any, placement: Placement) -> Any:
    """A buffer of its own with this layout; each device is sent what it holds, and no more."""
    with context_of(array.dtype), jax.ensure_compile_time_eval():
        return jax.device_put(array, sharding(placement), may_alias=False)


@lowers(ops.WithLayout)
def _with_layout(op: ops.WithLayout, x: Any) -> Any:
    found = sharding(Placement(op.mesh, op.devices, op.axes))
    return x if found is None else jax.lax.with_sharding_constraint(x, found)
