"""CheckpointManager: keeps the last few checkpoints of a training run."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tracegraph.archive.directory import as_path, check_file_name, removing
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.errors import SignatureError, fail, kind_of, shown
from tracegraph.state.variable import Variable
from tracegraph.train.checkpoint import Checkpoint, check_options, count_save
from tracegraph.train.checkpoint_files import remove_checkpoint, remove_torn
from tracegraph.train.checkpoint_state import CheckpointState, is_whole, read_state
from tracegraph.train.preemption import Preemption

_HOUR = 3600 * 10**9


class CheckpointManager:
    """Saves checkpoints to `directory`, and removes all but the last `max_to_keep`.

    - `checkpoint`: a `tg.train.Checkpoint`.
    - `max_to_keep`: how many to keep, or None for all.
    - `keep_checkpoint_every_n_hours`: of those that would be removed, keep one per this many hours.
    - `checkpoint_name`: the prefix of names, which by default are `ckpt-1`, `ckpt-2` and so on.
    - `step_counter`, `checkpoint_interval`: a Variable that counts steps, and the number of steps
      between checkpoints; calls of `save` that come sooner do nothing.
    - `init_fn`: called by `restore_or_initialize` if there is nothing to restore.
    - `last_checkpoint_step`: the step of the last checkpoint, from which the interval counts.
    - `preemption_signals`: signals by which a scheduler announces that it will end the process,
      such as `[signal.SIGTERM]`. On such a signal, the manager saves a checkpoint, reports its path
      on stderr, and lets the signal take its previous effect. With several processes, all save in
      the first call of `save` after one of them got the signal, whatever the interval.

    If a process is killed at any moment, `latest_checkpoint` is still complete. Only one process at
    a time may save to a directory; any number may read.

    Raises ValueError for arguments that do not go together.

    >>> v = tg.Variable(0.0)
    >>> manager = tg.train.CheckpointManager(tg.train.Checkpoint(v=v), "kept", max_to_keep=2)
    >>> for _ in range(3):
    ...     _ = v.assign_add(1.0)
    ...     path = manager.save()
    >>> manager.checkpoints
    ['kept/ckpt-2', 'kept/ckpt-3']
    >>> _ = manager.checkpoint.restore(manager.checkpoints[0])
    >>> v.numpy()
    np.float32(2.0)
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Variable | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
        preemption_signals: Iterable[int] = (),
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            _refuse(f"checkpoint is {kind_of(checkpoint)}", "give a tg.train.Checkpoint")
        if max_to_keep is not None and not _is_positive(max_to_keep):
            _refuse(f"max_to_keep is {shown(max_to_keep)}", "give a positive int, or None for all")
        if checkpoint_interval is not None and step_counter is None:
            fact = f"checkpoint_interval is {shown(checkpoint_interval)}, and nothing counts steps"
            _refuse(fact, "give step_counter=optimizer.iterations, or another Variable")
        check_file_name(f"{checkpoint_name}-1")
        self._checkpoint = checkpoint
        self._directory = as_path("CheckpointManager", directory)
        self._max_to_keep = max_to_keep
        self._hours = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step = last_checkpoint_step
        self._state = self._recovered()
        signals = [*preemption_signals]
        self._preemption = Preemption(signals, self._saved_now) if signals else None

    def _recovered(self) -> CheckpointState:
        """The existing state, without checkpoints that are gone or incomplete."""
        now = time.time_ns()
        found = read_state(self._directory)
        if found is None:
            return CheckpointState(preserved=now)
        # The list's order is authoritative, even if a clock was set back in between.
        times = itertools.accumulate((min(t, now) for t in found.checkpoints.values()), max)
        there = {n: t for n, t in zip(found.checkpoints, times) if is_whole(self._path(n))}
        return CheckpointState(there, min(found.preserved, now))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def __repr__(self) -> str:
        """The directory, and the checkpoints in it: `<CheckpointManager of 'kept': ckpt-2>`."""
        names = ", ".join(self._state.names()) or "no checkpoints"
        return f"<CheckpointManager of {self._directory!r}: {names}>"

    @property
    def checkpoint(self) -> Checkpoint:
        """The Checkpoint that is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """The number of steps between two checkpoints."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths from old to new, without checkpoints that are kept permanently."""
        return [*map(self._path, self._state.names())]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, or None."""
        return self._state.latest_in(self._directory)

    @api_boundary
    def save(
        self,
        checkpoint_number: int | Variable | None = None,
        check_interval: bool = True,
        options: object = None,
    ) -> str | None:
        """Saves a checkpoint, removes the oldest, and returns the path of the new one.

        - `checkpoint_number`: the number in its name; by default the number of saves.
        - `check_interval`: False to save even if the interval has not passed.
        - `options`: None: there are none.

        Threads and signal handlers may save at any moment, even during another save: each save has
        its own number, and the one that started last is the latest.

        Returns None without saving if the interval has not passed.
        """
        check_options("save", options)
        if self._preemption is not None and self._preemption.is_due():
            self._preemption.save_and_end()
        step = self._step()
        if check_interval and not self._is_due(step):
            return None
        return self._saved(step, checkpoint_number)

    def _step(self) -> int | None:
        return None if self._interval is None else int(self._step_counter)  # type: ignore[arg-type]

    def _saved_now(self) -> str:
        return self._saved(self._step(), None)

    def _saved(self, step: int | None, checkpoint_number: int | Variable | None) -> str:
        """The path of the checkpoint that was saved."""
        began, number = self._state.now(), count_save(self._checkpoint)
        name = f"{self._name}-{number if checkpoint_number is None else int(checkpoint_number)}"
        path = self._checkpoint.write(self._path(name))
        self._state.checkpoints[name] = began
        self._last_step = step
        self._tidy_up()
        return path

    def _tidy_up(self) -> None:
        """Writes the list, and removes checkpoints that are too old or incomplete.

        Other threads wait for each other here, but none waits for values or programs. A signal
        handler that saves in between does all of this itself, and each step allows for that.
        """
        with removing:
            # Checkpoints stay listed until they are removed, so a kill leaves none unlisted.
            self._state.write(self._directory)
            if self._remove_old():
                self._state.write(self._directory)
            self._remove_torn()

    def _is_due(self, step: int | None) -> bool:
        if step is None or self._interval is None or self._last_step is None:
            return True
        return step - self._last_step >= self._interval

    def _remove_old(self) -> bool:
        """Removes the oldest checkpoints; returns whether there were too many."""
        listed, has_removed = self._state.checkpoints, False
        while True:
            # The same list says how many there are and which is the oldest: a signal handler that
            # saves in between may have removed it already, and none too many may be left.
            names = self._state.names()
            if self._max_to_keep is None or len(names) <= self._max_to_keep:
                return has_removed
            name = names[0]
            written = listed.pop(name, None)
            if written is None:
                continue
            has_removed = True
            if self._hours and written - self._state.preserved >= self._hours * _HOUR:
                self._state.preserved = written
            elif self._is_ours(name):
                remove_checkpoint(Path(self._path(name)))

    def _remove_torn(self) -> None:
        """Removes the remains of checkpoints that were not completely written or removed."""
        for path in Path(self._directory).glob(f"{_literal(self._name)}-*"):
            if self._is_ours(path.name):
                remove_torn(path)

    def _is_ours(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self._name)}--?[0-9]+", name) is not None

    @api_boundary
    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint and returns its path. If there is none, calls `init_fn`,
        if given, and returns None."""
        latest = self.latest_checkpoint
        if latest is not None:
            self._checkpoint.restore(latest)
            if self._interval is not None:
                self._last_step = int(self._step_counter)  # type: ignore[arg-type]
        elif self._init_fn is not None:
            self._init_fn()
        return latest


def _literal(name: str) -> str:
    """Escapes a name into a `glob` pattern that matches it alone."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refuse(fact: str, fix: str) -> None:
    fail(SignatureError, f"CheckpointManager: {fact}", fix=fix)
