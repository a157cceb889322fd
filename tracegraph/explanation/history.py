"""What a tape remembers beside the nodes that it follows, so that a None can be explained.

Nodes that the tape saw and did not follow are kept as they are while they are pending, which costs
next to nothing, and as `RememberedNode`s from then on: those hold no tensor, since a tensor
that is held is materialised.
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

#: A tape forgets the oldest of the nodes that it did not follow when there are more of them.
_LIMIT = 1 << 16
#: How many values that went to NumPy, or came from there, a tape remembers.
_CROSSINGS = 1 << 10


class RememberedNode:
    """A node as it is remembered: its tensors are weak references, which stand for them.

    Where only the ends are known, of a value that was computed and let go of its node, there is
    no `op`. What stands for a Variable is held, since it has no value.
    """

    __slots__ = ("assigned_at", "input_types", "inputs", "op", "output_types", "outputs", "source")

    #: Of the read of a Variable: where it was given what is read, if that is known.
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
        """The same read of a Variable, with the value that was assigned as what it takes."""
        step = copy.copy(self)
        step.inputs = (assignment.value, self.inputs[1])
        step.assigned_at = assignment.source
        return step

    @staticmethod
    def between(inputs: tuple[Any, ...], output: Tensor, source: Source) -> RememberedNode:
        """A step from inputs, or what is known of them, to a value that has no node any more."""
        step = RememberedNode.__new__(RememberedNode)
        step.op, step.source, step.assigned_at = None, source, None
        step.inputs, step.outputs = inputs, (ref(output),)
        step.input_types, step.output_types = (), (output.type,)
        return step


def node_before(x: Tensor) -> RememberedNode | None:
    """What made a tensor, as far as it is known."""
    handle = variable_read_by(x)
    if handle is not None:
        return RememberedNode.between((handle,), x, UNKNOWN)
    if x.node is not None:
        return None if x.node.op is INPUT else RememberedNode(x.node)
    provenance = provenance_of(x)
    return None if provenance is None else RememberedNode.between(provenance, x, x.source)


def alive(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among weak references and tensors that are still there."""
    for x in tensors:
        found = x() if type(x) is ref else x
        if found is not None:
            yield found


def references(outputs: tuple[Any, ...]) -> tuple[ref[Tensor], ...]:
    """Weak references to the outputs of a node; one that was let go of has them already."""
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
    """A value that Python asked for and may decide by: where, the answers that were given there if
    it was a truth, and what the names in that code stood for."""

    source: Source
    outcomes: set[bool]
    names: dict[str, ref[Any]]


def _names_of(frame: FrameType) -> dict[str, ref[Any]]:
    """What the names in the code of a frame stand for, as far as it can be held weakly."""
    code, own = frame.f_code, frame.f_locals
    names = (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
    found = {}
    for name in names:
        value = own.get(name, frame.f_globals.get(name))
        if value is not None and type(value).__weakrefoffset__:
            found[name] = ref(value)
    return found


class Span:
    """Moments between which a tape recorded, and what ended that: "left", "stopped" or "used"."""

    __slots__ = ("cause", "start", "stop")

    def __init__(self) -> None:
        self.start = next_moment()
        self.stop: int | None = None
        self.cause = "left"


class History:
    """What a tape saw and did not follow, when it recorded, and what went to NumPy and back."""

    def __init__(self) -> None:
        self._builder: Builder | None = None
        #: Whether `tape.reset()` made it, and what came before is forgotten.
        self.is_after_reset = False
        self.spans: list[Span] = []
        self.passed: list[RememberedNode] = []
        self.left: list[Crossing] = []
        self.arrived: list[Crossing] = []
        #: With the handles of the Variables.
        self.assigned: list[tuple[Tensor, Assignment]] = []
        #: By code and instruction, the latest last.
        self.decisions: dict[tuple[int, int], Decision] = {}
        #: Nodes of `passed` that are still pending; at the end of it.
        self._waiting: list[Node] = []
        #: What the nodes that have run were made of, and the tape did not see.
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
        if not outputs or outputs[0].node is not node:  # made already: nobody waits for it
            self.passed.append(RememberedNode(node))
            return
        if not self._waiting:
            self._await_run()
        self._waiting.append(node)

    def _await_run(self) -> None:
        if isinstance(self._builder, Pending):
            self._builder.keepers.append(weakref.ref(self))

    def let_go(self) -> None:
        """Turns the nodes that are kept as they are into steps: they have run."""
        self._look_back(self._waiting)
        self.passed.extend(map(RememberedNode, self._waiting))
        self._waiting.clear()
        if self.followed:
            self._look_back([x for x in self.followed if isinstance(x, Node)])
            self.followed = [RememberedNode(x) if isinstance(x, Node) else x for x in self.followed]
        for known in (self.passed, self.unseen):
            del known[:-_LIMIT]

    def _look_back(self, nodes: Sequence[Node]) -> None:
        """Remembers what nodes were made of, while it is there: nobody else may hold it."""
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
        """Keeps what a tape that is used up followed, until the values of its nodes are made."""
        made = {y for node in nodes for y in node.outputs}
        self.watched = [ref(x) for x in tracked if x not in made]
        self._look_back([x for x in nodes if x.outputs[0].node is not x])
        self.followed = [x if x.outputs[0].node is x else RememberedNode(x) for x in nodes]
        self._await_run()

    def had_tracked(self, tensor: Tensor) -> bool:
        """Whether a tape that is used up watched a tensor, or followed what made it."""
        own = ref(tensor)
        made = (y is tensor or y is own for entry in self.followed for y in entry.outputs)
        return any(x is own for x in self.watched) or any(made)

    # What goes to NumPy, and what comes from there.

    def leave(self, tensor: Tensor) -> None:
        self.left.append(Crossing(ref(tensor), here(), next_moment()))
        del self.left[:-_CROSSINGS]
        self._decide(set())  # by a number, in what way nobody knows

    def arrive(self, tensor: Tensor) -> None:
        self.arrived.append(Crossing(ref(tensor), here(), next_moment()))
        del self.arrived[:-_CROSSINGS]

    # What Python decides by values.

    def decide(self, outcome: bool) -> None:
        self._decide({outcome})

    def _decide(self, outcomes: set[bool]) -> None:
        frame = user_frame()
        if frame is None:
            return
        source = Source(frame.f_code, instruction_of(frame))
        key = id(source.code), source.offset
        before = self.decisions.pop(key, None)
        if before is not None:
            outcomes = before.outcomes | outcomes
        self.decisions[key] = Decision(source, outcomes, _names_of(frame))
        if len(self.decisions) > _CROSSINGS:
            del self.decisions[next(iter(self.decisions))]

    # What is assigned to Variables.

    def assign(self, handle: Tensor, assignment: Assignment) -> None:
        self.assigned.append((handle, assignment))
        del self.assigned[:-_CROSSINGS]

    def with_assigned(
        self, entries: Sequence[Node | RememberedNode]
    ) -> Sequence[Node | RememberedNode]:
        """The entries, where a read of a Variable takes what that was given last: what it took
        was the value alone."""
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
