"""Elementwise ops: element i of the output is a function of element i of each operand.

All operands have the output's shape: users' broadcasting is explicit before an op is built. Each
op states its derivative once, as one factor per operand, and inherits every rule.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tracegraph.core.shapes import Size, same_shape
from tracegraph.core.sparsity_patterns import Pattern, union, without_zeros
from tracegraph.core.types import DType, TensorType, bool_, complex64, complex128
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, KnownValues, Op, Tangents, check_same_dtype, rule
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import batched_operands, full_like, linear_tangent, zeros_of
from tracegraph.ops.movement import no_flops

#: What a tangent is multiplied by: a tensor, 1, -1, or None for zero; and one for each operand.
Factor: TypeAlias = Tensor | int | None
Factors: TypeAlias = tuple[Factor, ...]

FLOATING = frozenset(["floating"])
INEXACT = frozenset(["floating", "complex"])
INTEGER = frozenset(["integer"])
ORDERED = frozenset(["floating", "integer", "bool"])
NUMERIC = frozenset(["floating", "complex", "integer"])
DISCRETE = frozenset(["integer", "bool"])
ANY = NUMERIC | {"bool"}
#: Also what is only kept, moved and converted.
KEPT = ANY | {"storage"}

_KIND_WORDS = {"floating": "floating", "complex": "complex", "integer": "integer", "bool": "bool"}
#: For each kind, in the order in which they are preferred, the type to convert to.
_TARGETS = {"floating": "float32", "integer": "int32", "bool": "bool", "complex": "complex64"}


def common_shape(*types: TensorType) -> Any:
    """The shape that all operands have. Raises Mismatch if two differ."""
    shape = types[0].shape
    for other in types[1:]:
        same = same_shape(shape, other.shape)
        if same is None:
            raise Mismatch(
                f"the operands have different shapes: {types[0]} and {other}",
                fix="reshape one of them, or insert axes of size 1 with tg.expand_dims",
            )
        shape = same
    return shape


def check_kind(op: str, type: TensorType, kinds: frozenset[str]) -> None:
    if type.dtype.kind not in kinds:
        words = " or ".join(word for kind, word in _KIND_WORDS.items() if kind in kinds)
        target = next(name for kind, name in _TARGETS.items() if kind in kinds)
        raise DTypeMismatch(
            f"the operand is {type}, and only {words} types are allowed",
            fix=f"convert it: tg.cast(x, tg.{target})",
        )


def scale(tangent: Tensor | None, factor: Factor) -> Tensor | None:
    """tangent * factor, where a factor is a tensor, 1, -1, or None for zero; truth values stand
    for 1 and 0."""
    if tangent is None or factor is None:
        return None
    if isinstance(factor, int):
        return tangent if factor == 1 else NEG(tangent)
    if factor.dtype is bool_:
        # Not a product with 0 and 1: XLA turns some of these into selections, so that nan times 0
        # would be nan in one program and 0 in another.
        return SELECT(factor, tangent, zeros_of(tangent))
    return MUL(tangent, factor)


def conjugated(factor: Any) -> Any:
    """The factor of a cotangent: the complex conjugate of the tangent's."""
    return CONJ(factor) if isinstance(factor, Tensor) and factor.dtype.is_complex else factor


