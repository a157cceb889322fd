"""A graph that watches itself: which node first makes nan or infinity from finite numbers.

Calls are inlined, so the nodes of their bodies are watched too. A call with its own gradient stays,
since its derivative depends on it: its computation is duplicated beside it to be watched, and the
compiler merges the two.

The regions of a branch or a loop hand on which of their nodes failed first; in a loop with the
number of the step. A while ends there. Its reverse mode counts from the last step back. Of one node
they may hand on the bounds of its operands too, where no part can run again to ask for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import Source, sourced
from tracegraph.core.types import TOKEN, TensorType, float32, int32
from tracegraph.ir.builder import Builder, copy_inputs, inline, operand_text
from tracegraph.ir.op import Insertion, Op, Region
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops import elementwise
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import Constant, constant
from tracegraph.ops.effect import Check, HostCall
from tracegraph.ops.movement import Movement
from tracegraph.ops.reduce import All, Max, Min
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
#: The type of the number of a site, and of a step.
_NUMBER = TensorType(int32)
#: How many bounds of operands a report has place for: two for each operand.
_MOST_BOUNDS = 12


def watched(
    graph: Graph, assigned: Sequence[tuple[int, int]], measured: int = _NONE
) -> tuple[Graph, tuple[Site, ...]]:
    """`graph` with more outputs: whether all is well, the number of the first site that is not, and
    the step of each loop around it; and the sites. If there are no sites there is nothing to watch,
    and no outputs are added.

    `assigned` are pairs of an output, the new value of a Variable, and the input that holds its
    current value, which is kept if something is wrong. If the site that fails first is number
    `measured`, the bits of the least and the greatest number of each of its operands follow its
    steps, as float32.
    """
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        watch = _NumericsWatch(builder, [], measured=measured)
        watch.walk(graph, env)
        outputs = [env[y] for y in graph.outputs]
        if not watch.sites:
            return graph, ()
        depth = max(len(site.loops) for site in watch.sites)
        number, *steps = watch.first(depth + watch.room)
        holds = _is_well(number)
        for place, given in assigned:
            new, old = outputs[place], env[graph.inputs[given]]
            if new.type is old.type:
                outputs[place] = elementwise.SELECT(
                    BroadcastTo(new.type.shape, ())(holds), new, old
                )
        outputs += [Check(MESSAGE)(holds, number, *steps), number, *steps]
        return builder.finish(outputs), tuple(watch.sites)


class _NumericsWatch:
    """The sites so far, and for each one in a graph whether it made nan or infinity from finite
    numbers; `loops` are those around the graph, and `measured` is the number of a site of whose
    operands the bounds are wanted."""

    def __init__(
        self,
        builder: Builder,
        sites: list[Site],
        loops: tuple[Source, ...] = (),
        measured: int = _NONE,
    ) -> None:
        self.sites = sites
        self._builder, self._loops, self._measured = builder, loops, measured
        #: The bounds of the operands of the measured site, if it is in this graph.
        self._bounds: list[Tensor] = []
        #: The sites in this graph, and whether each failed.
        self._numbers: list[int] = []
        self._failures: list[Tensor] = []
        #: The reports of branches and loops: the number of a site, and the steps of the loops.
        self._inside: list[Sequence[Tensor]] = []
        #: Whether all elements of a tensor are finite; None for one that always is.
        self._finite: dict[Tensor, Tensor | None] = {}

    @property
    def room(self) -> int:
        """The room in a report for numbers other than those of the site and the steps."""
        return 0 if self._measured == _NONE else _MOST_BOUNDS

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
                    if node.op.adds_up:
                        self._look_at(node, env, outputs, is_masked)
            else:
                outputs = self._builder.add(node.op, inputs, node.source)
                with sourced(node.source):
                    self._look_at(node, env, outputs, is_masked)
            env.update(zip(node.outputs, outputs, strict=True))

    def _opened(self, body: Graph, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        body = specialise(body, [x.type for x in inputs])
        env = dict(zip(body.inputs, inputs, strict=True))
        with headroom():
            self.walk(body, env)
        return tuple([env[y] for y in body.outputs])

    # Branches and loops.

    def _entered(self, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs of a branch or a loop, whose regions hand on what failed first."""
        op, at = node.op, node.op.insertion
        assert at is not None
        for region in op.regions:
            if region.is_condition:  # it is computed before the first step, too
                self._ask(region, dict(enumerate(inputs)))
        depth = _depth_inside(op) + self.room
        graphs = [self._region(node, region, at, depth) for region in op.regions]
        start = _start(depth, op.is_loop)
        given = (*inputs[: at.carried], *start, *inputs[at.carried :])
        outputs = self._builder.add(op.with_regions(graphs, carried=len(start)), given, node.source)
        end = at.returned + len(start)
        self._inside.append(outputs[at.returned + op.is_loop : end])
        return (*outputs[: at.returned], *outputs[end:])

    def _ask(self, condition: Region, given: Mapping[int, Tensor]) -> None:
        """Watches a condition, where `given` are the inputs of the op."""
        inputs = [given[i] for i in condition.inputs]
        self.walk(condition.graph, dict(zip(condition.graph.inputs, inputs, strict=True)))

    def _region(self, node: Node, region: Region, at: Insertion, depth: int) -> Graph:
        """The graph of a region that also takes what failed first before it, and returns that
        again."""
        op, graph = node.op, region.graph
        if not (region.outputs or region.is_condition):
            return graph
        place, end = region.input_before(at.carried), region.output_before(at.returned)
        with Builder(graph.name) as builder:
            before = [builder.input_like(x) for x in graph.inputs[:place]]
            held = _held(builder, depth, op.is_loop)
            inputs = [*before, *(builder.input_like(x) for x in graph.inputs[place:])]
            if region.is_condition:  # the loop ends with the first step that failed
                (goes_on,) = inline(graph, inputs)
                return builder.finish([elementwise.AND(goes_on, _is_well(held[op.is_loop]))])
            loops = (*self._loops, node.source) if op.is_loop else self._loops
            watch = _NumericsWatch(builder, self.sites, loops, self._measured)
            env = dict(zip(graph.inputs, inputs, strict=True))
            watch.walk(graph, env)
            outputs = [env[y] for y in graph.outputs]
            given = dict(zip(region.inputs, inputs, strict=True))
            given.update((region.inputs[i], outputs[y]) for y, i in region.carried)
            for other in op.regions:
                if other.is_condition:
                    watch._ask(other, given)
            handed_on = _after_run(held, watch.first(depth), op.is_loop)
            return builder.finish([*outputs[:end], *handed_on, *outputs[end:]])

    # Nodes.

    def _look_at(
        self,
        node: Node,
        env: Mapping[Tensor, Tensor],
        outputs: tuple[Tensor, ...],
        is_masked: Callable[[Tensor], bool],
    ) -> None:
        inputs = tuple([env[x] for x in node.inputs])
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
        # For a selection, blame the values it selected from.
        masked = [x.node for x in node.inputs if x.node is not None and is_masked(x)]
        blamed = masked[0] if masked else node
        if len(self.sites) == self._measured:
            operands = [env[x] for x in blamed.inputs if x.type is not TOKEN]
            self._bounds = [y for x in operands for y in _bounds(x)][:_MOST_BOUNDS]
        self._numbers.append(len(self.sites))
        self.sites.append(_site(blamed, self._loops))

    def _all_finite(self, tensors: tuple[Tensor, ...]) -> Tensor | None:
        found: Tensor | None = None
        for x in dict.fromkeys(tensors):
            flag = self._flag(x)
            if flag is not None:
                found = flag if found is None else elementwise.AND(found, flag)
        return found

    def _flag(self, x: Tensor) -> Tensor | None:
        if not may_be_nan(x):
            return None
        if x not in self._finite:
            self._finite[x] = All(None)(elementwise.IsFinite()(computable(x)))
        return self._finite[x]

    def first(self, depth: int) -> list[Tensor]:
        """The number of the first site that failed, `_NONE` if none did, and the step of each of
        the loops inside this graph, nested `depth` deep; or the bounds of its operands, after the
        steps."""
        found = _nothing(depth)
        count = len(self._failures)
        if count:
            failed = Concatenate(0)(*(Reshape((1,))(x) for x in self._failures))
            numbers = Constant(np.array(self._numbers, np.int32))()
            none = full(_NONE, TensorType(int32, (count,)))
            found[0] = Min(None)(elementwise.SELECT(failed, numbers, none))
            found[1 : 1 + len(self._bounds)] = self._bounds
        for inside in self._inside:
            is_earlier = elementwise.LESS(inside[0], found[0])
            rest = _nothing(depth)[len(inside) :]
            found = [elementwise.SELECT(is_earlier, *pair) for pair in zip([*inside, *rest], found)]
        return found


