"""Compiled programs on disk: a folder of ours around JAX's own compilation cache.

JAX writes and reads the executables. But its cache is global to the process, it writes an entry in
place, so that another process may read half of it, and it does not check the bytes. So JAX sees a
private folder while one program is compiled, with at most one entry in it; the lasting copy is a
file of ours, which appears whole or not at all, and counts only if its digest is right.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import hashlib
import operator
import os
import platform
import secrets
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from tracegraph.core.settings import settings
from tracegraph.core.source import here
from tracegraph.errors import warn
from tracegraph.version import __version__

#: Version of the layout of our files and of the derivation of their names.
FORMAT = 1

_MAGIC = b"tracegraph program\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
#: How the names of temporary files begin, and after how many seconds without a write such a file
#: counts as abandoned.
_WAITING, _ABANDONED_AFTER = ".tracegraph-", 3600.0
#: The suffix of JAX's entry names.
_ENTRY = "-cache"
#: How the environment variables begin by which XLA compiles. Others that begin with TF_ are of no
#: use here, and those of other programs may be secrets, such as TF_VAR_password of Terraform.
_FLAGS = ("XLA_", "LIBTPU_", "TF_XLA_", "TF_CUDNN_", "TF_CUBLAS_", "TF_ENABLE_ONEDNN_")

#: JAX's settings while a program is compiled for a folder: every program becomes an entry, and XLA
#: keeps none of its own files, whose path would be part of JAX's key.
_WHILE_COMPILING = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",
    "jax_compilation_cache_max_size": -1,
}

#: JAX's cache is global to the process, so one program at a time may use it.
_borrowing = threading.RLock()


class Origin(enum.Enum):
    """Where a program is from: this process compiled it, or it was read from disk."""

    COMPILED = "compiled"
    CACHE = "read from the user's cache"
    SAVED_MODEL = "read from beside a saved model"


def compile_with_cache(
    lowered: Any, options: Mapping[str, Any], kept_in: Path | None = None
) -> Origin:
    """Compiles JAX's `Lowered`, or loads its executable from a folder of programs. JAX keeps the
    result, so the next call does not compile. Does nothing if no folder is set.

    A newly compiled program is written to the folder that the user has set, and to `kept_in`.
    Returns where the program is from.
    """
    is_set = settings.compilation_cache is not None and not settings.compilation_cache_failed
    cache = settings.compilation_cache / _versions() if is_set else None  # type: ignore[operator]
    written = [folder for folder in (cache, kept_in) if folder is not None]
    if not written and not settings.compiled_folders:
        return Origin.COMPILED
    key = _key(lowered, options)
    kept = {folder: _read_or_give_up(folder / key) for folder in written}
    in_folders = next(filter(None, kept.values()), None)
    found = in_folders or _read_beside_models(key)
    if not written and found is None:
        return Origin.COMPILED
    with _staged(found) as stage:
        if stage is None:
            return Origin.COMPILED
        with _jax_cache_at(stage):
            lowered.compile()
        entries = list(stage.glob(f"*{_ENTRY}"))
        made = next(iter(entries), None)
        for folder, known in kept.items():
            if made is not None and (known is None or made.name != known[0]):
                _write(folder / key, made.name, made.read_bytes(), is_cache=folder == cache)
    # If JAX's own key did not match, it compiled, and wrote an entry beside ours.
    if found is None or len(entries) != 1:
        return Origin.COMPILED
    return Origin.SAVED_MODEL if in_folders is None else Origin.CACHE


def _read_beside_models(key: str) -> tuple[str, bytes] | None:
    """The program from a model that was loaded with its programs, if there is one. A damaged one is
    skipped, with a warning that names it."""
    for folder in settings.compiled_folders:
        path = folder / key
        if not os.path.lexists(path):
            continue
        try:
            found, why = _read_if_trusted(path)
        except OSError as error:
            found, why = None, f"it cannot be read: {error.strerror}"
        if found is not None:
            return found
        warn(f"the compiled program {os.fspath(path)!r} is compiled anew: {why}")
    return None


def _read_if_trusted(path: Path) -> tuple[tuple[str, bytes] | None, str]:
    """The program in a file beside a model, or None and why it is not used. Raises OSError."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return None, "it is not a regular file, but a link or something else"
    if not (_is_ours_alone(path.parent.stat()) and _is_ours_alone(found)):
        return None, "other users can write to it"
    return _read(path), "it is damaged"


def _is_ours_alone(found: os.stat_result) -> bool:
    """Whether no other user can write to a file or folder; systems without users have none."""
    if not hasattr(os, "getuid"):
        return True
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (os.getuid(), 0) and not is_open


@functools.cache
def _versions() -> str:
    """The folder for programs built by these versions of tracegraph, JAX and Python."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"format-{FORMAT}-tracegraph-{__version__}-jax-{jax.__version__}-python-{python}"


def _key(lowered: Any, options: Mapping[str, Any]) -> str:
    """The name of a program: a digest of its StableHLO and of everything else that XLA's output
    depends on.

    JAX's own key must match too: it covers the program, the version of XLA's library, the device,
    and every compiler option.
    """
    parts = {
        "program": program_text(lowered),
        "options": sorted(options.items()),
        "target": sorted(target().items()),
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def program_text(lowered: Any) -> str:
    """JAX's `Lowered` as StableHLO, without source lines."""
    return lowered.as_text()


