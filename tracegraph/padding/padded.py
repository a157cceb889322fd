"""A graph of open sizes that computes on padded inputs what it would compute on unpadded ones.

Each op has a rule that keeps one invariant: where the operands have elements, whatever their
padding contains, the result has the right elements, and the rule says where they are. So rows that
do not interact are unaffected, reductions over an open axis see a neutral element instead of
padding, and sizes used as values are the true ones. Padding is masked by a selection before
anything is combined, also in gradients, so nan and infinity computed from padding stay in the
padding.

An op without a rule is accepted if its `depends` shows that rows do not interact in it. Everything
else is refused, naming the node and its line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tracegraph.calls.call import applied
from tracegraph.core.recursion_limit import headroom
from tracegraph.core.shapes import Dim, Size
from tracegraph.core.source import sourced
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import ShapeError, fail
from tracegraph.ir.builder import Builder, copy_inputs, current, operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import Iota, RuntimeSize
from tracegraph.ops.elementwise import Cast
from tracegraph.padding.axis_layouts import Padding
from tracegraph.padding.padding_rules import RULES, Refusal, proved, sizes_in
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import bound_names, specialise


@dataclasses.dataclass(frozen=True)
class Padded:
    """A graph for padded inputs: after its arguments it takes a true size for each of `names`."""

    graph: Graph
    names: tuple[str, ...]
    #: The outputs of the original graph that this one has.
    outputs: tuple[int, ...]
    #: Sizes that must not exceed their padded ones.
    growing: tuple[Size, ...]


def padded(
    graph: Graph, argument_count: int, results: range, state: range, found: Sequence[str] = ()
) -> Padded:
    """`graph` for arguments that are padded at the end of each of their open axes.

    After the arguments it takes the true value of each named size that they bring or that the run
    has `found`, as an int32 scalar. Outputs at `results` may be padded, those at `state` may not;
    others that would be are dropped. Raises ShapeError naming the node whose result padding would
    change.
    """
    names = tuple(dict.fromkeys((*_names(graph, argument_count), *found)))
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        scalars = {name: builder.input(TensorType(int32), f"size.{name}") for name in names}
        padding = Padding(scalars)
        for x in graph.inputs[:argument_count]:
            padding.note(env[x], padding.plain(x.type.shape))
        walk(graph, env, padding)
        kept = [
            place
            for place, y in enumerate(graph.outputs)
            if place in results or not _is_open(padding, y, place in state)
        ]
        made = builder.finish([_plainly(padding, env[graph.outputs[place]]) for place in kept])
    inputs = [env[x] for x in graph.inputs]
    inputs[argument_count:argument_count] = scalars.values()
    made = Graph(graph.name, tuple(inputs), made.nodes, made.outputs)
    return Padded(simplify(made), names, tuple(kept), tuple(padding.growing))


def _names(graph: Graph, argument_count: int) -> tuple[str, ...]:
    """The names of sizes that the arguments bring, and no other input."""
    arguments, rest = graph.inputs[:argument_count], graph.inputs[argument_count:]
    for x in graph.inputs:
        if x.type.rank is None:
            fail(
                ShapeError,
                f"bucket_sizes: the rank of {x.type} is open, so its axes cannot be padded",
                source=x.source,
                operands=[operand_text(x)],
                fix="give the rank in the TensorSpec, such as tg.TensorSpec([None, None])",
            )
    fixed = set().union(*(bound_names(x.type) for x in rest))
    found = (str(n) for x in arguments for n in x.type.shape if isinstance(n, Dim) and n.name)
    return tuple(name for name in dict.fromkeys(found) if name not in fixed)


def walk(graph: Graph, env: dict[Tensor, Tensor], padding: Padding) -> None:
    """Appends the nodes of `graph` in their form for padded operands, with calls inlined."""
    for node in graph.nodes:
        inputs = tuple([env[x] for x in node.inputs])
        with sourced(node.source):
            body = node.op.inlined
            if padding.finds_sizes and type(node.op) is RuntimeSize:
                padding.sizes[str(node.op.size)] = Cast(int32)(inputs[0])
                outputs = (Iota(node.op.size, int32)(),)
                padding.note(outputs[0], padding.plain(outputs[0].type.shape))
            elif body is not None:
                outputs = _opened(body, inputs, padding)
            else:
                outputs = _made(padding, node, inputs)
        env.update(zip(node.outputs, outputs, strict=True))


def _opened(body: Graph, inputs: Sequence[Tensor], padding: Padding) -> Sequence[Tensor]:
    return _walked(specialise(body, [x.type for x in inputs]), inputs, padding)


def _walked(body: Graph, inputs: Sequence[Tensor], padding: Padding) -> Sequence[Tensor]:
    env = dict(zip(body.inputs, inputs, strict=True))
    with headroom():
        walk(body, env, padding)
    return [env[y] for y in body.outputs]


def _made(padding: Padding, node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    types = (*(x.type for x in inputs), *(y.type for y in node.outputs))
    rule = next((RULES[kind] for kind in type(node.op).__mro__ if kind in RULES), proved)
    if not _concerns(padding, node.op, types):
        return current().add(node.op, tuple(inputs))
    try:
        if node.op.insertion is not None:
            return _with_regions(padding, node.op, inputs)
        made = rule(padding, node.op, inputs)
    except Refusal as refusal:
        _refuse(padding, node, str(refusal))
    return made if isinstance(made, (tuple, list)) else (made,)  # type: ignore[return-value]


# Branches and loops.


def _with_regions(padding: Padding, op: Op, xs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The outputs of a branch or a loop, whose regions take the true sizes, too."""
    given = [_plainly(padding, x) for x in xs]
    types = [x.type for x in given]
    op = op.with_regions(
        [specialise(region.graph, op.types_inside(region, types)) for region in op.regions]
    )
    if op.repetitions is not None and padding.is_open(op.repetitions):
        if op.has_effects:
            raise Refusal("it prints or calls Python, and would do so for the padding too")
        op = op.with_optional_steps()
        given.append(padding.flags(op.repetitions))
    at, sizes = op.insertion, [*padding.sizes.values()]
    assert at is not None
    graphs = [
        _region(padding, region.graph, region.input_before(at.shared)) for region in op.regions
    ]
    made = op.with_regions(graphs, shared=len(sizes))
    outputs = applied(made, [*given[: at.shared], *sizes, *given[at.shared :]])
    return [padding.note(y, padding.plain(y.type.shape)) for y in outputs]


