"""The inverse trigonometric functions of numbers of up to 32 bits on CPUs.

XLA makes all of them of atan2, for which it calls the C library once for each element. Here they
are a polynomial in float64, which LLVM computes for several elements at once, rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lowering.device import x64
from lowering.forms import by_device

#: atan(q) / q as a polynomial in q * q, for q up to 1: fitted at Chebyshev's nodes, to 6e-11.
_ARC = (
    *(0.99999999993908, -0.33333331518222, 0.19999909957123, -0.14283948422, 0.110929847917),
    *(-0.0897905106385, 0.0724228417625, -0.0542153089528, 0.0341334235721, -0.0160551610571),
    *(0.00482722794478, -0.000680497303231),
)


def _angle(y: Any, x: Any) -> Any:
    """atan2(y, x) of float64 numbers that are sums and products of float32 numbers."""
    high, wide = jnp.abs(y), jnp.abs(x)
    is_steep = high > wide
    # Of two zeros the quotient is 0, and of two infinities 1.
    larger = lax.max(high, wide)
    quotient = jnp.where(high == wide, jnp.sign(high), lax.min(high, wide) / larger)
    angle = quotient * jnp.polyval(jnp.asarray(_ARC[::-1], jnp.float64), quotient * quotient)
    angle = jnp.where(is_steep, math.pi / 2 - angle, angle)
    angle = jnp.where(jnp.signbit(x), math.pi - angle, angle)
    return jnp.copysign(angle, y)


def _other_side(x: Any) -> Any:
    """sqrt(1 - x * x), exact near 1."""
    return jnp.sqrt((1 - x) * (1 + x))


_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    lax.atan2: _angle,
    lax.atan: lambda x: _angle(x, jnp.ones_like(x)),
    lax.asin: lambda x: _angle(x, _other_side(x)),
    lax.acos: lambda x: _angle(_other_side(x), x),
}


@partial(jax.jit, static_argnums=0, inline=True)
def _in_float64(function: Callable[..., Any], *xs: Any) -> Any:
    with x64():
        angle = _FORMS[function](*(lax.convert_element_type(x, jnp.float64) for x in xs))
        return lax.convert_element_type(angle, xs[0].dtype)


def fast(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of JAX's functions, in the form for the device."""

    def computed(*xs: Any) -> Any:
        if jnp.iscomplexobj(xs[0]) or xs[0].dtype.itemsize > 4:
            return function(*xs)
        return by_device(*xs, cpu=partial(_in_float64, function), default=function)

    return computed
