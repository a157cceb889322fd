"""A directory of files named by their content, and one manifest that commits them.

Writing never touches a file that the present manifest names. New files come first, each flushed to
disk; then the manifest is replaced atomically; then files that no manifest names are removed. So a
writer that is killed leaves the old state or the new one, and readers see one of them, whole: a
reader that misses a file of the old state starts over with the new one. Files whose names we did
not generate are the user's: they are never removed.

Extra files are the exception to names by content: users look for them under their own names. They
are first stored under a content name, which counts from the commit on, and get their own names
right after it; if a writer is killed in between, the next one finishes the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import threading
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np

from tracegraph.archive import manifest
from tracegraph.archive.array_parts import DividedArray, StoredArray, described, flat, stored_arrays
from tracegraph.archive.manifest import Entry
from tracegraph.archive.tensors import TensorFile, as_digest, description, file_digest, shards
from tracegraph.core.interrupts import is_of_interrupt, outside_interrupts
from tracegraph.core.worker_thread import Task
from tracegraph.errors import (
    LoadError,
    NothingSavedError,
    SignatureError,
    counted,
    fail,
    refused,
    shown,
    way_out,
)

MANIFEST = "tracegraph.json"
#: The list of checkpoints in a directory that has several.
STATE = "checkpoint"
#: Folders of a saved directory; `extra` belongs to the user.
ASSETS, PAYLOADS, EXTRA = "assets", "stablehlo", "extra"
_FOLDERS = (ASSETS, PAYLOADS)
#: Everything that a directory may hold besides files of ours.
_OWN = (*_FOLDERS, EXTRA)
#: Files that we write: their names contain a part of their SHA-256.
_NAMED = re.compile(r"[a-z0-9-]{1,100}-([0-9a-f]{12})\.[a-z]{1,20}")
#: Their temporary names; safetensors first writes to temporary names of its own, which others use
#: too.
_WAITING = re.compile(r"\.tracegraph-[0-9a-f]{16}")
_TEMPORARY = re.compile(r"\.tmp[A-Za-z0-9]{6}")
_ASSET = re.compile(r"([0-9a-f]{12})-.+", re.DOTALL)

T = TypeVar("T")
#: What a file is to hold: its bytes, or a function that writes it to a path.
Content: TypeAlias = bytes | Callable[[Path], None]


#: Folders and files that writers of this process are writing, or have written and not yet
#: committed. A signal handler or another thread may save here meanwhile, and must leave them. They
#: are strings, whose comparison runs no Python: the list cannot change during a search.
_in_use: list[str] = []

#: Held while a folder is marked as in use, and while an unused one is removed. Its holder waits for
#: nothing else, so whoever waits for it, even a signal handler, gets it.
removing = threading.RLock()


def is_in_use(path: Path) -> bool:
    """Whether a writer of this process is writing to a folder or a file."""
    return str(path) in _in_use


class Writer:
    """Adds files to a directory, to be named by a manifest that `commit` writes.

    If the system accepts no more, as on a full disk, everything from before is left intact, and the
    OSError says so.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path)
        self._files: dict[str, dict[str, Any]] = {}
        self._extras: dict[str, dict[str, Any]] = {}
        #: Files and folders that did not exist before, in order of creation.
        self._made: list[Path] = []
        #: The files and folders that it has marked as in use.
        self._held: list[str] = []
        #: The manifest being written, from the moment on at which it may exist.
        self._manifest: bytes | None = None

    def __enter__(self) -> Writer:
        try:
            _refuse_foreign(self.root)
            with removing:
                self._hold(self.root)
                self._make_folder(self.root)
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        self._end(error)

    def _hold(self, path: Path) -> None:
        self._held.append(str(path))
        _in_use.append(str(path))

    def _end(self, error: BaseException | None) -> None:
        """Releases what was in use. If nothing was committed, removes what was added. Raises an
        OSError in our words."""
        while self._held:
            path = self._held.pop()
            if path in _in_use:
                _in_use.remove(path)
        if error is not None:
            self._clear_away(error)

    def _clear_away(self, error: BaseException) -> None:
        is_saved = self._is_saved()
        for path in reversed([] if is_saved else self._made):
            with contextlib.suppress(OSError):  # a folder may hold somebody else's files by now
                path.rmdir() if path.is_dir() else path.unlink()
        if not isinstance(error, OSError) or isinstance(error, LoadError):
            return
        if is_of_interrupt(error):  # handlers raise TimeoutError, which is an OSError
            return
        if is_saved:
            fact = f"{self.root} is saved, and the rest of the save failed"
            refused(error, fact, "save again, which does the rest too")
        source = error.filename if isinstance(error.filename, str) else ""
        is_inside = self.root in (Path(source), *Path(source).parents)
        reading = "" if not source or is_inside else f", because of {source}"
        kept = ", and holds what it held" if os.path.exists(self.root / MANIFEST) else ""
        refused(error, f"{self.root} cannot be saved to{kept}{reading}", way_out(error))

    def _is_saved(self) -> bool:
        """Whether the manifest at the path is the one of this save: an interrupt or an error may
        strike right before it got there, or right after."""
        if self._manifest is None:
            return False
        try:
            return (self.root / MANIFEST).read_bytes() == self._manifest
        except outside_interrupts(OSError):
            return False

    def add(self, stem: str, suffix: str, content: Content) -> str:
        """Writes a file and returns its name: the stem, its checksum, the suffix."""
        return self._placed("", content, lambda digest: f"{stem}-{digest[:12]}.{suffix}")

    def add_arrays(
        self, stem: str, arrays: Mapping[str, np.ndarray | DividedArray]
    ) -> dict[str, Any]:
        """Writes arrays to files, and returns the manifest's entry for each."""
        pieces = flat(arrays)
        cut = shards({key: pieces[key] for key in sorted(pieces)})
        found: dict[str, Any] = {}
        for number, shard in enumerate(cut, start=1):
            name = stem if len(cut) == 1 else f"{stem}-{number:05}-of-{len(cut):05}"
            # Hashing needs no Python, so it overlaps with writing files.
            digests = Task(shard.checksums)
            file = self.add(name, "safetensors", shard.save)
            for key, digest in digests.result().items():
                found[key] = description(pieces[key], file, digest)
        return described(arrays, found)

    def written_files(self) -> dict[str, dict[str, Any]]:
        """The manifest's entries for the files that were added."""
        return dict(self._files)

    def give_away(self) -> None:
        """Leaves its files to a manifest that another process writes: from now on that may name
        them, whatever happens here."""
        self._made.clear()

    def adopt(self, files: Mapping[str, dict[str, Any]]) -> None:
        """Takes over files that another process added to the same directory."""
        self._files.update(files)

    def add_program(self, data: bytes) -> str:
        """Writes a compiled form, which nothing here reads."""
        return self._placed(PAYLOADS, data, lambda digest: f"program-{digest[:12]}.stablehlo")

    def add_asset(self, source: Path) -> str:
        """Copies a user's file under its own name prefixed by its checksum; the name of a file that
        was saved before already has that prefix."""
        check_file_name(source.name)
        if not source.is_file():
            fact = f"the asset {source} cannot be saved: there is no such file any more"
            fix = "put the file back, or give the attribute a new tg.saved_model.Asset"
            fail(SignatureError, fact, fix=fix)

        def save(path: Path) -> None:
            with open(source, "rb") as old, open(path, "wb") as new:
                while block := old.read(2**20):
                    new.write(block)

        def name_of(digest: str) -> str:
            return f"{digest[:12]}-{source.name.removeprefix(f'{digest[:12]}-')}"

        return self._placed(ASSETS, save, name_of)

    def add_extra(self, name: str, data: bytes) -> None:
        """Writes a user's file for the folder `extra`, which is not read here."""
        check_file_name(name)
        waiting = self._placed(EXTRA, data, lambda digest: _waiting_name(digest, name))
        self._extras[name] = self._files.pop(waiting)

    def _placed(self, folder: str, content: Content, name_of: Callable[[str], str]) -> str:
        directory = self.root / folder
        self._make_folder(directory)
        with _waiting(directory) as waiting:
            waiting.touch()
            mode = waiting.stat().st_mode  # as the user's files have; some writers set fewer bits
            _write(waiting, content)
            waiting.chmod(mode)
            digest = file_digest(waiting)
            size = waiting.stat().st_size
            name = name_of(digest)
            if not os.path.lexists(directory / name):
                self._made.append(directory / name)
            self._hold(directory / name)
            _move_into_place(waiting, directory / name)
        name = f"{folder}/{name}" if folder else name
        self._files[name] = {"bytes": size, "sha256": digest}
        return name

    def _make_folder(self, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            self._made.append(folder)
            folder.mkdir(exist_ok=True)

    def commit(self, content: dict[str, Any]) -> None:
        """Commits the files: replaces the manifest, then removes what it does not name.

        Raises SignatureError, before anything is replaced, for content that a reader would refuse.
        """
        files = {name: self._files[name] for name in sorted(self._files)}
        if self._extras:
            content = {
                **content,
                EXTRA: {name: self._extras[name] for name in sorted(self._extras)},
            }
        data = manifest.written({**content, "files": files})
        before = _listed_extras(self.root)
        _name_extras(self.root, before)
        places = [*files, *(f"{EXTRA}/{name}" for name in self._extras)]
        for folder in {self.root, *(self.root / Path(name).parent for name in places)}:
            _flush(folder)
        with _waiting(self.root) as waiting:
            _write(waiting, data)
            self._manifest = data
            _move_into_place(waiting, self.root / MANIFEST)
        _flush(self.root)
        _flush(self.root.parent)
        _name_extras(self.root, self._extras)
        _remove_extras(self.root, before, self._extras)
        for path in _leftovers(self.root, {*places}):
            with contextlib.suppress(FileNotFoundError):  # another writer may also remove it
                path.unlink()


def write_output(path: str | os.PathLike[str], content: Content) -> None:
    """Writes a user's file atomically. Anything but a regular file, such as a link, a device or a
    pipe, is written in place.

    Raises OSError, in our words, if the system refuses; a regular file is then unchanged.
    """
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_file()):
        with _refusing(f"{target} cannot be written"):
            _write(target, content)
    else:
        replace_file(target, content)


