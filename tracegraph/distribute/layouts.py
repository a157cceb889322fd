"""Layouts of tensors: the op that sets one."""

from __future__ import annotations

from tracegraph.eager.layouts import Layout, Mesh, as_layout, check_memory, laid_out
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import LayoutLike, TensorLike


def with_layout(x: TensorLike, layout: LayoutLike) -> Tensor:
    """Shards x over the devices of a mesh. The value is unchanged; derivatives with respect to it
    have the same layout.

    - `layout`: a Layout, a `jax.sharding.NamedSharding`, or inside `with mesh:` a list of axes.

    In a function it is a node, which is printed and saved. What is computed from it is divided as
    XLA finds best, up to the next tensor that has a layout. Raises ShapeError (a ValueError) for
    a layout of another rank, and for a size that an axis of the mesh does not divide;
    SignatureError (a TypeError) for a sharding in the memory of the host, where Variables alone
    may be.

    >>> with tg.distribute.Mesh({"data": 1}):
    ...     tg.distribute.with_layout([1.0, 2.0], ["data"]).numpy()
    array([1., 2.], dtype=float32)
    """
    tensor = as_tensor(x)
    check_memory("with_layout", layout)
    return laid_out(tensor, as_layout(layout, tensor.type.rank or 0))


__all__ = ["Layout", "Mesh", "with_layout"]
