"""Lowering of `tracegraph.ops.layout`, and everything else about several devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lowering.device import context_of, outside_of_traces, put as put_on_device
from lowering.distribution import agreement, processes
from lowering.rules import lowers
from tracegraph.core.source import Source
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.tensor import ASSIGNED, Graph, Node, Tensor
from tracegraph.ops import layout as ops
from tracegraph.ops.layout import mesh_text, parsed_mesh, plain_axes


class Placement(NamedTuple):
    """The layout of an array: its mesh's text, the indices of its devices unless they are the first
    ones, and its axes."""

    mesh: str
    devices: tuple[int, ...] | None
    axes: tuple[Any, ...]


def devices() -> list[Any]:
    """All JAX devices, including those of other processes."""
    return jax.devices()


@functools.cache
def jax_mesh(text: str, numbers: tuple[int, ...] | None) -> Any:
    """JAX's mesh; None if this machine lacks these devices."""
    shape = parsed_mesh(text)
    by_number = {device.id: device for device in jax.devices()}
    chosen = jax.devices()[: math.prod(shape.values())] if numbers is None else None
    if chosen is None and by_number.keys() >= set(numbers or ()):
        chosen = [by_number[number] for number in numbers or ()]
    if chosen is None or len(chosen) != math.prod(shape.values()):
        return None
    return jax.sharding.Mesh(np.array(chosen).reshape([*shape.values()]), tuple(shape))


def numbers_of(devices: Iterable[Any]) -> tuple[int, ...] | None:
    """The indices of devices; None if they are the first ones in order."""
    given = list(devices)
    return None if given == jax.devices()[: len(given)] else tuple([x.id for x in given])


def sharding(placement: Placement) -> Any:
    """JAX's sharding for a layout; None if this machine lacks the devices."""
    mesh = jax_mesh(placement.mesh, placement.devices)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(*placement.axes))


def placement_of(sharding: Any, rank: int) -> Placement | None:
    """The layout of a JAX sharding, for arrays of a given rank; None for one device."""
    mesh: Any = getattr(sharding, "mesh", None)
    if not isinstance(sharding, NamedSharding) or not isinstance(mesh, jax.sharding.Mesh):
        return None  # one device, or a mesh that does not have its devices yet
    if mesh.empty:
        return None
    spec = tuple(sharding.spec)
    return Placement(
        text_of(mesh),
        numbers_of(mesh.devices.flat),
        plain_axes((*spec, *(None,) * (rank - len(spec)))),
    )


def named_sharding(buffer: Any) -> Any:
    """The sharding of a buffer on a mesh; None for any other."""
    found = getattr(buffer, "sharding", None)
    return found if isinstance(found, NamedSharding) else None


def placement_of_array(array: Any) -> Placement | None:
    """The layout of a buffer; None for one on a single device, or on the host."""
    return placement_of(getattr(array, "sharding", None), array.ndim)


class Home(NamedTuple):
    """The mesh of a program and what determines it: `what`, and its line in the user's code."""

    mesh: Any
    what: str
    source: Source


def home_of(graph: Graph, buffers: Sequence[Any]) -> Any:
    """The single JAX mesh that a program runs on: that of the sharded arguments and of the layouts
    in its graph. Replicated arguments may move, so they decide only if nothing else does, and the
    state of a generator never does. None for a program on one device. Raises InvalidArgumentError
    for two meshes."""
    found: Home | None = None
    for home in (*_homes_of_buffers(graph, buffers), *_homes_in(graph)):
        if found is None:
            found = home
        elif not _are_same(found.mesh, home.mesh):
            fail(
                InvalidArgumentError,
                f"two meshes meet in one program: {_told(found)}, and {_told(home)}",
                source=home.source,
                fix="make one Mesh, and use it everywhere",
            )
    if found is not None:
        processes.check_is_here(found.mesh)
        return found.mesh
    others = (named_sharding(y) for x, y in _deciding(graph, buffers))
    return next((x.mesh for x in others if x is not None), None)


