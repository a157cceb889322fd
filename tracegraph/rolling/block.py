"""One block for all blocks of a run: its inputs and outputs, and the loop around it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tracegraph.calls.call import applied
from tracegraph.control.scan import Scan
from tracegraph.core.source import Source, sourced
from tracegraph.ir.builder import Builder, inline
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
from tracegraph.ops.shape import Reshape
from tracegraph.passes.vectorise import stacked_outputs, vectorise
from tracegraph.rolling.repeats import BlockRun, Place, bytes_of
from tracegraph.rolling.stacks import Counterparts

#: Ops that a block recomputes from their operands if that takes fewer stacks: compilers fuse them
#: into their readers, at the cost of reading the operands.
_CHEAP = (
    *(BroadcastTo, Reshape, Discrete, Cast, StopGradient, Select, Maximum, Minimum, Abs, Sign),
    *(Add, Sub, Mul, MulNoNan, Div, SteepDiv, Neg, IntegerPow),
)

#: One tensor of each block.
Tensors = tuple[Tensor, ...]

#: A value that a block takes from the one before: where that computes it, and the first block's.
State = tuple[Place, Tensor]

#: For each tensor that runs compute: the run, the index of the block, and the place in it.
Made = Mapping[Tensor, tuple[BlockRun, int, Place]]


class Block:
    """The body of a run, and its inputs and outputs."""

    def __init__(self, run: BlockRun, made: Made) -> None:
        self.run = run
        self._made = made
        first = run.blocks[0]
        #: Each value that a block takes from the one before, and what the first block takes
        #: instead.
        self.states = dict.fromkeys(
            (place, first[j].inputs[operand]) for (j, operand), place in run.wiring.carried.items()
        )
        self.constants = dict.fromkeys(run.wiring.shared.values())
        #: The tensors that blocks take as rows of stacks.
        self.stacks: dict[Tensors, None] = {}
        #: The nodes that compute what the blocks recompute.
        self._again: dict[Tensors, tuple[Node, ...]] = {}
        self._choose_stacks()
        #: The places of the tensors whose values from all blocks are returned.
        self.results: dict[Place, None] = {}
        #: The states whose initial values in all blocks are returned.
        self.starts: dict[State, None] = {}

    def _choose_stacks(self) -> None:
        """Stacks the operands that no cheap op computes, and others where recomputing takes larger
        stacks."""
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

    def _needed_for(self, xs: Tensors) -> dict[Tensors, None]:
        """The operands from which cheap ops can compute the tensors."""
        needed: dict[Tensors, None] = {}
        left = [xs]
        seen = {xs}
        while left:
            ys = left.pop()
            nodes = self._cheap_nodes(ys)
            if nodes is None:
                needed[ys] = None
                continue
            more = {*_operands_of(nodes)} - seen
            seen |= more
            left += more
        return needed

    def _note_again(self, xs: Tensors) -> None:
        """Records the nodes that compute the tensors from stacks."""
        left = [xs]
        while left:
            ys = left.pop()
            if ys in self.stacks or ys in self._again:
                continue
            nodes = self._cheap_nodes(ys)
            assert nodes is not None
            self._again[ys] = nodes
            for shared in _shared_operands_of(nodes):
                self.constants[shared] = None
            left += _operands_of(nodes)

    def _cheap_nodes(self, xs: Tensors) -> tuple[Node, ...] | None:
        """The nodes that compute the tensors, if they are one cheap op in the blocks of a run."""
        made = [self._made.get(x) for x in xs]
        first = made[0]
        if first is None or any(p is None or p[::2] != first[::2] for p in made):
            return None
        nodes = tuple(x.node for x in xs if x.node is not None)
        return nodes if isinstance(nodes[0].op, _CHEAP) else None

    def append_to(self, rows: Counterparts) -> None:
        """Appends the loop to the graph being built, and records its results."""
        # Stacks that another loop built in reverse order are read in that order.
        is_reversed = any(rows.order(xs) == -1 for xs in self.stacks)
        with sourced(self._source(-1)):
            outputs = iter(self._loop(rows, is_reversed))
        for (j, number), _ in self.states:
            rows.env[self.run.blocks[-1][j].outputs[number]] = next(outputs)
        for j, number in self.results:
            xs = [nodes[j].outputs[number] for nodes in self.run.blocks]
            rows.note(xs[::-1] if is_reversed else xs, next(outputs))
        for (j, number), first in self.starts:
            xs = [first, *(nodes[j].outputs[number] for nodes in self.run.blocks[:-1])]
            rows.note(xs[::-1] if is_reversed else xs, next(outputs))

    def _loop(self, rows: Counterparts, is_reversed: bool) -> Sequence[Tensor]:
        """The outputs of the loop: the final states, and the stacked results."""
        body, count = self._body(), len(self.run)
        inputs = [
            *(rows.value(x) for x in self.constants),
            *(rows.value(x) for _, x in self.states),
            *(rows.stacked(xs[::-1] if is_reversed else xs) for xs in self.stacks),
        ]
        if self.states or not all(map(_is_elementwise, body.nodes)):
            op = Scan(body, len(self.constants), len(self.states), count, is_reversed)
            return applied(op, inputs)
        is_row = tuple(i >= len(self.constants) for i in range(len(inputs)))
        wide, has = vectorise(body, is_row, count)
        return inline(stacked_outputs(wide, has, (True,) * len(has), count), inputs)

    def _body(self) -> Graph:
        with Builder("block") as builder:
            shared = {x: builder.input_for(x) for x in self.constants}
            states = {state: builder.input_for(state[1]) for state in self.states}
            own = {xs: builder.input_for(xs[0]) for xs in self.stacks}
            self._append_again(builder, shared, own)
            made: dict[Place, Tensor] = {}
            wiring = self.run.wiring
            for j, node in enumerate(self.run.blocks[0]):
                inputs = []
                for key, x in (((j, i), x) for i, x in enumerate(node.inputs)):
                    if key in wiring.internal:
                        inputs.append(made[wiring.internal[key]])
                    elif key in wiring.carried:
                        inputs.append(states[wiring.carried[key], x])
                    else:
                        inputs.append(shared[x] if key in wiring.shared else own[wiring.own[key]])
                outputs = builder.add(node.op, tuple(inputs), self._source(j))
                made.update(((j, number), y) for number, y in enumerate(outputs))
            found = [made[place] for place, _ in self.states]
            found += [made[place] for place in self.results]
            return builder.finish([*found, *(states[state] for state in self.starts)])

    def _source(self, j: int) -> Source:
        """The line of one node of each block."""
        return _source_of_all([block[j] for block in self.run.blocks])

    def _append_again(
        self, builder: Builder, shared: dict[Tensor, Tensor], own: dict[Tensors, Tensor]
    ) -> None:
        """Appends what is recomputed, each after its operands."""
        left = [*self._again]
        while left:
            xs = left[-1]
            nodes = self._again[xs]
            missing = [ys for ys in _operands_of(nodes) if ys not in own]
            left += missing
            if missing:
                continue
            left.pop()
            if xs not in own:
                columns = zip(*(node.inputs for node in nodes), strict=True)
                inputs = [shared[ys[0]] if _is_one(ys) else own[ys] for ys in columns]
                (own[xs],) = builder.add(nodes[0].op, tuple(inputs), _source_of_all(nodes))


def _source_of_all(nodes: Sequence[Node]) -> Source:
    """The line of the first node, in a scope for all of them: `blocks/0..11/dense` for those from
    `blocks/0/dense` to `blocks/11/dense`, and what paths of other lengths have in common."""
    source = nodes[0].source
    scopes = list(dict.fromkeys(node.source.scope for node in nodes))
    if len(scopes) == 1:
        return source
    paths = [scope.split("/") for scope in scopes]
    columns = [sorted({*names}, key=lambda name: (len(name), name)) for names in zip(*paths)]
    if len({len(path) for path in paths}) > 1:
        columns = [*itertools.takewhile(lambda names: len(names) == 1, columns)]
    names = (x[0] if len(x) == 1 else f"{x[0]}..{x[-1]}" for x in columns)
    return source.in_scope("/".join(names))


def _operands_of(nodes: Sequence[Node]) -> list[Tensors]:
    """The operands of nodes that differ between blocks."""
    return [xs for xs in zip(*(node.inputs for node in nodes)) if not _is_one(xs)]


def _shared_operands_of(nodes: Sequence[Node]) -> list[Tensor]:
    return [xs[0] for xs in zip(*(node.inputs for node in nodes)) if _is_one(xs)]


def _is_one(xs: Tensors) -> bool:
    return all(x is xs[0] for x in xs)


def _bytes_of(xs: Tensors) -> int:
    return bytes_of(xs[0])


def _is_elementwise(node: Node) -> bool:
    return isinstance(node.op, (Elementwise, BroadcastTo, Reshape))
