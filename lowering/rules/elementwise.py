"""Lowering of `tracegraph.ops.elementwise`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from lowering.device import x64
from lowering.forms import by_device
from lowering.rules import angles, lowers, lowers_by
from lowering.rules.special import log_gamma, polygamma
from tracegraph.ops import elementwise as ops


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, *xs: function(*xs)


def _erf_inv(y: Any) -> Any:
    """XLA's function, which in 64 bits has eleven digits near 1. There the normal quantile of the
    complement, which is exact from a half on, has them all."""
    if y.dtype != jnp.float64:
        return lax.erf_inv(y)
    size = jnp.abs(y)
    outer = -math.sqrt(0.5) * special.ndtri((1 - jnp.maximum(size, 0.5)) / 2)
    return jnp.where(size > 0.5, jnp.copysign(outer, y), lax.erf_inv(y))


def _by_sides(function: Callable[..., Any], real: int, imaginary: int) -> Callable[..., Any]:
    """The function, with the values at its cuts from the side that the sign of a zero part of x
    names; JAX knows one side alone. The parts of the result have the signs of those of x (1), the
    opposite ones (-1), or their own (0)."""

    def run(x: Any) -> Any:
        y = function(x)
        if not jnp.iscomplexobj(x):
            return y
        parts = (y.real, x.real, real), (y.imag, x.imag, imaginary)
        return lax.complex(*(jnp.copysign(a, sign * b) if sign else a for a, b, sign in parts))

    return run


_FUNCTIONS: dict[type, Callable[..., Any]] = {
    ops.Add: lax.add,
    ops.Sub: lax.sub,
    ops.Mul: lax.mul,
    ops.Neg: lax.neg,
    ops.FloorMod: jnp.mod,
    ops.TruncateMod: lax.rem,
    ops.Maximum: lax.max,
    ops.Minimum: lax.min,
    ops.Atan2: angles.fast(lax.atan2),
    ops.Select: lax.select,
    ops.Sign: lax.sign,
    ops.Exp: lax.exp,
    ops.Expm1: lax.expm1,
    ops.Log: lax.log,
    ops.Log1p: lax.log1p,
    ops.Sqrt: _by_sides(lax.sqrt, 0, 1),
    ops.Cbrt: lax.cbrt,
    ops.Rsqrt: lax.rsqrt,
    ops.Sin: lax.sin,
    ops.Cos: lax.cos,
    ops.Tan: lax.tan,
    ops.Asin: _by_sides(angles.fast(lax.asin), 1, 1),
    ops.Acos: _by_sides(angles.fast(lax.acos), 0, -1),
    ops.Atan: angles.fast(lax.atan),
    ops.Sinh: lax.sinh,
    ops.Cosh: lax.cosh,
    ops.Tanh: lax.tanh,
    ops.Asinh: _by_sides(lax.asinh, 1, 1),
    ops.Acosh: _by_sides(lax.acosh, 0, 1),
    ops.Atanh: lax.atanh,
    ops.Sigmoid: lax.logistic,
    ops.Erf: lax.erf,
    ops.Erfc: lax.erfc,
    ops.ErfInv: _erf_inv,
    ops.Lgamma: log_gamma,
    ops.Digamma: lax.digamma,
    ops.Floor: lax.floor,
    ops.Ceil: lax.ceil,
    ops.Equal: lax.eq,
    ops.NotEqual: lax.ne,
    ops.Less: lax.lt,
    ops.LessEqual: lax.le,
    ops.Greater: lax.gt,
    ops.GreaterEqual: lax.ge,
    ops.IsFinite: jnp.isfinite,
    ops.LogicalNot: lax.bitwise_not,
    ops.LogicalAnd: lax.bitwise_and,
    ops.LogicalOr: lax.bitwise_or,
    ops.LogicalXor: lax.bitwise_xor,
    ops.ShiftLeft: lax.shift_left,
    ops.Real: lax.real,
    ops.Imag: lax.imag,
    ops.Conj: lax.conj,
    ops.Complex: lax.complex,
    ops.Identity: lambda x: x,
    ops.StopGradient: lambda x: x,
    ops.PreventGradient: lambda x: x,
}

for _op, _function in _FUNCTIONS.items():
    lowers(_op)(_plain(_function))


def _is_not_zero(x: Any) -> Any:
    """By one operation, without zeros of its own to compare with."""
    if jnp.iscomplexobj(x):
        return lax.ne(x, lax.full_like(x, 0))
    return lax.convert_element_type(x, bool)


def quotient(x: Any, y: Any) -> Any:
    """x / y, rounded once."""
    if jnp.iscomplexobj(x):
        return lax.div(x, y)
    if x.dtype != jnp.float32:
        return _hidden_quotient(x, y)
    on_gpus = {"cuda": _quotient_by_float64, "rocm": _quotient_by_float64}
    return by_device(x, y, **on_gpus, default=_hidden_quotient)


#: For functions that programs call often: they are traced once for each shape.
_traced_once = partial(jax.jit, inline=True)


@_traced_once
def _steep_quotient(x: Any, y: Any) -> Any:
    """x / y where x is not 0, and 0 elsewhere. The divisor is selected, not the quotient: LLVM
    would branch around the division, which takes longer to compile."""
    return lax.div(x, lax.select(_is_not_zero(x), y, lax.full_like(y, 1)))


@_traced_once
def _quotient_by_float64(x: Any, y: Any) -> Any:
    """x / y for GPUs, whose float32 division is off by up to two units in the last place.

    In float64 the product with the reciprocal is off by less than two units, and no quotient of
    float32 numbers is that near to the middle between two others. A division in float64 would not
    do: LLVM narrows it to float32 again.
    """
    with x64():
        wide_x, wide_y = (lax.convert_element_type(value, jnp.float64) for value in (x, y))
        wide = lax.mul(wide_x, lax.integer_pow(wide_y, -1))
        return lax.convert_element_type(wide, jnp.float32)


@_traced_once
def _hidden_quotient(x: Any, y: Any) -> Any:
    """x / y where a division is rounded once, if XLA leaves it alone.

    XLA's algebraic simplifier multiplies by 1 / y where y is a constant or is broadcast, makes
    x / (y * z) of (x / y) / z, and x * rsqrt(y) of x / sqrt(y): each rounds twice. So both operands
    are hidden from it by selections on what is always true: more bits never make a whole number
    smaller. LLVM, which comes later, knows that, and what is left is the division alone.
    """
    bits = _BITS[x.dtype.itemsize]
    x_bits, y_bits = (lax.bitcast_convert_type(value, bits) for value in (x, y))
    is_true = lax.ge(lax.bitwise_or(x_bits, y_bits), y_bits)
    return lax.div(lax.select(is_true, x, y), lax.select(is_true, y, x))


#: For each size of a number in bytes an integer of as many.
_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


@lowers(ops.FloorDiv)
def _floor_div(op: ops.FloorDiv, x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(x, y)
    # The remainder is exact, so no quotient is rounded up to the next integer and then kept.
    rest = lax.rem(x, y)
    whole = lax.round(quotient(lax.sub(x, rest), y), lax.RoundingMethod.TO_NEAREST_EVEN)
    zero = lax.full_like(x, 0)
    is_above = lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(rest, zero), lax.lt(y, zero)))
    whole = lax.select(is_above, lax.sub(whole, lax.full_like(x, 1)), whole)
    return lax.select(lax.eq(y, zero), quotient(x, y), whole)


@lowers(ops.Pow)
def _pow(op: ops.Pow, x: Any, y: Any) -> Any:
    return _power_of_integers(x, y) if jnp.issubdtype(x.dtype, jnp.integer) else jnp.power(x, y)


@_traced_once
def _power_of_integers(x: Any, y: Any) -> Any:
    """x ** y by squaring, which wraps as a product does. JAX looks at six bits of y alone, so that
    its 3 ** 64 is 1."""
    one = lax.full_like(y, 1)

    def step(values: Any) -> Any:
        power, x, y = values
        is_odd = lax.convert_element_type(lax.bitwise_and(y, one), bool)
        power = lax.select(is_odd, lax.mul(power, x), power)
        return power, lax.mul(x, x), lax.shift_right_logical(y, one)

    start = (lax.full_like(x, 1), x, y)
    return lax.while_loop(lambda values: jnp.any(values[2] != 0), step, start)[0]


@lowers(ops.IntegerPow)
def _integer_pow(op: ops.IntegerPow, x: Any) -> Any:
    if op.exponent < 0 and not jnp.iscomplexobj(x):
        return quotient(lax.full_like(x, 1), lax.integer_pow(x, -op.exponent))
    return lax.integer_pow(x, op.exponent)


@lowers(ops.Cast)
def _cast(op: ops.Cast, x: Any) -> Any:
    if jnp.iscomplexobj(x):
        if op.dtype.is_bool:
            return lax.ne(x, jnp.zeros_like(x))
        x = x if op.dtype.is_complex else lax.real(x)
    return lax.convert_element_type(x, op.dtype.numpy_dtype)


lowers_by(
    {
        ops.MulNoNan: lambda op, x, y: lax.select(_is_not_zero(y), lax.mul(x, y), y),
        ops.SteepDiv: lambda op, x, y: _steep_quotient(x, y),
        ops.Div: lambda op, x, y: quotient(x, y),
        ops.Abs: lambda op, x: x if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x),
        ops.Polygamma: lambda op, x: polygamma(op.order, x),
        ops.Round: lambda op, x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        ops.ShiftRight: lambda op, x, y: jnp.right_shift(x, y),
        ops.Bitcast: lambda op, x: lax.bitcast_convert_type(x, op.dtype.numpy_dtype),
    }
)
