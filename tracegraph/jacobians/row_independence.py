"""Proves that the rows of a batch are independent: row b of the target depends only on row b.

All elements of a row of the source are the same source of the sparsity pattern, which then says
which rows an element depends on. A pattern never misses a dependence; so if every element of row b
of the target has at most the source b, the rows are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from tracegraph.core.shapes import dim_names, element_count, substitute_size
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.errors import GradientError, ShapeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.op import MissingRule
from tracegraph.ir.tensor import Graph, Node
from tracegraph.ops.constant import Constant
from tracegraph.ops.shape import Pad, Slice
from tracegraph.passes.sparsity import follow, input_patterns, pattern, row_sources
from tracegraph.passes.specialise import specialise
from tracegraph.passes.walk import path_between

#: The numbers to try for an open number of rows, until enough of them fit the graph. One of them is
#: larger than any number that the graph compares with open sizes: so a slice that ends before the
#: rows do, or a shift by less than a whole turn, is noticed.
_SIZES = (7, 11, 8, 12, 16, 13, 17)
_ENOUGH = 2
#: The most elements of a graph that is examined.
_MOST_ELEMENTS = 2**24
#: Constants up to this are considered; larger ones are seldom positions.
_LARGEST_CONSTANT = 128


def check_rows_independent(graph: Graph, known: Mapping[int, np.ndarray]) -> None:
    """Raises GradientError if a row of the output depends on another row of the first input.

    The error names the node where rows mix. `known` has values of inputs by position.
    """
    for concrete in _concrete(graph):
        (found,) = pattern(concrete, row_sources(concrete, 0), known)
        if not _is_aligned(found, 0):
            _refuse(concrete, known)


def _concrete(graph: Graph) -> list[Graph]:
    """The graph with numbers in place of open sizes."""
    if graph.is_static:
        return [graph]
    constants = _constants(graph)
    near = [n for n in constants if n <= _LARGEST_CONSTANT]
    largest = max([*_numbers(graph), *near], default=0) + 3
    large = _sized(graph, largest)
    if large is not None and _elements(large) > _MOST_ELEMENTS:
        _refuse_unproved(graph, f"the graph sets {largest - 3} against an open size")
    # A shift by one of the constants should not be a whole turn: such sizes come last.
    sizes = sorted(_SIZES, key=lambda size: any(n and n % size == 0 for n in constants))
    small = (_sized(graph, size) for size in sizes if size != largest)
    fitting = [g for g in (large, *small) if g is not None]
    if len(fitting) < _ENOUGH:
        _refuse_unproved(graph, "the graph fits few batch sizes")
    return fitting[: _ENOUGH + 1]


def _refuse_unproved(graph: Graph, reason: str) -> NoReturn:
    fail(
        GradientError,
        f"batch_jacobian: it cannot be shown that rows are independent, since {reason}",
        operands=[operand_text(graph.outputs[0])],
        fix="trace the function with known sizes, or use tape.jacobian",
    )


def _sized(graph: Graph, size: int) -> Graph | None:
    """The graph with `size` rows, if that fits: other open sizes get different numbers where
    possible, since an op that mixes rows may not do so if an axis is as long as the batch."""
    names = _names_of_sizes(graph)
    for step in (1, 0):
        sizes = {name: size + step * place for place, name in enumerate(names)}
        types = [
            t.with_shape(tuple(substitute_size(n, sizes) for n in t.shape))
            for t in graph.input_types
        ]
        try:
            return specialise(graph, types)
        except ShapeError:
            continue
    return None


def _names_of_sizes(graph: Graph) -> list[str]:
    """The names of the inputs' open sizes, that of the rows first."""
    sizes = [n for t in graph.input_types for n in t.shape]
    return list(dict.fromkeys(name for n in sizes for name in sorted(dim_names(n))))


def _elements(graph: Graph) -> Any:
    return sum(element_count(y.type.shape) for node in graph.nodes for y in node.outputs)


def _numbers(graph: Graph) -> list[int]:
    """The integers that the graph combines with open sizes: within them, and as bounds along
    them."""
    found: list[int] = []
    for node in graph.all_nodes():
        op, types = node.op, [z.type for z in (*node.inputs, *node.outputs)]
        sizes: list[Any] = [n for t in types for n in t.shape if not isinstance(n, int)]
        if isinstance(op, Slice):
            sizes += _along_open(types[0], (op.start, op.stop, op.stride))
        elif isinstance(op, Pad):
            sizes += _along_open(types[0], (op.before, op.after, op.interior))
        found += [number for size in sizes for number in _numbers_in(size)]
    return found


