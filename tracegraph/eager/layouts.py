"""Meshes and layouts for users: grids of devices, and how a value is sharded over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracegraph.core.types import TensorType
from tracegraph.eager import backend
from tracegraph.eager.devices import LogicalDevice, PhysicalDevice, device_named
from tracegraph.eager.pending import buffer_alone, device_buffer, host_value
from tracegraph.errors import Mismatch, ShapeError, SignatureError, fail, kind_of, shown, were
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.ops.layout import (
    ENTERED,
    WithLayout,
    axes_text,
    check_axes,
    check_division,
    check_mesh,
    mesh_around,
    mesh_text,
    parsed_mesh,
    plain_axes,
)


class Mesh:
    """Devices in a grid whose axes have names: `Mesh({"data": 4, "model": 2})`.

    - `shape`: the names of the axes and their sizes, in order.
    - `devices`: JAX's devices, or their names, in the order of the grid; the first ones by default.
      A name is one that `tg.device` accepts, such as "gpu:1".

    Meshes are equal if their axes, sizes and devices are. Inside `with mesh:` a layout may be
    written as just the list of its axes.

    Raises ValueError for an axis of size 0, for a name that is not an identifier, and where there
    are fewer devices than the mesh has.

    >>> mesh = tg.distribute.Mesh({"data": 1})
    >>> mesh.shape
    {'data': 1}
    """

    __slots__ = ("_shape", "placement")

    #: The mesh's text, and the indices of its devices unless they are the first ones.
    placement: tuple[str, tuple[int, ...] | None]

    def __init__(
        self, shape: Mapping[str, int], devices: Sequence[Any] | np.ndarray | None = None
    ) -> None:
        if not isinstance(shape, Mapping):
            fail(
                SignatureError,
                f"the shape of a mesh is {shown(shape)}",
                fix='give names and sizes, as in Mesh({"data": 4, "model": 2})',
            )
        # Sizes may be NumPy integers, as in the shape of an array of devices.
        shape = {k: int(x) if isinstance(x, np.integer) else x for k, x in shape.items()}
        try:
            check_mesh(shape)
        except Mismatch as mismatch:
            fail(SignatureError, mismatch.fact, fix=mismatch.fix)
        given = backend.devices() if devices is None else list(_flat(devices))
        self._begin(dict(shape), None if devices is None else _checked_numbers(shape, given))
        if devices is None and self.size > len(given):
            fail(
                SignatureError,
                f"the mesh {mesh_text(shape)} has {self.size} devices, and there "
                f"{_are(len(given))}",
                fix="use smaller axes; to try without the hardware, set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.size} before the "
                "program starts",
            )

    def _begin(self, shape: dict[str, int], numbers: tuple[int, ...] | None) -> None:
        self._shape, self.placement = shape, (mesh_text(shape), numbers)

    @classmethod
    def of_text(cls, text: str, numbers: tuple[int, ...] | None) -> Mesh:
        """The mesh that a graph names, on devices that may not exist here."""
        mesh = object.__new__(cls)
        mesh._begin(parsed_mesh(text), numbers)
        return mesh

    @property
    def shape(self) -> dict[str, int]:
        """The names of the axes and their sizes."""
        return dict(self._shape)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, in order."""
        return tuple(self._shape)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self._shape.values())

    @property
    def devices(self) -> np.ndarray:
        """JAX's devices, in an array of the mesh's shape."""
        return self.jax_mesh.devices

    @property
    def jax_mesh(self) -> Any:
        """The same as a `jax.sharding.Mesh`. Raises ValueError if the devices do not exist here."""
        found = backend.jax_mesh(*self.placement)
        if found is None:
            fail(
                SignatureError,
                f"the devices of the mesh {self.placement[0]} are not here: there "
                f"{_are(len(backend.devices()))}",
                fix="make a Mesh of the devices that are here",
            )
        return found

    def __enter__(self) -> Mesh:
        ENTERED.set((*ENTERED.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        ENTERED.set(ENTERED.get()[:-1])

    def __reduce__(self) -> Any:
        return Mesh.of_text, self.placement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.placement == other.placement

    def __hash__(self) -> int:
        return hash(self.placement)

    def __repr__(self) -> str:
        numbers = self.placement[1]
        devices = "" if numbers is None else f", devices={list(numbers)}"
        return f"Mesh({self._shape}{devices})"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _flat(devices: Any) -> Iterator[Any]:
    """JAX's devices from a nest of lists, or an array, of devices and names."""
    if isinstance(devices, str | PhysicalDevice | LogicalDevice):
        yield device_named(devices)
    elif isinstance(devices, np.ndarray):
        yield from _flat(devices.ravel().tolist())
    elif isinstance(devices, list | tuple):
        for device in devices:
            yield from _flat(device)
    else:
        yield devices


def _checked_numbers(shape: Mapping[str, int], devices: Sequence[Any]) -> tuple[int, ...] | None:
    """The indices of the devices that a user passed for a mesh."""
    odd = next((x for x in devices if not hasattr(x, "id")), None)
    if odd is not None:
        fail(
            SignatureError,
            f"{kind_of(odd)} is not a device: {shown(odd)}",
            fix='give a list of devices, as `mesh.devices` has them, or of names such as "gpu:1"',
        )
    count, numbers = math.prod(shape.values()), [x.id for x in devices]
    if len(numbers) != count or len(set(numbers)) < len(numbers):
        twice = "" if len(set(numbers)) == len(numbers) else ", some of them twice"
        fail(
            SignatureError,
            f"the mesh {mesh_text(shape)} has {count} devices, and {were(len(numbers))} given"
            f"{twice}",
            fix="give each device once, and as many as the product of the sizes",
        )
    return backend.numbers_of(devices)


class Layout:
    """How a tensor is sharded over the devices of a mesh: `Layout(mesh, ["data", None])`.

    - `mesh`: a Mesh, or a `jax.sharding.Mesh`.
    - `axes`: one entry for each axis of the tensor: the name of the mesh axis that shards it, a
      tuple of several, or None where every device has all of it.

    Layouts are equal if their meshes and axes are.

    Raises ValueError for an axis that the mesh lacks, or that is used twice.

    >>> mesh = tg.distribute.Mesh({"data": 1})
    >>> tg.distribute.Layout(mesh, ["data", None])
    Layout(Mesh({'data': 1}), ['data', None])
    """

    __slots__ = ("_axes", "_mesh")

    def __init__(self, mesh: Mesh, axes: Sequence[str | Sequence[str] | None]) -> None:
        self._mesh = as_mesh(mesh)
        if isinstance(axes, str) or not isinstance(axes, Sequence):
            fail(
                SignatureError,
                f"the axes of a layout are {shown(axes)}",
                fix='give a list, one entry for each axis of the tensor, as in ["data", None]',
            )
        self._axes = plain_axes(axes)
        try:
            check_axes(self._mesh.shape, self._axes)
        except Mismatch as mismatch:
            fail(SignatureError, mismatch.fact, fix=mismatch.fix)

    @property
    def mesh(self) -> Mesh:
        """The mesh whose axes the layout names."""
        return self._mesh

    @property
    def axes(self) -> tuple[Any, ...]:
        """One entry for each axis of the tensor: a name, a tuple of names, or None."""
        return self._axes

    @property
    def sharding(self) -> Any:
        """The same as a `jax.sharding.NamedSharding`."""
        _ = self._mesh.jax_mesh  # raises if the devices do not exist here
        return backend.sharding(*self.placement)

    @property
    def is_here(self) -> bool:
        """Whether the devices exist here."""
        return backend.jax_mesh(*self._mesh.placement) is not None

    @property
    def placement(self) -> tuple[str, tuple[int, ...] | None, tuple[Any, ...]]:
        """The layout as data; see `Mesh.placement`."""
        return (*self._mesh.placement, self._axes)

    def of_axes(self, axes: Iterable[int]) -> Layout:
        """The layout of a tensor made of these axes of one with this layout."""
        return Layout(self._mesh, [self._axes[axis] for axis in axes])

    @property
    def op(self) -> WithLayout:
        """The op that applies this layout to a tensor."""
        text, numbers = self._mesh.placement
        return WithLayout(text, self._axes, numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.placement == other.placement

    def __hash__(self) -> int:
        return hash(self.placement)

    def __repr__(self) -> str:
        return f"Layout({self._mesh!r}, {axes_text(self._axes)})"


def as_mesh(value: Any) -> Mesh:
    """Converts to a Mesh, from one of JAX's if need be. Raises SignatureError."""
    if isinstance(value, Mesh):
        return value
    if not hasattr(value, "axis_names") or not hasattr(value, "devices"):
        fail(
            SignatureError,
            f"{kind_of(value)} is not a mesh: {shown(value)}",
            fix='make one: tg.distribute.Mesh({"data": 4, "model": 2})',
        )
    return Mesh({str(name): size for name, size in value.shape.items()}, value.devices)


def as_layout(value: Any, rank: int, mesh: Mesh | None = None) -> Layout:
    """Converts a `layout=` argument for a tensor of a given rank: a Layout, a JAX NamedSharding, or
    a list of axes of `mesh`, which defaults to that of `with mesh:`. Raises SignatureError."""
    if isinstance(value, Layout):
        return value
    if hasattr(value, "is_fully_replicated"):
        found = backend.placement_of_sharding(value, rank)
        if found is None:
            fail(
                SignatureError,
                f"{kind_of(value)} names no axes of a mesh: {shown(value)}",
                fix="use a tg.distribute.Layout, or a jax.sharding.NamedSharding",
            )
        return _layout(found)
    if not isinstance(value, (list, tuple)):
        fail(
            SignatureError,
            f"{kind_of(value)} is not a layout: {shown(value)}",
            fix="use tg.distribute.Layout(mesh, axes)",
        )
    mesh = mesh or mesh_around()
    if mesh is None:
        fail(
            SignatureError,
            f"the axes {axes_text(value)} were given as a layout, and there is no mesh",
            fix="use tg.distribute.Layout(mesh, axes), or write `with mesh:` around it, or around "
            "each call of the function",
        )
    return Layout(mesh, value)


def check_memory(what: str, value: Any) -> None:
    """Raises SignatureError for a sharding of JAX's in another memory than that of the devices:
    what a program computes is there, and a Variable alone is kept elsewhere."""
    kind = getattr(value, "memory_kind", None)
    if kind not in (None, "device"):
        fail(
            SignatureError,
            f"{what}: the sharding is in the memory {kind!r}, and tensors are in 'device'",
            fix="use tg.Variable(..., layout=sharding), which is kept there, or "
            "sharding.with_memory_kind('device')",
        )


def _layout(placement: Any) -> Layout:
    mesh, numbers, axes = placement
    return Layout(Mesh.of_text(mesh, numbers), axes)


def layout_of_op(op: WithLayout) -> Layout:
    """The layout that an op states, on devices that may not exist here."""
    return _layout((op.mesh, op.devices, op.axes))


def layout_of_buffer(buffer: Any) -> Layout | None:
    """The layout of a buffer; None for one on a single device, or on the host."""
    found = None if type(buffer) is np.ndarray else backend.placement_of_array(buffer)
    return None if found is None else _layout(found)


def layout_of(tensor: Tensor) -> Layout | None:
    """The layout of a tensor: the actual one of a value, the one stated by `with_layout` in a
    graph. None for a value on one device, or where nothing is stated."""
    node = tensor.node
    if node is None or (node.builder is not None and node.builder.is_top_level):
        if node is None and not hasattr(tensor, "buffer"):
            return None
        return layout_of_buffer(device_buffer(tensor))
    op = node.op
    return layout_of_op(op) if isinstance(op, WithLayout) else None


def laid_out(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor with a layout. A top-level value that no tape watches moves at once, so that each
    device is sent only what it holds. Raises ShapeError if the layout does not fit."""
    builder = current()
    if tensor.node is not None or not builder.is_top_level or builder.recorders:
        return layout.op(tensor)
    check_layout("with_layout", tensor.type, layout)
    return tensor if layout_of(tensor) == layout else placed(tensor, layout)


def placed(tensor: Tensor, layout: Layout) -> Tensor:
    """A tensor with a new buffer in the layout. A pending value is computed in place: each device
    computes what it holds."""
    _ = layout.mesh.jax_mesh  # raises if the devices do not exist here
    if tensor.node is not None:
        return Tensor(tensor.type, buffer_alone(layout.op(tensor)))
    is_on_host = getattr(tensor, "host", None) is not None
    content = host_value(tensor) if is_on_host else device_buffer(tensor)
    return Tensor(tensor.type, backend.put_on_mesh(content, *layout.placement))


def divided_again(type: TensorType, value: np.ndarray, layout: Layout) -> Tensor:
    """A pickled tensor with the layout that it had, or on one device where others are missing."""
    tensor = host_tensor(type, value)
    return placed(tensor, layout) if layout.is_here else tensor


class DividedInFile:
    """The value of a Variable in a file. When it is needed, each device reads what it holds."""

    __slots__ = ("_layout", "_stored")

    def __init__(self, stored: Any, layout: Layout) -> None:
        self._stored, self._layout = stored, layout

    def sent(self) -> Any:
        """The buffer."""
        sharding, reader = self._layout.sharding, self._stored.reader()
        return backend.from_parts(self._stored.type, sharding, reader)


def check_layout(what: str, type: TensorType, layout: Layout) -> None:
    """Raises ShapeError, which begins with `what`, where a layout does not fit a type."""
    try:
        check_division(layout.mesh.shape, layout.axes, type.shape)
    except Mismatch as mismatch:
        fail(ShapeError, f"{what}: {mismatch.fact}", fix=mismatch.fix)
