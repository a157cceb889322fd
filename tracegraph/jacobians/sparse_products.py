"""Sparse Jacobians: few products, from which every nonzero is read.

The pattern says where entries can be, a colouring which columns, or rows, may share a product. Only
a few columns of J S and a few rows of S^T J are computed, whatever the size of J. If it would not
be few, the dense Jacobian is computed in chunks that fit, and the entries are picked from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracegraph.core.shapes import element_count, static_shape
from tracegraph.core.source import here, sourced
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.jacobians.jacobian import (
    FORWARD_COST,
    REVERSE_COST,
    Linear,
    has_forward,
    jacobian,
    where_equal,
)
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import Iota, constant
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Concatenate, Reshape
from tracegraph.passes.colouring import (
    Colouring,
    colour,
    colour_rows,
    colour_symmetric,
    one_by_one,
    symmetric_part,
)
from tracegraph.passes.common_subexpressions import derive
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient
from tracegraph.passes.registry import user_rules
from tracegraph.passes.sparsity import element_sources, pattern
from tracegraph.passes.walk import path_between


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Where the entries of a Jacobian can be, by row and then column, and how to compute them."""

    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    colouring: Colouring

    @functools.cached_property
    def order_by_column(self) -> np.ndarray:
        """The indices of the entries by column and then row."""
        return np.lexsort((self.rows, self.columns))

    @functools.cached_property
    def transposed(self) -> Sparsity:
        """The same entries with rows and columns exchanged: a single object, usable as a cache
        key."""
        order = self.order_by_column
        turned = self.colouring.transposed(order)
        height, width = self.shape
        new = Sparsity((width, height), self.columns[order], self.rows[order], turned)
        vars(new)["transposed"] = self
        return new

    @property
    def is_dense(self) -> bool:
        """Whether it needs nearly as many products as the dense Jacobian, which has more than a few
        numbers."""
        height, width = self.shape
        cost = self.colouring.cost(FORWARD_COST, REVERSE_COST)
        dense = min(FORWARD_COST * width, REVERSE_COST * height)
        return height * width >= _LEAST_DENSE and cost > _DENSE_SHARE * dense


#: Smaller Jacobians are coloured whatever their entries.
_LEAST_DENSE = 2**14
#: A colouring that costs more than this share of the dense Jacobian is not worth its gathers.
_DENSE_SHARE = 0.75
#: No colouring is attempted if entries exceed this share: it would save no more.
_FULL_SHARE = 0.25


def _size(x: Tensor) -> int:
    return math.prod(static_shape(x.type.shape))


def nothing(y: Tensor, x: Tensor) -> Sparsity:
    """The sparsity if nothing is connected."""
    shape = (_size(y), _size(x))
    none = np.zeros(0, np.int64)
    return Sparsity(shape, none, none, colour_rows(none, none, shape))


def sparsity(graph: Graph, known: Mapping[int, np.ndarray], is_symmetric: bool) -> Sparsity:
    """The sparsity of the Jacobian of a subgraph: of its output by its first input.

    `known` has values of inputs by position. All sizes must be known.
    """
    x, y = graph.inputs[0], graph.outputs[0]
    (found,) = pattern(graph, element_sources(graph, [0]), known)
    shape = (_size(y), _size(x))
    rows, columns = found.elements, found.sources
    # For complex numbers, reverse products have the conjugates that `gradient` gives.
    is_real = not (x.dtype.is_complex or y.dtype.is_complex)
    is_reverse = not (is_real and has_forward(graph.nodes))
    if is_symmetric and not is_reverse:
        rows, columns = symmetric_part(rows, columns, shape[0])
    return Sparsity(
        shape, rows, columns, _colouring(rows, columns, shape, is_symmetric, is_reverse)
    )


def _colouring(
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    is_symmetric: bool,
    is_reverse: bool,
) -> Colouring:
    height, width = shape
    if height * width >= _LEAST_DENSE and len(rows) > _FULL_SHARE * height * width:
        is_by_row = is_reverse or REVERSE_COST * height <= FORWARD_COST * width
        return one_by_one(rows, columns, shape, is_by_row)
    if is_reverse:
        return colour_rows(rows, columns, shape)
    if is_symmetric:
        return colour_symmetric(rows, columns, height)
    return colour(rows, columns, shape, FORWARD_COST, REVERSE_COST)


