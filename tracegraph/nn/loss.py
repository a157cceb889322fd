"""Losses: cross entropies and the like, one value per row."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tracegraph.array.arguments import as_count, as_flag, rank_of, refuse, sizes_of
from tracegraph.array.creation import one_hot
from tracegraph.array.shaping import reshape
from tracegraph.calls.top_level_calls import composition
from tracegraph.core.shapes import same_shape
from tracegraph.core.types import bool_, float64, int32, uint32, uint64
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide_no_nan, multiply
from tracegraph.math.elementwise.unary import log_sigmoid, softplus, softplus_parts
from tracegraph.math.norms import floating_logits, log_softmax
from tracegraph.math.reduction import finite_top, reduce_sum, summable
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    broadcast,
    cast_to,
    elementwise_operands,
)
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_at_hand,
)
from tracegraph.typing import Axis, TensorLike


def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: Axis = -1, name: str | None = None
) -> Tensor:
    """-sum(labels * log_softmax(logits)) along `axis`, which holds the classes.

    labels[..., classes] are probabilities that sum to 1, in the shape of the logits, to whose dtype
    they are converted. Classes with a label of 0 do not count, even if their logit is -infinity.

    >>> tg.nn.softmax_cross_entropy_with_logits(
    ...     labels=[[1.0, 0.0]], logits=[[0.0, 0.0]]
    ... ).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "softmax_cross_entropy_with_logits"
    logits = floating_logits(op, logits)
    labels, logits = elementwise_operands(op, cast_to(as_tensor(labels), logits.dtype), logits)
    return ops.NEG(reduce_sum(ops.MUL_NO_NAN(log_softmax(logits, axis), labels), axis))


