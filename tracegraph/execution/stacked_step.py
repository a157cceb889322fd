"""Steps whose programs take Variables in stacks.

A rolled program reads the kernels of twelve layers as the rows of one buffer, and stores them as
one, so nothing is copied between steps. Meanwhile the slots of the Variables hold the indices of
their rows. Reading or assigning a single Variable moves it to its own buffer, and the next step
gathers the rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.eager import backend
from tracegraph.eager.slots import (
    Slot,
    StackRow,
    Step,
    gathered,
    note_pending,
    store_together_if_same,
)


class StackedStep(Step):
    """A step that takes some Variables individually, followed by groups of them in stacks."""

    __slots__ = ("_assigned", "_groups", "_places", "_slots")
    _is_tested = True

    def __init__(
        self,
        program: Any,
        stored: slice,
        kept: Sequence[Slot],
        groups: Sequence[Sequence[Slot]],
        assigned: Sequence[int],
    ) -> None:
        """`assigned` are positions among the Variables taken: first those kept, then the stacks."""
        super().__init__(program, stored)
        self._groups = groups
        self._places = assigned
        # Both lists change in place: a run holds them while it gathers the stacks.
        self._slots = [*kept, *(Slot() for _ in groups)]
        self._assigned = [self._slots[i] for i in assigned]

    def run(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Slot],
        rest: Sequence[Any],
        assigned: Sequence[Slot],
    ) -> tuple[Any, ...]:
        return super().run(buffers, self._slots, rest, self._assigned)

    def _gather_stacks(self) -> None:
        found = [_stack_of(members) for members in self._groups]
        self._slots[len(self._slots) - len(found) :] = [stack for stack, _ in found]
        self._assigned[:] = [self._slots[i] for i in self._places]
        self._members = [slot for members in self._groups for slot in members]
        self._rows = [row for _, rows in found for row in rows]


def _stack_of(members: Sequence[Slot]) -> tuple[Slot, list[StackRow]]:
    """The stack whose rows are the slots, in order, and the rows. Gathers them into a new stack if
    they are not rows of one."""
    while True:
        contents = [slot.buffer for slot in members]
        stack = _common_stack(contents)
        if stack is not None:
            return stack, contents
        buffers = gathered(members)
        stack = Slot(backend.stack(buffers))
        rows = [StackRow(stack, i) for i in range(len(members))]
        note_pending()
        if store_together_if_same(members, rows, members, buffers):
            return stack, rows


def _common_stack(contents: Sequence[Any]) -> Slot | None:
    """The stack whose rows the contents all are, in order."""
    first = contents[0]
    if type(first) is not StackRow or first.stack.buffer.shape[0] != len(contents):
        return None
    rows = enumerate(contents)
    is_whole = all(type(x) is StackRow and x.stack is first.stack and x.row == i for i, x in rows)
    return first.stack if is_whole else None
