"""Simulated quantization: numbers rounded as if stored in few bits, with derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegraph.api.absent import publish
from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_flag,
    as_number,
    as_size,
    known_int,
    rank_of,
    refuse,
)
from tracegraph.array.creation import stop_gradient
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import reshape
from tracegraph.core.shapes import same_shape, same_size
from tracegraph.errors import InvalidArgumentError, SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import (
    equal,
    greater,
    less,
    logical_and,
    logical_not,
    logical_or,
)
from tracegraph.math.elementwise.unary import floor, rint
from tracegraph.math.reduction import reduce_max, reduce_min, reduce_sum
from tracegraph.operands.conversion import as_tensor
from tracegraph.tracing.index_checks import value_at_hand
from tracegraph.typing import Axis, TensorLike


def fake_quant_with_min_max_args(
    inputs: TensorLike,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Rounds the inputs to what `num_bits` bits can hold: the nearest of 2 ** num_bits numbers that
    divide the range from `min` to `max`.

    The range is shifted slightly so that it contains 0 exactly. With `narrow_range` there is one
    number less. The derivative is 1 inside the range and 0 outside.
    Raises ValueError if min is not below max, or for a `num_bits` that is not from 2 to 16.

    >>> tg.quantization.fake_quant_with_min_max_args([-9.0, 0.1, 4.5], 0.0, 6.0, 2).numpy()
    array([0., 0., 4.], dtype=float32)
    """
    op = "fake_quant_with_min_max_args"
    low, high = (as_number(op, what, x) for what, x in (("min", min), ("max", max)))
    x = _floating(op, inputs)
    least, most = (as_tensor(float(bound), x.dtype) for bound in (low, high))
    return _fake_quantized(op, x, least, most, num_bits, narrow_range)


