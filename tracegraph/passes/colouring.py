"""Colouring: few products with a sparse matrix from which all of its nonzeros can be read.

A forward product is J s, a reverse product is s^T J. Columns of one colour share a forward product,
rows of one colour a reverse product; its seed s is 1 at that colour. A colouring is valid if every
nonzero is alone in some product: it is read there directly, without solving equations.

All algorithms are greedy and deterministic. A set of colours is a bit mask in one integer, so the
time is linear in the nonzeros, even if a row is full. After Gebremedhin, Manne and Pothen (SIAM
Review 2005); rows and columns together after arXiv:2505.07308.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Lists = list[list[int]]
#: Rows and columns are coloured together if one side alone costs at least this many times the lower
#: bound that follows from the number of nonzeros.
_WORTH_BOTH = 2.0
#: How often to recolour, going through one colour after another.
_ROUNDS = 4
#: Smallest-last ordering is skipped if the lines are so long that it takes more steps than this per
#: nonzero.
_LONGEST_STEPS = 32


@dataclass(frozen=True, eq=False)
class Colouring:
    """The colours of columns and rows, and where to read each nonzero.

    A colour of -1 means that the column, or row, is in no product. Products are numbered
    consecutively, the forward ones first; nonzero k is element `places[k]` of product
    `products[k]`.
    """

    shape: tuple[int, int]
    column_colours: np.ndarray
    row_colours: np.ndarray
    products: np.ndarray
    places: np.ndarray

    @property
    def forward(self) -> int:
        """The number of forward products."""
        return _count(self.column_colours)

    @property
    def reverse(self) -> int:
        """The number of reverse products."""
        return _count(self.row_colours)

    @property
    def positions(self) -> np.ndarray:
        """The position of each nonzero in the concatenation of all products."""
        height, width = self.shape
        before = np.minimum(self.products, self.forward)
        return before * height + (self.products - before) * width + self.places

    def transposed(self, order: np.ndarray) -> Colouring:
        """The colouring of the transposed matrix, whose nonzeros are these, permuted by `order`."""
        moved = np.where(
            self.products < self.forward, self.products + self.reverse, self.products - self.forward
        )
        height, width = self.shape
        rest = moved[order], self.places[order]
        return Colouring((width, height), self.row_colours, self.column_colours, *rest)

    def cost(self, forward_cost: float, reverse_cost: float) -> float:
        return self.forward * forward_cost + self.reverse * reverse_cost


def colour(
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    forward_cost: float = 1.0,
    reverse_cost: float = 1.0,
) -> Colouring:
    """The cheapest colouring found, by columns, by rows or by both, at these costs per product.

    The nonzeros of the matrix of `shape` are at `(rows[k], columns[k])`, each listed once.
    """
    sides = [
        (forward_cost * _longest(rows), forward_cost, colour_columns),
        (reverse_cost * _longest(columns), reverse_cost, colour_rows),
    ]
    sides.sort(key=lambda side: side[:2])
    if _is_symmetric(rows, columns, shape):
        sides = sides[:1]  # by symmetry, the other side has the same colours
    found: list[Colouring] = []
    best = np.inf
    for bound, _, colour_side in sides:
        if bound < best:  # a line needs as many colours as it has nonzeros
            found.append(colour_side(rows, columns, shape))
            best = min(c.cost(forward_cost, reverse_cost) for c in found)
    height, width = shape
    least = len(rows) * min(forward_cost / max(height, 1), reverse_cost / max(width, 1))
    if best > _WORTH_BOTH * least:
        found.append(colour_both(rows, columns, shape, forward_cost, reverse_cost))
    return min(found, key=lambda c: c.cost(forward_cost, reverse_cost))


def colour_columns(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Colouring:
    """Columns that share a row get different colours: forward products only."""
    colours = _coloured_lines(columns, rows, shape[1], shape[0])
    return Colouring(shape, colours, _none(shape[0]), colours[columns], rows)


def colour_rows(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Colouring:
    """Rows that share a column get different colours: reverse products only."""
    colours = _coloured_lines(rows, columns, shape[0], shape[1])
    return Colouring(shape, _none(shape[1]), colours, colours[rows], columns)


def one_by_one(
    rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], is_by_row: bool
) -> Colouring:
    """One product per row, or per column, as a full matrix requires."""
    height, width = shape
    if is_by_row:
        return Colouring(shape, _none(width), np.arange(height), rows, columns)
    return Colouring(shape, np.arange(width), _none(height), columns, rows)


def colour_symmetric(rows: np.ndarray, columns: np.ndarray, size: int) -> Colouring:
    """A star colouring of a symmetric matrix, such as a Hessian: forward products only.

    Neighbours differ, and every path of four has three colours. Then a nonzero or its mirror image
    is alone in a product. The nonzeros must form a symmetric pattern: see `symmetric_part`.
    """
    shape = (size, size)
    assert _is_symmetric(rows, columns, shape), "the pattern is not symmetric"
    is_off = rows != columns
    near = _lists(rows[is_off], columns[is_off], size)
    found = list(_star_colourings(near, _vertex_orders(near), is_proper=True))
    for key in _class_orders():
        order = _by_class(min(found, key=_count), key)
        found.extend(_star_colourings(near, [order], is_proper=True))
    colours = min(found, key=_count)
    colours[np.bincount(columns, minlength=size) == 0] = -1
    is_alone = _is_alone(rows, colours[columns])
    products = np.where(is_alone, colours[columns], colours[rows])
    return Colouring(shape, colours, _none(size), products, np.where(is_alone, rows, columns))


def symmetric_part(
    rows: np.ndarray, columns: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The nonzeros whose mirror image is also one. A symmetric matrix has no others, even if its
    pattern was overestimated."""
    keeps = np.isin(rows * size + columns, columns * size + rows)
    return rows[keeps], columns[keeps]


