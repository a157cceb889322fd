"""Checks of shapes, axes and other arguments of this package, and the errors they raise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tracegraph.array.runtime_sizes import is_open, runtime_size, with_runtime_sizes
from tracegraph.core.shapes import (
    SIZE_LIMIT,
    Dim,
    Shape,
    ShapeVariable,
    Size,
    checked_shape,
    element_count,
    same_shape,
)
from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import int32, int64, rank_fix
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    Mismatch,
    ShapeError,
    SignatureError,
    counted,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import operand_text, raise_mismatch
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    cast_to,
    require_rank,
    static_ints,
    static_value,
)
from tracegraph.operands.flags import as_flag as as_flag, refuse_kind as refuse_kind
from tracegraph.ops.constant import Sizes
from tracegraph.ops.shape import Reshape, slice_axis


def refuse(op: str, fact: str, *operands: Tensor, fix: str) -> NoReturn:
    """Raises ShapeError with the user's line."""
    fail(ShapeError, f"{op}: {fact}", operands=map(operand_text, operands), fix=fix)


def refuse_mismatch(op: str, mismatch: Mismatch, *operands: Tensor) -> NoReturn:
    """Raises the error that users see for a `Mismatch`, with the mismatch attached."""
    raise_mismatch(op, operands, mismatch, here())


def sizes_of(op: str, x: Tensor) -> tuple[Size, ...]:
    """The sizes of x. Raises ShapeError if its rank is unknown."""
    shape = x.type.shape
    if isinstance(shape, ShapeVariable):
        # A live function that catches this Mismatch retraces with the rank.
        mismatch = Mismatch(f"the rank of {x.type} must be known", fix=rank_fix(x.type))
        refuse_mismatch(op, mismatch, x)
    return shape


def rank_of(op: str, x: Tensor) -> int:
    return len(sizes_of(op, x))


def matrices(op: str, x: Any) -> Tensor:
    """A tensor of at least two axes. Raises ShapeError for any other."""
    x = as_tensor(x)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} is not a matrix", x, fix="give a tensor of at least two axes")
    return x


def square_matrices(op: str, x: Any) -> Tensor:
    """A tensor whose last two axes have one size. Raises ShapeError for any other."""
    x = matrices(op, x)
    if same_shape(x.type.shape[-2:-1], x.type.shape[-1:]) is None:
        refuse(op, f"the matrix {x.type} is not square", x, fix="give as many rows as columns")
    return x


def given(names: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an `__init__`, from its `locals()`."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__")}


def as_shape(op: str, shape: Any) -> Shape:
    """A shape from ints, symbolic sizes, arrays, tensors, or a TensorShape."""
    variable = open_rank(shape)
    if variable is not None:
        return variable
    sizes = static_ints(with_runtime_sizes(op, shape), f"{op}: a shape")
    try:
        return checked_shape(sizes)
    except Mismatch as mismatch:
        refuse_mismatch(op, mismatch)


def open_rank(shape: Any) -> ShapeVariable | None:
    """The shape of unknown rank that `x.shape` or `tg.shape(x)` stands for, or None."""
    if isinstance(shape, ShapeVariable):
        return shape
    if isinstance(shape, TensorShape) and isinstance(shape.variable, ShapeVariable):
        return shape.variable
    if isinstance(shape, Tensor) and shape.node is not None and isinstance(shape.node.op, Sizes):
        return open_rank(shape.node.op.shape)
    return None


def as_size(op: str, what: str, value: Any) -> Any:
    """One integer that is known while tracing: an int or a symbolic size."""
    numbers = as_sizes(op, what, value)
    if len(numbers) == 1:
        return numbers[0]
    refuse(op, f"{what} is {shown(value)}, and it must be one integer", fix="use an int")


def as_count(op: str, what: str, value: Any) -> Any:
    """A nonnegative size; for a tensor not known while tracing, its value at run time."""
    if is_open(value):
        return runtime_size(op, as_tensor(value))
    number = as_size(op, what, value)
    if known_int(number) and number < 0:
        refuse(op, f"{what} is {number}", fix="use an int of zero or more")
    return number


