"""Simplification: sharing, folding, dead code and inlining, each a function Graph -> Graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

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
from tracegraph.passes.specialise import specialise


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


# Calls.

Opens = Callable[[Graph], bool]


def with_calls_opened(graph: Graph, opens: Opens = lambda _: True) -> Graph:
    """`graph` with its calls inlined, or only those whose bodies `opens` accepts, and simplified.
    The nodes in a call that a gradient derived count as derived too."""
    return share(dead_code(inlined(graph, opens, hands_on_roles=True)))


def inlined(graph: Graph, opens: Opens = lambda _: True, *, hands_on_roles: bool = False) -> Graph:
    """`graph` with its calls inlined, or only those whose bodies `opens` accepts; branches and
    loops stay. The passes that derived a call also derived the nodes in it if `hands_on_roles`.

    There is no recursion, since calls may nest deeply.
    """
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        bodies: list[tuple[Graph, Iterator[Node], dict[Tensor, Tensor], tuple[str, ...]]]
        bodies = [(graph, iter(graph.nodes), env, ())]
        callers: list[Node] = []
        while bodies:
            body, nodes, values, roles = bodies[-1]
            node = next(nodes, None)
            if node is None:
                bodies.pop()
                if callers:
                    outputs = [values[y] for y in body.outputs]
                    bodies[-1][2].update(zip(callers.pop().outputs, outputs, strict=True))
                continue
            inputs = tuple([values[x] for x in node.inputs])
            source = node.source
            for role in roles:
                if role not in source.roles:
                    source = source.derived_by(role)
            inner = node.op.inlined
            if inner is None or not opens(inner):
                made = builder.add(node.op, inputs, source)
                values.update(zip(node.outputs, made, strict=True))
                continue
            inner = specialise(inner, [x.type for x in inputs])
            given = dict(zip(inner.inputs, inputs, strict=True))
            bodies.append((inner, iter(inner.nodes), given, source.roles if hands_on_roles else ()))
            callers.append(node)
        return builder.finish([env[y] for y in graph.outputs])
