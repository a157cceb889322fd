"""Layouts: how a value is divided among the devices of a mesh.

A mesh is a table of axis names and sizes, written `data=4,model=2`. The axes of a layout are one
entry for each axis of a tensor: the name of the mesh axis that divides it, a tuple of several, or
None where it is not divided.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, cast

import numpy as np

from tracegraph.core.shapes import Dim, Shape, ShapeVariable, Size
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch, counted
from tracegraph.ir.op import Batched, Derivative, Op
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.movement import Movement

#: The entry of a layout for one axis of a tensor.
Entry = str | tuple[str, ...] | None

#: The meshes of the `with mesh:` around, the innermost last. Each has a `placement`: its text, and
#: its devices.
ENTERED: ContextVar[tuple[Any, ...]] = ContextVar("meshes", default=())

#: Meshes with more devices than this are refused: no text of others may ask for more.
_MOST_DEVICES = 2**24


class MeshQuestion:
    """A context that finds out whether what runs inside depends on the mesh around it: whether
    somebody asked for the mesh, and did not enter one first."""

    def __init__(self) -> None:
        self._around = ENTERED.get()
        self.is_asked = False

    def __enter__(self) -> MeshQuestion:
        _questions.open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _questions.open.remove(self)

    def note(self, meshes: tuple[Any, ...]) -> None:
        """Called where the innermost one of these is asked for."""
        self.is_asked |= len(meshes) <= len(self._around)


class _Questions(threading.local):
    """Those that are open on each thread."""

    def __init__(self) -> None:
        self.open: list[MeshQuestion] = []


_questions = _Questions()


def mesh_around() -> Any:
    """The mesh of the `with mesh:` around; None without one. What depends on it notes that."""
    meshes = ENTERED.get()
    for question in _questions.open:
        question.note(meshes)
    return meshes[-1] if meshes else None


def placement_around() -> tuple[str, tuple[int, ...] | None] | None:
    """The `placement` of the mesh around, for who keeps something for each mesh."""
    meshes = ENTERED.get()
    return meshes[-1].placement if meshes else None


class WithLayout(Movement):
    """x, whose axes are divided among the devices of a mesh as `axes` says.

    `mesh` is its text, such as `data=4,model=2`. `devices` are the numbers of its devices, where
    they are not the first ones: which devices those are is found when a program is compiled.
    """

    mesh: str
    axes: tuple[Entry, ...]
    devices: tuple[int, ...] | None = None
    is_linear = True

    def as_read(self) -> Op:
        """Inside of `with mesh:` a text means that mesh; axes that it lacks divide nothing."""
        mesh = mesh_around()
        if mesh is None:
            return self
        text, numbers = mesh.placement
        known = parsed_mesh(text)
        named = ([name for name in names_of(entry) if name in known] for entry in self.axes)
        return WithLayout(text, plain_axes(named), numbers)

    def infer(self, x: TensorType) -> TensorType:
        shape = parsed_mesh(self.mesh)
        check_devices(shape, self.devices)
        check_axes(shape, self.axes)
        check_division(shape, self.axes, x.shape)
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (self(g),)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor) -> Batched:
        return WithLayout(self.mesh, (None, *self.axes), self.devices)(x), True

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x

    def is_diagonal_on(self, type: TensorType) -> bool:
        return True


def mesh_text(shape: Mapping[str, int]) -> str:
    """The text of a mesh, such as `data=4,model=2`."""
    return ",".join(f"{name}={size}" for name, size in shape.items())


def parsed_mesh(text: str) -> dict[str, int]:
    """The axes of a mesh from its text. Raises Mismatch."""
    shape: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not (size.isascii() and size.isdecimal()) or name in shape or len(size) > 9:
            raise Mismatch(
                f"{text!r} is not a mesh", fix="write axes and their sizes, such as data=4,model=2"
            )
        shape[name] = int(size)
    check_mesh(shape)
    return shape


def check_mesh(shape: Mapping[str, Any]) -> None:
    """Raises Mismatch for what is not a table of axis names and sizes."""
    if not shape:
        raise Mismatch("a mesh has no axes", fix='name at least one, as in {"data": 8}')
    for name, size in shape.items():
        if not (type(name) is str and name.isidentifier()):
            raise Mismatch(
                f"an axis of a mesh is called {name!r}", fix="use letters, digits and underscores"
            )
        if type(size) is not int or size < 1:
            raise Mismatch(
                f"the axis {name!r} of a mesh has the size {size!r}",
                fix="give each axis at least one device, or leave it out",
            )
    if math.prod(shape.values()) > _MOST_DEVICES:
        raise Mismatch(
            f"the mesh {mesh_text(shape)} has {math.prod(shape.values()):,} devices",
            fix="use smaller axes",
        )


def check_devices(shape: Mapping[str, int], numbers: Sequence[int] | None) -> None:
    """Raises Mismatch where a mesh does not have each of its devices once."""
    if numbers is not None and len(set(numbers)) != math.prod(shape.values()):
        raise Mismatch(
            f"the mesh {mesh_text(shape)} is on the devices {list(numbers)}",
            fix="name each device once, and as many as the product of the sizes",
        )


def names_of(entry: Entry) -> tuple[str, ...]:
    """The mesh axes that divide one axis of a tensor."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def check_axes(shape: Mapping[str, int], axes: Iterable[Any]) -> None:
    """Raises Mismatch where axes of a layout do not belong to the mesh, or are used twice."""
    seen: set[str] = set()
    for entry in axes:
        if not (entry is None or isinstance(entry, (str, tuple))):
            raise Mismatch(
                f"an entry of a layout is {entry!r}",
                fix="use the name of an axis of the mesh, a tuple of names, or None",
            )
        for name in names_of(cast("Entry", entry)):
            if name not in shape:
                raise Mismatch(
                    f"a layout names the axis {name!r}, and the mesh is {mesh_text(shape)}",
                    fix=f"use one of {', '.join(map(repr, shape))}, or None",
                )
            if name in seen:
                raise Mismatch(
                    f"a layout uses the axis {name!r} of the mesh twice",
                    fix="divide one axis of the tensor by it, and leave the others None",
                )
            seen.add(name)


