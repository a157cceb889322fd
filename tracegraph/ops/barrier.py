"""A barrier: values that the compiler must not move work across."""

from __future__ import annotations

import numpy as np

from tracegraph.core.shapes import Size
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.ir.op import Batched, Derivative, Op, Tangents
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.movement import no_flops


class Barrier(Op):
    """The operands themselves, all of them only when each of them is there.

    What is computed from the results cannot begin before the last operand exists, and is not
    merged with what is computed from the operands.
    """

    takes_zero_cotangents = True
    can_prune = True
    flops = no_flops

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return types

    def vjp(self, *values: Tensor | None) -> Derivative:
        return values[: len(values) // 3]

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        return tangents

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        return _as_tuple(self(*xs)), batched

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        return patterns

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        return inputs

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        return self, used, used

    def numpy(self, *xs: np.ndarray) -> tuple[np.ndarray, ...]:
        return xs


def _as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
