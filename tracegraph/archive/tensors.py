"""Named arrays in safetensors files: written in shards, held open, read one at a time.

The format stores the common dtypes in row-major, little-endian order. Others go through a view:
complex128 as pairs of float64, the small floats and integers as bytes; the manifest states the
intended dtype. Each array has its own checksum, which is verified when the array is read, so
opening a large file reads none of its data.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors import safe_open

from tracegraph.archive.manifest import Entry, excerpt
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.types import BY_SHORT, TensorType, bytes_of_type, type_of_array
from tracegraph.core.worker_thread import Task
from tracegraph.errors import LoadError, fail, reason_of

T = TypeVar("T")

#: Bytes per file: larger sets of arrays are split into shards.
SHARD_BYTES = 5 * 10**9
#: The most elements of a tensor: more cannot be addressed in bytes.
_MOST_ELEMENTS = 2**48

#: The dtypes that have values, by their short names.
_STORED_DTYPES = {short: dtype for short, dtype in BY_SHORT.items() if dtype.size}
#: The dtypes of the format, by ours, in the format's order.
_FORMAT_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
_ORDER = [*_FORMAT_NAMES.values()]


def storage_view(array: np.ndarray) -> np.ndarray:
    """`array` in a dtype of the format: contiguous, little-endian, bit for bit."""
    array = np.ascontiguousarray(array) if array.ndim else np.asarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.name in _FORMAT_NAMES:
        return array
    if array.dtype.name == "complex128":
        return array.reshape((*array.shape, 1)).view(np.float64)
    if array.dtype.itemsize == 1:
        return array.view(np.uint8)
    raise TypeError(f"arrays of {array.dtype} have no form in a file")


def _form_in_file(type: TensorType) -> tuple[str, tuple[int, ...]]:
    """The dtype name and the shape of an array of `type` in a file."""
    name, shape = type.dtype.name, type.shape
    assert isinstance(shape, tuple)
    if name == "complex128":
        return "F64", (*shape, 2)  # type: ignore[return-value]
    return _FORMAT_NAMES.get(name, "U8"), shape  # type: ignore[return-value]


def bytes_of(array: np.ndarray) -> Any:
    """The bytes of a storage view, without a copy."""
    return array.reshape(-1).view(np.uint8) if array.size else b""


def checksum(array: np.ndarray) -> str:
    """SHA-256 of the bytes of a storage view."""
    return hashlib.sha256(bytes_of(array)).hexdigest()


# Writing.


class Shard(NamedTuple):
    """The arrays of one file by name, each converted to its stored form only while written."""

    arrays: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Writes the file. safetensors could, but does not report why a disk accepts no more."""
        order = sorted(self.arrays, key=lambda name: (-self._rank(name), name))
        with open(path, "wb", buffering=0) as file:
            _write_all(file, _head([(name, self.arrays[name]) for name in order]))
            for name in order:
                _write_all(file, bytes_of(storage_view(self.arrays[name])))

    def checksums(self) -> dict[str, str]:
        """The checksums of the arrays."""
        return {key: checksum(storage_view(array)) for key, array in self.arrays.items()}

    def _rank(self, name: str) -> int:
        """Larger elements come first, so that each array starts at a multiple of its element
        size."""
        return _ORDER.index(_form_in_file(type_of_array(self.arrays[name]))[0])


