"""What the ops that move elements have in common."""

from __future__ import annotations

from tracegraph.core.sparsity_patterns import moved
from tracegraph.ir.op import Op


def no_flops(self, *types):
    """The `flops` of ops that move, name or convert elements, which is not arithmetic."""
    return 0


class Movement(Op, abstract=True):
    """Every element of the result is an element of one of the operands."""

    flops = no_flops

    def depends(self, *patterns):
        return moved(self.numpy, *patterns)