def _region(padding: Padding, graph: Graph, place: int) -> Graph:
    """A graph of an op on padded operands, with the true sizes before input `place`."""
    with Builder(graph.name) as builder:
        before = [builder.input_like(x) for x in graph.inputs[:place]]
        sizes = {name: builder.input(TensorType(int32), f"size.{name}") for name in padding.sizes}
        inputs = [*before, *(builder.input_like(x) for x in graph.inputs[place:])]
        inner = Padding(sizes, padding.finds_sizes)
        for x in inputs:
            inner.note(x, inner.plain(x.type.shape))
        outputs = [_plainly(inner, y) for y in _walked(graph, inputs, inner)]
        padding.growing |= inner.growing
        return builder.finish(outputs)


def _concerns(padding: Padding, op: Op, types: Iterable[TensorType]) -> bool:
    """Whether padded sizes affect a node."""
    sizes = [size for type in types for size in type.shape]
    return any(map(padding.is_open, [*sizes, *sizes_in(op.attributes)]))


class CannotPad(Exception):
    """An op cannot be computed on padded operands, or a size has no bound, in a graph that finds
    its sizes itself."""


def _refuse(padding: Padding, node: Node, reason: str) -> NoReturn:
    if padding.finds_sizes:
        called = getattr(node.op, "called", node.op.name)
        raise CannotPad(
            f"{called} at {node.source} cannot be computed with room to spare: {reason}"
        )
    called = getattr(node.op, "called", node.op.name)
    fail(
        ShapeError,
        f"bucket_sizes: {called} cannot be computed on padded operands: {reason}",
        source=node.source,
        operands=[operand_text(x) for x in node.inputs],
        fix="leave bucket_sizes out, so that each size is compiled, or fix the size of that axis "
        "in the TensorSpec",
    )


def _plainly(padding: Padding, y: Tensor) -> Tensor:
    """An output with its elements first."""
    for axis in range(y.ndim):
        if not padding.is_plain(y, axis):
            y = padding.compact(y, axis)
    return y


def _is_open(padding: Padding, y: Tensor, is_state: bool) -> bool:
    """Whether an output would be padded. Raises ShapeError if it is the state of a Variable."""
    is_open = any(map(padding.is_open, y.type.shape))
    if is_open and is_state:
        fail(
            ShapeError,
            f"bucket_sizes: a value of open size, {y.type}, is assigned to a Variable",
            source=y.source,
            operands=[operand_text(y)],
            fix="assign what does not depend on the open size, or leave bucket_sizes out",
        )
    return is_open
