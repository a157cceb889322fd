"""Branches and loops on padded operands: their graphs are padded like the enclosing graph, and take
the true sizes as inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegraph.calls.call import applied
from tracegraph.control.branch import Branch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While, WhileGradient
from tracegraph.core.types import TensorType, bool_, int32
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.elementwise import SELECT
from tracegraph.padding.layout import Padding
from tracegraph.passes.specialise import specialise

#: Computes the outputs of a graph from its inputs, on padded operands.
Walk = Callable[[Graph, Sequence[Tensor], Padding], Sequence[Tensor]]


def branch(padding: Padding, op: Branch, xs: Sequence[Tensor], walk: Walk) -> Sequence[Tensor]:
    decider, *rest = xs
    given = _plainly(padding, rest)
    branches = [_Region(padding, x, 0, walk).of(given) for x in op.branches]
    return _made(padding, op.with_branches(branches), [decider, *_sizes(padding), *given])


def while_loop(padding: Padding, op: While, xs: Sequence[Tensor], walk: Walk) -> Sequence[Tensor]:
    given = _plainly(padding, xs)
    body, condition = (
        _Region(padding, x, op.constants, walk).of(given) for x in (op.body, op.condition)
    )
    sizes = _sizes(padding)
    made = op.with_graphs(condition, body, op.constants + len(sizes))
    return _made(padding, made, [*given[: op.constants], *sizes, *given[op.constants :]])


def while_gradient(
    padding: Padding, op: WhileGradient, xs: Sequence[Tensor], walk: Walk
) -> Sequence[Tensor]:
    count, *rest = xs
    given = _plainly(padding, rest)
    body = _Region(padding, op.body, op.constants, walk).of(given[: len(op.body.inputs)])
    backward = _Region(padding, op.backward, op.constants, walk).of(given)
    sizes = _sizes(padding)
    constants = op.constants + len(sizes)
    targets = tuple(i if i < op.constants else i + len(sizes) for i in op.targets)
    made = WhileGradient(body, constants, backward, targets, op.checkpoints, op.extras)
    return _made(padding, made, [count, *given[: op.constants], *sizes, *given[op.constants :]])


def scan(padding: Padding, op: Scan, xs: Sequence[Tensor], walk: Walk) -> Sequence[Tensor]:
    """With open length, it keeps its states through the steps that padding adds."""
    given = _plainly(padding, xs)
    steps = op.types_inside(op.regions[0], [x.type for x in given])
    region = _Region(padding, op.body, op.constants, walk)
    is_open = padding.is_open(op.length)
    body = region.of(given, steps, op.states if is_open else None)
    sizes = _sizes(padding)
    inputs = [*given[: op.constants], *sizes, *given[op.constants :]]
    if is_open:
        inputs.append(padding.flags(op.length))
    return _made(padding, op.with_body(body, op.constants + len(sizes), op.states), inputs)


class _Region:
    """A graph of an op, with the true sizes as inputs from position `at` on."""

    def __init__(self, padding: Padding, graph: Graph, at: int, walk: Walk) -> None:
        self._padding, self._graph, self._at, self._walk = padding, graph, at, walk

    def of(
        self,
        given: Sequence[Tensor],
        types: Sequence[TensorType] | None = None,
        states: int | None = None,
    ) -> Graph:
        """The graph for the operands `given`, which have these types inside. With `states` it has
        one more input at the end: where that is false, it passes its input states on."""
        types = [x.type for x in given] if types is None else types
        graph = specialise(self._graph, types)
        with Builder(graph.name) as builder:
            before = [builder.input_like(x) for x in graph.inputs[: self._at]]
            sizes = {
                name: builder.input(TensorType(int32), f"size.{name}")
                for name in self._padding.sizes
            }
            inputs = [*before, *(builder.input_like(x) for x in graph.inputs[self._at :])]
            inner = Padding(sizes)
            for x in inputs:
                inner.note(x, inner.plain(x.type.shape))
            outputs = _plainly(inner, self._walk(graph, inputs, inner))
            if states is not None:
                is_step = builder.input(TensorType(bool_), "is_step")
                pairs = zip(outputs[:states], inputs[self._at :])
                outputs[:states] = [_where(is_step, new, old) for new, old in pairs]
            self._padding.growing |= inner.growing
            return builder.finish(outputs)


def _where(flag: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return SELECT(BroadcastTo(old.type.shape, ())(flag) if old.ndim else flag, new, old)


def _sizes(padding: Padding) -> list[Tensor]:
    return [*padding.sizes.values()]


def _plainly(padding: Padding, xs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with their elements first."""
    found = []
    for x in xs:
        for axis in range(x.ndim):
            x = x if padding.is_plain(x, axis) else padding.compact(x, axis)
        found.append(x)
    return found


def _made(padding: Padding, op: object, inputs: Sequence[Tensor]) -> list[Tensor]:
    outputs = applied(op, inputs)  # type: ignore[arg-type]
    return [padding.note(y, padding.plain(y.type.shape)) for y in outputs]


_RULES = {Branch: branch, While: while_loop, WhileGradient: while_gradient, Scan: scan}


def rule_of(op: Op) -> Callable[..., Sequence[Tensor]] | None:
    """The rule for a branch or a loop on padded operands; None for any other op."""
    return next((rule for kind, rule in _RULES.items() if isinstance(op, kind)), None)