def _constants(graph: Graph) -> list[int]:
    """The integer constants of the graph: positions may be computed from them."""
    values = [node.op.value for node in graph.all_nodes() if isinstance(node.op, Constant)]
    return [abs(int(n)) for value in values if value.dtype.kind in "iu" for n in value.flat]


def _along_open(type: TensorType, bounds: Any) -> list[Any]:
    """The bounds for axes of open size."""
    return [
        n
        for part in bounds
        for n, size in zip(part, type.shape, strict=True)
        if not isinstance(size, int)
    ]


def _numbers_in(size: Any) -> list[int]:
    """The integers in a size that are added to, compared with, or divide its open parts."""
    if isinstance(size, int):
        return [abs(size)]
    found = []
    for monomial, coefficient in size.terms:
        if not monomial:
            found.append(abs(coefficient))
        for atom, _ in monomial:
            if not isinstance(atom, str):
                found += [n for operand in atom[1:] for n in _numbers_in(operand)]
    return found


def _is_aligned(found: Pattern, axis: int) -> bool:
    """Whether each element depends at most on the source equal to its position along `axis`."""
    if len(found.sources) == 0:
        return True
    if found.ndim <= axis:
        return False
    positions = np.indices(found.shape, sparse=True)[axis]
    own = np.broadcast_to(positions, found.shape).reshape(-1)
    return bool((own[found.elements] == found.sources).all())


def _refuse(graph: Graph, known: Mapping[int, np.ndarray]) -> NoReturn:
    node = _mixing_node(graph, known)
    x = graph.inputs[0]
    fail(
        GradientError,
        f"batch_jacobian: the rows are not independent: {node.op.name} makes a row of the target "
        "depend on other rows of the source",
        source=node.source,
        operands=[*map(operand_text, node.inputs), f"source: {x.type}"],
        fix="use tape.jacobian, whose result has an axis for each batch, or compute each row from "
        "its own alone",
    )


def _mixing_node(graph: Graph, known: Mapping[int, np.ndarray]) -> Node:
    """The first node that mixes rows, or moves rows to the position of others; inside a function
    called there, if that is where it happens."""
    patterns = input_patterns(graph, row_sources(graph, 0))
    values = [known.get(place) for place in range(len(patterns))]
    found, held = follow(graph, patterns, values, patterns[0].total)
    node = _node_at_fault(graph, found) or graph.nodes[-1]
    while node.op.regions:
        try:
            body, patterns, values = node.op.entered(
                [held.get(x) for x in node.inputs], *(found[x] for x in node.inputs)
            )
        except MissingRule:
            return node
        found, held = follow(body, patterns, values, patterns[0].total)
        inner = _node_at_fault(body, found)
        if inner is None:
            return node
        node = inner
    return node


def _node_at_fault(graph: Graph, found: Mapping[Any, Pattern]) -> Node | None:
    meeting = _leaving(graph, found, _is_in_order)
    moving = _leaving(graph, found, lambda p: _is_aligned(p, 0))
    return [*meeting[:1], *moving[-1:], None][0]


def _leaving(
    graph: Graph, found: Mapping[Any, Pattern], holds: Callable[[Pattern], bool]
) -> list[Node]:
    """The nodes that derivatives pass through for which a property holds of what they read, but not
    of their results."""
    return [
        node
        for node in path_between(graph.nodes, graph.inputs, graph.outputs)
        if all(holds(found[x]) for x in node.inputs)
        and not all(holds(found[y]) for y in node.outputs)
    ]


def _is_in_order(found: Pattern) -> bool:
    """Whether no element depends on two rows, and rows are in order along some axis or from one
    element to the next."""
    if len(np.unique(found.elements)) < len(found.elements):
        return False
    order = np.full(math.prod(found.shape), -1)
    order[found.elements] = found.sources
    along = order.reshape(found.shape)
    lines = [order, *(np.moveaxis(along, axis, 0) for axis in range(along.ndim))]
    return any(_is_ascending(line) for line in lines)


def _is_ascending(order: np.ndarray) -> bool:
    """Whether each row of `order` has one number, ignoring -1, and the numbers never decrease."""
    lines = order.reshape(len(order), -1) if order.size else order.reshape(0, 1)
    highest = lines.max(axis=1, initial=-1)
    is_one = (lines == highest[:, np.newaxis]) | (lines == -1)
    present = highest[highest >= 0]
    return bool(is_one.all() and (np.diff(present) >= 0).all())
