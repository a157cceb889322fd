"""Splits a graph into pure parts, with the effects in program order between them, and the sizes
that only the run knows.

The nodes of a part depend on no effect and no such size that comes after it starts, so each part is
one program. A graph is split only where something is computed from an effect's result, or has a
size that is read at run time: prints, which return nothing, split nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tracegraph.core.shapes import Dim
from tracegraph.core.types import TOKEN, TensorType, int32
from tracegraph.errors import TraceError, fail
from tracegraph.ir.builder import Builder, current, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import Iota, RuntimeSize
from tracegraph.ops.effect import EFFECTS, Check, HostCall, Load, Read, Store
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.simplify import dead_code, inlined, share
from tracegraph.passes.specialise import bound_names, names_used, new_names, renamed, unbound_names


@dataclasses.dataclass(frozen=True)
class Part:
    """A pure graph and what follows it; all tensors are those of the split graph.

    `graph` maps the values of `inputs` to those of `outputs`; `names` are the sizes in it that were
    read before. `loads` are the nodes whose values are read when the part starts, `sizes` those
    whose sizes are read when it ends, before the effects.
    """

    loads: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    graph: Graph
    names: tuple[str, ...]
    sizes: tuple[Node, ...]
    effects: tuple[Node, ...]


@dataclasses.dataclass(frozen=True)
class SplitGraph:
    """A graph with its cut calls inlined, and its parts."""

    graph: Graph
    parts: tuple[Part, ...]


class _Stage:
    """The nodes of a part while they are gathered: `members` become its graph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loads: list[Node] = []
        self.members: list[Node] = []
        self.sizes: list[Node] = []
        self.effects: list[Node] = []


def has_calls_that_see(graph: Graph) -> bool:
    """Whether it calls Python functions that may read and assign Variables."""
    return graph.cuts_runs and any(
        isinstance(node.op, HostCall) and node.op.sees_variables for node in graph.all_nodes()
    )


def with_own_sizes(graph: Graph) -> Graph:
    """The graph with fresh names for the sizes that only its runs know, so that each call of a body
    has its own."""
    if not graph.cuts_runs:
        return graph
    sizes: dict[str, Any] = {}
    names = iter(current().new_size_name, None)
    for inner in graph.graphs():
        for type in _bound_by_runs(inner):
            if not bound_names(type) <= sizes.keys():
                sizes.update(new_names(type, names))
    return renamed(graph, sizes, {}) if sizes else graph


def _bound_by_runs(graph: Graph) -> list[TensorType]:
    """Types with the sizes and shapes that only runs know, including those of derivatives."""
    found = [y.type for y in _results_of_calls(graph)]
    for node in graph.nodes:
        if isinstance(node.op, RuntimeSize):
            found += [y.type for y in node.outputs]
        found += [TensorType(int32, (Dim.named(name),)) for name in node.op.sizes_of_runs]
    return found


def split_at_cuts(graph: Graph) -> SplitGraph:
    """The parts of a graph, cached on it."""
    return graph.cached("split_at_cuts", lambda: _split(graph))


def _split(graph: Graph) -> SplitGraph:
    opened = share(dead_code(inlined(graph, lambda body: body.cuts_runs)))
    stages, cut_stages = _stages(opened)
    last = max((*stages.values(), *cut_stages.values()), default=0)
    found = [_Stage(f"{graph.name}_{i}" if last else graph.name) for i in range(last + 1)]
    for node in opened.nodes:
        if isinstance(node.op, Load):
            found[stages[node.outputs[0]]].loads.append(node)
        elif isinstance(node.op, RuntimeSize):
            found[cut_stages[node]].sizes.append(node)
            found[stages[node.outputs[0]]].members.append(_of_known_size(node))
        elif _makes_effects(node):
            found[cut_stages[node]].effects.append(node)
        else:
            found[stages[node.outputs[0]]].members.append(node)
    wanted, returned = _wanted(opened, found), _sizes_returned(opened)
    parts = [_part(*row, returned) for row in zip(found, wanted, strict=True)]
    _check_sizes(opened, parts)
    return SplitGraph(opened, tuple(parts))


def _check_sizes(graph: Graph, parts: Sequence[Part]) -> None:
    """Raises TraceError where a size is used that only a branch or a loop knows: Python code kept
    it while that was traced."""
    read = _sizes_read(graph)
    unknown = {name for part in parts for name in part.names} - read.keys()
    if unknown:
        users = (node for node in graph.nodes if not unknown.isdisjoint(names_used(node)))
        name = min(unknown)
        fail(
            TraceError,
            f"the size {name} is known only inside of a branch or a loop, and is used outside",
            source=next(users).source,
            fix="return the tensor that has it, and take the size from that",
        )


def _of_known_size(node: Node) -> Node:
    """A node that counts up to a size, for use after the size was read."""
    assert isinstance(node.op, RuntimeSize)
    counting = Node(Iota(node.op.size, int32), (), node.source, node.builder)
    counting.outputs = node.outputs
    return counting


