"""Matrices and their parts: transposes, diagonals, bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_choice,
    as_flag,
    as_open_number,
    as_size,
    as_sizes,
    known_int,
    matrices,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import eye
from tracegraph.array.joining import stack
from tracegraph.array.shaping import expand_dims, pad, squeeze
from tracegraph.core.shapes import element_count, maximum, minimum, plain, same_shape, same_size
from tracegraph.core.types import bool_, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.norms import global_norm, l2_normalize
from tracegraph.math.product import einsum, matmul, tensordot
from tracegraph.math.reduction import norm
from tracegraph.operands.conversion import as_tensor, broadcast
from tracegraph.ops.broadcast import BroadcastTo, Sum, zeros_of
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import adjoint as adjoint_of, swap_last
from tracegraph.ops.elementwise import SELECT, SUB, LogicalAnd
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Reshape, with_size
from tracegraph.typing import Axis, TensorLike


def matrix_transpose(
    a: TensorLike, name: str = "matrix_transpose", conjugate: bool = False
) -> Tensor:
    """Each matrix a[..., i, j] transposed: [..., j, i]; with `conjugate`, its complex conjugate.

    >>> tg.linalg.matrix_transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = matrices("matrix_transpose", a)
    is_adjoint = as_flag("matrix_transpose", "conjugate", conjugate)
    return adjoint_of(x) if is_adjoint else swap_last(x)


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The conjugate transpose of each matrix.

    >>> tg.linalg.adjoint([[1j]]).numpy()
    array([[0.-1.j]])
    """
    return adjoint_of(matrices("adjoint", matrix))


def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """y[..., i] = sum_j a[..., i, j] * b[..., j]

    `a_is_sparse` and `b_is_sparse` are hints for TensorFlow, with no effect here.

    >>> tg.linalg.matvec([[1, 2], [3, 4]], [1, 1]).numpy()
    array([3, 7], dtype=int32)
    """
    column = expand_dims(as_tensor(b), -1)
    return squeeze(matmul(a, column, transpose_a=transpose_a, adjoint_a=adjoint_a), axis=-1)


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the diagonal of each matrix: sum_i x[..., i, i]

    >>> tg.linalg.trace([[1, 2], [3, 4]]).numpy()
    np.int32(5)
    """
    diagonal = diag_part(x)
    return Sum((diagonal.ndim - 1,))(diagonal)