def _deciding(graph: Graph, buffers: Sequence[Any]) -> Iterator[tuple[Tensor, Any]]:
    """The inputs with their buffers, except those that move to where the program runs."""
    pairs = zip(graph.inputs, buffers, strict=False)
    return ((x, buffer) for x, buffer in pairs if not x.is_random_state)


def moved(buffers: Sequence[Any], mesh: Any) -> list[Any]:
    """The buffers, with unsharded ones that are elsewhere moved to `mesh`; see `is_stray`."""
    return [whole_on(x, mesh) if is_stray(x, mesh) else x for x in buffers]


def is_stray(buffer: Any, mesh: Any) -> bool:
    """Whether a buffer is kept on one device, or is replicated over another mesh."""
    found = named_sharding(buffer)
    if found is None:
        return getattr(buffer, "committed", False) and len(buffer.devices()) == 1
    return found.is_fully_replicated and not _are_same(found.mesh, mesh)


def _homes_of_buffers(graph: Graph, buffers: Sequence[Any]) -> Iterator[Home]:
    for x, buffer in _deciding(graph, buffers):
        found = named_sharding(buffer)
        if found is not None and not found.is_fully_replicated:
            yield Home(found.mesh, _called(x), x.source)


def _homes_in(graph: Graph) -> tuple[Home, ...]:
    """Each mesh of a graph once, with the first line that names it."""
    for inner in () if "homes" in graph.cache else graph.graphs():  # callees first
        inner.cached("homes", lambda inner=inner: tuple(_homes_of_nodes(inner).values()))
    return graph.cache["homes"]


def common_work(nodes: Sequence[Node]) -> list[bool]:
    """For each of these nodes whether several processes compute it together, or it is computed
    from, or together with, what they do."""
    parents: dict[Any, Any] = {}

    def root(x: Any) -> Any:
        while (parent := parents.get(x, x)) is not x:
            x = parent
        return x

    common = set()
    for node in nodes:
        for x in node.inputs:
            if x.node is None:
                buffer = getattr(x, "buffer", None)
                if not x.is_random_state and processes.spans_processes((buffer,)):
                    common.add(node)
            else:
                parents[root(x.node)] = root(node)
        if any(home.mesh.is_multi_process for home in _homes_of_node(node)):
            common.add(node)
    roots = {root(node) for node in common}
    return [root(node) in roots for node in nodes]


def _homes_of_node(node: Node) -> Iterator[Home]:
    """The meshes that a node names."""
    if isinstance(node.op, ops.WithLayout):
        mesh = jax_mesh(node.op.mesh, node.op.devices)
        if mesh is not None:
            yield Home(mesh, f"with_layout at {node.source}", node.source)
    for inner in node.op.graphs():
        yield from _homes_in(inner)


def _homes_of_nodes(graph: Graph) -> dict[Any, Home]:
    found: dict[Any, Home] = {}
    for node in graph.nodes:
        for home in _homes_of_node(node):
            found.setdefault(home.mesh, home)
    return found


def refuse_devices(graph: Graph, buffers: Sequence[Any]) -> None:
    """Raises InvalidArgumentError for arrays on different devices, which cannot be combined."""
    by_devices: dict[frozenset[Any], Tensor] = {}
    for x, buffer in zip(graph.inputs, buffers, strict=False):
        if getattr(buffer, "committed", False):
            by_devices.setdefault(frozenset(buffer.devices()), x)
    if len(by_devices) > 1:
        (some, x), (others, y), *_ = by_devices.items()
        fail(
            InvalidArgumentError,
            f"arrays on different devices meet in one program: {_called(x)} is on "
            f"{_names(some)}, and {_called(y)} on {_names(others)}",
            source=y.source,
            fix="give both the same layout: tg.distribute.with_layout(x, layout)",
        )


def _called(x: Tensor) -> str:
    return f"%{x.name}" if x.name else f"a tensor {x.type}"


