"""What is loaded: Modules without their classes, and functions without their source."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tracegraph.archive.manifest import label_problem
from tracegraph.archive.values import Records, record_fields, record_kind
from tracegraph.errors import (
    ShapeError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
    fix_of,
    shown,
)
from tracegraph.ir.tensor import Tensor
from tracegraph.runtime.body import Body
from tracegraph.runtime.concrete import ConcreteFunction
from tracegraph.runtime.function import Function
from tracegraph.runtime.module import Module
from tracegraph.runtime.signature import Request
from tracegraph.runtime.variable import Variable
from tracegraph.source import here
from tracegraph.tensorshape import TensorShape

#: Where the signatures of a loaded module are, and the Variables that its functions use and that
#: no attribute of anything holds. Names that begin like these are none of attributes.
_OWN = "_tg_"
_SIGNATURES = "_tg_signatures"
_CAPTURED = "_tg_captured"


class _Yielding:
    """A property that gives way to an attribute of the same name, if one was saved."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self._ask = ask
        self.__doc__ = ask.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._ask(instance)


class LoadedModule(Module):
    """A module that was loaded: its attributes are those that were saved, and its methods are
    functions of the saved graphs.

    What was saved as a dict or list, or as a function, is a LoadedModule too: `loaded["name"]`,
    `loaded[0]` or `loaded(x)`, and `content` is the dict, list or function itself. `signatures`
    has the signatures that were saved, by name.
    """

    #: Attributes that were not saved, with what they were.
    _omitted: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self) -> None:
        """Loaded modules are filled by `tg.saved_model.load`."""

    @property
    def signatures(self) -> Mapping[str, SignatureFunction]:
        """The signatures that were saved, by name."""
        return types.MappingProxyType(vars(self).get(_SIGNATURES, {}))

    @_Yielding
    def omitted(self) -> Mapping[str, str]:
        """What was not saved: attributes by name, and what stood in lists and dicts of them by
        path, such as `layers/1`; each with what it was."""
        return _omitted_of(self)

    @_Yielding
    def content(self) -> Any:
        """What was saved: the module itself, or the dict, list or function it stands for."""
        return self

    def __getattr__(self, name: str) -> Any:
        omitted = type(self)._omitted.get(name)
        if omitted is not None:
            raise AttributeError(
                f"the attribute {name!r} was {omitted}, which no file can hold: it was not saved"
            )
        raise AttributeError(f"{type(self).__name__!r} was saved without an attribute {name!r}")

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        return [item for item in vars(self).items() if item[0] != _SIGNATURES]


