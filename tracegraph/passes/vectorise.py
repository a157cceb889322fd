"""Vectorisation: n instances of a graph as one graph, widening only what depends on the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.core.shapes import Size
from tracegraph.core.source import sourced
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch, MissingRuleError, fail
from tracegraph.ir.builder import Builder, copy_inputs, current, replay
from tracegraph.ir.op import MissingRule, missing_rule
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import stack
from tracegraph.passes.common_subexpressions import live_nodes


def vectorise(graph: Graph, batched: tuple[bool, ...], n: Size) -> tuple[Graph, tuple[bool, ...]]:
    """The graph of n instances, and which of its outputs have the loop axis.

    Inputs flagged in `batched` get a leading axis of size n; the others are shared by all
    instances, and values that depend only on them are computed once. The result is cached on the
    graph.
    """

    def make() -> tuple[Graph, tuple[bool, ...]]:
        found = _vectorised(graph, batched, n)
        passed("vectorised", found[0])
        return found

    return graph.cached(("vectorise", batched, n), make)


def _vectorised(graph: Graph, batched: tuple[bool, ...], n: Size) -> tuple[Graph, tuple[bool, ...]]:
    with Builder(f"{graph.name}_pfor") as builder:
        env: dict[Tensor, tuple[Tensor, bool]] = {}
        for x, is_batched in zip(graph.inputs, batched, strict=True):
            type = TensorType(x.type.dtype, (n, *x.type.shape)) if is_batched else x.type
            env[x] = builder.input_like(x, type), is_batched
        widen(graph.nodes, env, n)
        outputs = [env[y] for y in graph.outputs]
        values = tuple(y for y, _ in outputs)
        nodes = live_nodes(builder.nodes, values)
        result = Graph(builder.name, tuple(builder.inputs), tuple(nodes), values)
        return result, tuple(is_batched for _, is_batched in outputs)


def widen(nodes: tuple[Node, ...], env: dict[Tensor, tuple[Tensor, bool]], n: Size) -> None:
    """Appends `nodes` to the current builder, n instances at once where `env` says batched."""
    add = current().add
    for node in nodes:
        inputs = tuple(env[x][0] for x in node.inputs)
        batched = tuple(env[x][1] for x in node.inputs)
        if not any(batched) and not node.op.has_effects:
            outputs = add(node.op, inputs, node.source)
            env.update((y, (new, False)) for y, new in zip(node.outputs, outputs, strict=True))
            continue
        with sourced(node.source.derived_by("pfor")):
            outputs, is_batched = _batched(node, n, batched, inputs)
        flags = is_batched if isinstance(is_batched, tuple) else (is_batched,) * len(outputs)
        for y, new, flag in zip(node.outputs, outputs, flags, strict=True):
            env[y] = new, flag


def _batched(
    node: Node, n: Size, batched: tuple[bool, ...], inputs: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], bool | tuple[bool, ...]]:
    try:
        outputs, is_batched = node.op.batch(n, batched, *inputs)
    except MissingRule as missing:
        missing_rule(missing, node.source)
        raise AssertionError(node) from None
    except Mismatch as mismatch:
        fact = f"{node.op.name}: {mismatch.fact}"
        fail(MissingRuleError, fact, source=node.source, fix=mismatch.fix)
    return (outputs if isinstance(outputs, tuple) else (outputs,)), is_batched


def stacked_outputs(graph: Graph, flags: Sequence[bool], wanted: Sequence[bool], n: Any) -> Graph:
    """The graph with a loop axis on the outputs where that is wanted."""
    if tuple(flags) == tuple(wanted):
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        replay(graph.nodes, env)
        rows = zip(graph.outputs, flags, wanted, strict=True)
        return builder.finish(
            [stack(env[y], n) if wants and not has else env[y] for y, has, wants in rows]
        )
