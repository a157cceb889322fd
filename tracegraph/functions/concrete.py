"""ConcreteFunction: one trace of a function, as an object to call and inspect."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.later import opened
from tracegraph.core.shapes import ShapeVariable
from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.core.types import TensorType
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.effects.pieces import SizesChanged
from tracegraph.effects.record import Record
from tracegraph.errors import DTypeError, Mismatch, ShapeError, TraceError, fact_of, fail, shown
from tracegraph.execution.execute import Execution, input_types, note_call, run_nested, run_recorded
from tracegraph.execution.jax_function import Binding, jax_function
from tracegraph.execution.run_options import PLAIN, RunOptions
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import ASSIGNED, DEVICE_COSTS, NOTES, Graph, Tensor, get_type
from tracegraph.operands.conversion import as_tensor
from tracegraph.passes.specialise import bind_sizes, renamed
from tracegraph.signatures.results import Results
from tracegraph.signatures.signature import (
    ObjectKey,
    Request,
    VariableKey,
    is_tensor_key,
    laid_out_argument,
    layouts_here,
    size_names,
)
from tracegraph.state.variable import Variable, is_array
from tracegraph.tracing.name_scopes import dotted
from tracegraph.tracing.trace import Traced

if TYPE_CHECKING:
    from tracegraph.execution.buckets import Bucketing
    from tracegraph.memory_budgets.table import MemoryTable


@dataclasses.dataclass(frozen=True)
class StandIn:
    """The argument leaf that a Variable in a trace represents, and the Variable first passed
    there."""

    place: int
    first: Callable[[], Variable | None]


class _View:
    """A view of the trace's graph, with the name and arguments that it has there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, concrete: ConcreteFunction | None, owner: type | None = None) -> Any:
        view = getattr(Graph if concrete is None else concrete.graph, self._name)
        if concrete is None:
            return view

        @functools.wraps(view)
        def shown(*args: Any, **kwargs: Any) -> Any:
            # The graph refers to its trace weakly, and the function may be gone.
            _ = concrete
            return view(*args, **kwargs)

        return shown


