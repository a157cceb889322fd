"""What a tape remembers beside the nodes that it follows, so that a None can be explained.

Nodes that the tape saw and did not follow are kept as they are while they are pending, which costs
next to nothing, and as `Step`s from then on: those hold no tensor, since what is held is made.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor, get_type
from tracegraph.runtime.pending import Pending
from tracegraph.source import Source, here, next_moment
from tracegraph.types import TensorType

#: A tape forgets the oldest of the nodes that it did not follow when there are more of them.
_LIMIT = 1 << 16
#: How many values that went to NumPy, or came from there, a tape remembers.
_CROSSINGS = 1 << 10


class Step:
    """A node as it is remembered: its tensors are weak references, which stand for them."""

    __slots__ = ("input_types", "inputs", "op", "output_types", "outputs", "source")

    def __init__(self, node: Node) -> None:
        self.op: Op = node.op
        self.source: Source = node.source
        self.inputs = references(node.inputs)
        self.outputs = references(node.outputs)
        self.input_types: tuple[TensorType, ...] = tuple(map(get_type, node.inputs))
        self.output_types: tuple[TensorType, ...] = types_of_outputs(node)


def references(tensors: Iterable[Any]) -> tuple[ref[Tensor], ...]:
    """Weak references to tensors; a node that was let go of has them already."""
    return tuple([x if type(x) is ref else ref(x) for x in tensors])


def types_of_outputs(node: Node) -> tuple[TensorType, ...]:
    """The types of the outputs, some of which may be gone."""
    outputs = node.outputs
    if type(outputs) is tuple:
        return tuple(map(get_type, outputs))
    return node.op.output_types(node.inputs)


class Span:
    """Moments between which a tape recorded, and what ended that: "left", "stopped" or "used"."""

    __slots__ = ("cause", "start", "stop")

    def __init__(self) -> None:
        self.start = next_moment()
        self.stop: int | None = None
        self.cause = "left"


class History:
    """What a tape saw and did not follow, when it recorded, and what went to NumPy and back."""

    def __init__(self, builder: Builder | None) -> None:
        self._builder = builder
        self.spans: list[Span] = []
        self.passed: deque[Node | Step] = deque(maxlen=_LIMIT)
        self.left: deque[tuple[ref[Tensor], Source]] = deque(maxlen=_CROSSINGS)
        self.arrived: deque[tuple[ref[Tensor], Source]] = deque(maxlen=_CROSSINGS)
        #: Nodes of `passed` that are still pending; at the end of it.
        self._waiting: list[Node] = []
        #: Once the tape was used: what it followed, and what it watched.
        self.followed: list[Node | Step] = []
        self.watched: list[ref[Tensor]] = []

    def start(self) -> None:
        self.spans.append(Span())

    def stop(self, cause: str) -> None:
        self.spans[-1].stop = next_moment()
        self.spans[-1].cause = cause

    def pass_by(self, node: Node) -> None:
        """Remembers a node that the tape does not follow."""
        outputs = node.outputs
        if not outputs or outputs[0].node is not node:  # made already: nobody waits for it
            self.passed.append(Step(node))
            return
        if not self._waiting:
            self._await_run()
        self._waiting.append(node)

    def _await_run(self) -> None:
        if isinstance(self._builder, Pending):
            self._builder.keepers.append(weakref.ref(self))

    def let_go(self) -> None:
        """Turns the nodes that are kept as they are into steps: they have run."""
        self.passed.extend(map(Step, self._waiting))
        self._waiting.clear()
        self.followed = list(map(as_step, self.followed))

    def all_passed(self) -> list[Node | Step]:
        """What the tape saw and did not follow, in order."""
        return [*self.passed, *self._waiting]

    def keep(self, nodes: Sequence[Node], tracked: set[Tensor]) -> None:
        """Keeps what a tape that is used up followed, until the values of its nodes are made."""
        made = {y for node in nodes for y in node.outputs}
        self.watched = [ref(x) for x in tracked if x not in made]
        self.followed = [x if x.outputs[0].node is x else Step(x) for x in nodes]
        self._await_run()

    # What goes to NumPy, and what comes from there.

    def leave(self, tensor: Tensor) -> None:
        self.left.append((ref(tensor), here()))

    def arrive(self, tensor: Tensor) -> None:
        """Remembers an array that became a tensor; a number only where a value went out before."""
        if self.left or tensor.type.shape:
            self.arrived.append((ref(tensor), here()))


def as_step(entry: Node | Step) -> Step:
    return entry if type(entry) is Step else Step(entry)  # type: ignore[arg-type]
