"""`@tg.function`: traces a Python function once per signature and runs the compiled graph."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from gc import disable, enable, isenabled
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tracegraph.autograph.function_conversion import take_as_given
from tracegraph.boundary.tracebacks import api_boundary, leave_out_our_frames_at_top_level
from tracegraph.core.interrupts import COLLECTS_IN_C, outside_interrupts
from tracegraph.core.later import opened
from tracegraph.core.lru_cache import Memo
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.eager import backend
from tracegraph.effects.prefix import has_shapes_found
from tracegraph.effects.record import Record, ResultShapeError, current_record, recorded_call
from tracegraph.errors import ShapeError, TraceError, VariableError, fail, shown
from tracegraph.execution.execute import Execution, input_types
from tracegraph.execution.jax_function import Binding, check_is_one_program, jax_function
from tracegraph.execution.run_options import Roll, RunOptions, as_roll
from tracegraph.functions.body import Body
from tracegraph.functions.call_plan import CallPlan, PlansByMesh, key_of_arrays, known_call
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.trace_cache import TraceCache
from tracegraph.ir.builder import builder_of_thread, current
from tracegraph.ir.tensor import Graph, Tensor, get_buffer, get_type
from tracegraph.nest import scanned
from tracegraph.operands.flags import as_flag
from tracegraph.passes.specialise import specialise
from tracegraph.signatures.retracing import RetraceExplanation, Retracing
from tracegraph.signatures.signature import InputSignature, Request, Signature, SpecTypes
from tracegraph.tracing.trace import current_trace, tracing

if TYPE_CHECKING:  # Python has defaults of type variables from 3.13 on; checkers already do
    import inspect
    from typing import TypedDict, Unpack

    import typing_extensions

    from tracegraph.memory_budgets.table import MemoryTable

    #: The parameters and the result of a function that another wraps.
    Parameters = typing_extensions.ParamSpec("Parameters", default=...)
    Result = typing_extensions.TypeVar("Result", default=Any)
    #: The parameters of a method without `self`.
    Rest = ParamSpec("Rest")

    class _FunctionOptions(TypedDict, total=False):
        experimental_implements: str
        experimental_autograph_options: object
        experimental_attributes: object
        experimental_relax_shapes: bool | None
        experimental_compile: bool | None
        experimental_follow_type_hints: bool | None
        check_bounds: bool
        check_numerics: bool
        bucket_sizes: str | Iterable[int] | None
        memory_budget: str | int | None
        roll: Roll
        locate_numerics: bool
else:
    Parameters, Result = ParamSpec("Parameters"), TypeVar("Result")

#: The current builder of this thread.
_thread = builder_of_thread()
#: Looked up once: a warm call creates its result with it.
_new = Tensor.__new__
_numbers = itertools.count()


@dataclasses.dataclass
class _FunctionSettings:
    run_eagerly: bool = False


_settings = _FunctionSettings()


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes every `@tg.function` run its Python body at each call, untraced."""
    _settings.run_eagerly = as_flag("run_functions_eagerly", "run_eagerly", run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether `run_functions_eagerly(True)` is in force."""
    return _settings.run_eagerly


class Function(Generic[Parameters, Result]):
    """A Python function that is traced once per signature and runs as a compiled graph.

    `tg.function` creates and documents it. To a type checker it has the parameters and the result
    of the Python function.
    """

    #: Whether there is a Python function to trace; a loaded function has only its traces.
    has_source = True
    #: Reads the traces of the model in a folder; a higher floor sets it.
    _saved_traces: Any = None

    def __init__(
        self,
        python_function: Callable[Parameters, Result],
        input_signature: Iterable[Any] | None = None,
        autograph: bool = True,
        jit_compile: bool | None = None,
        reduce_retracing: bool = False,
        check_bounds: bool = False,
        check_numerics: bool = False,
        bucket_sizes: str | Iterable[int] | None = None,
        locate_numerics: bool = False,
        memory_budget: str | int | None = None,
        roll: Roll = "auto",
        name: str | None = None,
    ) -> None:
        self._python_function = python_function
        self._name = name or _name_of(python_function)
        self._buckets = None if bucket_sizes is None else _buckets(bucket_sizes)
        self._options = {
            "input_signature": input_signature,
            "autograph": autograph,
            "jit_compile": jit_compile,
            "reduce_retracing": reduce_retracing,
            "check_bounds": check_bounds,
            "check_numerics": check_numerics,
            "bucket_sizes": None if self._buckets is None else self._buckets.option,
            "locate_numerics": locate_numerics,
            "memory_budget": None if memory_budget is None else _bytes(memory_budget),
            "roll": as_roll(roll),
        }
        run = (self._options[name] for name in ("memory_budget", "locate_numerics", "roll"))
        #: How its traces are compiled to programs.
        self.run_options = RunOptions(self._buckets, *run)
        self._signature = Signature(python_function, self._name)
        self._input_signature = (
            None
            if input_signature is None
            else InputSignature(input_signature, self._signature, self._buckets is not None)
        )
        self._body = self._make_body()
        #: The same function with checks, for calls from a function built with them.
        self._checking: Function | None = None
        self._retracing = Retracing(self._name, python_function)
        #: Call plans of known calls: keyed by types if all arguments are tensors, otherwise by
        #: structure, types and values.
        self._call_plans: Memo[Any, CallPlan] = Memo(1024)
        self._has_nests = False
        self._traces = TraceCache(
            self._body,
            self._retracing,
            self._input_signature,
            reduce_retracing or bucket_sizes is not None,
            on_eviction=lambda: self._call_plans.clear(),
        )
        self._streak = self._retracing.streak
        #: The attribute in which instances keep their bound function.
        self._key = f"_tg_function_{self._name}_{next(_numbers)}"
        functools.update_wrapper(self, python_function, updated=())
        #: What `inspect` reads, even where it does not follow wrappers.
        self.__signature__ = self._signature.parameters

    def _make_body(self) -> Body:
        names = ("check_bounds", "check_numerics", "autograph")
        bounds, numerics, converts = (self._options[name] for name in names)
        parts = self._python_function, self._signature
        return Body(*parts, bounds, numerics, converts, self.run_options)

    # Attributes.

    @property
    def traces(self) -> list[ConcreteFunction]:
        """The current traces of the function."""
        return list(self._traces)

    @property
    def name(self) -> str:
        return self._name

    @property
    def python_function(self) -> Callable[Parameters, Result]:
        """The Python function itself."""
        return self._python_function

    @property
    def input_signature(self) -> tuple[Any, ...] | None:
        """The TensorSpecs passed to the decorator, or None."""
        return None if self._input_signature is None else self._input_signature.specs

    @property
    def signature(self) -> Signature:
        """How arguments are bound to the parameters of the Python function."""
        return self._signature

    @property
    def pads_sizes(self) -> bool:
        """Whether the function has `bucket_sizes`."""
        return self._buckets is not None

    @property
    def function_spec(self) -> inspect.Signature:
        """The signature of the Python function."""
        return self._signature.parameters

    #: TensorFlow has its own type for this; here it is Python's.
    function_type = function_spec

    def get_initialization_function(self, *args: Any, **kwargs: Any) -> Callable[[], None]:
        """A function of no arguments that creates the Variables of this function, with their
        initial values, by tracing it for these arguments: values or TensorSpecs.

        Raises VariableError (a RuntimeError) if a trace already exists, since that created them.
        """
        if self._body.tracing_count:
            fail(
                VariableError,
                f"{self._name}: its first trace has created its Variables already",
                fix="call get_initialization_function before anything else, or assign the values",
            )

        def initialize() -> None:
            self.get_concrete_function(*args, **kwargs)

        return initialize

    def experimental_get_tracing_count(self) -> int:
        """How often the Python function was traced."""
        return self._body.tracing_count

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """The signatures of all traces, one after another."""
        return "\n\n".join(trace.pretty_printed_signature(verbose) for trace in self._traces)

    def explain_retraces(self) -> RetraceExplanation:
        """Each trace after the first: the argument that differed, both values, how long tracing
        took and the suggested fix; and the compiled sizes, with their times in seconds.

        For code outside any `tg.function` see `tg.debugging.explain_compiles`.
        """
        compiles = [row for concrete in self._traces for row in concrete.compiled()]
        return self._retracing.explanation(compiles)

    def clear_cache(self) -> None:
        """Forgets all traces and compiled programs; the next call traces again."""
        with tracing:
            # Call plans refer to traces: if an interrupt ends this early, no plan refers to a
            # dropped trace.
            self._call_plans.clear()
            self._traces.clear()
            self._call_plans.clear()  # a signal handler may have called the function meanwhile
            self._retracing.forget()

    # Calls. Each line of `__call__` costs a tenth of a microsecond, and each frame more.

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            if kwargs or self._has_nests:
                leaves, key = scanned([args, kwargs] if kwargs else args)
                plan = self._call_plans.get((*key, *map(get_type, leaves)))
                if plan is not None and plan.arranged is not None:
                    leaves = plan.arranged(leaves)
                buffers = (*map(get_buffer, leaves),)
            elif len(args) == 1:
                (x,) = leaves = args
                plan = self._call_plans.get(x.type)  # type: ignore[attr-defined]
                buffers = (x.buffer,)  # type: ignore[attr-defined]
            elif len(args) == 2:
                x, y = leaves = args
                plan = self._call_plans.get((x.type, y.type))  # type: ignore[attr-defined]
                buffers = (x.buffer, y.buffer)  # type: ignore[attr-defined]
            else:  # slower: the two `map`s cost as much as four arguments
                leaves = args
                plan = self._call_plans.get((*map(get_type, args),))
                buffers = (*map(get_buffer, args),)
        except outside_interrupts(Exception):
            # A leaf has no value: its class may raise what it likes.
            plan, buffers, leaves = None, (), ()
        builder = _thread.builder  # without a stack it is the top level: see `current`
        try:
            if plan is None or builder.stack or builder.recorders or _settings.run_eagerly:
                return self._call_any(args, kwargs)
            self._streak.length = 0  # a call that did not trace ends a streak of calls that did
            if (program := plan.program) is not None:
                try:  # adding tuples copies nothing if one is empty; unpacking both makes a list
                    if COLLECTS_IN_C and isenabled():  # as `uncollected`, without its frame
                        try:
                            disable()
                            outputs = program.run(*(buffers + plan.captured))
                        finally:
                            enable()
                    else:
                        outputs = program.run(*(buffers + plan.captured))
                except outside_interrupts(TypeError, ValueError, RuntimeError):
                    return plan.run_with_state(buffers, leaves)  # reports it, or moves buffers
            elif plan.step is not None:
                outputs = plan.step.run(buffers, plan.variables, plan.captured, plan.assigned)
            else:
                try:
                    return plan.run_with_state(buffers, leaves)
                except ResultShapeError as error:
                    return self._call_on(error.record, args, kwargs)
            if (type := plan.result_type) is not None:
                result = _new(Tensor)  # saves the frame that `Tensor(...)` costs
                result.type, result.buffer, result.node = type, outputs[0], None
                if plan.callee.calls_left:
                    plan.callee.note(leaves, (result,), sys._getframe(1))
                return result  # type: ignore[return-value]
            return plan.packed(leaves, outputs)
        except BaseException as error:
            leave_out_our_frames_at_top_level(error)
            raise

    def _call_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The second path: arrays, Python values, or tensors that are still pending."""
        builder = current()
        if not builder.is_top_level or _settings.run_eagerly:
            return self._call_slowly(args, kwargs)
        leaves, plan = self._known_plan(args, kwargs)
        if plan is None:
            return self._call_slowly(args, kwargs)
        self._streak.length = 0
        try:
            return plan.run_recorded(leaves) if builder.recorders else plan.run_on(leaves)
        except ResultShapeError as error:
            return self._call_on(error.record, args, kwargs)

    def _known_plan(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], CallPlan | None]:
        """The leaves of a call and its plan; None for a plan that is not known."""
        if not kwargs and (plan := self._call_plans.get(key_of_arrays(args))) is not None:
            return args, plan
        call = known_call(args, kwargs)
        return ((), None) if call is None else (call.leaves, self._call_plans.get(call.key))

    def _call_on(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Continues a call; `record` holds what it has done so far."""
        with recorded_call(record):
            return self._find_and_run(args, kwargs)

    def _call_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.has_source:
            if _settings.run_eagerly and current().is_top_level:
                return self._python_function(*args, **kwargs)
            trace = current_trace()
            if trace is not None and trace.checks_bounds and not self._options["check_bounds"]:
                return self._with_checks()(*args, **kwargs)
        if not current().is_top_level:
            return self._find_and_run(args, kwargs)
        with recorded_call():
            return self._find_and_run(args, kwargs)

    def _find_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = self._request(args, kwargs)
        concrete, is_new = self._traces.find(request)
        self._retracing.seen(is_new)
        record, trace = current_record(), current_trace()
        if trace is not None and not is_new and not has_shapes_found(concrete.graph, trace, record):
            concrete = self._traces.trace_anew(request, concrete)
        arguments = request.tensors()
        tries_left = 2
        while True:
            try:
                result = concrete.run(arguments, concrete.variables_for(request), record)
                break
            except ResultShapeError as error:
                # The outermost call is traced again, as a whole.
                if error.record is not record or not current().is_top_level:
                    raise
                concrete = self._traces.trace_anew(request, concrete)
            except ShapeError as error:
                # The trace assumed a size or a rank, such as a size of 1, and is wrong here.
                if not tries_left or not self._may_trace_again(error, concrete):
                    raise
                tries_left -= 1
                concrete = self._traces.trace_again(request)
        is_padded = concrete.bucketing is not None
        if current().is_top_level and not is_padded:
            self._remember(args, kwargs, request, concrete)
        return result

    def _with_checks(self) -> Function:
        """The same function with `check_bounds`, which has its own traces."""
        if self._checking is None:
            with tracing:
                if self._checking is None:
                    options = {**self._options, "check_bounds": True}
                    self._checking = Function(self._python_function, name=self._name, **options)
        return self._checking

    def _may_trace_again(self, error: ShapeError, concrete: ConcreteFunction) -> bool:
        return not concrete.graph.is_static and hasattr(error, "mismatch")

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        if self._input_signature is not None:
            return self._input_signature.request(args, kwargs)
        return self._signature.request(args, kwargs)

    def _remember(
        self, args: tuple, kwargs: dict, request: Request, concrete: ConcreteFunction
    ) -> None:
        """Adds the call to the hot path's table, if its leaves match those of the trace."""
        if all(known is not concrete for known in self._traces):
            return  # a callback has cleared the cache in the meantime
        call = known_call(args, kwargs)
        variables = concrete.traced.variables  # those of defaults are arguments, too
        if call is None or any(v.is_stand_in or not v.tensor_type.is_static for v in variables):
            return
        positions = call.tensor_places(self._signature, request)
        if positions is None:
            return
        execution = concrete.execution(tuple(call.leaf_keys[i] for i in positions))
        if concrete.request.mesh and type(self._call_plans) is not PlansByMesh:
            self._call_plans = PlansByMesh(1024)
        plan = self._call_plans.remember(call.key, CallPlan(concrete, execution, positions))
        if call.is_flat and (key := key_of_arrays(args)) is not None:
            self._call_plans.remember(key, plan)
        elif call.has_only_tensors:
            self._has_nests = True

    # Traces.

    @api_boundary
    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for arguments that are values or TensorSpecs; equal arguments return the same
        object.

        With an `input_signature`, no arguments are needed.
        """
        if self._input_signature is not None and not args and not kwargs:
            args = self._input_signature.specs
        request = self._request(args, kwargs)
        return self._traces.find(request)[0].declared_as(self._traces.traced_request(request))

    @api_boundary
    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of the trace for these arguments; see `get_concrete_function`."""
        return self.get_concrete_function(*args, **kwargs).graph

    @api_boundary
    def memory(self, *args: Any, **kwargs: Any) -> MemoryTable:
        """The memory that the program for these arguments or TensorSpecs needs: a `MemoryTable`.

        Its `str` shows the bytes of arguments, results and temporaries, as the compiler reports
        them, and a row for each line of yours whose values gradients read: how many bytes are kept,
        how many recomputed, and at what cost; the largest first. Without arguments it describes the
        only trace. The program is compiled if it has not been.

        Raises TraceError (a TypeError) if arguments are omitted and there are several traces,
        ShapeError for an open size.
        """
        traces = self.traces
        if args or kwargs or not traces:
            return self._execution_for("memory", args, kwargs).memory()
        if len(traces) > 1:
            fail(
                TraceError,
                f"{self._name}: memory() has no arguments, and there are {len(traces)} traces",
                fix="pass the arguments of a call, or TensorSpecs",
            )
        return traces[0].memory()

    def _execution_for(self, name: str, args: Any, kwargs: Any) -> Execution:
        """The execution for these arguments, values or TensorSpecs; `name` is the method that needs
        it."""
        request = self._request(args, kwargs)
        concrete, _ = self._traces.find(request)
        types = []
        for i in request.tensor_positions:
            key = request.keys[i]
            type_ = SpecTypes([key]).type_of(key) if isinstance(key, TensorSpec) else key
            if not type_.is_static:
                fail(
                    ShapeError,
                    f"{self._name}: {name} needs every size, and an argument is {type_}",
                    fix="give the sizes in the TensorSpec",
                )
            types.append(type_)
        return concrete.execution(tuple(types))

    # Interoperation.

    def as_jax(self) -> Callable[..., Any]:
        """The function as a plain function of JAX, for `jax.jit`, `grad`, `vmap` and the rest.

        It takes the arguments of this function, with JAX arrays in place of tensors (NumPy arrays
        too, and Python numbers, which count as values do here), and returns JAX arrays in the same
        structure. It is traced per signature when JAX calls it, and then lowered into whatever JAX
        is tracing. JAX differentiates it by our rules, including custom gradients.

        Variables and captured tensors enter as constants, with their values at the time of the
        call: under `jax.jit` that is when JAX traces. `tg.print` prints through
        `jax.debug.callback`. Raises TraceError for a function that does more than return its
        results: one that assigns a Variable, draws from a generator, checks values or calls Python.
        Raises DTypeError where 64 bits are needed and `jax_enable_x64` is off.

        >>> import jax
        >>> @tg.function
        ... def cube(x):
        ...     return x * x * x
        >>> float(jax.grad(jax.grad(cube.as_jax()))(2.0))
        12.0
        """
        return jax_function(self._binding, self._python_function)

    def _binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Binding:
        """The trace for a call whose tensors may be abstract, and what the trace takes."""
        request = self._request(args, kwargs)
        concrete, _ = self._traces.find(request.without_tensors())
        arguments = request.tensors()
        variables = concrete.variables_for(request)
        types = input_types(concrete.traced, [x.type for x in arguments], variables)
        try:
            specialise(concrete.graph, types)
        except ShapeError as error:
            if not self._may_trace_again(error, concrete):
                raise
            concrete = self._traces.trace(request.without_tensors())
            variables = concrete.variables_for(request)
        return Binding(concrete, arguments, variables)

    # IR.

    @api_boundary
    def experimental_get_compiler_ir(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """A function of `stage` and `platform_name` that returns the compiler's text.

        Stages: 'stablehlo', 'stablehlo_serialized', 'hlo' (default), 'hlo_no_metadata',
        'hlo_serialized', 'optimized_hlo', 'optimized_hlo_serialized',
        'optimized_hlo_proto_serialized', and 'optimized_hlo_dot' for Graphviz; the serialized ones
        are bytes, and 'stablehlo_serialized' is MLIR bytecode. Arguments are values or TensorSpecs
        with known sizes. Raises ValueError for another stage or an open size, TraceError for a
        function that computes sizes, since that is several programs.
        """
        execution = self.static_execution("the compiler", args, kwargs)

        def text(stage: str = "hlo", platform_name: str | None = None) -> Any:
            return backend.compiler_ir(execution.program, stage, platform_name)

        return text

    @api_boundary
    def precompile(self, signatures: Iterable[Any] | None, path: str | os.PathLike[str]) -> None:
        """Compiles the function for `signatures` and keeps the programs beside a saved model, so
        that `tg.saved_model.load(path, compiled=True)` loads them with the model. Save the model
        first, with this function and a trace for these signatures.

        Each of the `signatures` is a tuple of arguments, values or TensorSpecs with known sizes, or
        a dict of arguments by name; None stands for the function's declared signature. The programs
        are stored in `path/compiled`, and are usable where versions, device and flags match those
        of this process. They are machine code, so nobody else may have write access there.

        Raises ShapeError for an open size; TraceError for a function that is several programs,
        since it has effects or computes sizes, and for one with `bucket_sizes`; LoadError if no
        model is saved there (a FileNotFoundError) or it is damaged; ValueError if there are no
        signatures, or no function of the model runs such a program; OSError if a file cannot be
        written. In these cases nothing is written.

        >>> double = tg.function(lambda x: 2.0 * x, input_signature=[tg.TensorSpec([None])])
        >>> tg.saved_model.save(double, "double")
        >>> double.precompile([(tg.TensorSpec([3]),)], "double")
        >>> tg.saved_model.load("double", compiled=True)(tg.ones([3])).numpy()
        array([2., 2., 2.], dtype=float32)
        """
        opened("tracegraph.functions.precompile").precompile(self, signatures, path)

    def static_execution(
        self, who: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Execution:
        """The execution for arguments with known sizes, which is a single program."""
        if self._input_signature is not None and not args and not kwargs:
            args = self._input_signature.specs
        execution = self._execution_for(who, args, kwargs)
        check_is_one_program(self._name, execution.graph)
        return execution

    # Methods.

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Function[Parameters, Result]: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, Rest], Result], instance: object, owner: Any = None
    ) -> Function[Rest, Result]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if isinstance(instance, type):  # a classmethod: what is written there needs setattr
            if self._key not in vars(instance):
                setattr(instance, self._key, staticmethod(self._bound_to(instance)))
            return vars(instance)[self._key].__func__
        store = getattr(instance, "__dict__", None)
        if store is None:
            fail(
                TraceError,
                f"{type(instance).__name__}.{self._name} is called on an instance that has no "
                "__dict__ to keep its traces in",
                fix='add "__dict__" to the __slots__ of the class, or decorate a function',
            )
        bound = store.get(self._key)
        if bound is None or bound._instance is not instance:  # a copy inherits the original's
            with tracing:
                bound = store.get(self._key)
                if bound is None or bound._instance is not instance:
                    bound = store[self._key] = self._bound_to(instance)
        return bound

    def _bound_to(self, instance: Any) -> Function:
        method = self._python_function.__get__(instance, type(instance))
        return Function(method, name=self._name, **self._options)

    @property
    def _instance(self) -> Any:
        """The instance that a method is bound to, or None."""
        return getattr(self._python_function, "__self__", None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """A function without traces, bound to the copied instance: traces hold Variables."""
        function = self._python_function
        if self._instance is not None and hasattr(function, "__func__"):
            function = function.__func__.__get__(copy.deepcopy(self._instance, memo))
        return Function(function, name=self._name, **self._options)

    def __copy__(self) -> Function:
        return Function(self._python_function, name=self._name, **self._options)

    def __reduce__(self) -> Any:
        """Pickles by name, like Python functions; a bound method by its class's name. Otherwise
        pickles the Python function, which may refuse."""
        name = vars(self).get("__qualname__", "")
        if self._instance is None and _found(vars(self).get("__module__"), name) is self:
            return name
        attribute = self._attribute()
        if attribute is not None:
            return getattr, (self._instance, attribute)
        return _made_again, (self._python_function, self._name, self._options)

    def _attribute(self) -> str | None:
        """The name of the class attribute that creates this bound function; None if none does."""
        inner = getattr(self._python_function, "__func__", None)
        owner = self._instance if isinstance(self._instance, type) else type(self._instance)
        rows = (row for cls in owner.__mro__ for row in vars(cls).items())
        return next((name for name, x in rows if inner and _decorated_in(x) is inner), None)

    def __repr__(self) -> str:
        return f"<tg.function {self._name}{self._signature.parameters}>"

    def _repr_html_(self) -> str | None:
        """Its trace as a notebook shows it, or a list if there are several; None if there are
        none."""
        traces = self.traces
        if len(traces) < 2:
            return traces[0]._repr_html_() if traces else None
        html_frames = opened("tracegraph.views.graph_frames").html_frames
        return html_frames((x.pretty_printed_signature(verbose=False), x.graph) for x in traces)


def _found(module: str | None, path: str) -> Any:
    """The object in a module under a qualified name; None if there is none."""
    found: Any = sys.modules.get(module or "")
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _decorated_in(value: Any) -> Any:
    """The Python function of the `tg.function` that a class attribute is, or wraps."""
    while value is not None and not isinstance(value, Function):
        value = getattr(value, "__wrapped__", None)
    return None if value is None else value.python_function


def _made_again(python_function: Any, name: str, options: dict[str, Any]) -> Function:
    """An unpickled function; it has no traces yet."""
    return Function(python_function, name=name, **options)


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, of the callee of a partial, or of the class of a callable object."""
    inner = getattr(function, "func", None)
    names = (getattr(x, "__name__", None) for x in (function, inner))
    return next(filter(None, names), type(function).__name__)


@overload
def function(
    func: Callable[Parameters, Result],
    input_signature: Iterable[Any] | None = ...,
    autograph: bool = ...,
    jit_compile: bool | None = ...,
    reduce_retracing: bool = ...,
    **options: Unpack[_FunctionOptions],
) -> Function[Parameters, Result]: ...
@overload
def function(
    func: None = None,
    input_signature: Iterable[Any] | None = ...,
    autograph: bool = ...,
    jit_compile: bool | None = ...,
    reduce_retracing: bool = ...,
    **options: Unpack[_FunctionOptions],
) -> Callable[[Callable[Parameters, Result]], Function[Parameters, Result]]: ...
def function(
    func: Callable[..., Any] | None = None,
    input_signature: Iterable[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: str | None = None,
    experimental_autograph_options: object = None,
    experimental_attributes: object = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
    check_bounds: bool = False,
    check_numerics: bool = False,
    bucket_sizes: str | Iterable[int] | None = None,
    memory_budget: str | int | None = None,
    roll: Roll = "auto",
    locate_numerics: bool = False,
) -> Any:
    """Compiles a Python function: it is traced once per signature, and the graph runs on XLA.

    Used bare or with arguments, on functions, lambdas, methods (each instance has its own traces),
    partials and other callables. Tensors and arrays are arguments of the graph, keyed by
    dtype and shape; Python values are constants in it, keyed by type and value.

    - `input_signature`: TensorSpecs for the first arguments; one trace serves all that fit.
    - `reduce_retracing`: from the second shape on, sizes that differ are left open.
    - `autograph`: whether `if`, `while`, `for` on tensors become nodes, also in called functions.
    - `jit_compile`: accepted; everything is compiled.
    - `check_bounds`: every run repeats the checks that tracing makes of known values, also in what
      is called: an index or label out of range, an integer divided by zero, a negative power of an
      integer. Raises InvalidArgumentError (a ValueError) with the line. Without it such a
      read is clamped, such a write dropped, and such a number is meaningless.
    - `check_numerics`: every node is checked, also in called functions; the first that makes nan or
      infinity from finite numbers raises NumericsError (a FloatingPointError) with its line.
    - `locate_numerics`: the same for results and new values of Variables, at full speed: only if
      one is not finite does it search the graph, from the same inputs, for the node to blame. With
      effects or `bucket_sizes` it acts as `check_numerics`. Neither assigns Variables then.
    - `bucket_sizes`: "powers_of_two", or integers such as `[8, 32, 128]`, to which arguments are
      padded along open axes, so that few programs serve all sizes. The first call raises ShapeError
      with the line that padding would change.
    - `memory_budget`: bytes, or text such as "2GiB", that a program may use beyond its arguments
      and results: values that gradients read are recomputed, as far as necessary and possible.
    - `roll`: whether equal blocks, such as layers, are compiled as one loop over their stacked
      Variables: by default if an estimate says that it pays, "always", or never (False).

    Raises TypeError if the object is not callable, SignatureError for invalid options.

    >>> @tg.function
    ... def square(x):
    ...     return x * x
    >>> square(tg.constant(3.0)).numpy()
    np.float32(9.0)
    """
    relaxes = reduce_retracing or bool(experimental_relax_shapes)
    options = _flags(autograph, relaxes, check_bounds, check_numerics, locate_numerics)
    options |= {"bucket_sizes": bucket_sizes, "memory_budget": memory_budget, "roll": roll}
    options["jit_compile"] = jit_compile
    decorated = functools.partial(_decorated, input_signature, options)
    return decorated if func is None else decorated(func)


@api_boundary
def _decorated(
    input_signature: Any, options: dict[str, Any], python_function: Callable[..., Any]
) -> Function:
    _check_callable(python_function)
    if isinstance(python_function, Function) and python_function.has_source:
        python_function = python_function.python_function
    return Function(python_function, input_signature, **options)


#: The options of `function` that are flags.
_FLAGS = ("autograph", "reduce_retracing", "check_bounds", "check_numerics", "locate_numerics")


def _flags(*given: Any) -> dict[str, Any]:
    """The flags among the options of `function`."""
    return {name: as_flag("function", name, flag) for name, flag in zip(_FLAGS, given, strict=True)}


def _buckets(sizes: Any) -> Any:
    return opened("tracegraph.execution.buckets").Buckets(sizes)


def _bytes(budget: Any) -> int:
    return opened("tracegraph.memory_budgets.budget").as_bytes(budget)


def _check_callable(python_function: Any) -> None:
    if not callable(python_function):
        fact = f"{shown(python_function)} is not a callable object"
        fail(TraceError, fact, fix="decorate a function, or pass one to tg.function")


take_as_given.add(function)
