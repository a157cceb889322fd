"""What a tape remembers besides the nodes that it follows, so that a None can be explained.

Nodes that the tape saw but did not follow are kept unchanged while they are pending, which costs
almost nothing, and as `RememberedNode`s from then on: those hold no tensors, since a held tensor is
materialised.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

from tracegraph.core.source import UNKNOWN, Source, here, instruction_of, next_moment, user_frame
from tracegraph.core.types import TensorType
from tracegraph.eager.pending import Pending
from tracegraph.eager.provenance import Assignment, last_assignment, provenance_of, variable_read_by
from tracegraph.ir.builder import INPUT, Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor, get_type
from tracegraph.ops.effect import Read

#: Beyond this number, a tape forgets the oldest nodes that it did not follow.
_LIMIT = 1 << 16
#: How many values that went to NumPy, or came from there, a tape remembers.
_CROSSINGS = 1 << 10


class RememberedNode:
    """A node as it is remembered, with weak references in place of its tensors.

    If only its ends are known, because a value was computed and dropped its node, there is no `op`.
    Tensors that represent Variables are held, since they have no value.
    """

    __slots__ = ("assigned_at", "input_types", "inputs", "op", "output_types", "outputs", "source")

    #: For the read of a Variable: where the value was assigned, if that is known.
    assigned_at: Source | None

    op: Op | None
    source: Source
    inputs: tuple[Any, ...]
    outputs: tuple[ref[Tensor], ...]
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]

    def __init__(self, node: Node) -> None:
        self.assigned_at = None
        self.op = node.op
        self.source = node.source
        self.inputs = tuple(map(ref, node.inputs))
        self.outputs = references(node.outputs)
        self.input_types = tuple(map(get_type, node.inputs))
        self.output_types = types_of_outputs(node)

    def reading(self, assignment: Assignment) -> RememberedNode:
        """The same read of a Variable, with the assigned value as its input."""
        step = copy.copy(self)
        step.inputs = (assignment.value, self.inputs[1])
        step.assigned_at = assignment.source
        return step

    @staticmethod
    def between(inputs: tuple[Any, ...], output: Tensor, source: Source) -> RememberedNode:
        """A step from inputs, or what is known of them, to a value that no longer has a node."""
        step = RememberedNode.__new__(RememberedNode)
        step.op, step.source, step.assigned_at = None, source, None
        step.inputs, step.outputs = inputs, (ref(output),)
        step.input_types, step.output_types = (), (output.type,)
        return step


def node_before(x: Tensor) -> RememberedNode | None:
    """What computed a tensor, as far as it is known."""
    handle = variable_read_by(x)
    if handle is not None:
        return RememberedNode.between((handle,), x, UNKNOWN)
    if x.node is not None:
        return None if x.node.op is INPUT else RememberedNode(x.node)
    provenance = provenance_of(x)
    return None if provenance is None else RememberedNode.between(provenance, x, x.source)


def alive(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors, among weak references and tensors, that still exist."""
    for x in tensors:
        found = x() if type(x) is ref else x
        if found is not None:
            yield found


def references(outputs: tuple[Any, ...]) -> tuple[ref[Tensor], ...]:
    """Weak references to the outputs of a node; a dropped one already has them."""
    return tuple(map(ref, outputs)) if type(outputs) is tuple else outputs


def types_of_outputs(node: Node) -> tuple[TensorType, ...]:
    """The types of the outputs, some of which may be gone."""
    outputs = node.outputs
    if type(outputs) is tuple:
        return tuple(map(get_type, outputs))
    return node.op.output_types(node.inputs)


class Crossing(NamedTuple):
    """A value that went to NumPy or to Python, or came from there: where, and when."""

    tensor: ref[Tensor]
    source: Source
    moment: int


class Decision(NamedTuple):
    """A value that Python read and may decide by: where; the answers given there, if it was read as
    a bool; and what the names in that code referred to."""

    source: Source
    outcomes: set[bool]
    names: dict[str, ref[Any]]