def add_all(values: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the values that are not zero; None if all are."""
    total = None
    for value in values:
        if value is not None:
            total = value if total is None else ADD(total, value)
    return total


class Elementwise(Op, abstract=True):
    """y[i] depends on element i of each operand; all operands have y's shape."""

    #: Kinds of data types that the operands may have.
    kinds: ClassVar[frozenset[str]] = INEXACT
    #: NumPy's function of the same value.
    reference: ClassVar[Any] = None
    #: How many operands the op takes: those of its `partials`, or else of its reference.
    arity: ClassVar[int | None] = None

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(abstract, **kwargs)
        code = cls.partials.__code__
        takes_any = bool(code.co_flags & inspect.CO_VARARGS)
        count = code.co_argcount - len(("self", "y"))
        cls.arity = getattr(cls.reference, "nin", None) if takes_any else count

    @rule
    def partials(self, y: Tensor, *xs: Tensor) -> Factors:
        """dy/dx as one factor per operand, from primal values only: a Tensor, 1, -1 or None, or a
        Tensor of truth values, which stands for 1 and 0."""
        raise NotImplementedError

    @rule
    def infer(self, *types: TensorType) -> TensorType:
        if self.arity not in (len(types), None):
            raise Mismatch(f"it takes {self.arity} operands, and {len(types)} are given")
        shape = common_shape(*types)
        dtype = check_same_dtype(self.name, *types)
        check_kind(self.name, types[0], self.kinds)
        return TensorType(self.result_dtype(dtype), shape)

    def result_dtype(self, dtype: DType) -> DType:
        return dtype

    def is_diagonal_on(self, type: TensorType) -> bool:
        return True

    @rule
    def vjp(self, g: Tensor, y: Tensor, *xs: Tensor) -> Derivative:
        # A diagonal Jacobian is its own transpose.
        return tuple(scale(g, conjugated(factor)) for factor in self.partials(y, *xs))

    @rule
    def jvp(self, tangents: Tangents, y: Tensor, *xs: Tensor) -> Derivative:
        factors = self.partials(y, *xs)
        return add_all([scale(t, f) for t, f in zip(tangents, factors, strict=True)])

    @rule
    def batch(self, n: Size, batched: tuple[bool, ...], *inputs: Tensor) -> Batched:
        return self(*batched_operands(n, batched, inputs)), True

    @rule
    def depends(self, *patterns: Pattern) -> Pattern:
        return union(*patterns)

    @rule
    def numpy(self, *values: np.ndarray) -> Any:
        function = type(self).reference
        return NotImplemented if function is None else function(*values)


class Discrete(Elementwise, abstract=True):
    """An elementwise op whose derivative is zero wherever it exists."""

    kinds: ClassVar[frozenset[str]] = ANY

    @rule
    def partials(self, y: Tensor, *xs: Tensor) -> Factors:
        return (None,) * len(xs)

    @rule
    def depends(self, *patterns: Pattern) -> Pattern:
        return patterns[0].emptied()


class Relation(Discrete, abstract=True):
    """A truth value for each pair of elements."""

    kinds: ClassVar[frozenset[str]] = ORDERED

    def result_dtype(self, dtype: DType) -> DType:
        return bool_


# Arithmetic.


class Add(Elementwise):
    """x + y"""

    is_linear = True
    kinds = NUMERIC
    reference = np.add

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, 1


class Sub(Elementwise):
    """x - y"""

    is_linear = True
    kinds = NUMERIC
    reference = np.subtract

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, -1


class Mul(Elementwise):
    """x * y"""

    kinds = NUMERIC
    reference = np.multiply

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return y, x

    def depends_given(self, values: KnownValues, p: Pattern, q: Pattern) -> Pattern:
        """A factor that is known to be zero hides the other one."""
        return without_zeros(p, values[1]) | without_zeros(q, values[0])


class MulNoNan(Elementwise):
    """x * y, and 0 where y is 0, even if x is infinite or nan; then the derivatives are 0 too"""

    kinds = INEXACT

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # Only what is infinite or nan is left out: a finite x is the derivative where y is 0, too.
        is_lost = AND(EQUAL(y, zeros_of(y)), LogicalNot()(IsFinite()(x)))
        return y, SELECT(is_lost, zeros_of(x), x)

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        _, by_y = self.partials(z, x, y)
        return self(g, conjugated(y)), MUL(g, conjugated(by_y))

    def jvp(self, tangents: Tangents, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        tx, ty = tangents
        from_x = None if tx is None else self(tx, y)
        return add_all((from_x, scale(ty, self.partials(z, x, y)[1])))

    def depends_given(self, values: KnownValues, p: Pattern, q: Pattern) -> Pattern:
        return MUL.depends_given(values, p, q)

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(y == 0, np.zeros_like(x), x) * y


class Div(Elementwise):
    """x / y of floating or complex numbers"""

    reference = np.divide

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        # g / y is rounded once, unlike a product with 1 / y, which may be 0 where y is large.
        return self(g, conjugated(y)), MUL(g, conjugated(-z / y))

    def jvp(self, tangents: Tangents, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        tx, ty = tangents
        return add_all((None if tx is None else self(tx, y), scale(ty, -z / y)))


class SteepDiv(Elementwise):
    """x / y, and 0 where x is 0, even if y is 0 or nan: no cotangent down an infinite slope"""

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # As of `MulNoNan`: 1 / y is the derivative where x is 0, too, unless it is infinite or nan.
        slope = 1 / y
        is_lost = AND(EQUAL(x, zeros_of(x)), LogicalNot()(IsFinite()(slope)))
        return SELECT(is_lost, zeros_of(x), slope), self(-z, y)

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        by_x, by_y = map(conjugated, self.partials(z, x, y))
        return MUL(g, by_x), MUL_NO_NAN(g, by_y)

    def jvp(self, tangents: Tangents, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        tx, ty = tangents
        by_x, by_y = self.partials(z, x, y)
        return add_all((scale(tx, by_x), None if ty is None else MUL_NO_NAN(ty, by_y)))

    def depends_given(self, values: KnownValues, p: Pattern, q: Pattern) -> Pattern:
        """Only a numerator that is known to be zero hides the other one."""
        return p | without_zeros(q, values[0])

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x / np.where(x == 0, np.ones_like(y), y)


class Neg(Elementwise):
    """-x"""

    is_linear = True
    kinds = NUMERIC
    reference = np.negative

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-1,)


class Pow(Elementwise):
    """x ** y; where both are 0 the derivatives are 0, and so is that in y for x <= 0, unless the
    power itself is infinite or nan"""

    kinds = NUMERIC
    reference = np.power

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        zero, one = zeros_of(y), full_like(y, 1)
        both_zero = AND(EQUAL(x, zero), EQUAL(y, zero))
        by_base = SELECT(both_zero, zero, y * POW(x, SELECT(both_zero, one, y - 1)))
        if x.dtype.is_complex:
            return by_base, z * LOG(x)
        return by_base, z * LOG(SELECT(LESS_EQUAL(x, zero), one, x))  # of nan it is nan


class IntegerPow(Elementwise):
    """x ** exponent, with an int that is known while tracing"""

    exponent: int
    kinds = NUMERIC

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.is_integer and self.exponent < 0:
            raise DTypeMismatch(
                f"an integer tensor {x} has no power {self.exponent}",
                fix="convert it: tg.cast(x, tg.float32)",
            )
        return super().infer(x)

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        if self.exponent == 0:
            return (zeros_of(x),)  # and not 0 * x ** -1, which is nan at 0
        if self.exponent == 1:
            return (1,)
        lower = x if self.exponent == 2 else IntegerPow(self.exponent - 1)(x)
        return (lower * self.exponent,)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.power(x, np.asarray(self.exponent, x.dtype))


class FloorDiv(Discrete):
    """floor(x / y)"""

    kinds = frozenset(["floating", "integer"])
    reference = np.floor_divide


class FloorMod(Elementwise):
    """x - floor(x / y) * y, with the sign of y"""

    kinds = frozenset(["floating", "integer"])
    reference = np.mod

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, -FLOOR(x / y)


class TruncateMod(Elementwise):
    """x - trunc(x / y) * y, with the sign of x"""

    kinds = frozenset(["floating", "integer"])
    reference = np.fmod

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, -((x - z) / y)


class Maximum(Elementwise):
    """max(x, y); where they are equal the derivative goes to x, where one is nan to neither, or
    with `keeps_nan`, as it is in the maximum of many, to both as nan"""

    keeps_nan: bool = False
    kinds = ORDERED
    reference = np.maximum

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        goes_to_x, goes_to_y = GREATER_EQUAL(x, y), LESS(x, y)
        if not self.keeps_nan:
            return goes_to_x, goes_to_y
        is_number = EQUAL(z, z)
        return tuple(SELECT(is_number, Cast(z.dtype)(to), z) for to in (goes_to_x, goes_to_y))


class Minimum(Elementwise):
    """min(x, y); where they are equal the derivative goes to x, where one is nan to neither"""

    kinds = ORDERED
    reference = np.minimum

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return LESS_EQUAL(x, y), GREATER(x, y)


class Atan2(Elementwise):
    """The angle of the point (y, x) from the positive x axis, in radians"""

    kinds = FLOATING
    reference = np.arctan2

    def partials(self, angle: Tensor, y: Tensor, x: Tensor) -> Factors:
        # x / (x^2 + y^2) and -y / (x^2 + y^2), by the ratio of the two: squares overflow early.
        is_flat = GREATER_EQUAL(ABS(x), ABS(y))
        longer, shorter = SELECT(is_flat, x, y), SELECT(is_flat, y, x)
        ratio = shorter / longer
        by_shorter = 1 / (longer * (1 + ratio * ratio))
        by_longer = ratio * by_shorter
        return SELECT(is_flat, by_shorter, by_longer), -SELECT(is_flat, by_longer, by_shorter)


class Select(Elementwise):
    """x where condition, else y"""

    kinds = KEPT
    reference = np.where

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        if not condition.dtype.is_bool:
            raise DTypeMismatch(
                f"the condition is {condition}, and it must be bool",
                fix="compare it: tg.where(condition != 0, x, y)",
            )
        return TensorType(check_same_dtype(self.name, x, y), common_shape(condition, x, y))

    def vjp(self, g: Tensor, z: Tensor, condition: Tensor, x: Tensor, y: Tensor) -> Derivative:
        # Not a product with 0 and 1: an infinite cotangent of the branch not taken must vanish.
        zero = zeros_of(g)
        return None, SELECT(condition, g, zero), SELECT(condition, zero, g)

    def jvp(
        self, tangents: Tangents, z: Tensor, condition: Tensor, x: Tensor, y: Tensor
    ) -> Derivative:
        _, tx, ty = tangents
        if tx is None and ty is None:
            return None
        zero = zeros_of(z)
        return SELECT(condition, zero if tx is None else tx, zero if ty is None else ty)

    def partials(self, z: Tensor, condition: Tensor, x: Tensor, y: Tensor) -> Factors:
        first = Cast(z.dtype)(condition)
        return None, first, 1 - first

    def depends(self, condition: Pattern, x: Pattern, y: Pattern) -> Pattern:
        return x | y

    def depends_given(
        self, values: KnownValues, condition: Pattern, x: Pattern, y: Pattern
    ) -> Pattern:
        if values[0] is None:
            return x | y
        return x.where(values[0]) | y.where(~values[0])


# Functions of one variable.


class Sign(Elementwise):
    """-1, 0 or 1; x / |x| for complex numbers, and 0 at 0"""

    kinds = NUMERIC
    reference = np.sign

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        if not x.dtype.is_complex:
            return (zeros_of(g),)  # connected, with derivative 0, as in TensorFlow
        return (self._turned(g, y, x),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        return self._turned(tangents[0], y, x) if x.dtype.is_complex else zeros_of(y)

    def _turned(self, t: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """What is left of t without its part along y, over |x|: a map that is its own adjoint."""
        along = to_complex(REAL(CONJ(y) * t), x.dtype)
        size = ABS(x)
        is_zero = EQUAL(size, zeros_of(size))
        size = to_complex(SELECT(is_zero, full_like(size, 1), size), x.dtype)
        return SELECT(is_zero, zeros_of(t), (t - y * along) / size)


class Abs(Elementwise):
    """|x|; the derivative at 0 is 0"""

    kinds = NUMERIC
    reference = np.abs

    def result_dtype(self, dtype: DType) -> DType:
        return dtype.real

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (SIGN(x),)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        if x.dtype.is_complex:
            return (to_complex(g, x.dtype) * SIGN(x),)
        return super().vjp(g, y, x)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        if x.dtype.is_complex:
            return REAL(CONJ(SIGN(x)) * tangents[0])
        return super().jvp(tangents, y, x)


class Exp(Elementwise):
    """e ** x"""

    reference = np.exp

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (y,)


class Expm1(Elementwise):
    """e ** x - 1, exact near 0"""

    reference = np.expm1

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (EXP(x),)  # y + 1 would lose the digits of a small e ** x


class Steep(Elementwise, abstract=True):
    """A function of one variable whose derivative is infinite somewhere, where nothing comes of no
    cotangent: where(x > 0, log(x), 0) has the derivative 0 at 0, as in forward form"""

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        (factor,) = map(conjugated, self.partials(y, x))
        return (MUL_NO_NAN(factor, g),)


class SteepQuotient(Steep, abstract=True):
    """A steep function whose derivative is one over something: that divides the cotangent."""

    def divisor(self, y: Tensor, x: Tensor) -> Tensor:
        """One over the derivative, from primal values only."""
        raise NotImplementedError

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 / self.divisor(y, x),)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (STEEP_DIV(g, conjugated(self.divisor(y, x))),)


class Log(SteepQuotient):
    """The natural logarithm"""

    reference = np.log

    def divisor(self, y: Tensor, x: Tensor) -> Tensor:
        return x


class Log1p(SteepQuotient):
    """log(1 + x), exact near 0"""

    reference = np.log1p

    def divisor(self, y: Tensor, x: Tensor) -> Tensor:
        return 1 + x


class Sqrt(SteepQuotient):
    """The square root"""

    reference = np.sqrt

    def divisor(self, y: Tensor, x: Tensor) -> Tensor:
        return 2 * y


class Cbrt(SteepQuotient):
    """The cube root, negative for negative x"""

    kinds = FLOATING
    reference = np.cbrt

    def divisor(self, y: Tensor, x: Tensor) -> Tensor:
        return 3 * (y * y)


class Rsqrt(Steep):
    """1 / sqrt(x)"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-0.5 * y / x,)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(x)


class Sin(Elementwise):
    """sin(x), x in radians"""

    reference = np.sin

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (COS(x),)


class Cos(Elementwise):
    """cos(x), x in radians"""

    reference = np.cos

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-SIN(x),)


class Tan(Elementwise):
    """tan(x), x in radians"""

    reference = np.tan

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 + y * y,)


class Asin(Elementwise):
    """The angle in [-pi/2, pi/2] whose sine is x"""

    reference = np.arcsin

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (RSQRT(1 - x * x),)


class Acos(Elementwise):
    """The angle in [0, pi] whose cosine is x"""

    reference = np.arccos

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (-RSQRT(1 - x * x),)


class Atan(Elementwise):
    """The angle in (-pi/2, pi/2) whose tangent is x"""

    reference = np.arctan

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 / (1 + x * x),)


class Sinh(Elementwise):
    """The hyperbolic sine"""

    reference = np.sinh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (COSH(x),)


class Cosh(Elementwise):
    """The hyperbolic cosine"""

    reference = np.cosh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (SINH(x),)


class Tanh(Elementwise):
    """The hyperbolic tangent"""

    reference = np.tanh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 - y * y,)


class Asinh(Elementwise):
    """The inverse of sinh"""

    reference = np.arcsinh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        if x.dtype.is_complex:
            return (RSQRT(x * x + 1),)
        # The square of a large x overflows, that of 1 / x does not.
        one = full_like(x, 1)
        is_large = GREATER(ABS(x), one)
        small = SELECT(is_large, 1 / SELECT(is_large, x, one), x)
        slope = RSQRT(small * small + 1)
        return (SELECT(is_large, ABS(small) * slope, slope),)


class Acosh(Elementwise):
    """The inverse of cosh, for x >= 1"""

    reference = np.arccosh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (RSQRT(x - 1) * RSQRT(x + 1),)


class Atanh(Elementwise):
    """The inverse of tanh, for |x| < 1"""

    reference = np.arctanh

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1 / (1 - x * x),)


class Sigmoid(Elementwise):
    """1 / (1 + e ** -x)"""

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        # Near 1, y * self(-x) would keep more digits, but it makes steps of an LSTM a fifth slower.
        return (y * (1 - y),)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))


class Erf(Elementwise):
    """The error function"""

    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return ((2 / math.sqrt(math.pi)) * EXP(-(x * x)),)


class Erfc(Elementwise):
    """1 - erf(x), exact for large x"""

    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return ((-2 / math.sqrt(math.pi)) * EXP(-(x * x)),)


class ErfInv(Elementwise):
    """The inverse of erf, for |x| < 1"""

    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return ((math.sqrt(math.pi) / 2) * EXP(y * y),)


class Lgamma(Elementwise):
    """The logarithm of |gamma(x)|"""

    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (DIGAMMA(x),)


class Polygamma(Elementwise):
    """The derivative of `order` of digamma, for x > 0"""

    order: int
    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (Polygamma(self.order + 1)(x),)


class Digamma(Elementwise):
    """The derivative of lgamma"""

    kinds = FLOATING

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (Polygamma(1)(x),)


class Floor(Discrete):
    """The largest integer that is not above x"""

    kinds = FLOATING
    reference = np.floor


class Ceil(Discrete):
    """The smallest integer that is not below x"""

    kinds = FLOATING
    reference = np.ceil


class Round(Discrete):
    """The nearest integer, halves to even"""

    kinds = FLOATING
    reference = np.rint


# Comparisons and logic.


class Equal(Relation):
    """x == y"""

    kinds = ANY
    reference = np.equal


class NotEqual(Relation):
    """x != y"""

    kinds = ANY
    reference = np.not_equal


class Less(Relation):
    """x < y"""

    reference = np.less


class LessEqual(Relation):
    """x <= y"""

    reference = np.less_equal


class Greater(Relation):
    """x > y"""

    reference = np.greater


class GreaterEqual(Relation):
    """x >= y"""

    reference = np.greater_equal


class IsFinite(Relation):
    """Whether x is neither infinite nor nan"""

    kinds = INEXACT
    reference = np.isfinite


class LogicalNot(Discrete):
    """not x; of integers, every bit flipped"""

    kinds = DISCRETE

    reference = np.invert


class LogicalAnd(Discrete):
    """x and y; of integers, bit by bit"""

    kinds = DISCRETE
    reference = np.bitwise_and


class LogicalOr(Discrete):
    """x or y; of integers, bit by bit"""

    kinds = DISCRETE
    reference = np.bitwise_or


class LogicalXor(Discrete):
    """Either x or y; of integers, bit by bit"""

    kinds = DISCRETE
    reference = np.bitwise_xor


class ShiftLeft(Discrete):
    """The bits of x moved up by y places"""

    kinds = INTEGER
    reference = np.left_shift


class ShiftRight(Discrete):
    """The bits of x moved down by y places; the sign is kept for signed types"""

    kinds = INTEGER
    reference = np.right_shift


# Between data types.


class Bitcast(Discrete):
    """The bits of x, read as another data type of the same size"""

    dtype: DType
    kinds = frozenset(["integer", "floating"])
    flops = no_flops
    counts_bits = True

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (None,)

    def infer(self, x: TensorType) -> TensorType:
        result = super().infer(x)
        if self.dtype.kind not in self.kinds or self.dtype.size != x.dtype.size:
            raise DTypeMismatch(
                f"elements of {x.dtype.name} have {x.dtype.size} bytes, and {self.dtype.name} has "
                f"{self.dtype.size}",
                fix="use tg.bitcast, which splits and joins elements",
            )
        return result

    def result_dtype(self, dtype: DType) -> DType:
        return self.dtype

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x).view(self.dtype.numpy_dtype)


class Cast(Elementwise):
    """x in another data type; complex numbers lose their imaginary part in a real one"""

    dtype: DType
    kinds = KEPT
    flops = no_flops

    def result_dtype(self, dtype: DType) -> DType:
        return self.dtype

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        if not (x.dtype.is_differentiable and self.dtype.is_differentiable):
            return (None,)
        return (Cast(x.dtype)(g),)

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        if not (x.dtype.is_differentiable and self.dtype.is_differentiable):
            return None
        return self(tangents[0])

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1,)

    def depends(self, x: Pattern) -> Pattern:
        return x if self.dtype.is_differentiable else x.emptied()

    def numpy(self, x: np.ndarray) -> np.ndarray:
        if np.iscomplexobj(x) and self.dtype.kind in ("integer", "floating"):
            return np.real(x).astype(self.dtype.numpy_dtype)
        return x.astype(self.dtype.numpy_dtype)


class RealLinear(Elementwise, abstract=True):
    """An op on complex numbers that is linear over the real ones: it is its own tangent."""

    kinds: ClassVar[frozenset[str]] = frozenset(["complex"])

    def jvp(self, tangents: tuple[Tensor], y: Tensor, x: Tensor) -> Derivative:
        return self(tangents[0])

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1,)


class Real(RealLinear):
    """The real part"""

    reference = np.real
    flops = no_flops

    def result_dtype(self, dtype: DType) -> DType:
        return dtype.real

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (to_complex(g, x.dtype),)


class Imag(RealLinear):
    """The imaginary part"""

    reference = np.imag
    flops = no_flops

    def result_dtype(self, dtype: DType) -> DType:
        return dtype.real

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (COMPLEX(zeros_of(g), g),)


class Conj(RealLinear):
    """The complex conjugate"""

    reference = np.conj

    def vjp(self, g: Tensor, y: Tensor, x: Tensor) -> Derivative:
        return (self(g),)


class Complex(Elementwise):
    """x + iy"""

    kinds = FLOATING
    flops = no_flops

    def result_dtype(self, dtype: DType) -> DType:
        return complex_of(dtype)

    def vjp(self, g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        return REAL(g), IMAG(g)

    def jvp(self, tangents: Tangents, z: Tensor, x: Tensor, y: Tensor) -> Derivative:
        return linear_tangent(self, tangents, (x, y))

    def partials(self, z: Tensor, x: Tensor, y: Tensor) -> Factors:
        return 1, 1

    def numpy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x + 1j * y).astype(complex_of_numpy(x.dtype))


class Identity(Elementwise):
    """x itself, as a new tensor"""

    is_linear = True
    kinds = KEPT
    flops = no_flops

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (1,)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x


class StopGradient(Elementwise):
    """x itself, without a derivative"""

    stops_gradients = True
    kinds = KEPT
    flops = no_flops

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        return (None,)

    def depends(self, x: Pattern) -> Pattern:
        return x.emptied()

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x


class PreventGradient(Elementwise):
    """x itself; asking for its derivative is an error"""

    message: str
    kinds = KEPT
    flops = no_flops

    def partials(self, y: Tensor, x: Tensor) -> Factors:
        raise Mismatch(
            f"the gradient is explicitly disabled here: {self.message}",
            fix="remove this op from the path, or wrap its input in tg.stop_gradient",
        )

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return x


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts have `dtype`. Raises a DTypeMismatch if there is none."""
    found = _COMPLEX_NAMES.get(dtype.name)
    if found is None:
        raise DTypeMismatch(
            f"there is no complex type with parts of {dtype.name}",
            fix="convert the parts: tg.cast(x, tg.float32)",
        )
    return found


def complex_of_numpy(dtype: np.dtype) -> Any:
    return np.complex64 if dtype == np.float32 else np.complex128


def to_complex(x: Tensor, dtype: DType) -> Tensor:
    return Cast(dtype)(x)


_COMPLEX_NAMES = {"float32": complex64, "float64": complex128}

ADD, SUB, MUL, DIV, NEG, POW = Add(), Sub(), Mul(), Div(), Neg(), Pow()
MUL_NO_NAN, STEEP_DIV = MulNoNan(), SteepDiv()
MAXIMUM, MINIMUM, SELECT, SIGN, ABS = Maximum(), Minimum(), Select(), Sign(), Abs()
EXP, LOG, SQRT, RSQRT, SIN, COS, SINH, COSH = (
    *(Exp(), Log(), Sqrt(), Rsqrt()),
    *(Sin(), Cos(), Sinh(), Cosh()),
)
DIGAMMA, FLOOR, AND = Digamma(), Floor(), LogicalAnd()
EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL = (
    *(Equal(), Less(), LessEqual()),
    *(Greater(), GreaterEqual()),
)
REAL, IMAG, CONJ, COMPLEX, IDENTITY = Real(), Imag(), Conj(), Complex(), Identity()
