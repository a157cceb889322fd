"""The door to `lowering`: the only module that imports it, at first use."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.ir.tensor import Graph

#: Compiling is rare and expensive: one at a time, so that threads never compile a thing twice.
compiling = threading.RLock()


@functools.cache
def _lowering() -> Any:
    return importlib.import_module("lowering")


def program(graph: Graph, donated: Sequence[int] = ()) -> Any:
    """The compiled program of a graph whose sizes are known: a `lowering.program.Program`."""
    return _lowering().program.Program(graph, donated)


def compiler_ir(program: Any, stage: str, platform_name: str | None) -> Any:
    """The compiler's text of a program at a stage."""
    return _lowering().stages.stage_text(program, stage, platform_name)


def put(array: np.ndarray) -> Any:
    """The array as a buffer on the device; the caller must own the array."""
    return _lowering().device.put(array)


def copy(buffer: Any) -> Any:
    """A buffer with the same value that nobody else holds."""
    return _lowering().device.copy(buffer)


def wait(buffers: Any) -> None:
    """Returns when the buffers are made."""
    _lowering().device.wait(buffers)


#: What Python functions called by programs raised, oldest first.
_host_errors: list[Exception] = []


def keep_host_error(error: Exception) -> None:
    """Keeps the error of a host call, so that the caller of the program can raise it."""
    _host_errors.append(error)


def take_host_error() -> Exception | None:
    """The first error kept since the last call, or None."""
    if not _host_errors:
        return None
    first = _host_errors[0]
    _host_errors.clear()
    return first
