"""Creating tensors: constants, fills, ranges; and casts."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_count,
    as_integers,
    as_shape,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.runtime_sizes import is_open, largest, runtime_size, size_of_value
from tracegraph.autograph.iteration import makers as iteration_makers, steps_of_tensor_range
from tracegraph.core.settings import device_scope
from tracegraph.core.shapes import Dim, Shape, ShapeVariable, ceiling_divide, element_count, maximum
from tracegraph.core.source import user_frame
from tracegraph.core.tensorshape import TensorShape, shape_of
from tracegraph.core.types import DType, TensorType, as_dtype, bool_, float32, float64, int32, int64
from tracegraph.eager.pending import device_buffer
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import (
    DTypeError,
    ElementCountError,
    InvalidArgumentError,
    ShapeError,
    counted,
    fail,
    shown,
)
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor, made_at
from tracegraph.operands.conversion import (
    LARGEST_CONSTANT,
    as_array,
    as_operands,
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
    converted,
    from_array,
    promoted,
    static_ints,
    static_value,
)
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import Constant, DimSize, Iota, Sizes
from tracegraph.ops.shape import Concatenate, Reshape, with_sizes
from tracegraph.typing import DTypeLike, ShapeLike, SizeLike, TensorLike


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Converts a value to a tensor.

    - `value`: a number, an array, or a nested list, which may contain tensors. Python floats
      become float32, and ints int32, or int64 if they need it; arrays keep their dtype.
    - `dtype`: the dtype to convert to instead; a float is not converted to an int, unless it is one
      of an array whose numbers are all in the dtype, as `np.zeros(3)` is for int32.
    - `shape`: a single element is repeated to this shape, anything else is reshaped to it.
    - `name`: the name in errors and dumps.

    Raises DTypeError for values that cannot become a tensor, RangeError (also a ValueError) for a
    number out of the dtype's range, ShapeError for rows of different lengths, ElementCountError
    (also a TypeError) if the number of elements does not fit `shape`.

    >>> tg.constant([[1, 2], [3, 4]], tg.float32).numpy()
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    tensor = as_tensor(value) if dtype is None else converted(value, as_dtype(dtype))
    if tensor.node is None and tensor is not value:
        frame = user_frame()
        if frame is not None:
            made_at(tensor, frame)
        _put_on_device(tensor)
    if shape is not None:
        sizes = as_shape("constant", shape)
        if tensor.type.shape != sizes:
            tensor = _in_shape(tensor, sizes)
    if name is not None:
        tensor.name = name
    return tensor


def _in_shape(tensor: Tensor, sizes: Shape) -> Tensor:
    """A constant in the given shape, which a single element fills."""
    count, needed = element_count(tensor.type.shape), element_count(sizes)
    if count == 1 and needed != 1:
        return broadcast(Reshape(())(tensor), sizes)
    if isinstance(count, int) and isinstance(needed, int) and count != needed:
        fail(
            ElementCountError,
            f"constant: the value has {counted(count, 'element')}, and the shape {[*sizes]} has "
            f"{needed:,}",
            operands=[operand_text(tensor)],
            fix="give as many elements as the shape has, or one, which fills it",
        )
    return Reshape(sizes)(tensor)


def convert_to_tensor(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    dtype_hint: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Converts a value to a tensor; a tensor is returned unchanged.

    - `dtype`: the dtype for numbers and arrays; a tensor of another dtype raises DTypeError.
    - `dtype_hint`: the same, but only as a preference.

    >>> tg.convert_to_tensor([1, 2]).dtype
    tg.int32
    """
    if dtype is None and dtype_hint is not None:
        wish = as_dtype(dtype_hint)
        try:
            return _put_on_device(as_tensor(value, wish))
        except DTypeError:
            return _put_on_device(as_tensor(value))
    return _put_on_device(as_tensor(value) if dtype is None else converted(value, as_dtype(dtype)))


def _put_on_device(tensor: Tensor) -> Tensor:
    """The tensor; a host array is put on the device that `tg.device` names."""
    if tensor.node is None and device_scope.device is not None:
        device_buffer(tensor)
    return tensor


