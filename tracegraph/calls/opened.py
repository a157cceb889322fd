"""Graphs with the bodies of their calls in place of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracegraph.core.recursion_limit import headroom
from tracegraph.ir.builder import Builder, copy_inputs, current
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import dead_code, share
from tracegraph.passes.specialise import specialise


def with_calls_opened(graph: Graph, opens: Callable[[Graph], bool] = lambda _: True) -> Graph:
    """`graph` with its calls inlined, or only those whose bodies `opens` accepts. The nodes in a
    call that a gradient derived count as derived too."""
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        with headroom():
            _replay_opened(graph.nodes, env, (), opens)
        opened = builder.finish([env[y] for y in graph.outputs])
    return share(dead_code(opened))


def _replay_opened(
    nodes: Iterable[Node],
    env: dict[Tensor, Tensor],
    roles: tuple[str, ...],
    opens: Callable[[Graph], bool],
) -> None:
    add = current().add
    for node in nodes:
        inputs = tuple([env[x] for x in node.inputs])
        source = node.source
        for role in roles:
            if role not in source.roles:
                source = source.derived_by(role)
        body = node.op.inlined
        if body is None or not opens(body):
            outputs = add(node.op, inputs, source)
        else:
            body = specialise(body, [x.type for x in inputs])
            inner = dict(zip(body.inputs, inputs, strict=True))
            _replay_opened(body.nodes, inner, source.roles, opens)
            outputs = [inner[y] for y in body.outputs]
        env.update(zip(node.outputs, outputs, strict=True))
