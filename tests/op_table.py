"""One row or more per op: the operands it is tried on, and what is known about it.

`tests/ops/test_ops.py` runs every row through the whole contract of an op.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import linalg as linear, special

from tracegraph.calls.call import Call
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import recomputed
from tracegraph.control.branch import Cond, Switch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.core.types import (
    DType,
    TensorType,
    bfloat16,
    bool_,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph
from tracegraph.ops import (
    barrier,
    broadcast,
    constant,
    contract,
    decomposition,
    effect,
    elementwise,
    fourier,
    image,
    index,
    layout,
    linalg,
    matrix_function,
    random,
    reduce,
    shape,
    sort,
    special as special_ops,
)


@dataclass(frozen=True)
class Operand:
    """The shape of an operand, how its values are drawn, and its type if that is fixed."""

    shape: tuple[int, ...]
    sample: str = "normal"
    dtype: DType | None = None
    high: int = 0

    def type(self, dtype: DType) -> TensorType:
        return TensorType(self.dtype or dtype, self.shape)


@dataclass(frozen=True, eq=False)
class Case:
    """An op, its operands, and how far it is tried."""

    op: Op
    operands: tuple[Operand, ...] = ()
    #: Kinds of data types that the operands without a type may have: f, c, i, b.
    kinds: str = "fc"
    #: Data types of these kinds that the op refuses all the same.
    refuses: tuple[DType, ...] = ()
    #: Whether this is one more row, which is tried in some of the types only.
    is_extra: bool = False
    #: The highest order of derivatives that is checked.
    order: int = 3
    #: What derivatives are checked against: JAX's derivative of the lowering, and differences.
    against: tuple[str, ...] = ("jax", "differences")
    #: What they are checked against for complex numbers.
    against_complex: tuple[str, ...] = ("jax", "differences")
    #: Whether the pattern must equal that of the numeric Jacobian, not only cover it.
    is_exact: bool = False
    #: The value by somebody else, where the op has no rule for NumPy.
    reference: Callable[..., Any] | None = None
    #: JAX's function, where JAX cannot differentiate the lowering.
    by_jax: Callable[..., Any] | None = None
    #: Relative to the largest element; for double precision.
    tolerance: float = 1e-9
    #: For the narrow types, in units of their precision.
    slack: float = 16.0
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op!r}({', '.join(str(list(x.shape)) for x in self.operands)}){self.label}"

    @property
    def family(self) -> str:
        return type(self.op).__module__.rpartition(".")[2]

    @property
    def own_dtype(self) -> DType:
        """The double precision type in which derivatives are checked."""
        return float64 if "f" in self.kinds or not self.kinds else self.first_dtype

    @property
    def first_dtype(self) -> DType:
        return {"c": complex128, "i": int32, "b": bool_}[self.kinds[0]]

    def types(self, dtype: DType) -> tuple[TensorType, ...]:
        return tuple(x.type(dtype) for x in self.operands)

    def values(self, dtype: DType) -> list[np.ndarray]:
        """The same values each time, wherever the lines of a program in the op stand."""
        name = re.sub(r" +at \S+:\d+", "", self.name)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return [draw(rng, x, x.dtype or dtype) for x in self.operands]

    def __str__(self) -> str:
        return self.name


def draw(rng: np.random.Generator, operand: Operand, dtype: DType) -> np.ndarray:
    if dtype.is_bool:
        return rng.random(operand.shape) < 0.5
    if dtype.is_integer:
        return _draw_integer(rng, operand, dtype)
    values = SAMPLES[operand.sample](rng, operand.shape)
    if dtype.is_complex:
        values = values + 1j * (0.3 * rng.standard_normal(operand.shape) + 0.1)
    return np.asarray(values).astype(dtype.numpy_dtype)


def _draw_integer(rng: np.random.Generator, operand: Operand, dtype: DType) -> np.ndarray:
    is_signed = not dtype.name.startswith("uint")
    low, high = (-4 if is_signed else 0), 5
    if operand.high:
        low, high = 0, operand.high
    if operand.sample == "key":
        low, high = 0, 1 << 32
    if operand.sample in ("positive", "nonzero"):
        low = 1
    if operand.sample == "apart":
        values = rng.permutation(int(np.prod(operand.shape))).reshape(operand.shape)
        return (values - (3 if is_signed else 0)).astype(dtype.numpy_dtype)
    return rng.integers(low, high, operand.shape).astype(dtype.numpy_dtype)


def _apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of which no two are near each other."""
    count = int(np.prod(shape))
    return (rng.permutation(count) - count / 2 + 0.3).reshape(shape) * (4 / max(count, 1))


