"""Unit seeds times a matrix: the product is a row of the matrix, and needs no sum.

A Jacobian is a linear map applied to the rows of the identity. On their way back through a layer
they are scaled elementwise, and then multiplied by a matrix W. Row i of the identity, scaled by d,
gives d[i] W[i]: one multiplication per element of the result, where a matrix product takes the
width of the layer times as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracegraph.ir.builder import replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, full_like
from tracegraph.ops.contract import Matmul
from tracegraph.ops.elementwise import MUL
from tracegraph.ops.shape import Transpose
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.gradient import is_diagonal_path


class ScaledRows(NamedTuple):
    """The products of a matrix with unit seeds, one per seed, where rows scale the seeds.

    `scales` has the shape (rows, seeds), `matrix` (seeds, k).
    """

    scales: Tensor
    matrix: Tensor

    def along(self, axis: int) -> Tensor:
        """The products, with the seeds along `axis`, 0 or 1, and the rows along the other one."""
        rows, seeds = self.scales.type.shape
        width = self.matrix.type.shape[1]
        scales = self.scales if axis == 1 else Transpose((1, 0))(self.scales)
        shape = (rows, seeds, width) if axis == 1 else (seeds, rows, width)
        return MUL(BroadcastTo(shape, (0, 1))(scales), BroadcastTo(shape, (axis, 2))(self.matrix))


def first_products(graph: Graph) -> list[Node]:
    """The matrix products through which everything that a linear graph does with its last input
    passes, after nothing but elementwise scaling; none if there is more to it."""
    seed = graph.inputs[-1]
    if len(seed.type.shape) != 2 or seed.type.dtype.is_complex:
        return []
    scaled = {seed}
    products = []
    for node in graph.nodes:
        if scaled.isdisjoint(node.inputs):
            continue
        if type(node.op) is Matmul and node.inputs[0] in scaled:
            products.append(node)
        elif is_diagonal_path([node], seed.type):
            scaled.update(node.outputs)
        else:
            return []
    return [] if any(y in scaled for y in graph.outputs) else products


def scaled_rows(
    graph: Graph, products: Sequence[Node], residuals: Sequence[Tensor]
) -> list[ScaledRows]:
    """The results of the products for unit seeds. Scaling ones gives the scales."""
    env = dict(zip(graph.inputs, (*residuals, full_like(graph.inputs[-1], 1)), strict=True))
    operands = [x for node in products for x in node.inputs]
    replay(live_nodes(graph.nodes, operands), env)
    return [ScaledRows(*(env[x] for x in node.inputs)) for node in products]


def after_products(graph: Graph, products: Sequence[Node]) -> Graph:
    """The rest of the graph, whose last inputs are the results of the products."""
    made = tuple([node.outputs[0] for node in products])
    done = set(products)
    rest = live_nodes([node for node in graph.nodes if node not in done], graph.outputs)
    return Graph(graph.name, (*graph.inputs[:-1], *made), tuple(rest), graph.outputs)
