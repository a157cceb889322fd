"""Values that are known are checked: indices, which are else clamped like XLA's, and divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.runtime.convert import LARGEST_CONSTANT, static_value
from tracegraph.shapes import element_count
from tracegraph.source import here


def check_range(op: str, x: Tensor, at: Tensor, limits: tuple[Any, ...]) -> None:
    """Refuses indices that are known to be out of range: `limits` are sizes of the last axis."""
    value = value_at_hand(at)
    if value is None or not value.size or not all(type(limit) is int for limit in limits):
        return
    limit: Any = np.array(limits)
    bounds = np.broadcast_to(limit if limit.size > 1 else limit.item(), value.shape)
    is_wrong = (value < 0) | (value >= bounds)
    if is_wrong.any():
        place = tuple(np.argwhere(is_wrong)[0])
        bound = bounds[place]
        fail(
            InvalidArgumentError,
            f"{op}: index {value[place]} is out of range for the size {bound} of {x.type}",
            source=here(),
            operands=[operand_text(x), operand_text(at)],
            fix=f"use indices from 0 to {bound - 1}",
        )


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
