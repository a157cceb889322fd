"""Changing shapes: reshape, transpose, new axes, broadcasting, padding, reversing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_choice,
    as_flag,
    as_open_numbers,
    as_shape,
    as_sizes,
    known_int,
    open_rank,
    rank_of,
    refuse,
    sizes_of,
    without,
)
from tracegraph.array.runtime_sizes import with_runtime_sizes
from tracegraph.core.shapes import (
    Shape,
    Size,
    element_count,
    floor_divide,
    least,
    maximum,
    minimum,
    same_size,
)
from tracegraph.core.types import int64
from tracegraph.errors import counted, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, static_ints
from tracegraph.ops import shape as ops
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import CONJ
from tracegraph.ops.index import Gather
from tracegraph.typing import Axis, ShapeLike, TensorLike


def reshape(tensor: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape.

    One size may be -1 and is inferred; for an empty tensor, from the sizes that are not 0.
    Raises ShapeError if the numbers of elements differ.

    >>> tg.reshape([1, 2, 3, 4], [2, -1]).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    x = as_tensor(tensor)
    sizes = _wanted_shape(x, shape)
    return x if sizes == x.type.shape else ops.Reshape(sizes)(x)


def _wanted_shape(x: Tensor, shape: Any) -> Shape:
    variable = open_rank(shape)
    if variable is not None:
        return variable
    sizes = static_ints(with_runtime_sizes("reshape", shape), "reshape: a shape")
    if any(size == -1 for size in sizes if known_int(size)):
        return _completed(x, sizes)
    return as_shape("reshape", sizes)


def _completed(x: Tensor, sizes: tuple[Any, ...]) -> Any:
    """The sizes with -1 replaced by the inferred size."""
    free = [k for k, size in enumerate(sizes) if known_int(size) and size == -1]
    if len(free) > 1:
        refuse("reshape", f"{list(sizes)} has more than one -1", x, fix="give all sizes but one")
    others = as_shape("reshape", [size for k, size in enumerate(sizes) if k != free[0]])
    known = element_count(others)
    total = element_count(x.type.shape)
    if known_int(known) and known_int(total):
        if total % known if known else total:
            refuse(
                "reshape",
                f"the {total} elements of {x.type} cannot fill the shape {list(sizes)}",
                x,
                fix="give sizes whose product divides the number of elements",
            )
        left = total // known if known else _without_zeros(x.type.shape) // _without_zeros(others)
    else:
        left = floor_divide(total, known)
    return (*sizes[: free[0]], left, *sizes[free[0] + 1 :])


def _without_zeros(sizes: Any) -> int:
    """The product of the sizes that are not 0."""
    return math.prod(size for size in sizes if size != 0)


def transpose(
    a: TensorLike,
    perm: Sequence[int] | TensorLike | None = None,
    conjugate: bool = False,
    name: str | None = None,
) -> Tensor:
    """Permutes the axes of a: axis k of the result is axis perm[k] of a.

    Without `perm` the order is reversed. `conjugate` takes the complex conjugate too.

    >>> tg.transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = as_tensor(a)
    rank = rank_of("transpose", x)
    if perm is None:
        order = tuple(reversed(range(rank)))
    else:
        order = tuple(as_axis("transpose", k, rank, x) for k in as_sizes("transpose", "perm", perm))
    if order != tuple(range(rank)):
        x = ops.Transpose(order)(x)
    return CONJ(x) if as_flag("transpose", "conjugate", conjugate) and x.dtype.is_complex else x


def expand_dims(input: TensorLike, axis: Axis, name: str | None = None) -> Tensor:
    """`input` with a new axis of size 1, which is `axis` of the result.

    >>> tg.expand_dims([1, 2], 0).shape, tg.expand_dims([1, 2], -1).shape
    (TensorShape([1, 2]), TensorShape([2, 1]))
    """
    x = as_tensor(input)
    sizes = sizes_of("expand_dims", x)
    place = as_axis("expand_dims", axis, len(sizes) + 1, x)
    return ops.Reshape((*sizes[:place], 1, *sizes[place:]))(x)


def squeeze(input: TensorLike, axis: Axis = None, name: str | None = None) -> Tensor:
    """`input` without axes of size 1: those of `axis`, or all.

    >>> tg.squeeze([[[1], [2]]]).shape
    TensorShape([2])
    """
    x = as_tensor(input)
    sizes = sizes_of("squeeze", x)
    if axis is None or (isinstance(axis, (list, tuple)) and not axis):
        axes = tuple(k for k, size in enumerate(sizes) if known_int(size) and size == 1)
        for k in range(len(sizes)):
            x = x if k in axes else ops.at_least(x, k, 0 if sizes[k] == 0 else 2)
    else:
        axes = as_axes("squeeze", axis, len(sizes), x)
    for k in axes:
        if same_size(sizes[k], 1) is None:
            refuse(
                "squeeze",
                f"axis {k} of {x.type} has size {sizes[k]}",
                x,
                fix="squeeze axes of size 1 only; use tg.reshape to join axes",
            )
        x = ops.with_size(x, k, 1)
    return ops.Reshape(without(sizes, axes))(x) if axes else x


