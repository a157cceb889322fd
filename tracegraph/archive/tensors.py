"""Named arrays in safetensors files: written in shards, held open, read one at a time.

The format stores the common dtypes, row after row, little-endian. What it lacks goes through a
view: complex128 as pairs of float64, the small floats and integers as bytes; the dtype that is
meant stands in the manifest. Each array has a checksum of its own, which is compared when the
array is read, so that opening a large file reads nothing of it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from tracegraph.archive.manifest import Entry, excerpt, has_surrogates
from tracegraph.errors import LoadError, fail
from tracegraph.source import here
from tracegraph.types import BY_SHORT, TensorType, type_of_array

T = TypeVar("T")

#: Bytes per file: larger sets of arrays are cut into shards.
SHARD_BYTES = 5 * 10**9
#: The most elements of a tensor: what has more cannot be addressed in bytes.
_MOST_ELEMENTS = 2**48

_NATIVE = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "complex64"),
}
#: The dtypes that have values, by their short names.
_STORED_DTYPES = {short: dtype for short, dtype in BY_SHORT.items() if dtype.size}
_FORMAT_NAMES = {
    "bool": "BOOL",
    **{
        f"{kind}{bits}": f"{kind[0].upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
}


def storage_view(array: np.ndarray) -> np.ndarray:
    """`array` in a dtype that the format has: contiguous, little-endian, bit for bit."""
    array = np.ascontiguousarray(array) if array.ndim else np.asarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.name in _NATIVE:
        return array
    if array.dtype.name == "complex128":
        return array.reshape((*array.shape, 1)).view(np.float64)
    if array.dtype.itemsize == 1:
        return array.view(np.uint8)
    raise TypeError(f"arrays of {array.dtype} have no form in a file")


def _stored_type(type: TensorType) -> tuple[str, tuple[int, ...]]:
    """The name of the dtype and the shape that an array of `type` has in a file."""
    name, shape = type.dtype.name, type.shape
    assert isinstance(shape, tuple)
    if name == "complex128":
        return "F64", (*shape, 2)  # type: ignore[return-value]
    return _FORMAT_NAMES.get(name, "U8"), shape  # type: ignore[return-value]


def checksum(array: np.ndarray) -> str:
    """SHA-256 of the bytes of a storage view."""
    data: Any = array.reshape(-1).view(np.uint8) if array.size else b""
    return hashlib.sha256(data).hexdigest()


# Writing.


class Shard(NamedTuple):
    """The arrays of one file, as storage views by name."""

    arrays: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        save_file(self.arrays, path)


def shards(arrays: Mapping[str, np.ndarray]) -> list[Shard]:
    """The arrays in shards of at most `SHARD_BYTES`; one array is never cut."""
    found: list[Shard] = []
    size = 0
    for name, array in arrays.items():
        view = storage_view(array)
        if not found or (size + view.nbytes > SHARD_BYTES and found[-1].arrays):
            found.append(Shard({}))
            size = 0
        found[-1].arrays[name] = view
        size += view.nbytes
    return found


def description(array: np.ndarray, file: str, digest: str | None = None) -> dict[str, Any]:
    """What the manifest says of an array that is stored in `file`; `digest` is its checksum."""
    type = type_of_array(array)
    return {
        "file": file,
        "dtype": type.dtype.short,
        "shape": list(array.shape),
        "sha256": checksum(storage_view(array)) if digest is None else digest,
    }


# Reading.


#: How much is hashed while more is read: it stays in the cache of a core in between.
_BLOCK = 2**22
#: Where arrays begin in memory: XLA uses those as they are, and copies others.
_ALIGNMENT = 64


class TensorFile:
    """A safetensors file, which is held open: a save that removes it takes nothing away."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - it is read later
            weakref.finalize(self, self._file.close)
            self._handle = safe_open(path, "np")
            self.names = set(self._handle.keys())
        except Exception as error:  # safetensors has its own class for what it does not understand
            fact = f"{name} is no file of tensors: {error}"
            fail(LoadError, fact, source=here(), fix=_DAMAGED, cause=error)

    def form(self, key: str) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape in which an array is stored."""
        piece = self._handle.get_slice(key)
        return piece.get_dtype(), tuple(piece.get_shape())

    def read(self, key: str) -> tuple[np.ndarray, str]:
        """The bytes of an array in memory of its own, and their SHA-256. They are copied: a file
        that is mapped may change after it was compared with its checksum."""
        begin, end = self._places[key]
        found = _aligned(end - begin)
        digest = hashlib.sha256()
        blocks = [found[i : i + _BLOCK] for i in range(0, found.size, _BLOCK)]
        places = range(begin, end, _BLOCK)
        # Hashing and reading need no Python: one block is hashed while the next one is read.
        ahead = map if len(blocks) < 2 else _read_ahead
        for block in ahead(self._fill, blocks, places):
            digest.update(block.data)
        return found, digest.hexdigest()

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where arrays begin and end in the file: its head, which was checked when it was opened,
        has that."""
        with self._lock:
            self._file.seek(0)
            size = int.from_bytes(self._file.read(8), "little")
            head = json.loads(self._file.read(size))
        rows = {key: row["data_offsets"] for key, row in head.items() if key in self.names}
        return {key: (8 + size + begin, 8 + size + end) for key, (begin, end) in rows.items()}

    def _fill(self, block: np.ndarray, place: int) -> np.ndarray:
        rest = block.data
        while rest:
            with self._lock:
                self._file.seek(place)
                count = self._file.readinto(rest)
            if not count:
                fail(LoadError, f"{self.name} was cut short", source=here(), fix=_DAMAGED)
            rest, place = rest[count:], place + count
        return block