def replace_file(path: Path, content: Content) -> None:
    """Replaces the contents of a file atomically: readers see the old bytes or the new ones.

    Raises OSError, in our words, if the system refuses; the file is then unchanged.
    """
    kept = ", and holds what it held" if path.exists() else ""
    with _refusing(f"{path} cannot be written{kept}"), _waiting(path.parent) as waiting:
        _write(waiting, content)
        if path.exists():
            waiting.chmod(path.stat().st_mode)
        _move_into_place(waiting, path)


@contextlib.contextmanager
def _refusing(fact: str) -> Iterator[None]:
    """A context that re-raises an OSError in our words."""
    try:
        yield
    except outside_interrupts(OSError) as error:
        refused(error, fact, way_out(error))


def remove_waiting(folder: Path) -> None:
    """Removes temporary files that a killed `replace_file` left. The folder may be the user's."""
    for path in folder.iterdir():
        if _WAITING.fullmatch(path.name) and not is_in_use(path):
            path.unlink(missing_ok=True)


def is_waiting(name: str) -> bool:
    """Whether a name in a folder of ours is that of an incomplete file."""
    return bool(_WAITING.fullmatch(name) or _TEMPORARY.fullmatch(name))


@contextlib.contextmanager
def _waiting(folder: Path) -> Iterator[Path]:
    """A temporary path for a file that is renamed once complete; removes it otherwise."""
    path = folder / f".tracegraph-{secrets.token_hex(8)}"
    _in_use.append(str(path))
    try:
        yield path
    finally:
        _in_use.remove(str(path))
        path.unlink(missing_ok=True)


