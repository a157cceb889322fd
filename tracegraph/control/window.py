"""The window between two tensors as a graph of its own, for passes that look at patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.share import live_nodes
from tracegraph.passes.walk import path_between

#: The value of a tensor, if it is known while deriving.
ValueOf = Callable[[Tensor], "np.ndarray | None"]


def window(
    nodes: Sequence[Node], x: Tensor, y: Tensor, value_of: ValueOf
) -> tuple[Graph, dict[int, np.ndarray]]:
    """The graph from x to y through `nodes`, and by position the inputs whose value is known.

    x is the first input. Integers that the path reads, such as indices, come with the nodes that
    make them: where they are known, so is what they pick.
    """
    path = path_between(nodes, [x], [y])
    given = [z for z in _read(path, x) if not z.type.dtype.is_differentiable]
    nodes = live_nodes((*_integer_nodes(given), *path), [y])
    inputs = (x, *_read(nodes, x, y))
    known = {}
    for place, z in enumerate(inputs):
        value = None if z.type.dtype.is_differentiable else value_of(z)
        if value is not None:
            known[place] = value
    return Graph("window", inputs, tuple(nodes), (y,)), known


def with_integers(window: Graph, nodes: Sequence[Node]) -> list[Node]:
    """`nodes`, after those that only the window has: what is derived of it depends on these too."""
    recorded = set(nodes)
    return [*(node for node in window.nodes if node not in recorded), *nodes]


def _read(nodes: Sequence[Node], x: Tensor, *ends: Tensor) -> list[Tensor]:
    """What the nodes and the ends read apart from x, before one of the nodes makes it.

    The read of a Variable makes the very tensor that it reads, if that is made already.
    """
    made = {x}
    found: dict[Tensor, None] = {}
    for node in nodes:
        found.update((z, None) for z in node.inputs if z not in made)
        made.update(node.outputs)
    found.update((z, None) for z in ends if z not in made)
    return list(found)


def _integer_nodes(tensors: Sequence[Tensor]) -> list[Node]:
    """The nodes that make the tensors from integers and truth values, in order."""
    found: dict[Node, bool] = {}
    stack = [(z.node, False) for z in tensors if _is_made_of_integers(z.node)]
    while stack:
        node, is_ready = stack.pop()
        if node is None or node in found:
            continue
        if is_ready:
            found[node] = True
            continue
        stack.append((node, True))
        stack.extend((z.node, False) for z in node.inputs if _is_made_of_integers(z.node))
    return list(found)


def _is_made_of_integers(node: Node | None) -> bool:
    if node is None or not node.outputs or not hasattr(node.op, "numpy"):
        return False
    values = (*node.inputs, *node.outputs)
    return not any(z.type.dtype.is_differentiable for z in values)