def _head(arrays: Iterable[tuple[str, np.ndarray]]) -> bytes:
    """The header of a file: its own size, and where each array is."""
    rows: dict[str, Any] = {}
    end = 0
    for name, array in arrays:
        begin, end = end, end + array.nbytes
        dtype, shape = _form_in_file(type_of_array(array))
        rows[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_all(file: io.FileIO, data: Any) -> None:
    """Writes all bytes: the system may accept only a part of them at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def shards(arrays: Mapping[str, np.ndarray]) -> list[Shard]:
    """The arrays in shards of at most `SHARD_BYTES`; an array is never split."""
    found: list[Shard] = []
    size = 0
    for name, array in arrays.items():
        if not found or (size + array.nbytes > SHARD_BYTES and found[-1].arrays):
            found.append(Shard({}))
            size = 0
        found[-1].arrays[name] = array
        size += array.nbytes
    return found


def description(array: np.ndarray, file: str, digest: str) -> dict[str, Any]:
    """The manifest's entry for an array that is stored in `file`; `digest` is its checksum."""
    type = type_of_array(array)
    return {
        "file": file,
        "dtype": type.dtype.short,
        "shape": list(array.shape),
        "sha256": digest,
    }


# Reading.


#: How much is hashed while more is read: a block stays in a core's cache in between.
_BLOCK = 2**22
#: Alignment of arrays in memory: XLA uses aligned ones in place, and copies others.
_ALIGNMENT = 64


class TensorFile:
    """A safetensors file, held open, so that a save that removes it takes nothing away.

    Its header is read once, when it is opened. Whatever happens to the file later, a tensor is read
    from where the header says, and its bytes are verified against their checksum.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - it is read later
            weakref.finalize(self, self._file.close)
            with safe_open(path, "np"):  # checks the whole header against the size of the file
                self._rows = _entries_of(self._file)
        except outside_interrupts(Exception) as error:
            # The library has its own class for malformed files.
            fact = f"{name} is not a file of tensors: {error}"
            fail(LoadError, fact, fix=_DAMAGED, cause=error)
        self.names = set(self._rows)

    def form(self, key: str) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape in which an array is stored."""
        return self._rows[key].dtype, self._rows[key].shape

    def read(self, key: str) -> tuple[np.ndarray, str]:
        """The bytes of an array, copied to fresh memory, and their SHA-256. A memory-mapped file
        could change after it was verified.

        Raises LoadError if they cannot be read.
        """
        begin, end = self._rows[key].begin, self._rows[key].end
        found = _aligned(end - begin)
        digest = hashlib.sha256()
        blocks = [found[i : i + _BLOCK] for i in range(0, found.size, _BLOCK)]
        places = range(begin, end, _BLOCK)
        # Hashing and reading need no Python: one block is hashed while the next is read.
        ahead = map if len(blocks) < 2 else _read_ahead
        try:
            for block in ahead(self._fill, blocks, places):
                digest.update(block.data)
        except outside_interrupts(OSError) as error:
            fact = f"{self.name}: the tensor {key!r} cannot be read: {reason_of(error)}"
            fail(LoadError, fact, fix=_DAMAGED, cause=error)
        return found, digest.hexdigest()

    def _read_at(self, place: int, into: memoryview) -> int:
        """Reads from a position, at most what fits into the buffer; returns the number of bytes."""
        if hasattr(os, "preadv"):  # no other reader, nor an interrupt, moves the position
            return os.preadv(self._file.fileno(), [into], place)
        with self._lock:
            self._file.seek(place)
            return self._file.readinto(into) or 0

    def _fill(self, block: np.ndarray, place: int) -> np.ndarray:
        rest = block.data
        while rest:
            count = self._read_at(place, rest)
            if not count:
                raise OSError("the file was cut short")
            rest, place = rest[count:], place + count
        return block


class _TensorEntry(NamedTuple):
    """An array's entry in the header of a file."""

    dtype: str
    shape: tuple[int, ...]
    #: Where its bytes start and end in the file.
    begin: int
    end: int


def _entries_of(file: io.FileIO) -> dict[str, _TensorEntry]:
    """The arrays of a file by name, from a header known to be valid."""
    size = int.from_bytes(file.read(8), "little")
    rows = json.loads(file.read(size))
    rows.pop("__metadata__", None)
    found = {}
    for key, row in rows.items():
        begin, end = (8 + size + offset for offset in row["data_offsets"])
        found[key] = _TensorEntry(row["dtype"], tuple(row["shape"]), begin, end)
    return found


def _aligned(size: int) -> np.ndarray:
    """Memory of this size that XLA can use without copying."""
    found = np.empty(size + _ALIGNMENT, np.uint8)
    start = -found.ctypes.data % _ALIGNMENT
    return found[start : start + size]


def _read_ahead(
    fill: Callable[[T, int], T], blocks: Iterable[T], places: Iterable[int]
) -> Iterator[T]:
    """`map`, where each result is computed while the one before it is used."""
    waiting: Task[T] | None = None
    for block, place in zip(blocks, places, strict=True):
        coming = Task(functools.partial(fill, block, place))
        if waiting is not None:
            yield waiting.result()
        waiting = coming
    if waiting is not None:
        yield waiting.result()


_DAMAGED = "the file is damaged: save it again, or fetch it again from where it came"


class Stored:
    """An array in a file, read and verified on first use."""

    def __init__(self, file: TensorFile, key: str, type: TensorType, digest: str) -> None:
        self.file = file
        self._key = key
        self._digest = digest
        self.type = type

    @property
    def nbytes(self) -> int:
        return bytes_of_type(self.type)

    @property
    def places(self) -> list[tuple[TensorFile, str]]:
        """The file that holds it, and its name there."""
        return [(self.file, self._key)]

    def reader(self) -> Callable[[Sequence[int], Sequence[int]], np.ndarray]:
        """A function that reads the elements from `begin` to `end`."""
        array = self.read()
        return lambda begin, end: array[tuple(map(slice, begin, end))]

    def read(self) -> np.ndarray:
        """The array. Raises LoadError if its bytes are not those that were written."""
        data, found = self.file.read(self._key)
        if found != self._digest:
            fail(
                LoadError,
                f"{self.file.name}: the tensor {self._key!r} was changed: its SHA-256 is {found} "
                f"and the manifest has {self._digest}",
                fix=_DAMAGED,
            )
        return data.view(self.type.dtype.numpy_dtype).reshape(self.type.shape)  # type: ignore[arg-type]


def stored_array(row: Entry, key: str, type: TensorType, file: TensorFile, digest: Entry) -> Stored:
    """An array in a row of the manifest, verified against the header of its file."""
    if key not in file.names:
        row.fail(f"the file {file.name} has no tensor {excerpt(key)}")
    if file.form(key) != _form_in_file(type):
        row.fail(f"the file {file.name} has {file.form(key)}, and {type} is {_form_in_file(type)}")
    return Stored(file, key, type, as_digest(digest))


def stored_type(dtype: Entry, shape: Entry) -> TensorType:
    """The type of an array: a dtype that has values, and sizes."""
    return TensorType(dtype.choice(_STORED_DTYPES), sizes_of(shape))


def sizes_of(entry: Entry) -> tuple[int, ...]:
    """The sizes of an array."""
    return tuple(n.count(_MOST_ELEMENTS) for n in entry.axes())


def as_digest(entry: Entry) -> str:
    """A SHA-256 in hexadecimal digits."""
    text = entry.text()
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        entry.fail("it is not a SHA-256, which has 64 hexadecimal digits")
    return text


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
