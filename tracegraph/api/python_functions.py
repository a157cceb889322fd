"""`py_function` and `numpy_function`: Python functions called at run time, and derivatives."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tracegraph.core.shapes import ShapeVariable
from tracegraph.core.source import Source, here, sourced, unsourced
from tracegraph.core.tensorshape import TensorShape, TensorSpec
from tracegraph.core.types import TensorType, as_dtype, type_of_array
from tracegraph.differentiation.tape import GradientTape
from tracegraph.eager.pending import in_host_call
from tracegraph.eager.tensor_methods import HOST_CALL, host_array, tell_tapes
from tracegraph.effects.host_calls import HostFunction, declared_type, host_call
from tracegraph.effects.prefix import calls_before, results_of_call, store_state, traces_around
from tracegraph.effects.record import current_record
from tracegraph.errors import DTypeError, InvalidArgumentError, TraceError, fail, kind_of, shown
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.effect import HostCall
from tracegraph.state.variable import is_array
from tracegraph.tracing.trace import Trace, current_trace

if TYPE_CHECKING:
    from typing import TypeAlias

    from tracegraph.typing import DTypeLike, Positional, TensorLike

    Declared: TypeAlias = DTypeLike | TensorSpec


@overload
def numpy_function(
    func: Positional[Any],
    inp: TensorLike | None,
    Tout: Declared,
    stateful: bool = ...,
    name: str | None = ...,
) -> Tensor: ...
@overload
def numpy_function(
    func: Positional[Any],
    inp: TensorLike | None,
    Tout: Sequence[Declared],
    stateful: bool = ...,
    name: str | None = ...,
) -> list[Tensor]: ...
@overload
def numpy_function(
    func: Positional[Any],
    inp: TensorLike | None = ...,
    Tout: None = ...,
    stateful: bool = ...,
    name: str | None = ...,
) -> None: ...
def numpy_function(
    func: Positional[Any] | None = None,
    inp: TensorLike | None = None,
    Tout: Declared | Sequence[Declared] | None = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Calls `func` on NumPy arrays at every run; its gradient is None.

    - `inp`: the tensors to pass as arguments; None for none.
    - `Tout`: the dtype or the TensorSpec of the result, or a list of them.

    XLA must know the shapes of the results, so a program is split where it calls Python. A None
    size in a TensorSpec may differ from call to call. If `Tout` gives no shape at all, the first
    call's shape is traced; a call that returns another shape causes a retrace with open sizes.

    Raises TypeError for results whose dtypes differ from `Tout`, and InvalidArgumentError (a
    ValueError) for a wrong number of results or a shape that differs from the declared one.
    """
    return _python_call(ArrayFunction, func, inp, Tout)


@overload
def py_function(
    func: Positional[Any],
    inp: TensorLike | None,
    Tout: Declared,
    name: str | None = ...,
) -> Tensor: ...
@overload
def py_function(
    func: Positional[Any],
    inp: TensorLike | None,
    Tout: Sequence[Declared],
    name: str | None = ...,
) -> list[Tensor]: ...
@overload
def py_function(
    func: Positional[Any],
    inp: TensorLike | None = ...,
    Tout: None = ...,
    name: str | None = ...,
) -> None: ...
def py_function(
    func: Positional[Any] | None = None,
    inp: TensorLike | None = None,
    Tout: Declared | Sequence[Declared] | None = None,
    name: str | None = None,
) -> Any:
    """Calls `func` on tensors at every run, computing at top level; differentiable.

    Arguments and errors are those of `numpy_function`; `func` takes and returns tensors. A tape
    around it differentiates it at run time, to any order and in both modes. In a function the
    derivatives are those by `inp` alone: pass a Variable that `func` uses in `inp`, too.
    """
    return _python_call(TensorFunction, func, inp, Tout)


def _python_call(kind: type[ArrayFunction], func: Any, inp: Any, Tout: Any) -> Any:
    if not callable(func):
        name = kind.public_name
        fix = (
            f"{name} is not a decorator: call it where the result is used, "
            f"{name}(function, [x], Tout)"
        )
        fail(TraceError, f"{name}: {shown(func)} is not callable", fix=fix)
    arguments = [] if inp is None else inp if isinstance(inp, (list, tuple)) else [inp]
    inputs = [as_tensor(x) for x in arguments]
    is_list = isinstance(Tout, (list, tuple))
    given = list(Tout) if is_list else [Tout] if Tout is not None else []  # type: ignore[arg-type]
    function = kind(func, [_spec(t) for t in given], here())
    if current_trace() is None:
        outputs = function.results(*inputs)
    else:
        outputs = _call_later(function, inputs)
    return outputs if is_list else outputs[0] if outputs else None


