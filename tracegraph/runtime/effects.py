"""Effects: printing, Python functions called at run time, and checks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.errors import DTypeError, InvalidArgumentError, TraceError, fail
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.effect import HostCall
from tracegraph.runtime import backend
from tracegraph.runtime.convert import as_tensor
from tracegraph.runtime.lift import lifted_with_arguments
from tracegraph.runtime.tape import GradientTape
from tracegraph.runtime.trace import Trace, current_trace, init_scope
from tracegraph.runtime.values import host_array
from tracegraph.runtime.variable import Variable, on_behalf_of_a_program
from tracegraph.shapes import static_shape
from tracegraph.source import Source, here
from tracegraph.types import TensorType, as_dtype, type_of_array


def host_call(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    types: Sequence[TensorType],
    derivative: Callable[..., Any] | None = None,
) -> tuple[Tensor, ...]:
    """Appends a call of a Python function of arrays to the trace, after the effects before it."""
    trace = current()
    if not isinstance(trace, Trace):
        fail(
            TraceError,
            "a Python function was called at run time inside a gradient rule",
            source=here(),
            fix="compute it outside of the rule",
        )
    operands = tuple(inputs)
    if trace.all_hold is not None:  # what comes after a check that fails does not happen
        function, derivative = _gated(function, types), _after_gate(derivative)
        operands = (trace.all_hold, *operands)
    op = HostCall(_keeping_errors(function, here()), tuple(types), derivative)
    found = op(trace.take_token(), *operands)
    token, *outputs = found if isinstance(found, tuple) else (found,)
    trace.give_token(token)
    return tuple(outputs)


def _gated(function: Callable[..., Any], types: Sequence[TensorType]) -> Callable[..., Any]:
    """The function with a truth value in front: it is called only if that holds."""

    @functools.wraps(function)
    def call(holds: np.ndarray, *arrays: np.ndarray) -> Any:
        if holds:
            return function(*arrays)
        return tuple(np.zeros(static_shape(t.shape), t.dtype.numpy_dtype) for t in types)

    return call


def _after_gate(derivative: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The derivative of a gated function: none for the truth value."""
    if derivative is None:
        return None
    return lambda token, gs, xs: (None, *derivative(token, gs, xs[1:]))


def _keeping_errors(function: Callable[..., Any], source: Source) -> Callable[..., Any]:
    """The function, its exceptions kept, with the user's line: XLA passes on their text only."""

    @functools.wraps(function)
    def call(*arrays: np.ndarray) -> Any:
        try:
            with on_behalf_of_a_program():
                return function(*arrays)
        except Exception as error:
            error.add_note(f"in a Python function called at {source.file}:{source.line}")
            backend.keep_host_error(error)
            raise

    return call


# Printing.


