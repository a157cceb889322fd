"""Which functions are converted, and their converted forms.

malt is imported when the first function is converted; only this module opens the transpiler.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import importlib
import inspect
import os
import site
import sysconfig
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np

from tracegraph.core.source import HOOKS, is_of_us, is_ours
from tracegraph.core.worker_thread import on_worker_thread
from tracegraph.eager.tensor_methods import (
    is_converted as is_converted_hooks,
    why_not_converted as why_not_converted_hooks,
)
from tracegraph.ir.tensor import Tensor
from tracegraph.state.module import WRAPS_BY
from tracegraph.state.variable import Variable

T = TypeVar("T")


class NotConvertible(Exception):
    """A function that cannot be converted; its text says why."""


#: The cell that holds the hooks of converted code, which `hooks.py` fills.
hooks = CellType()

#: Converting is rare: one conversion at a time, so that threads never duplicate one.
_converting = threading.RLock()
#: The converted code, or the reason why there is none, by the id of the code: looking up the object
#: itself would hash its instructions, and code of two files may compare equal.
_codes: dict[int, CodeType | str] = {}


@functools.cache
def _transpiler() -> Any:
    # A signal handler that struck during the import would find a half-initialised module.
    return on_worker_thread(
        lambda: importlib.import_module("tracegraph.autograph.translation.transpiler")
    )


def converted(function: Any) -> Any:
    """A function equivalent to `function`, in which values of graphs decide by nodes; the function
    itself if it is not converted."""
    if isinstance(function, FunctionType):
        return _converted_function(function)
    if isinstance(function, MethodType):
        inner = converted(function.__func__)
        return function if inner is function.__func__ else MethodType(inner, function.__self__)
    if isinstance(function, functools.partial):
        inner = converted(function.func)
        if inner is function.func:
            return function
        return functools.partial(inner, *function.args, **function.keywords)
    call = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(call, FunctionType) and not isinstance(function, type):
        inner = _converted_function(call)
        return function if inner is call else MethodType(inner, function)
    return function


def why_not_converted(code: CodeType) -> str:
    """Why a user's function runs unconverted; empty if it is converted."""
    found = _codes.get(id(code), _SUSPENDED if _is_suspended(code) else None)
    return found if isinstance(found, str) else ""


why_not_converted_hooks.append(why_not_converted)
is_converted_hooks.append(lambda code: HOOKS in code.co_freevars and not _is_suspended(code))


def _is_suspended(code: CodeType) -> bool:
    """Whether it is a generator or a coroutine, which in converted code, too, stays as it is."""
    return bool(code.co_flags & _SUSPENDS) and code.co_name != "<genexpr>"


def _converted_function(function: FunctionType) -> FunctionType:
    wraps = vars(function).get(WRAPS_BY)
    if wraps is not None:  # a wrapper of ours around a user's method
        method: Any = function.__wrapped__  # type: ignore[attr-defined]
        inner = converted(method)
        return function if inner is method else wraps(inner)
    if is_left_alone(function):
        return function
    code = _code_of(function)
    if isinstance(code, str):
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells[HOOKS] = hooks
    closure = tuple([cells[name] for name in code.co_freevars])
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__, made.__module__ = function.__doc__, function.__module__
    vars(made).update(vars(function))
    return made


def _code_of(function: FunctionType) -> CodeType | str:
    code = function.__code__
    found = _codes.get(id(code))
    if found is not None:
        return found
    with _converting:
        if id(code) not in _codes:
            try:
                _keep(_codes, code, _transpiler().converted_code(function))
            except NotConvertible as refusal:
                _keep(_codes, code, str(refusal))
        return _codes[id(code)]


def _keep(table: dict[int, T], code: CodeType, found: T) -> None:
    """Keeps what was found about the code in a table, by its id, for as long as the code lives."""
    table[id(code)] = found
    weakref.finalize(code, table.pop, id(code), None).atexit = False


def converted_text(function: Any) -> str:
    """The converted form of a function as Python text. Raises NotConvertible."""
    function = getattr(inspect.unwrap(function), "__func__", function)
    if not isinstance(function, FunctionType):
        raise NotConvertible("it is no Python function")
    return _transpiler().converted_text(function)


# Functions left alone.


def is_left_alone(function: FunctionType) -> bool:
    """Whether a function runs unchanged: one that is already converted; a generator; one of
    tracegraph, NumPy, JAX, the standard library, or an installed package that does not use
    tracegraph.
    """
    code = function.__code__
    is_left = HOOKS in code.co_freevars or bool(code.co_flags & _SUSPENDS)
    return is_left or is_library(code.co_filename, function.__globals__)


