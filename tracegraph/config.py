"""`tg.config`: process-wide settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegraph.boundary.guarding import guard
from tracegraph.core.later import opened
from tracegraph.core.settings import settings
from tracegraph.errors import TraceError, fail, shown
from tracegraph.functions.function import functions_run_eagerly, run_functions_eagerly
from tracegraph.ir.slow_compiles import get_compile_notes, set_compile_notes
from tracegraph.operands.flags import as_flag

if TYPE_CHECKING:  # imported on first use
    from tracegraph.eager.devices import (
        LogicalDevice,
        PhysicalDevice,
        list_logical_devices,
        list_physical_devices,
    )

__all__ = [
    "LogicalDevice",
    "PhysicalDevice",
    "compilation_cache",
    "functions_run_eagerly",
    "get_compile_notes",
    "get_soft_device_placement",
    "list_logical_devices",
    "list_physical_devices",
    "run_functions_eagerly",
    "set_compilation_cache",
    "set_compile_notes",
    "set_soft_device_placement",
]


def set_soft_device_placement(enabled: bool) -> None:
    """Lets `tg.device` use JAX's choice if a device does not exist, rather than raise an error.

    >>> tg.config.set_soft_device_placement(True)
    >>> with tg.device("gpu:7"):
    ...     print(tg.constant(1.0).numpy())
    1.0
    >>> tg.config.set_soft_device_placement(False)
    """
    settings.soft_device_placement = as_flag("set_soft_device_placement", "enabled", enabled)


def get_soft_device_placement() -> bool:
    """Whether `set_soft_device_placement(True)` is in effect."""
    return settings.soft_device_placement


def set_compilation_cache(path: str | os.PathLike[str] | None) -> None:
    """Caches compiled programs in a folder, so that later processes need not compile them.

    `path` is a folder, which is created when the first program is stored; None, the default, stores
    nothing. The environment variable `TRACEGRAPH_CACHE` sets it from outside. Each process still
    traces its functions.

    A stored program is reused only for the same program, versions, flags and device, and only if
    its bytes are unchanged; otherwise it is recompiled. Several processes may share the folder. If
    it cannot be written or read, or another user made the program there, a UserWarning says so and
    it is not used, since programs are machine code. It grows without bound; delete its contents at
    any time.

    Raises TraceError (a TypeError) if `path` is not a path.

    >>> tg.config.set_compilation_cache("/tmp/programs")
    >>> tg.config.compilation_cache()
    PosixPath('/tmp/programs')
    >>> tg.config.set_compilation_cache(None)
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        fail(
            TraceError,
            f"{shown(path)} is not a path of a folder",
            fix="give a str or pathlib.Path, or None to keep no programs",
        )
    settings.set_compilation_cache(None if path is None else Path(path).expanduser())


def compilation_cache() -> Path | None:
    """The folder in which compiled programs are cached, or None."""
    return settings.compilation_cache


_OF_DEVICES = (
    "LogicalDevice",
    "PhysicalDevice",
    "list_logical_devices",
    "list_physical_devices",
)

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        """The device functions, whose module is imported on first use."""
        if name not in _OF_DEVICES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        devices = opened("tracegraph.eager.devices")
        globals().update({known: getattr(devices, known) for known in _OF_DEVICES})
        guard((sys.modules[__name__],))
        return globals()[name]