def colour_both(
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    forward_cost: float = 1.0,
    reverse_cost: float = 1.0,
) -> Colouring:
    """Some nonzeros by forward, some by reverse products: for matrices with full rows and columns.

    A star colouring of the graph whose vertices are the columns, then the rows, and whose edges are
    the nonzeros: the symmetric matrix [[0, J^T], [J, 0]]. A path of four vertices in it consists of
    two columns and two rows, so a row and a column need not differ. Colours from which nothing need
    be read are dropped.
    """
    height, width = shape
    ends = np.concatenate([columns, rows + width]), np.concatenate([rows + width, columns])
    near = _lists(*ends, height + width)
    found = _star_colourings(near, _vertex_orders(near), is_proper=False)
    sides = [(colours[:width], colours[width:]) for colours in found]
    by_column, by_row = min(
        sides, key=lambda side: _count(side[0]) * forward_cost + _count(side[1]) * reverse_cost
    )
    return _without_neutral(rows, columns, by_column, by_row, (forward_cost, reverse_cost))


# One side.


def _coloured_lines(lines: np.ndarray, others: np.ndarray, count: int, width: int) -> np.ndarray:
    """Colours of `count` lines; two differ if a nonzero of each has the same place in `others`."""
    members = _lists(lines, others, count)
    bound = _longest(others)
    best: np.ndarray | None = None
    for order in _line_orders(lines, others, members, width):
        found = _greedy(members, width, order)
        if best is None or _count(found) < _count(best):
            best = found
        if _count(best) == bound:
            return best
    assert best is not None
    for key in _class_orders():
        # As many colours or fewer, since the lines of one class never conflict.
        best = _greedy(members, width, _by_class(best, key))
    return best


