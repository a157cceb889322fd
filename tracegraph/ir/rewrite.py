"""Graphs with some ops replaced by equivalent ones."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, cast

from tracegraph.ir.builder import Builder, copy_inputs
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node

#: Returns the replacement for a node's op: `op` is that op with its own graphs already rewritten.
Rewrite = Callable[[Node, Op], Op]


def rewritten(graph: Graph, change: Rewrite, left: Container[Graph] = ()) -> Graph:
    """`graph` and the graphs that it calls, with their ops rewritten; itself if nothing changes.
    Graphs in `left` stay as they are."""
    done: dict[Graph, Graph] = {}
    for inner in graph.graphs():  # called graphs come first
        if inner in left:
            done[inner] = inner
            continue
        ops = [change(node, _rewritten_op(node.op, done)) for node in inner.nodes]
        is_same = all(op is node.op for op, node in zip(ops, inner.nodes, strict=True))
        done[inner] = inner if is_same else _rebuilt(inner, ops)
    return done[graph]


def _rewritten_op(op: Any, done: dict[Graph, Graph]) -> Op:
    """The op with its graphs rewritten."""
    if all(done[inner] is inner for inner in op.graphs()):
        return op
    return type(op)(*(_replaced(value, done) for value in op.attributes))


def _replaced(value: Any, done: dict[Graph, Graph]) -> Any:
    """An attribute with its graphs rewritten."""
    if isinstance(value, Graph):
        return done[value]
    if not isinstance(value, tuple):
        return value
    items = cast("tuple[Any, ...]", value)
    return tuple([_replaced(item, done) for item in items])


def _rebuilt(graph: Graph, ops: list[Op]) -> Graph:
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node, op in zip(graph.nodes, ops, strict=True):
            made = builder.add(op, tuple(env[x] for x in node.inputs), node.source)
            env.update(zip(node.outputs, made, strict=True))
        return builder.finish([env[y] for y in graph.outputs])
