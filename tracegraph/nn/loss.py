"""Losses: cross entropies and the like, one value for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.array.arguments import rank_of, refuse
from tracegraph.array.creation import one_hot
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import bool_, int32, uint32, uint64
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.reduction import reduce_sum
from tracegraph.math.unary import log_sigmoid, softplus
from tracegraph.nn.activation import log_softmax
from tracegraph.operands.conversion import (
    as_tensor,
    broadcast,
    cast_to,
    elementwise_operands,
)
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.ops.elementwise import (
    ADD,
    LESS,
    MUL,
    NEG,
    SELECT,
    SUB,
    Cast,
)
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_at_hand,
)

if TYPE_CHECKING:
    from tracegraph.typing import Axis, TensorLike


def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: Axis = -1, name: str | None = None
) -> Tensor:
    """-sum(labels * log_softmax(logits)) along `axis`, which holds the classes.

    labels[..., classes] are probabilities that sum to 1, of the shape of the logits.

    >>> tg.nn.softmax_cross_entropy_with_logits(
    ...     labels=[[1.0, 0.0]], logits=[[0.0, 0.0]]
    ... ).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    labels, logits = elementwise_operands("softmax_cross_entropy_with_logits", labels, logits)
    return NEG(reduce_sum(MUL(labels, log_softmax(logits, axis)), axis))


def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, name: str | None = None
) -> Tensor:
    """-log_softmax(logits)[..., labels]: the loss of integer labels.

    labels[...] count from 0, logits[..., classes] are floating.
    Raises InvalidArgumentError for a label that is out of range, where it is known already and
    where a function is built with `check_bounds`. Else it gives nan, as in TensorFlow on GPUs: that
    of a function, and that of a label at top level which is still pending.

    >>> tg.nn.sparse_softmax_cross_entropy_with_logits(
    ...     labels=[1], logits=[[0.0, 0.0]]
    ... ).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "sparse_softmax_cross_entropy_with_logits"
    labels, logits = as_tensor(labels), as_tensor(logits)
    if labels.dtype.size < 4 and labels.dtype.is_integer:  # the number of classes may not fit
        labels = cast_to(labels, int32)
    if not labels.dtype.is_integer:
        fail(
            DTypeError,
            f"{op}: the labels are {labels.type}, and they must be integers",
            operands=[operand_text(labels), operand_text(logits)],
            fix="convert them: tg.cast(labels, tg.int32), or use softmax_cross_entropy_with_logits "
            "for probabilities",
        )
    if rank_of(op, logits) != rank_of(op, labels) + 1 or (
        same_shape(labels.type.shape, logits.type.shape[:-1]) is None
    ):
        refuse(
            op,
            f"labels {labels.type} do not fit logits {logits.type}",
            labels,
            logits,
            fix="give logits one more axis than labels, the classes, at the end",
        )
    # A masked sum rather than a gather: its derivative is no scatter, which is slow on CPUs.
    classes = logits.type.shape[-1]
    chosen = log_softmax(logits)
    is_label = one_hot(labels, classes, dtype=bool_)
    loss = NEG(reduce_sum(SELECT(is_label, chosen, zeros_of(chosen)), -1))
    if _are_in_range(op, labels, classes):
        return loss
    # A label below 0 is a large number without its sign.
    unsigned = Cast(uint64 if labels.dtype.size > 4 else uint32)(labels)
    limit = broadcast(as_tensor(classes, unsigned.dtype), labels.type.shape)
    return SELECT(LESS(unsigned, limit), loss, full_like(loss, np.nan))


def _are_in_range(op: str, labels: Tensor, classes: Any) -> bool:
    """Whether the labels are known, and then right. Raises InvalidArgumentError if they are not."""
    message = f"{op}: label {{}} is out of range for {classes} classes"
    fix = f"use labels from 0 to {classes - 1}"
    value = value_at_hand(labels) if isinstance(classes, int) else None
    if value is not None:
        refuse_outside(value, 0, classes - 1, message, fix, (labels,))
    elif checks_at_run_time():
        check_at_run_time(labels, 0, classes - 1, message, fix)
    return value is not None


def sigmoid_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, name: str | None = None
) -> Tensor:
    """-labels * log(sigmoid(x)) - (1 - labels) * log(1 - sigmoid(x)), without overflow.

    labels are probabilities, of the shape of the logits x; each element is a loss.

    >>> tg.nn.sigmoid_cross_entropy_with_logits(labels=[1.0], logits=[0.0]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    labels, x = elementwise_operands("sigmoid_cross_entropy_with_logits", labels, logits)
    return SUB(softplus(x), MUL(x, labels))


def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """The sigmoid cross entropy with `pos_weight` on its first term.

    It is smooth, and its derivatives are so at 0 too, where TensorFlow's are those of a kink.

    >>> tg.nn.weighted_cross_entropy_with_logits([1.0], [0.0], 2.0).numpy().round(4)
    array([1.3863], dtype=float32)
    """
    labels, x = elementwise_operands("weighted_cross_entropy_with_logits", labels, logits)
    positive = NEG(log_sigmoid(x)) * labels * pos_weight  # type: ignore[operator]
    return ADD(positive, MUL(SUB(full_like(labels, 1), labels), softplus(x)))


def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """sum(t ** 2) / 2

    >>> tg.nn.l2_loss([3.0, 4.0]).numpy()
    np.float32(12.5)
    """
    x = as_tensor(t)
    return reduce_sum(MUL(x, x)) * 0.5  # type: ignore[operator]


__all__ = [
    "l2_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]
