"""The trace of one call of a function that is traced at every call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracegraph.core.source import Source
from tracegraph.core.types import type_of_array
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.ops.constant import Constant
from tracegraph.tracing.trace import Trace, Traced


class CallTrace(Trace):
    """The trace of one call. Code called repeatedly at top level captures the numbers and arrays
    that it uses, as the top level itself does: when they change, the graph stays the same.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        outer = self.outer
        self._is_lifting: bool = outer.is_top_level or (
            isinstance(outer, CallTrace) and outer._is_lifting
        )
        self.create_as_outer()

    def add(
        self, op: Op, inputs: tuple[Tensor, ...], source: Source | None = None
    ) -> tuple[Tensor, ...]:
        if self._is_lifting and type(op) is Constant and self.reuse is None and _varies(op.value):
            return (self.admit(host_tensor(op.infer(), op.value)),)
        return super().add(op, inputs, source)

    def traced(self, results: Sequence[Tensor]) -> Traced:
        self.take_sizes()
        return super().traced(results)


def _varies(value: np.ndarray) -> bool:
    """Whether a constant may change: integers are structure, and so are 0 and 1."""
    is_plain = not value.any() or (value.ndim == 0 and value in (1, -1))
    return type_of_array(value).dtype.is_differentiable and not is_plain
