"""Rolling: repeated blocks of nodes become one loop over stacked operands.

To a compiler, a program of twelve equal layers is twelve programs. If consecutive blocks are equal
except for what they read, one block becomes a body: a scan carries what each block takes from the
one before, and takes the rest as rows of stacks. Blocks that carry nothing and compute elementwise
become one block on stacks. So XLA compiles one block each for forward, backward and optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import sourced
from tracegraph.errors import counted
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise
from tracegraph.rolling.block import Block, State, Tensors
from tracegraph.rolling.estimate import pays_off
from tracegraph.rolling.repeats import BlockRun, Place, runs_of
from tracegraph.rolling.stacks import Counterparts

#: A run is ignored if one block for all would save fewer nodes than this.
_FEWEST_NODES = 24


@dataclasses.dataclass(frozen=True)
class Rolled:
    """A graph with loops for its runs.

    It maps `(*arguments, *kept states, *stacks, *others)` to `(*results, *new values of kept
    states, *new stacks, *others)`.
    """

    graph: Graph
    runs: Sequence[BlockRun]
    #: The states that it takes individually.
    kept: tuple[int, ...]
    #: For each stack the states that are its rows.
    stacks: tuple[tuple[int, ...], ...]
    #: Which of the kept states, and after them of the stacks, get new values, in order.
    assigned: tuple[int, ...]

    def notes(self) -> list[str]:
        """A line for each run: how often a block runs, where it starts, and what that saves."""
        sizes = [len(run.blocks[0]) for run in self.runs]
        return [
            f"rolled: {len(run)} x block of {counted(size, 'node')}, {run.blocks[0][0].source}; "
            f"{(len(run) - 1) * size:,} nodes fewer to compile"
            for run, size in zip(self.runs, sizes, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class States:
    """Which inputs of a graph are states, and which outputs their new values."""

    #: The inputs before the states.
    first: int
    count: int
    #: The outputs before the new values.
    first_new: int
    #: The states that get new values, in the order of these.
    assigned: tuple[int, ...]
    #: Whether states may be taken as the rows of stacks.
    may_stack: bool = True


def rolled(graph: Graph, states: States, always: bool = False) -> Rolled | None:
    """The graph with its runs as loops; None if there are none, or they do not pay. `always` builds
    them even if they do not pay."""
    graph = without_calls(graph)
    assigned = {graph.inputs[states.first + i] for i in states.assigned if states.may_stack}
    runs = runs_of(graph.nodes, _FEWEST_NODES)
    if not runs or not (always or pays_off(runs, assigned)):
        return None
    return _Rolling(graph, runs, states).rolled()


def without_calls(graph: Graph) -> Graph:
    """The graph with plain calls inlined."""
    if all(node.op.inlined is None for node in graph.nodes):
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        _open_calls(graph, env)
        return builder.finish([env[y] for y in graph.outputs])


def _open_calls(graph: Graph, env: dict[Tensor, Tensor]) -> None:
    for node in graph.nodes:
        body = node.op.inlined
        if body is None:
            replay([node], env)
            continue
        body = specialise(body, [env[x].type for x in node.inputs])
        inner = dict(zip(body.inputs, (env[x] for x in node.inputs), strict=True))
        with headroom():
            _open_calls(body, inner)
        env.update(zip(node.outputs, (inner[y] for y in body.outputs), strict=True))


class _Rolling:
    """A graph being rebuilt, with loops for its runs."""

    def __init__(self, graph: Graph, runs: Sequence[BlockRun], states: States) -> None:
        self._graph = graph
        self._runs = runs
        self._states = states
        places = range(states.first, states.first + states.count)
        self._state_of = {graph.inputs[i]: i - states.first for i in places}
        if not states.may_stack:
            self._state_of = {}
        #: The stacks that the graph takes: for each the positions of its rows among the inputs.
        self._taken: dict[Tensor, tuple[int, ...]] = {}
        self._builder = Builder(graph.name)
        self._rows = Counterparts()
        #: The block, and the place in it, of each tensor that runs compute.
        self._made: dict[Tensor, tuple[BlockRun, int, Place]] = {
            y: (run, i, (j, number))
            for run in runs
            for i, block in enumerate(run.blocks)
            for j, node in enumerate(block)
            for number, y in enumerate(node.outputs)
        }
        self._blocks = [Block(run, self._made) for run in runs]
        self._note_results(graph)

    def _note_results(self, graph: Graph) -> None:
        """Records the tensors of each run that are read outside it."""
        rolled = {node for block in self._blocks for node in block.run.nodes}
        read = [x for node in graph.nodes if node not in rolled for x in node.inputs]
        read += graph.outputs
        of_run = {id(block.run): block for block in self._blocks}
        for block in self._blocks:
            read += [*block.constants, *(x for _, x in block.states)]
            for xs in block.stacks:
                found = self._states_before(xs)
                if found is None:
                    read += xs
                else:
                    of_run[id(found[0])].starts[found[1]] = None
        for x in read:
            if x in self._made:
                run, i, place = self._made[x]
                is_last_state = i == len(run) - 1 and place in run.wiring.carried.values()
                if not is_last_state:
                    of_run[id(run)].results[place] = None

    def _states_before(self, xs: Tensors) -> tuple[BlockRun, State] | None:
        """The state of a run whose initial values in consecutive blocks are these tensors, in
        either order."""
        for first, *rest in (xs, xs[::-1]):
            made = [self._made.get(x) for x in rest]
            if not made or made[0] is None:
                continue
            run, _, place = made[0]
            is_state = (place, first) in self._block_of(run).states
            if is_state and made == [(run, i, place) for i in range(len(rest))]:
                return run, (place, first)
        return None

    def _block_of(self, run: BlockRun) -> Block:
        return next(block for block in self._blocks if block.run is run)

    def rolled(self) -> Rolled:
        graph, states = self._graph, self._states
        by_end = {block.run.blocks[-1][-1]: block for block in self._blocks}
        rolled = {node for block in self._blocks for node in block.run.nodes}
        with self._builder as builder:
            self._rows.env = copy_inputs(graph, builder)
            self._take_stacks()
            for node in graph.nodes:
                if node not in rolled:
                    self._copy(node)
                elif node in by_end:
                    by_end[node].append_to(self._rows)
            new = [graph.outputs[states.first_new + i] for i in range(len(states.assigned))]
            by_state = dict(zip(states.assigned, new, strict=True))
            stacks = [rows for rows in self._taken.values() if by_state.keys() >= {*rows}]
            stacked = [self._stacked([by_state[i] for i in rows]) for rows in stacks]
            in_stacks = {i for rows in stacks for i in rows}
            kept = [y for i, y in by_state.items() if i not in in_stacks]
            ends = states.first_new, states.first_new + len(new)
            outputs = [*map(self._output, graph.outputs[: ends[0]]), *map(self._output, kept)]
            outputs += [*stacked, *map(self._output, graph.outputs[ends[1] :])]
            return self._with_stacks(builder.finish(outputs))

    def _output(self, y: Tensor) -> Tensor:
        with _line_of(y):
            return self._rows.value(y)

    def _stacked(self, ys: Sequence[Tensor]) -> Tensor:
        """New values of states as one stack."""
        with _line_of(ys[0]):
            return self._rows.stacked(ys)

    def _with_stacks(self, made: Graph) -> Rolled:
        """The finished graph, without the inputs that are now rows of stacks."""
        states = self._states
        in_stacks = {i for rows in self._taken.values() for i in rows}
        kept = tuple(i for i in range(states.count) if i not in in_stacks)
        end = states.first + states.count
        inputs = (
            *made.inputs[: states.first],
            *(made.inputs[states.first + i] for i in kept),
            *self._taken,
            *made.inputs[end : len(self._graph.inputs)],
        )
        stacks = tuple(self._taken.values())
        assigned = [kept.index(i) for i in states.assigned if i not in in_stacks]
        whole = enumerate(stacks, len(kept))
        assigned += [place for place, rows in whole if {*states.assigned} >= {*rows}]
        graph = dead_code(Graph(made.name, inputs, made.nodes, made.outputs))
        return Rolled(graph, self._runs, kept, stacks, tuple(assigned))

    def _take_stacks(self) -> None:
        """Takes states that are operands of blocks as the rows of one input."""
        for xs in (xs for block in self._blocks for xs in block.stacks if self._may_take(xs)):
            stack = self._builder.input(xs[0].type.with_shape((len(xs), *xs[0].type.shape)))
            self._taken[stack] = tuple(self._state_of[x] for x in xs)
            self._rows.note(xs, stack)
            for x in xs:
                del self._rows.env[x]

    def _copy(self, node: Node) -> None:
        with sourced(node.source):
            inputs = tuple(self._rows.value(x) for x in node.inputs)
        outputs = self._builder.add(node.op, inputs, node.source)
        self._rows.env.update(zip(node.outputs, outputs, strict=True))

    def _may_take(self, xs: Sequence[Tensor]) -> bool:
        """Whether the tensors can be taken as a stack: distinct states, all or none of which get
        new values."""
        if len({*xs}) < len(xs) or not all(x in self._state_of and x not in self._rows for x in xs):
            return False
        is_assigned = {self._state_of[x] in self._states.assigned for x in xs}
        return len(is_assigned) == 1


def _line_of(y: Tensor) -> contextlib.AbstractContextManager[Any]:
    """A context in which new nodes have the line that computed an output."""
    return contextlib.nullcontext() if y.node is None else sourced(y.node.source)
