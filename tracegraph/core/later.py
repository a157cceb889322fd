"""Modules imported on first use, which keeps `import tracegraph` fast."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from tracegraph.core.worker_thread import on_worker_thread


@functools.cache  # starting a thread takes longer than most that is done with the module
def opened(module: str) -> ModuleType:
    """The module of that name, imported now unless it already was."""
    # A signal handler that struck during the import would find a half-initialised module.
    return on_worker_thread(lambda: importlib.import_module(module))