def broadcast_to(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """`input` repeated to `shape` by NumPy's rule: axes match from the last, size 1 is repeated.

    >>> tg.broadcast_to([1, 2], [2, 2]).numpy()
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x = as_tensor(input)
    sizes = as_shape("broadcast_to", shape)
    own = x.type.shape
    if isinstance(sizes, tuple) and isinstance(own, tuple):
        offset = len(sizes) - len(own)
        pairs = zip(own, sizes[max(offset, 0) :])
        if offset < 0 or any(a != 1 and same_size(a, b) is None for a, b in pairs):
            refuse(
                "broadcast_to",
                f"{x.type} cannot be broadcast to {list(sizes)}",
                x,
                fix="only axes of size 1 are repeated, and new axes come first",
            )
    return broadcast(x, sizes)


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """Repeats the whole of `input`, multiples[k] times along axis k.

    >>> tg.tile([1, 2], [2]).numpy()
    array([1, 2, 1, 2], dtype=int32)
    """
    x = as_tensor(input)
    sizes = sizes_of("tile", x)
    counts = as_shape("tile", multiples)
    if len(counts) != len(sizes):
        refuse(
            "tile",
            f"{len(counts)} multiples {list(counts)} were given for {x.type}",
            x,
            fix="give one multiple for each axis",
        )
    wide: list[Size] = []
    own: list[int] = []
    for size, count in zip(sizes, counts):
        if not (known_int(count) and count == 1):
            wide.append(count)
        own.append(len(wide))
        wide.append(size)
    repeated = BroadcastTo(tuple(wide), tuple(own))(x)
    return ops.Reshape(tuple(size * count for size, count in zip(sizes, counts)))(repeated)


def pad(
    tensor: TensorLike,
    paddings: TensorLike,
    mode: str = "CONSTANT",
    constant_values: TensorLike = 0,
    name: str | None = None,
) -> Tensor:
    """Pads `tensor` by paddings[k] = [before, after] elements along axis k.

    - `mode` "CONSTANT": pads with `constant_values`; "REFLECT": mirrors the tensor without its
      edge; "SYMMETRIC": with its edge.

    >>> tg.pad([1, 2, 3], [[2, 1]]).numpy()
    array([0, 0, 1, 2, 3, 0], dtype=int32)
    >>> tg.pad([1, 2, 3], [[2, 1]], "REFLECT").numpy()
    array([3, 2, 1, 2, 3, 2], dtype=int32)
    """
    x = as_tensor(tensor)
    widths = _widths(x, paddings)
    kind = mode.upper() if str(mode).upper() in _MODES else mode
    if kind == "CONSTANT":
        is_false = x.dtype.is_bool and type(constant_values) is int and constant_values == 0
        value = as_tensor(False if is_false else constant_values, x.dtype)
        x, widths = _with_open_margins(x, widths, value)
        before, after = zip(*widths) if widths else ((), ())
        return ops.Pad(tuple(before), tuple(after), (0,) * len(widths))(x, value)
    as_choice("pad", "mode", kind, _MODES)
    for axis, (before, after) in enumerate(widths):
        x = _mirrored(x, axis, before, after, int(kind == "REFLECT"))
    return x


def _with_open_margins(x: Tensor, widths: Any, value: Tensor) -> tuple[Tensor, Any]:
    """x with those margins whose widths may turn out negative, and the widths that remain.
    Such a margin is a separate tensor, which then raises an error, whereas `Pad` would crop."""
    left = [list(pair) for pair in widths]
    for axis, pair in enumerate(widths):
        for k, width in enumerate(pair):
            lowest = least(width)
            if lowest is None or lowest < 0:
                shape = tuple(width if a == axis else size for a, size in enumerate(x.type.shape))
                margin, left[axis][k] = BroadcastTo(shape, ())(value), 0
                x = ops.Concatenate(axis)(*((x, margin) if k else (margin, x)))
    return x, left


#: The values of `mode`, which say what `pad` fills the margins with.
_MODES = ("CONSTANT", "REFLECT", "SYMMETRIC")


def _widths(x: Tensor, paddings: Any) -> list[tuple[Any, Any]]:
    rank = rank_of("pad", x)
    pairs = [as_shape("pad", pair) for pair in rows_of("pad", paddings)]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):  # type: ignore[arg-type]
        refuse(
            "pad",
            f"the paddings {shown(paddings)} are not {counted(rank, 'pair')} of sizes, as "
            f"{x.type} needs",
            x,
            fix="give [before, after] for each axis, such as "
            f"{[[1, 1], *[[0, 0]] * (rank - 1)] if rank else []}",
        )
    return pairs  # type: ignore[return-value]


def rows_of(op: str, pairs: Any) -> Any:
    """The rows along the first axis of a list, an array, or a tensor with known values."""
    if isinstance(pairs, (list, tuple)):
        return pairs
    x = as_tensor(pairs)
    numbers = as_sizes(op, "paddings", x)
    width = x.type.shape[-1] if x.ndim == 2 else 1
    return [numbers[k : k + width] for k in range(0, len(numbers), max(width, 1))]


def _mirrored(x: Tensor, axis: int, before: int, after: int, edge: int) -> Tensor:
    """x with mirror images at both ends of one axis; `edge` is 1 if the edge is not repeated."""
    size = x.type.shape[axis]
    if known_int(size) and max(before, after) > max(size - edge, 0):
        refuse(
            "pad",
            f"axis {axis} of {x.type} is too short to be mirrored by {max(before, after)}",
            x,
            fix="pad less, or use the mode CONSTANT",
        )
    parts = [x]
    if before:
        parts.insert(0, ops.Reverse((axis,))(cut(x, axis, edge, edge + before)))
    if after:
        parts.append(ops.Reverse((axis,))(cut(x, axis, size - edge - after, size - edge)))
    return ops.Concatenate(axis)(*parts) if len(parts) > 1 else x


def reverse(tensor: TensorLike, axis: Axis, name: str | None = None) -> Tensor:
    """Reverses `tensor` along each of the axes.

    >>> tg.reverse([1, 2, 3], [0]).numpy()
    array([3, 2, 1], dtype=int32)
    """
    x = as_tensor(tensor)
    axes = as_axes("reverse", axis, rank_of("reverse", x), x)
    return ops.Reverse(axes)(x) if axes else x


def roll(input: TensorLike, shift: TensorLike, axis: Axis, name: str | None = None) -> Tensor:
    """Shifts `input` by `shift` places along `axis`; elements pushed off the end reappear at the
    start.

    The shifts, one per axis or one for all, may be tensors.

    >>> tg.roll([1, 2, 3, 4], shift=1, axis=0).numpy()
    array([4, 1, 2, 3], dtype=int32)
    """
    x = as_tensor(input)
    rank = rank_of("roll", x)
    shifts = as_open_numbers("roll", "a shift", shift)
    axes = [as_axis("roll", one, rank, x) for one in as_sizes("roll", "an axis", axis)]
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    if len(shifts) != len(axes):
        refuse(
            "roll", f"{len(shifts)} shifts for {len(axes)} axes", x, fix="give one for each axis"
        )
    for places, one in zip(shifts, axes):
        x = _rolled(x, places, one)
    return x


def _rolled(x: Tensor, places: Any, axis: int) -> Tensor:
    size = x.type.shape[axis]
    if known_int(size) and size == 0:
        return x
    if isinstance(places, Tensor):
        length = cast_to(as_tensor(maximum(size, 1)), int64)
        # Take the remainder first: the difference of large numbers would overflow.
        positions = Iota(size, int64)() - places % length  # type: ignore[operator]
        return Gather(axis, 0)(x, positions % length)
    first = places % maximum(size, 1)
    if known_int(first) and first == 0:
        return x
    return ops.Concatenate(axis)(cut(x, axis, size - first, size), cut(x, axis, 0, size - first))


def meshgrid(*args: TensorLike, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """The coordinates of a grid: one tensor of the grid's shape for each vector.

    With `indexing` "xy" the first vector runs along axis 1 and the second along axis 0, with "ij"
    each runs along its own axis.

    >>> [x.numpy().tolist() for x in tg.meshgrid([1, 2], [3, 4])]
    [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
    """
    as_choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    vectors = [reshape(x, [-1]) for x in args]
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = 1, 0
    sizes: list[Any] = [None] * len(vectors)
    for x, place in zip(vectors, places):
        sizes[place] = x.type.shape[0]
    return [BroadcastTo(tuple(sizes), (place,))(x) for x, place in zip(vectors, places)]


def neighbours(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """All of x but the last along an axis, and all but the first: nothing of nothing, which a size
    that only the run knows may turn out to be."""
    size = x.type.shape[axis]
    one = minimum(size, 1)
    return cut(x, axis, 0, size - one), cut(x, axis, one, size)


def cut(x: Tensor, axis: int, start: Any, stop: Any, stride: int = 1) -> Tensor:
    """x[start:stop:stride] along one axis; x itself if that is all of it."""
    shape = x.type.shape
    if known_int(start) and start == 0 and stride == 1 and stop == shape[axis]:
        return x
    return ops.slice_axis(x, axis, start, stop, stride)


def moved_axes(x: Tensor, first: tuple[int, ...]) -> Tensor:
    """x with the axes `first` in front, in that order, followed by the others in theirs."""
    order = (*first, *(axis for axis in range(x.ndim) if axis not in first))
    return x if order == tuple(range(x.ndim)) else ops.Transpose(order)(x)


def flattened(x: Tensor, counts: tuple[int, ...]) -> Tensor:
    """x with its axes merged in groups of `counts`."""
    sizes, groups = x.type.shape, []
    start = 0
    for count in counts:
        groups.append(math.prod(sizes[start : start + count]))
        start += count
    return x if tuple(groups) == sizes else ops.Reshape(tuple(groups))(x)


__all__ = [
    "broadcast_to",
    "expand_dims",
    "meshgrid",
    "pad",
    "reshape",
    "reverse",
    "roll",
    "squeeze",
    "tile",
    "transpose",
]
