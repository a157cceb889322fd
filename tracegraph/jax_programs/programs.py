"""`from_jax`: JAX functions as functions of tensors, traced once per kind of arguments."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

import jax
import numpy as np
from jax import core, export

from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.call import Call, appended
from tracegraph.core.interrupts import Stack, is_of_interrupt
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.source import Source, frame_at, here, is_ours, sourced
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.errors import (
    DTypeError,
    ShapeError,
    SignatureError,
    SizeNeeded,
    TraceError,
    UnknownValue,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import at_top_level, current
from tracegraph.ir.op import attribute_key
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.jax_programs import (
    contract,
    control,
    elementwise,
    index,
    linalg,
    linear_solve,
    random,
    reduce,
    shape,
    windows,
)
from tracegraph.jax_programs.derivatives import custom_rules
from tracegraph.jax_programs.equations import (
    EquationReader,
    constant_of,
    graph_of,
    is_key,
    sizes_not_given,
    type_of,
)
from tracegraph.jax_programs.static_arguments import StaticArguments, static_arguments
from tracegraph.operands.conversion import LARGEST_CONSTANT, as_tensor
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.typing import Positional

#: Importing a family registers its primitives.
_FAMILIES = (
    *(contract, control, custom_rules, elementwise, index, linalg, linear_solve),
    *(random, reduce, shape, windows),
)
#: How many traces of one function to keep.
_MOST_PROGRAMS = 64


class TracedProgram(NamedTuple):
    """A trace: the graph of constants and leaves, the constants, and the structure of results."""

    graph: Graph
    constants: list[Tensor]
    structure: Any


@overload
def from_jax(
    fn: Positional[jax.Array],
    *,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
) -> Callable[..., Tensor]: ...
@overload
def from_jax(
    fn: Positional[Any],
    *,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
) -> Callable[..., Any]: ...
def from_jax(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Iterable[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
) -> Callable[..., Any]:
    """Converts a JAX function to a function of tensors, whose program becomes graph nodes.

    - `fn`: a pure JAX function. Its arguments and results are pytrees. Here the leaves of arguments
      are tensors, Variables, arrays and numbers; the leaves of results are tensors.
    - `static_argnums`, `static_argnames`: arguments that fn gets unchanged, as it does keyword
      arguments that are Python numbers, strings, functions or None. Each new value of one is a
      new trace. If only positions or only names are given, the others follow from fn's signature,
      as in `jax.jit`.

    Call the result wherever an op can be called: at top level, in a `tg.function`, under tapes and
    in `tg.vectorized_map`. It is one `call` node, whose graph keeps the line numbers of the JAX
    program. It has derivatives of any order in both modes: those of JAX, including `jax.custom_vjp`
    and `jax.custom_jvp` rules. A saved model holds the graph and does not need fn.

    Random-number keys are arrays of two uint32; the random numbers are JAX's. Open sizes stay open
    if JAX's symbolic shapes allow it; otherwise fn is traced for each size. If an argument has 64
    bits, fn is traced with `jax_enable_x64`.

    Raises TraceError for an argument that is not an array, for a primitive without a counterpart
    (naming it and its line), if fn needs a concrete value while it is traced, and if it reads or
    assigns a Variable that is not an argument; DTypeError for
    dtypes that tensors do not support; SignatureError for static arguments that fn does not take,
    and for arrays as static arguments.

    >>> import jax.numpy as jnp
    >>> x = tg.Variable([1.0, 2.0])
    >>> with tg.GradientTape() as tape:
    ...     y = tg.from_jax(lambda x: jnp.sum(x**3))(x)
    >>> tape.gradient(y, x).numpy()
    array([ 3., 12.], dtype=float32)
    """
    if not callable(fn):
        fail(TraceError, f"from_jax: {shown(fn)} is not a function", fix="give a function of JAX")
    return JaxFunction(fn, static_argnums, static_argnames)


class JaxFunction:
    """A JAX function that takes tensors; see `tg.from_jax`."""

    def __init__(self, fn: Callable[..., Any], numbers: Any, names: Any) -> None:
        self._function = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._programs: LRUCache[Any, TracedProgram] = LRUCache(_MOST_PROGRAMS)
        with contextlib.suppress(AttributeError, TypeError):  # a callable object may have no name
            functools.update_wrapper(self, fn, updated=())
        signature = _signature_of(fn)
        if signature is not None:
            self.__signature__ = _as_given(signature)
        self._static = static_arguments(self._name, signature, numbers, names)

    def __repr__(self) -> str:
        return f"<tg.from_jax of {self._name}>"

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _ProgramArguments(self._name, args, kwargs, self._static)
        program = self._programs.get(call.key)
        if program is None:
            program = self._programs.setdefault(call.key, _traced(self._function, call))
        if not program.graph.outputs:
            return program.structure.unflatten([])
        outputs = appended(Call(program.graph), [*program.constants, *call.tensors])
        return program.structure.unflatten(outputs)


def _signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; a built-in one may have none."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _as_given(signature: inspect.Signature) -> inspect.Signature:
    """A signature in which parameters with defaults become `*args` and `**kwargs`. A caller that
    goes by it, such as `tg.function`, fills in no defaults, and passes by name what it got by
    name."""
    kinds = inspect.Parameter
    variable = kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD
    every = [p for p in signature.parameters.values() if p.kind not in variable]
    needed = [p for p in every if p.default is p.empty]
    rest = {p.kind: p for p in signature.parameters.values() if p.kind in variable}
    if len(needed) < len(every):
        rest.setdefault(kinds.VAR_POSITIONAL, kinds("args", kinds.VAR_POSITIONAL))
        rest.setdefault(kinds.VAR_KEYWORD, kinds("kwargs", kinds.VAR_KEYWORD))
    return signature.replace(parameters=sorted([*needed, *rest.values()], key=lambda p: p.kind))


class _ProgramArguments:
    """The arguments of a call: tensors, and values passed to the function unchanged."""

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
    ) -> None:
        self.name = name
        self._count = len(args)
        self.static: dict[Any, Any] = {i: args[i] for i in sorted(static.places(len(args)))}
        self.static |= {k: x for k, x in kwargs.items() if k in static.names}
        for place, x in self.static.items():
            if isinstance(x, (Tensor, Variable, np.ndarray, jax.Array)) or _is_leaf(x):
                fail(
                    SignatureError,
                    f"{name}: the static argument {place!r} is {kind_of(x)}: {shown(x)}",
                    fix="give a Python value there, or leave the argument out of static_argnums "
                    "and static_argnames",
                )
        settings = {k: x for k, x in kwargs.items() if k not in static.names and _is_setting(x)}
        self._static_key = (
            tuple((k, type(x), attribute_key(x)) for k, x in self.static.items()),
            tuple((k, _setting_key(x)) for k, x in settings.items()),
        )
        self.static |= settings
        traced = (
            {i: x for i, x in enumerate(args) if i not in self.static},
            {k: x for k, x in kwargs.items() if k not in self.static},
        )
        leaves, self.structure = jax.tree_util.tree_flatten(traced, is_leaf=_is_leaf)
        self.tensors: list[Tensor] = []
        self.stand_ins: list[_StandIn] = []
        for leaf in leaves:
            tensor, stand_in = _converted(name, leaf)
            self.tensors.append(tensor)
            self.stand_ins.append(stand_in)
        self.is_open = not all(x.type.is_static for x in self.stand_ins)
        self.is_wide = any(x.type.dtype.name in WIDE for x in self.stand_ins)

    @functools.cached_property
    def key(self) -> Any:
        """Equal for calls that share a trace."""
        key = self.structure, self._static_key, tuple(self.stand_ins), jax.config.jax_enable_x64  # type: ignore[attr-defined]
        try:
            hash(key)
        except TypeError:
            fail(
                SignatureError,
                f"{self.name}: a static argument cannot be hashed: {shown(self.static)}",
                fix="give a tuple instead of a list, or an object that has a hash",
            )
        return key

    def packed(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the function, with these leaves."""
        by_place, by_name = jax.tree_util.tree_unflatten(self.structure, leaves)
        every = {**by_place, **{k: x for k, x in self.static.items() if isinstance(k, int)}}
        named = {k: x for k, x in self.static.items() if isinstance(k, str)}
        return [every[i] for i in range(self._count)], {**by_name, **named}

    def abstract(self) -> list[jax.ShapeDtypeStruct]:
        """The abstract values of the leaves, for JAX to trace with; open sizes are symbolic."""
        sizes: dict[Any, str] = {}
        for x in self.stand_ins:
            for size in x.type.shape:
                if isinstance(size, Dim):
                    sizes.setdefault(size, f"d{len(sizes)}")
        names = list(sizes.values())
        symbols = export.symbolic_shape(", ".join(names)) if names else ()
        known = dict(zip(sizes, symbols, strict=True))
        return [x.abstract(known) for x in self.stand_ins]


