"""Modules without their classes, and stand-ins for dicts, lists and functions."""

from __future__ import annotations

import types
import unicodedata
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph import optimizers
from tracegraph.archive.manifest import label_problem
from tracegraph.boundary.tracebacks import api_boundary, asked
from tracegraph.errors import SignatureError, TraceError, fail, fail_absent, shown
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.optimizers.base import ATTRIBUTES, Optimizer, rate_at
from tracegraph.saved_model.loaded_functions import SignatureFunction, traces_of
from tracegraph.saved_model.names import is_special
from tracegraph.saved_model.placeholders import leaves, not_saved_in
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable

#: Attributes of a loaded module for its signatures, and for the Variables that its functions use
#: but no attribute holds. No saved attribute has a name with this prefix.
_OWN = "_tg_"

_SIGNATURES = "_tg_signatures"

_CAPTURED = "_tg_captured"


class _Yielding:
    """A property that yields to a saved attribute of the same name."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self._ask = ask
        self.__doc__ = ask.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._ask(instance)


class LoadedModule(Module):
    """A loaded module: its attributes are the saved ones, and its methods are functions of the
    saved graphs.

    A saved dict, list or function also becomes a LoadedModule: use `loaded["name"]`, `loaded[0]` or
    `loaded(x)`, or get the dict, list or function itself as `content`. `signatures` has the saved
    signatures by name.
    """

    #: Attributes that were not saved, each with a description.
    _omitted: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self) -> None:
        """Called by `tg.saved_model.load`, which fills the module."""

    if TYPE_CHECKING:  # what is loaded decides whether there is any

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...

    @property
    def signatures(self) -> Mapping[str, SignatureFunction]:
        """The saved signatures, by name."""
        return types.MappingProxyType(vars(self).get(_SIGNATURES, {}))

    @_Yielding
    def omitted(self) -> Mapping[str, str]:
        """Values that were not saved, with descriptions: attributes by name, and items of lists and
        dicts in them by path, such as `layers/1`."""
        return omitted_of(self)

    @_Yielding
    def content(self) -> Any:
        """The saved object: the module itself, or the dict, list or function it stands for."""
        return self

    @asked
    def __getattr__(self, name: str) -> Any:
        omitted = type(self)._omitted.get(name)
        if omitted is not None:
            fact = f"the attribute {name!r} was {omitted}, which no file can hold: it was not saved"
            fail_absent(name, fact, "save what it computes as a @tg.function, or a Variable")
        raise AttributeError(
            f"{type(self).__name__!r} was saved without an attribute {name!r}", name=name, obj=self
        )

    def __repr__(self) -> str:
        names = [n for n in vars(self) if n == "__call__" or not n.startswith("_")]
        return f"<loaded {type(self).__name__}{_with(names)}>"

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        return [item for item in vars(self).items() if item[0] != _SIGNATURES]


#: How many names of a container's contents to show.
_SHOWN = 8


def _with(names: Sequence[Any]) -> str:
    """The contents of a container, for its repr."""
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f" with {', '.join([*map(str, names[:_SHOWN]), *more])}" if names else ""


class _Callable(LoadedModule):
    """A loaded module that was callable."""

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["__call__"](*args, **kwargs)


class _LoadedOptimizer(LoadedModule):
    """A loaded optimizer: it takes the steps that were traced, with the current learning rate."""

    @property
    def learning_rate(self) -> Any:
        """The current learning rate: a Variable, or the result of a saved `tg.function`."""
        rate = self._learning_rate
        call = vars(rate)["__call__"] if isinstance(rate, _Callable) else rate
        return rate_at(call, self.iterations)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        rate = vars(self).get("_learning_rate")
        if not isinstance(rate, Variable) or callable(value):
            was = "a Variable" if isinstance(rate, Variable) else "a function"
            fail(
                SignatureError,
                f"the learning rate of the optimizer was {was} when its steps were traced, and "
                f"{shown(value)} would have no effect on them",
                fix="assign a number to it"
                if isinstance(rate, Variable)
                else "give the optimizer a number, or a tg.Variable, before it is saved",
            )
        rate.assign(value)

    @asked
    def __getattr__(self, name: str) -> Any:
        if name in ("learning_rate", "_learning_rate") and name not in vars(self):
            raise AttributeError(
                "the learning rate was a Python function, which no file can hold: the steps that "
                "were saved compute it as they did when they were traced. Give the optimizer a "
                "number, or a tg.Variable, to change it after loading"
            )
        if callable(getattr(Optimizer, name, None)):
            raise AttributeError(
                f"the method {name!r} of {type(self).__name__} is Python code, which was not "
                f"saved. Call the step that was saved, or make a new {_constructor(self)} and "
                "restore its state from what tg.train.Checkpoint writes of this one"
            )
        return super().__getattr__(name)


def _constructor(optimizer: _LoadedOptimizer) -> str:
    """The call that creates an optimizer of the saved class."""
    name = type(optimizer).__name__
    return f"tg.optimizers.{name}" if hasattr(optimizers, name) else name


#: Describes an omitted `__call__` of a class; one of an instance alone has no effect on calls.
CALLED_IN_PYTHON = "a Python function"


class _Uncallable(LoadedModule):
    """A loaded module whose class has a Python `__call__`, as layers do, which is not data."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(
            TraceError,
            f"{type(self).__name__}.__call__ was not saved: it was not a @tg.function",
            fix="decorate it with @tg.function and trace it before saving, or save and call a "
            "@tg.function that calls the module",
        )


