"""`precompile`: programs of a function that are compiled once, and kept beside a saved model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tracegraph.archive.directory import as_path
from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.eager import backend
from tracegraph.errors import SignatureError, TraceError, fail, refused, shown, way_out
from tracegraph.ir.tensor import Tensor


def precompile(function: Any, signatures: Iterable[Any] | None, path: Any) -> None:
    """Compiles a `Function` for signatures, and keeps the programs in `path/compiled`."""
    folder = Path(as_path("precompile", path))
    if function.pads_sizes:
        fact = f"precompile: {function.name} has bucket_sizes, which compiles for padded sizes"
        fail(TraceError, fact, fix="precompile a function without bucket_sizes")
    executions = []
    for args, kwargs in _calls(function, signatures):
        execution = function.static_execution("precompile", args, kwargs)
        if execution.traced.has_effects:
            fact = f"precompile: {function.name} has effects between its programs"
            fail(TraceError, fact, fix="precompile a function that calls no Python and prints not")
        executions.append(execution)
    try:
        for execution in executions:
            backend.keep_program(execution.program, folder)
    except OSError as error:
        if is_of_interrupt(error):
            raise
        refused(
            error, f"precompile: programs cannot be kept in {os.fspath(folder)!r}", way_out(error)
        )


def _calls(function: Any, signatures: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each signature, by position and by name."""
    if signatures is None and function.input_signature is not None:
        yield (), {}
        return
    is_one = isinstance(signatures, (Tensor, TensorSpec, str, dict))
    if is_one or not isinstance(signatures, Iterable):
        _refuse("signatures are an iterable of tuples of arguments", signatures)
    for signature in signatures:
        if isinstance(signature, dict):
            yield (), signature
        elif isinstance(signature, (list, tuple)):
            yield tuple(signature), {}
        else:
            _refuse("a signature is a tuple of arguments, or a dict of them by name", signature)


def _refuse(rule: str, given: Any) -> NoReturn:
    fact = f"precompile: {rule}, and this is {shown(given)}"
    fail(SignatureError, fact, fix="give such as [(tg.TensorSpec([8, 3]),)]")
