"""Layouts of tensors: the op that sets one."""

from __future__ import annotations

from tracegraph.eager.layouts import Layout, Mesh, as_layout, laid_out
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import LayoutLike, TensorLike


def with_layout(x: TensorLike, layout: LayoutLike) -> Tensor:
    """Shards x over the devices of a mesh. The value is unchanged; derivatives with respect to it
    have the same layout.

    - `layout`: a Layout, a `jax.sharding.NamedSharding`, or inside `with mesh:` a list of axes.

    In a function it is a node, which is printed and saved. XLA chooses how to shard the tensors
    computed from it, up to the next one with a layout. Raises ShapeError (a ValueError) for a
    layout of another rank, and for a size that an axis of the mesh does not divide.

    >>> with tg.distribute.Mesh({"data": 1}):
    ...     tg.distribute.with_layout([1.0, 2.0], ["data"]).numpy()
    array([1., 2.], dtype=float32)
    """
    tensor = as_tensor(x)
    return laid_out(tensor, as_layout(layout, tensor.type.rank or 0))


__all__ = ["Layout", "Mesh", "with_layout"]
