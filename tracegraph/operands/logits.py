"""The logits that probabilities are made of, which activations hand on to cross entropies.

The probability of a logit of 20 is 1 in float32, so its cross entropy and their gradient are lost.
Keras keeps the logits for this too, as `_keras_logits`, and takes those of any activation.
"""

from __future__ import annotations

from typing import NamedTuple

from tracegraph.ir.tensor import Tensor


class Logits(NamedTuple):
    """The operand of an activation."""

    values: Tensor
    #: The axis of a softmax, from 0; None for a sigmoid.
    axis: int | None


def with_logits(probabilities: Tensor, logits: Tensor, axis: int | None) -> Tensor:
    """The probabilities, which have these logits now."""
    probabilities._logits = Logits(logits, axis)
    return probabilities


def logits_of(probabilities: Tensor, axis: int | None) -> Tensor | None:
    """What the sigmoid, or the softmax along `axis`, was computed of; None if these are no
    probabilities of such an activation."""
    found: Logits | None = getattr(probabilities, "_logits", None)
    return found.values if found is not None and found.axis == axis else None