def is_library(file: str, names: dict[str, Any]) -> bool:
    """Whether a module, with its `names`, is of a library that knows nothing of tracegraph."""
    return _is_of_libraries(file) or (_is_installed(file) and not _uses_us(names))


_SUSPENDED = "it is a generator or a coroutine: return a list, or a tensor"
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@functools.lru_cache(4096)
def _is_of_libraries(file: str) -> bool:
    """Whether a file is ours, or in the standard library's folder, where packages are installed
    too."""
    if is_ours(file) or file.startswith("<frozen"):
        return True
    return os.path.abspath(file).startswith(_libraries()) and not _is_installed(file)


def _folders(paths: Iterable[str | None]) -> tuple[str, ...]:
    return tuple({os.path.join(os.path.abspath(path), "") for path in paths if path})


@functools.cache
def _libraries() -> tuple[str, ...]:
    return _folders(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


@functools.cache
def _installed() -> tuple[str, ...]:
    scheme = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return _folders([*scheme, *site.getsitepackages(), site.getusersitepackages()])


@functools.lru_cache(4096)
def _is_installed(file: str) -> bool:
    return os.path.abspath(file).startswith(_installed())


def _uses_us(names: dict[str, Any]) -> bool:
    """Whether any name in a module refers to something of tracegraph."""
    return any(map(is_of_us, list(names.values())))


#: Our functions that take their function arguments unconverted, unlike the others.
take_as_given: set[Any] = set()
#: Functions that say something about the loop whose first statement they are. Converted code calls
#: those of them that stand elsewhere.
directives: set[Any] = set()


# Functions that need no conversion.


def is_straight(function: Any, arguments: Iterable[Any]) -> bool:
    """Whether a function has no branches and calls nothing that is converted, so that converting it
    would change nothing: its code has no branch, and the names and arguments that it uses are only
    plain values and library functions."""
    if not isinstance(function, FunctionType):
        return False
    return all(map(_is_plain, arguments)) and all(
        map(_is_plain, _values_used(function, function.__code__))
    )


def _values_used(function: FunctionType, code: CodeType) -> Iterator[Any]:
    """The values of the global and free names in the code; a function of ours stands for
    a branch, and for anything unknown."""
    names = _names_used(code)
    if names is None:
        yield converted
        return
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    for name in names.of_globals:
        yield function.__globals__.get(name, dis)
    for name in names.of_cells:
        if name in cells:
            yield _content(cells[name])
    for inner in names.inner:
        yield from _values_used(function, inner)


@dataclasses.dataclass(frozen=True)
class _Names:
    """What a code object uses: names of the module and of functions around, and inner code."""

    of_globals: tuple[str, ...]
    of_cells: tuple[str, ...]
    inner: tuple[CodeType, ...]


def _names_used(code: CodeType) -> _Names | None:
    """The names that the code uses, read once; None if it has a branch or does anything unknown."""
    if id(code) not in _names:
        _keep(_names, code, _read_names(code))
    return _names[id(code)]


#: What code uses, by the id of the code.
_names: dict[int, _Names | None] = {}


def _read_names(code: CodeType) -> _Names | None:
    of_globals, of_cells, inner = dict[str, None](), dict[str, None](), list[CodeType]()
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name.startswith(_BRANCHES) or name in _UNKNOWN or value in _HOOKED:
            return None
        if name == "LOAD_GLOBAL":
            of_globals[value] = None
        elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            of_cells[value] = None
        elif isinstance(value, CodeType):
            inner.append(value)
    return _Names(tuple(of_globals), tuple(of_cells), tuple(inner))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return converted


_BRANCHES = ("POP_JUMP", "JUMP_IF", "FOR_ITER", "UNARY_NOT", "TO_BOOL", "MATCH_", "CONTAINS_OP")
#: Builtins that behave differently for tensors of a graph, by name.
_HOOKED = ("all", "any", "bool", "float", "int", "len", "max", "min", "print", "sum")
_UNKNOWN = {"IMPORT_NAME", "LOAD_NAME", "LOAD_BUILD_CLASS", "STORE_GLOBAL"}


def _is_plain(value: Any) -> bool:
    """Whether a value contains no user code."""
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, ModuleType):
        return _is_of_libraries(value.__file__ or "") if hasattr(value, "__file__") else True
    if isinstance(value, FunctionType):
        return value is not converted and _is_of_libraries(value.__code__.co_filename)
    if isinstance(value, BuiltinFunctionType):
        return True
    return isinstance(value, type) and (is_of_us(value) or value.__module__ == "builtins")


_PLAIN = (Tensor, Variable, np.ndarray, np.generic, str, bytes, int, float, complex, bool)
