"""Modules of ours that are imported at their first use, which keeps `import tracegraph` short."""

from __future__ import annotations

import importlib
from types import ModuleType

from tracegraph.core.worker_thread import on_worker_thread


def opened(module: str) -> ModuleType:
    """The module of that name, imported now if it is not there yet."""
    # A signal handler that fell into the import would find a module that is not whole.
    return on_worker_thread(lambda: importlib.import_module(module))