def _held(builder: Builder, depth: int, is_loop: bool) -> list[Tensor]:
    """Inputs of a region: the number of the step, in a loop, and what failed first before it."""
    names = [*["step"] * is_loop, "failed", *["failed_at"] * (is_loop + depth)]
    return [builder.input(_NUMBER, name) for name in names]


def _start(depth: int, is_loop: bool) -> list[Tensor]:
    """The same before the first run of a region."""
    return [*(constant(0, int32) for _ in range(is_loop)), *_nothing(is_loop + depth)]


def _after_run(held: Sequence[Tensor], found: Sequence[Tensor], is_loop: bool) -> list[Tensor]:
    """The same after a run of the region in which the first failure was `found`."""
    step, before = held[:is_loop], held[is_loop:]
    is_first = _is_well(before[0])
    pairs = zip([found[0], *step, *found[1:]], before, strict=True)
    kept = [elementwise.SELECT(is_first, new, old) for new, old in pairs]
    return [*(elementwise.ADD(x, constant(1, int32)) for x in step), *kept]


def _is_well(number: Tensor) -> Tensor:
    """Whether the number of a site says that none failed."""
    return elementwise.EQUAL(number, full(_NONE, _NUMBER))


def _nothing(depth: int) -> list[Tensor]:
    """The report of a graph in which nothing failed."""
    return [full(_NONE, _NUMBER), *(constant(0, int32) for _ in range(depth))]


