"""Users' names for Variables, Modules and tensors: Python variables, attributes, positions.

Graphs show the names that their reader knows. A Variable without a name of its own is named after
the attribute that holds it; if two have the same name, after the path that leads to it, such as
`model/hidden/kernel`. Names are looked up when a function is traced, from the names in its code.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MappingProxyType, MethodType
from typing import Any

from tracegraph.core.source import is_ours, user_frames
from tracegraph.core.tensorshape import TensorShape
from tracegraph.ir.builder import variable_names
from tracegraph.ir.tensor import Tensor
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable, VariableReference, is_no_name
from tracegraph.tracing.name_scopes import dotted, finders, told_name
from tracegraph.tracing.trace import variable_behind

#: Only the start of a long list is searched: such lists hold data, not the parts of a model.
_MOST_ITEMS = 1000
#: Other Mappings may read their items from somewhere.
_DICTS = (dict, UserDict, MappingProxyType)
#: How many functions are searched for the names in their code.
_MOST_FUNCTIONS = 100


class Paths:
    """The path of each Variable, Module and tensor that a Python function can reach.

    The `self` of a method has the empty path, and its parts are named by their attributes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._given: dict[int, str] = {}

    def add(self, thing: Any, path: str) -> None:
        """Gives a path to an object that the walk does not reach, such as a stand-in for an
        argument."""
        self._given[id(thing)] = path

    @functools.cached_property
    def _found(self) -> dict[int, str]:
        return _walked(_roots(self._function))

    def look_again(self) -> None:
        """Searches again, for objects created since."""
        vars(self).pop("_found", None)

    def of(self, thing: Any) -> str | None:
        """The path of a Variable, Module or tensor; None if it has none."""
        return self._given.get(id(thing)) or self._found.get(id(thing))


def names_in(module: Module) -> dict[int, str]:
    """The dotted paths from a module to its parts, by their `id`."""
    return {key: dotted(path) for key, path in _walked(iter([("", module)])).items()}


def _roots(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The values that a function's code names, and those of the functions it names in turn: its
    `self`, enclosed variables, globals."""
    function = inspect.unwrap(getattr(function, "func", function))
    if isinstance(function, Module):
        function = type(function).__call__.__get__(function)  # type: ignore[attr-defined]
    if isinstance(function, MethodType):
        yield "", function.__self__
        function = inspect.unwrap(function.__func__)
    queue = deque([function])
    seen: set[int] = set()
    while queue and len(seen) < _MOST_FUNCTIONS:
        function = queue.popleft()
        if isinstance(function, FunctionType) and id(function) not in seen:
            seen.add(id(function))
            for name, value in _named_by(function):
                yield name, value
                if isinstance(value, FunctionType) and not is_ours(value.__code__.co_filename):
                    queue.append(inspect.unwrap(value))


def _named_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            content = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
        yield name, content
    for name in names_in_code(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def names_in_code(code: CodeType) -> Iterator[str]:
    """The names that may be globals, including those in nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in_code(constant)


#: How many of the user's frames are searched for a name that leads to a Variable.
_MOST_FRAMES = 20


def called_at_this_place(variable: Variable | Tensor) -> str | None:
    """The path by which the running code refers to a Variable, or to that of a handle. A path from
    a Module is preferred to one from a container, and that to a plain name such as a loop
    variable."""
    frames = list(itertools.islice(user_frames(), _MOST_FRAMES))
    for kind in (Module, (list, tuple, dict), Variable):
        for frame in frames:
            roots = ((n, x) for n, x in _named_in(frame) if isinstance(x, kind))
            found = _walked(roots).get(id(variable))
            if found:
                return found
    return None


finders.append(called_at_this_place)


def _called_by_its_handle(handle: Tensor) -> str | None:
    """The name, in error messages, of the Variable that a tensor stands for, in a trace or not."""
    variable = variable_behind(handle)
    if variable is not None:
        return told_name(variable) if variable.is_unnamed else variable.base_name
    name = handle.name or ""
    path = called_at_this_place(handle) if is_no_name(name) else None
    return dotted(path) if path else name


variable_names.append(_called_by_its_handle)


def _named_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The names in the code of a frame, with their values; attributes of its `self` appear under
    their own names."""
    if frame.f_locals is not frame.f_globals:
        for name, value in [*frame.f_locals.items()]:
            yield "" if name == "self" else name, value
    for name in names_in_code(frame.f_code):
        if name in frame.f_globals:
            yield name, frame.f_globals[name]


def _walked(roots: Iterator[tuple[str, Any]]) -> dict[int, str]:
    """Walks breadth first, to find the shortest paths; private attributes come last."""
    found: dict[int, str] = {}
    slots: list[tuple[Variable, Variable]] = []
    seen: set[int] = set()
    queue = deque(roots)
    late: deque[tuple[str, Any]] = deque()
    while queue or late:
        path, value = (queue or late).popleft()
        if isinstance(value, (Variable, Module, Tensor)):
            path = found.setdefault(id(value), _own_path(path, value))
            if isinstance(value, Variable):
                found.setdefault(id(value.handle), path)
        if id(value) in seen:
            continue
        seen.add(id(value))
        for name, item in _parts(value):
            if isinstance(name, VariableReference):
                slots += [(slot, name.deref()) for slot in item if isinstance(slot, Variable)]
            elif isinstance(name, (str, int)):
                is_private = isinstance(name, str) and name.startswith("_")
                name = str(name).lstrip("_")
                (late if is_private else queue).append((f"{path}/{name}" if path else name, item))
    for slot, variable in slots:  # an optimizer's slot is named after its Variable
        if id(variable) in found:
            rest = slot.base_name.removeprefix(variable.base_name)
            found[id(slot)] = f"{found[id(variable)]}{rest}"
    return found


def _own_path(path: str, value: Any) -> str:
    """The path, whose last part is replaced by the value's own name if it has one."""
    if isinstance(value, Tensor) or value.is_unnamed or not path:
        return path
    name = value.name if isinstance(value, Module) else value.base_name
    parent = path.rpartition("/")[0]
    return f"{parent}/{name}" if parent and "/" not in name else name


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Module):
        pairs = value._ordered_attributes()
        yield from (pair for pair in pairs if pair[0] not in value._hidden)
    elif isinstance(value, _DICTS) and len(value) <= _MOST_ITEMS:
        yield from value.items()
    elif isinstance(value, (list, tuple)) and not isinstance(value, TensorShape):
        yield from enumerate(value[:_MOST_ITEMS])
