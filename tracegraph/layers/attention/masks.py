"""Where a query may attend to a key."""

from __future__ import annotations

from typing import Any

from tracegraph.array.creation import range as numbers
from tracegraph.array.shaping import expand_dims
from tracegraph.core.types import int32
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import flags_of
from tracegraph.math.elementwise.arithmetic import add, subtract
from tracegraph.math.elementwise.logic import greater_equal, less, logical_and
from tracegraph.math.elementwise.unary import abs as magnitude
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


def banded(rows: Any, columns: Any, width: int, first: Any = 0) -> Tensor:
    """[rows, columns]: whether key j is fewer than `width` positions away from query first + i."""
    query = expand_dims(add(numbers(rows), cast_to(as_tensor(first), int32)), 1)
    return less(magnitude(subtract(query, expand_dims(numbers(columns), 0))), width)


def combined(rank: int, count: int, query: Any, value: Any, key: Any, attention: Any) -> Any:
    """Where all masks are true; None without masks. The scores have `rank` axes: those of examples,
    heads, `count` of queries and `count` of keys."""
    allowed = None
    for mask, before in ((query, 0), (value, count), (key, count)):
        if mask is not None:
            flags = flags_of(mask)
            for _ in range(count):
                flags = expand_dims(flags, -before - 1)
            allowed = both(allowed, _for_all_heads(flags, rank, count))
    if attention is None:
        return allowed
    return both(allowed, _for_all_heads(flags_of(attention), rank, count))


def _for_all_heads(flags: Tensor, rank: int, count: int) -> Tensor:
    """The mask with axes of size 1 for what it does not tell apart; one of queries and keys alone
    broadcasts anyway."""
    while 2 * count < flags.ndim < rank:
        flags = expand_dims(flags, -2 * count - 1)
    return flags
