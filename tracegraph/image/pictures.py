"""Checks of the arguments of image functions."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import rank_of, refuse
from tracegraph.array.creation import saturate_cast
from tracegraph.core.shapes import same_size
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import floordiv, multiply
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.shape import with_size


def as_images(op: str, value: Any, ranks: tuple[int, ...] = ()) -> Tensor:
    """[..., height, width, channels]. Raises ShapeError for fewer axes, or for a rank that is not
    in `ranks`."""
    x = as_tensor(value)
    rank = rank_of(op, x)
    if rank < 3 or (ranks and rank not in ranks):
        wanted = " or ".join(map(str, ranks)) if ranks else "3 or more"
        fact = f"{x.type} does not have {wanted} axes"
        refuse(op, fact, x, fix="give [height, width, channels], or [examples, height, ...]")
    return x


def as_pixels(op: str, value: Any) -> Tensor:
    """As `as_images`. Raises ShapeError for images that are known to have no pixels."""
    x = as_images(op, value)
    if 0 in x.type.shape[-3:]:
        fix = "leave out images without rows, columns or channels"
        refuse(op, f"{x.type} has no pixels", x, fix=fix)
    return x


def as_colours(op: str, value: Any) -> Tensor:
    """[..., 3] of floating dtype. Raises ShapeError unless the last size is 3, DTypeError for
    integers."""
    x = as_tensor(value)
    if not rank_of(op, x) or same_size(x.type.shape[-1], 3) is None:
        refuse(op, f"{x.type} does not have 3 channels", x, fix="give [..., 3]")
    if not x.dtype.is_floating:
        fail(
            DTypeError,
            f"{op}: the operand is {x.type}, and colours are floating numbers from 0 to 1",
            operands=[operand_text(x)],
            fix="convert it: tg.image.convert_image_dtype(x, tg.float32)",
        )
    return with_size(x, x.ndim - 1, 3)


def as_floating(x: Tensor) -> Tensor:
    """Floating images unchanged, and integers scaled to [0, 1]."""
    return x if x.dtype.is_floating else converted("convert_image_dtype", x, float32, False)


def converted(op: str, x: Tensor, dtype: Any, saturate: bool) -> Tensor:
    """Images of another dtype, where the largest value of an integer dtype corresponds to 1.0."""
    kind = as_dtype(dtype)
    for one in (x.dtype, kind):
        if not (one.is_floating or one.is_integer):
            fact = f"{op}: images are floating numbers or integers, not {one.name}"
            fail(DTypeError, fact, fix="use tg.cast")
    if x.dtype is kind:
        return x
    cast = saturate_cast if saturate else cast_to
    if x.dtype.is_integer and kind.is_integer:
        return _rescaled(x, kind, cast)
    if x.dtype.is_floating and kind.is_floating:
        return cast_to(x, kind)
    if x.dtype.is_integer:
        return multiply(cast_to(x, kind), 1.0 / int(x.dtype.max))
    return cast(multiply(x, float(kind.max) + 0.5), kind)  # one half, so that 1 is not rounded down


def _rescaled(x: Tensor, kind: DType, cast: Any) -> Tensor:
    """Rescales integers by a power of two, which stays in the range of both dtypes."""
    own, other = int(x.dtype.max) + 1, int(kind.max) + 1
    if own > other:
        return cast(floordiv(x, own // other), kind)
    return multiply(cast(x, kind), other // own)
