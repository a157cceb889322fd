"""Functions without their source: only their saved traces."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

from tracegraph import nest
from tracegraph.archive.value_encoding import Records, record_fields, record_kind
from tracegraph.core.types import TensorType
from tracegraph.errors import ShapeError, SignatureError, TraceError, fact_of, fail, fix_of
from tracegraph.execution.jax_function import Binding
from tracegraph.functions.body import Body
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.saved_model.call_errors import refuse_call
from tracegraph.signatures.results import Results
from tracegraph.signatures.signature import Request, VariableKey
from tracegraph.state.variable import Variable


class SavedFunction(Function):
    """A loaded function: the traces that existed when it was saved, and nothing else."""

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
        """Adds a loaded trace."""
        self._traces.add(concrete)

    def _may_trace_again(self, error: ShapeError, concrete: ConcreteFunction) -> bool:
        return False

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        try:
            request = super()._request(*self._of_known_classes((args, kwargs)))
        except SignatureError:
            raise
        except TraceError as error:  # TensorFlow raises ValueError for a loaded function
            fact, fix = fact_of(error), fix_of(error)
            fail(SignatureError, fact, fix=fix, cause=error.__cause__)
        return self._with_values(request) if request.variables else request

    def _with_values(self, request: Request) -> Request:
        """The request with the values of Variables where no trace has a Variable, and one has a
        tensor: no trace for Variables can be made."""
        known = [x.request for x in self.traces if x.request.structure.matches(request.structure)]
        leaves, keys = list(request.leaves), list(request.keys)
        for place, leaf in enumerate(leaves):
            saved = {type(x.keys[place]) for x in known}
            if isinstance(leaf, Variable) and VariableKey not in saved and TensorType in saved:
                leaves[place] = as_tensor(leaf)
                keys[place] = leaves[place].type
        return dataclasses.replace(request, leaves=tuple(leaves), keys=tuple(keys))

    def clear_cache(self) -> None:
        """Discards compiled programs. The traces stay, since they could not be recreated."""
        self._call_plans.clear()

    def _of_known_classes(self, value: Any, depth: int = 0) -> Any:
        """Converts namedtuples and dataclasses, in containers of any kind, to the loaded classes
        with the same name and fields. What is nested too deeply stays: the call refuses it."""
        opener = None if value is None or depth > nest.DEEPEST else nest.opener_of(value)
        if opener is None:
            return value
        kind = record_kind(value)
        if kind is not None:
            fields = record_fields(value)
            cls = self._records.find(kind, type(value).__name__, tuple(name for name, _ in fields))
            if cls is not None:
                return cls(*[self._of_known_classes(item, depth + 1) for _, item in fields])
        container, items = opener(value)
        pairs = [(item, self._of_known_classes(item, depth + 1)) for item in items]
        is_known = all(item is found for item, found in pairs)
        return value if is_known else container.build([found for _, found in pairs])

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedFunction:
        """The same traces, with the copies of their Variables."""
        new = SavedFunction(self._name, self.function_spec, self._records, **self._options)
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
            fix="save it with tg.saved_model.save",
        )


class _SavedBody(Body):
    """The body of a function without source: only the saved traces exist."""

    def __init__(self, owner: SavedFunction) -> None:
        super().__init__(owner.python_function, owner.signature)
        self._owner = owner

    def trace(self, request: Request) -> NoReturn:
        refuse_call(self._name, request, self._owner.traces)


def _stub(name: str, parameters: inspect.Signature) -> Any:
    """A Python function with these parameters, in place of the missing source."""

    def stub(*args: Any, **kwargs: Any) -> NoReturn:
        fail(
            TraceError,
            f"the Python code of {name} was not saved: its graphs were",
            fix="call the loaded function itself",
        )

    stub.__name__ = stub.__qualname__ = name
    stub.__signature__ = parameters  # type: ignore[attr-defined]
    return stub


class SignatureFunction(ConcreteFunction):
    """A saved signature: a concrete function that takes tensors by name and returns a dict of
    tensors by name.

    If it takes a single tensor, that may also be passed by position.
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
        parts = concrete.request, concrete.traced, results, concrete._stand_ins
        super().__init__(*parts, concrete.run_options)
        self._executions = concrete._executions  # the two share compiled programs
        self.name = name
        #: The function as traced, with its original argument and result structures.
        self.concrete = concrete
        self.input_names = tuple(inputs)
        self.output_names = tuple(outputs)
        #: The path of the signature as StableHLO, if it was also saved as a program.
        self.program = program

    def __deepcopy__(self, memo: dict[int, Any]) -> SignatureFunction:
        names = self.input_names, self.output_names
        concrete = copy.deepcopy(self.concrete, memo)
        return SignatureFunction(self.name, concrete, *names, self.program)

    @property
    def keywords(self) -> list[str]:
        """The names of its tensor arguments, in order."""
        return list(self.input_names)

    @property
    def structured_input_signature(self) -> Any:
        """`((), {name: TensorSpec})`."""
        return (), dict(zip(self.input_names, self._specs(), strict=True))

    @property
    def structured_outputs(self) -> Any:
        """`{name: TensorSpec}`."""
        rows = zip(self.output_names, self.outputs, strict=True)
        return self.results.pack([self._spec(y.type, name) for name, y in rows])

    @property
    def function_type(self) -> inspect.Signature:
        """The signature of a call by name; names that are no Python identifiers go in `inputs`."""
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
        """The tensors of a call. Raises TraceError (a TypeError) for names that are not in the
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
                fix=f"call it as {self!r} says",
            )
        tensors = self._all_checked((kwargs[name] for name in names), names)
        return Binding(self, tensors, self.variables_for(self.request))

    def _keeps_type(self, value: Any) -> bool:
        """Converts arrays as it does lists: a signature is declared, like an input_signature."""
        return isinstance(value, (Tensor, Variable))

    def __repr__(self) -> str:
        return f"<signature {self.pretty_printed_signature(verbose=False)}>"

    def __str__(self) -> str:
        return f"signature {self.name}\n{self.pretty_printed_signature()}"


class _NamedResults(Results):
    """The results of a signature: a dict, in the order of the one that the function returned."""

    def __init__(self, results: Results, names: Sequence[str]) -> None:
        self.structure, self.flags = results.structure, results.flags
        self._names = names
        order = self.structure.packing_order()
        self._order = order if len(order) == len(names) else range(len(names))

    def pack(self, tensors: Iterable[Any]) -> dict[str, Any]:
        found = list(tensors)
        return {self._names[i]: found[i] for i in self._order}

    def tensors(self, packed: Any) -> list[Any]:
        return [packed[name] for name in self._names]

    def packer(self) -> Callable[[Iterable[Any]], Any]:
        return self.pack

    @property
    def is_one_tensor(self) -> bool:
        return False


def traces_of(function: Function | ConcreteFunction) -> Sequence[ConcreteFunction]:
    """The traces of a function; a concrete function is its only one."""
    return [function] if isinstance(function, ConcreteFunction) else function.traces


def variables_of(function: Function | ConcreteFunction) -> Iterator[Variable]:
    """The Variables used by the traces of a function."""
    return (variable for trace in traces_of(function) for variable in trace.traced.variables)
