"""Body: a Python function, traced on request."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from tracegraph import nest
from tracegraph.autograph.scope import as_traced
from tracegraph.core.shapes import Dim, ShapeVariable, axis_count, element_count
from tracegraph.core.source import unsourced
from tracegraph.core.types import TensorType
from tracegraph.errors import SignatureError, fail
from tracegraph.execution.run_options import PLAIN, RunOptions
from tracegraph.functions.concrete import ConcreteFunction, StandIn
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph
from tracegraph.ops.layout import MeshQuestion
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import bound_names, names_in, renamed, with_sizes
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.signatures.signature import Request, Signature, SizeType, VariableKey
from tracegraph.state.user_names import Paths
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import scopes_of
from tracegraph.tracing.trace import Trace, refuse_creation, restored, with_checked_numerics


class Body:
    """The Python function, how often it was traced, and whether it may still create Variables."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        check_bounds: bool = False,
        check_numerics: bool = False,
        converts: bool = False,
        run_options: RunOptions = PLAIN,
    ) -> None:
        self.tracing_count = 0
        self._converts = converts
        self.run_options = run_options
        self._check_bounds = check_bounds
        self._check_numerics = check_numerics
        self._function = function
        self._name = signature.name
        self._signature = signature
        self._may_create = True

    def trace(self, request: Request) -> ConcreteFunction:
        """The trace for a request; a second trace if the first created Variables."""
        return self._trace(request, self._may_create)

    def _trace(self, request: Request, may_create: bool) -> ConcreteFunction:
        return restored(lambda: self._traced(request, may_create))

    def _traced(self, request: Request, may_create: bool) -> ConcreteFunction:
        trace = Trace("lambda_" if self._name == "<lambda>" else self._name)
        trace.may_create = may_create
        trace.checks_bounds = self._check_bounds
        trace.converts = self._converts
        trace.actual = request.actual_tensors()
        trace.paths = Paths(self._function)
        own = _own_sizes(request.types, trace.sizes_around())
        with trace, unsourced(), scopes_of(trace.paths), MeshQuestion() as mesh:
            leaves, stand_ins = _placeholders(trace, request, _renaming(own))
            args, kwargs = request.structure.pack(leaves)
            self.tracing_count += 1
            result = as_traced(self._function, leaves)(*args, **kwargs)
            self._check_untouched((args, kwargs), leaves, request.structure)
            found, structure = result_leaves(result, self._name, self._signature.place)
            tensors = [y for y in found if y is not None]
            trace.take_sizes()
            traced = trace.traced(tensors)
        self._may_create = False if not trace.created else self._may_create
        if trace.created:
            return self._trace_after_creation(trace, request)
        passed("traced", traced.graph)
        graph = _with_usual_names(simplify(traced.graph), own)
        traced = dataclasses.replace(traced, graph=graph)
        options = self.run_options.of_trace(traced)
        if self._check_numerics or options.locate_numerics != self.run_options.locate_numerics:
            traced = with_checked_numerics(traced)
            passed("checked", traced.graph)
        kept, results = request.without_values(), Results(structure, found)
        if mesh.is_asked:
            kept = kept.of_mesh()
        return ConcreteFunction(kept, traced, results, stand_ins, options)

    def _trace_after_creation(self, trace: Trace, request: Request) -> ConcreteFunction:
        """The first call created Variables: traces again, now that they exist."""
        for reference, source in trace.created:
            if reference() is None:
                refuse_creation(trace, source)
        self._may_create = False
        return self._trace(request, may_create=False)

    def _check_untouched(self, packed: Any, leaves: list[Any], structure: nest.Structure) -> None:
        if _difference(structure.pack(leaves), packed) is None:
            return
        (args, kwargs), (now, named) = structure.pack(leaves), packed
        names = [*self._signature.positional(len(args)), *kwargs]
        for name, old, new in zip(names, (*args, *kwargs.values()), (*now, *named.values())):
            difference = _difference(old, new)
            if difference is not None:
                copied = type(old).__name__ if type(old) in (list, dict) else "copy.copy"
                fail(
                    SignatureError,
                    f"{self._name} changed its argument {name!r} in place: {difference}",
                    source=self._signature.place,
                    fix=f"change a copy: {name} = {copied}({name})",
                )


def _own_sizes(types: Iterable[TensorType], around: Set[str]) -> dict[str, str]:
    """New names for those open sizes of arguments whose names mean other sizes `around` the trace:
    its code may use both."""
    names = set[str]().union(*(bound_names(type) for type in types if not type.is_static))
    own: dict[str, str] = {}
    for name in sorted(names & around):
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        own[name] = next(new for new in numbered if new not in around)
    return own


def _renaming(names: Mapping[str, str]) -> dict[str, Any]:
    """The sizes, and shapes, that replace those of the names which are the keys."""
    sizes: dict[str, Any] = {}
    for old, new in names.items():
        if not old.startswith("*"):
            sizes[old] = Dim.named(new)
            continue
        shape = ShapeVariable(new[1:])
        sizes[old] = shape
        sizes[f"{old[1:]}.size"], sizes[f"{old[1:]}.rank"] = element_count(shape), axis_count(shape)
    return sizes


def _with_usual_names(graph: Graph, own: Mapping[str, str]) -> Graph:
    """The graph with the names that stand in the key of its trace, which are the keys of `own`;
    unless it uses sizes of these names from around it."""
    from_around = set[str]().union(*(names_in(x.type) for x in graph.inputs)) & own.keys()
    if not own or from_around:
        return graph
    return renamed(graph, _renaming({new: old for old, new in own.items()}), {})


def _placeholders(
    trace: Trace, request: Request, own: Mapping[str, Any]
) -> tuple[list[Any], dict[int, StandIn]]:
    """The arguments to call the Python function with: graph inputs for tensors, open sizes under
    their `own` names, one stand-in for each distinct Variable, and Python values unchanged. Also
    the stand-ins, by identity."""
    leaves: list[Any] = []
    variables: dict[Any, Variable] = {}
    stand_ins: dict[int, StandIn] = {}
    declared = iter(zip(request.tensor_keywords, request.tensor_specs, strict=True))
    for place, (leaf, key) in enumerate(zip(request.leaves, request.keys, strict=True)):
        if isinstance(key, TensorType):
            keyword, spec = next(declared)
            key = with_sizes(key, own)
            leaf = trace.argument(TensorType(key.dtype, key.shape), keyword)
            if isinstance(key, SizeType):
                leaf = key.value
            elif spec is not None and spec.layout is not None:
                leaf = spec.layout.op(leaf)
        elif isinstance(key, VariableKey):
            if key not in variables:
                variables[key] = leaf.stand_in()
                trace.paths.add(variables[key], request.names[place])
                stand_ins[id(variables[key])] = StandIn(place, weakref.ref(leaf))
            leaf = variables[key]
        leaves.append(leaf)
    return leaves, stand_ins


def _difference(before: Any, after: Any) -> str | None:
    """How a structure was mutated in place; None if it was not."""
    old, old_structure = nest.flatten_structure(before)
    new, new_structure = nest.flatten_structure(after)
    if not old_structure.matches(new_structure):
        return f"it was {old_structure} and is now {new_structure}, where '*' is a value"
    same = all(a is b for a, b in zip(old, new, strict=True))
    return None if same else f"an item of {old_structure} was replaced"
