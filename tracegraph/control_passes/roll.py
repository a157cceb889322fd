"""Rolling: blocks of nodes that repeat become one loop over stacked operands.

Compilers take a program of twelve equal layers for twelve programs. Where consecutive blocks are
equal but for what they read, one block is a body: a scan hands on what each block takes from the
one before, and takes the rest as rows of stacks. Blocks that hand on nothing and compute element
by element are one block of stacks. So XLA compiles one block, forward, backward and optimizer each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from typing import Any

from tracegraph.control.branch import stacked_outputs
from tracegraph.control.call import Call, applied
from tracegraph.control.scan import Scan
from tracegraph.control_passes.repeats import Place, Run, bytes_of, runs_of
from tracegraph.control_passes.roll_estimate import pays_off
from tracegraph.core.recursion_limit import headroom
from tracegraph.core.source import sourced
from tracegraph.ir.builder import Builder, copy_inputs, inline, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.elementwise import (
    Abs,
    Add,
    Cast,
    Discrete,
    Div,
    Elementwise,
    IntegerPow,
    Maximum,
    Minimum,
    Mul,
    MulNoNan,
    Neg,
    Select,
    Sign,
    SteepDiv,
    StopGradient,
    Sub,
)
from tracegraph.ops.shape import Concatenate, Reshape, Reverse, Slice
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import specialise
from tracegraph.passes.vectorise import vectorise

#: What a block computes again from its operands where that takes fewer stacks: ops that compilers
#: compute on the way to others, at the cost of reading the operands.
_CHEAP = (
    *(BroadcastTo, Reshape, Discrete, Cast, StopGradient, Select, Maximum, Minimum, Abs, Sign),
    *(Add, Sub, Mul, MulNoNan, Div, SteepDiv, Neg, IntegerPow),
)

#: A run of which one block for all leaves out fewer nodes is none.
_FEWEST_NODES = 24

#: One tensor of each block.
_Tuple = tuple[Tensor, ...]


#: What a block takes from the one before: where that made it, and what the first block takes.
_State = tuple[Place, Tensor]


@dataclasses.dataclass(frozen=True)
class Rolled:
    """A graph with loops for its runs.

    It takes `(*arguments, *kept states, *stacks, *others)` and gives `(*results, *new values of
    kept states, *new stacks, *others)`.
    """

    graph: Graph
    runs: Sequence[Run]
    #: The states that it takes by themselves.
    kept: tuple[int, ...]
    #: For each stack the states that are its rows.
    stacks: tuple[tuple[int, ...], ...]
    #: Which of the kept states, and behind them of the stacks, get new values, in order.
    assigned: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class States:
    """Which inputs of a graph are states, and which outputs their new values."""

    #: The inputs before the states.
    first: int
    count: int
    #: The outputs before the new values.
    first_new: int
    #: The states that get new values, in the order of those.
    assigned: tuple[int, ...]
    #: Whether states may be taken as the rows of stacks.
    may_stack: bool = True


def rolled(graph: Graph, states: States, always: bool = False) -> Rolled | None:
    """The graph with its runs as loops; None if there are none, or they do not pay. `always` asks
    for them where they do not, too."""
    graph = without_calls(graph)
    runs = runs_worth_rolling(graph, always)
    return _Rolling(graph, runs, states).rolled() if runs else None


def runs_worth_rolling(graph: Graph, always: bool) -> list[Run]:
    """The runs of a graph without calls, if loops for them pay or are asked for."""
    runs = runs_of(graph.nodes, _FEWEST_NODES)
    return runs if runs and (always or pays_off(runs)) else []


def without_calls(graph: Graph) -> Graph:
    """The graph with the bodies of plain calls in place of them."""
    if not any(isinstance(node.op, Call) for node in graph.nodes):
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        _open_calls(graph, env)
        return builder.finish([env[y] for y in graph.outputs])


def _open_calls(graph: Graph, env: dict[Tensor, Tensor]) -> None:
    for node in graph.nodes:
        if not isinstance(node.op, Call):
            replay([node], env)
            continue
        body = specialise(node.op.body, [env[x].type for x in node.inputs])
        inner = dict(zip(body.inputs, (env[x] for x in node.inputs), strict=True))
        with headroom():
            _open_calls(body, inner)
        env.update(zip(node.outputs, (inner[y] for y in body.outputs), strict=True))


class _Rolling:
    """A graph that is being built anew, with loops for its runs."""

    def __init__(self, graph: Graph, runs: Sequence[Run], states: States) -> None:
        self._graph = graph
        self._runs = runs
        self._states = states
        places = range(states.first, states.first + states.count)
        self._state_of = {graph.inputs[i]: i - states.first for i in places}
        if not states.may_stack:
            self._state_of = {}
        #: The stacks that the graph takes: for each the places of its rows among the inputs.
        self._taken: dict[Tensor, tuple[int, ...]] = {}
        self._builder = Builder(graph.name)
        #: What stands for the tensors of the graph.
        self._env: dict[Tensor, Tensor] = {}
        #: The tensors of the graph that are rows: of which stacks, and which.
        self._rows: dict[Tensor, dict[Tensor, int]] = {}
        #: The block and the place in it of the tensors that runs make.
        self._made: dict[Tensor, tuple[Run, int, Place]] = {
            y: (run, i, (j, number))
            for run in runs
            for i, block in enumerate(run.blocks)
            for j, node in enumerate(block)
            for number, y in enumerate(node.outputs)
        }
        self._blocks = [_Block(self, run) for run in runs]
        self._note_results(graph)

    def _note_results(self, graph: Graph) -> None:
        """Notes the tensors of each run that are read outside of it."""
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

    def _states_before(self, xs: _Tuple) -> tuple[Run, _State] | None:
        """The state of a run that the tensors are before its first blocks, one after the other, in
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

    def _block_of(self, run: Run) -> _Block:
        return next(block for block in self._blocks if block.run is run)

    def rolled(self) -> Rolled:
        graph, states = self._graph, self._states
        by_end = {block.run.blocks[-1][-1]: block for block in self._blocks}
        rolled = {node for block in self._blocks for node in block.run.nodes}
        with self._builder as builder:
            self._env = copy_inputs(graph, builder)
            self._take_stacks()
            for node in graph.nodes:
                if node not in rolled:
                    self._copy(node)
                elif node in by_end:
                    with sourced(node.source):
                        self._roll(by_end[node])
            new = [graph.outputs[states.first_new + i] for i in range(len(states.assigned))]
            by_state = dict(zip(states.assigned, new, strict=True))
            stacks = [rows for rows in self._taken.values() if by_state.keys() >= {*rows}]
            stacked = [self.stacked([by_state[i] for i in rows]) for rows in stacks]
            in_stacks = {i for rows in stacks for i in rows}
            kept = [y for i, y in by_state.items() if i not in in_stacks]
            ends = states.first_new, states.first_new + len(new)
            outputs = [*map(self.value, graph.outputs[: ends[0]]), *map(self.value, kept)]
            outputs += [*stacked, *map(self.value, graph.outputs[ends[1] :])]
            return self._with_stacks(builder.finish(outputs))

    def _with_stacks(self, made: Graph) -> Rolled:
        """What was built, without the inputs whose stacks are taken."""
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
        """Takes states that are the operands of blocks as the rows of one input."""
        for xs in (xs for block in self._blocks for xs in block.stacks if self._may_take(xs)):
            stack = self._builder.input(xs[0].type.with_shape((len(xs), *xs[0].type.shape)))
            self._taken[stack] = tuple(self._state_of[x] for x in xs)
            for row, x in enumerate(xs):
                self._rows[x] = {stack: row}
                del self._env[x]

    def _copy(self, node: Node) -> None:
        inputs = tuple(self.value(x) for x in node.inputs)
        outputs = self._builder.add(node.op, inputs, node.source)
        self._env.update(zip(node.outputs, outputs, strict=True))

    def value(self, x: Tensor) -> Tensor:
        """What stands for a tensor of the graph, taken from its stack if it is a row of one."""
        if x not in self._env:
            stack, row = next(iter(self._rows[x].items()))
            self._env[x] = _taken(stack, row)
        return self._env[x]

    def _roll(self, block: _Block) -> None:
        run, outputs = block.run, block.appended()
        for ((j, number), _), y in zip(block.states, outputs, strict=False):
            self._env[run.blocks[-1][j].outputs[number]] = y
        stacks = iter(outputs[len(block.states) :])
        for j, number in block.results:
            self._note_rows(block, [nodes[j].outputs[number] for nodes in run.blocks], next(stacks))
        for (j, number), first in block.starts:
            made = [nodes[j].outputs[number] for nodes in run.blocks[:-1]]
            self._note_rows(block, [first, *made], next(stacks))

    def _note_rows(self, block: _Block, xs: Sequence[Tensor], stack: Tensor) -> None:
        for row, x in enumerate(reversed(xs) if block.is_reversed else xs):
            self._rows.setdefault(x, {})[stack] = row

    # What a block of a run asks for.

    def cheap_nodes(self, xs: _Tuple) -> tuple[Node, ...] | None:
        """The nodes that make the tensors, where they are one cheap op of the blocks of a run."""
        made = [self._made.get(x) for x in xs]
        first = made[0]
        if first is None or any(p is None or p[::2] != first[::2] for p in made):
            return None
        nodes = tuple(x.node for x in xs if x.node is not None)
        return nodes if isinstance(nodes[0].op, _CHEAP) else None

    def in_order(self, nodes: Container[Node]) -> list[Node]:
        """The nodes in the order of the graph."""
        return [node for node in self._graph.nodes if node in nodes]

    def order(self, xs: Sequence[Tensor]) -> int:
        """1 where the tensors are rows of one stack, one after the other, -1 where they are in the
        reverse order, 0 where they are none."""
        return self._whole(xs)[1]

    def _whole(self, xs: Sequence[Tensor]) -> tuple[Any, int]:
        """The stack of which the tensors are rows, and their order."""
        for stack in self._rows.get(xs[0], ()):
            numbers = [self._rows.get(x, {}).get(stack) for x in xs]
            for step in (1, -1):
                if numbers == list(range(numbers[0], numbers[0] + step * len(xs), step)):
                    return stack, step
        return None, 0

    def stacked(self, xs: Sequence[Tensor]) -> Tensor:
        """The tensors as rows of one."""
        parts: list[Tensor] = []
        start = 0
        while start < len(xs):
            end = next(
                i for i in range(len(xs), start, -1) if i == start + 1 or self.order(xs[start:i])
            )
            parts.append(self._part(xs[start:end]))
            start = end
        if len(parts) == 1:
            return parts[0]
        stack = Concatenate(0)(*parts)
        for row, x in enumerate(xs):
            self._rows.setdefault(x, {})[stack] = row
        return stack

    def _part(self, xs: Sequence[Tensor]) -> Tensor:
        """Tensors that are rows of one stack, or a single one, as rows."""
        stack, order = self._whole(xs)
        if not order:
            (x,) = xs
            return Reshape((1, *x.type.shape))(self.value(x))
        rows = [self._rows[x][stack] for x in xs]
        whole = _range_of(stack, min(rows), max(rows) + 1)
        return whole if order == 1 else Reverse((0,))(whole)

    def _may_take(self, xs: Sequence[Tensor]) -> bool:
        """Whether the tensors can be taken as a stack: states of their own, all or none of which
        get new values."""
        if len({*xs}) < len(xs) or not all(x in self._state_of and x not in self._rows for x in xs):
            return False
        is_assigned = {self._state_of[x] in self._states.assigned for x in xs}
        return len(is_assigned) == 1


