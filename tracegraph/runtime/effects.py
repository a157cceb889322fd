"""Effects: printing, Python functions called at run time, and checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegraph.control.cuts import size_names
from tracegraph.errors import DTypeError, InvalidArgumentError, TraceError, fail, shown
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.ops.effect import HostCall, Loop, set_host_runner
from tracegraph.runtime.accumulator import ForwardAccumulator
from tracegraph.runtime.convert import as_tensor
from tracegraph.runtime.pending import in_host_call
from tracegraph.runtime.prefix import results_of_call, traces_around
from tracegraph.runtime.printing import AppendedFile, Template, template_of
from tracegraph.runtime.procedure import current_record, recorded_call
from tracegraph.runtime.tape import GradientTape
from tracegraph.runtime.trace import Trace, current_trace, init_scope
from tracegraph.runtime.values import HOST_CALL, host_array, tell_tapes
from tracegraph.runtime.variable import Variable
from tracegraph.shapes import Dim, ShapeVariable, static_shape
from tracegraph.source import Source, here, sourced, unsourced
from tracegraph.tensorshape import TensorShape, TensorSpec
from tracegraph.types import TensorType, as_dtype, type_of_array

# Calls in a trace, and how programs make them.


def host_call(
    function: Callable[..., Any] | tuple[Any, ...],
    inputs: Sequence[Tensor],
    types: Sequence[TensorType],
    is_differentiable: bool = False,
) -> tuple[Tensor, ...]:
    """Appends a call of a Python function of arrays to the trace, after the effects before it."""
    trace = current()
    # What comes after a check that fails does not happen.
    gate = (trace.all_hold,) if isinstance(trace, Trace) and trace.all_hold is not None else ()
    op = HostCall(function, tuple(types), is_differentiable, bool(gate))
    if not isinstance(trace, Trace):
        fail(
            TraceError,
            f"{op.called} was called inside a gradient rule",
            source=here(),
            fix="compute it outside of the rule",
        )
    if op.sees_variables:
        trace.store_state()
    found = op(trace.take_token(), *gate, *inputs)
    token, *outputs = found if isinstance(found, tuple) else (found,)
    trace.give_token(token)
    if op.sees_variables:
        trace.forget_state()
    return tuple(outputs)


def _runner(op: HostCall, source: Source) -> Callable[..., tuple[np.ndarray, ...]]:
    """What is called for a host call of the user's line `source`; see `ops.effect.HostRunner`."""
    function = (
        op.function if callable(op.function) else _FUNCTIONS[op.function[0]](*op.function[1:])
    )

    def run(
        *arrays: np.ndarray, first: Sequence[np.ndarray] | None = None
    ) -> tuple[np.ndarray, ...]:
        iteration = _Iteration(op, function, source, first)
        try:
            with _apart(), sourced(source):
                return iteration.run(op.loops, arrays)
        except Exception as error:
            error.add_note(f"in a Python function called at {source.file}:{source.line}")
            raise

    return run


