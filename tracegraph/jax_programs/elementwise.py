"""JAX primitives that work elementwise."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from tracegraph.array.rearranging import bitcast
from tracegraph.core.types import as_dtype
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import Equation, converts, converts_by
from tracegraph.ops import elementwise as ops, special
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.random import GammaSlope
from tracegraph.ops.special import (
    JaxAbs,
    JaxDiv,
    JaxMax,
    JaxMin,
    LeadingZeros,
    PopulationCount,
    ReducePrecision,
)


def _plain(op: Op) -> Callable[..., Any]:
    return lambda eqn, *xs: op(*eqn.broadcast(*xs))


_OPS: dict[str, Op] = {
    "abs": JaxAbs(),
    "acos": ops.Acos(),
    "acosh": ops.Acosh(),
    "add": ops.Add(),
    "add_any": ops.Add(),
    "and": ops.LogicalAnd(),
    "asin": ops.Asin(),
    "asinh": ops.Asinh(),
    "atan": ops.Atan(),
    "atanh": ops.Atanh(),
    "bessel_i0e": special.BesselI0e(),
    "bessel_i1e": special.BesselI1e(),
    "cbrt": ops.Cbrt(),
    "ceil": ops.Ceil(),
    "clz": LeadingZeros(),
    "complex": ops.Complex(),
    "copy": ops.Identity(),
    "copy_p": ops.Identity(),
    "cos": ops.Cos(),
    "cosh": ops.Cosh(),
    "digamma": ops.Digamma(),
    "div": JaxDiv(),
    "eq": ops.Equal(),
    "erf": ops.Erf(),
    "erf_inv": ops.ErfInv(),
    "erfc": ops.Erfc(),
    "exp": ops.Exp(),
    "expm1": ops.Expm1(),
    "floor": ops.Floor(),
    "ge": ops.GreaterEqual(),
    "gt": ops.Greater(),
    "igamma": special.Igamma(),
    "igamma_grad_a": special.Igamma(1),
    "igammac": special.Igammac(),
    "imag": ops.Imag(),
    "is_finite": ops.IsFinite(),
    "le": ops.LessEqual(),
    "lgamma": ops.Lgamma(),
    "log": ops.Log(),
    "log1p": ops.Log1p(),
    "logistic": ops.Sigmoid(),
    "lt": ops.Less(),
    "mul": ops.Mul(),
    "name": ops.Identity(),
    "ne": ops.NotEqual(),
    "neg": ops.Neg(),
    "nextafter": special.NextAfter(),
    "not": ops.LogicalNot(),
    "or": ops.LogicalOr(),
    "population_count": PopulationCount(),
    "random_gamma_grad": GammaSlope(),
    "real": ops.Real(),
    "regularized_incomplete_beta": special.Betainc(),
    "rem": ops.TruncateMod(),
    "rsqrt": ops.Rsqrt(),
    "shift_left": ops.ShiftLeft(),
    "sin": ops.Sin(),
    "sinh": ops.Sinh(),
    "sqrt": ops.Sqrt(),
    "stop_gradient": ops.StopGradient(),
    "sub": ops.Sub(),
    "tan": ops.Tan(),
    "tanh": ops.Tanh(),
    "xor": ops.LogicalXor(),
    "zeta": special.Zeta(),
}
converts_by({name: _plain(op) for name, op in _OPS.items()})


@converts("conj")
def _conj(eqn: Equation, x: Tensor) -> Tensor:
    return ops.Conj()(x if x.dtype.is_complex else ops.Complex()(x, full_like(x, 0)))


@converts("sign")
def _sign(eqn: Equation, x: Tensor) -> Tensor:
    # JAX takes its derivative to be zero for complex numbers too.
    return ops.Sign()(ops.StopGradient()(x) if x.dtype.is_complex else x)


@converts("atan2")
def _atan2(eqn: Equation, y: Tensor, x: Tensor) -> Any:
    if y.dtype.is_complex:
        return eqn.expanded(
            lambda y, x: -1j * lax.log((x + 1j * y) / lax.sqrt(x * x + y * y)), y, x
        )
    return ops.Atan2()(*eqn.broadcast(y, x))


@converts("max", "min")
def _extreme(eqn: Equation, x: Tensor, y: Tensor) -> Any:
    if x.dtype.is_complex:
        return eqn.expanded(complex_max if eqn.name == "max" else complex_min, x, y)
    return (JaxMax() if eqn.name == "max" else JaxMin())(*eqn.broadcast(x, y))


def complex_max(x: Any, y: Any) -> Any:
    """The number with the larger real part, or with the larger imaginary one if these are equal."""
    return _picked(lax.gt, x, y)


def complex_min(x: Any, y: Any) -> Any:
    """The number with the smaller real part, or with the smaller imaginary one if these are
    equal."""
    return _picked(lax.lt, x, y)


def _picked(is_first: Callable[..., Any], x: Any, y: Any) -> Any:
    by_imaginary = is_first(jnp.imag(x), jnp.imag(y))
    is_x = jnp.where(jnp.real(x) == jnp.real(y), by_imaginary, is_first(jnp.real(x), jnp.real(y)))
    # Of two equal numbers, each has half of the derivative.
    return jnp.where(x == y, x / 2 + y / 2, jnp.where(is_x, x, y))


@converts("one_minus_square")
def _one_minus_square(eqn: Equation, x: Tensor) -> Tensor:
    one = full_like(x, 1)
    product = ops.MUL(ops.ADD(one, x), ops.SUB(one, x))  # accurate near 1
    if not x.dtype.is_floating:
        return product
    is_small = ops.LESS(ops.ABS(x), full_like(x, 0.5))  # where the product's slope would lose its
    return ops.SELECT(is_small, ops.SUB(one, ops.MUL(x, x)), product)


@converts("polynomial")
def _polynomial(eqn: Equation, *operands: Tensor) -> Tensor:
    x, *coefficients, y = eqn.broadcast(*operands)
    for coefficient in reversed(coefficients):
        y = ops.ADD(ops.MUL(y, x), coefficient)
    return y


@converts("integer_pow")
def _integer_pow(eqn: Equation, x: Tensor) -> Tensor:
    exponent = eqn.params["y"]
    if exponent >= 0:
        return ops.IntegerPow(exponent)(x)
    return JaxDiv()(full_like(x, 1), ops.IntegerPow(-exponent)(x))


@converts("pow")
def _pow(eqn: Equation, x: Tensor, y: Tensor) -> Tensor:
    if y.dtype is not x.dtype:  # an integer exponent
        y = ops.Cast(x.dtype)(y)
    return ops.POW(*eqn.broadcast(x, y))


@converts("polygamma")
def _polygamma(eqn: Equation, order: Tensor, x: Tensor) -> list[Tensor]:
    def of_zeta(order: Any, x: Any) -> Any:
        order = lax.stop_gradient(order)
        above = jnp.maximum(order, 1)  # zeta(1, x) is infinite, and digamma takes its place
        size = jnp.exp(lax.lgamma(above + 1)) * lax.zeta(above + 1, x)
        found = jnp.where(order == 0, lax.digamma(x), jnp.where(order % 2 == 0, -size, size))
        return jnp.where((order >= 0) & (order == lax.floor(order)), found, jnp.nan)

    return eqn.expanded(of_zeta, order, x)


_IN_TOTAL_ORDER = {"lt_to": operator.lt, "le_to": operator.le, "eq_to": operator.eq}


@converts(*_IN_TOTAL_ORDER)
def _in_total_order(eqn: Equation, x: Tensor, y: Tensor) -> list[Tensor]:
    compare = _IN_TOTAL_ORDER[eqn.name]
    return eqn.expanded(lambda x, y: compare(_as_ordered_bits(x), _as_ordered_bits(y)), x, y)


def _as_ordered_bits(x: Any) -> Any:
    """Integers in the total order of floating-point numbers: -nan, -inf, ..., -0, 0, ..., inf,
    nan."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    bits = lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


