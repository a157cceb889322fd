"""UndifferentiableCall: a call that lost the gradient which the user gave it."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegraph.calls.call import Call
from tracegraph.core.source import here
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.errors import MissingRuleError, fail
from tracegraph.ir.op import Derivative, KnownValues, Op, Tangents
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph, Node, Tensor


class UndifferentiableCall(Call):
    """The outputs of `body`, whose derivative is not known."""

    body: Graph

    can_prune = False
    is_transparent = False

    def vjp(self, *values: Tensor) -> Derivative:
        self._refuse()

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        self._refuse()

    def depends_given(self, values: KnownValues, *patterns: Pattern) -> tuple[Pattern, ...]:
        self._refuse()

    def is_diagonal_on(self, type: TensorType) -> bool:
        return False

    def recorded(self) -> UndifferentiableCall:
        return self

    def _refuse(self) -> NoReturn:
        fail(
            MissingRuleError,
            f"the custom gradient of @{self.body.name} was left out when it was saved",
            source=here(),
            fix="save it with tg.saved_model.SaveOptions(experimental_custom_gradients=True)",
        )


def without_custom_gradients(graph: Graph) -> Graph:
    """`graph` with calls without derivatives in place of those with custom gradients."""
    return graph.cached("without_custom_gradients", lambda: rewritten(graph, _plain))


def lacks_custom_gradients(graph: Graph) -> bool:
    """Whether any call, here or in called graphs, has lost its custom gradient."""
    return any(isinstance(node.op, UndifferentiableCall) for node in graph.all_nodes())


def _plain(node: Node, op: Any) -> Op:
    return op if op.chosen_gradient is None else UndifferentiableCall(op.inlined)
