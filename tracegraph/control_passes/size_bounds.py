"""What integer scalars may be as sizes: how large, also in open sizes, and whether negative."""

from __future__ import annotations

from tracegraph.control_passes.ranges import range_of
from tracegraph.core.shapes import Size, maximum
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.constant import DimSize
from tracegraph.ops.elementwise import Cast, Maximum, Minimum, Sub


def largest_value(x: Tensor) -> Size | None:
    """The largest value of an integer scalar, as a size; None if it is not evident."""
    if (found := range_of(x)) is not None:
        return found[1]
    if x.node is None:
        return None
    op, inputs = x.node.op, x.node.inputs
    match op:
        case DimSize():
            return op.size
        case Cast():
            return largest_value(inputs[0])
        case Minimum():
            return next(filter(None, map(largest_value, inputs)), None)
        case Maximum():
            one, other = map(largest_value, inputs)
            return None if one is None or other is None else maximum(one, other)
        case Sub() if is_at_least_0(inputs[1]):
            return largest_value(inputs[0])
    return None


def is_at_least_0(x: Tensor) -> bool:
    """Whether an integer scalar is seen to be 0 or more."""
    if (found := range_of(x)) is not None:
        return found[0] >= 0
    if x.node is None:
        return False
    op, inputs = x.node.op, x.node.inputs
    match op:
        case DimSize():
            return True
        case Cast():
            return is_at_least_0(inputs[0])
        case Minimum():
            return all(map(is_at_least_0, inputs))
        case Maximum():
            return any(map(is_at_least_0, inputs))
    return False
