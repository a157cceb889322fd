"""What is loaded: Modules without their classes, and functions without their source."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
import unicodedata
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from keyword import iskeyword
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
from tracegraph.optimizers import ATTRIBUTES, rate_at
from tracegraph.runtime.body import Body
from tracegraph.runtime.concrete import ConcreteFunction, shown_value
from tracegraph.runtime.function import Function
from tracegraph.runtime.jax_function import Binding
from tracegraph.runtime.module import Module
from tracegraph.runtime.results import Results
from tracegraph.runtime.signature import Request, is_tensor_key
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


#: What the `__call__` of a class was that is omitted; one of an instance alone calls nothing.
CALLED_IN_PYTHON = "a Python function"


class _Uncallable(LoadedModule):
    """A loaded module whose class was called in Python, as layers are: that is no data."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fail(
            TraceError,
            f"the module was called in Python: {type(self).__name__}.__call__ was no @tg.function, "
            "and was not saved",
            source=here(),
            fix="decorate it with @tg.function and trace it before saving, or save and call a "
            "@tg.function that calls the module",
        )


class _Wrapper(LoadedModule):
    """Stands for a dict, list or function that was saved."""

    @_Yielding
    def content(self) -> Any:
        """The dict, list or function."""
        return vars(self)["content_"]


class _Container(_Wrapper):
    """Stands for a dict or a list."""

    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.content)

    def __contains__(self, item: Any) -> bool:
        return item in self.content

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.content)


class _DictWrapper(_Container):
    """Stands for a dict, whose entries with names are attributes too."""

    def keys(self) -> KeysView[Any]:
        return self.content.keys()

    def values(self) -> ValuesView[Any]:
        return self.content.values()

    def items(self) -> ItemsView[Any, Any]:
        return self.content.items()

    def get(self, key: Any, default: Any = None) -> Any:
        return self.content.get(key, default)

    def __getattr__(self, name: str) -> Any:
        content = vars(self).get("content_", {})
        return content[name] if name in content else super().__getattr__(name)


class _ListWrapper(_Container):
    """Stands for a list."""

    def index(self, *args: Any) -> int:
        return self.content.index(*args)

    def count(self, value: Any) -> int:
        return self.content.count(value)


Mapping.register(_DictWrapper)  # type: ignore[attr-defined]
Sequence.register(_ListWrapper)  # type: ignore[attr-defined]


class _FunctionWrapper(_Callable, _Wrapper):
    """Stands for a function, whose methods and attributes it has."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.content.name

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The Variables that its traces use."""
        function = self.content
        traces = [function] if isinstance(function, ConcreteFunction) else function.traces
        return tuple({id(v): v for trace in traces for v in trace.variables}.values())

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore have a meaning for this object: how it is copied, for one.
        content = None if name.startswith("_") else vars(self).get("content_")
        return getattr(content, name) if hasattr(content, name) else super().__getattr__(name)


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
    elif omitted.get("__call__") == CALLED_IN_PYTHON:
        bases = (_Uncallable, *bases)
    own = {"_hidden": frozenset(hidden), "_omitted": omitted, "__module__": __name__}
    return type(name, bases, own)()


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
    if isinstance(content, (Function, ConcreteFunction)):
        module: LoadedModule = _FunctionWrapper()
        vars(module)["__call__"] = content
    else:
        module = _DictWrapper() if isinstance(content, dict) else _ListWrapper()
    vars(module)["content_"] = content
    return module


class _SavedBody(Body):
    """The body of a function whose source is not there: it has the traces that were saved."""

    def __init__(self, owner: SavedFunction) -> None:
        super().__init__(owner.python_function, owner.signature)
        self._owner = owner

    def trace(self, request: Request) -> NoReturn:
        rows = zip(request.names, request.keys, request.leaves, strict=True)
        given = [
            f"{name}: {key}" if is_tensor_key(key) else f"{name}={shown_value(key, leaf)}"
            for name, key, leaf in rows
        ]
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


class _NamedResults(Results):
    """The results of a signature: a dict, in the order of the names."""

    def __init__(self, results: Results, names: Sequence[str]) -> None:
        self.structure, self.flags = results.structure, results.flags
        self._names = names

    def pack(self, tensors: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(self._names, tensors, strict=True))

    def tensors(self, packed: Any) -> list[Any]:
        return list(packed.values())

    def packer(self) -> Callable[[Iterable[Any]], Any]:
        return self.pack

    @property
    def is_one_tensor(self) -> bool:
        return False


class SignatureFunction(ConcreteFunction):
    """A saved signature: a concrete function that takes tensors by name, and returns a dict of
    tensors by name.

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
        results = _NamedResults(concrete.results, tuple(outputs))
        super().__init__(concrete.request, concrete.traced, results, concrete._stand_ins)
        self._executions = concrete._executions  # what is compiled for one serves both
        self.name = name
        #: The function as it was traced, which takes and returns the structures that it did.
        self.concrete = concrete
        self.input_names = tuple(inputs)
        self.output_names = tuple(outputs)
        #: Where the signature lies as StableHLO, if it was saved as a program too.
        self.program = program

    @property
    def keywords(self) -> list[str]:
        """The names of the tensors that it takes, in order."""
        return list(self.input_names)

    @property
    def structured_input_signature(self) -> Any:
        """`((), {name: TensorSpec})`."""
        return (), dict(zip(self.input_names, self._specs(), strict=True))

    @property
    def structured_outputs(self) -> Any:
        """`{name: TensorSpec}`."""
        rows = zip(self.output_names, self.outputs, strict=True)
        return {name: self._spec(y.type, name) for name, y in rows}

    @property
    def function_type(self) -> inspect.Signature:
        """The signature of a call by name; names that Python does not write stand in `inputs`."""
        _, specs = self.structured_input_signature
        kind = inspect.Parameter.KEYWORD_ONLY
        named = {n: s for n, s in specs.items() if n.isidentifier() and not iskeyword(n)}
        parameters = [inspect.Parameter(n, kind, annotation=s) for n, s in named.items()]
        if len(named) < len(specs):
            rest = next(x for x in ("inputs", "inputs_", "inputs__") if x not in named)
            parameters.append(inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD))
        return inspect.Signature(parameters, return_annotation=self.structured_outputs)

    def _argument_texts(self) -> list[str]:
        rows = zip(self.input_names, self.argument_types, strict=True)
        return [f"{name}: {type}" for name, type in rows]

    def _results_text(self) -> str:
        rows = zip(self.output_names, self.outputs, strict=True)
        return "{" + ", ".join(f"{name}: {y.type}" for name, y in rows) + "}"

    def _binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Binding:
        """The tensors of a call. Raises TraceError (a TypeError) for other names than those of the
        signature."""
        names = self.input_names
        if len(args) == 1 and not kwargs and len(names) == 1:
            kwargs = {names[0]: args[0]}
        elif args or set(kwargs) != set(names):
            given = [f"{len(args)} by position"] if args else []
            fail(
                TraceError,
                f"the signature {self.name!r} takes {', '.join(names) or 'nothing'} by name, "
                f"and was given {', '.join([*given, *kwargs]) or 'nothing'}",
                source=here(),
                fix=f"call it as {self!r} says",
            )
        tensors = self._all_checked((kwargs[name] for name in names), names)
        return Binding(self, tensors, self.variables_for(self.request))

    def __repr__(self) -> str:
        return f"<signature {self.pretty_printed_signature(verbose=False)}>"

    def __str__(self) -> str:
        return f"signature {self.name}\n{self.pretty_printed_signature()}"