def print_tensors(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Prints values at every call of a compiled function, in program order; to stderr by default.

    - `inputs`: tensors, Variables, nested structures of them, and anything else, as text.
    - `output_stream`: a stream such as `sys.stdout`, or "file://path" to append to.
    - `summarize`: how many elements are shown at each end of an axis; -1 shows all.

    >>> tg.print("loss:", tg.constant(0.5), output_stream=sys.stdout)
    loss: 0.5
    """
    template, tensors = _template(inputs)

    def write(*arrays: np.ndarray) -> tuple[()]:
        values = iter(_value_text(np.asarray(array), summarize) for array in arrays)
        texts = (
            str(
                nest.pack_sequence_as(
                    part,
                    [_Raw(next(values)) if leaf is _HOLE else leaf for leaf in nest.flatten(part)],
                )
            )
            for part in template
        )
        _write(sep.join(texts) + end, output_stream)
        return ()

    if current_trace() is None:
        write(*(host_array(x) for x in tensors))
    else:
        host_call(write, tensors, ())


class _Raw:
    """Text that shows itself without quotes inside a container."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_HOLE = object()


def _template(inputs: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
    """The inputs with a hole for each tensor, and the tensors."""
    tensors: list[Tensor] = []

    def hole(leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, Variable)):
            tensors.append(as_tensor(leaf))
            return _HOLE
        return leaf

    return [nest.map_structure(hole, part) for part in inputs], tensors


def _value_text(array: np.ndarray, summarize: int) -> str:
    if array.ndim == 0:
        return str(int(array)) if array.dtype == bool else str(array[()])
    count = array.size if summarize == -1 else summarize
    threshold = max(array.size if summarize == -1 else 2 * count, 1)
    text = np.array2string(array, separator=" ", edgeitems=max(count, 1), threshold=threshold)
    return text


def _write(text: str, stream: Any) -> None:
    if isinstance(stream, str) and stream.startswith("file://"):
        with open(stream.removeprefix("file://"), "a", encoding="utf-8") as file:
            file.write(text)
        return
    stream = sys.stderr if stream is None else stream
    stream.write(text)
    stream.flush()


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
    - `Tout`: the dtype of the result, or a list of dtypes.

    The shapes of the results are found by calling `func` on zeros while tracing, unless `Tout`
    holds TensorSpecs.
    """
    return _python_call(func, inp, Tout, differentiable=False)


def py_function(
    func: Callable[..., Any] | None = None, inp: Any = (), Tout: Any = None, name: Any = None
) -> Any:
    """Calls `func` on tensors at every run, computing at top level; differentiable.

    Arguments as `numpy_function`; `func` takes and returns tensors.
    """
    return _python_call(func, inp, Tout, differentiable=True)


def _python_call(func: Any, inp: Any, Tout: Any, differentiable: bool) -> Any:
    if not callable(func):
        fail(TraceError, f"{func!r} is not callable", source=here(), fix="pass a function")
    inputs = [as_tensor(x) for x in (inp if isinstance(inp, (list, tuple)) else [inp])]
    is_list = isinstance(Tout, (list, tuple))
    specs = list(Tout) if is_list else [Tout] if Tout is not None else []
    if current_trace() is None:
        outputs = _call_now(func, inputs, specs, differentiable)
    else:
        outputs = _call_later(func, inputs, specs, differentiable)
    return outputs if is_list else outputs[0] if outputs else None


def _call_later(
    func: Any, inputs: list[Tensor], specs: list[Any], differentiable: bool
) -> list[Tensor]:
    """Appends the call to the trace. XLA needs the shapes of the results: where `Tout` does not
    give them, the call that is being traced is made now, and its results are kept for its run."""
    run = _on_tensors(func) if differentiable else _on_arrays(func)
    types = _declared_types(specs)
    first: _FirstCall | None = None
    if types is None:
        first = _FirstCall.now(run, inputs)
        types = _types_of(first.results, specs, func)
    call = _checked(run if first is None else first, types, func)
    derivative = _derivative(func, types) if differentiable else None
    outputs = list(host_call(call, inputs, types, derivative))
    trace = current_trace()
    if first is not None and first.is_real and trace is not None:
        trace.known.update(zip(outputs, map(_value, first.results), strict=True))
    return outputs


class _FirstCall:
    """A host function that was called while tracing: the first run with the same arguments takes
    the results of that call, so that the function is called once."""

    def __init__(
        self, run: Callable[..., Any], arrays: list[np.ndarray], results: Any, is_real: bool
    ) -> None:
        self._run = run
        self._arrays: list[np.ndarray] | None = arrays if is_real else None
        self.results = results
        self.is_real = is_real

    @staticmethod
    def now(run: Callable[..., Any], inputs: list[Tensor]) -> _FirstCall:
        lifted = [lifted_with_arguments(x) for x in inputs]
        is_real = all(x is not None for x in lifted)
        with init_scope():
            if is_real:
                arrays = [np.array(host_array(x)) for x in lifted if x is not None]
            else:
                arrays = [_zeros(x) for x in inputs]
            return _FirstCall(run, arrays, run(*arrays), is_real)

    def __call__(self, *arrays: np.ndarray) -> Any:
        expected, self._arrays = self._arrays, None
        if expected is not None and all(map(_same_bits, arrays, expected)):
            return self.results
        return self._run(*arrays)


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _zeros(x: Tensor) -> np.ndarray:
    """Zeros of the type, to find a shape where there is no call to trace."""
    if not x.type.is_static:
        fail(
            TraceError,
            f"the shape of the result of a Python function is not known for an input {x.type}",
            source=here(),
            operands=[operand_text(x)],
            fix="give TensorSpecs in Tout",
        )
    return np.zeros(static_shape(x.type.shape), x.dtype.numpy_dtype)


def _declared_types(specs: list[Any]) -> list[TensorType] | None:
    """The types that `Tout` gives; None if it leaves shapes out."""
    if not all(hasattr(spec, "shape") for spec in specs):
        return None
    return [TensorType(as_dtype(s.dtype), tuple(s.shape)) for s in specs]


def _types_of(results: Sequence[Any], specs: list[Any], func: Any) -> list[TensorType]:
    if len(results) != len(specs):
        _refuse_results(func, len(results), len(specs))
    dtypes = [as_dtype(getattr(spec, "dtype", spec)) for spec in specs]
    return [TensorType(t, tuple(y.shape)) for t, y in zip(dtypes, results, strict=True)]


def _call_now(
    func: Any, inputs: list[Tensor], specs: list[Any], differentiable: bool
) -> list[Tensor]:
    result = func(*inputs) if differentiable else func(*(host_array(x).copy() for x in inputs))
    leaves = (
        list(result) if isinstance(result, (list, tuple)) else [] if result is None else [result]
    )
    if len(leaves) != len(specs):
        _refuse_results(func, len(leaves), len(specs))
    dtypes = [as_dtype(getattr(spec, "dtype", spec)) for spec in specs]
    return [_as_declared(leaf, dtype, func) for leaf, dtype in zip(leaves, dtypes, strict=True)]


def _as_declared(leaf: Any, dtype: Any, func: Any) -> Tensor:
    tensor = (
        as_tensor(leaf)
        if isinstance(leaf, (Tensor, Variable, np.ndarray))
        else as_tensor(leaf, dtype)
    )
    if tensor.dtype is not dtype:
        fail(
            DTypeError,
            f"{_name(func)} returned {tensor.dtype.name} and Tout says {dtype.name}",
            source=here(),
            fix="make Tout and the returned dtype agree",
        )
    return tensor


def _name(func: Any) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _refuse_results(func: Any, given: int, declared: int) -> None:
    fail(
        InvalidArgumentError,
        f"{_name(func)} returned {given} values and Tout declares {declared}",
        source=here(),
        fix="give one dtype in Tout for each returned value",
    )


def _on_arrays(func: Any) -> Callable[..., tuple[Any, ...]]:
    def run(*arrays: np.ndarray) -> tuple[Any, ...]:
        result = func(*(np.array(x) for x in arrays))
        return _as_arrays(result)

    return run


def _as_arrays(result: Any) -> tuple[np.ndarray, ...]:
    if result is None:
        return ()
    leaves = result if isinstance(result, (list, tuple)) else (result,)
    return tuple(
        host_array(as_tensor(x)) if isinstance(x, (Tensor, Variable)) else np.asarray(x)
        for x in leaves
    )


def _on_tensors(func: Any) -> Callable[..., tuple[Any, ...]]:
    def run(*arrays: np.ndarray) -> tuple[Any, ...]:
        return _as_arrays(func(*map(_value, arrays)))

    return run


def _value(array: np.ndarray) -> Tensor:
    array = np.array(array)
    return host_tensor(type_of_array(array), array)


def _checked(run: Any, types: Sequence[TensorType], func: Any) -> Callable[..., Any]:
    def call(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        found = run(*arrays)
        if len(found) != len(types):
            _refuse_results(func, len(found), len(types))
        for y, type_ in zip(found, types, strict=True):
            if tuple(y.shape) != type_.shape:
                raise InvalidArgumentError(
                    f"{_name(func)} returned the shape {y.shape} and {type_} was traced\n"
                    "  fix: return one shape always, or give TensorSpecs in Tout"
                )
        return tuple(
            np.asarray(y, type_.dtype.numpy_dtype) for y, type_ in zip(found, types, strict=True)
        )

    return call


def _derivative(func: Any, types: Sequence[TensorType]) -> Callable[..., Any]:
    """The cotangents of a py_function: it runs again at top level, under a tape."""

    def cotangents(token: Tensor, gs: Sequence[Tensor | None], xs: Sequence[Tensor]) -> Any:
        seeds = [full(0, t) if g is None else g for g, t in zip(gs, types, strict=True)]

        def pull(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            values = [_value(a) for a in arrays[: len(xs)]]
            grads = [_value(a) for a in arrays[len(xs) :]]
            with GradientTape() as tape:
                tape.watch([v for v in values if v.dtype.is_differentiable])
                result = func(*values)
            targets = list(result) if isinstance(result, (list, tuple)) else [result]
            found = tape.gradient(targets, values, grads, "zero")
            return tuple(host_array(g) for g in found)

        op = HostCall(_keeping_errors(pull, here()), tuple(x.type for x in xs), None)
        return op(token, *xs, *seeds)[1:]

    return cotangents


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


__all__ = ["check", "host_call", "numpy_function", "print_tensors", "py_function"]
