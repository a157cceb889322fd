"""Compiled programs stored beside a saved model, written by `precompile`.

A program is machine code, so it is read only from where nobody else can write: every folder on its
path must belong to this user or to root. Programs that are not read, for this or another reason,
are compiled anew, and a warning gives the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowering import disk
from tracegraph.core.settings import settings
from tracegraph.errors import warn

#: The folder inside the model's folder; it contains one folder for each target.
_FOLDER = "compiled"
#: The file in a target's folder that describes the target.
_TARGET = "target.json"
_LARGEST_TARGET = 1 << 20
#: How much of a fact that differs is told.
_LONGEST_TEXT = 100


def keep(program: Any, path: Path) -> None:
    """Compiles a `Program` and keeps it beside the model at `path`. Raises OSError for a file that
    cannot be written."""
    target = disk.target()
    folder = path / _FOLDER / _name(target)
    _make(folder)
    disk.put(folder / _TARGET, json.dumps(target, indent=1).encode())
    program.precompile(folder)


def _make(folder: Path) -> None:
    """Creates a folder that others may read, whatever the umask is."""
    for made in (folder.parent, folder):
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o755)


def _name(target: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:16]


def use(path: Path) -> None:
    """Uses programs from beside the model at `path` from now on. Warns if there are none that this
    process may use."""
    target = disk.target()
    folder = path / _FOLDER / _name(target)
    reason = _refusal(path / _FOLDER, folder, target)
    if reason is not None:
        warn(
            f"compiled programs of {os.fspath(path)!r} are not used: {reason}. What is called is "
            "compiled anew"
        )
    elif (checked := folder.resolve()) not in settings.compiled_folders:
        # Others may replace a link on the way, but not what it led to.
        settings.compiled_folders = (*settings.compiled_folders, checked)


def _refusal(whole: Path, folder: Path, target: Mapping[str, str]) -> str | None:
    """Why the programs in a folder are not used; None if they are."""
    if not whole.is_dir():
        return "there are none. Make them with f.precompile(signatures, path)"
    for place in (whole, folder) if folder.is_dir() else (whole,):
        reason = untrusted(place)
        if reason is not None:
            return reason
    return None if folder.is_dir() else _other_target(whole, target)


def untrusted(place: Path) -> str | None:
    """Who else can write to a folder, or replace it; None if nobody can, as on systems without
    users."""
    if not hasattr(os, "getuid"):
        return None
    inner = place.resolve()
    for path in (inner, *inner.parents):
        found = path.stat()
        if found.st_uid not in (os.getuid(), 0):
            return f"{os.fspath(path)} belongs to user {found.st_uid}, who can change them"
        # In a sticky folder such as /tmp, users can replace only their own files.
        is_sticky = bool(found.st_mode & stat.S_ISVTX) and path != inner
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            return (
                f"other users can write to {os.fspath(path)}, whose mode is "
                f"{stat.S_IMODE(found.st_mode):o}. Take that from them with chmod go-w"
            )
    return None


def _other_target(whole: Path, target: Mapping[str, str]) -> str:
    """How this process differs from the nearest target there is."""
    found = []
    for path in sorted(whole.glob(f"*/{_TARGET}")):
        if other := _read_target(path):
            differences = [name for name in target if other.get(name) != target[name]]
            found.append((len(differences), differences, other, path.parent))
    if not found:
        return "there are none that can be read"
    _, differences, other, folder = min(found, key=lambda row: row[0])
    if not differences:
        return f"the folder {os.fspath(folder)} was {_name(target)} when they were made"
    texts = [_told(name, other.get(name), target[name]) for name in differences]
    return f"they were made with other {'; '.join(texts)}"


def _told(name: str, before: Any, now: str) -> str:
    """How a fact differs: by which of its lines."""
    lines = [x.splitlines() if isinstance(x, str) else [] for x in (before, now)]
    old, new = ([x for x in a if x not in b] for a, b in (lines, lines[::-1]))
    return f"{name}: {_short(old)}, and now {_short(new)}"


def _read_target(path: Path) -> dict[str, str]:
    try:
        found = json.loads(disk.read_plain(path, _LARGEST_TARGET))
    except (OSError, ValueError, RecursionError):  # the last of lists in lists in lists
        return {}  # a damaged file says nothing, and its programs are not used
    return found if isinstance(found, dict) else {}


def _short(lines: Sequence[str]) -> str:
    text = ", ".join(lines) or "none"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
