"""Linear algebra that is made of other functions; decompositions are not here yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import as_flag, as_size, known_int, rank_of, refuse, sizes_of
from tracegraph.array.creation import eye
from tracegraph.array.shaping import expand_dims, pad, squeeze
from tracegraph.ir.tensor import Tensor
from tracegraph.math.norms import global_norm, l2_normalize
from tracegraph.math.product import einsum, matmul, tensordot
from tracegraph.math.reduction import norm
from tracegraph.ops.broadcast import BroadcastTo, Sum, zeros_of
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import adjoint as adjoint_of
from tracegraph.ops.contract import swap_last
from tracegraph.ops.elementwise import LESS_EQUAL, SELECT, SUB, LogicalAnd
from tracegraph.ops.shape import Reshape, with_size
from tracegraph.runtime.convert import as_tensor, broadcast
from tracegraph.shapes import element_count, same_shape, same_size
from tracegraph.types import bool_, int32


def matrix_transpose(a: Any, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """Each matrix a[..., i, j] transposed: [..., j, i]; with `conjugate`, its complex conjugate.

    >>> tg.linalg.matrix_transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = _matrices("matrix_transpose", a)
    is_adjoint = as_flag("matrix_transpose", "conjugate", conjugate)
    return adjoint_of(x) if is_adjoint else swap_last(x)


def adjoint(matrix: Any, name: str | None = None) -> Tensor:
    """The conjugate transpose of each matrix.

    >>> tg.linalg.adjoint([[1j]]).numpy()
    array([[0.-1.j]])
    """
    return adjoint_of(_matrices("adjoint", matrix))


def matvec(
    a: Any, b: Any, transpose_a: bool = False, adjoint_a: bool = False, name: str | None = None
) -> Tensor:
    """y[..., i] = sum_j a[..., i, j] * b[..., j]

    >>> tg.linalg.matvec([[1, 2], [3, 4]], [1, 1]).numpy()
    array([3, 7], dtype=int32)
    """
    column = expand_dims(as_tensor(b), -1)
    return squeeze(matmul(a, column, transpose_a=transpose_a, adjoint_a=adjoint_a), axis=-1)


def trace(x: Any, name: str | None = None) -> Tensor:
    """The sum of the diagonal of each matrix: sum_i x[..., i, i]

    >>> tg.linalg.trace([[1, 2], [3, 4]]).numpy()
    np.int32(5)
    """
    diagonal = diag_part(x)
    return Sum((diagonal.ndim - 1,))(diagonal)


def diag(
    diagonal: Any,
    name: str = "diag",
    k: Any = 0,
    num_rows: Any = -1,
    num_cols: Any = -1,
    padding_value: Any = 0,
) -> Tensor:
    """Matrices with the vectors diagonal[..., :] on a diagonal and `padding_value` elsewhere.

    - `k`: which diagonal, an int: those above the main one are positive.
    - `num_rows`, `num_cols`: the sizes; -1 is as few as will do, in square matrices if both are.

    >>> tg.linalg.diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    >>> tg.linalg.diag([1], k=1).numpy()
    array([[0, 1],
           [0, 0]], dtype=int32)
    """
    x = as_tensor(diagonal)
    rank = rank_of("diag", x)
    if rank == 0:
        refuse("diag", "a scalar is no diagonal", x, fix="give a vector")
    padding = as_tensor(padding_value, x.dtype)
    if padding.type.shape != ():
        refuse("diag", f"the padding value is {padding.type}", padding, fix="give one number")
    n = x.type.shape[-1]
    margins = _margins(n, as_size("diag", "k", k), num_rows, num_cols, x)
    shape = (*x.type.shape, n)
    wide = BroadcastTo(shape, tuple(range(rank)))(x)
    block = SELECT(broadcast(eye(n, dtype=bool_), shape), wide, broadcast(padding, shape))
    if margins == [(0, 0), (0, 0)]:
        return block
    return pad(block, [*[(0, 0)] * (rank - 1), *margins], constant_values=padding)


def _margins(n: Any, k: Any, num_rows: Any, num_cols: Any, x: Tensor) -> list[tuple[Any, Any]]:
    """How many rows stand before and after a block of n rows on diagonal k, and columns."""
    before = max(-k, 0), max(k, 0)
    given = as_size("diag", "num_rows", num_rows), as_size("diag", "num_cols", num_cols)
    fewest = tuple(n + count for count in before)
    if given == (-1, -1):
        sizes = n + abs(k), n + abs(k)
    else:
        sizes = tuple(f if size == -1 else size for size, f in zip(given, fewest, strict=True))
    after = tuple(size - f for size, f in zip(sizes, fewest, strict=True))
    if any(known_int(count) and count < 0 for count in after) or 0 not in after:
        rows, columns = fewest
        fact = f"{x.type} is no diagonal {k} of {sizes[0]} rows and {sizes[1]} columns"
        fix = f"give num_rows={rows} and num_cols={columns}, or more of one of the two"
        refuse("diag", fact, x, fix=fix)
    return list(zip(before, after, strict=True))


