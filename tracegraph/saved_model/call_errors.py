"""Errors for calls that were not saved: how their arguments differ from the saved traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tracegraph.archive.value_encoding import record_kind
from tracegraph.core.types import TensorType
from tracegraph.errors import SignatureError, fail, kind_of
from tracegraph.functions.concrete import ConcreteFunction, shown_value
from tracegraph.saved_model.placeholders import entries
from tracegraph.signatures.retracing import arguments_of, shown_argument
from tracegraph.signatures.signature import Request, VariableKey, is_tensor_key


def refuse_call(name: str, request: Request, traces: Sequence[ConcreteFunction]) -> NoReturn:
    """Raises the SignatureError for a call that fits none of the traces."""
    given = f"{_call(name, request)} was not saved"
    if not traces:
        fail(
            SignatureError,
            f"{given}: it was never traced before saving",
            fix="call it once before saving, or declare its arguments: "
            "input_signature=[tg.TensorSpec([None, ...])]",
        )
    saved = [_as_traced(trace) for trace in traces]
    nearest = min(saved, key=lambda known: _distance(request, known))
    parting = _first_parting(request, nearest)
    because = f", since {parting[0]}" if parting else ""
    rows = (f"\n    {_call(name, k)} -> {_results(t)}" for k, t in zip(saved, traces, strict=True))
    fail(
        SignatureError,
        f"{given}{because}: it was saved as{''.join(rows)}",
        fix=parting[1] if parting else "; ".join(_fixes(request, nearest)),
    )


def _as_traced(trace: ConcreteFunction) -> Request:
    """The request of a trace with the types of its graph, in which open sizes have names."""
    types = iter(trace.argument_types)
    keys = trace.request.keys
    return trace.request.with_keys([next(types) if is_tensor_key(key) else key for key in keys])


def _call(name: str, request: Request) -> str:
    """A call as text, with the types of tensors, and containers and Python values as they are."""
    texts = []
    for argument, value in arguments_of(request).items():
        is_tensor = isinstance(value, int) and is_tensor_key(request.keys[value])
        texts.append(f"{argument}{': ' if is_tensor else '='}{shown_argument(request, value)}")
    return f"{name}({', '.join(texts)})"


def _results(trace: ConcreteFunction) -> str:
    return f"({', '.join(str(y.type) for y in trace.outputs)})"


# Differences.


def _distance(given: Request, known: Request) -> tuple[bool, int]:
    if not given.structure.matches(known.structure):
        return True, abs(len(given.leaves) - len(known.leaves))
    return False, sum(a != b for a, b in zip(given.keys, known.keys, strict=True))


def _first_parting(given: Request, known: Request) -> tuple[str, str] | None:
    """Where the structures of two calls diverge, and the fix."""
    if given.structure.matches(known.structure):
        return None
    now, before = arguments_of(given), arguments_of(known)
    for name in dict.fromkeys((*now, *before)):
        pair = now.get(name, _MISSING), before.get(name, _MISSING)
        for path, is_now, was in _partings(name, *pair):
            if _MISSING in (is_now, was):
                fact = f"{path} is {'missing' if is_now is _MISSING else 'given'}"
                return fact, "pass what was saved: the same keys, and as many items"
            kind = _kind(known, was)
            return f"{path} is {_kind(given, is_now)} in place of {kind}", f"pass {kind} as {path}"
    return "its arguments have another structure", "pass the containers that were saved"


#: Marks an item that one of two containers lacks.
_MISSING = object()


def _partings(path: str, now: Any, before: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths where two nests diverge, with both values. Leaves are given by their indices."""
    if type(now) is not type(before):
        yield path, now, before
        return
    rows, old = dict(_entries(path, now)), dict(_entries(path, before))
    for inner in dict.fromkeys((*rows, *old)):
        if inner not in rows or inner not in old:
            yield inner, rows.get(inner, _MISSING), old.get(inner, _MISSING)
        else:
            yield from _partings(inner, rows[inner], old[inner])


def _kind(request: Request, value: Any) -> str:
    """The kind of a value at a place where the structures of two calls diverge."""
    if value is None or isinstance(value, int):
        return shown_argument(request, value)
    return kind_of(value)


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The contents of a container, keyed by the Python expressions for them."""
    is_record = record_kind(value) is not None
    for name, item in entries(value) or []:
        yield (f"{path}.{name}" if is_record else f"{path}[{name!r}]"), item


def _fixes(given: Request, known: Request) -> Iterator[str]:
    """A fix for each kind of difference between two calls with the same structure."""
    rows = zip(_paths(known), given.keys, known.keys, known.leaves, strict=True)
    unequal = [row for row in rows if row[1] != row[2]]
    tensors = [row for row in unequal if _are_types(row)]
    variables = [row for row in unequal if isinstance(row[2], VariableKey)]
    values = [
        f"{path}={shown_value(key, leaf)}"
        for path, _, key, leaf in unequal
        if not isinstance(key, (TensorType, VariableKey))
    ]
    casts = [
        f"tg.cast({n}, tg.{key.dtype.name})"
        for n, now, key, _ in tensors
        if now.dtype is not key.dtype
    ]
    if casts:
        yield f"convert what has another type: {', '.join(casts)}"
    if any(now.shape != key.shape for _, now, key, _ in tensors):
        yield (
            "declare sizes that vary before saving: input_signature=[tg.TensorSpec([None, ...])]"
        )
    alike = [row for row in variables if getattr(row[1], "type", None) is row[2].type]
    kinds = [f"{row[0]}, a tg.Variable of {row[2].type}" for row in variables if row not in alike]
    if kinds:
        yield f"pass Variables where Variables were saved: {', and '.join(kinds)}"
    elif alike:
        names = ", ".join(path for path, *_ in alike)
        yield f"pass Variables that are trainable, and one twice, as they were saved: {names}"
    if values:
        yield f"pass {', '.join(values)}, or call it with other Python values before saving"
    if len(unequal) > len(tensors) + len(values) + len(variables):
        yield "pass tensors where tensors were saved"


def _paths(request: Request) -> list[str]:
    """For each leaf of a call, the Python expression for it, such as `p['w']`."""
    found: dict[int, str] = {}

    def note(path: str, value: Any) -> None:
        if isinstance(value, int):  # a leaf is given by its index
            found[value] = path
        for inner, item in _entries(path, value):
            note(inner, item)

    for name, value in arguments_of(request).items():
        note(name, value)
    return [found.get(place, name) for place, name in enumerate(request.names)]


def _are_types(row: tuple[str, Any, Any, Any]) -> bool:
    return isinstance(row[1], TensorType) and isinstance(row[2], TensorType)
