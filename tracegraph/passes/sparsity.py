"""Patterns: which elements of the outputs depend on which elements of the inputs."""

from __future__ import annotations

import math

import numpy as np

from tracegraph.errors import Mismatch
from tracegraph.ir.op import MissingRule
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.shapes import static_shape


def pattern(graph: Graph) -> list[np.ndarray]:
    """For each output a boolean array `(size of the output, size of the differentiable inputs)`.

    Never misses an entry: an op without a rule counts as dense. Integer and boolean outputs
    depend on nothing, since their derivative is zero.
    """
    sizes = [math.prod(x.type.shape) for x in graph.inputs if x.type.dtype.is_differentiable]
    total, start = sum(sizes), 0
    env: dict[Tensor, np.ndarray] = {}
    for x in graph.inputs:
        own = np.zeros((math.prod(x.type.shape), total), bool)
        if x.type.dtype.is_differentiable:
            own[:, start : start + len(own)] = np.eye(len(own), dtype=bool)
            start += len(own)
        env[x] = own.reshape(*x.type.shape, total)
    for node in graph.nodes:
        found = _depends(node, [env[x] for x in node.inputs], total)
        for y, p in zip(node.outputs, found, strict=True):
            is_differentiable = y.type.dtype.is_differentiable
            env[y] = p if is_differentiable else np.zeros((*y.type.shape, total), bool)
    return [env[y].reshape(-1, total) for y in graph.outputs]


def _depends(node: Node, patterns: list[np.ndarray], total: int) -> tuple[np.ndarray, ...]:
    if not any(p.any() for p in patterns):
        return tuple(np.zeros((*y.type.shape, total), bool) for y in node.outputs)
    try:
        found = node.op.depends(*patterns)
    except (MissingRule, Mismatch):  # safe: unknown means dense
        sources = np.logical_or.reduce([p.reshape(-1, total).any(axis=0) for p in patterns])
        shapes = [(*static_shape(y.type.shape), total) for y in node.outputs]
        return tuple(np.broadcast_to(sources, shape).copy() for shape in shapes)
    return found if isinstance(found, tuple) else (found,)
