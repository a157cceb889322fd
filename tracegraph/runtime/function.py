"""`@tg.function`: traces a Python function once per signature and runs the compiled graph."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.errors import (
    DTypeError,
    Mismatch,
    ShapeError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import builder_of_thread, current
from tracegraph.ir.tensor import Graph, Tensor, get_buffer, get_type
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import bind_sizes
from tracegraph.runtime import backend
from tracegraph.runtime.convert import as_tensor
from tracegraph.runtime.execute import Execution, input_types, run_nested, run_recorded
from tracegraph.runtime.pending import device_buffer, raise_failures, run_failure
from tracegraph.runtime.retracing import RetraceExplanation, Retracing
from tracegraph.runtime.signature import (
    LITERALS,
    InputSignature,
    ObjectKey,
    Request,
    Signature,
    SpecTypes,
    VariableKey,
    canonical_keys,
    is_tensor_key,
    leaf_key,
)
from tracegraph.runtime.trace import (
    Trace,
    Traced,
    refuse_creation,
    traces_of_thread,
    tracing,
)
from tracegraph.runtime.variable import Variable
from tracegraph.shapes import Dim, ShapeVariable
from tracegraph.source import Source, here, place_of_thread, unsourced
from tracegraph.tensorshape import TensorShape, TensorSpec
from tracegraph.types import TensorType

#: Traces kept per function, and signatures of its fast path.
_TRACE_LIMIT = 256
_FAST_LIMIT = 1024

_settings = {"run_eagerly": False}


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes every `@tg.function` run its Python body at each call, without a trace."""
    _settings["run_eagerly"] = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether `run_functions_eagerly(True)` is in force."""
    return _settings["run_eagerly"]


class ConcreteFunction:
    """One trace of a function: a graph, callable with arguments that fit its signature."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        request: Request,
        traced: Traced,
        results: nest.Structure,
        result_leaves: Sequence[Any],
        stand_ins: dict[int, int],
    ) -> None:
        self._signature = signature
        #: Positions of Variables among the arguments, by the id of what stood for each.
        self._stand_ins = stand_ins
        self._request = request
        self.name = name
        self.traced = traced
        self._results = results
        #: One entry per leaf of the result: True for a tensor, False for None.
        self._is_tensor = tuple(leaf is not None for leaf in result_leaves)
        self._executions: dict[tuple[TensorType, ...], Execution] = {}

    # What it is.

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
        """The Variables and tensors that the body uses from outside."""
        return [*self.traced.variables, *self.traced.captures]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The Variables that the body reads or assigns."""
        return self.traced.variables

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        return tuple(v for v in self.variables if v.trainable)

    @property
    def argument_types(self) -> tuple[TensorType, ...]:
        """The types of the tensor arguments, in order."""
        return self.graph.input_types[: self.traced.argument_count]

    @property
    def structured_input_signature(self) -> Any:
        """`(args, kwargs)` with a TensorSpec for each tensor."""
        names = iter(self._signature.leaf_names(self._request))
        types = iter(self.argument_types)
        leaves = [
            _spec(next(types), name) if isinstance(key, TensorType) else leaf
            for key, leaf, name in zip(self._request.keys, self._request.leaves, names, strict=True)
        ]
        return self._request.structure.pack(leaves)

    @property
    def structured_outputs(self) -> Any:
        """The result's structure with a TensorSpec for each tensor."""
        return self._packed([_spec(y.type, None) for y in self.outputs])

    @property
    def output_shapes(self) -> Any:
        return self._packed([_spec(y.type, None).shape for y in self.outputs])

    @property
    def output_dtypes(self) -> Any:
        return self._packed([y.type.dtype for y in self.outputs])

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """The signature as text: parameters, results and, if `verbose`, what is captured."""
        names = self._signature.leaf_names(self._request)
        types = iter(self.argument_types)
        rows = [
            f"{name}: {next(types)}" if is_tensor_key(key) else f"{name}={_shown(key, leaf)}"
            for key, leaf, name in zip(self._request.keys, self._request.leaves, names, strict=True)
        ]
        results = ", ".join(str(y.type) for y in self.outputs)
        head = f"{self.name}({', '.join(rows)}) -> ({results})"
        if not verbose:
            return head
        captured = [f"  {v.name}: {v.tensor_type}" for v in self.variables]
        captured += [f"  {x.type}" for x in self.traced.captures]
        return "\n".join([head, *(["captures:", *captured] if captured else [])])

    def __repr__(self) -> str:
        return f"<ConcreteFunction {self.pretty_printed_signature(verbose=False)}>"

    def __str__(self) -> str:
        return f"ConcreteFunction {self.pretty_printed_signature()}"

    # Calling it.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph. Arguments are given as to the function, or the tensors alone.

        Raises TraceError (a TypeError) for arguments that do not fit, always.
        """
        values = zip(self._bound(args, kwargs), self._tensor_names(), self.argument_types)
        tensors = [self._checked(*row) for row in values]
        try:
            bind_sizes(self.argument_types, [x.type for x in tensors])
        except Mismatch as mismatch:
            self._refuse(mismatch.fact)
        return self.run(tensors)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        keys = self._request.keys
        positions = self._request.tensor_positions
        if not kwargs and len(args) == len(positions) != len(self._request.leaves):
            return list(args)
        by_name = dict(zip(self._tensor_names(), positions, strict=True))
        if kwargs and not args and set(kwargs) == set(by_name):
            return [kwargs[name] for name in by_name]
        bound = self._signature.request(args, kwargs)
        if bound.structure != self._request.structure:
            own_structure = self._request.structure
            self._refuse(f"the arguments are {bound.structure}, and {own_structure} is expected")
        names = self._signature.leaf_names(self._request)
        own_leaves = self._request.leaves
        for name, key, leaf, own, kept in zip(names, bound.keys, bound.leaves, keys, own_leaves):
            if not isinstance(own, TensorType) and key != own:
                value = f"another {own.text}" if isinstance(own, ObjectKey) else _shown(own, kept)
                self._refuse(f"argument {name!r} is {shown(leaf)}, and the trace has {value}")
        return [bound.leaves[i] for i in positions]

    def _tensor_names(self) -> list[str]:
        names = self._signature.leaf_names(self._request)
        return [names[i] for i in self._request.tensor_positions]

    def _checked(self, value: Any, name: str, expected: TensorType) -> Tensor:
        is_typed = isinstance(value, (Tensor, Variable, np.ndarray, np.generic))
        try:
            tensor = as_tensor(value, None if is_typed else expected.dtype)
        except (DTypeError, ShapeError) as error:
            self._refuse(f"argument {name!r} is expected to be {expected}: {fact_of(error)}")
        try:
            bind_sizes([expected], [tensor.type])
        except Mismatch:
            self._refuse(f"argument {name!r} is {tensor.type}, and {expected} is expected")
        return tensor

    def _refuse(self, fact: str) -> NoReturn:
        fail(
            TraceError,
            f"{self.name}: {fact}",
            source=here(),
            fix=f"call it with {self.pretty_printed_signature(verbose=False)}",
        )

    def run(self, arguments: Sequence[Tensor], variables: Sequence[Variable] | None = None) -> Any:
        """The packed results for arguments that fit, in the context of this thread.

        `variables` are those of the trace by default, else what stands for them in this call.
        """
        variables = self.traced.variables if variables is None else variables
        builder = current()
        if not builder.is_top_level:
            return self.pack(run_nested(self.traced, arguments, variables))
        if builder.recorders and self._is_watched(builder, arguments, variables):
            return self.pack(run_recorded(self.traced, arguments, variables))
        buffers = [device_buffer(x) for x in arguments]
        execution = self.execution(tuple(map(get_type, arguments)), variables)
        return self.pack(execution.run(buffers, variables))

    def _is_watched(
        self, builder: Any, arguments: Sequence[Tensor], variables: Sequence[Variable]
    ) -> bool:
        for variable in variables:
            variable.watch_by(builder)
        inputs = [*arguments, *self.traced.captures, *(v.handle for v in variables)]
        return any(recorder.depends_on(inputs) for recorder in builder.recorders)

    def variables_for(self, request: Request) -> Sequence[Variable]:
        """The variables of a call: arguments take the place of what stood for them."""
        if not self._stand_ins:
            return self.traced.variables
        return [
            request.leaves[self._stand_ins[id(v)]] if id(v) in self._stand_ins else v
            for v in self.traced.variables
        ]

    def captures_one_of(self, variables: Sequence[Variable]) -> bool:
        """Whether the body uses one of the variables from outside."""
        given = {id(v) for v in variables}
        return any(id(v) in given for v in self.traced.variables)

    def execution(
        self, types: Sequence[TensorType], variables: Sequence[Variable] | None = None
    ) -> Execution:
        """The compiled body for arguments of these types, and Variables of their shapes now."""
        variables = self.traced.variables if variables is None else variables
        types = input_types(self.traced, types, variables)
        found = self._executions.get(types)
        if found is None:
            with backend.compiling:
                found = self._executions.get(types)
                if found is None:
                    found = self._executions[types] = Execution(self.traced, types)
        return found

    def pack(self, tensors: Iterable[Tensor]) -> Any:
        """Result tensors in the structure that the function returned."""
        return self._packed(tensors)

    def _packed(self, values: Iterable[Any]) -> Any:
        rest = iter(values)
        return self._results.pack([next(rest) if flag else None for flag in self._is_tensor])


def _shown(key: Any, leaf: Any) -> str:
    """A Python value as a signature shows it; of what traces do not keep alive, the type."""
    if isinstance(key, ObjectKey):
        return f"<{key.text}>"
    return f"<Variable {key.type}>" if isinstance(key, VariableKey) else shown(leaf)


def _spec(type: TensorType, name: str | None) -> TensorSpec:
    shape = None if isinstance(type.shape, ShapeVariable) else TensorShape(type.shape)
    return TensorSpec(shape, type.dtype, name)


class _Fast:
    """What the hot path needs of a signature that was seen before."""

    __slots__ = ("execution", "has_one_result", "pack", "positions", "run", "types")

    def __init__(self, concrete: ConcreteFunction, execution: Execution, positions: list[int]):
        self.execution = execution
        self.positions = positions
        program = execution.program
        is_simple = execution.is_simple and not execution.traced.captures
        #: The compiled program itself where there is neither state nor a check to see to.
        self.run = None if not is_simple else program if program.needs_x64 else program.jitted
        self.has_one_result = concrete._is_tensor == (True,) and _is_leaf(concrete._results)
        packing = concrete._results
        self.pack = packing.packer() if all(concrete._is_tensor) else concrete.pack
        self.types = execution.result_types


def _is_leaf(structure: nest.Structure) -> bool:
    return not structure.opened and structure.treedef == nest.tree_util().tree_structure(0)


class Function:
    """A Python function that is traced once per signature and runs as a compiled graph.

    Made by `tg.function`, which see.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        input_signature: Any = None,
        autograph: bool = True,
        jit_compile: bool | None = None,
        reduce_retracing: bool = False,
        name: str | None = None,
    ) -> None:
        self._python_function = python_function
        self._name = (
            name or getattr(python_function, "__name__", None) or _partial_name(python_function)
        )
        self._options = {
            "input_signature": input_signature,
            "autograph": autograph,
            "jit_compile": jit_compile,
            "reduce_retracing": reduce_retracing,
        }
        self._reduces_retracing = reduce_retracing
        self._signature = Signature(python_function, self._name)
        self._input_signature = (
            None if input_signature is None else InputSignature(input_signature, self._signature)
        )
        self._traces: OrderedDict[Any, ConcreteFunction] = OrderedDict()
        self._fast: dict[Any, _Fast] = {}
        self._tracing_count = 0
        self._may_create = True
        self._traces_per_rank = False
        self._retracing = Retracing(self._name, python_function)
        self._row = self._retracing.row
        functools.update_wrapper(self, python_function, updated=())

    # Attributes.

    @property
    def name(self) -> str:
        return self._name

    @property
    def python_function(self) -> Callable[..., Any]:
        """The Python function itself."""
        return self._python_function

    @property
    def input_signature(self) -> Any:
        """The TensorSpecs given to the decorator, or None."""
        return None if self._input_signature is None else self._input_signature.specs

    @property
    def function_spec(self) -> Any:
        """The signature of the Python function."""
        return self._signature.parameters

    def experimental_get_tracing_count(self) -> int:
        """How often the Python function was traced."""
        return self._tracing_count

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """The signatures of all traces, one after another."""
        traces = list(self._traces.values())
        return "\n\n".join(trace.pretty_printed_signature(verbose) for trace in traces)

    def explain_retraces(self) -> RetraceExplanation:
        """Each trace after the first, with the argument that differed and both values."""
        return self._retracing.explanation()

    def clear_cache(self) -> None:
        """Forgets all traces and compiled programs; the next call traces again."""
        with tracing:
            self._traces.clear()
            self._fast.clear()
            self._retracing.forget()

    # Calls.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The hot path: every line here is a tenth of a microsecond.
        try:
            leaves, structure = _flatten((args, kwargs) if kwargs else args)
            fast = self._fast.get((structure, *map(get_type, leaves)))
            buffers = [*map(get_buffer, leaves)]
        except (AttributeError, TypeError, ValueError, Warning):
            fast, buffers = None, []  # some leaf is no tensor that is made, or a key has no order
        builder = current()
        if fast is None or builder.recorders or not builder.is_top_level or _is_eager():
            return self._call_any(args, kwargs)
        self._row.length = 0  # a call that did not trace ends any row of calls that did
        if fast.run is None:
            return self._call_execution(fast, buffers)
        try:
            outputs = fast.run(*buffers)
        except (TypeError, RuntimeError) as error:
            raise_failures(buffers)
            raise run_failure(error, here()) from None
        if fast.has_one_result:
            return Tensor(fast.types[0], outputs[0])
        return fast.pack(map(Tensor, fast.types, outputs))

    def _call_execution(self, fast: _Fast, buffers: list[Any]) -> Any:
        tensors = fast.execution.run(buffers)
        return tensors[0] if fast.has_one_result else fast.pack(tensors)

    def _call_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The second path: arrays, Python values, or tensors that are still pending."""
        builder = current()
        if builder.recorders or not builder.is_top_level or _is_eager():
            return self._call_slowly(args, kwargs)
        found = _fast_key(args, kwargs)
        fast = None if found is None else self._fast.get(found[0])
        if found is None or fast is None:
            return self._call_slowly(args, kwargs)
        self._row.length = 0
        return self._call_execution(fast, [_buffer_of(found[1][i]) for i in fast.positions])

    def _call_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_eager() and current().is_top_level:
            return self._python_function(*args, **kwargs)
        request = self._request(args, kwargs)
        concrete, is_new = self._find(request)
        self._retracing.seen(is_new)
        arguments = request.tensors()
        try:
            result = concrete.run(arguments, concrete.variables_for(request))
        except ShapeError as error:
            if not self._may_trace_again(error, concrete):
                raise
            # A size was assumed that does not hold, such as one that is 1: trace it as it is.
            concrete = self._trace(request)
            result = concrete.run(arguments, concrete.variables_for(request))
        if current().is_top_level and not current().recorders:
            self._remember(args, kwargs, request, concrete)
        return result

    def _may_trace_again(self, error: ShapeError, concrete: ConcreteFunction) -> bool:
        return not concrete.graph.is_static and hasattr(error, "mismatch")

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        if self._input_signature is not None:
            return self._input_signature.request(args, kwargs)
        return self._signature.request(args, kwargs)

    def _remember(
        self, args: tuple, kwargs: dict, request: Request, concrete: ConcreteFunction
    ) -> None:
        """Enters the call in the table of the fast path, if its leaves are those of the trace."""
        found = _fast_key(args, kwargs)
        if found is None or any(not v.tensor_type.is_static for v in concrete.variables):
            return
        (structure, *keys), leaves = found
        positions = [i for i, key in enumerate(keys) if isinstance(key, TensorType)]
        wanted = [request.leaves[i] for i in request.tensor_positions]
        if len(positions) != len(wanted):
            return
        if any(leaves[i] is not x for i, x in zip(positions, wanted, strict=True)):
            return
        execution = concrete.execution(tuple(keys[i] for i in positions))
        if len(self._fast) >= _FAST_LIMIT:
            self._fast.clear()
        self._fast[(structure, *keys)] = _Fast(concrete, execution, positions)

    # Traces.

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for arguments that are values or TensorSpecs; the same object for the same.

        With an `input_signature`, no arguments are needed.
        """
        if self._input_signature is not None and not args and not kwargs:
            args = self._input_signature.specs
        return self._find(self._request(args, kwargs))[0]

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of the trace for these arguments; see `get_concrete_function`."""
        return self.get_concrete_function(*args, **kwargs).graph

    def _find(self, request: Request) -> tuple[ConcreteFunction, bool]:
        """The trace for a request, and whether it was made now."""
        wanted = self._traced_request(request)
        concrete = self._known(wanted)
        if concrete is not None:
            return concrete, False
        with tracing:
            concrete = self._known(wanted) or self._accepting(wanted)
            if concrete is not None:
                return concrete, False
            return self._trace_new(request, wanted), True

    def _known(self, request: Request) -> ConcreteFunction | None:
        concrete = self._traces.get(request.key)
        if concrete is None:
            return None
        with tracing:
            if request.key in self._traces:
                self._traces.move_to_end(request.key)
        given = request.variables
        if given and concrete.captures_one_of(given):
            # The body also uses an argument from outside: such a call has a trace of its own.
            return self._traces.get(request.with_variables_by_identity().key)
        return concrete

    def _accepting(self, request: Request) -> ConcreteFunction | None:
        """A trace with open sizes that accepts the request."""
        for concrete in self._traces.values():
            known = concrete._request
            if concrete.graph.is_static:
                continue
            if known.structure == request.structure and _accepts(known.keys, request.keys):
                return concrete
        return None

    def _traced_request(self, request: Request) -> Request:
        """The request with the types that it is traced at: specs, open sizes, names."""
        if self._input_signature is not None:
            return self._with_declared_types(request)
        if any(isinstance(key, TensorSpec) for key in request.keys):
            types = SpecTypes()
            keys = [types.type_of(k) if isinstance(k, TensorSpec) else k for k in request.keys]
            return Request(request.leaves, request.structure, tuple(keys))
        return request

    def _with_declared_types(self, request: Request) -> Request:
        assert self._input_signature is not None
        declared = iter(self._input_signature.types)
        count = len(self._input_signature.types)
        keys = []
        for key in request.keys:
            is_declared = count > 0 and isinstance(key, (TensorType, TensorSpec))
            keys.append(self._declared_type(key, next(declared)) if is_declared else key)
            count -= is_declared
        return Request(request.leaves, request.structure, tuple(keys))

    def _declared_type(self, key: Any, declared: TensorType) -> TensorType:
        if not (isinstance(declared.shape, ShapeVariable) and self._traces_per_rank):
            return declared
        if not (isinstance(key, TensorType) and isinstance(key.shape, tuple)):
            return declared
        sizes = (Dim.named(f"{declared.shape.name}.{i}") for i in range(len(key.shape)))
        return TensorType(declared.dtype, tuple(sizes))

    def _trace_new(self, request: Request, wanted: Request) -> ConcreteFunction:
        if self._reduces_retracing and self._input_signature is None:
            general = self._generalised(wanted)
            if general is not None:
                with contextlib.suppress(ShapeError, TraceError):
                    return self._trace(general)
        try:
            return self._trace(wanted)
        except ShapeError:
            if self._traces_per_rank or not _has_open_rank(wanted):
                raise
            # An op needs to know the rank: from now on there is one trace per rank.
            self._traces_per_rank = True
            return self._find(request)[0]

    def _generalised(self, request: Request) -> Request | None:
        """The request with sizes left open where it differs from an earlier trace."""
        for concrete in reversed(self._traces.values()):
            known = concrete._request
            if known.structure != request.structure or len(known.keys) != len(request.keys):
                continue
            keys = _generalised_keys(known.keys, request.keys)
            if keys is not None:
                return Request(request.leaves, request.structure, canonical_keys(keys))
        return None

    def _trace(self, request: Request) -> ConcreteFunction:
        with tracing:
            concrete = self._traces.get(request.key)
            if concrete is not None and concrete.graph.is_static:
                return concrete
            names = self._signature.leaf_names(request)
            self._retracing.trace(request.without_values(), names)
            concrete = self._trace_body(request, names, self._may_create)
            if request.variables and concrete.captures_one_of(request.variables):
                request = request.with_variables_by_identity()
                concrete = self._trace_body(request, names, self._may_create)
            self._traces[request.key] = concrete
            if len(self._traces) > _TRACE_LIMIT:
                self._traces.popitem(last=False)
                self._fast.clear()  # it may hold the trace that went
            return concrete

    def _trace_body(self, request: Request, names: list[str], may_create: bool) -> ConcreteFunction:
        where, place, traces = builder_of_thread(), place_of_thread(), traces_of_thread()
        builder, source, depth = where.builder, place.source, len(traces)
        try:
            return self._traced_body(request, names, may_create)
        finally:
            # Plain stores, which no interrupt can divide: one may have fallen into an exit above.
            where.builder = builder
            place.source = source
            del traces[depth:]

    def _traced_body(
        self, request: Request, names: list[str], may_create: bool
    ) -> ConcreteFunction:
        trace = Trace(_graph_name(self._name))
        trace.may_create = may_create
        trace.actual = request.actual_tensors()
        with trace, unsourced():
            leaves, stand_ins = _placeholders(trace, request, names)
            args, kwargs = request.structure.pack(leaves)
            self._tracing_count += 1
            result = self._python_function(*args, **kwargs)
            self._check_untouched((args, kwargs), leaves, request.structure)
            result_leaves, structure = _result_leaves(result, self._name, self._signature.place)
            tensors = [y for y in result_leaves if y is not None]
            traced = trace.traced(tensors)
        self._may_create = False if not trace.created else self._may_create
        if trace.created:
            return self._trace_after_creation(trace, request, names)
        graph = simplify(traced.graph)
        traced = _with_graph(traced, graph)
        kept = request.without_values()
        return ConcreteFunction(
            self._name, self._signature, kept, traced, structure, result_leaves, stand_ins
        )

    def _trace_after_creation(
        self, trace: Trace, request: Request, names: list[str]
    ) -> ConcreteFunction:
        """The first call created Variables: trace again, now that they exist."""
        if any(reference() is None for reference in trace.created):
            refuse_creation(self._signature.place)
        self._may_create = False
        return self._trace_body(request, names, may_create=False)

    def _check_untouched(self, packed: Any, leaves: list[Any], structure: nest.Structure) -> None:
        if _difference(structure.pack(leaves), packed) is None:
            return
        (args, kwargs), (now, named) = structure.pack(leaves), packed
        names = [*self._signature.positional(len(args)), *kwargs]
        for name, old, new in zip(names, (*args, *kwargs.values()), (*now, *named.values())):
            difference = _difference(old, new)
            if difference is not None:
                fail(
                    SignatureError,
                    f"{self._name} changed its argument {name!r} in place: {difference}",
                    source=self._signature.place,
                    fix=f"change a copy: {name} = {type(old).__name__}({name})",
                )

    # IR.

    def experimental_get_compiler_ir(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """A function of `stage` and `platform_name` that returns the compiler's text.

        Stages: 'stablehlo', 'stablehlo_serialized', 'hlo' (default), 'hlo_no_metadata',
        'hlo_serialized', 'optimized_hlo', 'optimized_hlo_serialized'. Arguments are values or
        TensorSpecs whose sizes are known. Raises ValueError for another stage or an open size.
        """
        request = self._request(args, kwargs)
        concrete, _ = self._find(request)
        types = []
        for i in request.tensor_positions:
            key = request.keys[i]
            type_ = SpecTypes().type_of(key) if isinstance(key, TensorSpec) else key
            if not type_.is_static:
                fail(
                    ShapeError,
                    f"{self._name}: the compiler needs every size, and an argument is {type_}",
                    source=here(),
                    fix="give the sizes in the TensorSpec",
                )
            types.append(type_)
        execution = concrete.execution(tuple(types))

        def text(stage: str = "hlo", platform_name: str | None = None) -> Any:
            return backend.compiler_ir(execution.program, stage, platform_name)

        return text

    # Methods.

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        key = _instance_key(self)
        store = getattr(instance, "__dict__", None)
        if isinstance(instance, type):  # a classmethod: what is written there needs setattr
            if key not in vars(instance):
                setattr(instance, key, staticmethod(self._bound_to(instance)))
            return vars(instance)[key].__func__
        if store is None:
            return self._bound_to(instance)
        bound = store.get(key)
        if bound is None:
            with tracing:
                bound = store.get(key)
                if bound is None:
                    bound = store[key] = self._bound_to(instance)
        return bound

    def _bound_to(self, instance: Any) -> Function:
        method = self._python_function.__get__(instance, type(instance))
        return Function(method, name=self._name, **self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """A function without traces, bound to the copy of its instance: traces hold Variables."""
        function = self._python_function
        owner = getattr(function, "__self__", None)
        if owner is not None and hasattr(function, "__func__"):
            function = function.__func__.__get__(copy.deepcopy(owner, memo))
        return Function(function, name=self._name, **self._options)

    def __copy__(self) -> Function:
        return Function(self._python_function, name=self._name, **self._options)

    def __repr__(self) -> str:
        return f"<tg.function {self._name}{self._signature.parameters}>"


def _placeholders(
    trace: Trace, request: Request, names: Sequence[str]
) -> tuple[list[Any], dict[int, int]]:
    """What the Python function is called with: graph inputs for tensors, one stand-in for each
    distinct Variable, and Python values as they are. Also the positions of the stand-ins."""
    leaves: list[Any] = []
    variables: dict[Any, Variable] = {}
    positions: dict[int, int] = {}
    for place, (leaf, key, name) in enumerate(
        zip(request.leaves, request.keys, names, strict=True)
    ):
        if isinstance(key, TensorType):
            leaf = trace.argument(key, name)
        elif isinstance(key, VariableKey):
            if key not in variables:
                variables[key] = leaf.stand_in()
                positions[id(variables[key])] = place
            leaf = variables[key]
        leaves.append(leaf)
    return leaves, positions


def _difference(before: Any, after: Any) -> str | None:
    """How a structure was changed in place; None if it was not."""
    old, old_structure = nest.flatten_structure(before)
    new, new_structure = nest.flatten_structure(after)
    if old_structure != new_structure:
        return f"it was {old_structure} and is {new_structure}"
    same = all(a is b for a, b in zip(old, new, strict=True))
    return None if same else f"an item of {old_structure} was replaced"


def _instance_key(function: Function) -> str:
    return f"_tg_function_{function._name}_{id(function)}"


def _partial_name(function: Any) -> str:
    inner = getattr(function, "func", None)
    return getattr(inner, "__name__", None) or type(function).__name__


def _graph_name(name: str) -> str:
    return "lambda_" if name == "<lambda>" else name


def _with_graph(traced: Traced, graph: Graph) -> Traced:
    return dataclasses.replace(traced, graph=graph)


def _flatten(value: Any) -> tuple[list[Any], Any]:
    """`jax.tree_util.tree_flatten`, which takes the place of this function at its first call."""
    global _flatten
    _flatten = nest.tree_util().tree_flatten
    return _flatten(value)


def _is_eager() -> bool:
    return _settings["run_eagerly"]


def _fast_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]] | None:
    """The key and the leaves of a call whose leaves the fast path can tell apart by type and
    value; None for other calls."""
    keys = []
    try:
        leaves, structure = _flatten((args, kwargs) if kwargs else args)
        for leaf in leaves:
            kind = type(leaf)
            if kind is Tensor:
                keys.append(leaf.type)
            elif kind in LITERALS or isinstance(leaf, np.ndarray | np.generic):
                keys.append(leaf_key(leaf))
            else:
                return None
    except (TypeError, ValueError, Warning, Mismatch):  # the slow path names what is wrong
        return None
    return (structure, *keys), leaves


def _buffer_of(leaf: Any) -> Any:
    if type(leaf) is Tensor:
        return device_buffer(leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _result_leaves(result: Any, name: str, place: Source) -> tuple[list[Any], nest.Structure]:
    """The leaves of a result as tensors and None. Raises TraceError for anything else."""
    try:
        leaves, structure = nest.flatten_structure(result, none_is_leaf=True)
    except Mismatch as mismatch:
        fail(TraceError, f"the result of {name}: {mismatch.fact}", source=place, fix=mismatch.fix)
    return [_result_leaf(leaf, name, place) for leaf in leaves], structure


def _result_leaf(leaf: Any, name: str, place: Source) -> Tensor | None:
    if leaf is None:
        return None
    is_value = isinstance(leaf, (Tensor, Variable, bool, int, float, complex, Dim))
    if not is_value and not isinstance(leaf, np.ndarray | np.generic):
        fail(
            TraceError,
            f"{name} returned {kind_of(leaf)}: {shown(leaf)}",
            source=place,
            fix="return tensors, numbers, arrays, None, or lists, tuples and dicts of them",
        )
    try:
        return as_tensor(leaf)
    except DTypeError as error:
        fix = "return an array of numbers or truth values"
        fail(DTypeError, f"the result of {name}: {fact_of(error)}", source=place, fix=fix)


def _has_open_rank(request: Request) -> bool:
    return any(isinstance(type.shape, ShapeVariable) for type in request.types)


def _accepts(known: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
    for expected, key in zip(known, given, strict=True):
        if isinstance(expected, TensorType) != isinstance(key, TensorType):
            return False
        if not isinstance(expected, TensorType) and expected != key:
            return False
    types = [k for k in known if isinstance(k, TensorType)]
    values = [k for k in given if isinstance(k, TensorType)]
    try:
        bind_sizes(types, values)
    except Mismatch:
        return False
    return True


def _generalised_keys(known: Sequence[Any], given: Sequence[Any]) -> list[Any] | None:
    keys: list[Any] = []
    for place, (old, new) in enumerate(zip(known, given, strict=True)):
        if not isinstance(old, TensorType) or not isinstance(new, TensorType):
            if old != new:
                return None
            keys.append(new)
            continue
        if old.dtype is not new.dtype:
            return None
        keys.append(new.with_shape(_generalised_shape(old.shape, new.shape, place)))
    return keys


def _generalised_shape(old: Any, new: Any, place: int) -> Any:
    if isinstance(old, ShapeVariable) or len(old) != len(new):
        return ShapeVariable(f"s{place}")
    return tuple(
        b if a == b else Dim.named(f"g{place}.{axis}") for axis, (a, b) in enumerate(zip(old, new))
    )


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: Any = None,
    experimental_autograph_options: Any = None,
    experimental_attributes: Any = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Compiles a Python function: it is traced once per signature, and the graph runs on XLA.

    Used bare or with arguments, on functions, lambdas, methods (each instance has traces of its
    own), partials and other callables. Tensors and arrays are arguments of the graph, keyed by
    dtype and shape; Python values are constants in it, keyed by type and value.

    - `input_signature`: TensorSpecs for the first arguments; one trace serves all that fit.
    - `reduce_retracing`: from the second shape on, sizes that differ are left open.
    - `jit_compile`: accepted; everything is compiled.

    Raises TypeError for something that is not callable.

    >>> @tg.function
    ... def square(x):
    ...     return x * x
    >>> square(tg.constant(3.0)).numpy()
    np.float32(9.0)
    """

    def decorated(python_function: Callable[..., Any]) -> Function:
        if not callable(python_function):
            fail(
                TraceError,
                f"{shown(python_function)} is not a callable object",
                source=here(),
                fix="decorate a function, or pass one to tg.function",
            )
        if isinstance(python_function, Function):
            python_function = python_function.python_function
        return Function(
            python_function,
            input_signature=input_signature,
            autograph=autograph,
            jit_compile=jit_compile,
            reduce_retracing=reduce_retracing or bool(experimental_relax_shapes),
        )

    return decorated if func is None else decorated(func)