class _Callable(LoadedModule):
    """A loaded module that was callable."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["__call__"](*args, **kwargs)


class _Wrapper(LoadedModule):
    """Stands for a dict, list or function that was saved."""

    @_Yielding
    def content(self) -> Any:
        """The dict, list or function."""
        return vars(self)["content_"]

    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.content)

    def __getattr__(self, name: str) -> Any:
        content = vars(self).get("content_")
        if isinstance(content, dict) and name in content:
            return content[name]
        return super().__getattr__(name)


class _CallableWrapper(_Wrapper):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.content(*args, **kwargs)


def content_of(value: Any) -> Any:
    """What a loaded module stands for, if it is none of its own."""
    return vars(value)["content_"] if isinstance(value, _Wrapper) else value


def own_attributes(module: Module) -> list[tuple[str, Any]]:
    """The attributes of an instance, in the order in which its variables are listed."""
    own = (_SIGNATURES, _CAPTURED) if isinstance(module, LoadedModule) else ()
    return [(name, value) for name, value in module._ordered_attributes() if name not in own]


def omitted_of(module: Module) -> Mapping[str, str]:
    """What a module that was loaded had lost when it was saved first."""
    return _omitted_of(module) if isinstance(module, LoadedModule) else {}


def _omitted_of(module: LoadedModule) -> dict[str, str]:
    content = content_of(module)
    rows = own_attributes(module) if content is module else [("", content)]
    inside = [pair for name, value in rows for pair in not_saved_in(name, value)]
    return {**lost_attributes(module), **dict(inside)}


def lost_attributes(module: Module) -> dict[str, str]:
    """The attributes that a module lost when it was saved first, and that it did not get since."""
    lost = type(module)._omitted if isinstance(module, LoadedModule) else {}
    return {name: what for name, what in lost.items() if name not in vars(module)}


def python_class_name(module: Module) -> str:
    """The name of the class that a module has, or had when it was saved first."""
    name = type(module).__name__
    return name if name.isidentifier() and not label_problem(name) else Module.__name__


def attribute_problem(name: str) -> str:
    """Why no attribute that is saved can have this name; nothing if it can: it would stand in the
    way of what Modules, or Python, find under it."""
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


def is_special(name: str) -> bool:
    """Whether a name has a meaning for Python."""
    return name.startswith("__") and name.endswith("__")


#: What loaded modules have of their own, and attributes must not hide.
_RESERVED = {
    name
    for cls in LoadedModule.__mro__
    for name, value in vars(cls).items()
    if not isinstance(value, _Yielding)
}


def new_module(name: str, is_callable: bool, hidden: Sequence[str], omitted: dict[str, str]) -> Any:
    """An empty module of a class of its own, with the name that the class had."""
    base = _Callable if is_callable else LoadedModule
    own = {"_hidden": frozenset(hidden), "_omitted": omitted, "__module__": base.__module__}
    return type(name, (base,), own)()


def with_signatures(module: LoadedModule, signatures: Mapping[str, SignatureFunction]) -> Any:
    """The module, which has these signatures from now on."""
    vars(module)[_SIGNATURES] = dict(signatures)
    return module


def with_captured(module: LoadedModule, variables: Sequence[Variable]) -> None:
    """Lets a module list Variables that nothing holds but its functions."""
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


def variables_of(function: Function | ConcreteFunction) -> Iterator[Variable]:
    """The Variables that the traces of a function use."""
    traces = [function] if isinstance(function, ConcreteFunction) else function.traces
    return (variable for trace in traces for variable in trace.traced.variables)


def wrapped(content: Any) -> LoadedModule:
    """A module that stands for something that is none."""
    is_callable = isinstance(content, (Function, ConcreteFunction))
    module = _CallableWrapper() if is_callable else _Wrapper()
    module.__dict__["content_"] = content
    return module


class _SavedBody(Body):
    """The body of a function whose source is not there: it has the traces that were saved."""

    def __init__(self, owner: SavedFunction) -> None:
        super().__init__(owner.python_function, owner.signature)
        self._owner = owner

    def trace(self, request: Request) -> NoReturn:
        given = [f"{name}: {shown_key(key)}" for name, key in zip(request.names, request.keys)]
        traces = self._owner.traces
        known = "\n    ".join(trace.pretty_printed_signature(verbose=False) for trace in traces)
        fail(
            SignatureError,
            f"{self._name}({', '.join(given)}) was not saved: "
            + (f"it was saved as\n    {known}" if known else "it was never traced before saving"),
            source=here(),
            fix="call it with arguments that fit, or trace it for these before saving: declare "
            "open sizes with input_signature=[tg.TensorSpec([None, ...])]",
        )


class NotSaved:
    """Stands in a list, a dict or a default value for what no file can hold: places and keys are
    as they were. Whoever uses it is told what it was."""

    def __init__(self, what: str) -> None:
        self._what = what

    @property
    def _fact(self) -> str:
        return f"this was {self._what}, which no file can hold: it was not saved"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(TraceError, self._fact, source=here(), fix="put it back into its place after loading")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError("it is empty" if is_special(name) else self._fact)

    def __repr__(self) -> str:
        return f"<{self._what}, which was not saved>"


def not_saved_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """What was left out of a list or dict, by its path."""
    for inner, leaf in leaves(path, value):
        if isinstance(leaf, NotSaved):
            yield inner, vars(leaf)["_what"]


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What stands in a value that was loaded and in the containers of it, by path."""
    if isinstance(value, dict):
        rows = list(value.items())
    elif isinstance(value, (list, tuple)) and not isinstance(value, TensorShape):
        rows = record_fields(value) if record_kind(value) else list(enumerate(value))
    elif record_kind(value) and not isinstance(value, Module):
        rows = record_fields(value)
    else:
        yield path, value
        return
    for name, item in rows:
        yield from leaves(f"{path}/{name}" if path else str(name), item)


def shown_key(key: Any) -> str:
    """The key of an argument as messages show it."""
    return shown(key[-1]) if isinstance(key, tuple) and key else str(key)


