"""Simplification: sharing, folding and dead code, each a function Graph -> Graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tracegraph.core.source import sourced
from tracegraph.ir.builder import Builder, copy_inputs, current
from tracegraph.ir.op import Op
from tracegraph.ir.pass_observers import PRUNED, SHARED, passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.elementwise import Identity
from tracegraph.passes.common_subexpressions import (
    CommonSubexpressions,
    live_nodes_and_outputs,
    may_choose_sizes,
    sizes_given,
)


def simplify(graph: Graph) -> Graph:
    """`graph` with every distinct value computed once, constants folded, unused nodes dropped."""
    shared = share(graph)
    passed(SHARED, shared)
    pruned = dead_code(shared)
    passed(PRUNED, pruned)
    return pruned


def share(graph: Graph) -> Graph:
    """`graph` with one node per distinct (op, inputs), after the algebra of single nodes."""
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        builder.reuse = CommonSubexpressions()
        for node in graph.nodes:
            env.update(zip(node.outputs, _shared(node, env), strict=True))
        return builder.finish([env[y] for y in graph.outputs])


def _shared(node: Node, env: dict[Tensor, Tensor]) -> tuple[Tensor, ...]:
    inputs = tuple([env[x] for x in node.inputs])
    if type(node.op) is Identity:  # in a finished graph it is indistinguishable from its operand
        return inputs
    with sourced(node.source):  # replacements keep the node's line
        return current().add(node.op, inputs)


def dead_code(graph: Graph) -> Graph:
    """`graph` without the nodes, and the outputs of calls, that nothing depends on."""
    nodes, ends = live_nodes_and_outputs(graph.nodes, graph.outputs)
    if any(node.op.can_prune for node in nodes):
        return _pruned(graph, nodes, ends)
    if len(nodes) == len(graph.nodes):
        return graph
    return Graph(graph.name, graph.inputs, tuple(nodes), graph.outputs)


def _pruned(graph: Graph, nodes: list[Node], ends: set[Tensor]) -> Graph:
    """The graph of these nodes, each with only the outputs that are used, or that determine sizes
    in what is."""
    choosing = [node for node in nodes if may_choose_sizes(node)]
    kept = _narrowed(nodes, ends)
    while more := sizes_given(choosing, [(node, y) for node, _, _, y in kept], ends):
        ends = ends | more
        kept = _narrowed(nodes, ends)
    if len(kept) == len(graph.nodes) and all(
        op is node.op and len(inputs) == len(node.inputs) for node, op, inputs, _ in kept
    ):
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node, op, inputs, outputs in reversed(kept):
            made = builder.add(op, tuple(env[x] for x in inputs), node.source)
            env.update(zip(outputs, made, strict=True))
        return builder.finish([env[y] for y in graph.outputs])


def _narrowed(
    nodes: Sequence[Node], ends: Iterable[Tensor]
) -> list[tuple[Node, Op, tuple[Tensor, ...], list[Tensor]]]:
    """The nodes that are used, the last one first: each with its op for those outputs that are, its
    inputs and these outputs."""
    live = set(ends)
    kept: list[tuple[Node, Op, tuple[Tensor, ...], list[Tensor]]] = []
    for node in reversed(nodes):
        if live.isdisjoint(node.outputs):
            continue
        used = tuple(y in live for y in node.outputs)
        op, inputs, outputs = node.op, node.inputs, list(node.outputs)
        if op.can_prune:
            op, takes, has = op.pruned(used)
            inputs = tuple(itertools.compress(inputs, takes))
            outputs = list(itertools.compress(outputs, has))
        live.update(inputs)
        kept.append((node, op, inputs, outputs))
    return kept
