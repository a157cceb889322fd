"""Values that are known are checked: indices, which are else clamped like XLA's, and divisors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.shape import at_least
from tracegraph.runtime.convert import LARGEST_CONSTANT, static_value
from tracegraph.shapes import element_count
from tracegraph.source import here


def in_range(op: str, x: Tensor, at: Tensor, axes: Sequence[int]) -> Tensor:
    """x, of which `axes` are indexed by the numbers along the last axis of `at`, or by all of it.

    Refuses indices that are known to be out of range. A size that is open is taken to be large
    enough for those that are known, and every run checks it.
    """
    check_range(op, x, at, axes)
    for axis, numbers in _known_numbers(at, axes):
        x = at_least(x, axis, int(numbers.max()) + 1)
    return x


def check_range(op: str, x: Tensor, at: Tensor, axes: Sequence[int]) -> None:
    """Refuses indices of `axes` that are known to be out of range."""
    for axis, numbers in _known_numbers(at, axes):
        bound = x.type.shape[axis]
        limit = bound if type(bound) is int else np.inf
        wrong = numbers[(numbers < 0) | (numbers >= limit)]
        if wrong.size:
            fail(
                InvalidArgumentError,
                f"{op}: index {wrong[0]} is out of range for the size {bound} of {x.type}",
                source=here(),
                operands=[operand_text(x), operand_text(at)],
                fix=f"use indices from 0 to {bound - 1}",
            )


def _known_numbers(at: Tensor, axes: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Each axis with the indices into it, where they are known."""
    value = value_at_hand(at)
    if value is None or not value.size:
        return
    if len(axes) == 1:
        yield axes[0], value
        return
    for k, axis in enumerate(axes):
        yield axis, value[..., k]


def check_divisor(op: str, x: Tensor, y: Tensor) -> None:
    """Refuses integers that are known to be divided by zero, of which XLA makes some number."""
    value = value_at_hand(y)
    if value is not None and not value.all():
        fail(
            InvalidArgumentError,
            f"{op}: {x.type} is divided by zero",
            source=here(),
            operands=[operand_text(x), operand_text(y)],
            fix="divide by what is not 0, or choose: tg.where(y == 0, 0, x // tg.maximum(y, 1))",
        )


def value_at_hand(x: Tensor) -> np.ndarray | None:
    """The value of a few numbers if it is known already; nothing is evaluated for it."""
    if not x.type.is_static or element_count(x.type.shape) > LARGEST_CONSTANT:
        return None
    if not x.is_made and current().is_top_level:
        return None
    value = static_value(x)
    return None if value is None or value.dtype == object else value
