"""Repeats: runs of nodes that are equal block after block, except for the tensors they read.

Runs are found by structure alone. Each node is a number for its op and the types of its inputs and
outputs; a period at which long stretches of these numbers repeat is a candidate, and it is a run
only if the operands of its nodes are related in the same way from block to block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tracegraph.core.types import TOKEN, bytes_of_type
from tracegraph.ir.intern import OpForms
from tracegraph.ir.tensor import Node, Tensor

#: The longest period to search for: the search time is proportional to their number.
_LONGEST_PERIOD = 8_192

#: A tensor of a block: the index of its node in the block, and its index among the outputs.
Place = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Wiring:
    """How the operands of a run's blocks are related, identically in all blocks."""

    #: For each operand `(node, operand)` that the same block computes: where.
    internal: dict[Place, Place]
    #: For each operand that the block before computes: where; the first block takes another tensor.
    carried: dict[Place, Place]
    #: Each operand that is the same tensor in all blocks.
    shared: dict[Place, Tensor]
    #: Each operand that is a different tensor in each block, computed outside the run.
    own: dict[Place, tuple[Tensor, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class BlockRun:
    """Blocks of nodes that are equal except for what they read."""

    blocks: tuple[tuple[Node, ...], ...]
    wiring: Wiring

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def nodes(self) -> Iterator[Node]:
        return (node for block in self.blocks for node in block)


def runs_of(nodes: Sequence[Node], least: int) -> list[BlockRun]:
    """Runs among the nodes, in order, each of which saves at least `least` nodes if one block
    replaces all."""
    numbers = _numbers(nodes)
    places = {node: i for i, node in enumerate(nodes)}
    found: list[tuple[int, BlockRun]] = []
    stretches = [(0, len(nodes))]
    while stretches:
        start, end = stretches.pop()
        candidate = _longest_repeat(numbers[start:end], least)
        if candidate is None:
            continue
        first, last = start + candidate[0], start + candidate[1]
        run = _run(nodes, numbers, first, last, candidate[2], start)
        if run is not None and (len(run) - 1) * len(run.blocks[0]) >= least:
            first = places[run.blocks[0][0]]
            found.append((first, run))
        stretches += [(start, first), (last, end)]
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def _numbers(nodes: Sequence[Node]) -> np.ndarray:
    """A number for each node, shared by equal nodes. A node that takes or returns tokens has a
    unique one: effects stay where they are."""
    forms = OpForms()
    known: dict[object, int] = {}
    numbers = []
    for i, node in enumerate(nodes):
        types = (*(x.type for x in node.inputs), *(y.type for y in node.outputs))
        key: object = (forms.of(node.op), len(node.inputs), types)
        if any(type is TOKEN for type in types):
            key = i
        numbers.append(known.setdefault(key, len(known)))
    return np.array(numbers, np.int64)


def _longest_repeat(numbers: np.ndarray, least: int) -> tuple[int, int, int] | None:
    """`(start, end, period)` of the stretch in which a single block would replace the most
    nodes."""
    best, most = None, least - 1
    for period in range(1, min(len(numbers) // 2, _LONGEST_PERIOD) + 1):
        is_same = numbers[:-period] == numbers[period:]
        if np.count_nonzero(is_same) <= most:
            continue
        ends = np.flatnonzero(np.concatenate(([True], ~is_same, [True])))
        lengths = np.diff(ends) - 1
        longest = int(np.argmax(lengths))
        # A shorter period never has fewer whole blocks, so equal counts keep it.
        if lengths[longest] // period * period > most:
            most = int(lengths[longest] // period * period)
            start = int(ends[longest])
            best = start, start + int(lengths[longest]) + period, period
    return best


def _run(
    nodes: Sequence[Node], numbers: np.ndarray, start: int, end: int, period: int, floor: int
) -> BlockRun | None:
    """The run in a stretch, cut where the fewest bytes pass from block to block. It is extended by
    a block before it that is interspersed with nodes shared by all blocks."""
    cuts = [start + cut for cut in _cheapest_cuts(nodes, start, end, period)]
    # Among equal cuts the best one leaves a whole block before the stretch. Two blocks suffice to
    # tell.
    chances = (_Cut(nodes, numbers, cut, period, floor, count=2) for cut in cuts)
    best = next((chance.first for chance in chances if chance.extended()), cuts[0])
    cut = _Cut(nodes, numbers, best, period, floor, (end - best) // period)
    while cut.extended():
        pass
    return None if cut.wiring is None else BlockRun(tuple(cut.blocks), cut.wiring)


class _Cut:
    """`count` blocks that start at a node, and their wiring, None if they have none."""

    def __init__(
        self,
        nodes: Sequence[Node],
        numbers: np.ndarray,
        first: int,
        period: int,
        floor: int,
        count: int,
    ) -> None:
        self._nodes, self._numbers, self._floor = nodes, numbers, floor
        self._period, self.first = period, first
        self._start = first
        self.blocks = [tuple(nodes[first + i * period :][:period]) for i in range(count)]
        self.wiring = _wiring(self.blocks)
        if self.wiring is None and count > 2:  # the first block's operands may come from elsewhere
            del self.blocks[0]
            self._start = self.first = first + period
            self.wiring = _wiring(self.blocks)

    def extended(self) -> bool:
        """Adds the block before, if there is one; returns whether there is."""
        if self.wiring is None:
            return False
        block = self._block_before(_ancestors(self.wiring.shared.values()))
        wiring = None if block is None else _wiring([block, *self.blocks])
        if block is None or wiring is None:
            return False
        self.blocks, self.wiring = [block, *self.blocks], wiring
        return True

    def _block_before(self, common: set[Node]) -> tuple[Node, ...] | None:
        """The nodes before the blocks that equal theirs, skipping those that blocks share."""
        block: list[Node] = []
        place = self._start - 1
        for number in self._numbers[self.first : self.first + self._period][::-1]:
            while place >= self._floor and self._nodes[place] in common:
                place -= 1
            if place < self._floor or self._numbers[place] != number:
                return None
            block.append(self._nodes[place])
            place -= 1
        self._start = place + 1
        return tuple(reversed(block))


def _cheapest_cuts(nodes: Sequence[Node], start: int, end: int, period: int) -> list[int]:
    """How many nodes to skip at the start of the stretch, such that two blocks remain: the cuts
    where the fewest bytes pass from block to block."""
    places = {y: i for i, node in enumerate(nodes[start:end]) for y in node.outputs}
    last_uses = dict.fromkeys(places, 0)
    for i, node in enumerate(nodes[start:end]):
        for x in node.inputs:
            if x in last_uses:
                last_uses[x] = i
    # Measured around the second block, whose operands are like those of the later ones.
    crossing = np.zeros(end - start + 1)
    for y, place in places.items():
        if place < last_uses[y]:
            size = bytes_of(y)
            crossing[place + 1] += size
            crossing[last_uses[y] + 1] -= size
    crossing = np.cumsum(crossing)[period : min(2 * period, end - start - period + 1)]
    return np.flatnonzero(crossing == crossing.min()).tolist()


def bytes_of(x: Tensor) -> int:
    """The bytes of a tensor; 0 if its size is open."""
    return bytes_of_type(x.type) if x.type.is_static else 0


def _ancestors(tensors: Iterable[Tensor]) -> set[Node]:
    """The nodes that the tensors are computed by."""
    found: set[Node] = set()
    left = [x.node for x in tensors if x.node is not None]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += [x.node for x in node.inputs if x.node is not None]
    return found


def _wiring(blocks: Sequence[tuple[Node, ...]]) -> Wiring | None:
    """How the operands of the blocks are related; None if it differs between blocks."""
    where = {
        y: (i, j, number)
        for i, block in enumerate(blocks)
        for j, node in enumerate(block)
        for number, y in enumerate(node.outputs)
    }
    wiring = Wiring({}, {}, {}, {})
    for j, row in enumerate(zip(*blocks, strict=True)):
        for operand, xs in enumerate(zip(*(node.inputs for node in row), strict=True)):
            found = [where.get(x) for x in xs]
            if not _sort_operand(wiring, (j, operand), xs, found):
                return None
    return wiring


def _sort_operand(
    wiring: Wiring,
    key: Place,
    xs: tuple[Tensor, ...],
    found: Sequence[tuple[int, int, int] | None],
) -> bool:
    """Adds an operand of all blocks, computed where `found` says, to the wiring; returns whether
    that was possible."""
    last = found[-1]
    if last is None:
        if any(place is not None for place in found):
            return False
        if all(x is xs[0] for x in xs):
            wiring.shared[key] = xs[0]
        else:
            wiring.own[key] = xs
        return True
    back = len(xs) - 1 - last[0]
    start = 0 if back == 0 else 1
    if back > 1 or (back == 1 and found[0] is not None):
        return False
    if any(place != (i - back, *last[1:]) for i, place in enumerate(found) if i >= start):
        return False
    (wiring.carried if back else wiring.internal)[key] = last[1:]
    return True
