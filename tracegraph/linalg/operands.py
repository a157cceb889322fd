"""What the functions of this package ask of their arguments."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import rank_of, refuse
from tracegraph.ir.tensor import Tensor
from tracegraph.math.product import with_common_batch
from tracegraph.operands.conversion import as_operands, as_tensor


def matrices(op: str, x: Any) -> Tensor:
    """A tensor of at least two axes. Raises ShapeError for another."""
    x = as_tensor(x)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} is not a matrix", x, fix="give a tensor of at least two axes")
    return x


def system(op: str, matrix: Any, rhs: Any) -> tuple[Tensor, Tensor]:
    """Matrices and right-hand sides of one dtype, with the same leading axes."""
    a, b = as_operands(op, matrix, rhs)
    ranks = rank_of(op, a), rank_of(op, b)
    if min(ranks) < 2:
        short = a if ranks[0] < 2 else b
        fix = "give a vector a last axis of size 1: x[..., tg.newaxis]"
        refuse(op, f"{short.type} is not a matrix", a, b, fix=fix)
    return with_common_batch(op, a, b)