class _LoadedWrapper(LoadedModule):
    """Stands for a saved dict, list or function."""

    @_Yielding
    def content(self) -> Any:
        """The dict, list or function."""
        return vars(self)["content_"]


class _Container(_LoadedWrapper):
    """Stands for a dict or a list."""

    @asked
    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    @api_boundary
    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse_change(key, "assigned", " = ...")

    @api_boundary
    def __delitem__(self, key: Any) -> NoReturn:
        self._refuse_change(key, "deleted", "")

    def _refuse_change(self, key: Any, verb: str, rest: str) -> NoReturn:
        fail(
            TraceError,
            f"the item {shown(key)} of {self!r} was {verb}, which stands for what was saved",
            fix=f"change that itself: {'del ' if not rest else ''}loaded.content[{key!r}]{rest}",
        )

    @asked
    def __getattr__(self, name: str) -> Any:
        content = vars(self).get("content_")
        if not name.startswith("_") and hasattr(content, name):
            raise AttributeError(f"{self!r} has no {name!r}: call loaded.content.{name}(...)")
        return super().__getattr__(name)

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.content)

    def __contains__(self, item: Any) -> bool:
        return item in self.content

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.content)


class _DictWrapper(_Container):
    """Stands for a dict; entries whose keys are names are attributes too."""

    def keys(self) -> KeysView[Any]:
        return self.content.keys()

    def values(self) -> ValuesView[Any]:
        return self.content.values()

    def items(self) -> ItemsView[Any, Any]:
        return self.content.items()

    def get(self, key: Any, default: Any = None) -> Any:
        return self.content.get(key, default)

    def __repr__(self) -> str:
        return f"<loaded dict{_with([*map(repr, self.content)])}>"

    @asked
    def __getattr__(self, name: str) -> Any:
        content = vars(self).get("content_", {})
        return content[name] if name in content else super().__getattr__(name)


class _ListWrapper(_Container):
    """Stands for a list."""

    def __repr__(self) -> str:
        return f"<loaded list of {len(self)}>"

    def index(self, *args: Any) -> int:
        return self.content.index(*args)

    def count(self, value: Any) -> int:
        return self.content.count(value)


Mapping.register(_DictWrapper)  # type: ignore[attr-defined]

Sequence.register(_ListWrapper)  # type: ignore[attr-defined]


