"""Estimates whether a loop pays: the compile time and the call time it saves, against the run time
it costs.

Each Variable that a program takes and returns makes every call longer, and rows of one stack count
once. A loop has costs that unrolled blocks do not have: its own steps, and copies of values that
one program reads in place. On a CPU those are the rows of weights, which matrix products cannot
read directly from a stack, and the rows of their gradients. The constants were measured on two
cores, as processor time, on deep perceptrons and transformers of several widths and batch sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tracegraph.core.shapes import element_count
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.passes.specialise import graphs_inside
from tracegraph.rolling.repeats import BlockRun, bytes_of

#: Loops that save fewer nodes than this save less than a fifth of a second.
_FEWEST_NODES = 200

#: How much longer a run may take.
_TOLERANCE = 0.03

_FLOPS_PER_SECOND = 3e10
_SECONDS_PER_NODE = 1e-6
_SECONDS_PER_STEP = 2e-6
#: XLA compiles a loop that moves so few bytes in a step, and holds no loop, as a single kernel.
_SMALL_STEP, _SECONDS_PER_SMALL_STEP = 1024, 0.2e-6
_SECONDS_PER_ROW = 0.2e-6
#: Weights are copied as rows, forward and backward, and their gradients are written.
_SECONDS_PER_BYTE_OF_ROWS = 0.33e-9
#: What JAX takes to pass a Variable to a program and its new value back, and we to read and store.
_SECONDS_PER_STATE = 3e-6
#: Loops that save fewer nodes do not count what they save in calls: code that takes turns between a
#: short step and another function of its Variables would lose more by gathering the stacks.
_FEWEST_NODES_OF_LONG_CALLS = 1_000


def pays_off(runs: Sequence[BlockRun], assigned: Collection[Tensor]) -> bool:
    """Whether loops for all the runs save enough nodes, at little cost in run time. `assigned` are
    the states that the graph takes and gives new values."""
    left_out = sum((len(run) - 1) * sum(map(_nodes_of, run.blocks[0])) for run in runs)
    if left_out < _FEWEST_NODES:
        return False
    is_long = left_out >= _FEWEST_NODES_OF_LONG_CALLS
    saved = _SECONDS_PER_STATE * _states_saved(runs, assigned) if is_long else 0.0
    cost = sum(map(_seconds_of_loop, runs))
    return cost <= saved + _TOLERANCE * sum(map(_seconds_of_blocks, runs))


def _states_saved(runs: Sequence[BlockRun], assigned: Collection[Tensor]) -> int:
    """How many states fewer the program takes if those that the blocks read are rows of stacks."""
    stacks = {xs for run in runs for xs in run.wiring.own.values()}
    stacks = {xs for xs in stacks if all(x in assigned for x in xs)}
    rows = {x for xs in stacks for x in xs}
    return max(0, len(rows) - len(stacks))


def _nodes_of(node: Node) -> int:
    return 1 + sum(graph.node_count() for graph in node.op.graphs())


def _seconds_of_blocks(run: BlockRun) -> float:
    block = run.blocks[0]
    operations = sum(map(_flops_of, block))
    return len(run) * (operations / _FLOPS_PER_SECOND + len(block) * _SECONDS_PER_NODE)


def _flops_of(node: Node) -> Any:
    """The operations of a node: of all steps of a loop, and of the longest branch."""
    rule = getattr(node.op, "flops", None)
    if rule is not None:
        return rule(*(x.type for x in node.inputs))
    inner = max((sum(map(_flops_of, graph.nodes)) for graph in graphs_inside(node)), default=0)
    repetitions = node.op.repetitions
    made = sum(element_count(y.type.shape) for y in node.outputs)
    return inner * (1 if repetitions is None else repetitions) + made


def _seconds_of_loop(run: BlockRun) -> float:
    if not run.wiring.carried:  # one computation on stacks: there are no steps
        return 0.0
    moved = sum(bytes_of(x) for node in run.blocks[0] for x in (*node.inputs, *node.outputs))
    if moved <= _SMALL_STEP and not any(node.op.is_loop for node in run.blocks[0]):
        return len(run) * _SECONDS_PER_SMALL_STEP
    own = {xs[0]: None for xs in run.wiring.own.values()}
    weights = [x for x in own if x.node is not None and not x.node.inputs]
    # A loop in the block takes its operands whole, so their rows are copied as well.
    for (j, _), xs in run.wiring.own.items():
        if run.blocks[0][j].op.is_loop:
            weights.append(xs[0])
    # Each weight of this run has a gradient among the results of another run, and each row was
    # written by one.
    copied = sum(map(bytes_of, dict.fromkeys(weights))) * _SECONDS_PER_BYTE_OF_ROWS * 1.5
    return len(run) * (_SECONDS_PER_STEP + len(own) * _SECONDS_PER_ROW + copied)
