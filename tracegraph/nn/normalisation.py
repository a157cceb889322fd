"""Normalization, biases, dropout and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axes,
    as_choice,
    as_count,
    as_flag,
    as_integers,
    as_number,
    as_shape,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import is_tensor
from tracegraph.array.indexing.selection import gather
from tracegraph.array.joining import together
from tracegraph.array.shaping import cut, pad, reshape
from tracegraph.core.shapes import element_count, same_size
from tracegraph.core.types import TensorType, float32
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    divide_no_nan,
    maximum,
    multiply,
    pow,
    subtract,
)
from tracegraph.math.elementwise.unary import rsqrt
from tracegraph.math.norms import clip_by_norm
from tracegraph.math.reduction import reduce_mean, reduce_sum, summable
from tracegraph.operands.conversion import (
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
    elementwise_operands,
    has_dtype,
)
from tracegraph.ops.broadcast import zeros_of
from tracegraph.ops.elementwise import ADD, LESS, MUL, SELECT
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Reshape
from tracegraph.random.distributions import uniform
from tracegraph.random.draws import drawn_dtype
from tracegraph.tracing.index_checks import check_range
from tracegraph.typing import Axis, ShapeLike, TensorLike


def bias_add(
    value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """value[..., k] + bias[k]; with `data_format` "NC..." the channels are axis 1.

    >>> tg.nn.bias_add([[1.0, 2.0]], [10.0, 20.0]).numpy()
    array([[11., 22.]], dtype=float32)
    """
    x = as_tensor(value)
    b = as_tensor(bias, None if has_dtype(bias) and is_tensor(bias) else x.dtype)
    rank = rank_of("bias_add", x)
    if data_format is not None:
        as_choice("bias_add", "data_format", data_format, _FORMATS)
    axis = 1 if data_format is not None and data_format.startswith("NC") else rank - 1
    if b.ndim != 1 or rank < 2 or same_size(x.type.shape[axis], b.type.shape[0]) is None:
        refuse("bias_add", f"a bias {b.type} for {x.type}", x, b, fix="give one for each channel")
    return add(x, reshape(b, [b.type.shape[0], *(1,) * (rank - 1 - axis)]))


_FORMATS = ("NHWC", "NCHW", "NC", "NWC", "NCW", "NDHWC", "NCDHW", "N...C", "NC...")


def moments(
    x: TensorLike,
    axes: Axis,
    shift: TensorLike | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance, which is the mean of (x - mean) ** 2, along the axes.

    >>> mean, variance = tg.nn.moments([1.0, 2.0, 3.0, 4.0], axes=[0])
    >>> mean.numpy(), variance.numpy()
    (np.float32(2.5), np.float32(1.25))
    """
    x = as_tensor(x)
    keepdims = as_flag("moments", "keepdims", keepdims)
    if x.dtype.is_floating and summable(x) is not x:  # use the unrounded mean
        mean, variance = moments(summable(x), axes, keepdims=keepdims)
        return cast_to(mean, x.dtype), cast_to(variance, x.dtype)
    mean = reduce_mean(x, axes, keepdims=True)
    deviation = subtract(x, mean)
    variance = reduce_mean(MUL(deviation, deviation), axes, keepdims)
    return (mean if keepdims else reshape(mean, variance.type.shape)), variance


