"""The gamma and beta families, quantiles, polynomials, and what is asked of an order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.array.arguments import as_integers, rank_of, refuse, refuse_kind
from tracegraph.array.joining import together
from tracegraph.array.shaping import cut, reshape
from tracegraph.errors import InvalidArgumentError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import divide_no_nan
from tracegraph.operands.conversion import (
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
    elementwise_operands,
    static_value,
)
from tracegraph.ops.broadcast import Sum, full_like, zeros_of
from tracegraph.ops.elementwise import (
    DIGAMMA,
    EQUAL,
    EXP,
    GREATER,
    GREATER_EQUAL,
    POW,
    SELECT,
    Lgamma,
    Polygamma,
    StopGradient,
)
from tracegraph.ops.reduce import All
from tracegraph.ops.sort import ArgSort
from tracegraph.ops.special import Betainc, Igamma, Igammac, Ndtri, NextAfter, Zeta

if TYPE_CHECKING:
    from tracegraph.typing import TensorLike


def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of t ** (a - 1) e ** -t from 0 to x, over gamma(a), for a > 0 and x >= 0.

    It has derivatives by both arguments, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.igamma(1.0, [0.0, 1.0]).numpy().round(4)
    array([0.    , 0.6321], dtype=float32)
    """
    return Igamma()(*elementwise_operands("igamma", a, x))


def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """1 - igamma(a, x), exact where igamma is near 1, for a > 0 and x >= 0.

    It has derivatives by both arguments, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.igammac(1.0, [0.0, 1.0]).numpy().round(4)
    array([1.    , 0.3679], dtype=float32)
    """
    return Igammac()(*elementwise_operands("igammac", a, x))


def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of t ** (a - 1) (1 - t) ** (b - 1) from 0 to x, over beta(a, b).

    The arguments broadcast; a and b are positive, and x is from 0 to 1. It has derivatives by all
    three, to any order. Raises DTypeError unless all are floating.

    >>> tg.math.betainc(1.0, 2.0, [0.0, 0.5, 1.0]).numpy().round(4)
    array([0.  , 0.75, 1.  ], dtype=float32)
    """
    operands = together("betainc", [a, b, x])
    shape = broadcast_shape("betainc", *operands)
    return Betainc()(*(broadcast(operand, shape) for operand in operands))


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """The logarithm of |beta| of the vectors x[..., :]: sum lgamma(x) - lgamma(sum x).

    Raises ShapeError for a scalar.

    >>> tg.math.lbeta([1.0, 2.0, 3.0]).numpy().round(4)
    np.float32(-4.0943)
    """
    x = as_tensor(x)
    last = rank_of("lbeta", x) - 1
    if last < 0:
        refuse("lbeta", f"{x.type} is not a vector", x, fix="give a tensor of at least one axis")
    total = Sum((last,))
    return total(Lgamma()(x)) - Lgamma()(total(x))  # type: ignore[operator]


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of digamma of order `a`, for x > 0; `a` is 0, 1, 2 and so on, as a floating
    number, and has no derivative.

    >>> tg.math.polygamma([0.0, 1.0], 1.0).numpy().round(4)
    array([-0.5772,  1.6449], dtype=float32)
    """
    known = _known_order(a)
    if known is not None:
        return Polygamma(known)(as_tensor(x)) if known else DIGAMMA(as_tensor(x))
    order, x = elementwise_operands("polygamma", a, x)
    order = StopGradient()(order)
    zero, one = zeros_of(order), full_like(order, 1)
    is_zero = EQUAL(order, zero)
    above = SELECT(is_zero, one, order) + one  # type: ignore[operator]
    size = EXP(Lgamma()(above)) * Zeta()(above, x)  # type: ignore[operator]
    return SELECT(is_zero, DIGAMMA(x), POW(-one, above) * size)  # type: ignore[operator]


def _known_order(a: Any) -> int | None:
    """One order for all elements, if it is a number that is known while tracing."""
    if isinstance(a, (int, float)) and a >= 0 and float(a).is_integer():
        return int(a)
    return None


def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Hurwitz' zeta function: the sum over k >= 0 of (q + k) ** -x, for x > 1 and q > 0.

    It has derivatives by both arguments, to any order. Raises DTypeError unless both are floating.

    >>> tg.math.zeta(2.0, [1.0, 2.0]).numpy().round(4)
    array([1.6449, 0.6449], dtype=float32)
    """
    return Zeta()(*elementwise_operands("zeta", x, q))


def ndtri(x: TensorLike, name: str | None = None) -> Tensor:
    """The quantiles of the normal distribution: where its distribution function is x, 0 < x < 1.

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
    """The number next to x1 in the direction of x2; its derivative is that of x1.

    >>> (tg.math.nextafter([1.0], 2.0) - 1.0).numpy()
    array([1.1920929e-07], dtype=float32)
    """
    return NextAfter()(*elementwise_operands("nextafter", x1, x2))


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0, with the derivative 0 there.

    >>> tg.math.reciprocal_no_nan([0.0, 2.0]).numpy()
    array([0. , 0.5], dtype=float32)
    """
    x = as_tensor(x)
    return divide_no_nan(full_like(x, 1), x)


def polyval(coeffs: Sequence[Any], x: TensorLike, name: str | None = None) -> Tensor:
    """coeffs[0] * x ** (n - 1) + ... + coeffs[n - 1], which broadcast with x.

    Raises DTypeError unless the coefficients stand in a list.

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


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether x[i] <= x[i + 1] for all elements, in the order in which they are stored.

    >>> tg.math.is_non_decreasing([1, 1, 2]).numpy()
    np.True_
    """
    return _ordered(GREATER_EQUAL, x)


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether x[i] < x[i + 1] for all elements, in the order in which they are stored.

    >>> tg.math.is_strictly_increasing([1, 1, 2]).numpy()
    np.False_
    """
    return _ordered(GREATER, x)


def _ordered(is_after: Any, x: Any) -> Tensor:
    flat = reshape(x, [-1])
    size = flat.type.shape[0]
    if size == 0:
        return as_tensor(True)
    return All(None)(is_after(cut(flat, 0, 1, size), cut(flat, 0, 0, size - 1)))


def invert_permutation(x: TensorLike, name: str | None = None) -> Tensor:
    """The y with y[x[i]] = i, of a vector x of the numbers from 0 to n - 1 in some order.

    Raises ShapeError unless x is a vector, DTypeError unless it has integers, InvalidArgumentError
    if it is known while tracing that a number is missing.

    >>> tg.math.invert_permutation([2, 0, 1]).numpy()
    array([1, 2, 0], dtype=int32)
    """
    x = as_integers("invert_permutation", "the positions x", x)
    if rank_of("invert_permutation", x) != 1:
        refuse("invert_permutation", f"{x.type} is not a vector", x, fix="use tg.reshape(x, [-1])")
    known = static_value(x)
    if isinstance(known, np.ndarray) and (np.sort(known) != np.arange(known.size)).any():
        fact = f"invert_permutation: {known.tolist()} lacks numbers below {known.size}"
        fix = "give each number from 0 on once"
        fail(InvalidArgumentError, fact, operands=[operand_text(x)], fix=fix)
    return cast_to(ArgSort(0, False)(x), x.dtype)


__all__ = [
    "betainc",
    "erfcinv",
    "igamma",
    "igammac",
    "invert_permutation",
    "is_non_decreasing",
    "is_strictly_increasing",
    "lbeta",
    "ndtri",
    "nextafter",
    "polygamma",
    "polyval",
    "reciprocal_no_nan",
    "zeta",
]
