"""Images, which have the shape [..., height, width, channels]."""

from __future__ import annotations

import numpy as np

from tracegraph.core.shapes import Size, same_shape
from tracegraph.core.sparsity_patterns import Pattern, union
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch
from tracegraph.ir.op import Batched, Op, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import stack
from tracegraph.ops.elementwise import FLOATING, check_kind


class AdjustContrast(Op):
    """(image - mean) * factor + mean, with the mean of each channel of each image.

    The factor is a scalar, or has the first axes of the image. This op is registered without a
    derivative: register one with `tg.RegisterGradient("adjust_contrast")`.
    """

    def infer(self, image: TensorType, factor: TensorType) -> TensorType:
        check_same_dtype(self.name, image, factor)
        check_kind(self.name, image, FLOATING)
        count = len(factor.shape)
        if len(image.shape) < 3 + count:
            raise Mismatch(
                f"an image has height, width and channels as its last axes, and this is {image}",
                fix="give it three axes, or reshape it",
            )
        if same_shape(image.shape[:count], factor.shape) is None:
            raise Mismatch(f"the factor {factor} fits no image in {image}", fix="give a scalar")
        return image

    def batch(self, n: Size, batched: tuple[bool, ...], image: Tensor, factor: Tensor) -> Batched:
        image = image if batched[0] else stack(image, n)
        if not batched[1] and factor.ndim:
            factor = stack(factor, n)
        return self(image, factor), True

    def depends(self, image: Pattern, factor: Pattern) -> Pattern:
        mean = image.any(axis=(-3, -2), keepdims=True)
        spread = factor.reshape(*factor.shape, *(1,) * (image.ndim - factor.ndim))
        return union(image, mean, spread)

    def numpy(self, image: np.ndarray, factor: np.ndarray) -> np.ndarray:
        mean = image.mean(axis=(-3, -2), keepdims=True, dtype=image.dtype)
        spread = factor.reshape(*factor.shape, *(1,) * (image.ndim - factor.ndim))
        return (image - mean) * spread + mean
