"""Nodes that compute all rows of a loop at once, moved into the loop, which computes row by row.

Matrix products that need no state leave a loop: one product of all rows before it, and one of all
factors after it. That is fast, and keeps something of every step. Inside the loop, a product before
it needs the row alone, and one after it becomes a sum from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegraph.calls.call import applied
from tracegraph.control.less_memory.segments import bytes_of
from tracegraph.control.less_memory.stacked_residuals import Uses
from tracegraph.control.scan import Scan, type_of_sum
from tracegraph.core.shapes import static_shape
from tracegraph.core.source import sourced
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum, full
from tracegraph.ops.contract import Matmul
from tracegraph.ops.elementwise import ADD, Cast, Elementwise
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.simplify import dead_code


def with_row_nodes_inside(graph: Graph) -> Graph | None:
    """The graph whose scans compute row by row what nodes before and after them compute for all
    rows; None if no node does."""
    uses = Uses(graph)
    scans = {
        node: _Inside(graph, place, uses)
        for place, node in enumerate(graph.nodes)
        if type(node.op) is Scan and not node.op.has_effects and node.op.length
    }
    scans = {node: scan for node, scan in scans.items() if scan.is_changed}
    if not scans:
        return None
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node in graph.nodes:
            if node.outputs and all(y in env for y in node.outputs):
                continue  # moved
            if node in scans:
                with sourced(node.source):
                    scans[node].add(env)
            else:
                replay([node], env)
        return dead_code(builder.finish([env[y] for y in graph.outputs]))


class _Inside:
    """A scan with nodes around it moved into its body."""

    def __init__(self, graph: Graph, place: int, uses: Uses) -> None:
        self.node = graph.nodes[place]
        assert isinstance(self.node.op, Scan)
        self.op, self._uses = self.node.op, uses
        self._after = graph.nodes[place + 1 :]
        self._unknown = _unknown(self.node, self._after)
        self._builder = Builder(self.op.body.name)
        #: Values outside that every step reads as they are, and those of which it reads rows, each
        #: with the input of the body.
        self._shared: dict[Tensor, Tensor] = {}
        self._rows: dict[Tensor, Tensor] = {}
        #: Values outside whose rows the body computes.
        self._made: dict[Tensor, Tensor] = {}
        #: The sums of all steps, and the stacked rows, that take the place of values outside.
        self._sums: dict[Tensor, Tensor] = {}
        self._stacked: dict[Tensor, Tensor] = {}
        with self._builder, sourced(self.node.source):
            self._env = self._with_rows_computed()
            self.is_changed = bool(self._made)
            replay(self.op.body.nodes, self._env)
            pairs = zip(self.node.outputs, self.op.body.outputs, strict=True)
            self._made.update([(y, self._env[value]) for y, value in pairs][self.op.states :])
            if "vjp" in self.node.source.roles:
                self._take_sums()
        self.is_changed = self.is_changed or bool(self._sums)

    # Before the loop.

    def _with_rows_computed(self) -> dict[Tensor, Tensor]:
        """The inputs of the body, some of them computed from smaller rows."""
        op, env = self.op, dict[Tensor, Tensor]()
        for i, (x, inner) in enumerate(zip(self.node.inputs, op.body.inputs, strict=True)):
            if op.constants <= i < op.rows:
                env[inner] = self._builder.input_like(inner)
                continue
            made = self._made_of_less(x) if i >= op.rows else None
            known = self._shared if i < op.constants else self._rows
            if made is not None:
                self._made[x] = env[inner] = made
            elif x not in known:
                known[x] = env[inner] = self._builder.input_like(inner)
            else:
                env[inner] = known[x]
        return env

    def _made_of_less(self, x: Tensor) -> Tensor | None:
        """A row computed from rows that are no larger, if nothing else reads these rows."""
        if not self._is_read_here_only(x):
            return None
        rows, shared = dict(self._rows), dict(self._shared)
        found = self._row_by_its_node(x)
        new = [y for y in self._rows if y not in rows]
        if found is None or sum(map(bytes_of, new)) > bytes_of(x):
            self._rows, self._shared = rows, shared
            return None
        return found

    def _is_read_here_only(self, x: Tensor) -> bool:
        return len(self._uses.users.get(x, ())) == 1 and x not in self._uses.returned

    # After the loop.

    def _take_sums(self) -> None:
        """Finds nodes after the loop whose results are sums over all rows."""
        moved = {*self.node.outputs}
        for node in self._after:
            if not moved.isdisjoint(node.inputs):
                with sourced(node.source):
                    found = self._term(node)
                if found is not None:
                    self._sums[node.outputs[0]] = found
                else:
                    moved.update(y for y in node.outputs if y in self._unknown)
        if not self._sums:
            return
        for node in self._after:
            y = node.outputs[0]
            if type(node.op) is Reshape and y in self._unknown and self._has_rows(y):
                found = self._row_by_its_node(y)
                if found is not None and found not in set(self._made.values()):
                    self._stacked[y] = found

    def _term(self, node: Node) -> Tensor | None:
        """What one step adds to the result of a node, if that is a sum over all rows."""
        op = node.op
        if type(op) is Sum and op.axes is not None and 0 in op.axes:
            (x,) = node.inputs
            row = self._row(x) if self._has_rows(x) else None
            if row is not None:
                axes = tuple(axis - 1 for axis in op.axes if axis)
                return Sum(axes)(row) if axes else row
            joined = self._joined(x)
            return None if joined is None else Sum(op.axes)(joined)
        if type(op) is Matmul and node.outputs[0].ndim == 2:
            x, y = node.inputs
            left, right = self._side_by_side(x), self._joined(y)
            if left is not None and right is not None:
                return op(left, right)
        return None

    # Values in one step. Each of these finds what one step contributes to a value outside: a row,
    # or a part of the rows joined along the first axis, or along the second.

    def _has_rows(self, x: Tensor) -> bool:
        return x.ndim > 0 and x.type.shape[0] == self.op.length

    def _row(self, x: Tensor) -> Tensor | None:
        """Row t of a tensor."""
        if x in self._made:
            return self._made[x]
        if x in self._unknown:
            found = self._row_by_its_node(x)
            if found is not None:
                self._made[x] = found
            return found
        if x not in self._rows:
            self._rows[x] = self._new_input(x, static_shape(x.type.shape)[1:])
        return self._rows[x]

    def _row_by_its_node(self, x: Tensor) -> Tensor | None:
        node = x.node
        if node is None or not self._has_rows(x):
            return None
        op, shape = node.op, static_shape(x.type.shape)
        if type(op) is Reshape:
            is_split = x.ndim > 1 and node.inputs[0].type.shape == _merged(shape)
            return self._joined(node.inputs[0]) if is_split else None
        if type(op) is BroadcastTo and 0 not in op.axes:
            axes = tuple(axis - 1 for axis in op.axes)
            return self._spread(node.inputs[0], shape[1:], axes)
        if isinstance(op, Elementwise):
            return self._applied(node, [self._row_or_less(y) for y in node.inputs])
        return None

    def _row_or_less(self, x: Tensor) -> Tensor | None:
        """A row, computed here if nothing else reads the rows."""
        made = None
        if x not in self._made and x not in self._unknown and self._is_read_here_only(x):
            made = self._made_of_less(x)
        return self._row(x) if made is None else made

    def _joined(self, x: Tensor) -> Tensor | None:
        """The part of a tensor that has the rows joined along the first axis."""
        node = x.node
        if node is None:
            return None
        op = node.op
        if type(op) is Reshape:
            (y,) = node.inputs
            merged = _merged(static_shape(y.type.shape)) if y.ndim > 1 else ()
            return self._row(y) if self._has_rows(y) and x.type.shape == merged else None
        if type(op) is Transpose and x.ndim == 2:
            found = self._side_by_side(node.inputs[0])
            return None if found is None else Transpose((1, 0))(found)
        is_moved = x in self._unknown or self._is_read_here_only(x)
        if type(op) is Matmul and x.ndim == 2 and is_moved and node.inputs[1] not in self._unknown:
            found = self._joined(node.inputs[0])
            if found is not None:
                return self._applied(node, [found, self._constant(node.inputs[1])])
        return None

    def _side_by_side(self, x: Tensor) -> Tensor | None:
        """The part of a matrix that has the rows joined along the second axis."""
        node = x.node
        if node is None or x.ndim != 2:
            return None
        if type(node.op) is Transpose:
            (y,) = node.inputs
            found = self._joined(y) if type(y.node and y.node.op) is Reshape else None
            return None if found is None else Transpose((1, 0))(found)
        turned = node.inputs[0].node if type(node.op) is Reshape else None
        if turned is None or type(turned.op) is not Transpose or turned.op.perm != (1, 0, 2):
            return None
        (y,) = turned.inputs
        count, rows, columns = y.type.shape
        is_joined = self._has_rows(y) and x.type.shape == (rows, count * columns)
        return self._row(y) if is_joined else None

    def _applied(self, node: Node, rows: Sequence[Tensor | None]) -> Tensor | None:
        known = [row for row in rows if row is not None]
        with sourced(node.source):
            return node.op(*known) if len(known) == len(rows) else None

    def _spread(self, x: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensor | None:
        if x in self._unknown:
            return None
        inner = self._constant(x)
        return inner if inner.type.shape == shape else BroadcastTo(shape, axes)(inner)

    def _constant(self, x: Tensor) -> Tensor:
        if x not in self._shared:
            self._shared[x] = self._new_input(x, static_shape(x.type.shape))
        return self._shared[x]

    def _new_input(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        inner = self._builder.input_like(x, x.type.with_shape(shape))
        if inner.name is None and x.node is not None:
            inner.name = x.node.op.name
        return inner

    # The new scan.

    def add(self, env: dict[Tensor, Tensor]) -> None:
        """Appends the scan, after the later nodes that it reads now."""
        op, old = self.op, self.node.inputs
        body = self._body()
        earlier = live_nodes(self._after, [*self._shared, *self._rows])
        replay([node for node in earlier if node.outputs[0] not in env], env)
        zeros = [full(0, type_of_sum(x.type)) for x in self._sums]
        states = [*(env[x] for x in old[op.constants : op.rows]), *zeros]
        given = [*(env[x] for x in self._shared), *states, *(env[x] for x in self._rows)]
        new = op.with_body(body, len(self._shared), len(states))
        found = applied(new, given)
        env.update(zip(self.node.outputs, found[: op.states]))
        for x, total in zip(self._sums, found[op.states :]):
            env[x] = total if total.dtype is x.dtype else Cast(x.dtype)(total)
        others = (*self.node.outputs[op.states :], *self._stacked)
        env.update(zip(others, found[len(states) :], strict=True))

    def _body(self) -> Graph:
        op, builder = self.op, self._builder
        ends = [self._env[y] for y in op.body.outputs]
        with builder, sourced(self.node.source):
            sums = [builder.input(type_of_sum(x.type), "sum") for x in self._sums]
            totals: list[Tensor] = []
            for total, term in zip(sums, self._sums.values(), strict=True):
                term = term if term.dtype is total.dtype else Cast(total.dtype)(term)
                totals.append(ADD(total, term))
            states = [self._env[x] for x in op.body.inputs[op.constants : op.rows]]
            builder.inputs = [*self._shared.values(), *states, *sums, *self._rows.values()]
            rows = (*ends[op.states :], *self._stacked.values())
            return dead_code(builder.finish([*ends[: op.states], *totals, *rows]))


def _merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its first two axes merged."""
    return shape[0] * shape[1], *shape[2:]


def _unknown(scan: Node, after: Iterable[Node]) -> set[Tensor]:
    """The values that are not there before a scan: its results, and those of later branches and
    loops, and what depends on them."""
    found = {*scan.outputs}
    for node in after:
        if node.op.regions or node.op.has_effects or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found
