"""Graphs that only fill in and move numbers of the host, computed by NumPy.

XLA takes 20 ms to compile what `tg.ones([3])` needs, and a process would keep the program of each
shape: those of a model's variables and of an optimizer's slots.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowering.device import put
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.constant import Constant, Iota
from tracegraph.ops.elementwise import Identity
from tracegraph.ops.shape import Concatenate, Pad, Reshape, Reverse, Slice, Transpose

#: The most elements of a value. NumPy takes some ms for as many; larger ones XLA fills sooner, what
#: it takes to compile included.
_MOST_ELEMENTS = 2**22
#: Ops that fill in or move numbers: their values have the same bits in NumPy.
_OPS: frozenset[type[Op]] = frozenset(
    [BroadcastTo, Concatenate, Constant, Identity, Iota, Pad, Reshape, Reverse, Slice, Transpose]
)


def may_be_host_program(graph: Graph) -> bool:
    """Whether a graph is small, and only fills in and moves numbers."""
    made = [y for node in graph.nodes for y in node.outputs]
    return all(type(node.op) in _OPS for node in graph.nodes) and all(
        y.type.is_static and math.prod(y.type.shape) <= _MOST_ELEMENTS for y in made
    )


class HostProgram:
    """Computes such a graph by NumPy where all inputs are NumPy's arrays, and else by the program
    that `compiled` returns."""

    def __init__(self, graph: Graph, compiled: Callable[[], Any]) -> None:
        self._graph = graph
        self._compiled = functools.cache(compiled)

    def __call__(self, *buffers: Any) -> Sequence[Any]:
        if not all(isinstance(x, np.ndarray) for x in buffers):
            return self._compiled()(*buffers)
        values: dict[Tensor, np.ndarray] = dict(zip(self._graph.inputs, buffers, strict=True))
        for node in self._graph.nodes:
            (y,) = node.outputs
            values[y] = np.asarray(node.op.numpy(*[values[x] for x in node.inputs]))
        return tuple(put(np.array(values[y])) for y in self._graph.outputs)