class _StandIn(NamedTuple):
    """A trace's information about a leaf."""

    type: TensorType
    #: Whether it adapts to other dtypes, as a Python number does, or what JAX makes of one.
    is_weak: bool = False
    #: The dtype of random-number keys, whose shape is that of the array of keys.
    key_type: Any = None

    def abstract(self, sizes: dict[Any, Any]) -> jax.ShapeDtypeStruct:
        shape = tuple(sizes.get(size, size) for size in self.type.shape)
        if self.key_type is not None:
            return jax.ShapeDtypeStruct(shape[:-1], self.key_type)
        dtype = self.type.dtype.numpy_dtype
        return jax.ShapeDtypeStruct(shape, dtype, weak_type=self.is_weak)


class WeakLeaf:
    """A Variable whose value adapts to other dtypes, as the JAX array that it was made of does:
    `jnp.asarray(2.0)` times bfloat16 is bfloat16."""

    weak_type = True

    def __init__(self, variable: Variable) -> None:
        self._variable = variable
        self.dtype = variable.dtype

    def __tracegraph_tensor__(self) -> Tensor:
        return as_tensor(self._variable)


def as_before(variable: Variable, is_weak: bool) -> Any:
    """A Variable as an argument that promotes as the array did that it was made of."""
    return WeakLeaf(variable) if is_weak else variable