def weighted_moments(
    x: TensorLike,
    axes: Axis,
    frequency_weights: TensorLike,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted mean and variance along the axes.

    `frequency_weights` broadcasts to x. If all weights are 0, so are the mean and the variance.

    >>> mean, variance = tg.nn.weighted_moments([1.0, 5.0], [0], [3.0, 1.0])
    >>> mean.numpy(), variance.numpy()
    (np.float32(2.0), np.float32(3.0))
    """
    op = "weighted_moments"
    x, weights = elementwise_operands(op, x, frequency_weights)
    keepdims = as_flag(op, "keepdims", keepdims)
    if x.dtype.is_floating and summable(x) is not x:
        found = weighted_moments(summable(x), axes, summable(weights), keepdims)
        return cast_to(found[0], x.dtype), cast_to(found[1], x.dtype)
    total = reduce_sum(weights, axes, keepdims=True)
    mean = divide_no_nan(reduce_sum(MUL(weights, x), axes, keepdims=True), total)
    deviation = subtract(x, mean)
    squares = reduce_sum(MUL(weights, MUL(deviation, deviation)), axes, keepdims=True)
    variance = divide_no_nan(squares, total)
    if keepdims:
        return mean, variance
    shape = reduce_sum(x, axes).type.shape
    return reshape(mean, shape), reshape(variance, shape)


def sufficient_statistics(
    x: TensorLike,
    axes: Axis,
    shift: TensorLike | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Along the axes: the number of elements, the sums of x - shift and of its square, and the
    shift. `normalize_moments` computes mean and variance from them.

    >>> [y.numpy().item() for y in tg.nn.sufficient_statistics([1.0, 3.0], [0], 1.0)]
    [2.0, 2.0, 4.0, 1.0]
    """
    op = "sufficient_statistics"
    x = as_tensor(x)
    sizes = sizes_of(op, x)
    count = element_count(tuple(sizes[k] for k in as_axes(op, axes, len(sizes), x)))
    if shift is not None:
        shift = as_tensor(shift, x.dtype)
        x = subtract(x, shift)
    keepdims = as_flag(op, "keepdims", keepdims)
    total, squares = (reduce_sum(y, axes, keepdims) for y in (x, MUL(x, x)))
    return cast_to(as_tensor(count), x.dtype), total, squares, shift


def normalize_moments(
    counts: TensorLike,
    mean_ss: TensorLike,
    variance_ss: TensorLike,
    shift: TensorLike | None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance from the result of `sufficient_statistics`.

    >>> mean, variance = tg.nn.normalize_moments(*tg.nn.sufficient_statistics([1.0, 3.0], [0]))
    >>> mean.numpy(), variance.numpy()
    (np.float32(2.0), np.float32(1.0))
    """
    shifted = divide(mean_ss, counts)
    variance = subtract(divide(variance_ss, counts), MUL(shifted, shifted))
    return (shifted if shift is None else add(shifted, shift)), variance


def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """x / (bias + alpha * sum of squares) ** beta, with the sum over channels at most
    `depth_radius` away.

    - `input`: [examples, height, width, channels].

    >>> tg.nn.local_response_normalization([[[[3.0, 4.0, 0.0]]]], 1, bias=0.0).numpy().round(3)
    array([[[[0.6, 0.8, 0. ]]]], dtype=float32)
    """
    op = "local_response_normalization"
    x = as_tensor(input)
    if rank_of(op, x) != 4 or not x.dtype.is_floating:
        fact = f"the operand is {x.type}, not floating images"
        refuse(op, fact, x, fix="give floats [examples, height, width, channels]")
    radius = as_count(op, "depth_radius", depth_radius)
    for what, number in (("bias", bias), ("alpha", alpha), ("beta", beta)):
        as_number(op, what, number)
    if summable(x) is not x:
        wide = local_response_normalization(summable(x), radius, bias, alpha, beta)
        return cast_to(wide, x.dtype)
    channels = x.type.shape[-1]
    if known_int(channels):
        radius = min(radius, channels)  # type: ignore[type-var]
    squares = pad(MUL(x, x), [[0, 0], [0, 0], [0, 0], [radius, radius]])
    total = None
    for start in range(2 * radius + 1):  # type: ignore[arg-type]
        part = cut(squares, 3, start, start + channels)
        total = part if total is None else ADD(total, part)
    assert total is not None
    return divide(x, pow(add(multiply(total, alpha), bias), beta))


lrn = local_response_normalization


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: TensorLike,
    name: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset; offset and scale may be None.

    >>> tg.nn.batch_normalization([3.0], 1.0, 4.0, None, None, 0.0).numpy()
    array([1.], dtype=float32)
    """
    x = as_tensor(x)
    parts = mean, variance, offset, scale, variance_epsilon
    given = [as_tensor(p).dtype for p in parts if has_dtype(p)]
    if x.dtype.is_floating and summable(x) is not x and given.count(x.dtype) == len(given):
        wide: Any = [p if p is None else cast_to(as_tensor(p), float32) for p in parts]
        return cast_to(batch_normalization(summable(x), *wide), x.dtype)
    spread = as_tensor(variance)
    # A number takes the dtype of the variance, so that it does not make the result complex.
    own = None if has_dtype(variance_epsilon) else spread.dtype
    factor = rsqrt(add(spread, as_tensor(variance_epsilon, own)))
    if scale is not None:
        factor = multiply(factor, scale)
    shift = multiply(mean, factor)
    return add(
        multiply(x, factor),
        multiply(shift, -1) if offset is None else subtract(offset, shift),
    )


def batch_norm_with_global_normalization(
    input: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    beta: TensorLike,
    gamma: TensorLike,
    variance_epsilon: TensorLike,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """`batch_normalization` with the offset beta and, optionally, the scale gamma.

    >>> found = tg.nn.batch_norm_with_global_normalization([3.0], 1.0, 4.0, 0.0, 5.0, 0.0, True)
    >>> found.numpy()
    array([5.], dtype=float32)
    """
    op = "batch_norm_with_global_normalization"
    is_scaled = as_flag(op, "scale_after_normalization", scale_after_normalization)
    scale = gamma if is_scaled else None
    return batch_normalization(input, mean, variance, beta, scale, variance_epsilon)


def fused_batch_norm(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike | None = None,
    variance: TensorLike | None = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, ...]:
    """Normalizes images per channel, and returns a mean and a variance for later use.

    - `x`: [examples, height, width, channels], or of five axes; `scale`, `offset`, `mean`,
      `variance`: [channels].
    - `is_training`: whether to use the mean and variance of x. Then they are returned, the variance
      as an unbiased estimate: times n / (n - 1) for n elements. A factor f =
      `exponential_avg_factor` below 1 returns (1 - f) * given + f * own. Otherwise the given ones
      are used and returned.
    - `data_format`: "NCHW" or "NCDHW" if the channels are axis 1.

    float16 and bfloat16 are computed in float32. Raises ShapeError for other ranks, and if mean and
    variance are needed but not given.

    >>> x = tg.reshape([1.0, 3.0], [2, 1, 1, 1])
    >>> y, mean, variance = tg.nn.fused_batch_norm(x, [1.0], [0.0], epsilon=0.0)
    >>> y.numpy().ravel(), mean.numpy(), variance.numpy()
    (array([-1.,  1.], dtype=float32), array([2.], dtype=float32), array([2.], dtype=float32))
    """
    op = "fused_batch_norm"
    own = as_tensor(x)
    rank = rank_of(op, own)
    if rank not in (4, 5) or not own.dtype.is_floating:
        fix = "give floating [examples, height, width, channels]"
        refuse(op, f"the operand is {own.type}", own, fix=fix)
    formats = ("NHWC", "NCHW") if rank == 4 else ("NDHWC", "NCDHW")
    is_first = as_choice(op, "data_format", data_format, formats).startswith("NC")
    factor = float(as_number(op, "exponential_avg_factor", exponential_avg_factor))
    is_own = as_flag(op, "is_training", is_training)
    if (mean is None or variance is None) and (factor != 1 or not is_own):
        refuse(op, "mean and variance are not given", own, fix="give mean= and variance=")
    wide = summable(own)
    if is_own:
        axes = [k for k in range(rank) if k != (1 if is_first else rank - 1)]
        used = moments(wide, axes)
        kept = _estimates(wide, used, (mean, variance), factor)
    else:
        used = kept = (
            cast_to(as_tensor(mean), wide.dtype),
            cast_to(as_tensor(variance), wide.dtype),
        )
    tail = [-1, *[1] * (rank - 2)] if is_first else [-1]
    centre, spread, shift, size = (
        reshape(cast_to(as_tensor(y), wide.dtype), tail) for y in (*used, offset, scale)
    )
    y = batch_normalization(wide, centre, spread, shift, size, as_number(op, "epsilon", epsilon))
    return cast_to(y, own.dtype), *kept


def _estimates(
    x: Tensor, own: tuple[Tensor, Tensor], given: tuple[Any, Any], factor: float
) -> tuple[Tensor, ...]:
    """The mean and an unbiased variance; the given ones have weight 1 - factor."""
    channels: Any = own[0].size
    count = element_count(x.type.shape) // channels if channels != 0 else 0  # type: ignore[operator]
    spread = cast_to(as_tensor(count), x.dtype)
    estimate = multiply(own[1], divide(spread, maximum(subtract(spread, 1.0), 1.0)))
    if factor == 1:
        return own[0], estimate
    pairs = zip(given, (own[0], estimate))
    return tuple(add(multiply(old, 1 - factor), multiply(new, factor)) for old, new in pairs)


def dropout(
    x: TensorLike,
    rate: TensorLike,
    noise_shape: ShapeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """x / (1 - rate), with each element set to 0 with probability `rate`.

    - `noise_shape`: the shape of the random mask, which broadcasts to that of x.

    Raises ValueError for a rate that is not in [0, 1), and ShapeError for one that is not a scalar.

    >>> kept = tg.nn.dropout(tg.ones([1000]), 0.5)
    >>> sorted(set(kept.numpy().tolist()))
    [0.0, 2.0]
    """

    def draw(shape: Any, dtype: Any) -> Tensor:
        return uniform(shape, dtype=dtype, seed=seed)

    return dropped("dropout", x, rate, noise_shape, draw)


def dropped(
    op: str,
    x: TensorLike,
    rate: TensorLike,
    noise_shape: ShapeLike | None,
    draw: Callable[[Any, Any], Tensor],
) -> Tensor:
    """`dropout` with uniform numbers from `draw(shape, dtype)`."""
    x = as_tensor(x)
    if is_tensor(rate) or isinstance(rate, (list, tuple, np.ndarray)):
        given = as_tensor(rate)
        if given.type.shape != ():
            refuse(op, f"rate is {given.type}", x, given, fix="give one number for all elements")
    if not is_tensor(rate) and as_number(op, "rate", rate, low=0, below=1) == 0:
        return x
    if not x.dtype.is_floating:
        refuse(op, f"the operand is {x.type}", x, fix="convert it: tg.cast(x, tg.float32)")
    sizes = sizes_of(op, x)
    noise = sizes if noise_shape is None else _noise_sizes(op, noise_shape, x)
    is_kept = draw(noise, drawn_dtype(x.dtype)) >= rate  # type: ignore[operator]
    if broadcast_shape(op, x, is_kept) != sizes:
        refuse(op, f"a noise_shape {shown(noise_shape)} for {x.type}", x, fix=_NOISE)
    scaled = multiply(x, 1 / (1 - rate))  # type: ignore[operator]
    return SELECT(broadcast(is_kept, sizes), scaled, zeros_of(scaled))


_NOISE = "give a shape that broadcasts to that of the operand, such as [2, 1]"


def _noise_sizes(op: str, noise_shape: Any, x: Tensor) -> Any:
    """The shape, with None replaced by the sizes of x."""
    if isinstance(noise_shape, (list, tuple)) and len(noise_shape) == x.ndim:
        pairs = zip(noise_shape, x.type.shape)
        noise_shape = [own if size is None else size for size, own in pairs]
    return as_shape(op, noise_shape)


def embedding_lookup(
    params: TensorLike, ids: TensorLike, max_norm: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """The rows of `params` at `ids`; with `max_norm`, each clipped to that norm.

    A list holds the shards of one table: the first has the first rows, and so on; if the rows do
    not divide evenly, the first shards have one row more. Ids are treated as indices in `gather`.
    Raises ShapeError for shards with other numbers of rows.

    >>> tg.nn.embedding_lookup(tg.constant([[1.0, 2.0], [3.0, 4.0]]), [1, 0]).numpy()
    array([[3., 4.],
           [1., 2.]], dtype=float32)
    >>> tg.nn.embedding_lookup([[[1.0], [2.0]], [[3.0]]], [2, 0]).numpy()
    array([[3.],
           [1.]], dtype=float32)
    """
    ids = as_tensor(ids)
    rows = _rows_of_shards(params, ids) if isinstance(params, list) else gather(params, ids)
    if max_norm is None:
        return rows
    return clip_by_norm(rows, max_norm, axes=list(range(ids.ndim, rows.ndim)))


def _rows_of_shards(params: list[Any], ids: Tensor) -> Tensor:
    """The rows at `ids` of a table given as a list of shards, without copying any shard."""
    shards = together("embedding_lookup", params)
    if len(shards) == 1:
        return gather(shards[0], ids)
    counts = _row_counts(shards)
    whole = TensorType(shards[0].dtype, (sum(counts), *shards[0].type.shape[1:]))
    ids = as_integers("embedding_lookup", "the ids", ids)
    check_range("embedding_lookup", host_tensor(whole, None), ids, (0,))
    first, *others = [(shard, count) for shard, count in zip(shards, counts) if count]
    rows, start = Gather(0, 0)(first[0], ids), first[1]
    for shard, count in others:
        begin = broadcast(as_tensor(start, ids.dtype), ids.type.shape)
        found = Gather(0, 0)(shard, subtract(ids, begin))
        is_here = Reshape((*ids.type.shape, *[1] * (found.ndim - ids.ndim)))(LESS(ids, begin))
        rows = SELECT(broadcast(is_here, found.type.shape), rows, found)
        start += count
    return rows


def _row_counts(shards: list[Tensor]) -> list[int]:
    """The number of rows in each shard."""
    shapes = [sizes_of("embedding_lookup", shard) for shard in shards]
    if len({shape[1:] for shape in shapes}) > 1 or not all(
        shape and known_int(shape[0]) for shape in shapes
    ):
        refuse(
            "embedding_lookup",
            "the shards of a table need a known number of rows, and rows of one shape",
            *shards,
            fix="give the sizes in the TensorSpec, and check the shapes",
        )
    counts: list[Any] = [shape[0] for shape in shapes]
    rows, left = divmod(sum(counts), len(counts))
    wanted = [rows + (k < left) for k in range(len(counts))]
    if counts != wanted:
        refuse(
            "embedding_lookup",
            f"the shards have {counts} rows, and {sum(counts)} rows are divided into {wanted}",
            *shards,
            fix="use tg.concat(params, 0) as the table if its rows are in this order",
        )
    return counts


__all__ = [
    "batch_norm_with_global_normalization",
    "batch_normalization",
    "bias_add",
    "dropout",
    "embedding_lookup",
    "fused_batch_norm",
    "local_response_normalization",
    "lrn",
    "moments",
    "normalize_moments",
    "sufficient_statistics",
    "weighted_moments",
]