def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, name: str | None = None
) -> Tensor:
    """-log_softmax(logits)[..., labels]: the loss of integer labels.

    labels[...] count from 0, logits[..., classes] are floating.
    Raises InvalidArgumentError for a label out of range, if it is known already or the function is
    built with `check_bounds`. Otherwise, in a function, or for a label at top level that is still
    pending, the loss is nan, as in TensorFlow on GPUs.

    >>> tg.nn.sparse_softmax_cross_entropy_with_logits(
    ...     labels=[1], logits=[[0.0, 0.0]]
    ... ).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    op = "sparse_softmax_cross_entropy_with_logits"
    labels = as_tensor(labels)
    swapped = "the labels come first: pass labels=... and logits=... by name"
    logits = floating_logits(op, logits, swapped if labels.dtype.is_floating else "")
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
            fix="give logits one more axis than labels, the classes, at the end; one-hot labels "
            "are for the loss without `sparse`",
        )
    classes = logits.type.shape[-1]
    loss = _loss_of_label(logits, labels)
    if _are_in_range(op, labels, classes):
        return loss
    # As an unsigned integer, a negative label is large.
    unsigned = ops.Cast(uint64 if labels.dtype.size > 4 else uint32)(labels)
    limit = broadcast(as_tensor(classes, unsigned.dtype), labels.type.shape)
    return ops.SELECT(ops.LESS(unsigned, limit), loss, full_like(loss, np.nan))


@composition
def _loss_of_label(x: Tensor, label: Tensor) -> Tensor:
    """-log_softmax(x) of the one label in each row, as softplus(z), where z is by how much the
    logits of the others are above its own: small losses and all derivatives keep their digits."""
    dtype, x = x.dtype, summable(x)
    is_label = one_hot(label, x.type.shape[-1], dtype=bool_)
    # Masks rather than a gather, whose derivative is a scatter, which is slow on CPUs.
    own = reduce_sum(ops.SELECT(is_label, x, zeros_of(x)), -1)
    # Not -infinity, which `check_numerics` would have to tell from a mistake.
    lowest = float(ml_dtypes.finfo(x.dtype.numpy_dtype).min)
    others = ops.SELECT(is_label, full_like(x, lowest), x)
    top = finite_top(others, -1)
    total = reduce_sum(ops.EXP(ops.SUB(others, broadcast(top, x.type.shape))), -1)
    above = ops.SUB(reshape(top, own.type.shape), own)
    return cast_to(softplus(ops.ADD(above, ops.LOG(total))), dtype)


def _are_in_range(op: str, labels: Tensor, classes: Any) -> bool:
    """Whether the labels are known to be in range. Raises InvalidArgumentError if some are not."""
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

    labels are probabilities, in the shape of the logits x; each element is a loss. It is 0 where an
    infinite logit is right.

    >>> tg.nn.sigmoid_cross_entropy_with_logits(labels=[1.0], logits=[0.0]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    return _sigmoid_cross_entropy(
        *elementwise_operands("sigmoid_cross_entropy_with_logits", labels, logits)
    )


@composition
def _sigmoid_cross_entropy(labels: Tensor, x: Tensor) -> Tensor:
    is_positive, tail = softplus_parts(x)
    # Not softplus(x) - x * labels: the small loss of a large x that is right would be rounded away.
    wrong = ops.SUB(ops.Cast(x.dtype)(is_positive), labels)
    return ops.ADD(ops.MUL_NO_NAN(x, wrong), tail)


def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """The sigmoid cross entropy with `pos_weight` on its first term.

    It is smooth, and so are its derivatives at 0, where TensorFlow's have a kink.

    >>> tg.nn.weighted_cross_entropy_with_logits([1.0], [0.0], 2.0).numpy().round(4)
    array([1.3863], dtype=float32)
    """
    labels, x = elementwise_operands("weighted_cross_entropy_with_logits", labels, logits)
    positive = ops.NEG(log_sigmoid(x)) * labels * pos_weight  # type: ignore[operator]
    return add(positive, ops.MUL(ops.SUB(full_like(labels, 1), labels), softplus(x)))


def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """sum(t ** 2) / 2

    >>> tg.nn.l2_loss([3.0, 4.0]).numpy()
    np.float32(12.5)
    """
    x = as_tensor(t)
    return reduce_sum(ops.MUL(x, x)) * 0.5  # type: ignore[operator]


def log_poisson_loss(
    targets: TensorLike,
    log_input: TensorLike,
    compute_full_loss: bool = False,
    name: str | None = None,
) -> Tensor:
    """e ** log_input - targets * log_input: the negative log-likelihood of counts with expectation
    e ** log_input, up to terms that do not depend on it.

    `compute_full_loss` adds those, by Stirling's formula: t log t - t + log(2 pi t) / 2 for targets
    t that are not in [0, 1]. Raises ShapeError for shapes that differ.

    >>> tg.nn.log_poisson_loss([2.0], [0.0]).numpy()
    array([1.], dtype=float32)
    """
    op = "log_poisson_loss"
    t, x = as_operands(op, targets, log_input)
    if same_shape(t.type.shape, x.type.shape) is None:
        fact = f"targets {t.type} do not have the shape of log_input {x.type}"
        refuse(op, fact, t, x, fix="give one target for each number")
    loss = ops.SUB(ops.EXP(x), ops.MUL(x, t))
    if not as_flag(op, "compute_full_loss", compute_full_loss):
        return loss
    one = full_like(t, 1)
    is_small = ops.LogicalAnd()(ops.LESS_EQUAL(zeros_of(t), t), ops.LESS_EQUAL(t, one))
    # Take the logarithms only of targets that count: their derivative at 0 is infinite.
    large = ops.SELECT(is_small, one, t)
    spread = multiply(ops.LOG(multiply(large, 2 * math.pi)), 0.5)
    stirling = ops.ADD(ops.SUB(ops.MUL(large, ops.LOG(large)), large), spread)
    return ops.ADD(loss, ops.SELECT(is_small, zeros_of(t), stirling))


def compute_average_loss(
    per_example_loss: TensorLike,
    sample_weight: TensorLike | None = None,
    global_batch_size: TensorLike | None = None,
) -> Tensor:
    """The weighted sum of the losses, divided by the number of examples.

    - `sample_weight`: one for each example; 1 by default.
    - `global_batch_size`: the number of examples; by default the size of the first axis. Without
      examples the average is 0.

    Raises ValueError for a `global_batch_size` that is negative, or has axes, and ShapeError for a
    scalar loss: that of a batch is an average already.

    >>> tg.nn.compute_average_loss([1.0, 3.0], global_batch_size=4).numpy()
    np.float32(1.0)
    """
    op = "compute_average_loss"
    losses = as_tensor(per_example_loss)
    if losses.type.shape == ():
        refuse(op, f"the losses are {losses.type}", losses, fix="give one loss for each example")
    if sample_weight is not None:
        losses = _weighted(op, losses, as_tensor(sample_weight, None))
    if global_batch_size is None:
        sizes = sizes_of(op, losses)
        count = sizes[0]
    else:
        size = as_tensor(global_batch_size)
        if size.type.shape != ():
            refuse(op, f"global_batch_size is {size.type}", size, fix="give one integer")
        count = as_count(op, "global_batch_size", global_batch_size)
    if losses.dtype.is_integer:
        losses = cast_to(losses, float64)
    wide = summable(losses)
    average = divide_no_nan(reduce_sum(wide), cast_to(as_tensor(count), wide.dtype))
    return cast_to(average, losses.dtype)


def _weighted(op: str, losses: Tensor, weight: Tensor) -> Tensor:
    """Losses times weights, whose axes are the leading axes of the losses."""
    if rank_of(op, weight) > rank_of(op, losses):
        fact = f"the weights {weight.type} for losses {losses.type}"
        refuse(op, fact, losses, weight, fix="give one weight for each example")
    ones = [1] * (losses.ndim - weight.ndim)
    return multiply(losses, reshape(cast_to(weight, losses.dtype), [*weight.type.shape, *ones]))


def scale_regularization_loss(regularization_loss: TensorLike) -> Tensor:
    """The sum of the losses: the share that each of several devices adds to its own loss; here a
    program runs on one.

    >>> tg.nn.scale_regularization_loss([1.0, 2.0]).numpy()
    np.float32(3.0)
    """
    return reduce_sum(regularization_loss)


__all__ = [
    "compute_average_loss",
    "l2_loss",
    "log_poisson_loss",
    "scale_regularization_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]
