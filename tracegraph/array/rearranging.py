"""Assembling elements by position, reversing sequences, and functions of several tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_integers,
    as_list,
    as_shape,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import identity, shape
from tracegraph.array.joining import stack, together
from tracegraph.array.runtime_sizes import is_open, largest, runtime_size
from tracegraph.array.shaping import pad, reshape
from tracegraph.core.shapes import Size, maximum, same_shape, same_size
from tracegraph.core.tensorshape import TensorShape, TensorSpec, shape_of
from tracegraph.core.types import (
    DType,
    TensorType,
    as_dtype,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tracegraph.errors import DTypeError, InvalidArgumentError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    broadcast,
    broadcast_two,
    cast_to,
    elementwise_operands,
    from_array,
    has_dtype,
    static_value,
    to_int32,
)
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import BroadcastTo, full, full_like
from tracegraph.ops.constant import Iota
from tracegraph.ops.index import Gather, ScatterMax, move_axis
from tracegraph.ops.shape import Concatenate, Reshape, slice_axis, with_sizes
from tracegraph.tracing.index_checks import check_up_to, value_at_hand
from tracegraph.typing import DTypeLike, ShapeLike, TensorLike


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Merges the rows of several tensors: y[indices[m][i]] = data[m][i]; the last of several rows
    for the same position wins.

    - `indices`: integer tensors.
    - `data`: as many tensors; the shape of each begins with that of its indices, and the rest is
      the same for all.

    A position that no index names has zeros. The number of rows is a size found at run time, unless
    the indices are known while tracing. Raises ShapeError for shapes that do not fit, and
    InvalidArgumentError for a negative index, at top level and if it is known; the row of one that
    is only known at run time is left out.

    >>> tg.dynamic_stitch([[0, 2], [1]], [[1, 3], [2]]).numpy()
    array([1, 2, 3], dtype=int32)
    """
    op = "dynamic_stitch"
    places = [as_integers(op, "the indices", x) for x in as_list(op, "indices", indices)]
    values = together(op, list(as_list(op, "data", data)))
    if len(places) != len(values):
        fact = f"{len(places)} tensors of indices for {len(values)} of data"
        refuse(op, fact, fix="give one tensor of indices for each of data")
    rows, rest = [], None
    for at, value in zip(places, values):
        rank = rank_of(op, at)
        own = sizes_of(op, value)[rank:]
        rest = own if rest is None else same_shape(rest, own)
        if rest is None or same_shape(sizes_of(op, value)[:rank], at.type.shape) is None:
            fact = f"data {value.type} for indices {at.type}"
            refuse(op, fact, value, at, fix="give one row of one shape for each index")
        value = with_sizes(value, (*at.type.shape, *own))
        rows.append(reshape(value, [-1, *own] if 0 not in own else [*at.type.shape, *own]))
    joined = Concatenate(0)(*rows)
    if is_open(places):
        return _stitched_by_run(places, joined)
    known = [np.asarray(static_value(at)).reshape(-1) for at in places]
    numbers = np.concatenate(known).astype(np.int64)
    if (numbers < 0).any():
        fact = f"{op}: the indices count from 0, and there is {numbers.min()}"
        fail(InvalidArgumentError, fact, fix="use numbers of zero or more")
    length = int(numbers.max(initial=-1)) + 1
    if length > np.unique(numbers).size:  # so large, perhaps, that an array would not fit in memory
        return _stitched(from_array(numbers), length, joined)
    source = np.empty(length, np.int32)
    source[numbers] = np.arange(len(numbers))
    return Gather(0, 0)(joined, from_array(source))


def _stitched_by_run(places: Sequence[Tensor], rows: Tensor) -> Tensor:
    numbers = Concatenate(0)(*(reshape(cast_to(at, int64), [-1]) for at in places))
    length = runtime_size("dynamic_stitch", ops.ADD(largest(numbers, -1), as_tensor(1, int64)))
    return _stitched(numbers, length, rows)


