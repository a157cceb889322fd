"""Arrays of which each process holds a part."""

from __future__ import annotations

from typing import NoReturn

from tracegraph.core.source import here
from tracegraph.core.types import TensorType, type_of_array
from tracegraph.eager import backend
from tracegraph.eager.layouts import as_layout
from tracegraph.errors import InvalidArgumentError, ShapeError, TraceError, fact_of, fail
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_array
from tracegraph.typing import LayoutLike, TensorLike


def _refuse_while_tracing() -> NoReturn:
    fail(
        TraceError,
        "from_local was called while a function is traced, which each process does once",
        source=here(),
        fix="call it outside, and pass the tensor as an argument",
    )


def from_local(array: TensorLike, layout: LayoutLike) -> Tensor:
    """Assembles one tensor, to which each process contributes the part on its own devices, such as
    its share of a batch.

    - `array`: the part of this process, which is copied. All parts have the same shape; for an axis
      that the layout does not divide among processes, each passes all of it.
    - `layout`: a Layout, a `jax.sharding.NamedSharding`, or inside `with mesh:` a list of axes.

    With one process, the part is the whole. Raises ShapeError (a ValueError) for a part of another
    rank, and for a size that the devices of this process do not divide; TraceError (a TypeError)
    inside a function.

    >>> with tg.distribute.Mesh({"data": 1}):
    ...     tg.distribute.from_local([1.0, 2.0], ["data"]).numpy()
    array([1., 2.], dtype=float32)
    """
    if isinstance(array, Tensor) and not current().is_top_level:  # it may have no value
        _refuse_while_tracing()
    part = as_array(array)
    found = as_layout(layout, part.ndim)
    if len(found.axes) != part.ndim:
        fail(
            ShapeError,
            f"from_local: the part of this process has {part.ndim} axes, and the layout is of "
            f"{len(found.axes)}",
            fix="give one entry of the layout for each axis of the array",
        )
    if not current().is_top_level:
        _refuse_while_tracing()
    try:
        buffer = backend.from_local(part, found.sharding)
    except InvalidArgumentError:
        raise  # one of our own errors, about the mesh
    except ValueError as error:
        fail(
            ShapeError,
            f"from_local: a part of shape {part.shape} does not fit {found}: {fact_of(error)}",
            fix="give parts whose sizes the devices of one process divide",
            cause=error,
        )
    dtype = type_of_array(part).dtype
    return Tensor(TensorType(dtype, tuple(buffer.shape)), buffer)
