"""The gamma and beta families, quantiles, and polynomials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import rank_of, refuse, refuse_kind
from tracegraph.array.joining import together
from tracegraph.core.types import float64
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide_no_nan
from tracegraph.operands.conversion import (
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
    elementwise_operands,
)
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import Sum, full_like, zeros_of
from tracegraph.ops.special import Betainc, Igamma, Igammac, Ndtri, NextAfter, Zeta
from tracegraph.typing import TensorLike


def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of t ** (a - 1) e ** -t from 0 to x, over gamma(a), for a > 0 and x >= 0.

    Differentiable with respect to both, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.igamma(1.0, [0.0, 1.0]).numpy().round(4)
    array([0.    , 0.6321], dtype=float32)
    """
    return _in_double(Igamma(), *elementwise_operands("igamma", a, x))


def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """1 - igamma(a, x), accurate where igamma is near 1, for a > 0 and x >= 0.

    Differentiable with respect to both, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.igammac(1.0, [0.0, 1.0]).numpy().round(4)
    array([1.    , 0.3679], dtype=float32)
    """
    return _in_double(Igammac(), *elementwise_operands("igammac", a, x))


def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of t ** (a - 1) (1 - t) ** (b - 1) from 0 to x, over beta(a, b).

    The arguments broadcast; a and b are positive, and x is from 0 to 1. Differentiable with respect
    to all three, to any order. Raises DTypeError unless all are floating.

    >>> tg.math.betainc(1.0, 2.0, [0.0, 0.5, 1.0]).numpy().round(4)
    array([0.  , 0.75, 1.  ], dtype=float32)
    """
    operands = together("betainc", [a, b, x])
    shape = broadcast_shape("betainc", *operands)
    return _in_double(Betainc(), *(broadcast(operand, shape) for operand in operands))


def _in_double(op: Op, *xs: Tensor) -> Tensor:
    """The op computed in float64, with its derivatives: the differences of large logarithms in it
    leave float32 few digits, and for parameters near 1e5 hardly one."""
    dtype = xs[0].dtype
    if not dtype.is_floating or dtype is float64:
        return op(*xs)
    return cast_to(op(*(cast_to(x, float64) for x in xs)), dtype)


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """log(|beta|) of the vectors x[..., :]: sum lgamma(x) - lgamma(sum x).

    Raises ShapeError for a scalar.

    >>> tg.math.lbeta([1.0, 2.0, 3.0]).numpy().round(4)
    np.float32(-4.0943)
    """
    x = as_tensor(x)
    last = rank_of("lbeta", x) - 1
    if last < 0:
        refuse("lbeta", f"{x.type} is not a vector", x, fix="give a tensor of at least one axis")
    total = Sum((last,))
    return total(ops.Lgamma()(x)) - ops.Lgamma()(total(x))  # type: ignore[operator]


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of digamma of order `a`, for x > 0; `a` is 0, 1, 2 and so on, as a
    floating-point number, and has no derivative. Of another order it is nan.

    >>> tg.math.polygamma([0.0, 1.0], 1.0).numpy().round(4)
    array([-0.5772,  1.6449], dtype=float32)
    """
    known = _known_order(a)
    if known is not None:
        return ops.Polygamma(known)(as_tensor(x)) if known else ops.DIGAMMA(as_tensor(x))
    order, x = elementwise_operands("polygamma", a, x)
    order = ops.StopGradient()(order)
    zero, one = zeros_of(order), full_like(order, 1)
    is_zero = ops.EQUAL(order, zero)
    # Adding 1 would round a fraction away.
    whole = ops.SELECT(ops.EQUAL(order, ops.Floor()(order)), order, full_like(order, math.nan))
    above = ops.SELECT(is_zero, one, whole) + one  # type: ignore[operator]
    size = ops.EXP(ops.Lgamma()(above)) * Zeta()(above, x)  # type: ignore[operator]
    return ops.SELECT(is_zero, ops.DIGAMMA(x), ops.POW(-one, above) * size)  # type: ignore[operator]


def _known_order(a: Any) -> int | None:
    """The order, if it is a single number that is known while tracing."""
    if isinstance(a, (int, float)) and a >= 0 and float(a).is_integer():
        return int(a)
    return None


def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Hurwitz' zeta function: the sum over k >= 0 of (q + k) ** -x, for x > 1 and q > 0.

    Differentiable with respect to both, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.zeta(2.0, [1.0, 2.0]).numpy().round(4)
    array([1.6449, 0.6449], dtype=float32)
    """
    return Zeta()(*elementwise_operands("zeta", x, q))


def ndtri(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of the normal cumulative distribution function, for 0 < x < 1.

    >>> tg.math.ndtri([0.5, 0.975]).numpy().round(2)
    array([0.  , 1.96], dtype=float32)
    """
    return Ndtri()(as_tensor(x))


def erfcinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of erfc, for 0 < x < 2.

    >>> tg.math.erfcinv([1.0, 0.5]).numpy().round(4) + 0.0
    array([0.    , 0.4769], dtype=float32)
    """
    return Ndtri()(as_tensor(x) * 0.5) * -math.sqrt(0.5)  # type: ignore[operator]


def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """The floating-point number next to x1 in the direction of x2; its derivative is that of x1.

    >>> (tg.math.nextafter([1.0], 2.0) - 1.0).numpy()
    array([1.1920929e-07], dtype=float32)
    """
    return NextAfter()(*elementwise_operands("nextafter", x1, x2))


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, or 0 where x is 0; the derivative is 0 there too.

    >>> tg.math.reciprocal_no_nan([0.0, 2.0]).numpy()
    array([0. , 0.5], dtype=float32)
    """
    x = as_tensor(x)
    return divide_no_nan(full_like(x, 1), x)


def polyval(coeffs: Sequence[Any], x: TensorLike, name: str | None = None) -> Tensor:
    """coeffs[0] * x ** (n - 1) + ... + coeffs[n - 1], which broadcast with x.

    Raises DTypeError unless the coefficients are in a list.

    >>> tg.math.polyval([1.0, 0.0, 2.0], [1.0, 3.0]).numpy()
    array([ 3., 11.], dtype=float32)
    """
    if not isinstance(coeffs, (list, tuple)):
        refuse_kind("polyval", "coeffs is a list of tensors", coeffs, fix="use tg.unstack(coeffs)")
    x = as_tensor(x)
    if not coeffs:
        return zeros_of(x)
    total = as_tensor(coeffs[0])
    for coefficient in coeffs[1:]:
        total = total * x + coefficient  # type: ignore[operator]
    return total


__all__ = [
    "betainc",
    "erfcinv",
    "igamma",
    "igammac",
    "lbeta",
    "ndtri",
    "nextafter",
    "polygamma",
    "polyval",
    "reciprocal_no_nan",
    "zeta",
]
