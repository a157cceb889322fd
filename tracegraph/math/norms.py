"""Norms of one tensor or several: clipping, normalizing; softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from tracegraph.array.arguments import as_axes, as_list, rank_of, refuse
from tracegraph.array.joining import add_n
from tracegraph.core.tensorshape import IndexedSlices
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide, in_shape_of, maximum, minimum, multiply
from tracegraph.math.elementwise.unary import rsqrt, sqrt
from tracegraph.math.reduction import keeps_axes, reduce_sum
from tracegraph.operands.conversion import as_tensor, cast_to, has_dtype
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import Sum, full_like, spread, zeros_of
from tracegraph.ops.elementwise import CONJ, GREATER, MUL, REAL, SELECT, Cast, IsFinite
from tracegraph.ops.reduce import Max
from tracegraph.typing import Axis, TensorLike


@overload
def clip_by_norm(
    t: IndexedSlices, clip_norm: TensorLike, axes: Axis = None, name: str | None = None
) -> IndexedSlices: ...
@overload
def clip_by_norm(
    t: TensorLike, clip_norm: TensorLike, axes: Axis = None, name: str | None = None
) -> Tensor: ...
def clip_by_norm(t: Any, clip_norm: TensorLike, axes: Axis = None, name: str | None = None) -> Any:
    """t * clip_norm / max(norm(t), clip_norm), with the norm along `axes`, or of all elements.

    The result has the dtype of t. For `tg.IndexedSlices`, the values are clipped, each separately
    even if a row is named twice.

    >>> tg.clip_by_norm([3.0, 4.0], 1.0).numpy()
    array([0.6, 0.8], dtype=float32)
    """
    if isinstance(t, IndexedSlices):
        return t._replace(values=clip_by_norm(as_tensor(t.values), clip_norm, axes))
    x = as_tensor(t)
    total = reduce_sum(MUL(x, x), axes, keeps_axes(x, axes))
    # Do not take the root at 0, where its derivative is infinite.
    is_positive = GREATER(total, zeros_of(total))
    root = sqrt(SELECT(is_positive, total, full_like(total, 1)))
    norm = SELECT(is_positive, root, total)
    if x.dtype.is_floating and has_dtype(clip_norm):
        clip_norm = cast_to(as_tensor(clip_norm), x.dtype)
    clipped = divide(multiply(x, clip_norm), maximum(norm, clip_norm))
    return in_shape_of("clip_by_norm", x, clipped)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """sqrt(sum of |x| ** 2 over all elements of all tensors); skips None, and uses the values of
    `tg.IndexedSlices`.

    >>> tg.linalg.global_norm([[3.0], None, [[4.0]]]).numpy()
    np.float32(5.0)
    """
    totals = [
        _squared_norm(as_tensor(x.values if isinstance(x, IndexedSlices) else x))
        for x in as_list("global_norm", "t_list", t_list)
        if x is not None
    ]
    if not totals:
        fail(SignatureError, "global_norm: there are no tensors", fix="give at least one")
    return sqrt(add_n(totals))


def _squared_norm(x: Tensor) -> Tensor:
    return reduce_sum(REAL(MUL(x, CONJ(x))) if x.dtype.is_complex else MUL(x, x))


def clip_by_global_norm(
    t_list: Sequence[Any],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = None,
    name: str | None = None,
) -> tuple[list[Any], Tensor]:
    """Scales tensors by clip_norm / max(norm, clip_norm), and returns the norm, their global one,
    too.

    - `use_norm`: a precomputed norm.

    None stays None; for `tg.IndexedSlices`, the values are clipped. If the norm is not finite, all
    results are nan.

    >>> clipped, norm = tg.clip_by_global_norm([[3.0], [4.0]], 1.0)
    >>> [x.numpy().tolist() for x in clipped], norm.numpy()
    ([[0.6000000238418579], [0.800000011920929]], np.float32(5.0))
    """
    t_list = as_list("clip_by_global_norm", "t_list", t_list)
    norm = global_norm(t_list) if use_norm is None else as_tensor(use_norm)
    one = full_like(norm, 1)
    scale = multiply(minimum(divide(one, norm), divide(one, clip_norm)), clip_norm)
    scale = SELECT(IsFinite()(norm), scale, full_like(norm, np.nan))
    return [None if x is None else _scaled(x, scale) for x in t_list], norm


def _scaled(x: Any, scale: Tensor) -> Any:
    if isinstance(x, IndexedSlices):
        return x._replace(values=_scaled(x.values, scale))
    x = as_tensor(x)
    return multiply(x, scale if x.dtype is scale.dtype else Cast(x.dtype)(scale))


def l2_normalize(
    x: TensorLike,
    axis: Axis = None,
    epsilon: float = 1e-12,
    name: str | None = None,
    dim: Axis = None,
) -> Tensor:
    """x / sqrt(max(sum(|x| ** 2), epsilon)) along `axis`, or over all elements.

    `dim` is an old name for `axis`.

    >>> tg.math.l2_normalize([3.0, 4.0]).numpy()
    array([0.6, 0.8], dtype=float32)
    """
    x, axis = as_tensor(x), dim if axis is None else axis
    squares = REAL(MUL(x, CONJ(x))) if x.dtype.is_complex else MUL(x, x)
    total = reduce_sum(squares, axis, keeps_axes(x, axis))
    scale = rsqrt(maximum(total, epsilon))
    return multiply(x, Cast(x.dtype)(scale) if x.dtype.is_complex else scale)


def softmax(logits: TensorLike, axis: Axis = None, name: str | None = None) -> Tensor:
    """e ** x / sum(e ** x) along `axis`, the last one by default, without overflow.

    >>> tg.nn.softmax([1.0, 1.0]).numpy()
    array([0.5, 0.5], dtype=float32)
    """
    x, axes = _classes("softmax", logits, axis)
    powers = ops.EXP(_shifted(x, axes))
    return ops.DIV(powers, spread(Sum(axes)(powers), x.type, axes))


def log_softmax(logits: TensorLike, axis: Axis = None, name: str | None = None) -> Tensor:
    """x - log(sum(e ** x)) along `axis`, the last one by default, without overflow.

    >>> tg.nn.log_softmax([1.0, 1.0]).numpy().round(4)
    array([-0.6931, -0.6931], dtype=float32)
    """
    x, axes = _classes("log_softmax", logits, axis)
    shifted = _shifted(x, axes)
    total = Sum(axes)(ops.EXP(shifted))
    return ops.SUB(shifted, spread(ops.LOG(total), x.type, axes))


def _classes(op: str, logits: Any, axis: Any) -> tuple[Tensor, tuple[int, ...]]:
    """The logits as a tensor, and the axes that hold the classes."""
    x = as_tensor(logits)
    rank = rank_of(op, x)
    if rank == 0:
        refuse(op, "a scalar has no classes", x, fix="give a tensor with an axis")
    return x, as_axes(op, -1 if axis is None else axis, rank, x)


def _shifted(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """x minus its largest element. The results do not depend on what is subtracted, so no
    derivative, of any order, passes through it."""
    return ops.SUB(x, spread(_STOP_GRADIENT(Max(axes)(x)), x.type, axes))


_STOP_GRADIENT = ops.StopGradient()

__all__ = [
    "clip_by_global_norm",
    "clip_by_norm",
    "global_norm",
    "l2_normalize",
    "log_softmax",
    "softmax",
]
