"""Where a query may attend to a key."""

from __future__ import annotations

from typing import Any

from tracegraph.array.creation import range as numbers
from tracegraph.array.shaping import expand_dims
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import flags_of
from tracegraph.math.elementwise.arithmetic import add
from tracegraph.math.elementwise.logic import greater_equal, logical_and
from tracegraph.operands.conversion import as_tensor, cast_to


def both(mask: Any, other: Any) -> Any:
    """Where both masks are true; None counts as true everywhere."""
    if mask is None or other is None:
        return other if mask is None else mask
    return logical_and(mask, other)


def causal(rows: Any, columns: Any, first: Any = 0) -> Tensor:
    """[rows, columns]: whether query first + i may attend to key j, which must not come later."""
    query = expand_dims(add(numbers(rows), cast_to(as_tensor(first), int32)), 1)
    return greater_equal(query, expand_dims(numbers(columns), 0))


def combined(op: str, query: Any, value: Any, key: Any, attention: Any) -> Any:
    """[examples, queries, keys]: where all masks are true; None without masks."""
    allowed = None
    for mask, axis in ((query, 2), (value, 1), (key, 1)):
        if mask is not None:
            allowed = both(allowed, expand_dims(flags_of(mask), axis))
    return both(allowed, None if attention is None else flags_of(attention))
