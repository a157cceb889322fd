"""The forward-mode pass."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.passes.common_subexpressions import derive
from tracegraph.passes.walk import push_forward


def jvp(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    tangents: Sequence[Tensor],
) -> list[Tensor | None]:
    """Builds sum_i dy/dxs[i] tangents[i] through `nodes`; one per y, None where unconnected."""
    nodes = tuple(nodes)

    def compute() -> list[Tensor | None]:
        known = dict(zip(xs, tangents, strict=True))
        push_forward(nodes, known, "jvp")
        return [known.get(y) for y in ys]

    return derive(nodes, compute)


def jvp_graph(graph: Graph) -> Graph:
    """`(*xs, *tangents of the differentiable xs) -> (*ys, *tangents of the differentiable ys)`.

    Unconnected outputs have zero tangents.
    """
    with Builder(f"{graph.name}_jvp") as builder:
        env = copy_inputs(graph, builder)
        xs = [env[x] for x in graph.inputs if x.type.dtype.is_differentiable]
        ts = [builder.input(x.type, f"t{i}") for i, x in enumerate(xs)]
        replay(graph.nodes, env)
        outputs = [env[y] for y in graph.outputs]
        ys = [y for y in outputs if y.type.dtype.is_differentiable]
        found = jvp(builder.nodes, ys, xs, ts)
        zeros = [full(0, y.type) if t is None else t for t, y in zip(found, ys, strict=True)]
        return builder.finish([*outputs, *zeros])