def _spec(declared: Any) -> TensorSpec:
    """The TensorSpec of a result in `Tout`; its shape is None if `Tout` omits it."""
    if isinstance(declared, TensorSpec):
        return declared
    return TensorSpec(None, as_dtype(declared))


class ArrayFunction(HostFunction):
    """The function of a `numpy_function`: called with arrays; its results are the declared tensors.

    `specs` describe the results, `source` is the user's line.
    """

    #: The name by which users call it.
    public_name = "tg.numpy_function"
    is_differentiable = False
    is_derivative = False

    def __init__(self, function: Any, specs: Sequence[TensorSpec], source: Source) -> None:
        self._function = function
        self._source = source
        self._declare(specs)
        #: Its name in the text of a graph.
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def _declare(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = specs
        #: The positions of the results whose rank `Tout` leaves open.
        self.undeclared = tuple(i for i, spec in enumerate(specs) if spec.shape.rank is None)

    def declaring(self, place: int, spec: TensorSpec) -> ArrayFunction:
        declared = copy.copy(self)
        declared._declare([spec if i == place else old for i, old in enumerate(self.specs)])
        return declared

    def __call__(self, *arrays: np.ndarray) -> list[Tensor]:
        return self.run(arrays)[0]

    def run(
        self, arrays: Sequence[np.ndarray], forward: RecordedCall | None = None, keeps: bool = False
    ) -> tuple[list[Tensor], RecordedCall | None]:
        return self.made([*map(_value, arrays)], forward, keeps)

    def made(
        self, inputs: Sequence[Tensor], forward: RecordedCall | None, keeps: bool
    ) -> tuple[list[Tensor], RecordedCall | None]:
        return self.results(*inputs), None

    def results(self, *inputs: Tensor) -> list[Tensor]:
        """The results for these inputs. Raises the errors of `numpy_function`."""
        for x in inputs:
            tell_tapes(x, HOST_CALL)
        arrays = [np.array(host_array(x)) for x in inputs]
        with unsourced():
            result = self._function(*arrays)
        return self._declared(result)

    def _declared(self, result: Any) -> list[Tensor]:
        """The results as tensors, checked against the specs."""
        is_list = isinstance(result, (list, tuple))
        leaves = list(result) if is_list else [] if result is None else [result]
        with sourced(self._source):
            if len(leaves) != len(self.specs):
                fail(
                    InvalidArgumentError,
                    f"{self.called} returned {len(leaves)} values and Tout declares "
                    f"{len(self.specs)}",
                    source=self._source,
                    fix="give one dtype or TensorSpec in Tout for each returned value",
                )
            return [self._as(y, spec) for y, spec in zip(leaves, self.specs, strict=True)]

    def _as(self, leaf: Any, spec: TensorSpec) -> Tensor:
        if isinstance(leaf, (str, bytes)):
            fail(
                DTypeError,
                f"{self.called} returned {kind_of(leaf)}, {shown(leaf)}, and Tout says "
                f"{spec.dtype.name}",
                source=self._source,
                fix="return tensors, arrays or numbers, and keep strings in Python",
            )
        tensor = as_tensor(leaf) if is_array(leaf) else as_tensor(leaf, spec.dtype)
        if tensor.dtype is not spec.dtype:
            fail(
                DTypeError,
                f"{self.called} returned {tensor.dtype.name} and Tout says {spec.dtype.name}",
                source=self._source,
                fix="make Tout and the returned dtype agree",
            )
        if not spec.shape.is_compatible_with(TensorShape(tensor.type.shape)):
            fail(
                InvalidArgumentError,
                f"{self.called} returned the shape {tensor.type.shape} and Tout says {spec.shape}",
                source=self._source,
                fix="make Tout and the returned shape agree, with None for a size that is open",
            )
        return tensor

    @property
    def called(self) -> str:
        """The function that the user called, as named in messages."""
        return f"{self.public_name} of {self._name}"

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)