#: The data types that exist in JAX only with `jax_enable_x64`.
WIDE = ("float64", "int64", "uint64", "complex128")
_NUMBERS = (bool, int, float, complex)


def _is_leaf(x: Any) -> bool:
    # JAX warns of an iterator that it takes for a leaf, unless it is told that it is one.
    return hasattr(x, "__tracegraph_tensor__") or isinstance(x, Iterator)


def _is_setting(value: Any) -> bool:
    """Whether a keyword argument contains no array."""
    leaves = jax.tree_util.tree_leaves(value, is_leaf=_is_leaf)
    return not any(hasattr(leaf, "dtype") for leaf in leaves)


def _setting_key(value: Any) -> Any:
    """Equal for settings that share a trace: a list of them would not be hashable."""
    leaves, structure = jax.tree_util.tree_flatten(value, is_leaf=_is_leaf)
    return structure, tuple((type(leaf), attribute_key(leaf)) for leaf in leaves)


def _converted(name: str, leaf: Any) -> tuple[Tensor, _StandIn]:
    """A leaf as a tensor, and the stand-in for it."""
    if isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic):
        dtype = as_dtype(jax.dtypes.canonicalize_dtype(type(leaf)))
        tensor = as_tensor(leaf, dtype)
        return tensor, _StandIn(tensor.type, is_weak=not isinstance(leaf, bool))
    if isinstance(leaf, jax.Array) and is_key(leaf):
        tensor = as_tensor(jax.random.key_data(leaf))
        return tensor, _StandIn(tensor.type, key_type=leaf.dtype)
    if not hasattr(leaf, "dtype"):
        fail(
            TraceError,
            f"{name}: an argument of a function of JAX is {kind_of(leaf)}: {shown(leaf)}",
            fix="give arrays and numbers; name what is a setting in static_argnums or "
            "static_argnames",
        )
    tensor = as_tensor(leaf)
    if isinstance(tensor.type.shape, ShapeVariable):
        fail(  # a live function that catches this retraces with the rank
            ShapeError,
            f"{name}: the number of axes of an argument is not known: {tensor.type}",
            fix="give the rank in the TensorSpec, as TensorSpec([None, None])",
        )
    return tensor, _StandIn(tensor.type, is_weak=is_weakly_typed(leaf))