def fake_quant_with_min_max_vars(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """`fake_quant_with_min_max_args` with scalar tensors for the range. `min` gets the derivative
    of inputs below the range, and `max` that of inputs above.

    Raises ShapeError for bounds that are not scalars, and the errors of that function.

    >>> low, high = tg.Variable(0.0), tg.Variable(6.0)
    >>> with tg.GradientTape() as tape:
    ...     y = tg.quantization.fake_quant_with_min_max_vars([-9.0, 7.0, 8.0], low, high)
    >>> [g.numpy().item() for g in tape.gradient(y, [low, high])]
    [1.0, 2.0]
    """
    op = "fake_quant_with_min_max_vars"
    x = _floating(op, inputs)
    low, high = _scalar_bounds(op, x, min, max)
    return _fake_quantized(op, x, low, high, num_bits, narrow_range)


def fake_quant_with_min_max_vars_per_channel(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """`fake_quant_with_min_max_vars` with a range for each element of the last axis.

    Raises ShapeError unless the bounds are vectors of that axis's size.

    >>> x, low, high = [[4.5, 4.5]], [0.0, 0.0], [6.0, 3.0]
    >>> tg.quantization.fake_quant_with_min_max_vars_per_channel(x, low, high, 2).numpy()
    array([[4., 3.]], dtype=float32)
    """
    op = "fake_quant_with_min_max_vars_per_channel"
    x = _floating(op, inputs)
    low, high = _bounds_of_channels(op, x, min, max)
    return _fake_quantized(op, x, low, high, num_bits, narrow_range)


def fake_quant_with_min_max_args_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """The gradient of `fake_quant_with_min_max_args` with respect to inputs, given `gradients`.

    >>> inputs = [-9.0, 1.0]
    >>> tg.quantization.fake_quant_with_min_max_args_gradient([1.0, 1.0], inputs).numpy()
    array([0., 1.], dtype=float32)
    """
    op = "fake_quant_with_min_max_args_gradient"
    low, high = (float(as_number(op, what, x)) for what, x in (("min", min), ("max", max)))
    x = _floating(op, inputs)
    bounds = _scalar_bounds(op, x, low, high)
    return _gradients(op, gradients, x, bounds, num_bits, narrow_range)[0]


def fake_quant_with_min_max_vars_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `fake_quant_with_min_max_vars` with respect to inputs, min and max, given
    the cotangent `gradients`.

    >>> found = tg.quantization.fake_quant_with_min_max_vars_gradient([1.0, 2.0], [-9.0, 1.0], 0, 6)
    >>> [g.numpy().tolist() for g in found]
    [[0.0, 2.0], 1.0, 0.0]
    """
    op = "fake_quant_with_min_max_vars_gradient"
    x = _floating(op, inputs)
    bounds = _scalar_bounds(op, x, min, max)
    by_x, below, above = _gradients(op, gradients, x, bounds, num_bits, narrow_range)
    return by_x, reduce_sum(below), reduce_sum(above)


def fake_quant_with_min_max_vars_per_channel_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `fake_quant_with_min_max_vars_per_channel` for inputs, min and max.

    >>> gradient = tg.quantization.fake_quant_with_min_max_vars_per_channel_gradient
    >>> [g.numpy().tolist() for g in gradient([[1.0, 2.0]], [[-9.0, 1.0]], [0.0, 0.0], [6.0, 6.0])]
    [[[0.0, 2.0]], [1.0, 0.0], [0.0, 0.0]]
    """
    op = "fake_quant_with_min_max_vars_per_channel_gradient"
    x = _floating(op, inputs)
    bounds = _bounds_of_channels(op, x, min, max)
    by_x, below, above = _gradients(op, gradients, x, bounds, num_bits, narrow_range)
    axes = list(range(by_x.ndim - 1))
    return by_x, reduce_sum(below, axes), reduce_sum(above, axes)


def _scalar_bounds(op: str, x: Tensor, low: Any, high: Any) -> tuple[Tensor, Tensor]:
    """One range for all elements of x."""
    least, most = (as_tensor(bound, _kind(bound, x)) for bound in (low, high))
    if least.type.shape != () or most.type.shape != ():
        fix = f"give scalars, or use {op.replace('vars', 'vars_per_channel')}"
        refuse(op, f"the bounds are {least.type} and {most.type}", least, most, fix=fix)
    return least, most


def _bounds_of_channels(op: str, x: Tensor, low: Any, high: Any) -> tuple[Tensor, Tensor]:
    """A range for each element of the last axis of x."""
    least, most = (as_tensor(bound, _kind(bound, x)) for bound in (low, high))
    size = x.type.shape[-1:] if rank_of(op, x) else ()
    if not size or any(same_shape(bound.type.shape, size) is None for bound in (least, most)):
        fact = f"bounds {least.type} and {most.type} for {x.type}"
        refuse(op, fact, x, least, most, fix="give one for each element of the last axis")
    return least, most


def _gradients(
    op: str,
    gradients: Any,
    x: Tensor,
    bounds: tuple[Tensor, Tensor],
    num_bits: Any,
    narrow_range: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """The cotangents of inputs inside the range, below it, and above it, each 0 elsewhere."""
    g = as_tensor(gradients, _kind(gradients, x))
    if same_shape(g.type.shape, x.type.shape) is None:
        refuse(op, f"gradients {g.type} for {x.type}", g, x, fix="give one for each input")
    levels = _levels(op, x, *bounds, num_bits, narrow_range)
    inside = where(logical_or(levels.is_below, levels.is_above), 0.0, g)
    return inside, where(levels.is_below, g, 0.0), where(levels.is_above, g, 0.0)


class _Levels(NamedTuple):
    """The representable numbers: multiples of `step`, from the integer `first` to `last`; and which
    inputs are outside."""

    first: Tensor
    last: Tensor
    step: Tensor
    is_below: Tensor
    is_above: Tensor


def _levels(
    op: str, x: Tensor, low: Tensor, high: Tensor, num_bits: Any, narrow_range: Any
) -> _Levels:
    _check_range(op, low, high)
    last = 2 ** _bits(op, num_bits, 2, 16) - 1
    first = 1 if as_flag(op, "narrow_range", narrow_range) else 0
    # An empty range at 0, as of a Variable that was never set, is kept as it is.
    is_nothing = logical_and(equal(low, 0.0), equal(high, 0.0))
    step = where(is_nothing, 1.0, divide(subtract(high, low), float(last - first)))
    zero = subtract(float(first), divide(low, step))
    zero = clip_by_value(floor(add(zero, 0.5)), float(first), float(last))
    ends = [where(is_nothing, 0.0, subtract(float(n), zero)) for n in (first, last)]
    is_below, is_above = (
        logical_and(compare(x, multiply(end, step)), logical_not(is_nothing))
        for compare, end in zip((less, greater), ends)
    )
    return _Levels(ends[0], ends[1], step, is_below, is_above)


def _fake_quantized(
    op: str, x: Tensor, low: Tensor, high: Tensor, num_bits: Any, narrow_range: Any
) -> Tensor:
    levels = _levels(op, x, low, high, num_bits, narrow_range)
    place = floor(add(subtract(divide(x, levels.step), levels.first), 0.5))
    count = subtract(levels.last, levels.first)
    number = add(minimum(maximum(place, 0.0), count), levels.first)
    value = multiply(number, levels.step)  # 0 stays exactly 0, however the step is rounded
    # The source of each result's derivative; the difference is 0, so the value is unchanged.
    moving = where(levels.is_below, low, where(levels.is_above, high, x))
    return add(stop_gradient(value), subtract(moving, stop_gradient(moving)))


def quantize_and_dequantize_v2(
    input: TensorLike,
    input_min: TensorLike,
    input_max: TensorLike,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    name: str | None = None,
    narrow_range: bool = False,
    axis: Axis = None,
) -> Tensor:
    """Rounds `input` to integers of `num_bits` bits times a scale; 0 is represented exactly.

    - `input_min`, `input_max`: the range, if `range_given`; otherwise that of the input is used.
      Scalars, or vectors with one element for each index along `axis`, if it is given.
    - `signed_input`: whether integers may be negative; `narrow_range` excludes the smallest.
    - `round_mode`: "HALF_TO_EVEN" or "HALF_UP".

    The derivative is 1 inside the range and 0 outside; the range gets none.
    Raises ValueError for an unknown mode, for bits below 1 or above 63, and for a range that is
    known to be in the wrong order.

    >>> tg.quantization.quantize_and_dequantize_v2([-1.0, 0.3, 2.0], 0.0, 0.0, num_bits=3).numpy()
    array([-1.3333334,  0.       ,  2.       ], dtype=float32)
    """
    op = "quantize_and_dequantize_v2"
    x = _floating(op, input)
    mode = as_choice(op, "round_mode", round_mode, ("HALF_TO_EVEN", "HALF_UP"))
    is_signed = as_flag(op, "signed_input", signed_input)
    bits = _bits(op, num_bits, 1 + is_signed, 63)
    low, high = _range_of(op, x, input_min, input_max, range_given, axis)
    least = -(2 ** (bits - 1)) + as_flag(op, "narrow_range", narrow_range) if is_signed else 0
    most = 2 ** (bits - is_signed) - 1
    # The larger of the two steps reaches both ends; a sign that neither end has does not count.
    steps = [divide(high, float(most))] + ([divide(low, float(least))] if least else [])
    step = maximum(steps[0], steps[-1])
    step = where(greater(step, 0.0), step, 1.0)
    place = divide(
        minimum(maximum(x, multiply(step, float(least))), multiply(step, float(most))), step
    )
    nearest = rint(place) if mode == "HALF_TO_EVEN" else floor(add(place, 0.5))
    value = multiply(nearest, step)
    outside = logical_or(less(x, low), greater(x, high))
    moving = where(outside, 0.0, x)
    return add(stop_gradient(value), subtract(moving, stop_gradient(moving)))


quantize_and_dequantize = quantize_and_dequantize_v2


def _range_of(
    op: str, x: Tensor, low: Any, high: Any, is_given: Any, axis: Any
) -> tuple[Tensor, Tensor]:
    """The bounds of the range, which broadcast to x and have no derivative."""
    place = None if axis is None else as_axis(op, axis, rank_of(op, x), x)
    bounds = [as_tensor(bound, _kind(bound, x)) for bound in (low, high)]
    if not as_flag(op, "range_given", is_given):
        axes = None if place is None else [k for k in range(x.ndim) if k != place]
        y = stop_gradient(x)
        return reduce_min(y, axes, place is not None), reduce_max(y, axes, place is not None)
    _check_range(op, bounds[0], bounds[1], may_be_equal=True)
    for bound in bounds:
        if place is None and bound.type.shape != ():
            refuse(op, f"a bound is {bound.type}", bound, fix="give a scalar, or an axis")
        if place is not None and (
            rank_of(op, bound) != 1 or same_size(bound.type.shape[0], x.type.shape[place]) is None
        ):
            fact = f"a bound is {bound.type} for axis {place} of {x.type}"
            refuse(op, fact, bound, x, fix="give one for each element of the axis")
    bounds = [stop_gradient(bound) for bound in bounds]
    if place is not None:
        bounds = [reshape(bound, [-1, *[1] * (x.ndim - 1 - place)]) for bound in bounds]
    return bounds[0], bounds[1]


def _floating(op: str, inputs: Any) -> Tensor:
    x = as_tensor(inputs)
    if not x.dtype.is_floating:
        refuse(op, f"the operand is {x.type}", x, fix="convert it: tg.cast(x, tg.float32)")
    return x


def _kind(value: Any, x: Tensor) -> Any:
    """The dtype for a bound: its own if it is a tensor."""
    return None if isinstance(value, Tensor) or hasattr(value, "__tracegraph_tensor__") else x.dtype


def _bits(op: str, num_bits: Any, least: int, most: int) -> int:
    bits = as_size(op, "num_bits", num_bits)
    if not known_int(bits) or not least <= bits <= most:
        fact = f"{op}: num_bits is {bits}"
        fail(SignatureError, fact, fix=f"use an int from {least} to {most}")
    return bits


def _check_range(op: str, low: Tensor, high: Tensor, may_be_equal: bool = False) -> None:
    """Rejects bounds that are known to be in the wrong order; both may be 0."""
    first, last = value_at_hand(low), value_at_hand(high)
    if first is None or last is None:
        return
    is_right = (first < last) | ((first == last) & (may_be_equal | (first == 0)))
    if not is_right.all():
        fact = f"{op}: min is {shown(first.tolist())} and max {shown(last.tolist())}"
        fail(InvalidArgumentError, fact, fix="give a min below max")


__all__ = [
    "fake_quant_with_min_max_args",
    "fake_quant_with_min_max_args_gradient",
    "fake_quant_with_min_max_vars",
    "fake_quant_with_min_max_vars_gradient",
    "fake_quant_with_min_max_vars_per_channel",
    "fake_quant_with_min_max_vars_per_channel_gradient",
    "quantize_and_dequantize",
    "quantize_and_dequantize_v2",
]

publish(__name__)