def _names_of(frame: FrameType) -> dict[str, ref[Any]]:
    """What the names in a frame's code refer to, as far as it can be referenced weakly."""
    code, own = frame.f_code, frame.f_locals
    names = (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
    found = {}
    for name in names:
        value = own.get(name, frame.f_globals.get(name))
        if value is not None and type(value).__weakrefoffset__:
            found[name] = ref(value)
    return found


class Span:
    """A period in which a tape recorded, and what ended it: "left", "stopped" or "used"."""

    __slots__ = ("cause", "start", "stop")

    def __init__(self) -> None:
        self.start = next_moment()
        self.stop: int | None = None
        self.cause = "left"


class History:
    """What a tape saw but did not follow, when it recorded, and what went to NumPy and back."""

    def __init__(self) -> None:
        self._builder: Builder | None = None
        #: Whether `tape.reset()` created it, and earlier events are forgotten.
        self.is_after_reset = False
        self.spans: list[Span] = []
        self.passed: list[RememberedNode] = []
        self.left: list[Crossing] = []
        self.arrived: list[Crossing] = []
        #: With the handles of the Variables.
        self.assigned: list[tuple[Tensor, Assignment]] = []
        #: By code and instruction, the latest last.
        self.decisions: dict[tuple[int, int], Decision] = {}
        #: Nodes of `passed` that are still pending; they are at its end.
        self._waiting: list[Node] = []
        #: The unseen steps from which nodes that have run were computed.
        self.unseen: list[RememberedNode] = []
        #: Once the tape was used: what it followed, and what it watched.
        self.followed: list[Node | RememberedNode] = []
        self.watched: list[ref[Tensor]] = []

    def start(self, builder: Builder) -> None:
        self._builder = builder
        self.spans.append(Span())

    def stop(self, cause: str) -> None:
        self.spans[-1].stop = next_moment()
        self.spans[-1].cause = cause

    def pass_by(self, node: Node) -> None:
        """Remembers a node that the tape does not follow."""
        outputs = node.outputs
        if not outputs or outputs[0].node is not node:  # already computed: nobody waits for it
            self.passed.append(RememberedNode(node))
            return
        if not self._waiting:
            self._await_run()
        self._waiting.append(node)

    def _await_run(self) -> None:
        if isinstance(self._builder, Pending):
            self._builder.keepers.append(weakref.ref(self))

    def let_go(self) -> None:
        """Converts the nodes kept unchanged into steps: they have run."""
        self._look_back(self._waiting)
        self.passed.extend(map(RememberedNode, self._waiting))
        self._waiting.clear()
        if self.followed:
            self._look_back([x for x in self.followed if isinstance(x, Node)])
            self.followed = [RememberedNode(x) if isinstance(x, Node) else x for x in self.followed]
        for known in (self.passed, self.unseen):
            del known[:-_LIMIT]

    def _look_back(self, nodes: Sequence[Node]) -> None:
        """Remembers how the nodes' inputs were computed while they exist: nobody else may hold
        them."""
        made = set(nodes)
        waiting = [x for node in nodes for x in node.inputs if x.node not in made]
        seen: set[Tensor] = set()
        while waiting:
            x = waiting.pop()
            if x not in seen and x.node not in made:
                seen.add(x)
                step = node_before(x)
                if step is not None:
                    self.unseen.append(step)
                    waiting.extend(alive(step.inputs))

    def all_passed(self) -> list[Node | RememberedNode]:
        """What the tape saw and did not follow, in order."""
        return [*self.passed, *self._waiting]

    def keep(self, nodes: Sequence[Node], tracked: set[Tensor]) -> None:
        """Keeps what a used-up tape followed, until its nodes' values are computed."""
        made = {y for node in nodes for y in node.outputs}
        self.watched = [ref(x) for x in tracked if x not in made]
        self._look_back([x for x in nodes if x.outputs[0].node is not x])
        self.followed = [x if x.outputs[0].node is x else RememberedNode(x) for x in nodes]
        self._await_run()

    def had_tracked(self, tensor: Tensor) -> bool:
        """Whether a used-up tape watched a tensor, or followed what computed it."""
        own = ref(tensor)
        made = (y is tensor or y is own for entry in self.followed for y in entry.outputs)
        return any(x is own for x in self.watched) or any(made)

    # Values that go to NumPy, and values that come from there.

    def leave(self, tensor: Tensor) -> None:
        self.left.append(Crossing(ref(tensor), here(), next_moment()))
        del self.left[:-_CROSSINGS]
        self._decide(set())  # by a number, so the outcome is unknown

    def arrive(self, tensor: Tensor) -> None:
        self.arrived.append(Crossing(ref(tensor), here(), next_moment()))
        del self.arrived[:-_CROSSINGS]

    # Decisions that Python makes by values.

    def decide(self, outcome: bool) -> None:
        self._decide({outcome})

    def _decide(self, outcomes: set[bool]) -> None:
        frame = user_frame()
        if frame is None:
            return
        source = Source(frame.f_code, instruction_of(frame.f_code, frame.f_lasti))
        key = id(source.code), source.offset
        before = self.decisions.pop(key, None)
        if before is not None:
            outcomes = before.outcomes | outcomes
        self.decisions[key] = Decision(source, outcomes, _names_of(frame))
        if len(self.decisions) > _CROSSINGS:
            del self.decisions[next(iter(self.decisions))]

    # Assignments to Variables.

    def assign(self, handle: Tensor, assignment: Assignment) -> None:
        self.assigned.append((handle, assignment))
        del self.assigned[:-_CROSSINGS]

    def with_assigned(
        self, entries: Sequence[Node | RememberedNode]
    ) -> Sequence[Node | RememberedNode]:
        """The entries, where a read of a Variable takes the value last assigned to that: its
        recorded input was only the value itself."""
        return [self._linked(x) if isinstance(x.op, Read) else x for x in entries]

    def _linked(self, read: Node | RememberedNode) -> Node | RememberedNode:
        step = RememberedNode(read) if isinstance(read, Node) else read
        given = step.inputs[1]
        handle = given() if type(given) is ref else given
        if handle is None:
            return read
        own = [x for other, x in self.assigned if other is handle]
        known = (*reversed(own), last_assignment(handle))
        last = next((x for x in known if x and x.moment < read.source.moment), None)
        return read if last is None else step.reading(last)
