"""What the ops that move elements have in common."""

from __future__ import annotations

from tracegraph.ir.op import Op
from tracegraph.patterns import moved


class Movement(Op, abstract=True):
    """Every element of the result is an element of one of the operands."""

    def depends(self, *patterns):
        return moved(self.numpy, *patterns)
