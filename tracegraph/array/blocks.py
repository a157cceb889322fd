"""Rearranging spatial blocks into channels or examples, and back."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import (
    as_choice,
    as_shape,
    as_size,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.shaping import cut, pad, reshape, rows_of, transpose
from tracegraph.core.shapes import Size, element_count, floor_divide
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import ShapeLike, TensorLike


def space_to_depth(
    input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """[n, h * b, w * b, c] as [n, h, w, b * b * c]: squares of size b = `block_size` become
    channels.

    - `data_format`: "NCHW" if the channels are axis 1.

    Raises ShapeError if b does not divide height and width.

    >>> x = tg.reshape(tg.range(4), [1, 2, 2, 1])
    >>> tg.nn.space_to_depth(x, 2)[0, 0, 0].numpy()
    array([0, 1, 2, 3], dtype=int32)
    """
    op = "space_to_depth"
    x, block, is_first = _image(op, input, block_size, data_format)
    n, h, w, c = sizes_of(op, x)
    rows, columns = (_divided(op, x, size, block) for size in (h, w))
    x = transpose(reshape(x, [n, rows, block, columns, block, c]), [0, 1, 3, 2, 4, 5])
    x = reshape(x, [n, rows, columns, block * block * c])
    return transpose(x, [0, 3, 1, 2]) if is_first else x


def depth_to_space(
    input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """[n, h, w, b * b * c] as [n, h * b, w * b, c]: the inverse of `space_to_depth`.

    Raises ShapeError if the square of b = `block_size` does not divide the number of channels.

    >>> x = tg.reshape(tg.range(4), [1, 1, 1, 4])
    >>> tg.nn.depth_to_space(x, 2)[0, :, :, 0].numpy()
    array([[0, 1],
           [2, 3]], dtype=int32)
    """
    op = "depth_to_space"
    x, block, is_first = _image(op, input, block_size, data_format)
    n, h, w, c = sizes_of(op, x)
    depth = _divided(op, x, c, block * block)
    x = transpose(reshape(x, [n, h, w, block, block, depth]), [0, 1, 3, 2, 4, 5])
    x = reshape(x, [n, h * block, w * block, depth])
    return transpose(x, [0, 3, 1, 2]) if is_first else x


def _image(op: str, input: Any, block_size: Any, data_format: Any) -> tuple[Tensor, int, bool]:
    """Images with channels last, the size of a block, and whether the channels came first."""
    x = as_tensor(input)
    if rank_of(op, x) != 4:
        refuse(op, f"{x.type} does not have 4 axes", x, fix="give [examples, height, width, ...]")
    block = as_size(op, "block_size", block_size)
    if not known_int(block) or block < 1:
        refuse(op, f"block_size is {block}", x, fix="use an int of 1 or more")
    is_first = as_choice(op, "data_format", data_format, ("NHWC", "NCHW")) == "NCHW"
    return (transpose(x, [0, 2, 3, 1]) if is_first else x), block, is_first


def _divided(op: str, x: Tensor, size: Size, block: int) -> Size:
    if known_int(size) and size % block:  # type: ignore[operator]
        refuse(op, f"{block} does not divide {size}, of {x.type}", x, fix="pad it, or cut it")
    return floor_divide(size, block)


def space_to_batch(
    input: TensorLike, block_shape: ShapeLike, paddings: TensorLike, name: str | None = None
) -> Tensor:
    """Pads `input` with zeros, and turns the elements of each block into separate examples.

    - `input`: [examples, ..., rest]; `block_shape`: the sizes of a block along the axes after the
      first; `paddings`: a pair (before, after) for each of them.

    [n, h * b, ...] becomes [b * n, h, ...]: example k * n + i has the k-th elements of the blocks
    of example i. Raises ShapeError if a block does not divide its padded axis.

    >>> tg.space_to_batch([[1, 2, 3, 4]], [2], [[0, 0]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    op = "space_to_batch"
    x, blocks, pairs = _blocks(op, input, block_shape, "paddings", paddings)
    x = pad(x, [(0, 0), *pairs, *[(0, 0)] * (x.ndim - 1 - len(blocks))])
    n, *sizes = sizes_of(op, x)
    count = len(blocks)
    rest = sizes[count:]
    counts = [_divided(op, x, size, block) for size, block in zip(sizes, blocks)]
    split = [size for pair in zip(counts, blocks) for size in pair]
    x = reshape(x, [n, *split, *rest])
    inner = [2 * k + 2 for k in range(count)]
    outer = [2 * k + 1 for k in range(count)]
    x = transpose(x, [*inner, 0, *outer, *range(1 + 2 * count, x.ndim)])
    return reshape(x, [element_count(tuple(blocks)) * n, *counts, *rest])


def batch_to_space(
    input: TensorLike, block_shape: ShapeLike, crops: TensorLike, name: str | None = None
) -> Tensor:
    """The inverse of `space_to_batch`; removes `crops`, a pair (before, after) for each axis.

    Raises ShapeError if the blocks do not divide the number of examples.

    >>> tg.batch_to_space([[1, 3], [2, 4]], [2], [[0, 1]]).numpy()
    array([[1, 2, 3]], dtype=int32)
    """
    op = "batch_to_space"
    x, blocks, pairs = _blocks(op, input, block_shape, "crops", crops)
    total, *sizes = sizes_of(op, x)
    count = len(blocks)
    n = _divided(op, x, total, element_count(tuple(blocks)))  # type: ignore[arg-type]
    x = reshape(x, [*blocks, n, *sizes])
    order = [count]
    for k in range(count):
        order += [count + 1 + k, k]
    x = transpose(x, [*order, *range(2 * count + 1, x.ndim)])
    wide = [size * block for size, block in zip(sizes, blocks)]
    x = reshape(x, [n, *wide, *sizes[count:]])
    for axis, ((before, after), size) in enumerate(zip(pairs, wide), 1):
        if known_int(size) and before + after > size:
            fact = f"crops ({before}, {after}) are more than axis {axis} of {x.type}"
            refuse(op, fact, x, fix="crop less")
        x = cut(x, axis, before, size - after)
    return x


def _blocks(
    op: str, input: Any, block_shape: Any, what: str, pairs: Any
) -> tuple[Tensor, list[int], list[tuple[int, int]]]:
    """A tensor, the sizes of a block, and one pair of nonnegative sizes for each."""
    x = as_tensor(input)
    blocks = list(as_sizes(op, "block_shape", block_shape))
    if not all(known_int(block) and block > 0 for block in blocks):
        refuse(op, f"block_shape is {blocks}", x, fix="use ints of 1 or more")
    if len(blocks) >= rank_of(op, x):
        fact = f"block_shape has {len(blocks)} sizes for {x.type}, whose first axis is not divided"
        refuse(op, fact, x, fix="give one size for each axis that is divided")
    rows = [as_shape(op, row) for row in rows_of(op, pairs)]
    if len(rows) != len(blocks) or any(len(row) != 2 for row in rows):  # type: ignore[arg-type]
        fact = f"{what} has {len(rows)} rows for a block_shape of {len(blocks)} sizes"
        refuse(op, fact, x, fix=f"give a pair (before, after) in {what} for each of them")
    return x, blocks, rows  # type: ignore[return-value]


space_to_batch_nd = space_to_batch

__all__ = ["batch_to_space", "space_to_batch", "space_to_batch_nd"]
