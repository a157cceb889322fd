"""The Bessel functions j, y and k of order 0 and 1, as polynomials for small and large x.

The forms are those of the NIST Digital Library of Mathematical Functions, 10.8, 10.17, 10.31 and
10.40; what they leave smooth is a polynomial here, of as many terms as float64 needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering.rules.polynomials import polynomial

#: (J0(x) - 1) / (t + 1) and J1(x) / x, for x up to 5: polynomials in t = x * x / 12.5 - 1. They and
#: the following are fitted at Chebyshev's nodes, to 1e-17.
_NEAR_J = (
    (
        *(-1.3847445098140454, 1.1682390959158535, -0.45882309238231184, 0.0986423264319255),
        *(-0.013250502889328943, 0.0012152887349995535, -8.092522541219098e-05),
        *(4.0908893916059515e-06, -1.6238050684625848e-07, 5.1962212077925435e-09),
        *(-1.369226083063351e-10, 3.023022198571266e-12, -5.67847135328113e-14),
        9.170965993900992e-16,
    ),
    (
        *(0.03464086622371068, -0.22701312113073338, 0.17288676765618544, -0.054650767067261796),
        *(0.009628171323463516, -0.001088988969203854, 8.605445634303652e-05),
        *(-5.028491372546286e-06, 2.263453713594767e-07, -8.094877660471482e-09),
        *(2.3566323235455013e-10, -5.695262063084007e-12, 1.1621889603402637e-13),
        -2.0256137801818856e-15,
    ),
)

#: In the same way Y0(x) - 2 / pi * log(x) J0(x) and (Y1(x) - 2 / pi * (log(x) J1(x) - 1 / x)) / x.
_NEAR_Y = (
    (
        *(0.4837248578102995, -0.4326558222855125, -0.47057636552972876, 0.38851639956570944),
        *(-0.11151682184328655, 0.017635345389338752, -0.0018028096665503853),
        *(0.00012994629092083859, -6.985504374076987e-06, 2.9142206886821627e-07),
        *(-9.72095520811079e-09, 2.6539977501003325e-10, -6.049936925443629e-12),
        1.1665346489650883e-13,
    ),
    (
        *(0.13974939033568806, 0.09108650838448444, -0.16312020358118715, 0.06634695354779108),
        *(-0.013433433740818165, 0.001668803132863594, -0.00014141835794484212),
        *(8.733098304849315e-06, -4.1137780795312214e-07, 1.528890182483862e-08),
        *(-4.6013010745671044e-10, 1.1448944556867688e-11, -2.397782335135821e-13),
        4.2776864260420625e-15,
    ),
)

#: For x from 5 on J(x) + i Y(x) is sqrt(2 / (pi x)) e ** (i angle) (even(x) + i odd(x)), and the
#: angle x - pi / 4, or x - 3 pi / 4: even(x) and x odd(x) as polynomials in t = 50 / (x * x) - 1.
_EVEN = (
    (
        *(0.9986347659091991, -0.001327493127200339, 3.491730581252044e-05, -2.459963325168103e-06),
        *(2.975900553746619e-07, -5.086425840264451e-08, 1.1058780568890595e-08),
        *(-2.871060070650354e-09, 8.537676263486641e-10, -2.829452496746712e-10),
        *(1.0436064350820112e-10, -4.106525217778278e-11, 1.2759965127797933e-11),
        *(-4.91251230693199e-12, 8.185823082059821e-12, -4.552209147917835e-12),
        *(-2.7471611955307327e-12, 1.744128580941252e-12, 1.4135159640864857e-12),
        -8.369869275701596e-13,
    ),
    (
        *(1.0022906462560661, 0.002241463213917126, -4.5782806531241475e-05, 2.978621109034246e-06),
        *(-3.4667186580139646e-07, 5.7916610107440336e-08, -1.2403208324099435e-08),
        *(3.1855032324146683e-09, -9.396111382507204e-10, 3.09413943706809e-10),
        *(-1.1347108608292092e-10, 4.4449687372999163e-11, -1.386282352897023e-11),
        *(5.336343631938542e-12, -8.698156687887373e-12, 4.824788889110816e-12),
        *(2.890976936914703e-12, -1.8347559597628753e-12, -1.4950516095189181e-12),
        8.840536838471388e-13,
    ),
)
_ODD = (
    (
        *(-0.12361496352611864, 0.0013142139729102362, -6.33871544254583e-05),
        *(6.239113170680448e-06, -9.409875179957402e-07, 1.8870295144653753e-07),
        *(-4.639803043584321e-08, 1.3296891029527003e-08, -4.293847042822796e-09),
        *(1.5261700897034257e-09, -5.892215356042458e-10, 2.4263935543125643e-10),
        *(-9.741515740792947e-11, 4.2832020427800215e-11, -3.925873856398792e-11),
        *(2.2319592529270003e-11, 1.8241809922606466e-11, -1.3058530016744458e-11),
        *(-2.3675660325934634e-11, 1.564547330570554e-11, 1.1365571891555555e-11),
        *(-7.618783533423019e-12, -3.1626061462636137e-12, 2.081491744077396e-12),
    ),
    (
        *(0.3730474331740802, -0.0018648496218413005, 7.898094177981672e-05),
        *(-7.369927948880607e-06, 1.0798853788425984e-06, -2.1266738116230132e-07),
        *(5.164166241580384e-08, -1.4664562759348017e-08, 4.702225576301384e-09),
        *(-1.661953165269273e-09, 6.386145710593022e-10, -2.619513968106264e-10),
        *(1.050476212684586e-10, -4.6093574250883545e-11, 4.166373940168337e-11),
        *(-2.3614060194991713e-11, -1.9029480081634983e-11, 1.3633978111231898e-11),
        *(2.4853703760401125e-11, -1.6408035733800553e-11, -1.1918281857629639e-11),
        *(7.983543496962815e-12, 3.3207752699412695e-12, -2.183683436309388e-12),
    ),
)

#: sqrt(x) e ** x K(x) for x from 2 on: a polynomial in t = 4 / x - 1.
_FAR_K = (
    (
        *(1.2185953385133905, -0.031071461824889523, 0.0030328918102739454, -0.0004797690567658713),
        *(9.956054748575022e-05, -2.473520457096165e-05, 7.0022444255986085e-06),
        *(-2.191177672686996e-06, 7.427918745301117e-07, -2.6890740183537945e-07),
        *(1.028875394812628e-07, -4.133603551539714e-08, 1.7288102250486044e-08),
        *(-7.294807830568568e-09, 3.237899704197692e-09, -1.9163886235149194e-09),
        *(9.50126795470238e-10, 1.6249121403085222e-10, -1.2974622316235225e-10),
        *(-5.425392268826551e-10, 3.1302580587365775e-10, 2.1672329094976382e-10),
        *(-1.286822465377347e-10, -6.82912231113288e-11, 3.96355256263508e-11),
    ),
    (
        *(1.363151890371342, 0.10334973775386523, -0.005566729880073094, 0.0007357241549077615),
        *(-0.00013959021963384766, 3.284386556850026e-05, -8.961206061895131e-06),
        *(2.730041309124799e-06, -9.067215327593673e-07, 3.229820302740851e-07),
        *(-1.219592991740941e-07, 4.84585048883485e-08, -2.0078990564218355e-08),
        *(8.418479670972575e-09, -3.7119962979184724e-09, 2.1600738070102857e-09),
        *(-1.064142272258912e-09, -1.6214964652946646e-10, 1.3403129134884593e-10),
        *(5.917703107429806e-10, -3.4052380863530667e-10, -2.3491838521262873e-10),
        *(1.392647707395567e-10, 7.437054315558186e-11, -4.3071978473211124e-11),
    ),
)


def _near_j(order: int, x: Any) -> Any:
    square = x * x / 12.5
    rest = polynomial(_NEAR_J[order], square - 1)
    return x * rest if order else 1 + square * rest


def _near_y(order: int, x: Any) -> Any:
    rest = polynomial(_NEAR_Y[order], x * x / 12.5 - 1)
    steep = jnp.log(x) * _near_j(order, x)
    return (2 / math.pi) * (steep - 1 / x) + x * rest if order else (2 / math.pi) * steep + rest


def _far_pair(order: int, x: Any) -> tuple[Any, Any]:
    """The functions of the first and the second kind, for large x."""
    inverse = 1 / x
    t = 50 * (inverse * inverse) - 1
    even, odd = polynomial(_EVEN[order], t), polynomial(_ODD[order], t) * inverse
    sine, cosine = jnp.sin(x), jnp.cos(x)
    # Of the angle x - pi / 4, or x - 3 pi / 4, without rounding it.
    c, s = (cosine + sine, sine - cosine) if order == 0 else (sine - cosine, -sine - cosine)
    scale = jnp.sqrt(inverse / math.pi)
    return scale * (even * c - odd * s), scale * (even * s + odd * c)


def bessel_j(order: int) -> Callable[[Any], Any]:
    def value(x: Any) -> Any:
        size = jnp.abs(x)
        is_near = size < 5
        near = _near_j(order, jnp.where(is_near, size, 1))
        found = jnp.where(is_near, near, _far_pair(order, jnp.where(is_near, 5, size))[0])
        found = jnp.where(jnp.isinf(x), 0, found)
        return found if order == 0 else jnp.copysign(1, x).astype(x.dtype) * found

    return value


def bessel_y(order: int) -> Callable[[Any], Any]:
    def value(x: Any) -> Any:
        is_near = ~(x >= 5)
        near = _near_y(order, jnp.where(is_near, x, 1))
        found = jnp.where(is_near, near, _far_pair(order, jnp.where(is_near, 5, x))[1])
        found = jnp.where(x == 0, -jnp.inf, found)
        return jnp.where(jnp.isposinf(x), 0, found)

    return value


#: 1 / k! for the series of small x.
_FACTORS = np.array([1 / math.factorial(k) for k in range(17)])
#: 1 + 1 / 2 + ... + 1 / k.
_HARMONIC = np.cumsum([0.0, *(1 / np.arange(1, 17))])


def _near_k(order: int, x: Any) -> Any:
    """By the series for small x."""
    square, logarithm = x * x / 4, jnp.log(x) - math.log(2)
    factors = _FACTORS[:16] * _FACTORS[order : 16 + order]
    weights = (_HARMONIC[:16] + _HARMONIC[order : 16 + order]) / 2 - np.euler_gamma
    first, rest = (polynomial(c.tolist(), square) for c in (factors, factors * weights))
    return 1 / x + x / 2 * (logarithm * first - rest) if order else rest - logarithm * first


def bessel_k(order: int, is_scaled: bool) -> Callable[[Any], Any]:
    """The function, or e ** x times it."""

    def value(x: Any) -> Any:
        is_near = ~(x > 2)
        inner, outer = jnp.where(is_near, x, 1), jnp.where(is_near, 2, x)
        near = _near_k(order, inner)
        far = polynomial(_FAR_K[order], 4 / outer - 1) / jnp.sqrt(outer)
        if is_scaled:
            near = near * jnp.exp(inner)
        else:
            far = far * jnp.exp(-outer)
        found = jnp.where(x == 0, jnp.inf, jnp.where(is_near, near, far))
        return jnp.where(jnp.isposinf(x), 0, found)

    return value
