"""Dilation and erosion of images: convolutions of maxima and of minima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_choice, rank_of, refuse, sizes_of
from tracegraph.array.shaping import cut, reshape, reverse
from tracegraph.core.shapes import same_size
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add
from tracegraph.math.elementwise.unary import negative
from tracegraph.nn.windows import padded, slices, windows_over
from tracegraph.operands.conversion import as_operands
from tracegraph.ops.elementwise import Maximum
from tracegraph.typing import TensorLike, Window


def dilation2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str,
    dilations: Window,
    name: str | None = None,
) -> Tensor:
    """z[n, i, j, c] = max over a, b of input[n, i * s + a * d, j * s + b * d, c] + filters[a, b, c]

    - `input`: [examples, height, width, channels]; `filters`: [height, width, channels].
    - `strides` s, `padding` and `dilations` d as in `conv2d`; `data_format` is "NHWC".

    Raises ShapeError if the channels differ.

    >>> x = tg.reshape(tg.range(4.0), [1, 2, 2, 1])
    >>> tg.nn.dilation2d(x, tg.zeros([2, 2, 1]), 1, "SAME", "NHWC", 1)[0, :, :, 0].numpy()
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    x, y = as_operands("dilation2d", input, filters)
    return _dilated("dilation2d", x, y, strides, padding, data_format, dilations)


def erosion2d(
    value: TensorLike,
    filters: TensorLike,
    strides: Window,
    padding: str | Sequence[Any],
    data_format: str,
    dilations: Window,
    name: str | None = None,
) -> Tensor:
    """z[n, i, j, c] = min over a, b of value[n, i * s + a * d, ..., c] - filters[-1 - a, -1 - b, c]

    The arguments are those of `dilation2d`.

    >>> x = tg.reshape(tg.range(4.0), [1, 2, 2, 1])
    >>> tg.nn.erosion2d(x, tg.zeros([2, 2, 1]), 1, "VALID", "NHWC", 1).numpy().item()
    0.0
    """
    x, y = as_operands("erosion2d", value, filters)
    if rank_of("erosion2d", y) == 3:
        y = reverse(y, [0, 1])
    return negative(_dilated("erosion2d", negative(x), y, strides, padding, data_format, dilations))


def _dilated(
    op: str, x: Tensor, y: Tensor, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Tensor:
    as_choice(op, "data_format", data_format, ("NHWC",))
    if rank_of(op, x) != 4 or rank_of(op, y) != 3:
        fix = "give [examples, height, width, channels] and [height, width, channels]"
        refuse(op, f"the filters {y.type} for {x.type}", x, y, fix=fix)
    if not x.dtype.is_floating:
        refuse(op, f"the operand is {x.type}", x, fix="convert it: tg.cast(x, tg.float32)")
    height, width, channels = sizes_of(op, y)
    if same_size(channels, x.type.shape[-1]) is None:
        fact = f"the filters {y.type} do not have the channels of {x.type}"
        refuse(op, fact, x, y, fix="give one filter for each channel")
    x, windows = windows_over(op, x, (height, width), strides, padding, data_format, dilations)
    taps = reshape(y, [height * width, channels])
    larger = Maximum(keeps_nan=True)
    total = None
    for k, part in enumerate(slices(padded(x, windows, -np.inf), windows)):
        raised = add(part, reshape(cut(taps, 0, k, k + 1), [channels]))
        total = raised if total is None else larger(total, raised)
    assert total is not None
    return total


__all__ = ["dilation2d", "erosion2d"]
