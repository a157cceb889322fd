"""Modules imported on first use, which keeps `import tracegraph` fast."""

from __future__ import annotations

import importlib
from types import ModuleType

from tracegraph.core.worker_thread import on_worker_thread


def opened(module: str) -> ModuleType:
    """The module of that name, imported now unless it already was."""
    # A signal handler that struck during the import would find a half-initialised module.
    return on_worker_thread(lambda: importlib.import_module(module))
