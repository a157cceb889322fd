"""`precompile`: compiles programs of a function once and keeps them beside a saved model.

A loaded function looks its programs up by their text. So a program is useful only if a trace of the
model lowers to it, which is checked before anything is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tracegraph.archive.directory import as_path
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.core.types import TensorType
from tracegraph.eager import backend
from tracegraph.errors import (
    NothingSavedError,
    ShapeError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
    refused,
    shown,
    way_out,
)
from tracegraph.execution.execute import Execution
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.ir.tensor import Tensor
from tracegraph.tracing.trace import Traced

_EXAMPLE = "give such as [(tg.TensorSpec([8, 3]),)]"


def precompile(function: Any, signatures: Iterable[Any] | None, path: Any) -> None:
    """Compiles a `Function` for signatures and keeps the programs in `path/compiled`."""
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
    if not executions:
        fact = "precompile: there are no signatures, so there is nothing to compile"
        is_declared = function.input_signature is not None
        fix = f"{_EXAMPLE}, or None for the declared signature" if is_declared else _EXAMPLE
        fail(SignatureError, fact, fix=fix)
    _check_is_saved(function, executions, os.fspath(folder))
    try:
        for execution in executions:
            backend.keep_program(execution.program, folder)
    except outside_interrupts(OSError) as error:
        refused(
            error, f"precompile: programs cannot be kept in {os.fspath(folder)!r}", way_out(error)
        )


def _check_is_saved(function: Any, executions: Iterable[Execution], folder: str) -> None:
    """Raises if there is no saved model, or if none of its traces runs these programs."""
    try:
        traces = function._saved_traces(folder)
    except NothingSavedError as error:
        fix = "save the model, and then its programs: tg.saved_model.save(model, path)"
        fail(NothingSavedError, f"precompile: {fact_of(error)}", fix=fix)
    for execution in executions:
        text = _text_of(execution)
        if not any(_text_of(other) == text for other in _counterparts(execution, traces)):
            types = ", ".join(map(str, _argument_types(execution)))
            fact = (
                f"precompile: the model at {folder!r} holds no trace that runs "
                f"{function.name}({types}) as it is now, and would never use the program"
            )
            fix = "call the function for such arguments, save the model, and then precompile"
            fail(SignatureError, fact, fix=fix)


def _counterparts(execution: Execution, traces: Iterable[ConcreteFunction]) -> Iterator[Execution]:
    """The executions, for the same arguments, of a model's traces that may match this one."""
    types = _argument_types(execution)
    for concrete in traces:
        declared = concrete.argument_types
        is_alike = _counts(concrete.traced) == _counts(execution.traced)
        if is_alike and all(a.fits(b) for a, b in zip(declared, types, strict=True)):
            try:
                found = concrete.execution(types)
            except ShapeError:
                continue  # it does not accept these sizes
            if not found.traced.has_effects:
                yield found


def _counts(traced: Traced) -> tuple[int, ...]:
    """How many inputs and outputs of each kind there are."""
    inputs = traced.argument_count, len(traced.variables), len(traced.captures)
    return *inputs, traced.result_count, len(traced.assigned)


def _argument_types(execution: Execution) -> tuple[TensorType, ...]:
    return tuple(x.type for x in execution.graph.inputs[: execution.traced.argument_count])


def _text_of(execution: Execution) -> str:
    """The text by which a loaded function looks up the program: rolling changes lines in it."""
    return backend.text_of_key(execution.program)


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
    fail(SignatureError, fact, fix=_EXAMPLE)
