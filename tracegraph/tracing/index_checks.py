"""Checks for what XLA reports no error for: indices out of range, and integer division by zero.

Known values are checked where the node is created; at top level all are known, and pending ones are
computed for it. Others are checked in every run of a function built with `check_bounds`. Without
that, reads are clamped to the nearest element and writes are dropped, as `ops.index` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.core.shapes import Size, element_count, minimum
from tracegraph.core.types import bool_, int32, int64, uint32, uint64
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import DTypeError, InvalidArgumentError, ShapeError, fail
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import LARGEST_CONSTANT, static_value
from tracegraph.ops.broadcast import full, zeros_of
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import Cast, GreaterEqual, LessEqual, LogicalAnd, NotEqual
from tracegraph.ops.index import size_value
from tracegraph.ops.reduce import All, Max, Min
from tracegraph.ops.shape import Concatenate, at_least, slice_axis
from tracegraph.tracing.trace import Trace, current_trace


def in_range(op: str, x: Tensor, at: Tensor, axes: Sequence[int]) -> Tensor:
    """x, whose `axes` are indexed by the numbers along the last axis of `at`, or by all of it.

    Refuses indices that are known to be out of range. An open size is assumed to be large enough
    for the known indices, and every run checks that.
    """
    value = check_range(op, x, at, axes)
    if value is not None and value.size:
        for k, axis in enumerate(axes):
            x = at_least(x, axis, int(_along(value, axes, k).max()) + 1)
    return x


def taken_from(op: str, x: Tensor, at: Tensor, axes: Sequence[int]) -> Tensor:
    """`in_range`, for elements that are read."""
    x = in_range(op, x, at, axes)
    taken = element_count(at.type.shape)
    for axis in axes if taken != 0 else ():
        x = with_elements(op, x, axis, taken=taken)
    return x


def with_elements(op: str, x: Tensor, axis: int, count: Size = 1, taken: Size = 1) -> Tensor:
    """x, of which code takes `count` elements along an axis, and refuses one that has none, unless
    the number of those `taken` in all turns out to be 0. A branch or a loop need not run: there
    they are zeros, and a run that comes there fails."""
    size = x.type.shape[axis]
    if count == 0:
        return x
    if not _is_in_region():
        if size == 0 and isinstance(taken, int):
            fact = f"{op}: axis {axis} of {x.type} has no elements to index"
            fail(ShapeError, fact, operands=[operand_text(x)], fix=_NOT_EMPTY)
        return at_least(x, axis, minimum(taken, 1))
    if size != 0:
        return x
    fact = f"{op}: axis {axis} of {x.type} has no elements to index"
    _trace().check(constant(False, bool_), fact, (), _NOT_EMPTY)
    shape = x.type.shape
    zeros = full(0, x.type.with_shape((*shape[:axis], count, *shape[axis + 1 :])))
    return Concatenate(axis)(x, zeros)


_NOT_EMPTY = "check that the tensor is not empty first"


def _is_in_region() -> bool:
    trace: Any = current_trace()
    while isinstance(trace, Trace):
        if trace.region is not None:
            return True
        trace = trace.outer
    return False


def check_range(op: str, x: Tensor, at: Tensor, axes: Sequence[int]) -> np.ndarray | None:
    """Refuses indices of `axes` that are out of range, now or in every run. Returns the indices if
    they are known."""
    value = value_now(at)
    for k, axis in enumerate(axes):
        bound = x.type.shape[axis]
        message = f"{op}: index {{}} is out of range for the size {bound} of {x.type}"
        fix = _NOT_EMPTY if bound == 0 else f"use indices from 0 to {bound - 1}"
        if value is not None:
            refuse_outside(_along(value, axes, k), 0, bound - 1, message, fix, (x, at))
        elif checks_at_run_time():
            last = len(at.type.shape) - 1
            numbers = at if len(axes) == 1 else slice_axis(at, last, k, k + 1)
            check_at_run_time(numbers, 0, bound - 1, message, fix)
    return value


def _along(value: np.ndarray, axes: Sequence[int], k: int) -> np.ndarray:
    """The indices into one of the axes."""
    return value if len(axes) == 1 else value[..., k]


def refuse_outside(
    numbers: np.ndarray, low: Size, high: Size, message: str, fix: str, operands: Sequence[Tensor]
) -> None:
    """Raises InvalidArgumentError if known numbers are below `low` or above `high`, where an open
    bound counts as infinite; the first of them replaces {} in the message."""
    lowest = low if type(low) is int else -np.inf
    highest = high if type(high) is int else np.inf
    if numbers.size and not lowest <= numbers.min() <= numbers.max() <= highest:
        wrong = numbers[(numbers < lowest) | (numbers > highest)]
        fail(
            InvalidArgumentError,
            message.replace("{}", str(wrong[0])),
            operands=map(operand_text, operands),
            fix=fix,
        )


def checks_at_run_time() -> bool:
    """Whether code built here checks unknown values in every run."""
    trace = current_trace()
    return trace is not None and trace.checks_bounds


def check_at_run_time(numbers: Tensor, low: Size, high: Size, message: str, fix: str) -> None:
    """Like `refuse_outside`, for unknown numbers, if `checks_at_run_time`."""
    dtype = numbers.dtype
    wide = dtype if dtype is uint64 else int64 if dtype.size > 4 or dtype is uint32 else int32
    low = max(low, 0) if dtype is uint64 and type(low) is int else low
    numbers = numbers if dtype is wide else Cast(wide)(numbers)
    smallest, largest = Min(None)(numbers), Max(None)(numbers)
    lowest, highest = size_value(low, wide), size_value(high, wide)
    holds = LogicalAnd()(GreaterEqual()(smallest, lowest), LessEqual()(largest, highest))
    _trace().check(holds, message, (smallest, largest, lowest, highest), fix, is_range=True)


def check_divisor(op: str, x: Tensor, y: Tensor) -> None:
    """Refuses integer division by zero, for which XLA returns an arbitrary number."""
    message = f"{op}: {x.type} is divided by zero"
    fix = "divide by what is not 0, or choose: tg.where(y == 0, 0, x // tg.where(y == 0, 1, y))"
    value = value_now(y)
    if value is None:
        if checks_at_run_time():
            _trace().check(All(None)(NotEqual()(y, zeros_of(y))), message, (), fix)
    elif not value.all():
        if _is_in_region():  # a branch or a loop need not run
            _trace().check(constant(False, bool_), message, (), fix)
            return
        operands = [operand_text(x), operand_text(y)]
        fail(InvalidArgumentError, message, operands=operands, fix=fix)


def check_exponent(x: Tensor, y: Tensor) -> None:
    """Refuses negative powers of integers, which are not integers."""
    value = value_now(y)
    message, fix = (
        f"pow: an integer tensor {x.type} has no power {{}}",
        "convert it: tg.cast(x, tg.float32)",
    )
    if value is None:
        if checks_at_run_time():
            check_at_run_time(y, 0, y.dtype.max, message, fix)
    elif (value < 0).any():
        operands = [operand_text(x), operand_text(y)]
        fact = message.replace("{}", str(value[value < 0][0]))
        fail(DTypeError, fact, operands=operands, fix=fix)


def _trace() -> Trace:
    trace = current_trace()
    assert trace is not None
    return trace


def value_now(x: Tensor) -> np.ndarray | None:
    """`value_at_hand`, after computing a value that is pending at top level."""
    builder = current()
    is_asked = builder.is_top_level and builder.reuse is None
    return host_array(x) if is_asked else value_at_hand(x)


def value_at_hand(x: Tensor) -> np.ndarray | None:
    """The value if it is already known: that of a computed tensor, or, in a graph, small values
    that follow from constants. Evaluates nothing."""
    if x.is_made:
        return host_array(x)
    if current().is_top_level or not x.type.is_static:
        return None
    if element_count(x.type.shape) > LARGEST_CONSTANT:
        return None
    value = static_value(x)
    return None if value is None or value.dtype == object else value
