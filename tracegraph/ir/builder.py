"""Builders append nodes. One is current on each thread: a trace, or the pending list.

Everything that computes goes through `current().add(op, inputs)`; there is no other way.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph.errors import DTypeMismatch, Mismatch, TraceError, fail, message
from tracegraph.interrupts import Stack
from tracegraph.ir.tensor import Graph, Node, Tensor, pending_tensor
from tracegraph.shapes import Dim, ShapeVariable, substitute_shape, substitute_size
from tracegraph.source import Source, here
from tracegraph.types import TensorType

if TYPE_CHECKING:
    from tracegraph.ir.op import Op


class Builder:
    """A list of nodes that grows. `recorders` (open tapes) see every node that is added."""

    #: Whether values exist as soon as somebody asks, as they do at top level.
    is_top_level = False
    #: Whether nodes may still be added; a finished trace is closed.
    is_open = True
    #: Finds nodes that need not be made, while a pass runs: a `passes.share.Sharing`.
    reuse: Any = None
    #: The frames of what is being built, while it is; None for the top level, which serves
    #: whoever runs on its thread.
    stack: Stack | None = None
    #: The thread that works on the list of nodes itself: it must not be run or cut there now.
    worker: int | None = None
    #: Keeps other threads from that; a graph that is being built is known to one thread alone.
    lock: Any = contextlib.nullcontext()

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.recorders: list[Any] = []
        self._outers: list[Builder] = []

    def add(
        self, op: Op, inputs: tuple[Tensor, ...], source: Source | None = None
    ) -> tuple[Tensor, ...]:
        """Appends `op(*inputs)` and returns its outputs. Raises the op's error with its place."""
        for x in inputs:
            node = x.node
            if node is None or node.builder is not self:
                inputs = self.admit_all(inputs)
                break
        if self.reuse is not None:
            found = self.reuse.find(op, inputs)
            if found is not None:
                return found
        try:
            types = op.output_types(inputs)
        except Mismatch as mismatch:
            raise_mismatch(op, inputs, mismatch, source or here())
        node = Node(op, inputs, source or here(), self)
        outputs = node.outputs = tuple([pending_tensor(type, node) for type in types])
        self.nodes.append(node)
        if self.reuse is not None:
            self.reuse.enter(node)
        elif self.recorders:
            for recorder in self.recorders:
                recorder.record(node)
        return outputs

    def admit_all(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The inputs as tensors of this builder."""
        return tuple(
            [x if x.node is not None and x.node.builder is self else self.admit(x) for x in inputs]
        )

    def admit(self, tensor: Tensor) -> Tensor:
        """A tensor from elsewhere as one of this builder. Here there is no elsewhere."""
        fail(
            TraceError,
            f"a tensor {tensor.type} of another graph was used in the graph {self.name!r}",
            source=here(),
            operands=[operand_text(tensor)],
            fix="return it from the function that made it, or pass it as an argument",
        )

    def input(self, type: TensorType, name: str | None = None) -> Tensor:
        """A new input of the graph."""
        tensor = pending_tensor(type, INPUT_NODES(self))
        assert tensor.node is not None
        tensor.node.outputs = (tensor,)
        tensor.name = name
        self.inputs.append(tensor)
        return tensor

    def input_like(self, x: Tensor, type: TensorType | None = None) -> Tensor:
        """A new input that is what `x` is in its graph, maybe of another type."""
        tensor = self.input(type or x.type, x.name)
        if x.role != tensor.role:
            tensor.role = x.role
        return tensor

    def input_for(self, x: Tensor) -> Tensor:
        """A new input for a value of elsewhere, called after its op if it has no name."""
        tensor = self.input_like(x)
        if tensor.name is None and x.node is not None:
            tensor.name = x.node.op.name
        return tensor

    @contextlib.contextmanager
    def secluded(self) -> Iterator[None]:
        """A context for work on the list of nodes itself: interrupts compute aside, and the list
        stays as it is."""
        with self.lock:
            stack, worker = self.stack, self.worker
            try:
                self.worker = threading.get_ident()
                self.stack = stack or Stack(sys._getframe(2))  # that of the `with` statement
                yield
            finally:
                self.stack, self.worker = stack, worker

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """The finished graph. The builder must not be used afterwards."""
        return Graph(self.name, tuple(self.inputs), tuple(self.nodes), tuple(outputs))

    def __enter__(self) -> Any:
        self._outers.append(_context.builder)
        if not self.is_top_level:
            self.stack = Stack(_frame_that_enters())
        _context.builder = self
        return self

    def __exit__(self, *exception: object) -> None:
        _context.builder = self._outers[-1]  # plain stores, which no interrupt can divide
        self.stack = None  # frames hold what their functions have
        self._outers.pop()


def _frame_that_enters() -> Any:
    """The frame of the `with` statement that enters a builder."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name == "__enter__":
        frame = frame.f_back
    return frame


class _InputOp:
    """Stands in a graph's inputs for the op that a node has."""

    name = "input"

    def graphs(self) -> tuple[()]:
        return ()


INPUT = _InputOp()


def INPUT_NODES(builder: Builder) -> Node:
    return Node(INPUT, (), here(), builder)  # type: ignore[arg-type]


class _Context(threading.local):
    """What is current on each thread. `make` gives a thread its pending list."""

    def __init__(self, make: Callable[[], Builder]) -> None:
        self.builder = make()
        self.top_level = self.builder
        #: Where interrupts of what is being built compute, since they are no part of it.
        self.aside = make()


_context = _Context(Builder)


def set_top_level(make: Callable[[], Builder]) -> None:
    """Called once, by the runtime: the hook through which evaluation reaches upward."""
    global _context
    _context = _Context(make)


def builder_of_thread() -> _Context:
    """Where the current builder of this thread is kept, for code that must restore it."""
    return _context


def current() -> Builder:
    """The builder that nodes are added to on this thread, for the code that asks.

    A signal handler or a finalizer that interrupts what is being built computes aside of it.
    """
    builder = _context.builder
    stack = builder.stack
    if stack is None:
        return builder
    if stack.is_interrupted_by(sys._getframe(1)):
        return _context.aside
    return _behind(builder) if stack.is_left else builder


def _behind(builder: Builder) -> Builder:
    """What is current where an interrupt fell into the exit of `builder`, which was never left."""
    builder.stack = None
    if not builder.is_top_level:
        _context.builder = builder._outers[-1]
    return current()


def is_aside() -> bool:
    """Whether the code that asks is an interrupt of what is being built on this thread."""
    return current() is _context.aside


def top_level() -> Builder:
    """The pending list of this thread."""
    return _context.top_level


class at_top_level:
    """A context in which this thread computes at top level, whatever is being traced. What
    interrupts a trace stays aside of it."""

    def __enter__(self) -> None:
        self._entered = _context.aside if is_aside() else _context.top_level
        self._entered.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._entered.__exit__(*exception)


def replay(
    nodes: Sequence[Node],
    env: dict[Tensor, Tensor],
    change: Callable[[Op], Op] | None = None,
) -> None:
    """Appends copies of `nodes` to the current builder; `env` maps old tensors to new ones."""
    add = current().add
    for node in nodes:
        op = node.op if change is None else _changed(node, change)
        outputs = add(op, tuple([env[x] for x in node.inputs]), node.source)
        env.update(zip(node.outputs, outputs, strict=True))


def _changed(node: Node, change: Callable[[Op], Op]) -> Op:
    try:
        return change(node.op)
    except Mismatch as mismatch:
        raise_mismatch(node.op, node.inputs, mismatch, node.source)


def inline(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends the nodes of `graph`, applied to `inputs`, to the current builder."""
    env = dict(zip(graph.inputs, inputs, strict=True))
    replay(graph.nodes, env)
    return tuple([env[y] for y in graph.outputs])


def copy_inputs(graph: Graph, builder: Builder) -> dict[Tensor, Tensor]:
    """Inputs like those of `graph` in `builder`, as the beginning of an environment."""
    return {x: builder.input_like(x) for x in graph.inputs}


def substituted(value: Any, sizes: Mapping[str, Any]) -> Any:
    """An attribute value with named sizes replaced; the same object if nothing changes."""
    if isinstance(value, Dim):
        new = substitute_size(value, sizes)
        return value if new == value and type(new) is type(value) else new
    if isinstance(value, ShapeVariable):
        return substitute_shape(value, sizes)
    if isinstance(value, tuple):
        new_items = tuple([substituted(item, sizes) for item in value])
        changed = any(a is not b for a, b in zip(value, new_items, strict=True))
        return new_items if changed else value
    if isinstance(value, TensorType) and not value.is_static:
        return value.with_shape(substitute_shape(value.shape, sizes))
    return value


def operand_text(tensor: Tensor) -> str:
    """An operand as errors show it: its type and where it came from."""
    variable = _variable_read_by(tensor)
    if variable is not None:
        return f"{tensor.type}  (Variable {variable!r})"
    if tensor.node is not None and tensor.node.op is INPUT and tensor.name:
        return f"{tensor.type}  (argument %{tensor.name})"
    source = tensor.source
    return f"{tensor.type}  from {source.file}:{source.line}" if source.line else str(tensor.type)


#: Finds what errors call the Variable that a tensor stands for; `runtime.paths` sets it.
variable_names: list[Callable[[Tensor], str | None]] = []


def _variable_read_by(tensor: Tensor) -> str | None:
    """The name of the Variable that a tensor is a read of, if it is one."""
    handle, node = getattr(tensor, "_origins", None), tensor.node
    if type(handle) is not Tensor:
        if node is None or node.op.name != "read":  # the op is of a floor above
            return None
        handle = node.inputs[1]  # it stands for the Variable
    found = (find(handle) for find in variable_names)
    return next(filter(None, found), None) or (handle.name or "").replace("/", ".")


def raise_mismatch(
    op: Op, inputs: tuple[Tensor, ...], mismatch: Mismatch, source: Source
) -> NoReturn:
    """Raises the error that users see for a rule's `Mismatch`."""
    error = mismatch.kind(
        message(
            f"{op.name}: {mismatch.fact}",
            source=source,
            operands=map(operand_text, inputs),
            fix=mismatch.fix,
        )
    )
    error.mismatch = mismatch  # type: ignore[attr-defined]
    try:
        raise error from None
    finally:
        del error, mismatch  # as in `fail`: a cycle would keep the operands alive, and pending


def dtype_mismatch(op: str, x: TensorType, y: TensorType) -> DTypeMismatch:
    return DTypeMismatch(
        f"the operands have different data types: {x} and {y}",
        fix=f"convert one of them: tg.cast(x, tg.{x.dtype.name})",
    )
