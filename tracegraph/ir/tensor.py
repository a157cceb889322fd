"""Tensor, Node and Graph: the value, where it was made, and what is made of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from tracegraph.recursion import room
from tracegraph.source import UNKNOWN, Source
from tracegraph.types import DType, TensorType

if TYPE_CHECKING:
    from tracegraph.ir.builder import Builder
    from tracegraph.ir.op import Op


class Tensor:
    """A value: in a graph, pending at top level, or made.

    One class serves all three, told apart by what is set:
    - `node` is the node that makes it, in a graph or in the list of pending nodes; None once
      the value exists;
    - `buffer` is the value, an array on the device; the slot is empty until it is there;
    - `host` is the value as a NumPy array, while it is nowhere else.

    `==` is elementwise and `hash` is identity, as in TensorFlow. Operators and methods of the
    public mathematics are installed by `tracegraph.math`.
    """

    __slots__ = (
        *("__weakref__", "_assigned", "_gradient_of", "_name", "_role", "_origins"),
        *("_slice_of", "_source", "buffer", "host", "node", "type"),
    )

    #: NumPy hands binary operations with an ndarray on the left to us.
    __array_priority__ = 100.0

    type: TensorType
    node: Node | None
    buffer: Any
    host: Any
    #: The Variable and the index that it was read with, so that the slice can be assigned.
    _slice_of: tuple[Any, Any]
    #: A weak reference to the tensor by which a scalar was differentiated, if that gave this one:
    #: its Jacobian by the same is symmetric.
    _gradient_of: Any
    #: What it is as an input of a graph, set by what makes such inputs; see `role`.
    _role: str
    #: The user's line, once there is no node that has it; or a frame's code and offset.
    _source: Any
    #: What a value was made of that has no node, as `runtime.lineage` notes it; of one that is a
    #: read of a Variable, what stands for that.
    _origins: Any
    #: Of what stands for a Variable, what was assigned to it last, as `runtime.lineage` notes it.
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
        """NumPy's dtype: by this name NumPy finds it, and `jnp.asarray` through NumPy."""
        return self.type.dtype.numpy_dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.type.shape)

    @property
    def is_made(self) -> bool:
        """Whether the value exists already."""
        return self.node is None

    @property
    def name(self) -> str | None:
        """The name that the user gave, or the name of the argument; None for most."""
        try:
            return self._name
        except AttributeError:
            return None

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    @property
    def role(self) -> str:
        """What an input of a graph is: "argument"; "variable", if it stands for a Variable;
        "captured", if it is a tensor of outside that the function uses; "token"."""
        return getattr(self, "_role", "argument")

    @role.setter
    def role(self, role: str) -> None:
        self._role = role

    @property
    def is_variable(self) -> bool:
        """Whether it is an input of a graph that stands for a Variable."""
        return self.role == "variable"

    @property
    def source(self) -> Source:
        """The user's line that made it."""
        if self.node is not None:
            return self.node.source
        try:
            source = self._source
        except AttributeError:
            return UNKNOWN
        if type(source) is tuple:  # see `made_at`
            source = self._source = Source(*source)
        return source

    __hash__ = object.__hash__

    if TYPE_CHECKING:  # what floors above install: the mathematics, and asking for values

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __bool__(self) -> bool: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any: ...
        def __neg__(self) -> Any: ...
        def __abs__(self) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...


def pending_tensor(type: TensorType, node: Node) -> Tensor:
    """A tensor that `node` will make."""
    tensor = Tensor.__new__(Tensor)
    tensor.type = type
    tensor.node = node
    return tensor


def host_tensor(type: TensorType, array: Any) -> Tensor:
    """A tensor whose value is a NumPy array, which nobody may write to any more."""
    tensor = Tensor.__new__(Tensor)
    tensor.type = type
    tensor.node = None
    tensor.host = array
    tensor._origins = None  # what is there is found faster than what is not
    return tensor


def made_at(tensor: Tensor, frame: FrameType) -> None:
    """Notes where a value came from. It costs a tenth of a `Source`, which is made when asked."""
    tensor._source = frame.f_code, frame.f_lasti


def settle(tensor: Tensor, buffer: Any) -> None:
    """Gives a pending tensor its value and lets go of its node, but not of its place."""
    node = tensor.node
    tensor.buffer = buffer
    if node is not None:
        tensor._source = node.source
        tensor.node = None


class Node:
    """An op applied to tensors: `outputs = op(*inputs)`, made at `source` in `builder`."""

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
        """The differentiable outputs that depend on tensors of `tracked`."""
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


#: The key in `derived` of a traced graph for what it assigns: pairs of the position of a new value
#: among the outputs and of the old one among the inputs.
ASSIGNED = "assigned"


class Graph:
    """A function as data: `outputs` computed from `inputs` by `nodes`, in topological order.

    A finished graph is never edited. What passes derive from it (gradients, specialisations) is
    kept in `derived`, so it lives exactly as long as the graph.
    """

    __slots__ = ("__weakref__", "derived", "inputs", "name", "nodes", "outputs")

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
        self.derived: dict[Any, Any] = {}

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` derives of this graph, made once and kept under `key`. It is not None."""
        found = self.derived.get(key)
        if found is None:
            with room():  # it may derive what this graph calls, and so on
                found = self.derived[key] = make()
        return found

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(map(get_type, self.inputs))

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(map(get_type, self.outputs))

    @property
    def is_static(self) -> bool:
        """Whether every size is known, so that the graph can be lowered as it is."""
        return all(type.is_static for type in self.input_types)

    @property
    def has_effects(self) -> bool:
        """Whether one of its nodes does more than compute."""
        return self.kept("effects", lambda: (any(node.op.has_effects for node in self.nodes),))[0]

    def with_outputs(self, outputs: tuple[Tensor, ...]) -> Graph:
        return Graph(self.name, self.inputs, self.nodes, outputs)

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """Itself, as of an op: neither is ever edited."""
        return self

    def graphs(self) -> Iterator[Graph]:
        """This graph and all graphs that its ops hold, callees first, each once."""
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

    if TYPE_CHECKING:  # what the floor of text and views installs

        def as_text(self, locations: bool = False) -> str: ...
        @staticmethod
        def from_text(text: str) -> Graph: ...
        def verify(self) -> None: ...
        def _repr_html_(self) -> str: ...
        def get_operations(self) -> list[Any]: ...
        def summary(self) -> Any: ...
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
