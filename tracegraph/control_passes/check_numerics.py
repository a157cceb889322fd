"""A graph that watches itself: which node first makes nan or infinity from finite numbers.

Calls are inlined, so the nodes of their bodies are watched too. A call with its own gradient stays,
since its derivative depends on it: its computation is duplicated beside it to be watched, and the
compiler merges the two.

A branch also returns which of its nodes failed first. A loop carries that as a state, with the
step number; a while ends there. So does its reverse mode, which counts from the last step back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tracegraph.control.branch import Branch
from tracegraph.control.recorded_while import RecordedWhile
from tracegraph.control.scan import Loop, Scan
from tracegraph.control.while_loop import COUNT, While, WhileGradient
from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import Source, sourced
from tracegraph.core.types import TensorType, int32
from tracegraph.ir.builder import Builder, copy_inputs, inline, operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops import elementwise
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import Constant, constant
from tracegraph.ops.effect import Check, HostCall
from tracegraph.ops.movement import Movement
from tracegraph.ops.reduce import All, Min
from tracegraph.ops.shape import Concatenate, Reshape
from tracegraph.passes.specialise import specialise

MESSAGE = "a node makes nan or infinity of finite numbers"
#: These pass on the values they are given.
_HARMLESS = (Movement, BroadcastTo, elementwise.Neg, elementwise.Identity, elementwise.StopGradient)


@dataclasses.dataclass(frozen=True)
class Site:
    """A watched node: the message if it fails, its line, its operands as text, and the loops around
    it, outermost first."""

    fact: str
    source: Source
    operands: tuple[str, ...]
    loops: tuple[Source, ...] = ()


#: The site number that means that no site failed.
_NONE = 2**31 - 1


def watched(graph: Graph, assigned: Sequence[tuple[int, int]]) -> tuple[Graph, tuple[Site, ...]]:
    """`graph` with more outputs: whether all is well, the number of the first site that is not, and
    the step of each loop around it; and the sites. If there are no sites there is nothing to watch,
    and no outputs are added.

    `assigned` are pairs of an output, the new value of a Variable, and the input that holds its
    current value, which is kept if something is wrong.
    """
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        watch = _Watch(builder, [])
        watch.walk(graph, env)
        outputs = [env[y] for y in graph.outputs]
        if not watch.sites:
            return graph, ()
        number, *steps = watch.first(max(len(site.loops) for site in watch.sites))
        holds = elementwise.EQUAL(number, full(_NONE, number.type))
        for place, given in assigned:
            new, old = outputs[place], env[graph.inputs[given]]
            if new.type is old.type:
                outputs[place] = elementwise.SELECT(
                    BroadcastTo(new.type.shape, ())(holds), new, old
                )
        outputs += [Check(MESSAGE)(holds, number, *steps), number, *steps]
        return builder.finish(outputs), tuple(watch.sites)


class _Watch:
    """The sites so far, and for each one in a graph whether it made nan or infinity from finite
    numbers; `loops` are those around the graph."""

    def __init__(self, builder: Builder, sites: list[Site], loops: tuple[Source, ...] = ()) -> None:
        self.sites = sites
        self._builder, self._loops = builder, loops
        #: The sites in this graph, and whether each failed.
        self._numbers: list[int] = []
        self._failures: list[Tensor] = []
        #: The reports of branches and loops: the number of a site, and the steps of the loops.
        self._inside: list[Sequence[Tensor]] = []
        #: Whether all elements of a tensor are finite; None for one that always is.
        self._finite: dict[Tensor, Tensor | None] = {}

    def walk(self, graph: Graph, env: dict[Tensor, Tensor]) -> None:
        """Appends the nodes of `graph` and watches them; `env` maps its tensors to new ones."""
        is_masked = _masked(graph)
        for node in graph.nodes:
            inputs = tuple([env[x] for x in node.inputs])
            body = node.op.inlined
            if body is not None and node.op.is_transparent:
                outputs = self._opened(body, inputs)
            elif _has_sites_inside(node) and not all(map(is_masked, node.outputs)):
                with sourced(node.source), headroom():
                    outputs = self._entered(node, inputs)
                    if isinstance(node.op, WhileGradient):  # the steps add up, too
                        self._look_at(node, inputs, outputs, is_masked)
            else:
                outputs = self._builder.add(node.op, inputs, node.source)
                with sourced(node.source):
                    self._look_at(node, inputs, outputs, is_masked)
            env.update(zip(node.outputs, outputs, strict=True))

    def _opened(self, body: Graph, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        body = specialise(body, [x.type for x in inputs])
        env = dict(zip(body.inputs, inputs, strict=True))
        with headroom():
            self.walk(body, env)
        return tuple([env[y] for y in body.outputs])

    # Branches and loops.

    def _entered(self, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs of a branch or a loop, with its graphs watched."""
        op = node.op
        if isinstance(op, Branch):
            count, depth = len(op.branches[0].outputs), max(map(_depth, op.branches))
            branches = [self._branch(graph, depth) for graph in op.branches]
            outputs = self._builder.add(op.with_branches(branches), inputs, node.source)
            self._inside.append(outputs[count:])
            return outputs[:count]
        if isinstance(op, WhileGradient):
            return self._gone_back(op, node.source, inputs)
        assert isinstance(op, Loop)
        first, end = op.states, op.states + 3 + _depth_inside(op)
        if isinstance(op, While | RecordedWhile):
            self.walk(op.condition, dict(zip(op.condition.inputs, inputs, strict=True)))
        body = self._body(op, node.source)
        if isinstance(op, While | RecordedWhile):
            op = op.with_graphs(_while_all_is_well(op, body), body, op.constants)
        else:
            assert isinstance(op, Scan)
            op = op.with_body(body, op.constants, end)
        place = op.constants + first
        watch = [constant(0, int32), *_nothing(end - first - 2)]
        given = (*inputs[:place], *watch, *inputs[place:])
        outputs = self._builder.add(op, given, node.source)
        self._inside.append(outputs[first + 1 : end])
        return (*outputs[:first], *outputs[end:])

    def _gone_back(
        self, op: WhileGradient, source: Source, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The cotangents of a while, whose steps back are watched."""
        depth, count = _depth_inside(op), len(op.targets)
        with Builder(op.backward.name) as builder:
            env = copy_inputs(op.backward, builder)
            watch = _Watch(builder, self.sites, (*self._loops, source))
            held = _held(builder, depth)
            watch.walk(op.backward, env)
            outputs = [env[y] for y in op.backward.outputs]
            graph = builder.finish([*outputs, *_after_step(held, watch.first(depth))])
        parts = op.body, op.constants, graph, op.targets, op.checkpoints
        extras = [constant(0, int32), *_nothing(1 + depth)]
        watched = WhileGradient(*parts, len(extras))
        outputs = self._builder.add(watched, (*inputs, *extras), source)
        self._inside.append(outputs[count + 1 :])
        return outputs[:count]

    def _branch(self, graph: Graph, depth: int) -> Graph:
        """A branch that also returns its first failure."""
        with Builder(graph.name) as builder:
            env = copy_inputs(graph, builder)
            watch = _Watch(builder, self.sites, self._loops)
            watch.walk(graph, env)
            return builder.finish([*(env[y] for y in graph.outputs), *watch.first(depth)])

    def _body(self, op: Loop, source: Source) -> Graph:
        """The body of a loop with more states: the step number, and the first failure."""
        body, place = op.body, op.constants + op.states
        depth = _depth_inside(op)
        with Builder(body.name) as builder:
            env = {x: builder.input_like(x) for x in body.inputs[:place]}
            held = _held(builder, depth)
            env |= {x: builder.input_like(x) for x in body.inputs[place:]}
            watch = _Watch(builder, self.sites, (*self._loops, source))
            watch.walk(body, env)
            outputs = [env[y] for y in body.outputs]
            if isinstance(op, While | RecordedWhile):
                constants = [env[x] for x in body.inputs[: op.constants]]
                given = [*constants, *outputs[: op.states]]
                watch.walk(op.condition, dict(zip(op.condition.inputs, given, strict=True)))
            states = [*outputs[: op.states], *_after_step(held, watch.first(depth))]
            return builder.finish([*states, *outputs[op.states :]])

    # Nodes.

    def _look_at(
        self,
        node: Node,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        is_masked: Callable[[Tensor], bool],
    ) -> None:
        body = node.op.inlined
        if body is not None and not _calls_python(body):
            self._opened(body, inputs)
            return
        if isinstance(node.op, Constant) and np.isfinite(_numbers(node.op.value)).all():
            self._finite[outputs[0]] = None
        if not inputs or isinstance(node.op, _HARMLESS):
            return
        if all(map(is_masked, node.outputs)):
            self._finite.update((y, None) for y in outputs)
            return
        after = self._all_finite(outputs)
        if after is None:
            return
        before = self._all_finite(inputs)
        failed = elementwise.LogicalNot()(after)
        self._failures.append(failed if before is None else elementwise.AND(before, failed))
        self._numbers.append(len(self.sites))
        # For a selection, blame the values it selected from.
        masked = [x.node for x in node.inputs if x.node is not None and is_masked(x)]
        self.sites.append(_site(masked[0] if masked else node, self._loops))

    def _all_finite(self, tensors: tuple[Tensor, ...]) -> Tensor | None:
        found: Tensor | None = None
        for x in dict.fromkeys(tensors):
            flag = self._flag(x)
            if flag is not None:
                found = flag if found is None else elementwise.AND(found, flag)
        return found

    def _flag(self, x: Tensor) -> Tensor | None:
        if not x.type.dtype.is_differentiable:
            return None
        if x not in self._finite:
            self._finite[x] = All(None)(elementwise.IsFinite()(x))
        return self._finite[x]

    def first(self, depth: int) -> list[Tensor]:
        """The number of the first site that failed, `_NONE` if none did, and the step of each of
        the loops inside this graph, nested `depth` deep."""
        found = _nothing(depth)
        count = len(self._failures)
        if count:
            failed = Concatenate(0)(*(Reshape((1,))(x) for x in self._failures))
            numbers = Constant(np.array(self._numbers, np.int32))()
            none = full(_NONE, TensorType(int32, (count,)))
            found[0] = Min(None)(elementwise.SELECT(failed, numbers, none))
        for inside in self._inside:
            is_earlier = elementwise.LESS(inside[0], found[0])
            rest = _nothing(depth)[len(inside) :]
            found = [elementwise.SELECT(is_earlier, *pair) for pair in zip([*inside, *rest], found)]
        return found


def _held(builder: Builder, depth: int) -> list[Tensor]:
    """Inputs of a body: the number of the step, and what failed first before it."""
    names = ["step", "failed", *["failed_at"] * (1 + depth)]
    return [builder.input(COUNT, name) for name in names]


def _after_step(held: Sequence[Tensor], found: Sequence[Tensor]) -> list[Tensor]:
    """The same behind a step in which the first failure was `found`."""
    (step, *before), (number, *steps) = held, found
    is_first = elementwise.EQUAL(before[0], full(_NONE, COUNT))
    pairs = zip([number, step, *steps], before, strict=True)
    kept = [elementwise.SELECT(is_first, new, old) for new, old in pairs]
    return [elementwise.ADD(step, constant(1, int32)), *kept]


def _nothing(depth: int) -> list[Tensor]:
    """The report of a graph in which nothing failed."""
    return [full(_NONE, COUNT), *(constant(0, int32) for _ in range(depth))]


def _depth(graph: Graph) -> int:
    """The maximum nesting depth of loops in a graph."""
    ops = (node.op for node in graph.nodes if node.op.regions)
    return max(
        (isinstance(op, (Scan, While, RecordedWhile)) + _depth_inside(op) for op in ops), default=0
    )


def _depth_inside(op: Op) -> int:
    return max(_depth(region.graph) for region in op.regions)


def _has_sites_inside(node: Node) -> bool:
    """Whether a node is a branch or a loop whose results may be nan or infinite."""
    is_entered = isinstance(node.op, (Branch, Loop))
    return is_entered and any(_has_sites(region.graph) for region in node.op.regions)


def _has_sites(graph: Graph) -> bool:
    return any(
        any(y.type.dtype.is_differentiable for y in node.outputs) and bool(node.inputs)
        for inner in graph.graphs()
        for node in inner.nodes
    )


def _while_all_is_well(loop: While | RecordedWhile, body: Graph) -> Graph:
    """The condition of a loop that ends with the first step that failed."""
    with Builder(loop.condition.name) as builder:
        inputs = [builder.input_like(x) for x in body.inputs]
        place = loop.constants + loop.states
        (goes_on,) = inline(loop.condition, inputs[:place])
        return builder.finish(
            [elementwise.AND(goes_on, elementwise.EQUAL(inputs[place + 1], full(_NONE, COUNT)))]
        )


def _masked(graph: Graph) -> Callable[[Tensor], bool]:
    """A predicate for tensors created by a derivative rule and read only by selections: such rules
    mask non-finite values this way, and only the selected values count."""
    read = set(graph.outputs)
    for node in graph.nodes:
        if not isinstance(node.op, elementwise.IsFinite):
            read.update(node.inputs[:1] if isinstance(node.op, elementwise.Select) else node.inputs)

    def is_masked(x: Tensor) -> bool:
        return x not in read and x.node is not None and bool(x.node.source.roles)

    return is_masked


def _calls_python(body: Graph) -> bool:
    return any(isinstance(node.op, HostCall) for inner in body.graphs() for node in inner.nodes)


def _numbers(value: np.ndarray) -> np.ndarray:
    """A constant in a dtype that NumPy can inspect: it does not know all the small types."""
    is_known = np.issubdtype(value.dtype, np.number) or value.dtype == bool
    return value if is_known else value.astype(np.float32)


def _site(node: Node, loops: tuple[Source, ...]) -> Site:
    types = ", ".join(str(y.type) for y in node.outputs if y.type.dtype.is_differentiable)
    roles = " and ".join(node.source.roles)
    by = f"; {roles} derived it of this line" if roles else ""
    fact = f"{node.op.name}: {types} holds nan or infinity, and the operands are finite{by}"
    return Site(fact, node.source, tuple(map(operand_text, node.inputs)), loops)