def _move_into_place(waiting: Path, path: Path) -> None:
    """Gives a file its name, after flushing its contents to disk."""
    _flush(waiting)
    os.replace(waiting, path)


def _write(path: Path, content: Content) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _leftovers(root: Path, named: set[str]) -> Iterator[Path]:
    """Files of ours that no manifest names: from an earlier save, or a killed one."""
    for folder in ("", *_OWN):
        prefix = f"{folder}/" if folder else ""
        for path in _files_in(root / folder):
            is_named = f"{prefix}{path.name}" in named or is_in_use(path)
            if not is_named and _was_written(path, folder):
                yield path


def _was_written(path: Path, folder: str) -> bool:
    """Whether a file has a name of our form and, where users choose the part after the checksum,
    the content that was written under it."""
    match = _ASSET.fullmatch(path.name) if folder in (ASSETS, EXTRA) else None
    if match is None:
        return _is_ours(path.name, folder)
    return file_digest(path)[:12] == match[1]


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, without links: we create none."""
    return sorted(path for path in folder.glob("*") if path.is_file() and not path.is_symlink())


def _is_ours(name: str, folder: str = "") -> bool:
    """Whether a file has a name that we generated."""
    pattern = _ASSET if folder in (ASSETS, EXTRA) else _NAMED
    return pattern.fullmatch(name) is not None or is_waiting(name)


def _refuse_foreign(root: Path) -> None:
    """Raises for a path that holds anything other than a saved directory."""
    if not root.exists():
        return
    if not root.is_dir():
        fact = f"{root} is a file, and a directory is written there"
        fail(SignatureError, fact, fix="give another path, or remove the file")
    for folder in map(root.joinpath, _OWN):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            kind = "a symbolic link, which is not followed" if folder.is_symlink() else "a file"
            fact = f"{folder} is {kind}, and a folder is written there"
            fail(SignatureError, fact, fix="give another path, or remove it")
    others = [] if (root / MANIFEST).exists() else sorted(_foreign(root))
    if others:
        fail(
            SignatureError,
            f"{root} holds {counted(len(others), 'other file')}, such as {others[0]!r}, and no "
            f"{MANIFEST}",
            fix="give a path that does not exist, an empty directory, or one that was saved before",
        )


def _foreign(root: Path) -> Iterator[str]:
    """The names of files that no save has written, and that would be mixed up with it."""
    for folder in ("", *_FOLDERS):
        for path in (root / folder).glob("*"):
            is_folder = not folder and path.name in _OWN
            if not is_folder and not _is_ours(path.name, folder):
                yield path.relative_to(root).as_posix()


# Extra files: the manifest lists their sizes and checksums by name.


def _waiting_name(digest: str, name: str) -> str:
    return f"{digest[:12]}-{name}"


def _listed_extras(root: Path) -> dict[str, dict[str, Any]]:
    """The extra files of the present manifest; none if it is damaged."""
    try:
        data = (root / MANIFEST).read_bytes()
        if f'"{EXTRA}"'.encode() not in data:  # most have none, and parsing takes time
            return {}
        entry = manifest.unsealed(data, manifest.read(data, MANIFEST))
        rows = entry.pairs().get(EXTRA)
        return {} if rows is None else read_extras(rows)
    except outside_interrupts(OSError, LoadError):
        return {}


def read_extras(entry: Entry) -> dict[str, dict[str, Any]]:
    """The extra files that a manifest lists; they need not exist."""
    found = {}
    for name, row in entry.pairs().items():
        size, digest = row.fields("bytes", "sha256")
        problem = _name_problem(name)
        if problem:
            row.fail(f"the file name {manifest.excerpt(name)} {problem}")
        found[name] = {"bytes": size.count(), "sha256": as_digest(digest)}
    return found


def _name_extras(root: Path, extras: Mapping[str, dict[str, Any]]) -> None:
    """Gives committed extra files their own names, if they still wait for them."""
    for name, row in extras.items():
        with contextlib.suppress(FileNotFoundError):
            os.replace(root / EXTRA / _waiting_name(row["sha256"], name), root / EXTRA / name)
    if extras and (root / EXTRA).is_dir():
        _flush(root / EXTRA)


def _remove_extras(root: Path, before: Mapping[str, dict[str, Any]], now: Container[str]) -> None:
    """Removes the previous state's extra files, except those that the user has changed."""
    for name, row in before.items():
        path = root / EXTRA / name
        if name not in now and _is_as_written(path, row):
            path.unlink()


