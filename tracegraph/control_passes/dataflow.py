"""What flows through a node: values, and derivatives, which may stop where values continue.

Bodies are processed before calls to them, so nothing here is recursive, and every body is walked
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracegraph.core.source import here, sourced
from tracegraph.core.types import TensorType, float32, float64
from tracegraph.errors import Mismatch
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.op import Flow, MissingRule, Op
from tracegraph.ir.tensor import Graph, Node, Tensor, get_type
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import constant_value
from tracegraph.ops.elementwise import Cast
from tracegraph.passes.registry import cotangents_of, registry_version

Types = tuple[TensorType, ...]


class Flows:
    """The flow of ops, computed once per signature."""

    def __init__(self) -> None:
        self._known: dict[tuple[Op, Types], Flow] = {}

    def of(self, op: Op, inputs: Types, outputs: Types) -> Flow:
        key = (op, inputs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._flow(op, inputs, outputs)
        return found

    def of_node(self, node: Node) -> Flow:
        """The flow of a node; the types of its outputs are only computed for a new signature."""
        op = node.op
        inputs = tuple(map(get_type, node.inputs))
        found = self._known.get((op, inputs))
        return found or self.of(op, inputs, op.output_types(node.inputs))

    def _flow(self, op: Op, inputs: Types, outputs: Types) -> Flow:
        regions = op.regions
        if not regions:
            every = (1 << len(inputs)) - 1
            derivatives = tuple(_derivatives(op, inputs, outputs, i) for i in range(len(outputs)))
            return Flow((every,) * len(outputs), derivatives)
        return op.flow([self.of_graph(region.graph) for region in regions])

    def of_graph(self, graph: Graph) -> Flow:
        """The flow from the inputs of a graph to its outputs, cached on it."""
        key = ("flow", registry_version())
        for body in _bodies(graph):
            if key not in body.cache:
                body.cache[key] = self.walked(body, {})
        return graph.cache[key]

    def walked(self, graph: Graph, known: Mapping[int, Flow]) -> Flow:
        """The flow from the inputs of a graph to its outputs, given that through some of its nodes,
        by identity."""
        values = {x: 1 << i for i, x in enumerate(graph.inputs)}
        derivatives = {x: m for x, m in values.items() if x.type.dtype.is_differentiable}
        for node in graph.nodes:
            flow = known.get(id(node)) or self.of(
                node.op, types_of(node.inputs), types_of(node.outputs)
            )
            for i, y in enumerate(node.outputs):
                values[y] = _gathered(values, node.inputs, flow.values[i])
                derivatives[y] = _gathered(derivatives, node.inputs, flow.derivatives[i])
        return Flow(
            tuple(values.get(y, 0) for y in graph.outputs),
            tuple(derivatives.get(y, 0) for y in graph.outputs),
        )


def types_of(tensors: Sequence[Tensor]) -> Types:
    return tuple(map(get_type, tensors))


def _gathered(masks: dict[Tensor, int], inputs: Sequence[Tensor], through: int) -> int:
    """What arrives through the inputs in the mask `through`."""
    total = 0
    for i, x in enumerate(inputs):
        mask = masks.get(x)
        if mask and through >> i & 1:
            total |= mask
    return total


def _bodies(graph: Graph) -> list[Graph]:
    """The bodies that are called from a graph, callees first, and the graph itself last."""
    done: dict[Graph, None] = {}
    stack: list[tuple[Graph, bool]] = [(graph, False)]
    while stack:
        body, is_expanded = stack.pop()
        if is_expanded:
            done[body] = None
        elif body not in done:
            stack.append((body, True))
            called = (region.graph for node in body.nodes for region in node.op.regions)
            stack.extend((inner, False) for inner in called if inner not in done)
    return list(done)


def _derivatives(op: Op, inputs: Types, outputs: Types, place: int) -> int:
    """The inputs that get a cotangent from that of the output at `place`: runs the op's rule on
    tensors that nobody computes."""
    if op.stops_gradients or not outputs[place].dtype.is_differentiable:
        return 0
    with Builder("flow") as builder, sourced(here()):
        node = Node(op, tuple([builder.input(type) for type in inputs]), here(), builder)
        node.outputs = tuple([builder.input(type) for type in outputs])
        try:
            found = cotangents_of(node, _seeds(node, place))
        except (MissingRule, Mismatch):  # computing the gradient raises this, and names the op
            found = node.inputs
    pairs = enumerate(zip(found, inputs, strict=True))
    return sum(1 << i for i, (g, type) in pairs if g is not None and type.dtype.is_differentiable)


def _seeds(node: Node, place: int) -> list[Tensor | None]:
    """A cotangent for one output; for the others zeros, or None if the rule accepts that."""
    seeds: list[Tensor | None] = [None] * len(node.outputs)
    if not node.op.takes_zero_cotangents:
        seeds = [full(0, y.type) if y.type.dtype.is_differentiable else None for y in node.outputs]
    seeds[place] = current().input(node.outputs[place].type)
    return seeds


def becomes_float64(number: Tensor, nodes: Iterable[Node]) -> bool:
    """Whether nodes convert a float32 scalar, or what they compute from it and from constants
    alone, to float64."""
    reached = {number}
    for node in nodes:
        if reached.isdisjoint(node.inputs):
            continue
        inner = [x for graph in node.op.graphs() for x in graph.all_nodes()]
        if any(map(_is_widening, (node, *inner))):
            return True
        is_number = all(x in reached or constant_value(x) is not None for x in node.inputs)
        if is_number or inner:
            reached.update(y for y in node.outputs if y.type == number.type)
    return False


def _is_widening(node: Node) -> bool:
    is_scalar = isinstance(node.op, Cast) and node.inputs[0].type == TensorType(float32, ())
    return is_scalar and node.outputs[0].dtype is float64
