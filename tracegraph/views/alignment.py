"""Aligns two sequences: which items of them belong together, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: The most insertions and removals that are weighed against each other before the best path so far
#: is taken. It bounds the time by the length times this number.
_DEEPEST = 64


def align(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Pairs of positions of equal items, both increasing, and close to the largest possible number.

    By Myers' greedy search for the shortest path from one sequence to the other.
    """
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        found, i, j = _stretch(a, b, i, j)
        pairs += found
    return pairs


def _stretch(
    a: Sequence[Any], b: Sequence[Any], i: int, j: int
) -> tuple[list[tuple[int, int]], int, int]:
    """The pairs from `(i, j)` on, and how far they go: to the end, or to where the search stopped.

    A path is identified by its diagonal k, the difference of the two positions, and the position x
    in `a` that it has reached; `trace` has the furthest of each for every depth.
    """
    rows, columns = len(a) - i, len(b) - j
    trace: list[dict[int, int]] = []
    reached: dict[int, int] = {}
    for depth in range(_DEEPEST):
        new: dict[int, int] = {}
        for k in range(-depth, depth + 1, 2):
            x = _furthest(reached, k, rows, columns) if depth else 0
            if x is None:
                continue
            while x < rows and x - k < columns and a[i + x] == b[j + x - k]:
                x += 1
            new[k] = x
            if x == rows and x - k == columns:
                return _path([*trace, new], k, rows, columns, i, j), len(a), len(b)
        trace.append(new)
        reached = new
    best = max(reached, key=lambda k: 2 * reached[k] - k)
    pairs = _path(trace, best, rows, columns, i, j)
    return pairs, i + reached[best], j + reached[best] - best


def _furthest(reached: dict[int, int], k: int, rows: int, columns: int) -> int | None:
    """Where diagonal k is entered from its neighbours: by adding an item of b, or removing one of
    a."""
    options = [reached[n] + step for n, step in ((k + 1, 0), (k - 1, 1)) if n in reached]
    options = [x for x in options if x <= rows and x - k <= columns]
    return max(options, default=None)


def _path(
    trace: list[dict[int, int]], k: int, rows: int, columns: int, i: int, j: int
) -> list[tuple[int, int]]:
    """The pairs on the path that ends on diagonal k at the last depth of the trace."""
    pairs = []
    for depth in range(len(trace) - 1, -1, -1):
        x = trace[depth][k]
        before = trace[depth - 1] if depth else {}
        start = _furthest(before, k, rows, columns) if depth else 0
        assert start is not None
        pairs += [(i + n, j + n - k) for n in range(x - 1, start - 1, -1)]
        if depth:
            k += 1 if before.get(k + 1, -1) == start else -1
    return pairs[::-1]