class _FunctionWrapper(_Callable, _LoadedWrapper):
    """Stands for a function, and has its methods and attributes."""

    def __repr__(self) -> str:
        return repr(self.content).replace("<", "<loaded ", 1)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.content.name

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The Variables used by its traces."""
        variables = (v for trace in traces_of(self.content) for v in trace.variables)
        return tuple({id(v): v for v in variables}.values())

    @asked
    def __getattr__(self, name: str) -> Any:
        # Names with an underscore mean something for this object itself, such as how to copy it.
        content = None if name.startswith("_") else vars(self).get("content_")
        return getattr(content, name) if hasattr(content, name) else super().__getattr__(name)


def content_of(value: Any) -> Any:
    """The value that a loaded module stands for, if it is a stand-in; otherwise the value."""
    return vars(value)["content_"] if isinstance(value, _LoadedWrapper) else value


def own_attributes(module: Module) -> list[tuple[str, Any]]:
    """The attributes of an instance, in the order in which its variables are listed."""
    own = (_SIGNATURES, _CAPTURED) if isinstance(module, LoadedModule) else ()
    return [(name, value) for name, value in module._ordered_attributes() if name not in own]


def omitted_of(module: Module) -> dict[str, str]:
    """What a loaded module, and the list or dict that it stands for, lost when first saved."""
    content = content_of(module)
    rows = own_attributes(module) if content is module else [("", content)]
    inside = [pair for name, value in rows for pair in not_saved_in(name, value)]
    return {**lost_attributes(module), **dict(inside)}


def lost_attributes(module: Module) -> dict[str, str]:
    """The attributes that a module lost when it was first saved, and has not regained since."""
    lost = type(module)._omitted if isinstance(module, LoadedModule) else {}
    return {name: what for name, what in lost.items() if name not in vars(module)}


def python_class_name(module: Module) -> str:
    """The name of a module's class, now or when it was first saved."""
    name = type(module).__name__
    return name if name.isidentifier() and not label_problem(name) else Module.__name__


def attribute_problem(name: str) -> str:
    """Why a saved attribute cannot have this name, or "" if it can: it would hide an attribute of
    Modules, or one that Python uses."""
    problem = label_problem(name)
    if problem:
        return problem
    plain = unicodedata.normalize("NFKC", name)
    if plain != name:
        return f"is read as {plain!r} by Python"
    if is_special(name) and name != "__call__":
        return "is one of Python's own"
    is_ours = name in _RESERVED or name.startswith(_OWN)
    return "is one that every module has" if is_ours else ""


#: Attributes of loaded modules themselves, which saved ones must not hide.
_RESERVED = {
    name
    for cls in LoadedModule.__mro__
    for name, value in vars(cls).items()
    if not isinstance(value, _Yielding)
}


def new_module(
    name: str, attributes: Sequence[str], hidden: Sequence[str], omitted: dict[str, str]
) -> Any:
    """An empty module of a new class with the name of the saved one, for attributes with these
    names."""
    bases: tuple[type, ...] = (LoadedModule,)
    if set(attributes) >= ATTRIBUTES:
        bases = (_LoadedOptimizer, *bases)
    if "__call__" in attributes:
        bases = (_Callable, *bases)
    elif omitted.get("__call__") == CALLED_IN_PYTHON:
        bases = (_Uncallable, *bases)
    own = {"_hidden": frozenset(hidden), "_omitted": omitted, "__module__": __name__}
    return type(name, bases, own)()


def with_signatures(module: LoadedModule, signatures: Mapping[str, SignatureFunction]) -> Any:
    """The module, after giving it these signatures."""
    vars(module)[_SIGNATURES] = dict(signatures)
    return module


def with_captured(module: LoadedModule, variables: Sequence[Variable]) -> None:
    """Makes a module list Variables that only its functions hold."""
    if variables:
        vars(module)[_CAPTURED] = list(variables)


def functions_in(module: LoadedModule) -> Iterator[Function | ConcreteFunction]:
    """The functions among the attributes of a module, and in lists and dicts of them."""
    for name, value in vars(module).items():
        for _, leaf in leaves(name, value):
            if isinstance(leaf, SignatureFunction):
                yield leaf.concrete
            elif isinstance(leaf, (Function, ConcreteFunction)):
                yield leaf


def wrapped(content: Any) -> LoadedModule:
    """A module that stands for a dict, list or function."""
    if isinstance(content, (Function, ConcreteFunction)):
        module: LoadedModule = _FunctionWrapper()
        vars(module)["__call__"] = content
    else:
        module = _DictWrapper() if isinstance(content, dict) else _ListWrapper()
    vars(module)["content_"] = content
    return module
