"""Signatures: functions that take tensors by name and return tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from tracegraph.errors import SignatureError, fail, kind_of, shown
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.saved_model.loaded_functions import SignatureFunction
from tracegraph.saved_model.loaded_modules import LoadedModule
from tracegraph.saved_model.names import check_label

#: The name of a single function's signature.
DEFAULT_SIGNATURE = "serving_default"


def named_signatures(root: Any, signatures: Any) -> dict[str, Any]:
    if signatures is None:
        given = getattr(root, "signatures", None) if isinstance(root, LoadedModule) else None
        return dict(given or {})
    if isinstance(signatures, Mapping):
        for name in signatures:
            if not isinstance(name, str):
                refuse_signature(name, "its name is not a string")
            check_label(name, "of a signature")
        return dict(signatures)
    return {DEFAULT_SIGNATURE: signatures}


def as_concrete(name: str, function: Any) -> ConcreteFunction:
    if isinstance(function, SignatureFunction):
        return function.concrete
    if isinstance(function, ConcreteFunction):
        return function
    if not isinstance(function, Function):
        refuse_signature(name, f"it is {kind_of(function)}: {shown(function)}")
    if function.input_signature is not None:
        return function.get_concrete_function()
    traces = list(function.traces)
    if len(traces) != 1:
        refuse_signature(name, f"{function.name} has {len(traces)} traces, and it must have one")
    return traces[0]


def output_names(name: str, concrete: ConcreteFunction) -> list[str]:
    """The names of the results: the keys of a dict, or `output_0` and so on."""
    packed = concrete.results.pack(list(range(concrete.traced.result_count)))
    if isinstance(packed, dict) and all(isinstance(key, str) for key in packed):
        if sorted(packed.values(), key=str) == sorted(range(len(packed)), key=str):
            return sorted(packed, key=lambda key: packed[key])
        refuse_signature(name, "the dict that it returns holds more than tensors")
    rows = [packed] if isinstance(packed, int) else packed
    if not isinstance(rows, (list, tuple)) or any(not isinstance(row, int) for row in rows):
        refuse_signature(name, "it returns a nested structure")
    return [f"output_{i}" for i in range(len(rows))]


def refuse_signature(name: Any, fact: str) -> NoReturn:
    fail(
        SignatureError,
        f"the signature {name!r} cannot be saved: {fact}",
        fix="give a @tg.function with an input_signature, or one concrete function, that takes "
        "tensors and returns tensors or a dict of them",
    )
