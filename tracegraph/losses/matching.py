"""Losses for matching: labels with unaligned frames, embeddings with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracegraph.array.arguments import as_flag, as_number, rank_of, refuse, sizes_of
from tracegraph.array.creation import eye, fill
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import expand_dims
from tracegraph.core.types import bool_, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.losses.classes import Loss, LossOfFunction
from tracegraph.losses.functions import class_numbers
from tracegraph.losses.weighting import floating
from tracegraph.math.elementwise.arithmetic import add, maximum, multiply, subtract
from tracegraph.math.elementwise.logic import equal, greater, logical_and, logical_not, not_equal
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_logsumexp, reduce_sum
from tracegraph.nn.activation import softplus
from tracegraph.nn.ctc import ctc_loss
from tracegraph.operands.conversion import as_tensor, cast_to

if TYPE_CHECKING:
    from tracegraph.typing import DTypeLike, TensorLike

_MEAN = "sum_over_batch_size"


def ctc(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """The negative log-probability of each label sequence over all its alignments with the frames:
    `tg.nn.ctc_loss` with all frames, for labels that end at the first 0, the blank.

    y_true is [examples, longest], integers; y_pred is [examples, frames, classes], logits; the
    result is [examples]. Raises ShapeError for other shapes.

    Source: Graves et al., "Connectionist Temporal Classification" (2006).

    >>> tg.losses.ctc([[1, 0]], tg.zeros([1, 2, 3])).numpy().round(4)  # 3 of 9 alignments
    array([1.0986], dtype=float32)
    """
    labels, x = class_numbers("ctc", y_true), floating("ctc", y_pred)
    for value, rank, form in ((labels, 2, "longest"), (x, 3, "frames, classes")):
        if rank_of("ctc", value) != rank:
            fix = f"give [examples, {form}]"
            refuse("ctc", f"{value.type} does not have {rank} axes", value, fix=fix)
    lengths = reduce_sum(cast_to(not_equal(labels, 0), int32), -1)
    examples, frames, _ = sizes_of("ctc", x)
    frame_counts = fill([examples], as_tensor(frames, int32))
    return ctc_loss(labels, x, lengths, frame_counts, logits_time_major=False)


def circle(
    y_true: TensorLike,
    y_pred: TensorLike,
    ref_labels: TensorLike | None = None,
    ref_embeddings: TensorLike | None = None,
    remove_diagonal: bool = True,
    gamma: float = 80.0,
    margin: float = 0.4,
) -> Tensor:
    """Penalizes distance between embeddings with the same label and closeness of others. For each
    row it is softplus(logsumexp(p) + logsumexp(n)) over the distances d = 1 - cosine to all
    references: p = gamma * (d + margin) * (d - margin) for references with the same label, and
    n = gamma * max(1 + margin - d, 0) * (1 - margin - d) for the others.

    y_true is [rows], integers; y_pred is [rows, features], of norm 1. The references are the same
    rows by default; with `remove_diagonal`, no row is its own reference. The result is [rows]; it
    is 0 for a row without a reference of its label, or without one of another label.

    Source: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization" (2020).

    >>> x = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    >>> tg.losses.circle([0, 0, 1], x, gamma=2.0).numpy().round(4)
    array([0.4518, 0.7763, 0.    ], dtype=float32)
    """
    op = "circle"
    gamma, margin = as_number(op, "gamma", gamma), as_number(op, "margin", margin)
    x, labels = floating(op, y_pred), class_numbers(op, y_true)
    others = x if ref_embeddings is None else cast_to(as_tensor(ref_embeddings), x.dtype)
    other_labels = labels if ref_labels is None else class_numbers(op, ref_labels)
    for value in (x, others):
        if rank_of(op, value) != 2:
            refuse(op, f"{value.type} does not have 2 axes", value, fix="give [rows, features]")
    distance = maximum(subtract(1.0, matmul(x, others, transpose_b=True)), 0.0)
    is_same = equal(_column(op, labels), _column(op, other_labels, 0))
    is_other = logical_not(is_same)
    if as_flag(op, "remove_diagonal", remove_diagonal):
        rows, columns = sizes_of(op, distance)
        is_same = logical_and(is_same, logical_not(eye(rows, columns, dtype=bool_)))
    same = multiply(multiply(add(distance, margin), subtract(distance, margin)), gamma)
    weight = maximum(subtract(1 + margin, distance), 0.0)
    other = multiply(multiply(weight, subtract(1 - margin, distance)), gamma)
    return softplus(add(_total(same, is_same), _total(other, is_other)))


def _column(op: str, labels: Tensor, axis: int = 1) -> Tensor:
    """[rows] or [rows, 1] as a column, or as a row if the axis is 0."""
    if rank_of(op, labels) == 2:
        labels = labels[:, 0]  # type: ignore[index]
    return expand_dims(labels, axis)


def _total(values: Tensor, counts: Tensor) -> Tensor:
    """The log-sum-exp of the values that count; -inf if none does."""
    return reduce_logsumexp(where(counts, values, as_tensor(-np.inf, values.dtype)), 1)


class CTC(LossOfFunction):
    """Label sequences that are not aligned with the frames: `tg.losses.ctc`. See `Loss`.

    >>> round(float(tg.losses.CTC()([[1, 0]], tg.zeros([1, 2, 3]))), 4)
    1.0986
    """

    function = ctc


class Circle(Loss):
    """Embeddings that are close within a label and far apart otherwise: `tg.losses.circle`. See
    `Loss`. Rows whose loss is 0 do not count.

    >>> loss = tg.losses.Circle(gamma=2.0)
    >>> round(float(loss([0, 0, 1], [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])), 4)
    0.6141
    """

    def __init__(
        self,
        gamma: float = 80.0,
        margin: float = 0.4,
        remove_diagonal: bool = True,
        reduction: str | None = _MEAN,
        name: str | None = "circle",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.gamma = self._number("gamma", gamma)
        self.margin = self._number("margin", margin)
        self.remove_diagonal = self._flag("remove_diagonal", remove_diagonal)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        flags = self.remove_diagonal, self.gamma, self.margin
        return circle(y_true, y_pred, None, None, *flags)

    def mask(self, y_true: Tensor, losses: Tensor) -> Tensor:
        return greater(losses, 0.0)


__all__ = ["CTC", "Circle", "circle", "ctc"]
