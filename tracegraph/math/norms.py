"""Norms of one tensor or several: clipping, normalizing; softmax."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from tracegraph.array.arguments import as_axes, as_list, rank_of, refuse
from tracegraph.array.joining import add_n
from tracegraph.array.shaping import reshape
from tracegraph.calls.top_level_calls import composition
from tracegraph.core.tensorshape import IndexedSlices
from tracegraph.errors import DTypeError, SignatureError, fail
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide, in_shape_of, maximum, minimum, multiply
from tracegraph.math.elementwise.unary import rsqrt, sqrt
from tracegraph.math.reduction import (
    beside_top,
    keeps_axes,
    largest_modulus,
    log_of_sum,
    over,
    reduce_max,
    reduce_sum,
    scale_near,
    squared_modulus,
    summable,
)
from tracegraph.operands.conversion import as_operands, as_tensor, cast_to, has_dtype
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import Sum, full_like, spread, zeros_of
from tracegraph.ops.elementwise import GREATER, MUL, SELECT, Cast, IsFinite, StopGradient
from tracegraph.ops.reduce import Max
from tracegraph.typing import Axis, TensorLike

#: A gradient whose norm counts.
Clipped: TypeAlias = TensorLike | IndexedSlices | None


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
    if x.dtype.is_floating and has_dtype(clip_norm):
        clip_norm = cast_to(as_tensor(clip_norm), x.dtype)
    own, bound = as_operands("clip_by_norm", x, clip_norm)
    if own.dtype.is_floating:
        scale = scale_near(_top_beside(own, axes, bound))
        own, limit = over(own, scale), divide(bound, scale)
    else:
        limit = bound
    total = reduce_sum(MUL(own, own), axes, keeps_axes(own, axes))
    # The root is not taken at 0, where its derivative is infinite.
    is_positive = GREATER(total, zeros_of(total))
    root = sqrt(SELECT(is_positive, total, full_like(total, 1)))
    norm = SELECT(is_positive, root, total)
    return in_shape_of("clip_by_norm", x, divide(multiply(own, bound), maximum(norm, limit)))


def _top_beside(x: Tensor, axis: Axis, bound: Tensor) -> Tensor:
    """The largest |x|, of numbers whose norm is compared with a bound: what is small beside an
    ordinary bound stays as it is, since its norm does not count."""
    least = minimum(StopGradient()(reduce_max(bound)), 1)
    return maximum(largest_modulus(x, axis), least)


def global_norm(t_list: Sequence[Clipped], name: str | None = None) -> Tensor:
    """sqrt(sum of |x| ** 2 over all elements of all tensors); skips None, and uses the values of
    `tg.IndexedSlices`.

    >>> tg.linalg.global_norm([[3.0], None, [[4.0]]]).numpy()
    np.float32(5.0)
    """
    tensors = [
        as_tensor(x.values if isinstance(x, IndexedSlices) else x)
        for x in as_list("global_norm", "t_list", t_list)
        if x is not None
    ]
    if not tensors:
        fail(SignatureError, "global_norm: there are no tensors", fix="give at least one")
    if not all(x.dtype.is_differentiable for x in tensors):
        return sqrt(add_n([reduce_sum(squared_modulus(x)) for x in tensors]))
    wide = [summable(x) for x in tensors]
    tops = [reshape(largest_modulus(x, None), ()) for x in wide]
    scale = scale_near(functools.reduce(maximum, tops))
    norm = MUL(sqrt(add_n([reduce_sum(squared_modulus(over(x, scale))) for x in wide])), scale)
    kinds = {x.dtype.real for x in tensors}
    return cast_to(norm, kinds.pop()) if len(kinds) == 1 else norm


@overload
def clip_by_global_norm(
    t_list: Sequence[TensorLike],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = ...,
    name: str | None = ...,
) -> tuple[list[Tensor], Tensor]: ...
@overload
def clip_by_global_norm(
    t_list: Sequence[TensorLike | None],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = ...,
    name: str | None = ...,
) -> tuple[list[Tensor | None], Tensor]: ...
@overload
def clip_by_global_norm(
    t_list: Sequence[Clipped],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = ...,
    name: str | None = ...,
) -> tuple[list[Tensor | IndexedSlices | None], Tensor]: ...
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
    least = minimum(as_operands("clip_by_global_norm", norm, clip_norm)[1], 1)
    # The square of a norm, which its derivative divides by, may be out of range too.
    near = divide(full_like(norm, 1), scale_near(StopGradient()(maximum(norm, least))))
    largest = maximum(multiply(norm, near), multiply(near, clip_norm))
    scale = multiply(divide(near, largest), clip_norm)
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
    bound: TensorLike
    if x.dtype.is_differentiable:
        least = as_tensor(epsilon, None if has_dtype(epsilon) else x.dtype.real)
        scale = scale_near(_top_beside(x, axis, sqrt(least)))
        x, bound = over(x, scale), divide(divide(least, scale), scale)
    else:
        bound = epsilon
    total = reduce_sum(squared_modulus(x), axis, keeps_axes(x, axis))
    factor = rsqrt(maximum(total, bound))
    return multiply(x, Cast(x.dtype)(factor) if x.dtype.is_complex else factor)


def softmax(logits: TensorLike, axis: Axis = None, name: str | None = None) -> Tensor:
    """e ** x / sum(e ** x) along `axis`, the last one by default, without overflow.

    >>> tg.nn.softmax([1.0, 1.0]).numpy()
    array([0.5, 0.5], dtype=float32)
    """
    x, axes = _classes("softmax", logits, axis)
    return _softmax(x, axes=axes)


@composition
def _softmax(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    powers = ops.EXP(_shifted(summable(x), axes))
    shares = ops.DIV(powers, spread(Sum(axes)(powers), powers.type, axes))
    return cast_to(shares, x.dtype)


def log_softmax(logits: TensorLike, axis: Axis = None, name: str | None = None) -> Tensor:
    """x - log(sum(e ** x)) along `axis`, the last one by default, without overflow.

    >>> tg.nn.log_softmax([1.0, 1.0]).numpy().round(4)
    array([-0.6931, -0.6931], dtype=float32)
    """
    x, axes = _classes("log_softmax", logits, axis)
    return _log_softmax(x, axes=axes)


@composition
def _log_softmax(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    _, below = beside_top(summable(x), axes)
    logs = ops.SUB(below, spread(log_of_sum(below, Sum(axes)), below.type, axes))
    return cast_to(logs, x.dtype)


def _classes(op: str, logits: Any, axis: Any) -> tuple[Tensor, tuple[int, ...]]:
    """The logits as a tensor, and the axes that hold the classes."""
    x = floating_logits(op, logits)
    rank = rank_of(op, x)
    if rank == 0:
        refuse(op, "a scalar has no classes", x, fix="give a tensor with an axis")
    return x, as_axes(op, -1 if axis is None else axis, rank, x)


def floating_logits(op: str, logits: Any, fix: str = "") -> Tensor:
    """The logits as a tensor. Raises DTypeError unless they are floating."""
    x = as_tensor(logits)
    if not x.dtype.is_floating:
        fact = f"{op}: the logits are {x.type}, and they must be floating"
        fix = fix or "convert them: tg.cast(logits, tg.float32)"
        fail(DTypeError, fact, operands=[operand_text(x)], fix=fix)
    return x


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