def check_division(shape: Mapping[str, int], axes: Sequence[Entry], sizes: Shape) -> None:
    """Raises Mismatch where a layout does not fit a tensor of these sizes, open ones aside."""
    if isinstance(sizes, ShapeVariable):
        raise Mismatch(
            "a layout was given to a tensor whose rank is not known",
            fix="declare the rank, as in TensorSpec([None, 4])",
        )
    if len(axes) != len(sizes):
        raise Mismatch(
            f"a layout for {counted(len(axes), 'axis', 'axes')}, {axes_text(axes)}, was given to a "
            f"tensor of {counted(len(sizes), 'axis', 'axes')}, {list(sizes)}",
            fix="give one entry for each axis of the tensor, None where it is not divided",
        )
    for axis, (entry, size) in enumerate(zip(axes, sizes, strict=True)):
        parts = math.prod(shape[name] for name in names_of(entry))
        if not isinstance(size, Dim) and size % parts:
            raise Mismatch(
                f"axis {axis} of a tensor {list(sizes)} has the size {size}, which "
                f"{_quotient(shape, names_of(entry), parts)} does not divide",
                fix=f"pad it to {-(-size // parts) * parts}, or leave it None in the layout",
            )


def _quotient(shape: Mapping[str, int], names: Sequence[str], parts: int) -> str:
    product = " x ".join(f"{name!r} of {shape[name]}" for name in names)
    return product if len(names) == 1 else f"{product} = {parts}"


def axes_text(axes: Iterable[Entry]) -> str:
    """The axes of a layout as Python writes them."""
    return repr([list(entry) if isinstance(entry, tuple) else entry for entry in axes])


def plain_axes(axes: Iterable[Any]) -> tuple[Entry, ...]:
    """The axes of a layout in their one form: None for no name, the name for one."""
    return tuple(map(_plain_entry, axes))


def _plain_entry(entry: Any) -> Any:
    if not isinstance(entry, (tuple, list)):
        return entry
    names = tuple(cast("Sequence[Any]", entry))
    return names[0] if len(names) == 1 else names or None


def signature_layouts(graph: Graph, result_count: int) -> Iterator[str]:
    """What a graph states of the layouts of its inputs and results, each on a line of its own:
    `x: [data, -] of data=4,model=2`."""
    stated = {node.inputs[0]: node.op for node in graph.nodes if isinstance(node.op, WithLayout)}
    for x in graph.inputs:
        if x in stated:
            yield f"{x.name}: {_told(stated[x])}"
    for place, y in enumerate(graph.outputs[:result_count]):
        if y.node is not None and isinstance(y.node.op, WithLayout):
            yield f"result {place}: {_told(y.node.op)}"


def _told(op: WithLayout) -> str:
    return f"{layout_text(op.axes) or '[]'} of {op.mesh}"


def layout_text(axes: Sequence[Any]) -> str:
    """The axes of a layout in short: `[data, -]`; nothing for a scalar."""
    words = ["-" if x is None else x if isinstance(x, str) else "+".join(x) for x in axes]
    return f"[{', '.join(words)}]" if words else ""
