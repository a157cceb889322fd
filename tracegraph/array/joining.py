"""Joining and splitting tensors: concat, stack, split, repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_count,
    as_integers,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    refuse_kind,
    sizes_of,
)
from tracegraph.array.creation import ensure_shape
from tracegraph.array.runtime_sizes import is_open, runtime_size, with_runtime_sizes
from tracegraph.array.shaping import cut, reshape
from tracegraph.core.shapes import same_shape, same_size
from tracegraph.core.types import DType, TensorType, as_dtype, float32, int32, int64, rank_fix
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    cast_to,
    converted,
    has_dtype,
    is_sequence,
    promoted,
    refuse_mix,
)
from tracegraph.ops.broadcast import BroadcastTo, Sum, full, full_like
from tracegraph.ops.elementwise import ADD, LESS, SELECT
from tracegraph.ops.index import Gather, ScatterAdd, move_axis
from tracegraph.ops.reduce import CumSum, Min
from tracegraph.ops.shape import Concatenate, Reshape, with_size, with_sizes
from tracegraph.tensor_arrays.tensor_array import TensorList
from tracegraph.typing import Axis, DTypeLike, ShapeLike, TensorLike


def together(op: str, values: Any) -> list[Tensor]:
    """The values as tensors of one dtype: tensors promote, numbers and lists adapt to them."""
    is_list = isinstance(values, (list, tuple)) or is_sequence(values)
    values = list(values) if is_list else [values]
    if not values:
        refuse(op, "there are no tensors", fix="give at least one")
    made = [as_tensor(x) if has_dtype(x) else None for x in values]
    typed = [x for x in made if x is not None]
    dtype = typed[0].dtype if typed else _common_dtype(values)
    for x in typed[1:]:
        dtype = promoted(dtype, x.dtype) or refuse_mix(op, typed[0], x)
    return [
        as_tensor(value, dtype) if x is None else cast_to(x, dtype)
        for value, x in zip(values, made)
    ]


def _common_dtype(values: list[Any]) -> DType:
    """The common dtype of numbers, lists and arrays: floating if any of them is, as in a list."""
    first, *others = (as_tensor(value).dtype for value in values)
    for other in others:
        if first.is_integer and other.is_floating:
            first = other
        first = promoted(first, other) or first
    return first


def concat(values: TensorLike, axis: Axis, name: str | None = None) -> Tensor:
    """Concatenates tensors along `axis`.

    Raises ShapeError if they differ along another axis.

    >>> tg.concat([[1, 2], [3]], axis=0).numpy()
    array([1, 2, 3], dtype=int32)
    """
    if isinstance(axis, (list, tuple)) or getattr(axis, "ndim", 0):
        refuse_kind("concat", "an axis is one integer", axis, fix=_CONCAT)
    if isinstance(values, TensorList):
        values = [values.concat()] if axis == 0 else [*values]
    tensors = together("concat", values)
    place = as_axis("concat", axis, rank_of("concat", tensors[0]), *tensors)
    for x in tensors[1:]:
        if rank_of("concat", x) != tensors[0].ndim:
            refuse(
                "concat",
                f"the ranks differ: {tensors[0].type} and {x.type}",
                *tensors,
                fix="use tg.stack for a new axis, or tg.expand_dims first",
            )
    return Concatenate(place)(*tensors) if len(tensors) > 1 else tensors[0]


_CONCAT = "give the tensors as one list, and then the axis: tg.concat([x, y], 0)"


def stack(values: TensorLike, axis: Axis = 0, name: str | None = None) -> Tensor:
    """Stacks tensors of the same shape along a new axis, which is `axis` of the result.

    >>> tg.stack([[1, 2], [3, 4]], axis=1).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    if isinstance(values, TensorList):
        x = values.stack()
        place = as_axis("stack", axis, rank_of("stack", x), x)
        return move_axis(x, 0, place)
    if not isinstance(values, (list, tuple)) and not is_sequence(values):
        values = unstack(values)
    tensors = together("stack", values)
    sizes = sizes_of("stack", tensors[0])
    for x in tensors[1:]:
        if same_shape(sizes, sizes_of("stack", x)) is None:
            refuse(
                "stack",
                f"the shapes differ: {tensors[0].type} and {x.type}",
                *tensors,
                fix="give all tensors one shape",
            )
    place = as_axis("stack", axis, len(sizes) + 1, *tensors)
    wide = Reshape((*sizes[:place], 1, *sizes[place:]))
    rows = [wide(with_sizes(x, sizes)) for x in tensors]
    return Concatenate(place)(*rows) if len(rows) > 1 else rows[0]


