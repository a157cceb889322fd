"""Graphs of the derivatives of a graph, for tests of passes and rules."""

from __future__ import annotations

from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph
from tracegraph.ops.broadcast import full
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient


def vjp_graph(graph: Graph) -> Graph:
    """The graph of the cotangents: `(*xs, *gs) -> cotangents of the differentiable xs`.

    `gs` are cotangents of the differentiable outputs, in order; unconnected inputs give zeros.
    """
    with Builder(f"{graph.name}_vjp") as builder:
        env = copy_inputs(graph, builder)
        gs = {
            i: builder.input(y.type, f"g{i}")
            for i, y in enumerate(graph.outputs)
            if y.type.dtype.is_differentiable
        }
        replay(graph.nodes, env)
        xs = [env[x] for x in graph.inputs if x.type.dtype.is_differentiable]
        ys = [env[graph.outputs[i]] for i in gs]
        found = gradient(builder.nodes, ys, xs, list(gs.values()))
        zeros = [full(0, x.type) if g is None else g for g, x in zip(found, xs, strict=True)]
        return builder.finish(zeros)


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
