"""The nodes between two tensors as a separate graph, for passes that analyse sparsity patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import constant_value
from tracegraph.ops.contract import Matmul
from tracegraph.ops.elementwise import Mul
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.sparsity import keeps_zeros
from tracegraph.passes.walk import path_between

#: The value of a tensor, if it is known during derivation.
ValueOf = Callable[[Tensor], "np.ndarray | None"]


def subgraph_between(
    nodes: Sequence[Node], x: Tensor, y: Tensor, value_of: ValueOf
) -> tuple[Graph, dict[int, np.ndarray]]:
    """The graph from x to y through `nodes`, and by position the inputs whose value is known.

    x is the first input. Integers that the path reads, such as indices, come with the nodes that
    compute them: if those are known, so are the elements that they select. The same holds for
    matrices and constant factors, of which only the positions of zeros are known.
    """
    path = path_between(nodes, [x], [y])
    read = _read(path, x)
    integers = [z for z in read if not z.type.dtype.is_differentiable]
    factors = [z for z in read if z in _factors(path)]
    moved = _nodes_of(factors, _is_moved)
    nodes = live_nodes((*_nodes_of(integers, _is_made_of_integers), *moved, *path), [y])
    inputs = (x, *_read(nodes, x, y))
    factors += [z for node in moved for z in node.inputs]
    known: dict[int, np.ndarray] = {}
    for place, z in enumerate(inputs):
        value = None if z is x else _known(z, value_of, set(factors))
        if value is not None:
            known[place] = value
    return Graph("subgraph", inputs, tuple(nodes), (y,)), known


def _known(z: Tensor, value_of: ValueOf, factors: set[Tensor]) -> np.ndarray | None:
    """The value of an integer tensor; for a factor, 1 where it is nonzero. A factor without zeros
    hides nothing, and is left unknown."""
    if not z.type.dtype.is_differentiable:
        return value_of(z)
    value = value_of(z) if z in factors else None
    return None if value is None or np.all(value) else (value != 0).astype(np.int8)


def _factors(path: Sequence[Node]) -> set[Tensor]:
    """Tensors whose zeros matter: operands of matrix products, and constant factors. Other factors
    may be data, whose zeros come and go."""
    found: set[Tensor] = set()
    for node in path:
        if isinstance(node.op, Matmul):
            found.update(node.inputs)
        elif isinstance(node.op, Mul):
            found.update(z for z in node.inputs if _is_constant(z))
    return found


def _is_constant(z: Tensor) -> bool:
    while z.node is not None and z.node.inputs and _is_moved(z.node):
        z = z.node.inputs[0]
    return constant_value(z) is not None


def _is_moved(node: Node | None) -> bool:
    """Whether the node rearranges the elements of one operand, or is a constant."""
    return node is not None and keeps_zeros(node.op) and len(node.inputs) <= 1


def with_integer_nodes(subgraph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """`nodes`, after those that only the subgraph has: derived nodes depend on these too."""
    recorded = set(nodes)
    return [*(node for node in subgraph.nodes if node not in recorded), *nodes]


def _read(nodes: Sequence[Node], x: Tensor, *ends: Tensor) -> list[Tensor]:
    """The tensors other than x that the nodes and the ends read before one of the nodes computes
    them.

    A read of a Variable yields the very tensor that it reads, if that is already computed.
    """
    made = {x}
    found: dict[Tensor, None] = {}
    for node in nodes:
        found.update((z, None) for z in node.inputs if z not in made)
        made.update(node.outputs)
    found.update((z, None) for z in ends if z not in made)
    return list(found)


def _nodes_of(tensors: Iterable[Tensor], is_wanted: Callable[[Node | None], bool]) -> list[Node]:
    """The nodes that compute the tensors, as far as they are wanted, in order."""
    found: dict[Node, bool] = {}
    stack = [(z.node, False) for z in tensors if is_wanted(z.node)]
    while stack:
        node, is_ready = stack.pop()
        if node is None or node in found:
            continue
        if is_ready:
            found[node] = True
            continue
        stack.append((node, True))
        stack.extend((z.node, False) for z in node.inputs if is_wanted(z.node))
    return list(found)


def _is_made_of_integers(node: Node | None) -> bool:
    if node is None or not node.outputs or not hasattr(node.op, "numpy"):
        return False
    values = (*node.inputs, *node.outputs)
    return not any(z.type.dtype.is_differentiable for z in values)