def _names(devices: Iterable[Any]) -> str:
    names = [f"{x.platform}:{x.id}" for x in sorted(devices, key=lambda x: x.id)]
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])}, ..."


def _are_same(mesh: Any, other: Any) -> bool:
    """Whether meshes have the same devices in the same order under the same axis names."""
    return mesh is other or (
        mesh.axis_names == other.axis_names
        and mesh.devices.shape == other.devices.shape
        and (mesh.devices == other.devices).all()
    )


def text_of(mesh: Any) -> str:
    """The text of a mesh of JAX's."""
    return mesh_text({str(name): size for name, size in mesh.shape.items()})


def _told(home: Home) -> str:
    return f"{home.what} is on {processes.told_with_devices(home.mesh)}"


def is_elsewhere(buffers: Sequence[Any], mesh: Any) -> bool:
    """Whether any buffer is on several devices, but not on this mesh. (JAX represents equal meshes
    by one object.)"""
    for buffer in buffers:
        found = named_sharding(buffer)
        if found is not None and found.mesh is not mesh:
            return not _are_same(found.mesh, mesh)
    return False


def output_shardings(graph: Graph, buffers: Sequence[Any], mesh: Any) -> tuple[Any, ...]:
    """JAX's shardings of the outputs of a graph, None where XLA chooses: an output with a stated
    layout gets that, and a Variable keeps its own."""
    found: list[Any] = [None] * len(graph.outputs)
    if mesh is None:
        return tuple(found)
    for place, y in enumerate(graph.outputs):
        op = None if y.node is None else y.node.op
        if isinstance(op, ops.WithLayout):
            found[place] = sharding(Placement(op.mesh, op.devices, op.axes))
    for place, source in graph.cache.get(ASSIGNED, ()):
        if found[place] is None:
            given = () if source is None else buffers[source : source + 1]
            found[place] = next(map(named_sharding, given), None) or _whole(mesh)
    return tuple(found)


def input_shardings(graph: Graph, buffers: Sequence[Any]) -> list[Any]:
    """JAX's shardings of the inputs of a graph, None where XLA chooses: those of the buffers, where
    there are any. An assigned Variable that is not on a mesh yet enters with the sharding of its
    new value, which may be stored in its buffer."""
    found = [*map(named_sharding, buffers)] or [None] * len(graph.inputs)
    outputs = output_shardings(graph, buffers, home_of(graph, buffers))
    for place, source in graph.cache.get(ASSIGNED, ()):
        if source is not None:
            found[source] = found[source] or outputs[place]
    return found


def _whole(mesh: Any) -> Any:
    """The sharding that replicates over a mesh."""
    return NamedSharding(mesh, PartitionSpec())


def whole_on(buffer: Any, mesh: Any) -> Any:
    """A buffer on one device, or replicated over another mesh, replicated over this mesh; one that
    is sharded, or already here, unchanged."""
    found = named_sharding(buffer)
    if found is not None and (not found.is_fully_replicated or _are_same(found.mesh, mesh)):
        return buffer
    return _sent(buffer, _whole(mesh))


def off_mesh(buffer: Any) -> Any:
    """A replicated buffer as one of this process alone, which programs on any device accept; any
    other unchanged."""
    if named_sharding(buffer) is None:
        return buffer
    return put_on_device(np.array(buffer))


def has_sharding(buffer: Any, wanted: NamedSharding) -> bool:
    """Whether a buffer is sharded as `wanted` says, on the same mesh: JAX represents equal meshes
    by one object."""
    found = named_sharding(buffer)
    if found is None or found.mesh is not wanted.mesh:
        return False
    return found.is_equivalent_to(wanted, buffer.ndim)


def put(array: Any, placement: Placement) -> Any:
    """A new buffer with this layout; each device is sent only what it holds."""
    return _sent(array, sharding(placement))


