"""What a run chose: the branches that it took, and the loops that it entered.

A program returns results alone, so what decided inside of it is computed once more, from the values
that the ops at top level were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracegraph.control_passes.dataflow import Flows
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.eager.pending import device_buffer, program_of
from tracegraph.ir.op import Flow, Op, Region
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise

#: The values of the inputs of an op or of a graph.
Values = Sequence[Any]


class RegionRun(NamedTuple):
    """A region of an op in one run of the op: the values that its graph was given are known where
    it ran once."""

    region: Region
    has_run: bool
    values: Values | None


class Choices:
    """What the ops of a run chose."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows

    def flow_of_nodes(self, known: Mapping[Any, Values]) -> dict[int, Flow]:
        """What flowed through nodes that were given values, by their identity."""
        return {id(node): self._flow(node.op, values) for node, values in known.items()}

    def _flow(self, op: Op, values: Values) -> Flow:
        return op.flow([self._region_flow(run) for run in region_runs(op, values)])

    def _region_flow(self, run: RegionRun) -> Flow:
        graph = run.region.graph
        if not run.has_run:
            nothing = (0,) * len(graph.outputs)
            return Flow(nothing, nothing)
        if run.values is None or not _has_choices(graph):
            return self._flows.of_graph(graph)
        return self._flows.walked(graph, self.flow_of_nodes(values_inside(graph, run.values)))


def can_choose(op: Op) -> bool:
    """Whether a run of an op, or of what it calls, may leave out a region."""
    return op.leaves_out_regions or any(_has_choices(region.graph) for region in op.regions)


def _has_choices(graph: Graph) -> bool:
    return graph.cached("choices", lambda: (any(can_choose(node.op) for node in graph.nodes),))[0]


def region_runs(op: Op, values: Values) -> Iterator[RegionRun]:
    """The regions of an op that was given `values`."""
    types = _types_of(values)
    for region, has_run in zip(op.regions, op.regions_run(values, computed), strict=True):
        given = [values[i] for i in region.inputs]
        is_given_them = op.types_inside(region, types) == _types_of(given)
        is_once = op.repetitions == 1 and is_given_them
        yield RegionRun(region, has_run, given if is_once else None)


def values_inside(graph: Graph, values: Values) -> dict[Node, Values]:
    """The nodes of a graph that choose, with the values of their inputs; but for those that do more
    than compute, which must not be done again."""
    nodes = [node for node in graph.nodes if can_choose(node.op) and not node.op.has_effects]
    wanted = dict.fromkeys(x for node in nodes for x in node.inputs)
    needed = dead_code(graph.with_outputs(tuple(wanted)))
    if needed.has_effects:
        return {}
    known = dict(zip(wanted, computed(needed, values), strict=True))
    return {node: [known[x] for x in node.inputs] for node in nodes}


def computed(graph: Graph, values: Values) -> Values:
    """The outputs of a graph, by a program."""
    return program_of(specialise(graph, _types_of(values)))(*values) if graph.outputs else ()


def _types_of(values: Values) -> list[TensorType]:
    return [TensorType(as_dtype(x.dtype), tuple(x.shape)) for x in values]


def values_of(tensors: Sequence[Tensor]) -> Values:
    """The values of tensors at top level."""
    return [*map(device_buffer, tensors)]