def _stitched(numbers: Tensor, length: Size, rows: Tensor) -> Tensor:
    """`length` rows, the one at numbers[i] being rows[i], and others 0."""
    # Of several rows for one position, the last one has the largest number.
    count = numbers.type.shape[0]
    none = full(-1, TensorType(int32, (length,)))
    at = Reshape((count, 1))(numbers)
    source = ScatterMax(0, 0)(none, at, Iota(count, int32)())
    found = Gather(0, 0)(rows, ops.MAXIMUM(source, full_like(source, 0)))
    return _zero_elsewhere(ops.LESS_EQUAL(full_like(source, 0), source), found)


def _zero_elsewhere(is_named: Tensor, rows: Tensor) -> Tensor:
    is_named = reshape(is_named, [-1, *[1] * (rows.ndim - 1)])
    return ops.SELECT(broadcast(is_named, rows.type.shape), rows, full_like(rows, 0))


def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`input` with the first seq_lengths[b] elements along `seq_axis` reversed, for each b along
    `batch_axis`.

    The axes default to 0; at least one of them must be given, since they must differ.
    Raises ShapeError for equal axes, and unless there is one length for each b.

    >>> tg.reverse_sequence([[1, 2, 3, 4], [5, 6, 7, 8]], [2, 3], seq_axis=1).numpy()
    array([[2, 1, 3, 4],
           [7, 6, 5, 8]], dtype=int32)
    """
    op = "reverse_sequence"
    x, lengths = as_tensor(input), as_integers(op, "the lengths", seq_lengths)
    rank = rank_of(op, x)
    along, batch = (as_axis(op, axis or 0, rank, x) for axis in (seq_axis, batch_axis))
    if along == batch:
        refuse(op, f"seq_axis and batch_axis are both {along}", x, fix="give different axes")
    sizes = x.type.shape
    if rank_of(op, lengths) != 1 or same_size(lengths.type.shape[0], sizes[batch]) is None:
        fact = f"lengths {lengths.type} for {sizes[batch]} sequences of {x.type}"
        refuse(op, fact, x, lengths, fix="give one length for each sequence")
    _check_lengths(op, lengths, sizes[along])
    grid = (sizes[batch], sizes[along])
    lengths = BroadcastTo(grid, (0,))(to_int32(lengths))
    place = BroadcastTo(grid, (1,))(Iota(sizes[along], int32)())
    last = ops.SUB(lengths, full_like(lengths, 1))
    source = ops.SELECT(ops.LESS(place, lengths), ops.SUB(last, place), place)
    first = move_axis(x, batch, 0)
    at = along + (along < batch)
    rows = move_axis(Gather(1, 1)(move_axis(first, at, 1), source), 1, at)
    return move_axis(rows, 0, batch)


def _check_lengths(op: str, lengths: Tensor, size: Any) -> None:
    message = f"{op}: a length is {{}}, and the sequences have {size} elements"
    check_up_to(size, lengths, message, f"use lengths from 0 to {size}")


def unravel_index(indices: TensorLike, dims: TensorLike, name: str | None = None) -> Tensor:
    """The coordinates of flat, row-major positions in a tensor of shape `dims`: one row for each
    axis.

    Raises InvalidArgumentError for a position that is known to be out of range.

    >>> tg.unravel_index([2, 5, 7], [3, 3]).numpy()
    array([[0, 1, 2],
           [2, 2, 1]], dtype=int32)
    """
    op = "unravel_index"
    places, sizes = as_integers(op, "the indices", indices), as_integers(op, "the dims", dims)
    if rank_of(op, sizes) != 1 or rank_of(op, places) > 1:
        fact = f"indices {places.type} into dims {sizes.type}"
        refuse(op, fact, places, sizes, fix="give a position or a vector of them, and a shape")
    known, shape_known = value_at_hand(places), value_at_hand(sizes)
    if known is not None and shape_known is not None:
        count = math.prod(shape_known.tolist())
        if (shape_known < 1).any() and known.size:
            fact = f"{op}: the dims are {shape_known.tolist()}"
            fail(InvalidArgumentError, fact, fix="use dims of one or more")
        if ((known < 0) | (known >= count)).any():
            fact = f"{op}: the indices are {known.tolist()}, and there are {count} elements"
            fail(InvalidArgumentError, fact, fix=f"use indices from 0 to {count - 1}")
    largest = sizes.dtype.max if shape_known is None else max(shape_known.tolist(), default=0)
    if largest > places.dtype.max:  # a size must not wrap around
        places = cast_to(places, sizes.dtype)
    found = []
    for k in reversed(range(sizes.type.shape[0])):  # type: ignore[arg-type]
        size = cast_to(reshape(sizes[k], []), places.dtype)  # type: ignore[index]
        size = broadcast(size, places.type.shape)
        found.insert(0, ops.FloorMod()(places, size))
        places = ops.FloorDiv()(places, size)
    return stack(found)


def bitcast(input: TensorLike, type: DTypeLike, name: str | None = None) -> Tensor:
    """The bits of `input`, read as another dtype; has no derivative.

    A dtype with smaller elements adds an axis at the end, for the parts of each element, lowest
    bits first; for one with larger elements, the last axis, whose size is the number of parts, is
    merged. Raises ShapeError if it has another size, DTypeError for bools.

    >>> tg.bitcast(tg.constant(1.0), tg.int32).numpy()
    np.int32(1065353216)
    >>> tg.bitcast(tg.constant([1, 256]), tg.uint8).numpy()
    array([[1, 0, 0, 0],
           [0, 1, 0, 0]], dtype=uint8)
    """
    op = "bitcast"
    x, kind = as_tensor(input), as_dtype(type)
    if x.dtype.is_bool or kind.is_bool:
        fact = f"{op}: {x.dtype.name} to {kind.name}, and truth values have no bits to read"
        fail(DTypeError, fact, fix="use tg.cast")
    if x.dtype is kind:
        return x
    sizes, wide, narrow = sizes_of(op, x), x.dtype.size, kind.size
    if wide < narrow:
        count = narrow // wide
        if not sizes or same_size(sizes[-1], count) is None:
            fact = f"{x.type} to {kind.name}, of which {count} elements make one"
            refuse(op, fact, x, fix=f"give a last axis of size {count}")
        sizes = sizes[:-1]
    elif wide > narrow:
        sizes = (*sizes, wide // narrow)
    unit = min(x.dtype.real.size, kind.real.size)
    parts = reshape(_split_bits(_real_parts(x), unit), [*sizes, narrow // unit])
    return _of_real_parts(_joined_bits(parts, kind.real), kind)


def _real_parts(x: Tensor) -> Tensor:
    """x with an additional last axis: the real and the imaginary part, or just x itself."""
    if x.dtype.is_complex:
        return stack([ops.REAL(x), ops.IMAG(x)], axis=-1)
    return Reshape((*x.type.shape, 1))(x)


def _of_real_parts(x: Tensor, kind: DType) -> Tensor:
    *sizes, count = x.type.shape
    parts = [Reshape(tuple(sizes))(slice_axis(x, len(sizes), k, k + 1)) for k in range(count)]
    return ops.Complex()(*parts) if kind.is_complex else parts[0]


def _split_bits(x: Tensor, size: int) -> Tensor:
    """Splits elements into unsigned integers of `size` bytes, lowest first, along a new last
    axis."""
    bits = _as_bits(x, _UNSIGNED[x.dtype.size])
    if x.dtype.size == size:
        return stack([bits], axis=-1)
    mask, part = full_like(bits, 2 ** (8 * size) - 1), _UNSIGNED[size]
    shifts = [full_like(bits, 8 * k) for k in range(0, x.dtype.size, size)]
    places = [ops.LogicalAnd()(ops.ShiftRight()(bits, shift), mask) for shift in shifts]
    return stack([cast_to(place, part) for place in places], axis=-1)


def _joined_bits(x: Tensor, kind: DType) -> Tensor:
    """The inverse of `_split_bits`: the last axis holds the parts of one element or more."""
    *sizes, count = x.type.shape
    each = kind.size // x.dtype.size
    x = cast_to(Reshape((*sizes, count // each, each))(x), _UNSIGNED[kind.size])
    total = None
    for k in range(each):
        part = Reshape((*sizes, count // each))(slice_axis(x, x.ndim - 1, k, k + 1))
        part = ops.ShiftLeft()(part, full_like(part, k * 8 * kind.size // each))
        total = part if total is None else ops.LogicalOr()(total, part)
    assert total is not None
    return _as_bits(total, kind)


def _as_bits(x: Tensor, kind: DType) -> Tensor:
    return x if x.dtype is kind else ops.Bitcast(kind)(x)


#: The unsigned dtype with this many bytes.
_UNSIGNED = {1: uint8, 2: uint16, 4: uint32, 8: uint64}


def identity_n(input: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """New tensors with the values of those in a list.

    >>> [x.numpy().tolist() for x in tg.identity_n([[1, 2], 3.0])]
    [[1, 2], 3.0]
    """
    return [identity(x) for x in as_list("identity_n", "input", input)]


def shape_n(
    input: Sequence[Any], out_type: DTypeLike = int32, name: str | None = None
) -> list[Tensor]:
    """`tg.shape` of each tensor in the list.

    >>> [x.numpy().tolist() for x in tg.shape_n([tg.zeros([2, 3]), 1.0])]
    [[2, 3], []]
    """
    return [shape(x, out_type) for x in as_list("shape_n", "input", input)]


def guarantee_const(input: TensorLike, name: str | None = None) -> Tensor:
    """Returns `input`. It tells TensorFlow that the value never changes, but has no effect here.

    >>> tg.guarantee_const(2.0).numpy()
    np.float32(2.0)
    """
    return identity(input)


def parallel_stack(values: TensorLike, name: str | None = None) -> Tensor:
    """`tg.stack` along a new first axis; XLA decides what to compute in parallel.

    >>> tg.parallel_stack([[1, 2], [3, 4]]).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return stack(values)