def diag(
    diagonal: TensorLike,
    name: str = "diag",
    k: TensorLike = 0,
    num_rows: int | Tensor = -1,
    num_cols: int | Tensor = -1,
    padding_value: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Matrices with the vectors diagonal[..., :] on a diagonal and `padding_value` elsewhere.

    - `k`: the diagonal, an int, positive above the main one; or a pair (lowest, highest) for the
      diagonals between them, where diagonal[..., i, :] is the i-th from the highest.
    - `num_rows`, `num_cols`: the sizes; -1 for the smallest possible, in square matrices if both
      are.
    - `align`: to which side of their rows diagonals shorter than the longest are aligned, above and
      below the main one; see `tg.linalg.diag_part`, whose inverse this is.

    Raises ShapeError if the numbers of diagonals, rows and columns do not fit.

    >>> tg.linalg.diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    >>> tg.linalg.diag([1], k=1).numpy()
    array([[0, 1],
           [0, 0]], dtype=int32)
    >>> tg.linalg.diag([[0, 5], [1, 2]], k=(0, 1)).numpy()
    array([[1, 5],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    rank = rank_of("diag", x)
    if rank == 0:
        refuse("diag", "a scalar is not a diagonal", x, fix="give a vector")
    padding = _padding(padding_value, x)
    if padding.type.shape != ():
        refuse("diag", f"the padding value is {padding.type}", padding, fix="give one number")
    sides = _sides("diag", align)
    low, high = _range_of_diagonals("diag", k, x)
    given = as_size("diag", "num_rows", num_rows), as_size("diag", "num_cols", num_cols)
    if low != high:
        return _from_diagonals("diag", x, (low, high), given, sides, padding)
    n = x.type.shape[-1]
    margins = _margins(n, low, given, x)
    shape = (*x.type.shape, n)
    wide = BroadcastTo(shape, tuple(range(rank)))(x)
    block = SELECT(broadcast(eye(n, dtype=bool_), shape), wide, broadcast(padding, shape))
    if margins == [(0, 0), (0, 0)]:
        return block
    return pad(block, [*[(0, 0)] * (rank - 1), *margins], constant_values=padding)


def _range_of_diagonals(op: str, k: Any, *operands: Tensor) -> tuple[Any, Any]:
    """The lowest and the highest of the diagonals."""
    numbers = as_sizes(op, "k", k)
    if not 1 <= len(numbers) <= 2 or numbers[0] > numbers[-1]:
        fix = "give an int, or a pair (lowest, highest)"
        refuse(op, f"k is {list(numbers)}", *operands, fix=fix)
    return numbers[0], numbers[-1]


def _margins(n: Any, k: Any, given: tuple[Any, Any], x: Tensor) -> list[tuple[Any, Any]]:
    """The numbers of rows and of columns before and after a block of n rows on diagonal k."""
    before = max(-k, 0), max(k, 0)
    sizes = _completed_sizes((n + before[0], n + before[1]), given, x, f"diagonal {k}")
    after = tuple(size - n - count for size, count in zip(sizes, before, strict=True))
    return list(zip(before, after, strict=True))


def _completed_sizes(
    fewest: tuple[Any, Any], given: tuple[Any, Any], x: Tensor, what: str
) -> tuple[Any, Any]:
    """The numbers of rows and columns, with -1 replaced by the smallest possible. Raises ShapeError
    if one is too small, or both are larger than necessary."""
    if given == (-1, -1):
        wider = fewest[0] - fewest[1]
        larger = fewest[0] if known_int(wider) and wider > 0 else fewest[1]
        return larger, larger
    rows, columns = (f if size == -1 else size for size, f in zip(given, fewest, strict=True))
    after = rows - fewest[0], columns - fewest[1]
    if any(known_int(count) and count < 0 for count in after) or 0 not in after:
        fact = f"{x.type} cannot be {what} of {rows} rows and {columns} columns"
        fix = f"give num_rows={fewest[0]} and num_cols={fewest[1]}, or more of one of the two"
        refuse("diag", fact, x, fix=fix)
    return rows, columns


def _from_diagonals(
    op: str,
    x: Tensor,
    k: tuple[int, int],
    given: tuple[Any, Any],
    sides: list[str],
    padding: Tensor,
) -> Tensor:
    """Matrices with several diagonals x[..., i, :], and `padding` elsewhere."""
    low, high = k
    count = high - low + 1
    if x.ndim < 2 or x.type.shape[-2] != count:
        fix = f"give {count} rows, or another k"
        refuse(op, f"{x.type} has no rows for the {count} diagonals {low} to {high}", x, fix=fix)
    longest = x.type.shape[-1]
    if not all(map(known_int, (low, high, longest, *given))):
        fix = "give the sizes in the TensorSpec, or add one diagonal after another"
        refuse(op, f"the sizes of {x.type} must be known for several diagonals", x, fix=fix)
    fewest = longest - min(high, 0), longest + max(low, 0)
    sizes = _completed_sizes(fewest, given, x, f"diagonals {low} to {high}")
    shape = (*x.type.shape[:-2], *sizes)
    return _placed(x, _places(sizes, k, sides), broadcast(padding, shape))


def _sides(op: str, align: Any) -> list[str]:
    """The alignment of the diagonals above the main one, and of those below it."""
    return as_choice(op, "align", align, _ALIGNMENTS).split("_")


def _places(sizes: tuple[Any, Any], k: tuple[int, int], sides: list[str]) -> np.ndarray:
    """For each element of a matrix, its index in the rows of diagonals, from the highest to the
    lowest, or -1."""
    low, high = k
    rows, columns = sizes
    longest = min(rows + min(high, 0), columns - max(low, 0))
    places = np.full(sizes, -1)
    for row, number in enumerate(range(high, low - 1, -1)):
        i = np.arange(max(-number, 0), min(rows, columns - number))
        offset = longest - len(i) if sides[number < 0] == "RIGHT" else 0
        places[i, i + number] = row * longest + offset + np.arange(len(i))
    return places


def _placed(x: Tensor, places: np.ndarray, others: Tensor) -> Tensor:
    """Matrices with the elements of x[..., i, j] at `places`, and those of `others` elsewhere."""
    *lead, count, longest = x.type.shape
    flat = Reshape((*lead, count * longest))(x)
    numbers = as_tensor(np.maximum(places, 0).astype(np.int32))
    found = Gather(len(lead), 0)(flat, numbers)
    return SELECT(broadcast(as_tensor(places >= 0), others.type.shape), found, others)


def diag_part(
    input: TensorLike,
    name: str = "diag_part",
    k: TensorLike = 0,
    padding_value: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """A diagonal of each matrix: y[..., i] = x[..., i, i + k], or x[..., i - k, i] for negative k.

    - `k`: an int, or a pair (lowest, highest) for the diagonals between them, stacked along a new
      axis from the highest to the lowest.
    - `padding_value`: fills the diagonals that are shorter than the longest.
    - `align`: the side to which diagonals above and below the main one are aligned; "RIGHT_LEFT"
      pads the former at the start and the latter at the end.

    >>> tg.linalg.diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    >>> tg.linalg.diag_part([[1, 2], [3, 4]], k=(-1, 1)).numpy()
    array([[0, 2],
           [1, 4],
           [3, 0]], dtype=int32)
    """
    x = matrices("diag_part", input)
    sides = _sides("diag_part", align)
    padding = _padding(padding_value, x)
    low, high = _diagonals_of("diag_part", x, k)
    if low == high:
        return _diagonal(x, low)
    rows, columns = x.type.shape[-2:]
    longest: Any = minimum(rows + min(high, 0), columns - max(low, 0))
    found = []
    for number in range(high, low - 1, -1):
        one = _diagonal(x, number)
        missing = longest - one.type.shape[-1]
        # The main diagonal is aligned right if either side would be.
        own = sides if number == 0 else sides[:1] if number > 0 else sides[1:]
        margin = (missing, 0) if "RIGHT" in own else (0, missing)
        margins = [*[(0, 0)] * (x.ndim - 2), margin]
        found.append(pad(one, margins, constant_values=padding))
    return stack(found, axis=-2)


_ALIGNMENTS = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


def _diagonals_of(op: str, x: Tensor, k: Any, *others: Tensor) -> tuple[Any, Any]:
    """The lowest and the highest of the diagonals, which the matrices x must have as far as their
    sizes are known; an empty matrix has a main one."""
    low, high = _range_of_diagonals(op, k, x, *others)
    rows, columns = x.type.shape[-2:]
    is_below = known_int(low) and known_int(rows) and low < min(1 - rows, 0)
    if is_below or (known_int(high) and known_int(columns) and high > max(columns - 1, 0)):
        what = f"diagonal {low}" if low == high else f"diagonals from {low} to {high}"
        fix = f"use a k from {minimum(1 - rows, 0)} to {maximum(columns - 1, 0)}"
        refuse(op, f"{x.type} has no {what}", x, *others, fix=fix)
    return low, high


def _diagonal(x: Tensor, k: Any) -> Tensor:
    """One diagonal of each matrix."""
    if k != 0:
        x = x[..., max(-k, 0) :, max(k, 0) :]  # type: ignore[index]
    rows, columns = x.type.shape[-2:]
    if plain(rows) != plain(columns):
        n = minimum(rows, columns)
        x = x[..., :n, :n]  # type: ignore[index]
    return einsum("...ii->...i", x)


def set_diag(
    input: TensorLike,
    diagonal: TensorLike,
    name: str = "set_diag",
    k: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Each matrix with a diagonal replaced; it must have the diagonal's full length.

    - `k`: the diagonal, an int, positive above the main one; or a pair (lowest, highest) for the
      diagonals between them, where diagonal[..., i, :] is the i-th from the highest.
    - `align`: to which side of their rows diagonals shorter than the longest are aligned, above and
      below the main one; see `tg.linalg.diag_part`.

    Raises ShapeError if the diagonals do not fit the matrices.

    >>> tg.linalg.set_diag([[1, 2], [3, 4]], [8, 9]).numpy()
    array([[8, 2],
           [3, 9]], dtype=int32)
    >>> tg.linalg.set_diag([[1, 2], [3, 4]], [8], k=-1).numpy()
    array([[1, 2],
           [8, 4]], dtype=int32)
    """
    x = matrices("set_diag", input)
    new = as_tensor(diagonal, x.dtype)
    sides = _sides("set_diag", align)
    low, high = _diagonals_of("set_diag", x, k, new)
    if (low, high) == (0, 0):
        return _with_main_diagonal(x, new)
    rows, columns = x.type.shape[-2:]
    if not all(map(known_int, (low, high, rows, columns))):
        fix = "give the sizes in the TensorSpec, or set the main diagonal, k=0"
        refuse("set_diag", f"the sizes of {x.type} must be known for k={k}", x, fix=fix)
    lines = expand_dims(new, -2) if low == high else new
    longest = min(rows + min(high, 0), columns - max(low, 0))
    if same_shape(lines.type.shape, (*x.type.shape[:-2], high - low + 1, longest)) is None:
        fix = f"give {high - low + 1} of {longest} elements for each matrix"
        refuse("set_diag", f"the diagonals {new.type} do not fit {x.type}", x, new, fix=fix)
    return _placed(lines, _places((rows, columns), (low, high), sides), x)


def _with_main_diagonal(x: Tensor, new: Tensor) -> Tensor:
    """Each matrix with its main diagonal replaced; the sizes may be open."""
    rank, shape = x.ndim, x.type.shape
    *lead, rows, columns = shape
    is_tall = known_int(rows) and known_int(columns) and rows > columns
    if same_shape(new.type.shape, (*lead, columns if is_tall else rows)) is None or not (
        (known_int(rows) and known_int(columns)) or same_size(rows, columns) is not None
    ):
        fix = "give one number for each row or column, whichever are fewer"
        refuse("set_diag", f"a diagonal {new.type} for {x.type}", x, new, fix=fix)
    if not (known_int(rows) and known_int(columns)):
        x = with_size(x, rank - 1, rows)
    # The diagonal's number, repeated along its row, or along its column if there are fewer.
    wide = BroadcastTo(shape, (*range(rank - 2), rank - 1 if is_tall else rank - 2))(new)
    return SELECT(broadcast(eye(rows, columns, dtype=bool_), shape), wide, x)


def band_part(
    input: TensorLike, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """Each matrix with 0 outside a band: `num_lower` diagonals below and `num_upper` above.

    A negative number keeps all diagonals on that side. The numbers may be tensors.

    >>> tg.linalg.band_part([[1, 2], [3, 4]], 0, -1).numpy()
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    x = matrices("band_part", input)
    rows, columns = x.type.shape[-2:]
    shape = (rows, columns)
    i = BroadcastTo(shape, (0,))(Iota(rows, int32)())
    j = BroadcastTo(shape, (1,))(Iota(columns, int32)())
    inside = None
    for count, distance in ((num_lower, SUB(i, j)), (num_upper, SUB(j, i))):
        limit = as_open_number("band_part", "a number of diagonals", count)
        if known_int(limit) and not 0 <= limit < int32.max:  # no matrix has as many diagonals
            continue
        near = distance <= limit  # type: ignore[operator]
        if isinstance(limit, Tensor):
            near = near | (limit < 0)  # type: ignore[operator]
        inside = near if inside is None else LogicalAnd()(inside, near)
    if inside is None:
        return x
    return SELECT(broadcast(inside, x.type.shape), x, zeros_of(x))


def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """The cross product of 3-vectors along the last axis.

    >>> tg.linalg.cross([1, 0, 0], [0, 1, 0]).numpy()
    array([0, 0, 1], dtype=int32)
    """
    permutation = np.zeros((3, 3, 3), np.int32)
    permutation[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
    permutation[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1
    x, y = as_tensor(a), as_tensor(b)
    return einsum("ijk,...j,...k->...i", as_tensor(permutation.astype(x.dtype.numpy_dtype)), x, y)


def normalize(
    tensor: TensorLike, ord: float | str = "euclidean", axis: Axis = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The tensor divided by its norm along `axis`, and the norm; see `tg.norm`.

    >>> unit, length = tg.linalg.normalize([3.0, 4.0])
    >>> unit.numpy(), length.numpy()
    (array([0.6, 0.8], dtype=float32), array([5.], dtype=float32))
    """
    x = as_tensor(tensor)
    length = norm(x, ord, axis, keepdims=True)
    return x / length, length  # type: ignore[operator]


def _padding(value: Any, x: Tensor) -> Tensor:
    """The padding value for x; the default 0 becomes False for bools."""
    is_number = x.dtype is bool_ and type(value) is int
    return as_tensor(bool(value) if is_number else value, x.dtype)


def tensor_diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """The tensor y[i, j, ..., i, j, ...] = x[i, j, ...], 0 elsewhere.

    >>> tg.linalg.tensor_diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    sizes = sizes_of("tensor_diag", x)
    flat = diag(Reshape((element_count(sizes),))(x))
    return Reshape((*sizes, *sizes))(flat)


def tensor_diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """The diagonal y[i, j, ...] = x[i, j, ..., i, j, ...] of a tensor whose shape repeats.

    >>> tg.linalg.tensor_diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    """
    x = as_tensor(input)
    sizes = sizes_of("tensor_diag_part", x)
    half = len(sizes) // 2
    if len(sizes) in (0, 2 * half + 1) or same_shape(sizes[:half], sizes[half:]) is None:
        fix = "give a tensor of the shape (*sizes, *sizes)"
        refuse("tensor_diag_part", f"{x.type} has no such diagonal", x, fix=fix)
    count = element_count(sizes[:half])
    return Reshape(sizes[:half])(_diagonal(Reshape((count, count))(x), 0))


__all__ = [
    "adjoint",
    "band_part",
    "cross",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "global_norm",
    "l2_normalize",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "set_diag",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
]
