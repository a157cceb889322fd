"""Random numbers from a generator: new ones at each call."""

from __future__ import annotations

from tracegraph.array.arguments import as_shape
from tracegraph.core.types import float32, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.random.draws import (
    draw_categorical,
    draw_gamma,
    draw_normal,
    draw_poisson,
    draw_truncated_normal,
    draw_uniform,
    gamma_parameters,
    shuffled,
)
from tracegraph.random.generators import generator_of
from tracegraph.typing import DTypeLike, ShapeLike, TensorLike


def normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers: mean + stddev * n, with n of mean 0 and standard deviation 1.

    - `mean`, `stddev`: numbers or tensors that broadcast to `shape`.
    - `seed`: draws from a separate sequence, which this number determines.

    >>> tg.random.normal([2, 3]).shape
    TensorShape([2, 3])
    """
    return draw_normal(generator_of(seed).next_key(), shape, mean, stddev, dtype)


def truncated_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers, truncated at two standard deviations from the mean.

    >>> bool(tg.reduce_all(tg.abs(tg.random.truncated_normal([100])) <= 2.0))
    True
    """
    return draw_truncated_normal(generator_of(seed).next_key(), shape, mean, stddev, dtype)


def uniform(
    shape: ShapeLike,
    minval: TensorLike | None = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Uniformly distributed numbers in [minval, maxval); integers need a maxval, or are drawn from
    the whole range of their type with a minval of None.

    Raises ValueError for integers with a minval and no maxval.

    >>> dice = tg.random.uniform([100], 1, 7, tg.int32)
    >>> sorted(set(dice.numpy().tolist()))
    [1, 2, 3, 4, 5, 6]
    """
    return draw_uniform(generator_of(seed).next_key, shape, minval, maxval, dtype)


def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Permutes `value` randomly along its first axis.

    >>> sorted(tg.random.shuffle([1, 2, 3]).numpy().tolist())
    [1, 2, 3]
    """
    return shuffled(generator_of(seed).next_key(), value)


def categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Samples `num_samples` classes for each row of logits[batch, classes], with probability
    softmax(row), as int64 by default.

    >>> tg.random.categorical([[0.0, -1e9]], 3).numpy()
    array([[0, 0, 0]])
    """
    key = generator_of(seed).next_key()
    return draw_categorical(key, logits, num_samples, dtype or int64)


def gamma(
    shape: ShapeLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Gamma-distributed numbers: density x ** (alpha - 1) * e ** (-beta * x), `shape` per
    parameter.

    - `alpha`, `beta`: the shape, 0 or more, and the inverse scale, above 0 and by default 1, which
      broadcast. The result has the axes of `shape`, followed by theirs. For an alpha of 0 all
      numbers are the smallest positive one.

    The numbers are differentiable with respect to alpha, to first order, and to beta.

    >>> tg.random.gamma([2], [0.5, 1.5]).shape
    TensorShape([2, 2])
    """
    a, b = gamma_parameters("gamma", alpha, beta, dtype)
    sizes = as_shape("gamma", shape)
    return draw_gamma(generator_of(seed).next_key(), (*sizes, *a.type.shape), a, b)  # type: ignore[misc]


def poisson(
    shape: ShapeLike,
    lam: TensorLike,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Poisson-distributed integers: probability lam ** k * e ** -lam / k!, `shape` for each lam.

    The result has the axes of `shape`, followed by those of `lam`. The numbers have no derivative.
    Raises InvalidArgumentError for a lam known to be negative, DTypeError for an invalid dtype.

    >>> tg.random.poisson([2], [0.5, 1.5]).shape
    TensorShape([2, 2])
    """
    return draw_poisson(generator_of(seed).next_key(), "poisson", shape, lam, dtype, False)


__all__ = [
    "categorical",
    "gamma",
    "normal",
    "poisson",
    "shuffle",
    "truncated_normal",
    "uniform",
]