class _Iteration:
    """The calls of a Python function in all iterations of the parallel loops around it, in order.
    The results of the `first` may be known."""

    def __init__(
        self,
        op: HostCall,
        function: Callable[..., Any],
        source: Source,
        first: Sequence[np.ndarray] | None,
    ) -> None:
        self._op = op
        self._function = function
        self._source = source
        self._first = first

    def run(self, loops: Sequence[Loop], arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        if not loops:
            return self._once(arrays)
        (count, flags), *inner = loops
        rows = [
            self.run(inner, [x[i] if flag else x for x, flag in zip(arrays, flags, strict=True)])
            for i in range(count)
        ]
        if rows:
            return tuple(np.stack(column) for column in zip(*rows, strict=True))
        sizes = [n for n, _ in loops]
        return tuple(_zeros(t.with_shape((*sizes, *t.shape))) for t in self._op.types)

    def _once(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        op = self._op
        first, self._first = self._first, None
        if first is not None:
            return tuple(first)
        if op.is_gated and not arrays[0]:
            return tuple(map(_zeros, op.types))
        results = self._function(*arrays[op.is_gated :])
        return tuple(_checked(y, t, self._source) for y, t in zip(results, op.types, strict=True))


@contextmanager
def _apart() -> Iterator[None]:
    """A context for Python functions that programs call: they compute at a top level of their own,
    and no tape or accumulator outside sees them."""
    with in_host_call(), init_scope(), recorded_call():
        yield


def _zeros(type: TensorType) -> np.ndarray:
    return np.zeros(static_shape(type.shape), type.dtype.numpy_dtype)


def _checked(result: Tensor, type: TensorType, source: Source) -> np.ndarray:
    array = host_array(result)
    if not TensorShape(type.shape).is_compatible_with(TensorShape(array.shape)):
        fail(
            InvalidArgumentError,
            f"a Python function returned the shape {array.shape}, and {type} was traced",
            source=source,
            fix="return one shape always, or give the sizes that change as None in Tout: "
            "tg.TensorSpec([None], tg.float32)",
        )
    return array


# Printing.


def print_tensors(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str | None = "\n",
    name: str | None = None,
) -> None:
    """Prints values at every call of a compiled function, in program order; to stderr by default.

    - `inputs`: tensors, Variables, nested structures of them, and anything else, as text.
    - `output_stream`: a stream such as `sys.stdout`, or "file://path" to append to.
    - `summarize`: how many elements are shown at each end of an axis; -1 shows all.
    - `sep` stands between the inputs, `end` after the last.

    Raises TraceError (a TypeError) for what is no stream, and for what is no int.

    >>> tg.print("loss:", tg.constant(0.5), output_stream=sys.stdout)
    loss: 0.5
    """
    pieces, leaves = template_of(inputs, sep, "\n" if end is None else end)
    tensors = [as_tensor(x) for x in leaves]
    data = (pieces, _checked_summarize(summarize), _stream_data(output_stream))
    if current_trace() is None:
        Template(*data)(*map(host_array, tensors))
    else:
        host_call(("print", *data), tensors, ())


def _checked_summarize(summarize: Any) -> int:
    if summarize is None:
        return 3
    if not isinstance(summarize, int):
        fail(
            TraceError,
            f"tg.print: summarize is {shown(summarize)}, and it must be an int",
            source=here(),
            fix="give how many elements are shown at each end of an axis, -1 for all",
        )
    return max(int(summarize), -1)


def _stream_data(stream: Any) -> Any:
    """A stream as the graph holds it: by name, if it has one that outlives the process."""
    if stream is None or stream is sys.stderr:
        return "stderr"
    if stream is sys.stdout:
        return "stdout"
    is_file = isinstance(stream, str) and stream.startswith("file://")
    if not is_file and not hasattr(stream, "write"):
        fail(
            TraceError,
            f"tg.print: the output stream is {shown(stream)}, to which nothing can be written",
            source=here(),
            fix='give sys.stdout, sys.stderr, an open file, or "file://" and a path',
        )
    return AppendedFile(stream.removeprefix("file://")) if is_file else stream


#: Host functions that graphs hold as data, by name.
_FUNCTIONS: dict[str, Callable[..., Callable[..., Any]]] = {
    "print": Template,
    "stop": lambda: tuple,
}


# Python functions.


def numpy_function(
    func: Callable[..., Any],
    inp: Any = (),
    Tout: Any = None,
    stateful: bool = True,
    name: Any = None,
) -> Any:
    """Calls `func` on NumPy arrays at every run; its gradient is None.

    - `inp`: the tensors that become arguments.
    - `Tout`: the dtype of the result or its TensorSpec, or a list of them.

    XLA must know the shapes of the results, so a program is divided where it calls Python. `None`
    among the sizes of a TensorSpec stands for one that each call may choose. Where `Tout` gives no
    shape at all, the first call decides it, and every later call must return the same.

    Raises TypeError for results of other dtypes than `Tout` says, and InvalidArgumentError (a
    ValueError) for another number of results or for another shape.
    """
    return _python_call(ArrayFunction, func, inp, Tout)


def py_function(
    func: Callable[..., Any] | None = None, inp: Any = (), Tout: Any = None, name: Any = None
) -> Any:
    """Calls `func` on tensors at every run, computing at top level; differentiable.

    Arguments and errors are those of `numpy_function`; `func` takes and returns tensors. It is
    differentiated by a tape around it at run time, to any order and in both modes.
    """
    return _python_call(TensorFunction, func, inp, Tout)


def _python_call(kind: type[ArrayFunction], func: Any, inp: Any, Tout: Any) -> Any:
    if not callable(func):
        fail(TraceError, f"{shown(func)} is not callable", source=here(), fix="pass a function")
    inputs = [as_tensor(x) for x in (inp if isinstance(inp, (list, tuple)) else [inp])]
    is_list = isinstance(Tout, (list, tuple))
    given = list(Tout) if is_list else [Tout] if Tout is not None else []  # type: ignore[arg-type]
    function = kind(func, [_spec(t) for t in given], here())
    if current_trace() is None:
        outputs = function.results(*inputs)
    else:
        outputs = _call_later(function, inputs)
    return outputs if is_list else outputs[0] if outputs else None


def _spec(declared: Any) -> TensorSpec:
    """What `Tout` says of a result; the shape None stands for one that it leaves out."""
    if isinstance(declared, TensorSpec):
        return declared
    return TensorSpec(None, as_dtype(declared))


class ArrayFunction:
    """The function of a `numpy_function`: called with arrays; its results are tensors as declared.

    `specs` say what it returns, `source` is the user's line.
    """

    #: The name by which users call it.
    public_name = "tg.numpy_function"
    is_differentiable = False
    is_derivative = False

    def __init__(self, function: Any, specs: Sequence[TensorSpec], source: Source) -> None:
        self._function = function
        self._source = source
        self.specs = specs
        #: What the text of a graph calls it.
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *arrays: np.ndarray) -> list[Tensor]:
        """The results for a run of the program."""
        return self.results(*map(_value, arrays))

    def results(self, *inputs: Tensor) -> list[Tensor]:
        """The results for these inputs. Raises what `numpy_function` says."""
        for x in inputs:
            tell_tapes(x, HOST_CALL)
        arrays = [np.array(host_array(x)) for x in inputs]
        with unsourced():
            result = self._function(*arrays)
        return self._declared(result)

    def _declared(self, result: Any) -> list[Tensor]:
        """The results as tensors, which must be as the specs say."""
        is_list = isinstance(result, (list, tuple))
        leaves = list(result) if is_list else [] if result is None else [result]
        with sourced(self._source):
            if len(leaves) != len(self.specs):
                fail(
                    InvalidArgumentError,
                    f"{self._name} returned {len(leaves)} values and Tout declares "
                    f"{len(self.specs)}",
                    source=self._source,
                    fix="give one dtype or TensorSpec in Tout for each returned value",
                )
            return [self._as(y, spec) for y, spec in zip(leaves, self.specs, strict=True)]

    def _as(self, leaf: Any, spec: TensorSpec) -> Tensor:
        is_typed = isinstance(leaf, (Tensor, Variable, np.ndarray, np.generic))
        tensor = as_tensor(leaf) if is_typed else as_tensor(leaf, spec.dtype)
        if tensor.dtype is not spec.dtype:
            fail(
                DTypeError,
                f"{self._name} returned {tensor.dtype.name} and Tout says {spec.dtype.name}",
                source=self._source,
                fix="make Tout and the returned dtype agree",
            )
        if not spec.shape.is_compatible_with(TensorShape(tensor.type.shape)):
            fail(
                InvalidArgumentError,
                f"{self._name} returned the shape {tensor.type.shape} and Tout says {spec.shape}",
                source=self._source,
                fix="make Tout and the returned shape agree, with None for a size that is open",
            )
        return tensor

    @property
    def called(self) -> str:
        """What the user called, as messages name it."""
        return f"{self.public_name} of {self._name}"

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)


