"""Random numbers of each distribution, made from a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_count, as_shape, rank_of, refuse, sizes_of
from tracegraph.array.shaping import broadcast_to, reshape
from tracegraph.core.types import DType, TensorType, as_dtype, float32, float64, uint64
from tracegraph.errors import DTypeError, InvalidArgumentError, SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    divide,
    floormod,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.unary import erfinv, log, log1p, negative
from tracegraph.math.reduction import argmax
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, elementwise_operands
from tracegraph.ops import random as ops
from tracegraph.ops.broadcast import full
from tracegraph.ops.index import Gather
from tracegraph.tracing.index_checks import value_at_hand


def floating_dtype(op: str, dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        fail(
            DTypeError,
            f"{op}: random numbers of {kind.name} are not supported",
            fix="use a floating type, or uniform for integers",
        )
    return kind


def drawn_dtype(kind: DType) -> DType:
    """The dtype in which numbers of `kind` are drawn where more is made of them.

    There are 1,024 uniform numbers of float16, and 128 of bfloat16: too few for the tails of a
    distribution, and for a probability.
    """
    return float32 if kind.size == 2 else kind


def draw_normal(key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    kind = floating_dtype("normal", dtype)
    n = ops.RandomNormal(as_shape("normal", shape), drawn_dtype(kind))(key)
    return _moved(cast_to(n, kind), mean, stddev)


def _moved(n: Tensor, mean: Any, stddev: Any) -> Tensor:
    """mean + stddev * n"""
    if not (isinstance(stddev, (int, float)) and stddev == 1):
        n = multiply(n, as_tensor(stddev, n.dtype))
    is_plain = isinstance(mean, (int, float)) and mean == 0
    return n if is_plain else add(n, as_tensor(mean, n.dtype))


def gamma_parameters(op: str, alpha: Any, beta: Any, dtype: Any) -> tuple[Tensor, Tensor]:
    """alpha and beta as tensors of the same shape. Raises InvalidArgumentError if one is known to
    be negative, or beta to be 0."""
    kind = floating_dtype(op, dtype)
    a, b = as_tensor(alpha, kind), as_tensor(1.0 if beta is None else beta, kind)
    _check_at_hand(op, "alpha", a, lambda value: value >= 0, "numbers of 0 or more")
    _check_at_hand(op, "beta", b, lambda value: value > 0, "positive numbers")
    return elementwise_operands(op, a, b)


def draw_gamma(key: Tensor, sizes: Any, alpha: Tensor, beta: Tensor) -> Tensor:
    wide_alpha, wide_beta = (broadcast_to(x, sizes) for x in (alpha, beta))
    numbers = divide(ops.RandomGamma()(key, wide_alpha), wide_beta)
    # Those of a small alpha round to 0, which has no logarithm.
    return maximum(numbers, numbers.dtype.tiny)


def draw_poisson(key: Tensor, op: str, shape: Any, lam: Any, dtype: Any, is_whole: bool) -> Tensor:
    """Numbers for each of `lam`; `shape` is that of the result if `is_whole`, and otherwise
    precedes that of lam."""
    kind = _counting(op, dtype)
    rate = _counted(op, "lam", lam)
    _check_at_hand(op, "lam", rate, lambda value: value >= 0, "numbers of 0 or more")
    sizes = as_shape(op, shape)
    sizes = sizes if is_whole else (*sizes, *rate.type.shape)  # type: ignore[misc]
    return cast_to(ops.RandomPoisson()(key, broadcast_to(rate, sizes)), kind)


def draw_binomial(key: Tensor, op: str, shape: Any, counts: Any, probs: Any, dtype: Any) -> Tensor:
    kind = _counting(op, dtype)
    trials, chances = _counted(op, "counts", counts), _counted(op, "probs", probs)
    _check_at_hand(op, "counts", trials, lambda value: value >= 0, "numbers of 0 or more")
    _check_at_hand(
        op, "probs", chances, lambda value: (value >= 0) & (value <= 1), "numbers from 0 to 1"
    )
    sizes = as_shape(op, shape)
    trials, chances = (broadcast_to(cast_to(x, float64), sizes) for x in (trials, chances))
    return cast_to(ops.RandomBinomial()(key, trials, chances), kind)


def _counting(op: str, dtype: Any) -> DType:
    """The dtype for drawing integers: an integer or floating one."""
    kind = as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        fact = f"{op}: random integers of {kind.name} are not supported"
        fail(DTypeError, fact, fix="use a type of integers, or a floating one")
    return kind


def _counted(op: str, what: str, value: Any) -> Tensor:
    """A parameter as float32, or float64 if it has 64 bits."""
    x = as_tensor(value)
    if not (x.dtype.is_integer or x.dtype.is_floating):
        refuse(op, f"{what} is {x.type}", x, fix="give real numbers")
    return cast_to(x, float64 if x.dtype.size == 8 else float32)


def _check_at_hand(op: str, what: str, x: Tensor, is_right: Any, wanted: str) -> None:
    value = value_at_hand(x)
    if value is not None and not is_right(value).all():
        fact = f"{op}: {what} is {shown(value.tolist())}"
        fail(InvalidArgumentError, fact, fix=f"use {wanted}")


def draw_truncated_normal(key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    kind = floating_dtype("truncated_normal", dtype)
    u = ops.RandomUniform(as_shape("truncated_normal", shape), drawn_dtype(kind))(key)
    bound = math.erf(2 / math.sqrt(2))
    n = multiply(erfinv(subtract(multiply(u, 2 * bound), bound)), math.sqrt(2))
    return _moved(cast_to(maximum(minimum(n, 2.0), -2.0), kind), mean, stddev)


def draw_uniform(
    next_key: Callable[[], Tensor], shape: Any, minval: Any, maxval: Any, dtype: Any
) -> Tensor:
    kind, sizes = as_dtype(dtype), as_shape("uniform", shape)
    if kind.is_integer and minval is None and maxval is None:
        return draw_full_int(next_key(), sizes, kind)
    minval = 0 if minval is None else minval
    if kind.is_integer:
        if maxval is None:
            fail(
                SignatureError,
                f"uniform: integers of {kind.name} need a maxval",
                fix="give maxval, such as tg.random.uniform([3], maxval=10, dtype=tg.int32)",
            )
        return _integers(next_key(), sizes, minval, maxval, kind)
    u = ops.RandomUniform(sizes, floating_dtype("uniform", kind))(next_key())
    maxval = 1.0 if maxval is None else maxval
    if isinstance(minval, (int, float)) and isinstance(maxval, (int, float)):
        u = u if maxval - minval == 1 else multiply(u, float(maxval - minval))
        return u if minval == 0 else add(u, float(minval))
    low, high = as_tensor(minval, kind), as_tensor(maxval, kind)
    return add(multiply(u, subtract(high, low)), low)


def _integers(key: Tensor, sizes: Any, minval: Any, maxval: Any, kind: DType) -> Tensor:
    """64 random bits modulo the range: the bias is below 1 in 2 ** 31 for ranges of 32 bits."""
    low, high = as_tensor(minval, kind), as_tensor(maxval, kind)
    if 0 in sizes:  # no integer needs to be between the bounds
        return full(0, TensorType(kind, sizes))
    _check_bounds(low, high)
    width = subtract(cast_to(high, uint64), cast_to(low, uint64))
    bits = ops.RandomBits(sizes, uint64)(key)
    return add(cast_to(floormod(bits, width), kind), low)


def _check_bounds(low: Tensor, high: Tensor) -> None:
    """Rejects bounds that are known to have no integer between them."""
    lowest, highest = value_at_hand(low), value_at_hand(high)
    if lowest is not None and highest is not None and (lowest >= highest).any():
        fail(
            SignatureError,
            f"uniform: minval {lowest} is not below maxval {highest}",
            fix="give a maxval above minval; it is not drawn itself",
        )


def draw_full_int(key: Tensor, sizes: Any, kind: DType) -> Tensor:
    if not kind.is_integer:
        fact, fix = f"uniform_full_int: {kind.name} is not a type of integers", "use tg.uint32"
        fail(DTypeError, fact, fix=fix)
    unsigned = as_dtype(kind.name if kind.name.startswith("u") else f"u{kind.name}")
    return cast_to(ops.RandomBits(sizes, unsigned)(key), kind)


def shuffled(key: Tensor, value: Any) -> Tensor:
    x = as_tensor(value)
    sizes = sizes_of("shuffle", x)
    if not sizes:
        refuse("shuffle", "a scalar has no axis to shuffle", x, fix="give a tensor with an axis")
    return Gather(0, 0)(x, ops.RandomPermutation(sizes[0])(key))


def draw_categorical(key: Tensor, logits: Any, num_samples: Any, dtype: Any) -> Tensor:
    x = as_tensor(logits)
    if rank_of("categorical", x) != 2:
        refuse("categorical", f"the logits are {x.type}", x, fix="give [batch, classes]")
    rows, classes = x.type.shape
    count = as_count("categorical", "num_samples", num_samples)
    x = cast_to(x, drawn_dtype(x.dtype))
    # The largest of logits plus Gumbel noise is distributed like softmax. The noise is that of a
    # uniform number with all bits of a word: those of `RandomUniform` are multiples of 2 ** -23, so
    # classes of a probability below it would come up too rarely, or never.
    bits = x.dtype.size * 8
    u = cast_to(ops.RandomBits((rows, count, classes), as_dtype(f"uint{bits}"))(key), x.dtype)
    u = multiply(add(u, 0.5), 2.0**-bits)
    below_one = 1 - float(np.finfo(x.dtype.numpy_dtype).epsneg)
    gumbel = negative(log(negative(log1p(negative(minimum(u, below_one))))))
    wide = broadcast(reshape(x, [rows, 1, classes]), gumbel.type.shape)
    return argmax(add(wide, gumbel), axis=2, output_type=dtype)
