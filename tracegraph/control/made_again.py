"""What a backward graph makes again of other residuals, since that costs less than to keep it.

A rule may read a number that was broadcast, or `1 - z` beside `z`. Kept, each would be a buffer,
and in a scan a row of every step. Made again, it is a part of the computation that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.constant import Constant
from tracegraph.ops.elementwise import Add, Comparison, LogicalNot, Mul, Neg, Sub

#: One instruction for each element.
_ARITHMETIC = (Add, Sub, Mul, Neg, Comparison, LogicalNot)


def made_again(body: Graph, residuals: Sequence[Tensor]) -> tuple[list[Tensor], frozenset[Tensor]]:
    """The residuals of `body` that must be kept, and the tensors that are made again of them.

    A broadcast is made again of its operand, which is kept in its place; a value of arithmetic, if
    all of its operands are there. What the body returns anyway is kept."""
    found = _MadeAgain(residuals)
    returned = {*body.outputs}
    for node in body.nodes:
        for x in node.outputs:
            if x in found.kept and x not in returned:
                found.consider(x)
    return [*found.kept], frozenset(found.again)


class _MadeAgain:
    def __init__(self, residuals: Iterable[Tensor]) -> None:
        #: The residuals that are kept, in their order.
        self.kept = dict.fromkeys(residuals)
        self.again: set[Tensor] = set()

    def consider(self, x: Tensor) -> None:
        """Makes a residual again, if that is cheap."""
        assert x.node is not None
        if type(x.node.op) is BroadcastTo:
            del self.kept[x]
            source = self._broadcast_again(x)
            if not self._is_there(source):
                self.kept[source] = None
        elif isinstance(x.node.op, _ARITHMETIC):
            sources = {y: _broadcast_source(y) for y in x.node.inputs}
            if all(map(self._is_there, sources.values())):
                del self.kept[x]
                self.again.add(x)
                for y in sources:
                    if not self._is_there(y):
                        self._broadcast_again(y)

    def _is_there(self, x: Tensor) -> bool:
        is_constant = x.node is not None and type(x.node.op) is Constant
        return is_constant or x in self.kept or x in self.again

    def _broadcast_again(self, x: Tensor) -> Tensor:
        """Makes a broadcast again, and the broadcasts that it is of. Returns what they are of."""
        while x.node is not None and type(x.node.op) is BroadcastTo and x not in self.kept:
            self.again.add(x)
            (x,) = x.node.inputs
        return x


def _broadcast_source(x: Tensor) -> Tensor:
    while x.node is not None and type(x.node.op) is BroadcastTo:
        (x,) = x.node.inputs
    return x