def _stages(graph: Graph) -> tuple[dict[Tensor, int], dict[Node, int]]:
    """For each value the part after which it is known; for each effect, and each size that is read,
    the part it follows."""
    stages: dict[Tensor, int] = dict.fromkeys(graph.inputs, 0)
    cut_stages: dict[Node, int] = {}
    last_effect, after_calls = 0, 0
    sizes = {**_sizes_returned(graph), **_sizes_read(graph)}
    for node in graph.nodes:
        # Tokens order effects, and nodes are in that order.
        named = [sizes[name] for name in names_used(node) if name in sizes] if sizes else []
        needed = max((stages[x] for x in (*operands(node), *named) if x in stages), default=0)
        if isinstance(node.op, Load):
            stage = after_calls
            last_effect = max(last_effect, stage)
        elif isinstance(node.op, RuntimeSize):
            stage = 1 + max(stages[x] for x in node.inputs)
            cut_stages[node] = stage - 1
        elif _makes_effects(node):
            last_effect = cut_stages[node] = max(needed, last_effect)
            stage = last_effect + 1
            if not isinstance(node.op, Store):
                after_calls = stage
        else:
            stage = needed
        stages.update((y, stage) for y in node.outputs)
    return stages, cut_stages


def _makes_effects(node: Node) -> bool:
    """Whether a node belongs between parts: an effect, or a branch or a loop with effects
    inside."""
    return isinstance(node.op, EFFECTS) or (bool(node.op.regions) and node.op.cuts_runs)


def _sizes_returned(graph: Graph) -> dict[str, Tensor]:
    """The open sizes that Python functions choose, with the first tensor that has each: derivatives
    have them again."""
    return {name: y for y in reversed(_results_of_calls(graph)) for name in bound_names(y.type)}


def _results_of_calls(graph: Graph) -> list[Tensor]:
    found: list[Tensor] = []
    for node in graph.nodes:
        found += node.op.outputs_sized_by_run(node.outputs)
    return found


def _sizes_read(graph: Graph) -> dict[str, Tensor]:
    """The sizes that are read from values, with the first tensor that has each."""
    nodes = (node for node in reversed(graph.nodes) if isinstance(node.op, RuntimeSize))
    return {str(node.op.attributes[0]): node.outputs[0] for node in nodes}


def operands(node: Node) -> Sequence[Tensor]:
    """The inputs of a node whose values it reads: no tokens, and no handles of Variables."""
    if isinstance(node.op, Load):
        return ()
    if isinstance(node.op, Store):
        return node.inputs[2:]
    return [x for x in node.inputs if x.type is not TOKEN]


def _wanted(graph: Graph, stages: Sequence[_Stage]) -> list[set[Tensor]]:
    """For each part the values that are used elsewhere: by what follows it, a later part, or the
    caller."""
    wanted: list[set[Tensor]] = []
    later = {*graph.outputs, *_checked(graph)}
    for stage in reversed(stages):
        later.update(x for node in (*stage.sizes, *stage.effects) for x in operands(node))
        wanted.append(set(later))
        later.update(x for node in stage.members for x in node.inputs)
    return wanted[::-1]


def _checked(graph: Graph) -> list[Tensor]:
    """The values of checks, since a run may end before its outputs contain them."""
    ops = (node.op for node in graph.nodes)
    if not any(isinstance(op, HostCall) and op.ends_runs for op in ops):
        return []
    checks = (node for node in graph.nodes if isinstance(node.op, Check))
    return [x for node in checks for x in (*node.inputs, *node.outputs)]


def _part(stage: _Stage, wanted: set[Tensor], returned: dict[str, Tensor]) -> Part:
    outputs = tuple(y for node in stage.members for y in node.outputs if y in wanted)
    nodes = live_nodes(stage.members, outputs)
    made = {y for node in nodes for y in node.outputs}
    taken = dict.fromkeys(x for node in nodes for x in node.inputs if x not in made)
    # Sizes that a Python function chose are determined by its results.
    unbound = unbound_names(taken, nodes)
    taken.update((returned[name], None) for name in unbound if name in returned)
    read = tuple(name for name in unbound if name not in returned)
    with Builder(stage.name) as builder:
        env = {x: builder.input_like(x) for x in taken}
        replay(nodes, env)
        graph = builder.finish([env[y] for y in outputs])
    loads, sizes, effects = map(tuple, (stage.loads, stage.sizes, stage.effects))
    return Part(loads, tuple(taken), outputs, graph, read, sizes, effects)


def variable_input(handle: Tensor) -> Tensor:
    """The graph input that represents the Variable of an effect. If the effect was in the body of a
    call, that received a read of the Variable."""
    while handle.node is not None and isinstance(handle.node.op, (Read, Load)):
        handle = handle.node.inputs[1]
    return handle
