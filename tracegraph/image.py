"""Images, which have the shape [..., height, width, channels]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegraph.array.arguments import rank_of, refuse
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_operands
from tracegraph.ops.image import AdjustContrast

if TYPE_CHECKING:
    from tracegraph.typing import TensorLike


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """(x - mean) * contrast_factor + mean, with the mean of each channel of each image.

    This op has no derivative: `GradientTape.gradient` raises a LookupError that names its line.
    Register one with `tg.RegisterGradient("adjust_contrast")`.

    >>> tg.image.adjust_contrast([[[1.0], [3.0]]], 2.0).numpy().tolist()
    [[[0.0], [4.0]]]
    """
    x, factor = as_operands("adjust_contrast", images, contrast_factor)
    if rank_of("adjust_contrast", x) < 3:
        refuse("adjust_contrast", f"{x.type} is no image", x, fix="give [height, width, channels]")
    return AdjustContrast()(x, factor)


__all__ = ["adjust_contrast"]
