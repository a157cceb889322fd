"""What Python's functions compute of values of a graph, in converted code.

Python asks `len`, `int`, `float` and `bool` for numbers, and compares for `max` and `min`; a graph
has nodes instead, of the dtypes that TensorFlow's conversion gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tracegraph.autograph.statements.branches import predicate
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import float32, float64, int32
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import TraceError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to
from tracegraph.ops.broadcast import Sum
from tracegraph.ops.constant import DimSize
from tracegraph.ops.elementwise import ADD, Maximum, Minimum
from tracegraph.ops.reduce import Max, Min
from tracegraph.tensor_arrays.tensor_array import TensorList


def computed(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a function of Python gives, if it is given a value of a graph: a tensor, with
    derivatives, of the user's line.

    Raises TraceError for other axes than the function takes, or a complex number for `int` and
    `float`; DTypeError for numbers that do not mix; ShapeError for `bool` of several elements. The
    results are those of TensorFlow's conversion (tensorflow/python/autograph/operators), but that
    nothing wide is narrowed.
    """
    return _COMPUTED[function](*args, **options)


def _length(value: Any) -> Any:
    """The size of the first axis, as an int32 scalar if only the run knows it."""
    if isinstance(value, TensorList):
        return value.size()
    if not value.shape.rank or isinstance(value.shape[0], int):
        return len(value)  # reads no Variable
    return DimSize(as_tensor(value).type.shape[0])()


def _int(value: Any, *base: Any, **options: Any) -> Any:
    """A scalar as an integer, rounded towards 0; integers keep their dtype, others become int32."""
    tensor = _scalar(value)
    if tensor is None or tensor.dtype.is_complex or base or options:
        return int(value, *base, **options)
    return tensor if tensor.dtype.is_integer else cast_to(tensor, int32)


def _float(value: Any) -> Any:
    """A scalar as a floating-point number; float64 stays so, others become float32."""
    tensor = _scalar(value)
    if tensor is None or tensor.dtype.is_complex:
        return float(value)
    return tensor if tensor.dtype is float64 else cast_to(tensor, float32)


def _scalar(value: Any) -> Tensor | None:
    """The value as a tensor; None if it has axes."""
    tensor = as_tensor(value)
    declare_result(tensor, TensorShape([]))
    return tensor if tensor.type.shape == () else None


def _stacked(values: Any) -> Tensor:
    """A tensor, or what a loop has appended to a list."""
    return values.stack() if isinstance(values, TensorList) else as_tensor(values)


def _sum(values: Any, start: Any = 0) -> Any:
    """The sum of the rows of a tensor; Python adds those whose number it knows."""
    if isinstance(values, (list, tuple)) or not isinstance(_length(values), Tensor):
        return sum(values, start)
    total = Sum((0,))(_stacked(values))
    return total if type(start) is int and start == 0 else ADD(*as_operands("sum", total, start))


def _extreme(function: Callable[..., Any], pair: Any, whole: Any, long_name: str) -> Any:
    """`max` or `min` of scalars, or of the elements of a vector."""

    def extreme(*values: Any, **options: Any) -> Any:
        if options:
            return function(*values, **options)
        if len(values) == 1 and not isinstance(values[0], (list, tuple)):
            vector = _stacked(values[0])
            if vector.ndim != 1:
                refuse(values, f"use tg.reduce_{function.__name__}(x)")
            return whole((0,))(vector)
        compared = values[0] if len(values) == 1 else values
        found = compared[0]
        for value in compared[1:]:
            found, value = as_operands(function.__name__, found, value)
            if found.type.shape != () or value.type.shape != ():
                refuse(compared, f"use tg.{long_name}(x, y)")
            found = pair()(found, value)
        return found

    def refuse(compared: Any, fix: str) -> NoReturn:
        tensors = [x for x in compared if isinstance(x, Tensor)]
        fail(
            TraceError,
            f"{function.__name__} compares numbers, and one of these is a tensor with other axes",
            operands=[*map(operand_text, tensors)],
            fix=fix,
        )

    return extreme


_COMPUTED: dict[Any, Callable[..., Any]] = {
    bool: predicate,
    float: _float,
    int: _int,
    len: _length,
    max: _extreme(max, Maximum, Max, "maximum"),
    min: _extreme(min, Minimum, Min, "minimum"),
    sum: _sum,
}
