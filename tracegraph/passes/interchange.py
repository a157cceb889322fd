"""Interchange: rebuilds a graph so that its values come with their first two axes exchanged.

Each row of a batch has many seeds, and a loop puts its own axis first: the seeds come before the
rows, while the caller wants the rows first. On a CPU, transposing the result costs as much as a
product of small matrices. If every node treats each (loop, row) pair independently, computing the
exchanged values from the start costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracegraph.core.source import sourced
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum
from tracegraph.ops.contract import Conv, Matmul
from tracegraph.ops.elementwise import Elementwise
from tracegraph.ops.shape import Concatenate, Pad, Reshape, Slice, Transpose


class _Moved(NamedTuple):
    """A value with its first two axes exchanged; with `is_joined` they are merged into one axis."""

    value: Tensor
    is_joined: bool


def interchange(graph: Graph, exchanged: Sequence[bool]) -> Graph | None:
    """`graph` with the first two axes exchanged on the flagged inputs and on all outputs.

    The flagged inputs agree in the sizes of the two. None if a node mixes those axes with others,
    or if an output does not depend on those inputs.
    """
    state = _Interchange(graph, exchanged)
    with Builder(graph.name) as builder:
        state.add_inputs(builder)
        if not all(state.rebuild(builder, node) for node in graph.nodes):
            return None
        outputs = [state.moved.get(y) for y in graph.outputs]
        if any(y is None or y.is_joined for y in outputs):
            return None
        return builder.finish([y.value for y in outputs if y is not None])


class _Interchange:
    """The values of a graph during the rewrite: `plain` unchanged, `moved` exchanged."""

    def __init__(self, graph: Graph, exchanged: Sequence[bool]) -> None:
        self._inputs = tuple(zip(graph.inputs, exchanged, strict=True))
        first = next(x for x, is_exchanged in self._inputs if is_exchanged)
        self.pair: Any = _shape(first)[:2]
        self.plain: dict[Tensor, Tensor] = {}
        self.moved: dict[Tensor, _Moved] = {}

    @property
    def count(self) -> Any:
        """The size of the two axes when merged."""
        return self.pair[0] * self.pair[1]

    def add_inputs(self, builder: Builder) -> None:
        for x, is_exchanged in self._inputs:
            if is_exchanged:
                type = x.type.with_shape(_swapped(_shape(x)))
                self.moved[x] = _Moved(builder.input_like(x, type), False)
            else:
                self.plain[x] = builder.input_like(x)

    def rebuild(self, builder: Builder, node: Node) -> bool:
        """Appends the replacement of the node; False if there is none."""
        if not any(x in self.moved for x in node.inputs):
            made = builder.add(node.op, tuple(self.plain[x] for x in node.inputs), node.source)
            self.plain.update(zip(node.outputs, made, strict=True))
            return True
        rule = _elementwise if isinstance(node.op, Elementwise) else _RULES.get(type(node.op))
        with sourced(node.source):
            found = None if rule is None else rule(self, node)
        if found is None:
            return False
        self.moved[node.outputs[0]] = found
        return True

    def exchanged(self, x: Tensor, is_joined: bool) -> Tensor | None:
        """x in exchanged form, which costs nothing for a value that repeats along an axis."""
        found = self.moved.get(x)
        if found is not None:
            return found.value if found.is_joined == is_joined else None
        node = x.node
        if node is None or type(node.op) is not BroadcastTo:
            return None
        op = node.op
        if is_joined:
            return None if 0 in op.axes else self.plain[x]
        if 0 in op.axes and 1 in op.axes:
            return None
        axes = tuple(1 - axis if axis < 2 else axis for axis in op.axes)
        return BroadcastTo(_swapped(op.shape), axes)(self.plain[node.inputs[0]])


_Rule = Callable[[_Interchange, Node], "_Moved | None"]


def _elementwise(state: _Interchange, node: Node) -> _Moved | None:
    is_joined = _is_joined(state, node)
    inputs: list[Tensor] = []
    for x in node.inputs:
        exchanged = state.exchanged(x, is_joined)
        if exchanged is None:
            return None
        inputs.append(exchanged)
    return _Moved(node.op(*inputs), is_joined)


def _is_joined(state: _Interchange, node: Node) -> bool:
    return next(state.moved[x].is_joined for x in node.inputs if x in state.moved)


def _concatenate(state: _Interchange, node: Node) -> _Moved | None:
    """Along an axis outside the pair, each pair is concatenated independently."""
    op: Any = node.op
    is_beside_pair = op.axis >= (1 if _is_joined(state, node) else 2)
    return _elementwise(state, node) if is_beside_pair else None


def _by_rows(state: _Interchange, node: Node) -> _Moved | None:
    """A product whose left operand has one row per pair, and whose right operand is shared."""
    x, y = node.inputs
    left = state.moved.get(x)
    if left is None or not left.is_joined or y not in state.plain:
        return None
    return _Moved(node.op(left.value, state.plain[y]), True)


def _reshape(state: _Interchange, node: Node) -> _Moved | None:
    given = state.moved[node.inputs[0]]
    shape = _shape(node.outputs[0])
    if shape[:2] == state.pair:
        return _Moved(Reshape(_swapped(shape))(given.value), False)
    if shape[:1] == (state.count,):
        return _Moved(Reshape(shape)(given.value), True)
    return None


def _keeps_pair(given: _Moved, axes: tuple[int, ...]) -> bool:
    """Whether `axes` begin with those of the pair, in their order."""
    kept = (0,) if given.is_joined else (0, 1)
    return axes[: len(kept)] == kept


def _transpose(state: _Interchange, node: Node) -> _Moved | None:
    given = state.moved[node.inputs[0]]
    op: Any = node.op
    return given._replace(value=op(given.value)) if _keeps_pair(given, op.perm) else None


def _broadcast(state: _Interchange, node: Node) -> _Moved | None:
    given = state.moved[node.inputs[0]]
    op: Any = node.op
    if not _keeps_pair(given, op.axes):
        return None
    shape = op.shape if given.is_joined else _swapped(op.shape)
    return given._replace(value=BroadcastTo(shape, op.axes)(given.value))


def _sum(state: _Interchange, node: Node) -> _Moved | None:
    given = state.moved[node.inputs[0]]
    op: Any = node.op
    if op.axes is None or min(op.axes, default=2) < (1 if given.is_joined else 2):
        return None
    return given._replace(value=op(given.value))


def _by_axes(state: _Interchange, node: Node) -> _Moved | None:
    """A pad or slice, whose attributes have one number per axis, along axes outside the pair."""
    given = state.moved.get(node.inputs[0])
    pair = _shape(node.outputs[0])[:2]
    if given is None or given.is_joined or pair != state.pair or _moves_pair(node.op):
        return None
    op = type(node.op)(*map(_swapped, node.op.attributes))
    others = [state.plain[x] for x in node.inputs[1:] if x in state.plain]
    if len(others) < len(node.inputs) - 1:
        return None
    return _Moved(op(given.value, *others), False)


def _moves_pair(op: Any) -> bool:
    firsts = (op.before, op.interior) if type(op) is Pad else (op.start,)
    return any(first[:2] != (0, 0) for first in firsts)


_RULES: dict[type[Op], _Rule] = {
    Concatenate: _concatenate,
    Pad: _by_axes,
    Slice: _by_axes,
    Matmul: _by_rows,
    Conv: _by_rows,
    Reshape: _reshape,
    Transpose: _transpose,
    Sum: _sum,
    BroadcastTo: _broadcast,
}


def _shape(x: Tensor) -> Any:
    return x.type.shape


def _swapped(shape: Any) -> Any:
    return (shape[1], shape[0], *shape[2:])