def _aligned(size: int) -> np.ndarray:
    """Memory for so many bytes that XLA uses as it is."""
    found = np.empty(size + _ALIGNMENT, np.uint8)
    start = -found.ctypes.data % _ALIGNMENT
    return found[start : start + size]


def _read_ahead(
    fill: Callable[[T, int], T], blocks: Iterable[T], places: Iterable[int]
) -> Iterator[T]:
    """As `map`, where each result is made while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for block, place in zip(blocks, places, strict=True):
            coming = pool.submit(fill, block, place)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()


_DAMAGED = "the file is damaged: save it again, or fetch it again from where it came"


class Stored:
    """An array in a file, read and checked at the first use."""

    def __init__(self, file: TensorFile, key: str, type: TensorType, digest: str) -> None:
        self.file = file
        self._key = key
        self._digest = digest
        self.type = type

    @property
    def nbytes(self) -> int:
        return math.prod(self.type.shape) * self.type.dtype.size  # type: ignore[arg-type]

    def read(self) -> np.ndarray:
        """The array. Raises LoadError where its bytes are not those that were written."""
        data, found = self.file.read(self._key)
        if found != self._digest:
            fail(
                LoadError,
                f"{self.file.name}: the tensor {self._key!r} was changed: its SHA-256 is {found} "
                f"and the manifest has {self._digest}",
                source=here(),
                fix=_DAMAGED,
            )
        return data.view(self.type.dtype.numpy_dtype).reshape(self.type.shape)  # type: ignore[arg-type]


def stored_arrays(entry: Entry, files: Mapping[str, TensorFile]) -> dict[str, Stored]:
    """The arrays that a table of the manifest lists, each compared with the head of its file."""
    found: dict[str, Stored] = {}
    for key, row in entry.pairs().items():
        file, dtype, shape, digest = row.fields("file", "dtype", "shape", "sha256")
        if has_surrogates(key):
            row.fail("the name holds half of a pair of surrogates")
        stored = file.choice(files)
        sizes = tuple(n.count(_MOST_ELEMENTS) for n in shape.axes())
        type = TensorType(dtype.choice(_STORED_DTYPES), sizes)
        _check_stored(row, stored, key, type)
        found[key] = Stored(stored, key, type, as_digest(digest))
    return found


def _check_stored(row: Entry, file: TensorFile, key: str, type: TensorType) -> None:
    if key not in file.names:
        row.fail(f"the file {file.name} has no tensor {excerpt(key)}")
    if file.form(key) != _stored_type(type):
        row.fail(f"the file {file.name} has {file.form(key)}, and {type} is {_stored_type(type)}")


def as_digest(entry: Entry) -> str:
    """A SHA-256 in hexadecimal digits."""
    text = entry.text()
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        entry.fail("it is no SHA-256, which has 64 hexadecimal digits")
    return text


def unlisted(files: Iterable[TensorFile], tables: Iterable[Mapping[str, Stored]]) -> Iterator[str]:
    """Tensors in the files that no table lists."""
    listed = {(id(x.file), key) for table in tables for key, x in table.items()}
    for file in files:
        for key in sorted(file.names):
            if (id(file), key) not in listed:
                yield f"{file.name}: {key}"


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
