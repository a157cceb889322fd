"""Boxes in images: selecting the best of those that overlap."""

from __future__ import annotations

import math
from typing import Any

from tracegraph.array.arguments import as_count, as_flag, as_number, rank_of, refuse, sizes_of
from tracegraph.array.creation import is_tensor, one_hot, ones_like, range as range_of
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.runtime_sizes import size_of_value
from tracegraph.array.shaping import cut, expand_dims, reshape, transpose
from tracegraph.control_flow.loops import foldl
from tracegraph.core.shapes import element_count, same_shape, same_size
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide, maximum, minimum, multiply, subtract
from tracegraph.math.elementwise.logic import greater, logical_and, logical_not
from tracegraph.math.reduction import cumsum, reduce_any, reduce_sum
from tracegraph.math.sorting import argsort
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import SizeLike, TensorLike


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: SizeLike,
    iou_threshold: float = 0.5,
    score_threshold: float = -math.inf,
    name: str | None = None,
) -> Tensor:
    """The int32 positions of the best boxes, no two of which overlap by more than `iou_threshold`.

    - `boxes`: [boxes, 4], each as two corners (y1, x1, y2, x2); `scores`: [boxes].
    - `max_output_size`: how many boxes to select at most; a box whose score is not above
      `score_threshold` is never selected.
    - The overlap of two boxes is the area of their intersection over that of their union.

    The number of results depends on values: in a function it is a size found at run time. Raises
    ShapeError for shapes that do not fit.

    >>> boxes = [[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [3.0, 3.0, 4.0, 4.0]]
    >>> tg.image.non_max_suppression(boxes, [0.5, 0.9, 0.8], 10).numpy()
    array([1, 2], dtype=int32)
    """
    op = "non_max_suppression"
    found, count = _selected(op, boxes, scores, max_output_size, iou_threshold, score_threshold, 2)
    return cut(found, 0, 0, size_of_value(op, count))


def non_max_suppression_padded(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: SizeLike,
    iou_threshold: float = 0.5,
    score_threshold: float = -math.inf,
    pad_to_max_output_size: bool = False,
    name: str | None = None,
    sorted_input: bool = False,
    canonicalized_coordinates: bool = False,
    tile_size: int = 512,
) -> tuple[Tensor, Tensor]:
    """`non_max_suppression` with results of fixed size: the positions [..., max_output_size],
    padded with 0, and their number [...].

    - `boxes`: [..., boxes, 4]; `scores`: [..., boxes].
    - `pad_to_max_output_size`: if False, and for a single set of boxes, the padding is cut off, as
      in `non_max_suppression`.
    - `sorted_input`, `canonicalized_coordinates`, `tile_size`: accepted but have no effect.

    Raises ShapeError for shapes that do not fit.

    >>> boxes = [[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [3.0, 3.0, 4.0, 4.0]]
    >>> selected, count = tg.image.non_max_suppression_padded(
    ...     boxes, [0.5, 0.9, 0.8], 4, pad_to_max_output_size=True
    ... )
    >>> selected.numpy(), count.numpy()
    (array([1, 2, 0, 0], dtype=int32), np.int32(2))
    """
    op = "non_max_suppression_padded"
    is_padded = as_flag(op, "pad_to_max_output_size", pad_to_max_output_size)
    as_flag(op, "sorted_input", sorted_input)
    as_flag(op, "canonicalized_coordinates", canonicalized_coordinates)
    as_count(op, "tile_size", tile_size)
    found, count = _selected(op, boxes, scores, max_output_size, iou_threshold, score_threshold)
    if is_padded or found.ndim > 1:
        return found, count
    return cut(found, 0, 0, size_of_value(op, count)), count


