"""Special functions: Bessel functions and integrals, elementwise.

All take real floating tensors; 16-bit ones are computed in 32 bits. They raise DTypeError for
other dtypes. Derivatives are correct to any order.
"""

from __future__ import annotations

from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops import special as ops
from tracegraph.typing import TensorLike


def bessel_i0(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of the first kind of order 0.

    >>> tg.math.special.bessel_i0([0.0, 1.0]).numpy().round(4)
    array([1.    , 1.2661], dtype=float32)
    """
    return ops.BesselI0()(as_tensor(x))


def bessel_i0e(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** -|x| times the modified Bessel function of the first kind of order 0.

    >>> tg.math.special.bessel_i0e([0.0, 1.0]).numpy().round(4)
    array([1.    , 0.4658], dtype=float32)
    """
    return ops.BesselI0e()(as_tensor(x))


def bessel_i1(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of the first kind of order 1.

    >>> tg.math.special.bessel_i1([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.5652], dtype=float32)
    """
    return ops.BesselI1()(as_tensor(x))


def bessel_i1e(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** -|x| times the modified Bessel function of the first kind of order 1.

    >>> tg.math.special.bessel_i1e([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.2079], dtype=float32)
    """
    return ops.BesselI1e()(as_tensor(x))


def bessel_j0(x: TensorLike, name: str | None = None) -> Tensor:
    """The Bessel function of the first kind of order 0.

    >>> tg.math.special.bessel_j0([0.0, 1.0]).numpy().round(4)
    array([1.    , 0.7652], dtype=float32)
    """
    return ops.BesselJ0()(as_tensor(x))


def bessel_j1(x: TensorLike, name: str | None = None) -> Tensor:
    """The Bessel function of the first kind of order 1.

    >>> tg.math.special.bessel_j1([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.4401], dtype=float32)
    """
    return ops.BesselJ1()(as_tensor(x))


def bessel_k0(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of the second kind of order 0, for x >= 0.

    >>> tg.math.special.bessel_k0([1.0, 2.0]).numpy().round(4)
    array([0.421 , 0.1139], dtype=float32)
    """
    return ops.BesselK0()(as_tensor(x))


def bessel_k0e(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x times the modified Bessel function of the second kind of order 0, for x >= 0.

    >>> tg.math.special.bessel_k0e([1.0, 2.0]).numpy().round(4)
    array([1.1445, 0.8416], dtype=float32)
    """
    return ops.BesselK0e()(as_tensor(x))


def bessel_k1(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of the second kind of order 1, for x >= 0.

    >>> tg.math.special.bessel_k1([1.0, 2.0]).numpy().round(4)
    array([0.6019, 0.1399], dtype=float32)
    """
    return ops.BesselK1()(as_tensor(x))


def bessel_k1e(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x times the modified Bessel function of the second kind of order 1, for x >= 0.

    >>> tg.math.special.bessel_k1e([1.0, 2.0]).numpy().round(4)
    array([1.6362, 1.0335], dtype=float32)
    """
    return ops.BesselK1e()(as_tensor(x))


def bessel_y0(x: TensorLike, name: str | None = None) -> Tensor:
    """The Bessel function of the second kind of order 0, for x >= 0.

    >>> tg.math.special.bessel_y0([1.0, 2.0]).numpy().round(4)
    array([0.0883, 0.5104], dtype=float32)
    """
    return ops.BesselY0()(as_tensor(x))


def bessel_y1(x: TensorLike, name: str | None = None) -> Tensor:
    """The Bessel function of the second kind of order 1, for x >= 0.

    >>> tg.math.special.bessel_y1([1.0, 2.0]).numpy().round(4)
    array([-0.7812, -0.107 ], dtype=float32)
    """
    return ops.BesselY1()(as_tensor(x))


def dawsn(x: TensorLike, name: str | None = None) -> Tensor:
    """Dawson's integral: e ** -x**2 times the integral of e ** t**2 from 0 to x.

    >>> tg.math.special.dawsn([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.5381], dtype=float32)
    """
    return ops.Dawsn()(as_tensor(x))


def expint(x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of e ** t / t from minus infinity to x; its principal value for x > 0.

    >>> tg.math.special.expint([1.0, 2.0]).numpy().round(4)
    array([1.8951, 4.9542], dtype=float32)
    """
    return ops.Expint()(as_tensor(x))


def fresnel_cos(x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of cos(pi t ** 2 / 2) from 0 to x.

    >>> tg.math.special.fresnel_cos([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7799], dtype=float32)
    """
    return ops.FresnelCos()(as_tensor(x))


def fresnel_sin(x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of sin(pi t ** 2 / 2) from 0 to x.

    >>> tg.math.special.fresnel_sin([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.4383], dtype=float32)
    """
    return ops.FresnelSin()(as_tensor(x))


def spence(x: TensorLike, name: str | None = None) -> Tensor:
    """The integral of log(t) / (1 - t) from 1 to x, for x >= 0.

    >>> tg.math.special.spence([1.0, 2.0]).numpy().round(4)
    array([ 0.    , -0.8225], dtype=float32)
    """
    return ops.Spence()(as_tensor(x))


__all__ = [
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "bessel_j0",
    "bessel_j1",
    "bessel_k0",
    "bessel_k0e",
    "bessel_k1",
    "bessel_k1e",
    "bessel_y0",
    "bessel_y1",
    "dawsn",
    "expint",
    "fresnel_cos",
    "fresnel_sin",
    "spence",
]
