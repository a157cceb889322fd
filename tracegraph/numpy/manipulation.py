"""Moving, joining and taking elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph import array, linalg
from tracegraph.array.arguments import as_axis, as_integers, as_list, as_sizes, rank_of, refuse
from tracegraph.array.indexing.index_arrays import counted_from_zero
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_shape
from tracegraph.ops.index import take_along
from tracegraph.typing import Axis, ShapeLike, TensorLike

broadcast_to = array.broadcast_to
matrix_transpose = linalg.matrix_transpose


def broadcast_arrays(*arrays: TensorLike) -> list[Tensor]:
    """Broadcasts the arrays to their common shape.

    >>> [x.numpy().tolist() for x in tg.numpy.broadcast_arrays([1, 2], [[3]])]
    [[[1, 2]], [[3, 3]]]
    """
    tensors = [as_tensor(x) for x in arrays]
    if not tensors:
        return []
    shape = broadcast_shape("broadcast_arrays", *tensors)
    return [broadcast(x, shape) for x in tensors]


def concat(arrays: list[Any] | tuple[Any, ...], /, *, axis: int | None = 0) -> Tensor:
    """Concatenates the arrays; without an axis, they are flattened first.

    >>> tg.numpy.concat([tg.constant([[1, 2]]), tg.constant([[3]])], axis=None).numpy()
    array([1, 2, 3], dtype=int32)
    """
    parts = list(as_list("concat", "arrays", arrays))
    if axis is None:
        parts, axis = [array.reshape(x, [-1]) for x in parts], 0
    return array.concat(parts, axis)


def stack(arrays: list[Any] | tuple[Any, ...], /, *, axis: int = 0) -> Tensor:
    """Stacks arrays of the same shape along a new axis."""
    return array.stack(arrays, axis)


def unstack(x: TensorLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x along an axis, which is dropped.

    >>> [part.numpy() for part in tg.numpy.unstack([1, 2])]
    [np.int32(1), np.int32(2)]
    """
    return tuple(array.unstack(x, axis=axis))


def permute_dims(x: TensorLike, /, axes: Axis) -> Tensor:
    """x with its axes permuted; see `tg.transpose`."""
    return array.transpose(x, axes)


def expand_dims(x: TensorLike, /, axis: int) -> Tensor:
    """x with a new axis of size 1."""
    return array.expand_dims(x, axis)


def squeeze(x: TensorLike, /, axis: Axis) -> Tensor:
    """x without the given axes, whose sizes are 1."""
    return array.squeeze(x, axis)


def flip(x: TensorLike, /, *, axis: Axis = None) -> Tensor:
    """x reversed along the axes, by default all.

    >>> tg.numpy.flip([[1, 2], [3, 4]], axis=1).numpy()
    array([[2, 1],
           [4, 3]], dtype=int32)
    """
    x = as_tensor(x)
    return array.reverse(x, list(range(rank_of("flip", x))) if axis is None else axis)


def moveaxis(x: TensorLike, source: Axis, destination: Axis, /) -> Tensor:
    """x with some axes moved to other positions, and the others in order.

    >>> tg.numpy.moveaxis(tg.zeros([2, 3, 4]), 0, -1).shape
    TensorShape([3, 4, 2])
    """
    x = as_tensor(x)
    rank = rank_of("moveaxis", x)
    sources, places = (
        [as_axis("moveaxis", axis, rank, x) for axis in as_sizes("moveaxis", "an axis", axes)]
        for axes in (source, destination)
    )
    if len(sources) != len(places) or any(len(set(v)) < len(v) for v in (sources, places)):
        fact = f"the axes {sources} are to move to {places}"
        refuse("moveaxis", fact, x, fix="give as many places as axes, and each once")
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted(zip(places, sources)):
        order.insert(place, axis)
    return array.transpose(x, order)


def repeat(x: TensorLike, repeats: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """Repeats each element along an axis; without an axis, x is flattened. See `tg.repeat`."""
    return array.repeat(x, repeats, axis)


def reshape(x: TensorLike, /, shape: ShapeLike, *, copy: bool | None = None) -> Tensor:
    """x in another shape; one size may be -1. A tensor never changes, so `copy` has no effect."""
    return array.reshape(x, shape)


def roll(x: TensorLike, /, shift: TensorLike, *, axis: Axis = None) -> Tensor:
    """x shifted cyclically along the axes; without axes, as one flat row.

    >>> tg.numpy.roll([[1, 2], [3, 4]], 1).numpy()
    array([[4, 1],
           [2, 3]], dtype=int32)
    """
    x = as_tensor(x)
    if axis is None:
        return array.reshape(array.roll(array.reshape(x, [-1]), shift, 0), x.shape)
    if isinstance(axis, (list, tuple)) and isinstance(shift, int):
        shift = [shift] * len(axis)
    return array.roll(x, shift, axis)


def tile(x: TensorLike, repetitions: Sequence[int], /) -> Tensor:
    """Repeats the whole of x along each axis; the shorter of shape and repetitions gets leading 1s.

    >>> tg.numpy.tile([1, 2], (2, 1)).numpy()
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x = as_tensor(x)
    counts = as_sizes("tile", "the repetitions", repetitions)
    missing = len(counts) - rank_of("tile", x)
    if missing > 0:
        x = array.reshape(x, [1] * missing + list(x.shape))
    return array.tile(x, [1] * -missing + list(counts))


def take(x: TensorLike, indices: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The elements at indices along an axis, which is optional for a vector; -1 is the last one.

    >>> tg.numpy.take([10, 20, 30], [2, -3]).numpy()
    array([30, 10], dtype=int32)
    """
    x = as_tensor(x)
    place = as_axis("take", only_axis("take", x) if axis is None else axis, rank_of("take", x), x)
    at = as_integers("take", "the indices", indices)
    return array.gather(x, counted_from_zero(at, x.type.shape[place]), axis=place)


def only_axis(op: str, x: Tensor) -> int:
    """The axis of a vector, which may be omitted. Raises ValueError for any other tensor."""
    if rank_of(op, x) == 1:
        return 0
    fail(
        SignatureError,
        f"{op}: the operand is {x.type}, and only a vector needs no axis",
        operands=[operand_text(x)],
        fix="give axis=",
    )


def take_along_axis(x: TensorLike, indices: TensorLike, /, *, axis: int = -1) -> Tensor:
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along one axis; the others broadcast.

    >>> x = tg.constant([[3, 1, 2]])
    >>> tg.numpy.take_along_axis(x, tg.argsort(x), axis=1).numpy()
    array([[1, 2, 3]], dtype=int32)
    """
    x, at = as_tensor(x), as_integers("take_along_axis", "the indices", indices)
    rank = rank_of("take_along_axis", x)
    place = as_axis("take_along_axis", axis, rank, x)
    if rank_of("take_along_axis", at) != rank:
        fact = f"the operand {x.type} and the indices {at.type} differ in the number of axes"
        refuse("take_along_axis", fact, x, at, fix="give the indices one axis for each of x")
    at = counted_from_zero(at, x.type.shape[place])
    others = [
        array.zeros([1 if k == place else size for k, size in enumerate(v.shape)], v.dtype)
        for v in (x, at)
    ]
    shape = list(broadcast_shape("take_along_axis", *others))
    x, at = (
        broadcast(v, (*shape[:place], v.type.shape[place], *shape[place + 1 :])) for v in (x, at)
    )
    return take_along(x, at, place)


__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "take",
    "take_along_axis",
    "tile",
    "unstack",
]
