"""Constants, counting, and sizes as values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph.core.lru_cache import Memo
from tracegraph.core.shapes import Dim, Shape, Size, axis_count, is_static
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import DType, TensorType, int32, int64, type_of_array
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, MissingRule, Op, WithoutDerivative
from tracegraph.ir.tensor import Tensor


class Nullary(WithoutDerivative, abstract=True):
    """An op without operands: nothing flows back through it, and iterations share it."""

    def batch(self, n: Size, batched: tuple[bool, ...]) -> Batched:
        return self(), False

    def depends(self) -> Pattern:
        raise NotImplementedError(f"{self.name} has no operand to depend on")


class Constant(Nullary):
    """A value that is part of the graph: a NumPy array, small."""

    value: np.ndarray

    def __init__(self, value: Any) -> None:
        frozen = np.array(value)  # a copy: the caller's array may change
        frozen.flags.writeable = False
        Op.__init__(self, frozen)

    def infer(self) -> TensorType:
        return type_of_array(self.value)

    def numpy(self) -> np.ndarray:
        return self.value


class DimSize(Nullary):
    """The value of a size that is known only when the graph runs, as an int32 scalar."""

    size: Dim | int

    def infer(self) -> TensorType:
        _check_sizes(self.size)
        return TensorType(int32, ())

    def numpy(self) -> np.ndarray:
        return np.int32(self.size) if isinstance(self.size, int) else NotImplemented


class Sizes(Nullary):
    """The sizes of a shape, of which even the number may be open, as an int32 vector."""

    shape: Shape

    def infer(self) -> TensorType:
        if isinstance(self.shape, tuple):
            _check_sizes(*self.shape)
        return TensorType(int32, (axis_count(self.shape),))

    def numpy(self) -> np.ndarray:
        return np.array(self.shape, np.int32) if is_static(self.shape) else NotImplemented


def _check_sizes(*sizes: Size) -> None:
    for size in sizes:
        if isinstance(size, int) and size > int32.max:
            raise Mismatch(
                f"a size is {size:,}, and sizes that are computed with are int32 numbers",
                fix=f"use sizes up to {int32.max:,}",
            )


class Iota(Nullary):
    """0, 1, ..., size - 1"""

    size: Dim | int
    dtype: DType

    def infer(self) -> TensorType:
        if self.dtype.kind not in ("integer", "floating"):
            raise DTypeMismatch(
                f"counting makes integers or floating numbers, not {self.dtype.name}",
                fix="use tg.int32",
            )
        return TensorType(self.dtype, (self.size,))

    def numpy(self) -> np.ndarray:
        if not isinstance(self.size, int):
            return NotImplemented
        return np.arange(self.size).astype(self.dtype.numpy_dtype)


class RuntimeSize(WithoutDerivative):
    """A value as a size: `n -> i32[size]`, the numbers 0, 1, ..., n - 1, by whose shape n is known.

    A program of XLA has fixed shapes, so a run is cut here: the program before gives n, and what
    follows is compiled for that size, which is called `size` in the graph. A negative n is an
    error, which states `fact` and `fix` if these are given.
    """

    size: Dim
    fact: str = ""
    fix: str = ""

    @property
    def cuts_runs(self) -> bool:
        return True

    def infer(self, n: TensorType) -> TensorType:
        if n.dtype is not int64 or n.shape != ():
            raise DTypeMismatch(f"a size is {n}, and it must be one integer", fix="use an int64")
        return TensorType(int32, (self.size,))

    def batch(self, n: Size, batched: tuple[bool, ...], count: Tensor) -> Batched:
        raise Mismatch(
            "a size is computed in a parallel loop, and each iteration may have another one",
            fix="keep all elements and a mask: tg.where(mask, x, 0)",
        )

    def depends(self, n: Pattern) -> Pattern:
        raise MissingRule(self, "sparsity")


def constant_value(x: Tensor) -> np.ndarray | None:
    """The value of a tensor that is a constant of its graph; None for any other."""
    return x.node.op.value if x.node is not None and isinstance(x.node.op, Constant) else None


def constant(value: Any, dtype: DType | None = None) -> Tensor:
    """A node of a constant value, with the dtype of the array unless one is given."""
    if dtype is None or type(value) not in (int, float):
        return Constant(np.asarray(value, dtype.numpy_dtype if dtype else None))()
    key = (repr(value), dtype.name)  # by text, which tells -0.0 from 0.0 and 1 from 1.0
    op = _numbers.get(key)
    if op is None:
        op = _numbers.remember(key, Constant(np.asarray(value, dtype.numpy_dtype)))
    return op()


#: Constants of Python numbers, which rules and the library make again and again.
_numbers: Memo[tuple[str, str], Constant] = Memo(1024)
