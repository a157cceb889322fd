"""Recomputation: a backward graph that starts from the inputs and keeps nothing in between.

By default the compiler would merge the recomputation with the first computation, and nothing would
be saved. A barrier that ties the inputs to the incoming cotangents keeps the two apart:
recomputation cannot start before the backward pass has reached this point. (Chen and others,
"Training deep nets with sublinear memory cost", 2016; the barrier is how XLA is made to comply.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.calls.call import Call, as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import token
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.op import Derivative, Entered, Flow, KnownValues, Tangents
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.barrier import Barrier
from tracegraph.passes.gradient import gradient


class RecomputedCall(CustomCall):
    """The outputs of `body`, whose backward computes its intermediate values anew."""

    @property
    def chosen_gradient(self) -> Graph | None:
        return None

    @property
    def has_forward(self) -> bool:
        return True

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        return Call.jvp(self, tangents, *values)

    def depends_given(self, values: KnownValues, *patterns: Pattern) -> tuple[Pattern, ...]:
        return Call.depends_given(self, values, *patterns)

    def entered(self, values: KnownValues, *patterns: Pattern) -> Entered:
        return Call.entered(self, values, *patterns)

    def flow(self, flows: Sequence[Flow]) -> Flow:
        return Call.flow(self, flows)


def recomputed(body: Graph, count: int) -> RecomputedCall:
    """A call of `body` that keeps nothing for the gradient of its first `count` outputs."""
    return RecomputedCall(body, *_backward(body, count))


def _backward(body: Graph, count: int) -> tuple[Graph, tuple[int, ...]]:
    """The backward graph and the inputs that it computes cotangents of; cached on the body."""
    return body.cached(("recompute", count), lambda: _recomputing(body, count))


def _recomputing(body: Graph, count: int) -> tuple[Graph, tuple[int, ...]]:
    targets = [y for y in body.outputs[:count] if y.type.dtype.is_differentiable]
    with Builder(f"{body.name}_backward") as builder:
        env = copy_inputs(body, builder)
        gs = [builder.input(y.type, f"g{i}") for i, y in enumerate(targets)]
        inputs = [x for x in body.inputs if x.type.dtype is not token]
        tied = as_tuple(Barrier()(*(env[x] for x in inputs), *gs))
        env.update(zip(inputs, tied))
        start = len(builder.nodes)
        replay(body.nodes, env)
        places = [i for i, x in enumerate(body.inputs) if x.type.dtype.is_differentiable]
        xs = [env[body.inputs[i]] for i in places]
        ys = [env[y] for y in targets]
        found = gradient(builder.nodes[start:], ys, xs, tied[len(inputs) :])
        kept = [(i, g) for i, g in zip(places, found, strict=True) if g is not None]
        graph = builder.finish([g for _, g in kept])
    return graph, tuple(i for i, _ in kept)
