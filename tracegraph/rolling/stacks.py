"""Rows: which tensors of a graph being rolled are in which stacks, and how they are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.ir.tensor import Tensor
from tracegraph.ops.shape import Concatenate, Reshape, Reverse, Slice


class Counterparts:
    """The counterparts of a graph's tensors in the new graph: individual tensors, or rows of
    stacks."""

    def __init__(self) -> None:
        #: The individual counterparts of the graph's tensors.
        self.env: dict[Tensor, Tensor] = {}
        #: The stacks that a tensor is a row of, and its row in each.
        self._rows: dict[Tensor, dict[Tensor, int]] = {}

    def __contains__(self, x: Tensor) -> bool:
        return x in self._rows

    def note(self, xs: Sequence[Tensor], stack: Tensor) -> None:
        """Records that the tensors are the rows of a stack."""
        for row, x in enumerate(xs):
            self._rows.setdefault(x, {})[stack] = row

    def value(self, x: Tensor) -> Tensor:
        """The counterpart of a tensor, taken from a stack if it is a row of one."""
        if x not in self.env:
            stack, row = next(iter(self._rows[x].items()))
            self.env[x] = Reshape(stack.type.shape[1:])(_range_of(stack, row, row + 1))
        return self.env[x]

    def order(self, xs: Sequence[Tensor]) -> int:
        """1 if the tensors are consecutive rows of one stack, -1 if they are in reverse order, 0 if
        they are neither."""
        return self._whole(xs)[1]

    def _whole(self, xs: Sequence[Tensor]) -> tuple[Any, int]:
        """The stack whose rows the tensors are, and their order."""
        for stack, first in self._rows.get(xs[0], {}).items():
            numbers = [self._rows.get(x, {}).get(stack) for x in xs]
            for step in (1, -1):
                if numbers == list(range(first, first + step * len(xs), step)):
                    return stack, step
        return None, 0

    def stacked(self, xs: Sequence[Tensor]) -> Tensor:
        """The tensors stacked as rows."""
        parts: list[Tensor] = []
        start = 0
        while start < len(xs):
            ends = range(len(xs), start + 1, -1)
            end = next((i for i in ends if self.order(xs[start:i])), start + 1)
            parts.append(self._part(xs[start:end]))
            start = end
        if len(parts) == 1:
            return parts[0]
        stack = Concatenate(0)(*parts)
        self.note(xs, stack)
        return stack

    def _part(self, xs: Sequence[Tensor]) -> Tensor:
        """Tensors that are rows of one stack, or a single tensor, as rows."""
        stack, order = self._whole(xs)
        if not order:
            (x,) = xs
            return Reshape((1, *x.type.shape))(self.value(x))
        rows = [self._rows[x][stack] for x in xs]
        whole = _range_of(stack, min(rows), max(rows) + 1)
        return whole if order == 1 else Reverse((0,))(whole)


def _range_of(stack: Tensor, start: int, stop: int) -> Tensor:
    size, *rest = stack.type.shape
    if (start, stop) == (0, size):
        return stack
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    return Slice((start, *zeros), (stop, *rest), (1, *ones))(stack)
