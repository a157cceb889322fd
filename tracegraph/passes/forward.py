"""The forward-mode pass."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.ir.tensor import Node, Tensor
from tracegraph.passes.common_subexpressions import derive
from tracegraph.passes.walk import push_forward


def jvp(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    tangents: Sequence[Tensor],
) -> list[Tensor | None]:
    """Builds sum_i dy/dxs[i] tangents[i] through `nodes`; one per y, None where unconnected."""
    nodes = tuple(nodes)

    def compute() -> list[Tensor | None]:
        known = dict(zip(xs, tangents, strict=True))
        push_forward(nodes, known, "jvp")
        return [known.get(y) for y in ys]

    return derive(nodes, compute)
