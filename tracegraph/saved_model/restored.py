"""What is loaded: Modules without their classes, and functions without their source."""

from __future__ import annotations

import inspect
import types
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tracegraph.archive.manifest import label_problem
from tracegraph.archive.values import Records, record_fields, record_kind
from tracegraph.errors import ShapeError, SignatureError, TraceError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.optimizers import ATTRIBUTES, rate_at
from tracegraph.runtime.body import Body
from tracegraph.runtime.concrete import ConcreteFunction
from tracegraph.runtime.function import Function
from tracegraph.runtime.module import Module
from tracegraph.runtime.signature import Request
from tracegraph.runtime.variable import Variable
from tracegraph.source import here

#: Where the signatures of a loaded module are.
_SIGNATURES = "_tg_signatures"


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
    _no_signatures: Mapping[str, SignatureFunction] = types.MappingProxyType({})

    def __init__(self) -> None:
        """Loaded modules are filled by `tg.saved_model.load`."""

    @property
    def signatures(self) -> Mapping[str, SignatureFunction]:
        """The signatures that were saved, by name."""
        return vars(self).get(_SIGNATURES, self._no_signatures)

    @_Yielding
    def omitted(self) -> Mapping[str, str]:
        """The attributes that were not saved, with what each of them was."""
        return type(self)._omitted

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


class _LoadedOptimizer(LoadedModule):
    """A loaded optimizer: its steps are those that were traced, with the learning rate of now."""

    @property
    def learning_rate(self) -> Any:
        """The learning rate now: a Variable, or what a `tg.function` that was saved returns."""
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
                f"{shown(value)} would not be in force in them",
                source=here(),
                fix="assign a number to it"
                if isinstance(rate, Variable)
                else "give the optimizer a number, or a tg.Variable, before it is saved",
            )
        rate.assign(value)

    def __getattr__(self, name: str) -> Any:
        if name in ("learning_rate", "_learning_rate") and name not in vars(self):
            raise AttributeError(
                "the learning rate was a Python function, which no file can hold: in the steps "
                "that were saved it is what it was when they were traced. Give the optimizer a "
                "number, or a tg.Variable, to change it after loading"
            )
        return super().__getattr__(name)


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


def omitted_of(module: Module) -> Mapping[str, str]:
    """What a module that was loaded had lost when it was saved first."""
    return type(module)._omitted if isinstance(module, LoadedModule) else {}


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
    is_ours = name in _RESERVED or name.startswith("_tg_")
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


def new_module(
    name: str, attributes: Sequence[str], hidden: Sequence[str], omitted: dict[str, str]
) -> Any:
    """An empty module of a class of its own, with the name that the class had, for attributes of
    these names."""
    bases: tuple[type, ...] = (LoadedModule,)
    if set(attributes) >= ATTRIBUTES:
        bases = (_LoadedOptimizer, *bases)
    if "__call__" in attributes:
        bases = (_Callable, *bases)
    own = {"_hidden": frozenset(hidden), "_omitted": omitted, "__module__": __name__}
    return type(name, bases, own)()


def with_signatures(module: LoadedModule, signatures: Mapping[str, SignatureFunction]) -> Any:
    """The module, which has these signatures from now on."""
    vars(module)[_SIGNATURES] = types.MappingProxyType(dict(signatures))
    return module


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
            TraceError,
            f"{self._name}({', '.join(given)}) was not saved: "
            + (f"it was saved as\n    {known}" if known else "it was never traced before saving"),
            source=here(),
            fix="call it with arguments that fit, or trace it for these before saving: declare "
            "open sizes with input_signature=[tg.TensorSpec([None, ...])]",
        )


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
        return super()._request(*self._of_known_classes((args, kwargs)))

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
        return self

    def __copy__(self) -> SavedFunction:
        return self

    def __reduce__(self) -> NoReturn:
        fail(
            TraceError,
            f"the loaded function {self.name} cannot be pickled",
            source=here(),
            fix="save it with tg.saved_model.save",
        )


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
