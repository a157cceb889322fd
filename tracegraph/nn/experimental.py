"""`tg.nn.experimental`: dropout as a function of a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegraph.ir.tensor import Tensor
from tracegraph.nn.normalisation import dropped
from tracegraph.random.stateless import stateless_uniform
from tracegraph.typing import ShapeLike, TensorLike


def stateless_dropout(
    x: TensorLike,
    rate: TensorLike,
    seed: TensorLike,
    rng_alg: str | int | None = None,
    noise_shape: ShapeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """`tg.nn.dropout` as a function of a seed of two integers.

    >>> x = tg.ones([8])
    >>> a, b = (tg.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2]) for _ in range(2))
    >>> bool(tg.reduce_all(a == b))
    True
    """

    def draw(shape: Any, dtype: Any) -> Tensor:
        return stateless_uniform(shape, seed, dtype=dtype)

    return dropped("stateless_dropout", x, rate, noise_shape, draw)


def general_dropout(
    x: TensorLike,
    rate: TensorLike,
    uniform_sampler: Callable[..., Tensor],
    noise_shape: ShapeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """`tg.nn.dropout` with uniform numbers from `uniform_sampler(shape=, dtype=)`.

    >>> def half(shape, dtype):
    ...     return tg.fill(shape, tg.cast(0.5, dtype))
    >>> tg.nn.experimental.general_dropout([1.0, 2.0], 0.5, half).numpy()
    array([2., 4.], dtype=float32)
    """

    def draw(shape: Any, dtype: Any) -> Tensor:
        return uniform_sampler(shape=shape, dtype=dtype)

    return dropped("general_dropout", x, rate, noise_shape, draw)


__all__ = ["general_dropout", "stateless_dropout"]