class TensorFunction(ArrayFunction):
    """The function of a `py_function`: it computes on tensors, and so it has derivatives, which
    are such functions again."""

    public_name = "tg.py_function"
    is_differentiable = True

    def results(self, *inputs: Tensor) -> list[Tensor]:
        with unsourced():
            result = self._function(*inputs)
        return self._declared(result)

    def pullback(self, count: int, types: tuple[TensorType, ...]) -> TensorFunction:
        """`(*xs, *cotangents) -> cotangents of the xs`, of the `count` inputs that can have one;
        they are of the types `types`."""

        def pullback(*tensors: Tensor) -> list[Any]:
            xs, gs = tensors[:count], list(tensors[count:])
            sources = _differentiable(xs)
            with GradientTape() as tape:
                tape.watch(sources)
                ys = _differentiable(self.results(*xs))
            return tape.gradient(ys, sources, gs, "zero")

        return self._derived(pullback, types)

    def pushforward(self, count: int, types: tuple[TensorType, ...]) -> TensorFunction:
        """`(*xs, *tangents) -> tangents of the results`, of the types `types`."""

        def pushforward(*tensors: Tensor) -> list[Any]:
            xs, ts = tensors[:count], list(tensors[count:])
            with ForwardAccumulator(_differentiable(xs), ts) as accumulator:
                ys = _differentiable(self.results(*xs))
            return accumulator.jvp(ys, "zero")

        return self._derived(pushforward, types)

    def _derived(self, function: Any, types: tuple[TensorType, ...]) -> TensorFunction:
        function.__qualname__ = f"{self.__qualname__}.{function.__name__}"
        function.__name__ = f"the {function.__name__} of {self._name}"
        specs = [TensorSpec(type.shape, type.dtype) for type in types]
        return _Derivative(function, specs, self._source)