def _greedy(members: Lists, width: int, order: Iterable[int]) -> np.ndarray:
    """Each line in turn gets the first colour that none of its places has seen."""
    met = [0] * width
    colours = [-1] * len(members)
    for line in order:
        places = members[line]
        forbidden = 0
        for place in places:
            forbidden |= met[place]
        bit = ~forbidden & (forbidden + 1)
        for place in places:
            met[place] |= bit
        if places:
            colours[line] = bit.bit_length() - 1
    return np.array(colours, np.int64)


def _line_orders(
    lines: np.ndarray, others: np.ndarray, members: Lists, width: int
) -> Iterator[Sequence[int]]:
    lengths = np.bincount(others, minlength=width)
    degrees = np.bincount(lines, weights=lengths[others] - 1, minlength=len(members))
    yield range(len(members))
    yield np.argsort(-degrees, kind="stable").tolist()
    if degrees.sum() <= _LONGEST_STEPS * len(lines):
        meeting = _lists(others, lines, width)
        yield _smallest_last(
            lambda line: itertools.chain.from_iterable([meeting[p] for p in members[line]]),
            degrees.astype(np.int64).tolist(),
        )


# Stars.


def _star_colourings(
    near: Lists, orders: Iterable[Iterable[int]], is_proper: bool
) -> Iterator[np.ndarray]:
    for order in orders:
        yield _star_colouring(near, order, is_proper)


def _star_colouring(near: Lists, order: Iterable[int], is_proper: bool) -> np.ndarray:
    """Colours of the vertices of a graph, such that no path of four has only two colours.

    Neighbours differ if `is_proper`. For every vertex, bit sets of colours: those that its
    neighbours have (`once`), those that several have (`twice`), and those of neighbours in the
    middle of a path whose ends both have the vertex's own colour (`hubs`).
    """
    count = len(near)
    own, once, twice, hubs = ([0] * count for _ in range(4))
    first: list[dict[int, int]] = [{} for _ in range(count)]
    for v in order:
        shared, forbidden = twice[v], once[v] if is_proper else 0
        for w in near[v]:  # v would be the middle or an end of a path
            forbidden |= once[w] if shared & own[w] else hubs[w]
        bit = own[v] = ~forbidden & (forbidden + 1)
        for w in near[v]:
            if shared & own[w]:
                hubs[w] |= bit
            if not once[w] & bit:
                once[w] |= bit
                first[w][bit] = v
                continue
            hubs[v] |= own[w]
            if not twice[w] & bit:
                twice[w] |= bit
                hubs[first[w][bit]] |= own[w]
    return np.array([bit.bit_length() - 1 for bit in own], np.int64)


def _vertex_orders(near: Lists) -> Iterator[Sequence[int]]:
    degrees = np.array([len(others) for others in near], np.int64)
    yield range(len(near))
    yield range(len(near) - 1, -1, -1)
    yield np.argsort(-degrees, kind="stable").tolist()
    yield np.argsort(degrees, kind="stable").tolist()
    yield _smallest_last(near.__getitem__, degrees.tolist())


def _without_neutral(
    rows: np.ndarray,
    columns: np.ndarray,
    by_column: np.ndarray,
    by_row: np.ndarray,
    costs: tuple[float, float],
) -> Colouring:
    """The colouring without the colours from which no nonzero need be read."""
    shape = len(by_row), len(by_column)
    forward, reverse = by_column[columns], by_row[rows]
    is_forward, is_reverse = _is_alone(rows, forward), _is_alone(columns, reverse)
    assert (is_forward | is_reverse).all(), "a nonzero cannot be read"
    keep_column = np.zeros(_count(by_column), bool)
    keep_row = np.zeros(_count(by_row), bool)
    keep_column[forward[~is_reverse]] = True
    keep_row[reverse[~is_forward]] = True
    is_open = is_forward & is_reverse & ~keep_column[forward] & ~keep_row[reverse]
    _cover(forward[is_open], reverse[is_open], keep_column, keep_row, costs)
    new_column, new_row = _renumbered(keep_column), _renumbered(keep_row)
    is_forward &= keep_column[forward]
    count = int(keep_column.sum())
    products = np.where(is_forward, new_column[forward], count + new_row[reverse])
    places = np.where(is_forward, rows, columns)
    return Colouring(shape, new_column[by_column], new_row[by_row], products, places)


