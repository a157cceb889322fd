"""Checkpoints saved when a scheduler preempts the machine.

A scheduler sends a signal, and ends the process some time later. Handlers never run in the middle
of a step, so a single process saves in the handler. Several processes get the signal at different
steps; they agree in the next call of `save`, which all of them make at the same step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tracegraph.core.settings import settings
from tracegraph.eager import backend
from tracegraph.errors import SignatureError, fail, shown


class Preemption:
    """Handles signals for a manager; `save` writes its checkpoint and returns the path."""

    def __init__(self, signals: Iterable[int], save: Callable[[], str]) -> None:
        self._save = save
        self._received: int | None = None
        if threading.current_thread() is not threading.main_thread():
            fail(
                SignatureError,
                "preemption_signals: only the main thread can listen to signals",
                fix="make the CheckpointManager there",
            )
        wanted = [_as_signal(number) for number in signals]
        self._before = {number: signal.signal(number, self._receive) for number in wanted}

    def _receive(self, number: int, frame: Any) -> None:
        self._received = number
        if settings.process_count == 1:
            self.save_and_end()

    def is_due(self) -> bool:
        """Whether any process has received a signal. All of them must call this."""
        if settings.process_count == 1:
            return False  # the handler has saved
        flag = b"1" if self._received is not None else b""
        return any(backend.gathered_from_processes(flag, "save at a signal"))

    def save_and_end(self) -> None:
        """Saves, reports the path, and lets the signal take its previous effect."""
        number = self._received or next(iter(self._before))
        path = self._save()
        if settings.process_index == 0:
            name = signal.Signals(number).name
            print(
                f"tracegraph: {name}: the training is saved in {path}", file=sys.stderr, flush=True
            )
        backend.leave_together()
        for listened, handler in self._before.items():
            signal.signal(listened, handler)
        os.kill(os.getpid(), number)


def _as_signal(number: Any) -> signal.Signals:
    try:
        return signal.Signals(number)
    except ValueError:
        fail(
            SignatureError,
            f"preemption_signals: {shown(number)} is not a signal",
            fix="give those of the module signal, such as [signal.SIGTERM]",
        )
