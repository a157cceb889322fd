"""Arrays of which each process holds a part."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from tracegraph.core.source import here
from tracegraph.core.types import TensorType, type_of_array
from tracegraph.eager import backend
from tracegraph.eager.layouts import Layout, as_layout
from tracegraph.errors import InvalidArgumentError, Mismatch, ShapeError, TraceError, fact_of, fail
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_array
from tracegraph.ops.layout import check_division
from tracegraph.typing import LayoutLike, TensorLike


def _refuse_while_tracing() -> NoReturn:
    fail(
        TraceError,
        "from_local was called while a function is traced, which each process does once",
        source=here(),
        fix="call it outside, and pass the tensor as an argument",
    )


def _check_division(part: np.ndarray, layout: Layout) -> None:
    """Raises ShapeError where the devices of this process do not divide its part."""
    mesh = layout.mesh.jax_mesh
    if not mesh.local_devices:
        return  # it is refused as a mesh
    here = dict(mesh.local_mesh.shape)
    try:
        check_division(here, layout.axes, part.shape)
    except Mismatch as mismatch:
        whose = "" if here == layout.mesh.shape else ", of the devices of this process"
        fail(ShapeError, f"from_local: {mismatch.fact}{whose}", fix=mismatch.fix)


def from_local(array: TensorLike, layout: LayoutLike) -> Tensor:
    """Assembles one tensor, to which each process contributes the part on its own devices, such as
    its share of a batch.

    - `array`: the part of this process, which is copied. All parts have the same shape; for an axis
      that the layout does not divide among processes, each passes all of it. Processes that pass
      the same part must pass the same values, which are compared.
    - `layout`: a Layout, a `jax.sharding.NamedSharding`, or inside `with mesh:` a list of axes.

    With one process, the part is the whole. If the main threads of processes that watch each other
    pass parts of different shapes, dtypes or layouts, all end with a message. Raises ShapeError (a
    ValueError) for a part of another rank, and for a size that the devices of this process do not
    divide; DistributedError where processes pass different values of one part; TraceError (a
    TypeError) inside a function.

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
    _check_division(part, found)
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
