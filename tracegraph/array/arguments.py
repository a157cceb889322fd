"""What the functions of this package ask of shapes and axes, and the errors they raise."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegraph.errors import Mismatch, ShapeError, UnknownRank, fail, message, shown
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.runtime.convert import static_ints
from tracegraph.shapes import Dim, Shape, ShapeVariable, Size, checked_shape
from tracegraph.source import here
from tracegraph.tensorshape import TensorShape


def refuse(op: str, fact: str, *operands: Tensor, fix: str) -> NoReturn:
    """Raises ShapeError with the user's line."""
    fail(ShapeError, f"{op}: {fact}", source=here(), operands=map(operand_text, operands), fix=fix)


def refuse_mismatch(op: str, mismatch: Mismatch, *operands: Tensor) -> NoReturn:
    """Raises the error that users see for a `Mismatch`, which goes with it."""
    operand_texts = map(operand_text, operands)
    text = message(
        f"{op}: {mismatch.fact}", source=here(), operands=operand_texts, fix=mismatch.fix
    )
    error = mismatch.kind(text)
    error.mismatch = mismatch  # type: ignore[attr-defined]
    raise error from None


def sizes_of(op: str, x: Tensor) -> tuple[Size, ...]:
    """The sizes of x. Raises ShapeError if its rank is unknown."""
    shape = x.type.shape
    if isinstance(shape, ShapeVariable):
        mismatch = UnknownRank(
            f"the rank of {x.type} must be known",
            fix="give the rank in the TensorSpec, such as tg.TensorSpec([None, None])",
        )
        refuse_mismatch(op, mismatch, x)
    return shape


def rank_of(op: str, x: Tensor) -> int:
    return len(sizes_of(op, x))


def as_shape(op: str, shape: Any) -> Shape:
    """A shape from ints, symbolic sizes, arrays, tensors whose value is known, or a TensorShape."""
    if isinstance(shape, TensorShape) and isinstance(shape.variable, ShapeVariable):
        return shape.variable
    sizes = static_ints(shape, f"{op}: a shape")
    try:
        return checked_shape(sizes)
    except Mismatch as mismatch:
        refuse_mismatch(op, mismatch)


def as_size(op: str, what: str, value: Any) -> Any:
    """One integer that is known while tracing: an int or a symbolic size."""
    numbers = static_ints(value, f"{op}: {what}")
    if len(numbers) == 1 and isinstance(numbers[0], (int, Dim)):
        return numbers[0]
    refuse(op, f"{what} is {shown(value)}, and it must be one integer", fix="use an int")


def as_sizes(op: str, what: str, value: Any) -> tuple[Any, ...]:
    """Integers that are known while tracing, from a list, an array or a tensor."""
    numbers = static_ints(value, f"{op}: {what}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, Dim)):
            refuse(op, f"{what} must be integers, and there is {shown(number)}", fix="use ints")
    return numbers


def as_axis(op: str, axis: Any, rank: int, *operands: Tensor) -> int:
    """One axis, counted from the end if negative. Raises ShapeError if there is none."""
    number = axis if type(axis) is int else as_size(op, "an axis", axis)
    if not isinstance(number, int):
        refuse(op, f"{number} is not an axis", *operands, fix="an axis is an int, such as axis=-1")
    if not -rank <= number < rank:
        refuse(
            op,
            f"axis {number} is out of range for {rank} axes",
            *operands,
            fix=f"use an axis from {-rank} to {rank - 1}" if rank else "a scalar has no axes",
        )
    return number % rank


def as_axes(op: str, axis: Any, rank: int, *operands: Tensor) -> tuple[int, ...]:
    """Several axes in increasing order; all of them if `axis` is None."""
    if axis is None:
        return tuple(range(rank))
    axes = [as_axis(op, one, rank, *operands) for one in static_ints(axis, f"{op}: an axis")]
    if len(set(axes)) < len(axes):
        refuse(op, f"the axes {axes} name one axis twice", *operands, fix="give each axis once")
    return tuple(sorted(axes))


def known_int(size: Any) -> bool:
    """Whether a size is an int rather than a symbolic size."""
    return type(size) is int


def without(sizes: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """The sizes but for those of `axes`."""
    return tuple(size for axis, size in enumerate(sizes) if axis not in axes)


def with_ones(sizes: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """The sizes with 1 on `axes`."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
