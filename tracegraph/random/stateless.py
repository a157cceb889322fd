"""Random numbers as a function of a seed of two integers: the same ones each time."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import as_count, as_integers, as_shape, refuse
from tracegraph.array.shaping import cut
from tracegraph.core.types import DType, float32, int32, int64, uint32
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.elementwise import EQUAL, SELECT, Cast, NotEqual, ShiftRight
from tracegraph.ops.random import RandomFold, RandomSplit
from tracegraph.ops.reduce import Any as AnyOf
from tracegraph.ops.shape import Reshape
from tracegraph.random.draws import (
    draw_binomial,
    draw_categorical,
    draw_gamma,
    draw_normal,
    draw_poisson,
    draw_truncated_normal,
    draw_uniform,
    gamma_parameters,
    shuffled,
)
from tracegraph.typing import DTypeLike, ShapeLike, TensorLike


def stateless_normal(
    shape: ShapeLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    name: str | None = None,
    alg: str | int | None = "auto_select",
) -> Tensor:
    """`normal` as a function of a seed of two integers, of 32 or 64 bits, all of which count. Only
    integers that the same 32 bits stand for, as -1 and 2**32 - 1, are the same seed.

    >>> a, b = (tg.random.stateless_normal([2], seed=[1, 2]) for _ in range(2))
    >>> bool(tg.reduce_all(a == b))
    True
    """
    return draw_normal(stateless_key(seed), shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: ShapeLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    name: str | None = None,
    alg: str | int | None = "auto_select",
) -> Tensor:
    """`truncated_normal` as a function of a seed of two integers.

    >>> tg.random.stateless_truncated_normal([2], seed=[1, 2]).shape
    TensorShape([2])
    """
    return draw_truncated_normal(stateless_key(seed), shape, mean, stddev, dtype)


def stateless_uniform(
    shape: ShapeLike,
    seed: TensorLike,
    minval: TensorLike | None = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = float32,
    name: str | None = None,
    alg: str | int | None = "auto_select",
) -> Tensor:
    """`uniform` as a function of a seed of two integers.

    >>> tg.random.stateless_uniform([2], seed=[1, 2]).shape
    TensorShape([2])
    """
    return draw_uniform(lambda: stateless_key(seed), shape, minval, maxval, dtype)


def stateless_gamma(
    shape: ShapeLike,
    seed: TensorLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = float32,
    name: str | None = None,
    alg: str | int | None = None,
) -> Tensor:
    """`gamma` as a function of a seed of two integers; `shape` is that of the result, to which
    alpha and beta broadcast.

    >>> tg.random.stateless_gamma([3, 2], seed=[1, 2], alpha=[0.5, 1.5]).shape
    TensorShape([3, 2])
    """
    a, b = gamma_parameters("stateless_gamma", alpha, beta, dtype)
    return draw_gamma(stateless_key(seed), as_shape("stateless_gamma", shape), a, b)


def stateless_poisson(
    shape: ShapeLike,
    seed: TensorLike,
    lam: TensorLike,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """`poisson` as a function of a seed of two integers; `shape` is that of the result, to which
    lam broadcasts.

    >>> tg.random.stateless_poisson([3, 2], seed=[1, 2], lam=[0.5, 1.5]).shape
    TensorShape([3, 2])
    """
    return draw_poisson(stateless_key(seed), "stateless_poisson", shape, lam, dtype, True)


def stateless_binomial(
    shape: ShapeLike,
    seed: TensorLike,
    counts: TensorLike,
    probs: TensorLike,
    output_dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """The number of successes in `counts` trials, each with probability `probs`, as a function of a
    seed of two integers.

    `shape` is that of the result, to which counts and probs broadcast. The numbers have no
    derivative. Raises InvalidArgumentError for counts known to be negative, and for probabilities
    that are not from 0 to 1.

    >>> tg.random.stateless_binomial([2, 3], seed=[1, 2], counts=[5.0, 5.0, 5.0], probs=1.0).numpy()
    array([[5, 5, 5],
           [5, 5, 5]], dtype=int32)
    """
    key = stateless_key(seed)
    return draw_binomial(key, "stateless_binomial", shape, counts, probs, output_dtype)


def stateless_shuffle(
    value: TensorLike, seed: TensorLike, alg: str | int | None = None, name: str | None = None
) -> Tensor:
    """`shuffle` as a function of a seed of two integers.

    >>> sorted(tg.random.stateless_shuffle([1, 2, 3], seed=[1, 2]).numpy().tolist())
    [1, 2, 3]
    """
    return shuffled(stateless_key(seed), value)


def stateless_categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    seed: TensorLike,
    dtype: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """`categorical` as a function of a seed of two integers.

    >>> tg.random.stateless_categorical([[0.0, 0.0]], 3, seed=[1, 2]).shape
    TensorShape([1, 3])
    """
    return draw_categorical(stateless_key(seed), logits, num_samples, dtype)


def split(seed: TensorLike, num: int = 2, alg: str | int | None = "auto_select") -> Tensor:
    """Splits a seed into `num` new ones for the `stateless_*` functions: a tensor [num, 2] of the
    dtype of the seed.

    >>> tg.random.split([1, 2]).shape
    TensorShape([2, 2])
    """
    keys = RandomSplit(as_count("split", "num", num))(stateless_key(seed))
    return _as_seeds(keys, as_tensor(seed).dtype)


def fold_in(seed: TensorLike, data: TensorLike, alg: str | int | None = "auto_select") -> Tensor:
    """A new seed derived from a seed and an integer, of the dtype of this integer.

    >>> tg.random.fold_in([1, 2], 3).shape
    TensorShape([2])
    """
    number = as_integers("fold_in", "the numbers", data)
    key = RandomFold()(stateless_key(seed), cast_to(number, uint32))
    return _as_seeds(_with_high_bits(key, number), number.dtype)


def _as_seeds(keys: Tensor, kind: DType) -> Tensor:
    """Keys as seeds of a dtype, or as they are if it has too few bits."""
    return cast_to(keys, kind) if kind.size >= keys.dtype.size else keys


def stateless_key(seed: Any) -> Tensor:
    key = as_tensor(seed)
    if not key.dtype.is_integer or key.type.shape != (2,):
        refuse("random", f"the seed is {key.type}", key, fix="give two integers: seed=[1, 2]")
    return key_of_numbers(key)


def key_of_numbers(numbers: Tensor) -> Tensor:
    """The key made of two integers: their bits, if each is an integer of 32 bits with or without a
    sign; otherwise what is above these bits is folded in."""
    return _with_high_bits(cast_to(numbers, uint32), numbers)


def _with_high_bits(key: Tensor, numbers: Tensor) -> Tensor:
    """A key with the upper bits of integers, a vector or one, folded in, unless these are integers
    of 32 bits."""
    if numbers.dtype.size <= uint32.size:
        return key
    high = Cast(uint32)(ShiftRight()(numbers, full_like(numbers, 32)))
    if numbers.dtype is int64:  # those of a negative integer of 32 bits are its sign
        low = Cast(int32)(numbers)
        sign = Cast(uint32)(ShiftRight()(low, full_like(low, 31)))
        high = SELECT(EQUAL(high, sign), full_like(high, 0), high)
    folded = key
    for k in range(*high.type.shape) if high.type.shape else (None,):
        one = high if k is None else Reshape(())(cut(high, 0, k, k + 1))
        folded = RandomFold()(folded, one)
    is_wide = AnyOf(None)(NotEqual()(high, full_like(high, 0)))
    return SELECT(broadcast(is_wide, key.type.shape), folded, key)


__all__ = [
    "fold_in",
    "split",
    "stateless_binomial",
    "stateless_categorical",
    "stateless_gamma",
    "stateless_normal",
    "stateless_poisson",
    "stateless_shuffle",
    "stateless_truncated_normal",
    "stateless_uniform",
]