def target() -> dict[str, str]:
    """Everything besides a program's text that determines its executable, as text: several facts
    are lines."""
    device = jax.devices()[0]
    return {
        "versions": _versions(),
        "flags": "\n".join(_flags()),
        "device": f"{device.platform}, {device.device_kind}",
        "runtime": device.client.platform_version,
        "devices": str(len(jax.devices())),
        "processor": _processor() if device.platform == "cpu" else "",
    }


def _flags() -> list[str]:
    """The flags that reach XLA: the environment's, and JAX's settings except those of its cache."""
    given = [f"{k}={v!r}" for k, v in os.environ.items() if k.startswith(_FLAGS)]
    of_jax = [f"{k}={v!r}" for k, v in jax.config.values.items() if "cache" not in k]
    return sorted([*given, *of_jax])


@functools.cache
def _processor() -> str:
    """Distinguishes CPUs: programs use the instructions of the CPU they are compiled on, and are
    partitioned for its number of threads."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [f"machine {platform.machine()} {platform.processor()}", f"threads {threads}"]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for name, _, text in sorted({x.partition(":") for x in file}):
            if name.startswith("model name"):
                facts.append(text.strip())
            elif name.startswith(("flags", "Features")):
                facts += sorted(text.split())
    return "\n".join(facts)


# Files.


def _read(path: Path) -> tuple[str, bytes] | None:
    """JAX's name of an entry, and its bytes; None if there is none, or it is damaged. Raises
    OSError."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + _digest(path.name, body):
        return None
    name, _, entry = body.partition(b"\n")
    return name.decode(), entry


def _read_or_give_up(path: Path) -> tuple[str, bytes] | None:
    """The entry of a cache. Others may write to its folder, but not in the name of this user, so
    the owner of the file tells whose program it is."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if not _is_ours_alone(path.lstat()):
                raise PermissionError(errno.EPERM, "another user can write to it", os.fspath(path))
        return _read(path)
    except OSError as error:
        _give_up(error)
        return None


def read_plain(path: Path, most: int = -1) -> bytes:
    """The bytes of a plain file, so many at most. Raises OSError for what is none: a link leads
    where others may write, and who opens a pipe waits for somebody to write to it."""
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    with open(os.open(path, functools.reduce(operator.or_, flags, os.O_RDONLY)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return file.read(most)


def _write(path: Path, name: str, entry: bytes, is_cache: bool = True) -> None:
    """Puts an entry into place. Warns if a cache cannot be written to."""
    body = name.encode() + b"\n" + entry
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, _MAGIC + _digest(path.name, body) + body)
    except OSError as error:
        if not is_cache:
            raise
        _give_up(error)


def put(path: Path, data: bytes) -> None:
    """Writes a file atomically: another process sees all of it or none. Raises OSError."""
    _remove_abandoned(path.parent)
    waiting = path.parent / f"{_WAITING}{secrets.token_hex(8)}"
    try:
        with open(waiting, "xb", opener=_only_for_this_user) as file:
            file.write(data)
        waiting.chmod(0o644)
        waiting.replace(path)
    finally:
        waiting.unlink(missing_ok=True)


def _only_for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@functools.cache
def _remove_abandoned(folder: Path) -> None:
    """Removes the temporary files of processes that were killed while they wrote, once per folder.
    A young file may be one that another process is writing."""
    oldest = time.time() - _ABANDONED_AFTER
    for waiting in folder.glob(f"{_WAITING}*"):
        with contextlib.suppress(OSError):  # another process removes it, too
            if waiting.lstat().st_mtime < oldest:
                waiting.unlink()


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()


def _give_up(error: OSError) -> None:
    """Warns, once, that the folder cannot be used; programs compile without it from now on."""
    if settings.compilation_cache_failed:
        return
    settings.compilation_cache_failed = True
    place, folder = here(), str(settings.compilation_cache)
    text = (
        f"compiled programs cannot be kept in {folder!r}: {error}. They are compiled anew in each "
        "process. Give another folder by tg.config.set_compilation_cache, or None"
    )
    warnings.warn_explicit(text, UserWarning, place.file, place.line)


# JAX's cache.


@contextlib.contextmanager
def _staged(kept: tuple[str, bytes] | None) -> Iterator[Path | None]:
    """A private folder that holds only this entry; None if none can be created."""
    try:
        holder = tempfile.TemporaryDirectory(prefix="tracegraph-", ignore_cleanup_errors=True)
    except OSError as error:
        _give_up(error)
        yield None
        return
    with holder as name:
        stage: Path | None = Path(name)
        if kept is not None:
            try:
                (Path(name) / kept[0]).write_bytes(kept[1])
            except OSError as error:
                _give_up(error)
                stage = None
        yield stage


@contextlib.contextmanager
def _jax_cache_at(folder: Path) -> Iterator[None]:
    """A context in which JAX's cache is at `folder`; afterwards all is as before."""
    wanted = {**_WHILE_COMPILING, "jax_compilation_cache_dir": str(folder)}
    with _borrowing:
        before = {name: jax.config.values[name] for name in wanted}
        try:
            _set_jax_cache(wanted)
            yield
        finally:
            _set_jax_cache(before)


def _set_jax_cache(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
