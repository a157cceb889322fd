"""Arrays that are stored in parts.

Each process writes the parts that it owns of an array sharded over devices; nobody has all of it. A
reader, perhaps on other devices, reads the parts that it needs. Each part has its own checksum,
which only verifies the whole part. So parts are cut along every axis, at positions that depend only
on the whole array, and a reader that shards it along another axis reads little in vain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracegraph.archive.manifest import Entry, has_surrogates
from tracegraph.archive.tensors import Stored, TensorFile, sizes_of, stored_array, stored_type
from tracegraph.core.types import TensorType, bytes_of_type

#: The most bytes of a part.
PART_BYTES = 2**24
#: An axis is cut into at most this many equal pieces: that many devices may shard it, whichever
#: axis was sharded before.
_PIECES = 8
#: Cutting for that creates no more parts per array, and none smaller than this: the manifest takes
#: 200 bytes per part.
_MOST_PARTS, LEAST_BYTES = 512, 2**14
#: The parts of an array form a grid, which has at most this many times as many cells.
_CELLS = 64


class ArrayPart(NamedTuple):
    """A part of an array: where its first element is, and its elements."""

    begin: tuple[int, ...]
    array: np.ndarray


class DividedArray(NamedTuple):
    """The type of an array, and the parts of it that this process writes."""

    type: TensorType
    parts: list[ArrayPart]


def divided_array(type: TensorType, parts: Iterable[tuple[tuple[int, ...], np.ndarray]]) -> Any:
    """An array of which these parts are written here."""
    steps = _steps(type)
    pieces = (piece for begin, part in parts for piece in _cut(begin, part, steps))
    return DividedArray(type, [*pieces])


def _steps(type: TensorType) -> list[int]:
    """For each axis of an array, the number of elements between cuts."""
    shape: Any = type.shape
    counts = [1] * len(shape)
    most = min(_MOST_PARTS, bytes_of_type(type) // LEAST_BYTES)
    while 2 * math.prod(counts) <= most:
        halves = [
            i for i, count in enumerate(counts) if count < _PIECES and shape[i] % (2 * count) == 0
        ]
        if not halves:
            break
        counts[min(halves, key=counts.__getitem__)] *= 2
    steps = [max(n // count, 1) for n, count in zip(shape, counts, strict=True)]
    row = math.prod(steps[1:]) * type.dtype.size
    return [min(steps[0], max(PART_BYTES // max(row, 1), 1)), *steps[1:]]


def _cut(begin: tuple[int, ...], array: np.ndarray, steps: Sequence[int]) -> Iterator[ArrayPart]:
    cuts = [
        [0, *range(step - first % step, size, step), size] if size else [0, 0]
        for first, size, step in zip(begin, array.shape, steps, strict=True)
    ]
    for box in itertools.product(*map(itertools.pairwise, cuts)):
        place = tuple(first + low for first, (low, _) in zip(begin, box, strict=True))
        yield ArrayPart(place, array[tuple(itertools.starmap(slice, box))])


def key_of(key: str, begin: Sequence[int]) -> str:
    """The name in a file for a part of the array `key`."""
    return f"{key}@{'.'.join(map(str, begin))}"


def flat(arrays: Mapping[str, np.ndarray | DividedArray]) -> dict[str, np.ndarray]:
    """Everything that is written for arrays, by its name in the files."""
    found: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        if isinstance(array, DividedArray):
            found.update({key_of(key, part.begin): part.array for part in array.parts})
        else:
            found[key] = array
    return found


def described(
    arrays: Mapping[str, np.ndarray | DividedArray], rows: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The manifest's entries for arrays, from its entries for everything written for them."""
    found: dict[str, Any] = {}
    for key, array in arrays.items():
        if not isinstance(array, DividedArray):
            found[key] = rows[key]
            continue
        parts = []
        for part in array.parts:
            row = rows[key_of(key, part.begin)]
            kept = {name: row[name] for name in ("file", "shape", "sha256")}
            parts.append({"begin": list(part.begin), **kept})
        shape = list(array.type.shape)  # type: ignore[arg-type]
        found[key] = {"dtype": array.type.dtype.short, "shape": shape, "parts": parts}
    return found


def merged(tables: Sequence[Mapping[str, dict[str, Any]]]) -> dict[str, Any]:
    """The array tables of several processes as one table: for a sharded array, all parts."""
    found: dict[str, Any] = {}
    for table in tables:
        for key, row in table.items():
            known = found.setdefault(key, {**row, **({"parts": []} if "parts" in row else {})})
            if "parts" in row:
                known["parts"] += row["parts"]
    return found


