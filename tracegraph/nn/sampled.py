"""Losses over many classes, computed on a sample of them."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import as_flag, as_integers, as_size, rank_of, refuse
from tracegraph.array.creation import ones_like, stop_gradient, zeros_like
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import concat
from tracegraph.array.shaping import reshape
from tracegraph.core.shapes import same_size
from tracegraph.core.types import int64
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide, multiply, subtract
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.elementwise.unary import log
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_any, reduce_sum
from tracegraph.nn.loss import sigmoid_cross_entropy_with_logits, softmax_cross_entropy_with_logits
from tracegraph.nn.normalisation import embedding_lookup
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.random.candidates import Candidates, log_uniform_candidate_sampler
from tracegraph.typing import TensorLike


def sampled_softmax_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """The softmax cross entropy of each example over its own classes and a sample of the others.

    - `weights`: [num_classes, width], or a list of shards as in `embedding_lookup`; `biases`:
      [num_classes]. The logit of a class is inputs . weights[class] + biases[class].
    - `labels`: integers [examples, num_true]; `inputs`: [examples, width].
    - `sampled_values`: the result of a candidate sampler; by default that of
      `tg.random.log_uniform_candidate_sampler` with `num_sampled` distinct classes.
    - `remove_accidental_hits`: whether to drop sampled classes that are labels of the example.

    The loss is for training; evaluate with the softmax over all classes.
    Raises ShapeError for shapes that do not fit, DTypeError for labels that are not integers.

    >>> weights, biases, inputs = tg.ones([5, 2]), tg.zeros([5]), tg.ones([3, 2])
    >>> tg.nn.sampled_softmax_loss(weights, biases, [[0], [1], [4]], inputs, 2, 5).shape
    TensorShape([3])
    """
    op = "sampled_softmax_loss"
    shape = (num_sampled, num_classes, num_true)
    logits, chances = _sampled_logits(
        op, weights, biases, labels, inputs, shape, sampled_values, remove_accidental_hits, seed
    )
    return softmax_cross_entropy_with_logits(stop_gradient(chances), logits)


def nce_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = False,
    name: str | None = None,
) -> Tensor:
    """Noise-contrastive estimation: the sum of the sigmoid cross entropies for distinguishing each
    example's own classes from a sample of others.

    The arguments and errors are those of `sampled_softmax_loss`.

    >>> weights, biases, inputs = tg.ones([5, 2]), tg.zeros([5]), tg.ones([3, 2])
    >>> tg.nn.nce_loss(weights, biases, [[0], [1], [4]], inputs, 2, 5).shape
    TensorShape([3])
    """
    op = "nce_loss"
    shape = (num_sampled, num_classes, num_true)
    logits, chances = _sampled_logits(
        op, weights, biases, labels, inputs, shape, sampled_values, remove_accidental_hits, None
    )
    return reduce_sum(sigmoid_cross_entropy_with_logits(chances, logits), axis=1)


def _sampled_logits(
    op: str,
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    shape: tuple[Any, Any, Any],
    sampled_values: Any,
    removes_hits: Any,
    seed: Any,
) -> tuple[Tensor, Tensor]:
    """Logits [examples, num_true + num_sampled], minus the logarithms of the expected counts of the
    classes, and their target probabilities."""
    num_sampled, num_classes, num_true = (as_size(op, "a number of classes", n) for n in shape)
    true, x = as_integers(op, "the labels", labels), as_tensor(inputs)
    true = reshape(true, [-1, 1]) if rank_of(op, true) == 1 and num_true == 1 else true
    _check(op, true, x, num_true)
    true = cast_to(true, int64)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            true, num_true, num_sampled, True, num_classes, seed
        )
    sampled, true_count, count = (stop_gradient(value) for value in Candidates(*sampled_values))
    rows, offsets = (embedding_lookup(table, true) for table in (weights, biases))
    for part in (rows, offsets):
        if not part.dtype.is_floating:
            fact = f"{op}: a table has elements {part.type}, and they must be floating"
            fail(DTypeError, fact, fix="convert it: tg.cast(x, tg.float32)")
    examples, width = x.type.shape
    own = reduce_sum(multiply(reshape(x, [examples, 1, width]), rows), axis=2)
    others = matmul(x, embedding_lookup(weights, sampled), transpose_b=True)
    own = subtract(add(own, offsets), log(cast_to(true_count, x.dtype)))
    others = add(others, embedding_lookup(biases, sampled))
    others = subtract(others, log(cast_to(count, x.dtype)))
    if as_flag(op, "remove_accidental_hits", removes_hits):
        is_hit = equal(reshape(true, [examples, num_true, 1]), cast_to(sampled, int64))
        others = where(reduce_any(is_hit, axis=1), others.dtype.min / 2, others)
    chances = concat([divide(ones_like(own), float(num_true)), zeros_like(others)], 1)
    return concat([own, others], 1), chances


def _check(op: str, true: Tensor, x: Tensor, num_true: Any) -> None:
    sizes = true.type.shape
    fits = rank_of(op, true) == rank_of(op, x) == 2 and x.dtype.is_floating
    if not fits or any(
        same_size(a, b) is None for a, b in ((sizes[0], x.type.shape[0]), (sizes[1], num_true))
    ):
        refuse(
            op,
            f"labels {true.type} and inputs {x.type} for a num_true of {num_true}",
            true,
            x,
            fix="give labels [examples, num_true] and floating inputs [examples, width]",
        )


__all__ = ["nce_loss", "sampled_softmax_loss"]
