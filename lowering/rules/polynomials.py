"""Polynomials, by which special functions are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """The sum of coefficients[k] * x ** k, by Horner's scheme. It has the shape and dtype of x."""
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
