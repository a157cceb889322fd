"""Common subexpressions: one node per distinct (op, inputs) while a pass adds nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegraph.core.source import place_of_thread
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.ops.elementwise import IDENTITY
from tracegraph.passes.algebra import COMMUTATIVE, simpler
from tracegraph.passes.specialise import bound_names, names_chosen, names_used


class CommonSubexpressions:
    """Consulted by a builder before it creates a node: is there an equal one, or a simpler one?"""

    __slots__ = ("_table",)

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._table: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        for node in nodes:
            self.enter(node)

    def find(self, op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        found = self._table.get(_key(op, inputs))
        if found is None:
            equal = simpler(op, inputs)
            # A symbolic size may have been assumed to equal an int: then the types differ, and the
            # node stays, since inferring it again is the check.
            if equal is not None and (equal.type,) == op.output_types(inputs):
                found = (equal,)
        return found

    def enter(self, node: Node) -> None:
        self._table.setdefault(_key(node.op, node.inputs), node.outputs)


def _key(op: Op, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    # By identity: ops are interned, and every tensor here is kept alive by its node.
    if type(op) in COMMUTATIVE:
        first, second = map(id, inputs)
        return (id(op), first, second) if first < second else (id(op), second, first)
    return (id(op), *map(id, inputs))


def derive(
    window: Sequence[Node], compute: Callable[[], list[Tensor | None]]
) -> list[Tensor | None]:
    """Runs `compute`, which adds nodes to the current builder, and keeps only those that are new
    and used.

    Nodes are shared with each other and with those of `window`. The results are fresh tensors, so
    that each is a source distinct from everything else. Open tapes see the nodes that stay.
    """
    builder = current()
    if builder.reuse is not None:
        return compute()
    with builder.secluded():
        return _derived(builder, window, compute)


def _derived(
    builder: Builder, window: Sequence[Node], compute: Callable[[], list[Tensor | None]]
) -> list[Tensor | None]:
    start = len(builder.nodes)
    place = place_of_thread()
    source = place.source
    shared = (*_constants(builder.nodes), *window)
    builder.reuse = CommonSubexpressions(_seen_by_all(shared, builder.recorders))
    try:
        results = compute()
    except BaseException:
        del builder.nodes[start:]
        raise
    finally:
        # Plain stores, which no interrupt can split: one may have struck in an exit above.
        builder.reuse = None
        place.source = source
    results = _distinct_results(builder, start, results)
    live = live_nodes(builder.nodes[start:], [y for y in results if y is not None])
    builder.nodes[start:] = live
    # An accumulator appends nodes, which may run the pending list: without these references, unheld
    # values would be dropped then.
    held = [y for node in live for y in node.outputs] if builder.recorders else []
    for recorder in builder.recorders:
        for node in live:
            recorder.record(node)
    del held
    return results


def _constants(nodes: Sequence[Node]) -> list[Node]:
    """The nodes without inputs, and those computed only from such nodes. Tapes follow them if a
    constant is watched."""
    found: list[Node] = []
    made: set[Tensor] = set()
    for node in nodes:
        if made.issuperset(node.inputs):
            found.append(node)
            made.update(node.outputs)
    return found


def _seen_by_all(nodes: Sequence[Node], recorders: Sequence[Any]) -> Iterable[Node]:
    """The nodes that may be shared: a tape that follows a node's inputs must know the node too.

    A tape that was opened later does not: what it should see has to be computed anew. And a tensor
    that a tape watches as a source is distinct: an equal one does not depend on it.
    """
    if not recorders:
        return nodes
    return [
        node
        for node in nodes
        if all(r.depends_on(node.outputs) == r.depends_on(node.inputs) for r in recorders)
    ]


def _distinct_results(
    builder: Builder, start: int, results: list[Tensor | None]
) -> list[Tensor | None]:
    """The results as distinct tensors: an identity where one existed before or occurs twice."""
    new = {y for node in builder.nodes[start:] for y in node.outputs}
    distinct: list[Tensor | None] = []
    with builder.unrecorded():
        for result in results:
            if result is not None and result not in new:
                result = IDENTITY(result)
            elif result is not None:
                new.discard(result)
            distinct.append(result)
    return distinct


def live_nodes(nodes: Sequence[Node], outputs: Iterable[Tensor]) -> list[Node]:
    """The nodes that `outputs` depend on, in order: for their values, or for sizes that only a run
    knows."""
    return live_nodes_and_outputs(nodes, outputs)[0]


def live_nodes_and_outputs(
    nodes: Sequence[Node], outputs: Iterable[Tensor]
) -> tuple[list[Node], set[Tensor]]:
    """The live nodes, and the outputs plus those that determine sizes."""
    ends = set(outputs)
    while True:
        live = set(ends)
        kept: list[Node] = []
        left_out: list[Node] = []
        for node in reversed(nodes):
            if not live.isdisjoint(node.outputs):
                kept.append(node)
                live.update(node.inputs)
            elif may_choose_sizes(node):
                left_out.append(node)
        kept.reverse()
        more = sizes_given(left_out, [(node, node.outputs) for node in kept], ends)
        if not more:
            return kept, ends
        ends |= more


def may_choose_sizes(node: Node) -> bool:
    """Whether the run of a node may find sizes."""
    return any(not y.type.is_static for y in node.outputs) and node.op.cuts_runs


def sizes_given(
    nodes: Sequence[Node], kept: Sequence[tuple[Node, Sequence[Tensor]]], ends: Iterable[Tensor]
) -> set[Tensor]:
    """The outputs of `nodes` that determine sizes in what is kept, each node with those of its
    outputs that are, and that this does not determine."""
    if not nodes:
        return set()
    used = {name for part in kept for name in names_used(*part)}
    used = used.union(*(bound_names(y.type) for y in ends))
    unknown = used.difference(*(names_chosen(*part) for part in kept))
    found = [(y, names_chosen(node) & bound_names(y.type)) for node in nodes for y in node.outputs]
    return {y for y, names in found if names & unknown}
