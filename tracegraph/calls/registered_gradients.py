"""Gradients that were registered for ops, as custom calls: files hold them, not a registry."""

from __future__ import annotations

from tracegraph.calls.call import as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.core.source import sourced
from tracegraph.core.types import TensorType
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.registry import cotangents_of, is_registered, registry_version
from tracegraph.passes.simplify import simplify

#: How many times a rule that uses its own op is expanded in its own gradient: a graph cannot
#: recurse.
_ORDERS = 4


def with_registered_gradients(graph: Graph) -> Graph:
    """`graph` with a custom call in place of each op with a registered gradient.

    Raises what the rule raises for tensors known only by their types.
    """
    return graph.cached(("registered", registry_version()), lambda: _baked(graph, _ORDERS))


def _baked(graph: Graph, orders: int) -> Graph:
    """The bodies of custom calls stay unchanged: nothing ever differentiates them."""
    bodies = {node.op.body for node in graph.all_nodes() if isinstance(node.op, CustomCall)}

    def change(node: Node, op: Op) -> Op:
        return _custom_call(node, orders) if is_registered(op) and orders else op

    return rewritten(graph, change, bodies)


def _custom_call(node: Node, orders: int) -> CustomCall:
    types = tuple(x.type for x in node.inputs)
    with sourced(node.source):
        backward, sources = _backward(node.op, types)
        return CustomCall(_body(node.op, types), _baked(backward, orders - 1), sources)


def _body(op: Op, types: tuple[TensorType, ...]) -> Graph:
    with Builder(op.name) as builder:
        return builder.finish(as_tuple(op(*_inputs(builder, types))))


def _backward(op: Op, types: tuple[TensorType, ...]) -> tuple[Graph, tuple[int, ...]]:
    """The registered rule as a graph of the inputs and cotangents, and which inputs have one."""
    with Builder(f"{op.name}_backward") as builder:
        outputs = as_tuple(op(*_inputs(builder, types)))
        node = outputs[0].node
        assert node is not None
        seeds: list[Tensor | None] = [
            builder.input(y.type, f"g{i}") if y.dtype.is_differentiable else None
            for i, y in enumerate(outputs)
        ]
        found = dict(enumerate(cotangents_of(node, seeds)))
        kept = {i: g for i, g in found.items() if g is not None and g.dtype.is_differentiable}
        graph = builder.finish(builder.admit_all(tuple(kept.values())))
    return simplify(graph), tuple(kept)


def _inputs(builder: Builder, types: tuple[TensorType, ...]) -> list[Tensor]:
    return [builder.input(type, f"x{i}") for i, type in enumerate(types)]
