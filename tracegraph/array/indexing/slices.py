"""NumPy's indexing: x[2, 1:, ..., None, ::-1], with tensors as indices too."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from tracegraph.array.arguments import as_count, as_integers, as_sizes, known_int, rank_of, refuse
from tracegraph.array.expressions import as_known, difference, text
from tracegraph.array.indexing.index_arrays import is_gathered, is_index_array, taken_at
from tracegraph.array.indexing.selection import boolean_mask
from tracegraph.array.runtime_sizes import is_open, runtime_size
from tracegraph.core.shapes import Dim, Size, ceiling_divide, maximum, minimum, plain
from tracegraph.core.types import bool_, int32, int64
from tracegraph.errors import DTypeError, TraceError, counted, fail, kind_of, shown
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    captured_value,
    cast_to,
    has_dtype,
    require_rank,
    static_value,
    to_int32,
)
from tracegraph.ops.elementwise import ADD, LESS, LESS_EQUAL, SELECT, SUB, Maximum, Minimum
from tracegraph.ops.index import DynamicSlice
from tracegraph.ops.shape import Reshape, Reverse, Slice
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_now,
    with_elements,
)

if TYPE_CHECKING:
    from tracegraph.typing import TensorLike

newaxis = None


class AxisIndex(NamedTuple):
    """The part of one axis to take: `count` elements, from `start` to below `stop`, `step` apart.

    `start` is a tensor if it is known only at run time, and `stop` then counts from there.
    `is_reversed` reverses the elements, `is_dropped` drops the axis.
    """

    start: Any
    count: Size
    stop: Any = None
    step: int = 1
    is_reversed: bool = False
    is_dropped: bool = False


def getitem(x: Any, index: Any) -> Tensor:
    """x[index], as in NumPy, except that lists of ints are not allowed.

    - ints, negative from the end; a scalar integer tensor;
    - slices with any step; their bounds may be tensors if the step is positive. The size of
      x[i : i + 8] or x[8 * i : 8 * i + 8] is known; that of x[i:j] is found at run time;
    - `...` for the axes between, None for a new axis of size 1;
    - a bool tensor, alone, which keeps the elements where it is true;
    - integer tensors and arrays with axes, which broadcast together: x[rows, columns].

    Raises InvalidArgumentError for an index out of range, at top level and if it is known while
    tracing, and ShapeError for too many indices. An index that is only known at run time is clamped
    to the nearest element, and a slice of known size is shifted until it fits, unless the function
    is built with `check_bounds`.
    """
    x = as_tensor(x)
    if index is Ellipsis:
        return x  # of any rank
    if _is_mask(index):
        is_one = getattr(index, "shape", None) == ()  # keeps all of x, or nothing
        return boolean_mask(x[None], as_tensor(index)[None]) if is_one else boolean_mask(x, index)
    items = _without_ellipsis(x, index if isinstance(index, tuple) else (index,))
    if any(map(is_index_array, items)):
        others = tuple(slice(None) if is_gathered(item) else item for item in items)
        return taken_at(getitem(x, others), items)
    sizes = iter(enumerate(x.type.shape))
    parts: list[AxisIndex] = []
    shape: list[Any] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis, size = next(sizes)
        part = _axis_index(x, axis, size, item)
        parts.append(part)
        if not part.is_dropped:
            shape.append(part.count)
    y = _taken(x, parts)
    return y if y.type.shape == tuple(shape) else Reshape(tuple(shape))(y)


def _is_mask(index: Any) -> bool:
    if isinstance(index, (bool, np.bool_)):
        return True
    return getattr(index, "dtype", None) in (bool_, np.dtype(bool))


def _without_ellipsis(x: Tensor, items: tuple[Any, ...]) -> list[Any]:
    """The items with slices in place of the ellipsis and of missing items at the end."""
    rank = rank_of("getitem", x)
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    if len(dots) > 1:
        refuse("getitem", "an index has more than one ...", x, fix="write one of them as :")
    if used > rank:
        refuse(
            "getitem",
            f"{used} indices were given for the {counted(rank, 'axis', 'axes')} of {x.type}",
            x,
            fix="give at most one index for each axis",
        )
    place = dots[0] if dots else len(items)
    return [*items[:place], *[slice(None)] * (rank - used), *items[place + 1 :]]


def _axis_index(x: Tensor, axis: int, size: Size, item: Any) -> AxisIndex:
    if isinstance(item, slice):
        return _sliced(x, axis, size, item)
    return _single(x, axis, size, item)


# One element of an axis.


def _single(x: Tensor, axis: int, size: Size, item: Any) -> AxisIndex:
    if has_dtype(item):
        return _tensor_index(x, axis, size, as_tensor(item))
    if isinstance(item, list) or (isinstance(item, np.ndarray) and item.ndim):
        _refuse_list(x, item)
    if not isinstance(item, Dim):
        item = _as_int(x, item)
    start = _checked_index(x, axis, size, item)
    if current().is_top_level and current().reuse is None:
        # As an input of the program, so that another index does not recompile it.
        start = as_tensor(start)
    return AxisIndex(start, 1, is_dropped=True)


def _refuse_list(x: Tensor, item: Any) -> Any:
    refuse(
        "getitem",
        f"a tensor is not indexed by a {type(item).__name__} of several numbers: {item!r}",
        x,
        fix="use tg.gather(x, indices) or tg.boolean_mask(x, mask)",
    )


def _as_int(x: Tensor, item: Any) -> int:
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        return operator.index(item)
    except TypeError:
        fail(
            DTypeError,
            f"getitem: {shown(item)} is {kind_of(item)}, which is not an index",
            operands=[operand_text(x)],
            fix="use ints, slices, ..., None, or an integer tensor",
        )


def _checked_index(x: Tensor, axis: int, size: Size, index: Any) -> Any:
    """The index, counted from 0."""
    if known_int(index):
        message, fix = _index_texts(x, axis, size)
        refuse_outside(np.asarray(index), -size, size - 1, message, fix, (x,))
    return index + size if known_int(index) and index < 0 else index


def _index_texts(x: Tensor, axis: int, size: Size) -> tuple[str, str]:
    """The message for an index out of range, and the fix."""
    fix = "the axis is empty"
    if not known_int(size) or size:
        fix = f"use an index from {-size} to {size - 1}"
    return f"getitem: index {{}} is out of range for axis {axis} of {x.type}", fix


def _tensor_index(x: Tensor, axis: int, size: Size, index: Tensor) -> AxisIndex:
    if not index.dtype.is_integer or index.type.shape != ():
        refuse(
            "getitem",
            f"an index is {index.type}, and it must be an integer scalar",
            x,
            index,
            fix="use tg.gather(x, indices) for several, or tg.cast(index, tg.int32)",
        )
    known = _known_number(index)
    if known is not None:
        return AxisIndex(_checked_index(x, axis, size, known), 1, is_dropped=True)
    value = value_now(index)
    if value is not None:
        # It stays an input of the program, but errors are raised as they would be in a graph.
        _checked_index(x, axis, size, int(value))
    elif checks_at_run_time():
        check_at_run_time(index, -size, size - 1, *_index_texts(x, axis, size))
    return AxisIndex(_counted_from_zero(index, size), 1, is_dropped=True)


def _known_number(x: Tensor) -> Any:
    """The value of an integer scalar if it is known in a graph, else None.

    At top level, values stay inputs of the program, so that they may change.
    """
    if current().is_top_level and current().reuse is None:
        return None
    value = static_value(x)
    return None if value is None else as_known(value)


def _counted_from_zero(index: Tensor, size: Size) -> Tensor:
    index = to_int32(index)
    zero, length = as_tensor(0), cast_to(as_tensor(size), int32)
    return SELECT(LESS(index, zero), ADD(index, length), index)


# A range of an axis.


def _sliced(x: Tensor, axis: int, size: Size, item: slice) -> AxisIndex:
    step = 1 if item.step is None else _bound(x, item.step)
    if not known_int(step) or step == 0:
        refuse(
            "getitem", f"the step of a slice is {item.step!r}", x, fix="give a step that is not 0"
        )
    moving = _moving_slice(x, axis, size, item, step)
    if moving is not None:
        return moving
    if is_open([item.start, item.stop]):
        return _found_by_run(x, size, item, step)
    start, stop = (None if b is None else _bound(x, b) for b in (item.start, item.stop))
    if step > 0:
        first = 0 if start is None else _clamped(start, size)
        last = size if stop is None else maximum(first, _clamped(stop, size))
        return AxisIndex(first, ceiling_divide(last - first, step), last, step)
    return _backwards(size, start, stop, -step)


def _backwards(size: Size, start: Any, stop: Any, step: int) -> AxisIndex:
    """The elements from `start` down to above `stop`, as a reversed range."""
    if start is None:
        first = size - 1
    else:
        first = _clamped(start + 1 if start != -1 else size, size) - 1
    if stop is None:
        last = -1
    else:
        last = _clamped(stop + 1 if stop != -1 else size, size) - 1
    count = maximum(ceiling_divide(first - last, step), 0)
    # Without elements, the range is from first + 1 to first + 1.
    lowest = minimum(first - (count - 1) * step, first + 1)
    return AxisIndex(lowest, count, first + 1, step, is_reversed=True)


def _bound(x: Tensor, bound: Any) -> Any:
    """A bound of a slice as an int or a symbolic size."""
    if has_dtype(bound):
        tensor = as_tensor(bound)
        known = captured_value(tensor)
        if known is None:
            require_rank(tensor)
            fail(
                TraceError,
                f"getitem: the bound of a slice must be known while tracing, and it is a tensor "
                f"{tensor.type}",
                operands=[operand_text(x), operand_text(tensor)],
                fix="give sizes that are known: tg.slice(x, begin, size), or x[i : i + 3]",
            )
        bound = np.asarray(known)[()]
    return bound if isinstance(bound, Dim) else _as_int(x, bound)


def _clamped(bound: Any, size: Size) -> Any:
    """The bound counted from 0 and clamped to the range from 0 to `size`."""
    if known_int(bound) and bound < 0:
        return maximum(size + bound, 0)
    return minimum(bound, size)


def _moving_slice(x: Tensor, axis: int, size: Size, item: slice, step: int) -> AxisIndex | None:
    """A slice x[i : i + n] with a tensor i, and n known; None for any other."""
    if not (has_dtype(item.start) and has_dtype(item.stop)):
        return None
    start, stop = (_scalar_bound(x, bound) for bound in (item.start, item.stop))
    if static_value_in_graph(start) is not None:
        return None
    width = difference(stop, start)
    value = value_now(start)
    if width is None or (value is not None and not _is_inside(int(value), width, size, step)):
        return None  # at top level shorter than `width`, like every slice that passes the end
    if step < 0:
        _refuse_backwards(x, item, step)
    if known_int(width) and width < 0:
        return None
    first = _window_start(start, width, size)
    if value is None:
        _check_inside_at_run_time("getitem", x, axis, first, width)
    return AxisIndex(first, ceiling_divide(width, step), width, step)


def _is_inside(start: int, width: Size, size: Size, step: int) -> bool:
    sizes_are_known = known_int(size) and known_int(width)
    return step == 1 and sizes_are_known and width >= 0 and 0 <= start <= size - width


def _scalar_bound(x: Tensor, bound: Any) -> Tensor:
    bound = as_tensor(bound)
    if not (bound.dtype.is_integer and bound.type.shape == ()):
        refuse(
            "getitem",
            f"the bound of a slice is {bound.type}, and it must be an integer scalar",
            x,
            bound,
            fix="pick one element, or convert it: tg.cast(i, tg.int32)",
        )
    return bound


def _window_start(start: Tensor, width: Size, size: Size) -> Tensor:
    """The start counted from 0. A window that ends before element 0 counts from the end; one that
    passes an end is shifted until it fits, by the op that takes it."""
    start = to_int32(start)
    is_from_end = LESS_EQUAL(start, cast_to(as_tensor(-width), int32))
    return SELECT(is_from_end, ADD(start, cast_to(as_tensor(size), int32)), start)


def _refuse_backwards(x: Tensor, item: slice, step: int) -> NoReturn:
    low = "the beginning" if item.stop is None else _bound_text(item.stop)
    high = "the end" if item.start is None else _bound_text(item.start)
    first = "" if item.stop is None else f"{low} + 1 "
    last = "" if item.start is None else f" {high} + 1"
    fail(
        TraceError,
        f"getitem: a slice from {high} down to {low}, which are known only at run time, has the "
        f"step {step}",
        operands=[operand_text(y) for y in (x, item.start, item.stop) if isinstance(y, Tensor)],
        fix=f"take the elements forwards and turn them round: x[{first}:{last}][::{step}]",
    )


def _bound_text(bound: Any) -> str:
    return text(as_tensor(bound) if has_dtype(bound) else bound)


def _found_by_run(x: Tensor, size: Size, item: slice, step: int) -> AxisIndex:
    """A slice whose bounds, and so its size, are known only at run time."""
    length = cast_to(as_tensor(size), int64)
    zero = as_tensor(0, int64)
    bounds = [None if b is None else _scalar_bound(x, b) for b in (item.start, item.stop)]
    if step < 0:
        _refuse_backwards(x, item, step)
    first, last = (
        None if b is None else _clamped_at_run(cast_to(b, int64), zero, length) for b in bounds
    )
    if first is None:
        assert last is not None
        stop = runtime_size("getitem", last)
        return AxisIndex(0, ceiling_divide(stop, step), stop, step)
    span = SUB(length if last is None else last, first)
    width = runtime_size("getitem", span, clamps=True)
    return AxisIndex(cast_to(first, int32), ceiling_divide(width, step), width, step)


def _clamped_at_run(bound: Tensor, zero: Tensor, length: Tensor) -> Tensor:
    """The bound counted from 0 and clamped to the range from 0 to `length`."""
    bound = SELECT(LESS(bound, zero), ADD(bound, length), bound)
    return Minimum()(Maximum()(bound, zero), length)


def static_value_in_graph(x: Tensor) -> Any:
    """The value of x if it is known while tracing; None at top level, where values may change."""
    if current().is_top_level and current().reuse is None:
        return None
    return static_value(x)


# Assembly.


def _taken(x: Tensor, parts: list[AxisIndex]) -> Tensor:
    sizes = x.type.shape
    if _is_data(x):
        parts = [_movable(part, size) for part, size in zip(parts, sizes)]
    if any(isinstance(part.start, Tensor) for part in parts):
        x = _dynamic(x, parts)
        parts = [
            part._replace(start=0) if isinstance(part.start, Tensor) else part for part in parts
        ]
        sizes = x.type.shape
    is_whole = all(
        known_int(part.start) and part.start == 0 and part.step == 1 and part.count == size
        for part, size in zip(parts, sizes)
    )
    if not is_whole:
        starts = tuple(part.start for part in parts)
        stops = tuple(p.start + p.count if p.stop is None else p.stop for p in parts)
        x = Slice(starts, stops, tuple(part.step for part in parts))(x)
    axes = tuple(k for k, part in enumerate(parts) if part.is_reversed)
    return Reverse(axes)(x) if axes else x


def _is_data(x: Tensor) -> bool:
    """Whether x is a value at top level that nothing differentiates: data, from which a loop takes
    one batch after another."""
    builder = current()
    if not builder.is_top_level or builder.reuse is not None or not x.is_made:
        return False
    return not builder.follows((x,))


def _movable(part: AxisIndex, size: Size) -> AxisIndex:
    """The part with its start as an input of the program, so that another start recompiles
    nothing."""
    is_window = part.step == 1 and not part.is_reversed and known_int(part.count)
    if not is_window or not known_int(part.start) or part.count == size:
        return part
    return part._replace(start=as_tensor(part.start), stop=None)


def _dynamic(x: Tensor, parts: list[AxisIndex]) -> Tensor:
    """x sliced along the axes whose start is a tensor; the others stay whole."""
    counts, starts = [], []
    for axis, (part, size) in enumerate(zip(parts, x.type.shape)):
        is_moving = isinstance(part.start, Tensor)
        width = part.count if part.stop is None else part.stop
        x = with_elements("getitem", x, axis, width, taken=width) if is_moving else x
        counts.append(width if is_moving else size)
        starts.append(part.start if is_moving else as_tensor(0))
    return DynamicSlice(tuple(counts))(x, *starts)


def slice_of(
    input_: TensorLike, begin: TensorLike, size: TensorLike, name: str | None = None
) -> Tensor:
    """size[k] elements from begin[k] on along axis k; -1 means all the rest.

    `begin` and `size` may be tensors; a size that is not known while tracing is found at run time.
    Raises ShapeError if they do not fit. A begin that is only known at run time is shifted until
    they do, unless the function is built with `check_bounds`.

    >>> tg.slice([1, 2, 3, 4], [1], [2]).numpy()
    array([2, 3], dtype=int32)
    """
    x = as_tensor(input_)
    rank = rank_of("slice", x)
    begins, sizes = _numbers("slice", begin, rank), _numbers("slice", size, rank)
    if len(begins) != rank or len(sizes) != rank:
        refuse(
            "slice", f"{len(begins)} begins and {len(sizes)} sizes for {x.type}", x, fix=_ONE_EACH
        )
    sizes = [as_count("slice", "a size", n) if is_open(n) else _bound(x, n) for n in sizes]
    parts = [_axis_index_from(x, axis, b, n) for axis, (b, n) in enumerate(zip(begins, sizes))]
    return _taken(x, parts)


_ONE_EACH = "give one begin and one size for each axis"


def _numbers(op: str, value: Any, rank: int) -> list[Any]:
    """The elements of a vector: numbers, or scalar tensors if unknown."""
    if isinstance(value, (list, tuple)):
        return [plain(number) for number in value]
    if has_dtype(value):
        tensor = as_integers(op, "the numbers", value)
        if static_value_in_graph(tensor) is None:
            count = tensor.type.shape[0] if tensor.ndim == 1 else rank
            return [getitem(tensor, k) for k in range(count)] if tensor.ndim else [tensor]
    return list(as_sizes(op, "a begin or a size", value))


def _axis_index_from(x: Tensor, axis: int, begin: Any, count: Any) -> AxisIndex:
    size = x.type.shape[axis]
    if has_dtype(begin):
        tensor = as_tensor(begin)
        known = _known_number(tensor)
        is_rest = known_int(count) and count == -1
        if known is None and is_rest and is_open(tensor):
            return _rest_from(x, axis, tensor)
        if known is None and not is_rest:
            value = value_now(tensor)
            if value is not None:
                _check_inside(x, axis, int(value), count)
            else:
                _check_inside_at_run_time("slice", x, axis, tensor, count)
            return AxisIndex(to_int32(tensor), count)
        begin = _bound(x, begin) if known is None else known
    begin = begin if isinstance(begin, Dim) else _as_int(x, begin)
    count = size - begin if known_int(count) and count == -1 else count
    _check_inside(x, axis, begin, count)
    return AxisIndex(begin, count)


def _rest_from(x: Tensor, axis: int, begin: Tensor) -> AxisIndex:
    """All elements from one on whose index is known only at run time, counted from 0."""
    begin = _scalar_bound(x, begin)
    _check_inside_at_run_time("slice", x, axis, begin, 0)
    first = begin if begin.dtype.is_unsigned else Maximum()(begin, as_tensor(0, begin.dtype))
    return _found_by_run(x, x.type.shape[axis], slice(first, None), 1)


def _check_inside_at_run_time(op: str, x: Tensor, axis: int, begin: Tensor, count: Size) -> None:
    """Like `_check_inside`, for a slice whose begin is unknown, in a function that checks
    bounds."""
    if checks_at_run_time():
        message = f"{op}: {count} elements from {{}} on are not in axis {axis} of {x.type}"
        fix = "check begin and size against the shape"
        check_at_run_time(begin, 0, x.type.shape[axis] - count, message, fix)


def _check_inside(x: Tensor, axis: int, begin: Any, count: Any) -> None:
    """Rejects a slice that is known to extend past the axis; -1 means all the rest."""
    size, end = x.type.shape[axis], begin if known_int(count) and count == -1 else begin + count
    is_negative = any(known_int(n) and n < 0 for n in (begin, end - begin))
    if is_negative or (known_int(end) and known_int(size) and end > size):
        refuse(
            "slice",
            f"{count} elements from {begin} on are not in axis {axis} of {x.type}",
            x,
            fix="check begin and size against the shape",
        )


def strided_slice(
    input_: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike | None = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
    name: str | None = None,
) -> Tensor:
    """x[begin[0]:end[0]:strides[0], ...]; bit k of a mask changes the meaning of item k.

    The masks: `begin_mask` and `end_mask` omit the bound; the item becomes `...` for
    `ellipsis_mask`, None for `new_axis_mask`, and the index begin[k] for `shrink_axis_mask`.

    >>> tg.strided_slice([1, 2, 3, 4, 5], [0], [5], [2]).numpy()
    array([1, 3, 5], dtype=int32)
    """
    x = as_tensor(input_)
    rank = rank_of("strided_slice", x)
    begins, ends = _numbers("strided_slice", begin, rank), _numbers("strided_slice", end, rank)
    steps = [1] * len(begins) if strides is None else _numbers("strided_slice", strides, rank)
    if not len(begins) == len(ends) == len(steps):
        fact = f"{len(begins)} begins, {len(ends)} ends and {len(steps)} strides"
        refuse("strided_slice", fact, x, fix="give as many of each")
    begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask = (
        as_count("strided_slice", "a mask", mask)
        for mask in (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    )
    items: list[Any] = []
    for k, (first, last, step) in enumerate(zip(begins, ends, steps)):
        bit = 1 << k
        if ellipsis_mask & bit:
            items.append(Ellipsis)
        elif new_axis_mask & bit:
            items.append(None)
        elif shrink_axis_mask & bit:
            items.append(first)
        else:
            start = None if begin_mask & bit else first
            items.append(slice(start, None if end_mask & bit else last, step))
    return getitem(x, tuple(items))


slice_of.__name__ = slice_of.__qualname__ = "slice"

__all__ = ["newaxis", "strided_slice"]