# Reading.


class StoredPart(NamedTuple):
    """A part in a file: its start and end within the array."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    stored: Stored


class StoredParts:
    """An array in parts, each of which is read and verified on demand."""

    def __init__(self, type: TensorType, parts: Sequence[StoredPart]) -> None:
        self.type = type
        self._parts = parts

    @property
    def nbytes(self) -> int:
        return bytes_of_type(self.type)

    @property
    def places(self) -> list[tuple[TensorFile, str]]:
        """The files that hold parts of it, and the parts' names there."""
        return [place for part in self._parts for place in part.stored.places]

    def read(self) -> np.ndarray:
        """The array. Raises LoadError if its bytes are not those that were written."""
        shape: Any = self.type.shape
        return self.reader()((0,) * len(shape), shape)

    def reader(self) -> Callable[[Sequence[int], Sequence[int]], np.ndarray]:
        """A function that reads the elements from `begin` to `end`, and no part twice."""
        known: dict[tuple[int, ...], np.ndarray] = {}

        def read(begin: Sequence[int], end: Sequence[int]) -> np.ndarray:
            shape = [b - a for a, b in zip(begin, end, strict=True)]
            found = np.empty(shape, self.type.dtype.numpy_dtype)
            for part in self._parts:
                low = [max(a, b) for a, b in zip(begin, part.begin, strict=True)]
                high = [min(a, b) for a, b in zip(end, part.end, strict=True)]
                if all(a < b for a, b in zip(low, high, strict=True)):
                    if part.begin not in known:
                        known[part.begin] = part.stored.read()
                    found[_box(low, high, begin)] = known[part.begin][_box(low, high, part.begin)]
            return found

        return read


def _box(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """The elements from `low` to `high`, relative to an origin."""
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


StoredArray: TypeAlias = Stored | StoredParts


def stored_arrays(entry: Entry, files: Mapping[str, TensorFile]) -> dict[str, StoredArray]:
    """The arrays in a table of the manifest, each verified against the headers of its files."""
    found: dict[str, StoredArray] = {}
    for key, row in entry.pairs().items():
        if has_surrogates(key):
            row.fail("the name holds half of a pair of surrogates")
        if "parts" in row.pairs():
            found[key] = _stored_parts(row, key, files)
        else:
            file, dtype, shape, digest = row.fields("file", "dtype", "shape", "sha256")
            type = stored_type(dtype, shape)
            found[key] = stored_array(row, key, type, file.choice(files), digest)
    return found


def _stored_parts(row: Entry, key: str, files: Mapping[str, TensorFile]) -> StoredParts:
    dtype, shape, entries = row.fields("dtype", "shape", "parts")
    type = stored_type(dtype, shape)
    found = []
    for entry in entries.items():
        places, file, sizes, digest = entry.fields("begin", "file", "shape", "sha256")
        begin = sizes_of(places)
        if not len(begin) == len(sizes.axes()) == len(shape.axes()):
            entry.fail(f"it has other axes than the array, which has {len(shape.axes())}")
        part_type = stored_type(dtype, sizes)
        part = stored_array(entry, key_of(key, begin), part_type, file.choice(files), digest)
        end = tuple(a + b for a, b in zip(begin, sizes_of(sizes), strict=True))
        found.append(StoredPart(begin, end, part))
    _check_cover(row, type, found)
    return StoredParts(type, found)


def _check_cover(row: Entry, type: TensorType, parts: Sequence[StoredPart]) -> None:
    """Raises LoadError unless every element of the array is in exactly one part."""
    shape: Any = type.shape
    cuts = [
        sorted({0, size, *(x.begin[i] for x in parts), *(x.end[i] for x in parts)})
        for i, size in enumerate(shape)
    ]
    if any(cut[-1] > size for cut, size in zip(cuts, shape, strict=True)):
        row.fail(f"a part of it ends outside its shape, {list(shape)}")
    cells = [len(cut) - 1 for cut in cuts]
    if math.prod(cells) > _CELLS * len(parts):
        row.fail("its parts form no grid")
    counts = np.zeros(cells, np.int32)
    for part in parts:
        bounds = zip(cuts, part.begin, part.end, strict=True)
        counts[tuple(slice(cut.index(a), cut.index(b)) for cut, a, b in bounds)] += 1
    if not (counts == 1).all():
        row.fail("its parts do not cover each element exactly once")