def is_weakly_typed(leaf: Any) -> bool:
    """Whether a leaf is what JAX makes of a Python number, which widens nothing."""
    return bool(getattr(leaf, "weak_type", False))


def _traced(function: Callable[..., Any], call: _ProgramArguments) -> TracedProgram:
    """The program of a function for arguments like those of a call. Raises SizeNeeded for what JAX,
    or a rule of ours, refuses to do with open sizes: what it raises then is an error of any kind,
    and a trace for known sizes shows whether it is about them."""
    try:
        program = _program(function, call)
    except Exception as error:
        if not call.is_open or is_of_interrupt(error) or _is_of_every_size(error):
            raise
        _refuse(
            SizeNeeded,
            f"{call.name}: JAX cannot trace it with open sizes: {type(error).__name__}",
            error,
            _GIVE_SIZES,
        )
    if call.is_open and any(map(sizes_not_given, program.graph.graphs())):
        fail(SizeNeeded, f"{call.name}: a part of it needs an open size", fix=_GIVE_SIZES)
    return program


_GIVE_SIZES = "give the size in the TensorSpec, or let the function be traced for each size"


def _is_of_every_size(error: Exception) -> bool:
    """Whether an error of ours says something that no sizes change."""
    if isinstance(error, (TraceError, DTypeError, SizeNeeded)):
        return not isinstance(error, UnknownValue)
    return False


def _program(function: Callable[..., Any], call: _ProgramArguments) -> TracedProgram:

    def flat(*leaves: Any) -> Any:
        args, kwargs = call.packed(leaves)
        results = function(*args, **kwargs)
        _check_results(call.name, results)
        return results

    wide = jax.enable_x64(True) if call.is_wide else contextlib.nullcontext()
    with wide, at_top_level():
        closed, results = _jaxpr(flat, call)
        _check_no_leaks(call.name, closed)
        constants = [_constant(value) for value in closed.consts]
        types = [
            *(x.type for x in constants if x is not None),
            *(type_of(x.aval) for x in closed.jaxpr.invars),
        ]
        count = len(types) - len(closed.jaxpr.invars)

        def body(*inputs: Tensor) -> Sequence[Tensor]:
            given = iter(inputs[:count])
            every = [
                constant_of(value) if large is None else next(given)
                for value, large in zip(closed.consts, constants, strict=True)
            ]
            return EquationReader().run(closed.jaxpr, every, inputs[count:])

        with sourced(here()):
            graph = graph_of(call.name, types, body)
    structure = jax.tree_util.tree_structure(results)
    return TracedProgram(graph, [x for x in constants if x is not None], structure)


def _constant(value: Any) -> Tensor | None:
    """A constant of a program as an input of its graph; None if it is small enough to inline."""
    if not hasattr(value, "dtype") or is_key(value) or value.size <= LARGEST_CONSTANT:
        return None
    return as_tensor(np.asarray(value))