@converts("round")
def _round(eqn: Equation, x: Tensor) -> Tensor:
    to_even = ops.Round()(x)
    if eqn.params["rounding_method"] == 1:
        return to_even
    distance = ops.ABS(x)
    whole = ops.FLOOR(distance)
    is_half = ops.EQUAL(ops.SUB(distance, whole), full_like(x, 0.5))
    away = ops.MUL(ops.SIGN(x), ops.ADD(whole, full_like(x, 1)))
    return ops.SELECT(is_half, ops.StopGradient()(away), to_even)


def _shifted(eqn: Equation, kind: str, *operands: Tensor) -> Tensor:
    """Shifts the bits of x right, as a signed or an unsigned integer."""
    x, y = eqn.broadcast(*operands)
    bits = as_dtype(f"{kind}{8 * x.dtype.size}")
    if x.dtype is bits:
        return ops.ShiftRight()(x, y)
    there = ops.Bitcast(bits)
    return ops.Bitcast(x.dtype)(ops.ShiftRight()(there(x), there(y)))


@converts("convert_element_type")
def _convert_element_type(eqn: Equation, x: Tensor) -> Tensor:
    return x if eqn.type is x.type else ops.Cast(eqn.type.dtype)(x)


@converts("bitcast_convert_type")
def _bitcast_convert_type(eqn: Equation, x: Tensor) -> Any:
    if eqn.type.dtype.size != x.dtype.size:
        return bitcast(x, eqn.type.dtype)
    return ops.Bitcast(eqn.type.dtype)(x)


@converts("reduce_precision")
def _reduce_precision(eqn: Equation, x: Tensor) -> Tensor:
    return ReducePrecision(eqn.params["exponent_bits"], eqn.params["mantissa_bits"])(x)


@converts("select_n")
def _select_n(eqn: Equation, which: Tensor, *cases: Tensor) -> Tensor:
    if which.dtype.is_bool:
        if len(cases) == 1:
            return cases[0]
        return _selected(eqn, which, cases[1], cases[0])
    chosen = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        is_it = ops.EQUAL(which, full_like(which, number))
        chosen = _selected(eqn, is_it, cases[number], chosen)
    return chosen


def _selected(eqn: Equation, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ops.SELECT(*eqn.broadcast(condition, x, y))


@converts("clamp")
def _clamp(eqn: Equation, low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    # Written so that the derivative is zero where x is at a bound, as in JAX.
    low, x, high = eqn.broadcast(low, x, high)
    inside = ops.AND(ops.GREATER(x, low), ops.LESS(x, high))
    kept = ops.SELECT(inside, x, ops.StopGradient()(x))
    raised = ops.SELECT(ops.GREATER(low, x), low, kept)
    return ops.SELECT(ops.LESS(high, raised), high, raised)


converts_by(
    {
        "square": lambda eqn, x: ops.MUL(x, x),
        "log2": lambda eqn, x: ops.MUL(ops.LOG(x), full_like(x, 1 / math.log(2))),
        "exp2": lambda eqn, x: ops.EXP(ops.MUL(full_like(x, math.log(2)), x)),
        "shift_right_arithmetic": lambda eqn, x, y: _shifted(eqn, "int", x, y),
        "shift_right_logical": lambda eqn, x, y: _shifted(eqn, "uint", x, y),
    }
)