def diag_part(input: Any, name: str = "diag_part", k: Any = 0) -> Tensor:
    """A diagonal of each matrix: y[..., i] = x[..., i, i + k], or x[..., i - k, i] for negative k.

    >>> tg.linalg.diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    """
    x = _matrices("diag_part", input)
    first = as_size("diag_part", "k", k)
    if first != 0:
        x = x[..., max(-first, 0) :, max(first, 0) :]
    rows, columns = x.type.shape[-2:]
    if known_int(rows) and known_int(columns) and rows != columns:
        n = min(rows, columns)
        x = x[..., :n, :n]  # type: ignore[index]
    return einsum("...ii->...i", x)


def set_diag(input: Any, diagonal: Any, name: str = "set_diag") -> Tensor:
    """Each matrix with another diagonal, which is as long as its shorter side.

    >>> tg.linalg.set_diag([[1, 2], [3, 4]], [8, 9]).numpy()
    array([[8, 2],
           [3, 9]], dtype=int32)
    """
    x = _matrices("set_diag", input)
    rank, shape = x.ndim, x.type.shape
    *lead, rows, columns = shape
    new = as_tensor(diagonal, x.dtype)
    is_tall = known_int(rows) and known_int(columns) and rows > columns
    if same_shape(new.type.shape, (*lead, columns if is_tall else rows)) is None or not (
        (known_int(rows) and known_int(columns)) or same_size(rows, columns) is not None
    ):
        fix = "give one number for each row or column, whichever are fewer"
        refuse("set_diag", f"a diagonal {new.type} for {x.type}", x, new, fix=fix)
    if not (known_int(rows) and known_int(columns)):
        x = with_size(x, rank - 1, rows)
    # The number that belongs on the diagonal, all along its row, or its column if they are fewer.
    wide = BroadcastTo(shape, (*range(rank - 2), rank - 1 if is_tall else rank - 2))(new)
    return SELECT(broadcast(eye(rows, columns, dtype=bool_), shape), wide, x)


def band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Tensor:
    """Each matrix with 0 outside of a band: `num_lower` diagonals below and `num_upper` above.

    A negative number keeps all of them.

    >>> tg.linalg.band_part([[1, 2], [3, 4]], 0, -1).numpy()
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    x = _matrices("band_part", input)
    rows, columns = x.type.shape[-2:]
    shape = (rows, columns)
    i = BroadcastTo(shape, (0,))(Iota(rows, int32)())
    j = BroadcastTo(shape, (1,))(Iota(columns, int32)())
    inside = None
    for count, distance in ((num_lower, SUB(i, j)), (num_upper, SUB(j, i))):
        limit = as_size("band_part", "a number of diagonals", count)
        if known_int(limit) and limit < 0:
            continue
        near = LESS_EQUAL(distance, broadcast(as_tensor(limit), shape))
        inside = near if inside is None else LogicalAnd()(inside, near)
    if inside is None:
        return x
    return SELECT(broadcast(inside, x.type.shape), x, zeros_of(x))


def cross(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The cross product of vectors of three along the last axis.

    >>> tg.linalg.cross([1, 0, 0], [0, 1, 0]).numpy()
    array([0, 0, 1], dtype=int32)
    """
    permutation = np.zeros((3, 3, 3), np.int32)
    permutation[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
    permutation[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1
    x, y = as_tensor(a), as_tensor(b)
    return einsum("ijk,...j,...k->...i", as_tensor(permutation.astype(x.dtype.numpy_dtype)), x, y)


def normalize(
    tensor: Any, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The tensor divided by its norm along `axis`, and the norm; see `tg.norm`.

    >>> unit, length = tg.linalg.normalize([3.0, 4.0])
    >>> unit.numpy(), length.numpy()
    (array([0.6, 0.8], dtype=float32), array([5.], dtype=float32))
    """
    x = as_tensor(tensor)
    length = norm(x, ord, axis, keepdims=True)
    return x / length, length  # type: ignore[operator]


def tensor_diag(diagonal: Any, name: str | None = None) -> Tensor:
    """The tensor y[i, j, ..., i, j, ...] = x[i, j, ...], 0 elsewhere.

    >>> tg.linalg.tensor_diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    sizes = sizes_of("tensor_diag", x)
    flat = diag(Reshape((element_count(sizes),))(x))
    return Reshape((*sizes, *sizes))(flat)


def _matrices(op: str, x: Any) -> Tensor:
    x = as_tensor(x)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} is not a matrix", x, fix="give a tensor of at least two axes")
    return x


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
    "tensordot",
    "trace",
]