def _is_as_written(path: Path, row: Mapping[str, Any]) -> bool:
    is_file = path.is_file() and not path.is_symlink()
    return is_file and path.stat().st_size == row["bytes"] and file_digest(path) == row["sha256"]


def check_file_name(name: str) -> None:
    """Raises SignatureError for a file name that is not portable."""
    problem = _name_problem(name)
    if problem:
        fact = f"the file name {name!r} {problem}"
        fail(SignatureError, fact, fix="rename the file")


def _name_problem(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        return "names no file in a folder"
    if not name.isprintable() or unicodedata.normalize("NFC", name) != name:
        return "holds letters that do not print, or that are written in several ways"
    return "is too long" if len(name.encode()) > 230 else ""


def as_path(what: str, path: Any) -> str:
    """A path as a string. Raises ValueError for anything else."""
    try:
        found = os.fspath(path)
    except TypeError:
        found = None
    if not isinstance(found, str) or not found:
        fail(
            SignatureError,
            f"{what}: {shown(path)} is not a path",
            fix="give a string, or a pathlib.Path",
        )
    return found


# Reading.


class _Format(NamedTuple):
    """The contents of a directory, and how they are read."""

    what: str
    fix: str


#: By their names in manifests.
_FORMATS = {
    "tracegraph.saved_model": _Format("a saved model", "load it: tg.saved_model.load({!r})"),
    "tracegraph.checkpoint": _Format(
        "a checkpoint",
        "create the objects that it was saved from, and restore them: "
        "tg.train.Checkpoint(...).restore({!r})",
    ),
}


#: How many times to retry reading a directory that is being saved repeatedly.
_MOST_READS = 100


def read_whole(path: str | os.PathLike[str], read: Callable[[], T]) -> T:
    """What `read` makes of the directory at `path`. If it fails because a save has meanwhile
    replaced the manifest and removed files that the old one names, reads again with the new one.
    """
    for _ in range(_MOST_READS):
        before = _manifest_stamp(path)
        try:
            return read()
        except outside_interrupts(LoadError, OSError):
            if _manifest_stamp(path) == before:
                raise
    return read()


def _manifest_stamp(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Distinguishes successive manifests at a path, even equal ones; None without a manifest."""
    try:
        found = os.stat(Path(path) / MANIFEST)
    except outside_interrupts(OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


class Reader:
    """A saved directory: its manifest, and its files, with names and sizes checked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path)
        self.file = str(self.root / MANIFEST)
        self._check_root()
        self._data = _bytes(self._regular(MANIFEST, None), Entry(None, self.file))
        self.entry = manifest.read(self._data, self.file)
        self._digests: dict[str, str] = {}
        self._used: set[str] = set()

    def _check_root(self) -> None:
        try:
            is_directory = stat.S_ISDIR(os.stat(self.root).st_mode)
        except PermissionError as error:
            fact = f"{self.root} cannot be read: {error}"
            fail(LoadError, fact, fix="ask for the right to read it", cause=error)
        except outside_interrupts(OSError, ValueError):
            self._refuse(f"there is no directory {self.root}")
        if not is_directory:
            self._refuse(f"{self.root} is a file")
        if os.path.lexists(self.root / MANIFEST):
            return
        if (self.root / STATE).is_file():
            latest = f"tg.train.latest_checkpoint({str(self.root)!r})"
            self._refuse(
                f"{self.root} is a directory of checkpoints, not a checkpoint",
                fix=f"restore one of them: tg.train.Checkpoint(...).restore({latest})",
            )
        self._refuse(
            f"{self.root} holds no {MANIFEST}: nothing was saved there, or not to the end",
            fix="give the path that was saved to, or save again",
        )

    def _refuse(self, fact: str, fix: str = "give the path that was saved to") -> NoReturn:
        fail(NothingSavedError, fact, fix=fix)

    def check_format(self, format: str, version: int) -> None:
        """Raises LoadError for another format, for a later version than this one, and for a
        manifest that was altered."""
        fields = manifest.head(self.entry)
        if fields["format"].text() != format:
            self._refuse_format(fields["format"], format)
        manifest.check_version(fields, version)
        self.entry = manifest.unsealed(self._data, self.entry)

    def _refuse_format(self, entry: Entry, wanted: str) -> NoReturn:
        found = entry.text()
        if found not in _FORMATS or wanted not in _FORMATS:
            entry.fail(f"it is {manifest.excerpt(found)}, and not {wanted!r}")
        fact = f"{self.root} holds {_FORMATS[found].what}, and not {_FORMATS[wanted].what}"
        fail(LoadError, fact, fix=_FORMATS[found].fix.format(str(self.root)))

    def check_files(self, entry: Entry) -> list[str]:
        """The names of the files in the manifest, all present and of the right size."""
        for name, row in entry.pairs().items():
            size, digest = row.fields("bytes", "sha256")
            self._check_name(row, name, as_digest(digest))
            self._regular(name, size.count(), row)
            self._digests[name] = as_digest(digest)
        return list(self._digests)

    def _check_name(self, row: Entry, name: str, digest: str) -> None:
        """Raises LoadError for a name that we would not generate for this checksum."""
        folder, slash, base = name.rpartition("/")
        shown = manifest.excerpt(name)
        if slash and folder not in _FOLDERS:
            row.fail(f"the file name {shown} leads out of the directory")
        problem = _name_problem(base)
        match = (_ASSET if folder == ASSETS else _NAMED).fullmatch(base)
        if problem or match is None:
            row.fail(f"the file name {shown} {problem or 'is not a name that is written here'}")
        if match[1] != digest[:12]:
            row.fail(f"the file name {shown} is not that of its SHA-256, {digest}")

    def tables(self, names: Iterable[str], *entries: Entry) -> list[dict[str, StoredArray]]:
        """The arrays in tables of the manifest, which are all that the files with these names
        hold."""
        files = {name: TensorFile(self.root / name, str(self.root / name)) for name in names}
        tables = [stored_arrays(entry, files) for entry in entries]
        places = (place for table in tables for array in table.values() for place in array.places)
        listed = {(file.name, key) for file, key in places}
        for file in files.values():
            for key in sorted(file.names):
                if (file.name, key) not in listed:
                    self.entry.fail(f"no table lists the tensor {file.name}: {key}")
        return tables

    def path(self, entry: Entry) -> Path:
        """The path of a file that an entry names."""
        name = entry.text()
        if name not in self._digests:
            shown = manifest.excerpt(name)
            entry.fail(f"it names the file {shown}, which is not in the list of files")
        self._used.add(name)
        return self.root / name

    def checked_bytes(self, entry: Entry, most: int) -> bytes:
        """The bytes of a file of at most `most` bytes, verified against its checksum."""
        path = self.path(entry)
        if path.stat().st_size > most:
            entry.fail(f"{path} has {path.stat().st_size} bytes, more than {most}")
        data = _bytes(path, entry)
        self._compare(entry.text(), hashlib.sha256(data).hexdigest())
        return data

    def asset(self, entry: Entry) -> Path:
        """The path of a user's file, verified against its checksum."""
        path = self.path(entry)
        if path.parent.name != ASSETS:
            entry.fail(f"{path} is not an asset: assets are in the folder {ASSETS}")
        self._verify(entry.text())
        return path

    def program(self, entry: Entry) -> Path:
        """The path of a compiled form, which is not opened."""
        path = self.path(entry)
        if path.parent.name != PAYLOADS:
            entry.fail(f"{path} is not a program: programs are in the folder {PAYLOADS}")
        return path

    def check_all_used(self, entry: Entry, others: Container[str]) -> None:
        """Raises LoadError for a file that the manifest lists and nothing else refers to."""
        for name, row in entry.pairs().items():
            if name not in self._used and name not in others:
                row.fail("nothing in the manifest uses this file")

    def verify(self) -> None:
        """Compares every file with its checksum. Raises LoadError for the first that differs."""
        for name in self._digests:
            self._verify(name)

    def _verify(self, name: str) -> None:
        path = self.root / name
        try:
            found = file_digest(path)
        except outside_interrupts(OSError) as error:
            fact = f"{path} cannot be read: {error}"
            fail(LoadError, fact, fix=manifest.SAVE_AGAIN, cause=error)
        self._compare(name, found)

    def _compare(self, name: str, found: str) -> None:
        if found != self._digests[name]:
            fail(
                LoadError,
                f"{self.root / name} was changed: its SHA-256 is {found} and the manifest has "
                f"{self._digests[name]}",
                fix=manifest.SAVE_AGAIN,
            )

    def _regular(self, name: str, size: int | None, row: Entry | None = None) -> Path:
        """A path inside the directory: a regular file, not a link, of the expected size."""
        path = self.root / name
        where = row or Entry(None, str(path))
        for part in (path, *([path.parent] if path.parent != self.root else [])):
            if part.is_symlink():
                where.fail(
                    f"{part} is a symbolic link, which is not followed", fix="copy the file itself"
                )
        try:
            found = os.lstat(path)
        except outside_interrupts(OSError):
            where.fail(f"the file {path} is missing")
        if not stat.S_ISREG(found.st_mode):
            where.fail(f"{path} is not a file")
        if size is None and found.st_size > manifest.LARGEST:
            where.fail(f"{path} has {found.st_size} bytes, more than any manifest")
        if size is not None and found.st_size != size:
            where.fail(f"{path} has {found.st_size} bytes, and the manifest says {size}")
        return path


def _bytes(path: Path, entry: Entry) -> bytes:
    try:
        return path.read_bytes()
    except outside_interrupts(OSError) as error:
        entry.fail(f"{path} cannot be read: {error}", cause=error)