class TensorFunction(ArrayFunction):
    """The function of a `py_function`: it computes with tensors, so it has derivatives, which are
    again such functions."""

    public_name = "tg.py_function"
    is_differentiable = True

    def results(self, *inputs: Tensor) -> list[Tensor]:
        with unsourced():
            result = self._function(*inputs)
        return self._declared(result)

    def made(
        self, inputs: Sequence[Tensor], forward: RecordedCall | None, keeps: bool
    ) -> tuple[list[Tensor], RecordedCall | None]:
        if not keeps:
            return self.results(*inputs), None
        sources = _differentiable(inputs)
        with GradientTape(persistent=True) as tape:
            tape.watch(sources)
            results = self.results(*inputs)
        return results, RecordedCall(tape, current(), sources, _differentiable(results))

    def pullback(self, count: int, types: tuple[TensorType, ...]) -> TensorFunction:
        """`(*xs, *cotangents) -> cotangents of the xs`, for the `count` differentiable inputs,
        whose types are `types`."""
        return _Derivative(self, "pullback", RecordedCall.pullback, count, types, self._source)

    def pushforward(self, count: int, types: tuple[TensorType, ...]) -> TensorFunction:
        """`(*xs, *tangents) -> tangents of the results`, of the types `types`."""
        return _Derivative(
            self, "pushforward", RecordedCall.pushforward, count, types, self._source
        )


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """The record of a call of a `py_function`, which is differentiated without calling it again.

    Derivatives of a derivative are recorded on the same tape.
    """

    tape: GradientTape
    builder: Builder
    sources: list[Tensor]
    results: list[Tensor]
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    def pullback(self, cotangents: list[Tensor]) -> list[Tensor]:
        return self.tape.gradient(self.results, self.sources, cotangents, "zero")

    def pushforward(self, tangents: list[Tensor]) -> list[Tensor]:
        return self.tape.pushed_forward(self.results, self.sources, tangents)


class _Derivative(TensorFunction):
    """A derivative of a `py_function`: a function of its `count` inputs, and of cotangents or
    tangents. It is internal, so its nodes belong to the user's line."""

    is_derivative = True

    def __init__(
        self,
        base: TensorFunction,
        kind: str,
        derive: Callable[[RecordedCall, list[Tensor]], list[Tensor]],
        count: int,
        types: tuple[TensorType, ...],
        source: Source,
    ) -> None:
        super().__init__(self.results, [TensorSpec(t.shape, t.dtype) for t in types], source)
        self._base = base
        self._derive = derive
        self._count = count
        self.__qualname__ = f"{base.__qualname__}.{kind}"
        self._public_name = f"the {kind} of {base._name}"

    @property
    def called(self) -> str:
        return self._name

    @property
    def _name(self) -> str:
        return self._public_name

    def results(self, *inputs: Tensor) -> list[Tensor]:
        return self.made(inputs, None, False)[0]

    def made(
        self, inputs: Sequence[Tensor], forward: RecordedCall | None, keeps: bool
    ) -> tuple[list[Tensor], RecordedCall | None]:
        xs, directions = inputs[: self._count], list(inputs[self._count :])
        if forward is None:
            _, forward = self._base.made(xs, None, True)
            assert forward is not None
        if not keeps:
            return self._declared(self._derive(forward, directions)), None
        with forward.lock, in_host_call(forward.builder), forward.tape as tape:
            tape.watch(directions)
            results = self._declared(self._derive(forward, directions))
            sources = [*forward.sources, *directions]
            return results, dataclasses.replace(forward, sources=sources, results=results)


def _differentiable(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in tensors if x.dtype.is_differentiable]


def _value(array: np.ndarray) -> Tensor:
    array = np.array(array)
    return host_tensor(type_of_array(array), array)


def _call_later(function: ArrayFunction, inputs: list[Tensor]) -> list[Tensor]:
    """Appends the call to the trace. If the rank of a result is not declared, it makes the call
    that is being traced now, so that tracing can go on."""
    trace = current_trace()
    assert trace is not None
    types = [declared_type(spec) for spec in function.specs]
    if any(isinstance(type.shape, ShapeVariable) for type in types):
        types = _types_returned(trace, function, inputs, types)
    return list(host_call(function, inputs, types, function.is_differentiable))


def _types_returned(
    trace: Trace, function: ArrayFunction, inputs: Sequence[Tensor], types: list[TensorType]
) -> list[TensorType]:
    """The types that the function returns in the call being traced. Without such a call the rank
    stays open: a TensorSpec has no value to call the function with."""
    record = current_record()
    if record is None or any(x.actual is None for x in traces_around(trace)):
        return types
    store_state(trace)
    gate = () if trace.all_hold is None else (trace.all_hold,)
    op = HostCall(function, tuple(types), function.is_differentiable, bool(gate))
    place = calls_before(trace)
    found = results_of_call(trace, op, trace.admit_all((*gate, *inputs)), record)
    if place not in record.shapes:
        return [*map(type_of_array, found)]
    pairs = zip(record.shapes[place], types, strict=True)
    return [declared_type(TensorSpec(shape, type.dtype)) for shape, type in pairs]


__all__ = ["numpy_function", "py_function"]
