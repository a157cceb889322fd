"""Lowering of `tracegraph.ops.image`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lowering.rules import lowers
from tracegraph.ops import image as ops


@lowers(ops.AdjustContrast)
def _adjust_contrast(op: ops.AdjustContrast, image: Any, factor: Any) -> Any:
    mean = jnp.mean(image, axis=(-3, -2), keepdims=True)
    factor = factor.reshape(*factor.shape, *(1,) * (image.ndim - factor.ndim))
    return (image - mean) * factor + mean
