"""JAX's products: contractions and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax

from tracegraph.core.shapes import element_count
from tracegraph.core.types import float32, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import Equation, converts, whole_numbers
from tracegraph.jax_programs.sizes import sizes_of
from tracegraph.ops.broadcast import full
from tracegraph.ops.contract import PRECISIONS, Conv, Matmul
from tracegraph.ops.elementwise import Cast
from tracegraph.ops.shape import Reshape, Transpose, inverse


@converts("dot_general")
def _dot_general(eqn: Equation, x: Tensor, y: Tensor) -> Tensor:
    (of_x, of_y), (batch_x, batch_y) = eqn.params["dimension_numbers"]
    result = eqn.type
    x, y = _of_products(eqn, x, y)
    left, rows = _as_matrix(x, batch_x, of_x, is_left=True)
    right, columns = _as_matrix(y, batch_y, of_y, is_left=False)
    z = Matmul(_precision(eqn))(left, right)
    lead = z.type.shape[:-2]
    z = Reshape((*lead, *rows, *columns))(z)
    return z if z.dtype is result.dtype else Cast(result.dtype)(z)


def _precision(eqn: Equation) -> str:
    """The precision of the products: that of the operand which asks for more."""
    asked = eqn.params["precision"]
    each = asked if isinstance(asked, tuple) else (asked,)
    if not all(x is None or isinstance(x, lax.Precision) for x in each):
        fix = 'ask for a precision: "default", "high" or "highest"'
        eqn.refuse(f"{eqn.name} asks for the algorithm {asked}, which depends on the device", fix)
    names = ["default" if x is None else x.name.lower() for x in each]
    return max(names, key=PRECISIONS.index)


#: The kinds of numbers that products are summed in, each of which holds those before it.
_KINDS = "integer", "floating", "complex"


def _of_products(eqn: Equation, *xs: Tensor) -> list[Tensor]:
    """The operands in the type in which products are summed: the widest of theirs and the result's,
    so that nothing is cut off before the sum."""
    dtypes = [x for x in (eqn.type.dtype, *(x.dtype for x in xs)) if x.kind in _KINDS]
    dtype = max(dtypes, key=lambda x: (_KINDS.index(x.kind), x.size), default=float32)
    if dtype.is_integer and dtype.size < 4:
        dtype = int32
    return [x if x.dtype is dtype else Cast(dtype)(x) for x in xs]


def _as_matrix(
    x: Tensor, batch: Sequence[int], contracted: Sequence[int], is_left: bool
) -> tuple[Tensor, list]:
    """x as matrices with batch axes first, and the sizes of its free axes."""
    free = [axis for axis in range(x.ndim) if axis not in (*batch, *contracted)]
    inner = (*free, *contracted) if is_left else (*contracted, *free)
    order = (*batch, *inner)
    x = x if order == tuple(range(x.ndim)) else Transpose(order)(x)
    shape, b = x.type.shape, len(batch)
    first = len(free) if is_left else len(contracted)
    parts = shape[b : b + first], shape[b + first :]
    matrix = (*shape[:b], *map(element_count, parts))
    sizes = [*(parts[0] if is_left else parts[1])]
    return (x if matrix == shape else Reshape(matrix)(x)), sizes


@converts("conv_general_dilated")
def _conv_general_dilated(eqn: Equation, x: Tensor, y: Tensor) -> Tensor:
    params = eqn.params
    if 0 in eqn.type.shape:  # where the window is larger than what it slides over, too
        return full(0, eqn.type)
    numbers = params["dimension_numbers"]
    rank = x.ndim - 2
    x, y = _of_products(eqn, x, y)
    n, channels, *spatial = numbers.lhs_spec
    x = Transpose((n, *spatial, channels))(x)
    outputs, inputs, *window = numbers.rhs_spec
    y = Transpose((*window, inputs, outputs))(y)
    groups = params["feature_group_count"]
    if params["batch_group_count"] > 1:
        groups = params["batch_group_count"]
        x = _batch_into_channels(x, groups)
    op = Conv(
        whole_numbers(params["window_strides"]),
        tuple((low, high) for low, high in map(sizes_of, params["padding"])),
        whole_numbers(params["lhs_dilation"] or (1,) * rank),
        whole_numbers(params["rhs_dilation"] or (1,) * rank),
        groups,
        _precision(eqn),
    )
    z = op(x, y)
    n, channels, *spatial = numbers.out_spec
    z = Transpose(inverse((n, *spatial, channels)))(z)
    return z if z.dtype is eqn.type.dtype else Cast(eqn.type.dtype)(z)


def _batch_into_channels(x: Tensor, groups: int) -> Tensor:
    """x[groups * n, ..., c] as x[n, ..., groups * c]: each part of the examples becomes a group."""
    n, *spatial, channels = x.type.shape
    rank = len(spatial)
    x = Reshape((groups, n // groups, *spatial, channels))(x)
    x = Transpose((1, *range(2, rank + 2), 0, rank + 2))(x)
    return Reshape((n // groups, *spatial, groups * channels))(x)
