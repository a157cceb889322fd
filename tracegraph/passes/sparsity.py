"""Sparsity of graphs: which elements of the outputs depend on which elements of the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tracegraph.core.recursion_limit import headroom
from tracegraph.core.shapes import static_shape
from tracegraph.core.sparsity_patterns import Pattern, everything
from tracegraph.errors import GradientError, Mismatch, fail
from tracegraph.ir.op import MissingRule, Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import Constant
from tracegraph.ops.movement import Movement
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.passes.registry import is_registered
from tracegraph.passes.specialise import first_of_unknown_size

#: For some inputs of a graph, by position: an array with the source number of each element.
Sources = Mapping[int, np.ndarray]
Known = dict[Tensor, np.ndarray]


def pattern(
    graph: Graph, sources: Sources | None = None, values: Mapping[int, np.ndarray] | None = None
) -> list[Pattern]:
    """For each output the sources that its elements depend on.

    `sources` holds for some inputs, by position, an array of their shape: the source number of each
    element, or -1 for none. The other inputs count as constants. Without `sources` every element of
    the differentiable inputs is its own source. `values` holds, by position, inputs that are known,
    such as indices; for matrices and other factors only the positions of their zeros matter.

    Never misses an entry: an op without a rule counts as dense. Exact where positions are known, as
    for slices, and for gathers whose indices follow from known values. To depend means to have a
    derivative: integer and boolean outputs depend on nothing. Raises GradientError for a size that
    only the run knows.
    """
    _check_sizes_known(graph)
    patterns = input_patterns(graph, element_sources(graph) if sources is None else sources)
    values = values or {}
    total = patterns[0].total if patterns else 0
    return propagate(graph, patterns, [values.get(i) for i in range(len(patterns))], total)


def _check_sizes_known(graph: Graph) -> None:
    open_nodes = (x for x in graph.nodes if not all(y.type.is_static for y in x.outputs))
    node = next(open_nodes, None) or first_of_unknown_size(graph)
    if node is not None:
        found = next((y.type for y in node.outputs if not y.type.is_static), node.outputs[0].type)
        fail(
            GradientError,
            "it cannot be told which elements depend on which, since only the run knows the size "
            f"of {found}",
            source=node.source,
            fix="use tape.jacobian without sparse=, or keep all elements: tg.where(mask, x, 0.0)",
        )


def input_patterns(graph: Graph, sources: Sources) -> list[Pattern]:
    """The patterns of the inputs of a graph whose elements have these sources."""
    total = 1 + max((int(numbers.max(initial=-1)) for numbers in sources.values()), default=-1)
    given = [(x, sources.get(place)) for place, x in enumerate(graph.inputs)]
    return [_nothing(x, total) if n is None else _numbered(x, n, total) for x, n in given]


def element_sources(graph: Graph, places: Sequence[int] | None = None) -> Sources:
    """Every element of the inputs at `places` as its own source, numbered consecutively in that
    order; of all differentiable inputs if None. The patterns are then those of the Jacobian."""
    if places is None:
        places = [i for i, x in enumerate(graph.inputs) if x.type.dtype.is_differentiable]
    sources: Sources = {}
    start = 0
    for place in places:
        shape = static_shape(graph.inputs[place].type.shape)
        size = math.prod(shape)
        sources[place] = np.arange(start, start + size).reshape(shape)
        start += size
    return sources


def row_sources(graph: Graph, place: int) -> Sources:
    """Every row along the first axis of one input as one source: a result row that depends only on
    the source with its own number does not mix the examples of a batch."""
    shape = static_shape(graph.inputs[place].type.shape)
    rows = np.arange(shape[0]).reshape(-1, *(1 for _ in shape[1:]))
    return {place: np.broadcast_to(rows, shape)}


def propagate(
    graph: Graph,
    patterns: Sequence[Pattern],
    values: Sequence[np.ndarray | None],
    total: int,
) -> list[Pattern]:
    """The patterns of the outputs, given those of the inputs and the inputs that are known."""
    with headroom():
        env, _ = follow(graph, patterns, values, total)
    return [env[y] for y in graph.outputs]


def follow(
    graph: Graph,
    patterns: Sequence[Pattern],
    values: Sequence[np.ndarray | None],
    total: int,
) -> tuple[dict[Tensor, Pattern], Known]:
    """The patterns of all tensors of a graph, and the values of those that are known."""
    env = dict(zip(graph.inputs, patterns, strict=True))
    known = {x: v for x, v in zip(graph.inputs, values, strict=True) if v is not None}
    for node in graph.nodes:
        _fold(node, known)
        for y, p in zip(node.outputs, _depends(node, env, known, total), strict=True):
            env[y] = p if y.type.dtype.is_differentiable else _nothing(y, total)
    return env, known


def _numbered(x: Tensor, numbers: np.ndarray, total: int) -> Pattern:
    assert numbers.shape == x.type.shape, f"{numbers.shape} numbers for the sources of {x.type}"
    return Pattern.numbered(numbers, total)


def _nothing(y: Tensor, total: int) -> Pattern:
    return Pattern.nothing(static_shape(y.type.shape), total)


def _fold(node: Node, known: Known) -> None:
    """Computes the node's result if its operands are known; for differentiable numbers only the
    positions of their zeros, which is all that is ever known of them."""
    if len(node.outputs) != 1:
        return
    if node.outputs[0].type.dtype.is_differentiable and not keeps_zeros(node.op):
        return
    if all(x in known for x in node.inputs):
        value = node.op.numpy(*(known[x] for x in node.inputs))
        if value is not NotImplemented:
            known[node.outputs[0]] = np.asarray(value)


def keeps_zeros(op: Op) -> bool:
    """Whether the zeros of the result follow from the zeros of the operands."""
    return isinstance(op, (Constant, Movement, Reshape, Transpose))


def _depends(
    node: Node, env: dict[Tensor, Pattern], known: Known, total: int
) -> tuple[Pattern, ...]:
    patterns = [env[x] for x in node.inputs]
    if not any(p.count for p in patterns):
        return tuple(_nothing(y, total) for y in node.outputs)
    try:
        if is_registered(node.op):  # its derivative is an arbitrary user rule
            raise MissingRule(node.op, "sparsity")
        found = node.op.depends_given([known.get(x) for x in node.inputs], *patterns)
    except (MissingRule, Mismatch):  # conservative: unknown means dense
        return tuple(everything(static_shape(y.type.shape), patterns) for y in node.outputs)
    return found if isinstance(found, tuple) else (found,)
