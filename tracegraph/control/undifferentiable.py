"""UndifferentiableCall: a call that lost the gradient which the user gave it."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegraph.control.call import Call
from tracegraph.control.custom import CustomCall
from tracegraph.control.recompute import RecomputedCall
from tracegraph.errors import MissingRuleError, fail
from tracegraph.ir.builder import Builder, copy_inputs
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node
from tracegraph.source import here


class UndifferentiableCall(Call):
    """The outputs of `body`, whose derivative is not known."""

    body: Graph

    can_prune = False

    def vjp(self, *values):
        self._refuse()

    def jvp(self, tangents, *values):
        self._refuse()

    def depends_given(self, values, *patterns):
        self._refuse()

    def is_diagonal_on(self, type):
        return False

    def _refuse(self) -> NoReturn:
        fail(
            MissingRuleError,
            f"the custom gradient of @{self.body.name} was left out when it was saved",
            source=here(),
            fix="save it with tg.saved_model.SaveOptions(experimental_custom_gradients=True)",
        )


def without_custom_gradients(graph: Graph) -> Graph:
    """`graph` with a call without a derivative in place of each one that has a custom gradient."""
    return graph.kept("without_custom_gradients", lambda: _without(graph))


def _without(graph: Graph) -> Graph:
    plain = {inner: inner for inner in graph.graphs()}
    for inner in plain:  # called graphs come first
        if any(_changes(node.op, plain) for node in inner.nodes):
            plain[inner] = _rebuilt(inner, plain)
    return plain[graph]


def _is_custom(op: Op) -> bool:
    return isinstance(op, CustomCall) and not isinstance(op, RecomputedCall)


def _changes(op: Op, plain: dict[Graph, Graph]) -> bool:
    return _is_custom(op) or any(plain[inner] is not inner for inner in op.graphs())


def _rebuilt(graph: Graph, plain: dict[Graph, Graph]) -> Graph:
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node in graph.nodes:
            env.update(zip(node.outputs, _plain_outputs(builder, node, env, plain), strict=True))
        return builder.finish([env[y] for y in graph.outputs])


def _plain_outputs(builder: Builder, node: Node, env: Any, plain: dict[Graph, Graph]) -> Any:
    op: Any = node.op
    if _is_custom(op):
        op = UndifferentiableCall(plain[op.body])
    elif _changes(op, plain):
        op = type(op)(*(plain[v] if isinstance(v, Graph) else v for v in op.attributes))
    return builder.add(op, tuple(env[x] for x in node.inputs), node.source)