def as_sizes(op: str, what: str, value: Any) -> tuple[Any, ...]:
    """Integers that are known while tracing, from a list, an array or a tensor."""
    numbers = static_ints(value, f"{op}: {what}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, Dim)):
            fact = f"{what} must be made of integers, and {shown(number)} is {kind_of(number)}"
            refuse(op, fact, fix="use ints")
        if known_int(number) and not -SIZE_LIMIT <= number < SIZE_LIMIT:
            fact = f"{op}: {what} has {number}, which has more than 64 bits"
            fail(InvalidArgumentError, fact, fix="check the sizes: one of them is far too large")
    return numbers


def known_array(op: str, x: Tensor, fix: str) -> np.ndarray:
    """The value of a tensor that determines the shape of the result. Raises ShapeError with the fix
    if it is not known while tracing."""
    value = static_value(x)
    if value is None:
        require_rank(x)
        refuse(
            op,
            f"the shape of the result depends on the value of {x.type}, which is not known while "
            "tracing",
            x,
            fix=fix,
        )
    return np.asarray(value)


def as_open_numbers(op: str, what: str, value: Any) -> list[Any]:
    """Integers from a list, an array or a tensor that do not determine shapes. Those known only at
    run time are scalar int64 tensors."""
    if not is_open(value):
        return list(as_sizes(op, what, value))
    parts = value if isinstance(value, (list, tuple)) else [value]
    found: list[Any] = []
    for part in parts:
        if not is_open(part):
            found += as_sizes(op, what, part)
        else:
            x = as_integers(op, what, part)
            count = element_count(sizes_of(op, x))
            flat = Reshape((count,))(cast_to(x, int64))
            found += [Reshape(())(slice_axis(flat, 0, k, k + 1)) for k in range(count)]
    return found


def as_open_number(op: str, what: str, value: Any) -> Any:
    """One integer, as a scalar int64 tensor if it is known only at run time."""
    numbers = as_open_numbers(op, what, value)
    if len(numbers) == 1:
        return numbers[0]
    refuse(op, f"{what} is {shown(value)}, and it must be one integer", fix="use an int")


class AxisError(ShapeError, IndexError):
    """A ShapeError, where NumPy also raises IndexError: the axis does not exist."""


def as_axis(op: str, axis: Any, rank: int, *operands: Tensor) -> int:
    """One axis, counted from the end if negative. Raises ShapeError if it does not exist."""
    number = axis if type(axis) is int else as_size(op, "an axis", axis)
    if not isinstance(number, int):
        refuse(op, f"{number} is not an axis", *operands, fix="an axis is an int, such as axis=-1")
    if not -rank <= number < rank:
        fail(
            AxisError,
            f"{op}: axis {number} is out of range for {counted(rank, 'axis', 'axes')}",
            operands=map(operand_text, operands),
            fix=f"use an axis from {-rank} to {rank - 1}" if rank else "a scalar has no axes",
        )
    return number % rank


def as_axes(op: str, axis: Any, rank: int, *operands: Tensor) -> tuple[int, ...]:
    """Several axes in increasing order; all of them if `axis` is None."""
    if axis is None:
        return tuple(range(rank))
    axes = [as_axis(op, one, rank, *operands) for one in as_sizes(op, "an axis", axis)]
    if len(set(axes)) < len(axes):
        refuse(op, f"the axes {axes} name one axis twice", *operands, fix="give each axis once")
    return tuple(sorted(axes))


def as_number(
    op: str,
    what: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    below: float = math.inf,
) -> Any:
    """A Python number that is known while tracing, from `low` to `high`, and below `below`.

    Raises DTypeError for anything but a number, ValueError for one that is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, _REAL):
        refuse_kind(op, f"{what} is a number", value, fix="use a Python float")
    if not (low <= value <= high and value < below):
        upper = f" to below {_bound(below)}" if below < math.inf else f" to {_bound(high)}"
        bounds = f"from {_bound(low)}" + (upper if min(high, below) < math.inf else " on")
        fail(SignatureError, f"{op}: {what} is {value}", fix=f"use a number {bounds}")
    return value


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


_REAL = (int, float, np.integer, np.floating)


def as_choice(op: str, what: str, value: Any, choices: Sequence[Any]) -> Any:
    """One of a few allowed values, usually strings."""
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    allowed = " or ".join(map(repr, choices)).replace("'", '"')
    fail(SignatureError, f"{op}: {what} is {shown(value)}", fix=f"use {allowed}")


def as_function(op: str, what: str, value: Any) -> Any:
    """A callable. Raises DTypeError (a TypeError) for anything else."""
    if callable(value):
        return value
    refuse_kind(op, f"{what} is a function", value, fix="give what can be called, such as a lambda")


def identified(what: str, identifier: Any, by_name: Mapping[str, type]) -> Any:
    """An instance of the class that is named or given; a function, or None, unchanged.
    Raises SignatureError (a ValueError) for an unknown name."""
    if isinstance(identifier, str) and identifier in by_name:
        return by_name[identifier]()
    if isinstance(identifier, type):
        return identifier()
    if identifier is None or callable(identifier):
        return identifier
    fail(
        SignatureError,
        f"{shown(identifier)} is not a {what}",
        fix=f"use a function of a tensor, or one of {', '.join(by_name)}",
    )


def as_list(op: str, what: str, value: Any) -> Sequence[Any]:
    """A list or a tuple. Raises DTypeError (a TypeError) for anything else."""
    if isinstance(value, (list, tuple)):
        return value
    refuse_kind(op, f"{what} is a list", value, fix="put them in a list")


def as_integers(op: str, what: str, value: Any) -> Tensor:
    """A tensor of integers, whose values may be unknown. Raises DTypeError for other dtypes."""
    x = as_tensor(value)
    if x.dtype.is_integer:
        return x
    if x.dtype.is_floating and x.type.is_static and 0 in x.type.shape:
        return cast_to(x, int32)  # an empty list has no dtype
    fail(
        DTypeError,
        f"{op}: {what} are {x.type}, and they must be integers",
        operands=[operand_text(x)],
        fix=f"convert them: tg.cast({what.split()[-1]}, tg.int32)",
    )


def as_inexact(op: str, value: Any) -> Tensor:
    """A tensor of floating or complex numbers. Raises DTypeError for other dtypes."""
    x = as_tensor(value)
    if x.dtype.is_differentiable:
        return x
    fail(
        DTypeError,
        f"{op}: the operand is {x.type}, and only floating or complex types are allowed",
        operands=[operand_text(x)],
        fix="convert it: tg.cast(x, tg.float32)",
    )


def known_int(size: Any) -> bool:
    """Whether a size is an int rather than a symbolic size."""
    return type(size) is int


def without(sizes: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """The sizes without those of `axes`."""
    return tuple(size for axis, size in enumerate(sizes) if axis not in axes)


def with_ones(sizes: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """The sizes with 1 for `axes`."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