def is_tensor(x: object) -> bool:
    """Whether x is a tensor or a Variable.

    >>> tg.is_tensor(tg.constant(1)), tg.is_tensor(1)
    (True, False)
    """
    return isinstance(x, Tensor) or hasattr(x, "__tracegraph_tensor__")


def get_static_value(tensor: TensorLike, partial: bool = False) -> np.ndarray | None:
    """The value of a tensor as an array if it is known now, else None.

    It is known at top level and, while tracing, if it follows from constants and sizes alone. The
    value of a Variable may change, so it is None.

    >>> tg.get_static_value(tg.constant([1, 2]))
    array([1, 2], dtype=int32)
    """
    if hasattr(tensor, "__tracegraph_tensor__"):
        return None
    value = static_value(as_tensor(tensor))
    return None if value is None or value.dtype == object else value


def fill(dims: ShapeLike, value: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` with every element `value`, in the dtype of the value.

    >>> tg.fill([2, 3], 7).numpy()
    array([[7, 7, 7],
           [7, 7, 7]], dtype=int32)
    """
    scalar = as_tensor(value)
    if scalar.type.shape != ():
        refuse("fill", f"the value is {scalar.type}", scalar, fix="use tg.broadcast_to")
    return broadcast(scalar, as_shape("fill", dims))


def zeros(shape: ShapeLike, dtype: DTypeLike = float32, name: str | None = None) -> Tensor:
    """A tensor of zeros.

    >>> tg.zeros([2, 3]).numpy()
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    return full(0, TensorType(as_dtype(dtype), as_shape("zeros", shape)))


def ones(shape: ShapeLike, dtype: DTypeLike = float32, name: str | None = None) -> Tensor:
    """A tensor of ones.

    >>> tg.ones([2], tg.int32).numpy()
    array([1, 1], dtype=int32)
    """
    return full(1, TensorType(as_dtype(dtype), as_shape("ones", shape)))


def zeros_like(
    input: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> Tensor:
    """Zeros of the shape of `input`, and by default of its dtype.

    >>> tg.zeros_like([1.0, 2.0]).numpy()
    array([0., 0.], dtype=float32)
    """
    return _full_like(input, 0, dtype)


def ones_like(input: TensorLike, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """Ones of the shape of `input`, and by default of its dtype.

    >>> tg.ones_like([1.0, 2.0], tg.int64).numpy()
    array([1, 1])
    """
    return _full_like(input, 1, dtype)


def _full_like(x: Any, value: int, dtype: Any) -> Tensor:
    type = as_tensor(x).type
    return full(value, type if dtype is None else type.with_dtype(as_dtype(dtype)))


def eye(
    num_rows: SizeLike,
    num_columns: SizeLike | None = None,
    batch_shape: ShapeLike | None = None,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """The identity matrix, which may be rectangular, repeated along leading axes of `batch_shape`.

    >>> tg.eye(2).numpy()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    num_columns = num_rows if num_columns is None else num_columns
    rows, columns = (as_count("eye", "a size", n) for n in (num_rows, num_columns))
    shape = (rows, columns)
    diagonal = ops.EQUAL(_along(rows, shape, 0), _along(columns, shape, 1))
    matrix = ops.Cast(as_dtype(dtype))(diagonal)
    if batch_shape is None:
        return matrix
    return broadcast(matrix, (*as_shape("eye", batch_shape), rows, columns))


def _along(size: Any, shape: tuple[Any, ...], axis: int) -> Tensor:
    """The positions along one axis of `shape`."""
    return BroadcastTo(shape, (axis,))(Iota(size, int32)())


def range(
    start: TensorLike,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """start, start + delta, ... up to but excluding limit; `range(n)` counts from 0.

    The bounds are numbers, sizes such as `x.shape[0]`, or scalar tensors; if these are not known
    while tracing, the number of elements is a size found at run time. The default dtype is float32
    if any bound is a float, else int32, or int64 for larger bounds.
    Raises DTypeError for a dtype that is bool or complex, or a bound out of the dtype's range,
    InvalidArgumentError for more elements than fit in memory.

    >>> tg.range(2, 8, 2).numpy()
    array([2, 4, 6], dtype=int32)
    """
    if limit is None:
        start, limit = 0, start
    given = (start, limit, delta)
    kind = None if dtype is None else as_dtype(dtype)
    if kind is not None and (kind is bool_ or kind.is_complex):
        fact = f"range: the dtype is {kind.name}, and it must be an integer or a floating one"
        fail(DTypeError, fact, fix="use dtype=tg.int32, or cast the result")
    if any(map(is_open, given)):
        return _range_of_run(given, kind)
    bounds = [_bound(value) for value in given]
    kind = kind or _range_dtype(given, bounds)
    if not isinstance(bounds[2], Dim) and bounds[2] == 0:
        fail(ShapeError, _NO_STEP[0], fix=_NO_STEP[1])
    if any(isinstance(bound, Dim) for bound in bounds):
        is_whole = all(isinstance(bound, (int, Dim)) for bound in bounds)
        if not is_whole or isinstance(bounds[2], Dim):
            return _range_of_run(given, kind)
        return _symbolic_range(bounds, kind)
    if kind.is_integer:
        _check_bounds_fit(bounds, kind)
    start, limit, step = bounds
    count = _number_between(start, limit, step, kind)
    type = TensorType(kind, (count,))
    if kind.is_integer and count > LARGEST_CONSTANT and not current().is_top_level:
        return _symbolic_range(bounds, kind)
    return from_numpy("range", type, lambda: _numbers(bounds, count, kind))


#: The error of a range whose step is 0: the fact, and what to do.
_NO_STEP = "range: the step is 0", "use a step such as 1 or -1"


def _range_of_run(given: tuple[Any, ...], kind: DType | None) -> Tensor:
    """A range with a bound known only at run time."""
    bounds = [as_tensor(value) for value in given]
    for bound in bounds:
        if bound.type.shape != () or not (bound.dtype.is_integer or bound.dtype.is_floating):
            refuse("range", f"a bound is {bound.type}", bound, fix="use numbers or scalars")
    if kind is None:
        kind = functools.reduce(_holding_both, [x.dtype for x in bounds])
    exact = int64 if all(x.dtype.is_integer for x in bounds) else float64
    start, limit, step = (cast_to(x, exact) for x in bounds)
    span = ops.SUB(limit, start)
    if exact is int64 and known_int(given[2]) and given[2] == 1:
        size = runtime_size("range", span, clamps=True)
    else:
        count = ops.Cast(int64)(
            _rounded_up(bounds, kind) if kind.is_floating else _ceiling(span, step)
        )
        count = ops.MAXIMUM(count, as_tensor(0, int64))
        is_stuck = ops.EQUAL(step, full(0, step.type))  # a step of 0 has no range
        count = ops.SELECT(is_stuck, as_tensor(-1, int64), count)
        size = runtime_size("range", count, negative=_NO_STEP)
    numbers = ops.Cast(exact)(Iota(size, int32)())
    shape = numbers.type.shape
    return cast_to(ops.ADD(broadcast(start, shape), ops.MUL(numbers, broadcast(step, shape))), kind)


def _ceiling(span: Tensor, step: Tensor) -> Tensor:
    """The ceiling of the quotient, by floor division with the signs flipped."""
    return ops.NEG(ops.FloorDiv()(ops.NEG(span), step))


def _rounded_up(bounds: list[Tensor], kind: DType) -> Tensor:
    """The quotient, rounded up, in the dtype of the range; see `_number_between`."""
    start, limit, step = (cast_to(x, kind) for x in bounds)
    return ops.Ceil()(ops.DIV(ops.SUB(limit, start), step))


#: Lets converted code use a counter where a `for` runs over a range.
iteration_makers[range] = steps_of_tensor_range


def _bound(value: Any) -> Any:
    """A bound of a range as a Python number or a symbolic size."""
    if is_tensor(value):
        numbers = static_ints(value, "range: a bound")
        value = numbers[0] if len(numbers) == 1 else list(numbers)
    if isinstance(value, Dim) or type(value) is int:
        return value
    array = as_array(value)
    if array.ndim or array.dtype.kind not in "iuf" or not np.isfinite(array):
        refuse("range", f"a bound is {shown(value)}", fix="use finite numbers")
    return array.item()


def _range_dtype(given: tuple[Any, ...], bounds: list[Any]) -> DType:
    """A dtype that holds all bounds: at least int32, and int64 for larger integers."""
    typed = [value.dtype for value in given if is_tensor(value)]
    typed += [as_dtype(v.dtype) for v in given if isinstance(v, (np.generic, np.ndarray))]
    found = int32
    for dtype in typed:
        found = _holding_both(found, dtype)
    if any(isinstance(bound, float) for bound in bounds):
        return found if found.is_floating else float32
    is_wide = any(type(b) is int and not int32.min <= b <= int32.max for b in bounds)
    return int64 if found is int32 and is_wide else found


def _holding_both(x: DType, y: DType) -> DType:
    """The promotion of two bounds' dtypes; an integer and a floating one give the latter."""
    return promoted(x, y) or (x if x.is_floating else y)


def _check_bounds_fit(bounds: list[Any], kind: DType) -> None:
    """Rejects bounds out of range for an integer dtype `kind`."""
    for bound in bounds:
        if not kind.min <= bound <= kind.max:
            fail(
                DTypeError,
                f"range: the bound {bound} is outside the range of {kind.name}",
                fix="use a wider type: dtype=tg.int64",
            )


def _number_between(start: Any, limit: Any, step: Any, kind: DType) -> int:
    """The number of elements in a range, exact for integers of any size. Floating-point numbers are
    divided in their own dtype, where 0.3 / 0.1 is 3, as in TensorFlow."""
    if all(isinstance(number, int) for number in (start, limit, step)):
        return max(0, -(-(limit - start) // step))
    quotient = (limit - start) / step
    if kind.is_floating:
        with np.errstate(all="ignore"):
            first, last, distance = (kind.as_numpy_dtype(x) for x in (start, limit, step))
            rounded = float((last - first) / distance)
        quotient = rounded if math.isfinite(rounded) else quotient
    return max(0, math.ceil(quotient))


def _numbers(bounds: list[Any], count: int, kind: DType) -> np.ndarray:
    if not (kind.is_integer and all(isinstance(bound, int) for bound in bounds)):
        start, _, step = bounds
        return start + step * np.arange(count, dtype=np.float64)
    start, _, step = bounds
    # In unsigned 64 bits, which wrap around: the span may exceed the range of the dtype.
    first, distance = (np.uint64(number % 2**64) for number in (start, step))
    return np.arange(count, dtype=np.uint64) * distance + first


def from_numpy(op: str, type: TensorType, make: Callable[[], np.ndarray]) -> Tensor:
    """A tensor of NumPy's result. Raises InvalidArgumentError if it does not fit in memory."""
    try:
        return from_array(make().astype(type.dtype.numpy_dtype, copy=False))
    except MemoryError as error:
        fail(
            InvalidArgumentError,
            f"{op}: a tensor {type} does not fit into memory: {error}",
            fix="compute with fewer or smaller tensors",
            cause=error,
        )


def _symbolic_range(bounds: list[Any], dtype: DType) -> Tensor:
    start, limit, step = bounds
    count = ceiling_divide(limit - start if step > 0 else start - limit, builtins.abs(step))
    kind = dtype if dtype.is_integer else int32
    values = Iota(count, kind)()
    if step != 1:
        values = values * step
    return cast_to(values if isinstance(start, int) and start == 0 else values + start, dtype)


def linspace(
    start: TensorLike, stop: TensorLike, num: SizeLike, name: str | None = None, axis: int = 0
) -> Tensor:
    """`num` evenly spaced values from start to stop, both included.

    start and stop are floating, and may be tensors of the same shape; the values then lie along a
    new axis, `axis` of the result. An integer start is converted to float64.

    >>> tg.linspace(0.0, 1.0, 5).numpy()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = as_count("linspace", "the number of values", num)
    if isinstance(count, int) and _is_real(start) and _is_real(stop):
        as_axis("linspace", axis, 1)
        return _linspace_of_numbers(start, stop, count)
    start, stop = (_floating(x) for x in as_operands("linspace", start, stop))
    shape = broadcast_shape("linspace", start, stop)
    rank = len(shape)
    place = as_axis("linspace", axis, rank + 1)
    long = (*shape[:place], count, *shape[place:])
    others = tuple(k for k in builtins.range(rank + 1) if k != place)
    first, last = (BroadcastTo(long, others)(broadcast(x, shape)) for x in (start, stop))
    fraction = BroadcastTo(long, (place,))(_fractions(count, start.dtype))
    # Interpolating from both sides hits the end exactly.
    is_early = ops.Less()(fraction, full(0.5, fraction.type))
    step = last - first
    return ops.SELECT(is_early, first + step * fraction, last - step * (1 - fraction))


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating))


def _linspace_of_numbers(start: Any, stop: Any, count: int) -> Tensor:
    first, last = as_array(start), as_array(stop)
    floats = [x.dtype for x in (first, last) if x.dtype.kind == "f"]
    kind = np.result_type(*floats) if first.dtype.kind == "f" else np.float64
    type = TensorType(as_dtype(kind), (count,))
    return from_numpy("linspace", type, lambda: np.linspace(first, last, count, dtype=np.float64))


def _floating(x: Tensor) -> Tensor:
    return ops.Cast(float64)(x) if x.dtype.is_integer else x


def _fractions(count: Any, dtype: DType) -> Tensor:
    """count values from 0 to 1."""
    if isinstance(count, int):
        type = TensorType(dtype, (count,))
        return from_numpy("linspace", type, lambda: np.linspace(0, 1, count))
    return ops.Cast(dtype)(Iota(count, int32)()) / ops.Cast(dtype)(as_tensor(maximum(count - 1, 1)))


def one_hot(
    indices: TensorLike,
    depth: SizeLike,
    on_value: TensorLike | None = None,
    off_value: TensorLike | None = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """y[..., k] = on_value where k = indices[...], else off_value; `axis` is the axis of k.

    An index out of range gives a row of off_value. The values default to 1 and 0 of `dtype`,
    which defaults to float32, or to their dtype.

    >>> tg.one_hot([0, 2], 3).numpy()
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    indices = as_integers("one_hot", "the indices", indices)
    count = as_count("one_hot", "the depth", depth)
    indices = reaching(indices, count)
    shape = indices.type.shape
    place = as_axis("one_hot", -1 if axis is None else axis, rank_of("one_hot", indices) + 1)
    long = (*shape[:place], count, *shape[place:])
    others = tuple(k for k in builtins.range(len(long)) if k != place)
    positions = BroadcastTo(long, (place,))(Iota(count, indices.dtype)())
    is_on = ops.EQUAL(positions, BroadcastTo(long, others)(indices))
    return _chosen(is_on, on_value, off_value, dtype)


def reaching(numbers: Tensor, size: Any) -> Tensor:
    """The numbers in a dtype that holds all positions along an axis of `size`, and `size`."""
    if not known_int(size):
        return ops.Cast(int32)(numbers) if numbers.dtype.size < 4 else numbers
    kind = numbers.dtype
    return numbers if size <= kind.max else ops.Cast(int32 if size <= int32.max else int64)(numbers)


def _chosen(is_on: Tensor, on_value: Any, off_value: Any, dtype: Any) -> Tensor:
    kind = None if dtype is None else as_dtype(dtype)
    if on_value is None and off_value is None:
        return ops.Cast(kind or float32)(is_on)
    on = as_tensor(1 if on_value is None else on_value, kind)
    off = as_tensor(0 if off_value is None else off_value, kind)
    if on_value is None or off_value is None:
        given = off if on_value is None else on
        on, off = (cast_to(x, given.dtype) for x in (on, off))
    on, off = as_operands("one_hot", on, off)
    return ops.SELECT(is_on, *(broadcast(x, is_on.type.shape) for x in (on, off)))


def sequence_mask(
    lengths: TensorLike,
    maxlen: SizeLike | None = None,
    dtype: DTypeLike = bool_,
    name: str | None = None,
) -> Tensor:
    """mask[..., j] = j < lengths[...], for j below maxlen.

    `maxlen` defaults to the largest length, which is a size found at run time if the lengths are
    not known while tracing.

    >>> tg.sequence_mask([1, 3], 4).numpy()
    array([[ True, False, False, False],
           [ True,  True,  True, False]])
    """
    lengths = as_integers("sequence_mask", "the lengths", lengths)
    if maxlen is None:
        maxlen = size_of_value("sequence_mask", largest(lengths, 0))
    size = as_count("sequence_mask", "maxlen", maxlen)
    lengths = reaching(lengths, size)
    long = (*lengths.type.shape, size)
    rank = len(long) - 1
    positions = BroadcastTo(long, (rank,))(Iota(size, lengths.dtype)())
    mask = ops.Less()(positions, BroadcastTo(long, tuple(builtins.range(rank)))(lengths))
    return cast_to(mask, as_dtype(dtype))


def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """Converts x to another dtype; a tensor that has it already is returned unchanged.

    Floats converted to integers lose their fraction, and complex numbers converted to real their
    imaginary part. The gradient only passes between floating dtypes.

    >>> tg.cast([1.7, -1.7], tg.int32).numpy()
    array([ 1, -1], dtype=int32)
    """
    return cast_to(as_tensor(x), as_dtype(dtype))


def saturate_cast(value: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """A cast that clips values, including infinities, to the range of `dtype`.

    The parts of complex numbers are cast separately, or just the real part if `dtype` is real.

    >>> tg.saturate_cast([300.0, -1.0], tg.uint8).numpy()
    array([255,   0], dtype=uint8)
    """
    x, kind = as_tensor(value), as_dtype(dtype)
    if not x.dtype.is_complex:
        return cast_to(_saturated(x, kind.real), kind)
    real = _saturated(ops.REAL(x), kind.real)
    return ops.Complex()(real, _saturated(ops.Imag()(x), kind.real)) if kind.is_complex else real


def _saturated(x: Tensor, kind: DType) -> Tensor:
    """Real numbers as `kind`, clipped to its range."""
    low, high = (_rounded_inwards(bound, x.dtype, kind) for bound in _limits(x.dtype, kind))
    below, above = (full(bound, x.type) for bound in (low, high))
    clipped = ops.SELECT(ops.Less()(x, below), below, ops.SELECT(ops.Less()(above, x), above, x))
    return cast_to(clipped, kind)


def _rounded_inwards(bound: Any, own: DType, kind: DType) -> np.ndarray:
    """The bound of `kind` in `own`, rounded so that it is not beyond it, where infinity is."""
    rounded = np.asarray(bound).astype(own.numpy_dtype)
    is_beyond = kind.is_floating and abs(float(rounded)) > float(kind.max)
    return np.nextafter(rounded, np.zeros_like(rounded)) if is_beyond else rounded


def _limits(own: DType, kind: DType) -> tuple[Any, Any]:
    """The finite range of `kind`, as far as `own` reaches."""
    if own is bool_:
        return kind.min, kind.max
    low = own.min if float(own.min) > float(kind.min) else kind.min
    return low, own.max if float(own.max) < float(kind.max) else kind.max


def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """real + i imag: complex64 from float32, complex128 from float64.

    >>> tg.complex(1.0, 2.0).numpy()
    np.complex64(1+2j)
    """
    real, imag = as_operands("complex", real, imag)
    shape = broadcast_shape("complex", real, imag)
    return ops.Complex()(broadcast(real, shape), broadcast(imag, shape))


def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """A new tensor with the value of `input`; for a Variable, its present value.

    >>> tg.identity([1, 2]).numpy()
    array([1, 2], dtype=int32)
    """
    return ops.IDENTITY(as_tensor(input))


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """Returns `input`, which derivatives treat as a constant.

    >>> tg.stop_gradient([1.0, 2.0]).numpy()
    array([1., 2.], dtype=float32)
    """
    return ops.StopGradient()(as_tensor(input))


def ensure_shape(x: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns x after checking its shape against `shape`, in which None and names match any size.

    Raises ShapeError if it does not match. Open sizes take the given ones.

    >>> tg.ensure_shape(tg.zeros([2, 3]), [None, 3]).shape
    TensorShape([2, 3])
    """
    x = as_tensor(x)
    wanted = TensorShape(as_sizes("ensure_shape", "a shape", shape) if is_tensor(shape) else shape)
    own = shape_of(x.type.shape)
    if not own.is_compatible_with(wanted):
        refuse(
            "ensure_shape", f"{x.type} does not have the shape {wanted}", x, fix="check the shape"
        )
    if wanted.variable is not None:
        return x
    if own.variable is not None and declare_result(x, wanted):
        return x
    if own.variable is not None and all(type(size) is int for size in wanted):
        return with_sizes(x, tuple(wanted))  # checked by every run
    own = shape_of(sizes_of("ensure_shape", x))
    sizes = tuple(a if b is None or isinstance(b, str) else b for a, b in zip(own, wanted))
    return with_sizes(x, sizes)


def shape(input: TensorLike, out_type: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """The sizes of `input` as a vector of `out_type`, by default int32; known sizes are constants.

    Raises InvalidArgumentError if a known size is too large for `out_type`.

    >>> tg.shape(tg.zeros([2, 3])).numpy()
    array([2, 3], dtype=int32)
    """
    sizes, kind = as_tensor(input).type.shape, as_dtype(out_type or int32)
    if isinstance(sizes, ShapeVariable):
        return cast_to(Sizes(sizes)(), kind)
    if all(map(known_int, sizes)):
        return _known_sizes("shape", sizes, kind)
    rows = [Reshape((1,))(_size_value("shape", one, kind)) for one in sizes]
    return Concatenate(0)(*rows) if len(rows) > 1 else rows[0]


def size(input: TensorLike, out_type: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """The number of elements of `input`, as a scalar of `out_type`, by default int32; a constant if
    known.

    Raises InvalidArgumentError if a known number is too large for `out_type`.

    >>> tg.size(tg.zeros([2, 3])).numpy()
    np.int32(6)
    """
    count = element_count(as_tensor(input).type.shape)
    return _size_value("size", count, as_dtype(out_type or int32))


def rank(input: TensorLike, name: str | None = None) -> Tensor:
    """The number of axes of `input`, as an int32 scalar.

    >>> tg.rank(tg.zeros([2, 3])).numpy()
    np.int32(2)
    """
    return _folded(np.asarray(rank_of("rank", as_tensor(input)), np.int32))


def _size_value(op: str, size: Any, kind: DType) -> Tensor:
    return _known_sizes(op, size, kind) if known_int(size) else cast_to(DimSize(size)(), kind)


def _known_sizes(op: str, sizes: Any, kind: DType) -> Tensor:
    if kind.is_integer and np.max(sizes, initial=0) > kind.max:
        fact = f"{op}: {kind.name} does not hold {np.max(sizes):,}"
        fail(InvalidArgumentError, fact, fix="use a wider type: out_type=tg.int64")
    return _folded(np.asarray(sizes, kind.numpy_dtype))


def _folded(value: np.ndarray) -> Tensor:
    """A value that is part of the graph, even at top level, since it follows from types alone."""
    return Constant(value)()


__all__ = [
    "cast",
    "complex",
    "constant",
    "convert_to_tensor",
    "ensure_shape",
    "eye",
    "fill",
    "get_static_value",
    "identity",
    "is_tensor",
    "linspace",
    "one_hot",
    "ones",
    "ones_like",
    "range",
    "rank",
    "saturate_cast",
    "sequence_mask",
    "shape",
    "size",
    "stop_gradient",
    "zeros",
    "zeros_like",
]