def _cover(
    forward: np.ndarray,
    reverse: np.ndarray,
    keep_column: np.ndarray,
    keep_row: np.ndarray,
    costs: tuple[float, float],
) -> None:
    """Selects colours until each nonzero has one of its two; greedily, the most useful first."""
    while len(forward):
        by_column, by_row = np.bincount(forward), np.bincount(reverse)
        if by_column.max() / costs[0] >= by_row.max() / costs[1]:
            keep_column[by_column.argmax()] = True
        else:
            keep_row[by_row.argmax()] = True
        is_open = ~keep_column[forward] & ~keep_row[reverse]
        forward, reverse = forward[is_open], reverse[is_open]


def _renumbered(keeps: np.ndarray) -> np.ndarray:
    """New numbers for the selected colours, and -1 for the others."""
    return np.where(keeps, np.cumsum(keeps) - 1, -1)


# Orders.


def _smallest_last(near: Callable[[int], Iterable[int]], degrees: list[int]) -> list[int]:
    """Removes vertices of smallest degree one by one; they are coloured in reverse order."""
    buckets: Lists = [[] for _ in range(max(degrees, default=0) + 1)]
    for v in reversed(range(len(degrees))):
        buckets[degrees[v]].append(v)
    is_gone, smallest = bytearray(len(degrees)), 0
    order: list[int] = []
    while len(order) < len(degrees):
        while not buckets[smallest]:
            smallest += 1
        v = buckets[smallest].pop()
        if is_gone[v] or degrees[v] != smallest:
            continue  # its degree has since decreased
        is_gone[v] = 1
        order.append(v)
        for w in near(v):
            if not is_gone[w]:
                degree = degrees[w] = degrees[w] - 1
                buckets[degree].append(w)
                smallest = min(smallest, degree)
    return order[::-1]


def _class_orders() -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Orders in which to go through the colours, given how many vertices have each: the last colour
    first, and the rarest first."""
    yield from itertools.islice(itertools.cycle([_last_first, _rarest_first]), _ROUNDS)


def _last_first(counts: np.ndarray) -> np.ndarray:
    return -np.arange(len(counts))


def _rarest_first(counts: np.ndarray) -> np.ndarray:
    return counts


def _by_class(colours: np.ndarray, key: Callable[[np.ndarray], np.ndarray]) -> list[int]:
    """The vertices grouped by colour, the colours ordered by their keys."""
    ranks = np.argsort(np.argsort(key(np.bincount(colours + 1)), kind="stable"), kind="stable")
    return np.argsort(ranks[colours + 1], kind="stable").tolist()


# Helpers.


def _lists(keys: np.ndarray, values: np.ndarray, count: int) -> Lists:
    """For each key below `count` its values, ascending."""
    flat = values[np.lexsort((values, keys))].tolist()
    ends = np.cumsum(np.bincount(keys, minlength=count)).tolist()
    return [flat[start:end] for start, end in itertools.pairwise([0, *ends])]


def _is_alone(lines: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """For each nonzero, whether no other nonzero of its line has the same colour."""
    keys = lines * (_count(colours) + 1) + colours
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse] == 1


def _is_symmetric(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> bool:
    height, width = shape
    if height != width:
        return False
    return np.array_equal(np.sort(rows * width + columns), np.sort(columns * width + rows))


def _longest(lines: np.ndarray) -> int:
    """The largest number of nonzeros in a line."""
    return int(np.bincount(lines).max(initial=0))


def _count(colours: np.ndarray) -> int:
    return int(colours.max(initial=-1)) + 1


def _none(count: int) -> np.ndarray:
    return np.full(count, -1)