class SavedFunction(Function):
    """A function that was loaded: what was traced before it was saved, and nothing else."""

    has_source = False

    def __init__(
        self, name: str, parameters: inspect.Signature, records: Records, **options: Any
    ) -> None:
        stub = _stub(name, parameters)
        super().__init__(stub, name=name, **options)
        self._records = records

    def _make_body(self) -> Body:
        return _SavedBody(self)

    def add(self, concrete: ConcreteFunction) -> None:
        """Takes a trace that was loaded."""
        self._traces.add(concrete)

    def _may_trace_again(self, error: ShapeError, concrete: ConcreteFunction) -> bool:
        return False

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        try:
            return super()._request(*self._of_known_classes((args, kwargs)))
        except SignatureError:
            raise
        except TraceError as error:  # of a loaded function TensorFlow raises ValueError
            fact, fix = fact_of(error), fix_of(error)
            fail(SignatureError, fact, source=here(), fix=fix, cause=error.__cause__)

    def clear_cache(self) -> None:
        """Forgets compiled programs; the traces stay, since nothing could make them anew."""
        self._routes.clear()

    def _of_known_classes(self, value: Any) -> Any:
        """Namedtuples and dataclasses as those of the same name and fields that were loaded."""
        if type(value) in (list, tuple):
            return type(value)([self._of_known_classes(item) for item in value])
        if type(value) is dict:
            return {key: self._of_known_classes(item) for key, item in value.items()}
        kind = record_kind(value)
        if kind is None:
            return value
        fields = record_fields(value)
        cls = self._records.find(kind, type(value).__name__, tuple(name for name, _ in fields))
        return value if cls is None else cls(*[self._of_known_classes(x) for _, x in fields])

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedFunction:
        """The same traces with the copies of their Variables."""
        new = SavedFunction(
            self._name,
            self.function_spec,
            self._records,
            input_signature=self._options["input_signature"],
        )
        memo[id(self)] = new
        for concrete in self.traces:
            new.add(copy.deepcopy(concrete, memo))
        return new

    def __copy__(self) -> SavedFunction:
        return self

    def __reduce__(self) -> NoReturn:
        fail(
            TraceError,
            f"the loaded function {self.name} cannot be pickled",
            source=here(),
            fix="save it with tg.saved_model.save",
        )


class SavedConcreteFunction(ConcreteFunction):
    """A trace that was loaded."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedConcreteFunction:
        """The same trace with the copies of its Variables, as a method of a copy has its own."""
        variables = tuple(
            v if id(v) in self._stand_ins else copy.deepcopy(v, memo) for v in self.traced.variables
        )
        traced = dataclasses.replace(self.traced, variables=variables)
        new = SavedConcreteFunction(self.request, traced, self.results, self._stand_ins)
        memo[id(self)] = new
        return new


def _stub(name: str, parameters: inspect.Signature) -> Any:
    """A Python function of these parameters, in place of the source that is not there."""

    def stub(*args: Any, **kwargs: Any) -> NoReturn:
        fail(
            TraceError,
            f"the Python code of {name} was not saved: its graphs were",
            source=here(),
            fix="call the loaded function itself",
        )

    stub.__name__ = stub.__qualname__ = name
    stub.__signature__ = parameters  # type: ignore[attr-defined]
    return stub


class SignatureFunction:
    """A saved signature: takes tensors by name, and returns a dict of tensors by name.

    One that takes a single tensor takes it by position too.
    """

    def __init__(
        self,
        name: str,
        concrete: ConcreteFunction,
        inputs: Sequence[str],
        outputs: Sequence[str],
        program: Path | None = None,
    ) -> None:
        self.name = name
        self.concrete = concrete
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        #: Where the signature lies as StableHLO, if it was saved as a program too.
        self.program = program

    @property
    def graph(self) -> Any:
        """The graph of the signature."""
        return self.concrete.graph

    @property
    def structured_input_signature(self) -> Any:
        """`((), {name: TensorSpec})`."""
        types = self.concrete._specs()
        return (), dict(zip(self.inputs, types, strict=True))

    @property
    def structured_outputs(self) -> Any:
        """`{name: TensorSpec}`."""
        types = [
            self.concrete._spec(y.type, name)
            for name, y in zip(self.outputs, self.concrete.outputs)
        ]
        return dict(zip(self.outputs, types, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Raises TraceError (a TypeError) for other names than those of the signature."""
        if len(args) == 1 and not kwargs and len(self.inputs) == 1:
            kwargs = {self.inputs[0]: args[0]}
        elif args or set(kwargs) != set(self.inputs):
            given = [f"{len(args)} by position"] if args else []
            fail(
                TraceError,
                f"the signature {self.name!r} takes {', '.join(self.inputs) or 'nothing'} by name, "
                f"and was given {', '.join([*given, *kwargs]) or 'nothing'}",
                source=here(),
                fix=f"call it as {self!r} says",
            )
        results = self.concrete.by_name(dict(zip(self.inputs, (kwargs[n] for n in self.inputs))))
        return dict(zip(self.outputs, results, strict=True))

    def __repr__(self) -> str:
        rows = zip(self.inputs, self.concrete.argument_types, strict=True)
        given = ", ".join(f"{name}: {type}" for name, type in rows)
        made = zip(self.outputs, self.concrete.outputs, strict=True)
        results = ", ".join(f"{name}: {y.type}" for name, y in made)
        return f"<signature {self.name}({given}) -> {{{results}}}>"