def unstack(
    value: TensorLike, num: int | None = None, axis: Axis = 0, name: str | None = None
) -> list[Tensor]:
    """The parts of `value` along `axis`, which is dropped; its size must be known.

    >>> [x.numpy().tolist() for x in tg.unstack([[1, 2], [3, 4]])]
    [[1, 2], [3, 4]]
    """
    x = as_tensor(value)
    sizes = sizes_of("unstack", x)
    place = as_axis("unstack", axis, len(sizes), x)
    size = sizes[place]
    num = None if num is None else as_count("unstack", "num", num)
    if not known_int(size):
        if num is None:
            refuse("unstack", f"the size {size} of axis {place} is open", x, fix="give num=")
        size = num
    if num is not None and size != num:
        refuse("unstack", f"axis {place} has size {size}, and num is {num}", x, fix="leave num out")
    rest = (*sizes[:place], *sizes[place + 1 :])
    x = with_size(x, place, size)
    return [Reshape(rest)(cut(x, place, k, k + 1)) for k in range(size)]


def split(
    value: TensorLike,
    num_or_size_splits: ShapeLike,
    axis: Axis = 0,
    num: int | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """Splits `value` along `axis` into a number of equal parts, or into parts of the given sizes.

    One of the sizes may be -1, for the rest. `num`, the number of parts, is optional; ShapeError is
    raised if it is wrong.

    >>> [x.numpy().tolist() for x in tg.split([1, 2, 3, 4, 5], [2, -1])]
    [[1, 2], [3, 4, 5]]
    """
    x = as_tensor(value)
    place = as_axis("split", axis, rank_of("split", x), x)
    size = x.type.shape[place]
    given = with_runtime_sizes("split", num_or_size_splits)
    parts = as_sizes("split", "the sizes", given)
    if isinstance(num_or_size_splits, (int, np.integer)):
        parts = _equal_parts(x, place, parts[0])
    else:
        if num is not None and num != len(parts):
            fact = f"{num} parts are asked for, and there are {len(parts)} sizes: {list(parts)}"
            refuse("split", fact, x, fix="leave num out: the sizes say how many parts there are")
        parts = _completed_parts(x, place, parts)
    total = sum(parts)
    if same_size(size, total) is None:
        refuse(
            "split",
            f"the sizes {list(parts)} sum to {total}, and axis {place} of {x.type} has {size}",
            x,
            fix="give sizes that sum to the size of the axis, or -1 for one of them",
        )
    x = with_size(x, place, total)
    pieces, start = [], 0
    for part in parts:
        pieces.append(cut(x, place, start, start + part))
        start = start + part
    return pieces


def _equal_parts(x: Tensor, axis: int, count: int) -> tuple[Any, ...]:
    size = x.type.shape[axis]
    if count < 1 or (known_int(size) and size % count):
        refuse(
            "split",
            f"axis {axis} of {x.type} does not divide into {count} equal parts",
            x,
            fix="give the sizes of the parts instead",
        )
    return (size // count,) * count


def _completed_parts(x: Tensor, axis: int, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    free = [k for k, part in enumerate(parts) if known_int(part) and part == -1]
    if not free:
        return parts
    left = x.type.shape[axis] - (sum(parts) + 1)
    if len(free) > 1 or (known_int(left) and left < 0):
        refuse(
            "split",
            f"the sizes {list(parts)} do not fit axis {axis} of {x.type}",
            x,
            fix="give sizes that sum to at most the size of the axis, and one -1",
        )
    return (*parts[: free[0]], left, *parts[free[0] + 1 :])


def repeat(
    input: TensorLike, repeats: TensorLike, axis: Axis = None, name: str | None = None
) -> Tensor:
    """Repeats each element `repeats` times along `axis`; without an axis, of the flattened tensor.

    - `repeats`: one number for all elements, or one for each. Raises ShapeError for a negative
      number, and InvalidArgumentError if only the run finds it.

    >>> tg.repeat([1, 2], 2).numpy(), tg.repeat([1, 2], [1, 3]).numpy()
    (array([1, 1, 2, 2], dtype=int32), array([1, 2, 2, 2], dtype=int32))
    """
    x = as_tensor(input)
    if axis is None:
        x, axis = reshape(x, [-1]), 0
    sizes = sizes_of("repeat", x)
    place = as_axis("repeat", axis, len(sizes), x)
    if is_open(repeats):
        return _repeated_by(x, place, as_integers("repeat", "the counts", repeats))
    counts = as_sizes("repeat", "the counts", repeats)
    for count in counts:
        if known_int(count) and count < 0:
            refuse("repeat", f"the count is {count}", x, fix="repeat each element 0 times or more")
    if len(counts) == 1:
        return _repeated(x, place, counts[0])
    if same_size(len(counts), sizes[place]) is None:
        refuse(
            "repeat",
            f"{len(counts)} counts for axis {place} of {x.type}",
            x,
            fix="give one count for each element, or one for all",
        )
    if not counts:
        return x
    x = with_size(x, place, len(counts))
    rows = [_repeated(cut(x, place, k, k + 1), place, count) for k, count in enumerate(counts)]
    return Concatenate(place)(*rows) if len(rows) > 1 else rows[0]


def _repeated_by(x: Tensor, axis: int, counts: Tensor) -> Tensor:
    """The elements along an axis, each repeated by a count that is known only at run time."""
    if counts.type.shape in ((), (1,)):
        return _repeated(x, axis, runtime_size("repeat", reshape(counts, [])))
    if counts.ndim != 1 or same_size(counts.type.shape[0], x.type.shape[axis]) is None:
        refuse(
            "repeat",
            f"the counts {counts.type} for axis {axis} of {x.type}",
            x,
            counts,
            fix="give one count for each element, or one for all",
        )
    counts = with_size(counts, 0, x.type.shape[axis])
    ends = CumSum(0, False)(cast_to(counts, int32))
    wide = cast_to(counts, int64)
    least, zero = Min((0,))(wide), as_tensor(0, int64)
    # A negative count would take from what the others give; as the size, it is refused.
    total = runtime_size("repeat", SELECT(LESS(least, zero), least, Sum((0,))(wide)))
    # The element at each place is given by how many elements have ended before it.
    marks = full(0, TensorType(int32, (total + 1,)))
    ended = ScatterAdd(0, 0)(marks, Reshape((*ends.type.shape, 1))(ends), full_like(ends, 1))
    return Gather(axis, 0)(x, cut(CumSum(0, False)(ended), 0, 0, total))


def _repeated(x: Tensor, axis: int, count: Any) -> Tensor:
    """Repeats each element `count` times: a new axis of that size after `axis`, merged with it."""
    sizes = x.type.shape
    after = axis + 1
    own = tuple(k for k in range(len(sizes) + 1) if k != after)
    wide = BroadcastTo((*sizes[:after], count, *sizes[after:]), own)(x)
    return Reshape((*sizes[:axis], sizes[axis] * count, *sizes[after:]))(wide)


def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of the same shape. 16-bit floating-point numbers are added in float32.

    >>> tg.add_n([[1, 2], [3, 4], [5, 6]]).numpy()
    array([ 9, 12], dtype=int32)
    """
    is_list = isinstance(inputs, (Iterator, np.ndarray))
    first, *others = together("add_n", list(inputs) if is_list else inputs)
    is_narrow = first.dtype.is_floating and first.dtype.size == 2
    wide = float32 if is_narrow and len(others) > 1 else first.dtype
    total = cast_to(first, wide)
    for x in others:
        if same_shape(first.type.shape, x.type.shape) is None:
            refuse(
                "add_n",
                f"the shapes differ: {first.type} and {x.type}",
                first,
                x,
                fix=rank_fix(first.type, x.type) or "give all tensors one shape; + broadcasts",
            )
        total = ADD(total, cast_to(x, wide))
    return cast_to(total, first.dtype)


def accumulate_n(
    inputs: Sequence[Any],
    shape: ShapeLike | None = None,
    tensor_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """The sum of tensors of the same shape, like `add_n`.

    Raises ShapeError if their shape is not `shape`, DTypeError if their dtype is not
    `tensor_dtype`.

    >>> tg.math.accumulate_n([[1, 2], [3, 4]], shape=[2]).numpy()
    array([4, 6], dtype=int32)
    """
    total = add_n(inputs)
    if tensor_dtype is not None:
        total = converted(total, as_dtype(tensor_dtype))
    return total if shape is None else ensure_shape(total, shape)


__all__ = ["accumulate_n", "add_n", "concat", "repeat", "split", "stack", "unstack"]
