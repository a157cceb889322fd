"""Candidates: classes sampled from a large set, for losses that consider only some classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tracegraph.array.arguments import as_count, as_flag, as_integers, known_int, rank_of, refuse
from tracegraph.array.creation import range as range_of
from tracegraph.array.indexing.selection import gather
from tracegraph.array.shaping import cut, pad
from tracegraph.core.shapes import same_size
from tracegraph.core.types import TensorType, float32, float64, int64
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.math.elementwise.arithmetic import add, divide, maximum, minimum, multiply
from tracegraph.math.elementwise.unary import expm1, floor, log, log1p, negative
from tracegraph.math.reduction import cumsum, reduce_sum
from tracegraph.math.sorting import top_k
from tracegraph.operands.conversion import cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.random import RandomUniform
from tracegraph.random.generators import generator_of
from tracegraph.tracing.index_checks import check_range
from tracegraph.typing import TensorLike


class Candidates(NamedTuple):
    """The result of the samplers: classes, and the expected count of each."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Samples `num_sampled` classes in [0, range_max), all equally probable.

    - `true_classes`: int64 [examples, num_true], whose expected counts are returned too.
    - `unique`: whether the candidates are distinct; if so, classes are drawn until there are
      enough.

    Returns int64 [num_sampled], and the expected counts: float32 [examples, num_true] for the true
    classes, [num_sampled] for the sampled ones. Raises ValueError for more distinct candidates than
    there are classes.

    >>> drawn = tg.random.uniform_candidate_sampler([[1]], 1, 3, unique=True, range_max=3)
    >>> sorted(drawn.sampled_candidates.numpy().tolist())
    [0, 1, 2]
    """

    def chance(classes: Tensor) -> Tensor:
        return full(1 / range_max, TensorType(float64, classes.type.shape))

    def draw(u: Tensor) -> Tensor:
        return floor(multiply(u, range_max))

    op = "uniform_candidate_sampler"
    return _sampled(op, true_classes, num_true, num_sampled, unique, range_max, seed, chance, draw)


def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Samples `num_sampled` classes, where k has probability log((k + 2) / (k + 1)) / log(range_max
    + 1): that of words sorted by frequency.

    Arguments, results and errors are those of `uniform_candidate_sampler`.

    >>> drawn = tg.random.log_uniform_candidate_sampler([[0]], 1, 5, unique=False, range_max=9)
    >>> drawn.sampled_candidates.shape, drawn.true_expected_count.numpy().round(3)
    (TensorShape([5]), array([[1.505]], dtype=float32))
    """

    def chance(classes: Tensor) -> Tensor:
        k = cast_to(classes, float64)
        return divide(log1p(divide(1.0, add(k, 1.0))), math.log1p(range_max))

    def draw(u: Tensor) -> Tensor:
        return floor(expm1(multiply(u, math.log1p(range_max))))

    op = "log_uniform_candidate_sampler"
    return _sampled(op, true_classes, num_true, num_sampled, unique, range_max, seed, chance, draw)


def _sampled(
    op: str,
    true_classes: Any,
    num_true: Any,
    num_sampled: Any,
    unique: Any,
    range_max: Any,
    seed: Any,
    chance: Callable[[Tensor], Tensor],
    draw: Callable[[Tensor], Tensor],
) -> Candidates:
    """Candidates from classes with probability `chance(classes)`; `draw` maps a uniform number to a
    class."""
    true = as_integers(op, "the true_classes", true_classes)
    count, classes = (
        as_count(op, what, value)
        for what, value in (("num_sampled", num_sampled), ("range_max", range_max))
    )
    _check(op, true, as_count(op, "num_true", num_true), count, classes)
    is_unique = as_flag(op, "unique", unique)
    if is_unique and count > classes:
        fact = f"{op}: {count} different candidates of {classes} classes"
        fail(SignatureError, fact, fix="give a smaller num_sampled, or unique=False")
    generator = generator_of(seed)
    if is_unique:
        sampled, tries = _different(generator, chance(range_of(classes, dtype=int64)), count)
    else:
        drawn = draw(RandomUniform((count,), float64)(generator.next_key()))
        sampled, tries = cast_to(minimum(drawn, float(classes - 1)), int64), None

    def expected(chances: Tensor) -> Tensor:
        if tries is None:
            return cast_to(multiply(chances, float(count)), float32)
        # The probability that a class is missing after so many tries is (1 - p) ** tries.
        return cast_to(negative(expm1(multiply(tries, log1p(negative(chances))))), float32)

    return Candidates(sampled, expected(chance(true)), expected(chance(sampled)))


def _check(op: str, true: Tensor, num_true: Any, count: Any, classes: Any) -> None:
    if rank_of(op, true) != 2 or same_size(true.type.shape[1], num_true) is None:
        fact = f"the true_classes are {true.type} for a num_true of {num_true}"
        refuse(op, fact, true, fix="give [examples, num_true]")
    for what, number in (("num_sampled", count), ("range_max", classes)):
        if not known_int(number) or number < 1:
            refuse(op, f"{what} is {number}", fix="use an int of 1 or more")
    # The classes are indices into a vector with a number for each.
    check_range(op, host_tensor(TensorType(float32, (classes,)), None), true, (0,))


def _different(generator: Any, chances: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` distinct classes, and the number of tries it took to draw them one by one.

    The largest values of log p plus Gumbel noise are distributed like classes drawn until there are
    enough distinct ones. The probability of finding the next one is that of all the missing ones,
    so each number of tries is geometric.
    """
    u, v = (
        RandomUniform(shape, float64)(generator.next_key())
        for shape in (chances.type.shape, (count,))
    )
    scores = add(log(chances), negative(log(negative(log(maximum(u, _SMALLEST))))))
    sampled = top_k(scores, count).indices
    found = cumsum(gather(chances, sampled))
    found = cut(pad(found, [[1, 0]]), 0, 0, count)
    fails = minimum(found, 1 - 1e-15)
    tries = add(floor(divide(log(maximum(v, _SMALLEST)), log(fails))), 1.0)
    return cast_to(sampled, int64), reduce_sum(tries)


#: A lower bound for uniform numbers, which keeps their logarithms finite.
_SMALLEST = float(np.finfo(np.float64).tiny)

__all__ = ["log_uniform_candidate_sampler", "uniform_candidate_sampler"]
