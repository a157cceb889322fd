"""Common to losses and metrics: matching ranks, weights, and reduction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tracegraph.array.arguments import as_choice, as_flag, as_number, as_size, rank_of, sizes_of
from tracegraph.array.creation import size
from tracegraph.array.shaping import expand_dims, squeeze
from tracegraph.core.types import DType, float32
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide_no_nan, multiply
from tracegraph.math.reduction import reduce_sum, summable
from tracegraph.operands.conversion import as_tensor, broadcast_shape, cast_to

#: The values of `reduction`. Three names stand for a mean, two for no reduction.
REDUCTIONS = ("sum_over_batch_size", "sum", None, "none", "mean", "mean_with_sample_weight")


def as_reduction(op: str, reduction: Any) -> str | None:
    return None if reduction is None else as_choice(op, "reduction", reduction, REDUCTIONS)


def as_k(op: str, what: str, value: Any) -> int:
    """How many of the largest predictions count: an int of at least 1."""
    return as_number(op, what, as_size(op, what, value), low=1)


#: The checks of options, by their names.
_CHECKS: dict[str, Callable[[str, str, Any], Any]] = {
    **dict.fromkeys(("apply_class_balancing", "from_logits", "from_sorted_ids"), as_flag),
    **dict.fromkeys(("alpha", "delta", "gamma"), functools.partial(as_number, low=0)),
    "axis": as_size,
    "ignore_class": lambda op, what, value: value,
    "k": as_k,
    "label_smoothing": functools.partial(as_number, low=0, high=1),
    "threshold": as_number,
}


def checked_options(op: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the function that a loss or a metric is made of."""
    return {what: _CHECKS[what](op, what, value) for what, value in options.items()}


def real(op: str, value: Any) -> Tensor:
    """A tensor of real numbers: a conversion would drop the imaginary parts of others."""
    x = as_tensor(value)
    if x.dtype.is_complex:
        fact = f"{op}: losses and metrics are of real numbers, and this is {x.type}"
        fix = "give tg.abs(x), or tg.math.real(x) and tg.math.imag(x)"
        fail(DTypeError, fact, operands=[operand_text(x)], fix=fix)
    return x


def floating(op: str, value: Any, dtype: DType | None = None) -> Tensor:
    """Converts to a floating tensor: its own dtype if that is floating, else float32."""
    x = real(op, value)
    return cast_to(x, dtype or (x.dtype if x.dtype.is_floating else float32))


def of_one_rank(x: Tensor, y: Tensor, op: str) -> tuple[Tensor, Tensor]:
    """Makes the ranks equal: a last axis of size 1 that only one has is dropped, or added to the
    other if that has rank 1."""
    ranks = rank_of(op, x), rank_of(op, y)
    if ranks[0] == ranks[1] + 1 and sizes_of(op, x)[-1] == 1:
        return (x, expand_dims(y, -1)) if ranks[1] == 1 else (squeeze(x, [-1]), y)
    if ranks[1] == ranks[0] + 1:
        y, x = of_one_rank(y, x, op)
    return x, y


def labels_and_predictions(op: str, y_true: Any, y_pred: Any) -> tuple[Tensor, Tensor]:
    """y_true and y_pred in the dtype of y_pred, with equal ranks.

    Raises ShapeError if they do not broadcast.
    """
    predictions = floating(op, y_pred)
    labels = cast_to(real(op, y_true), predictions.dtype)
    labels, predictions = of_one_rank(labels, predictions, op)
    broadcast_shape(op, labels, predictions)
    return labels, predictions


def weighted(op: str, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The values times their weights, and the weights with equal rank."""
    weights = cast_to(real(op, weights), values.dtype)
    values, weights = of_one_rank(values, weights, op)
    broadcast_shape(op, values, weights)
    return multiply(values, weights), weights


def reduced(
    op: str, values: Tensor, sample_weight: Any, mask: Tensor | None, reduction: str | None
) -> Tensor:
    """Reduces the weighted losses to their sum or mean. Masked losses do not count in the mean, and
    are 0 in the sum."""
    dtype, values = values.dtype, summable(values)
    weights = masked(op, values.dtype, sample_weight, mask, reduction)
    if weights is not None:
        values, weights = weighted(op, values, weights)
    if reduction in (None, "none"):
        return cast_to(values, dtype)
    total = reduce_sum(values)
    if reduction == "sum":
        return cast_to(total, dtype)
    by_weight = reduction == "mean_with_sample_weight" and weights is not None
    count = reduce_sum(weights) if by_weight else _count(values)  # type: ignore[arg-type]
    return cast_to(divide_no_nan(total, count), dtype)


def _count(values: Tensor) -> Tensor:
    return cast_to(as_tensor(size(values)), values.dtype)


def masked(
    op: str, dtype: DType, sample_weight: Any, mask: Tensor | None, reduction: str | None
) -> Tensor | None:
    """The weights times the mask; for a mean of all, scaled so that it is the mean of what the mask
    leaves. None if there are neither."""
    weights = None if sample_weight is None else as_tensor(sample_weight)
    if mask is None:
        return weights
    of_mask = cast_to(mask, dtype)
    if reduction in ("mean", "sum_over_batch_size"):
        of_mask = multiply(of_mask, divide_no_nan(_count(of_mask), reduce_sum(of_mask)))
    return of_mask if weights is None else weighted(op, of_mask, weights)[0]
