"""What a run chose: the branches that it took, and the loops that it entered.

A program returns only results, so the deciding values inside it are computed once more, from the
inputs of the ops at top level.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracegraph.control_passes.dataflow import Flows
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.eager.pending import device_buffer, program_of
from tracegraph.effects.pieces import interpret
from tracegraph.ir.op import Flow, Op, Region
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise

#: A loop of more steps is assumed to choose everything.
_MOST_STEPS = 256

#: The values of the inputs of an op or of a graph.
Values = Sequence[Any]


class RegionRun(NamedTuple):
    """A region of an op in one run of the op, and the inputs of its graph each time that it ran, if
    they are known."""

    region: Region
    has_run: bool
    values: Sequence[Values] | None


class Choices:
    """The choices of the ops in a run."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows

    def flow_of_nodes(self, known: Mapping[Any, Values]) -> dict[int, Flow]:
        """The flow through nodes with known input values, by identity."""
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
        found = [
            self._flows.walked(graph, self.flow_of_nodes(values_inside(graph, values)))
            for values in run.values
        ]
        return Flow(_together(x.values for x in found), _together(x.derivatives for x in found))


def _together(masks: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """What reaches each output in any of several runs."""
    return tuple(functools.reduce(operator.or_, column) for column in zip(*masks, strict=True))


def can_choose(op: Op) -> bool:
    """Whether a run of an op, or of a graph it calls, may skip a region."""
    return op.leaves_out_regions or any(_has_choices(region.graph) for region in op.regions)


def _has_choices(graph: Graph) -> bool:
    return graph.cached("choices", lambda: (any(can_choose(node.op) for node in graph.nodes),))[0]


def region_runs(op: Op, values: Values) -> Iterator[RegionRun]:
    """The regions of an op, run with `values` as inputs."""
    types = _types_of(values)
    for region, has_run in zip(op.regions, op.regions_run(values, computed), strict=True):
        given = [values[i] for i in region.inputs]
        is_given_them = op.types_inside(region, types) == _types_of(given)
        is_once = op.repetitions == 1 and is_given_them
        if is_once:
            yield RegionRun(region, has_run, [given])
        elif has_run and op.is_loop and op.can_interpret and region.graph is op.regions[0].graph:
            yield RegionRun(region, has_run, _steps(op, region.graph, values))
        else:
            yield RegionRun(region, has_run, None)


class _TooManyError(Exception):
    """A loop has more steps than are examined."""


def _steps(op: Op, body: Graph, values: Values) -> Sequence[Values] | None:
    """The inputs of a loop's body in each step, if anything in it chooses."""
    if not _has_choices(body) or not (op.repetitions is None or isinstance(op.repetitions, int)):
        return None
    steps: list[Values] = []

    def run(graph: Graph, given: Values, first: int) -> Values:
        if graph is body:
            if len(steps) == _MOST_STEPS:
                raise _TooManyError
            steps.append(given)
        return computed(graph, given)

    try:
        interpret(op, values, run)
    except _TooManyError:
        return None
    return steps


def values_inside(graph: Graph, values: Values) -> dict[Node, Values]:
    """The nodes of a graph that choose, with the values of their inputs, except nodes that do more
    than compute, which must not be repeated."""
    nodes = [node for node in graph.nodes if can_choose(node.op) and not node.op.has_effects]
    wanted = dict.fromkeys(x for node in nodes for x in node.inputs)
    needed = dead_code(graph.with_outputs(tuple(wanted)))
    if needed.has_effects:
        return {}
    known = dict(zip(wanted, computed(needed, values), strict=True))
    return {node: [known[x] for x in node.inputs] for node in nodes}


def computed(graph: Graph, values: Values) -> Values:
    """The outputs of a graph, computed by a program."""
    return program_of(specialise(graph, _types_of(values)))(*values) if graph.outputs else ()


def _types_of(values: Values) -> list[TensorType]:
    return [TensorType(as_dtype(x.dtype), tuple(x.shape)) for x in values]


def values_of(tensors: Sequence[Tensor]) -> Values:
    """The values of tensors at top level."""
    return [*map(device_buffer, tensors)]