def _with_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = 0.5 + rng.random(shape)
    values.reshape(-1)[:: max(values.size // 4, 1)] = 0
    return values


def _regular(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices far from having no inverse, whose Hermitian parts are positive definite."""
    return 0.4 * rng.standard_normal(shape) + 3 * np.eye(shape[-1])


SAMPLES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: 0.5 + 1.5 * rng.random(shape),
    "unit": lambda rng, shape: 1.6 * rng.random(shape) - 0.8,
    "above_one": lambda rng, shape: 1.2 + 2 * rng.random(shape),
    "nonzero": lambda rng, shape: (
        (0.4 + rng.random(shape)) * np.where(rng.random(shape) < 0.5, -1, 1)
    ),
    "off_integers": lambda rng, shape: rng.integers(-3, 4, shape) + 0.2 + 0.6 * rng.random(shape),
    "off_halves": lambda rng, shape: rng.integers(-3, 4, shape) + 0.4 * rng.random(shape),
    "apart": _apart,
    "with_zeros": _with_zeros,
    "regular": _regular,
    "fraction": lambda rng, shape: 0.1 + 0.8 * rng.random(shape),
    "small": lambda rng, shape: 0.16 * rng.random(shape) - 0.08,
    "near_one": lambda rng, shape: 0.92 + 0.16 * rng.random(shape),
    "tiny": lambda rng, shape: 1e-3 * rng.random(shape),
}


def x(*sizes: int, sample: str = "normal") -> Operand:
    """An operand of the type that is tried."""
    return Operand(sizes, sample)


def of(dtype: DType, *sizes: int, sample: str = "normal") -> Operand:
    """An operand of one type only."""
    return Operand(sizes, sample, dtype)


def at(high: int, *sizes: int, dtype: DType = int32) -> Operand:
    """Indices below `high`."""
    return Operand(sizes, "normal", dtype, high)


def apart(*sizes: int) -> Operand:
    return x(*sizes, sample="apart")


KEY = Operand((2,), "key", uint32)
KEYS = Operand((3, 2), "key", uint32)
DIFFERENCES = ("differences",)

E = elementwise


def unary(op: Op, sample: str = "normal", kinds: str = "fc", **more: Any) -> Case:
    return Case(op, (x(5, sample=sample),), kinds, is_exact=True, **more)


def binary(
    op: Op, first: str = "normal", second: str = "normal", kinds: str = "fci", **more: Any
) -> Case:
    return Case(op, (x(4, sample=first), x(4, sample=second)), kinds, is_exact=True, **more)


CONSTANTS = [
    Case(constant.Constant(np.arange(6.0).reshape(2, 3)), kinds=""),
    Case(constant.DimSize(7), kinds=""),
    Case(constant.Sizes((2, 3)), kinds=""),
    Case(constant.Iota(5, float32), kinds=""),
    Case(constant.Iota(5, int64), kinds=""),
]

BROADCASTS = [
    Case(broadcast.BroadcastTo((3, 4), (1,)), (x(4),), "fcib", is_exact=True),
    Case(broadcast.BroadcastTo((3, 4, 2), (0, 2)), (x(3, 2),), "fcib", is_exact=True),
    Case(broadcast.BroadcastTo((3,), ()), (x(),), "fcib", is_exact=True),
    Case(broadcast.Sum((0,)), (x(3, 4),), "fci", is_exact=True),
    Case(broadcast.Sum((0, 2)), (x(3, 4, 5),), "fci", is_exact=True),
    Case(broadcast.Sum(None), (x(3, 4),), "fci", is_exact=True),
    Case(broadcast.Sum(()), (x(3),), "fci", is_exact=True),
]

ARITHMETIC = [
    binary(E.Add()),
    binary(E.Sub()),
    binary(E.Mul()),
    binary(E.MulNoNan(), kinds="fc"),
    binary(E.SteepDiv(), second="nonzero", kinds="fc"),
    binary(E.Div(), second="nonzero", kinds="fc"),
    unary(E.Neg(), kinds="fci"),
    binary(E.Pow(), "positive", "nonzero"),
    unary(E.IntegerPow(3), kinds="fci"),
    unary(E.IntegerPow(2), kinds="fci"),
    unary(E.IntegerPow(1), kinds="fci"),
    unary(E.IntegerPow(-2), "nonzero", is_extra=True),
    Case(E.IntegerPow(0), (x(3),), "fci"),
    Case(E.FloorDiv(), (x(4, sample="off_integers"), x(4, sample="nonzero")), "fi"),
    Case(E.FloorMod(), (x(4, sample="off_integers"), x(4, sample="nonzero")), "fi"),
    Case(E.TruncateMod(), (x(4, sample="off_integers"), x(4, sample="nonzero")), "fi"),
    Case(E.Maximum(), (x(4), x(4)), "fib"),
    binary(special_ops.JaxDiv(), second="nonzero", kinds="fci"),
    unary(special_ops.JaxAbs(), "nonzero", "fci", against_complex=DIFFERENCES),
    Case(special_ops.JaxMax(), (x(4), x(4)), "fib"),
    Case(special_ops.JaxMin(), (x(4), x(4)), "fib"),
    Case(special_ops.PopulationCount(), (x(4),), "i"),
    Case(special_ops.LeadingZeros(), (x(4),), "i"),
    Case(
        special_ops.ReducePrecision(5, 10), (x(4),), "f", order=0, against=()
    ),  # it moves in steps
    Case(E.Maximum(True), (x(4), x(4)), "f", is_extra=True),
    Case(E.Minimum(), (x(4), x(4)), "fib"),
    binary(E.Atan2(), "nonzero", "nonzero", kinds="f"),
    Case(E.Select(), (of(bool_, 5), x(5), x(5)), "fcib"),
    unary(E.Identity(), kinds="fcib"),
    Case(E.StopGradient(), (x(3),), "fcib", against=(), against_complex=()),
    Case(E.PreventGradient("no"), (x(3),), "fcib", order=0, against=(), against_complex=()),
]

FUNCTIONS = [
    # JAX takes the derivative of a complex sign to be 0.
    Case(E.Sign(), (x(5, sample="nonzero"),), "fci", against_complex=DIFFERENCES),
    unary(E.Abs(), "nonzero", "fci", against_complex=DIFFERENCES),
    unary(E.Exp()),
    unary(E.Expm1()),
    unary(E.Log(), "positive"),
    unary(E.Log1p(), "positive"),
    unary(E.Sqrt(), "positive"),
    unary(E.Cbrt(), "nonzero", "f"),
    unary(E.Rsqrt(), "positive"),
    unary(E.Sin()),
    unary(E.Cos()),
    unary(E.Tan(), "unit"),
    unary(E.Asin(), "unit"),
    unary(E.Acos(), "unit"),
    unary(E.Atan()),
    unary(E.Sinh()),
    unary(E.Cosh()),
    unary(E.Tanh()),
    unary(E.Asinh()),
    unary(E.Acosh(), "above_one"),
    unary(E.Atanh(), "unit"),
    unary(E.Sigmoid()),
    unary(E.Erf(), kinds="f", reference=special.erf),
    unary(E.Erfc(), kinds="f", reference=special.erfc),
    unary(E.ErfInv(), "unit", "f", reference=special.erfinv),
    unary(E.Lgamma(), "positive", "f", reference=special.gammaln),
    unary(E.Digamma(), "positive", "f", reference=special.digamma),
    unary(
        E.Polygamma(1), "positive", "f", reference=lambda v: special.polygamma(1, v), tolerance=1e-7
    ),
    Case(E.Floor(), (x(5, sample="off_integers"),), "f"),
    Case(E.Ceil(), (x(5, sample="off_integers"),), "f"),
    Case(E.Round(), (x(5, sample="off_halves"),), "f"),
]

COMPARISONS = [
    *(Case(op, (x(4), x(4)), "fcib") for op in (E.Equal(), E.NotEqual())),
    *(
        Case(op, (x(4), x(4)), "fib")
        for op in (E.Less(), E.LessEqual(), E.Greater(), E.GreaterEqual())
    ),
    Case(E.IsFinite(), (x(4),), "fc"),
    Case(E.LogicalNot(), (x(4),), "ib"),
    *(Case(op, (x(4), x(4)), "ib") for op in (E.LogicalAnd(), E.LogicalOr(), E.LogicalXor())),
    *(
        Case(E.Bitcast(kind), (of(own, 4),), "", order=0, against=())  # bits move in steps
        for own, kind in ((float32, int32), (int64, float64), (uint8, int8), (bfloat16, uint16))
    ),
    Case(E.ShiftLeft(), (x(4), x(4, sample="positive")), "i"),
    Case(E.ShiftRight(), (x(4), x(4, sample="positive")), "i"),
]

CASTS = [
    Case(
        E.Cast(float32), (x(3),), "fcib", against=("jax",), against_complex=("jax",), tolerance=1e-6
    ),
    Case(E.Cast(complex128), (x(3),), "fcib"),
    Case(E.Cast(int32), (x(3, sample="off_integers"),), "fcib"),
    Case(E.Cast(bool_), (x(3, sample="nonzero"),), "fcib"),
    Case(E.Real(), (x(3),), "c"),
    Case(E.Imag(), (x(3),), "c"),
    Case(E.Conj(), (x(3),), "c"),
    Case(E.Complex(), (x(3), x(3)), "f", refuses=(float16, bfloat16)),
]

SHAPES = [
    Case(shape.Reshape((6,)), (x(2, 3),), "fcib", is_exact=True),
    Case(shape.Reshape((3, 1, 2)), (x(2, 3),), "fcib", is_exact=True),
    Case(shape.EnsureShape((2, 3)), (x(2, 3),), "fcib", is_exact=True),
    Case(shape.Transpose((1, 0)), (x(3, 4),), "fcib", is_exact=True),
    Case(shape.Transpose((2, 0, 1)), (x(3, 4, 2),), "fcib", is_exact=True),
    Case(shape.Slice((1, 0), (4, 3), (1, 2)), (x(5, 3),), "fcib", is_exact=True),
    Case(shape.Slice((2,), (2,), (1,)), (x(5),), "fcib", is_exact=True, label=" empty"),
    Case(shape.Slice((0,), (6,), (4,)), (x(7),), "fcib", is_exact=True),
    Case(shape.Pad((1, 0), (2, 1), (0, 0)), (x(2, 3), x()), "fcib", is_exact=True),
    Case(shape.Pad((2,), (1,), (2,)), (x(3), x()), "fcib", is_exact=True),
    Case(shape.Pad((-1, 2), (1, -2), (1, 0)), (x(4, 3), x()), "fcib", is_exact=True),
    Case(shape.Concatenate(0), (x(2, 3), x(1, 3), x(3, 3)), "fcib", is_exact=True),
    Case(shape.Concatenate(1), (x(2, 3), x(2, 1)), "fcib", is_exact=True),
    Case(shape.Concatenate(0), (x(3),), "fcib", is_exact=True),
    Case(shape.Reverse((0,)), (x(4),), "fcib", is_exact=True),
    Case(shape.Reverse((0, 2)), (x(2, 3, 4),), "fcib", is_exact=True),
]

REDUCTIONS = [
    Case(reduce.Max((1,)), (apart(3, 4),), "fi"),
    Case(reduce.Max(None), (apart(5),), "fi"),
    Case(reduce.Min((0, 2)), (apart(3, 4, 2),), "fi"),
    Case(reduce.IsExtreme((1,), True), (apart(3, 4),), "fi"),
    Case(reduce.IsExtreme(None, False), (apart(5),), "fi"),
    Case(reduce.Prod((0,)), (x(4, 3, sample="nonzero"),), "fci", is_exact=True),
    Case(reduce.Prod((0, 2)), (x(2, 3, 2, sample="nonzero"),), "fci", is_exact=True),
    Case(reduce.Prod((0,)), (x(3, 2, 2, sample="nonzero"),), "fci", order=2, is_exact=True),
    Case(
        reduce.Prod(None),
        (x(4, sample="with_zeros"),),
        "f",
        against=DIFFERENCES,
        label=" zeros",
        is_extra=True,
    ),
    Case(
        reduce.Prod((1,)),
        (x(3, 4, sample="with_zeros"),),
        "f",
        against=DIFFERENCES,
        label=" zeros",
        is_extra=True,
    ),
    Case(reduce.All((1,)), (x(3, 2),), "b"),
    Case(reduce.All(None), (x(3, 2),), "b"),
    Case(reduce.Any((0,)), (x(3, 2),), "b"),
    Case(reduce.ArgMax(1, int64), (apart(3, 4),), "fib"),
    Case(reduce.ArgMin(0, int32), (apart(3, 4),), "fib"),
    Case(reduce.CumSum(0, False), (x(4, 2),), "fci", is_exact=True),
    Case(reduce.CumSum(1, True), (x(2, 4),), "fci", is_exact=True),
    Case(reduce.CumProd(0, False), (x(4, 2, sample="nonzero"),), "fci", is_exact=True),
    Case(reduce.CumProd(1, True), (x(2, 4, sample="nonzero"),), "fci", order=2, is_exact=True),
    Case(
        reduce.CumProd(0, False),
        (x(5, sample="with_zeros"),),
        "f",
        against=DIFFERENCES,
        label=" zeros",
        is_extra=True,
    ),
    Case(reduce.CumLogsumexp(0, False), (x(4, 2),), "f", is_exact=True),
    Case(reduce.CumLogsumexp(1, True), (x(2, 4),), "f", order=2, is_exact=True),
    # Rows that are long enough to be gone through one by one.
    Case(reduce.CumSum(0, True), (x(3, 64),), "fci", order=1),
    Case(reduce.CumProd(0, False), (x(3, 64, sample="nonzero"),), "fci", order=1),
    Case(reduce.CumLogsumexp(0, True), (x(2, 64),), "f", order=1),
    Case(reduce.Recurrence(1, False), (x(64, 3), x(64, 3)), "fc", order=1),
    Case(reduce.Recurrence(0, False), (x(4, 2), x(4, 2)), "fc"),
    Case(reduce.Recurrence(1, True), (x(2, 4), x(2, 4)), "fc", order=2),
]

CONV = contract.Conv
#: Integers whose sums of products would wrap.
NARROW_INTEGERS = (int8, int16, uint8, uint16)
CONTRACTIONS = [
    Case(contract.MATMUL, (x(2, 3), x(3, 4)), "fci", NARROW_INTEGERS, is_exact=True),
    Case(contract.MATMUL, (x(3, 2, 3), x(3, 3, 2)), "fci", NARROW_INTEGERS, is_exact=True),
    Case(
        contract.MATMUL, (x(2, 2, 2, 3), x(2, 2, 3, 2)), "fc", is_exact=True, is_extra=True, order=2
    ),
    Case(CONV((1,), ((0, 0),), (1,), (1,), 1), (x(2, 5, 2), x(3, 2, 3)), "fci", is_exact=True),
    Case(
        CONV((2,), ((1, 2),), (1,), (2,), 1),
        (x(2, 6, 1), x(2, 1, 2)),
        "fc",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
    Case(
        CONV((3,), ((2, 1),), (2,), (1,), 1),
        (x(1, 4, 2), x(3, 2, 1)),
        "fc",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
    Case(
        CONV((2,), ((-1, 1),), (1,), (1,), 2),
        (x(2, 5, 4), x(2, 2, 6)),
        "fc",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
    Case(
        CONV((2, 1), ((1, 0), (0, 1)), (1, 1), (1, 2), 1),
        (x(2, 4, 5, 2), x(2, 2, 2, 3)),
        "fc",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
    Case(
        CONV((1, 2), ((1, 1), (2, 1)), (2, 1), (1, 1), 2),
        (x(1, 3, 4, 2), x(3, 2, 1, 4)),
        "f",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
    Case(
        CONV((1, 1, 1), ((0, 0), (1, 0), (0, 0)), (1, 1, 1), (1, 1, 1), 1),
        (x(1, 2, 2, 3, 1), x(2, 2, 2, 1, 2)),
        "f",
        is_exact=True,
        is_extra=True,
        order=2,
    ),
]

INDEXING = [
    Case(index.Gather(0, 0), (x(4, 3), at(4, 2)), "fcib"),
    Case(index.Gather(0, 0), (x(4), at(4)), "fcib"),
    Case(index.Gather(1, 0), (x(2, 4, 3), at(4, 3, 2)), "fcib"),
    Case(index.Gather(1, 1), (x(2, 4), at(4, 2, 3)), "fcib"),
    Case(index.Gather(2, 1), (x(2, 3, 4), at(4, 2, 3, dtype=int64)), "fcib"),
    Case(index.Gather(0, 0), (x(4), at(9, 6, dtype=uint8)), "fcib", label=" clamped"),
    Case(index.Gather(0, 0, False), (x(4), at(9, 6, dtype=uint8)), "fcib", label=" or 0"),
    Case(index.GatherNd(2, 1, False), (x(2, 3, 4, 2), at(4, 2, 3, 2)), "fcib", label=" or 0"),
    Case(index.GatherNd(0, 0), (x(3, 4, 2), at(3, 5, 2)), "fcib"),
    Case(index.GatherNd(1, 0), (x(2, 3, 4), at(3, 2, 2)), "fcib"),
    Case(index.GatherNd(2, 1), (x(2, 3, 4, 2), at(2, 2, 3, 2)), "fcib"),
    Case(index.GatherNd(0, 0), (x(3, 2), at(3, 4, 0)), "fcib", label=" whole"),
    Case(index.ScatterAdd(0, 0), (x(4, 2), at(4, 5, 1), x(5, 2)), "fci"),
    Case(index.ScatterAdd(1, 0), (x(2, 3, 4), at(3, 3, 2), x(2, 3)), "fci"),
    *(
        Case(
            index.ScatterAdd(2, 1, clamps),
            (x(2, 3, 4), at(6, 2, 3, 1), x(2, 3, 3)),
            "fci",
            label=" clamped" if clamps else " dropped",
        )
        for clamps in (True, False)
    ),
    Case(
        index.ScatterUpdate(0, 0),
        (x(5, 2), at(5, 3, 1), x(3, 2)),
        "fcib",
        against=DIFFERENCES,
        against_complex=DIFFERENCES,
    ),
    Case(
        index.ScatterUpdate(1, 1),
        (x(2, 3), at(3, 2, 4, 1), x(2, 4)),
        "fcib",
        against=DIFFERENCES,
        against_complex=DIFFERENCES,
    ),
    Case(index.ScatterUpdate(1, 0), (x(2, 3, 3), at(3, 2, 2), x(2, 2)), "fcib"),
    Case(index.ScatterMax(0, 0), (x(4, 2), at(4, 5, 1), x(5, 2)), "fi", against=DIFFERENCES),
    Case(index.ScatterMin(1, 1), (x(2, 4), at(4, 2, 3, 1), x(2, 3)), "fi", against=DIFFERENCES),
    Case(index.ScatterIsExtreme(0, 0, False, True), (x(4, 2), at(4, 5, 1), x(5, 2)), "fi"),
    Case(index.ScatterIsExtreme(1, 1, False, False), (x(2, 4), at(4, 2, 3, 1), x(2, 3)), "fi"),
    Case(
        index.ScatterMul(0, 0),
        (x(4, 2), at(4, 5, 1), x(5, 2)),
        "fci",
        against=DIFFERENCES,
        against_complex=DIFFERENCES,
    ),
    Case(
        index.ScatterMul(0, 0),
        (x(4, 2), at(4, 5, 1), x(5, 2, sample="with_zeros")),
        "f",
        is_extra=True,
        order=1,
        against=DIFFERENCES,
        label=" with zeros",
    ),
    *(
        Case(
            op(0, 0),
            (x(4, 2), at(7, 5, 1), x(5, 2)),
            "fi",
            is_extra=True,
            against=DIFFERENCES,
            label=" dropped",
        )
        for op in (index.ScatterUpdate, index.ScatterMax, index.ScatterMul)
    ),
    Case(index.DynamicSlice((2, 3)), (x(4, 3), at(4), at(3)), "fcib"),
    Case(index.DynamicSlice((2, 2, 1)), (x(3, 2, 4), at(3), at(2), at(4)), "fcib"),
    Case(index.DynamicSlice(()), (x(),), "fcib", label=" scalar"),
    Case(index.DynamicSlice((3,)), (x(3), at(3)), "fcib", label=" whole"),
    Case(index.DynamicUpdateSlice(), (x(4, 3), x(2, 3), at(4), at(3)), "fcib"),
    Case(index.DynamicUpdateSlice(), (x(3, 2, 4), x(2, 2, 1), at(3), at(2), at(4)), "fcib"),
    Case(index.DynamicUpdateSlice(), (x(3), x(3), at(3)), "fcib", label=" whole"),
]

SORTING = [
    Case(sort.Sort(0, False), (apart(5),), "fib"),
    Case(sort.Sort(1, True), (apart(3, 4),), "fib"),
    Case(sort.Sort(0, True), (apart(3, 4),), "fib"),
    Case(sort.ArgSort(0, False), (x(5, 2),), "fib"),
    Case(sort.TrueIndices(3), (x(5),), "b"),
    Case(sort.TrueIndices(5), (x(2, 4),), "b"),
    Case(sort.ArgSort(1, True), (x(2, 5),), "fib"),
    Case(sort.TopK(2), (apart(3, 5),), "fib"),
    Case(sort.TopK(3), (apart(4),), "fib"),
]


def system(op: Op, a: tuple[int, ...], b: tuple[int, ...], **more: Any) -> Case:
    """A system of equations: its matrices a, and its right-hand sides b."""
    return Case(op, (x(*a, sample="regular"), x(*b)), refuses=(float16, bfloat16), **more)


def square(op: Op, *sizes: int, **more: Any) -> Case:
    return Case(op, (x(*sizes, sample="regular"),), refuses=(float16, bfloat16), **more)


L = linalg
LINALG = [
    system(L.Solve(False), (3, 3), (3, 2), is_exact=True),
    system(L.Solve(True), (2, 2, 2), (2, 2, 1), is_exact=True),
    *(
        system(L.TriangularSolve(adjoint, lower), (3, 3), (3, 2), is_exact=True)
        for adjoint in (False, True)
        for lower in (False, True)
    ),
    system(L.TriangularSolve(False, True), (2, 2, 2), (2, 2, 1), is_exact=True, is_extra=True),
    Case(
        L.TridiagonalSolve(False),
        (x(4), x(4, sample="above_one"), x(4), x(4, 2)),
        refuses=(float16, bfloat16),
    ),
    Case(
        L.TridiagonalSolve(True),
        (x(2, 3), x(2, 3, sample="above_one"), x(2, 3), x(2, 3, 1)),
        refuses=(float16, bfloat16),
        is_extra=True,
        order=1,
    ),
    square(L.Det(), 3, 3, is_exact=True),
    square(L.Det(), 2, 4, 4, is_exact=True, is_extra=True, order=2),
    square(L.Cofactor(), 3, 3),
    square(L.Cofactor(), 2, 4, 4, is_extra=True, order=1),
    system(L.CofactorAlong(), (3, 3), (3, 3)),
    system(L.CofactorAlong(), (2, 2, 2), (2, 2, 2), is_extra=True, order=1),
    square(L.Slogdet(), 3, 3),
    square(L.Slogdet(), 2, 2, 2, is_extra=True),
    square(L.Cholesky(), 3, 3, is_exact=True),
    square(L.Cholesky(), 2, 2, 2, is_exact=True, is_extra=True),
]

D = decomposition


def matrix(op: Op, *sizes: int, sample: str = "normal", **more: Any) -> Case:
    return Case(op, (x(*sizes, sample=sample),), refuses=(float16, bfloat16), **more)


def in_parts(parts: Callable[..., Any]) -> Callable[..., Any]:
    """A reference whose arrays are the same on every machine, as a tuple."""
    return lambda *xs: tuple(np.asarray(part) for part in parts(*xs))


#: JAX does not differentiate the Schur form, nor loops of unknown length.
BY_DIFFERENCES: dict[str, Any] = {"against": DIFFERENCES, "against_complex": DIFFERENCES}
#: LAPACK turns complex vectors by phases of its own, so differences of them say nothing.
PHASES: dict[str, Any] = {"against_complex": ("jax",)}
DECOMPOSITIONS = [
    matrix(D.Qr(False), 4, 3),
    matrix(D.Qr(False), 2, 3, 3, is_extra=True, order=2),
    matrix(D.Qr(True), 4, 2, order=0),
    matrix(
        D.Lu(),
        3,
        3,
        sample="regular",
        reference=lambda a: (linear.lu_factor(a)[0], np.arange(3, dtype=np.int32)),
    ),
    matrix(D.Lu(), 2, 4, 4, is_extra=True, order=1),
    matrix(D.Svd(False), 3, 3, **PHASES, order=2),
    matrix(D.Svd(False), 4, 2, **PHASES, is_extra=True),
    matrix(D.Svd(False), 2, 2, 3, **PHASES, is_extra=True, order=1),
    matrix(D.Svd(True), 4, 2, order=0),
    matrix(D.SingularValues(), 3, 3),
    matrix(D.SingularValues(), 2, 2, 4, is_extra=True, order=2),
    matrix(D.Eigh(), 3, 3, **PHASES),
    matrix(D.Eigh(), 2, 4, 4, **PHASES, is_extra=True, order=1),
    matrix(D.Eigvalsh(), 3, 3),
    matrix(D.Eigvalsh(), 2, 2, 2, is_extra=True, order=2),
    # Which eigenvalue comes first, and which sign a vector has, differs between the types.
    Case(D.Eig(), (of(float64, 3, 3),), "f"),
    Case(D.Eig(), (of(complex128, 3, 3),), "c", order=2, label=" complex"),
    Case(D.Eig(), (of(float64, 2, 3, 3),), "f", order=1),
    Case(D.Pinv(), (of(float64, 4, 3), of(float64, sample="tiny")), "f"),
    Case(D.Pinv(), (of(complex128, 2, 2, 3), of(float64, 2, sample="tiny")), "c", order=2),
]

F = matrix_function
MATRIX_FUNCTIONS = [
    matrix(F.Expm(), 3, 3, reference=linear.expm, slack=64, **BY_DIFFERENCES),
    matrix(F.Expm(), 2, 2, 2, is_extra=True, order=1, slack=64, **BY_DIFFERENCES),
    matrix(
        F.Logm(),
        3,
        3,
        sample="regular",
        kinds="c",
        reference=linear.logm,
        **BY_DIFFERENCES,
        tolerance=1e-8,
    ),
    matrix(
        F.Logm(), 2, 2, 2, sample="regular", kinds="c", **BY_DIFFERENCES, is_extra=True, order=1
    ),
    matrix(
        F.Sqrtm(), 3, 3, sample="regular", reference=linear.sqrtm, **BY_DIFFERENCES, tolerance=1e-8
    ),
    matrix(F.Sqrtm(), 2, 2, 2, sample="regular", **BY_DIFFERENCES, is_extra=True, order=1),
]

S = special_ops


def special_case(op: Op, reference: Any, *samples: str, **more: Any) -> Case:
    operands = tuple(x(4, sample=sample) for sample in samples or ("normal",))
    return Case(op, operands, "f", is_exact=True, reference=reference, **more)


def _slope(function: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative by the first argument, by differences of the fourth order."""

    def derivative(x: Any, *rest: Any) -> Any:
        h = 1e-3
        near, far = (function(x + k * h, *rest) - function(x - k * h, *rest) for k in (1, 2))
        return (8 * near - far) / (12 * h)

    return derivative


#: JAX has no derivatives by these parameters.
BY_PARAMETERS: dict[str, Any] = {"against": DIFFERENCES}
SPECIAL = [
    special_case(S.Igamma(), special.gammainc, "positive", "positive", **BY_PARAMETERS),
    special_case(S.Igammac(), special.gammaincc, "positive", "positive", **BY_PARAMETERS),
    special_case(
        S.Igamma(1),
        _slope(special.gammainc),
        *("positive", "positive"),
        **BY_PARAMETERS,
        tolerance=1e-6,
        order=1,
    ),
    special_case(
        S.Igammac(2),
        _slope(_slope(special.gammaincc)),
        *("positive", "positive"),
        **BY_PARAMETERS,
        tolerance=1e-5,
        slack=64,
        order=1,
    ),
    special_case(S.Betainc(), special.betainc, "positive", "positive", "fraction", **BY_PARAMETERS),
    special_case(
        S.Betainc(1, 0),
        _slope(special.betainc),
        *("positive", "positive", "fraction"),
        **BY_PARAMETERS,
        tolerance=1e-6,
        order=1,
    ),
    special_case(S.Zeta(), special.zeta, "above_one", "positive", **BY_PARAMETERS),
    special_case(
        S.Zeta(1),
        _slope(special.zeta),
        *("above_one", "positive"),
        **BY_PARAMETERS,
        tolerance=1e-4,
        order=1,
    ),
    special_case(
        S.Zeta(2),
        _slope(_slope(special.zeta)),
        *("above_one", "positive"),
        **BY_PARAMETERS,
        tolerance=1e-4,
        order=1,
    ),
    special_case(S.BesselI0(), special.i0),
    special_case(S.BesselI1(), special.i1),
    special_case(S.BesselI0e(), special.i0e, "nonzero"),
    special_case(S.BesselI1e(), special.i1e, "nonzero"),
    special_case(S.BesselJ0(), special.j0),
    special_case(S.BesselJ1(), special.j1),
    # Near 0 and near 1 by series.
    special_case(S.BesselI1(), special.i1, "small", is_extra=True, label=" near 0"),
    special_case(S.BesselI1e(), special.i1e, "tiny", is_extra=True, label=" near 0", order=2),
    special_case(S.BesselJ1(), special.j1, "small", is_extra=True, label=" near 0"),
    special_case(
        S.Spence(), special.spence, "near_one", against=DIFFERENCES, is_extra=True, label=" near 1"
    ),
    special_case(S.BesselY0(), special.y0, "positive"),
    special_case(S.BesselY1(), special.y1, "positive"),
    special_case(S.BesselK0(), special.k0, "above_one"),
    special_case(S.BesselK1(), special.k1, "above_one"),
    special_case(S.BesselK0e(), special.k0e, "above_one"),
    special_case(S.BesselK1e(), special.k1e, "above_one"),
    special_case(S.Dawsn(), special.dawsn),
    special_case(S.Expint(), special.expi, "nonzero"),
    special_case(S.FresnelCos(), lambda v: special.fresnel(v)[1]),
    special_case(S.FresnelSin(), lambda v: special.fresnel(v)[0]),
    # JAX's derivative is nan below 1.
    special_case(S.Spence(), special.spence, "positive", against=DIFFERENCES),
    special_case(S.Ndtri(), special.ndtri, "fraction"),
    Case(S.NextAfter(), (x(4), x(4)), "f", against=(), order=0),
]

FOURIER = [
    Case(fourier.Fft((0,), False), (x(5),), "c"),
    Case(fourier.Fft((1,), True), (x(2, 4),), "c"),
    Case(fourier.Fft((0, 2), False), (x(2, 2, 3),), "c", order=2),
    *(
        Case(fourier.Rfft(), (x(*sizes),), "f", refuses=(float16, bfloat16), is_extra=is_extra)
        for sizes, is_extra in (((5,), False), ((2, 4), True))
    ),
    Case(fourier.Irfft(5), (x(3),), "c"),
    Case(fourier.Irfft(4), (x(2, 3),), "c"),
]

RANDOM = [
    Case(random.RandomSplit(3), (KEY,), ""),
    Case(random.RandomSplit(2), (KEYS,), ""),
    Case(
        random.RngBitGenerator((3,), uint32, "rng_three_fry"), (Operand((4,), "key", uint32),), ""
    ),
    Case(
        random.RngBitGenerator((), uint8, "rng_default"),
        (Operand((2, 4), "key", uint32),),
        "",
        is_extra=True,
    ),
    Case(random.RandomFold(), (KEY, Operand((), "key", uint32)), ""),
    Case(random.RandomFold(), (KEYS, Operand((3,), "key", uint32)), ""),
    *(
        Case(random.RandomBits((4,), dtype), (KEY,), "")
        for dtype in (uint8, uint16, uint32, uint64)
    ),
    *(
        Case(make((4, 3), dtype), (KEY,), "")
        for make in (random.RandomUniform, random.RandomNormal)
        for dtype in (bfloat16, float16, float32, float64)
    ),
    Case(random.RandomUniform((2,), float32), (KEYS,), ""),
    Case(random.RandomPermutation(5), (KEY,), ""),
    Case(
        random.RandomGamma(),
        (KEY, of(float64, 5, sample="positive")),
        "",  # numbers of another type are other numbers
        order=1,
        against=("jax",),  # at a fixed key they do not move smoothly
        by_jax=lambda key, a: [jax.random.gamma(jax.random.wrap_key_data(key), a)],
    ),
    Case(
        random.RandomGamma(log_space=True),
        (KEY, of(float64, 5, sample="positive")),
        "",  # numbers of another type are other numbers
        order=1,
        against=("jax",),  # at a fixed key they do not move smoothly
        by_jax=lambda key, a: [jax.random.loggamma(jax.random.wrap_key_data(key), a)],
    ),
    Case(random.RandomPoisson(), (KEY, of(float64, 5, sample="positive")), "", order=0),
    Case(
        random.RandomBinomial(),
        (KEY, of(float64, 5, sample="positive"), of(float64, 5, sample="positive")),
        "",
        order=0,
    ),
    Case(
        random.GammaSlope(),
        (x(5, sample="positive"), x(5, sample="positive")),
        "f",
        order=0,
        is_exact=True,
    ),
]

IMAGES = [
    Case(image.AdjustContrast(), (x(2, 3, 4, 2), x()), "f", order=0),
    Case(image.AdjustContrast(), (x(2, 3, 3, 1), x(2)), "f", order=0),
    Case(image.AdjustContrast(), (x(3, 4, 2), x()), "f", order=0),
]

EFFECTS = [Case(effect.Read(), (x(3), x(3)), "fcib", order=0, against=())]

BARRIERS = [
    Case(barrier.Barrier(), (x(3), x(3)), "fcib", is_exact=True),
    Case(barrier.Barrier(), (x(2, 3), x(), x(2)), "fcib"),
]


LAYOUTS = [Case(layout.WithLayout("data=1", ("data", None)), (x(2, 3),), "fcib", is_exact=True)]


def graph_of(name: str, function: Callable[..., Any], *types: TensorType) -> Graph:
    """The graph of a function that is given tensors, and returns a tuple of them."""
    with Builder(name) as builder:
        inputs = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
        return builder.finish(function(*inputs))


def _scaled(x: Any, y: Any) -> Any:
    return elementwise.MUL(elementwise.Tanh()(x), y), broadcast.Sum((0,))(y)


def _scaled_backward(x: Any, y: Any, g: Any, total: Any) -> Any:
    tanh = elementwise.Tanh()(x)
    slope = elementwise.SUB(broadcast.full_like(x, 1), elementwise.MUL(tanh, tanh))
    by_x = elementwise.MUL(g, elementwise.MUL(y, slope))
    spread = broadcast.BroadcastTo((3,), ())(total)
    return by_x, elementwise.ADD(elementwise.MUL(g, tanh), spread)


def _scaled_forward(x: Any, y: Any, tx: Any, ty: Any) -> Any:
    tanh = elementwise.Tanh()(x)
    slope = elementwise.SUB(broadcast.full_like(x, 1), elementwise.MUL(tanh, tanh))
    by_x = elementwise.MUL(tx, elementwise.MUL(y, slope))
    return elementwise.ADD(by_x, elementwise.MUL(ty, tanh)), broadcast.Sum((0,))(ty)


def _sine(x: Any, count: Any) -> Any:
    return reduce.ArgMax(0, int32)(x), elementwise.SIN(x), count


def _sine_backward(x: Any, count: Any, g: Any) -> Any:
    return (elementwise.MUL(g, elementwise.COS(x)),)


VECTOR, SCALAR, COUNT = TensorType(float64, (3,)), TensorType(float64, ()), TensorType(int32, ())
SCALED = graph_of("scaled", _scaled, VECTOR, VECTOR)
CALLS = [
    Case(
        CustomCall(
            SCALED,
            graph_of("scaled_backward", _scaled_backward, VECTOR, VECTOR, VECTOR, SCALAR),
            (0, 1),
        ),
        (of(float64, 3), of(float64, 3)),
        "f",
        is_exact=True,
        reference=lambda x, y: (np.tanh(x) * y, np.sum(y)),
    ),
    Case(
        CustomCall(
            SCALED,
            graph_of("scaled_backward", _scaled_backward, VECTOR, VECTOR, VECTOR, SCALAR),
            (0, 1),
            graph_of("scaled_forward", _scaled_forward, VECTOR, VECTOR, VECTOR, VECTOR),
        ),
        (of(float64, 3), of(float64, 3)),
        "f",
        is_exact=True,
        reference=lambda x, y: (np.tanh(x) * y, np.sum(y)),
        label=" with a forward",
    ),
    Case(
        CustomCall(
            graph_of("sine", _sine, VECTOR, COUNT),
            graph_of("sine_backward", _sine_backward, VECTOR, COUNT, VECTOR),
            (0,),
        ),
        (of(float64, 3, sample="apart"), at(9)),
        "f",
        is_exact=True,
        reference=lambda x, count: (np.argmax(x).astype(np.int32), np.sin(x), count),
        label=" with integers",
    ),
    Case(
        recomputed(SCALED, 2),
        (of(float64, 3), of(float64, 3)),
        "f",
        is_exact=True,
        reference=lambda x, y: (np.tanh(x) * y, np.sum(y)),
    ),
]


def _product(x: Any, y: Any) -> Any:
    return (elementwise.MUL(elementwise.Tanh()(x), y),)


def _sum(x: Any, y: Any) -> Any:
    return (elementwise.ADD(x, broadcast.full_like(x, 2) * y),)


def _quotient(x: Any, y: Any) -> Any:
    return (elementwise.DIV(x, 2 + y * y),)


def _step(constant: Any, state: Any, row: Any) -> Any:
    return elementwise.Tanh()(constant * state) + row, state * row


def _turn(constant: Any, number: Any, state: Any) -> Any:
    return number + 1, elementwise.SIN(state) * constant


def _goes_on(constant: Any, number: Any, state: Any) -> Any:
    return (elementwise.LESS(number, broadcast.full_like(number, 3)),)


PRODUCT, SUM, QUOTIENT = (
    graph_of(function.__name__, function, VECTOR, VECTOR)
    for function in (_product, _sum, _quotient)
)
STEP = graph_of("step", _step, VECTOR, VECTOR, VECTOR)
TURN, GOES_ON = (
    graph_of(function.__name__, function, VECTOR, COUNT, VECTOR) for function in (_turn, _goes_on)
)


def scanned(constant: Any, state: Any, rows: Any, reverse: bool = False) -> Any:
    stacked = []
    for row in rows[::-1] if reverse else rows:
        stacked.append(state * row)
        state = np.tanh(constant * state) + row
    return state, np.stack(stacked[::-1] if reverse else stacked)


def repeated(constant: Any, number: Any, state: Any) -> Any:
    start = number
    while number < 3:
        number, state = number + 1, np.sin(state) * constant
    return np.int32(number), state, np.int32(number - start)


def _branch_cases() -> Iterator[Case]:
    operands = (of(float64, 3), of(float64, 3))
    by_branch = [
        lambda x, y: np.tanh(x) * y,
        lambda x, y: x + 2 * y,
        lambda x, y: x / (2 + y * y),
    ]
    for label in (" first", " second", " third"):  # each name draws another decider
        yield Case(
            Cond(PRODUCT, SUM),
            (of(bool_), *operands),
            "f",
            reference=lambda taken, x, y: by_branch[0 if taken else 1](x, y),
            label=label,
        )
        yield Case(
            Switch((PRODUCT, SUM, QUOTIENT)),
            (at(4), *operands),
            "f",
            reference=lambda place, x, y: by_branch[min(int(place), 2)](x, y),
            label=label,
        )


CONTROL = [
    Case(
        Call(SCALED),
        (of(float64, 3), of(float64, 3)),
        "f",
        is_exact=True,
        reference=lambda x, y: (np.tanh(x) * y, np.sum(y)),
    ),
    *_branch_cases(),
    *(
        Case(
            Scan(STEP, 1, 1, 4, reverse),
            (of(float64, 3), of(float64, 3), of(float64, 4, 3)),
            "f",
            is_exact=True,
            reference=partial(scanned, reverse=reverse),
        )
        for reverse in (False, True)
    ),
    Case(
        While(TURN, 1, GOES_ON, 2),
        (of(float64, 3, sample="nonzero"), at(3), of(float64, 3)),
        "f",
        against=DIFFERENCES,
        order=2,
        reference=lambda *xs: repeated(*xs)[:2],
    ),
    Case(
        While(TURN, 1, GOES_ON, 2, True),
        (of(float64, 3, sample="nonzero"), at(3), of(float64, 3)),
        "f",
        against=DIFFERENCES,
        order=2,
        reference=repeated,
    ),
]

CASES = [
    *(*CONSTANTS, *BROADCASTS, *ARITHMETIC, *FUNCTIONS, *COMPARISONS, *CASTS, *SHAPES),
    *(*REDUCTIONS, *CONTRACTIONS, *INDEXING, *SORTING, *LINALG, *DECOMPOSITIONS),
    *(*MATRIX_FUNCTIONS, *SPECIAL, *FOURIER, *RANDOM, *IMAGES, *EFFECTS),
    *(*BARRIERS, *LAYOUTS, *CALLS, *CONTROL),
]

#: Ops whose contract other tests hold: they take tokens, Python functions or graphs.
ELSEWHERE = frozenset(
    [
        *("check", "first_token", "host_call", "load", "recorded_while"),
        *("resizing_while", "runtime_size", "store"),
        *("undifferentiable_call", "while_gradient"),
    ]
)

#: Rules that an op does not have, on purpose.
WITHOUT = {
    # TensorFlow's has none, and its guide to gradients shows the LookupError and how one is
    # registered: that program behaves so here too.
    "adjust_contrast": {"vjp", "jvp"},
    # Its states have no sizes in common, from step to step and from one iteration to another.
    "resizing_while": {"vjp", "jvp", "batch", "depends"},
}