class ConcreteFunction:
    """One trace of a function: a graph, callable with arguments that fit its signature."""

    def __init__(
        self,
        request: Request,
        traced: Traced,
        results: Results,
        stand_ins: dict[int, StandIn],
        run_options: RunOptions = PLAIN,
    ) -> None:
        #: What was traced: the structure of the arguments, their types and the Python values.
        self.request = request
        self.traced = traced
        traced.graph.cache[ASSIGNED] = traced.assigned_places  # lets pictures name the results
        traced.graph.cache[DEVICE_COSTS] = weakref.WeakMethod(self._device_costs)
        traced.graph.cache[NOTES] = functools.partial(_notes, weakref.ref(self))
        #: What runs at top level: the body, or one that also returns whether its results are
        #: finite; and the module that acts on that.
        self._running, self._numerics = traced, None
        if run_options.locate_numerics:
            self._numerics = opened("tracegraph.execution.numerics")
            self._running = self._numerics.with_located_numerics(traced)
        #: How the result tensors are packed for the caller.
        self.results = results
        self.name = request.signature.name
        #: By the identity of a traced Variable that represents an argument.
        self._stand_ins = stand_ins
        #: What `inspect` reads.
        self.__signature__ = request.signature.parameters
        self._executions: dict[tuple[TensorType, ...], Execution] = {}
        self._views: dict[tuple[str, ...], ConcreteFunction] = {}
        self._recompiling: Any = None  # a `Recompiling`, where sizes are open
        #: How arguments are padded to bucket sizes, if at all.
        self.bucketing: Bucketing | None = None
        #: How it is compiled to programs.
        self.run_options, buckets = run_options, run_options.buckets
        if buckets is not None and not traced.graph.is_static:
            bucketing = opened("tracegraph.execution.buckets").Bucketing
            self.bucketing = bucketing(traced, buckets, run_options, layouts_here(request))
        if not traced.graph.is_static:
            recompiling = opened("tracegraph.execution.recompiling").Recompiling
            given = self.name, traced, self._input_names(), buckets is not None
            self._recompiling = recompiling(*given)

    def __deepcopy__(self, memo: dict[int, Any]) -> ConcreteFunction:
        """The same trace with the copies of its Variables, as a copied method has its own."""
        given = self.traced.variables
        variables = tuple(v if id(v) in self._stand_ins else copy.deepcopy(v, memo) for v in given)
        sizes = bind_sizes([v.tensor_type for v in given], [v.tensor_type for v in variables])
        graph = renamed(self.graph, sizes, {}) if sizes else self.graph
        traced = dataclasses.replace(self.traced, graph=graph, variables=variables)
        new = type(self)(self.request, traced, self.results, self._stand_ins, self.run_options)
        memo[id(self)] = new
        return new

    # Properties.

    @property
    def graph(self) -> Graph:
        """The traced graph: arguments, then variables, then captured tensors."""
        return self.traced.graph

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of the graph."""
        return list(self.graph.inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The results in the graph."""
        return list(self.graph.outputs[: self.traced.result_count])

    @property
    def captured_inputs(self) -> list[Any]:
        """The Variables and tensors that the body captures."""
        return [*self.variables, *self.traced.captures]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The Variables that the body reads or assigns."""
        return tuple(map(self._first_given, self.traced.variables))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        return tuple(v for v in self.variables if v.trainable)

    @property
    def argument_types(self) -> tuple[TensorType, ...]:
        """The types of the tensor arguments, in order."""
        return self.graph.input_types[: self.traced.argument_count]

    @property
    def keywords(self) -> list[str]:
        """The names by which the tensor arguments alone can be passed, in order."""
        return self.request.tensor_keywords

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with a TensorSpec, as declared, for each tensor and Variable."""
        specs = iter(self._specs())
        rows = zip(self.request.keys, self.request.leaves, self.request.names, strict=True)
        leaves = [
            next(specs)
            if is_tensor_key(key)
            else self._spec(key.type, name)
            if isinstance(key, VariableKey)
            else leaf
            for key, leaf, name in rows
        ]
        return self.request.structure.pack(leaves)

    @property
    def structured_outputs(self) -> Any:
        """The structure of the result, with a TensorSpec for each tensor."""
        return self.results.pack([self._spec(y.type, None) for y in self.outputs])

    @property
    def function_type(self) -> inspect.Signature:
        """The signature of the Python function, annotated with what was traced: TensorSpecs, and
        Python values unchanged."""
        args, kwargs = self.structured_input_signature
        parameters = self.request.signature.parameters
        traced = parameters.bind(*args, **kwargs).arguments
        return parameters.replace(
            parameters=[
                parameter.replace(annotation=traced.get(name, parameter.annotation))
                for name, parameter in parameters.parameters.items()
            ],
            return_annotation=self.structured_outputs,
        )

    @property
    def output_shapes(self) -> Any:
        return self.results.pack([self._spec(y.type, None).shape for y in self.outputs])

    @property
    def output_dtypes(self) -> Any:
        return self.results.pack([y.type.dtype for y in self.outputs])

    def _specs(self) -> list[TensorSpec]:
        """A spec for each tensor argument."""
        rows = zip(
            self.argument_types,
            self.request.tensor_specs,
            self.keywords,
            strict=True,
        )
        return [
            self._spec(type, keyword)
            if spec is None or spec.shape.rank is None
            else TensorSpec.from_spec(spec, keyword)
            for type, spec, keyword in rows
        ]

    def _spec(self, type: TensorType, name: str | None) -> TensorSpec:
        """A type as a spec: open sizes are None, or have the names that the user chose."""
        if isinstance(type.shape, ShapeVariable):
            return TensorSpec(None, type.dtype, name)
        named = {size for spec in self.request.tensor_specs for size in size_names(spec)}
        sizes = [x if isinstance(x, int) else str(x) for x in type.shape]
        sizes = [x if isinstance(x, int) or x in named else None for x in sizes]
        return TensorSpec(sizes, type.dtype, name)

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """The signature as text: in short, how to call it; or, if `verbose`, blocks for the
        parameters, the results and the captures, as in TensorFlow; then any layouts that the graph
        states for inputs and results."""
        if not verbose:
            return f"{self.name}({', '.join(self._argument_texts())}) -> {self._results_text()}"
        rows, result = self._parameter_rows(), _structure_text(self.structured_outputs)
        captured = [f"{v.name}: {self._spec(v.tensor_type, None)!r}" for v in self.variables]
        captured += [repr(self._spec(x.type, None)) for x in self.traced.captures]
        blocks = {
            "Input Parameters": [f"{p.name} ({p.kind.name}): {text}" for p, text in rows],
            "Output Type": [result],
            "Captures": captured,
        }
        signature_layouts = opened("tracegraph.ops.layout").signature_layouts
        layouts = [*signature_layouts(self.graph, self.traced.result_count)]
        if layouts:
            blocks["Layouts"] = layouts
        lines = (
            (f"{head}:", *(f"  {x}" for x in body or ["None"])) for head, body in blocks.items()
        )
        return "\n".join(line for block in lines for line in block)

    def _parameter_rows(self) -> list[tuple[inspect.Parameter, str]]:
        """The parameters, with what each was in the trace; those without a type were not traced."""
        parameters = self.function_type.parameters.values()
        return [
            (p, _structure_text(p.annotation)) for p in parameters if p.annotation is not p.empty
        ]

    def _argument_texts(self) -> list[str]:
        types = iter(self.argument_types)
        rows = zip(self.request.keys, self.request.leaves, self.request.names, strict=True)
        return [
            f"{name}: {next(types)}" if is_tensor_key(key) else f"{name}={shown_value(key, leaf)}"
            for key, leaf, name in rows
        ]

    def _results_text(self) -> str:
        return f"({', '.join(str(y.type) for y in self.outputs)})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ABSENT:
            fact = f"a concrete function has no {name}: {_ABSENT[name][0]}"
            fail(AttributeError, fact, fix=_ABSENT[name][1])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        result = _structure_text(self.structured_outputs)
        return f"<ConcreteFunction {self.name}({_one_line(self._parameter_rows())}) -> {result}>"

    def __str__(self) -> str:
        return f"ConcreteFunction {self.name}\n{self.pretty_printed_signature()}"

    # Rendering: the views of its graph.

    _repr_html_ = _View()
    as_text = _View()
    get_operations = _View()
    summary = _View()
    to_dot = _View()
    to_html = _View()
    to_json = _View()
    to_mermaid = _View()
    to_model_explorer = _View()
    to_networkx = _View()

    def declared_as(self, request: Request) -> ConcreteFunction:
        """The same trace under the names that the TensorSpecs in `request` give its arguments."""
        keywords = tuple(request.tensor_keywords)
        if keywords == tuple(self.request.tensor_keywords) or request.types != self.request.types:
            return self
        view = self._views.get(keywords)
        if view is None:
            view = self._views[keywords] = copy.copy(self)
            view.request = dataclasses.replace(self.request, specs=request.specs)
        return view

    # Calling it.

    def computed_by(self, graph: Graph) -> ConcreteFunction:
        """The same trace with another graph of equal inputs and outputs."""
        traced = dataclasses.replace(self.traced, graph=graph)
        parts = self.request, traced, self.results, self._stand_ins
        return ConcreteFunction(*parts, self.run_options)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph. Pass arguments as to the function, or the tensors alone.

        Raises TraceError (a TypeError) whenever arguments do not fit.
        """
        _, tensors, variables = self._binding(args, kwargs)
        return self.run(tensors, variables)

    def as_jax(self) -> Callable[..., Any]:
        """The trace as a plain function of JAX arrays; see `Function.as_jax`.

        It takes the argument types of the trace and refuses others with TraceError.
        """
        return jax_function(self._binding, self)

    def _binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Binding:
        """The tensors and Variables of a call. Raises TraceError if they do not fit."""
        request = self._bound(args, kwargs)
        given = [request.leaves[i] for i in self.request.tensor_positions]
        tensors = self._all_checked(given, self.request.tensor_names)
        return Binding(self, tensors, self.variables_for(request))

    def _all_checked(self, values: Iterable[Any], names: Iterable[str]) -> list[Tensor]:
        """The tensor arguments of a call. Raises TraceError if they do not fit, alone or
        together."""
        rows = zip(values, names, self.argument_types, strict=True)
        tensors = [self._checked(*row) for row in rows]
        try:
            bind_sizes(self.argument_types, [x.type for x in tensors])
        except Mismatch as mismatch:
            self._refuse(mismatch.fact)
        if self.bucketing is None and self.request.layouts:
            rows = zip(tensors, self.request.layouts, self.request.tensor_names, strict=True)
            tensors = [
                x if layout is None else laid_out_argument(x, layout, self.name, name)
                for x, layout, name in rows
            ]
        return tensors

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """The request of a call, bound as for the Python function, else as tensors alone."""
        flat = self._flat(args, kwargs)
        try:
            bound = self.request.signature.request(args, kwargs)
        except TraceError:
            if flat is None:
                raise
            return flat
        misfit = self._misfit(bound)
        if misfit is None:
            return bound
        return flat or self._refuse(misfit)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request | None:
        """The request when only the tensors are passed, by position or by name."""
        positions = self.request.tensor_positions
        given: Sequence[Any] | None = None
        if not kwargs and len(args) == len(positions) and all(map(is_array, args)):
            given = args
        elif kwargs and not args:
            for names in self.request.flat_names:
                if len(names) == len(kwargs) and set(names) == set(kwargs):
                    given = [kwargs[name] for name in names]
        if given is None:
            return None
        leaves = list(self.request.leaves)
        for stand_in in self._stand_ins.values():
            leaves[stand_in.place] = stand_in.first()
        for place, value in zip(positions, given, strict=True):
            leaves[place] = value
        return dataclasses.replace(self.request, leaves=tuple(leaves))

    def _misfit(self, bound: Request) -> str | None:
        """What in a request differs from the trace, apart from the types of tensors."""
        if not bound.structure.matches(self.request.structure):
            own_structure = self.request.structure
            return f"the arguments are {bound.structure}, and {own_structure} is expected"
        own = zip(self.request.names, self.request.keys, self.request.leaves, strict=True)
        for (name, key, kept), given, leaf in zip(own, bound.keys, bound.leaves, strict=True):
            if not isinstance(key, TensorType) and given != key:
                value = (
                    f"another {key.text}" if isinstance(key, ObjectKey) else shown_value(key, kept)
                )
                return f"argument {name!r} is {shown(leaf)}, and the trace has {value}"
        return None

    def _checked(self, value: Any, name: str, expected: TensorType) -> Tensor:
        try:
            tensor = as_tensor(value, None if self._keeps_type(value) else expected.dtype)
        except (DTypeError, ShapeError) as error:
            self._refuse(f"argument {name!r} is expected to be {expected}: {fact_of(error)}")
        try:
            bind_sizes([expected], [tensor.type])
        except Mismatch:
            self._refuse(f"argument {name!r} is {tensor.type}, and {expected} is expected")
        return tensor

    def _keeps_type(self, value: Any) -> bool:
        """Whether an argument is used unchanged, rather than converted to the type of the trace."""
        return is_array(value)

    def _refuse(self, fact: str) -> NoReturn:
        fail(
            TraceError,
            f"{self.name}: {fact}",
            fix=f"call it with {self.pretty_printed_signature(verbose=False)}",
        )

    def run(
        self,
        arguments: Sequence[Tensor],
        variables: Sequence[Variable] | None = None,
        record: Record | None = None,
    ) -> Any:
        """The packed results for arguments that fit, in this thread's context.

        `variables` default to those of the trace; otherwise they replace them in this call.
        `record` holds what was done while the call was traced.
        """
        variables = self.variables if variables is None else variables
        if not current().is_top_level:
            return self.results.pack(run_nested(self.traced, arguments, variables))
        while True:
            try:
                return self._run_at_top_level(arguments, variables, record)
            except SizesChanged:
                continue

    def _run_at_top_level(
        self, arguments: Sequence[Tensor], variables: Sequence[Variable], record: Record | None
    ) -> Any:
        builder = current()
        if builder.recorders and self._is_watched(builder, arguments, variables):
            if self._recompiling is not None:
                types = [x.type for x in arguments]
                types = input_types(self.traced, types, variables)
                self._recompiling.compiles(types, is_watched=True)
            look = self._numerics and self._numerics.raise_if_wrong
            given = self._running, arguments, variables, record, look
            return self.results.pack(run_recorded(*given))
        plan = None if self.bucketing is None else self.bucketing.plan(arguments, variables)
        if plan is not None:
            return self.results.pack(plan.run(arguments, variables))
        buffers = [device_buffer(x) for x in arguments]
        execution = self.execution(tuple(map(get_type, arguments)), variables)
        results = execution.run(buffers, variables, record)
        is_own = variables is execution.variables
        callee = execution.callee if is_own else execution.callee_with(variables)
        callee.remember(arguments, results, here())
        if builder.recorders:
            note_call(execution, arguments, variables, results)
        return self.results.pack(results)

    def _is_watched(
        self, builder: Any, arguments: Sequence[Tensor], variables: Sequence[Variable]
    ) -> bool:
        for variable in variables:
            variable.watch_by(builder)
        inputs = [*arguments, *self.traced.captures, *(v.handle for v in variables)]
        return builder.follows(inputs)

    def variables_for(self, request: Request) -> Sequence[Variable]:
        """The variables of a call: arguments replace the Variables that represent them."""
        if not self._stand_ins:
            return self.traced.variables
        return [self._given(v, request) for v in self.traced.variables]

    def _given(self, variable: Variable, request: Request) -> Variable:
        stand_in = self._stand_ins.get(id(variable))
        if stand_in is None:
            return variable
        given = request.leaves[stand_in.place]
        if given is None:
            name = self.request.names[stand_in.place]
            self._refuse(f"the variable {name!r} that was traced is gone, and none is given")
        return given

    def _first_given(self, variable: Variable) -> Variable:
        """The traced Variable, if `variable` represents an argument and the first one is still
        alive."""
        stand_in = self._stand_ins.get(id(variable))
        first = None if stand_in is None else stand_in.first()
        return variable if first is None else first

    def argument_place(self, variable: Variable) -> int | None:
        """The position among the argument leaves that a traced Variable represents, if any."""
        stand_in = self._stand_ins.get(id(variable))
        return None if stand_in is None else stand_in.place

    def captures_one_of(self, variables: Sequence[Variable]) -> bool:
        """Whether the body captures any of the variables."""
        given = {id(v) for v in variables}
        return any(id(v) in given for v in self.traced.variables)

    @property
    def is_of_one_variable(self) -> bool:
        """Whether the body tested which Variable an argument is, so that it fits no other."""
        return any(v.is_identified for v in self.traced.variables)

    def memory(self) -> MemoryTable:
        """The memory that this trace's program needs; see `Function.memory`. Raises ShapeError for
        open sizes."""
        for type in self.argument_types:
            if not type.is_static:
                fail(
                    ShapeError,
                    f"{self.name}: memory is that of a compiled program, and an argument is {type}",
                    fix="pass TensorSpecs whose sizes are known",
                )
        return self.execution(self.argument_types).memory()

    def execution(
        self, types: Sequence[TensorType], variables: Sequence[Variable] | None = None
    ) -> Execution:
        """The compiled body for arguments of these types, and the current shapes of the
        Variables."""
        variables = self.traced.variables if variables is None else variables
        types = input_types(self.traced, types, variables)
        found = self._executions.get(types)
        if found is None:
            with backend.compiling:
                found = self._executions.get(types)
                if found is None:
                    if self._recompiling is not None:
                        self._recompiling.compiles(types)
                    kind = self._numerics.LocatedExecution if self._numerics else Execution
                    found = self._executions[types] = kind(self._running, types, self.run_options)
        return found

    def compiled(self) -> list[tuple[str, float]]:
        """The argument types that this trace is currently compiled for, as text, with the compile
        time of each in seconds; the text says if they are padded to bucket sizes, and if the
        program came from beside a saved model."""
        padded = {} if self.bucketing is None else self.bucketing.executions
        found = []
        for note, executions in ((", padded", padded), ("", self._executions)):
            for types, execution in list(executions.items()):
                seconds = execution.compile_seconds
                if seconds is not None:
                    pairs = zip(self.request.tensor_names, types)
                    text = ", ".join(f"{name}: {type}" for name, type in pairs)
                    origin = " from the saved programs" if execution.is_of_saved_model else ""
                    found.append((f"{self.name}({text}){note}{origin}", seconds))
        return found

    def program_notes(self) -> list[str]:
        """Notes on loops of the latest run's program, or of the one for the signature's sizes, that
        the graph does not have or has in another form."""
        known = [*self._executions.values()]
        if not known and not self.graph.is_static:
            return []
        execution = known[-1] if known else self.execution(self.argument_types)
        return execution.notes()

    def _device_costs(self) -> Any:
        """The cost, on each of several devices, of the latest run or of one at the signature's
        sizes."""
        known = [*self._executions.values()]
        if not known and not self.graph.is_static:
            fail(
                TraceError,
                f"summary: {self.name} has open sizes and did not run",
                fix="call it once before",
            )
        execution = known[-1] if known else self.execution(self.argument_types)
        return execution.device_costs()

    def _input_names(self) -> list[str]:
        """The inputs of the graph as messages name them."""
        arguments = [f"argument {name!r}" for name in self.request.tensor_names]
        handles = self.graph.inputs[len(arguments) : len(arguments) + len(self.traced.variables)]
        return [*arguments, *(f"Variable {dotted(x.name or '')!r}" for x in handles)]


def _notes(reference: Callable[[], ConcreteFunction | None]) -> list[str]:
    concrete = reference()
    return [] if concrete is None else concrete.program_notes()


_CAPTURES = (
    "what was captured stays",
    "pass it as an argument, or keep it in a tg.Variable and assign it",
)
#: Names of TensorFlow's concrete functions that are missing here: why, and what to do instead.
_ABSENT = {
    "function_def": ("graphs are not protocol buffers", "use its .graph and .graph.as_text()"),
    "inference_fn": ("it is its own graph", "use its .graph"),
    "add_to_graph": ("graphs are made by tracing", "call it inside another @tg.function"),
    "set_external_captures": _CAPTURES,
    "replace_capture_with_deferred_capture": _CAPTURES,
}


def _one_line(rows: Sequence[tuple[inspect.Parameter, str]]) -> str:
    """Parameters and what they were, as a signature, with the markers that separate their kinds."""
    parts, is_open = [], True
    for parameter, text in rows:
        if parameter.kind is parameter.KEYWORD_ONLY and is_open:
            parts.append("*")
        is_open = is_open and parameter.kind not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        )
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        parts.append(f"{stars.get(parameter.kind, '')}{parameter.name}: {text}")
    return ", ".join(parts)


def _structure_text(value: Any) -> str:
    """A structure of TensorSpecs and Python values in TensorFlow's notation."""
    if isinstance(value, TensorSpec):
        return repr(value)
    if isinstance(value, Mapping):
        rows = (f"[{key!r}, {_structure_text(x)}]" for key, x in value.items())
        return f"Dict[{', '.join(rows)}]"
    if isinstance(value, (list, tuple)):
        name = {list: "List", tuple: "Tuple"}.get(type(value), type(value).__name__)
        return f"{name}[{', '.join(map(_structure_text, value))}]"
    return f"Literal[{shown(value)}]"


def shown_value(key: Any, leaf: Any) -> str:
    """A Python value as a signature shows it; only the type if traces do not keep it alive."""
    if isinstance(key, ObjectKey):
        return f"<{key.text}>"
    return f"<Variable {key.type}>" if isinstance(key, VariableKey) else shown(leaf)
