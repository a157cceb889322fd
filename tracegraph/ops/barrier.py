"""A barrier: values that the compiler must not move work across."""

from __future__ import annotations

from tracegraph.ir.op import Op
from tracegraph.ops.movement import no_flops


class Barrier(Op):
    """The operands themselves, all of them only when each of them is there.

    What is computed from the results cannot begin before the last operand exists, and is not
    merged with what is computed from the operands.
    """

    takes_zero_cotangents = True
    can_prune = True
    flops = no_flops

    def infer(self, *types):
        return types

    def vjp(self, *values):
        return values[: len(values) // 3]

    def jvp(self, tangents, *values):
        return tangents

    def batch(self, n, batched, *xs):
        return _as_tuple(self(*xs)), batched

    def depends(self, *patterns):
        return patterns

    def depending(self, inputs):
        return inputs

    def pruned(self, used):
        return self, used, used

    def numpy(self, *xs):
        return xs


def _as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)
