"""Jacobians: a derivative vectorised over the identity, in reverse, forward, or via a bottleneck.

Reverse mode pulls back one row of the identity per element of the target, forward mode pushes one
per element of the source, all at once: the linear part of the derivative gets a loop axis, and
values that depend only on the primal are computed once. If few numbers separate source and target,
the Jacobian is the product of the two that meet there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegraph.calls.call import DerivativeBuilder, call
from tracegraph.core.shapes import element_count
from tracegraph.core.source import here, sourced
from tracegraph.core.types import DType, TensorType, bytes_of_type, int32
from tracegraph.ir.builder import inline
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.jacobians.unit_seeds import after_products, first_products, scaled_rows
from tracegraph.ops.broadcast import BroadcastTo, full, stack
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import Matmul
from tracegraph.ops.elementwise import ADD, COMPLEX, EQUAL, MUL, REAL, Cast
from tracegraph.ops.index import move_axis
from tracegraph.ops.shape import Concatenate, Reshape, Transpose
from tracegraph.passes.common_subexpressions import derive, live_nodes
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient
from tracegraph.passes.interchange import interchange
from tracegraph.passes.registry import is_registered, user_rules
from tracegraph.passes.vectorise import vectorise
from tracegraph.passes.walk import path_between

#: The bytes that a Jacobian and its computation should fit in, unless the caller says otherwise.
MEMORY_BUDGET = 2**30
#: The cost of one pull back and one push forward, in evaluations of the primal.
REVERSE_COST = 3
FORWARD_COST = 2
#: The extra cost of transposing columns of many small matrices into rows.
_TRANSPOSE_COST = 1


@dataclasses.dataclass(frozen=True)
class JacobianPlan:
    """How to build a Jacobian: `mode` is "reverse", "forward", or None for the cheaper one, and
    `chunk_size` is how many rows or columns to compute at once, None for as many as fit."""

    mode: str | None = None
    chunk_size: int | None = None


AUTOMATIC = JacobianPlan()


def jacobian(
    nodes: Sequence[Node], y: Tensor, xs: Sequence[Tensor], plan: JacobianPlan = AUTOMATIC
) -> list[Tensor | None]:
    """Builds dy/dx for each x through `nodes`, of the shape of y and then x; None where
    unconnected."""
    nodes = tuple(nodes)

    def compute() -> list[Tensor | None]:
        with sourced(here().derived_by("jacobian")):
            return _matrices_as_tensors(_jacobian(nodes, y, xs, plan), y, xs)

    return derive(nodes, compute)


def batch_jacobian(
    nodes: Sequence[Node], y: Tensor, x: Tensor, plan: JacobianPlan = AUTOMATIC
) -> list[Tensor | None]:
    """Builds dy[b]/dx[b] for each row b, of shape (b, *y[b], *x[b]), for independent rows; one
    tensor, None where unconnected."""
    nodes = tuple(nodes)

    def compute() -> list[Tensor | None]:
        with sourced(here().derived_by("jacobian")):
            return [_batch_jacobian(nodes, y, x, plan)]

    return derive(nodes, compute)


# Directions.


def _jacobian(
    nodes: Sequence[Node], y: Tensor, xs: Sequence[Tensor], plan: JacobianPlan
) -> list[Tensor | None]:
    """Matrices: one row per element of y, one column per element of each x."""
    path = path_between(nodes, xs, [y])
    if plan.mode is None:
        bottleneck = _bottleneck(path, y, xs)
        if bottleneck is not None:
            return _through(bottleneck, path, y, xs, plan)
    if _is_forward(path, [y.type], [x.type for x in xs], plan):
        return [_by_columns(path, y, x, plan) for x in xs]
    return _by_rows(path, y, xs, plan)


def _is_forward(
    path: Sequence[Node],
    targets: Sequence[TensorType],
    sources: Sequence[TensorType],
    plan: JacobianPlan,
    forward_cost: float = FORWARD_COST,
) -> bool:
    if plan.mode is not None:
        return plan.mode == "forward"
    types = (*targets, *sources)
    if any(not t.is_static or t.dtype.is_complex for t in types) or not has_forward(path):
        return False
    columns, rows = _total(sources), _total(targets)
    return forward_cost * columns < REVERSE_COST * rows


def _total(types: Iterable[TensorType]) -> Any:
    return sum(element_count(type.shape) for type in types)


def has_forward(path: Sequence[Node]) -> bool:
    """Whether every node of the path is guaranteed to have a forward rule."""
    return all(op.has_forward and not is_registered(op) for op in user_rules(path))


def _by_rows(
    path: Sequence[Node], y: Tensor, xs: Sequence[Tensor], plan: JacobianPlan
) -> list[Tensor | None]:
    """In reverse: row i is the cotangent of x for a unit cotangent of element i of y."""
    pullback = Linear(y.type, lambda seed: gradient(path, [y], xs, [seed]))
    found = pullback.on_identity(plan)
    return [None if m is None else Reshape(_matrix(y, x))(m) for m, x in zip(found, xs)]


def _by_columns(path: Sequence[Node], y: Tensor, x: Tensor, plan: JacobianPlan) -> Tensor | None:
    """Forward: column j is the tangent of y for a unit tangent of element j of x."""
    columns = _columns(path, y, x, plan)
    if columns is None:  # no tangent arrives, yet a gradient may exist, which is zero
        return _by_rows(path, y, [x], plan)[0]
    rows, width = _matrix(y, x)
    return Transpose((1, 0))(Reshape((width, rows))(columns))


def _columns(
    path: Sequence[Node], y: Tensor, x: Tensor, plan: JacobianPlan, rows: Any = None
) -> Tensor | None:
    """The tangents of y for each unit tangent of x, along a new first axis, or after the rows.

    For complex numbers it matches `gradient`: the derivative of the real part of y by the real part
    of x, and i times that by the imaginary part.
    """

    def along(direction: complex) -> Tensor | None:
        def pushforward(seed: Tensor) -> list[Tensor | None]:
            tangent = seed if direction == 1 else MUL(seed, full(direction, seed.type))
            (found,) = jvp(path, [y], [x], [tangent])
            return [REAL(found) if found is not None and found.dtype.is_complex else found]

        return Linear(x.type, pushforward, rows).on_identity(plan)[0]

    if not x.dtype.is_complex:
        return along(1)
    real, imaginary = along(1), along(1j)
    return None if real is None or imaginary is None else COMPLEX(real, imaginary)


def _matrix(y: Tensor, x: Tensor) -> tuple[Any, Any]:
    return element_count(y.type.shape), element_count(x.type.shape)


def _matrices_as_tensors(
    matrices: Sequence[Tensor | None], y: Tensor, xs: Sequence[Tensor]
) -> list[Tensor | None]:
    return [
        None if m is None else Reshape((*y.type.shape, *x.type.shape))(m)
        for m, x in zip(matrices, xs, strict=True)
    ]


def _batch_jacobian(
    nodes: Sequence[Node], y: Tensor, x: Tensor, plan: JacobianPlan
) -> Tensor | None:
    path = path_between(nodes, [x], [y])
    (b, *row_of_y), (_, *row_of_x) = y.type.shape, x.type.shape
    target, source = y.type.with_shape(tuple(row_of_y)), x.type.with_shape(tuple(row_of_x))
    size_of_y, size_of_x = element_count(target.shape), element_count(source.shape)
    if _is_forward(path, [target], [source], plan, FORWARD_COST + _TRANSPOSE_COST):
        columns = _columns(path, y, x, plan, rows=b)  # (b, elements of a row of x, *row of y)
    else:
        columns = None
    if columns is not None:
        matrices = Transpose((0, 2, 1))(Reshape((b, size_of_x, size_of_y))(columns))
    else:
        pullback = Linear(y.type, lambda seed: gradient(path, [y], [x], [seed]), rows=b)
        (matrices,) = pullback.on_identity(plan)
        if matrices is None:
            return None
    return Reshape((b, *row_of_y, *row_of_x))(matrices)


# The linear part, on many seeds at once.


#: Appends a graph: inlined, or as a call.
Apply = Callable[[Graph, Sequence[Tensor]], tuple[Tensor, ...]]


class Linear:
    """A derivative as a linear function of its seed: the primal values that it reads are fixed.

    With `rows`, the seed has that many rows along its first axis, all of which get the same seed.
    """

    def __init__(
        self,
        seed: TensorType,
        function: Callable[[Tensor], list[Tensor | None]],
        rows: Any = None,
    ) -> None:
        self._seed = seed
        self._rows = rows
        with DerivativeBuilder("linear") as builder:
            given = builder.input(seed, "seed")
            found = function(given)
            self._connected = [g is not None for g in found]
            results = builder.admit_all(tuple(g for g in found if g is not None))
        inner = [x for x in builder.inputs if x is not given]
        outer = {id(x): primal for primal, x in builder.take_residuals().items()}
        self._residuals = [outer[id(x)] for x in inner]
        inputs = (*inner, given)
        nodes = tuple(live_nodes(builder.nodes, results))
        self._graph = Graph("linear", inputs, nodes, results)

    @property
    def is_connected(self) -> bool:
        """Whether a result depends on the seed."""
        return any(self._connected)

    def on_identity(self, plan: JacobianPlan) -> list[Tensor | None]:
        """The results for each unit seed, along a new first axis; with `rows`, after the rows."""
        count = self._count()
        chunk = self._chunk(count) if plan.chunk_size is None else plan.chunk_size
        if not isinstance(count, int) or chunk >= count:
            products = [] if self._rows is None else first_products(self._graph)
            if products:
                return self._results([self._from_products(products, count)])
            return self._results([self._applied(inline, self._units(0, count), count)])
        pieces = []
        for start in range(0, count, chunk):
            width = min(chunk, count - start)
            pieces.append(self._applied(call, self._units(start, width), width))
        return self._results(pieces)

    def on(self, seeds: Tensor, count: int) -> list[Tensor | None]:
        """The results for each of `count` seeds, along a new first axis."""
        return self._results([self._applied(inline, seeds, count)])

    def _results(self, pieces: Sequence[list[Tensor]]) -> list[Tensor | None]:
        axis = 0 if self._rows is None else 1
        found = iter([_joined(piece, axis) for piece in zip(*pieces, strict=True)])
        return [next(found) if flag else None for flag in self._connected]

    def _count(self) -> Any:
        shape = self._seed.shape
        return element_count(shape if self._rows is None else shape[1:])

    def _applied(self, apply: Apply, seeds: Tensor, count: Any) -> list[Tensor]:
        start = functools.partial(self._for_rows, seeds)
        return self._widened(apply, self._graph, [start], count)

    def _from_products(self, products: Sequence[Node], count: Any) -> list[Tensor]:
        """The results for each unit seed, starting at the first products."""
        starts = [rows.along for rows in scaled_rows(self._graph, products, self._residuals)]
        return self._widened(inline, after_products(self._graph, products), starts, count)

    def _widened(
        self, apply: Apply, graph: Graph, starts: Sequence[Callable[[int], Tensor]], count: Any
    ) -> list[Tensor]:
        """The results of `graph` for `count` values of its last inputs, each of which is built for
        the position of the loop axis."""
        batched = (*(False for _ in self._residuals), *(True for _ in starts))
        graph, flags = vectorise(graph, batched, count)
        if self._rows is not None:
            moved = interchange(graph, batched)
            if moved is not None:
                return list(apply(moved, [*self._residuals, *(start(1) for start in starts)]))
        results = apply(graph, [*self._residuals, *(start(0) for start in starts)])
        found = [y if flag else stack(y, count) for y, flag in zip(results, flags, strict=True)]
        return found if self._rows is None else [move_axis(y, 0, 1) for y in found]

    def _for_rows(self, seeds: Tensor, axis: int) -> Tensor:
        """The seeds, repeated for all rows if there are any; `axis` is the position of the loop
        axis."""
        if self._rows is None:
            return seeds
        (count, *row) = seeds.type.shape
        pair = (count, self._rows) if axis == 0 else (self._rows, count)
        return BroadcastTo((*pair, *row), (axis, *range(2, len(row) + 2)))(seeds)

    def _units(self, start: int, count: Any) -> Tensor:
        """`count` rows of the identity, starting at `start`, as seeds."""
        positions = Iota(count, int32)()
        if start:
            positions = ADD(positions, full(start, positions.type))
        units = where_equal(positions, Iota(self._count(), int32)(), self._seed.dtype)
        shape = self._seed.shape if self._rows is None else self._seed.shape[1:]
        return Reshape((count, *shape))(units)

    def _chunk(self, count: Any) -> int:
        """How many seeds at once the memory budget allows."""
        if not isinstance(count, int) or not self._graph.is_static:
            return count
        result = count * sum(map(bytes_of_type, self._graph.output_types))
        work = max(MEMORY_BUDGET - result, MEMORY_BUDGET // 4)
        return max(1, work // max(1, _peak_bytes(self._graph)))


def where_equal(rows: Tensor, columns: Tensor, dtype: DType) -> Tensor:
    """The matrix of `dtype` that is 1 where rows[i] == columns[j], and 0 elsewhere."""
    shape = (*rows.type.shape, *columns.type.shape)
    return Cast(dtype)(EQUAL(BroadcastTo(shape, (0,))(rows), BroadcastTo(shape, (1,))(columns)))


def _joined(pieces: tuple[Tensor, ...], axis: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else Concatenate(axis)(*pieces)


def _peak_bytes(graph: Graph) -> int:
    """The peak memory of the graph's values, computed and dropped in order."""
    last = {x: i for i, node in enumerate(graph.nodes) for x in node.inputs}
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    dropped: list[list[Tensor]] = [[] for _ in range(len(graph.nodes) + 1)]
    for x, i in last.items():
        dropped[i].append(x)
    held = peak = sum(map(bytes_of_type, graph.input_types))
    for node, ended in zip(graph.nodes, dropped):
        held += sum(bytes_of_type(y.type) for y in node.outputs)
        peak = max(peak, held)
        held -= sum(bytes_of_type(x.type) for x in ended)
    return peak


