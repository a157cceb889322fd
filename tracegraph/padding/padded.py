"""A graph of open sizes that computes on padded inputs what it computes on the inputs themselves.

Each op has a rule that keeps one promise: where the operands have elements, and whatever stands in
their padding, the result has the elements that it should have, and says where they are. So rows
that do not meet stay as they are, reductions over an open axis see a neutral element in place of
padding, and sizes as values are the true ones. Padding is taken out by a selection before anything
is combined, also in gradients, so that nan and infinity that were made of padding stay there.

An op without a rule passes if its `depends` shows that rows do not meet in it. Everything else is
refused, with the node and its line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tracegraph.core.later import opened
from tracegraph.core.recursion_limit import headroom
from tracegraph.core.shapes import Dim, Size
from tracegraph.core.source import sourced
from tracegraph.core.types import TensorType, int32
from tracegraph.errors import ShapeError, fail
from tracegraph.ir.builder import Builder, copy_inputs, current, operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.padding.layout import Padding
from tracegraph.padding.padding_rules import RULES, Refusal, proved, sizes_in
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import bound_names, specialise


@dataclasses.dataclass(frozen=True)
class Padded:
    """A graph for padded inputs: after its arguments it takes a true size for each of `names`."""

    graph: Graph
    names: tuple[str, ...]
    #: The outputs of the graph that was padded which this one has.
    outputs: tuple[int, ...]
    #: Sizes that must be no larger than with padding.
    growing: tuple[Size, ...]


def padded(
    graph: Graph, argument_count: int, results: range, state: range, found: Sequence[str] = ()
) -> Padded:
    """`graph` for arguments that are padded along their open axes, at the end of each.

    After the arguments it takes an int32 scalar for each name of a size that they bring, and for
    those that the run has `found`: its true value. Of the outputs those at `results` may be padded,
    and those at `state` may not; others that would be are left out. Raises ShapeError naming the
    node for which padding would change what it computes.
    """
    names = tuple(dict.fromkeys((*_names(graph, argument_count), *found)))
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        scalars = {name: builder.input(TensorType(int32), f"size.{name}") for name in names}
        padding = Padding(scalars)
        for x in graph.inputs[:argument_count]:
            padding.note(env[x], padding.plain(x.type.shape))
        _walk(graph, env, padding)
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


def _walk(graph: Graph, env: dict[Tensor, Tensor], padding: Padding) -> None:
    """Appends the nodes of `graph` as they are on padded operands; calls are opened."""
    for node in graph.nodes:
        inputs = tuple([env[x] for x in node.inputs])
        with sourced(node.source):
            body = node.op.inlined
            if body is not None:
                outputs = _opened(body, inputs, padding)
            else:
                outputs = _made(padding, node, inputs)
        env.update(zip(node.outputs, outputs, strict=True))


def _opened(body: Graph, inputs: Sequence[Tensor], padding: Padding) -> Sequence[Tensor]:
    return _walked(specialise(body, [x.type for x in inputs]), inputs, padding)


def _walked(body: Graph, inputs: Sequence[Tensor], padding: Padding) -> Sequence[Tensor]:
    env = dict(zip(body.inputs, inputs, strict=True))
    with headroom():
        _walk(body, env, padding)
    return [env[y] for y in body.outputs]


def _made(padding: Padding, node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    types = (*(x.type for x in inputs), *(y.type for y in node.outputs))
    rule = next((RULES[kind] for kind in type(node.op).__mro__ if kind in RULES), proved)
    if not _concerns(padding, node.op, types):
        return current().add(node.op, tuple(inputs))
    with_regions = opened("tracegraph.padding.loops").rule_of(node.op) if node.op.regions else None
    try:
        if with_regions is not None:
            made = with_regions(padding, node.op, inputs, _walked)
        else:
            made = rule(padding, node.op, inputs)
    except Refusal as refusal:
        _refuse(node, str(refusal))
    return made if isinstance(made, (tuple, list)) else (made,)  # type: ignore[return-value]


def _concerns(padding: Padding, op: Op, types: Iterable[TensorType]) -> bool:
    """Whether padded sizes come near a node."""
    sizes = [size for type in types for size in type.shape]
    return any(map(padding.is_open, [*sizes, *sizes_in(op.attributes)]))


def _refuse(node: Node, reason: str) -> NoReturn:
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
