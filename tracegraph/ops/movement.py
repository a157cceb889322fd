"""What the ops that move elements have in common."""

from __future__ import annotations

from tracegraph.core.sparsity_patterns import Pattern, moved
from tracegraph.core.types import TensorType
from tracegraph.ir.op import Op


def no_flops(self: Op, *types: TensorType) -> int:
    """The `flops` of ops that move, name or convert elements, which is not arithmetic."""
    return 0


class Movement(Op, abstract=True):
    """Every element of the result is an element of one of the operands."""

    flops = no_flops

    def depends(self, *patterns: Pattern) -> Pattern:
        return moved(self.numpy, *patterns)