# The bottleneck.


def _bottleneck(
    path: Sequence[Node], y: Tensor, xs: Sequence[Tensor]
) -> tuple[int, list[Tensor]] | None:
    """The fewest numbers that separate the sources from y: after how many nodes of the path they
    are available, and which tensors they are. None if a product of two would not be cheaper."""
    ends = [t.type for t in (y, *xs)]
    if any(not t.is_static or t.dtype.is_complex for t in ends) or not has_forward(path):
        return None
    last = {x: i for i, node in enumerate(path) for x in node.inputs}
    last[y] = len(path)
    open_now = dict.fromkeys(x for x in xs if x in last)
    best: tuple[int, int] | None = None
    for i, node in enumerate(path[:-1]):
        for x in node.inputs:
            if last[x] == i:
                open_now.pop(x, None)
        made = (z for z in node.outputs if z in last and z.type.dtype.is_differentiable)
        open_now.update(dict.fromkeys(made))
        if not all(z.type.is_static for z in open_now):
            return None
        if any(z.dtype.is_complex for z in open_now):
            continue  # a single matrix product cannot express how both parts of a number change
        size = _total([z.type for z in open_now])
        if best is None or size < best[0]:
            best = size, i + 1
    direct = min(_total(ends[:1]), _total(ends[1:]))
    if best is None or 4 * best[0] > direct:
        return None
    return best[1], _crossing(path, best[1], last, xs)


def _crossing(
    path: Sequence[Node], place: int, last: dict[Tensor, int], xs: Sequence[Tensor]
) -> list[Tensor]:
    """The tensors computed before `place` that are used from there on."""
    made = [y for node in path[:place] for y in node.outputs if y.type.dtype.is_differentiable]
    return [z for z in dict.fromkeys((*xs, *made)) if last.get(z, -1) >= place]


def _through(
    bottleneck: tuple[int, list[Tensor]],
    path: Sequence[Node],
    y: Tensor,
    xs: Sequence[Tensor],
    plan: JacobianPlan,
) -> list[Tensor | None]:
    """The sum of the products that meet at the tensors of the bottleneck."""
    place, middle = bottleneck
    totals: list[Tensor | None] = [None] * len(xs)
    for z in middle:
        ahead = _by_columns(path[place:], y, z, plan)
        behind = _by_rows(path[:place], z, xs, plan)
        for i, matrix in enumerate(behind):
            if ahead is None or matrix is None:
                continue
            term = Matmul()(ahead, matrix)
            known = totals[i]
            totals[i] = term if known is None else ADD(known, term)
    return totals