def type_spec_from_value(value: TensorLike) -> TensorSpec:
    """The `tg.TensorSpec` that describes a tensor, or a value convertible to one.

    >>> tg.type_spec_from_value([1.0, 2.0])
    TensorSpec(shape=(2,), dtype=tg.float32, name=None)
    """
    described: Any = value if has_dtype(value) else as_tensor(value)
    return TensorSpec.from_tensor(described)


def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape:
    """The shape to which two shapes broadcast, by NumPy's rule.

    Raises ShapeError, a ValueError, if they do not broadcast.

    >>> tg.broadcast_static_shape([2, 1], [3])
    TensorShape([2, 3])
    """
    op = "broadcast_static_shape"
    x, y = (as_shape(op, shape) for shape in (shape_x, shape_y))
    found = broadcast_two(x, y)
    if found is None:
        fact = f"{list(x)} and {list(y)} do not broadcast"
        refuse(op, fact, fix="axes are matched from the last, and 1 is repeated")
    return shape_of(found)


def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """`broadcast_static_shape` for integer vectors, whose values may be unknown.

    Raises ShapeError if they are known and do not broadcast.

    >>> tg.broadcast_dynamic_shape([2, 1], [3]).numpy()
    array([2, 3], dtype=int32)
    """
    op = "broadcast_dynamic_shape"
    x, y = (as_integers(op, "the sizes", shape) for shape in (shape_x, shape_y))
    if rank_of(op, x) != 1 or rank_of(op, y) != 1:
        refuse(op, f"the shapes are {x.type} and {y.type}", x, y, fix="give vectors of integers")
    known = [value_at_hand(shape) for shape in (x, y)]
    if all(shape is not None for shape in known):
        broadcast_static_shape(*known)  # type: ignore[arg-type]
    (count,), (other,) = x.type.shape, y.type.shape
    rank = maximum(count, other)
    x, y = (pad(z, [[rank - z.type.shape[0], 0]], constant_values=1) for z in (x, y))
    x, y = elementwise_operands(op, x, y)
    return ops.SELECT(ops.EQUAL(x, full_like(x, 1)), y, x)


__all__ = [
    "bitcast",
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "dynamic_stitch",
    "guarantee_const",
    "identity_n",
    "parallel_stack",
    "reverse_sequence",
    "shape_n",
    "type_spec_from_value",
    "unravel_index",
]
