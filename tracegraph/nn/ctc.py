"""Connectionist temporal classification: a loss for sequences whose alignment is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.arguments import as_flag, as_integers, as_size, known_int, rank_of, refuse
from tracegraph.array.creation import range as range_of, zeros
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.joining import stack
from tracegraph.array.shaping import cut, pad, reshape, transpose
from tracegraph.control_flow.loops import foldl
from tracegraph.core.shapes import same_size
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.elementwise.logic import (
    equal,
    greater,
    less,
    logical_and,
    logical_or,
    not_equal,
)
from tracegraph.math.elementwise.unary import negative
from tracegraph.math.norms import log_softmax
from tracegraph.math.reduction import reduce_logsumexp, summable
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, to_int32
from tracegraph.ops.broadcast import full_like
from tracegraph.typing import TensorLike

#: The log-probability of the impossible. It is finite, so that no derivative is nan.
_IMPOSSIBLE = -1e30


def ctc_loss(
    labels: TensorLike,
    logits: TensorLike,
    label_length: TensorLike,
    logit_length: TensorLike,
    logits_time_major: bool = True,
    unique: object = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Tensor:
    """The negative log-probability of each label sequence, summed over all its alignments.

    An alignment has one class per frame; removing repetitions, and then blanks, gives the sequence.

    - `labels`: [examples, longest], integers; `label_length`: how many of each row count.
    - `logits`: [frames, examples, classes], or [examples, frames, classes] if not
      `logits_time_major`; `logit_length`: how many frames of each example count.
    - `blank_index`: the class of the blank, 0 by default; negative ones count from the end.
    - `unique`: accepted as in TensorFlow, but not needed.

    The loss is infinite, and its derivative 0, if there are too few frames for the labels.
    Raises ShapeError for shapes that do not fit, DTypeError for labels that are not integers.

    >>> logits = tg.zeros([2, 1, 3])  # each frame: every class with probability 1 / 3
    >>> loss = tg.nn.ctc_loss([[1]], logits, label_length=[1], logit_length=[2])
    >>> tg.exp(-loss).numpy().round(4)  # "11", "1-" and "-1" of 9
    array([0.3333], dtype=float32)
    """
    op = "ctc_loss"
    wanted = as_integers(op, "the labels", labels)
    x = as_tensor(logits)
    label_count = as_integers(op, "the label_length", label_length)
    frame_count = as_integers(op, "the logit_length", logit_length)
    _check(op, wanted, x, label_count, frame_count)
    if not as_flag(op, "logits_time_major", logits_time_major):
        x = transpose(x, [1, 0, 2])
    examples = x.type.shape[1]
    others = (wanted, label_count, frame_count)
    if any(same_size(y.type.shape[0], examples) is None for y in others):
        fact = f"labels {wanted.type} and logits {x.type} do not have as many examples"
        refuse(op, fact, wanted, x, fix="check logits_time_major, and the lengths")
    blank = _blank(op, x, blank_index)
    loss = _loss(cast_to(wanted, int32), summable(x), label_count, frame_count, blank)
    return cast_to(loss, x.dtype)


def _check(op: str, labels: Tensor, x: Tensor, label_length: Tensor, logit_length: Tensor) -> None:
    ranks = [rank_of(op, y) for y in (labels, x, label_length, logit_length)]
    if ranks != [2, 3, 1, 1] or not x.dtype.is_floating:
        refuse(
            op,
            f"labels {labels.type} of lengths {label_length.type} for logits {x.type} of lengths "
            f"{logit_length.type}",
            labels,
            x,
            fix="give labels [examples, longest], floating logits [frames, examples, classes], and "
            "one length for each example",
        )


def _blank(op: str, x: Tensor, blank_index: Any) -> int:
    classes = x.type.shape[-1]
    blank = 0 if blank_index is None else as_size(op, "blank_index", blank_index)
    if known_int(classes) and not -classes <= blank < classes:  # type: ignore[operator]
        refuse(op, f"blank_index is {blank} for {classes} classes", x, fix="use a class")
    return blank + classes if blank < 0 else blank


def _loss(
    labels: Tensor, x: Tensor, label_length: Tensor, logit_length: Tensor, blank: Any
) -> Tensor:
    """The states are the labels with blanks between and around them. alpha[s] is the
    log-probability that the frames so far end in state s."""
    frames, examples, _ = x.type.shape
    label_count, frame_count = (
        reshape(to_int32(length), [examples, 1]) for length in (label_length, logit_length)
    )
    states = _states(labels, label_count, blank)
    places = range_of(states.type.shape[1])
    may_skip = logical_and(not_equal(states, blank), not_equal(states, _moved(states, 2, blank)))
    chances = gather(transpose(log_softmax(x), [1, 0, 2]), states, axis=2, batch_dims=1)

    def step(alpha: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
        chance, time = frame
        one, two = (_moved(alpha, count, _IMPOSSIBLE) for count in (1, 2))
        paths = stack([alpha, one, where(may_skip, two, _IMPOSSIBLE)])
        follows = add(reduce_logsumexp(paths, axis=0), chance)
        return where(less(time, frame_count), follows, alpha)

    start = broadcast(where(equal(places, 0), zeros([], x.dtype), _IMPOSSIBLE), states.type.shape)
    last = foldl(step, (transpose(chances, [1, 0, 2]), range_of(frames)), start)
    back = subtract(multiply(label_count, 2), places)  # the distance from the last state
    is_end = logical_or(equal(back, 0), equal(back, 1))
    total = reduce_logsumexp(where(is_end, last, _IMPOSSIBLE), axis=1)
    return where(greater(total, _IMPOSSIBLE / 2), negative(total), np.inf)


def _states(labels: Tensor, label_count: Tensor, blank: Any) -> Tensor:
    """[blank, label, blank, ..., label, blank] for each row, filled up with blanks."""
    examples, longest = labels.type.shape
    labels = where(less(range_of(longest), label_count), labels, blank)
    pairs = reshape(stack([labels, full_like(labels, blank)], axis=2), [examples, 2 * longest])
    return pad(pairs, [[0, 0], [1, 0]], constant_values=blank)


def _moved(x: Tensor, count: int, fill: Any) -> Tensor:
    """x shifted along its last axis by `count` places, with `fill` at the front."""
    return cut(pad(x, [[0, 0], [count, 0]], constant_values=fill), 1, 0, x.type.shape[1])


__all__ = ["ctc_loss"]