class _Block:
    """The body of a run, and what it takes and gives."""

    def __init__(self, rolling: _Rolling, run: Run) -> None:
        self._rolling = rolling
        self.run = run
        first = run.blocks[0]
        #: Each tensor that a block takes from the one before, and what the first block takes.
        self.states = dict.fromkeys(
            (place, first[j].inputs[operand]) for (j, operand), place in run.wiring.carried.items()
        )
        self.constants = dict.fromkeys(run.wiring.shared.values())
        #: What the blocks take as rows of stacks.
        self.stacks: dict[_Tuple, None] = {}
        #: The nodes that make what the blocks compute again.
        self._again: dict[_Tuple, tuple[Node, ...]] = {}
        self._choose_stacks()
        #: The places of the tensors that are returned of all blocks.
        self.results: dict[Place, None] = {}
        #: The states that are returned as all blocks took them.
        self.starts: dict[_State, None] = {}

    def _choose_stacks(self) -> None:
        """Takes what no cheap op makes as stacks, and of the rest what would need larger ones."""
        given = dict.fromkeys(self.run.wiring.own.values())
        needs = {xs: self._needed_for(xs) for xs in given}
        self.stacks.update(dict.fromkeys(xs for xs in given if xs in needs[xs]))
        for xs in sorted(given, key=lambda xs: len(needs[xs])):
            more = {ys: None for ys in needs[xs] if ys not in self.stacks}
            if sum(map(_bytes_of, more)) > _bytes_of(xs):
                self.stacks[xs] = None
            else:
                self.stacks.update(more)
                self._note_again(xs)
        self.stacks = {xs: None for xs in self.stacks if xs not in self._again}

    def _needed_for(self, xs: _Tuple) -> dict[_Tuple, None]:
        """What the tensors can be computed of by cheap ops."""
        needed: dict[_Tuple, None] = {}
        left = [xs]
        seen = {xs}
        while left:
            ys = left.pop()
            nodes = self._rolling.cheap_nodes(ys)
            if nodes is None:
                needed[ys] = None
                continue
            more = {*_operands_of(nodes)} - seen
            seen |= more
            left += more
        return needed

    def _note_again(self, xs: _Tuple) -> None:
        """Notes the nodes that compute the tensors from stacks."""
        left = [xs]
        while left:
            ys = left.pop()
            if ys in self.stacks or ys in self._again:
                continue
            nodes = self._rolling.cheap_nodes(ys)
            assert nodes is not None
            self._again[ys] = nodes
            for shared in _shared_operands_of(nodes):
                self.constants[shared] = None
            left += _operands_of(nodes)

    @property
    def is_reversed(self) -> bool:
        """Whether stacks hold the rows of the last block first."""
        return any(self._rolling.order(xs) == -1 for xs in self.stacks)

    def _find_operands(self) -> None:
        wiring, first = self.run.wiring, self.run.blocks[0]
        for (j, operand), place in wiring.carried.items():
            self.states[place, first[j].inputs[operand]] = None
        self.constants.update(dict.fromkeys(wiring.shared.values()))
        for xs in wiring.own.values():
            self._note_own(xs)

    def _note_own(self, xs: tuple[Tensor, ...]) -> None:
        """Notes an operand that is another tensor in each block. What is only a layout is computed
        from its own operands."""
        if xs in self._layouts or xs in self.stacks:
            return
        nodes = self._rolling.layout_of(xs)
        if nodes is None:
            self.stacks[xs] = None
            return
        for operands in zip(*(node.inputs for node in nodes), strict=True):
            if all(x is operands[0] for x in operands):
                self.constants[operands[0]] = None
            else:
                self._note_own(operands)
        self._layouts[xs] = nodes

    def appended(self) -> Sequence[Tensor]:
        """The outputs of the loop: the last states, and the stacked results."""
        rolling, count = self._rolling, len(self.run)
        body = self._body()
        ordered = [xs[::-1] if self.is_reversed else xs for xs in self.stacks]
        inputs = [
            *(rolling.value(x) for x in self.constants),
            *(rolling.value(x) for _, x in self.states),
            *(rolling.stacked(xs) for xs in ordered),
        ]
        if self.states or not all(_is_elementwise(node) for node in body.nodes):
            op = Scan(body, len(self.constants), len(self.states), count, self.is_reversed)
            return applied(op, inputs)
        is_row = tuple(i >= len(self.constants) for i in range(len(inputs)))
        wide, has = vectorise(body, is_row, count)
        return inline(stacked_outputs(wide, has, (True,) * len(has), count), inputs)

    def _body(self) -> Graph:
        block, wiring = self.run.blocks[0], self.run.wiring
        with Builder("block") as builder:
            env = {x: builder.input_for(x) for x in self.constants}
            of_state = {state: builder.input_for(state[1]) for state in self.states}
            env.update((xs[0], builder.input_for(xs[0])) for xs in self.stacks)
            nodes = {row[0]: None for row in self._again.values()}
            for node in self._rolling.in_order(nodes):
                replay([node], env)
            for j, node in enumerate(block):
                states = {
                    operand: of_state[wiring.carried[j, operand], x]
                    for operand, x in enumerate(node.inputs)
                    if (j, operand) in wiring.carried
                }
                inputs = [states[i] if i in states else env[x] for i, x in enumerate(node.inputs)]
                made = builder.add(node.op, tuple(inputs), node.source)
                env.update(zip(node.outputs, made, strict=True))
            places = [*(place for place, _ in self.states), *self.results]
            made = [env[block[j].outputs[number]] for j, number in places]
            return builder.finish([*made, *(of_state[state] for state in self.starts)])


def _operands_of(nodes: Sequence[Node]) -> list[_Tuple]:
    """The operands of nodes that are not the same in all blocks."""
    return [xs for xs in zip(*(node.inputs for node in nodes)) if not _is_one(xs)]


def _shared_operands_of(nodes: Sequence[Node]) -> list[Tensor]:
    return [xs[0] for xs in zip(*(node.inputs for node in nodes)) if _is_one(xs)]


def _is_one(xs: _Tuple) -> bool:
    return all(x is xs[0] for x in xs)


def _bytes_of(xs: _Tuple) -> int:
    return bytes_of(xs[0])


def _is_elementwise(node: Node) -> bool:
    return isinstance(node.op, (Elementwise, BroadcastTo, Reshape))


def _taken(stack: Tensor, row: int) -> Tensor:
    return Reshape(stack.type.shape[1:])(_range_of(stack, row, row + 1))


def _range_of(stack: Tensor, start: int, stop: int) -> Tensor:
    size, *rest = stack.type.shape
    if (start, stop) == (0, size):
        return stack
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    return Slice((start, *zeros), (stop, *rest), (1, *ones))(stack)
