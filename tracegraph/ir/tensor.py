"""Tensor, Node and Graph: a value, the operation that computes it, and a function of values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import UNKNOWN, Source
from tracegraph.core.types import DType, TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracegraph.eager.layouts import Layout
    from tracegraph.ir.builder import Builder
    from tracegraph.ir.methods import TensorMethods
    from tracegraph.ir.op import Op
    from tracegraph.typing import TensorLike
else:
    TensorMethods = object


_Referred = TypeVar("_Referred")


def _name_of(value: Any) -> str:
    return getattr(value, "name", None) or "a tensor"


class Reference(Generic[_Referred]):
    """A hashable stand-in for a tensor or a Variable, whose own `==` is elementwise: `x.ref()`."""

    __slots__ = ("_referred",)

    _referred: _Referred

    def __init__(self, referred: _Referred) -> None:
        self._referred = referred

    def deref(self) -> _Referred:
        """The tensor or Variable itself."""
        return self._referred

    def __eq__(self, other: object) -> bool:
        is_reference = isinstance(other, Reference)
        return is_reference and self._referred is cast("Reference[Any]", other)._referred

    def __hash__(self) -> int:
        return id(self._referred)

    def __repr__(self) -> str:
        return f"<Reference to {_name_of(self._referred)}>"


class Tensor(TensorMethods):
    """A value: in a graph, pending at top level, or materialised.

    One class serves all three; the slots that are set tell them apart:
    - `node` computes the value, in a graph or in the list of pending nodes; None once the value
      exists;
    - `buffer` is the value, an array on the device; unset until the value exists;
    - `host` is the value as a NumPy array, while no device holds it.

    `==` is elementwise and `hash` is identity, as in TensorFlow. Operators and methods of the
    public mathematics are listed in `TensorMethods`, and installed by `tracegraph.api.operators`.
    """

    __slots__ = (
        *("__weakref__", "_assigned", "_gradient_of", "_name", "_role", "_provenance"),
        *("_keras_mask", "_logits", "_slice_of", "_source", "buffer", "host", "node", "type"),
    )

    #: Makes NumPy defer to us in binary operations with an ndarray on the left.
    __array_priority__ = 100.0

    type: TensorType
    node: Node | None
    buffer: Any
    host: Any
    #: Where its steps count, if a layer said so; see `tracegraph.operands.masks`.
    _keras_mask: Any
    #: If an activation computed these probabilities, of what; see `tracegraph.operands.logits`.
    _logits: Any
    #: The Variable and the index that it was read with, so that users can assign to the slice.
    _slice_of: tuple[Any, Any]
    #: If this is the gradient of a scalar, a weak reference to the tensor it was taken by: the
    #: Jacobian of this by that tensor is symmetric.
    _gradient_of: Any
    #: Its role as an input of a graph; builders set it. See `role`.
    _role: str
    #: The user's line, once its node is gone; or the arguments from which to build the `Source`.
    _source: Source | tuple[Any, ...]
    #: How a value without a node was computed, as recorded by `eager.provenance`; for a read of a
    #: Variable, the tensor that represents the Variable.
    _provenance: Any
    #: For a tensor that represents a Variable: the last assignment, as recorded by
    #: `eager.provenance`.
    _assigned: Any

    def __init__(self, type: TensorType, buffer: Any) -> None:
        self.type = type
        self.buffer = buffer
        self.node = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def __numpy_dtype__(self) -> Any:
        """NumPy's dtype, under the name by which NumPy, and through it `jnp.asarray`, finds it."""
        return self.type.dtype.numpy_dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.type.shape)

    @property
    def is_made(self) -> bool:
        """Whether the value already exists."""
        return self.node is None

    @property
    def name(self) -> str | None:
        """The user's name for it, or the name of the argument; None for most."""
        try:
            return self._name
        except AttributeError:
            return None

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    @property
    def role(self) -> str:
        """What an input of a graph represents: "argument"; "variable", a Variable; "captured", an
        outside tensor that the function uses; "token"."""
        role = getattr(self, "_role", "argument")
        return "variable" if role == RANDOM_STATE else role

    @role.setter
    def role(self, role: str) -> None:
        self._role = role

    @property
    def is_variable(self) -> bool:
        """Whether it is a graph input that represents a Variable."""
        return self.role == "variable"

    @property
    def is_random_state(self) -> bool:
        """Whether that Variable is the state of a generator."""
        return getattr(self, "_role", None) == RANDOM_STATE

    @property
    def source(self) -> Source:
        """The user's line that created it."""
        if self.node is not None:
            return self.node.source
        try:
            source = self._source
        except AttributeError:
            return UNKNOWN
        if isinstance(source, tuple):  # see `made_at`, and results of calls
            source = self._source = Source(*source)
        return source

    __hash__ = object.__hash__

    def ref(self) -> Reference[Tensor]:
        """A hashable reference, whose `==` is identity: `x.ref().deref() is x`."""
        return Reference(self)

    if TYPE_CHECKING:  # what `eager.tensor_methods`, `state.scatter` and `tracegraph.numpy` install

        @property
        def device(self) -> str:
            """The device that holds the value, such as
            '/job:localhost/replica:0/task:0/device:CPU:0'; several are separated by commas. While
            tracing, the default device."""
            ...

        @property
        def memory_kind(self) -> str | None:
            """The memory that holds the value, in JAX's terms: "device" or "pinned_host"; None
            while tracing, and where JAX does not know."""
            ...

        @property
        def layout(self) -> Layout | None:
            """How the value is sharded over the devices of a mesh; None if it is on one device."""
            ...

        def numpy(self) -> NDArray[Any]:
            """The value as a new NumPy array; a NumPy scalar for a tensor without axes.

            Raises TraceError while tracing.
            """
            ...

        def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
            """The tensor itself if it is on that device; otherwise raises ValueError."""
            ...

        def item(self) -> Any:
            """The only element as a Python number. Raises ValueError unless there is exactly
            one."""
            ...

        def assign(
            self, value: TensorLike, name: str | None = None, read_value: bool = True
        ) -> Any:
            """Assigns to the part of a Variable that this slice was read from, as in
            `v[1:3].assign(value)`. Raises AttributeError for any other tensor."""
            ...

        def __bool__(self) -> bool: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __complex__(self) -> complex: ...
        def __index__(self) -> int: ...
        def __format__(self, spec: str) -> str: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
        def __dlpack__(
            self,
            *,
            stream: Any = None,
            max_version: tuple[int, int] | None = None,
            dl_device: tuple[Any, int] | None = None,
            copy: bool | None = None,
        ) -> Any: ...
        def __dlpack_device__(self) -> Any: ...
        def __copy__(self) -> Tensor: ...
        def __deepcopy__(self, memo: Any = None) -> Tensor: ...