def _depth(graph: Graph) -> int:
    """The maximum nesting depth of loops in a graph."""
    ops = (node.op for node in graph.nodes if node.op.regions)
    return max((op.is_loop + _depth_inside(op) for op in ops), default=0)


def _depth_inside(op: Op) -> int:
    return max(_depth(region.graph) for region in op.regions)


def _has_sites_inside(node: Node) -> bool:
    """Whether a node is a branch or a loop whose results may be nan or infinite."""
    is_entered = node.op.insertion is not None
    return is_entered and any(_has_sites(region.graph) for region in node.op.regions)


def _has_sites(graph: Graph) -> bool:
    return any(
        any(map(may_be_nan, node.outputs)) and bool(node.inputs) for node in graph.all_nodes()
    )


def may_be_nan(x: Tensor) -> bool:
    """Whether the numbers of a tensor may be nan or infinite."""
    return x.type.dtype.is_differentiable or x.type.dtype.is_storage


def computable(x: Tensor) -> Tensor:
    """A tensor, converted if ops take none of its type: those of 8 bits only store numbers."""
    return elementwise.Cast(float32)(x) if x.type.dtype.is_storage else x


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
    return any(isinstance(node.op, HostCall) for node in body.all_nodes())


def _numbers(value: np.ndarray) -> np.ndarray:
    """A constant in a dtype that NumPy can inspect: it does not know all the small types."""
    is_known = np.issubdtype(value.dtype, np.number) or value.dtype == bool
    return value if is_known else value.astype(np.float32)


def _bounds(x: Tensor) -> list[Tensor]:
    """The bits of the least and the greatest number of a tensor, or absolute value, as float32."""
    y = elementwise.ABS(x) if x.type.dtype.is_complex else x
    numbers = y if y.type.dtype is float32 else elementwise.Cast(float32)(y)
    return [elementwise.Bitcast(int32)(bound(None)(numbers)) for bound in (Min, Max)]


def non_finite_fact(node: Node, cause: str) -> str:
    """What a message says of a node whose results are not finite."""
    types = ", ".join(str(y.type) for y in node.outputs if may_be_nan(y))
    roles = " and ".join(node.source.roles)
    by = f"; {roles} derived it from this line" if roles else ""
    return f"{node.op.name}: {types} holds nan or infinity, and {cause}{by}"


def _site(node: Node, loops: tuple[Source, ...]) -> Site:
    fact = non_finite_fact(node, "the operands are finite")
    operands = tuple(operand_text(x) for x in node.inputs if x.type is not TOKEN)
    return Site(fact, node.source, operands, loops)
