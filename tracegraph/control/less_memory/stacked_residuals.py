"""Scans that stack less for reverse mode, which recomputes the rest step by step.

The forward form of a scan stacks what the rules of its body read in each step. Instead it may stack
a few values, such as the states, and the body of the reverse scan begins by recomputing the others
from those. A memory budget chooses them. No barrier is needed: the two bodies are separate
computations, which no compiler merges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegraph.control.scan import Scan
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.simplify import dead_code, with_calls_opened

#: Chooses the values of a step to stack: from its nodes, including those of its states, the values
#: that the reverse scan reads, and those that it has anyway.
Choice = Callable[[Sequence[Node], set[Tensor], set[Tensor]], Sequence[Tensor]]


class Uses:
    """The nodes of a graph that read each value, and the values that it returns."""

    def __init__(self, graph: Graph) -> None:
        self.returned = {*graph.outputs}
        self.users: dict[Tensor, list[Node]] = {}
        for node in graph.nodes:
            for x in dict.fromkeys(node.inputs):
                self.users.setdefault(x, []).append(node)

    def left_out(self, node: Node) -> list[Tensor]:
        """The values that a node stacks for the rows of reverse scans, and for nothing else."""
        op = node.op
        if type(op) is not Scan or op.cuts_runs:
            return []
        return [y for y in node.outputs[op.states :] if self._is_for_rows(y, node)]

    def _is_for_rows(self, y: Tensor, node: Node) -> bool:
        users = self.users.get(y, ())
        return bool(users) and y not in self.returned and all(_derives(u, y, node) for u in users)


def _derives(user: Node, x: Tensor, node: Node) -> bool:
    """Whether a node is a scan of a derivative of another one, and reads `x` as rows only. The
    reverse scan of a layer reads such rows of the layer after it, to which it owes nothing."""
    op, scan = user.op, node.op
    if type(op) is not Scan or not isinstance(scan, Scan) or op.length != scan.length:
        return False
    is_layer_behind = "vjp" in node.source.roles and op.reverse == scan.reverse
    is_derived = "vjp" in user.source.roles and not is_layer_behind
    return is_derived and x not in set(user.inputs[: op.rows])


def with_less_stacked(graph: Graph, choose: Choice) -> Graph | None:
    """The graph with the stacked values of its scans chosen anew; None if nothing is stacked for a
    gradient, or all of it stays."""
    found = None
    while True:
        # A reverse scan that stacks values for a derivative of its own has its turn in a later
        # round, once its body computes what the scan before it no longer stacks.
        less = _with_less_stacked(found or graph, choose)
        if less is None:
            return found
        found = less


def _with_less_stacked(graph: Graph, choose: Choice) -> Graph | None:
    uses = Uses(graph)
    scans: dict[Node, _Forward] = {}
    by_output: dict[Tensor, _Forward] = {}
    for node in graph.nodes:
        left_out = uses.left_out(node)
        if left_out and by_output.keys().isdisjoint(node.inputs):
            scan = _Forward(node, left_out, choose)
            if scan.is_changed:
                scans[node] = scan
                by_output.update(dict.fromkeys(left_out, scan))
    if not scans:
        return None
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node in graph.nodes:
            if node in scans:
                scans[node].add(builder, env)
            elif any(x in by_output for x in node.inputs):
                _add_backward(builder, node, by_output, env)
            else:
                replay([node], env)
        return builder.finish([env[y] for y in graph.outputs])


class _Forward:
    """A scan with its residuals: which values of its body are stacked, and which are recomputed."""

    def __init__(self, node: Node, left_out: Sequence[Tensor], choose: Choice) -> None:
        op = node.op
        assert isinstance(op, Scan)
        self.node, self.op = node, op
        self.body = with_calls_opened(op.body)
        self.left_out = dict.fromkeys(left_out)
        #: For each output that is left out the value in the body.
        self.inner = {
            y: value
            for y, value in zip(node.outputs, self.body.outputs, strict=True)
            if y in self.left_out
        }
        self.stacked = _stacked(self, choose)
        self.is_changed = set(self.stacked) != set(self.inner.values())
        #: The stacked values, after the new scan.
        self._outside: dict[Tensor, Tensor] = {}

    def add(self, builder: Builder, env: dict[Tensor, Tensor]) -> None:
        """Appends the scan that stacks the chosen values."""
        pairs = zip(self.node.outputs, self.body.outputs, strict=True)
        staying = [(y, value) for y, value in pairs if y not in self.left_out]
        body = dead_code(self.body.with_outputs((*(y for _, y in staying), *self.stacked)))
        op = self.op.with_body(body, self.op.constants, self.op.states)
        inputs = tuple(env[x] for x in self.node.inputs)
        made = builder.add(op, inputs, self.node.source)
        env.update((y, new) for (y, _), new in zip(staying, made))
        self._outside = dict(zip(self.stacked, made[len(staying) :], strict=True))

    def again(self, wanted: Sequence[Tensor]) -> tuple[list[Node], list[Tensor]]:
        """The nodes of the body that recompute values, and the values that they start from."""
        known = {*self.stacked, *self.body.inputs}
        nodes = [n for n in self.body.nodes if not known.issuperset(n.outputs)]
        live = live_nodes(nodes, [x for x in wanted if x not in known])
        read = dict.fromkeys(x for node in live for x in node.inputs)
        made = {y for node in live for y in node.outputs}
        return live, [x for x in (*read, *wanted) if x not in made]

    def source_of(self, value: Tensor, env: dict[Tensor, Tensor]) -> tuple[bool, Tensor]:
        """Whether a starting value has rows, and the tensor outside that holds it."""
        if value in self._outside:
            return True, self._outside[value]
        place = {x: i for i, x in enumerate(self.body.inputs)}[value]
        return place >= self.op.rows, env[self.node.inputs[place]]


def _stacked(scan: _Forward, choose: Choice) -> Sequence[Tensor]:
    """The values in one step of a scan to stack."""
    body, op = scan.body, scan.op
    states = body.inputs[op.constants : op.rows]
    # Constants and rows are there anyway, and so is what is stacked for others.
    staying = {*body.inputs[: op.constants], *body.inputs[op.rows :]}
    pairs = zip(scan.node.outputs[op.states :], body.outputs[op.states :], strict=True)
    staying.update(value for y, value in pairs if y not in scan.left_out)
    nodes = [*(x.node for x in states if x.node is not None), *body.nodes]
    return choose(nodes, set(scan.inner.values()), staying)


def _add_backward(
    builder: Builder, node: Node, by_output: dict[Tensor, _Forward], env: dict[Tensor, Tensor]
) -> None:
    """Appends a reverse scan whose body recomputes what is no longer stacked."""
    op = node.op
    assert isinstance(op, Scan)
    rows = node.inputs[op.rows :]
    scans = dict.fromkeys(by_output[x] for x in rows if x in by_output)
    begun: dict[Tensor, tuple[bool, Tensor]] = {}
    nodes: list[Node] = []
    for scan in scans:
        wanted = [scan.inner[x] for x in rows if by_output.get(x) is scan]
        live, values = scan.again(list(dict.fromkeys(wanted)))
        nodes += live
        begun.update((value, scan.source_of(value, env)) for value in values)
    constants = [x for x, (has_rows, _) in begun.items() if not has_rows]
    stacked = [x for x, (has_rows, _) in begun.items() if has_rows]
    old = op.body.inputs
    left = [(inner, x) for inner, x in zip(old[op.rows :], rows) if x not in by_output]
    with Builder(op.body.name) as inside:
        made: dict[Tensor, Tensor] = {x: inside.input_like(x) for x in old[: op.constants]}
        made.update((x, inside.input_for(x)) for x in constants)
        made.update((x, inside.input_like(x)) for x in old[op.constants : op.rows])
        made.update((inner, inside.input_like(inner)) for inner, _ in left)
        made.update((x, inside.input_for(x)) for x in stacked)
        replay(nodes, made)
        for inner, x in zip(old[op.rows :], rows):
            if x in by_output:
                made[inner] = made[by_output[x].inner[x]]
        replay(op.body.nodes, made)
        body = dead_code(inside.finish([made[y] for y in op.body.outputs]))
    given = (
        *(env[x] for x in node.inputs[: op.constants]),
        *(begun[x][1] for x in constants),
        *(env[x] for x in node.inputs[op.constants : op.rows]),
        *(env[x] for _, x in left),
        *(begun[x][1] for x in stacked),
    )
    new = op.with_body(body, op.constants + len(constants), op.states)
    outputs = builder.add(new, given, node.source)
    env.update(zip(node.outputs, outputs, strict=True))