def _check_results(name: str, results: Any) -> None:
    """Raises TraceError for a result that is not an array."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(results, is_leaf=_is_leaf)[0]:
        try:
            jax.typeof(leaf)
        except TypeError as error:
            place = jax.tree_util.keystr(path)
            fail(
                TraceError,
                f"{name}: the result{place and f' at {place}'} of a function of JAX is "
                f"{kind_of(leaf)}: {shown(leaf)}",
                fix="return arrays and numbers, in lists, tuples and dicts",
                cause=error,
            )


class _StateGuard:
    """A recorder, in the place of a tape, that refuses uses of Variables while JAX traces: the
    program would have the value of that moment for ever."""

    #: Whether numbers that come from Python are of interest.
    has_left = False
    #: What to do about a tensor from outside.
    fix_of_captures = "pass the tensor to the function of JAX as an argument"

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._stack, self._builder = Stack(frame_at(1)), current()
        self._builder.recorders.append(self)

    def __exit__(self, *exception: object) -> None:
        self._builder.recorders.remove(self)

    def access(self, variable: Variable) -> None:
        self._refuse("reads", variable.base_name)

    def leave(self, tensor: Tensor, how: str) -> None:
        has_value = any(getattr(tensor, x, None) is not None for x in ("node", "buffer", "host"))
        if not has_value:  # it stands for a Variable
            self._refuse("reads", tensor.name)

    def assign(self, handle: Tensor, assignment: Any) -> None:
        self._refuse("assigns", handle.name)

    def _refuse(self, what: str, name: str | None) -> None:
        if not self._stack.is_interrupted_by(frame_at(1)):  # a signal handler may do so
            fail(
                TraceError,
                f"{self._name}: a function of JAX {what} the Variable {name!r} while it is traced, "
                "which happens once",
                fix="pass the Variable as an argument, and assign what the function returns",
            )

    def record(self, node: Any) -> None:
        """Sees a node that Python adds."""

    def depends_on(self, tensors: Sequence[Tensor]) -> bool:
        return False

    def decide(self, outcome: bool) -> None:
        """Sees a value that Python decides by."""

    def arrive(self, tensor: Tensor) -> None:
        """Sees a value that comes from NumPy."""


def _check_no_leaks(name: str, closed: Any) -> None:
    """Raises TraceError for a tracer that leaked from another JAX trace."""
    if any(isinstance(value, core.Tracer) for value in closed.consts):
        fail(TraceError, f"{name}: it uses a value that another trace of JAX made", fix=_NO_LEAKS)


_NO_LEAKS = "keep no traced value outside of the function: return it, or pass it as an argument"


def _jaxpr(flat: Callable[..., Any], call: _ProgramArguments) -> tuple[Any, Any]:
    """What JAX traces, and the results with their structure. Raises TraceError where the function
    asks for a value."""
    try:
        with _StateGuard(call.name):
            return jax.make_jaxpr(flat, return_shape=True)(*call.abstract())
    except (jax.errors.UnexpectedTracerError, jax.errors.ConcretizationTypeError) as error:
        fix = f"name what must be a Python value in static_argnums or static_argnames; {_NO_LEAKS}"
        if isinstance(error, jax.errors.TracerBoolConversionError):
            fix = (
                "choose by jnp.where, jax.lax.cond or jax.lax.while_loop, or name what Python "
                "decides by in static_argnums or static_argnames"
            )
        _refuse(TraceError, f"{call.name}: JAX cannot trace it", error, fix)
    except NameError as error:
        if "axis name" not in str(error):  # the user's own
            raise
        fix = "name the axis around it: jax.vmap(f, axis_name=...); a graph has no axes of devices"
        _refuse(TraceError, f"{call.name}: JAX cannot trace it", error, fix)
    except jax.errors.TracerArrayConversionError as error:
        fix = "use jax.numpy in the place of NumPy"
        _refuse(TraceError, f"{call.name}: JAX cannot trace it", error, fix)
    except Exception as error:
        if isinstance(error, ValueError) and "Non-hashable static arguments" in str(error):
            fail(
                TraceError,
                f"{call.name}: an argument that is static for jax.jit is traced as an array here",
                source=_line_of(error),
                fix="name static arguments in from_jax too, by static_argnums or static_argnames",
                cause=error,
            )
        if isinstance(error, TypeError) and any(str(x) in str(error) for x in (Tensor, Variable)):
            fact = f"{call.name}: a function of JAX takes no tensor from outside"
            _refuse(TraceError, fact, error, _StateGuard.fix_of_captures)
        types = ", ".join(str(x.type) for x in call.stand_ins)
        note = f"in {call.name}({types}), a function of JAX traced by from_jax"
        error.add_note(f"{note}\n  at {_line_of(error)}")
        raise


def _refuse(kind: type[Exception], fact: str, error: Exception, fix: str) -> NoReturn:
    reason = str(error).split("\n")[0].rstrip(".: ")
    fail(kind, f"{fact}: {reason}", source=_line_of(error), fix=fix, cause=error)


def _line_of(error: Exception) -> Any:
    """The user's innermost line in the traceback of an error."""
    from_traceback = error.__traceback__
    found = None
    while from_traceback is not None:
        found = _place(from_traceback) or found
        from_traceback = from_traceback.tb_next
    return found or here()


def _place(traceback: Any) -> Any:
    code = traceback.tb_frame.f_code
    if is_ours(code.co_filename):
        return None
    return Source(code, traceback.tb_lasti)