def sparse_jacobian(
    nodes: Sequence[Node], y: Tensor, x: Tensor, pattern: Sparsity
) -> list[Tensor | None]:
    """Builds the entries of dy/dx, in the order of the pattern: one vector."""
    nodes = tuple(nodes)

    def compute() -> list[Tensor | None]:
        with sourced(here().derived_by("jacobian")):
            return [_entries(path_between(nodes, [x], [y]), y, x, pattern)]

    return derive(nodes, compute)


def is_whole_gradient(nodes: Sequence[Node], seen: Sequence[Node], y: Tensor, x: Tensor) -> bool:
    """Whether the gradient of y by x through `nodes` is that of y as a function of x in `seen`.

    If so, its Jacobian through `seen` is symmetric. It need not be if one of the two sees more of
    the function than the other, or if a user's rule replaces a derivative.
    """
    path = path_between(nodes, [x], [y])
    return path == path_between(seen, [x], [y]) and not any(True for _ in user_rules(path))


def _entries(path: Sequence[Node], y: Tensor, x: Tensor, pattern: Sparsity) -> Tensor | None:
    if len(pattern.rows) == 0:
        return _no_entries(path, y, x)
    if pattern.is_dense:
        return _picked(path, y, x, pattern)
    colouring = pattern.colouring
    parts: list[Tensor | None] = []
    if colouring.forward:
        pushforward = Linear(x.type, lambda seed: jvp(path, [y], [x], [seed]))
        parts.append(_products(pushforward, colouring.column_colours, colouring.forward, x))
    if colouring.reverse:
        pullback = Linear(y.type, lambda seed: gradient(path, [y], [x], [seed]))
        parts.append(_products(pullback, colouring.row_colours, colouring.reverse, y))
    # The pattern may be too large: a user's rule may return None.
    found = [part for part in parts if part is not None]
    if not found:
        return None
    assert len(found) == len(parts), "connected in one mode alone"
    products = found[0] if len(found) == 1 else Concatenate(0)(*found)
    return Gather(0, 0)(products, constant(colouring.positions.astype(np.int32)))


def _picked(path: Sequence[Node], y: Tensor, x: Tensor, pattern: Sparsity) -> Tensor | None:
    """The entries, picked from the dense Jacobian."""
    (matrix,) = jacobian(path, y, [x])
    if matrix is None:
        return None
    height, width = pattern.shape
    numbers = Reshape((height * width,))(matrix)
    if len(pattern.rows) == height * width:
        return numbers
    places = pattern.rows * width + pattern.columns
    return Gather(0, 0)(numbers, constant(places.astype(index_type(height * width))))


def index_type(count: int) -> type[np.integer]:
    """The index type for `count` numbers."""
    return np.int32 if count < 2**31 else np.int64


def _no_entries(path: Sequence[Node], y: Tensor, x: Tensor) -> Tensor | None:
    """An empty vector where `gradient` gives zeros, None where it gives None."""
    pullback = Linear(y.type, lambda seed: gradient(path, [y], [x], [seed]))
    return full(0, y.type.with_shape((0,))) if pullback.is_connected else None


#: Seeds of up to this many elements are literals, through which the compiler can fold.
_LITERAL_SEEDS = 2**15


def _products(linear: Linear, colours: np.ndarray, count: int, end: Tensor) -> Tensor | None:
    """The products with one seed per colour, concatenated into one vector; None if nothing is
    connected."""
    if count * colours.size <= _LITERAL_SEEDS:
        literal = np.arange(count)[:, np.newaxis] == colours
        units = constant(literal.astype(end.dtype.numpy_dtype), end.dtype)
    else:
        units = where_equal(Iota(count, int32)(), constant(colours.astype(np.int32)), end.dtype)
    (found,) = linear.on(Reshape((count, *end.type.shape))(units), count)
    return None if found is None else Reshape((element_count(found.type.shape),))(found)
