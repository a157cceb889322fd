"""Sizes found at run time: a value of the graph as the size of an axis.

A tensor that determines a shape gets a name, which is an open size from there on; see
`ops.constant.RuntimeSize`. Sizes that provably differ by a known number share one name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.array.expressions import as_known, difference
from tracegraph.core.later import opened
from tracegraph.core.shapes import Dim, ShapeVariable, Size, element_count, least
from tracegraph.core.types import TensorType, int64
from tracegraph.errors import ShapeError, fail
from tracegraph.ir.builder import Builder, current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    captured_value,
    cast_to,
    has_dtype,
    refuse_part,
    require_rank,
    static_value,
)
from tracegraph.ops.broadcast import Sum, full
from tracegraph.ops.constant import Constant, RuntimeSize
from tracegraph.ops.elementwise import MAXIMUM, Cast
from tracegraph.ops.reduce import Max
from tracegraph.ops.shape import Concatenate, Reshape, slice_axis, with_sizes
from tracegraph.ops.sort import TrueIndices
from tracegraph.tensor_arrays.tensor_array import run_size
from tracegraph.tracing.trace import is_in_step

#: How many sizes to search for one that differs by a known number.
_LOOK_BACK = 16


def runtime_size(
    op: str, n: Tensor, clamps: bool = False, negative: tuple[str, str] = ("", "")
) -> Size:
    """The value of an integer scalar, unknown while tracing, as a size; if it `clamps`, 0 for a
    negative value. Otherwise such a value is an error, which states the fact and the fix
    `negative`."""
    if not n.dtype.is_integer or n.type.shape != ():
        fail(
            ShapeError,
            f"{op}: a size is {n.type}, and it must be one integer",
            operands=[operand_text(n)],
            fix="pick one element, or convert it: tg.cast(n, tg.int32)",
        )
    value = captured_value(n)
    known = None if value is None else as_known(value)
    if isinstance(known, int):
        return max(known, 0) if clamps else known
    if isinstance(known, Dim) and not (clamps and _may_be_negative(known)):
        return known
    require_rank(n)  # the rank may be known when tracing restarts
    n = cast_to(n, int64)
    builder, n = _before_loops(n, clamps) or (current(), n)
    for node in _last_sizes(builder):
        apart = difference(n, node.inputs[0])
        # A size read before is at least 0; a smaller one may be negative, and is then clamped.
        if apart is not None and not (clamps and _may_be_negative(apart)):
            return node.op.size + apart
    if clamps:
        (zero,) = builder.add(Constant(np.int64(0)), ())
        (n,) = builder.add(MAXIMUM, (n, zero))
    size = Dim.named(builder.new_size_name())
    builder.add(RuntimeSize(size, *negative), (n,))
    return size


def _before_loops(n: Tensor, clamps: bool) -> tuple[Builder, Tensor] | None:
    """Where a size in a step of a loop is found instead, and its value there."""
    if not is_in_step():
        return None
    # Few programs need it.
    return opened("tracegraph.array.sizes_before_loops").value_before_loops(n, clamps)


def _may_be_negative(size: Size) -> bool:
    lowest = least(size)
    return lowest is None or lowest < 0


def _last_sizes(builder: Builder) -> list[Any]:
    """The nodes of a graph being built that read sizes, the last one first."""
    found = [node for node in builder.nodes if type(node.op) is RuntimeSize]
    return found[: -_LOOK_BACK - 1 : -1]


def is_open(value: Any) -> bool:
    """Whether a value, or one in a list of values, is known only at run time."""
    if isinstance(value, (list, tuple)):
        return any(map(is_open, value))
    return has_dtype(value) and captured_value(as_tensor(value)) is None


def with_runtime_sizes(op: str, shape: Any) -> Any:
    """The elements of a shape, with sizes in place of the numbers known only at run time."""
    if not is_open(shape):
        return shape
    if isinstance(shape, (list, tuple)):
        return [_size_of_part(op, part) for part in shape]
    return _sizes_of_part(op, shape)


def _size_of_part(op: str, part: Any) -> Any:
    if is_open(part) and isinstance((x := as_tensor(part)).type.shape, ShapeVariable):
        part = with_sizes(x, ())  # which each run checks
    sizes = _sizes_of_part(op, part)
    if len(sizes) != 1:
        refuse_part(f"{op}: a shape", as_tensor(part))
    return sizes[0]


def _sizes_of_part(op: str, part: Any) -> list[Any]:
    if not is_open(part):
        return [part]
    x = as_tensor(part)
    if x.type.shape == ():
        return [runtime_size(op, x)]
    if x.ndim != 1 or not isinstance(x.type.shape[0], int):
        fail(
            ShapeError,
            f"{op}: a shape is given by {x.type}, so the number of its axes is not known",
            operands=[operand_text(x)],
            fix="give a vector of known length, or a list of sizes",
        )
    elements = [Reshape(())(slice_axis(x, 0, k, k + 1)) for k in range(x.type.shape[0])]
    return [runtime_size(op, y) if is_open(y) else y for y in elements]


def size_of_value(op: str, n: Tensor) -> Size:
    """The value of an integer scalar as a size: an int if it is known."""
    known = static_value(n)
    return runtime_size(op, n) if known is None else as_known(known)


def largest(x: Tensor, low: int) -> Tensor:
    """The maximum of the integers in x and `low`, as an int64 scalar."""
    flat = Reshape((element_count(x.type.shape),))(cast_to(x, int64))
    with_low = Concatenate(0)(flat, full(low, TensorType(int64, (1,))))
    return Max((0,))(with_low)


def true_positions(op: str, mask: Tensor) -> Tensor:
    """The positions where a bool vector is true, in order, as int32; their number is found at run
    time."""
    return TrueIndices(runtime_size(op, Sum((0,))(Cast(int64)(mask))))(mask)


run_size.append(runtime_size)
