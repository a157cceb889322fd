"""The gradient pass: it emits ordinary nodes, so derivatives of any order follow.

If the path from the source to the targets is elementwise on one shape, the Jacobian is diagonal and
both modes agree; then the forward form is built, since it grows far less with the order: the
factors of lower orders are shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tracegraph.core.source import here, sourced
from tracegraph.core.types import TensorType
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, full_like
from tracegraph.ops.constant import constant_value
from tracegraph.ops.elementwise import ADD, MUL, Add, LogicalNot, Mul, Neg, Relation, Sub
from tracegraph.passes.common_subexpressions import derive
from tracegraph.passes.cotangents import MOST_NARROW_TERMS, is_narrow
from tracegraph.passes.registry import is_registered
from tracegraph.passes.walk import path_between, pull_back, push_forward


def gradient(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    gs: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """Builds sum_i gs[i]^T dys[i]/dx through `nodes`; one tensor per x, None where unconnected.

    A missing cotangent means ones. Raises MissingRuleError, a LookupError, with the user's line,
    for an op on the path that has no rule.
    """
    nodes = tuple(nodes)
    seeds = [None] * len(ys) if gs is None else list(gs)

    def compute() -> list[Tensor | None]:
        with sourced(here().derived_by("vjp")):
            return _gradient(nodes, ys, xs, seeds)

    return derive(nodes, compute)


def _gradient(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    gs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    path = path_between(nodes, xs, ys)
    if len(set(xs)) == 1 and _takes_forward_form(path, xs[0], ys):
        return [_forward_form(path, ys, xs[0], gs)] * len(xs)
    return pull_back(path, ys, xs, gs)


def _takes_forward_form(path: Sequence[Node], x: Tensor, ys: Sequence[Tensor]) -> bool:
    """Whether the Jacobian is diagonal, and the path long enough for forward mode to be shorter."""
    # Values that do not depend on x, such as zeros for another branch's residuals, do not count.
    reached = {x, *(y for node in path for y in node.outputs)}
    if x.type.dtype.is_complex or any(y.type is not x.type for y in ys if y in reached):
        return False
    if len(path) == 1 and not path[0].op.regions:
        return False  # the vjp of one op is as short, and that of a quotient rounded once
    return is_diagonal_path(path, x.type) and not (is_narrow(x.type) and _has_many_uses(path))


def _has_many_uses(path: Sequence[Node]) -> bool:
    """Whether the cotangents of any tensor are added up in a wider type."""
    uses = Counter(x for node in path for x in node.inputs)
    return max(uses.values(), default=0) > MOST_NARROW_TERMS


def is_diagonal_path(path: Sequence[Node], type: TensorType) -> bool:
    """Whether along the path each element of `type` depends only on the same element."""
    return all(
        node.op.is_diagonal_on(type)
        and not is_registered(node.op)
        and all(y.type is type for y in node.outputs if y.type.dtype.is_differentiable)
        for node in path
    )


def _forward_form(
    path: Sequence[Node], ys: Sequence[Tensor], x: Tensor, gs: Sequence[Tensor | None]
) -> Tensor | None:
    tangents = {x: full_like(x, 1)}
    push_forward(path, tangents, "vjp")
    total = None
    for y, g in zip(ys, gs, strict=True):
        if y in tangents:
            term = tangents[y] if g is None else MUL(tangents[y], g)
            total = term if total is None else ADD(total, term)
    return total


# Residuals.

#: Ops of one instruction per element.
_ARITHMETIC = (Add, Sub, Mul, Neg, Relation, LogicalNot)


def made_again(body: Graph, residuals: Sequence[Tensor]) -> tuple[list[Tensor], frozenset[Tensor]]:
    """The residuals of `body` that must be kept, and the tensors that a backward graph recomputes
    from them because that is cheaper than keeping them: in a scan, a row of every step.

    A broadcast is recomputed from its operand, which is kept instead; an arithmetic value, if all
    of its operands are available. Values that the body returns anyway are kept."""
    found = _MadeAgain(residuals)
    returned = {*body.outputs}
    for node in body.nodes:
        for x in node.outputs:
            if x in found.kept and x not in returned:
                found.consider(x)
    return [*found.kept], frozenset(found.again)


class _MadeAgain:
    def __init__(self, residuals: Iterable[Tensor]) -> None:
        #: The residuals that are kept, in order.
        self.kept = dict.fromkeys(residuals)
        self.again: set[Tensor] = set()

    def consider(self, x: Tensor) -> None:
        """Recomputes a residual, if that is cheap."""
        assert x.node is not None
        if type(x.node.op) is BroadcastTo:
            del self.kept[x]
            source = self._broadcast_again(x)
            if not self._is_there(source):
                self.kept[source] = None
        elif isinstance(x.node.op, _ARITHMETIC):
            sources = {y: _broadcast_source(y) for y in x.node.inputs}
            if all(map(self._is_there, sources.values())):
                del self.kept[x]
                self.again.add(x)
                for y in sources:
                    if not self._is_there(y):
                        self._broadcast_again(y)

    def _is_there(self, x: Tensor) -> bool:
        return constant_value(x) is not None or x in self.kept or x in self.again

    def _broadcast_again(self, x: Tensor) -> Tensor:
        """Recomputes a broadcast, and the broadcasts it consists of. Returns their original
        operand."""
        while x.node is not None and type(x.node.op) is BroadcastTo and x not in self.kept:
            self.again.add(x)
            (x,) = x.node.inputs
        return x


def _broadcast_source(x: Tensor) -> Tensor:
    while x.node is not None and type(x.node.op) is BroadcastTo:
        (x,) = x.node.inputs
    return x