class _Derivative(TensorFunction):
    """A derivative of a `py_function`: it is ours, so what it makes belongs to the user's line."""

    is_derivative = True

    @property
    def called(self) -> str:
        return self._name

    def results(self, *inputs: Tensor) -> list[Tensor]:
        return self._declared(self._function(*inputs))


def _differentiable(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in tensors if x.dtype.is_differentiable]


def _value(array: np.ndarray) -> Tensor:
    array = np.array(array)
    return host_tensor(type_of_array(array), array)


def _call_later(function: ArrayFunction, inputs: list[Tensor]) -> list[Tensor]:
    """Appends the call to the trace. Where the rank of a result is not declared, the call that is
    being traced is made now, so that tracing can go on."""
    trace = current_trace()
    assert trace is not None
    types = [_declared_type(spec, inputs) for spec in function.specs]
    if any(isinstance(type.shape, ShapeVariable) for type in types):
        types = _types_returned(trace, function, inputs, types)
    return list(host_call(function, inputs, types, function.is_differentiable))


def _types_returned(
    trace: Trace, function: ArrayFunction, inputs: Sequence[Tensor], types: list[TensorType]
) -> list[TensorType]:
    """The types of what the function returns in the call that is being traced. If none is, the
    rank stays open: of a TensorSpec there is nothing that the function could be called with."""
    record = current_record()
    if record is None or any(x.actual is None for x in traces_around(trace)):
        return types
    trace.store_state()
    gate = () if trace.all_hold is None else (trace.all_hold,)
    op = HostCall(function, tuple(types), function.is_differentiable, bool(gate))
    found = results_of_call(trace, op, trace.admit_all((*gate, *inputs)), record)
    return [*map(type_of_array, found)]


def _declared_type(spec: TensorSpec, inputs: Sequence[Tensor]) -> TensorType:
    """The type that `Tout` gives; what it leaves open gets a name, which each run gives a value."""
    if spec.shape.rank is None:
        return TensorType(spec.dtype, ShapeVariable(next(size_names)))
    sizes = [Dim.named(n) if isinstance(n, str) else n for n in spec.shape]
    sizes = [Dim.named(next(size_names)) if n is None else n for n in sizes]
    return TensorType(spec.dtype, tuple(sizes))


# Checks.


def check(condition: Any, message: str, operands: Sequence[Any] = ()) -> None:
    """Raises InvalidArgumentError if `condition`, one truth value, does not hold: at once at top
    level, at every call in a function. What is assigned before it stays, what comes later does not.
    """
    condition = as_tensor(condition)
    tensors = [as_tensor(x) for x in operands]
    trace = current_trace()
    if trace is not None:
        trace.check(condition, message, tensors)
    elif not bool(host_array(condition)):
        fail(
            InvalidArgumentError,
            message,
            source=here(),
            operands=[np.array2string(host_array(x), threshold=20) for x in tensors],
        )


set_host_runner(_runner)

__all__ = ["check", "host_call", "numpy_function", "print_tensors", "py_function"]
