"""Patterns: which sources each element of a tensor depends on.

A source is a number. For a Jacobian, every element of an input is its own source; to test whether
examples are independent, all elements of one example share a source. Rules on patterns cost time
proportional to the number of entries, not to elements times sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
#: Keys are marked in a table instead of sorted if the table is at most this many times larger.
_TABLE_FACTOR = 8


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """For each element of a tensor of `shape`, in row-major order, the sources it depends on.

    The sources of element i are `sources[starts[i] : starts[i + 1]]`, ascending, distinct and below
    `total`. A pattern is also a matrix, with one row per element and one column per source.
    """

    shape: Shape
    total: int
    starts: np.ndarray
    sources: np.ndarray

    # Constructors.

    @classmethod
    def nothing(cls, shape: Sequence[int], total: int) -> Pattern:
        """No element depends on anything."""
        return cls(
            tuple(shape), total, np.zeros(math.prod(shape) + 1, np.int64), np.zeros(0, np.int64)
        )

    @classmethod
    def numbered(cls, numbers: np.ndarray, total: int) -> Pattern:
        """Each element depends on the source with its number; on none where that is negative."""
        flat = np.asarray(numbers, np.int64).reshape(-1)
        return cls(np.shape(numbers), total, _starts(flat >= 0), flat[flat >= 0])

    @classmethod
    def of_keys(cls, keys: np.ndarray, shape: Sequence[int], total: int) -> Pattern:
        """From keys `element * total + source`, ascending and distinct."""
        elements = keys // max(total, 1)
        counts = np.bincount(elements, minlength=math.prod(shape))
        return cls(tuple(shape), total, _starts(counts), keys - elements * total)

    # Accessors.

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return len(self.starts) - 1

    @property
    def count(self) -> int:
        """The number of entries: pairs of an element and a source."""
        return len(self.sources)

    @property
    def elements(self) -> np.ndarray:
        """For each entry the index of its element, parallel to `sources`."""
        return np.repeat(np.arange(self.size), np.diff(self.starts))

    @property
    def keys(self) -> np.ndarray:
        """For each entry `element * total + source`."""
        return self.elements * self.total + self.sources

    def to_dense(self) -> np.ndarray:
        """A boolean array of the tensor's shape with one more axis, the sources."""
        dense = np.zeros(self.size * self.total, bool)
        dense[self.keys] = True
        return dense.reshape(*self.shape, self.total)

    def emptied(self) -> Pattern:
        """The same shape with no dependences."""
        return Pattern.nothing(self.shape, self.total)

    # Moving elements.

    def take(self, places: np.ndarray) -> Pattern:
        """Element `places[k]` at each k, by its index; one without sources where that is -1."""
        flat = places.reshape(-1)
        counts = np.append(np.diff(self.starts), 0)[flat]
        starts = _starts(counts)
        moves = np.repeat(self.starts[flat] - starts[:-1], counts)
        sources = self.sources[np.arange(starts[-1]) + moves]
        return Pattern(places.shape, self.total, starts, sources)

    def where(self, mask: np.ndarray) -> Pattern:
        """The elements where `mask`, broadcast with them, holds; no sources elsewhere."""
        shape = np.broadcast_shapes(self.shape, mask.shape)
        return self.take(np.where(mask, element_numbers(self.shape), -1).reshape(shape))

    def reshape(self, *shape: int) -> Pattern:
        return Pattern(shape, self.total, self.starts, self.sources)

    def broadcast_to(self, shape: Sequence[int]) -> Pattern:
        """By NumPy's rules."""
        if self.shape == tuple(shape):
            return self
        return self.take(np.broadcast_to(element_numbers(self.shape), shape))

    # Combining elements.

    def __or__(self, other: Pattern) -> Pattern:
        return union(self, other)

    def put(self, places: np.ndarray, shape: Sequence[int]) -> Pattern:
        """A tensor of `shape` whose elements combine those that `places` sends to them."""
        into = np.repeat(places.reshape(-1), np.diff(self.starts))
        keys = _distinct(into * self.total + self.sources, math.prod(shape) * self.total)
        return Pattern.of_keys(keys, shape, self.total)

    def any(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Pattern:
        """The union over one axis, over several, or over all."""
        axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        axes = {each % self.ndim for each in axes}
        ones = tuple(1 if each in axes else size for each, size in enumerate(self.shape))
        kept = tuple(size for each, size in enumerate(self.shape) if each not in axes)
        if ones == self.shape:
            return self if keepdims else self.reshape(*kept)
        places = np.broadcast_to(element_numbers(ones), self.shape)
        return self.put(places, ones if keepdims else kept)

    def accumulate(self, axis: int, reverse: bool = False) -> Pattern:
        """Each element combined with all before it along `axis`, or after it if `reverse`."""
        found, step = self, 1
        while step < self.shape[axis]:  # each combines the `step` elements that end with it
            found = found | found._shifted(axis, step, reverse)
            step *= 2
        return found

    def _shifted(self, axis: int, step: int, reverse: bool) -> Pattern:
        """Element k - step at k along `axis`, k + step if `reverse`; nothing where out of range."""
        places = np.full(self.shape, -1)
        earlier, later = slice(None, -step), slice(step, None)
        into, out_of = (earlier, later) if reverse else (later, earlier)
        numbers = np.moveaxis(element_numbers(self.shape), axis, 0)
        np.moveaxis(places, axis, 0)[into] = numbers[out_of]
        return self.take(places)


def union(*patterns: Pattern) -> Pattern:
    """Each element with its sources in any of the patterns, broadcast together."""
    shape = np.broadcast_shapes(*(p.shape for p in patterns))
    total = patterns[0].total
    kept = _different([p.broadcast_to(shape) for p in patterns if p.count])
    if not kept:
        return Pattern.nothing(shape, total)
    if len(kept) == 1:
        return kept[0]
    keys = np.concatenate([p.keys for p in kept])
    return Pattern.of_keys(_distinct(keys, math.prod(shape) * total), shape, total)


def without_zeros(p: Pattern, factor: np.ndarray | None) -> Pattern:
    """The pattern of a product with a known factor: entries that meet a zero vanish."""
    return p if factor is None else p.where(factor != 0)


def _different(patterns: list[Pattern]) -> list[Pattern]:
    """The distinct patterns among those of one shape: comparing is cheaper than sorting, and a
    formula often has the same pattern in many places."""
    kept: list[Pattern] = []
    for p in patterns:
        if not any(_is_same(p, q) for q in kept):
            kept.append(p)
    return kept


def _is_same(p: Pattern, q: Pattern) -> bool:
    return p is q or (np.array_equal(p.sources, q.sources) and np.array_equal(p.starts, q.starts))


def moved(move: Callable[..., Any], *patterns: Pattern) -> Pattern:
    """The pattern of the result of `move`, which rearranges elements without computing.

    `move` runs on the indices of the elements, numbered consecutively through all operands.
    """
    ends = np.cumsum([p.size for p in patterns])
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    places = move(*(n.reshape(p.shape) for n, p in zip(numbers, patterns, strict=True)))
    return _joined(patterns).take(np.asarray(places))


def everything(shape: Sequence[int], patterns: Sequence[Pattern]) -> Pattern:
    """Every element depends on all sources of the patterns: the conservative answer."""
    found = _joined(patterns).any()
    return found.broadcast_to(shape)


def _joined(patterns: Sequence[Pattern]) -> Pattern:
    """The elements of all patterns, concatenated."""
    if len(patterns) == 1:
        return patterns[0].reshape(patterns[0].size)
    counts = np.concatenate([np.diff(p.starts) for p in patterns])
    sources = np.concatenate([p.sources for p in patterns])
    return Pattern(counts.shape, patterns[0].total, _starts(counts), sources)


def element_numbers(shape: Sequence[int]) -> np.ndarray:
    """An array of `shape` that holds the index of each element."""
    return np.arange(math.prod(shape)).reshape(shape)


def _starts(counts: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _distinct(keys: np.ndarray, limit: int) -> np.ndarray:
    """The keys, all below `limit`, sorted and without duplicates."""
    if limit <= _TABLE_FACTOR * len(keys):
        table = np.zeros(limit, bool)
        table[keys] = True
        return np.flatnonzero(table)
    keys = np.sort(keys, kind="stable")  # merges, if they are a few ascending runs
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys[is_first]
