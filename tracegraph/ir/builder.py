"""Builders append nodes. Each thread has one current builder: a trace, or the pending list.

Every computation goes through `current().add(op, inputs)`; there is no other way.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tracegraph.core.interrupts import Stack
from tracegraph.core.shapes import Dim, ShapeVariable, substitute_shape, substitute_size
from tracegraph.core.source import Source, frame_at, here, user_frame
from tracegraph.core.types import TensorType
from tracegraph.errors import DTypeMismatch, Mismatch, SignatureError, TraceError, fail, message
from tracegraph.ir.tensor import RANDOM_STATE, Graph, Node, Tensor, pending_tensor

if TYPE_CHECKING:
    from tracegraph.ir.op import Op

_PRINT_FIX = "return it from the @tg.function, or print it there with tg.print"


class Builder:
    """A growing list of nodes. `recorders` (open tapes) see every node that is added."""

    #: Whether reading a value computes it, as at top level.
    is_top_level = False
    #: Whether it belongs to a Python function that a program calls back.
    is_of_host_call = False
    #: Whether nodes may still be added; a finished trace is closed.
    is_open = True
    #: While a pass runs, finds nodes that need not be created: a `CommonSubexpressions` of
    #: `passes/common_subexpressions.py`.
    reuse: Any = None
    #: The frames of the code that is building, while it does; None for the top level, which serves
    #: any code on its thread.
    stack: Stack | None = None
    #: The thread that is editing the list of nodes; until it is done, nothing may run or cut the
    #: list.
    worker: int | None = None
    #: The least number of our frames, `here` included, below the user's frame in `add`.
    frames = 1
    #: Whether a value from outside it decided about the graph, such as about a size.
    reads_values = False
    #: The length at which the list is cut; only the top level sets it.
    _next_cut = sys.maxsize
    #: Keeps other threads out of the list; a graph under construction is known to one thread only.
    lock: Any = contextlib.nullcontext()

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.recorders: list[Any] = []
        self.outers: list[Builder] = []
        self._size_count = 0

    def new_size_name(self) -> str:
        """A fresh name for a size known only at run time, distinct from those of the enclosing
        graphs and of all that was built inside them: a branch hands its sizes on."""
        around: list[Builder] = [self]
        while around[-1].outers and not around[-1].outers[-1].is_top_level:
            around.append(around[-1].outers[-1])
        number = max(builder._size_count for builder in around)
        for builder in around:
            builder._size_count = number + 1
        return f"?{number}"

    def add(
        self, op: Op, inputs: tuple[Tensor, ...], source: Source | None = None
    ) -> tuple[Tensor, ...]:
        """Appends `op(*inputs)` and returns its outputs. Raises the op's error with the user's
        line."""
        for x in inputs:
            node = x.node
            if not self.is_top_level if node is None else node.builder is not self:
                inputs = self.admit_all(inputs)
                break
        if self.reuse is not None:
            found = self.reuse.find(op, inputs)
            if found is not None:
                return found
        try:
            types = op.output_types(inputs)
        except Mismatch as mismatch:
            raise_mismatch(op.name, inputs, mismatch, source or here())
        node = Node(op, inputs, source or here(self.frames), self)
        # The list holds the outputs for the duration of this call: an interrupt that runs the
        # pending nodes must not treat outputs that a recorder has yet to see as garbage.
        made = [pending_tensor(type, node) for type in types]
        outputs = node.outputs = tuple(made)
        self.nodes.append(node)
        if self.reuse is not None:
            self.reuse.enter(node)
            return outputs
        for recorder in self.recorders:
            recorder.record(node)
        if len(self.nodes) >= self._next_cut:
            self._cut()
        return outputs

    def follows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a recorder, such as a tape, watches what one of the tensors depends on."""
        return any(recorder.depends_on(tensors) for recorder in self.recorders)

    @contextlib.contextmanager
    def unrecorded(self) -> Generator[None]:
        """A context in which recorders do not see the nodes that are added."""
        recorders, self.recorders = self.recorders, []
        try:
            yield
        finally:
            self.recorders = recorders

    def _cut(self) -> None:
        """Shortens a list of nodes that has grown long."""

    def admit_all(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The inputs as tensors of this builder."""
        return tuple(
            [x if x.node is not None and x.node.builder is self else self.admit(x) for x in inputs]
        )

    def admit(self, tensor: Tensor) -> Tensor:
        """A tensor of another builder as one of this builder. Here there is no other builder."""
        fail(
            TraceError,
            f"a tensor {tensor.type} of another graph was used in the graph {self.name!r}",
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

    def captured(self, x: Tensor) -> Tensor | None:
        """The outside tensor that an input captures, if it captures one."""
        return None

    def input_like(self, x: Tensor, type: TensorType | None = None) -> Tensor:
        """A new input with the role and name that `x` has in its graph, optionally of another
        type."""
        tensor = self.input(type or x.type, x.name)
        if x.role != tensor.role:
            tensor.role = RANDOM_STATE if x.is_random_state else x.role
        return tensor

    def input_for(self, x: Tensor) -> Tensor:
        """A new input for an outside value, named after its op if it has no name."""
        tensor = self.input_like(x)
        if tensor.name is None and x.node is not None:
            tensor.name = x.node.op.name
        return tensor

    @contextlib.contextmanager
    def secluded(self) -> Generator[None]:
        """A context for edits of the list of nodes: interrupts compute elsewhere and leave the list
        alone."""
        with self.lock:
            stack, worker = self.stack, self.worker
            try:
                self.worker = threading.get_ident()
                self.stack = stack or Stack(frame_at(2))  # that of the `with` statement
                yield
            finally:
                self.stack, self.worker = stack, worker

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """The finished graph. The builder must not be used afterwards."""
        return Graph(self.name, tuple(self.inputs), tuple(self.nodes), tuple(outputs))

    def __enter__(self) -> Any:
        self.outers.append(_context.builder)
        if not self.is_top_level:
            self.stack = Stack(_frame_that_enters())
        _context.builder = self
        return self

    def __exit__(self, *exception: object) -> None:
        _context.builder = self.outers[-1]  # plain stores, which no interrupt can split
        self.stack = None  # frames keep their functions' locals alive
        self.outers.pop()


def _frame_that_enters() -> Any:
    """The frame of the `with` statement that enters a builder."""
    frame = frame_at(2)
    while frame.f_back is not None and frame.f_code.co_name == "__enter__":
        frame = frame.f_back
    return frame


class _InputOp:
    """The op of nodes that stand for graph inputs."""

    name = "input"

    def graphs(self) -> tuple[()]:
        return ()


INPUT = cast("Op", _InputOp())


def INPUT_NODES(builder: Builder) -> Node:
    return Node(INPUT, (), here(), builder)


class _Context(threading.local):
    """The current builder of each thread. `make` creates a thread's pending list."""

    def __init__(self, make: Callable[[], Builder]) -> None:
        self.builder = make()
        self.top_level = self.builder
        #: Where interrupts compute, since they are not part of the graph under construction.
        self.aside = make()


_context = _Context(Builder)


def set_top_level(make: Callable[[], Builder]) -> None:
    """Called once, by the runtime: the hook through which evaluation reaches a higher floor."""
    global _context
    _context = _Context(make)


def builder_of_thread() -> _Context:
    """The record that holds this thread's current builder, for code that must restore it."""
    return _context


def current() -> Builder:
    """The builder to which the calling code adds its nodes on this thread.

    A signal handler or a finalizer that interrupts a trace computes outside it.
    """
    builder = _context.builder
    stack = builder.stack
    if stack is None:
        return builder
    if stack.is_interrupted_by(frame_at(1)):
        return _context.aside
    return _behind(builder) if stack.is_left else builder


def _behind(builder: Builder) -> Builder:
    """The current builder after an interrupt struck in the exit of `builder` and ended it."""
    if not builder.is_top_level:
        _context.builder = builder.outers[-1]
    builder.stack = None  # in this order: a current builder without a stack is the top level
    return current()


def is_aside() -> bool:
    """Whether the calling code has interrupted a graph under construction on this thread."""
    return current() is _context.aside


def top_level() -> Builder:
    """The pending list of this thread."""
    return _context.top_level


class at_top_level:
    """A context in which this thread computes at top level, even inside a trace. Code that
    interrupts a trace stays outside it."""

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
        raise_mismatch(node.op.name, node.inputs, mismatch, node.source)


def inline(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends the nodes of `graph`, applied to `inputs`, to the current builder."""
    env = dict(zip(graph.inputs, inputs, strict=True))
    replay(graph.nodes, env)
    return tuple([env[y] for y in graph.outputs])


def copy_inputs(graph: Graph, builder: Builder) -> dict[Tensor, Tensor]:
    """Inputs like those of `graph` in `builder`: the initial environment for `replay`."""
    return {x: builder.input_like(x) for x in graph.inputs}


def substituted(value: Any, sizes: Mapping[str, Any]) -> Any:
    """An attribute value with named sizes replaced; the same object if nothing changes."""
    if isinstance(value, Dim):
        new = substitute_size(value, sizes)
        return value if new == value and type(new) is type(value) else new
    if isinstance(value, ShapeVariable):
        return substitute_shape(value, sizes)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        new_items = tuple([substituted(item, sizes) for item in items])
        changed = any(a is not b for a, b in zip(items, new_items, strict=True))
        return new_items if changed else items
    if isinstance(value, TensorType) and not value.is_static:
        return value.with_shape(substitute_shape(value.shape, sizes))
    return value


def operand_text(tensor: Tensor) -> str:
    """An operand as errors show it: its type and its origin."""
    variable = _variable_read_by(tensor)
    if variable is not None:
        return f"{tensor.type}  (Variable {variable!r})"
    if tensor.node is not None and tensor.node.op is INPUT:
        return f"{tensor.type}  ({f'argument %{tensor.name}' if tensor.name else 'an argument'})"
    source = tensor.source
    return f"{tensor.type}  from {source.file}:{source.line}" if source.line else str(tensor.type)


#: Finds the name that errors use for the Variable of a tensor; `state.user_names` sets it.
variable_names: list[Callable[[Tensor], str | None]] = []


def _variable_read_by(tensor: Tensor) -> str | None:
    """The name of the Variable that a tensor was read from, if any."""
    handle, node = getattr(tensor, "_provenance", None), tensor.node
    if type(handle) is not Tensor:
        if node is None or node.op.name != "read":  # the op belongs to a higher floor
            return None
        handle = node.inputs[1]  # it represents the Variable
    found = (find(handle) for find in variable_names)
    return next(filter(None, found), None) or (handle.name or "").replace("/", ".")


def raise_mismatch(
    op: str, inputs: Iterable[Tensor], mismatch: Mismatch, source: Source
) -> NoReturn:
    """Raises the error that users see for a rule's `Mismatch`."""
    error = mismatch.kind(
        message(
            f"{op}: {mismatch.fact}",
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


def refuse_value(
    tensor: Tensor,
    what: str = "running this",
    fix: str = _PRINT_FIX,
    *,
    kind: type[TraceError] = TraceError,
) -> NoReturn:
    """Raises the TraceError for reading a value of a graph tensor."""
    builder = None if tensor.node is None else tensor.node.builder
    if builder is not None and not builder.is_open:
        refuse_leaked(tensor)
    fact = f"{what} needs the value of a tensor {tensor.type}, which has none while tracing"
    _refuse(kind, fact, tensor, fix)


def refuse_leaked(tensor: Tensor) -> NoReturn:
    """Raises the SignatureError for a tensor used outside the trace that created it."""
    where = "a @tg.function that was traced"
    fix = "return it from the function, and use the returned value"
    builder = None if tensor.node is None else tensor.node.builder
    region = getattr(builder, "region", None) or getattr(builder, "parallel", None)
    if region is not None:
        where = f"the branch or the body of the loop at {region}"
        fix = (
            "return it from there, as a result or as what the loop carries; in an `if` or a loop, "
            "set the name in the statement itself, and give a dict its keys before it: what a "
            "function from elsewhere sets, or a key that is new there, is not its state"
        )
        if builder is not None and builder.is_open:  # what is outside is a tape that knows another
            where += ", which is not traced to its end"
            fix = (
                "open the GradientTape or the ForwardAccumulator in the branch or the body, or "
                "watch before it and ask after it: one from outside follows what the statement "
                "returns"
            )
    for recorder in current().recorders:
        fix = getattr(recorder, "fix_of_captures", fix)
    fact = f"a tensor {tensor.type} is out of scope: it belongs to {where}, and it was used outside"
    _refuse(SignatureError, fact, tensor, fix)


def _refuse(kind: type[Exception], fact: str, tensor: Tensor, fix: str) -> NoReturn:
    fail(kind, fact, operands=[operand_text(tensor)], fix=_argument_fix(tensor) or fix)


def _argument_fix(tensor: Tensor) -> str:
    """The fix where a Python function called by a program uses a tensor from a trace."""
    if not builder_of_thread().top_level.is_of_host_call:
        return ""
    frame = user_frame()
    known = {} if frame is None else frame.f_locals
    name = next((name for name, value in known.items() if value is tensor), "the tensor")
    rows = "in inp=" if name == "the tensor" else f"inp=[..., {name}]"
    return f"give {name} to the Python function as an argument, {rows}, and use that there"
