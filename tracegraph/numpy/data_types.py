"""Data types: conversion, kinds, promotion, limits."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tracegraph import array
from tracegraph.array.arguments import as_choice
from tracegraph.core.types import DType, as_dtype, int32, uint32
from tracegraph.eager.tensor_methods import check_device
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    cast_to,
    has_dtype,
    promoted,
    refuse_mix,
)
from tracegraph.typing import DTypeLike, TensorLike


def astype(
    x: TensorLike, dtype: DTypeLike, /, *, copy: builtins.bool = True, device: str | None = None
) -> Tensor:
    """x in another dtype. A tensor never changes, so `copy` has no effect.

    >>> tg.numpy.astype(tg.constant([1.5, -1.5]), tg.int32).numpy()
    array([ 1, -1], dtype=int32)
    """
    check_device("astype", device)
    return cast_to(as_tensor(x), as_dtype(dtype))


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> builtins.bool:
    """Whether a dtype is of a kind, or of one of several.

    >>> tg.numpy.isdtype(tg.float32, "real floating"), tg.numpy.isdtype(tg.int32, ("bool", tg.int8))
    (True, False)
    """
    own = as_dtype(dtype)
    if isinstance(kind, tuple):
        return builtins.any(isdtype(own, one) for one in kind)
    if isinstance(kind, DType):
        return own is kind
    found = {
        "bool": own.is_bool,
        "signed integer": own.is_integer and not own.is_unsigned,
        "unsigned integer": own.is_unsigned,
        "integral": own.is_integer,
        "real floating": own.is_floating,
        "complex floating": own.is_complex,
        "numeric": own.is_numeric,
    }
    return found[as_choice("isdtype", "kind", kind, tuple(found))]


def result_type(*arrays_and_dtypes: TensorLike | DTypeLike) -> DType:
    """The dtype to which all arguments promote; Python numbers adapt to it.

    Raises DTypeError if the dtypes do not mix, or cannot hold a number.

    >>> tg.numpy.result_type(tg.int8, tg.zeros([2], tg.uint8)), tg.numpy.result_type(tg.float64, 1)
    (tg.int16, tg.float64)
    """
    numbers = [x for x in arrays_and_dtypes if isinstance(x, _NUMBERS)]
    others = [_dtype_of(x) for x in arrays_and_dtypes if not isinstance(x, _NUMBERS)]
    first, *rest = others or [as_tensor(numbers[0]).dtype]
    for other in rest:
        x, y = (array.zeros([], dtype) for dtype in (first, other))
        first = promoted(first, other) or refuse_mix("result_type", x, y)
    for number in numbers:
        first = as_operands("result_type", array.zeros([], first), type(number)(1))[0].dtype
    return first


_NUMBERS = (builtins.bool, int, float, complex)


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> builtins.bool:
    """Whether a dtype, or that of an array, promotes to another one without loss.

    >>> tg.numpy.can_cast(tg.int8, tg.int16), tg.numpy.can_cast(tg.int32, tg.float32)
    (True, False)
    """
    own, other = _dtype_of(from_), as_dtype(to)
    return promoted(own, other) is other


@dataclass(frozen=True)
class FloatInfo:
    """The result of `finfo`, in Python's own numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """The result of `iinfo`, in Python's own numbers."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DTypeLike | Tensor, /) -> FloatInfo:
    """Limits of a floating dtype, of the parts of a complex one, or of the dtype of an array.

    >>> tg.numpy.finfo(tg.float32).eps == 2.0**-23
    True
    """
    real = _dtype_of(type).real
    found = ml_dtypes.finfo(real.numpy_dtype)
    return FloatInfo(
        bits=8 * real.size,
        eps=float(found.eps),
        max=float(found.max),
        min=float(found.min),
        smallest_normal=float(found.smallest_normal),
        dtype=real,
    )


def iinfo(type: DTypeLike | Tensor, /) -> IntegerInfo:
    """Limits of an integer dtype, or of the dtype of an array.

    >>> tg.numpy.iinfo(tg.int8).max
    127
    """
    own = _dtype_of(type)
    found = np.iinfo(own.numpy_dtype)
    return IntegerInfo(8 * own.size, int(found.max), int(found.min), own)


def sum_type(dtype: DType) -> DType:
    """The dtype for adding or multiplying elements: 32 bits for integers of 8 and 16 bits."""
    is_narrow = dtype.is_integer and dtype.size < int32.size
    return (uint32 if dtype.is_unsigned else int32) if is_narrow else dtype


def _dtype_of(value: Any) -> DType:
    return value.dtype if has_dtype(value) else as_dtype(getattr(value, "dtype", value))


__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]
