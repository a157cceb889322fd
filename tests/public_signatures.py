"""The parameters and results of the public names, as checkers see their annotations."""

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tracegraph as tg
from tracegraph.ir.methods import TensorMethods

#: What a block tests that only checkers read, or only Python.
_TESTS = ("TYPE_CHECKING", "not TYPE_CHECKING")

#: Public for users who write classes of their own.
_SPECIAL = ("__init__", "__call__")


def positions_of_any() -> set[str]:
    """`module:function parameter` for each parameter that is `Any` or has no annotation, and
    `module:function -> ` for each such result."""
    return {
        f"{name} {position}"
        for name, function in _functions()
        for position, annotation in _annotations(function)
        if annotation in ("Any", "")
    }


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    done: set[int] = set()
    for value in _public_values():
        if id(value) in done:
            continue
        done.add(id(value))
        if inspect.isclass(value) and _is_ours(value):
            for cls in value.__mro__:
                if _is_ours(cls):
                    yield from _methods(cls)
        elif callable(value) and isinstance(inspect.unwrap(value), types.FunctionType):
            function = inspect.unwrap(value)
            if _is_ours(function):
                yield f"{_room(function)}:{function.__qualname__}", function


def _public_values() -> Iterator[Any]:
    modules, found = [tg], {id(tg)}
    while modules:
        module = modules.pop()
        for name in dir(module):
            if name.startswith("_"):
                continue
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                yield value
            elif value.__name__.startswith("tracegraph") and id(value) not in found:
                found.add(id(value))
                modules.append(value)


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    declared = _declared_for_checkers(cls)
    for name, value in vars(cls).items():
        if (name.startswith("_") and name not in _SPECIAL) or name in declared:
            continue
        function = value.fget if isinstance(value, property) else value
        function = inspect.unwrap(getattr(function, "__func__", function))
        if isinstance(function, types.FunctionType):
            yield f"{_room(cls)}:{cls.__qualname__}.{name}", function


def _declared_for_checkers(cls: type) -> set[str]:
    """The names under `TYPE_CHECKING` in a class, and the methods that tensors share: there stands
    what checkers see of what is installed later. Under `not TYPE_CHECKING` stands what they do not
    see, since they know it by a base class."""
    names = set(vars(TensorMethods)) if cls in (tg.Tensor, tg.Variable) else set[str]()
    for node in _tree(_file(cls)).body:
        if not (isinstance(node, ast.ClassDef) and node.name == cls.__name__):
            continue
        for block in node.body:
            if not (isinstance(block, ast.If) and ast.unparse(block.test) in _TESTS):
                continue
            for inner in ast.walk(block):
                if isinstance(inner, ast.FunctionDef):
                    names.add(inner.name)
                elif isinstance(inner, ast.Name):
                    names.add(inner.id)
    return names


def _file(cls: type) -> str:
    """Where a class stands, which its `__module__` may not say."""
    codes = (getattr(inspect.unwrap(value), "__code__", None) for value in vars(cls).values())
    files = [
        code.co_filename for code in codes if code is not None and "tracegraph" in code.co_filename
    ]
    return files[0] if files else str(sys.modules[cls.__module__].__file__)


@functools.cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text("utf-8"))


def _annotations(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    for seen in typing.get_overloads(function) or [function]:
        signature = inspect.signature(seen)
        for name, parameter in signature.parameters.items():
            if name not in ("self", "cls"):
                yield name, _text(parameter.annotation)
        yield "->", _text(signature.return_annotation)


def _text(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else ("Any" if annotation is Any else "typed")


def _is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", "") or "").startswith("tracegraph")


def _room(value: Any) -> str:
    return value.__module__.removeprefix("tracegraph.")
