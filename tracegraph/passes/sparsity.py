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

    Never misses an entry: an op without a rule counts as dense. Exact where positions are known,
    as those of slices, and of gathers whose indices follow from constants. Integer and boolean
    outputs depend on nothing, since their derivative is zero.
    """
    total = sum(_size(x) for x in graph.inputs if x.type.dtype.is_differentiable)
    env, start = {}, 0
    for x in graph.inputs:
        own = np.zeros((_size(x), total), bool)
        if x.type.dtype.is_differentiable:
            own[:, start : start + len(own)] = np.eye(len(own), dtype=bool)
            start += len(own)
        env[x] = own.reshape(*static_shape(x.type.shape), total)
    known: dict[Tensor, np.ndarray] = {}
    for node in graph.nodes:
        _fold(node, known)
        for y, p in zip(node.outputs, _depends(node, env, known, total), strict=True):
            env[y] = p if y.type.dtype.is_differentiable else _nothing(y, total)
    return [env[y].reshape(_size(y), total) for y in graph.outputs]


def _size(x: Tensor) -> int:
    return math.prod(static_shape(x.type.shape))


def _nothing(y: Tensor, total: int) -> np.ndarray:
    return np.zeros((*static_shape(y.type.shape), total), bool)


def _fold(node: Node, known: dict[Tensor, np.ndarray]) -> None:
    """Enters what the node makes of known values, if it is no number to differentiate."""
    if len(node.outputs) != 1 or node.outputs[0].type.dtype.is_differentiable:
        return
    if all(x in known for x in node.inputs):
        value = node.op.numpy(*(known[x] for x in node.inputs))
        if value is not NotImplemented:
            known[node.outputs[0]] = np.asarray(value)


def _depends(
    node: Node, env: dict[Tensor, np.ndarray], known: dict[Tensor, np.ndarray], total: int
) -> tuple[np.ndarray, ...]:
    patterns = [env[x] for x in node.inputs]
    if not any(p.any() for p in patterns):
        return tuple(_nothing(y, total) for y in node.outputs)
    try:
        found = node.op.depends_given([known.get(x) for x in node.inputs], *patterns)
    except (MissingRule, Mismatch):  # safe: unknown means dense
        sources = np.logical_or.reduce([p.reshape(-1, total).any(axis=0) for p in patterns])
        return tuple(_nothing(y, total) | sources for y in node.outputs)
    return found if isinstance(found, tuple) else (found,)
