"""A graph that watches itself: which node is the first to make nan or infinity of finite numbers.

Calls are opened in place, so the nodes of their bodies are watched too. A call with a gradient of
its own stays, since its derivative hangs on it: what it computes stands a second time beside it to
be watched, and the compiler merges the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import Source, sourced
from tracegraph.core.types import TensorType, int32
from tracegraph.ir.builder import Builder, copy_inputs, operand_text
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import Constant, Iota
from tracegraph.ops.effect import Check, HostCall
from tracegraph.ops.elementwise import (
    AND,
    EQUAL,
    SELECT,
    Identity,
    IsFinite,
    LogicalNot,
    Neg,
    Select,
    StopGradient,
)
from tracegraph.ops.movement import Movement
from tracegraph.ops.reduce import All, Min
from tracegraph.ops.shape import Concatenate, Reshape
from tracegraph.passes.specialise import specialise

MESSAGE = "a node makes nan or infinity of finite numbers"
#: These hand on what they are given.
_HARMLESS = (Movement, BroadcastTo, Neg, Identity, StopGradient)


@dataclasses.dataclass(frozen=True)
class Site:
    """A node that is watched: what is wrong if it fails, its line, and its operands as texts."""

    fact: str
    source: Source
    operands: tuple[str, ...]


def watched(graph: Graph, assigned: Sequence[tuple[int, int]]) -> tuple[Graph, tuple[Site, ...]]:
    """`graph` with two more outputs, whether all is well and the number of the first site that is
    not, and the sites. Without sites there is nothing to watch, and no output more.

    `assigned` are pairs of an output, the new value of a Variable, and the input that is its value
    now: that stays if something is wrong.
    """
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        watch = _Watch(builder)
        watch.walk(graph, env)
        outputs = [env[y] for y in graph.outputs]
        if not watch.sites:
            return graph, ()
        number = watch.first()
        holds = EQUAL(number, full(len(watch.sites), number.type))
        for place, given in assigned:
            new, old = outputs[place], env[graph.inputs[given]]
            if new.type is old.type:
                outputs[place] = SELECT(BroadcastTo(new.type.shape, ())(holds), new, old)
        outputs += [Check(MESSAGE)(holds, number), number]
        return builder.finish(outputs), tuple(watch.sites)


class _Watch:
    """The sites so far, and for each whether it made nan or infinity of finite numbers."""

    def __init__(self, builder: Builder) -> None:
        self.sites: list[Site] = []
        self._builder = builder
        self._failures: list[Tensor] = []
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
        failed = LogicalNot()(after)
        self._failures.append(failed if before is None else AND(before, failed))
        # Of a selection the one to blame is what it selected from.
        masked = [x.node for x in node.inputs if x.node is not None and is_masked(x)]
        self.sites.append(_site(masked[0] if masked else node))

    def _all_finite(self, tensors: tuple[Tensor, ...]) -> Tensor | None:
        found: Tensor | None = None
        for x in dict.fromkeys(tensors):
            flag = self._flag(x)
            if flag is not None:
                found = flag if found is None else AND(found, flag)
        return found

    def _flag(self, x: Tensor) -> Tensor | None:
        if not x.type.dtype.is_differentiable:
            return None
        if x not in self._finite:
            self._finite[x] = All(None)(IsFinite()(x))
        return self._finite[x]

    def first(self) -> Tensor:
        """The number of the first site that failed; that of all sites if none did."""
        count = len(self._failures)
        failed = Concatenate(0)(*(Reshape((1,))(x) for x in self._failures))
        none = full(count, TensorType(int32, (count,)))
        return Min(None)(SELECT(failed, Iota(count, int32)(), none))


def _masked(graph: Graph) -> Callable[[Tensor], bool]:
    """Says of a tensor whether a rule made it and only selections read it: the rules of derivatives
    take what is not finite away like this, and it counts where it was selected."""
    read = set(graph.outputs)
    for node in graph.nodes:
        if not isinstance(node.op, IsFinite):
            read.update(node.inputs[:1] if isinstance(node.op, Select) else node.inputs)

    def is_masked(x: Tensor) -> bool:
        return x not in read and x.node is not None and bool(x.node.source.roles)

    return is_masked


def _calls_python(body: Graph) -> bool:
    return any(isinstance(node.op, HostCall) for inner in body.graphs() for node in inner.nodes)


def _numbers(value: np.ndarray) -> np.ndarray:
    """A constant as NumPy can ask it: it does not know of all the small types."""
    is_known = np.issubdtype(value.dtype, np.number) or value.dtype == bool
    return value if is_known else value.astype(np.float32)


def _site(node: Node) -> Site:
    types = ", ".join(str(y.type) for y in node.outputs if y.type.dtype.is_differentiable)
    roles = " and ".join(node.source.roles)
    by = f"; {roles} derived it of this line" if roles else ""
    fact = f"{node.op.name}: {types} holds nan or infinity, and the operands are finite{by}"
    return Site(fact, node.source, tuple(map(operand_text, node.inputs)))