def pending_tensor(type: TensorType, node: Node) -> Tensor:
    """A tensor that `node` will compute."""
    tensor = Tensor.__new__(Tensor)
    tensor.type = type
    tensor.node = node
    return tensor


# The functions below belong to `Tensor`, but its methods are visible to users.


def host_tensor(type: TensorType, array: Any) -> Tensor:
    """A tensor whose value is a NumPy array that nobody may write to any more."""
    tensor = Tensor.__new__(Tensor)
    tensor.type = type
    tensor.node = None
    tensor.host = array
    # Reading a slot that is set is faster than missing one.
    tensor._provenance = None  # pyright: ignore[reportPrivateUsage]
    return tensor


def made_at(tensor: Tensor, frame: FrameType) -> None:
    """Records where a value came from, for a tenth of the cost of a `Source`, built on demand."""
    tensor._source = frame.f_code, frame.f_lasti  # pyright: ignore[reportPrivateUsage]


def set_buffer(tensor: Tensor, buffer: Any) -> None:
    """Sets the value of a pending tensor and drops its node, but keeps its source line."""
    node = tensor.node
    tensor.buffer = buffer
    if node is not None:
        tensor._source = node.source  # pyright: ignore[reportPrivateUsage]
        tensor.node = None


class Node:
    """An op applied to tensors: `outputs = op(*inputs)`, created at `source` in `builder`."""

    __slots__ = ("__weakref__", "builder", "inputs", "op", "outputs", "source")

    def __init__(
        self, op: Op, inputs: tuple[Tensor, ...], source: Source, builder: Builder | None
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.source = source
        self.builder = builder
        self.outputs: tuple[Tensor, ...] = ()

    def depending(self, tracked: set[Tensor]) -> list[Tensor]:
        """The differentiable outputs that depend on any tensor in `tracked`."""
        if self.op.stops_gradients or tracked.isdisjoint(self.inputs):
            return []
        outputs = [y for y in self.outputs if y.type.dtype.is_differentiable]
        if not self.op.can_prune:
            return outputs
        flags = self.op.depending(tuple([x in tracked for x in self.inputs]))
        known = {y for y, depends in zip(self.outputs, flags, strict=True) if depends}
        return [y for y in outputs if y in known]

    def __repr__(self) -> str:
        operands = ", ".join(str(x.type) for x in self.inputs)
        return f"<{self.op.name}({operands}) at {self.source}>"


#: The key in a traced graph's `cache` for its assignments: pairs (position of the new value among
#: the outputs, position of the old one among the inputs, or None if that is not an input).
ASSIGNED = "assigned"
#: The role of an input that represents the state of a generator.
RANDOM_STATE = "random state"
#: The key in a traced graph's `cache` for the function that describes multi-device costs.
DEVICE_COSTS = "device_costs"

#: The key in a graph's `cache` for the notes above the first line of its text: a function that
#: returns the lines.
NOTES = "notes"


class Graph:
    """A function as data: `outputs` computed from `inputs` by `nodes`, in topological order.

    A finished graph is never edited. Whatever passes derive from it (gradients, specialisations) is
    kept in `cache`, and so lives exactly as long as the graph.
    """

    __slots__ = ("__weakref__", "cache", "inputs", "name", "nodes", "outputs")

    def __init__(
        self,
        name: str,
        inputs: tuple[Tensor, ...],
        nodes: tuple[Node, ...],
        outputs: tuple[Tensor, ...],
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.nodes = nodes
        self.outputs = outputs
        self.cache: dict[Any, Any] = {}

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` derives from this graph, computed once and cached under `key`; never None."""
        found = self.cache.get(key)
        if found is None:
            with headroom():  # the derivation may recurse into the graphs that this one calls
                found = self.cache[key] = make()
        return found

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(map(get_type, self.inputs))

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(map(get_type, self.outputs))

    @property
    def is_static(self) -> bool:
        """Whether every size is known, so that the graph can be lowered unchanged."""
        return all(type.is_static for type in self.input_types)

    @property
    def has_effects(self) -> bool:
        """Whether any of its nodes does more than compute."""
        return self.cached("effects", lambda: (any(node.op.has_effects for node in self.nodes),))[0]

    @property
    def cuts_runs(self) -> bool:
        """Whether it, or a graph that it holds, cannot be compiled to a single XLA program."""
        return self.cached("cuts", lambda: (any(node.op.cuts_runs for node in self.nodes),))[0]

    @property
    def may_never_end(self) -> bool:
        """Whether it, or a graph that it holds, contains a loop without a known bound."""
        return self.cached("ends", lambda: (any(node.op.may_never_end for node in self.nodes),))[0]

    def with_outputs(self, outputs: tuple[Tensor, ...]) -> Graph:
        return Graph(self.name, self.inputs, self.nodes, outputs)

    def assigning_as(self, other: Graph) -> Graph:
        """Itself, with the assignments of `other` recorded, whose inputs and outputs it shares."""
        self.cache.setdefault(ASSIGNED, other.cache.get(ASSIGNED, ()))
        return self

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """Itself, as for an op: neither is ever edited."""
        return self

    def graphs(self) -> Iterator[Graph]:
        """This graph and all graphs that its ops hold, callees first, each one once."""
        seen: set[Graph] = set()
        stack: list[tuple[Graph, bool]] = [(self, False)]
        while stack:
            graph, is_expanded = stack.pop()
            if graph in seen:
                continue
            if is_expanded:
                seen.add(graph)
                yield graph
                continue
            stack.append((graph, True))
            callees = [inner for node in graph.nodes for inner in node.op.graphs()]
            stack.extend((inner, False) for inner in reversed(callees) if inner not in seen)

    def all_nodes(self) -> Iterator[Node]:
        """The nodes of all `graphs()`."""
        return (node for inner in self.graphs() for node in inner.nodes)

    def node_count(self) -> int:
        """The number of `all_nodes()`."""
        return sum(len(inner.nodes) for inner in self.graphs())

    if TYPE_CHECKING:  # installed by the floor of text and views

        def as_text(self, locations: bool = False) -> str: ...
        @staticmethod
        def from_text(text: str) -> Graph: ...
        def verify(self) -> None: ...
        def _repr_html_(self) -> str: ...
        def get_operations(self) -> list[Any]: ...
        def summary(self, devices: bool = False) -> Any: ...
        def to_dot(self, path: Any = None) -> str: ...
        def to_html(self, path: Any = None) -> str: ...
        def to_json(self, path: Any = None, indent: int | None = None) -> str: ...
        def to_mermaid(self, path: Any = None) -> str: ...
        def to_model_explorer(self, path: Any = None) -> str: ...
        def to_networkx(self, nested: bool = True) -> Any: ...

    def __repr__(self) -> str:
        return f"<tg.Graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes>"


get_type = operator.attrgetter("type")
get_buffer = operator.attrgetter("buffer")