def _selected(
    op: str,
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any,
    score_threshold: Any,
    rank: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The positions of the selected boxes, padded with 0, and their number."""
    x, y = as_tensor(boxes), as_tensor(scores)
    sizes = sizes_of(op, x)
    fits = len(sizes) == (rank or max(len(sizes), 2)) and rank_of(op, y) == len(sizes) - 1
    if not fits or same_size(sizes[-1], 4) is None or same_shape(sizes[:-1], y.type.shape) is None:
        fact = f"boxes {x.type} with scores {y.type}"
        refuse(op, fact, x, y, fix="give [boxes, 4], and one score for each")
    most = as_count(op, "max_output_size", max_output_size)
    limit = _threshold(op, "iou_threshold", iou_threshold, x, low=0, high=1)
    least = _threshold(op, "score_threshold", score_threshold, y)
    *lead, count, _ = sizes
    flat, y = reshape(x, [element_count(tuple(lead)), count, 4]), reshape(y, [-1, count])
    order = argsort(y, direction="DESCENDING", stable=True)
    hides = greater(_overlaps(gather(flat, order, axis=1, batch_dims=1)), limit)
    best = gather(y, order, axis=1, batch_dims=1)
    kept = _kept(hides, greater(best, least))
    places = subtract(cumsum(cast_to(kept, int32), axis=1), 1)
    is_at = logical_and(expand_dims(kept, 2), one_hot(places, most, True, False, dtype="bool"))
    chosen = reduce_sum(where(is_at, expand_dims(order, 2), 0), axis=1)
    total = minimum(reduce_sum(cast_to(kept, int32), axis=1), most)
    return reshape(chosen, [*lead, most]), reshape(total, lead)


def _threshold(op: str, what: str, value: Any, like: Tensor, **bounds: float) -> Any:
    """A number, or a scalar tensor, whose value may be unknown."""
    if not is_tensor(value):
        return float(as_number(op, what, value, **bounds))
    limit = as_tensor(value)
    if rank_of(op, limit):
        refuse(op, f"{what} is {limit.type}", limit, fix="give one number")
    return cast_to(limit, like.dtype)


def _kept(hides: Tensor, is_good: Tensor) -> Tensor:
    """Which boxes, best first, are good and not suppressed by one that is kept. `hides` is
    [stacks, boxes, boxes]."""
    count = is_good.type.shape[1]
    place = range_of(count)

    def step(kept: Tensor, row: tuple[Tensor, Tensor]) -> Tensor:
        own, number = row  # the boxes that box `number` suppresses
        is_own = one_hot(number, count, True, False, dtype="bool")
        is_there = reduce_any(logical_and(kept, is_own), axis=1, keepdims=True)
        is_later = greater(place, number)
        return logical_and(kept, logical_not(logical_and(is_there, logical_and(own, is_later))))

    return foldl(step, (transpose(hides, [1, 0, 2]), place), is_good)


def _overlaps(boxes: Tensor) -> Tensor:
    """The intersection over union of every two boxes of [stacks, boxes, 4]; 0 for boxes without
    area."""
    y1, x1, y2, x2 = (reshape(cut(boxes, 2, k, k + 1), boxes.type.shape[:2]) for k in range(4))
    sides = [(minimum(a, b), maximum(a, b)) for a, b in ((y1, y2), (x1, x2))]
    height, width = (subtract(high, low) for low, high in sides)
    area = multiply(height, width)
    shared = ones_like(expand_dims(area, 2))
    for low, high in sides:
        start = maximum(expand_dims(low, 1), expand_dims(low, 2))
        end = minimum(expand_dims(high, 1), expand_dims(high, 2))
        shared = multiply(shared, maximum(subtract(end, start), 0.0))
    both = subtract(_sum_of_pairs(area), shared)
    is_there = greater(multiply(expand_dims(area, 1), expand_dims(area, 2)), 0.0)
    return where(is_there, divide(shared, where(is_there, both, 1.0)), 0.0)


def _sum_of_pairs(x: Tensor) -> Tensor:
    return expand_dims(x, 1) + expand_dims(x, 2)  # type: ignore[return-value]


__all__ = ["non_max_suppression", "non_max_suppression_padded"]
