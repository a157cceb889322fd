"""The two walks of differentiation: pushing tangents forward and pulling cotangents back.

They live together because an op without its own jvp uses its transposed vjp: the vjp is linear in
its cotangent, so pulling the tangent back through the vjp, with respect to that cotangent, gives
the jvp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tracegraph.core.source import here, sourced
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch, MissingRuleError, fail
from tracegraph.ir.builder import Builder, inline
from tracegraph.ir.op import MissingRule, Op, missing_rule
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import full, full_like
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.cotangents import Cotangents, is_plain_read, is_plain_slice
from tracegraph.passes.registry import cotangents_of


def path_between(nodes: Sequence[Node], xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Node]:
    """The nodes that depend on some x through differentiable values, and some y on them."""
    reached = set(xs)
    ahead: list[Node] = []
    for node in nodes:
        outputs = node.depending(reached)
        if outputs:
            ahead.append(node)
            reached.update(outputs)
    return live_nodes(ahead, ys)


def pull_back(
    path: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    gs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Walks `path` backwards with cotangents `gs` of `ys`, where None means ones. Returns the
    cotangents of `xs`."""
    cotangents = Cotangents()
    sources = set(xs)
    needed = sources.union(*(node.outputs for node in path))
    for y, g in zip(ys, gs, strict=True):
        if y in needed:  # one tensor may be a target more than once
            cotangents.add(y, full_like(y, 1) if g is None else g)
    for node in reversed(path):
        if not cotangents.reach(node.outputs):
            continue
        with sourced(node.source.derived_by("vjp")):
            if is_plain_slice(node):
                cotangents.add_slice(node)
                continue
            if is_plain_read(node) and node.outputs[0] not in sources:
                cotangents.hand_on(node.outputs[0], node.inputs[1])
                continue
            found = _node_cotangents(node, cotangents)
            for x, g in zip(node.inputs, found, strict=True):
                if g is not None and x in needed and x.type.dtype.is_differentiable:
                    cotangents.add(x, g)
    return [cotangents.get(x) for x in xs]


def _node_cotangents(node: Node, cotangents: Cotangents) -> tuple[Tensor | None, ...]:
    seeds: list[Tensor | None] = [cotangents.get(y) for y in node.outputs]
    if not node.op.takes_zero_cotangents:
        seeds = [
            full(0, y.type) if g is None and y.type.dtype.is_differentiable else g
            for g, y in zip(seeds, node.outputs, strict=True)
        ]
    try:
        return cotangents_of(node, seeds)
    except (MissingRule, Mismatch) as problem:
        _refuse(node, problem)


def _refuse(node: Node, problem: MissingRule | Mismatch) -> NoReturn:
    if isinstance(problem, MissingRule):
        missing_rule(problem, node.source)
    assert isinstance(problem, Mismatch)
    fact = f"{node.op.name}: {problem.fact}"
    fail(MissingRuleError, fact, source=node.source, fix=problem.fix)


def push_forward(nodes: Sequence[Node], tangents: dict[Tensor, Tensor], role: str) -> None:
    """Extends `tangents` along `nodes`, in order; a tensor without an entry has tangent zero."""
    for node in nodes:
        incoming = tuple([tangents.get(x) for x in node.inputs])
        if all(t is None for t in incoming):
            continue
        with sourced(node.source.derived_by(role)):
            for y, t in zip(node.outputs, _node_tangents(node, incoming), strict=True):
                if t is not None and y.type.dtype.is_differentiable:
                    tangents[y] = t


def _node_tangents(node: Node, incoming: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    try:
        found = node.op.jvp(incoming, *node.outputs, *node.inputs)
        if found is NotImplemented:
            found = transposed_jvp(node.op, incoming, node.inputs, node.outputs)
    except (MissingRule, Mismatch) as problem:
        _refuse(node, problem)
    return found if isinstance(found, tuple) else (found,)


def transposed_jvp(
    op: Op,
    tangents: tuple[Tensor | None, ...],
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
) -> tuple[Tensor | None, ...]:
    """The jvp of `op` as the transpose of its vjp."""
    given = tuple(i for i, t in enumerate(tangents) if t is not None)
    types = tuple(x.type for x in inputs)
    graph, places = _transposed_graph(op, types, given)
    values = [*(t for t in tangents if t is not None), *outputs, *inputs]
    seeds = [full(0, g.type) for g in graph.inputs[len(values) :]]
    found = inline(graph, [*values, *seeds])
    return at_places(places, found, len(outputs))


def at_places(
    places: Iterable[int], values: Iterable[Tensor | None], count: int
) -> tuple[Tensor | None, ...]:
    """`count` tangents or cotangents: these values at their places, and None at the others."""
    found = dict(zip(places, values, strict=True))
    return tuple(found.get(i) for i in range(count))


def _transposed_graph(
    op: Op, types: tuple[TensorType, ...], given: tuple[int, ...]
) -> tuple[Graph, tuple[int, ...]]:
    """`(*tangents, *outputs, *inputs, *cotangents that are read) -> tangents of the outputs at the
    positions returned`, which do not depend on the cotangents."""
    with Builder(f"{op.name}_jvp") as builder:
        ts = [builder.input(types[i], f"t{i}") for i in given]
        prototypes = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
        output_types = op.output_types(tuple(prototypes))
        ys = [builder.input(type, f"y{i}") for i, type in enumerate(output_types)]
        seeds: list[Any] = [
            builder.input(type, f"g{i}") if type.dtype.is_differentiable else None
            for i, type in enumerate(output_types)
        ]
        node = Node(op, tuple(prototypes), here(), builder)
        node.outputs = tuple(ys)
        found = cotangents_of(node, seeds)
        pulled = [(found[i], t) for i, t in zip(given, ts, strict=True) if found[i] is not None]
        targets, cotangents = [c for c, _ in pulled], [t for _, t in pulled]
        sources = [g for g in seeds if g is not None]
        path = path_between(tuple(builder.nodes), sources, targets)  # type: ignore[arg-type]
        results = pull_back(path, targets, sources, cotangents)  # type: ignore[arg-type]
        places = [i for i, g in enumerate(seeds) if g is not None]
        kept = [(place, t) for place, t in zip(places, results, strict=True) if t is not None]
        nodes = live_nodes(builder.nodes, [t for _, t in kept])
        is_read = {x for node in nodes for x in node.inputs}
        seeds_read = [g for g in sources if g in is_read]
        if seeds_read and not op.transpose_reads_cotangents:
            raise Mismatch(
                "its gradient is not linear in the cotangent, so it has no forward mode",
                fix="make the registered gradient linear in its cotangents, or use reverse mode",
            )
        inputs = (*ts, *ys, *prototypes, *seeds_read)
        graph = Graph(builder.name, inputs, tuple(nodes), tuple(t for _, t in kept))
        return graph, tuple(place for place, _ in kept)


__all__ = ["path_between", "pull_back", "push_forward", "transposed_jvp"]
