"""The file `checkpoint` of a directory, which lists the checkpoints and names the latest.

It is written after the checkpoint that it names, and replaced atomically, so the latest checkpoint
it names is complete at every moment.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from tracegraph.archive import manifest
from tracegraph.archive.directory import MANIFEST, STATE, as_path, remove_waiting, replace_file
from tracegraph.archive.manifest import Entry
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.settings import settings
from tracegraph.errors import LoadError, fail
from tracegraph.version import PRODUCER

FORMAT = "tracegraph.checkpoint_state"
VERSION = 1


@dataclass
class CheckpointState:
    """The contents of the file: names in its directory, each with a time in ns that orders them
    from old to new.

    Threads and signal handlers may add and remove names at any moment, one at a time.
    """

    checkpoints: dict[str, int] = field(default_factory=dict)
    #: When the last checkpoint that is kept permanently was written.
    preserved: int = 0

    def write(self, directory: str, filename: str = STATE) -> None:
        """Replaces the file, and removes leftovers of a writer that was killed. With several
        processes, the first one does it."""
        if settings.process_index:
            return
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        written, content = None, self._content()
        while content != written:
            replace_file(folder / filename, manifest.written(content))
            # A signal handler may write a newer one before this one is in place.
            written, content = content, self._content()
        remove_waiting(folder)

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "producer": PRODUCER,
            "checkpoints": [[name, time] for name, time in self._sorted()],
            "preserved": self.preserved,
        }

    def _sorted(self) -> list[tuple[str, int]]:
        return sorted([*self.checkpoints.items()], key=itemgetter(1))

    def names(self) -> list[str]:
        """The names from old to new."""
        return [name for name, _ in self._sorted()]

    def now(self) -> int:
        """The time for a checkpoint that starts now: after all others, whatever the clock says."""
        return max(time.time_ns(), 1 + max([*self.checkpoints.values()], default=0))

    def latest_in(self, directory: str) -> str | None:
        """The path of the newest checkpoint that exists, or None."""
        paths = (os.path.join(directory, name) for name in reversed(self.names()))
        return next(filter(is_whole, paths), None)


def read_state(directory: str, filename: str = STATE) -> CheckpointState | None:
    """The state of a directory, or None without one. Raises LoadError for a damaged file."""
    path = Path(directory) / filename
    if not path.is_file():
        return None
    if path.stat().st_size > manifest.LARGEST:
        fact = f"{path} has {path.stat().st_size} bytes, more than any list"
        fail(LoadError, fact, fix=manifest.SAVE_AGAIN)
    data = path.read_bytes()
    entry = manifest.read(data, str(path))
    head = manifest.head(entry)
    head["format"].choice({FORMAT: FORMAT})
    manifest.check_version(head, VERSION)
    entry = manifest.unsealed(data, entry)
    names = ("format", "version", "checkpoints", "preserved")
    _, _, checkpoints, preserved, producer = entry.fields(*names, optional=("producer",))
    producer.optional(Entry.text)
    found = dict(checkpoints.each(_row))
    return CheckpointState(found, preserved.count())


def _row(entry: Entry) -> tuple[str, int]:
    first, count = entry.items(2)
    name = first.text()
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        first.fail(f"{name[:60]!r} names nothing in the directory")
    return name, count.count()


def is_whole(path: str) -> bool:
    """Whether a path holds a complete checkpoint or model."""
    return os.path.isfile(os.path.join(path, MANIFEST))


@api_boundary
def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> str | None:
    """The path of the newest checkpoint of a directory that still exists; None without one.

    Pass it to `tg.train.Checkpoint.restore`, which does nothing for None.
    Raises LoadError (a ValueError) if the directory's list is damaged.

    >>> _ = tg.train.Checkpoint(v=tg.Variable(1.0)).save("latest/ckpt")
    >>> tg.train.latest_checkpoint("latest")
    'latest/ckpt-1'
    """
    directory = as_path("latest_checkpoint", checkpoint_dir)
    state = read_state(directory, latest_filename or STATE)
    return None if state is None else state.latest_in(directory)