def _sent(array: Any, target: NamedSharding) -> Any:
    """A new buffer with a sharding. (JAX sends all of a process's data to all others, to check that
    they have the same.)"""
    processes.check_is_here(target.mesh)
    with context_of(array.dtype), outside_of_traces():
        is_of_several = processes.spans_processes((array,))
        if is_of_several and array.sharding.device_set != target.device_set:
            array, is_of_several = processes.held_whole(array, target.mesh), False
        if target.is_fully_addressable or is_of_several:
            return jax.device_put(array, target, may_alias=False)
        content = np.asarray(array)
        agreement.agree_on_value(content, target)
        return jax.make_array_from_callback(
            content.shape, target, lambda place: np.array(content[place]), dtype=content.dtype
        )


def mesh_of(*xs: Any) -> Any:
    """The mesh of JAX's that divides the program that is being traced, as the types of values tell;
    None where one device runs it. (A program is traced once for each mesh that its arguments are
    on, and by others too, so nothing but a type knows it.)"""
    for x in xs:
        mesh = jax.typeof(x).sharding.mesh
        if mesh.size > 1 and set(mesh.axis_types) == {AxisType.Auto}:  # else types say what divides
            return mesh
    return None


def on_mesh(graph: Graph, arrays: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a graph that is being traced, with the mesh of its program in the types of
    all, for `mesh_of`. An argument that is on no mesh may be divided as well, as XLA goes from
    results to operands."""
    bare = [jax.typeof(x).sharding.mesh.empty for x in arrays]
    if not any(bare):
        return arrays
    mesh = mesh_of(*arrays) or next((home.mesh for home in _homes_in(graph)), None)
    if mesh is None or mesh.size == 1:
        return arrays
    return [whole(x, (), mesh) if is_bare else x for x, is_bare in zip(arrays, bare, strict=True)]


def axes_that_divide(mesh: Any) -> int:
    """How many axes of a mesh have more than one device; none without a mesh."""
    return 0 if mesh is None else sum(size > 1 for size in mesh.axis_sizes)


def whole(x: Any, axes: Iterable[int], mesh: Any) -> Any:
    """x with all of some axes on every device, and the others divided as XLA likes."""
    spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * x.ndim
    for axis in axes:
        spec[axis] = None
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))


def unstated(graph: Graph, outputs: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a branch, which XLA may shard freely. It refuses a conditional whose branches
    end in different layouts, so a layout stated for a branch's result ends inside the branch."""
    mesh = next((home.mesh for home in _homes_in(graph)), None)
    if mesh is None:
        return tuple(outputs)
    free = PartitionSpec.UNCONSTRAINED
    return tuple(
        jax.lax.with_sharding_constraint(y, NamedSharding(mesh, PartitionSpec(*[free] * y.ndim)))
        for y in outputs
    )


@lowers(ops.WithLayout)
def _with_layout(op: ops.WithLayout, x: Any) -> Any:
    found = sharding(Placement(op.mesh, op.devices, op.axes))
    if found is None:
        return x
    return jax.lax.with_sharding_constraint(in_order_of_mesh(x, found), found)


def in_order_of_mesh(x: Any, sharding: NamedSharding) -> Any:
    """A value that is about to get a sharding; if that has mesh axes of one dimension in another
    order than the mesh, first with these in the mesh's order. XLA's partitioner computes wrong
    values from some products with a bias otherwise: it takes their rows to be in that order."""
    names = sharding.mesh.axis_names
    ordered = [
        tuple(sorted(axes, key=names.index)) if isinstance(axes, tuple) else axes
        for axes in sharding.spec
    ]
    spec = PartitionSpec(*ordered)
    if spec == sharding.spec:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, spec))


def with_outputs_in_order(run: Callable[..., Any], shardings: Sequence[Any]) -> Callable[..., Any]:
    """The function, to whose outputs JAX will give shardings, None where XLA chooses: each output
    comes through `in_order_of_mesh`."""

    @functools.wraps(run)
    def ordered(*arrays: Any) -> tuple[Any, ...]:
        outputs = zip(run(*arrays), shardings, strict=True)
        return tuple([y if x is None else in_order_of_mesh(y, x) for y, x in outputs])

    return ordered if any(shardings) else run
